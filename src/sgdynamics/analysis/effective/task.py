"""The user's functions and point of an effective dynamics: validation, and sizes of the chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, PyTree

GENERATOR = "threefry2x32"
# Independent groups of draws, for the squared norm of the mean gradient; also the fewest draws.
GROUPS = 16
# Each sample is a gradient: more of them would take years.
MOST_SAMPLES = 10**12
# Memory in bytes of the gradients and data of one chunk of draws.
CHUNK_BYTES = 1 << 27
LARGEST_CHUNK = 4096
# Memory in bytes up to which gradients are stored for the second pass rather than recomputed.
STORED_BYTES = 1 << 28


class Functions(tuple[Any, ...]):
    """A user's functions, compared by identity.

    As a static argument of compiled functions, the same functions at another point, learning rate
    or seed share one program.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Functions)
            and len(self) == len(other)
            and all(a is b for a, b in zip(self, other, strict=True))
        )


class Task(NamedTuple):
    """The user's functions, grouped by the program that they are compiled into.

    Attributes
    ----------
    sample : Functions
        The function that makes a draw.
    data : Functions
        The loss, and the antithetic partner and the controls of a draw (or None).
    statistics : Functions
        The function of the statistics.
    """

    sample: Functions
    data: Functions
    statistics: Functions

    @property
    def draws_per_unit(self) -> int:
        """Number of draws of a unit: 2 for an antithetic pair, otherwise 1."""
        return 1 if self.data[1] is None else 2


@dataclass(frozen=True, eq=False)
class Setup:
    """A task at one point and dimension.

    Attributes
    ----------
    task : Task
        The user's functions.
    point : pytree
        The user's parameters x, with float64 NumPy leaves.
    dimension : int
        Dimension d.
    samples : int
        Number of units, single draws or antithetic pairs.
    entropy : sequence of int
        Seeds of the random number generator.
    names : tuple of str
        Names of the statistics.
    parameters : int
        Number of entries of the point.
    chunk : int
        Number of units that are evaluated at once.
    stores_gradients : bool
        Whether all gradients fit in memory, so that they are computed once.
    """

    task: Task
    point: PyTree
    dimension: int
    samples: int
    entropy: Sequence[int]
    names: tuple[str, ...]
    parameters: int
    chunk: int
    stores_gradients: bool


def validate_task(
    loss: Function,
    sample: Function,
    statistics: Function,
    antithetic: Function | None,
    controls: Function | None,
) -> Task:
    """Raise ValueError unless all functions are callable; the last two may be None."""
    required = {
        "loss": (loss, "loss(x, y)"),
        "sample": (sample, "sample(key, dimension)"),
        "statistics": (statistics, "statistics(x)"),
    }
    optional = {"antithetic": (antithetic, "antithetic(y)"), "controls": (controls, "controls(y)")}
    for argument, (value, call) in {**required, **optional}.items():
        if not callable(value) and not (argument in optional and value is None):
            raise checks.reject(argument, value, f"give a function, {call}")
    return Task(
        Functions((sample,)), Functions((loss, antithetic, controls)), Functions((statistics,))
    )


def prepare(
    task: Task,
    point: PyTree,
    dimension: int,
    samples: int,
    entropy: Sequence[int],
    names: Sequence[str] | None,
) -> Setup:
    """Validate the point and the shapes of all functions, by tracing them: nothing is compiled."""
    point = _validate_point(point)
    (sample,), (loss, antithetic, controls), (statistics,) = task
    key = jax.random.key(0, impl=GENERATOR)
    y = _trace("sample", "sample(key, dimension)", lambda key: sample(key, dimension), key)
    value = _trace("loss", "loss(point, sample(key, dimension))", loss, point, y)
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"loss returns {value}: give one real number per draw, loss(x, y) of shape ()"
        )
    u = _trace("statistics", "statistics(point)", statistics, point)
    is_vector = len(getattr(u, "shape", ())) == 1 and u.shape[0] >= 1
    if not is_vector or not jnp.issubdtype(u.dtype, jnp.floating):
        raise ValueError(
            f"statistics returns {u}: give a vector of real numbers of shape (k,), such as "
            "jnp.stack([...])"
        )
    if antithetic is not None:
        _validate_antithetic(antithetic, y)
    if controls is not None:
        _validate_controls(controls, y, samples)
    n_parameters = count_entries(point)
    gradient_bytes = 8 * task.draws_per_unit * n_parameters
    # A rough estimate: four arrays of the size of a gradient, and a draw with its copy.
    unit_bytes = 8 * task.draws_per_unit * (4 * n_parameters + 2 * count_entries(y))
    largest = max(1, min(LARGEST_CHUNK, CHUNK_BYTES // unit_bytes, samples))
    return Setup(
        task=task,
        point=point,
        dimension=dimension,
        samples=samples,
        entropy=entropy,
        names=_validate_names(names, u.shape[0]),
        parameters=n_parameters,
        # equal chunks, so that the last one is not nearly empty
        chunk=math.ceil(samples / math.ceil(samples / largest)),
        stores_gradients=gradient_bytes * samples <= STORED_BYTES,
    )


def count_entries(tree: PyTree) -> int:
    """Number of entries of all arrays of a pytree."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _trace(argument: str, call: str, function: Callable[..., Any], *args: PyTree) -> PyTree:
    """Shapes of the value of a user's function, by tracing it."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else "no message"
        raise ValueError(
            f"{argument}, called as {call}, failed with {type(error).__name__}: {message}. Give a "
            "JAX function of these arguments."
        ) from error


def _validate_point(point: PyTree) -> PyTree:
    """The point with float64 leaves."""
    fix = "give the parameters: an array, or a tree (dict, list, ...) of arrays"
    if callable(point):
        raise checks.reject(
            "point",
            point,
            "give the parameters themselves: an array, or a tree (dict, list, ...) of arrays",
        )
    if not jax.tree.leaves(point):
        raise checks.reject("point", point, fix)
    for leaf in jax.tree.leaves(point):
        try:
            array = np.asarray(leaf)
        except (TypeError, ValueError):
            raise checks.reject("point", leaf, fix) from None
        if array.dtype.kind not in "fiu" and array.dtype != jnp.bfloat16:
            raise checks.reject(
                "point", leaf, f"the dtype is {array.dtype}. Give arrays of real numbers."
            )
        if not np.all(np.isfinite(array.astype(np.float64))):
            raise checks.reject("point", leaf, "give finite arrays")
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), point)


def _validate_antithetic(antithetic: Function, y: PyTree) -> None:
    partner = _trace("antithetic", "antithetic(sample(key, dimension))", antithetic, y)
    shapes, partner_shapes = (
        [leaf.shape for leaf in jax.tree.leaves(draw)] for draw in (y, partner)
    )
    if jax.tree.structure(partner) != jax.tree.structure(y) or partner_shapes != shapes:
        raise ValueError(
            f"antithetic returns {partner} for a draw {y}: give a draw of the same structure and "
            "shapes"
        )


def _validate_controls(controls: Function, y: PyTree, samples: int) -> None:
    values = _trace("controls", "controls(sample(key, dimension))", controls, y)
    if len(getattr(values, "shape", ())) != 1:
        raise ValueError(f"controls returns {values}: give a vector of mean zero, of shape (q,)")
    count = values.shape[0]
    if samples < 10 * count:
        raise checks.reject(
            "samples", samples, f"give ten for each of the {count} controls, {10 * count} or more"
        )


def _validate_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The names of the statistics; u1, u2, ... by default."""
    if names is None:
        return tuple(f"u{index + 1}" for index in range(count))
    is_sequence = isinstance(names, (list, tuple)) and len(names) == count
    if not is_sequence or not all(isinstance(name, str) for name in names):
        raise checks.reject("names", names, f"give {count} names, one for each statistic")
    return tuple(map(str, names))
