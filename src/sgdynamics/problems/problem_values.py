"""Parameters of problems as arguments and as plain values of records."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.base.controls import describe_schedule, is_scheduled, schedule_from_function
from sgdynamics.base.user_functions import function_identity


def validate_parameters(parameters: Parameters) -> Parameters:
    """Return the parameters of a user's loss as float64 arrays and schedules."""
    if not isinstance(parameters, dict) or not all(isinstance(name, str) for name in parameters):
        raise checks.reject(
            "parameters", parameters, "give a dictionary of numbers or arrays by name"
        )
    paths_and_leaves, tree = jax.tree_util.tree_flatten_with_path(parameters, is_leaf=is_scheduled)
    leaves = []
    for path, leaf in paths_and_leaves:
        name = f"parameters{jax.tree_util.keystr(path)}"
        if callable(leaf):
            leaves.append(schedule_from_function(name, leaf, "alpha"))
            continue
        fix = "give a number, an array of numbers or a function of alpha"
        array = checks.real_array(name, leaf, fix)
        if not np.all(np.isfinite(array)):
            raise checks.reject(name, leaf, "give finite numbers")
        leaves.append(array)
    return jax.tree_util.tree_unflatten(tree, leaves)


def plain_values(tree: PyTree) -> Any:
    """Return arrays, text and functions in dictionaries and lists as values of JSON.

    Schedules and functions are replaced by their descriptions.
    """

    def plain_leaf(leaf: PyTree) -> Any:
        if is_scheduled(leaf):
            return describe_schedule(leaf)[0]
        return function_identity(leaf) if callable(leaf) else np.asarray(leaf).tolist()

    return jax.tree.map(plain_leaf, tree, is_leaf=is_scheduled)


def transpose_parameters(parameters: Parameters, *names: str) -> tuple[tuple[Any, ...], ...]:
    """Return the arrays of several names as tuples with one entry per name.

    ::

        transpose_parameters({"x": [1, 2], "y": [3, 4]}, "x", "y") == ((1, 3), (2, 4))

    Concrete entries are Python numbers.
    """

    def nested_tuples(array: Numeric) -> Any:
        if np.ndim(array):
            return tuple(map(nested_tuples, array))
        return pytrees.to_python_scalar(array)

    return tuple(zip(*(nested_tuples(parameters[name]) for name in names), strict=True))
