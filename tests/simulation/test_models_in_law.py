"""The ready models: the exact chain against SGD in d dimensions, in law, also where d is smaller than fields and tokens together."""

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
from sgdynamics.simulation.running import run
from tests.conftest import Z, same_law, slow

CORRELATION = [[1.0, 0.4, 0.1], [0.4, 0.8, -0.2], [0.1, -0.2, 1.2]]
# problem, dimension, lr, batch
MODELS = {
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


def overlaps_of(maker, name, runs, seed, steps=5):
    """M and Q of all runs after a few steps, (runs, entries)."""
    problem, d, lr, batch = MODELS[name]()
    begin = broadcast_runs(
        validate_start(problem, sgd.random_start(problem, dimension=d, seed=1)), runs
    )
    simulator = maker(
        problem, sgd.OnePassSGD(lr=lr, batch=batch), begin, *check_dimension(problem, d, small=True)
    )
    found, diverged = run(simulator, runs, np.array([steps]), seed, "", False)
    assert np.all(diverged < 0)
    upper = np.triu_indices(problem.width)
    M, Q = (found[part][:, 0].sum(axis=1) for part in ("M", "Q"))
    return np.concatenate([M.reshape(runs, -1), Q[:, *upper]], axis=1)


def compare(one, other):
    """The law of every entry, and the covariance of every two."""
    for entry in range(one.shape[1]):
        same_law(one[:, entry], other[:, entry], f"entry {entry}")
    centre = one.mean(axis=0)
    for i, j in combinations_with_replacement(range(one.shape[1]), 2):
        a, b = ((part[:, i] - centre[i]) * (part[:, j] - centre[j]) for part in (one, other))
        error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        assert abs(a.mean() - b.mean()) <= Z * error + 1e-12, f"covariance of {i} and {j}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", slow(MODELS, ("attention in batches", "sequence, free", "tied", "adatron"))
)
def test_exact_and_direct_runs_have_one_law(name):
    compare(
        *(
            overlaps_of(maker, name, 1000, seed)
            for seed, maker in enumerate((ExactChain, DirectSGD), start=3)
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exact_and_direct_runs_have_one_law_in_many_runs(name):
    compare(
        *(
            overlaps_of(maker, name, 20_000, seed)
            for seed, maker in enumerate((ExactChain, DirectSGD), start=5)
        )
    )


@pytest.mark.slow
def test_without_the_off_diagonal_it_is_another_law(monkeypatch):
    """The tokens of a sequence are not orthogonal outside the span of rows and signals: a chain that takes them to be so is found out."""
    right = span_draws.bartlett_factor

    def diagonal(*given):
        found = right(*given)
        return found * np.eye(found.shape[-2], found.shape[-1])

    direct = overlaps_of(DirectSGD, "attention", 20_000, 6)
    monkeypatch.setattr(span_draws, "bartlett_factor", diagonal)
    jax.clear_caches()  # the chain may have been compiled before
    wrong = overlaps_of(ExactChain, "attention", 20_000, 5)
    monkeypatch.undo()
    jax.clear_caches()
    with pytest.raises(AssertionError):
        compare(wrong, direct)
