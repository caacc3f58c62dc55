"""Infinitely wide networks that learn features, in one causal sweep over the steps.

The network h_1 = W_1 x/sqrt(D), h_{l+1} = V_l s(h_l), f = w.s(h_L)/(gamma0 N) with V_l =
W_l/sqrt(N) is trained on P samples with the residuals e = y - f. A gradient step of rate
eta gamma0^2 N for the loss sum_mu e_mu^2/2 (the mean over the samples has eta = lr/P) is, with
g_L = s'(h_L) w and g_l = s'(h_l) V_l^T g_{l+1},

    V_l <- V_l + (eta gamma0/N) sum_mu e_mu g_{l+1,mu} s(h_{l,mu})^T
    w   <- w   + eta gamma0     sum_mu e_mu s(h_{L,mu})
    h_1(x) <- h_1(x) + eta gamma0 sum_mu e_mu g_{1,mu} (x_mu.x/D)

so that V_l(0), a Gaussian matrix, is seen only through its products with all s(h_l) so far from the
right and with all g_{l+1} so far from the left. The neurons of a layer are a sample of the law of
one neuron. `GaussianMatrix` keeps orthonormal bases E of the first and P of the second, and the
products A = V(t) E and B = V(t)^T P of the present weights: their start and what was learned
together. On new directions, nothing has been learned, and the products are (`matrix_conditioning`)

    V e_new = P B^T e_new + (1 - P P^T) z,     V^T p_new = E A^T p_new + (1 - E E^T) z'

where z is a new normal variable of each neuron. In the limit N -> infinity its length is 1; the
points are quasi-random. No response function and no iteration is needed. Source: the field theory
of Bordelon and Pehlevan (2022), whose response functions are averages of these equations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric, RandomKey, Scalar
from sgdynamics.base.random import step_key
from sgdynamics.fixed_data.matrix_conditioning import (
    GaussianMatrix,
    new_products,
    orthogonal_part,
    principal_residuals,
)
from sgdynamics.fixed_data.network_runs import velocity_and_move
from sgdynamics.problems.activations import Activation

SMALLEST = 1e-300  # of a squared length that is divided by
# Draws of each layer that do not belong to directions of the training: of the fields of test inputs
TEST_DRAWS = 1


@dataclass(frozen=True)
class WideSetup:
    """The static description of a sweep, on which compiled code depends.

    Attributes
    ----------
    layers : int
        Number L of hidden layers.
    activation : Activation
        The activation s.
    samples, test_samples : int
        Numbers of training and of test inputs.
    selects : bool
        Whether a step uses a random part of the samples.
    velocity : str
        "" for plain steps, "momentum" or "nesterov".
    """

    layers: int
    activation: Activation
    samples: int
    test_samples: int
    selects: bool = False
    velocity: str = ""


class WideParameters(NamedTuple):
    """Values that JAX traces."""

    kernel: Float[Numeric, "points samples"]  # x.x_mu/D of training inputs, then of test inputs
    labels: Float[Numeric, " samples"]
    gamma0: Scalar
    times: Float[Numeric, " table"] | Scalar  # lr, or t before each step
    fraction: Scalar  # of the samples in a batch
    divisor: Scalar  # of the sum over a batch, in addition to the number of samples
    beta: Float[Numeric, " table"] | Scalar  # of momentum, or its value in each step
    tolerance: Scalar
    key: RandomKey  # of the batches


class Weights(NamedTuple):
    """Everything that a step moves, linearly in the gradients."""

    fields: Float[Numeric, "points neurons"]  # h_1
    head: Float[Numeric, " neurons"]  # w
    products: tuple[Float[Numeric, "directions neurons"], ...]  # A of each V_l
    left_products: tuple[Float[Numeric, "directions neurons"], ...]  # B of each V_l


class WideState(NamedTuple):
    """The neurons between two steps."""

    weights: Weights
    velocity: Weights | None
    right: tuple[Float[Numeric, "directions neurons"], ...]  # E of each V_l
    left: tuple[Float[Numeric, "directions neurons"], ...]  # P of each V_l
    right_counts: Int[Numeric, " links"]
    left_counts: Int[Numeric, " links"]
    start_outputs: Float[Numeric, " points"]  # f at the start, which is subtracted


class Passes(NamedTuple):
    """The forward and the backward pass of the present weights on the training inputs."""

    features: tuple[Float[Numeric, "samples neurons"], ...]  # s(h_l)
    gradients: tuple[Float[Numeric, "samples neurons"], ...]  # g_l
    outputs: Float[Numeric, " samples"]


# ---- directions


def _unit_length(vectors: Float[Numeric, "m n"]) -> Float[Numeric, "m n"]:
    """The vectors at length 1; zero vectors stay zero."""
    squares = jnp.sum(vectors**2, axis=1, keepdims=True)
    return vectors / jnp.sqrt(jnp.maximum(squares, SMALLEST))


def _extend(
    matrix: GaussianMatrix,
    vectors: Float[Numeric, "m columns"],
    index: IntScalar,
    draws: Float[Numeric, "m rows"],
    tolerance: Scalar,
) -> tuple[GaussianMatrix, IntScalar]:
    """The matrix with its products with the new directions of these vectors, and their number."""
    directions, is_new = principal_residuals(matrix.right, vectors, tolerance)
    fluctuations = _unit_length(orthogonal_part(matrix.left, draws, 2))
    products = jnp.where(is_new[:, None], new_products(matrix, directions, fluctuations), 0.0)
    # Unused rows are zero and are overwritten by the next directions.
    extended = matrix._replace(
        right=jax.lax.dynamic_update_slice(matrix.right, directions, (index, 0)),
        right_products=jax.lax.dynamic_update_slice(matrix.right_products, products, (index, 0)),
    )
    return extended, jnp.sum(is_new)


def _multiply(
    matrix: GaussianMatrix, vectors: Float[Numeric, "m columns"]
) -> Float[Numeric, "m rows"]:
    """The products V v of vectors in the span of the basis."""
    coefficients = jnp.einsum("kc,mc->mk", matrix.right, vectors, precision="highest")
    return jnp.einsum("mk,kr->mr", coefficients, matrix.right_products, precision="highest")


def _matrix(state: WideState, link: int) -> GaussianMatrix:
    weights = state.weights
    return GaussianMatrix(
        state.right[link], weights.products[link], state.left[link], weights.left_products[link]
    )


def _with_matrix(state: WideState, link: int, matrix: GaussianMatrix) -> WideState:
    def put(arrays: tuple[Any, ...], array: Any) -> tuple[Any, ...]:
        return (*arrays[:link], array, *arrays[link + 1 :])

    weights = state.weights._replace(
        products=put(state.weights.products, matrix.right_products),
        left_products=put(state.weights.left_products, matrix.left_products),
    )
    return state._replace(
        weights=weights,
        right=put(state.right, matrix.right),
        left=put(state.left, matrix.left),
    )


def _draws(
    setup: WideSetup,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
    layer: int,
) -> Float[Numeric, "samples neurons"]:
    """The next unused draws of a hidden layer (0 to L - 1).

    A layer uses one per direction of the matrix below it and one per direction of that above it.
    """
    used = jnp.asarray(first_free_draw(setup, layer), state.right_counts.dtype)
    if layer > 0:
        used = used + state.right_counts[layer - 1]
    if layer < setup.layers - 1:
        used = used + state.left_counts[layer]
    neurons = draws[layer].shape[1]
    return jax.lax.dynamic_slice(draws[layer], (used, 0), (setup.samples, neurons))


def first_free_draw(setup: WideSetup, layer: int) -> int:
    """Number of draws of a layer before those of the directions.

    The first draw is that of test inputs, then come those of the start: of h_1 and of w.
    """
    at_start = setup.samples if layer == 0 else 0
    return TEST_DRAWS + at_start + (1 if layer == setup.layers - 1 else 0)


# ---- passes


def _passes(
    setup: WideSetup,
    parameters: WideParameters,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
) -> tuple[WideState, Passes]:
    """Both passes on the training inputs, and the state with their new directions."""
    activation, slope = setup.activation.derivative(0), setup.activation.derivative(1)
    fields = [state.weights.fields[: setup.samples]]
    features = [activation(fields[0])]
    for link in range(setup.layers - 1):
        new_draws = _draws(setup, state, draws, link + 1)
        matrix, count = _extend(
            _matrix(state, link),
            features[link],
            state.right_counts[link],
            new_draws,
            parameters.tolerance,
        )
        state = _with_matrix(state, link, matrix)
        state = state._replace(right_counts=jnp.asarray(state.right_counts).at[link].add(count))
        fields.append(_multiply(matrix, features[link]))
        features.append(activation(fields[-1]))
    head = state.weights.head
    outputs = features[-1] @ head / (parameters.gamma0 * head.size)
    gradients = [slope(fields[-1]) * head]
    for link in reversed(range(setup.layers - 1)):
        new_draws = _draws(setup, state, draws, link)
        matrix, count = _extend(
            _matrix(state, link).transpose,
            gradients[0],
            state.left_counts[link],
            new_draws,
            parameters.tolerance,
        )
        state = _with_matrix(state, link, matrix.transpose)
        state = state._replace(left_counts=jnp.asarray(state.left_counts).at[link].add(count))
        gradients.insert(0, slope(fields[link]) * _multiply(matrix, gradients[0]))
    return state, Passes(tuple(features), tuple(gradients), outputs)


def _test_features(
    setup: WideSetup,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
) -> list[Float[Numeric, "tests neurons"]]:
    """Features s(h_l) of the test inputs.

    Each input is a query of its own, which is not kept: all share one draw per layer, because only
    their laws given the training are needed.
    """
    activation = setup.activation.derivative(0)
    features = [activation(state.weights.fields[setup.samples :])]
    for link in range(setup.layers - 1):
        matrix = _matrix(state, link)
        residuals = orthogonal_part(matrix.right, features[-1], 2)
        directions = _unit_length(residuals)
        draw = _unit_length(orthogonal_part(matrix.left, draws[link + 1][:1], 2))
        products = new_products(matrix, directions, jnp.broadcast_to(draw, directions.shape))
        lengths = jnp.sqrt(jnp.sum(residuals**2, axis=1, keepdims=True))
        fields = _multiply(matrix, features[-1]) + lengths * products
        features.append(activation(fields))
    return features


# ---- start, steps and observables


def initial_state(
    setup: WideSetup,
    capacity: int,
    parameters: WideParameters,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
    fields: Float[Numeric, "points neurons"],
) -> WideState:
    """The neurons at the start, with memory for `capacity` directions, and h_1 = `fields`."""
    neurons, links = fields.shape[1], setup.layers - 1
    empty = tuple(jnp.zeros((capacity, neurons)) for _ in range(links))
    head = draws[-1][first_free_draw(setup, setup.layers - 1) - 1]
    weights = Weights(fields, head, empty, empty)
    state = WideState(
        weights,
        jax.tree.map(jnp.zeros_like, weights) if setup.velocity else None,
        empty,
        empty,
        jnp.zeros(links, int),
        jnp.zeros(links, int),
        jnp.zeros(setup.samples + setup.test_samples),
    )
    observed = observe(setup, parameters, state, draws)
    outputs = jnp.concatenate([observed["outputs"], observed["test_outputs"]])
    return state._replace(start_outputs=outputs)


def advance_step(
    setup: WideSetup,
    parameters: WideParameters,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
    number: IntScalar,
) -> WideState:
    """Step `number`: both passes, and the move of all weights."""
    state, passes = _passes(setup, parameters, state, draws)
    samples = setup.samples
    residuals = parameters.labels - (passes.outputs - state.start_outputs[:samples])
    if setup.selects:
        uniform = jax.random.uniform(step_key(parameters.key, number), (samples,))
        residuals = jnp.where(uniform < parameters.fraction, residuals, 0.0) / parameters.divisor
    # The loss is the mean over the samples.
    signals = parameters.gamma0 * residuals / samples
    gradients = _gradients(setup, parameters, state, passes, signals)
    beta = jnp.asarray(parameters.beta)
    beta = beta if beta.ndim == 0 else beta[number]
    velocity, moves = velocity_and_move(setup.velocity, state.velocity, gradients, beta)
    lr = learning_rate(parameters, number)
    weights = jax.tree.map(lambda old, move: old + lr * move, state.weights, moves)
    return state._replace(weights=weights, velocity=velocity)


def learning_rate(parameters: WideParameters, number: IntScalar) -> Scalar:
    """The rate of a step, of a table of t before each step if that is a schedule."""
    times = jnp.asarray(parameters.times)
    return times if times.ndim == 0 else times[number + 1] - times[number]


def _gradients(
    setup: WideSetup,
    parameters: WideParameters,
    state: WideState,
    passes: Passes,
    signals: Float[Numeric, " samples"],
) -> Weights:
    """The moves of all weights at rate 1; `signals` are gamma0 e_mu/P."""
    neurons = state.weights.head.size
    features, gradients = passes.features, passes.gradients
    products, left_products = [], []
    for link in range(setup.layers - 1):
        weighted = signals[:, None] / neurons
        coefficients = jnp.einsum("kn,mn->km", state.right[link], weighted * features[link])
        products.append(coefficients @ gradients[link + 1])
        coefficients = jnp.einsum("kn,mn->km", state.left[link], weighted * gradients[link + 1])
        left_products.append(coefficients @ features[link])
    return Weights(
        (parameters.kernel * signals) @ gradients[0],
        signals @ features[-1],
        tuple(products),
        tuple(left_products),
    )


def observe(
    setup: WideSetup,
    parameters: WideParameters,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
) -> dict[str, Numeric]:
    """Outputs and kernels of the present weights. New directions are not kept."""
    state, passes = _passes(setup, parameters, state, draws)
    neurons, samples = state.weights.head.size, setup.samples
    features, gradients = jnp.stack(passes.features), jnp.stack(passes.gradients)
    feature_kernel = jnp.einsum("lmn,lkn->lmk", features, features) / neurons
    gradient_kernel = jnp.einsum("lmn,lkn->lmk", gradients, gradients) / neurons
    outputs = passes.outputs - state.start_outputs[:samples]
    # K^0 G^1 + K^1 G^2 + ... + K^L, where K^0 are the inner products of the inputs
    inputs = jnp.asarray(parameters.kernel)[:samples]
    tangent = inputs * gradient_kernel[0] + feature_kernel[-1]
    tangent = tangent + jnp.sum(feature_kernel[:-1] * gradient_kernel[1:], axis=0)
    values: dict[str, Numeric] = {
        "outputs": outputs,
        "train_risk": 0.5 * jnp.mean((parameters.labels - outputs) ** 2),
        "feature_kernel": feature_kernel,
        "gradient_kernel": gradient_kernel,
        "tangent_kernel": tangent,
        "test_outputs": jnp.zeros(0),
    }
    if setup.test_samples:
        test_features = _test_features(setup, state, draws)
        raw = test_features[-1] @ state.weights.head / (parameters.gamma0 * neurons)
        values["test_outputs"] = raw - state.start_outputs[samples:]
        values["test_kernel"] = (
            jnp.einsum("lmn,lkn->lmk", jnp.stack(test_features), features) / neurons
        )
    return values


def largest_count(state: WideState) -> Int[Numeric, ""]:
    """The largest number of directions of any matrix."""
    counts = jnp.concatenate([state.right_counts, state.left_counts, jnp.zeros(1, int)])
    return jnp.max(counts)


start_sweep = partial(jax.jit, static_argnums=(0, 1))(initial_state)
observe_sweep = partial(jax.jit, static_argnums=0)(observe)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance_sweep(
    setup: WideSetup,
    parameters: WideParameters,
    state: WideState,
    draws: tuple[Float[Numeric, "draws neurons"], ...],
    first: IntScalar,
    end: IntScalar,
) -> tuple[WideState, IntScalar, IntScalar]:
    """Steps from `first` to `end`, or until the memory for directions is full.

    Returns the state, the number of the next step, and the largest number of directions.
    """
    capacity = state.right[0].shape[0] if state.right else 0

    def has_room(carry: tuple[WideState, IntScalar]) -> Bool[Numeric, ""]:
        state, number = carry
        is_full = largest_count(state) + setup.samples > capacity if state.right else False
        return jnp.logical_and(number < end, jnp.logical_not(is_full))

    def advance(carry: tuple[WideState, IntScalar]) -> tuple[WideState, IntScalar]:
        state, number = carry
        return advance_step(setup, parameters, state, draws, number), number + 1

    state, number = jax.lax.while_loop(has_room, advance, (state, jnp.asarray(first)))
    return state, number, largest_count(state)
