"""Pair expectations of activations with kinks, by quadrature in polar coordinates.

With u = sqrt(q1) r cos(theta), v = sqrt(q2) r cos(theta - theta0) and rho = cos(theta0), each kink
is a line in the plane. Angles are cut where a line passes through the origin or meets another line,
and radii where the ray crosses a line. The integrand is therefore smooth on every piece, at any
correlation, also as rho -> +-1. The point masses of f'' (and of g' where g jumps) are added as
one-dimensional integrals along their lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, safe_ratio, safe_root
from sgdynamics.problems.activations import Activation

RADIUS = 9.5  # exp(-RADIUS^2/2) = 2.5e-20
MORE_RADIAL_NODES = 16  # a radial piece contains the Gaussian decay and needs more nodes

Elementwise = Callable[[Float[Numeric, "..."]], Float[Numeric, "..."]]


def pair_value(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    nodes: int,
) -> Float[Numeric, "m n"]:
    """K = E[f(u) g(v)] for all pairs (q1[i], q2[j], c[i, j])."""

    def value(
        q1: Float[Numeric, ""], q2: Float[Numeric, ""], c: Float[Numeric, ""]
    ) -> Float[Numeric, ""]:
        return _smooth_part(first, second, q1, q2, c, nodes, ((0, 0),))[0]

    # mapped over students, one after the other, to bound the memory
    return jax.lax.map(
        lambda row: jax.vmap(lambda q2, c: value(row[0], q2, c))(q2, row[1]), (q1, c)
    )


def pair_moments(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    nodes: int,
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """K = E[f g], A = E[f'' g], B = E[f' g'] for all pairs (q1[i], q2[j], c[i, j])."""

    def moments(
        q1: Float[Numeric, ""], q2: Float[Numeric, ""], c: Float[Numeric, ""]
    ) -> tuple[Float[Numeric, ""], Float[Numeric, ""], Float[Numeric, ""]]:
        K, A, B = _smooth_part(first, second, q1, q2, c, nodes, ((0, 0), (2, 0), (1, 1)))
        # f'' has point masses where f' jumps, and g' where g jumps
        A = A + _mass_part(first, 1, second.derivative(0), second.kinks, q1, q2, c, nodes)
        B = B + _mass_part(second, 0, first.derivative(1), first.kinks, q2, q1, c, nodes)
        return K, A, B

    return jax.lax.map(
        lambda row: jax.vmap(lambda q2, c: moments(row[0], q2, c))(q2, row[1]), (q1, c)
    )


def _smooth_part(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, ""],
    q2: Float[Numeric, ""],
    c: Float[Numeric, ""],
    nodes: int,
    orders: tuple[tuple[int, int], ...],
) -> list[Float[Numeric, ""]]:
    """E[f^(i)(u) g^(j)(v)] of the smooth pieces for each (i, j) in `orders`."""
    s1, s2 = jnp.sqrt(q1), jnp.sqrt(q2)
    # |rho| exceeds 1 by rounding only, because Omega is positive at the start
    rho = jnp.clip(safe_ratio(c, s1 * s2), -1.0, 1.0)
    theta0 = jnp.arctan2(safe_root((1 - rho) * (1 + rho)), rho)
    points = plane_points(first.kinks, second.kinks, s1, s2, theta0, nodes)
    return [
        jnp.sum(points.weights * first.derivative(i)(points.u) * second.derivative(j)(points.v))
        for i, j in orders
    ]


class PlanePoints(NamedTuple):
    """Points (angles, pieces, nodes) of a standard Gaussian plane, with weights of sum one."""

    x1: Float[Numeric, "angles pieces nodes"]  # Cartesian coordinates
    x2: Float[Numeric, "angles pieces nodes"]
    u: Float[Numeric, "angles pieces nodes"]  # fields
    v: Float[Numeric, "angles pieces nodes"]
    weights: Float[Numeric, "angles pieces nodes"]


def plane_points(
    kinks1: tuple[float, ...],
    kinks2: tuple[float, ...],
    s1: Float[Numeric, ""],
    s2: Float[Numeric, ""],
    angle: Float[Numeric, ""],
    nodes: int,
) -> PlanePoints:
    """Polar quadrature for u = s1 x1, v = s2 (x1 cos(angle) + x2 sin(angle)).

    The plane is cut along all lines u = kink1 and v = kink2.
    """
    # lines through the origin are always cuts of the angle; others also cut the radius
    lines1 = [kink for kink in kinks1 if kink != 0.0]
    lines2 = [kink for kink in kinks2 if kink != 0.0]
    half_turn = jnp.pi * jnp.ones_like(angle)
    # u vanishes at +-pi/2, v at angle +- pi/2
    cuts = [angle - jnp.pi / 2, half_turn / 2, angle + jnp.pi / 2]
    for kink1 in lines1:
        for kink2 in lines2:
            # direction of the point at which the lines u = kink1 and v = kink2 meet
            x, y = (
                safe_ratio(kink1 * jnp.ones_like(s1), s1),
                safe_ratio(kink2 * jnp.ones_like(s2), s2),
            )
            cuts.append(_wrap(jnp.arctan2(y - jnp.cos(angle) * x, jnp.sin(angle) * x)))
    starts = jnp.sort(jnp.stack([-half_turn / 2, *cuts, 1.5 * half_turn]))
    node, weight = gauss_legendre(nodes)
    # sectors of zero width (coinciding cuts) have zero weight
    widths = jnp.diff(starts)
    theta = (starts[:-1, None] + widths[:, None] * node).reshape(-1)
    angle_weight = (widths[:, None] * weight).reshape(-1) / (2 * jnp.pi)
    # fields per unit of radius
    slope1, slope2 = s1 * jnp.cos(theta), s2 * jnp.cos(theta - angle)
    radii = [jnp.zeros_like(theta), jnp.full_like(theta, RADIUS)]
    for kink, slope in [(kink, slope1) for kink in lines1] + [(kink, slope2) for kink in lines2]:
        crossing = safe_ratio(kink * jnp.ones_like(slope), slope)
        radii.append(jnp.clip(jnp.where(crossing > 0, crossing, 0.0), 0.0, RADIUS))
    edges = jnp.sort(jnp.stack(radii, axis=-1), axis=-1)
    radial_node, radial_weight = gauss_legendre(nodes + MORE_RADIAL_NODES)
    lengths = jnp.diff(edges, axis=-1)
    r = edges[:, :-1, None] + lengths[..., None] * radial_node
    # area element r dr dtheta times the density exp(-r^2/2)/(2 pi)
    weights = (
        angle_weight[:, None, None] * lengths[..., None] * radial_weight * r * jnp.exp(-(r**2) / 2)
    )
    cosine, sine = jnp.cos(theta)[:, None, None], jnp.sin(theta)[:, None, None]
    u, v = r * slope1[:, None, None], r * slope2[:, None, None]
    return PlanePoints(r * cosine, r * sine, u, v, weights)


def _wrap(angle: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """The same angle in [-pi/2, 3 pi/2)."""
    return jnp.where(angle < -jnp.pi / 2, angle + 2 * jnp.pi, angle)


def _mass_part(
    masses: Activation,
    order: int,
    other: Elementwise,
    other_kinks: tuple[float, ...],
    q1: Float[Numeric, ""],
    q2: Float[Numeric, ""],
    c: Float[Numeric, ""],
    nodes: int,
) -> Float[Numeric, ""]:
    """Sum over the kinks of (jump of the derivative `order`) p_u(kink) E[other(v) | u = kink]."""
    total = jnp.zeros_like(q1)
    for kink, jump in zip(masses.kinks, masses.jumps(order), strict=True):
        if jump == 0.0:
            continue
        density = jnp.exp(-(kink**2) / (2 * q1)) / jnp.sqrt(2 * np.pi * q1)
        # v given u = kink
        mean = c / q1 * kink
        scale = safe_root(q2 - c**2 / q1)
        total = total + jump * density * line_expectation(other, other_kinks, mean, scale, nodes)
    return total


def line_expectation(
    f: Elementwise,
    kinks: tuple[Scalar, ...],
    mean: Float[Numeric, "..."],
    scale: Float[Numeric, "..."],
    nodes: int,
) -> Float[Numeric, "..."]:
    """E[f(mean + scale xi)], with the line cut at the kinks of f."""
    cuts = [jnp.clip(safe_ratio(kink - mean, scale), -RADIUS, RADIUS) for kink in kinks]
    # without a kink the line is cut at 0, so that the pieces resolve the density
    cuts = cuts or [jnp.zeros_like(mean)]
    ends = [jnp.full_like(mean, -RADIUS), jnp.full_like(mean, RADIUS)]
    edges = jnp.sort(jnp.stack([*ends, *cuts], axis=-1), axis=-1)
    node, weight = gauss_legendre(nodes + MORE_RADIAL_NODES)
    lengths = jnp.diff(edges, axis=-1)
    xi = edges[..., :-1, None] + lengths[..., None] * node
    density = jnp.exp(-(xi**2) / 2) / np.sqrt(2 * np.pi)
    values = f(mean[..., None, None] + scale[..., None, None] * xi)
    return jnp.sum(lengths[..., None] * weight * density * values, axis=(-2, -1))
