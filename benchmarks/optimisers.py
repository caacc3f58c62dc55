"""Compare the cost of the ODE of heavy-ball momentum with that of plain SGD, both compiled.

Two ratios are measured: the time of a whole solution, and the time of one right-hand side.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds
from sgdynamics.solvers.ode import prepare_ode

HEAVY_BALL = sgd.updates.momentum(memory=1.5)
EVALUATIONS = 1000


def build_problem(width):
    """Build an erf committee with a start that has no plateau."""
    problem = sgd.TeacherStudent(width=width, activation="erf", noise=0.25)
    return problem, sgd.start(problem, M=np.linspace(0.4, 0.1, width)[:, None], Q=np.eye(width))


def solution_seconds(update):
    """Measure one solution of the ODE over 10 d samples."""
    problem, start = build_problem(2)
    algorithm = sgd.OnePassSGD(lr=2.0, update=update)
    alpha = np.linspace(0, 10, 21)
    return measure_seconds(
        lambda: sgd.solve_ode(problem, algorithm, start, alpha=alpha).risk.values
    )


def compile_right_hand_side(update):
    """Compile a function that evaluates the right-hand side of the ODE EVALUATIONS times.

    Each evaluation changes the state by a tiny Euler step, so that the compiler cannot merge them.
    """
    with jax.enable_x64(True):
        problem, start = build_problem(4)
        algorithm = sgd.OnePassSGD(lr=2.0, update=update)
        _, request = prepare_ode(problem, algorithm, start, alpha=[1.0])
        ode = request.case
        parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), ode.replicates)
        initial_state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), ode.states)

        def euler_step(_, state):
            rates = ode.field(parameters, ode.shared, 0.1, state)
            return jax.tree.map(lambda leaf, rate: leaf + 1e-9 * rate, state, rates)

        program = jax.jit(lambda: jax.lax.fori_loop(0, EVALUATIONS, euler_step, initial_state))
        jax.block_until_ready(program())
    return program


def program_seconds(program):
    """Measure one call of a compiled program in double precision."""
    with jax.enable_x64(True):
        return measure_seconds(program)


def ratios(pairs=7) -> Iterator[Measurement]:
    """Yield medians over pairs measured in turn."""
    for update in (None, HEAVY_BALL):
        solution_seconds(update)  # compiles
    solution_ratios = [solution_seconds(HEAVY_BALL) / solution_seconds(None) for _ in range(pairs)]
    yield Measurement(
        "time of the ODE, heavy ball / plain SGD, width 2, 10 d samples",
        float(np.median(solution_ratios)),
        3.0,
        False,
    )
    heavy_ball, plain = compile_right_hand_side(HEAVY_BALL), compile_right_hand_side(None)
    field_ratios = [program_seconds(heavy_ball) / program_seconds(plain) for _ in range(pairs)]
    yield Measurement(
        "time of one right-hand side, heavy ball / plain SGD, width 4",
        float(np.median(field_ratios)),
        3.0,
        False,
    )
