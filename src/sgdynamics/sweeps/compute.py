"""Solution of points: one by one, or several that differ only in numbers by one program.

A point that fails records its error, and the others continue.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sgdynamics.analysis.exit_requests import ExitRequest, prepare_exits
from sgdynamics.analysis.exit_results import ExitTimes
from sgdynamics.analysis.exit_times import finish_exits
from sgdynamics.analysis.plateau_growth import warn_if_no_growth
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.requests import Solution
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.ode.case import IntegrationResult, raise_if_error
from sgdynamics.ode.integrate import group_by_program, run_cases
from sgdynamics.results.datasets import ResultParts
from sgdynamics.solvers.batch import solve
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.ode import finish_ode, prepare_ode
from sgdynamics.sweeps.answers import (
    Answer,
    Stack,
    answer_of,
    check_names,
    error_text,
    stack_answers,
    storable_text,
)
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import Point

BATCH_SIZE = 64  # points of one program: enough to hide the cost of small operations
# With sampled expectations each point is real work, and small groups keep all cores busy.
SAMPLED_BATCH_SIZE = 8

# Warnings are recorded for the whole process, so one thread at a time records them.
recording_warnings = threading.RLock()


def batch_size(job: Job, point: Point) -> int:
    """The number of points like this one that one program solves; 1 if they are solved alone."""
    if not job.built_in or job.solver not in ("solve_ode", "exit_time"):
        return 1
    try:
        problem, algorithm, _, arguments = job.objects_at(point.values)
        dynamics = dynamics_of("sweep", problem, algorithm)
    except Exception:
        return 1  # The point is invalid: solved alone, it records its error.
    if job.solver == "exit_time" and (
        arguments.get("method", "ode") != "ode" or callable(arguments.get("criterion"))
    ):
        return 1
    # Only plain SGD on fields has an integrator that takes several points. On the sphere at finite
    # d it already takes the replicates of one point.
    is_plain = type(dynamics) is FieldDynamics and not algorithm.kinds
    if not is_plain or (
        arguments.get("dimension") is not None and problem.structure.constraint.fixes_norms
    ):
        return 1
    is_sampled = expectation_of(problem.structure).sampled(algorithm.flow)
    return SAMPLED_BATCH_SIZE if is_sampled else BATCH_SIZE


Outcome = TypeVar("Outcome")


class _Answers:
    """The answers at the points of a group, by their index; a failure becomes text."""

    def __init__(self, swept: list[str]) -> None:
        self.swept = swept
        self.by_index: dict[int, Answer] = {}

    def attempt(self, index: int, function: Callable[[], Outcome]) -> Outcome | None:
        """Call a function for a point; record its warnings, and return None if it fails."""
        answer = self.by_index.setdefault(index, Answer())
        with recording_warnings, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return function()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # SystemExit too: sys.exit in a point ends that point and not the worker.
                answer.failed = error_text(error)
                return None
            finally:
                texts = [*filter(None, [answer.warning])]
                texts += [_message(warning.message) for warning in caught]
                answer.warning = "; ".join(dict.fromkeys(texts))

    def record(self, index: int, function: Callable[[], Any]) -> None:
        """Record what a function returns as the answer at a point."""
        answer = self.attempt(index, lambda: check_names(answer_of(function()), self.swept))
        if answer is not None:
            answer.warning = self.by_index[index].warning
            self.by_index[index] = answer


def compute(job: Job, points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    """The answers at some points, in as few stacks as their layouts allow.

    `size` is the batch size of their group.
    """
    answers = _Answers(swept)

    def solve_alone() -> None:
        for index, point in enumerate(points):
            answers.record(index, lambda point=point: job.run(point.values))

    if size == 1:
        solve_alone()
    else:
        solve_together = _solve_odes if job.solver == "solve_ode" else _solve_exits
        try:
            solve_together(points, job, size, answers)
        except Exception:
            # The error is that of a whole group: solved alone, each point shows its own.
            answers = _Answers(swept)
            solve_alone()
    ordered = [answers.by_index[index] for index in range(len(points))]
    return stack_answers([point.name for point in points], ordered)


def _message(warning: object) -> str:
    try:
        return storable_text(warning)
    except Exception:
        return f"{type(warning).__name__}, whose message cannot be shown"


@float64
def _solve_odes(points: list[Point], job: Job, size: int, answers: _Answers) -> None:
    """Solve the ODE at several points: prepare each, integrate together, finish each."""
    prepared = {
        index: answers.attempt(index, lambda point=point: _prepare(prepare_ode, job, point))
        for index, point in enumerate(points)
    }
    valid = {index: pair for index, pair in prepared.items() if pair is not None}
    solutions = solve([request for _, request in valid.values()], size)
    for (index, (call, _)), solution in zip(valid.items(), solutions, strict=True):
        answers.record(index, partial(_finish_ode, call, solution))


def _finish_ode(call: SolverCall, solution: Solution | ValueError) -> ResultParts:
    return finish_ode(call, raise_if_error(solution), ResultParts)


@float64
def _solve_exits(points: list[Point], job: Job, size: int, answers: _Answers) -> None:
    """Compute exit times by the ODE at several points, likewise."""
    prepared = {
        index: answers.attempt(index, lambda point=point: _prepare(prepare_exits, job, point))
        for index, point in enumerate(points)
    }
    valid = {index: request for index, request in prepared.items() if request is not None}
    # Points whose runs have all left at the start need no integration.
    cases = {index: request.ode_case() for index, request in valid.items() if not request.all_left}
    solutions: dict[int, Any] = {}
    for indices in group_by_program(cases, size):
        outcomes = run_cases([cases[index] for index in indices], size)
        solutions |= dict(zip(indices, outcomes, strict=True))
    for index, request in valid.items():
        answers.record(index, partial(_finish_exits, request, solutions.get(index)))


def _finish_exits(
    request: ExitRequest, solution: IntegrationResult | ValueError | None
) -> ExitTimes:
    times = finish_exits(request, raise_if_error(solution))
    if times.left < times.runs:
        warn_if_no_growth(request)
    return times


def _prepare(prepare: Callable[..., Outcome], job: Job, point: Point) -> Outcome:
    problem, algorithm, initial, arguments = job.objects_at(point.values)
    return prepare(problem, algorithm, initial, **arguments)
