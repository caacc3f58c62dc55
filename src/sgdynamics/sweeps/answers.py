"""Answers of any solver as stacks of arrays with a leading axis of points, and stacks as one labelled Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.exit_times import ExitTimes
from sgdynamics.base.arrays import Function
from sgdynamics.results.datasets import Parts

KEPT = (
    "method",
    "assumptions",
    "integrator",
    "clock",
)  # attributes of a solver's Dataset that a sweep passes on
OWN = ("point_name", "point_values", "failed", "warning")
MISSING = "not computed yet"
LARGEST_INTEGER = (
    2**53
)  # beyond it integers are not exact next to NaN, which stands for missing points


@dataclass(frozen=True)
class Variable:
    """One variable of one point, or with a leading axis of points."""

    dims: tuple[str, ...]
    values: Any  # an array, or a NumPy number
    attributes: dict[str, Any] = field(default_factory=dict)
    coordinate: bool = False

    @property
    def layout(self) -> tuple[Any, ...]:
        """What a variable must share at all points: dimensions, text or numbers, and whether it labels an axis."""
        dims = tuple(dim for dim in self.dims if dim != "point")
        is_text = self.values.dtype.kind == "O"
        return dims, is_text, self.coordinate, self.attributes.get("index_of")


@dataclass
class Answer:
    """The answer at one point."""

    variables: dict[str, Variable] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    warning: str = ""

    def hold(
        self,
        name: str,
        dims: tuple[str, ...],
        values: np.ndarray,
        attributes: dict[str, Any],
        coordinate: bool,
    ) -> None:
        """Add a variable; the labels of an axis get a name of their own, as points may differ in them."""
        index = dims == (name,)
        attributes = _stored_attributes(attributes) | ({"index_of": name} if index else {})
        key = f"{name}_values" if index else name
        if key in self.variables:
            raise ValueError(
                f"the answer has a variable {key!r}, which a sweep uses for the labels of an axis. Rename it"
            )
        self.variables[key] = Variable(dims, _values(name, values), attributes, coordinate)


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

    def row(self, index: int) -> Stack:
        """One of its points."""
        rows = slice(index, index + 1)
        variables = {
            name: replace(one, values=one.values[rows]) for name, one in self.variables.items()
        }
        return Stack(self.names[rows], self.failed[rows], self.warning[rows], variables, self.texts)


def storable_text(text: object) -> str:
    """A text without the characters that files cannot hold (NUL and lone surrogates), which are escaped."""
    return str(text).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """An error in one line, also where its message cannot be had."""
    try:
        message = str(error)
    except BaseException:
        message = "its message cannot be shown, because its __str__ fails"
    return storable_text(" ".join(f"{type(error).__name__}: {message}".split()))


def _stored_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes that files can hold."""
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            kept[storable_text(name)] = storable_text(value)
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
            kept[storable_text(name)] = value
    return kept


def answer_of(answer: Function) -> Answer:
    """A Dataset, a dataclass, a dictionary of numbers, or a number, as named arrays."""
    own = Answer()
    if isinstance(answer, xr.Dataset):
        for name, values in answer.variables.items():
            own.hold(
                str(name),
                tuple(map(str, values.dims)),
                values.values,
                values.attrs,
                name in answer.coords,
            )
    elif isinstance(answer, Parts):
        for name, (dims, values, attributes) in (answer.variables | answer.coords).items():
            own.hold(
                name,
                (dims,) if isinstance(dims, str) else dims,
                values,
                attributes,
                name in answer.coords,
            )
    elif isinstance(answer, ExitTimes):
        own.variables = {
            "times": Variable(
                ("run",), answer.times, {"long_name": "exit times t; NaN: did not leave"}
            ),
            "diverged": Variable(
                ("run",), answer.diverged.astype(np.int8), {"long_name": "whether a run diverged"}
            ),
            "mean": Variable(
                (), np.float64(answer.mean), {"long_name": "mean exit time over the runs that left"}
            ),
            "standard_error": Variable(
                (), np.float64(answer.standard_error), {"long_name": "standard error of the mean"}
            ),
            "left": Variable((), np.int64(answer.left), {"long_name": "runs that left"}),
        }
        own.texts = {"method": f"exit_time-{answer.method}"}
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        parts = {part.name: getattr(answer, part.name) for part in dataclasses.fields(answer)}
        own.variables = _plain_variables(
            {name: value for name, value in parts.items() if _numeric(value)}
        )
    elif isinstance(answer, Mapping):
        own.variables = _plain_variables(answer)
    elif _numeric(answer):
        own.variables = _plain_variables({"value": answer})
    for name, value in answer.attrs.items() if isinstance(answer, (xr.Dataset, Parts)) else ():
        if name.startswith("error") and np.ndim(value) == 0 and not isinstance(value, str):
            own.variables[name] = Variable(
                (), np.float64(value), {"long_name": name.replace("_", " ") + " of the solver"}
            )
        elif name in KEPT:
            own.texts[name] = storable_text(value)
    if not own.variables:
        raise TypeError(
            f"the solver returned {type(answer).__name__}: return a Dataset, a dataclass, a dict of numbers, or a number"
        )
    return own


def checked(own: Answer, swept: Iterable[str]) -> Answer:
    """Reject names that a sweep uses itself or that files cannot hold."""
    swept = set(swept)
    dims = {dim for variable in own.variables.values() for dim in variable.dims}
    for name in [*own.variables, *dims]:
        if not name or "/" in name or name in (".", "..") or storable_text(name) != name:
            raise ValueError(
                f"the answer has the name {storable_text(name)!r}, which files cannot hold. Use a name without a slash"
            )
    clash = sorted((swept | set(OWN)) & set(own.variables))
    if clash:
        raise ValueError(
            f"the answer has a variable {clash[0]!r}, which is also the name of a parameter: rename it"
        )
    clash = sorted((swept | {"point"}) & dims)
    if clash:
        raise ValueError(
            f"the answer has a dimension {clash[0]!r}, which a sweep uses itself: rename it"
        )
    clash = sorted(dims & set(own.variables))
    if clash:
        raise ValueError(
            f"the answer has a dimension and a variable of the name {clash[0]!r}. Rename one of them"
        )
    return own


def _numeric(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and hasattr(
        value, "__float__" if np.ndim(value) == 0 else "__len__"
    )


def _plain_variables(parts: Mapping[Any, Any]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for name, value in parts.items():
        values = _values(name, np.asarray(value))
        if str(name) in variables:
            raise ValueError(f"the answer has two entries of the name {name!r}. Rename one of them")
        variables[str(name)] = Variable(
            tuple(f"{name}_{axis}" for axis in range(values.ndim)), values
        )
    return variables


def _values(name: object, values: np.ndarray) -> np.ndarray:
    """Values that files can hold: real numbers, or text."""
    kind = values.dtype.kind
    if kind in "US" or (kind == "O" and all(isinstance(value, str) for value in values.flat)):
        texts = values.astype(str).astype(object)
        if any(storable_text(text) != text for text in texts.flat):
            raise ValueError(
                f"the answer's {name!r} is a text with a NUL or a lone surrogate, which files cannot hold. Remove it"
            )
        return texts
    if kind == "O" and all(isinstance(value, (int, np.integer)) for value in values.flat):
        kind = "i"
    elif kind == "b":
        return values.astype(np.int8)
    if kind not in "iuf":
        raise TypeError(
            f"the answer's {name!r} has values of type {values.dtype}: return real numbers (a complex one as two)"
        )
    if (
        kind in "iu"
        and values.size
        and max(abs(int(values.max())), abs(int(values.min()))) > LARGEST_INTEGER
    ):
        raise ValueError(
            f"the answer's {name!r} is an integer beyond 2**53, which is not stored exactly. Return a float or a text"
        )
    return values.astype(np.int64) if kind in "iu" and values.dtype.kind in "uO" else values


def stacked(names: list[str], answers: list[Answer]) -> list[Stack]:
    """Answers as stacks, one for each group of points whose variables have the same layout."""
    parts = [
        Stack(
            [name],
            [own.failed],
            [own.warning],
            {key: _lifted(one) for key, one in own.variables.items()},
            own.texts,
        )
        for name, own in zip(names, answers, strict=True)
    ]
    return joined(parts)


def failure(names: list[str], text: str) -> Stack:
    """Points that have failed, all for the same reason."""
    return Stack(names, [text] * len(names), [""] * len(names), {}, {})


def _lifted(one: Variable) -> Variable:
    return Variable(
        ("point", *one.dims), np.asarray(one.values)[None], one.attributes, one.coordinate
    )


def joined(parts: list[Stack]) -> list[Stack]:
    """Stacks as few larger ones, in this order; those that differ in the layout of their variables stay apart."""
    groups: dict[frozenset[Any], list[Stack]] = {}
    for part in parts:
        layout = frozenset((name, one.layout) for name, one in part.variables.items())
        groups.setdefault(layout, []).append(part)
    failures = groups.pop(frozenset(), [])
    stacks = [_joined(members) for members in groups.values()]
    # failed points have no variables and go with any others, which saves a file
    return [_joined([*stacks[:1], *failures]), *stacks[1:]] if failures else stacks


def _joined(parts: list[Stack]) -> Stack:
    if len(parts) == 1:
        return parts[0]
    total = sum(len(part) for part in parts)
    positions, first = [], 0
    for part in parts:
        positions.append(np.arange(first, first + len(part)))
        first += len(part)
    texts: dict[str, str] = {}
    for part in parts:
        for name, text in part.texts.items():
            texts[name] = text if texts.get(name, text) == text else "several"
    return Stack(
        [name for part in parts for name in part.names],
        [text for part in parts for text in part.failed],
        [text for part in parts for text in part.warning],
        _gathered(parts, positions, [np.arange(len(part)) for part in parts], total),
        texts,
    )


def _gathered(
    parts: list[Stack], places: list[np.ndarray], rows: list[np.ndarray], total: int
) -> dict[str, Variable]:
    """Every variable over `total` points: rows[i] of part i go to places[i]."""
    found: dict[str, Variable] = {}
    names = list(dict.fromkeys(name for part in parts for name in part.variables))
    for name in names:
        held = [
            (part.variables[name], place, row)
            for part, place, row in zip(parts, places, rows, strict=True)
            if name in part.variables
        ]
        first = held[0][0]
        shape = tuple(
            max(sizes) for sizes in zip(*(one.values.shape[1:] for one, _, _ in held), strict=True)
        )
        whole = sum(len(place) for _, place, _ in held) == total and all(
            one.values.shape[1:] == shape for one, _, _ in held
        )
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
    """The answers at these points, in this order: a good one before a failed one, later before earlier; MISSING where there is none.

    A variable has the layout that most points give it; a point that gives it another fails.
    """
    position = {name: index for index, name in enumerate(order)}
    best: dict[str, tuple[int, int]] = {}
    for number, part in enumerate(parts):
        for row, name in enumerate(part.names):
            if name in position and (
                name not in best
                or not part.failed[row]
                or parts[best[name][0]].failed[best[name][1]]
            ):
                best[name] = (number, row)
    failed, warning = [MISSING] * len(order), [""] * len(order)
    rows: list[list[int]] = [[] for _ in parts]
    for name, (number, row) in best.items():
        failed[position[name]], warning[position[name]] = (
            parts[number].failed[row],
            parts[number].warning[row],
        )
        if not parts[number].failed[row]:
            rows[number].append(row)
    for number, text in _misfits(parts, [len(part_rows) for part_rows in rows]).items():
        for row in rows[number]:
            failed[position[parts[number].names[row]]] = text
        rows[number] = []
    texts: dict[str, str] = {}
    for part, used in zip(parts, rows, strict=True):
        for name, text in part.texts.items() if used else ():
            texts[name] = text if texts.get(name, text) == text else "several"
    used = [number for number in range(len(parts)) if rows[number]]
    positions = [
        np.array([position[parts[number].names[row]] for row in rows[number]]) for number in used
    ]
    variables = _gathered(
        [parts[number] for number in used],
        positions,
        [np.array(rows[number]) for number in used],
        len(order),
    )
    return Stack(order, failed, warning, variables, texts)


def _misfits(parts: list[Stack], counts: list[int]) -> dict[int, str]:
    """Stacks that cannot be put together with the others, each with the reason; `counts` are the points taken from each."""
    misfits: dict[int, str] = {}
    layouts: dict[str, dict[Any, int]] = {}
    for part, count in zip(parts, counts, strict=True):
        for name, one in part.variables.items() if count else ():
            votes = layouts.setdefault(name, {})
            votes[one.layout] = votes.get(one.layout, 0) + count
    for name, votes in layouts.items():
        usual = max(votes, key=votes.__getitem__)
        for number, part in enumerate(parts):
            if counts[number] and name in part.variables and part.variables[name].layout != usual:
                here, elsewhere = _layout_text(part.variables[name].layout), _layout_text(usual)
                misfits[number] = (
                    f"ValueError: the answer's {name!r} has {here} at this point and {elsewhere} at most others. "
                    "Return the same dimensions and the same kind of values at every point"
                )
    fitting = [number for number, count in enumerate(counts) if count and number not in misfits]
    dims = {
        dim: []
        for number in fitting
        for one in parts[number].variables.values()
        for dim in one.layout[0]
    }
    for dim in dims:
        with_variable = [number for number in fitting if dim in parts[number].variables]
        with_dimension = [
            number
            for number in fitting
            if any(dim in one.layout[0] for one in parts[number].variables.values())
        ]
        if with_variable and with_dimension:
            fewer = min(
                (with_dimension, with_variable),
                key=lambda numbers: sum(counts[number] for number in numbers),
            )
            text = f"ValueError: {dim!r} is a dimension of the answer at some points and a variable at others. Rename one of them"
            misfits |= dict.fromkeys(fewer, text)
    return misfits


def _layout_text(layout: tuple[Any, ...]) -> str:
    dims, is_text, coordinate, _ = layout
    kind = "texts" if is_text else "numbers"
    return f"dimensions ({', '.join(dims)}) of {kind}{' as a coordinate' if coordinate else ''}"


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
            coordinates[one.attributes.get("index_of", name)] = (
                one.dims[1:],
                _text(some[0]),
                attributes,
            )
            continue
        home = coordinates if one.coordinate else variables
        home[name] = (
            (*dims, *one.dims[1:]),
            _text(values.reshape(*shape, *values.shape[1:])),
            attributes,
        )
    return variables, coordinates


def _same(values: np.ndarray) -> bool:
    first = np.broadcast_to(values[:1], values.shape)
    return (
        bool(np.all(values == first))
        if values.dtype.kind == "O"
        else np.array_equal(values, first, equal_nan=True)
    )


def _text(values: np.ndarray) -> Any:
    values = np.asarray(values)
    return values.astype(str) if values.dtype.kind == "O" else values
