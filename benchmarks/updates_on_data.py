"""Compare `solve_dmft` with and without an update: heavy ball with plain steps, SAM with both.

All cases draw a new half of the samples in every step, so that every gradient adds a direction and
the passes over the paths dominate. SAM takes two passes per step, over twice as many directions.
"""

from __future__ import annotations

from collections.abc import Iterator

import sgdynamics as sgd
from measurement import Measurement, measure_processor_seconds

PATHS, STEPS, REPEATS = 32768, 200, 3
HEAVY_BALL_TARGET = 1.1  # promised ratio of a step of heavy ball to a plain step
SAM_TARGET = 1.3  # promised ratio of n steps of SAM to 2 n plain steps


def ratios() -> Iterator[Measurement]:
    """Yield ratios of processor times; the cases take turns, and the fastest of each counts."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
    start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])

    def seconds(update: sgd.updates.Update | None, steps: int) -> float:
        algorithm = sgd.MultiPassSGD(
            lr=0.3, samples_per_dimension=2.0, batch_fraction=0.5, update=update
        )
        options = {"steps": [steps], "paths": PATHS, "progress": False}
        return measure_processor_seconds(
            lambda: sgd.solve_dmft(problem, algorithm, start, **options)
        )

    cases = {
        "plain": (None, STEPS),
        "heavy ball": (sgd.updates.momentum(0.5), STEPS),
        "SAM": (sgd.updates.sam(0.1), STEPS // 2),
    }
    for case in cases.values():
        seconds(*case)  # compiles
    # The cases take turns, so that a slow moment of the machine affects all of them.
    rounds = [{name: seconds(*case) for name, case in cases.items()} for _ in range(REPEATS)]
    best = {name: min(times[name] for times in rounds) for name in cases}
    label = f"DMFT of {STEPS} steps of heavy ball over plain steps, processor seconds"
    yield Measurement(label, best["heavy ball"] / best["plain"], HEAVY_BALL_TARGET, False)
    label = f"DMFT of {STEPS // 2} steps of SAM over {STEPS} plain steps, processor seconds"
    yield Measurement(label, best["SAM"] / best["plain"], SAM_TARGET, False)


if __name__ == "__main__":
    for measurement in ratios():
        print(measurement)
