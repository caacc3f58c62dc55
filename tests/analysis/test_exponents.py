"""Information and generative exponents of links whose exponents are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

import sgdynamics as sgd
from sgdynamics.analysis.exponents import generative_exponent, information_exponent
from sgdynamics.analysis.hermite_series import hermite_series

SHIFT = 0.37
STEP_SLOPE = stats.norm.pdf(SHIFT)
# The point at which the normal density is half of its maximum.
EDGE = math.sqrt(2 * math.log(2))
# The solution b > 1 of b phi(b) = phi(1/2)/2.
FAR = optimize.brentq(lambda b: b * math.exp(-(b**2) / 2) - 0.5 * math.exp(-1 / 8), 1.0, 3.0)


def ring(x):
    """Two values; E[f h_2] = 0 by the choice of FAR."""
    return (np.abs(x) > 0.5) & (np.abs(x) < FAR)


def flip_sign(x):
    """Two values, odd; E[f h_1] = 0 by the choice of EDGE."""
    return np.sign(x) * np.sign(EDGE - np.abs(x))


# Link, kinks, information exponent, generative exponent.
EXPONENTS = {
    "linear": ("linear", (), 1, 1),
    "relu": ("relu", (), 1, 1),
    "tanh": ("tanh", (), 1, 1),
    "erf": ("erf", (), 1, 1),
    "square": ("square", (), 2, 2),
    "abs": ("abs", (), 2, 2),
    "sign": ("sign", (), 1, 1),
    "he3": ("he3", (), 3, 1),
    "he4": ("he4", (), 4, 2),
    "he5": ("he5", (), 5, 1),
    "he6": ("he6", (), 6, 2),
    "he3, shifted": (lambda x: (x + 0.1) ** 3 - 3 * (x + 0.1), (), 1, 1),
    "he3 and a little x": (lambda x: x**3 - 3 * x + 1e-5 * x, (), 1, 1),
    "he3 and too little x": (lambda x: x**3 - 3 * x + 1e-8 * x, (), 3, 1),
    "he4 and a little he3": (lambda x: x**4 - 6 * x**2 + 1e-4 * (x**3 - 3 * x), (), 3, 1),
    "far from 0": (lambda x: 1e6 + x**2, (), 2, 2),
    "sin x - x exp(-1/2)": (lambda x: np.sin(x) - math.exp(-0.5) * x, (), 3, 1),
    "cos x + x^2 exp(-1/2)/2": (lambda x: np.cos(x) + math.exp(-0.5) / 2 * x**2, (), 4, 2),
    "x^2 exp(-x^2)": (lambda x: x**2 * np.exp(-(x**2)), (), 4, 4),
    "a step less its slope": (lambda x: (x > SHIFT) - STEP_SLOPE * x, SHIFT, 2, 1),
    "a ring": (ring, (-FAR, -0.5, 0.5, FAR), 4, 4),
    "a flipped sign": (flip_sign, (-EDGE, 0.0, EDGE), 3, 3),
    "in float32": (lambda x: np.asarray(x, dtype=np.float32) ** 2, (), 2, 2),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_exponents(name):
    f, kinks, information, generative = EXPONENTS[name]
    assert information_exponent(f, kinks=kinks) == information
    assert generative_exponent(f, kinks=kinks) == generative


def test_the_tolerance_decides_on_small_coefficients():
    def f(x):
        return x**3 - 3 * x + 1e-8 * x

    assert information_exponent(f, tolerance=1e-10) == 1


@pytest.mark.parametrize(
    "transform", [np.square, np.exp, lambda y: np.tanh(20 * y - 3), lambda y: 1 / (0.05 + y)]
)
def test_no_transformation_lowers_the_exponent_of_a_link_of_exponent_four(transform):
    """E[h_2 | x^2 exp(-x^2)] = 0, checked on transformations that the search does not use."""
    series = hermite_series(lambda x: transform(x**2 * np.exp(-(x**2))), 4)
    np.testing.assert_allclose(series.coefficients[1:4], 0.0, atol=1e-11 * series.norm)
    assert abs(series.coefficients[4]) > 1e-3 * series.norm


@pytest.mark.parametrize(
    ("f", "kinks", "message"),
    [
        (lambda x: 3.0 + 0 * x, (), "it is constant"),
        (lambda x: np.exp(x**2 / 4), (), "not square-integrable"),
        (lambda x: math.exp(x * x), (), "not square-integrable"),
        (lambda x: 1 / x, (), "does not converge"),
        (np.sqrt, (), "not finite at x = -"),
        (lambda x: np.sin(50 * x), (), "above 40, or f oscillates too fast"),
        (lambda x: (x > SHIFT) - STEP_SLOPE * x, (), "cannot be determined: .* Declare in kinks="),
        (lambda x: 1j * x, (), "one real number"),
        (lambda x: [x, x], (), "one real number"),
        (lambda x: x["a"], (), "calling it on one point failed"),
        ("rleu", (), "did you mean 'relu'"),
        (3.0, (), "f = 3.0"),
        ("relu", (math.nan,), "kinks = .*nan.*finite numbers"),
    ],
)
def test_links_without_an_exponent(f, kinks, message):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message):
        information_exponent(f, kinks=kinks)


def test_the_tolerance_must_be_positive():
    with pytest.raises(ValueError, match="tolerance = 0"):
        generative_exponent("relu", tolerance=0.0)


def test_a_problem_is_no_link_function():
    problem = sgd.MultiIndex(lambda z: z[0] * z[1], directions=2, width=1, activation="relu")
    with pytest.raises(ValueError, match=r"^f = .*not a function of one variable.*leap_complexity"):
        sgd.information_exponent(problem)
