"""A linear network on top of the rows, whose moments are elementary."""

from __future__ import annotations

import jax.numpy as jnp

import sgdynamics as sgd

SHAPES = {"V": (2, 2), "u": (2,), "b": ()}
TOP = {"V": [[0.8, -0.5], [0.2, 0.6]], "u": [0.7, -0.4], "b": 0.3}
M, Q = [[0.3], [-0.2]], [[1.0, 0.2], [0.2, 0.8]]
NOISE = 0.3  # standard deviation of the label noise
LABELS = (1.0, -0.5)


def linear_loss(fields, signals, top, noise_draw):
    """|u (V lambda) + b - y|^2/2 with two outputs and y = LABELS z + 0.3 times a normal."""
    outputs = top["u"] * (top["V"] @ fields) + top["b"]
    labels = jnp.array(LABELS, fields.dtype) * signals[0] + NOISE * noise_draw
    return jnp.sum((outputs - labels) ** 2) / 2


def linear_top(**arguments):
    return sgd.Problem(linear_loss, width=2, signals=1, top=SHAPES, **arguments)


def linear_top_start(problem):
    return sgd.start(problem, M=M, Q=Q, top=TOP)
