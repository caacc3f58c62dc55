"""Heavy-tailed draws and label noise: quantiles, moments, states of sign SGD, and bad input."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import sgdynamics as sgd
from sgdynamics.ode.update_points import two_points_of_law
from sgdynamics.samples import laws
from tests.conftest import Z

LAWS: dict[str, Any] = {
    "t3": (sgd.labels.student_t(3.0), stats.t(3)),
    "t5": (sgd.labels.student_t(5.0), stats.t(5)),
    "t1.5": (sgd.labels.student_t(1.5), stats.t(1.5)),
    "laplace": (sgd.labels.laplace(), stats.laplace()),
    "cauchy": (sgd.labels.cauchy(), stats.cauchy()),
}
EDGES = [(-np.inf, 0.3), (0.3, np.inf), (-0.7, 2.0), (3.0, 4.0), (-5.0, -1.0)]


def linear(noise):
    return sgd.TeacherStudent(width=1, activation="linear", noise=noise)


def zero_start(problem):
    return sgd.start(problem, M=[[0.0]], Q=[[0.0]])


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_the_quantiles_of_the_law(name):
    law, reference = LAWS[name]
    z = np.linspace(-8.0, 8.0, 401)
    with jax.enable_x64(True):
        parameters = laws.shape_parameters(law.law, law.df)
        x = np.asarray(jax.jit(lambda z: laws.draw_from_normal(law.law, parameters, z))(z))
        pdf = np.asarray(laws.density(law.law, parameters, jnp.asarray(z)))
    np.testing.assert_allclose(
        x, np.sign(z) * reference.isf(stats.norm.sf(np.abs(z))), rtol=1e-10, atol=1e-13
    )
    np.testing.assert_allclose(pdf, reference.pdf(z), rtol=1e-10)
    assert law.variance == pytest.approx(reference.var()) or not np.isfinite(law.variance)


@pytest.mark.parametrize("name", LAWS)
def test_two_points_between_edges_have_the_moments_of_the_law(name):
    law, reference = LAWS[name]
    unit = float(law.parameters["unit"])
    with jax.enable_x64(True):
        points = jax.jit(lambda low, high: two_points_of_law(law.law, law.parameters, low, high))
        rules = [[(float(x), float(w)) for x, w in points(*edges)] for edges in EDGES]
    for edges, rule in zip(EDGES, rules, strict=True):
        assert all(edges[0] <= x <= edges[1] for x, _ in rule)
        has_moments = np.all(np.isfinite(edges)) or np.isfinite(law.variance)
        for power in range(3 if has_moments else 1):

            def moment(x, power=power):
                return (unit * x) ** power * reference.pdf(x)

            expected = integrate.quad(
                moment, edges[0] / unit, edges[1] / unit, epsabs=1e-12, limit=500
            )[0]
            assert sum(w * x**power for x, w in rule) == pytest.approx(expected, abs=2e-8)


def stationary_distance(density, lr):
    """Return |w - w*|^2 at the fixed point of sign SGD of a linear student (Xiao et al. 2024).

    By Stein's lemma R = |w - w*|^2 solves 4 sqrt(2/pi) R E[density(sqrt(R) u)] = lr, u ~ N(0, 1).
    """

    def gap(R):
        mean = integrate.quad(
            lambda u: stats.norm.pdf(u) * density(np.sqrt(R) * u), -9, 9, epsabs=1e-12
        )[0]
        return 4 * np.sqrt(2 / np.pi) * R * mean - lr

    return float(optimize.brentq(gap, 1e-3, 5.0))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "reference", "published"),
    [
        (sgd.labels.cauchy(0.5), stats.cauchy(scale=0.5), 0.43272),
        (sgd.labels.student_t(3.0, 0.5), stats.t(3, scale=0.5), 0.33187),
        (sgd.labels.laplace(0.5), stats.laplace(scale=0.5), 0.32043),
    ],
)
def test_stationary_distance_of_sign_sgd(noise, reference, published):
    expected = stationary_distance(reference.pdf, 0.5)
    assert expected == pytest.approx(published, abs=1e-5)
    problem = linear(noise)
    result = sgd.solve_ode(
        problem,
        sgd.OnePassSGD(lr=0.5, update=sgd.updates.sign()),
        zero_start(problem),
        times=[0.0, 30.0],
    )
    distance = 1 + float(result.Q[0, -1, 0, 0]) - 2 * float(result.M[0, -1, 0, 0])
    error = result.attrs["error_quadrature"] + result.attrs["error_integrator"]
    assert abs(distance / expected - 1) < min(1e-4, 5 * error)
    assert error < 1e-3
    assert np.isinf(result.risk.values).all() == np.isinf(noise.variance)
    assert float(result.excess_risk[0, -1]) == pytest.approx(distance / 2, rel=1e-9)


@pytest.mark.slow
def test_clipped_steps_with_heavy_tails_against_direct_runs():
    """The ODE of clipped SGD with Student t(3) noise agrees with runs in 400 dimensions."""
    problem = linear(sgd.labels.student_t(3.0, 0.7))
    algorithm = sgd.OnePassSGD(lr=0.6, update=sgd.updates.clipped(1.0))
    theory = sgd.solve_ode(problem, algorithm, zero_start(problem), alpha=[0.0, 2.0])
    runs = sgd.simulate(
        problem,
        algorithm,
        zero_start(problem),
        alpha=[0.0, 2.0],
        dimension=400,
        runs=400,
        method="direct",
        seed=3,
    )
    M = runs.M[:, -1, 0, 0].values
    # At finite d the mean differs by order 1/d.
    assert abs(M.mean() - float(theory.M[0, -1, 0, 0])) < Z * M.std() / np.sqrt(len(M)) + 2 / 400


@pytest.mark.slow
def test_finite_variance_keeps_the_closed_form():
    """With the squared loss, label noise enters the ODE only through its variance.

    A user's loss with the same named draw agrees.
    """
    problem, algorithm = linear(sgd.labels.student_t(5.0, 0.5)), sgd.OnePassSGD(lr=0.2)
    result = sgd.solve_ode(problem, algorithm, zero_start(problem), alpha=[0.0, 1.0, 5.0])
    gaussian = sgd.solve_ode(
        linear(0.25 * 5 / 3), algorithm, zero_start(problem), alpha=[0.0, 1.0, 5.0]
    )
    np.testing.assert_allclose(result.risk, gaussian.risk, rtol=1e-9)
    own = sgd.Problem(
        lambda f, s, a, z: (f[0] - s[0] - 0.5 * z["e"]) ** 2 / 2,
        1,
        1,
        draws={"e": ("student_t", 5.0)},
    )
    quadrature = sgd.solve_ode(own, algorithm, zero_start(own), alpha=[0.0, 1.0, 5.0])
    np.testing.assert_allclose(quadrature.risk, gaussian.risk, rtol=1e-6)


@pytest.mark.slow
def test_noise_of_runs_has_its_law():
    """One step from zero weights, Q = y^2 |x|^2/d^2, has the moments of labels with this noise."""
    d, runs = 100, 4000
    problem = linear(sgd.labels.laplace(1.0))
    result = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=1.0),
        zero_start(problem),
        steps=[1],
        dimension=d,
        runs=runs,
        seed=5,
    )
    # E[y^2] = 1 + 2, E[y^2 |x|^2] = 3 d + 2
    Q = result.Q[:, 0, 0, 0].values * d**2
    assert abs(Q.mean() - (3 * d + 2)) < Z * Q.std() / np.sqrt(runs)
    # E[y^4] = 3 + 6 * 2 + 24 = 39, and 27 for Gaussian noise; |x|^2 = d to order sqrt(d)
    trimmed = np.minimum(Q / d, 12.0) ** 2
    draws = np.random.default_rng(1)
    label = draws.standard_normal(10**6) + draws.laplace(size=10**6)
    expected = np.minimum(label**2 * draws.chisquare(d, 10**6) / d, 12.0) ** 2
    assert (
        abs(trimmed.mean() - expected.mean())
        < Z * trimmed.std() / np.sqrt(runs) + 3 * expected.mean() / d
    )
    restored = sgd.problem_of(result)
    assert restored.describe() == problem.describe()


def test_infinite_variance_raises_for_solvers_without_a_limit():
    problem, start = linear(sgd.labels.cauchy(0.5)), zero_start(linear(0.25))
    for solve in (
        lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[1.0]),
        lambda: sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.1), start, steps=[1], dimension=50),
        lambda: sgd.solve_dmft(
            problem, sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0), start, times=[1.0]
        ),
    ):
        with pytest.raises(ValueError, match=r"variance is infinite.*sign"):
            solve()
    with pytest.raises(ValueError, match="fourth moment"):
        sgd.solve_sde(
            linear(sgd.labels.student_t(3.0)),
            sgd.OnePassSGD(lr=0.1),
            start,
            times=[1.0],
            dimension=50,
        )
    with pytest.raises(ValueError, match="df"):
        sgd.labels.student_t(0.0)
    with pytest.raises(ValueError, match="dropout"):
        sgd.TeacherStudent(width=2, keep=0.5, noise=sgd.labels.cauchy())
    with pytest.raises(ValueError, match="did you mean 'laplace'"):
        sgd.Problem(lambda f, s, a, z: f[0], 1, 1, draws={"e": "laplce"})


def test_functions_of_the_pure_layer_reject_infinite_variance():
    """`functional` raises if the variance is infinite, and returns inf if df is traced."""
    f, state = sgd.functional, sgd.functional.state(zero_start(linear(0.25)))
    heavy = {"cauchy": sgd.labels.cauchy(0.5), "student_t, df = 2": sgd.labels.student_t(2.0, 0.5)}
    for name, law in heavy.items():
        structure, parameters = linear(law).structure, linear(law).parameters
        for function in (f.risk, f.drift, lambda *arguments: f.solve(*arguments, [1.0], lr=0.1)):
            with pytest.raises(ValueError, match=rf"noise = '?{name}'?: its variance is infinite"):
                function(structure, parameters, state)
    with jax.enable_x64(True):
        risk = jax.jit(f.risk, static_argnums=0)
        for df, expected in ((2.0, np.inf), (4.0, (1 + 0.25 * 2) / 2)):
            problem = linear(sgd.labels.student_t(df, 0.5))
            assert float(risk(problem.structure, problem.parameters, state)) == pytest.approx(
                expected, rel=1e-12
            )
        rates = jax.jit(f.drift, static_argnums=0)(structure, parameters, state, lr=0.1)
        assert not np.isfinite(rates["Q"]).any()


def test_runs_with_infinite_variance_report_an_infinite_risk():
    problem = linear(sgd.labels.cauchy(0.5))
    algorithm = sgd.OnePassSGD(lr=0.5, update=sgd.updates.sign())
    result = sgd.simulate(
        problem, algorithm, zero_start(problem), steps=[0, 20], dimension=50, method="direct"
    )
    assert np.all(np.isposinf(result.risk))
    assert np.all(np.isfinite(result.excess_risk))
    assert float(result.excess_risk[0, 0]) == pytest.approx(0.5)
