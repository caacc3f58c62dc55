"""Delayed gradients: the closed linear solution, reference values, exact and direct runs."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z

LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
ORIGIN = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
ERF = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
START = sgd.start(ERF, M=[[0.1]], Q=[[0.5]])


def delayed_sgd(lr, delay, **options):
    return sgd.OnePassSGD(lr=lr, update=sgd.updates.delayed(per_dimension=delay), **options)


def linear_solution(T, lr, noise, times, spacing):
    """U(t) = phi^2 + lr int X(t - s)^2 (U(s - T) + noise) ds by Simpson's rule on a grid."""
    lag = round(T / spacing)
    grid = np.arange(0.0, times[-1] + spacing / 2, spacing)

    def polynomial(t, order):
        """sum_k (-1)^k (t - (k - order) T)^k/k!, the solution of x' = -x(t - T)."""
        total, k, factor = np.zeros_like(t), 0, 1.0
        while (k - order) * T <= t[-1]:
            base = np.maximum(t - (k - order) * T, 0.0)
            total += np.where(t >= (k - order) * T, base**k * factor, 0.0)
            k += 1
            factor *= -1.0 / k
        return total

    phi, X = polynomial(grid, 1), polynomial(grid, 0)
    U = np.zeros_like(grid)
    for n in range(len(grid)):
        source = np.where(np.arange(n + 1) < lag, 1.0, np.roll(U[: n + 1], lag)) + noise
        values = X[n::-1] ** 2 * source
        U[n] = phi[n] ** 2 + lr * np.trapezoid(values, dx=spacing)
    return U[np.searchsorted(grid, np.asarray(times) - spacing / 2)]


@pytest.mark.slow
def test_a_linear_student_follows_its_renewal_equation():
    times = [2.0, 4.0, 8.0]
    result = sgd.solve_ode(LINEAR, delayed_sgd(0.5, 2.0), ORIGIN, times=times)
    U = 2 * result.excess_risk.values[0]
    np.testing.assert_allclose(U, [0.7875, 0.71420, 0.65780], atol=5e-6)
    coarse, fine = (
        linear_solution(1.0, 0.5, 0.1, times, spacing) for spacing in (1 / 100, 1 / 200)
    )
    np.testing.assert_allclose(U, (4 * fine - coarse) / 3, atol=1e-7)
    assert result.attrs["error_integrator"] < 1e-6


@pytest.mark.slow
def test_a_linear_student_reaches_its_stationary_risk():
    result = sgd.solve_ode(LINEAR, delayed_sgd(0.5, 2.0), ORIGIN, times=[400.0])
    np.testing.assert_allclose(2 * result.excess_risk, 0.57593080, atol=1e-7)


@pytest.mark.slow
def test_erf_networks_have_the_reference_values():
    result = sgd.solve_ode(ERF, delayed_sgd(1.0, 1.0), START, times=[2.0, 6.0])
    np.testing.assert_allclose(result.M.values.ravel(), [0.70863, 1.05991], atol=6e-6)
    np.testing.assert_allclose(result.Q.values.ravel(), [0.93308, 1.30826], atol=6e-6)


def test_a_short_delay_has_the_limit_of_plain_sgd():
    plain = sgd.OnePassSGD(lr=0.5)
    late = plain.replace(update=sgd.updates.delayed(steps=3))
    results = [sgd.solve_ode(LINEAR, algorithm, ORIGIN, times=[1.0]) for algorithm in (plain, late)]
    np.testing.assert_allclose(results[0].Q, results[1].Q, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", pytest.param("direct", marks=pytest.mark.slow)])
def test_runs_have_the_exact_mean_of_a_linear_student(method):
    """E[M] obeys M_(n+1) = M_n + (lr/d) (1 - M_(n-m)) at any dimension."""
    d, m, lr, count = 12, 3, 2.0, 2000
    algorithm = sgd.OnePassSGD(lr=lr, update=sgd.updates.delayed(steps=m))
    expected = [0.0] * (m + 1)
    for _ in range(10):
        expected.append(expected[-1] + lr / d * (1 - expected[-1 - m]))
    options = {"steps": [4, 10], "dimension": d, "runs": count, "method": method}
    M = sgd.simulate(LINEAR, algorithm, ORIGIN, **options).M.values[:, :, 0, 0]
    error = M.std(axis=0) / np.sqrt(count)
    assert (error < 0.05).all()
    assert (np.abs(M.mean(axis=0) - np.array(expected)[[m + 4, m + 10]]) < Z * error).all()


@pytest.mark.slow
def test_exact_and_direct_runs_have_one_law():
    """Two units with a trained head and weight decay, at d = 10 with a delay of 2 steps."""
    problem = sgd.TeacherStudent(
        width=2, activation="erf", head="trained", noise=0.1, weight_decay=0.2
    )
    start = sgd.start(problem, M=[[0.3], [-0.2]], Q=[[1.0, 0.1], [0.1, 0.8]], a=[1.0, 0.5])
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=0.5, update=sgd.updates.delayed(steps=2))
    count = 4000
    results = [
        sgd.simulate(
            problem,
            algorithm,
            start,
            steps=[9],
            dimension=10,
            runs=count,
            seed=seed,
            method=method,
        )
        for seed, method in ((1, "exact"), (2, "direct"))
    ]
    for name in ("M", "Q", "a"):
        first, second = (result[name].values.reshape(count, -1) for result in results)
        for power in (1, 2):
            a, b = first**power, second**power
            error = np.hypot(a.std(axis=0), b.std(axis=0)) / np.sqrt(count)
            assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) < Z * error).all(), (name, power)


@pytest.mark.slow
def test_direct_runs_agree_with_overlaps_at_two_times():
    """Two units, a trained head, two covariance blocks, decay and a schedule of the rate."""
    problem = sgd.TeacherStudent(
        width=2,
        activation="erf",
        head="trained",
        noise=0.1,
        weight_decay=0.1,
        covariance=[(1.5, 0.5), (0.5, 0.5)],
    )
    start = sgd.start(problem, M=[[0.3], [-0.2]], Q=[[1.0, 0.1], [0.1, 0.8]], a=[1.0, 0.5])
    algorithm = delayed_sgd(lambda alpha: 1.0 / (1 + 0.2 * alpha), 0.5, batch=2)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[1.0, 4.0])
    d, count = 300, 60
    runs = sgd.simulate(
        problem, algorithm, start, alpha=[1.0, 4.0], dimension=d, runs=count, method="direct"
    )
    for name in ("M", "Q", "a"):
        error = runs[name].std("run").values / np.sqrt(count)
        gap = np.abs(runs[name].mean("run").values - theory[name].values[0])
        assert (gap < Z * error + 3 / d).all(), name


def test_the_largest_stable_rate_of_a_delay():
    for delay, expected in ((0.1, 1.6879934), (0.5, 1.1119369), (2.0, 0.5275142)):
        assert abs(sgd.largest_stable_lr(delayed_sgd(0.1, delay)) - expected) < 1e-7
        limit = sgd.largest_stable_lr(delayed_sgd(0.1, delay, batch=3))
        assert limit < np.pi / (2 * delay)
        assert abs(limit * (1 + np.sin(limit * delay)) - 6 * np.cos(limit * delay)) < 1e-9
    assert sgd.largest_stable_lr(sgd.OnePassSGD(update=sgd.updates.delayed(steps=5))) == 2.0


WRONG = {
    "Set exactly one of them": lambda: sgd.updates.delayed(),
    "per_dimension = -1": lambda: sgd.updates.delayed(per_dimension=-1.0),
    "steps = -1": lambda: sgd.updates.delayed(steps=-1),
    "less than half a step": lambda: sgd.simulate(
        LINEAR, delayed_sgd(0.5, 0.001), ORIGIN, steps=[1], dimension=50
    ),
    "the weights of 100 steps": lambda: sgd.simulate(
        LINEAR, delayed_sgd(0.5, 1.0), ORIGIN, steps=[1], dimension=100
    ),
    "delays are only supported for fresh samples": lambda: sgd.GradientDescent(
        lr=0.1, update=sgd.updates.delayed(steps=2)
    ),
    "delayed gradients have no additions": lambda: sgd.updates.weight_decay(
        0.1, of=sgd.updates.delayed(steps=2)
    ),
    "delayed gradients are supported by": lambda: sgd.fixed_points(
        LINEAR, delayed_sgd(0.5, 1.0), starts=ORIGIN
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_delays_are_rejected(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
