"""Samples from what a loss reads of them: everything else is Gaussian given that, and enters by its mean and covariance.

A sample's normals v (Y of its fields, and xi of its draws) have the covariance V. What is read is g = G v, Cov g = G V G^T = R R^T. With
standard normals zeta, g = R zeta: E[v | g] = B zeta with B = V G^T R^-T, and Cov(v | g) = V - B B^T, the same for all g.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations.interface import Overlaps
from sgdynamics.expectations.nodes import lower_root, solve_forward
from sgdynamics.expectations.weighted_points import Hidden, Points, order_of
from sgdynamics.problems.problem import Structure


def read_fields(
    structure: Structure,
    zeta: Float[Numeric, "n read"],
    overlaps: Overlaps,
    parameters: Parameters,
    case: dict[str, Any],
    weights: Float[Numeric, " n"] | None = None,
) -> Points:
    """Samples at points of what is read (`structure.reading`); all weigh the same unless weights are given."""
    sample, p, k, fields = structure.sample, structure.width, structure.signals, structure.fields
    tokens, free, reading = sample.inputs_a_sample, sample.free, structure.dependence
    assert reading is not None
    count, size, order = zeta.shape[0], tokens * fields, order_of(structure)
    root = lower_root(overlaps.covariance[order][:, order])
    correlation = parameters["token_correlation"] if sample.correlated else jnp.eye(tokens)
    V = (
        jnp.zeros((size + free, size + free))
        .at[:size, :size]
        .set(jnp.kron(correlation, jnp.eye(fields)))
    )
    V = V.at[size:, size:].set(jnp.eye(free))
    shares = _of_draws(structure, parameters, case) if reading.means_are_affine else None
    # fields (token by token) and draws as functions of v
    turned = jnp.kron(jnp.eye(tokens), root[np.argsort(order)])
    along = jnp.zeros((size, free))
    if shares is not None:
        along = jnp.einsum("lrj,rf->lfj", shares, jnp.sum(overlaps.blocks, axis=0)[p:]).reshape(
            size, free
        )
    W = jnp.block([[turned, along], [jnp.zeros((free, size)), jnp.eye(free)]])
    G = jnp.asarray(reading.rows) @ W
    B = solve_forward(lower_root(G @ V @ G.T), G @ V).T
    v = zeta @ B.T
    every = {
        name: jnp.broadcast_to(value, (count, *np.shape(value))) for name, value in case.items()
    }
    draws = sample.drawn(parameters, v[:, size:], every)
    means = sample.mean_coefficients(parameters, draws)
    z = v[:, :size].reshape(-1, fields)
    values = (z @ root.T)[:, np.argsort(order)]
    if means is not None:
        means = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k)).reshape(-1, k)
        values = values + overlaps.means(means)
    rest = V - B @ B.T
    own = rest[:size, :size].reshape(tokens, fields, tokens, fields)
    hidden = Hidden(own)
    if shares is not None and free:
        both = jnp.einsum("lrj,jtc->lrtc", shares, rest[size:, :size].reshape(free, tokens, fields))
        hidden = Hidden(
            own, jnp.einsum("lrj,ij,msi->lrms", shares, rest[size:, size:], shares), both
        )
    weights = jnp.full(count, 1.0 / count, zeta.dtype) if weights is None else weights
    return Points(
        root, z, values[:, :p], values[:, p:], means, sample.given(draws), weights, hidden
    )


def _of_draws(structure: Structure, parameters: Parameters, case: dict[str, Any]) -> Any:
    """How the means of the inputs on the signals depend on the draws, (tokens, K, free); None where there are none."""
    sample = structure.sample
    if sample.centred:
        return None
    shape = (sample.inputs_a_sample, structure.signals, sample.free)

    def one(xi: Float[Numeric, " free"]) -> Any:
        means: Any = sample.mean_coefficients(parameters, sample.drawn(parameters, xi, case))
        return jnp.broadcast_to(means, (*sample.token_shape, structure.signals))

    return jax.jacfwd(one)(jnp.zeros(sample.free)).reshape(shape)
