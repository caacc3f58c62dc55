"""Grids over a few standard normals, cut along planes at which a function has a kink or a jump.

The last coordinate is cut where it meets each plane, given the others. What is left is smooth in the others but where two of these places
meet, or a plane does not involve the last coordinate: planes of one dimension less, along which the next coordinate is cut in turn. So
every piece of every line is smooth, and Gauss-Legendre nodes on it converge fast, for any planes in up to three dimensions. Coordinates
are turned first, so that those along which nothing is cut come last, where Gauss-Hermite nodes do.
"""

from __future__ import annotations

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.nodes import (
    gauss_hermite_grid,
    gauss_legendre,
    product_rule,
    safe_ratio,
)

REACH = 8.3  # a standard normal is beyond with probability 1e-16
NODES = {
    (1, 1): 32,
    (2, 1): 32,
    (2, 2): 24,
    (3, 1): 24,
    (3, 2): 14,
}  # of a piece, by dimensions and how many of them are cut
UNCUT = {0: 1, 1: 40, 2: 18}  # nodes along each of so many others


def turned_grid(
    normals: Float[Numeric, "planes K"],
    levels: Float[Numeric, " planes"],
    cut: int,
    *,
    coarse: bool = False,
) -> tuple[Float[Numeric, "m K"], Float[Numeric, " m"]]:
    """Points (count, n) and weights of n standard normals, cut along planes whose normals (m, n) span the first `cut` of them.

    `coarse` takes three quarters of the nodes, for an error estimate.
    """
    dimensions = normals.shape[1]
    share = 3 if coarse else 4
    turn = _turn(normals, cut, dimensions)
    inner, weights = cut_grid(
        (normals @ turn)[:, :cut], levels, NODES[dimensions, cut] * share // 4
    )
    others = dimensions - cut
    if others == 0:
        return inner @ turn.T, weights
    points, weights = product_rule(
        jnp, (inner, weights), gauss_hermite_grid(UNCUT[others] * share // 4, others)
    )
    return points @ turn.T, weights


def _turn(normals: Float[Numeric, "n K"], cut: int, dimensions: int) -> Float[Numeric, "K K"]:
    """An orthogonal matrix whose first `cut` columns span the normals, smooth in them so that derivatives go through it."""
    if cut == dimensions:
        return jnp.eye(dimensions)
    first = normals[0] / jnp.linalg.norm(normals[0])
    if cut == 1:
        # the reflection that takes the first axis to it, with the sign that does not cancel
        sign = jnp.where(first[0] < 0, -1.0, 1.0)
        v = first.at[0].add(sign)
        return jnp.eye(dimensions) - 2 * jnp.outer(v, v) / (v @ v)
    # the normal that is least parallel to the first
    rest = normals - (normals @ first)[:, None] * first
    second = rest[jnp.argmax(jnp.sum(rest**2, axis=1))]
    second = second / jnp.linalg.norm(second)
    return jnp.stack([first, second, jnp.cross(first, second)], axis=1)


def cut_grid(
    normals: Float[Numeric, "planes n"], levels: Float[Numeric, " planes"], nodes: int
) -> tuple[Float[Numeric, "m n"], Float[Numeric, " m"]]:
    """Points (count, n) and weights of n standard normals, cut along the planes normals (m, n) . z = levels (m)."""
    count, dimensions = normals.shape
    if dimensions == 0:
        return jnp.zeros((1, 0)), jnp.ones(1)
    own, rest = normals[:, -1], normals[:, :-1]
    pairs = np.array(list(combinations(range(count), 2)), dtype=int).reshape(-1, 2)
    i, j = pairs[:, 0], pairs[:, 1]
    # where two cuts of the last coordinate meet; a plane without it is met by the others there, and stands for itself too
    alone = jnp.where(own == 0, 1.0, 0.0)
    projected = jnp.concatenate(
        [alone[:, None] * rest, own[j, None] * rest[i] - own[i, None] * rest[j]]
    )
    offsets = jnp.concatenate([alone * levels, own[j] * levels[i] - own[i] * levels[j]])
    outer, weights = (
        cut_grid(projected, offsets, nodes)
        if dimensions > 1
        else cut_grid(jnp.zeros((0, 0)), jnp.zeros(0), nodes)
    )

    def line(point: Float[Numeric, " n"]) -> tuple[Float[Numeric, " m"], Float[Numeric, " m"]]:
        place = safe_ratio(levels - rest @ point, own)
        cuts = jnp.clip(jnp.where(own == 0, REACH, place), -REACH, REACH)
        edges = jnp.sort(jnp.concatenate([jnp.array([-REACH, 0.0, REACH]), cuts]))
        node, weight = gauss_legendre(nodes)
        lengths = jnp.diff(edges)[:, None]
        z = (edges[:-1, None] + lengths * node).reshape(-1)
        return z, (lengths * weight).reshape(-1) * jnp.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    z, share = jax.vmap(line)(outer)
    points = jnp.concatenate(
        [jnp.broadcast_to(outer[:, None], (*z.shape, dimensions - 1)), z[..., None]], axis=-1
    )
    return points.reshape(-1, dimensions), (weights[:, None] * share).reshape(-1)
