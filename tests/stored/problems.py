"""The problems of the stored cases, with a start for each.

The problems are small, so that nearly all of their time is spent in compiling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd

TWO = [(0.5, 0.5), (2.0, 0.5)]
THREE = [(0.5, 0.5), (1.0, 0.25), (2.0, 0.25)]
GRAM = [[1.0, 0.3], [0.3, 0.8]]


def product(z):
    return z[0] * z[1]


def cubic(z):
    return z[0] ** 3 / 6 - z[0] / 2


def sign(z):
    return jnp.sign(z[0])


def larger(z):
    return jnp.maximum(z[0], z[1])


def leaky(x):
    return jnp.where(x > 0, x, 0.1 * x)


def hinge(fields, signals, head, noise_draw, parameters):
    """A smooth hinge with label noise and a parameter."""
    label = jnp.tanh(signals[0] + 0.3 * noise_draw)
    return jax.nn.softplus(parameters["margin"] - label * jnp.mean(head * fields))


def relu_loss(fields, signals, head, noise_draw):
    return 0.5 * (jnp.mean(jax.nn.relu(fields)) - signals[0]) ** 2


def smooth(fields, signals, head, noise_draw):
    return 0.5 * (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0])) ** 2


def classes(fields, signals, head, label):
    return jnp.mean(jax.nn.softplus((1 - 2 * label) * head * jnp.tanh(fields)))


CLUSTERS = [(0.3, [1.0, 0.5], 1.0), (0.7, [-1.0, 0.2], 0.0)]

PROBLEMS: dict[str, Callable[[], Any]] = {
    "square": lambda: sgd.TeacherStudent(width=2, activation="square", noise=0.1),
    "erf": lambda: sgd.TeacherStudent(
        width=3,
        teacher_width=2,
        activation="erf",
        teacher_gram=GRAM,
        teacher_head=[1.0, -0.5],
        noise=0.01,
        weight_decay=0.05,
    ),
    "relu": lambda: sgd.TeacherStudent(width=2, activation="relu", noise=0.1),
    "tanh of sign": lambda: sgd.TeacherStudent(
        width=2, activation="tanh", teacher_activation="sign", noise=0.1
    ),
    "own activation": lambda: sgd.TeacherStudent(
        width=2, activation=sgd.Activation(leaky, kinks=(0.0,))
    ),
    "trained head": lambda: sgd.TeacherStudent(
        width=2, activation="softplus", head="trained", weight_decay=0.1
    ),
    "sphere": lambda: sgd.TeacherStudent(
        width=2, activation="he2", constraint="sphere", noise=0.05
    ),
    "sphere, trained relu": lambda: sgd.TeacherStudent(
        width=2, activation="relu", head="trained", constraint="sphere", weight_decay=0.1
    ),
    "correlation": lambda: sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, loss="correlation", weight_decay=0.2
    ),
    "logistic": lambda: sgd.TeacherStudent(
        width=2, activation="tanh", teacher_activation="sign", loss="logistic"
    ),
    "two blocks": lambda: sgd.TeacherStudent(
        width=2, teacher_width=2, activation="erf", teacher_gram=GRAM, noise=0.1, covariance=TWO
    ),
    "three blocks": lambda: sgd.TeacherStudent(
        width=2, activation="relu", head="trained", weight_decay=0.1, covariance=THREE
    ),
    "blocks on the sphere": lambda: sgd.TeacherStudent(
        width=2, activation="square", constraint="sphere", covariance=TWO
    ),
    "one direction": lambda: sgd.MultiIndex(
        cubic, directions=1, width=2, activation="relu", noise=0.1
    ),
    "one direction, kinked": lambda: sgd.MultiIndex(
        sign, directions=1, width=2, activation="tanh", kinks=[0.0], head="trained"
    ),
    "two directions": lambda: sgd.MultiIndex(product, directions=2, width=2, activation="relu"),
    "two directions, kinked": lambda: sgd.MultiIndex(
        larger,
        directions=2,
        width=2,
        activation="erf",
        kinks=[((1.0, -1.0), 0.0)],
        gram=GRAM,
        noise=0.1,
    ),
    "directions, blocks": lambda: sgd.MultiIndex(
        product, directions=2, width=2, activation="tanh", covariance=TWO
    ),
    "own": lambda: sgd.Problem(
        hinge, width=2, signals=1, head="trained", parameters={"margin": 0.5}
    ),
    "own, smooth": lambda: sgd.Problem(smooth, width=2, signals=1, constraint="sphere"),
    "own, kinked": lambda: sgd.Problem(
        relu_loss, width=2, signals=1, kinks=(0.0,), weight_decay=0.1
    ),
    "own, blocks": lambda: sgd.Problem(relu_loss, width=2, signals=1, kinks=(0.0,), covariance=TWO),
    "own clusters": lambda: sgd.Problem(
        classes, width=2, signals=2, head="trained", clusters=CLUSTERS
    ),
    "own clusters, blocks": lambda: sgd.Problem(
        classes, width=2, signals=2, head="trained", covariance=TWO, clusters=CLUSTERS
    ),
    "binary": lambda: sgd.GaussianMixture("binary", snr=2.0),
    "binary without noise": lambda: sgd.GaussianMixture("binary", snr=np.inf),
    "xor": lambda: sgd.GaussianMixture("xor", width=2, snr=10.0),
    "xor without noise": lambda: sgd.GaussianMixture("xor", snr=np.inf),
    "smooth mixture": lambda: sgd.GaussianMixture("binary", width=3, snr=4.0, activation="tanh"),
    "spiked matrix": lambda: sgd.SpikedTensor(order=2, snr=2.0),
    "spiked tensor": lambda: sgd.SpikedTensor(order=3, snr=1.5, ridge=0.3),
}


def start_of(problem: Any) -> Any:
    """A start without any symmetry of the problem; two runs for a spiked tensor."""
    if isinstance(problem, sgd.SpikedTensor):
        return sgd.start(problem, m=[0.4, -0.3], r2=[0.7, 0.5])
    p, k = problem.width, problem.signals
    unit, signal = np.arange(p)[:, None], np.arange(k)[None, :]
    M = 0.3 * np.cos(1.0 + 1.7 * unit + 2.3 * signal)
    Q = 1.5 * M @ M.T + np.diag(0.9 - 0.1 * np.arange(p)) + 0.1
    if problem.constraint == "sphere":
        norm = np.sqrt(np.diag(Q))
        M, Q = M / norm[:, None], Q / np.outer(norm, norm)
    a = 1.0 - 0.3 * np.arange(p)
    if isinstance(problem, sgd.GaussianMixture):
        a = a * (-1.0) ** np.arange(p)
    return sgd.start(problem, M=M, Q=Q, a=a)
