"""Forecasts of the explorer: loss curves as text, a schedule, and the curves that the page draws.

The page sends all files with each request. The fit of the last files is cached, so that a change of
the schedule only computes a prediction.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import xarray as xr

from sgdynamics.algorithms import schedules
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule
from sgdynamics.scaling.forecast import BestSchedule, Forecast, forecast
from sgdynamics.scaling.forecast.forecasting import OPTIMISM
from sgdynamics.scaling.forecast.loss_curves import LossCurve, read_table
from sgdynamics.scaling.forecast.rates import RateCurve, read_schedule

SCHEDULES = ("wsd", "cosine", "constant")
MAX_CURVES = 20  # of all files together; each adds a tenth of a second to a fit
DRAWN_POINTS = 250  # of a curve
LONGEST_WARMUP = 0.1  # share of the predicted run, of a warm-up that the request does not state
LONGEST_NAME = 60  # characters of a curve's name


@dataclass(frozen=True)
class ForecastRequest:
    """Loss curves, and the schedule to predict.

    Attributes
    ----------
    files : tuple of (str, str)
        Name and text of each CSV file.
    schedule : str
        Name of the schedule.
    peak, steps, warmup : float or None
        Peak, length and warm-up of the predicted run; None stands for the measured value.
    decay, final : float
        Share of the run in which WSD falls, and the last rate as a share of the peak.
    shape : str
        Form of the fall of WSD.
    best : bool
        Whether the best schedule of this peak, length and warm-up is found, too.
    """

    files: tuple[tuple[str, str], ...]
    schedule: str = "wsd"
    peak: float | None = None
    steps: float | None = None
    warmup: float | None = None
    decay: float = 0.2
    final: float = 0.1
    shape: str = "linear"
    best: bool = False


def request_from(content: bytes) -> ForecastRequest:
    """Parse and validate the JSON text of a request."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError("the request is not a JSON object. Load the page anew")
    names = [field.name for field in fields(ForecastRequest)]
    checks.reject_unknown("the request", values, names)
    read: dict[str, object] = {"files": _files(values.pop("files", []))}
    for name in ("peak", "steps"):
        if values.get(name) is not None:
            read[name] = checks.number(name, values[name], above=0.0)
    for name in ("warmup", "decay", "final"):
        if values.get(name) is not None:
            read[name] = checks.number(name, values[name], 0.0)
    if "schedule" in values:
        read["schedule"] = checks.choice("schedule", values["schedule"], SCHEDULES)
    if "shape" in values:
        read["shape"] = checks.choice("shape", values["shape"], schedules.DECAYS)
    if "best" in values:
        read["best"] = checks.flag("best", values["best"])
    return ForecastRequest(**read)  # type: ignore[arg-type]  # each value is checked above


def _files(files: object) -> tuple[tuple[str, str], ...]:
    """Names and texts of the files of a request."""
    if not isinstance(files, list) or not files:
        raise ValueError("there is no loss curve. Choose CSV files with the columns step, lr, loss")
    pairs = []
    for file in files:
        name, text = (file.get("name"), file.get("text")) if isinstance(file, dict) else (0, 0)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError("a file of the request has no name or no text. Load the page anew")
        pairs.append((name, text))
    return tuple(pairs)


def _table(name: str, text: str) -> pd.DataFrame:
    """Parse the text of a file, whose runs get the name of the file unless it has others."""
    table = read_table(name, io.StringIO(text))
    table = table.rename(columns=lambda column: str(column).strip().lower())
    if table.empty:
        raise checks.reject("curves", name, "the file has no rows.")
    if not table.columns.is_unique:
        repeated = table.columns[table.columns.duplicated()][0]
        fix = f"it has more than one column {repeated}. Capitals do not count."
        raise checks.reject("curves", name, fix)
    if "run" in table.columns:
        return table
    return table.assign(run=PurePosixPath(name).stem[:LONGEST_NAME] or "curve")


@lru_cache(maxsize=2)
def fit_files(files: tuple[tuple[str, str], ...]) -> Forecast:
    """Fit the loss curves of some files."""
    tables = [_table(name, text) for name, text in files]
    count = sum(len(set(table["run"].astype(str))) for table in tables)
    if count > MAX_CURVES:
        fix = f"the page fits at most {MAX_CURVES} curves. Use sgd.forecast for more"
        raise checks.reject("curves", count, fix)
    return forecast(tables, warn=False)


@lru_cache(maxsize=8)
def _best_schedule(
    files: tuple[tuple[str, str], ...], steps: float, peak: float, warmup: float
) -> BestSchedule:
    return fit_files(files).optimal_schedule(steps, peak, warmup=warmup)


def predict(request: ForecastRequest) -> dict[str, object]:
    """Return what the page draws, as plain values.

    These are the measured curves, their fit, the prediction with its band, the best schedule if the
    request asks for it, and the peak, length and warm-up of the predicted run.
    """
    fit = fit_files(request.files)
    longest = max(fit.curves, key=lambda curve: curve.rates.length).rates
    peak = fit.peaks[1] if request.peak is None else request.peak
    steps = longest.length if request.steps is None else request.steps
    warmup = request.warmup
    if warmup is None:
        warmup = min(longest.warmup_end(), LONGEST_WARMUP * steps)
    schedule = _schedule(request, peak, steps, warmup)
    prediction, notes = _prediction(fit, schedule)
    answer: dict[str, object] = {
        "model": fit.model,
        "level": fit.level,
        "residual": _round(fit.residual),
        "curves": [
            _curve(curve, points.rates, fit)
            for curve, points in zip(fit.curves, fit.fits[fit.model].points, strict=True)
        ],
        "run": {"peak": _round(peak), "steps": _round(steps), "warmup": _round(warmup)},
        "prediction": prediction,
        "best": None,
    }
    if request.best:
        best = _best_schedule(request.files, steps, peak, warmup)
        best_curve, best_notes = _prediction(fit, best.schedule)
        gains = (best.gain, best.gain_lower, best.gain_upper)
        answer["best"] = {
            **best_curve,
            "gain": [_round(gain) for gain in gains],
            "decay_start": _round(best.decay_start),
            "optimism": OPTIMISM,
        }
        notes = (*notes, *(f"best schedule: {note}" for note in best_notes if note not in notes))
    texts = dict.fromkeys((*fit.warnings, *notes))
    answer["notes"] = [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in texts]
    return answer


def _schedule(request: ForecastRequest, peak: float, steps: float, warmup: float) -> Schedule:
    if request.schedule == "constant":
        return schedules.constant(peak, steps, warmup=warmup)
    if request.schedule == "cosine":
        return schedules.cosine(peak, steps, warmup=warmup, final=request.final)
    return schedules.wsd(
        peak,
        steps,
        decay=request.decay,
        warmup=warmup,
        final=request.final,
        shape=request.shape,
    )


def _prediction(fit: Forecast, schedule: Schedule) -> tuple[dict[str, object], tuple[str, ...]]:
    """Predict the loss of a schedule; return plain values, and the warnings of the prediction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the result contains them as text
        prediction = fit.predict(schedule)
    rates = read_schedule("schedule", schedule, None).coarsen()
    values = {name: _points(prediction[name]) for name in ("step", "loss", "lower", "upper")}
    values |= {"rate_step": _points(rates.steps), "rate": _points(rates.rates)}
    return dict(values), tuple(filter(None, prediction.attrs["warnings"].split("\n")))


def _curve(curve: LossCurve, rates: RateCurve, fit: Forecast) -> dict[str, object]:
    """A measured curve, its fit, and its learning rate."""
    steps, losses = curve.after(fit.skip)
    shown = np.unique(np.linspace(0, len(steps) - 1, DRAWN_POINTS).astype(int))
    grid = np.linspace(steps[0], steps[-1], DRAWN_POINTS)
    return {
        "name": curve.name[:LONGEST_NAME],
        "step": _points(steps[shown]),
        "loss": _points(losses[shown]),
        "fit_step": _points(grid),
        "fit_loss": _points(fit.fits[fit.model].loss(rates, grid)),
        "rate_step": _points(rates.steps),
        "rate": _points(rates.rates),
    }


def _points(values: np.ndarray | xr.DataArray) -> list[float | None]:
    return [_round(value) for value in np.asarray(values, dtype=float).tolist()]


def _round(value: float) -> float | None:
    """Round a number to six digits, which is more than a screen shows; NaN becomes null."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
