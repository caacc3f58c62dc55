"""The ODE driver: integrate requests in batches, refine their quadrature, estimate their errors.

`solve_ode`, sweeps and `exit_time` use it. A `SolverCall` contains the validated arguments of one
call of a solver. Its dynamics prepares a `SolveRequest`: one mean trajectory to compute, with the
accuracy, the save points and the quadrature. The request contains the `Case` that is integrated:
the vector field, its parameters and the initial states of all runs, and for exit times a `Watch`,
the criterion at which a run stops. Requests that differ only in parameters share one compiled
program, in which each case is a lane with its own step sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sgdynamics.base.progress import current_meter
from sgdynamics.dynamics.requests import (
    Arrays,
    Solution,
    SolveRequest,
    end_warnings,
    find_ends,
    try_estimate,
)
from sgdynamics.expectations.risk import REFINE_ABOVE, Risks
from sgdynamics.ode.case import Case, IntegrationResult, raise_if_error
from sgdynamics.ode.integrate import group_by_program, run_cases
from sgdynamics.results.datasets import largest_share

# Relative change of the risk with the tolerance, above which a solution is not trusted.
UNRELIABLE = 0.1
# Relative standard error of sampled overlaps, above which they are not trusted.
UNDETERMINED = 0.3
# Trajectories of a batch for which `error_integrator` is measured.
MEASURED_TRAJECTORIES = 8


def solve(requests: list[SolveRequest], batch_size: int = 1) -> list[Solution | ValueError]:
    """Solve requests, those that share a program in batches; a failed one is its error.

    A request whose quadrature is too coarse is solved again with a finer one.
    """
    waiting = {
        index: request.dynamics.first_attempt(request) for index, request in enumerate(requests)
    }
    outcomes: dict[int, Solution | ValueError] = {}
    while waiting:
        refined = {}
        for indices in group_by_program(waiting, batch_size):
            batch = [waiting[index] for index in indices]
            for index, outcome in zip(indices, solve_batch(batch, batch_size), strict=True):
                if isinstance(outcome, SolveRequest):
                    refined[index] = outcome
                else:
                    outcomes[index] = outcome
        waiting = refined
    return [outcomes[index] for index in range(len(requests))]


def solve_batch(
    requests: list[SolveRequest], batch_size: int
) -> list[Solution | SolveRequest | ValueError]:
    """Integrate a batch of requests that share one compiled program.

    A request whose quadrature turns out too coarse is returned as a new request with a finer
    quadrature.
    """
    if requests[0].integrate is not None:
        return [request.integrate(request) for request in requests if request.integrate]
    outcomes: dict[int, Solution | SolveRequest | ValueError] = {}
    trajectories = []
    for index, solved in enumerate(_integrate(requests, batch_size)):
        if isinstance(solved, ValueError):
            outcomes[index] = solved
        else:
            states = average_replicates(solved.states)
            trajectories.append(_Trajectory(index, requests[index], solved, states))
    risks = _risks(trajectories, batch_size)
    accurate = []
    for trajectory, risk in zip(trajectories, risks, strict=True):
        refined = None
        if risk.worst > REFINE_ABOVE:
            refined = trajectory.request.dynamics.refine(trajectory.request, trajectory.states)
        if refined is None:
            accurate.append((trajectory, risk))
        else:
            outcomes[trajectory.index] = refined
    if accurate:
        for (trajectory, _), solution in zip(accurate, _finish(accurate, batch_size), strict=True):
            outcomes[trajectory.index] = solution
    return [outcomes[index] for index in range(len(requests))]


class _Trajectory(NamedTuple):
    """An integrated request: its index in the batch, and its states averaged over replicates."""

    index: int
    request: SolveRequest
    solved: IntegrationResult
    states: Arrays


def _integrate(
    requests: list[SolveRequest], batch_size: int
) -> list[IntegrationResult | ValueError]:
    """Run the shared integrator and convert its states to the variables of the result."""
    outcomes = run_cases([request.shared_case for request in requests], batch_size)
    unpack = requests[0].dynamics.unpack
    return [
        outcome
        if isinstance(outcome, ValueError)
        else outcome._replace(
            states=unpack(outcome.states),
            displaced=None if outcome.displaced is None else unpack(outcome.displaced),
        )
        for outcome in outcomes
    ]


def _risks(trajectories: list[_Trajectory], batch_size: int) -> list[Risks]:
    if not trajectories:
        return []
    requests = [trajectory.request for trajectory in trajectories]
    states = [trajectory.states for trajectory in trajectories]
    return requests[0].dynamics.batch_risks(requests, states, batch_size)


def _finish(accurate: list[tuple[_Trajectory, Risks]], batch_size: int) -> list[Solution]:
    """Estimate the errors of trajectories and collect their attributes and warnings.

    `error_integrator` is measured for a few trajectories of the batch, and the largest of them
    stands for all.
    """
    integrator_error, failures = try_estimate(
        "error_integrator", lambda: _integrator_error(accurate, batch_size)
    )
    quadrature_errors = _quadrature_errors(accurate, batch_size)
    solutions = []
    for (trajectory, risks), errors in zip(accurate, quadrature_errors, strict=True):
        request, solved = trajectory.request, trajectory.solved
        ends = find_ends(trajectory.states, solved.ran_out, request.clock.t)
        error_quadrature, error_quadrature_risk = errors
        attributes = {
            **request.dynamics.limit_attributes(request.dimension),
            "integrator": "Dopri8, then LSODA" if solved.used_lsoda else "Dopri8",
            "error_quadrature": error_quadrature,
            "error_quadrature_risk": error_quadrature_risk if error_quadrature_risk > 0 else None,
            "error_integrator": integrator_error,
        }
        warnings = request.dynamics.solution_warnings(risks, request.clock)
        about_ends = end_warnings(ends)
        # A solution that diverges is reported as such.
        if integrator_error > UNRELIABLE and not about_ends:
            warnings += (_unreliable_warning(integrator_error),)
        if error_quadrature > UNDETERMINED and _count_replicates(solved) > 1:
            warnings += (_undetermined_warning(error_quadrature),)
        warnings = (*warnings, *about_ends, *failures)
        solutions.append(Solution(trajectory.states, risks.risk, attributes, ends, warnings))
    return solutions


def _integrator_error(accurate: list[tuple[_Trajectory, Risks]], batch_size: int) -> float:
    """Largest relative change of the risk that the errors of the integrator cause.

    The explicit method estimates the error of its states. Where LSODA continued it, the change is
    that of a second solution, whose tolerance is ten times looser.
    """
    positions = np.linspace(0, len(accurate) - 1, MEASURED_TRAJECTORIES).round().astype(int)
    measured = [accurate[position] for position in sorted(set(positions.tolist()))]
    requests = [trajectory.request for trajectory, _ in measured]
    displaced = [trajectory.solved.displaced for trajectory, _ in measured]
    states = [average_replicates(values) for values in displaced if values is not None]
    if len(states) < len(measured):
        states = _loose_states(requests, batch_size)
    other_risks = requests[0].dynamics.batch_risks(requests, states, batch_size, with_errors=False)
    return max(
        largest_share(other.risk - risks.comparable, risks.risk)
        for other, (_, risks) in zip(other_risks, measured, strict=True)
    )


def _loose_states(requests: list[SolveRequest], batch_size: int) -> list[Arrays]:
    """States of the same requests at a tolerance that is ten times looser."""
    meter = current_meter()
    if meter is not None:
        meter.add_units(1)
    loose = [replace(request, case=_loosen(request.shared_case)) for request in requests]
    outcomes = _integrate(loose, batch_size)
    return [average_replicates(raise_if_error(outcome).states) for outcome in outcomes]


def _loosen(case: Case) -> Case:
    return replace(case, tolerance={name: 10 * value for name, value in case.tolerance.items()})


def _quadrature_errors(
    accurate: list[tuple[_Trajectory, Risks]], batch_size: int
) -> list[tuple[float, float]]:
    """`error_quadrature` and `error_quadrature_risk` of each trajectory.

    Without sampling, the first is the error of pairs and grids alone and the second is 0.
    """
    if _count_replicates(accurate[0][0].solved) == 1:
        return [(risks.worst, 0.0) for _, risks in accurate]
    requests = [trajectory.request for trajectory, _ in accurate]
    states = [trajectory.solved.states for trajectory, _ in accurate]
    dynamics = requests[0].dynamics
    replicate_risks = dynamics.batch_risks(requests, states, batch_size, with_errors=False)
    errors = []
    for (trajectory, risks), replicates in zip(accurate, replicate_risks, strict=True):
        scales = dynamics.variable_scales(trajectory.states)
        errors.append(
            sampling_errors(
                trajectory.solved.states,
                replicates.risk,
                risks.worst,
                risks.sampling,
                scales,
            )
        )
    return errors


def risk_of_request(request: SolveRequest) -> np.ndarray:
    """The risk along one trajectory, without its errors."""
    solved = raise_if_error(_integrate([request], 1)[0])
    states = average_replicates(solved.states)
    return request.dynamics.batch_risks([request], [states], 1)[0].risk


def average_replicates(states: Arrays) -> Arrays:
    """Average states over their first axis, the replicates of sampling points."""
    return {name: value.mean(axis=0) for name, value in states.items()}


def _count_replicates(solved: IntegrationResult) -> int:
    return len(next(iter(solved.states.values())))


def sampling_errors(
    states: Arrays,
    risks: np.ndarray,
    worst: float,
    within: float,
    scales: Arrays | None = None,
) -> tuple[float, float]:
    """`error_quadrature` and `error_quadrature_risk` from the spread of replicates (first axis).

    The first is relative to the largest value of a variable in the run, or to its scale (run,)
    if that is larger. Both are NaN if all runs diverged before the first save point at which
    replicates differ.

    Parameters
    ----------
    states : dict of ndarray
        The states (replicate, run, time, ...).
    risks : ndarray
        The risks (replicate, run, time).
    worst : float
        Relative error of pairs and grids.
    within : float
        Relative error of the sampling of the risk at given overlaps.
    scales : dict of ndarray, optional
        Natural sizes of variables that may vanish.
    """
    root = np.sqrt(len(risks))
    share = worst
    for name, value in {**states, "risk": risks}.items():
        if value.size == 0:  # overlaps of a problem without signals
            continue
        error, size = value.std(axis=0, ddof=1) / root, np.abs(value.mean(axis=0))
        # A run that diverged has no largest value.
        finite = np.where(np.isfinite(size), size, -np.inf)
        largest = finite.max(axis=tuple(range(1, size.ndim)), keepdims=True)
        if scales is not None and name in scales:
            largest = np.maximum(largest, scales[name].reshape(largest.shape))
        largest = np.where(np.isfinite(largest), largest, np.nan)
        share = max(share, largest_share(error, np.broadcast_to(largest, error.shape)))
    mean = risks.mean(axis=0)
    risk_share = max(within, worst, largest_share(risks.std(axis=0, ddof=1) / root, mean))
    if share == 0 and not np.all(np.isfinite(mean)):
        return np.nan, np.nan
    return share, risk_share


def _undetermined_warning(error: float) -> str:
    """Warning about overlaps that differ between replicates of the sampling points."""
    return (
        f"error_quadrature = {error:.2g}: the overlaps differ by this share between sets of "
        "sampling points. The mean of the squared gradient may be infinite, as with heavy-tailed "
        "draws; use sgd.simulate to see whether the run converges"
    )


def _unreliable_warning(error: float) -> str:
    """Warning about a solution that depends on the tolerance of the integrator."""
    return (
        f"error_integrator = {error:.2g}: the errors of the integrator change the risk by about "
        "this share, so the solution is not reliable. Reduce rtol and atol, or end at an "
        "earlier time"
    )
