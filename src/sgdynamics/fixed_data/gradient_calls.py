"""Evaluations of the gradient in the step of an update: their number, and the first point.

On a fixed data set every evaluation conditions the data on a further product X^T g. Their number
is therefore a static property of a step, found by a trial.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    increments,
)
from sgdynamics.algorithms.updates.law import count_row_sets
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Scalar
from sgdynamics.base.controls import values_at
from sgdynamics.base.precision import float64
from sgdynamics.problems.moves import BlockOverlaps, LossOverlaps
from sgdynamics.problems.structure import Structure

COLUMNS = 7  # of the rows in a trial


class GradientCalls(NamedTuple):
    """Evaluations of the gradient in one step.

    Attributes
    ----------
    count : int or None
        Their number; None if they are in a compiled loop.
    first_at_weights : bool
        Whether the first one is at the weights.
    by_sample : bool
        Whether the step reads the gradients of single samples.
    """

    count: int | None
    first_at_weights: bool
    by_sample: bool


class _GradientInLoop(Exception):
    """A step evaluates the gradient inside of a compiled loop."""


class _TrialSource(GradientSource):
    """A batch that records where gradients are evaluated."""

    def __init__(self, structure: Structure, means: tuple[str, ...]) -> None:
        self.structure, self.by_sample, self.names = structure, False, means
        self.points: list[np.ndarray] = []
        self.generator = np.random.default_rng(5)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        point = rows if shift is None else rows + shift
        if checks.is_traced(point):
            raise _GradientInLoop
        self.points.append(np.asarray(point))
        draw = self.generator.standard_normal
        return jnp.asarray(draw(np.shape(rows))), jnp.asarray(draw(np.shape(head)))

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        self.by_sample = True
        G, g = self.mean(rows, head, shift, head_shift)
        return G[None], g[None]

    def means(self) -> dict[str, Numeric]:
        return {name: jnp.asarray(0.7) for name in self.names}

    def noise(self) -> Numeric:
        return jnp.zeros((self.structure.width, COLUMNS))

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        return rows

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        p, K, blocks = self.structure.width, self.structure.signals, self.structure.blocks
        Q, M, P = jnp.eye(p), jnp.zeros((p, K)), jnp.eye(K)
        copies = [jnp.broadcast_to(leaf / blocks, (blocks, *leaf.shape)) for leaf in (Q, M, P)]
        ones = jnp.ones(blocks)
        by_block = BlockOverlaps(copies[0], copies[1], copies[2], ones, ones / blocks)
        return LossOverlaps(Q, M, P, blocks=by_block)


def count_calls(update: Update, structure: Structure) -> int:
    """Return how often a step evaluates the gradient; ValueError for a compiled loop."""
    count = gradient_calls(update, structure).count
    if count is None:
        fix = (
            "its step evaluates the gradient inside of a compiled loop. On a fixed data set the "
            "theory and the exact law need a static number of evaluations. Use direct runs, "
            "sgd.simulate(method='direct'), or a step with a Python loop"
        )
        raise checks.reject("update", update, fix)
    return count


@float64
def gradient_calls(update: Update, structure: Structure) -> GradientCalls:
    """Return how often, and where, a step evaluates the gradient."""
    law, generator = update.law, np.random.default_rng(3)
    p, sets = structure.width, count_row_sets(law)
    heads = sets * structure.head_size
    state = Rows(
        jnp.asarray(generator.standard_normal((sets * p, COLUMNS))),
        jnp.asarray(generator.standard_normal(heads)),
        tuple(jnp.asarray(1.3) for _ in law.scalars),
        tuple(jnp.ones((p, COLUMNS)) for _ in law.squares),
        vectors=tuple(jnp.ones(structure.head_size) for _ in law.vector_names(structure.trained)),
    )
    setting = StepSettings(
        jnp.asarray(0.3), jnp.asarray(1.0), jnp.asarray(3), 1.0, jnp.asarray(0.0), structure
    )
    source = _TrialSource(structure, law.means)
    try:
        increments(law, values_at(update.parameters, 0.0), state, source, setting)
    except _GradientInLoop:
        return GradientCalls(None, False, source.by_sample)
    at_weights = bool(source.points) and np.array_equal(source.points[0], state.rows[:p])
    return GradientCalls(max(1, len(source.points)), at_weights, source.by_sample)
