"""Operations on the entries of unrolled arrays.

An entry is a NumPy scalar if its value is a constant, or else a traced vector with one value per
lane. `None` stands for an entry that is not computed (the orthogonal factor of a QR decomposition).

An unrolled step has thousands of entries, and compilation grows with the square of their number.
Two reductions therefore happen while entries are made: a product with a constant 0 or 1 is no
operation, and an operation on the same operands is computed once (common subexpressions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base.arrays import ArrayArgument, DType
from sgdynamics.simulation.gpu.constant_folding import Primitive, evaluate
from sgdynamics.simulation.gpu.program import NotUnrollable

# A NumPy scalar (a constant), a traced vector over the lanes, or None.
Entry = Any

MISSING_FACTOR = "the orthogonal factor of a QR decomposition"

# Primitives whose operands may be exchanged: x + y and y + x share one result.
COMMUTATIVE = frozenset({"add", "add_any", "mul", "max", "min", "eq", "ne", "and", "or", "xor"})

# Results of operations by their operands, for the programs that are being unrolled. A program
# inside of another one (a branch, a loop body) uses the results of the outer one.
_results: list[dict[Any, Any]] = []


@contextmanager
def common_subexpressions() -> Iterator[None]:
    """Reuse results of equal operations inside of the context."""
    _results.append(_results[-1] if _results else {})
    try:
        yield
    finally:
        _results.pop()


# ---- arrays of entries


def object_array(entries: Sequence[Entry], shape: tuple[int, ...]) -> np.ndarray:
    """Entries in row-major order as an array of objects."""
    # np.array(entries) would look into the entries, which are arrays, and stack them.
    array = np.empty(len(entries), dtype=object)
    for index, entry in enumerate(entries):
        array[index] = entry
    return array.reshape(shape)


def constant_entries(values: ArrayArgument) -> np.ndarray:
    """An array of constants as an array of entries."""
    values = np.asarray(values)
    return object_array(list(values.reshape(-1)), values.shape)


def constant_values(entries: np.ndarray, empty_dtype: DType = np.float64) -> np.ndarray:
    """The values of an array of constant entries; an array without entries has `empty_dtype`."""
    dtype = entries.reshape(-1)[0].dtype if entries.size else empty_dtype
    # The list of an empty array has lost its shape: restore it.
    return np.array(entries.tolist(), dtype=dtype).reshape(entries.shape)


def map_entries(operation: Callable[..., Entry], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Apply an operation to the entries of arrays of one shape."""
    outputs = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(*outputs.shape):
        outputs[index] = operation(*(array[index] for array in arrays))
    return outputs


def is_constant(entry: Entry) -> bool:
    """Whether the value of an entry is known while the function is unrolled."""
    return isinstance(entry, np.generic)


def are_constant(entries: np.ndarray) -> bool:
    """Whether all entries of an array are constants."""
    return all(is_constant(entry) for entry in entries.reshape(-1))


def equals(entry: Entry, value: float) -> bool:
    """Whether an entry is known to have this value."""
    return is_constant(entry) and bool(entry == value)


# ---- operations


def compute_once(
    name: str, params: str, operation: Callable[..., Entry], operands: tuple[Entry, ...]
) -> Entry:
    """The result of an operation, computed once for the same operands."""
    # Constants are compared by value and dtype, vectors by identity.
    keys = [
        f"{operand.dtype}{operand!r}" if is_constant(operand) else str(id(operand))
        for operand in operands
    ]
    key = (name, params, *(sorted(keys) if name in COMMUTATIVE else keys))
    if key not in _results[-1]:
        # The operands are stored too: an object that is freed gives its id to another one.
        _results[-1][key] = (operation(*operands), operands)
    return _results[-1][key][0]


def apply_primitive(primitive: Primitive, params: dict[str, Any], *operands: Entry) -> Entry:
    """A primitive on entries: constants give a constant, others a vector over the lanes."""
    if any(operand is None for operand in operands):
        raise NotUnrollable(MISSING_FACTOR)
    if all(is_constant(operand) for operand in operands):
        return evaluate(primitive, params, [np.asarray(operand) for operand in operands])[0][()]
    return _apply(primitive.name, partial(primitive.bind, **params), params, operands)


def _apply(
    name: str,
    function: Callable[..., Entry],
    params: dict[str, Any],
    operands: tuple[Entry, ...],
) -> Entry:
    """A function of vectors of one shape; at least one operand is not a constant."""
    if any(operand is None for operand in operands):
        raise NotUnrollable(MISSING_FACTOR)
    # Primitives do not broadcast: uniform values (shape ()) are spread over the lanes first.
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))

    def compute(*operands: Entry) -> Entry:
        vectors = (
            operand if np.shape(operand) == shape else jnp.broadcast_to(operand, shape)
            for operand in operands
        )
        return function(*vectors)

    return compute_once(name, str(params), compute, operands)


def add(x: Entry, y: Entry) -> Entry:
    """The sum x + y; no operation if a term is 0."""
    if equals(x, 0):
        return y
    if equals(y, 0):
        return x
    return x + y if is_constant(x) and is_constant(y) else _apply("add", jax.lax.add, {}, (x, y))


def multiply(x: Entry, y: Entry) -> Entry:
    """The product x y; no operation if a factor is 0 or 1."""
    if equals(x, 0) or equals(y, 0):
        return np.float64(0)
    if equals(x, 1):
        return y
    if equals(y, 1):
        return x
    return x * y if is_constant(x) and is_constant(y) else _apply("mul", jax.lax.mul, {}, (x, y))


def add_all(entries: Sequence[Entry]) -> Entry:
    """The sum of entries, from the first to the last."""
    total = np.float64(0)
    for entry in entries:
        total = add(total, entry)
    return total


def where(condition: Entry, if_true: Entry, if_false: Entry) -> Entry:
    """One of two entries, lane by lane."""
    if is_constant(condition):
        return if_true if condition else if_false
    if if_true is if_false:
        return if_true
    # A constant takes the dtype of the vector it is selected against.
    vectors = (entry for entry in (if_true, if_false) if not is_constant(entry))
    dtype = next((entry.dtype for entry in vectors), if_true.dtype)
    if_true, if_false = (
        entry.astype(dtype) if is_constant(entry) else entry for entry in (if_true, if_false)
    )
    return _apply("select_n", jax.lax.select_n, {}, (condition, if_false, if_true))


def choose(index: Entry, entries: Sequence[Entry]) -> Entry:
    """The entry with this index, which may differ between lanes; clamped to the valid range."""
    chosen = entries[-1]
    for position in range(len(entries) - 2, -1, -1):
        chosen = where(index <= position, entries[position], chosen)
    return chosen


def simplify(
    name: str,
    operation: Callable[..., Entry],
    operands: tuple[Entry, ...],
    dtype: np.dtype[Any],
) -> Entry:
    """An elementwise operation, or no operation where a known operand decides the result.

    A product with a known 0 is 0, even if the other factor is infinite or NaN in some lane: entries
    that are 0 by construction of the step stay 0 while a run diverges.
    """
    first, last = operands[0], operands[-1]
    if name in ("add", "add_any") and (equals(first, 0) or equals(last, 0)):
        return last if equals(first, 0) else first
    if name == "sub" and equals(last, 0):
        return first
    if name == "mul" and (equals(first, 0) or equals(last, 0)):
        return dtype.type(0)
    if name == "mul" and (equals(first, 1) or equals(last, 1)):
        return last if equals(first, 1) else first
    if name == "div" and (equals(first, 0) or equals(last, 1)):
        return first
    if name == "div" and not is_constant(last) and np.issubdtype(dtype, np.floating):
        # Several quotients with one divisor, as of a row and its norm, share one reciprocal. A
        # division in float64 takes as long as thirty products.
        inverse = compute_once("inverse", "", lambda divisor: 1 / divisor, (last,))
        return inverse if equals(first, 1) else _apply("mul", jax.lax.mul, {}, (first, inverse))
    if name == "select_n" and is_constant(first):
        return operands[1 + int(first)]
    if name == "select_n" and len(operands) > 3:
        # Triton selects between two values only.
        return choose(first, operands[1:])
    if name in ("and", "or") and dtype == np.bool_ and (is_constant(first) or is_constant(last)):
        constant, other = (first, last) if is_constant(first) else (last, first)
        return other if bool(constant) == (name == "and") else np.bool_(name == "or")
    if name in ("copy", "copy_p") or (
        name == "convert_element_type" and not is_constant(first) and first.dtype == dtype
    ):
        return first
    return operation(*operands)
