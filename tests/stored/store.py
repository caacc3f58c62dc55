"""The file of stored results: `case/array` to numbers, and how far results are from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_name("results.npz")
RELATIVE = 1e-9

Arrays = dict[str, np.ndarray]


def read(path: Path = PATH) -> dict[str, Arrays]:
    """Every case's arrays."""
    cases: dict[str, Arrays] = {}
    if path.exists():
        with np.load(path) as file:
            for key in file.files:
                case, name = key.rsplit("/", 1)
                cases.setdefault(case, {})[name] = file[key]
    return cases


def write(cases: Mapping[str, Arrays], path: Path = PATH) -> None:
    """Written whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            **{f"{case}/{name}": value for case in cases for name, value in cases[case].items()},
        )
    part.replace(path)


def gap(found: np.ndarray, stored: np.ndarray) -> float:
    """The largest difference over the largest absolute stored value; infinite where shapes, NaNs or infinities differ.

    Zeros among other numbers are held to the scale of those; an array of zeros only must stay zero.
    """
    found, stored = np.asarray(found), np.asarray(stored)
    if found.shape != stored.shape:
        return np.inf
    finite = np.isfinite(stored)
    if not np.array_equal(found[~finite], stored[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    difference, scale = (
        float(np.abs(found[finite] - stored[finite]).max()),
        float(np.abs(stored[finite]).max()),
    )
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0 and np.isfinite(difference) else np.inf


def gaps(found: Arrays, stored: Arrays) -> dict[str, float]:
    """The gap of every array of a case, infinite where one of the two has none."""
    return {
        name: gap(found[name], stored[name]) if name in found and name in stored else np.inf
        for name in sorted({*found, *stored})
    }
