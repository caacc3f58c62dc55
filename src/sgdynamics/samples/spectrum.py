"""The covariance of the inputs: an eigenvalue l_b for each block of coordinates, and what follows from it. Nobody else reads them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.arrays import DType, Numbers, Numeric, Scalar


def eigenvalues(numbers: Numbers) -> Float[Numeric, " blocks"]:
    """l_b, (blocks,)."""
    return numbers["eigenvalues"]


def of_blocks(numbers: Numbers, blocks: np.ndarray) -> dict[str, Any]:
    """The numbers of some of the blocks."""
    return {**numbers, "frame": numbers["frame"][blocks], "eigenvalues": numbers["eigenvalues"][blocks]}


def spread(numbers: Numbers, dtype: DType | None = None) -> Float[Numeric, " blocks"]:
    """sqrt(l_b): the standard deviation of a coordinate of each block."""
    root = jnp.sqrt(numbers["eigenvalues"])
    return root if dtype is None else root.astype(dtype)


def coordinate_spread(numbers: Numbers, sizes: np.ndarray) -> np.ndarray:
    """The standard deviation of each of d coordinates."""
    return np.sqrt(np.repeat(numbers["eigenvalues"], sizes))


def variance(numbers: Numbers, blocks: Float[Numeric, "*s blocks i j"]) -> Float[Numeric, "*s i j"]:
    """sum_b l_b X_b: of overlaps (..., blocks, i, j) the covariance of the fields."""
    return (jnp if isinstance(blocks, jnp.ndarray) else np).einsum("b,...bij->...ij", numbers["eigenvalues"], blocks)


def scaled(numbers: Numbers, blocks: Float[Numeric, "... i j"]) -> Float[Numeric, "... i j"]:
    """l_b X_b, for X (..., blocks, i, j)."""
    return numbers["eigenvalues"][:, None, None] * blocks


def growth(numbers: Numbers, shares: Float[Numeric, " blocks"] | None = None) -> Float[Numeric, " blocks"]:
    """l_b f_b: a block's part of |x|^2/d, with f_b its share of the dimensions (its fraction unless given)."""
    return numbers["eigenvalues"] * (numbers["fractions"] if shares is None else shares)


def trace(numbers: Numbers) -> Scalar:
    """sum_b l_b f_b: the mean of |x|^2/d."""
    return numbers["eigenvalues"] @ numbers["fractions"]
