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
class Grouping:
    """How steps are grouped: `steps` between two folds, `folds` in a span of random numbers. Static, and independent of the
    number of runs, the dimension and the save times, so that none of them changes the numbers."""

    structure: Structure
    batch: int
    single: bool = False  # one step at a time, for averages over one step
    update: Law | None = None  # None: plain SGD
    raw: tuple[
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
        if self.wide_batch or self.single:
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

    def at(self, sizes: np.ndarray) -> Grouping:
        """The same at these sizes of the blocks: coordinates are kept where they are few, of many blocks also where that is cheaper."""
        most = self.inside + (self.columns if len(sizes) > FEW_BLOCKS else 0)
        raw = tuple(int(size) if size <= most else 0 for size in sizes)
        return replace(self, raw=raw if any(raw) and len(raw) > 1 else ())

    @property
    def wide(self) -> np.ndarray:
        """The blocks that are compressed."""
        return np.array(
            [block for block in range(self.structure.blocks) if not (self.raw and self.raw[block])],
            dtype=int,
        )

    @property
    def strip(self) -> np.ndarray:
        """The block of each column of the strip."""
        return np.repeat(np.arange(len(self.raw)), self.raw)

    @property
    def strip_place(self) -> np.ndarray:
        """Which coordinate of its block each column of the strip is."""
        return np.concatenate([np.arange(0), *(np.arange(size) for size in self.raw)]).astype(int)

    @property
    def column_blocks(self) -> np.ndarray:
        """The block of each column, of the strip and of the compressed blocks."""
        return np.concatenate([self.strip, np.repeat(self.wide, self.inside + self.columns)])

    def joined(self, strip: Any, blocks: Any) -> Any:
        """Columns (..., strip) and (..., wide blocks, columns), flat."""
        flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
        return jnp.concatenate([strip, flat], axis=-1) if self.raw else flat

    def split(self, columns: Any) -> tuple[Any, Any]:
        """The strip and the wide blocks of flat columns."""
        cut = len(self.strip)
        return columns[..., :cut], columns[..., cut:].reshape(
            *columns.shape[:-1], len(self.wide), self.inside + self.columns
        )


class SpanDraws(NamedTuple):
    """The random numbers of a span: inside (folds, steps, batch, [tokens,] blocks, K + p), normals of the draws (folds, steps, batch, ...),
    the Bartlett factors of the outside (folds, blocks, columns, columns), and the strip (folds, steps, batch, [tokens,] columns)."""

    inside: Float[Numeric, "folds steps ... blocks inside"]
    noise: Float[Numeric, "folds steps batch ..."]
    outside: Float[Numeric, "folds blocks columns columns"]
    strip: Any = None
    kicks: Any = None  # of an update's own noise: inside (folds, steps, p, blocks, K + p)
    strip_kicks: Any = None


def initial_rows(
    grouping: Grouping,
    T: Float[Numeric, "blocks rows K"],
    L: Float[Numeric, "blocks rows rows"],
    head: Float[Numeric, " rows"],
    scalars: tuple[Any, ...] = (),
) -> Rows:
    """[strip | T L 0 | ...] from (blocks, rows, K) and (blocks, rows, rows), rows of all sets or of the weights: then the others are 0."""
    more = count_row_sets(grouping.update) * grouping.structure.width - T.shape[1]
    # rows that are 0, and what the others have along their columns
    room = more + grouping.columns
    every = jnp.moveaxis(
        jnp.pad(jnp.concatenate([T, L], axis=-1), ((0, 0), (0, more), (0, room))), 0, 1
    )
    strip, blocks = every[:, grouping.strip, grouping.strip_place], every[:, grouping.wide]
    return Rows(grouping.joined(strip, blocks), jnp.pad(head, (0, more)), scalars)


def overlaps(grouping: Grouping, parameters: Parameters, state: Rows) -> dict[str, Any]:
    """M, Q (block by block) and a of the weights."""
    p = grouping.structure.width
    Q, M = _gram_and_overlaps(grouping, parameters, state.rows[:p])
    return {"M": M, "Q": Q, "a": state.head[: grouping.structure.head_size]}


def overlaps_of_sets(grouping: Grouping, parameters: Parameters, state: Rows) -> dict[str, Any]:
    """The same with those of all sets of rows, where an update keeps others, and its scalars."""
    Q, M = _gram_and_overlaps(grouping, parameters, state.rows)
    p = grouping.structure.width
    found = {"M": M[:, :p], "Q": Q[:, :p, :p], "a": state.head[: grouping.structure.head_size]}
    if len(Q[0]) > p:
        found |= {"rows_M": M, "rows_Q": Q, "rows_a": state.head}
    return found | ({"update_scalars": jnp.stack(state.scalars)} if state.scalars else {})


def _gram_and_overlaps(
    grouping: Grouping, parameters: Parameters, rows: Float[Numeric, "p columns"]
) -> tuple[Any, Any]:
    """Q and M (block by block) of rows: sums of products, as in `one_step`."""
    strip, blocks = grouping.split(rows)
    blocks = jnp.moveaxis(blocks, 1, 0)
    M = jnp.sum(
        blocks[..., : grouping.structure.signals][:, :, None]
        * parameters["frame"][grouping.wide][:, None],
        axis=-1,
    )
    Q = jnp.sum(blocks[:, :, None] * blocks[:, None], axis=-1)
    if not grouping.raw:
        return Q, M

    def by_block(
        products: Float[Numeric, "p q columns"], others: Float[Numeric, "blocks p q"]
    ) -> Float[Numeric, "blocks p q"]:
        found = jnp.zeros((len(grouping.raw), *products.shape[:2]), products.dtype)
        return (
            found.at[grouping.strip]
            .add(jnp.moveaxis(products, -1, 0))
            .at[grouping.wide]
            .set(others)
        )

    return by_block(strip[:, None] * strip[None], Q), by_block(
        strip[:, None] * strip_signals(grouping, parameters)[None], M
    )


def strip_signals(grouping: Grouping, parameters: Parameters) -> Float[Numeric, "K columns"]:
    """Coordinates of the signals along the columns of the strip: in a block of more coordinates than signals the rest of them are 0."""
    room = max(grouping.raw, default=0)
    frame = jnp.pad(
        jnp.asarray(parameters["frame"]),
        ((0, 0), (0, 0), (0, max(0, room - grouping.structure.signals))),
    )
    return frame[grouping.strip, :, grouping.strip_place].T


def _signal_rows(grouping: Grouping, parameters: Parameters) -> Float[Numeric, "K columns"]:
    """The signals as rows beside those of W."""
    frame = jnp.moveaxis(jnp.asarray(parameters["frame"])[grouping.wide], 0, 1)
    room = grouping.inside + grouping.columns - grouping.structure.signals
    return grouping.joined(
        strip_signals(grouping, parameters), jnp.pad(frame, ((0, 0), (0, 0), (0, room)))
    )


def span_shapes(grouping: Grouping, folds: int) -> tuple[tuple[int, ...], ...]:
    """Of the normals of so many folds: inside, draws, below the diagonal of the outside, proposals of its chi variables, strip, kicks."""
    structure, blocks, columns = grouping.structure, len(grouping.wide), grouping.columns
    inside = (
        folds,
        grouping.steps,
        grouping.batch,
        *structure.sample.tokens.shape,
        blocks,
        grouping.inside,
    )
    noise = (folds, grouping.steps, grouping.batch, structure.sample.normals_per_sample)
    kicks = (folds, grouping.steps, grouping.kicks, blocks, grouping.inside)
    strip = (*inside[:-2], len(grouping.strip))
    lower = (folds, blocks, columns * (columns - 1) // 2)
    return (
        inside,
        noise,
        lower,
        (folds, blocks, columns),
        strip,
        kicks,
        (*kicks[:3], len(grouping.strip)),
    )


def in_shapes(numbers: Float[Numeric, " n"], shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Numbers one after the other in arrays of these shapes."""
    edges = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [
        numbers[low:high].reshape(shape)
        for low, high, shape in zip(edges, edges[1:], shapes, strict=False)
    ]


def free_directions(
    grouping: Grouping, sizes: Float[Numeric, " blocks"]
) -> Float[Numeric, "wide columns"]:
    """Degrees of freedom left for each new column."""
    return (sizes[grouping.wide] - grouping.inside)[:, None] - jnp.arange(grouping.columns)


def span_draws(
    grouping: Grouping,
    parts: list[Any],
    lengths: Float[Numeric, "folds blocks columns"],
    free: Numeric,
) -> SpanDraws:
    """The random numbers of a span from normals in its shapes, and the chi variables of the outside."""
    inside, noise, lower, _, strip, kicks, strip_kicks = parts
    outside = bartlett_factor(lower, lengths, free, grouping.columns)
    if not grouping.kicks:
        return SpanDraws(inside, noise, outside, strip)
    return SpanDraws(inside, noise, outside, strip, kicks, strip_kicks)


def draw_span(grouping: Grouping, key: RandomKey, sizes: Float[Numeric, " blocks"]) -> SpanDraws:
    """The random numbers of one span of one run, from one key; `sizes` are the dimensions of the blocks (traced)."""
    shapes = span_shapes(grouping, grouping.folds)
    counts = [int(np.prod(shape)) for shape in shapes]
    # one call for all of it: many small calls to the generator cost more than the numbers
    normals, uniform = normals_and_uniforms(key, sum(counts), counts[3])
    parts, free = in_shapes(normals, shapes), free_directions(grouping, sizes)
    return span_draws(
        grouping, parts, draw_chi(key, free, parts[3], uniform.reshape(shapes[3])), free
    )


def lone_step(
    grouping: Grouping,
    given: tuple[Any, ...],
    state: Rows,
    part: SpanDraws,
    index: IntScalar,
    seen: PyTree,
    see: Function | None,
) -> tuple[Rows, Any]:
    """One step, with its fold, of a grouping whose steps are single, given (parameters, algorithm, dimension); as `run_span` makes many."""
    parameters, algorithm, dimension = given
    alpha = alpha_of_steps(index, grouping.batch, dimension)
    inputs, labels = block_inputs(grouping, parameters, part, jnp.reshape(alpha, 1))
    kicks = block_kicks(grouping, part)
    now, rates = values_at((parameters, algorithm), alpha)
    x, noise, kicks = jax.tree.map(lambda leaf: leaf[0], (inputs, labels, kicks))
    if grouping.inputs == 1 and kicks is None and len(grouping.wide):
        rows, x = facing(grouping, state.rows, x)
        state = state._replace(rows=rows)
    # lengths of rows do not change in a fold: taken before it, neither root waits for the other
    late = grouping.structure.constraint.fixes_norms and grouping.update is None
    moving = grouping
    if late:
        moving = replace(grouping, structure=replace(grouping.structure, constraint=NONE))
    state = one_step(
        moving,
        (now, rates),
        rates["lr"] / dimension,
        state,
        (x, noise, part.outside, kicks),
        dimension,
        index,
    )
    rows = fold(grouping, state.rows)
    state = state._replace(
        rows=rows * jax.lax.rsqrt(jnp.sum(state.rows**2, axis=-1, keepdims=True)) if late else rows
    )
    if see is not None:
        seen = see(seen, index + 1, overlaps(grouping, parameters, state))
    return state, seen


def facing(
    grouping: Grouping, rows: Float[Numeric, "rows columns"], x: Float[Numeric, "1 columns"]
) -> tuple[Float[Numeric, "rows columns"], Float[Numeric, "1 columns"]]:
    """The same rows and input in a frame whose first direction beside the signals is the input's, by rotations of two neighbours.

    They leave a triangle with one diagonal more, and the input has one number in place of one a row: a step, and the fold after it, then
    take p^2 operations and not p^3 where zeros are known to be zeros.
    """
    k, inside = grouping.structure.signals, grouping.inside
    (strip, blocks), (placed, seen) = grouping.split(rows), grouping.split(x)
    faced, inputs = [], []
    for block in range(len(grouping.wide)):
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
    return grouping.joined(strip, jnp.stack(faced, axis=1)), grouping.joined(
        placed, jnp.stack(inputs, axis=1)
    )


def run_span(
    grouping: Grouping,
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
    number = first + jnp.arange(grouping.span_steps).reshape(grouping.folds, grouping.steps)
    active = (number >= since) & (number < end)

    def block(
        carry: tuple[Rows, Any], given: tuple[SpanDraws, Any, Any]
    ) -> tuple[tuple[Rows, Any], None]:
        part, on, numbers = given
        inputs, labels = block_inputs(
            grouping, parameters, part, alpha_of_steps(numbers, grouping.batch, dimension)
        )
        kicks = block_kicks(grouping, part)

        def step(carry: tuple[Rows, Any], sample: tuple[Any, ...]) -> tuple[tuple[Rows, Any], None]:
            state, seen = carry
            x, noise, kicks, flag, index = sample
            now, rates = values_at(
                (parameters, algorithm), alpha_of_steps(index, grouping.batch, dimension)
            )
            rate = jnp.where(flag, rates["lr"] / dimension, 0.0)
            moved = one_step(
                grouping,
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
                if grouping.update is None
                else jax.tree.map(partial(jnp.where, flag), moved, state)
            )
            if see is not None:
                found = see(seen, index + 1, overlaps(grouping, parameters, state))
                seen = jax.tree.map(partial(jnp.where, flag), found, seen)
            return (state, seen), None

        (state, seen), _ = jax.lax.scan(step, carry, (inputs, labels, kicks, on, numbers))
        # a span that stops inside a block keeps its unfolded columns: where it stops then changes nothing
        return (
            state._replace(rows=jnp.where(on[-1], fold(grouping, state.rows), state.rows)),
            seen,
        ), None

    (state, seen), _ = jax.lax.scan(block, (state, seen), (draws, active, number))
    return state, seen


def block_inputs(
    grouping: Grouping,
    parameters: Parameters,
    part: SpanDraws,
    alpha: Float[Numeric, " steps"] | None = None,
) -> tuple[Float[Numeric, "steps inputs columns"], Any]:
    """The inputs of a block of steps in the compressed frame, (steps, inputs, columns), and what the loss takes beside them; at the `alpha`
    of each step, where the law of samples depends on it."""
    shape = (*part.inside.shape[:-1], grouping.columns)
    own = _outside(grouping, part)[:, : grouping.inputs]
    outside = jnp.zeros(shape, part.inside.dtype) if grouping.wide_batch else own.reshape(shape)
    normals = (jnp.concatenate([part.inside, outside], axis=-1), part.noise, part.strip)
    changing = {name: parameters[name] for name in SAMPLED if name in parameters}
    if alpha is None or not any(
        is_scheduled(leaf) for leaf in jax.tree.leaves(changing, is_leaf=is_scheduled)
    ):
        return _made_inputs(grouping, (grouping.steps, grouping.inputs), parameters, *normals)

    def one(alpha: Scalar, *normals: Any) -> Any:
        return _made_inputs(
            grouping, (grouping.inputs,), {**parameters, **values_at(changing, alpha)}, *normals
        )

    return jax.vmap(one)(alpha, *normals)


SAMPLED = (
    "draws",
    "probabilities",
    "input_noise",
)  # numbers of the samples that may depend on alpha


def _made_inputs(
    grouping: Grouping,
    lead: tuple[int, ...],
    parameters: Parameters,
    normals: Numeric,
    noise: Numeric,
    strip: Numeric,
) -> tuple[Any, Any]:
    """Inputs (*lead, columns) from their normals, and what the loss takes beside them."""
    sample = grouping.structure.sample
    draws = sample.draw(parameters, noise)
    given = sample.loss_argument(draws)
    if sample.noisy_inputs:
        given = Noticed(given, *clean_signals(sample, parameters, draws))
        if given.share.ndim == 1:
            given = given._replace(
                share=jnp.broadcast_to(given.share, (*given.rest.shape[:-1], *given.share.shape))
            )
    if not grouping.raw:
        return compressed_inputs(sample, parameters, normals, draws).reshape(*lead, -1), given
    x = compressed_inputs(sample, select_blocks(parameters, grouping.wide), normals, draws)
    place = Embedding(
        scale(parameters)[..., grouping.strip],
        np.arange(len(grouping.strip)),
        strip_signals(grouping, parameters),
    )
    placed = inputs_in_space(sample, parameters, strip, draws, place)
    return grouping.joined(placed.reshape(*lead, -1), x.reshape(*lead, *x.shape[-2:])), given


class Noticed(NamedTuple):
    """What a loss takes where the students' inputs have noise: its draws, the share (..., blocks) of what is seen that is the input, and
    what the signals have beside it (..., K)."""

    given: Any
    share: Any
    rest: Any


def _outside(grouping: Grouping, part: SpanDraws) -> Float[Numeric, "steps inputs blocks columns"]:
    """What lies outside of the frame, in the new columns: of every step's inputs (of a wide batch: combinations), then of its kicks."""
    return jnp.moveaxis(part.outside, 0, 1).reshape(
        grouping.steps, grouping.columns // grouping.steps, len(grouping.wide), grouping.columns
    )


def block_kicks(grouping: Grouping, part: SpanDraws) -> Float[Numeric, "steps p columns"] | None:
    """The rows of noise of an update's own, standard normals in every direction; None where it has none."""
    if not grouping.kicks:
        return None
    return grouping.joined(
        part.strip_kicks,
        jnp.concatenate([part.kicks, _outside(grouping, part)[:, -grouping.kicks :]], axis=-1),
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

    grouping: Grouping
    parameters: Any
    dimension: Any
    x: Any
    given: Any
    outside: Any
    kicks: Any = None

    def _moves(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any, Any, Any, Any]:
        grouping, parameters, x = self.grouping, self.parameters, self.x
        structure = grouping.structure
        # sums of products, not dot products: on a CPU the many tiny matrices of a batch of runs fuse into one loop
        fields = jnp.sum(rows[None] * x[:, None], axis=-1)
        if shift is not None:
            # apart, so that a small shift along large inputs is not rounded away
            fields, rows = fields + jnp.sum(shift[None] * x[:, None], axis=-1), rows + shift
        head = head if head_shift is None else head + head_shift
        given, (in_strip, in_blocks) = self.given, grouping.split(x)
        if isinstance(given, Noticed):  # signals are those of the inputs without noise
            in_strip = in_strip * given.share[..., grouping.strip]
            in_blocks = in_blocks * given.share[..., grouping.wide, None]
        frame = parameters["frame"][grouping.wide] if grouping.raw else parameters["frame"]
        signals = jnp.sum(frame * in_blocks[:, :, None, : structure.signals], axis=(1, 3))
        if grouping.raw:
            signals = signals + jnp.sum(
                strip_signals(grouping, parameters) * in_strip[:, None], axis=-1
            )
        if isinstance(given, Noticed):
            signals, given = signals + given.rest, given.given
        reading, lengths = parameters, None
        if structure.loss.reads_overlaps:
            reading = structure.loss.parameters_with_overlaps(
                parameters, *_gram_and_overlaps(grouping, parameters, rows)
            )
        if structure.loss.reads_lengths:
            tokens = x.reshape(grouping.batch, -1, x.shape[1])
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / self.dimension
        return rows, head, *sample_moves(structure, reading, fields, signals, head, given, lengths)

    def overlaps(self, rows: Any) -> Any:
        return loss_overlaps(
            self.parameters, *_gram_and_overlaps(self.grouping, self.parameters, rows)
        )

    def _pulled(self, pull: Any, rows: Any) -> Any:
        """What coefficients (..., [blocks,] p, p + K) on rows and signals move the rows along."""
        grouping, p = self.grouping, self.grouping.structure.width
        signals = _signal_rows(grouping, self.parameters)
        if not grouping.structure.loss.moves_by_block:
            return pull[..., :p] @ rows + pull[..., p:] @ signals
        by_column = jnp.take(pull, grouping.column_blocks, axis=-3)
        return jnp.einsum("...cif,fc->...ic", by_column, jnp.concatenate([rows, signals]))

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        grouping, parameters, x, p = (
            self.grouping,
            self.parameters,
            self.x,
            self.grouping.structure.width,
        )
        rows, head, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        # a mean over one sample is left out: the compiler would keep it as a pass of its own
        found = (
            h[0, :, None] * x[0]
            if grouping.inputs == 1
            else jnp.sum(h[:, :, None] * x[:, None], axis=0) / grouping.batch
        )
        if grouping.wide_batch:
            mixed, sizes = (
                grouping.structure.sample.tokens.correlate_inputs(parameters, h.T).T,
                scale(parameters)[..., grouping.wide],
            )
            if (
                grouping.structure.sample.context_spectra
            ):  # samples of several contexts, each of its own size in every block
                mixed, sizes = (
                    select_row(self.given["context"], sizes, h.dtype).T[..., None] * mixed,
                    jnp.ones(len(grouping.wide)),
                )
            combined = jnp.swapaxes(jnp.linalg.qr(mixed, mode="r"), -1, -2) / grouping.batch
            new = sizes[:, None, None] * (combined @ self.outside[:, :p])
            strip, blocks = grouping.split(found)
            found = grouping.joined(
                strip, blocks.at[..., grouping.inside :].set(jnp.moveaxis(new, 0, 1))
            )
        if pulls is not None:
            found = found + self._pulled(jnp.mean(pulls, axis=0), rows)
        return found, jnp.mean(head_gradient, axis=0)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        grouping, p = self.grouping, self.grouping.structure.width
        rows, head, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        found = jnp.sum(
            (h[:, :, None] * self.x[:, None]).reshape(grouping.batch, -1, p, self.x.shape[1]),
            axis=1,
        )
        if pulls is not None:
            found = found + self._pulled(pulls, rows)
        return found, head_gradient

    def noise(self) -> Any:
        return self.kicks


def one_step(
    grouping: Grouping,
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
    stride = Stride(rate, algorithm["head_rate"], parameters["weight_decay"], grouping.structure)
    return take_step(
        grouping.update,
        algorithm,
        state,
        ChainBatch(grouping, parameters, dimension, *sample),
        stride,
        dimension,
        number,
    )


def fold(
    grouping: Grouping, rows: Float[Numeric, "rows columns"]
) -> Float[Numeric, "rows columns"]:
    """[T | L | new] -> [T | L' | 0] with the same Gram matrix: L'^T is the R of a QR decomposition, also when rank is lost."""
    if not len(grouping.wide):
        return rows
    k, (strip, blocks) = grouping.structure.signals, grouping.split(rows)
    rest = jnp.transpose(blocks[..., k:], (1, 2, 0))
    one = grouping.rows == 1  # the R of a single column is its length
    L = (
        jnp.sqrt(jnp.sum(rest**2, axis=1, keepdims=True))
        if one
        else jnp.swapaxes(jnp.linalg.qr(rest, mode="r"), -1, -2)
    )
    empty = jnp.zeros((*L.shape[:-1], grouping.columns), rows.dtype)
    folded = jnp.moveaxis(jnp.concatenate([L, empty], axis=-1), 0, 1)
    return grouping.joined(strip, jnp.concatenate([blocks[..., :k], folded], axis=-1))
