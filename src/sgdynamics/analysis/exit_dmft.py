"""Exit times on a fixed data set at d -> infinity: crossings of trajectories of `solve_dmft`."""

from __future__ import annotations

import math
import warnings

import numpy as np
import xarray as xr

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.base import checks
from sgdynamics.dynamics.adapter import Criterion
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.variables import STANDARD_ERROR
from sgdynamics.solvers.dmft import COINCIDENT_SAVE_POINTS, solve_dmft
from sgdynamics.solvers.dmft_cells import number_of_cells

FIRST_SHARE = 1 / 16  # end of the first trajectory, as a share of max_time
EXTENSION = 4  # factor by which each further trajectory is longer
MOST_POINTS = 200  # save points of a trajectory


def dmft_exits(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    threshold: float,
    criterion: Criterion,
    max_time: float,
    seed: int,
    progress: bool | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exit times in t, their standard errors, and which runs diverged.

    Trajectories become longer, up to `max_time`, until all runs have left.
    """
    end = FIRST_SHARE * max_time
    while True:
        end = min(end, max_time)
        try:
            trajectory = _solve(problem, algorithm, start, criterion, end, seed, progress)
        except ValueError as error:
            if end <= FIRST_SHARE * max_time:
                raise
            fix = (
                f"the solution cannot be continued to t = {end:.4g} ({error}). "
                "Use a smaller max_time or method='direct'."
            )
            raise checks.reject("max_time", max_time, fix) from error
        times, errors = _crossings(trajectory, threshold, criterion)
        diverged = np.isfinite(np.asarray(trajectory["diverged_at"])) & np.isnan(times)
        if end >= max_time or np.all(np.isfinite(times) | diverged):
            return times, errors, diverged
        end *= EXTENSION


def _solve(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    criterion: Criterion,
    end: float,
    seed: int,
    progress: bool | None,
) -> xr.Dataset:
    """The trajectory up to t = `end`."""
    with warnings.catch_warnings():
        # With a schedule there may be more save points than cells.
        warnings.filterwarnings("ignore", COINCIDENT_SAVE_POINTS)
        return solve_dmft(
            problem,
            algorithm,
            start,
            times=_save_points(problem, algorithm, start, end),
            seed=seed,
            progress=progress,
            record={"criterion": criterion} if callable(criterion) else None,
        )


def _crossings(
    trajectory: xr.Dataset, threshold: float, criterion: Criterion
) -> tuple[np.ndarray, np.ndarray]:
    """Exit time of each run and its standard error; NaN if the run does not leave."""
    t, name = np.asarray(trajectory["t"]), "risk"
    if callable(criterion):
        name = "criterion"
        values = np.asarray(trajectory[name])
    elif criterion == "overlap":
        name = "M"
        overlaps = np.abs(np.asarray(trajectory[name]))
        values = -overlaps.reshape(trajectory.sizes["run"], len(t), -1).max(axis=-1)
    else:
        values = np.asarray(trajectory["excess_risk" if "excess_risk" in trajectory else "risk"])
    errors = np.asarray(trajectory[name + STANDARD_ERROR]).reshape(*values.shape, -1).max(axis=-1)
    if criterion == "overlap":
        levels = np.full(len(values), -threshold)
    else:
        levels = (1 - threshold) * values[:, 0]
    rows = [crossing(t, *row) for row in zip(values, errors, levels, strict=True)]
    return np.array([time for time, _ in rows]), np.array([error for _, error in rows])


def crossing(
    t: np.ndarray, values: np.ndarray, errors: np.ndarray, level: float
) -> tuple[float, float]:
    """First time below a level, linear between points, and its standard error.

    Both are NaN if the values stay above the level.
    """
    below = np.flatnonzero(values < level)
    if not len(below):
        return np.nan, np.nan
    first = int(below[0])
    if first == 0:
        return float(t[0]), 0.0
    slope = (values[first] - values[first - 1]) / (t[first] - t[first - 1])
    share = (level - values[first - 1]) / (values[first] - values[first - 1])
    error = (1 - share) * errors[first - 1] + share * errors[first]
    return float(t[first - 1] + (level - values[first - 1]) / slope), float(error / abs(slope))


def _save_points(problem: Problem, algorithm: FixedData, start: Start, end: float) -> np.ndarray:
    """Save points that are at least one step, or one of the coarsest cells, apart."""
    spacing = end / MOST_POINTS
    if algorithm.order and not algorithm.scheduled:
        assert isinstance(algorithm, EpochSGD)
        # The coarsest level has a quarter of the cells.
        cells = number_of_cells(problem, algorithm, start) / 4
        spacing = algorithm.lr * algorithm.samples_per_dimension / (algorithm.batch * cells)
    elif not algorithm.order and algorithm.scheduled:
        spacing = float(np.diff(algorithm.step_times(math.inf, end)).max())
    elif not algorithm.order:
        spacing = algorithm.lr
    return np.linspace(0.0, end, int(np.clip(np.floor(end / spacing), 1, MOST_POINTS)) + 1)
