"""Measure Bayes-optimal curves, in CPU seconds of calls that compile nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

import sgdynamics as sgd
from measurement import Measurement

ALPHA = np.linspace(0.2, 8.0, 50)
COMMITTEE_ALPHA = np.linspace(0.5, 6.0, 20)


def single(activation: str, noise: float) -> sgd.TeacherStudent:
    """Labels of one signal."""
    return sgd.TeacherStudent(
        width=1, activation="linear", teacher_activation=activation, noise=noise
    )


def cpu_seconds(problem, alpha) -> float:
    """Measure one call of `bayes_optimal`."""
    start_time = time.process_time()
    sgd.bayes_optimal(problem, alpha)
    return time.process_time() - start_time


def curves() -> Iterator[Measurement]:
    """Yield the seconds of a curve of 50 points with one signal, and of a committee of two."""
    for activation in ("relu", "erf", "abs"):
        cpu_seconds(single(activation, 0.11), ALPHA)
        # another noise: the programs are compiled, the curve is not stored
        seconds = min(cpu_seconds(single(activation, noise), ALPHA) for noise in (0.1, 0.12))
        label = f"bayes_optimal, {activation} with noise, 50 points, CPU seconds"
        yield Measurement(label, seconds, 2.0, False)
    committee = sgd.TeacherStudent(
        width=1, activation="linear", teacher_width=2, teacher_activation="sign"
    )
    seconds = cpu_seconds(committee, COMMITTEE_ALPHA)
    yield Measurement(
        "bayes_optimal, committee of two signs, 20 points, CPU seconds", seconds, 20.0, False
    )


if __name__ == "__main__":
    for measurement in curves():
        print(measurement, flush=True)
