"""The noise term: reference values of I4, quadrature, and brute-force Wick moments."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.expectations.closed_forms import closed_noise_term
from sgdynamics.expectations.closed_forms.erf import erf_four_point
from sgdynamics.expectations.closed_forms.polynomial import polynomial_noise
from sgdynamics.expectations.closed_forms.relu import orthant_probability, relu_four_point
from sgdynamics.expectations.nodes import gauss_hermite_grid
from sgdynamics.problems.activations import NAMED, Activation, polynomial
from tests.conftest import C4, slow

INDEX = np.array([[0, 1, 2, 3]])
# fields c of each field b: offsets 0, 1, 2
PARTNERS = (np.arange(4)[:, None] + np.arange(3)) % 4
OMEGA = C4
COEFFICIENTS = np.array([-0.3, 0.2, 0.5, 0.7])


def noise(student, teacher, omega=OMEGA, c=COEFFICIENTS, p=2):
    with jax.enable_x64(True):
        term = closed_noise_term(student, teacher)
        assert term is not None
        return np.asarray(jax.jit(term, static_argnums=2)(omega, c, p))


def brute_wick(powers, covariance):
    """E[prod x_i^powers_i] by summing over all pairings (Isserlis)."""
    letters = [i for i, power in enumerate(powers) for _ in range(power)]

    def pairings(indices):
        if not indices:
            return 1.0
        first, *others = indices
        return sum(
            covariance[first, others[j]] * pairings(others[:j] + others[j + 1 :])
            for j in range(len(others))
        )

    return 0.0 if len(letters) % 2 else pairings(letters)


def polynomial_by_wick(student, teacher, omega, c, p):
    ds = np.polynomial.polynomial.polyder(student.coefficients)
    fields = len(omega)
    result = np.zeros((p, p))
    for i, j in itertools.product(range(p), repeat=2):
        for b, e in itertools.product(range(fields), repeat=2):
            gb = student.coefficients if b < p else teacher.coefficients
            ge = student.coefficients if e < p else teacher.coefficients
            for (n1, a1), (n2, a2), (n3, a3), (n4, a4) in itertools.product(
                *(enumerate(v) for v in (ds, ds, gb, ge))
            ):
                if a1 * a2 * a3 * a4 != 0:
                    cov = omega[np.ix_([i, j, b, e], [i, j, b, e])]
                    result[i, j] += (
                        c[b] * c[e] * a1 * a2 * a3 * a4 * brute_wick((n1, n2, n3, n4), cov)
                    )
    return result


def test_reference_values_of_I4():
    with jax.enable_x64(True):
        erf, orthant, relu = jax.jit(
            lambda omega: (
                erf_four_point(1.0, 4, omega, 0, 1, PARTNERS)[2, 1],
                orthant_probability(omega[None])[0],
                relu_four_point(omega, INDEX, 2)[0],
            )
        )(C4)
    assert float(erf) == pytest.approx(0.03029347934927, rel=1e-12)
    assert float(orthant) == pytest.approx(0.12796888903593, rel=1e-12)
    assert float(relu) == pytest.approx(0.12730613413384, rel=1e-12)


@pytest.mark.parametrize(("name", "expected"), [("square", 2.87), ("he3", 4.514535)])
def test_reference_values_of_polynomials(name, expected):
    # E[g1' g2' g3 g4] out of a quadratic form in c
    @jax.jit
    def N(c):
        return polynomial_noise(NAMED[name], NAMED[name], jnp.asarray(C4), c, 4)[0, 1]

    with jax.enable_x64(True):
        e = np.eye(4)
        assert float(N(e[2] + e[3]) - N(e[2]) - N(e[3])) / 2 == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "expected", "digits"), [("tanh", 0.039563, 2e-5), ("gelu", 0.098782490743, 1e-9)]
)
def test_reference_values_by_quadrature(name, expected, digits):
    grid, weights = gauss_hermite_grid(30, 4)
    lam = grid @ np.linalg.cholesky(C4).T
    with jax.enable_x64(True):
        f, d = NAMED[name].derivative(0), NAMED[name].derivative(1)
        value = np.sum(
            weights * np.asarray(d(lam[:, 0]) * d(lam[:, 1]) * f(lam[:, 2]) * f(lam[:, 3]))
        )
    assert value == pytest.approx(expected, rel=digits)


@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        (NAMED["square"], NAMED["square"]),
        (NAMED["he2"], NAMED["linear"]),
        (NAMED["he3"], NAMED["square"]),
        (polynomial([0.2, -1.0, 0.5]), polynomial([0.1, 0.3, 0.0, 0.2])),
    ],
)
def test_polynomials_against_brute_force_wick(student, teacher):
    expected = polynomial_by_wick(student, teacher, OMEGA, COEFFICIENTS, 2)
    np.testing.assert_allclose(noise(student, teacher), expected, rtol=1e-12)


@pytest.mark.slow
def test_square_matrix_form_against_the_polynomial_path():
    with jax.enable_x64(True):
        args = (NAMED["square"], NAMED["square"], jnp.asarray(OMEGA), jnp.asarray(COEFFICIENTS), 2)
        generic = np.asarray(polynomial_noise(*args))
    np.testing.assert_allclose(noise(NAMED["square"], NAMED["square"]), generic, rtol=1e-13)


def quadrature_noise(student, teacher, p=2, panels=48):
    """E[s'_i s'_j E0^2] by Gauss-Hermite in four dimensions (smooth functions only)."""
    grid, weights = gauss_hermite_grid(panels, 4)
    lam = grid @ np.linalg.cholesky(OMEGA).T
    with jax.enable_x64(True):
        s, d, t = student.derivative(0), student.derivative(1), teacher.derivative(0)
        residual = (
            np.asarray(s(lam[:, :p])) @ COEFFICIENTS[:p]
            + np.asarray(t(lam[:, p:])) @ COEFFICIENTS[p:]
        )
        slope = np.asarray(d(lam[:, :p]))
    return np.einsum("n,ni,nj->ij", weights * residual**2, slope, slope)


def test_erf_against_quadrature():
    np.testing.assert_allclose(
        noise(NAMED["erf"], NAMED["erf"]),
        quadrature_noise(NAMED["erf"], NAMED["erf"], panels=30),
        rtol=1e-6,
    )


@pytest.mark.parametrize(("student", "teacher"), [("relu", "relu"), ("erf", "sign")])
def test_kinked_against_monte_carlo(student, teacher):
    generator = np.random.default_rng(5)
    noise_matrix = noise(NAMED[student], NAMED[teacher])
    lam = generator.multivariate_normal(np.zeros(4), OMEGA, 1_000_000)
    with jax.enable_x64(True):
        s, d, t = (
            NAMED[student].derivative(0),
            NAMED[student].derivative(1),
            NAMED[teacher].derivative(0),
        )
        residual = (
            np.asarray(s(lam[:, :2])) @ COEFFICIENTS[:2]
            + np.asarray(t(lam[:, 2:])) @ COEFFICIENTS[2:]
        )
        slope = np.asarray(d(lam[:, :2]))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        samples = residual**2 * slope[:, i] * slope[:, j]
        assert (
            abs(samples.mean() - noise_matrix[i, j]) < 4.9 * samples.std() / 1e3
        )  # false alarm 1e-6


@pytest.mark.slow
def test_orthants_against_scipy():
    from scipy.stats import multivariate_normal

    generator = np.random.default_rng(1)
    with jax.enable_x64(True):
        for size in (1, 2, 3, 4):
            A = generator.normal(size=(size, size + 2))
            C = A @ A.T
            expected = multivariate_normal(np.zeros(size), C).cdf(
                np.zeros(size), rng=np.random.default_rng(0)
            )
            assert float(orthant_probability(jnp.asarray(C)[None])[0]) == pytest.approx(
                expected, rel=2e-4
            )


@pytest.mark.slow
def test_relu_survives_coinciding_fields():
    # a student on top of its teacher, and two equal students: the limit of nearly equal ones
    def omega(gap):
        rows = np.array([[1.0, 0.0, 0.0], [1.0, gap, 0.0], [0.2, 0.9, 0.3]])
        return np.block(
            [[rows @ rows.T, rows @ rows[:1].T], [rows[:1] @ rows.T, np.array([[1.0]])]]
        )

    c = np.array([-0.3, -0.3, -0.4, 1.0])
    exact = noise(NAMED["relu"], NAMED["relu"], omega(0.0), c, 3)
    assert exact[0, 1] == pytest.approx(exact[0, 0], rel=1e-10)
    near = noise(NAMED["relu"], NAMED["relu"], omega(1e-4), c, 3)
    assert np.all(np.isfinite(exact))
    np.testing.assert_allclose(exact, near, atol=2e-4)


@pytest.mark.parametrize("name", slow(["erf", "relu", "square", "he3"], ("relu",)))
def test_scaling_derivative(name):
    # the derivative along Omega, which finite d needs, against central differences
    term = closed_noise_term(NAMED[name], NAMED[name])
    assert term is not None
    with jax.enable_x64(True):
        c = jnp.asarray(COEFFICIENTS)
        derivative = jax.jit(
            lambda omega: jax.jvp(lambda omega: term(omega, c, 2), (omega,), (omega,))
        )
        slope, step = derivative(OMEGA)[1], 1e-5
        difference = (derivative(OMEGA * (1 + step))[0] - derivative(OMEGA * (1 - step))[0]) / (
            2 * step
        )
        np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_no_closed_form_is_said():
    assert closed_noise_term(NAMED["tanh"], NAMED["tanh"]) is None
    assert closed_noise_term(NAMED["erf"], NAMED["tanh"]) is None
    assert closed_noise_term(Activation(jnp.tanh), NAMED["erf"]) is None
