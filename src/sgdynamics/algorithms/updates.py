"""Updates other than plain SGD that commute with rotations of the input space, and so close in the compressed space.

An update is a function of rows (p x columns of any orthonormal frame) and of the gradient there, G = dloss/dW of a batch (mean loss,
without weight decay) and g = dloss/da. Written once, it serves the exact chain and the direct simulation. |(G, g)| is the
norm over all trained parameters: the root of |G|_F^2, plus |g|^2 where the head is trained.

Weight decay: `momentum` and `reuse` treat it as part of the loss in every move; `normalised`, `clipped` and `sam` change the gradient
of the data's loss only, and the decay is added afterwards. On the sphere the rows are normalised after every move. The clock does not
change: a step is one batch, t = lr steps/d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sgdynamics import checks, trees

MOST_MOVES = 2**31 - 1  # a loop counts them in 32 bits
COORDINATEWISE = ("adam", "adamw", "adamax", "nadam", "amsgrad", "adagrad", "adadelta", "rmsprop", "signsgd", "sign", "signum", "lion")


@trees.numbered("numbers")
@dataclass(frozen=True)
class Update:
    """How a gradient becomes a step: its kind (compiled code depends on it) and its numbers (traced). Made by the functions below."""

    kind: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, MAKERS)

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value:g}' for name, value in self.numbers.items())})"

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers, as a dictionary that JAX can trace."""
        return {name: trees.traced(value) for name, value in self.numbers.items()}

    def describe(self) -> dict[str, Any]:
        """The update as plain values for the record of a result."""
        return {"kind": self.kind, **{name: trees.number(value) for name, value in self.numbers.items()}}

    def replace(self, **changes: Any) -> Update:
        """The same update with some of its numbers changed, checked as when it was made."""
        checks.known_names(self.kind, changes, self.numbers)
        return MAKERS[self.kind](**{**self.numbers, **changes})


def momentum(beta: float) -> Update:
    """Heavy ball: V <- beta V + dloss/dW, W <- W - (lr/d) V, from V = 0, with 0 <= beta < 1; a trained head has its own velocity.

    In the compressed space the rows of V are stacked under those of W, so that the exact chain needs d >= signals + 2 width.
    A result holds no velocity: what goes on from `start_from` starts at rest again. On the sphere V is not projected.
    Source: Polyak 1964, (9); as a stochastic method, Sutskever et al. 2013, (1)-(2).
    """
    beta = checks.number("beta", beta, 0.0)
    if beta >= 1:
        raise checks.reject("beta", beta, "give a number of 0 or more and below 1: with 1 the velocity never forgets")
    return Update("momentum", {"beta": beta})


def reuse(times: int) -> Update:
    """Each batch serves for `times` moves in a row: W <- W - (lr/d) dloss/dW (W; the same batch), the fields computed again in between.

    alpha counts samples, and t = lr steps/d counts batches: gradient-flow time is `times` t. Source: Dandi et al. 2024
    (The benefits of reusing batches for gradient descent in two-layer networks).
    """
    return Update("reuse", {"times": checks.whole("times", times, 1, MOST_MOVES)})


def normalised() -> Update:
    """Steps of one length: (G, g) -> sqrt(d) (G, g)/|(G, g)|, where G = 0 stays 0.

    The gradient of one sample has a norm of order sqrt(d), so that lr keeps its meaning: a step has length lr/sqrt(d).
    Source: Nesterov 1984; Cutkosky and Mehta 2020.
    """
    return Update("normalised")


def clipped(threshold: float) -> Update:
    """Steps of a bounded length: (G, g) -> (G, g) min(1, threshold sqrt(d)/|(G, g)|), with threshold > 0.

    Source: Pascanu, Mikolov and Bengio 2013, Algorithm 1, with the threshold in units of sqrt(d).
    """
    return Update("clipped", {"threshold": checks.number("threshold", threshold, above=0.0)})


def sam(radius: float) -> Update:
    """Sharpness-aware minimisation: the gradient of the same batch at (W, a) + radius (G, g)/|(G, g)|, radius >= 0, applied at (W, a).

    An ascent of this length moves the field of a sample by about radius sqrt(d): with radius of order 1/sqrt(d) it survives d -> infinity.
    On the sphere the point of ascent is not normalised. Source: Foret et al. 2021, (2)-(3) and Algorithm 1, there with p = 2.
    """
    return Update("sam", {"radius": checks.number("radius", radius, 0.0)})


MAKERS: dict[str, Callable[..., Update]] = {
    "momentum": momentum,
    "reuse": reuse,
    "normalised": normalised,
    "clipped": clipped,
    "sam": sam,
}


def checked_update(value: Any) -> Update | None:
    """`update=` as an argument: refuse what does not close on overlaps, and say why."""
    if value is None or isinstance(value, Update):
        return value
    known = "sgd.updates." + ", ".join(MAKERS)
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    if name.lower() in COORDINATEWISE:
        raise checks.reject(
            "update",
            value,
            "it acts on each coordinate of the input space by itself, so it does not commute with rotations of that space and does not "
            f"close on overlaps: its dynamics depend on the axes; take an update that does commute ({known})",
        )
    if name in MAKERS:
        raise checks.reject("update", value, f"give the update made with its numbers, such as sgd.updates.{name}(...)")
    raise checks.reject(
        "update",
        value,
        f"{checks.did_you_mean(value, MAKERS)}give None (plain SGD) or one of {known}: an update that is not known to commute with "
        "rotations of the input space does not close on overlaps",
    )


def copies(kind: str | None) -> int:
    """How many sets of p rows a run keeps: with momentum the weights and, under them, the velocity."""
    return 2 if kind == "momentum" else 1


def rereads(kind: str | None) -> bool:
    """Whether a batch is seen again after the rows have moved along it: then the Gram matrix of all its samples is needed."""
    return kind in ("reuse", "sam")


class Ground(NamedTuple):
    """What an update stands on: gradient(rows, head) of the batch, move(rows, head, G, g, decay) along a gradient, and the setting."""

    gradient: Callable[[Any, Any], tuple[Any, Any]]
    move: Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]]
    weight_decay: Any
    dimension: Any
    trained: bool


def apply(kind: str, numbers: dict[str, Any], ground: Ground, rows: Any, head: Any) -> tuple[Any, Any]:
    """One step of this kind of update, on all its sets of rows."""
    return STEPS[kind](numbers, ground, rows, head)


def _momentum(numbers: dict[str, Any], ground: Ground, rows: Any, head: Any) -> tuple[Any, Any]:
    p = rows.shape[0] // 2
    W, a = rows[:p], head[:p]
    G, g = ground.gradient(W, a)
    V = numbers["beta"] * rows[p:] + G + ground.weight_decay * W
    v = numbers["beta"] * head[p:] + g + ground.weight_decay * a
    W, a = ground.move(W, a, V, v, 0.0)
    return jnp.concatenate([W, V]), jnp.concatenate([a, v])


def _reuse(numbers: dict[str, Any], ground: Ground, rows: Any, head: Any) -> tuple[Any, Any]:
    def again(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        return ground.move(*state, *ground.gradient(*state), ground.weight_decay)

    return jax.lax.fori_loop(0, numbers["times"].astype(jnp.int32), again, (rows, head))


def _scaled(factor: Callable[[dict[str, Any], Any], Any], numbers: dict[str, Any], ground: Ground, rows: Any, head: Any) -> tuple[Any, Any]:
    """A step along the gradient times a factor of (numbers, |(G, g)|/sqrt(d))."""
    G, g = ground.gradient(rows, head)
    share = factor(numbers, _length(ground, G, g) / jnp.sqrt(jnp.asarray(ground.dimension, G.dtype)))
    return ground.move(rows, head, share * G, share * g, ground.weight_decay)


def _normalised(numbers: dict[str, Any], *state: Any) -> tuple[Any, Any]:
    return _scaled(lambda numbers, length: _inverse(length), numbers, *state)


def _clipped(numbers: dict[str, Any], *state: Any) -> tuple[Any, Any]:
    # as a maximum: a gradient of norm 0 needs no case of its own
    return _scaled(lambda numbers, length: numbers["threshold"] / jnp.maximum(length, numbers["threshold"]), numbers, *state)


def _sam(numbers: dict[str, Any], ground: Ground, rows: Any, head: Any) -> tuple[Any, Any]:
    G, g = ground.gradient(rows, head)
    share = numbers["radius"] * _inverse(_length(ground, G, g))
    up = head + share * g if ground.trained else head
    return ground.move(rows, head, *ground.gradient(rows + share * G, up), ground.weight_decay)


def _length(ground: Ground, G: Any, g: Any) -> Any:
    return jnp.sqrt(jnp.sum(G**2) + (jnp.sum(g**2) if ground.trained else 0.0))


def _inverse(length: Any) -> Any:
    """1/length, and 0 where there is no gradient."""
    return jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)


STEPS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "momentum": _momentum,
    "reuse": _reuse,
    "normalised": _normalised,
    "clipped": _clipped,
    "sam": _sam,
}
