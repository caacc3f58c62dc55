"""The figures of arXiv:2604.03068: their claims on `data`, and the shortcuts behind them against
integrations that take none.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp
from tests.conftest import Z

from sgdynamics.papers import quadratic_networks as qn
from sgdynamics_reproductions import quadratic_networks as document
from sgdynamics_reproductions.quadratic_networks import escape_figures, figures


def whole(fig, data, tmp_path):
    """A figure draws, and its data come back from a file as they were."""
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    data.to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "data.nc", engine="h5netcdf") as stored:
        xr.testing.assert_identical(stored.load(), data)


@pytest.mark.parametrize(("p", "p_star", "share"), [(4, 2, 0.05), (2, 3, 0.03), (3, 3, 0.12)])
def test_exits_in_spectra_are_those_of_the_matrices(p, p_star, share):
    eta, rng = share * p, np.random.default_rng(p)
    rho0 = 0.05 * rng.normal(size=(3, p, p_star))
    level = 0.9 * qn.plateau(p, p_star).risk
    exits = escape_figures._exits(p, p_star, eta, rho0, level)
    halves = (
        escape_figures._exits(p, p_star, np.array([eta, 0.5 * eta, eta]), rho0)
        if p >= p_star
        else None
    )
    for run, rho in enumerate(rho0):
        n = rho.size

        def field(_, y, n=n):
            return np.concatenate(
                [
                    rate.ravel()
                    for rate in qn.drift(y[:n].reshape(p, p_star), y[n:].reshape(p, p), eta)
                ]
            )

        def left(_, y, n=n):
            return qn.risk(y[:n].reshape(p, p_star), y[n:].reshape(p, p)) - level

        left.terminal = True
        initial_state = np.concatenate([rho.ravel(), np.eye(p).ravel()])
        dense = solve_ivp(
            field, (0, 400 / share), initial_state, "DOP853", rtol=1e-10, atol=1e-13, events=left
        )
        assert exits[run] == pytest.approx(eta * dense.t_events[0][0], rel=1e-6)
        if halves is not None and run != 1:
            level_half = 0.5 * qn.risk(rho, np.eye(p))
            end = solve_ivp(
                field, (0, halves[run] / eta), initial_state, "DOP853", rtol=1e-10, atol=1e-13
            ).y[:, -1]
            assert left(0, end) + level == pytest.approx(level_half, rel=1e-6)


def test_exits_say_when_there_are_none():
    rho0 = 0.01 * np.random.default_rng(0).normal(size=(4, 3, 3))
    assert np.isnan(escape_figures._exits(3, 3, 1.1 * qn.largest_stable_rate(3, 3), rho0)).all()
    assert np.isfinite(escape_figures._exits(3, 3, 0.9 * qn.largest_stable_rate(3, 3), rho0)).all()


def test_best_rate_is_reached_as_overlaps_vanish():
    normal = np.random.default_rng(0).normal(size=(6, 3, 3))
    gaps = [
        1 - escape_figures._best(3, 3, 10.0**-power * normal, 5)[0] / qn.optimal_rate(3, 3)
        for power in (6, 24)
    ]
    assert 0 < gaps[1] < 0.01
    assert gaps[0] / gaps[1] == pytest.approx(
        4, rel=0.15
    )  # as 1/log(1/epsilon): what follows the plateau takes its share of the time


@pytest.mark.slow
def test_figure_1_runs_lie_on_the_ode():
    data = figures._theory_and_runs(100, 8.0, 3)
    assert data.sizes == {
        "time": figures.POINTS,
        "unit": 6,
        "signal": 3,
        "unit_other": 6,
        "run": 10,
        "kept": 10,
    }
    np.testing.assert_allclose(data.rho_runs.mean("run")[-1], data.rho_mean[-1], rtol=1e-12)
    assert float(data.risk_ode[0]) == pytest.approx(float(data.risk_mean[0]), rel=1e-12)
    assert data.risk_ode[-1] < 0.6 * data.risk_ode[0]
    np.testing.assert_allclose(data.risk_ode, qn.risk(data.rho_ode, data.Q_ode), rtol=1e-9)
    assert (
        0.5 < data.attrs["z_rms"] < 2.5
    )  # 1.13 is what 10 runs give on average where the ODE is their mean
    assert data.attrs["gap_risk_largest"] < 0.05


@pytest.mark.slow
def test_figure_2(tmp_path):
    fig, data = document.figure_2(quick=True)
    whole(fig, data, tmp_path)
    mean = data.alpha_c.mean("start", skipna=False)
    lowest = int(np.nanargmin(mean.values))
    assert 0 < lowest < len(mean) - 2  # a valley
    assert abs(math.log(float(data.eta[lowest] / data.eta_best[0]))) < 0.25
    assert np.isnan(mean[data.eta > data.eta_most[0].item()]).all()
    assert np.isfinite(mean[data.eta < 0.95 * data.eta_most[0].item()]).all()
    # nearly linear in p, but bent beyond its errors and not proportional to it: the intercept is as
    # sure as the slope
    assert data.attrs["chi2_per_freedom"] > 5
    share = (data.eta_best / data.p).values
    assert np.all(np.diff(share) > 0)
    np.testing.assert_allclose(share[[0, -1]], [0.09, 0.128], atol=0.002)
    assert data.attrs["slope"] == pytest.approx(0.135, abs=0.006)
    assert data.attrs["slope"] > 40 * data.attrs["slope_error"]
    assert data.attrs["intercept"] < -8 * data.attrs["intercept_error"]
    assert np.all(data.eta_best < data.eta_formula)
    assert np.all(data.eta_best > 0.83 * data.eta_formula)
    assert np.all(data.eta_best < data.eta_most)
    assert np.all(
        (data.eta_formula < data.eta_most) == (data.p < 16)
    )  # wide students leave the plateau fastest where they do not converge


@pytest.mark.slow
def test_figure_3(tmp_path):
    fig, data = document.figure_3(quick=True)
    whole(fig, data, tmp_path)
    assert data.distance[0, 0] > 2
    assert data.distance[0, -1] < 0.01
    assert data.own_distance[:, -1].max() < 0.01
    np.testing.assert_allclose(data.distance[1:, -1], data.predicted_end[1:], rtol=3e-3)
    assert data.predicted_end[1:].min() > 1
    assert data.risk[:, -1].max() < 1e-4
    # 1/distance and risk^(-1/2) are linear in t: their slopes do not know when the run left the
    # plateau
    for values, law, power in (
        (data.own_distance, data.distance_law, -1),
        (data.risk, data.risk_law, -0.5),
    ):
        late = (values**power).diff("time")[:, -1]
        np.testing.assert_allclose(late, float((law**power).diff("time")[-1]), rtol=0.02)


@pytest.mark.slow
def test_figure_4(tmp_path):
    fig, data = document.figure_4(quick=True)
    whole(fig, data, tmp_path)
    assert data.moved_ode.max() < 1e-11
    np.testing.assert_allclose(data.S[-1].values.T @ data.S[-1].values, np.eye(3), atol=1e-12)
    assert np.all(data.moved_gaussian[:, -1] > 0.01)
    assert (
        1.3 < float(data.moved_gaussian[0, -1] / data.moved_gaussian[1, -1]) < 3.2
    )  # as N^(-1/2): a factor 2
    assert np.all(data.moved_sgd[:, -1] > 0.05)
    # SGD's own noise explains how far S moves, at each N alike
    assert np.all(
        np.abs(data.moved_sgd[:, -1] - data.moved_expected) < Z * data.moved_sgd_error[:, -1]
    )


def test_figures_5_and_6_count_what_the_formulas_say(tmp_path):
    fig, data = document.figure_5(quick=True)
    whole(fig, data, tmp_path)
    np.testing.assert_array_equal(data.counted, data.formula)
    for index, N in enumerate(data.N.values):
        assert np.all(np.diff(data.formula[index])[: N - 1] > 0)
        assert np.all(data.formula[index, N - 1 :] == N * (N + 1) // 2)
    fig, data = document.figure_6(quick=True)
    whole(fig, data, tmp_path)
    np.testing.assert_array_equal(data.counted, data.formula)
    rank = np.minimum(data.p_star, data.attrs["N"])
    np.testing.assert_array_equal(
        data.flat, data.formula + (data.attrs["N"] - rank) * (data.p - rank) + 0 * data.formula
    )
    np.testing.assert_array_equal(data.formula[0], data.p - 1)  # phase retrieval
    assert np.all(np.isnan(data.formula) == (data.p < rank).transpose("teacher", "width"))


@pytest.mark.runs_long
def test_escape_times_of_chain_ode_and_formula():
    data = escape_figures._escape_data([(2, 1)], (500, 2000), 32, 0)
    assert np.all(np.abs(data.z) < Z)
    assert abs(float(data.rate_chain[0] - data.rate_ode[0])) < Z * float(data.rate_chain_error[0])
    np.testing.assert_allclose(data.rate_ode, data.rate_flow, rtol=0.1)
    # more students leave sooner in t/p, by less and less, at the same rate
    line = (data.line_t_noisy / data.line_p).values
    assert line[0] > line[1] > 0.7 * line[0]
    np.testing.assert_allclose(data.line_t_ode, data.line_t_formula, rtol=0.1)
    assert np.all(data.line_t_noisy < data.line_t_ode)


def test_exits_move_with_log_epsilon_at_the_growth_rate():
    for p, p_star in ((3, 3), (9, 3)):
        eta, normal = 0.02 * p, np.random.default_rng(p).normal(size=(3, p, p_star))
        level = 0.9 * qn.plateau(p, p_star).risk
        early, late = (
            escape_figures._exits(p, p_star, eta, size * normal, level) for size in (1e-4, 1e-6)
        )
        np.testing.assert_allclose(
            late - early, math.log(100) / qn.plateau_growth(p, p_star, eta)[1], rtol=1e-4
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: document.figure_3(seed=-1), "seed = -1"),
        (lambda: document.escape_times(seed=0.5), "seed = 0.5"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()
