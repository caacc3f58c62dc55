"""One sweep of 1000 ODEs against as many separate calls, both compiled, on the same cores of one process.

`row` gives (label, value, target, at least) for `make bench`.
"""

from __future__ import annotations

import time

import numpy as np

import sgdynamics as sgd
from sgdynamics.sweeps import sweep

POINTS, CALLS = (40, 25), 50
TIMES = np.linspace(0, 10, 50)

Row = tuple[str, float, float, bool]


def row(points: tuple[int, int] = POINTS, calls: int = CALLS) -> Row:
    """1000 solves of erf, p = 4, k = 2 over lr and noise; the separate calls are `calls` of them, spread over the grid, extrapolated."""
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-3)
    generator = np.random.default_rng(1)
    M = 0.2 * generator.standard_normal((4, 2))
    begin = sgd.start(problem, M=M, Q=M @ M.T + np.eye(4))
    rates, noises = np.linspace(0.1, 2.0, points[0]), np.linspace(0.0, 0.1, points[1])
    total = len(rates) * len(noises)
    shared = {"problem": problem, "algorithm": sgd.OnePassSGD(), "start": begin, "times": TIMES}

    def separate(lr: float, noise: float):
        here = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=noise)
        return sgd.solve_ode(here, sgd.OnePassSGD(lr=lr), begin, times=TIMES)

    # compiled before the clock starts: 64 points are a full group
    sweep("solve_ode", over={"lr": [0.15, 0.25], "noise": np.linspace(0.2, 0.3, 32)}, **shared)
    separate(0.15, 0.2)
    chosen = np.linspace(0, total - 1, calls).astype(int)
    began = time.perf_counter()
    answers = [
        separate(rates[place // len(noises)], noises[place % len(noises)]) for place in chosen
    ]
    one_by_one = (time.perf_counter() - began) * total / calls
    began = time.perf_counter()
    found = sweep("solve_ode", over={"lr": rates, "noise": noises}, **shared)
    together = time.perf_counter() - began
    flat = found.excess_risk.values.reshape(total, -1)
    gap = max(
        float(np.max(np.abs(flat[place] / answer.excess_risk.values[0] - 1)))
        for place, answer in zip(chosen, answers, strict=True)
    )
    label = (
        f"{total} ODE solves, separate compiled calls / one sweep, time, erf p = 4, k = 2 ({one_by_one:.1f} s, from {calls} calls, "
        f"against {together:.1f} s; same risks to {gap:.0e})"
    )
    return label, one_by_one / together, 5.0, True


if __name__ == "__main__":
    label, value, target, _ = row()
    print(f"{value:10.1f}  (target >= {target:g})  {label}")
