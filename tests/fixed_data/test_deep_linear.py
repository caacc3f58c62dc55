"""Deep linear networks: the limit against references and flows, the exact law against networks."""

from __future__ import annotations

import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import sgdynamics as sgd
from sgdynamics.cli import problem_files
from sgdynamics.results.records import problem_from
from tests.conftest import Z, same_law

STEPS = [10, 20, 40]
PROBLEM = sgd.DeepLinear(depth=3, noise=0.25)
DESCENT = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)


def solve(problem, algorithm, **arguments):
    return sgd.solve_dmft(problem, algorithm, progress=False, **arguments)


def fresh(problem, algorithm, beta, steps=STEPS):
    return sgd.solve_large_batch(
        problem, algorithm, steps=steps, samples_per_dimension=beta, progress=False
    )


def twice(values):
    """u^T C u, or the mean squared residual, of the only run."""
    return 2 * values.values[0]


def regression_excess(rate, steps, alpha, noise):
    """u^T u of gradient descent from 0 on linear regression, by the law of Marchenko and Pastur."""
    ratio = 1 / alpha
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2

    def integrand(angle):
        # eigenvalue = centre + radius cos(angle) removes the root at the edges
        value = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(angle)
        density = (2 * np.sqrt(ratio) * np.sin(angle)) ** 2 / (2 * np.pi * ratio * value)
        decay = (1 - rate * value) ** steps
        return density * (decay**2 + noise * ratio * (1 - decay) ** 2 / value)

    assert low > 0
    assert high < 2 / rate
    return integrate.quad(integrand, 0, np.pi, epsabs=1e-12)[0]


@pytest.mark.slow
def test_limit_on_a_fixed_data_set():
    """Reference values of the recursion, written independently in NumPy."""
    limit = solve(PROBLEM, DESCENT, steps=STEPS)
    assert np.allclose(twice(limit.excess_risk), [0.35373, 0.24877, 0.22252], atol=6e-6)
    assert np.allclose(twice(limit.train_risk), [0.23109, 0.15631, 0.13072], atol=6e-6)
    assert np.allclose(limit.risk, limit.excess_risk + 0.125)
    # After compilation, the recursion takes a fraction of a second.
    before = time.process_time()
    solve(PROBLEM, DESCENT, steps=STEPS)
    assert time.process_time() - before < 0.4


def test_lazy_limit_is_linear_regression():
    """gamma0 -> 0 at a small initial predictor is linear regression at the rate L lr."""
    lazy = PROBLEM.replace(gamma0=1e-4, width_per_dimension=1e16)
    limit = solve(lazy, DESCENT, steps=[12, 40])
    expected = regression_excess(rate=0.3, steps=12, alpha=2.0, noise=0.25)
    assert abs(expected - 0.18354676) < 1e-8
    assert abs(twice(limit.excess_risk)[0] - expected) < 1e-6


def momentum_excess(rate, beta, steps, alpha, noise, nesterov=False):
    """The same for momentum, by a recursion of the error along each eigenvector."""
    ratio = 1 / alpha

    def integrand(angle):
        value = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(angle)
        density = (2 * np.sqrt(ratio) * np.sin(angle)) ** 2 / (2 * np.pi * ratio * value)
        error, velocity = 1.0, 0.0
        for factor in np.broadcast_to(beta, max(steps, np.size(beta)))[:steps]:
            slope = value * error
            velocity = factor * velocity + slope
            error -= rate * (slope + factor * velocity if nesterov else velocity)
        return density * (error**2 + noise * ratio * (1 - error) ** 2 / value)

    return integrate.quad(integrand, 0, np.pi, epsabs=1e-12)[0]


LAZY = PROBLEM.replace(gamma0=1e-4, width_per_dimension=1e16)
REGRESSION = {"rate": 0.3, "alpha": 2.0, "noise": 0.25}  # three layers at lr = 0.1


@pytest.mark.slow
def test_lazy_limit_with_momentum_is_linear_regression():
    algorithm = DESCENT.replace(update=sgd.updates.momentum(0.5))
    limit = solve(LAZY, algorithm, steps=[4, 12])
    expected = [momentum_excess(beta=0.5, steps=steps, **REGRESSION) for steps in (4, 12)]
    assert np.allclose(twice(limit.excess_risk), expected, rtol=0, atol=1e-6)
    plain = [momentum_excess(beta=0.0, steps=steps, **REGRESSION) for steps in (4, 12)]
    assert abs(plain[1] - regression_excess(steps=12, **REGRESSION)) < 1e-9
    assert np.abs(np.subtract(plain, expected)).min() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("update", [sgd.updates.momentum, sgd.updates.nesterov])
def test_lazy_limit_with_scheduled_momentum(update):
    """beta is a function of t = lr steps: 0.5 in the first two steps, and then 0."""
    algorithm = DESCENT.replace(update=update(until_two_steps))
    limit = solve(LAZY, algorithm, steps=[2, 4])
    expected = [
        momentum_excess(
            beta=[0.5, 0.5, 0.0, 0.0],
            steps=steps,
            nesterov=update is sgd.updates.nesterov,
            **REGRESSION,
        )
        for steps in (2, 4)
    ]
    assert np.allclose(twice(limit.excess_risk), expected, rtol=0, atol=1e-6)


def until_two_steps(t):
    return jnp.where(t < 0.15, 0.5, 0.0)


@pytest.mark.slow
def test_two_wide_layers_on_the_population_risk_follow_their_flow():
    """v' = 2 sqrt(1 + gamma0^2 v^2) (1 - v), from steps of three sizes."""
    problem = sgd.DeepLinear(depth=2, width_per_dimension=1e10, gamma0=2.0)

    def squared_error(lr):
        steps = sorted({round(0.6 / lr), 240})  # one program for all sizes
        result = fresh(problem, sgd.OnePassSGD(lr=lr), np.inf, steps)
        return twice(result.excess_risk)[0]

    coarse, half, fine = (squared_error(lr) for lr in (0.01, 0.005, 0.0025))
    extrapolated = (8 * fine - 6 * half + coarse) / 3
    flow = integrate.solve_ivp(
        lambda t, v: 2 * np.sqrt(1 + 4 * v**2) * (1 - v), (0, 0.6), [0.0], rtol=1e-10, atol=1e-12
    )
    expected = (1 - flow.y[0, -1]) ** 2
    assert abs(expected - 0.0327368) < 1e-7
    assert abs(extrapolated - expected) < 1e-6


def compare_laws(exact, direct, name):
    """Compare the logarithms of a variable at each save point: its tails are heavy."""
    exact, direct = (np.log(1e-3 + np.abs(values)) for values in (exact, direct))
    for index in range(exact.shape[1]):
        same_law(exact[:, index], direct[:, index], f"{name} at save point {index}")


@pytest.mark.slow
def test_exact_law_of_a_small_network():
    """Conditioning on products and the network itself, at sizes where frames fill their spaces."""
    problem = sgd.DeepLinear(depth=2, width_per_dimension=0.5, noise=0.25)
    arguments = {"steps": [1, 6], "dimension": 8, "runs": 1500, "progress": False}
    exact = sgd.simulate(problem, DESCENT, seed=1, **arguments)
    direct = sgd.simulate(problem, DESCENT, seed=2, method="direct", **arguments)
    for name in ("excess_risk", "train_risk", "overlap", "squared_norm"):
        compare_laws(exact[name].values, direct[name].values, name)


CASES = {
    "C": (PROBLEM.replace(width_per_dimension=0.5), [0.44402, 0.18964, 0.06419]),
    "F": (
        PROBLEM.replace(
            width_per_dimension=2.0, covariance=[(3.0, 0.25), (1 / 3, 0.75)], teacher=[0.6, 0.8]
        ),
        [0.17011, 0.10536, 0.07564],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_limit_of_fresh_batches(name):
    problem, expected = CASES[name]
    limit = fresh(problem, sgd.OnePassSGD(lr=0.1), 1.0)
    assert np.allclose(twice(limit.excess_risk), expected, atol=6e-6)


@pytest.mark.slow
def test_limit_of_four_layers_in_the_neural_tangent_parametrisation():
    problem = sgd.DeepLinear(depth=4, width_per_dimension=2.0, parametrisation="ntk")
    algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=1.0)
    limit = solve(problem, algorithm, steps=STEPS)
    assert np.allclose(twice(limit.excess_risk), [0.59399, 0.44702, 0.32867], atol=6e-6)
    assert np.allclose(twice(limit.train_risk), [0.09965, 0.04061, 0.01528], atol=6e-6)


@pytest.mark.slow
def test_one_pass_by_cells():
    limit = solve(PROBLEM, sgd.OnePassSGD(lr=0.2), alpha=[1.0, 2.0], cells=40)
    # Extrapolated from 20 and 40 cells, and direct runs at d = 100 with bias of order 1/d
    assert np.allclose(twice(limit.excess_risk), [0.917, 0.589], atol=1e-3)
    assert np.all(np.abs(twice(limit.excess_risk) - [0.902, 0.576]) < Z * np.array([0.012, 0.009]))
    assert limit.attrs["error_cells"] < 2e-3
    # Momentum at fixed beta is plain SGD at lr/(1 - beta).
    momentum = sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.5))
    same = solve(PROBLEM, momentum, alpha=[1.0, 2.0], cells=40)
    assert np.allclose(same.excess_risk, limit.excess_risk, rtol=1e-12)
    # The extrapolation from other cells agrees to its error.
    finer = solve(PROBLEM, sgd.OnePassSGD(lr=0.2), alpha=[1.0, 2.0], cells=80)
    assert np.allclose(finer.excess_risk, limit.excess_risk, rtol=2e-3)


BLOCKS = sgd.DeepLinear(
    depth=3,
    width_per_dimension=1.5,
    noise=0.25,
    weight_decay=0.05,
    covariance=[(3.0, 0.25), (1 / 3, 0.75)],
    teacher=[0.6, 0.8],
)


def falling(alpha):
    return 0.4 / (1 + alpha)


def falling_in_t(t):
    return 0.06 / (1 + t)


LAWS = {
    "blocks and decay": (BLOCKS, DESCENT),
    "batches of a data set": (
        PROBLEM,
        sgd.MultiPassSGD(lr=0.1, samples_per_dimension=2.0, batch_fraction=0.4),
    ),
    "momentum on a data set": (BLOCKS, DESCENT.replace(lr=0.05, update=sgd.updates.momentum(0.5))),
    "Nesterov on batches of a data set": (
        PROBLEM,
        sgd.MultiPassSGD(
            lr=falling_in_t,
            samples_per_dimension=2.0,
            batch_fraction=0.4,
            update=sgd.updates.nesterov(until_two_steps),
        ),
    ),
    "fresh batches, momentum": (
        BLOCKS,
        sgd.OnePassSGD(lr=0.03 * 12, batch=12, update=sgd.updates.momentum(0.5)),
    ),
    "fresh batches, Nesterov, standard": (
        PROBLEM.replace(parametrisation="standard"),
        sgd.OnePassSGD(lr=falling, batch=12, update=sgd.updates.nesterov(0.5)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_exact_law_against_networks(name):
    problem, algorithm = LAWS[name]
    arguments = {"steps": [2, 8], "dimension": 12, "runs": 1000, "progress": False}
    exact = sgd.simulate(problem, algorithm, seed=1, **arguments)
    direct = sgd.simulate(problem, algorithm, seed=2, method="direct", **arguments)
    names = ["excess_risk", "squared_norm", *(["train_risk"] if "train_risk" in exact else [])]
    for variable in names:
        compare_laws(exact[variable].values, direct[variable].values, variable)


@pytest.mark.slow
def test_exact_law_approaches_the_limit():
    """The bias is about .6/d and the standard deviation about .53/sqrt(d), at any d."""
    limit = twice(solve(PROBLEM, DESCENT, steps=[20]).excess_risk)[0]
    for d in (400, 10**6):
        runs = sgd.simulate(
            PROBLEM, DESCENT, steps=[20], dimension=d, runs=48, seed=3, progress=False
        )
        excess = 2 * runs.excess_risk.values[:, 0]
        deviation = excess.std(ddof=1)
        assert abs(excess.mean() - limit) < Z * deviation / np.sqrt(48) + 1.5 / d
        # The relative error of a standard deviation of 48 runs is 10%.
        assert abs(deviation * np.sqrt(d) / 0.53 - 1) < 0.55


@pytest.mark.slow
def test_exact_law_with_momentum_approaches_the_limit():
    algorithm = DESCENT.replace(lr=0.05, update=sgd.updates.momentum(0.5))
    limit = solve(PROBLEM, algorithm, steps=[5, 20])
    arguments = {"dimension": 10**6, "runs": 24, "seed": 3, "progress": False}
    runs = sgd.simulate(PROBLEM, algorithm, steps=[5, 20], **arguments)
    for name in ("excess_risk", "train_risk"):
        mean, deviation = runs[name].values.mean(axis=0), runs[name].values.std(axis=0, ddof=1)
        error = Z * deviation / np.sqrt(24) + 1e-5
        assert np.all(error < 2e-3), name
        assert np.all(np.abs(mean - limit[name].values[0]) < error), name


@pytest.mark.slow
def test_batches_of_a_data_set_in_the_limit():
    algorithm = sgd.MultiPassSGD(lr=0.1, samples_per_dimension=2.0, batch_fraction=0.4)
    limit = solve(PROBLEM, algorithm, steps=[5, 10])
    runs = sgd.simulate(
        PROBLEM, algorithm, steps=[5, 10], dimension=300, runs=48, seed=4, progress=False
    )
    for name in ("excess_risk", "train_risk"):
        mean, deviation = runs[name].values.mean(axis=0), runs[name].values.std(axis=0, ddof=1)
        error = Z * deviation / np.sqrt(48) + 1.5 / 300
        assert np.all(np.abs(mean - limit[name].values[0]) < error), name
    # All samples in each batch are gradient descent.
    whole = solve(PROBLEM, algorithm.replace(batch_fraction=1.0), steps=STEPS)
    assert np.allclose(whole.excess_risk, solve(PROBLEM, DESCENT, steps=STEPS).excess_risk)


# The best rate over widths 1, 2, 4, 8, 16, and the excess u^T C u there, after 20 steps
TRANSFER = {
    "mup": ([0.086, 0.060, 0.048, 0.042, 0.039], [0.066, 0.043, 0.033, 0.029, 0.027]),
    "ntk": ([0.086, 0.073, 0.063, 0.058, 0.055], [0.066, 0.047, 0.037, 0.032, 0.030]),
    "standard": ([0.086, 0.048, 0.024, 0.011, 0.0052], [0.066, 0.060, 0.047, 0.038, 0.033]),
    "mup, data set": ([0.140, 0.113, 0.080, 0.065, 0.058], [0.228, 0.212, 0.202, 0.195, 0.190]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFER)
def test_best_rates_over_width(name):
    """Reference values of the best rates, to their digits; rates a fifth away are worse."""
    rates, expected = TRANSFER[name]
    for width, rate, excess in zip((1, 2, 4, 8, 16), rates, expected, strict=True):
        problem = PROBLEM.replace(
            width_per_dimension=float(width), parametrisation=name.split(",")[0]
        )
        values = []
        for factor in (1 / 1.2, 1.0, 1.2):
            if "data" in name:
                result = solve(problem, DESCENT.replace(lr=factor * rate), steps=[20])
            else:
                result = fresh(problem, sgd.OnePassSGD(lr=factor * rate), 1.0, [20])
            values.append(twice(result.excess_risk)[0])
        assert abs(values[1] - excess) < 6e-4, width
        assert values[1] < min(values[0], values[2]), width


def test_unsupported_combinations_raise():
    any_solver: Any = sgd.solve_ode
    one_pass = sgd.OnePassSGD(lr=0.1)
    spectrum = sgd.power_law(1.2, dimension=400)
    few = PROBLEM.replace(covariance=spectrum)
    calls = [
        (lambda: solve(few, DESCENT, steps=[1]), r"covariance = .*single|covariance = .*few"),
        (lambda: solve(PROBLEM, DESCENT, steps=[1], paths=100), "paths = 100: the limit"),
        (lambda: solve(PROBLEM, DESCENT, steps=[1], cells=8), "cells = 8: only used"),
        (lambda: solve(PROBLEM, one_pass, steps=[1]), "steps= needs a dimension"),
        (lambda: any_solver(PROBLEM, one_pass, None, times=[1.0]), "problem = .*deep linear"),
        (lambda: solve(PROBLEM, sgd.EpochSGD(), alpha=[1.0]), "algorithm = .*epochs are not"),
        (lambda: solve(PROBLEM, sgd.Langevin(temperature=0.5), steps=[1]), "thermal noise"),
        (lambda: solve(PROBLEM, sgd.PersistentSGD(), steps=[1]), "persistent batches"),
        (lambda: solve(PROBLEM, DESCENT.replace(head_rate=2.0), steps=[1]), "head_rate = 2"),
        (
            lambda: solve(PROBLEM, one_pass.replace(update=sgd.updates.sign()), alpha=[1.0]),
            "update = .*axes of the layers",
        ),
        (
            lambda: solve(PROBLEM, one_pass.replace(update=sgd.updates.normalised()), alpha=[1.0]),
            "update = .*momentum",
        ),
        (
            lambda: solve(PROBLEM, DESCENT.replace(update=sgd.updates.sign()), steps=[1]),
            "update = .*axes of the layers",
        ),
        (
            lambda: solve(PROBLEM, DESCENT.replace(update=sgd.updates.muon()), steps=[1]),
            "update = .*momentum",
        ),
        (
            lambda: solve(
                PROBLEM, DESCENT.replace(update=sgd.updates.momentum(lambda t: 1 + t)), steps=[1]
            ),
            "beta = .*below 1",
        ),
        (
            lambda: sgd.simulate(PROBLEM, DESCENT, steps=[1], dimension=20, dtype="float32"),
            "dtype = ",
        ),
        (
            lambda: sgd.simulate(PROBLEM, DESCENT, object(), steps=[1], dimension=20),
            "start = .*random weights",
        ),
        (
            lambda: sgd.simulate(
                PROBLEM.replace(width_per_dimension=1e-3), DESCENT, steps=[1], dimension=20
            ),
            "width_per_dimension = 0.001: the width",
        ),
        (lambda: sgd.DeepLinear(depth=1), "depth = 1"),
        (lambda: sgd.DeepLinear(width_per_dimension=0.0), "width_per_dimension = 0"),
        (lambda: sgd.DeepLinear(parametrisation="maximal"), "parametrisation = 'maximal'"),
        (lambda: sgd.DeepLinear(noise=-1.0), "noise = -1"),
        (lambda: sgd.DeepLinear(teacher=[-1.0]), "teacher = "),
        (lambda: sgd.DeepLinear(covariance=[(1.0, 0.5), (2.0, 0.5)], teacher=[1.0]), "teacher has"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_diverging_rate_is_reported():
    with pytest.warns(UserWarning, match="1 of 1 runs diverged"):
        limit = solve(PROBLEM, DESCENT.replace(lr=3.0), steps=STEPS)
    assert np.isfinite(limit.diverged_at).all()
    assert np.isnan(limit.excess_risk[0, -1])


@pytest.mark.slow
def test_a_rate_beyond_the_edge_of_stability_warns():
    problem = PROBLEM.replace(covariance=[(3.0, 0.25), (1 / 3, 0.75)], teacher=[0.6, 0.8])
    with pytest.warns(UserWarning, match="training risk rises at step 18"):
        limit = solve(problem, DESCENT, steps=[20, 40])
    assert abs(twice(limit.excess_risk)[0] - 0.2334) < 1e-4


def test_records_and_sweeps(tmp_path):
    result = solve(PROBLEM, DESCENT, steps=[0, 40])
    assert sgd.problem_of(result) == PROBLEM
    assert problem_from(BLOCKS.describe()) == BLOCKS
    with pytest.raises(ValueError, match="weights of a deep linear network"):
        sgd.start_from(result)
    # A stored result states the problem file that reproduces it.
    sgd.save(result, tmp_path / "deep.nc")
    plan = problem_files.plan(problem_files.read(tmp_path / "deep.nc"))
    assert plan.start is None
    repeated = problem_files.solve(plan, "dmft", progress=False)
    assert np.array_equal(repeated.excess_risk, result.excess_risk)
    grid = sgd.sweep(
        "solve_dmft",
        problem=PROBLEM,
        algorithm=DESCENT,
        over={"width_per_dimension": [1.0, 2.0], "lr": [0.05, 0.1]},
        steps=[40],
        workers=1,
        progress=False,
    )
    assert grid["excess_risk"].shape == (2, 2, 1, 1)
    assert abs(2 * float(grid["excess_risk"][0, 1, 0, 0]) - 0.22252) < 6e-6
