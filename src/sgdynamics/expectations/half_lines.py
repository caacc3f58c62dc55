"""Quadrature for a standard normal cut at an edge (a half-line) or at two lines (a plane).

Nodes and weights are smooth functions of the edges.

Half-lines: the Gauss rule with n nodes is exact for polynomials of degree 2n - 1 times the normal
density on z >= edge. Its nodes tend to those of Gauss-Hermite as edge -> -infinity and to
edge + (Gauss-Laguerre)/edge as edge -> +infinity. They are tabulated once as polynomials on short
intervals of the edge (Golub and Welsch, Math. Comp. 23 (1969) 221, on a fine discretisation of the
density) and evaluated by a gather and Horner's scheme, which jit, vmap and derivatives support.

The plane of two units a and b with correlation +-(1 - gap): in the coordinates (t, n) along and
across the bisector of their lines h_a = 0 and h_b = 0,

    z_a = n cos + t sin,   z_b = +-(n cos - t sin),   2 cos^2 = 1 + |correlation|.

The lines meet at one t, where t is cut; at each t they cut n in three. A function that is smooth on
either side of the lines is then smooth on each piece, without a steep layer however nearly parallel
the lines are, because their slopes are at most 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, safe_ratio, safe_root

EDGE = 9.0  # beyond it the mass (1e-19), or the difference from the whole line, is below rounding
# Polynomials of this degree on intervals of this length have an error of 1e-14.
STEP, DEGREE = 1 / 64, 4
# Few Gauss rules are computed, for polynomials of a high degree on long intervals. These are then
# replaced by polynomials on short intervals, which are cheaper to evaluate.
COARSE_STEP, HIGH_DEGREE = 1 / 16, 7
FAR = 40.0  # standard deviations at which a sign is certain


def _golub_welsch(edges: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (of sum 1) of the Gauss rule for each edge.

    Lanczos on a discretised density gives the Jacobi matrix of its orthogonal polynomials. The
    nodes are its eigenvalues, and the weights the squared first components of its eigenvectors.
    """
    node, weight = special.roots_legendre(40)
    # panels that resolve the density where it has mass: up to `far` beyond the edge, or past the
    # mode
    far = np.where(edges > 0, edges + 40.0 / (edges + np.sqrt(edges**2 + 20.0)) + 3.0, 11.0)
    low = np.maximum(edges, -11.0)
    panels = 4
    cuts = low[:, None] + (far - low)[:, None] * np.linspace(0.0, 1.0, panels + 1)
    length = np.diff(cuts, axis=1)[..., None]
    x = (cuts[:, :-1, None] + length * (node + 1) / 2).reshape(len(edges), -1)
    # relative to the density at the edge, which may underflow
    density = np.exp(-(x**2 - np.maximum(low, 0.0)[:, None] ** 2) / 2)
    mass = (length * weight / 2).reshape(len(edges), -1) * density
    mass /= mass.sum(axis=1, keepdims=True)
    vector = np.sqrt(mass)
    previous, basis = np.zeros_like(vector), [vector]
    diagonal, off_diagonal = np.zeros((len(edges), count)), np.zeros((len(edges), count))
    for k in range(count):
        image = x * vector
        diagonal[:, k] = np.sum(vector * image, axis=1)
        image = image - diagonal[:, k : k + 1] * vector
        if k:
            image = image - off_diagonal[:, k - 1 : k] * previous
        # reorthogonalise twice: rounding would spoil the later polynomials
        for _ in range(2):
            for basis_vector in basis:
                image = image - np.sum(basis_vector * image, axis=1, keepdims=True) * basis_vector
        off_diagonal[:, k] = np.sqrt(np.sum(image**2, axis=1))
        previous, vector = vector, image / off_diagonal[:, k : k + 1]
        basis.append(vector)
    jacobi = np.zeros((len(edges), count, count))
    index = np.arange(count)
    jacobi[:, index, index] = diagonal
    jacobi[:, index[:-1], index[1:]] = off_diagonal[:, :-1]
    jacobi[:, index[1:], index[:-1]] = off_diagonal[:, :-1]
    nodes, vectors = np.linalg.eigh(jacobi)
    return nodes, vectors[:, 0, :] ** 2


def _chebyshev_points(degree: int) -> np.ndarray:
    """Points on [-1, 1] at which interpolation by polynomials is well conditioned."""
    return np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))


@lru_cache(maxsize=16)
def table(count: int) -> np.ndarray:
    """Coefficients (intervals, DEGREE + 1, 2 count) of nodes, then weights, as polynomials.

    The variable t runs from -1 to 1 on each interval of the edge; the highest power comes first.
    """
    t = _chebyshev_points(HIGH_DEGREE)
    centres = np.arange(-EDGE + COARSE_STEP / 2, EDGE, COARSE_STEP)
    edges = (centres[:, None] + COARSE_STEP / 2 * t).reshape(-1)
    nodes, weights = _golub_welsch(edges, count)
    values = np.concatenate([nodes, weights * special.ndtr(-edges)[:, None]], axis=1)
    values = values.reshape(len(centres), HIGH_DEGREE + 1, 2 * count)
    polynomials = np.linalg.solve(np.vander(t), values)
    # the same functions on intervals of length STEP
    t = _chebyshev_points(DEGREE)
    pieces = round(COARSE_STEP / STEP)
    within = ((2 * np.arange(pieces) + 1 + t[:, None]).T / pieces - 1).reshape(-1)
    finer = np.einsum("tp,ipn->itn", np.vander(within, HIGH_DEGREE + 1), polynomials)
    result = np.linalg.solve(np.vander(t), finer.reshape(-1, DEGREE + 1, 2 * count))
    result.setflags(write=False)
    return result


def upper(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"]
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """Nodes and weights (..., n) of a standard normal on z >= edge, from a `table`.

    The weights add up to the mass beyond the edge.
    """
    count = coefficients.shape[-1] // 2
    position = (jnp.clip(edge, -EDGE, EDGE) + EDGE) / STEP
    interval = jax.lax.stop_gradient(jnp.clip(jnp.floor(position), 0, coefficients.shape[0] - 1))
    t = (2 * (position - interval) - 1)[..., None]
    rows = jnp.asarray(coefficients)[interval.astype(int)]
    value = rows[..., 0, :]
    for power in range(1, rows.shape[-2]):  # Horner
        value = value * t + rows[..., power, :]
    return value[..., :count], value[..., count:]


def both(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"]
) -> tuple[Float[Numeric, "*s 2 r"], Float[Numeric, "*s 2 r"]]:
    """Nodes and weights (..., 2, n) on z >= edge, then on z <= edge."""
    nodes, weights = upper(coefficients, jnp.stack([edge, -edge], axis=-1))
    return nodes * np.array([[1.0], [-1.0]]), weights


def crowd_nodes(
    start: Float[Numeric, "*s"],
    length: Float[Numeric, "*s"],
    layer: Scalar,
    count: int,
    sign: float,
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """Nodes and weights of a normal on [start, start + sign length], crowded at the start.

    Gauss-Legendre in log(layer + distance from the start), which resolves a layer there.
    """
    node, weight = gauss_legendre(count)
    reach = jnp.log1p(length / layer)[..., None]
    z = start[..., None] + sign * layer * jnp.expm1(reach * node)
    return z, layer * reach * jnp.exp(reach * node) * weight * normal_density(z)


def normal_density(z: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """The density of a standard normal."""
    return jnp.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


class Grading(NamedTuple):
    """Additional nodes that crowd towards an edge."""

    count: int  # number of nodes
    near: float  # length of the stretch next to the edge that has them
    layer: Scalar  # distance from the edge down to which they crowd


def graded_nodes(
    coefficients: Float[Numeric, "k m c"], edge: Float[Numeric, "*s"], grading: Grading | None
) -> tuple[Float[Numeric, "*s l"], Float[Numeric, "*s l"]]:
    """As `upper`, with nodes that resolve a layer at the edge if there is a grading."""
    if grading is None:
        return upper(coefficients, edge)
    length = jnp.full_like(edge, grading.near)
    close = crowd_nodes(edge, length, grading.layer, grading.count, 1.0)
    far = upper(coefficients, edge + grading.near)
    nodes, weights = (jnp.concatenate(pieces, axis=-1) for pieces in zip(close, far, strict=True))
    return nodes, weights


class Frame(NamedTuple):
    """The plane of a pair of units; scalars, or one value for each of N pairs."""

    sa: Float[Numeric, "*n"]  # standard deviations
    sb: Float[Numeric, "*n"]
    sign: Float[Numeric, "*n"]  # of the correlation
    cos: Float[Numeric, "*n"]  # of half the angle between the lines
    sin: Float[Numeric, "*n"]


def pair_frame(root: Float[Numeric, "2 2"]) -> Frame:
    """The frame of a pair with covariance root root^T, root lower triangular.

    If one of the two has no variance, n is the coordinate of the other.
    """
    sa, sb = root[0, 0], safe_root(root[1, 0] ** 2 + root[1, 1] ** 2)
    both_vary = (sa > 0) & (sb > 0)
    correlation = jnp.where(both_vary, safe_ratio(root[1, 0], sb), 1.0)
    size = jnp.abs(correlation)
    # 1 - |correlation| = (1 - correlation^2)/(1 + |correlation|), without cancellation
    gap = jnp.where(both_vary, safe_ratio(root[1, 1], sb) ** 2 / (1 + size), 0.0)
    sign = jnp.where(correlation >= 0, 1.0, -1.0)
    return Frame(sa, sb, sign, jnp.sqrt((1 + size) / 2), safe_root(gap / 2))


def standardise(mean: Float[Numeric, "..."], scale: Float[Numeric, "..."]) -> Float[Numeric, "..."]:
    """mean/scale, at most +-FAR. Without variance the sign is certain, and positive for mean 0."""
    positive = scale > 0
    certain = jnp.where(mean >= 0, FAR, -FAR)
    ratio = jnp.where(positive, mean / jnp.where(positive, scale, 1.0), certain)
    return jnp.clip(ratio, -FAR, FAR)


class Plane(NamedTuple):
    """Points of N pairs. The axis of length 2 after N is right and left of the crossing."""

    t: Float[Numeric, "N 2 n"]
    weight: Float[Numeric, "N 2 n"]
    low: Float[Numeric, "N 2 n"]  # coordinate n of the lower line, and of the upper one
    high: Float[Numeric, "N 2 n"]
    outside: Float[Numeric, "N 2 n 2 o"]  # coordinate n above both lines, and below both
    outside_weight: Float[Numeric, "N 2 n 2 o"]
    between: Float[Numeric, "N 2 n b"]  # coordinate n between the lines
    between_weight: Float[Numeric, "N 2 n b"]


def plane_points(
    tables: tuple[Float[Numeric, "k m c"], Float[Numeric, "k m e"]],
    middle: int,
    span: float,
    pair: Frame,
    mean_a: Float[Numeric, " n"],
    mean_b: Float[Numeric, " n"],
    grading: Grading | None = None,
) -> Plane:
    """Points for pairs of units with means (N,).

    `tables` are half-line rules along and across the bisector. There are `middle` nodes between the
    lines (from either line, with a grading), up to `span` standard deviations.
    """
    ra, rb = standardise(mean_a, pair.sa), pair.sign * standardise(mean_b, pair.sb)
    ra, rb, sin, cos = jnp.broadcast_arrays(ra, rb, pair.sin, pair.cos)
    meet = sin > 1e-9  # otherwise they meet out of reach, or nowhere
    crossing = jnp.where(meet, (rb - ra) / jnp.where(meet, 2 * sin, 1.0), FAR * jnp.sign(rb - ra))
    t, weight = both(tables[0], jnp.clip(crossing, -FAR, FAR))
    ra, rb, sin, cos = (x[:, None, None] for x in (ra, rb, sin, cos))
    first, second = (-ra - sin * t) / cos, (-rb + sin * t) / cos
    high, low = jnp.maximum(first, second), jnp.minimum(first, second)
    outside, outside_weight = graded_nodes(tables[1], jnp.stack([high, -low], axis=-1), grading)
    start, stop = jnp.clip(low, -span, span), jnp.clip(high, -span, span)
    if grading is None:
        node, node_weight = gauss_legendre(middle)
        between = start[..., None] + (stop - start)[..., None] * node
        between_weight = (stop - start)[..., None] * node_weight * normal_density(between)
    else:
        half = (stop - start) / 2
        ends = [
            crowd_nodes(start, half, grading.layer, middle, 1.0),
            crowd_nodes(stop, half, grading.layer, middle, -1.0),
        ]
        between, between_weight = (
            jnp.concatenate(pieces, axis=-1) for pieces in zip(*ends, strict=True)
        )
    # The mass between the lines is known. Normalising by it makes constants exact where a few nodes
    # serve a wide stretch.
    mass = 1 - jnp.sum(outside_weight, axis=(-2, -1))
    total = jnp.sum(between_weight, axis=-1)
    wide = mass > 0.01
    correction = jnp.where(wide, mass / jnp.where(wide, total, 1.0), 1.0)
    between_weight = between_weight * correction[..., None]
    outside = outside * np.array([[1.0], [-1.0]])
    return Plane(t, weight, low, high, outside, outside_weight, between, between_weight)


def active_units(sign: Float[Numeric, "*s"]) -> Float[Numeric, "*s 2 4"]:
    """Whether each of the two units is positive on the four parts of the plane, (..., 2, 4).

    The parts are above and below both lines, then between them right and left of the crossing.
    """
    second = jnp.where(
        jnp.asarray(sign)[..., None] > 0,
        np.array([1.0, 0.0, 0.0, 1.0]),
        np.array([0.0, 1.0, 1.0, 0.0]),
    )
    first = jnp.broadcast_to(np.array([1.0, 0.0, 1.0, 0.0]), second.shape)
    return jnp.stack([first, second], axis=-2)
