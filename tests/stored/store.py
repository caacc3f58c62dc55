"""The file of stored results, with keys `case/array`, and the comparison of results with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_name("results.npz")
RELATIVE = 1e-9  # allowed difference, relative to the largest stored value

Arrays = dict[str, np.ndarray]


def read(path: Path = PATH) -> dict[str, Arrays]:
    """Read the arrays of all cases."""
    cases: dict[str, Arrays] = {}
    if path.exists():
        with np.load(path) as file:
            for key in file.files:
                case, name = key.rsplit("/", 1)
                cases.setdefault(case, {})[name] = file[key]
    return cases


def write(cases: Mapping[str, Arrays], path: Path = PATH) -> None:
    """Write the arrays of all cases.

    The file is replaced in one step, so that an interrupted call leaves the old file.
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        np.savez_compressed(
            file,
            **{f"{case}/{name}": value for case in cases for name, value in cases[case].items()},
        )
    temporary.replace(path)


def gap(values: np.ndarray, stored: np.ndarray) -> float:
    """Largest difference from the stored values, relative to the largest stored absolute value.

    The gap is infinite if shapes, NaNs or infinities differ. A zero among other values is compared
    on their scale; an array of zeros must stay zero.
    """
    values, stored = np.asarray(values), np.asarray(stored)
    if values.shape != stored.shape:
        return np.inf
    finite = np.isfinite(stored)
    if not np.array_equal(values[~finite], stored[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    difference = float(np.abs(values[finite] - stored[finite]).max())
    scale = float(np.abs(stored[finite]).max())
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0 and np.isfinite(difference) else np.inf


def gaps(arrays: Arrays, stored: Arrays) -> dict[str, float]:
    """The gap of each array of a case; infinite for an array that only one of the two has."""
    return {
        name: gap(arrays[name], stored[name]) if name in arrays and name in stored else np.inf
        for name in sorted({*arrays, *stored})
    }
