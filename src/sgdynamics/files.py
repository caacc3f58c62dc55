"""Files that are whole or not there: written under another name, and renamed when they are finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".*.part"  # what a process that was killed may leave


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Where to write what becomes `target` in one step, if nothing goes wrong; several processes may write the same."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
