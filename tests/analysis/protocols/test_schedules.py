"""Optimal schedules: dynamic programming where the optimum is known, gains elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

import sgdynamics as sgd
from sgdynamics.analysis.protocols.schedules import optimal_schedule
from tests.conftest import Z
from tests.simulation.test_behaviour import count_compilations

NOISE, ALPHA, PIECES = 0.3, 8.0, 50
SGD = sgd.OnePassSGD()


def linear(noise=NOISE):
    return sgd.TeacherStudent(width=1, activation="linear", noise=noise)


def start_at(problem, m=0.2):
    return sgd.start(problem, M=[[m]], Q=[[1.0]])


def error_after(lr, r, length, noise, batch=1, extra=0.0):
    """|w - w*|^2 = r after a piece of one rate.

    dr/dalpha = (1/B) {-2 lr r + (lr^2/B) [(1 + extra) r + noise]}.
    """
    decay = (2 * lr - lr**2 / batch * (1 + extra)) / batch
    limit = lr**2 * noise / batch**2 / decay
    return limit + (r - limit) * np.exp(-decay * length)


def dynamic_programming(r, alpha, pieces, noise, batch=1, extra=0.0):
    """The optimal rates and their risk.

    r after a piece increases with r before it, so that each rate minimises r after its own piece.
    """
    rates = []
    for _ in range(pieces):
        best = optimize.minimize_scalar(
            lambda lr, r=r: error_after(lr, r, alpha / pieces, noise, batch, extra),
            bounds=(1e-6, 1.9 * batch / (1 + extra)),
            method="bounded",
            options={"xatol": 1e-11},
        )
        rates.append(best.x)
        r = best.fun
    return np.array(rates), r / 2


@pytest.fixture(scope="module")
def best():
    problem = linear()
    return optimal_schedule(problem, SGD, start_at(problem), alpha=ALPHA, pieces=PIECES)


def test_linear_regression_has_the_optimum_of_dynamic_programming(best):
    rates, risk = dynamic_programming(1.6, ALPHA, PIECES, NOISE)
    assert best.value == pytest.approx(risk, rel=1e-8)
    np.testing.assert_allclose(best.protocol["lr"], rates, rtol=1e-5)
    # Continuous schedules: lr = r/(r + noise) and dr/dalpha = - r^2/(r + noise), so that
    # log(r0/r) + noise (1/r - 1/r0) = alpha.
    r = optimize.brentq(lambda r: np.log(1.6 / r) + NOISE * (1 / r - 1 / 1.6) - ALPHA, 1e-6, 1.6)
    assert 0 < best.value / (r / 2) - 1 < 1e-3
    middle = (2 * best.risks[:-1] + 2 * best.risks[1:]) / 2
    np.testing.assert_allclose(best.protocol["lr"], middle / (middle + NOISE), rtol=1e-2)
    constant = optimize.minimize_scalar(
        lambda lr: error_after(lr, 1.6, ALPHA, NOISE) / 2, bounds=(0.01, 1.9), method="bounded"
    )
    assert best.constant["risk"] == pytest.approx(constant.fun, rel=1e-8)
    assert best.constant["lr"] == pytest.approx(constant.x, rel=1e-3)
    assert best.gain == pytest.approx(constant.fun / risk, rel=1e-7)
    assert best.gain > 1.2


def test_fields_of_the_result(best):
    assert best.converged
    assert best.error_integrator < 1e-6
    assert np.all(np.diff(best.history) <= 1e-15)
    assert best.history[0] == pytest.approx(best.constant["risk"], rel=1e-6)
    assert best.risks[0] == pytest.approx(0.8)
    assert best.constant_risks[-1] == best.constant["risk"]
    assert best.edges[-1] == best.alpha == ALPHA
    # The rates of the algorithm are those of the pieces, in alpha.
    np.testing.assert_allclose(
        best.algorithm.rates((best.edges[:-1] + best.edges[1:]) / 2),
        best.protocol["lr"],
        rtol=1e-15,
    )
    assert "times below the best constant" in repr(best)


@pytest.mark.slow
def test_solve_ode_confirms_it(best):
    problem = linear()
    ode = sgd.solve_ode(problem, best.algorithm, start_at(problem), alpha=[best.edges[20], ALPHA])
    np.testing.assert_allclose(ode.excess_risk[0], best.risks[[20, -1]], rtol=1e-7)


def test_other_parameters_compile_nothing(best):
    problem = linear(noise=0.1)
    results = []
    compiled = count_compilations(
        lambda: results.append(
            optimal_schedule(problem, SGD, start_at(problem, 0.5), alpha=5.0, lr=(0.01, 1.9))
        )
    )
    assert compiled == 0
    assert results[0].value == pytest.approx(
        dynamic_programming(1.0, 5.0, PIECES, 0.1)[1], rel=1e-7
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0, "pieces": 0}, "pieces"),
        ({"alpha": 1.0, "lr": 0.3}, "lr = 0.3: give .lowest, highest"),
        ({"alpha": 1.0, "lr": (0.5, 0.1)}, "lowest < highest"),
        ({"alpha": 1.0, "iterations": 0}, "iterations"),
        ({"alpha": 1.0, "restarts": -1}, "restarts"),
        ({"alpha": 1.0, "dimension": 1}, "dimension"),
        ({"alpha": 8.0, "lr": (300.0, 500.0)}, "stays finite"),
    ],
)
def test_bad_input_is_named(best, arguments, message):
    problem = linear()
    with pytest.raises(ValueError, match=message):
        optimal_schedule(problem, SGD, start_at(problem), **arguments)


def test_problems_without_a_smooth_drift_are_not_supported():
    with pytest.raises(ValueError, match="spiked"):
        optimal_schedule(sgd.SpikedTensor(order=2, snr=1.2), SGD, None, alpha=1.0)
    mixture = sgd.GaussianMixture("binary", width=2, snr=float("inf"), weight_decay=0.1)
    with pytest.raises(ValueError, match="finite snr"):
        optimal_schedule(mixture, SGD, sgd.random_start(mixture, dimension=50), alpha=1.0)


@pytest.mark.slow
def test_batches_at_finite_dimension_against_dynamic_programming():
    """E|w - w*|^2 = r with (1 + 2/d + (B - 1)/d) r + noise instead of r + noise, exactly."""
    problem, batch, d = linear(), 3, 10
    best = optimal_schedule(
        problem, sgd.OnePassSGD(batch=batch), start_at(problem), alpha=ALPHA, dimension=d
    )
    rates, risk = dynamic_programming(1.6, ALPHA, PIECES, NOISE, batch, 2 / d + (batch - 1) / d)
    assert best.value == pytest.approx(risk, rel=1e-8)
    np.testing.assert_allclose(best.protocol["lr"], rates, rtol=1e-5)
    chain = sgd.simulate(
        problem, best.algorithm, start_at(problem), alpha=[ALPHA], dimension=d, runs=4000, seed=1
    ).excess_risk.values[:, -1]
    # Steps are not small at this d: the ODE deviates.
    assert abs(chain.mean() - best.value) < Z * chain.std() / np.sqrt(len(chain)) + 0.1 * best.value


@pytest.mark.slow
def test_several_starts_share_one_schedule_and_restarts_find_no_better():
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere", noise=0.5)
    starts = sgd.random_start(problem, dimension=1000, runs=8, seed=0)
    best = optimal_schedule(problem, SGD, starts, alpha=80.0, restarts=2, seed=1)
    assert best.gain > 1.8
    # The rate is large first, and annealed at the end.
    assert best.protocol["lr"][-1] < best.constant["lr"] / 2
    assert best.protocol["lr"][0] > 1.2 * best.constant["lr"]
    ode = sgd.solve_ode(problem, best.algorithm, starts, alpha=[80.0])
    assert float(ode.excess_risk[:, -1].mean()) == pytest.approx(best.value, rel=1e-5)
    alone = optimal_schedule(problem, SGD, starts, alpha=80.0)
    assert best.value == pytest.approx(alone.value, rel=1e-4)
