"""Observables of a run besides its overlaps: the arguments `record` and `evaluate` of solvers.

They are functions of the state, means over the data set, and risks of other problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sgdynamics.base import checks
from sgdynamics.base.arrays import State
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.tops import Top
from sgdynamics.problems.user_losses import UserLoss
from sgdynamics.results.variables import STANDARD_ERROR, TAKEN, VARIABLES

CHUNK = 1024  # states evaluated at once, which limits the memory of a user's function
TAKES = "fields, signals, head, draws"
Variables = dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]


@dataclass(frozen=True)
class OnTrain:
    """A function of a sample whose mean over the data set is recorded."""

    function: Callable[..., Any]


def on_train(function: Callable[..., Any]) -> OnTrain:
    """Record the mean of a function over the data set: ``record={"name": sgd.on_train(function)}``.

    Parameters
    ----------
    function : callable
        JAX function of one sample with the arguments of a loss,
        ``function(fields, signals, head, draws)``, which returns a number or an array.

    Returns
    -------
    OnTrain
        Value for ``record=`` of ``simulate`` and ``solve_dmft``, with algorithms on a fixed data
        set.

    Raises
    ------
    ValueError
        If ``function`` cannot be called.

    Examples
    --------
    The mean squared field over the data set at all save points:

    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> size = sgd.on_train(lambda fields, signals, head, draws: fields[0] ** 2)
    >>> arguments = {"steps": [0, 5], "dimension": 20, "runs": 3, "record": {"size": size}}
    >>> runs = sgd.simulate(problem, algorithm, start, **arguments)
    >>> runs["size"].dims
    ('run', 'time')
    """
    if not callable(function):
        raise checks.reject("function", function, f"give a JAX function of ({TAKES})")
    return OnTrain(function)


@dataclass(frozen=True)
class Observables:
    """Functions of the state, functions of a sample of the data set, other problems, by name."""

    of_state: dict[str, Callable[..., Any]] = field(default_factory=dict)
    of_sample: dict[str, Callable[..., Any]] = field(default_factory=dict)
    evaluated: dict[str, Any] = field(default_factory=dict)  # dynamics with other risks
    top: Top | None = None  # shapes of the third argument of functions of a sample

    def losses(self) -> dict[str, UserLoss]:
        """The functions of a sample as losses, whose mean over the data a simulator computes."""
        return {name: UserLoss(function, top=self.top) for name, function in self.of_sample.items()}


def checked_record(
    record: object, state: Mapping[str, Any], problem: Any, has_data: bool
) -> Observables:
    """Validate the argument `record` on one state and, with a data set, on one sample."""
    if record is None:
        return Observables()
    if not isinstance(record, Mapping):
        fix = 'give functions by name: {"cosine": function_of_state}'
        raise checks.reject("record", record, fix)
    observables = Observables(top=getattr(getattr(problem, "structure", None), "top", None))
    for name, function in record.items():
        is_free = (
            isinstance(name, str)
            and name.isidentifier()
            and name not in TAKEN
            and name not in state
            and not name.endswith(STANDARD_ERROR)
        )
        if not is_free:
            fix = (
                "a result has this name already, or it is not an identifier: give another one, "
                "such as 'cosine'"
            )
            raise checks.reject("record", name, fix)
        argument = f"record[{name!r}]"
        if isinstance(function, OnTrain):
            if not has_data:
                fix = "fresh samples make no data set: give a function of the state"
                raise checks.reject(argument, "sgd.on_train(...)", fix)
            observables.of_sample[name] = function.function
            check_of_sample(argument, function.function, problem)
            continue
        example = "one state {" + ", ".join(f'"{variable}"' for variable in state) + "}"
        validate_function(
            argument,
            function,
            (dict(state),),
            takes="state",
            call=example,
            differentiated=False,
            one_number=False,
        )
        observables.of_state[name] = function
    return observables


def check_of_sample(
    argument: str, function: object, problem: Problem, arguments: tuple[str, ...] = ()
) -> None:
    """Raise ValueError for a function that is not a JAX function of one sample.

    `arguments` are the arguments of the user's function after the draws.
    """
    takes = problem.argument_names(arguments).replace("noise_draw", "draws")
    validate_function(
        argument,
        function,
        problem.example_arguments(arguments),
        takes=takes,
        call="one sample",
        differentiated=False,
        one_number=False,
    )


@float64
@partial(jax.jit, static_argnums=0)
def _evaluate(function: Callable[..., Any], states: State) -> Array:
    return jax.lax.map(
        lambda state: jnp.asarray(function(state), jnp.float64), states, batch_size=CHUNK
    )


def evaluate_functions(
    functions: Mapping[str, Callable[..., Any]],
    states: Mapping[str, np.ndarray],
    leading_axes: int,
) -> dict[str, np.ndarray]:
    """Values of functions at states with these leading axes; NaN where a state is not finite."""
    if not functions:
        return {}
    shape = next(iter(states.values())).shape[:leading_axes]
    flat = {
        name: np.asarray(value).reshape(-1, *value.shape[leading_axes:])
        for name, value in states.items()
    }
    finite = [np.isfinite(value).reshape(len(value), -1).all(axis=1) for value in flat.values()]
    is_diverged = ~np.all(finite, axis=0)
    values = {}
    for name, function in functions.items():
        value = np.array(_evaluate(function, flat))
        value[is_diverged] = np.nan
        values[name] = value.reshape(*shape, *value.shape[1:])
    return values


def checked_evaluate(evaluate: object) -> Mapping[str, Any]:
    """Validate the argument `evaluate`, other problems by name."""
    if evaluate is None:
        return {}
    if (
        not isinstance(evaluate, Mapping)
        or not evaluate
        or not all(isinstance(name, str) for name in evaluate)
    ):
        raise checks.reject("evaluate", evaluate, 'give problems by name: {"task 1": problem}')
    return evaluate


def label_recorded(
    values: Mapping[str, np.ndarray], evaluated: Iterable[str], error: bool = False
) -> Variables:
    """Recorded values (run, time, ...) as variables of a result, with their coordinates.

    With `error` the values are standard errors.
    """
    variables: Variables = {}
    for name, value in values.items():
        standard = VARIABLES.get(name)
        if standard is None:
            axes = tuple(f"{name}_{axis}" for axis in range(value.ndim - 2))
            meaning = f"{name}, recorded"
        else:
            axes, meaning = standard.axes, standard.meaning
        label = {"long_name": f"{meaning}, standard error" if error else meaning}
        variables[name + (STANDARD_ERROR if error else "")] = (("run", "time", *axes), value, label)
    if "evaluated_risk" in values and not error:
        names = np.array(list(evaluated))
        variables["evaluation"] = (("evaluation",), names, {"long_name": "other problems"})
    return variables
