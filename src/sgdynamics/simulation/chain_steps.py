"""Steps of the exact chain: one step, a step with its fold, and all steps of a span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from sgdynamics.algorithms.one_pass import Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, Scalar
from sgdynamics.base.controls import alpha_of_steps, values_at
from sgdynamics.problems.constraints import NONE
from sgdynamics.simulation.chain_batch import ChainBatch, segment_inputs, segment_kicks
from sgdynamics.simulation.compressed import fold, overlaps, rotate_to_input
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.span_draws import SpanDraws

# Parameters of the problem, hyperparameters of the algorithm, and the dimension.
Model = tuple[Parameters, Parameters, Scalar]
# (records, steps made, overlaps of the run) -> records: what an observation adds after a step.
ObserveRun = Callable[[PyTree, IntScalar, dict[str, Numeric]], PyTree]


class StepSamples(NamedTuple):
    """Everything random of one step.

    Attributes
    ----------
    x : array, (inputs, columns)
        Inputs in the compressed space.
    loss_argument : pytree
        Fourth arguments of the loss.
    outside : array, (blocks, columns, columns)
        Bartlett factors of the segment.
    kicks : array, (p, columns), optional
        The update's own noise.
    """

    x: Numeric
    loss_argument: PyTree
    outside: Numeric
    kicks: Numeric | None = None


def chain_step(
    layout: Layout,
    values: tuple[Parameters, Parameters],
    rate: Scalar,
    state: Rows,
    samples: tuple[Any, ...],
    dimension: Scalar | None = None,
    index: IntScalar = 0,
) -> Rows:
    """One step on the rows of the compressed space, without a fold.

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    values : tuple
        Parameters of the problem and hyperparameters of the algorithm at this step.
    rate : float
        The step size lr/D.
    state : Rows
        The state of the run.
    samples : StepSamples
        Inputs and noise of the step, or a tuple of its fields.
    dimension : float, optional
        The dimension d. Plain SGD does not need it.
    index : int, default 0
        Index of the step.
    """
    parameters, hyperparameters = values
    # The same step function serves direct simulations: only the columns differ.
    stride = Stride(
        rate,
        hyperparameters["head_rate"],
        parameters["weight_decay"],
        layout.structure,
        parameters.get("head_decay"),
    )
    batch = ChainBatch(layout, parameters, dimension, *samples)
    return take_step(layout.update, hyperparameters, state, batch, stride, dimension, index)


def step_and_fold(
    layout: Layout,
    model: Model,
    state: Rows,
    draws: SpanDraws,
    index: IntScalar,
    records: PyTree,
    observe: ObserveRun | None,
) -> tuple[Rows, PyTree]:
    """One step with its fold, of a layout with single steps.

    The law is that of `run_span`. The order of operations is chosen for straight-line code on
    scalars (`gpu.chain_step`), in which known zeros cost nothing.
    """
    parameters, hyperparameters, dimension = model
    alpha = alpha_of_steps(index, layout.batch, dimension)
    inputs, loss_arguments = segment_inputs(layout, parameters, draws, jnp.reshape(alpha, 1))
    kicks = segment_kicks(layout, draws)
    # Schedules take their values at the start of the step.
    current, rates = values_at((parameters, hyperparameters), alpha)
    # The segment has one step.
    x, loss_argument, kicks = jax.tree.map(lambda leaf: leaf[0], (inputs, loss_arguments, kicks))
    if layout.inputs == 1 and kicks is None and len(layout.compressed_blocks):
        rows, x = rotate_to_input(layout, state.rows, x)
        state = state._replace(rows=rows)
    # A fold does not change the lengths of rows. On the sphere they are therefore computed before
    # the fold and divided out after it, so that neither root waits for the other.
    normalises_last = layout.structure.constraint.fixes_norms and layout.update is None
    step_layout = layout
    if normalises_last:
        step_layout = replace(layout, structure=replace(layout.structure, constraint=NONE))
    state = chain_step(
        step_layout,
        (current, rates),
        rates["lr"] / dimension,
        state,
        StepSamples(x, loss_argument, draws.outside, kicks),
        dimension,
        index,
    )
    rows = fold(layout, state.rows)
    if normalises_last:
        rows = rows * jax.lax.rsqrt(jnp.sum(state.rows**2, axis=-1, keepdims=True))
    state = state._replace(rows=rows)
    if observe is not None:
        # A fold does not change overlaps, so that records do not depend on it.
        records = observe(records, index + 1, overlaps(layout, parameters, state))
    return state, records


def run_span(
    layout: Layout,
    model: Model,
    state: Rows,
    draws: SpanDraws,
    interval: tuple[IntScalar, IntScalar, IntScalar],
    records: PyTree,
    observe: ObserveRun | None,
) -> tuple[Rows, PyTree]:
    """Make those steps of a span that lie in [since, end).

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    model : tuple
        Parameters of the problem, hyperparameters of the algorithm, and the dimension.
    state : Rows
        The state of the run.
    draws : SpanDraws
        Random numbers of the span.
    interval : tuple of int
        Index of the first step of the span, `since` and `end`.
    records : pytree
        Records of the observation.
    observe : callable or None
        Function (records, steps made, overlaps) that updates the records after each step, for
        instance with the first step at which the run has left a plateau.
    """
    (parameters, hyperparameters, dimension), (first, since, end) = model, interval
    indices = first + jnp.arange(layout.span_steps).reshape(layout.folds, layout.steps)
    # The loop always has the length of a span, so that one program serves all save points. Steps
    # outside of the interval are computed and discarded.
    active = (indices >= since) & (indices < end)

    def make_segment(
        carry: tuple[Rows, PyTree],
        segment: tuple[SpanDraws, Bool[Numeric, " steps"], Int[Numeric, " steps"]],
    ) -> tuple[tuple[Rows, PyTree], None]:
        """The steps between two folds, and the fold."""
        draws, active, indices = segment
        alpha = jnp.asarray(alpha_of_steps(indices, layout.batch, dimension))
        inputs, loss_arguments = segment_inputs(layout, parameters, draws, alpha)
        kicks = segment_kicks(layout, draws)

        def make_step(
            carry: tuple[Rows, PyTree],
            sample: tuple[Numeric, PyTree, Numeric | None, Bool[Numeric, ""], Int[Numeric, ""]],
        ) -> tuple[tuple[Rows, PyTree], None]:
            state, records = carry
            x, loss_argument, kicks, is_active, index = sample
            current, rates = values_at(
                (parameters, hyperparameters), alpha_of_steps(index, layout.batch, dimension)
            )
            rate = jnp.where(is_active, rates["lr"] / dimension, 0.0)
            stepped = chain_step(
                layout,
                (current, rates),
                rate,
                state,
                StepSamples(x, loss_argument, draws.outside, kicks),
                dimension,
                index,
            )
            # A plain step of size 0 changes nothing. An update changes its memory even then, and
            # its state must be selected.
            if layout.update is not None:
                stepped = jax.tree.map(partial(jnp.where, is_active), stepped, state)
            if observe is not None:
                updated = observe(records, index + 1, overlaps(layout, parameters, stepped))
                records = jax.tree.map(partial(jnp.where, is_active), updated, records)
            return (stepped, records), None

        samples = (inputs, loss_arguments, kicks, active, indices)
        (state, records), _ = jax.lax.scan(make_step, carry, samples)
        # A segment whose last steps are beyond the end keeps its new columns, and the next call
        # replays its random numbers from the same key: the place of the stop changes nothing.
        rows = jnp.where(active[-1], fold(layout, state.rows), state.rows)
        return (state._replace(rows=rows), records), None

    (state, records), _ = jax.lax.scan(make_segment, (state, records), (draws, active, indices))
    return state, records
