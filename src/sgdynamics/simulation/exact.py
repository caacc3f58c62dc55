"""One-pass SGD at finite d, exactly in law, at a cost that does not depend on d."""

from __future__ import annotations

from functools import partial
from typing import Any

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
    Scalar,
)
from sgdynamics.base.random import step_key
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation import compressed
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
)

GROUP_BYTES = 1 << 28
LEAST_GROUP, CACHE_BYTES = 16, 1 << 22  # of the runs of a spectrum that go together on a CPU


class ExactChain(Simulator):
    """Runs in the compressed space."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
    ) -> None:
        self.layout = compressed.Layout(
            problem.structure, algorithm.batch, update=algorithm.law
        ).for_block_sizes(sizes)
        self.parameters = problem.parameters | {"frame": signal_frames(problem, sizes)}
        self.algorithm = algorithm.parameters
        if algorithm.stepping is not None:
            self.moves_per_step = algorithm.stepping.moves
        self.dimension = np.float64(dimension)
        self.block_sizes = sizes.astype(np.float64)
        every = update_start(algorithm.stepping, begin)
        self.T, self.L = compressed_rows(problem, every, sizes)
        self.head, self.scalars = every.a, every.scalars

    def initial(self, chosen: np.ndarray) -> Any:
        return _initial(
            self.layout, self.T[chosen], self.L[chosen], self.head[chosen], self.scalars[chosen]
        )

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        numbers = (self.parameters, self.algorithm, self.dimension)
        return _advance_chain(
            self.layout,
            observation.observe,
            numbers,
            self.block_sizes,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Rows) -> dict[str, Any]:
        return _overlaps(self.layout, self.parameters, state)

    @property
    def grain(self) -> int:
        return self.layout.span_steps

    def largest_group(self) -> int:
        # a batch that is read again has a column a sample: their Bartlett factors are what takes memory
        most = GROUP_BYTES // (
            4 * 8 * self.layout.folds * self.layout.structure.blocks * self.layout.columns**2
        )
        if self.layout.structure.blocks > compressed.FEW_BLOCKS and jax.default_backend() == "cpu":
            # the many columns of a spectrum are no longer in the processor's cache where many runs go together
            most = min(most, max(LEAST_GROUP, int(CACHE_BYTES / self.bytes_per_run())))
        return max(1, min(super().largest_group(), most))

    @property
    def size(self) -> tuple[int, ...]:
        return self.layout.batch, self.layout.structure.width, int(self.dimension)

    def bytes_per_run(self, steps: float = 0.0) -> float:
        layout, blocks, strip = (
            self.layout,
            len(self.layout.compressed_blocks),
            len(self.layout.explicit_blocks),
        )
        inside = layout.steps * layout.inputs * (strip + blocks * layout.inside + 1)
        rows = layout.structure.width * (strip + blocks * (layout.inside + layout.columns))
        return 8.0 * (layout.folds * (2 * inside + 2 * blocks * layout.columns**2) + 4 * rows)


def check_room(problem: Problem, algorithm: OnePassSGD, sizes: np.ndarray) -> None:
    """The compressed space needs a coordinate for every signal and every row of an update's sets; one of several blocks may have fewer."""
    sets = count_row_sets(algorithm.law)
    least = problem.signals + sets * problem.width
    if algorithm.law is not None and len(sizes) == 1 and sizes[0] < least:
        raise checks.reject(
            "dimension",
            int(sizes.sum()),
            f"the {', '.join(algorithm.law.rows)} of {algorithm.update} stands beside the rows in the exact chain, which then needs "
            f'signals + {sets} width = {least} coordinates: take a larger one, or method="direct"',
        )


@partial(jax.jit, static_argnums=0)
def _initial(
    layout: compressed.Layout,
    T: Float[Numeric, "runs blocks p K"],
    L: Float[Numeric, "runs blocks p p"],
    head: Float[Numeric, "runs p"],
    scalars: Float[Numeric, "runs n"],
) -> Any:
    return jax.vmap(partial(compressed.initial_rows, layout))(T, L, head, tuple(scalars.T))


@partial(jax.jit, static_argnums=0)
def _overlaps(layout: compressed.Layout, parameters: Parameters, state: Rows) -> dict[str, Any]:
    return jax.vmap(partial(compressed.overlaps_with_memory, layout, parameters))(state)


@partial(jax.jit, static_argnums=(0, 1))
def _advance_chain(
    layout: compressed.Layout,
    see: Observe | None,
    numbers: tuple[Any, Any, Scalar],
    sizes: Float[Numeric, " blocks"],
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> AdvanceResult:
    """All runs from step `since` to step `end`, for each the last step at which it was seen to be finite, and what was seen."""
    length = layout.span_steps
    watch = None if see is None else partial(see, given)

    def span(
        index: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[Any, Int[Numeric, " runs"], Any]:
        state, last_good, seen = carry
        first = index * length

        def one(state: Rows, key: RandomKey, seen: PyTree) -> tuple[Rows, None]:
            draws = compressed.draw_span(layout, step_key(key, index), sizes)
            return compressed.run_span(
                layout, numbers, state, draws, (first, since, end), seen, watch
            )

        state, seen = jax.vmap(one)(state, keys, seen)
        # comparisons, not a maximum: XLA's fast maximum on a CPU may lose a NaN, and NaN < x is false
        fine = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2)) & jnp.all(
            jnp.abs(state.head) < LARGEST, axis=1
        )
        return state, jnp.where(fine, jnp.minimum(first + length, end), last_good), seen

    good = jnp.broadcast_to(since, keys.shape)
    return jax.lax.fori_loop(
        since // length, (end + length - 1) // length, span, (state, good, seen)
    )
