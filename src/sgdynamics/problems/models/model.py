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
    def make_problem(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Stated:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        problem = function(*bound.args, **bound.kwargs)
        # written past the freeze: the problem is still being made
        vars(problem).update(
            _model=make_problem,
            _describe_model=_describe_arguments,
            kind=function.__name__,
            _arguments=dict(bound.arguments),
        )
        return problem

    MODELS[function.__name__] = make_problem
    return make_problem


def _describe_arguments(problem: Problem) -> dict[str, Any]:
    """Return the record of a model's problem: its name, and the current values of its arguments."""
    parameters = {
        "weight_decay": problem._parameters["weight_decay"],
        **problem._parameters.get("user", {}),
    }
    record: dict[str, Any] = {"kind": problem.kind}
    rerunnable = True
    for name, argument in problem._arguments.items():
        value: Any = argument if argument is None else parameters.get(name, argument)
        if hasattr(value, "describe") and not is_scheduled(value):
            record[name] = value.describe()
        elif callable(value):
            record[name], is_rerunnable = (
                describe_schedule(value)
                if is_scheduled(value)
                else (function_identity(value), False)
            )
            rerunnable = rerunnable and is_rerunnable
        else:
            record[name] = (
                value if value is None or isinstance(value, (str, bool)) else plain_values(value)
            )
    return record if rerunnable else {**record, "rerunnable": False}


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
