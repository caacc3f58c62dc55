"""What a user is told on the way: a progress bar (rich, where somebody is looking), and warnings that name the user's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Meter:
    """Counts finished work and shows it."""

    def __init__(self, bar: Any = None, task: Any = None, total: float = 0.0) -> None:
        self._bar = bar
        self._task = task
        self._total: float | None = total

    def advance(self, amount: float) -> None:
        if self._bar is None:
            return
        if self._total is not None:  # something is finished: from now on there is a share of the whole to show
            self._bar.update(self._task, total=self._total)
            self._total = None
        self._bar.advance(self._task, amount)


@contextmanager
def meter(label: str, total: float, show: bool | None) -> Iterator[Meter]:
    """show=None: only on a terminal; True: always; False: never."""
    wanted = sys.stderr.isatty() if show is None else show
    if not wanted or total <= 0:
        yield Meter()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        print(f"{label} ...", file=sys.stderr)
        yield Meter()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        # without a total the bar runs to and fro: while the first piece compiles, a bar that stands still looks dead
        task = bar.add_task(label, total=None)
        yield Meter(bar, task, total)
        bar.update(task, total=total, completed=total)


def warn(message: str) -> None:
    """A warning that names the line of the user's that led here, however many of the library's own functions lie between."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sgdynamics."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
