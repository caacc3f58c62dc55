"""The problems of the figures, each with a number of the problem or the algorithm free, and their
optima by other programs.

Reference optima are known by two methods each: closed forms, L-BFGS on pieces, Pontryagin's
equations, the times of switches.
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

NOISE = 0.1  # of both students whose learning rate is free
ONE = OnePassSGD(lr=1.0)


class Optimum(NamedTuple):
    """What other programs found: the risk of the optimum for infinitely many pieces, that of the
    best constant, and where that is.
    """

    risk: float
    constant_risk: float
    constant: float

    @property
    def gain(self) -> float:
        """How many times smaller the risk is than with the best constant."""
        return self.constant_risk / self.risk


REFERENCE = {
    "linear": Optimum(0.0033148159, 0.0056246228, 0.172566),
    "erf": Optimum(0.0038091993, 0.0059212185, 0.45113),
    "replay": Optimum(0.0122981084, 0.0140192769, 0.76169),
    "dropout": Optimum(0.0356392674, 0.0372338421, 0.29182),
    "weight decay": Optimum(0.0647419253, 0.0758004197, 0.21089),
    "curriculum": Optimum(0.0456272433, 0.0478011553, 0.5),
}
# where these leave or reach a bound, in alpha
SWITCHES = {
    "replay": (5.004, 9.741),
    "weight decay": (0.94853, 4.65467),
    "curriculum": (2.46277, 6.46277),
}
ERF_RATES = {
    0.0: 1.11,
    1.0: 1.12,
    4.0: 0.98,
    8.0: 0.57,
    12.0: 0.35,
    19.0: 0.20,
}  # the best rate at these alpha
REPLAY_ARC = (0.62, 0.58)  # the share of task two between the switches, first and last
KEEP = (0.635, 0.136)  # the share of units kept, first and last
RAMPS = {
    1.0: (5021, 0.0033164),
    10.0: (505, 0.0033215),
    100.0: (53, 0.0034135),
    300.0: (21, 0.0039929),
}  # lr: steps, risk at d = 1000
EASY = {
    100: 0.050929893,
    300: 0.026474043,
    1000: 0.013018085,
    3000: 0.0068163679,
}  # steps: best risk, 400 inputs
HARD = {100: 0.31601, 300: 0.21033, 1000: 0.13122, 3000: 0.08171}


def best(
    problem: Any,
    algorithm: OnePassSGD,
    begin: Any,
    alpha: float,
    controls: dict[str, Any],
    pieces: int,
    **options: Any,
) -> OptimalProtocol:
    """``optimal_protocol`` without its bar."""
    return optimal_protocol(
        problem,
        algorithm,
        begin,
        alpha=alpha,
        controls=controls,
        pieces=pieces,
        progress=False,
        **options,
    )


def rate_of_linear(pieces: int) -> OptimalProtocol:
    """One linear unit from 0, to alpha = 20."""
    problem = TeacherStudent(width=1, activation="linear", noise=NOISE)
    return best(problem, ONE, start(problem, M=[[0.0]], Q=[[0.0]]), 20.0, {"lr": (0, 5)}, pieces)


def rate_of_erf(pieces: int) -> OptimalProtocol:
    """One erf unit, to alpha = 20."""
    problem = TeacherStudent(width=1, activation="erf", noise=NOISE)
    return best(problem, ONE, start(problem, M=[[0.1]], Q=[[1.0]]), 20.0, {"lr": (0, 5)}, pieces)


def decay(pieces: int) -> OptimalProtocol:
    """Weight decay of one erf unit that begins too long, to alpha = 5."""
    problem = TeacherStudent(width=1, activation="erf", noise=0.5)
    return best(
        problem, ONE, start(problem, M=[[0.1]], Q=[[2.0]]), 5.0, {"weight_decay": (0, 1)}, pieces
    )


def dropout(pieces: int) -> OptimalProtocol:
    """The share of units kept in training; at test all have the gain .6. To alpha = 30."""
    problem = TeacherStudent(width=2, activation="erf", noise=0.3, keep=0.5, gain=0.6)
    initial_state = start(problem, M=[[0.1], [0.05]], Q=np.diag([1.0, 0.8]), a=[2.0, 2.0])
    return best(problem, ONE, initial_state, 30.0, {"keep": (0.01, 1)}, pieces)


def two_tasks(pieces: int) -> tuple[Contexts, OnePassSGD, Any]:
    """Two tasks with a head each, the algorithm, and the state after task one alone to alpha = 30."""
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
    tasks: Contexts, algorithm: OnePassSGD, begin: Any, edges: np.ndarray, share: np.ndarray
) -> xr.Dataset:
    """The ODE at the edges with shares of the second of two contexts in pieces; of as many pieces
    all are one program.
    """
    moving = tasks.replace(
        probabilities=piecewise_rate(edges[1:-1], np.stack([1 - share, share], axis=-1))
    )
    return solve_ode(moving, algorithm, begin, alpha=edges, rtol=1e-9)


def groups() -> tuple[Contexts, Any]:
    """Easy samples, silent in the half of the coordinates that has no signal, and hard ones; and
    the start.
    """

    def group(loud: float) -> TeacherStudent:
        blocks = [(1.0, 0.5), (loud, 0.5)]
        return TeacherStudent(
            width=1, activation="erf", noise=0.3, covariance=blocks, teacher_gram=[[[1.0]], [[0.0]]]
        )

    both = contexts({"easy": group(0.0), "hard": group(1.0)})
    return both, start(both, M=[[[0.1]], [[0.0]]], Q=[[[0.5]], [[0.5]]])
