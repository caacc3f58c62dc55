"""Hermite coefficients against closed forms and mpmath, exponents of many links, leaps against all orders, samples against ODE, chain."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

import sgdynamics as sgd
from sgdynamics.analysis import exponents
from sgdynamics.analysis.exponents import (
    generative_exponent,
    hermite_coefficients,
    hermite_series,
    information_exponent,
    leap_complexity,
)
from sgdynamics.analysis.sample_complexity import sample_complexity
from sgdynamics.expectations.nodes import gauss_hermite, gauss_legendre
from tests.conftest import Z, slow

N = 14
K = np.arange(N + 1)
ROOT = np.sqrt(special.factorial(K))
SHIFT = 0.37
EDGE = math.sqrt(2 * math.log(2))  # where the normal density is half of its maximum
FAR = optimize.brentq(
    lambda b: b * math.exp(-(b**2) / 2) - 0.5 * math.exp(-1 / 8), 1.0, 3.0
)  # b phi(b) = phi(1/2)/2


def he(k, x):
    """He_k(x); He_-1 stands for the antiderivative that is missing, and is not used."""
    return special.eval_hermitenorm(k, x) if k >= 0 else 0.0


def above(edge):
    """Coefficients of 1{x > edge}: phi(edge) He_{k-1}(edge)/sqrt(k!)."""
    return (
        np.array([stats.norm.sf(edge)] + [stats.norm.pdf(edge) * he(k - 1, edge) for k in K[1:]])
        / ROOT
    )


def bump(a, b):
    """Coefficients of x^(2b) exp(a x^2), b = 0, 1; q = 1/(1 - 2a), sqrt(q) (q - 1)^j sqrt((2j)!)/(2^j j!) at k = 2j, and d/da of it."""
    q = 1 / (1 - 2 * a)
    found = np.zeros(N + 1)
    for j in range(N // 2 + 1):
        value = math.sqrt(q) * (q - 1) ** j
        slope = 2 * q**2 * (value / (2 * q) + (math.sqrt(q) * j * (q - 1) ** (j - 1) if j else 0.0))
        found[2 * j] = (
            (slope if b else value) * math.sqrt(math.factorial(2 * j)) / (2**j * math.factorial(j))
        )
    return found


def relu_exact():
    rest = [stats.norm.pdf(0) * he(k - 2, 0.0) for k in K[2:]]
    return np.array([stats.norm.pdf(0), 0.5, *rest]) / ROOT


def wave(k):
    return math.exp(-0.5) * (0, 1, 0, -1)[k % 4]


CLOSED = {
    "relu": ("relu", (), relu_exact()),
    "sign": ("sign", (), 2 * above(0.0) - (K == 0)),
    "a step": (lambda x: x > SHIFT, SHIFT, above(SHIFT)),
    "abs, shifted": (
        lambda x: np.abs(x - SHIFT),
        [SHIFT],
        np.array(
            [
                2 * stats.norm.pdf(SHIFT) - SHIFT * (1 - 2 * stats.norm.cdf(SHIFT)),
                1 - 2 * stats.norm.cdf(SHIFT),
                *[2 * stats.norm.pdf(SHIFT) * he(k - 2, SHIFT) for k in K[2:]],
            ]
        )
        / ROOT,
    ),
    "sin": (np.sin, (), np.array([wave(k) for k in K]) / ROOT),
    "one number at a time": (math.sin, (), np.array([wave(k) for k in K]) / ROOT),
    "a Python branch": (lambda x: max(x, 0.0), 0, relu_exact()),
    "exp": (jnp.exp, (), math.exp(0.5) / ROOT),
    "x^2 exp(-x^2)": (lambda x: x**2 * np.exp(-(x**2)), (), bump(-1.0, 1)),
    "exp(x^2/5)": (lambda x: np.exp(x**2 / 5), (), bump(0.2, 0)),
    "he5": ("he5", (), math.sqrt(120) * (K == 5)),
    "a polynomial": (
        sgd.polynomial([1.0, 0.0, 3.0]),
        (),
        4.0 * (K == 0) + 3 * math.sqrt(2) * (K == 2),
    ),
    "overflows far out": (
        lambda x: np.log1p(np.exp(x**2)) - np.log1p(np.exp(-(x**2))),
        (),
        (K == 0) + math.sqrt(2) * (K == 2),
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_coefficients_against_closed_forms(name):
    f, kinks, expected = CLOSED[name]
    series = hermite_series(f, N, kinks=kinks)
    np.testing.assert_allclose(series.coefficients, expected, atol=1e-12 * series.norm)
    np.testing.assert_array_less(np.abs(series.coefficients - expected), 20 * series.errors + 1e-15)
    assert series.errors.max() < 1e-12 * series.norm


def test_coefficients_against_mpmath_and_the_reference_values():
    mpmath.mp.dps = 25
    found = hermite_coefficients("tanh", 9)
    for k in (1, 3, 9):
        exact = mpmath.quad(
            lambda x, k=k: mpmath.tanh(x) * mpmath.hermite(k, x / mpmath.sqrt(2)) * mpmath.npdf(x),
            [0, 2, 6, 14],
        )
        assert found[k] == pytest.approx(
            float(2 * exact / mpmath.sqrt(mpmath.factorial(k) * mpmath.mpf(2) ** k)), abs=1e-12
        )
    np.testing.assert_allclose(found[[1, 3]], [0.605705509602, -0.148437190787], atol=1e-12)
    np.testing.assert_allclose(
        hermite_coefficients("relu", 4),
        [0.398942280401, 0.5, 0.282094791774, 0, -0.081433751984],
        atol=1e-12,
    )
    np.testing.assert_allclose(hermite_coefficients("erf", 2), [0, 0.564189583548, 0], atol=1e-12)


def test_high_orders_and_their_sum_of_squares():
    series = hermite_series(lambda x: x > SHIFT, 300, kinks=SHIFT)
    h = [1.0, SHIFT]
    for k in range(2, 300):
        h.append((SHIFT * h[-1] - math.sqrt(k - 1) * h[-2]) / math.sqrt(k))
    np.testing.assert_allclose(
        series.coefficients[1:],
        stats.norm.pdf(SHIFT) * np.array(h) / np.sqrt(np.arange(1, 301)),
        atol=1e-12,
    )
    assert series.norm**2 == pytest.approx(stats.norm.sf(SHIFT), abs=1e-12)
    assert np.sum(hermite_coefficients("gelu", 120) ** 2) == pytest.approx(
        hermite_series("gelu", 0).norm ** 2, rel=1e-12
    )


def ring(x):
    """Two values; E[f h_2] = 0 by the choice of FAR."""
    return (np.abs(x) > 0.5) & (np.abs(x) < FAR)


def flipped(x):
    """Two values, odd; E[f h_1] = 0 by the choice of EDGE."""
    return np.sign(x) * np.sign(EDGE - np.abs(x))


STEP_SLOPE = stats.norm.pdf(SHIFT)
EXPONENTS = {
    "linear": ("linear", (), 1, 1),
    "relu": ("relu", (), 1, 1),
    "tanh": ("tanh", (), 1, 1),
    "erf": ("erf", (), 1, 1),
    "square": ("square", (), 2, 2),
    "abs": ("abs", (), 2, 2),
    "sign": ("sign", (), 1, 1),
    "he3": ("he3", (), 3, 1),
    "he4": ("he4", (), 4, 2),
    "he5": ("he5", (), 5, 1),
    "he6": ("he6", (), 6, 2),
    "he3, shifted": (lambda x: (x + 0.1) ** 3 - 3 * (x + 0.1), (), 1, 1),
    "he3 and a little x": (lambda x: x**3 - 3 * x + 1e-5 * x, (), 1, 1),
    "he3 and too little x": (lambda x: x**3 - 3 * x + 1e-8 * x, (), 3, 1),
    "he4 and a little he3": (lambda x: x**4 - 6 * x**2 + 1e-4 * (x**3 - 3 * x), (), 3, 1),
    "far from 0": (lambda x: 1e6 + x**2, (), 2, 2),
    "sin x - x exp(-1/2)": (lambda x: np.sin(x) - math.exp(-0.5) * x, (), 3, 1),
    "cos x + x^2 exp(-1/2)/2": (lambda x: np.cos(x) + math.exp(-0.5) / 2 * x**2, (), 4, 2),
    "x^2 exp(-x^2)": (lambda x: x**2 * np.exp(-(x**2)), (), 4, 4),
    "a step less its slope": (lambda x: (x > SHIFT) - STEP_SLOPE * x, SHIFT, 2, 1),
    "a ring": (ring, (-FAR, -0.5, 0.5, FAR), 4, 4),
    "a flipped sign": (flipped, (-EDGE, 0.0, EDGE), 3, 3),
    "in float32": (lambda x: np.asarray(x, dtype=np.float32) ** 2, (), 2, 2),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_exponents(name):
    f, kinks, information, generative = EXPONENTS[name]
    assert (information_exponent(f, kinks=kinks), generative_exponent(f, kinks=kinks)) == (
        information,
        generative,
    )


def test_tolerance_is_the_callers():
    def f(x):
        return x**3 - 3 * x + 1e-8 * x

    assert information_exponent(f, tolerance=1e-10) == 1


@pytest.mark.parametrize(
    "transform", [np.square, np.exp, lambda y: np.tanh(20 * y - 3), lambda y: 1 / (0.05 + y)]
)
def test_no_transformation_shows_the_link_of_exponent_four_earlier(transform):
    """E[h_2 | x^2 exp(-x^2)] = 0, checked on transformations that the search does not use."""
    series = hermite_series(lambda x: transform(x**2 * np.exp(-(x**2))), 4)
    np.testing.assert_allclose(series.coefficients[1:4], 0.0, atol=1e-11 * series.norm)
    assert abs(series.coefficients[4]) > 1e-3 * series.norm


@pytest.mark.parametrize(
    ("f", "kinks", "says"),
    [
        (lambda x: 3.0 + 0 * x, (), "constant"),
        (lambda x: np.exp(x**2 / 4), (), "not square-integrable"),
        (lambda x: math.exp(x * x), (), "not square-integrable"),
        (lambda x: 1 / x, (), "does not converge"),
        (np.sqrt, (), "not finite at x = -"),
        (lambda x: np.sin(50 * x), (), "above 40, or f too fast"),
        (lambda x: (x > SHIFT) - STEP_SLOPE * x, (), "cannot be told: .* declare in kinks="),
        (lambda x: 1j * x, (), "one real number"),
        (lambda x: [x, x], (), "one real number"),
        (lambda x: x["a"], (), "calling it on one point failed"),
        ("rleu", (), "did you mean 'relu'"),
        (3.0, (), "f = 3.0"),
        ("relu", (math.nan,), "kinks = .*nan.*finite numbers"),
    ],
)
def test_links_that_are_refused(f, kinks, says):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=says):
        information_exponent(f, kinks=kinks)


def test_other_arguments_that_are_refused():
    for n, says in ((-1, "n = -1"), (301, "at most that")):
        with pytest.raises(ValueError, match=says):
            hermite_coefficients("relu", n)
    with pytest.raises(ValueError, match="tolerance = 0"):
        generative_exponent("relu", tolerance=0.0)
    with pytest.warns(UserWarning, match="off by up to about"):
        hermite_coefficients(lambda x: x > SHIFT, 3)
    for given, says in (
        ({"overlap": 0.9}, "at most 0.75"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"noise": -1.0}, "noise = -1.0"),
    ):
        with pytest.raises(ValueError, match=says):
            sample_complexity("relu", **given)


# ---- leap

LEAPS = {
    "a staircase": (lambda z: z[0] + z[0] * z[1] + z[0] * z[1] * z[2], 3, (), 1),
    "a product": (jnp.prod, 3, (), 3),
    "a gap": (lambda z: z[0] + z[0] * z[1] * z[2], 3, (), 2),
    "in one basis": (lambda z: z[0] + z[1] + z[0] * z[1], 2, (), 1),
    "and in another": (lambda z: math.sqrt(2) * z[0] + (z[0] ** 2 - z[1] ** 2) / 2, 2, (), 2),
    "high degrees in what is known": (lambda z: z[0] + he(14, z[0]) / 3e5 * z[1], 2, (), 1),
    "not a polynomial": (lambda z: np.tanh(z[0]) * np.tanh(z[1]), 2, (), 2),
    "not all variables": (lambda z: z[1] ** 2 + 0 * z[0], 3, (), 2),
    "signs": (lambda z: np.sign(z[0] * z[1] * z[2]), 3, 0.0, 3),
    "a Python branch": (lambda z: max(z[0], 0.0) * z[1], 2, (0.0, 50.0), 1),
}


@pytest.mark.parametrize("name", LEAPS)
def test_leaps(name, monkeypatch):
    monkeypatch.setattr(exponents, "MOST_NODES", 40)
    g, variables, kinks, leap = LEAPS[name]
    assert leap_complexity(g, variables, kinks=kinks) == leap


def test_leaps_against_all_orders(monkeypatch):
    """The definition, over all orders of up to four random monomials."""
    monkeypatch.setattr(exponents, "MOST_NODES", 12)
    rng = np.random.default_rng(7)
    met = set()
    for _ in range(40):
        alphas = np.unique(
            rng.integers(0, 4, size=(rng.integers(1, 5), 3)) * rng.integers(0, 2, size=3), axis=0
        )
        alphas = alphas[alphas.sum(axis=1) > 0]
        if not len(alphas):
            continue
        best = math.inf
        for order in itertools.permutations(alphas):
            seen = np.cumsum(order, axis=0) - order  # before each
            best = min(
                best,
                max(
                    int(alpha[before == 0].sum()) for alpha, before in zip(order, seen, strict=True)
                ),
            )

        def g(z, alphas=alphas):
            return sum(
                (i + 1) * np.prod([he(int(k), z[j]) for j, k in enumerate(alpha)], axis=0)
                for i, alpha in enumerate(alphas)
            )

        assert leap_complexity(g, 3) == best, alphas.tolist()
        met.add(best)
    assert len(met) >= 5


def test_leap_of_one_variable_is_the_information_exponent():
    for name in ("x^2 exp(-x^2)", "sin x - x exp(-1/2)", "a flipped sign"):
        f, kinks, information, _ = EXPONENTS[name]
        assert leap_complexity(lambda z, f=f: f(z[0]), 1, kinks=kinks) == information


@pytest.mark.parametrize(
    ("g", "variables", "says"),
    [
        (lambda z: z[0], 8, "k = 8 is beyond the quadrature's reach"),
        (lambda z: 2.0 + 0 * z[0], 2, "constant"),
        (
            lambda z: np.sign(z[0] * z[1] * z[2]),
            3,
            "cannot be told: the part of degrees .* declare in kinks=",
        ),
        (lambda z: np.cos(20 * z[0]), 2, "cannot be told"),
        (lambda z: np.sqrt(z[0]), 2, "not finite"),
        (lambda z: z, 2, "one real number"),
        ("relu", 2, "give a function"),
        (lambda z: z[0], 0, "variables = 0"),
    ],
)
def test_targets_whose_leap_is_refused(g, variables, says):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=says):
        leap_complexity(g, variables)


# ---- samples


def test_friction_against_a_product_rule():
    x, w = gauss_hermite(20)
    u, v, weight = x[:, None], x[None], w[:, None] * w
    for name, f, slope in (
        ("he2", lambda x: x**2 - 1, lambda x: 2 * x),
        ("he3", lambda x: x**3 - 3 * x, lambda x: 3 * x**2 - 3),
        (lambda x: x + x**3, lambda x: x + x**3, lambda x: 1 + 3 * x**2),
    ):
        found = sample_complexity(name, noise=0.7)
        assert found.friction == pytest.approx(
            np.sum(weight * slope(u) ** 2 * ((f(v) - f(u)) ** 2 + 0.7)) / 2, rel=1e-10
        )
    found = sample_complexity("relu", noise=0.7)
    assert found.friction == pytest.approx((1 / 4 - 1 / np.pi + 1 / 2 + 0.7 / 2) / 2, rel=1e-10)


def test_linear_and_quadratic_links_in_closed_form():
    # linear: dm/dt = (1 - m)(1 + m - lr m); lr = 2 is best, n/d = 1/2
    found = sample_complexity("linear")
    assert (found.lr, found.largest_lr) == (pytest.approx(2.0, abs=1e-6), pytest.approx(3.0))
    assert found.prefactor == pytest.approx(0.5)
    assert sample_complexity("linear", lr=1.0).prefactor == pytest.approx(math.log(2))
    assert sample_complexity("linear", lr=3.1).prefactor == math.inf
    found = sample_complexity("he2", noise=2.0)
    assert (found.signal, found.friction, found.lr) == (
        pytest.approx(4.0),
        pytest.approx(28.0),
        pytest.approx(1 / 14),
    )
    assert found.prefactor == pytest.approx(14 / 4)
    assert sample_complexity("he2", lr=0.2).prefactor == math.inf


def test_scalings_and_words():
    cubic = sample_complexity("he3")
    assert (cubic.samples, cubic.lr_power, cubic.prefactor, cubic.generative_exponent) == (
        "d^2",
        0.5,
        None,
        1,
    )
    assert (cubic.signal, cubic.largest_lr) == (pytest.approx(18.0), pytest.approx(18 / 1728))
    words = str(sample_complexity(lambda x: x**2 * np.exp(-(x**2))))
    assert "n ~ d^3 samples" in words
    assert "~ d^-1 (at a fixed one m = 0 is stable)" in words
    assert "no efficient method below d^2" in words
    words = str(sample_complexity("tanh", lr=0.5))
    assert "needs n ~ d samples, with a constant learning rate" in words
    assert "At lr = 0.5 n = " in words
    assert "does not leave the start" in str(sample_complexity("square", lr=0.2))
    assert "jumps" in str(sample_complexity("sign"))
    assert "does not converge" in str(sample_complexity(lambda x: np.exp(x**2 / 5)))


def overlap_problem(activation, noise=0.0):
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
def test_samples_to_an_overlap_are_the_odes(name):
    link, lr, error = (
        (sgd.polynomial([0.0, 1.0, 0.4]), 0.3, 1e-9)
        if name == "polynomial"
        else ("tanh", 2.0, 3e-3)
    )
    node, weight = gauss_legendre(20)
    with jax.enable_x64(True):
        drift = np.asarray(library_drift(overlap_problem(link, 0.5))(0.5 * node, lr))
    found = sample_complexity(link, lr=lr, noise=0.5)
    assert np.sum(0.5 * weight / drift) / lr == pytest.approx(found.prefactor, rel=error)


@pytest.mark.parametrize("name", slow(["he2", "he3"], slow_names={"he3"}))
def test_largest_learning_rate_and_rate_of_escape_are_the_odes(name):
    """At a start m: growth signal m^(kappa - 1) less the drag, nothing at largest_lr m^(kappa - 2), decay above."""
    m, power = 1e-6, {"he2": 0, "he3": 1}[name]
    found = sample_complexity(name, noise=0.3)
    with jax.enable_x64(True):
        drift = library_drift(overlap_problem(name, 0.3))
        rates = [
            drift(np.full(20, m), share * found.largest_lr * m**power)[0] / m ** (power + 1)
            for share in (0.5, 1.0, 1.5)
        ]
    np.testing.assert_allclose(
        rates, found.signal * np.array([0.5, 0.0, -0.5]), atol=1e-4 * found.signal
    )
    if name == "he2":
        assert found.prefactor == pytest.approx(1 / (2 * found.lr * float(rates[0])), rel=1e-6)


def exits(problem, lr, m0, **more):
    begin = sgd.start(problem, M=[[m0]], Q=[[1.0]])
    return sgd.exit_time(
        problem, sgd.OnePassSGD(lr=lr), begin, criterion="overlap", threshold=0.5, **more
    )


@pytest.mark.slow
def test_time_to_an_overlap_is_the_odes():
    link = sgd.polynomial([0.0, 1.0, 0.4])
    for lr, noise in ((0.3, 0.0), (0.1, 0.5)):
        found = sample_complexity(link, lr=lr, noise=noise)
        assert exits(overlap_problem(link, noise), lr, 0.0).alpha[0] == pytest.approx(
            found.prefactor, rel=1e-6
        )


@pytest.mark.slow
def test_the_odes_exit_grows_by_the_prefactor_times_log_d():
    found = sample_complexity("he2", lr=0.05, noise=0.3)
    problem = overlap_problem("he2", noise=0.3)
    near, far = (exits(problem, 0.05, d**-0.5).alpha[0] for d in (1e8, 1e12))
    assert far - near == pytest.approx(found.prefactor * math.log(1e4), rel=1e-6)


@pytest.mark.slow
def test_the_chains_exit_time_has_the_same_rate():
    """Mean exit time at d = 1000: ODE from m = 1/sqrt(d), less E log|x|/rate with x = m sqrt(d) normal.

    Start and steps both feed x: dx = rate x dt + sqrt(2 lr friction) dB, so x exp(-rate t) tends to a normal of variance
    1 + lr friction / rate.
    """
    d, lr, runs = 1000, 0.08, 200
    found = sample_complexity("he2", lr=lr)
    rate = found.signal - lr * found.friction
    problem = overlap_problem("he2")
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
    log_normal = -(np.euler_gamma + math.log(2)) / 2 + math.log(1 + lr * found.friction / rate) / 2
    expected = exits(problem, lr, d**-0.5).times[0] - log_normal / rate
    assert chain.left == runs
    assert abs(chain.mean - expected) < Z * chain.standard_error
    assert chain.standard_error < 0.1 * expected
