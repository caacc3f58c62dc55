"""The gradient of a batch, as the step of an update reads it.

A batch exists in d dimensions, in the frame of the exact chain, or as a mean in the limit
d -> infinity. Each is a `GradientSource`; steps read all of them through the same `Gradient`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.law import Law, count_row_sets
from sgdynamics.base.arrays import (
    DType,
    IntScalar,
    Numeric,
    Parameters,
    RandomKey,
    RealArray,
    Scalar,
)
from sgdynamics.problems.moves import LossOverlaps
from sgdynamics.problems.structure import Structure


class Rows(NamedTuple):
    """The state of a run.

    Attributes
    ----------
    rows : array, (sets p, columns)
        Rows of all sets, p each, the weights first.
    head : array, (sets p,)
        Heads of these rows.
    scalars, squares : tuple of array
        Scalars and averages of squares of the update.
    signals : array, optional
        Signals of the run in d dimensions, if each run has its own.
    earlier : array, optional
        Weights of earlier steps, for gradients that are late.
    vectors : tuple of array
        Vectors of the update over the entries of a trained head (`Law.vector_names`).
    """

    rows: Numeric
    head: Numeric
    scalars: tuple[RealArray, ...] = ()
    squares: tuple[Numeric, ...] = ()
    signals: Numeric | None = None
    earlier: Numeric | None = None
    vectors: tuple[Numeric, ...] = ()


class GradientSource(ABC):
    """A batch: its gradients at rows + shift (p, columns) and head + head_shift.

    The columns are coordinates in any orthonormal frame.
    """

    def note(self, rows: Numeric) -> None:  # noqa: B027  most sources do not need it
        """Receive the rows at which the step evaluates a gradient."""

    @abstractmethod
    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        """Return dloss/dW and dloss/da of the mean loss of the batch; the shifts may be None."""

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        """Return dloss/dW (batch, p, columns) and dloss/da (batch, p) of every sample."""
        raise NotImplementedError

    def noise(self) -> Numeric:
        """Return p rows of independent standard normals."""
        raise NotImplementedError

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        """Return rows with the entries of random coordinates; the others are 0.

        They are a share of all coordinates, or this number of them.
        """
        raise NotImplementedError

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        """Return Q, M and P for these rows of the weights, in total and by covariance block."""
        raise NotImplementedError

    def means(self) -> dict[str, Numeric]:
        """Return the means over the samples that belong to the last gradient."""
        raise NotImplementedError

    def squares(self, G: Float[Numeric, "p columns"]) -> Numeric:
        """Return the squares of the coordinates of a gradient."""
        return G**2

    def sign(self, G: Float[Numeric, "p columns"]) -> Numeric:
        """Return the signs of the coordinates of a gradient."""
        return jnp.sign(G)

    def head_squares(self, g: Float[Numeric, " entries"]) -> Numeric:
        """Return the squares of the gradient of the head."""
        return g**2


def draw_order(key: RandomKey, dimension: int, dtype: DType) -> Float[Array, " d"]:
    """Return random ranks 0, ..., d - 1 of the coordinates, plus one uniform number below 1.

    A real number k of coordinates are those of a value below k: as many as k in the mean.
    """
    order_key, rounding_key = jax.random.split(key)
    ranks = jax.random.permutation(order_key, dimension).astype(dtype)
    return ranks + jax.random.uniform(rounding_key, (), dtype)


def select_coordinates(
    order: Float[Numeric, " d"],
    rows: Float[Numeric, "p d"],
    share: Scalar | None,
    count: Scalar | None,
) -> Float[Numeric, "p d"]:
    """Return the entries of rows at the first coordinates of an order of `draw_order`."""
    number = jnp.asarray(count if share is None else share * order.shape[0])
    return jnp.where(jnp.asarray(order) < number, rows, jnp.zeros_like(rows))


def head_columns(width: int, head_size: int) -> int:
    """Return the number of columns of p rows that contain a head or top of this many entries."""
    return -(-head_size // width)


def append_head(rows: Numeric, head: Numeric) -> Numeric:
    """Append a head as a column of the rows, and a top as columns that end with zeros."""
    p = rows.shape[0]
    columns = head_columns(p, head.shape[0])
    padded = jnp.pad(head, (0, p * columns - head.shape[0]))
    return jnp.concatenate([rows, padded.reshape(p, columns)], axis=1)


def detach_head(joint_rows: Numeric, head_size: int) -> tuple[Numeric, Numeric]:
    """Split rows from the columns of the head or top; the inverse of `append_head`."""
    columns = head_columns(joint_rows.shape[0], head_size)
    return joint_rows[:, :-columns], joint_rows[:, -columns:].reshape(-1)[:head_size]


class StepSettings(NamedTuple):
    """The settings of a step.

    Attributes
    ----------
    lr, D : float
        Learning rate and its unit, as the step receives them.
    number : int
        Number of the step.
    head_rate : float
        Learning rate of the head relative to lr.
    weight_decay : float
        Weight decay of the problem.
    structure : Structure
        Structure of the problem.
    head_decay : float or array, optional
        Weight decay of each entry of the head; None for that of the rows.
    """

    lr: Scalar
    D: Scalar
    number: Scalar | IntScalar
    head_rate: Scalar
    weight_decay: Scalar
    structure: Structure
    head_decay: Scalar | Numeric | None = None


@dataclass(frozen=True, eq=False)
class Gradient:
    """The argument `gradient` of a step.

    ``gradient(rows, shift)`` is dloss/dW of the batch at rows + shift. If the head is trained, rows
    and gradients have its coordinates as their last column.

    Attributes
    ----------
    source : GradientSource
        The batch.
    setting : StepSettings
        The settings of the step.
    head : array, (p,)
        Head of the weights, for problems in which it is not trained.
    decay : float or array, (columns,) or (p, columns)
        Weight decay that is part of the loss.
    pull : float or array, (p, columns)
        Term that `plain_step` adds to a gradient.
    """

    source: GradientSource
    setting: StepSettings
    head: Float[Numeric, " p"]
    decay: RealArray | Scalar = 0.0
    pull: RealArray = 0.0

    @property
    def trained(self) -> bool:
        """Whether the head is trained."""
        return self.setting.structure.trained

    def __call__(
        self, rows: Float[Numeric, "p columns"], shift: RealArray | None = None
    ) -> Float[Numeric, "p columns"]:
        """Return dloss/dW of the mean loss of the batch at rows + shift."""
        self.source.note(rows)
        G = self.join_head(*self.source.mean(*self._split_point(rows, shift)))
        return G + self._decay_term(rows, shift)

    def per_sample(
        self, rows: Float[Numeric, "p columns"], shift: RealArray | None = None
    ) -> Float[Numeric, "batch p columns"]:
        """Return dloss/dW of every sample at rows + shift."""
        self.source.note(rows)
        G, g = self.source.per_sample(*self._split_point(rows, shift))
        gradients = jax.vmap(append_head)(G, g) if self.trained else G
        return gradients + self._decay_term(rows, shift)

    def noise(self) -> Float[Numeric, "p columns"]:
        """Return independent standard normals in every coordinate of the input space.

        The column of the head is 0.
        """
        normals = self.source.noise()
        return self.join_head(normals, jnp.zeros_like(self.head, dtype=normals.dtype))

    def select(
        self,
        rows: Float[Numeric, "p columns"],
        share: Scalar | None = None,
        count: Scalar | None = None,
        rescaled: bool = False,
    ) -> Float[Numeric, "p columns"]:
        """Return rows with the entries of a random set of coordinates; the others are 0.

        The set is the same for all rows: a share of the coordinates, or this number of them. With
        `rescaled` the entries are divided by the share. The column of the head is not changed.
        """
        W, head = self.split_head(rows)
        selected = self.source.select(W, share, count)
        if rescaled:
            assert share is not None
            selected = selected / share
        return self.join_head(selected, head)

    def squares(self, G: Float[Numeric, "p columns"]) -> Numeric:
        """Return the squares of the coordinates of a gradient, and of the entries of the head."""
        if not self.trained:
            return self.source.squares(G)
        rows, head = self.split_head(G)
        return append_head(self.source.squares(rows), self.source.head_squares(head))

    def sign(self, G: Float[Numeric, "p columns"]) -> Numeric:
        """Return the signs of the coordinates of a gradient, and of the entries of the head."""
        rows, head = self.split_head(G)
        return self.join_head(self.source.sign(rows), jnp.sign(head))

    @property
    def means(self) -> dict[str, Numeric]:
        """Means over the samples of an update with ``on_sample``, at the last gradient."""
        return self.source.means()

    def overlaps(self, rows: Float[Numeric, "p columns"]) -> LossOverlaps:
        """Return the overlaps of the weights, the argument of a rate that depends on the state."""
        return self.source.overlaps(self.split_head(rows)[0])

    def plain_step(self, G: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
        """Return -(lr/D) G, with the column of the head multiplied by its relative rate."""
        step = -self.setting.lr / self.setting.D * (G + self.pull)
        if not self.trained:
            return step
        rates = jnp.broadcast_to(self.setting.head_rate, self.head.shape)
        columns = head_columns(step.shape[0], len(self.head))
        matrix = append_head(jnp.zeros((step.shape[0], 0), step.dtype), rates)
        return jnp.asarray(step).at[:, -columns:].multiply(matrix)

    def project_shift(
        self, rows: Float[Numeric, "p columns"], shift: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        """Return the shift that keeps rows + shift on the sphere, if the problem requires it."""
        constraint = self.setting.structure.constraint
        if not constraint.fixes_norms:
            return shift
        W, _ = self.split_head(rows)
        row_shift, head_shift = self.split_head(shift)
        return self.join_head(constraint.project_increment(W, row_shift), head_shift)

    def with_decay(self, decay: RealArray | Scalar) -> Gradient:
        """Return the gradient of a loss with additional weight decay."""
        return replace(self, decay=self.decay + decay)

    def with_pull(self, pull: RealArray) -> Gradient:
        """Return the gradient with a term that `plain_step` adds in every step."""
        return replace(self, pull=self.pull + pull)

    def join_head(
        self, rows: Float[Numeric, "p columns"], head: Float[Numeric, " p"]
    ) -> Float[Numeric, "p joint_columns"]:
        """Append the head as a column of the rows, if it is trained."""
        return append_head(rows, head) if self.trained else rows

    def split_head(
        self, joint_rows: Float[Numeric, "p joint_columns"]
    ) -> tuple[Float[Numeric, "p columns"], Float[Numeric, " p"]]:
        """Split rows from the column of the head; a head that is not trained is constant."""
        if self.trained:
            return detach_head(joint_rows, self.head.shape[0])
        return joint_rows, self.head

    def _split_point(
        self, rows: Numeric, shift: RealArray | None
    ) -> tuple[Numeric, Numeric, Numeric | None, Numeric | None]:
        """Return rows, head and their shifts; a shift is kept apart, so that it is not rounded."""
        W, a = self.split_head(rows)
        if shift is None or (isinstance(shift, (int, float)) and shift == 0):
            return W, a, None, None
        row_shift, head_shift = self.split_head(jnp.broadcast_to(shift, rows.shape))
        return W, a, row_shift, head_shift if self.trained else None

    def _decay_term(self, rows: Numeric, shift: RealArray | None) -> RealArray:
        """Return the gradient of the weight decay."""
        if isinstance(self.decay, float) and self.decay == 0.0:
            return 0.0
        return self.decay * (rows if shift is None else rows + shift)


def increments(
    law: Law,
    hyperparameters: Parameters,
    state: Rows,
    source: GradientSource,
    setting: StepSettings,
) -> Rows:
    """Return the increments of a state in one step, before rows on the sphere are normalised."""
    sets = count_row_sets(law)
    head_size = state.head.shape[0] // sets
    trained = setting.structure.trained
    decay = _joint_decay(setting, state, head_size) if law.decay_inside else 0.0
    gradient = Gradient(source, setting, state.head[:head_size], decay)

    # The state as the step receives it: a dictionary, with trained heads as columns of the rows.
    names = ("weights", *law.rows)
    row_sets = zip(names, jnp.split(state.rows, sets), jnp.split(state.head, sets), strict=True)
    variables: dict[str, Any] = {
        name: gradient.join_head(rows, head) for name, rows, head in row_sets
    }
    variables |= dict(zip(law.scalars, state.scalars, strict=True))
    vectors = dict(zip(law.vector_names(trained), state.vectors, strict=True))
    for name, square in zip(law.squares, state.squares, strict=True):
        variables[name] = gradient.join_head(square, vectors[name]) if trained else square
    variables |= {name: vectors[name] for name in law.vectors if trained}
    step = law.step(variables, gradient, setting.lr, setting.D, setting.number, **hyperparameters)

    rows, heads = [], []
    for name in names:
        row_increment, head_increment = step[name], jnp.zeros(head_size, state.head.dtype)
        if trained:
            row_increment, head_increment = detach_head(row_increment, head_size)
        if name == law.iterate and trained and not law.explicit_head_rate:
            head_increment = setting.head_rate * head_increment
        if name == law.iterate and not law.decay_inside:
            # W <- W - (lr/D) weight_decay W, and for a trained head times head_rate
            size = setting.lr / setting.D * setting.weight_decay
            W, a = gradient.split_head(variables[name])
            row_increment = row_increment - size * W
            if trained:
                head_step = size
                if setting.head_decay is not None:
                    head_step = setting.lr / setting.D * setting.head_decay
                head_increment = head_increment - setting.head_rate * head_step * a
        rows.append(row_increment)
        heads.append(head_increment)
    squares = {name: step[name] for name in law.squares}
    changes = {name: step[name] for name in law.vectors if trained}
    if trained:
        for name, square in squares.items():
            squares[name], changes[name] = detach_head(square, head_size)
    return Rows(
        jnp.concatenate(rows),
        jnp.concatenate(heads),
        tuple(step[name] for name in law.scalars),
        tuple(squares.values()),
        vectors=tuple(changes[name] for name in law.vector_names(trained)),
    )


def _joint_decay(setting: StepSettings, state: Rows, head_size: int) -> RealArray | Scalar:
    """Return the weight decay of rows joined with their head."""
    if setting.head_decay is None or not setting.structure.trained:
        return setting.weight_decay
    shape = (setting.structure.width, state.rows.shape[1])
    rows = jnp.broadcast_to(jnp.asarray(setting.weight_decay, state.rows.dtype), shape)
    head = jnp.broadcast_to(jnp.asarray(setting.head_decay, state.rows.dtype), (head_size,))
    return append_head(rows, head)
