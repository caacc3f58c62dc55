"""A small call of every question in the registry, for any problem, algorithm and start."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

import sgdynamics as sgd
from sgdynamics.base.registry import Question
from sgdynamics.statics.registry import ENTRIES

STATICS = {entry.name for entry in ENTRIES}
# Labels -1 and +1 given one signal, which the statics read instead of the student.
SIGNS = sgd.labels.outcomes(
    [-1.0, 1.0], lambda z: jnp.array([jax.nn.sigmoid(-z[0]), jax.nn.sigmoid(z[0])])
)


def call(question: Question, problem: Any, algorithm: Any, start: Any) -> Any:
    """Call a question with the example of its entry, adapted to the algorithm and the problem."""
    if question.name == "functional":  # a module: its functions share one choice of quadrature
        return sgd.functional.quadrature(problem, start)
    return question.load()(**small_arguments(question, problem, algorithm, start))


def small_arguments(question: Question, problem: Any, algorithm: Any, start: Any) -> dict[str, Any]:
    """The arguments of a small call.

    Where a method, an update or the labels decide whether a question has an answer, those that do
    are used.
    """
    arguments = dict(question.example)
    if question.name == "solve_linear" and isinstance(problem, sgd.TeacherStudent):
        problem = problem.replace(activation="linear")
    if question.name == "max_margin" and isinstance(problem, sgd.TeacherStudent):
        problem = problem.replace(activation="linear", labels=sgd.labels.sign(), noise=0.0)
    if question.name in STATICS and "top" in problem.kinds:
        problem = problem.replace(likelihood=SIGNS)
    if question.name in ("optimal_protocol", "optimal_schedule"):
        algorithm = _differentiable(algorithm)
    if question.name == "simulate":
        arguments["method"] = _simulation_method(algorithm)
    if question.name == "exit_time by runs":
        on_data = {"fixed data", "epochs"} & set(algorithm.kinds)
        arguments["method"] = "direct" if on_data else _simulation_method(algorithm)
    if question.name == "sweep" and algorithm.kinds == ("other batch",):
        arguments["solver"] = "solve_ode"  # runs need an integer batch size
    elif question.name == "sweep":
        arguments["method"] = _simulation_method(algorithm)
    objects = {"problem": problem, "algorithm": algorithm, "start": start}
    if question.name == "expect":
        objects["result"] = start
    accepted = inspect.signature(question.load()).parameters
    return {name: value for name, value in objects.items() if name in accepted} | arguments


def all_arguments(question: Question, problem: Any, algorithm: Any, start: Any) -> dict[str, Any]:
    """The arguments of a small call, and the defaults of all others."""
    parameters = inspect.signature(question.load()).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    return defaults | small_arguments(question, problem, algorithm, start)


def _simulation_method(algorithm: Any) -> str:
    """A coordinatewise update has no exact chain."""
    coordinatewise = {"coordinatewise update", "coordinatewise update on data"}
    return "direct" if coordinatewise & set(algorithm.kinds) else "exact"


def _differentiable(algorithm: Any) -> Any:
    """An algorithm of the same kinds whose update has a gradient."""
    if "coordinatewise update" in algorithm.kinds:
        return algorithm.replace(update=sgd.updates.adam(memory=1.0))
    if "other update" in algorithm.kinds:
        return algorithm.replace(update=sgd.updates.momentum(0.5))
    return algorithm
