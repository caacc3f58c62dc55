"""An update: one function of increments, and what it says of itself.

Everything else (chain, direct runs, ODE) follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Numeric
from sgdynamics.base.controls import (
    describe_schedule,
    evaluate_along,
    scalar_or_schedule,
    values_at,
)
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import function_identity

# gradient of the batch as a function of the rows (`gradient_source.Gradient`)
GradientFunction = Callable[..., Any]
MEMORIES = ("none", "slow", "fast")
_RATE = "The learning rate is an argument of the algorithm: sgd.OnePassSGD(lr=..., update=...)."
_AVERAGES = "Give beta=beta1, and memory=c with 1 - beta2 = c/D."
# what is written in place of arguments of other libraries, and of those that are easily forgotten
HINTS = {
    "lr": _RATE,
    "learning_rate": _RATE,
    "betas": _AVERAGES,
    "beta1": _AVERAGES,
    "beta2": _AVERAGES,
    "epsilon": "Write eps=...",
    "momentum": "Write beta=..., or memory=c for 1 - beta = c/D.",
    "nesterov": "Use sgd.updates.nesterov(beta).",
    "weight_decay": "Use sgd.updates.weight_decay(rate, of=...).",
    "amsgrad": "This variant is not available.",
    "eps": "The average of squares starts at 0, so that without eps the first steps have no limit: write eps=0.1, for example.",
    "memory": "It is c, for an average over D/c steps: write memory=1.0, for example.",
}
MAKERS: dict[str, Callable[..., Update]] = {}  # every update that a record can name, a user's too
TRIED_AT = 1e12  # the D at which a user's step is tried for being linear in the gradient
TRIED_SIZES = (0.03, 1.0, 30.0)  # of the gradient there


@dataclass(frozen=True)
class Law:
    """The static part of an update, on which compiled code depends.

    It has the step and the names of the sets of rows, scalars and squares that belong to its state.
    """

    name: str
    step: Callable[
        ..., dict[str, Any]
    ]  # step(state, gradient, lr, D, number, **numbers) -> increments
    rows: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    squares: tuple[
        str, ...
    ] = ()  # one number a coordinate of the input space and unit: what only coordinatewise updates keep
    memory: str = (
        "none"  # how long it remembers: not at all, O(D) steps ("slow"), O(1) steps ("fast")
    )
    linear: bool = False  # the rows' increments are affine in the gradient: its ODE needs means and the noise only
    lengthless: bool = False  # linear in the rows too, without a length or product of rows: any frame will do for its ODE
    rereads: bool = False  # a batch is seen again after a move along it, or sample by sample: the Gram matrix of all samples is needed
    begins_as_weights: tuple[str, ...] = ()  # rows that start there; the others start at 0
    first: tuple[
        tuple[str, str], ...
    ] = ()  # scalars or squares and the number at which they start; the others start at 0
    decay_inside: bool = (
        False  # weight decay is part of every gradient; otherwise it is added to the increment
    )
    moved: str = "weights"  # the set that steps along gradients; the weights, which are the network, may be an average of it
    explicit_head_rate: bool = False  # the step itself uses gradient.plain_step
    trains_head: bool = True
    holds_sphere: bool = True
    noise: bool = False  # it takes gradient.noise()
    coordinatewise: bool = False  # acts on each coordinate of the input space by itself
    jumps: bool = False  # where the gradient vanishes
    bends: str = ""  # the number at which it bends, as a norm of the gradient over sqrt(D)
    bends_by_row: bool = False  # as a norm of every row by itself
    no_limit: str = ""  # why it has no ODE, where that is known
    scales: bool = True  # known to have a limit in its units; a user's is tried
    state_rate: Callable[[Any], Any] | None = (
        None  # function of the overlaps that multiplies its step
    )
    averaging: tuple[
        str, ...
    ] = ()  # the number c of an average over D/c steps, or two numbers whose ratio is c


@pytrees.register_parameters("numbers")
@dataclass(frozen=True)
class Update:
    """An update: its law, on which compiled code depends, and its traced hyperparameters.

    Made by the functions of ``sgd.updates``, not by hand.

    Attributes
    ----------
    law : Law
        The step and the names of its state.
    numbers : dict
        The numbers of the step by name; an update inside another is among them.
    options : tuple
        Choices that are no numbers, such as ``over="row"``, as pairs.

    Examples
    --------
    >>> update = sgd.updates.momentum(0.9)
    >>> update.replace(beta=0.5)
    momentum(beta=0.5)
    """

    law: Law
    numbers: dict[str, Any] = field(default_factory=dict)
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.law, Law):
            raise checks.reject(
                "kind", self.law, f"make an update with sgd.updates.{', '.join(MAKERS)} or own"
            )

    def __repr__(self) -> str:
        shown = [
            f"{name}={value:g}" if isinstance(value, (int, float)) else f"{name}={value}"
            for name, value in self.numbers.items()
        ]
        return f"{self.kind}({', '.join([*shown, *(f'{name}={value!r}' for name, value in self.options)])})"

    @property
    def kind(self) -> str:
        """Name of the update."""
        return self.law.name

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers, as a dictionary that JAX can trace."""
        return {
            name: value.parameters if isinstance(value, Update) else pytrees.to_float64(value)
            for name, value in self.numbers.items()
        }

    @property
    def moves(self) -> float:
        """Approximate number of moves per step; ``reuse`` makes several."""
        inner = self.numbers.get("of")
        return inner.moves if isinstance(inner, Update) else float(self.numbers.get("times", 1.0))

    def check_memory(
        self, D: float, alpha: np.ndarray, unit: str = "the step is lr itself"
    ) -> None:
        """Raise ValueError if the update averages over less than one step, D/c < 1, at any of these alpha.

        The share of the past that remains in the average, 1 - c/D, is negative there.

        Parameters
        ----------
        D : float
            Number of steps per unit of alpha: the dimension, or the trace of the covariance.
        alpha : numpy.ndarray
            Values of samples/D at which parameters that depend on alpha are checked.
        unit : str, default "the step is lr itself"
            Explanation of D for the message.

        Raises
        ------
        ValueError
            If the update would average over less than one step.
        """
        inner = self.numbers.get("of")
        if isinstance(inner, Update):
            inner.check_memory(D, alpha, unit)
        if not self.law.averaging or any(name not in self.numbers for name in self.law.averaging):
            return
        name, *offsets = self.law.averaging
        values, *scales = (
            evaluate_along(self.numbers[number], alpha) for number in (name, *offsets)
        )
        largest = D * (scales[0] if scales else np.ones_like(values))
        worst = int(np.argmax(values / largest))
        if values[worst] > largest[worst] * (
            1 + 1e-9
        ):  # c = D (1 - beta) of a converted beta is rounded
            steps = f"{largest[worst] / values[worst]:.3g} steps"
            scaled = f" times {offsets[0]} = {scales[0][worst]:g}" if scales else ""
            fix = f"{self.kind} would remember {steps}, less than one. Give {name} of at most D{scaled}; D = {D:.6g} here ({unit})."
            raise checks.reject(name, float(values[worst]), fix)

    def describe(self) -> dict[str, Any]:
        """The update as plain values for the record of a result.

        Returns
        -------
        dict
            "kind", the numbers and the options; "rerunnable" is False for a user's own that has no
            maker.
        """
        own = (
            {}
            if self.kind in MAKERS
            else {**function_identity(self.law.state_rate or self.law.step), "rerunnable": False}
        )
        shown = {
            name: value.describe() if isinstance(value, Update) else describe_schedule(value)[0]
            for name, value in self.numbers.items()
        }
        if not all(
            describe_schedule(value)[1]
            for value in self.numbers.values()
            if not isinstance(value, Update)
        ):
            own["rerunnable"] = False
        inner = shown.get("of")
        if isinstance(inner, dict) and not inner.get("rerunnable", True):
            own["rerunnable"] = False
        return {"kind": self.kind, **shown, **dict(self.options), **own}

    def replace(self, **changes: object) -> Update:
        """Return a copy with some hyperparameters changed.

        Parameters
        ----------
        **changes
            Hyperparameters by name: ``update.replace(beta=0.5)``.

        Returns
        -------
        Update
            A new update; this one is not changed.
        """
        checks.reject_unknown(self.kind, changes, {**self.numbers, **dict(self.options)})
        return (
            MAKERS[self.kind](**{**self.numbers, **dict(self.options), **changes})
            if changes
            else self
        )


def maker(function: Callable[..., Update]) -> Callable[..., Update]:
    """Register a function that returns an update under its name, for records, files and sweeps.

    Parameters
    ----------
    function : callable
        Takes numbers by name and returns what ``sgd.updates.own(..., numbers=...)`` made of them,
        with the same names.

    Returns
    -------
    callable
        The same function; its updates carry its name.

    Examples
    --------
    >>> def step(state, gradient, lr, D, number, factor):
    ...     return {"weights": -factor * lr / D * gradient(state["weights"])}
    >>> @sgd.updates.maker
    ... def slower(factor):
    ...     return sgd.updates.own(step, rereads=False, numbers={"factor": factor})
    >>> slower(0.5)
    slower(factor=0.5)
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise checks.reject("function", function, "use a function with a name")

    checked = checks.argument_hints(HINTS)(function)

    @wraps(function)
    def make(*args: Any, **hyperparameters: Any) -> Update:
        update = checked(*args, **hyperparameters)
        if not isinstance(update, Update):
            raise checks.reject(
                "function", function, "it must return an update, such as sgd.updates.own(...)"
            )
        return replace(update, law=replace(update.law, name=name))

    MAKERS[name] = make
    return make


def own(
    step: Callable[..., Any],
    rows: Iterable[str] = (),
    scalars: Iterable[str] = (),
    memory: str = "none",
    *,
    rereads: bool = True,
    numbers: Mapping[str, float] | None = None,
) -> Update:
    """Define an update by its increments, for the exact chain, direct runs and the ODE.

    Parameters
    ----------
    step : callable
        ``step(state, gradient, lr, D, number)`` returns increments, a dictionary with the same
        names and shapes as ``state``. ``state["weights"]`` is (p, columns) in whatever orthonormal
        frame of the input space, where the head is trained with one more column for it; so is every
        set of ``rows``, and each of the ``scalars`` is a number. ``gradient(rows, shift=0)`` is
        dloss/dW of the batch at rows + shift. A plain step is ``-lr / D *
        gradient(state["weights"])``, D = d; ``number`` counts the steps.
    rows : iterable of str, default ()
        Names of additional sets of rows in the state, initially 0.
    scalars : iterable of str, default ()
        Names of scalars in the state, initially 0.
    memory : str, default "none"
        Length of its memory: "none", "slow" (O(D) steps) or "fast" (O(1) steps). The ODE supports
        "fast" only where the step is linear.
    rereads : bool, default True
        False, for an update that asks once a step for the gradient, saves work where the batch is
        larger than the width.
    numbers : dict, optional
        Numbers that the step takes by name after ``number``; they are traced, so that others do not
        compile again.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If names repeat, increments have other names or shapes, or the step does not commute with
        rotations of the columns, which is tried when it is made.

    Notes
    -----
    The head's share of the weights' increment is multiplied by head_rate, weight decay is added to it, and on the sphere the rows are
    normalised afterwards. The step has to commute with rotations of the columns (not of the head's). The ODE runs it on the limit's
    ground, D = 1e14: there ``gradient(rows, shift)`` keeps the two apart, so that a shift of order 1/D is not rounded away; give what is
    small as the shift. What is moved in a step has to be of order 1/D along rows and signals, or the numbers have no limit in these units,
    which ``solve_ode`` says.

    Examples
    --------
    >>> def halved(state, gradient, lr, D, number):
    ...     return {"weights": -lr / (2 * D) * gradient(state["weights"])}
    >>> sgd.updates.own(halved, rereads=False).kind
    'own'
    """
    for argument, value in (("rows", rows), ("scalars", scalars)):
        if not isinstance(value, (tuple, list, set, frozenset, dict)) and not hasattr(
            value, "__next__"
        ):
            raise checks.reject(argument, value, 'give names, such as ("velocity",)')
    names: dict[str, Any] = {"rows": tuple(rows), "scalars": tuple(scalars)}
    state_names = ("weights", *names["rows"], *names["scalars"])
    is_valid = all(isinstance(name, str) for name in state_names)
    if not is_valid or len(set(state_names)) < len(state_names):
        raise checks.reject(
            "rows and scalars",
            names,
            'give different names, such as rows=("velocity",), scalars=("norm",)',
        )
    checks.choice("memory", memory, MEMORIES)
    if numbers is not None and not isinstance(numbers, Mapping):
        raise checks.reject("numbers", numbers, 'give numbers by name, such as {"beta": 0.9}')
    hyperparameters = {
        name: scalar_or_schedule(name, value, -np.inf) for name, value in (numbers or {}).items()
    }
    linear = _try_own(step, **names, hyperparameters=hyperparameters)
    rereads = checks.flag("rereads", rereads)
    return Update(
        Law("own", step, **names, rereads=rereads, memory=memory, linear=linear, scales=False),
        hyperparameters,
    )


class _TrialGradient:
    """A gradient for a trial, which counts how often it is evaluated."""

    noise = squares = sign = None

    def __init__(self, function: Callable[..., Any], samples: int) -> None:
        self.function, self.evaluations, self.samples = function, 0, samples

    def __call__(self, rows: Float[Numeric, "p columns"], shift: Any = 0.0) -> Any:
        self.evaluations += 1
        return self.function(rows + shift)

    def per_sample(self, rows: Float[Numeric, "p columns"], shift: Any = 0.0) -> Any:
        self.evaluations += 2
        return jnp.broadcast_to(self.function(rows + shift), (self.samples, *rows.shape))

    def project_shift(
        self, rows: Float[Numeric, "p columns"], shift: Float[Numeric, "p columns"]
    ) -> Any:
        return shift


@float64
def _try_own(
    step: Callable[..., Any],
    rows: tuple[str, ...],
    scalars: tuple[str, ...],
    hyperparameters: dict[str, Any],
) -> bool:
    """Raise ValueError for an invalid step, and return whether it is linear in the gradient.

    A step is invalid if it fails, returns other names or shapes than its state, or does not commute
    with rotations of the columns.
    """
    fix = "give step(state, gradient, lr, D, number) -> increments with the names and shapes of the state"
    generator = np.random.default_rng(0)
    turn, X = np.linalg.qr(generator.standard_normal((5, 5)))[0], generator.standard_normal((3, 5))
    state = {name: generator.standard_normal((2, 5)) for name in ("weights", *rows)} | {
        name: np.float64(1.3) for name in scalars
    }
    traced = {name: jnp.asarray(value) for name, value in values_at(hyperparameters, 0.0).items()}

    def increments(turn: np.ndarray) -> dict[str, Any]:
        gradient = _TrialGradient(lambda rows: jnp.tanh(rows @ (X @ turn).T) @ (X @ turn) / 3, 3)
        turned = {name: value if value.ndim == 0 else value @ turn for name, value in state.items()}
        return step(
            jax.tree.map(jnp.asarray, turned),
            gradient,
            jnp.asarray(0.1),
            jnp.asarray(5.0),
            jnp.asarray(3),
            **traced,
        )

    with jax.ensure_compile_time_eval():
        try:
            plain, turned = increments(np.eye(5)), increments(turn)
        except Exception as error:
            raise checks.reject(
                "step", step, f"calling it failed with: {checks.reason(error)}; {fix}"
            ) from error
        if not isinstance(plain, dict) or jax.tree.map(np.shape, plain) != jax.tree.map(
            np.shape, state
        ):
            raise checks.reject("step", step, fix)
        for name, increment in plain.items():
            expected = increment if np.ndim(increment) == 0 else increment @ turn
            if not np.allclose(turned[name], expected, rtol=1e-6, atol=1e-9):
                fix = f"its increment of {name} does not commute with rotations of the columns, so that it does not close on overlaps"
                raise checks.reject("step", step, fix)
        return _linear(step, ("weights", *rows), scalars, traced)


def _linear(
    step: Callable[..., Any],
    rows: tuple[str, ...],
    scalars: tuple[str, ...],
    hyperparameters: dict[str, Any],
) -> bool:
    """Whether, at large D, the mean gradient and its noise are enough: the step asks once for the gradient, in which the increments of the
    rows are affine, and those of the scalars are affine inside_spread rows and signals, quadratic
    in what is new. At several sizes of it, as a bound may be anywhere."""
    generator, D, inside, new = np.random.default_rng(1), TRIED_AT, 6, 4
    state = {
        name: np.pad(generator.standard_normal((2, inside)), ((0, 0), (0, new))) for name in rows
    }
    state |= {name: np.float64(1.3) for name in scalars}
    size = np.concatenate([np.ones(inside), np.full(new, np.sqrt(D))])
    mean, spread = generator.standard_normal((2, 2, inside + new)) * size
    inside_spread = spread * (np.arange(inside + new) < inside)

    def increments(G: np.ndarray) -> dict[str, Any]:
        gradient = _TrialGradient(lambda rows: jnp.asarray(G), 1)
        values = step(
            jax.tree.map(jnp.asarray, state),
            gradient,
            jnp.asarray(0.7),
            jnp.asarray(D),
            jnp.asarray(0.3 * D),
            **hyperparameters,
        )
        return (
            {name: np.asarray(value) for name, value in values.items()}
            if gradient.evaluations == 1
            else {}
        )

    def small(bent: Any, whole: Any) -> bool:
        return bool(np.abs(bent).max() <= 1e-3 * np.abs(whole).max())

    for scale in TRIED_SIZES:
        plus, minus, middle, far = (
            increments(scale * (mean + sign * spread)) for sign in (1, -1, 0, 2)
        )
        up, down = (increments(scale * (mean + sign * inside_spread)) for sign in (1, -1))
        if not plus:
            return False
        for name in rows:
            bent = plus[name] + minus[name] - 2 * middle[name]
            if not all(
                small(bent[:, columns], plus[name][:, columns])
                for columns in (slice(None, inside), slice(inside, None))
            ):
                return False
        for name in scalars:
            largest = np.stack([far[name], plus[name], minus[name], middle[name]])
            if not small(far[name] - 3 * plus[name] + 3 * middle[name] - minus[name], largest):
                return False
            if not small(up[name] + down[name] - 2 * middle[name], largest):
                return False
    return True


def validate_update(value: Update | None) -> Update | None:
    """Validate `update=`, and suggest what was probably meant."""
    if value is None or isinstance(value, Update):
        return value
    names = "sgd.updates." + ", ".join(MAKERS)
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    meant = {"signsgd": "sign", "adamw": "adam", "nag": "nesterov", "heavy_ball": "momentum"}.get(
        name.lower(), name.lower()
    )
    if meant in MAKERS:
        raise checks.reject(
            "update",
            value,
            f"give the update made with its numbers, such as sgd.updates.{meant}(...)",
        )
    if type(value).__module__.partition(".")[0] == "torch":
        raise checks.reject(
            "update", value, "sgd.from_torch(optimiser, dimension=d) makes an algorithm of it"
        )
    raise checks.reject(
        "update",
        value,
        f"{checks.did_you_mean(value, MAKERS)}give None (plain SGD), one of {names}, or sgd.updates.own(...)",
    )


def count_row_sets(law: Law | None) -> int:
    """Return the number of sets of p rows in the state: the weights and those of the update."""
    return 1 if law is None else 1 + len(law.rows)
