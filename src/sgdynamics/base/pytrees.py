"""Problems and algorithms as pytrees: their numbers are what JAX maps, traces and differentiates, the rest is static.

JAX puts tracers, and things that are no numbers at all, where the numbers are: nothing is checked or computed when one is put together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from sgdynamics.base import checks

Kind = TypeVar("Kind")


def to_python_scalar(value: Any) -> Any:
    """A number as Python's own; a tracer or an array as it is."""
    return (
        value.item()
        if getattr(value, "shape", None) == () and not checks.is_traced(value)
        else value
    )


def to_float64(value: object) -> Any:
    """Numbers in float64; what is a tracer, or made of numbers, as it is."""
    return (
        np.asarray(value, dtype=np.float64)[()]
        if isinstance(value, (int, float, np.generic, np.ndarray))
        else value
    )


def to_numpy(children: Sequence[Any]) -> Any:
    """Numbers that JAX has computed, as NumPy's: arithmetic with its own would lose digits wherever float64 is not switched on."""

    def one(value: object) -> Any:
        return (
            np.asarray(value)[()]
            if isinstance(value, jax.Array) and not checks.is_traced(value)
            else value
        )

    return jax.tree.map(one, children)


def are_equal(self: object, other: object) -> bool:
    """Whether two of the same kind have the same functions, shapes and numbers: an __eq__."""
    if type(self) is not type(other):
        return NotImplemented
    (mine, form), (theirs, other_form) = jax.tree.flatten(self), jax.tree.flatten(other)
    return form == other_form and all(
        np.array_equal(x, y) for x, y in zip(mine, theirs, strict=True)
    )


def hash_structure(self: object) -> int:
    """A __hash__: of what is static, as numbers may be arrays."""
    return hash(jax.tree.structure(self))


def register_parameters(
    *parameters: str, static_integers: Sequence[str] = ()
) -> Callable[[type[Kind]], type[Kind]]:
    """A frozen dataclass as a pytree: these fields are its numbers, the others are static; so are those of `static_integers` that are whole
    numbers, on which shapes depend."""

    def register(cls: Any) -> type[Kind]:
        rest = tuple(
            field.name for field in dataclasses.fields(cls) if field.name not in parameters
        )

        def flatten(one: object) -> tuple[list[Any], tuple[Any, ...]]:
            whole = {
                name: value
                for name in static_integers
                if isinstance(value := getattr(one, name), int)
            }
            # None is a tree without leaves
            children = [
                (jax.tree_util.GetAttrKey(name), None if name in whole else getattr(one, name))
                for name in parameters
            ]
            return children, (*(getattr(one, name) for name in rest), tuple(whole.items()))

        def unflatten(static: tuple[Any, ...], children: Any) -> Any:
            made = object.__new__(cls)
            made.__dict__.update(
                zip((*parameters, *rest), (*to_numpy(children), *static[:-1]), strict=True)
            )
            made.__dict__.update(static[-1])
            return made

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        cls.__eq__, cls.__hash__ = are_equal, hash_structure
        return cls

    return register
