"""Padding of arrays to a power of two, so that nearby sizes share one compiled program."""

from __future__ import annotations

import numpy as np


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


def pad_with_last(values: np.ndarray, size: int | None = None) -> np.ndarray:
    """Repeat the last value up to this size, by default up to the next power of two."""
    size = power_of_two(len(values)) if size is None else size
    return np.concatenate([values, np.full(size - len(values), values[-1])])
