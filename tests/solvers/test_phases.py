"""Runs in phases: the same as one run whose numbers change, and what goes on from phase to phase."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sgdynamics as sgd

PROBLEM = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
BEGIN = sgd.start(PROBLEM, M=[[0.3]], Q=[[1.0]])
ONE = sgd.OnePassSGD(lr=1.0)


def test_phases_are_a_schedule():
    """A batch of four at twice the rate is half the rate as d -> infinity."""
    parts = [(PROBLEM, ONE, [1.0, 2.0]), (PROBLEM, sgd.OnePassSGD(lr=2.0, batch=4), [1.0, 2.0])]
    found = sgd.phases(sgd.solve_ode, parts, BEGIN, rtol=1e-10)
    whole = sgd.solve_ode(
        PROBLEM,
        ONE.replace(lr=sgd.piecewise_rate([2.0], [1.0, 0.5])),
        BEGIN,
        alpha=[1.0, 2.0, 3.0, 4.0],
        rtol=1e-10,
    )
    np.testing.assert_allclose(found.risk, whole.risk, rtol=1e-8)
    np.testing.assert_allclose(found.alpha, whole.alpha)
    np.testing.assert_allclose(found.t, whole.t)
    assert found.phase.values.tolist() == [0, 0, 1, 1]
    assert [one["algorithm"]["batch"] for one in json.loads(found.attrs["phases"])] == [1, 4]


def test_a_task_that_changes(tmp_path):
    other = PROBLEM.replace(noise=1.0)
    parts = [
        (PROBLEM, ONE, 1.0),
        (other, ONE.replace(update=sgd.updates.momentum(0.5)), {"steps": [0, 10]}),
    ]
    found = sgd.phases(sgd.simulate, parts, BEGIN, dimension=40, runs=3, seed=5)
    first = sgd.simulate(
        PROBLEM, ONE, BEGIN, alpha=np.linspace(0, 1, 33), dimension=40, runs=3, seed=5
    )
    np.testing.assert_array_equal(found.M[:, :33], first.M)
    np.testing.assert_array_equal(
        found.M[:, 33], found.M[:, 32]
    )  # the end of the one is the beginning of the other
    assert (found.risk[:, 33] > found.risk[:, 32]).all()
    assert found.step.values[-1] == 50
    assert found.attrs["seed"] == 5
    assert np.isnan(found.rows_M[:, :33]).all()
    assert np.isfinite(found.rows_M[:, 33:]).all()
    again = sgd.load(sgd.save(found, tmp_path / "phases.nc"))
    assert sgd.problem_of(again) == other
    np.testing.assert_array_equal(sgd.start_from(again).M, found.M[:, -1])


REFUSED = {
    "solver = 3: give a solver": lambda: sgd.phases(3, [(PROBLEM, ONE, 1.0)], BEGIN),
    "give phases": lambda: sgd.phases(sgd.solve_ode, [(PROBLEM, ONE)], BEGIN),
    "each phase has its own": lambda: sgd.phases(
        sgd.solve_ode, [(PROBLEM, ONE, 1.0)], BEGIN, alpha=[1.0]
    ),
    r"parts\[0\]\[2\] = 0.0": lambda: sgd.phases(sgd.solve_ode, [(PROBLEM, ONE, 0.0)], BEGIN),
    "give one of alpha, times, steps": lambda: sgd.phases(
        sgd.solve_ode, [(PROBLEM, ONE, {"epochs": 3})], BEGIN
    ),
    "phase 1: .*start was made for": lambda: sgd.phases(
        sgd.solve_ode, [(PROBLEM, ONE, 0.1), (PROBLEM.replace(width=2), ONE, 0.1)], BEGIN
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said):
    with pytest.raises(ValueError, match=said):
        REFUSED[said]()
