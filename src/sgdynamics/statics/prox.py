"""Convex losses of a linear predictor and their proximal operators.

    prox(om, y, V) = argmin_f loss(f, y) + (f - om)^2/(2 V)

Each loss works on arrays of NumPy and of JAX alike: the fixed points of empirical risk minimisation
use NumPy, message passing on data uses JAX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems import losses

Fields = Float[Numeric, "*s"]

# Steps of the safeguarded Newton iteration, which bisects where Newton leaves the bracket.
NEWTON_STEPS = 64
# Labels and outputs at which the convexity of a user's loss is tried.
PROBED_OUTPUTS = np.linspace(-12.0, 12.0, 97)
PROBED_LABELS = np.array([-3.0, -1.0, -0.3, 0.0, 0.4, 1.0, 2.5])


def module_of(*values: object) -> Any:
    """Return ``jax.numpy`` if a value is a JAX array, else ``numpy``."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


@dataclass(frozen=True)
class ConvexLoss(ABC):
    """A loss of output and label that is convex in the output.

    Attributes
    ----------
    name : str
        Name in results and in the argument ``loss``.
    of_residual : bool
        Whether it is a function of output - label.
    of_margin : bool
        Whether it is a decreasing function of output * label, for labels +1 and -1.
    has_kinks : bool
        Whether the prox has kinks, where iterations need damping.
    """

    name: ClassVar[str]
    of_residual: ClassVar[bool] = False
    of_margin: ClassVar[bool] = False
    has_kinks: ClassVar[bool] = False

    @abstractmethod
    def value(self, output: Fields, label: Fields) -> Fields:
        """Return the loss."""

    @abstractmethod
    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        """Return the proximal operator at om."""

    @abstractmethod
    def curvature(self, output: Fields, label: Fields) -> Fields:
        """Return the second derivative in the output."""

    def slope(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        """Return the derivative of the prox in om, 1/(1 + V loss'')."""
        return 1.0 / (1.0 + V * self.curvature(self.prox(om, label, V), label))

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        """Return positions in om around which the prox bends, each with the width of the bend.

        The width is 0 at a kink.
        """
        return []

    def describe(self) -> Any:
        """Return the name, or a dictionary of plain values."""
        return self.name


@dataclass(frozen=True)
class SquaredLoss(ConvexLoss):
    """(f - y)^2/2."""

    name: ClassVar[str] = "squared"
    of_residual: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        return 0.5 * (output - label) ** 2

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        return (om + V * label) / (1.0 + V)

    def curvature(self, output: Fields, label: Fields) -> Fields:
        return 1.0 + 0.0 * (output - label)


@dataclass(frozen=True)
class AbsoluteLoss(ConvexLoss):
    """abs(f - y)."""

    name: ClassVar[str] = "absolute"
    of_residual: ClassVar[bool] = True
    has_kinks: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        return abs(output - label)

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        xp, residual = module_of(om, label, V), om - label
        return label + xp.sign(residual) * xp.maximum(abs(residual) - V, 0.0)

    def curvature(self, output: Fields, label: Fields) -> Fields:
        # a delta function at 0, which `slope` treats
        return 0.0 * (output - label)

    def slope(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        return 1.0 * (abs(om - label) > V)

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        return [(label - V, 0.0), (label + V, 0.0)]


@dataclass(frozen=True)
class HuberLoss(ConvexLoss):
    """(f - y)^2/2 up to abs(f - y) = delta, and delta (abs(f - y) - delta/2) beyond."""

    delta: float = 1.0
    name: ClassVar[str] = "huber"
    of_residual: ClassVar[bool] = True
    has_kinks: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        xp, size = module_of(output, label), abs(output - label)
        linear = self.delta * (size - 0.5 * self.delta)
        return xp.where(size <= self.delta, 0.5 * size**2, linear)

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        xp, residual = module_of(om, label, V), om - label
        inside = residual / (1.0 + V)
        outside = residual - V * self.delta * xp.sign(residual)
        return label + xp.where(abs(residual) <= self.delta * (1.0 + V), inside, outside)

    def curvature(self, output: Fields, label: Fields) -> Fields:
        return 1.0 * (abs(output - label) <= self.delta)

    def slope(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        xp = module_of(om, label, V)
        return xp.where(abs(om - label) <= self.delta * (1.0 + V), 1.0 / (1.0 + V), 1.0)

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        edge = self.delta * (1.0 + V)
        return [(label - edge, 0.0), (label + edge, 0.0)]

    def describe(self) -> Any:
        return {"loss": self.name, "delta": self.delta}


@dataclass(frozen=True)
class HingeLoss(ConvexLoss):
    """max(0, 1 - f y)."""

    name: ClassVar[str] = "hinge"
    of_margin: ClassVar[bool] = True
    has_kinks: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        return module_of(output, label).maximum(1.0 - output * label, 0.0)

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        xp = module_of(om, label, V)
        margin, pull = om * label, V * label**2
        edge = 1.0 / xp.where(label == 0, 1.0, label)
        return xp.where(margin >= 1.0, om, xp.where(margin + pull <= 1.0, om + V * label, edge))

    def curvature(self, output: Fields, label: Fields) -> Fields:
        # a delta function at the edge, which `slope` treats
        return 0.0 * (output * label)

    def slope(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        margin = om * label
        return 1.0 * ((margin >= 1.0) | (margin + V * label**2 <= 1.0))

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        edge = 1.0 / np.where(label == 0, 1.0, label)
        return [(edge, 0.0), (edge - V * label, 0.0)]


@dataclass(frozen=True)
class LogisticLoss(ConvexLoss):
    """log(1 + exp(-f y))."""

    name: ClassVar[str] = "logistic"
    of_margin: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        return module_of(output, label).logaddexp(0.0, -output * label)

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        # The margin w = f y solves w = u + V y^2 s(-w), u = om y, between u and u + V y^2.
        xp = module_of(om, label, V)
        sigmoid = jax.nn.sigmoid if xp is jnp else special.expit
        u, pull = om * label, V * label**2

        def residual(w: Fields) -> tuple[Fields, Fields]:
            share = sigmoid(-w)
            return w - u - pull * share, 1.0 + pull * share * (1.0 - share)

        w = solve_increasing(residual, u, u + pull)
        return om + V * label * sigmoid(-w)

    def curvature(self, output: Fields, label: Fields) -> Fields:
        share = 0.5 * (1.0 - module_of(output, label).tanh(0.5 * output * label))
        return label**2 * share * (1.0 - share)

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        return [(0.0 * label, 1.0), (-V * label, 1.0)]


@dataclass(frozen=True)
class UserConvexLoss(ConvexLoss):
    """A user's loss of (output, label), whose prox is found by bisection and Newton steps.

    Attributes
    ----------
    function : callable
        JAX function of (output, label), convex in the output.
    """

    function: Callable[[Any, Any], Any]
    name: ClassVar[str] = "function"
    has_kinks: ClassVar[bool] = True

    def value(self, output: Fields, label: Fields) -> Fields:
        return self._evaluate(0, output, label)

    def prox(self, om: Fields, label: Fields, V: Scalar) -> Fields:
        if module_of(om, label, V) is jnp:
            return _user_prox(self.function, om, label, V)
        return _user_prox_on_host(self.function, om, label, V)

    def curvature(self, output: Fields, label: Fields) -> Fields:
        return self._evaluate(2, output, label)

    def features(self, label: Float[np.ndarray, " n"], V: float) -> list[tuple[np.ndarray, float]]:
        return [(0.0 * label, 1.0), (label, 1.0)]

    def _evaluate(self, order: int, output: Fields, label: Fields) -> Fields:
        if module_of(output, label) is jnp:
            return jnp.vectorize(_derivative(self.function, order))(output, label)
        return _derivative_on_host(self.function, order, output, label)

    def describe(self) -> Any:
        return {"loss": getattr(self.function, "__name__", self.name)}


def solve_increasing(
    residual: Callable[[Fields], tuple[Fields, Fields]], low: Fields, high: Fields
) -> Fields:
    """Return the root of an increasing function between `low` and `high`.

    `residual` returns value and derivative. Newton steps that leave the bracket, or that are not
    half as long as the one before, are replaced by bisection.
    """
    xp = module_of(low, high)

    def improve(low: Fields, high: Fields, x: Fields, last: Fields) -> tuple[Fields, ...]:
        value, slope = residual(x)
        low = xp.where(value <= 0, x, low)
        high = xp.where(value >= 0, x, high)
        newton = x - value / slope
        is_good = (newton >= low) & (newton <= high) & (abs(newton - x) <= 0.5 * last)
        new = xp.where(is_good, newton, 0.5 * (low + high))
        return low, high, new, abs(new - x)

    rounding = 4e-16 * (1.0 + abs(low) + abs(high))
    carry = (low, high, 0.5 * (low + high), high - low)
    if xp is jnp:
        return jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, carry: improve(*carry), carry)[2]
    for _ in range(NEWTON_STEPS):
        carry = improve(*carry)
        if np.all(carry[3] <= rounding):
            break
    return carry[2]


def _derivative(function: Function, order: int) -> Function:
    """Return the derivative of this order in the output."""
    for _ in range(order):
        function = jax.grad(function)
    return function


def _user_prox(function: Function, om: Fields, label: Fields, V: Scalar) -> Fields:
    """Return the root f of f - om + V loss'(f), between om - V loss'(om) and om."""
    slope = jnp.vectorize(_derivative(function, 1))
    curvature = jnp.vectorize(_derivative(function, 2))
    om, label = jnp.broadcast_arrays(om, label)

    def residual(f: Fields) -> tuple[Fields, Fields]:
        return f - om + V * slope(f, label), 1.0 + V * curvature(f, label)

    opposite = om - V * slope(om, label)
    return solve_increasing(residual, jnp.minimum(om, opposite), jnp.maximum(om, opposite))


_compiled: dict[tuple[str, Function], Function] = {}


def _compiled_once(kind: str, function: Function, build: Callable[[], Function]) -> Function:
    """Return a function compiled once per user's function."""
    if (kind, function) not in _compiled:
        if len(_compiled) >= 64:
            _compiled.clear()
        _compiled[kind, function] = build()
    return _compiled[kind, function]


@float64
def _user_prox_on_host(function: Function, om: Fields, label: Fields, V: Scalar) -> np.ndarray:
    def build() -> Function:
        return jax.jit(lambda om, label, V: _user_prox(function, om, label, V))

    return np.asarray(_compiled_once("prox", function, build)(om, label, V))


@float64
def _derivative_on_host(
    function: Function, order: int, output: Fields, label: Fields
) -> np.ndarray:
    def build() -> Function:
        return jax.jit(jnp.vectorize(_derivative(function, order)))

    return np.asarray(_compiled_once(f"derivative {order}", function, build)(output, label))


def _user_loss(argument: str, function: Function) -> UserConvexLoss:
    """Return a user's loss, after a trial that it is convex in the output."""
    example = (np.zeros(()), np.zeros(()))
    call = "an output and a label"
    validate_function(argument, function, example, takes="output, label", call=call)
    loss = UserConvexLoss(function)
    outputs, labels = np.meshgrid(PROBED_OUTPUTS, PROBED_LABELS)
    slopes = _derivative_on_host(function, 1, outputs, labels)
    size = np.max(np.abs(slopes))
    if not np.all(np.isfinite(slopes)) or np.any(np.diff(slopes, axis=1) < -1e-9 * (1 + size)):
        fix = (
            "its derivative in the output decreases somewhere, so it is not convex. Only convex "
            "losses have one minimiser for all starts. Use sgd.solve_dmft for the end of a training"
        )
        raise checks.reject(argument, function, fix)
    return loss


LOSSES: dict[str, ConvexLoss] = {
    loss.name: loss
    for loss in (SquaredLoss(), LogisticLoss(), HingeLoss(), HuberLoss(), AbsoluteLoss())
}


def convex_loss(value: object, argument: str = "loss") -> ConvexLoss:
    """Return the convex loss that an argument states.

    It is a name, a pair ("huber", delta), or a JAX function of (output, label).
    """
    if isinstance(value, ConvexLoss):
        return value
    if isinstance(value, str):
        return LOSSES[checks.choice(argument, value, LOSSES)]
    if isinstance(value, (tuple, list)) and len(value) == 2 and value[0] == HuberLoss.name:
        return HuberLoss(checks.number(f"{argument} delta", value[1], above=0.0))
    if value is losses.squared:
        return LOSSES["squared"]
    if value is losses.logistic:
        return LOSSES["logistic"]
    if callable(value):
        return _user_loss(argument, value)
    names = ", ".join(repr(name) for name in LOSSES)
    fix = f'give {names}, ("huber", delta), or a JAX function of (output, label)'
    raise checks.reject(argument, value, fix)
