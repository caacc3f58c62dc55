"""The diffusive limit of a trained top."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z
from tests.problems.trained_tops import bias_problem, bias_start, polynomial


def test_covariance_of_the_increment():
    """Values by quadrature, with the cross block between rows and top."""
    problem = bias_problem()
    covariance = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.8), bias_start(problem))
    names = ("M11", "Q11", "top.a[0]", "top.b[0]")
    expected = [0.04766699, 0.05522418, 0.03927470, 0.03848133]
    errors = [covariance.standard_error[covariance.names.index(name)].max() for name in names]
    difference = np.abs(np.diag(covariance.of(*names)) - expected)
    assert np.all(difference < Z * np.array(errors))
    assert max(errors) < 1e-4
    np.testing.assert_allclose(covariance.of("Q11", "top.a[0]")[0, 1], 0.04220657, atol=1e-4)


@pytest.mark.slow
def test_paths_agree_with_the_chain_in_law():
    problem, start = polynomial()
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate={"b": 0.5})
    common = {"times": [1.0], "dimension": 200, "runs": 1500, "seed": 1}
    paths = sgd.solve_sde(problem, algorithm, start, **common)
    runs = sgd.simulate(problem, algorithm, start, **common)
    for name in ("M", "Q", "top.a", "top.b"):
        first, second = (result[name].values[:, -1].reshape(1500, -1) for result in (paths, runs))
        error = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 1500)
        assert np.all(np.abs(first.mean(axis=0) - second.mean(axis=0)) < Z * error + 1e-3)
        spread = np.abs(np.log(first.std(axis=0) / second.std(axis=0)))
        assert np.all(spread < 1.5 * Z / np.sqrt(1500) + 0.02)
