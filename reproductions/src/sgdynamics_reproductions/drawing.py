"""Drawing functions that the figures share: axes without pyplot, error bars, letters and ticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

__all__ = [
    "draw_runs",
    "finish",
    "legend_below",
    "letters",
    "panels",
    "readable",
    "subplots",
    "ticks",
]


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Make a figure that pyplot does not keep in memory, and its axes."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(rows, columns, **options)


def letters(axes: Iterable[Any]) -> None:
    """Write (a), (b), ... to the left of the titles."""
    for ax, letter in zip(axes, "abcdef", strict=False):
        ax.set_title(f"({letter})", loc="left")


def ticks(ax: Axes, values: Sequence[float] | np.ndarray) -> None:
    """Set the ticks of the x axis at these values only."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)


def readable(axes: Iterable[Axes]) -> None:
    """Keep the labels of logarithmic axes from overlapping.

    Axes of less than two decades have labels such as 1, 2, 5 in plain digits.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for ax in axes:
        for axis, (low, high) in (
            (ax.xaxis, sorted(ax.get_xlim())),
            (ax.yaxis, sorted(ax.get_ylim())),
        ):
            if axis.get_scale() != "log" or not isinstance(axis.get_major_locator(), LogLocator):
                continue  # `ticks` has set the ticks
            axis.set_minor_formatter(NullFormatter())
            decades = np.log10(high / low)
            if decades < 2:
                subs = (1.0, 2.0, 5.0) if decades > 0.8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
                axis.set_major_locator(LogLocator(subs=subs, numticks=20))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend_below(ax: Axes, **options: Any) -> None:
    """Put the legend below the panel, where it hides nothing."""
    ax.legend(
        **(
            {
                "frameon": False,
                "fontsize": "small",
                "loc": "upper center",
                "bbox_to_anchor": (0.5, -0.17),
                "ncols": 2,
            }
            | options
        )
    )


def panels(columns: int, width: float = 4.4, height: float = 3.7) -> tuple[Any, Any]:
    """Make a figure with one row of axes."""
    fig, axes = subplots(1, columns, (width * columns, height), squeeze=False)
    return fig, axes[0]


def draw_runs(
    ax: Axes, x: Any, runs: Any, colour: str, label: str | None = None, bars: float = 2.0
) -> None:
    """Draw the mean over runs (the first axis) as points, with bars of ``bars`` standard errors."""
    runs = np.asarray(runs)
    error = bars * runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    ax.errorbar(
        x,
        runs.mean(axis=0),
        error,
        fmt="o",
        ms=4,
        mfc="white",
        mec=colour,
        color=colour,
        capsize=2,
        lw=1,
        label=label,
        zorder=3,
    )


def finish(
    fig: Any, axes: Iterable[Axes], title: str, legends: Iterable[Axes] | None = None, **legend: Any
) -> None:
    """Add letters, a title, and legends to all axes or to those in ``legends``."""
    for ax in axes if legends is None else legends:
        ax.legend(**({"frameon": False, "fontsize": "small"} | legend))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    letters(axes)
    fig.suptitle(title)
