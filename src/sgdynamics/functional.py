"""The same drift, risk and solve as pure JAX functions of pytrees: jit, vmap and grad go through them.

    structure = problem.structure            # shapes and functions: static
    parameters = problem.parameters          # numbers: noise, weight_decay, gram, ...
    state = functional.state(start)          # {"M": (blocks, p, K), "Q": (blocks, p, p), "a": (p,)}
    rule = functional.rule(problem, start)   # how finely to integrate: static, chosen from the start

    with jax.enable_x64(True):
        final = lambda lr: functional.risk(structure, parameters, functional.solve(structure, parameters, state, times, lr=lr, last=True))
        jax.grad(final)(0.1)

They compute in whatever precision the caller's JAX is set to; `jax.enable_x64(True)` gives that of the rest of the library.
"""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics import checks
from sgdynamics.arrays import Given, Numbers, Numeric, Scalar, State
from sgdynamics.controls import Schedule
from sgdynamics.gaussian.choice import expectation_of
from sgdynamics.gaussian.expectation import Rule
from sgdynamics.gaussian.risk import MARGIN, risk_at, rule_for
from sgdynamics.limits import integration
from sgdynamics.limits.drift import MeanStep, finite_numbers
from sgdynamics.limits.drift import drift as mean_increment
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, checked_start
from sgdynamics.support import require

__all__ = ["drift", "finite", "risk", "rule", "solve", "state"]

MOST_STEPS, MOST_IMPLICIT_STEPS = 2000, 20000  # of a differentiable solve, which has no other method to go on by
ADJOINTS = {"reverse": diffrax.RecursiveCheckpointAdjoint, "forward": diffrax.ForwardMode, "both": diffrax.DirectAdjoint}


def state(start: Start, run: int | None = 0) -> dict[str, Any]:
    """One run of a start as a pytree, or with run=None all of them along a leading axis, which `solve` takes too (else `jax.vmap`)."""
    if not isinstance(start, Start):
        raise checks.reject("start", start, "give what sgd.start, sgd.random_start or sgd.start_from returns")
    if run is None:
        return {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
    if isinstance(run, bool) or not isinstance(run, (int, np.integer)) or not -start.runs <= run < start.runs:
        raise checks.reject("run", run, f"the start has {start.runs} runs: give a whole number from 0 to {start.runs - 1}, or None for all")
    return {"M": start.M_blocks[run], "Q": start.Q_blocks[run], "a": start.a[run]}


def rule(problem: Problem, start: Start, margin: float = MARGIN) -> Rule:
    """How finely to integrate, for rows up to `margin` times those of the start (in squared length)."""
    require("functional", problem)
    return rule_for(problem, checked_start(problem, start).Q_blocks, checks.number("margin", margin, above=0.0))


def finite(problem: Problem, dimension: int, batch: int = 1) -> dict[str, Any]:
    """What `drift` and `solve` need for the exact mean increment at dimension d."""
    require("functional", problem)
    numbers = finite_numbers(problem, dimension, batch)
    if "points" in numbers:
        numbers["points"] = {name: value.reshape(-1, *value.shape[2:]) for name, value in numbers["points"].items()}
    return numbers


def _first_nodes(structure: Structure, rule: Rule, flow: bool) -> dict[str, Any]:
    return {name: jnp.asarray(value[0]) for name, value in expectation_of(structure).nodes(rule, flow).items()}


def drift(
    structure: Structure,
    parameters: Numbers,
    state: State,
    *,
    lr: Scalar = 0.0,
    head_rate: Scalar = 1.0,
    batch: int = 1,
    finite: dict[str, Any] | None = None,
    rule: Rule | None = None,
    flow: bool = False,
) -> dict[str, Any]:
    """d(M, Q, a)/dt at one state, in t = lr steps/d. flow=True leaves the noise of SGD out (lr -> 0)."""
    rule = rule or Rule()
    algorithm = {"lr": lr, "head_rate": head_rate}
    nodes = _first_nodes(structure, rule, flow)
    return mean_increment(structure, rule, nodes, parameters, algorithm, state, batch=batch, flow=flow, finite=finite)


def risk(structure: Structure, parameters: Numbers, state: State, *, rule: Rule | None = None) -> Float[Numeric, ""]:
    """E[loss] at one state."""
    rule = rule or Rule()
    nodes = {name: jnp.asarray(value[0]) for name, value in expectation_of(structure).risk_nodes(rule).items()}
    return risk_at(structure, rule, nodes, parameters, state)


def solve(
    structure: Structure,
    parameters: Numbers,
    state: State,
    times: Given,
    *,
    lr: Scalar | Schedule = 0.0,
    head_rate: Any = 1.0,
    batch: int = 1,
    finite: dict[str, Any] | None = None,
    rule: Rule | None = None,
    flow: bool = False,
    stiff: bool = False,
    last: bool = False,
    rtol: float = integration.RTOL,
    atol: float = integration.ATOL,
    mode: str = "reverse",
) -> dict[str, Any]:
    """States at `times` (a leading time axis), or with last=True the state at the last of them; of runs (a leading axis of `state`) each.

    Differentiable with respect to lr, every number in `parameters`, and `state`: mode="reverse" by `jax.grad` and `jax.jacrev`
    (checkpointed), "forward" by `jax.jvp` and `jax.jacfwd`, also nested, "both" by either and by `jax.hessian`, at a higher cost.
    Explicit, with 2000 steps at most (stiff=True: implicit, with 20000); beyond them states are infinite (`sgd.solve_ode` goes on).
    """
    checks.choice("mode", mode, tuple(ADJOINTS))
    rule = rule or Rule()
    algorithm = {"lr": lr, "head_rate": head_rate}
    begin = jax.tree.map(jnp.asarray, state)
    nodes = _first_nodes(structure, rule, flow)
    points = jnp.asarray(times, dtype=begin["a"].dtype)
    most = MOST_IMPLICIT_STEPS if stiff else MOST_STEPS
    local = (integration.MARGIN * rtol, integration.MARGIN * atol)

    field = MeanStep(structure, rule, batch, flow)
    points_each = {} if finite is None or "points" not in finite else {"points": finite["points"]}
    shared = {"problem": parameters, "algorithm": algorithm, "finite": finite}

    def one(begin: dict[str, Any]) -> dict[str, Any]:
        setting = {"stiff": stiff, "guard": False, "adjoint": ADJOINTS[mode](), "most": most}
        found = integration.integrate(field, {"nodes": nodes, **points_each}, shared, begin, points, *local, **setting)
        states: Any = found.ys
        return jax.tree.map(lambda value: value[-1], states[0]) if last else states[0]

    return jax.vmap(one)(begin) if begin["a"].ndim == 2 else one(begin)
