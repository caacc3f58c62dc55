"""The covariance of the inputs: an eigenvalue l_b for each block of coordinates, and what follows from it. Nobody else reads them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def eigenvalues(numbers: Any) -> Any:
    """l_b, (blocks,)."""
    return numbers["eigenvalues"]


def spread(numbers: Any, dtype: Any = None) -> Any:
    """sqrt(l_b): the standard deviation of a coordinate of each block."""
    root = jnp.sqrt(numbers["eigenvalues"])
    return root if dtype is None else root.astype(dtype)


def coordinate_spread(numbers: Any, sizes: np.ndarray) -> np.ndarray:
    """The standard deviation of each of d coordinates."""
    return np.sqrt(np.repeat(numbers["eigenvalues"], sizes))


def variance(numbers: Any, blocks: Any) -> Any:
    """sum_b l_b X_b: of overlaps (..., blocks, i, j) the covariance of the fields."""
    return (jnp if isinstance(blocks, jnp.ndarray) else np).einsum("b,...bij->...ij", numbers["eigenvalues"], blocks)


def scaled(numbers: Any, blocks: Any) -> Any:
    """l_b X_b, for X (..., blocks, i, j)."""
    return numbers["eigenvalues"][:, None, None] * blocks


def growth(numbers: Any, shares: Any = None) -> Any:
    """l_b f_b: a block's part of |x|^2/d, with f_b its share of the dimensions (its fraction unless given)."""
    return numbers["eigenvalues"] * (numbers["fractions"] if shares is None else shares)


def trace(numbers: Any) -> Any:
    """sum_b l_b f_b: the mean of |x|^2/d."""
    return numbers["eigenvalues"] @ numbers["fractions"]
