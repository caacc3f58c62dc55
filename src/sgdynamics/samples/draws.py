"""Named draws of a sample beside its inputs: normal, heavy-tailed, categorical, Bernoulli, each made from standard normals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Num
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RealArray
from sgdynamics.base.controls import (
    Range,
    map_schedule,
    scalar_or_schedule,
    schedule_from_function,
    validate_values,
)
from sgdynamics.samples.laws import LAWS, draw_from_normal, shape_parameters

FIX = (
    'give "normal", a list of probabilities such as [0.3, 0.7], or ("bernoulli", 0.7), and for an array of them ("normal", 3), '
    '("categorical", [0.3, 0.7], 3) or ("bernoulli", 0.7, 3); heavy tails are "laplace", "cauchy", ("laplace", scale), '
    '("cauchy", scale) and ("student_t", df), or with a shape ("student_t", df, 3)'
)
RESERVED_NAMES = ("cluster", "label")


@dataclass(frozen=True)
class Draw:
    """One of a sample's draws: of `outcomes` values (Bernoulli: 0.0 and 1.0, categorical: 0, 1, ...), or continuous (0 outcomes).

    A continuous draw is a standard normal, or has a `law` of `samples.laws`.
    """

    name: str
    shape: tuple[int, ...] = ()
    outcomes: int = 0
    binary: bool = False
    law: str | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def combinations(self) -> int:
        """How many values a discrete draw has, all its entries together."""
        return self.outcomes**self.size if self.outcomes else 1

    def value(
        self, edges: Float[Numeric, " edges"] | None, normals: Float[Numeric, "*s size"]
    ) -> Num[Numeric, "..."]:
        """The draw that standard normals (..., size) stand for: a value between two edges each."""
        z = normals.reshape(*normals.shape[:-1], *self.shape)
        if edges is None:  # normal
            return z
        index = jnp.sum(z[..., None] > edges, axis=-1)
        return index.astype(z.dtype) if self.binary else index

    def heavy_tailed(
        self, parameters: Parameters, normals: Float[Numeric, "*s size"]
    ) -> Float[Numeric, "..."]:
        """The draw with a law that standard normals (..., size) stand for."""
        assert self.law is not None
        z = normals.reshape(*normals.shape[:-1], *self.shape)
        scale = parameters["scale"] if "scale" in parameters else parameters["unit"]
        return jnp.asarray(scale, z.dtype) * draw_from_normal(self.law, parameters, z)

    def values(self) -> np.ndarray:
        """All values of a discrete draw, (combinations, *shape), and so the index of each entry."""
        every = (
            np.indices((self.outcomes,) * self.size)
            .reshape(self.size, -1)
            .T.reshape(-1, *self.shape)
        )
        return every.astype(np.float64) if self.binary else every


def _scheduled(
    argument: str, name: str, shape: tuple[int, ...], binary: bool, given: Any
) -> tuple[Draw, Any]:
    """A draw whose probabilities depend on alpha."""
    if binary:
        return Draw(name, shape, 2, True), map_schedule(
            scalar_or_schedule(argument, given, maximum=1.0), binary_probabilities
        )
    chances, outcomes = validate_probabilities(argument, given)
    return Draw(name, shape, outcomes), chances


def binary_probabilities(chance: RealArray) -> Any:
    """The probabilities of 0 and 1, from that of 1."""
    return (jnp if checks.is_traced(chance) or isinstance(chance, jax.Array) else np).stack(
        [1 - chance, chance]
    )


def complete_probabilities(probabilities: PyTree) -> Any:
    """Probabilities from how they stand among a problem's numbers: all of them, or the shares of some (None: an equal part of the rest)."""
    if not isinstance(probabilities, tuple):
        return probabilities
    given = [one for one in probabilities if one is not None]
    free = len(probabilities) - len(given)
    rest = (1 - sum(given)) / max(free, 1)
    every = [rest if one is None else one for one in probabilities]
    return (
        jnp if any(checks.is_traced(one) or isinstance(one, jax.Array) for one in given) else np
    ).stack(every)


def validate_probabilities(argument: str, value: Any) -> tuple[Any, int]:
    """Probabilities as an argument, numbers or a function of alpha that gives them, and how many there are."""
    fix = "give probabilities, 0 or more and adding up to 1, or a JAX function of alpha that gives them"
    if callable(value):
        schedule = replace(
            schedule_from_function(argument, value, "alpha", allow_array=True),
            within=Range(argument, 0.0, maximum=1.0, sums_to_one=True),
        )
        first = validate_values(argument, schedule, np.zeros(1), "alpha")[0]
        if first.ndim != 1 or len(first) < 2:
            raise checks.reject(argument, value, fix)
        return schedule, len(first)
    found = checks.real_array(argument, value, fix)
    if found.ndim != 1 or len(found) < 2 or not np.all(found >= 0) or abs(found.sum() - 1) > 1e-9:
        raise checks.reject(argument, value, fix)
    return found, len(found)


def quantile_edges(probabilities: Float[Numeric, " outcomes"]) -> Float[Numeric, " edges"]:
    """A standard normal between two of these edges stands for a value."""
    at, quantile = (
        (jnp, jax.scipy.special.ndtri) if checks.is_traced(probabilities) else (np, special.ndtri)
    )
    return quantile(at.minimum(at.cumsum(probabilities, axis=-1), 1.0)[..., :-1])


def describe_draws(given: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Draws as they were given, with these probabilities."""

    def one(value: Any, chances: Float[Numeric, " outcomes"]) -> Any:
        if not isinstance(value, tuple) or not isinstance(value[0], str):
            return chances
        return value[0], chances[-1] if np.ndim(value[1]) == 0 else chances, *value[2:]

    def with_law(value: Any, parameters: Mapping[str, Any]) -> Any:
        if not isinstance(value, tuple):
            return value
        return value[0], float(parameters["df" if value[0] == "student_t" else "scale"]), *value[2:]

    described = {}
    for name, value in given.items():
        parameters = numbers.get(name)
        if parameters is None:
            described[name] = value
        elif "probabilities" in parameters:
            described[name] = one(value, parameters["probabilities"])
        else:
            described[name] = with_law(value, parameters)
    return described


def validate_draws(value: Any, clusters: bool) -> tuple[tuple[Draw, ...] | None, dict[str, Any]]:
    """`draws=` as an argument: what compiled code depends on, and the probabilities by name."""
    if value is None:
        return None, {}
    if (
        not isinstance(value, Mapping)
        or not value
        or not all(isinstance(name, str) for name in value)
    ):
        raise checks.reject("draws", value, f"give a dictionary of draws by name; for each {FIX}")
    found, numbers = [], {}
    for name, one in sorted(value.items()):
        if clusters and name in RESERVED_NAMES:
            raise checks.reject(
                "draws",
                value,
                f"clusters= already gives the draws {' and '.join(RESERVED_NAMES)}: take another name for {name!r}",
            )
        draw, parameters = _checked(f"draws[{name!r}]", name, one)
        found.append(draw)
        if draw.outcomes:
            numbers[name] = {"probabilities": parameters}
        elif draw.law:
            numbers[name] = parameters
    return tuple(found), numbers


def _shape(argument: str, rest: list[Any]) -> tuple[int, ...]:
    """The shape of a draw, where one is given."""
    return (
        tuple(checks.integer(f"{argument} shape", size, 1) for size in np.atleast_1d(rest[0]))
        if rest
        else ()
    )


def _with_law(
    argument: str, name: str, value: Any, law: str, rest: list[Any]
) -> tuple[Draw, dict[str, Any]]:
    """A heavy-tailed draw and its parameters: the degrees of freedom of Student t, the scale of the others."""
    if len(rest) > 2 or (law == "student_t" and not rest):
        raise checks.reject(argument, value, FIX)
    number = checks.number(argument, rest[0], above=0.0) if rest else 1.0
    df, scale = (number, 1.0) if law == "student_t" else (None, number)
    parameters = {"scale": np.float64(scale), **shape_parameters(law, df)}
    return Draw(name, _shape(argument, rest[1:]), law=law), parameters


def _checked(argument: str, name: str, value: Any) -> tuple[Draw, Any]:
    kind, *rest = (
        value if isinstance(value, tuple) and value and isinstance(value[0], str) else (value,)
    )
    if isinstance(kind, str):
        checks.choice(argument, kind, ("normal", "bernoulli", "categorical", *LAWS))
    else:
        kind, rest = "categorical", [kind, *rest]
    if kind in LAWS:
        return _with_law(argument, name, value, kind, rest)
    if len(rest) not in ((0, 1) if kind == "normal" else (1, 2)):
        raise checks.reject(argument, value, FIX)
    given = [] if kind == "normal" else rest.pop(0)
    shape = _shape(argument, rest)
    if kind == "normal":
        return Draw(name, shape), np.zeros(0)
    if callable(given):
        return _scheduled(argument, name, shape, kind == "bernoulli", given)
    chances = (
        [1 - given, given] if kind == "bernoulli" and isinstance(given, (int, float)) else given
    )
    probabilities = checks.real_array(argument, chances, FIX)
    if (
        probabilities.ndim != 1
        or len(probabilities) < 2
        or not np.all(probabilities >= 0)
        or abs(probabilities.sum() - 1) > 1e-9
    ):
        raise checks.reject(argument, value, f"probabilities are 0 or more and add up to 1: {FIX}")
    return Draw(name, shape, len(probabilities), kind == "bernoulli"), probabilities
