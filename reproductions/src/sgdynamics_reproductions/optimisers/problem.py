"""The problems of the figures here: two erf units learn one, or one unit does, from overlaps that
are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics import TeacherStudent, start

FIRST_M, FIRST_Q = ((0.4,), (0.1,)), ((1.0, 0.2), (0.2, 0.8))


def two_units(noise: float, **options: Any) -> tuple[TeacherStudent, Any]:
    """The problem and its start."""
    problem = TeacherStudent(width=2, teacher_width=1, activation="erf", noise=noise, **options)
    return problem, start(problem, M=FIRST_M, Q=FIRST_Q)


def one_unit(noise: float) -> tuple[TeacherStudent, Any]:
    """The same of one unit, for updates whose ODE is an average over all its fields: a tenth of the
    points.
    """
    problem = TeacherStudent(width=1, activation="erf", noise=noise)
    return problem, start(problem, M=[[0.4]], Q=[[1.0]])


def spread_over(last: float, points: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Times of a line from 0 on, and every `each`-th of them after 0 for runs."""
    times = np.linspace(0.0, last, points)
    return times, times[each::each]
