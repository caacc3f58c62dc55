"""Progress bars on terminals, warnings before long work, and warnings at the user's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LONG = 60.0  # seconds of expected work above which the user is warned
PIECES = 3  # pieces of work needed for an estimate: the first two may compile programs
LEAST_STEPS, EVALUATIONS = 8, 13  # explicit steps of an ODE, evaluations in a step of order 8
MEASURED = 1.0  # seconds of measured work needed for an estimate


class Cost(NamedTuple):
    """Words of a warning: "{bound} 3 minutes expected (0.1 s per {unit}, 1800 {unit}s{of})"."""

    unit: str
    of: str = ""
    bound: str = "about"


class Meter:
    """Counts finished work and shows it.

    Attributes
    ----------
    label : str
        Name of the work.
    total, done : float
        Amount of all work, and of the finished part.
    finished : int
        Number of finished units, for work that is divided into units.
    has_warned : bool
        Whether a warning of long work has been given.
    """

    def __init__(
        self,
        bar: Progress | None = None,
        task: TaskID | None = None,
        total: float = 0.0,
        label: str = "",
        cost: Cost | None = None,
    ) -> None:
        self._bar = bar
        self._cost = cost
        self._since = perf_counter()
        self._pieces, self._measured, self._pace = 0, 0.0, float("inf")
        self._task = task
        self._total: float | None = total
        self.label, self.total, self.done = label, total, 0.0
        self.finished, self.has_warned = 0, False

    @property
    def is_visible(self) -> bool:
        """Whether a progress bar is shown."""
        return self._bar is not None

    def advance(self, amount: float, skipped: float = 0.0) -> None:
        """Count a piece of work that was done, and work that turned out to be unnecessary."""
        self.done += amount + skipped
        if self._cost is not None:
            self._estimate(amount, self._cost)
        amount += skipped
        if self._bar is None or self._task is None:
            return
        if (
            self._total is not None
        ):  # something is finished: from now on there is a share of the whole to show
            self._bar.update(self._task, total=self._total)
            self._total = None
        self._bar.advance(self._task, amount)

    def _estimate(self, amount: float, cost: Cost) -> None:
        """Warn where the remaining work takes long, at the pace of the fastest piece.

        Slower pieces contain a compilation.
        """
        now = perf_counter()
        seconds, self._since = now - self._since, now
        if amount <= 0:
            return
        self._pieces += 1
        if self._pieces == 1:
            return
        self._measured, self._pace = self._measured + seconds, min(self._pace, seconds / amount)
        if self._pieces >= PIECES and self._measured >= MEASURED:
            how = f"{self._pace:.2g} s per {cost.unit}, {self.total:g} {cost.unit}s{cost.of}"
            warn_if_long(self, self._pace * (self.total - self.done), how, cost.bound)

    def add_units(self, count: int) -> None:
        """Extend the work by units that turned out to be necessary."""
        self.total += count
        if self._total is not None:
            self._total = self.total
        elif self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self.total)

    def reach(self, share: float) -> None:
        """Show that this share of the present unit is done."""
        self.advance(max(self.finished + share - self.done, 0.0))

    def finish_unit(self) -> None:
        """Show that the present unit is done."""
        self.reach(1.0)
        self.finished += 1


@contextmanager
def meter(label: str, total: float, show: bool | None, cost: Cost | None = None) -> Iterator[Meter]:
    """show=None: only on a terminal; True: always; False: never.

    With a `cost`, long work is announced by a warning.
    """
    wanted = sys.stderr.isatty() if show is None else show
    if not wanted or total <= 0:
        yield Meter(total=total, label=label, cost=cost)
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
        yield Meter(total=total, label=label, cost=cost)
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
        # without a total the bar runs to and fro while the first piece compiles
        task = bar.add_task(label, total=None)
        yield Meter(bar, task, total, label, cost)
        bar.update(task, total=total, completed=total)


_CURRENT: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def shared_meter(label: str, total: float, show: bool | None) -> Iterator[Meter]:
    """A meter that the functions called inside find by `current_meter`."""
    with meter(label, total, show) as shown:
        token = _CURRENT.set(shown)
        try:
            yield shown
        finally:
            _CURRENT.reset(token)


def current_meter() -> Meter | None:
    """The meter of the solver that is running; None where none shows progress."""
    return _CURRENT.get()


PIECE_SECONDS = (
    0.5  # duration of one piece of work, so that progress is shown and an interrupt is heard
)


def next_piece(piece: int, seconds: float, grain: int = 1, wanted: float = PIECE_SECONDS) -> int:
    """Size of the next piece of work, a multiple of `grain`, given the duration of the last."""
    if seconds < wanted / 2:
        return min(piece * 2, 1 << 40)
    if seconds > wanted * 2:
        return max(piece // 2 // grain, 1) * grain
    return piece


def warn_if_long(shown: Meter, seconds: float, how: str, bound: str = "about") -> None:
    """Warn once if the work is expected to take long; `how` is the calculation behind it."""
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
    advice = "" if shown.is_visible else " Set progress=True to watch it."
    warn(f"{shown.label}: {bound} {length} expected ({how}).{advice}")


def warn_from_evaluation(shown: Meter, evaluate: Callable[[], Any], name: str, runs: int) -> None:
    """Warn where even the fewest explicit steps will take long, from the time of one evaluation.

    `evaluate` waits for its result; its first call may compile a program.
    """
    seconds = 0.0
    for _ in range(2):
        began = perf_counter()
        evaluate()
        seconds = perf_counter() - began
    evaluations = runs * LEAST_STEPS * EVALUATIONS
    how = describe_work(shown, seconds, name, evaluations)
    warn_if_long(shown, seconds * evaluations * shown.total, how, "at least")


def describe_work(shown: Meter, seconds: float, name: str, evaluations: int) -> str:
    """The reason of a long solution: the time and the number of evaluations."""
    solutions = f"{shown.total:g} solution{'s' if shown.total > 1 else ''}"
    return (
        f"{seconds:.2g} s per evaluation of the {name}, {evaluations} evaluations or more per "
        f"solution, {solutions}"
    )


def warn(message: str) -> None:
    """Warn at the line of the user's code that called the library."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sgdynamics."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
