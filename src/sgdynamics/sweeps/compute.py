"""Solving points: one by one, or those that differ only in numbers as one program; a point that fails says so and the rest go on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from sgdynamics.analysis.exit_times import finish_exits, prepare_exits, warn_if_no_growth
from sgdynamics.base.arrays import Function
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.ode.integrate import by_program, or_raise, run_cases
from sgdynamics.results.datasets import Parts
from sgdynamics.solvers.batch import solve
from sgdynamics.solvers.ode import finish_ode, prepare_ode
from sgdynamics.sweeps.answers import (
    Answer,
    Stack,
    answer_of,
    checked,
    error_text,
    stacked,
    storable_text,
)
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import Point

TOGETHER = 64  # points of one program: enough to hide the cost of small operations
FEW = 8  # where expectations are sampled every point is real work, and small groups keep all cores busy

caught = threading.RLock()  # warnings are caught process-wide: by one thread at a time


def together(job: Job, point: Point) -> int:
    """How many points like this one are solved as one program; 1 where they are solved one by one."""
    if not job.built_in or job.solver not in ("solve_ode", "exit_time"):
        return 1
    try:
        problem, algorithm, _, arguments = job.made(point.values)
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
    return FEW if expectation_of(problem.structure).sampled(algorithm.flow) else TOGETHER


def compute(job: Job, points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    """The answers at these points, in as few stacks as their layouts allow; `size` is what `together` returned for their group."""
    answers: dict[int, Answer] = {}

    def attempt(place: int, function: Callable[[], Any]) -> Any:
        """What a step of this point gives, or None where it fails: then the point has its error as text; its warnings are kept."""
        own = answers.setdefault(place, Answer())
        with caught, warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                return function()
            except KeyboardInterrupt:
                raise
            except (
                BaseException
            ) as error:  # SystemExit too: sys.exit in a point ends that point, and no worker
                own.failed = error_text(error)
                return None
            finally:
                texts = [*filter(None, [own.warning]), *(_message(one.message) for one in heard)]
                own.warning = "; ".join(dict.fromkeys(texts))

    def answer(place: int, function: Callable[[], Any]) -> None:
        found = attempt(place, lambda: checked(answer_of(function()), swept))
        if found is not None:
            found.warning = answers[place].warning
            answers[place] = found

    if size == 1:
        for place, point in enumerate(points):
            answer(place, lambda point=point: job.run(point.values))
    else:
        way = _odes if job.solver == "solve_ode" else _exits
        try:
            way({place: point for place, point in enumerate(points)}, job, size, attempt, answer)
        except Exception:  # of the whole group: each point by itself shows whose it is
            answers.clear()
            for place, point in enumerate(points):
                answer(place, lambda point=point: job.run(point.values))
    return stacked(
        [point.name for point in points], [answers[place] for place in range(len(points))]
    )


def _message(warning: object) -> str:
    try:
        return storable_text(warning)
    except Exception:
        return f"{type(warning).__name__}, whose message cannot be shown"


@float64
def _odes(
    points: dict[int, Point], job: Job, size: int, attempt: Function, answer: Function
) -> None:
    """solve_ode at each point: prepared each, run together, finished each. Starts are checked once for all problems that they fit alike."""
    doors = {
        place: attempt(place, lambda point=point: _asked(prepare_ode, job, point))
        for place, point in points.items()
    }
    good = {place: door for place, door in doors.items() if door is not None}
    for place, path in zip(
        good, solve([prepared for _, prepared in good.values()], size), strict=True
    ):
        answer(
            place, lambda place=place, path=path: finish_ode(good[place][0], or_raise(path), Parts)
        )


@float64
def _exits(
    points: dict[int, Point], job: Job, size: int, attempt: Function, answer: Function
) -> None:
    """exit_time by the ODE at each point, likewise."""
    asked = {
        place: attempt(place, lambda point=point: _asked(prepare_exits, job, point))
        for place, point in points.items()
    }
    cases = {
        place: one.case() for place, one in asked.items() if one is not None and not one.away.all()
    }
    found: dict[int, Any] = {}
    for names in by_program(cases, size):
        found |= dict(zip(names, run_cases([cases[name] for name in names], size), strict=True))

    def finished(place: int) -> Any:
        times = finish_exits(asked[place], or_raise(found.get(place)))
        if times.left < times.runs:
            warn_if_no_growth(asked[place])
        return times

    for place, one in asked.items():
        if one is not None:
            answer(place, partial(finished, place))


def _asked(prepare: Callable[..., Any], job: Job, point: Point) -> Any:
    problem, algorithm, begin, arguments = job.made(point.values)
    return prepare(problem, algorithm, begin, **arguments)
