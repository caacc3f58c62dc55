"""Probability that a ReLU network is positive, for Gaussian preactivations.

Let h = mean + U z with z standard normal and f = sum_i a_i relu(h_i). In the plane of the first two
coordinates of z sign f is constant on polygons. The field G = -z exp(-|z|^2/2)/(2 pi |z|^2) has the
divergence (normal density) - delta(z), hence by the divergence theorem

    E[sign f] = sign f(0) + sum over edges of jump [T(r, s2/r) - T(r, s1/r)]

for edges at distance r from 0 that reach from s1 to s2 along their line. The jump is sign f beyond
the edge minus sign f on the side of 0, and T is Owen's function (Ann. Math. Stat. 27 (1956) 1075).

The probability given the other axes is analytic between the values at which corners of the polygons
meet. The corners are intersections of the planes h_i = 0 and f = 0, so these values are known. The
other axes are cut there and have Gauss-Legendre nodes in between. Any orthonormal axes serve; those
along which no plane is steep need few nodes.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from sgdynamics.base.cores import map_on_cores
from sgdynamics.expectations.nodes import gauss_legendre

MOST_UNITS = 4  # more units have too many cells and too many axes
REACH = 7.0  # standard deviations; the mass beyond is 3e-12
SHIFT = 1e-12  # relative displacement that brings coinciding lines into general position
CANCELS = 1e-9  # relative size below which the slope of f in a cell is rounding
ROUNDING = 1e-11  # absolute error that rounding and SHIFT leave
NEGLIGIBLE = 1e-11  # weight of a node that is left out
PLANES = 1 << 9  # planes of one call of `plane_sign`: their arrays fit into the cache
TOLERANCE = 1e-6  # difference between two resolutions at which no finer one is tried
# Numbers of Gauss-Legendre nodes per interval of the third and of the fourth axis.
RESOLUTIONS = (7, 9, 13, 19, 27)
CANDIDATES = 256  # directions among which an axis is chosen


def positive_share_and_error(
    means: np.ndarray, covariance: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`positive_share` with a resolution as fine as each state needs, and its absolute errors.

    The error is the change from the next coarser resolution, and at least TOLERANCE, because two
    resolutions may agree to more by chance.
    """
    share = positive_share(RESOLUTIONS[1], means, covariance, head)
    if means.shape[1] <= 2:
        return share, np.full(len(share), ROUNDING)
    error = np.abs(share - positive_share(RESOLUTIONS[0], means, covariance, head))
    for count in RESOLUTIONS[2:]:
        inaccurate = np.nonzero(error > TOLERANCE)[0]
        if not len(inaccurate):
            break
        finer = positive_share(count, means[inaccurate], covariance[inaccurate], head[inaccurate])
        error[inaccurate] = np.abs(finer - share[inaccurate])
        share[inaccurate] = finer
    return share, np.maximum(error, TOLERANCE)


class _Planes(NamedTuple):
    """Planes of the first two axes, given nodes of the other axes."""

    means: np.ndarray  # of the preactivations, (N, K)
    weights: np.ndarray  # (N,)
    states: np.ndarray  # index of the state of each plane, (N,)


def positive_share(
    count: int, means: np.ndarray, covariance: np.ndarray, head: np.ndarray
) -> np.ndarray:
    """P(f > 0) + P(f = 0)/2 for means (N, K), covariances (N, K, K) and heads (N, K), K <= 4.

    Covariances may be singular. There are `count` nodes per interval of the third and fourth axes.
    """
    states, units = means.shape
    variances, vectors = np.linalg.eigh(covariance)
    variances = np.maximum(variances, 0.0)
    slopes = vectors * np.sqrt(variances)[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        # the point at which all preactivations vanish; infinite along axes without variance
        zero = -np.einsum("nk,nkd->nd", means, vectors) / np.sqrt(variances)
    # a unit whose head is 0 never matters: an inactive constant in its place has no edges
    is_silent = head == 0
    means = np.where(is_silent, -1.0, means)
    slopes = np.where(is_silent[..., None], 0.0, slopes)
    planes = _Planes(means, np.ones(states), np.arange(states))
    if units > 2:
        rotation = _basis_with_last(_choose_axis(slopes, head))
        with np.errstate(invalid="ignore"):
            # all corners of the polygons meet there
            meeting = np.nan_to_num(np.sum(zero * rotation[:, :, -1], axis=1), nan=np.inf)
        slopes = slopes @ rotation
        planes = _condition_on_axis(planes, slopes[:, :, -1], meeting[:, None], count)
    if units > 3:
        slopes = slopes[:, :, :3]
        slopes = slopes @ _basis_with_last(_choose_axis(slopes, head))
        cuts = _corners(planes.means, slopes[planes.states], head[planes.states])
        planes = _condition_on_axis(planes, slopes[:, :, 2], cuts, count)
    # a single unit has a second axis of slope 0
    slopes = np.concatenate([slopes, np.zeros((states, units, 1))], axis=2)[:, :, :2]

    def add_planes(start: int) -> np.ndarray:
        chunk = slice(start, start + PLANES)
        index = planes.states[chunk]
        signs = plane_sign(planes.means[chunk], slopes[index], head[index])
        return np.bincount(index, planes.weights[chunk] * signs, states)

    totals = map_on_cores(add_planes, range(0, len(planes.states), PLANES))
    return 0.5 + 0.5 * np.sum(totals, axis=0)


@lru_cache(maxsize=4)
def _directions(axes: int) -> np.ndarray:
    """Unit vectors (n, axes): those of the axes, and random ones."""
    random = np.random.default_rng(axes).standard_normal((CANDIDATES, axes))
    return np.concatenate([np.eye(axes), random / np.linalg.norm(random, axis=1, keepdims=True)])


def _choose_axis(slopes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """The direction (N, D) along which the steepest plane h_i = 0 or f = 0 is least steep.

    `slopes` (N, K, D) are those of the preactivations. Steepness is the share of the unit normal of
    a plane along the direction: the probability given that coordinate varies on the scale of its
    inverse.
    """
    has_both_signs, outputs = _output_planes(slopes.transpose(2, 1, 0), head.T)
    outputs = np.where(has_both_signs, outputs, 0.0).transpose(2, 1, 0)
    normals = np.concatenate([slopes, outputs], axis=1)
    sizes = np.linalg.norm(normals, axis=2, keepdims=True)
    normals = normals / np.where(sizes > 0, sizes, 1.0)
    directions = _directions(slopes.shape[2])
    steepness = np.max(np.abs(normals @ directions.T), axis=1)
    return directions[np.argmin(steepness, axis=1)]


def _basis_with_last(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal bases (N, D, D) whose last columns are unit vectors (N, D): reflections."""
    identity = np.eye(vectors.shape[1])
    difference = vectors - identity[-1]
    squares = np.sum(difference**2, axis=1)
    scale = 2 / np.where(squares > 0, squares, 1.0)
    return identity - scale[:, None, None] * difference[:, :, None] * difference[:, None, :]


def _corners(means: np.ndarray, slopes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Third coordinates (N, 10) of the corners of sign f, for four units with three axes.

    A corner has three preactivations at 0, or two at 0 and a zero of the output of the other two.
    """
    slopes = slopes[:, :, :3]
    corners = [
        _solve_third(means[:, rows], slopes[:, rows])
        for rows in map(list, itertools.combinations(range(4), 3))
    ]
    for i, j in itertools.combinations(range(4), 2):
        k, m = (unit for unit in range(4) if unit not in (i, j))
        # the output of k and m has zeros where both are active only if their heads differ in sign
        opposite = head[:, k] * head[:, m] < 0
        output_mean = head[:, k] * means[:, k] + head[:, m] * means[:, m]
        output_slope = head[:, k, None] * slopes[:, k] + head[:, m, None] * slopes[:, m]
        corner = _solve_third(
            np.stack([means[:, i], means[:, j], output_mean], axis=1),
            np.stack([slopes[:, i], slopes[:, j], output_slope], axis=1),
        )
        corners.append(np.where(opposite, corner, np.inf))
    return np.stack(corners, axis=1)


def _solve_third(level: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """z_3 of the solution of slope z = -level by Cramer's rule, infinite where there is none."""
    minors = np.cross(slope[:, :, 0], slope[:, :, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        z = -np.sum(minors * level, axis=1) / np.sum(minors * slope[:, :, 2], axis=1)
    return np.nan_to_num(z, nan=np.inf)


def _condition_on_axis(
    planes: _Planes, slopes: np.ndarray, cuts: np.ndarray, count: int
) -> _Planes:
    """All planes given nodes of one more axis, which is cut at `cuts` (N, C).

    `slopes` (states, K) are the slopes of the preactivations along the axis. Nodes of negligible
    weight are dropped.
    """
    fixed = np.broadcast_to([-REACH, -2.5, 2.5, REACH], (len(cuts), 4))
    edges = np.sort(np.concatenate([fixed, np.clip(cuts, -REACH, REACH)], axis=1), axis=1)
    node, weight = gauss_legendre(count)
    lengths = np.diff(edges, axis=1)[..., None]
    nodes = edges[:, :-1, None] + lengths * node
    weights = lengths * weight * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    nodes, weights = nodes.reshape(len(cuts), -1), weights.reshape(len(cuts), -1)
    weights = planes.weights[:, None] * weights / weights.sum(axis=1, keepdims=True)
    rows, columns = np.nonzero(weights > NEGLIGIBLE)
    states = planes.states[rows]
    means = planes.means[rows] + slopes[states] * nodes[rows, columns, None]
    return _Planes(means, weights[rows, columns], states)


@lru_cache(maxsize=8)
def _activity_patterns(units: int) -> np.ndarray:
    """All sets of active units (2^K, K): the cells of the plane."""
    return np.array(list(itertools.product((False, True), repeat=units)))


def _output_planes(fields: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The output f (D, 2^K, N) in the cell of each set of active units, for fields (D, K, N).

    The first result tells whether f has zeros there, (2^K, N): not if all heads have one sign.
    """
    active = _activity_patterns(len(weights))
    has_both_signs = (active @ (weights > 0)) & (active @ (weights < 0))
    return has_both_signs, active.astype(float) @ (fields * weights)


def plane_sign(means: np.ndarray, slopes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """E[sign f] for h = means (N, K) + slopes (N, K, 2) z, with z standard normal in the plane.

    A small displacement brings coinciding lines into general position. Where the output cancels on
    a whole cell, its sign would be that of the displacement: the mean over both signs counts it as
    0.
    """
    scale = np.sqrt(np.sum(slopes**2, axis=2))
    pattern = np.sin(1.0 + 2.0 * np.arange(means.shape[1]))  # a different share for each unit
    shift = np.where(scale > 0, SHIFT * (np.abs(means) + scale) * pattern, 0.0)
    signs, cancels = _generic_sign(means + shift, slopes, head)
    repeated = np.nonzero(cancels)[0]
    if len(repeated):
        opposite, _ = _generic_sign((means - shift)[repeated], slopes[repeated], head[repeated])
        signs[repeated] = (signs[repeated] + opposite) / 2
    return signs


def _generic_sign(
    means: np.ndarray, slopes: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[sign f] for lines in general position, and whether f cancels on any cell."""
    units = means.shape[1]
    active = _activity_patterns(units)
    total = np.sign(np.sum(head * np.maximum(means, 0.0), axis=1))
    # (1, z_1, z_2).fields = preactivations: units and planes last, where NumPy is fast
    fields = np.ascontiguousarray(np.concatenate([means[..., None], slopes], axis=2).T)
    weights = np.ascontiguousarray(head.T)
    # Edges of the first kind: zeros of f inside the cell of a set of active units.
    has_both_signs, lines = _output_planes(fields, weights)
    offset, x, y = lines
    sizes = np.sqrt(x**2 + y**2)
    gross = active @ np.abs(fields[1:] * weights).sum(axis=0)
    cancels = np.any(has_both_signs & (sizes <= CANCELS * gross), axis=0)
    cell, plane = np.nonzero(has_both_signs & (np.abs(offset) < REACH * sizes))
    sides = np.where(active, 1.0, -1.0).T[:, cell]
    jumps = np.full(len(plane), 2.0)  # from -1 to 1
    total += _sum_edges(plane, lines[:, cell, plane], jumps, sides, fields)
    # Edges of the second kind: the boundary of the cell without active units, on which f = 0.
    scale = np.sqrt(fields[1] ** 2 + fields[2] ** 2)
    unit, plane = np.nonzero((weights != 0) & (np.abs(fields[0]) < REACH * scale))
    sides = np.where(np.eye(units) > 0, 0.0, -1.0)[:, unit]
    jumps = np.sign(weights[unit, plane])
    total += _sum_edges(plane, fields[:, unit, plane], jumps, sides, fields)
    return total, cancels


def _sum_edges(
    plane: np.ndarray,
    lines: np.ndarray,
    jumps: np.ndarray,
    sides: np.ndarray,
    fields: np.ndarray,
) -> np.ndarray:
    """Sum the contributions of edges on the lines (1, z_1, z_2).lines = 0, (3, E), by plane.

    An edge is the part of its line on which `sides` (K, E) times the preactivations
    (1, z_1, z_2).fields, (3, K, planes), is nonnegative. Across it sign f changes by `jumps` in the
    direction in which (1, z_1, z_2).lines increases. Each edge contributes
    jump [T(r, s2/r) - T(r, s1/r)] with Owen's function T.
    """
    # the line in normal form: distance of its foot from 0, and its unit normal (x, y)
    sizes = np.sqrt(lines[1] ** 2 + lines[2] ** 2)
    offset, x, y = -lines[0] / sizes, lines[1] / sizes, lines[2] / sizes
    value, first, second = fields[:, :, plane]
    # the preactivations along the line: value at the foot, and rate per unit length
    at_foot = sides * (value + offset * (x * first + y * second))
    rate = sides * (x * second - y * first)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -at_foot / rate
    low = np.max(np.where(rate > 0, crossing, -2 * REACH), axis=0, initial=-2 * REACH)
    high = np.min(np.where(rate < 0, crossing, 2 * REACH), axis=0, initial=2 * REACH)
    edges = np.nonzero((low < high) & np.all((rate != 0) | (at_foot >= 0), axis=0))[0]
    distance = np.maximum(np.abs(offset[edges]), 1e-300)
    masses = special.owens_t(distance, high[edges] / distance) - special.owens_t(
        distance, low[edges] / distance
    )
    beyond = np.where(offset[edges] >= 0, jumps[edges], -jumps[edges])
    return np.bincount(plane[edges], beyond * masses, fields.shape[2])
