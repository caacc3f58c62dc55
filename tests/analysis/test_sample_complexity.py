"""Sample complexity compared with closed forms, the ODE of the library, and the exact chain."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis.sample_complexity import sample_complexity
from sgdynamics.expectations.nodes import gauss_hermite, gauss_legendre
from tests.conftest import Z, slow


def test_friction_against_a_product_rule():
    x, w = gauss_hermite(20)
    u, v, weight = x[:, None], x[None], w[:, None] * w
    for link, f, slope in (
        ("he2", lambda x: x**2 - 1, lambda x: 2 * x),
        ("he3", lambda x: x**3 - 3 * x, lambda x: 3 * x**2 - 3),
        (lambda x: x + x**3, lambda x: x + x**3, lambda x: 1 + 3 * x**2),
    ):
        expected = np.sum(weight * slope(u) ** 2 * ((f(v) - f(u)) ** 2 + 0.7)) / 2
        assert sample_complexity(link, noise=0.7).friction == pytest.approx(expected, rel=1e-10)
    expected = (1 / 4 - 1 / np.pi + 1 / 2 + 0.7 / 2) / 2
    assert sample_complexity("relu", noise=0.7).friction == pytest.approx(expected, rel=1e-10)


def test_linear_and_quadratic_links_in_closed_form():
    # For a linear link dm/dt = (1 - m)(1 + m - lr m): lr = 2 is best, with n/d = 1/2.
    linear = sample_complexity("linear")
    assert (linear.lr, linear.largest_lr) == (pytest.approx(2.0, abs=1e-6), pytest.approx(3.0))
    assert linear.prefactor == pytest.approx(0.5)
    assert sample_complexity("linear", lr=1.0).prefactor == pytest.approx(math.log(2))
    assert sample_complexity("linear", lr=3.1).prefactor == math.inf
    quadratic = sample_complexity("he2", noise=2.0)
    assert quadratic.signal == pytest.approx(4.0)
    assert quadratic.friction == pytest.approx(28.0)
    assert quadratic.lr == pytest.approx(1 / 14)
    assert quadratic.prefactor == pytest.approx(14 / 4)
    assert sample_complexity("he2", lr=0.2).prefactor == math.inf


def test_scalings():
    cubic = sample_complexity("he3")
    assert (cubic.samples, cubic.lr_power, cubic.generative_exponent) == ("d^2", 0.5, 1)
    assert cubic.prefactor is None
    assert (cubic.signal, cubic.largest_lr) == (pytest.approx(18.0), pytest.approx(18 / 1728))


def test_sentences():
    text = str(sample_complexity(lambda x: x**2 * np.exp(-(x**2))))
    assert "n ~ d^3 samples" in text
    assert "~ d^-1 (at a constant one m = 0 is stable)" in text
    assert "no efficient method needs fewer than d^2" in text
    text = str(sample_complexity("tanh", lr=0.5))
    assert "needs n ~ d samples, with a constant learning rate" in text
    assert "At lr = 0.5 SGD needs n = " in text
    assert "does not leave the start" in str(sample_complexity("square", lr=0.2))
    assert "jumps" in str(sample_complexity("sign"))
    assert "does not converge" in str(sample_complexity(lambda x: np.exp(x**2 / 5)))


@pytest.mark.parametrize("lr", [None, 0.3])
def test_a_link_that_jumps_has_no_prefactor(lr):
    step = sample_complexity("sign", lr=lr)
    assert step.prefactor is None
    assert math.isnan(step.friction)
    assert math.isnan(step.largest_lr)
    assert math.isnan(step.lr) if lr is None else step.lr == lr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overlap": 0.9}, "at most 0.75"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"noise": -1.0}, "noise = -1.0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        sample_complexity("relu", **arguments)


def single_unit(activation, noise=0.0):
    return sgd.TeacherStudent(width=1, activation=activation, constraint="sphere", noise=noise)


def library_drift(problem):
    """dm/dt of the library's ODE as a function of (m, lr), at many m."""
    quadrature = sgd.functional.quadrature(problem, sgd.start(problem, M=[[0.0]], Q=[[1.0]]))

    def drift(m, lr):
        state = {"M": m.reshape(1, 1, 1), "Q": jnp.ones((1, 1, 1)), "a": jnp.ones(1)}
        return sgd.functional.drift(
            problem.structure, problem.parameters, state, lr=lr, quadrature=quadrature
        )["M"][0, 0, 0]

    return jax.jit(jax.vmap(drift, in_axes=(0, None)))


@pytest.mark.parametrize("name", slow(["polynomial", "tanh"], slow_names={"tanh"}))
def test_samples_to_an_overlap_are_those_of_the_ode(name):
    link, lr, error = "tanh", 2.0, 3e-3
    if name == "polynomial":
        link, lr, error = sgd.polynomial([0.0, 1.0, 0.4]), 0.3, 1e-9
    node, weight = gauss_legendre(20)
    with jax.enable_x64(True):
        drift = np.asarray(library_drift(single_unit(link, 0.5))(0.5 * node, lr))
    prefactor = sample_complexity(link, lr=lr, noise=0.5).prefactor
    assert np.sum(0.5 * weight / drift) / lr == pytest.approx(prefactor, rel=error)


@pytest.mark.parametrize("name", slow(["he2", "he3"], slow_names={"he3"}))
def test_largest_learning_rate_and_escape_rate_are_those_of_the_ode(name):
    """Growth rates near m = 0 at multiples of largest_lr m^(kappa - 2).

    dm/dt = signal m^(kappa - 1) - lr friction m is positive below that rate, zero at it, and
    negative above.
    """
    m, power = 1e-6, {"he2": 0, "he3": 1}[name]
    complexity = sample_complexity(name, noise=0.3)
    with jax.enable_x64(True):
        drift = library_drift(single_unit(name, 0.3))
        rates = [
            drift(np.full(20, m), share * complexity.largest_lr * m**power)[0] / m ** (power + 1)
            for share in (0.5, 1.0, 1.5)
        ]
    expected = complexity.signal * np.array([0.5, 0.0, -0.5])
    np.testing.assert_allclose(rates, expected, atol=1e-4 * complexity.signal)
    if name == "he2":
        expected = 1 / (2 * complexity.lr * float(rates[0]))
        assert complexity.prefactor == pytest.approx(expected, rel=1e-6)


def exit_from(problem, lr, m0):
    start = sgd.start(problem, M=[[m0]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(lr=lr)
    return sgd.exit_time(problem, algorithm, start, criterion="overlap", threshold=0.5)


@pytest.mark.slow
def test_time_to_an_overlap_is_that_of_the_ode():
    link = sgd.polynomial([0.0, 1.0, 0.4])
    for lr, noise in ((0.3, 0.0), (0.1, 0.5)):
        prefactor = sample_complexity(link, lr=lr, noise=noise).prefactor
        exits = exit_from(single_unit(link, noise), lr, 0.0)
        assert exits.alpha[0] == pytest.approx(prefactor, rel=1e-6)


@pytest.mark.slow
def test_exit_times_of_the_ode_grow_by_the_prefactor_times_log_d():
    complexity = sample_complexity("he2", lr=0.05, noise=0.3)
    problem = single_unit("he2", noise=0.3)
    near, far = (exit_from(problem, 0.05, d**-0.5).alpha[0] for d in (1e8, 1e12))
    assert far - near == pytest.approx(complexity.prefactor * math.log(1e4), rel=1e-6)


@pytest.mark.slow
def test_exit_times_of_the_chain_have_the_same_rate():
    """Mean exit time at d = 1000: the ODE from m = 1/sqrt(d), less E log|x|/rate.

    The start and the steps both contribute to x = m sqrt(d), which follows
    dx = rate x dt + sqrt(2 lr friction) dB, so that x exp(-rate t) tends to a normal variable of
    variance 1 + lr friction/rate.
    """
    d, lr, runs = 1000, 0.08, 200
    complexity = sample_complexity("he2", lr=lr)
    rate = complexity.signal - lr * complexity.friction
    problem = single_unit("he2")
    start = sgd.random_start(problem, dimension=d, seed=3, runs=runs)
    chain = sgd.exit_time(
        problem,
        sgd.OnePassSGD(lr=lr),
        start,
        criterion="overlap",
        threshold=0.5,
        method="exact",
        dimension=d,
        seed=4,
    )
    variance = 1 + lr * complexity.friction / rate
    mean_log = -(np.euler_gamma + math.log(2)) / 2 + math.log(variance) / 2
    expected = exit_from(problem, lr, d**-0.5).times[0] - mean_log / rate
    assert chain.left == runs
    assert abs(chain.mean - expected) < Z * chain.standard_error
    assert chain.standard_error < 0.1 * expected
