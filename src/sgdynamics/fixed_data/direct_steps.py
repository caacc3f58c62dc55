"""Compiled steps of runs on a fixed data set in d dimensions, and the data sets themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.fixed_data import (
    first_selection,
    next_selection,
    step_parameters,
    thermal_noise_scale,
)
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    draw_order,
    select_coordinates,
)
from sgdynamics.algorithms.updates.law import Law
from sgdynamics.base.arrays import (
    BoolScalar,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    Scalar,
)
from sgdynamics.base.controls import values_at
from sgdynamics.base.precision import float64
from sgdynamics.base.random import normals_and_uniforms, step_key
from sgdynamics.fixed_data.message_passing import MessagePassing, Messages
from sgdynamics.fixed_data.sample_space import SampleData, SampleMemory, SampleStep
from sgdynamics.fixed_data.update_memory import (
    FULL_BATCH,
    UpdateMemory,
    join,
    move,
    split,
)
from sgdynamics.problems.moves import LossOverlaps, loss_overlaps
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.samples.inputs import Embedding, inputs_in_space
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.direct import direct_overlaps
from sgdynamics.simulation.gpu import data_gradients
from sgdynamics.simulation.running import CHECK_STEPS, LARGEST, Observe
from sgdynamics.simulation.sample_moves import sample_moves

HIGHEST = jax.lax.Precision.HIGHEST  # otherwise a GPU multiplies float32 with 10 bits of mantissa
# Normals per chunk while a data set is drawn. A different value gives different data.
NORMALS_PER_CHUNK = 1 << 20
# Steps of the kernel between two decisions of the host, which take as long as a step on a small
# data set.
STEPS_PER_DECISION = CHECK_STEPS // 4
LARGEST_SINGLE = 1e15  # coefficients beyond this value have diverged in single precision
SPHERE_DIAMETER_SQUARED = 4


class Data(NamedTuple):
    """A data set of n samples."""

    inputs: Float[Numeric, "*runs inputs d"]  # n samples of `tokens` inputs each
    signals: Float[Numeric, "*runs inputs K"]
    draws: PyTree  # label noise (n,) or other draws of the loss


class Weights(NamedTuple):
    """The state of a run."""

    rows: Float[Numeric, "... p d"]
    head: Float[Numeric, "... p"]
    # Which samples the next step uses, None for all; the orders of two epochs with reshuffling
    selected: Bool[Numeric, "... n"] | Int[Numeric, "... 2 n"] | None
    first_risk: Float[Numeric, "..."]  # training risk at step 0
    messages: PyTree = ()  # of message passing
    memory: UpdateMemory | None = None  # of an update
    signal_rows: Float[Numeric, "... K d"] | None = None  # of a run with a frame of its own
    samples: SampleMemory | None = None  # of an update, for every sample


class Options(NamedTuple):
    """Static structure of a step, in addition to the structure of the problem."""

    selects: bool
    thermal: bool
    shared: bool  # one data set for all runs
    # All runs advance together, step by step; otherwise a few steps of one run after the other.
    together: bool
    # "triton": one GPU kernel reads the inputs once per step. "interpret": the same on a CPU,
    # slowly, for tests.
    kernel: str = ""
    passing: MessagePassing | None = None  # message passing in place of gradient steps
    edges: tuple[int, ...] = ()  # of the covariance blocks, for message passing and updates
    law: Law | None = None  # of an update; None for plain steps


class Observer(NamedTuple):
    """The function that observes a run after each step, if any, and the edges of the blocks."""

    see: Observe | None
    edges: tuple[int, ...]

    def observe(
        self,
        structure: Structure,
        parameters: Parameters,
        arguments: PyTree,
        observed: PyTree,
        number: IntScalar,
        state: Weights,
    ) -> PyTree:
        """The observations of one run, updated after step `number`."""
        if self.see is None:
            return observed
        rows, head = state.rows.astype(jnp.float64), state.head.astype(jnp.float64)
        M, Q = direct_overlaps(
            jnp, structure.signals, self.edges, parameters["frame"], rows, state.signal_rows
        )
        return self.see(arguments, observed, number, {"M": M, "Q": Q, "a": head})


# States of the runs, their last finite steps, and their observations
Runs = tuple[Weights, Int[Numeric, " runs"], PyTree]
Result = TypeVar("Result")


class StepContext(NamedTuple):
    """Traced values that all steps of all runs share."""

    parameters: Parameters
    hyperparameters: Parameters
    dimension: Scalar


def step_random_key(key: RandomKey, number: IntScalar) -> RandomKey:
    """The key of one step of a run."""
    return step_key(jax.random.fold_in(key, 1), number)


@float64
@partial(jax.jit, static_argnums=(0, 1, 2))
def draw_data_sets(
    structure: Structure,
    samples: int,
    dtypes: tuple[np.dtype, np.dtype],
    parameters: Parameters,
    placement: Embedding,
    keys: RandomKeys,
    signal_rows: Float[Numeric, "runs K d"] | None = None,
) -> Data:
    """The data set of each key: its inputs in the first type, all else in the second.

    The signals lie along a few axes (`placement`), or are `signal_rows` in d dimensions.

    Data are drawn in float64 for all types, so that all precisions use the same data. The stored,
    rounded inputs are the data set: signals are computed from them, so that a teacher's labels
    are exact in any type.
    """
    storage, dtype = dtypes
    sample = structure.sample
    # Numbers of a sample: its inputs in d dimensions, then its draws
    inputs = sample.tokens.inputs_per_sample * placement.scale.shape[0]
    per_sample = inputs + sample.normals_per_sample
    chunks = -(-samples * per_sample // NORMALS_PER_CHUNK)
    # Equal chunks, the last of which is cut
    rows = -(-samples // chunks)

    def draw_chunk(key: RandomKey, placement: Embedding) -> Data:
        normals = normals_and_uniforms(key, rows * per_sample, 0)[0].reshape(rows, per_sample)
        draws = sample.draw(parameters, normals[:, inputs:])
        # Rounded to the storage precision before the signals are computed
        directions = normals[:, :inputs].reshape(rows, *sample.tokens.shape, -1)
        x = inputs_in_space(sample, parameters, directions, draws, placement)
        if jnp.finfo(storage).bits < 32:
            # XLA may round to float16 at once or by way of float32; with this it does the latter.
            x = x.astype(jnp.float32)
        x = x.astype(storage)
        signals = jnp.matmul(
            x[:, placement.axes].astype(dtype), placement.signals.T, precision=HIGHEST
        )
        return Data(x, signals.astype(dtype), as_dtype(sample.loss_argument(draws), dtype))

    def draw_data_set(run: tuple[RandomKey, Numeric | None]) -> Data:
        key, own_signals = jax.random.fold_in(run[0], 0), run[1]
        position = placement
        if own_signals is not None:
            axes = jnp.arange(placement.scale.shape[0])
            position = Embedding(placement.scale, axes, own_signals)
        if chunks == 1:
            return draw_chunk(key, position)
        data = jax.lax.map(
            lambda number: draw_chunk(jax.random.fold_in(key, number), position),
            jnp.arange(chunks),
        )

        def join(leaf: Numeric) -> Numeric:
            count = samples * (leaf.shape[1] // rows)  # several inputs per sample, or one draw
            return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])[:count]

        return jax.tree.map(join, data)

    return jax.lax.map(draw_data_set, (keys, signal_rows))


@float64
@partial(jax.jit, static_argnums=0)
def draw_first_selections(
    samples: int, hyperparameters: Parameters, keys: RandomKeys
) -> Bool[Numeric, "runs n"]:
    """The samples that the first step of each run uses."""
    draw = jax.vmap(lambda key: normals_and_uniforms(jax.random.fold_in(key, 2), 0, samples)[1])
    return first_selection(hyperparameters, draw(keys))


def _fields(
    rows: Float[Numeric, "p d"], x: Float[Numeric, "inputs d"]
) -> Float[Numeric, "inputs p"]:
    """Fields X W^T; a single row as a vector, which is faster."""
    x = x.astype(rows.dtype)
    if rows.shape[0] == 1:
        return jnp.matmul(x, rows[0], precision=HIGHEST)[:, None]
    return jnp.matmul(x, rows.T, precision=HIGHEST)


def weighted_inputs(
    h: Float[Numeric, "inputs p"], x: Float[Numeric, "inputs d"]
) -> Float[Numeric, "p d"]:
    """The gradient h^T X in the rows."""
    x = x.astype(h.dtype)
    if h.shape[1] == 1:
        return jnp.matmul(h[:, 0], x, precision=HIGHEST)[None]
    return jnp.matmul(h.T, x, precision=HIGHEST)


def loss_and_slopes(
    structure: Structure,
    parameters: Parameters,
    data: Data,
    rows: Float[Numeric, "p d"],
    head: Float[Numeric, " p"],
) -> tuple[Float[Numeric, ""], tuple[Float[Numeric, "inputs p"], Float[Numeric, "samples p"]]]:
    """The mean loss over the data set, and dloss/dfields (inputs, p), dloss/dhead (samples, p)."""
    sample = structure.sample
    # Derivatives in fields and head; signals, draws and parameters are constants.
    compute = jax.vmap(
        jax.value_and_grad(structure.loss, argnums=(0, 2)), in_axes=(0, 0, None, 0, None)
    )
    fields = sample.tokens.group_by_sample(_fields(rows, data.inputs))
    loss, (h, head_h) = compute(
        fields, sample.tokens.group_by_sample(data.signals), head, data.draws, parameters
    )
    # A user's loss may contain float64 constants. A float32 simulation stays in float32, except
    # for the sum that is compared with a threshold.
    slopes = (sample.tokens.flatten_inputs(h).astype(rows.dtype), head_h.astype(rows.dtype))
    return jnp.mean(loss, dtype=jnp.float64), slopes


def gradient_sums(
    structure: Structure,
    parameters: Parameters,
    data: Data,
    rows: Float[Numeric, "p d"],
    head: Float[Numeric, " p"],
    selected: Numeric | None,
) -> data_gradients.Sums:
    """Mean loss and sums of gradients over the selected samples (None: all), in two reads."""
    risk, (h, head_h) = loss_and_slopes(structure, parameters, data, rows, head)
    if selected is not None:
        # where, not a product: a sample that is not used may have an infinite gradient.
        h = jnp.where(structure.sample.tokens.repeat(selected)[:, None], h, 0)
        head_h = jnp.where(selected[:, None], head_h, 0)
    gradient = weighted_inputs(h, data.inputs)
    return data_gradients.Sums(risk, gradient, jnp.sum(head_h, axis=0))


def parameters_with_overlaps(
    structure: Structure, edges: tuple[int, ...], parameters: Parameters, rows: Numeric
) -> Parameters:
    """The parameters with the overlaps of the rows, if the loss reads them."""
    if not structure.loss.reads_overlaps:
        return parameters
    M, Q = direct_overlaps(jnp, structure.signals, edges, parameters["frame"], rows)
    return structure.loss.parameters_with_overlaps(parameters, Q, M)


def _over_runs(
    options: Options, function: Callable[..., Result], data: Data, *runs: PyTree
) -> Result:
    """function(data, ...) for every run."""
    if options.together:
        # A shared data set has no axis of runs.
        data_axis = None if options.shared else 0
        return jax.vmap(function, in_axes=(data_axis, *[0] * len(runs)))(data, *runs)
    return jax.lax.map(lambda arguments: function(*arguments), (data, *runs))


@float64
@partial(jax.jit, static_argnums=(0, 1))
def mean_losses(
    structure: Structure,
    options: Options,
    parameters: Parameters,
    time: Scalar,
    data: Data,
    state: Weights,
) -> Float[Numeric, " runs"]:
    """The mean loss of each run over its data set, with the parameters at a time."""
    parameters = as_dtype(values_at(parameters, time), state.rows.dtype)
    return _mean_losses(structure, options, parameters, data, state)


def _mean_losses(
    structure: Structure, options: Options, parameters: Parameters, data: Data, state: Weights
) -> Float[Numeric, " runs"]:
    sample = structure.sample
    # The kernel computes the fields of all runs at once.
    kernel_fields = None
    if options.kernel:
        kernel_fields = data_gradients.fields(options.kernel, data.inputs, state.rows)

    def mean_loss(
        data: Data, rows: Float[Numeric, "p d"], head: Float[Numeric, " p"], fields: Numeric | None
    ) -> Float[Numeric, ""]:
        fields = sample.tokens.group_by_sample(
            _fields(rows, data.inputs) if fields is None else fields
        )
        values = parameters_with_overlaps(structure, options.edges, parameters, rows)
        losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
            fields, sample.tokens.group_by_sample(data.signals), head, data.draws, values
        )
        return jnp.mean(losses, axis=0, dtype=jnp.float64)

    return _over_runs(options, mean_loss, data, state.rows, state.head, kernel_fields)


def is_finite(state: Weights) -> Bool[Numeric, ""]:
    """Whether all weights of a run are within the range of numbers that have not diverged."""
    dtype = state.rows.dtype
    limit = jnp.asarray(LARGEST if dtype == jnp.float64 else LARGEST_SINGLE, dtype)
    is_finite = jnp.all(jnp.abs(state.rows) < limit) & jnp.all(jnp.abs(state.head) < limit)
    if state.memory is None:
        return is_finite
    return is_finite & jnp.all(jnp.abs(state.memory.rows) < limit)


def exceeds_sphere(increment: Float[Numeric, "... p d"]) -> Bool[Numeric, "... p"]:
    """Whether rows on the sphere move further than its diameter."""
    return jnp.sum(increment**2, axis=-1) > SPHERE_DIAMETER_SQUARED


@float64
@partial(jax.jit, static_argnums=(0, 1, 2))
def advance_on_data(
    structure: Structure,
    options: Options,
    observer: Observer,
    context: StepContext,
    data: Data,
    state: Weights,
    keys: RandomKeys,
    first: IntScalar,
    end: IntScalar,
    observed: PyTree = None,
    arguments: PyTree = None,
) -> Runs:
    """All runs from step `first` to `end`, their last finite steps, and their observations."""

    def step_run(
        number: IntScalar,
        data: Data,
        state: Weights,
        last_good: IntScalar,
        observed: PyTree,
        key: RandomKey,
        sums: data_gradients.Sums | None = None,
    ) -> tuple[Weights, Int[Numeric, ""], PyTree]:
        key = step_random_key(key, number)
        state = fixed_data_step(structure, options, context, data, state, key, number, sums)
        # First passages are observed after each step, on the device.
        observed = observer.observe(
            structure, context.parameters, arguments, observed, number + 1, state
        )
        return state, jnp.where(is_finite(state), number + 1, last_good), observed

    if not options.together:

        def advance_run(
            data: Data, state: Weights, observed: PyTree, key: RandomKey
        ) -> tuple[Weights, Int[Numeric, ""], PyTree]:
            return jax.lax.fori_loop(
                first,
                end,
                lambda number, carry: step_run(number, data, carry[0], carry[1], carry[2], key),
                (state, first, observed),
            )

        return _over_runs(options, advance_run, data, state, observed, keys)

    def step_runs(
        checks_risk: bool, number: IntScalar, carry: tuple[Runs, BoolScalar]
    ) -> tuple[Runs, BoolScalar]:
        runs, was_doubtful = carry
        sums, is_doubtful = _kernel_sums(
            structure, options, context, data, runs[0], number, checks_risk
        )
        # The sums of the kernel, if any, replace two reads of the data.
        runs = _over_runs(options, partial(step_run, number), data, *runs, keys, sums)
        return runs, was_doubtful | is_doubtful

    def advance_runs(first: IntScalar, end: IntScalar, runs: Runs) -> Runs:
        return jax.lax.fori_loop(first, end, partial(step_runs, True), (runs, False))[0]

    # All runs start at the same step; `last_good` is kept per run.
    initial = (state, jnp.broadcast_to(first, keys.shape), observed)
    if not options.kernel:
        return advance_runs(first, end, initial)

    def advance_stretch(carry: tuple[IntScalar, Runs]) -> tuple[IntScalar, Runs]:
        """Steps without risks; they are repeated with risks if some run may have diverged.

        On a GPU, a decision about what is computed next waits for the host. It is therefore made
        once per stretch of steps.
        """
        number, runs = carry
        last = jnp.minimum(number + STEPS_PER_DECISION, end)

        def without_risks() -> tuple[Runs, BoolScalar]:
            return jax.lax.fori_loop(
                0,
                STEPS_PER_DECISION,
                lambda offset, carry: step_runs(False, number + offset, carry),
                (runs, jnp.asarray(False)),
            )

        advanced, is_doubtful = jax.lax.cond(
            last - number == STEPS_PER_DECISION, without_risks, lambda: (runs, jnp.asarray(True))
        )
        repeat = partial(advance_runs, number, last, runs)
        return last, jax.lax.cond(is_doubtful, repeat, lambda: advanced)

    return jax.lax.while_loop(lambda carry: carry[0] < end, advance_stretch, (first, initial))[1]


def _kernel_sums(
    structure: Structure,
    options: Options,
    context: StepContext,
    data: Data,
    state: Weights,
    number: IntScalar,
    checks_risk: bool,
) -> tuple[data_gradients.Sums | None, BoolScalar]:
    """Sums of all runs by the GPU kernel, and whether a run on the sphere may have diverged."""
    if not options.kernel:
        return None, False
    parameters, rates = step_parameters(context.parameters, context.hyperparameters, number)
    parameters = as_dtype(parameters, state.rows.dtype)
    sums = data_gradients.sums(
        structure, options.kernel, parameters, data, state.rows, state.head, state.selected
    )
    fixes_norms = structure.constraint.fixes_norms
    if sums.risk is not None or not fixes_norms:
        return sums._replace(risk=sums.risk if fixes_norms else None), False
    # The kernel reads the selected samples only. The risk of all samples is needed only if a run
    # may have diverged, which is rare; the condition is wider by 1% than that of the step itself.
    share = 1.01 * rates["lr"] / (rates["divisor"] * data.inputs.shape[1])
    is_far = jnp.any(exceeds_sphere(share.astype(state.rows.dtype) * sums.gradient))
    zero = jnp.zeros_like(state.first_risk)
    if not checks_risk:
        return sums._replace(risk=zero), is_far
    risks = partial(_mean_losses, structure, options, parameters, data, state)
    return sums._replace(risk=jax.lax.cond(is_far, risks, lambda: zero)), False


def fixed_data_step(
    structure: Structure,
    options: Options,
    context: StepContext,
    data: Data,
    state: Weights,
    key: RandomKey,
    number: IntScalar,
    sums: data_gradients.Sums | None = None,
) -> Weights:
    """One step of one run, and the selection of samples for the next.

        W <- W - lr/(b n) sum_mu s_mu dloss_mu/dW + sqrt(2 T lr/d) N(0, I)

    The `sums` over the samples may come from a GPU kernel.
    """
    if options.passing is not None:
        return _pass_messages(structure, options, context, data, state)
    rows, head, selected, first_risk = state[:4]
    dtype, p = rows.dtype, structure.width
    parameters, rates = step_parameters(context.parameters, context.hyperparameters, number)
    parameters = as_dtype(parameters, dtype)
    samples = data.inputs.shape[0] // structure.sample.tokens.inputs_per_sample
    if sums is None and options.law is None:
        sums = gradient_sums(structure, parameters, data, rows, head, selected)
    # 1/(b n): the mean over samples, rescaled by the batch fraction if required
    share = (1 / (rates["divisor"] * samples)).astype(dtype)
    # One draw for white noise on rows and head, and for the next selection
    kicks = p * rows.shape[1] + len(head)
    normals, uniforms = normals_and_uniforms(
        key, kicks if options.thermal else 0, samples if options.selects else 0
    )
    kick = head_kick = None
    if options.thermal:
        noise = (thermal_noise_scale(rates, context.dimension) * normals).astype(dtype)
        kick = noise[: -len(head)].reshape(rows.shape)
        head_kick = jnp.sqrt(rates["head_rate"].astype(dtype)) * noise[-len(head) :]
    # Step sizes in the precision of the weights, from schedules in float64
    lr, head_rate = (rates[name].astype(dtype) for name in ("lr", "head_rate"))
    decay_of_head = parameters.get("head_decay")
    stride = Stride(lr, head_rate, parameters["weight_decay"], structure, decay_of_head)
    following = selected
    if options.selects:
        assert selected is not None
        following = next_selection(rates, selected, uniforms)
    if options.law is not None:
        arguments = (structure, parameters, data, selected, share, key, options.edges)
        source = DataGradients(*arguments)
        if state.samples is not None:
            assert state.memory is not None
            rule = SampleStep.of(options.law, rates, state.memory.scalars, number)
            source = SampleGradients(*arguments, rule=rule, samples=state.samples)
        kicks = None if kick is None or head_kick is None else (kick, head_kick)
        moved = update_step(options.law, rates, stride, state, source, number, kicks)
        return moved._replace(selected=following, samples=source.samples)
    assert sums is not None
    gradient, head_gradient = share * sums.gradient, share * sums.head_gradient
    moved, head = stride.move(rows, head, (gradient, head_gradient), kick, head_kick)
    if structure.constraint.fixes_norms:
        assert sums.risk is not None
        moved = mark_divergence(moved, lr * gradient, sums.risk, first_risk)
    return state._replace(rows=moved, head=head, selected=following)


class DataGradients(GradientSource):
    """Gradients of the mean loss over the selected samples of a data set in d dimensions.

    Parameters
    ----------
    structure, parameters
        The problem at this step.
    data : Data
        The data set, or a batch of it.
    selected : array, (n,), optional
        The samples that the step uses; all by default.
    share : float
        Weight of a sample in the mean.
    key : key
        Key of the step, for its noise.
    edges : tuple of int
        First coordinates of the covariance blocks, and the dimension.
    """

    def __init__(
        self,
        structure: Structure,
        parameters: Parameters,
        data: Data,
        selected: Numeric | None,
        share: Scalar,
        key: RandomKey,
        edges: tuple[int, ...],
    ) -> None:
        self.structure, self.parameters, self.data = structure, parameters, data
        self.selected, self.share, self.key, self.edges = selected, share, key, edges
        self.samples: SampleMemory | None = None

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        rows = rows if shift is None else rows + shift
        head = head if head_shift is None else head + head_shift
        if self.structure.loss.reads_overlaps:
            return self._mean_with_overlaps(rows, head)
        arguments = (self.structure, self.parameters, self.data, rows, head, self.selected)
        sums = gradient_sums(*arguments)
        return self.share * sums.gradient, self.share * sums.head_gradient

    def _mean_with_overlaps(self, rows: Numeric, head: Numeric) -> tuple[Numeric, Numeric]:
        """The gradient of a loss that reads the overlaps: h^T X + A W + B W*."""
        structure, data, p = self.structure, self.data, len(rows)
        arguments = (structure, self.edges, self.parameters, rows)
        parameters = parameters_with_overlaps(*arguments)
        fields = _fields(rows, data.inputs)
        moves = sample_moves(structure, parameters, fields, data.signals, head, data.draws)
        h, head_h, coefficients = moves
        assert coefficients is not None
        if self.selected is not None:
            h = jnp.where(structure.sample.tokens.repeat(self.selected)[:, None], h, 0)
            head_h = jnp.where(self.selected[:, None], head_h, 0)
            coefficients = jnp.where(self.selected[:, None, None], coefficients, 0)
        total = jnp.sum(coefficients, axis=0)
        # The signals lie along the first K axes of each block.
        K, frame = structure.signals, self.parameters["frame"]
        signals = jnp.zeros((K, rows.shape[1]), rows.dtype)
        for block, (low, high) in enumerate(pairwise(self.edges)):
            count = min(K, high - low)
            signals = signals.at[:, low : low + count].set(frame[block][:, :count])
        pull = total[:, :p] @ rows + total[:, p:] @ signals
        gradient = weighted_inputs(h, data.inputs) + pull
        return self.share * gradient, self.share * jnp.sum(head_h, axis=0)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        rows = rows if shift is None else rows + shift
        head = head if head_shift is None else head + head_shift
        _, (h, head_h) = loss_and_slopes(self.structure, self.parameters, self.data, rows, head)
        tokens = self.structure.sample.tokens.inputs_per_sample
        h = h.reshape(-1, tokens, h.shape[1])
        x = self.data.inputs.reshape(len(h), tokens, -1).astype(h.dtype)
        return jnp.einsum("ntp,ntd->npd", h, x, precision=HIGHEST), head_h

    def noise(self) -> Numeric:
        """Normals of variance 1/d: like the gradient of a full batch, rows have norms of O(1)."""
        p, d = self.structure.width, self.data.inputs.shape[-1]
        key = jax.random.fold_in(self.key, 5)
        normals = jax.random.normal(key, (p, d), self.parameters["weight_decay"].dtype)
        return normals / np.sqrt(d)

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        order = draw_order(jax.random.fold_in(self.key, 5), rows.shape[1], rows.dtype)
        return select_coordinates(order, rows, share, count)

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        M, Q = direct_overlaps(
            jnp, self.structure.signals, self.edges, self.parameters["frame"], rows
        )
        return loss_overlaps(self.parameters, Q, M)


class SampleGradients(DataGradients):
    """Gradients of an update with a rule for single samples, whose stored values it changes.

    Parameters
    ----------
    *arguments
        The arguments of `DataGradients`.
    rule : SampleStep
        The rule at this step.
    samples : dict of array
        The stored values of the samples.
    """

    def __init__(self, *arguments: Any, rule: SampleStep, samples: SampleMemory) -> None:
        super().__init__(*arguments)
        self.rule, self.samples = rule, samples
        self.last_means: dict[str, Numeric] = {}

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        rows, inputs = rows if shift is None else rows + shift, self.data.inputs
        count = inputs.shape[0] // self.structure.sample.tokens.inputs_per_sample
        used = jnp.ones(count, bool) if self.selected is None else self.selected
        data = SampleData(used, count, self.data.signals, self.data.draws)
        fields = _fields(rows, inputs)
        assert self.samples is not None
        arguments = (self.structure, self.parameters, data, fields, head, self.samples)
        outcome = self.rule.outcome(*arguments)
        self.samples, self.last_means = outcome.memory, outcome.means
        return weighted_inputs(outcome.g.T, inputs), jnp.zeros_like(head)

    def means(self) -> dict[str, Numeric]:
        return self.last_means


def update_step(
    law: Law,
    rates: Parameters,
    stride: Stride,
    state: Weights,
    source: GradientSource,
    number: IntScalar,
    kicks: tuple[Numeric, Numeric] | None = None,
    unit: Scalar = FULL_BATCH,
) -> Weights:
    """One step of one run by an update."""
    assert state.memory is not None
    before = join(state.rows, state.head, state.memory)
    rates = as_dtype({**rates, "head_rate": stride.head_rate}, state.rows.dtype)
    after = move(law, rates, stride, before, source, number, kicks, unit)
    rows, head, memory = split(after, len(state.rows), len(state.head), state.rows.shape[1:])
    return state._replace(rows=rows, head=head, memory=memory)


def _pass_messages(
    structure: Structure, options: Options, context: StepContext, data: Data, state: Weights
) -> Weights:
    """One step of message passing of one run (`message_passing`)."""
    passing, parameters = options.passing, context.parameters
    assert passing is not None
    rows, messages = state.rows, state.messages
    fields = _fields(rows, data.inputs)[:, 0]
    g, curvature = passing.outputs(
        structure, parameters, fields, data.signals, state.head, data.draws, messages
    )
    dimension, sizes = rows.shape[1], np.diff(options.edges)
    gradient = weighted_inputs(g[:, None], data.inputs) / dimension
    L = jnp.sum(curvature) / dimension
    factors, V = passing.shrinkage(
        parameters, sizes / dimension, data.inputs.shape[0] / dimension, L
    )
    scale = jnp.repeat(
        input_covariance.eigenvalues(parameters) * L, sizes, total_repeat_length=dimension
    )
    factors = jnp.repeat(factors, sizes, total_repeat_length=dimension)
    moved = (factors * (gradient + scale * rows)).astype(rows.dtype)
    messages = Messages(g.astype(rows.dtype), jnp.asarray(V, rows.dtype))
    return state._replace(rows=moved, messages=messages)


def mark_divergence(
    rows: Float[Numeric, "p d"],
    increment: Float[Numeric, "p d"],
    risk: Scalar,
    first_risk: Scalar,
) -> Float[Numeric, "p d"]:
    """Rows on the sphere, or NaN if they have diverged.

    Rows of norm 1 cannot grow. A run has diverged if a step is longer than the diameter of the
    sphere while the training risk exceeds that of the start: a sample with an unstable residual
    then attracts the row, and neither releases it nor converges.
    """
    has_diverged = jnp.any(exceeds_sphere(increment)) & (risk > first_risk)
    return jnp.where(has_diverged, jnp.nan, rows)
