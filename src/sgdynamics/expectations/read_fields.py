"""Samples from what a loss reads: everything else is Gaussian given that.

The normals v of a sample (Y of its fields and xi of its draws) have the covariance V. The loss
reads g = G v, with Cov g = G V G^T = R R^T. With standard normals zeta, g = R zeta and

    E[v | g] = B zeta,   B = V G^T R^-T,   Cov(v | g) = V - B B^T,

the same for all g. Only zeta needs points; the rest enters by its conditional mean and covariance.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations.interface import Overlaps
from sgdynamics.expectations.nodes import lower_root, solve_forward, times_small
from sgdynamics.expectations.weighted_points import Points, UnreadCovariance, root_order
from sgdynamics.problems.problem import Structure


def read_fields(
    structure: Structure,
    zeta: Float[Numeric, "n read"],
    overlaps: Overlaps,
    parameters: Parameters,
    case: dict[str, Numeric],
    weights: Float[Numeric, " n"] | None = None,
) -> Points:
    """Samples at points zeta of what the loss reads, of equal weights by default."""
    sample, p, k, fields = structure.sample, structure.width, structure.signals, structure.fields
    tokens, free, dependence = (
        sample.tokens.inputs_per_sample,
        sample.sampled_normals,
        structure.dependence,
    )
    assert dependence is not None
    count, size, order = zeta.shape[0], tokens * fields, root_order(structure)
    inverse_order = np.argsort(order)
    root = lower_root(overlaps.covariance[order][:, order])
    correlation = parameters["token_correlation"] if sample.tokens.correlated else jnp.eye(tokens)
    V = jnp.zeros((size + free, size + free))
    V = V.at[:size, :size].set(jnp.kron(correlation, jnp.eye(fields)))
    V = V.at[size:, size:].set(jnp.eye(free))
    slopes = _mean_slopes(structure, parameters, case) if dependence.means_are_affine else None
    # (fields token by token, draws) = W v
    fields_of_y = jnp.kron(jnp.eye(tokens), root[inverse_order])
    fields_of_draws = jnp.zeros((size, free))
    if slopes is not None:
        gram = jnp.sum(overlaps.blocks, axis=0)[p:]
        fields_of_draws = jnp.einsum("lrj,rf->lfj", slopes, gram).reshape(size, free)
    W = jnp.block([[fields_of_y, fields_of_draws], [jnp.zeros((free, size)), jnp.eye(free)]])
    G = jnp.asarray(dependence.rows) @ W
    # B = V G^T R^-T by forward substitution with R, also if Cov g is singular
    B = solve_forward(lower_root(G @ V @ G.T), G @ V).T
    # conditional means of all normals given g = R zeta
    v = times_small(zeta, B.T)
    case = {
        name: jnp.broadcast_to(value, (count, *np.shape(value))) for name, value in case.items()
    }
    draws = sample.draw(parameters, v[:, size:], case)
    means = sample.mean_coefficients(parameters, draws)
    z = v[:, :size].reshape(-1, fields)
    values = times_small(z, root.T)[:, inverse_order]
    if means is not None:
        means = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k)).reshape(-1, k)
        values = values + overlaps.means(means)
    residual = V - B @ B.T  # Cov(v | g)
    own = residual[:size, :size].reshape(tokens, fields, tokens, fields)
    unread = UnreadCovariance(own)
    if slopes is not None and free:
        # the means are affine in the draws: their covariances follow from those of the draws
        of_draws = residual[size:, :size].reshape(free, tokens, fields)
        unread = UnreadCovariance(
            own,
            jnp.einsum("lrj,ij,msi->lrms", slopes, residual[size:, size:], slopes),
            jnp.einsum("lrj,jtc->lrtc", slopes, of_draws),
        )
    weights = jnp.full(count, 1.0 / count, zeta.dtype) if weights is None else weights
    return Points(
        root, z, values[:, :p], values[:, p:], means, sample.loss_argument(draws), weights, unread
    )


def _mean_slopes(
    structure: Structure, parameters: Parameters, case: dict[str, Numeric]
) -> Float[Numeric, "tokens K free"] | None:
    """Derivatives of the means of the inputs with respect to the draws; None for centred inputs."""
    sample = structure.sample
    if sample.centred:
        return None

    def means(xi: Float[Numeric, " free"]) -> Float[Numeric, "..."]:
        coefficients = sample.mean_coefficients(parameters, sample.draw(parameters, xi, case))
        assert coefficients is not None  # the inputs are not centred
        return jnp.broadcast_to(coefficients, (*sample.tokens.shape, structure.signals))

    # the means are affine in the draws: the derivative at 0 is the derivative everywhere
    slopes = jax.jacfwd(means)(jnp.zeros(sample.sampled_normals))
    return slopes.reshape(
        sample.tokens.inputs_per_sample, structure.signals, sample.sampled_normals
    )
