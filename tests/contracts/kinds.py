"""A small problem of each kind, with an algorithm and a start.

The structures are the smallest possible, because nearly all of the time is spent in compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import sgdynamics as sgd

LR = 0.1


class Decay(sgd.Dynamics):
    """A dynamics of its own: the exponential decay of one overlap, with noise at finite d."""

    variables: ClassVar = {"m": ("overlap", ())}

    def rate(self, values, state):
        return {"m": -state["m"]}

    def step(self, values, state, key):
        length = values["algorithm"]["lr"] / values["dimension"]
        kick = self.noise(values, state)["m"][0] * jnp.sqrt(length) * jax.random.normal(key)
        return {"m": state["m"] * (1 - length) + kick}

    def risk(self, values, state):
        return state["m"] ** 2

    def noise(self, values, state):
        return {"m": jnp.full(1, 0.05 / jnp.sqrt(values["dimension"]))}


def two_tokens(fields, signals, head, draws):
    return 0.5 * (jnp.sum(fields) - jnp.sum(signals) - draws["noise"]) ** 2


def least_squares(fields, signals, head, noise_draw, overlaps):
    """Least squares as a learning rule, with an additional decay of the row."""
    return sgd.Move(fields - signals, rows=0.5 * overlaps.Q)


def phase() -> sgd.TeacherStudent:
    return sgd.TeacherStudent(width=1, activation="square", noise=0.1)


def affine_loss(fields, signals, top, noise_draw):
    return (top["a"][0] * fields[0] + top["a"][1] - signals[0]) ** 2 / 2


PROBLEMS: dict[str, Callable[[], Any]] = {
    "fields": phase,
    "mixture": lambda: sgd.GaussianMixture("binary", width=1, snr=4.0),
    "snr = inf": lambda: sgd.GaussianMixture("binary", width=1, snr=math.inf),
    "several inputs": lambda: sgd.Problem(
        two_tokens, width=1, signals=1, tokens=2, draws={"noise": "normal"}
    ),
    "rule": lambda: sgd.Rule(
        least_squares,
        groups={"w": 1},
        risk=lambda fields, signals, head, draws: 0.5 * (fields[0] - signals[0]) ** 2,
    ),
    "dropout": lambda: phase().replace(keep=0.6),
    "contexts": lambda: sgd.contexts(
        {"quiet": phase(), "loud": phase().replace(noise=0.5)}, probabilities=[0.7, 0.3]
    ),
    "students": lambda: sgd.ensemble(phase(), 1),
    "top": lambda: sgd.Problem(affine_loss, width=1, signals=1, top={"a": 2}),
    "other inputs": lambda: phase().replace(activation="erf", input_noise=0.3),
    "spiked tensor": lambda: sgd.SpikedTensor(order=2, snr=2.0),
    "own dynamics": Decay,
    "deep linear": lambda: sgd.DeepLinear(depth=2),
    "wide network": lambda: sgd.WideNetwork([[1.0, 0.5]], [1.0], hidden_layers=1),
    "diagonal": sgd.DiagonalNetwork,
    "static head": lambda: phase().replace(head="trained"),
    "temperature": phase,
    "other batch": phase,
    "other update": phase,
    "coordinatewise update": phase,
    "fixed data": phase,
    "epochs": phase,
    "message passing": phase,
    "update on data": phase,
    "coordinatewise update on data": phase,
    "workers": phase,
    "delayed update": phase,
}


def algorithm_of(kind: str, question: str) -> Any:
    """The algorithm with which a problem of this kind is passed to a question."""
    if kind == "static head":
        return sgd.OnePassSGD(lr=LR, head_rate="static")
    if kind == "temperature":
        return sgd.OnePassSGD(lr=LR, temperature=0.2)
    if kind == "other batch":
        return sgd.OnePassSGD(lr=LR, batch=1.5)
    if kind == "other update":
        return sgd.OnePassSGD(lr=LR, update=sgd.updates.normalised())
    if kind == "delayed update":
        return sgd.OnePassSGD(lr=LR, update=sgd.updates.delayed(steps=2))
    if kind == "coordinatewise update":
        return sgd.OnePassSGD(lr=LR, update=sgd.updates.sign())
    if kind in ("update on data", "coordinatewise update on data"):
        update = (
            sgd.updates.momentum(memory=0.5) if kind == "update on data" else sgd.updates.sign()
        )
        if question == "worth_of_repeats":
            return sgd.EpochSGD(lr=LR, update=update)
        return sgd.GradientDescent(lr=LR, update=update)
    if kind == "workers":
        return sgd.Workers(sgd.OnePassSGD(lr=LR), workers=2)
    if kind == "message passing":
        return sgd.AMP(2.0, start="overlaps")
    if kind == "epochs" or (question == "worth_of_repeats" and kind != "fixed data"):
        return sgd.EpochSGD(lr=LR)
    if kind == "fixed data" or question in ("solve_dmft", "exit_time by DMFT"):
        return sgd.GradientDescent(lr=LR)
    return sgd.OnePassSGD(lr=LR)


# Kinds that differ by the algorithm and share the problem `phase`.
ALGORITHM_KINDS = (
    "fields",
    "static head",
    "temperature",
    "other batch",
    "other update",
    "coordinatewise update",
    "fixed data",
    "epochs",
    "message passing",
    "update on data",
    "coordinatewise update on data",
    "workers",
    "delayed update",
)


def start_of(kind: str, problem: Any, question: str = "simulate") -> Any:
    """A start of a problem of this kind for a question."""
    if question == "solve_mean_field" and kind in ALGORITHM_KINDS:
        return sgd.random_start(problem, dimension=50, wide=True)
    if kind == "own dynamics":
        return {"m": 0.5}
    if kind in ("deep linear", "wide network", "diagonal"):
        return None  # the problem defines the initial weights
    if kind == "spiked tensor":
        return sgd.start(problem, m=0.5, r2=1.0)
    if kind == "top":
        return sgd.start(problem, M=[[0.4]], Q=[[1.0]], top={"a": [1.0, 0.1]})
    if kind == "message passing":  # M = Q in the limit
        return sgd.start(problem, M=[[0.4]], Q=[[0.4]])
    return sgd.start(problem, M=[[0.4]], Q=[[1.0]])
