"""The exact law of algorithms on a fixed data set against runs in d dimensions, as laws."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import same_law, slow

PHASE = {"width": 1, "activation": "square", "constraint": "sphere"}
ALGORITHMS = {
    "GD": sgd.GradientDescent(lr=0.015, samples_per_dimension=3.0),
    "SGD": sgd.MultiPassSGD(lr=0.015, samples_per_dimension=3.0, batch_fraction=0.5),
    "p-SGD": sgd.PersistentSGD(
        lr=0.015, samples_per_dimension=3.0, batch_fraction=0.5, persistence_time=0.3
    ),
    "Langevin": sgd.Langevin(
        lr=0.015, samples_per_dimension=3.0, temperature=sgd.piecewise_rate([0.5], [1.0, 0.2])
    ),
}


def both(problem, algorithm, start, steps, dimension, runs=600, direct_runs=2000):
    exact = sgd.simulate(
        problem, algorithm, start, steps=steps, dimension=dimension, runs=runs, seed=1
    )
    direct = sgd.simulate(
        problem,
        algorithm,
        start,
        steps=steps,
        dimension=dimension,
        runs=direct_runs,
        seed=2,
        method="direct",
    )
    return exact, direct


def agree(exact, direct, names=("M", "train_risk")):
    for name in names:
        exact_values, direct_values = np.asarray(exact[name]), np.asarray(direct[name])
        for entry in np.ndindex(*exact_values.shape[1:]):
            same_law(
                exact_values[(slice(None), *entry)],
                direct_values[(slice(None), *entry)],
                f"{name}{entry}",
            )


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow  # the contracts have the law of one of them
@pytest.mark.runs_long
def test_the_law_of_each_algorithm(name):
    """Phase retrieval at N = 50, up to more steps than dimensions: the basis is complete then."""
    problem = sgd.TeacherStudent(**PHASE)
    start = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    agree(*both(problem, ALGORITHMS[name], start, [1, 10, 55], 50))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_law_at_a_larger_dimension(name):
    problem = sgd.TeacherStudent(**PHASE)
    start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    agree(*both(problem, ALGORITHMS[name], start, [1, 30, 100], 200, 600, 600))


@pytest.mark.parametrize("name", slow(["SGD", "Langevin"], ["SGD", "Langevin"]))
def test_the_law_of_three_units_two_signals_and_a_trained_head(name):
    problem = sgd.TeacherStudent(
        width=3,
        teacher_width=2,
        activation="erf",
        head="trained",
        noise=0.05,
        weight_decay=0.1,
        teacher_gram=[[1.0, 0.3], [0.3, 1.0]],
    )
    start = sgd.start(
        problem,
        M=[[0.3, 0.1], [0.0, 0.4], [0.2, -0.2]],
        Q=[[1.0, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 1.2]],
    )
    settings = {"lr": 1.0, "samples_per_dimension": 2.0, "head_rate": 0.5}
    kinds = {
        "SGD": sgd.MultiPassSGD(batch_fraction=0.4, **settings),
        "Langevin": sgd.Langevin(temperature=0.3, **settings),
    }
    agree(
        *both(problem, kinds[name], start, [1, 4, 20], 50, 600, 1500),
        names=("M", "Q", "a", "train_risk"),
    )


@pytest.mark.slow
def test_the_law_of_two_covariance_blocks():
    problem = sgd.TeacherStudent(width=2, activation="square", covariance=[(0.5, 0.4), (2.0, 0.6)])
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=[[0.5, 0.1], [0.1, 0.4]])
    kind = sgd.Langevin(lr=0.02, samples_per_dimension=2.0, temperature=0.5)
    agree(*both(problem, kind, start, [1, 5, 30], 40, 1500, 1500), names=("M", "Q", "train_risk"))


@pytest.mark.slow
def test_the_law_of_a_mixture():
    problem = sgd.GaussianMixture(kind="binary", width=2, snr=4.0, weight_decay=0.1)
    start = sgd.start(problem, M=[[0.3], [-0.1]], Q=[[0.5, 0.1], [0.1, 0.4]], a=[0.5, -0.4])
    kind = sgd.PersistentSGD(
        lr=0.5, samples_per_dimension=2.0, batch_fraction=0.5, persistence_time=2.0
    )
    agree(
        *both(problem, kind, start, [1, 5, 30], 40, 1500, 1500), names=("M", "Q", "a", "train_risk")
    )


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_others_or_on_save_points():
    problem = sgd.TeacherStudent(**PHASE)
    start = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    settings = {"dimension": 50, "seed": 3}
    few = sgd.simulate(problem, ALGORITHMS["p-SGD"], start, steps=[30], runs=60, **settings)
    many = sgd.simulate(problem, ALGORITHMS["p-SGD"], start, steps=[7, 30], runs=60, **settings)
    np.testing.assert_allclose(few.M[:, -1], many.M[:, -1], rtol=1e-9)
    assert len(np.unique(np.round(np.asarray(few.M[:, -1, 0, 0]), 10))) == 60
