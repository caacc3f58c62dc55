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
