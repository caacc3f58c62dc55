"""Named random draws of a sample: normal, heavy-tailed, categorical and Bernoulli.

All are functions of standard normals.
"""

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
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree, RealArray
from sgdynamics.base.controls import (
    Range,
    map_schedule,
    scalar_or_schedule,
    schedule_from_function,
    validate_values,
)
from sgdynamics.samples.laws import LAWS, draw_from_normal, shape_parameters

FIX = (
    'give "normal", a list of probabilities such as [0.3, 0.7], or ("bernoulli", 0.7), and for an '
    'array of them ("normal", 3), ("categorical", [0.3, 0.7], 3) or ("bernoulli", 0.7, 3); heavy '
    'tails are "laplace", "cauchy", ("laplace", scale), ("cauchy", scale) and ("student_t", df), '
    'or with a shape ("student_t", df, 3)'
)
# Names of the draws that clusters= defines.
RESERVED_NAMES = ("cluster", "label")


@dataclass(frozen=True)
class Draw:
    """One of the draws of a sample.

    A discrete draw has `outcomes` values: 0.0 and 1.0 if it is `binary` (Bernoulli), otherwise 0,
    1, ... A continuous draw has 0 outcomes. It is a standard normal, or has a `law` of
    `samples.laws`.
    """

    name: str
    shape: tuple[int, ...] = ()
    outcomes: int = 0
    binary: bool = False
    law: str | None = None

    @property
    def size(self) -> int:
        """Number of entries, and of standard normals that they are made of."""
        return math.prod(self.shape)

    @property
    def combinations(self) -> int:
        """Number of values of a discrete draw, of all its entries together."""
        return self.outcomes**self.size if self.outcomes else 1

    def value(
        self, edges: Float[Numeric, " edges"] | None, normals: Float[Numeric, "*s size"]
    ) -> Num[Numeric, "..."]:
        """The draw as a function of standard normals (..., size).

        Each value is an interval of edges.
        """
        z = normals.reshape(*normals.shape[:-1], *self.shape)
        if edges is None:  # normal
            return z
        index = jnp.sum(z[..., None] > edges, axis=-1)
        return index.astype(z.dtype) if self.binary else index

    def heavy_tailed(
        self, parameters: Parameters, normals: Float[Numeric, "*s size"]
    ) -> Float[Numeric, "..."]:
        """The heavy-tailed draw as a function of standard normals (..., size)."""
        assert self.law is not None
        z = normals.reshape(*normals.shape[:-1], *self.shape)
        scale = parameters["scale"] if "scale" in parameters else parameters["unit"]
        return jnp.asarray(scale, z.dtype) * draw_from_normal(self.law, parameters, z)

    def values(self) -> np.ndarray:
        """All values of a discrete draw, (combinations, *shape)."""
        indices = np.indices((self.outcomes,) * self.size).reshape(self.size, -1)
        values = indices.T.reshape(-1, *self.shape)
        return values.astype(np.float64) if self.binary else values


def _scheduled_draw(
    argument: str, name: str, shape: tuple[int, ...], binary: bool, function: Function
) -> tuple[Draw, PyTree]:
    """A draw whose probabilities depend on alpha, and the schedule of the probabilities."""
    if binary:
        chance = scalar_or_schedule(argument, function, maximum=1.0)
        return Draw(name, shape, 2, True), map_schedule(chance, binary_probabilities)
    probabilities, outcomes = validate_probabilities(argument, function)
    return Draw(name, shape, outcomes), probabilities


def binary_probabilities(chance: RealArray) -> Float[Numeric, " outcomes"]:
    """The probabilities of 0 and 1, given that of 1."""
    traced = checks.is_traced(chance) or isinstance(chance, jax.Array)
    return (jnp if traced else np).stack([1 - chance, chance])


def complete_probabilities(probabilities: PyTree) -> Float[Numeric, " outcomes"]:
    """All probabilities, given some: each None in a tuple is an equal share of the remainder."""
    if not isinstance(probabilities, tuple):
        return probabilities
    stated = [chance for chance in probabilities if chance is not None]
    share = (1 - sum(stated)) / max(len(probabilities) - len(stated), 1)
    values = [share if chance is None else chance for chance in probabilities]
    traced = any(checks.is_traced(chance) or isinstance(chance, jax.Array) for chance in stated)
    return (jnp if traced else np).stack(values)


def validate_probabilities(argument: str, value: object) -> tuple[PyTree, int]:
    """Probabilities, numbers or a schedule from a function of alpha, and their number."""
    fix = (
        "give probabilities, 0 or more and adding up to 1, or a JAX function of alpha that returns "
        "them"
    )
    if callable(value):
        schedule = replace(
            schedule_from_function(argument, value, "alpha", allow_array=True),
            within=Range(argument, 0.0, maximum=1.0, sums_to_one=True),
        )
        first = validate_values(argument, schedule, np.zeros(1), "alpha")[0]
        if first.ndim != 1 or len(first) < 2:
            raise checks.reject(argument, value, fix)
        return schedule, len(first)
    probabilities = checks.real_array(argument, value, fix)
    if not _are_probabilities(probabilities):
        raise checks.reject(argument, value, fix)
    return probabilities, len(probabilities)


def _are_probabilities(values: np.ndarray) -> bool:
    """Whether this is a list of at least two numbers of 0 or more with the sum 1."""
    if values.ndim != 1 or len(values) < 2:
        return False
    return bool(np.all(values >= 0) and abs(values.sum() - 1) <= 1e-9)


def quantile_edges(probabilities: Float[Numeric, " outcomes"]) -> Float[Numeric, " edges"]:
    """The normal quantiles of the cumulative probabilities, which separate the outcomes."""
    traced = checks.is_traced(probabilities)
    module, quantile = (jnp, jax.scipy.special.ndtri) if traced else (np, special.ndtri)
    cumulative = module.minimum(module.cumsum(probabilities, axis=-1), 1.0)
    return quantile(cumulative[..., :-1])


def describe_draws(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The draws as in the argument ``draws=``, with these parameters."""

    def with_probabilities(value: object, probabilities: Float[Numeric, " outcomes"]) -> object:
        if not isinstance(value, tuple) or not isinstance(value[0], str):
            return probabilities
        scalar = np.ndim(value[1]) == 0
        return value[0], probabilities[-1] if scalar else probabilities, *value[2:]

    def with_law(value: object, law: Mapping[str, Any]) -> object:
        if not isinstance(value, tuple):
            return value
        return value[0], float(law["df" if value[0] == "student_t" else "scale"]), *value[2:]

    described = {}
    for name, value in arguments.items():
        law = parameters.get(name)
        if law is None:
            described[name] = value
        elif "probabilities" in law:
            described[name] = with_probabilities(value, law["probabilities"])
        else:
            described[name] = with_law(value, law)
    return described


def validate_draws(value: object, clusters: bool) -> tuple[tuple[Draw, ...] | None, Parameters]:
    """The argument ``draws=``: the draws that compiled code depends on, and their parameters."""
    if value is None:
        return None, {}
    if (
        not isinstance(value, Mapping)
        or not value
        or not all(isinstance(name, str) for name in value)
    ):
        raise checks.reject("draws", value, f"give a dictionary of draws by name; for each {FIX}")
    draws, parameters = [], {}
    for name, stated in sorted(value.items()):
        if clusters and name in RESERVED_NAMES:
            reserved = " and ".join(RESERVED_NAMES)
            message = (
                f"clusters= already defines the draws {reserved}: take another name for {name!r}"
            )
            raise checks.reject("draws", value, message)
        draw, law = _validate_draw(f"draws[{name!r}]", name, stated)
        draws.append(draw)
        if draw.outcomes:
            parameters[name] = {"probabilities": law}
        elif draw.law:
            parameters[name] = law
    return tuple(draws), parameters


def _shape(argument: str, options: list[Any]) -> tuple[int, ...]:
    """The shape of a draw, if one is stated."""
    if not options:
        return ()
    return tuple(checks.integer(f"{argument} shape", n, 1) for n in np.atleast_1d(options[0]))


def _heavy_tailed_draw(
    argument: str, name: str, value: object, law: str, options: list[Any]
) -> tuple[Draw, Parameters]:
    """A heavy-tailed draw and its parameters.

    The option is the number of degrees of freedom of Student t, and the scale of the other laws.
    """
    if len(options) > 2 or (law == "student_t" and not options):
        raise checks.reject(argument, value, FIX)
    number = checks.number(argument, options[0], above=0.0) if options else 1.0
    df, scale = (number, 1.0) if law == "student_t" else (None, number)
    parameters = {"scale": np.float64(scale), **shape_parameters(law, df)}
    return Draw(name, _shape(argument, options[1:]), law=law), parameters


def _validate_draw(argument: str, name: str, value: object) -> tuple[Draw, PyTree]:
    """One entry of ``draws=``, and its probabilities or the parameters of its law."""
    stated = value if isinstance(value, tuple) and value and isinstance(value[0], str) else (value,)
    kind, *options = stated
    if isinstance(kind, str):
        checks.choice(argument, kind, ("normal", "bernoulli", "categorical", *LAWS))
    else:
        kind, options = "categorical", [kind, *options]
    if kind in LAWS:
        return _heavy_tailed_draw(argument, name, value, kind, options)
    if len(options) not in ((0, 1) if kind == "normal" else (1, 2)):
        raise checks.reject(argument, value, FIX)
    chances = [] if kind == "normal" else options.pop(0)
    shape = _shape(argument, options)
    if kind == "normal":
        return Draw(name, shape), np.zeros(0)
    if callable(chances):
        return _scheduled_draw(argument, name, shape, kind == "bernoulli", chances)
    if kind == "bernoulli" and isinstance(chances, (int, float)):
        chances = [1 - chances, chances]
    probabilities = checks.real_array(argument, chances, FIX)
    if not _are_probabilities(probabilities):
        raise checks.reject(argument, value, f"probabilities are 0 or more and add up to 1: {FIX}")
    return Draw(name, shape, len(probabilities), kind == "bernoulli"), probabilities
