"""Float64 inside the library, whatever the user's JAX settings.

Theory and chains need float64 (a float32 chain is biased at d = 1e6), but setting `jax_enable_x64` for the whole process
would change the user's own random streams. So every public function runs inside JAX's own context manager, takes NumPy
values in and gives NumPy values out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with 64-bit JAX arrays and leave the user's setting as it was."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return inside
