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
sizes in units of d and without the fluctuations it is the proportional limit: deterministic, without
sampling or iteration. Fresh batches of B samples see X anew: Z^T r given Z a is

    Z^T r = a <Z a, r>/|a|^2 + |r| z,      z ~ N(0, I) orthogonal to a.

A batch of a fixed data set selects samples, which act on the coordinates of the residuals: their
exact law keeps the sample space in its n coordinates. In the limit the selection s of fraction b
gives s r = b r + sqrt(b (1 - b)) |r| e_new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, RandomKeys, Scalar
from sgdynamics.base.controls import values_at
from sgdynamics.base.random import draw_chi, step_key
from sgdynamics.fixed_data.matrix_conditioning import (
    GaussianMatrix,
    frame_draw,
    limit_draw,
    product,
    transposed_product,
)

TOLERANCE = 1e-10  # relative length of a residual that is rounding and no new direction
LARGEST = 1e100  # a run has diverged if a coefficient exceeds this
FIRST_STEP = (1 << 31) - 1  # step number of the draws before the first step; no run reaches it
SMALLEST_CAPACITY = 16  # steps for which memory is allocated at least
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
        return FIRST_SLOTS + SLOTS_PER_STEP * (steps + 1)


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
    alpha_per_step: Scalar  # samples/d per step, the variable of schedules of one-pass SGD


class Weights(NamedTuple):
    """The layers, their velocities or their gradients: everything that a step moves."""

    shares: Float[Numeric, " hidden_layers"]  # coefficients c_l of W_l(0)
    learned: tuple[Float[Numeric, "rows columns"], ...]  # W_l - c_l W_l(0)
    head: Float[Numeric, " directions"]  # w


class DeepState(NamedTuple):
    """One run between two steps: the weights, and their backward pass."""

    data: GaussianMatrix | None  # Z/sqrt(n)
    layers: tuple[GaussianMatrix, ...]  # W_1(0), ..., W_{L-1}(0)
    # Directions in use of the spaces of samples, inputs and hidden layers
    in_use: tuple[Bool[Numeric, "directions blocks"], ...]
    weights: Weights
    velocity: Weights | None
    labels: Float[Numeric, " directions"]  # y/sqrt(n)
    residual: Float[Numeric, " directions"]  # (y - f)/sqrt(n)
    backward: tuple[Float[Numeric, " directions"], ...]  # g_0, ..., g_{L-1}


class StepKeys:
    """Keys of the draws of one step, one after the other."""

    def __init__(self, key: RandomKey) -> None:
        self.key, self.count = key, 0

    def __call__(self) -> RandomKey:
        self.count += 1
        return jax.random.fold_in(self.key, self.count)


# ---- draws of new components


def _draw(
    setup: DeepSetup,
    key: RandomKey,
    variance: Scalar,
    sizes: Float[Numeric, " blocks"],
    in_use: Bool[Numeric, "directions blocks"],
    slot: IntScalar | None,
) -> tuple[Float[Numeric, " directions"], Bool[Numeric, "directions blocks"]]:
    """The variable z of `matrix_conditioning` with this variance, and the extended frame.

    Without a `slot` the directions in use are all coordinates of the space.
    """
    directions = in_use.shape[0]
    if not setup.is_exact:
        draw = limit_draw(jnp.sqrt(variance * sizes), directions, slot)
        return draw.reshape(-1), in_use
    if slot is None:
        normals = jax.random.normal(key, (directions,), jnp.float64)
        return jnp.sqrt(variance) * normals, in_use
    draw, in_use = frame_draw(key, sizes, in_use, slot)
    return jnp.sqrt(variance) * draw.reshape(-1), in_use


def _space_sizes(parameters: DeepParameters, space: int) -> Float[Numeric, " blocks"]:
    """Sizes of the space of samples (0), inputs (1) or a hidden layer (2, 3, ...)."""
    sizes = parameters.sizes
    if space == 1:
        return jnp.asarray(sizes.inputs, jnp.float64)
    return jnp.asarray(sizes.samples if space == 0 else sizes.hidden, jnp.float64)[None]


def _variance(parameters: DeepParameters, layer: int) -> Scalar:
    """Variance of the entries of Z/sqrt(n) (0) and of W_l(0): s^2/columns."""
    sizes = parameters.sizes
    if layer == 0:
        return 1 / sizes.samples
    columns = jnp.sum(sizes.inputs) if layer == 1 else sizes.hidden
    return parameters.problem["start_scale"] ** 2 / columns


def _multiply(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    layer: int,
    vector: Float[Numeric, " columns"],
    index: IntScalar,
    slot: IntScalar,
    key: RandomKey,
    *,
    transpose: bool = False,
) -> tuple[DeepState, Float[Numeric, " rows"]]:
    """The product of Z/sqrt(n) (layer 0) or of W_l(0), or of its transpose, with a vector."""
    # Matrix l maps the space l to the space l + 1; the data map the inputs to the samples.
    rows, columns = (0, 1) if layer == 0 else (layer + 1, layer)
    space = columns if transpose else rows
    no_frame = space == 0 and setup.has_coordinates
    draw, in_use = _draw(
        setup,
        key,
        _variance(parameters, layer),
        _space_sizes(parameters, space),
        state.in_use[space],
        None if no_frame else slot,
    )
    matrix = state.data if layer == 0 else state.layers[layer - 1]
    assert matrix is not None
    multiply = transposed_product if transpose else product
    matrix, result = multiply(matrix, vector, index, draw, TOLERANCE)
    spaces = (*state.in_use[:space], in_use, *state.in_use[space + 1 :])
    if layer == 0:
        return state._replace(data=matrix, in_use=spaces), result
    layers = (*state.layers[: layer - 1], matrix, *state.layers[layer:])
    return state._replace(layers=layers, in_use=spaces), result


# ---- start


def initial_state(
    setup: DeepSetup, steps: int, parameters: DeepParameters, key: RandomKey
) -> DeepState:
    """A run at step 0, with memory for this many steps."""
    keys = StepKeys(jax.random.fold_in(key, FIRST_STEP))
    directions, hidden_layers = setup.directions(steps), setup.depth - 1
    samples = setup.samples if setup.has_coordinates else directions
    widths = (samples, directions * setup.blocks, *[directions] * hidden_layers)
    queries = steps + 2
    layers = tuple(_no_products(widths[layer + 1], widths[layer], queries) for layer in range(1, setup.depth))
    in_use = [jnp.zeros((width, 1), bool) for width in widths]
    in_use[0] = jnp.full((samples, 1), setup.has_coordinates)
    # The first direction of each block is that of the teacher there.
    in_use[1] = jnp.zeros((directions, setup.blocks), bool).at[0].set(True)
    last = setup.depth
    # w has independent components of variance s^2/N: it is a product with a number.
    variance = parameters.problem["start_scale"] ** 2 / parameters.sizes.hidden
    head, in_use[last] = _draw(
        setup, keys(), variance, _space_sizes(parameters, last), in_use[last], 0
    )
    learned = tuple(jnp.zeros((widths[layer + 1], widths[layer])) for layer in range(1, setup.depth))
    weights = Weights(jnp.ones(hidden_layers), learned, head)
    velocity = jax.tree.map(jnp.zeros_like, weights) if setup.velocity else None
    labels = jnp.zeros(samples)
    data = None if setup.is_fresh else _no_products(samples, widths[1], queries)
    backward = tuple(jnp.zeros(width) for width in widths[1:])
    state = DeepState(data, layers, tuple(in_use), weights, velocity, labels, labels, backward)
    if not setup.is_fresh:
        teacher = _with_covariance(setup, parameters, _teacher(setup, parameters, directions))
        state, clean = _multiply(setup, parameters, state, 0, teacher, 0, 0, keys())
        noise, in_sample_space = _draw(
            setup,
            keys(),
            parameters.problem["noise"] / parameters.sizes.samples,
            _space_sizes(parameters, 0),
            state.in_use[0],
            None if setup.has_coordinates else 1,
        )
        state = state._replace(
            labels=clean + noise, in_use=(in_sample_space, *state.in_use[1:])
        )
    return _backward(setup, parameters, state, 0, keys)


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
) -> Float[Numeric, " directions"]:
    """w* in the frame of the inputs: its norms in the blocks, along the first direction of each."""
    frame = jnp.zeros((directions, setup.blocks))
    return frame.at[0].set(parameters.problem["teacher"]).reshape(-1)


def _with_covariance(
    setup: DeepSetup, parameters: DeepParameters, vector: Float[Numeric, " directions"]
) -> Float[Numeric, " directions"]:
    """C^(1/2) times a vector of the input space."""
    roots = jnp.sqrt(jnp.asarray(parameters.problem["eigenvalues"]))
    return (roots * vector.reshape(-1, setup.blocks)).reshape(-1)


# ---- steps


def _backward(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState, number: IntScalar, keys: StepKeys
) -> DeepState:
    """The backward pass of the weights after `number` steps, and the residuals."""
    slot = FIRST_SLOTS + SLOTS_PER_STEP * number
    vector, backward = state.weights.head, [state.weights.head]
    for layer in range(setup.depth - 1, 0, -1):
        state, start_product = _multiply(
            setup, parameters, state, layer, vector, number, slot, keys(), transpose=True
        )
        learned = state.weights.learned[layer - 1]
        vector = state.weights.shares[layer - 1] * start_product + vector @ learned
        backward.append(vector)
    state = state._replace(backward=tuple(reversed(backward)))
    if setup.is_fresh:
        return state
    weights = _with_covariance(setup, parameters, vector / parameters.problem["gain"])
    state, predictions = _multiply(
        setup, parameters, state, 0, weights, number + 1, slot, keys()
    )
    return state._replace(residual=state.labels - predictions)


def _forward(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState, number: IntScalar, keys: StepKeys
) -> tuple[DeepState, list[Float[Numeric, " directions"]]]:
    """h_0, ..., h_{L-1} of step `number`."""
    slot = FIRST_SLOTS + SLOTS_PER_STEP * number + 1
    if setup.is_fresh:
        state, vector = _fresh_gradient(setup, parameters, state, slot, keys)
    else:
        selected = _selected_residual(setup, parameters, state, slot, keys())
        state, vector = _multiply(
            setup, parameters, state, 0, selected, number, slot, keys(), transpose=True
        )
    vector = _with_covariance(setup, parameters, vector)
    forward = [vector]
    for layer in range(1, setup.depth):
        state, start_product = _multiply(
            setup, parameters, state, layer, vector, number, slot, keys()
        )
        learned = state.weights.learned[layer - 1]
        vector = state.weights.shares[layer - 1] * start_product + learned @ vector
        forward.append(vector)
    return state, forward


def _selected_residual(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState, slot: IntScalar, key: RandomKey
) -> Float[Numeric, " directions"]:
    """s (y - f)/(sqrt(n) divisor) with the selection s of the samples of this step."""
    residual = state.residual
    if not setup.selects:
        return residual
    fraction, divisor = parameters.algorithm["fraction"], parameters.algorithm["divisor"]
    if setup.has_coordinates:
        uniform = jax.random.uniform(key, residual.shape, jnp.float64)
        return jnp.where(uniform < fraction, residual, 0.0) / divisor
    # The slot follows that of the predictions of this step in the frame of the samples.
    length = jnp.sqrt(fraction * (1 - fraction) * jnp.sum(residual**2))
    return (fraction * residual).at[slot].add(length) / divisor


def _fresh_gradient(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState, slot: IntScalar, keys: StepKeys
) -> tuple[DeepState, Float[Numeric, " directions"]]:
    """Z^T r/B of a fresh batch of B samples with the residuals r = Z a + noise."""
    error = _with_covariance(setup, parameters, _error(setup, parameters, state))
    length, noise = jnp.sqrt(jnp.sum(error**2)), jnp.sqrt(parameters.problem["noise"])
    size = jnp.asarray(parameters.sizes.samples, jnp.float64)
    # Z a/(|a| sqrt(B)) has the length `along`; the noise over sqrt(B) has a component along it.
    along, noise_along, noise_across = jnp.ones(()), jnp.zeros(()), jnp.ones(())
    if setup.is_exact:
        key = keys()
        normals = jax.random.normal(key, (3,), jnp.float64)
        uniform = 1.0 - jax.random.uniform(jax.random.fold_in(key, 1), (2,), jnp.float64)
        degrees = jnp.stack([size, size - 1])
        lengths = draw_chi(jax.random.fold_in(key, 2), degrees, normals[:2], uniform)
        along, noise_across = lengths / jnp.sqrt(size)
        noise_along = normals[2] / jnp.sqrt(size)
    residual = length * along + noise * noise_along  # along Z a
    square = residual**2 + (noise * noise_across) ** 2  # |r|^2/B
    draw, in_use = _draw(
        setup, keys(), 1 / size, _space_sizes(parameters, 1), state.in_use[1], slot
    )
    unit = error / jnp.where(length > 0, length, 1.0)
    draw = draw - unit * (unit @ draw)
    state = state._replace(in_use=(state.in_use[0], in_use, *state.in_use[2:]))
    return state, unit * (along * residual) + jnp.sqrt(square) * draw


def _error(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState
) -> Float[Numeric, " directions"]:
    """u = w* - v in the frame of the inputs."""
    directions = state.in_use[1].shape[0]
    teacher = _teacher(setup, parameters, directions)
    return teacher - state.backward[0] / parameters.problem["gain"]


def advance_step(
    setup: DeepSetup,
    parameters: DeepParameters,
    state: DeepState,
    key: RandomKey,
    number: IntScalar,
) -> DeepState:
    """Step `number` of one run: forward pass, move of all layers, and the next backward pass."""
    keys = StepKeys(step_key(key, number))
    state, forward = _forward(setup, parameters, state, number, keys)
    gain, decay = parameters.problem["gain"], parameters.problem["weight_decay"]
    weights = state.weights
    # Gradients of the loss with weight decay (al/2)|W|^2; the coefficients are orthonormal.
    gradient = Weights(
        decay * weights.shares,
        tuple(
            decay * learned - jnp.outer(state.backward[layer + 1], forward[layer]) / gain
            for layer, learned in enumerate(weights.learned)
        ),
        decay * weights.head - forward[-1] / gain,
    )
    velocity = direction = gradient
    if setup.velocity:
        beta = parameters.algorithm["beta"]
        velocity = jax.tree.map(lambda old, new: beta * old + new, state.velocity, gradient)
        direction = velocity
        if setup.velocity == "nesterov":
            direction = jax.tree.map(lambda new, old: new + beta * old, gradient, velocity)
    step = parameters.algorithm["lr"] * parameters.unit * gain**2
    rates = step * parameters.problem["rates"]
    moved = Weights(
        weights.shares - rates[:-1] * direction.shares,
        tuple(
            learned - rate * move
            for learned, rate, move in zip(weights.learned, rates, direction.learned, strict=False)
        ),
        weights.head - rates[-1] * direction.head,
    )
    state = state._replace(weights=moved, velocity=velocity if setup.velocity else None)
    return _backward(setup, parameters, state, number + 1, keys)


def observe(
    setup: DeepSetup, parameters: DeepParameters, state: DeepState
) -> dict[str, Numeric]:
    """Overlap v.w*, |v|^2, excess risk u^T C u/2, training risk, and the change of each layer."""
    predictor = state.backward[0] / parameters.problem["gain"]
    teacher = _teacher(setup, parameters, state.in_use[1].shape[0])
    error = _with_covariance(setup, parameters, teacher - predictor)
    learned = [jnp.sqrt(jnp.sum(matrix**2)) for matrix in state.weights.learned]
    values = {
        "overlap": predictor @ teacher,
        "squared_norm": predictor @ predictor,
        "excess_risk": 0.5 * error @ error,
        "layer_change": jnp.stack(learned),
    }
    if not setup.is_fresh:
        values["train_risk"] = 0.5 * state.residual @ state.residual
    return values


# ---- many steps


def capacity_of(steps: int) -> int:
    """Number of steps for which memory is allocated: a power of two, because each is compiled."""
    return max(SMALLEST_CAPACITY, 1 << math.ceil(math.log2(max(steps, 1))))


def with_capacity(
    setup: DeepSetup, parameters: DeepParameters, states: DeepState, steps: int
) -> DeepState:
    """The same runs (leading axis) with memory for this many steps."""
    larger = jax.eval_shape(
        partial(initial_state, setup, steps), parameters, jax.random.key(0)
    )
    # The first directions come first on each axis, so that all arrays grow at their ends.
    return jax.tree.map(
        lambda leaf, target: jnp.pad(
            leaf,
            [(0, 0)]
            + [(0, size - old) for size, old in zip(target.shape, leaf.shape[1:], strict=True)],
        ),
        states,
        larger,
    )


@partial(jax.jit, static_argnums=(0, 1))
def initial_states(
    setup: DeepSetup, steps: int, parameters: DeepParameters, keys: RandomKeys
) -> DeepState:
    """Runs at step 0 (leading axis), with memory for this many steps."""
    return jax.vmap(partial(initial_state, setup, steps, parameters))(keys)


@partial(jax.jit, static_argnums=0)
def observe_states(
    setup: DeepSetup, parameters: DeepParameters, states: DeepState
) -> dict[str, Numeric]:
    """The observables of many runs (leading axis)."""
    return jax.vmap(partial(observe, setup, parameters))(states)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance_states(
    setup: DeepSetup,
    parameters: DeepParameters,
    states: DeepState,
    keys: RandomKeys,
    first: IntScalar,
    end: IntScalar,
) -> tuple[DeepState, Int[Numeric, " runs"]]:
    """All runs (leading axis) from step `first` to `end`, and their last finite steps."""

    def advance(
        number: IntScalar, carry: tuple[DeepState, Int[Numeric, " runs"]]
    ) -> tuple[DeepState, Int[Numeric, " runs"]]:
        states, last_good = carry
        values = at_step(parameters, number)
        states = jax.vmap(
            lambda state, key: advance_step(setup, values, state, key, number)
        )(states, keys)
        sizes = jnp.stack([jnp.max(jnp.abs(vector), axis=1) for vector in states.backward])
        is_finite = jnp.all(sizes < LARGEST, axis=0)
        return states, jnp.where(is_finite, number + 1, last_good)

    last_good = jnp.full(keys.shape[0], first)
    return jax.lax.fori_loop(first, end, advance, (states, last_good))


def at_step(parameters: DeepParameters, number: IntScalar) -> DeepParameters:
    """The values of scheduled hyperparameters at one step."""
    algorithm = parameters.algorithm
    if "times" in algorithm:  # a table of t before each step, of a schedule on a fixed data set
        times = algorithm["times"]
        return parameters._replace(algorithm={**algorithm, "lr": times[number + 1] - times[number]})
    alpha = number * parameters.alpha_per_step
    return parameters._replace(algorithm=values_at(algorithm, alpha))
