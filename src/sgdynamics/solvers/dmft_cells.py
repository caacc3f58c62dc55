"""Cells of epochs in DMFT: their number, the extrapolation to infinitely many, and its failures."""

from __future__ import annotations

from typing import cast

import numpy as np

from sgdynamics.algorithms.cell_stability import CellStability
from sgdynamics.algorithms.epochs import SIMULATE, EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.head_rates import with_leaf_rates
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import is_scheduled
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.linear import has_linear_output, output_gain

States = dict[str, np.ndarray]
TWO_TIME_NAMES = ("C", "R")  # quantities without an error estimate from cells


def cell_stability(problem: Problem, algorithm: EpochSGD, start: Start) -> CellStability | None:
    """The stability of the cells; None if the spectrum is infinite or the inputs have means."""
    is_infinite = problem.spectrum is not None and problem.spectrum.infinite
    if is_infinite or not isinstance(start, Start) or not problem.structure.sample.centred:
        return None
    # A linear student has the exact condition of `CellStability`.
    is_linear = (
        has_linear_output(problem)
        and problem.head == "fixed"
        and problem.constraint is None
        and not is_scheduled(problem.weight_decay)
    )
    curvature, decay = 1.0, 0.0
    if is_linear:
        # The curvature of the loss along the student, which multiplies lr
        curvature = max(output_gain(start, run) for run in range(start.runs))
        if curvature == 0:
            return None
        decay = float(problem.weight_decay) / curvature
    values, fractions = (
        np.asarray(problem.parameters[name], dtype=np.float64)
        for name in ("eigenvalues", "fractions")
    )
    # Schedules are checked at their largest rate.
    rate = curvature * algorithm.largest_rate
    return CellStability(rate, algorithm.samples_per_dimension, values, fractions, decay, is_linear)


def limit_of_epochs(problem: Problem, algorithm: FixedData) -> FixedData:
    """The algorithm whose cells have the limit d -> infinity of an algorithm with epochs."""
    if not isinstance(algorithm, EpochSGD) or algorithm.update is None:
        return algorithm
    limit = algorithm.in_limit()
    if limit.update is None and problem.scheduled:
        fix = "epochs with momentum need constant parameters of the problem at d -> infinity"
        raise checks.reject("problem", problem, fix)
    return limit


def number_of_cells(
    problem: Problem, algorithm: EpochSGD, start: Start, cells: int | None = None
) -> int:
    """Number of cells per epoch: the default, or the user's number if it is large enough."""
    return algorithm.cells(cells, cell_stability(problem, algorithm, start))


def cell_levels(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    cells: int | None,
    steps: ArrayArgument | None,
) -> list[int]:
    """Numbers of cells per epoch, the smallest first; empty for algorithms without epochs."""
    if not isinstance(algorithm, EpochSGD):
        if cells is not None:
            fix = "only used with sgd.EpochSGD. Omit cells."
            raise checks.reject("cells", cells, fix)
        return []
    if steps is not None:
        fix = "an epoch has infinitely many steps at d -> infinity. Use times= or alpha=."
        raise checks.reject("steps", steps, fix)
    count = number_of_cells(problem, algorithm, start, cells)
    # Multiples of 4 cells (`EpochSGD.cells`): all levels are whole numbers.
    return [count // 4, count // 2, count]


def algorithms_in_cells(
    problem: Problem, limit: FixedData, cell_counts: list[int], last_steps: list[float]
) -> list[FixedData]:
    """The algorithm of each level of cells, whose steps are cells of 1/m epoch.

    `last_steps` are the numbers of cells up to the last save point. Empty without cells.
    """
    if not cell_counts:
        return []
    epochs = cast("EpochSGD", limit)
    return [
        with_leaf_rates(
            epochs.in_steps(1 / count).with_cell_velocity().with_tabulated_rate(last_step), problem
        )
        for count, last_step in zip(cell_counts, last_steps, strict=True)
    ]


def extrapolate_levels(levels: list[States]) -> tuple[States, States]:
    """The limit of infinitely many cells from m/4, m/2 and m cells, and its estimated error.

    The error of a level is c_1/m + c_2/m^2 + ..., so that 2 x(m) - x(m/2) is free of the first
    order; Richardson's next level changes it by (2 x(m) - 3 x(m/2) + x(m/4))/3. Without cells
    there is one level, which has no such error.
    """
    if len(levels) == 1:
        return levels[0], {}
    coarse, half, fine = levels
    values = {name: 2 * fine[name] - half[name] for name in fine}
    errors = {name: (2 * fine[name] - 3 * half[name] + coarse[name]) / 3 for name in fine}
    return values, errors


def failed_save_points(
    levels: list[States], means: States, cell_errors: States, initial_risk: np.ndarray
) -> np.ndarray:
    """Save points (run, time) at which the extrapolation has failed, and all later ones.

    A risk that is positive at all levels and negative after the extrapolation, or whose error
    exceeds both its value and the initial risk, is not a risk.
    """
    has_failed = np.zeros(means["risk"].shape, dtype=bool)
    for name in ("risk", "train_risk"):
        value, error = means[name], cell_errors[name]
        # Means over replicates; single replicates may scatter below zero.
        is_positive = np.all([level[name].mean(axis=1) > 0 for level in levels], axis=0)
        exceeds = error > np.maximum(np.abs(value), initial_risk[:, None])
        coarsest_diverged = np.isfinite(value) & ~np.isfinite(error)
        has_failed |= (is_positive & (value < 0)) | exceeds | coarsest_diverged
    # Later save points depend on the failed ones.
    return np.logical_or.accumulate(has_failed, axis=1)


def failure_warning(cells: int, t: np.ndarray, has_failed: np.ndarray) -> str:
    """The warning about save points (run, time) at which the levels of cells do not converge."""
    first = int(np.argmax(has_failed.any(axis=0)))
    return (
        f"cells = {cells}: the solutions with a quarter, a half and all of the cells do not "
        f"converge at t = {t[first]:.4g}, and values from there on are NaN. "
        f"Use more cells, a smaller lr, or {SIMULATE}."
    )
