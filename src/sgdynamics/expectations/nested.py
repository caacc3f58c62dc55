"""Expectations of a ReLU network under logistic loss by half-lines within half-lines, for units that are not nearly parallel.

h_1 is cut at 0 and each side has a Gauss rule of the normal truncated there; then h_2 given h_1, and so on: on every orthant the
integrand is smooth, so few nodes go far. What they cannot resolve is P(h_j > 0 | h_i) where it is a steep step; there
`expectations.mixtures` has a rule for pairs. Two numbers of nodes tell which of the two to believe.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations import half_lines
from sgdynamics.expectations.nodes import lower_root

TRUSTED, DOUBTED = (
    1e-7,
    1e-5,
)  # differences of two numbers of nodes below which half-lines are taken, and above which pairs are


class Orthants(NamedTuple):
    """E[1_i q] (K,), E[1_i 1_j q] and E[1_i 1_j q^2] (K, K), E[softplus(flip f)], E[q], with q = sigmoid(flip f)."""

    first: Any
    both: Any
    squares: Any
    risk: Any
    total: Any


def orthants(
    table: Float[Numeric, "l k m"],
    mean: Float[Numeric, " n"],
    covariance: Float[Numeric, "n n"],
    head: Float[Numeric, " n"],
    flip: Scalar,
) -> Orthants:
    """Over N(mean, covariance), with the half-line rule `table` in every dimension."""
    width = mean.shape[0]
    root = lower_root(covariance)
    centres, weights, f = mean[None], jnp.ones(1), jnp.zeros(1)
    for i in range(width):
        spread = root[i, i]
        z, share = half_lines.both(table, -half_lines.standardised(centres[:, i], spread))
        rest = centres[:, None, None] + z[..., None] * root[:, i]
        positive = jnp.stack([rest[:, 0, :, i], jnp.zeros_like(rest[:, 1, :, i])], axis=1)
        # a unit without spread is at its mean, on one side or the other
        f = (f[:, None, None] + head[i] * positive).reshape(-1)
        weights = (weights[:, None, None] * share).reshape(-1)
        centres = rest.reshape(-1, width)
    q = jax.nn.sigmoid(flip * f)
    nodes = share.shape[-1]
    shape, over = (2, nodes) * width, tuple(range(1, 2 * width, 2))

    def by_signs(values: Float[Numeric, " n"]) -> Float[Numeric, " m"]:
        return jnp.sum((weights * values).reshape(shape), axis=over).reshape(-1)

    active = np.array(list(itertools.product((1.0, 0.0), repeat=width)))
    one, two = by_signs(q), by_signs(q**2)
    pairs = active.T[:, None, :] * active.T[None]
    return Orthants(
        one @ active, pairs @ one, pairs @ two, weights @ jax.nn.softplus(flip * f), jnp.sum(one)
    )


def doubt(coarse: Orthants, fine: Orthants) -> Float[Numeric, ""]:
    """0 where two numbers of nodes agree, 1 where they do not, and smooth in between, so that an integrator sees no jump."""
    gap = jnp.maximum(
        jnp.max(jnp.abs(coarse.both - fine.both)), jnp.max(jnp.abs(coarse.squares - fine.squares))
    )
    place = jnp.log(jnp.maximum(gap, 1e-300) / TRUSTED) / np.log(DOUBTED / TRUSTED)
    x = jnp.clip(place, 0.0, 1.0)
    return x**2 * (3 - 2 * x)
