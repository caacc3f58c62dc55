"""Gradients over fixed data sets in one GPU kernel that reads every input once a step.

A program has one run and one chunk of its samples, and goes through them tile by tile: a tile (rows, d) of inputs stays in registers
while its fields, the derivatives h of the user's loss and h^T x are computed from it, and the next one is on its way from memory. A tile
is one warp's where a run's rows fit into its registers, so that fields are summed without waiting for other warps; h^T x is summed
over the rows of a tile once, at the end of the chunk. The sums of the chunks are added up by XLA. The loss and its derivatives are traced
for one sample and unrolled (`unrolled.py`); each number of them is a vector with an entry a row of the tile. Chunks do not depend on the
number of runs, so that no number does. Samples that are not in use are not read: those in use are listed chunk by chunk.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import DType, Function, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.base.padding import power_of_two
from sgdynamics.problems.problem import Structure
from sgdynamics.simulation.gpu import unroll
from sgdynamics.simulation.gpu.pallas import pl, triton

CHUNK = 128  # samples of one program: their sums, which are written and read, are 3% of a data set of 3000 in float16
A_WARP = 2048  # numbers in the rows of a run, or of a tile for each of them, that a warp holds, half of that in float64
LARGEST_ROWS = 8192  # numbers in the rows of a run, which a program holds twice: as they are, and their gradient
MOST_WARPS = 8
MOST_OPERATIONS = 2_000  # of a loss and its derivatives; its compilation takes seconds there


class Tiling(NamedTuple):
    """How a program goes through its chunk: rows of a tile, columns (d, filled up to a power of two), warps."""

    rows: int
    columns: int
    warps: int


def tiling(width: int, dimension: int, dtype: DType = np.float32) -> Tiling:
    columns, limit = power_of_two(dimension), A_WARP * 4 // np.dtype(dtype).itemsize
    numbers = power_of_two(width) * columns
    return Tiling(
        max(1, min(CHUNK, limit // numbers)), columns, max(1, min(MOST_WARPS, numbers // limit))
    )


class Plan(NamedTuple):
    """The loss of one sample with its derivatives: what all samples of a run share, and what is unrolled."""

    program: unroll.Program
    parts: unroll.Split
    shared: int  # how many inputs all samples share


def derivatives(
    structure: Structure, shared: tuple[Any, Any], own: tuple[Any, Any, Any]
) -> tuple[Any, Any, Any]:
    """Loss of one sample, dloss/dfields (p), dloss/dhead (p; nothing where the head is fixed)."""
    (parameters, head), (fields, signals, given) = shared, own
    which = (0, 2) if structure.trained else (0,)
    loss, slopes = jax.value_and_grad(structure.loss, argnums=which)(
        fields, signals, head, given, parameters
    )
    dtype = fields.dtype
    # a user's loss may hold float64 constants; a float32 simulation stays one, but for the one sum that is compared with a threshold
    return (
        loss.astype(jnp.float64),
        slopes[0].astype(dtype),
        slopes[1].astype(dtype) if structure.trained else None,
    )


def planned(
    structure: Structure, parameters: Parameters, head: PyTree, own: tuple[Any, Any, Any]
) -> Plan:
    """Trace the loss of one sample; all are shapes, those of one run and one sample."""
    program = unroll.traced(partial(derivatives, structure), (parameters, head), own)
    count = len(jax.tree.leaves((parameters, head)))
    return Plan(program, unroll.split(program, set(program.inputs[:count])), count)


class Tile(NamedTuple):
    """Where a tile is: its run, its samples (places, or a stretch of them), which of these there are, and which columns."""

    run: Any
    here: Any
    there: Any
    columns: Any
    inside: Any

    def of_samples(self, ref: PyTree, number: int) -> Any:
        """One number of each sample, from (runs, n, numbers)."""
        return triton.load(ref.at[self.run, self.here, jnp.int32(number)], mask=self.there, other=0)

    def inputs(self, ref: PyTree) -> Any:
        mask = self.there[:, None] & self.inside[None, :]
        place: Any = (self.here, self.columns)
        if isinstance(self.here, jax.Array):
            place = (self.here[:, None], jnp.arange(self.columns.size, dtype=jnp.int32)[None, :])
        # a data set is read once a step, and is larger than the cache: what is small beside it stays there
        return triton.load(
            ref.at[(self.run, *place)], mask=mask, other=0, eviction_policy="evict_first"
        )


def _tiles(plan: Tiling, samples: int, dimension: int) -> Any:
    """The tiles of this program, by number."""
    run, chunk = pl.program_id(0), pl.program_id(1)
    inside = jnp.arange(plan.columns) < dimension

    def tile(number: IntScalar) -> Tile:
        place = jnp.int32(number) * np.int32(plan.rows)  # of one type with all places
        first = chunk * np.int32(CHUNK) + place
        there = (first + jnp.arange(plan.rows) < samples) & (
            place < CHUNK
        )  # a tile past the last one is not read
        return Tile(run, pl.ds(first, plan.rows), there, pl.ds(jnp.int32(0), plan.columns), inside)

    return tile


def _tiles_in_use(plan: Tiling, listed_ref: PyTree, count: IntScalar, every: Any) -> Any:
    """The tiles of the samples in use, of which there are `count`, from the chunk's list of their places."""
    run, chunk = pl.program_id(0), pl.program_id(1)

    def tile(number: IntScalar) -> Tile:
        place = jnp.int32(number) * np.int32(plan.rows)
        there = place + jnp.arange(plan.rows) < count
        # past the end of the list there are no tiles, and nothing is read
        listed = triton.load(
            listed_ref.at[run, chunk, pl.ds(place, plan.rows)], mask=there, other=0
        )
        return every(0)._replace(here=chunk * np.int32(CHUNK) + listed, there=there)

    return tile


def listed(
    selected: Bool[Numeric, "runs n"],
) -> tuple[Int[Numeric, "runs chunks chunk"], Int[Numeric, "runs chunks"]]:
    """The samples in use of every chunk, by their places in it, and how many they are."""
    runs, samples = selected.shape
    used = jnp.pad(selected, ((0, 0), (0, -samples % CHUNK))).reshape(runs, -1, CHUNK)
    place = jnp.arange(CHUNK, dtype=jnp.int32)
    # how many come before, by a product: a sort took a quarter of a step's time on an H200, and a sum over pairs a fifth
    before = jnp.matmul(
        used.astype(jnp.float32), (place[:, None] < place).astype(jnp.float32), precision="highest"
    ).astype(jnp.int32)
    every = jnp.arange(used.size, dtype=jnp.int32 if used.size < 1 << 30 else jnp.int64).reshape(
        used.shape
    )
    into = jnp.where(
        used, every - place + before, used.size + every
    )  # past the end, each at a place of its own, where nothing is written
    found = (
        jnp.zeros(used.size, jnp.int32)
        .at[into.reshape(-1)]
        .set(jnp.broadcast_to(place, used.shape).reshape(-1), mode="drop", unique_indices=True)
    )
    return found.reshape(used.shape), jnp.sum(used, axis=-1, dtype=jnp.int32)


def _row(tile: Tile, ref: PyTree, number: int) -> Any:
    return triton.load(ref.at[tile.run, jnp.int32(number), tile.columns], mask=tile.inside, other=0)


def _sums_kernel(
    plan: Plan, laid: Tiling, shapes: tuple[Any, Any], selects: bool, trained: bool, *refs: PyTree
) -> None:
    """Sums over a chunk: losses (where all samples are in use), h^T x, and dloss/dhead."""
    (samples, dimension), own_kinds = shapes
    x_ref, w_ref, shared_ref, signals_ref, *rest = refs
    given_refs, rest = rest[: len(own_kinds) - 2], rest[len(own_kinds) - 2 :]
    run, chunk = pl.program_id(0), pl.program_id(1)
    every = at = _tiles(laid, samples, dimension)
    tiles: Any = np.int32(CHUNK // laid.rows)
    if selects:
        listed_ref, count_ref, *rest = rest
        count = count_ref[run, chunk]
        at, tiles = (
            _tiles_in_use(laid, listed_ref, count, every),
            (count + np.int32(laid.rows - 1)) // np.int32(laid.rows),
        )
    loss_refs, (gradient_ref, *head_refs) = ([], rest) if selects else (rest[:1], rest[1:])
    width, dtype = w_ref.shape[1], w_ref.dtype
    w = [_row(every(0), w_ref, k) for k in range(width)]

    common = unroll.read_before(plan.program, plan.parts, lambda k: shared_ref[run, k])

    def read(number: IntScalar) -> tuple[Any, Any, list[Any]]:
        """All of a tile that is in memory: which of its samples there are, inputs, and numbers of the samples."""
        tile, numbers = at(number), []
        for ref, kind in zip((signals_ref, *given_refs), own_kinds[1:], strict=True):
            numbers += [tile.of_samples(ref, k) for k in range(math.prod(kind.shape))]
        return tile.there, tile.inputs(x_ref), numbers

    def one_tile(number: IntScalar, carry: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        (there, x, numbers), loss, gradients, heads = carry
        following = read(number + 1)  # is on its way while this one is computed
        x = x.astype(dtype)
        own, first = (
            [unroll.arranged([jnp.sum(x * row[None, :], axis=1) for row in w], (width,))],
            0,
        )
        for kind in own_kinds[1:]:
            size = math.prod(kind.shape)
            own.append(
                unroll.arranged(
                    [one.astype(kind.dtype) for one in numbers[first : first + size]], kind.shape
                )
            )
            first += size
        given = common | dict(zip(plan.program.inputs[plan.shared :], own, strict=True))
        values, slopes, *more = unroll.run(plan.program, plan.parts.after, given)

        def kept(values: np.ndarray, dtype: DType) -> list[Any]:
            each = [jnp.broadcast_to(one, (laid.rows,)).astype(dtype) for one in values.reshape(-1)]
            return [jnp.where(there, one, jnp.zeros((laid.rows,), dtype)) for one in each]

        loss = tuple(
            old + jnp.sum(one) for old, one in zip(loss, kept(values, jnp.float64), strict=False)
        )
        gradients = tuple(
            old + one[:, None] * x for old, one in zip(gradients, kept(slopes, dtype), strict=True)
        )
        if trained:
            heads = tuple(
                old + jnp.sum(one) for old, one in zip(heads, kept(more[0], dtype), strict=True)
            )
        return following, loss, gradients, heads

    nothing = tuple(jnp.zeros((), dtype) for _ in range(width if trained else 0))
    begin = tuple(jnp.zeros((laid.rows, laid.columns), dtype) for _ in range(width))
    carry = (
        read(np.int32(0)),
        tuple(jnp.zeros((), jnp.float64) for _ in loss_refs),
        begin,
        nothing,
    )
    _, loss, gradients, heads = jax.lax.fori_loop(np.int32(0), tiles, one_tile, carry)
    for ref, one in zip(loss_refs, loss, strict=True):
        ref[run, chunk] = one
    for k, one in enumerate(gradients):
        triton.store(
            gradient_ref.at[run, chunk, jnp.int32(k), every(0).columns],
            jnp.sum(one, axis=0),
            mask=every(0).inside,
        )
    for k, one in enumerate(heads):
        head_refs[0][run, chunk, k] = one


def _fields_kernel(laid: Tiling, shapes: tuple[int, int], *refs: PyTree) -> None:
    """Fields of a chunk."""
    x_ref, w_ref, fields_ref = refs
    at = _tiles(laid, *shapes)
    width, dtype = w_ref.shape[1], w_ref.dtype
    w = [_row(at(0), w_ref, k) for k in range(width)]

    def one_tile(number: IntScalar, nothing: IntScalar) -> Any:
        tile = at(number)
        x = tile.inputs(x_ref).astype(dtype)
        for k, row in enumerate(w):
            triton.store(
                fields_ref.at[tile.run, jnp.int32(k), tile.here],
                jnp.sum(x * row[None, :], axis=1),
                mask=tile.there,
            )
        return nothing

    jax.lax.fori_loop(np.int32(0), np.int32(CHUNK // laid.rows), one_tile, np.int32(0))


def _call(
    kernel: Function, laid: Tiling, grid: tuple[int, int], out: PyTree, mode: str, name: str
) -> Any:
    interpret = mode == "interpret"
    params = None if interpret else triton.CompilerParams(num_warps=laid.warps, num_stages=2)
    return pl.pallas_call(
        kernel, out_shape=out, grid=grid, interpret=interpret, compiler_params=params, name=name
    )


def fields(
    mode: str, inputs: Float[Numeric, "runs n d"], rows: Float[Numeric, "runs p d"]
) -> Float[Numeric, "runs n p"]:
    """The fields of all samples of all runs, with sums in the precision of the rows."""
    runs, samples, dimension = inputs.shape
    laid = tiling(rows.shape[1], dimension, rows.dtype)
    out = jax.ShapeDtypeStruct((runs, rows.shape[1], samples), rows.dtype)
    kernel = partial(_fields_kernel, laid, (samples, dimension))
    return jnp.swapaxes(
        _call(kernel, laid, (runs, -(-samples // CHUNK)), out, mode, "fields")(inputs, rows), 1, 2
    )


class Sums(NamedTuple):
    """Over the samples of each run: the mean of all losses, and of those in use h^T x (p, d) and dloss/dhead (p; 0 of a fixed head).

    The mean of all losses is not known (None) where the kernel has not read all of them.
    """

    risk: Any
    gradient: Any
    head_gradient: Any


def sums(
    structure: Structure,
    mode: str,
    parameters: Parameters,
    data: PyTree,
    rows: Numeric,
    head: Numeric,
    selected: Numeric | None,
) -> Sums:
    """The sums of all runs; data: inputs, signals, given, with a leading axis of runs, as rows, head and what is selected (or None)."""
    runs, samples, dimension = data.inputs.shape
    width, dtype, laid = rows.shape[1], rows.dtype, tiling(rows.shape[1], dimension, rows.dtype)
    own = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape[2:], one.dtype), (data.signals, data.draws)
    )
    own = (jax.ShapeDtypeStruct((width,), dtype), *own)
    shape = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(jnp.shape(one), jnp.result_type(one)), parameters
    )
    plan = planned(structure, shape, jax.ShapeDtypeStruct((width,), dtype), own)

    def flat(head: Float[Numeric, " p"]) -> Float[Numeric, " numbers"]:
        return unroll.numbers_before(plan.program, plan.parts, jax.tree.leaves((parameters, head)))

    kinds = jax.tree.leaves(own)
    per_sample = [
        leaf.reshape(runs, samples, -1) for leaf in jax.tree.leaves((data.signals, data.draws))
    ]
    per_sample += [] if selected is None else listed(selected)
    chunks = -(-samples // CHUNK)
    out = [jax.ShapeDtypeStruct((runs, chunks), np.float64)] if selected is None else []
    out += [jax.ShapeDtypeStruct((runs, chunks, width, dimension), dtype)]
    out += [jax.ShapeDtypeStruct((runs, chunks, width), dtype)] if structure.trained else []
    kernel = partial(
        _sums_kernel,
        plan,
        laid,
        ((samples, dimension), kinds),
        selected is not None,
        structure.trained,
    )
    found = list(
        _call(kernel, laid, (runs, chunks), out, mode, "sums")(
            data.inputs, rows, jax.vmap(flat)(head), *per_sample
        )
    )
    risk = jnp.sum(found.pop(0), axis=1) / samples if selected is None else None
    heads = jnp.sum(found[1], axis=1) if structure.trained else jnp.zeros((runs, width), dtype)
    return Sums(risk, jnp.sum(found[0], axis=1), heads)


def find_obstacle(
    structure: Structure, dimension: int, parameters: Parameters, given: PyTree, dtype: np.dtype
) -> str | None:
    """Why the kernel does not take this loss or these sizes, None where it does; parameters, given (of one sample): values or shapes."""
    if structure.sample.tokens.count is not None:
        return "several inputs a sample"
    if structure.width * power_of_two(dimension) > LARGEST_ROWS:
        return f"rows of {structure.width} x {dimension} numbers"
    kinds = jax.tree.map(unroll.kind_of, (parameters, given))
    leaves, tree = jax.tree.flatten(kinds, is_leaf=unroll.is_kind)
    return _find_obstacle(structure, np.dtype(dtype).name, tuple(leaves), tree)


@cache
def _find_obstacle(
    structure: Structure, dtype: str, leaves: tuple[Any, ...], tree: PyTree
) -> str | None:
    shapes = [jax.ShapeDtypeStruct(shape, np.dtype(name)) for shape, name in leaves]
    parameters, given = jax.tree.unflatten(tree, shapes)
    head, signals = (
        jax.ShapeDtypeStruct((size,), np.dtype(dtype))
        for size in (structure.width, structure.signals)
    )
    try:
        plan = planned(structure, parameters, head, (head, signals, given))
        count = _operations(plan)
    except unroll.NotUnrolled as error:
        return str(error)
    return None if count <= MOST_OPERATIONS else f"a loss of {count} operations"


def _operations(plan: Plan) -> int:
    """How many operations a loss and its derivatives have once they are unrolled."""
    names = [*plan.parts.shared, *plan.program.inputs[plan.shared :]]
    kinds = [plan.program.kinds[one] for one in names]

    def sample(*numbers: Numeric) -> list[Any]:
        values = {
            name: unroll.arranged(list(one), kind.shape)
            for name, one, kind in zip(names, numbers, kinds, strict=True)
        }
        return [
            one
            for array in unroll.run(plan.program, plan.parts.after, values)
            for one in array.reshape(-1)
        ]

    return len(
        jax.make_jaxpr(sample)(
            *(jax.ShapeDtypeStruct((math.prod(kind.shape), 1), kind.dtype) for kind in kinds)
        ).jaxpr.eqns
    )
