"""Gradients over fixed data sets in one GPU kernel that reads every input once a step.

A program has one run and one chunk of its samples, and goes through them tile by tile: a tile (rows, d) of inputs stays in registers
while its fields, the derivatives h of the user's loss and h^T x are computed from it. The sums of the chunks are added up by XLA. The
loss and its derivatives are traced for one sample and unrolled (`unrolled.py`); each number of them is a vector with an entry a row of
the tile. Chunks do not depend on the number of runs, so that no number does. Samples that are not in use are not read.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float

from sgdynamics.arrays import DType, Function, Numbers, Numeric, Tree, Whole
from sgdynamics.problems.problem import Structure
from sgdynamics.shapes import power_of_two
from sgdynamics.simulation import unrolled

CHUNK = 128  # samples of one program: their sums, which are written and read, are 3% of a data set of 3000 in float16
A_WARP = 2048  # numbers of a tile for each warp, half of that in float64: 64 registers a thread
LARGEST_ROWS = 8192  # numbers in the rows of a run, which a program holds twice: as they are, and their gradient
FOUR_WARPS = 2048  # up to so many of them; eight warps beyond
MOST_OPERATIONS = 2_000  # of a loss and its derivatives; its compilation takes seconds there


class Tiling(NamedTuple):
    """How a program goes through its chunk: rows of a tile, columns (d, filled up to a power of two), warps."""

    rows: int
    columns: int
    warps: int


def tiling(width: int, dimension: int, dtype: DType = np.float32) -> Tiling:
    columns = power_of_two(dimension)
    warps = 4 if width * columns <= FOUR_WARPS else 8
    return Tiling(max(1, min(CHUNK, warps * A_WARP * 4 // np.dtype(dtype).itemsize // columns)), columns, warps)


class Plan(NamedTuple):
    """The loss of one sample with its derivatives: what all samples of a run share, and what is unrolled."""

    program: unrolled.Program
    parts: unrolled.Split
    shared: int  # how many inputs all samples share


def derivatives(structure: Structure, shared: tuple[Any, Any], own: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Loss of one sample, dloss/dfields (p), dloss/dhead (p; nothing where the head is fixed)."""
    (parameters, head), (fields, signals, given) = shared, own
    which = (0, 2) if structure.trained else (0,)
    loss, slopes = jax.value_and_grad(structure.loss, argnums=which)(fields, signals, head, given, parameters)
    dtype = fields.dtype
    # a user's loss may hold float64 constants; a float32 simulation stays one, but for the one sum that is compared with a threshold
    return loss.astype(jnp.float64), slopes[0].astype(dtype), slopes[1].astype(dtype) if structure.trained else None


def planned(structure: Structure, parameters: Numbers, head: Tree, own: tuple[Any, Any, Any]) -> Plan:
    """Trace the loss of one sample; all are shapes, those of one run and one sample."""
    program = unrolled.traced(partial(derivatives, structure), (parameters, head), own)
    count = len(jax.tree.leaves((parameters, head)))
    return Plan(program, unrolled.split(program, set(program.inputs[:count])), count)


class Tile(NamedTuple):
    """Where a tile is: its run, its samples, which of these there are, and which columns."""

    run: Any
    here: Any
    there: Any
    columns: Any
    inside: Any

    def of_samples(self, ref: Tree, number: int) -> Any:
        """One number of each sample, from (runs, n, numbers)."""
        return triton.load(ref.at[self.run, self.here, jnp.int32(number)], mask=self.there, other=0)


def _tiles(plan: Tiling, samples: int, dimension: int) -> Any:
    """The tiles of this program, by number."""
    run, chunk = pl.program_id(0), pl.program_id(1)
    inside = jnp.arange(plan.columns) < dimension

    def tile(number: Whole) -> Tile:
        first = chunk * np.int32(CHUNK) + jnp.int32(number) * np.int32(plan.rows)  # of one type with all places
        return Tile(run, pl.ds(first, plan.rows), first + jnp.arange(plan.rows) < samples, pl.ds(jnp.int32(0), plan.columns), inside)

    return tile


def _row(tile: Tile, ref: Tree, number: int) -> Any:
    return triton.load(ref.at[tile.run, jnp.int32(number), tile.columns], mask=tile.inside, other=0)


def _inputs(tile: Tile, ref: Tree, dtype: DType, used: Numeric) -> Any:
    mask = used[:, None] & tile.inside[None, :]
    # a data set is read once a step, and is larger than the cache: what is small beside it stays there
    return triton.load(ref.at[tile.run, tile.here, tile.columns], mask=mask, other=0, eviction_policy="evict_first").astype(dtype)


def _sums_kernel(plan: Plan, laid: Tiling, shapes: tuple[Any, Any], selects: bool, trained: bool, *refs: Tree) -> None:
    """Sums over a chunk: losses, h^T x, and dloss/dhead."""
    (samples, dimension), own_kinds = shapes
    x_ref, w_ref, shared_ref, signals_ref, *rest = refs
    given_refs, rest = rest[: len(own_kinds) - 2], rest[len(own_kinds) - 2 :]
    use_ref = rest.pop(0) if selects else None
    loss_ref, gradient_ref, *head_refs = rest
    width, dtype = w_ref.shape[1], w_ref.dtype
    at = _tiles(laid, samples, dimension)
    w = [_row(at(0), w_ref, k) for k in range(width)]

    def shared(run: Whole) -> dict[int, np.ndarray]:
        found, first = {}, 0
        for one in plan.parts.shared:
            kind = plan.program.kinds[one]
            size = math.prod(kind.shape)
            found[one] = unrolled.arranged([shared_ref[run, first + k].astype(kind.dtype) for k in range(size)], kind.shape)
            first += size
        return found

    common = shared(pl.program_id(0))

    def one_tile(number: Whole, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        loss, gradients, heads = carry
        tile = at(number)
        used = tile.there if use_ref is None else tile.there & (tile.of_samples(use_ref, 0) > 0)
        x = _inputs(tile, x_ref, dtype, used)
        own = [unrolled.arranged([jnp.sum(x * row[None, :], axis=1) for row in w], (width,))]
        for ref, kind in zip((signals_ref, *given_refs), own_kinds[1:], strict=True):
            numbers = [tile.of_samples(ref, k).astype(kind.dtype) for k in range(math.prod(kind.shape))]
            own.append(unrolled.arranged(numbers, kind.shape))
        given = common | dict(zip(plan.program.inputs[plan.shared :], own, strict=True))
        values, slopes, *more = unrolled.run(plan.program, plan.parts.after, given)

        def summed(values: np.ndarray, dtype: DType) -> list[Any]:
            each = [jnp.broadcast_to(one, (laid.rows,)).astype(dtype) for one in values.reshape(-1)]
            return [jnp.where(used, one, jnp.zeros((laid.rows,), dtype)) for one in each]

        loss = loss + jnp.sum(summed(values, jnp.float64)[0])
        kept = summed(slopes, dtype)
        gradients = tuple(old + jnp.sum(one[:, None] * x, axis=0) for old, one in zip(gradients, kept, strict=True))
        if trained:
            heads = tuple(old + jnp.sum(one) for old, one in zip(heads, summed(more[0], dtype), strict=True))
        return loss, gradients, heads

    nothing = tuple(jnp.zeros((), dtype) for _ in range(width if trained else 0))
    begin = (jnp.zeros((), jnp.float64), tuple(jnp.zeros((laid.columns,), dtype) for _ in range(width)), nothing)
    loss, gradients, heads = jax.lax.fori_loop(np.int32(0), np.int32(CHUNK // laid.rows), one_tile, begin)
    run, chunk = pl.program_id(0), pl.program_id(1)
    loss_ref[run, chunk] = loss
    for k, one in enumerate(gradients):
        triton.store(gradient_ref.at[run, chunk, jnp.int32(k), at(0).columns], one, mask=at(0).inside)
    for k, one in enumerate(heads):
        head_refs[0][run, chunk, k] = one


def _fields_kernel(laid: Tiling, shapes: tuple[int, int], *refs: Tree) -> None:
    """Fields of a chunk."""
    x_ref, w_ref, fields_ref = refs
    at = _tiles(laid, *shapes)
    width, dtype = w_ref.shape[1], w_ref.dtype
    w = [_row(at(0), w_ref, k) for k in range(width)]

    def one_tile(number: Whole, nothing: Whole) -> Any:
        tile = at(number)
        x = _inputs(tile, x_ref, dtype, tile.there)
        for k, row in enumerate(w):
            triton.store(fields_ref.at[tile.run, jnp.int32(k), tile.here], jnp.sum(x * row[None, :], axis=1), mask=tile.there)
        return nothing

    jax.lax.fori_loop(np.int32(0), np.int32(CHUNK // laid.rows), one_tile, np.int32(0))


def _call(kernel: Function, laid: Tiling, grid: tuple[int, int], out: Tree, mode: str, name: str) -> Any:
    interpret = mode == "interpret"
    params = None if interpret else triton.CompilerParams(num_warps=laid.warps, num_stages=2)
    return pl.pallas_call(kernel, out_shape=out, grid=grid, interpret=interpret, compiler_params=params, name=name)


def fields(mode: str, inputs: Float[Numeric, "runs n d"], rows: Float[Numeric, "runs p d"]) -> Float[Numeric, "runs n p"]:
    """The fields of all samples of all runs, with sums in the precision of the rows."""
    runs, samples, dimension = inputs.shape
    laid = tiling(rows.shape[1], dimension, rows.dtype)
    out = jax.ShapeDtypeStruct((runs, rows.shape[1], samples), rows.dtype)
    kernel = partial(_fields_kernel, laid, (samples, dimension))
    return jnp.swapaxes(_call(kernel, laid, (runs, -(-samples // CHUNK)), out, mode, "fields")(inputs, rows), 1, 2)


class Sums(NamedTuple):
    """Over the samples of each run: the mean of all losses, and of those in use h^T x (p, d) and dloss/dhead (p; 0 of a fixed head).

    The mean of all losses is not known (None) where the kernel has not read all of them.
    """

    risk: Any
    gradient: Any
    head_gradient: Any


def sums(structure: Structure, mode: str, parameters: Numbers, data: Tree, rows: Numeric, head: Numeric, selected: Numeric | None) -> Sums:
    """The sums of all runs; data: inputs, signals, given, with a leading axis of runs, as rows, head and what is selected (or None)."""
    runs, samples, dimension = data.inputs.shape
    width, dtype, laid = rows.shape[1], rows.dtype, tiling(rows.shape[1], dimension, rows.dtype)
    own = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape[2:], one.dtype), (data.signals, data.given))
    own = (jax.ShapeDtypeStruct((width,), dtype), *own)
    shape = jax.tree.map(lambda one: jax.ShapeDtypeStruct(jnp.shape(one), jnp.result_type(one)), parameters)
    plan = planned(structure, shape, jax.ShapeDtypeStruct((width,), dtype), own)

    def flat(head: Float[Numeric, " p"]) -> Float[Numeric, " numbers"]:
        leaves = jax.tree.leaves((parameters, head))
        arrays = unrolled.computed_before(plan.program, plan.parts, dict(zip(plan.program.inputs, leaves, strict=False)))
        return jnp.concatenate([jnp.zeros(1), *(jnp.ravel(jnp.asarray(one)).astype(jnp.float64) for one in arrays)])[bool(arrays) :]

    kinds = jax.tree.leaves(own)
    per_sample = [leaf.reshape(runs, samples, -1) for leaf in jax.tree.leaves((data.signals, data.given))]
    per_sample += [] if selected is None else [selected.astype(dtype)[:, :, None]]
    chunks = -(-samples // CHUNK)
    out = [jax.ShapeDtypeStruct((runs, chunks), np.float64), jax.ShapeDtypeStruct((runs, chunks, width, dimension), dtype)]
    out += [jax.ShapeDtypeStruct((runs, chunks, width), dtype)] if structure.trained else []
    kernel = partial(_sums_kernel, plan, laid, ((samples, dimension), kinds), selected is not None, structure.trained)
    found = _call(kernel, laid, (runs, chunks), out, mode, "sums")(data.inputs, rows, jax.vmap(flat)(head), *per_sample)
    heads = jnp.sum(found[2], axis=1) if structure.trained else jnp.zeros((runs, width), dtype)
    risk = jnp.sum(found[0], axis=1) / samples if selected is None else None
    return Sums(risk, jnp.sum(found[1], axis=1), heads)


def against(structure: Structure, dimension: int, parameters: Numbers, given: Tree, dtype: np.dtype) -> str | None:
    """Why the kernel does not take this loss or these sizes, None where it does; parameters, given (of one sample): values or shapes."""
    if structure.sample.tokens is not None:
        return "several inputs a sample"
    if structure.width * power_of_two(dimension) > LARGEST_ROWS:
        return f"rows of {structure.width} x {dimension} numbers"
    kinds = jax.tree.map(unrolled.kind_of, (parameters, given))
    leaves, tree = jax.tree.flatten(kinds, is_leaf=unrolled.is_kind)
    return _against(structure, np.dtype(dtype).name, tuple(leaves), tree)


@cache
def _against(structure: Structure, dtype: str, leaves: tuple[Any, ...], tree: Tree) -> str | None:
    shapes = [jax.ShapeDtypeStruct(shape, np.dtype(name)) for shape, name in leaves]
    parameters, given = jax.tree.unflatten(tree, shapes)
    head, signals = (jax.ShapeDtypeStruct((size,), np.dtype(dtype)) for size in (structure.width, structure.signals))
    try:
        plan = planned(structure, parameters, head, (head, signals, given))
        count = _operations(plan)
    except unrolled.NotUnrolled as error:
        return str(error)
    return None if count <= MOST_OPERATIONS else f"a loss of {count} operations"


def _operations(plan: Plan) -> int:
    """How many operations a loss and its derivatives have once they are unrolled."""
    names = [*plan.parts.shared, *plan.program.inputs[plan.shared :]]
    kinds = [plan.program.kinds[one] for one in names]

    def sample(*numbers: Numeric) -> list[Any]:
        values = {name: unrolled.arranged(list(one), kind.shape) for name, one, kind in zip(names, numbers, kinds, strict=True)}
        return [one for array in unrolled.run(plan.program, plan.parts.after, values) for one in array.reshape(-1)]

    return len(jax.make_jaxpr(sample)(*(jax.ShapeDtypeStruct((math.prod(kind.shape), 1), kind.dtype) for kind in kinds)).jaxpr.eqns)
