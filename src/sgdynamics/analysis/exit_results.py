"""`ExitTimes`, and the exit times of a trajectory that a solver returned."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from sgdynamics.base import checks
from sgdynamics.base.progress import warn

QUANTILE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class ExitTimes:
    """Exit times of runs, in t.

    The time of a run is NaN if the run had not left by ``max_time`` or had diverged; a warning
    reports how many such runs there are.

    Attributes
    ----------
    times : ndarray
        Exit time of each run, in t = lr steps/d (on a fixed data set in its own t).
    threshold : float
        The relative decrease of the criterion, or the overlap, at which a run has left.
    criterion : str
        "risk", "overlap", or the name of a function.
    method : str
        The method by which the runs were made.
    max_time : float
        The time up to which runs were followed, in t.
    dimension : int or None
        The dimension d; None for d -> infinity.
    lr : float or None
        The learning rate; None if it is a schedule or unknown.
    batch : float
        Number of samples per step; on a fixed data set divided by d.
    diverged : ndarray of bool
        Whether each run diverged.
    ran_out : ndarray of bool
        Whether the integrator ran out of steps before ``max_time``, for each run.
    errors : ndarray
        Standard error of each time by DMFT; empty for other methods.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> exits = sgd.exit_time_of(path, 0.2)
    >>> exits.left, exits.runs, exits.quantile(0.5) == exits.mean
    (1, 1, True)
    """

    times: np.ndarray
    threshold: float
    criterion: str
    method: str
    max_time: float
    dimension: int | None = None
    lr: float | None = None
    batch: float = 1
    diverged: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    ran_out: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.times)

    @property
    def left(self) -> int:
        """Number of runs that left by ``max_time``."""
        return int(np.isfinite(self.times).sum())

    @property
    def mean(self) -> float:
        """Mean over the runs that left; a warning was given if these are not all runs."""
        return float(np.nanmean(self.times)) if self.left else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for a single run without an error of its own."""
        if len(self.errors):
            if not self.left:
                return float("nan")
            return float(np.sqrt(np.nansum(self.errors**2)) / self.left)
        if self.left < 2:
            return float("nan")
        return float(np.nanstd(self.times, ddof=1) / np.sqrt(self.left))

    def quantile(self, level: ArrayLike) -> float | np.ndarray:
        """Quantiles over all runs.

        A run that did not leave counts as later than all that did, so that a quantile among such
        runs is infinite.

        Parameters
        ----------
        level : float or array_like
            Levels between 0 and 1.

        Returns
        -------
        float or ndarray
            The quantile of each level, in t.

        Raises
        ------
        ValueError
            If a level is not between 0 and 1.
        """
        level = np.asarray(level, dtype=np.float64)
        if np.any((level < 0) | (level > 1)):
            raise checks.reject("level", level.tolist(), "give numbers between 0 and 1")
        ordered = np.sort(np.where(np.isfinite(self.times), self.times, np.inf))
        position = level * (len(ordered) - 1)
        low, high = ordered[np.floor(position).astype(int)], ordered[np.ceil(position).astype(int)]
        share = position - np.floor(position)
        with np.errstate(invalid="ignore"):  # inf - inf, which the next line does not use
            between = low + share * (high - low)
        quantiles = np.where((share == 0) | (low == high), low, between)
        return float(quantiles) if quantiles.ndim == 0 else quantiles

    @property
    def quantiles(self) -> dict[float, float]:
        """The quantiles at 5, 25, 50, 75 and 95 per cent."""
        return {level: float(self.quantile(level)) for level in QUANTILE_LEVELS}

    @property
    def alpha(self) -> np.ndarray:
        """The exit times in samples/d."""
        if not self.lr:
            raise ValueError(
                "alpha = samples/d is undefined without a constant learning rate above 0. Use times"
            )
        return self.times * self.batch / self.lr

    def __repr__(self) -> str:
        error = f" +- {self.standard_error:.2g}" if self.left > 1 else ""
        return (
            f"ExitTimes({self.mean:.5g}{error}, {self.left} of {self.runs} runs left by "
            f"t = {self.max_time:g}, method={self.method!r})"
        )


def validate_threshold(value: object) -> float:
    """Validate the argument `threshold` of exit times."""
    threshold = checks.number("threshold", value)
    if not 0 < threshold < 1:
        fix = "give a number between 0 and 1, the relative decrease at which a run has left"
        raise checks.reject("threshold", value, fix)
    return threshold


def warn_of_missing_exits(exits: ExitTimes) -> None:
    """Warn if some runs have no exit time, with the reasons."""
    if exits.left == exits.runs:
        return
    n_diverged = int(exits.diverged.sum())
    n_ran_out = int(exits.ran_out.sum())
    n_late = exits.runs - exits.left - n_diverged - n_ran_out
    reasons = [f"{n_late} had not left by max_time = {exits.max_time:g}"] if n_late else []
    reasons += [f"{n_diverged} diverged"] if n_diverged else []
    reasons += [f"{n_ran_out} ran out of the integrator's steps"] if n_ran_out else []
    warn(
        f"exit_time: of {exits.runs} runs {' and '.join(reasons)}. Their times are NaN, and mean "
        f"is the mean over the {exits.left} that left."
    )


def exit_time_of(trajectory: xr.Dataset, threshold: float, *, criterion: str = "risk") -> ExitTimes:
    """Exit times of a trajectory, interpolated linearly between its save points.

    Parameters
    ----------
    trajectory : xarray.Dataset
        The result of a solver.
    threshold : float
        The relative decrease of the excess risk (of the risk where there is none) from the first
        save point, or the overlap to reach.
    criterion : str, default "risk"
        "risk", or "overlap": the largest entry of M, in absolute value, reaches ``threshold``.

    Returns
    -------
    ExitTimes
        Exit time of each run, in t.

    Raises
    ------
    ValueError
        If the trajectory lacks a variable that the criterion needs.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> sgd.exit_time_of(path, 0.2).times.round(2).tolist()
    [0.7]
    """
    threshold = validate_threshold(threshold)
    checks.choice("criterion", criterion, ("risk", "overlap"))
    needed = ("t", "run", "diverged_at", "risk")
    fix = "give a result of solve_ode, solve_sde or simulate"
    checks.result("trajectory", trajectory, *needed, fix=fix)
    t = np.asarray(trajectory["t"])
    if criterion == "overlap":
        # The only overlap of a spiked tensor is m.
        name = "m" if "r2" in trajectory else "M"
        checks.result("trajectory", trajectory, name)
        overlaps = np.abs(np.asarray(trajectory[name]))
        values = -overlaps.reshape(*overlaps.shape[:2], -1).max(axis=2)
        levels = np.full(len(values), -threshold)
    else:
        values = np.asarray(trajectory["excess_risk" if "excess_risk" in trajectory else "risk"])
        levels = (1 - threshold) * values[:, 0]
    times = np.full(len(values), np.nan)
    for run, (row, level) in enumerate(zip(values, levels, strict=True)):
        below = np.flatnonzero(row < level)
        if len(below) == 0:
            continue
        first = below[0]
        if first == 0:
            times[run] = t[0]
            continue
        share = (row[first - 1] - level) / (row[first - 1] - row[first])
        times[run] = t[first - 1] + share * (t[first] - t[first - 1])
    exits = ExitTimes(
        times,
        threshold,
        criterion,
        str(trajectory.attrs.get("method", "trajectory")),
        max_time=float(t[-1]),
        dimension=trajectory.attrs.get("dimension"),
        diverged=np.isfinite(np.asarray(trajectory["diverged_at"])) & np.isnan(times),
    )
    warn_of_missing_exits(exits)
    return exits
