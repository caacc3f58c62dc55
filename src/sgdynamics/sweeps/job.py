"""What all points of a sweep share: the solver, and the problem, algorithm, start and arguments that the points vary."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks, registry
from sgdynamics.base.identity import digest, object_identity, plain
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart
from sgdynamics.problems.starts import random_start, start
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.records import (
    algorithm_from,
    changed,
    contents,
    own_makers,
    problem_from,
    start_of,
)

FORMAT = 2  # of a store
# arguments of a problem that, left out, follow from others
FOLLOWS = {
    "teacher_activation": ("activation",),
    "teacher_head": ("teacher_width",),
    "teacher_gram": ("teacher_width", "covariance"),
    "gram": ("signals", "directions", "covariance"),
    "width": ("mixture",),
}
OBJECTS = ("problem", "algorithm", "start")
MOST_KEPT = 1000  # problems and algorithms in memory
WHEN = ("times", "alpha", "steps")


class Job:
    """A solver with its base values. It travels to the workers once; a point adds only what it varies."""

    def __init__(
        self, solver: Any, problem: Any, algorithm: Any, start: Any, arguments: Mapping[str, Any]
    ) -> None:
        self.solver = solver
        self.built_in = isinstance(solver, str)
        self._path = ""
        solvers = registry.swept_functions()
        if isinstance(solver, str):
            checks.choice("solver", solver, solvers)
            # The import path, because the workers' registry lacks entries added by the user.
            self._path = solvers[solver].function
        elif not callable(solver):
            raise checks.reject(
                "solver",
                solver,
                f"this is not a solver. Use one of {', '.join(solvers)}, or a function of the "
                "parameters.",
            )
        self.takes, self.anything, self.needs = _signature(self.function)
        # options objects are always present, so that points can vary a field of them
        self.arguments = {**_options(self.function), **arguments}
        self.varied: set[tuple[str, ...]] = set()
        self._made: dict[Any, Any] = {}
        given = {"problem": problem, "algorithm": algorithm, "start": start}
        for name, value in given.items():
            if self.built_in and value is None and name in self.needs:
                raise checks.reject(name, value, f"{solver} needs this argument. Pass {name}=...")
            if value is not None and not self.anything and name not in self.takes:
                raise checks.reject(
                    name,
                    value,
                    f"the function does not take {name}: leave it out, or let it take {name}",
                )
        self.own = [name for name in self.takes if name not in (*OBJECTS, "progress")]
        if not self.anything:
            checks.reject_unknown(self.name, self.arguments, self.own)
        if (
            start is not None
            and not isinstance(start, (Start, SpikedStart, MeanFieldStart, Mapping))
            and not callable(start)
        ):
            raise checks.reject(
                "start",
                start,
                "give what sgd.start or sgd.random_start returns, a record, or a function",
            )
        self.start = dict(start) if isinstance(start, Mapping) else start
        self.records = {
            name: dict(value) for name, value in given.items() if isinstance(value, Mapping)
        }
        self.problem: Any = problem_from(problem) if isinstance(problem, Mapping) else problem
        if problem is not None and not hasattr(self.problem, "kinds"):
            raise checks.reject(
                "problem",
                problem,
                "give sgd.TeacherStudent(...), another problem of the library, or a record of one",
            )
        self.algorithm: Any = (
            algorithm_from(algorithm) if isinstance(algorithm, Mapping) else algorithm
        )
        if algorithm is not None and not isinstance(self.algorithm, (OnePassSGD, FixedData)):
            raise checks.reject(
                "algorithm",
                algorithm,
                "give sgd.OnePassSGD(...), another algorithm of the library, or a record of one",
            )

    @property
    def function(self) -> Callable[..., Any]:
        return pkgutil.resolve_name(self._path) if self.built_in else self.solver

    @property
    def name(self) -> str:
        return (
            self.solver
            if self.built_in
            else getattr(self.solver, "__name__", type(self.solver).__name__)
        )

    def names(self, section: str) -> list[str] | None:
        """What may be varied in a section; None where anything may."""
        if section == "arguments":
            return None if self.anything else self.own
        if section == "start":
            if callable(self.start):
                return None
            if not isinstance(self.start, dict):
                return []
            random = (
                self.start.get("kind", "overlaps" if {"M", "m"} & set(self.start) else "random")
                == "random"
            )
            return [
                name
                for name in inspect.signature(random_start if random else start).parameters
                if name != "problem"
            ]
        return list(contents(getattr(self, section)))

    def closed(self, section: str) -> str:
        if section == "start" and self.start is not None:
            return 'the start is fixed: give it as a record such as {"kind": "random", "seed": 0}, or as a function of (problem, parameters)'
        return f"there is no {section}"

    def option_paths(self) -> dict[str, tuple[str, ...]]:
        """Paths of the fields of options objects, such as `method=sgd.DMFT(...)`, by bare name."""
        return {
            field: ("arguments", argument, field)
            for argument in _options(self.function)
            for field in contents(self.arguments[argument])
        }

    def inner(self, path: tuple[str, ...]) -> None:
        """Refuse a path into a dictionary of numbers that is not there."""
        place: Any = getattr(self, path[0])
        for step in path[1:]:
            known = contents(place)
            if step not in known:
                raise checks.reject(
                    "over",
                    ".".join(path),
                    f"there is no {step!r}: {checks.did_you_mean(step, known)}{', '.join(known)}",
                )
            place = known[step]

    def vary(self, paths: set[tuple[str, ...]]) -> None:
        """Say which parameters the points give: what the base has for them does not count."""
        self.varied = paths
        if ("problem", "teacher_width") in paths and np.all(self.problem.teacher_head == 1.0):
            self.problem = self.problem.replace(teacher_head=None)  # ones, as many as there are
        swept = {path[1] for path in paths if path[0] == "arguments"}
        given = set(self.arguments) | swept
        missing = [name for name in self.needs if name not in given and name not in OBJECTS]
        if missing:
            raise checks.reject(
                "arguments",
                sorted(given),
                f"{self.name} needs {', '.join(missing)}: give them, or sweep over them",
            )
        when = [
            name
            for name in WHEN
            if name in given and (name in swept or self.arguments.get(name) is not None)
        ]
        if self.built_in and "times" in self.takes and len(when) != 1:
            raise ValueError(
                f"give exactly one of times=, alpha=, steps= (received {', '.join(when) or 'none of them'})"
            )

    def describe(self) -> dict[str, Any]:
        """What the points share, as plain values; functions of the user by their identity."""
        shared: dict[str, Any] = {"solver": plain(self.solver)}
        for name, value in (("problem", self.problem), ("algorithm", self.algorithm)):
            if value is not None:
                kind = value.describe()["kind"]
                shared[name] = {
                    "kind": kind,
                    **self._fixed(name, self.records.get(name) or self._stated(value)),
                }
                makers = own_makers(value.describe())
                if makers:
                    shared[name]["makers"] = makers
        shared["start"] = (
            self._fixed("start", self.start) if isinstance(self.start, dict) else plain(self.start)
        )
        shared["arguments"] = self._fixed("arguments", self.arguments)
        return shared

    def _stated(self, value: object) -> Mapping[str, Any]:
        """The record of an object without the entries that follow from a swept parameter because they were not set."""
        if not isinstance(value, Problem):
            if type(value).__module__.partition(".")[0] == "sgdynamics":
                return contents(value)
            # dynamics of the user: the class counts, and so does the state where it is not in fields
            fields = contents(value)
            return (
                {**fields, "class": plain(type(value))}
                if fields
                else {"object": object_identity(value)}
            )
        record = {}
        for name, part in value.describe().items():
            follows = any(("problem", lead) in self.varied for lead in FOLLOWS.get(name, ()))
            if not follows or part is None or value.arguments.get(name) is not None:
                record[name] = part
        return record

    def _fixed(self, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
        inside = [path[1:] for path in self.varied if path[0] == section]
        left_out = {"kind", "rerunnable"} if section in ("problem", "algorithm") else set()
        left_out |= {path[0] for path in inside if len(path) == 1}
        kept = plain({name: value for name, value in values.items() if name not in left_out})
        return changed(kept, {path: None for path in inside if len(path) > 1 and path[0] in kept})

    @property
    def identity(self) -> str:
        """The same for two sweeps of the same thing over the same parameters, whatever their values."""
        return digest(
            {
                "format": FORMAT,
                "over": sorted(".".join(path) for path in self.varied),
                **self.describe(),
            }
        )

    def known(self) -> dict[str, Any]:
        """Fixed values by bare name, for parameters that depend on them."""
        sections = (
            self.start if isinstance(self.start, dict) else None,
            self.algorithm,
            self.problem,
            self.arguments,
        )
        return {name: value for section in sections for name, value in contents(section).items()}

    def made(self, values: Mapping[tuple[str, ...], Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Problem, algorithm, start and arguments at a point."""
        changes: dict[str, dict[tuple[str, ...], Any]] = {
            "problem": {},
            "algorithm": {},
            "start": {},
            "arguments": {},
        }
        for path, value in values.items():
            changes[path[0]][path[1:]] = value
        problem, algorithm = (self._kept(name, changes[name]) for name in ("problem", "algorithm"))
        arguments = changed(self.arguments, changes["arguments"])
        begin = self.start
        if isinstance(begin, dict):
            begin = changed(begin, changes["start"])
            begin = (
                begin if problem is None else start_of(problem, begin, arguments.get("dimension"))
            )
        elif callable(begin):
            begin = begin(
                problem, {**self.known(), **{path[-1]: value for path, value in values.items()}}
            )
        return problem, algorithm, begin, arguments

    def _kept(self, section: str, changes: dict[tuple[str, ...], Any]) -> Any:
        """Problems and algorithms never change, and grids ask for the same few again and again."""
        base, key = getattr(self, section), (section, *changes.items())
        try:
            found = self._made.get(key)
        except TypeError:
            return changed(base, changes)  # a list among the values
        if found is None:
            found = changed(base, changes)
            if len(self._made) < MOST_KEPT:
                self._made[key] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def run(self, values: Mapping[tuple[str, ...], Any]) -> Any:
        """The solver's answer at a point."""
        problem, algorithm, begin, arguments = self.made(values)
        given = {"problem": problem, "algorithm": algorithm, "start": begin}
        quiet = (
            {"progress": False} if "progress" in self.takes and "progress" not in arguments else {}
        )
        return self.function(
            **{name: value for name, value in given.items() if value is not None},
            **arguments,
            **quiet,
        )


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """Default values of a function's arguments that are options objects: they describe themselves."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if hasattr(parameter.default, "describe") and hasattr(parameter.default, "replace")
    }


def _signature(function: Callable[..., Any]) -> tuple[list[str], bool, list[str]]:
    """The names a function takes, whether it takes any name, and those it needs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True, []
    named = [
        part for part in parameters if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)
    ]
    anything = any(part.kind is part.VAR_KEYWORD for part in parameters)
    return (
        [part.name for part in named],
        anything,
        [part.name for part in named if part.default is part.empty],
    )
