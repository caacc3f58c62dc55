"""Numbers that depend on alpha = samples/d (on fixed data on t): a function with its numbers.

What is traced may hold a `Schedule` in place of any number; whoever makes a step reads all of them through `numbers_at`, once.
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
from sgdynamics.base.arrays import Function, Given, Scalar, Tree
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import checked_function, function_identity


class Range(NamedTuple):
    """Where the values of a number lie, and what it is called: at least `least`, above `above`, below `below`, at most `most`."""

    argument: str
    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    total: bool = False  # whether the last axis adds up to 1

    @property
    def fix(self) -> str:
        """The range in words."""
        low = (
            f"above {self.above:g}"
            if self.above > -math.inf
            else f"{self.least:g} or more"
            if self.least > -math.inf
            else ""
        )
        high = (
            f"below {self.below:g}"
            if self.below < math.inf
            else f"at most {self.most:g}"
            if self.most < math.inf
            else ""
        )
        return (
            " and ".join(
                part for part in (low, high, "adding up to 1" if self.total else "") if part
            )
            or "finite"
        )

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Where values are finite and in it."""
        inside = (
            (values >= self.least)
            & (values > self.above)
            & (values < self.below)
            & (values <= self.most)
        )
        found = np.isfinite(values) & inside
        return (
            found & (np.abs(values.sum(axis=-1, keepdims=True) - 1) < 1e-9)
            if self.total and np.ndim(values)
            else found
        )


@pytrees.numbered("numbers")
@dataclass(frozen=True)
class Schedule:
    """A number that depends on alpha = samples/d: a function (static) of its own numbers (traced) and alpha."""

    function: Callable[[Any, Any], Any]
    numbers: Any
    name: Any = None
    within: Range | None = None  # where its values have to lie

    def __call__(self, alpha: Scalar) -> Any:
        return self.function(self.numbers, alpha)

    def __repr__(self) -> str:
        return self.name or getattr(getattr(self.function, "own", None), "__name__", "schedule")

    def describe(self) -> Any:
        """The record of the schedule: edges and rates, or the identity of the user's function."""
        return describe_schedule(self)[0]

    def replace(self, **changes: Any) -> Schedule:
        """The same piecewise schedule with other edges or rates."""
        checks.known_names("a schedule", changes, self.numbers if self.name == "piecewise" else ())
        return replace(piecewise_rate(**{**self.numbers, **changes}), within=self.within)


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
    return jnp.asarray(numbers["rates"])[
        jnp.searchsorted(jnp.asarray(numbers["edges"]), alpha, side="right")
    ]


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
    given = checks.numbers("rates", rates, "give numbers, one more than edges")
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


def _same(numbers: Tree, alpha: Scalar) -> Any:
    return numbers


def constant(value: float) -> Schedule:
    """A number as a schedule: with it among the rates alpha is the variable of an ODE."""
    return Schedule(_same, np.float64(value))


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


def stretched(schedule: Schedule, factor: Scalar, stretch: Scalar) -> Schedule:
    """A schedule in other units: factor times its value at stretch times the place."""
    if schedule.name == "piecewise":
        edges, rates = schedule.numbers["edges"] / stretch, schedule.numbers["rates"] * factor
        return replace(schedule, numbers={"edges": edges, "rates": rates})
    numbers = {"numbers": schedule.numbers, "factor": factor, "stretch": stretch}
    return replace(schedule, function=_Stretched(schedule.function), numbers=numbers)


def all_stretched(numbers: Tree, stretch: Scalar) -> Any:
    """Numbers whose schedules are read at stretch times the place."""
    return jax.tree.map(
        lambda leaf: stretched(leaf, 1.0, stretch) if scheduled(leaf) else leaf,
        numbers,
        is_leaf=scheduled,
    )


class _Mapped:
    """What follows from a schedule's value, by a function that is static."""

    def __init__(self, function: Callable[[Any, Any], Any], made: Callable[[Any], Any]) -> None:
        self.function, self.made, self.own = function, made, getattr(function, "own", function)

    def __call__(self, numbers: Tree, alpha: Scalar) -> Any:
        return self.made(self.function(numbers, alpha))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mapped) and (self.function, self.made) == (
            other.function,
            other.made,
        )

    def __hash__(self) -> int:
        return hash((_Mapped, self.function, self.made))


def mapped(number: Any, made: Callable[[Any], Any]) -> Any:
    """What follows from a number, which may be a schedule: then it is one too."""
    return (
        Schedule(_Mapped(number.function, made), number.numbers)
        if isinstance(number, Schedule)
        else made(number)
    )


def numbers_at(numbers: Tree, alpha: Scalar) -> Any:
    """The numbers of a problem or an algorithm at alpha (on fixed data at t): schedules become their values, the rest stays."""
    return jax.tree.map(
        lambda leaf: leaf(alpha) if isinstance(leaf, Schedule) else leaf, numbers, is_leaf=scheduled
    )


def alpha_of_steps(steps: Any, batch: float, dimension: Any) -> Any:
    """alpha = samples/d at which a step is taken, after this many others.

    One division of whole numbers: a piece of a schedule that starts at alpha = n batch/d starts with
    step n. The product n (batch/d) may round below that edge, and the piece would start a step late.
    """
    return steps * float(batch) / dimension


def piece_edges(numbers: Tree) -> np.ndarray:
    """Where pieces of schedules among these numbers begin, in alpha (on fixed data in t)."""
    leaves = [
        leaf.numbers
        for leaf in jax.tree.leaves(numbers, is_leaf=scheduled)
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


def scheduled(number: object) -> bool:
    """Whether a number depends on alpha."""
    return isinstance(number, Schedule)


def made_schedule(name: str, function: Function, of: str, *, shaped: bool = False) -> Schedule:
    """A schedule from a user's function of one number (`of`: alpha or t), which gives one number too, or (`shaped`) an array."""
    schedule = function if isinstance(function, Schedule) else Schedule(_OwnSchedule(function), ())
    # the function itself: the schedule made of it would turn whatever it gives into a real number
    tried = function.own if isinstance(function, _OwnSchedule) else function
    checked_function(
        name,
        tried,
        (np.zeros(()),),
        takes=of,
        call=f"one {of}",
        differentiated=False,
        one_number=not shaped,
    )
    return schedule


def number_or_schedule(
    argument: str,
    value: object,
    least: float = 0.0,
    *,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    of: str = "alpha",
) -> Any:
    """A number of this range, or a schedule of such numbers from a user's function of alpha (or of t)."""
    low = (least, -math.inf) if above is None else (-math.inf, above)
    within = Range(
        argument, *low, math.inf if below is None else below, math.inf if most is None else most
    )
    if not callable(value):
        found = checks.number(argument, value, within.least, above=above)
        if not within.holds(np.asarray(found)):
            raise checks.reject(argument, value, f"give a number, {within.fix}")
        return found
    schedule = replace(made_schedule(argument, value, of), within=within)
    checked_values(argument, schedule, np.zeros(1), of)
    return schedule


def checked_values(argument: str, schedule: Schedule, places: np.ndarray, of: str) -> np.ndarray:
    """The values of a schedule at these places; refuse it where they are not finite or out of its range (0 or more unless it has one)."""
    values = rates_of(schedule, np.asarray(places, dtype=np.float64))
    within = schedule.within or Range(argument, 0.0)
    bad = ~within.holds(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        where, value = float(np.asarray(places)[bad][0]), values[bad][0]
        shown = f"{value:g}" if np.ndim(value) == 0 else value.tolist()
        raise checks.reject(
            argument,
            schedule,
            f"at {of} = {where:g} the schedule gives {shown}: it must be {within.fix}",
        )
    return values


CHECKED = 257  # places along a run at which schedules are looked at before it starts


def check_schedules(numbers: Tree, end: float, of: str) -> None:
    """Refuse schedules among these numbers that leave their range somewhere up to the end of a run."""
    for leaf in jax.tree.leaves(numbers, is_leaf=scheduled):
        if isinstance(leaf, Schedule) and leaf.within is not None:
            checked_values(leaf.within.argument, leaf, np.linspace(0, end, CHECKED), of)


def describe_schedule(value: object) -> tuple[Any, bool]:
    """A number or schedule as plain values for a record, and whether it can be made again from them."""
    if not isinstance(value, Schedule):
        return pytrees.number(value), True
    if value.name == "piecewise":
        return {name: np.asarray(part).tolist() for name, part in value.numbers.items()}, True
    return function_identity(value.function.own), False


@float64
def rates_of(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(schedule)(jnp.asarray(alpha, dtype=jnp.float64)))


def values_along(value: object, alpha: np.ndarray) -> np.ndarray:
    """A number or a schedule at each alpha."""
    return (
        rates_of(value, alpha)
        if isinstance(value, Schedule)
        else np.full(np.shape(alpha), float(pytrees.number(value)))
    )
