"""Exact mean risks of linear students, and the spectrum of real samples.

The risks are compared with the recursion, with runs, and with reference values.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.scaling.modes import _decompose_step
from tests.conftest import Z


def committee(**changes):
    """Three linear units with different heads, two teachers, blocks of 1, 2 and 30 coordinates."""
    spectrum = sgd.Spectrum([2.0, 1.0, 0.2], [1, 2, 30], target=[[0.5, 0.3, 0.6], [0.2, -0.4, 0.1]])
    arguments = {
        "width": 3,
        "teacher_width": 2,
        "activation": "linear",
        "noise": 0.1,
        "covariance": spectrum,
        "teacher_head": [1.0, 2.0],
    }
    problem = sgd.TeacherStudent(**{**arguments, **changes})
    return problem, sgd.random_start(problem, seed=1, a=[1.0, -2.0, 3.0])


@pytest.mark.slow
def test_a_smooth_schedule_is_the_limit_of_pieces():
    """Step by step, a cosine equals pieces of one step each, with weight decay and batches."""
    spectrum = sgd.Spectrum([4.0, 1.0, 0.3], [1, 3, 40], target=[0.5, 0.5, 1.0])
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.1, weight_decay=0.05, covariance=spectrum
    )
    start = sgd.start(problem, M=np.zeros((3, 1, 1)), Q=np.full((3, 1, 1), 0.2))
    smooth = sgd.schedules.cosine(0.08, alpha=40 * 2 / 44)
    rates = sgd.OnePassSGD(lr=smooth).rates(np.arange(40) * 2 / 44)
    pieces = sgd.piecewise_rate(np.arange(1, 40) * 2 / 44, rates)
    steps = [0, 1, 17, 40]
    results = [
        sgd.solve_linear(
            problem, sgd.OnePassSGD(lr=lr, batch=2, per="step"), start, steps=steps, dimension=44
        )
        for lr in (smooth, pieces)
    ]
    np.testing.assert_allclose(results[0]["risk"], results[1]["risk"], rtol=1e-9)
    np.testing.assert_allclose(results[0]["t"], results[1]["t"], rtol=1e-9)
    assert results[0].attrs["g_l1"] == pytest.approx(results[1].attrs["g_l1"])
    with pytest.raises(ValueError, match=r"steps = 10000000.0: a learning rate that changes"):
        sgd.solve_linear(
            problem, sgd.OnePassSGD(lr=smooth, per="step"), start, steps=[10**7], dimension=44
        )


def test_power_law_of_a_billion_directions():
    """Reference values at d = 1e9; Richardson extrapolation removes the error of the bins."""
    risks = []
    algorithm = sgd.OnePassSGD(lr=0.5, per="trace")
    for bins in (300, 600):
        spectrum = sgd.power_law(1.2, 1e9, 0.3, raw=300, bins=bins)
        problem = sgd.TeacherStudent(width=1, activation="linear", noise=1e-4, covariance=spectrum)
        zero = np.zeros((problem.spectrum.blocks, 1, 1))
        start = sgd.start(problem, M=zero, Q=zero)
        result = sgd.solve_linear(problem, algorithm, start, steps=[100, 10**4, 10**6])
        risks.append(result.risk.values[0])
    extrapolated = (4 * risks[1] - risks[0]) / 3
    np.testing.assert_allclose(extrapolated, [0.0987796, 0.00495365, 2.97957e-4], rtol=1.2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_all_steps_at_once(decay):
    """Weight decay and a piecewise schedule.

    The reference is the recursion of means and mean squares of each coordinate.
    """
    rng, g, B, s2 = np.random.default_rng(0), (0.21, 0.05), 2, 0.1
    eigenvalues = np.repeat([2.0, 1.0, 0.2], [1, 2, 3])
    target, w = rng.standard_normal((2, 6))
    target_blocks, w_blocks = np.split(target, [1, 3]), np.split(w, [1, 3])
    spectrum = sgd.Spectrum(
        [2.0, 1.0, 0.2],
        [1, 2, 3],
        target=[np.sqrt(np.sum(block**2)) for block in target_blocks],
    )
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=s2, weight_decay=decay, covariance=spectrum
    )
    M = [[[float(row @ signal)]] for row, signal in zip(w_blocks, target_blocks, strict=True)]
    Q = [[[float(row @ row)]] for row in w_blocks]
    start = sgd.start(problem, M=np.array(M), Q=np.array(Q))
    edge = 20 * B / 6
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([edge], g), batch=B, per="step")
    result = sgd.solve_linear(problem, algorithm, start, steps=[0, 1, 19, 20, 21, 60])
    c, m, risks = (w - target) ** 2, w - target, []
    for step in range(61):
        risks.append((eigenvalues @ c + s2) / 2)
        rate = g[0] if step < 20 else g[1]
        r = 1 - rate * decay
        grown = rate**2 / B * eigenvalues * 2 * risks[-1]
        q = r**2 - 2 * r * rate * eigenvalues + rate**2 * (1 + 1 / B) * eigenvalues**2
        pull = rate * decay * target
        c = q * c + grown - 2 * pull * (r - rate * eigenvalues) * m + pull**2
        m = (r - rate * eigenvalues) * m - pull
    np.testing.assert_allclose(result.risk[0], np.array(risks)[[0, 1, 19, 20, 21, 60]], rtol=1e-11)
    np.testing.assert_allclose(result.t[-1], 20 * g[0] + 40 * g[1])


@pytest.mark.slow
def test_the_solution_is_the_mean_of_runs():
    problem, start = committee(weight_decay=0.3)
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.4], [6.0, 2.0]), batch=2)
    mean = sgd.solve_linear(problem, algorithm, start, steps=[0, 1, 5, 20, 40])
    runs = sgd.simulate(problem, algorithm, start, steps=[0, 1, 5, 20, 40], runs=20_000)
    gap = np.abs(runs.risk.mean("run") - mean.risk[0])
    assert np.all(gap <= Z * runs.risk.std("run") / np.sqrt(20_000) + 1e-12)
    np.testing.assert_allclose(mean.t, runs.t)


def test_attributes_warnings_and_errors():
    problem, start = committee()
    result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.5, per="trace"), start, steps=[0, 3])
    assert sgd.problem_of(result) == problem
    # A head (1, -2, 3) over three units moves the output 14/9 times as far as a row.
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
        diverging = sgd.solve_linear(
            problem, sgd.OnePassSGD(lr=0.6, per="step"), start, steps=[10**6]
        )
    assert diverging.risk[0, 0] == np.inf
    for changes in ({"activation": "erf"}, {"head": "trained"}, {"constraint": "sphere"}):
        nonlinear = problem.replace(**changes)
        with pytest.raises(ValueError, match="this is for linear students"):
            sgd.solve_linear(nonlinear, sgd.OnePassSGD(), sgd.random_start(nonlinear), steps=[1])


def test_elliptical_samples_need_kappa():
    """Samples x = sqrt(tau) z: kappa and the largest step are estimated from the samples."""
    rng, n = np.random.default_rng(1), 20_000
    tau = rng.choice([0.25, 1.75], size=n)
    x = np.sqrt(tau)[:, None] * rng.standard_normal((n, 6)) * [2.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    with pytest.warns(UserWarning, match="Gaussian theory does not apply"):
        spectrum = sgd.spectrum_of(x, x @ np.ones(6))
    assert spectrum.kappa == pytest.approx(np.mean(tau**2), rel=0.05)
    modes = sgd.scaling.LinearModes(
        spectrum.eigenvalues, np.ones(6), np.ones(6), kappa=spectrum.kappa
    )
    assert spectrum.largest_step == pytest.approx(modes.largest_step(), rel=0.1)
    assert spectrum.gaussian_step == pytest.approx(
        sgd.scaling.LinearModes(spectrum.eigenvalues, np.ones(6), np.ones(6)).largest_step(),
        rel=1e-4,
    )


def test_spectrum_of_gaussian_samples():
    rng, n = np.random.default_rng(2), 50_000
    axes = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    scales, target = np.array([3.0, 1.0, 0.5, 0.2, 0.0]), np.array([0.3, -1.0, 0.5, 2.0, 1.0])
    x = (rng.standard_normal((n, 5)) * scales) @ axes.T
    y = x @ (axes @ target) + 0.3 * rng.standard_normal(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spectrum = sgd.spectrum_of(x, y)
    assert spectrum.dimension == 4
    np.testing.assert_allclose(spectrum.eigenvalues, scales[:4] ** 2, rtol=0.05)
    np.testing.assert_allclose(np.sqrt(spectrum.target[:, 0, 0]), np.abs(target[:4]), rtol=0.03)
    assert spectrum.noise == pytest.approx(0.09, rel=0.05)
    assert spectrum.kappa == pytest.approx(1.0, abs=0.05)
    assert spectrum.residual_ratio == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(
        x @ spectrum.axes @ np.sqrt(spectrum.target[:, 0, 0]) + spectrum.residuals, y, atol=1e-10
    )
    for X, labels, message in (
        (x[:1], None, "X = "),
        (x, y[:5], f"give {n} finite numbers"),
        (0 * x, None, "all inputs are 0"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.spectrum_of(X, labels)


def test_runs_share_an_eigenproblem():
    """Each piece of the schedule has one eigenproblem for all runs; the results do not change."""
    problem, _ = committee(weight_decay=0.3)
    start = sgd.random_start(problem, runs=5, seed=1)
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.4, 0.8], [6.0, 2.0, 3.0]), batch=2)
    _decompose_step.cache_clear()
    batch = sgd.solve_linear(problem, algorithm, start, steps=[0, 5, 20, 40])
    assert _decompose_step.cache_info().misses == 3
    for run in range(5):
        single_start = sgd.start(problem, M=start.M_blocks[run], Q=start.Q_blocks[run])
        _decompose_step.cache_clear()
        single = sgd.solve_linear(problem, algorithm, single_start, steps=[0, 5, 20, 40])
        np.testing.assert_array_equal(batch.risk[run], single.risk[0])
