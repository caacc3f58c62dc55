"""Runs on all devices of this machine: each device advances its share of a group.

Runs are independent and have keys of their own, so that the share in which a run advances changes
its numbers at most by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from sgdynamics.base.arrays import Device, Numeric, PyTree, RandomKeys
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    Simulator,
)


def over_devices(simulator: Simulator, devices: Sequence[Device]) -> Simulator:
    """The simulator on several devices; the simulator itself for one, or where it holds data."""
    if len(devices) == 1 or not simulator.divides_over_devices:
        return simulator
    return SeveralDevices(simulator, devices)


class SeveralDevices(Simulator):
    """A simulator whose groups of runs are divided among devices.

    The state is a list of the states of consecutive parts of the batch, one per device. A batch
    whose size is no multiple of the number of devices uses fewer of them, so that all parts have
    one size and share a program.

    Parameters
    ----------
    simulator : Simulator
        The method of simulation on one device.
    devices : list of jax.Device
        The devices.
    """

    divides_over_devices = False

    def __init__(self, simulator: Simulator, devices: Sequence[Device]) -> None:
        self.simulator, self.devices = simulator, devices
        self.engine, self.on_train = simulator.engine, simulator.on_train
        self.drops_finished_runs = simulator.drops_finished_runs
        self.moves_per_step = simulator.moves_per_step

    def _split_batch(self, size: int) -> list[slice]:
        """The positions of the runs of each device."""
        share = size // math.gcd(size, len(self.devices))
        return [slice(first, first + share) for first in range(0, size, share)]

    def _divide(self, batch: PyTree, size: int) -> list[PyTree]:
        """Arrays with a leading axis of runs as parts on their devices."""
        return [
            jax.device_put(jax.tree.map(lambda leaf, shard=shard: leaf[shard], batch), device)
            for shard, device in zip(self._split_batch(size), self.devices, strict=False)
        ]

    def initial(self, chosen: np.ndarray) -> list[PyTree]:
        return self._divide(self.simulator.initial(chosen), len(chosen))

    def advance(
        self,
        state: list[PyTree],
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        size = len(keys)
        divided = zip(
            state, self._divide(keys, size), self._divide(observation.records, size), strict=True
        )
        results = []
        for shard, shard_keys, records in divided:
            result = self.simulator.advance(
                shard, shard_keys, since, end, observation._replace(records=records)
            )
            if self.devices[0].platform == "cpu":
                # Programs on several devices of one processor share its threads, and may wait for
                # each other forever. Other devices work at the same time.
                jax.block_until_ready(result)
            results.append(result)
        states, last_finite, records = zip(*results, strict=True)
        return list(states), np.concatenate(last_finite), _join(records)

    def overlaps(self, state: list[PyTree]) -> dict[str, Any]:
        return _join([self.simulator.overlaps(shard) for shard in state])

    @property
    def grain(self) -> int:
        return self.simulator.grain

    def with_observation(self, observation: Observation) -> Simulator:
        return SeveralDevices(self.simulator.with_observation(observation), self.devices)

    def resources(self, steps: float = 0.0) -> Resources:
        resources, count = self.simulator.resources(steps), len(self.devices)
        largest = count * resources.largest_group
        return replace(resources, largest_group=largest, group_multiple=count)

    def train_risk(self, state: list[PyTree]) -> np.ndarray:
        return np.concatenate([self.simulator.train_risk(shard) for shard in state])

    def leaves(self, state: list[PyTree]) -> list[np.ndarray]:
        return jax.tree.leaves(_join(state))

    def restore(self, chosen: np.ndarray, leaves: list[np.ndarray], now: int) -> list[PyTree]:
        return self._divide(self.simulator.restore(chosen, leaves, now), len(chosen))

    def select_runs(self, state: list[PyTree], index: np.ndarray) -> list[PyTree]:
        return self._divide(self.simulator.select_runs(_join(state), index), len(index))


def _join(shards: Sequence[PyTree]) -> PyTree:
    """Pytrees of several devices as one on the host."""

    def join_leaves(*leaves: Numeric) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])

    return jax.tree.map(join_leaves, *shards)
