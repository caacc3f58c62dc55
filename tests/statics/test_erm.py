"""Empirical risk minimisers against published reference values, closed forms and direct fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import sgdynamics as sgd
from sgdynamics.problems.likelihoods import likelihood_of
from sgdynamics.statics.erm import linear_data
from sgdynamics.statics.erm_equations import ErmEquations, ErmState, LinearData
from sgdynamics.statics.field_nodes import FieldNodes, LabelledFields, Overlaps
from sgdynamics.statics.prox import LOSSES, convex_loss
from sgdynamics.statics.ridge import Ridge, linear_part
from tests.conftest import Z

BLOCKS = [(0.5, 0.5), (1.0, 0.3), (2.0, 0.2)]


def first_signal(z):
    return z[0]


def binary(labels, **arguments):
    return sgd.MultiIndex(first_signal, 1, 1, "linear", labels=labels, **arguments)


SIGN = sgd.labels.sign()


def linear(noise, **arguments):
    return sgd.TeacherStudent(width=1, activation="linear", noise=noise, **arguments)


def fit(problem, alpha, lam, loss):
    result = sgd.erm(problem, alpha, weight_decay=lam / alpha, loss=loss)
    assert result.attrs["error_quadrature"] < 1e-9
    return result.isel(alpha=0)


@pytest.mark.parametrize(
    ("labels", "loss", "alpha", "lam", "m", "q", "train", "error"),
    [
        (SIGN, "logistic", 2.0, 0.1, 1.72031309, 4.14580362, 0.182149644, 0.179662393),
        (
            sgd.labels.logistic(2.0), "logistic", 3.0, 0.05,
            1.95185503, 6.78379138, 0.288058553, None,
        ),
        (sgd.labels.probit(0.25), "hinge", 2.0, 0.1, 1.459220, 3.953636, 0.0777687, 0.272079),
        (SIGN, "squared", 2.0, 0.2, 0.679533165, 0.676515655, 0.097603907, None),
    ],
)  # fmt: skip
def test_reference_values(labels, loss, alpha, lam, m, q, train, error):
    result = fit(binary(labels), alpha, lam, loss)
    values = [result.M.item(), result.Q.item(), result.train_risk.item()]
    np.testing.assert_allclose(values, [m, q, train], rtol=6e-7 if loss == "hinge" else 5e-9)
    if error is not None:
        assert result.error.item() == pytest.approx(error, rel=2e-6)
    assert result.replicon.item() < 1


class OutlierEquations(ErmEquations):
    """Noise of variance 0.1, and of variance 25 with probability 0.1."""

    def nodes(self, state):
        components = []
        for weight, noise in ((0.9, 0.1), (0.1, 25.0)):
            data = linear_data(linear(noise), LOSSES["huber"])
            nodes = replace(self, data=data).gaussian_nodes(state)
            components.append(nodes._replace(weights=weight * nodes.weights))
        return FieldNodes(*(np.concatenate(column) for column in zip(*components, strict=True)))

    def gaussian_nodes(self, state):
        return ErmEquations.nodes(self, state)


def test_huber_with_outliers():
    data = linear_data(linear(1.0), LOSSES["huber"])
    equations = OutlierEquations(data, LOSSES["huber"], 2.0, 0.1)
    state = equations.solve(ErmState(np.array([0.9]), 1.15, 1.0))
    values = [state.m[0], state.q, equations.train_loss(state)]
    np.testing.assert_allclose(values, [0.904734, 1.151309, 0.328472], rtol=2e-6)


def test_nodes_with_noise_are_those_of_residuals():
    """Labels on a grid of the noise agree with residuals, which integrate it in closed form."""
    problem, loss = linear(0.4), LOSSES["huber"]
    data = linear_data(problem, loss)
    state = ErmState(np.array([0.5]), 0.6, 0.8)
    overlaps = Overlaps(state.m, state.q, data.rho)
    fields = LabelledFields(data.likelihood)
    means = []
    for nodes in (
        fields._residuals(overlaps, loss, state.V),
        fields._labels_with_noise(overlaps, loss, state.V),
    ):
        g = loss.prox(nodes.om, nodes.label, state.V) - nodes.om
        means.append(
            [
                nodes.mean(g**2),
                nodes.mean(g * nodes.om_mean),
                nodes.mean(g[:, None] * nodes.signals)[0],
            ]
        )
    np.testing.assert_allclose(means[1], means[0], rtol=1e-5)


def test_several_eigenvalues():
    result = fit(binary(SIGN, covariance=BLOCKS), 1.5, 0.2, "logistic")
    assert result.error.item() == pytest.approx(0.204820, abs=6e-7)
    # the reference has fields
    data = LinearData(
        likelihood_of(binary(SIGN)),
        np.array([0.5, 1.0, 2.0]),
        np.array([0.5, 0.3, 0.2]),
        np.array([0.5, 0.3, 0.2])[:, None, None],
    )
    state = ErmEquations(data, LOSSES["logistic"], 1.5, 0.2).solve()
    np.testing.assert_allclose([state.m[0], state.q], [1.10165, 1.99600], rtol=5e-6)


def test_mixture():
    result = fit(sgd.GaussianMixture("binary", snr=2.0), 2.0, 0.1, "logistic")
    values = [result.M.item(), result.Q.item(), result.train_risk.item(), result.error.item()]
    np.testing.assert_allclose(values, [1.66689, 3.91006, 0.175196, 0.116602], rtol=5e-6)


@pytest.mark.slow
def test_ridge_in_a_mixture_with_far_clusters():
    """The plain iteration oscillates here; direct minimisers of the loss in d = 300."""
    alpha, decay, snr, d, runs = 2.0, 0.1, 4.0, 300, 60
    result = fit(sgd.GaussianMixture("binary", snr=snr), alpha, alpha * decay, "squared")
    generator, n = np.random.default_rng(0), int(alpha * d)
    overlaps = []
    for _ in range(runs):
        labels = generator.choice([-1.0, 1.0], n)
        inputs = generator.standard_normal((n, d)) / np.sqrt(snr)
        inputs[:, 0] += labels
        gram = inputs.T @ inputs / n + decay * np.eye(d)
        row = np.linalg.solve(gram, inputs.T @ labels / n)
        overlaps.append([row[0], row @ row])
    deviation = np.std(overlaps, axis=0) / np.sqrt(runs)
    assert np.all(deviation < 0.01)
    theory = np.array([result.M.item(), result.Q.item()])
    # the mean over runs differs from the limit by order 1/d
    assert np.all(np.abs(np.mean(overlaps, axis=0) - theory) < 5 * deviation + 1 / d)


def test_ridge_reference_values():
    result = fit(linear(0.25, covariance=BLOCKS), 1.5, 0.2, None)
    values = [result.risk.item(), result.train_risk.item()]
    np.testing.assert_allclose(values, [0.237574968, 0.0607516657], rtol=2e-9)
    # a power law with 1500 eigenvalues: n and lam are absolute
    j = np.arange(1, 1501)
    eigenvalues, w2 = j**-1.5, j**-0.5
    gram = (w2 / (eigenvalues @ w2))[:, None, None]
    data = LinearData(likelihood_of(linear(0.1)), eigenvalues, np.ones(1500) / 1500, gram)
    solution = Ridge(data, linear_part(data), 200 / 1500).solve(0.5 / 1500)
    values = [solution.risk, solution.train_risk]
    np.testing.assert_allclose(values, [0.066285206, 0.0237171529], rtol=2e-9)


@pytest.mark.parametrize("labels", [SIGN, None])
def test_ridge_closed_form_is_the_fixed_point(labels):
    arguments: dict[str, Any] = {"covariance": BLOCKS} if labels is None else {}
    problem = sgd.MultiIndex(
        (lambda z: jnp.tanh(z[0]) + z[1] ** 2) if labels is None else first_signal,
        2 if labels is None else 1, 1, "linear", labels=labels,
        noise=0.1 if labels is None else 0.0, **arguments,
    )  # fmt: skip
    data = linear_data(problem, LOSSES["squared"])
    equations = ErmEquations(data, LOSSES["squared"], 1.3, 0.3)
    state, solution = equations.solve(), Ridge(data, linear_part(data), 1.3).solve(0.3)
    rows = equations.rows(state)
    np.testing.assert_allclose(
        [*state.m, state.q, state.V, *rows.M, rows.Q, equations.test_loss(state)],
        [
            *solution.state.m, solution.state.q, solution.state.V,
            *solution.rows.M, solution.rows.Q, solution.risk,
        ],
        rtol=1e-8, atol=1e-9,
    )  # fmt: skip
    assert equations.train_loss(state) == pytest.approx(solution.train_risk, rel=1e-8)


@pytest.mark.parametrize("name", ["squared", "huber", "absolute"])
def test_losses_of_the_residual_have_equal_conjugates(name):
    """For losses of f - y and linear labels, mh = Vh."""
    problem = linear(0.3)
    data = linear_data(problem, LOSSES[name])
    state = ErmState(np.array([0.5]), 0.6, 0.8)
    conjugates = ErmEquations(data, LOSSES[name], 1.4, 0.2).conjugates(state)
    assert conjugates.m[0] == pytest.approx(conjugates.V, rel=1e-9)


def test_stein_form_is_the_derivative():
    """Vh = -alpha E dg/dom, with the derivative of the prox."""
    for labels, name in ((SIGN, "logistic"), (sgd.labels.probit(0.25), "hinge")):
        data, loss = linear_data(binary(labels), LOSSES[name]), LOSSES[name]
        equations = ErmEquations(data, loss, 1.4, 0.2)
        state = ErmState(np.array([0.7]), 1.3, 0.8)
        nodes = equations.nodes(state)
        derivative = (loss.slope(nodes.om, nodes.label, state.V) - 1) / state.V
        expected = -1.4 * float(nodes.mean(derivative))
        Vh = equations.conjugates(state).V
        assert Vh == pytest.approx(expected, rel=1e-9)


def test_best_weight_decay():
    problem = linear(0.1)
    best = sgd.erm(problem, [0.9, 1.8], weight_decay="best")
    np.testing.assert_allclose(best.weight_decay * best.alpha, 0.1, rtol=1e-9)
    assert best.risk.values[1] == pytest.approx(0.1, rel=1e-9)  # excess 0.05, |w - w*|^2 = 0.1
    # the Bayes floor: M = Q
    np.testing.assert_allclose(best.M.values.ravel(), best.Q.values.ravel(), rtol=1e-9)
    for factor in (0.7, 1.4):
        other = sgd.erm(problem, 1.8, weight_decay=factor * float(best.weight_decay[1]))
        assert other.risk.item() > best.risk.values[1]


@pytest.mark.slow
def test_best_weight_decay_of_the_logistic_loss():
    result = sgd.erm(binary(sgd.labels.probit(0.25)), 2.0, weight_decay="best", loss="logistic")
    assert result.weight_decay.item() * 2 == pytest.approx(0.12, abs=0.003)
    assert result.error.item() == pytest.approx(0.256174, abs=1e-6)


def test_max_margin_reference_values():
    result = sgd.max_margin(binary(SIGN), [1.0, 2.0, 5.0])
    margins = [0.786549842, 0.454577561, 0.196709612]
    np.testing.assert_allclose(result.margin, margins, rtol=5e-9)
    np.testing.assert_allclose(result.error, [0.265711, 0.188479, 0.093827], atol=6e-7)


def test_max_margin_of_many_samples():
    """The margin solves its two equations, with the integrals in closed form for large alpha.

    Close to the boundary the density of u = abs(z) is constant, sqrt(2/pi), so that margin and
    error decrease as 1/alpha, with the error near 0.5005/alpha.
    """
    result = sgd.max_margin(binary(SIGN), [100.0, 1000.0])
    np.testing.assert_allclose(result.margin * result.alpha, [1.00440, 1.00446], rtol=2e-5)
    np.testing.assert_allclose(result.error * result.alpha, [0.50040, 0.50049], rtol=2e-5)
    assert result.attrs["error_quadrature"] < 1e-8
    # brute force: the margin at the cosine of the solution, by a Riemann sum over u
    cosine, kappa = result.M.values[0].item(), result.margin.values[0]
    sine = np.sqrt(1 - cosine**2)
    u = (np.arange(400_000) + 0.5) * 2e-5
    a = (kappa - cosine * u) / sine
    above = (1 + a**2) * special.ndtr(a) + a * np.exp(-(a**2) / 2) / np.sqrt(2 * np.pi)
    total = 100.0 * np.sum(np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2) * above) * 2e-5
    assert total == pytest.approx(1.0, rel=1e-6)


@pytest.mark.slow
def test_a_jump_across_two_signals_is_that_of_one():
    """sign(z1 + 2 z2 - 0.3) has the predictor of sign(sqrt(5) z - 0.3)."""
    two = sgd.MultiIndex(lambda z: z[0] + 2 * z[1] - 0.3, 2, 1, "linear", labels=SIGN,
                         kinks=[((1.0, 2.0), 0.3)])  # fmt: skip
    single = sgd.MultiIndex(lambda z: jnp.sqrt(5.0) * z[0] - 0.3, 1, 1, "linear", labels=SIGN)
    first, second = (fit(problem, 1.5, 0.075, "logistic") for problem in (two, single))
    direction = np.array([1.0, 2.0]) / np.sqrt(5)
    np.testing.assert_allclose(first.M.values[0], second.M.item() * direction, rtol=1e-7)
    for name in ("Q", "train_risk", "error"):
        assert first[name].item() == pytest.approx(second[name].item(), rel=1e-7)


@pytest.mark.slow
def test_noise_without_a_mean():
    problem = linear(sgd.labels.cauchy(0.3))
    result = sgd.erm(problem, 1.7, weight_decay=0.08, loss="huber")
    assert np.isinf(result.risk.item())
    assert np.isinf(result.train_risk.item())
    assert result.M.item() == pytest.approx(0.834, abs=2e-3)
    with pytest.raises(ValueError, match=r"weight_decay = 'best'.*infinite"):
        sgd.erm(problem, 1.7, weight_decay="best", loss="huber")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (sgd.labels.logistic(1.0), 2.278221),
        (sgd.labels.logistic(2.0), 2.899138),
        (sgd.labels.logistic(4.0), 4.515216),
        (sgd.labels.logistic(1e-9), 2.0),
    ],
)
def test_separability(labels, expected):
    result = sgd.erm(binary(labels), [1.9, 5.0], weight_decay=0.2, loss="squared")
    assert result.attrs["separable_below"] == pytest.approx(expected, abs=6e-7)
    assert result.separable.values.tolist() == [True, False]


def test_no_weight_decay():
    noisy = binary(sgd.labels.logistic(2.0))
    with pytest.raises(ValueError, match=r"weight_decay = 0.*separable"):
        sgd.erm(noisy, 2.5, weight_decay=0.0, loss="logistic")
    beyond = sgd.erm(noisy, 4.0, weight_decay=0.0, loss="logistic")
    small = sgd.erm(noisy, 4.0, weight_decay=1e-7, loss="logistic")
    assert beyond.M.item() == pytest.approx(small.M.item(), rel=1e-4)
    with pytest.raises(ValueError, match=r"interpolates"):
        sgd.erm(linear(0.1), 0.8, weight_decay=0.0, loss="huber")
    # ridge: the interpolator of least norm, and least squares
    result = sgd.erm(linear(0.1), [0.5, 1.8], weight_decay=0.0)
    np.testing.assert_allclose(result.risk, [0.5 * (0.5 + 0.1 / 0.5), 0.05 * 1.8 / 0.8], rtol=1e-9)
    assert result.train_risk.values[0] == 0.0
    with pytest.raises(ValueError, match=r"norm is infinite"):
        sgd.erm(linear(0.1), 1.0, weight_decay=0.0)


def test_bad_input():
    problem = binary(SIGN)
    with pytest.raises(ValueError, match=r"loss = None: the student is not one free linear unit"):
        sgd.erm(sgd.TeacherStudent(width=2), 2.0)
    with pytest.raises(ValueError, match=r"samples_per_dimension = 0"):
        sgd.erm(problem, 0.0, loss="logistic")
    with pytest.raises(ValueError, match=r"weight_decay = 'bst'"):
        sgd.erm(problem, 1.0, weight_decay="bst", loss="logistic")
    with pytest.raises(ValueError, match=r"needs labels -1 and \+1"):
        sgd.erm(linear(0.1), 1.0, weight_decay=0.1, loss="hinge")
    with pytest.raises(ValueError, match=r"separable below 2.899"):
        sgd.max_margin(binary(sgd.labels.logistic(2.0)), [1.0, 3.0])
    cauchy = linear(sgd.labels.cauchy(0.1))
    with pytest.raises(ValueError, match=r"variance is infinite"):
        sgd.erm(cauchy, 1.0, weight_decay=0.1)


@pytest.mark.slow
def test_a_users_loss():
    problem = binary(SIGN)
    stated = sgd.erm(problem, 2.0, 0.05, loss=lambda f, y: jnp.logaddexp(0.0, -f * y))
    named = sgd.erm(problem, 2.0, 0.05, loss="logistic")
    assert stated.Q.item() == pytest.approx(named.Q.item(), rel=1e-7)


def _minimise(loss, X, y, weight_decay):
    """Minimise mean loss + weight decay by L-BFGS in d dimensions."""
    n, d = X.shape
    margin = {"logistic": lambda u: -special.expit(-u)}

    def objective(w):
        om = X @ w
        value = np.mean(loss.value(om, y)) + 0.5 * weight_decay * w @ w
        slope = {
            "logistic": lambda: y * margin["logistic"](om * y),
            "huber": lambda: np.clip(om - y, -1.0, 1.0),
        }[loss.name]()
        return value, X.T @ slope / n + weight_decay * w

    result = optimize.minimize(
        objective, np.zeros(d), jac=True, method="L-BFGS-B", options={"maxiter": 2000, "gtol": 1e-9}
    )
    return result.x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "huber"])
def test_against_minimisation_in_many_dimensions(name):
    d, alpha, lam, runs = 800, 2.0, 0.1, 12
    loss, rng = convex_loss(name), np.random.default_rng(5)
    problem = binary(SIGN) if name == "logistic" else linear(0.5)
    n, samples = round(alpha * d), []
    for _ in range(runs):
        X = rng.standard_normal((n, d))
        z = X[:, 0]
        y = np.sign(z) if name == "logistic" else z + np.sqrt(0.5) * rng.standard_normal(n)
        w = _minimise(loss, X, y, lam / alpha)
        samples.append([w[0], w @ w, np.mean(loss.value(X @ w, y))])
    mean = np.mean(samples, axis=0)
    error = np.std(samples, axis=0, ddof=1) / np.sqrt(runs)
    result = fit(problem, alpha, lam, name)
    expected = np.array([result.M.item(), result.Q.item(), result.train_risk.item()])
    # finite d shifts means by order 1/d
    assert np.all(np.abs(mean - expected) < 2 * Z * error + 5 / d)
    assert np.all(error < 0.02 * np.abs(expected))


@pytest.mark.slow
def test_gradient_descent_ends_at_the_minimiser():
    problem = binary(SIGN, loss="logistic", weight_decay=0.05)
    result = sgd.erm(problem, 2.0)
    algorithm = sgd.GradientDescent(lr=1.0, samples_per_dimension=2.0)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    path = sgd.solve_dmft(
        problem, algorithm, start, steps=[100, 200], paths=4096, progress=False, seed=1
    )
    for name in ("M", "Q", "train_risk"):
        end = path[name].values[..., -1].mean() if name == "train_risk" else None
        end = float(np.mean(path[name].values[:, -1])) if end is None else float(end)
        spread = float(np.max(path[f"{name}_standard_error"].values[:, -1]))
        assert abs(end - result[name].item()) < Z * spread + 2e-3, name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:early_stopping")
@pytest.mark.parametrize("covariance", [None, BLOCKS])
def test_early_stopping_gains_nothing_with_the_best_weight_decay(covariance):
    """The end of gradient descent is the best ridge regression, and the least risk on its way."""
    problem = linear(0.4, covariance=covariance)
    best = sgd.erm(problem, 1.5, weight_decay="best")
    problem = problem.replace(weight_decay=best.weight_decay.item())
    algorithm = sgd.GradientDescent(lr=0.4, samples_per_dimension=1.5)
    start = sgd.start(problem, M=[[0.0]], Q=[[1e-4]])
    path = sgd.solve_dmft(
        problem, algorithm, start, steps=[0, 5, 20, 60, 100, 140], paths=8192, progress=False
    )
    for name in ("M", "Q", "risk", "train_risk"):
        value = float(np.mean(path[name].values[:, -1]))
        error = float(np.max(path[f"{name}_standard_error"].values[:, -1]))
        assert error < 0.02 * abs(value)
        assert abs(value - best[name].item()) < Z * error + 1e-3, name
    stopped = sgd.early_stopping(path.isel(time=slice(0, 5)))
    floor = sgd.bayes_optimal(problem, [1.5]).risk.item()
    tolerance = Z * float(np.max(path["risk_standard_error"])) + 1e-3
    assert abs(float(stopped.risk[0]) - best.risk.item()) < tolerance
    assert float(stopped.risk[0]) > floor - tolerance
