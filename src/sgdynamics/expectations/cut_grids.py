"""Grids over a few standard normals, cut along planes at which a function has a kink or a jump.

Given the other coordinates, the last one is cut where its line meets a plane. The integral over it
is then smooth in the others, except where two of these cuts meet or where a plane does not involve
the last coordinate. These exceptions are planes of one dimension less, along which the next
coordinate is cut in turn. On every piece of every line the function is smooth and Gauss-Legendre
nodes converge fast, for any planes in up to three dimensions. Coordinates are rotated first, so
that those along which nothing is cut come last and have Gauss-Hermite nodes.
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

REACH = 8.3  # a standard normal lies beyond with probability 1e-16
# Nodes per piece, by the number of dimensions and the number of them that are cut.
NODES = {(1, 1): 32, (2, 1): 32, (2, 2): 24, (3, 1): 24, (3, 2): 14}
UNCUT = {0: 1, 1: 40, 2: 18}  # nodes per axis, by the number of axes that are not cut


def turned_grid(
    normals: Float[Numeric, "planes K"],
    levels: Float[Numeric, " planes"],
    cut: int,
    *,
    coarse: bool = False,
) -> tuple[Float[Numeric, "m K"], Float[Numeric, " m"]]:
    """Points and weights of K standard normals, cut along the planes normals.z = levels.

    The normals span `cut` dimensions. A `coarse` grid has three quarters of the nodes per axis, for
    an error estimate.
    """
    dimensions = normals.shape[1]
    quarters = 3 if coarse else 4
    rotation = _rotation(normals, cut, dimensions)
    inner, weights = cut_grid(
        (normals @ rotation)[:, :cut], levels, NODES[dimensions, cut] * quarters // 4
    )
    others = dimensions - cut
    if others == 0:
        return inner @ rotation.T, weights
    hermite = gauss_hermite_grid(UNCUT[others] * quarters // 4, others)
    points, weights = product_rule(jnp, (inner, weights), hermite)
    return points @ rotation.T, weights


def _rotation(normals: Float[Numeric, "n K"], cut: int, dimensions: int) -> Float[Numeric, "K K"]:
    """An orthogonal matrix whose first `cut` columns span the normals.

    It is a smooth function of the normals, so that derivatives pass through it.
    """
    if cut == dimensions:
        return jnp.eye(dimensions)
    first = normals[0] / jnp.linalg.norm(normals[0])
    if cut == 1:
        # Householder reflection of the first axis onto the normal, with the sign that does not
        # cancel
        sign = jnp.where(first[0] < 0, -1.0, 1.0)
        v = first.at[0].add(sign)
        return jnp.eye(dimensions) - 2 * jnp.outer(v, v) / (v @ v)
    # the normal that is least parallel to the first one
    orthogonal = normals - (normals @ first)[:, None] * first
    second = orthogonal[jnp.argmax(jnp.sum(orthogonal**2, axis=1))]
    second = second / jnp.linalg.norm(second)
    return jnp.stack([first, second, jnp.cross(first, second)], axis=1)


def cut_grid(
    normals: Float[Numeric, "planes n"], levels: Float[Numeric, " planes"], nodes: int
) -> tuple[Float[Numeric, "m n"], Float[Numeric, " m"]]:
    """Points and weights of n standard normals, cut along the planes normals.z = levels."""
    count, dimensions = normals.shape
    if dimensions == 0:
        return jnp.zeros((1, 0)), jnp.ones(1)
    last, others = normals[:, -1], normals[:, :-1]
    pairs = np.array(list(combinations(range(count), 2)), dtype=int).reshape(-1, 2)
    i, j = pairs[:, 0], pairs[:, 1]
    # Planes of the remaining coordinates: where the cuts of planes i and j meet, which eliminates
    # the last coordinate from both, and planes that do not involve the last coordinate.
    flat = jnp.where(last == 0, 1.0, 0.0)
    projected = jnp.concatenate(
        [flat[:, None] * others, last[j, None] * others[i] - last[i, None] * others[j]]
    )
    offsets = jnp.concatenate([flat * levels, last[j] * levels[i] - last[i] * levels[j]])
    if dimensions > 1:
        outer, weights = cut_grid(projected, offsets, nodes)
    else:
        outer, weights = cut_grid(jnp.zeros((0, 0)), jnp.zeros(0), nodes)

    def cut_line(point: Float[Numeric, " n"]) -> tuple[Float[Numeric, " m"], Float[Numeric, " m"]]:
        crossings = safe_ratio(levels - others @ point, last)
        cuts = jnp.clip(jnp.where(last == 0, REACH, crossings), -REACH, REACH)
        edges = jnp.sort(jnp.concatenate([jnp.array([-REACH, 0.0, REACH]), cuts]))
        node, weight = gauss_legendre(nodes)
        lengths = jnp.diff(edges)[:, None]
        z = (edges[:-1, None] + lengths * node).reshape(-1)
        return z, (lengths * weight).reshape(-1) * jnp.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    z, line_weights = jax.vmap(cut_line)(outer)
    repeated = jnp.broadcast_to(outer[:, None], (*z.shape, dimensions - 1))
    points = jnp.concatenate([repeated, z[..., None]], axis=-1)
    return points.reshape(-1, dimensions), (weights[:, None] * line_weights).reshape(-1)
