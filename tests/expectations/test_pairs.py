"""Pair expectations: reference values, and closed forms, series and quadrature compared."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import hermite_e
from scipy import integrate

from sgdynamics.expectations import mehler, pairs
from sgdynamics.expectations.closed_forms.erf import arcsine_kernel
from sgdynamics.problems.activations import NAMED, Activation, polynomial
from tests.conftest import C4


@partial(jax.jit, static_argnums=(0, 1, 5, 6, 7))
def _moments(first, second, q1, q2, c, terms, using, nodes):
    values = pairs.moments(
        first,
        second,
        q1.reshape(1),
        q2.reshape(1),
        c.reshape(1, 1),
        terms,
        using=using,
        nodes=nodes,
    )
    return jnp.stack([value[0, 0] for value in values])


def three(first, second, q1, q2, c, *, terms=128, using=None, nodes=None):
    """K, A, B of one pair."""
    with jax.enable_x64(True):
        return np.asarray(
            _moments(
                first, second, *(np.float64(value) for value in (q1, q2, c)), terms, using, nodes
            )
        )


def integrals(name, **options):
    """I2 = E[g1 g2], J2 = E[g1' g2'], I3 = E[g1' u2 g3] on the leading blocks of C4."""
    activation = NAMED[name]
    K, _, B = three(activation, activation, C4[0, 0], C4[1, 1], C4[0, 1], **options)
    _, A13, B13 = three(activation, activation, C4[0, 0], C4[2, 2], C4[0, 2], **options)
    return np.array([K, B, C4[0, 1] * A13 + C4[1, 2] * B13])


REFERENCE = {
    "erf": (0.09136225701121, 0.30664895419123, 0.12147528441655),
    "relu": (0.25592527510422, 0.29415045919035, 0.15780084823309),
    "square": (1.38, 4 * 0.3, 0.86),
    "he3": (0.162, None, 0.18),
    "tanh": (0.104524521721, None, 0.138815293657),
    "gelu": (0.17353323728461, None, 0.14715409725454),
}


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_values(name):
    for value, expected in zip(integrals(name), REFERENCE[name], strict=True):
        if expected is not None:
            assert value == pytest.approx(expected, rel=2e-12)


def test_polynomials_by_wick_are_their_mehler_series():
    """The closed path against the series, for two polynomials of different degree."""
    he5, cubic = NAMED["he5"], polynomial([0.3, -1.0, 0.5, 0.2])
    assert pairs.method(he5, cubic) == "closed"
    np.testing.assert_allclose(
        three(he5, cubic, 0.9, 1.3, -0.4),
        three(he5, cubic, 0.9, 1.3, -0.4, using="mehler"),
        rtol=1e-11,
    )
    np.testing.assert_allclose(
        three(cubic, he5, 0.9, 1.3, -0.4),
        three(cubic, he5, 0.9, 1.3, -0.4, using="mehler"),
        rtol=1e-11,
    )


@pytest.mark.parametrize(
    "name", ["erf", "linear", "square", "he2", "he5", "tanh", "gelu", "softplus", "sigmoid", "silu"]
)
def test_series_and_polar_agree(name):
    # the polar rule knows nothing of Hermite polynomials, the series nothing of polar coordinates
    scale = np.abs(integrals(name, using="polar", nodes=40)).max()
    np.testing.assert_allclose(
        integrals(name, using="mehler"),
        integrals(name, using="polar", nodes=40),
        atol=3e-12 * scale,
    )


@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_sigmoid_and_silu_against_quadrature(name):
    """E[g(u) g(v)] and E[g'(u) g'(v)] by Gauss-Hermite nodes, with g written out in NumPy."""
    nodes, weights = hermite_e.hermegauss(90)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    q1, q2, c = 1.3, 0.8, 0.5
    u = np.sqrt(q1) * nodes[:, None]
    v = c / np.sqrt(q1) * nodes[:, None] + np.sqrt(q2 - c**2 / q1) * nodes[None, :]

    def activation(x):
        return 1 / (1 + np.exp(-x)) if name == "sigmoid" else x / (1 + np.exp(-x))

    def slope(x):
        s = 1 / (1 + np.exp(-x))
        return s * (1 - s) if name == "sigmoid" else s + x * s * (1 - s)

    expected = [np.sum(weights * function(u) * function(v)) for function in (activation, slope)]
    K, _, B = three(NAMED[name], NAMED[name], q1, q2, c)
    np.testing.assert_allclose([K, B], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("first", "second"), [("erf", "erf"), ("erf", "sign"), ("relu", "relu")], ids=lambda name: name
)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(q1=st.floats(0.1, 4), q2=st.floats(0.1, 4), rho=st.floats(-0.9999, 0.9999))
def test_closed_forms_against_generic(first, second, q1, q2, rho):
    c = rho * np.sqrt(q1 * q2)
    f, g = NAMED[first], NAMED[second]
    np.testing.assert_allclose(
        three(f, g, q1, q2, c),
        three(f, g, q1, q2, c, using="polar", nodes=40),
        rtol=1e-9,
        atol=1e-12,
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    q1=st.floats(0.1, 3),
    q2=st.floats(0.1, 3),
    rho=st.floats(-1, 1),
    m=st.integers(1, 6),
    n=st.integers(1, 6),
)
def test_hermite_against_the_printed_sum(q1, q2, rho, m, n):
    from math import factorial as f

    c = rho * np.sqrt(q1 * q2)
    expected = sum(
        f(m)
        * f(n)
        / (f(j) * f((m - j) // 2) * f((n - j) // 2))
        * c**j
        * ((q1 - 1) / 2) ** ((m - j) // 2)
        * ((q2 - 1) / 2) ** ((n - j) // 2)
        for j in range(min(m, n) + 1)
        if (m - j) % 2 == 0 and (n - j) % 2 == 0
    )
    first, second = (polynomial(hermite_e.herme2poly([0] * order + [1])) for order in (m, n))
    assert three(first, second, q1, q2, c)[0] == pytest.approx(expected, rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("rho", [0.3, 0.999, -0.95])
def test_kinks_away_from_zero(rho):
    # hard tanh has kinks at -1 and 1; scipy integrates the nine smooth pieces
    hard = Activation(lambda x: jnp.clip(x, -1, 1), kinks=(-1.0, 1.0))
    q1, q2 = 1.0, 1.3
    c = rho * np.sqrt(q1 * q2)
    spread = np.sqrt(q2 - c**2 / q1)

    def inner(u, g, marks):
        edges = np.clip([-9.0, *[(mark - c / q1 * u) / spread for mark in marks], 9.0], -9, 9)
        return sum(
            integrate.quad(
                lambda x: g(c / q1 * u + spread * x) * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
                low,
                high,
                epsabs=1e-12,
            )[0]
            for low, high in itertools.pairwise(edges)
            if high > low
        )

    def outer(f, g):
        def weight(u):
            return np.exp(-u * u / 2 / q1) / np.sqrt(2 * np.pi * q1)

        points = sorted(
            {
                -9.0,
                -1.0,
                1.0,
                9.0,
                *(
                    x
                    for mark in (-1, 1)
                    for x in ((mark + s * 5 * spread) * q1 / c for s in (-1, 0, 1))
                    if abs(x) < 9
                ),
            }
        )
        return sum(
            integrate.quad(
                lambda u: f(u) * inner(u, g, (-1, 1)) * weight(u), low, high, epsabs=1e-10
            )[0]
            for low, high in itertools.pairwise(points)
        )

    K, A, B = three(hard, hard, q1, q2, c)
    assert outer(lambda u: np.clip(u, -1, 1), lambda v: np.clip(v, -1, 1)) == pytest.approx(
        K, rel=1e-7
    )
    assert outer(lambda u: float(abs(u) < 1), lambda v: float(abs(v) < 1)) == pytest.approx(
        B, rel=1e-6
    )
    # f'' is two point masses: -delta(u - 1) + delta(u + 1)
    mass = np.exp(-1 / 2 / q1) / np.sqrt(2 * np.pi * q1)
    expected = mass * (
        inner(-1.0, lambda v: np.clip(v, -1, 1), (-1, 1))
        - inner(1.0, lambda v: np.clip(v, -1, 1), (-1, 1))
    )
    assert pytest.approx(expected, rel=1e-9) == A


def test_price_theorem_holds_for_every_activation():
    # A = 2 dK/dq1 and B = dK/dc, by central differences: K and (A, B) are computed apart
    for name, activation in NAMED.items():
        if name == "sign":
            continue
        q1, q2, c, step = 1.1, 0.9, 0.35, 1e-5
        _, A, B = three(activation, activation, q1, q2, c)
        slope_q = (
            three(activation, activation, q1 + step, q2, c)[0]
            - three(activation, activation, q1 - step, q2, c)[0]
        ) / step
        slope_c = (
            three(activation, activation, q1, q2, c + step)[0]
            - three(activation, activation, q1, q2, c - step)[0]
        ) / (2 * step)
        assert pytest.approx(slope_q, rel=1e-6, abs=1e-7) == A, name
        assert pytest.approx(slope_c, rel=1e-6, abs=1e-7) == B, name


@pytest.mark.slow
def test_series_knows_when_it_is_too_short():
    with jax.enable_x64(True):
        q = jnp.array([4.0])
        tanh, softened_relu = (
            NAMED["tanh"],
            Activation(NAMED["relu"].f),
        )  # a kink that nobody declared
        error = jax.jit(mehler.error, static_argnums=(0, 1, 4))
        few, many = (float(error(tanh, tanh, q, q, terms)) for terms in (32, 512))
        assert few > 1e-6
        assert many < 1e-9
        exact = three(tanh, tanh, 4.0, 4.0, 2.0, using="polar", nodes=48)
        worst = np.abs(three(tanh, tanh, 4.0, 4.0, 2.0, terms=32) / exact - 1).max()
        assert worst < 10 * few
        assert float(error(softened_relu, softened_relu, q, q, 512)) > 1e-4


def test_singular_pairs_are_finite():
    # a unit with itself, a unit on top of its teacher, opposite units
    with jax.enable_x64(True):
        for name, activation in NAMED.items():
            if name == "sign":
                continue
            for c in (1.0, -1.0):
                assert np.all(np.isfinite(three(activation, activation, 1.0, 1.0, c))), (name, c)
        assert (
            float(
                arcsine_kernel(0.0, 0.0, jnp.array([1.0]), jnp.array([1.0]), jnp.array([[1.0]]))[
                    0, 0
                ]
            )
            == 1.0
        )


def test_hermite_coefficients():
    with jax.enable_x64(True):
        unit_variance = jnp.ones(1)
        tanh = np.asarray(mehler.coefficients(NAMED["tanh"].derivative(0), unit_variance, 32))[0]
        erf = np.asarray(mehler.coefficients(NAMED["erf"].derivative(0), unit_variance, 32))[0]
    np.testing.assert_allclose(tanh[[1, 3]], [0.605705509602, -0.148437190787], rtol=1e-11)
    assert erf[1] == pytest.approx(0.564189583548, rel=1e-11)
    np.testing.assert_allclose(tanh[::2], 0, atol=1e-14)


def test_an_expectation_that_parity_makes_zero_is_no_error():
    """E[f'' sign] of a parabola is zero: two resolutions of it differ by all of its rounding."""
    with jax.enable_x64(True):
        q, c = jnp.ones(2), jnp.array([[0.3], [-0.6]])
        exact = float(pairs.error(polynomial([0, 1, 0.5]), NAMED["sign"], q, jnp.ones(1), c, 32))
        coarse = float(
            pairs.error(Activation(lambda x: jnp.sin(8 * x)), NAMED["sign"], q, jnp.ones(1), c, 32)
        )
    assert exact < 1e-3
    assert coarse > 1e-2
