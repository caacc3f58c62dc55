"""Thresholds of weak recovery: closed forms, brute force, directions one after the other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd


def teacher(activation, **arguments):
    return sgd.TeacherStudent(width=1, activation="erf", teacher_activation=activation, **arguments)


def brute_force(noise: float) -> float:
    """1/E_y (E[z^2 | y] - 1)^2 for y = z^2 + noise, by Riemann sums."""
    z = np.linspace(0, 8, 16001)
    prior = np.exp(-(z**2) / 2)
    prior[0] /= 2
    prior /= prior.sum()
    total, y = 0.0, np.linspace(-8, 60, 3401)
    for value in y:
        weights = prior * np.exp(-((value - z**2) ** 2) / (2 * noise))
        mass = weights.sum()
        if mass > 1e-200:
            mean = weights @ z**2 / mass
            total += (mean - 1) ** 2 * mass / np.sqrt(2 * np.pi * noise) * (y[1] - y[0])
    return 1 / total


@pytest.mark.parametrize(
    ("problem", "threshold"),
    [
        (teacher("abs"), 0.5),
        # trapezoidal rule with 40001 nodes of z and 12001 of y
        (teacher("square", noise=1.0), 0.64659060),
        (teacher("square", noise=0.1), 0.51806581),
        (teacher("abs", noise=0.1), 0.60428768),
        (teacher("sign"), 0.0),
        (teacher("abs", covariance=[(0.5, 0.5), (1.0, 0.3), (2.0, 0.2)]), 0.368367),
        (teacher("linear", noise=0.1), 0.0),
        (sgd.GaussianMixture("binary"), 0.0),
    ],
    ids=[
        "abs",
        "unit noise",
        "square noise",
        "abs noise",
        "sign",
        "blocks",
        "linear",
        "mixture",
    ],
)
def test_thresholds_of_one_signal(problem, threshold):
    assert float(sgd.weak_recovery(problem)) == pytest.approx(threshold, rel=1e-5)


@pytest.mark.slow
def test_threshold_of_phase_retrieval_against_brute_force():
    problem = teacher("square", noise=1.0)
    assert float(sgd.weak_recovery(problem)) == pytest.approx(brute_force(1.0), rel=1e-5)


def test_committee_learns_its_sum_first():
    result = sgd.weak_recovery(teacher("sign", teacher_width=2))
    assert result.samples_per_dimension == pytest.approx([0.0, 2.0524], abs=1e-4)
    first, second = np.abs(result.directions @ np.array([[1, 1], [1, -1]]) / np.sqrt(2))
    assert first == pytest.approx([1.0, 0.0], abs=1e-6)
    assert second == pytest.approx([0.0, 1.0], abs=1e-6)


@pytest.mark.slow
def test_signs_of_products():
    """sign(z1 z2) has the threshold pi^2/4; sign(z1 z2 z3) tells nothing of second moments."""
    two = sgd.MultiIndex(lambda z: jnp.sign(z[0] * z[1]), kinks=[0.0])
    assert sgd.weak_recovery(two).samples_per_dimension == pytest.approx(
        np.full(2, np.pi**2 / 4), rel=1e-6
    )
    three = sgd.MultiIndex(lambda z: jnp.sign(z[0] * z[1] * z[2]), directions=3)
    assert np.all(np.isinf(sgd.weak_recovery(three).samples_per_dimension))


def test_several_signals_without_noise_are_rejected():
    with pytest.raises(ValueError, match="without noise"):
        sgd.weak_recovery(sgd.MultiIndex(lambda z: z[0] * z[1]))
