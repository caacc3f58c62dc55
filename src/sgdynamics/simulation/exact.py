"""One-pass SGD at finite d, exactly in law, at a cost that does not depend on d."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.base import checks
from sgdynamics.base.arrays import (
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
)
from sgdynamics.base.random import step_key
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_steps import Model, run_span
from sgdynamics.simulation.layout import FEW_BLOCKS, Layout
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Resources,
    RunSetting,
    Simulator,
)
from sgdynamics.simulation.span_draws import draw_span

# Memory of the runs of a group, in bytes.
GROUP_BYTES = 1 << 28
# For a spectrum on a CPU: the size of a cache that the runs of a group should fit into, and the
# number of runs that go together even if they do not fit.
LEAST_GROUP, CACHE_BYTES = 16, 1 << 22


class ExactChain(Simulator):
    """Runs in the compressed space (`compressed`).

    Parameters
    ----------
    problem : Problem
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    setting : RunSetting
        Start, dimension and covariance blocks of the runs.
    """

    divides_over_devices = True

    def __init__(self, problem: Problem, algorithm: OnePassSGD, setting: RunSetting[Start]) -> None:
        block_sizes = setting.block_sizes
        # Simulations need a constant integer (`OnePassSGD.counts`).
        assert isinstance(algorithm.batch, int)
        layout = Layout(problem.structure, algorithm.batch, update=algorithm.law)
        self.layout = layout.for_block_sizes(block_sizes)
        # In a small block the frame of the signals depends on the size of the block.
        self.parameters = problem.parameters | {"frame": signal_frames(problem, block_sizes)}
        self.algorithm = algorithm.parameters
        if algorithm.stepping is not None:
            self.moves_per_step = algorithm.stepping.moves
        # Floats that are traced: one compiled program serves all dimensions.
        self.dimension = np.float64(setting.dimension)
        self.block_sizes = block_sizes.astype(np.float64)
        trained = problem.structure.trained
        start_of_sets = update_start(algorithm.stepping, setting.start, trained)
        self.T, self.L = compressed_rows(problem, start_of_sets, block_sizes)
        self.head, self.scalars = start_of_sets.a, start_of_sets.scalars
        self.vectors = start_of_sets.vectors

    def initial(self, chosen: np.ndarray) -> Rows:
        return _initial(
            self.layout,
            self.T[chosen],
            self.L[chosen],
            self.head[chosen],
            self.scalars[chosen],
            self.vectors[chosen],
        )

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        # int64 scalars: a Python int would be traced with another type and compiled again.
        return _advance_chain(
            self.layout,
            observation.observe,
            ChainInputs((self.parameters, self.algorithm, self.dimension), self.block_sizes),
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Rows) -> dict[str, Numeric]:
        return _overlaps(self.layout, self.parameters, state)

    @property
    def grain(self) -> int:
        return self.layout.span_steps

    def resources(self, steps: float = 0.0) -> Resources:
        layout, bytes_per_run = self.layout, self._bytes_per_run()
        # Bartlett factors have the square of the number of new columns, with one column per sample
        # if a batch is read again. They need most of the memory; the factor 4 is for temporaries.
        bytes_of_factors = 4 * 8 * layout.folds * layout.structure.blocks * layout.columns**2
        largest = GROUP_BYTES // bytes_of_factors
        if layout.structure.blocks > FEW_BLOCKS and jax.default_backend() == "cpu":
            # A spectrum has many columns. Runs that exceed the cache together are slower per run.
            largest = min(largest, max(LEAST_GROUP, int(CACHE_BYTES / bytes_per_run)))
        largest = max(1, min(Resources.largest_group, largest))
        size = (layout.batch, layout.structure.width, int(self.dimension))
        return Resources(bytes_per_run, largest, size)

    def _bytes_per_run(self) -> float:
        layout = self.layout
        n_blocks, n_strip = len(layout.compressed_blocks), len(layout.explicit_blocks)
        # Normals of a segment, its Bartlett factors, and the rows; float64 with temporaries.
        normals = layout.steps * layout.inputs * (n_strip + n_blocks * layout.inside + 1)
        factors = n_blocks * layout.columns**2
        rows = layout.structure.width * (n_strip + n_blocks * (layout.inside + layout.columns))
        return 8.0 * (layout.folds * (2 * normals + 2 * factors) + 4 * rows)


def check_room(problem: Problem, algorithm: OnePassSGD, sizes: np.ndarray) -> None:
    """Raise ValueError if the dimension is too small for the memory of an update.

    [T | L] has a column for each signal and each row of all sets. One of several blocks may have
    fewer coordinates, because it can be explicit (`layout.Layout`).
    """
    sets = count_row_sets(algorithm.law)
    least = problem.signals + sets * problem.width
    if algorithm.law is not None and len(sizes) == 1 and sizes[0] < least:
        memory = ", ".join(algorithm.law.rows)
        raise checks.reject(
            "dimension",
            int(sizes.sum()),
            f"the exact chain also stores the {memory} of {algorithm.update} and then needs "
            f"signals + {sets} width = {least} coordinates. Use a larger dimension or "
            'method="direct".',
        )


@partial(jax.jit, static_argnums=0)
def _initial(
    layout: Layout,
    T: Float[Numeric, "runs blocks p K"],
    L: Float[Numeric, "runs blocks p p"],
    head: Float[Numeric, "runs p"],
    scalars: Float[Numeric, "runs n"],
    vectors: Float[Numeric, "runs m entries"],
) -> Rows:
    of_head = tuple(vectors[:, index] for index in range(vectors.shape[1]))
    initial_run = partial(compressed.initial_rows, layout)
    return jax.vmap(initial_run)(T, L, head, tuple(scalars.T), of_head)


@partial(jax.jit, static_argnums=0)
def _overlaps(layout: Layout, parameters: Parameters, state: Rows) -> dict[str, Numeric]:
    return jax.vmap(partial(compressed.overlaps_with_memory, layout, parameters))(state)


class ChainInputs(NamedTuple):
    """Traced values that all runs share.

    Attributes
    ----------
    model : tuple
        Parameters of the problem, hyperparameters of the algorithm, and the dimension.
    block_sizes : array, (blocks,)
        Dimensions of the covariance blocks.
    """

    model: Model
    block_sizes: Float[Numeric, " blocks"]


@partial(jax.jit, static_argnums=(0, 1))
def _advance_chain(
    layout: Layout,
    observe: Observe | None,
    inputs: ChainInputs,
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `since` to step `end`.

    Returns
    -------
    state : Rows
        The states at step `end`.
    last_finite : array of int
        The last step at which each run was seen to be finite.
    records : pytree
        The updated records of the observation.
    """
    length = layout.span_steps
    observe_run = None if observe is None else partial(observe, shared)

    def make_span(
        index: IntScalar, carry: tuple[Rows, Int[Numeric, " runs"], PyTree]
    ) -> tuple[Rows, Int[Numeric, " runs"], PyTree]:
        """The steps of one span of all runs."""
        state, last_finite, records = carry
        first = index * length

        def advance_run(state: Rows, key: RandomKey, records: PyTree) -> tuple[Rows, PyTree]:
            # The key depends on the run and the span only. A call that starts inside of a span
            # draws the same numbers again and continues where the last call stopped.
            draws = draw_span(layout, step_key(key, index), inputs.block_sizes)
            interval = (first, since, end)
            return run_span(layout, inputs.model, state, draws, interval, records, observe_run)

        state, records = jax.vmap(advance_run)(state, keys, records)
        # Comparisons, not a maximum: XLA's fast maximum on a CPU may lose a NaN, and NaN < x is
        # false.
        is_finite = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2)) & jnp.all(
            jnp.abs(state.head) < LARGEST, axis=1
        )
        last_finite = jnp.where(is_finite, jnp.minimum(first + length, end), last_finite)
        return state, last_finite, records

    last_finite = jnp.broadcast_to(since, keys.shape)
    # All spans that overlap [since, end).
    return jax.lax.fori_loop(
        since // length, (end + length - 1) // length, make_span, (state, last_finite, records)
    )
