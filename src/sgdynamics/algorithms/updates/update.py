"""`Update`: an update with its hyperparameters, and the functions that make updates by name.

The chain, direct runs and the ODE follow from the step of its law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from sgdynamics.algorithms.updates.law import Law as Law
from sgdynamics.algorithms.updates.law import count_row_sets as count_row_sets
from sgdynamics.base import checks, pytrees
from sgdynamics.base.controls import describe_schedule, evaluate_along
from sgdynamics.base.user_functions import function_identity

_RATE = "The learning rate is an argument of the algorithm: sgd.OnePassSGD(lr=..., update=...)."
_AVERAGES = "Write beta=beta1, and memory=c with 1 - beta2 = c/D."
# Hints for arguments of other libraries, and for arguments that are easily forgotten.
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
    "eps": "The average of squares starts at 0, so that the first steps have no limit without eps. "
    "Write eps=0.1, for example.",
    "memory": "It is the constant c of an average over D/c steps. Write memory=1.0, for example.",
}
# All updates that a record can name, including those of users.
MAKERS: dict[str, Callable[..., Update]] = {}
Arguments = ParamSpec("Arguments")


@pytrees.register_parameters("numbers")
@dataclass(frozen=True)
class Update:
    """An update: its law, on which compiled code depends, and its traced hyperparameters.

    The functions of ``sgd.updates`` make updates.

    Attributes
    ----------
    law : Law
        The step, the names of its state, and its properties.
    numbers : dict
        Hyperparameters of the step by name, including an update that this one extends (``of``).
    options : tuple
        Choices that are not numbers, such as ``over="row"``, as pairs.

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
                "kind", self.law, f"Make an update with sgd.updates.{', '.join(MAKERS)} or own."
            )

    def __repr__(self) -> str:
        arguments = [
            f"{name}={value:g}" if isinstance(value, (int, float)) else f"{name}={value}"
            for name, value in self.numbers.items()
        ]
        arguments += [f"{name}={value!r}" for name, value in self.options]
        return f"{self.kind}({', '.join(arguments)})"

    @property
    def kind(self) -> str:
        """Name of the update."""
        return self.law.name

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters as a dictionary that JAX can trace."""
        return {name: trace_hyperparameter(value) for name, value in self.numbers.items()}

    @property
    def inner_updates(self) -> list[Update]:
        """Updates among the hyperparameters, also by leaf."""
        values = [
            value
            for entry in self.numbers.values()
            for value in (entry.values() if isinstance(entry, Mapping) else [entry])
        ]
        return [value for value in values if isinstance(value, Update)]

    @property
    def moves(self) -> float:
        """Approximate number of moves per step, of which ``reuse`` makes several."""
        inner = self.numbers.get("of")
        return inner.moves if isinstance(inner, Update) else float(self.numbers.get("times", 1.0))

    def check_memory(
        self, D: float, alpha: np.ndarray, unit: str = "the step is lr itself"
    ) -> None:
        """Raise ValueError if the update averages over less than one step at any of these alpha.

        An average over D/c < 1 steps would keep a negative share of the past, 1 - c/D.

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
        for inner in self.inner_updates:
            inner.check_memory(D, alpha, unit)
        if not self.law.averaging or any(name not in self.numbers for name in self.law.averaging):
            return
        name, *offsets = self.law.averaging
        coefficients, *scales = (
            evaluate_along(self.numbers[argument], alpha) for argument in (name, *offsets)
        )
        largest = D * (scales[0] if scales else np.ones_like(coefficients))
        worst = int(np.argmax(coefficients / largest))
        # c = D (1 - beta) of a converted beta is rounded, hence the tolerance
        if coefficients[worst] > largest[worst] * (1 + 1e-9):
            steps = f"{largest[worst] / coefficients[worst]:.3g} steps"
            scaled = f" times {offsets[0]} = {scales[0][worst]:g}" if scales else ""
            fix = (
                f"{self.kind} would remember {steps}, less than one. "
                f"Set {name} to at most D{scaled}; D = {D:.6g} here ({unit})."
            )
            raise checks.reject(name, float(coefficients[worst]), fix)

    def describe(self) -> dict[str, Any]:
        """The update as plain values for the record of a result.

        Returns
        -------
        dict
            "kind", the hyperparameters and the options; "rerunnable" is False for an update of
            the user without a maker.
        """
        record: dict[str, Any] = {"kind": self.kind}
        is_complete = True
        for name, value in self.numbers.items():
            if isinstance(value, Update):
                record[name] = value.describe()
                is_complete = is_complete and record[name].get("rerunnable", True)
            elif isinstance(value, Mapping):
                record[name] = {leaf: update.describe() for leaf, update in value.items()}
                is_complete = is_complete and all(
                    leaf.get("rerunnable", True) for leaf in record[name].values()
                )
            else:
                record[name], is_named = describe_schedule(value)
                is_complete = is_complete and is_named
        record |= dict(self.options)
        if self.kind not in MAKERS:
            record |= function_identity(self.law.state_rate or self.law.step)
            is_complete = False
        return record if is_complete else {**record, "rerunnable": False}

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
        arguments = {**self.numbers, **dict(self.options)}
        checks.reject_unknown(self.kind, changes, arguments)
        return MAKERS[self.kind](**{**arguments, **changes}) if changes else self


def trace_hyperparameter(value: Any) -> Any:
    """Return a hyperparameter, or those of an inner update, as JAX traces them."""
    if isinstance(value, Update):
        return value.parameters
    if isinstance(value, Mapping):
        return {name: trace_hyperparameter(inner) for name, inner in value.items()}
    return pytrees.to_float64(value)


def maker(function: Callable[Arguments, Update]) -> Callable[Arguments, Update]:
    """Register a function that returns an update under its name, for records, files and sweeps.

    Parameters
    ----------
    function : callable
        A function of hyperparameters that returns ``sgd.updates.own(..., numbers=...)`` with
        hyperparameters of the same names.

    Returns
    -------
    callable
        The same function, whose updates have its name.

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
        raise checks.reject("function", function, "Use a function with a name.")
    checked = checks.argument_hints(HINTS)(function)

    @wraps(function)
    def make(*args: Arguments.args, **hyperparameters: Arguments.kwargs) -> Update:
        update = checked(*args, **hyperparameters)
        if not isinstance(update, Update):
            raise checks.reject(
                "function", function, "It must return an update, such as sgd.updates.own(...)."
            )
        return replace(update, law=replace(update.law, name=name))

    MAKERS[name] = make
    return make


def validate_update(value: Update | None) -> Update | None:
    """Validate `update=`; the message suggests the update that was probably meant."""
    if value is None or isinstance(value, Update):
        return value
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    aliases = {"signsgd": "sign", "adamw": "adam", "nag": "nesterov", "heavy_ball": "momentum"}
    meant = aliases.get(name.lower(), name.lower())
    if meant in MAKERS:
        fix = f"Make the update with its arguments, such as sgd.updates.{meant}(...)."
    elif type(value).__module__.partition(".")[0] == "torch":
        fix = "Convert the PyTorch optimiser with sgd.from_torch(optimiser, dimension=d)."
    else:
        names = "sgd.updates." + ", ".join(MAKERS)
        fix = (
            f"{checks.did_you_mean(value, MAKERS)}Use None (plain SGD), one of {names}, or "
            "sgd.updates.own(...)."
        )
    raise checks.reject("update", value, fix)
