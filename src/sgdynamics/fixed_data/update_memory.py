"""The memory of an update on a fixed data set, and its step.

A step is that of `algorithms.updates` at D = 1, the unit of a full batch. Its rows may be
coefficients in any orthonormal basis of weight space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    increments,
)
from sgdynamics.algorithms.updates.law import Law
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, Scalar
from sgdynamics.problems.moves import LossOverlaps

FULL_BATCH = 1.0  # the unit D of a step over a data set


class UpdateMemory(NamedTuple):
    """The state of an update besides the weights.

    Attributes
    ----------
    rows : array, (sets p, ...)
        Further sets of rows, with the axes of the weights.
    head : array, (sets p,)
        Heads of these rows.
    scalars, squares, vectors : tuple of array
        Scalars, averages of squares, and vectors over the entries of a trained head.
    """

    rows: Numeric
    head: Numeric
    scalars: tuple[Numeric, ...] = ()
    squares: tuple[Numeric, ...] = ()
    vectors: tuple[Numeric, ...] = ()


def first_memory(
    law: Law,
    hyperparameters: Parameters,
    rows: Float[Numeric, "p ..."],
    head: Float[Numeric, " p"],
    variances: Numeric | None = None,
    trained: bool = False,
) -> UpdateMemory:
    """The memory before the first step: sets of rows at the weights or at 0, and initial values.

    `trained` is whether the head is trained.
    """
    copies = [float(name in law.start_at_weights) for name in law.rows]
    empty = jnp.zeros((0, *rows.shape[1:]), rows.dtype)
    initial = {name: hyperparameters[argument] for name, argument in law.initial_values}
    scalars = [jnp.asarray(initial.get(name, 0.0), rows.dtype) for name in law.scalars]
    unit = jnp.ones_like(rows) if variances is None else jnp.broadcast_to(variances, rows.shape)
    squares = [(initial.get(name, 0.0) * unit).astype(rows.dtype) for name in law.squares]
    vectors = [jnp.full_like(head, initial.get(name, 0.0)) for name in law.vector_names(trained)]
    return UpdateMemory(
        jnp.concatenate([empty, *(copy * rows for copy in copies)]),
        jnp.concatenate([jnp.zeros(0, head.dtype), *(copy * head for copy in copies)]),
        tuple(scalars),
        tuple(squares),
        tuple(vectors),
    )


def join(rows: Numeric, head: Numeric, memory: UpdateMemory) -> Rows:
    """The state as `algorithms.updates` reads it; axes after the first become columns."""
    everything = jnp.concatenate([rows, memory.rows])
    return Rows(
        everything.reshape(len(everything), -1),
        jnp.concatenate([head, memory.head]),
        memory.scalars,
        memory.squares,
        vectors=memory.vectors,
    )


def split(
    state: Rows, p: int, head_size: int, shape: tuple[int, ...]
) -> tuple[Numeric, Numeric, UpdateMemory]:
    """Weights, head and memory; `shape` is that of a row."""
    rows = state.rows.reshape(-1, *shape)
    scalars = tuple(jnp.asarray(scalar) for scalar in state.scalars)
    memory = UpdateMemory(rows[p:], state.head[head_size:], scalars, state.squares, state.vectors)
    return rows[:p], state.head[:head_size], memory


def move(
    law: Law,
    hyperparameters: Parameters,
    stride: Stride,
    state: Rows,
    source: GradientSource,
    number: IntScalar,
    kicks: tuple[Numeric, Numeric] | None = None,
    unit: Scalar = FULL_BATCH,
) -> Rows:
    """The state after a step with the `unit` D, at lr = D times the length of the stride."""
    algorithm = {**hyperparameters, "lr": stride.size * unit}
    unit = jnp.asarray(unit, state.rows.dtype)
    return take_step(law, algorithm, state, source, stride, unit, number, kicks)


class KnownGradients(GradientSource):
    """The first gradients of a step; the next point at which the step evaluates one is recorded.

    Parameters
    ----------
    gradients : list of (array, array)
        The gradients of rows and head so far.
    noise : array, optional
        The normals of the step.
    overlaps : callable, optional
        Function of the rows that returns their overlaps.
    means : list of dict
        The means over the samples at these gradients, and zeros for a further one.
    """

    def __init__(
        self,
        gradients: list[tuple[Numeric, Numeric]],
        noise: Numeric | None = None,
        overlaps: Callable[[Numeric], LossOverlaps] | None = None,
        means: list[dict[str, Numeric]] | None = None,
    ) -> None:
        self.gradients, self.normals, self.overlaps_of = gradients, noise, overlaps
        self.known_means = means or []
        self.evaluations = 0
        self.point: tuple[Numeric, Numeric] | None = None

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        self.evaluations += 1
        if self.evaluations <= len(self.gradients):
            return self.gradients[self.evaluations - 1]
        if self.point is None:
            moved = rows if shift is None else rows + shift
            self.point = (moved, head if head_shift is None else head + head_shift)
        return jnp.zeros_like(rows), jnp.zeros_like(head)

    def means(self) -> dict[str, Numeric]:
        return self.known_means[min(self.evaluations, len(self.known_means)) - 1]

    def noise(self) -> Numeric:
        assert self.normals is not None
        return self.normals

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        assert self.overlaps_of is not None
        return self.overlaps_of(rows)


def next_point(
    law: Law,
    hyperparameters: Parameters,
    stride: Stride,
    state: Rows,
    source: KnownGradients,
    number: IntScalar,
) -> tuple[Numeric, Numeric]:
    """Rows and head at which a step evaluates its next gradient, after those of the source."""
    setting = StepSettings(
        stride.size,
        jnp.asarray(FULL_BATCH, state.rows.dtype),
        number,
        stride.head_rate,
        stride.weight_decay,
        stride.structure,
        stride.head_decay,
    )
    increments(law, hyperparameters["update"], state, source, setting)
    assert source.point is not None
    return source.point
