"""Paths of the ODE as accurate as a picture needs: expectations to rounding are dear, and eight digits of them are not drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from sgdynamics import functional
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import Start

ACCURACY = {"rtol": 1e-6, "atol": 1e-7}


@partial(jax.jit, static_argnames=("structure", "rule"))
def _path(structure: Any, rule: Any, parameters: Any, state: Any, times: Any, lr: Any) -> Any:
    setting: Any = {"lr": lr, "rule": rule, "mode": "forward", **ACCURACY}
    found = functional.solve(structure, parameters, state, times, **setting)
    risk = jax.lax.map(lambda one: functional.risk(structure, parameters, one, rule=rule), found)
    return {**found, "risk": risk}


@float64
def path(problem: Problem, begin: Start, times: Any, lr: float) -> dict[str, np.ndarray]:
    """M, Q and the risk at the given times; another number in the problem does not compile again."""
    rule = functional.rule(problem, begin)
    found = _path(problem.structure, rule, problem.parameters, functional.state(begin), np.asarray(times, dtype=np.float64), lr)
    # one block: the first axis after time
    return {"M": np.asarray(found["M"]).sum(axis=1), "Q": np.asarray(found["Q"]).sum(axis=1), "risk": np.asarray(found["risk"])}
