"""Deep linear networks trained as they are: all weights and inputs, gradients by JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, Scalar
from sgdynamics.base.random import step_key
from sgdynamics.fixed_data.deep_linear import DeepParameters, DeepSizes
from sgdynamics.fixed_data.deep_linear_runs import run_parameters
from sgdynamics.fixed_data.network_runs import (
    FIRST_STEP,
    NetworkRuns,
    RunEquations,
    at_step,
    velocity_and_move,
    velocity_of,
)
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.samples import input_covariance


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
    # One draw, because each compiles for a second.
    normals = jax.random.normal(key, (setup.samples, setup.dimension + 1), jnp.float64)
    inputs = parameters.deviations * normals[:, :-1]
    noise = jnp.sqrt(parameters.values.problem["noise"]) * normals[:, -1]
    return DataSet(inputs, inputs @ parameters.teacher + noise)


def initial_state(
    setup: DirectSetup, steps: int, parameters: DirectParameters, key: RandomKey
) -> DirectState:
    """The weights and the data set of a run before its first step."""
    N, scale = setup.width, parameters.values.problem["start_scale"]
    weight_key, data_key = jax.random.split(jax.random.fold_in(key, FIRST_STEP))
    shapes = (N, setup.dimension), (setup.depth - 2, N, N), (N,)
    columns = (setup.dimension, N, N)
    sizes = [math.prod(shape) for shape in shapes]
    normals = scale * jax.random.normal(weight_key, (sum(sizes),), jnp.float64)
    flat_layers = jnp.split(normals, np.cumsum(sizes)[:-1])
    layers = Layers(
        *(
            flat_layer.reshape(shape) / np.sqrt(count)
            for flat_layer, shape, count in zip(flat_layers, shapes, columns, strict=True)
        )
    )
    return DirectState(
        layers,
        jax.tree.map(jnp.zeros_like, layers) if setup.velocity else None,
        None if setup.is_fresh else _draw_data(setup, parameters, data_key),
    )


def advance_step(
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
    beta = algorithm.get("beta", 0.0)
    velocity, moves = velocity_and_move(setup.velocity, state.velocity, gradients, beta)
    rates = algorithm["lr"] * values.unit * problem["gain"] ** 2 * problem["rates"]
    layer_rates = Layers(rates[0], rates[1:-1, None, None], rates[-1])
    layers = jax.tree.map(
        lambda leaf, move, rate: leaf - rate * move, state.layers, moves, layer_rates
    )
    return state._replace(layers=layers, velocity=velocity)


def observe(
    setup: DirectSetup, parameters: DirectParameters, state: DirectState
) -> dict[str, Numeric]:
    """The observables of `fixed_data.deep_linear.observe`."""
    vector = predictor(state.layers, parameters.values.problem["gain"])
    error = parameters.deviations * (parameters.teacher - vector)
    values: dict[str, Numeric] = {
        "overlap": vector @ parameters.teacher,
        "squared_norm": vector @ vector,
        "excess_risk": 0.5 * error @ error,
    }
    if state.data is not None:
        residuals = state.data.inputs @ vector - state.data.labels
        values["train_risk"] = 0.5 * jnp.mean(residuals**2)
    return values


def largest_head_weight(state: DirectState) -> Scalar:
    """The largest weight of the last layer."""
    return jnp.max(jnp.abs(jnp.asarray(state.layers.head)))


EQUATIONS: RunEquations[DirectSetup, DirectParameters, DirectState] = RunEquations(
    initial_state, advance_step, observe, largest_head_weight
)


class DirectDeepRuns(NetworkRuns[DirectSetup, DirectParameters, DirectState]):
    """Runs of a deep linear network with all of its weights, O(n d + L N^2) per step."""

    equations = EQUATIONS

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
        setup = DirectSetup(
            problem.depth,
            dimension,
            width,
            int(sizes.samples),
            not on_data,
            isinstance(algorithm, MultiPassSGD) and algorithm.selects,
            velocity_of(algorithm),
        )
        block_sizes = np.asarray(sizes.inputs).astype(np.int64)
        exact_values = run_parameters(problem, algorithm, sizes, unit, alpha_per_step)
        parameters = problem.parameters
        teacher = np.zeros(dimension)
        # The direction within a block does not matter.
        teacher[np.concatenate([[0], np.cumsum(block_sizes)[:-1]])] = parameters["teacher"]
        deviations = input_covariance.coordinate_scales(parameters, block_sizes)
        values = DirectParameters(exact_values, deviations, teacher)
        super().__init__(setup, values, 0, seed)

    def bytes_per_run(self, capacity: int) -> float:
        setup = self.setup
        weights = setup.width * (setup.dimension + (setup.depth - 2) * setup.width + 1)
        # Weights, their start, gradients and velocities; inputs and a copy of them
        return 8.0 * (4 * weights + 2 * setup.samples * setup.dimension)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.setup.samples, self.setup.width, self.setup.dimension
