"""The compressed space: d-dimensional one-pass SGD as SGD on a few columns, exactly in law at any d.

Each row of W is split, in every covariance block, into its K coordinates T along the signals and the rest, which enters only
through its Gram matrix and so may be rotated into p columns L:

    W (p x d)  ->  [T | L]  (p x (K + p)),     M = T C^T with C C^T = P,     Q = T T^T + L L^T.

An input seen from there is K + p standard normals and what lies outside. The outside parts of several inputs are known up to a
rotation by their Gram matrix, which is Wishart and is drawn by its lower-triangular Bartlett factor: input j lies in the first
j of a few new columns. So a few steps run on [T | L | new columns] as plain SGD, and then a QR decomposition folds the new
columns back into L. With more samples in a batch than units, only the p combinations h X_outside of them matter,
unless the batch is read again after a move along it (`updates.rereads`): then it keeps a column a sample.
With momentum the rows of the velocity are stacked under those of W, and L has 2p columns.

A block with no more coordinates than that has nothing outside: its coordinates themselves are the columns. All such blocks are one strip,
with an eigenvalue a column, and rows are [strip | T L new | T L new | ...], flat.

Factors, not overlaps, are stepped: W W^T stays positive by construction and nothing is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import GradientSource, Rows
from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import (
    Function,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    Scalar,
)
from sgdynamics.base.controls import alpha_of_steps, is_scheduled, values_at
from sgdynamics.base.random import bartlett_factor, draw_chi, normals_and_uniforms
from sgdynamics.problems.constraints import NONE
from sgdynamics.problems.moves import loss_overlaps
from sgdynamics.problems.problem import Structure
from sgdynamics.samples.input_covariance import scale, select_blocks
from sgdynamics.samples.inputs import Embedding, clean_signals, compressed_inputs, inputs_in_space
from sgdynamics.samples.sample import select_row

SPAN = 64  # samples whose random numbers are drawn together (a few kilobytes a run)
FEW_BLOCKS = 4  # that are compressed wherever they can be; more are a spectrum, whose cost is that of its columns
LEAST_COLUMNS = (
    8  # new columns between two folds: more wastes normals, fewer wastes QR decompositions
)
COLUMNS_OF_ONE_ROW = (
    2  # its fold is a sum of squares, and costs less than the normals of more columns
)


@dataclass(frozen=True)
class Layout:
    """How steps are grouped: `steps` between two folds, `folds` in a span of random numbers. Static, and independent of the
    number of runs, the dimension and the save times, so that none of them changes the numbers."""

    structure: Structure
    batch: int
    single_step: bool = False  # one step at a time, for averages over one step
    update: Law | None = None  # None: plain SGD
    explicit_sizes: tuple[
        int, ...
    ] = ()  # sizes of the blocks whose coordinates are kept, 0 for the others; () where there are none
    spare: int = 0  # more new columns, of no input

    @property
    def wide_batch(self) -> bool:
        """More samples than units: the outside of a batch is p combinations, known only once the gradient is."""
        return (
            self.inputs > self.structure.width
            and not (self.update and self.update.rereads)
            and not self.structure.loss.reads_lengths
        )

    @property
    def inputs(self) -> int:
        """How many inputs a batch has."""
        return self.batch * self.structure.sample.tokens.inputs_per_sample

    @property
    def steps(self) -> int:
        if self.wide_batch or self.single_step:
            return 1
        least = COLUMNS_OF_ONE_ROW if self.rows == 1 else max(LEAST_COLUMNS, self.structure.width)
        return max(1, least // (self.inputs + self.kicks))

    @property
    def kicks(self) -> int:
        """Rows of noise of an update's own in a step."""
        return self.structure.width if self.update is not None and self.update.noise else 0

    @property
    def columns(self) -> int:
        """New columns of a block of steps."""
        return (
            (self.structure.width if self.wide_batch else self.steps * self.inputs)
            + self.steps * self.kicks
            + self.spare
        )

    @property
    def folds(self) -> int:
        return max(1, SPAN // (self.steps * self.inputs))

    @property
    def span_steps(self) -> int:
        return self.steps * self.folds

    @property
    def rows(self) -> int:
        """Rows of W, and of what an update keeps beside."""
        return count_row_sets(self.update) * self.structure.width

    @property
    def inside(self) -> int:
        """Columns of [T | L]."""
        return self.structure.signals + self.rows

    def for_block_sizes(self, sizes: np.ndarray) -> Layout:
        """The same at these sizes of the blocks: coordinates are kept where they are few, of many blocks also where that is cheaper."""
        most = self.inside + (self.columns if len(sizes) > FEW_BLOCKS else 0)
        raw = tuple(int(size) if size <= most else 0 for size in sizes)
        return replace(self, explicit_sizes=raw if any(raw) and len(raw) > 1 else ())

    @property
    def compressed_blocks(self) -> np.ndarray:
        """The blocks that are compressed."""
        return np.array(
            [
                block
                for block in range(self.structure.blocks)
                if not (self.explicit_sizes and self.explicit_sizes[block])
            ],
            dtype=int,
        )

    @property
    def explicit_blocks(self) -> np.ndarray:
        """The block of each column of the strip."""
        return np.repeat(np.arange(len(self.explicit_sizes)), self.explicit_sizes)

    @property
    def explicit_coordinates(self) -> np.ndarray:
        """Which coordinate of its block each column of the strip is."""
        return np.concatenate(
            [np.arange(0), *(np.arange(size) for size in self.explicit_sizes)]
        ).astype(int)

    @property
    def column_blocks(self) -> np.ndarray:
        """The block of each column, of the strip and of the compressed blocks."""
        return np.concatenate(
            [self.explicit_blocks, np.repeat(self.compressed_blocks, self.inside + self.columns)]
        )

    def join(self, strip: Any, blocks: Any) -> Any:
        """Columns (..., strip) and (..., wide blocks, columns), flat."""
        flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
        return jnp.concatenate([strip, flat], axis=-1) if self.explicit_sizes else flat

    def split(self, columns: Any) -> tuple[Any, Any]:
        """The strip and the wide blocks of flat columns."""
        cut = len(self.explicit_blocks)
        return columns[..., :cut], columns[..., cut:].reshape(
            *columns.shape[:-1], len(self.compressed_blocks), self.inside + self.columns
        )


class SpanDraws(NamedTuple):
    """The random numbers of a span: inside (folds, steps, batch, [tokens,] blocks, K + p), normals of the draws (folds, steps, batch, ...),
    the Bartlett factors of the outside (folds, blocks, columns, columns), and the strip (folds, steps, batch, [tokens,] columns)."""

    inside: Float[Numeric, "folds steps ... blocks inside"]
    noise: Float[Numeric, "folds steps batch ..."]
    outside: Float[Numeric, "folds blocks columns columns"]
    explicit: Any = None
    kicks: Any = None  # of an update's own noise: inside (folds, steps, p, blocks, K + p)
    explicit_kicks: Any = None


def initial_rows(
    layout: Layout,
    T: Float[Numeric, "blocks rows K"],
    L: Float[Numeric, "blocks rows rows"],
    head: Float[Numeric, " rows"],
    scalars: tuple[Any, ...] = (),
) -> Rows:
    """[strip | T L 0 | ...] from (blocks, rows, K) and (blocks, rows, rows), rows of all sets or of the weights: then the others are 0."""
    more = count_row_sets(layout.update) * layout.structure.width - T.shape[1]
    # rows that are 0, and what the others have along their columns
    room = more + layout.columns
    every = jnp.moveaxis(
        jnp.pad(jnp.concatenate([T, L], axis=-1), ((0, 0), (0, more), (0, room))), 0, 1
    )
    strip, blocks = (
        every[:, layout.explicit_blocks, layout.explicit_coordinates],
        every[:, layout.compressed_blocks],
    )
    return Rows(layout.join(strip, blocks), jnp.pad(head, (0, more)), scalars)


def overlaps(layout: Layout, parameters: Parameters, state: Rows) -> dict[str, Any]:
    """M, Q (block by block) and a of the weights."""
    p = layout.structure.width
    Q, M = _gram_and_overlaps(layout, parameters, state.rows[:p])
    return {"M": M, "Q": Q, "a": state.head[: layout.structure.head_size]}


def overlaps_with_memory(layout: Layout, parameters: Parameters, state: Rows) -> dict[str, Any]:
    """The same with those of all sets of rows, where an update keeps others, and its scalars."""
    Q, M = _gram_and_overlaps(layout, parameters, state.rows)
    p = layout.structure.width
    found = {"M": M[:, :p], "Q": Q[:, :p, :p], "a": state.head[: layout.structure.head_size]}
    if len(Q[0]) > p:
        found |= {"rows_M": M, "rows_Q": Q, "rows_a": state.head}
    return found | ({"update_scalars": jnp.stack(state.scalars)} if state.scalars else {})


def _gram_and_overlaps(
    layout: Layout, parameters: Parameters, rows: Float[Numeric, "p columns"]
) -> tuple[Any, Any]:
    """Q and M (block by block) of rows: sums of products, as in `one_step`."""
    strip, blocks = layout.split(rows)
    blocks = jnp.moveaxis(blocks, 1, 0)
    M = jnp.sum(
        blocks[..., : layout.structure.signals][:, :, None]
        * parameters["frame"][layout.compressed_blocks][:, None],
        axis=-1,
    )
    Q = jnp.sum(blocks[:, :, None] * blocks[:, None], axis=-1)
    if not layout.explicit_sizes:
        return Q, M

    def by_block(
        products: Float[Numeric, "p q columns"], others: Float[Numeric, "blocks p q"]
    ) -> Float[Numeric, "blocks p q"]:
        found = jnp.zeros((len(layout.explicit_sizes), *products.shape[:2]), products.dtype)
        return (
            found.at[layout.explicit_blocks]
            .add(jnp.moveaxis(products, -1, 0))
            .at[layout.compressed_blocks]
            .set(others)
        )

    return by_block(strip[:, None] * strip[None], Q), by_block(
        strip[:, None] * explicit_signals(layout, parameters)[None], M
    )


def explicit_signals(layout: Layout, parameters: Parameters) -> Float[Numeric, "K columns"]:
    """Coordinates of the signals along the columns of the strip: in a block of more coordinates than signals the rest of them are 0."""
    room = max(layout.explicit_sizes, default=0)
    frame = jnp.pad(
        jnp.asarray(parameters["frame"]),
        ((0, 0), (0, 0), (0, max(0, room - layout.structure.signals))),
    )
    return frame[layout.explicit_blocks, :, layout.explicit_coordinates].T


def _signal_rows(layout: Layout, parameters: Parameters) -> Float[Numeric, "K columns"]:
    """The signals as rows beside those of W."""
    frame = jnp.moveaxis(jnp.asarray(parameters["frame"])[layout.compressed_blocks], 0, 1)
    room = layout.inside + layout.columns - layout.structure.signals
    return layout.join(
        explicit_signals(layout, parameters), jnp.pad(frame, ((0, 0), (0, 0), (0, room)))
    )


def normal_shapes(layout: Layout, folds: int) -> tuple[tuple[int, ...], ...]:
    """Of the normals of so many folds: inside, draws, below the diagonal of the outside, proposals of its chi variables, strip, kicks."""
    structure, blocks, columns = layout.structure, len(layout.compressed_blocks), layout.columns
    inside = (
        folds,
        layout.steps,
        layout.batch,
        *structure.sample.tokens.shape,
        blocks,
        layout.inside,
    )
    noise = (folds, layout.steps, layout.batch, structure.sample.normals_per_sample)
    kicks = (folds, layout.steps, layout.kicks, blocks, layout.inside)
    strip = (*inside[:-2], len(layout.explicit_blocks))
    lower = (folds, blocks, columns * (columns - 1) // 2)
    return (
        inside,
        noise,
        lower,
        (folds, blocks, columns),
        strip,
        kicks,
        (*kicks[:3], len(layout.explicit_blocks)),
    )


def split_into_shapes(
    numbers: Float[Numeric, " n"], shapes: tuple[tuple[int, ...], ...]
) -> list[Any]:
    """Numbers one after the other in arrays of these shapes."""
    edges = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [
        numbers[low:high].reshape(shape)
        for low, high, shape in zip(edges, edges[1:], shapes, strict=False)
    ]


def degrees_of_freedom(
    layout: Layout, sizes: Float[Numeric, " blocks"]
) -> Float[Numeric, "wide columns"]:
    """Degrees of freedom left for each new column."""
    return (sizes[layout.compressed_blocks] - layout.inside)[:, None] - jnp.arange(layout.columns)


def assemble_draws(
    layout: Layout,
    parts: list[Any],
    lengths: Float[Numeric, "folds blocks columns"],
    free: Numeric,
) -> SpanDraws:
    """The random numbers of a span from normals in its shapes, and the chi variables of the outside."""
    inside, noise, lower, _, strip, kicks, strip_kicks = parts
    outside = bartlett_factor(lower, lengths, free, layout.columns)
    if not layout.kicks:
        return SpanDraws(inside, noise, outside, strip)
    return SpanDraws(inside, noise, outside, strip, kicks, strip_kicks)


def draw_span(layout: Layout, key: RandomKey, sizes: Float[Numeric, " blocks"]) -> SpanDraws:
    """The random numbers of one span of one run, from one key; `sizes` are the dimensions of the blocks (traced)."""
    shapes = normal_shapes(layout, layout.folds)
    counts = [int(np.prod(shape)) for shape in shapes]
    # one call for all of it: many small calls to the generator cost more than the numbers
    normals, uniform = normals_and_uniforms(key, sum(counts), counts[3])
    parts, free = split_into_shapes(normals, shapes), degrees_of_freedom(layout, sizes)
    return assemble_draws(
        layout, parts, draw_chi(key, free, parts[3], uniform.reshape(shapes[3])), free
    )


def step_and_fold(
    layout: Layout,
    given: tuple[Any, ...],
    state: Rows,
    part: SpanDraws,
    index: IntScalar,
    seen: PyTree,
    see: Function | None,
) -> tuple[Rows, Any]:
    """One step, with its fold, of a grouping whose steps are single, given (parameters, algorithm, dimension); as `run_span` makes many."""
    parameters, algorithm, dimension = given
    alpha = alpha_of_steps(index, layout.batch, dimension)
    inputs, labels = segment_inputs(layout, parameters, part, jnp.reshape(alpha, 1))
    kicks = segment_kicks(layout, part)
    now, rates = values_at((parameters, algorithm), alpha)
    x, noise, kicks = jax.tree.map(lambda leaf: leaf[0], (inputs, labels, kicks))
    if layout.inputs == 1 and kicks is None and len(layout.compressed_blocks):
        rows, x = rotate_to_input(layout, state.rows, x)
        state = state._replace(rows=rows)
    # lengths of rows do not change in a fold: taken before it, neither root waits for the other
    late = layout.structure.constraint.fixes_norms and layout.update is None
    moving = layout
    if late:
        moving = replace(layout, structure=replace(layout.structure, constraint=NONE))
    state = chain_step(
        moving,
        (now, rates),
        rates["lr"] / dimension,
        state,
        (x, noise, part.outside, kicks),
        dimension,
        index,
    )
    rows = fold(layout, state.rows)
    state = state._replace(
        rows=rows * jax.lax.rsqrt(jnp.sum(state.rows**2, axis=-1, keepdims=True)) if late else rows
    )
    if see is not None:
        seen = see(seen, index + 1, overlaps(layout, parameters, state))
    return state, seen


def rotate_to_input(
    layout: Layout, rows: Float[Numeric, "rows columns"], x: Float[Numeric, "1 columns"]
) -> tuple[Float[Numeric, "rows columns"], Float[Numeric, "1 columns"]]:
    """The same rows and input in a frame whose first direction beside the signals is the input's, by rotations of two neighbours.

    They leave a triangle with one diagonal more, and the input has one number in place of one a row: a step, and the fold after it, then
    take p^2 operations and not p^3 where zeros are known to be zeros.
    """
    k, inside = layout.structure.signals, layout.inside
    (strip, blocks), (placed, seen) = layout.split(rows), layout.split(x)
    faced, inputs = [], []
    for block in range(len(layout.compressed_blocks)):
        columns = [blocks[:, block, column] for column in range(k, inside)]
        along = [seen[0, block, column] for column in range(k, inside)]
        for j in range(len(columns) - 1, 0, -1):
            length = jnp.sqrt(along[j - 1] ** 2 + along[j] ** 2)
            some = length > 0
            safe = jnp.where(some, length, 1.0)
            c, s = jnp.where(some, along[j - 1] / safe, 1.0), along[j] / safe
            columns[j - 1], columns[j] = (
                c * columns[j - 1] + s * columns[j],
                c * columns[j] - s * columns[j - 1],
            )
            along[j - 1] = length
        first = blocks[:, block, :k], jnp.stack(columns, axis=1), blocks[:, block, inside:]
        faced.append(jnp.concatenate(first, axis=1))
        ahead = jnp.concatenate([along[0][None], jnp.zeros(len(along) - 1, x.dtype)])
        inputs.append(
            jnp.concatenate([seen[:, block, :k], ahead[None], seen[:, block, inside:]], axis=1)
        )
    return layout.join(strip, jnp.stack(faced, axis=1)), layout.join(
        placed, jnp.stack(inputs, axis=1)
    )


def run_span(
    layout: Layout,
    given: tuple[Any, ...],
    state: Rows,
    draws: SpanDraws,
    when: tuple[Any, ...],
    seen: PyTree,
    see: Function | None,
) -> tuple[Rows, Any]:
    """The steps of one span that lie in [since, end), given (parameters, algorithm, dimension).

    `when`: the number of the span's first step, since, end. After each step `see(seen, steps made, overlaps)` may note something, such as
    the first step at which a run has left a plateau.
    """
    (parameters, algorithm, dimension), (first, since, end) = given, when
    number = first + jnp.arange(layout.span_steps).reshape(layout.folds, layout.steps)
    active = (number >= since) & (number < end)

    def block(
        carry: tuple[Rows, Any], given: tuple[SpanDraws, Any, Any]
    ) -> tuple[tuple[Rows, Any], None]:
        part, on, numbers = given
        inputs, labels = segment_inputs(
            layout, parameters, part, alpha_of_steps(numbers, layout.batch, dimension)
        )
        kicks = segment_kicks(layout, part)

        def step(carry: tuple[Rows, Any], sample: tuple[Any, ...]) -> tuple[tuple[Rows, Any], None]:
            state, seen = carry
            x, noise, kicks, flag, index = sample
            now, rates = values_at(
                (parameters, algorithm), alpha_of_steps(index, layout.batch, dimension)
            )
            rate = jnp.where(flag, rates["lr"] / dimension, 0.0)
            moved = chain_step(
                layout,
                (now, rates),
                rate,
                state,
                (x, noise, part.outside, kicks),
                dimension,
                index,
            )
            # a plain step of length 0 changes nothing; others have to be held
            state = (
                moved
                if layout.update is None
                else jax.tree.map(partial(jnp.where, flag), moved, state)
            )
            if see is not None:
                found = see(seen, index + 1, overlaps(layout, parameters, state))
                seen = jax.tree.map(partial(jnp.where, flag), found, seen)
            return (state, seen), None

        (state, seen), _ = jax.lax.scan(step, carry, (inputs, labels, kicks, on, numbers))
        # a span that stops inside a block keeps its unfolded columns: where it stops then changes nothing
        return (
            state._replace(rows=jnp.where(on[-1], fold(layout, state.rows), state.rows)),
            seen,
        ), None

    (state, seen), _ = jax.lax.scan(block, (state, seen), (draws, active, number))
    return state, seen


def segment_inputs(
    layout: Layout,
    parameters: Parameters,
    part: SpanDraws,
    alpha: Float[Numeric, " steps"] | None = None,
) -> tuple[Float[Numeric, "steps inputs columns"], Any]:
    """The inputs of a block of steps in the compressed frame, (steps, inputs, columns), and what the loss takes beside them; at the `alpha`
    of each step, where the law of samples depends on it."""
    shape = (*part.inside.shape[:-1], layout.columns)
    own = _outside(layout, part)[:, : layout.inputs]
    outside = jnp.zeros(shape, part.inside.dtype) if layout.wide_batch else own.reshape(shape)
    normals = (jnp.concatenate([part.inside, outside], axis=-1), part.noise, part.explicit)
    changing = {name: parameters[name] for name in SAMPLED if name in parameters}
    if alpha is None or not any(
        is_scheduled(leaf) for leaf in jax.tree.leaves(changing, is_leaf=is_scheduled)
    ):
        return _made_inputs(layout, (layout.steps, layout.inputs), parameters, *normals)

    def one(alpha: Scalar, *normals: Any) -> Any:
        return _made_inputs(
            layout, (layout.inputs,), {**parameters, **values_at(changing, alpha)}, *normals
        )

    return jax.vmap(one)(alpha, *normals)


SAMPLED = (
    "draws",
    "probabilities",
    "input_noise",
)  # numbers of the samples that may depend on alpha


def _made_inputs(
    layout: Layout,
    lead: tuple[int, ...],
    parameters: Parameters,
    normals: Numeric,
    noise: Numeric,
    strip: Numeric,
) -> tuple[Any, Any]:
    """Inputs (*lead, columns) from their normals, and what the loss takes beside them."""
    sample = layout.structure.sample
    draws = sample.draw(parameters, noise)
    given = sample.loss_argument(draws)
    if sample.noisy_inputs:
        given = NoisyInputs(given, *clean_signals(sample, parameters, draws))
        if given.share.ndim == 1:
            given = given._replace(
                share=jnp.broadcast_to(given.share, (*given.rest.shape[:-1], *given.share.shape))
            )
    if not layout.explicit_sizes:
        return compressed_inputs(sample, parameters, normals, draws).reshape(*lead, -1), given
    x = compressed_inputs(
        sample, select_blocks(parameters, layout.compressed_blocks), normals, draws
    )
    place = Embedding(
        scale(parameters)[..., layout.explicit_blocks],
        np.arange(len(layout.explicit_blocks)),
        explicit_signals(layout, parameters),
    )
    placed = inputs_in_space(sample, parameters, strip, draws, place)
    return layout.join(placed.reshape(*lead, -1), x.reshape(*lead, *x.shape[-2:])), given


class NoisyInputs(NamedTuple):
    """What a loss takes where the students' inputs have noise: its draws, the share (..., blocks) of what is seen that is the input, and
    what the signals have beside it (..., K)."""

    given: Any
    share: Any
    rest: Any


def _outside(layout: Layout, part: SpanDraws) -> Float[Numeric, "steps inputs blocks columns"]:
    """What lies outside of the frame, in the new columns: of every step's inputs (of a wide batch: combinations), then of its kicks."""
    return jnp.moveaxis(part.outside, 0, 1).reshape(
        layout.steps, layout.columns // layout.steps, len(layout.compressed_blocks), layout.columns
    )


def segment_kicks(layout: Layout, part: SpanDraws) -> Float[Numeric, "steps p columns"] | None:
    """The rows of noise of an update's own, standard normals in every direction; None where it has none."""
    if not layout.kicks:
        return None
    return layout.join(
        part.explicit_kicks,
        jnp.concatenate([part.kicks, _outside(layout, part)[:, -layout.kicks :]], axis=-1),
    )


def sample_moves(
    structure: Structure,
    parameters: Parameters,
    fields: Any,
    signals: Any,
    head: Float[Numeric, " p"],
    noise: PyTree,
    lengths: Any = None,
) -> tuple[Any, Any, Any]:
    """How the samples of a batch move the rows: dloss/dfields h (inputs, p), dloss/dhead (batch, p), and where the loss reads overlaps
    (which then stand in the parameters) its coefficients [A | B] on rows and signals (batch, p, p + K), from fields (inputs, p), signals
    (inputs, K) and, where they are read, X X^T/d (batch, tokens, tokens)."""
    sample = structure.sample

    def one(fields: Any, signals: Any, noise: PyTree, lengths: Any) -> Any:
        numbers = parameters
        if lengths is not None:
            numbers = {**parameters, "overlaps": parameters["overlaps"]._replace(lengths=lengths)}
        return structure.loss.move(fields, signals, head, noise, numbers)[1]

    found = jax.vmap(one)(
        sample.tokens.group_by_sample(fields),
        sample.tokens.group_by_sample(signals),
        noise,
        lengths,
    )
    # a user's loss may hold float64 constants; a float32 simulation stays one
    h, head_gradient = (
        sample.tokens.flatten_inputs(found.inputs).astype(fields.dtype),
        found.head.astype(fields.dtype),
    )
    pulls = (
        jnp.concatenate([found.rows, found.signals], axis=-1).astype(fields.dtype)
        if structure.loss.reads_overlaps
        else None
    )
    return h, head_gradient, pulls


def sample_gradients(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "inputs p"],
    signals: Float[Numeric, "inputs K"],
    head: Float[Numeric, " p"],
    noise: PyTree,
) -> tuple[Float[Numeric, "inputs p"], Float[Numeric, "samples p"]]:
    """dloss/dfields (inputs, p) and dloss/dhead (batch, p) of a loss that reads no overlaps."""
    return sample_moves(structure, parameters, fields, signals, head, noise)[:2]


@dataclass(frozen=True, eq=False)
class ChainBatch(GradientSource):
    """A batch seen from the compressed frame: inputs x (inputs, columns), what the loss takes beside them, what lies outside, kicks."""

    layout: Layout
    parameters: Any
    dimension: Any
    x: Any
    given: Any
    outside: Any
    kicks: Any = None

    def _moves(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any, Any, Any, Any]:
        layout, parameters, x = self.layout, self.parameters, self.x
        structure = layout.structure
        # sums of products, not dot products: on a CPU the many tiny matrices of a batch of runs fuse into one loop
        fields = jnp.sum(rows[None] * x[:, None], axis=-1)
        if shift is not None:
            # apart, so that a small shift along large inputs is not rounded away
            fields, rows = fields + jnp.sum(shift[None] * x[:, None], axis=-1), rows + shift
        head = head if head_shift is None else head + head_shift
        given, (in_strip, in_blocks) = self.given, layout.split(x)
        if isinstance(given, NoisyInputs):  # signals are those of the inputs without noise
            in_strip = in_strip * given.share[..., layout.explicit_blocks]
            in_blocks = in_blocks * given.share[..., layout.compressed_blocks, None]
        frame = (
            parameters["frame"][layout.compressed_blocks]
            if layout.explicit_sizes
            else parameters["frame"]
        )
        signals = jnp.sum(frame * in_blocks[:, :, None, : structure.signals], axis=(1, 3))
        if layout.explicit_sizes:
            signals = signals + jnp.sum(
                explicit_signals(layout, parameters) * in_strip[:, None], axis=-1
            )
        if isinstance(given, NoisyInputs):
            signals, given = signals + given.rest, given.given
        reading, lengths = parameters, None
        if structure.loss.reads_overlaps:
            reading = structure.loss.parameters_with_overlaps(
                parameters, *_gram_and_overlaps(layout, parameters, rows)
            )
        if structure.loss.reads_lengths:
            tokens = x.reshape(layout.batch, -1, x.shape[1])
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / self.dimension
        return rows, head, *sample_moves(structure, reading, fields, signals, head, given, lengths)

    def overlaps(self, rows: Any) -> Any:
        return loss_overlaps(
            self.parameters, *_gram_and_overlaps(self.layout, self.parameters, rows)
        )

    def _pulled(self, pull: Any, rows: Any) -> Any:
        """What coefficients (..., [blocks,] p, p + K) on rows and signals move the rows along."""
        layout, p = self.layout, self.layout.structure.width
        signals = _signal_rows(layout, self.parameters)
        if not layout.structure.loss.moves_by_block:
            return pull[..., :p] @ rows + pull[..., p:] @ signals
        by_column = jnp.take(pull, layout.column_blocks, axis=-3)
        return jnp.einsum("...cif,fc->...ic", by_column, jnp.concatenate([rows, signals]))

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        layout, parameters, x, p = (
            self.layout,
            self.parameters,
            self.x,
            self.layout.structure.width,
        )
        rows, head, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        # a mean over one sample is left out: the compiler would keep it as a pass of its own
        found = (
            h[0, :, None] * x[0]
            if layout.inputs == 1
            else jnp.sum(h[:, :, None] * x[:, None], axis=0) / layout.batch
        )
        if layout.wide_batch:
            mixed, sizes = (
                layout.structure.sample.tokens.correlate_inputs(parameters, h.T).T,
                scale(parameters)[..., layout.compressed_blocks],
            )
            if (
                layout.structure.sample.context_spectra
            ):  # samples of several contexts, each of its own size in every block
                mixed, sizes = (
                    select_row(self.given["context"], sizes, h.dtype).T[..., None] * mixed,
                    jnp.ones(len(layout.compressed_blocks)),
                )
            combined = jnp.swapaxes(jnp.linalg.qr(mixed, mode="r"), -1, -2) / layout.batch
            new = sizes[:, None, None] * (combined @ self.outside[:, :p])
            strip, blocks = layout.split(found)
            found = layout.join(strip, blocks.at[..., layout.inside :].set(jnp.moveaxis(new, 0, 1)))
        if pulls is not None:
            found = found + self._pulled(jnp.mean(pulls, axis=0), rows)
        return found, jnp.mean(head_gradient, axis=0)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        layout, p = self.layout, self.layout.structure.width
        rows, head, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        found = jnp.sum(
            (h[:, :, None] * self.x[:, None]).reshape(layout.batch, -1, p, self.x.shape[1]),
            axis=1,
        )
        if pulls is not None:
            found = found + self._pulled(pulls, rows)
        return found, head_gradient

    def noise(self) -> Any:
        return self.kicks


def chain_step(
    layout: Layout,
    numbers: tuple[Any, Any],
    rate: Scalar,
    state: Rows,
    sample: tuple[Any, ...],
    dimension: Scalar | None = None,
    number: IntScalar = 0,
) -> Rows:
    """One step on the compressed rows, with the numbers of problem and algorithm. Plain SGD needs no dimension.

    `sample`: inputs x (inputs, columns) as seen from there, what the loss takes beside them, what lies outside, and the update's kicks.
    """
    parameters, algorithm = numbers
    stride = Stride(rate, algorithm["head_rate"], parameters["weight_decay"], layout.structure)
    return take_step(
        layout.update,
        algorithm,
        state,
        ChainBatch(layout, parameters, dimension, *sample),
        stride,
        dimension,
        number,
    )


def fold(layout: Layout, rows: Float[Numeric, "rows columns"]) -> Float[Numeric, "rows columns"]:
    """[T | L | new] -> [T | L' | 0] with the same Gram matrix: L'^T is the R of a QR decomposition, also when rank is lost."""
    if not len(layout.compressed_blocks):
        return rows
    k, (strip, blocks) = layout.structure.signals, layout.split(rows)
    rest = jnp.transpose(blocks[..., k:], (1, 2, 0))
    one = layout.rows == 1  # the R of a single column is its length
    L = (
        jnp.sqrt(jnp.sum(rest**2, axis=1, keepdims=True))
        if one
        else jnp.swapaxes(jnp.linalg.qr(rest, mode="r"), -1, -2)
    )
    empty = jnp.zeros((*L.shape[:-1], layout.columns), rows.dtype)
    folded = jnp.moveaxis(jnp.concatenate([L, empty], axis=-1), 0, 1)
    return layout.join(strip, jnp.concatenate([blocks[..., :k], folded], axis=-1))
