"""Figures that take several calls: finished pieces are stored, and a later call continues.

A figure requests its simulations and solutions one after the other by ``compute_piece``. Inside
``time_limit`` each piece is written to a file when it is finished, and read from there in later
calls. Pieces that support checkpoints (runs on a fixed data set) stop when the time is over.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import load, save
from sgdynamics.base.arrays import Function
from sgdynamics.results.datasets import encode

__all__ = ["compute_piece", "time_limit"]


@dataclass
class Sitting:
    """Folder of the pieces, deadline of this call (time.monotonic), and whether it began a piece.

    Each call begins at least one piece, so that repeated calls make progress.
    """

    folder: Path
    deadline: float
    has_begun: bool = False


SHORT = 1e-3  # seconds for a piece that begins after the deadline: one chunk of steps
_sitting: ContextVar[Sitting | None] = ContextVar("sitting", default=None)


@contextmanager
def time_limit(folder: Path, seconds: float) -> Iterator[None]:
    """Store the pieces of a figure in a folder, and raise TimeoutError after ``seconds``."""
    token = _sitting.set(Sitting(folder, time.monotonic() + seconds))
    try:
        yield
    finally:
        _sitting.reset(token)


def compute_piece(
    name: str, call: Mapping[str, Any], compute: Function, resumes: bool = False
) -> xr.Dataset:
    """Return ``compute()``, or the stored result of an equal call.

    With ``resumes`` the function takes the arguments ``checkpoint`` and ``seconds``.
    """
    sitting = _sitting.get()
    if sitting is None:
        return compute()
    stem = f"{name}-{_digest(call)}"
    path = sitting.folder / f"{stem}.nc"
    if path.is_file():
        return load(path)
    remaining = sitting.deadline - time.monotonic()
    if remaining <= 0 and sitting.has_begun:
        raise TimeoutError(
            f"the time is over before the piece {stem}. The same call continues from there."
        )
    sitting.has_begun = True
    options = {"checkpoint": sitting.folder / stem, "seconds": max(remaining, SHORT)}
    result = compute(**(options if resumes else {}))
    sitting.folder.mkdir(parents=True, exist_ok=True)
    save(result, path)
    return result


def _digest(call: Mapping[str, Any]) -> str:
    """Hash of the arguments of a piece: records of problems and algorithms, values of arrays."""

    def plain(value: object) -> Any:
        describe = getattr(value, "describe", None)
        if describe is not None:
            return describe()
        return np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else value

    return hashlib.sha256(
        encode({name: plain(value) for name, value in sorted(call.items())}).encode()
    ).hexdigest()[:12]
