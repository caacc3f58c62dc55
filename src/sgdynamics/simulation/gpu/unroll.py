"""JAX functions of small arrays as functions of single numbers, which a kernel keeps in registers.

A function is traced once. Its equations are of three kinds: what depends on nothing is computed at once; what depends on numbers that
all runs share is computed before the kernel, with whole arrays; the rest is unrolled, and each number of it is a vector with an entry a
run. An array is then a NumPy array of objects, constants among them, so that a product with a constant 0 or 1 is none; and what has been
computed from the same numbers before is not computed again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import ArrayArgument, DType, Function, IntScalar, Numeric, PyTree
from sgdynamics.simulation.gpu.constant_folding import evaluated
from sgdynamics.simulation.gpu.special import erf, erfc

MOST_CHOICES = 64  # values of an index that is not known beforehand: one selection each
MOST_NUMBERS = 40_000  # unrolled operations, beyond which compilation takes minutes


FACTOR = "the first factor of a QR decomposition"


class NotUnrolled(ValueError):
    """What a function does that cannot be unrolled."""


CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
)
NAMES = """
neg abs sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
add add_any sub mul div rem pow integer_pow max min eq ne lt le gt ge and or xor not select_n clamp logistic is_finite square
convert_element_type copy copy_p
"""
ONE_BY_ONE = frozenset(NAMES.split())
EITHER_WAY = frozenset({"add", "add_any", "mul", "max", "min", "eq", "ne", "and", "or", "xor"})
SAME_AS = {
    "lt_to": jax.lax.lt_p,
    "le_to": jax.lax.le_p,
    "eq_to": jax.lax.eq_p,
}  # but for NaN, of which there is none
SPECIAL: dict[str, Function] = {"erf": erf, "erfc": erfc, "one_minus_square": lambda x: 1.0 - x * x}
DATA_OPERANDS: dict[
    str, tuple[int, ...] | None
] = {  # which operands are data; None: all, the others are indices
    **dict.fromkeys(
        (
            "reshape",
            "transpose",
            "broadcast_in_dim",
            "slice",
            "squeeze",
            "expand_dims",
            "rev",
            "concatenate",
            "pad",
        ),
        None,
    ),
    **dict.fromkeys(("stack", "unstack", "split", "tile"), None),
    "gather": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "scatter": (0, 2),
}
LINEAR = {"scatter-add": (0, 2), "scatter_add": (0, 2), "cumsum": (0,)}


class Equation(NamedTuple):
    """One equation; inputs are numbers of variables, or constants."""

    primitive: Any
    inputs: list[Any]
    outputs: list[int]
    params: dict[str, Any]


@dataclass
class Program:
    """A function as a list of equations without calls."""

    kinds: list[Any] = field(default_factory=list)  # shape and dtype of each variable
    equations: list[Equation] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def new(self, kind: Any) -> int:
        self.kinds.append(jax.ShapeDtypeStruct(kind.shape, kind.dtype))
        return len(self.kinds) - 1

    def kind(self, one: Any) -> Any:
        return self.kinds[one] if isinstance(one, int) else one

    def take_in(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The equations of a jaxpr, those of its calls too; what it gives."""
        given = dict(
            zip(
                [*jaxpr.constvars, *jaxpr.invars],
                [*(np.asarray(one) for one in constants), *arguments],
                strict=True,
            )
        )

        def read(one: Any) -> Any:
            return np.asarray(one.val, one.aval.dtype) if hasattr(one, "val") else given[one]

        for equation in jaxpr.eqns:
            inputs = [read(one) for one in equation.invars]
            if equation.primitive.name in CALLS:
                inner = next(
                    equation.params[name]
                    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")
                    if name in equation.params
                )
                closed = hasattr(inner, "jaxpr")
                found = self.take_in(
                    inner.jaxpr if closed else inner, inner.consts if closed else (), inputs
                )
            elif not any(isinstance(one, int) for one in inputs):
                found = evaluated(equation.primitive, equation.params, inputs)
            else:
                found = [self.new(one.aval) for one in equation.outvars]
                self.equations.append(Equation(equation.primitive, inputs, found, equation.params))
            given |= dict(zip(equation.outvars, found, strict=True))
        return [read(one) for one in jaxpr.outvars]


def traced(function: Function, *examples: PyTree) -> Program:
    """The program of a function of trees of arrays; its inputs and outputs are their leaves."""
    return of_jaxpr(jax.make_jaxpr(function)(*examples))


def of_jaxpr(closed: Any) -> Program:
    program = Program()
    program.inputs = [program.new(one.aval) for one in closed.jaxpr.invars]
    program.outputs = program.take_in(closed.jaxpr, closed.consts, program.inputs)
    _drop_unused(program)
    return program


def _drop_unused(program: Program) -> None:
    wanted = {one for one in program.outputs if isinstance(one, int)}
    kept = []
    for equation in reversed(program.equations):
        if wanted & set(equation.outputs):
            kept.append(equation)
            wanted |= {one for one in equation.inputs if isinstance(one, int)}
    program.equations = kept[::-1]


class Split(NamedTuple):
    """A program in two: what is computed before with whole arrays, and what is unrolled; `shared` are the arrays that go over."""

    before: list[Equation]
    after: list[Equation]
    shared: list[int]


def split(program: Program, known: set[int]) -> Split:
    """By which inputs are known beforehand."""
    known, before, after = set(known), [], []
    for equation in program.equations:
        if all(one in known for one in equation.inputs if isinstance(one, int)):
            before.append(equation)
            known |= set(equation.outputs)
        else:
            after.append(equation)
    used = {one for equation in after for one in equation.inputs if isinstance(one, int)} | {
        one for one in program.outputs if isinstance(one, int)
    }
    work = sum(
        int(np.prod(program.kinds[one].shape)) for equation in after for one in equation.outputs
    )
    if work > MOST_NUMBERS:
        raise NotUnrolled(f"a step of {work} numbers")
    return Split(before, after, sorted(used & known))


def computed_before(program: Program, parts: Split, values: dict[int, Any]) -> list[Any]:
    """The shared arrays, from those of the inputs."""
    values = dict(values)
    for equation in parts.before:
        found = equation.primitive.bind(
            *(values[one] if isinstance(one, int) else jnp.asarray(one) for one in equation.inputs),
            **equation.params,
        )
        values |= dict(
            zip(
                equation.outputs,
                found if equation.primitive.multiple_results else [found],
                strict=True,
            )
        )
    return [values[one] for one in parts.shared]


def numbers_before(
    program: Program, parts: Split, inputs: Sequence[Any]
) -> Float[Numeric, " numbers"]:
    """The same as one array of numbers, for a kernel to read; a zero where there are none. `inputs`: the values that are shared."""
    arrays = computed_before(program, parts, dict(zip(program.inputs, inputs, strict=False)))
    found = jnp.concatenate(
        [jnp.zeros(1), *(jnp.ravel(jnp.asarray(one)).astype(jnp.float64) for one in arrays)]
    )
    return found[bool(arrays) :]


def read_before(program: Program, parts: Split, number: Function) -> dict[int, np.ndarray]:
    """The shared arrays, inside a kernel: `number(k)` reads number k of `numbers_before`."""
    found, first = {}, 0
    for one in parts.shared:
        kind = program.kinds[one]
        size = math.prod(kind.shape)
        found[one] = arranged(
            [number(first + k).astype(kind.dtype) for k in range(size)], kind.shape
        )
        first += size
    return found


def run(
    program: Program, equations: Sequence[Equation], values: dict[int, np.ndarray]
) -> list[np.ndarray]:
    """What the program gives, from arrays of numbers (constants, or vectors of the runs) of all variables that the equations need."""
    values = dict(values)

    def read(one: Any) -> np.ndarray:
        return values[one] if isinstance(one, int) else _objects(one)

    _done.append(_done[-1] if _done else {})
    try:
        for equation in equations:
            kinds = [program.kinds[one] for one in equation.outputs]
            values |= dict(
                zip(
                    equation.outputs,
                    _unrolled(equation, [read(one) for one in equation.inputs], kinds),
                    strict=True,
                )
            )
    finally:
        _done.pop()
    found = [read(one) for one in program.outputs]
    if any(one is None for array in found for one in array.reshape(-1)):
        raise NotUnrolled(FACTOR)
    return found


def _objects(values: ArrayArgument) -> np.ndarray:
    """An array of NumPy numbers as objects."""
    values = np.asarray(values)
    found = np.empty(values.shape, dtype=object)
    flat = found.reshape(-1)
    for place, one in enumerate(values.reshape(-1)):
        flat[place] = one
    return found


def _numbers(values: np.ndarray, none: DType = np.float64) -> np.ndarray:
    """The way back, where all are known; lists would lose the shape of an array that has none, whose kind is then `none`."""
    return np.array(
        values.tolist(), dtype=values.reshape(-1)[0].dtype if values.size else none
    ).reshape(values.shape)


def arranged(numbers: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a kernel as an array of them."""
    found = np.empty(len(numbers), dtype=object)
    for place, one in enumerate(numbers):
        found[place] = one
    return found.reshape(shape)


def is_kind(one: Any) -> bool:
    """(shape, name of a dtype), which can be compared and cached, in a tree of them."""
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str)


def kind_of(one: Any) -> tuple[tuple[int, ...], str]:
    return np.shape(one), np.dtype(jnp.result_type(one)).name


def _known(one: Any) -> bool:
    return isinstance(one, np.generic)


def _unrolled(equation: Equation, inputs: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    name, params = equation.primitive.name, equation.params
    if all(_known(one) for value in inputs for one in value.reshape(-1)):
        return [
            _objects(one)
            for one in evaluated(equation.primitive, params, [_numbers(value) for value in inputs])
        ]
    if name in SPECIAL:
        return [
            _each(
                lambda one: one if _known(one) else _once(name, "", SPECIAL[name], (one,)), inputs
            )
        ]
    if name in ONE_BY_ONE or name in SAME_AS:
        operation = (
            partial(_bound, SAME_AS[name], {})
            if name in SAME_AS
            else partial(_bound, equation.primitive, params)
        )
        every = np.broadcast_arrays(*inputs)
        return [_each(lambda *one: _simple(name, operation, one, kinds[0].dtype), every)]
    if name in DATA_OPERANDS:
        return _moved(equation, inputs, kinds)
    if name in LINEAR:
        return _linear(equation, inputs)
    if name in ("optimization_barrier", "stop_gradient"):
        return inputs
    if name in OTHERS:
        return OTHERS[name](params, inputs, kinds)
    raise NotUnrolled(name)


def _each(operation: Callable[..., Any], arrays: Sequence[np.ndarray]) -> np.ndarray:
    found = np.empty(arrays[0].shape, dtype=object)
    for place in np.ndindex(*found.shape):
        found[place] = operation(*(one[place] for one in arrays))
    return found


_done: list[
    dict[Any, Any]
] = []  # what has been computed in the programs that are being unrolled, by what it was computed from


def _bound(primitive: Any, params: dict[str, Any], *numbers: Any) -> Any:
    """A primitive on single numbers: vectors of the runs, or of none."""
    if any(one is None for one in numbers):
        raise NotUnrolled(FACTOR)
    if all(_known(one) for one in numbers):
        return evaluated(primitive, params, [np.asarray(one) for one in numbers])[0][()]
    shape = np.broadcast_shapes(*(np.shape(one) for one in numbers))
    return _once(
        primitive.name,
        str(params),
        lambda *ones: primitive.bind(
            *(one if np.shape(one) == shape else jnp.broadcast_to(one, shape) for one in ones),
            **params,
        ),
        numbers,
    )


def _once(name: str, params: str, operation: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    """What an operation gives, computed once for the same numbers."""
    parts = [f"{one.dtype}{one!r}" if _known(one) else str(id(one)) for one in numbers]
    key = (name, params, *(sorted(parts) if name in EITHER_WAY else parts))
    if key not in _done[-1]:
        _done[-1][key] = (
            operation(*numbers),
            numbers,
        )  # the numbers too: what is thrown away gives its id to others
    return _done[-1][key][0]


def _is(one: Any, value: float) -> bool:
    return _known(one) and bool(one == value)


def _simple(
    name: str, operation: Callable[..., Any], numbers: tuple[Any, ...], dtype: np.dtype[Any]
) -> Any:
    """One operation, where a constant makes it none. (0 times what has become infinite is 0 here, as if it had never been there.)"""
    first, last = numbers[0], numbers[-1]
    if name in ("add", "add_any") and (_is(first, 0) or _is(last, 0)):
        return last if _is(first, 0) else first
    if name == "sub" and _is(last, 0):
        return first
    if name == "mul" and (_is(first, 0) or _is(last, 0)):
        return dtype.type(0)
    if name == "mul" and (_is(first, 1) or _is(last, 1)):
        return last if _is(first, 1) else first
    if name == "div" and (_is(first, 0) or _is(last, 1)):
        return first
    if name == "div" and not _known(last) and np.issubdtype(dtype, np.floating):
        # what is divided by the same number again, as a row by its length is, is multiplied: a division takes as long as thirty products
        inverse = _once("inverse", "", lambda one: 1 / one, (last,))
        return inverse if _is(first, 1) else _bound(jax.lax.mul_p, {}, first, inverse)
    if name == "select_n" and _known(first):
        return numbers[1 + int(first)]
    if name == "select_n" and len(numbers) > 3:
        return _choice(first, numbers[1:])
    if name in ("and", "or") and dtype == np.bool_ and (_known(first) or _known(last)):
        known, other = (first, last) if _known(first) else (last, first)
        return other if bool(known) == (name == "and") else np.bool_(name == "or")
    if name in ("copy", "copy_p") or (
        name == "convert_element_type" and not _known(first) and first.dtype == dtype
    ):
        return first
    return operation(*numbers)


def add(one: Any, other: Any) -> Any:
    if _is(one, 0):
        return other
    return one if _is(other, 0) else _bound(jax.lax.add_p, {}, one, other)


def multiply(one: Any, other: Any) -> Any:
    if _is(one, 0) or _is(other, 0):
        return np.float64(0)
    if _is(one, 1):
        return other
    return one if _is(other, 1) else _bound(jax.lax.mul_p, {}, one, other)


def _choice(index: IntScalar, values: Sequence[Any]) -> Any:
    found = values[-1]
    for place in range(len(values) - 2, -1, -1):
        found = where(index <= place, values[place], found)
    return found


def where(condition: Any, yes: Any, no: Any) -> Any:
    if _known(condition):
        return yes if condition else no
    if yes is no:
        return yes
    dtype = next((one.dtype for one in (yes, no) if not _known(one)), yes.dtype)
    yes, no = (one.astype(dtype) if _known(one) else one for one in (yes, no))
    return _bound(jax.lax.select_n_p, {}, condition, no, yes)


def _moved(equation: Equation, inputs: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    """Numbers that only go elsewhere: the primitive itself says where, asked of their places."""
    data = DATA_OPERANDS[equation.primitive.name]
    data = tuple(range(len(inputs))) if data is None else data
    open_places = [
        (which, place)
        for which, value in enumerate(inputs)
        if which not in data
        for place in np.ndindex(*value.shape)
    ]
    open_places = [
        (which, place) for which, place in open_places if not _known(inputs[which][place])
    ]
    if not open_places:
        return _moved_to(equation, inputs, data)
    # an index that is not known: all its values, and one selection each
    sizes = [_choices(equation, inputs, which, place) for which, place in open_places]
    if np.prod(sizes) > MOST_CHOICES:
        raise NotUnrolled(f"{equation.primitive.name} by an index of {int(np.prod(sizes))} values")
    found: list[np.ndarray] | None = None
    for values in itertools.product(*(range(size) for size in sizes)):
        tried, here = [value.copy() for value in inputs], None
        for (which, place), value, size in zip(open_places, values, sizes, strict=True):
            index = inputs[which][place]
            tried[which][place] = np.asarray(value, index.dtype)[()]
            # beyond the ends counts as the end, as in JAX's clamped reads
            holds = (
                index <= value
                if value == 0
                else index >= value
                if value == size - 1
                else index == value
            )
            here = holds if here is None else here & holds
        moved = _moved_to(equation, tried, data)
        found = (
            moved
            if found is None
            else [_each(partial(where, here), pair) for pair in zip(moved, found, strict=True)]
        )
    assert found is not None
    return found


def _choices(
    equation: Equation, inputs: list[np.ndarray], which: int, place: tuple[int, ...]
) -> int:
    """How many values an index may have."""
    if equation.primitive.name == "gather":
        return inputs[0].shape[equation.params["dimension_numbers"].start_index_map[place[-1]]]
    if equation.primitive.name in ("dynamic_slice", "dynamic_update_slice"):
        return inputs[0].shape[which - (1 if equation.primitive.name == "dynamic_slice" else 2)]
    raise NotUnrolled(f"{equation.primitive.name} to a place that is not known")


def _moved_to(
    equation: Equation, inputs: list[np.ndarray], data: tuple[int, ...]
) -> list[np.ndarray]:
    pool, asked, first = [], [], 1
    for which, value in enumerate(inputs):
        if which in data:
            asked.append(np.arange(first, first + value.size).reshape(value.shape))
            pool.append(value.reshape(-1))
            first += value.size
        else:
            asked.append(_numbers(value, np.int64))
    places = evaluated(equation.primitive, equation.params, asked)
    every = np.concatenate([np.empty(1, dtype=object), *pool])
    if any(np.any((one < 1) | (one >= first)) for one in places):
        raise NotUnrolled(f"{equation.primitive.name} out of bounds")
    return [every[np.ravel(one)].reshape(np.shape(one)) for one in places]


def _linear(equation: Equation, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Sums of numbers with known coefficients: the primitive itself says which, asked of unit vectors."""
    data = LINEAR[equation.primitive.name]
    others = [value for which, value in enumerate(inputs) if which not in data]
    if not all(_known(one) for value in others for one in value.reshape(-1)):
        raise NotUnrolled(f"{equation.primitive.name} to a place that is not known")
    pool = np.concatenate([inputs[which].reshape(-1) for which in data])

    def asked(flat: Numeric) -> Any:
        first, every = 0, []
        for which, value in enumerate(inputs):
            if which in data:
                every.append(flat[first : first + value.size].reshape(value.shape))
                first += value.size
            else:
                every.append(jnp.asarray(value.tolist()).astype(value.reshape(-1)[0].dtype))
        return equation.primitive.bind(*every, **equation.params)

    with jax.ensure_compile_time_eval():
        matrix = np.asarray(jax.vmap(asked)(jnp.eye(len(pool))))
    found = np.empty(matrix.shape[1:], dtype=object)
    for place in np.ndindex(*found.shape):
        column = matrix[(slice(None), *place)]
        found[place] = _sum(
            [multiply(np.float64(column[row]), pool[row]) for row in np.flatnonzero(column)]
        )
    return [found]


def _sum(numbers: Sequence[Any]) -> Any:
    found = np.float64(0)
    for one in numbers:
        found = add(found, one)
    return found


def _folded(
    operation: Callable[[Any, Any], Any],
    params: dict[str, Any],
    inputs: list[np.ndarray],
    kinds: list[Any],
) -> list[np.ndarray]:
    """A reduction."""
    value, axes = inputs[0], tuple(params["axes"])
    last = np.moveaxis(value, axes, range(-len(axes), 0)) if axes else value
    rows = last.reshape(-1, int(np.prod([value.shape[axis] for axis in axes])))
    found = np.empty(len(rows), dtype=object)
    for place, row in enumerate(rows):
        one = row[0]
        for other in row[1:]:
            one = operation(one, other)
        found[place] = one
    return [found.reshape(kinds[0].shape)]


def _largest(
    sign: float, params: dict[str, Any], inputs: list[np.ndarray], kinds: list[Any]
) -> list[np.ndarray]:
    """The place of the largest, or the smallest, number along an axis; the first of equal ones."""
    (axis,) = params["axes"]
    rows = np.moveaxis(inputs[0], axis, -1)
    found = np.empty(rows.shape[:-1], dtype=object)
    for place in np.ndindex(*found.shape):
        best, at = rows[place][0], kinds[0].dtype.type(0)
        for index, one in enumerate(rows[place][1:], start=1):
            better = one > best if sign > 0 else one < best
            best, at = where(better, one, best), where(better, kinds[0].dtype.type(index), at)
        found[place] = at
    return [found]


def _products(
    params: dict[str, Any], inputs: list[np.ndarray], kinds: list[Any]
) -> list[np.ndarray]:
    """dot_general."""
    (left_sum, right_sum), (left_lead, right_lead) = params["dimension_numbers"]

    def arranged(value: np.ndarray, summed: Sequence[int], lead: Sequence[int]) -> np.ndarray:
        free = [axis for axis in range(value.ndim) if axis not in (*summed, *lead)]
        moved = value.transpose(*lead, *free, *summed)
        size = [int(np.prod([value.shape[axis] for axis in axes])) for axes in (lead, free, summed)]
        return moved.reshape(size)

    left, right = (
        arranged(inputs[0], left_sum, left_lead),
        arranged(inputs[1], right_sum, right_lead),
    )
    found = np.empty((left.shape[0], left.shape[1], right.shape[1]), dtype=object)
    for batch, row, column in np.ndindex(*found.shape):
        found[batch, row, column] = _sum(
            [multiply(*pair) for pair in zip(left[batch, row], right[batch, column], strict=True)]
        )
    return [found.reshape(kinds[0].shape)]


def _qr(params: dict[str, Any], inputs: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    """R of a QR decomposition by Householder's reflections; Q is left out, and refused where it is used."""
    if params.get("pivoting"):
        raise NotUnrolled("a QR decomposition with pivoting")
    *lead, height, columns = kinds[1].shape
    R = np.empty((*lead, height, columns), dtype=object)
    for batch in np.ndindex(*lead):
        R[batch] = _triangle(inputs[0][batch].copy())[:height]
    return [np.full(kinds[0].shape, None, dtype=object), R]


def _triangle(a: np.ndarray) -> np.ndarray:
    """The upper triangle of reflections, in place of the matrix."""
    rows, columns = a.shape
    for j in range(min(rows, columns)):
        below = [row for row in range(j + 1, rows) if not _is(a[row, j], 0)]
        if not below:
            continue
        length = jnp.sqrt(_sum([multiply(a[row, j], a[row, j]) for row in (j, *below)]))
        end = where(a[j, j] > 0, -length, length)
        first = add(a[j, j], -end)
        squared = -end * first  # half of the squared length of the reflection's vector
        scale = jnp.where(squared > 0, 1 / jnp.where(squared > 0, squared, 1.0), 0.0)
        for column in range(j + 1, columns):
            along = _sum(
                [
                    multiply(first, a[j, column]),
                    *(multiply(a[row, j], a[row, column]) for row in below),
                ]
            )
            if _is(along, 0):
                continue
            along = along * scale
            a[j, column] = add(a[j, column], -(along * first))
            for row in below:
                a[row, column] = add(a[row, column], -(along * a[row, j]))
        a[j, j] = end
        a[j + 1 :, j] = np.float64(0)
    return a


def _branches(
    params: dict[str, Any], inputs: list[np.ndarray], kinds: list[Any]
) -> list[np.ndarray]:
    """All branches, and a selection."""
    index, every = inputs[0][()], [_inner(one, inputs[1:]) for one in params["branches"]]
    if _known(index):
        return every[int(np.clip(index, 0, len(every) - 1))]
    return [
        _each(lambda *ones: _choice(index, ones), values) for values in zip(*every, strict=True)
    ]


def _scan(params: dict[str, Any], inputs: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    """A loop of known length, turn by turn."""
    if "num_consts" in params:
        constants, carried = params["num_consts"], params["num_carry"]
    else:  # from JAX 0.11 on
        constants, carried = (len(one) for one in params["ft_in"].unpack()[:2])
    carry, length = inputs[constants : constants + carried], params["length"]
    if length > MOST_CHOICES:
        raise NotUnrolled(f"a loop of {length} turns")
    outputs: list[Any] = [None] * length
    for turn in range(length)[:: -1 if params["reverse"] else 1]:
        each = [
            one[turn : turn + 1].reshape(one.shape[1:]) for one in inputs[constants + carried :]
        ]
        found = _inner(params["jaxpr"], [*inputs[:constants], *carry, *each])
        carry, outputs[turn] = found[:carried], found[carried:]
    return [
        *carry,
        *(np.concatenate([one[None] for one in every]) for every in zip(*outputs, strict=True)),
    ]


def _inner(closed: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
    program = of_jaxpr(
        closed if hasattr(closed, "jaxpr") else jax.extend.core.ClosedJaxpr(closed, ())
    )
    return run(program, program.equations, dict(zip(program.inputs, inputs, strict=True)))


OTHERS: dict[str, Callable[..., list[np.ndarray]]] = {
    "reduce_sum": partial(_folded, add),
    "reduce_prod": partial(_folded, multiply),
    "reduce_max": partial(_folded, jnp.maximum),
    "reduce_min": partial(_folded, jnp.minimum),
    "reduce_and": partial(_folded, lambda one, other: one & other),
    "reduce_or": partial(_folded, lambda one, other: one | other),
    "argmax": partial(_largest, 1.0),
    "argmin": partial(_largest, -1.0),
    "dot_general": _products,
    "qr": _qr,
    "cond": _branches,
    "scan": _scan,
}
