"""Figure 2 of rough landscapes at full size (N = 1000, t = 1000, 500 seeds), as stored with the
gallery by its command on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import slow

import sgdynamics as sgd
from sgdynamics_reproductions.gallery import stored_data

STORED = stored_data.FOLDER / "rough_landscapes-2.nc"
PAPER = {
    "GD": 0.09,
    "SGD": 0.30,
    "PSGD": 0.99,
}  # shares of 500 seeds whose mean loss is below 1e-7 at t = 1000


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


@pytest.mark.parametrize("name", slow(PAPER, ("GD", "SGD")))
def test_the_code_of_today_makes_the_stored_runs(name):
    """The first steps of two of the seeds, run by run: what is stored is what the library computes,
    not a file of long ago.
    """
    stored = sgd.load(STORED, group=name).isel(run=[0, 1], time=slice(0, 12))
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    common = {"lr": 0.015, "samples_per_dimension": 3.0}  # alpha = 3, eta = 0.01: lr = alpha eta/2
    algorithm = {
        "GD": lambda: sgd.GradientDescent(**common),
        "SGD": lambda: sgd.MultiPassSGD(**common, batch_fraction=0.5),
        "PSGD": lambda: sgd.PersistentSGD(**common, batch_fraction=0.5, persistence_time=1.5),
    }[name]()
    initial_state = sgd.start(problem, M=stored.M.values[:, 0], Q=np.ones((2, 1, 1)))
    steps, seed = stored.step.values, int(stored.attrs["seed"])
    result = sgd.simulate(
        problem,
        algorithm,
        initial_state,
        steps=steps,
        dimension=1000,
        seed=seed,
        method="direct",
        dtype="float32",
    )
    # rounding of float32, another on each device
    np.testing.assert_allclose(result.M, stored.M, atol=1e-5)
    np.testing.assert_allclose(result.train_risk, stored.train_risk, rtol=1e-4)
    assert np.abs(stored.M[:, -1] - stored.M[:, 0]).min() > 0.01
