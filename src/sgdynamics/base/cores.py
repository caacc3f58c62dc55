"""Threads on the cores of this process, for work that releases Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_on_cores(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The values of a function, computed in one thread per core; the order is that of the items.

    JAX's precision and default device are those of the caller.
    """
    items = list(items)
    threads = min(count_cores(), len(items))
    if threads < 2:
        return [function(item) for item in items]
    settings: Any = jax.config
    precision, device = settings.jax_enable_x64, settings.jax_default_device

    def compute(item: Item) -> Result:
        with jax.enable_x64(precision), jax.default_device(device):
            return function(item)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(compute, items))
