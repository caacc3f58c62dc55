"""One pass over the paths of a set: new rows of the bases, fields, gradients and their sums.

A pass applies the small matrices of a step (`fixed_data.path_step`, notation of
`fixed_data.paths`) to the paths, one chunk after the other or all at once. It reads P and A of a
chunk once, and computes

    P_last <- N (P_last - <P, P_last> P),    P_new = T (g - a P),
    A_last <- A_last + f (change of P_last), A_new = f P_new + r (orthogonal part of Z),

the fields lambda = A W^T, the next gradients g, and the sums over the paths that the next step
needs. The rows are written to P and A after everything has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric, PyTree
from sgdynamics.fixed_data.path_state import ChunkArrays, Paths, Slots, Sums
from sgdynamics.fixed_data.path_step import StepMatrices
from sgdynamics.fixed_data.sample_space import (
    SampleData,
    SampleMemory,
    SampleStep,
    overlap_coefficients,
    sample_space_gradients,
)
from sgdynamics.fixed_data.setup import Setup, StepParameters
from sgdynamics.samples.input_covariance import scale as input_scale

# Up to this number of rows, products on a CPU are made row by row: products with vectors take
# half the time of a matrix product with few rows.
FEW_ROWS = 4


def has_few_rows(setup: Setup) -> bool:
    """Whether products with P and A have few rows, and are therefore made row by row."""
    rows = 2 * setup.gradients_per_step + setup.normals_per_step * setup.structure.blocks
    return jax.default_backend() == "cpu" and rows <= FEW_ROWS


class ChunkInputs(NamedTuple):
    """Arrays of a chunk that a pass reads in addition to P and A; of all chunks in a first axis."""

    used: Float[Numeric, "*chunks n"] | Bool[Numeric, "*chunks n"]  # visits of the next step
    signals: Float[Numeric, "*chunks inputs K"]
    draws: PyTree  # label noise, mixture labels, ..., (chunks, n, ...)
    g: Float[Numeric, "*chunks gradients inputs"]
    Z: Float[Numeric, "*chunks normals blocks inputs"]
    Z_next: Float[Numeric, "*chunks normals blocks inputs"]
    samples: SampleMemory | None  # of an update, (chunks, inputs, p)


class _ChunkOutputs(NamedTuple):
    """Arrays that a pass computes for a chunk: new rows of P and A, fields and next gradients.

    Rows `A_new` and `A_noise` are numbered by direction first and covariance block second.
    """

    corrected: Float[Numeric, "*chunks gradients inputs"]  # last new P, projected a second time
    P_new: Float[Numeric, "*chunks gradients inputs"]
    A_last: Float[Numeric, "*chunks blocks gradients inputs"]  # A of the last directions, shifted
    A_new: Float[Numeric, "*chunks rows inputs"]
    A_noise: Float[Numeric, "*chunks rows inputs"]  # data along the directions of white noise
    fields: Float[Numeric, "*chunks inputs p"]
    g: Float[Numeric, "*chunks gradients inputs"]
    samples: SampleMemory | None


class _ChunkSums(NamedTuple):
    """Sums over a chunk before the rows that the pass itself computes are inserted."""

    on_P: Float[Numeric, "columns capacity"]
    on_A: Float[Numeric, "gradients blocks capacity"]
    gram: Float[Numeric, "products columns"]  # products among g, P_new, Z and the new rows
    head: Float[Numeric, " p"]
    coefficients: Float[Numeric, "p columns"] | None
    means: dict[str, Numeric] | None


# A function of matrices, slots, P, A and the other inputs of a chunk
_ProcessChunk = Callable[
    [StepMatrices, Slots, Numeric, Numeric, ChunkInputs], tuple[_ChunkSums, _ChunkOutputs]
]
# Sums over all chunks, P and A with the new rows, and fields, gradients and stored values
_PassArrays = tuple[_ChunkSums, Numeric | ChunkArrays, Numeric | ChunkArrays, _ChunkOutputs]


class PassResult(NamedTuple):
    """Arrays of a set of paths after a pass."""

    P: Numeric | ChunkArrays
    A: Numeric | ChunkArrays
    fields: Float[Numeric, "chunks inputs p"]
    g: Float[Numeric, "chunks gradients inputs"]
    samples: SampleMemory | None
    sums: Sums


def pass_over_paths(
    setup: Setup,
    step: StepParameters,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    chunks: ChunkInputs,
    number: IntScalar,
) -> PassResult:
    """Apply the matrices of a step to one set of paths, and compute the sums of the next step.

    `step` contains the parameters at the time after the step, where the gradients of the step
    `number` are computed.
    """
    samples = chunks.used.size
    process = partial(_process_chunk, setup, step, samples, number)
    is_separate = isinstance(paths.P, ChunkArrays)
    pass_over = _pass_over_separate_chunks if is_separate else _pass_over_chunks
    sums, P, A, outputs = pass_over(process, setup, matrices, paths, slots, chunks)
    new_sums = _insert_new_rows(setup, slots, sums)
    return PassResult(P, A, outputs.fields, outputs.g, outputs.samples, new_sums)


def _process_chunk(
    setup: Setup,
    step: StepParameters,
    samples: int,
    number: IntScalar,
    matrices: StepMatrices,
    slots: Slots,
    P: Numeric,
    A: Numeric,
    chunk: ChunkInputs,
) -> tuple[_ChunkSums, _ChunkOutputs]:
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

    def as_stored(value: Numeric) -> Numeric:
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
    A_noise = data_along(noise[s:])

    # Fields lambda = A W^T: the stored A, and the rows that are not in memory yet
    weights = matrices.point
    if matrices.point_perturbation is not None:
        weights = jnp.concatenate([matrices.point, matrices.point_perturbation])

    def weights_at(slot: IntScalar, count: int) -> Float[Numeric, "m columns"]:
        selected = jax.lax.dynamic_slice(weights, (0, 0, slot), (len(weights), blocks, count))
        return jnp.swapaxes(selected, 1, 2).reshape(len(weights), -1)

    # Weights on rows that are moved or new in this pass, in the order of `new_rows`
    on_new_rows = [
        weights_at(slots.last_weight, s),
        weights_at(slots.weight + setup.noise_directions, s),
        weights_at(slots.weight, setup.noise_directions),
    ]
    fields = combine(weights.reshape(len(weights), -1), A)
    new_rows = jnp.concatenate([A_shift, A_new, A_noise])
    fields = (fields + _small_product(jnp.concatenate(on_new_rows, axis=1), new_rows)).T

    # Next gradients, and all sums of the next step
    data = SampleData(chunk.used, samples, chunk.signals, chunk.draws)
    stored, means = chunk.samples, None
    if stored is None:
        g, head = sample_space_gradients(setup, step, data, fields, matrices.point_head)
    else:
        assert setup.law is not None
        assert matrices.memory is not None
        rule = SampleStep.of(setup.law, step.hyperparameters, matrices.memory.scalars, number)
        arguments = (setup.structure, parameters, data, fields, matrices.point_head, stored)
        g, stored, means = rule.outcome(*arguments)
        head = jnp.zeros_like(matrices.point_head)
    right = jnp.concatenate(
        [
            sample.tokens.correlate_inputs(parameters, g),
            P_new,
            chunk.Z_next.astype(wide).reshape(z * blocks, inputs),
        ]
    )
    # Rows that this pass computes are not in the memory that it reads: their products are separate.
    left = jnp.concatenate([right, g]) if sample.tokens.correlated else right
    all_rows = jnp.concatenate([right, corrected, P_new, A_shift, A_new, A_noise])
    gram = multiply_rows(left, all_rows.T) if few_rows else left @ all_rows.T
    g_once = _computed_once(g, slots) if few_rows else g
    coefficients = None
    if setup.structure.loss.reads_overlaps:
        arguments = (setup, step, data, fields[:, :p], matrices.point_head)
        coefficients = overlap_coefficients(*arguments)
    on_A = project(g_once, A).reshape(s, blocks, -1)
    sums = _ChunkSums(project(right, P), on_A, gram, head, coefficients, means)
    # A of the last directions is read here, with its chunk: otherwise XLA copies all of A before
    # it is written to.
    A_last = jax.lax.dynamic_slice(
        A.reshape(blocks, -1, inputs), (0, slots.last_weight, 0), (blocks, s, inputs)
    ).astype(wide)
    A_last = A_last + jnp.swapaxes(A_shift.reshape(s, blocks, inputs), 0, 1)
    rows = (corrected, P_new, A_last, A_new, A_noise)
    return sums, _ChunkOutputs(*rows, fields[:, :p], g, stored)


def multiply(left: Float[Numeric, "m k"], right: Float[Numeric, "k n"]) -> Float[Numeric, "m n"]:
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
        coefficients=sums.coefficients,
        means=sums.means,
    )


def _pass_over_separate_chunks(
    process: _ProcessChunk,
    setup: Setup,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    chunks: ChunkInputs,
) -> _PassArrays:
    """A pass over chunks that are separate arrays, which XLA processes in parallel."""
    P, A, outcomes = [], [], []
    for index, arrays in enumerate(zip(paths.P.chunks, paths.A.chunks, strict=True)):
        chunk = jax.tree.map(lambda leaf, index=index: leaf[index], chunks)
        sums, outputs = process(matrices, slots, *arrays, chunk)
        outcomes.append((sums, outputs))
        P_written, A_written = _write_rows(setup, slots, *arrays, sums, outputs, late=True)
        P.append(P_written)
        A.append(A_written)
    total = jax.tree.map(
        lambda *leaves: sum(leaves[1:], leaves[0]), *(sums for sums, _ in outcomes)
    )
    outputs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(outputs for _, outputs in outcomes))
    return total, ChunkArrays(tuple(P)), ChunkArrays(tuple(A)), outputs


def _pass_over_chunks(
    process: _ProcessChunk,
    setup: Setup,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    chunks: ChunkInputs,
) -> _PassArrays:
    """A pass over chunks in an axis: one after the other on a CPU, elsewhere all at once."""
    count, inputs = paths.g.shape[::2]
    # With an axis of its own, a single block would make XLA copy all of A.
    flat_A = paths.A.reshape(count, -1, inputs)
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:

        def add_chunk(
            total: _ChunkSums, arrays: tuple[Numeric, Numeric, ChunkInputs]
        ) -> tuple[_ChunkSums, _ChunkOutputs]:
            sums, outputs = process(matrices, slots, *arrays)
            return jax.tree.map(jnp.add, total, sums), outputs

        first = jax.tree.map(lambda leaf: leaf[0], (paths.P, flat_A, chunks))
        shapes = jax.eval_shape(lambda: process(matrices, slots, *first)[0])
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums, outputs = jax.lax.scan(add_chunk, zero, (paths.P, flat_A, chunks))
    else:
        # One copy of the small matrices per chunk: products are then parallel over chunks, and P
        # is not transposed for them.
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), matrices
        )
        sums, outputs = jax.vmap(process, in_axes=(0, None, 0, 0, 0))(
            copies, slots, paths.P, flat_A, chunks
        )
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
    # On a CPU the scan over chunks has read everything before the rows are written.
    P, A = _write_rows(setup, slots, paths.P, paths.A, sums, outputs, late=not on_cpu)
    return sums, P, A, outputs


def _write_rows(
    setup: Setup,
    slots: Slots,
    P: Numeric,
    A: Numeric,
    sums: _ChunkSums,
    outputs: _ChunkOutputs,
    late: bool,
) -> tuple[Numeric, Numeric]:
    """P and A with the rows of a pass; `late`: XLA needs a dependence to write after all reads."""
    blocks = setup.structure.blocks
    capacity, inputs = P.shape[-2:]

    def write(array: Numeric, rows: Numeric, slot: IntScalar, after: Numeric) -> Array:
        row = slot + _zero_after(after) if late else slot
        position = (0,) * (array.ndim - 2) + (row, 0)
        return jax.lax.dynamic_update_slice(array, rows.astype(array.dtype), position)

    def write_A(
        array: Numeric,
        rows: Float[Numeric, "*chunks blocks m inputs"],
        slot: IntScalar,
        after: Numeric,
    ) -> Numeric:
        if array.ndim > 2:
            return write(array, rows, slot, after)
        for block in range(blocks):
            array = write(array, rows[block], block * capacity + slot, after)
        return array

    def split_blocks(
        rows: Float[Numeric, "*chunks rows inputs"],
    ) -> Float[Numeric, "*chunks blocks m inputs"]:
        return jnp.swapaxes(rows.reshape(*rows.shape[:-2], -1, blocks, inputs), -3, -2)

    # All of A and P is read before anything is written, and A is written before P, because the rows
    # that are added to A depend on the former P.
    all_read = jnp.stack([jnp.sum(leaf) for leaf in sums[:3]])
    A = write_A(A, outputs.A_last, slots.last_weight, all_read)
    A = write_A(A, split_blocks(outputs.A_new), slots.weight + setup.noise_directions, all_read)
    A = write_A(A, split_blocks(outputs.A_noise), slots.weight, all_read) if setup.thermal else A
    first = (0,) * (A.ndim - 2) + (slots.last_weight, 0)
    A_written = jax.lax.dynamic_slice(A, first, (1,) * A.ndim)
    P = write(P, outputs.corrected, slots.last_sample, A_written)
    return write(P, outputs.P_new, slots.sample, A_written), A


def _zero_after(value: Numeric) -> Int[Numeric, ""]:
    """Zero, which XLA does not know before `value` is computed.

    An array is then written in place at a slot that depends on it; otherwise XLA may copy the
    whole array first, in every step.
    """
    return jnp.minimum(jnp.sum(jnp.isfinite(value)), 0)
