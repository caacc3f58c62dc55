"""Gradients over fixed data sets in one GPU kernel that reads every input once per step.

Two matrix products, for the fields X W^T and for the gradient h^T X, would read the inputs twice,
and memory bandwidth is what limits a step. Here one program has one run and one chunk of its
samples, and goes through the chunk tile by tile:

1. A tile of inputs (rows, d) is loaded into registers, while the next one is on its way.
2. Its fields follow, then the derivatives h of the user's loss, which is traced for one sample and
   unrolled (`unroll`): a lane is one row of the tile.
3. The outer products of h and the tile are accumulated in registers. They are summed over the rows
   of the tile once, at the end of the chunk.

XLA adds up the sums of the chunks. Chunks do not depend on the number of runs, and so no result
does. If only some samples are selected, they are listed for each chunk and the others are not read.
A tile belongs to one warp if the rows of a run fit into its registers, so that the sums of the
fields need no synchronisation of warps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import DType, Function, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.base.padding import power_of_two
from sgdynamics.problems.problem import Structure
from sgdynamics.simulation.gpu.pallas import Lanes, Reference, call_kernel, pl, triton
from sgdynamics.simulation.gpu.program import NotUnrollable, shape_struct
from sgdynamics.simulation.gpu.scalars import object_array
from sgdynamics.simulation.gpu.unroll import LaneFunction, prepare

# Samples of one program. Its sums, which are written to memory and read again, are 3% of a data set
# of 3000 samples in float16.
CHUNK = 128
# Largest number of float32 values in the rows of a run, and in a tile per row, that one warp holds;
# half as many in float64.
WARP_VALUES = 2048
# Largest number of values in the rows of a run. A program holds them twice: rows and gradient.
MAX_ROW_VALUES = 8192
MAX_WARPS = 8
# Largest number of operations of a loss and its derivatives; compilation takes seconds there.
MAX_OPERATIONS = 2_000


class Tiling(NamedTuple):
    """Shape of the tiles in which a program goes through its chunk.

    Attributes
    ----------
    rows : int
        Samples of a tile.
    columns : int
        The dimension, rounded up to a power of two as Triton requires.
    warps : int
        Warps of a program.
    """

    rows: int
    columns: int
    warps: int


def tiling(width: int, dimension: int, dtype: DType = np.float32) -> Tiling:
    """The tiling for a student of this width; `dtype` is the precision of the sums."""
    columns, limit = power_of_two(dimension), WARP_VALUES * 4 // np.dtype(dtype).itemsize
    values = power_of_two(width) * columns
    return Tiling(
        rows=max(1, min(CHUNK, limit // values)),
        columns=columns,
        warps=max(1, min(MAX_WARPS, values // limit)),
    )


# ---- the loss of one sample


def derivatives(
    structure: Structure, uniform: tuple[Any, Any], sample: tuple[Any, Any, Any]
) -> tuple[Array, Array, Array | None]:
    """Loss of one sample, dloss/dfields (p) and dloss/dhead (p; None for a fixed head)."""
    (parameters, head), (fields, signals, draws) = uniform, sample
    arguments = (0, 2) if structure.trained else (0,)
    loss, gradients = jax.value_and_grad(structure.loss, argnums=arguments)(
        fields, signals, head, draws, parameters
    )
    dtype = fields.dtype
    # A user's loss may contain float64 constants: its derivatives return to the precision of the
    # simulation. The loss itself stays in float64, because its sum is compared with a threshold.
    return (
        loss.astype(jnp.float64),
        gradients[0].astype(dtype),
        gradients[1].astype(dtype) if structure.trained else None,
    )


def prepare_loss(
    structure: Structure, parameters: Parameters, head: PyTree, sample: tuple[Any, Any, Any]
) -> LaneFunction:
    """Trace the loss of one sample; the arguments are shapes, of one run and one sample."""
    return prepare(partial(derivatives, structure), (parameters, head), sample)


# ---- tiles


class Tile(NamedTuple):
    """Position of a tile in the data set.

    Attributes
    ----------
    run : int
        Index of the run.
    samples : slice or array of int
        The samples of the tile: consecutive ones, or their indices.
    is_sample : array of bool
        True for the rows of the tile that are samples; the others are beyond the end.
    columns : slice
        The columns of the tile.
    is_column : array of bool
        True for the coordinates of the inputs; the other columns fill up the power of two.
    """

    run: IntScalar
    samples: Lanes | Array
    is_sample: Array
    columns: Lanes
    is_column: Array

    def load_values(self, ref: Reference, index: int) -> Array:
        """One value of each sample, from an array (runs, n, values)."""
        return triton.load(
            ref.at[self.run, self.samples, jnp.int32(index)], mask=self.is_sample, other=0
        )

    def load_inputs(self, ref: Reference) -> Array:
        """The inputs of the tile, from an array (runs, n, d)."""
        mask = self.is_sample[:, None] & self.is_column[None, :]
        position: Any = (self.samples, self.columns)
        if isinstance(self.samples, jax.Array):
            # Listed samples: both indices must be arrays, which Pallas broadcasts.
            columns = jnp.arange(len(self.is_column), dtype=jnp.int32)
            position = (self.samples[:, None], columns[None, :])
        # A data set is read once per step and is larger than the cache. Its lines are evicted
        # first, so that the small arrays stay cached.
        return triton.load(
            ref.at[(self.run, *position)], mask=mask, other=0, eviction_policy="evict_first"
        )

    def load_row(self, ref: Reference, unit: int) -> Array:
        """The weights of one hidden unit, from an array (runs, p, d)."""
        return triton.load(
            ref.at[self.run, jnp.int32(unit), self.columns], mask=self.is_column, other=0
        )


# The tile of a program with a given index.
TileAt = Callable[[IntScalar], Tile]


def _tiles(layout: Tiling, samples: int, dimension: int) -> TileAt:
    """Tiles of all samples of this program's chunk."""
    run, chunk = pl.program_id(0), pl.program_id(1)
    is_column = jnp.arange(layout.columns) < dimension

    def tile(index: IntScalar) -> Tile:
        # All positions are int32: Triton does not mix integer types.
        offset = jnp.int32(index) * np.int32(layout.rows)
        first = chunk * np.int32(CHUNK) + offset
        in_data = first + jnp.arange(layout.rows) < samples
        # The loop loads one tile ahead. The tile behind the last one is masked, and reads nothing.
        is_sample = in_data & (offset < CHUNK)
        columns = pl.ds(jnp.int32(0), layout.columns)
        return Tile(run, pl.ds(first, layout.rows), is_sample, columns, is_column)

    return tile


def _selected_tiles(
    layout: Tiling, selected_ref: Reference, count: IntScalar, tiles: TileAt
) -> TileAt:
    """Tiles of the `count` selected samples, from the list of their positions in the chunk."""
    run, chunk = pl.program_id(0), pl.program_id(1)

    def tile(index: IntScalar) -> Tile:
        offset = jnp.int32(index) * np.int32(layout.rows)
        is_sample = offset + jnp.arange(layout.rows) < count
        # The mask covers the rows behind the end of the list: nothing is read there.
        positions = triton.load(
            selected_ref.at[run, chunk, pl.ds(offset, layout.rows)], mask=is_sample, other=0
        )
        return tiles(0)._replace(samples=chunk * np.int32(CHUNK) + positions, is_sample=is_sample)

    return tile


def list_selected(
    selected: Bool[Numeric, "runs n"],
) -> tuple[Int[Array, "runs chunks chunk"], Int[Array, "runs chunks"]]:
    """Positions in its chunk of the selected samples of every chunk, in order, and their number."""
    runs, samples = selected.shape
    mask = jnp.pad(selected, ((0, 0), (0, -samples % CHUNK))).reshape(runs, -1, CHUNK)
    position = jnp.arange(CHUNK, dtype=jnp.int32)
    # The rank of a selected sample in its chunk, by a product with a triangle of ones. On an H200 a
    # sort took a quarter of the time of a step, and a sum over pairs a fifth.
    triangle = (position[:, None] < position).astype(jnp.float32)
    rank = jnp.matmul(mask.astype(jnp.float32), triangle, precision="highest").astype(jnp.int32)
    # Indices of twice the size of the mask occur below: int32 suffices up to 2^30 entries.
    index_dtype = jnp.int32 if mask.size < 1 << 30 else jnp.int64
    index = jnp.arange(mask.size, dtype=index_dtype).reshape(mask.shape)
    # Samples that are not selected are sent beyond the end, each to an index of its own (indices
    # are promised to be unique), where nothing is written.
    target = jnp.where(mask, index - position + rank, mask.size + index)
    positions = (
        jnp.zeros(mask.size, jnp.int32)
        .at[target.reshape(-1)]
        .set(jnp.broadcast_to(position, mask.shape).reshape(-1), mode="drop", unique_indices=True)
    )
    return positions.reshape(mask.shape), jnp.sum(mask, axis=-1, dtype=jnp.int32)


# ---- kernels


class KernelShape(NamedTuple):
    """Static description of a kernel of sums.

    Attributes
    ----------
    layout : Tiling
        Shape of the tiles.
    samples, dimension : int
        Size of the data set of one run.
    sample_shapes : list of jax.ShapeDtypeStruct
        Shapes of fields, signals and draws of one sample.
    selects : bool
        Whether only listed samples are read.
    trained : bool
        Whether the head is trained.
    """

    layout: Tiling
    samples: int
    dimension: int
    sample_shapes: list[jax.ShapeDtypeStruct]
    selects: bool
    trained: bool


def _sums_kernel(function: LaneFunction, shape: KernelShape, *refs: Reference) -> None:
    """Sums over a chunk: losses (if all samples are read), h^T x and dloss/dhead."""
    layout, sample_shapes = shape.layout, shape.sample_shapes
    inputs_ref, rows_ref, uniform_ref, signals_ref, *other_refs = refs
    n_draws = len(sample_shapes) - 2
    draw_refs, other_refs = other_refs[:n_draws], other_refs[n_draws:]
    run, chunk = pl.program_id(0), pl.program_id(1)
    all_tiles = tile_at = _tiles(layout, shape.samples, shape.dimension)
    n_tiles: Any = np.int32(CHUNK // layout.rows)
    if shape.selects:
        selected_ref, count_ref, *other_refs = other_refs
        count = count_ref[run, chunk]
        tile_at = _selected_tiles(layout, selected_ref, count, all_tiles)
        n_tiles = (count + np.int32(layout.rows - 1)) // np.int32(layout.rows)
    # Without the losses of all samples there is no mean loss, and no output for it.
    n_losses = 0 if shape.selects else 1
    loss_refs, (gradient_ref, *head_refs) = other_refs[:n_losses], other_refs[n_losses:]
    width, dtype = rows_ref.shape[1], rows_ref.dtype
    # The rows stay in registers during the whole chunk.
    rows = [all_tiles(0).load_row(rows_ref, unit) for unit in range(width)]
    uniform = function.read_uniform(lambda k: uniform_ref[run, k])

    def load(index: IntScalar) -> tuple[Any, Any, list[Any]]:
        """Everything of a tile that is in memory: mask, inputs and values of the samples."""
        tile, values = tile_at(index), []
        for ref, kind in zip((signals_ref, *draw_refs), sample_shapes[1:], strict=True):
            values += [tile.load_values(ref, k) for k in range(math.prod(kind.shape))]
        return tile.is_sample, tile.load_inputs(inputs_ref), values

    def add_tile(index: IntScalar, carry: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        (is_sample, x, values), loss, gradients, head_gradients = carry
        # The next tile is on its way from memory while this one is computed.
        next_tile = load(index + 1)
        x = x.astype(dtype)
        fields = [jnp.sum(x * row[None, :], axis=1) for row in rows]
        lane_arrays, first = [object_array(fields, (width,))], 0
        for kind in sample_shapes[1:]:
            size = math.prod(kind.shape)
            entries = [value.astype(kind.dtype) for value in values[first : first + size]]
            lane_arrays.append(object_array(entries, kind.shape))
            first += size
        losses, h, *head_h = function.run(uniform, lane_arrays)

        def mask_rows(entries: np.ndarray, dtype: DType) -> list[Any]:
            """Entries as vectors over the tile, 0 where a row is no sample."""
            vectors = [
                jnp.broadcast_to(entry, (layout.rows,)).astype(dtype)
                for entry in entries.reshape(-1)
            ]
            return [
                jnp.where(is_sample, vector, jnp.zeros((layout.rows,), dtype)) for vector in vectors
            ]

        loss = tuple(
            total + jnp.sum(value)
            for total, value in zip(loss, mask_rows(losses, jnp.float64), strict=False)
        )
        gradients = tuple(
            total + value[:, None] * x
            for total, value in zip(gradients, mask_rows(h, dtype), strict=True)
        )
        if shape.trained:
            head_gradients = tuple(
                total + jnp.sum(value)
                for total, value in zip(head_gradients, mask_rows(head_h[0], dtype), strict=True)
            )
        return next_tile, loss, gradients, head_gradients

    head_zeros = tuple(jnp.zeros((), dtype) for _ in range(width if shape.trained else 0))
    # One accumulator per unit with the shape of a tile: sums over its rows wait for the end.
    zeros = tuple(jnp.zeros((layout.rows, layout.columns), dtype) for _ in range(width))
    carry = (
        load(np.int32(0)),
        tuple(jnp.zeros((), jnp.float64) for _ in loss_refs),
        zeros,
        head_zeros,
    )
    _, loss, gradients, head_gradients = jax.lax.fori_loop(np.int32(0), n_tiles, add_tile, carry)
    for ref, total in zip(loss_refs, loss, strict=True):
        ref[run, chunk] = total
    for unit, gradient in enumerate(gradients):
        triton.store(
            gradient_ref.at[run, chunk, jnp.int32(unit), all_tiles(0).columns],
            jnp.sum(gradient, axis=0),
            mask=all_tiles(0).is_column,
        )
    for unit, gradient in enumerate(head_gradients):
        head_refs[0][run, chunk, unit] = gradient


def _fields_kernel(layout: Tiling, samples: int, dimension: int, *refs: Reference) -> None:
    """Fields of the samples of a chunk."""
    inputs_ref, rows_ref, fields_ref = refs
    tile_at = _tiles(layout, samples, dimension)
    width, dtype = rows_ref.shape[1], rows_ref.dtype
    rows = [tile_at(0).load_row(rows_ref, unit) for unit in range(width)]

    def write_tile(index: IntScalar, carry: IntScalar) -> IntScalar:
        tile = tile_at(index)
        x = tile.load_inputs(inputs_ref).astype(dtype)
        for unit, row in enumerate(rows):
            triton.store(
                fields_ref.at[tile.run, jnp.int32(unit), tile.samples],
                jnp.sum(x * row[None, :], axis=1),
                mask=tile.is_sample,
            )
        return carry

    jax.lax.fori_loop(np.int32(0), np.int32(CHUNK // layout.rows), write_tile, np.int32(0))


# ---- whole arrays


def _call(
    kernel: Function, layout: Tiling, grid: tuple[int, int], outputs: PyTree, mode: str, name: str
) -> Function:
    """A kernel with the warps of its tiling; two stages overlap loads and arithmetic."""
    return call_kernel(
        kernel,
        outputs,
        grid,
        name=name,
        interpret=mode == "interpret",
        warps=layout.warps,
        stages=2,
    )


def fields(
    mode: str, inputs: Float[Numeric, "runs n d"], rows: Float[Numeric, "runs p d"]
) -> Float[Array, "runs n p"]:
    """Fields of all samples of all runs, with sums in the precision of the rows.

    Parameters
    ----------
    mode : {"triton", "interpret"}
        Whether the kernel is compiled for a GPU or interpreted.
    inputs : array
        Data sets of the runs.
    rows : array
        First-layer weights of the runs.
    """
    runs, samples, dimension = inputs.shape
    layout = tiling(rows.shape[1], dimension, rows.dtype)
    # Samples are the last axis, so that a tile writes adjacent values.
    output = jax.ShapeDtypeStruct((runs, rows.shape[1], samples), rows.dtype)
    kernel = partial(_fields_kernel, layout, samples, dimension)
    call = _call(kernel, layout, (runs, -(-samples // CHUNK)), output, mode, "fields")
    return jnp.swapaxes(call(inputs, rows), 1, 2)


class Sums(NamedTuple):
    """Sums over the samples of each run.

    Attributes
    ----------
    risk : array or None
        Mean loss of all samples; None if only the selected samples were read.
    gradient : array
        h^T x (runs, p, d) of the selected samples.
    head_gradient : array
        dloss/dhead (runs, p) of the selected samples; 0 for a fixed head.
    """

    risk: Numeric | None
    gradient: Numeric
    head_gradient: Numeric


def sums(
    structure: Structure,
    mode: str,
    parameters: Parameters,
    data: PyTree,
    rows: Numeric,
    head: Numeric,
    selected: Numeric | None,
) -> Sums:
    """The mean loss and the gradients of all runs.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    mode : {"triton", "interpret"}
        Whether the kernel is compiled for a GPU or interpreted.
    parameters : dict
        Parameters of the problem.
    data : Data
        Inputs, signals and draws of the samples, with a leading axis of runs.
    rows, head : array
        Weights of the runs.
    selected : array of bool or None
        Selected samples (runs, n); None for all of them.
    """
    runs, samples, dimension = data.inputs.shape
    width, dtype = rows.shape[1], rows.dtype
    layout = tiling(width, dimension, dtype)
    row_shape = jax.ShapeDtypeStruct((width,), dtype)
    signals_and_draws = (data.signals, data.draws)
    sample = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), signals_and_draws
    )
    sample = (row_shape, *sample)
    function = prepare_loss(structure, jax.tree.map(shape_struct, parameters), row_shape, sample)

    def uniform(head: Float[Numeric, " p"]) -> Float[Array, " values"]:
        return function.pack_uniform(jax.tree.leaves((parameters, head)))

    # Triton's references are indexed by (run, sample, value): the axes of a sample become one.
    per_sample = [leaf.reshape(runs, samples, -1) for leaf in jax.tree.leaves(signals_and_draws)]
    per_sample += [] if selected is None else list_selected(selected)
    chunks = -(-samples // CHUNK)
    outputs = [jax.ShapeDtypeStruct((runs, chunks), np.float64)] if selected is None else []
    outputs += [jax.ShapeDtypeStruct((runs, chunks, width, dimension), dtype)]
    outputs += [jax.ShapeDtypeStruct((runs, chunks, width), dtype)] if structure.trained else []
    shape = KernelShape(
        layout,
        samples,
        dimension,
        jax.tree.leaves(sample),
        selects=selected is not None,
        trained=structure.trained,
    )
    kernel = partial(_sums_kernel, function, shape)
    call = _call(kernel, layout, (runs, chunks), outputs, mode, "sums")
    chunk_sums = list(call(data.inputs, rows, jax.vmap(uniform)(head), *per_sample))
    risk = jnp.sum(chunk_sums.pop(0), axis=1) / samples if selected is None else None
    if structure.trained:
        head_gradient = jnp.sum(chunk_sums[1], axis=1)
    else:
        head_gradient = jnp.zeros((runs, width), dtype)
    return Sums(risk, jnp.sum(chunk_sums[0], axis=1), head_gradient)


# ---- what the kernel supports


def find_obstacle(
    structure: Structure, dimension: int, parameters: Parameters, draws: PyTree, dtype: np.dtype
) -> str | None:
    """The reason why the kernel does not support a loss or a size; None if it does.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    dimension : int
        Dimension of the inputs.
    parameters, draws : pytree
        Parameters of the problem and draws of one sample, as values or shapes.
    dtype : dtype
        Precision of the sums.
    """
    if structure.sample.tokens.count is not None:
        return "several inputs per sample"
    if structure.width * power_of_two(dimension) > MAX_ROW_VALUES:
        return f"rows of {structure.width} x {dimension} values"
    leaves, tree = jax.tree.flatten(jax.tree.map(shape_struct, (parameters, draws)))
    return _find_loss_obstacle(structure, np.dtype(dtype), tuple(leaves), tree)


@cache
def _find_loss_obstacle(
    structure: Structure,
    dtype: np.dtype,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    tree: Hashable,
) -> str | None:
    """The reason why a loss cannot be unrolled; cached, because unrolling takes a second."""
    parameters, draws = jax.tree.unflatten(tree, leaves)
    head, signals = (
        jax.ShapeDtypeStruct((size,), dtype) for size in (structure.width, structure.signals)
    )
    try:
        function = prepare_loss(structure, parameters, head, (head, signals, draws))
        count = function.count_operations([(1,)] * len(function.lane_inputs), lanes=1)
    except NotUnrollable as error:
        return str(error)
    return None if count <= MAX_OPERATIONS else f"a loss of {count} operations"
