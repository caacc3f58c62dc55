"""The covariance of the inputs: one eigenvalue l_b per block of coordinates.

All other modules read the eigenvalues through these functions.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import DType, Numeric, Parameters, Scalar


def eigenvalues(parameters: Parameters) -> Float[Numeric, " blocks"]:
    """l_b, (blocks,)."""
    return parameters["eigenvalues"]


def fractions(parameters: Parameters) -> Float[Numeric, " blocks"]:
    """f_b, the fractions of the dimension, (blocks,)."""
    return parameters["fractions"]


def select_blocks(parameters: Parameters, blocks: np.ndarray) -> dict[str, Any]:
    """The parameters of some of the covariance blocks."""
    selected = {
        **parameters,
        "frame": parameters["frame"][blocks],
        "eigenvalues": parameters["eigenvalues"][blocks],
    }
    if "context_eigenvalues" in parameters:
        selected["context_eigenvalues"] = parameters["context_eigenvalues"][:, blocks]
    return selected


def scale(parameters: Parameters, dtype: DType | None = None) -> Float[Numeric, "*contexts blocks"]:
    """Standard deviation of a coordinate per block: sqrt(l_b), or sqrt(l_b + nu) with input noise.

    Contexts with eigenvalues of their own have a row each.
    """
    values = parameters.get("context_eigenvalues", parameters["eigenvalues"])
    root = jnp.sqrt(values + parameters["input_noise"] if "input_noise" in parameters else values)
    return root if dtype is None else root.astype(dtype)


def clean_fraction(parameters: Parameters) -> Float[Numeric, "*contexts blocks"]:
    """l_b/(l_b + nu): the fraction of the variance of a noisy input that is the input's own."""
    values = parameters.get("context_eigenvalues", parameters["eigenvalues"])
    return values / (values + parameters["input_noise"])


def coordinate_scales(parameters: Parameters, sizes: np.ndarray) -> np.ndarray:
    """Standard deviation of each of d coordinates without input noise, possibly per context."""
    return np.sqrt(
        np.repeat(parameters.get("context_eigenvalues", parameters["eigenvalues"]), sizes, axis=-1)
    )


def field_covariance(
    parameters: Parameters, blocks: Float[Numeric, "*s blocks i j"]
) -> Float[Numeric, "*s i j"]:
    """sum_b l_b X_b: the covariance of the fields, given overlaps (..., blocks, i, j)."""
    return (jnp if isinstance(blocks, jnp.ndarray) else np).einsum(
        "b,...bij->...ij", parameters["eigenvalues"], blocks
    )


def field_variances(
    parameters: Parameters, blocks: Float[Numeric, "*s blocks i i"]
) -> Float[Numeric, "*s i"]:
    """The diagonal of `field_covariance`."""
    return (jnp if isinstance(blocks, jnp.ndarray) else np).einsum(
        "b,...bii->...i", parameters["eigenvalues"], blocks
    )


def times_eigenvalues(
    parameters: Parameters, blocks: Float[Numeric, "... i j"]
) -> Float[Numeric, "... i j"]:
    """l_b X_b, for X (..., blocks, i, j)."""
    return parameters["eigenvalues"][:, None, None] * blocks


def block_traces(
    parameters: Parameters, shares: Float[Numeric, " blocks"] | None = None
) -> Float[Numeric, " blocks"]:
    """l_b f_b: the contribution of each block to |x|^2/d; `shares` replace the fractions f_b."""
    return parameters["eigenvalues"] * (parameters["fractions"] if shares is None else shares)


def trace(parameters: Parameters) -> Scalar:
    """sum_b l_b f_b: the mean of |x|^2/d."""
    return parameters["eigenvalues"] @ parameters["fractions"]


def block_sizes(fractions: Float[Numeric, " blocks"], dimension: int) -> np.ndarray:
    """The sizes of blocks with these fractions of the dimension d, by largest remainder."""
    exact = np.asarray(fractions) * dimension
    # The margin keeps rounding of, for instance, 0.3 * 10 from taking a coordinate away.
    sizes = np.floor(exact + 1e-9).astype(np.int64)
    missing = dimension - int(sizes.sum())
    largest_remainders = np.argsort(-(exact - sizes), kind="stable")[:missing]
    sizes[largest_remainders] += 1
    return sizes
