"""Degree bounds derived from operations, against degrees known by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.problems.degrees import degree_bounds

X = np.zeros(3)
MATRIX = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 1.0, 0.0]])

POLYNOMIALS = {
    "square": (lambda x: (x[0] - x[1]) ** 2 / 2, 2),
    "product": (lambda x: jnp.prod(x) * x[0], 4),
    "power": (lambda x: x[0] ** 3.0 + jnp.power(x[1], 2), 3),
    "matrix": (lambda x: jnp.sum((MATRIX @ x) ** 2), 2),
    "einsum": (lambda x: jnp.einsum("i,ij,j,k->", x, MATRIX, x, x), 3),
    "gradient": (jax.grad(lambda x: jnp.mean(x) ** 4), 3),
    "jitted": (jax.jit(lambda x: jnp.stack([x[0] * x[1], x[2]]).sum()), 2),
    "indexed": (lambda x: jnp.sum(x[np.array([0, 2])] ** 2), 2),
    "mapped": (lambda x: jnp.sum(jax.vmap(lambda entry: entry**3)(x)), 3),
    "a factor that is zero": (
        lambda x: x[0] + jnp.where(jnp.ones(()) > 0, 0.0, 1.0) * jnp.tanh(x[1]),
        1,
    ),
    "a constant choice": (lambda x: jnp.where(jnp.ones(()) > 0, x[0] ** 2, jnp.exp(x[0])), 2),
    "constant": (lambda x: jnp.exp(jnp.ones(())) + 0 * x[0], 0),
}

NOT_POLYNOMIAL = {
    "flat near 0": lambda x: x[0] ** 2 + jnp.log1p(jnp.exp(20 * (x[0] - 5))),
    "bounded": lambda x: 1000 * jax.nn.sigmoid(50 * (x[0] - 6)),
    "quotient": lambda x: x[0] / (1 + x[1] ** 2),
    "root": lambda x: jnp.sqrt(1 + x[0] ** 2),
    "power of a variable": lambda x: 2.0 ** x[0],
    "choice by an input": lambda x: jnp.where(x[0] > 9, x[0] ** 3, x[0]),
    "index by an input": lambda x: jnp.asarray(X)[jnp.asarray(x[0], int)] + x[1],
}


def bound(function) -> float:
    """Return the largest degree bound of the outputs in all entries of the input."""
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(X)
    return max(float(np.max(degrees)) for degrees in degree_bounds(jaxpr, [np.ones(3)]))


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degree_of_polynomials(name):
    function, degree = POLYNOMIALS[name]
    assert bound(function) == degree


@pytest.mark.parametrize("name", NOT_POLYNOMIAL)
def test_other_functions_have_no_degree(name):
    assert bound(NOT_POLYNOMIAL[name]) == np.inf


def test_only_chosen_inputs_count():
    jaxpr = jax.make_jaxpr(lambda x: jnp.stack([jnp.tanh(x[0]) * x[1], x[1] * x[2]]))(X)
    (degrees,) = degree_bounds(jaxpr, [np.array([0.0, 1.0, 1.0])])
    assert degrees.tolist() == [1, 2]
