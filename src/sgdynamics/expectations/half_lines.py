"""Rules for a standard normal cut at an edge (a half-line) or at two lines (the plane of two units), as smooth functions of where.

Half-lines: the Gauss rule with n nodes is exact for polynomials of degree 2n - 1 times the normal density on z >= edge. Its nodes
tend to Gauss-Hermite's as edge -> -infinity and to edge + (Gauss-Laguerre)/edge as edge -> +infinity. Nodes and weights are
tabulated once as polynomials on short intervals of the edge (Golub and Welsch, Math. Comp. 23 (1969), on a fine discretisation
of the density) and evaluated by a gather and Horner's scheme, so that jit, vmap and derivatives go through them.

The plane of two units with correlation +-(1 - gap): in the coordinates (t, n) along and across the bisector of their lines,
z_a = n cos + t sin and z_b = +-(n cos - t sin) with 2 cos^2 = 1 + |correlation|. The lines meet at one t, where t is cut; at each t
they cut n in three. What is smooth on either side of the lines is then smooth on each piece, with no steep layer however nearly
parallel the lines are: their slopes are at most 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, safe_ratio, safe_root

EDGE = 9.0  # beyond it the mass (1e-19) or the difference from the whole line is below rounding
STEP = 1 / 64  # polynomials of degree 4 on such intervals are good to 1e-14
DEGREE = 4
FAR = 40.0  # standard deviations at which a sign is as good as certain


def _golub_welsch(edges: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (weights of sum 1) for each edge, by Lanczos on a discretised density."""
    node, weight = special.roots_legendre(40)
    # panels that resolve the density wherever it has mass: up to `far` beyond the edge, or past the mode
    far = np.where(edges > 0, edges + 40.0 / (edges + np.sqrt(edges**2 + 20.0)) + 3.0, 11.0)
    low = np.maximum(edges, -11.0)
    panels = 4
    cuts = low[:, None] + (far - low)[:, None] * np.linspace(0.0, 1.0, panels + 1)
    length = np.diff(cuts, axis=1)[..., None]
    x = (cuts[:, :-1, None] + length * (node + 1) / 2).reshape(len(edges), -1)
    mass = (length * weight / 2).reshape(len(edges), -1) * np.exp(
        -(x**2 - np.maximum(low, 0.0)[:, None] ** 2) / 2
    )
    mass /= mass.sum(axis=1, keepdims=True)
    vector = np.sqrt(mass)
    before, basis = np.zeros_like(vector), [vector]
    diagonal, off = np.zeros((len(edges), count)), np.zeros((len(edges), count))
    for k in range(count):
        image = x * vector
        diagonal[:, k] = np.sum(vector * image, axis=1)
        image = (
            image - diagonal[:, k : k + 1] * vector - off[:, k - 1 : k] * before
            if k
            else image - diagonal[:, :1] * vector
        )
        for _ in range(2):  # rounding would otherwise spoil the orthogonality of the later ones
            for old in basis:
                image = image - np.sum(old * image, axis=1, keepdims=True) * old
        off[:, k] = np.sqrt(np.sum(image**2, axis=1))
        before, vector = vector, image / off[:, k : k + 1]
        basis.append(vector)
    jacobi = np.zeros((len(edges), count, count))
    index = np.arange(count)
    jacobi[:, index, index] = diagonal
    jacobi[:, index[:-1], index[1:]] = jacobi[:, index[1:], index[:-1]] = off[:, :-1]
    nodes, vectors = np.linalg.eigh(jacobi)
    return nodes, vectors[:, 0, :] ** 2


@lru_cache(maxsize=16)
def table(count: int) -> np.ndarray:
    """Coefficients (intervals, DEGREE + 1, 2 count), highest power first, of nodes, then weights, in t = -1 .. 1 on each interval."""
    coarse, high = (
        1 / 16,
        7,
    )  # few Gauss rules are found, and their polynomials then cut finer, of a degree that is cheaper to evaluate
    t = np.cos(np.pi * (np.arange(high + 1) + 0.5) / (high + 1))
    centres = np.arange(-EDGE + coarse / 2, EDGE, coarse)
    edges = (centres[:, None] + coarse / 2 * t).reshape(-1)
    nodes, weights = _golub_welsch(edges, count)
    values = np.concatenate([nodes, weights * special.ndtr(-edges)[:, None]], axis=1)
    polynomials = np.linalg.solve(np.vander(t), values.reshape(len(centres), high + 1, 2 * count))
    t = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    parts = round(coarse / STEP)
    within = ((2 * np.arange(parts) + 1 + t[:, None]).T / parts - 1).reshape(-1)
    finer = np.einsum("tp,ipn->itn", np.vander(within, high + 1), polynomials)
    result = np.linalg.solve(np.vander(t), finer.reshape(-1, DEGREE + 1, 2 * count))
    result.setflags(write=False)
    return result


def upper(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"]
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """Nodes and weights (..., n) of a standard normal on z >= edge; the weights add up to its mass there."""
    count = coefficients.shape[-1] // 2
    place = (jnp.clip(edge, -EDGE, EDGE) + EDGE) / STEP
    interval = jax.lax.stop_gradient(jnp.clip(jnp.floor(place), 0, coefficients.shape[0] - 1))
    t = (2 * (place - interval) - 1)[..., None]
    rows = jnp.asarray(coefficients)[interval.astype(int)]
    value = rows[..., 0, :]
    for power in range(1, rows.shape[-2]):
        value = value * t + rows[..., power, :]
    return value[..., :count], value[..., count:]


def both(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"]
) -> tuple[Float[Numeric, "*s 2 r"], Float[Numeric, "*s 2 r"]]:
    """Nodes and weights (..., 2, n) on z >= edge, then on z <= edge."""
    nodes, weights = upper(coefficients, jnp.stack([edge, -edge], axis=-1))
    return nodes * np.array([[1.0], [-1.0]]), weights


def crowded(
    start: Float[Numeric, "*s"],
    length: Float[Numeric, "*s"],
    layer: Scalar,
    count: int,
    sign: float,
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """Nodes and weights of a normal on [start, start + sign length], even in log(layer + distance from start)."""
    node, weight = gauss_legendre(count)
    reach = jnp.log1p(length / layer)[..., None]
    z = start[..., None] + sign * layer * jnp.expm1(reach * node)
    return z, layer * reach * jnp.exp(reach * node) * weight * density(z)


def density(z: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """That of a standard normal."""
    return jnp.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


class Grading(NamedTuple):
    """`count` nodes crowd towards an edge over a stretch `near`, down to a `layer`; between two edges, as many as asked for from either."""

    count: int
    near: float
    layer: Any


def graded(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"], grading: Grading | None
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """As `upper`, with nodes that resolve a layer at the edge where there is a grading."""
    if grading is None:
        return upper(coefficients, edge)
    close = crowded(edge, jnp.full_like(edge, grading.near), grading.layer, grading.count, 1.0)
    far = upper(coefficients, edge + grading.near)
    nodes, weights = (jnp.concatenate(pieces, axis=-1) for pieces in zip(close, far, strict=True))
    return nodes, weights


class Frame(NamedTuple):
    """Standard deviations of a pair, the sign of its correlation, and cos, sin of half the angle between its lines."""

    sa: Any
    sb: Any
    sign: Any
    cos: Any
    sin: Any


def frame(root: Float[Numeric, "2 2"]) -> Frame:
    """The frame of a pair with covariance root root^T, root lower triangular; without the variance of one, n is the other."""
    sa, sb = root[0, 0], safe_root(root[1, 0] ** 2 + root[1, 1] ** 2)
    two = (sa > 0) & (sb > 0)
    correlation = jnp.where(two, safe_ratio(root[1, 0], sb), 1.0)
    size = jnp.abs(correlation)
    gap = jnp.where(
        two, safe_ratio(root[1, 1], sb) ** 2 / (1 + size), 0.0
    )  # 1 - |correlation| without cancellation
    return Frame(
        sa, sb, jnp.where(correlation >= 0, 1.0, -1.0), jnp.sqrt((1 + size) / 2), safe_root(gap / 2)
    )


def standardised(
    mean: Float[Numeric, "..."], spread: Float[Numeric, "..."]
) -> Float[Numeric, "..."]:
    """mean/spread up to +-FAR; without spread the sign is certain, and that of 0 positive."""
    positive = spread > 0
    certain = jnp.where(mean >= 0, FAR, -FAR)
    return jnp.clip(
        jnp.where(positive, mean / jnp.where(positive, spread, 1.0), certain), -FAR, FAR
    )


class Plane(NamedTuple):
    """Points of N pairs: t and its weight (N, 2, n) right and left of the crossing; between which n the lines lie (N, 2, n).

    Then n outside the lines (N, 2, n, 2, o), above and below, and between them (N, 2, n, b), each with its weight.
    """

    t: Any
    weight: Any
    low: Any
    high: Any
    outside: Any
    outside_weight: Any
    between: Any
    between_weight: Any


def plane(
    tables: tuple[Any, Any],
    middle: int,
    span: float,
    pair: Frame,
    mean_a: Float[Numeric, " n"],
    mean_b: Float[Numeric, " n"],
    grading: Grading | None = None,
) -> Plane:
    """Points for units with means (N,); the frame holds scalars or (N,).

    Half-line tables along and across the bisector; `middle` nodes between the lines (from either line, with a grading for what has
    layers there), as far as `span` standard deviations.
    """
    ra, rb = standardised(mean_a, pair.sa), pair.sign * standardised(mean_b, pair.sb)
    ra, rb, sin, cos = jnp.broadcast_arrays(ra, rb, pair.sin, pair.cos)
    meet = sin > 1e-9  # else they meet out of reach, or nowhere
    crossing = jnp.where(meet, (rb - ra) / jnp.where(meet, 2 * sin, 1.0), FAR * jnp.sign(rb - ra))
    t, weight = both(tables[0], jnp.clip(crossing, -FAR, FAR))
    ra, rb, sin, cos = (x[:, None, None] for x in (ra, rb, sin, cos))
    first, second = (-ra - sin * t) / cos, (-rb + sin * t) / cos
    high, low = jnp.maximum(first, second), jnp.minimum(first, second)
    outside, outside_weight = graded(tables[1], jnp.stack([high, -low], axis=-1), grading)
    start, stop = jnp.clip(low, -span, span), jnp.clip(high, -span, span)
    if grading is None:
        node, share = gauss_legendre(middle)
        between = start[..., None] + (stop - start)[..., None] * node
        between_weight = (stop - start)[..., None] * share * density(between)
    else:
        half = (stop - start) / 2
        ends = [
            crowded(start, half, grading.layer, middle, 1.0),
            crowded(stop, half, grading.layer, middle, -1.0),
        ]
        between, between_weight = (
            jnp.concatenate(pieces, axis=-1) for pieces in zip(*ends, strict=True)
        )
    # what lies between has a known mass; to meet it makes constants exact where a few nodes must do for a wide stretch
    mass, found = 1 - jnp.sum(outside_weight, axis=(-2, -1)), jnp.sum(between_weight, axis=-1)
    wide = mass > 0.01
    between_weight = (
        between_weight * jnp.where(wide, mass / jnp.where(wide, found, 1.0), 1.0)[..., None]
    )
    return Plane(
        t,
        weight,
        low,
        high,
        outside * np.array([[1.0], [-1.0]]),
        outside_weight,
        between,
        between_weight,
    )


def active(sign: Float[Numeric, "*s"]) -> Float[Numeric, "*s 2 4"]:
    """Which of the two units is positive (..., 2, 4): above and below both lines, then between them right and left of the crossing."""
    second = jnp.where(
        jnp.asarray(sign)[..., None] > 0,
        np.array([1.0, 0.0, 0.0, 1.0]),
        np.array([0.0, 1.0, 1.0, 0.0]),
    )
    return jnp.stack(
        [jnp.broadcast_to(np.array([1.0, 0.0, 1.0, 0.0]), second.shape), second], axis=-2
    )
