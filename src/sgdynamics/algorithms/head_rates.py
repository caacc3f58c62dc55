"""Rates of the head relative to those of the rows: one number, or one per leaf of a top.

A user writes the rates by leaf; `with_leaf_rates` converts them to one value per entry of the top,
which is what the equations see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.controls import describe_schedule, scalar_or_schedule
from sgdynamics.problems.tops import Top

# The rate of a head that is always at its optimum for the current overlaps.
STATIC = "static"


def is_static(rate: object) -> bool:
    """Whether a rate of the head is "static", which is the rate infinity."""
    return (isinstance(rate, str) and rate == STATIC) or (
        isinstance(rate, float) and math.isinf(rate) and rate > 0
    )


@runtime_checkable
class HasHeadRate(Protocol):
    """An algorithm with a rate of the head."""

    @property
    def head_rate(self) -> Any:
        """Learning rate of the head relative to that of the rows."""
        ...


Algorithm = TypeVar("Algorithm", bound=HasHeadRate)


def validate_head_rate(value: object, variable: str = "alpha") -> Any:
    """Return a rate, a schedule, or a dictionary of these by leaf, after checks.

    The rate "static" is infinity.
    """
    if is_static(value):
        return math.inf
    if isinstance(value, Mapping):
        return {
            str(name): scalar_or_schedule(f"head_rate[{name!r}]", rate, variable=variable)
            for name, rate in value.items()
        }
    return scalar_or_schedule("head_rate", value, variable=variable)


def describe_head_rate(value: object) -> tuple[Any, bool]:
    """Return the rates as plain values, and whether they can be restored from these."""
    if is_static(value):
        return STATIC, True
    if isinstance(value, np.ndarray) and value.ndim:
        return value.tolist(), True
    if not isinstance(value, Mapping):
        return describe_schedule(value)
    records = {name: describe_schedule(rate) for name, rate in value.items()}
    plain = {name: record for name, (record, _) in records.items()}
    return plain, all(rerunnable for _, rerunnable in records.values())


def stated_head_rate(algorithm: HasHeadRate) -> Any:
    """Return the rates as the user wrote them."""
    return getattr(algorithm, "_stated_head_rate", algorithm.head_rate)


def with_leaf_rates(algorithm: Algorithm, problem: object) -> Algorithm:
    """Return the algorithm with one rate per entry of the problem's top.

    Rates by leaf need a top; leaves that are left out have the rate 1.
    """
    rates = algorithm.head_rate
    if not isinstance(rates, Mapping):
        return algorithm
    top = cast("Top | None", getattr(getattr(problem, "structure", None), "top", None))
    if top is None:
        raise checks.reject(
            "head_rate",
            rates,
            "rates by leaf are for problems with a top, sgd.Problem(..., top=...). Give a number.",
        )
    converted = copy(algorithm)
    vector = pytrees.to_float64(top.expand("head_rate", rates, 1.0))
    object.__setattr__(converted, "head_rate", vector)
    object.__setattr__(converted, "_stated_head_rate", rates)
    return converted
