"""Scalar roots and minima, with plain numbers as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

ScalarFunction = Callable[[float], float]


class Minimum(NamedTuple):
    """A minimum of a function of one number: its position and its value."""

    x: float
    value: float


def find_root(function: ScalarFunction, low: float, high: float, *, xtol: float = 2e-12) -> float:
    """Return a root in a bracket over which the function changes its sign."""
    from scipy import optimize  # here: it is slow to import, and few calls need it

    rtol: Any = 1e-14
    root: Any = optimize.brentq(function, low, high, xtol=xtol, rtol=rtol)
    return float(root)


def find_minimum(
    function: ScalarFunction, low: float, high: float, *, xtol: float = 1e-10
) -> Minimum:
    """Return a local minimum in an interval."""
    from scipy import optimize  # here: it is slow to import, and few calls need it

    result: Any = optimize.minimize_scalar(
        function, bounds=(low, high), method="bounded", options={"xatol": xtol}
    )
    return Minimum(float(result.x), float(result.fun))
