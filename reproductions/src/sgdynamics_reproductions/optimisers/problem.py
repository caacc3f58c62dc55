"""The problems of these figures: two erf units, or a single one, learn one erf unit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics import TeacherStudent, start

FIRST_M, FIRST_Q = ((0.4,), (0.1,)), ((1.0, 0.2), (0.2, 0.8))


def two_units(noise: float, **options: Any) -> tuple[TeacherStudent, Any]:
    """Two erf units that learn one, with fixed initial overlaps."""
    problem = TeacherStudent(width=2, teacher_width=1, activation="erf", noise=noise, **options)
    return problem, start(problem, M=FIRST_M, Q=FIRST_Q)


def one_unit(noise: float) -> tuple[TeacherStudent, Any]:
    """One erf unit that learns one.

    It serves updates whose ODE is an average over all fields of a unit: a single unit needs a tenth
    of the quadrature points of two units.
    """
    problem = TeacherStudent(width=1, activation="erf", noise=noise)
    return problem, start(problem, M=[[0.4]], Q=[[1.0]])


def spread_over(last: float, points: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of a line from 0 to `last`, and every `stride`-th of them for runs."""
    times = np.linspace(0.0, last, points)
    return times, times[stride::stride]
