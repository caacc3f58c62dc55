"""Hermite coefficients compared with closed forms and with mpmath."""

from __future__ import annotations

import math

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

import sgdynamics as sgd
from sgdynamics.analysis.hermite_series import hermite_coefficients, hermite_series

ORDER = 14
K = np.arange(ORDER + 1)
ROOT = np.sqrt(special.factorial(K))
SHIFT = 0.37


def he(k, x):
    """He_k(x); He_-1 stands for the antiderivative that is missing, and is not used."""
    return special.eval_hermitenorm(k, x) if k >= 0 else 0.0


def step_coefficients(edge):
    """Coefficients of 1{x > edge}: phi(edge) He_{k-1}(edge)/sqrt(k!)."""
    density = stats.norm.pdf(edge)
    return np.array([stats.norm.sf(edge)] + [density * he(k - 1, edge) for k in K[1:]]) / ROOT


def bump_coefficients(a, b):
    """Coefficients of x^(2b) exp(a x^2) for b = 0, 1.

    With q = 1/(1 - 2a) they are sqrt(q) (q - 1)^j sqrt((2j)!)/(2^j j!) at k = 2j for b = 0, and the
    derivative of this with respect to a for b = 1.
    """
    q = 1 / (1 - 2 * a)
    coefficients = np.zeros(ORDER + 1)
    for j in range(ORDER // 2 + 1):
        value = math.sqrt(q) * (q - 1) ** j
        slope = 2 * q**2 * (value / (2 * q) + (math.sqrt(q) * j * (q - 1) ** (j - 1) if j else 0.0))
        factor = math.sqrt(math.factorial(2 * j)) / (2**j * math.factorial(j))
        coefficients[2 * j] = (slope if b else value) * factor
    return coefficients


def relu_coefficients():
    higher_orders = [stats.norm.pdf(0) * he(k - 2, 0.0) for k in K[2:]]
    return np.array([stats.norm.pdf(0), 0.5, *higher_orders]) / ROOT


def shifted_abs_coefficients():
    density, cdf = stats.norm.pdf(SHIFT), stats.norm.cdf(SHIFT)
    higher_orders = [2 * density * he(k - 2, SHIFT) for k in K[2:]]
    return np.array([2 * density - SHIFT * (1 - 2 * cdf), 1 - 2 * cdf, *higher_orders]) / ROOT


def sine_coefficients():
    return math.exp(-0.5) * np.array([(0, 1, 0, -1)[k % 4] for k in K]) / ROOT


CLOSED_FORMS = {
    "relu": ("relu", (), relu_coefficients()),
    "sign": ("sign", (), 2 * step_coefficients(0.0) - (K == 0)),
    "a step": (lambda x: x > SHIFT, SHIFT, step_coefficients(SHIFT)),
    "abs, shifted": (lambda x: np.abs(x - SHIFT), [SHIFT], shifted_abs_coefficients()),
    "sin": (np.sin, (), sine_coefficients()),
    "one number at a time": (math.sin, (), sine_coefficients()),
    "a Python branch": (lambda x: max(x, 0.0), 0, relu_coefficients()),
    "exp": (jnp.exp, (), math.exp(0.5) / ROOT),
    "x^2 exp(-x^2)": (lambda x: x**2 * np.exp(-(x**2)), (), bump_coefficients(-1.0, 1)),
    "exp(x^2/5)": (lambda x: np.exp(x**2 / 5), (), bump_coefficients(0.2, 0)),
    "he5": ("he5", (), math.sqrt(120) * (K == 5)),
    "a polynomial": (
        sgd.polynomial([1.0, 0.0, 3.0]),
        (),
        4.0 * (K == 0) + 3 * math.sqrt(2) * (K == 2),
    ),
    "overflows far out": (
        lambda x: np.log1p(np.exp(x**2)) - np.log1p(np.exp(-(x**2))),
        (),
        (K == 0) + math.sqrt(2) * (K == 2),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_coefficients_against_closed_forms(name):
    f, kinks, expected = CLOSED_FORMS[name]
    series = hermite_series(f, ORDER, kinks=kinks)
    np.testing.assert_allclose(series.coefficients, expected, atol=1e-12 * series.norm)
    np.testing.assert_array_less(np.abs(series.coefficients - expected), 20 * series.errors + 1e-15)
    assert series.errors.max() < 1e-12 * series.norm


def test_coefficients_against_mpmath_and_the_reference_values():
    mpmath.mp.dps = 25
    coefficients = hermite_coefficients("tanh", 9)
    for k in (1, 3, 9):
        exact = mpmath.quad(
            lambda x, k=k: mpmath.tanh(x) * mpmath.hermite(k, x / mpmath.sqrt(2)) * mpmath.npdf(x),
            [0, 2, 6, 14],
        )
        normalisation = mpmath.sqrt(mpmath.factorial(k) * mpmath.mpf(2) ** k)
        assert coefficients[k] == pytest.approx(float(2 * exact / normalisation), abs=1e-12)
    np.testing.assert_allclose(coefficients[[1, 3]], [0.605705509602, -0.148437190787], atol=1e-12)
    np.testing.assert_allclose(
        hermite_coefficients("relu", 4),
        [0.398942280401, 0.5, 0.282094791774, 0, -0.081433751984],
        atol=1e-12,
    )
    np.testing.assert_allclose(hermite_coefficients("erf", 2), [0, 0.564189583548, 0], atol=1e-12)


def test_high_orders_and_their_sum_of_squares():
    series = hermite_series(lambda x: x > SHIFT, 300, kinks=SHIFT)
    h = [1.0, SHIFT]
    for k in range(2, 300):
        h.append((SHIFT * h[-1] - math.sqrt(k - 1) * h[-2]) / math.sqrt(k))
    expected = stats.norm.pdf(SHIFT) * np.array(h) / np.sqrt(np.arange(1, 301))
    np.testing.assert_allclose(series.coefficients[1:], expected, atol=1e-12)
    assert series.norm**2 == pytest.approx(stats.norm.sf(SHIFT), abs=1e-12)
    assert np.sum(hermite_coefficients("gelu", 120) ** 2) == pytest.approx(
        hermite_series("gelu", 0).norm ** 2, rel=1e-12
    )


def test_orders_out_of_range():
    for n, message in ((-1, "n = -1"), (301, "n = 301: .* Use at most 300")):
        with pytest.raises(ValueError, match=message):
            hermite_coefficients("relu", n)


def test_an_undeclared_kink_is_reported():
    with pytest.warns(UserWarning, match="estimated errors are up to .* Declare in kinks="):
        hermite_coefficients(lambda x: x > SHIFT, 3)
