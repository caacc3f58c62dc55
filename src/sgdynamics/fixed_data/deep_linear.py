"""Deep linear networks by Gaussian conditioning: exact in law at any size, or the limit itself.

The network f(x) = w^T W_{L-1} ... W_1 x/g computes v.x with g v = W_1^T ... W_{L-1}^T w. With the
labels y, the predictions f of the samples, X the inputs and n their number, a step needs

    backward:  g_{L-1} = w,   g_{l-1} = W_l^T g_l,   v = g_0/g,   f = X v
    forward:   h_0 = X^T (y - f)/n,   h_l = W_l h_{l-1}
    move:      W_l <- W_l + lr g r_l g_l h_{l-1}^T,   w <- w + lr g r_L h_{L-1}

where r_l are the relative rates of the layers and g_l, h_l are of the weights before the step. The
start W_l(0) and X are therefore used through one product from either side per step
(`fixed_data.matrix_conditioning`). Vectors are coefficients in growing frames of the spaces of the
samples, the inputs and the hidden layers; W_l is c_l W_l(0) plus a small matrix. The inputs are
X = Z C^(1/2) with the isotropic Z, and an input direction has one component per covariance block.

With the sizes of the spaces, this is the exact law of the network, at a cost free of them. With the
sizes in units of d and without the fluctuations it is the proportional limit: deterministic, and
without sampling or iteration. Fresh batches of B samples see X anew: Z^T r given Z a is

    Z^T r = a <Z a, r>/|a|^2 + |r| z,      z ~ N(0, I) orthogonal to a.

A batch of a fixed data set selects samples, which act on the coordinates of the residuals: their
exact law keeps the sample space in its n coordinates. In the limit the selection s of fraction b
gives s r = b r + sqrt(b (1 - b)) |r| e_new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, Scalar
from sgdynamics.base.random import draw_chi, normals_and_uniforms, step_key
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
    velocity_and_move,
)
from sgdynamics.samples import input_covariance

RISE = 1e-9  # relative increase of the training risk that is no rounding
# Slots of the frames: the first directions, and then those of each step
SLOTS_PER_STEP = 2
FIRST_SLOTS = 2  # the teacher (inputs), w (last layer), labels and noise (samples)


@dataclass(frozen=True)
class DeepSetup:
    """The static description of a run, on which compiled code depends.

    Attributes
    ----------
    depth : int
        Number L of layers.
    blocks : int
        Number of covariance blocks.
    is_exact : bool
        Whether lengths and components fluctuate as at finite size; otherwise the limit.
    is_fresh : bool
        Whether each step has a batch of its own; otherwise a fixed data set.
    selects : bool
        Whether a step uses a random part of a fixed data set.
    samples : int
        Number of samples of an exact run with selections, whose sample space has coordinates.
    velocity : str
        "" for plain steps, "momentum" or "nesterov".
    """

    depth: int
    blocks: int
    is_exact: bool
    is_fresh: bool
    selects: bool = False
    samples: int = 0
    velocity: str = ""

    @property
    def has_coordinates(self) -> bool:
        """Whether the sample space has its n coordinates instead of a frame."""
        return self.samples > 0

    def directions(self, steps: int) -> int:
        """Size of a frame for this many steps."""
        return FIRST_SLOTS + SLOTS_PER_STEP * (steps + 2)

    def count_numbers(self, steps: int) -> float:
        """Size of the state of one run with memory for this many steps."""
        directions, later = self.directions(steps), self.depth - 2
        samples = self.samples or directions
        inputs = directions * self.blocks
        products = 2.0 * (steps + 2) * (directions + inputs + 2 * later * directions)
        if not self.is_fresh:
            products += 2.0 * (steps + 2) * (samples + inputs)
        learned = directions * (inputs + later * directions)
        return products + (2 if self.velocity else 1) * learned


class DeepSizes(NamedTuple):
    """Sizes of the spaces: in coordinates for the exact law, in units of d in the limit."""

    samples: Scalar  # of the data set, or of a batch
    inputs: Float[Numeric, " blocks"]
    hidden: Scalar


class DeepParameters(NamedTuple):
    """Values that JAX traces."""

    sizes: DeepSizes
    problem: Parameters  # gain g, rates r_l, start_scale, noise, weight_decay, eigenvalues, teacher
    algorithm: Parameters  # lr, fraction, divisor, beta
    unit: Scalar  # learning rate of a step over that of the algorithm
    schedule_step: Scalar  # increase per step of the variable of schedules: samples/d, or t


class Weights(NamedTuple):
    """The layers, their velocities or their gradients: everything that a step moves."""

    shares: Float[Numeric, " hidden_layers"]  # coefficients c_l of W_l(0)
    first: Float[Numeric, "rows columns"]  # W_1 - c_1 W_1(0)
    later: Float[Numeric, "later rows rows"]  # W_l - c_l W_l(0) for l = 2, ..., L - 1
    head: Float[Numeric, " rows"]  # w


class DeepState(NamedTuple):
    """One run between two steps: the weights, and their backward pass."""

    data: GaussianMatrix | None  # Z/sqrt(n)
    first: GaussianMatrix  # W_1(0)
    later: GaussianMatrix  # W_2(0), ..., W_{L-1}(0), with a leading axis
    in_use: Bool[Numeric, "directions columns"]  # frames, as in `DeepSetup.columns`
    weights: Weights
    velocity: Weights | None
    labels: Float[Numeric, " samples"]  # y/sqrt(n)
    residual: Float[Numeric, " samples"]  # (y - f)/sqrt(n)
    input_backward: Float[Numeric, " inputs"]  # g_0
    backward: Float[Numeric, "hidden_layers rows"]  # g_1, ..., g_{L-1}
    rose_at: IntScalar  # first step after which the training risk was larger, or -1


class Draws(NamedTuple):
    """Standard variables z of `matrix_conditioning`, one in each space, with one new direction."""

    samples: Float[Numeric, " samples"]
    inputs: Float[Numeric, " inputs"]
    hidden: Float[Numeric, "hidden_layers rows"]


# ---- draws of new components


def _draw(
    setup: DeepSetup,
    parameters: DeepParameters,
    in_use: Bool[Numeric, "directions columns"],
    slot: IntScalar,
    key: RandomKey,
) -> tuple[Draws, Bool[Numeric, "directions columns"]]:
    """The variables z of all spaces, and the frames extended by a direction at `slot`.

    The frame of a space that gets no product is extended too: its new direction is one of those of
    which nothing is known.
    """
    sizes = parameters.sizes
    hidden = jnp.full(setup.depth - 1, sizes.hidden, jnp.float64)
    counts = jnp.concatenate([jnp.stack([sizes.samples]), jnp.asarray(sizes.inputs), hidden])
    if setup.is_exact:
        draw, in_use = frame_draw(key, counts, in_use, slot)
    else:
        draw = limit_draw(jnp.sqrt(counts), in_use.shape[0], slot)
    samples = draw[:, 0]
    if setup.has_coordinates:
        sample_key = jax.random.fold_in(key, 2)
        samples = normals_and_uniforms(sample_key, setup.samples, 0)[0]
    inputs, hidden = jnp.split(draw[:, 1:], [setup.blocks], axis=1)
    return Draws(samples, inputs.reshape(-1), hidden.T), in_use


def _scale(parameters: DeepParameters, layer: int) -> Scalar:
    """Standard deviation of the entries of Z/sqrt(n) (0), of W_1(0) (1) and of later layers (2)."""
    sizes, start_scale = parameters.sizes, parameters.problem["start_scale"]
    if layer == 0:
        return 1 / jnp.sqrt(sizes.samples)
    return start_scale / jnp.sqrt(jnp.sum(sizes.inputs) if layer == 1 else sizes.hidden)


# ---- start


def initial_state(
    setup: DeepSetup, steps: int, parameters: DeepParameters, key: RandomKey
) -> DeepState:
    """A run before its first backward pass, with memory for this many steps.

    The step with the number -1 makes this pass, and no move.
    """
    directions, hidden_layers = setup.directions(steps), setup.depth - 1
    samples = setup.samples if setup.has_coordinates else directions
    inputs, queries = directions * setup.blocks, steps + 2
    in_use = jnp.zeros((directions, 1 + setup.blocks + hidden_layers), bool)
    first_key, second_key = jax.random.split(jax.random.fold_in(key, FIRST_STEP))
    # The first direction of each block of inputs is that of the teacher there.
    draws, in_use = _draw(setup, parameters, in_use, 0, first_key)
    noise_draws, in_use = _draw(setup, parameters, in_use, 1, second_key)
    weights = Weights(
        jnp.ones(hidden_layers),
        jnp.zeros((directions, inputs)),
        jnp.zeros((hidden_layers - 1, directions, directions)),
        _scale(parameters, 2) * draws.hidden[-1],
    )
    later = _no_products(directions, directions, queries)
    state = DeepState(
        data=None,
        first=_no_products(directions, inputs, queries),
        later=jax.tree.map(lambda leaf: jnp.stack([leaf] * (hidden_layers - 1)), later)
        if hidden_layers > 1
        else jax.tree.map(lambda leaf: leaf[None][:0], later),
        in_use=in_use,
        weights=weights,
        velocity=jax.tree.map(jnp.zeros_like, weights) if setup.velocity else None,
        labels=jnp.zeros(samples),
        residual=jnp.zeros(samples),
        input_backward=jnp.zeros(inputs),
        backward=jnp.zeros((hidden_layers, directions)),
        rose_at=jnp.full((), -1, jnp.int64),
    )
    if setup.is_fresh:
        return state
    teacher = _with_covariance(setup, parameters, _teacher(setup, parameters, directions))
    data = _no_products(samples, inputs, queries)
    draw = _scale(parameters, 0) * draws.samples
    data, clean = product(data, teacher, 0, draw, TOLERANCE)
    deviation = jnp.sqrt(parameters.problem["noise"]) * _scale(parameters, 0)
    return state._replace(data=data, labels=clean + deviation * noise_draws.samples)


def _no_products(rows: int, columns: int, queries: int) -> GaussianMatrix:
    """A Gaussian matrix of which no product is known."""
    return GaussianMatrix(
        jnp.zeros((queries, columns)),
        jnp.zeros((queries, rows)),
        jnp.zeros((queries, rows)),
        jnp.zeros((queries, columns)),
    )


def _teacher(
    setup: DeepSetup, parameters: DeepParameters, directions: int
) -> Float[Numeric, " inputs"]:
    """w* in the frame of the inputs: its norms in the blocks, along the first direction of each."""
    frame = jnp.zeros((directions, setup.blocks))
    return frame.at[0].set(parameters.problem["teacher"]).reshape(-1)


def _with_covariance(
    setup: DeepSetup, parameters: DeepParameters, vector: Float[Numeric, " inputs"]
) -> Float[Numeric, " inputs"]:
    """C^(1/2) times a vector of the input space."""
    roots = input_covariance.scale(parameters.problem)
    return (roots * vector.reshape(-1, setup.blocks)).reshape(-1)


# ---- steps


def _backward(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    visit: IntScalar,
    key: RandomKey,
) -> DeepState:
    """The backward pass of the present weights, and the residuals."""
    slot = FIRST_SLOTS + SLOTS_PER_STEP * visit + 1
    draws, in_use = _draw(setup, parameters, state.in_use, slot, key)
    weights, later = state.weights, state.later

    def multiply(
        vector: Float[Numeric, " rows"], layer: tuple[GaussianMatrix, Any, Any, Any]
    ) -> tuple[Any, Any]:
        matrix, share, learned, draw = layer
        matrix, start_product = transposed_product(matrix, vector, visit, draw, TOLERANCE)
        result = share * start_product + vector @ learned
        return result, (matrix, result)

    vector, backward = weights.head, weights.head[None]
    if setup.depth > 2:
        scaled = _scale(parameters, 2) * draws.hidden[:-1]
        layers = (later, weights.shares[1:], weights.later, scaled)
        vector, (later, passed) = jax.lax.scan(multiply, vector, layers, reverse=True)
        backward = jnp.concatenate([passed, backward])
    scaled = _scale(parameters, 1) * draws.inputs
    first_layer = (state.first, weights.shares[0], weights.first, scaled)
    vector, (first, _) = multiply(vector, first_layer)
    state = state._replace(
        first=first, later=later, in_use=in_use, input_backward=vector, backward=backward
    )
    if setup.is_fresh:
        return state
    predictor = _with_covariance(setup, parameters, vector / parameters.problem["gain"])
    assert state.data is not None
    draw = _scale(parameters, 0) * draws.samples
    data, predictions = product(state.data, predictor, visit + 1, draw, TOLERANCE)
    return state._replace(data=data, residual=state.labels - predictions)


def _forward(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    visit: IntScalar,
    key: RandomKey,
) -> tuple[DeepState, Float[Numeric, " inputs"], Float[Numeric, "hidden_layers rows"]]:
    """h_0, and h_1, ..., h_{L-1} of a step; zero before the first step (visit 0)."""
    slot = FIRST_SLOTS + SLOTS_PER_STEP * visit
    draw_key, batch_key = jax.random.split(key)
    draws, in_use = _draw(setup, parameters, state.in_use, slot, draw_key)
    data_draw = _scale(parameters, 0) * draws.inputs
    data, weights, later = state.data, state.weights, state.later
    if setup.is_fresh:
        gradient = _fresh_gradient(setup, parameters, state, data_draw, batch_key)
        gradient = jnp.where(visit > 0, gradient, 0.0)
    else:
        assert data is not None
        selected = state.residual
        if setup.selects:
            selected = selected_residual(
                selected,
                parameters.algorithm,
                slot,
                batch_key,
                has_coordinates=setup.has_coordinates,
            )
        data, gradient = transposed_product(data, selected, visit, data_draw, TOLERANCE)
    gradient = _with_covariance(setup, parameters, gradient)

    def multiply(
        vector: Float[Numeric, " columns"], layer: tuple[GaussianMatrix, Any, Any, Any]
    ) -> tuple[Any, Any]:
        matrix, share, learned, draw = layer
        matrix, start_product = product(matrix, vector, visit, draw, TOLERANCE)
        result = share * start_product + learned @ vector
        return result, (matrix, result)

    scaled = _scale(parameters, 1) * draws.hidden[0]
    first_layer = (state.first, weights.shares[0], weights.first, scaled)
    vector, (first, _) = multiply(gradient, first_layer)
    forward = vector[None]
    if setup.depth > 2:
        scaled = _scale(parameters, 2) * draws.hidden[1:]
        layers = (later, weights.shares[1:], weights.later, scaled)
        _, (later, passed) = jax.lax.scan(multiply, vector, layers)
        forward = jnp.concatenate([forward, passed])
    state = state._replace(data=data, first=first, later=later, in_use=in_use)
    return state, gradient, forward


def _fresh_gradient(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    draw: Float[Numeric, " inputs"],
    key: RandomKey,
) -> Float[Numeric, " inputs"]:
    """Z^T r/B of a fresh batch of B samples with the residuals r = Z a + noise.

    `draw` is z/sqrt(B).
    """
    error = _with_covariance(setup, parameters, _error(setup, parameters, state))
    length, deviation = jnp.sqrt(jnp.sum(error**2)), jnp.sqrt(parameters.problem["noise"])
    # Z a/(|a| sqrt(B)) has the length `parallel_length`. One component of the noise is along it.
    parallel_length, noise_along, noise_across = jnp.ones(()), jnp.zeros(()), jnp.ones(())
    if setup.is_exact:
        size = jnp.asarray(parameters.sizes.samples, jnp.float64)
        normals, uniforms = normals_and_uniforms(key, 3, 2)
        degrees = jnp.stack([size, size - 1])
        lengths = draw_chi(jax.random.fold_in(key, 1), degrees, normals[:2], uniforms)
        parallel_length, noise_across = lengths / jnp.sqrt(size)
        noise_along = normals[2] / jnp.sqrt(size)
    residual_along = length * parallel_length + deviation * noise_along
    square = residual_along**2 + (deviation * noise_across) ** 2  # |r|^2/B
    unit = error / jnp.where(length > 0, length, 1.0)
    draw = draw - unit * (unit @ draw)
    return unit * (parallel_length * residual_along) + jnp.sqrt(square) * draw


def _error(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState
) -> Float[Numeric, " inputs"]:
    """u = w* - v in the frame of the inputs."""
    teacher = _teacher(setup, parameters, state.in_use.shape[0])
    return teacher - state.input_backward / parameters.problem["gain"]


def advance_step(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    key: RandomKey,
    number: IntScalar,
) -> DeepState:
    """Step `number` of one run: forward pass, move of all layers, and the next backward pass."""
    parameters = at_step(parameters, number)
    forward_key, backward_key = jax.random.split(step_key(key, number))
    visit = number + 1  # of the matrices: the backward pass before the first step is visit 0
    state, gradient, forward = _forward(setup, parameters, state, visit, forward_key)
    gain, decay = parameters.problem["gain"], parameters.problem["weight_decay"]
    weights, backward = state.weights, state.backward
    # Gradients of the loss with weight decay (al/2)|W|^2; the coefficients are orthonormal.
    gradients = Weights(
        decay * weights.shares,
        decay * weights.first - jnp.outer(backward[0], jnp.asarray(gradient)) / gain,
        decay * weights.later - backward[1:, :, None] * forward[:-1, None, :] / gain,
        decay * weights.head - forward[-1] / gain,
    )
    gradients = jax.tree.map(lambda leaf: jnp.where(visit > 0, leaf, 0.0), gradients)
    beta = parameters.algorithm.get("beta", 0.0)
    velocity, moves = velocity_and_move(setup.velocity, state.velocity, gradients, beta)
    rates = parameters.algorithm["lr"] * parameters.unit * gain**2 * parameters.problem["rates"]
    moved = Weights(
        weights.shares - rates[:-1] * moves.shares,
        weights.first - rates[0] * moves.first,
        weights.later - rates[1:-1, None, None] * moves.later,
        weights.head - rates[-1] * moves.head,
    )
    before = jnp.sum(state.residual**2)
    state = state._replace(weights=moved, velocity=velocity)
    state = _backward(setup, parameters, state, visit, backward_key)
    rises = (visit > 0) & (jnp.sum(state.residual**2) > (1 + RISE) * before)
    is_first = rises & (state.rose_at < 0)
    return state._replace(rose_at=jnp.where(is_first, visit, state.rose_at))


def observe(setup: DeepSetup, parameters: DeepParameters, state: DeepState) -> dict[str, Numeric]:
    """Overlap v.w*, |v|^2, excess risk u^T C u/2, training risk, and the change of each layer."""
    predictor = state.input_backward / parameters.problem["gain"]
    teacher = _teacher(setup, parameters, state.in_use.shape[0])
    error = _with_covariance(setup, parameters, teacher - predictor)
    first = jnp.sum(state.weights.first**2)[None]
    later = jnp.sum(state.weights.later**2, axis=(1, 2))
    values = {
        "overlap": predictor @ teacher,
        "squared_norm": predictor @ predictor,
        "excess_risk": 0.5 * error @ error,
        "layer_change": jnp.sqrt(jnp.concatenate([first, later])),
    }
    if not setup.is_fresh:
        values["train_risk"] = 0.5 * state.residual @ state.residual
        values["rose_at"] = state.rose_at
    return values


def largest_coefficient(state: DeepState) -> Scalar:
    """The largest coefficient of the predictor."""
    return jnp.max(jnp.abs(jnp.asarray(state.input_backward)))


EQUATIONS: RunEquations[DeepSetup, DeepParameters, DeepState] = RunEquations(
    initial_state, advance_step, observe, largest_coefficient
)
