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
