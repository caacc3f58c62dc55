"""Runs in phases agree with a run whose parameters change; a phase continues the last one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sgdynamics as sgd

PROBLEM = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
START = sgd.start(PROBLEM, M=[[0.3]], Q=[[1.0]])
ALGORITHM = sgd.OnePassSGD(lr=1.0)


@pytest.mark.slow
def test_phases_are_a_schedule():
    """A batch of four at twice the rate is half the rate as d -> infinity."""
    phases = [
        (PROBLEM, ALGORITHM, [1.0, 2.0]),
        (PROBLEM, sgd.OnePassSGD(lr=2.0, batch=4), [1.0, 2.0]),
    ]
    result = sgd.phases(sgd.solve_ode, phases, START, rtol=1e-10)
    single_run = sgd.solve_ode(
        PROBLEM,
        ALGORITHM.replace(lr=sgd.piecewise_rate([2.0], [1.0, 0.5])),
        START,
        alpha=[1.0, 2.0, 3.0, 4.0],
        rtol=1e-10,
    )
    np.testing.assert_allclose(result.risk, single_run.risk, rtol=1e-8)
    np.testing.assert_allclose(result.alpha, single_run.alpha)
    np.testing.assert_allclose(result.t, single_run.t)
    assert result.phase.values.tolist() == [0, 0, 1, 1]
    assert [phase["algorithm"]["batch"] for phase in json.loads(result.attrs["phases"])] == [1, 4]


@pytest.mark.slow
def test_a_task_that_changes(tmp_path):
    other = PROBLEM.replace(noise=1.0)
    phases = [
        (PROBLEM, ALGORITHM, 1.0),
        (other, ALGORITHM.replace(update=sgd.updates.momentum(0.5)), {"steps": [0, 10]}),
    ]
    result = sgd.phases(sgd.simulate, phases, START, dimension=40, runs=3, seed=5)
    first = sgd.simulate(
        PROBLEM, ALGORITHM, START, alpha=np.linspace(0, 1, 33), dimension=40, runs=3, seed=5
    )
    np.testing.assert_array_equal(result.M[:, :33], first.M)
    # The second phase starts where the first one ends.
    np.testing.assert_array_equal(result.M[:, 33], result.M[:, 32])
    assert (result.risk[:, 33] > result.risk[:, 32]).all()
    assert result.step.values[-1] == 50
    assert result.attrs["seed"] == 5
    assert np.isnan(result.rows_M[:, :33]).all()
    assert np.isfinite(result.rows_M[:, 33:]).all()
    loaded = sgd.load(sgd.save(result, tmp_path / "phases.nc"))
    assert sgd.problem_of(loaded) == other
    np.testing.assert_array_equal(sgd.start_from(loaded).M, result.M[:, -1])


INVALID = {
    "solver = 3: give a solver": lambda: sgd.phases(3, [(PROBLEM, ALGORITHM, 1.0)], START),
    "give phases": lambda: sgd.phases(sgd.solve_ode, [(PROBLEM, ALGORITHM)], START),
    "each phase has its own": lambda: sgd.phases(
        sgd.solve_ode, [(PROBLEM, ALGORITHM, 1.0)], START, alpha=[1.0]
    ),
    r"parts\[0\]\[2\] = 0.0": lambda: sgd.phases(sgd.solve_ode, [(PROBLEM, ALGORITHM, 0.0)], START),
    "give one of alpha, times, steps": lambda: sgd.phases(
        sgd.solve_ode, [(PROBLEM, ALGORITHM, {"epochs": 3})], START
    ),
    "phase 1: .*start was made for": lambda: sgd.phases(
        sgd.solve_ode,
        [(PROBLEM, ALGORITHM, 0.1), (PROBLEM.replace(width=2), ALGORITHM, 0.1)],
        START,
    ),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_arguments_raise(message):
    with pytest.raises(ValueError, match=message):
        INVALID[message]()
