"""Optimisers: the drift of SGD that reuses each sample, against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from sgdynamics.papers import optimisers as paper


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_drift_of_reuse_is_the_mean_of_repeated_steps_on_a_sample(times):
    """The drift is the mean over samples of the teacher's field times the total movement.

    Each of the `times` steps on a sample moves the field lam of the unit by -lr (f - y) s'(lam) w,
    where f = w s(lam) is the output of a network of this unit alone. The mean is a quadrature.
    """
    q, w, lr = 0.7, 0.5, 2e-4
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    label = (nodes**3 - 3 * nodes)[None, :]
    lam, moved = np.sqrt(q) * np.broadcast_to(nodes[:, None], (60, 60)), np.zeros((60, 60))
    for _ in range(times):
        slope = np.sqrt(2 / np.pi) * np.exp(-0.5 * (lam - lr * moved) ** 2)
        moved = moved + (w * special.erf((lam - lr * moved) / np.sqrt(2)) - label) * w * slope
    drift = -np.einsum("ij,i,j,j->", moved, weights, weights, nodes)
    expected = paper.reuse_drift(lr, times, w, q)
    assert expected != 0 or times == 1
    assert drift == pytest.approx(float(expected), rel=2e-3, abs=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper.reuse_drift(-0.1, 2, 0.5, 1.0), "lr = -0.1"),
        (lambda: paper.reuse_drift(0.1, 0, 0.5, 1.0), "times = 0"),
        (lambda: paper.reuse_drift(0.1, 2, 0.5, [1.0, 0.0]), "q = "),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
