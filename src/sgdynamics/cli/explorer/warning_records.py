"""Warnings of computations that run at the same time in several threads.

`warnings.catch_warnings` changes the state of the process and would mix their warnings.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_threads = threading.local()
_state: dict[str, Any] = {"count": 0, "context": None}


@contextmanager
def record_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record the warnings of this thread; the list is filled inside the context.

    Warnings of other threads are shown as before, or recorded by a context of theirs.
    """
    previous = getattr(_threads, "caught", None)
    caught: list[warnings.WarningMessage] = []
    _threads.caught = caught
    with _lock:
        if _state["count"] == 0:
            start_recording()
        _state["count"] += 1
    try:
        yield caught
    finally:
        _threads.caught = previous
        with _lock:
            _state["count"] -= 1
            if _state["count"] == 0:
                _state["context"].__exit__(None, None, None)


def start_recording() -> None:
    context = warnings.catch_warnings()
    context.__enter__()
    warnings.simplefilter("always", UserWarning)
    show = warnings.showwarning

    def show_or_record(*arguments: Any, **options: Any) -> None:
        caught = getattr(_threads, "caught", None)
        if caught is None:
            show(*arguments, **options)
        else:
            caught.append(warnings.WarningMessage(*arguments, **options))

    warnings.showwarning = show_or_record
    _state["context"] = context
