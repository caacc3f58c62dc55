"""Paths of the effective process of a fixed data set, step by step, with one read of what is known a step, whatever the width.

The scheme is that of `sgdynamics.fixed_data.conditioning` at d -> infinity. With the gradients g (as the data are seen through them),
normals Z, and what the last pass has summed, a = <P, g>, z = <P, Z>, U = <A, g>, g g^T, g Z^T, a step is small matrices first:

    S = g g^T - a a^T,   eigenvectors of S/(|g_i| |g_j|) with eigenvalues above tolerance^2 give T with T S T^T = 1,
    P_new = T (g - a P),   A_new = f P_new + (Z - z P - lower(<Z, P_new>) P_new, brought to its length),   W <- W - lr (U, U_new),

and then one pass over the paths, a chunk of them at a time, so that all that is known of a chunk is read once: P_new, A_new, the fields,
the next g and Z, and their sums. A single projection leaves rounding that grows; the second one, P_new <- N (P_new - <P, P_new> P), needs
a sum of this pass, and is made first thing in the next (it is linear in P: `Plan.along` holds it).
On a CPU few chunks are arrays of their own, and many go one after the other; elsewhere all go at once, in products that are parallel over
chunks.
Numbers depend on path and direction alone, by a counter: they are drawn where they are used, whatever the chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import next_selection, numbers_of_step
from sgdynamics.base.arrays import Function, IntScalar, Numeric, PyTree
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.conditioning import Setup, look
from sgdynamics.fixed_data.path_plan import Plan, planned, still
from sgdynamics.fixed_data.path_state import Apart, Paths, Places, Sums, apart, joined
from sgdynamics.samples.input_covariance import spread as input_spread

DIRECTIONS = 30  # the first, which are seen through quasi-random normals
CHUNK = (
    1 << 14
)  # paths at a time on a CPU: so many, since a product of matrices cuts them for itself; on other machines:
WIDE_CHUNK = 1024
FEW_ROWS = 4  # so many rows go one by one on a CPU: products with vectors take half the time of one of matrices that has few rows
FEW_ROWS_CHUNK = 1024  # paths at a time there: with more, XLA makes a product with a vector in another way, ten times slower
MOST_APART = 8  # chunks, each of which is compiled for itself


def has_few_rows(setup: Setup) -> bool:
    """Whether a step's products with what is known have so few rows that they are made row by row."""
    return (
        jax.default_backend() == "cpu"
        and 2 * setup.spanned + setup.normals * setup.structure.blocks <= FEW_ROWS
    )


def largest_chunk(setup: Setup) -> int:
    """Paths at a time on a CPU."""
    return FEW_ROWS_CHUNK if has_few_rows(setup) else CHUNK


def chunks_for(setup: Setup, inputs: int, largest: int) -> int:
    """How many chunks so many inputs of a set of paths are cut into; largest: paths at a time on a CPU."""
    tokens = setup.structure.sample.inputs_a_sample
    n = inputs // tokens
    most = largest if jax.default_backend() == "cpu" else WIDE_CHUNK
    size = min(n, max(2, most // tokens))
    size = 1 << (size.bit_length() - 1)
    return n // size


class _Part(NamedTuple):
    """A chunk as a pass reads it, beside P and A."""

    used: Any
    signals: Any
    given: Any
    g: Any
    Z: Any
    Z_next: Any


class _Rows(NamedTuple):
    """What a pass makes of a chunk that goes to memory, each (rows, inputs)."""

    second: Any  # the last new P once more
    new: Any  # P
    moved: Any  # what is added to the last new A, (spanned, blocks) of them; once it is, (blocks, spanned, inputs)
    opened: Any  # A, likewise
    white: Any  # and those of white noise


def _normals(
    setup: Setup, paths: Paths, drawn: IntScalar, number: IntScalar
) -> Float[Numeric, "chunks normals blocks inputs"]:
    """Normals of the next directions, from the quasi-random ones as long as there are any, and of white noise."""
    blocks, tokens = setup.structure.blocks, setup.structure.sample.inputs_a_sample
    (chunks, inputs), table = paths.g.shape[::2], paths.quasi.shape[1] // (2 if setup.hot else 1)
    n = inputs // tokens
    low = 2 * jnp.arange(chunks * n // 2).astype(jnp.uint64).reshape(chunks, 1, 1, 1, n // 2)

    def kind(
        origin: Numeric, first: IntScalar, count: int, quasi: Numeric
    ) -> Float[Numeric, "chunks count blocks inputs"]:
        numbers = first + jnp.arange(count)
        high = (numbers[:, None] * blocks + jnp.arange(blocks))[..., None] * tokens + jnp.arange(
            tokens
        )
        found = normals_at(origin, (high.astype(jnp.uint64)[..., None] << np.uint64(32)) + low)
        found = jnp.swapaxes(found.reshape(chunks, count, blocks, tokens, n), -1, -2).reshape(
            chunks, count, blocks, inputs
        )
        if not table:
            return found
        taken = quasi[:, jnp.minimum(numbers, table - 1)].astype(found.dtype)
        return jnp.where((numbers < table)[:, None, None], taken, found)

    found = kind(paths.origins[0], drawn, setup.spanned, paths.quasi[:, :table])
    if setup.hot:
        found = jnp.concatenate(
            [
                found,
                kind(paths.origins[1], number * setup.white, setup.white, paths.quasi[:, table:]),
            ],
            axis=1,
        )
    return found.astype(paths.Z.dtype)


def _visit(
    setup: Setup,
    numbers: tuple[Any, ...],
    plan: Plan,
    places: Places,
    P: Numeric,
    A: Numeric,
    part: _Part,
) -> tuple[tuple[Any, ...], tuple[_Rows, Any, Any]]:
    """One chunk: sums over it, and new rows of P and A, the fields and the next gradients."""
    parameters, algorithm, samples = numbers
    s, z, blocks, p = setup.spanned, setup.normals, setup.structure.blocks, setup.structure.width
    sample = setup.structure.sample
    storage, wide = P.dtype, part.g.dtype
    if jax.default_backend() == "cpu":
        P, A = P.astype(wide), A.astype(wide)
    inputs = P.shape[-1]

    few = has_few_rows(setup)

    def multiplied(one: Numeric, other: Numeric) -> Any:
        # one row twice: a product with a vector alone would be a loop of XLA's own, many times slower on a CPU
        two = jnp.concatenate([one, one]) if len(one) == 1 else one
        return jnp.matmul(two.astype(other.dtype), other, precision="highest").astype(wide)[
            : len(one)
        ]

    def product(
        one: Float[Numeric, "m rows"], known: Float[Numeric, "rows inputs"]
    ) -> Float[Numeric, "m inputs"]:
        return row_by_row(one, known) if few else multiplied(one, known)

    def along(
        one: Float[Numeric, "m inputs"], known: Float[Numeric, "rows inputs"]
    ) -> Float[Numeric, "m rows"]:
        return product(one, known.T)

    def stored(value: Numeric) -> Any:
        return value.astype(storage).astype(wide)

    def seen(vectors: Float[Numeric, "m blocks inputs"]) -> Float[Numeric, "rows inputs"]:
        mixed = sample.mixed_inputs(parameters, vectors.reshape(-1, inputs)).reshape(vectors.shape)
        return stored(input_spread(parameters)[:, None] * mixed).reshape(-1, inputs)

    found = product(plan.along, P)
    second = stored(found[:s])
    shift = second - jax.lax.dynamic_slice(P, (places.last_spanned, 0), (s, inputs)).astype(wide)
    inner = sample.mixed_inputs(parameters, part.g)
    new = stored(_small(plan.turn, inner - found[s : 2 * s]))
    rest = part.Z.astype(wide) - found[2 * s :].reshape(z, blocks, inputs)
    rest = plan.rest[:, :, None] * (rest - jnp.einsum("zsb,sn->zbn", plan.over, new))
    moved, opened = (
        seen(plan.reach[:, :, None] * shift[:, None]),
        seen(plan.far[:, :, None] * new[:, None] + rest[:s]),
    )
    rows = _Rows(second, new, moved, opened, seen(rest[s:]))

    both = plan.rows if plan.change is None else jnp.concatenate([plan.rows, plan.change])

    def at(place: IntScalar, count: int) -> Any:
        return jnp.swapaxes(
            jax.lax.dynamic_slice(both, (0, 0, place), (len(both), blocks, count)), 1, 2
        ).reshape(len(both), -1)

    fresh = [
        at(places.last_opened, s),
        at(places.opened + setup.white, s),
        at(places.opened, setup.white),
    ]
    fields = product(both.reshape(len(both), -1), A)
    fields = (
        fields
        + _small(jnp.concatenate(fresh, axis=1), jnp.concatenate([moved, opened, rows.white]))
    ).T
    g, head = look(
        setup,
        parameters,
        algorithm,
        part.used,
        samples,
        fields,
        part.signals,
        plan.head,
        part.given,
    )
    right = jnp.concatenate(
        [
            sample.mixed_inputs(parameters, g),
            new,
            part.Z_next.astype(wide).reshape(z * blocks, inputs),
        ]
    )

    # rows that this pass makes or moves are not in the memory that was read: their products stand beside
    left = jnp.concatenate([right, g]) if sample.correlated else right
    made = jnp.concatenate([right, *rows])
    gram = row_by_row(left, made.T) if few else left @ made.T
    sums = (
        along(right, P),
        along(_once(g, places) if few else g, A).reshape(s, blocks, -1),
        gram,
        head,
    )
    # the last new A as they now are: read here, where the chunk is, or all of A is copied before it is written to
    last = jax.lax.dynamic_slice(
        A.reshape(blocks, -1, inputs), (0, places.last_opened, 0), (blocks, s, inputs)
    ).astype(wide)
    return sums, (
        rows._replace(moved=last + jnp.swapaxes(moved.reshape(s, blocks, inputs), 0, 1)),
        fields[:, :p],
        g,
    )


def _once(value: Numeric, places: Places) -> Numeric:
    """The same, computed once: a single row would be computed again for each number of its product with a matrix.

    XLA does not know that no place is below 0, and has no barrier left where it decides on that.
    """
    return jax.lax.cond(places.spanned >= 0, lambda: value, lambda: jnp.zeros_like(value))


def row_by_row(one: Float[Numeric, "m k"], other: Float[Numeric, "k n"]) -> Float[Numeric, "m n"]:
    """A product of few rows as products with vectors."""
    one = jax.lax.optimization_barrier(
        one
    )  # or XLA takes several rows apart, and computes each again for each number of the product
    return jax.lax.optimization_barrier(
        jnp.concatenate([jnp.matmul(row[None], other) for row in one])
    )


def _small(
    one: Float[Numeric, "m k"], other: Float[Numeric, "k inputs"]
) -> Float[Numeric, "m inputs"]:
    """A product with a small matrix; with a single number without a call."""
    return one * other if one.shape == (1, 1) else one @ other


def _patched(setup: Setup, places: Places, sums: tuple[Any, ...]) -> Sums:
    """The sums of a pass, with those along rows that it has made or moved."""
    s, z, blocks = setup.spanned, setup.normals, setup.structure.blocks
    on_P, on_A, gram, head = sums
    columns = 2 * s + z * blocks
    of_g = gram[columns:] if setup.structure.sample.correlated else gram[:s]
    sizes = np.cumsum([columns, s, s, s * blocks, s * blocks])
    with_itself, on_second, on_new, _, _, _ = jnp.split(gram[:columns], sizes, axis=1)
    _, _, _, on_moved, on_opened, on_white = (
        jnp.swapaxes(part.reshape(s, -1, blocks), 1, 2) if place > 2 else part
        for place, part in enumerate(jnp.split(of_g, sizes, axis=1))
    )
    on_P = jax.lax.dynamic_update_slice(on_P, on_second, (0, places.last_spanned))
    on_P = jax.lax.dynamic_update_slice(on_P, on_new, (0, places.spanned))
    last = jax.lax.dynamic_slice(on_A, (0, 0, places.last_opened), (s, blocks, s)) + on_moved
    on_A = jax.lax.dynamic_update_slice(on_A, last, (0, 0, places.last_opened))
    on_A = jax.lax.dynamic_update_slice(on_A, on_opened, (0, 0, places.opened + setup.white))
    if setup.hot:
        on_A = jax.lax.dynamic_update_slice(on_A, on_white, (0, 0, places.opened))
    gZ = with_itself[:s, 2 * s :].reshape(s, z, blocks)
    Z = jnp.diagonal(with_itself[2 * s :, 2 * s :]).reshape(z, blocks)
    return Sums(on_P, on_A, with_itself[:s, :s], gZ, Z, with_itself[s : 2 * s, s : 2 * s], head)


def _one_by_one(
    visit: Function, setup: Setup, plan: Plan, paths: Paths, places: Places, parts: _Part
) -> tuple[Any, ...]:
    """Sums, P, A, fields and gradients of a pass through chunks that are apart: no order among them, so that cores share them."""
    P, A, seen = [], [], []
    for number, known in enumerate(zip(paths.P.chunks, paths.A.chunks, strict=True)):
        seen.append(
            visit(
                plan, places, *known, jax.tree.map(lambda leaf, number=number: leaf[number], parts)
            )
        )
        new = _written(setup, places, *known, *seen[-1], late=True)
        P.append(new[0])
        A.append(new[1])
    sums = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *(sums for sums, _ in seen))
    fields, g = (jnp.stack([made[which] for _, made in seen]) for which in (1, 2))
    return sums, Apart(tuple(P)), Apart(tuple(A)), fields, g


def _all_chunks(
    visit: Function, setup: Setup, plan: Plan, paths: Paths, places: Places, parts: _Part
) -> tuple[Any, ...]:
    """The same of chunks in an axis: one after the other on a CPU, elsewhere all at once."""
    chunks, inputs = paths.g.shape[::2]
    flat = paths.A.reshape(
        chunks, -1, inputs
    )  # as an axis of its own, a single block makes XLA copy all of A
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:

        def one(sums: PyTree, chunk: tuple[Any, Any, _Part]) -> tuple[Any, Any]:
            found, seen = visit(plan, places, *chunk)
            return jax.tree.map(jnp.add, sums, found), seen

        shapes = jax.eval_shape(
            lambda: visit(
                plan, places, *jax.tree.map(lambda leaf: leaf[0], (paths.P, flat, parts))
            )[0]
        )
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums, made = jax.lax.scan(one, none, (paths.P, flat, parts))
    else:
        # small matrices once for each chunk: products are then parallel over chunks, and P is not turned around for them
        each = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (chunks, *jnp.shape(leaf))), plan)
        sums, made = jax.vmap(visit, in_axes=(0, None, 0, 0, 0))(each, places, paths.P, flat, parts)
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
    P, A = _written(
        setup, places, paths.P, paths.A, sums, made, late=not on_cpu
    )  # there what goes through the chunks has read all
    return sums, P, A, *made[1:]


def _written(
    setup: Setup,
    places: Places,
    P: Numeric,
    A: Numeric,
    sums: tuple[Any, ...],
    made: tuple[Any, ...],
    late: bool,
) -> tuple[Any, Any]:
    """P and A with the rows of a pass; late: XLA has to be told that all of P and A is read first."""
    rows, blocks = made[0], setup.structure.blocks
    room, inputs = P.shape[-2:]

    def placed(known: Numeric, rows: Numeric, place: IntScalar, once: Numeric) -> Any:
        start = (0,) * (known.ndim - 2) + (place + _none(once) if late else place, 0)
        return jax.lax.dynamic_update_slice(known, rows.astype(known.dtype), start)

    def on_A(
        known: Numeric,
        rows: Float[Numeric, "*chunks blocks m inputs"],
        place: IntScalar,
        once: Numeric,
    ) -> Any:
        if known.ndim > 2:
            return placed(known, rows, place, once)
        for block in range(blocks):
            known = placed(known, rows[block], block * room + place, once)
        return known

    def by_block(part: Numeric) -> Any:
        return jnp.swapaxes(part.reshape(*part.shape[:-2], -1, blocks, inputs), -3, -2)

    # all of A and P is read before anything is written, and A before P: what is added to A depends on what P has been
    read = jnp.stack([jnp.sum(one) for one in sums[:3]])
    A = on_A(A, rows.moved, places.last_opened, read)
    A = on_A(A, by_block(rows.opened), places.opened + setup.white, read)
    A = on_A(A, by_block(rows.white), places.opened, read) if setup.hot else A
    written = jax.lax.dynamic_slice(A, (0,) * (A.ndim - 2) + (places.last_opened, 0), (1,) * A.ndim)
    return placed(
        placed(P, rows.second, places.last_spanned, written), rows.new, places.spanned, written
    ), A


def _pass(
    setup: Setup,
    given: tuple[Any, ...],
    plan: Plan,
    paths: Paths,
    places: Places,
    more: tuple[Any, ...],
) -> Paths:
    """One set of paths after the plan."""
    number, common, visits = more
    chunks, inputs = paths.g.shape[::2]
    tokens = setup.structure.sample.inputs_a_sample
    n = inputs // tokens
    ahead = number + places.settled
    algorithm, after = (
        numbers_of_step(given[0], given[1], number)[1],
        numbers_of_step(given[0], given[1], ahead),
    )
    drawn = paths.drawn + plan.found
    redraw = (common > 0) | ~places.settled | setup.hot
    Z = jax.lax.cond(redraw, lambda: _normals(setup, paths, drawn, ahead), lambda: paths.Z)
    selected = paths.selected
    if setup.selects and not setup.visited:
        count = (ahead.astype(jnp.uint64) << np.uint64(32)) + jnp.arange(chunks * n).astype(
            jnp.uint64
        )
        uniform = uniforms_at(paths.origins[2], count).reshape(chunks, n)
        selected = jnp.where(places.settled, next_selection(algorithm, selected, uniform), selected)
    used = visits if setup.visited else selected
    parts = _Part(used, paths.signals, paths.given, paths.g, paths.Z, Z)
    visit = partial(_visit, setup, (*after, chunks * n))
    through = _one_by_one if _is_apart(paths.P) else _all_chunks
    sums, P, A, fields, g = through(visit, setup, plan, paths, places, parts)
    past = paths.past
    if past is not None:
        past = jnp.where(
            places.settled,
            jax.lax.dynamic_update_slice(past, plan.past[None], (places.noted, 0, 0, 0)),
            past,
        )
    return paths._replace(
        P=P,
        A=A,
        rows=plan.rows,
        head=plan.head,
        change=plan.change,
        past=past,
        spanned=paths.spanned + plan.found,
        opened=paths.opened + plan.found + jnp.where(places.settled, setup.white, 0),
        drawn=drawn,
        selected=selected,
        fields=fields,
        g=g,
        Z=Z,
        sums=_patched(setup, places, sums),
        reach=plan.far,
    )


def _none(once: Numeric) -> Int[Numeric, ""]:
    """0, which XLA does not know before these numbers are there.

    A place that depends on them is written to after they are made, in place; or XLA may copy all of the array first, in every step.
    """
    return jnp.minimum(jnp.sum(jnp.isfinite(once)), 0)


def _is_apart(leaf: PyTree) -> bool:
    return isinstance(leaf, Apart)


def together(function: Callable[..., Any], sets: int) -> Any:
    """A function of one set of paths, for several in a leading axis; of one alone, without the axis, whose products are slow on a CPU."""
    if sets > 1:
        return jax.vmap(function)

    def each(change: Function, tree: PyTree) -> Any:
        return jax.tree.map(
            lambda leaf: leaf if _is_apart(leaf) else change(leaf), tree, is_leaf=_is_apart
        )

    def alone(*given: PyTree) -> Any:
        return each(lambda leaf: leaf[None], function(*each(lambda leaf: leaf[0], given)))

    return alone


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advanced(
    setup: Setup,
    given: tuple[Any, ...],
    paths: Paths,
    places: Places,
    visited: Visits | None,
    number: IntScalar,
    good: Int[Numeric, " sets"],
    end: IntScalar,
) -> tuple[Paths, Places, IntScalar, Int[Numeric, " sets"]]:
    """Sets of paths (leading axis) from step `number` to `end`, or as far as memory lasts; the sums of the start where there are none.

    `given`: parameters, algorithm, sizes of the blocks, tolerance. `visited`: `algorithms.epochs.Visits`, or None. `good`:
    the last steps whose numbers are finite.
    """
    room, sets, chunks = paths.P.shape[2], paths.P.shape[0], paths.P.shape[1]
    n = paths.P.shape[1] * paths.P.shape[3]  # inputs
    split = sets == 1 and chunks <= MOST_APART
    paths = apart(paths) if split else paths

    def fits(carry: tuple[Any, ...]) -> Any:
        number, paths, places, _ = carry
        enough = (places.opened + setup.opened <= room) & (places.spanned + setup.spanned <= room)
        if paths.past is not None:
            enough = enough & (places.noted < paths.past.shape[1])
        return ~places.settled | ((number < end) & enough)

    def go(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, paths, places, good = carry
        settled = places.settled
        plans, fine = together(lambda one: planned(setup, given, one, places, number, n), sets)(
            paths
        )
        plans = together(lambda plan, one: still(plan, one, settled), sets)(plans, paths)
        common = jnp.max(plans.found)
        visits = None
        if visited is not None:
            visits = visited.at(number + settled, setup.again).reshape(sets, chunks, -1)
        paths = together(
            lambda plan, one, visits: _pass(
                setup, given, plan, one, places, (number, common, visits)
            ),
            sets,
        )(plans, paths, visits)
        later = Places(
            places.spanned + common,
            places.opened + common + jnp.where(settled, setup.white, 0),
            places.spanned,
            places.opened + setup.white,
            places.noted + settled,
            jnp.bool_(True),
        )
        number = number + settled
        return number, paths, later, jnp.where(fine | ~settled, number, good)

    number, paths, places, good = jax.lax.while_loop(fits, go, (number, paths, places, good))
    return joined(paths, setup.structure.blocks) if split else paths, places, number, good
