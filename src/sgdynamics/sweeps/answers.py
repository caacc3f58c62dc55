"""Answers of any solver as arrays with a leading axis of points, and these as one Dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.exit_results import ExitTimes
from sgdynamics.results.datasets import ResultParts

# Attributes of a solver's result that the result of the sweep has too.
PASSED_ATTRIBUTES = ("method", "assumptions", "integrator", "clock")
RESERVED_NAMES = ("point_name", "point_values", "failed", "warning")
MISSING = "not computed yet"
# Larger integers are not exact as float64, which a variable with missing points needs for NaN.
MAX_INTEGER = 2**53


@dataclass(frozen=True)
class Variable:
    """One variable of one point, or with a leading axis of points."""

    dims: tuple[str, ...]
    values: Any  # an array, or a NumPy number
    attributes: dict[str, Any] = field(default_factory=dict)
    coordinate: bool = False

    @property
    def layout(self) -> tuple[Any, ...]:
        """The properties that a variable shares at all points: dimensions, type, use as labels."""
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

    def add(
        self,
        name: str,
        dims: tuple[str, ...],
        values: np.ndarray,
        attributes: dict[str, Any],
        coordinate: bool,
    ) -> None:
        """Add a variable; labels of an axis get another name, because points may differ in them."""
        is_index = dims == (name,)
        attributes = _storable_attributes(attributes) | ({"index_of": name} if is_index else {})
        key = f"{name}_values" if is_index else name
        if key in self.variables:
            raise ValueError(
                f"the answer has a variable {key!r}, which a sweep uses for the labels of an axis. "
                "Rename it."
            )
        self.variables[key] = Variable(dims, _values(name, values), attributes, coordinate)


@dataclass
class Stack:
    """The answers at several points.

    Variables that a point lacks, or has in a smaller shape, are filled with NaN or empty text.
    """

    names: list[str]
    failed: list[str]
    warning: list[str]
    variables: dict[str, Variable]
    texts: dict[str, str]

    def __len__(self) -> int:
        return len(self.names)

    def row(self, index: int) -> Stack:
        """The stack of one of its points."""
        rows = slice(index, index + 1)
        variables = {
            name: replace(variable, values=variable.values[rows])
            for name, variable in self.variables.items()
        }
        return Stack(self.names[rows], self.failed[rows], self.warning[rows], variables, self.texts)


def storable_text(text: object) -> str:
    """A text that files can contain: NUL and lone surrogates are escaped."""
    return str(text).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """An error in one line, even if its message raises an error."""
    try:
        message = str(error)
    except BaseException:
        message = "its message cannot be shown, because its __str__ fails"
    return storable_text(" ".join(f"{type(error).__name__}: {message}".split()))


def _storable_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """The attributes that files can contain."""
    storable: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            storable[storable_text(name)] = storable_text(value)
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
            storable[storable_text(name)] = value
    return storable


def answer_of(value: object) -> Answer:
    """Convert a Dataset, a dataclass, a dictionary of numbers, or a number to named arrays."""
    answer = Answer()
    if isinstance(value, xr.Dataset):
        for name, array in value.variables.items():
            dims = tuple(map(str, array.dims))
            answer.add(str(name), dims, array.values, array.attrs, name in value.coords)
    elif isinstance(value, ResultParts):
        for name, (dims, array, attributes) in (value.variables | value.coords).items():
            dims = (dims,) if isinstance(dims, str) else dims
            answer.add(name, dims, array, attributes, name in value.coords)
    elif isinstance(value, ExitTimes):
        answer.variables = _exit_variables(value)
        answer.texts = {"method": f"exit_time-{value.method}"}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        answer.variables = _plain_variables(
            {name: number for name, number in fields.items() if _is_numeric(number)}
        )
    elif isinstance(value, Mapping):
        answer.variables = _plain_variables(value)
    elif _is_numeric(value):
        answer.variables = _plain_variables({"value": value})
    attributes = value.attrs if isinstance(value, (xr.Dataset, ResultParts)) else {}
    for name, attribute in attributes.items():
        is_number = np.ndim(attribute) == 0 and not isinstance(attribute, str)
        if name.startswith("error") and is_number:
            long_name = name.replace("_", " ") + " of the solver"
            answer.variables[name] = Variable((), np.float64(attribute), {"long_name": long_name})
        elif name in PASSED_ATTRIBUTES:
            answer.texts[name] = storable_text(attribute)
    if not answer.variables:
        raise TypeError(
            f"the solver returned {type(value).__name__}: return a Dataset, a dataclass, a dict of "
            "numbers, or a number"
        )
    return answer


def _exit_variables(exits: ExitTimes) -> dict[str, Variable]:
    def scalar(value: np.number, long_name: str) -> Variable:
        return Variable((), value, {"long_name": long_name})

    return {
        "times": Variable(("run",), exits.times, {"long_name": "exit times t; NaN: did not leave"}),
        "diverged": Variable(
            ("run",), exits.diverged.astype(np.int8), {"long_name": "whether a run diverged"}
        ),
        "mean": scalar(np.float64(exits.mean), "mean exit time over the runs that left"),
        "standard_error": scalar(np.float64(exits.standard_error), "standard error of the mean"),
        "left": scalar(np.int64(exits.left), "runs that left"),
    }


def check_names(answer: Answer, swept: Iterable[str]) -> Answer:
    """Reject names that a sweep uses or that files cannot contain."""
    swept = set(swept)
    dims = {dim for variable in answer.variables.values() for dim in variable.dims}
    for name in [*answer.variables, *dims]:
        if not name or "/" in name or name in (".", "..") or storable_text(name) != name:
            raise ValueError(
                f"the answer has the name {storable_text(name)!r}, which files cannot contain. Use "
                "a name without a slash."
            )
    clash = sorted((swept | set(RESERVED_NAMES)) & set(answer.variables))
    if clash:
        raise ValueError(
            f"the answer has a variable {clash[0]!r}, which is also the name of a parameter. "
            "Rename it."
        )
    clash = sorted((swept | {"point"}) & dims)
    if clash:
        raise ValueError(
            f"the answer has a dimension {clash[0]!r}, which a sweep uses itself. Rename it."
        )
    clash = sorted(dims & set(answer.variables))
    if clash:
        raise ValueError(
            f"the answer has a dimension and a variable of the name {clash[0]!r}. Rename one of "
            "them."
        )
    return answer


def _is_numeric(value: object) -> bool:
    return not isinstance(value, (str, bytes)) and hasattr(
        value, "__float__" if np.ndim(value) == 0 else "__len__"
    )


def _plain_variables(entries: Mapping[Any, Any]) -> dict[str, Variable]:
    """Arrays by name as variables; the axes of `name` are name_0, name_1, ..."""
    variables: dict[str, Variable] = {}
    for name, value in entries.items():
        values = _values(name, np.asarray(value))
        if str(name) in variables:
            raise ValueError(
                f"the answer has two entries of the name {name!r}. Rename one of them."
            )
        dims = tuple(f"{name}_{axis}" for axis in range(values.ndim))
        variables[str(name)] = Variable(dims, values)
    return variables


def _values(name: object, values: np.ndarray) -> np.ndarray:
    """Values that files can contain: real numbers, or text."""
    kind = values.dtype.kind
    if kind in "US" or (kind == "O" and all(isinstance(value, str) for value in values.flat)):
        texts = values.astype(str).astype(object)
        if any(storable_text(text) != text for text in texts.flat):
            raise ValueError(
                f"the answer's {name!r} is a text with a NUL or a lone surrogate, which files "
                "cannot contain. Remove it."
            )
        return texts
    if kind == "O" and all(isinstance(value, (int, np.integer)) for value in values.flat):
        kind = "i"
    elif kind == "b":
        return values.astype(np.int8)
    if kind not in "iuf":
        raise TypeError(
            f"the answer's {name!r} has values of type {values.dtype}: return real numbers (a "
            "complex one as two)"
        )
    if (
        kind in "iu"
        and values.size
        and max(abs(int(values.max())), abs(int(values.min()))) > MAX_INTEGER
    ):
        raise ValueError(
            f"the answer's {name!r} is an integer beyond 2**53, which is not stored exactly. "
            "Return a float or a text."
        )
    return values.astype(np.int64) if kind in "iu" and values.dtype.kind in "uO" else values


def stack_answers(names: list[str], answers: list[Answer]) -> list[Stack]:
    """Stack the answers at some points: one stack for each layout of variables."""
    rows = [
        Stack(
            [name],
            [answer.failed],
            [answer.warning],
            {key: _with_point_axis(variable) for key, variable in answer.variables.items()},
            answer.texts,
        )
        for name, answer in zip(names, answers, strict=True)
    ]
    return join(rows)


def failure(names: list[str], text: str) -> Stack:
    """Points that have failed, all for the same reason."""
    return Stack(names, [text] * len(names), [""] * len(names), {}, {})


def _with_point_axis(variable: Variable) -> Variable:
    values = np.asarray(variable.values)[None]
    return Variable(("point", *variable.dims), values, variable.attributes, variable.coordinate)


def join(stacks: list[Stack]) -> list[Stack]:
    """Join stacks into as few as possible, in this order.

    Stacks whose variables have different layouts stay separate.
    """
    groups: dict[frozenset[Any], list[Stack]] = {}
    for stack in stacks:
        layout = frozenset((name, variable.layout) for name, variable in stack.variables.items())
        groups.setdefault(layout, []).append(stack)
    # Failed points have no variables and fit any stack, which saves a file.
    failures = groups.pop(frozenset(), [])
    merged = [_concatenate(members) for members in groups.values()]
    return [_concatenate([*merged[:1], *failures]), *merged[1:]] if failures else merged


def _concatenate(stacks: list[Stack]) -> Stack:
    """Concatenate stacks of the same layout, or without variables."""
    if len(stacks) == 1:
        return stacks[0]
    total = sum(len(stack) for stack in stacks)
    targets, first = [], 0
    for stack in stacks:
        targets.append(np.arange(first, first + len(stack)))
        first += len(stack)
    return Stack(
        [name for stack in stacks for name in stack.names],
        [text for stack in stacks for text in stack.failed],
        [text for stack in stacks for text in stack.warning],
        _gather(stacks, targets, [np.arange(len(stack)) for stack in stacks], total),
        _common_texts(stacks),
    )


def _common_texts(stacks: Iterable[Stack]) -> dict[str, str]:
    """The texts of some stacks; "several" where they differ."""
    texts: dict[str, str] = {}
    for stack in stacks:
        for name, text in stack.texts.items():
            texts[name] = text if texts.get(name, text) == text else "several"
    return texts


def _gather(
    stacks: list[Stack], targets: list[np.ndarray], rows: list[np.ndarray], total: int
) -> dict[str, Variable]:
    """The variables over `total` points: rows[i] of stack i go to targets[i]."""
    gathered: dict[str, Variable] = {}
    names = list(dict.fromkeys(name for stack in stacks for name in stack.variables))
    for name in names:
        sources = [
            (stack.variables[name], target, row)
            for stack, target, row in zip(stacks, targets, rows, strict=True)
            if name in stack.variables
        ]
        first = sources[0][0]
        shapes = [variable.values.shape[1:] for variable, _, _ in sources]
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        covered = sum(len(target) for _, target, _ in sources)
        is_complete = covered == total and all(other == shape for other in shapes)
        dtype = np.result_type(*(variable.values.dtype for variable, _, _ in sources))
        if dtype.kind == "O":
            values = np.full((total, *shape), "", dtype=object)
        elif is_complete:
            values = np.empty((total, *shape), dtype=dtype)
        else:
            values = np.full((total, *shape), np.nan, dtype=np.result_type(dtype, np.float64))
        for variable, target, row in sources:
            inside = tuple(slice(0, size) for size in variable.values.shape[1:])
            values[(target, *inside)] = variable.values[row]
        gathered[name] = Variable(first.dims, values, first.attributes, first.coordinate)
    return gathered


def select_points(stacks: list[Stack], order: list[str]) -> Stack:
    """The answers at some points, in this order.

    A good answer is preferred to a failed one, and a later answer to an earlier one; a point
    without an answer is MISSING. A variable has the layout that most points give it; a point that
    gives it another layout fails.
    """
    position = {name: index for index, name in enumerate(order)}
    best: dict[str, tuple[int, int]] = {}
    for number, stack in enumerate(stacks):
        for row, name in enumerate(stack.names):
            if name not in position:
                continue
            is_better = name not in best or not stack.failed[row]
            if is_better or stacks[best[name][0]].failed[best[name][1]]:
                best[name] = (number, row)
    failed, warning = [MISSING] * len(order), [""] * len(order)
    rows: list[list[int]] = [[] for _ in stacks]
    for name, (number, row) in best.items():
        failed[position[name]] = stacks[number].failed[row]
        warning[position[name]] = stacks[number].warning[row]
        if not stacks[number].failed[row]:
            rows[number].append(row)
    for number, text in _misfits(stacks, [len(stack_rows) for stack_rows in rows]).items():
        for row in rows[number]:
            failed[position[stacks[number].names[row]]] = text
        rows[number] = []
    used = [number for number in range(len(stacks)) if rows[number]]
    targets = [
        np.array([position[stacks[number].names[row]] for row in rows[number]]) for number in used
    ]
    variables = _gather(
        [stacks[number] for number in used],
        targets,
        [np.array(rows[number]) for number in used],
        len(order),
    )
    texts = _common_texts(stacks[number] for number in used)
    return Stack(order, failed, warning, variables, texts)


def _misfits(stacks: list[Stack], counts: list[int]) -> dict[int, str]:
    """The stacks that do not fit the others, each with the reason.

    `counts` are the numbers of points used from each stack.
    """
    misfits: dict[int, str] = {}
    votes: dict[str, dict[Any, int]] = {}
    for stack, count in zip(stacks, counts, strict=True):
        for name, variable in stack.variables.items() if count else ():
            layouts = votes.setdefault(name, {})
            layouts[variable.layout] = layouts.get(variable.layout, 0) + count
    for name, layouts in votes.items():
        usual = max(layouts, key=layouts.__getitem__)
        for number, stack in enumerate(stacks):
            variable = stack.variables.get(name)
            if counts[number] and variable is not None and variable.layout != usual:
                misfits[number] = (
                    f"ValueError: the answer's {name!r} has {_layout_text(variable.layout)} at "
                    f"this point and {_layout_text(usual)} at most others. Return the same "
                    "dimensions and the same kind of values at every point"
                )
    fitting = [number for number, count in enumerate(counts) if count and number not in misfits]
    dims = {
        number: {
            dim for variable in stacks[number].variables.values() for dim in variable.layout[0]
        }
        for number in fitting
    }
    for dim in dict.fromkeys(dim for number in fitting for dim in sorted(dims[number])):
        with_variable = [number for number in fitting if dim in stacks[number].variables]
        with_dimension = [number for number in fitting if dim in dims[number]]
        if with_variable and with_dimension:
            fewer = min(
                (with_dimension, with_variable),
                key=lambda group: sum(counts[number] for number in group),
            )
            text = (
                f"ValueError: {dim!r} is a dimension of the answer at some points and a variable "
                "at others. Rename one of them"
            )
            misfits |= dict.fromkeys(fewer, text)
    return misfits


def _layout_text(layout: tuple[Any, ...]) -> str:
    dims, is_text, coordinate, _ = layout
    kind = "texts" if is_text else "numbers"
    return f"dimensions ({', '.join(dims)}) of {kind}{' as a coordinate' if coordinate else ''}"


def dataset(stack: Stack, dims: Mapping[str, list[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data variables and coordinates over the axes of a sweep.

    Coordinates that are the same at all points have no axes of the sweep.
    """
    shape = tuple(len(labels) for labels in dims.values())
    is_good = np.array([not text for text in stack.failed])
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for name, variable in stack.variables.items():
        attributes = {key: value for key, value in variable.attributes.items() if key != "index_of"}
        values = variable.values
        good = values[is_good]
        if variable.coordinate and len(good) and _are_equal(good):
            label = variable.attributes.get("index_of", name)
            coordinates[label] = (variable.dims[1:], _text(good[0]), attributes)
            continue
        values = _text(values.reshape(*shape, *values.shape[1:]))
        target = coordinates if variable.coordinate else variables
        target[name] = ((*dims, *variable.dims[1:]), values, attributes)
    return variables, coordinates


def _are_equal(values: np.ndarray) -> bool:
    first = np.broadcast_to(values[:1], values.shape)
    return (
        bool(np.all(values == first))
        if values.dtype.kind == "O"
        else np.array_equal(values, first, equal_nan=True)
    )


def _text(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    return values.astype(str) if values.dtype.kind == "O" else values
