"""The ODE of four units on a mixture: half-lines first, pairs where these do not suffice."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations.clusters import Clusters


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
def test_quick_quadrature_changes_no_result(
    parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = sgd.GaussianMixture("xor", width=4, snr=10.0)
    generator = np.random.default_rng(0)
    rows = 0.3 * generator.standard_normal((4, 6))
    if parallel:  # to 1%: half-lines alone do not resolve the angle between two rows
        rows[1] = rows[0] + 0.01 * rows[1]
    start = sgd.start(problem, M=rows[:, :2], Q=rows @ rows.T, a=[0.5, 0.4, -0.6, -0.3])
    algorithm, times = sgd.OnePassSGD(lr=0.5), [0.0, 0.1, 0.2]
    quick = sgd.solve_ode(problem, algorithm, start, times=times)
    used = []

    def without_quick(self: Clusters, quadrature: object) -> None:
        used.append(quadrature)

    monkeypatch.setattr(Clusters, "quick", without_quick)
    with_pairs = sgd.solve_ode(problem, algorithm, start, times=times)
    assert used
    for name in ("M", "Q", "a", "risk"):
        np.testing.assert_allclose(quick[name], with_pairs[name], rtol=1e-9, atol=1e-11)
    assert quick.attrs["error_quadrature"] < 1e-4
