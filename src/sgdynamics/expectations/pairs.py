"""Pair expectations of any two activations: the fast path that exists, or the generic one that fits.

The whole drift of a network under squared or correlation loss needs only K = E[f(u) g(v)], A = E[f''(u) g(v)] and
B = E[f'(u) g'(v)] (Stein and Price).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations import closed_forms, mehler, polar
from sgdynamics.problems.activations import NAMED, Activation, undeclared_kinks

UNKNOWN = 1.0  # the relative error of an expectation that is not determined
POLAR_NODES = 24
PIECEWISE_NODES = 12  # enough where both are piecewise polynomials: the angular integrand is then a trigonometric polynomial


def method(first: Activation, second: Activation) -> str:
    """Which of "polynomial", "erf", "relu" (closed), "mehler" (smooth), "polar" (kinked) serves this pair."""
    if first.degree is not None and second.degree is not None:
        return "polynomial"
    if closed_forms.erf_offset(first) is not None and closed_forms.erf_offset(second) is not None:
        return "erf"
    if first == second == NAMED["relu"]:
        return "relu"
    return "polar" if first.kinks or second.kinks else "mehler"


def polar_nodes(first: Activation, second: Activation) -> int:
    """Nodes a sector: fewer where both activations are piecewise polynomials with kinks at 0 only."""
    piecewise = (NAMED["relu"], NAMED["abs"], NAMED["sign"])
    simple = all(
        activation in piecewise or (activation.degree or 99) <= 4 for activation in (first, second)
    )
    return PIECEWISE_NODES if simple else POLAR_NODES


def value(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
    *,
    using: str | None = None,
) -> Float[Numeric, "m n"]:
    """K for all pairs (q1[i], q2[j], c[i, j]); `terms` cuts the Mehler series, where one is used."""
    way = using or method(first, second)
    if way == "polynomial":
        return closed_forms.polynomial_moments(first, second, q1, q2, c)[0]
    if way == "erf":
        return closed_forms.erf_value(
            closed_forms.erf_offset(first) or 0.0, closed_forms.erf_offset(second) or 0.0, q1, q2, c
        )
    if way == "relu":
        return closed_forms.relu_moments(q1, q2, c)[0]
    if way == "polar":
        return polar.pair_value(first, second, q1, q2, c, polar_nodes(first, second))
    return mehler.pair_value(first, second, q1, q2, c, terms)


def moments(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
    *,
    using: str | None = None,
    nodes: int | None = None,
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """K, A, B for all pairs; `first` is a student, so it has no jumps."""
    way = using or method(first, second)
    if way == "polynomial":
        return closed_forms.polynomial_moments(first, second, q1, q2, c)
    if way == "erf":
        return closed_forms.erf_moments(closed_forms.erf_offset(second) or 0.0, q1, q2, c)
    if way == "relu":
        return closed_forms.relu_moments(q1, q2, c)
    if way == "polar":
        return polar.pair_moments(first, second, q1, q2, c, nodes or polar_nodes(first, second))
    return mehler.pair_moments(first, second, q1, q2, c, terms)


def error(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
) -> Float[Numeric, ""]:
    """Estimated largest relative error of K, A, B: 1e-14 for closed forms, the tail of the series, or two resolutions apart."""
    way = method(first, second)
    rounding = jnp.asarray(1e-14)
    if way in ("polynomial", "erf", "relu"):
        return rounding
    if way == "polar":
        if any(second.jumps(0)) and any(first.jumps(0)):
            return rounding
        fine = jnp.stack(moments(first, second, q1, q2, c, terms))
        coarse = jnp.stack(
            moments(first, second, q1, q2, c, terms, nodes=polar_nodes(first, second) * 2 // 3)
        )
        # of one size in the units of f g, because parity may make any one of them zero
        units = jnp.stack(
            jnp.broadcast_arrays(1.0, q1[:, None], jnp.sqrt(q1[:, None] * q2[None, :]))
        )
        scale = jnp.max(jnp.abs(units * fine)) + 1e-300
        return jnp.maximum(jnp.max(jnp.abs(units * (fine - coarse))) / scale, rounding)
    if undeclared_kinks(first) or undeclared_kinks(second):
        return jnp.asarray(
            UNKNOWN
        )  # derivatives lack point masses at the kinks, of which a series knows nothing
    if mehler.terms_needed(first, second, terms) < terms:
        return rounding
    return jnp.maximum(mehler.error(first, second, q1, q2, terms), rounding)
