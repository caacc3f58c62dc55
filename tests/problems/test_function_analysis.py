"""`analyse_function`: detection of smooth functions and of the arguments that a function reads.

Only the gradient of a smooth loss may be differentiated again or be integrated on a grid.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.user_functions import analyse_function

# Fields f, signals s, head a and noise draw z; the head is not random.
ARGUMENTS = (np.zeros(2), np.zeros(1), np.zeros(2), np.zeros(()))
RANDOM = (True, True, False, True)

SMOOTH = {
    "tanh": lambda f, s, a, z: jnp.sum(jnp.tanh(f) - s) ** 2 * z,
    "erf": lambda f, s, a, z: jnp.sum(jax.scipy.special.erf(f / np.sqrt(2)) - s),
    "gelu": lambda f, s, a, z: jnp.sum(jax.nn.gelu(f)),
    "softplus by hand": lambda f, s, a, z: jnp.sum(jnp.log1p(jnp.exp(f))),
    "kinks in the head only": lambda f, s, a, z: jnp.sum(jnp.abs(a) * f) + jnp.sqrt(0.1) * z,
}
# The kinks of sqrt(f^2), a stopped gradient and a rounded number are invisible at generic points,
# and their second derivatives are wrong.
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
def test_smooth_functions_are_told_from_functions_with_kinks(name):
    is_smooth, _ = analyse_function({**SMOOTH, **KINKED}[name], *ARGUMENTS, random=RANDOM)
    assert is_smooth == (name in SMOOTH)


def test_detection_of_the_arguments_that_a_function_reads():
    _, reads = analyse_function(SMOOTH["tanh"], *ARGUMENTS, random=RANDOM)
    assert reads == [True, True, False, True]
    _, reads = analyse_function(SMOOTH["gelu"], *ARGUMENTS, random=RANDOM)
    assert reads == [True, False, False, False]


def test_a_loss_is_not_smooth_if_its_means_jump_with_a_draw():
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
