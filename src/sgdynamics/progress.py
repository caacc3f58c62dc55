"""A progress bar for long work: rich where it is installed and somebody is looking, silence otherwise."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Counts finished work from any thread and shows it."""

    def __init__(self, bar: object | None = None, task: object | None = None) -> None:
        self._bar = bar
        self._task = task
        self._lock = threading.Lock()

    def advance(self, amount: float) -> None:
        if self._bar is not None:
            with self._lock:
                self._bar.advance(self._task, amount)  # type: ignore[attr-defined]


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
        task = bar.add_task(label, total=total)
        yield Meter(bar, task)
        bar.update(task, completed=total)
