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
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import first_selection, next_selection
from sgdynamics.base.arrays import DType, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.path_state import pad_axes
from sgdynamics.fixed_data.paths import multiply, over_sets
from sgdynamics.fixed_data.sample_space import SampleData, sample_space_gradients
from sgdynamics.fixed_data.setup import LARGEST, InitialDraws, Setup, StepParameters
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.sample import as_dtype

SINGULAR = 1e-10  # smaller conditional variances, relative to the variance of a field, are rounding
# A field whose variance grows by more than this factor in one step diverges.
DIVERGENCE_FACTOR = 16.0


class ResponseSums(NamedTuple):
    """Sums over all paths that one pass computes for the next step."""

    z: Float[Numeric, "p capacity"]  # <g, z>
    g: Float[Numeric, "p capacity"]  # <g, g(s)>
    head: Float[Numeric, " p"]


class OrderParameters(NamedTuple):
    """Overlaps, responses and Lc. Slots: the signals, then the rows at each time."""

    overlaps: Float[Numeric, "capacity blocks capacity"]  # G_b
    responses: Float[Numeric, "capacity blocks capacity"]  # R_b(t, s)
    inverse: Float[Numeric, "capacity capacity"]  # Lc^-1
    rates: Float[Numeric, " capacity"]  # lr of each step, divided by the norm on the sphere
    noise: Float[Numeric, "blocks capacity"]  # e_b (d_b - N_b(s))
    sampled: Float[Numeric, " blocks"]  # N_b
    head: Float[Numeric, " p"]
    field_from_z: Float[Numeric, "p capacity"]  # rows of Lc of the present fields
    field_from_g: Float[Numeric, "p capacity"]  # their memory of earlier gradients


class ResponsePaths(NamedTuple):
    """One set of paths, in chunks; z and g have the storage precision, all else float64."""

    z: Float[Array, "chunks capacity n"]
    g: Float[Array, "chunks capacity n"]
    z_now: Float[Numeric, "chunks p n"]  # z of the present time, stored after it is used
    fields: Float[Numeric, "chunks n p"]
    selected: Bool[Numeric, "chunks n"]
    signals: Float[Numeric, "chunks n K"]
    draws: PyTree  # label noise, ..., (chunks, n, ...)
    counters: Any  # (3,) uint64: first counters of normals, of white noise, of uniforms
    sums: ResponseSums
    order: OrderParameters
    failed_step: IntScalar  # first step with linearly dependent fields, -1 if there was none


class InitialFields(NamedTuple):
    """Overlaps (blocks, directions, directions) of signals and rows at time 0, and their fields."""

    overlaps: np.ndarray
    factor: np.ndarray  # Lc
    # Lc^-1 on the fields that are not linear combinations of earlier ones; the others need no
    # derivative, because no response goes back to time 0.
    inverse: np.ndarray
    is_singular: bool  # whether some fields are such linear combinations


def initial_fields(
    frame: np.ndarray, T: np.ndarray, L: np.ndarray, values: np.ndarray
) -> InitialFields:
    """From signals (blocks, K, k), rows [T | L] (blocks, p, k + p), and eigenvalues."""
    signals = np.concatenate([frame, np.zeros((*frame.shape[:2], L.shape[-1]))], axis=-1)
    vectors = np.concatenate([signals, np.concatenate([T, L], axis=-1)], axis=1)
    overlaps = vectors @ np.swapaxes(vectors, -1, -2)
    covariance = np.einsum("b,bij->ij", values, overlaps)
    count, variance = len(covariance), np.diagonal(covariance)
    factor, inverse = np.zeros((2, count, count))
    is_singular = False
    # Cholesky's decomposition row by row, with rows of zero conditional variance left out of the
    # inverse
    for i in range(count):
        on_earlier = inverse[:i, :i] @ covariance[i, :i]
        conditional = variance[i] - on_earlier @ on_earlier
        factor[i, :i] = on_earlier
        if conditional > SINGULAR * variance[i]:
            factor[i, i] = np.sqrt(conditional)
            inverse[i, :i] = -(on_earlier @ inverse[:i, :i]) / factor[i, i]
            inverse[i, i] = 1 / factor[i, i]
        else:
            is_singular = True
    return InitialFields(overlaps, factor, inverse, is_singular)


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
    k, p, blocks = structure.signals, structure.width, structure.blocks
    first, n = setup.initial_directions, normals.shape[-1]
    values = eigenvalues(parameters)

    def pad(block: Numeric, *shape: int) -> Any:
        zeros = jnp.zeros(shape)
        block = jnp.asarray(block, zeros.dtype)
        return jax.lax.dynamic_update_slice(zeros, block, (0,) * len(shape))

    overlaps = jnp.moveaxis(jnp.asarray(start.overlaps), 0, 1)
    # N_b = e_b tr Lc^-1 G_b Lc^-T
    sampled = values * jnp.einsum("zi,ibj,zj->b", start.inverse, overlaps, start.inverse)
    noise = (values * (step.block_sizes - sampled))[:, None]
    # R_b(0, 0) = 1
    responses = jnp.zeros((capacity, blocks, capacity))
    responses = responses.at[k:first, :, k:first].set(jnp.eye(p)[:, None, :])
    order = OrderParameters(
        overlaps=pad(overlaps, capacity, blocks, capacity),
        responses=responses,
        inverse=pad(start.inverse, capacity, capacity),
        rates=jnp.zeros(capacity),
        noise=jnp.zeros((blocks, capacity)).at[:, k:first].set(noise),
        sampled=sampled,
        head=jnp.asarray(head, jnp.float64),
        field_from_z=pad(start.factor[k:], p, capacity),
        field_from_g=jnp.zeros((p, capacity)),
    )
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
        order=order,
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


def _times(left: Float[Numeric, "m k"], right: Float[Numeric, "*b k n"]) -> Any:
    return multiply(left, right).astype(jnp.float64)


def _at_slot(matrix: Numeric, slot: IntScalar, p: int) -> Any:
    """The p rows of a matrix at a slot."""
    return jax.lax.dynamic_slice_in_dim(matrix, slot, p, 0)


def _insert(matrix: Numeric, block: Numeric, *position: Any) -> Any:
    return jax.lax.dynamic_update_slice(matrix, block.astype(matrix.dtype), position)


class _NextRows(NamedTuple):
    """The rows W(t + 1): overlaps with all vectors before, with themselves, responses and rates."""

    overlaps: Float[Numeric, "p blocks capacity"]
    own_overlaps: Float[Numeric, "p blocks p"]
    responses: Float[Numeric, "p blocks capacity"]
    rates: Float[Numeric, " capacity"]


def _next_rows(
    setup: Setup, step: StepParameters, order: OrderParameters, sums: ResponseSums, now: IntScalar
) -> _NextRows:
    """Rows of G_b and R_b at time t + 1, from the equations of the module's docstring."""
    structure, lr = setup.structure, step.hyperparameters["lr"]
    p, blocks, capacity = structure.width, structure.blocks, order.rates.shape[0]
    values = eigenvalues(step.parameters)[:, None]
    shrink = 1 - lr * step.parameters["weight_decay"]
    after = now + p
    unit_response = jnp.broadcast_to(jnp.eye(p)[:, None], (p, blocks, p))

    def combine(
        left: Float[Numeric, "m capacity"], right: Float[Numeric, "capacity blocks capacity"]
    ) -> Float[Numeric, "m blocks capacity"]:
        return _times(left, right.reshape(capacity, -1)).reshape(-1, blocks, capacity)

    # K = <g z> Lc^-1, and the covariance of the noise xi with its response: the noise of step s
    # acts on W(s + 1), so that it is moved by one time.
    K = _times(sums.z, order.inverse)
    rates = _insert(order.rates, jnp.full(p, lr), now)
    noise = jnp.roll(sums.g[:, None] * rates * order.noise, p, axis=-1)  # (p, blocks, capacity)
    # Doubled for one row, as in `multiply`
    rows = jnp.concatenate([noise, noise]) if p == 1 else noise
    from_noise = jnp.einsum("pbs,jbs->pbj", rows, order.responses, precision="highest")[:p]

    # G_b(t + 1, .) = shrink G_b(t, .) - lr (e_b K G_b - <xi xi> R_b^T), and R_b likewise without
    # noise
    overlaps = shrink * _at_slot(order.overlaps, now, p)
    overlaps = overlaps - lr * (values * combine(K, order.overlaps) - from_noise)
    responses = shrink * _at_slot(order.responses, now, p)
    responses = responses - lr * values * combine(K, order.responses)
    own_responses = _insert(responses, unit_response, 0, 0, after)
    own = shrink * jnp.swapaxes(jax.lax.dynamic_slice_in_dim(overlaps, now, p, 2), 0, 2)
    own = own - lr * (
        values * jnp.einsum("pj,qbj->pbq", K, overlaps)
        - jnp.einsum("pbs,qbs->pbq", noise, own_responses)
    )

    # On the sphere the rows are divided by their norms, and so is lr in all later equations.
    scale = jnp.ones(p)
    if structure.constraint.fixes_norms:
        scale = 1 / jnp.sqrt(jnp.diagonal(jnp.sum(own, axis=1)))
        rates = _insert(order.rates, lr * scale, now)
    own = own * scale[:, None, None] * scale
    overlaps = _insert(overlaps * scale[:, None, None], own, 0, 0, after)
    responses = _insert(responses * scale[:, None, None], unit_response, 0, 0, after)
    return _NextRows(overlaps, own, responses, rates)


def _next_order(
    setup: Setup,
    step: StepParameters,
    order: OrderParameters,
    sums: ResponseSums,
    number: IntScalar,
) -> tuple[OrderParameters, Any, Any]:
    """The order parameters after a step, whether they are finite, and whether the step is valid.

    A step is invalid if its fields are linear combinations of earlier ones although nothing
    diverges.
    """
    step = step.at_step(number)
    structure, sizes = setup.structure, step.block_sizes
    k, p, blocks = structure.signals, structure.width, structure.blocks
    capacity, values = order.rates.shape[0], eigenvalues(step.parameters)
    now = k + p * number
    after = now + p
    rows = _next_rows(setup, step, order, sums, now)
    overlaps = _insert(order.overlaps, jnp.swapaxes(rows.overlaps, 0, 2), 0, 0, after)
    overlaps = _insert(overlaps, rows.overlaps, after, 0, 0)

    # The next rows of Lc and Lc^-1: covariance of the new fields with the earlier ones, and what
    # is left
    covariance = jnp.einsum("b,pbj->pj", values, rows.overlaps)
    with_earlier = jnp.where(jnp.arange(capacity) < after, covariance, 0.0)
    on_earlier = _times(with_earlier, order.inverse.T)
    variance = jax.lax.dynamic_slice_in_dim(covariance, after, p, 1)
    conditional = variance - on_earlier @ on_earlier.T
    scale = jnp.sqrt(jnp.diagonal(variance))
    # Cholesky's decomposition of fields of variance 1, symmetrised against rounding
    own = jnp.linalg.cholesky((conditional + conditional.T) / 2 / (scale[:, None] * scale))
    is_regular = jnp.all(jnp.diagonal(own) > SINGULAR**0.5)
    own = scale[:, None] * own
    own_inverse = jax.scipy.linalg.solve_triangular(own, jnp.eye(p), lower=True)
    inverse_rows = _insert(-own_inverse @ _times(on_earlier, order.inverse), own_inverse, 0, after)

    # N_b grows by e_b |Lc^-1 v_b|^2 of the new rows
    transformed = _times(inverse_rows, overlaps.reshape(capacity, -1))
    transformed = transformed.reshape(-1, blocks, capacity)
    sampled = order.sampled + values * jnp.einsum("pbj,pj->b", transformed, inverse_rows)
    noise = jnp.broadcast_to((values * (sizes - sampled))[:, None], (blocks, p))
    # Memory of the fields: lr d sum_b e_b f_b R_b(t, s + 1) g(s), moved back by one time
    memory = jnp.einsum("b,pbj->pj", values * sizes, rows.responses)
    head = order.head
    if structure.trained:
        head_rate = step.hyperparameters["head_rate"] * step.hyperparameters["lr"]
        head = head - head_rate * (sums.head + step.parameters["weight_decay"] * head)

    own_overlaps = jnp.sum(rows.own_overlaps, axis=1)
    is_finite = jnp.all(jnp.abs(own_overlaps) < LARGEST**2) & jnp.all(jnp.abs(head) < LARGEST)
    former = jax.lax.dynamic_slice_in_dim(_at_slot(order.overlaps, now, p), now, p, 2)
    former_variance = jnp.einsum("b,pbp->p", values, former)
    diverges = jnp.any(jnp.diagonal(variance) > DIVERGENCE_FACTOR * jnp.max(former_variance))
    following = OrderParameters(
        overlaps=overlaps,
        responses=_insert(order.responses, rows.responses, after, 0, 0),
        inverse=_insert(order.inverse, inverse_rows, after, 0),
        rates=rows.rates,
        noise=_insert(order.noise, noise, 0, after),
        sampled=sampled,
        head=head,
        field_from_z=_insert(on_earlier, own, 0, after),
        field_from_g=jnp.roll(memory, -p, axis=1) * rows.rates,
    )
    return following, is_finite & is_regular, ~is_finite | is_regular | diverges


class _ChunkInputs(NamedTuple):
    """Arrays of a chunk that a pass reads."""

    z: Any
    g: Any
    z_now: Any
    used: Any  # how often the next step uses each sample
    signals: Any
    draws: Any


class _FieldWeights(NamedTuple):
    """Coefficients of the fields, from_z z - from_g g, and the head."""

    from_z: Any
    from_g: Any
    head: Any


def _process_chunk(
    setup: Setup,
    step: StepParameters,
    samples: int,
    weights: _FieldWeights,
    slot: IntScalar,
    chunk: _ChunkInputs,
) -> tuple[ResponseSums, tuple[Any, Any]]:
    """One chunk of a pass: its sums, fields and gradients."""
    p, z, g = setup.structure.width, chunk.z, chunk.g
    if jax.default_backend() == "cpu":  # in its cache, float64 costs nothing to read
        z, g = z.astype(jnp.float64), g.astype(jnp.float64)
    z_now = chunk.z_now.astype(jnp.float64)
    # lambda(t) = eta(t) - memory; z of the present time is not in the stored z yet.
    own = jax.lax.dynamic_slice_in_dim(weights.from_z, slot, p, 1)
    fields = (_times(weights.from_z, z) + own @ z_now - _times(weights.from_g, g)).T
    data = SampleData(chunk.used, samples, chunk.signals, chunk.draws)
    gradients, head = sample_space_gradients(setup, step, data, fields, weights.head)
    # Rounded to the storage precision, so that sums and memory agree
    gradients = gradients.astype(chunk.g.dtype).astype(jnp.float64)
    on_z = _insert(_times(gradients, z.T), gradients @ z_now.T, 0, slot)
    on_g = _insert(_times(gradients, g.T), gradients @ gradients.T, 0, slot)
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
    has_sums: Any,
    visits: Any,
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
    used = visits if setup.in_cells else selected
    inputs = _ChunkInputs(paths.z, paths.g, paths.z_now, used, paths.signals, paths.draws)
    process = partial(_process_chunk, setup, step.at_step(number), chunks * n)
    order = paths.order
    weights = _FieldWeights(order.field_from_z, order.field_from_g, order.head)
    if jax.default_backend() == "cpu" and chunks > 1:

        def add_chunk(total: ResponseSums, chunk: _ChunkInputs) -> tuple[Any, Any]:
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
        z=_insert(paths.z, paths.z_now, 0, slot, 0),
        g=_insert(paths.g, g, 0, slot, 0),
        z_now=_draw_normals(paths, number + 1),
        fields=fields,
        selected=selected,
        sums=sums,
    )


def slot_count(setup: Setup, steps: Any) -> Any:
    """Number of slots after some steps: the signals, and the rows at all times."""
    return setup.structure.signals + setup.structure.width * (steps + 1)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance_paths(
    setup: Setup,
    step: StepParameters,
    paths: ResponsePaths,
    has_sums: Any,
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

    def continues(carry: tuple[Any, ...]) -> Any:
        number, _, _, has_sums = carry
        return ~has_sums | ((number < end) & (slot_count(setup, number + 1) <= capacity))

    def advance_order(paths: ResponsePaths, number: IntScalar) -> tuple[OrderParameters, Any, Any]:
        order, is_finite, is_valid = _next_order(setup, step, paths.order, paths.sums, number)
        fails = (paths.failed_step < 0) & ~is_valid
        return order, jnp.where(fails, number, paths.failed_step), is_finite

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, paths, last_good, has_sums = carry
        # Operands of a conditional may be copied: the large arrays are left out.
        small = paths._replace(**{name: None for name in _PATHS_LAST + _PATHS_FIRST})
        order, failed_step, is_finite = jax.lax.cond(
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

        def pass_over(paths: ResponsePaths, visits: Any) -> ResponsePaths:
            return _pass_over_paths(setup, step, paths, following, has_sums, visits)

        paths = over_sets(pass_over, sets)(paths, visits)
        last_good = jnp.where(is_finite | ~has_sums, following, last_good)
        return following, paths, last_good, jnp.bool_(True)

    number, paths, last_good, _ = jax.lax.while_loop(
        continues, advance, (number, paths, last_good, has_sums)
    )
    return paths, number, last_good


def observe(
    setup: Setup, parameters: Parameters, paths: ResponsePaths, number: IntScalar
) -> dict[str, Any]:
    """M and Q per covariance block, a, and the mean loss over the paths, of one set at its step."""
    structure = setup.structure
    k, p, order = structure.signals, structure.width, paths.order
    slot = k + p * number
    rows = jnp.moveaxis(_at_slot(order.overlaps, slot, p), 0, 1)  # (blocks, p, capacity)
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
