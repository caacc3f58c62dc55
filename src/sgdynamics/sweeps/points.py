"""The points of a sweep: the parameters that vary, their values, and groups solved together."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.code_identity import Json
from sgdynamics.base.identity import digest, find_unidentified, hash_plain, plain
from sgdynamics.base.resources import check_memory
from sgdynamics.results import variables
from sgdynamics.results.records import contents
from sgdynamics.sweeps.job import Job, Path

MAX_POINTS = 10**7
POINT_BYTES = 3000  # measured, with two parameters and an answer of one number
SECTIONS = ("problem", "algorithm", "start", "arguments")
# Names that results use: a swept parameter of such a name keeps its full dotted name.
TAKEN = variables.TAKEN | {"point", "times", "left", "mean", "failed", "warning"}
# Integers that are shapes: points that differ in them have different compiled programs. All other
# numbers are traced.
SHAPES = frozenset(
    [
        "width",
        "depth",
        "hidden_layers",
        "teacher_width",
        "signals",
        "directions",
        "order",
        "batch",
        "runs",
        "paths",
        "replicates",
        "rank",
        "raw",
        "bins",
    ]
)


@dataclass(frozen=True)
class Point:
    """One point of a sweep: its index, its name in a store, its parameters and their identities."""

    index: int
    name: str
    values: dict[Path, Any]
    identities: dict[str, Any]


@dataclass(frozen=True)
class SweepPlan:
    """All points of a sweep and the axes of its result.

    Attributes
    ----------
    dims : dict
        Labels along each axis of a grid; for a list of points ``{"point": [0, 1, ...]}``.
    point_coordinates : dict
        Parameters of a list of points as coordinates: name -> (dimension, labels).
    dependent : dict
        Labels at each point of the parameters that depend on others.
    points : list of Point
        The points.
    titles : dict
        Full name of each parameter, by its short name.
    unidentified : str or None
        The first value or function without an identity that a store could record.
    """

    dims: dict[str, list[Any]]
    point_coordinates: dict[str, tuple[str, list[Any]]]
    dependent: dict[str, list[Any]]
    points: list[Point]
    titles: dict[str, str]
    unidentified: str | None


def plan_sweep(job: Job, over: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> SweepPlan:
    """Check the swept parameters and list the points; nothing is computed."""
    names, columns, axes = _columns(over)
    paths = {name: find_parameter(job, name) for name in names}
    for name, other in itertools.combinations(names, 2):
        if paths[name] == paths[other]:
            raise checks.reject("over", [name, other], "both name the same parameter. Keep one.")
    short = _short_names(names, paths)
    job.vary(set(paths.values()))
    independent = {name: value for name, value in columns.items() if not callable(value)}
    count = len(next(iter(independent.values())))
    settings = [
        dict(zip(independent, values, strict=True))
        for values in zip(*independent.values(), strict=True)
    ]
    order = _evaluation_order(
        [name for name in names if name not in independent], columns, short, job
    )
    points, identity, shared = [], job.identity, job.shared_values()
    identify = _Identities()
    for index, setting in enumerate(settings):
        available = shared | {short[name]: value for name, value in setting.items()}
        for name, function, needs in order:
            value = function(**{need: available[need] for need in needs})
            setting[name] = available[short[name]] = value
        values = {paths[name]: setting[name] for name in names}
        identities = {".".join(path): identify(value) for path, value in values.items()}
        # Values without identity are distinguished by position: such a sweep has no store.
        position = [] if identify.missing is None else [index]
        point_name = hash_plain([identity, identities, *position])[:24]
        points.append(Point(index, point_name, values, identities))
    if len({point.name for point in points}) < count:
        raise checks.reject("over", over, "two points have the same parameters. Remove one.")
    if isinstance(axes, dict):
        dims = {short[name]: _labels(name, values) for name, values in axes.items()}
        point_coordinates = {}
    else:
        dims = {"point": list(range(count))}
        point_coordinates = {
            short[name]: ("point", [label(setting[name]) for setting in settings]) for name in names
        }
    dependent = {
        short[name]: [label(point.values[paths[name]]) for point in points] for name, _, _ in order
    }
    titles = {short[name]: ".".join(paths[name]) for name in names}
    missing = find_unidentified(job.describe()) or identify.missing
    return SweepPlan(dims, point_coordinates, dependent, points, titles, missing)


class _Identities:
    """Identities of parameter values, computed once per object because a grid repeats them."""

    def __init__(self) -> None:
        self.missing: str | None = None
        self._cache: dict[int, tuple[object, Any]] = {}

    def __call__(self, value: object) -> Json:
        if value is None or isinstance(value, (bool, int, float, str)):
            return plain(value)
        if id(value) not in self._cache:
            identity = plain(value)
            self.missing = self.missing or find_unidentified(identity)
            self._cache[id(value)] = (value, identity)
        return self._cache[id(value)][1]


def _columns(
    over: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[list[str], dict[str, Any], dict[str, list[Any]] | None]:
    """Names, their values at each point (or the function that computes them), and a grid's axes."""
    if isinstance(over, Mapping) and over:
        return _grid_columns(over)
    points: list[Any] = []
    if isinstance(over, Sequence) and not isinstance(over, str):
        points = list(over)
    if points and all(isinstance(point, Mapping) and point for point in points):
        names = list(points[0])
        for point in points:
            if set(point) != set(names):
                raise checks.reject(
                    "over",
                    point,
                    f"all points of a list need the same parameters, here {', '.join(names)}.",
                )
        return names, {name: [point[name] for point in points] for name in names}, None
    raise checks.reject(
        "over",
        over,
        'use {"lr": [0.1, 0.2], ...} for all combinations, or [{"lr": 0.1, ...}, ...] for a list '
        "of points.",
    )


def _grid_columns(
    over: Mapping[str, Any],
) -> tuple[list[str], dict[str, Any], dict[str, list[Any]]]:
    axes = {}
    for name, values in over.items():
        if callable(values):
            continue
        is_sequence = hasattr(values, "__len__") and getattr(values, "shape", None) != ()
        if not is_sequence or isinstance(values, (str, bytes, Mapping)):
            raise checks.reject(
                f"over[{name!r}]",
                values,
                "this must be a list of values, or a function of the other parameters.",
            )
        axes[name] = list(values)
        if not axes[name]:
            raise checks.reject(
                f"over[{name!r}]", values, "this list is empty. Use at least one value."
            )
    if not axes:
        raise checks.reject(
            "over",
            over,
            "all parameters depend on others. Use a list of values for at least one of them.",
        )
    shape = {name: len(values) for name, values in axes.items()}
    size = math.prod(shape.values())
    if size > MAX_POINTS:
        raise checks.reject("over", shape, f"these are {size:.3g} points. Use fewer values.")
    check_memory(
        "over", shape, POINT_BYTES * size, f"{size:.3g} points", "give fewer values", host=True
    )
    product = list(zip(*itertools.product(*axes.values()), strict=True))
    columns: dict[str, Any] = dict(zip(axes, product, strict=True))
    columns |= {name: values for name, values in over.items() if callable(values)}
    return list(over), columns, axes


def _labels(name: str, values: list[Any]) -> list[Any]:
    """Labels along an axis; equal texts of different objects are completed by a hash."""
    labels = [label(value) for value in values]
    if len(set(labels)) == len(labels):
        return labels
    repeated = {text for text in labels if labels.count(text) > 1}
    identities = [plain(value) for value in values]
    for index, identity in enumerate(identities):
        if find_unidentified(identity):
            identities[index] = [identity, index]
        elif identity in identities[:index] or (
            labels[index] in repeated and not isinstance(labels[index], str)
        ):
            raise checks.reject(f"over[{name!r}]", values, "two values are the same. Remove one.")
    return [
        f"{text} {digest(identity)[:8]}" if text in repeated else text
        for text, identity in zip(labels, identities, strict=True)
    ]


def label(value: object) -> int | float | str:
    """The label of a value: numbers and texts are unchanged, other values become a short text."""
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return int(value) if -(2**63) <= int(value) < 2**63 else str(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return label(value.item())
    text = getattr(value, "label", None) or getattr(value, "__name__", None)
    if not isinstance(text, str):
        text = json.dumps(plain(value), sort_keys=True)
    return text if len(text) <= 100 else f"{text[:80]}... {digest(value)[:8]}"


def find_parameter(job: Job, name: object) -> Path:
    """The path of a parameter from its name.

    A name is dotted, or bare if it is unique; a bare name prefers the arguments of the solver.
    """
    if not isinstance(name, str) or not name:
        raise checks.reject(
            "over", name, 'a parameter is named by a string such as "algorithm.lr" or "lr".'
        )
    names = {section: job.names(section) for section in SECTIONS}
    options = job.option_paths()
    option_arguments = {argument for _, argument, _ in options.values()}
    first, dot, _ = name.partition(".")
    # "method.rank" is short for "arguments.method.rank"
    full_name = f"arguments.{name}" if dot and first in option_arguments else name
    path = tuple(full_name.split("."))
    if len(path) > 1:
        _check_dotted(job, name, path, names)
        return path
    homes = [section for section in SECTIONS if name in (names[section] or ())]
    if "arguments" in homes or (not homes and names["arguments"] is None):
        return ("arguments", name)
    if not homes and name in options:
        return options[name]
    if len(homes) == 1:
        return (homes[0], name)
    if homes:
        candidates = " or ".join(f"{home}.{name}" for home in homes)
        raise checks.reject("over", name, f"this name is not unique. Write {candidates}.")
    # Parameters of the algorithm inside of another one, such as the rate of each of several workers
    inner = contents(job.algorithm).get("algorithm")
    if name in contents(inner):
        return ("algorithm", "algorithm", name)
    candidates = [other for section in SECTIONS for other in names[section] or ()]
    candidates += options
    choices = "; ".join(
        f"{section}: {', '.join(others)}" for section, others in names.items() if others
    )
    raise checks.reject(
        "over",
        name,
        f"no such parameter: {checks.did_you_mean(name, candidates)}choose from {choices}",
    )


def _check_dotted(job: Job, name: str, path: Path, names: dict[str, list[str] | None]) -> None:
    """Raise ValueError unless a dotted name is a parameter that can be varied."""
    section = path[0]
    if section not in SECTIONS:
        raise checks.reject(
            "over",
            name,
            f"{checks.did_you_mean(section, SECTIONS)}a dotted name begins with one of "
            f"{', '.join(SECTIONS)}",
        )
    accepted = names[section]
    if accepted is not None and path[1] not in accepted:
        close = checks.did_you_mean(path[1], accepted)
        choices = f"it takes {', '.join(accepted)}" if accepted else job.why_fixed(section)
        raise checks.reject(
            "over",
            name,
            f"the {section.rstrip('s')} has no parameter {path[1]!r}: {close}{choices}",
        )
    if len(path) > 2:
        job.require_path(path)


def _short_names(names: list[str], paths: dict[str, Path]) -> dict[str, str]:
    """The name of each parameter in the result: its last component if free, else all of it."""
    last = [path[-1] for path in paths.values()]
    short = {}
    for name in names:
        is_free = last.count(paths[name][-1]) == 1 and paths[name][-1] not in TAKEN
        short[name] = paths[name][-1] if is_free else ".".join(paths[name])
    return short


def _evaluation_order(
    names: list[str], columns: dict[str, Any], short: dict[str, str], job: Job
) -> list[tuple[str, Callable[..., Any], list[str]]]:
    """The dependent parameters, each after those that it depends on: (name, function, needs)."""
    available = set(job.shared_values()) | {short[name] for name in columns}
    needs = {name: _needs(name, columns[name], short[name], available) for name in names}
    unordered = dict.fromkeys(names)
    order = []
    while unordered:
        blocked = {short[name] for name in unordered}
        free = [name for name in unordered if not blocked & set(needs[name])]
        if not free:
            raise checks.reject(
                "over",
                list(unordered),
                "these parameters depend on one another in a circle. Set values for one of them.",
            )
        for name in free:
            order.append((name, columns[name], needs[name]))
            del unordered[name]
    return order


def _needs(
    name: str, function: Callable[..., Any], short_name: str, available: set[str]
) -> list[str]:
    """The parameters that a function of parameters depends on."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise checks.reject(
            f"over[{name!r}]", function, "this must be a Python function of named parameters."
        ) from None
    needs = [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty or parameter.name in available
    ]
    for need in needs:
        if need not in available or need == short_name:
            others = available - {short_name}
            raise checks.reject(
                f"over[{name!r}]",
                need,
                f"it depends on an unknown parameter: {checks.did_you_mean(need, others)}choose "
                f"from {', '.join(sorted(others))}",
            )
    return needs


def family(point: Point) -> str:
    """A hash that points share if they can be solved together.

    It covers everything except the values of traced numbers.
    """
    fixed = {}
    for path, value in point.values.items():
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        if is_number and not isinstance(value, bool) and path[-1] not in SHAPES:
            # At lr = 0 and at infinite values a problem becomes another one: gradient flow, a
            # mixture without noise.
            if value == 0 and path[-1] == "lr":
                value = "0"
            else:
                value = "inf" if value in (math.inf, -math.inf) else "number"
        elif isinstance(value, np.ndarray):
            value = ["array", *value.shape]
        else:
            value = point.identities[".".join(path)]
        fixed[".".join(path)] = value
    return hash_plain(fixed)


def groups(points: list[Point], size_of: Callable[[Point], int]) -> list[list[Point]]:
    """Points that are solved together, in the order of the grid, whatever process computes them."""
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(family(point), []).append(point)
    batches = []
    for members in families.values():
        size = size_of(members[0])
        batches += [members[first : first + size] for first in range(0, len(members), size)]
    return batches
