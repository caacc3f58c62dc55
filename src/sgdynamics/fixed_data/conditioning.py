"""A fixed data set by Gaussian conditioning, exact in law at any d.

The weights are a growing list of coefficients.

An algorithm touches the data matrix X (n x d, rows N(0, I)) only through X e for directions e in
weight space and X^T g for vectors g in sample space. Suppose that orthonormal e_0, e_1, ... have
known products A_k = X e_k, and that P_0, P_1, ... are orthonormal in R^n with all X^T P_j in the
span of the e_k. Then, conditionally on these products, the remainder of X is a Gaussian matrix
between the two orthogonal complements (Bolthausen's conditioning technique). With the residual r
= g - sum_j P_j <P_j, g>,

    X^T g = sum_k <A_k, g> e_k + |r| chi e_new,     chi^2 ~ chi^2(d - number of e's),
    A_new = X e_new = chi r/|r| + (1 - P P^T) Z,    Z ~ N(0, I_n),

and P_new = r/|r|. White noise on the weights (Langevin) adds directions with A_new = (1 - P P^T)
Z. The rows of W are coefficients on the e_k: the first K lie along the signals, the next p along
the initial rows, and each step adds p directions, or 2p with white noise. No response function,
iteration or d-dimensional vector is needed.

With n the number of paths of the effective process this is also the limit d -> infinity (DMFT),
continued in `fixed_data.paths`. Covariance blocks have one A each and share P. A residual |r|
below `ROUNDING` |g| adds no direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.fixed_data import first_selection, next_selection, thermal_noise_scale
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.algorithms.updates.gradient_source import GradientSource
from sgdynamics.base.arrays import (
    DType,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
)
from sgdynamics.base.random import draw_chi, normals_and_uniforms
from sgdynamics.fixed_data.matrix_conditioning import (
    extends_basis,
    orthogonal_part,
    unit_residual,
)
from sgdynamics.fixed_data.sample_space import (
    SampleData,
    SampleMemory,
    SampleStep,
    combine_rows,
    first_sample_memory,
    observe_fields,
    overlap_coefficients,
    overlaps_from_rows,
    sample_space_gradients,
    with_overlaps,
)
from sgdynamics.fixed_data.setup import (
    LARGEST,
    InitialDraws,
    InitialWeights,
    Setup,
    StepParameters,
)
from sgdynamics.fixed_data.update_memory import UpdateMemory, first_memory, join, move, split
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.moves import LossOverlaps, loss_overlaps
from sgdynamics.problems.tops import head_decay
from sgdynamics.samples import input_covariance
from sgdynamics.samples.input_covariance import scale as input_scale
from sgdynamics.samples.inputs import compressed_inputs
from sgdynamics.samples.sample import as_dtype

ROUNDING = 1e-10  # a smaller residual, relative to its gradient, is rounding and no new direction
CACHE_BYTES = 1 << 20  # memory of the runs that a CPU advances together
DOUBLING_CAPACITY = 512  # capacity below which memory is doubled when it is full


class ConditionedState(NamedTuple):
    """One run: the products of the data that are conditioned on, and the weights in their basis."""

    P: Float[Array, "capacity inputs"]  # orthonormal rows, zero beyond `sample_rank`
    A: Float[Array, "blocks capacity inputs"]  # products X e_k, zero beyond `weight_rank`
    rows: Float[Numeric, "p blocks capacity"]  # coefficients of W on the e_k
    head: Float[Numeric, " p"]
    sample_rank: IntScalar  # number of P
    weight_rank: IntScalar  # number of directions e
    selected: Bool[Numeric, " n"]
    signals: Float[Numeric, "inputs K"]
    draws: PyTree  # noise (n,), labels of a mixture, or a dictionary of draws
    messages: PyTree = ()  # of message passing
    memory: UpdateMemory | None = None  # of an update, in the basis of the weights
    samples: SampleMemory | None = None  # of an update, for every sample


class StepDraws(NamedTuple):
    """The random numbers of one step."""

    normals: Float[Numeric, "normals blocks inputs"]  # Z
    uniform: Float[Numeric, " n"]  # next selection of samples
    lengths: Float[Numeric, "directions blocks"]  # proposals of chi
    uniforms: Float[Numeric, "directions blocks"]  # acceptance of the proposals
    kick: Float[Numeric, "capacity p blocks"] | None  # white noise along the basis
    lower: Float[Numeric, "p p blocks"]  # white noise of the rows along each other's new directions
    head: Float[Numeric, " p"]


def initial_state(
    setup: Setup,
    step: StepParameters,
    weights: InitialWeights,
    draws: InitialDraws,
    capacity: int,
) -> ConditionedState:
    """A run at step 0: the data along the signals and along the initial rows are drawn."""
    structure, sample = setup.structure, setup.structure.sample
    parameters, n = step.parameters, draws.noise.shape[0]
    sample_draws = sample.draw(parameters, draws.noise)
    # Tokens of a sample share its draws (labels, means), so that samples come first.
    per_sample = jnp.moveaxis(draws.normals, -1, 0)
    per_sample = per_sample.reshape(n, *sample.tokens.shape, *draws.normals.shape[:-1])
    x = compressed_inputs(sample, parameters, per_sample, sample_draws)
    A = jnp.moveaxis(x.reshape(-1, *x.shape[-2:]), 0, -1).astype(draws.normals.dtype)
    # Signals are known combinations of the first K directions: X s_r = sum_k frame_rk A_k.
    frame = parameters["frame"].astype(A.dtype)
    signals = jnp.einsum("brk,bkn->nr", frame, A[:, : structure.signals], precision="highest")
    # The initial rows are [T | L] on the first K + p directions, exactly.
    rows = jnp.moveaxis(jnp.concatenate([weights.T, weights.L], axis=-1), 0, 1).astype(A.dtype)
    # Without a selection all samples are used in each step.
    selected = jnp.ones(n, bool)
    if setup.selects:
        selected = first_selection(step.hyperparameters, draws.uniform)
    spare = capacity - setup.initial_directions
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, spare)))
    head, memory = weights.head.astype(A.dtype), None
    if setup.law is not None:
        first_rates = step.at_step(np.int64(0)).hyperparameters["update"]
        memory = first_memory(setup.law, first_rates, rows, head, trained=structure.trained)
    return ConditionedState(
        P=jnp.zeros((capacity, A.shape[-1]), A.dtype),
        A=jnp.pad(A, ((0, 0), (0, spare), (0, 0))),
        rows=rows,
        head=head,
        sample_rank=jnp.zeros((), jnp.int32),
        weight_rank=jnp.asarray(setup.initial_directions, jnp.int32),
        selected=selected,
        signals=signals,
        draws=as_dtype(sample.loss_argument(sample_draws), A.dtype),
        memory=memory,
        samples=first_sample_memory(setup.law, A.shape[-1], structure.width, A.dtype),
    )


@partial(jax.jit, static_argnums=1)
def _with_capacity(state: ConditionedState, capacity: int) -> ConditionedState:
    """The same runs (leading axis) with memory for more directions."""
    added = capacity - state.P.shape[1]
    memory = state.memory
    if memory is not None:
        rows = jnp.pad(memory.rows, ((0, 0), (0, 0), (0, 0), (0, added)))
        memory = memory._replace(rows=rows)
    return state._replace(
        memory=memory,
        P=jnp.pad(state.P, ((0, 0), (0, added), (0, 0))),
        A=jnp.pad(state.A, ((0, 0), (0, 0), (0, added), (0, 0))),
        rows=jnp.pad(state.rows, ((0, 0), (0, 0), (0, 0), (0, added))),
    )


def next_capacity(capacity: int, largest: int) -> int:
    """The next size of memory: doubled while small, because each size is compiled, then by half."""
    grown = 2 * capacity if capacity < DOUBLING_CAPACITY else capacity + capacity // 2
    return min(grown, largest)


def fields_from_rows(
    rows: Float[Numeric, "p blocks capacity"], A: Float[Numeric, "blocks capacity inputs"]
) -> Float[Numeric, "inputs p"]:
    """Fields lambda = X W^T = sum_bk A_bk W_bk."""
    return jnp.einsum("pbk,bkn->np", rows, A, precision="highest")


def observe(setup: Setup, parameters: Parameters, state: ConditionedState) -> dict[str, Numeric]:
    """M and Q per covariance block, a, and the mean loss over the data set, of one run."""
    fields = fields_from_rows(state.rows, state.A)
    return observe_fields(
        setup, parameters, state.rows, state.head, fields, state.signals, state.draws
    )


def observe_losses(
    observe_states: Callable[..., dict[str, Numeric]],
    setup: Setup,
    losses: Mapping[str, Loss],
    parameters: Parameters,
    states: PyTree,
) -> dict[str, Numeric]:
    """Overlaps and the training risk of many states, and the means of further losses by name.

    `observe_states` is a compiled function of setup, parameters and states.
    """
    observed = observe_states(setup, parameters, states)
    for name, loss in losses.items():
        with_loss = replace(setup, structure=setup.structure.with_loss(loss))
        observed[name] = observe_states(with_loss, parameters, states)["train_risk"]
    return observed


def draw_step(setup: Setup, key: RandomKey, n: int, capacity: int, dtype: DType) -> StepDraws:
    """The random numbers of one step of one run on n inputs."""
    p, blocks = setup.structure.width, setup.structure.blocks
    # The large normals use the key of the step itself, all small draws keys derived from it.
    small_key, kick_key = jax.random.split(key)
    count = setup.normals_per_step * blocks * n
    samples = n // setup.structure.sample.tokens.inputs_per_sample if setup.selects else 0
    normals, uniform = normals_and_uniforms(key, count, samples)
    directions = setup.directions_per_step * blocks
    small_count = directions + p * p * blocks + setup.structure.head_size
    few, uniforms = normals_and_uniforms(small_key, small_count, directions)
    lengths, lower, head = jnp.split(few, [directions, directions + p * p * blocks])
    # By jax.random: the first numbers of an array do not depend on its length, so that the
    # capacity of memory does not change the run.
    kick = jax.random.normal(kick_key, (capacity, p, blocks), dtype) if setup.thermal else None
    return StepDraws(
        normals.reshape(setup.normals_per_step, blocks, n).astype(dtype),
        uniform,
        lengths.reshape(setup.directions_per_step, blocks),
        uniforms.reshape(setup.directions_per_step, blocks),
        kick,
        lower.reshape(p, p, blocks),
        head,
    )


class _StepContext(NamedTuple):
    """The values that the parts of one step share."""

    setup: Setup
    step: StepParameters
    draws: StepDraws
    key: RandomKey  # of the chi variables

    def chi_length(self, index: int, rank: IntScalar, dtype: DType) -> Float[Numeric, " blocks"]:
        """The length chi ~ chi(d_b - rank) of a Gaussian vector outside the basis, per block."""
        proposal = (self.draws.lengths[index], self.draws.uniforms[index])
        key = jax.random.fold_in(self.key, index)
        return draw_chi(key, self.step.block_sizes - rank, *proposal).astype(dtype)

    def data_along(
        self, has_direction: Float[Numeric, " blocks"], vectors: Float[Numeric, "blocks inputs"]
    ) -> Float[Numeric, "blocks inputs"]:
        """Data X e_new of new directions from vectors in sample space that are not yet correlated.

        The inputs of a sample are correlated by C^1/2, and block b has the standard deviation
        `input_scale`. A block without free directions has none (0 in `has_direction`).
        """
        scale = input_scale(self.step.parameters, vectors.dtype) * has_direction
        sample = self.setup.structure.sample
        return scale[:, None] * sample.tokens.correlate_inputs(self.step.parameters, vectors)


def advance_step(
    setup: Setup,
    step: StepParameters,
    state: ConditionedState,
    draws: StepDraws,
    key: RandomKey,
    number: IntScalar,
) -> ConditionedState:
    """One step of one run: gradients, new directions, white noise, and the move of the weights."""
    step = step.at_step(number)
    context = _StepContext(setup, step, draws, key)
    p, dtype = setup.structure.width, state.A.dtype
    fields = fields_from_rows(state.rows, state.A)
    if setup.passing is not None:
        return _pass_messages(context, state, fields[:, 0])
    rates = jax.tree.map(lambda value: jnp.asarray(value, dtype), step.hyperparameters)
    # Weight decay acts on the coefficients, as the basis is orthonormal.
    decay = step.parameters["weight_decay"].astype(dtype)
    decay_of_head = head_decay(step.parameters).astype(dtype)
    stride = Stride(rates["lr"], rates["head_rate"], decay, setup.structure, decay_of_head)
    selected = state.selected
    if setup.selects:
        selected = next_selection(step.hyperparameters, selected, draws.uniform)
    if setup.law is not None:
        return _advance_update(context, stride, state, number)._replace(selected=selected)
    data = SampleData(state.selected, state.selected.shape[0], state.signals, state.draws)
    g, head_gradient = sample_space_gradients(setup, step, data, fields, state.head)
    extended, gradient = _extend_by_gradients(context, state, g, draws.normals[:p])
    kick = head_kick = None
    if setup.thermal:
        extended, kick, head_kick = _extend_by_noise(context, extended)
        # sqrt(2 T lr/d)
        scale = thermal_noise_scale(step.hyperparameters, jnp.sum(step.block_sizes)).astype(dtype)
        kick, head_kick = scale * kick, scale * head_kick
    gradients = (gradient[:p].reshape(p, -1), head_gradient)
    rows, head = stride.move(state.rows.reshape(p, -1), state.head, gradients, kick, head_kick)
    return extended._replace(rows=rows.reshape(state.rows.shape), head=head, selected=selected)


class ConditionedGradients(GradientSource):
    """Gradients of one step of one run, each of which conditions the data on one more product.

    The `state` is that after the products so far; its weights are those before the step.
    """

    def __init__(self, context: _StepContext, state: ConditionedState, number: IntScalar) -> None:
        self.context, self.state, self.number, self.evaluations = context, state, number, 0
        self.last_means: dict[str, Numeric] = {}

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        context, state = self.context, self.state
        setup = context.setup
        rows = rows if shift is None else rows + shift
        head = head if head_shift is None else head + head_shift
        point = rows.reshape(state.rows.shape)
        fields, step = fields_from_rows(point, state.A), with_overlaps(setup, context.step, point)
        data = SampleData(state.selected, state.selected.shape[0], state.signals, state.draws)
        g, head_gradient = self._vectors(step, data, fields, head)
        first = self.evaluations * len(g)
        normals = context.draws.normals[first : first + len(g)]
        self.state, gradient = _extend_by_gradients(context, self.state, g, normals, first)
        self.evaluations += 1
        if setup.structure.loss.reads_overlaps:
            coefficients = overlap_coefficients(setup, step, data, fields, head)
            gradient = gradient + combine_rows(setup, step.parameters, coefficients, point)
        return gradient.reshape(rows.shape), head_gradient

    def _vectors(
        self, step: StepParameters, data: SampleData, fields: Numeric, head: Numeric
    ) -> tuple[Numeric, Numeric]:
        """The vectors g of this gradient in sample space, and the gradient of the head."""
        setup, state = self.context.setup, self.state
        if state.samples is None:
            return sample_space_gradients(setup, step, data, fields, head)
        assert setup.law is not None
        assert state.memory is not None
        rates, scalars = step.hyperparameters, state.memory.scalars
        rule = SampleStep.of(setup.law, rates, scalars, self.number)
        arguments = (setup.structure, step.parameters, data, fields, head, state.samples)
        outcome = rule.outcome(*arguments)
        self.state = state._replace(samples=outcome.memory)
        self.last_means = outcome.means
        return outcome.g, jnp.zeros_like(head)

    def means(self) -> dict[str, Numeric]:
        return self.last_means

    def noise(self) -> Numeric:
        """Normals of variance 1/d, as in `direct_steps.DataGradients`."""
        self.state, kick, _ = _extend_by_noise(self.context, self.state)
        dimension = jnp.sum(self.context.step.block_sizes)
        return (kick / jnp.sqrt(dimension)).astype(self.state.A.dtype)

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        rows = rows.reshape(self.state.rows.shape)
        M, Q = overlaps_from_rows(self.context.setup, self.context.step.parameters, rows)
        return loss_overlaps(self.context.step.parameters, Q, M)


def _advance_update(
    context: _StepContext, stride: Stride, state: ConditionedState, number: IntScalar
) -> ConditionedState:
    """One step of one run by an update, without the selection of the next samples."""
    setup, dtype = context.setup, state.A.dtype
    assert setup.law is not None
    assert state.memory is not None
    source = ConditionedGradients(context, state, number)
    kicks = None
    if setup.thermal and not setup.law.noise:
        source.state, kick, head_kick = _extend_by_noise(context, state)
        scale = thermal_noise_scale(context.step.hyperparameters, jnp.sum(context.step.block_sizes))
        kicks = (scale.astype(dtype) * kick, scale.astype(dtype) * head_kick)
    rates = as_dtype(context.step.hyperparameters, dtype)
    before = join(state.rows, state.head, state.memory)
    after = move(setup.law, rates, stride, before, source, number, kicks)
    rows, head, memory = split(after, len(state.rows), len(state.head), state.rows.shape[1:])
    return source.state._replace(rows=rows, head=head, memory=memory)


def _pass_messages(
    context: _StepContext, state: ConditionedState, fields: Float[Numeric, " n"]
) -> ConditionedState:
    """One step of message passing, which reads the data by X w and X^T g (`message_passing`)."""
    setup, step = context.setup, context.step
    passing, messages = setup.passing, state.messages
    dimension = jnp.sum(step.block_sizes)
    g, curvature = passing.outputs(
        setup.structure, step.parameters, fields, state.signals, state.head, state.draws, messages
    )
    extended, gradient = _extend_by_gradients(context, state, g[None], context.draws.normals[:1])
    L = jnp.sum(curvature) / dimension
    alpha = g.shape[0] / dimension
    fractions = step.block_sizes / dimension
    factors, V = passing.shrinkage(step.parameters, fractions, alpha, L)
    scale = (input_covariance.eigenvalues(step.parameters) * L)[None, :, None]
    rows = factors[None, :, None] * (gradient / dimension + scale * state.rows)
    return extended._replace(rows=rows, messages=messages._replace(g=g, V=V))


def _extend_by_gradients(
    context: _StepContext,
    state: ConditionedState,
    g: Float[Numeric, "gradients inputs"],
    normals: Float[Numeric, "gradients blocks inputs"],
    first: int = 0,
) -> tuple[ConditionedState, Float[Numeric, "gradients blocks capacity"]]:
    """Condition on X^T g of all gradients g: the extended bases, and X^T g in the basis e.

    The gradients are added one after the other (Gram-Schmidt), each as in the module's equations.
    `first` is the number of gradients of this step before them.
    """
    setup, step = context.setup, context.step
    P, A = state.P, state.A
    weight_rank, sample_rank = state.weight_rank, state.sample_rank
    # sum_k <A_k, g> e_k: the part of X^T g in the present basis
    gradient = jnp.einsum("bkn,pn->pbk", A, g, precision="highest")
    # The data are C^1/2 Z with uncorrelated Z. Conditioning is on Z, so that g enters as C^1/2 g.
    uncorrelated = setup.structure.sample.tokens.correlate_inputs(step.parameters, g)
    for unit in range(len(g)):
        vectors = jnp.concatenate([uncorrelated[unit][None], normals[unit]])
        vectors = orthogonal_part(P, vectors, 2)
        residual, noise = vectors[0], vectors[1:]
        # A small block may be exhausted (d_b directions) while others still have directions.
        has_direction = step.block_sizes - weight_rank > 0
        is_new = extends_basis(residual, uncorrelated[unit], step.tolerance)
        grows = is_new & jnp.any(has_direction)
        P_new = unit_residual(residual, grows)
        # (1 - P P^T) Z, with P_new in P
        on_new = jnp.einsum("bn,n->b", noise, P_new, precision="highest")
        noise = noise - on_new[:, None] * P_new
        length = context.chi_length(first + unit, weight_rank, A.dtype)
        A_new = context.data_along(
            (grows & has_direction).astype(A.dtype), length[:, None] * P_new + noise
        )
        # A direction that is not new is zero, and is overwritten by the next one.
        P = P.at[sample_rank].set(P_new)
        A = A.at[:, weight_rank].set(A_new)
        gradient = gradient.at[:, :, weight_rank].set(
            jnp.einsum("bn,pn->pb", A_new, g, precision="highest")
        )
        weight_rank, sample_rank = weight_rank + grows, sample_rank + grows
    extended = state._replace(P=P, A=A, weight_rank=weight_rank, sample_rank=sample_rank)
    return extended, gradient


def _extend_by_noise(
    context: _StepContext, state: ConditionedState
) -> tuple[ConditionedState, Float[Numeric, "p columns"], Float[Numeric, " p"]]:
    """Standard normals of rows (p, blocks * capacity) and head, and the basis with its directions.

    In the basis the noise of the rows is normal along the old directions and a lower triangular
    Bartlett factor along the new ones: row i has normals along the new directions of the rows
    before it, and a chi variable along its own.
    """
    setup, draws = context.setup, context.draws
    hyperparameters, sizes = context.step.hyperparameters, context.step.block_sizes
    p, blocks = setup.structure.width, setup.structure.blocks
    A, rank, dtype = state.A, state.weight_rank, state.A.dtype
    normals = draws.normals[setup.gradients_per_step :]
    noise = orthogonal_part(state.P, normals.reshape(p * blocks, -1), 1)
    noise = noise.reshape(p, blocks, -1)
    slot = jnp.arange(state.rows.shape[-1])
    # A block of d_b coordinates has at most d_b directions.
    in_basis = slot < jnp.minimum(rank, sizes[:, None])
    assert draws.kick is not None
    kick = jnp.transpose(draws.kick, (1, 2, 0)) * in_basis
    # Strictly lower triangular normals of the Bartlett factor; its diagonal is chi.
    lower = jnp.tril(jnp.ones((p, p), dtype), -1)[:, :, None] * draws.lower.astype(dtype)
    for unit in range(p):
        has_direction = (sizes - rank > 0).astype(dtype)
        A = A.at[:, rank].set(context.data_along(has_direction, noise[unit]))
        length = context.chi_length(setup.gradients_per_step + unit, rank, dtype)
        column = (lower[:, unit] * has_direction).at[unit].set(length * has_direction)
        kick = kick.at[:, :, rank].set(column)
        rank = rank + jnp.any(has_direction > 0)
    head_scale = jnp.sqrt(hyperparameters["head_rate"]).astype(dtype)
    head_kick = head_scale * draws.head.astype(dtype)
    return state._replace(A=A, weight_rank=rank), kick.reshape(p, -1), head_kick


def advance(
    setup: Setup,
    step: StepParameters,
    largest_capacity: int,
    state: ConditionedState,
    keys: RandomKeys,
    first: int,
    end: int,
) -> tuple[ConditionedState, np.ndarray]:
    """All runs (leading axis) from step `first` to `end`, and their last finite steps.

    Memory grows on the way up to `largest_capacity` directions; runs that need more stop there.
    """
    current = np.full(len(keys), first, dtype=np.int64)
    last_good = np.full(len(keys), first, dtype=np.int64)
    while True:
        state, current, last_good = _advance_states(
            setup, _group_size(state), step, state, keys, current, last_good, np.int64(end)
        )
        capacity = state.P.shape[1]
        if np.all(np.asarray(current) >= end) or capacity >= largest_capacity:
            return state, np.asarray(last_good)
        state = _with_capacity(state, next_capacity(capacity, largest_capacity))


def _group_size(state: ConditionedState) -> int:
    """Number of runs to advance together, a divisor of all runs that fits into a CPU's cache."""
    runs = state.P.shape[0]
    if jax.default_backend() != "cpu":
        return runs
    bytes_per_run = (state.P.size + state.A.size) // runs * state.P.dtype.itemsize
    largest = max(1, CACHE_BYTES // bytes_per_run)
    return max(count for count in range(1, min(runs, largest) + 1) if runs % count == 0)


# Step numbers, states and last finite steps of the runs of a group
_GroupCarry = tuple[Int[Numeric, " runs"], ConditionedState, Int[Numeric, " runs"]]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _advance_states(
    setup: Setup,
    group_size: int,
    step: StepParameters,
    state: ConditionedState,
    keys: RandomKeys,
    current: Int[Numeric, " runs"],
    last_good: Int[Numeric, " runs"],
    end: IntScalar,
) -> tuple[ConditionedState, Int[Numeric, " runs"], Int[Numeric, " runs"]]:
    capacity, n = state.P.shape[1:]

    def advance_run(number: IntScalar, state: ConditionedState, key: RandomKey) -> ConditionedState:
        # The random numbers of a step depend on run and step alone, not on the grouping.
        key = jax.random.fold_in(key, number)
        draws = draw_step(setup, key, n, capacity, state.A.dtype)
        return advance_step(setup, step, state, draws, key, number)

    def fits(carry: _GroupCarry) -> Bool[Numeric, ""]:
        """Whether all runs have memory for one more step, and steps are left."""
        number, state, _ = carry
        weights_fit = jnp.max(state.weight_rank) + setup.directions_per_step <= capacity
        samples_fit = jnp.max(state.sample_rank) + setup.gradients_per_step <= capacity
        return (jnp.min(number) < end) & (weights_fit & samples_fit)

    def advance_group(
        runs: tuple[Int[Numeric, " runs"], ConditionedState, Int[Numeric, " runs"], RandomKeys],
    ) -> _GroupCarry:
        current, state, last_good, keys = runs

        def advance_runs(
            carry: _GroupCarry,
        ) -> _GroupCarry:
            number, state, last_good = carry
            state = jax.vmap(advance_run)(number, state, keys)
            is_finite = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(-1, -2, -3)) & jnp.all(
                jnp.abs(state.head) < LARGEST, axis=-1
            )
            return number + 1, state, jnp.where(is_finite, number + 1, last_good)

        return jax.lax.while_loop(fits, advance_runs, (current, state, last_good))

    runs = keys.shape[0]
    carry = (current, state, last_good, keys)
    if group_size == runs:
        current, state, last_good = advance_group(carry)
    else:
        # One group after the other: all steps of a group read the same part of the memory.
        groups = jax.tree.map(
            lambda leaf: leaf.reshape(runs // group_size, group_size, *leaf.shape[1:]), carry
        )
        current, state, last_good = jax.tree.map(
            lambda leaf: leaf.reshape(runs, *leaf.shape[2:]), jax.lax.map(advance_group, groups)
        )
    return state, current, last_good
