"""Losses of two-layer networks whose units have trained biases, as a top of head and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.problems.losses import (
    Loss,
    NetworkLoss,
    OuterLoss,
    UserFunctions,
    correlation,
    squared,
)
from sgdynamics.problems.structure import LossDependence, Structure
from sgdynamics.problems.tops import Top, validate_top
from sgdynamics.samples.sample import GaussianSample

# Units for which expectations have a grid that is cut at the jumps of the label.
MOST_UNITS_ON_GRID = 2


def bias_top(width: int, trains_head: bool) -> Top:
    """Return the leaves "b", one bias per unit, and "a" of a trained head."""
    leaves = {"b": width}
    return validate_top({"a": width, **leaves} if trains_head else leaves)


@dataclass(frozen=True)
class BiasLoss(Loss):
    """The loss of f = (1/p) sum_i a_i s(lambda_i + b_i), with the top (a, b), or b alone.

    Attributes
    ----------
    inner : NetworkLoss
        The loss of the network without biases.
    trains_head : bool
        Whether the head is a leaf of the top; it is ones otherwise.
    smooth : bool
        Whether the loss is known to have no kinks.
    """

    inner: NetworkLoss
    trains_head: bool
    smooth: bool = False

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.inner.kinks

    @property
    def outer(self) -> OuterLoss:
        return self.inner.outer

    @property
    def labels(self) -> str | None:
        """The law of binary labels, which biases do not change."""
        return self.inner.labels

    @property
    def cuts(self) -> tuple[tuple[tuple[float, ...], float], ...]:
        """The planes along which the mean of the label has a kink."""
        return self.inner.cuts

    def cut_dependence(self, structure: Structure) -> LossDependence | None:
        """Return the fields and draws that the loss reads if it is smooth between the cuts.

        The signal comes first, then the fields of the students; the label noise enters the loss as
        a quadratic polynomial. None if there is more than one signal or are more than two units.
        """
        has_kinks = bool(self.kinks) or self.labels is not None
        few = structure.signals == 1 and structure.width <= MOST_UNITS_ON_GRID
        if not self.cuts or has_kinks or not few or self.outer not in (squared, correlation):
            return None
        if structure.sample != GaussianSample(1):
            return None
        size = structure.fields + structure.sample.sampled_normals
        rows = tuple(tuple(row) for row in np.eye(size).tolist())
        general = (rows[structure.width], *rows[: structure.width])
        noise = rows[structure.fields :]
        nodes = (2,) * len(noise)
        return LossDependence(general, noise, nodes, nodes)

    def user_functions(self) -> UserFunctions:
        return self.inner.user_functions()

    def target_output(
        self, signals: Float[Numeric, "K ..."], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return the output of the teacher or target."""
        return self.inner.target_output(signals, parameters)

    def label(self, signals: Float[Numeric, "K ..."], parameters: Parameters) -> Float[Numeric, ""]:
        """Return the mean of the label given the signals."""
        return self.inner.label(signals, parameters)

    def split(self, fields: Numeric, top: Numeric) -> tuple[Numeric, Numeric]:
        """Return the fields with their biases, and the head."""
        p = fields.shape[0]
        head = top[:p] if self.trains_head else jnp.ones(p, fields.dtype)
        return fields + top[-p:], head

    def output(self, fields: Float[Numeric, " p"], top: Numeric) -> Float[Numeric, ""]:
        """Return the output of the network."""
        return self.inner.output(*self.split(fields, top))

    def output_and_label(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Numeric,
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> tuple[Any, Any]:
        shifted, a = self.split(fields, head)
        return self.inner.output_and_label(shifted, signals, a, noise_draw, parameters)

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Numeric,
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        shifted, a = self.split(fields, head)
        return self.inner(shifted, signals, a, noise_draw, parameters)
