"""The row of a benchmark table, and the clock that all benchmarks use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Measurement(NamedTuple):
    """One measured number with the target that the library promises."""

    label: str
    number: float
    target: float
    at_least: bool  # whether the target is a lower bound; otherwise it is an upper bound

    @property
    def meets_target(self) -> bool:
        """Whether the measured number is on the right side of the target."""
        return self.number >= self.target if self.at_least else self.number <= self.target

    def __str__(self) -> str:
        bound = ">=" if self.at_least else "<="
        outcome = "met" if self.meets_target else "MISSED"
        return f"{self.number:10.2f}  (target {bound} {self.target:g}, {outcome})  {self.label}"


def measure_seconds(work: Callable[[], Any]) -> float:
    """Seconds of one call. JAX returns before it has computed, so the result is waited for."""
    start_time = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start_time


def measure_processor_seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of one call, which hardly depend on other programs of the machine."""
    start_time = time.process_time()
    jax.block_until_ready(work())
    return time.process_time() - start_time
