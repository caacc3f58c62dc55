"""Measured loss curves: reading, validation, and the points that are fitted.

A curve has a step, a learning rate and a loss in each row. Files and tables may contain several
runs, told apart by a column ``run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule
from sgdynamics.scaling.forecast.fitting import FitPoints
from sgdynamics.scaling.forecast.rates import RateCurve, ScheduleArgument, read_schedule

# One or several curves: the path of a CSV file, a table, or arrays (steps, rates, losses).
CurveArgument: TypeAlias = (
    "str | Path | pd.DataFrame | xr.Dataset | Mapping[str, np.ndarray] | Sequence[np.ndarray]"
)

MOST_POINTS = 70  # of a curve in a fit
LEAST_POINTS = 20  # of a curve, after the start is skipped
AVERAGED_ROWS = 5  # rows per point from which on a point is their mean
LONGEST_WARMUP = 0.2  # share of a run before its first row that is taken for warm-up
DIVERGED = 1.2  # ratio of the last loss to the smallest one that counts as divergence
ASSUMED_WARMUP = (
    "curves that start after step 0 are taken to start with a linear warm-up from 0. Set schedule= "
    "if that differs."
)
NOISE_MARGIN = 6.0  # rise that counts as divergence, in standard deviations of a mean of rows
BITS = 1 / np.log(2)  # ratio of a loss in bits to one in nats


@dataclass(frozen=True)
class LossCurve:
    """A measured loss curve.

    Attributes
    ----------
    name : str
        Name of the run.
    steps, losses : array (n,)
        The rows, in the order of steps.
    rates : RateCurve
        Learning rate from step 0 to the last row.
    notes : tuple of str
        Assumptions made in reading it.
    """

    name: str
    steps: np.ndarray
    losses: np.ndarray
    rates: RateCurve
    notes: tuple[str, ...] = ()

    def after(self, skip: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps and losses after warm-up and after this share of the run."""
        is_late = self.steps >= max(skip * self.steps[-1], self.rates.warmup_end())
        return self.steps[is_late], self.losses[is_late]

    def fit_points(self, skip: float) -> FitPoints:
        """At most MOST_POINTS points of the curve: single rows, or means of many rows."""
        steps, losses = self.after(skip)
        rows = len(steps) / MOST_POINTS
        if rows >= AVERAGED_ROWS:
            groups = np.array_split(np.arange(len(steps)), MOST_POINTS)
            steps = np.array([steps[group].mean() for group in groups])
            losses = np.array([losses[group].mean() for group in groups])
        elif rows > 1:
            chosen = np.unique(np.round(np.linspace(0, len(steps) - 1, MOST_POINTS)).astype(int))
            steps, losses = steps[chosen], losses[chosen]
        return FitPoints(self.rates.coarsen(), steps, losses)


def read_curves(
    curves: CurveArgument | Iterable[CurveArgument],
    schedules: ScheduleArgument | Sequence[ScheduleArgument] | None,
    skip: float,
) -> list[LossCurve]:
    """Read and validate one or several loss curves."""
    sources: list[object]
    if _is_one_source(curves) or not isinstance(curves, Iterable):
        sources = [curves]
    else:
        sources = list(curves)
    tables = [table for index, source in enumerate(sources) for table in _tables(source, index)]
    if not tables:
        raise checks.reject("curves", curves, "give at least one loss curve")
    curve_schedules = _schedules_of(schedules, len(tables))
    read = [
        _curve(name, table, schedule, skip)
        for (name, table), schedule in zip(tables, curve_schedules, strict=True)
    ]
    names = [curve.name for curve in read]
    if len(set(names)) < len(names):
        read = [
            LossCurve(f"{curve.name} {index + 1}", *_fields(curve))
            for index, curve in enumerate(read)
        ]
    check_units(read)
    return read


def _fields(curve: LossCurve) -> tuple[np.ndarray, np.ndarray, RateCurve, tuple[str, ...]]:
    return curve.steps, curve.losses, curve.rates, curve.notes


def _is_one_source(curves: object) -> bool:
    """Whether an argument is one curve rather than a list of curves."""
    if isinstance(curves, (str, Path, pd.DataFrame, xr.Dataset, Mapping)):
        return True
    if isinstance(curves, np.ndarray):
        return curves.ndim <= 2 and curves.dtype != object
    is_triple = isinstance(curves, (tuple, list)) and len(curves) in (2, 3)
    return is_triple and all(
        not isinstance(entry, (str, Path, pd.DataFrame, xr.Dataset, Mapping))
        and np.ndim(entry) == 1
        for entry in curves  # type: ignore[union-attr]  # a tuple or list, checked above
    )


def _schedules_of(
    schedules: ScheduleArgument | Sequence[ScheduleArgument] | None, count: int
) -> list[ScheduleArgument | None]:
    if schedules is None:
        return [None] * count
    if isinstance(schedules, list):
        if len(schedules) != count:
            fix = f"there are {count} curves. Give a list with one schedule (or None) for each."
            raise checks.reject("schedule", f"{len(schedules)} schedules", fix)
        return list(schedules)
    return [schedules] * count  # type: ignore[list-item]  # one schedule for all curves


def _tables(source: object, index: int) -> list[tuple[str, pd.DataFrame]]:
    """The runs of one file or table, by name."""
    name = f"curve {index + 1}"
    if isinstance(source, (str, Path)):
        name, table = Path(source).stem, _read_file(source)
    elif isinstance(source, pd.DataFrame):
        table = source
    elif isinstance(source, xr.Dataset):
        table = source.to_dataframe().reset_index()
    elif isinstance(source, Mapping):
        table = pd.DataFrame({key: np.asarray(value) for key, value in source.items()})
    else:
        table = _from_arrays(source)
    table = table.rename(columns=lambda column: str(column).strip().lower())
    if "run" not in table.columns:
        return [(name, table)]
    return [(str(run), rows) for run, rows in table.groupby("run", sort=False)]


def _read_file(path: str | Path) -> pd.DataFrame:
    file = checks.path("curves", path)
    if not file.is_file():
        raise checks.reject("curves", str(path), "no such file.")
    return read_table(str(path), file)


def read_table(name: str, file: Path | TextIO) -> pd.DataFrame:
    """Parse a CSV file or an open text; `name` stands for it in messages."""
    try:
        return pd.read_csv(file)
    except (ValueError, UnicodeDecodeError) as error:
        fix = f"this is not a CSV file ({checks.reason(error)})."
        raise checks.reject("curves", name, fix) from None


def _from_arrays(source: object) -> pd.DataFrame:
    fix = "give a CSV file, a table, or the arrays (steps, rates, losses)"
    try:
        columns = np.asarray(source, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise checks.reject("curves", source, fix) from None
    if columns.ndim == 2 and columns.shape[0] not in (2, 3) and columns.shape[1] in (2, 3):
        columns = columns.T
    if columns.ndim != 2 or columns.shape[0] not in (2, 3):
        raise checks.reject("curves", np.shape(columns), fix)
    names = ("step", "lr", "loss") if len(columns) == 3 else ("step", "loss")
    return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _column(name: str, table: pd.DataFrame, column: str) -> np.ndarray:
    try:
        return table[column].to_numpy(dtype=float)
    except (TypeError, ValueError):
        raise checks.reject("curves", name, f"its column {column} must be numbers.") from None


def _curve(
    name: str, table: pd.DataFrame, schedule: ScheduleArgument | None, skip: float
) -> LossCurve:
    """Validate one run."""
    columns = ", ".join(str(column) for column in table.columns if column != "run")
    for column in ("step", "loss"):
        if column not in table.columns:
            fix = f"it has no column {column} (it has {columns})."
            fix += " Time must be counted in steps." if column == "step" else ""
            raise checks.reject("curves", name, fix)
    if "lr" not in table.columns and schedule is None:
        fix = "it has no column lr. Set schedule=, as sgd.schedules.cosine(1e-3, 10000)."
        raise checks.reject("curves", name, fix)
    steps, losses = _column(name, table, "step"), _column(name, table, "loss")
    notes: list[str] = []
    _check_rows(name, steps, losses)
    recorded = _column(name, table, "lr") if "lr" in table.columns else None
    if np.any(np.diff(steps) == 0):
        repeated = int(np.sum(np.diff(steps) == 0))
        notes.append(f"{name}: {repeated} rows repeat the step before them and are averaged.")
        unique, groups = np.unique(steps, return_inverse=True)
        counts = np.bincount(groups)
        losses = np.bincount(groups, losses) / counts
        recorded = None if recorded is None else np.bincount(groups, recorded) / counts
        steps = unique
    if schedule is not None:
        # A function of the step has no length; other schedules may be longer than the curve.
        is_function = callable(schedule) and not isinstance(schedule, Schedule)
        rates = read_schedule("schedule", schedule, float(steps[-1]) if is_function else None)
        if rates.length < steps[-1]:
            rates = read_schedule("schedule", schedule, float(steps[-1]))
        rates = rates.until(float(steps[-1]))
    else:
        assert recorded is not None
        rates, note = _recorded_rates(name, steps, recorded)
        notes += [note] if note else []
    curve = LossCurve(name, steps, losses, rates, tuple(notes))
    late, late_losses = curve.after(skip)
    if len(late) < LEAST_POINTS:
        fix = (
            f"{len(late)} rows are left after warm-up and the first {100 * skip:g}% of steps. "
            f"At least {LEAST_POINTS} are needed."
        )
        raise checks.reject("curves", name, fix)
    check_divergence(name, late, late_losses)
    return curve


def _check_rows(name: str, steps: np.ndarray, losses: np.ndarray) -> None:
    if not np.all(np.isfinite(steps)) or np.any(steps < 0):
        raise checks.reject("curves", name, "its steps must be finite and 0 or more.")
    if np.any(np.diff(steps) < 0):
        row = int(np.argmax(np.diff(steps) < 0)) + 1
        fix = f"its steps decrease at row {row + 1}. Sort the rows, or use a column run."
        raise checks.reject("curves", name, fix)
    is_bad = ~np.isfinite(losses) | (losses <= 0)
    if np.any(is_bad):
        row = int(np.argmax(is_bad))
        fix = (
            f"its loss at step {steps[row]:g} is {losses[row]:g}. Losses must be finite and above "
            "0. Remove rows after a divergence."
        )
        raise checks.reject("curves", name, fix)


def _recorded_rates(
    name: str, steps: np.ndarray, recorded: np.ndarray
) -> tuple[RateCurve, str | None]:
    """The learning rate that the rows record, linear between them, and a note."""
    is_bad = ~np.isfinite(recorded) | (recorded < 0)
    if np.any(is_bad):
        row = int(np.argmax(is_bad))
        fix = f"its lr at step {steps[row]:g} is {recorded[row]:g}. Rates must be 0 or more."
        raise checks.reject("curves", name, fix)
    if not np.any(recorded > 0):
        raise checks.reject("curves", name, "its lr is 0 in all rows.")
    if steps[0] == 0:
        return RateCurve(steps, recorded), None
    if steps[0] > LONGEST_WARMUP * steps[-1]:
        fix = (
            f"it starts at step {steps[0]:g}, and its learning rate before is unknown. "
            "Set schedule=, from step 0 on."
        )
        raise checks.reject("curves", name, fix)
    knots, rates = np.concatenate([[0.0], steps]), np.concatenate([[0.0], recorded])
    # A few steps before the first row are one interval of logging, not a warm-up.
    if steps[0] <= 2 * np.median(np.diff(steps)):
        rates[0] = recorded[0]
        return RateCurve(knots, rates), None
    return RateCurve(knots, rates), ASSUMED_WARMUP


def check_divergence(name: str, steps: np.ndarray, losses: np.ndarray) -> None:
    """Raise ValueError if the loss has grown at the end; the noise of single rows does not count.

    The standard deviation of a row is estimated from the differences of neighbouring rows,
    median |difference| = 0.954 standard deviations for normal noise.
    """
    window = max(len(losses) // 20, 1)
    smooth = np.array([group.mean() for group in np.array_split(losses, len(losses) // window)])
    lowest = int(np.argmin(smooth))
    noise = float(np.median(np.abs(np.diff(losses)))) / 0.954 / np.sqrt(window)
    rise = smooth[-1] - smooth[lowest]
    if smooth[-1] > DIVERGED * smooth[lowest] and rise > NOISE_MARGIN * noise:
        fix = (
            f"its loss rises from {smooth[lowest]:.4g} to {smooth[-1]:.4g} and seems to diverge. "
            f"Use the rows before about step {steps[min(lowest * window, len(steps) - 1)]:.0f}."
        )
        raise checks.reject("curves", name, fix)


def check_units(curves: list[LossCurve]) -> None:
    """Raise ValueError for curves in different units: a loss in bits, steps and tokens."""
    medians = [float(np.median(curve.after(0.3)[1])) for curve in curves]
    lengths = [curve.rates.length for curve in curves]
    for curve, median, length in zip(curves, medians, lengths, strict=True):
        if abs(median / min(medians) / BITS - 1) < 0.03:
            fix = (
                "its loss is 1.44 times that of another curve. Give all losses in nats or in bits."
            )
            raise checks.reject("curves", curve.name, fix)
        if length > 300 * min(lengths):
            fix = (
                f"it ends at step {length:.3g}, another curve at {min(lengths):.3g}. Count all "
                "curves in optimiser steps, not in tokens."
            )
            raise checks.reject("curves", curve.name, fix)
