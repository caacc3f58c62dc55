"""Updates other than plain SGD that commute with rotations of the input space, and so close in the compressed space.

An update is a function of rows (p x columns of any orthonormal frame) and of the gradient there, G = dloss/dW of a batch (mean loss,
without weight decay) and g = dloss/da. Written once, it serves the exact chain and the direct simulation. ``|(G, g)|`` is the
norm over all trained parameters: the root of ``|G|_F^2``, plus ``|g|^2`` where the head is trained.

Weight decay: ``momentum`` and ``reuse`` treat it as part of the loss in every move; ``normalised``, ``clipped`` and ``sam`` change the
gradient of the data's loss only, and the decay is added afterwards. On the sphere the rows are normalised after every move. The clock
does not change: a step is one batch, t = lr steps/d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics import checks, trees
from sgdynamics.arrays import Numeric, Scalar, Whole
from sgdynamics.functions import function_identity
from sgdynamics.precision import float64

Sets = list[tuple[Any, Any]]  # rows (p, columns) and head (p) of every set
MOST_MOVES = 2**31 - 1  # a loop counts them in 32 bits
COORDINATEWISE = ("adam", "adamw", "adamax", "nadam", "amsgrad", "adagrad", "adadelta", "rmsprop", "signsgd", "sign", "signum", "lion")


@dataclass(frozen=True)
class Law:
    """What compiled code depends on: the step, the sets of rows and the scalars a run keeps beside its weights, all 0 at first."""

    name: str
    step: Callable[..., tuple[Sets, Any]]  # step(numbers, ground, sets, scalars) -> sets, scalars
    rows: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    rereads: bool = False  # a batch is seen again after the rows have moved along it: the Gram matrix of all its samples is needed
    memory: str = "none"  # how long it remembers: not at all, O(d) steps ("slow"), O(1) steps ("fast")


@trees.numbered("numbers")
@dataclass(frozen=True)
class Update:
    """How a gradient becomes a step: its law, on which compiled code depends, and its numbers, which are traced.

    Made by the functions below, not by hand.

    Attributes
    ----------
    law : Law
        The step, and what a run keeps beside its weights.
    numbers : dict
        The numbers of the step by name.

    Examples
    --------
    >>> update = sgd.updates.momentum(0.9)
    >>> update.replace(beta=0.5)
    momentum(beta=0.5)
    """

    law: Law
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.law, Law):
            raise checks.reject("kind", self.law, f"make an update with sgd.updates.{', '.join(MAKERS)} or own")

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value:g}' for name, value in self.numbers.items())})"

    @property
    def kind(self) -> str:
        """What it is called."""
        return self.law.name

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers, as a dictionary that JAX can trace."""
        return {name: trees.traced(value) for name, value in self.numbers.items()}

    def describe(self) -> dict[str, Any]:
        """The update as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the numbers; "rerunnable" is False for a user's own.
        """
        own = {} if self.kind in MAKERS else {**function_identity(self.law.step.function), "rerunnable": False}
        return {"kind": self.kind, **{name: trees.number(value) for name, value in self.numbers.items()}, **own}

    def replace(self, **changes: object) -> Update:
        """The same update with some of its numbers changed, checked as when it was made.

        Parameters
        ----------
        **changes
            Numbers by name: ``update.replace(beta=0.5)``.

        Returns
        -------
        Update
            A new one; this one stays as it is.
        """
        checks.known_names(self.kind, changes, self.numbers)
        return MAKERS[self.kind](**{**self.numbers, **changes}) if changes else self


def momentum(beta: float) -> Update:
    """Heavy ball: steps along a velocity that remembers past gradients.

    ::

        V <- beta V + dloss/dW,     W <- W - (lr/d) V,     from V = 0

    Parameters
    ----------
    beta : float
        What is left of the velocity after a step, 0 <= beta < 1.

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If beta is outside of [0, 1).

    Notes
    -----
    A trained head has its own velocity. In the compressed space the rows of V are stacked under those of W, so that the exact chain needs
    d >= signals + 2 width. A result holds no velocity: what goes on from ``start_from`` starts at rest again. On the sphere V is not
    projected. Source: Polyak 1964, (9); as a stochastic method, Sutskever et al. 2013, (1)-(2).

    Examples
    --------
    >>> sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.9)).update
    momentum(beta=0.9)
    """
    beta = checks.number("beta", beta, 0.0)
    if beta >= 1:
        raise checks.reject("beta", beta, "give a number of 0 or more and below 1: with 1 the velocity never forgets")
    return Update(MOMENTUM, {"beta": beta})


def reuse(times: int) -> Update:
    """Each batch serves for several moves in a row, the fields computed again in between.

    Parameters
    ----------
    times : int
        How many moves ``W <- W - (lr/d) dloss/dW(W; the same batch)`` a batch serves for.

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If times is no whole number of 1 or more, or too large.

    Notes
    -----
    alpha counts samples, and t = lr steps/d counts batches: gradient-flow time is ``times`` t. Source: Dandi et al. 2024
    (The benefits of reusing batches for gradient descent in two-layer networks).

    Examples
    --------
    >>> sgd.updates.reuse(2)
    reuse(times=2)
    """
    return Update(REUSE, {"times": checks.whole("times", times, 1, MOST_MOVES)})


def normalised() -> Update:
    """Steps of one length.

    ::

        (G, g) -> sqrt(d) (G, g)/|(G, g)|,     where G = 0 stays 0

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Notes
    -----
    The gradient of one sample has a norm of order sqrt(d), so that lr keeps its meaning: a step has length lr/sqrt(d).
    Source: Nesterov 1984; Cutkosky and Mehta 2020.

    Examples
    --------
    >>> sgd.updates.normalised().kind
    'normalised'
    """
    return Update(NORMALISED)


def clipped(threshold: float) -> Update:
    """Steps of a bounded length.

    ::

        (G, g) -> (G, g) min(1, threshold sqrt(d)/|(G, g)|)

    Parameters
    ----------
    threshold : float
        The largest norm of a gradient, in units of sqrt(d); above 0.

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If threshold is not above 0.

    Notes
    -----
    Source: Pascanu, Mikolov and Bengio 2013, Algorithm 1, with the threshold in units of sqrt(d).

    Examples
    --------
    >>> sgd.updates.clipped(1.5)
    clipped(threshold=1.5)
    """
    return Update(CLIPPED, {"threshold": checks.number("threshold", threshold, above=0.0)})


def sam(radius: float) -> Update:
    """Sharpness-aware minimisation: the gradient of the same batch at a point uphill, applied at (W, a).

    ::

        gradient at (W, a) + radius (G, g)/|(G, g)|

    Parameters
    ----------
    radius : float
        The length of the ascent, 0 or more. It moves the field of a sample by about radius sqrt(d): with a radius of order 1/sqrt(d) it
        survives d -> infinity.

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If radius is negative.

    Notes
    -----
    On the sphere the point of ascent is not normalised. Source: Foret et al. 2021, (2)-(3) and Algorithm 1, there with p = 2.

    Examples
    --------
    >>> sgd.updates.sam(0.05)
    sam(radius=0.05)
    """
    return Update(SAM, {"radius": checks.number("radius", radius, 0.0)})


def own(
    step: Callable[..., Any], rows: Iterable[str] = (), scalars: Iterable[str] = (), memory: str = "none", *, rereads: bool = True
) -> Update:
    """An update of your own.

    Parameters
    ----------
    step : callable
        ``step(state, gradient, lr, D, number)`` returns increments, a dictionary with the same names and shapes as ``state``.
        ``state["weights"]`` is (p, columns) in whatever orthonormal frame of the input space, where the head is trained with one more
        column for it; so is every set of ``rows``, and each of the ``scalars`` is a number. ``gradient(rows, shift=0)`` is dloss/dW of the
        batch at rows + shift. A plain step is ``-lr / D * gradient(state["weights"])``, D = d; ``number`` counts the steps.
    rows : iterable of str, default ()
        Names of sets of rows that a run keeps beside its weights, all 0 at first.
    scalars : iterable of str, default ()
        Names of numbers that it keeps, all 0 at first.
    memory : str, default "none"
        How long it remembers: "none", "slow" (O(d) steps) or "fast" (O(1) steps).
    rereads : bool, default True
        False, for an update that asks once a step for the gradient, saves work where the batch is larger than the width.

    Returns
    -------
    Update
        To be given as ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If names repeat, increments have other names or shapes, or the step does not commute with rotations of the columns, which is
        tried when it is made.

    Notes
    -----
    The head's share of the weights' increment is multiplied by head_rate, weight decay is added to it, and on the sphere the rows are
    normalised afterwards. The step has to commute with rotations of the columns (not of the head's).

    Examples
    --------
    >>> def halved(state, gradient, lr, D, number):
    ...     return {"weights": -lr / (2 * D) * gradient(state["weights"])}
    >>> sgd.updates.own(halved, rereads=False).kind
    'own'
    """
    names = {"rows": tuple(rows), "scalars": tuple(scalars)}
    every = ("weights", *names["rows"], *names["scalars"])
    if not all(isinstance(name, str) for name in every) or len(set(every)) < len(every):
        raise checks.reject("rows and scalars", names, 'give different names, such as rows=("velocity",), scalars=("norm",)')
    checks.choice("memory", memory, ("none", "slow", "fast"))
    _try_own(step, **names)
    return Update(Law("own", _OwnStep(step, **names), **names, rereads=checks.flag("rereads", rereads), memory=memory))


@dataclass(frozen=True)
class _OwnStep:
    """A user's step in terms of increments, as one of sets of rows and scalars."""

    function: Callable[..., Any]
    rows: tuple[str, ...]
    scalars: tuple[str, ...]

    def __call__(self, numbers: dict[str, Any], ground: Ground, sets: Sets, scalars: tuple[Scalar, ...]) -> tuple[Sets, Any]:
        def joined(rows: Float[Numeric, "p columns"], head: Float[Numeric, " p"]) -> Any:
            return jnp.concatenate([rows, head[:, None]], axis=1) if ground.trained else rows

        def parted(both: Float[Numeric, "p columns"]) -> tuple[Any, Any]:
            return (both[:, :-1], both[:, -1]) if ground.trained else (both, jnp.zeros_like(sets[0][1]))

        def gradient(rows: Float[Numeric, "p columns"], shift: Any = 0.0) -> Any:
            W, a = parted(rows + shift)
            return joined(*ground.gradient(W, a if ground.trained else sets[0][1]))

        names = ("weights", *self.rows)
        state = {name: joined(*one) for name, one in zip(names, sets, strict=True)} | dict(zip(self.scalars, scalars, strict=True))
        more = self.function(state, gradient, ground.lr, ground.dimension, ground.number)
        kick, head_kick = parted(more["weights"])
        W, a = ground.move(*sets[0], 0.0, 0.0, ground.weight_decay, kick=kick, head_kick=ground.head_rate * head_kick)
        others = [parted(state[name] + more[name]) for name in self.rows]
        return [(W, a), *others], tuple(state[name] + more[name] for name in self.scalars)


@float64
def _try_own(step: Callable[..., Any], rows: tuple[str, ...], scalars: tuple[str, ...]) -> None:
    """Refuse a step that fails, gives other names or shapes than its state, or does not commute with rotations."""
    fix = "give step(state, gradient, lr, D, number) -> increments with the names and shapes of the state"
    generator = np.random.default_rng(0)
    turn, X = np.linalg.qr(generator.standard_normal((5, 5)))[0], generator.standard_normal((3, 5))
    state = {name: generator.standard_normal((2, 5)) for name in ("weights", *rows)} | {name: np.float64(1.3) for name in scalars}

    def increments(turn: np.ndarray) -> dict[str, Any]:
        def gradient(rows: Float[Numeric, "p columns"], shift: Any = 0.0) -> Any:
            return jnp.tanh((rows + shift) @ (X @ turn).T) @ (X @ turn) / 3

        turned = {name: one if one.ndim == 0 else one @ turn for name, one in state.items()}
        return step(jax.tree.map(jnp.asarray, turned), gradient, jnp.asarray(0.1), jnp.asarray(5.0), jnp.asarray(3))

    with jax.ensure_compile_time_eval():
        try:
            plain, turned = increments(np.eye(5)), increments(turn)
        except Exception as error:
            raise checks.reject("step", step, f"calling it failed with: {checks.reason(error)}; {fix}") from error
        if not isinstance(plain, dict) or jax.tree.map(np.shape, plain) != jax.tree.map(np.shape, state):
            raise checks.reject("step", step, fix)
        for name, one in plain.items():
            meant = one if np.ndim(one) == 0 else one @ turn
            if not np.allclose(turned[name], meant, rtol=1e-6, atol=1e-9):
                fix = f"its increment of {name} does not commute with rotations of the columns, so that it does not close on overlaps"
                raise checks.reject("step", step, fix)


MAKERS: dict[str, Callable[..., Update]] = {
    "momentum": momentum,
    "reuse": reuse,
    "normalised": normalised,
    "clipped": clipped,
    "sam": sam,
}


def checked_update(value: Update | None) -> Update | None:
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


def copies(law: Law | None) -> int:
    """How many sets of p rows a run keeps: the weights and, under them, those of its update."""
    return 1 if law is None else 1 + len(law.rows)


class Ground(NamedTuple):
    """What an update stands on: gradient(rows, head) of the batch, move(rows, head, G, g, decay, kicks) along a gradient, the setting."""

    gradient: Callable[[Any, Any], tuple[Any, Any]]
    move: Callable[..., tuple[Any, Any]]
    weight_decay: Any
    lr: Any
    head_rate: Any
    dimension: Any
    number: Any  # of the step
    trained: bool


def _momentum(numbers: dict[str, Any], ground: Ground, sets: Sets, scalars: tuple[Scalar, ...]) -> tuple[Sets, Any]:
    (W, a), (V, v) = sets
    G, g = ground.gradient(W, a)
    V = numbers["beta"] * V + G + ground.weight_decay * W
    v = numbers["beta"] * v + g + ground.weight_decay * a
    return [ground.move(W, a, V, v, 0.0), (V, v)], scalars


def _reuse(numbers: dict[str, Any], ground: Ground, sets: Sets, scalars: tuple[Scalar, ...]) -> tuple[Sets, Any]:
    def again(_: Whole, state: tuple[Any, Any]) -> tuple[Float[Numeric, "p columns"], Float[Numeric, " p"]]:
        return ground.move(*state, *ground.gradient(*state), ground.weight_decay)

    return [jax.lax.fori_loop(0, numbers["times"].astype(jnp.int32), again, sets[0])], scalars


def _scaled(factor: Callable[[dict[str, Any], Any], Any]) -> Callable[..., tuple[Sets, Any]]:
    """A step along the gradient times a factor of (numbers, |(G, g)|/sqrt(d))."""

    def step(numbers: dict[str, Any], ground: Ground, sets: Sets, scalars: tuple[Scalar, ...]) -> tuple[Sets, Any]:
        G, g = ground.gradient(*sets[0])
        share = factor(numbers, _length(ground, G, g) / jnp.sqrt(jnp.asarray(ground.dimension, G.dtype)))
        return [ground.move(*sets[0], share * G, share * g, ground.weight_decay)], scalars

    return step


def _sam(numbers: dict[str, Any], ground: Ground, sets: Sets, scalars: tuple[Scalar, ...]) -> tuple[Sets, Any]:
    rows, head = sets[0]
    G, g = ground.gradient(rows, head)
    share = numbers["radius"] * _inverse(_length(ground, G, g))
    up = head + share * g if ground.trained else head
    return [ground.move(rows, head, *ground.gradient(rows + share * G, up), ground.weight_decay)], scalars


def _length(ground: Ground, G: Float[Numeric, "p columns"], g: Float[Numeric, " p"]) -> Float[Numeric, ""]:
    return jnp.sqrt(jnp.sum(G**2) + (jnp.sum(g**2) if ground.trained else 0.0))


def _inverse(length: Scalar) -> Float[Numeric, ""]:
    """1/length, and 0 where there is no gradient."""
    return jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)


MOMENTUM = Law("momentum", _momentum, rows=("velocity",), memory="fast")
REUSE = Law("reuse", _reuse, rereads=True)
NORMALISED = Law("normalised", _scaled(lambda numbers, length: _inverse(length)))
# as a maximum: a gradient of norm 0 needs no case of its own
CLIPPED = Law("clipped", _scaled(lambda numbers, length: numbers["threshold"] / jnp.maximum(length, numbers["threshold"])))
SAM = Law("sam", _sam, rereads=True)
