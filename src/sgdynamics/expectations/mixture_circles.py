"""Moments of a ReLU network on a Gaussian cluster for any number of units: circles and points.

P, S, B and the risk are averages over circles through pairs of Sobol points, integrated between the
angles at which a unit changes sign. Averages over arcs are continuous in the state, where averages
over points jump each time a kink passes one. D needs only a continuous function and uses points.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Scalar
from sgdynamics.expectations.mixture_moments import (
    ClusterMoments,
    condition_on_kinks,
    softplus_from_sigmoid,
)
from sgdynamics.expectations.nodes import gauss_legendre, lower_root, safe_ratio

ARC_NODES = 5


class _Arcs(NamedTuple):
    """Circles h = mean + a cos(phi) + b sin(phi), cut where a unit changes sign."""

    a: Float[Numeric, "n p"]
    b: Float[Numeric, "n p"]
    starts: Float[Numeric, "n arcs"]
    lengths: Float[Numeric, "n arcs"]


def _cut_circles(
    points: Float[Numeric, "n m"], mean: Float[Numeric, " p"], covariance: Float[Numeric, "p p"]
) -> _Arcs:
    width = mean.shape[0]
    root = lower_root(covariance)
    # two independent normals span a circle of which each point is a sample of h - mean
    a, b = points[:, :width] @ root.T, points[:, width:] @ root.T
    half_width, centre = _positive_arc(a, b, mean)
    turn = 2 * np.pi
    ends = [jnp.zeros((points.shape[0], 1)), jnp.full((points.shape[0], 1), turn)]
    cuts = [jnp.mod(centre + half_width, turn), jnp.mod(centre - half_width, turn)]
    edges = jnp.sort(jnp.concatenate([*ends, *cuts], axis=1), axis=1)
    return _Arcs(a, b, edges[:, :-1], jnp.diff(edges, axis=1))


def _positive_arc(
    a: Float[Numeric, "n p"], b: Float[Numeric, "n p"], mean: Float[Numeric, " p"]
) -> tuple[Float[Numeric, "n p"], Float[Numeric, "n p"]]:
    """Half the width and the centre of the arc on which mean + a cos + b sin > 0.

    The amplitude is sqrt(a^2 + b^2): the arc is empty or the whole circle if |mean| exceeds it.
    """
    squared = a**2 + b**2
    level = -mean / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))
    crossed = (jnp.abs(level) < 1) & (squared > 0)
    whole_or_empty = jnp.where(mean > 0, np.pi, 0.0)
    half_width = jnp.where(crossed, jnp.arccos(jnp.where(crossed, level, 0.0)), whole_or_empty)
    return half_width, jnp.arctan2(b, jnp.where(squared > 0, a, 1.0))


def circle_moments(
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> ClusterMoments:
    """Moments of one cluster, with one replicate of the "circles" and "points"."""
    arcs = _cut_circles(nodes["circles"], mean, covariance)
    node, weight = gauss_legendre(ARC_NODES)
    # nodes (circle, arc, node): within an arc no unit changes sign
    phi = arcs.starts[..., None] + arcs.lengths[..., None] * node
    weights = (arcs.lengths[..., None] * weight).reshape(-1) / (2 * np.pi * phi.shape[0])
    turns = jnp.stack([jnp.cos(phi), jnp.sin(phi)]).reshape(2, phi.shape[0], -1, 1)
    h = mean + turns[0] * arcs.a[:, None] + turns[1] * arcs.b[:, None]
    h = h.reshape(-1, mean.shape[0])
    active = (h >= 0).astype(h.dtype)
    f = flip * jnp.maximum(h, 0.0) @ head
    q = jax.nn.sigmoid(f)
    first, second = weights * q, weights * q**2
    # B_ij = E[1_i 1_j q^2] and S_ij = E[1_i 1_j (q - q^2)]
    B = active.T @ (second[:, None] * active)
    S = active.T @ (first[:, None] * active) - B
    # e is continuous, so that points suffice for D. Moving h along its regression on h_i gives
    # samples of h given h_i = 0.
    density = condition_on_kinks(mean, covariance, head).density
    slope = safe_ratio(covariance, jnp.diagonal(covariance))
    fields = mean + nodes["points"] @ lower_root(covariance).T

    def mean_at_kink(i: IntScalar) -> Float[Numeric, ""]:
        at_kink = fields - fields[:, i, None] * slope[:, i]
        # unit i is at its kink and does not contribute to f
        other_heads = jnp.asarray(head).at[i].set(0.0)
        return jnp.mean(jax.nn.sigmoid(flip * (jnp.maximum(at_kink, 0.0) @ other_heads)))

    at_kinks = jax.lax.map(mean_at_kink, jnp.arange(mean.shape[0]))
    risk = weights @ softplus_from_sigmoid(f, q)
    return ClusterMoments(flip * first @ active, flip * density * at_kinks, S, B, risk)
