"""`model`: a function that states a problem, as a kind of problem with its own records, `replace` and sweeps; arguments of several."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.controls import describe_schedule, is_scheduled
from sgdynamics.base.user_functions import function_identity
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_values import plain_values

Arguments = ParamSpec("Arguments")
Stated = TypeVar("Stated", bound=Problem)

MODELS: dict[str, Callable[..., Problem]] = {}  # by name, for records and problem files


def model(function: Callable[Arguments, Stated]) -> Callable[Arguments, Stated]:
    """Turn a function that states a problem into a model: what it returns records the function's own arguments.

    Parameters
    ----------
    function : callable
        Takes numbers (and names, sizes, activations) and returns an ``sgd.Problem`` or ``sgd.Rule``. Its losses and updates must be
        defined outside of it, so that two calls give equal problems that share one compiled program; a number that stands in the
        problem's ``parameters`` under the name of the argument never compiles again.

    Returns
    -------
    callable
        The same function. Its problems have its name as ``kind``; ``replace``, records, problem files and sweeps take its arguments.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> def loss(fields, signals, head, noise_draw, parameters):
    ...     return (fields[0] - parameters["gain"] * signals[0]) ** 2 / 2
    >>> @sgd.models.model
    ... def amplified(gain=2.0):
    ...     return sgd.Problem(loss, width=1, signals=1, parameters={"gain": gain})
    >>> amplified().replace(gain=3.0)
    amplified(gain=3.0)
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def made(*given: Arguments.args, **named: Arguments.kwargs) -> Stated:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        problem = function(*bound.args, **bound.kwargs)
        # what is sealed is not changed by anyone else: this is still the making of it
        vars(problem).update(
            _model=made,
            _describe_model=_described,
            kind=function.__name__,
            _arguments=dict(bound.arguments),
        )
        return problem

    MODELS[function.__name__] = made
    return made


def _described(problem: Problem) -> dict[str, Any]:
    """The record of what a model made: its name and arguments, with the numbers that stand there now."""
    numbers = {
        "weight_decay": problem._parameters["weight_decay"],
        **problem._parameters.get("user", {}),
    }
    found: dict[str, Any] = {"kind": problem.kind}
    again = True
    for name, given in problem._arguments.items():
        value: Any = given if given is None else numbers.get(name, given)
        if hasattr(value, "describe") and not is_scheduled(value):
            found[name] = value.describe()
        elif callable(value):
            found[name], whole = (
                describe_schedule(value)
                if is_scheduled(value)
                else (function_identity(value), False)
            )
            again = again and whole
        else:
            found[name] = (
                value if value is None or isinstance(value, (str, bool)) else plain_values(value)
            )
    return found if again else {**found, "rerunnable": False}


def noise_number(value: Any) -> Any:
    """A variance, or a function of alpha."""
    return value if callable(value) else checks.number("noise", value, minimum=0.0)


def none_or(constraint: str | None) -> str | None:
    """A constraint; "none" is None, for which files have no word."""
    return None if constraint == "none" else constraint


def correlated(tokens: int, value: Any) -> Any:
    """A matrix as it is; of a number the matrix with it between any two tokens."""
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        return value
    low = -1.0 / (tokens - 1) if tokens > 1 else -1.0
    c = checks.number("token_correlation", value, minimum=low)
    if c > 1.0:
        raise checks.reject("token_correlation", value, f"a correlation is between {low:.3g} and 1")
    return np.eye(tokens) + c * (np.ones((tokens, tokens)) - np.eye(tokens))
