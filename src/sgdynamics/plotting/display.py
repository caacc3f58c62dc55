"""Results as a notebook shows them: a picture, a table with errors, and xarray's own view folded below."""

from __future__ import annotations

import base64
import io
import json
from html import escape
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.plotting import plot
from sgdynamics.plotting.time_axis import add_epoch_axis, curve_style, set_time_axis, table_clocks
from sgdynamics.results.datasets import ROUNDING, requested_clock
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

POINTS = 6  # save points of the table
ENTRIES = 4  # of one variable in the table
SHOWN = (
    "excess_risk",
    "risk",
    "train_risk",
    "accuracy",
    "M",
    "m",
    "M_fields",
)  # those that are there, the second only without the first


def html(result: xr.Dataset) -> str:
    """A result, or theory and simulation side by side, as HTML; any other Dataset, and what cannot be drawn, as xarray shows it."""
    whole = result._repr_html_()
    try:
        if (
            {"theory", "simulation", "runs"} <= set(result.attrs)
            and "risk_z" in result
            and "t" in result.coords
        ):
            parts = _compared(result)
        elif (
            {"method", "problem", "version"} <= set(result.attrs)
            and {"run", "time"} <= set(result.sizes)
            and "t" in result.coords
        ):
            parts = _trajectory(result)
        else:
            return whole
    except ValueError:  # a slice of a result, say, without what a plot needs
        return whole
    folded = f"<details><summary>all variables and attributes</summary>{whole}</details>"
    return f"<div class='sgdynamics-result'>{''.join(parts)}{folded}</div>"


def _trajectory(result: xr.Dataset) -> list[str]:
    if not result.sizes["run"] or not result.sizes["time"]:
        raise ValueError("there is nothing to show")
    names = [name for name in SHOWN if name in result and result[name].dims[:2] == ("run", "time")]
    if "excess_risk" in names and "risk" in names:
        names.remove("risk")
    picture = _figure(2 if {"M", "m", "M_fields"} & set(names) else 1)
    if picture[1] and not {"risk", "excess_risk"} & set(result):
        raise ValueError("it has no risk")
    plot.risk(result, picture[1][0])
    for ax, name in zip(
        picture[1][1:], (one for one in names if one in ("M", "m", "M_fields")), strict=False
    ):
        plot.variable(result, name, ax, label=f"{result.sizes['run']} runs")
    for ax in picture[1]:
        add_epoch_axis(ax, result, requested_clock(result))
    good = (
        np.flatnonzero(np.isnan(result["diverged_at"]))
        if "diverged_at" in result.coords
        else np.arange(result.sizes["run"])
    )
    if not len(good):
        raise ValueError("all runs have diverged")
    kept, runs = result.isel(run=good), len(good)
    own = [name for name in names if f"{_error_of(name)}{STANDARD_ERROR}" in result]
    columns = []
    for name in names:
        values = np.asarray(kept[name]).reshape(runs, result.sizes["time"], -1)
        error = values.std(axis=0, ddof=1) / np.sqrt(runs) if runs > 1 else None
        if name in own:
            error = np.sqrt(
                (np.asarray(kept[f"{_error_of(name)}{STANDARD_ERROR}"]) ** 2).mean(axis=0) / runs
            ).reshape(values.shape[1:])
        entries = list(np.ndindex(*result[name].shape[2:]))[:ENTRIES]
        for position, entry in enumerate(entries):
            label = name.replace("_", " ") + "".join(str(index + 1) for index in entry)
            columns.append(
                (
                    label,
                    values[:, :, position].mean(axis=0),
                    None if error is None else error[:, position],
                )
            )
    said = (
        "mean over the data's randomness ± DMFT's own standard error"
        if own
        else f"mean ± standard error over {runs} runs"
        if runs > 1
        else ""
    )
    lost = result.sizes["run"] - runs
    notes = [
        said,
        f"{lost} of {result.sizes['run']} runs diverged and are left out" if lost else "",
    ]
    notes += [
        f"{name.replace('_', ' ')} {result.attrs[name]:.1g}"
        for name in sorted(map(str, result.attrs))
        if name.startswith("error_")
    ]
    return [_heading(result), _image(picture[0]), _table(result, columns), _notes(notes)]


def _compared(result: xr.Dataset) -> list[str]:
    fig, (left, right) = _figure(2)
    clock = requested_clock(result)
    points = np.asarray(result[clock])
    for ax in (left, right):
        set_time_axis(ax, result, clock)
        add_epoch_axis(ax, result, clock)
    name = "excess_risk" if "excess_risk_z" in result else "risk"
    theory, runs, error, z = (
        np.asarray(result[f"{name}_{part}"])
        for part in ("theory", "simulation", "standard_error", "z")
    )
    left.set_yscale("log")
    left.plot(points, theory, label="theory", **curve_style(len(points)))
    left.errorbar(
        points,
        runs,
        error,
        fmt="o",
        ms=3.5,
        lw=1,
        capsize=2,
        label=f"mean of {result.attrs['runs']} runs",
    )
    left.set_ylabel(VARIABLES[name].label)
    left.legend(frameon=False)
    right.axhspan(-2, 2, color="0.9")
    right.plot(points, z, "o-", ms=3.5, lw=1)
    right.set_ylabel("difference / standard error")
    columns = [
        ("theory", theory, None),
        (f"{result.attrs['runs']} runs", runs, error),
        ("difference / error", z, None),
    ]
    left_out = result.attrs.get("runs_left_out", 0)
    notes = [
        f"{VARIABLES[name].label}; ± standard error",
        f"{left_out} runs diverged and are left out" if left_out else "",
    ]
    return [_heading(result), _image(fig), _table(result, columns), _notes(notes)]


def _error_of(name: str) -> str:
    """The variable whose standard error a variable has."""
    return (VARIABLES[name].error if name in VARIABLES else "") or name


def _figure(count: int) -> tuple[Any, Any]:
    """A figure that pyplot does not know: a notebook would show it a second time."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(4.2 * count, 2.9), layout="constrained")
    return fig, list(fig.subplots(1, count, squeeze=False)[0])


def _image(fig: Any) -> str:
    stream = io.BytesIO()
    fig.savefig(stream, dpi=100, format="png")
    text = base64.b64encode(stream.getvalue()).decode()
    return f"<img alt='risk and overlaps against time' style='max-width:100%; height:auto' src='data:image/png;base64,{text}'>"


def _heading(result: xr.Dataset) -> str:
    """Who computed what: method, problem and algorithm."""

    def kind(name: str) -> str:
        try:
            return str(json.loads(result.attrs.get(name, "{}")).get("kind", ""))
        except ValueError:
            return ""

    method = (
        result.attrs.get("method") or f"{result.attrs['theory']} and {result.attrs['simulation']}"
    )
    found = [str(method), kind("problem"), kind("algorithm")]
    if "dimension" in result.attrs:
        found.append(f"d = {result.attrs['dimension']}")
    return f"<div><b>{escape(', '.join(one for one in found if one))}</b></div>"


def _table(result: xr.Dataset, columns: list[tuple[str, np.ndarray, np.ndarray | None]]) -> str:
    """Columns of values, with their errors where there are any, at a few save points, one in each row."""
    count = result.sizes["time"]
    points = np.unique(np.linspace(0, count - 1, min(POINTS, count)).round().astype(int))
    style = "style='text-align:right; padding:.1em .6em; white-space:nowrap'"
    clocks = table_clocks(result)
    lines = [
        "".join(
            f"<th {style}>{escape(label)}</th>"
            for label in (*clocks, *(label for label, _, _ in columns))
        )
    ]
    for point in points:
        cells = [f"{float(result[clock][point]):.4g}" for clock in clocks]
        cells += [
            _number(float(values[point]), None if error is None else float(error[point]))
            for _, values, error in columns
        ]
        lines.append("".join(f"<td {style}>{cell}</td>" for cell in cells))
    table = (
        "<table style='font-size:85%'>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    )
    return f"<div class='sgdynamics-table' style='overflow-x:auto'>{table}</div>"


def _number(value: float, error: float | None) -> str:
    """A value with its error; what is rounding of the value is no error."""
    if error is None:
        return f"{value:.4g}"
    return f"{value:.4g} ± {0.0 if error < ROUNDING * abs(value) else error:.1g}"


def _notes(notes: list[str]) -> str:
    return f"<div style='font-size:85%'>{escape('; '.join(one for one in notes if one))}</div>"
