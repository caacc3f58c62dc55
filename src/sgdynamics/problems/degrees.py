"""Bounds on the polynomial degree of a JAX function in chosen inputs, derived from its operations.

Values at finitely many points cannot show that a function is a polynomial: for |x| < 3 the function
log(1 + exp(20 (x - 5))) vanishes to rounding. The operations can. A bound is propagated through the
jaxpr, entry by entry of every array:

    deg(f + g) <= max(deg f, deg g),      deg(f g) <= deg f + deg g

Any operation that is not known to be polynomial has degree infinity. The zero polynomial has degree
-infinity, so that products with it stay zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from sgdynamics.base.arrays import Numeric
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import (
    CALL_PRIMITIVES,
    ClosedJaxpr,
    Equation,
    Jaxpr,
    inner_jaxprs,
)

ZERO, UNBOUNDED = -np.inf, np.inf
Value = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Bound:
    """Degree bounds of the entries of one array.

    Attributes
    ----------
    degree : ndarray
        Degree bounds, of the shape of the array.
    value : callable, optional
        Function that computes the array, if it depends on no input of the jaxpr.
    """

    degree: np.ndarray
    value: Value | None = None

    @property
    def is_constant(self) -> bool:
        """Whether no entry depends on the chosen inputs."""
        return bool(np.all(self.degree <= 0))

    def with_zeros(self) -> np.ndarray:
        """Return the degrees, with -infinity where a known value is exactly 0."""
        if self.value is None:
            return self.degree
        return np.where(np.asarray(self.value()) == 0, ZERO, self.degree)


@float64
def degree_bounds(jaxpr: ClosedJaxpr, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return degree bounds of the outputs of a closed jaxpr.

    Parameters
    ----------
    jaxpr : ClosedJaxpr
        The traced function.
    inputs : sequence of ndarray
        Degrees of the inputs: 1 for entries in which the degree is bounded, 0 for all others.
    """
    with jax.ensure_compile_time_eval(), np.errstate(invalid="ignore"):
        constants = [_constant_bound(constant) for constant in jaxpr.consts]
        input_bounds = [Bound(np.asarray(degree, dtype=np.float64)) for degree in inputs]
        output_bounds = _propagate(jaxpr.jaxpr, constants, input_bounds)
        return [bound.degree for bound in output_bounds]


def _constant_bound(value: Numeric) -> Bound:
    """Return the bound of an array that is known: degree 0."""
    array = np.asarray(value)
    return Bound(np.zeros(array.shape), lambda: array)


def _propagate(jaxpr: Jaxpr, constants: Sequence[Bound], inputs: Sequence[Bound]) -> list[Bound]:
    """Return the bounds of the outputs of a jaxpr, one equation after the other."""
    bounds: dict[Any, Bound] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True)
    )

    def read(atom: Any) -> Bound:
        # An atom is a variable of the jaxpr, or a literal that carries its value.
        return _constant_bound(atom.val) if hasattr(atom, "val") else bounds[atom]

    for equation in jaxpr.eqns:
        outputs = _apply(equation, [read(atom) for atom in equation.invars])
        bounds.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Equation, operands: list[Bound]) -> list[Bound]:
    """Return the bounds of the outputs of one equation."""
    name, shapes = equation.primitive.name, [variable.aval.shape for variable in equation.outvars]
    bodies = inner_jaxprs(equation)
    if name in CALL_PRIMITIVES and len(bodies) == 1:
        body, constants = bodies[0]
        if len(body.invars) == len(operands):
            return _propagate(body, [_constant_bound(value) for value in constants], operands)
    if all(operand.value is not None for operand in operands):
        return _constants(equation, operands, shapes)
    rule = _RULES.get(name)
    if rule is None or bodies:
        # Without a rule for the operation, only functions of constants have a bound.
        constant = all(operand.is_constant for operand in operands)
        return [Bound(np.full(shape, 0.0 if constant else UNBOUNDED)) for shape in shapes]
    degrees = rule(equation, operands)
    degrees = degrees if isinstance(degrees, list) else [degrees]
    return [
        Bound(np.broadcast_to(degree, shape)) for degree, shape in zip(degrees, shapes, strict=True)
    ]


def _constants(
    equation: Equation, operands: list[Bound], shapes: list[tuple[int, ...]]
) -> list[Bound]:
    """Return bounds of outputs that depend on no input.

    Their values are computed on demand: only factors of a product are needed.
    """

    @cache
    def values() -> list[np.ndarray]:
        primitive: Any = equation.primitive
        arguments = [operand.value() for operand in operands]  # type: ignore[misc]
        outputs = primitive.bind(*arguments, **equation.params)
        outputs = outputs if primitive.multiple_results else [outputs]
        return [np.asarray(output) for output in outputs]

    return [
        Bound(np.zeros(shape), lambda index=index: values()[index])
        for index, shape in enumerate(shapes)
    ]


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where((first == ZERO) | (second == ZERO), ZERO, first + second)


def _power(degree: np.ndarray, exponent: float) -> np.ndarray:
    """Return the degree of a power, which is unbounded unless the exponent is an integer >= 0."""
    if exponent > 0 and exponent == round(exponent):
        return exponent * degree
    return np.where((degree > 0) & (exponent != 0), UNBOUNDED, 0.0)


def _sum(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return np.maximum(*(operand.degree for operand in operands))


def _multiply(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return _product(*(operand.with_zeros() for operand in operands))


def _divide(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return np.where(operands[1].degree > 0, UNBOUNDED, operands[0].degree)


def _float_power(equation: Equation, operands: list[Bound]) -> np.ndarray:
    base, exponent = operands
    if exponent.value is None or np.size(exponent.value()) != 1:
        return np.where((base.degree > 0) | (exponent.degree > 0), UNBOUNDED, 0.0)
    return _power(base.degree, float(np.reshape(exponent.value(), ())))


def _dot(equation: Equation, operands: list[Bound]) -> np.ndarray:
    # Operands as (batch, free, inner): an entry of the result is a sum over `inner` of products, so
    # that its degree is the largest of theirs.
    ((left_sum, right_sum), (left_batch, right_batch)) = equation.params["dimension_numbers"]
    left, right = (operand.with_zeros() for operand in operands)
    left_free = [axis for axis in range(left.ndim) if axis not in (*left_sum, *left_batch)]
    right_free = [axis for axis in range(right.ndim) if axis not in (*right_sum, *right_batch)]
    batch = [left.shape[axis] for axis in left_batch]
    shape = [
        *batch,
        *(left.shape[axis] for axis in left_free),
        *(right.shape[axis] for axis in right_free),
    ]
    inner = int(np.prod([left.shape[axis] for axis in left_sum], dtype=int))
    a = left.transpose([*left_batch, *left_free, *left_sum]).reshape(
        int(np.prod(batch, dtype=int)), -1, inner
    )
    b = right.transpose([*right_batch, *right_free, *right_sum]).reshape(len(a), -1, inner)
    return _product(a[:, :, None], b[:, None]).max(axis=-1, initial=ZERO).reshape(shape)


def _reduce_sum(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return operands[0].degree.max(axis=tuple(equation.params["axes"]), initial=ZERO)


def _reduce_product(equation: Equation, operands: list[Bound]) -> np.ndarray:
    degree = operands[0].with_zeros()
    for axis in sorted(equation.params["axes"], reverse=True):
        factors = np.moveaxis(degree, axis, 0)
        degree = np.zeros(factors.shape[1:])
        for factor in factors:
            degree = _product(degree, factor)
    return degree


def _same(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return operands[0].degree


def _convert(equation: Equation, operands: list[Bound]) -> np.ndarray:
    """Return the degree after a conversion; to integers or truth values it jumps."""
    if np.issubdtype(equation.outvars[0].aval.dtype, np.floating):
        return operands[0].degree
    return np.where(operands[0].degree > 0, UNBOUNDED, 0.0)


def _reshape(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return operands[0].degree.reshape(equation.outvars[0].aval.shape)


def _broadcast(equation: Equation, operands: list[Bound]) -> np.ndarray:
    degree, shape = operands[0].degree, equation.params["shape"]
    axes = equation.params["broadcast_dimensions"]
    expanded = [degree.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape))]
    return np.broadcast_to(degree.reshape(expanded), shape)


def _transpose(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return operands[0].degree.transpose(equation.params["permutation"])


def _slice(equation: Equation, operands: list[Bound]) -> np.ndarray:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return operands[0].degree[tuple(map(slice, starts, limits, strides))]


def _concatenate(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return np.concatenate(
        [operand.degree for operand in operands], axis=equation.params["dimension"]
    )


def _stack(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return np.stack([operand.degree for operand in operands], axis=equation.params.get("axis", 0))


def _split(equation: Equation, operands: list[Bound]) -> list[np.ndarray]:
    edges = np.cumsum(equation.params["sizes"])[:-1]
    return np.split(operands[0].degree, edges, axis=equation.params["axis"])


def _reverse(equation: Equation, operands: list[Bound]) -> np.ndarray:
    return np.flip(operands[0].degree, equation.params["dimensions"])


def _largest_degree(equation: Equation, operands: list[Bound]) -> list[np.ndarray]:
    """Return the largest degree of all operands for every output.

    This holds for linear operations, whatever entries they move where.
    """
    largest = max(float(operand.degree.max(initial=0.0)) for operand in operands)
    return [np.full(variable.aval.shape, largest) for variable in equation.outvars]


def _index(equation: Equation, operands: list[Bound]) -> list[np.ndarray]:
    """Return the largest degree, if no integer index depends on the chosen inputs."""
    indices = [
        operand
        for operand, atom in zip(operands, equation.invars, strict=True)
        if np.issubdtype(atom.aval.dtype, np.integer)
    ]
    if all(index.is_constant for index in indices):
        return _largest_degree(equation, operands)
    return [np.full(variable.aval.shape, UNBOUNDED) for variable in equation.outvars]


def _select(equation: Equation, operands: list[Bound]) -> np.ndarray:
    """Return the degree of the selected case, or the largest of all if the selector is unknown."""
    selector, *cases = operands
    if not selector.is_constant:
        return np.full(equation.outvars[0].aval.shape, UNBOUNDED)
    degrees = np.stack(np.broadcast_arrays(*(case.degree for case in cases)))
    if selector.value is None:
        return degrees.max(axis=0)
    index = np.broadcast_to(np.asarray(selector.value()).astype(int), degrees.shape[1:])
    return np.take_along_axis(degrees, index[None], axis=0)[0]


_RULES: dict[str, Callable[[Equation, list[Bound]], Any]] = {
    **dict.fromkeys(("add", "sub", "add_any"), _sum),
    **dict.fromkeys(("neg", "copy", "copy_p", "reduce_precision", "device_put"), _same),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    **dict.fromkeys(("cumsum", "pad", "unstack"), _largest_degree),
    **dict.fromkeys(("gather", "dynamic_slice", "scatter-add"), _index),
    "convert_element_type": _convert,
    "mul": _multiply,
    "div": _divide,
    "integer_pow": lambda equation, operands: _power(operands[0].degree, equation.params["y"]),
    "square": lambda equation, operands: _power(operands[0].degree, 2),
    "pow": _float_power,
    "dot_general": _dot,
    "reduce_sum": _reduce_sum,
    "reduce_prod": _reduce_product,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "rev": _reverse,
    "select_n": _select,
}
