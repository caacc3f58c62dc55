"""The JSON schema of problem files, for editors: `sgdynamics schema`.

It is generated from what the reader of files uses: signatures and docstrings of problems,
algorithms, updates and starts, and the registry of solvers. Values are checked loosely, because the
library checks them itself; names of tables and keys are complete.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from sgdynamics.algorithms.schedules import __all__ as SCHEDULES
from sgdynamics.algorithms.updates.update import MAKERS
from sgdynamics.analysis import exit_times
from sgdynamics.analysis.landscape import hessian_spectrum
from sgdynamics.base import registry
from sgdynamics.base.registry import CLOCKS, RUN_KEYS
from sgdynamics.cli import problem_files
from sgdynamics.cli.stage_tables import STAGE_KEYS
from sgdynamics.problems.activations import NAMED
from sgdynamics.problems.losses import LOSSES
from sgdynamics.problems.mixture import CLUSTERS, GaussianMixture
from sgdynamics.problems.models import MODELS
from sgdynamics.problems.starts import random_start, start
from sgdynamics.results import records
from sgdynamics.solvers.stage_plan import Stage

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Types of docstrings whose values are lists in a file.
LISTS = ("(float", "sequence", "array_like")
# A line of a docstring that starts an argument, and the sections in which they stand.
ARGUMENT = re.compile(r"^(?P<names>\w+(?:, \w+)*) : (?P<type>.+)$")
SECTIONS = ("Parameters", "Attributes")

NUMBER: Schema = {"type": "number"}
# A schedule in a file: piecewise constant, or one of `sgd.schedules` by name.
SCHEDULE: Schema = {
    "type": "object",
    "anyOf": [
        {"required": ["edges", "rates"]},
        {"required": ["schedule"]},
    ],
    "properties": {
        "edges": {"type": "array", "items": NUMBER},
        "rates": {"type": "array", "items": NUMBER},
        "schedule": {"type": "string", "examples": sorted(SCHEDULES)},
    },
}
# Save points and varied values: a list, or a range.
RANGE: Schema = {
    "type": "object",
    "required": ["to", "points"],
    "additionalProperties": False,
    "properties": {
        "from": NUMBER,
        "to": NUMBER,
        "points": {"type": "integer", "minimum": 2},
        "spacing": {"enum": ["linear", "log"]},
    },
}
VALUES: Schema = {"anyOf": [{"type": "array", "minItems": 1}, RANGE]}
ACTIVATION: Schema = {
    "anyOf": [{"enum": sorted(NAMED)}, {"type": "object", "required": ["polynomial"]}]
}
# Arguments whose values have names.
CHOICES: dict[str, Schema] = {
    "activation": ACTIVATION,
    "teacher_activation": ACTIVATION,
    "head": {"enum": ["fixed", "trained"]},
    "loss": {"enum": sorted(LOSSES)},
    "mixture": {"enum": sorted(CLUSTERS)},
    "per": {"enum": ["dimension", "trace", "step"]},
    "order": {"enum": ["reshuffle", "replacement", "fixed"]},
}


def problem_file_schema() -> Schema:
    """Return the JSON schema of a problem file, as plain values."""
    return {
        "$schema": DRAFT,
        "$id": "sgdynamics-problem-file",
        "title": "A problem file of sgdynamics",
        "type": "object",
        "required": ["problem", "algorithm"],
        "additionalProperties": False,
        "properties": {
            "title": {"type": "string", "description": "Title of the figure."},
            "problem": _record_of(_problems(), "The learning problem."),
            "algorithm": _record_of(_algorithms(), "The training algorithm."),
            "start": _start_schema(),
            "run": _run_schema(),
            "exit_time": _call_schema(
                exit_times.exit_time, ("method",), {"methods": _names_of(exit_times.METHODS)}
            ),
            "hessian": _call_schema(hessian_spectrum, (), {}),
            "sweep": _sweep_schema(),
            "stages": _stages_schema(),
        },
        # Stages have save points of their own, in place of those of [run].
        "if": {"required": ["stages"]},
        "then": {"properties": {"run": {"not": {"anyOf": [{"required": [c]} for c in CLOCKS]}}}},
        "else": {"properties": {"run": {"oneOf": [{"required": [c]} for c in CLOCKS]}}},
    }


def _stages_schema() -> Schema:
    """The list of stages, each with changes of the problem and the algorithm of the file."""
    texts = descriptions(Stage)
    properties: dict[str, Any] = {
        name: {"description": texts[name]} if name in texts else {} for name in STAGE_KEYS
    }
    properties |= {name: {"type": "object"} for name in ("problem", "algorithm")}
    stage = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [clock]} for clock in CLOCKS],
    }
    return {"type": "array", "minItems": 1, "items": stage}


def _problems() -> dict[str, Schema]:
    """The kinds of problems that a record may state, with their arguments."""
    makers = {**records.CLASSES, **MODELS}
    schemas = {}
    for kind, maker in makers.items():
        documented: Callable[..., Any] = GaussianMixture if kind == "GaussianMixture" else maker
        schemas[kind] = _arguments_schema(maker, descriptions(documented), types(documented))
    return schemas


def _algorithms() -> dict[str, Schema]:
    """The kinds of algorithms, with the updates as records of their own."""
    updates = {
        name: _arguments_schema(maker, descriptions(maker)) for name, maker in MAKERS.items()
    }
    update = _record_of(updates, "The optimiser; plain SGD by default.")
    schemas = {}
    for kind, maker in records.KINDS.items():
        schema = _arguments_schema(maker, descriptions(maker), types(maker))
        if "update" in schema["properties"]:
            schema["properties"]["update"] = update
        schemas[kind] = schema
    return schemas


def _record_of(schemas: dict[str, Schema], description: str) -> Schema:
    """A table with a key `kind`, which decides on its other keys."""
    branches = [
        {
            "if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
            "then": {
                **schema,
                "properties": {"kind": {"const": kind}, **schema["properties"]},
            },
        }
        for kind, schema in schemas.items()
    ]
    return {
        "type": "object",
        "description": description,
        "required": ["kind"],
        "properties": {"kind": {"enum": sorted(schemas)}},
        "allOf": branches,
    }


def _arguments_schema(
    function: Callable[..., Any], texts: dict[str, str], stated: dict[str, str] | None = None
) -> Schema:
    """The arguments of a function as keys of a table, with their types in its docstring."""
    properties: dict[str, Schema] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        type_text = (stated or {}).get(name, "")
        properties[name] = _value_schema(name, parameter.default, texts, type_text)
        if parameter.default is parameter.empty:
            required.append(name)
    schema: Schema = {"additionalProperties": False, "properties": properties}
    return {**schema, "required": required} if required else schema


def _value_schema(name: str, default: object, texts: dict[str, str], type_text: str = "") -> Schema:
    """The value of one argument: its choices, or the type of its default and of its docstring."""
    schema: Schema = {}
    if name in CHOICES and not isinstance(default, (int, float, tuple)):
        schema = dict(CHOICES[name])
    elif isinstance(default, bool):
        schema = {"type": "boolean"}
    elif isinstance(default, int):
        schema = {"type": "number"}
    elif isinstance(default, float):
        # infinity is a number of TOML; a schedule is a table, a law of noise too
        schema = {"anyOf": [NUMBER, SCHEDULE, {"type": "object"}]}
        if any(kind in type_text for kind in LISTS):
            schema["anyOf"].append({"type": "array"})
        if re.search(r"\bstr\b", type_text):
            schema["anyOf"].append({"type": "string"})
    if isinstance(default, (bool, int, float, str)):
        schema["default"] = (
            default if default not in (float("inf"), float("-inf")) else str(default)
        )
    if name in texts:
        schema["description"] = texts[name]
    return schema


def descriptions(documented: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of arguments in a docstring of numpydoc."""
    lines = (inspect.getdoc(documented) or "").splitlines()
    texts: dict[str, str] = {}
    names: list[str] = []
    is_inside = False
    for line, below in pairwise([*lines, ""]):
        if below.startswith("---"):
            is_inside, names = line.strip() in SECTIONS, []
        elif is_inside and (match := ARGUMENT.match(line)):
            names = match["names"].split(", ")
        elif is_inside and names and line.startswith("    "):
            for name in names:
                texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def types(documented: Callable[..., Any]) -> dict[str, str]:
    """Return the types of arguments in a docstring of numpydoc, with their defaults."""
    matches = map(ARGUMENT.match, (inspect.getdoc(documented) or "").splitlines())
    return {
        name: match["type"] for match in matches if match for name in match["names"].split(", ")
    }


def _start_schema() -> Schema:
    """A random start, or overlaps."""
    texts = descriptions(random_start) | descriptions(start)
    keys = {
        name: _value_schema(name, parameter.default, texts)
        for function in (random_start, start)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "problem"
    }
    return {
        "type": "object",
        "description": "The initial condition; a random start by default.",
        "additionalProperties": False,
        "properties": {
            "kind": {"enum": ["random", "overlaps"], "default": "random"},
            **keys,
            "q": {"description": "Squared norms orthogonal to the signals, for a wide network."},
        },
    }


def _names_of(names: Iterable[str]) -> Schema:
    return {"type": "array", "minItems": 1, "items": {"enum": list(names)}}


def _clocks() -> dict[str, Schema]:
    meanings = {
        "times": "Save points in t = lr steps/d.",
        "alpha": "Save points in samples/d.",
        "steps": "Save points in steps.",
    }
    return {name: {**VALUES, "description": meanings[name]} for name in CLOCKS}


def _run_schema() -> Schema:
    """[run] with a table for each method."""
    methods = registry.methods()
    tables = {
        name: _call_schema(entry.load(), ("method", *CLOCKS), {})
        for name, (entry, _) in methods.items()
    }
    keys = {key: {"type": "integer", "minimum": 0} for key in RUN_KEYS}
    return {
        "type": "object",
        "description": "Solvers and simulations, and the points at which they are saved.",
        "required": ["methods"],
        "additionalProperties": False,
        "properties": {"methods": _names_of(methods), **_clocks(), **keys, **tables},
    }


def _call_schema(
    function: Callable[..., Any], excluded: tuple[str, ...], extra: dict[str, Schema]
) -> Schema:
    """A table with the keyword arguments of a function."""
    texts = descriptions(function)
    signature = inspect.signature(function).parameters
    properties = {}
    for name in problem_files.argument_names(function, excluded):
        default = signature[name].default if name in signature else None
        properties[name] = _value_schema(name, default, texts)
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**properties, **extra},
    }


def _sweep_schema() -> Schema:
    """[sweep] and [sweep.over]; the further keys are arguments of the solver."""
    solvers = problem_files.swept_solvers()
    return {
        "type": "object",
        "description": "A solver on a grid of parameters.",
        "required": ["solver", "over"],
        "properties": {
            "solver": {"enum": list(solvers)},
            "over": {
                "type": "object",
                "minProperties": 1,
                "description": "The parameters to vary: lists, or ranges.",
                "additionalProperties": VALUES,
            },
            "store": {"type": "string", "description": "Folder of the computed points."},
            "workers": {"type": "integer", "minimum": 1},
            **_clocks(),
        },
    }
