"""Numbers that depend on alpha = samples/d (on fixed data on t): a function with its numbers.

What is traced may hold a `Schedule` in place of any number; whoever makes a step reads all of them through `numbers_at`, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics import checks, trees
from sgdynamics.arrays import Function, Given, Scalar, Tree
from sgdynamics.functions import checked_function, function_identity
from sgdynamics.precision import float64


@trees.numbered("numbers")
@dataclass(frozen=True)
class Schedule:
    """A number that depends on alpha = samples/d: a function (static) of its own numbers (traced) and alpha."""

    function: Callable[[Any, Any], Any]
    numbers: Any
    name: Any = None

    def __call__(self, alpha: Scalar) -> Any:
        return self.function(self.numbers, alpha)

    def __repr__(self) -> str:
        return self.name or getattr(getattr(self.function, "own", None), "__name__", "schedule")

    def replace(self, **changes: Any) -> Schedule:
        """The same piecewise schedule with other edges or rates."""
        checks.known_names("a schedule", changes, self.numbers if self.name == "piecewise" else ())
        return piecewise_rate(**{**self.numbers, **changes})


class _OwnSchedule:
    """A user's function of alpha; two wrappers of one function are equal, so that it compiles once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.own = function

    def __call__(self, numbers: Tree, alpha: Scalar) -> Any:
        return jnp.asarray(self.own(alpha), dtype=jnp.result_type(float))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnSchedule) and self.own is other.own

    def __hash__(self) -> int:
        return hash((_OwnSchedule, id(self.own)))


def _piecewise(numbers: Tree, alpha: Scalar) -> Any:
    return jnp.asarray(numbers["rates"])[jnp.searchsorted(jnp.asarray(numbers["edges"]), alpha, side="right")]


def piecewise_rate(edges: Given, rates: Given) -> Schedule:
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
    edges = np.atleast_1d(checks.numbers("edges", edges, "give increasing values of alpha above 0"))
    rates = checks.array("rates", rates, (len(edges) + 1,), "one more than edges")
    if edges.ndim != 1 or not np.all(np.isfinite(edges)) or np.any(np.diff(edges) <= 0) or np.any(edges <= 0):
        raise checks.reject("edges", edges, "give increasing values of alpha above 0")
    if np.any(rates < 0):
        raise checks.reject("rates", rates, "give learning rates of 0 or more")
    return piecewise(edges, rates)


def piecewise(edges: np.ndarray, values: np.ndarray) -> Schedule:
    """The same of any number, which may be negative, unchecked."""
    return Schedule(_piecewise, {"edges": edges, "rates": values}, "piecewise")


class _Stretched:
    """A schedule in other units: factor times its value at stretch times the place."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self.own = function, getattr(function, "own", function)

    def __call__(self, numbers: Tree, alpha: Scalar) -> Any:
        return numbers["factor"] * self.function(numbers["numbers"], numbers["stretch"] * alpha)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stretched) and self.function == other.function

    def __hash__(self) -> int:
        return hash((_Stretched, self.function))


def stretched(schedule: Schedule, factor: Any, stretch: Any) -> Schedule:
    """A schedule in other units: factor times its value at stretch times the place."""
    if schedule.name == "piecewise":
        edges, rates = schedule.numbers["edges"] / stretch, schedule.numbers["rates"] * factor
        return piecewise(edges, rates)
    return Schedule(_Stretched(schedule.function), {"numbers": schedule.numbers, "factor": factor, "stretch": stretch}, schedule.name)


def numbers_at(numbers: Tree, alpha: Scalar) -> Any:
    """The numbers of a problem or an algorithm at alpha (on fixed data at t): schedules become their values, the rest stays."""
    return jax.tree.map(lambda leaf: leaf(alpha) if isinstance(leaf, Schedule) else leaf, numbers, is_leaf=scheduled)


def scheduled(number: object) -> bool:
    """Whether a number depends on alpha."""
    return isinstance(number, Schedule)


def made_schedule(name: str, function: Function, of: str) -> Schedule:
    """A schedule from a user's function of one number (`of`: alpha or t)."""
    schedule = function if isinstance(function, Schedule) else Schedule(_OwnSchedule(function), ())
    # the function itself: the schedule made of it would turn whatever it gives into a real number
    tried = function.own if isinstance(function, _OwnSchedule) else function
    checked_function(name, tried, (np.zeros(()),), takes=of, call=f"one {of}", differentiated=False)
    return schedule


def number_or_schedule(name: str, value: object, of: str = "alpha") -> Any:
    """A number of 0 or more, or a schedule of such numbers from a user's function."""
    if not callable(value):
        return checks.number(name, value, 0.0)
    schedule = made_schedule(name, value, of)
    checked_values(name, schedule, np.zeros(1), of)
    return schedule


def checked_values(name: str, schedule: Schedule, places: np.ndarray, of: str) -> np.ndarray:
    """The values of a schedule at these places; refuse it where they are negative or not finite."""
    values = rates_of(schedule, np.asarray(places, dtype=np.float64))
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        where = float(np.asarray(places)[bad][0])
        raise checks.reject(name, schedule, f"at {of} = {where:g} the schedule gives {values[bad][0]:g}: it must be 0 or more")
    return values


def describe_schedule(value: object) -> tuple[Any, bool]:
    """A number or schedule as plain values for a record, and whether it can be made again from them."""
    if not isinstance(value, Schedule):
        return trees.number(value), True
    if value.name == "piecewise":
        return {name: np.asarray(part).tolist() for name, part in value.numbers.items()}, True
    return function_identity(value.function.own), False


@float64
def rates_of(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(schedule)(jnp.asarray(alpha, dtype=jnp.float64)))
