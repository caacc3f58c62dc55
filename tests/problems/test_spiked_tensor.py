"""`SpikedTensor`: its record, its risk from dense tensors, the law of its starts, and bad input."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis.spiked_fixed_points import spiked_fixed_points
from sgdynamics.dynamics.spiked_equations import spiked_increment
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.problems.spiked_tensor import SpikedTensor, spiked_random_start, spiked_start
from tests.conftest import same_law

PROBLEM = SpikedTensor(order=3, snr=2.0, ridge=0.1)
START = spiked_start(PROBLEM, m=0.3, r2=0.8)
ALGORITHM = sgd.OnePassSGD(lr=1.0)


def test_the_record_restores_the_problem():
    record = json.loads(json.dumps(PROBLEM.describe()))
    assert record.pop("kind") == "SpikedTensor"
    assert SpikedTensor(**record) == PROBLEM
    assert repr(PROBLEM) == "SpikedTensor(order=3, snr=2.0, ridge=0.1)"
    assert SpikedTensor() == SpikedTensor(order=2, snr=1.2, ridge=0.0)
    with pytest.raises(FrozenInstanceError):
        PROBLEM.snr = 3.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("order", [2, 3, 4])
def test_risk_is_the_distance_of_dense_tensors(order):
    generator = np.random.default_rng(order)
    x, v = generator.standard_normal((2, 4))
    v /= np.linalg.norm(v)

    def power(y):
        tensor = y
        for _ in range(order - 1):
            tensor = np.multiply.outer(tensor, y)
        return tensor

    m = float(x @ v)
    problem = SpikedTensor(order=order, snr=1.7, ridge=0.3)
    expected = np.sum((1.7 * power(v) - power(x)) ** 2)
    np.testing.assert_allclose(problem.risk(m, x @ x - m**2), expected, rtol=1e-12)
    # At the optimum the formula has no cancellation.
    assert problem.risk(1.7 ** (1 / order), 1e-20) < 1e-18


def test_random_starts_have_the_law_of_vectors():
    n, runs, scale = 3, 4000, 1.4
    start = spiked_random_start(PROBLEM, dimension=n, seed=3, runs=runs, scale=scale)
    x = scale / np.sqrt(n) * np.random.default_rng(8).standard_normal((runs, n))
    same_law(start.m, x[:, 0], "m")
    same_law(start.r2, np.sum(x[:, 1:] ** 2, axis=1), "r2")
    few = spiked_random_start(PROBLEM, dimension=n, seed=3, runs=5, scale=scale)
    np.testing.assert_array_equal(few.m, start.m[:5])
    np.testing.assert_array_equal(few.r2, start.r2[:5])


def test_starts_of_runs():
    assert spiked_start(PROBLEM, m=[0.1, 0.2], r2=1.0).runs == 2
    np.testing.assert_array_equal(broadcast_runs(START, 3).r2, [0.8, 0.8, 0.8])
    with pytest.raises(ValueError, match="the start has 2 runs"):
        broadcast_runs(spiked_start(PROBLEM, m=[0.1, 0.2], r2=1.0), 3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SpikedTensor(order=1), "order = 1: give a whole number, 2 or more"),
        (lambda: SpikedTensor(order=2.5), "order = 2.5"),
        (lambda: SpikedTensor(snr=0.0), "snr = 0.0: give a number above 0"),
        (lambda: SpikedTensor(ridge=-1.0), "ridge = -1.0"),
        (lambda: spiked_start(PROBLEM, m=0.1, r2=-0.2), "r2 = -0.2: it is the squared length"),
        (
            lambda: spiked_start(PROBLEM, m=[0.1, 0.2], r2=[1.0, 1.0, 1.0]),
            "m has 2 runs and r2 has 3",
        ),
        (lambda: spiked_start(PROBLEM, m=[[0.1]], r2=1.0), r"m has shape \(1, 1\)"),
        (lambda: spiked_start(PROBLEM, m=np.nan, r2=1.0), "m has entries that are not finite"),
        (lambda: spiked_start(sgd.TeacherStudent(), m=0.1, r2=1.0), "give a SpikedTensor"),
        (
            lambda: spiked_random_start(PROBLEM, dimension=1),
            "dimension = 1: give a whole number, 2 or more",
        ),
        (lambda: spiked_random_start(PROBLEM, dimension=5, scale=0.0), "scale = 0.0"),
        (
            lambda: sgd.simulate(PROBLEM, ALGORITHM, START, steps=[1], dimension=5, method="exakt"),
            "did you mean 'exact'",
        ),
        (
            lambda: sgd.simulate(
                PROBLEM, ALGORITHM, START, steps=[1], dimension=5, dtype="float32"
            ),
            "Use float64, or method='direct'",
        ),
        (
            lambda: sgd.simulate(
                PROBLEM, ALGORITHM, START, steps=[1], dimension=300, method="tensor"
            ),
            "n\\^order = 2.7e\\+07 numbers per step",
        ),
        (
            lambda: sgd.simulate(PROBLEM, ALGORITHM, START, steps=[1], times=[1.0], dimension=5),
            "exactly one of",
        ),
        (
            lambda: sgd.simulate(PROBLEM, sgd.OnePassSGD(lr=0.0), START, steps=[1], dimension=5),
            "gradient flow makes no steps",
        ),
        (lambda: sgd.simulate(PROBLEM, ALGORITHM, (0.1, 1.0), steps=[1], dimension=5), "start = "),
        (lambda: sgd.solve_ode(PROBLEM, ALGORITHM, START, steps=[1]), "steps= needs a dimension"),
        (lambda: sgd.solve_ode(PROBLEM, ALGORITHM, START, times=[1.0], rtol=0.0), "rtol = 0.0"),
        (
            lambda: sgd.solve_sde(PROBLEM, sgd.OnePassSGD(lr=0.0), START, times=[1.0], dimension=5),
            "gradient flow has no noise",
        ),
        (lambda: spiked_increment(PROBLEM, "sgd", START, dimension=5), "algorithm = 'sgd'"),
        (lambda: spiked_fixed_points("matrix", ALGORITHM), "problem = 'matrix'"),
    ],
)
def test_bad_input_is_named(make, match):
    with pytest.raises(ValueError, match=match):
        make()
