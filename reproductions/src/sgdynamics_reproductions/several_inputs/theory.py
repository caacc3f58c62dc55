"""Paths of the ODE as accurate as a picture needs: expectations to rounding are dear, and eight
digits of them are not drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics import Problem, Start, functional
from sgdynamics.base.precision import float64


@partial(jax.jit, static_argnames=("structure", "quadrature", "risk"))
def _path(
    structure: Any,
    quadrature: Any,
    parameters: Any,
    state: Any,
    times: Any,
    lr: Any,
    rtol: Any,
    risk: bool,
) -> Any:
    result = functional.solve(
        structure,
        parameters,
        state,
        times,
        lr=lr,
        quadrature=quadrature,
        mode="forward",
        rtol=rtol,
        atol=rtol / 10,
    )
    if not risk:
        return result
    return {
        **result,
        "risk": jax.lax.map(
            lambda one: functional.risk(structure, parameters, one, quadrature=quadrature), result
        ),
    }


@float64
def path(
    problem: Problem, begin: Start, times: Any, lr: float, *, rtol: float = 1e-6, risk: bool = True
) -> dict[str, np.ndarray]:
    """M, Q and the risk at the given times; another number in the problem does not compile again."""
    quadrature = functional.quadrature(problem, begin)
    when = np.asarray(times, dtype=np.float64)
    result = _path(
        problem.structure,
        quadrature,
        problem.parameters,
        functional.state(begin),
        when,
        lr,
        rtol,
        risk,
    )
    # summed over blocks: the first axis after time
    overlaps = {name: np.asarray(result[name]).sum(axis=1) for name in ("M", "Q")}
    return {**overlaps, **({"risk": np.asarray(result["risk"])} if risk else {})}


@partial(jax.jit, static_argnames=("structure", "quadrature"))
def _growth(structure: Any, quadrature: Any, parameters: Any, state: Any) -> Any:
    def moved(M: Any) -> Any:
        return functional.drift(
            structure, parameters, {**state, "M": M}, quadrature=quadrature, flow=True
        )["M"]

    none = jnp.zeros_like(state["M"])
    return jax.jacfwd(moved)(none)


@float64
def growth(problem: Problem, begin: Start) -> np.ndarray:
    """The Jacobian of the drift of M where M = 0 and Q is the start's, lr = 0, of a width of one:
    (signals, signals).
    """
    K = begin.M.shape[-1]
    result = _growth(
        problem.structure,
        functional.quadrature(problem, begin),
        problem.parameters,
        functional.state(begin),
    )
    return np.asarray(result).reshape(K, K)
