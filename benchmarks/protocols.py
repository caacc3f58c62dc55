"""How long the best protocols take once compiled, for other numbers: seconds over what is promised on two cores."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

import sgdynamics as sgd


def rate_of_erf(noise):
    """The learning rate of one erf unit, 40 pieces."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=noise)
    begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    sgd.optimal_protocol(
        problem,
        sgd.OnePassSGD(),
        begin,
        alpha=20.0,
        controls={"lr": (0.01, 5)},
        pieces=40,
        progress=False,
    )


def replay(noise):
    """The share of the second of two tasks, with a head each, once the first is known; 40 pieces."""
    gram = [[1.0, 0.3], [0.3, 1.0]]
    one = sgd.TeacherStudent(
        width=2,
        teacher_width=2,
        activation="erf",
        noise=noise,
        teacher_gram=gram,
        teacher_head=[2.0, 0.0],
        head="trained",
    )
    tasks = sgd.contexts({"one": one, "two": one.replace(teacher_head=[0.0, 2.0])}, heads="own")
    begin = sgd.start(
        tasks,
        M=[[0.96, 0.25], [0.05, 0.08]],
        Q=[[0.95, 0.08], [0.08, 0.42]],
        a=[[1.9, 0.25], [0.6, 1.0]],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=4.0)
    sgd.optimal_protocol(
        tasks,
        algorithm,
        begin,
        alpha=10.0,
        controls={"two": (0, 1)},
        evaluate=tasks,
        pieces=40,
        progress=False,
    )


def power_law(noise):
    """The learning rate of a linear student on 500 eigenvalues over 1000 steps, 100 pieces."""
    k = np.arange(1.0, 501)
    spectrum = sgd.Spectrum(k**-1.2, np.ones(500, dtype=int), target=(k**-0.65)[None])
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise, covariance=spectrum)
    begin = sgd.start(problem, M=np.zeros((500, 1, 1)), Q=np.zeros((500, 1, 1)))
    asked = {"alpha": 2.0, "controls": {"lr": (1e-4, 1.9)}, "pieces": 100, "progress": False}
    sgd.optimal_protocol(problem, sgd.OnePassSGD(per="step"), begin, **asked)


CASES = {
    "protocol: rate of an erf unit, seconds over 2": (rate_of_erf, 2.0),
    "protocol: replay of two tasks, seconds over 20": (replay, 20.0),
    "protocol: rates of 500 eigenvalues, 1000 steps, seconds over 5": (power_law, 5.0),
}


def ratios() -> Iterator[tuple[str, float, float, bool]]:
    """The second call of each, with other numbers."""
    for name, (call, promised) in CASES.items():
        call(0.01)  # compiles
        began = time.perf_counter()
        call(0.012)
        yield name, (time.perf_counter() - began) / promised, 1.0, False
