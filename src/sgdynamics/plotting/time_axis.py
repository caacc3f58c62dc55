"""Time in pictures and tables: which clock they show, its label, and the scale of its axis."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.results.datasets import requested_clock

if TYPE_CHECKING:  # drawing is imported where it is done
    from matplotlib.axes import Axes

CLOCK_LABELS = {
    "t": "$t$ = lr steps / $d$",
    "alpha": r"$\alpha$ = samples / $d$",
    "step": "steps",
    "epoch": "epochs",
}
SPARSE = 12  # save points up to which a theory is drawn as markers: a line could hide a jump
GROWTH = (
    5.0  # ratio of last to median save point of a logarithmic axis; evenly spaced points have 2
)
axis_clocks: MutableMapping[Any, str] = WeakKeyDictionary()  # unit of time of each axis drawn on


def table_clocks(result: xr.Dataset) -> list[str]:
    """The time columns of a table: the unit in which save points were requested, then epochs."""
    return [requested_clock(result), *(["epoch"] if "epoch" in result.coords else [])]


def choose_clock(result: xr.Dataset, x: str | None, ax: Axes | None) -> str:
    """The unit of time of a picture: that of the caller, of earlier curves on the axis, or of the result."""
    if x is not None:
        checks.choice("x", x, tuple(CLOCK_LABELS))
    drawn = (
        axis_clocks.get(ax) if hasattr(ax, "errorbar") else None
    )  # what is no axis is rejected later
    name = x or drawn or requested_clock(result)
    if name not in result.coords:
        known = [clock for clock in CLOCK_LABELS if clock in result.coords]
        fix = f"this result has only {', '.join(known)}"
        raise checks.reject(
            "x",
            name,
            fix if x else f"this is the unit of the curves on ax. However, {fix}: give x=",
        )
    return name


def set_time_axis(ax: Axes, result: xr.Dataset, clock: str) -> None:
    """Label the time axis of a picture; the first result on it sets the scale.

    The scale is logarithmic where save points grow by factors: on a linear axis all but the last
    few would be at its left edge. Where the first save point is 0, the axis is linear up to the
    second one.
    """
    ax.set_xlabel(clock_label(result, clock))
    first = ax not in axis_clocks and not ax.has_data()
    axis_clocks.setdefault(ax, clock)
    if not first:
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
    """Show epochs along the upper edge, where they are proportional to the unit of the lower one."""
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
