"""Pair expectations of any two activations: closed forms, series or quadrature.

The drift of a network under squared or correlation loss needs only

    K = E[f(u) g(v)],   A = E[f''(u) g(v)],   B = E[f'(u) g'(v)]

for pairs of centred Gaussian fields u, v with variances q1, q2 and covariance c, by the theorems of
Stein and Price. There are three methods: "closed" (`closed_forms`), "mehler" (smooth activations)
and "polar" (activations with kinks).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations import mehler, polar
from sgdynamics.expectations.closed_forms import shared_closed_forms
from sgdynamics.problems.activations import Activation, undeclared_kinks

UNKNOWN = 1.0  # relative error of an expectation that is not determined
ROUNDING = 1e-14  # relative error of a closed form
POLAR_NODES = 24
# Enough if both activations are piecewise polynomials with kinks at 0 only: then the angular
# integrand is a trigonometric polynomial.
PIECEWISE_NODES = 12
MOST_PIECEWISE_DEGREE = 4


def method(first: Activation, second: Activation) -> str:
    """The method that serves this pair: "closed", "mehler" or "polar"."""
    if shared_closed_forms(first, second) is not None:
        return "closed"
    return "polar" if first.kinks or second.kinks else "mehler"


def polar_nodes(first: Activation, second: Activation) -> int:
    """Number of nodes per sector of the polar quadrature."""
    simple = all(
        activation.piecewise_degree is not None
        and activation.piecewise_degree <= MOST_PIECEWISE_DEGREE
        and not any(activation.kinks)
        for activation in (first, second)
    )
    return PIECEWISE_NODES if simple else POLAR_NODES


def value(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
) -> Float[Numeric, "m n"]:
    """K for all pairs (q1[i], q2[j], c[i, j]); `terms` is the length of the Mehler series."""
    family = shared_closed_forms(first, second)
    if family is not None:
        return family.pair_value(first, second, q1, q2, c)
    if method(first, second) == "polar":
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
    """K, A and B for all pairs; `first` is a student, so it does not jump.

    `using` overrides the method, and `nodes` the number of nodes of the polar quadrature.
    """
    selected = using or method(first, second)
    family = shared_closed_forms(first, second)
    if selected == "closed" and family is not None:
        return family.pair_moments(first, second, q1, q2, c)
    if selected == "polar":
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
    """Estimated largest relative error of K, A and B.

    Rounding for closed forms, the tail of the Mehler series, or the difference between two
    resolutions of the polar quadrature.
    """
    selected = method(first, second)
    rounding = jnp.asarray(ROUNDING)
    if selected == "closed":
        return rounding
    if selected == "polar":
        if any(second.jumps(0)) and any(first.jumps(0)):
            return rounding
        fine = jnp.stack(moments(first, second, q1, q2, c, terms))
        fewer = polar_nodes(first, second) * 2 // 3
        coarse = jnp.stack(moments(first, second, q1, q2, c, terms, nodes=fewer))
        # In units of f g all three are of one size. Parity may make any one of them zero, so errors
        # are relative to the largest.
        units = jnp.stack(
            jnp.broadcast_arrays(1.0, q1[:, None], jnp.sqrt(q1[:, None] * q2[None, :]))
        )
        scale = jnp.max(jnp.abs(units * fine)) + 1e-300
        return jnp.maximum(jnp.max(jnp.abs(units * (fine - coarse))) / scale, rounding)
    if undeclared_kinks(first) or undeclared_kinks(second):
        # the series lacks the point masses of derivatives at the kinks, and its tail does not show
        # it
        return jnp.asarray(UNKNOWN)
    if mehler.terms_needed(first, second, terms) < terms:
        return rounding  # a polynomial: the series is finite
    return jnp.maximum(mehler.error(first, second, q1, q2, terms), rounding)
