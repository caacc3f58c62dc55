"""Closed pair expectations: polynomials, erf(x/sqrt 2) students with erf or sign partners, and ReLU.

K = E[f(u) g(v)], A = E[f''(u) g(v)], B = E[f'(u) g'(v)]; variances q1, q2, covariance c. Saad and Solla 1995 for erf;
the rest by Price's theorem, A = 2 dK/dq1, B = dK/dc.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.nodes import safe_ratio, safe_root
from sgdynamics.problems.activations import NAMED, Activation

ROUNDING = 1e-15


def erf_offset(activation: Activation) -> float | None:
    """kappa of erf(s x/sqrt 2), kappa = 1/s^2: 1 for erf, 0 for the sign teacher, None for any other."""
    if activation == NAMED["erf"]:
        return 1.0
    if activation == NAMED["sign"]:
        return 0.0
    return None


def erf_value(
    kappa1: float,
    kappa2: float,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
) -> Float[Numeric, "m n"]:
    ratio = c / jnp.sqrt((kappa1 + q1)[:, None] * (kappa2 + q2)[None, :])
    return (
        2 / np.pi * jnp.arcsin(jnp.clip(ratio, -1.0, 1.0))
    )  # past 1 by rounding only (sign with sign)


def erf_moments(
    kappa2: float, q1: Float[Numeric, " m"], q2: Float[Numeric, " n"], c: Float[Numeric, "m n"]
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """K, A, B for an erf student u and an erf or sign partner v."""
    al1, al2 = (1.0 + q1)[:, None], (kappa2 + q2)[None, :]
    root = jnp.sqrt(al1 * al2 - c**2)
    return erf_value(1.0, kappa2, q1, q2, c), -2 / np.pi * c / (al1 * root), 2 / np.pi / root


def relu_parts(
    q1: Float[Numeric, " m"], q2: Float[Numeric, " n"], c: Float[Numeric, "m n"]
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """sqrt(q1 q2 - c^2) and P(u > 0, v > 0), with the derivatives that hold at |rho| = 1 too."""
    product = q1[:, None] * q2[None, :]
    rest = product - c**2
    # a unit with itself: what a fused multiply-add leaves of 0 would become 1e-8 under the root
    gap = safe_root(jnp.where(rest > ROUNDING * product, rest, 0.0))
    return gap, quadrant(safe_ratio(c, jnp.sqrt(q1[:, None] * q2[None, :])))


def quadrant(rho: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """P(u > 0, v > 0) = 1/4 + asin(rho)/(2 pi); at |rho| = 1 with derivative 0, which is right along scalings."""
    inside = jnp.abs(rho) < 1
    return 0.25 + jnp.where(
        inside, jnp.arcsin(jnp.where(inside, rho, 0.0)), jnp.sign(rho) * np.pi / 2
    ) / (2 * np.pi)


def relu_moments(
    q1: Float[Numeric, " m"], q2: Float[Numeric, " n"], c: Float[Numeric, "m n"]
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    gap, both = relu_parts(q1, q2, c)
    return gap / (2 * np.pi) + c * both, gap / (2 * np.pi * q1[:, None]), both


def polynomial_moments(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """K, A, B of two polynomials, by Wick: E[f(u) g(v)] = sum_n c^n/n! E[f^(n)(u)] E[g^(n)(v)], n contractions between u and v.

    Exact, without a square root or a quotient, so that it has all derivatives, at zero variance too.
    """
    m, n = first.degree or 0, second.degree or 0
    top = min(m, n)
    F = derivative_means(first, 0, max(m, top + 2), q1)
    G = derivative_means(second, 0, max(n, top + 1), q2)
    series = powers(c, top) / np.array([float(math.factorial(k)) for k in range(top + 1)])
    left = jnp.stack([F[:, : top + 1], F[:, 2 : top + 3], F[:, 1 : top + 2]])
    right = jnp.stack([G[:, : top + 1], G[:, : top + 1], G[:, 1 : top + 2]])
    K, A, B = jnp.sum(left[:, :, None] * right[:, None] * series, axis=-1)
    return K, A, B


def powers(x: Float[Numeric, "m n"], top: int) -> Float[Numeric, "m n top"]:
    """x^0, ..., x^top along a new last axis, by products (no pow: it has no derivative at 0)."""
    rows = [jnp.ones_like(x)]
    for _ in range(top):
        rows.append(rows[-1] * x)
    return jnp.stack(rows, axis=-1)


def derivative_means(
    activation: Activation, shift: int, degree: int, variance: Float[Numeric, " n"]
) -> Float[Numeric, "n m"]:
    """E[f^(shift + e)(sqrt(q) z)] for e = 0..degree and each variance q: (fields, degree + 1)."""
    columns = []
    for order in range(shift, shift + degree + 1):
        derived = np.polynomial.polynomial.polyder(np.asarray(activation.coefficients), order)
        total = jnp.zeros_like(variance)
        power = jnp.ones_like(variance)
        for even in range(0, len(derived), 2):
            # E[z^even] = (even - 1)!!
            total = total + derived[even] * math.prod(range(even - 1, 0, -2)) * power
            power = power * variance
        columns.append(total)
    return jnp.stack(columns, axis=1)
