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
(`StepMatrices.combinations`). The pass itself is in `fixed_data.path_pass`.

On a CPU a few chunks are separate arrays, and many chunks follow each other; elsewhere all chunks
are processed at once, in products that are parallel over chunks. Random numbers are functions of
path and direction by a counter: they are drawn where they are used, and do not depend on the
chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import next_selection
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree
from sgdynamics.base.code_generator import QuicklyCompiled
from sgdynamics.base.random import normals_at, uniforms_at
from sgdynamics.fixed_data.path_pass import ChunkInputs, has_few_rows, pass_over_paths
from sgdynamics.fixed_data.path_state import (
    ChunkArrays,
    Paths,
    Slots,
    join_chunks,
    split_chunks,
)
from sgdynamics.fixed_data.path_step import StepMatrices, step_matrices, unless_sums_missing
from sgdynamics.fixed_data.sample_space import with_overlaps
from sgdynamics.fixed_data.setup import Setup, StepParameters

QUASI_DIRECTIONS = 30  # number of first directions whose normals are quasi-random
CHUNK = 1 << 14  # paths of a chunk on a CPU: matrix products divide them further by themselves
WIDE_CHUNK = 1024  # paths of a chunk on other devices
# Paths of a chunk for products row by row: with more, XLA implements the product with a vector in
# a way that is ten times slower.
FEW_ROWS_CHUNK = 1024
MAX_SEPARATE_CHUNKS = 8  # chunks as separate arrays, for each of which code is compiled

Result = TypeVar("Result")
Tree = TypeVar("Tree")
# Step number, sets of paths, slots, and the last finite step of each set
Carry = tuple[IntScalar, Paths, Slots, Int[Numeric, " sets"]]


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


def _apply_step(
    setup: Setup,
    step: StepParameters,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    number: IntScalar,
    added: IntScalar,
    visits: Float[Numeric, "chunks n"] | None,
) -> Paths:
    """One set of paths after a step; `added`: directions that all sets have added together."""
    chunk_total, inputs = paths.g.shape[::2]
    n = inputs // setup.structure.sample.tokens.inputs_per_sample
    next_number = number + slots.has_sums
    next_step = step.at_step(next_number // setup.passes)
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
        step_number = jnp.asarray(next_number // setup.passes)
        counter = (step_number.astype(jnp.uint64) << np.uint64(32)) + samples
        uniform = uniforms_at(paths.counters[2], counter).reshape(chunk_total, n)
        rates = step.at_step(number // setup.passes).hyperparameters
        following = next_selection(rates, selected, uniform)
        # All passes of a step use the same samples.
        is_next_step = slots.has_sums & (next_number % setup.passes == 0)
        selected = jnp.where(is_next_step, following, selected)
    used = selected if visits is None else visits
    chunks = ChunkInputs(used, paths.signals, paths.draws, paths.g, paths.Z, Z, paths.samples)
    next_step = with_overlaps(setup, next_step, matrices.point)
    gradient_number = next_number // setup.passes
    result = pass_over_paths(setup, next_step, matrices, paths, slots, chunks, gradient_number)
    past = paths.past_gradients
    if past is not None:
        assert matrices.gradients is not None
        # Gradients of this step, in case directions are discarded later
        extended = jax.lax.dynamic_update_slice(
            past, matrices.gradients[None], (slots.history, 0, 0, 0)
        )
        past = jnp.where(slots.has_sums, extended, past)
    noise_directions = jnp.where(slots.has_sums, setup.noise_directions, 0)
    return paths._replace(
        P=result.P,
        A=result.A,
        rows=matrices.rows,
        head=matrices.head,
        perturbation=matrices.perturbation,
        past_gradients=past,
        sample_rank=paths.sample_rank + matrices.count,
        weight_rank=paths.weight_rank + matrices.count + noise_directions,
        gradient_directions=directions,
        selected=selected,
        fields=result.fields,
        g=result.g,
        Z=Z,
        sums=result.sums,
        last_lengths=matrices.lengths,
        memory=matrices.memory,
        point=matrices.point if setup.structure.loss.reads_overlaps else None,
        answers=matrices.answers,
        memory_perturbation=matrices.memory_perturbation,
        samples=result.samples,
    )


def _is_chunk_arrays(leaf: PyTree) -> bool:
    return isinstance(leaf, ChunkArrays)


def over_sets(function: Callable[..., Result], sets: int) -> Callable[..., Result]:
    """A function of one set of paths, for several sets in a leading axis.

    A single set is processed without the axis: products with an axis of length one are slow on a
    CPU.
    """
    if sets > 1:
        return jax.vmap(function)

    def map_leaves(change: Callable[[Numeric], Numeric], tree: Tree) -> Tree:
        return jax.tree.map(
            lambda leaf: leaf if _is_chunk_arrays(leaf) else change(leaf),
            tree,
            is_leaf=_is_chunk_arrays,
        )

    def single(*arguments: PyTree) -> Result:
        without_axis = map_leaves(lambda leaf: leaf[0], arguments)
        return map_leaves(lambda leaf: leaf[None], function(*without_axis))

    return single


@partial(QuicklyCompiled, static_argnums=0, donate_argnums=2)
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
    """Sets of paths (leading axis) from pass `number` to `end`, or until the memory is full.

    A step takes one pass, or as many as it evaluates gradients. If `slots.has_sums` is False, the
    sums of the initial weights are computed first. `visited` contains the visits of epochs,
    `last_good` the last passes whose weights are finite.
    """
    sets, chunks, capacity, chunk_inputs = paths.P.shape
    n = chunks * chunk_inputs
    is_split = sets == 1 and chunks <= MAX_SEPARATE_CHUNKS
    paths = split_chunks(paths) if is_split else paths

    def continues(carry: Carry) -> Bool[Numeric, ""]:
        number, paths, slots, _ = carry
        # A step needs rows of A, rows of P, and an entry of the history.
        fits = (slots.weight + setup.directions_per_step <= capacity) & (
            slots.sample + setup.gradients_per_step <= capacity
        )
        if paths.past_gradients is not None:
            fits = fits & (slots.history < paths.past_gradients.shape[1])
        return ~slots.has_sums | ((number < end) & fits)

    def advance(carry: Carry) -> Carry:
        number, paths, slots, last_good = carry
        has_sums = slots.has_sums

        def matrices_of(paths: Paths) -> tuple[StepMatrices, Bool[Numeric, ""]]:
            return step_matrices(setup, step, paths, slots, number, n)

        def apply(
            matrices: StepMatrices, paths: Paths, visits: Float[Numeric, "chunks n"] | None
        ) -> Paths:
            return _apply_step(setup, step, matrices, paths, slots, number, added, visits)

        matrices, is_finite = over_sets(matrices_of, sets)(paths)
        matrices = over_sets(
            lambda matrices, paths: unless_sums_missing(
                setup, step, matrices, paths, slots, number
            ),
            sets,
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
