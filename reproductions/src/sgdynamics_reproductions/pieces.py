"""Figures that take longer than one sitting: what is finished of one is kept in a folder, and a
later call makes the rest.

A figure asks for its simulations and solutions one after the other, each by `made`. Inside `kept`
each is written to a file once it is finished, and read from there the next time; what can stop on
the way (runs on a fixed data set) does so when the time is over.
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

__all__ = ["kept", "made"]


@dataclass
class Sitting:
    """Where pieces are kept, until when this call may go on (by time.monotonic), and whether it has
    begun one: each does.
    """

    folder: Path
    until: float
    begun: bool = False


SHORT = 1e-3  # seconds of a piece that begins late: one stretch of steps
_sitting: ContextVar[Sitting | None] = ContextVar("sitting", default=None)


@contextmanager
def kept(folder: Path, seconds: float) -> Iterator[None]:
    """Inside, pieces of a figure are kept in a folder; after so many seconds there is a
    TimeoutError.
    """
    token = _sitting.set(Sitting(folder, time.monotonic() + seconds))
    try:
        yield
    finally:
        _sitting.reset(token)


def made(
    name: str, call: Mapping[str, Any], compute: Function, resumes: bool = False
) -> xr.Dataset:
    """What compute(**options) gives, or gave: one piece, which its call names; where it `resumes`,
    options are those of a checkpoint.
    """
    sitting = _sitting.get()
    if sitting is None:
        return compute()
    stem = f"{name}-{_digest(call)}"
    path = sitting.folder / f"{stem}.nc"
    if path.is_file():
        return load(path)
    left = sitting.until - time.monotonic()
    if left <= 0 and sitting.begun:
        raise TimeoutError(
            f"the time is over before the piece {stem}: the same call goes on from there"
        )
    sitting.begun = True
    found = compute(
        **({"checkpoint": sitting.folder / stem, "seconds": max(left, SHORT)} if resumes else {})
    )
    sitting.folder.mkdir(parents=True, exist_ok=True)
    save(found, path)
    return found


def _digest(call: Mapping[str, Any]) -> str:
    """Of all that makes a piece what it is: problems and algorithms as they describe themselves,
    arrays by their numbers.
    """

    def plain(value: object) -> Any:
        describe = getattr(value, "describe", None)
        if describe is not None:
            return describe()
        return np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else value

    return hashlib.sha256(
        encode({name: plain(value) for name, value in sorted(call.items())}).encode()
    ).hexdigest()[:12]
