"""What a traced program computes from constants alone: once, while it is unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _spread(params: dict[str, Any], value: np.ndarray) -> np.ndarray:
    among = [1] * len(params["shape"])
    for place, size in zip(params["broadcast_dimensions"], value.shape, strict=True):
        among[place] = size
    return np.broadcast_to(value.reshape(among), params["shape"])


def _counted(params: dict[str, Any]) -> np.ndarray:
    shape, along = params["shape"], params["dimension"]
    each = np.arange(shape[along], dtype=params["dtype"])
    return np.broadcast_to(
        each.reshape([-1 if axis == along else 1 for axis in range(len(shape))]), shape
    )


def _chosen(_: dict[str, Any], which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    found = cases[0]
    for number, one in enumerate(cases):
        found = np.where(which == number, one, found)
    return found


def _sliced(params: dict[str, Any], value: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * value.ndim
    return value[
        tuple(
            slice(*one)
            for one in zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        )
    ]


# primitives that are short in NumPy: on a GPU JAX compiles a program for each shape that it meets
IN_NUMPY: dict[str, Callable[..., Any]] = {
    "add": lambda _, one, other: one + other,
    "sub": lambda _, one, other: one - other,
    "mul": lambda _, one, other: one * other,
    "lt": lambda _, one, other: one < other,
    "gt": lambda _, one, other: one > other,
    "eq": lambda _, one, other: one == other,
    "ne": lambda _, one, other: one != other,
    "broadcast_in_dim": _spread,
    "iota": _counted,
    "select_n": _chosen,
    "reshape": lambda params, one: one.transpose(params["dimensions"] or range(one.ndim)).reshape(
        params["new_sizes"]
    ),
    "convert_element_type": lambda params, one: one.astype(params["new_dtype"]),
    "squeeze": lambda params, one: np.squeeze(one, params["dimensions"]),
    "expand_dims": lambda params, one: np.expand_dims(one, params["dimensions"]),
    "transpose": lambda params, one: one.transpose(params["permutation"]),
    "slice": _sliced,
    "concatenate": lambda params, *ones: np.concatenate(ones, params["dimension"]),
}


def _cut_short(primitive: Any, params: dict[str, Any], inputs: Sequence[Any]) -> bool:
    """Whether numbers become whole ones: what does not fit goes to the nearest end in JAX, and anywhere in NumPy."""
    return (
        primitive.name == "convert_element_type"
        and inputs[0].dtype.kind == "f"
        and np.dtype(params["new_dtype"]).kind in "iu"
    )


def evaluated(primitive: Any, params: dict[str, Any], inputs: Sequence[Any]) -> list[np.ndarray]:
    """What depends on nothing."""
    if (
        primitive.name in IN_NUMPY
        and all(isinstance(one, np.ndarray) for one in inputs)
        and not _cut_short(primitive, params, inputs)
    ):
        with np.errstate(all="ignore"):  # as in JAX, what is not finite is no news
            return [np.asarray(IN_NUMPY[primitive.name](params, *inputs))]
    with jax.ensure_compile_time_eval():
        found = primitive.bind(*(jnp.asarray(one) for one in inputs), **params)
        return [np.asarray(one) for one in (found if primitive.multiple_results else [found])]
