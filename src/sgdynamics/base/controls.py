"""Numbers that depend on alpha = samples/d (on fixed data on t): a function with its numbers.

What is traced may hold a `Schedule` in place of any number; whoever makes a step reads all of them through `values_at`, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function, PyTree, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import function_identity, validate_function


class Range(NamedTuple):
    """Where the values of a number lie, and what it is called: at least `minimum`, above `above`, below `below`, at most `maximum`."""

    argument: str
    minimum: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    maximum: float = math.inf
    sums_to_one: bool = False  # whether the last axis adds up to 1

    @property
    def fix(self) -> str:
        """The range in words."""
        low = (
            f"above {self.above:g}"
            if self.above > -math.inf
            else f"{self.minimum:g} or more"
            if self.minimum > -math.inf
            else ""
        )
        high = (
            f"below {self.below:g}"
            if self.below < math.inf
            else f"at most {self.maximum:g}"
            if self.maximum < math.inf
            else ""
        )
        return (
            " and ".join(
                part for part in (low, high, "adding up to 1" if self.sums_to_one else "") if part
            )
            or "finite"
        )

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Where values are finite and in it."""
        inside = (
            (values >= self.minimum)
            & (values > self.above)
            & (values < self.below)
            & (values <= self.maximum)
        )
        found = np.isfinite(values) & inside
        return (
            found & (np.abs(values.sum(axis=-1, keepdims=True) - 1) < 1e-9)
            if self.sums_to_one and np.ndim(values)
            else found
        )


@pytrees.register_parameters("parameters")
@dataclass(frozen=True)
class Schedule:
    """A number that depends on alpha = samples/d: a function (static) of its own numbers (traced) and alpha."""

    function: Callable[[Any, Any], Any]
    parameters: Any
    name: Any = None
    within: Range | None = None  # where its values have to lie

    def __call__(self, alpha: Scalar) -> Any:
        return self.function(self.parameters, alpha)

    def __repr__(self) -> str:
        return self.name or getattr(getattr(self.function, "own", None), "__name__", "schedule")

    def describe(self) -> Any:
        """The record of the schedule: edges and rates, or the identity of the user's function."""
        return describe_schedule(self)[0]

    def replace(self, **changes: Any) -> Schedule:
        """The same piecewise schedule with other edges or rates."""
        checks.reject_unknown(
            "a schedule", changes, self.parameters if self.name == "piecewise" else ()
        )
        return replace(piecewise_rate(**{**self.parameters, **changes}), within=self.within)


class _OwnSchedule:
    """A user's function of alpha; two wrappers of one function are equal, so that it compiles once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.own = function

    def __call__(self, parameters: PyTree, alpha: Scalar) -> Any:
        return jnp.asarray(self.own(alpha), dtype=jnp.result_type(float))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnSchedule) and self.own is other.own

    def __hash__(self) -> int:
        return hash((_OwnSchedule, id(self.own)))


def _piecewise(parameters: PyTree, alpha: Scalar) -> Any:
    return jnp.asarray(parameters["rates"])[
        jnp.searchsorted(jnp.asarray(parameters["edges"]), alpha, side="right")
    ]


def piecewise_rate(edges: ArrayArgument, rates: ArrayArgument) -> Schedule:
    """A learning rate that is constant between edges.

    Its numbers are traced: another schedule with as many pieces does not compile again.

    Parameters
    ----------
    edges : array_like of float
        Where the rate changes: increasing values of alpha = samples/d, above 0 (a temperature: of t).
    rates : array_like of float
        The rates, 0 or more, one more than edges: ``rates[0]`` holds before ``edges[0]``.

    Returns
    -------
    Schedule
        A function of alpha, to be given as ``lr`` (or, as a function of t, as ``temperature``).

    Raises
    ------
    ValueError
        If edges do not increase, or there is not one rate more than edges.

    Examples
    --------
    >>> schedule = sgd.piecewise_rate([2.0, 5.0], [0.4, 0.2, 0.1])
    >>> sgd.OnePassSGD(lr=schedule).rates(np.array([0.0, 3.0, 9.0])).tolist()
    [0.4, 0.2, 0.1]
    """
    edges = np.atleast_1d(
        checks.real_array("edges", edges, "give increasing values of alpha above 0")
    )
    given = checks.real_array("rates", rates, "give numbers, one more than edges")
    rates = checks.array("rates", given, (len(edges) + 1, *given.shape[1:]), "one more than edges")
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
    """The same of any number, which may be negative, unchecked."""
    return Schedule(_piecewise, {"edges": edges, "rates": values}, "piecewise")


def _same(parameters: PyTree, alpha: Scalar) -> Any:
    return parameters


def constant(value: float) -> Schedule:
    """A number as a schedule: with it among the rates alpha is the variable of an ODE."""
    return Schedule(_same, np.float64(value))


class _Stretched:
    """A schedule in other units: factor times its value at stretch times the place."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self.own = function, getattr(function, "own", function)

    def __call__(self, parameters: PyTree, alpha: Scalar) -> Any:
        return parameters["factor"] * self.function(
            parameters["parameters"], parameters["stretch"] * alpha
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stretched) and self.function == other.function

    def __hash__(self) -> int:
        return hash((_Stretched, self.function))


def rescale_schedule(schedule: Schedule, factor: Scalar, stretch: Scalar) -> Schedule:
    """A schedule in other units: factor times its value at stretch times the place."""
    if schedule.name == "piecewise":
        edges, rates = schedule.parameters["edges"] / stretch, schedule.parameters["rates"] * factor
        return replace(schedule, parameters={"edges": edges, "rates": rates})
    parameters = {"parameters": schedule.parameters, "factor": factor, "stretch": stretch}
    return replace(schedule, function=_Stretched(schedule.function), parameters=parameters)


def rescale_schedules(parameters: PyTree, stretch: Scalar) -> Any:
    """Numbers whose schedules are read at stretch times the place."""
    return jax.tree.map(
        lambda leaf: rescale_schedule(leaf, 1.0, stretch) if is_scheduled(leaf) else leaf,
        parameters,
        is_leaf=is_scheduled,
    )


class _Mapped:
    """What follows from a schedule's value, by a function that is static."""

    def __init__(self, function: Callable[[Any, Any], Any], made: Callable[[Any], Any]) -> None:
        self.function, self.made, self.own = function, made, getattr(function, "own", function)

    def __call__(self, parameters: PyTree, alpha: Scalar) -> Any:
        return self.made(self.function(parameters, alpha))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mapped) and (self.function, self.made) == (
            other.function,
            other.made,
        )

    def __hash__(self) -> int:
        return hash((_Mapped, self.function, self.made))


def map_schedule(number: Any, made: Callable[[Any], Any]) -> Any:
    """What follows from a number, which may be a schedule: then it is one too."""
    return (
        Schedule(_Mapped(number.function, made), number.parameters)
        if isinstance(number, Schedule)
        else made(number)
    )


def values_at(parameters: PyTree, alpha: Scalar) -> Any:
    """The numbers of a problem or an algorithm at alpha (on fixed data at t): schedules become their values, the rest stays."""
    return jax.tree.map(
        lambda leaf: leaf(alpha) if isinstance(leaf, Schedule) else leaf,
        parameters,
        is_leaf=is_scheduled,
    )


def alpha_of_steps(steps: Any, batch: float, dimension: Any) -> Any:
    """alpha = samples/d at which a step is taken, after this many others.

    One division of integers: a piece of a schedule that starts at alpha = n batch/d starts with
    step n. The product n (batch/d) may round below that edge, and the piece would start a step late.
    """
    return steps * float(batch) / dimension


def piece_edges(parameters: PyTree) -> np.ndarray:
    """Where pieces of schedules among these numbers begin, in alpha (on fixed data in t)."""
    leaves = [
        leaf.parameters
        for leaf in jax.tree.leaves(parameters, is_leaf=is_scheduled)
        if isinstance(leaf, Schedule)
    ]
    return np.unique(
        np.concatenate(
            [
                np.zeros(0),
                *(one["edges"] for one in leaves if isinstance(one, dict) and "edges" in one),
            ]
        )
    )


def is_scheduled(number: object) -> bool:
    """Whether a number depends on alpha."""
    return isinstance(number, Schedule)


def schedule_from_function(
    name: str, function: Function, variable: str, *, allow_array: bool = False
) -> Schedule:
    """A schedule from a user's function of one number (`variable`: alpha or t), which gives one number too, or (`allow_array`) an array."""
    schedule = function if isinstance(function, Schedule) else Schedule(_OwnSchedule(function), ())
    # the function itself: the schedule made of it would turn whatever it gives into a real number
    tried = function.own if isinstance(function, _OwnSchedule) else function
    validate_function(
        name,
        tried,
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
    """A number of this range, or a schedule of such numbers from a user's function of alpha (or of t)."""
    low = (minimum, -math.inf) if above is None else (-math.inf, above)
    within = Range(
        argument,
        *low,
        math.inf if below is None else below,
        math.inf if maximum is None else maximum,
    )
    if not callable(value):
        found = checks.number(argument, value, within.minimum, above=above)
        if not within.holds(np.asarray(found)):
            raise checks.reject(argument, value, f"give a number, {within.fix}")
        return found
    schedule = replace(schedule_from_function(argument, value, variable), within=within)
    validate_values(argument, schedule, np.zeros(1), variable)
    return schedule


def validate_values(
    argument: str, schedule: Schedule, points: np.ndarray, variable: str
) -> np.ndarray:
    """The values of a schedule at these places; refuse it where they are not finite or out of its range (0 or more unless it has one)."""
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


SCHEDULE_CHECK_POINTS = 257  # places along a run at which schedules are looked at before it starts


def check_schedules(parameters: PyTree, end: float, variable: str) -> None:
    """Refuse schedules among these numbers that leave their range somewhere up to the end of a run."""
    for leaf in jax.tree.leaves(parameters, is_leaf=is_scheduled):
        if isinstance(leaf, Schedule) and leaf.within is not None:
            validate_values(
                leaf.within.argument, leaf, np.linspace(0, end, SCHEDULE_CHECK_POINTS), variable
            )


def describe_schedule(value: object) -> tuple[Any, bool]:
    """A number or schedule as plain values for a record, and whether it can be made again from them."""
    if not isinstance(value, Schedule):
        return pytrees.to_python_scalar(value), True
    if value.name == "piecewise":
        return {name: np.asarray(part).tolist() for name, part in value.parameters.items()}, True
    return function_identity(value.function.own), False


@float64
def evaluate_schedule(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(schedule)(jnp.asarray(alpha, dtype=jnp.float64)))


def evaluate_along(value: object, alpha: np.ndarray) -> np.ndarray:
    """A number or a schedule at each alpha."""
    return (
        evaluate_schedule(value, alpha)
        if isinstance(value, Schedule)
        else np.full(np.shape(alpha), float(pytrees.to_python_scalar(value)))
    )
