"""The covariance of an increment: Wick's theorem, exact grids and sampling agree."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.solvers import functional

M = np.array([[0.3], [-0.2]])
Q = np.array([[1.0, 0.4], [0.4, 1.0]])


def test_covariance_of_width_one_is_the_corrected_62():
    """Equation (62) of "Escaping mediocrity", with its misprints corrected."""
    problem = sgd.TeacherStudent(width=1, activation="square", noise=0.5)
    start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    increment = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.05), start)
    assert increment.names == ("M11", "Q11")
    assert increment.method == "wick"
    expected = [[61.7648, 97.88328], [97.88328, 473.2344512]]
    np.testing.assert_allclose(increment.covariance, expected, rtol=1e-9)
    formula = sgd.papers.escaping_mediocrity.covariance_p1(0.3, 0.05, 0.5)
    np.testing.assert_allclose(increment.covariance, formula, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"head": "trained"}, {"constraint": "sphere"}, {"teacher_width": 2, "weight_decay": 0.1}],
)
def test_wick_against_the_exact_grid_and_sampling(options):
    """The square as a named activation, a polynomial, and a function of unknown degree."""
    a = [0.9, 1.2]
    algorithm = sgd.OnePassSGD(lr=0.2, batch=2, head_rate=0.5)
    increments = []
    for activation in ("square", sgd.polynomial([0, 0, 1]), sgd.Activation(lambda x: x * x)):
        problem = sgd.TeacherStudent(width=2, activation=activation, noise=0.3, **options)
        overlaps = M if problem.signals == 1 else np.hstack([M, 0.1 + M])
        start = sgd.start(problem, M=overlaps, Q=Q, a=a)
        increments.append(sgd.increment_covariance(problem, algorithm, start))
    wick, grid, sampled = increments
    assert [increment.method for increment in increments] == ["wick", "exact grid", "sampled"]
    np.testing.assert_allclose(grid.covariance, wick.covariance, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(grid.mean, wick.mean, rtol=1e-11, atol=1e-12)
    # Eight replicates: a t variable with 7 degrees of freedom exceeds 25 once in 4e7 cases.
    gap = np.abs(sampled.covariance - wick.covariance)
    assert np.all(gap <= 25 * sampled.standard_error + 1e-9)
    assert gap.max() < 0.03 * np.abs(wick.covariance).max()
    assert np.linalg.eigvalsh(wick.covariance).min() > -1e-9 * np.abs(wick.covariance).max()
    if "weight_decay" not in options and "constraint" not in options:
        # The mean of M does not depend on the noise: it is the drift of gradient flow.
        with jax.enable_x64(True):
            drift = jax.jit(partial(functional.drift, problem.structure, flow=True))
            rates = drift(problem.parameters, functional.state(start))
        np.testing.assert_allclose(wick.mean[:2], np.asarray(rates["M"]).ravel(), rtol=1e-9)
