"""Scalar roots and minima, with plain numbers as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# Relative tolerance of roots: four units of rounding, the smallest that Brent's method accepts.
RTOL = 8.9e-16

ScalarFunction = Callable[[float], float]


class Minimum(NamedTuple):
    """A minimum of a function of one number: its position and its value."""

    x: float
    value: float


def find_root(function: ScalarFunction, low: float, high: float, *, xtol: float = 2e-12) -> float:
    """Return a root between two points at which the function has opposite signs.

    The absolute tolerance `xtol` counts near a root at 0.
    """
    from scipy import optimize  # here: it is slow to import, and few calls need it

    rtol: Any = RTOL
    root: Any = optimize.brentq(function, low, high, xtol=xtol, rtol=rtol)
    return float(root)


def find_minimum(
    function: ScalarFunction, low: float, high: float, *, xtol: float = 1e-10
) -> Minimum:
    """Return a local minimum in an interval, to the absolute tolerance `xtol` of its position."""
    from scipy import optimize  # here: it is slow to import, and few calls need it

    result: Any = optimize.minimize_scalar(
        function, bounds=(low, high), method="bounded", options={"xatol": xtol}
    )
    return Minimum(float(result.x), float(result.fun))
