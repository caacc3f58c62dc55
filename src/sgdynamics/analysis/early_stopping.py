"""`early_stopping`: the minimum of the population risk along a trajectory, with its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.results.variables import STANDARD_ERROR


@dataclass(frozen=True)
class EarlyStopping:
    """The minimum of the population risk along trajectories.

    Arrays have one entry per run; a single one for a simulation, whose runs are averaged.

    Attributes
    ----------
    t : ndarray
        Time of the minimum, in t.
    alpha : ndarray
        The same time in samples used/d; NaN if samples are not counted.
    epoch : ndarray
        The same time in epochs; NaN if there are none.
    risk : ndarray
        The least risk.
    risk_standard_error : ndarray
        Standard error of the risk; 0 if the trajectory has none.
    earliest : ndarray
        The last save point, in t, before the risk exceeds the minimum by at most their joint
        standard error; the first save point if there is none.
    latest : ndarray
        The first save point after that interval; the last save point if there is none.
    at_end : ndarray of bool
        Whether the risk is least at the last save point with a finite risk.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
    >>> start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
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
    """The time along a trajectory at which the population risk is least, and that risk.

    Between save points the minimum is that of the parabola through the smallest value and its
    neighbours. Runs of a simulation are averaged first; results of ``solve_dmft`` have their own
    standard errors.

    Parameters
    ----------
    trajectory : xarray.Dataset
        The result of a solver, with at least three save points for a minimum between them.

    Returns
    -------
    EarlyStopping
        ``.t``, ``.epoch``, ``.risk`` and its error, ``.earliest`` and ``.latest``.

    Raises
    ------
    ValueError
        If the argument is not a trajectory with a risk, or if no risk is finite.

    Warns
    -----
    UserWarning
        If the risk is least at the last save point, or if a run diverges.

    Notes
    -----
    The interval from ``earliest`` to ``latest`` is the resolution of the save points and errors:
    a finer grid of save points makes it shorter. Errors at neighbouring times are correlated, which
    makes it too long rather than too short.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    >>> algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=2.0)
    >>> arguments = {"steps": [0, 4, 8, 12, 16, 20], "paths": 1024, "progress": False}
    >>> path = sgd.solve_dmft(problem, algorithm, start, **arguments)
    >>> 2 < float(sgd.early_stopping(path).t[0]) < 7
    True
    """
    checks.result("trajectory", trajectory, "t", "run", "risk", fix="give a result of a solver")
    t = np.asarray(trajectory["t"], dtype=np.float64)
    risk = np.asarray(trajectory["risk"], dtype=np.float64)
    error, name = np.zeros_like(risk), "risk" + STANDARD_ERROR
    if name in trajectory:
        error = np.asarray(trajectory[name], dtype=np.float64)
    is_simulation = str(trajectory.attrs.get("method", "")).startswith("simulate-")
    if error.shape != risk.shape or is_simulation:
        risk, error = _average_runs(risk)
    if not np.isfinite(risk).any(axis=1).all():
        raise ValueError(
            "trajectory: a run has no finite risk at any save point. Use a smaller lr."
        )
    minima = [_find_minimum(t, *row) for row in zip(risk, error, strict=True)]
    time, least, errors, earliest, latest, at_end = map(np.array, zip(*minima, strict=True))
    is_incomplete = ~np.isfinite(risk).all(axis=1)
    if (at_end & ~is_incomplete).any():
        warn(
            f"early_stopping: the risk is least at the last save point, t = {t[-1]:g}. "
            "It may decrease further: train for longer."
        )
    if is_incomplete.any():
        warn(
            f"early_stopping: the trajectory diverges in {int(is_incomplete.sum())} of {len(risk)} "
            "runs. Only save points before are used."
        )

    def convert(name: str) -> np.ndarray:
        """The times of the minima in another clock."""
        if name not in trajectory.coords:
            return np.full(len(time), np.nan)
        return np.interp(time, t, np.asarray(trajectory[name], dtype=np.float64))

    clocks = convert("alpha"), convert("epoch")
    return EarlyStopping(time, *clocks, least, errors, earliest, latest, at_end)


def _average_runs(risk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean risk (1, time) of the runs that stay finite, and its standard error.

    If no run stays finite, the mean of all runs is returned, finite up to the first divergence.
    """
    is_finite = np.isfinite(risk).all(axis=1)
    if is_finite.any():
        if not is_finite.all():
            warn(
                f"early_stopping: {int((~is_finite).sum())} of {len(risk)} runs diverge and are "
                "left out of the mean."
            )
        risk = risk[is_finite]
    count, error = len(risk), np.zeros((1, risk.shape[1]))
    with np.errstate(invalid="ignore"):  # inf - inf, after a divergence
        if count > 1:
            error = risk.std(axis=0, ddof=1, keepdims=True) / np.sqrt(count)
        return risk.mean(axis=0, keepdims=True), error


def _find_minimum(
    t: np.ndarray, risk: np.ndarray, error: np.ndarray
) -> tuple[float, float, float, float, float, bool]:
    """Time, value and error of the least risk, its interval, and whether it is at the end."""
    index = int(np.nanargmin(risk))
    near = np.flatnonzero(risk - risk[index] <= np.hypot(error, error[index]))
    time, value = t[index], risk[index]
    if 0 < index < len(t) - 1 and np.isfinite(risk[index + 1]):
        around = slice(index - 1, index + 2)
        curvature, slope, _ = np.polyfit(t[around] - t[index], risk[around] - value, 2)
        if curvature > 0:
            time, value = time - slope / (2 * curvature), value - slope**2 / (4 * curvature)
    last = int(np.flatnonzero(np.isfinite(risk))[-1])
    return (
        float(time),
        float(value),
        float(error[index]),
        float(t[max(near[0] - 1, 0)]),
        float(t[min(near[-1] + 1, last)]),
        index == last,
    )
