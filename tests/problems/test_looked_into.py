"""Which functions count as smooth: those alone may have their gradient differentiated once more, or go on a grid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.user_functions import analyse_function

SMOOTH = {
    "tanh": lambda f, s, a, z: jnp.sum(jnp.tanh(f) - s) ** 2 * z,
    "erf": lambda f, s, a, z: jnp.sum(jax.scipy.special.erf(f / np.sqrt(2)) - s),
    "gelu": lambda f, s, a, z: jnp.sum(jax.nn.gelu(f)),
    "softplus by hand": lambda f, s, a, z: jnp.sum(jnp.log1p(jnp.exp(f))),
    "kinks in the head only": lambda f, s, a, z: jnp.sum(jnp.abs(a) * f) + jnp.sqrt(0.1) * z,
}
# sqrt(f^2), a stopped gradient and a rounded number look harmless, and their second derivative misses what the first one does
KINKED = {
    "abs": lambda f, s, a, z: jnp.sum(jnp.abs(f)),
    "root of a square": lambda f, s, a, z: jnp.sum(jnp.sqrt(f**2)),
    "power": lambda f, s, a, z: jnp.sum((f**2) ** 0.5),
    "relu": lambda f, s, a, z: jnp.sum(jax.nn.relu(f)),
    "where": lambda f, s, a, z: jnp.sum(jnp.where(f > 0, f, 0.0)),
    "sign of a signal": lambda f, s, a, z: jnp.sum(jnp.sign(s) * f[:1]),
    "stopped": lambda f, s, a, z: jnp.sum(f - jax.lax.stop_gradient(f**2)) ** 2,
    "whole": lambda f, s, a, z: jnp.sum(f * f.astype(int)),
    "largest": lambda f, s, a, z: jnp.max(f),
}


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
def test_kinks_are_seen(name):
    arguments = (np.zeros(2), np.zeros(1), np.zeros(2), np.zeros(()))
    assert analyse_function(
        {**SMOOTH, **KINKED}[name], *arguments, random=(True, True, False, True)
    )[0] == (name in SMOOTH)


def test_what_is_read_is_seen():
    arguments = (np.zeros(2), np.zeros(1), np.zeros(2), np.zeros(()))
    assert analyse_function(SMOOTH["tanh"], *arguments, random=(True, True, False, True))[1] == [
        True,
        True,
        False,
        True,
    ]
    assert analyse_function(SMOOTH["gelu"], *arguments, random=(True, True, False, True))[1] == [
        True,
        False,
        False,
        False,
    ]


def test_means_that_jump_with_a_draw_count():
    def loss(f, s, a, draws):
        return 0.5 * (jnp.tanh(f[0]) - s[0]) ** 2

    steps = sgd.Problem(
        loss,
        width=1,
        signals=1,
        draws={"g": "normal"},
        means=lambda draws: jnp.sign(draws["g"])[None],
    )
    slopes = sgd.Problem(
        loss, width=1, signals=1, draws={"g": "normal"}, means=lambda draws: 2 * draws["g"][None]
    )
    assert (steps.structure.loss.smooth, slopes.structure.loss.smooth) == (False, True)
