"""`solve_mean_field`: networks of infinite width, whose units are particles (`mean_field`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.mean_field import MeanFieldDynamics, MeanFieldResult
from sgdynamics.mean_field.particles import (
    ATOL,
    RTOL,
    ParticleSolution,
    choose_expectations,
    evaluate_risk,
    solve_particles,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.build import (
    ResultCall,
    build_result,
    divergence_warning,
    exhaustion_warning,
)
from sgdynamics.results.observables import evaluate_functions
from sgdynamics.solvers.call import SolverCall, validate_call

WARN_ABOVE = 1e-4  # relative error of the expectations above which the user is warned


@float64
def solve_mean_field(
    problem: Problem,
    algorithm: OnePassSGD,
    start: MeanFieldStart | Start,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: int | None = None,
    expectations: str = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Solve the network of infinite width, with the p units of the start as particles.

    The clock is t/p = lr steps/(p d). The dimension is infinite too, or finite with ``dimension``.
    Give exactly one of ``times``, ``alpha``, ``steps``.

    Parameters
    ----------
    problem : Problem
        TeacherStudent or MultiIndex with squared loss. Label noise enters only the risk. Weight
        decay has the rate wd = width * weight_decay in this clock, which stays fixed as p grows.
    algorithm : OnePassSGD
        The training algorithm. Its lr and batch are used only to convert ``alpha`` and ``steps``,
        because lr/p -> 0.
    start : MeanFieldStart or Start
        Initial condition: ``sgd.start(problem, M=..., q=...)``,
        ``sgd.random_start(problem, ..., wide=True)`` or any other start.
    times : array_like, optional
        Save points in t/p.
    alpha : array_like, optional
        Save points in samples/d of a network of the width of the start: t/p is the integral of
        lr/(p batch) over alpha, so that the result can be compared with SGD of that width at equal
        alpha, also with a schedule.
    steps : array_like, optional
        Save points in steps of that network, with a ``dimension``.
    dimension : int, optional
        Dimension d of an infinitely wide network. Defaults to d -> infinity.
    expectations : str, default "auto"
        "series": a Hermite series, O(p n^k/k!), for any activation; "pairs": closed pair
        expectations, O(p^2), for d = infinity and committees of polynomials, erf or ReLU; "auto"
        chooses the cheaper one.
    rtol : float, default 1e-06
        Relative accuracy of the solution.
    atol : float, default 1e-08
        Absolute accuracy of the solution.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``; a state has "M", "q" and "a".
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``. Their risks are the variable
        ``evaluated_risk``.
    progress : bool, optional
        Whether to show a progress bar, over the solution and its two error estimates. By default
        only on a terminal.

    Returns
    -------
    xarray.Dataset
        ``M``, ``q``, ``a``, and the risk of the infinitely wide network. Attributes:
        ``error_particles``, the largest change of the risk when every other particle is left out,
        relative to the largest risk of the run: the uncertainty due to p particles that represent a
        law; ``error_quadrature``, the error of the truncated series; ``error_integrator``, the
        change with a tolerance ten times looser. A finite network differs by order 1/p.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the algorithm is not supported.

    Warns
    -----
    UserWarning
        If rows grow or shrink without bound: the values are NaN from there on, and ``diverged_at``
        is the last finite time. If the integrator runs out of steps. If expectations have a
        relative error above 1e-4.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=64, activation="erf")
    >>> start = sgd.random_start(problem, dimension=200, wide=True)
    >>> result = sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> result["M"].shape, result["q"].shape
    ((1, 2, 64, 1), (1, 2, 64))
    """
    checks.require_outside_jit("solve_mean_field")
    dynamics = MeanFieldDynamics(
        problem, validate_algorithm(algorithm, "solve_mean_field", problem)
    )
    rtol = checks.number("rtol", rtol, above=0.0)
    atol = checks.number("atol", atol, above=0.0)
    checks.choice("expectations", expectations, ("auto", "series", "pairs"))
    call = validate_call(
        "solve_mean_field",
        problem,
        algorithm,
        start,
        times=times,
        alpha=alpha,
        steps=steps,
        dimension=dimension,
        record=record,
        evaluate=evaluate,
        progress=progress,
        dynamics=dynamics,
    )
    perpendicular = None if call.dimension is None else call.dimension - problem.signals
    solution = solve_particles(
        problem,
        dynamics.algorithm,
        dynamics.state_arrays(call.initial_state),
        call.clock,
        choose_expectations(problem, expectations, perpendicular),
        perpendicular,
        rtol,
        atol,
        call.progress,
    )
    return _build(call, dynamics, solution, expectations)


def _build(
    call: SolverCall, dynamics: MeanFieldDynamics, solution: ParticleSolution, expectations: str
) -> xr.Dataset:
    """The result of a solution, with its warnings."""
    recorded, evaluation_error = _evaluate(call, solution, expectations)
    limit = "d -> infinity" if call.dimension is None else "this d"
    attributes = {
        "dimension": call.dimension,
        "assumptions": f"Gaussian inputs, one pass, p -> infinity, lr/p -> 0, {limit}",
        "integrator": "Dopri8",
        "expectations": solution.expectations,
        "error_quadrature": solution.error_quadrature,
        "error_integrator": solution.error_integrator,
        "error_particles": solution.error_particles,
        "error_evaluated": evaluation_error,
    }
    ends = _find_ends(solution, call.clock.t)
    source = MeanFieldResult(dynamics, call.clock)
    states = {**solution.states, "excess_risk": solution.excess_risk}
    return build_result(
        ResultCall(source, call.clock, call.dimension, call.observables),
        "solve_mean_field",
        states,
        attributes,
        ends,
        risk=source.risk_along(states, call.clock, call.dimension)[0],
        warnings=_warnings(solution, ends),
        recorded=recorded,
    )


def _evaluate(
    call: SolverCall, solution: ParticleSolution, expectations: str
) -> tuple[dict[str, np.ndarray], float | None]:
    """Values of `record` and `evaluate`, and the error of the evaluated risks."""
    observables, dynamics = call.observables, call.dynamics
    states = dynamics.public_states(solution.states, 2)
    values = evaluate_functions(observables.of_state, states, 2)
    if not observables.evaluated:
        return values, None
    risks = [
        evaluate_risk(other.problem, dynamics.algorithm, solution, expectations)
        for other in observables.evaluated.values()
    ]
    values["evaluated_risk"] = np.stack([risk for risk, _ in risks], axis=-1)
    return values, max(error for _, error in risks)


def _find_ends(solution: ParticleSolution, t: np.ndarray) -> dict[str, np.ndarray]:
    """The last finite time of each run that diverged or whose steps ran out; else NaN."""
    is_finite = np.all(np.isfinite(solution.states["q"]), axis=2)
    last = np.full(len(is_finite), np.nan)
    for run, row in enumerate(is_finite):
        if not row.all():
            last[run] = t[row][-1] if row.any() else 0.0
    is_short = solution.ran_out
    return {
        "diverged_at": np.where(is_short, np.nan, last),
        "ran_out_at": np.where(is_short, last, np.nan),
    }


def _warnings(solution: ParticleSolution, ends: dict[str, np.ndarray]) -> tuple[str, ...]:
    texts: tuple[str, ...] = ()
    if solution.error_quadrature > WARN_ABOVE:
        texts += (
            f"expectations are known only to {solution.error_quadrature:.1e} (relative to the "
            "risk): units are almost parallel to the signals, or a kink is not declared. "
            "Use sgd.Activation(f, kinks=...).",
        )
    remedy = "Their rows grow or shrink without bound."
    texts += divergence_warning(ends["diverged_at"], remedy=remedy)
    return texts + exhaustion_warning(ends["ran_out_at"])
