"""Inputs of samples, in the compressed space and in d dimensions."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Int

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.samples.input_covariance import clean_fraction, scale
from sgdynamics.samples.sample import DrawValues, Sample, select_row


class Embedding(NamedTuple):
    """The position of the samples in d dimensions.

    Attributes
    ----------
    scale : array (d,) or (contexts, d)
        Standard deviation of each coordinate.
    axes : array (axes,)
        The coordinates along which the signals may have components.
    signals : array (K, axes)
        These components of the signals.
    """

    scale: Float[Numeric, "*contexts d"]
    axes: Int[Numeric, " axes"]
    signals: Float[Numeric, "K axes"]


def sample_scale(
    sample: Sample, parameters: Parameters, draws: DrawValues
) -> Float[Numeric, "... blocks"]:
    """Standard deviation of a coordinate of each covariance block.

    The shape is (blocks,), or (..., [1,] blocks) where it depends on the context of the sample.
    """
    scales = scale(parameters)
    if not sample.context_spectra:
        return scales
    chosen = select_row(draws["context"], scales, scales.dtype)
    return chosen if sample.tokens.count is None else chosen[..., None, :]


def compressed_inputs(
    sample: Sample, parameters: Parameters, normals: Float[Numeric, "..."], draws: DrawValues
) -> Float[Numeric, "..."]:
    """Inputs in the compressed space from normals (..., [tokens,] blocks, columns).

    The first K columns of a block lie along the signals, in the frame P^(1/2) of their Gram matrix.
    """
    scales = sample_scale(sample, parameters, draws)
    x = sample.tokens.correlate(parameters, normals, -3) * scales[..., None]
    means = sample.mean_coefficients(parameters, draws)
    if means is None:
        return x
    along_signals = jnp.sum(means[..., None, :, None] * parameters["frame"], axis=-2)
    shape = (*along_signals.shape[:-1], x.shape[-1] - sample.signals)
    return x + jnp.concatenate([along_signals, jnp.zeros(shape, x.dtype)], axis=-1)


def inputs_in_space(
    sample: Sample,
    parameters: Parameters,
    normals: Float[Numeric, "..."],
    draws: DrawValues,
    embedding: Embedding,
) -> Float[Numeric, "inputs d"]:
    """Inputs in d dimensions, one per row, from normals (samples, [tokens,] d)."""
    scales = embedding.scale
    if sample.context_spectra:
        scales = select_row(draws["context"], jnp.asarray(scales), normals.dtype)
        scales = scales if sample.tokens.count is None else scales[..., None, :]
    x = sample.tokens.correlate(parameters, normals, -2) * scales
    means = sample.mean_coefficients(parameters, draws)
    if means is not None:
        shift = (means @ embedding.signals).astype(x.dtype)
        x = jnp.asarray(x).at[..., embedding.axes].add(shift)
    return x.reshape(-1, x.shape[-1])


def clean_signals(
    sample: Sample, parameters: Parameters, draws: DrawValues
) -> tuple[Float[Numeric, "... blocks"], Float[Numeric, "... K"]]:
    """The signals of an input without noise, given the noisy input that the student sees.

    For x' = x + sqrt(nu) xi, the conditional law of the signals w*.x given x' has the mean
    sum_b s_b w*_b.x'_b with s_b = l_b/(l_b + nu), and the covariance sum_b nu s_b P_b.

    Returns
    -------
    fraction : array (..., blocks)
        The factors s_b.
    residual : array (..., K)
        A draw of the signals' deviation from that mean.
    """
    fraction, gram = clean_fraction(parameters), jnp.asarray(parameters["gram"])
    covariance = jnp.einsum(
        "...b,bij->...ij",
        parameters["input_noise"] * fraction,
        jnp.broadcast_to(gram, (fraction.shape[-1], *gram.shape[-2:])),
    )
    root = _root(covariance)
    if sample.context_spectra:
        fraction, root = (
            select_row(draws["context"], table, table.dtype) for table in (fraction, root)
        )
    return fraction, jnp.einsum("...ij,...j->...i", root, draws["signal_noise"])


def _root(matrix: Float[Numeric, "... n n"]) -> Float[Numeric, "... n n"]:
    """Some R with R R^T = matrix, which may be singular."""
    if matrix.shape[-1] == 1:
        return jnp.sqrt(matrix)
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))[..., None, :]
