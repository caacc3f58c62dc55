"""Trained tops on a fixed data set: conditioned runs, direct runs and DMFT."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from tests.conftest import Z
from tests.problems.trained_tops import polynomial

NAMES = ("M", "Q", "top.a", "top.b")


def entries(result):
    arrays = [result[name].values[:, -1] for name in NAMES]
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def describe(algorithm):
    return f"{type(algorithm).__name__}-{algorithm.update}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        sgd.GradientDescent(lr=0.1, samples_per_dimension=3.0, head_rate={"b": 0.5}),
        *(
            pytest.param(algorithm, marks=pytest.mark.slow)
            for algorithm in (
                sgd.Langevin(lr=0.1, samples_per_dimension=3.0, temperature=0.05),
                sgd.GradientDescent(
                    lr=0.05, samples_per_dimension=3.0, head_rate={"b": 0.5}, update=U.momentum(0.6)
                ),
                sgd.MultiPassSGD(
                    lr=0.1, samples_per_dimension=3.0, batch_fraction=0.5, update=U.sam(0.2)
                ),
                sgd.EpochSGD(lr=0.3, samples_per_dimension=3.0, head_rate={"b": 0.5}),
                sgd.GradientDescent(lr=0.1, samples_per_dimension=3.0, update=U.clipped(0.3)),
                sgd.GradientDescent(
                    lr=0.1,
                    samples_per_dimension=3.0,
                    head_rate=0.5,
                    update=U.weight_decay(0.1, of=U.nesterov(0.5), head=0.3),
                ),
                sgd.GradientDescent(lr=0.1, samples_per_dimension=3.0, update=U.schedule_free(0.5)),
                sgd.Langevin(
                    lr=0.05, samples_per_dimension=3.0, temperature=0.05, update=U.momentum(0.5)
                ),
            )
        ),
    ],
    ids=describe,
)
def test_runs_and_theory(algorithm):
    problem, start = polynomial()
    common = {"times": [1.0], "dimension": 100, "runs": 100, "seed": 1}
    exact, direct = (
        entries(sgd.simulate(problem, algorithm, start, method=method, **common))
        for method in ("exact", "direct")
    )
    error = np.sqrt((exact.var(axis=0) + direct.var(axis=0)) / 100)
    assert np.all(np.abs(exact.mean(axis=0) - direct.mean(axis=0)) < Z * error)
    theory = sgd.solve_dmft(problem, algorithm, start, times=[1.0], paths=10000)
    assert theory["top.a_standard_error"].shape == theory["top.a"].shape
    difference = np.abs(entries(theory)[0] - (exact + direct).mean(axis=0) / 2)
    assert np.all(difference < Z * error + 0.04)  # the law at d = 100 differs by 1/d


def test_updates_without_a_meaning_for_a_top_are_rejected():
    problem, start = polynomial()
    arguments = {"steps": [1], "progress": False}
    for update, match in (
        (U.clipped(0.3, over="row"), "belongs to no row"),
        (U.row_adam(2, memory=0.1), "does not train a head"),
    ):
        algorithm = sgd.GradientDescent(0.1, update=update)
        with pytest.raises(ValueError, match=match):
            sgd.solve_dmft(problem, algorithm, start, **arguments)
