"""Algorithms on a fixed data set at finite d, exactly in law, without the data set itself.

The data are drawn only along the directions that the algorithm has used
(`fixed_data.conditioning`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.base.arrays import Numeric, Parameters, RandomKey, RandomKeys
from sgdynamics.base.controls import values_at
from sgdynamics.base.random import normals_and_uniforms, run_keys
from sgdynamics.fixed_data import conditioning
from sgdynamics.fixed_data.conditioning import ConditionedState
from sgdynamics.fixed_data.gradient_calls import count_calls
from sgdynamics.fixed_data.message_passing import MessagePassing, Messages, first_messages
from sgdynamics.fixed_data.setup import (
    SMALLEST_CAPACITY,
    InitialDraws,
    InitialWeights,
    Setup,
    StepParameters,
)
from sgdynamics.fixed_data.spectral_start import (
    SpectralStart,
    linear_passing,
    power_keys,
    random_direction,
    rescale,
)
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation.exact import GROUP_BYTES
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    RunSetting,
    Simulator,
)

FIRST_STEP = (1 << 31) - 1  # step number of the draws before the first step; no run reaches it


class ExactFixedData(Simulator):
    """Runs in the basis of the data products, whose memory grows up to that of the data set."""

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        setting: RunSetting[Start],
        passing: MessagePassing | None = None,
        spectral: SpectralStart | None = None,
    ) -> None:
        start, block_sizes = setting.start, setting.block_sizes
        law, calls = algorithm.law, 1
        if algorithm.update is not None:
            calls = count_calls(algorithm.update, problem.structure)
        if spectral is not None:
            start = random_direction(problem, start)
        self.problem, self.spectral = problem, spectral
        self.setup = Setup(
            problem.structure,
            algorithm.selects,
            algorithm.has_thermal_noise or (law is not None and law.noise),
            passing=passing,
            law=law,
            calls=calls,
        )
        self.step_parameters = StepParameters(
            problem.parameters | {"frame": signal_frames(problem, block_sizes)},
            algorithm.parameters,
            block_sizes.astype(np.float64),
            np.float64(conditioning.ROUNDING),
        )
        self.samples = algorithm.samples(setting.dimension)
        self.inputs = self.samples * problem.structure.sample.tokens.inputs_per_sample
        # The last steps need capacity for their gradients even if no direction is left.
        self.largest_capacity = int(block_sizes.max()) + self.setup.directions_per_step
        # M and Q at this dimension as rows on the signals and on p further directions
        self.weights = InitialWeights(*compressed_rows(problem, start, block_sizes), start.a)
        self.seed = setting.seed
        self.first_messages: Messages | None = None
        if passing is not None:
            self.first_messages = first_messages(
                problem, passing, start, self.samples, algorithm.samples_per_dimension
            )

    def initial(self, chosen: np.ndarray) -> ConditionedState:
        self.now = 0.0
        # All fields have a leading axis of runs.
        weights = InitialWeights(*(leaf[chosen] for leaf in self.weights))
        keys = run_keys(self.seed, chosen)
        capacity = self._first_capacity
        state = _initial_states(
            self.setup, self.samples, capacity, self.step_parameters, weights, keys
        )
        if self.first_messages is None:
            return state
        messages = Messages(*(jnp.asarray(leaf[chosen]) for leaf in self.first_messages))
        state = state._replace(messages=messages)
        return state if self.spectral is None else self._iterate_power(state, keys, self.spectral)

    def _iterate_power(
        self, state: ConditionedState, keys: RandomKeys, spectral: SpectralStart
    ) -> ConditionedState:
        """The spectral start from random directions."""
        setup = replace(self.setup, passing=linear_passing(self.setup.passing, spectral))
        state, _ = conditioning.advance(
            setup,
            self.step_parameters,
            self.largest_capacity,
            state,
            power_keys(keys),
            0,
            spectral.steps(int(self.step_parameters.block_sizes.sum())),
        )
        overlaps = _observe(setup, self.step_parameters.parameters, state)
        M, Q = (np.asarray(overlaps[name]) for name in ("M", "Q"))
        rows, messages = rescale(self.problem, spectral, state.rows, state.messages, M, Q)
        return state._replace(rows=rows, messages=messages)

    def advance(
        self,
        state: ConditionedState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        assert observation.observe is None, "first passages are not observed in the exact law"
        self.now = float(elapsed_at(self.step_parameters.hyperparameters["lr"], end))
        # A run whose basis spans the whole space continues in it, without new directions.
        advanced = conditioning.advance(
            self.setup, self.step_parameters, self.largest_capacity, state, keys, since, end
        )
        return *advanced, observation.records

    def overlaps(self, state: ConditionedState) -> dict[str, Numeric]:
        # Observables of a time-dependent problem refer to the present time.
        parameters = values_at(self.step_parameters.parameters, self.now)
        return conditioning.observe_losses(_observe, self.setup, self.on_train, parameters, state)

    @property
    def grain(self) -> int:
        return 1

    @property
    def _first_capacity(self) -> int:
        """Number of directions for which memory is allocated at the start."""
        setup = self.setup
        needed = setup.initial_directions + 2 * setup.directions_per_step
        return min(max(SMALLEST_CAPACITY, needed), self.largest_capacity)

    def resources(self, steps: float = 0.0) -> Resources:
        dimension = int(self.step_parameters.block_sizes.sum())
        arrays = 1 + self.setup.structure.blocks
        # At the final capacity, so that a group never has to be divided on the way
        largest = 2 * GROUP_BYTES // (8 * self.inputs * self.largest_capacity * arrays)
        return Resources(
            self._bytes_per_run(steps),
            max(1, largest),
            (self.samples, self.setup.structure.width, dimension),
        )

    def _bytes_per_run(self, steps: float) -> float:
        """Memory of one run: twice its final capacity, and the former one while it is copied."""
        setup = self.setup
        # One step more, because the loop checks for the memory of a full step.
        added = setup.directions_per_step * (steps + 1)
        directions = min(self.largest_capacity, setup.initial_directions + added)
        capacity, previous = self._first_capacity, 0
        while capacity < directions:
            previous = capacity
            capacity = conditioning.next_capacity(capacity, self.largest_capacity)
        arrays = 1 + setup.structure.blocks  # P, and A of each block
        return 8.0 * self.inputs * arrays * (2 * capacity + previous)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _initial_states(
    setup: Setup,
    samples: int,
    capacity: int,
    step: StepParameters,
    weights: InitialWeights,
    keys: RandomKeys,
) -> ConditionedState:
    sample, blocks = setup.structure.sample, setup.structure.blocks
    directions = setup.initial_directions

    def initial_run(weights: InitialWeights, key: RandomKey) -> ConditionedState:
        count = blocks * directions * samples * sample.tokens.inputs_per_sample
        normals, uniform = normals_and_uniforms(
            jax.random.fold_in(key, FIRST_STEP),
            count + samples * sample.normals_per_sample,
            samples,
        )
        data = normals[:count].reshape(blocks, directions, -1)
        # A block with fewer coordinates than signals and rows has fewer directions.
        has_direction = jnp.arange(directions)[:, None] < step.block_sizes[:, None, None]
        noise = normals[count:].reshape(samples, sample.normals_per_sample)
        draws = InitialDraws(jnp.where(has_direction, data, 0.0), noise, uniform)
        return conditioning.initial_state(setup, step, weights, draws, capacity)

    return jax.vmap(initial_run)(weights, keys)


@partial(jax.jit, static_argnums=0)
def _observe(setup: Setup, parameters: Parameters, state: ConditionedState) -> dict[str, Numeric]:
    return jax.vmap(partial(conditioning.observe, setup, parameters))(state)
