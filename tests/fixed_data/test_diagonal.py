"""Diagonal networks: the law of one pass, its late limit, data sets, and the interpolator."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.cli import problem_files
from sgdynamics.ode.diagonal import TransportedLaw, solve_law
from sgdynamics.problems.diagonal_limits import potential_map
from sgdynamics.results.records import problem_from
from tests.conftest import Z, same_law

SPARSE = [(1.0, 0.2), (0.0, 0.8)]
PROBLEM = sgd.DiagonalNetwork(teacher=SPARSE, start=0.2, noise=0.25)
ONE_PASS = sgd.OnePassSGD(lr=0.3)
DATA = sgd.DiagonalNetwork(teacher=[(1.0, 0.1), (0.0, 0.9)], start=0.5)
DESCENT = sgd.GradientDescent(lr=0.1, samples_per_dimension=0.5)
BLOCKS = sgd.DiagonalNetwork(
    teacher=[(1.0, 0.25), (-0.5, 0.25), (0.0, 0.5)],
    start=(0.8, 0.3),
    noise=0.1,
    weight_decay=0.05,
    covariance=[(2.0, 0.25), (0.5, 0.75)],
)


def twice(excess):
    """E[(a - b)^2] of the reference values: the loss has a factor 1/2."""
    return 2 * excess.values[0]


@pytest.mark.slow
def test_one_pass_reference_values():
    """Particles of another implementation, to their error .0005 (2605.17177)."""
    noisy = sgd.solve_ode(PROBLEM, ONE_PASS, alpha=[1, 2, 5, 10, 20])
    assert np.allclose(
        twice(noisy.excess_risk), [0.1948, 0.1877, 0.1384, 0.0371, 0.0167], atol=6e-4
    )
    assert np.allclose(noisy.imbalance[0], [0.0384, 0.0369, 0.0330, 0.0284, 0.0223], atol=6e-5)
    assert noisy.attrs["error_integrator"] < 1e-5
    quiet = PROBLEM.replace(noise=0.0, start=1.0)
    clean = sgd.solve_ode(quiet, ONE_PASS, alpha=[1, 2, 5, 10])
    assert np.allclose(twice(clean.excess_risk), [0.1172, 0.0631, 0.0071, 0.00034], atol=6e-4)
    assert np.allclose(clean.imbalance[0], [0.986, 0.978, 0.971, 0.970], atol=6e-4)
    # The loss is (f - y)^2/2, and a schedule of a constant is that constant.
    assert np.allclose(noisy.risk, noisy.excess_risk + 0.125)
    scheduled = sgd.OnePassSGD(lr=lambda alpha: 0.3 + 0 * alpha)
    same = sgd.solve_ode(PROBLEM, scheduled, alpha=[1])
    assert np.allclose(same.excess_risk[0], noisy.excess_risk[0, :1], rtol=1e-6)


def test_the_transported_law_without_interaction_is_exact():
    """Far in the lazy regime the weights are Ornstein-Uhlenbeck processes: a = c theta/2."""
    c, rate, noise = 1e6, 1e-9, 0.3
    problem = sgd.DiagonalNetwork(teacher=[(1.0, 1.0)], start=np.sqrt(c), noise=noise)
    law = TransportedLaw(problem.parameters, 33, lambda _: rate, lambda _: 1.0)
    times = np.array([0.2, 1.0, 5.0]) / c
    values = solve_law(law, times, 1e-9).values
    # da = -c (a - b) dt + c sqrt(r R) dB, with R = noise + E[(a - b)^2] = noise + m^2 + s
    mean = np.exp(-c * times)
    # ds = (-2 c s + c^2 r R) dt, of which s is of first order in c r = 1e-3
    steps = np.linspace(0, times[-1], 20001)
    s, saved = 0.0, []
    for low, high in pairwise(steps):
        middle = 0.5 * (low + high)
        R = noise + np.exp(-2 * c * middle) + s
        s += (high - low) * (-2 * c * s + c * c * rate * R)
        saved.append(s)
    variance = np.interp(times, steps[1:], saved)
    assert np.allclose(1 - values["weight_mean"][:, 0], mean, atol=1e-6)
    assert np.allclose(2 * values["excess_risk"], mean**2 + variance, rtol=3e-4)


def particles(problem, rate, end, count, step, seed):
    """Excess E[(a - b)^2] of plain Euler particles (u, v), an independent integrator."""
    generator = np.random.default_rng(seed)
    parameters = problem.parameters
    b = np.repeat(parameters["teacher"], np.round(count * parameters["shares"]).astype(int))
    u, v = (np.full(len(b), start) for start in problem.start)
    for _ in range(round(end / step)):
        R = problem.noise + np.mean((u * v - b) ** 2)
        # e x_j/sqrt(d) of a step: mean (a - b)/d and variance R/d
        kick = (u * v - b) * step + np.sqrt(rate * R * step) * generator.standard_normal(len(b))
        u, v = u - v * kick, v - u * kick
    return np.mean((u * v - b) ** 2)


def test_the_law_against_particles():
    end = 1.5
    solved = sgd.solve_ode(PROBLEM, ONE_PASS, times=[end])
    values = [particles(PROBLEM, 0.3, end, 20000, 0.01, seed) for seed in range(4)]
    error = np.std(values, ddof=1) / 2
    # The Euler step has an error of first order, about its length.
    assert abs(np.mean(values) - twice(solved.excess_risk)[0]) < Z * error + 5e-3 * 0.138


def test_late_law_of_label_noise():
    excess = [2 * PROBLEM.late_law(lr=lr).excess_risk for lr in (0.3, 0.6)]
    assert np.allclose(excess, [0.01562, 0.03246], atol=5e-6)
    law = PROBLEM.late_law(lr=0.3)
    # The mean of squared errors of the Gamma law is the excess risk, and R is consistent.
    gamma = stats.gamma(law.shapes[0], scale=law.rate)
    square = gamma.var() + (gamma.mean() - 1.0) ** 2
    assert np.isclose(0.2 * square, 2 * law.excess_risk)
    assert np.isclose(law.rate, 0.3 * (0.25 + 2 * law.excess_risk))
    assert list(law.is_zero) == [False, True]
    # Small teacher weights vanish; signs follow the teacher; batches divide the noise.
    mixed = sgd.DiagonalNetwork(teacher=[(-1.0, 0.5), (0.02, 0.5)], noise=0.25)
    assert mixed.late_law(lr=0.4).means[0] < -0.9
    assert mixed.late_law(lr=0.4).is_zero[1]
    assert np.isclose(mixed.late_law(lr=0.8, batch=2).excess_risk, mixed.late_law(0.4).excess_risk)
    assert PROBLEM.replace(noise=0.0).late_law(lr=0.3).excess_risk == 0


@pytest.mark.slow
def test_the_law_approaches_its_late_limit():
    solved = sgd.solve_ode(PROBLEM, ONE_PASS, alpha=[100.0, 400.0])
    gaps = twice(solved.excess_risk) - 2 * PROBLEM.late_law(lr=0.3).excess_risk
    assert 0 < gaps[1] < gaps[0] < 1e-3
    assert gaps[1] < 1e-4
    late = PROBLEM.late_law(lr=0.3)
    assert abs(solved.weight_mean[0, -1, 0] - late.means[0]) < 1e-3


def test_interpolator():
    """The least potential: L2 for wide starts, L1 for small ones; values checked by brute force."""
    excess = [2 * DATA.replace(start=u).interpolator(0.5).excess_risk for u in (10.0, 2.0, 0.5)]
    assert np.allclose(excess, [0.05, 0.0497, 0.03277], atol=1e-4)
    small = DATA.replace(start=1e-3).interpolator(0.5)
    assert small.excess_risk < 2e-6
    assert abs(small.l1_norm - 0.1) < 1e-3
    x = np.linspace(-3, 3, 13)
    a = potential_map(x, 0.3, 0.1)
    assert np.allclose(a + 0.3 * np.arcsinh(2 * a / 0.1), x, atol=1e-13)


def least_potential(inputs, labels, scales):
    """The interpolating weights of least potential, from Newton's method on the dual problem.

    With the multipliers m they are a = (c/2) sinh(X^T m). Decreasing c are good starts.
    """
    multipliers = np.zeros(len(inputs))
    for c in scales:
        for _ in range(200):
            angles = inputs.T @ multipliers
            a = 0.5 * c * np.sinh(angles)
            residuals = labels - inputs @ a
            if np.abs(residuals).max() < 1e-10:
                break
            hessian = (inputs * (0.5 * c * np.cosh(angles))) @ inputs.T
            direction = np.linalg.solve(hessian, residuals)
            length = min(1.0, 2 / np.abs(inputs.T @ direction).max())
            objective = multipliers @ labels - 0.5 * c * np.cosh(angles).sum()
            while True:
                proposal = multipliers + length * direction
                value = proposal @ labels - 0.5 * c * np.cosh(inputs.T @ proposal).sum()
                if value >= objective + 1e-4 * length * (residuals @ direction) or length < 1e-9:
                    break
                length /= 2
            multipliers = proposal
    return a


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.1, 0.3])
def test_interpolator_against_convex_programs(start):
    """The least potential of 40 data sets; at d = 1600 the start .1 gives .00486(37)."""
    d, scales = 400, [c for c in (4.0, 1.0, 0.25, 0.06, 0.02) if c > start**2] + [start**2]
    b = np.where(np.arange(d) < d // 10, 1.0, 0.0)
    excess, norms = [], []
    for seed in range(40):
        X = np.random.default_rng(seed).standard_normal((d // 2, d)) / np.sqrt(d)
        a = least_potential(X, X @ b, scales)
        excess.append(np.mean((a - b) ** 2))
        norms.append(np.mean(np.abs(a)))
    limit = DATA.replace(start=start).interpolator(0.5)
    for values, expected in ((excess, 2 * limit.excess_risk), (norms, limit.l1_norm)):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - expected) < Z * error
    assert abs(np.mean(norms) / limit.l1_norm - 1) < 0.02


@pytest.mark.slow
def test_gradient_descent_ends_at_the_interpolator():
    problem = DATA.replace(start=0.3)
    limit = problem.interpolator(0.5)
    runs = sgd.simulate(
        problem,
        sgd.GradientDescent(lr=0.15, samples_per_dimension=0.5),
        steps=[2000],
        dimension=400,
        runs=24,
        method="direct",
        progress=False,
    )
    assert np.all(runs.train_risk < 1e-8)
    values = runs.excess_risk.values[:, 0]
    error = Z * values.std(ddof=1) / np.sqrt(24) + 1.0 / 400 * limit.excess_risk
    assert abs(values.mean() - limit.excess_risk) < error
    norms = runs.l1_norm.values[:, 0]
    assert abs(norms.mean() - limit.l1_norm) < Z * norms.std(ddof=1) / np.sqrt(24) + 1e-3


@pytest.mark.slow
def test_exact_law_of_a_small_data_set():
    """Conditioning on products and stored inputs, where the frame fills the sample space."""
    arguments = {"steps": [1, 5], "dimension": 12, "runs": 1500, "progress": False}
    problem = BLOCKS.replace(teacher=[(1.0, 0.3), (0.0, 0.7)])
    algorithm = sgd.GradientDescent(lr=0.2, samples_per_dimension=1.0)
    exact = sgd.simulate(problem, algorithm, seed=1, **arguments)
    direct = sgd.simulate(problem, algorithm, seed=2, method="direct", **arguments)
    for name in ("excess_risk", "train_risk", "squared_norm"):
        for index in range(2):
            label = f"{name} at save point {index}"
            same_law(exact[name].values[:, index], direct[name].values[:, index], label)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_exact_law_with_a_frame_and_with_batches(fraction):
    algorithm = sgd.MultiPassSGD(lr=0.1, samples_per_dimension=1.0, batch_fraction=fraction)
    arguments = {"steps": [2, 8], "dimension": 24, "runs": 1000, "progress": False}
    exact = sgd.simulate(BLOCKS, algorithm, seed=1, **arguments)
    direct = sgd.simulate(BLOCKS, algorithm, seed=2, method="direct", **arguments)
    for name in ("excess_risk", "train_risk", "l1_norm"):
        for index in range(2):
            label = f"{name} at save point {index}"
            same_law(exact[name].values[:, index], direct[name].values[:, index], label)


def numpy_run(problem, algorithm, dimension, steps, seed):
    """Excess E[(a - b)^2] and training loss of gradient descent in NumPy."""
    generator = np.random.default_rng(seed)
    parameters = problem.parameters
    values, shares = parameters["teacher"], parameters["shares"]
    b = np.repeat(values, np.round(dimension * shares).astype(int))
    n = round(algorithm.samples_per_dimension * dimension)
    X = generator.standard_normal((n, dimension))
    y = X @ b / np.sqrt(dimension) + np.sqrt(problem.noise) * generator.standard_normal(n)
    u, v = (np.full(dimension, start) for start in problem.start)
    for _ in range(steps):
        gradient = np.sqrt(dimension) * X.T @ (X @ (u * v) / np.sqrt(dimension) - y) / n
        u, v = u - algorithm.lr * gradient * v, v - algorithm.lr * gradient * u
    residual = X @ (u * v) / np.sqrt(dimension) - y
    return np.mean((u * v - b) ** 2), np.mean(residual**2)


@pytest.mark.slow
def test_limit_of_a_data_set_against_numpy():
    limit = sgd.solve_dmft(DATA, DESCENT, steps=[0, 10], paths=4096, progress=False)
    assert twice(limit.excess_risk)[0] == pytest.approx(0.1, abs=1e-3)
    runs = np.array([numpy_run(DATA, DESCENT, 500, 10, seed) for seed in range(60)])
    for index, name in enumerate(("excess_risk", "train_risk")):
        error = np.hypot(
            runs[:, index].std(ddof=1) / np.sqrt(60), 2 * limit[f"{name}_standard_error"][0, 1]
        )
        gap = abs(runs[:, index].mean() - twice(limit[name])[1])
        assert gap < Z * error + 1 / 500 * runs[:, index].mean(), name


@pytest.mark.slow
def test_limit_of_batches_of_a_data_set():
    algorithm = sgd.MultiPassSGD(lr=0.1, samples_per_dimension=1.5, batch_fraction=0.5)
    limit = sgd.solve_dmft(BLOCKS, algorithm, steps=[10], paths=8192, progress=False)
    runs = sgd.simulate(
        BLOCKS, algorithm, steps=[10], dimension=400, runs=60, method="direct", progress=False
    )
    for name in ("excess_risk", "train_risk", "imbalance"):
        values = runs[name].values[:, 0]
        error = np.hypot(
            values.std(ddof=1) / np.sqrt(60), limit[f"{name}_standard_error"].values[0, 0]
        )
        assert abs(values.mean() - limit[name].values[0, 0]) < Z * error + 2 / 400 * values.mean()


@pytest.mark.slow
def test_one_pass_runs_with_blocks_decay_and_batches():
    algorithm = sgd.OnePassSGD(lr=0.6, batch=2)
    alpha = [1.0, 4.0]
    law = sgd.solve_ode(BLOCKS, algorithm, alpha=alpha)
    runs = sgd.simulate(BLOCKS, algorithm, alpha=alpha, dimension=400, runs=40, progress=False)
    for name in ("excess_risk", "imbalance", "l1_norm", "weight_mean", "weight_square"):
        values = runs[name].values
        error = Z * values.std(axis=0, ddof=1) / np.sqrt(40) + 0.01 * np.abs(values.mean(axis=0))
        assert np.all(np.abs(values.mean(axis=0) - law[name].values[0]) < error), name


def test_laws_of_teachers():
    laplace = sgd.DiagonalNetwork(teacher=stats.laplace())
    values, shares = np.array(laplace.teacher).T
    assert len(values) == 32
    assert shares @ values**2 == pytest.approx(2.0, rel=0.02)
    assert problem_from(laplace.describe()) == laplace
    with pytest.raises(ValueError, match="dimension = 20: the teacher weight"):
        sgd.simulate(laplace, ONE_PASS, steps=[1], dimension=20, progress=False)


def test_divergence_is_reported():
    unstable = sgd.DiagonalNetwork(teacher=SPARSE, noise=100.0)
    with pytest.warns(UserWarning, match="1 of 1 runs diverged"):
        result = sgd.solve_ode(unstable, sgd.OnePassSGD(lr=3.0), alpha=[0.0, 50.0])
    assert np.isnan(result.excess_risk[0, 1])
    assert result.diverged_at[0] == 0


def test_unsupported_combinations_raise():
    any_solver: Any = sgd.solve_sde
    calls = [
        (
            lambda: any_solver(PROBLEM, ONE_PASS, None, times=[1.0], dimension=50),
            "diagonal network",
        ),
        (lambda: sgd.solve_ode(PROBLEM, ONE_PASS, object(), times=[1.0]), "start = .*Omit"),
        (lambda: sgd.solve_ode(PROBLEM, ONE_PASS, times=[1.0], dimension=9), "dimension = 9"),
        (lambda: sgd.solve_dmft(PROBLEM, ONE_PASS, steps=[1]), "algorithm = .*"),
        (lambda: sgd.solve_dmft(PROBLEM, DESCENT, steps=[1], paths=100), "paths = 100"),
        (lambda: sgd.solve_dmft(PROBLEM, DESCENT, steps=[1], two_time=True), "two_time = True"),
        (lambda: sgd.solve_dmft(PROBLEM, DESCENT, steps=[1], cells=4), "cells = 4"),
        (lambda: sgd.solve_dmft(PROBLEM, sgd.EpochSGD(), steps=[1]), "algorithm = .*support"),
        (lambda: sgd.solve_dmft(PROBLEM, sgd.PersistentSGD(), steps=[1]), "algorithm = .*support"),
        (
            lambda: sgd.solve_ode(
                PROBLEM, ONE_PASS.replace(update=sgd.updates.momentum(0.5)), times=[1.0]
            ),
            "update = .*plain steps",
        ),
        (lambda: sgd.solve_ode(PROBLEM, ONE_PASS.replace(head_rate=2.0), times=[1]), "head_rate"),
        (lambda: sgd.DiagonalNetwork(start=0.0), "start = 0.0: with"),
        (lambda: sgd.DiagonalNetwork(start=(1.0, -1.0)), "start = .*signs"),
        (lambda: sgd.DiagonalNetwork(teacher=[(1.0, 0.5)]), "teacher = .*add up to 0.5"),
        (lambda: sgd.DiagonalNetwork(teacher=[1.0, 0.5]), "teacher = .*pairs"),
        (lambda: sgd.DiagonalNetwork(teacher=[(1.0, -1.0), (0.0, 2.0)]), "teacher = .*above 0"),
        (lambda: sgd.DiagonalNetwork(noise=-1.0), "noise = -1"),
        (
            lambda: sgd.DiagonalNetwork(covariance=sgd.power_law(1.2, dimension=400)),
            "covariance = .*many coordinates",
        ),
        (lambda: DATA.interpolator(1.5), "samples_per_dimension = 1.5"),
        (lambda: PROBLEM.interpolator(0.5), "noise = 0.25"),
        (lambda: BLOCKS.late_law(0.1), "covariance = "),
        (lambda: PROBLEM.late_law(0.0), "lr = 0"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_records_files_and_sweeps(tmp_path):
    result = sgd.solve_ode(BLOCKS, ONE_PASS, alpha=[0.0, 1.0])
    assert sgd.problem_of(result) == BLOCKS
    with pytest.raises(ValueError, match="weights of a diagonal network"):
        sgd.start_from(result)
    sgd.save(result, tmp_path / "diagonal.nc")
    plan = problem_files.plan(problem_files.read(tmp_path / "diagonal.nc"))
    assert plan.start is None
    repeated = problem_files.solve(plan, "ode", progress=False)
    assert np.array_equal(repeated.excess_risk, result.excess_risk)
    grid = sgd.sweep(
        "solve_ode",
        problem=PROBLEM,
        algorithm=ONE_PASS,
        over={"lr": [0.1, 0.3], "problem.start": [0.2, 1.0]},
        alpha=[5.0],
        workers=1,
        progress=False,
    )
    assert grid["excess_risk"].shape[:2] == (2, 2)
    assert abs(2 * float(grid["excess_risk"][1, 0].squeeze()) - 0.1384) < 6e-4
