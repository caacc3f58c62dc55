"""What the figures of several documents share: axes without pyplot, letters of panels, ticks at the sizes that were run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

__all__ = ["letters", "subplots", "ticks"]


def subplots(rows: int, columns: int, size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """A figure that pyplot does not keep, and its axes."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(rows, columns, **more)


def letters(axes: Iterable[Any]) -> None:
    """(a), (b), ... before the titles."""
    for ax, letter in zip(axes, "abcdef", strict=False):
        ax.set_title(f"({letter})", loc="left")


def ticks(ax: Axes, values: Sequence[float] | np.ndarray) -> None:
    """Ticks at these values of x and nowhere else."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)
