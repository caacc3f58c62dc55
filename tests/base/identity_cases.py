"""Functions and objects whose identities are compared, also between processes."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdynamics as sgd
from sgdynamics.base.identity import digest

SCALE = 1.0


class Box:
    """An object with state and a method."""

    def __init__(self, value):
        self.value = value

    def times(self, x):
        return self.value * x

    def __call__(self, x):
        return self.value * x


class BoxWithSlots:
    """An object with state in slots."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def make_scaling(value):
    def function(x):
        return value * x

    return function


def make_box_scaling(box):
    def function(x):
        return box.value * x

    return function


def scale_by_global(x):
    return SCALE * x


def call_indirectly(x):
    return scale_by_global(x) + jnp.tanh(x)


def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


def make_default_scaling(value):
    def function(x, *, scale=value):
        return scale * x

    return function


def make_custom_derivative(value):
    @jax.custom_jvp
    def function(x):
        return x

    @function.defjvp
    def rule(primals, tangents):
        return primals[0], value * tangents[0]

    return function


def start_from_value(value, problem, parameters):
    return value


# Functions of a number. Their values differ only by the data that a function or object contains.
VALUES = {
    "closure": make_scaling,
    "closure over a plain object": lambda value: make_box_scaling(Box(value)),
    "closure over a dictionary of objects": lambda value: make_scaling({"a": Box(value)}),
    "closure over an object with slots": lambda value: make_box_scaling(BoxWithSlots(value)),
    "closure over closures": lambda value: make_scaling(make_scaling(make_scaling(value))),
    "closure over an array": lambda value: make_scaling(value * np.arange(100.0)),
    "closure over a JAX array": lambda value: make_scaling(value * jnp.arange(3.0)),
    "closure over a key": lambda value: make_scaling(jax.random.key(int(value))),
    "closure over a generator": lambda value: make_scaling(np.random.default_rng(int(value))),
    "closure over a set": lambda value: make_scaling({value, "a", "b", "c"}),
    "closure over a Dataset": lambda value: make_scaling(
        xr.Dataset({"y": ("z", [1.0])}, {"z": [value]}, {"unit": "s"})
    ),
    "keyword default": make_default_scaling,
    "bound method": lambda value: Box(value).times,
    "bound method of a list": lambda value: [value].index,
    "callable object": Box,
    "partial": lambda value: functools.partial(jnp.multiply, value),
    "partial of a closure": lambda value: functools.partial(make_scaling(value), x=1.0),
    "jit": lambda value: jax.jit(make_scaling(value)),
    "grad": lambda value: jax.grad(make_scaling(value)),
    "checkpoint": lambda value: jax.checkpoint(make_scaling(value)),
    "closure over a pattern": lambda value: make_scaling(re.compile(f"{value}")),
    "cached": lambda value: functools.lru_cache(make_scaling(value)),
    "custom derivative": make_custom_derivative,
    "lambda": lambda value: lambda x: value * x,
}
# Problems, algorithms and arguments of a sweep that contain such functions.
SWEEP_ARGUMENTS = {
    "activation": lambda value: {
        "problem": sgd.TeacherStudent(2, activation=sgd.Activation(make_scaling(value)))
    },
    "teacher_activation": lambda value: {
        "problem": sgd.TeacherStudent(
            2, activation="square", teacher_activation=sgd.Activation(make_scaling(value))
        )
    },
    "lr=closure": lambda value: {"algorithm": sgd.OnePassSGD(lr=make_scaling(value))},
    "lr=partial": lambda value: {
        "algorithm": sgd.OnePassSGD(lr=functools.partial(jnp.multiply, value))
    },
    "gradient_noise": lambda value: {
        "algorithm": sgd.OnePassSGD(
            lr=0.1, update=sgd.updates.gradient_noise(sigma=make_scaling(value))
        )
    },
    "temperature": lambda value: {
        "algorithm": sgd.Langevin(samples_per_dimension=2.0, temperature=make_scaling(value))
    },
    "contexts": lambda value: {
        "problem": sgd.contexts(
            {
                "first": sgd.TeacherStudent(2, activation=sgd.Activation(make_scaling(value))),
                "second": sgd.TeacherStudent(2, activation="square"),
            }
        )
    },
    "evaluate": lambda value: {
        "evaluate": sgd.TeacherStudent(2, activation=sgd.Activation(make_scaling(value)))
    },
    "start": lambda value: {"start": functools.partial(start_from_value, value)},
    "dictionary of objects": lambda value: {"evaluate": {"a": Box(value)}},
}


def digests():
    """Hashes of all values, for a comparison between processes."""
    return [digest(make(2.0)) for make in VALUES.values()] + [
        digest(call_indirectly),
        digest(factorial),
        digest(Box),
    ]
