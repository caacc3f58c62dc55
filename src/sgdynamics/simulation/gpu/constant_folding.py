"""Evaluation of primitives whose operands are all constants, while a program is unrolled.

Folding constants is what makes unrolled steps short: index arithmetic, masks and identity matrices
of a traced step become known values, and products with a known 0 or 1 disappear. Common primitives
are evaluated in NumPy, because on a GPU JAX would compile a program for each new shape. The others
are bound eagerly by JAX. Both ways give the same bits (`tests/simulation/gpu`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base.arrays import ArrayArgument


@runtime_checkable
class Primitive(Protocol):
    """An operation of JAX; `jax.extend.core.Primitive` in practice."""

    name: str
    # Whether `bind` returns a list of outputs or a single one.
    multiple_results: bool

    def bind(self, *operands: Any, **params: Any) -> Any: ...


def _broadcast(params: dict[str, Any], value: np.ndarray) -> np.ndarray:
    """`broadcast_in_dim`: axis i of the operand becomes axis broadcast_dimensions[i]."""
    # Size 1 along new axes, which NumPy then broadcasts.
    sizes = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], value.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(value.reshape(sizes), params["shape"])


def _iota(params: dict[str, Any]) -> np.ndarray:
    """`iota`: the index along one axis."""
    shape, dimension = params["shape"], params["dimension"]
    indices = np.arange(shape[dimension], dtype=params["dtype"])
    sizes = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(indices.reshape(sizes), shape)


def _select(_: dict[str, Any], index: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """`select_n`: for each entry the case that the index names; a boolean counts as 0 or 1."""
    # Not np.choose, which limits the number of cases.
    selected = cases[0]
    for number, case in enumerate(cases):
        selected = np.where(index == number, case, selected)
    return selected


def _slice(params: dict[str, Any], value: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * value.ndim
    limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return value[tuple(slice(*limit) for limit in limits)]


def _reshape(params: dict[str, Any], value: np.ndarray) -> np.ndarray:
    """`reshape`, whose optional `dimensions` permute the axes first."""
    return value.transpose(params["dimensions"] or range(value.ndim)).reshape(params["new_sizes"])


# Primitives that are short in NumPy, as functions of their parameters and operands.
NUMPY_RULES: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "lt": lambda _, x, y: x < y,
    "gt": lambda _, x, y: x > y,
    "eq": lambda _, x, y: x == y,
    "ne": lambda _, x, y: x != y,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "select_n": _select,
    "reshape": _reshape,
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "squeeze": lambda params, x: np.squeeze(x, params["dimensions"]),
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "slice": _slice,
    "concatenate": lambda params, *arrays: np.concatenate(arrays, params["dimension"]),
}


def _saturates(primitive: Primitive, params: dict[str, Any], operands: Sequence[Any]) -> bool:
    """Whether the primitive converts floats to integers.

    JAX clamps values out of range to the nearest integer; NumPy's result is undefined.
    """
    return (
        primitive.name == "convert_element_type"
        and operands[0].dtype.kind == "f"
        and np.dtype(params["new_dtype"]).kind in "iu"
    )


def evaluate(
    primitive: Primitive, params: dict[str, Any], operands: Sequence[ArrayArgument]
) -> list[np.ndarray]:
    """Evaluate a primitive on constants, in NumPy where `NUMPY_RULES` has it and by JAX elsewhere.

    Parameters
    ----------
    primitive : Primitive
        The primitive of a traced equation.
    params : dict
        Its static parameters.
    operands : sequence of array
        Its operands, all of them constants.

    Returns
    -------
    list of ndarray
        All outputs, also of a primitive with a single one.
    """
    # The rules assume NumPy semantics; operands of other types are left to JAX.
    if (
        primitive.name in NUMPY_RULES
        and all(isinstance(operand, np.ndarray) for operand in operands)
        and not _saturates(primitive, params, operands)
    ):
        with np.errstate(all="ignore"):  # JAX does not warn of overflow and NaN either
            return [np.asarray(NUMPY_RULES[primitive.name](params, *operands))]
    # Programs are unrolled while another function is being traced. Without this context the
    # primitive would become an equation of that trace instead of a value.
    with jax.ensure_compile_time_eval():
        outputs = primitive.bind(*(jnp.asarray(operand) for operand in operands), **params)
        return [
            np.asarray(output) for output in (outputs if primitive.multiple_results else [outputs])
        ]
