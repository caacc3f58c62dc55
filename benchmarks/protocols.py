"""Measure the time of optimal protocols, divided by the time that the library promises on 2 cores.

Each case is solved twice with different noise. The first call compiles; the second is measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds


def optimise_erf_rate(noise):
    """Optimise the learning rate of one erf unit, as 40 constant pieces."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=noise)
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    sgd.optimal_protocol(
        problem,
        sgd.OnePassSGD(),
        start,
        alpha=20.0,
        controls={"lr": (0.01, 5)},
        pieces=40,
        progress=False,
    )


def optimise_replay(noise):
    """Optimise the fraction of samples from the second of two tasks, as 40 constant pieces.

    Each task has its own head, and the first task is already learned at the start.
    """
    gram = [[1.0, 0.3], [0.3, 1.0]]
    first_task = sgd.TeacherStudent(
        width=2,
        teacher_width=2,
        activation="erf",
        noise=noise,
        teacher_gram=gram,
        teacher_head=[2.0, 0.0],
        head="trained",
    )
    tasks = sgd.contexts(
        {"one": first_task, "two": first_task.replace(teacher_head=[0.0, 2.0])}, heads="own"
    )
    start = sgd.start(
        tasks,
        M=[[0.96, 0.25], [0.05, 0.08]],
        Q=[[0.95, 0.08], [0.08, 0.42]],
        a=[[1.9, 0.25], [0.6, 1.0]],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=4.0)
    sgd.optimal_protocol(
        tasks,
        algorithm,
        start,
        alpha=10.0,
        controls={"two": (0, 1)},
        evaluate=tasks,
        pieces=40,
        progress=False,
    )


def optimise_power_law_rate(noise):
    """Optimise the learning rate of a linear student on a power law of 500 eigenvalues.

    The rate has 100 constant pieces over 1000 steps.
    """
    index = np.arange(1.0, 501)
    target = index[None] ** -0.65
    spectrum = sgd.Spectrum(index**-1.2, np.ones(500, dtype=int), target=target)
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise, covariance=spectrum)
    start = sgd.start(problem, M=np.zeros((500, 1, 1)), Q=np.zeros((500, 1, 1)))
    sgd.optimal_protocol(
        problem,
        sgd.OnePassSGD(per="step"),
        start,
        alpha=2.0,
        controls={"lr": (1e-4, 1.9)},
        pieces=100,
        progress=False,
    )


CASES = {  # label: (function of the noise, promised seconds)
    "protocol: learning rate of an erf unit, seconds / 2": (optimise_erf_rate, 2.0),
    "protocol: replay of two tasks, seconds / 20": (optimise_replay, 20.0),
    "protocol: learning rate with 500 eigenvalues, 1000 steps, seconds / 5": (
        optimise_power_law_rate,
        5.0,
    ),
}


def ratios() -> Iterator[Measurement]:
    """Yield the time of the second call of each case over the promised time."""
    for label, (optimise, promised_seconds) in CASES.items():
        optimise(0.01)  # compiles
        seconds = measure_seconds(lambda optimise=optimise: optimise(0.012))
        yield Measurement(label, seconds / promised_seconds, 1.0, False)
