"""Type aliases for arrays, scalars, random keys and pytrees, used in signatures.

Shapes are written in the signatures themselves, for instance `Float[Numeric, "blocks p K"]`. The
names of the axes are: `p` student rows, `K` signals, `fields` = p + K, `blocks` of the covariance,
`tokens` of a sample, `inputs` of a sample, `samples` of a batch, `runs`, `replicates` of nodes and
`d` dimensions. A name stands for one size throughout a call. The annotations are not checked when
the library runs; `tests/architecture/test_shapes.py` checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key
from jaxtyping import PyTree as PyTree

# An array of NumPy or JAX, concrete or traced.
Numeric = Array | np.ndarray
# One real number.
Scalar = float | np.floating | Float[Numeric, ""]
# One integer.
IntScalar = int | np.integer | Int[Numeric, ""]
# One truth value.
BoolScalar = bool | np.bool_ | Bool[Numeric, ""]
# One real number or an array of real numbers.
RealArray = float | Numeric
# Keys of JAX's random number generators: one, or one per run.
RandomKey = Key[Array, ""]
RandomKeys = Key[Array, " runs"]
DType = np.dtype | type[np.generic]


@runtime_checkable
class Device(Protocol):
    """A `jax.Device`, which is no type for a type checker."""

    platform: str


# An argument that a user may write as a number, as nested lists of numbers or as an array.
ArrayArgument = float | Sequence[Any] | Numeric
# A function written by a user.
Function = Callable[..., Any]

# Nodes and weights of a quadrature, by name.
Nodes = Mapping[str, Numeric]
# Order parameters M, Q (per covariance block) and a, with any leading axes.
State = Mapping[str, Numeric]
# Parameters of a problem or an algorithm by name: arrays, schedules, or a dictionary of a user's
# own.
Parameters = dict[str, Any]
