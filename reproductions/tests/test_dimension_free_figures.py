"""Figures of the slides on dimension-free limits: their claims, measured on their data."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import Z

import sgdynamics as sgd
from sgdynamics_reproductions import dimension_free as figures
from sgdynamics_reproductions.gallery.judges import dimension_free as judges


def draw_and_reload(figure, tmp_path):
    """Draw and save the quick figure; return its data, which contain claim and verdict."""
    fig, data = figure(quick=True)
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    loaded = sgd.load(sgd.save(data, tmp_path / "data.nc"))
    assert loaded.identical(data)
    assert len(data.attrs["claim"]) > 40
    assert len(data.attrs["verdict"]) > 80
    return data


def power(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


@pytest.mark.slow
def test_high_dimensional(tmp_path):
    data = draw_and_reload(figures.high_dimensional, tmp_path)
    # each mean deviation is known to about 5%: the exponent over a factor 16 to .03
    assert abs(power(data.d, data.mean_deviation) + 0.5) < 0.15
    ratio = data.mean_deviation / data.theorem_scale
    assert np.all((ratio > 0.4) & (ratio < 0.75))
    risk = data.excess_risk.isel(d=-1)
    gap = np.abs(risk.mean("run") - data.excess_risk_ode)
    assert np.all(gap <= Z * risk.std("run", ddof=1) / np.sqrt(risk.sizes["run"]) + 2e-4)


@pytest.mark.slow
def test_classical(tmp_path):
    data = draw_and_reload(figures.classical, tmp_path)
    assert np.all(np.abs(data.gap - data.gap_ode) <= Z * data.gap_error + 0.01)
    assert abs(power(data.gamma, data.gap_ode.isel(k=0)) - 1) < 0.05
    assert (
        float(np.abs(data.excess_risk.isel(gamma=0).mean("run") / data.excess_risk_flow - 1).max())
        < 0.015
    )
    assert float(data.gap.isel(gamma=-1).min()) > 5 * float(data.gap_ode.isel(gamma=0).max())


@pytest.mark.slow
def test_mean_field(tmp_path):
    data = draw_and_reload(figures.mean_field, tmp_path)
    # the gap to infinite width falls like 1/p at every time; its standard errors make .2 of the
    # exponent
    for i in range(1, data.sizes["time"]):
        gap, error = data.gap.isel(time=i).values, data.gap_error.isel(time=i).values
        tolerance = Z * np.sqrt(np.sum((error / gap) ** 2)) / np.log(data.p[-1] / data.p[0])
        assert abs(power(data.p, gap) + 1) < 0.1 + tolerance
    assert np.all(np.diff(data.excess_risk_law) < 0)
    assert float(data.m.isel(time=-1).mean()) > float(data.m.isel(time=0).mean()) + 0.5


@pytest.mark.slow
def test_mean_field_high_dimension(tmp_path):
    data = draw_and_reload(figures.mean_field_high_dimension, tmp_path)
    typical = data.off_diagonal_rms.mean("run")
    for i in range(data.sizes["time"]):
        assert abs(power(data.p, typical.isel(time=i)) + 0.5) < 0.12
    # the largest of the entries has a root of log p more
    largest = data.off_diagonal.mean("run").isel(time=0) / (data.scale * np.sqrt(np.log(data.p)))
    assert float(largest.max() / largest.min()) < 1.25
    assert abs(power(data.dimension, np.abs(data.change.isel(time=-1))) + 1) < 0.15
    gap = np.abs((data.excess_risk / data.excess_risk_mean_field - 1).mean("run"))
    assert np.all(gap.isel(p=-1) < 0.5 * gap.isel(p=0))


@pytest.mark.slow
def test_regimes(tmp_path):
    """Each corner of the map is where it is said to be, and its description holds there; the ODE
    with noise holds in all.
    """
    data = draw_and_reload(figures.regimes, tmp_path)
    assert list(data.setting.values) == [
        "classical",
        "high-dimensional",
        "mean-field",
        "fluctuating",
    ]
    risk, theory = data.excess_risk, data.excess_risk_theory.values
    mean, error = (
        risk.mean("run").values,
        risk.std("run", ddof=1).values / np.sqrt(risk.sizes["run"]),
    )
    assert np.all(np.abs(mean - theory[:, 1]) <= Z * error + 0.02 * theory[:, 1])
    # without noise it does not in the second and fourth, with infinitely many units only in the
    # third
    late = mean[:, -1] / theory[:, 0, -1] - 1
    assert np.all(late[[1, 3]] > 0.2)
    assert np.all(np.abs(late[[0, 2]]) < 0.05)
    first = np.abs(mean[:, 1] / theory[:, 2, 1] - 1)
    assert first[2] < 0.06
    assert np.all(first[[0, 1, 3]] > 0.15)
    assert judges.regimes(data).holds is True


@pytest.mark.slow
def test_noise_matters(tmp_path):
    data = draw_and_reload(figures.noise_matters, tmp_path)
    assert np.all(np.abs(data.exit_ratio - data.exit_ratio_shift) <= Z * data.exit_ratio_error)
    assert np.all((data.exit_ratio > 0.7) & (data.exit_ratio < 1.12))
    for name in ("SGD", "SDE"):
        assert float(data[f"excess_risk_{name}"].std(f"run_{name}").max()) > 0.1
    # what is left above first order is proportional to gamma/p
    above = data.plateau / data.plateau_first_order - 1
    assert np.all(
        np.abs(above / data.gamma_over_p / (above / data.gamma_over_p).mean("gamma_over_p") - 1)
        < 0.1
    )
    assert float(above.isel(gamma_over_p=0).max()) < 0.02


@pytest.mark.slow
def test_width_matters(tmp_path):
    data = draw_and_reload(figures.width_matters, tmp_path)
    error = Z * data.exit_time_error
    # linearised formulas are for T d >> 1, here 50: ten to twenty per cent, and the ODE's own time
    # with its shift is nearer
    assert np.all(
        np.abs(data.exit_time - data.exit_time_corrected) <= error + 0.05 * data.exit_time_corrected
    )
    for name in ("annealed", "quenched"):
        assert np.all(
            np.abs(data.exit_time - data[f"exit_time_{name}"]) <= error + 0.2 * data.exit_time
        )
    assert np.all(np.diff(data.gain, axis=0) > 0)
    gaps = data.gain.isel(width=-1) - data.attrs["largest_gain"]
    assert np.all(np.diff(gaps) < 0)
    assert abs(float(gaps[-1])) < 0.1


@pytest.mark.slow
def test_gains_of_optimal_schedules_are_confirmed_by_the_chain(tmp_path):
    fig, data = figures.optimal_schedules(quick=True)
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    sgd.save(data, tmp_path / "data.nc")
    at = data.attrs
    assert at["gain_erf_2_2"] > 1.1
    # the ODE's gain within the chain's error, and a gain beyond doubt for the committee
    assert (
        abs(at["gain_chain_erf_2_2"] - at["gain_erf_2_2"])
        < Z * at["gain_chain_error_erf_2_2"] + 0.02
    )
    assert at["gain_chain_erf_2_2"] - 1 > Z * at["gain_chain_error_erf_2_2"]


def test_a_negative_seed_is_named():
    with pytest.raises(ValueError, match="seed = -1"):
        figures.classical(quick=True, seed=-1)
