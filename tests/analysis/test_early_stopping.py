"""Early stopping on curves whose minimum is known, and exit times by DMFT that do not exist.

Trajectories of solvers are in `tests/algorithms/test_epochs.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.analysis import exit_dmft


@pytest.mark.parametrize("spacing", [0.5, 0.7, 1.0])
def test_the_interval_contains_the_time_of_the_minimum(spacing):
    """The curve is not a parabola, so that the estimate differs from the minimum at 4 log 12."""
    t = np.arange(0.0, 16.0, spacing)
    curve, best = np.exp(-t / 2) + np.exp(t / 4) / 864, 4 * np.log(12)
    path = xr.Dataset({"risk": (("run", "time"), curve[None])}, {"t": ("time", t), "run": [0]})
    stopping = sgd.early_stopping(path)
    earliest, latest = stopping.earliest[0], stopping.latest[0]
    assert earliest < best < latest <= earliest + 2 * spacing + 1e-9
    assert 0 < abs(stopping.t[0] - best) < spacing / 2


def test_one_save_point_is_at_the_end():
    single = xr.Dataset({"risk": (("run", "time"), [[1.0]])}, {"t": ("time", [2.0]), "run": [0]})
    with pytest.warns(UserWarning, match="train for longer"):
        assert sgd.early_stopping(single).at_end.tolist() == [True]


def test_runs_of_a_simulation_are_averaged():
    """`simulate` names its method simulate-direct; the risk of 8 runs is that of their mean."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=2.0)
    runs = sgd.simulate(
        problem, algorithm, start, steps=[0, 4, 8, 12, 16, 20], dimension=30, runs=8
    )
    stopping = sgd.early_stopping(runs)
    risk = runs["risk"].values
    mean, index = risk.mean(axis=0), int(risk.mean(axis=0).argmin())
    assert 0 < index < 5
    parabola = np.polyfit(runs["t"].values[index - 1 : index + 2], mean[index - 1 : index + 2], 2)
    time = -parabola[1] / (2 * parabola[0])
    np.testing.assert_allclose(stopping.t, [time], rtol=1e-9)
    np.testing.assert_allclose(stopping.risk, [np.polyval(parabola, time)], rtol=1e-9)
    error = risk[:, index].std(ddof=1) / np.sqrt(8)
    np.testing.assert_allclose(stopping.risk_standard_error, [error], rtol=1e-9)


@pytest.mark.parametrize("method", ["simulate-exact", "simulate-direct", "simulate-tensor"])
def test_runs_that_diverge_are_left_out_of_the_mean(method):
    t = np.arange(4.0)
    risk = [[1.0, 0.5, 0.7, 0.9], [1.0, 0.5, np.inf, np.nan], [1.0, 0.3, 0.5, 0.7]]
    coordinates = {"t": ("time", t), "run": [0, 1, 2]}
    runs = xr.Dataset({"risk": (("run", "time"), risk)}, coordinates, {"method": method})
    with pytest.warns(UserWarning, match="1 of 3 runs diverge and are left out of the mean"):
        stopping = sgd.early_stopping(runs)
    assert stopping.risk.shape == (1,)
    assert stopping.risk[0] < 0.4
    assert not stopping.at_end[0]
    with pytest.warns(UserWarning, match="diverges in 1 of 1 runs"):
        stopping = sgd.early_stopping(runs.isel(run=[1]))
    assert (stopping.t[0], stopping.risk[0]) == (1.0, 0.5)


def test_a_trajectory_that_diverges_is_used_up_to_its_last_finite_risk():
    risk = [[1.0, 0.5, 0.4, np.nan, np.nan]]
    path = xr.Dataset(
        {"risk": (("run", "time"), risk)}, {"t": ("time", np.arange(5.0)), "run": [0]}
    )
    with pytest.warns(UserWarning, match="diverges in 1 of 1 runs"):
        stopping = sgd.early_stopping(path)
    assert (stopping.t[0], stopping.risk[0], stopping.latest[0]) == (2.0, 0.4, 2.0)
    assert stopping.at_end[0]


def test_a_diverged_solution_has_no_exit_time(monkeypatch):
    """NaN is not a crossing, and no longer solution is tried."""
    calls = []

    def solve_diverging(problem, algorithm, start, *, times, **_):
        calls.append(times[-1])
        risk = np.where(times < times[-1] / 2, 1.0, np.nan)[None]
        variables = {name: (("run", "time"), risk) for name in ("risk", "risk_standard_error")}
        return xr.Dataset(
            variables, {"t": ("time", times), "run": [0], "diverged_at": ("run", [1.0])}
        )

    monkeypatch.setattr(exit_dmft, "solve_dmft", solve_diverging)
    problem = sgd.TeacherStudent(width=1, activation="linear")
    start = sgd.start(problem, M=[[0.0]], Q=[[1.0]])
    algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    times, _, has_diverged = exit_dmft.dmft_exits(
        problem, algorithm, start, 0.5, "risk", 100.0, 0, False
    )
    assert np.isnan(times).all()
    assert has_diverged.all()
    assert len(calls) == 1


def test_a_solution_that_cannot_be_continued_names_max_time(monkeypatch):
    def solve_up_to_20(problem, algorithm, start, *, times, **_):
        if times[-1] > 20:
            raise ValueError("paths = 20000: too few")
        variables = {
            name: (("run", "time"), np.ones((1, len(times))))
            for name in ("risk", "risk_standard_error")
        }
        return xr.Dataset(
            variables, {"t": ("time", times), "run": [0], "diverged_at": ("run", [np.nan])}
        )

    monkeypatch.setattr(exit_dmft, "solve_dmft", solve_up_to_20)
    problem = sgd.TeacherStudent(width=1, activation="linear")
    start = sgd.start(problem, M=[[0.0]], Q=[[1.0]])
    algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    with pytest.raises(
        ValueError,
        match=r"max_time = 100.0: .*t = 25 .paths = 20000.* smaller max_time or method='direct'",
    ):
        exit_dmft.dmft_exits(problem, algorithm, start, 0.5, "risk", 100.0, 0, False)
