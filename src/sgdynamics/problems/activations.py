"""Activations: scalar JAX functions with their kinks, their names and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial import hermite_e

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, RealArray
from sgdynamics.base.progress import warn
from sgdynamics.base.user_functions import analyse_function, function_identity, validate_function

# Largest number of coefficients of a polynomial: expectations of higher powers overflow float64.
MOST_COEFFICIENTS = 100


@dataclass(frozen=True)
class Activation:
    """A scalar activation function with its kinks.

    Parameters
    ----------
    f : callable
        A JAX function of one number.
    kinks : tuple of float, default ()
        The points where f or f' jumps, where quadrature must break.
    name : str, optional
        Name in records and plots.
    coefficients : tuple of float, optional
        Coefficients of a polynomial, lowest degree first. ``sgd.polynomial`` sets them.
    piecewise_degree : int, optional
        Degree of f between its kinks, for an f that is a polynomial there (1 for ReLU). Quadrature
        then needs fewer nodes. Set automatically for a polynomial.

    Raises
    ------
    ValueError
        If f is not a JAX function of one number, or kinks are not finite.

    Notes
    -----
    Activations with a name are linear, square, erf (erf(x/sqrt 2)), relu, tanh, gelu, softplus,
    sigmoid (1/(1 + exp(-x))), silu (x/(1 + exp(-x))), abs, sign (for teachers), and he2 to he6, the
    probabilists' Hermite polynomials without normalisation (he2 = x^2 - 1, he3 = x^3 - 3x,
    E[he_n^2] = n!).
    Derivatives come from automatic differentiation of the smooth pieces. The jumps of f and f' at
    the kinks are measured from both sides, and enter expectations of f' and f'' as point masses.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> leaky = sgd.Activation(lambda x: jnp.where(x > 0, x, 0.1 * x), kinks=(0.0,), name="leaky")
    >>> np.round(leaky.jumps(1), 3).tolist()
    [0.9]
    >>> sgd.TeacherStudent(width=2, activation=leaky).activation.name
    'leaky'
    """

    f: Callable[[Any], Any]
    kinks: tuple[float, ...] = ()
    name: str | None = None
    coefficients: tuple[float, ...] | None = None
    piecewise_degree: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.f):
            raise checks.reject(
                "activation", self.f, "give a JAX function of one number, such as jnp.tanh"
            )
        object.__setattr__(self, "kinks", validate_kinks(self.kinks))
        if isinstance(self.f, np.ufunc):
            name = self.f.__name__
            raise checks.reject(
                "activation",
                self.f,
                f"give a JAX function of one number: jnp.{name}, not np.{name}",
            )
        validate_function("activation", self.f, (np.zeros(()),), takes="x", call="one number")
        if self.name is not None and not isinstance(self.name, str):
            raise checks.reject("name", self.name, "give a text, or None")
        if self.coefficients is not None:
            object.__setattr__(self, "coefficients", _validate_coefficients(self.coefficients))
            object.__setattr__(self, "piecewise_degree", self.degree)
        elif self.piecewise_degree is not None:
            degree = checks.integer("piecewise_degree", self.piecewise_degree, 0)
            object.__setattr__(self, "piecewise_degree", degree)

    def __call__(self, x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
        return self.f(x)

    @property
    def label(self) -> str:
        """The name of the activation, or that of its function."""
        return self.name or getattr(self.f, "__name__", "activation")

    @property
    def degree(self) -> int | None:
        """Degree of a polynomial activation, None for any other."""
        return None if self.coefficients is None else len(self.coefficients) - 1

    @property
    def is_named(self) -> bool:
        """Whether the activation is one of those with a name in the library."""
        return NAMED.get(self.name or "") == self

    def derivative(self, order: int) -> Callable[[Any], Any]:
        """Return the pointwise derivative of the smooth pieces.

        Parameters
        ----------
        order : int
            Order of the derivative; 0 is f itself.

        Returns
        -------
        callable
            A JAX function, elementwise on arrays.
        """
        if self.coefficients is not None:
            coefficients = np.asarray(self.coefficients)
            if order:
                coefficients = np.polynomial.polynomial.polyder(coefficients, order)
            return lambda x: _horner(tuple(coefficients), x)
        function: Callable[[Any], Any] = self.f
        for _ in range(order):
            function = jax.grad(function)

        def elementwise(x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
            x = jnp.asarray(x)
            return jax.vmap(function)(x.reshape(-1)).reshape(x.shape)

        return elementwise

    def jumps(self, order: int) -> tuple[float, ...]:
        """Return the jump of a derivative at each kink, by extrapolation from both sides.

        Parameters
        ----------
        order : int
            Order of the derivative; 0 is f itself.

        Returns
        -------
        tuple of float
            One jump per kink.
        """
        return _jumps(self, order)

    def describe(self) -> str | dict[str, Any]:
        """Return the activation as plain values for the record of a result.

        Returns
        -------
        str or dict
            The name, the coefficients of a polynomial, or the identity of a user's function.
        """
        if self.name is not None and self.is_named:
            return self.name
        if self.coefficients is not None:
            return {"polynomial": list(self.coefficients)}
        named = {"name": self.name} if self.name else {}
        return {
            **named,
            **function_identity(self.f),
            "kinks": list(self.kinks),
            "rerunnable": False,
        }


@lru_cache(maxsize=256)
def _jumps(activation: Activation, order: int) -> tuple[float, ...]:
    """Return the jumps of a derivative at the kinks.

    The limit from each side is extrapolated linearly from two points, 2 f(h) - f(2 h), so that the
    slope of f does not count as a jump.
    """
    function = activation.derivative(order)
    step = 1e-6
    jumps = []
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        for kink in activation.kinks:
            points = jnp.asarray([kink + step, kink + 2 * step, kink - step, kink - 2 * step])
            above, further_above, below, further_below = np.asarray(function(points))
            jump = float(2 * above - further_above - 2 * below + further_below)
            jumps.append(jump if abs(jump) > 1e-9 else 0.0)
    return tuple(jumps)


# The search for undeclared kinks. Jumps below this share of the largest value give no warning.
LEAST_JUMP = 1e-6
# It covers |x| < SEARCH_RANGE with a grid, of which the intervals with the largest changes are
# bisected.
SEARCH_RANGE, SEARCH_POINTS, BISECTED_INTERVALS, BISECTIONS = 10.0, 2001, 8, 30


@lru_cache(maxsize=256)
def undeclared_kinks(activation: Activation) -> tuple[float, ...]:
    """Return points with |x| < 10 at which f or f' jumps although they are not declared as kinks.

    Functions of smooth operations alone have none. For all other functions the intervals of a grid
    over which f or f' changes most are bisected towards the larger change. Over the final length of
    1e-11 only a jump remains.
    """
    if activation.coefficients is not None or activation.is_named:
        return ()
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        if analyse_function(activation.f, np.zeros(()), random=(True,))[0]:
            return ()
        jumps: list[float] = []
        for order in (0, 1):
            jumps += _jump_points(activation.derivative(order))
    points = np.unique(np.round(jumps, 8)) + 0.0  # no negative zero
    return tuple(float(x) for x in points if all(abs(x - kink) > 1e-7 for kink in activation.kinks))


def _jump_points(function: Callable[[Any], Any]) -> list[float]:
    """Return the points at which a scalar function jumps, by bisection."""
    function = jax.jit(function)
    # The irrational shift keeps kinks, which are rarely irrational, off the grid.
    x = np.linspace(-SEARCH_RANGE, SEARCH_RANGE, SEARCH_POINTS) + 1e-3 * np.sqrt(2)
    values = np.asarray(function(x))
    is_finite = np.isfinite(values)
    changes = np.where(is_finite[1:] & is_finite[:-1], np.abs(np.diff(values)), 0.0)
    largest = np.sort(np.argsort(-changes)[:BISECTED_INTERVALS])
    low, high = x[largest], x[largest + 1]
    at_low, at_high = values[largest], values[largest + 1]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # Padded to the length of the grid, so that the function is compiled for one shape only.
        padded = np.resize(middle, len(x))
        at_middle = np.asarray(function(padded))[: len(middle)]
        left = np.abs(at_middle - at_low) >= np.abs(at_high - at_middle)
        high, at_high = np.where(left, middle, high), np.where(left, at_middle, at_high)
        low, at_low = np.where(left, low, middle), np.where(left, at_low, at_middle)
    largest_value = np.max(np.abs(values[is_finite]), initial=0.0)
    jumps = np.abs(at_high - at_low)
    points = (low + high) / 2
    return [float(point) for point in points[jumps > LEAST_JUMP * largest_value]]


def _warn_of_kinks(activation: Activation, argument: str) -> None:
    """Warn if an activation has kinks that are not declared."""
    points = undeclared_kinks(activation)
    if points:
        positions = ", ".join(f"{x:g}" for x in points)
        kinks = ", ".join(repr(x) for x in (*activation.kinks, *points))
        warn(
            f"{argument} = {activation.label}: it or its derivative jumps at x = {positions}, "
            "which is not declared, so expectations will be inaccurate. Use "
            f"sgd.Activation(f, kinks=({kinks},))."
        )


def validate_kinks(value: object) -> tuple[float, ...]:
    """Return the kinks of a function in increasing order, from a list or a single number."""
    fix = "give a list of numbers, such as [0.0]"
    kinks = np.atleast_1d(checks.real_array("kinks", value, fix))
    if kinks.ndim != 1 or not np.all(np.isfinite(kinks)):
        raise checks.reject("kinks", value, "give a list of finite numbers, such as [0.0]")
    return tuple(np.sort(kinks).tolist())


def _horner(coefficients: Sequence[float], x: RealArray) -> RealArray:
    """Evaluate c_0 + c_1 x + c_2 x^2 + ... by Horner's scheme."""
    x = jnp.asarray(x)
    result = jnp.zeros_like(x) + float(coefficients[-1])
    for value in reversed(coefficients[:-1]):
        result = result * x + float(value)
    return result


@dataclass(frozen=True)
class _Polynomial:
    """A polynomial as a hashable function, so that equal polynomials share one compilation."""

    coefficients: tuple[float, ...]

    def __call__(self, x: RealArray) -> RealArray:
        return _horner(self.coefficients, x)


def polynomial(coefficients: Sequence[float]) -> Activation:
    """Make the activation c0 + c1 x + c2 x^2 + ...

    Parameters
    ----------
    coefficients : sequence of float
        Coefficients c0, c1, ..., lowest degree first.

    Returns
    -------
    Activation
        The polynomial as an activation, whose expectations have closed forms.

    Raises
    ------
    ValueError
        If there are no coefficients or too many, or one is not finite.

    Examples
    --------
    >>> he2 = sgd.polynomial([-1.0, 0.0, 1.0])
    >>> he2.degree, float(he2(2.0))
    (2, 3.0)
    """
    values = _validate_coefficients(coefficients)
    return Activation(_Polynomial(values), name="polynomial", coefficients=values)


def _validate_coefficients(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Return the coefficients of a polynomial, without zeros at the highest degrees."""
    array = checks.real_array(
        "coefficients", coefficients, "give numbers c0, c1, ... (lowest degree first)"
    )
    if array.ndim != 1 or array.size > MOST_COEFFICIENTS:
        raise checks.reject(
            "coefficients",
            coefficients,
            f"give a list of numbers c0, c1, ..., {MOST_COEFFICIENTS} at most",
        )
    values = tuple(array.tolist())
    while len(values) > 1 and values[-1] == 0.0:
        values = values[:-1]
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        raise checks.reject(
            "coefficients", coefficients, "give finite numbers with at least one non-constant term"
        )
    return values


def _hermite(order: int) -> Activation:
    """Return the probabilists' Hermite polynomial He_n, with E[He_n(z)^2] = n! for z ~ N(0, 1)."""
    values = tuple(float(value) for value in hermite_e.herme2poly([0.0] * order + [1.0]))
    return Activation(_Polynomial(values), name=f"he{order}", coefficients=values)


def _erf(x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    return jax.lax.erf(jnp.asarray(x) / math.sqrt(2.0))


def _gelu(x: Numeric) -> Numeric:
    return jax.nn.gelu(x, approximate=False)


def _relu(x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    # where, not maximum: the derivative at a tie is then 0 in every JAX version
    return jnp.where(x > 0, x, 0.0)


NAMED: dict[str, Activation] = {
    "linear": Activation(_Polynomial((0.0, 1.0)), name="linear", coefficients=(0.0, 1.0)),
    "square": Activation(_Polynomial((0.0, 0.0, 1.0)), name="square", coefficients=(0.0, 0.0, 1.0)),
    "erf": Activation(_erf, name="erf"),
    "relu": Activation(_relu, kinks=(0.0,), name="relu", piecewise_degree=1),
    "tanh": Activation(jnp.tanh, name="tanh"),
    "gelu": Activation(_gelu, name="gelu"),
    "softplus": Activation(jax.nn.softplus, name="softplus"),
    "sigmoid": Activation(jax.nn.sigmoid, name="sigmoid"),
    "silu": Activation(jax.nn.silu, name="silu"),
    "abs": Activation(jnp.abs, kinks=(0.0,), name="abs", piecewise_degree=1),
    "sign": Activation(jnp.sign, kinks=(0.0,), name="sign", piecewise_degree=0),
    **{f"he{order}": _hermite(order) for order in range(2, 7)},
}


# Activations that a student cannot have: their gradient is 0 almost everywhere.
JUMPING = ("sign",)
# A name, an activation, a user's function, or the record of one.
ActivationLike = str | Activation | Function | Mapping[str, Any]


def activation(
    value: ActivationLike, argument: str = "activation", *, trained: bool = False
) -> Activation:
    """Return the activation of a name, a JAX function, a record or an `Activation`.

    `argument` is the name in error messages. Messages about `trained` activations do not suggest
    names of activations that jump.
    """
    if isinstance(value, Activation):
        _warn_of_kinks(value, argument)
        return value
    if isinstance(value, dict) and "polynomial" in value:
        return polynomial(value["polynomial"])
    if isinstance(value, dict) and "function" in value:
        raise checks.reject(
            argument,
            value,
            "a user's function cannot be restored from its record: pass the function itself",
        )
    if isinstance(value, str):
        if value == "polynomial":
            raise checks.reject(
                argument, value, "give its coefficients: sgd.polynomial([c0, c1, ...])"
            )
        if value not in NAMED:
            names = [name for name in NAMED if not (trained and name in JUMPING)]
            options = f"known are {', '.join(names)}; or sgd.Activation(f, kinks=...)"
            raise checks.reject(argument, value, f"{checks.did_you_mean(value, names)}{options}")
        return NAMED[value]
    if callable(value):
        activation = Activation(value)
        _warn_of_kinks(activation, argument)
        return activation
    raise checks.reject(
        argument, value, "give a name, sgd.polynomial([...]) or sgd.Activation(f, kinks=...)"
    )


def student_activation(value: ActivationLike, argument: str = "activation") -> Activation:
    """Return the activation of a student, whose gradient exists: it must not jump."""
    result = activation(value, argument, trained=True)
    if any(result.jumps(0)):
        raise checks.reject(
            argument,
            result.label,
            "it jumps, so its gradient is 0 almost everywhere; use it as teacher_activation only",
        )
    return result
