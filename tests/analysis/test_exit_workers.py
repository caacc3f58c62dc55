"""Exit times of several workers: the ODE against a closed recursion, runs against the ODE."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

import sgdynamics as sgd
from tests.conftest import Z

LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
ORIGIN = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
LOCAL = sgd.Workers(sgd.OnePassSGD(lr=1.0), workers=4, every=0.5)


def error_within_a_round(U, time):
    """|w - w*|^2 of the mean of 4 linear workers at lr 1, this time after a round began."""
    first, second = np.exp(-time), np.exp(-time)
    return 0.75 * first**2 * U + (second * U + 0.2 * (1 - second)) / 4


@pytest.mark.slow
def test_the_exit_by_the_ode_is_that_of_the_closed_recursion():
    exits = sgd.exit_time(LINEAR, LOCAL, ORIGIN, threshold=0.8)
    U, rounds = 1.0, 0
    while error_within_a_round(U, 0.5) > 0.2:
        U, rounds = error_within_a_round(U, 0.5), rounds + 1
    within = optimize.brentq(lambda time: error_within_a_round(U, time) - 0.2, 0.0, 0.5)
    np.testing.assert_allclose(exits.times, [0.5 * rounds + within], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "direct", "sde"])
def test_runs_leave_when_the_ode_does(method):
    theory = sgd.exit_time(LINEAR, LOCAL, ORIGIN, threshold=0.8)
    options = {"method": method, "dimension": 200, "runs": 60}
    exits = sgd.exit_time(LINEAR, LOCAL, ORIGIN, threshold=0.8, **options)
    assert exits.left == 60
    # First passages of a fluctuating risk are early by a part of their spread.
    slack = 0.5 * np.std(exits.times) + 2 / 200
    assert abs(exits.mean - theory.mean) < Z * exits.standard_error + slack


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="criterion is 'risk' or 'overlap'"):
        sgd.exit_time(LINEAR, LOCAL, ORIGIN, criterion=lambda state: state["M"][0, 0])
    with pytest.raises(ValueError, match="needs a finite dimension"):
        sgd.exit_time(LINEAR, LOCAL, ORIGIN, method="exact")
