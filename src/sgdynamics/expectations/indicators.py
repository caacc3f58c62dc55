"""Probability that a ReLU network is positive, for Gaussian preactivations.

Let h = mean + U z with z standard normal in the principal axes of the covariance, the two largest
first, and f = sum_i a_i relu(h_i). In the plane of the two largest axes sign f is constant on
polygons. The field G = -z exp(-|z|^2/2)/(2 pi |z|^2) has the divergence (normal density) - delta(z),
hence by the divergence theorem

    E[sign f] = sign f(0) + sum over edges of jump [T(r, s2/r) - T(r, s1/r)]

for edges at distance r from 0 that reach from s1 to s2 along their line. The jump is sign f beyond
the edge minus sign f on the side of 0, and T is Owen's function (Ann. Math. Stat. 27 (1956) 1075).

The probability given the other axes is analytic between the values at which corners of the polygons
meet. The corners are intersections of the planes h_i = 0 and f = 0, so these values are known. The
other axes are cut there and have Gauss-Legendre nodes in between.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from sgdynamics.expectations.nodes import gauss_legendre

MOST_UNITS = 4  # more units have too many cells and too many axes
REACH = 7.0  # standard deviations; the mass beyond is 3e-12
SHIFT = 1e-12  # relative displacement that brings coinciding lines into general position
CANCELS = 1e-9  # relative size below which the slope of f in a cell is rounding
ROUNDING = 1e-11  # absolute error that rounding and SHIFT leave
NEGLIGIBLE = 1e-11  # weight of a node that is left out
PLANES = 1 << 11  # planes of one call of `plane_sign`: their arrays fit into the cache
TOLERANCE = 1e-6  # difference of two rules at which no finer one is tried


class IndicatorRule(NamedTuple):
    """Gauss-Legendre nodes in each interval of the third and of the fourth principal axis."""

    third: int
    fourth: int


RULES = tuple(IndicatorRule(*counts) for counts in ((5, 4), (8, 5), (12, 8), (18, 12), (26, 18)))


def positive_share_and_error(
    means: np.ndarray, covariance: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `positive_share` with a rule as fine as each state needs, and its absolute errors.

    The error is the change from the next coarser rule, and TOLERANCE at least, because two
    rules may agree to more by chance.
    """
    share = positive_share(RULES[1], means, covariance, head)
    if means.shape[1] <= 2:
        return share, np.full(len(share), ROUNDING)
    error = np.abs(share - positive_share(RULES[0], means, covariance, head))
    for rule in RULES[2:]:
        inaccurate = np.nonzero(error > TOLERANCE)[0]
        if not len(inaccurate):
            break
        finer = positive_share(rule, means[inaccurate], covariance[inaccurate], head[inaccurate])
        error[inaccurate] = np.abs(finer - share[inaccurate])
        share[inaccurate] = finer
    return share, np.maximum(error, TOLERANCE)


def positive_share(
    rule: IndicatorRule, means: np.ndarray, covariance: np.ndarray, head: np.ndarray
) -> np.ndarray:
    """Compute P(f > 0) + P(f = 0)/2 for means (N, K), covariances (N, K, K) and heads (N, K), K <= 4.

    Covariances may be singular.
    """
    states, units = means.shape
    variances, axes = np.linalg.eigh(covariance)
    variances = np.maximum(variances[:, ::-1], 0.0)
    slopes = axes[:, :, ::-1] * np.sqrt(variances)[:, None, :]
    # a unit without a head never matters: an inactive constant in its place has no edges
    silent = head == 0
    means = np.where(silent, -1.0, means)
    slopes = np.where(silent[..., None], 0.0, slopes)
    weights, owner = np.ones(states), np.arange(states)
    if units == 4:
        vertex = _all_zero(means, axes[:, :, 0], variances[:, 3])
        means, weights, owner = _conditioned(
            means, weights, owner, slopes[:, :, 3], vertex, rule.fourth
        )
    if units >= 3:
        three = units == 3
        smallest = variances[:, 2]
        corners = (
            _all_zero(means, axes[:, :, 0], smallest)
            if three
            else _corners(means, slopes[owner], head[owner])
        )
        means, weights, owner = _conditioned(
            means, weights, owner, slopes[:, :, 2], corners, rule.third
        )
    slopes = np.concatenate([slopes, np.zeros((states, units, 1))], axis=2)[:, :, :2]
    total = np.zeros(states)
    for first in range(0, len(owner), PLANES):
        part = slice(first, first + PLANES)
        signs = plane_sign(means[part], slopes[owner[part]], head[owner[part]])
        total += np.bincount(owner[part], weights[part] * signs, states)
    return 0.5 + 0.5 * total


def _all_zero(means: np.ndarray, axis: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the coordinate along a principal axis, (N, 1), at which all preactivations vanish."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(-np.sum(means * axis, axis=1) / np.sqrt(variance), nan=np.inf)[:, None]


def _corners(means: np.ndarray, slopes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Return the third coordinates (N, 10) of the corners of sign f for four units with three axes.

    Corners have three preactivations at 0, or two at 0 and a zero of the output of the other two.
    """
    level, slope = means, slopes[:, :, :3]
    found = [
        _solve_third(level[:, rows], slope[:, rows])
        for rows in map(list, itertools.combinations(range(4), 3))
    ]
    for i, j in itertools.combinations(range(4), 2):
        k, m = (unit for unit in range(4) if unit not in (i, j))
        opposite = head[:, k] * head[:, m] < 0
        last_level = head[:, k] * level[:, k] + head[:, m] * level[:, m]
        last_slope = head[:, k, None] * slope[:, k] + head[:, m, None] * slope[:, m]
        levels = np.stack([level[:, i], level[:, j], last_level], axis=1)
        corner = _solve_third(levels, np.stack([slope[:, i], slope[:, j], last_slope], axis=1))
        found.append(np.where(opposite, corner, np.inf))
    return np.stack(found, axis=1)


def _solve_third(level: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return z_3 of the solution of slope z = -level by Cramer's rule, infinite where there is none."""
    minors = np.cross(slope[:, :, 0], slope[:, :, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(
            -np.sum(minors * level, axis=1) / np.sum(minors * slope[:, :, 2], axis=1), nan=np.inf
        )


def _conditioned(
    means: np.ndarray,
    weights: np.ndarray,
    owner: np.ndarray,
    slopes: np.ndarray,
    cuts: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, weights and states of all planes given nodes of one more axis, which is cut at `cuts` (N, C).

    `slopes` (states, K) are those of the preactivations along the axis.
    """
    fixed = np.broadcast_to([-REACH, -2.5, 2.5, REACH], (len(cuts), 4))
    edges = np.sort(np.concatenate([fixed, np.clip(cuts, -REACH, REACH)], axis=1), axis=1)
    node, weight = gauss_legendre(count)
    lengths = np.diff(edges, axis=1)[..., None]
    nodes = edges[:, :-1, None] + lengths * node
    shares = lengths * weight * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    nodes, shares = nodes.reshape(len(cuts), -1), shares.reshape(len(cuts), -1)
    shares = weights[:, None] * shares / shares.sum(axis=1, keepdims=True)
    rows, columns = np.nonzero(shares > NEGLIGIBLE)
    states = owner[rows]
    return means[rows] + slopes[states] * nodes[rows, columns, None], shares[rows, columns], states


@lru_cache(maxsize=8)
def _patterns(units: int) -> np.ndarray:
    """All sets of active units (2^K, K)."""
    return np.array(list(itertools.product((False, True), repeat=units)))


def plane_sign(means: np.ndarray, slopes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Compute E[sign f] for h = means (N, K) + slopes (N, K, 2) z, z standard normal in the plane.

    A small displacement brings coinciding lines into general position. Where the output cancels on a
    whole cell its sign would be that of the displacement: the mean over both signs counts it as 0.
    """
    spread = np.sqrt(np.sum(slopes**2, axis=2))
    shift = np.where(
        spread > 0,
        SHIFT * (np.abs(means) + spread) * np.sin(1.0 + 2.0 * np.arange(means.shape[1])),
        0.0,
    )
    signs, cancels = _generic_sign(means + shift, slopes, head)
    again = np.nonzero(cancels)[0]
    if len(again):
        others, _ = _generic_sign((means - shift)[again], slopes[again], head[again])
        signs[again] = (signs[again] + others) / 2
    return signs


def _generic_sign(
    means: np.ndarray, slopes: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[sign f] for lines in general position, and whether f cancels on any cell."""
    active = _patterns(means.shape[1])
    total = np.sign(np.sum(head * np.maximum(means, 0.0), axis=1))
    # zeros of f in the cell of a set of active units; where all heads have one sign, f has none
    mixed = ((head > 0) @ active.T) & ((head < 0) @ active.T)
    outputs = np.concatenate([means[..., None], slopes], axis=2) * head[..., None]
    pieces = np.einsum("ck,nkd->ncd", active.astype(float), outputs)
    sizes = np.sqrt(pieces[..., 1] ** 2 + pieces[..., 2] ** 2)
    gross = active @ np.abs(outputs[..., 1:]).sum(axis=2).T
    cancels = np.any(mixed & (sizes <= CANCELS * gross.T), axis=1)
    plane, cell = np.nonzero(mixed & (np.abs(pieces[..., 0]) < REACH * sizes))
    sides = np.where(active, 1.0, -1.0)[cell]
    total += _over_edges(plane, pieces[plane, cell], np.full(len(plane), 2.0), sides, means, slopes)
    # edges of the cell without active units, on which f = 0
    plane, unit = np.nonzero(
        (head != 0) & (np.abs(means) < REACH * np.sqrt(np.sum(slopes**2, axis=2)))
    )
    sides = np.where(np.eye(means.shape[1]) > 0, 0.0, -1.0)[unit]
    lines = np.concatenate([means[plane, unit, None], slopes[plane, unit]], axis=1)
    total += _over_edges(plane, lines, np.sign(head[plane, unit]), sides, means, slopes)
    return total, cancels


def _over_edges(
    plane: np.ndarray,
    lines: np.ndarray,
    jumps: np.ndarray,
    sides: np.ndarray,
    means: np.ndarray,
    slopes: np.ndarray,
) -> np.ndarray:
    """Sum the contributions of edges on the lines (1, z_1, z_2).lines = 0, (E, 3), by plane.

    An edge is the part of its line on which `sides` times the preactivations (E, K) is nonnegative.
    Across it sign f changes by `jumps` in the direction in which (1, z_1, z_2).lines increases.
    """
    sizes = np.sqrt(lines[:, 1] ** 2 + lines[:, 2] ** 2)
    offset, x, y = -lines[:, 0] / sizes, lines[:, 1] / sizes, lines[:, 2] / sizes
    first, second = slopes[plane, :, 0], slopes[plane, :, 1]
    start = sides * (means[plane] + offset[:, None] * (x[:, None] * first + y[:, None] * second))
    rate = sides * (x[:, None] * second - y[:, None] * first)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -start / rate
    low = np.max(np.where(rate > 0, crossing, -2 * REACH), axis=1, initial=-2 * REACH)
    high = np.min(np.where(rate < 0, crossing, 2 * REACH), axis=1, initial=2 * REACH)
    there = np.nonzero((low < high) & np.all((rate != 0) | (start >= 0), axis=1))[0]
    distance = np.maximum(np.abs(offset[there]), 1e-300)
    masses = special.owens_t(distance, high[there] / distance) - special.owens_t(
        distance, low[there] / distance
    )
    beyond = np.where(offset[there] >= 0, jumps[there], -jumps[there])
    return np.bincount(plane[there], beyond * masses, len(means))
