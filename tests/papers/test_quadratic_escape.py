"""The plateau of one-pass SGD in quadratic networks: growth rate, best learning rate, noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize_scalar

from sgdynamics.papers import quadratic_networks as qn
from tests.conftest import Z


@pytest.mark.parametrize(("p", "p_star"), [(1, 1), (3, 3), (6, 3), (5, 2), (40, 3)])
def test_plateau_of_sgd_and_its_best_rate(p, p_star):
    best = qn.optimal_rate(p, p_star)
    for eta in (0.3 * best, best):
        norm, growth = qn.plateau_growth(p, p_star, eta)
        rho = 1e-9 * np.random.default_rng(0).normal(size=(p, p_star))
        d_rho, d_Q = qn.drift(rho, norm * np.eye(p), eta)
        np.testing.assert_allclose(d_Q, 0, atol=1e-14)
        np.testing.assert_allclose(d_rho, eta * growth * rho, rtol=1e-8)
        # Of the two fixed points of the norm, this is the stable one.
        above = qn.drift(0 * rho, 1.01 * norm * np.eye(p), eta)[1][0, 0]
        below = qn.drift(0 * rho, 0.99 * norm * np.eye(p), eta)[1][0, 0]
        assert above < 0 < below
    assert qn.plateau_growth(p, p_star, 0.0) == pytest.approx(
        (p / (p + 2), qn.growth_rates(p, p_star)[0]), rel=1e-13
    )
    optimum = minimize_scalar(
        lambda x: -x * qn.plateau_growth(p, p_star, x)[1],
        bounds=(0.5 * best, 1.3 * best),
        options={"xatol": 1e-9},
    )
    assert optimum.x == pytest.approx(best, rel=1e-5)
    assert np.isnan(qn.plateau_growth(p, p_star, 10.0 * p)).all()


@pytest.mark.slow
def test_noise_of_sgd_in_small_overlaps():
    """The noise of SGD adds `noise_share` to the squared overlap that grows from the plateau.

    For p = p* = 1, three random variables per step suffice: the field u of the teacher, the field
    v of the student's orthogonal component, and the squared norm of the rest of the input. The
    overlap starts at 0, so that all of the final overlap is noise.
    """
    N, runs, x, tau = 3000, 3000, 0.05, 0.25
    rng = np.random.default_rng(0)
    rho, orthogonal = np.zeros(runs), np.ones(runs)  # overlap, norm of the orthogonal component
    for _ in range(round(N * tau / x)):
        u, v = rng.standard_normal((2, runs))
        field = rho * u + orthogonal * v
        force = (4 * x / N) * (u**2 - field**2) * field
        # chi^2 with N - 2 degrees of freedom, in the normal approximation, of error 1/sqrt(N)
        outside = N - 2 + math.sqrt(2 * (N - 2)) * rng.standard_normal(runs)
        rho += force * u
        orthogonal = np.sqrt((orthogonal + force * v) ** 2 + force**2 * outside)

    # The norm relaxes to the plateau, and log g is the logarithm of the growth of a small overlap.
    def rate(_, y):
        d_rho, d_Q = qn.drift([[1e-6]], [[y[0]]], x)
        return [d_Q[0, 0], d_rho[0, 0] / 1e-6]

    log_g = solve_ivp(rate, (0, tau / x), [1.0, 0.0], rtol=1e-8, atol=1e-10).y[1, -1]
    measured, expected = N * (rho**2) * math.exp(-2 * log_g), qn.noise_share(1, 1, x)
    # 2% of the noise is added after tau.
    error = Z * measured.std() / math.sqrt(runs) + 0.02 * expected
    assert abs(measured.mean() - expected) < error < 0.2 * expected
    assert expected > 0.7  # comparable to the contribution 1 of a random start
    assert qn.noise_share(6, 3, 1e-6) == pytest.approx(1e-4 * qn.noise_share(6, 3, 1e-2), rel=0.05)


def test_best_rate_is_linear_in_the_width():
    assert qn.optimal_rate(10**6, 3) / 10**6 == pytest.approx(math.sqrt(3 / 5) / 4, rel=1e-5)
    assert qn.optimal_rate(10**6, 1) / 10**6 == pytest.approx(math.sqrt(1 / 3) / 4, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qn.optimal_rate(0, 1), "p = 0"),
        (lambda: qn.plateau_growth(2, 1, -0.1), "eta = -0.1"),
        (lambda: qn.noise_share(2, 0, 0.1), "p_star = 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
