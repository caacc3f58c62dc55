"""`exit_time`: the time at which runs leave their plateau, by theory and by simulation.

The ODE finds it by an event, the SDE, the exact chain and direct runs by a check after each step
(`exit_simulation`), DMFT by the crossing of its trajectory (`exit_dmft`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.workers import Workers
from sgdynamics.analysis.exit_dmft import dmft_exits
from sgdynamics.analysis.exit_requests import (
    CRITERION,
    METHOD,
    METHODS,
    THRESHOLD,
    ExitRequest,
    prepare_exits,
)
from sgdynamics.analysis.exit_results import ExitTimes, exit_time_of, warn_of_missing_exits
from sgdynamics.analysis.exit_simulation import simulate_exits
from sgdynamics.analysis.exit_workers import exits_of_workers
from sgdynamics.analysis.plateau_growth import warn_if_no_growth
from sgdynamics.base.devices import choose_devices
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import shared_meter
from sgdynamics.dynamics.adapter import Criterion
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.ode.case import IntegrationResult, raise_if_error
from sgdynamics.ode.integrate import run_cases
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.solvers.workers import redirect_workers

__all__ = ["METHODS", "ExitTimes", "exit_time", "exit_time_of"]


@partial(redirect_workers, answer=exits_of_workers)
@float64
def exit_time(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD | FixedData | Workers,
    start: Start | SpikedStart | Any,
    *,
    threshold: float = THRESHOLD,
    method: str = METHOD,
    dimension: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    max_time: float | None = None,
    criterion: Criterion = CRITERION,
    progress: bool | None = None,
    devices: int | None = None,
) -> ExitTimes:
    """The first time at which the excess risk has decreased by a relative ``threshold``.

    A run leaves its plateau when its excess risk is below (1 - threshold) times the initial one
    (Escaping mediocrity, equation 21). Each run stops at its exit.

    Parameters
    ----------
    problem : Problem, SpikedTensor or Dynamics
        The learning problem.
    algorithm : OnePassSGD, Workers, or an algorithm on a fixed data set
        The training algorithm. With ``Workers`` the exit is that of the mean of their rows,
        interpolated between 16 points of each round (by the ODE with a fine grid around it).
    start : Start, SpikedStart or dict
        Initial condition. A start with one run is repeated for all runs.
    threshold : float, default 0.2
        The relative decrease of the excess risk, or the overlap to reach.
    method : str, default "ode"
        "ode" (d -> infinity, or with ``dimension`` the mean increment at that d), "sde", "exact"
        (the chain) or "direct". On a fixed data set "direct" or "dmft": the crossing of the
        trajectory of ``solve_dmft`` (d -> infinity) with its standard error. DMFT interpolates
        between two steps, whereas a run leaves at a step, up to ``lr`` later (with ``EpochSGD``,
        whose steps are 1/d apart, both agree).
    dimension : int, optional
        The dimension d. Required except by the ODE and DMFT.
    runs : int, optional
        Number of runs; defaults to the number of runs of the start.
    seed : int, default 0
        Seed of the random number generator.
    max_time : float, optional
        The time up to which runs are followed, in t. Defaults to 50 times the width.
    criterion : str or callable, default "risk"
        "risk"; or "overlap": the first time at which the largest entry of M, in absolute value,
        reaches ``threshold`` (section 4.1, for a trained head that changes the risk before anything
        is learned); or a JAX function of the state, a dictionary of "M", "Q" and "a" of one run,
        that replaces the excess risk.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.
    devices : int, optional
        Number of local devices among which one-pass runs are divided; defaults to all of them.

    Returns
    -------
    ExitTimes
        ``.times``, ``.mean``, ``.standard_error``, ``.quantile(...)``.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the method does not support the problem.

    Warns
    -----
    UserWarning
        If runs did not leave by ``max_time``, or diverged. If the learning rate is too large for
        any overlap to grow.

    Notes
    -----
    For a loss that is not squared, and for a ``Problem``, the risk replaces the excess risk.

    Runs are tested after each step. For networks under a squared loss the risk itself is evaluated
    only where a lower bound around the last evaluated state does not exclude the exit, which gives
    the same step: the density of the fields changes by a bounded factor (see
    ``sgdynamics.dynamics.risk_floor``).

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> round(sgd.exit_time(problem, sgd.OnePassSGD(lr=0.1), start, threshold=0.5).mean, 3)
    0.795
    """
    used_devices = choose_devices(devices)
    request = prepare_exits(
        problem,
        cast("OnePassSGD | FixedData", algorithm),  # `exits_of_workers` answers `Workers`
        start,
        threshold=threshold,
        method=method,
        dimension=dimension,
        runs=runs,
        seed=seed,
        max_time=max_time,
        criterion=criterion,
        progress=progress,
    )
    if method == "dmft":
        return _exits_by_dmft(request, cast(FixedData, algorithm))
    warn_if_no_growth(request)
    if request.all_left:
        return finish_exits(request, None)
    if method != "ode":
        times, diverged = simulate_exits(request, used_devices)
        return _build_exits(request, times, diverged=diverged)
    with shared_meter("exit times, ode", 1.0, request.call.progress):
        solved = raise_if_error(run_cases([request.ode_case()])[0])
    return finish_exits(request, solved)


def finish_exits(request: ExitRequest, solved: IntegrationResult | None) -> ExitTimes:
    """Exit times by the ODE from its solution, which is None if all runs left at the start."""
    n_runs, waiting = len(request.has_left), ~request.has_left
    times = np.where(waiting, np.nan, 0.0)
    diverged, ran_out = np.zeros(n_runs, dtype=bool), np.zeros(n_runs, dtype=bool)
    if solved is not None:
        times[waiting], diverged[waiting] = solved.exits[0], solved.diverged[0]
        ran_out[waiting] = solved.ran_out
    return _build_exits(request, times, diverged=diverged, ran_out=ran_out)


def _exits_by_dmft(request: ExitRequest, algorithm: FixedData) -> ExitTimes:
    call = request.call
    times, errors, diverged = dmft_exits(
        call.dynamics.problem,
        algorithm,
        call.initial_state,
        request.threshold,
        request.criterion,
        request.max_time,
        call.seed,
        call.progress,
    )
    return _build_exits(request, times, diverged=diverged, errors=errors)


def _build_exits(request: ExitRequest, times: np.ndarray, **details: np.ndarray) -> ExitTimes:
    """The result, with a warning about runs that have no exit time."""
    criterion = request.criterion
    name = criterion if isinstance(criterion, str) else getattr(criterion, "__name__", "function")
    exits = ExitTimes(
        times,
        request.threshold,
        name,
        request.method,
        request.max_time,
        request.call.dimension,
        request.lr,
        request.batch,
        **{"ran_out": np.zeros(len(times), dtype=bool), **details},
    )
    warn_of_missing_exits(exits)
    return exits
