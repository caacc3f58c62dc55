"""What the ODE of an update costs beside that of plain SGD, both compiled: whole solutions, and one right-hand side."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from sgdynamics.solvers.ode import prepare_ode

HEAVY = sgd.updates.momentum(memory=1.5)
EVALUATIONS = 1000


def case(width):
    """An erf committee that learns at once, and its start."""
    problem = sgd.TeacherStudent(width=width, activation="erf", noise=0.25)
    return problem, sgd.start(problem, M=np.linspace(0.4, 0.1, width)[:, None], Q=np.eye(width))


def of_solution(update):
    """Seconds of one solution over 10 d samples."""
    problem, begin = case(2)
    algorithm = sgd.OnePassSGD(lr=2.0, update=update)
    began = time.perf_counter()
    sgd.solve_ode(problem, algorithm, begin, alpha=np.linspace(0, 10, 21))
    return time.perf_counter() - began


def right_hand_side(update):
    """Many evaluations as one compiled function of nothing."""
    with jax.enable_x64(True):
        problem, begin = case(4)
        one = prepare_ode(problem, sgd.OnePassSGD(lr=2.0, update=update), begin, alpha=[1.0])[
            1
        ].case
        each, state = (
            jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), part) for part in (one.each, one.states)
        )

        def moved(_, now):
            return jax.tree.map(
                lambda value, rate: value + 1e-9 * rate, now, one.field(each, one.shared, 0.1, now)
            )

        program = jax.jit(lambda: jax.lax.fori_loop(0, EVALUATIONS, moved, state))
        jax.block_until_ready(program())
    return program


def of_program(program):
    began = time.perf_counter()
    with jax.enable_x64(True):
        jax.block_until_ready(program())
    return time.perf_counter() - began


def ratios(pairs=7) -> Iterator[tuple[str, float, float, bool]]:
    """Medians over interleaved pairs."""
    for update in (None, HEAVY):
        of_solution(update)  # compiles
    solutions = [of_solution(HEAVY) / of_solution(None) for _ in range(pairs)]
    yield (
        "ODE of heavy ball over that of plain SGD, width 2, 10 d samples",
        float(np.median(solutions)),
        3.0,
        False,
    )
    heavy, plain = right_hand_side(HEAVY), right_hand_side(None)
    sides = [of_program(heavy) / of_program(plain) for _ in range(pairs)]
    yield (
        "one right-hand side of heavy ball over plain SGD's, width 4",
        float(np.median(sides)),
        3.0,
        False,
    )
