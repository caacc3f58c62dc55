"""Optimal schedules: against dynamic programming where the optimum is known, gradients against differences, gains elsewhere."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import optimize

import sgdynamics as sgd
from sgdynamics.analysis.protocols import schedules
from sgdynamics.analysis.protocols.schedules import optimal_schedule
from tests.conftest import Z
from tests.simulation.test_behaviour import count_compilations

NOISE, ALPHA, PIECES = 0.3, 8.0, 50


def linear(noise=NOISE):
    return sgd.TeacherStudent(width=1, activation="linear", noise=noise)


def begin(problem, m=0.2):
    return sgd.start(problem, M=[[m]], Q=[[1.0]])


def after(lr, r, length, noise, batch=1, extra=0.0):
    """|w - w*|^2 after a piece of one rate: dr/dalpha = (1/B) {-2 lr r + (lr^2/B) [(1 + extra) r + noise]}."""
    decay = (2 * lr - lr**2 / batch * (1 + extra)) / batch
    limit = lr**2 * noise / batch**2 / decay
    return limit + (r - limit) * np.exp(-decay * length)


def programmed(r, alpha, pieces, noise, batch=1, extra=0.0):
    """The optimum by dynamic programming: r after a piece grows with r before it, so that each piece makes its own end smallest."""
    rates = []
    for _ in range(pieces):
        best = optimize.minimize_scalar(
            lambda lr, r=r: after(lr, r, alpha / pieces, noise, batch, extra),
            bounds=(1e-6, 1.9 * batch / (1 + extra)),
            method="bounded",
            options={"xatol": 1e-11},
        )
        rates.append(best.x)
        r = best.fun
    return np.array(rates), r / 2


@pytest.fixture(scope="module")
def found():
    problem = linear()
    return optimal_schedule(problem, begin(problem), alpha=ALPHA, pieces=PIECES)


def test_linear_regression_has_the_optimum_of_dynamic_programming(found):
    rates, risk = programmed(1.6, ALPHA, PIECES, NOISE)
    assert found.risk == pytest.approx(risk, rel=1e-8)
    np.testing.assert_allclose(found.rates, rates, rtol=1e-5)
    # continuous schedules: lr = r/(r + noise), dr/dalpha = - r^2/(r + noise), so log(r0/r) + noise (1/r - 1/r0) = alpha
    r = optimize.brentq(lambda r: np.log(1.6 / r) + NOISE * (1 / r - 1 / 1.6) - ALPHA, 1e-6, 1.6)
    assert 0 < found.risk / (r / 2) - 1 < 1e-3
    middle = (2 * found.risks[:-1] + 2 * found.risks[1:]) / 2
    np.testing.assert_allclose(found.rates, middle / (middle + NOISE), rtol=1e-2)
    constant = optimize.minimize_scalar(
        lambda lr: after(lr, 1.6, ALPHA, NOISE) / 2, bounds=(0.01, 1.9), method="bounded"
    )
    assert found.best_constant_risk == pytest.approx(constant.fun, rel=1e-8)
    assert found.best_constant_lr == pytest.approx(constant.x, rel=1e-3)
    assert found.gain == pytest.approx(constant.fun / risk, rel=1e-7)
    assert found.gain > 1.2


def test_what_comes_back(found):
    assert found.converged
    assert found.error_integrator < 1e-6
    assert np.all(np.diff(found.history) <= 1e-15)
    assert found.history[0] == pytest.approx(found.best_constant_risk, rel=1e-6)
    assert found.risks[0] == pytest.approx(0.8)
    assert found.constant_risks[-1] == found.best_constant_risk
    assert found.edges[-1] == found.alpha == ALPHA
    # the algorithm's rates are those of the pieces, in alpha
    np.testing.assert_allclose(
        found.algorithm.rates((found.edges[:-1] + found.edges[1:]) / 2), found.rates, rtol=1e-15
    )
    assert "times below the best constant" in repr(found)


@pytest.mark.slow
def test_solve_ode_confirms_it(found):
    problem = linear()
    ode = sgd.solve_ode(problem, found.algorithm, begin(problem), alpha=[found.edges[20], ALPHA])
    np.testing.assert_allclose(ode.excess_risk[0], found.risks[[20, -1]], rtol=1e-7)


def test_gradient_of_the_final_risk_by_differences(found):
    """On the programs that the search itself has compiled."""
    problem, start = linear(), begin(linear())
    setting = schedules._Static(
        problem.structure, sgd.functional.quadrature(problem, start), 1, schedules.STEPS // PIECES
    )
    with jax.enable_x64(True):
        numbers = {
            "parameters": problem.parameters,
            "alpha": np.float64(ALPHA),
            "head_rate": np.float64(1.0),
            "finite": None,
            "states": {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a},
        }
        at = np.log(0.3) + np.random.default_rng(0).normal(scale=0.3, size=PIECES)
        value, slope = schedules._with_gradient(setting, numbers, at)
        chosen = np.arange(16) * 3
        steps = 1e-5 * np.eye(PIECES)[chosen]
        around = np.asarray(
            schedules._many(setting, numbers, np.concatenate([at + steps, at - steps, at[None]]))
        )
    assert around[-1] == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(
        np.asarray(slope)[chosen], (around[:16] - around[16:32]) / 2e-5, rtol=1e-6, atol=1e-9
    )


def test_numbers_do_not_compile_again(found):
    problem = linear(noise=0.1)
    again = []
    compiled = count_compilations(
        lambda: again.append(
            optimal_schedule(problem, begin(problem, 0.5), alpha=5.0, lr=(0.01, 1.9))
        )
    )
    assert compiled == 0
    assert again[0].risk == pytest.approx(programmed(1.0, 5.0, PIECES, 0.1)[1], rel=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0, "pieces": 0}, "pieces"),
        ({"alpha": 1.0, "batch": 0}, "batch"),
        ({"alpha": 1.0, "lr": 0.3}, "lowest and the highest"),
        ({"alpha": 1.0, "lr": (0.5, 0.1)}, "0 < lowest < highest"),
        ({"alpha": 1.0, "iterations": 0}, "iterations"),
        ({"alpha": 1.0, "restarts": -1}, "restarts"),
        ({"alpha": 1.0, "dimension": 1}, "dimension"),
        ({"alpha": 8.0, "lr": (0.5, 1.5)}, "at an end of this range"),
        ({"alpha": 8.0, "lr": (300.0, 500.0)}, "stays finite"),
    ],
)
def test_bad_input_is_named(found, arguments, message):
    problem = linear()
    with pytest.raises(ValueError, match=message):
        optimal_schedule(problem, begin(problem), **arguments)


def test_problems_without_a_smooth_drift_are_refused():
    with pytest.raises(ValueError, match="spiked"):
        optimal_schedule(sgd.SpikedTensor(order=2, snr=1.2), None, alpha=1.0)
    mixture = sgd.GaussianMixture("binary", width=2, snr=float("inf"), weight_decay=0.1)
    with pytest.raises(ValueError, match="finite snr"):
        optimal_schedule(mixture, sgd.random_start(mixture, dimension=50), alpha=1.0)


@pytest.mark.slow
def test_batches_at_finite_dimension_against_dynamic_programming():
    """At dimension d a batch of B has E|w - w*|^2 with (1 + 2/d + (B - 1)/d) r + noise in place of r + noise, exactly."""
    problem, batch, d = linear(), 3, 10
    best = optimal_schedule(problem, begin(problem), alpha=ALPHA, batch=batch, dimension=d)
    rates, risk = programmed(1.6, ALPHA, PIECES, NOISE, batch, 2 / d + (batch - 1) / d)
    assert best.risk == pytest.approx(risk, rel=1e-8)
    np.testing.assert_allclose(best.rates, rates, rtol=1e-5)
    chain = sgd.simulate(
        problem, best.algorithm, begin(problem), alpha=[ALPHA], dimension=d, runs=4000, seed=1
    ).excess_risk.values[:, -1]
    # steps are long at this d, and the ODE has none: a percent of what is learned
    assert abs(chain.mean() - best.risk) < Z * chain.std() / np.sqrt(len(chain)) + 0.1 * best.risk


@pytest.mark.slow
def test_several_starts_share_one_schedule_and_restarts_find_no_better():
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere", noise=0.5)
    starts = sgd.random_start(problem, dimension=1000, runs=8, seed=0)
    best = optimal_schedule(problem, starts, alpha=80.0, restarts=2, seed=1)
    assert best.gain > 1.8
    # annealed at the end, as fast as it learns before
    assert best.rates[-1] < best.best_constant_lr / 2
    assert best.rates[0] > 1.2 * best.best_constant_lr
    ode = sgd.solve_ode(problem, best.algorithm, starts, alpha=[80.0])
    assert float(ode.excess_risk[:, -1].mean()) == pytest.approx(best.risk, rel=1e-5)
    alone = optimal_schedule(problem, starts, alpha=80.0)
    assert best.risk == pytest.approx(alone.risk, rel=1e-4)
