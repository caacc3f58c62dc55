"""Algorithms on a fixed data set at finite d, exactly in law, without the data set: Gaussian conditioning in coefficient space."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.base.arrays import Numeric, Parameters, RandomKey, RandomKeys
from sgdynamics.base.controls import values_at
from sgdynamics.base.random import normals_and_uniforms, run_keys
from sgdynamics.fixed_data import conditioning
from sgdynamics.fixed_data.conditioning import Known
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation.exact import GROUP_BYTES
from sgdynamics.simulation.running import UNSEEN, Advanced, Simulator, Watched

FIRST_STEP = (1 << 31) - 1  # a step number that no run reaches: what is drawn before the first step


class ExactFixedData(Simulator):
    """Runs whose data sets are known only as far as the algorithm has looked. Memory grows with the steps, up to that of the data set."""

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        seed: int,
    ) -> None:
        self.setup = conditioning.Setup(problem.structure, algorithm.selects, algorithm.hot)
        self.parameters = problem.parameters | {"frame": signal_frames(problem, sizes)}
        self.algorithm = algorithm.parameters
        self.samples = algorithm.samples(dimension)
        self.inputs = self.samples * problem.structure.sample.inputs_a_sample
        self.sizes = sizes.astype(np.float64)
        self.most = (
            int(sizes.max()) + self.setup.opened
        )  # the last steps need room to look, even where nothing is left to find
        self.T, self.L = compressed_rows(problem, begin, sizes)
        self.head = begin.a
        self.seed = seed

    def initial(self, chosen: np.ndarray) -> Any:
        self.now = 0.0
        room = self._first_room
        rows = (self.T[chosen], self.L[chosen], self.head[chosen])
        numbers = (self.parameters, self.algorithm, self.sizes)
        return _initial(
            self.setup, self.samples, room, *numbers, *rows, run_keys(self.seed, chosen)
        )

    def advance(
        self, state: Known, keys: RandomKeys, since: int, end: int, watch: Watched = UNSEEN
    ) -> Advanced:
        assert watch.see is None, "first passages are not watched here"
        self.now = float(elapsed_at(self.algorithm["lr"], end))
        numbers = (self.parameters, self.algorithm, self.sizes, np.float64(conditioning.ROUNDING))
        return *conditioning.advance(
            self.setup, numbers, self.most, state, keys, since, end
        ), watch.seen

    def overlaps(self, state: Known) -> dict[str, Any]:
        return conditioning.observed(
            _observe, self.setup, self.on_train, values_at(self.parameters, self.now), state
        )

    @property
    def grain(self) -> int:
        return 1

    @property
    def size(self) -> tuple[int, ...]:
        return self.samples, self.setup.structure.width, int(self.sizes.sum())

    @property
    def _first_room(self) -> int:
        """Directions that memory is made for at the start."""
        return min(max(conditioning.SMALLEST, self.setup.first + 2 * self.setup.opened), self.most)

    def bytes_a_run(self, steps: float = 0.0) -> float:
        """Memory of one run: its directions twice at their final capacity, and once at the capacity before, from which they are copied."""
        directions = min(self.most, self.setup.first + self.setup.opened * (steps + 1))
        room, previous = self._first_room, 0
        while room < directions:
            room, previous = conditioning.next_room(room, self.most), room
        return 8.0 * self.inputs * (1 + self.setup.structure.blocks) * (2 * room + previous)

    def largest_group(self) -> int:
        a_run = 8 * self.inputs * self.most * (1 + self.setup.structure.blocks)
        return max(1, 2 * GROUP_BYTES // a_run)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _initial(
    setup: conditioning.Setup,
    samples: int,
    room: int,
    parameters: Parameters,
    algorithm: Parameters,
    sizes: Float[Numeric, " blocks"],
    T: Float[Numeric, "runs blocks p K"],
    L: Float[Numeric, "runs blocks p p"],
    head: Float[Numeric, "runs p"],
    keys: RandomKeys,
) -> conditioning.Known:
    def one(
        T: Float[Numeric, "blocks p K"],
        L: Float[Numeric, "blocks p p"],
        head: Float[Numeric, " p"],
        key: RandomKey,
    ) -> conditioning.Known:
        sample = setup.structure.sample
        count = setup.structure.blocks * setup.first * samples * sample.inputs_a_sample
        normals, uniform = normals_and_uniforms(
            jax.random.fold_in(key, FIRST_STEP), count + samples * sample.draw_normals, samples
        )
        known = normals[:count].reshape(setup.structure.blocks, setup.first, -1)
        known = jnp.where(
            jnp.arange(setup.first)[:, None] < sizes[:, None, None], known, 0.0
        )  # a small block has fewer directions
        noise = normals[count:].reshape(samples, sample.draw_normals)
        return conditioning.initial(
            setup, parameters, algorithm, T, L, head, known, noise, uniform, room
        )

    return jax.vmap(one)(T, L, head, keys)


@partial(jax.jit, static_argnums=0)
def _observe(setup: conditioning.Setup, parameters: Parameters, state: Known) -> dict[str, Any]:
    return jax.vmap(partial(conditioning.observe, setup, parameters))(state)
