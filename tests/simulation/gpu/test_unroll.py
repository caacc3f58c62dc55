"""The compiler of unrolled functions, on a CPU: its values are those of JAX itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as scipy_special

from sgdynamics.base.precision import float64
from sgdynamics.simulation.gpu import constant_folding, unroll
from sgdynamics.simulation.gpu.program import NotUnrollable
from sgdynamics.simulation.gpu.scalars import object_array
from sgdynamics.simulation.gpu.special import erf, erfc


def unrolled_values(
    function: Any, varying: list[np.ndarray], uniform: list[np.ndarray]
) -> list[np.ndarray]:
    """Outputs of `function(*uniform, *varying)`, unrolled.

    Outputs and varying arrays have a leading axis of lanes.
    """
    lanes, n_uniform = len(varying[0]), len(uniform)

    def call(uniform: list[Any], *varying: Any) -> Any:
        return function(*uniform, *varying)

    examples = [jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in varying]
    prepared = unroll.prepare(call, uniform, *examples)
    assert len(prepared.lane_inputs) == len(prepared.program.inputs) - n_uniform
    flat = prepared.pack_uniform([jnp.asarray(array) for array in uniform])
    entries = [
        object_array(list(jnp.asarray(array.reshape(lanes, -1).T)), array.shape[1:])
        for array in varying
    ]
    outputs = prepared.run(prepared.read_uniform(lambda k: flat[k]), entries)
    values = []
    for output in outputs:
        columns = [np.broadcast_to(np.asarray(entry), lanes) for entry in output.reshape(-1)]
        values.append(np.array(columns).T.reshape(-1, *output.shape))
    return values


@pytest.mark.slow
@float64
def test_error_functions_are_exact_to_rounding() -> None:
    x = np.concatenate([np.linspace(-9, 9, 40_001), np.logspace(-12, 0, 500), [np.inf, -np.inf]])
    values = np.asarray(erf(x))
    assert np.max(np.abs(values - scipy_special.erf(x))) < 1e-15
    assert np.max(np.abs(values[x != 0] / scipy_special.erf(x[x != 0]) - 1)) < 1e-15
    x = np.linspace(-6, 20, 40_001)
    # The exponent x^2 is rounded.
    assert np.max(np.abs(np.asarray(erfc(x)) / scipy_special.erfc(x) - 1)) < 1e-14
    assert np.isnan(np.asarray(erf(np.array([np.nan]))))


# Functions of a uniform matrix A (3, 4), a varying matrix x (3, 4) and a varying index i.
FUNCTIONS: dict[str, Any] = {
    "products": lambda A, x, i: (
        A @ x.T,
        jnp.einsum("ij,kj->ik", x, A),
        jnp.outer(x[0], x[1]),
        jnp.linalg.norm(x),
    ),
    "sums": lambda A, x, i: (
        jnp.cumsum(x, axis=1),
        x.sum(axis=0),
        jnp.prod(x),
        x.max(axis=1),
        jnp.var(x),
        x.min(),
    ),
    "indices": lambda A, x, i: (
        x[:, i],
        jax.lax.dynamic_slice(x, (0, i), (3, 1)),
        jnp.argmax(x, axis=1),
        A[1, i],
        x.at[i % 1].get(),
        x.at[1, i].set(2.0, mode="clip"),
        x.at[i % 3, i].add(x[0, 1], mode="clip"),
        jax.grad(lambda row: jax.nn.log_softmax(row)[i])(x[0]),
    ),
    "moves": lambda A, x, i: (
        x.at[1].add(x[0]).at[:, 2].set(3.0),
        jnp.flip(x),
        jnp.roll(x, 1),
        jnp.tile(x, 2),
        jnp.ravel(x, order="F"),
    ),
    "splits": lambda A, x, i: (
        jnp.split(x, [1], axis=1),
        jnp.concatenate([x, A]),
        x[:, jnp.array([], int)].sum(axis=1),
    ),
    "choices": lambda A, x, i: (
        jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        jnp.clip(x, -0.1, 0.1),
        jnp.any(x > 1),
        jnp.all(x > 0),
    ),
    "loops": lambda A, x, i: jax.lax.scan(
        lambda total, row: (0.5 * total + row, total), jnp.zeros(4), x
    ),
    "binary search": lambda A, x, i: jnp.searchsorted(
        jnp.array([-0.5, 0.0, 0.4]), x[0, 0], side="right"
    ),
    "triangle": lambda A, x, i: (lambda r: r.T @ r)(jnp.linalg.qr(x.T, mode="r")),
    "uniform": lambda A, x, i: x * jnp.linalg.eigh(A @ A.T)[0][:, None],
    # Constants among varying entries: erf(0.3), erfc(0) and the derivative of tanh at 0.
    "special functions of constants": lambda A, x, i: (
        jax.scipy.special.erf(jnp.append(x[0], 0.3)),
        jax.scipy.special.erfc(jnp.append(x[0], 0.0)),
        jax.grad(lambda y: jnp.sum(jnp.tanh(jnp.append(y, 0.0 * y[0]))))(x[0]),
    ),
    "gradients": jax.grad(
        lambda A, x, i: (
            jax.nn.gelu(x).sum()
            + jax.nn.logsumexp(x)
            + jnp.sum(jax.scipy.special.erf(x)) ** 2
            + jnp.max(x)
        ),
        argnums=1,
    ),
}

# The functions of the fast tests.
FAST = (
    "indices",
    "moves",
    "loops",
    "triangle",
    "special functions of constants",
    "gradients",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FUNCTIONS],
)
@float64
def test_unrolled_functions_have_the_values_of_jax(name: str) -> None:
    generator = np.random.default_rng(0)
    x, A = generator.normal(size=(5, 3, 4)), generator.normal(size=(3, 4))
    i = generator.integers(0, 4, size=5)
    values = unrolled_values(FUNCTIONS[name], [x, i], [A])
    expected = jax.tree.leaves(
        jax.vmap(FUNCTIONS[name], (None, 0, 0))(*map(jnp.asarray, (A, x, i)))
    )
    for value, reference in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, np.asarray(reference), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@float64
def test_constants_are_those_of_jax() -> None:
    """Every primitive with a rule in NumPy has the bits, shapes and dtypes of JAX's own result."""

    def function(x: Any, i: Any) -> Any:
        wide = jax.lax.broadcast_in_dim(x, (3, 2, 4), (2,)) * jax.lax.broadcasted_iota(
            np.float64, (3, 2, 4), 1
        )
        selections = jax.lax.select_n(i, x, 2 * x, x - 1), jnp.where(x > 0.1, x, -x)
        conversions = jax.lax.squeeze(x[None], (0,)).astype(np.int32), (x * 1e300).astype(np.int32)
        moves = (
            jax.lax.concatenate([wide, wide + x], 1).reshape(6, 8),
            jnp.ravel(wide, order="F"),
            wide.transpose(2, 0, 1)[1:3, ::2],
            jax.lax.expand_dims(x, (0, 2)),
        )
        comparisons = x < i, i == 1, i != 2, i * 3 - 1, jnp.arange(5).astype(bool)
        return wide, selections, conversions, moves, comparisons

    x, i = np.array([-0.3, 0.1, 0.7, 2.5]), np.array([0, 2, 1, 1], np.int32)
    jaxpr, primitives = jax.make_jaxpr(function)(x, i).jaxpr, set()

    def compare(jaxpr: Any, values: dict[Any, Any]) -> None:
        for equation in jaxpr.eqns:
            operands = [
                np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else values[atom]
                for atom in equation.invars
            ]
            if "jaxpr" in equation.params:
                inner = equation.params["jaxpr"].jaxpr
                inner_values = dict(zip(inner.invars, operands, strict=True))
                compare(inner, inner_values)
                expected = [inner_values[atom] for atom in inner.outvars]
            else:
                output = equation.primitive.bind(*map(jnp.asarray, operands), **equation.params)
                expected = [np.asarray(output)]
                (value,) = constant_folding.evaluate(equation.primitive, equation.params, operands)
                np.testing.assert_array_equal(value, expected[0])
                assert value.dtype == expected[0].dtype, equation
                assert value.shape == expected[0].shape, equation
                primitives.add(equation.primitive.name)
            values |= dict(zip(equation.outvars, expected, strict=True))

    compare(jaxpr, dict(zip(jaxpr.invars, (x, i), strict=True)))
    # JAX writes expand_dims as other primitives.
    assert primitives >= set(constant_folding.NUMPY_RULES) - {"expand_dims"}


@float64
def test_operations_without_an_unrolled_form_are_named() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6))
    for function, message in (
        (lambda x: jnp.sort(x), "the primitive sort"),
        (lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, x), "while"),
        (lambda x: jnp.linalg.qr(x.reshape(3, 2))[0], "QR"),
        (lambda x: jax.scipy.special.gammaln(x), "lgamma"),
        (lambda x: jnp.zeros((400, 400)) + x[0], "values to unroll"),
        (lambda x: x.at[jnp.argmax(x)].set(1.0), "may be out of bounds"),
        (lambda x: jax.lax.scan(lambda c, _: (c + x[0], None), 0.0, length=65)[0], "a loop of 65"),
    ):
        with pytest.raises(NotUnrollable, match=message):
            unrolled_values(function, [x], [])
