"""The figure of scaling laws on real samples: its SGD, and its optional package."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics_reproductions import scaling_laws
from sgdynamics_reproductions.scaling_laws import digits_figure


def test_sgd_on_samples_has_the_mean_of_its_own_recursion():
    """Heavy-tailed samples: the mean by their own fourth moments, as `largest_step` has it."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(4, size=(60, 3)) * [1.0, 0.7, 0.4]
    y = x @ [1.0, -1.0, 0.5] + 0.1 * rng.standard_normal(60)
    with pytest.warns(UserWarning, match="converges up to"):
        spectrum, lr = sgd.spectrum_of(x, y), 0.2
    risks = digits_figure.sgd_on_samples(x, y, spectrum, lr, np.array([1, 10, 40]), 4000, seed=1)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    expected = []
    # (w - w*, 1) has a linear mean square: over samples of (1 - g x x^T) and g r x
    moment = np.outer(np.append(-best, 1.0), np.append(-best, 1.0))
    g, r = lr / spectrum.trace, y - x @ best
    moves = np.tile(np.eye(4), (len(x), 1, 1))
    moves[:, :3, :3] -= g * x[:, :, None] * x[:, None]
    moves[:, :3, 3] = g * r[:, None] * x
    for step in range(1, 41):
        moment = np.einsum("nij,jk,nlk->il", moves, moment, moves) / len(x)
        if step in (1, 10, 40):
            expected.append(0.5 * (np.sum(x.T @ x / len(x) * moment[:3, :3]) + np.mean(r**2)))
    error = risks.std(axis=0, ddof=1) / np.sqrt(len(risks))
    assert np.all(np.abs(risks.mean(axis=0) - expected) < 4.9 * error)


def test_digits_need_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ImportError, match=r"scikit-learn, which is not installed.*pip install .*sgdynamics\[data\]"
    ):
        scaling_laws.figure_4(quick=True)
