"""One step of one run of the exact chain, in the form that a GPU kernel unrolls.

Between steps a run is what registers have to hold, so its state is packed: a fold ends every step,
after which the new columns are 0 and the part of each block outside of the signals is a lower
triangle. Only the entries that may differ from 0 are stored.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree
from sgdynamics.simulation.chain_steps import Model, step_and_fold
from sgdynamics.simulation.gpu.draws import LANES, StepDraws
from sgdynamics.simulation.gpu.unroll import LaneFunction, prepare
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.running import Observe
from sgdynamics.simulation.span_draws import (
    assemble_draws,
    degrees_of_freedom,
    normal_shapes,
    split_into_shapes,
)


class RunState(NamedTuple):
    """State of one run between two steps, or of several with a leading axis.

    Attributes
    ----------
    rows : array
        Entries of the folded rows, packed by `pack_rows`.
    head : array
        Second-layer weights.
    scalars, squares, vectors : pytree
        Memory of the update (optimiser).
    records : pytree
        Records of the observation of the run.
    """

    rows: Numeric
    head: Numeric
    scalars: PyTree
    squares: PyTree
    vectors: PyTree
    records: PyTree


class StepInputs(NamedTuple):
    """Random numbers and index of one step of one run.

    Attributes
    ----------
    normals : array
        Standard normals of the step.
    chi : array
        Chi variables (blocks, columns): the diagonal of the Bartlett factors.
    index : int
        Index of the step.
    """

    normals: Numeric
    chi: Numeric
    index: IntScalar


class UniformInputs(NamedTuple):
    """Values that all runs share.

    Attributes
    ----------
    model : tuple
        Parameters of the problem, hyperparameters of the algorithm, and the dimension.
    block_sizes : array
        Dimensions of the covariance blocks.
    shared : pytree
        Values that the observation needs and that all runs share.
    """

    model: Model
    block_sizes: Numeric
    shared: PyTree


# ---- packed rows


@cache
def _packing(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the packed entries in the flat rows, and the inverse map.

    The flat rows are those without new columns. The inverse map sends the entries that are 0 to the
    index behind the last packed entry.
    """
    signals, rows = layout.structure.signals, layout.rows
    # A block is [T | L]: all signal columns, and column k of the triangle L from row k on.
    in_block = np.arange(layout.inside) - signals <= np.arange(rows)[:, None]
    in_strip = np.ones((rows, len(layout.explicit_blocks)), bool)
    in_blocks = np.tile(in_block, (1, len(layout.compressed_blocks)))
    is_packed = np.concatenate([in_strip, in_blocks], axis=1).reshape(-1)
    # Static index arrays: packing and unpacking are moves, and free in unrolled code.
    positions = np.flatnonzero(is_packed)
    inverse = np.full(is_packed.shape, len(positions))
    inverse[positions] = np.arange(len(positions))
    return positions, inverse


def pack_rows(layout: Layout, rows: Numeric) -> Numeric:
    """The entries of folded rows (..., rows, columns) that may differ from 0, flat."""
    strip, blocks = layout.split(rows)
    # The new columns are 0 after a fold and are left out.
    flat = blocks[..., : layout.inside].reshape(*rows.shape[:-1], -1)
    columns = jnp.concatenate([strip, flat], axis=-1) if layout.explicit_sizes else flat
    return columns.reshape(*rows.shape[:-2], -1)[..., _packing(layout)[0]]


def unpack_rows(layout: Layout, packed_rows: Numeric) -> Numeric:
    """Folded rows with all their zeros: the inverse of `pack_rows`.

    Inside of a kernel the zeros are constants, and the unrolled step makes no operations with them.
    """
    # The inverse map sends all structural zeros to this last entry.
    zero = jnp.zeros((*packed_rows.shape[:-1], 1), packed_rows.dtype)
    entries = jnp.concatenate([packed_rows, zero], axis=-1)
    n_strip, leading = len(layout.explicit_blocks), packed_rows.shape[:-1]
    rows = entries[..., _packing(layout)[1]].reshape(*leading, layout.rows, -1)
    block_shape = (len(layout.compressed_blocks), layout.inside)
    blocks = rows[..., n_strip:].reshape(*rows.shape[:-1], *block_shape)
    new_columns = jnp.zeros((*blocks.shape[:-1], layout.columns), rows.dtype)
    return layout.join(rows[..., :n_strip], jnp.concatenate([blocks, new_columns], axis=-1))


def pack_states(layout: Layout, state: Rows, records: PyTree) -> RunState:
    """The states of several runs, with a leading axis, and their records in packed form."""
    rows = pack_rows(layout, state.rows)
    return RunState(rows, state.head, state.scalars, state.squares, state.vectors, records)


# ---- the step


def step_run(
    layout: Layout,
    observe: Observe | None,
    uniform: UniformInputs,
    state: RunState,
    inputs: StepInputs,
) -> RunState:
    """One step of one run, from the definition of the chain itself (`step_and_fold`)."""
    # The normals come as one flat vector; the layout knows what each of them is for.
    shapes = normal_shapes(layout, 1)
    draws = assemble_draws(
        layout,
        split_into_shapes(inputs.normals, shapes),
        inputs.chi[None],
        degrees_of_freedom(layout, uniform.block_sizes),
    )
    # The axis of folds has length 1: the layout has single steps.
    draws = jax.tree.map(lambda leaf: leaf[0], draws)
    rows = Rows(
        unpack_rows(layout, state.rows),
        state.head,
        state.scalars,
        state.squares,
        vectors=state.vectors,
    )
    rows, records = step_and_fold(
        layout,
        uniform.model,
        rows,
        draws,
        inputs.index,
        state.records,
        None if observe is None else partial(observe, uniform.shared),
    )
    return pack_states(layout, rows, records)


def step_draws(layout: Layout) -> StepDraws:
    """Numbers of normals and chi variables of one step."""
    counts = [int(np.prod(shape)) for shape in normal_shapes(layout, 1)]
    # The fourth group of normals proposes the chi variables.
    chi_shape = (len(layout.compressed_blocks), layout.columns)
    return StepDraws(sum(counts), sum(counts[:3]), chi_shape)


class StepFunction(NamedTuple):
    """A traced step, ready for a kernel.

    Attributes
    ----------
    function : LaneFunction
        The step as a function of uniform values, `RunState` and `StepInputs`.
    draws : StepDraws
        Random numbers of the step.
    state_shapes : RunState
        Shapes of the state of one run.
    """

    function: LaneFunction
    draws: StepDraws
    state_shapes: RunState

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the leaves of `StepInputs`."""
        return (self.draws.normals,), self.draws.chi_shape, ()

    def count_operations(self) -> int:
        """Number of operations of the unrolled step."""
        n_states = len(jax.tree.leaves(self.state_shapes))
        # States, normals and chi variables are vectors over the lanes. The index of the step is a
        # scalar: all runs of a program are at the same step.
        entry_shapes = [(LANES,)] * (n_states + 2) + [()]
        return self.function.count_operations(entry_shapes, lanes=None)


def prepare_step(
    layout: Layout,
    observe: Observe | None,
    uniform: UniformInputs,
    state_shapes: RunState,
) -> StepFunction:
    """Trace the step of one run; `uniform` has values or shapes."""
    draws = step_draws(layout)
    # Float64 and int64, as the draws and the step counter of the kernel are.
    shapes = (
        jax.ShapeDtypeStruct((draws.normals,), np.float64),
        jax.ShapeDtypeStruct(draws.chi_shape, np.float64),
        jax.ShapeDtypeStruct((), np.int64),
    )
    inputs = StepInputs._make(shapes)
    function = prepare(partial(step_run, layout, observe), uniform, state_shapes, inputs)
    return StepFunction(function, draws, state_shapes)
