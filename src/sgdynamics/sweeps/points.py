"""The points of a sweep: which parameters vary, what they are called, what they are at each point, and what is solved together."""

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
from sgdynamics.base.identity import digest, find_unidentified, hash_plain, plain
from sgdynamics.base.resources import check_memory
from sgdynamics.results import variables
from sgdynamics.sweeps.job import Job

Path = tuple[str, ...]
MOST_POINTS = 10**7
POINT_BYTES = 3000  # of a point with two parameters and an answer of one number, measured
SECTIONS = ("problem", "algorithm", "start", "arguments")
# names that results use themselves: a swept parameter of the same name keeps its full dotted one
TAKEN = variables.TAKEN | {"point", "times", "left", "mean", "failed", "warning"}
# whole numbers that are shapes: points that differ in them are other programs (all other numbers are traced)
SHAPES = frozenset(
    [
        "width",
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
    """One point: its position in the result, its name in a store, its parameters by path, and their identities."""

    index: int
    name: str
    values: dict[Path, Any]
    identities: dict[str, Any]


@dataclass(frozen=True)
class SweepPlan:
    """All points, the axes of the result and the variables that depend on others."""

    dims: dict[
        str, list[Any]
    ]  # of a grid: labels along each axis; of a list: {"point": [0, 1, ...]}
    along: dict[
        str, tuple[str, list[Any]]
    ]  # of a list: parameters as coordinates, name -> (dim, labels)
    dependent: dict[str, list[Any]]  # labels at every point
    points: list[Point]
    titles: dict[str, str]  # short name -> full name
    find_unidentified: (
        str | None
    )  # the first value or function without an identity that a store could record


def plan_sweep(job: Job, over: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> SweepPlan:
    """Check what is swept and lay out its points; nothing is computed."""
    names, columns, axes = _columns(over)
    paths = {name: find(job, name) for name in names}
    for name, other in itertools.combinations(names, 2):
        if paths[name] == paths[other]:
            raise checks.reject("over", [name, other], "both name the same parameter: keep one")
    short = _short(names, paths)
    job.vary(set(paths.values()))
    own = {name: value for name, value in columns.items() if not callable(value)}
    count = len(next(iter(own.values())))
    settings = [dict(zip(own, values, strict=True)) for values in zip(*own.values(), strict=True)]
    order = _order([name for name in names if name not in own], columns, short, job)
    points, identity, fixed = [], job.identity, job.known()
    identify = _Identities()
    for index, setting in enumerate(settings):
        known = fixed | {short[name]: value for name, value in setting.items()}
        for name, function, needs in order:
            setting[name] = known[short[name]] = function(**{need: known[need] for need in needs})
        values = {paths[name]: setting[name] for name in names}
        identities = {".".join(path): identify(value) for path, value in values.items()}
        # without identities points differ by their position: such a sweep has no store
        position = [] if identify.missing is None else [index]
        points.append(
            Point(index, hash_plain([identity, identities, *position])[:24], values, identities)
        )
    if len({point.name for point in points}) < count:
        raise checks.reject("over", over, "two points have the same parameters: give each once")
    if isinstance(axes, dict):
        dims = {short[name]: _labels(name, values) for name, values in axes.items()}
        along = {}
    else:
        dims = {"point": list(range(count))}
        along = {
            short[name]: ("point", [label(setting[name]) for setting in settings]) for name in names
        }
    dependent = {
        short[name]: [label(point.values[paths[name]]) for point in points] for name, _, _ in order
    }
    titles = {short[name]: ".".join(paths[name]) for name in names}
    return SweepPlan(
        dims,
        along,
        dependent,
        points,
        titles,
        find_unidentified(job.describe()) or identify.missing,
    )


class _Identities:
    """Identities of parameter values, each object computed once: a grid repeats its values."""

    def __init__(self) -> None:
        self.missing: str | None = None
        self._known: dict[int, tuple[object, Any]] = {}

    def __call__(self, value: object) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return plain(value)
        if id(value) not in self._known:
            identity = plain(value)
            self.missing = self.missing or find_unidentified(identity)
            self._known[id(value)] = (value, identity)
        return self._known[id(value)][1]


def _columns(
    over: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[list[str], dict[str, Any], Any]:
    """Names, the values of each at every point (or the function that gives them), and for a grid its axes."""
    if isinstance(over, Mapping) and over:
        axes = {}
        for name, values in over.items():
            if callable(values):
                continue
            if (
                isinstance(values, (str, bytes, Mapping))
                or not hasattr(values, "__len__")
                or getattr(values, "shape", None) == ()
            ):
                raise checks.reject(
                    f"over[{name!r}]",
                    values,
                    "give a list of values, or a function of the other parameters",
                )
            axes[name] = list(values)
            if not axes[name]:
                raise checks.reject(f"over[{name!r}]", values, "give at least one value")
        if not axes:
            raise checks.reject(
                "over",
                over,
                "all parameters depend on others: give a list of values for one at least",
            )
        size = math.prod(len(values) for values in axes.values())
        if size > MOST_POINTS:
            raise checks.reject(
                "over",
                {name: len(values) for name, values in axes.items()},
                f"that is {size:.3g} points: give fewer values",
            )
        shape = {name: len(values) for name, values in axes.items()}
        check_memory(
            "over", shape, POINT_BYTES * size, f"{size:.3g} points", "give fewer values", host=True
        )
        product = list(zip(*itertools.product(*axes.values()), strict=True))
        columns: dict[str, Any] = dict(zip(axes, product, strict=True))
        columns |= {name: values for name, values in over.items() if callable(values)}
        return list(over), columns, axes
    if (
        isinstance(over, Sequence)
        and not isinstance(over, str)
        and over
        and all(isinstance(setting, Mapping) and setting for setting in over)
    ):
        names = list(over[0])
        for setting in over:
            if set(setting) != set(names):
                raise checks.reject(
                    "over",
                    setting,
                    f"every point of a list needs the same parameters, here {', '.join(names)}",
                )
        return names, {name: [setting[name] for setting in over] for name in names}, None
    raise checks.reject(
        "over",
        over,
        'give {"lr": [0.1, 0.2], ...} (every combination) or [{"lr": 0.1, ...}, ...] (a list of points)',
    )


def _labels(name: str, values: list[Any]) -> list[Any]:
    """Coordinates of an axis; equal texts of different objects get a part of their hash."""
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
            raise checks.reject(
                f"over[{name!r}]", values, "two values are the same: give each once"
            )
    return [
        f"{text} {digest(identity)[:8]}" if text in repeated else text
        for text, identity in zip(labels, identities, strict=True)
    ]


def label(value: object) -> Any:
    """A value as a coordinate: numbers and text unchanged, anything else as a short text."""
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


def find(job: Job, name: object) -> Path:
    """The parameter that a name stands for: dotted, or bare where only one has it (an argument of the solver before all)."""
    if not isinstance(name, str) or not name:
        raise checks.reject("over", name, 'name parameters by text, such as "algorithm.lr" or "lr"')
    open_to = {section: job.names(section) for section in SECTIONS}
    options = job.option_paths()
    option_arguments = {argument for _, argument, _ in options.values()}
    first, dot, _ = name.partition(".")
    # "method.rank" is short for "arguments.method.rank"
    full_name = f"arguments.{name}" if dot and first in option_arguments else name
    path = tuple(full_name.split("."))
    if path[0] in SECTIONS and len(path) > 1:
        known = open_to[path[0]]
        if known is not None and path[1] not in known:
            close = checks.did_you_mean(path[1], known)
            why = f"it takes {', '.join(known)}" if known else job.closed(path[0])
            raise checks.reject(
                "over",
                name,
                f"the {path[0].rstrip('s')} has no parameter {path[1]!r}: {close}{why}",
            )
        if len(path) > 2:
            job.inner(path)
        return path
    if len(path) > 1:
        raise checks.reject(
            "over",
            name,
            f"{checks.did_you_mean(path[0], SECTIONS)}a dotted name begins with one of {', '.join(SECTIONS)}",
        )
    homes = [
        section
        for section in SECTIONS
        if open_to[section] is not None and name in (open_to[section] or ())
    ]
    if "arguments" in homes or (not homes and open_to["arguments"] is None):
        return ("arguments", name)
    if not homes and name in options:
        return options[name]
    if len(homes) == 1:
        return (homes[0], name)
    if homes:
        raise checks.reject(
            "over",
            name,
            f"it is a parameter of more than one: write {' or '.join(f'{home}.{name}' for home in homes)}",
        )
    everything = [known for section in SECTIONS for known in open_to[section] or ()]
    everything += options
    listed = "; ".join(
        f"{section}: {', '.join(known)}" for section, known in open_to.items() if known
    )
    raise checks.reject(
        "over",
        name,
        f"no such parameter: {checks.did_you_mean(name, everything)}there are {listed}",
    )


def _short(names: list[str], paths: dict[str, Path]) -> dict[str, str]:
    """The name of each parameter in the result: its last part where that is free, else all of it."""
    last = [path[-1] for path in paths.values()]
    short = {}
    for name in names:
        free = last.count(paths[name][-1]) == 1 and paths[name][-1] not in TAKEN
        short[name] = paths[name][-1] if free else ".".join(paths[name])
    return short


def _order(
    names: list[str], columns: dict[str, Any], short: dict[str, str], job: Job
) -> list[tuple[str, Callable[..., Any], list[str]]]:
    """Dependent parameters so that each comes after what it depends on."""
    ready = set(job.known()) | {short[name] for name in columns}
    waiting = dict.fromkeys(names)
    needs = {}
    for name in names:
        try:
            signature = inspect.signature(columns[name]).parameters.values()
        except (TypeError, ValueError):
            raise checks.reject(
                f"over[{name!r}]", columns[name], "give a Python function of named parameters"
            ) from None
        needs[name] = [
            part.name
            for part in signature
            if part.default is inspect.Parameter.empty or part.name in ready
        ]
        for need in needs[name]:
            if need not in ready or need == short[name]:
                close = checks.did_you_mean(need, ready - {short[name]})
                raise checks.reject(
                    f"over[{name!r}]",
                    need,
                    f"it depends on a parameter that is not there: {close}there are {_listed(ready)}",
                )
    order = []
    while waiting:
        blocked = {short[name] for name in waiting}
        free = [name for name in waiting if not blocked & set(needs[name])]
        if not free:
            raise checks.reject(
                "over",
                list(waiting),
                "these parameters depend on one another in a circle: give values for one of them",
            )
        for name in free:
            order.append((name, columns[name], needs[name]))
            del waiting[name]
    return order


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def family(point: Point) -> str:
    """What two points must share to be solved together, as far as their values tell: all that is not a traced number."""
    kept = {}
    for path, value in point.values.items():
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
            value, bool
        )
        if number and path[-1] not in SHAPES:
            # at these a problem becomes another one: gradient flow, a mixture without noise
            value = (
                "0"
                if value == 0 and path[-1] == "lr"
                else "inf"
                if value in (math.inf, -math.inf)
                else "number"
            )
        elif isinstance(value, np.ndarray):
            value = ["array", *value.shape]
        else:
            value = point.identities[".".join(path)]
        kept[".".join(path)] = value
    return hash_plain(kept)


def groups(points: list[Point], size: Callable[[Point], int]) -> list[list[Point]]:
    """Points that are solved together, in the order of the grid: the same groups whoever computes them."""
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(family(point), []).append(point)
    found = []
    for members in families.values():
        step = size(members[0])
        found += [members[first : first + step] for first in range(0, len(members), step)]
    return found
