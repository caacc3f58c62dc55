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


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def scaled(value):
    def function(x):
        return value * x

    return function


def through(box):
    def function(x):
        return box.value * x

    return function


def named(x):
    return SCALE * x


def indirect(x):
    return named(x) + jnp.tanh(x)


def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


def default(value):
    def function(x, *, scale=value):
        return scale * x

    return function


def derived(value):
    @jax.custom_jvp
    def function(x):
        return x

    @function.defjvp
    def rule(primals, tangents):
        return primals[0], value * tangents[0]

    return function


def begin(value, problem, parameters):
    return value


# by name, a function of one number that makes a value which differs with it, in nothing but what it holds
VALUES = {
    "closure": scaled,
    "closure over a plain object": lambda value: through(Box(value)),
    "closure over a dictionary of objects": lambda value: scaled({"a": Box(value)}),
    "closure over an object with slots": lambda value: through(Slotted(value)),
    "closure over closures": lambda value: scaled(scaled(scaled(value))),
    "closure over an array": lambda value: scaled(value * np.arange(100.0)),
    "closure over a JAX array": lambda value: scaled(value * jnp.arange(3.0)),
    "closure over a key": lambda value: scaled(jax.random.key(int(value))),
    "closure over a generator": lambda value: scaled(np.random.default_rng(int(value))),
    "closure over a set": lambda value: scaled({value, "a", "b", "c"}),
    "closure over a Dataset": lambda value: scaled(
        xr.Dataset({"y": ("z", [1.0])}, {"z": [value]}, {"unit": "s"})
    ),
    "keyword default": default,
    "bound method": lambda value: Box(value).times,
    "bound method of a list": lambda value: [value].index,
    "callable object": Box,
    "partial": lambda value: functools.partial(jnp.multiply, value),
    "partial of a closure": lambda value: functools.partial(scaled(value), x=1.0),
    "jit": lambda value: jax.jit(scaled(value)),
    "grad": lambda value: jax.grad(scaled(value)),
    "checkpoint": lambda value: jax.checkpoint(scaled(value)),
    "closure over a pattern": lambda value: scaled(re.compile(f"{value}")),
    "cached": lambda value: functools.lru_cache(scaled(value)),
    "custom derivative": derived,
    "lambda": lambda value: lambda x: value * x,
}
# and the problems, algorithms and arguments of a sweep that hold such functions
SWEPT = {
    "activation": lambda value: {
        "problem": sgd.TeacherStudent(2, activation=sgd.Activation(scaled(value)))
    },
    "teacher_activation": lambda value: {
        "problem": sgd.TeacherStudent(
            2, activation="square", teacher_activation=sgd.Activation(scaled(value))
        )
    },
    "lr=closure": lambda value: {"algorithm": sgd.OnePassSGD(lr=scaled(value))},
    "lr=partial": lambda value: {
        "algorithm": sgd.OnePassSGD(lr=functools.partial(jnp.multiply, value))
    },
    "gradient_noise": lambda value: {
        "algorithm": sgd.OnePassSGD(lr=0.1, update=sgd.updates.gradient_noise(sigma=scaled(value)))
    },
    "temperature": lambda value: {
        "algorithm": sgd.Langevin(samples_per_dimension=2.0, temperature=scaled(value))
    },
    "contexts": lambda value: {
        "problem": sgd.contexts(
            {
                "first": sgd.TeacherStudent(2, activation=sgd.Activation(scaled(value))),
                "second": sgd.TeacherStudent(2, activation="square"),
            }
        )
    },
    "evaluate": lambda value: {
        "evaluate": sgd.TeacherStudent(2, activation=sgd.Activation(scaled(value)))
    },
    "start": lambda value: {"start": functools.partial(begin, value)},
    "dictionary of objects": lambda value: {"evaluate": {"a": Box(value)}},
}


def digests():
    """Hashes of all of them, to be compared between processes."""
    return [digest(make(2.0)) for make in VALUES.values()] + [
        digest(indirect),
        digest(factorial),
        digest(Box),
    ]
