"""The diffusive limit: an SDE whose noise has the covariance of one increment.

Let u(x) be the increment of s = (M, Q, a) due to one sample, per unit of lr/d. In the time
t = lr steps/d,

    ds = E[u] dt + sqrt(lr/(d B)) Sigma^(1/2) dB_t,      Sigma = Cov(u)   (lr/B replaces lr in u)
    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) h h^T,
    u_a = - head_rate dloss/da
    (sphere: u_M -= M u_Qii/2,  u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2).

Paths are integrated in the factor form W = [T | L], so that W W^T stays positive by construction:

- The drift is integrated by Heun's method: -E[h x^T] acts on the rows, and 2 p additional columns
  carry the mean (lr/B) E[h h^T] as their Gram matrix.
- A temperature T adds noise of variance 2 T/d to the rows and, outside of them, columns whose Gram
  matrix grows by 2 T f_b, with f_b the fraction of block b.
- The noise needs no square root of Sigma: with fresh samples x_s and normals g_s, the sum
  (1/sqrt(S)) sum_s g_s (u(x_s) - E[u]) has covariance Sigma exactly, at any width and overlaps.
- The part of the noise due to h h^T acts on the folded factor, L L^T -> L (X + sqrt(1 + X^2)) L^T
  with X = eta - E[eta^2]/2. This has the noise L eta L^T to first order and the mean L L^T to
  second order, is positive for every X, and grows no faster than X.

A covariance block with no more coordinates than columns ("raw") is integrated in its coordinates.
It has nothing outside of them, its noise is that of the samples, and products of the noise with
itself are kept (in a block of one coordinate there is nothing else).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters, RandomKey, Scalar
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import solve_forward
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.sde.drift import Drift, SdeState, drift_at_state
from sgdynamics.sde.fluctuations import (
    SAMPLES,
    draw_fluctuations,
    draw_step_normals,
    gram_noise,
    second_order_means,
)

# Lower bound of lr/B, so that thermal noise in units of sqrt(lr/(d B)) is not 0/0.
SMALLEST = 1e-100


def sde_step(
    structure: Structure,
    quadrature: Quadrature,
    higher_order: bool,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    rates: Parameters,
    path: SdeState,
    length: Scalar,
    key: RandomKey,
) -> SdeState:
    """Advance a path by one step of the given length in t.

    `rates` contains noise_rate = lr/B, inverse_dimension = 1/d, shares (block sizes over d),
    outside (the same without the columns of the frame), the amplitude of the noise, and optionally
    the temperature and the raw blocks.
    """
    k, raw = structure.signals, rates.get("raw")
    drift, drifted, columns = _heun_step(
        partial(drift_at_state, structure, quadrature, nodes, parameters, algorithm, rates),
        path,
        length,
    )
    g, normals, thermal = draw_step_normals(structure, key, "temperature" in rates)
    if thermal is not None:
        # in units of the increment of one sample, sqrt(lr/(d B))
        noise_rate = jnp.maximum(rates["noise_rate"], SMALLEST)
        thermal = jnp.sqrt(2 * rates["temperature"] / noise_rate) * thermal
    noise = draw_fluctuations(structure, parameters, algorithm, path, drift, normals, thermal)
    scale = rates["amount"] * rates["noise_rate"] * rates["inverse_dimension"] * length
    # sum_s w_s (u(x_s) - E[u]) has the covariance scale Sigma, because the g_s are independent
    weights = jnp.sqrt(scale / SAMPLES) * g
    rows = drifted.rows + jnp.einsum("s,sbim->bim", weights, noise.rows)
    head = drifted.head + weights @ noise.head
    # fold the additional columns back into p columns with the same Gram matrix
    L = _fold(jnp.concatenate([rows[..., k:], columns], axis=-1))
    if raw is not None:  # a raw block has nothing outside; its L is not used but must be regular
        L = jnp.where(raw[:, None, None], jnp.eye(structure.width), L)
    # The noise of h h^T has all of |x|^2, not only the part outside of the frame.
    growth = rates["noise_rate"] * input_covariance.block_traces(parameters, rates["shares"])
    growth = growth[:, None, None]
    X = gram_noise(L, noise.h, drift.root, growth, weights, scale)
    mean_gram = drift.root @ jnp.swapaxes(drift.root, -1, -2)
    if higher_order:
        # products of the mean increment with itself: the difference between a step of length lr/d
        # and the flow
        mean_rows = -(drift.pull + parameters["weight_decay"] * path.rows)[None]
        step = length * algorithm["lr"] * rates["inverse_dimension"]
        M2, Q2 = second_order_means(
            structure, parameters, path, mean_rows, (growth * mean_gram)[None], step
        )
    else:
        # Ito correction: the products of the noise, which the factor form adds, are taken off
        gram = growth * (jnp.einsum("scil,scjl->scij", noise.h, noise.h) - mean_gram)
        M2, Q2 = second_order_means(structure, parameters, path, noise.rows, gram, -scale)
    return SdeState(_apply_increments(structure, parameters, rows, L, X, M2, Q2, raw), head)


def _heun_step(
    drift_at: Callable[[SdeState, Float[Numeric, "blocks p p"]], Drift],
    path: SdeState,
    length: Scalar,
) -> tuple[Drift, SdeState, Float[Numeric, "blocks p columns"]]:
    """Return the drift at a state, the state after one Heun step, and the additional columns.

    The Gram matrix of the (blocks, p, 2 p) columns is the integral of the sources over the step.
    """
    blocks, p, _ = path.rows.shape
    drift = drift_at(path, jnp.zeros((blocks, p, p)))
    gram = length * drift.sources @ jnp.swapaxes(drift.sources, -1, -2)
    # Euler predictor, then the average of the drifts at both ends (Heun)
    euler = SdeState(path.rows + length * drift.rows, path.head + length * drift.head)
    end_drift = drift_at(euler, gram)
    rows = path.rows + length / 2 * (drift.rows + end_drift.rows)
    head = path.head + length / 2 * (drift.head + end_drift.head)
    # The trapezoidal rule for the Gram matrix, as a sum of squares: the sources at the start of the
    # step are propagated to its end, where the others are added.
    propagated = (jnp.eye(p) - length * end_drift.columns) @ drift.sources
    columns = jnp.concatenate([propagated, end_drift.sources], axis=-1)
    return drift, SdeState(rows, head), jnp.sqrt(length / 2) * columns


def _apply_increments(
    structure: Structure,
    parameters: Parameters,
    before: Float[Numeric, "blocks p fields"],
    L: Float[Numeric, "blocks p p"],
    X: Float[Numeric, "blocks p p"],
    M2: Float[Numeric, "blocks p K"],
    Q2: Float[Numeric, "blocks p p"],
    raw: Bool[Numeric, " blocks"] | None = None,
) -> Float[Numeric, "blocks p fields"]:
    """Return rows [T | L] with M increased by M2, Q by Q2, and L L^T by L X L^T to first order.

    L L^T is multiplied by X + sqrt(1 + X^2) = exp(arcsinh X), so that Q stays positive. Raw blocks,
    whose coordinates have been integrated already, are returned unchanged.
    """
    T, frame = before[..., : structure.signals], parameters["frame"]
    if raw is not None:
        frame = jnp.where(raw[:, None, None], jnp.eye(structure.signals), frame)
    # T2 F^T = M2 with the frame F of the signals
    T2 = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(M2, -1, -2)), -1, -2)
    cross = T @ jnp.swapaxes(T2, -1, -2)
    # L^-1 (Q2 - T T2^T - T2 T^T) L^-T: the part of Q2 that is not due to T
    half = jax.vmap(solve_forward)(L, Q2 - cross - jnp.swapaxes(cross, -1, -2))
    X = X + jax.vmap(solve_forward)(L, jnp.swapaxes(half, -1, -2))
    # exp(arcsinh X) by the eigenvalues of the symmetric X; half of the exponent for the factor
    values, vectors = jnp.linalg.eigh((X + jnp.swapaxes(X, -1, -2)) / 2)
    L = L @ (vectors * jnp.exp(jnp.arcsinh(values) / 2)[:, None, :])
    rows = jnp.concatenate([T + T2, L], axis=-1)
    if raw is not None:
        rows = jnp.where(raw[:, None, None], before, rows)
    return structure.constraint.project_rows(rows, axes=(0, 2))


def _fold(columns: Float[Numeric, "blocks p columns"]) -> Float[Numeric, "blocks p p"]:
    """Return a lower-triangular L with the Gram matrix of the columns, by a QR decomposition."""
    return jnp.swapaxes(jnp.linalg.qr(jnp.swapaxes(columns, -1, -2), mode="r"), -1, -2)
