"""Problems that the GPU's kernel of the chain runs, each with what it has beside: shared by the tests with and without a GPU."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.triton import lowering

import sgdynamics as sgd
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation.gpu.chain import KernelChain


def own_loss(fields: Any, signals: Any, head: Any, noise: Any, numbers: Any) -> Any:
    """A loss of one's own, with numbers, a maximum, a running sum, a lookup and an error function."""
    output = (
        jnp.mean(head * jnp.tanh(fields))
        + 0.1 * jnp.max(fields)
        + 0.05 * jnp.cumsum(fields)[-1] ** 2
    )
    bent = jnp.where(signals[0] > 0, signals[0], numbers["slope"] * signals[0])
    return jnp.log1p((output - bent - 0.1 * noise) ** 2)


TWO = {"M": [[0.4, 0.1], [0.1, 0.3]], "Q": [[1.0, 0.1], [0.1, 0.8]]}


def _student(**more: Any) -> Any:
    return sgd.TeacherStudent(
        width=2, teacher_width=2, **{"activation": "erf", "noise": 0.2, **more}
    )


def _mixture() -> Any:
    def loss(fields: Any, signals: Any, head: Any, label: Any) -> Any:
        return jnp.logaddexp(0.0, -label * jnp.sum(head * jnp.maximum(fields, 0.0)))

    clusters = [(0.3, [1.0, 0.0], 1.0), (0.3, [-1.0, 0.5], 1.0), (0.4, [0.0, 1.0], -1.0)]
    return sgd.Problem(
        loss, width=2, signals=2, clusters=clusters, head="trained", weight_decay=0.05, kinks=[0.0]
    )


CASES: dict[str, Any] = {
    "square": lambda: (
        sgd.TeacherStudent(width=1),
        sgd.OnePassSGD(lr=0.02),
        {"M": [[0.4]], "Q": [[1.0]]},
    ),
    "erf": lambda: (_student(), sgd.OnePassSGD(lr=1.5), TWO),
    "relu": lambda: (_student(activation="relu"), sgd.OnePassSGD(lr=0.5), TWO),
    "own": lambda: (
        sgd.Problem(own_loss, width=2, signals=2, parameters={"slope": 0.3}),
        sgd.OnePassSGD(lr=0.7),
        TWO,
    ),
    "head": lambda: (
        _student(head="trained"),
        sgd.OnePassSGD(lr=1.0, head_rate=0.5),
        {**TWO, "a": [1.2, 0.7]},
    ),
    "sphere": lambda: (
        _student(constraint="sphere"),
        sgd.OnePassSGD(lr=1.0),
        {"M": TWO["M"], "Q": [[1.0, 0.1], [0.1, 1.0]]},
    ),
    "decay and schedules": lambda: (
        _student(weight_decay=lambda alpha: 0.2 + 0.1 * alpha, noise=lambda alpha: 0.1 + alpha),
        sgd.OnePassSGD(lr=sgd.piecewise_rate([0.5, 1.2], [1.0, 0.5, 2.0])),
        TWO,
    ),
    "batch 2": lambda: (_student(), sgd.OnePassSGD(lr=1.5, batch=2), TWO),
    "batch 5": lambda: (_student(), sgd.OnePassSGD(lr=1.5, batch=5), TWO),
    "blocks": lambda: (
        _student(covariance=[(0.5, 0.4), (2.0, 0.6)]),
        sgd.OnePassSGD(lr=1.0),
        {
            name: np.array([0.4 * np.array(value), 0.6 * np.array(value)])
            for name, value in TWO.items()
        },
    ),
    "mixture": lambda: (_mixture(), sgd.OnePassSGD(lr=0.5), {**TWO, "a": [0.6, -0.4]}),
    "momentum": lambda: (_student(), sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5)), TWO),
}


def verified(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each kernel that is made from here on, in its compiler's own language: whether that takes it."""
    found, lower = [], lowering.lower_jaxpr_to_triton_module

    def checked(*given: Any, **more: Any) -> Any:
        result = lower(*given, **more)
        found.append(result.module.operation.verify())
        return result

    monkeypatch.setattr(lowering, "lower_jaxpr_to_triton_module", checked)
    return found


def made(name: str, dimension: int, runs: int = 1, interpret: bool = False) -> KernelChain:
    """The kernel's chain of a case."""
    problem, algorithm, given = CASES[name]()
    begin = sgd.start(problem, **given)
    begin = broadcast_runs(begin, runs)
    return KernelChain(
        problem, algorithm, begin, dimension, problem.block_dimensions(dimension), interpret
    )
