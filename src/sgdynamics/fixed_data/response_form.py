"""Paths of the effective process in the response form: fields, overlaps and response functions.

A step reads the paths of one covariance block, whatever their number. A path stores its fields,
not the data behind them. Block b has the eigenvalue e_b and the share f_b of the d dimensions.
The signals and the rows W(0), W(1), ... are vectors v with overlaps G_b = v_b v_b^T in block b
(P_b, M_b and C_b(t, t') in one matrix). Then

    eta = Lc z,   Lc Lc^T = sum_b e_b G_b,   z standard normal,
    lambda(t) = eta(t) - sum_{s<t} lr d sum_b e_b f_b R_b(t, s+1) g(s),
    K(t, .) = <g(t) z> Lc^-1   (Stein's formula: the mean derivative of g(t) in each eta),
    W_b(t+1) = (1 - lr decay) W_b(t) - lr (e_b K(t, .) v_b + xi_b(t)),
    <xi_b(t) xi_b(s)> = e_b (d_b - N_b(s)) <g(t) g(s)>,   s <= t,

from which the next rows of G_b and of the responses R_b follow: blocks times steps squared
numbers, and no data along the directions of each block. <.> are sums over n paths, g is the
gradient of the mean over them, and d_b = f_b n/samples_per_dimension.

A sum over n paths differs from its mean by a random part of covariance <g(t) g(s)> for each z. It
moves W_b like noise, by e_b Lc^-1 v_b along z. All z together contribute the noise e_b N_b <g g>,
with N_b(s) = tr e_b Lc^-1 G_b Lc^-T over the vectors v at time s. The equations contain this
noise already, and xi must not contain it again. The sum of all N_b is the number of vectors v.

Lc must not be singular: each step has to add noise of its own, as fresh selections do.

This module evolves the paths; `fixed_data.response_order` evolves G_b, R_b and Lc.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt64

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import first_selection, next_selection
from sgdynamics.base.arrays import BoolScalar, DType, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.path_state import pad_axes
from sgdynamics.fixed_data.paths import over_sets
from sgdynamics.fixed_data.response_order import (
    InitialFields,
    OrderParameters,
    ResponseSums,
    advance_order_parameters,
    initial_order,
    insert,
    multiply_float64,
    rows_at_slot,
    slot_count,
)
from sgdynamics.fixed_data.sample_space import SampleData, sample_space_gradients
from sgdynamics.fixed_data.setup import InitialDraws, Setup, StepParameters
from sgdynamics.samples.sample import as_dtype

# Step number, sets of paths, the last finite step of each set, and whether the sums belong to the
# present weights
Carry = tuple[IntScalar, "ResponsePaths", Int[Numeric, " sets"], BoolScalar]


class ResponsePaths(NamedTuple):
    """One set of paths, in chunks; z and g have the storage precision, all else float64."""

    z: Float[Array, "chunks capacity n"]
    g: Float[Array, "chunks capacity n"]
    z_now: Float[Numeric, "chunks p n"]  # z of the present time, stored after it is used
    fields: Float[Numeric, "chunks n p"]
    selected: Bool[Numeric, "chunks n"]
    signals: Float[Numeric, "chunks n K"]
    draws: PyTree  # label noise, ..., (chunks, n, ...)
    counters: UInt64[Numeric, "3"]  # first counters of normals, of white noise, of uniforms
    sums: ResponseSums
    order: OrderParameters
    failed_step: IntScalar  # first step with linearly dependent fields, -1 if there was none


def initial_set(
    setup: Setup,
    capacity: int,
    storage: DType,
    step: StepParameters,
    start: InitialFields,
    head: Float[Numeric, " p"],
    draws: InitialDraws,
    counters: Numeric,
) -> ResponsePaths:
    """One set of paths at step 0, in one chunk, without sums; the normals (directions, n) are z."""
    parameters, normals = step.parameters, draws.normals
    structure, sample = setup.structure, setup.structure.sample
    k, p = structure.signals, structure.width
    first, n = setup.initial_directions, normals.shape[-1]
    selected = jnp.ones(n, bool)
    if setup.selects:
        selected = first_selection(step.hyperparameters, draws.uniform)
    sample_draws = as_dtype(sample.loss_argument(sample.draw(parameters, draws.noise)), np.float64)
    return ResponsePaths(
        z=jnp.zeros((1, capacity, n), storage).at[0, :k].set(normals[:k].astype(storage)),
        g=jnp.zeros((1, capacity, n), storage),
        z_now=normals[None, k:first].astype(storage),
        fields=jnp.zeros((1, n, p)),
        selected=selected[None],
        signals=(start.factor[:k, :k] @ normals[:k]).T[None],
        draws=jax.tree.map(lambda leaf: leaf[None], sample_draws),
        counters=counters,
        sums=ResponseSums(jnp.zeros((p, capacity)), jnp.zeros((p, capacity)), jnp.zeros(p)),
        order=initial_order(setup, capacity, step, start, head),
        failed_step=jnp.full((), -1, jnp.int64),
    )


_PATHS_LAST = ("z", "g", "z_now")  # arrays whose last axis are the paths
_PATHS_FIRST = ("fields", "selected", "signals", "draws")


def split_paths(paths: ResponsePaths, chunks: int) -> ResponsePaths:
    """The same paths, of one chunk, in several chunks."""

    def split_last(leaf: Numeric) -> Numeric:
        return jnp.moveaxis(leaf[0].reshape(leaf.shape[1], chunks, -1), 1, 0)

    def split_first(leaf: Numeric) -> Numeric:
        return leaf.reshape(chunks, -1, *leaf.shape[2:])

    changes = {name: split_last(getattr(paths, name)) for name in _PATHS_LAST}
    for name in _PATHS_FIRST:
        changes[name] = jax.tree.map(split_first, getattr(paths, name))
    return paths._replace(**changes)


@partial(jax.jit, static_argnums=1)
def with_capacity(paths: ResponsePaths, capacity: int) -> ResponsePaths:
    """Sets of paths (leading axis) with memory for more slots."""
    added = capacity - paths.z.shape[2]
    order, sums = paths.order, paths.sums
    vectors = ("rates", "noise", "field_from_z", "field_from_g")
    order = order._replace(
        overlaps=pad_axes(order.overlaps, added, -1, -3),
        responses=pad_axes(order.responses, added, -1, -3),
        inverse=pad_axes(order.inverse, added, -1, -2),
        **{name: pad_axes(getattr(order, name), added, -1) for name in vectors},
    )
    sums = sums._replace(z=pad_axes(sums.z, added, -1), g=pad_axes(sums.g, added, -1))
    z, g = pad_axes(paths.z, added, -2), pad_axes(paths.g, added, -2)
    return paths._replace(z=z, g=g, sums=sums, order=order)


class _ChunkInputs(NamedTuple):
    """Arrays of a chunk that a pass reads; of all chunks in a first axis."""

    z: Float[Numeric, "*chunks capacity n"]
    g: Float[Numeric, "*chunks capacity n"]
    z_now: Float[Numeric, "*chunks p n"]
    used: Bool[Numeric, "*chunks n"] | Float[Numeric, "*chunks n"]  # visits of the next step
    signals: Float[Numeric, "*chunks n K"]
    draws: PyTree  # label noise, ..., (chunks, n, ...)


class _FieldWeights(NamedTuple):
    """Coefficients of the fields, from_z z - from_g g, and the head."""

    from_z: Float[Numeric, "p capacity"]
    from_g: Float[Numeric, "p capacity"]
    head: Float[Numeric, " p"]


# Fields (n, p) and gradients (p, n)
FieldsAndGradients = tuple[Float[Numeric, "n p"], Float[Numeric, "p n"]]


def _process_chunk(
    setup: Setup,
    step: StepParameters,
    samples: int,
    weights: _FieldWeights,
    slot: IntScalar,
    chunk: _ChunkInputs,
) -> tuple[ResponseSums, FieldsAndGradients]:
    """One chunk of a pass: its sums, fields and gradients."""
    p, z, g = setup.structure.width, chunk.z, chunk.g
    if jax.default_backend() == "cpu":  # in its cache, float64 costs nothing to read
        z, g = z.astype(jnp.float64), g.astype(jnp.float64)
    z_now = chunk.z_now.astype(jnp.float64)
    # lambda(t) = eta(t) - memory; z of the present time is not in the stored z yet.
    own = jax.lax.dynamic_slice_in_dim(weights.from_z, slot, p, 1)
    fields = (
        multiply_float64(weights.from_z, z) + own @ z_now - multiply_float64(weights.from_g, g)
    ).T
    data = SampleData(chunk.used, samples, chunk.signals, chunk.draws)
    gradients, head = sample_space_gradients(setup, step, data, fields, weights.head)
    # Rounded to the storage precision, so that sums and memory agree
    gradients = gradients.astype(chunk.g.dtype).astype(jnp.float64)
    on_z = insert(multiply_float64(gradients, z.T), gradients @ z_now.T, 0, slot)
    on_g = insert(multiply_float64(gradients, g.T), gradients @ gradients.T, 0, slot)
    return ResponseSums(on_z, on_g, head), (fields, gradients)


def _draw_normals(paths: ResponsePaths, number: IntScalar) -> Float[Numeric, "chunks p n"]:
    """z of a time, by counter: row and time in the high 32 bits, the path in the low ones."""
    chunks, p, n = paths.z_now.shape
    high = (number * p + jnp.arange(p)).astype(jnp.uint64)[:, None] << np.uint64(32)
    low = 2 * jnp.arange(chunks * n // 2).astype(jnp.uint64).reshape(chunks, 1, n // 2)
    normals = normals_at(paths.counters[0], high + low)
    return normals.reshape(chunks, p, n).astype(paths.z.dtype)


def _pass_over_paths(
    setup: Setup,
    step: StepParameters,
    paths: ResponsePaths,
    number: IntScalar,
    has_sums: BoolScalar,
    visits: Float[Numeric, "chunks n"] | None,
) -> ResponsePaths:
    """Fields, gradients and sums of one set at time `number`, for the present order parameters."""
    chunks, n = paths.selected.shape
    slot = setup.structure.signals + setup.structure.width * number
    selected = paths.selected
    if setup.selects and not setup.in_cells:
        former = step.at_step(number - has_sums).hyperparameters
        samples = jnp.arange(chunks * n).astype(jnp.uint64)
        counter = (jnp.asarray(number).astype(jnp.uint64) << np.uint64(32)) + samples
        uniform = uniforms_at(paths.counters[2], counter).reshape(chunks, n)
        selected = jnp.where(has_sums, next_selection(former, selected, uniform), selected)
    used = selected if visits is None else visits
    inputs = _ChunkInputs(paths.z, paths.g, paths.z_now, used, paths.signals, paths.draws)
    process = partial(_process_chunk, setup, step.at_step(number), chunks * n)
    order = paths.order
    weights = _FieldWeights(order.field_from_z, order.field_from_g, order.head)
    if jax.default_backend() == "cpu" and chunks > 1:

        def add_chunk(
            total: ResponseSums, chunk: _ChunkInputs
        ) -> tuple[ResponseSums, FieldsAndGradients]:
            sums, computed = process(weights, slot, chunk)
            return jax.tree.map(jnp.add, total, sums), computed

        zero = jax.tree.map(jnp.zeros_like, paths.sums)
        sums, (fields, g) = jax.lax.scan(add_chunk, zero, inputs)
    else:
        # One copy of the weights per chunk, so that products are parallel over chunks
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (chunks, *jnp.shape(leaf))), weights
        )
        sums, (fields, g) = jax.vmap(process, in_axes=(0, None, 0))(copies, slot, inputs)
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
    return paths._replace(
        z=insert(paths.z, paths.z_now, 0, slot, 0),
        g=insert(paths.g, g, 0, slot, 0),
        z_now=_draw_normals(paths, number + 1),
        fields=fields,
        selected=selected,
        sums=sums,
    )


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance_paths(
    setup: Setup,
    step: StepParameters,
    paths: ResponsePaths,
    has_sums: BoolScalar,
    visited: Visits | None,
    number: IntScalar,
    last_good: Int[Numeric, " sets"],
    end: IntScalar,
) -> tuple[ResponsePaths, IntScalar, Int[Numeric, " sets"]]:
    """Sets of paths (leading axis) from step `number` to `end`, or until the memory is full.

    If `has_sums` is False, the sums of the initial weights are computed first. `visited` contains
    the visits of epochs, `last_good` the last steps whose order parameters are finite.
    """
    sets, chunks, capacity = paths.z.shape[:3]

    def continues(carry: Carry) -> Bool[Numeric, ""]:
        number, _, _, has_sums = carry
        return ~has_sums | (
            (number < end) & (slot_count(setup, jnp.asarray(number) + 1) <= capacity)
        )

    def advance_order(
        paths: ResponsePaths, number: IntScalar
    ) -> tuple[OrderParameters, Int[Numeric, ""], Bool[Numeric, ""]]:
        order, may_continue, is_valid = advance_order_parameters(
            setup, step, paths.order, paths.sums, number
        )
        fails = (paths.failed_step < 0) & ~is_valid
        return order, jnp.where(fails, number, paths.failed_step), may_continue

    def advance(carry: Carry) -> Carry:
        number, paths, last_good, has_sums = carry
        # Operands of a conditional may be copied: the large arrays are left out.
        small = paths._replace(**{name: None for name in _PATHS_LAST + _PATHS_FIRST})
        order, failed_step, may_continue = jax.lax.cond(
            has_sums,
            lambda small: over_sets(lambda paths: advance_order(paths, number), sets)(small),
            lambda small: (small.order, small.failed_step, jnp.ones(sets, bool)),
            small,
        )
        paths = paths._replace(order=order, failed_step=failed_step)
        following = number + has_sums
        visits = None
        if visited is not None:
            visits = visited.at(following, setup.repeats).reshape(sets, chunks, -1)

        def pass_over(
            paths: ResponsePaths, visits: Float[Numeric, "chunks n"] | None
        ) -> ResponsePaths:
            return _pass_over_paths(setup, step, paths, following, has_sums, visits)

        paths = over_sets(pass_over, sets)(paths, visits)
        last_good = jnp.where(may_continue | ~has_sums, following, last_good)
        return following, paths, last_good, jnp.bool_(True)

    number, paths, last_good, _ = jax.lax.while_loop(
        continues, advance, (number, paths, last_good, has_sums)
    )
    return paths, number, last_good


def observe(
    setup: Setup, parameters: Parameters, paths: ResponsePaths, number: IntScalar
) -> dict[str, Numeric]:
    """M and Q per covariance block, a, and the mean loss over the paths, of one set at its step."""
    structure = setup.structure
    k, p, order = structure.signals, structure.width, paths.order
    slot = k + p * number
    rows = jnp.moveaxis(rows_at_slot(order.overlaps, slot, p), 0, 1)  # (blocks, p, capacity)
    fields, signals, draws = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
        (paths.fields, paths.signals, paths.draws),
    )
    losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
        fields, signals, order.head, draws, parameters
    )
    return {
        "M": rows[..., :k],
        "Q": jax.lax.dynamic_slice_in_dim(rows, slot, p, 2),
        "a": order.head,
        "train_risk": jnp.mean(losses, axis=0),
    }
