"""Workers: reference values, the closed linear recursion, exact and direct runs, limits."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z

ERF = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
START = sgd.start(ERF, M=[[0.1]], Q=[[0.5]])
LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
ORIGIN = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
LOCAL = sgd.Workers(sgd.OnePassSGD(lr=1.0), workers=4, every=0.5)
DILOCO = LOCAL.replace(outer_lr=0.7, outer_momentum=0.5)


def linear_rounds(workers, rounds):
    """U = |w - w*|^2 after each round, from the moments of w - w* and the momentum."""
    lr, h, K, noise = workers.algorithm.lr, workers.every, workers.workers, 0.2
    tau, eta, mu = lr * h, workers.outer_lr, workers.outer_momentum
    E1, E2, G = np.exp(-tau), np.exp(-(2 - lr) * tau), lr / (2 - lr)
    U, cross, momentum, values = 1.0, 0.0, 0.0, []  # |v|^2, v.b, |b|^2
    for _ in range(rounds):
        # The mean of the workers is E1 v plus fluctuations of this variance.
        fluctuation = ((E2 - E1**2) * U + G * noise * (1 - E2)) / K
        c = 1 - E1  # g = c v - fluctuation, b <- mu b + g, v <- v - eta (g + mu b)
        b = np.array([c, mu, -1.0])
        g = np.array([c, 0.0, -1.0])
        v = np.array([1.0, 0.0, 0.0]) - eta * (g + mu * b)
        moments = np.array([[U, cross, 0], [cross, momentum, 0], [0, 0, fluctuation]])
        U, cross, momentum = v @ moments @ v, v @ moments @ b, b @ moments @ b
        values.append(U)
    return np.array(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (LOCAL, [0.44721571, 0.06663143]),
        pytest.param(DILOCO, [0.43186960, 0.06116320], marks=pytest.mark.slow),
    ],
)
def test_linear_rounds_follow_the_recursion(workers, expected):
    result = sgd.solve_ode(LINEAR, workers, ORIGIN, alpha=[0.5, 2.0], rtol=1e-12, atol=1e-13)
    values = linear_rounds(workers, 4)[[0, 3]]
    np.testing.assert_allclose(values, expected, atol=1e-8)
    np.testing.assert_allclose(2 * result.excess_risk.values[0], values, atol=1e-10)
    np.testing.assert_allclose(result.alpha, [0.5, 2.0])


def test_one_worker_and_short_rounds_are_what_exists():
    result = sgd.solve_ode(ERF, LOCAL.replace(workers=1), START, alpha=[1.0])
    single = sgd.solve_ode(ERF, LOCAL.algorithm, START, alpha=[1.0])
    np.testing.assert_allclose(result.risk, single.risk, rtol=1e-8)
    assert LOCAL.short_rounds.batch == 4


@pytest.mark.slow
def test_rounds_of_one_step_are_a_batch_in_law():
    """H = 1 at d = 20: the mean of K steps on samples of their own is a step on a batch of K."""
    d, runs = 20, 3000
    workers = LOCAL.replace(workers=3, every=1 / d)
    rounds = sgd.simulate(ERF, workers, START, steps=[6], dimension=d, runs=runs, seed=1)
    batch = sgd.simulate(
        ERF, workers.short_rounds, START, steps=[6], dimension=d, runs=runs, seed=2
    )
    assert rounds.step.values.tolist() == [6]
    for name in ("M", "Q", "risk"):
        first, second = rounds[name].values.ravel(), batch[name].values.ravel()
        for power in (1, 2):
            error = np.hypot((first**power).std(), (second**power).std()) / np.sqrt(runs)
            assert abs((first**power).mean() - (second**power).mean()) < Z * error, name


@pytest.mark.slow
def test_erf_networks_have_the_reference_values():
    local = sgd.solve_ode(ERF, LOCAL, START, alpha=[4.0, 8.0])
    np.testing.assert_allclose(local.M.values.ravel(), [0.73417514, 0.87831437], atol=1e-8)
    np.testing.assert_allclose(local.Q.values.ravel(), [0.57524975, 0.78632183], atol=1e-8)
    np.testing.assert_allclose(local.excess_risk.values[0], [0.01418204, 0.00409359], atol=6e-9)
    outer = sgd.solve_ode(ERF, DILOCO, START, alpha=[4.0])
    np.testing.assert_allclose(
        [outer.M.item(), outer.Q.item()], [0.84783246, 0.74616142], atol=1e-8
    )
    # Two units and two teachers, lr 2.
    wide = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.05)
    start = sgd.start(wide, M=[[0.3, 0.1], [-0.1, 0.2]], Q=[[1.0, 0.1], [0.1, 0.8]])
    result = sgd.solve_ode(
        wide, LOCAL.replace(algorithm=sgd.OnePassSGD(lr=2.0)), start, alpha=[2.0]
    )
    Q = result.Q.values[0, 0]
    np.testing.assert_allclose(
        [Q[0, 0], Q[0, 1], Q[1, 1]], [0.90373045, -0.10044921, 0.65440357], atol=1e-8
    )
    np.testing.assert_allclose(
        np.diagonal(result.M.values[0, 0]), [0.50150324, 0.38591542], atol=1e-8
    )


@pytest.mark.slow
def test_workers_with_problems_of_their_own():
    first = sgd.TeacherStudent(
        width=1,
        teacher_width=2,
        activation="erf",
        teacher_gram=[[1.0, 0.3], [0.3, 1.0]],
        teacher_head=[2.0, 0.0],
        noise=0.05,
    )
    problems = [first, first.replace(teacher_head=[0.0, 2.0])]
    workers = sgd.Workers(sgd.OnePassSGD(lr=1.0), workers=2, every=2.0, problems=problems)
    start = sgd.start(first, M=[[0.1, 0.2]], Q=[[0.5]])
    theory = sgd.solve_ode(first, workers, start, alpha=[8.0])
    np.testing.assert_allclose(theory.M.values[0, 0, 0], [0.55648412, 0.55965694], atol=1e-8)
    runs = sgd.simulate(first, workers, start, alpha=[8.0], dimension=200, runs=200)
    error = runs.M.std("run").values / np.sqrt(200)
    assert (np.abs(runs.M.mean("run").values - theory.M.values[0]) < Z * error + 0.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [LOCAL, DILOCO])
def test_exact_and_direct_runs_agree_with_the_ode(workers):
    theory = sgd.solve_ode(ERF, workers, START, alpha=[1.0, 4.0])
    for method, runs in (("exact", 400), ("direct", 100)):
        result = sgd.simulate(
            ERF, workers, START, alpha=[1.0, 4.0], dimension=250, runs=runs, method=method
        )
        for name in ("M", "Q"):
            error = result[name].std("run").values / np.sqrt(runs)
            gap = np.abs(result[name].mean("run").values - theory[name].values[0])
            assert (gap < Z * error + 1 / 250).all(), (method, name)


def test_the_largest_stable_rate():
    for length, expected in ((0.1, 4.327170), (0.5, 2.920960)):
        workers = LOCAL.replace(every=length)
        limit = sgd.largest_stable_lr(workers)
        assert abs(limit - expected) < 1e-6
        factors = []
        for lr in (0.999 * limit, 1.001 * limit):
            tau = lr * length
            factors.append(0.75 * np.exp(-2 * tau) + np.exp(-(2 - lr) * tau) / 4)
        assert factors[0] < 1 < factors[1]
    assert sgd.largest_stable_lr(sgd.OnePassSGD(batch=3)) == 6.0


WRONG = {
    "workers = 0": lambda: LOCAL.replace(workers=0),
    "every = -1": lambda: LOCAL.replace(every=-1.0),
    "give a value below 1": lambda: LOCAL.replace(outer_momentum=1.0),
    "plain steps of a constant rate": lambda: sgd.Workers(
        sgd.OnePassSGD(update=sgd.updates.momentum(0.5))
    ),
    "one problem for each": lambda: LOCAL.replace(problems=[ERF]),
    "less than half a step": lambda: sgd.simulate(
        ERF, LOCAL.replace(every=1e-3), START, alpha=[1.0], dimension=50
    ),
    "does not stay on the sphere": lambda: sgd.solve_ode(
        ERF.replace(constraint="sphere"), LOCAL, START, alpha=[1.0]
    ),
    "exactly one of times": lambda: sgd.solve_ode(ERF, LOCAL, START),
    "several workers are supported by": lambda: sgd.fixed_points(ERF, LOCAL, starts=START),
    "Omit reduce": lambda: sgd.simulate(
        ERF, LOCAL, START, alpha=[1.0], dimension=50, reduce="mean"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_workers_are_rejected(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
