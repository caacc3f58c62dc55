"""Moments of a ReLU network on a Gaussian cluster, up to four units: a pair given the other units.

One unit is integrated on two half-lines, two units in their plane (`half_lines`). With three or
four units, one unit or a pair is integrated first, and the remaining pair in its plane given each
of the outer points. Given the outer units, the signs of the last pair may depend on them through a
steep layer; the order of the units and graded nodes keep the error small.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.base.arrays import Nodes, Numeric, Scalar
from sgdynamics.expectations import half_lines
from sgdynamics.expectations.half_lines import Frame, standardise
from sgdynamics.expectations.mixture_moments import (
    ClusterMoments,
    MixtureQuadrature,
    condition_on_kinks,
    softplus_from_sigmoid,
)
from sgdynamics.expectations.nodes import lower_root, safe_ratio, safe_root


class _OuterPoints(NamedTuple):
    """Points of the units that are integrated first, and the last pair given each of them."""

    weights: Float[Numeric, " N"]
    active: Float[Numeric, "N k"]  # whether each outer unit is positive
    f: Float[Numeric, " N"]  # output of the outer units
    mean_a: Float[Numeric, " N"]  # conditional means of the last pair
    mean_b: Float[Numeric, " N"]
    frame: Frame
    head_a: Float[Numeric, "..."]
    head_b: Float[Numeric, "..."]


def _build_outer_points(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " n"],
    root: Float[Numeric, "n n"],
    head: Float[Numeric, " n"],
    layered: bool,
) -> _OuterPoints:
    """Points of all units but the last two: none, one unit, or a pair."""
    outer = mean.shape[0] - 2
    last_pair = {
        "frame": half_lines.pair_frame(root[outer:, outer:]),
        "head_a": head[outer],
        "head_b": head[outer + 1],
    }
    if outer == 0:
        weights = jnp.ones(1, mean.dtype)
        no_units = jnp.zeros((1, 0), mean.dtype)
        return _OuterPoints(weights, no_units, 0 * weights, mean[:1], mean[1:], **last_pair)
    # standard deviations of the last pair given the outer units
    residual_scale = safe_root(jnp.sum(root[outer:, outer:] ** 2, axis=1))
    if outer == 1:
        z, weights, active = _single_unit_points(
            quadrature, nodes, mean, root, residual_scale, layered
        )
    else:
        z, weights, active = _pair_points(quadrature, nodes, mean, root, residual_scale)
    # means of all units given the outer coordinates z
    fields = mean[:, None] + root[:, :outer] @ z
    f = jnp.sum(head[:outer, None] * active * fields[:outer], axis=0)
    return _OuterPoints(
        weights.reshape(-1), active.T, f, fields[outer], fields[outer + 1], **last_pair
    )


def _single_unit_points(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, "3"],
    root: Float[Numeric, "3 3"],
    residual_scale: Float[Numeric, "2"],
    layered: bool,
) -> tuple[Float[Numeric, "1 n"], Float[Numeric, "2 k"], Float[Numeric, "1 n"]]:
    """Points z of a single outer unit on the half-lines beyond its kink, weights and activity."""
    # h_0 = 0 at this coordinate
    edge = -standardise(mean[0], root[0, 0])
    grading = _grading(quadrature, residual_scale, root[1:, 0]) if layered else None
    z, weights = half_lines.graded_nodes(
        nodes[f"half_line_{quadrature.line}"], jnp.stack([edge, -edge]), grading
    )
    z = jnp.concatenate([z[0], -z[1]])
    return z[None], weights, jnp.asarray(np.repeat([1.0, 0.0], z.shape[0] // 2))[None]


def _pair_points(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    root: Float[Numeric, "p p"],
    residual_scale: Float[Numeric, "2"],
) -> tuple[Float[Numeric, "2 n"], Float[Numeric, "2 k m"], Float[Numeric, "2 n"]]:
    """Points z of an outer pair on either side of both of its kinks, weights and activities."""
    pair = half_lines.pair_frame(root[:2, :2])
    # slopes of the last pair in n; if the first unit has no variance, n belongs to the second
    slopes = jnp.where(
        pair.sa > 0, root[2:, 0] * pair.cos + pair.sign * root[2:, 1] * pair.sin, root[2:, 1]
    )
    plane = half_lines.plane_points(
        _half_line_tables(nodes, quadrature.outer),
        quadrature.outer[2],
        quadrature.span,
        pair,
        mean[:1],
        mean[1:2],
        _grading(quadrature, residual_scale, slopes),
    )
    count = quadrature.outer[0]
    # coordinates n of all pieces, for each t
    n = jnp.concatenate([plane.outside.reshape(2, count, -1), plane.between[0]], axis=-1)
    n_weights = jnp.concatenate(
        [plane.outside_weight.reshape(2, count, -1), plane.between_weight[0]], axis=-1
    )
    weights = n_weights * plane.weight[0][..., None]
    t = plane.t[0][..., None]
    # activities in the order of n: above both lines, below both, then between them
    outside, between = jnp.split(half_lines.active_units(pair.sign), 2, axis=1)
    per_side = plane.outside.shape[-1]
    above_below = jnp.broadcast_to(
        jnp.repeat(outside, per_side, axis=1)[:, None, None], (2, 2, count, 2 * per_side)
    )
    right_left = jnp.broadcast_to(between[:, :, None, None], (2, 2, count, plane.between.shape[-1]))
    active = jnp.concatenate([above_below, right_left], axis=-1).reshape(2, -1)
    # back from (t, n) to the coordinates of the root
    first = pair.cos * n + pair.sin * t
    second = jnp.where(pair.sa > 0, pair.sign * (pair.sin * n - pair.cos * t), n)
    return jnp.stack([first, second]).reshape(2, -1), weights, active


def _half_line_tables(
    nodes: Nodes, counts: tuple[int, int, int]
) -> tuple[Float[Numeric, "k m n"], Float[Numeric, "k m l"]]:
    return nodes[f"half_line_{counts[0]}"], nodes[f"half_line_{counts[1]}"]


def _grading(
    quadrature: MixtureQuadrature,
    residual_scale: Float[Numeric, "2"],
    slope: Float[Numeric, "2"],
) -> half_lines.Grading:
    """Nodes down to the narrowest layer that the last pair makes at a kink.

    The width of a layer is the scale of a unit given the outer units, divided by its slope.
    """
    steep = jnp.abs(slope)
    widths = jnp.where(steep > 0, residual_scale / jnp.where(steep > 0, steep, 1.0), 1.0)
    # the positions of nodes do not matter for the derivative of an integral
    layer = jax.lax.stop_gradient(jnp.clip(jnp.min(widths), 1e-5, 1.0))
    return half_lines.Grading(quadrature.graded, quadrature.near, layer)


def _integrate_last_pair(
    quadrature: MixtureQuadrature, nodes: Nodes, outer: _OuterPoints, flip: Scalar
) -> tuple[Float[Numeric, "n 4"], Float[Numeric, "n 4"], Float[Numeric, " n"]]:
    """E[q] and E[q^2] on the four parts of the plane of the last pair, and E[softplus(flip f)].

    The parts are those of `half_lines.active_units`; one row for each outer point.
    """
    frame = outer.frame
    # the plane of the last pair, with conditional means for each outer point
    plane = half_lines.plane_points(
        _half_line_tables(nodes, quadrature.inner),
        quadrature.inner[2],
        quadrature.span,
        frame,
        outer.mean_a,
        outer.mean_b,
    )
    # f is linear in t and n on every part, with slopes that depend on the part alone
    active = half_lines.active_units(frame.sign)
    va, vb = (
        flip * outer.head_a[:, None] * active[:, 0],
        flip * outer.head_b[:, None] * active[:, 1],
    )
    level = flip * outer.f[:, None] + va * outer.mean_a[:, None] + vb * outer.mean_b[:, None]
    signed_sb = (frame.sign * frame.sb)[:, None]
    slope_t = (va * frame.sa[:, None] - vb * signed_sb) * frame.sin[:, None]
    slope_n = (va * frame.sa[:, None] + vb * signed_sb) * frame.cos[:, None]
    level_out = level[:, None, None, :2] + slope_t[:, None, None, :2] * plane.t[..., None]
    level_mid = level[:, 2:, None] + slope_t[:, 2:, None] * plane.t
    f_out = level_out[..., None] + slope_n[:, None, None, :2, None] * plane.outside
    f_mid = level_mid[..., None] + slope_n[:, 2:, None, None] * plane.between
    q_out, q_mid = jax.nn.sigmoid(f_out), jax.nn.sigmoid(f_mid)
    w_out = plane.outside_weight * plane.weight[..., None, None]
    w_mid = plane.between_weight * plane.weight[..., None]

    def integrate(
        out: Float[Numeric, "m 2 n 2 n"], mid: Float[Numeric, "m 2 n k"]
    ) -> Float[Numeric, "m 4"]:
        return jnp.concatenate(
            [jnp.sum(w_out * out, axis=(1, 2, 4)), jnp.sum(w_mid * mid, axis=(2, 3))], axis=1
        )

    softplus = integrate(softplus_from_sigmoid(f_out, q_out), softplus_from_sigmoid(f_mid, q_mid))
    return integrate(q_out, q_mid), integrate(q_out**2, q_mid**2), jnp.sum(softplus, axis=1)


def _order_units(
    mean: Float[Numeric, " n"], covariance: Float[Numeric, "n n"]
) -> tuple[Int[Numeric, " n"], Int[Numeric, " n"]]:
    """An order of the units, and its inverse: last the pair whose signs the others determine least.

    Given the outer units, unit j makes a layer of width (1 - R_j^2)/R_j^2 in units of its variance,
    with R_j^2 the share of it that they explain, and matters as exp(-mean_j^2/(2 variance_j)). All
    orders agree up to quadrature; this one has a small error.
    """
    width = mean.shape[0]
    if width <= 2:
        return np.arange(width), np.arange(width)
    # all choices of the last pair
    pairs = [(i, j) for i in range(width) for j in range(i)]
    orders = np.array([[k for k in range(width) if k not in pair] + list(pair) for pair in pairs])
    scale = safe_root(jnp.diagonal(covariance))
    importance = jnp.exp(-(standardise(mean, scale) ** 2) / 2)
    correlation = safe_ratio(covariance, scale[:, None] * scale)
    last, a, b = orders[:, -2:], orders[:, :1], orders[:, width - 3 : width - 2]
    with_a, with_b = correlation[a, last], correlation[b, last]
    if width == 3:
        explained = with_a**2
    else:
        # R^2 of a regression on two variables
        between = correlation[a, b]
        explained = safe_ratio(
            with_a**2 + with_b**2 - 2 * with_a * with_b * between,
            jnp.maximum(1 - between**2, 1e-12),
        )
    explained = jnp.clip(explained, 0.0, 1.0)
    layers = jnp.max(importance[last] * explained / (1 - explained + 1e-12), axis=1)
    # the choice is discrete: derivatives do not pass through it
    best = jnp.argmin(jax.lax.stop_gradient(layers))
    return jnp.asarray(orders)[best], jnp.asarray(np.argsort(orders, axis=1))[best]


class _UnitMoments(NamedTuple):
    """Moments of a single unit."""

    first: Float[Numeric, ""]  # E[1 q]
    second: Float[Numeric, ""]  # E[1 q^2]
    risk: Float[Numeric, ""]  # E[softplus(flip f)]
    total: Float[Numeric, ""]  # E[q]


def _integrate_unit(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, ""],
    scale: Float[Numeric, ""],
    head: Float[Numeric, ""],
    flip: Scalar,
) -> _UnitMoments:
    """Moments of a single unit on two half-lines; where it is inactive f = 0 and q = 1/2."""
    table = nodes[f"half_line_{quadrature.line}"]
    z, weights = half_lines.both(table, -standardise(mean, scale))
    f = flip * head * (mean + scale * z[0])
    q = jax.nn.sigmoid(f)
    inactive = jnp.sum(weights[1])
    first = weights[0] @ q
    risk = weights[0] @ softplus_from_sigmoid(f, q) + inactive * np.log(2)
    return _UnitMoments(first, weights[0] @ q**2, risk, first + inactive / 2)


def pair_moments(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> ClusterMoments:
    """Moments of one cluster with up to four units."""
    width = mean.shape[0]
    at_kink = condition_on_kinks(mean, covariance, head)
    if width == 1:
        unit = _integrate_unit(
            quadrature, nodes, mean[0], safe_root(covariance[0, 0]), head[0], flip
        )
        # e = flip q; at the kink of the only unit f = 0 and q = 1/2
        return ClusterMoments(
            flip * unit.first[None],
            flip * at_kink.density / 2,
            (unit.first - unit.second)[None, None],
            unit.second[None, None],
            unit.risk,
        )

    def build_points(
        mean: Float[Numeric, " n"],
        covariance: Float[Numeric, "n n"],
        head: Float[Numeric, " n"],
        layered: bool = False,
    ) -> tuple[_OuterPoints, Int[Numeric, " n"]]:
        order, inverse_order = _order_units(mean, covariance)
        root = lower_root(covariance[order][:, order])
        points = _build_outer_points(quadrature, nodes, mean[order], root, head[order], layered)
        count = points.weights.shape[0]
        frame, head_a, head_b = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (count,)), (points.frame, points.head_a, points.head_b)
        )
        return points._replace(frame=frame, head_a=head_a, head_b=head_b), inverse_order

    outer, inverse_order = build_points(mean, covariance, head, True)
    count = outer.weights.shape[0]
    if width == 2:
        q, q2, softplus = _integrate_last_pair(quadrature, nodes, outer, flip)
        # given that a unit is at its kink, one unit is left
        scales = safe_root(at_kink.covariance[:, 0, 0])
        at_kinks = jax.vmap(
            lambda mean, scale, head: (
                _integrate_unit(quadrature, nodes, mean, scale, head, flip).total
            )
        )(at_kink.mean[:, 0], scales, at_kink.head[:, 0])
    else:
        # The last pairs given the outer units and, for D, given that a unit is at its kink: in one
        # pass, compiled once. At its kink a unit makes no layers, so those points need no grading.
        kink_points, _ = jax.vmap(build_points)(at_kink.mean, at_kink.covariance, at_kink.head)
        # the activities of outer units are not needed here; weights take their place in the tree
        flat = jax.tree.map(
            lambda x: x.reshape(-1), kink_points._replace(active=kink_points.weights)
        )
        joined = jax.tree.map(
            lambda *x: jnp.concatenate(x), outer._replace(active=outer.weights), flat
        )
        q, q2, softplus = _integrate_last_pair(quadrature, nodes, joined, flip)
        kink_means = jnp.sum(q[count:], axis=1).reshape(width, -1)
        at_kinks = jnp.sum(kink_points.weights * kink_means, axis=1)
    first, second = (outer.weights[:, None] * x[:count] for x in (q, q2))
    # activities of all units (outer point and part of the plane, unit), in the original order
    last = jnp.moveaxis(half_lines.active_units(outer.frame.sign), -1, -2)
    active = jnp.concatenate([jnp.repeat(outer.active[:, None], 4, axis=1), last], axis=-1)
    active = active.reshape(-1, width)[:, inverse_order]
    first, second = first.reshape(-1), second.reshape(-1)
    B = active.T @ (second[:, None] * active)
    S = active.T @ (first[:, None] * active) - B
    risk = outer.weights @ softplus[:count]
    return ClusterMoments(flip * first @ active, flip * at_kink.density * at_kinks, S, B, risk)
