"""A list of problems, each solved by all methods.

The methods are the ODE at finite d, the SDE, the exact chain, direct simulation, and the
functional layer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.solvers import functional
from tests.conftest import Z


def relu(x):
    return jnp.where(x > 0, x, 0.0)


def hinge(fields, signals, head, noise_draw, parameters):
    """Loss of a user: smooth hinge of a linear classifier, with label noise and a parameter."""
    label = jnp.tanh(signals[0] + 0.3 * noise_draw)
    return jax.nn.softplus(parameters["margin"] - label * jnp.mean(head * fields))


PROBLEMS = {
    "tanh and sign": lambda: sgd.TeacherStudent(
        width=2, activation="tanh", teacher_activation="sign", noise=0.1
    ),
    "own activation": lambda: sgd.TeacherStudent(
        width=2, activation=sgd.Activation(lambda x: jnp.where(x > 0, x, 0.1 * x), kinks=(0.0,))
    ),
    "softplus, trained, decay": lambda: sgd.TeacherStudent(
        width=2, activation="softplus", head="trained", weight_decay=0.1
    ),
    "he2 on the sphere": lambda: sgd.TeacherStudent(width=2, activation="he2", constraint="sphere"),
    "multi-index": lambda: sgd.MultiIndex(
        lambda z: z[0] * z[1], directions=2, width=2, activation="relu"
    ),
    "own problem": lambda: sgd.Problem(
        hinge, width=2, signals=1, head="trained", parameters={"margin": 0.5}
    ),
    "own problem, blocks": lambda: sgd.Problem(
        lambda f, s, a, z: 0.5 * (jnp.mean(relu(f)) - s[0]) ** 2,
        width=2,
        signals=1,
        kinks=(0.0,),
        covariance=[(0.5, 0.5), (2.0, 0.5)],
    ),
    "binary mixture": lambda: sgd.GaussianMixture("binary", snr=2.0, weight_decay=0.1),
    "own clusters, blocks": lambda: sgd.Problem(
        lambda f, s, a, y: jnp.mean(jax.nn.softplus((1 - 2 * y) * a * jnp.tanh(f))),
        width=2,
        signals=2,
        head="trained",
        covariance=[(0.5, 0.5), (2.0, 0.5)],
        clusters=[(0.3, [1.0, 0.5], 1.0), (0.7, [-1.0, 0.2], 0.0)],
    ),
}


# These problems cover kinks, a trained head, weight decay, the sphere, a user's loss and blocks.
# The SDE of each problem is a program of its own.
WITH_PATHS = (
    "softplus, trained, decay",
    "he2 on the sphere",
    "own problem, blocks",
    "binary mixture",
    "own clusters, blocks",
)


# The fast tests have a small problem of each kind (`test_every_kind.py`). These problems combine
# features of one kind and are larger programs.
@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_method_accepts_every_problem(name):
    problem = PROBLEMS[name]()
    d, times = 400, [0.0, 0.15, 0.3]
    algorithm = sgd.OnePassSGD(lr=0.1)
    M = np.zeros((2, problem.signals))
    M[:, 0] = (0.3, -0.2)
    start = sgd.start(problem, M=M, Q=np.array([[1.0, 0.1], [0.1, 1.0]]))
    theory = sgd.solve_ode(problem, algorithm, start, times=times, dimension=d)
    exact = sgd.simulate(problem, algorithm, start, times=times, dimension=d, runs=200, seed=1)
    direct = sgd.simulate(
        problem, algorithm, start, times=times, dimension=d, runs=40, seed=2, method="direct"
    )
    simulated = [(exact, 2 / d), (direct, 2 / d)]
    if name in WITH_PATHS:
        # The steps of the scheme are long here, with an error of up to 3e-3.
        paths = sgd.solve_sde(
            problem, algorithm, start, times=times, dimension=d, runs=100, seed=3, step=0.03
        )
        simulated.append((paths, 2 / d + 3e-3))
    for result in (theory, *(result for result, _ in simulated)):
        assert {"M", "Q", "a", "risk"} <= set(result.data_vars)
        assert np.isfinite(result.risk).all()
        assert result.M.dims == ("run", "time", "unit", "signal")
    quadrature_error = theory.attrs["error_quadrature"]
    for result, slack in simulated:
        table = sgd.compare(theory, result)
        for variable in ("M", "Q", "a", "risk"):
            gap = np.abs(table[f"{variable}_simulation"] - table[f"{variable}_theory"])
            allowed = (
                Z * table[f"{variable}_standard_error"]
                + (slack + quadrature_error) * np.abs(table[f"{variable}_theory"]).max()
                + 1e-9
            )
            assert np.all(gap <= allowed), (variable, float(gap.max()))
    with jax.enable_x64(True):
        quadrature = functional.quadrature(problem, start)
        value = jax.jit(
            lambda state: functional.risk(
                problem.structure, problem.parameters, state, quadrature=quadrature
            )
        )(functional.state(start))
    assert float(value) == pytest.approx(
        float(theory.risk[0, 0]), rel=max(1e-9, 20 * quadrature_error)
    )


@pytest.mark.slow
def test_parameters_of_an_own_problem_do_not_recompile():
    from tests.simulation.test_behaviour import count_compilations

    def solve(margin):
        problem = sgd.Problem(hinge, width=2, signals=1, parameters={"margin": margin})
        start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
        algorithm = sgd.OnePassSGD(lr=0.1)
        result = sgd.simulate(problem, algorithm, start, steps=[10], dimension=50, runs=2)
        return float(result.risk[0, 0])

    with_margin = sgd.Problem(hinge, width=2, signals=1, parameters={"margin": 0.5})
    assert with_margin.describe()["parameters"] == {"margin": 0.5}
    plain_loss = PROBLEMS["own problem, blocks"]().user_loss
    assert sgd.Problem(plain_loss, width=2, signals=1).describe()["parameters"] is None
    risk = solve(0.5)
    risks = []
    assert count_compilations(lambda: risks.append(solve(0.9))) == 0
    assert risks[0] > risk
