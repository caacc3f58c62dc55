"""Solving points: one by one, or those that differ only in numbers as one program; a point that fails says so and the rest go on."""

from __future__ import annotations

import warnings
from typing import Any

from sgdynamics.gaussian.moments import by_clusters, sampled
from sgdynamics.problems.problem import Problem
from sgdynamics.sweeps.answers import Row, Stack, checked, row_of, stacked
from sgdynamics.sweeps.batches import caught, exit_lanes, ode_lanes
from sgdynamics.sweeps.points import Point
from sgdynamics.sweeps.shared import Job

TOGETHER = 64  # points of one program: enough to hide the cost of small operations
FEW = 8  # where expectations are sampled every point is real work, and small groups keep all cores busy


def together(job: Job, point: Point) -> int:
    """How many points like this one are solved as one program; 1 where they are solved one by one."""
    if not job.built_in or job.solver not in ("solve_ode", "exit_time"):
        return 1
    try:
        problem, algorithm, _, arguments = job.made(point.values)
        if job.solver == "exit_time" and (arguments.get("method", "ode") != "ode" or callable(arguments.get("criterion"))):
            return 1
        if not isinstance(problem, Problem) or (arguments.get("dimension") is not None and problem.structure.sphere):
            return 1
        # a mixture without noise has a discontinuous drift and a solver of its own
        if by_clusters(problem.structure) and not problem.parameters["eigenvalues"].any():
            return 1
        return FEW if sampled(problem.structure, algorithm.flow) else TOGETHER
    except Exception:
        return 1  # it cannot be made: solving it alone records why


def compute(job: Job, points: list[Point], size: int, swept: list[str]) -> Stack:
    """The answers at these points; `size` is what `together` said of their group."""
    rows = _many(job, points, size, swept) if size > 1 else [_one(job, point, swept) for point in points]
    return stacked([point.name for point in points], rows)


def _one(job: Job, point: Point, swept: list[str]) -> Row:
    """One point by itself, with its warnings; or its error as text."""
    with caught, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            row = checked(row_of(job.run(point.values)), swept)
        except Exception as error:
            return Row(failed=_message(error))
    row.warning = "; ".join(dict.fromkeys(str(one.message) for one in heard))
    return row


def _message(error: Exception) -> str:
    """The error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _many(job: Job, points: list[Point], size: int, swept: list[str]) -> list[Row]:
    """Points as lanes of one program; those that it does not take, and all of them if it fails, one by one, where errors are told."""
    made: dict[int, Any] = {}
    for place, point in enumerate(points):
        try:
            made[place] = job.made(point.values)
        except Exception:
            continue
    try:
        found = (ode_lanes if job.solver == "solve_ode" else exit_lanes)(made, size)
    except Exception:
        found = {}
    return [checked(found[place], swept) if place in found else _one(job, point, swept) for place, point in enumerate(points)]
