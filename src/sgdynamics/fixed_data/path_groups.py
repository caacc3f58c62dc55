"""Replicates of paths that advance together, with memory that grows on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters
from sgdynamics.base.code_generator import QuicklyCompiled
from sgdynamics.fixed_data import conditioning
from sgdynamics.fixed_data.bounded_memory import Memory, discard_directions
from sgdynamics.fixed_data.path_state import (
    Paths,
    Slots,
    observe,
    paths_from_state,
    rechunk,
    with_capacity,
)
from sgdynamics.fixed_data.paths import advance_paths
from sgdynamics.fixed_data.setup import InitialDraws, InitialWeights, Setup, StepParameters

DOUBLING_CAPACITY = 256  # capacity below which memory is doubled when it is full

# A function of setup, parameters and sets of paths: their overlaps and mean losses
ObservePaths = Callable[..., dict[str, Numeric]]


@runtime_checkable
class ReplicateGroup(Protocol):
    """Replicates that advance together, in any form of DMFT."""

    paths: Any  # arrays of the form, with a leading axis of replicates
    sets: int  # number of replicates
    number: int  # the present step
    last_good: np.ndarray  # last finite step of each replicate

    @property
    def capacity(self) -> int:
        """Number of directions, or of slots, for which memory is allocated."""
        ...

    def adapt_setup(self, setup: Setup) -> Setup:
        """The setup of these paths."""
        ...

    def dispatch(self, setup: Setup, step: StepParameters, visits: Visits | None, end: int) -> None:
        """Start to advance to step `end`, or until the memory is full, without waiting for it."""

    def collect(self, setup: Setup, end: int, largest_capacity: int, memory: Memory | None) -> bool:
        """Wait for the steps; whether memory was made for further ones before `end`."""
        ...


@dataclass
class PathGroup:
    """Replicates in a leading axis, the positions of their bases, and the last finite steps."""

    paths: Paths
    slots: Slots
    sets: int
    perturbed_slot: int | None = None  # first perturbed direction, in a perturbed copy
    number: int = 0  # the present step
    last_good: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    bin_widths: list[int] = field(default_factory=list)  # passes per bin, where memory is bounded
    answered: int = 0  # passes of an unfinished step
    reached: IntScalar = 0  # the pass at which the last dispatch ends

    @property
    def capacity(self) -> int:
        return self.paths.P.shape[2]

    def adapt_setup(self, setup: Setup) -> Setup:
        """The setup of these paths: a perturbed copy evolves its perturbation too."""
        return setup if self.perturbed_slot is None else replace(setup, perturbed=True)

    def dispatch(self, setup: Setup, step: StepParameters, visits: Visits | None, end: int) -> None:
        """Start to advance to step `end`, or until the basis is full."""
        passes = setup.passes
        self.paths, self.slots, self.reached, self.last_good = advance_paths(
            setup,
            step,
            self.paths,
            self.slots,
            visits,
            np.int64(passes * self.number + self.answered),
            passes * self.last_good,
            np.int64(passes * end),
        )

    def collect(self, setup: Setup, end: int, largest_capacity: int, memory: Memory | None) -> bool:
        """Wait for the steps; whether memory was made for further ones before `end`."""
        self.number, self.answered = divmod(int(self.reached), setup.passes)
        self.last_good = np.asarray(self.last_good) // setup.passes
        if self.number >= end:
            return False
        # A group stops early if A is full, or if the history of gradients is.
        is_full = int(self.slots.weight) + setup.directions_per_step > self.capacity
        if self.capacity < largest_capacity and is_full:
            capacity = next_capacity(self.capacity, largest_capacity)
            self.paths = with_capacity(self.paths, capacity, 1)
            return True
        if memory is None:
            return False
        self.paths, self.slots, self.bin_widths = discard_directions(
            setup, memory, self.paths, self.slots, self.bin_widths
        )
        return True


def next_capacity(capacity: int, largest: int) -> int:
    """The next size of memory: doubled while small, then by a half or a third.

    Each size is compiled, and all of the memory is read in every step.
    """
    # 64, 128, 256, 384, 512, 768, ...: few programs, and beyond 256 at most a third of unused rows
    power = 1 << (capacity.bit_length() - 1)
    doubles = capacity < DOUBLING_CAPACITY or capacity > power + power // 4
    return min(2 * power if doubles else power + power // 2, largest)


@partial(QuicklyCompiled, static_argnums=(0, 1, 2, 3, 4))
def initial_paths(
    setup: Setup,
    capacity: int,
    history: int,
    chunks: int,
    storage: str,
    step: StepParameters,
    weights: InitialWeights,
    draws: InitialDraws,
    direction_uniforms: Numeric,
    counters: Numeric,
) -> Paths:
    """Sets of paths (leading axis of the draws) at step 0."""

    def initial_set(draws: InitialDraws, uniforms: Numeric, counters: Numeric) -> Paths:
        state = conditioning.initial_state(setup, step, weights, draws, capacity)
        # Quasi-random uniforms become normals on the device.
        normals = jax.scipy.special.ndtri(uniforms)
        paths = paths_from_state(setup, state, normals, counters, np.dtype(storage), history)
        return rechunk(paths, chunks, 0)

    return jax.vmap(initial_set)(draws, direction_uniforms, counters)


@partial(QuicklyCompiled, static_argnums=0)
def observe_paths(setup: Setup, parameters: Parameters, paths: Paths) -> dict[str, Numeric]:
    """Overlaps and mean losses of sets of paths (leading axis)."""
    return jax.vmap(partial(observe, setup, parameters))(paths)
