"""A ReLU network under logistic loss by nested half-lines, for units that are not nearly parallel.

h_1 is cut at 0, and each side has a Gauss rule of the normal truncated there; then h_2 given h_1,
and so on. The integrand is smooth on every orthant, so that few nodes suffice. They do not resolve
P(h_j > 0 | h_i) where it is a steep step; there `mixture_pairs` integrates pairs of units. The
difference between two numbers of nodes decides which of the two to use.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations import half_lines
from sgdynamics.expectations.nodes import lower_root

# Difference between two numbers of nodes below which half-lines are used, and above which pairs
# are.
TRUSTED, DOUBTED = 1e-7, 1e-5


class OrthantMoments(NamedTuple):
    """Moments of q = sigmoid(flip f) on orthants, with 1_i = 1{h_i >= 0}."""

    first: Float[Numeric, " K"]  # E[1_i q]
    both: Float[Numeric, "K K"]  # E[1_i 1_j q]
    squares: Float[Numeric, "K K"]  # E[1_i 1_j q^2]
    risk: Float[Numeric, ""]  # E[softplus(flip f)]
    total: Float[Numeric, ""]  # E[q]


def orthant_moments(
    table: Float[Numeric, "l k m"],
    mean: Float[Numeric, " n"],
    covariance: Float[Numeric, "n n"],
    head: Float[Numeric, " n"],
    flip: Scalar,
) -> OrthantMoments:
    """Moments over h ~ N(mean, covariance), with the half-line rule `table` in every dimension."""
    last = mean.shape[0] - 1
    root = lower_root(covariance)
    # conditional means of all units (first axis), weights and output f, given the coordinates so
    # far
    centres, weights, f = mean[:, None], jnp.ones(1), jnp.zeros(1)
    for i in range(last):
        # a unit without variance is at its mean, on one side of 0
        edge = -half_lines.standardise(centres[i], root[i, i])
        z, node_weights = half_lines.both(table, edge)
        fields = centres[..., None, None] + root[:, i, None, None, None] * z
        relu = jnp.stack([fields[i, :, 0], jnp.zeros_like(fields[i, :, 1])], axis=1)
        f = (f[:, None, None] + head[i] * relu).reshape(-1)
        weights = (weights[:, None, None] * node_weights).reshape(-1)
        centres = fields.reshape(last + 1, -1)
    # The last unit needs nodes only where it is active. They are the first axis: sums over a short
    # last axis are slow.
    centre, scale = centres[last], root[last, last]
    nodes, node_weights = half_lines.upper(table, -half_lines.standardise(centre, scale))
    active_mass, inactive_mass = node_weights.T, 1 - jnp.sum(node_weights, axis=-1)
    f_active = f + head[last] * (centre + scale * nodes.T)
    q_active, q_inactive = jax.nn.sigmoid(flip * f_active), jax.nn.sigmoid(flip * f)
    # axes: (side, node) of each other unit; sums over nodes leave the signs
    shape, node_axes = (2, nodes.shape[-1]) * last, tuple(range(1, 2 * last, 2))

    def sum_nodes(active: Float[Numeric, "n m"], inactive: Float[Numeric, " m"]) -> Numeric:
        sides = [jnp.sum(active_mass * active, axis=0), inactive_mass * inactive]
        return jnp.stack(
            [
                jnp.sum((weights * side).reshape(shape), axis=node_axes).reshape(-1)
                for side in sides
            ],
            axis=-1,
        ).reshape(-1)

    active = np.array(list(itertools.product((1.0, 0.0), repeat=last + 1)))
    means, squares = sum_nodes(q_active, q_inactive), sum_nodes(q_active**2, q_inactive**2)
    both_active = active.T[:, None, :] * active.T[None]
    softplus = sum_nodes(jax.nn.softplus(flip * f_active), jax.nn.softplus(flip * f))
    return OrthantMoments(
        means @ active,
        both_active @ means,
        both_active @ squares,
        jnp.sum(softplus),
        jnp.sum(means),
    )


def doubt(coarse: OrthantMoments, fine: OrthantMoments) -> Float[Numeric, ""]:
    """0 where two numbers of nodes agree and 1 where they do not.

    Smooth in between (a cubic in the logarithm of the difference), so that an integrator sees no
    jump.
    """
    gap = jnp.maximum(
        jnp.max(jnp.abs(coarse.both - fine.both)), jnp.max(jnp.abs(coarse.squares - fine.squares))
    )
    position = jnp.log(jnp.maximum(gap, 1e-300) / TRUSTED) / np.log(DOUBTED / TRUSTED)
    x = jnp.clip(position, 0.0, 1.0)
    return x**2 * (3 - 2 * x)
