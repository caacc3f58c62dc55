"""`model`: a function that states a problem, as a kind of problem with records, `replace` and sweeps of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sgdynamics.problems.problem import Problem

Arguments = ParamSpec("Arguments")
Stated = TypeVar("Stated", bound=Problem)

MODELS: dict[str, Callable[..., Problem]] = {}  # by name, for records and problem files


def model(function: Callable[Arguments, Stated]) -> Callable[Arguments, Stated]:
    """Make a function that states a problem a model: what it returns records the function's own arguments.

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
        vars(problem).update(_maker=made, kind=function.__name__, _given=dict(bound.arguments))
        return problem

    MODELS[function.__name__] = made
    return made
