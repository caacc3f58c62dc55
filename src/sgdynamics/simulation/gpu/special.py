"""Functions that the compiler of GPU kernels lacks, of additions, products and exponentials alone, to 1e-15.

    erf(x) = x T(x^2) for |x| < 1/2,   1 - e^{-x^2} S(t) beyond,   t = a + b/(x + 3/2)

T is Taylor's polynomial; S interpolates e^{x^2} erfc(x) at Chebyshev's points, and t is -1 and 1 at the ends of the range of x.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from sgdynamics.base.arrays import Numeric

SMALL = 0.5
FAR_ERF, FAR_ERFC = 6.0, 28.0  # where 1 - erf and erfc are 0 in float64
SHIFT, POINTS = 1.5, 64
TERMS = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)
)


@cache
def _series(far: float) -> tuple[float, float, tuple[float, ...]]:
    """a, b and the coefficients in powers of t of e^{x^2} erfc(x) for x from 1/2 to `far`."""
    near, end = 1 / (SMALL + SHIFT), 1 / (far + SHIFT)
    b = 2 / (end - near)
    a = 1 - b * end
    # long doubles: in double precision the sums alone are off by 1e-14
    angles = (np.arange(POINTS, dtype=np.longdouble) + 0.5) * (
        np.arccos(np.longdouble(-1)) / POINTS
    )
    values = erfcx((b / (np.cos(angles) - a) - SHIFT).astype(np.float64))
    found = np.array(
        [2 * np.sum(values * np.cos(order * angles)) / POINTS for order in range(POINTS // 2)],
        dtype=np.float64,
    )
    found[0] /= 2
    powers = chebyshev.cheb2poly(found[: int(np.flatnonzero(np.abs(found) > 2e-16)[-1]) + 1])
    return a, b, tuple(float(one) for one in powers)


def _tail(x: Numeric, far: float) -> Any:
    """erfc(x) for x from 1/2 to `far`."""
    a, b, series = _series(far)
    x = jnp.minimum(x, far)
    t = a + b / (x + SHIFT)
    found = jnp.full_like(t, series[-1])
    for term in series[-2::-1]:
        found = found * t + term
    return jnp.exp(-x * x) * found


def erf(x: Numeric) -> Any:
    """The error function."""
    size = jnp.abs(x)
    square = jnp.minimum(size, SMALL) ** 2
    small = jnp.full_like(square, TERMS[-1])
    for term in TERMS[-2::-1]:
        small = small * square + term
    tail = _tail(size, FAR_ERF)
    return jnp.where(size < SMALL, x * small, jnp.where(x < 0, tail - 1.0, 1.0 - tail))


def erfc(x: Numeric) -> Any:
    """1 - erf(x), without loss where it is small."""
    tail = _tail(jnp.abs(x), FAR_ERFC)
    return jnp.where(jnp.abs(x) < SMALL, 1.0 - erf(x), jnp.where(x < 0, 2.0 - tail, tail))
