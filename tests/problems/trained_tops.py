"""Problems with a trained top, with values that were computed without the library.

Source of the values: quadrature on two grids and closed erf integrals, checked against direct SGD
in d = 200 to 800 dimensions.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

import sgdynamics as sgd

NOISE = 0.05


def g(x):
    return erf(x / np.sqrt(2.0))


def biased_loss(fields, signals, top, noise_draw):
    output = jnp.sum(top["a"] * g(fields + top["b"])) / 2
    label = g(signals[0] - 0.5) + np.sqrt(NOISE) * noise_draw
    return (output - label) ** 2 / 2


def step_loss(fields, signals, top, noise_draw):
    output = jnp.sum(top["a"] * g(fields + top["b"])) / 2
    label = jnp.where(signals[0] > 0.5, 1.0, 0.0) + np.sqrt(NOISE) * noise_draw
    return (output - label) ** 2 / 2


def deep_loss(fields, signals, top, noise_draw):
    hidden = jnp.tanh(top["V"] @ jnp.tanh(fields) + top["c"])
    return (jnp.sum(top["u"] * hidden) - signals[0] * signals[1]) ** 2 / 2


def first_task(fields, signals, top, noise_draw):
    output = top["c"] * top["a"] * g(fields[0] + top["b"])
    return (output - g(signals[0])) ** 2 / 2


def second_task(fields, signals, top, noise_draw):
    output = top["c"] * top["a"] * g(fields[0] + top["b"])
    return (output - g(signals[0] - 1) / 2) ** 2 / 2


def polynomial_loss(fields, signals, top, noise_draw):
    output = top["a"] @ fields + top["b"][0] + top["b"][1] * (fields[0] ** 2 - 1)
    return (output - signals[0] - 0.5 - 0.3 * noise_draw) ** 2 / 2


BIASES = {"a": (2,), "b": (2,)}


def bias_problem(loss=biased_loss, **arguments):
    return sgd.Problem(loss, width=2, signals=1, top=BIASES, **arguments)


def bias_start(problem):
    return sgd.start(
        problem,
        M=[[0.3], [-0.2]],
        Q=[[1, 0.2], [0.2, 0.8]],
        top={"a": [1, 0.5], "b": [0, 0.1]},
    )


def polynomial():
    """A problem whose moments are polynomials: exact and cheap on Gauss-Hermite nodes."""
    problem = sgd.Problem(polynomial_loss, width=2, signals=1, top=BIASES, weight_decay={"a": 0.02})
    start = sgd.start(
        problem,
        M=[[0.3], [-0.2]],
        Q=[[1, 0.2], [0.2, 0.8]],
        top={"a": [0.6, 0.3], "b": [0.1, 0.2]},
    )
    return problem, start


def deep():
    problem = sgd.Problem(deep_loss, width=3, signals=2, top={"V": (2, 3), "c": 2, "u": 2})
    start = sgd.start(
        problem,
        M=[[0.5, 0.2], [0.3, -0.4], [-0.2, 0.3]],
        Q=0.8 * np.eye(3) + 0.1,
        top={"V": [[0.8, -0.5, 0.3], [0.2, 0.6, -0.7]], "c": [0.3, -0.2], "u": [1, -1]},
    )
    return problem, start


def tasks():
    problems = {
        name: sgd.Problem(loss, width=1, signals=1, top={"a": (), "b": (), "c": ()})
        for name, loss in (("first", first_task), ("second", second_task))
    }
    problem = sgd.contexts(problems, [0.7, 0.3], heads=("a", "b"))
    start = sgd.start(problem, M=[[0.2]], Q=[[0.8]], top={"a": [0.6, 0.6], "b": [0, 0], "c": 1.0})
    return problem, start
