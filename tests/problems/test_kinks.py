"""Undeclared kinks of an activation are detected when a problem is made, before compilation."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

import sgdynamics as sgd
from sgdynamics.problems.activations import NAMED, undeclared_kinks

KINKED = {
    "leaky": (lambda x: jnp.where(x > 0, x, 0.1 * x), (0.0,)),
    "clipped": (lambda x: jnp.clip(x, -1.0, 1.0), (-1.0, 1.0)),
    "shifted": (lambda x: jnp.maximum(x, 0.3), (0.3,)),
    "jump": (lambda x: x + (x > 0.5), (0.5,)),
    "relu6": (jax.nn.relu6, (0.0, 6.0)),
}

CONTINUOUS = {
    "continuous slope": jax.nn.elu,
    "stable softplus": jax.nn.softplus,
    "steep": lambda x: jnp.sqrt(x**2 + 1e-6),
    "steep tanh": lambda x: jnp.tanh(1000 * x),
    "square of relu": lambda x: jnp.maximum(x, 0.0) ** 2,
}


@pytest.mark.parametrize("name", KINKED)
def test_undeclared_kinks(name):
    function, kinks = KINKED[name]
    assert undeclared_kinks(sgd.Activation(function)) == kinks
    assert undeclared_kinks(sgd.Activation(function, kinks=kinks)) == ()
    assert undeclared_kinks(sgd.Activation(function, kinks=kinks[:1])) == kinks[1:]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_steep_functions_have_no_kinks(name):
    assert undeclared_kinks(sgd.Activation(CONTINUOUS[name])) == ()


def test_a_problem_warns_when_it_is_made():
    with pytest.warns(
        UserWarning, match=r"activation = .*jumps at x = 0.3.*kinks=\(0.3,\)"
    ) as record:
        sgd.TeacherStudent(width=1, activation=KINKED["shifted"][0])
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgd.TeacherStudent(width=1, activation=sgd.Activation(KINKED["shifted"][0], kinks=(0.3,)))
        sgd.TeacherStudent(width=1, activation=NAMED["relu"], teacher_activation="sign")
