"""Shares classified correctly: closed forms, SciPy quadrature, Monte Carlo, stated errors."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from scipy import integrate, special, stats

import sgdynamics as sgd
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.expectations import accuracy, indicators
from sgdynamics.expectations.nodes import sobol_normals
from sgdynamics.expectations.risk import Risks
from sgdynamics.problems.activations import NAMED
from sgdynamics.results.clock import Clock
from tests.conftest import Z

CLOCK = Clock(np.zeros(1), None, None)

ORACLE = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])  # f = 2 |x1| - 2 |x2|
ORACLE_HEAD = np.array([1.0, 1.0, -1.0, -1.0])


def oracle_error(snr):
    """P(|x1| < |x2|) for x ~ N((1, 0), I/snr): the two diagonals are independent coordinates."""
    right = stats.norm.cdf(np.sqrt(snr / 2))
    return 2 * right * (1 - right)


def random_network(generator, width, kind):
    """Mean, covariance, head: generic, of rank three, nearly of rank two, or as if trained."""
    if kind == "trained":
        rows = np.concatenate(
            [ORACLE, np.zeros((width, 4))], axis=1
        ) + 0.2 * generator.standard_normal((width, 6))
    else:
        rows = generator.standard_normal((width, 3 if kind == "rank three" else width + 2))
    if kind == "nearly rank two":
        rows[:, 2:] *= 0.1
    mean = rows[:, 0] * np.sqrt(10) * (generator.random() < 0.7)
    head = (
        ORACLE_HEAD[:width] * generator.random(width)
        if kind == "trained"
        else generator.standard_normal(width)
    )
    return mean, rows @ rows.T, head


def monte_carlo(mean, covariance, head, count, generator):
    variances, axes = np.linalg.eigh(covariance)
    root = axes * np.sqrt(np.maximum(variances, 0.0))
    f = np.maximum(mean + generator.standard_normal((count, len(mean))) @ root.T, 0.0) @ head
    return np.where(f == 0, 0.5, f > 0).mean()


@pytest.mark.parametrize("snr", [10.0, 20.0])
def test_the_oracle_of_xor_is_not_better_than_bayes(snr):
    problem = sgd.GaussianMixture("xor", width=4, snr=snr)
    start = sgd.start(problem, M=ORACLE, Q=ORACLE @ ORACLE.T, a=ORACLE_HEAD)
    result = sgd.simulate(problem, sgd.OnePassSGD(lr=0.1), start, steps=[0, 1], dimension=50)
    error = 1 - float(result.accuracy[0, 0])
    assert error == pytest.approx(oracle_error(snr), abs=1e-9)
    assert 0 < result.attrs["error_accuracy"] < 2e-6


def test_two_units_against_scipy():
    """f = relu(h1) - c relu(h2), correlated: the inner integral is a normal cdf."""
    mean, head = np.array([0.4, -0.3]), np.array([1.0, -1.7])
    covariance = np.array([[1.3, 0.5], [0.5, 0.8]])
    slope = covariance[0, 1] / covariance[1, 1]
    spread = np.sqrt(covariance[0, 0] - slope * covariance[0, 1])

    def integrand(h2):
        above = stats.norm.sf((max(-head[1] * h2, 0.0) - mean[0] - slope * (h2 - mean[1])) / spread)
        tie = (1 - above) / 2 if h2 < 0 else 0.0
        return stats.norm.pdf(h2, mean[1], np.sqrt(covariance[1, 1])) * (above + tie)

    truth = sum(integrate.quad(integrand, *ends, epsabs=1e-12)[0] for ends in ((-12, 0), (0, 12)))
    share, error = indicators.positive_share_and_error(mean[None], covariance[None], head[None])
    assert share[0] == pytest.approx(truth, abs=1e-10)
    assert error[0] < 1e-10


@pytest.mark.slow
def test_three_units_against_scipy():
    """Adaptive quadrature over two of three units, and one case by orthants."""
    # independent fields with positive heads: f = 0 only where all are inactive
    mean, head = np.array([0.3, -0.2, 0.1]), np.array([1.0, 2.0, 0.5])
    share, error = indicators.positive_share_and_error(mean[None], np.eye(3)[None], head[None])
    assert share[0] == pytest.approx(1 - special.ndtr(-mean).prod() / 2, abs=1e-9)
    assert error[0] < 2e-6
    # h3 independent of the others, f = relu(h1) + relu(h2) - relu(h3): an integral over h1 and h2
    head = np.array([1.0, 1.0, -1.0])

    def integrand(h1, h2):
        positive = max(h1, 0.0) + max(h2, 0.0)
        above = stats.norm.cdf(positive - mean[2]) if positive > 0 else special.ndtr(-mean[2]) / 2
        return above * stats.norm.pdf(h1 - mean[0]) * stats.norm.pdf(h2 - mean[1])

    pieces = ((-9, 0), (0, 9))
    truth = sum(
        integrate.dblquad(integrand, *ends1, *ends2, epsabs=1e-7)[0]
        for ends1 in pieces
        for ends2 in pieces
    )
    share, error = indicators.positive_share_and_error(mean[None], np.eye(3)[None], head[None])
    assert share[0] == pytest.approx(truth, abs=5e-7)


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("kind", ["generic", "rank three", "nearly rank two", "trained"])
def test_random_states_against_monte_carlo_and_stated_error(width, kind):
    generator = np.random.default_rng(width)
    count = 400_000
    states = (
        [random_network(generator, width, kind) for _ in range(3)]
        if (width, kind) != (3, "trained")
        else []
    )
    for mean, covariance, head in states:
        share, error = indicators.positive_share_and_error(mean[None], covariance[None], head[None])
        truth = monte_carlo(mean, covariance, head, count, generator)
        assert abs(share[0] - truth) <= Z * np.sqrt(truth * (1 - truth) / count) + 25 / count
        assert error[0] < 2e-6
        finer = indicators.positive_share(20, mean[None], covariance[None], head[None])
        assert abs(finer[0] - share[0]) <= error[0] + 1e-9


def test_axes_along_which_no_plane_is_steep_need_few_nodes():
    """Rows of equal length: the principal axes are arbitrary, and some have a steep plane."""
    generator = np.random.default_rng(2)
    rows = np.eye(4) + 0.05 * generator.standard_normal((6, 4, 4))
    means, head = generator.standard_normal((6, 4)), np.array([1.0, 0.9, -1.1, -0.8])
    setting = means, rows @ rows.swapaxes(1, 2), np.tile(head, (6, 1))
    fine = indicators.positive_share(19, *setting)
    # seven nodes per interval of the principal axes miss these shares by 1e-4
    np.testing.assert_allclose(indicators.positive_share(7, *setting), fine, atol=3e-6)


def test_ties_and_certain_signs():
    """Units that cancel, that are all inactive, or that do not vary."""
    same = np.ones((2, 2))
    cancel = indicators.positive_share_and_error(
        np.zeros((1, 2)), same[None], np.array([[1.0, -1.0]])
    )[0]
    assert cancel[0] == pytest.approx(0.5, abs=1e-9)
    inactive = indicators.positive_share_and_error(
        np.zeros((1, 3)), np.eye(3)[None], np.ones((1, 3))
    )[0]
    assert inactive[0] == pytest.approx(1 - 0.5**4, abs=1e-9)
    certain = indicators.positive_share_and_error(
        np.array([[1.0, 2.0]]), np.zeros((1, 2, 2)), np.array([[1.0, -1.0]])
    )[0]
    assert certain[0] == 0.0
    silent = indicators.positive_share_and_error(
        np.array([[0.5, 3.0]]), np.eye(2)[None], np.array([[1.0, 0.0]])
    )[0]
    assert silent[0] == pytest.approx(special.ndtr(0.5) + special.ndtr(-0.5) / 2, abs=1e-9)


@pytest.mark.slow
def test_lines_agree_with_the_exact_rule():
    """Twice the share minus one is the mean sign over lines; it is 0 for an odd f."""
    generator = np.random.default_rng(3)
    nodes = sobol_normals(3, 9, 8, whiten=False)
    mean, covariance, head = random_network(generator, 4, "generic")
    with jax.enable_x64(True):
        signs = jax.jit(
            jax.vmap(partial(accuracy.sign_on_lines, NAMED["relu"]), (0, None, None, None))
        )(nodes, mean, covariance, head)
        signs = np.asarray(signs)
        odd = accuracy.sign_on_lines(
            NAMED["tanh"],
            nodes[0][:, :1],
            np.array([0.7, 0.0]),
            np.diag([1.0, 0.1]),
            np.array([1.0, 0.0]),
        )
    share, _ = indicators.positive_share_and_error(mean[None], covariance[None], head[None])
    error = np.std(signs, ddof=1) / np.sqrt(8)
    assert 1e-6 < error < 2e-3
    assert abs(np.mean(signs) - (2 * share[0] - 1)) < 5 * error
    assert float(odd) == pytest.approx(2 * special.ndtr(0.7) - 1, abs=1e-6)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_few_pieces_agree_with_many(width, monkeypatch):
    """Lines of few cuts have a loop of their own."""
    generator = np.random.default_rng(width)
    nodes = sobol_normals(width - 1, 5, 1, whiten=False)[0] if width > 1 else np.zeros((1, 0))
    states = [random_network(generator, width, "generic") for _ in range(3)]
    states.append((np.zeros(width), np.eye(width), np.zeros(width)))  # f = 0 everywhere
    with jax.enable_x64(True):
        sign = partial(accuracy.sign_on_lines, NAMED["relu"], nodes)
        few = [float(jax.jit(sign)(*state)) for state in states]
        monkeypatch.setattr(accuracy, "MOST_EXCHANGED", 0)
        many = [float(jax.jit(lambda *state: sign(*state))(*state)) for state in states]
    np.testing.assert_allclose(few, many, atol=1e-13)
    assert few[-1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "width"), [("tanh", 3), ("relu", 6)])
def test_lines_for_other_networks(activation, width):
    """Other activations and more than four units, against samples, within the standard error."""
    generator = np.random.default_rng(7)
    problem = sgd.GaussianMixture("xor", width=width, snr=10.0, activation=activation)
    rows, head = generator.standard_normal((3, width, 5)), generator.standard_normal((3, width))
    M, Q = rows[:, None, :, :2], (rows @ rows.swapaxes(1, 2))[:, None]
    shares, error = accuracy.population_accuracy(problem, M, Q, head)
    assert 1e-6 < error < 2e-3
    count = 400_000
    for row, weights, share in zip(rows, head, shares, strict=True):
        x = generator.standard_normal((count, 5)) / np.sqrt(10)
        cluster = generator.integers(0, 4, count)
        x[np.arange(count), cluster // 2] += 1 - 2 * (cluster % 2)
        h = x @ row.T
        f = (np.tanh(h) if activation == "tanh" else np.maximum(h, 0.0)) @ weights
        right = np.where(f == 0, 0.5, (f > 0) == (cluster < 2)).mean()
        # eight scramblings: four standard errors of a t distribution
        assert abs(share - right) <= Z * np.sqrt(right * (1 - right) / count) + 5 * error


def test_diverged_states_have_no_accuracy():
    problem = sgd.GaussianMixture("xor", width=4, snr=10.0)
    M = np.stack([ORACLE, np.nan * ORACLE])[:, None]
    Q = np.stack([ORACLE @ ORACLE.T, np.eye(4)])[:, None]
    shares, error = accuracy.population_accuracy(problem, M, Q, np.stack([ORACLE_HEAD] * 2))
    assert np.isnan(shares[1])
    assert shares[0] == pytest.approx(1 - oracle_error(10.0), abs=1e-9)
    assert error < 2e-6


def test_the_warning_of_a_large_error_names_its_cause():
    """The library's own activations declare their kinks: nobody is asked to declare them again."""
    algorithm = sgd.OnePassSGD(lr=0.1)
    (text,) = FieldDynamics(sgd.GaussianMixture("xor"), algorithm).solution_warnings(
        Risks(np.ones(1), 0.0, 7e-4), CLOCK
    )
    assert "7.0e-04" in text
    assert "declare" not in text
    assert "quadrature" in text
    (text,) = FieldDynamics(
        sgd.TeacherStudent(width=2, activation="tanh"), algorithm
    ).solution_warnings(Risks(np.ones(1), 0.0, 1e-3), CLOCK)
    assert "declare" not in text
    own = sgd.TeacherStudent(width=2, activation=lambda x: x / (1 + x**2))
    (text,) = FieldDynamics(own, algorithm).solution_warnings(Risks(np.ones(1), 0.0, 1e-3), CLOCK)
    assert "declare" in text


def test_expect_of_an_indicator_states_its_error():
    problem = sgd.GaussianMixture("xor", width=4, snr=10.0)
    start = sgd.start(problem, M=ORACLE, Q=ORACLE @ ORACLE.T, a=ORACLE_HEAD)

    def wrong(fields, signals, head, label):
        return abs(fields[0]) * (2 * label - 1) < abs(fields[2]) * (2 * label - 1)

    share = sgd.expect(start, wrong, problem)
    error = float(share.standard_error[0])
    assert error < 4e-4
    assert abs(float(share[0]) - oracle_error(10.0)) < 5 * error
