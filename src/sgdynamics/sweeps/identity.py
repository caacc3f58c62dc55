"""What makes two values, or two sweeps, the same: plain JSON of them, user's functions by their source, and its hash."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from types import CellType
from typing import Any, SupportsFloat

import numpy as np

from sgdynamics.arrays import Function
from sgdynamics.controls import Schedule, describe_schedule
from sgdynamics.problems.activations import function_identity


def digest(value: object) -> str:
    """A hash of a value that is the same in every process and on every machine."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def plain(value: object) -> Any:
    """A value as JSON: 1 and 1.0 are the same, arrays go by their bytes, functions by source, defaults and what they close over."""
    if value is None or isinstance(value, (bool, np.bool_, str)):
        return value if not isinstance(value, np.bool_) else bool(value)
    if isinstance(value, (int, float, np.integer, np.floating)):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(part) for part in value), key=repr)
    if isinstance(value, Schedule):
        return plain(describe_schedule(value)[0])
    describe = getattr(value, "describe", None)
    if describe is not None:
        return plain(describe())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"dataclass": type(value).__name__, **fields}
    if isinstance(value, functools.partial):
        return {"partial": plain(value.func), "args": plain(value.args), "keywords": plain(value.keywords)}
    if callable(value):
        return _function(value)
    if hasattr(value, "__array__"):
        return _array(np.asarray(value))
    raise ValueError(
        f"a sweep cannot record a value of type {type(value).__name__}, which has no identity that outlives this process: give numbers, "
        "text, lists, dictionaries, arrays or functions"
    )


def _number(value: SupportsFloat) -> int | float | str:
    if isinstance(value, (int, np.integer)):
        return int(value)
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    return int(number) if number.is_integer() else number


def _array(value: np.ndarray) -> Any:
    if value.ndim == 0:
        return plain(value.item())
    if value.dtype == object or value.dtype.kind in "US":
        return plain(value.tolist())
    if value.dtype.kind in "biu":
        value = value.astype(np.float64)
    if value.size <= 64 and value.dtype.kind == "f":
        return plain(value.tolist())  # as a list of the same numbers would be
    return {"array": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(), "shape": list(value.shape)}


def _function(function: Function) -> Any:
    """Source alone does not tell two closures apart: what they hold counts too, where it is plain."""
    found: dict[str, Any] = dict(function_identity(function))
    held = list(getattr(function, "__defaults__", None) or ())
    held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    held += list((getattr(function, "__kwdefaults__", None) or {}).items())
    if not hasattr(function, "__code__") and hasattr(function, "__dict__"):
        held += sorted(vars(function).items())
    if held:
        found["holds"] = [_plain_or_type(part) for part in held]
    return found


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _plain_or_type(value: object) -> Any:
    try:
        return plain(value)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def label(value: object) -> Any:
    """A value as a coordinate: numbers and text as they are, anything else by a short text."""
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return int(value)
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
