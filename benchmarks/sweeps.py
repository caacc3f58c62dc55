"""Compare one sweep of 1000 ODEs with separate calls, both compiled, in one process.

    python benchmarks/sweeps.py

`make bench` includes this measurement.
"""

from __future__ import annotations

import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds
from sgdynamics.sweeps import sweep

POINTS, CALLS = (40, 25), 50
TIMES = np.linspace(0, 10, 50)


def measure(points: tuple[int, int] = POINTS, calls: int = CALLS) -> Measurement:
    """Measure a sweep over learning rates and noises of an erf committee, p = 4, k = 2.

    Only `calls` points, spread over the grid, are also solved by separate calls. Their time is
    extrapolated to all points.
    """
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-3)
    generator = np.random.default_rng(1)
    M = 0.2 * generator.standard_normal((4, 2))
    start = sgd.start(problem, M=M, Q=M @ M.T + np.eye(4))
    rates, noises = np.linspace(0.1, 2.0, points[0]), np.linspace(0.0, 0.1, points[1])
    total = len(rates) * len(noises)
    shared = {"problem": problem, "algorithm": sgd.OnePassSGD(), "start": start, "times": TIMES}

    def separate(lr: float, noise: float):
        noisy = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=noise)
        return sgd.solve_ode(noisy, sgd.OnePassSGD(lr=lr), start, times=TIMES)

    # Compile both before the measurement. A full group of a sweep has 64 points.
    sweep("solve_ode", over={"lr": [0.15, 0.25], "noise": np.linspace(0.2, 0.3, 32)}, **shared)
    separate(0.15, 0.2)
    chosen = np.linspace(0, total - 1, calls).astype(int)
    results = []

    def solve_separately():
        for point in chosen:
            results.append(separate(rates[point // len(noises)], noises[point % len(noises)]))

    def solve_in_one_sweep():
        results.append(sweep("solve_ode", over={"lr": rates, "noise": noises}, **shared))

    separate_seconds = measure_seconds(solve_separately) * total / calls
    sweep_seconds = measure_seconds(solve_in_one_sweep)
    swept_risks = results.pop().excess_risk.values.reshape(total, -1)
    largest_difference = max(
        float(np.max(np.abs(swept_risks[point] / result.excess_risk.values[0] - 1)))
        for point, result in zip(chosen, results, strict=True)
    )
    label = (
        f"{total} ODE solves, separate compiled calls / one sweep, time, erf p = 4, k = 2"
        f" ({separate_seconds:.1f} s, from {calls} calls, and {sweep_seconds:.1f} s;"
        f" relative difference of the risks {largest_difference:.0e})"
    )
    return Measurement(label, separate_seconds / sweep_seconds, 5.0, True)


if __name__ == "__main__":
    print(measure())
