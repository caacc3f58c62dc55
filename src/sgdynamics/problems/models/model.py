"""`model`: a decorator that registers a function returning a problem as a named model.

The file also has the validation of arguments that several models share.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import describe_schedule, is_scheduled
from sgdynamics.base.user_functions import function_identity
from sgdynamics.problems.problem import Problem, ProblemType
from sgdynamics.problems.problem_values import plain_values

Arguments = ParamSpec("Arguments")

# All models by name, from which records and problem files make their problems.
MODELS: dict[str, Callable[..., Problem]] = {}


def model(function: Callable[Arguments, ProblemType]) -> Callable[Arguments, ProblemType]:
    """Turn a function that states a problem into a model, whose problems record its arguments.

    Parameters
    ----------
    function : callable
        Function of parameters (and names, sizes, activations) that returns an ``sgd.Problem`` or
        ``sgd.Rule``. Its losses and updates must be defined outside of the function, so that
        problems of two calls are equal and share one compiled program. An argument that is also
        an entry of the problem's ``parameters``, under the same name, changes without compilation.

    Returns
    -------
    callable
        A function with the same signature. The ``kind`` of its problems is the name of the
        function; ``replace``, records, problem files and sweeps take its arguments.

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
    def make_problem(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ProblemType:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        problem = function(*bound.args, **bound.kwargs)
        # Written to `vars`, because the constructor has already frozen the problem.
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
    """Return the record of a model's problem: its name and the current values of its arguments.

    If an argument is a parameter of the problem, the record contains the current parameter, which
    may be newer than the stored argument.
    """
    parameters = {
        "weight_decay": problem._parameters["weight_decay"],
        **problem._parameters.get("user", {}),
    }
    record: dict[str, Any] = {"kind": problem.kind}
    rerunnable = True
    for name, argument in problem._arguments.items():
        is_stated = argument is None or isinstance(argument, Mapping)
        value: Any = argument if is_stated else parameters.get(name, argument)
        if hasattr(value, "describe") and not is_scheduled(value):
            record[name] = value.describe()
        elif is_scheduled(value):
            record[name], is_rerunnable = describe_schedule(value)
            rerunnable = rerunnable and is_rerunnable
        elif callable(value):
            record[name] = function_identity(value)
            rerunnable = False
        elif value is None or isinstance(value, (str, bool)):
            record[name] = value
        else:
            record[name] = plain_values(value)
    return record if rerunnable else {**record, "rerunnable": False}


def validate_noise(noise: float | Function) -> float | Function:
    """Return the variance of the label noise, a number or a function of alpha."""
    return noise if callable(noise) else checks.number("noise", noise, minimum=0.0)


def parse_constraint(constraint: str | None) -> str | None:
    """Return the constraint. The name "none" stands for None, which problem files cannot write."""
    return None if constraint == "none" else constraint


def token_correlation_matrix(
    tokens: int, correlation: ArrayArgument | None
) -> ArrayArgument | None:
    """Return the correlation matrix of the tokens; a number is that of any two tokens."""
    if not isinstance(correlation, (int, float, np.number)) or isinstance(correlation, bool):
        return correlation
    # 1 + (tokens - 1) c is the smallest eigenvalue for c < 0, so that c has this lower bound.
    minimum = -1.0 / (tokens - 1) if tokens > 1 else -1.0
    c = checks.number("token_correlation", correlation, minimum=minimum)
    if c > 1.0:
        raise checks.reject(
            "token_correlation", correlation, f"a correlation is between {minimum:.3g} and 1"
        )
    return np.eye(tokens) + c * (np.ones((tokens, tokens)) - np.eye(tokens))
