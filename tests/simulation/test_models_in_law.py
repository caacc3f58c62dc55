"""The exact chain and direct runs of the ready models have one law.

In some cases d is smaller than the number of fields and tokens together.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import broadcast_runs, validate_start
from sgdynamics.simulation import span_draws
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run
from tests.conftest import Z, same_law, slow

CORRELATION = [[1.0, 0.4, 0.1], [0.4, 0.8, -0.2], [0.1, -0.2, 1.2]]
# Functions that return the problem, the dimension, lr and batch.
CASES = {
    "attention": lambda: (
        sgd.models.attention(3, noise=0.1, token_correlation=CORRELATION),
        6,
        2.0,
        1,
    ),
    "attention in batches": lambda: (
        sgd.models.attention(2, noise=0.1, covariance=[(0.5, 0.5), (2.0, 0.5)]),
        12,
        2.0,
        3,
    ),
    "positional": lambda: (sgd.models.positional_semantic(0.5, encoding=1.5), 8, 2.0, 1),
    "sequence": lambda: (sgd.models.sequence_single_index(tokens=3, noise=0.1), 7, 0.5, 1),
    "sequence, free": lambda: (
        sgd.models.sequence_single_index("sum", 2, constraint=None, token_correlation=0.3),
        20,
        1.0,
        2,
    ),
    "autoencoder": lambda: (sgd.models.autoencoder(2, spikes=(3.0, 1.0)), 30, 0.5, 1),
    "tied": lambda: (sgd.models.autoencoder(2, "tanh", tied=True), 6, 0.5, 1),
    "perceptron": lambda: (sgd.models.perceptron(), 6, 2.0, 1),
    "adatron": lambda: (sgd.models.perceptron("adatron"), 12, 2.0, 2),
    "gan": lambda: (sgd.models.gan(noise=0.5), 10, 1.0, 1),
}


def simulated_overlaps(simulator_class, name, runs, seed, steps=5):
    """Entries of M and of the upper triangle of Q after a few steps, (runs, entries)."""
    problem, d, lr, batch = CASES[name]()
    start = broadcast_runs(
        validate_start(problem, sgd.random_start(problem, dimension=d, seed=1)), runs
    )
    simulator = simulator_class(
        problem,
        sgd.OnePassSGD(lr=lr, batch=batch),
        RunSetting(start, *check_dimension(problem, d, small=True)),
    )
    overlaps, diverged = run(simulator, runs, np.array([steps]), seed, "", False)
    assert np.all(diverged < 0)
    upper = np.triu_indices(problem.width)
    M, Q = (overlaps[name][:, 0].sum(axis=1) for name in ("M", "Q"))
    return np.concatenate([M.reshape(runs, -1), Q[:, *upper]], axis=1)


def assert_same_law(exact_overlaps, direct_overlaps):
    """Assert that the law of every entry and the covariance of every two entries agree."""
    for entry in range(exact_overlaps.shape[1]):
        same_law(exact_overlaps[:, entry], direct_overlaps[:, entry], f"entry {entry}")
    mean = exact_overlaps.mean(axis=0)
    for i, j in combinations_with_replacement(range(exact_overlaps.shape[1]), 2):
        a, b = (
            (sample[:, i] - mean[i]) * (sample[:, j] - mean[j])
            for sample in (exact_overlaps, direct_overlaps)
        )
        error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        assert abs(a.mean() - b.mean()) <= Z * error + 1e-12, f"covariance of {i} and {j}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", slow(CASES, ("attention in batches", "sequence, free", "tied", "adatron"))
)
def test_exact_and_direct_runs_have_one_law(name):
    assert_same_law(
        *(
            simulated_overlaps(simulator_class, name, 1000, seed)
            for seed, simulator_class in enumerate((ExactChain, DirectSGD), start=3)
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exact_and_direct_runs_have_one_law_in_many_runs(name):
    assert_same_law(
        *(
            simulated_overlaps(simulator_class, name, 20_000, seed)
            for seed, simulator_class in enumerate((ExactChain, DirectSGD), start=5)
        )
    )


@pytest.mark.slow
def test_comparison_detects_a_diagonal_bartlett_factor(monkeypatch):
    """A chain whose tokens are orthogonal outside of the span of rows and signals has another law.

    The off-diagonal entries of the Bartlett factor are the inner products of the tokens there.
    """
    bartlett_factor = span_draws.bartlett_factor

    def diagonal_factor(*arguments):
        factor = bartlett_factor(*arguments)
        return factor * np.eye(factor.shape[-2], factor.shape[-1])

    direct = simulated_overlaps(DirectSGD, "attention", 20_000, 6)
    monkeypatch.setattr(span_draws, "bartlett_factor", diagonal_factor)
    jax.clear_caches()  # the chain may have been compiled before
    wrong = simulated_overlaps(ExactChain, "attention", 20_000, 5)
    monkeypatch.undo()
    jax.clear_caches()
    with pytest.raises(AssertionError):
        assert_same_law(wrong, direct)
