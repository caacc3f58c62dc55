"""Deep linear networks trained as they are: all weights and inputs, gradients by JAX."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, RandomKeys, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys, step_key
from sgdynamics.fixed_data.deep_linear import (
    FIRST_STEP,
    LARGEST,
    DeepParameters,
    DeepSizes,
    at_step,
)
from sgdynamics.fixed_data.deep_linear_runs import (
    group_within_memory,
    run_parameters,
    velocity_of,
)
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    Simulator,
)

GROUP_BYTES = 1 << 28  # memory of the runs that advance together


@dataclass(frozen=True)
class DirectSetup:
    """The static description of direct runs."""

    depth: int
    dimension: int
    width: int
    samples: int  # of the data set, or of a batch
    is_fresh: bool
    selects: bool
    velocity: str


class Layers(NamedTuple):
    """The weights of a network."""

    first: Float[Numeric, "N d"]
    later: Float[Numeric, "later N N"]
    head: Float[Numeric, " N"]


class DataSet(NamedTuple):
    """Inputs and labels."""

    inputs: Float[Numeric, "n d"]
    labels: Float[Numeric, " n"]


class DirectState(NamedTuple):
    """One run."""

    layers: Layers
    velocity: Layers | None
    data: DataSet | None


class DirectParameters(NamedTuple):
    """Values that JAX traces: those of the exact law, and C and w* by coordinate."""

    values: DeepParameters
    deviations: Float[Numeric, " d"]
    teacher: Float[Numeric, " d"]


def predictor(layers: Layers, gain: Scalar) -> Float[Numeric, " d"]:
    """v = W_1^T ... W_{L-1}^T w/g: the network is linear, f(x) = v.x."""
    vector = layers.head
    for layer in reversed(range(layers.later.shape[0])):
        vector = vector @ layers.later[layer]
    return vector @ layers.first / gain


def loss(
    layers: Layers,
    data: DataSet,
    weights: Float[Numeric, " n"] | None,
    problem: Parameters,
) -> Float[Numeric, ""]:
    """Mean loss over the samples, weighted by their selection, with weight decay."""
    squares = (data.inputs @ predictor(layers, problem["gain"]) - data.labels) ** 2
    mean = jnp.mean(squares if weights is None else weights * squares)
    norm = sum(jnp.sum(leaf**2) for leaf in layers)
    return 0.5 * mean + 0.5 * problem["weight_decay"] * norm


def _draw_data(setup: DirectSetup, parameters: DirectParameters, key: RandomKey) -> DataSet:
    """A data set, or a batch."""
    input_key, noise_key = jax.random.split(key)
    shape = (setup.samples, setup.dimension)
    inputs = parameters.deviations * jax.random.normal(input_key, shape, jnp.float64)
    noise = jax.random.normal(noise_key, (setup.samples,), jnp.float64)
    deviation = jnp.sqrt(parameters.values.problem["noise"])
    return DataSet(inputs, inputs @ parameters.teacher + deviation * noise)


@partial(jax.jit, static_argnums=0)
def _initial_states(
    setup: DirectSetup, parameters: DirectParameters, keys: RandomKeys
) -> DirectState:
    N, scale = setup.width, parameters.values.problem["start_scale"]

    def initial_run(key: RandomKey) -> DirectState:
        key = jax.random.fold_in(key, FIRST_STEP)
        first, later, head, data = (jax.random.fold_in(key, index) for index in range(4))
        shapes = (N, setup.dimension), (setup.depth - 2, N, N), (N,)
        columns = (setup.dimension, N, N)
        layers = Layers(
            *(
                scale / np.sqrt(count) * jax.random.normal(layer_key, shape, jnp.float64)
                for layer_key, shape, count in zip(
                    (first, later, head), shapes, columns, strict=True
                )
            )
        )
        return DirectState(
            layers,
            jax.tree.map(jnp.zeros_like, layers) if setup.velocity else None,
            None if setup.is_fresh else _draw_data(setup, parameters, data),
        )

    return jax.vmap(initial_run)(keys)


def _step(
    setup: DirectSetup,
    parameters: DirectParameters,
    state: DirectState,
    key: RandomKey,
    number: IntScalar,
) -> DirectState:
    """One step of one run."""
    values = at_step(parameters.values, number)
    problem, algorithm, key = values.problem, values.algorithm, step_key(key, number)
    data = _draw_data(setup, parameters, key) if setup.is_fresh else state.data
    assert data is not None
    weights = None
    if setup.selects:
        uniform = jax.random.uniform(key, (setup.samples,), jnp.float64)
        weights = (uniform < algorithm["fraction"]) / algorithm["divisor"]
    gradients = jax.grad(loss)(state.layers, data, weights, problem)
    velocity, moves = None, gradients
    if setup.velocity:
        beta = algorithm["beta"]
        velocity = jax.tree.map(lambda old, new: beta * old + new, state.velocity, gradients)
        moves = velocity
        if setup.velocity == "nesterov":
            moves = jax.tree.map(lambda new, old: new + beta * old, gradients, velocity)
    rates = algorithm["lr"] * values.unit * problem["gain"] ** 2 * problem["rates"]
    layer_rates = Layers(rates[0], rates[1:-1, None, None], rates[-1])
    layers = jax.tree.map(
        lambda leaf, move, rate: leaf - rate * move, state.layers, moves, layer_rates
    )
    return state._replace(layers=layers, velocity=velocity)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance_states(
    setup: DirectSetup,
    parameters: DirectParameters,
    states: DirectState,
    keys: RandomKeys,
    first: IntScalar,
    end: IntScalar,
) -> tuple[DirectState, Int[Numeric, " runs"]]:
    """All runs (leading axis) from one step to another, and their last finite steps."""

    def advance(
        number: IntScalar, carry: tuple[DirectState, Int[Numeric, " runs"]]
    ) -> tuple[DirectState, Int[Numeric, " runs"]]:
        states, last_good = carry
        states = jax.vmap(lambda state, key: _step(setup, parameters, state, key, number))(
            states, keys
        )
        is_finite = jnp.max(jnp.abs(states.layers.head), axis=1) < LARGEST
        return states, jnp.where(is_finite, number + 1, last_good)

    last_good = jnp.full(keys.shape[0], first)
    return jax.lax.fori_loop(first, end, advance, (states, last_good))


@partial(jax.jit, static_argnums=0)
def _observe_states(
    setup: DirectSetup, parameters: DirectParameters, states: DirectState
) -> dict[str, Numeric]:
    """The observables of `fixed_data.deep_linear.observe`, of runs with a leading axis."""
    gain = parameters.values.problem["gain"]

    def observe(state: DirectState) -> dict[str, Numeric]:
        vector = predictor(state.layers, gain)
        error = parameters.deviations * (parameters.teacher - vector)
        values = {
            "overlap": vector @ parameters.teacher,
            "squared_norm": vector @ vector,
            "excess_risk": 0.5 * error @ error,
        }
        if state.data is not None:
            residuals = state.data.inputs @ vector - state.data.labels
            values["train_risk"] = 0.5 * jnp.mean(residuals**2)
        return values

    return jax.vmap(observe)(states)


class DirectDeepRuns(Simulator):
    """Runs of a deep linear network with all of its weights, O(n d + L N^2) per step."""

    def __init__(
        self,
        problem: DeepLinear,
        algorithm: OnePassSGD | FixedData,
        sizes: DeepSizes,
        *,
        unit: float,
        alpha_per_step: float,
        seed: int,
    ) -> None:
        dimension, width = int(np.sum(sizes.inputs)), int(sizes.hidden)
        on_data = isinstance(algorithm, FixedData)
        self.setup = DirectSetup(
            problem.depth,
            dimension,
            width,
            int(sizes.samples),
            not on_data,
            isinstance(algorithm, MultiPassSGD) and algorithm.selects,
            velocity_of(algorithm),
        )
        block_sizes = np.asarray(sizes.inputs).astype(np.int64)
        values = run_parameters(problem, algorithm, sizes, unit, alpha_per_step)
        parameters = problem.parameters
        teacher = np.zeros(dimension)
        # The direction within a block does not matter.
        teacher[np.concatenate([[0], np.cumsum(block_sizes)[:-1]])] = parameters["teacher"]
        deviations = input_covariance.coordinate_scales(parameters, block_sizes)
        self.values = DirectParameters(values, deviations, teacher)
        self.seed = seed

    @float64
    def initial(self, chosen: np.ndarray) -> DirectState:
        return _initial_states(self.setup, self.values, run_keys(self.seed, chosen))

    def advance(
        self,
        state: DirectState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        assert observation.observe is None, "first passages are not observed in deep networks"
        advanced = _advance_states(
            self.setup, self.values, state, keys, np.int64(since), np.int64(end)
        )
        return *advanced, observation.records

    def overlaps(self, state: DirectState) -> dict[str, Numeric]:
        return _observe_states(self.setup, self.values, state)

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        setup = self.setup
        weights = setup.width * (setup.dimension + (setup.depth - 2) * setup.width + 1)
        # Weights, their start, gradients and velocities; inputs and a copy of them
        bytes_per_run = 8.0 * (4 * weights + 2 * setup.samples * setup.dimension)
        size = (setup.samples, setup.width, setup.dimension)
        return Resources(bytes_per_run, group_within_memory(bytes_per_run), size)
