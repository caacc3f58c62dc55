"""Optimal rates of linear students: the recursion, reference optima by other code, and laws."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis.protocols.linear_rates import (
    batch_ramp,
    linear_recursion,
    noise_dominated,
    optimal_rates,
)
from sgdynamics.analysis.protocols.linear_recursion import choose_method, pad_steps
from sgdynamics.base.precision import float64
from tests.simulation.test_behaviour import count_compilations

STEP = sgd.OnePassSGD(lr=0.1, per="step")


def power(a, b, size, noise, steps, method=None):
    """Eigenvalues k^-b and a target with l w*^2 = k^-a; the student starts from 0."""
    k = np.arange(1.0, size + 1)
    spectrum = sgd.Spectrum(k**-b, np.ones(size), target=k ** ((b - a) / 2))
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise, covariance=spectrum)
    start = sgd.start(problem, M=np.zeros((size, 1, 1)), Q=np.zeros((size, 1, 1)))
    return linear_recursion(problem, STEP, start, steps=steps, method=method)


def isotropic(steps, noise=0.1):
    """Reference (a): eps0 = 1, d = 1000."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    return linear_recursion(
        problem,
        sgd.OnePassSGD(),
        sgd.start(problem, M=[[0.5]], Q=[[1.0]]),
        steps=steps,
        dimension=1000,
    )


def blocks(decay=0.0, **arguments):
    spectrum = sgd.Spectrum([4.0, 1.0, 0.25, 0.03], [1, 3, 40, 200], target=[1.0, 0.5, 0.2, 0.3])
    return sgd.TeacherStudent(
        activation="linear", noise=0.1, covariance=spectrum, weight_decay=decay, **arguments
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("decay", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
@pytest.mark.parametrize("method", ["steps", "powers"])
def test_recursion_is_that_of_solve_linear(method, decay, batch):
    problem = blocks(decay, width=2)
    start = sgd.random_start(problem, runs=3, seed=1)
    algorithm = sgd.OnePassSGD(per="trace", batch=batch)
    recursion = linear_recursion(problem, algorithm, start, steps=1003, kappa=1.2, method=method)
    rates = np.random.default_rng(0).uniform(0.05, 0.5, 7)
    edges = recursion.edges(7)
    assert edges[-1] == 1003
    assert set(np.diff(edges)) == {143, 144}
    assert recursion.risks(rates).dtype == np.float64
    exact = sgd.solve_linear(
        problem, algorithm.replace(lr=recursion.schedule(rates)), start, steps=edges, kappa=1.2
    )
    np.testing.assert_allclose(
        recursion.risks(rates), exact["excess_risk"].values.mean(0), rtol=1e-12
    )


@pytest.mark.slow
def test_runs_with_different_heads_have_different_steps():
    problem = blocks(0.02, width=2)
    heads = np.array([[1.0, 1.0], [2.0, -1.0], [1.0, 1.0]])
    starts = sgd.random_start(problem, runs=3, seed=2)
    start = sgd.start(problem, M=starts.M_blocks, Q=starts.Q_blocks, a=heads)
    algorithm = sgd.OnePassSGD(per="trace")
    rates = np.array([0.1, 0.05, 0.2])
    recursion = linear_recursion(problem, algorithm, start, steps=60)
    exact = sgd.solve_linear(
        problem, algorithm.replace(lr=recursion.schedule(rates)), start, steps=recursion.edges(3)
    )
    np.testing.assert_allclose(
        recursion.risks(rates), exact["excess_risk"].values.mean(0), rtol=1e-12
    )
    assert len(recursion.parameters["scale"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("decay", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
@float64
def test_both_methods_agree_with_their_gradients(decay):
    problem = blocks(decay, width=1)
    start = sgd.random_start(problem, seed=1)
    generator = np.random.default_rng(3)
    rates, batches = generator.uniform(0.01, 0.5, 5), generator.uniform(0.7, 9.0, 5)
    edges = np.array([0, 1, 130, 131, 400, 700])
    results = []
    for method in ("steps", "powers"):
        recursion = linear_recursion(
            problem, sgd.OnePassSGD(per="trace"), start, steps=700, method=method
        )
        for ends in (None, edges):

            def final_risk(rates, batches, recursion=recursion, ends=ends):
                return recursion.risks(rates, batches, ends)[-1]

            value, slopes = jax.value_and_grad(final_risk, (0, 1))(rates, batches)
            risks = recursion.risks(rates, batches, ends)
            results.append(np.concatenate([risks, [value], *slopes]))
    np.testing.assert_allclose(results[0], results[2], rtol=1e-10)
    np.testing.assert_allclose(results[1], results[3], rtol=1e-10)
    bent = rates * np.array([1, 1, 1.0 + 1e-5, 1, 1]), rates * np.array([1, 1, 1.0 - 1e-5, 1, 1])
    up, down = (float(recursion.risks(values, batches)[-1]) for values in bent)
    assert results[2][7 + 2] == pytest.approx((up - down) / (2e-5 * rates[2]), rel=1e-6)


@float64
@pytest.mark.slow
def test_chunks_of_long_paths_change_nothing(monkeypatch):
    recursion = power(2.5, 1.2, 20, 0.1, 1000, "steps")
    rates = np.geomspace(0.1, 0.01, 4)
    last = jax.value_and_grad(lambda rates: recursion.risks(rates)[-1])
    whole = last(rates)
    monkeypatch.setattr("sgdynamics.analysis.protocols.linear_recursion.MOST_STORED", 100)
    np.testing.assert_allclose(np.append(*last(rates)), np.append(*whole), rtol=1e-13)


def test_the_method_is_chosen_by_cost():
    assert choose_method(1000, 100, 10, 500) == "steps"
    assert choose_method(10**6, 100, 10**4, 110) == "powers"
    assert all(
        steps <= pad_steps(steps) <= max(1.25 * steps, steps + 16) for steps in range(1, 3000)
    )


# Reference optima (f): risks with a rate for each of 100 pieces, 400 inputs.
EASY = {100: 0.050929893, 300: 0.026474043, 1000: 0.013018085, 3000: 0.0068163679}
HARD = {100: 0.31601, 300: 0.21033, 1000: 0.13122, 3000: 0.08171}


@pytest.mark.parametrize(
    "steps", [100, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (300, 1000, 3000))]
)
def test_easy_power_law(steps):
    optimum = optimal_rates(power(2.5, 1.2, 400, 1.0, steps), 100)
    assert optimum.converged
    assert optimum.risk == pytest.approx(EASY[steps], rel=1e-7)


@pytest.mark.parametrize(
    "steps", [100, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (300, 1000, 3000))]
)
def test_hard_power_law(steps):
    optimum = optimal_rates(power(1.5, 2.0, 400, 0.01, steps), 100)
    assert optimum.risk == pytest.approx(HARD[steps], abs=6e-6)
    assert 0.47 < optimum.rates[0] < 0.57


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "constant", "hundred", "single_steps"),
    [
        (2.5, 1.2, 0.0033384841, 0.0024450917, 0.0024445770),
        pytest.param(1.5, 2.0, 0.2271739635, 0.1650717361, 0.1650512127, marks=pytest.mark.slow),
    ],
)
def test_reference_optima(a, b, constant, hundred, single_steps):
    recursion = power(a, b, 200, 0.01, 400)
    optimum, finest = optimal_rates(recursion, 100), optimal_rates(recursion, 400)
    assert optimum.best_constant_risk == pytest.approx(constant, rel=1e-7)
    assert optimum.risk == pytest.approx(hundred, rel=1e-7)
    assert finest.risk == pytest.approx(single_steps, rel=1e-7)
    assert optimum.gain == pytest.approx(constant / hundred, rel=1e-6)
    assert optimum.history[0] == pytest.approx(constant, rel=1e-7)
    assert np.all(np.diff(optimum.history) <= 0)
    assert float(recursion.risks(np.full(5, optimum.best_constant_lr))[-1]) == pytest.approx(
        constant, rel=1e-7
    )


@pytest.mark.slow
def test_reference_a_at_d():
    optimum = optimal_rates(isotropic(20_000), 1000)
    # The risk with 1000 pieces is 1e-6 above that with one rate per step.
    assert optimum.risk == pytest.approx(0.0033160907, rel=2e-6)


@pytest.mark.slow
def test_exponents_in_the_horizon():
    horizons = np.array(list(EASY))
    optima = [optimal_rates(power(2.5, 1.2, 400, 1.0, int(steps)), 100) for steps in horizons]
    log_risks = np.log([[optimum.risk, optimum.best_constant_risk] for optimum in optima])
    slope = np.diff(log_risks, axis=0) / np.diff(np.log(horizons))[:, None]
    assert -slope[-1, 0] == pytest.approx(0.589, abs=6e-4)
    assert -slope[-1, 1] == pytest.approx(0.534, abs=6e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "steps"), [(100.0, 1000), pytest.param(1000.0, 10_000, marks=pytest.mark.slow)]
)
def test_noise_dominated_law(noise, steps):
    recursion = power(2.5, 1.2, 150, noise, steps)
    law, optimum = noise_dominated(recursion), optimal_rates(recursion, 100)
    # The law neglects the excess risk compared with the noise.
    share = 0.5 / noise
    assert law.risk == pytest.approx(optimum.risk, rel=max(share, 5e-5))
    assert law.left[-1] == pytest.approx(0.0, abs=1e-12)
    # With the rates of the law the risk is optimal up to second order in that share.
    assert float(recursion.risks(law.rates)[-1]) == pytest.approx(optimum.risk, rel=1e-5)
    eigenvalues = recursion.eigenvalues
    left = np.append(np.cumsum((optimum.rates * np.diff(optimum.edges))[::-1])[::-1], 0.0)
    middle = (left[1:] + left[:-1]) / 2
    invariant = optimum.rates * np.sqrt(np.exp(-2 * np.outer(middle, eigenvalues)) @ eigenvalues**2)
    np.testing.assert_allclose(invariant, law.invariant, rtol=max(2 * share, 3e-4))
    # The invariance is not trivial: the rates fall.
    assert optimum.rates[0] / optimum.rates[-1] > 2


@pytest.mark.parametrize(
    ("lr", "steps", "risk"),
    [
        (1.0, 5021, 0.0033164),
        (10.0, 505, 0.0033215),
        (100.0, 53, 0.0034135),
        (300.0, 21, 0.0039929),
    ],
)
def test_batch_ramps(lr, steps, risk):
    # The best batch for the current error, B = lr/lr*; the last step is cut to the remaining
    # samples.
    d, noise, error, used, rates, batches = 1000, 0.1, 1.0, 0.0, [], []
    while used < 20_000 - 1e-9:
        batch = lr * (error + noise) / error
        share = min(1.0, (20_000 - used) / batch)
        rates, batches, used = [*rates, lr * share], [*batches, batch * share], used + batch * share
        g, size = rates[-1] / d, batches[-1]
        error = (1 - 2 * g + (1 + 1 / size) * g**2) * error + g**2 / size * d * (error + noise)
    assert len(rates) == steps
    assert float(isotropic(steps).risks(np.array(rates), np.array(batches))[-1]) == pytest.approx(
        risk, abs=6e-8
    )


@pytest.mark.slow
def test_ramps_of_optimal_rates():
    recursion = isotropic(20_000)
    optimum = optimal_rates(recursion, 200)
    for lr in (1.0, 10.0, 100.0):
        ramped, rates, batches = batch_ramp(recursion, optimum.rates, lr)
        assert batches.sum() == pytest.approx(20_000)
        assert ramped.steps == len(rates) == pytest.approx(5016 / lr, rel=2e-3, abs=1)
        assert float(ramped.risks(rates, batches)[-1]) == pytest.approx(
            optimum.risk, rel=0.3 * lr / 1000
        )
    same, rates, batches = batch_ramp(isotropic(100), np.full(10, 0.5), 0.5)
    assert same.steps == 100
    np.testing.assert_allclose(batches, 1.0)
    np.testing.assert_allclose(rates, 0.5)


@pytest.mark.slow
def test_larger_batches_reduce_the_risk():
    recursion = power(2.5, 1.2, 30, 0.1, 200)
    single = optimal_rates(recursion, 10)
    ramp = optimal_rates(recursion, 10, batches=np.geomspace(1.0, 8.0, 10))
    assert ramp.risk < single.risk
    assert ramp.best_constant_risk < single.best_constant_risk
    constant_batch = optimal_rates(recursion, 10, batches=4.0)
    assert single.risk > constant_batch.risk
    unequal = optimal_rates(recursion, 3, edges=np.array([0, 20, 150, 200]))
    risks = recursion.risks(unequal.rates, edges=unequal.edges)
    assert unequal.risk == pytest.approx(float(risks[-1]))


@pytest.mark.slow
def test_other_parameters_compile_nothing():
    optimal_rates(power(2.5, 1.2, 40, 1.0, 1000), 10)
    assert count_compilations(lambda: optimal_rates(power(1.5, 2.0, 40, 0.3, 990), 10)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pieces": 60}, "50 steps"),
        ({"lr": (2.0, 1.0)}, "lowest"),
        ({"lr": (0.5, 1.0)}, "range"),
        ({"lr": 3}, "lowest"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimal_rates(power(2.5, 1.2, 10, 1.0, 50), **{"pieces": 5, **arguments})


def test_unsupported_problems_are_named():
    with pytest.raises(ValueError, match="label noise"):
        noise_dominated(power(2.5, 1.2, 10, 0.0, 50), 5)
    with pytest.raises(ValueError, match="above 0"):
        batch_ramp(power(2.5, 1.2, 10, 1.0, 50), np.array([0.1, 0.0]), 1.0)
    problem = sgd.TeacherStudent(width=1, activation="erf")
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    with pytest.raises(ValueError, match="linear"):
        linear_recursion(problem, sgd.OnePassSGD(), start, steps=10, dimension=100)


@pytest.mark.slow
def test_a_million_inputs_and_steps():
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=1.0, covariance=sgd.power_law(1.2, 1e6, target=0.65)
    )
    start = sgd.start(problem, M=np.zeros((110, 1, 1)), Q=np.zeros((110, 1, 1)))
    recursion = linear_recursion(problem, STEP, start, steps=10**6)
    optimum = optimal_rates(recursion, 100)
    assert optimum.converged
    exact = sgd.solve_linear(problem, STEP.replace(lr=optimum.schedule), start, steps=optimum.edges)
    np.testing.assert_allclose(optimum.risks, exact["excess_risk"].values[0], rtol=1e-10)
    assert optimum.gain > 1.7


@pytest.mark.slow
def test_speed():
    optimal_rates(power(2.5, 1.2, 500, 0.5, 1000), 100)
    started = time.perf_counter()
    optimal_rates(power(2.5, 1.2, 500, 1.0, 1000), 100)
    assert time.perf_counter() - started < 5


@pytest.mark.slow
def test_infinitely_many_inputs():
    problem = sgd.TeacherStudent(
        width=1,
        activation="linear",
        noise=1.0,
        covariance=sgd.power_law(1.5, np.inf, target=0.5, raw=10, bins=30),
    )
    size = problem.spectrum.blocks
    start = sgd.start(problem, M=np.zeros((size, 1, 1)), Q=np.zeros((size, 1, 1)))
    for algorithm in (STEP.replace(batch=2), sgd.OnePassSGD(per="trace")):
        recursion = linear_recursion(problem, algorithm, start, steps=5000)
        rates = np.array([0.2, 0.1, 0.05])
        exact = sgd.solve_linear(
            problem,
            algorithm.replace(lr=recursion.schedule(rates)),
            start,
            steps=recursion.edges(3),
        )
        np.testing.assert_allclose(
            recursion.risks(rates), exact["excess_risk"].values[0], rtol=1e-9
        )
        assert optimal_rates(recursion, 3).risk < exact["excess_risk"].values[0, -1]
