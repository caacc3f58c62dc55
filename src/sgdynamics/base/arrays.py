"""Words for arrays in signatures: what is a number, an array, a key, or a dictionary of them.

Shapes stand in the signatures themselves, `Float[Numeric, "blocks p K"]`: p student rows, K signals, fields = p + K, blocks of the
covariance, tokens of a sample, its inputs, samples of a batch, runs, replicates of nodes, d dimensions. One name is one size throughout a
call. They are not checked when the library runs; `tests/architecture/test_shapes.py` checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, PyTree

Numeric = Array | np.ndarray  # what NumPy holds or JAX traces
Scalar = float | np.floating | Float[Numeric, ""]  # one real number
Whole = int | np.integer | Int[Numeric, ""]  # one whole number
Reals = float | Numeric  # one real number, or an array of them
OneKey = Key[Array, ""]  # of JAX's random numbers
Keys = Key[Array, " runs"]
DType = np.dtype | type[np.generic]

Given = (
    float | Sequence[Any] | Numeric
)  # an argument that a user may write as a number, lists of numbers, or an array
Function = Callable[..., Any]  # of a user

Nodes = Mapping[str, Numeric]  # points and weights of an expectation, by name
State = Mapping[str, Numeric]  # M, Q (block by block) and a, with any axes before
Numbers = dict[
    str, Any
]  # of a problem or an algorithm, by name: arrays, schedules, or a dictionary of a user's own
Tree = PyTree  # arrays in any dictionaries, tuples and lists
