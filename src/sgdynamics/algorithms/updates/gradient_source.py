"""What an update stands on.

A batch in d dimensions, in the exact chain, or in the limit, seen through one `gradient`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import Numeric, Parameters


class Rows(NamedTuple):
    """The state of a run: rows of all its sets, p each (weights first), their heads, the scalars and squares of its update.

    `signals`: where a run has its signals in d dimensions, if it has a place of its own for them.
    """

    rows: Any
    head: Any
    scalars: Any = ()
    squares: Any = ()
    signals: Any = None


class GradientSource(ABC):
    """A batch: its gradients at rows + shift (p, columns) and head + head_shift, in some orthonormal frame."""

    def note(self, rows: Numeric) -> None:  # noqa: B027  most do not listen
        """Hear at which rows a gradient is asked for, as the step gives them."""

    @abstractmethod
    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        """dloss/dW and dloss/da of the mean loss of the batch; the shifts may be None."""

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        """The same of every sample, (batch, p, columns) and (batch, p)."""
        raise NotImplementedError

    def noise(self) -> Any:
        """p rows of independent standard normals."""
        raise NotImplementedError

    def overlaps(self, rows: Numeric) -> Any:
        """Q, M and P of rows of the weights, of all inputs and by covariance block (`problems.moves.LossOverlaps`)."""
        raise NotImplementedError

    def squares(self, G: Float[Numeric, "p columns"]) -> Any:
        """The squares of a gradient's coordinates."""
        return G**2

    def sign(self, G: Float[Numeric, "p columns"]) -> Any:
        """Their signs."""
        return jnp.sign(G)


class StepSettings(NamedTuple):
    """lr and D as the step takes them, the step's number, the head's rate, weight decay, and the problem's structure."""

    lr: Any
    D: Any
    number: Any
    head_rate: Any
    weight_decay: Any
    structure: Any


@dataclass(frozen=True, eq=False)
class Gradient:
    """What a step asks for.

    ``gradient(rows, shift)`` is dloss/dW of the batch at rows + shift, with the head's column if it
    is trained.
    """

    ground: GradientSource
    setting: StepSettings
    head: Any  # of the weights, where it is not trained
    decay: Any = 0.0  # of the rows, as part of the loss
    beside: Any = 0.0  # what `plain_step` adds to a gradient

    @property
    def trained(self) -> bool:
        return self.setting.structure.trained

    def __call__(self, rows: Float[Numeric, "p columns"], shift: Numeric | None = None) -> Any:
        """dloss/dW of the mean loss of the batch."""
        self.ground.note(rows)
        found = self.joined(*self.ground.mean(*self._parts(rows, shift)))
        return found + self._pull(rows, shift)

    def per_sample(self, rows: Float[Numeric, "p columns"], shift: Numeric | None = None) -> Any:
        """The same of every sample, (batch, p, columns)."""
        self.ground.note(rows)
        G, g = self.ground.per_sample(*self._parts(rows, shift))
        found = jnp.concatenate([G, g[..., None]], axis=-1) if self.trained else G
        return found + self._pull(rows, shift)

    def noise(self) -> Any:
        """Independent standard normals in every coordinate of the input space, none for the head."""
        found = self.ground.noise()
        return self.joined(found, jnp.zeros(found.shape[0], found.dtype))

    def squares(self, G: Float[Numeric, "p columns"]) -> Any:
        """The squares of a gradient's coordinates.

        For coordinatewise updates, whose heads are not trained.
        """
        return self.ground.squares(G)

    def sign(self, G: Float[Numeric, "p columns"]) -> Any:
        """The signs of a gradient's coordinates."""
        return self.ground.sign(G)

    def overlaps(self, rows: Float[Numeric, "p columns"]) -> Any:
        """The overlaps of the weights, as a rate that reads them takes them."""
        return self.ground.overlaps(self.parted(rows)[0])

    def plain_step(self, G: Float[Numeric, "p columns"]) -> Any:
        """-(lr/D) G, with the head's own rate in its column."""
        found = -self.setting.lr / self.setting.D * (G + self.beside)
        return found.at[:, -1].multiply(self.setting.head_rate) if self.trained else found

    def project_shift(
        self, rows: Float[Numeric, "p columns"], shift: Float[Numeric, "p columns"]
    ) -> Any:
        """A shift such that rows + shift stay on the sphere, where the problem asks for that."""
        constraint = self.setting.structure.constraint
        if not constraint.fixes_norms:
            return shift
        W, _ = self.parted(rows)
        kick, other = self.parted(shift)
        return self.joined(constraint.project_increment(W, kick), other)

    def with_decay(self, decay: Any) -> Gradient:
        """The same with more weight decay in the loss."""
        return replace(self, decay=self.decay + decay)

    def with_pull(self, pull: Numeric) -> Gradient:
        """The same with a pull in every step, of an update that makes one with `plain_step`."""
        return replace(self, beside=self.beside + pull)

    def joined(self, rows: Float[Numeric, "p columns"], head: Float[Numeric, " p"]) -> Any:
        return jnp.concatenate([rows, head[:, None]], axis=1) if self.trained else rows

    def parted(self, both: Float[Numeric, "p columns"]) -> tuple[Any, Any]:
        return (both[:, :-1], both[:, -1]) if self.trained else (both, self.head)

    def _parts(self, rows: Numeric, shift: Any) -> tuple[Any, Any, Any, Any]:
        W, a = self.parted(rows)
        if shift is None or (isinstance(shift, (int, float)) and shift == 0):
            return W, a, None, None
        kick, other = self.parted(jnp.broadcast_to(shift, rows.shape))
        return W, a, kick, other if self.trained else None

    def _pull(self, rows: Numeric, shift: Any) -> Any:
        if isinstance(self.decay, float) and self.decay == 0.0:
            return 0.0
        return self.decay * (rows if shift is None else rows + shift)


def increments(
    law: Law, numbers: Parameters, state: Rows, ground: GradientSource, setting: StepSettings
) -> Rows:
    """What one step adds to a state; on the sphere before the rows are normalised."""
    parts, p = count_row_sets(law), state.head.shape[0] // count_row_sets(law)
    gradient = Gradient(
        ground, setting, state.head[:p], setting.weight_decay if law.decay_inside else 0.0
    )
    trained = gradient.trained
    sets = zip(
        ("weights", *law.rows),
        jnp.split(state.rows, parts),
        jnp.split(state.head, parts),
        strict=True,
    )
    given = {name: gradient.joined(rows, head) for name, rows, head in sets}
    given |= dict(zip(law.scalars, state.scalars, strict=True)) | dict(
        zip(law.squares, state.squares, strict=True)
    )
    more = law.step(given, gradient, setting.lr, setting.D, setting.number, **numbers)
    rows, heads = [], []
    for name in ("weights", *law.rows):
        kick, head = more[name], jnp.zeros(p, state.head.dtype)
        if trained:
            kick, head = kick[:, :-1], kick[:, -1]
        if name == law.moved and trained and not law.explicit_head_rate:
            head = setting.head_rate * head
        if name == law.moved and not law.decay_inside:
            size, (W, a) = (
                setting.lr / setting.D * setting.weight_decay,
                gradient.parted(given[name]),
            )
            kick, head = kick - size * W, head - setting.head_rate * size * a if trained else head
        rows.append(kick)
        heads.append(head)
    squares = tuple(more[name] for name in law.squares)
    return Rows(
        jnp.concatenate(rows),
        jnp.concatenate(heads),
        tuple(more[name] for name in law.scalars),
        squares,
    )
