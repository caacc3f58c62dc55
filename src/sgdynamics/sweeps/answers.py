"""Answers of any solver as stacks of arrays with a leading axis of points, and stacks as one labelled Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.exit_times import ExitTimes
from sgdynamics.arrays import Function
from sgdynamics.results import Parts

KEPT = ("method", "assumptions", "integrator", "clock")  # attributes of a solver's Dataset that a sweep passes on
OWN = ("point_name", "point_values", "failed", "warning")
MISSING = "not computed yet"


@dataclass(frozen=True)
class Variable:
    """One variable of one point, or with a leading axis of points."""

    dims: tuple[str, ...]
    values: Any  # an array, or a NumPy number
    attributes: dict[str, Any] = field(default_factory=dict)
    coordinate: bool = False


@dataclass
class Answer:
    """The answer at one point."""

    variables: dict[str, Variable] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    warning: str = ""

    def hold(self, name: str, dims: tuple[str, ...], values: np.ndarray, attributes: dict[str, Any], coordinate: bool) -> None:
        """Keep a variable; the labels of an axis go under another name, as points may differ in them."""
        index = dims == (name,)
        attributes = attributes | {"index_of": name} if index else attributes
        self.variables[f"{name}_values" if index else name] = Variable(dims, _values(name, values), attributes, coordinate)


@dataclass
class Stack:
    """The answers at several points; what a point lacks, or has in a smaller shape, is filled with NaN (or empty text)."""

    names: list[str]
    failed: list[str]
    warning: list[str]
    variables: dict[str, Variable]
    texts: dict[str, str]

    def __len__(self) -> int:
        return len(self.names)


def answer_of(answer: Function) -> Answer:
    """A Dataset, a dataclass, a dictionary of numbers, or a number, as named arrays."""
    own = Answer()
    if isinstance(answer, xr.Dataset):
        for name, values in answer.variables.items():
            attributes = {key: value for key, value in values.attrs.items() if isinstance(value, (str, int, float))}
            own.hold(str(name), tuple(map(str, values.dims)), values.values, attributes, name in answer.coords)
    elif isinstance(answer, Parts):
        for name, (dims, values, attributes) in (answer.variables | answer.coords).items():
            own.hold(name, (dims,) if isinstance(dims, str) else dims, values, attributes, name in answer.coords)
    elif isinstance(answer, ExitTimes):
        own.variables = {
            "times": Variable(("run",), answer.times, {"long_name": "exit times t; NaN: did not leave"}),
            "diverged": Variable(("run",), answer.diverged.astype(np.int8), {"long_name": "whether a run diverged"}),
            "mean": Variable((), np.float64(answer.mean), {"long_name": "mean exit time over the runs that left"}),
            "standard_error": Variable((), np.float64(answer.standard_error), {"long_name": "standard error of the mean"}),
            "left": Variable((), np.int64(answer.left), {"long_name": "runs that left"}),
        }
        own.texts = {"method": f"exit_time-{answer.method}"}
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        parts = {part.name: getattr(answer, part.name) for part in dataclasses.fields(answer)}
        own.variables = _plain_variables({name: value for name, value in parts.items() if _numeric(value)})
    elif isinstance(answer, Mapping):
        own.variables = _plain_variables(answer)
    elif _numeric(answer):
        own.variables = _plain_variables({"value": answer})
    for name, value in answer.attrs.items() if isinstance(answer, (xr.Dataset, Parts)) else ():
        if name.startswith("error") and np.ndim(value) == 0 and not isinstance(value, str):
            own.variables[name] = Variable((), np.float64(value), {"long_name": name.replace("_", " ") + " of the solver"})
        elif name in KEPT:
            own.texts[name] = str(value)
    if not own.variables:
        raise TypeError(f"the solver returned {type(answer).__name__}: return a Dataset, a dataclass, a dict of numbers, or a number")
    return own


def checked(own: Answer, swept: Iterable[str]) -> Answer:
    """Refuse names that a sweep uses itself."""
    clash = (set(swept) | set(OWN)) & set(own.variables)
    if clash:
        raise ValueError(f"the answer has a variable {sorted(clash)[0]!r}, which is also the name of a parameter: rename it")
    if any("point" in variable.dims for variable in own.variables.values()):
        raise ValueError("the answer has a dimension 'point', which a sweep uses itself: rename it")
    return own


def _numeric(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and hasattr(value, "__float__" if np.ndim(value) == 0 else "__len__")


def _plain_variables(parts: Mapping[Any, Any]) -> dict[str, Variable]:
    found = {}
    for name, value in parts.items():
        values = _values(name, np.asarray(value))
        found[str(name)] = Variable(tuple(f"{name}_{axis}" for axis in range(values.ndim)), values)
    return found


def _values(name: object, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "USO":
        return values.astype(object)
    if values.dtype.kind == "b":
        return values.astype(np.int8)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"the answer's {name!r} has values of type {values.dtype}: return real numbers (a complex one as two)")
    return values


def stacked(names: list[str], answers: list[Answer]) -> Stack:
    """Answers, one under the other."""
    parts = [
        Stack([name], [own.failed], [own.warning], {key: _lifted(one) for key, one in own.variables.items()}, own.texts)
        for name, own in zip(names, answers, strict=True)
    ]
    return joined(parts)


def _lifted(one: Variable) -> Variable:
    return Variable(("point", *one.dims), np.asarray(one.values)[None], one.attributes, one.coordinate)


def joined(parts: list[Stack]) -> Stack:
    """Several stacks as one, in this order."""
    total = sum(len(part) for part in parts)
    places, at = [], 0
    for part in parts:
        places.append(np.arange(at, at + len(part)))
        at += len(part)
    texts: dict[str, str] = {}
    for part in parts:
        for name, text in part.texts.items():
            texts[name] = text if texts.get(name, text) == text else "several"
    return Stack(
        [name for part in parts for name in part.names],
        [text for part in parts for text in part.failed],
        [text for part in parts for text in part.warning],
        _gathered(parts, places, [np.arange(len(part)) for part in parts], total),
        texts,
    )


def _gathered(parts: list[Stack], places: list[np.ndarray], rows: list[np.ndarray], total: int) -> dict[str, Variable]:
    """Every variable over `total` points: rows[i] of part i go to places[i]."""
    found: dict[str, Variable] = {}
    names = list(dict.fromkeys(name for part in parts for name in part.variables))
    for name in names:
        held = [(part.variables[name], place, row) for part, place, row in zip(parts, places, rows, strict=True) if name in part.variables]
        first = held[0][0]
        if any(one.dims != first.dims for one, _, _ in held):
            raise ValueError(
                f"{name!r} has dimensions {first.dims[1:]} at some points and others elsewhere: a sweep cannot put them together"
            )
        shape = tuple(max(sizes) for sizes in zip(*(one.values.shape[1:] for one, _, _ in held), strict=True))
        whole = sum(len(place) for _, place, _ in held) == total and all(one.values.shape[1:] == shape for one, _, _ in held)
        dtype = np.result_type(*(one.values.dtype for one, _, _ in held))
        if dtype.kind == "O":
            values = np.full((total, *shape), "", dtype=object)
        elif whole:
            values = np.empty((total, *shape), dtype=dtype)
        else:
            values = np.full((total, *shape), np.nan, dtype=np.result_type(dtype, np.float64))
        for one, place, row in held:
            inside = tuple(slice(0, size) for size in one.values.shape[1:])
            values[(place, *inside)] = one.values[row]
        found[name] = Variable(first.dims, values, first.attributes, first.coordinate)
    return found


def chosen(parts: list[Stack], order: list[str]) -> Stack:
    """The answers at these points, in this order: a good one before a failed one, later before earlier; MISSING where there is none."""
    place = {name: index for index, name in enumerate(order)}
    best: dict[str, tuple[int, int]] = {}
    for number, part in enumerate(parts):
        for row, name in enumerate(part.names):
            if name in place and (name not in best or not part.failed[row] or parts[best[name][0]].failed[best[name][1]]):
                best[name] = (number, row)
    failed, warning = [MISSING] * len(order), [""] * len(order)
    rows: list[list[int]] = [[] for _ in parts]
    places: list[list[int]] = [[] for _ in parts]
    for name, (number, row) in best.items():
        failed[place[name]], warning[place[name]] = parts[number].failed[row], parts[number].warning[row]
        if not parts[number].failed[row]:
            rows[number].append(row)
            places[number].append(place[name])
    texts: dict[str, str] = {}
    for part, used in zip(parts, rows, strict=True):
        for name, text in part.texts.items() if used else ():
            texts[name] = text if texts.get(name, text) == text else "several"
    used = [number for number in range(len(parts)) if rows[number]]
    where = [np.array(places[number]) for number in used]
    variables = _gathered([parts[number] for number in used], where, [np.array(rows[number]) for number in used], len(order))
    return Stack(order, failed, warning, variables, texts)


def dataset(stack: Stack, dims: Mapping[str, list[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data variables and coordinates over the axes of a sweep; coordinates that are the same at every point lose those axes."""
    shape = tuple(len(labels) for labels in dims.values())
    good = np.array([not text for text in stack.failed])
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for name, one in stack.variables.items():
        attributes = {key: value for key, value in one.attributes.items() if key != "index_of"}
        values = one.values
        some = values[good]
        if one.coordinate and len(some) and _same(some):
            coordinates[one.attributes.get("index_of", name)] = (one.dims[1:], _text(some[0]), attributes)
            continue
        home = coordinates if one.coordinate else variables
        home[name] = ((*dims, *one.dims[1:]), _text(values.reshape(*shape, *values.shape[1:])), attributes)
    return variables, coordinates


def _same(values: np.ndarray) -> bool:
    first = np.broadcast_to(values[:1], values.shape)
    return bool(np.all(values == first)) if values.dtype.kind == "O" else np.array_equal(values, first, equal_nan=True)


def _text(values: np.ndarray) -> Any:
    values = np.asarray(values)
    return values.astype(str) if values.dtype.kind == "O" else values
