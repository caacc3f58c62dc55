"""Problems and algorithms as pytrees: JAX maps, traces and differentiates their parameters.

All other fields are static. JAX rebuilds these objects with tracers, or with objects that are not
arrays at all, in place of the parameters. Rebuilding therefore neither checks nor computes
anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import PyTree

Kind = TypeVar("Kind")


def to_python_scalar(value: Any) -> Any:
    """Convert a concrete zero-dimensional array to a Python number.

    Return other values as they are.
    """
    concrete_scalar = getattr(value, "shape", None) == () and not checks.is_traced(value)
    return value.item() if concrete_scalar else value


def to_float64(value: object) -> Any:
    """Convert numbers to float64; return tracers and containers as they are."""
    if isinstance(value, (int, float, np.generic, np.ndarray)):
        return np.asarray(value, dtype=np.float64)[()]
    return value


def to_numpy(tree: PyTree) -> PyTree:
    """Convert concrete JAX arrays to NumPy arrays.

    Arithmetic with JAX arrays would lose digits where float64 is not enabled.
    """

    def convert(value: object) -> object:
        if isinstance(value, jax.Array) and not checks.is_traced(value):
            return np.asarray(value)[()]
        return value

    return jax.tree.map(convert, tree)


def are_equal(self: object, other: object) -> bool:
    """Compare two objects as an `__eq__`: same class, static fields and parameters."""
    if type(self) is not type(other):
        return NotImplemented
    leaves, structure = jax.tree.flatten(self)
    other_leaves, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(
        np.array_equal(x, y) for x, y in zip(leaves, other_leaves, strict=True)
    )


def hash_structure(self: object) -> int:
    """Hash the static fields as a `__hash__`; the parameters may be arrays, which have no hash."""
    return hash(jax.tree.structure(self))


def register_parameters(
    *parameters: str, static_integers: Sequence[str] = ()
) -> Callable[[type[Kind]], type[Kind]]:
    """Register a frozen dataclass as a pytree with these fields as parameters.

    The other fields are static. So are the fields of `static_integers` whenever they are integers,
    because shapes depend on these.
    """

    def register(cls: Any) -> type[Kind]:
        static_fields = tuple(
            field.name for field in dataclasses.fields(cls) if field.name not in parameters
        )

        def flatten(instance: object) -> tuple[list[Any], tuple[Any, ...]]:
            integers = {
                name: value
                for name in static_integers
                if isinstance(value := getattr(instance, name), int)
            }
            # None is a pytree without leaves.
            children = [
                (
                    jax.tree_util.GetAttrKey(name),
                    None if name in integers else getattr(instance, name),
                )
                for name in parameters
            ]
            static = tuple(getattr(instance, name) for name in static_fields)
            return children, (*static, tuple(integers.items()))

        def unflatten(static: tuple[Any, ...], children: Iterable[PyTree]) -> Kind:
            instance = object.__new__(cls)
            values = (*to_numpy(children), *static[:-1])
            instance.__dict__.update(zip((*parameters, *static_fields), values, strict=True))
            instance.__dict__.update(static[-1])
            return instance

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        cls.__eq__, cls.__hash__ = are_equal, hash_structure
        return cls

    return register
