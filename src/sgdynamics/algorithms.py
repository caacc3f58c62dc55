"""How it is learned: an update as a function of gradient rows.

Any update that commutes with rotations of the input space closes in the compressed space, so an algorithm sees only rows
(of W, in whatever orthonormal frame) and the rows of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics import checks, updates
from sgdynamics.precision import float64
from sgdynamics.problems.functions import checked_function, function_identity


@jax.tree_util.register_pytree_node_class
class Schedule:
    """A learning rate that depends on alpha = samples/d: a function (static) of its numbers (traced) and alpha."""

    def __init__(self, function: Callable[[Any, Any], Any], numbers: Any, name: Any = None) -> None:
        self.function, self.numbers, self.name = function, numbers, name

    def __call__(self, alpha: Any) -> Any:
        return self.function(self.numbers, alpha)

    def __repr__(self) -> str:
        return self.name or getattr(getattr(self.function, "own", None), "__name__", "schedule")

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        return (self.numbers,), self.function

    @classmethod
    def tree_unflatten(cls, function: Any, numbers: tuple[Any]) -> Schedule:
        return cls(function, numbers[0])


class _Own:
    """A user's function of alpha; two wrappers of one function are equal, so that it compiles once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.own = function

    def __call__(self, numbers: Any, alpha: Any) -> Any:
        return jnp.asarray(self.own(alpha), dtype=jnp.result_type(float))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and self.own is other.own

    def __hash__(self) -> int:
        return hash((_Own, id(self.own)))


def _piecewise(numbers: Any, alpha: Any) -> Any:
    return jnp.asarray(numbers["rates"])[jnp.searchsorted(jnp.asarray(numbers["edges"]), alpha, side="right")]


def piecewise_rate(edges: Any, rates: Any) -> Schedule:
    """A learning rate that is constant between the `edges` (increasing values of alpha): one more rate than edges.

    Its numbers are traced: another schedule with as many pieces does not compile again.
    """
    edges = np.atleast_1d(checks.numbers("edges", edges, "give increasing values of alpha above 0"))
    rates = checks.array("rates", rates, (len(edges) + 1,), "one more than edges")
    if edges.ndim != 1 or not np.all(np.isfinite(edges)) or np.any(np.diff(edges) <= 0) or np.any(edges <= 0):
        raise checks.reject("edges", edges, "give increasing values of alpha above 0")
    if np.any(rates < 0):
        raise checks.reject("rates", rates, "give learning rates of 0 or more")
    return Schedule(_piecewise, {"edges": edges, "rates": rates}, "piecewise")


def rate_at(lr: Any, alpha: Any) -> Any:
    """The learning rate at alpha, constant or scheduled."""
    return lr(alpha) if isinstance(lr, Schedule) else lr


def made_schedule(name: str, function: Any, of: str) -> Schedule:
    """A schedule from a user's function of one number (`of`: alpha or t)."""
    schedule = function if isinstance(function, Schedule) else Schedule(_Own(function), ())
    # the function itself: the schedule made of it would turn whatever it gives into a real number
    tried = function.own if isinstance(function, _Own) else function
    checked_function(name, tried, (np.zeros(()),), takes=of, call=f"one {of}", differentiated=False)
    return schedule


def checked_values(name: str, schedule: Any, places: np.ndarray, of: str) -> np.ndarray:
    """The values of a schedule at these places; refuse it where they are negative or not finite."""
    values = _rates(schedule, np.asarray(places, dtype=np.float64))
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        where = float(np.asarray(places)[bad][0])
        raise checks.reject(name, schedule, f"at {of} = {where:g} the schedule gives {values[bad][0]:g}: it must be 0 or more")
    return values


def describe_schedule(value: Any) -> tuple[Any, bool]:
    """A number or schedule as plain values for a record, and whether it can be made again from them."""
    if not isinstance(value, Schedule):
        return value, True
    if value.name == "piecewise":
        return {name: np.asarray(part).tolist() for name, part in value.numbers.items()}, True
    return function_identity(value.function.own), False


@float64
def _rates(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(schedule)(jnp.asarray(alpha, dtype=jnp.float64)))


@dataclass(frozen=True)
class OnePassSGD:
    """One-pass SGD: a fresh batch each step, W <- W - (lr/d) dloss/dW, a <- a - (head_rate lr/d) dloss/da, mean gradient.

    lr = 0 stands for gradient flow, in theory only (time t = lr steps/d survives the limit; steps do not). lr may be a function of
    alpha = samples/d (any JAX function, or `piecewise_rate`): then t is the integral of lr/batch over alpha.
    `update`: None, or one of `sgd.updates` (momentum, reuse, normalised, clipped, sam), for finite-dimension simulation only.
    """

    lr: Any = 0.1
    batch: int = 1
    head_rate: float = 1.0
    update: updates.Update | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", checks.whole("batch", self.batch, 1))
        object.__setattr__(self, "head_rate", checks.number("head_rate", self.head_rate, 0.0))
        updates.checked_update(self.update)
        if not callable(self.lr):
            object.__setattr__(self, "lr", checks.number("lr", self.lr, 0.0))
            return
        object.__setattr__(self, "lr", made_schedule("lr", self.lr, "alpha"))
        self.rates(np.zeros(1))

    @property
    def scheduled(self) -> bool:
        return isinstance(self.lr, Schedule)

    @property
    def kind(self) -> str | None:
        """The kind of its update; None for plain SGD."""
        return None if self.update is None else self.update.kind

    @property
    def flow(self) -> bool:
        """Whether this is gradient flow."""
        return not self.scheduled and self.lr == 0.0

    def rates(self, alpha: np.ndarray) -> np.ndarray:
        """The learning rate at each alpha; refuse a schedule that is negative or not finite there."""
        if not isinstance(self.lr, Schedule):
            return np.full(np.shape(alpha), self.lr)
        return checked_values("lr", self.lr, alpha, "alpha")

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the algorithm, as a dictionary that JAX can trace."""
        numbers = {"lr": self.lr if isinstance(self.lr, Schedule) else np.float64(self.lr), "head_rate": np.float64(self.head_rate)}
        return numbers if self.update is None else numbers | {"update": self.update.parameters}

    def describe(self) -> dict[str, Any]:
        """The algorithm as plain values for the record of a result."""
        shown, rerunnable = describe_schedule(self.lr)
        record = {"kind": type(self).__name__, "lr": shown, "batch": self.batch, "head_rate": self.head_rate}
        if self.update is not None:
            record["update"] = self.update.describe()
        if not rerunnable:
            record["rerunnable"] = False
        return record


def constant_rate(algorithm: OnePassSGD, what: str) -> float:
    """The learning rate where a question needs a constant one."""
    if algorithm.scheduled:
        raise checks.reject("lr", algorithm.lr, f"{what} need a constant learning rate: give a number")
    return float(algorithm.lr)


def checked_algorithm(value: Any, any_update: bool = False) -> OnePassSGD:
    """An algorithm as an argument: refuse what is none, and other updates than plain SGD where the theory is of plain SGD."""
    if not isinstance(value, OnePassSGD):
        raise checks.reject("algorithm", value, "give sgd.OnePassSGD(...)")
    if value.update is not None and not any_update:
        raise checks.reject(
            "update",
            value.update,
            "this is made for plain SGD, update=None; other updates are for sgd.simulate, and for sgd.exit_time with "
            'method="exact" or "direct", of problems that are stated by fields',
        )
    return value


def descend(
    rows: Any,
    head: Any,
    gradient: Any,
    head_gradient: Any,
    step: Any,
    head_rate: Any,
    weight_decay: Any,
    *,
    trained: bool,
    sphere: bool,
    kick: Any = None,
) -> tuple[Any, Any]:
    """One step of size `step` on the rows (p x columns of any orthonormal frame) and the head; `kick` is added to the rows."""
    rows = rows * (1.0 - step * weight_decay) - step * gradient
    if kick is not None:
        rows = rows + kick
    if sphere:
        rows = rows / jnp.sqrt(jnp.sum(rows**2, axis=-1, keepdims=True))
    if trained:
        head = head - head_rate * step * (head_gradient + weight_decay * head)
    return rows, head


def take_step(
    kind: str | None,
    algorithm: Any,
    rows: Any,
    head: Any,
    gradient: Callable[[Any, Any], tuple[Any, Any]],
    step: Any,
    weight_decay: Any,
    dimension: Any,
    *,
    trained: bool,
    sphere: bool,
) -> tuple[Any, Any]:
    """One step of the algorithm on one batch, whose gradient(rows, head) is given; plain SGD unless `kind` names an update."""

    def move(rows: Any, head: Any, G: Any, g: Any, decay: Any) -> tuple[Any, Any]:
        return descend(rows, head, G, g, step, algorithm["head_rate"], decay, trained=trained, sphere=sphere)

    if kind is None:
        return move(rows, head, *gradient(rows, head), weight_decay)
    ground = updates.Ground(gradient, move, weight_decay, dimension, trained)
    return updates.apply(kind, algorithm["update"], ground, rows, head)
