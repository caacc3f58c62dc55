"""Float64 inside the library, whatever the user's JAX settings.

Theory and chains need float64 (a float32 chain is biased at d = 1e6), but setting `jax_enable_x64`
for the whole process would change the user's own random streams. Therefore every public function
runs inside JAX's own context manager, takes NumPy values and returns NumPy values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax._src import xla_bridge

P = ParamSpec("P")
R = TypeVar("R")
FORKED = (
    "This process was forked after JAX had started, and JAX's threads do not survive a fork: the "
    "call would never return. Start processes with multiprocessing.get_context('spawn'), as "
    "sgd.sweep(workers=...) does, or fork before the first computation."
)
_forked = False  # whether this process is the fork of one in which JAX had started


def _after_fork() -> None:
    """Note in a forked process whether its parent had started JAX."""
    global _forked
    # A private function of JAX. A version without it counts as started once it is imported.
    _forked = getattr(xla_bridge, "backends_are_initialized", lambda: True)()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with 64-bit JAX arrays and leave the user's setting as it was.

    All computations of the library use this decorator. In a forked process, where JAX would hang,
    it raises RuntimeError.
    """

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        if _forked:
            raise RuntimeError(FORKED)
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return inside
