"""Problems, algorithms and starts from plain values: what a result records, a sweep varies and a problem file states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import ALGORITHMS, FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.update import MAKERS, Update
from sgdynamics.base import checks
from sgdynamics.base.controls import is_scheduled, piecewise_rate
from sgdynamics.base.identity import function_identity
from sgdynamics.problems.contexts import Contexts, contexts
from sgdynamics.problems.mixture import GaussianMixture
from sgdynamics.problems.models import MODELS
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedTensor
from sgdynamics.problems.starts import random_start, start
from sgdynamics.problems.teacher_student import TeacherStudent

CLASSES: dict[str, Callable[..., Any]] = {
    "TeacherStudent": TeacherStudent,
    "GaussianMixture": GaussianMixture.from_record,
    "SpikedTensor": SpikedTensor,
}
KINDS: dict[str, Callable[..., Any]] = {
    "OnePassSGD": OnePassSGD,
    **ALGORITHMS,
    "EpochSGD": EpochSGD,
}


def _contexts(
    problems: Mapping[str, Any], probabilities: Any = None, heads: str = "shared"
) -> Problem:
    """Contexts from the records of their problems."""
    every: dict[str, Any] = {name: problem_from(one) for name, one in problems.items()}
    if isinstance(probabilities, Mapping):
        probabilities = dict(probabilities)
        _with_schedules("problem probabilities", probabilities)
    return contexts(every, probabilities, heads)


CLASSES["contexts"] = _contexts


def problem_from(record: Mapping[str, Any]) -> Problem | SpikedTensor:
    """The problem that a record states: {"kind": "TeacherStudent", "width": 4, ...}."""
    values = _plain_record("problem", record)
    if not values.pop("rerunnable", True):
        raise ValueError(
            f"this problem ({values.get('kind')}) holds a user's function, which its record names but cannot make again"
        )
    known = {**CLASSES, **MODELS}  # a user's models too
    kind = _kind("problem", values, known)
    _names("problem", kind, values, known[kind])
    _with_schedules("problem", values)
    return known[kind](**values)


def algorithm_from(record: Mapping[str, Any]) -> OnePassSGD | FixedData:
    """The algorithm that a record states: {"kind": "OnePassSGD", "lr": 0.1, ...}; a schedule is {"edges": [...], "rates": [...]}."""
    values = _plain_record("algorithm", record)
    if not values.pop("rerunnable", True):
        raise ValueError(
            "this algorithm holds a user's function, which its record names but cannot make again"
        )
    kind = _kind("algorithm", values, KINDS)
    _names("algorithm", kind, values, KINDS[kind])
    _with_schedules("algorithm", values)
    if "rescale" in values:
        # netCDF has no bool: a result records 0 or 1
        values["rescale"] = (
            bool(values["rescale"]) if values["rescale"] in (0, 1) else values["rescale"]
        )
    if isinstance(values.get("update"), Mapping):
        values["update"] = update_from(values["update"])
    return KINDS[kind](**values)


def update_from(record: Mapping[str, Any]) -> Update:
    """The update that a record states: {"kind": "momentum", "beta": 0.9}, with another inside where it has one."""
    numbers = dict(record)
    update = _kind("update", numbers, MAKERS)
    _names("update", update, numbers, MAKERS[update])
    _with_schedules("update", numbers)
    if isinstance(numbers.get("of"), Mapping):
        numbers["of"] = update_from(numbers["of"])
    return MAKERS[update](**numbers)


def _with_schedules(what: str, values: dict[str, Any]) -> None:
    """Make schedules of the numbers that are written {"edges": [...], "rates": [...]}."""
    for name, value in values.items():
        if isinstance(value, Mapping) and {"edges", "rates"} & set(value):
            _names(f"{what} {name}", "piecewise_rate", value, piecewise_rate)
            values[name] = piecewise_rate(**value)


def own_makers(record: object) -> dict[str, Any]:
    """Identities of the user's functions by which a record names its models and updates: their code is not in the record."""
    if isinstance(record, (list, tuple)):
        return {name: identity for part in record for name, identity in own_makers(part).items()}
    if not isinstance(record, Mapping):
        return {}
    identities = {}
    for maker in (MODELS.get(record.get("kind", "")), MAKERS.get(record.get("kind", ""))):
        if maker is not None and maker.__module__.partition(".")[0] != "sgdynamics":
            identities[record["kind"]] = function_identity(maker)
    for part in record.values():
        identities |= own_makers(part)
    return identities


def start_of(
    problem: Problem | SpikedTensor, record: Mapping[str, Any], dimension: int | None = None
) -> Any:
    """The start that a record states: {"kind": "random", "seed": 0, ...} or overlaps {"M": ..., "Q": ...}.

    A random start is drawn at `dimension` unless it names its own, or the problem's spectrum fixes it.
    """
    values = _plain_record("start", record)
    if "own dynamics" in problem.kinds:
        return values  # its variables, which it checks itself
    kind = values.pop("kind", "random" if not {"M", "m"} & set(values) else "overlaps")
    checks.choice("start kind", kind, ("random", "overlaps"))
    if kind == "overlaps":
        _names("start", "start", values, start, skip=("problem",))
        return start(problem, **values)
    _names("start", "random_start", values, random_start, skip=("problem",), given=("dimension",))
    if values.get("dimension", dimension) is None and getattr(problem, "spectrum", None) is None:
        raise ValueError(
            "start: a random start needs a dimension: give one with the start (in a file, dimension = ... in [start] or [run])"
        )
    return random_start(problem, **{"dimension": dimension, **values})


def _plain_record(what: str, record: object) -> dict[str, Any]:
    if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
        raise checks.reject(what, record, "give a record, a dictionary such as {'kind': ...}")
    return dict(record)


def _kind(what: str, values: dict[str, Any], kinds: Mapping[str, Any]) -> str:
    if "kind" not in values:
        raise ValueError(f"{what}: give its kind, one of {', '.join(kinds)}")
    kind = values.pop("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise checks.reject(
            f"{what} kind",
            kind,
            f"{checks.did_you_mean(kind, kinds)}choose one of {', '.join(kinds)}",
        )
    return kind


def _names(
    what: str,
    kind: str,
    values: Mapping[str, Any],
    maker: Callable[..., Any],
    skip: tuple[str, ...] = (),
    given: tuple[str, ...] = (),
) -> None:
    """Refuse names that the maker does not take, with what was probably meant, and ask for those it needs and is not `given` elsewhere."""
    parameters = {
        name: one for name, one in inspect.signature(maker).parameters.items() if name not in skip
    }
    checks.reject_unknown(f"{what}: {kind}", values, parameters)
    needed = [name for name, one in parameters.items() if one.default is inspect.Parameter.empty]
    missing = [name for name in needed if name not in values and name not in given]
    if missing:
        raise ValueError(f"{what}: {kind} needs {', '.join(missing)}")


def contents(value: object) -> Mapping[str, Any]:
    """What may vary inside a value: entries of a dictionary, arguments of an object, numbers that it records; nothing elsewhere."""
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "kinds"):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    found: Any = getattr(value, "describe", lambda: value)()
    if not isinstance(found, Mapping) or "sha256" in found:
        return {}
    if isinstance(value, Problem):  # as it was told, and what it was not told as it is
        found = {
            **found,
            **{
                name: part
                for name, part in value.arguments.items()
                if part is not None or name not in found
            },
        }
    if isinstance(value, Contexts) and not is_scheduled(value.probabilities):
        found = {**found, "probabilities": value.shares}
    return (
        found
        if found is value
        else {name: part for name, part in found.items() if name not in ("kind", "rerunnable")}
    )


def changed(value: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    """A dictionary or an object with something else at these places inside, however deep."""
    if not changes or () in changes:
        return changes.get((), value)
    inside: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, new in changes.items():
        inside.setdefault(path[0], {})[path[1:]] = new
    known = contents(value)
    parts = {name: changed(known.get(name), below) for name, below in inside.items()}
    if (
        isinstance(value, Contexts)
        and "probabilities" in inside
        and () not in inside["probabilities"]
    ):
        # the shares that change, the others have the rest
        parts["probabilities"] = {
            name: parts["probabilities"][name] for name, *_ in inside["probabilities"]
        }
    return (
        {**known, **parts}
        if isinstance(value, Mapping) or not hasattr(value, "replace")
        else value.replace(**parts)
    )
