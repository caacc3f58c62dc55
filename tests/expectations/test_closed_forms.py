"""A family of closed forms added from outside, and the registry of the library's own families."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations import closed_forms, pairs
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.closed_forms import family
from sgdynamics.problems.activations import NAMED, Activation, polynomial

SINE = Activation(jnp.sin, name="sine")


class SineForms(closed_forms.ClosedForms):
    """sin(x): K = exp(-(q1 + q2)/2) sinh(c), A = -K, and B = dK/dc by Price's theorem."""

    def covers(self, activation):
        return activation == SINE

    def pair_moments(self, first, second, q1, q2, c):
        decay = jnp.exp(-(q1[:, None] + q2[None, :]) / 2)
        K = decay * jnp.sinh(c)
        return K, -K, decay * jnp.cosh(c)


@pytest.fixture
def sine_family():
    """Register the family for one test."""
    forms = SineForms()
    closed_forms.register(forms)
    expectation_of.cache_clear()
    yield forms
    family._FAMILIES.remove(forms)
    expectation_of.cache_clear()


@pytest.mark.slow
def test_a_family_from_outside_serves_all_pairs(sine_family):
    q1, q2 = np.array([0.4, 1.3]), np.array([0.9])
    c = np.array([[0.2], [-0.7]])
    assert pairs.method(SINE, SINE) == "closed"
    with jax.enable_x64(True):
        arguments = (SINE, SINE, q1, q2, c, 64)
        formulas = pairs.moments(*arguments)
        series = pairs.moments(*arguments, using="mehler")
        np.testing.assert_allclose(np.array(formulas), np.array(series), rtol=1e-12)
        np.testing.assert_allclose(pairs.value(*arguments), formulas[0])
        assert float(pairs.error(*arguments)) == pairs.ROUNDING
    problem = sgd.TeacherStudent(width=2, activation=SINE)
    assert expectation_of(problem.structure).has_closed_pairs


def test_without_the_family_the_pairs_are_a_series():
    assert pairs.method(SINE, SINE) == "mehler"
    problem = sgd.TeacherStudent(width=2, activation=SINE)
    assert not expectation_of(problem.structure).has_closed_pairs


def test_families_of_the_library():
    """Each activation has at most one family, and a pair is closed within a family only."""
    members = {
        name: [type(forms).__name__ for forms in family._FAMILIES if forms.covers(activation)]
        for name, activation in NAMED.items()
    }
    assert max(map(len, members.values())) == 1
    assert members["erf"] == members["sign"] == ["ErfForms"]
    assert members["relu"] == ["ReluForms"]
    assert members["linear"] == members["he4"] == ["PolynomialForms"]
    assert members["tanh"] == members["abs"] == []
    assert closed_forms.shared_closed_forms(NAMED["erf"], NAMED["relu"]) is None
    assert closed_forms.shared_closed_forms(NAMED["square"], polynomial([0.0, 1.0])) is not None
    assert closed_forms.has_logistic_moments(NAMED["relu"])
    assert not closed_forms.has_logistic_moments(NAMED["erf"])
    # a function with the values of ReLU is not known to be ReLU
    assert closed_forms.closed_forms_of(Activation(jax.nn.relu, kinks=(0.0,))) is None
