"""The loop that drives a simulation: runs in groups, steps in pieces, save points, progress, divergence."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import jax
import numpy as np

from sgdynamics.precision import float64
from sgdynamics.progress import Meter, meter

PIECE_SECONDS = 0.5  # how long one compiled call should run, so that progress shows and an interrupt is heard


class Simulator(ABC):
    """A way to simulate: states of many runs at once, advanced by whole steps."""

    @abstractmethod
    def initial(self, chosen: np.ndarray) -> Any:
        """The states of these runs at step 0."""

    @abstractmethod
    def advance(self, state: Any, keys: Any, begin: int, end: int) -> tuple[Any, Any]:
        """The states at step `end`, and for each run the last step at which it was finite."""

    @abstractmethod
    def overlaps(self, state: Any) -> dict[str, Any]:
        """M, Q, a of the states, with a leading run axis."""

    @property
    @abstractmethod
    def grain(self) -> int:
        """Steps that are best taken together."""

    def largest_group(self) -> int:
        """How many runs fit into memory at once."""
        return 1 << 14


@float64
def run_keys(seed: int, chosen: np.ndarray) -> Any:
    """One key a run, independent of how many runs there are."""
    root = jax.random.key(seed)
    return jax.vmap(lambda run: jax.random.fold_in(root, run))(chosen)


def run(
    simulator: Simulator, runs: int, steps: np.ndarray, seed: int, label: str, show: bool | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Overlaps (run, time, ...) at the save points, and the last finite step of each run that diverged (-1 elsewhere)."""
    groups = _groups(runs, simulator.largest_group())
    # one group after the other: two XLA programs at once on the CPU's one thread pool can wait for each other for ever
    with meter(label, float(steps[-1]) * len(groups), show) as progress:
        results = [_run_group(simulator, runs, group, steps, seed, progress) for group in groups]
    saved = {name: np.concatenate([part[0][name] for part in results])[:runs] for name in results[0][0]}
    return saved, np.concatenate([part[1] for part in results])[:runs]


def _groups(runs: int, largest: int) -> list[np.ndarray]:
    """Equal groups of runs (so that they share one compilation); the last is filled up with runs that are thrown away."""
    count = -(-runs // largest)
    size = -(-runs // count)
    return [np.arange(start, start + size) for start in range(0, runs, size)]


@float64
def _run_group(
    simulator: Simulator, runs: int, chosen: np.ndarray, steps: np.ndarray, seed: int, progress: Meter
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    state = simulator.initial(np.minimum(chosen, runs - 1))
    keys = run_keys(seed, chosen)
    diverged = np.full(len(chosen), -1, dtype=np.int64)
    saved: dict[str, list[np.ndarray]] = {}
    now = 0
    piece = simulator.grain
    for target in steps.tolist():
        while now < target:
            # pieces end on multiples of the grain: a span cut in two draws its random numbers twice
            end = min(target, (now // simulator.grain) * simulator.grain + piece)
            began = time.perf_counter()
            state, good = simulator.advance(state, keys, now, end)
            good = np.asarray(good)
            elapsed = time.perf_counter() - began
            newly = (good < end) & (diverged < 0)
            diverged[newly] = good[newly]
            progress.advance(end - now)
            now = end
            if elapsed < PIECE_SECONDS / 2:
                piece = min(piece * 2, 1 << 40)
            elif elapsed > PIECE_SECONDS * 2:
                piece = max(piece // 2 // simulator.grain, 1) * simulator.grain
        for name, value in simulator.overlaps(state).items():
            value = np.array(value)
            value[diverged >= 0] = np.nan
            saved.setdefault(name, []).append(value)
    return {name: np.stack(values, axis=1) for name, values in saved.items()}, diverged
