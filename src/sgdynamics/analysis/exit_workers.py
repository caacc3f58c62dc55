"""Exit times of several workers: crossings of the risk of their mean.

A solver of rounds has no event inside of a round, so that trajectories are saved at points of
every round and their crossing is interpolated. The ODE is solved a second time, with many points
around the crossing.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.workers import Workers
from sgdynamics.analysis.exit_requests import CRITERION, MAX_TIME_PER_UNIT, METHOD, THRESHOLD
from sgdynamics.analysis.exit_results import (
    ExitTimes,
    exit_time_of,
    validate_threshold,
    warn_of_missing_exits,
)
from sgdynamics.base import checks
from sgdynamics.base.support import require
from sgdynamics.solvers.ode import solve_ode
from sgdynamics.solvers.sde import solve_sde
from sgdynamics.solvers.simulate import simulate

POINTS_PER_ROUND = 16
FIRST_ROUNDS = 4  # rounds of the first trajectory; each further one is twice as long
FINE_POINTS = 65  # points of the ODE around its crossing
METHODS = ("ode", "sde", "exact", "direct")


def exits_of_workers(
    problem: Any,
    algorithm: Workers,
    start: Any,
    *,
    threshold: float = THRESHOLD,
    method: str = METHOD,
    criterion: Any = CRITERION,
    max_time: float | None = None,
    runs: int | None = None,
    **options: Any,
) -> ExitTimes:
    """Return the exit times of the mean of the workers' rows, by a solver of rounds."""
    question = {"ode": "exit_time by the ODE", "dmft": "exit_time by DMFT"}.get(method)
    require(question or "exit_time by runs", problem, algorithm)
    checks.choice("method", method, METHODS)
    threshold = validate_threshold(threshold)
    if max_time is None:
        max_time = MAX_TIME_PER_UNIT * problem.width
    max_time = checks.number("max_time", max_time, above=0.0)
    if method != "ode" and options.get("dimension") is None:
        fix = f'method="{method}" needs a finite dimension. Set dimension=d'
        raise checks.reject("dimension", None, fix)
    if callable(criterion):
        fix = "with several workers the criterion is 'risk' or 'overlap'. Use one of them."
        raise checks.reject("criterion", criterion, fix)
    arguments = {name: value for name, value in options.items() if value is not None}
    if method not in ("exact", "direct"):
        arguments.pop("devices", None)
    if method == "ode":
        arguments.pop("seed", None)
    else:
        arguments |= {} if runs is None else {"runs": runs}
    if method in ("exact", "direct"):
        arguments["method"] = method
    solver: Any = {"ode": solve_ode, "sde": solve_sde}.get(method, simulate)

    def solve(times: np.ndarray) -> xr.Dataset:
        return solver(problem, algorithm, start, times=times, **arguments)

    rate = float(algorithm.algorithm.lr) / algorithm.algorithm.batch
    spacing = algorithm.every * rate / POINTS_PER_ROUND
    dimension = options.get("dimension")
    if method in ("exact", "direct") and dimension is not None:
        # Save points of runs are steps.
        step = float(algorithm.algorithm.lr) / dimension
        spacing = max(1, round(spacing / step)) * step
    count = FIRST_ROUNDS * POINTS_PER_ROUND
    last = max(1, int(np.floor(max_time / spacing + 1e-9)))
    while True:
        points = spacing * np.arange(min(count, last) + 1)
        trajectory = solve(points)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # runs that have not left yet
            exits = exit_time_of(trajectory, threshold, criterion=criterion)
        if not np.isnan(exits.times).any() or count >= last:
            break
        count *= 2
    if method == "ode" and len(exits.times) == 1 and exits.left and exits.times[0] > 0:
        position = int(np.ceil(exits.times[0] / spacing - 1e-9))
        fine = np.linspace(points[position - 1], points[position], FINE_POINTS)
        fine = fine if fine[0] == 0 else np.concatenate([[0.0], fine])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # runs that have not left yet
            exits = exit_time_of(solve(fine), threshold, criterion=criterion)
    exits = ExitTimes(
        exits.times,
        exits.threshold,
        exits.criterion,
        method,
        max_time,
        dimension,
        float(algorithm.algorithm.lr),
        algorithm.algorithm.batch,
        diverged=exits.diverged,
        ran_out=np.zeros(exits.runs, dtype=bool),
    )
    warn_of_missing_exits(exits)
    return exits
