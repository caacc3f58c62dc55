"""The noise of one step of a path of the SDE, from the gradients of fresh samples.

With fresh samples x_s, independent normals g_s and the increment u(x) of the overlaps due to one
sample, the sum (1/sqrt(S)) sum_s g_s (u(x_s) - E[u]) has the covariance Sigma = Cov(u) exactly.
Here u is represented by the increments of the rows and by h h^T (`sde.scheme`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, RandomKey, Scalar
from sgdynamics.base.random import normals_and_uniforms
from sgdynamics.expectations.nodes import solve_forward
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.expectations.sampled import parameters_with_overlaps
from sgdynamics.problems.problem import Structure
from sgdynamics.problems.tops import head_decay
from sgdynamics.samples import input_covariance
from sgdynamics.samples.inputs import clean_signals, compressed_inputs, sample_scale
from sgdynamics.sde.drift import Drift, SdeState, signal_rows, state_overlaps
from sgdynamics.simulation.sample_moves import sample_moves

# Fresh samples per step. The covariance is exact for any number; more samples make the noise of one
# step more Gaussian.
SAMPLES = 32


class Fluctuations(NamedTuple):
    """Fluctuations of the samples of one step.

    Attributes
    ----------
    h : array, (samples, blocks or 1, p, tokens)
        Gradients h C^(1/2), with C the correlation of the tokens, in units of the scale of a block.
    rows : array, (samples, blocks, p, K + p)
        Increments of the rows minus their mean.
    head : array, (samples, p)
        Increments of the head minus their mean.
    """

    h: Float[Numeric, "... #blocks p tokens"]
    rows: Float[Numeric, "... blocks p fields"]
    head: Float[Numeric, "... p"]


def draw_step_normals(
    structure: Structure, key: RandomKey, has_temperature: bool
) -> tuple[
    Float[Numeric, " samples"],
    Float[Numeric, "samples normals"],
    Float[Numeric, "samples blocks p fields"] | None,
]:
    """Draw the normals of one step.

    They are one weight per sample, the normals of its inputs and draws, and its thermal noise.
    """
    # One call draws all normals, because each call of the generator has a fixed cost.
    inputs = structure.sample.tokens.inputs_per_sample * structure.blocks * structure.fields
    per_sample = inputs + structure.sample.normals_per_sample
    thermal_shape = (structure.blocks, structure.width, structure.fields)
    thermal_shape = thermal_shape if has_temperature else (0,)
    count = SAMPLES * (per_sample + 1 + int(np.prod(thermal_shape)))
    normals, _ = normals_and_uniforms(key, count, 0)
    # The order of the pieces is part of the seeded results.
    g, sample_normals, thermal = jnp.split(normals, [SAMPLES, SAMPLES * (per_sample + 1)])
    thermal = thermal.reshape(SAMPLES, *thermal_shape) if has_temperature else None
    return g, sample_normals.reshape(SAMPLES, -1), thermal


def draw_fluctuations(
    structure: Structure,
    parameters: Parameters,
    algorithm: Parameters,
    path: SdeState,
    drift: Drift,
    normals: Float[Numeric, "samples normals"],
    thermal: Float[Numeric, "samples blocks p fields"] | None,
) -> Fluctuations:
    """Return the increments of fresh samples minus their mean.

    `normals` are the standard normals of the samples and `thermal` their thermal noise, both from
    `draw_step_normals`.
    """
    sample = structure.sample
    # The last normals belong to the named draws, the others to the inputs
    z = normals[:, : -sample.normals_per_sample]
    draws = sample.draw(parameters, normals[:, -sample.normals_per_sample :])
    z = z.reshape(-1, *sample.tokens.shape, structure.blocks, structure.fields)
    if "inside" in parameters:  # a raw block has fewer coordinates than columns
        z = z * parameters["inside"]
    x = compressed_inputs(sample, parameters, z, draws)
    x = x.reshape(SAMPLES * sample.tokens.inputs_per_sample, structure.blocks, structure.fields)
    # Fields lambda = W x and signals lambda* = W* x in the compressed frame
    fields = jnp.einsum("bpm,sbm->sp", path.rows, x)
    along_signals, signal_noise = x[..., : structure.signals], 0.0
    if sample.noisy_inputs:  # the signals are those of the inputs without noise
        share, signal_noise = clean_signals(sample, parameters, draws)
        along_signals = along_signals * share[..., None]
    signals = jnp.einsum("brk,sbk->sr", parameters["frame"], along_signals) + signal_noise
    M, Q = state_overlaps(structure, parameters, path.rows)
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q})
    h, head_gradient, pulls = sample_moves(
        structure,
        parameters_with_overlaps(structure, parameters, overlaps),
        fields,
        signals,
        path.head,
        sample.loss_argument(draws),
    )
    # h x^T of each sample, summed over its tokens
    gradients = h[:, None, :, None] * x[:, :, None, :]
    gradients = gradients.reshape(SAMPLES, -1, *gradients.shape[1:]).sum(axis=1)
    if pulls is not None:
        gradients = gradients + jnp.einsum(
            "sbic,bcm->sbim" if structure.loss.moves_by_block else "sic,bcm->sbim",
            pulls,
            jnp.concatenate([path.rows, signal_rows(structure, parameters)], axis=1),
        )
    # Subtracting the exact mean keeps the noise centred for any number of samples
    rows = -(gradients - drift.pull)
    if thermal is not None:
        inside = parameters["inside"][:, None] if "inside" in parameters else 1.0
        rows = rows + thermal * inside
    head = jnp.zeros_like(head_gradient)
    if structure.trained:
        decayed = head_gradient + head_decay(parameters) * path.head
        head = -algorithm["head_rate"] * decayed - drift.head
    # h C^(1/2): the Gram matrix of the step is h C h^T for correlated tokens
    mixed = sample.tokens.correlate_inputs(parameters, h.T).reshape(structure.width, SAMPLES, -1)
    mixed = jnp.moveaxis(mixed, 0, 1)[:, None]
    if sample.noisy_inputs or sample.context_spectra:
        # The scale of the inputs varies between samples, relative to the mean eigenvalue
        scale = sample_scale(sample, parameters, draws)
        scale = scale / jnp.sqrt(input_covariance.eigenvalues(parameters))
        mixed = jnp.broadcast_to(scale, (SAMPLES, structure.blocks))[..., None, None] * mixed
    return Fluctuations(mixed, rows, head)


def gram_noise(
    L: Float[Numeric, "blocks p p"],
    h: Float[Numeric, "... #blocks p tokens"],
    root: Float[Numeric, "#blocks p p"],
    growth: Float[Numeric, "blocks 1 1"],
    weights: Float[Numeric, " samples"],
    scale: Scalar,
) -> Float[Numeric, "blocks p p"]:
    """Return the noise of h h^T in the frame of L, X = sum_s w_s eta_s - E[eta^2]/2.

    Here eta = growth L^-1 (h h^T - E[h h^T]) L^-T; the second term compensates the mean of the
    square in X + sqrt(1 + X^2).
    """
    blocks, p, _ = L.shape
    # L^-1 h and L^-1 root for all samples in one triangular solve.
    vectors = jnp.concatenate([jnp.moveaxis(h, 0, 2).reshape(len(root), p, -1), root], axis=-1)
    vectors = jnp.broadcast_to(vectors, (blocks, *vectors.shape[1:]))
    in_frame = jax.vmap(solve_forward)(L, vectors)
    gradients, mean = in_frame[..., :-p].reshape(blocks, p, SAMPLES, -1), in_frame[..., -p:]
    # L^-1 h h^T L^-T of each sample, minus its mean.
    grams = jnp.einsum("bisl,bjsl->sbij", gradients, gradients)
    eta = growth * (grams - mean @ jnp.swapaxes(mean, -1, -2))
    squares = jnp.einsum("sbij,sbjk->bik", eta, eta)
    return jnp.einsum("s,sbij->bij", weights, eta) - scale / (2 * SAMPLES) * squares


def second_order_means(
    structure: Structure,
    parameters: Parameters,
    path: SdeState,
    e: Float[Numeric, "samples blocks p fields"],
    zeta: Float[Numeric, "#samples blocks p p"],
    scale: Scalar,
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    """Return the change of the mean of M and Q due to products of increments, per block.

    It is `scale` times the average over samples. With e_i the increment of row i, zeta_ij that of
    the Gram matrix of the additional columns, s_ij = w_i.e_j + w_j.e_i + zeta_ij, r_i = s_ii/2,
    mu_i = e_i.w* and n_i = 3 r_i^2/2 - |e_i|^2/2,

        free:    Q'' = E[e_i.e_j],
        sphere:  M'' = E[-r_i mu_i + M_i n_i],
                 Q'' = E[e_i.e_j - s_ij (r_i + r_j) + Q_ij (n_i + n_j + r_i r_j)].
    """
    share = scale / e.shape[0]
    # E[e_i.e_j] in each block
    products = jnp.einsum("sbim,sbjm->sbij", e, e)
    if not structure.constraint.fixes_norms:
        return jnp.zeros_like(path.rows[..., : structure.signals]), share * jnp.sum(
            products, axis=0
        )
    M, Q = state_overlaps(structure, parameters, path.rows)
    # s_ij, r_i, n_i and mu_i of the docstring
    across = jnp.einsum("bim,sbjm->sbij", path.rows, e)
    s = across + jnp.swapaxes(across, -1, -2) + zeta
    r = jnp.einsum("sbii->si", s) / 2
    n = 1.5 * r**2 - jnp.einsum("sbii->si", products) / 2
    mu = jnp.einsum("sbim,brm->sbir", e, signal_rows(structure, parameters))
    M2 = -r[:, None, :, None] * mu + M * n[:, None, :, None]
    both = n[:, :, None] + n[:, None, :] + r[:, :, None] * r[:, None, :]
    Q2 = products - s * (r[:, :, None] + r[:, None, :])[:, None] + Q * both[:, None]
    return share * jnp.sum(M2, axis=0), share * jnp.sum(Q2, axis=0)
