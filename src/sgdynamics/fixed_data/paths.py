"""Paths of the effective process of a fixed data set, with one read of the bases per step.

The scheme is that of `fixed_data.conditioning` at d -> infinity, for all rows of W at once. With
the gradients g (one vector per unit, in sample space), normals Z, and the sums of the last pass,
a = <P, g>, z = <P, Z>, U = <A, g>, g g^T and g Z^T, a step first computes small matrices
(`fixed_data.path_step`),

    S = g g^T - a a^T,    T S T^T = 1 on the eigenvectors of S_ij/(|g_i| |g_j|) above tolerance^2,
    P_new = T (g - a P),  A_new = f P_new + r (Z - z P - lower(<Z, P_new>) P_new),
    W <- W - lr (U, U_new),

with f = sqrt(d_b) and a factor r that sets the norm of the last term to sqrt(n). A step then
makes one pass over the paths, one chunk after the other, so that P and A of a chunk are
read once: the pass computes P_new, A_new, the fields, the next g and Z, and their sums. A single
projection leaves rounding that grows with the steps. The second one, P_new <- N (P_new - <P,
P_new> P), needs a sum of this pass and is made at the start of the next; it is linear in P
(`StepMatrices.combinations`).

On a CPU a few chunks are separate arrays, and many chunks follow each other; elsewhere all chunks
are processed at once, in products that are parallel over chunks. Random numbers are functions of
path and direction by a counter: they are drawn where they are used, and do not depend on the
chunks.
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
from sgdynamics.algorithms.fixed_data import next_selection
from sgdynamics.base.arrays import Function, IntScalar, Numeric, PyTree
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.path_state import (
    ChunkArrays,
    Paths,
    Slots,
    Sums,
    join_chunks,
    split_chunks,
)
from sgdynamics.fixed_data.path_step import StepMatrices, step_matrices, unless_sums_missing
from sgdynamics.fixed_data.sample_space import SampleData, sample_space_gradients
from sgdynamics.fixed_data.setup import Setup, StepParameters
from sgdynamics.samples.input_covariance import scale as input_scale

QUASI_DIRECTIONS = 30  # number of first directions whose normals are quasi-random
CHUNK = 1 << 14  # paths of a chunk on a CPU: matrix products divide them further by themselves
WIDE_CHUNK = 1024  # paths of a chunk on other devices
# Up to this number of rows, products on a CPU are made row by row: products with vectors take
# half the time of a matrix product with few rows.
FEW_ROWS = 4
# Paths of a chunk for products row by row: with more, XLA implements the product with a vector in
# a way that is ten times slower.
FEW_ROWS_CHUNK = 1024
MAX_SEPARATE_CHUNKS = 8  # chunks as separate arrays, for each of which code is compiled


def has_few_rows(setup: Setup) -> bool:
    """Whether products with P and A have few rows, and are therefore made row by row."""
    rows = 2 * setup.gradients_per_step + setup.normals_per_step * setup.structure.blocks
    return jax.default_backend() == "cpu" and rows <= FEW_ROWS


def largest_chunk(setup: Setup) -> int:
    """Largest number of paths of a chunk on a CPU."""
    return FEW_ROWS_CHUNK if has_few_rows(setup) else CHUNK


def chunk_count(setup: Setup, inputs: int, largest: int) -> int:
    """Number of chunks for the inputs of a set of paths; `largest`: paths of a chunk on a CPU."""
    tokens = setup.structure.sample.tokens.inputs_per_sample
    n = inputs // tokens
    limit = largest if jax.default_backend() == "cpu" else WIDE_CHUNK
    size = min(n, max(2, limit // tokens))
    # Paths and chunks are powers of two: all chunks have the same size.
    size = 1 << (size.bit_length() - 1)
    return n // size


class _ChunkInputs(NamedTuple):
    """Arrays of a chunk that a pass reads in addition to P and A."""

    used: Any  # how often the next step uses each sample
    signals: Any
    draws: Any
    g: Any
    Z: Any
    Z_next: Any


class _ChunkRows(NamedTuple):
    """Rows that a pass computes for a chunk and writes to P and A, each (rows, inputs)."""

    corrected: Any  # the last new P after the second projection
    P_new: Any
    # change of A of the last directions, (gradients, blocks); after it is added: (blocks,
    # gradients, inputs)
    A_shift: Any
    A_new: Any
    A_noise: Any  # data along the directions of white noise


class _ChunkSums(NamedTuple):
    """Sums over a chunk before the rows that the pass itself computes are inserted."""

    on_P: Any
    on_A: Any
    gram: Any  # products among g, P_new, Z and the new rows
    head: Any


def _draw_normals(
    setup: Setup, paths: Paths, first: IntScalar, number: IntScalar
) -> Float[Numeric, "chunks normals blocks inputs"]:
    """Normals of the next directions: quasi-random for the first ones, then by counter."""
    blocks, tokens = setup.structure.blocks, setup.structure.sample.tokens.inputs_per_sample
    chunks, inputs = paths.g.shape[::2]
    quasi_count = paths.quasi_normals.shape[1] // (2 if setup.thermal else 1)
    n = inputs // tokens
    # A counter is (direction, block, token) in the high 32 bits and the path in the low ones.
    low = 2 * jnp.arange(chunks * n // 2).astype(jnp.uint64).reshape(chunks, 1, 1, 1, n // 2)

    def draw(
        counter: Numeric, first: IntScalar, count: int, quasi_normals: Numeric
    ) -> Float[Numeric, "chunks count blocks inputs"]:
        direction = first + jnp.arange(count)
        block = direction[:, None] * blocks + jnp.arange(blocks)
        high = block[..., None] * tokens + jnp.arange(tokens)
        normals = normals_at(counter, (high.astype(jnp.uint64)[..., None] << np.uint64(32)) + low)
        normals = jnp.swapaxes(normals.reshape(chunks, count, blocks, tokens, n), -1, -2)
        normals = normals.reshape(chunks, count, blocks, inputs)
        if not quasi_count:
            return normals
        index = jnp.minimum(direction, quasi_count - 1)
        quasi = quasi_normals[:, index].astype(normals.dtype)
        return jnp.where((direction < quasi_count)[:, None, None], quasi, normals)

    quasi_normals = paths.quasi_normals
    normals = draw(
        paths.counters[0], first, setup.gradients_per_step, quasi_normals[:, :quasi_count]
    )
    if setup.thermal:
        count = setup.noise_directions
        noise = draw(paths.counters[1], number * count, count, quasi_normals[:, quasi_count:])
        normals = jnp.concatenate([normals, noise], axis=1)
    return normals.astype(paths.Z.dtype)


def _process_chunk(
    setup: Setup,
    step: StepParameters,
    samples: int,
    matrices: StepMatrices,
    slots: Slots,
    P: Numeric,
    A: Numeric,
    chunk: _ChunkInputs,
) -> tuple[_ChunkSums, tuple[_ChunkRows, Any, Any]]:
    """One chunk of a pass: sums over it, new rows of P and A, the fields and the next gradients."""
    parameters, sample = step.parameters, setup.structure.sample
    s, z = setup.gradients_per_step, setup.normals_per_step
    p, blocks = setup.structure.width, setup.structure.blocks
    storage, wide = P.dtype, chunk.g.dtype
    if jax.default_backend() == "cpu":
        # In the cache of a CPU the conversion to float64 costs nothing.
        P, A = P.astype(wide), A.astype(wide)
    inputs = P.shape[-1]
    few_rows = has_few_rows(setup)

    def combine(
        coefficients: Float[Numeric, "m rows"], array: Float[Numeric, "rows inputs"]
    ) -> Float[Numeric, "m inputs"]:
        """Rows of P or A combined by a small matrix."""
        if few_rows:
            return multiply_rows(coefficients, array)
        return multiply(coefficients, array).astype(wide)

    def project(
        vectors: Float[Numeric, "m inputs"], array: Float[Numeric, "rows inputs"]
    ) -> Float[Numeric, "m rows"]:
        """Sums <array, vectors> over the paths of the chunk."""
        return combine(vectors, array.T)

    def as_stored(value: Numeric) -> Any:
        """Values rounded to the storage precision, so that sums and memory agree."""
        return value.astype(storage).astype(wide)

    def data_along(vectors: Float[Numeric, "m blocks inputs"]) -> Float[Numeric, "rows inputs"]:
        """Data X e from uncorrelated vectors: correlated among tokens, scaled per block."""
        mixed = sample.tokens.correlate_inputs(parameters, vectors.reshape(-1, inputs)).reshape(
            vectors.shape
        )
        return as_stored(input_scale(parameters)[:, None] * mixed).reshape(-1, inputs)

    # P_new = T (g - a P), and A_new = f P_new + orthogonal part of Z
    combined = combine(matrices.combinations, P)
    corrected = as_stored(combined[:s])
    P_last = jax.lax.dynamic_slice(P, (slots.last_sample, 0), (s, inputs)).astype(wide)
    shift = corrected - P_last
    uncorrelated_g = sample.tokens.correlate_inputs(parameters, chunk.g)
    P_new = as_stored(_small_product(matrices.T, uncorrelated_g - combined[s : 2 * s]))
    noise = chunk.Z.astype(wide) - combined[2 * s :].reshape(z, blocks, inputs)
    noise = noise - jnp.einsum("zsb,sn->zbn", matrices.on_new, P_new)
    noise = matrices.noise_scale[:, :, None] * noise
    A_shift = data_along(matrices.last_lengths[:, :, None] * shift[:, None])
    A_new = data_along(matrices.lengths[:, :, None] * P_new[:, None] + noise[:s])
    rows = _ChunkRows(corrected, P_new, A_shift, A_new, data_along(noise[s:]))

    # Fields lambda = A W^T: the stored A, and the rows that are not in memory yet
    weights = matrices.rows
    if matrices.perturbation is not None:
        weights = jnp.concatenate([matrices.rows, matrices.perturbation])

    def weights_at(slot: IntScalar, count: int) -> Any:
        selected = jax.lax.dynamic_slice(weights, (0, 0, slot), (len(weights), blocks, count))
        return jnp.swapaxes(selected, 1, 2).reshape(len(weights), -1)

    # Weights on rows that are moved or new in this pass, in the order of `new_rows`
    on_new_rows = [
        weights_at(slots.last_weight, s),
        weights_at(slots.weight + setup.noise_directions, s),
        weights_at(slots.weight, setup.noise_directions),
    ]
    fields = combine(weights.reshape(len(weights), -1), A)
    new_rows = jnp.concatenate([A_shift, A_new, rows.A_noise])
    fields = (fields + _small_product(jnp.concatenate(on_new_rows, axis=1), new_rows)).T

    # Next gradients, and all sums of the next step
    data = SampleData(chunk.used, samples, chunk.signals, chunk.draws)
    g, head = sample_space_gradients(setup, step, data, fields, matrices.head)
    right = jnp.concatenate(
        [
            sample.tokens.correlate_inputs(parameters, g),
            P_new,
            chunk.Z_next.astype(wide).reshape(z * blocks, inputs),
        ]
    )
    # Rows that this pass computes are not in the memory that it reads: their products are separate.
    left = jnp.concatenate([right, g]) if sample.tokens.correlated else right
    all_rows = jnp.concatenate([right, *rows])
    gram = multiply_rows(left, all_rows.T) if few_rows else left @ all_rows.T
    g_once = _computed_once(g, slots) if few_rows else g
    sums = _ChunkSums(project(right, P), project(g_once, A).reshape(s, blocks, -1), gram, head)
    # A of the last directions is read here, with its chunk: otherwise XLA copies all of A before
    # it is written to.
    A_last = jax.lax.dynamic_slice(
        A.reshape(blocks, -1, inputs), (0, slots.last_weight, 0), (blocks, s, inputs)
    ).astype(wide)
    shifted = A_last + jnp.swapaxes(A_shift.reshape(s, blocks, inputs), 0, 1)
    return sums, (rows._replace(A_shift=shifted), fields[:, :p], g)


def multiply(left: Float[Numeric, "m k"], right: Float[Numeric, "*b k n"]) -> Any:
    """A product in the precision of `right`.

    A single row is doubled: XLA implements a product with one vector by a loop of its own, which
    is many times slower on a CPU.
    """
    rows = jnp.concatenate([left, left]) if len(left) == 1 else left
    return jnp.matmul(rows.astype(right.dtype), right, precision="highest")[: len(left)]


def _computed_once(value: Numeric, slots: Slots) -> Numeric:
    """The same value, which XLA computes once.

    Otherwise a single row is computed again for each entry of its product with a matrix. XLA does
    not know that a slot is never negative, so that the condition stays in the compiled program as
    a barrier.
    """
    return jax.lax.cond(slots.sample >= 0, lambda: value, lambda: jnp.zeros_like(value))


def multiply_rows(
    left: Float[Numeric, "m k"], right: Float[Numeric, "k n"]
) -> Float[Numeric, "m n"]:
    """A product of few rows as products with vectors."""
    # Without the barrier XLA computes the rows again for each entry of the product.
    left = jax.lax.optimization_barrier(left)
    products = jnp.concatenate([jnp.matmul(row[None], right) for row in left])
    return jax.lax.optimization_barrier(products)


def _small_product(
    left: Float[Numeric, "m k"], right: Float[Numeric, "k inputs"]
) -> Float[Numeric, "m inputs"]:
    """A product with a small matrix; a 1 x 1 matrix is a factor."""
    return left * right if left.shape == (1, 1) else left @ right


def _insert_new_rows(setup: Setup, slots: Slots, sums: _ChunkSums) -> Sums:
    """The sums of a pass, with the products with rows that it has computed at their slots."""
    s, z, blocks = setup.gradients_per_step, setup.normals_per_step, setup.structure.blocks
    columns = 2 * s + z * blocks
    gram = sums.gram
    # With correlated inputs the products with A are those of g, not of C^1/2 g.
    gram_of_g = gram[columns:] if setup.structure.sample.tokens.correlated else gram[:s]
    sizes = np.cumsum([columns, s, s, s * blocks, s * blocks])
    among, on_corrected, on_P_new, _, _, _ = jnp.split(gram[:columns], sizes, axis=1)
    on_A_rows = jnp.split(gram_of_g, sizes, axis=1)[3:]
    on_A_shift, on_A_new, on_A_noise = (
        jnp.swapaxes(products.reshape(s, -1, blocks), 1, 2) for products in on_A_rows
    )
    # Products with P: the corrected last rows replace the stored ones, the new ones follow.
    on_P = jax.lax.dynamic_update_slice(sums.on_P, on_corrected, (0, slots.last_sample))
    on_P = jax.lax.dynamic_update_slice(on_P, on_P_new, (0, slots.sample))
    # Products with A: the last rows have moved by A_shift.
    last = jax.lax.dynamic_slice(sums.on_A, (0, 0, slots.last_weight), (s, blocks, s))
    on_A = jax.lax.dynamic_update_slice(sums.on_A, last + on_A_shift, (0, 0, slots.last_weight))
    first_new = slots.weight + setup.noise_directions
    on_A = jax.lax.dynamic_update_slice(on_A, on_A_new, (0, 0, first_new))
    if setup.thermal:
        on_A = jax.lax.dynamic_update_slice(on_A, on_A_noise, (0, 0, slots.weight))
    return Sums(
        P=on_P,
        A=on_A,
        g=among[:s, :s],
        gZ=among[:s, 2 * s :].reshape(s, z, blocks),
        Z=jnp.diagonal(among[2 * s :, 2 * s :]).reshape(z, blocks),
        new=among[s : 2 * s, s : 2 * s],
        head=sums.head,
    )


def _pass_over_separate_chunks(
    process: Function,
    setup: Setup,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    chunks: _ChunkInputs,
) -> tuple[Any, ...]:
    """Sums, P, A, fields and gradients of a pass over separate arrays, in parallel."""
    P, A, outcomes = [], [], []
    for index, arrays in enumerate(zip(paths.P.chunks, paths.A.chunks, strict=True)):
        chunk = jax.tree.map(lambda leaf, index=index: leaf[index], chunks)
        sums, computed = process(matrices, slots, *arrays, chunk)
        outcomes.append((sums, computed))
        P_written, A_written = _write_rows(setup, slots, *arrays, sums, computed[0], late=True)
        P.append(P_written)
        A.append(A_written)
    total = jax.tree.map(
        lambda *leaves: sum(leaves[1:], leaves[0]), *(sums for sums, _ in outcomes)
    )
    fields, g = (jnp.stack([computed[index] for _, computed in outcomes]) for index in (1, 2))
    return total, ChunkArrays(tuple(P)), ChunkArrays(tuple(A)), fields, g


def _pass_over_chunks(
    process: Function,
    setup: Setup,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    chunks: _ChunkInputs,
) -> tuple[Any, ...]:
    """The same for chunks in an axis: one after the other on a CPU, elsewhere all at once."""
    count, inputs = paths.g.shape[::2]
    # With an axis of its own, a single block would make XLA copy all of A.
    flat_A = paths.A.reshape(count, -1, inputs)
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:

        def add_chunk(total: PyTree, arrays: tuple[Any, Any, _ChunkInputs]) -> tuple[Any, Any]:
            sums, computed = process(matrices, slots, *arrays)
            return jax.tree.map(jnp.add, total, sums), computed

        first = jax.tree.map(lambda leaf: leaf[0], (paths.P, flat_A, chunks))
        shapes = jax.eval_shape(lambda: process(matrices, slots, *first)[0])
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums, computed = jax.lax.scan(add_chunk, zero, (paths.P, flat_A, chunks))
    else:
        # One copy of the small matrices per chunk: products are then parallel over chunks, and P
        # is not transposed for them.
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), matrices
        )
        sums, computed = jax.vmap(process, in_axes=(0, None, 0, 0, 0))(
            copies, slots, paths.P, flat_A, chunks
        )
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
    # On a CPU the scan over chunks has read everything before the rows are written.
    P, A = _write_rows(setup, slots, paths.P, paths.A, sums, computed[0], late=not on_cpu)
    return sums, P, A, *computed[1:]


def _write_rows(
    setup: Setup,
    slots: Slots,
    P: Numeric,
    A: Numeric,
    sums: _ChunkSums,
    rows: _ChunkRows,
    late: bool,
) -> tuple[Any, Any]:
    """P and A with the rows of a pass; `late`: XLA needs a dependence to write after all reads."""
    blocks = setup.structure.blocks
    capacity, inputs = P.shape[-2:]

    def write(array: Numeric, rows: Numeric, slot: IntScalar, after: Numeric) -> Any:
        row = slot + _zero_after(after) if late else slot
        position = (0,) * (array.ndim - 2) + (row, 0)
        return jax.lax.dynamic_update_slice(array, rows.astype(array.dtype), position)

    def write_A(
        array: Numeric,
        rows: Float[Numeric, "*chunks blocks m inputs"],
        slot: IntScalar,
        after: Numeric,
    ) -> Any:
        if array.ndim > 2:
            return write(array, rows, slot, after)
        for block in range(blocks):
            array = write(array, rows[block], block * capacity + slot, after)
        return array

    def split_blocks(rows: Numeric) -> Any:
        return jnp.swapaxes(rows.reshape(*rows.shape[:-2], -1, blocks, inputs), -3, -2)

    # All of A and P is read before anything is written, and A is written before P, because the rows
    # that are added to A depend on the former P.
    all_read = jnp.stack([jnp.sum(leaf) for leaf in sums[:3]])
    A = write_A(A, rows.A_shift, slots.last_weight, all_read)
    A = write_A(A, split_blocks(rows.A_new), slots.weight + setup.noise_directions, all_read)
    A = write_A(A, split_blocks(rows.A_noise), slots.weight, all_read) if setup.thermal else A
    first = (0,) * (A.ndim - 2) + (slots.last_weight, 0)
    A_written = jax.lax.dynamic_slice(A, first, (1,) * A.ndim)
    P = write(P, rows.corrected, slots.last_sample, A_written)
    return write(P, rows.P_new, slots.sample, A_written), A


def _apply_step(
    setup: Setup,
    step: StepParameters,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    number: IntScalar,
    added: IntScalar,
    visits: Any,
) -> Paths:
    """One set of paths after a step; `added`: directions that all sets have added together."""
    chunk_total, inputs = paths.g.shape[::2]
    n = inputs // setup.structure.sample.tokens.inputs_per_sample
    next_number = number + slots.has_sums
    next_step = step.at_step(next_number)
    # Normals are numbered by the directions ever added, so that none is used twice.
    directions = paths.gradient_directions + matrices.count
    # Normals are drawn again only if some set has used them.
    redraw = (added > 0) | ~slots.has_sums | setup.thermal
    Z = jax.lax.cond(
        redraw, lambda: _draw_normals(setup, paths, directions, next_number), lambda: paths.Z
    )
    selected = paths.selected
    if setup.selects and not setup.in_cells:
        samples = jnp.arange(chunk_total * n).astype(jnp.uint64)
        counter = (next_number.astype(jnp.uint64) << np.uint64(32)) + samples
        uniform = uniforms_at(paths.counters[2], counter).reshape(chunk_total, n)
        following = next_selection(step.at_step(number).hyperparameters, selected, uniform)
        selected = jnp.where(slots.has_sums, following, selected)
    used = visits if setup.in_cells else selected
    chunks = _ChunkInputs(used, paths.signals, paths.draws, paths.g, paths.Z, Z)
    process = partial(_process_chunk, setup, next_step, chunk_total * n)
    is_separate = isinstance(paths.P, ChunkArrays)
    pass_over = _pass_over_separate_chunks if is_separate else _pass_over_chunks
    sums, P, A, fields, g = pass_over(process, setup, matrices, paths, slots, chunks)
    past = paths.past_gradients
    if past is not None:
        # Gradients of this step, in case directions are discarded later
        extended = jax.lax.dynamic_update_slice(
            past, matrices.gradients[None], (slots.history, 0, 0, 0)
        )
        past = jnp.where(slots.has_sums, extended, past)
    noise_directions = jnp.where(slots.has_sums, setup.noise_directions, 0)
    return paths._replace(
        P=P,
        A=A,
        rows=matrices.rows,
        head=matrices.head,
        perturbation=matrices.perturbation,
        past_gradients=past,
        sample_rank=paths.sample_rank + matrices.count,
        weight_rank=paths.weight_rank + matrices.count + noise_directions,
        gradient_directions=directions,
        selected=selected,
        fields=fields,
        g=g,
        Z=Z,
        sums=_insert_new_rows(setup, slots, sums),
        last_lengths=matrices.lengths,
    )


def _zero_after(value: Numeric) -> Int[Numeric, ""]:
    """Zero, which XLA does not know before `value` is computed.

    An array is then written in place at a slot that depends on it; otherwise XLA may copy the
    whole array first, in every step.
    """
    return jnp.minimum(jnp.sum(jnp.isfinite(value)), 0)


def _is_chunk_arrays(leaf: PyTree) -> bool:
    return isinstance(leaf, ChunkArrays)


def over_sets(function: Callable[..., Any], sets: int) -> Any:
    """A function of one set of paths, for several sets in a leading axis.

    A single set is processed without the axis: products with an axis of length one are slow on a
    CPU.
    """
    if sets > 1:
        return jax.vmap(function)

    def map_leaves(change: Function, tree: PyTree) -> Any:
        return jax.tree.map(
            lambda leaf: leaf if _is_chunk_arrays(leaf) else change(leaf),
            tree,
            is_leaf=_is_chunk_arrays,
        )

    def single(*arguments: PyTree) -> Any:
        without_axis = map_leaves(lambda leaf: leaf[0], arguments)
        return map_leaves(lambda leaf: leaf[None], function(*without_axis))

    return single


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance_paths(
    setup: Setup,
    step: StepParameters,
    paths: Paths,
    slots: Slots,
    visited: Visits | None,
    number: IntScalar,
    last_good: Int[Numeric, " sets"],
    end: IntScalar,
) -> tuple[Paths, Slots, IntScalar, Int[Numeric, " sets"]]:
    """Sets of paths (leading axis) from step `number` to `end`, or until the memory is full.

    If `slots.has_sums` is False, the sums of the initial weights are computed first. `visited`
    contains the visits of epochs, `last_good` the last steps whose weights are finite.
    """
    sets, chunks, capacity, chunk_inputs = paths.P.shape
    n = chunks * chunk_inputs
    is_split = sets == 1 and chunks <= MAX_SEPARATE_CHUNKS
    paths = split_chunks(paths) if is_split else paths

    def continues(carry: tuple[Any, ...]) -> Any:
        number, paths, slots, _ = carry
        # A step needs rows of A, rows of P, and an entry of the history.
        fits = (slots.weight + setup.directions_per_step <= capacity) & (
            slots.sample + setup.gradients_per_step <= capacity
        )
        if paths.past_gradients is not None:
            fits = fits & (slots.history < paths.past_gradients.shape[1])
        return ~slots.has_sums | ((number < end) & fits)

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, paths, slots, last_good = carry
        has_sums = slots.has_sums

        def matrices_of(paths: Paths) -> tuple[StepMatrices, Any]:
            return step_matrices(setup, step, paths, slots, number, n)

        def apply(matrices: StepMatrices, paths: Paths, visits: Any) -> Paths:
            return _apply_step(setup, step, matrices, paths, slots, number, added, visits)

        matrices, is_finite = over_sets(matrices_of, sets)(paths)
        matrices = over_sets(
            lambda matrices, paths: unless_sums_missing(matrices, paths, has_sums), sets
        )(matrices, paths)
        # All sets use the same slots: a step takes as many as the set that adds the most
        # directions.
        added = jnp.max(matrices.count)
        visits = None
        if visited is not None:
            visits = visited.at(number + has_sums, setup.repeats).reshape(sets, chunks, -1)
        paths = over_sets(apply, sets)(matrices, paths, visits)
        next_slots = Slots(
            sample=slots.sample + added,
            weight=slots.weight + added + jnp.where(has_sums, setup.noise_directions, 0),
            last_sample=slots.sample,
            last_weight=slots.weight + setup.noise_directions,
            history=slots.history + has_sums,
            has_sums=jnp.bool_(True),
        )
        number = number + has_sums
        return number, paths, next_slots, jnp.where(is_finite | ~has_sums, number, last_good)

    number, paths, slots, last_good = jax.lax.while_loop(
        continues, advance, (number, paths, slots, last_good)
    )
    paths = join_chunks(paths, setup.structure.blocks) if is_split else paths
    return paths, slots, number, last_good
