"""Figure 1 of *High-dimensional limit theorems for SGD*: matrix PCA around its critical snr."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.conftest import Z

from sgdynamics_reproductions.effective_dynamics import figure_1

GROUP = 256


def draw_and_reload(tmp_path, quick):
    fig, data = figure_1(quick=quick)
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    data.to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    return data


@pytest.mark.slow
def test_figure_1_stable_and_unstable_diffusion(tmp_path):
    data = draw_and_reload(tmp_path, True)
    assert data.sizes["run"] == 2 * GROUP
    n = data.attrs["n"]
    below, above = (np.asarray(data.m.sel(snr=snr)) for snr in (0.8, 1.2))
    np.testing.assert_allclose(data.stationary_variance_limit[0], 5.0)
    squares = n * below[:, -1] ** 2
    assert abs(squares.mean() - 5.0) < Z * 5 * math.sqrt(2 / (2 * GROUP))
    np.testing.assert_allclose(data.m_star, [0.0, math.sqrt(0.2)], atol=1e-12)
    # at n = 500 the fixed point of the mean lies 1/n below; both signs are reached, half of the
    # time each
    assert abs(np.median(np.abs(above[:, -1])) - math.sqrt(0.2)) < 0.04
    assert abs(np.mean(above[:, -1] > 0) - 0.5) < Z * 0.5 / math.sqrt(2 * GROUP)
    # the growth at the start is that of the unstable diffusion
    early = np.searchsorted(np.asarray(data.t), 0.5)
    ratio = above[:, early].std() / float(data.standard_deviation_limit[1, early])
    assert abs(ratio - 1) < Z / math.sqrt(4 * GROUP)
    np.testing.assert_allclose(np.asarray(data.r2)[:, :, -1].mean(axis=1), 1.0, atol=0.03)


@pytest.mark.slow
def test_figure_1_numbers(tmp_path):
    data = draw_and_reload(tmp_path, False)
    below, above = (np.asarray(data.m.sel(snr=snr)[:, -1]) for snr in (0.8, 1.2))
    assert abs(1500 * np.mean(below**2) - 4.80) < Z * 4.8 * math.sqrt(2 / len(below))
    assert abs(np.median(np.abs(above)) - 0.438) < Z * 0.05 * 1.26 / math.sqrt(len(above))
