"""Pair expectations of kinked activations by quadrature in polar coordinates.

With u = sqrt(q1) r cos(theta), v = sqrt(q2) r cos(theta - theta0), rho = cos(theta0), each kink is a line in the plane. Angles
break where a line passes through the origin or meets another, radii break where the ray crosses a line, so the integrand is
smooth on every piece, at any correlation, also as rho -> +-1. Point masses of f'' (and of g' where g jumps) are added as
one-dimensional integrals along their lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, safe_ratio, safe_root
from sgdynamics.problems.activations import Activation

RADIUS = 9.5  # exp(-RADIUS^2/2) = 2.5e-20


def pair_value(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    nodes: int,
) -> Any:
    """K = E[f(u) g(v)]."""

    def row(q: Float[Numeric, ""], cs: Float[Numeric, " n"]) -> Float[Numeric, " n"]:
        return jax.vmap(lambda q2_, c_: _plane(first, second, q, q2_, c_, nodes, ((0, 0),))[0])(
            q2, cs
        )

    return jax.lax.map(lambda args: row(*args), (q1, c))


def pair_moments(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    nodes: int,
) -> tuple[Any, Any, Any]:
    """K = E[f g], A = E[f'' g], B = E[f' g'] for all pairs (q1[i], q2[j], c[i, j])."""

    def one(
        q: Float[Numeric, ""], r: Float[Numeric, ""], s: Float[Numeric, ""]
    ) -> tuple[Any, Any, Any]:
        K, A, B = _plane(first, second, q, r, s, nodes, ((0, 0), (2, 0), (1, 1)))
        A = A + _masses(first, 1, second.derivative(0), second.kinks, q, r, s, nodes)
        B = B + _masses(second, 0, first.derivative(1), first.kinks, r, q, s, nodes)
        return K, A, B

    return jax.lax.map(lambda args: jax.vmap(lambda r, s: one(args[0], r, s))(q2, args[1]), (q1, c))


def _plane(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, ""],
    q2: Float[Numeric, ""],
    c: Float[Numeric, ""],
    nodes: int,
    orders: tuple[tuple[int, int], ...],
) -> list[Any]:
    """E[f^(i)(u) g^(j)(v)] of the smooth pieces for each (i, j) in `orders`."""
    s1, s2 = jnp.sqrt(q1), jnp.sqrt(q2)
    rho = jnp.clip(
        safe_ratio(c, s1 * s2), -1.0, 1.0
    )  # beyond 1 by rounding only: the start's Omega is positive
    theta0 = jnp.arctan2(safe_root((1 - rho) * (1 + rho)), rho)
    points = plane_points(first.kinks, second.kinks, s1, s2, theta0, nodes)
    return [
        jnp.sum(points.weights * first.derivative(i)(points.u) * second.derivative(j)(points.v))
        for i, j in orders
    ]


class PlanePoints(NamedTuple):
    """Points (angles, pieces, nodes) of a standard Gaussian plane: coordinates x1, x2, fields u, v, and weights that add up to one."""

    x1: Any
    x2: Any
    u: Any
    v: Any
    weights: Any


def plane_points(
    kinks1: tuple[float, ...],
    kinks2: tuple[float, ...],
    s1: Float[Numeric, ""],
    s2: Float[Numeric, ""],
    angle: Float[Numeric, ""],
    nodes: int,
) -> PlanePoints:
    """Polar quadrature for u = s1 x1, v = s2 (x1 cos(angle) + x2 sin(angle)), cut along every line u = kink1 and v = kink2."""
    lines1 = [kink for kink in kinks1 if kink != 0.0]
    lines2 = [kink for kink in kinks2 if kink != 0.0]
    turn = jnp.pi * jnp.ones_like(angle)
    breaks = [angle - jnp.pi / 2, turn / 2, angle + jnp.pi / 2]
    for kink1 in lines1:
        for kink2 in lines2:
            x, y = (
                safe_ratio(kink1 * jnp.ones_like(s1), s1),
                safe_ratio(kink2 * jnp.ones_like(s2), s2),
            )
            breaks.append(_wrap(jnp.arctan2(y - jnp.cos(angle) * x, jnp.sin(angle) * x)))
    starts = jnp.sort(jnp.stack([-turn / 2, *breaks, 1.5 * turn]))
    node, weight = gauss_legendre(nodes)
    widths = jnp.diff(starts)
    theta = (starts[:-1, None] + widths[:, None] * node).reshape(-1)
    angle_weight = (widths[:, None] * weight).reshape(-1) / (2 * jnp.pi)
    along1, along2 = s1 * jnp.cos(theta), s2 * jnp.cos(theta - angle)
    radii = [jnp.zeros_like(theta), jnp.full_like(theta, RADIUS)]
    for kink, along in [(kink, along1) for kink in lines1] + [(kink, along2) for kink in lines2]:
        crossing = safe_ratio(kink * jnp.ones_like(along), along)
        radii.append(jnp.clip(jnp.where(crossing > 0, crossing, 0.0), 0.0, RADIUS))
    edges = jnp.sort(jnp.stack(radii, axis=-1), axis=-1)
    # a single radial piece carries the whole Gaussian decay and needs more nodes than an angular one
    radial_node, radial_weight = gauss_legendre(nodes + 16)
    lengths = jnp.diff(edges, axis=-1)
    r = edges[:, :-1, None] + lengths[..., None] * radial_node
    weights = (
        angle_weight[:, None, None] * lengths[..., None] * radial_weight * r * jnp.exp(-(r**2) / 2)
    )
    across = jnp.cos(theta)[:, None, None], jnp.sin(theta)[:, None, None]
    return PlanePoints(
        r * across[0], r * across[1], r * along1[:, None, None], r * along2[:, None, None], weights
    )


def _wrap(angle: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """The same angle in [-pi/2, 3 pi/2)."""
    return jnp.where(angle < -jnp.pi / 2, angle + 2 * jnp.pi, angle)


def _masses(
    masses: Activation,
    order: int,
    other: Callable[[Any], Any],
    other_kinks: tuple[float, ...],
    q1: Float[Numeric, ""],
    q2: Float[Numeric, ""],
    c: Float[Numeric, ""],
    nodes: int,
) -> Any:
    """sum over kinks of (jump of the derivative `order`) p_u(kink) E[other(v) | u = kink]."""
    total = jnp.zeros_like(q1)
    for kink, jump in zip(masses.kinks, masses.jumps(order), strict=True):
        if jump == 0.0:
            continue
        density = jnp.exp(-(kink**2) / (2 * q1)) / jnp.sqrt(2 * np.pi * q1)
        mean = c / q1 * kink
        spread = safe_root(q2 - c**2 / q1)
        total = total + jump * density * line_expectation(other, other_kinks, mean, spread, nodes)
    return total


def line_expectation(
    f: Callable[[Any], Any],
    kinks: tuple[Scalar, ...],
    mean: Float[Numeric, "..."],
    spread: Float[Numeric, "..."],
    nodes: int,
) -> Any:
    """E[f(mean + spread xi)] with the line cut at the kinks of f."""
    inner = [jnp.clip(safe_ratio(kink - mean, spread), -RADIUS, RADIUS) for kink in kinks] or [
        jnp.zeros_like(mean)
    ]
    ends = [jnp.full_like(mean, -RADIUS), jnp.full_like(mean, RADIUS)]
    edges = jnp.sort(jnp.stack([*ends, *inner], axis=-1), axis=-1)
    node, weight = gauss_legendre(nodes + 16)
    lengths = jnp.diff(edges, axis=-1)
    xi = edges[..., :-1, None] + lengths[..., None] * node
    density = jnp.exp(-(xi**2) / 2) / np.sqrt(2 * np.pi)
    values = f(mean[..., None, None] + spread[..., None, None] * xi)
    return jnp.sum(lengths[..., None] * weight * density * values, axis=(-2, -1))
