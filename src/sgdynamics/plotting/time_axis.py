"""The time axis of figures and tables: the clock that they show, its label and its scale."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.results.datasets import requested_clock

if TYPE_CHECKING:  # Matplotlib is imported by the functions that draw.
    from matplotlib.axes import Axes

CLOCK_LABELS = {
    "t": "$t$ = lr steps / $d$",
    "alpha": r"$\alpha$ = samples / $d$",
    "step": "steps",
    "epoch": "epochs",
}
# A theory with at most this many save points is drawn as markers: a line could hide a jump.
SPARSE = 12
# Ratio of last to median save point for a logarithmic axis; evenly spaced points have 2.
GROWTH = 5.0
# The clock of each axis that has been drawn on.
axis_clocks: MutableMapping[Any, str] = WeakKeyDictionary()


def table_clocks(result: xr.Dataset) -> list[str]:
    """The time columns of a table: the unit in which save points were requested, then epochs."""
    return [requested_clock(result), *(["epoch"] if "epoch" in result.coords else [])]


def choose_clock(result: xr.Dataset, x: str | None, ax: Axes | None) -> str:
    """The clock of a figure: the caller's, that of earlier curves on the axis, or the result's."""
    if x is not None:
        checks.choice("x", x, tuple(CLOCK_LABELS))
    # An `ax` that is not an axis is rejected later.
    drawn = axis_clocks.get(ax) if hasattr(ax, "errorbar") else None
    clock = x or drawn or requested_clock(result)
    if clock not in result.coords:
        available = [name for name in CLOCK_LABELS if name in result.coords]
        problem = f"this result has only {', '.join(available)}"
        if not x:
            problem = f"this is the clock of the curves on ax, but {problem}. Set x="
        raise checks.reject("x", clock, problem)
    return clock


def set_time_axis(ax: Axes, result: xr.Dataset, clock: str) -> None:
    """Label the time axis of a figure; the first result on it sets the scale.

    The scale is logarithmic where save points grow by factors: on a linear axis all but the last
    few would be at its left edge. Where the first save point is 0, the axis is linear up to the
    second one.
    """
    ax.set_xlabel(clock_label(result, clock))
    is_new = ax not in axis_clocks and not ax.has_data()
    axis_clocks.setdefault(ax, clock)
    if not is_new:
        return
    points = np.asarray(result[clock], dtype=float)
    if points[-1] < GROWTH * np.median(points):
        return
    if points[0] > 0:
        ax.set_xscale("log")
    elif len(points) > 2 and points[1] > 0:
        ax.set_xscale("symlog", linthresh=points[1], linscale=0.5)


def clock_label(result: xr.Dataset, clock: str) -> str:
    """The label of a time axis, with the divisor of t or alpha that the result records."""
    name = str(result[clock].attrs.get("long_name", ""))
    if clock == "t" and (match := re.search(r"(t(?:/p)?) = lr steps(?:/(.+))?$", name)):
        return f"${match[1]}$ = lr steps" + (f" / ${match[2]}$" if match[2] else "")
    if clock == "alpha" and (match := re.fullmatch(r"samples/(\w)", name)):
        return rf"$\alpha$ = samples / ${match[1]}$"
    return CLOCK_LABELS[clock]


def add_epoch_axis(ax: Any, result: xr.Dataset, clock: str) -> None:
    """Show epochs along the upper edge, if they are proportional to the lower clock."""
    if "epoch" not in result.coords or clock == "epoch":
        return
    points, epochs = (np.asarray(result[name], dtype=float) for name in (clock, "epoch"))
    rate = epochs[-1] / points[-1] if points[-1] > 0 else 0.0
    if rate > 0 and np.allclose(epochs, rate * points, rtol=1e-6, atol=1e-9 * epochs[-1]):
        upper = ax.secondary_xaxis(
            "top", functions=(lambda x: x * rate, lambda epoch: epoch / rate)
        )
        upper.set_xlabel("epochs")


def curve_style(count: int) -> dict[str, Any]:
    """Style of a theory with this many save points: a line, or open markers for a few."""
    return {"lw": 1.6} if count > SPARSE else {"ls": "none", "marker": "D", "ms": 7, "mfc": "none"}
