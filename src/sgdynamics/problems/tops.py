"""`Top`: the trained numbers on top of the first layer, a pytree of arrays as one flat vector.

A network f(x) = F_theta(W x) has finitely many numbers theta on top of its rows W. The equations
see them as one vector of n entries, as they see a head; the user's loss receives the pytree. All
leaves in the order of JAX (keys of dictionaries sorted) and row by row make the vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.base.controls import Schedule, concatenate_schedules, scalar_or_schedule

FIX = 'give shapes by name, such as {"B": (3, 4), "b": (3,)}'
# Largest number of entries: the chain and the Jacobians of the theory keep vectors of this length.
MOST_ENTRIES = 1 << 16


@dataclass(frozen=True)
class Top:
    """The shapes of the trained numbers on top of the first layer; hashable.

    Attributes
    ----------
    tree : PyTreeDef
        Structure of the pytree.
    names : tuple of str
        Path of each leaf, such as "B" or "layers.0.bias".
    shapes : tuple of tuple of int
        Shape of each leaf.
    """

    tree: jax.tree_util.PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each leaf."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Number of entries of all leaves."""
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position of the first entry of each leaf in the vector."""
        return tuple(np.cumsum([0, *self.sizes[:-1]]).tolist())

    def unravel(self, vector: Numeric) -> PyTree:
        """Return the pytree of vectors (..., n), with leaves (..., *shape)."""
        leaves = [
            vector[..., offset : offset + size].reshape((*vector.shape[:-1], *shape))
            for offset, size, shape in zip(self.offsets, self.sizes, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def ravel(self, tree: PyTree, leading_axes: int = 0) -> Numeric:
        """Return the vectors (..., n) of a pytree of JAX arrays with leaves (..., *shape)."""
        leaves = self.tree.flatten_up_to(tree)
        return jnp.concatenate(
            [jnp.reshape(leaf, (*jnp.shape(leaf)[:leading_axes], -1)) for leaf in leaves], axis=-1
        )

    def leaves_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the leaves (..., *shape) of vectors (..., n) by name."""
        leaves = jax.tree.leaves(self.unravel(vectors))
        return dict(zip(self.names, leaves, strict=True))

    def entry_names(self, prefix: str = "") -> list[str]:
        """Return a name of every entry of the vector, such as "B[0, 1]"."""
        names = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            for index in np.ndindex(shape):
                entry = f"[{', '.join(map(str, index))}]" if index else ""
                names.append(f"{prefix}{name}{entry}")
        return names

    def axes(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes of a leaf in results."""
        shape = self.shapes[self.names.index(name)]
        return tuple(f"{name}_{axis}" for axis in range(len(shape)))

    def leaves_of(self, key: str) -> list[int]:
        """Return the positions of the leaves with this name, or inside the branch of this name."""
        return [
            index
            for index, name in enumerate(self.names)
            if name == key or name.startswith(f"{key}.")
        ]

    def expand(self, argument: str, values: Mapping[str, Any], default: float) -> Any:
        """Return one value per entry from values by leaf, as an array or as a schedule.

        Values are numbers or schedules; leaves that are not among the names have the default.
        """
        by_leaf: list[Any] = [default] * len(self.names)
        for key, value in values.items():
            indices = self.leaves_of(key)
            if not indices:
                raise checks.reject(
                    argument,
                    key,
                    f"{checks.did_you_mean(key, self.names)}the leaves of the top are "
                    f"{', '.join(self.names)}",
                )
            for index in indices:
                by_leaf[index] = value
        if any(isinstance(value, Schedule) for value in by_leaf):
            return concatenate_schedules(by_leaf, self.sizes)
        return np.repeat(np.array(by_leaf, dtype=np.float64), self.sizes)

    def describe(self) -> PyTree:
        """Return the pytree of shapes as plain values, for records."""
        return jax.tree.unflatten(self.tree, [list(shape) for shape in self.shapes])


def validate_top(top: object) -> Top:
    """Return the `Top` of a pytree of shapes, or of arrays, whose shapes are taken."""
    try:
        paths, tree = jax.tree_util.tree_flatten_with_path(top, is_leaf=_is_shape)
    except (TypeError, ValueError):
        raise checks.reject("top", top, FIX) from None
    names, shapes = [], []
    for path, leaf in paths:
        shape = getattr(leaf, "shape", leaf)
        shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
        if isinstance(leaf, bool) or not _is_shape(shape) or any(n < 1 for n in shape):
            raise checks.reject("top", top, f"{leaf!r} is no shape. {FIX[0].upper()}{FIX[1:]}")
        names.append(_name(path))
        shapes.append(tuple(int(n) for n in shape))
    if not names or len(set(names)) < len(names):
        raise checks.reject("top", top, FIX)
    for name in names:
        if any(character in name for character in " []/"):
            raise checks.reject("top", name, "names of leaves have no spaces, slashes or brackets")
    result = Top(tree, tuple(names), tuple(shapes))
    if result.size > MOST_ENTRIES:
        raise checks.reject(
            "top", top, f"it has {result.size} numbers: give at most {MOST_ENTRIES}"
        )
    return result


def head_decay(parameters: Parameters) -> Any:
    """Return the weight decay of the head: that of the rows, or one value per entry of the top."""
    return parameters.get("head_decay", parameters["weight_decay"])


def validate_decay(value: object, top: Top | None) -> tuple[Any, dict[str, Any]]:
    """Return the weight decay of the rows, and the parameter "head_decay" if it differs.

    The value is a number or schedule for rows and head, or a dictionary with "rows" and the names
    of leaves, of which those that are left out have no decay.
    """
    if not isinstance(value, Mapping):
        return scalar_or_schedule("weight_decay", value), {}
    if top is None:
        raise checks.reject(
            "weight_decay", value, "decay by leaf is for problems with a top. Give a number."
        )
    decays = {
        key: scalar_or_schedule(f"weight_decay[{key!r}]", decay) for key, decay in value.items()
    }
    rows = decays.pop("rows", 0.0)
    return rows, {"head_decay": top.expand("weight_decay", decays, 0.0)}


def _is_shape(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in value
    )


def _name(path: tuple[Any, ...]) -> str:
    keys = [
        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
    ]
    return ".".join(keys) or "theta"


def validate_values(argument: str, top: Top, values: object, runs: int = 1) -> np.ndarray:
    """Return vectors (runs, n) from a pytree of arrays, each with or without an axis of runs."""
    try:
        leaves = top.tree.flatten_up_to(values)
    except (TypeError, ValueError) as error:
        raise checks.reject(
            argument, values, f"give arrays of the shapes {_shapes_text(top)}"
        ) from error
    vectors = []
    for name, shape, leaf in zip(top.names, top.shapes, leaves, strict=True):
        label = f"{argument}.{name}" if name else argument
        array = checks.real_array(label, leaf, f"give numbers of shape {shape}")
        if array.shape not in (shape, (runs, *shape)):
            raise ValueError(
                f"{label} has shape {array.shape}: give {shape}"
                + (f", or {(runs, *shape)} with an axis of runs" if runs > 1 else "")
            )
        vectors.append(np.broadcast_to(array, (runs, *shape)).reshape(runs, -1))
    return np.concatenate(vectors, axis=1)


def _shapes_text(top: Top) -> str:
    return ", ".join(f"{name}: {shape}" for name, shape in zip(top.names, top.shapes, strict=True))


def leading_runs(top: Top, values: object) -> int:
    """Return the number of runs of a pytree of arrays, 1 if no leaf has an axis of runs."""
    try:
        leaves = top.tree.flatten_up_to(values)
    except (TypeError, ValueError):
        return 1
    counts = [
        np.shape(leaf)[0]
        for leaf, shape in zip(leaves, top.shapes, strict=True)
        if np.ndim(leaf) == len(shape) + 1
    ]
    return max(counts, default=1)
