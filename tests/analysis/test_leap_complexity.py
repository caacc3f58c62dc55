"""Leap complexity of targets of several directions, compared with a search over all orders."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from sgdynamics.analysis import leap_complexity as leaps
from sgdynamics.analysis.leap_complexity import leap_complexity
from tests.analysis.test_exponents import EXPONENTS


def he(k, x):
    return special.eval_hermitenorm(k, x)


# Target, variables, kinks, leap.
LEAPS = {
    "a staircase": (lambda z: z[0] + z[0] * z[1] + z[0] * z[1] * z[2], 3, (), 1),
    "a product": (jnp.prod, 3, (), 3),
    "a gap": (lambda z: z[0] + z[0] * z[1] * z[2], 3, (), 2),
    "in one basis": (lambda z: z[0] + z[1] + z[0] * z[1], 2, (), 1),
    "and in another": (lambda z: math.sqrt(2) * z[0] + (z[0] ** 2 - z[1] ** 2) / 2, 2, (), 2),
    "high degrees in learned variables": (lambda z: z[0] + he(14, z[0]) / 3e5 * z[1], 2, (), 1),
    "not a polynomial": (lambda z: np.tanh(z[0]) * np.tanh(z[1]), 2, (), 2),
    "not all variables": (lambda z: z[1] ** 2 + 0 * z[0], 3, (), 2),
    "signs": (lambda z: np.sign(z[0] * z[1] * z[2]), 3, 0.0, 3),
    "a Python branch": (lambda z: max(z[0], 0.0) * z[1], 2, (0.0, 50.0), 1),
}


@pytest.mark.parametrize("name", LEAPS)
def test_leaps(name, monkeypatch):
    monkeypatch.setattr(leaps, "MAX_NODES_PER_AXIS", 40)
    g, variables, kinks, leap = LEAPS[name]
    assert leap_complexity(g, variables, kinks=kinks) == leap


def leap_over_all_orders(alphas):
    """The definition: the minimum over orders of the largest number of new degrees."""
    best = math.inf
    for order in itertools.permutations(alphas):
        earlier = np.cumsum(order, axis=0) - order
        pairs = zip(order, earlier, strict=True)
        best = min(best, max(int(alpha[before == 0].sum()) for alpha, before in pairs))
    return best


def test_leaps_against_all_orders(monkeypatch):
    """Targets of up to four random monomials of three variables."""
    monkeypatch.setattr(leaps, "MAX_NODES_PER_AXIS", 12)
    rng = np.random.default_rng(7)
    observed = set()
    for _ in range(40):
        degrees = rng.integers(0, 4, size=(rng.integers(1, 5), 3)) * rng.integers(0, 2, size=3)
        alphas = np.unique(degrees, axis=0)
        alphas = alphas[alphas.sum(axis=1) > 0]
        if not len(alphas):
            continue
        expected = leap_over_all_orders(alphas)

        def g(z, alphas=alphas):
            return sum(
                (i + 1) * np.prod([he(int(k), z[j]) for j, k in enumerate(alpha)], axis=0)
                for i, alpha in enumerate(alphas)
            )

        assert leap_complexity(g, 3) == expected, alphas.tolist()
        observed.add(expected)
    assert len(observed) >= 5


def test_leap_of_one_variable_is_the_information_exponent():
    for name in ("x^2 exp(-x^2)", "sin x - x exp(-1/2)", "a flipped sign"):
        f, kinks, information, _ = EXPONENTS[name]
        assert leap_complexity(lambda z, f=f: f(z[0]), 1, kinks=kinks) == information


@pytest.mark.parametrize(
    ("g", "variables", "message"),
    [
        (lambda z: z[0], 8, "variables = 8: .* reach of the quadrature.* at most 7 variables"),
        (lambda z: 2.0 + 0 * z[0], 2, "it is constant"),
        (
            lambda z: np.sign(z[0] * z[1] * z[2]),
            3,
            "cannot be determined: the component of degrees .* Declare in kinks=",
        ),
        (lambda z: np.cos(20 * z[0]), 2, "cannot be determined"),
        (lambda z: np.sqrt(z[0]), 2, "not finite"),
        (lambda z: z, 2, "one real number"),
        ("relu", 2, "give a function"),
        (lambda z: z[0], 0, "variables = 0"),
    ],
)
def test_targets_without_a_leap(g, variables, message):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message):
        leap_complexity(g, variables)
