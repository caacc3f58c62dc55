"""Figure 2 of rough landscapes at full size (N = 1000, t = 1000, 500 seeds), as stored with the gallery by its command on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd

STORED = Path(__file__).parents[2] / "docs/gallery/rough_landscapes_figure_2.nc"
PAPER = {"GD": 0.09, "SGD": 0.30, "PSGD": 0.99}  # shares of 500 seeds whose mean loss is below 1e-7 at t = 1000


@pytest.mark.parametrize("name", list(PAPER))
def test_stored_fractions_are_those_of_the_paper(name):
    stored = sgd.load(STORED, group=name)
    assert stored.sizes["run"] == 500
    assert stored.attrs["dimension"] == 1000
    assert float(stored.paper_time[-1]) == pytest.approx(1000)
    assert name in stored.attrs["command"]
    below = np.asarray(stored.train_risk) / 2 < 1e-7
    np.testing.assert_allclose(below.mean(axis=0), stored.fraction_below, atol=1e-12)
    # both are counts over 500 seeds
    share = (below[:, -1].mean() + PAPER[name]) / 2
    assert abs(below[:, -1].mean() - PAPER[name]) < 4.9 * np.sqrt(2 * share * (1 - share) / 500)
    # what has recovered the signal has found it or its mirror image
    assert np.abs(np.asarray(stored.M)[below[:, -1], -1]).min() > 0.99
