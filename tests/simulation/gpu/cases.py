"""Problems for the kernel of the exact chain, shared by the tests with and without a GPU."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation.gpu.chain import KernelChain
from sgdynamics.simulation.running import RunSetting


def user_loss(fields: Any, signals: Any, head: Any, noise: Any, parameters: Any) -> Any:
    """A user's loss with parameters, a maximum, a cumulative sum, an index and a logarithm."""
    output = (
        jnp.mean(head * jnp.tanh(fields))
        + 0.1 * jnp.max(fields)
        + 0.05 * jnp.cumsum(fields)[-1] ** 2
    )
    label = jnp.where(signals[0] > 0, signals[0], parameters["slope"] * signals[0])
    return jnp.log1p((output - label - 0.1 * noise) ** 2)


# Overlaps of two hidden units with two signals.
TWO_UNITS = {"M": [[0.4, 0.1], [0.1, 0.3]], "Q": [[1.0, 0.1], [0.1, 0.8]]}


def _committee(**options: Any) -> Any:
    arguments = {"activation": "erf", "noise": 0.2, **options}
    return sgd.TeacherStudent(width=2, teacher_width=2, **arguments)


def _mixture() -> Any:
    def loss(fields: Any, signals: Any, head: Any, label: Any) -> Any:
        return jnp.logaddexp(0.0, -label * jnp.sum(head * jnp.maximum(fields, 0.0)))

    clusters = [(0.3, [1.0, 0.0], 1.0), (0.3, [-1.0, 0.5], 1.0), (0.4, [0.0, 1.0], -1.0)]
    return sgd.Problem(
        loss, width=2, signals=2, clusters=clusters, head="trained", weight_decay=0.05, kinks=[0.0]
    )


# Functions that return (problem, algorithm, arguments of sgd.start).
CASES: dict[str, Any] = {
    "square": lambda: (
        sgd.TeacherStudent(width=1),
        sgd.OnePassSGD(lr=0.02),
        {"M": [[0.4]], "Q": [[1.0]]},
    ),
    "erf": lambda: (_committee(), sgd.OnePassSGD(lr=1.5), TWO_UNITS),
    "relu": lambda: (_committee(activation="relu"), sgd.OnePassSGD(lr=0.5), TWO_UNITS),
    "own": lambda: (
        sgd.Problem(user_loss, width=2, signals=2, parameters={"slope": 0.3}),
        sgd.OnePassSGD(lr=0.7),
        TWO_UNITS,
    ),
    "head": lambda: (
        _committee(head="trained"),
        sgd.OnePassSGD(lr=1.0, head_rate=0.5),
        {**TWO_UNITS, "a": [1.2, 0.7]},
    ),
    "top": lambda: (
        sgd.models.mlp((2, 2), signals=2, noise=0.2, weight_decay={"V1": 0.1}),
        sgd.OnePassSGD(lr=0.5, head_rate={"c1": 0.5}),
        {**TWO_UNITS, "top": {"V1": [[0.8, -0.5], [0.2, 0.6]], "c1": [0.3, -0.2], "u": [1, -1]}},
    ),
    "softmax": lambda: (
        sgd.models.softmax(classes=2, width=2),
        sgd.OnePassSGD(lr=1.0),
        {**TWO_UNITS, "top": {"B": [[0.5, -0.2], [-0.3, 0.4]]}},
    ),
    "sphere": lambda: (
        _committee(constraint="sphere"),
        sgd.OnePassSGD(lr=1.0),
        {"M": TWO_UNITS["M"], "Q": [[1.0, 0.1], [0.1, 1.0]]},
    ),
    "decay and schedules": lambda: (
        _committee(weight_decay=lambda alpha: 0.2 + 0.1 * alpha, noise=lambda alpha: 0.1 + alpha),
        sgd.OnePassSGD(lr=sgd.piecewise_rate([0.5, 1.2], [1.0, 0.5, 2.0])),
        TWO_UNITS,
    ),
    "batch 2": lambda: (_committee(), sgd.OnePassSGD(lr=1.5, batch=2), TWO_UNITS),
    "batch 5": lambda: (_committee(), sgd.OnePassSGD(lr=1.5, batch=5), TWO_UNITS),
    "blocks": lambda: (
        _committee(covariance=[(0.5, 0.4), (2.0, 0.6)]),
        sgd.OnePassSGD(lr=1.0),
        {
            name: np.array([0.4 * np.array(value), 0.6 * np.array(value)])
            for name, value in TWO_UNITS.items()
        },
    ),
    "mixture": lambda: (_mixture(), sgd.OnePassSGD(lr=0.5), {**TWO_UNITS, "a": [0.6, -0.4]}),
    "momentum": lambda: (
        _committee(),
        sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5)),
        TWO_UNITS,
    ),
}


def verify_kernels(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Verify each kernel that is lowered from now on in Triton's language.

    The returned list grows by one entry per kernel: whether Triton's verifier accepts it.
    """
    # imported here: the smoke tests use this module on Windows, where jaxlib has no Triton
    from jax._src.pallas.triton import lowering

    verdicts, lower = [], lowering.lower_jaxpr_to_triton_module

    def lower_and_verify(*args: Any, **kwargs: Any) -> Any:
        result = lower(*args, **kwargs)
        verdicts.append(result.module.operation.verify())
        return result

    monkeypatch.setattr(lowering, "lower_jaxpr_to_triton_module", lower_and_verify)
    return verdicts


def make_chain(name: str, dimension: int, runs: int = 1, interpret: bool = False) -> KernelChain:
    """The kernel chain of a case, with the same initial condition in all runs."""
    problem, algorithm, overlaps = CASES[name]()
    start = broadcast_runs(sgd.start(problem, **overlaps), runs)
    return KernelChain(
        problem,
        algorithm.on(problem),
        RunSetting(start, dimension, problem.block_dimensions(dimension)),
        interpret,
    )
