"""Proximal operators against brute-force minimisation, on NumPy and JAX arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.base.precision import float64
from sgdynamics.statics.prox import LOSSES, HuberLoss, convex_loss

BINARY = ("logistic", "hinge")
CASES = [*LOSSES, "huber 0.3", "user"]


def log_cosh(output, label):
    """A smooth convex loss of a user: log cosh."""
    return jnp.logaddexp(output - label, label - output)


def loss_of(name):
    if name == "huber 0.3":
        return HuberLoss(0.3)
    return convex_loss(log_cosh if name == "user" else name)


def grid(name):
    labels = [-1.0, 1.0] if name in BINARY else [-1.7, 0.0, 0.4]
    return [
        (om, label, V)
        for om in (-30.0, -2.3, -0.4, 0.0, 0.9, 1.6, 7.0)
        for label in labels
        for V in (1e-3, 0.4, 3.0, 90.0)
    ]


@pytest.mark.parametrize("name", CASES)
def test_prox_is_the_minimiser(name):
    loss = loss_of(name)
    for om, label, V in grid(name):
        value = float(loss.prox(np.array([om]), np.array([label]), V)[0])

        def objective(f, om=om, label=label, V=V):
            return loss.value(f, label + 0.0 * f) + (f - om) ** 2 / (2 * V)

        # no nearby point is lower, at distances from 1e-5 to 10
        distances = np.geomspace(1e-5, 10.0, 60) * max(1.0, np.sqrt(V))
        points = np.concatenate([value - distances, value + distances])
        least = float(np.asarray(objective(np.array([value])))[0])
        slack = 1e-12 * (1 + abs(least))
        assert np.all(np.asarray(objective(points)) >= least - slack), (om, label, V)


@pytest.mark.parametrize("name", CASES)
def test_slope_is_the_derivative_of_the_prox(name):
    loss, h = loss_of(name), 1e-5
    for om, label, V in grid(name):
        om, label = np.array([om + 0.0123]), np.array([label])
        numeric = (loss.prox(om + h, label, V) - loss.prox(om - h, label, V)) / (2 * h)
        np.testing.assert_allclose(loss.slope(om, label, V), numeric, atol=2e-6)


@pytest.mark.parametrize("name", ["logistic", "hinge", "huber", "absolute", "squared"])
def test_jax_and_numpy_agree(name):
    loss = loss_of(name)
    om, label, V = (np.array(column) for column in zip(*grid(name), strict=True))
    expected = loss.prox(om, label, V)

    @float64
    def on_jax():
        return np.asarray(jax.jit(loss.prox)(jnp.asarray(om), jnp.asarray(label), jnp.asarray(V)))

    np.testing.assert_allclose(on_jax(), expected, rtol=1e-13, atol=1e-12)


def test_logistic_prox_converges_at_large_V():
    om = np.linspace(-300, 20, 2001)
    f = LOSSES["logistic"].prox(om, np.ones_like(om), 88.0)
    residual = f - om - 88.0 / (1 + np.exp(f))
    assert np.max(np.abs(residual)) < 1e-11


def test_a_loss_that_is_not_convex_raises():
    with pytest.raises(ValueError, match=r"loss = .*not convex"):
        convex_loss(lambda f, y: jnp.tanh(f - y) ** 2)
    with pytest.raises(ValueError, match="delta = -1"):
        convex_loss(("huber", -1.0))
    with pytest.raises(ValueError, match="did you mean 'hinge'"):
        convex_loss("hing")
