"""Measure `solve_ode` of wide students: the noise at few times against the noise in every stage.

Both routes are measured in turn, in CPU seconds of calls that compile nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

import sgdynamics as sgd
from measurement import Measurement
from sgdynamics.ode import deferred

SIGNALS, TIMES, REPEATS = 4, np.linspace(0.0, 4.0, 5), 3
CASES = (("relu", 16, 2.5), ("erf", 32, 2.5))  # activation, width, promised ratio


def cpu_seconds(problem, start) -> float:
    """Measure one call of `solve_ode`."""
    start_time = time.process_time()
    sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=TIMES)
    return time.process_time() - start_time


def ratios() -> Iterator[Measurement]:
    """Yield the ratio of both routes for each case."""
    for activation, width, target in CASES:
        problem = sgd.TeacherStudent(width=width, teacher_width=SIGNALS, activation=activation)
        start = sgd.random_start(problem, dimension=1000, seed=1)
        pairs = []
        for _ in range(REPEATS + 1):
            with deferred.direct():
                direct_seconds = cpu_seconds(problem, start)
            pairs.append((direct_seconds, cpu_seconds(problem, start)))
        # The first pair contains the compilation.
        direct_seconds, seconds = np.median(pairs[1:], axis=0)
        label = (
            f"solve_ode, {activation}, p = {width}, k = {SIGNALS}, t to {TIMES[-1]:g}: noise in "
            f"every stage / at few times, CPU seconds (now {seconds:.2f} s)"
        )
        yield Measurement(label, float(direct_seconds / seconds), target, True)


if __name__ == "__main__":
    for measurement in ratios():
        print(measurement, flush=True)
