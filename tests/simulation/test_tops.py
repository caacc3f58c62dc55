"""Finite-dimensional SGD of trained tops: the chain, direct runs, and plain NumPy, in law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

import sgdynamics as sgd
from tests.conftest import Z
from tests.problems.trained_tops import NOISE, bias_problem, bias_start, tasks

LR, DIMENSION, STEPS, RATES = 0.8, 60, 150, {"a": 1.0, "b": 2.0}
DECAY = {"rows": 0.05, "a": 0.1}


def numpy_runs(runs):
    """SGD on W, a and b in d dimensions, written out."""
    generator = np.random.default_rng(3)
    d, size = DIMENSION, LR / DIMENSION
    M, Q = np.array([0.3, -0.2]), np.array([[1, 0.2], [0.2, 0.8]])
    W = np.zeros((runs, 2, d))
    W[:, :, 0] = M
    W[:, :, 1:3] = np.linalg.cholesky(Q - np.outer(M, M))
    a, b = np.tile([1.0, 0.5], (runs, 1)), np.tile([0.0, 0.1], (runs, 1))
    for _ in range(STEPS):
        x = generator.standard_normal((runs, d))
        fields = np.einsum("rid,rd->ri", W, x)
        s = erf((fields + b) / np.sqrt(2))
        slope = np.sqrt(2 / np.pi) * np.exp(-((fields + b) ** 2) / 2)
        label = erf((x[:, 0] - 0.5) / np.sqrt(2))
        label += np.sqrt(NOISE) * generator.standard_normal(runs)
        error = (np.sum(a * s, axis=1) / 2 - label)[:, None]
        h = error * a * slope / 2
        W = W - size * (h[:, :, None] * x[:, None] + DECAY["rows"] * W)
        a_new = a - RATES["a"] * size * (error * s / 2 + DECAY["a"] * a)
        b = b - RATES["b"] * size * h
        a = a_new
    Q = np.einsum("rid,rjd->rij", W, W)
    return np.concatenate([W[:, :, 0], Q.reshape(runs, 4), a, b], axis=1)


def entries(result):
    arrays = [result[name].values[:, -1] for name in ("M", "Q", "top.a", "top.b")]
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def distance(first, second):
    """The largest difference of the means and of the standard deviations, in standard errors."""
    mean = first.mean(axis=0) - second.mean(axis=0)
    error = np.sqrt(first.var(axis=0) / len(first) + second.var(axis=0) / len(second))
    logarithm = np.log(first.std(axis=0) / second.std(axis=0))
    spread = logarithm / np.sqrt(0.5 / len(first) + 0.5 / len(second))
    return np.abs(mean / error).max(), np.abs(spread).max()


@pytest.mark.slow
def test_chain_direct_runs_and_numpy_agree_in_law():
    problem = bias_problem(weight_decay=DECAY)
    algorithm = sgd.OnePassSGD(lr=LR, head_rate=RATES)
    start = bias_start(problem)
    common = {"steps": [STEPS], "dimension": DIMENSION, "runs": 600}
    exact = entries(sgd.simulate(problem, algorithm, start, seed=1, **common))
    direct = entries(sgd.simulate(problem, algorithm, start, method="direct", seed=2, **common))
    plain = numpy_runs(600)
    for sample in (direct, plain):
        mean, spread = distance(exact, sample)
        assert mean < Z
        assert spread < 1.5 * Z  # Q is not Gaussian
    # the exact mean at this dimension
    theory = sgd.solve_ode(problem, algorithm, start, steps=[STEPS], dimension=DIMENSION)
    error = exact.std(axis=0) / np.sqrt(len(exact))
    linear = np.abs(exact.mean(axis=0) - entries(theory)[0])
    assert np.all(linear < Z * error + 0.02)  # the mean of a nonlinear process differs by 1/d


@pytest.mark.slow
def test_contexts_in_law():
    problem, start = tasks()
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate={"a": 0.5})
    common = {"steps": [100], "dimension": 50, "runs": 600}
    runs = [
        sgd.simulate(problem, algorithm, start, method=method, seed=seed, **common)
        for method, seed in (("exact", 1), ("direct", 2))
    ]
    samples = [
        np.concatenate(
            [
                run[name].values[:, -1].reshape(600, -1)
                for name in ("M", "Q", "top.a", "top.b", "top.c")
            ],
            axis=1,
        )
        for run in runs
    ]
    mean, spread = distance(*samples)
    assert mean < Z
    assert spread < 1.5 * Z
