"""Parameters of problems as arguments and as plain values of records."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import describe_schedule, is_scheduled, schedule_from_function
from sgdynamics.base.user_functions import function_identity


def validate_parameters(value: Any) -> Any:
    """Return the parameters of a user's loss as float64 arrays and schedules."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise checks.reject("parameters", value, "give a dictionary of numbers or arrays by name")
    paths_and_leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_scheduled)
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


def plain_values(tree: Any) -> Any:
    """Return numbers, text and functions in dictionaries and lists as plain values."""

    def plain(leaf: Any) -> Any:
        if is_scheduled(leaf):
            return describe_schedule(leaf)[0]
        return function_identity(leaf) if callable(leaf) else np.asarray(leaf).tolist()

    return jax.tree.map(plain, tree, is_leaf=is_scheduled)


def transpose_parameters(parameters: Parameters, *names: str) -> tuple[tuple[Any, ...], ...]:
    """Return arrays of several names as a tuple of rows, one entry per name, of Python numbers."""

    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if np.ndim(value) else pytrees.to_python_scalar(value)

    return tuple(zip(*(plain(parameters[name]) for name in names), strict=True))
