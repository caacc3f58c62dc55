"""Protocols: closed formulas for learning-rate schedules against the equations they solve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize

from sgdynamics.papers import protocols as paper


def test_best_rate_solves_its_equation():
    """The error solves deps/dalpha = -2 lr eps + lr^2 (eps + noise) with lr = eps/(eps + noise).

    The equation is integrated numerically. A larger or a smaller rate decreases the error less.
    """
    noise, start = 0.3, 0.7
    alpha = np.linspace(0, 30, 7)
    solution = integrate.solve_ivp(
        lambda _, e: -(e**2) / (e + noise), (0, 30), [start], t_eval=alpha, rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(paper.best_error(alpha, start, noise), solution.y[0], rtol=1e-8)
    eps, lr = paper.best_error(alpha, start, noise), paper.best_rate(alpha, start, noise)
    best = -2 * lr * eps + lr**2 * (eps + noise)
    for rate in (0.9 * lr, 1.1 * lr):
        assert np.all(-2 * rate * eps + rate**2 * (eps + noise) > best)


def test_error_is_finite_late_and_falls_as_noise_over_alpha():
    assert paper.best_error(1e6, 1.0, 0.1) == pytest.approx(1e-7, rel=1e-4)
    assert float(paper.best_error(0.0, 1.7, 0.1)) == pytest.approx(1.7, rel=1e-12)


def test_constant_rate():
    """The error at a constant rate solves its equation, and its optimum has the reference value."""
    solution = integrate.solve_ivp(
        lambda _, e: -2 * 0.4 * e + 0.16 * (e + 0.3), (0, 5), [0.7], rtol=1e-11, atol=1e-13
    )
    assert float(paper.constant_error(5.0, 0.7, 0.3, 0.4)) == pytest.approx(
        solution.y[0, -1], rel=1e-8
    )
    optimum = optimize.minimize_scalar(
        lambda lr: float(paper.constant_error(20.0, 1.0, 0.1, lr)),
        bounds=(0.01, 1.9),
        options={"xatol": 1e-9},
    )
    # The reference is from an independent program.
    assert optimum.fun / 2 == pytest.approx(0.0056246228, rel=1e-7)
    assert optimum.x == pytest.approx(0.172566, rel=1e-5)


def test_exponents():
    assert paper.horizon_exponents(2.5, 1.2) == pytest.approx((0.6, 1.5 / 2.7))
    assert paper.horizon_exponents(1.5, 2.0) == pytest.approx((0.25, 0.2))
    # A constant rate is never better. On the border between easy and hard tasks, the formulas of
    # both regimes agree.
    assert paper.horizon_exponents(2.0, 2.0) == pytest.approx((0.5, 1 / 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper.best_error(-1.0, 1.0, 0.1), "alpha = -1"),
        (lambda: paper.best_error(1.0, 0.0, 0.1), "start = 0"),
        (lambda: paper.best_rate(1.0, 1.0, 0.0), "noise = 0"),
        (lambda: paper.constant_error(1.0, 1.0, 0.1, 2.0), "lr = 2"),
        (lambda: paper.horizon_exponents(1.0, 2.0), "a = 1"),
        (lambda: paper.horizon_exponents(2.0, 0.5), "b = 0.5"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
