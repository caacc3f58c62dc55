"""When to stop, on curves whose least value is known; trajectories of solvers are in `tests/algorithms/test_epochs.py`."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd


@pytest.mark.parametrize("apart", [0.5, 0.7, 1.0])
def test_early_stopping_has_the_best_time_inside(apart):
    """A curve that is no parabola, so that the one through three points is lowest elsewhere than at the best time, 4 log 12."""
    t = np.arange(0.0, 16.0, apart)
    curve, best = np.exp(-t / 2) + np.exp(t / 4) / 864, 4 * np.log(12)
    found = sgd.early_stopping(xr.Dataset({"risk": (("run", "time"), curve[None])}, {"t": ("time", t), "run": [0]}))
    assert found.earliest[0] < best < found.latest[0] <= found.earliest[0] + 2 * apart + 1e-9
    assert 0 < abs(found.t[0] - best) < apart / 2


def test_one_save_point_is_at_the_end():
    single = xr.Dataset({"risk": (("run", "time"), [[1.0]])}, {"t": ("time", [2.0]), "run": [0]})
    with pytest.warns(UserWarning, match="go on for longer"):
        assert sgd.early_stopping(single).at_end.tolist() == [True]
