"""Curves of a result on an axis: theory as lines, simulations as means with standard errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks, registry
from sgdynamics.plotting.time_axis import curve_style
from sgdynamics.results.reduced import count_runs, mean_error
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

if TYPE_CHECKING:  # Matplotlib is imported by the functions that draw.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_MARKERS = 25  # error bars on a curve before they overlap


def figure_and_axis(ax: Axes | None, size: tuple[float, float] = (6, 4)) -> tuple[Figure, Axes]:
    """The axis to draw on, or a new one, and its figure."""
    import matplotlib.pyplot as plt

    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")
    if not (hasattr(ax, "figure") and hasattr(ax, "errorbar")):
        raise checks.reject("ax", ax, "this must be a Matplotlib axis, or None for a new one.")
    return ax.figure, ax  # type: ignore[return-value]


def require_text(argument: str, value: object) -> str | None:
    """A text, or None."""
    if value is not None and not isinstance(value, str):
        raise checks.reject(argument, value, "this must be a string or None.")
    return value


def require_trajectory(result: Any) -> None:
    """Raise ValueError unless a result has at least one run and one save point."""
    checks.result("result", result, "run", "time", "t")
    if not result.sizes["run"] or not result.sizes["time"]:
        raise checks.reject(
            "result", dict(result.sizes), "there are no runs or no save points to draw."
        )


def _method(result: xr.Dataset) -> registry.Method | None:
    """The registry entry of the method that made a result."""
    return registry.method_of_result(str(result.attrs.get("method", "")))


def is_theory(result: xr.Dataset) -> bool:
    """Whether a result is a deterministic curve, as opposed to random runs."""
    method = _method(result)
    return method is None or not method.is_random


def marker_style(result: xr.Dataset) -> dict[str, Any]:
    """Markers of a result; empty for theory, which is drawn as lines.

    The exact chain has filled points, direct runs open squares behind them, the SDE triangles.
    """
    method = _method(result)
    if method is None or not method.is_random:
        return {}
    if method.name == "direct":
        return {"fmt": "s", "ms": 7, "mfc": "none", "zorder": 1}
    if method.name == "sde":
        return {"fmt": "^", "ms": 5, "mfc": "none", "zorder": 2}
    return {"fmt": "o", "ms": 3.5, "zorder": 3}


def result_label(result: xr.Dataset) -> str:
    """The label of a result in a legend: its method, its dimension, and how many runs it has."""
    method = _method(result)
    label = str(result.attrs.get("method", "result")) if method is None else method.label
    if "dimension" in result.attrs:
        label += f", d = {result.attrs['dimension']}"
    runs = count_runs(result)
    if runs > 1 and not is_theory(result):
        label += f", {runs} runs"
    return label


def entry_label(result: xr.Dataset, name: str, entry: tuple[int, ...]) -> str:
    """The label of one entry of a variable."""
    if name == "evaluated_risk":
        return str(result["evaluation"].values[entry[0]])
    if not entry:
        return name
    indices = "".join(str(index + 1) for index in entry)
    return f"${name}_{{{indices}}}$" if len(name) == 1 else f"{name} {indices}"


def theory_error(result: xr.Dataset, name: str) -> np.ndarray | None:
    """The standard error of a theory that samples (DMFT), or of a mean over runs."""
    own_error = mean_error(result, name)
    if own_error is not None:
        return own_error
    source = (VARIABLES[name].error if name in VARIABLES else "") or name
    error = result.get(f"{source}{STANDARD_ERROR}")
    if error is None or error.shape != result[name].shape:
        return None
    return np.asarray(error)


def draw_curves(
    ax: Axes,
    x: np.ndarray,
    values: np.ndarray,
    markers: dict[str, Any],
    label: str | None = None,
    color: str | None = None,
    error: np.ndarray | None = None,
) -> None:
    """Draw values of shape (run, time).

    Without `markers` the values are theory: one line per run, with a band of its `error`.
    With `markers` they are a simulation: the mean over finite runs with standard errors, or the
    runs themselves if fewer than two are finite. A single run with an `error` is a mean already.
    """
    if not markers:
        _draw_theory(ax, x, values, label, color, error)
        return
    is_finite = np.isfinite(values).all(axis=1)
    has_mean = error is not None and len(values) == 1
    if is_finite.sum() < 2 and not has_mean:
        for index, run in enumerate(values):
            ax.plot(x, run, ".", ms=4, label=label if index == 0 else None, color=color)
        return
    stride = max(1, len(x) // MAX_MARKERS)
    if has_mean:
        mean, standard_error = values[0], np.asarray(error)[0]
    else:
        mean = values[is_finite].mean(axis=0)
        standard_error = values[is_finite].std(axis=0, ddof=1) / np.sqrt(is_finite.sum())
    ax.errorbar(
        x[::stride],
        mean[::stride],
        standard_error[::stride],
        lw=1,
        capsize=2,
        label=label,
        color=color,
        **markers,
    )


def _draw_theory(
    ax: Axes,
    x: np.ndarray,
    values: np.ndarray,
    label: str | None,
    color: str | None,
    error: np.ndarray | None,
) -> None:
    style = curve_style(len(x))
    for index, run in enumerate(values):
        (line,) = ax.plot(x, run, label=label if index == 0 else None, color=color, **style)
        if error is not None:
            lower, upper = run - error[index], run + error[index]
            ax.fill_between(x, lower, upper, color=line.get_color(), alpha=0.25, lw=0)
