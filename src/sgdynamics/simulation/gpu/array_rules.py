"""Unrolled forms of primitives that act on whole arrays: moves, sums, products, QR decompositions.

Each rule takes arrays of entries (`scalars.Entry`) and returns arrays of entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sgdynamics.base.arrays import Numeric
from sgdynamics.simulation.gpu.constant_folding import evaluate
from sgdynamics.simulation.gpu.program import Equation, NotUnrollable
from sgdynamics.simulation.gpu.scalars import (
    Entry,
    add,
    add_all,
    constant_entries,
    constant_values,
    equals,
    is_constant,
    map_entries,
    multiply,
    where,
)

# Largest number of values of an unknown index: each value takes one selection per entry.
MAX_CHOICES = 64

# Primitives that only move entries, with the positions of the operands that are data (None: all);
# the other operands are indices.
MOVES: dict[str, tuple[int, ...] | None] = {
    "reshape": None,
    "transpose": None,
    "broadcast_in_dim": None,
    "slice": None,
    "squeeze": None,
    "expand_dims": None,
    "rev": None,
    "concatenate": None,
    "pad": None,
    "stack": None,
    "unstack": None,
    "split": None,
    "tile": None,
    "gather": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "scatter": (0, 2),
}

# Primitives that are linear in their data operands, with the positions of these.
LINEAR = {"scatter-add": (0, 2), "scatter_add": (0, 2), "cumsum": (0,)}

# Modes of a scatter whose positions are inside of the array, or moved to its ends.
IN_BOUNDS = (jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)

# Unrolls a primitive with known indices: (equation, inputs, positions of the data) -> outputs.
KnownRule = Callable[[Equation, list[np.ndarray], tuple[int, ...]], list[np.ndarray]]


# ---- moves


def move(equation: Equation, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Unroll a primitive that moves entries."""
    data = MOVES[equation.primitive.name]
    data = tuple(range(len(inputs))) if data is None else data
    return _with_known_indices(equation, inputs, data, _move_known)


def _with_known_indices(
    equation: Equation, inputs: list[np.ndarray], data: tuple[int, ...], unroll_known: KnownRule
) -> list[np.ndarray]:
    """Unroll a primitive by a rule for known indices.

    The indices may be unknown, as in `A[:, i]` with an `i` that differs between lanes. Then all
    values of the indices are tried, and each lane selects its own.
    """
    name = equation.primitive.name
    # Entries of index operands that differ between lanes.
    unknown = [
        (operand, index)
        for operand, entries in enumerate(inputs)
        if operand not in data
        for index in np.ndindex(*entries.shape)
        if not is_constant(entries[index])
    ]
    if not unknown:
        return unroll_known(equation, inputs, data)
    sizes = [_index_range(equation, inputs, operand, index) for operand, index in unknown]
    choices = int(np.prod(sizes))
    if choices > MAX_CHOICES:
        raise NotUnrollable(f"{name} by an index with {choices} values")
    outputs: list[np.ndarray] = []
    # One result for each combination of index values. A lane takes the one whose condition holds;
    # the first combination is the default.
    for values in itertools.product(*(range(size) for size in sizes)):
        trial, condition = [entries.copy() for entries in inputs], None
        for (operand, index), value, size in zip(unknown, values, sizes, strict=True):
            entry = inputs[operand][index]
            trial[operand][index] = np.asarray(value, entry.dtype)[()]
            holds = _index_matches(entry, value, size)
            condition = holds if condition is None else condition & holds
        candidates = unroll_known(equation, trial, data)
        if outputs:
            pairs = zip(candidates, outputs, strict=True)
            outputs = [map_entries(partial(where, condition), pair) for pair in pairs]
        else:
            outputs = candidates
    return outputs


def _index_matches(entry: Entry, value: int, size: int) -> Entry:
    """Whether an index has this value; beyond the ends it counts as the end, as JAX clamps it."""
    if value == 0:
        return entry <= value
    return entry >= value if value == size - 1 else entry == value


def _index_range(
    equation: Equation, inputs: list[np.ndarray], operand: int, index: tuple[int, ...]
) -> int:
    """Number of values that an unknown index may take: the size of the axis it addresses."""
    name = equation.primitive.name
    if name == "gather":
        return inputs[0].shape[equation.params["dimension_numbers"].start_index_map[index[-1]]]
    if name.startswith("scatter"):
        # JAX drops an entry out of bounds by default, which a choice of positions would not.
        if equation.params["mode"] not in IN_BOUNDS:
            raise NotUnrollable(f"{name} to an unknown position, which may be out of bounds")
        axes = equation.params["dimension_numbers"]
        return inputs[0].shape[axes.scatter_dims_to_operand_dims[index[-1]]]
    if name in ("dynamic_slice", "dynamic_update_slice"):
        # Clamped indices stay inside of the axis, so that its size bounds the number of values.
        # One index operand per axis, behind the data operands.
        return inputs[0].shape[operand - (1 if name == "dynamic_slice" else 2)]
    raise NotUnrollable(f"{name} to an unknown position")


def _move_known(
    equation: Equation, inputs: list[np.ndarray], data: tuple[int, ...]
) -> list[np.ndarray]:
    """Move entries by known indices.

    The primitive itself is evaluated on the positions of the entries, so that its semantics is
    that of JAX. Positions count from 1: a 0 in the result is an entry out of bounds.
    """
    pool, operands, first = [], [], 1
    for operand, entries in enumerate(inputs):
        if operand in data:
            operands.append(np.arange(first, first + entries.size).reshape(entries.shape))
            pool.append(entries.reshape(-1))
            first += entries.size
        else:
            operands.append(constant_values(entries, np.int64))
    positions = evaluate(equation.primitive, equation.params, operands)
    if any(np.any((output < 1) | (output >= first)) for output in positions):
        raise NotUnrollable(f"{equation.primitive.name} out of bounds")
    # The unused object at index 0 makes positions count from 1.
    entries = np.concatenate([np.empty(1, dtype=object), *pool])
    return [entries[np.ravel(output)].reshape(np.shape(output)) for output in positions]


# ---- sums and products


def apply_linear(equation: Equation, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Unroll a primitive that is linear in its data.

    Its matrix follows from the primitive itself on unit vectors; zeros of the matrix cost nothing.
    """
    data = LINEAR[equation.primitive.name]
    return _with_known_indices(equation, inputs, data, _apply_known)


def _apply_known(
    equation: Equation, inputs: list[np.ndarray], data: tuple[int, ...]
) -> list[np.ndarray]:
    """Apply a linear primitive with known indices."""
    # With known indices the primitive is one fixed matrix that acts on the flat data.
    pool = np.concatenate([inputs[operand].reshape(-1) for operand in data])

    def image(vector: Numeric) -> Array:
        """The output of the primitive on flat data."""
        first, operands = 0, []
        for operand, entries in enumerate(inputs):
            if operand in data:
                operands.append(vector[first : first + entries.size].reshape(entries.shape))
                first += entries.size
            else:
                dtype = entries.reshape(-1)[0].dtype
                operands.append(jnp.asarray(entries.tolist()).astype(dtype))
        return equation.primitive.bind(*operands, **equation.params)

    with jax.ensure_compile_time_eval():
        # Row k of the matrix is the image of unit vector k.
        matrix = np.asarray(jax.vmap(image)(jnp.eye(len(pool))))
    outputs = np.empty(matrix.shape[1:], dtype=object)
    for index in np.ndindex(*outputs.shape):
        column = matrix[(slice(None), *index)]
        outputs[index] = add_all(
            [multiply(np.float64(column[row]), pool[row]) for row in np.flatnonzero(column)]
        )
    return [outputs]


Rule = Callable[[dict[str, Any], list[np.ndarray], list[jax.ShapeDtypeStruct]], list[np.ndarray]]


def _reduce(
    operation: Callable[[Entry, Entry], Entry],
    params: dict[str, Any],
    inputs: list[np.ndarray],
    shapes: list[jax.ShapeDtypeStruct],
) -> list[np.ndarray]:
    """A reduction over the axes of an array, from the first entry to the last."""
    entries, axes = inputs[0], tuple(params["axes"])
    moved = np.moveaxis(entries, axes, range(-len(axes), 0)) if axes else entries
    # The reduced axes are last: one row per output entry.
    rows = moved.reshape(-1, int(np.prod([entries.shape[axis] for axis in axes])))
    outputs = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        value = row[0]
        for entry in row[1:]:
            value = operation(value, entry)
        outputs[index] = value
    return [outputs.reshape(shapes[0].shape)]


def _arg_extremum(
    sign: float,
    params: dict[str, Any],
    inputs: list[np.ndarray],
    shapes: list[jax.ShapeDtypeStruct],
) -> list[np.ndarray]:
    """`argmax` (sign > 0) or `argmin` along an axis; of equal entries the first one counts."""
    (axis,) = params["axes"]
    rows = np.moveaxis(inputs[0], axis, -1)
    integer = shapes[0].dtype.type
    outputs = np.empty(rows.shape[:-1], dtype=object)
    for index in np.ndindex(*outputs.shape):
        best, best_position = rows[index][0], integer(0)
        for position, entry in enumerate(rows[index][1:], start=1):
            # Strict comparisons keep the first of equal entries, as JAX does.
            better = entry > best if sign > 0 else entry < best
            best = where(better, entry, best)
            best_position = where(better, integer(position), best_position)
        outputs[index] = best_position
    return [outputs]


def _dot_general(
    params: dict[str, Any], inputs: list[np.ndarray], shapes: list[jax.ShapeDtypeStruct]
) -> list[np.ndarray]:
    """A product of arrays, entry by entry: tensor cores have no float64 at these small sizes."""
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]

    def as_matrices(array: np.ndarray, summed: Sequence[int], batch: Sequence[int]) -> np.ndarray:
        """(batch, free, summed) axes, each group flattened."""
        free = [axis for axis in range(array.ndim) if axis not in (*summed, *batch)]
        sizes = [
            int(np.prod([array.shape[axis] for axis in axes])) for axes in (batch, free, summed)
        ]
        return array.transpose(*batch, *free, *summed).reshape(sizes)

    left = as_matrices(inputs[0], left_sum, left_batch)
    right = as_matrices(inputs[1], right_sum, right_batch)
    outputs = np.empty((left.shape[0], left.shape[1], right.shape[1]), dtype=object)
    for batch, row, column in np.ndindex(*outputs.shape):
        # Terms with a constant 0 vanish in `multiply`: triangles cost half of a full matrix.
        pairs = zip(left[batch, row], right[batch, column], strict=True)
        outputs[batch, row, column] = add_all([multiply(*pair) for pair in pairs])
    return [outputs.reshape(shapes[0].shape)]


# ---- QR decomposition


def _qr(
    params: dict[str, Any], inputs: list[np.ndarray], shapes: list[jax.ShapeDtypeStruct]
) -> list[np.ndarray]:
    """R of a QR decomposition; the entries of Q are None, and using them is an error.

    The fold of a step reads R only, and Q would be most of the work.
    """
    if params.get("pivoting"):
        raise NotUnrollable("a QR decomposition with pivoting")
    *batch_shape, height, columns = shapes[1].shape
    R = np.empty((*batch_shape, height, columns), dtype=object)
    for batch in np.ndindex(*batch_shape):
        # A copy, because the reflections work in place.
        R[batch] = _upper_triangle(inputs[0][batch].copy())[:height]
    return [np.full(shapes[0].shape, None, dtype=object), R]


def _upper_triangle(a: np.ndarray) -> np.ndarray:
    """Reduce a matrix to its triangle R in place, by Householder reflections.

    For column j with entries x_j, ..., x_n the reflection 1 - v v^T/s has::

        v = x - r e_j,   r = -sign(x_j) |x|,   s = |v|^2/2 = -r (x_j - r)

    The sign avoids cancellation in v_j. Known zeros below the diagonal are skipped, so that rows
    which are triangular already cost nothing.
    """
    rows, columns = a.shape
    for j in range(min(rows, columns)):
        below = [row for row in range(j + 1, rows) if not equals(a[row, j], 0)]
        if not below:
            continue
        length = jnp.sqrt(add_all([multiply(a[row, j], a[row, j]) for row in (j, *below)]))
        r = where(a[j, j] > 0, -length, length)
        v_j = add(a[j, j], -r)
        s = -r * v_j
        # A column of zeros (s = 0) needs no reflection. The inner selection keeps the unused
        # quotient finite.
        inverse = jnp.where(s > 0, 1 / jnp.where(s > 0, s, 1.0), 0.0)
        for column in range(j + 1, columns):
            # The reflection of a column c is c - (v^T c / s) v.
            products = [multiply(v_j, a[j, column])]
            products += [multiply(a[row, j], a[row, column]) for row in below]
            product = add_all(products)
            if equals(product, 0):
                continue
            factor = product * inverse
            a[j, column] = add(a[j, column], -(factor * v_j))
            for row in below:
                a[row, column] = add(a[row, column], -(factor * a[row, j]))
        # The column itself becomes r e_j, with exact zeros that later steps skip.
        a[j, j] = r
        a[j + 1 :, j] = np.float64(0)
    return a


# Rules by the name of the primitive: functions of its parameters, inputs and output shapes.
RULES: dict[str, Rule] = {
    "reduce_sum": partial(_reduce, add),
    "reduce_prod": partial(_reduce, multiply),
    "reduce_max": partial(_reduce, jnp.maximum),
    "reduce_min": partial(_reduce, jnp.minimum),
    "reduce_and": partial(_reduce, lambda x, y: x & y),
    "reduce_or": partial(_reduce, lambda x, y: x | y),
    "argmax": partial(_arg_extremum, 1.0),
    "argmin": partial(_arg_extremum, -1.0),
    "dot_general": _dot_general,
    "qr": _qr,
}


def fold_constants(equation: Equation, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Evaluate a primitive on known entries."""
    operands = [constant_values(entries) for entries in inputs]
    return [
        constant_entries(output)
        for output in evaluate(equation.primitive, equation.params, operands)
    ]
