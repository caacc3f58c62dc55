"""Repetitions along an axis: what all runs share is computed once."""

from __future__ import annotations

import numpy as np


def is_repeated(*arrays: np.ndarray) -> bool:
    """Whether each array holds equal entries along its first axis, of more than one entry."""
    return all(
        len(array) > 1 and np.array_equal(array[0], array[-1]) and bool(np.all(array == array[:1]))
        for array in arrays
    )
