"""Epochs: the two-time equations against a Volterra equation, closed forms and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sgdynamics.algorithms.cell_stability import CellStability
from sgdynamics.papers import epochs as paper
from sgdynamics.papers.epochs.formulas import two_time
from tests.conftest import FALSE_ALARM


def replacement(gamma, alpha, noise, last):
    """Distance |w - w*|^2 of SGD with replacement, at s = samples/d from 0 to `last`.

    The mean squared residual P(s) of the samples solves a Volterra equation, with mu the
    Marchenko-Pastur law, which is the spectrum of X^T X/n::

        P(s) = F(s) + gamma^2 int_0^s K_2(s - u) P(u) du
        |w - w*|^2(s) = G(s) + gamma^2 int_0^s K_1(s - u) P(u) du
        K_j(s) = int x^j exp(-2 gamma x s) dmu(x)

    F and G are the residual and the distance under gradient flow. The spectrum is integrated with
    Gauss-Chebyshev nodes, and the convolutions by the trapezoidal rule.
    """
    low, high = (1 - alpha**-0.5) ** 2, (1 + alpha**-0.5) ** 2
    angle = (np.arange(400) + 0.5) * math.pi / 400
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    weight = alpha * ((high - low) / 2 * np.sin(angle)) ** 2 / (2 * math.pi * x) * math.pi / 400
    weight = weight / weight.sum()  # for alpha >= 1 the spectrum has no atom at 0
    s = np.linspace(0, last, 801)
    decay = np.exp(-2 * gamma * x * s[:, None])
    F = decay @ (weight * x) + noise * (1 - 1 / alpha + decay @ weight / alpha)
    G = decay @ weight + noise / alpha * ((1 - np.sqrt(decay)) ** 2 @ (weight / x))
    kernels = [gamma**2 * (decay @ (weight * x**power)) for power in (2, 1)]
    P, h = np.zeros(len(s)), s[1]
    for i in range(len(s)):
        past = h * (np.dot(kernels[0][i:0:-1], P[:i]) - kernels[0][i] * P[0] / 2) if i else 0.0
        P[i] = (F[i] + past) / (1 - (h / 2 * kernels[0][0] if i else 0.0))
    convolution = [
        integrate.trapezoid(kernels[1][: i + 1][::-1] * P[: i + 1], dx=h) for i in range(len(s))
    ]
    return G + np.array(convolution), s


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_sgd_with_replacement_follows_the_volterra_equation(noise):
    expected, s = replacement(0.8, 2.0, noise, 6.0)
    solution = paper.linear_epochs(0.8, 2.0, noise, 3, "replacement")
    np.testing.assert_allclose(solution.distance, np.interp([0, 2, 4, 6], s, expected), atol=5e-4)


@pytest.mark.parametrize("lr", [1.2, 1.5, pytest.param(1.605, marks=pytest.mark.slow)])
def test_large_learning_rates_agree_with_the_volterra_equation(lr):
    """The number of cells grows with lr: 40 cells, enough at small lr, are not enough at lr = 1.5.

    With 40 cells the distance at lr = 1.5 is three times too large after four epochs.
    """
    distance, s = replacement(lr, 2.0, 0.0, 8.0)
    expected = np.interp(2.0 * np.arange(5), s, distance)
    solution = paper.linear_epochs(lr, 2.0, 0.0, 4, "replacement")
    error = np.abs(solution.distance - expected)
    assert np.all(error <= 0.006 * expected)
    # The Volterra equation itself is solved to 3e-4.
    assert np.all(error <= solution.distance_error + 3e-4 * expected)
    assert np.all(solution.distance_error <= 0.05 * expected)


def test_the_error_estimate_of_few_cells_is_honest():
    """The error estimate covers the true error, and a warning asks for more cells.

    At lr = 1.5, 40 cells are just stable, and the distance is wrong by more than a factor of two.
    """
    with pytest.warns(
        UserWarning, match="estimated error of distance is .* Use more cells than 40"
    ):
        coarse = paper.linear_epochs(1.5, 2.0, 0.0, 4, cells=40)
    fine = paper.linear_epochs(1.5, 2.0, 0.0, 4, cells=160)
    assert coarse.distance[-1] > 2 * fine.distance[-1]
    assert np.all(np.abs(coarse.distance - fine.distance) <= coarse.distance_error)


@pytest.mark.parametrize(("lr", "alpha"), [(1.5, 2.0), (1.2, 6.0), (1.8, 0.7)])
def test_the_stability_of_cells_is_that_of_the_two_time_equations(lr, alpha):
    """The residual grows from epoch to epoch below the critical number of cells only.

    Samples are drawn with replacement; above the critical number the residual decreases.
    """
    stability = CellStability(lr, alpha, np.ones(1), np.ones(1))
    critical = next(cells for cells in range(2, 100) if stability.load(cells) <= 1 + 1e-9)
    for cells, grows in ((critical - 1, True), (critical + 1, False)):
        residual = two_time(lr, alpha, 0.0, "replacement", 14, cells)[1]
        assert (residual[-1] > residual[-2]) == grows


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_load_is_that_of_a_large_sample_covariance(decay):
    """The load and the largest eigenvalue, from one sample covariance in 1200 dimensions.

    The population covariance has two eigenvalues. The load is the larger of two integrals: over
    the spectrum of the sample covariance (later epochs), and over that of the population
    covariance (first epoch); see `CellStability`.
    """
    rng, d, alpha = np.random.default_rng(0), 1200, 2.0
    eigenvalues, fractions = np.array([3.0, 0.4]), np.array([0.25, 0.75])
    X = rng.normal(size=(int(alpha * d), d)) * np.sqrt(np.repeat(eigenvalues, [300, 900]))
    x = np.linalg.eigvalsh(X.T @ X / len(X))
    stability = CellStability(0.7, alpha, eigenvalues, fractions, decay)
    assert x.max() < stability.eigenvalue_bound < 1.3 * x.max()
    for cells in (10, 50):
        tau = 0.7 * alpha / cells
        expected = 0.7 * (1 - 1 / cells) * np.mean(x**2 / ((x + decay) * (2 - tau * (x + decay))))
        damping = eigenvalues + decay
        fresh = 0.7 * np.sum(fractions * eigenvalues**2 / (damping * (2 - tau * damping)))
        assert stability.load(cells) == pytest.approx(max(expected, fresh), rel=0.01)
    assert stability.load(1e9) == pytest.approx(stability.load(math.inf), rel=1e-6)


@pytest.mark.parametrize("order", ["reshuffle", "fixed"])
def test_a_plain_loop_has_these_distances(order):
    rng, d, runs, lr, noise = np.random.default_rng(0), 200, 40, 0.8, 0.25
    n, distances = 2 * d, np.zeros((runs, 3))
    X, z = rng.normal(size=(runs, n, d)), math.sqrt(noise) * rng.normal(size=(runs, n))
    displacement = np.full((runs, d), 1 / math.sqrt(d))  # w* - w
    for epoch in range(3):
        for sample in range(n):
            x = X[:, sample]
            error = np.sum(x * displacement, axis=1) + z[:, sample]
            displacement -= lr / d * x * error[:, None]
        if order == "reshuffle":
            permutation = rng.permutation(n)
            X, z = X[:, permutation], z[:, permutation]
        distances[:, epoch] = np.sum(displacement**2, axis=1)
    expected = paper.linear_epochs(lr, 2.0, noise, 3, order)[0][1:]
    error = distances.std(axis=0, ddof=1) / math.sqrt(runs)
    # Two-sided, three epochs: FALSE_ALARM / 6. The finite dimension adds a relative O(1/d).
    tolerance = stats.t.isf(FALSE_ALARM / 6, runs - 1) * error + 4 / d * expected
    assert np.all(np.abs(distances.mean(axis=0) - expected) < tolerance)
    assert np.all(error < 0.03 * expected)  # precise enough to detect an error of a few percent


def test_fresh_samples_of_the_first_epoch_are_its_samples():
    for noise in (0.0, 0.25):
        distance = paper.linear_epochs(0.8, 2.0, noise, 1).distance
        np.testing.assert_allclose(paper.fresh_samples(distance, 0.8, noise), [0.0, 2.0], atol=2e-3)
    assert np.isnan(paper.fresh_samples(0.1, 0.8, 0.25))
    assert np.all(np.isnan(paper.linear_epochs(0.8, 2.0, 0.0, 1, "fixed", cells=16).residual))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper.linear_epochs(0.0, 2.0, 0.1, 2), "lr = 0.0"),
        (lambda: paper.linear_epochs(0.8, -1.0, 0.1, 2), "samples_per_dimension = -1.0"),
        (lambda: paper.linear_epochs(0.8, 2.0, -0.1, 2), "noise = -0.1"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 0), "epochs = 0"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 2, "shuffle"), "order = 'shuffle'"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 2, cells=6), "cells = 6: .*multiple of 4"),
        (
            lambda: paper.linear_epochs(1.5, 2.0, 0.0, 2, cells=24),
            "cells = 24: .*unstable.* Use cells = 28 or more",
        ),
        (
            lambda: paper.linear_epochs(1.9, 2.0, 0.0, 6),
            "epochs = 6: with 972 cells .*Use fewer epochs, a smaller lr",
        ),
        (lambda: paper.linear_epochs(2.0, 2.0, 0.0, 6), "lr = 2.0: .*diverges from lr = 2 on"),
        (
            lambda: paper.linear_epochs(0.8, 2.0, 0.1, 1000),
            "epochs = 1000: with 40 cells per epoch there are 40000 cells, more than 4000",
        ),
        (lambda: paper.fresh_samples(0.5, 2.0, 0.1), "lr = 2.0: .*below 2"),
        (lambda: paper.fresh_samples("far", 0.8, 0.1), "distance = 'far'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
