"""Samples for a given error, against a table of published and independently computed values."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.statics.samples_needed import first_below

METHODS = ["bayes", "erm", "max_margin", "one_pass", "sgd"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (0.2, [1.608, 1.736, 1.810, 2.088, 2.144]),
        (0.1, [4.105, 6.311, 4.649, 6.437, 7.755]),
        (0.05, [8.677, 23.73, 9.831, 15.24, 26.46]),
    ],
)
def test_sign_perceptron(error, expected):
    problem = sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign())
    alpha = sgd.samples_needed(problem, error, METHODS)
    np.testing.assert_allclose(alpha, expected, rtol=5e-4)
    assert sgd.samples_needed(problem, error, "amp").item() == pytest.approx(
        alpha.sel(by="bayes").item(), rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distance", "floor", "sgd_needs"), [(0.1, 1.8, 3.203), (0.01, 10.89, 14.51)]
)
def test_linear_labels(distance, floor, sgd_needs):
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    alpha = sgd.samples_needed(problem, distance / 2, ["bayes", "erm", "one_pass", "sgd"])
    np.testing.assert_allclose(alpha, [floor, floor, sgd_needs, sgd_needs], rtol=5e-4)


@pytest.mark.slow
def test_erf_labels():
    problem = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="erf", noise=0.1)
    for excess, expected in ((0.01985, [3.367, 4.842]), (0.00337, [15.89, 19.59])):
        alpha = sgd.samples_needed(problem, excess, ["bayes", "one_pass"])
        np.testing.assert_allclose(alpha, expected, rtol=6e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "excess", "bayes_needs"), [(5.0, 0.01985, 3.367), (20.0, 0.00337, 15.89)]
)
def test_sgd_of_an_erf_student_with_its_best_schedule(alpha, excess, bayes_needs):
    """One pass from zero rows; 30 rates are within 0.4% of the table, and of infinitely many."""
    student = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    start = sgd.start(student, M=[[0.0]], Q=[[0.0]])
    best = sgd.optimal_schedule(student, sgd.OnePassSGD(lr=0.5), start, alpha=alpha, pieces=30)
    assert best.converged
    assert best.value == pytest.approx(excess, rel=4.5e-3)
    assert best.extrapolated == pytest.approx(best.value, rel=1e-3)
    problem = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="erf", noise=0.1)
    floor = sgd.samples_needed(problem, best.value, "bayes").item()
    assert floor == pytest.approx(bayes_needs, rel=5e-3)


def test_even_labels_need_a_start():
    problem = sgd.TeacherStudent(
        width=1, activation="linear", teacher_activation="square", noise=0.1
    )
    assert np.isinf(sgd.samples_needed(problem, 0.1, "one_pass").item())
    assert np.isinf(sgd.samples_needed(problem, 0.1, "sgd").item())


def test_the_first_crossing_of_a_jump():
    jump = lambda alpha: np.where(alpha < 1.7, 1.0, 0.1)  # noqa: E731
    assert first_below(jump, 0.5) == pytest.approx(1.7, rel=1e-4)
    assert first_below(lambda alpha: 1 / alpha, 0.01) == pytest.approx(100.0, rel=1e-6)
    assert np.isinf(first_below(lambda alpha: 1.0 + 0 * alpha, 0.5))


def test_bad_input():
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    with pytest.raises(ValueError, match=r"by = 'bays'.*did you mean 'bayes'"):
        sgd.samples_needed(problem, 0.1, "bays")
    with pytest.raises(ValueError, match=r"risk = 0"):
        sgd.samples_needed(problem, 0.0)
    blocks = problem.replace(covariance=[(1.0, 0.5), (2.0, 0.5)])
    with pytest.raises(ValueError, match=r"by = 'sgd'.*one eigenvalue"):
        sgd.samples_needed(blocks, 0.1, "sgd")
