"""When to stop, and when a run on a fixed data set leaves its plateau at d -> infinity: read off trajectories with their errors."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.variables import STANDARD_ERROR
from sgdynamics.solvers.dmft import COINCIDENT_SAVE_POINTS, solve_dmft
from sgdynamics.solvers.dmft_cells import number_of_cells

FIRST_SHARE, LONGER = (
    1 / 16,
    4,
)  # of max_time: how far the first trajectory goes, and how much farther each of the next ones
POINTS = 200  # of a trajectory, at most


@dataclass(frozen=True)
class EarlyStopping:
    """Where the population risk is least along trajectories, one for each run of the start.

    Attributes
    ----------
    t : ndarray
        When, in t.
    alpha : ndarray
        The same in samples used over d; NaN where samples are not counted.
    epoch : ndarray
        The same in epochs; NaN where there are none.
    risk : ndarray
        The risk there.
    risk_standard_error : ndarray
        Its standard error; 0 where the trajectory has none.
    earliest : ndarray
        The last save point, in t, before the risk is above the least one by no more than their joint standard error; the first one if there
        is none.
    latest : ndarray
        The first save point after that; the last one if there is none.
    at_end : ndarray of bool
        Whether the risk is least at the last save point with a finite risk.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
    >>> begin = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> sgd.early_stopping(path).at_end.tolist()
    [True]
    """

    t: np.ndarray
    alpha: np.ndarray
    epoch: np.ndarray
    risk: np.ndarray
    risk_standard_error: np.ndarray
    earliest: np.ndarray
    latest: np.ndarray
    at_end: np.ndarray


def early_stopping(trajectory: xr.Dataset) -> EarlyStopping:
    """Where along a trajectory the population risk is least: when training is best stopped, and what that leaves.

    Between save points the least risk is that of the parabola through the smallest value and its neighbours. Runs of a simulation are
    averaged first; paths of ``solve_dmft`` bring their own standard errors.

    Parameters
    ----------
    trajectory : xarray.Dataset
        What a solver returned, with three save points or more for a least risk between them.

    Returns
    -------
    EarlyStopping
        ``.t``, ``.epoch``, ``.risk`` and its error, ``.earliest`` and ``.latest``.

    Raises
    ------
    ValueError
        If this is no trajectory with a risk, or none of it is finite.

    Warns
    -----
    UserWarning
        If the risk is least at the last save point, or if the trajectory diverges.

    Notes
    -----
    From ``earliest`` to ``latest`` is as far as save points and errors let one see: save points that are closer together make it shorter.
    Errors at neighbouring times go together, which makes it too long rather than too short.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
    >>> begin = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    >>> algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=2.0)
    >>> path = sgd.solve_dmft(problem, algorithm, begin, steps=[0, 4, 8, 12, 16, 20], paths=1024, progress=False)
    >>> 2 < float(sgd.early_stopping(path).t[0]) < 7
    True
    """
    checks.result("trajectory", trajectory, "t", "run", "risk", fix="give a result of a solver")
    t, risk = (
        np.asarray(trajectory["t"], dtype=np.float64),
        np.asarray(trajectory["risk"], dtype=np.float64),
    )
    name = "risk" + STANDARD_ERROR
    error = (
        np.asarray(trajectory[name], dtype=np.float64)
        if name in trajectory
        else np.zeros_like(risk)
    )
    if error.shape != risk.shape or trajectory.attrs.get("method", "") in (
        "exact",
        "direct",
        "tensor",
    ):
        good = np.isfinite(risk).all(axis=1)
        count = int(good.sum())
        spread = risk[good].std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(len(t))
        risk, error = risk[good].mean(axis=0, keepdims=True) if count else risk[:1], spread[None]
    if not np.isfinite(risk).any(axis=1).all():
        raise checks.reject(
            "trajectory", "no finite risk", "a run has none at any save point: take a smaller lr"
        )
    found = [_least(t, one, its) for one, its in zip(risk, error, strict=True)]
    when, least, errors, earliest, latest, at_end = (
        np.array(part) for part in zip(*found, strict=True)
    )
    incomplete = ~np.isfinite(risk).all(axis=1)
    if (at_end & ~incomplete).any():
        warn(
            f"early_stopping: the risk is least at the last save point, t = {t[-1]:g}. It may decrease further: train for longer."
        )
    if incomplete.any():
        warn(
            f"early_stopping: the trajectory diverges in {int(incomplete.sum())} of {len(risk)} runs. Only save points before are used."
        )

    def others(name: str) -> np.ndarray:
        if name not in trajectory.coords:
            return np.full(len(when), np.nan)
        return np.interp(when, t, np.asarray(trajectory[name], dtype=np.float64))

    return EarlyStopping(
        when, others("alpha"), others("epoch"), least, errors, earliest, latest, at_end
    )


def _least(
    t: np.ndarray, risk: np.ndarray, error: np.ndarray
) -> tuple[float, float, float, float, float, bool]:
    """When a risk is least, its value, its error, the save points around those within errors of it, and whether it is at the end."""
    at = int(np.nanargmin(risk))
    near = np.flatnonzero(risk - risk[at] <= np.hypot(error, error[at]))
    when, value = t[at], risk[at]
    if 0 < at < len(t) - 1 and np.isfinite(risk[at + 1]):
        bend, slope, _ = np.polyfit(t[at - 1 : at + 2] - t[at], risk[at - 1 : at + 2] - value, 2)
        if bend > 0:
            when, value = t[at] - slope / (2 * bend), value - slope**2 / (4 * bend)
    last = int(np.flatnonzero(np.isfinite(risk))[-1])
    return (
        float(when),
        float(value),
        float(error[at]),
        float(t[max(near[0] - 1, 0)]),
        float(t[min(near[-1] + 1, last)]),
        at == last,
    )


def crossing(
    t: np.ndarray, values: np.ndarray, errors: np.ndarray, level: float
) -> tuple[float, float]:
    """When values first are below a level, linear between points, and the standard error of that; NaN where they are not."""
    below = np.flatnonzero(values < level)
    if not len(below):
        return np.nan, np.nan
    at = int(below[0])
    if at == 0:
        return float(t[0]), 0.0
    slope = (values[at] - values[at - 1]) / (t[at] - t[at - 1])
    share = (level - values[at - 1]) / (values[at] - values[at - 1])
    return float(t[at - 1] + (level - values[at - 1]) / slope), float(
        ((1 - share) * errors[at - 1] + share * errors[at]) / abs(slope)
    )


def dmft_exits(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    threshold: float,
    criterion: Any,
    end: float,
    seed: int,
    progress: bool | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exit times at d -> infinity by `solve_dmft`, their standard errors, and which runs diverged. It goes on for longer until all left."""
    record = {"criterion": criterion} if callable(criterion) else None
    far = FIRST_SHARE * end
    while True:
        far = min(far, end)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", COINCIDENT_SAVE_POINTS
            )  # with a schedule there may be more of them than cells
            when = _steps_up_to(problem, algorithm, start, far)
            try:
                found = solve_dmft(
                    problem,
                    algorithm,
                    start,
                    times=when,
                    seed=seed,
                    progress=progress,
                    record=record,
                )
            except ValueError as error:
                if far <= FIRST_SHARE * end:
                    raise
                fix = f"the solution cannot be continued to t = {far:.4g} ({error}). Use a smaller max_time or method='direct'."
                raise checks.reject("max_time", end, fix) from error
        t, name = np.asarray(found["t"]), "risk"
        if callable(criterion):
            values, name = np.asarray(found["criterion"]), "criterion"
        elif criterion == "overlap":
            values, name = (
                -np.abs(np.asarray(found["M"]))
                .reshape(found.sizes["run"], len(t), -1)
                .max(axis=-1),
                "M",
            )
        else:
            values = np.asarray(found["excess_risk" if "excess_risk" in found else "risk"])
        errors = np.asarray(found[name + STANDARD_ERROR]).reshape(*values.shape, -1).max(axis=-1)
        levels = (
            np.full(len(values), -threshold)
            if criterion == "overlap"
            else (1 - threshold) * values[:, 0]
        )
        pairs = [
            crossing(t, one, its, level)
            for one, its, level in zip(values, errors, levels, strict=True)
        ]
        times, spread = (np.array(part) for part in zip(*pairs, strict=True))
        blown = np.isfinite(np.asarray(found["diverged_at"])) & np.isnan(times)
        if far >= end or np.all(np.isfinite(times) | blown):
            return times, spread, blown
        far *= LONGER


def _steps_up_to(problem: Problem, algorithm: FixedData, start: Start, end: float) -> np.ndarray:
    """Save points that are at least one step, or a quarter of the coarsest cells, apart."""
    step = end / POINTS
    if algorithm.order and not algorithm.scheduled:  # a quarter of the cells
        assert isinstance(algorithm, EpochSGD)
        cells = number_of_cells(problem, algorithm, start)
        step = 4 * algorithm.lr * algorithm.samples_per_dimension / (algorithm.batch * cells)
    elif not algorithm.order:
        step = (
            float(np.diff(algorithm.step_times(math.inf, end)).max())
            if algorithm.scheduled
            else algorithm.lr
        )
    return np.linspace(0.0, end, int(np.clip(np.floor(end / step), 1, POINTS)) + 1)
