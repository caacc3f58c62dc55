"""Diagonal networks with explicit coordinates: direct runs, exact laws of data sets, their limit.

With the error delta = a - b of the predictor weights a = u v, the inputs x = C^(1/2) z and n
samples, the residuals and the gradient in a are products with G = Z/sqrt(n) from either side::

    e = (f - y)/sqrt(n) = G C^(1/2) delta/sqrt(d) - noise,     g = sqrt(d) C^(1/2) G^T e
    u <- u - lr (g v + al u),     v <- v - lr (g u + al v)

The update acts on each coordinate, so that coordinates are explicit. The loss is squared, so that
samples enter only through inner products, and their space stays abstract: vectors of samples are
coefficients in a growing frame (`fixed_data.matrix_conditioning`). With the lengths and components
of finite n this is the exact law at d coordinates, at a cost per step of d times the number of
steps. Without their fluctuations, coordinates are paths of the effective process for d -> infinity.
Batches of a data set act on samples: their exact law keeps the n coordinates of the sample space.
Direct runs store or draw the inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, Scalar
from sgdynamics.base.random import normals_and_uniforms, step_key
from sgdynamics.fixed_data.matrix_conditioning import (
    TOLERANCE,
    GaussianMatrix,
    frame_draw,
    limit_draw,
    product,
    transposed_product,
)
from sgdynamics.fixed_data.network_runs import (
    FIRST_STEP,
    RunEquations,
    at_step,
    selected_residual,
)
from sgdynamics.samples.input_covariance import block_sizes as largest_remainder

FIRST_SLOTS = 1  # directions of the sample space before the first step: the noise


@dataclass(frozen=True)
class DiagonalSetup:
    """The static description of runs, on which compiled code depends.

    Attributes
    ----------
    method : str
        "direct", "exact" (law of a data set) or "limit".
    dimension : int
        Number of coordinates.
    samples : int
        Size of the data set or of a batch.
    is_fresh : bool
        Whether each step draws its samples; otherwise a data set.
    selects : bool
        Whether a step uses a random part of the data set.
    has_frame : bool
        Whether the sample space is abstract; otherwise it has its coordinates.
    atoms : int
        Number of teacher weights with a share.
    """

    method: str
    dimension: int
    samples: int
    is_fresh: bool
    selects: bool
    has_frame: bool
    atoms: int

    @property
    def slots_per_step(self) -> int:
        """New directions of the sample space: that of a product, and that of a selection."""
        return 2 if self.selects else 1

    def sample_entries(self, steps: int) -> int:
        """Length of a vector of samples, with memory for this many steps."""
        if not self.has_frame:
            return self.samples
        return FIRST_SLOTS + self.slots_per_step * (steps + 2)

    def count_numbers(self, steps: int) -> float:
        """Size of the state of one run with memory for this many steps."""
        if self.method == "direct":
            return float(self.samples) * self.dimension + 4.0 * self.dimension
        return 2.0 * (steps + 2) * (self.dimension + self.sample_entries(steps))


class DiagonalParameters(NamedTuple):
    """Values that JAX traces."""

    samples: Scalar  # n; in the limit samples_per_dimension times the number of paths
    teacher: Float[Numeric, " d"]
    atom: Int[Numeric, " d"]  # index of the teacher weight of each coordinate
    roots: Float[Numeric, " d"]  # standard deviation of each input
    problem: Parameters  # start, noise, weight_decay
    algorithm: Parameters  # lr, fraction, divisor
    unit: Scalar  # learning rate of a step over that of the algorithm
    schedule_step: Scalar  # samples/d per step, the variable of schedules of one-pass SGD


class DiagonalState(NamedTuple):
    """One run between two steps."""

    u: Float[Numeric, " d"]
    v: Float[Numeric, " d"]
    matrix: GaussianMatrix | None  # known products of G
    inputs: Float[Numeric, "n d"] | None  # G itself, of direct runs on a data set
    in_use: Bool[Numeric, "directions 1"]  # frame of the sample space
    noise: Float[Numeric, " samples"]
    residual: Float[Numeric, " samples"]  # (f - y)/sqrt(n)


def initial_state(
    setup: DiagonalSetup, steps: int, parameters: DiagonalParameters, key: RandomKey
) -> DiagonalState:
    """A run at step 0, with memory for this many steps."""
    key = jax.random.fold_in(key, FIRST_STEP)
    noise_key, data_key, product_key = jax.random.split(key, 3)
    d, entries, queries = setup.dimension, setup.sample_entries(steps), steps + 2
    u, v = (jnp.full(d, parameters.problem["start"][index], jnp.float64) for index in range(2))
    in_use = jnp.zeros((entries, 1), bool)
    state = DiagonalState(u, v, None, None, in_use, jnp.zeros(0), jnp.zeros(0))
    if setup.is_fresh:
        return state
    draw, in_use = _sample_draw(setup, parameters, in_use, 0, noise_key)
    state = state._replace(in_use=in_use, noise=jnp.sqrt(parameters.problem["noise"]) * draw)
    if setup.method == "direct":
        normals = jax.random.normal(data_key, (setup.samples, d), jnp.float64)
        state = state._replace(inputs=normals / jnp.sqrt(parameters.samples))
    else:
        right, left = jnp.zeros((queries, d)), jnp.zeros((queries, entries))
        state = state._replace(matrix=GaussianMatrix(right, left, left, right))
    return _with_residual(setup, parameters, state, jnp.zeros((), jnp.int64), product_key)


def _sample_draw(
    setup: DiagonalSetup,
    parameters: DiagonalParameters,
    in_use: Bool[Numeric, "directions 1"],
    slot: IntScalar,
    key: RandomKey,
) -> tuple[Float[Numeric, " samples"], Bool[Numeric, "directions 1"]]:
    """A Gaussian vector of samples with entries of variance 1/n, and the extended frame."""
    scale = 1 / jnp.sqrt(parameters.samples)
    if not setup.has_frame:
        return scale * normals_and_uniforms(key, setup.samples, 0)[0], in_use
    sizes = jnp.asarray(parameters.samples, jnp.float64)[None]
    if setup.method == "limit":
        draw = limit_draw(jnp.sqrt(sizes), in_use.shape[0], slot)
    else:
        draw, in_use = frame_draw(key, sizes, in_use, slot)
    return scale * draw[:, 0], in_use


def _error(parameters: DiagonalParameters, state: DiagonalState) -> Float[Numeric, " d"]:
    """C^(1/2) (a - b)."""
    return parameters.roots * (state.u * state.v - parameters.teacher)


def _with_residual(
    setup: DiagonalSetup,
    parameters: DiagonalParameters,
    state: DiagonalState,
    visit: IntScalar,
    key: RandomKey,
) -> DiagonalState:
    """The state with the residuals of its weights."""
    error = _error(parameters, state) / math.sqrt(setup.dimension)
    if setup.method == "direct":
        assert state.inputs is not None
        return state._replace(residual=state.inputs @ error - state.noise)
    slot = FIRST_SLOTS + setup.slots_per_step * visit
    draw, in_use = _sample_draw(setup, parameters, state.in_use, slot, key)
    assert state.matrix is not None
    matrix, outputs = product(state.matrix, error, visit, draw, TOLERANCE)
    return state._replace(matrix=matrix, in_use=in_use, residual=outputs - state.noise)


def _fresh_gradient(
    setup: DiagonalSetup, parameters: DiagonalParameters, state: DiagonalState, key: RandomKey
) -> Float[Numeric, " d"]:
    """G^T e of a fresh batch."""
    batch, d = setup.samples, setup.dimension
    normals = normals_and_uniforms(key, batch * (d + 1), 0)[0] / math.sqrt(batch)
    inputs, noise = normals[: batch * d].reshape(batch, d), normals[batch * d :]
    residual = inputs @ _error(parameters, state) / math.sqrt(d)
    return (residual - jnp.sqrt(parameters.problem["noise"]) * noise) @ inputs


def _data_gradient(
    setup: DiagonalSetup,
    parameters: DiagonalParameters,
    state: DiagonalState,
    visit: IntScalar,
    key: RandomKey,
) -> tuple[DiagonalState, Float[Numeric, " d"]]:
    """G^T e on the data set, and the state with G conditioned on it."""
    batch_key, draw_key = jax.random.split(key)
    slot = FIRST_SLOTS + setup.slots_per_step * visit + 1
    selected = state.residual
    if setup.selects:
        selected = selected_residual(
            selected,
            parameters.algorithm,
            slot,
            batch_key,
            has_coordinates=not setup.has_frame,
        )
    if setup.method == "direct":
        assert state.inputs is not None
        return state, selected @ state.inputs
    normals = normals_and_uniforms(draw_key, setup.dimension, 0)[0]
    assert state.matrix is not None
    matrix, gradient = transposed_product(
        state.matrix, selected, visit, normals / jnp.sqrt(parameters.samples), TOLERANCE
    )
    in_use = state.in_use
    if setup.has_frame and setup.selects:
        in_use = jnp.asarray(in_use).at[slot].set(True)
    return state._replace(matrix=matrix, in_use=in_use), gradient


def advance_step(
    setup: DiagonalSetup,
    parameters: DiagonalParameters,
    state: DiagonalState,
    key: RandomKey,
    number: IntScalar,
) -> DiagonalState:
    """Step `number` of one run."""
    parameters = at_step(parameters, number)
    gradient_key, product_key = jax.random.split(step_key(key, number))
    if setup.is_fresh:
        gradient = _fresh_gradient(setup, parameters, state, gradient_key)
    else:
        state, gradient = _data_gradient(setup, parameters, state, number, gradient_key)
    gradient = math.sqrt(setup.dimension) * parameters.roots * gradient
    rate = parameters.algorithm["lr"] * parameters.unit
    decay = parameters.problem["weight_decay"]
    u, v = state.u, state.v
    state = state._replace(
        u=u - rate * (gradient * v + decay * u), v=v - rate * (gradient * u + decay * v)
    )
    if setup.is_fresh:
        return state
    return _with_residual(setup, parameters, state, number + 1, product_key)


def observe(
    setup: DiagonalSetup, parameters: DiagonalParameters, state: DiagonalState
) -> dict[str, Numeric]:
    """The variables of a result."""
    a = state.u * state.v
    counts = jnp.zeros(setup.atoms).at[parameters.atom].add(1.0)
    values: dict[str, Numeric] = {
        "excess_risk": 0.5 * jnp.mean(_error(parameters, state) ** 2),
        "overlap": jnp.mean(a * parameters.teacher),
        "squared_norm": jnp.mean(a**2),
        "l1_norm": jnp.mean(jnp.abs(a)),
        "imbalance": jnp.mean(jnp.abs(state.u**2 - state.v**2)),
        "weight_mean": jnp.zeros(setup.atoms).at[parameters.atom].add(a) / counts,
        "weight_square": jnp.zeros(setup.atoms).at[parameters.atom].add(a**2) / counts,
    }
    if not setup.is_fresh:
        values["train_risk"] = 0.5 * jnp.sum(state.residual**2)
    return values


def largest_weight(state: DiagonalState) -> Scalar:
    """The largest sum of the sizes of the two weights of a coordinate."""
    return jnp.max(jnp.abs(jnp.asarray(state.u)) + jnp.abs(jnp.asarray(state.v)))


EQUATIONS: RunEquations[DiagonalSetup, DiagonalParameters, DiagonalState] = RunEquations(
    initial_state, advance_step, observe, largest_weight
)


def coordinates(
    values: np.ndarray, shares: np.ndarray, block_sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The teacher weight of each coordinate and its index, block by block, by largest remainder."""
    index = np.concatenate(
        [
            np.repeat(np.arange(len(values)), largest_remainder(shares, int(size)))
            for size in block_sizes
        ]
    )
    return values[index], index
