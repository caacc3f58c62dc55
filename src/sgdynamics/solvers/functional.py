"""Drift, risk and solution as pure JAX functions of pytrees, for jit, vmap and grad.

::

    structure = problem.structure            # shapes and functions: static
    parameters = problem.parameters          # numerical parameters: noise, weight_decay, gram, ...
    state = functional.state(start)          # {"M": (blocks, p, K), "Q": (blocks, p, p), "a": (p,)}
    quadrature = functional.quadrature(problem, start)    # static, chosen for the start

    def final_risk(lr):
        last = functional.solve(structure, parameters, state, times, lr=lr, last=True)
        return functional.risk(structure, parameters, last)

    with jax.enable_x64(True):
        jax.grad(final_risk)(0.1)

They compute in the precision to which the caller's JAX is set; ``jax.enable_x64(True)`` is that of
the rest of the library.
"""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Numeric, Parameters, Scalar, State
from sgdynamics.base.controls import Schedule
from sgdynamics.base.support import INFINITE_VARIANCE, require
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature, risk_at
from sgdynamics.ode.case import ATOL, RTOL
from sgdynamics.ode.case import MARGIN as TOLERANCE_MARGIN
from sgdynamics.ode.drift import MeanStep, finite_dimension_inputs
from sgdynamics.ode.drift import drift as mean_increment
from sgdynamics.ode.integrate import integrate
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples.laws import finite_moments

__all__ = ["drift", "finite", "quadrature", "risk", "solve", "state"]

# Steps of a differentiable solution, which has no second method to continue with.
MOST_STEPS, MOST_IMPLICIT_STEPS = 2000, 20000
ADJOINTS = {
    "reverse": diffrax.RecursiveCheckpointAdjoint,
    "forward": diffrax.ForwardMode,
    "both": diffrax.DirectAdjoint,
}


def state(start: Start, run: int | None = 0) -> dict[str, Any]:
    """One run of a start as a pytree.

    Parameters
    ----------
    start : Start
        Initial condition, from ``sgd.start`` or ``sgd.random_start``.
    run : int or None, default 0
        Index of the run; None for all runs along a leading axis, which ``solve`` takes too (for
        the other functions use ``jax.vmap``).

    Returns
    -------
    dict of ndarray
        "M" (blocks, p, K), "Q" (blocks, p, p) and "a" (p,).

    Raises
    ------
    ValueError
        If ``start`` is not an initial condition, or has no such run.

    Examples
    --------
    >>> start = sgd.start(sgd.TeacherStudent(width=2), M=[[0.3], [0.1]], Q=np.eye(2))
    >>> sgd.functional.state(start)["M"].shape
    (1, 2, 1)
    """
    if not isinstance(start, Start):
        raise checks.reject(
            "start", start, "give what sgd.start, sgd.random_start or sgd.start_from returns"
        )
    if run is None:
        return {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
    if (
        isinstance(run, bool)
        or not isinstance(run, (int, np.integer))
        or not -start.runs <= run < start.runs
    ):
        fix = (
            f"the start has {start.runs} runs: give a whole number from 0 to {start.runs - 1}, "
            "or None for all"
        )
        raise checks.reject("run", run, fix)
    return {"M": start.M_blocks[run], "Q": start.Q_blocks[run], "a": start.a[run]}


def quadrature(problem: Problem, start: Start, margin: float = MARGIN) -> Quadrature:
    """Choose the quadrature of the expectations.

    Parameters
    ----------
    problem : Problem
        The learning problem.
    start : Start
        Initial condition.
    margin : float, default 2.0
        Largest squared length of the rows along the trajectory, relative to the start.

    Returns
    -------
    Quadrature
        The quadrature, a static argument on which compiled code depends.

    Raises
    ------
    ValueError
        If the problem has no fields, or the start is of another problem.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> sgd.functional.quadrature(problem, sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))).terms
    64
    """
    require("functional", problem)
    return choose_quadrature(
        problem, validate_start(problem, start).Q_blocks, checks.number("margin", margin, above=0.0)
    )


def finite(problem: Problem, dimension: int, batch: int = 1) -> dict[str, Any]:
    """Argument ``finite`` of ``drift`` and ``solve``, for the exact mean increment at dimension d.

    Parameters
    ----------
    problem : Problem
        The learning problem.
    dimension : int
        Dimension d.
    batch : int, default 1
        Number of samples per step.

    Returns
    -------
    dict
        Pytree for the argument ``finite``.

    Raises
    ------
    ValueError
        If the dimension is too small, or the problem has no fields.

    Examples
    --------
    >>> sorted(sgd.functional.finite(sgd.TeacherStudent(width=2), 500))
    ['inverse_dimension', 'sizes']
    """
    require("functional", problem)
    values = finite_dimension_inputs(problem, dimension, batch)
    if "points" in values:
        # replicates of the points of a step on the sphere side by side
        values["points"] = {
            name: points.reshape(-1, *points.shape[2:]) for name, points in values["points"].items()
        }
    return values


def _first_nodes(structure: Structure, quadrature: Quadrature, flow: bool) -> dict[str, Any]:
    return {
        name: jnp.asarray(value[0])
        for name, value in expectation_of(structure).nodes(quadrature, flow).items()
    }


def _with_variance(structure: Structure, parameters: Parameters) -> Parameters:
    """Check that label noise under the squared loss has a variance, which risk and drift need.

    Traced degrees of freedom of Student t cannot be rejected: up to df = 2 the noise is made
    infinite.
    """
    law = structure.sample.noise_law
    if law is None or not structure.has_excess:
        return parameters
    df = parameters["noise_law"].get("df")
    moments = finite_moments(law, df)
    if checks.is_traced(moments):
        return {**parameters, "noise": jnp.where(moments <= 2, jnp.inf, parameters["noise"])}
    if np.any(np.asarray(moments) <= 2):
        raise checks.reject(
            "noise", law if df is None else f"{law}, df = {np.min(df):g}", INFINITE_VARIANCE
        )
    return parameters


def drift(
    structure: Structure,
    parameters: Parameters,
    state: State,
    *,
    lr: Scalar = 0.0,
    head_rate: Scalar = 1.0,
    batch: int = 1,
    finite: dict[str, Any] | None = None,
    quadrature: Quadrature | None = None,
    flow: bool = False,
) -> dict[str, Any]:
    """The rates d(M, Q, a)/dt at one state, in t = lr steps/d.

    Parameters
    ----------
    structure : Structure
        ``problem.structure``, static.
    parameters : dict
        ``problem.parameters``: noise, weight_decay, gram, ...
    state : dict
        State of one run, from ``functional.state``.
    lr : float, default 0.0
        The learning rate.
    head_rate : float, default 1.0
        The rate of a trained head relative to ``lr``.
    batch : int, default 1
        Number of samples per step, static.
    finite : dict, optional
        Value of ``functional.finite``, for the exact mean increment at finite d. Defaults to
        d -> infinity.
    quadrature : Quadrature, optional
        Quadrature chosen by ``functional.quadrature``, static; defaults to ``Quadrature()``.
    flow : bool, default False
        Whether to leave out the noise of SGD (lr -> 0); static.

    Returns
    -------
    dict
        The rates, with the shapes of ``state``.

    Raises
    ------
    ValueError
        If label noise of infinite variance meets the squared loss; if its degrees of freedom are
        traced, rates are not finite instead.

    Examples
    --------
    >>> import jax
    >>> problem, f = sgd.TeacherStudent(width=2), sgd.functional
    >>> state = f.state(sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)))
    >>> drift = jax.jit(f.drift, static_argnums=0)
    >>> with jax.enable_x64(True):
    ...     rates = drift(problem.structure, problem.parameters, state, lr=0.1)
    >>> np.round(rates["M"].ravel(), 3).tolist()
    [0.3, 0.1]
    """
    parameters = _with_variance(structure, parameters)
    quadrature = quadrature or Quadrature()
    algorithm = {"lr": lr, "head_rate": head_rate}
    nodes = _first_nodes(structure, quadrature, flow)
    return mean_increment(
        structure,
        quadrature,
        nodes,
        parameters,
        algorithm,
        state,
        batch=batch,
        flow=flow,
        finite=finite,
    )


def risk(
    structure: Structure,
    parameters: Parameters,
    state: State,
    *,
    quadrature: Quadrature | None = None,
) -> Float[Numeric, ""]:
    """E[loss] at one state.

    Parameters
    ----------
    structure : Structure
        ``problem.structure``, static.
    parameters : dict
        ``problem.parameters``.
    state : dict
        State of one run, from ``functional.state``.
    quadrature : Quadrature, optional
        Quadrature chosen by ``functional.quadrature``, static; defaults to ``Quadrature()``.

    Returns
    -------
    array
        One number.

    Raises
    ------
    ValueError
        If label noise of infinite variance meets the squared loss; if its degrees of freedom are
        traced, the risk is infinite instead.

    Examples
    --------
    >>> import jax
    >>> problem, f = sgd.TeacherStudent(width=2), sgd.functional
    >>> state = f.state(sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)))
    >>> with jax.enable_x64(True):
    ...     print(round(float(f.risk(problem.structure, problem.parameters, state)), 3))
    1.4
    """
    parameters = _with_variance(structure, parameters)
    quadrature = quadrature or Quadrature()
    nodes = {
        name: jnp.asarray(value[0])
        for name, value in expectation_of(structure).risk_nodes(quadrature, quick=False).items()
    }
    return risk_at(structure, quadrature, nodes, parameters, state)


def solve(
    structure: Structure,
    parameters: Parameters,
    state: State,
    times: ArrayArgument,
    *,
    lr: Scalar | Schedule = 0.0,
    head_rate: Any = 1.0,
    batch: int = 1,
    finite: dict[str, Any] | None = None,
    quadrature: Quadrature | None = None,
    flow: bool = False,
    stiff: bool = False,
    last: bool = False,
    rtol: float = RTOL,
    atol: float = ATOL,
    mode: str = "reverse",
) -> dict[str, Any]:
    """Solve the ODE, differentiably with respect to lr, ``parameters`` and ``state``.

    Parameters
    ----------
    structure : Structure
        ``problem.structure``, static.
    parameters : dict
        ``problem.parameters``.
    state : dict
        State of one run, or of several along a leading axis, from ``functional.state``.
    times : array_like
        Increasing times t = lr steps/d.
    lr : float, default 0.0
        The learning rate.
    head_rate : float, default 1.0
        The rate of a trained head relative to ``lr``.
    batch : int, default 1
        Number of samples per step, static.
    finite : dict, optional
        Value of ``functional.finite``, for the exact mean increment at finite d. Defaults to
        d -> infinity.
    quadrature : Quadrature, optional
        Quadrature chosen by ``functional.quadrature``, static; defaults to ``Quadrature()``.
    flow : bool, default False
        Whether to leave out the noise of SGD (lr -> 0); static.
    stiff : bool, default False
        Whether to use an implicit method, with at most 20000 steps; the explicit one has 2000.
        Beyond them states are infinite (``sgd.solve_ode`` continues).
    last : bool, default False
        Whether to return only the state at the last time.
    rtol : float, default 1e-08
        Relative accuracy of the overlaps.
    atol : float, default 1e-10
        Absolute accuracy of the overlaps.
    mode : str, default "reverse"
        Mode of differentiation: "reverse" for ``jax.grad`` and ``jax.jacrev`` (checkpointed),
        "forward" for ``jax.jvp`` and ``jax.jacfwd``, also nested, "both" for either and for
        ``jax.hessian``, at a higher cost.

    Returns
    -------
    dict
        States with a time axis, after that of runs; with ``last`` the state at the last time.

    Raises
    ------
    ValueError
        If ``mode`` is none of these, or if label noise of infinite variance meets the squared loss
        (if its degrees of freedom are traced, states are not finite instead).

    Examples
    --------
    >>> import jax
    >>> problem, f = sgd.TeacherStudent(width=2), sgd.functional
    >>> state = f.state(sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)))
    >>> solve, times = jax.jit(f.solve, static_argnums=0), np.array([0.5, 1.0])
    >>> with jax.enable_x64(True):
    ...     states = solve(problem.structure, problem.parameters, state, times, lr=0.1)
    >>> states["M"].shape
    (2, 1, 2, 1)
    """
    checks.choice("mode", mode, tuple(ADJOINTS))
    parameters = _with_variance(structure, parameters)
    quadrature = quadrature or Quadrature()
    initial = jax.tree.map(jnp.asarray, state)
    points = jnp.asarray(times, dtype=initial["a"].dtype)
    field = MeanStep(structure, quadrature, batch, flow)
    replicate = {"nodes": _first_nodes(structure, quadrature, flow)}
    if finite is not None and "points" in finite:
        replicate["points"] = finite["points"]
    algorithm = {"lr": lr, "head_rate": head_rate}
    shared = {"problem": parameters, "algorithm": algorithm, "finite": finite}

    def solve_run(initial: dict[str, Any]) -> dict[str, Any]:
        solution = integrate(
            field,
            replicate,
            shared,
            initial,
            points,
            TOLERANCE_MARGIN * rtol,
            TOLERANCE_MARGIN * atol,
            stiff=stiff,
            guard=False,
            adjoint=ADJOINTS[mode](),
            max_steps=MOST_IMPLICIT_STEPS if stiff else MOST_STEPS,
        )
        states: Any = solution.ys
        return jax.tree.map(lambda value: value[-1], states[0]) if last else states[0]

    return jax.vmap(solve_run)(initial) if initial["a"].ndim == 2 else solve_run(initial)
