"""Optimisers: the drift of reuse against its definition, figures and verdicts on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from sgdynamics.papers import optimisers as paper


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_drift_of_reuse_is_that_of_moves_along_a_sample(times):
    """Moves of the field by -lr h, h = (f - y) s'(lam) w, averaged over fields by quadrature; a
    network of one unit, its own f left out.
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
    ("call", "says"),
    [
        (lambda: paper.reuse_drift(-0.1, 2, 0.5, 1.0), "lr = -0.1"),
        (lambda: paper.reuse_drift(0.1, 0, 0.5, 1.0), "times = 0"),
        (lambda: paper.reuse_drift(0.1, 2, 0.5, [1.0, 0.0]), "q = "),
    ],
)
def test_bad_numbers_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
