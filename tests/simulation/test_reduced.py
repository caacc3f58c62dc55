"""`simulate(reduce="mean")`: the moments of the runs, group by group."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.results import reduced
from sgdynamics.solvers import simulate as module

PROBLEM = sgd.TeacherStudent(width=2, activation="square", noise=0.1)
START = sgd.start(PROBLEM, M=[[0.3], [0.1]], Q=np.eye(2))
SETTING = {"steps": [0, 20, 40], "dimension": 100, "runs": 30, "seed": 5}


def both(monkeypatch, lr, problem=PROBLEM, start=START, **options):
    """All runs, and their mean from groups of eight."""
    monkeypatch.setattr(module, "_runs_in_memory", lambda call: 8)
    algorithm, setting = sgd.OnePassSGD(lr=lr), {**SETTING, **options}
    runs = sgd.simulate(problem, algorithm, start, **setting)
    return runs, sgd.simulate(problem, algorithm, start, **setting, reduce="mean")


@pytest.mark.slow
def test_moments_are_those_of_the_runs(monkeypatch):
    record = {"length": lambda state: state["Q"].trace()}
    runs, mean = both(monkeypatch, 0.1, record=record)
    assert mean.sizes["run"] == 1
    assert (mean.attrs["runs"], mean.attrs["runs_left_out"]) == (30, 0)
    for name in ("M", "Q", "risk", "excess_risk", "length"):
        values = runs[name].values
        np.testing.assert_allclose(mean[name].values[0], values.mean(axis=0), rtol=1e-12)
        error = values.std(axis=0, ddof=1) / np.sqrt(30)
        np.testing.assert_allclose(
            mean[f"{name}_standard_error"].values[0], error, rtol=1e-9, atol=1e-14
        )
    assert mean.attrs["error_sampling"] == pytest.approx(runs.attrs["error_sampling"], rel=1e-9)
    table, expected = (
        sgd.compare(sgd.solve_ode(PROBLEM, sgd.OnePassSGD(lr=0.1), START, times=runs.t), result)
        for result in (mean, runs)
    )
    assert table.attrs["runs"] == expected.attrs["runs"] == 30
    for name in ("risk_z", "M_standard_error", "Q_simulation"):
        np.testing.assert_allclose(table[name], expected[name], rtol=1e-6, atol=1e-12)
    bars, expected_bars = (
        sgd.plot.risk(result)[1].containers[0].lines[2][0].get_segments() for result in (mean, runs)
    )
    np.testing.assert_allclose(bars, expected_bars, rtol=1e-9)
    labels = [sgd.plot.risk(result)[1].get_legend_handles_labels()[1] for result in (mean, runs)]
    assert labels[0] == labels[1]
    assert "over 30 runs" in mean.sgd._repr_html_() if hasattr(mean, "sgd") else True
    with pytest.raises(ValueError, match="means over runs"):
        sgd.start_from(mean)


def test_diverged_runs_are_left_out(monkeypatch):
    with pytest.warns(UserWarning, match="diverged"):
        runs, mean = both(monkeypatch, 0.8, steps=[0, 5, 60], runs=20)
    has_finished = np.isnan(runs.diverged_at.values)
    assert 0 < has_finished.sum() < 20
    assert mean.attrs["runs_left_out"] == (~has_finished).sum()
    np.testing.assert_allclose(
        mean.risk.values[0, :2], runs.risk.values[has_finished, :2].mean(axis=0), rtol=1e-12
    )


def test_runs_with_large_means_and_small_variances_keep_their_digits():
    """Sums of squares would lose all digits at a ratio of 1e9 between mean and deviation."""
    import xarray as xr

    rng = np.random.default_rng(0)
    values = 1e9 + rng.normal(size=(50, 1))
    moments = reduced.RunMoments()
    for chunk in np.split(values, [3, 4, 30]):
        coordinates = {"diverged_at": ("run", np.full(len(chunk), np.nan))}
        moments.add(xr.Dataset({"risk": (("run", "time"), chunk)}, coordinates))
    error = float(moments.result()["risk_standard_error"][0, 0])
    assert error == pytest.approx(values.std(ddof=1) / np.sqrt(50), rel=1e-5)


def test_a_reduction_needs_a_known_name_and_runs_that_do_not_stop():
    with pytest.raises(ValueError, match="reduce"):
        sgd.simulate(PROBLEM, sgd.OnePassSGD(lr=0.1), START, **SETTING, reduce="median")
    data = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    with pytest.raises(ValueError, match="stop_at"):
        sgd.simulate(PROBLEM, data, START, steps=[1], dimension=20, stop_at=0.1, reduce="mean")
