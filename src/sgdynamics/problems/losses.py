"""Per-sample losses as hashable JAX functions loss(fields, signals, head, noise_draw, parameters).

They hold functions and names, never numbers: two problems that differ only in numbers share one compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics import checks
from sgdynamics.arrays import Numbers, Numeric, Scalar, Tree
from sgdynamics.functions import checked_function
from sgdynamics.problems.activations import NAMED, Activation


def squared(output: Scalar, label: Scalar) -> Scalar:
    """(f - y)^2 / 2."""
    return 0.5 * (output - label) ** 2


def correlation(output: Scalar, label: Scalar) -> Any:
    """- f y."""
    return -output * label


def logistic(output: Scalar, label: Scalar) -> Any:
    """log(1 + exp(-f y))."""
    return jax.nn.softplus(-output * label)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {"squared": squared, "correlation": correlation, "logistic": logistic}


def outer_loss(value: str) -> Callable[[Any, Any], Any]:
    """The function of (output, label) that a name or a user's function stands for."""
    if isinstance(value, str):
        return LOSSES[checks.choice("loss", value, LOSSES)]
    if callable(value):
        checked_function("loss", value, (np.zeros(()), np.zeros(())), takes="output, label", call="an output and a label")
        return value
    raise checks.reject("loss", value, f"give one of {', '.join(LOSSES)} or a JAX function of (output, label)")


Parts = dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]]


class Loss:
    """What is asked of any loss, answered for one of which nothing is known."""

    quadratic = False  # whether all of it is squares, so that Wick's theorem gives every moment
    gradient_degree: int | None = None  # in the fields, where it is a polynomial

    def own_parts(self) -> Parts:
        """The functions in it that this library has not made, by the argument that gave them, each with what it is of (fields, signals)."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: Tree,
        parameters: Numbers,
    ) -> tuple[Any, Any] | None:
        """What the loss compares, where that is all it sees."""
        return None


def _own_activation(name: str, activation: Activation, of: Callable[..., Any]) -> Parts:
    known = activation.coefficients is not None or any(activation is one for one in NAMED.values())
    return {} if known else {name: (activation.f, lambda fields, signals: activation(of(fields, signals)))}


@dataclass(frozen=True)
class NetworkLoss(Loss):
    """A two-layer network f = (1/p) sum_i a_i s(lambda_i) against a label: what teachers and targets share."""

    student: Activation
    outer: Callable[[Any, Any], Any]

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def output(self, fields: Float[Numeric, " p"], head: Float[Numeric, " p"]) -> Float[Numeric, ""]:
        return jnp.mean(head * self.student(fields))

    def label(self, signals: Float[Numeric, "K ..."], parameters: Numbers) -> Any:
        raise NotImplementedError

    def own_parts(self) -> Parts:
        outer: Parts = {} if self.outer in LOSSES.values() else {"loss": (self.outer, None)}
        return _own_activation("activation", self.student, lambda fields, signals: fields) | self.own_label() | outer

    def own_label(self) -> Parts:
        """Those of the label."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        noise_draw: Scalar,
        parameters: Numbers,
    ) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        label = self.label(signals, parameters) + jnp.sqrt(parameters["noise"]) * noise_draw
        return self.output(fields, head), label

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        noise_draw: Scalar,
        parameters: Numbers,
    ) -> Float[Numeric, ""]:
        return self.outer(*self.output_and_label(fields, signals, head, noise_draw, parameters))


@dataclass(frozen=True)
class CommitteeLoss(NetworkLoss):
    """Labels of a teacher committee, y = (1/k) sum_r a*_r s*(w*_r . x)."""

    teacher: Activation

    @property
    def quadratic(self) -> bool:
        return self.outer is squared and self.student == self.teacher == NAMED["square"]

    @property
    def gradient_degree(self) -> int | None:
        student, teacher = self.student.degree, self.teacher.degree
        if student is None or teacher is None or self.outer is not squared:
            return None
        return student - 1 + max(student, teacher)

    def own_label(self) -> Parts:
        return _own_activation("teacher_activation", self.teacher, lambda fields, signals: signals)

    def label(self, signals: Float[Numeric, " K"], parameters: Numbers) -> Float[Numeric, ""]:
        return jnp.mean(parameters["teacher_head"] * self.teacher(signals))


MOST_CUTS = {1: 32, 2: 6, 3: 4}  # planes along which a target may be cut, by its directions


def cuts_possible(directions: int, planes: int, cut: int) -> bool:
    """Whether expectations can be cut along so many planes, whose normals span `cut` dimensions: beyond, grids have a million points."""
    return directions in MOST_CUTS and planes <= MOST_CUTS[directions] and cut <= 2


@dataclass(frozen=True)
class TargetLoss(NetworkLoss):
    """Labels of any function of the signals, y = g(w*_1 . x, ..., w*_K . x), with a kink or a jump along the planes `cuts`."""

    target: Callable[[Any], Any]
    cuts: tuple[tuple[tuple[float, ...], float], ...] = ()  # (normal, level): normal . signals = level
    cut_dimensions: int = 0  # how many dimensions the normals span

    def own_label(self) -> Parts:
        return {"target": (self.target, lambda fields, signals: self.target(signals))}

    def label(self, signals: Float[Numeric, " K"], parameters: Numbers) -> Float[Numeric, ""]:
        return self.target(signals)


@dataclass(frozen=True)
class ClusterLoss(Loss):
    """Cross-entropy of a cluster's label y in {0, 1}: log(1 + e^f) - y f, f = sum_i a_i s(lambda_i) (no 1/p)."""

    student: Activation

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def own_parts(self) -> Parts:
        return _own_activation("activation", self.student, lambda fields, signals: fields)

    def __call__(
        self, fields: Float[Numeric, " p"], signals: Float[Numeric, " K"], head: Float[Numeric, " p"], label: Scalar, parameters: Numbers
    ) -> Float[Numeric, ""]:
        output = jnp.sum(head * self.student(fields))
        return jax.nn.softplus(output) - label * output


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's own per-sample loss; it sees the problem's `parameters` only where it asks for them."""

    function: Callable[..., Any]
    takes_parameters: bool
    kinks: tuple[float, ...] = ()

    def own_parts(self) -> Parts:
        return {"loss": (self.function, None)}

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: Tree,
        parameters: Numbers,
    ) -> Float[Numeric, ""]:
        if self.takes_parameters:
            return self.function(fields, signals, head, noise_draw, parameters["user"])
        return self.function(fields, signals, head, noise_draw)
