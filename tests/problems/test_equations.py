"""Printed formulas of activations and losses, evaluated and compared with the code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.activations import NAMED
from sgdynamics.problems.equations import OUTER_LOSSES, activation_formulas
from sgdynamics.problems.losses import LOSSES
from tests.latex import evaluate

POINTS = np.array([-2.3, -0.7, -0.1, 0.2, 1.1, 2.9])


@pytest.mark.parametrize("name", [*NAMED, "polynomial"])
def test_formulas_of_activations(name):
    activation = NAMED.get(name) or sgd.polynomial([0.5, -1.0, 0.0, 0.25])
    value, slope = activation_formulas(activation)
    with jax.enable_x64(True):
        expected = np.asarray(activation(jnp.asarray(POINTS)))
        expected_slope = np.asarray(activation.derivative(1)(jnp.asarray(POINTS)))
    np.testing.assert_allclose(evaluate(value, {"x": POINTS}), expected, rtol=1e-12, atol=1e-15)
    assert slope is not None
    np.testing.assert_allclose(
        evaluate(slope, {"x": POINTS}) + 0 * POINTS, expected_slope, rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("name", LOSSES)
def test_formulas_of_losses(name):
    formula, slope = OUTER_LOSSES[name]
    values = {"f": np.array([0.3, -1.2]), "y": np.array([0.7, -0.4])}
    with jax.enable_x64(True):
        arguments = jnp.asarray(values["f"]), jnp.asarray(values["y"])
        expected = np.asarray(LOSSES[name](*arguments))
        expected_slope = np.asarray(jax.vmap(jax.grad(LOSSES[name]))(*arguments))
    np.testing.assert_allclose(evaluate(formula, values), expected, rtol=1e-12)
    np.testing.assert_allclose(evaluate(slope, values), expected_slope, rtol=1e-12)


def test_a_function_of_the_user_is_shown_by_its_name_or_its_formula():
    def steep(x):
        return x**3

    def huber(f, y):
        return jnp.abs(f - y)

    algorithm = sgd.OnePassSGD(lr=0.1)
    problem = sgd.TeacherStudent(width=1, activation=steep, loss=huber)
    loss = problem.equations(algorithm)["Loss of one sample"]
    assert r"\sigma\left(x\right) = \operatorname{steep}\left(x\right)" in loss
    assert r"\ell = \operatorname{huber}\left(f, y\right)" in loss
    steep.latex = "x^3"
    huber.latex = r"\left|f - y\right|"
    loss = problem.equations(algorithm)["Loss of one sample"]
    assert r"\sigma\left(x\right) = x^3" in loss
    assert r"\ell = \left|f - y\right|" in loss
