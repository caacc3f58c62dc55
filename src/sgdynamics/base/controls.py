"""Schedules: parameters that depend on alpha = samples/d (for fixed data sets, on t).

Any parameter that JAX traces may be a `Schedule`. A solver evaluates all schedules of a problem or
an algorithm once per step, with `values_at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import (
    ArrayArgument,
    Function,
    IntScalar,
    Numeric,
    PyTree,
    RealArray,
    Scalar,
)
from sgdynamics.base.code_identity import Json
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import function_identity, validate_function


class Range(NamedTuple):
    """The allowed range of the values of an argument.

    Values are at least `minimum`, above `above`, below `below` and at most `maximum`. With
    `sums_to_one` the entries along the last axis sum to 1.
    """

    argument: str
    minimum: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    maximum: float = math.inf
    sums_to_one: bool = False

    @property
    def fix(self) -> str:
        """The range as text, for messages."""
        bounds = []
        if self.above > -math.inf:
            bounds.append(f"above {self.above:g}")
        elif self.minimum > -math.inf:
            bounds.append(f"{self.minimum:g} or more")
        if self.below < math.inf:
            bounds.append(f"below {self.below:g}")
        elif self.maximum < math.inf:
            bounds.append(f"at most {self.maximum:g}")
        if self.sums_to_one:
            bounds.append("adding up to 1")
        return " and ".join(bounds) or "finite"

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Whether each value is finite and in the range."""
        inside = (
            (values >= self.minimum)
            & (values > self.above)
            & (values < self.below)
            & (values <= self.maximum)
        )
        valid = np.isfinite(values) & inside
        if self.sums_to_one and np.ndim(values):
            valid &= np.abs(values.sum(axis=-1, keepdims=True) - 1) < 1e-9
        return valid


@pytrees.register_parameters("parameters")
@dataclass(frozen=True)
class Schedule:
    """A parameter that depends on alpha.

    A static function of its own traced parameters and alpha.
    """

    function: Callable[[PyTree, Any], RealArray]
    parameters: PyTree
    name: str | None = None
    within: Range | None = None  # allowed range of the values
    clock: str | None = None  # variable of the schedule, "alpha" or "step"; None: the caller's

    def __call__(self, alpha: Scalar) -> RealArray:
        return self.function(self.parameters, alpha)

    def __repr__(self) -> str:
        return self.name or getattr(getattr(self.function, "own", None), "__name__", "schedule")

    def describe(self) -> Json:
        """The record of the schedule: edges and rates, or the identity of the user's function."""
        return describe_schedule(self)[0]

    def replace(self, **changes: ArrayArgument) -> Schedule:
        """Return the same piecewise schedule with other edges or rates."""
        checks.reject_unknown(
            "a schedule", changes, self.parameters if self.name == "piecewise" else ()
        )
        return replace(piecewise_rate(**{**self.parameters, **changes}), within=self.within)


class _OwnSchedule:
    """A user's function of alpha.

    Wrappers of the same function are equal, so that it compiles once.
    """

    def __init__(self, function: Callable[[Scalar], ArrayArgument]) -> None:
        self.own = function

    def __call__(self, parameters: PyTree, alpha: Scalar) -> Array:
        return jnp.asarray(self.own(alpha), dtype=jnp.result_type(float))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnSchedule) and self.own is other.own

    def __hash__(self) -> int:
        return hash((_OwnSchedule, id(self.own)))


def _piecewise(parameters: PyTree, alpha: Scalar) -> Array:
    return jnp.asarray(parameters["rates"])[
        jnp.searchsorted(jnp.asarray(parameters["edges"]), alpha, side="right")
    ]


def piecewise_rate(edges: ArrayArgument, rates: ArrayArgument) -> Schedule:
    """A learning rate that is constant between edges.

    Edges and rates are traced: a schedule with the same number of pieces is not compiled again.

    Parameters
    ----------
    edges : array_like of float
        Values of alpha = samples/d at which the rate changes, increasing and above 0 (values of t
        for a temperature).
    rates : array_like of float
        The rates, 0 or more, one more than edges: ``rates[0]`` applies before ``edges[0]``.

    Returns
    -------
    Schedule
        A function of alpha for ``lr`` (or, as a function of t, for ``temperature``).

    Raises
    ------
    ValueError
        If the edges do not increase, or the number of rates is not one more than that of edges.

    Examples
    --------
    >>> schedule = sgd.piecewise_rate([2.0, 5.0], [0.4, 0.2, 0.1])
    >>> sgd.OnePassSGD(lr=schedule).rates(np.array([0.0, 3.0, 9.0])).tolist()
    [0.4, 0.2, 0.1]
    """
    edges = np.atleast_1d(
        checks.real_array("edges", edges, "give increasing values of alpha above 0")
    )
    values = checks.real_array("rates", rates, "give numbers, one more than edges")
    rates = checks.array(
        "rates", values, (len(edges) + 1, *values.shape[1:]), "one more than edges"
    )
    if (
        edges.ndim != 1
        or not np.all(np.isfinite(edges))
        or np.any(np.diff(edges) <= 0)
        or np.any(edges <= 0)
    ):
        raise checks.reject("edges", edges, "give increasing values of alpha above 0")
    if np.any(rates < 0):
        raise checks.reject("rates", rates, "give learning rates of 0 or more")
    return piecewise(edges, rates)


def piecewise(edges: np.ndarray, values: np.ndarray) -> Schedule:
    """A piecewise constant schedule of any parameter, which may be negative, without checks."""
    return Schedule(_piecewise, {"edges": edges, "rates": values}, "piecewise")


def _constant(parameters: PyTree, alpha: Scalar) -> RealArray:
    return parameters


def constant(value: float) -> Schedule:
    """A constant as a schedule, which makes alpha the integration variable of the ODE."""
    return Schedule(_constant, np.float64(value))


class _RescaledFunction:
    """The function of a rescaled schedule: factor times its value at stretch times alpha."""

    def __init__(self, function: Callable[[PyTree, Any], RealArray]) -> None:
        self.function, self.own = function, getattr(function, "own", function)

    def __call__(self, parameters: PyTree, alpha: Scalar) -> RealArray:
        return parameters["factor"] * self.function(
            parameters["parameters"], parameters["stretch"] * alpha
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RescaledFunction) and self.function == other.function

    def __hash__(self) -> int:
        return hash((_RescaledFunction, self.function))


def rescale_schedule(schedule: Schedule, factor: Scalar, stretch: Scalar) -> Schedule:
    """Convert a schedule to other units: factor times its value at stretch times alpha."""
    if schedule.name == "piecewise":
        edges, rates = schedule.parameters["edges"] / stretch, schedule.parameters["rates"] * factor
        return replace(schedule, parameters={"edges": edges, "rates": rates})
    parameters = {"parameters": schedule.parameters, "factor": factor, "stretch": stretch}
    return replace(schedule, function=_RescaledFunction(schedule.function), parameters=parameters)


def rescale_schedules(parameters: PyTree, stretch: Scalar) -> PyTree:
    """Rescale alpha in all schedules of a pytree, which are then read at stretch times alpha."""
    return jax.tree.map(
        lambda leaf: rescale_schedule(leaf, 1.0, stretch) if is_scheduled(leaf) else leaf,
        parameters,
        is_leaf=is_scheduled,
    )


class _ComposedFunction:
    """A static function of the value of a schedule."""

    def __init__(
        self, function: Callable[[PyTree, Any], RealArray], transform: Callable[[Any], Any]
    ) -> None:
        self.function, self.transform = function, transform
        self.own = getattr(function, "own", function)

    def __call__(self, parameters: PyTree, alpha: Scalar) -> RealArray:
        return self.transform(self.function(parameters, alpha))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ComposedFunction) and (self.function, self.transform) == (
            other.function,
            other.transform,
        )

    def __hash__(self) -> int:
        return hash((_ComposedFunction, self.function, self.transform))


class _Concatenation:
    """The function of a vector whose pieces are schedules or constants."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts, self.own = counts, self

    def __call__(self, parameters: PyTree, alpha: Scalar) -> RealArray:
        pieces = [
            jnp.full(count, piece(alpha) if isinstance(piece, Schedule) else piece)
            for count, piece in zip(self.counts, parameters, strict=True)
        ]
        return jnp.concatenate(pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Concatenation) and self.counts == other.counts

    def __hash__(self) -> int:
        return hash((_Concatenation, self.counts))


def concatenate_schedules(pieces: Sequence[Any], counts: tuple[int, ...]) -> Schedule:
    """A vector with `counts[i]` entries of the i-th number or schedule, as one schedule."""
    within = next(piece.within for piece in pieces if isinstance(piece, Schedule))
    parameters = tuple(
        piece if isinstance(piece, Schedule) else np.float64(piece) for piece in pieces
    )
    return Schedule(_Concatenation(counts), parameters, "by leaf", within)


Value = TypeVar("Value")
Image = TypeVar("Image")


@overload
def map_schedule(value: Schedule, transform: Callable[[Any], Any]) -> Schedule: ...


@overload
def map_schedule(value: Value, transform: Callable[[Value], Image]) -> Image: ...


def map_schedule(value: PyTree, transform: Callable[[Any], Any]) -> PyTree:
    """Apply a function to a parameter; if that is a schedule, so is the outcome."""
    if isinstance(value, Schedule):
        return Schedule(_ComposedFunction(value.function, transform), value.parameters)
    return transform(value)


def values_at(parameters: PyTree, alpha: Scalar) -> PyTree:
    """Evaluate all schedules of a pytree at alpha (for fixed data sets, at t)."""
    return jax.tree.map(
        lambda leaf: leaf(alpha) if isinstance(leaf, Schedule) else leaf,
        parameters,
        is_leaf=is_scheduled,
    )


@overload
def alpha_of_steps(steps: np.ndarray, batch: float, dimension: Scalar) -> np.ndarray: ...


@overload
def alpha_of_steps(steps: Array, batch: float, dimension: Scalar) -> Array: ...


@overload
def alpha_of_steps(steps: IntScalar, batch: float, dimension: Scalar) -> Scalar: ...


def alpha_of_steps(steps: IntScalar | Numeric, batch: float, dimension: Scalar) -> Scalar | Numeric:
    """alpha = samples/d at which a step is taken, after this many others.

    One division of integers: a piece of a schedule that starts at alpha = n batch/d starts with
    step n. The product n (batch/d) may round below that edge, and the piece would start a step
    late.
    """
    return steps * float(batch) / dimension


def piece_edges(parameters: PyTree) -> np.ndarray:
    """The values of alpha (for fixed data sets, of t) at which a piecewise schedule jumps."""
    edges = [np.zeros(0)]
    for leaf in jax.tree.leaves(parameters, is_leaf=is_scheduled):
        own = leaf.parameters if isinstance(leaf, Schedule) else None
        if isinstance(own, dict) and "edges" in own:
            edges.append(own["edges"])
    return np.unique(np.concatenate(edges))


def is_scheduled(value: object) -> bool:
    """Whether a parameter depends on alpha."""
    return isinstance(value, Schedule)


def schedule_from_function(
    name: str, function: Function, variable: str, *, allow_array: bool = False
) -> Schedule:
    """Build a schedule from a user's function of one `variable`, alpha or t.

    The function returns one real number or, with `allow_array`, an array.
    """
    schedule = function if isinstance(function, Schedule) else Schedule(_OwnSchedule(function), ())
    # Check the function itself: its schedule would convert any output to a real number.
    own = function.own if isinstance(function, _OwnSchedule) else function
    validate_function(
        name,
        own,
        (np.zeros(()),),
        takes=variable,
        call=f"one {variable}",
        differentiated=False,
        one_number=not allow_array,
    )
    return schedule


def scalar_or_schedule(
    argument: str,
    value: object,
    minimum: float = 0.0,
    *,
    above: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    variable: str = "alpha",
) -> Any:
    """A number in a range, or a schedule of such numbers from a user's function of alpha (or t)."""
    low = (minimum, -math.inf) if above is None else (-math.inf, above)
    within = Range(
        argument,
        *low,
        math.inf if below is None else below,
        math.inf if maximum is None else maximum,
    )
    if not callable(value):
        number = checks.number(argument, value, within.minimum, above=above)
        if not within.holds(np.asarray(number)):
            raise checks.reject(argument, value, f"give a number, {within.fix}")
        return number
    if isinstance(value, Schedule) and value.clock == "step":
        name = str(value.name).partition(" ")[0]
        fix = (
            "this schedule counts steps. Give its length in samples/d, as in "
            f"sgd.schedules.{name}(..., alpha=10)."
        )
        raise checks.reject(argument, value, fix)
    schedule = replace(schedule_from_function(argument, value, variable), within=within)
    validate_values(argument, schedule, np.zeros(1), variable)
    return schedule


def validate_values(
    argument: str, schedule: Schedule, points: np.ndarray, variable: str
) -> np.ndarray:
    """Evaluate a schedule at these points.

    Raise ValueError if a value is not finite or outside of the allowed range, by default 0 or more.
    """
    values = evaluate_schedule(schedule, np.asarray(points, dtype=np.float64))
    within = schedule.within or Range(argument, 0.0)
    bad = ~within.holds(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        where, value = float(np.asarray(points)[bad][0]), values[bad][0]
        shown = f"{value:g}" if np.ndim(value) == 0 else value.tolist()
        raise checks.reject(
            argument,
            schedule,
            f"at {variable} = {where:g} the schedule gives {shown}: it must be {within.fix}",
        )
    return values


SCHEDULE_CHECK_POINTS = 257  # points of a run at which schedules are validated before it starts


def check_schedules(parameters: PyTree, end: float, variable: str) -> None:
    """Raise ValueError if a schedule leaves its allowed range before the end of a run."""
    for leaf in jax.tree.leaves(parameters, is_leaf=is_scheduled):
        if isinstance(leaf, Schedule) and leaf.within is not None:
            validate_values(
                leaf.within.argument, leaf, np.linspace(0, end, SCHEDULE_CHECK_POINTS), variable
            )


def describe_schedule(value: object) -> tuple[Any, bool]:
    """A number or schedule as plain values, and whether it can be rebuilt from these."""
    if not isinstance(value, Schedule):
        return pytrees.to_python_scalar(value), True
    if value.name == "piecewise":
        return {name: np.asarray(array).tolist() for name, array in value.parameters.items()}, True
    if value.clock is not None and value.name:  # of sgd.schedules: its name and arguments
        kind, _, shape = value.name.partition(" ")
        arguments = {
            value.clock if name == "length" else name: np.asarray(array).tolist()
            for name, array in value.parameters.items()
        }
        return {"schedule": kind} | arguments | ({"shape": shape} if shape else {}), True
    return function_identity(value.function.own), False


@float64
def evaluate_schedule(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    """Evaluate a schedule at each alpha, in float64."""
    return np.asarray(jax.vmap(schedule)(jnp.asarray(alpha, dtype=jnp.float64)))


def evaluate_along(value: object, alpha: np.ndarray) -> np.ndarray:
    """Evaluate a number or a schedule at each alpha."""
    return (
        evaluate_schedule(value, alpha)
        if isinstance(value, Schedule)
        else np.full(np.shape(alpha), float(pytrees.to_python_scalar(value)))
    )
