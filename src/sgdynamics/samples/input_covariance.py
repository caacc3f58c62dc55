"""The covariance of the inputs: an eigenvalue l_b for each block of coordinates, and what follows from it. Nobody else reads them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import DType, Numeric, Parameters, Scalar


def eigenvalues(numbers: Parameters) -> Float[Numeric, " blocks"]:
    """l_b, (blocks,)."""
    return numbers["eigenvalues"]


def fractions(numbers: Parameters) -> Float[Numeric, " blocks"]:
    """f_b, the share of the dimensions, (blocks,)."""
    return numbers["fractions"]


def select_blocks(numbers: Parameters, blocks: np.ndarray) -> dict[str, Any]:
    """The numbers of some of the blocks."""
    found = {
        **numbers,
        "frame": numbers["frame"][blocks],
        "eigenvalues": numbers["eigenvalues"][blocks],
    }
    if "context_eigenvalues" in numbers:
        found["context_eigenvalues"] = numbers["context_eigenvalues"][:, blocks]
    return found


def scale(numbers: Parameters, dtype: DType | None = None) -> Float[Numeric, "*contexts blocks"]:
    """sqrt(l_b), with noise on the inputs sqrt(l_b + nu): the standard deviation of a coordinate of each block; a row for each context
    where these have eigenvalues of their own."""
    found = numbers.get("context_eigenvalues", numbers["eigenvalues"])
    root = jnp.sqrt(found + numbers["input_noise"] if "input_noise" in numbers else found)
    return root if dtype is None else root.astype(dtype)


def clean_fraction(numbers: Parameters) -> Float[Numeric, "*contexts blocks"]:
    """l_b/(l_b + nu): how much of an input that is seen with noise is the input itself."""
    found = numbers.get("context_eigenvalues", numbers["eigenvalues"])
    return found / (found + numbers["input_noise"])


def coordinate_scales(numbers: Parameters, sizes: np.ndarray) -> np.ndarray:
    """The standard deviation of each of d coordinates without noise, a row for each context where these have their own."""
    return np.sqrt(
        np.repeat(numbers.get("context_eigenvalues", numbers["eigenvalues"]), sizes, axis=-1)
    )


def field_covariance(
    numbers: Parameters, blocks: Float[Numeric, "*s blocks i j"]
) -> Float[Numeric, "*s i j"]:
    """sum_b l_b X_b: of overlaps (..., blocks, i, j) the covariance of the fields."""
    return (jnp if isinstance(blocks, jnp.ndarray) else np).einsum(
        "b,...bij->...ij", numbers["eigenvalues"], blocks
    )


def times_eigenvalues(
    numbers: Parameters, blocks: Float[Numeric, "... i j"]
) -> Float[Numeric, "... i j"]:
    """l_b X_b, for X (..., blocks, i, j)."""
    return numbers["eigenvalues"][:, None, None] * blocks


def block_traces(
    numbers: Parameters, shares: Float[Numeric, " blocks"] | None = None
) -> Float[Numeric, " blocks"]:
    """l_b f_b: a block's part of |x|^2/d, with f_b its share of the dimensions (its fraction unless given)."""
    return numbers["eigenvalues"] * (numbers["fractions"] if shares is None else shares)


def trace(numbers: Parameters) -> Scalar:
    """sum_b l_b f_b: the mean of |x|^2/d."""
    return numbers["eigenvalues"] @ numbers["fractions"]
