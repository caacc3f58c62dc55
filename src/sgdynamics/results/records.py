"""Problems, algorithms and starts from plain values.

Results record such values, sweeps vary them, and problem files state them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sgdynamics.algorithms import schedules
from sgdynamics.algorithms.amp import AMP
from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import ALGORITHMS, FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.update import MAKERS, Update
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import is_scheduled, piecewise_rate
from sgdynamics.base.identity import function_identity
from sgdynamics.problems.contexts import Contexts, contexts
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.mixture import GaussianMixture
from sgdynamics.problems.models import MODELS
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import random_start, start
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.problems.wide_starts import MeanFieldStart

CLASSES: dict[str, Callable[..., Any]] = {
    "TeacherStudent": TeacherStudent,
    "GaussianMixture": GaussianMixture.from_record,
    "SpikedTensor": SpikedTensor,
    "DeepLinear": DeepLinear,
    "WideNetwork": WideNetwork,
    "DiagonalNetwork": DiagonalNetwork,
}
# Problems that state their initial weights themselves, so that solvers take no start.
STATING_START = ("DeepLinear", "DiagonalNetwork", "WideNetwork")
KINDS: dict[str, Callable[..., Any]] = {
    "OnePassSGD": OnePassSGD,
    **ALGORITHMS,
    "EpochSGD": EpochSGD,
    "AMP": AMP,
    "Workers": Workers,
}


def _contexts(
    problems: Mapping[str, Any],
    probabilities: Mapping[str, Any] | ArrayArgument | None = None,
    heads: str | Sequence[str] = "shared",
) -> Problem:
    """Contexts from the records of their problems."""
    members: dict[str, Any] = {name: problem_from(values) for name, values in problems.items()}
    if isinstance(probabilities, Mapping):
        probabilities = dict(probabilities)
        _with_schedules("problem probabilities", probabilities)
    return contexts(members, probabilities, heads)


CLASSES["contexts"] = _contexts


def problem_from(record: Mapping[str, Any]) -> Problem | SpikedTensor:
    """The problem that a record states: {"kind": "TeacherStudent", "width": 4, ...}."""
    values = _plain_record("problem", record)
    if not values.pop("rerunnable", True):
        raise _user_function_error("problem", values)
    makers = {**CLASSES, **MODELS}  # with models that a user registered
    kind = _kind("problem", values, makers)
    _names("problem", kind, values, makers[kind])
    _with_schedules("problem", values)
    if isinstance(values.get("weight_decay"), Mapping):  # by leaf of a top
        values["weight_decay"] = dict(values["weight_decay"])
        _with_schedules("problem weight_decay", values["weight_decay"])
    return makers[kind](**values)


def _user_function_error(argument: str, values: Mapping[str, Any]) -> ValueError:
    """The error for a record of a problem or an algorithm with a user-defined function."""
    fix = (
        "the record contains only the name of a user-defined function. "
        f"Rebuild the {argument} in Python."
    )
    return checks.reject(f"{argument} kind", values.get("kind"), fix)


def algorithm_from(record: Mapping[str, Any]) -> OnePassSGD | FixedData | Workers:
    """The algorithm that a record states: {"kind": "OnePassSGD", "lr": 0.1, ...}.

    A schedule is {"edges": [...], "rates": [...]}. Workers have the record of their algorithm and,
    if they differ, those of their problems.
    """
    values = _plain_record("algorithm", record)
    if not values.pop("rerunnable", True):
        raise _user_function_error("algorithm", values)
    kind = _kind("algorithm", values, KINDS)
    _names("algorithm", kind, values, KINDS[kind])
    _with_schedules("algorithm", values)
    if isinstance(values.get("head_rate"), Mapping):  # by leaf of a top
        values["head_rate"] = dict(values["head_rate"])
        _with_schedules("algorithm head_rate", values["head_rate"])
    if "rescale" in values:
        rescale = values["rescale"]
        # netCDF has no bool: a result records 0 or 1.
        values["rescale"] = bool(rescale) if rescale in (0, 1) else rescale
    if isinstance(values.get("update"), Mapping):
        values["update"] = update_from(values["update"])
    if isinstance(values.get("algorithm"), Mapping):
        values["algorithm"] = algorithm_from(values["algorithm"])
    if isinstance(values.get("problems"), (list, tuple)):
        values["problems"] = [
            problem_from(problem) if isinstance(problem, Mapping) else problem
            for problem in values["problems"]
        ]
    return KINDS[kind](**values)


def update_from(record: Mapping[str, Any]) -> Update:
    """The update that a record states: {"kind": "momentum", "beta": 0.9}.

    The record of an update that wraps another has it under "of".
    """
    values = dict(record)
    kind = _kind("update", values, MAKERS)
    _names("update", kind, values, MAKERS[kind])
    _with_schedules("update", values)
    if isinstance(values.get("of"), Mapping):
        values["of"] = update_from(values["of"])
    return MAKERS[kind](**values)


def _with_schedules(subject: str, values: dict[str, Any]) -> None:
    """Replace {"edges": [...], "rates": [...]} and {"schedule": "wsd", ...} by schedules."""
    for name, value in values.items():
        if isinstance(value, Mapping) and {"edges", "rates"} & set(value):
            _names(f"{subject} {name}", "piecewise_rate", value, piecewise_rate)
            values[name] = piecewise_rate(**value)
        elif isinstance(value, Mapping) and "schedule" in value:
            values[name] = schedules.from_record(f"{subject} {name}", value)


def own_makers(record: object) -> dict[str, Any]:
    """Identities of the user's functions that a record names as models and updates.

    Their code is not in the record.
    """
    if isinstance(record, (list, tuple)):
        return {name: identity for item in record for name, identity in own_makers(item).items()}
    if not isinstance(record, Mapping):
        return {}
    identities = {}
    for maker in (MODELS.get(record.get("kind", "")), MAKERS.get(record.get("kind", ""))):
        if maker is not None and maker.__module__.partition(".")[0] != "sgdynamics":
            identities[record["kind"]] = function_identity(maker)
    for value in record.values():
        identities |= own_makers(value)
    return identities


def start_of(
    problem: Problem | SpikedTensor, record: Mapping[str, Any], dimension: int | None = None
) -> Start | MeanFieldStart | SpikedStart | dict[str, Any] | None:
    """The start that a record states; None for a problem that defines its own.

    It is {"kind": "random", "seed": 0, ...} or overlaps {"M": ..., "Q": ...}. A random start is
    drawn at `dimension`, unless its record or the spectrum of the problem has another one.
    """
    values = _plain_record("start", record)
    if "own dynamics" in problem.kinds:
        return values  # its variables, which it checks itself
    if problem.kind in STATING_START:
        if values:
            fix = "this problem states its initial weights itself. Omit the start."
            raise checks.reject("start", values, fix)
        return None
    kind = values.pop("kind", "random" if not {"M", "m"} & set(values) else "overlaps")
    checks.choice("start kind", kind, ("random", "overlaps"))
    if kind == "overlaps":
        _names("start", "start", values, start, skip=("problem",))
        return start(problem, **values)
    _names(
        "start", "random_start", values, random_start, skip=("problem",), optional=("dimension",)
    )
    if values.get("dimension", dimension) is None and getattr(problem, "spectrum", None) is None:
        raise ValueError(
            "start: a random start needs a dimension: give one with the start (in a file, "
            "dimension = ... in [start] or [run])"
        )
    return random_start(problem, **{"dimension": dimension, **values})


def _plain_record(subject: str, record: object) -> dict[str, Any]:
    if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
        raise checks.reject(subject, record, "give a record, a dictionary such as {'kind': ...}")
    return dict(record)


def _kind(subject: str, values: dict[str, Any], kinds: Mapping[str, Any]) -> str:
    """Remove the kind from the values of a record and validate it."""
    choices = ", ".join(kinds)
    if "kind" not in values:
        raise ValueError(f"{subject}: give its kind, one of {choices}")
    kind = values.pop("kind")
    if not isinstance(kind, str) or kind not in kinds:
        fix = f"{checks.did_you_mean(kind, kinds)}choose one of {choices}"
        raise checks.reject(f"{subject} kind", kind, fix)
    return kind


def _names(
    subject: str,
    kind: str,
    values: Mapping[str, Any],
    maker: Callable[..., Any],
    skip: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> None:
    """Raise ValueError for arguments that a function does not take, or that are missing."""
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(maker).parameters.items()
        if name not in skip
    }
    checks.reject_unknown(f"{subject}: {kind}", values, parameters)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and name not in values
        and name not in optional
    ]
    if missing:
        raise ValueError(f"{subject}: {kind} needs {', '.join(missing)}")


def contents(value: object) -> Mapping[str, Any]:
    """The values inside a value that a sweep may vary.

    They are the entries of a dictionary, the fields of a user's dynamics, or the recorded
    arguments of an object; there are none in other values.
    """
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "kinds"):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    values: Any = getattr(value, "describe", lambda: value)()
    if not isinstance(values, Mapping) or "sha256" in values:
        return {}
    if isinstance(value, Problem):
        # Arguments as the user wrote them; the record has those that were left out.
        arguments = {
            name: argument
            for name, argument in value.arguments.items()
            if argument is not None or name not in values
        }
        values = {**values, **arguments}
    if isinstance(value, Contexts) and not is_scheduled(value.probabilities):
        values = {**values, "probabilities": value.shares}
    if values is value:
        return values
    return {name: item for name, item in values.items() if name not in ("kind", "rerunnable")}


def replace_inside(value: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    """A copy of a dictionary or an object with other values at these paths inside it."""
    if not changes or () in changes:
        return changes.get((), value)
    nested: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, new in changes.items():
        nested.setdefault(path[0], {})[path[1:]] = new
    values = contents(value)
    replaced = {name: replace_inside(values.get(name), below) for name, below in nested.items()}
    if (
        isinstance(value, Contexts)
        and "probabilities" in nested
        and () not in nested["probabilities"]
    ):
        # Only the shares that change: the others share the rest.
        shares = replaced["probabilities"]
        replaced["probabilities"] = {name: shares[name] for name, *_ in nested["probabilities"]}
    if isinstance(value, Mapping) or not hasattr(value, "replace"):
        return {**values, **replaced}
    return value.replace(**replaced)
