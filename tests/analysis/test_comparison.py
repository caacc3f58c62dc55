"""Results that `sgd.compare` cannot compare; tests of its values are in `tests/results`."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd


def result(name, runs, diverged_at=np.nan):
    """A result with a single variable at two times."""
    return xr.Dataset(
        {name: (("run", "time"), np.ones((runs, 2)))},
        {"t": ("time", [0.0, 1.0]), "diverged_at": ("run", np.full(runs, diverged_at))},
    )


@pytest.mark.parametrize(
    ("theory", "simulation", "message"),
    [
        (result("risk", 1), result("M", 4), "no variable in common"),
        (result("risk", 3), result("risk", 4), "theory has 3 runs and simulation 4"),
        (result("risk", 1), result("risk", 4, 0.5), "all runs diverged"),
        (result("risk", 1), result("risk", 0), "at least one time and one run"),
    ],
    ids=["variables", "runs", "divergence", "empty"],
)
def test_results_that_cannot_be_compared(theory, simulation, message):
    with pytest.raises(ValueError, match=message):
        sgd.compare(theory, simulation)


@pytest.mark.slow
def test_stages_are_compared_one_by_one():
    """At the time at which a stage ends and a fresh student starts, each has its own values."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    algorithm, start = sgd.OnePassSGD(lr=1.0), sgd.start(problem, M=[[0.3]], Q=[[0.5]])
    results = []
    for solver, points, arguments in (
        (sgd.solve_ode, [0.0, 1.0, 2.0], {}),
        (sgd.solve_ode, np.linspace(0.0, 2.0, 41), {}),
        (sgd.simulate, [0.0, 1.0, 2.0], {"dimension": 200, "runs": 64, "seed": 0}),
        (sgd.simulate, [0.0, 0.63, 2.0], {"dimension": 200, "runs": 64, "seed": 0}),
    ):
        stages = [
            sgd.Stage(problem, algorithm, points, name="first"),
            sgd.Stage(problem, algorithm, points, labels="previous", start=start, name="second"),
        ]
        results.append(sgd.stages(solver, stages, start, **arguments))
    coarse, fine, runs, other_runs = results
    table = sgd.compare(coarse, runs)
    assert table["stage"].values.tolist() == ["first"] * 3 + ["second"] * 3
    np.testing.assert_array_equal(table["t"], [0.0, 1.0, 2.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(table["M_theory"][3].values.ravel(), 0.3, rtol=1e-12)
    # false-alarm rate 1e-6, and finite-size effects of order 1/d
    assert np.nanmax(np.abs(table["risk_z"])) < 5.5
    between = sgd.compare(fine, other_runs)
    assert np.nanmax(np.abs(between["risk_z"])) < 5.5
    with pytest.raises(ValueError, match="theory has no stage of this name"):
        sgd.compare(coarse.isel(time=slice(0, 3)), runs)
