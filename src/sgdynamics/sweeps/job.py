"""The settings that all points of a sweep share: solver, problem, algorithm, start, arguments."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks, registry
from sgdynamics.base.arrays import Function
from sgdynamics.base.identity import digest, object_identity, plain
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import random_start, start
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.records import (
    algorithm_from,
    contents,
    own_makers,
    problem_from,
    replace_inside,
    start_of,
)

FORMAT = 2  # version of the files of a store
# Arguments of a problem whose defaults follow from others.
FOLLOWS = {
    "teacher_activation": ("activation",),
    "teacher_head": ("teacher_width",),
    "teacher_gram": ("teacher_width", "covariance"),
    "gram": ("signals", "directions", "covariance"),
    "width": ("mixture",),
}
OBJECTS = ("problem", "algorithm", "start")
MAX_CACHED = 1000  # problems and algorithms in memory

Path = tuple[str, ...]  # the place of a parameter, such as ("problem", "noise")


# A problem, an algorithm or an initial condition of a sweep: the object, its record, or None if the
# solver needs none. The initial condition may also be a function of the problem and the parameters.
ProblemArgument = (
    Problem
    | SpikedTensor
    | DeepLinear
    | DiagonalNetwork
    | WideNetwork
    | Dynamics
    | Mapping[str, Any]
    | None
)
AlgorithmArgument = OnePassSGD | FixedData | Workers | Mapping[str, Any] | None
StartArgument = Start | SpikedStart | MeanFieldStart | Mapping[str, Any] | Function | None


class Job:
    """A solver with the values that all points share.

    It is sent to each worker once; a point adds only the parameters that it varies.
    """

    def __init__(
        self,
        solver: str | Function,
        problem: ProblemArgument,
        algorithm: AlgorithmArgument,
        start: StartArgument,
        arguments: Mapping[str, Any],
    ) -> None:
        self.solver = solver
        self.built_in = isinstance(solver, str)
        self._import_path = ""
        solvers = registry.swept_functions()
        if isinstance(solver, str):
            checks.choice("solver", solver, solvers)
            # The import path, because the workers' registry lacks entries added by the user.
            self._import_path = solvers[solver].function
        elif not callable(solver):
            raise checks.reject(
                "solver",
                solver,
                f"this is not a solver. Use one of {', '.join(solvers)}, or a function of the "
                "parameters.",
            )
        self.accepted, self.accepts_any, self.required = _signature(self.function)
        # Options objects are always present, so that points can vary their fields.
        self.arguments = {**_options(self.function), **arguments}
        self.varied: set[Path] = set()
        self._cache: dict[Any, Any] = {}
        objects = {"problem": problem, "algorithm": algorithm, "start": start}
        for name, value in objects.items():
            if self.built_in and value is None and name in self.required:
                raise checks.reject(name, value, f"{solver} needs this argument. Pass {name}=...")
            if value is not None and not self.accepts_any and name not in self.accepted:
                raise checks.reject(
                    name,
                    value,
                    f"the function has no argument {name}. Omit it, or add this argument.",
                )
        self.argument_names = [name for name in self.accepted if name not in (*OBJECTS, "progress")]
        if not self.accepts_any:
            checks.reject_unknown(self.name, self.arguments, self.argument_names)
        starts = (Start, SpikedStart, MeanFieldStart, Mapping)
        if start is not None and not isinstance(start, starts) and not callable(start):
            raise checks.reject(
                "start",
                start,
                "this is not an initial condition. Use the result of sgd.start or "
                "sgd.random_start, a record, or a function.",
            )
        self.start = dict(start) if isinstance(start, Mapping) else start
        self.records = {
            name: dict(value) for name, value in objects.items() if isinstance(value, Mapping)
        }
        self.problem: Any = problem_from(problem) if isinstance(problem, Mapping) else problem
        if problem is not None and not hasattr(self.problem, "kinds"):
            raise checks.reject(
                "problem",
                problem,
                "this is not a problem. Use sgd.TeacherStudent(...), another problem, or a record "
                "of one.",
            )
        self.algorithm: Any = (
            algorithm_from(algorithm) if isinstance(algorithm, Mapping) else algorithm
        )
        if algorithm is not None and not isinstance(
            self.algorithm, (OnePassSGD, FixedData, Workers)
        ):
            raise checks.reject(
                "algorithm",
                algorithm,
                "this is not an algorithm. Use sgd.OnePassSGD(...), another algorithm, or a record "
                "of one.",
            )

    @property
    def function(self) -> Callable[..., Any]:
        """The function that solves a point."""
        if isinstance(self.solver, str):
            return pkgutil.resolve_name(self._import_path)
        return self.solver

    @property
    def name(self) -> str:
        """The name of the solver."""
        if isinstance(self.solver, str):
            return self.solver
        return getattr(self.solver, "__name__", type(self.solver).__name__)

    def names(self, section: str) -> list[str] | None:
        """The parameters of a section that points may vary; None if there is no restriction."""
        if section == "arguments":
            return None if self.accepts_any else self.argument_names
        if section == "start":
            if callable(self.start):
                return None
            if not isinstance(self.start, dict):
                return []
            default = "overlaps" if {"M", "m"} & set(self.start) else "random"
            is_random = self.start.get("kind", default) == "random"
            parameters = inspect.signature(random_start if is_random else start).parameters
            return [name for name in parameters if name != "problem"]
        return list(contents(getattr(self, section)))

    def why_fixed(self, section: str) -> str:
        """The reason why no parameter of a section can be varied."""
        if section == "start" and self.start is not None:
            return (
                'the start is fixed. Use a record such as {"kind": "random", "seed": 0}, or a '
                "function of (problem, parameters)."
            )
        return f"there is no {section}"

    def option_paths(self) -> dict[str, Path]:
        """Paths of the fields of options objects, such as `method=sgd.DMFT(...)`, by bare name."""
        return {
            field: ("arguments", argument, field)
            for argument in _options(self.function)
            for field in contents(self.arguments[argument])
        }

    def require_path(self, path: Path) -> None:
        """Raise ValueError unless a path into nested parameters exists."""
        value: Any = getattr(self, path[0])
        for step in path[1:]:
            fields = contents(value)
            if step not in fields:
                raise checks.reject(
                    "over",
                    ".".join(path),
                    f"there is no {step!r}: {checks.did_you_mean(step, fields)}choose from "
                    f"{', '.join(fields)}",
                )
            value = fields[step]

    def vary(self, paths: set[Path]) -> None:
        """Declare the parameters that the points vary; the shared values of these are ignored."""
        self.varied = paths
        if ("problem", "teacher_width") in paths and np.all(self.problem.teacher_head == 1.0):
            # The default, a head of ones, adapts to the width.
            self.problem = self.problem.replace(teacher_head=None)
        swept = {path[1] for path in paths if path[0] == "arguments"}
        names = set(self.arguments) | swept
        missing = [name for name in self.required if name not in names and name not in OBJECTS]
        if missing:
            raise checks.reject(
                "arguments",
                sorted(names),
                f"{self.name} needs {', '.join(missing)}. Pass them, or sweep over them.",
            )
        clocks = [
            name
            for name in registry.CLOCKS
            if name in swept or self.arguments.get(name) is not None
        ]
        if self.built_in and "times" in self.accepted and len(clocks) != 1:
            raise ValueError(
                "set exactly one of times=, alpha=, steps= (received "
                f"{', '.join(clocks) or 'none of them'})."
            )

    def describe(self) -> dict[str, Any]:
        """The shared settings as plain values, with functions of the user by their identity."""
        shared: dict[str, Any] = {"solver": plain(self.solver)}
        for name, value in (("problem", self.problem), ("algorithm", self.algorithm)):
            if value is not None:
                kind = value.describe()["kind"]
                shared[name] = {
                    "kind": kind,
                    **self._fixed_values(name, self.records.get(name) or self._record(value)),
                }
                makers = own_makers(value.describe())
                if makers:
                    shared[name]["makers"] = makers
        shared["start"] = (
            self._fixed_values("start", self.start)
            if isinstance(self.start, dict)
            else plain(self.start)
        )
        shared["arguments"] = self._fixed_values("arguments", self.arguments)
        return shared

    def _record(self, value: object) -> Mapping[str, Any]:
        """The record of an object, without defaults that follow from a swept parameter."""
        if not isinstance(value, Problem):
            if type(value).__module__.partition(".")[0] == "sgdynamics":
                return contents(value)
            # A user's dynamics is identified by its class and its fields, or by its state.
            fields = contents(value)
            if not fields:
                return {"object": object_identity(value)}
            return {**fields, "class": plain(type(value))}
        record = {}
        for name, argument in value.describe().items():
            follows = any(("problem", source) in self.varied for source in FOLLOWS.get(name, ()))
            if not follows or argument is None or value.arguments.get(name) is not None:
                record[name] = argument
        return record

    def _fixed_values(self, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a section that are the same at all points."""
        paths = [path[1:] for path in self.varied if path[0] == section]
        excluded = {"kind", "rerunnable"} if section in ("problem", "algorithm") else set()
        excluded |= {path[0] for path in paths if len(path) == 1}
        fixed: Any = plain({name: value for name, value in values.items() if name not in excluded})
        nested = {path: None for path in paths if len(path) > 1 and path[0] in fixed}
        return replace_inside(fixed, nested)

    @property
    def identity(self) -> str:
        """A hash that two sweeps share if they differ only in the values of swept parameters."""
        return digest(
            {
                "format": FORMAT,
                "over": sorted(".".join(path) for path in self.varied),
                **self.describe(),
            }
        )

    def shared_values(self) -> dict[str, Any]:
        """The shared values by bare name, for parameters that depend on them."""
        sections = (
            self.start if isinstance(self.start, dict) else None,
            self.algorithm,
            self.problem,
            self.arguments,
        )
        return {name: value for section in sections for name, value in contents(section).items()}

    def objects_at(self, values: Mapping[Path, Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Problem, algorithm, start and arguments at a point."""
        changes: dict[str, dict[Path, Any]] = {name: {} for name in (*OBJECTS, "arguments")}
        for path, value in values.items():
            changes[path[0]][path[1:]] = value
        problem = self._changed_object("problem", changes["problem"])
        algorithm = self._changed_object("algorithm", changes["algorithm"])
        arguments = replace_inside(self.arguments, changes["arguments"])
        initial = self.start
        if isinstance(initial, dict):
            initial = replace_inside(initial, changes["start"])
            if problem is not None:
                initial = start_of(problem, initial, arguments.get("dimension"))
        elif callable(initial):
            own_values = {path[-1]: value for path, value in values.items()}
            initial = initial(problem, {**self.shared_values(), **own_values})
        return problem, algorithm, initial, arguments

    def _changed_object(self, section: str, changes: dict[Path, Any]) -> Any:
        """The problem or the algorithm at a point.

        They are immutable, and a grid repeats the same few, so they are cached.
        """
        base, key = getattr(self, section), (section, *changes.items())
        try:
            value = self._cache.get(key)
        except TypeError:
            return replace_inside(base, changes)  # a list among the values has no hash
        if value is None:
            value = replace_inside(base, changes)
            if len(self._cache) < MAX_CACHED:
                self._cache[key] = value
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}

    def run(self, values: Mapping[Path, Any]) -> Any:
        """Solve a point."""
        problem, algorithm, initial, arguments = self.objects_at(values)
        objects = {"problem": problem, "algorithm": algorithm, "start": initial}
        if "progress" in self.accepted:
            arguments = {"progress": False, **arguments}
        passed = {name: value for name, value in objects.items() if value is not None}
        return self.function(**passed, **arguments)


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function that are options objects, such as `sgd.DMFT()`."""
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
    """The names that a function accepts, whether it accepts any name, and those it requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True, []
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    required = [parameter.name for parameter in named if parameter.default is parameter.empty]
    return [parameter.name for parameter in named], accepts_any, required
