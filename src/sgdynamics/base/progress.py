"""What a user is told on the way: a progress bar (rich, where somebody is looking), and warnings that name the user's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Meter:
    """Counts finished work and shows it.

    Attributes
    ----------
    label : str
        What works.
    total, done : float
        The whole work, and what is finished of it.
    finished : int
        Units of the work that are finished as a whole, where it has units.
    has_warned : bool
        Whether the user has been told that this takes long.
    """

    def __init__(
        self, bar: Any = None, task: Any = None, total: float = 0.0, label: str = ""
    ) -> None:
        self._bar = bar
        self._task = task
        self._total: float | None = total
        self.label, self.total, self.done = label, total, 0.0
        self.finished, self.has_warned = 0, False

    def advance(self, amount: float) -> None:
        self.done += amount
        if self._bar is None:
            return
        if (
            self._total is not None
        ):  # something is finished: from now on there is a share of the whole to show
            self._bar.update(self._task, total=self._total)
            self._total = None
        self._bar.advance(self._task, amount)

    def reach(self, share: float) -> None:
        """Show that this share of the present unit is done."""
        self.advance(max(self.finished + share - self.done, 0.0))

    def finish_unit(self) -> None:
        """Show that the present unit is done."""
        self.reach(1.0)
        self.finished += 1


@contextmanager
def meter(label: str, total: float, show: bool | None) -> Iterator[Meter]:
    """show=None: only on a terminal; True: always; False: never."""
    wanted = sys.stderr.isatty() if show is None else show
    if not wanted or total <= 0:
        yield Meter(total=total, label=label)
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        print(f"{label} ...", file=sys.stderr)
        yield Meter(total=total, label=label)
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
        yield Meter(bar, task, total, label)
        bar.update(task, total=total, completed=total)


_CURRENT: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def shared_meter(label: str, total: float, show: bool | None) -> Iterator[Meter]:
    """A meter that functions below find by `current_meter`, as many layers as there may be between."""
    with meter(label, total, show) as shown:
        token = _CURRENT.set(shown)
        try:
            yield shown
        finally:
            _CURRENT.reset(token)


def current_meter() -> Meter | None:
    """The meter of the solver that is running; None where none shows progress."""
    return _CURRENT.get()


LONG = 60.0  # seconds of expected work that a user should hear of


def warn_if_long(shown: Meter, seconds: float, how: str) -> None:
    """Warn once if the work is expected to take long; `how` says which numbers this follows from."""
    if shown.has_warned or seconds < LONG:
        return
    shown.has_warned = True
    length = (
        f"{seconds:.0f} seconds"
        if seconds < 180
        else f"{seconds / 60:.0f} minutes"
        if seconds < 7200
        else f"{seconds / 3600:.1f} hours"
    )
    warn(f"{shown.label}: about {length} expected ({how}). Set progress=True to watch it.")


def warn(message: str) -> None:
    """A warning that names the line of the user's that led here, however many of the library's own functions lie between."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sgdynamics."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
