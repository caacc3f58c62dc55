"""Gaussian expectations of a ReLU network under logistic loss, on clusters N(mean, covariance) of its fields.

With f = sum_i v_i relu(h_i), label y in {0, 1}, e = sigmoid(f) - y and 1_i = 1{h_i >= 0}, each cluster has

    P_i = E[1_i e],   D_i = p_{h_i}(0) E[e | h_i = 0],   S_ij = E[1_i 1_j sigmoid'(f)],   B_ij = E[1_i 1_j e^2],   E[softplus(f) - y f],

which by Stein's lemma make the drift of one-pass SGD on a Gaussian mixture (Ben Arous, Gheissari and Jagannath 2022, Prop. 4.1
and its analogue for XOR), at any covariance, singular ones included.

One and two units are integrated to rounding, three and four by a pair given the rest (see half_lines), more on circles through
Sobol points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Scalar
from sgdynamics.base.checks import integer
from sgdynamics.expectations import half_lines, nested
from sgdynamics.expectations.half_lines import Frame, standardised
from sgdynamics.expectations.nodes import (
    gauss_legendre,
    lower_root,
    safe_ratio,
    safe_root,
    sobol_normals,
)

WIDTHS = 4  # units integrated by nested rules; more are sampled


class ClusterMoments(NamedTuple):
    """P (C, K), D (C, K), S (C, K, K), B (C, K, K), risk (C,) of C clusters and K units."""

    P: Float[Numeric, "clusters p"]
    D: Float[Numeric, "clusters p"]
    S: Float[Numeric, "clusters p p"]
    B: Float[Numeric, "clusters p p"]
    risk: Float[Numeric, " clusters"]


@dataclass(frozen=True)
class MixtureQuadrature:
    """How finely to integrate.

    `inner`: nodes along (a half-line), across (a half-line) and between the lines of the pair that is integrated last. `outer`: the
    same of a pair that is integrated first, with so many nodes between its lines from either of them; `line`: nodes a half-line of a
    single unit. What comes first has `graded` nodes more on either side of each kink, crowded over a stretch `near`, which resolve the
    layers of units that are nearly parallel. `lines`: two numbers of nodes a half-line of nested rules, which are better where no units are
    nearly parallel: taken where the two agree. `span`: standard deviations up to which nodes between lines reach. Past four units:
    2^log2_circles circles for P, S, B and the risk, 2^log2_points points for D, in independent replicates.
    """

    line: int = 6
    inner: tuple[int, int, int] = (5, 5, 14)
    outer: tuple[int, int, int] = (5, 4, 8)
    graded: int = 6
    near: float = 1.0
    span: float = 5.5
    lines: tuple[int, ...] = ()
    log2_circles: int = 9
    log2_points: int = 11
    replicates: int = 4


def choose_quadrature(width: int, *, fine: bool = False) -> MixtureQuadrature:
    """The rule for so many units: one and two to rounding, three and four to 1e-8 (four nearly parallel to 1e-5; fine: 1e-6), more sampled.

    That is where v_i times the standard deviation of h_i is about 1 or less; a steeper f needs more nodes, and `error` says so.
    """
    width = integer("width", width, 1)
    if width <= 2:
        return MixtureQuadrature(line=16, inner=(16, 16, 40), span=8.5)
    if width == 3:
        return MixtureQuadrature(line=12, inner=(12, 12, 28), graded=12, span=7.5)
    if not fine:
        return MixtureQuadrature(lines=(5, 7))
    return MixtureQuadrature(
        lines=(7, 9),
        line=8,
        inner=(6, 7, 16),
        outer=(7, 6, 9),
        graded=8,
        span=6.3,
        log2_circles=12,
        log2_points=14,
    )


def sampled(width: int) -> bool:
    """Whether the moments of so many units are averages over random points."""
    return width > WIDTHS


def build_nodes(quadrature: MixtureQuadrature, width: int) -> dict[str, np.ndarray]:
    """The arrays the rule needs, with a leading axis of replicates (of one, where the moments are not sampled)."""
    if sampled(width):
        return {
            "circles": sobol_normals(
                2 * width, quadrature.log2_circles, quadrature.replicates, whiten=False
            ),
            "points": sobol_normals(
                width, quadrature.log2_points, quadrature.replicates, whiten=False, seed=20261
            ),
        }
    counts = {quadrature.line, *quadrature.inner[:2], *quadrature.lines} | (
        set(quadrature.outer[:2]) if width == WIDTHS else set()
    )
    return {f"half_line_{count}": half_lines.table(count)[None] for count in counts}


def cluster_moments(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    means: Float[Numeric, "clusters p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    labels: Float[Numeric, " clusters"],
) -> ClusterMoments:
    """P, D, S, B and risk of every cluster; `nodes` is one replicate of `nodes_for`.

    means (C, K), covariance (K, K) positive semi-definite, head (K,), labels (C,) of 0 and 1. A unit without variance is active
    where its mean is >= 0, and its D is 0. Exact up to quadrature; see `error`.
    """
    means, covariance, head, labels = (jnp.asarray(x) for x in (means, covariance, head, labels))
    if sampled(means.shape[1]):
        return jax.vmap(
            lambda mean, label: _on_circles(nodes, mean, covariance, head, 1 - 2 * label)
        )(means, labels)
    found = jax.vmap(
        lambda mean, label: _nested(quadrature, nodes, mean, covariance, head, 1 - 2 * label)
    )(means, labels)
    if not quadrature.lines:
        return found
    # one cluster after the other: side by side their many points leave the cache
    better, doubts = jax.lax.map(
        lambda given: _by_lines(quadrature, nodes, given[0], covariance, head, 1 - 2 * given[1]),
        (means, labels),
    )

    def mixed(pairs: Float[Numeric, "*s"], lines: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
        share = doubts.reshape(-1, *[1] * (pairs.ndim - 1))
        return share * pairs + (1 - share) * lines

    return jax.tree.map(mixed, found, better)


def _by_lines(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> tuple[ClusterMoments, Float[Numeric, ""]]:
    """A cluster by nested half-lines, and how far not to believe them."""
    coarse, fine = (
        nested.orthants(nodes[f"half_line_{count}"], mean, covariance, head, flip)
        for count in quadrature.lines
    )
    table = nodes[f"half_line_{quadrature.lines[-1]}"]
    density, edge_mean, edge_covariance, edge_head = _conditioned(mean, covariance, head)
    edges = jax.vmap(lambda m, c, v: nested.orthants(table, m, c, v, flip).total)(
        edge_mean, edge_covariance, edge_head
    )
    found = ClusterMoments(
        flip * fine.first, flip * density * edges, fine.both - fine.squares, fine.squares, fine.risk
    )
    return found, nested.doubt(coarse, fine)


def error(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    means: Float[Numeric, "p p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    labels: Float[Numeric, " clusters"],
) -> Float[Numeric, ""]:
    """Estimated relative error of `cluster_moments` at one state; `nodes` is all of `nodes_for`, replicates included.

    Sampled: the standard error over replicates. Else the difference from a rule of other counts: a coarser one for one and two
    units, a finer one for three and four. D is measured in units of 1/(standard deviation), beside P.
    """
    means, covariance, head, labels = (jnp.asarray(x) for x in (means, covariance, head, labels))
    spread = safe_root(jnp.diagonal(covariance))
    if sampled(means.shape[1]):
        each = jax.vmap(
            lambda node: cluster_moments(quadrature, node, means, covariance, head, labels)
        )(nodes)
        values = jax.tree.map(lambda value: jnp.mean(value, axis=0), each)
        gaps = jax.tree.map(
            lambda value: jnp.std(value, axis=0, ddof=1) / np.sqrt(value.shape[0]), each
        )
    else:
        other = _other(quadrature, means.shape[1])
        first = {name: value[0] for name, value in nodes.items()}
        values = cluster_moments(quadrature, first, means, covariance, head, labels)
        theirs = {
            name: jnp.asarray(value[0])
            for name, value in build_nodes(other, means.shape[1]).items()
        }
        check = cluster_moments(other, theirs, means, covariance, head, labels)
        gaps = jax.tree.map(lambda left, right: jnp.abs(left - right), values, check)

    def worst(gap: Float[Numeric, "*s"], *sizes: Float[Numeric, "..."]) -> Float[Numeric, ""]:
        return jnp.max(gap) / (
            jnp.max(jnp.stack([jnp.max(jnp.abs(size)) for size in sizes])) + 1e-300
        )

    ratios = [worst(gaps.D * spread, values.D * spread, values.P)]
    ratios += [
        worst(getattr(gaps, name), getattr(values, name)) for name in ("P", "S", "B", "risk")
    ]
    return jnp.max(jnp.stack(ratios))


def _other(quadrature: MixtureQuadrature, width: int) -> MixtureQuadrature:
    """The rule that another is compared with."""
    along, across, middle = quadrature.inner
    if width <= 2:
        return replace(
            quadrature, line=quadrature.line - 4, inner=(along - 4, across - 4, middle - 10)
        )
    inner, outer = (
        (along + 1, across + 1, middle + 4),
        tuple(count + 2 for count in quadrature.outer),
    )
    lines = tuple(count + 1 for count in quadrature.lines)
    return replace(
        quadrature,
        line=quadrature.line + 2,
        inner=inner,
        outer=outer,
        graded=quadrature.graded + 4,
        near=0.7 * quadrature.near,
        span=quadrature.span + 0.7,
        lines=lines,
    )


# nested rules


class _Given(NamedTuple):
    """Points of what is integrated first: weights (N,), activities (N, k), f so far (N,), then the pair given each: means, frame, heads."""

    weights: Any
    active: Any
    f: Any
    ma: Any
    mb: Any
    frame: Frame
    va: Any
    vb: Any


def _given(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " n"],
    root: Float[Numeric, "n n"],
    head: Float[Numeric, " n"],
    layered: bool,
) -> _Given:
    """Points of all units but the last two (none, one or a pair)."""
    first = mean.shape[0] - 2
    last = {
        "frame": half_lines.frame(root[first:, first:]),
        "va": head[first],
        "vb": head[first + 1],
    }
    if first == 0:
        one = jnp.ones(1, mean.dtype)
        return _Given(one, jnp.zeros((1, 0), mean.dtype), 0 * one, mean[:1], mean[1:], **last)
    rest = safe_root(jnp.sum(root[first:, first:] ** 2, axis=1))
    z, weights, active = (
        _given_one(quadrature, nodes, mean, root, rest, layered)
        if first == 1
        else _given_pair(quadrature, nodes, mean, root, rest)
    )
    fields = mean[:, None] + root[:, :first] @ z
    f = jnp.sum(head[:first, None] * active * fields[:first], axis=0)
    return _Given(weights.reshape(-1), active.T, f, fields[first], fields[first + 1], **last)


def _given_one(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, "3"],
    root: Float[Numeric, "3 3"],
    rest: Float[Numeric, "2"],
    layered: bool,
) -> tuple[Float[Numeric, "1 n"], Float[Numeric, "K k"], Float[Numeric, "1 n"]]:
    """Points z (1, N) of a first unit, its kink at an edge of two half-lines; their weights, and whether it is active (1, N)."""
    edge = -standardised(mean[0], root[0, 0])
    grading = _grading(quadrature, rest, root[1:, 0]) if layered else None
    z, weights = half_lines.graded(
        nodes[f"half_line_{quadrature.line}"], jnp.stack([edge, -edge]), grading
    )
    z = jnp.concatenate([z[0], -z[1]])
    return z[None], weights, jnp.asarray(np.repeat([1.0, 0.0], z.shape[0] // 2))[None]


def _given_pair(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    root: Float[Numeric, "p p"],
    rest: Float[Numeric, "2"],
) -> tuple[Float[Numeric, "2 n"], Float[Numeric, "2 k m"], Float[Numeric, "2 n"]]:
    """Points z (2, N) of a first pair, on either side of both of its kinks; their weights, and which of the two are active (2, N)."""
    pair = half_lines.frame(root[:2, :2])
    # without variance of the first, n is the second's own coordinate
    by_n = jnp.where(
        pair.sa > 0, root[2:, 0] * pair.cos + pair.sign * root[2:, 1] * pair.sin, root[2:, 1]
    )
    grading = _grading(quadrature, rest, by_n)
    plane = half_lines.plane(
        _tables(nodes, quadrature.outer),
        quadrature.outer[2],
        quadrature.span,
        pair,
        mean[:1],
        mean[1:2],
        grading,
    )
    count = quadrature.outer[0]
    n = jnp.concatenate([plane.outside.reshape(2, count, -1), plane.between[0]], axis=-1)
    weights = (
        jnp.concatenate(
            [plane.outside_weight.reshape(2, count, -1), plane.between_weight[0]], axis=-1
        )
        * plane.weight[0][..., None]
    )
    t = plane.t[0][..., None]
    outside, between = jnp.split(half_lines.active(pair.sign), 2, axis=1)
    each = plane.outside.shape[-1]
    above_below = jnp.broadcast_to(
        jnp.repeat(outside, each, axis=1)[:, None, None], (2, 2, count, 2 * each)
    )
    right_left = jnp.broadcast_to(between[:, :, None, None], (2, 2, count, plane.between.shape[-1]))
    active = jnp.concatenate([above_below, right_left], axis=-1).reshape(2, -1)
    second = jnp.where(pair.sa > 0, pair.sign * (pair.sin * n - pair.cos * t), n)
    return jnp.stack([pair.cos * n + pair.sin * t, second]).reshape(2, -1), weights, active


def _tables(
    nodes: Nodes, counts: tuple[int, int, int]
) -> tuple[Float[Numeric, "k m n"], Float[Numeric, "k m l"]]:
    return nodes[f"half_line_{counts[0]}"], nodes[f"half_line_{counts[1]}"]


def _grading(
    quadrature: MixtureQuadrature, rest: Float[Numeric, "2"], slope: Float[Numeric, "2"]
) -> half_lines.Grading:
    """Nodes down to the narrowest layer that later units make at a kink: their spread given the earlier units, over their slope."""
    steep = jnp.abs(slope)
    layer = jnp.min(jnp.where(steep > 0, rest / jnp.where(steep > 0, steep, 1.0), 1.0))
    return half_lines.Grading(
        quadrature.graded, quadrature.near, jax.lax.stop_gradient(jnp.clip(layer, 1e-5, 1.0))
    )


def _over_pair(
    quadrature: MixtureQuadrature, nodes: Nodes, given: _Given, flip: Scalar
) -> tuple[Float[Numeric, "n 4"], Float[Numeric, "n 4"], Float[Numeric, " n"]]:
    """Of q = sigmoid(flip f) given each point: the parts (N, 4) of E[q] and E[q^2] above, below, right, left; E[softplus(flip f)]."""
    frame = given.frame
    plane = half_lines.plane(
        _tables(nodes, quadrature.inner),
        quadrature.inner[2],
        quadrature.span,
        frame,
        given.ma,
        given.mb,
    )
    # f is linear in n on every piece, with a slope that depends on the piece alone
    active = half_lines.active(frame.sign)
    va, vb = flip * given.va[:, None] * active[:, 0], flip * given.vb[:, None] * active[:, 1]
    level = flip * given.f[:, None] + va * given.ma[:, None] + vb * given.mb[:, None]
    by_t = (va * frame.sa[:, None] - vb * (frame.sign * frame.sb)[:, None]) * frame.sin[:, None]
    by_n = (va * frame.sa[:, None] + vb * (frame.sign * frame.sb)[:, None]) * frame.cos[:, None]
    at_out = level[:, None, None, :2] + by_t[:, None, None, :2] * plane.t[..., None]
    at_mid = level[:, 2:, None] + by_t[:, 2:, None] * plane.t
    f_out = at_out[..., None] + by_n[:, None, None, :2, None] * plane.outside
    f_mid = at_mid[..., None] + by_n[:, 2:, None, None] * plane.between
    q_out, q_mid = jax.nn.sigmoid(f_out), jax.nn.sigmoid(f_mid)
    w_out, w_mid = (
        plane.outside_weight * plane.weight[..., None, None],
        plane.between_weight * plane.weight[..., None],
    )

    def parts(
        above: Float[Numeric, "m 2 n 2 n"], middle: Float[Numeric, "m 2 n k"]
    ) -> Float[Numeric, "m 4"]:
        return jnp.concatenate(
            [jnp.sum(w_out * above, axis=(1, 2, 4)), jnp.sum(w_mid * middle, axis=(2, 3))], axis=1
        )

    return (
        parts(q_out, q_mid),
        parts(q_out**2, q_mid**2),
        jnp.sum(parts(_softplus(f_out, q_out), _softplus(f_mid, q_mid)), axis=1),
    )


def _softplus(f: Float[Numeric, "*s"], q: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """log(1 + exp f) from q = sigmoid(f), at the price of one logarithm."""
    return jnp.maximum(f, 0.0) - jnp.log(jnp.maximum(q, 1 - q))


# one cluster


def _order(
    mean: Float[Numeric, " n"], covariance: Float[Numeric, "n n"]
) -> tuple[Int[Numeric, " n"], Int[Numeric, " n"]]:
    """An order of the units, and its inverse: last the pair whose signs the units before it leave most open.

    Given those, unit j is a layer of width (1 - R_j^2)/R_j^2 in variances, R_j^2 its share explained by them, and matters as
    exp(-mean_j^2/(2 variance_j)). Any order is right up to quadrature; this one keeps that error small.
    """
    width = mean.shape[0]
    if width <= 2:
        return np.arange(width), np.arange(width)
    pairs = [(i, j) for i in range(width) for j in range(i)]
    orders = np.array([[k for k in range(width) if k not in pair] + list(pair) for pair in pairs])
    spread = safe_root(jnp.diagonal(covariance))
    open_sign = jnp.exp(-(standardised(mean, spread) ** 2) / 2)
    correlation = safe_ratio(covariance, spread[:, None] * spread)
    last, a, b = orders[:, -2:], orders[:, :1], orders[:, width - 3 : width - 2]
    one, other = correlation[a, last], correlation[b, last]
    if width == 3:
        share = one**2
    else:
        both = correlation[a, b]
        share = safe_ratio(
            one**2 + other**2 - 2 * one * other * both, jnp.maximum(1 - both**2, 1e-12)
        )
    share = jnp.clip(share, 0.0, 1.0)
    layers = jnp.max(open_sign[last] * share / (1 - share + 1e-12), axis=1)
    best = jnp.argmin(jax.lax.stop_gradient(layers))
    return jnp.asarray(orders)[best], jnp.asarray(np.argsort(orders, axis=1))[best]


def _conditioned(
    mean: Float[Numeric, " p"], covariance: Float[Numeric, "p p"], head: Float[Numeric, " p"]
) -> tuple[
    Float[Numeric, " p"], Float[Numeric, "p n"], Float[Numeric, "p n n"], Float[Numeric, "p n"]
]:
    """For each unit i: p_{h_i}(0), and mean, covariance and head of the others given h_i = 0."""
    width = mean.shape[0]

    def one(
        i: IntScalar, others: Int[Numeric, " n"]
    ) -> tuple[
        Float[Numeric, ""], Float[Numeric, " n"], Float[Numeric, "n n"], Float[Numeric, " n"]
    ]:
        variance = covariance[i, i]
        slope = safe_ratio(covariance[:, i], variance)
        safe = jnp.where(variance > 0, variance, 1.0)
        density = jnp.where(
            variance > 0, jnp.exp(-(mean[i] ** 2) / (2 * safe)) / jnp.sqrt(2 * np.pi * safe), 0.0
        )
        rest = covariance - slope[:, None] * slope * variance
        return density, (mean - slope * mean[i])[others], rest[others][:, others], head[others]

    others = np.array([[j for j in range(width) if j != i] for i in range(width)], int).reshape(
        width, width - 1
    )
    return jax.vmap(one)(np.arange(width), others)


def _one_unit(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, ""],
    spread: Float[Numeric, ""],
    head: Float[Numeric, ""],
    flip: Scalar,
) -> tuple[Any, Any, Any, Any]:
    """E[1 q], E[1 q^2], E[softplus(flip f)] and E[q] of a single unit."""
    z, weights = half_lines.both(nodes[f"half_line_{quadrature.line}"], -standardised(mean, spread))
    f = flip * head * (mean + spread * z[0])
    q = jax.nn.sigmoid(f)
    silent = jnp.sum(weights[1])
    first = weights[0] @ q
    return (
        first,
        weights[0] @ q**2,
        weights[0] @ _softplus(f, q) + silent * np.log(2),
        first + silent / 2,
    )


def _nested(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> ClusterMoments:
    """One cluster of up to four units.

    With flip = 1 - 2y and q = sigmoid(flip f): e = flip q, e^2 = q^2, sigmoid'(f) = q - q^2, loss = softplus(flip f).
    """
    width = mean.shape[0]
    density, edge_mean, edge_covariance, edge_head = _conditioned(mean, covariance, head)
    if width == 1:
        first, second, risk, _ = _one_unit(
            quadrature, nodes, mean[0], safe_root(covariance[0, 0]), head[0], flip
        )
        return ClusterMoments(
            flip * first[None],
            flip * density / 2,
            (first - second)[None, None],
            second[None, None],
            risk,
        )

    def points(
        mean: Float[Numeric, " n"],
        covariance: Float[Numeric, "n n"],
        head: Float[Numeric, " n"],
        layered: bool = False,
    ) -> tuple[_Given, Int[Numeric, " n"]]:
        order, back = _order(mean, covariance)
        given = _given(
            quadrature,
            nodes,
            mean[order],
            lower_root(covariance[order][:, order]),
            head[order],
            layered,
        )
        count = given.weights.shape[0]
        spread = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (count,)), (given.frame, given.va, given.vb)
        )
        return given._replace(frame=spread[0], va=spread[1], vb=spread[2]), back

    given, back = points(mean, covariance, head, True)
    count = given.weights.shape[0]
    if width == 2:
        q, q2, soft = _over_pair(quadrature, nodes, given, flip)
        spreads = safe_root(edge_covariance[:, 0, 0])
        edges = jax.vmap(lambda m, s, v: _one_unit(quadrature, nodes, m, s, v, flip)[3])(
            edge_mean[:, 0], spreads, edge_head[:, 0]
        )
    else:
        # the pairs given the first units and, for D, given that a unit is at its kink: in one pass, compiled once
        # at its kink nothing is left that makes layers, so those points need no grading
        at_edges, _ = jax.vmap(points)(edge_mean, edge_covariance, edge_head)
        flat = jax.tree.map(lambda x: x.reshape(-1), at_edges._replace(active=at_edges.weights))
        together = jax.tree.map(
            lambda *x: jnp.concatenate(x), given._replace(active=given.weights), flat
        )
        q, q2, soft = _over_pair(quadrature, nodes, together, flip)
        edges = jnp.sum(at_edges.weights * jnp.sum(q[count:], axis=1).reshape(width, -1), axis=1)
    first, second = (given.weights[:, None] * x[:count] for x in (q, q2))
    last = jnp.moveaxis(half_lines.active(given.frame.sign), -1, -2)
    active = jnp.concatenate([jnp.repeat(given.active[:, None], 4, axis=1), last], axis=-1).reshape(
        -1, width
    )
    active, first, second = active[:, back], first.reshape(-1), second.reshape(-1)
    B = active.T @ (second[:, None] * active)
    S = active.T @ (first[:, None] * active) - B
    return ClusterMoments(
        flip * first @ active, flip * density * edges, S, B, given.weights @ soft[:count]
    )


# circles through Sobol points


class _Arcs(NamedTuple):
    """Circles h = mean + along cos(phi) + across sin(phi) (n, K), cut where a unit changes sign: starts and lengths (n, arcs)."""

    along: Any
    across: Any
    starts: Any
    lengths: Any


def _arcs(
    points: Float[Numeric, "m n"], mean: Float[Numeric, " p"], covariance: Float[Numeric, "p p"]
) -> _Arcs:
    """Averages over arcs are continuous in the state, where averages over points jump each time a kink passes one."""
    width = mean.shape[0]
    root = lower_root(covariance)
    along, across = points[:, :width] @ root.T, points[:, width:] @ root.T
    reach, centre = _reach(along, across, mean)
    turn = 2 * np.pi
    ends = jnp.zeros((points.shape[0], 1)), jnp.full((points.shape[0], 1), turn)
    edges = jnp.sort(
        jnp.concatenate(
            [*ends, jnp.mod(centre + reach, turn), jnp.mod(centre - reach, turn)], axis=1
        ),
        axis=1,
    )
    return _Arcs(along, across, edges[:, :-1], jnp.diff(edges, axis=1))


def _reach(
    along: Float[Numeric, "n p"], across: Float[Numeric, "n p"], mean: Float[Numeric, " p"]
) -> tuple[Float[Numeric, "n p"], Float[Numeric, "n p"]]:
    """mean + along cos + across sin > 0 within `reach` of the angle `centre`."""
    squared = along**2 + across**2
    level = -mean / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))
    crossed = (jnp.abs(level) < 1) & (squared > 0)
    always = jnp.where(mean > 0, np.pi, 0.0)
    reach = jnp.where(crossed, jnp.arccos(jnp.where(crossed, level, 0.0)), always)
    return reach, jnp.arctan2(across, jnp.where(squared > 0, along, 1.0))


ARC_NODES = 5


def _on_circles(
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> ClusterMoments:
    """One cluster of any number of units."""
    arcs = _arcs(nodes["circles"], mean, covariance)
    node, weight = gauss_legendre(ARC_NODES)
    phi = arcs.starts[..., None] + arcs.lengths[..., None] * node
    weights = (arcs.lengths[..., None] * weight).reshape(-1) / (2 * np.pi * phi.shape[0])
    turns = jnp.stack([jnp.cos(phi), jnp.sin(phi)]).reshape(2, phi.shape[0], -1, 1)
    h = (mean + turns[0] * arcs.along[:, None] + turns[1] * arcs.across[:, None]).reshape(
        -1, mean.shape[0]
    )
    active = (h >= 0).astype(h.dtype)
    f = flip * jnp.maximum(h, 0.0) @ head
    q = jax.nn.sigmoid(f)
    first, second = weights * q, weights * q**2
    B = active.T @ (second[:, None] * active)
    S = active.T @ (first[:, None] * active) - B
    # e is continuous, so plain points will do for D; h moved along its regression on h_i is h given h_i = 0
    density = _conditioned(mean, covariance, head)[0]
    slope = safe_ratio(covariance, jnp.diagonal(covariance))
    fields = mean + nodes["points"] @ lower_root(covariance).T

    def edge(i: IntScalar) -> Float[Numeric, ""]:
        given = fields - fields[:, i, None] * slope[:, i]
        return jnp.mean(
            jax.nn.sigmoid(flip * (jnp.maximum(given, 0.0) @ jnp.asarray(head).at[i].set(0.0)))
        )

    edges = jax.lax.map(edge, jnp.arange(mean.shape[0]))
    return ClusterMoments(
        flip * first @ active, flip * density * edges, S, B, weights @ _softplus(f, q)
    )
