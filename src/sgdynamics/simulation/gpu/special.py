"""Error functions for GPU kernels, from additions, products and exponentials alone, to 1e-15.

Triton's lowering in JAX has no float64 `erf` and `erfc`. Here::

    erf(x) = x T(x^2) for |x| < 1/2,   1 - e^{-x^2} S(t) beyond,   t = a + b/(x + 3/2)

T is the Taylor polynomial of erf(x)/x in x^2. S interpolates the scaled function e^{x^2} erfc(x),
which has no exponential decay, at Chebyshev points. The map x -> t sends the range of x to [-1, 1]
and is rational, because the scaled function behaves like 1/x at large x.
"""

from __future__ import annotations

import math
from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from sgdynamics.base.arrays import Numeric

# Largest |x| at which the Taylor series is used; 13 terms reach 1e-17 there.
SMALL = 0.5
# Values of x beyond which 1 - erf(x) and erfc(x) are 0 in float64.
ERF_RANGE, ERFC_RANGE = 6.0, 28.0
# Shift of the rational map x -> t, and number of Chebyshev points of the interpolation.
SHIFT, POINTS = 1.5, 64
# Chebyshev coefficients below this are rounding errors and are dropped.
NEGLIGIBLE = 2e-16
TAYLOR = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)
)


@cache
def _tail_series(end: float) -> tuple[float, float, tuple[float, ...]]:
    """a, b and the coefficients in powers of t of e^{x^2} erfc(x) for x from 1/2 to `end`."""
    # t = a + b/(x + SHIFT) is -1 at x = 1/2 and 1 at x = end.
    nearest, farthest = 1 / (SMALL + SHIFT), 1 / (end + SHIFT)
    b = 2 / (farthest - nearest)
    a = 1 - b * farthest
    # Long doubles: in double precision the sums over the points alone are off by 1e-14.
    pi = np.arccos(np.longdouble(-1))
    angles = (np.arange(POINTS, dtype=np.longdouble) + 0.5) * (pi / POINTS)
    values = erfcx((b / (np.cos(angles) - a) - SHIFT).astype(np.float64))
    # Discrete cosine transform: c_k = (2/n) sum_j f(cos theta_j) cos(k theta_j), half for k = 0.
    coefficients = np.array(
        [2 * np.sum(values * np.cos(order * angles)) / POINTS for order in range(POINTS // 2)],
        dtype=np.float64,
    )
    coefficients[0] /= 2
    order = int(np.flatnonzero(np.abs(coefficients) > NEGLIGIBLE)[-1])
    # Powers of t instead of Chebyshev polynomials: Horner's scheme is one fused operation per term.
    powers = chebyshev.cheb2poly(coefficients[: order + 1])
    return a, b, tuple(float(power) for power in powers)


def _horner(coefficients: tuple[float, ...], x: Numeric) -> Array:
    """A polynomial with coefficients in rising powers."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def _tail(x: Numeric, end: float) -> Array:
    """erfc(x) for x from 1/2 to `end`; beyond, its value at `end`."""
    a, b, coefficients = _tail_series(end)
    x = jnp.minimum(x, end)
    t = a + b / (x + SHIFT)
    scaled = _horner(coefficients, t)
    return jnp.exp(-x * x) * scaled


def erf(x: Numeric) -> Array:
    """The error function."""
    size = jnp.abs(x)
    # All lanes compute both branches and select one. The clamp keeps the series finite where it is
    # not selected.
    square = jnp.minimum(size, SMALL) ** 2
    series = _horner(TAYLOR, square)
    tail = _tail(size, ERF_RANGE)
    return jnp.where(size < SMALL, x * series, jnp.where(x < 0, tail - 1.0, 1.0 - tail))


def erfc(x: Numeric) -> Array:
    """The complementary error function 1 - erf(x), without cancellation where it is small."""
    tail = _tail(jnp.abs(x), ERFC_RANGE)
    return jnp.where(jnp.abs(x) < SMALL, 1.0 - erf(x), jnp.where(x < 0, 2.0 - tail, tail))
