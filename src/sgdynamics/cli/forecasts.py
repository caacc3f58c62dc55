"""The command `forecast`: schedules as text, and the summary of a forecast."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.cli.tables import print_table

if TYPE_CHECKING:
    import xarray as xr

    from sgdynamics.base.controls import Schedule
    from sgdynamics.scaling.forecast import Forecast

SCHEDULES = ("constant", "cosine", "wsd", "multistep")
EXAMPLE = "wsd:steps=50000,peak=1e-3,decay=0.2"


def parse_schedule(text: str) -> Schedule:
    """The schedule that `name:key=value,...` or the path of a CSV file states.

    Several milestones are separated by a plus sign: `multistep:milestones=0.5+0.8`.
    """
    from sgdynamics.algorithms import schedules

    if text.endswith(".csv"):
        return schedules.from_file(text)
    name, _, assignments = text.partition(":")
    if name not in SCHEDULES:
        fix = (
            f"write one of {', '.join(SCHEDULES)} with its arguments, as {EXAMPLE!r}, or a CSV file"
        )
        raise checks.reject("schedule", text, fix)
    function = getattr(schedules, name)
    arguments: dict[str, Any] = {}
    for entry in filter(None, assignments.split(",")):
        key, separator, value = entry.partition("=")
        if not separator:
            raise checks.reject("schedule", text, f"{entry!r} is not key=value, as in {EXAMPLE!r}")
        arguments[key.strip()] = _value(text, key.strip(), value.strip())
    parameters = [key for key in inspect.signature(function).parameters if key != "alpha"]
    checks.reject_unknown(f"the schedule {name}", arguments, parameters)
    missing = [key for key in ("peak", "steps") if key not in arguments]
    if missing:
        fix = f"{' and '.join(missing)} must be given, as in {EXAMPLE!r}"
        raise checks.reject("schedule", text, fix)
    return function(**arguments)


def _value(text: str, key: str, value: str) -> Any:
    if key == "shape":
        return value
    try:
        entries = [float(entry) for entry in value.split("+")]
    except ValueError:
        raise checks.reject("schedule", text, f"{key} = {value!r} is not a number") from None
    return entries if key == "milestones" else entries[0]


def summarise_forecast(
    fit: Forecast, predictions: dict[str, xr.Dataset], optimal: Any, files: list[str]
) -> dict[str, Any]:
    """The answer of the command, as plain values."""
    errors = fit.errors
    answer: dict[str, Any] = {
        "model": fit.model,
        "curves": [curve.name for curve in fit.curves],
        "residual": fit.residual,
        "level": fit.level,
        "parameters": {
            name: {"value": value, "standard_error": errors[name]}
            for name, value in fit.parameters.items()
        },
        "predictions": [
            {"schedule": name, "steps": float(prediction["step"][-1])}
            | {key: float(prediction[key][-1]) for key in ("loss", "lower", "upper")}
            for name, prediction in predictions.items()
        ],
        "files": files,
    }
    if optimal is not None:
        fields = ("loss", "lower", "upper", "gain", "gain_lower", "gain_upper", "decay_start")
        answer["optimal"] = {name: float(getattr(optimal, name)) for name in fields}
    return answer


def print_forecast(answer: dict[str, Any]) -> None:
    """Print the answer of the command as tables."""
    curves = ", ".join(answer["curves"])
    print(f"Model {answer['model']}, fitted to {curves} (mean error {answer['residual']:.2g})")
    rows = [
        [name, f"{entry['value']:.4g}", f"{entry['standard_error']:.2g}"]
        for name, entry in answer["parameters"].items()
    ]
    print_table(["what", "value", "standard error"], rows)
    share = f"{100 * answer['level']:g}% band"
    rows = [
        [entry["schedule"], f"{entry['steps']:g}", f"{entry['loss']:.4f}", _band(entry)]
        for entry in answer["predictions"]
    ]
    if rows:
        print()
        print_table(["what", "steps", "final loss", share], rows)
    if "optimal" in answer:
        best = answer["optimal"]
        gain = f"{best['gain']:.4f} ({best['gain_lower']:.4f} to {best['gain_upper']:.4f})"
        print(
            f"\nThe decay of the best schedule starts at {100 * best['decay_start']:.0f}% of the "
            f"run. Its predicted gain over a cosine is {gain}; predicted gains are optimistic."
        )
    for name in answer["files"]:
        print(f"wrote {name}")


def _band(entry: dict[str, float]) -> str:
    if np.isnan(entry["lower"]):
        return "-"
    return f"{entry['lower']:.4f} to {entry['upper']:.4f}"


def write_predictions(predictions: dict[str, xr.Dataset], path: Path) -> str:
    """Write all predictions to one CSV file with a column for the schedule."""
    import pandas as pd

    from sgdynamics.base import files

    tables = [
        prediction.to_dataframe().reset_index().assign(schedule=name)
        for name, prediction in predictions.items()
    ]
    files.write(path, pd.concat(tables).to_csv(index=False).encode())
    return str(path)
