"""Display of results in notebooks: a figure, a table with errors, and xarray's view below."""

from __future__ import annotations

import base64
import io
import json
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.plotting import plot
from sgdynamics.plotting.time_axis import add_epoch_axis, curve_style, set_time_axis, table_clocks
from sgdynamics.results.datasets import ROUNDING, requested_clock
from sgdynamics.results.reduced import count_runs, is_mean
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

if TYPE_CHECKING:  # Matplotlib is imported by the functions that draw.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 6  # save points of the table
MAX_ENTRIES = 4  # entries of a variable in the table
# Variables to show, if they exist; the risk only without the excess risk.
SHOWN = ("excess_risk", "risk", "train_risk", "accuracy", "M", "m", "M_fields")
OVERLAPS = ("M", "m", "M_fields")


class Column(NamedTuple):
    """A column of the table: values at the save points, and their standard errors."""

    label: str
    values: np.ndarray
    error: np.ndarray | None = None


def html(result: xr.Dataset) -> str:
    """A trajectory, or a comparison of theory and simulation, as HTML.

    Any other Dataset, and one that cannot be drawn, is displayed by xarray.
    """
    full_view = result._repr_html_()
    attributes, has_times = set(result.attrs), "t" in result.coords
    try:
        if {"theory", "simulation", "runs"} <= attributes and "risk_z" in result and has_times:
            sections = _comparison_sections(result)
        elif (
            {"method", "problem", "version"} <= attributes
            and {"run", "time"} <= set(result.sizes)
            and has_times
        ):
            sections = _trajectory_sections(result)
        else:
            return full_view
    except ValueError:  # for example a slice of a result, without the variables of a plot
        return full_view
    details = f"<details><summary>all variables and attributes</summary>{full_view}</details>"
    return f"<div class='sgdynamics-result'>{''.join(sections)}{details}</div>"


def _trajectory_sections(result: xr.Dataset) -> list[str]:
    if not result.sizes["run"] or not result.sizes["time"]:
        raise ValueError("the result has no runs or no save points")
    if not {"risk", "excess_risk"} & set(result):
        raise ValueError("the result has no risk")
    names = [name for name in SHOWN if name in result and result[name].dims[:2] == ("run", "time")]
    if "excess_risk" in names and "risk" in names:
        names.remove("risk")
    if "diverged_at" in result.coords:
        finite_runs = np.flatnonzero(np.isnan(result["diverged_at"]))
    else:
        finite_runs = np.arange(result.sizes["run"])
    if not len(finite_runs):
        raise ValueError("all runs have diverged")
    finite = result.isel(run=finite_runs)
    columns = [column for name in names for column in _columns(finite, name)]
    notes = [_error_note(finite, names)]
    diverged = result.sizes["run"] - len(finite_runs)
    if diverged:
        notes.append(f"{diverged} of {result.sizes['run']} runs diverged and are left out")
    notes += [
        f"{name.replace('_', ' ')} {result.attrs[name]:.1g}"
        for name in sorted(map(str, result.attrs))
        if name.startswith("error_")
    ]
    figure = _draw_trajectory(result, next((name for name in names if name in OVERLAPS), None))
    return [_heading(result), _image(figure), _table(result, columns), _notes(notes)]


def _draw_trajectory(result: xr.Dataset, overlap: str | None) -> Figure:
    """Draw the risk, and an overlap next to it."""
    figure, axes = _new_figure(1 if overlap is None else 2)
    plot.risk(result, axes[0])
    if overlap is not None:
        plot.variable(result, overlap, axes[1], label=f"{count_runs(result)} runs")
    for ax in axes:
        add_epoch_axis(ax, result, requested_clock(result))
    return figure


def _columns(finite: xr.Dataset, name: str) -> list[Column]:
    """The first entries of a variable: means over runs and their standard errors."""
    runs = finite.sizes["run"]
    values = np.asarray(finite[name]).reshape(runs, finite.sizes["time"], -1)
    errors = None
    if _has_own_error(finite, name):
        squares = np.asarray(finite[f"{_error_source(name)}{STANDARD_ERROR}"]) ** 2
        errors = np.sqrt(squares.mean(axis=0) / runs).reshape(values.shape[1:])
    elif runs > 1:
        errors = values.std(axis=0, ddof=1) / np.sqrt(runs)
    columns = []
    for position, entry in enumerate(list(np.ndindex(*finite[name].shape[2:]))[:MAX_ENTRIES]):
        label = name.replace("_", " ") + "".join(str(index + 1) for index in entry)
        mean = values[:, :, position].mean(axis=0)
        columns.append(Column(label, mean, None if errors is None else errors[:, position]))
    return columns


def _error_note(finite: xr.Dataset, names: list[str]) -> str:
    """The meaning of the errors in the table."""
    if is_mean(finite):
        return f"mean ± standard error over {count_runs(finite)} runs"
    if any(_has_own_error(finite, name) for name in names):
        return "mean over the data's randomness ± DMFT's own standard error"
    runs = finite.sizes["run"]
    return f"mean ± standard error over {runs} runs" if runs > 1 else ""


def _error_source(name: str) -> str:
    """The variable whose standard error applies to a variable."""
    return (VARIABLES[name].error if name in VARIABLES else "") or name


def _has_own_error(result: xr.Dataset, name: str) -> bool:
    return f"{_error_source(name)}{STANDARD_ERROR}" in result


def _comparison_sections(result: xr.Dataset) -> list[str]:
    name = "excess_risk" if "excess_risk_z" in result else "risk"
    theory, runs, error, z = (
        np.asarray(result[f"{name}_{suffix}"])
        for suffix in ("theory", "simulation", "standard_error", "z")
    )
    figure, (left, right) = _new_figure(2)
    clock = requested_clock(result)
    points = np.asarray(result[clock])
    for ax in (left, right):
        set_time_axis(ax, result, clock)
        add_epoch_axis(ax, result, clock)
    left.set_yscale("log")
    left.plot(points, theory, label="theory", **curve_style(len(points)))
    label = f"mean of {result.attrs['runs']} runs"
    left.errorbar(points, runs, error, fmt="o", ms=3.5, lw=1, capsize=2, label=label)
    left.set_ylabel(VARIABLES[name].label)
    left.legend(frameon=False)
    right.axhspan(-2, 2, color="0.9")
    right.plot(points, z, "o-", ms=3.5, lw=1)
    right.set_ylabel("difference / standard error")
    columns = [
        Column("theory", theory),
        Column(f"{result.attrs['runs']} runs", runs, error),
        Column("difference / error", z),
    ]
    diverged = result.attrs.get("runs_left_out", 0)
    notes = [
        f"{VARIABLES[name].label}; ± standard error",
        f"{diverged} runs diverged and are left out" if diverged else "",
    ]
    return [_heading(result), _image(figure), _table(result, columns), _notes(notes)]


def _new_figure(count: int) -> tuple[Figure, list[Axes]]:
    """A figure that pyplot does not manage, because a notebook would show that a second time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * count, 2.9), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _image(figure: Figure) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, dpi=100, format="png")
    text = base64.b64encode(stream.getvalue()).decode()
    style = "max-width:100%; height:auto"
    alternative = "risk and overlaps against time"
    return f"<img alt='{alternative}' style='{style}' src='data:image/png;base64,{text}'>"


def _heading(result: xr.Dataset) -> str:
    """Method, problem, algorithm and dimension."""
    attributes = result.attrs

    def kind(name: str) -> str:
        try:
            return str(json.loads(attributes.get(name, "{}")).get("kind", ""))
        except ValueError:
            return ""

    method = attributes.get("method") or f"{attributes['theory']} and {attributes['simulation']}"
    words = [str(method), kind("problem"), kind("algorithm")]
    if "dimension" in attributes:
        words.append(f"d = {attributes['dimension']}")
    return f"<div><b>{escape(', '.join(filter(None, words)))}</b></div>"


def _table(result: xr.Dataset, columns: list[Column]) -> str:
    """A table with a row for each of a few save points."""
    count = result.sizes["time"]
    points = np.unique(np.linspace(0, count - 1, min(MAX_ROWS, count)).round().astype(int))
    style = "style='text-align:right; padding:.1em .6em; white-space:nowrap'"
    clocks = table_clocks(result)
    labels = [*clocks, *(column.label for column in columns)]
    lines = ["".join(f"<th {style}>{escape(label)}</th>" for label in labels)]
    for point in points:
        cells = [f"{float(result[clock][point]):.4g}" for clock in clocks]
        cells += [_cell(column, point) for column in columns]
        lines.append("".join(f"<td {style}>{cell}</td>" for cell in cells))
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table style='font-size:85%'>{rows}</table>"
    return f"<div class='sgdynamics-table' style='overflow-x:auto'>{table}</div>"


def _cell(column: Column, point: int) -> str:
    """A value with its standard error; an error at the level of rounding is shown as 0."""
    value = float(column.values[point])
    if column.error is None:
        return f"{value:.4g}"
    error = float(column.error[point])
    return f"{value:.4g} ± {0.0 if error < ROUNDING * abs(value) else error:.1g}"


def _notes(notes: list[str]) -> str:
    return f"<div style='font-size:85%'>{escape('; '.join(filter(None, notes)))}</div>"
