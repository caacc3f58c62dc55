"""The error that the explicit method states for itself, compared with the true one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.ode import integrate
from sgdynamics.ode.late_times import ERROR_SAFETY
from tests.ode.test_explicit import pendulum, solve

FACTOR = 2.5  # largest ratio of the true to the stated error
SAVED = np.linspace(0.0, 6.0, 13)  # most save points are inside of steps


def logistic(t, y):
    """Exponential growth out of a small start, then saturation."""
    return {"y": y["y"] * (1 - y["y"])}


def fast_decay(t, y):
    """A fast decay onto a slow oscillation, at the limit of stability of the method."""
    return {"y": -30 * (y["y"] - jnp.sin(t)) + jnp.cos(t)}


def rotation(t, y):
    x, v = y["y"]
    return {"y": jnp.stack([v, -x * (1 + x**2)])}


PENDULUMS = {"angle": np.array([[1.0], [2.5]]), "speed": np.array([0.0, -1.0])}
EQUATIONS = {
    "pendulums": (pendulum, PENDULUMS),
    "growth": (logistic, {"y": np.array([1e-3])}),
    "decay": (fast_decay, {"y": np.array([1.0])}),
    "oscillation": (rotation, {"y": np.array([1.0, 0.5])}),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_errors_of_states_are_honest(name):
    """At three tolerances; an error of the embedded solution exceeds that of the solution."""
    field, state = EQUATIONS[name]
    exact = solve(field, state, SAVED, rtol=1e-14, atol=1e-14, max_steps=5000).saved
    for rtol in (1e-10, 1e-8, 1e-6):
        solution = solve(field, state, SAVED, rtol=rtol, atol=rtol)
        true = max(np.abs(solution.saved[key] - exact[key]).max() for key in exact)
        stated = ERROR_SAFETY * max(np.abs(value).max() for value in solution.saved_error.values())
        assert true < FACTOR * stated
        assert stated < 1e4 * true


def committee(activation, teachers=2):
    return sgd.TeacherStudent(width=3, teacher_width=teachers, activation=activation, noise=1e-3)


@pytest.mark.parametrize(
    ("activation", "dimension", "lr", "times"),
    [
        ("erf", 1000, 0.3, [1.0, 2.0, 3.0, 4.0]),
        ("erf", 1000, 0.3, [1.0, 10.0, 40.0]),
        ("erf", 10**8, 0.3, [10.0, 50.0, 150.0]),
        pytest.param("relu", 1000, 0.3, [1.0, 2.0, 3.0, 4.0], marks=pytest.mark.slow),
        pytest.param("relu", 1000, 0.3, [1.0, 10.0, 40.0], marks=pytest.mark.slow),
        ("square", 10**8, 0.1, [1.0, 10.0, 40.0]),
        ("square", 10**8, 0.0, [1.0, 10.0, 40.0]),
    ],
)
def test_error_integrator_is_honest(activation, dimension, lr, times):
    """Also along an escape from a saddle, where errors grow by the factor of the overlaps."""
    problem, algorithm = committee(activation), sgd.OnePassSGD(lr=lr)
    start = sgd.random_start(problem, dimension=dimension, seed=1)
    exact = sgd.solve_ode(problem, algorithm, start, times=times, rtol=3e-11).risk.values
    for rtol in (1e-8, 1e-5):
        result = sgd.solve_ode(problem, algorithm, start, times=times, rtol=rtol)
        true = np.max(np.abs(result.risk.values / exact - 1))
        assert true < FACTOR * result.attrs["error_integrator"]


def test_one_integration_gives_the_result_and_its_error(monkeypatch):
    problem = committee("erf")
    calls = []
    run_cases = integrate.run_cases
    monkeypatch.setattr(
        "sgdynamics.solvers.batch.run_cases",
        lambda *arguments: calls.append(1) or run_cases(*arguments),
    )
    start = sgd.random_start(problem, dimension=1000, seed=1)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.3), start, times=[1.0, 2.0, 3.0, 4.0])
    assert len(calls) == 1
    assert 0 < result.attrs["error_integrator"] < 1e-7
