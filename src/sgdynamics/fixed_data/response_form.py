"""Paths of the effective process in the response form: whatever the number of covariance blocks, a step reads the paths of one of them.

What is known of a path are its fields, not the data behind them. With e_b, f_b the eigenvalue and share of block b, and the signals and the
rows W(0), W(1), ... as the vectors v, of which block b has the overlaps G_b = v_b v_b^T (P_b, M_b and C_b(t, t') in one matrix),

    eta = Lc z,   Lc Lc^T = sum_b e_b G_b,   z standard normal;     lambda(t) = eta(t) - sum_{s<t} lr d sum_b e_b f_b R_b(t, s+1) g(s),
    K(t, .) = <g(t) z> Lc^-1   (Stein: the mean derivative of g(t) in each eta),
    W_b(t+1) = (1 - lr decay) W_b(t) - lr (e_b K(t, .) v_b + xi_b(t)),     <xi_b(t) xi_b(s)> = e_b (d_b - N_b(s)) <g(t) g(s)>,   s <= t,

from which rows of G_b and of the responses R_b follow: so many numbers of blocks times steps squared, and no data along each block's own
directions. <.> are sums over n paths, g the gradient of the mean over them, and d_b = f_b n/samples_per_dimension.
A sum over n paths in place of a mean is off by a random part of covariance <g(t) g(s)> for each z, which moves W_b as noise does, by
e_b Lc^-1 v_b along it: together these are e_b N_b <g g>, N_b(s) = tr e_b Lc^-1 G_b Lc^-T over the inputs known at time s, which the noise
has in it already and xi must not have again. All N_b together are the number of inputs.
Lc must not be singular: every step has to bring noise of its own, as fresh selections do.
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
from sgdynamics.algorithms.fixed_data import first_selection, next_selection, numbers_of_step
from sgdynamics.base.arrays import DType, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.conditioning import LARGEST, Setup, look
from sgdynamics.fixed_data.paths import together
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.sample import as_dtype

SINGULAR = 1e-10  # of the variance of a field, what earlier fields do not tell: below this share it is rounding
JUMP = (
    16.0  # times the variance of the step before: a field that grows so much in one step diverges
)


class Sums(NamedTuple):
    """What a pass over the paths sums up."""

    z: Float[Numeric, "p room"]  # <g, z>
    g: Float[Numeric, "p room"]  # <g, g(s)>
    head: Float[Numeric, " p"]


class Scalars(NamedTuple):
    """What is known of the weights. Slots are the signals, then the rows at each time."""

    overlaps: Float[Numeric, "room blocks room"]  # G_b
    responses: Float[Numeric, "room blocks room"]  # R_b(t, s)
    inverse: Float[Numeric, "room room"]  # Lc^-1
    rates: Float[Numeric, " room"]  # lr of each step, brought to the sphere where there is one
    free: Float[Numeric, "blocks room"]  # e_b (d_b - N_b(s))
    known: Float[Numeric, " blocks"]  # N_b
    head: Float[Numeric, " p"]
    on_z: Float[Numeric, "p room"]  # the present fields from z
    on_g: Float[Numeric, "p room"]  # and from earlier gradients


class ResponsePaths(NamedTuple):
    """One set of paths, cut into chunks; z and g are kept in the dtype of storage, all else in float64."""

    z: Float[Array, "chunks room n"]
    g: Float[Array, "chunks room n"]
    fresh: Float[Numeric, "chunks p n"]  # z of the present time, in memory once it has been used
    fields: Float[Numeric, "chunks n p"]
    selected: Bool[Numeric, "chunks n"]
    signals: Float[Numeric, "chunks n K"]
    given: PyTree  # what the loss takes beside them, (chunks, n, ...)
    origins: Any  # (3,) uint64: where the counters of normals, of others, and of uniforms begin
    sums: Sums
    scalars: Scalars
    lost: IntScalar  # the first step whose fields had nothing new, -1 where there was none


class Start(NamedTuple):
    """The overlaps of signals and rows at time 0, (blocks, first, first), and what follows for their fields."""

    overlaps: np.ndarray
    factor: np.ndarray  # Lc
    inverse: np.ndarray  # of the fields that earlier ones do not tell: what is told needs no derivative, as no response goes back to time 0
    singular: bool  # whether there are such fields


def start_of(frame: np.ndarray, T: np.ndarray, L: np.ndarray, values: np.ndarray) -> Start:
    """From frames of the signals (blocks, K, k), rows [T | L] (blocks, p, k + p), and eigenvalues."""
    signals = np.concatenate([frame, np.zeros((*frame.shape[:2], L.shape[-1]))], axis=-1)
    vectors = np.concatenate([signals, np.concatenate([T, L], axis=-1)], axis=1)
    overlaps = vectors @ np.swapaxes(vectors, -1, -2)
    covariance = np.einsum("b,bij->ij", values, overlaps)
    count, whole = len(covariance), np.diagonal(covariance)
    factor, inverse = np.zeros((2, count, count))
    singular = False
    for i in range(count):
        along = inverse[:i, :i] @ covariance[i, :i]
        rest = whole[i] - along @ along
        factor[i, :i] = along
        if rest > SINGULAR * whole[i]:
            factor[i, i] = np.sqrt(rest)
            inverse[i, :i], inverse[i, i] = (
                -(along @ inverse[:i, :i]) / factor[i, i],
                1 / factor[i, i],
            )
        else:
            singular = True
    return Start(overlaps, factor, inverse, singular)


def initial(
    setup: Setup,
    room: int,
    storage: DType,
    given: tuple[Any, ...],
    start: Start,
    head: Float[Numeric, " p"],
    normals: Float[Numeric, "first n"],
    noise: Float[Numeric, "n draws"],
    uniform: Float[Numeric, " n"],
    origins: Numeric,
) -> ResponsePaths:
    """One set of paths at step 0, in one chunk, with nothing summed yet. `given`: parameters, algorithm, sizes of the blocks."""
    parameters, algorithm, sizes = given
    structure, sample = setup.structure, setup.structure.sample
    k, p, first, blocks, n = (
        structure.signals,
        structure.width,
        setup.first,
        structure.blocks,
        normals.shape[-1],
    )
    values = eigenvalues(parameters)

    def filled(block: Numeric, *shape: int) -> Any:
        found = jnp.zeros(shape)
        return jax.lax.dynamic_update_slice(
            found, jnp.asarray(block, found.dtype), (0,) * len(shape)
        )

    overlaps = jnp.moveaxis(jnp.asarray(start.overlaps), 0, 1)
    known = values * jnp.einsum("zi,ibj,zj->b", start.inverse, overlaps, start.inverse)
    ones = jnp.zeros((room, blocks, room)).at[k:first, :, k:first].set(jnp.eye(p)[:, None, :])
    scalars = Scalars(
        overlaps=filled(overlaps, room, blocks, room),
        responses=ones,
        inverse=filled(start.inverse, room, room),
        rates=jnp.zeros(room),
        free=jnp.zeros((blocks, room)).at[:, k:first].set((values * (sizes - known))[:, None]),
        known=known,
        head=jnp.asarray(head, jnp.float64),
        on_z=filled(start.factor[k:], p, room),
        on_g=jnp.zeros((p, room)),
    )
    selected = first_selection(algorithm, uniform) if setup.selects else jnp.ones(n, bool)
    draws = sample.drawn(parameters, noise)
    return ResponsePaths(
        z=jnp.zeros((1, room, n), storage).at[0, :k].set(normals[:k].astype(storage)),
        g=jnp.zeros((1, room, n), storage),
        fresh=normals[None, k:first].astype(storage),
        fields=jnp.zeros((1, n, p)),
        selected=selected[None],
        signals=(start.factor[:k, :k] @ normals[:k]).T[None],
        given=jax.tree.map(lambda leaf: leaf[None], as_dtype(sample.given(draws), np.float64)),
        origins=origins,
        sums=Sums(jnp.zeros((p, room)), jnp.zeros((p, room)), jnp.zeros(p)),
        scalars=scalars,
        lost=jnp.full((), -1, jnp.int64),
    )


_LAST = ("z", "g", "fresh")  # whose paths are in the last axis
_FIRST = ("fields", "selected", "signals", "given")


def cut(paths: ResponsePaths, chunks: int) -> ResponsePaths:
    """The same paths, of one chunk, in so many."""

    def last(leaf: Numeric) -> Numeric:
        return jnp.moveaxis(leaf[0].reshape(leaf.shape[1], chunks, -1), 1, 0)

    def first(leaf: Numeric) -> Numeric:
        return leaf.reshape(chunks, -1, *leaf.shape[2:])

    changed = {name: last(getattr(paths, name)) for name in _LAST}
    return paths._replace(
        **changed, **{name: jax.tree.map(first, getattr(paths, name)) for name in _FIRST}
    )


@partial(jax.jit, static_argnums=1)
def widened(paths: ResponsePaths, room: int) -> ResponsePaths:
    """Sets of paths (leading axis) with memory for more slots."""
    more = room - paths.z.shape[2]

    def padded(leaf: Numeric, *axes: int) -> Any:
        return jnp.pad(
            leaf, [(0, more if place - leaf.ndim in axes else 0) for place in range(leaf.ndim)]
        )

    one = paths.scalars
    scalars = one._replace(
        overlaps=padded(one.overlaps, -1, -3),
        responses=padded(one.responses, -1, -3),
        inverse=padded(one.inverse, -1, -2),
        **{name: padded(getattr(one, name), -1) for name in ("rates", "free", "on_z", "on_g")},
    )
    sums = paths.sums._replace(z=padded(paths.sums.z, -1), g=padded(paths.sums.g, -1))
    return paths._replace(z=padded(paths.z, -2), g=padded(paths.g, -2), sums=sums, scalars=scalars)


def _times(one: Float[Numeric, "m k"], other: Float[Numeric, "*b k n"]) -> Any:
    # one row twice: a product with a vector alone would be a loop of XLA's own, many times slower on a CPU
    two = jnp.concatenate([one, one]) if len(one) == 1 else one
    return jnp.matmul(two.astype(other.dtype), other, precision="highest").astype(jnp.float64)[
        : len(one)
    ]


def _plan(
    setup: Setup, given: tuple[Any, ...], one: Scalars, sums: Sums, number: IntScalar
) -> tuple[Scalars, Any, Any]:
    """A step, from the sums of the last pass; whether its numbers are finite, and whether the next fields have something new."""
    parameters, algorithm, sizes = given
    parameters, algorithm = numbers_of_step(parameters, algorithm, number)
    structure, lr = setup.structure, algorithm["lr"]
    k, p, blocks, room = structure.signals, structure.width, structure.blocks, one.rates.shape[0]
    values, kept = eigenvalues(parameters), 1 - lr * parameters["weight_decay"]
    now = k + p * number
    after = now + p

    def on_all(
        left: Float[Numeric, "m room"], right: Float[Numeric, "room blocks room"]
    ) -> Float[Numeric, "m blocks room"]:
        return _times(left, right.reshape(room, -1)).reshape(-1, blocks, room)

    def at(matrix: Numeric, place: IntScalar) -> Any:
        """The p rows of a matrix, or the p columns of a vector, at a slot."""
        return jax.lax.dynamic_slice_in_dim(matrix, place, p, 0)

    def put(matrix: Numeric, part: Numeric, *place: Any) -> Any:
        return jax.lax.dynamic_update_slice(matrix, part.astype(matrix.dtype), place)

    # rows at the next time, and their overlaps with all before
    K = _times(sums.z, one.inverse)
    rates = put(one.rates, jnp.full(p, lr), now)
    noise = jnp.roll(
        sums.g[:, None] * rates * one.free, p, axis=-1
    )  # (p, blocks, room), where the response to it begins
    two = jnp.concatenate([noise, noise]) if p == 1 else noise
    heard = jnp.einsum("pbs,jbs->pbj", two, one.responses, precision="highest")[:p]
    row = kept * at(one.overlaps, now) - lr * (values[:, None] * on_all(K, one.overlaps) - heard)
    response = kept * at(one.responses, now) - lr * values[:, None] * on_all(K, one.responses)
    last = put(response, jnp.broadcast_to(jnp.eye(p)[:, None], (p, blocks, p)), 0, 0, after)
    itself = kept * jnp.swapaxes(
        jax.lax.dynamic_slice_in_dim(row, now, p, 2), 0, 2
    )  # (p, blocks, p)
    itself = itself - lr * (
        values[:, None] * jnp.einsum("pj,qbj->pbq", K, row)
        - jnp.einsum("pbs,qbs->pbq", noise, last)
    )

    scale = jnp.ones(p)
    if structure.constraint.fixes_norms:
        scale = 1 / jnp.sqrt(jnp.diagonal(jnp.sum(itself, axis=1)))
        rates = put(one.rates, lr * scale, now)
    row, itself = row * scale[:, None, None], itself * scale[:, None, None] * scale
    last = put(
        response * scale[:, None, None],
        jnp.broadcast_to(jnp.eye(p)[:, None], (p, blocks, p)),
        0,
        0,
        after,
    )
    row = put(row, itself, 0, 0, after)
    overlaps = put(one.overlaps, jnp.swapaxes(row, 0, 2), 0, 0, after)
    overlaps = put(overlaps, row, after, 0, 0)

    # their fields
    covariance = jnp.einsum("b,pbj->pj", values, row)
    earlier = jnp.where(jnp.arange(room) < after, covariance, 0.0)
    along = _times(earlier, one.inverse.T)
    whole = jax.lax.dynamic_slice_in_dim(covariance, after, p, 1)
    rest = whole - along @ along.T
    scaled = jnp.sqrt(jnp.diagonal(whole))
    # of variances 1: what earlier fields do not tell of each
    own = jnp.linalg.cholesky((rest + rest.T) / 2 / (scaled[:, None] * scaled))
    there = jnp.all(jnp.diagonal(own) > SINGULAR**0.5)
    own = scaled[:, None] * own
    back = jax.scipy.linalg.solve_triangular(own, jnp.eye(p), lower=True)
    new = put(-back @ _times(along, one.inverse), back, 0, after)
    known = one.known + values * jnp.einsum("pbj,pj->b", on_all(new, overlaps), new)
    reach = jnp.einsum("b,pbj->pj", values * sizes, last)
    head = one.head
    if structure.trained:
        head = head - algorithm["head_rate"] * lr * (sums.head + parameters["weight_decay"] * head)

    before = jnp.einsum(
        "b,pbp->p", values, jax.lax.dynamic_slice_in_dim(at(one.overlaps, now), now, p, 2)
    )
    fine = jnp.all(jnp.abs(jnp.sum(itself, axis=1)) < LARGEST**2) & jnp.all(jnp.abs(head) < LARGEST)
    grown = jnp.any(jnp.diagonal(whole) > JUMP * jnp.max(before))
    found = Scalars(
        overlaps=overlaps,
        responses=put(one.responses, last, after, 0, 0),
        inverse=put(one.inverse, new, after, 0),
        rates=rates,
        free=put(
            one.free, jnp.broadcast_to((values * (sizes - known))[:, None], (blocks, p)), 0, after
        ),
        known=known,
        head=head,
        on_z=put(along, own, 0, after),
        on_g=jnp.roll(reach, -p, axis=1) * rates,
    )
    return found, fine & there, ~fine | there | grown


class _Part(NamedTuple):
    """A chunk as a pass reads it."""

    z: Any
    g: Any
    fresh: Any
    used: Any
    signals: Any
    given: Any


def _visit(
    setup: Setup,
    numbers: tuple[Any, ...],
    weights: tuple[Any, Any, Any],
    slot: IntScalar,
    part: _Part,
) -> tuple[Sums, tuple[Any, Any]]:
    """One chunk: its sums, fields and gradients. `weights`: what makes the fields of z and g, and the head."""
    from_z, from_g, head = weights
    parameters, algorithm, samples = numbers
    p = setup.structure.width
    z, g = part.z, part.g
    if jax.default_backend() == "cpu":  # in its cache, float64 costs nothing to read
        z, g = z.astype(jnp.float64), g.astype(jnp.float64)
    fresh = part.fresh.astype(jnp.float64)
    own = jax.lax.dynamic_slice_in_dim(from_z, slot, p, 1)
    fields = (_times(from_z, z) + own @ fresh - _times(from_g, g)).T
    new, pull = look(
        setup, parameters, algorithm, part.used, samples, fields, part.signals, head, part.given
    )
    new = new.astype(part.g.dtype).astype(jnp.float64)
    on_z = jax.lax.dynamic_update_slice(_times(new, z.T), new @ fresh.T, (0, slot))
    on_g = jax.lax.dynamic_update_slice(_times(new, g.T), new @ new.T, (0, slot))
    return Sums(on_z, on_g, pull), (fields, new)


def _normals(setup: Setup, paths: ResponsePaths, number: IntScalar) -> Float[Numeric, "chunks p n"]:
    """z of a time."""
    chunks, p, n = paths.fresh.shape
    high = (number * p + jnp.arange(p)).astype(jnp.uint64)[:, None] << np.uint64(32)
    low = 2 * jnp.arange(chunks * n // 2).astype(jnp.uint64).reshape(chunks, 1, n // 2)
    return normals_at(paths.origins[0], high + low).reshape(chunks, p, n).astype(paths.z.dtype)


def _pass(
    setup: Setup,
    given: tuple[Any, ...],
    paths: ResponsePaths,
    ahead: IntScalar,
    settled: Any,
    visits: Any,
) -> ResponsePaths:
    """One set of paths at the time `ahead`, of the weights as they stand."""
    chunks, n = paths.selected.shape
    numbers = numbers_of_step(given[0], given[1], ahead)
    slot = setup.structure.signals + setup.structure.width * ahead
    selected = paths.selected
    if setup.selects and not setup.visited:
        before = numbers_of_step(given[0], given[1], ahead - settled)[1]
        count = (jnp.asarray(ahead).astype(jnp.uint64) << np.uint64(32)) + jnp.arange(
            chunks * n
        ).astype(jnp.uint64)
        uniform = uniforms_at(paths.origins[2], count).reshape(chunks, n)
        selected = jnp.where(settled, next_selection(before, selected, uniform), selected)
    used = visits if setup.visited else selected
    parts = _Part(paths.z, paths.g, paths.fresh, used, paths.signals, paths.given)
    visit = partial(_visit, setup, (*numbers, chunks * n))
    weights = (paths.scalars.on_z, paths.scalars.on_g, paths.scalars.head)
    if jax.default_backend() == "cpu" and chunks > 1:

        def one(sums: Sums, chunk: _Part) -> tuple[Any, Any]:
            found, seen = visit(weights, slot, chunk)
            return jax.tree.map(jnp.add, sums, found), seen

        sums, (fields, g) = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, paths.sums), parts)
    else:
        each = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (chunks, *jnp.shape(leaf))), weights
        )
        sums, (fields, g) = jax.vmap(visit, in_axes=(0, None, 0))(each, slot, parts)
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)

    def placed(known: Numeric, rows: Numeric) -> Any:
        return jax.lax.dynamic_update_slice(known, rows.astype(known.dtype), (0, slot, 0))

    fresh = _normals(setup, paths, ahead + 1)
    return paths._replace(
        z=placed(paths.z, paths.fresh),
        g=placed(paths.g, g),
        fresh=fresh,
        fields=fields,
        selected=selected,
        sums=sums,
    )


def slots(setup: Setup, steps: Any) -> Any:
    """Signals, and rows before so many steps and after the last."""
    return setup.structure.signals + setup.structure.width * (steps + 1)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advanced(
    setup: Setup,
    given: tuple[Any, ...],
    paths: ResponsePaths,
    settled: Any,
    visited: Visits | None,
    number: IntScalar,
    good: Int[Numeric, " sets"],
    end: IntScalar,
) -> tuple[ResponsePaths, IntScalar, Int[Numeric, " sets"]]:
    """Sets of paths (leading axis) from step `number` to `end`, or as far as memory lasts; with the sums of the start unless `settled`.

    `given`: parameters, algorithm, sizes of the blocks. `visited`: `algorithms.epochs.Visits`, or None. `good`: the last steps whose
    numbers are finite.
    """
    sets, chunks, room = paths.z.shape[:3]

    def fits(carry: tuple[Any, ...]) -> Any:
        number, _, _, settled = carry
        return ~settled | ((number < end) & (slots(setup, number + 1) <= room))

    def moved(paths: ResponsePaths, number: IntScalar) -> tuple[Scalars, Any, Any]:
        scalars, fine, new = _plan(setup, given, paths.scalars, paths.sums, number)
        return scalars, jnp.where((paths.lost < 0) & ~new, number, paths.lost), fine

    def go(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, paths, good, settled = carry
        small = paths._replace(
            **{name: None for name in _LAST + _FIRST}
        )  # what a branch takes may be copied
        scalars, lost, fine = jax.lax.cond(
            settled,
            lambda one: together(lambda one: moved(one, number), sets)(one),
            lambda one: (one.scalars, one.lost, jnp.ones(sets, bool)),
            small,
        )
        paths = paths._replace(scalars=scalars, lost=lost)
        ahead = number + settled
        visits = (
            None if visited is None else visited.at(ahead, setup.again).reshape(sets, chunks, -1)
        )
        paths = together(
            lambda one, visits: _pass(setup, given, one, ahead, settled, visits), sets
        )(paths, visits)
        return ahead, paths, jnp.where(fine | ~settled, ahead, good), jnp.bool_(True)

    number, paths, good, _ = jax.lax.while_loop(fits, go, (number, paths, good, settled))
    return paths, number, good


def observe(
    setup: Setup, parameters: Parameters, paths: ResponsePaths, number: IntScalar
) -> dict[str, Any]:
    """M, Q (block by block), a and the mean loss over the paths, of one set at its present step."""
    structure = setup.structure
    k, p, one = structure.signals, structure.width, paths.scalars
    rows = jnp.moveaxis(
        jax.lax.dynamic_slice_in_dim(one.overlaps, k + p * number, p, 0), 0, 1
    )  # (blocks, p, room)
    fields, signals, given = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
        (paths.fields, paths.signals, paths.given),
    )
    losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
        fields, signals, one.head, given, parameters
    )
    return {
        "M": rows[..., :k],
        "Q": jax.lax.dynamic_slice_in_dim(rows, k + p * number, p, 2),
        "a": one.head,
        "train_risk": jnp.mean(losses, axis=0),
    }
