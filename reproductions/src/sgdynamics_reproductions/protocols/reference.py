"""The control problems of the figures, and reference values of their optima.

In each problem one parameter of the problem or of the algorithm is the control. Each reference
optimum was computed by two independent methods: closed forms, L-BFGS on pieces, Pontryagin's
equations, or the switching times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    OptimalProtocol,
    TeacherStudent,
    contexts,
    optimal_protocol,
    piecewise_rate,
    solve_ode,
    start,
    start_from,
)
from sgdynamics.problems.contexts import Contexts

NOISE = 0.1  # label noise of the students whose learning rate is the control
UNIT_RATE = OnePassSGD(lr=1.0)


class Optimum(NamedTuple):
    """Reference optimum of a control problem, from independent programs."""

    risk: float  # risk of the optimal control, for infinitely many pieces
    constant_risk: float  # risk of the best constant control
    constant: float  # the best constant control

    @property
    def gain(self) -> float:
        """Ratio of the risk of the best constant to that of the optimum."""
        return self.constant_risk / self.risk


REFERENCE = {
    "linear": Optimum(0.0033148159, 0.0056246228, 0.172566),
    "erf": Optimum(0.0038091993, 0.0059212185, 0.45113),
    "replay": Optimum(0.0122981084, 0.0140192769, 0.76169),
    "dropout": Optimum(0.0356392674, 0.0372338421, 0.29182),
    "weight decay": Optimum(0.0647419253, 0.0758004197, 0.21089),
    "curriculum": Optimum(0.0456272433, 0.0478011553, 0.5),
}
# values of alpha at which the optimal control leaves or reaches a bound
SWITCHES = {
    "replay": (5.004, 9.741),
    "weight decay": (0.94853, 4.65467),
    "curriculum": (2.46277, 6.46277),
}
# optimal learning rate at these values of alpha
ERF_RATES = {
    0.0: 1.11,
    1.0: 1.12,
    4.0: 0.98,
    8.0: 0.57,
    12.0: 0.35,
    19.0: 0.20,
}
REPLAY_ARC = (0.62, 0.58)  # share of task two after the first switch and before the last one
KEEP = (0.635, 0.136)  # fraction of active units at the start and at the end
# learning rate: (steps, risk at d = 1000)
RAMPS = {
    1.0: (5021, 0.0033164),
    10.0: (505, 0.0033215),
    100.0: (53, 0.0034135),
    300.0: (21, 0.0039929),
}
# steps: smallest risk with 400 inputs
EASY = {
    100: 0.050929893,
    300: 0.026474043,
    1000: 0.013018085,
    3000: 0.0068163679,
}
HARD = {100: 0.31601, 300: 0.21033, 1000: 0.13122, 3000: 0.08171}


def best(
    problem: Any,
    algorithm: OnePassSGD,
    initial_state: Any,
    alpha: float,
    controls: dict[str, Any],
    pieces: int,
    **options: Any,
) -> OptimalProtocol:
    """Call ``optimal_protocol`` without a progress bar."""
    return optimal_protocol(
        problem,
        algorithm,
        initial_state,
        alpha=alpha,
        controls=controls,
        pieces=pieces,
        progress=False,
        **options,
    )


def rate_of_linear(pieces: int) -> OptimalProtocol:
    """Optimise the learning rate of one linear unit from 0, up to alpha = 20."""
    problem = TeacherStudent(width=1, activation="linear", noise=NOISE)
    return best(
        problem, UNIT_RATE, start(problem, M=[[0.0]], Q=[[0.0]]), 20.0, {"lr": (0, 5)}, pieces
    )


def rate_of_erf(pieces: int) -> OptimalProtocol:
    """Optimise the learning rate of one erf unit, up to alpha = 20."""
    problem = TeacherStudent(width=1, activation="erf", noise=NOISE)
    return best(
        problem, UNIT_RATE, start(problem, M=[[0.1]], Q=[[1.0]]), 20.0, {"lr": (0, 5)}, pieces
    )


def decay(pieces: int) -> OptimalProtocol:
    """Optimise the weight decay of one erf unit with too large a norm, up to alpha = 5."""
    problem = TeacherStudent(width=1, activation="erf", noise=0.5)
    return best(
        problem,
        UNIT_RATE,
        start(problem, M=[[0.1]], Q=[[2.0]]),
        5.0,
        {"weight_decay": (0, 1)},
        pieces,
    )


def dropout(pieces: int) -> OptimalProtocol:
    """Optimise the fraction of active units in training, up to alpha = 30.

    At test time all units are active with the gain 0.6.
    """
    problem = TeacherStudent(width=2, activation="erf", noise=0.3, keep=0.5, gain=0.6)
    initial_state = start(problem, M=[[0.1], [0.05]], Q=np.diag([1.0, 0.8]), a=[2.0, 2.0])
    return best(problem, UNIT_RATE, initial_state, 30.0, {"keep": (0.01, 1)}, pieces)


def two_tasks(pieces: int) -> tuple[Contexts, OnePassSGD, Any]:
    """Build two tasks with one head each, trained on the first task alone up to alpha = 30.

    Returns the tasks, the algorithm and the state after the first task.
    """
    item = TeacherStudent(
        width=2,
        teacher_width=2,
        activation="erf",
        teacher_gram=[[1, 0.3], [0.3, 1]],
        teacher_head=[2.0, 0.0],
        head="trained",
    )
    tasks = contexts(
        {"one": item, "two": item.replace(teacher_head=[0.0, 2.0])},
        probabilities=[1.0, 0.0],
        heads="own",
    )
    initial_state = start(
        tasks,
        M=[[0.1, 0.02], [-0.05, 0.08]],
        Q=[[0.5, 0.05], [0.05, 0.4]],
        a=[[1.0, 0.4], [0.6, 1.0]],
    )
    algorithm = OnePassSGD(lr=1.0, head_rate=4.0)
    edges = np.linspace(0, 30, pieces + 1)
    return (
        tasks,
        algorithm,
        start_from(with_share(tasks, algorithm, initial_state, edges, np.zeros(pieces))),
    )


def with_share(
    tasks: Contexts, algorithm: OnePassSGD, initial_state: Any, edges: np.ndarray, share: np.ndarray
) -> xr.Dataset:
    """Solve the ODE with a piecewise constant share of the second context, saved at the edges.

    All shares with the same number of pieces use one compiled program.
    """
    moving = tasks.replace(
        probabilities=piecewise_rate(edges[1:-1], np.stack([1 - share, share], axis=-1))
    )
    return solve_ode(moving, algorithm, initial_state, alpha=edges, rtol=1e-9)


def groups() -> tuple[Contexts, Any]:
    """Build easy and hard samples with their start.

    Half of the coordinates have no signal. They vanish in easy samples and have variance 1 in hard
    ones.
    """

    def group(loud: float) -> TeacherStudent:
        blocks = [(1.0, 0.5), (loud, 0.5)]
        return TeacherStudent(
            width=1, activation="erf", noise=0.3, covariance=blocks, teacher_gram=[[[1.0]], [[0.0]]]
        )

    both = contexts({"easy": group(0.0), "hard": group(1.0)})
    return both, start(both, M=[[[0.1]], [[0.0]]], Q=[[[0.5]], [[0.5]]])
