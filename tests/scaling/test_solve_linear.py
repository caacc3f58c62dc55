"""Exact mean risks of linear students: against stepping, runs, reference values; and what is said of real samples."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.scaling.modes import _decompose_step
from tests.conftest import Z


def committee(**changes):
    """Three linear units with a head of their own, two teachers, blocks of 1, 2 and 30 coordinates."""
    spectrum = sgd.Spectrum([2.0, 1.0, 0.2], [1, 2, 30], target=[[0.5, 0.3, 0.6], [0.2, -0.4, 0.1]])
    given = {
        "width": 3,
        "teacher_width": 2,
        "activation": "linear",
        "noise": 0.1,
        "covariance": spectrum,
        "teacher_head": [1.0, 2.0],
    }
    problem = sgd.TeacherStudent(**{**given, **changes})
    return problem, sgd.random_start(problem, seed=1, a=[1.0, -2.0, 3.0])


def test_power_law_of_a_billion_directions():
    """Reference values at d = 1e9, with the error of the bins taken off by Richardson's rule."""
    found = []
    for bins in (300, 600):
        problem = sgd.TeacherStudent(
            width=1,
            activation="linear",
            noise=1e-4,
            covariance=sgd.power_law(1.2, 1e9, 0.3, raw=300, bins=bins),
        )
        zero = np.zeros((problem.spectrum.blocks, 1, 1))
        algorithm = sgd.OnePassSGD(lr=0.5, per="trace")
        found.append(
            sgd.solve_linear(
                problem, algorithm, sgd.start(problem, M=zero, Q=zero), steps=[100, 10**4, 10**6]
            ).risk.values[0]
        )
    np.testing.assert_allclose(
        (4 * found[1] - found[0]) / 3, [0.0987796, 0.00495365, 2.97957e-4], rtol=1.2e-6
    )


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_all_steps_at_once(decay):
    """Weight decay, pieces of a schedule and a committee against the recursion of means and squares, coordinate by coordinate."""
    rng, g, B, s2 = np.random.default_rng(0), (0.21, 0.05), 2, 0.1
    eigenvalues = np.repeat([2.0, 1.0, 0.2], [1, 2, 3])
    target, w = rng.standard_normal((2, 6))
    spectrum = sgd.Spectrum(
        [2.0, 1.0, 0.2],
        [1, 2, 3],
        target=[np.sqrt(np.sum(part**2)) for part in np.split(target, [1, 3])],
    )
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=s2, weight_decay=decay, covariance=spectrum
    )
    parts = list(zip(np.split(w, [1, 3]), np.split(target, [1, 3]), strict=True))
    M, Q = (
        [[[float(one @ other)]] for one, other in pairs]
        for pairs in (parts, [(one, one) for one, _ in parts])
    )
    begin = sgd.start(problem, M=np.array(M), Q=np.array(Q))
    edge = 20 * B / 6
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([edge], g), batch=B, per="step")
    result = sgd.solve_linear(problem, algorithm, begin, steps=[0, 1, 19, 20, 21, 60])
    c, m, risks = (w - target) ** 2, w - target, []
    for step in range(61):
        risks.append((eigenvalues @ c + s2) / 2)
        rate = g[0] if step < 20 else g[1]
        r = 1 - rate * decay
        grown = rate**2 / B * eigenvalues * 2 * risks[-1]
        q = r**2 - 2 * r * rate * eigenvalues + rate**2 * (1 + 1 / B) * eigenvalues**2
        c = (
            q * c
            + grown
            - 2 * rate * decay * (r - rate * eigenvalues) * target * m
            + (rate * decay * target) ** 2
        )
        m = (r - rate * eigenvalues) * m - rate * decay * target
    np.testing.assert_allclose(result.risk[0], np.array(risks)[[0, 1, 19, 20, 21, 60]], rtol=1e-11)
    np.testing.assert_allclose(result.t[-1], 20 * g[0] + 40 * g[1])


@pytest.mark.slow
def test_it_is_the_mean_of_runs():
    problem, begin = committee(weight_decay=0.3)
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.4], [6.0, 2.0]), batch=2)
    mean = sgd.solve_linear(problem, algorithm, begin, steps=[0, 1, 5, 20, 40])
    runs = sgd.simulate(problem, algorithm, begin, steps=[0, 1, 5, 20, 40], runs=20_000)
    gap = np.abs(runs.risk.mean("run") - mean.risk[0])
    assert np.all(gap <= Z * runs.risk.std("run") / np.sqrt(20_000) + 1e-12)
    np.testing.assert_allclose(mean.t, runs.t)


def test_what_it_says():
    problem, begin = committee()
    result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.5, per="trace"), begin, steps=[0, 3])
    assert sgd.problem_of(result) == problem
    # a head of 1, -2, 3 over three units moves the output 14/9 as far as a row
    modes = sgd.scaling.LinearModes([2.0, 1.0, 0.2], [1, 2, 30], [1.0, 1.0, 1.0])
    assert result.attrs["largest_step"] == pytest.approx(modes.largest_step() * 9 / 14)
    assert result.attrs["noise_gain"] == pytest.approx(modes.noise_gain(0.05 * 14 / 9))
    steep = problem.replace(
        covariance=sgd.Spectrum([2.0, 0.1], [1, 5], target=[[0.5, 0.3], [0.2, -0.4]])
    )
    with pytest.warns(UserWarning, match="fourth moments diverge, and rare runs carry the mean"):
        sgd.solve_linear(
            steep, sgd.OnePassSGD(lr=0.6, per="step"), sgd.random_start(steep), steps=[3]
        )
    with pytest.warns(UserWarning, match="the mean does not settle"):
        grown = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.6, per="step"), begin, steps=[10**6])
    assert grown.risk[0, 0] == np.inf
    for changes in ({"activation": "erf"}, {"head": "trained"}, {"constraint": "sphere"}):
        other = problem.replace(**changes)
        with pytest.raises(ValueError, match="this is for linear students"):
            sgd.solve_linear(other, sgd.OnePassSGD(), sgd.random_start(other), steps=[1])


def test_elliptical_samples_need_kappa():
    """x = sqrt(tau) z: kappa and the largest step are found from samples, and the repaired mean is that of SGD."""
    rng, n = np.random.default_rng(1), 20_000
    tau = rng.choice([0.25, 1.75], size=n)
    x = np.sqrt(tau)[:, None] * rng.standard_normal((n, 6)) * [2.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    with pytest.warns(UserWarning, match="Gaussian theory does not apply"):
        found = sgd.spectrum_of(x, x @ np.ones(6))
    assert found.kappa == pytest.approx(np.mean(tau**2), rel=0.05)
    modes = sgd.scaling.LinearModes(found.eigenvalues, np.ones(6), np.ones(6), kappa=found.kappa)
    assert found.largest_step == pytest.approx(modes.largest_step(), rel=0.1)
    assert found.gaussian_step == pytest.approx(
        sgd.scaling.LinearModes(found.eigenvalues, np.ones(6), np.ones(6)).largest_step(), rel=1e-4
    )


def test_spectrum_of_gaussian_samples():
    rng, n = np.random.default_rng(2), 50_000
    axes = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    scales, target = np.array([3.0, 1.0, 0.5, 0.2, 0.0]), np.array([0.3, -1.0, 0.5, 2.0, 1.0])
    x = (rng.standard_normal((n, 5)) * scales) @ axes.T
    y = x @ (axes @ target) + 0.3 * rng.standard_normal(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sgd.spectrum_of(x, y)
    assert found.dimension == 4
    np.testing.assert_allclose(found.eigenvalues, scales[:4] ** 2, rtol=0.05)
    np.testing.assert_allclose(np.sqrt(found.target[:, 0, 0]), np.abs(target[:4]), rtol=0.03)
    assert found.noise == pytest.approx(0.09, rel=0.05)
    assert found.kappa == pytest.approx(1.0, abs=0.05)
    assert found.residual_ratio == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(
        x @ found.axes @ np.sqrt(found.target[:, 0, 0]) + found.residuals, y, atol=1e-10
    )
    for X, labels, said in (
        (x[:1], None, "X = "),
        (x, y[:5], f"give {n} finite numbers"),
        (0 * x, None, "all inputs are 0"),
    ):
        with pytest.raises(ValueError, match=said):
            sgd.spectrum_of(X, labels)


def test_runs_share_an_eigenproblem():
    """One a piece of the schedule, however many runs; each is that of its own start alone."""
    problem, _ = committee(weight_decay=0.3)
    begin = sgd.random_start(problem, runs=5, seed=1)
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.4, 0.8], [6.0, 2.0, 3.0]), batch=2)
    _decompose_step.cache_clear()
    together = sgd.solve_linear(problem, algorithm, begin, steps=[0, 5, 20, 40])
    assert _decompose_step.cache_info().misses == 3
    for run in range(5):
        one = sgd.start(problem, M=begin.M_blocks[run], Q=begin.Q_blocks[run])
        _decompose_step.cache_clear()
        alone = sgd.solve_linear(problem, algorithm, one, steps=[0, 5, 20, 40])
        np.testing.assert_array_equal(together.risk[run], alone.risk[0])
