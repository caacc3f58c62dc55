"""`Structure`: the static part of a problem, on which compiled code depends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sgdynamics.problems.constraints import Constraint
from sgdynamics.problems.losses import Loss, squared
from sgdynamics.problems.tops import Top
from sgdynamics.samples.sample import Sample

Combinations = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class LossDependence:
    """The linear combinations of fields and draws that a smooth loss is a function of.

    A combination has one coefficient per field (token by token: students, then signals) and one per
    normal variable of the draws.

    Attributes
    ----------
    general : tuple of tuple of float
        Combinations on which the loss depends in any smooth way.
    polynomial : tuple of tuple of float
        Combinations in which the loss is a polynomial.
    node_counts : tuple of int
        Numbers of Gauss-Hermite nodes, one per polynomial combination, that are exact for the
        moments of the loss.
    finite_node_counts : tuple of int
        The same for the moments at finite dimension.
    means_are_affine : bool
        Whether the means of the inputs are affine in the draws. Fields and draws are then jointly
        Gaussian, and the combinations are of fields that include the means; otherwise of fields
        without the means.
    is_mirrored : bool
        Whether an exchange of the inputs of a sample, which changes no moment, changes the sign of
        all general combinations. Half of their points are then enough.
    risk_node_counts : tuple of int
        The same for the risk alone; empty if those of the moments serve it.
    """

    general: Combinations
    polynomial: Combinations
    node_counts: tuple[int, ...]
    finite_node_counts: tuple[int, ...]
    means_are_affine: bool = True
    is_mirrored: bool = False
    risk_node_counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of combinations."""
        return len(self.general) + len(self.polynomial)

    @property
    def rows(self) -> np.ndarray:
        """All combinations, the general ones first."""
        return np.array([*self.general, *self.polynomial])


@dataclass(frozen=True)
class Structure:
    """Shapes, functions and flags of a problem: hashable, and without any numbers that may change.

    Attributes
    ----------
    width : int
        Number of trained rows p.
    signals : int
        Number of signal directions K.
    blocks : int
        Number of covariance blocks.
    loss : Loss
        The per-sample loss, loss(fields, signals, head, noise_draw, parameters).
    trained : bool
        Whether the head is trained.
    constraint : Constraint
        The constraint on the rows.
    sample : Sample
        The law of one sample.
    expectation : Expectation, optional
        A user's expectation, in place of the one that the library chooses.
    dependence : LossDependence, optional
        The combinations of fields and draws on which a smooth loss depends, if they are known.
    heads : int
        Number of heads, each of `width` numbers; contexts may have one each.
    top : Top, optional
        Shapes of the trained numbers on top of the rows, in place of heads.
    """

    width: int
    signals: int
    blocks: int
    # A `Loss`. Its family decides which other attributes it has, so that its type is not narrowed.
    loss: Any
    trained: bool
    constraint: Constraint
    sample: Sample
    expectation: Any = None
    dependence: LossDependence | None = None
    heads: int = 1
    top: Top | None = None

    def with_loss(self, loss: Loss) -> Structure:
        """Return the structure of the same samples with another function of them."""
        return replace(self, loss=loss, expectation=None, dependence=None)

    @property
    def head_size(self) -> int:
        """Number of entries of all heads, or of the top."""
        return self.heads * self.width if self.top is None else self.top.size

    @property
    def clusters(self) -> int:
        """Number of clusters of a Gaussian mixture; 0 for centred data."""
        return self.sample.clusters

    @property
    def fields(self) -> int:
        """Number of fields of an input: width + signals."""
        return self.width + self.signals

    @property
    def kinks(self) -> tuple[float, ...]:
        """Values of a student field at which the gradient of the loss jumps."""
        return getattr(self.loss, "kinks", ())

    @property
    def has_excess(self) -> bool:
        """Whether label noise adds the constant noise/2 to the risk, so that excess is defined."""
        has_law = getattr(self.loss, "labels", None) is not None
        return getattr(self.loss, "outer", None) is squared and not has_law
