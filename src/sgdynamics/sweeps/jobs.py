"""What all points of a sweep share: the solver, and the problem, algorithm, start and arguments that the points vary."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from sgdynamics import checks
from sgdynamics.analysis.exit_times import exit_time
from sgdynamics.limits.mean_field import solve_mean_field
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start, random_start, start
from sgdynamics.problems.teacher_student import MultiIndex
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.records import KINDS, PROBLEMS, algorithm_from, start_of
from sgdynamics.solvers.dmft import solve_dmft
from sgdynamics.solvers.ode import solve_ode
from sgdynamics.solvers.sde import solve_sde
from sgdynamics.solvers.simulate import simulate
from sgdynamics.sweeps.identity import digest, plain

FORMAT = 1  # of a store
SOLVERS: dict[str, Callable[..., Any]] = {
    "solve_ode": solve_ode,
    "solve_sde": solve_sde,
    "solve_mean_field": solve_mean_field,
    "solve_dmft": solve_dmft,
    "simulate": simulate,
    "exit_time": exit_time,
}
MAKERS: dict[str, Callable[..., Any]] = {**PROBLEMS, "MultiIndex": MultiIndex, "Problem": Problem}
OBJECTS = ("problem", "algorithm", "start")
MOST_KEPT = 1000  # problems and algorithms in memory
WHEN = ("times", "alpha", "steps")


class Job:
    """A solver with its base values. It travels to the workers once; a point adds only what it varies."""

    def __init__(self, solver: Any, problem: Any, algorithm: Any, start: Any, arguments: Mapping[str, Any]) -> None:
        self.solver = solver
        self.built_in = isinstance(solver, str)
        if isinstance(solver, str):
            checks.choice("solver", solver, SOLVERS)
        elif not callable(solver):
            raise checks.reject("solver", solver, f"give one of {', '.join(SOLVERS)}, or a function of the parameters")
        self.takes, self.anything, self.needs = _signature(self.function)
        self.arguments = dict(arguments)
        self.varied: set[tuple[str, ...]] = set()
        self._made: dict[Any, Any] = {}
        given = {"problem": problem, "algorithm": algorithm, "start": start}
        for name, value in given.items():
            if self.built_in and value is None:
                raise checks.reject(name, value, f"{solver} needs a {name}: give one")
            if value is not None and not self.anything and name not in self.takes:
                raise checks.reject(name, value, f"the function does not take {name}: leave it out, or let it take {name}")
        known = [name for name in self.takes if name not in (*OBJECTS, "progress")]
        for name in self.arguments:
            if not self.anything and name not in known:
                close = checks.did_you_mean(name, known)
                raise checks.reject(name, self.arguments[name], f"{self.name} has no such argument: {close}it takes {', '.join(known)}")
        self.kinds: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        for name, value in (("problem", problem), ("algorithm", algorithm)):
            if value is not None:
                self.kinds[name], self.values[name] = _problem_values(value) if name == "problem" else _algorithm_values(value)
        if start is not None and not isinstance(start, (Start, SpikedStart, MeanFieldStart, Mapping)) and not callable(start):
            raise checks.reject("start", start, "give what sgd.start or sgd.random_start returns, a record, or a function")
        self.start = dict(start) if isinstance(start, Mapping) else start
        self.record = not isinstance(problem, (Problem, SpikedTensor))

    @property
    def function(self) -> Callable[..., Any]:
        return SOLVERS[self.solver] if self.built_in else self.solver

    @property
    def name(self) -> str:
        return self.solver if self.built_in else getattr(self.solver, "__name__", type(self.solver).__name__)

    def names(self, section: str) -> list[str] | None:
        """What may be varied in a section; None where anything may."""
        if section == "arguments":
            return None if self.anything else [name for name in self.takes if name not in (*OBJECTS, "progress")]
        if section == "start":
            if callable(self.start):
                return None
            if not isinstance(self.start, dict):
                return []
            random = self.start.get("kind", "overlaps" if {"M", "m"} & set(self.start) else "random") == "random"
            return [name for name in inspect.signature(random_start if random else start).parameters if name != "problem"]
        if section not in self.values:
            return []
        maker = {**MAKERS, **KINDS}[self.kinds[section]]
        return [name for name in inspect.signature(maker).parameters if name != "self"]

    def closed(self, section: str) -> str:
        if section == "start" and self.start is not None:
            return (
                'the start is fixed: give it as a record such as {"kind": "random", "seed": 0}, or as a function of (problem, parameters)'
            )
        return f"there is no {section}"

    def inner(self, path: tuple[str, ...]) -> None:
        """Refuse a path into a dictionary of numbers that is not there."""
        place: Any = self.values.get(path[0], {}) if path[0] != "start" else self.start
        for step in path[1:]:
            if hasattr(place, "describe"):
                place = place.describe()
            if not isinstance(place, Mapping) or step not in place:
                known = list(place) if isinstance(place, Mapping) else []
                raise checks.reject("over", ".".join(path), f"there is no {step!r}: {checks.did_you_mean(step, known)}{', '.join(known)}")
            place = place[step]

    def vary(self, paths: set[tuple[str, ...]]) -> None:
        """Say which parameters the points give: what the base has for them does not count."""
        self.varied = paths
        first = {path[:2] for path in paths}
        for name in ("algorithm", "problem"):
            values = self.values.get(name, {})
            for path in paths:
                if path[0] == name and len(path) > 2 and hasattr(values[path[1]], "describe"):
                    values[path[1]] = values[path[1]].describe()
        values = self.values.get("problem", {})
        if self.kinds.get("problem") == "TeacherStudent" and not self.record:
            if ("problem", "teacher_width") in first and not np.any(np.asarray(values["teacher_head"]) - 1.0):
                del values["teacher_head"]  # ones, as many as there are
            follows = plain(values["activation"]) == plain(values["teacher_activation"])
            if ("problem", "activation") in first and ("problem", "teacher_activation") not in first and follows:
                raise checks.reject(
                    "over",
                    "activation",
                    "the teacher has the student's activation, and it is not clear whether it should follow: sweep teacher_activation too "
                    '(lambda activation: activation), or give the problem as a record {"kind": "TeacherStudent", ...}',
                )
        given = set(self.arguments) | {path[1] for path in paths if path[0] == "arguments"}
        missing = [name for name in self.needs if name not in given and name not in OBJECTS]
        if missing:
            raise checks.reject("arguments", sorted(given), f"{self.name} needs {', '.join(missing)}: give them, or sweep over them")
        when = [name for name in WHEN if name in given and (name in path_names(paths) or self.arguments.get(name) is not None)]
        if self.built_in and "times" in self.takes and len(when) != 1:
            raise ValueError(f"give exactly one of times=, alpha=, steps= (received {', '.join(when) or 'none of them'})")

    def describe(self) -> dict[str, Any]:
        """What the points share, as plain values: user's functions by name and source hash."""
        shared: dict[str, Any] = {"solver": self.solver}
        for name in ("problem", "algorithm"):
            if name in self.values:
                shared[name] = {"kind": self.kinds[name], **self._fixed(name, self.values[name])}
        shared["start"] = self._fixed("start", self.start) if isinstance(self.start, dict) else self.start
        shared["arguments"] = self._fixed("arguments", self.arguments)
        return plain(shared)

    def _fixed(self, section: str, values: dict[str, Any]) -> dict[str, Any]:
        kept = copy.copy(values)
        for path in self.varied:
            if path[0] != section:
                continue
            if len(path) == 2:
                kept.pop(path[1], None)
            elif path[1] in kept:
                kept = _changed(kept, path[1:], None)
        return kept

    @property
    def identity(self) -> str:
        """The same for two sweeps of the same thing over the same parameters, whatever their values."""
        return digest({"format": FORMAT, "over": sorted(".".join(path) for path in self.varied), **self.describe()})

    def known(self) -> dict[str, Any]:
        """Fixed values by bare name, for parameters that depend on them."""
        found: dict[str, Any] = dict(self.arguments)
        for section in (self.values.get("problem"), self.values.get("algorithm"), self.start):
            if isinstance(section, dict):
                found = {**section, **found}
        return found

    def made(self, values: Mapping[tuple[str, ...], Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Problem, algorithm, start and arguments at a point."""
        parts: dict[str, Any] = {"arguments": self.arguments, **self.values}
        if isinstance(self.start, dict):
            parts["start"] = self.start
        parameters = {}
        for path, value in values.items():
            parameters[path[-1]] = value
            if path[0] in parts:
                parts[path[0]] = _changed(parts[path[0]], path[1:], value)
        arguments = parts["arguments"]
        problem, algorithm = None, None
        if "problem" in parts:
            problem = self._kept("problem", values, lambda: MAKERS[self.kinds["problem"]](**parts["problem"]))
        if "algorithm" in parts:
            record = {"kind": self.kinds["algorithm"], **parts["algorithm"]}
            algorithm = self._kept("algorithm", values, lambda: algorithm_from(record))
        begin = self.start
        if isinstance(begin, dict):
            begin = start_of(problem, parts["start"], arguments.get("dimension")) if problem is not None else parts["start"]
        elif callable(begin):
            begin = begin(problem, {**self.known(), **parameters})
        return problem, algorithm, begin, arguments

    def _kept(self, section: str, values: Mapping[tuple[str, ...], Any], make: Callable[[], Any]) -> Any:
        """Problems and algorithms never change, and grids ask for the same few again and again."""
        key = (section, *(pair for pair in values.items() if pair[0][0] == section))
        try:
            found = self._made.get(key)
        except TypeError:
            return make()  # a list among the values
        if found is None:
            found = make()
            if len(self._made) < MOST_KEPT:
                self._made[key] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def run(self, values: Mapping[tuple[str, ...], Any]) -> Any:
        """The solver's answer at a point."""
        problem, algorithm, begin, arguments = self.made(values)
        given = {"problem": problem, "algorithm": algorithm, "start": begin}
        quiet = {"progress": False} if "progress" in self.takes and "progress" not in arguments else {}
        return self.function(**{name: value for name, value in given.items() if value is not None}, **arguments, **quiet)


def path_names(paths: set[tuple[str, ...]]) -> set[str]:
    return {path[1] for path in paths if path[0] == "arguments"}


def _changed(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with one value set, however deep."""
    inside = value if len(path) == 1 else _changed(values[path[0]], path[1:], value)
    return {**values, path[0]: inside}


def _signature(function: Callable[..., Any]) -> tuple[list[str], bool, list[str]]:
    """The names a function takes, whether it takes any name, and those it needs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True, []
    named = [part for part in parameters if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)]
    anything = any(part.kind is part.VAR_KEYWORD for part in parameters)
    return [part.name for part in named], anything, [part.name for part in named if part.default is part.empty]


def _problem_values(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, Mapping):
        values = dict(value)
        kind = values.pop("kind", None)
        if not isinstance(kind, str) or kind not in PROBLEMS:
            close = checks.did_you_mean(kind, PROBLEMS)
            raise checks.reject("problem kind", kind, f"{close}choose one of {', '.join(PROBLEMS)}, or give a problem itself")
        _refuse_unknown("problem", kind, values, PROBLEMS[kind])
        return kind, values
    if not isinstance(value, (Problem, SpikedTensor)) or value.kind not in MAKERS:
        raise checks.reject("problem", value, "give sgd.TeacherStudent(...), another problem of the library, or a record of one")
    values = {name: part for name, part in value.describe().items() if name not in ("kind", "rerunnable")}
    for name, part in values.items():
        if isinstance(part, Mapping) and "function" in part:
            # a record only names a user's function: take the function itself
            values[name] = getattr(value, "user_loss" if name == "loss" and value.kind == "Problem" else name)
    return value.kind, values


def _algorithm_values(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, Mapping):
        values = dict(value)
        kind = values.pop("kind", None)
        if not isinstance(kind, str) or kind not in KINDS:
            raise checks.reject("algorithm kind", kind, f"{checks.did_you_mean(kind, KINDS)}choose one of {', '.join(KINDS)}")
        _refuse_unknown("algorithm", kind, values, KINDS[kind])
        return kind, values
    kind = type(value).__name__
    if kind not in KINDS or not is_dataclass(value):
        raise checks.reject("algorithm", value, "give sgd.OnePassSGD(...), another algorithm of the library, or a record of one")
    return kind, {field.name: getattr(value, field.name) for field in fields(value)}


def _refuse_unknown(what: str, kind: str, values: Mapping[str, Any], maker: Callable[..., Any]) -> None:
    known = list(inspect.signature(maker).parameters)
    for name in values:
        if name not in known:
            raise ValueError(f"{what}: {kind} has no {name!r}: {checks.did_you_mean(name, known)}it takes {', '.join(known)}")
