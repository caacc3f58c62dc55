"""Epochs of SGD over a fixed data set in d dimensions; a step reads its batch only."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import step_parameters
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree, RandomKey, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.random import normals_and_uniforms, run_keys, step_key
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.direct_steps import (
    Data,
    DataGradients,
    Observer,
    Options,
    Runs,
    StepContext,
    Weights,
    is_finite,
    loss_and_slopes,
    mark_divergence,
    step_random_key,
    update_step,
    weighted_inputs,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.running import NO_OBSERVATION, AdvanceResult, Observation, RunSetting


class BatchGradients(DataGradients):
    """Gradients of the mean loss over a batch, in the units of one pass."""

    def noise(self) -> Numeric:
        return np.sqrt(self.data.inputs.shape[-1]) * super().noise()


class DirectEpochs(DirectFixedData):
    """Runs of `EpochSGD`, which all advance together.

    Data sets, starts, risks and memory are those of `DirectFixedData`. With reshuffling,
    `Weights.selected` contains the order of the samples in this epoch and in the next. The first
    epoch uses the samples in the order in which they were drawn.
    """

    def __init__(self, problem: Problem, algorithm: EpochSGD, setting: RunSetting[Start]) -> None:
        super().__init__(problem, algorithm, setting)
        # An epoch selects by its order, and has no white noise.
        self.options = Options(
            selects=False,
            thermal=False,
            shared=setting.shared_data,
            together=True,
            edges=self.options.edges,
            law=algorithm.law,
        )
        self.engine = "xla"  # the kernel reads whole data sets
        self.order, self.batch = algorithm.order, algorithm.batch

    def initial(self, chosen: np.ndarray) -> Weights:
        state = super().initial(chosen)
        if self.order != "reshuffle":
            return state._replace(selected=None)
        # Two orders per run: those of the present and of the next epoch
        orders = _first_orders(self.samples, run_keys(self.seed, chosen))
        return state._replace(selected=orders)

    def advance(
        self,
        state: Weights,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        self.now = self._time_at(end)
        return _advance_epochs(
            self.structure,
            self.options,
            self.order,
            self.batch,
            Observer(observation.observe, self.edges),
            self.context,
            self.data,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )


def _draw_order(samples: int, key: RandomKey, epoch: IntScalar) -> Int[Numeric, " n"]:
    key = step_key(jax.random.fold_in(key, 3), epoch)
    return jax.random.permutation(key, samples).astype(jnp.int32)


@float64
@partial(jax.jit, static_argnums=0)
def _first_orders(samples: int, keys: RandomKeys) -> Int[Numeric, "runs 2 n"]:
    first = jnp.arange(samples, dtype=jnp.int32)
    return jax.vmap(lambda key: jnp.stack([first, _draw_order(samples, key, jnp.int64(1))]))(keys)


@float64
@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _advance_epochs(
    structure: Structure,
    options: Options,
    order: str,
    batch: int,
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
    # A sample of several inputs has adjacent rows of the data.
    tokens = structure.sample.tokens.inputs_per_sample
    n = data.inputs.shape[-2] // tokens

    def choose_batch(
        number: IntScalar, state: Weights, key: RandomKey
    ) -> tuple[Weights, Int[Numeric, " batch"]]:
        """The samples of a batch, and the state with the order of a new epoch."""
        # Position in the sequence of all samples of all epochs
        position = number * batch + jnp.arange(batch)
        epoch = position[0] // n
        if order == "fixed":
            return state, position % n
        if order == "replacement":
            uniform = normals_and_uniforms(step_random_key(key, number), 0, batch)[1]
            return state, jnp.floor(uniform * n).astype(jnp.int32)
        # The number of the step is the same for all runs: orders are drawn when an epoch starts,
        # and not in every step. A batch may extend into the next epoch, whose order is therefore
        # known.
        is_new_epoch = (epoch > 0) & (epoch > (position[0] - batch) // n)
        orders = jax.lax.cond(
            is_new_epoch,
            lambda orders: jnp.stack([orders[1], _draw_order(n, key, epoch + 1)]),
            lambda orders: orders,
            state.selected,
        )
        return state._replace(selected=orders), orders[position // n - epoch, position % n]

    def step_run(
        number: IntScalar,
        data: Data,
        state: Weights,
        last_good: IntScalar,
        observed: PyTree,
        key: RandomKey,
    ) -> tuple[Weights, Int[Numeric, ""], PyTree]:
        state, samples = choose_batch(number, state, key)
        # Rows of the inputs of these samples
        inputs = (tokens * samples[:, None] + jnp.arange(tokens)).reshape(-1)
        draws = jax.tree.map(lambda leaf: leaf[samples], data.draws)
        # Only the batch is read: the cost of a step does not depend on n.
        batch_data = Data(data.inputs[inputs], data.signals[inputs], draws)
        step_key = step_random_key(key, number)
        state = _batch_step(structure, options, context, batch_data, state, step_key, number)
        observed = observer.observe(
            structure, context.parameters, arguments, observed, number + 1, state
        )
        return state, jnp.where(is_finite(state), number + 1, last_good), observed

    def step_runs(number: IntScalar, carry: Runs) -> Runs:
        data_axis = None if options.shared else 0
        step = jax.vmap(partial(step_run, number), in_axes=(data_axis, 0, 0, 0, 0))
        return step(data, *carry, keys)

    initial = (state, jnp.broadcast_to(first, keys.shape), observed)
    return jax.lax.fori_loop(first, end, step_runs, initial)


def _batch_step(
    structure: Structure,
    options: Options,
    context: StepContext,
    data: Data,
    state: Weights,
    key: RandomKey,
    number: IntScalar,
) -> Weights:
    """One step of one run on the samples of a batch: W <- W - lr/B sum_mu dloss_mu/dW."""
    rows, head, first_risk = state.rows, state.head, state.first_risk
    dtype = rows.dtype
    parameters, rates = step_parameters(context.parameters, context.hyperparameters, number)
    parameters = as_dtype(parameters, dtype)
    lr, head_rate = (rates[name].astype(dtype) for name in ("lr", "head_rate"))
    decay_of_head = parameters.get("head_decay")
    stride = Stride(lr, head_rate, parameters["weight_decay"], structure, decay_of_head)
    if options.law is not None:
        # One pass over a batch of fresh samples has the same units, D = d.
        count = data.inputs.shape[0] // structure.sample.tokens.inputs_per_sample
        arguments = (structure, parameters, data, None, jnp.asarray(1 / count, dtype), key)
        source = BatchGradients(*arguments, options.edges)
        unit = jnp.asarray(context.dimension, dtype)
        return update_step(options.law, rates, stride, state, source, number, None, unit)
    risk, (h, head_h) = loss_and_slopes(structure, parameters, data, rows, head)
    # The gradient is the mean over the batch, also over one that crosses the end of an epoch.
    count = head_h.shape[0]
    gradient = weighted_inputs(h, data.inputs) / count
    head_gradient = jnp.sum(head_h, axis=0) / count
    moved, head = stride.move(rows, head, (gradient, head_gradient))
    if structure.constraint.fixes_norms:
        moved = mark_divergence(moved, lr * gradient, risk, first_risk)
    return state._replace(rows=moved, head=head)
