"""What one wants to know of a run beside its overlaps: functions of the state, means over the data set, risks of other problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems.losses import UserLoss
from sgdynamics.results.variables import STANDARD_ERROR, TAKEN, VARIABLES

CHUNK = 1024  # states at a time, so that what a function makes of them fits into memory
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
        A JAX function of one sample, ``function(fields, signals, head, draws)``, as a loss is; it gives a number or an array.

    Returns
    -------
    OnTrain
        What ``record=`` of ``simulate`` and ``solve_dmft`` takes, with algorithms on a fixed data set.

    Raises
    ------
    ValueError
        If ``function`` cannot be called.

    Examples
    --------
    The mean squared field over the data set, at every save point:

    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> size = sgd.on_train(lambda fields, signals, head, draws: fields[0] ** 2)
    >>> runs = sgd.simulate(problem, algorithm, start, steps=[0, 5], dimension=20, runs=3, record={"size": size})
    >>> runs["size"].dims
    ('run', 'time')
    """
    if not callable(function):
        raise checks.reject("function", function, f"give a JAX function of ({TAKES})")
    return OnTrain(function)


@dataclass(frozen=True)
class Observables:
    """What is recorded, by name: functions of the state, functions of a sample of the data set, and other problems whose risk it is."""

    of_state: dict[str, Callable[..., Any]] = field(default_factory=dict)
    of_sample: dict[str, Callable[..., Any]] = field(default_factory=dict)
    evaluated: dict[str, Any] = field(default_factory=dict)  # name -> what gives its risk

    def losses(self) -> dict[str, UserLoss]:
        """The functions of a sample as losses, whose mean over the data set a simulator knows how to take."""
        return {name: UserLoss(function) for name, function in self.of_sample.items()}


def checked_record(
    record: Any, state: Mapping[str, Any], problem: Any, has_data: bool
) -> Observables:
    """The argument `record`, tried on one state and, where there is a data set, on one sample."""
    if record is None:
        return Observables()
    if not isinstance(record, Mapping):
        raise checks.reject(
            "record", record, 'give functions by name: {"cosine": function_of_state}'
        )
    found = Observables()
    for name, function in record.items():
        if (
            not isinstance(name, str)
            or not name.isidentifier()
            or name in TAKEN
            or name in state
            or name.endswith(STANDARD_ERROR)
        ):
            raise checks.reject(
                "record",
                name,
                "a result has this name already, or it is no plain word: give another one, such as 'cosine'",
            )
        argument = f"record[{name!r}]"
        if isinstance(function, OnTrain):
            if not has_data:
                raise checks.reject(
                    argument,
                    "sgd.on_train(...)",
                    "fresh samples make no data set: give a function of the state",
                )
            found.of_sample[name] = function.function
            check_of_sample(argument, function.function, problem)
            continue
        call = "one state {" + ", ".join(f'"{part}"' for part in state) + "}"
        validate_function(
            argument,
            function,
            (dict(state),),
            takes="state",
            call=call,
            differentiated=False,
            one_number=False,
        )
        found.of_state[name] = function
    return found


def check_of_sample(argument: str, function: Any, problem: Any, more: tuple[str, ...] = ()) -> None:
    """Refuse what is no JAX function of one sample (`problems.losses.asked` says what it takes after the draws)."""
    takes = problem.argument_names(more).replace("noise_draw", "draws")
    validate_function(
        argument,
        function,
        problem.example_arguments(more),
        takes=takes,
        call="one sample",
        differentiated=False,
        one_number=False,
    )


@float64
@partial(jax.jit, static_argnums=0)
def _each(function: Callable[..., Any], states: Any) -> Any:
    return jax.lax.map(
        lambda state: jnp.asarray(function(state), jnp.float64), states, batch_size=CHUNK
    )


def of_states(
    functions: Mapping[str, Callable[..., Any]], states: Mapping[str, np.ndarray], lead: int
) -> dict[str, np.ndarray]:
    """Functions of states with so many leading axes, by name; NaN where a state is not finite."""
    if not functions:
        return {}
    shape = next(iter(states.values())).shape[:lead]
    flat = {
        name: np.asarray(value).reshape(-1, *value.shape[lead:]) for name, value in states.items()
    }
    lost = ~np.all(
        [np.isfinite(value).reshape(len(value), -1).all(axis=1) for value in flat.values()], axis=0
    )
    found = {}
    for name, function in functions.items():
        value = np.array(_each(function, flat))
        value[lost] = np.nan
        found[name] = value.reshape(*shape, *value.shape[1:])
    return found


def checked_evaluate(evaluate: Any) -> Mapping[str, Any]:
    """The argument `evaluate`: other problems, by name."""
    if evaluate is None:
        return {}
    if (
        not isinstance(evaluate, Mapping)
        or not evaluate
        or not all(isinstance(name, str) for name in evaluate)
    ):
        raise checks.reject("evaluate", evaluate, 'give problems by name: {"task 1": problem}')
    return evaluate


def labelled(
    values: Mapping[str, np.ndarray], evaluated: Iterable[str], error: bool = False
) -> Variables:
    """What was recorded, (run, time, ...), as variables of a result, and their coordinates; or its standard errors."""
    found: Variables = {}
    for name, value in values.items():
        known = VARIABLES.get(name)
        axes = (
            tuple(f"{name}_{axis}" for axis in range(value.ndim - 2))
            if known is None
            else known.axes
        )
        meaning = f"{name}, recorded" if known is None else known.meaning
        said = {"long_name": f"{meaning}, standard error" if error else meaning}
        found[name + (STANDARD_ERROR if error else "")] = (("run", "time", *axes), value, said)
    if "evaluated_risk" in values and not error:
        found["evaluation"] = (
            ("evaluation",),
            np.array(list(evaluated)),
            {"long_name": "other problems"},
        )
    return found
