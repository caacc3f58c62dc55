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


def linear_rounds(workers, rounds, d=None):
    """U = |w - w*|^2 after each round, from the moments of w - w* and the momentum.

    With a dimension d these are the means of runs.
    """
    lr, h, K, noise = workers.algorithm.lr, workers.every, workers.workers, 0.2
    tau, eta, mu = lr * h, workers.outer_lr, workers.outer_momentum
    E1, E2, G = np.exp(-tau), np.exp(-(2 - lr) * tau), lr / (2 - lr)
    if d is not None:
        steps, G = round(h * d), lr / (2 - lr * (1 + 2 / d))
        E1, E2 = (1 - lr / d) ** steps, (1 - 2 * lr / d + lr**2 * (d + 2) / d**2) ** steps
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "expected", "stationary"),
    [(LOCAL, 0.06683, 0.03436667), (DILOCO, 0.06189, 0.04524523)],
)
def test_linear_rounds_at_finite_d_and_in_the_end(workers, expected, stationary):
    """Round 4 at d = 100 has the mean of the recursion with exact steps."""
    np.testing.assert_allclose(linear_rounds(workers, 400)[-1], stationary, atol=6e-9)
    result = sgd.solve_ode(LINEAR, workers, ORIGIN, alpha=[20.0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(2 * result.excess_risk, linear_rounds(workers, 40)[-1], atol=1e-9)
    mean = linear_rounds(workers, 4, d=100)[-1]
    assert abs(mean - expected) < 6e-6
    for method, runs in (("exact", 2000), ("direct", 500)):
        options = {"alpha": [2.0], "dimension": 100, "runs": runs, "method": method}
        U = 2 * sgd.simulate(LINEAR, workers, ORIGIN, **options).excess_risk.values[:, 0]
        error = U.std() / np.sqrt(runs)
        assert error < 0.02 * mean
        assert abs(U.mean() - mean) < Z * error, method


@pytest.mark.slow
def test_short_rounds_tend_to_a_batch():
    """The difference of linear students falls in proportion to the length of a round."""
    batch = LOCAL.short_rounds
    exact = sgd.solve_ode(LINEAR, batch, ORIGIN, times=[1.0], rtol=1e-10).excess_risk.item()
    gaps = [
        linear_rounds(LOCAL.replace(every=1.0 / rounds), rounds)[-1] - 2 * exact
        for rounds in (50, 100)
    ]
    assert abs(gaps[0] / gaps[1] - 2) < 0.05
    assert abs(gaps[1]) < 1e-2


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
@pytest.mark.parametrize("workers", [LOCAL, DILOCO], ids=["local", "diloco"])
def test_exact_and_direct_runs_have_one_law(workers):
    """Two rounds of three steps of three workers at d = 6: first and second moments."""
    count, workers = 4000, workers.replace(workers=3)
    results = [
        sgd.simulate(ERF, workers, START, dimension=6, steps=[6], runs=count, seed=seed, method=m)
        for seed, m in ((1, "exact"), (2, "direct"))
    ]
    for name in ("M", "Q", "worker_risk"):
        first, second = (result[name].values.ravel() for result in results)
        for power in (1, 2):
            a, b = first**power, second**power
            error = np.hypot(a.std(), b.std()) / np.sqrt(count)
            assert abs(a.mean() - b.mean()) < Z * error, (name, power)


@pytest.mark.slow
def test_paths_of_the_sde_fluctuate_like_runs():
    count, workers = 600, LOCAL.replace(workers=2)
    options = {"alpha": [1.0], "dimension": 100, "runs": count}
    paths = sgd.solve_sde(ERF, workers, START, **options)
    runs = sgd.simulate(ERF, workers, START, **options)
    for name in ("M", "Q"):
        spread = runs[name].values.std()
        ratio = paths[name].values.std() / spread
        assert abs(ratio - 1) < Z * np.sqrt(1 / count) + 0.02, name
        gap = abs(paths[name].mean() - runs[name].mean()).item()
        assert gap < Z * spread * np.sqrt(2 / count) + 1 / 100, name


@pytest.mark.slow
def test_erf_networks_have_the_reference_values():
    for algorithm, risk in ((LOCAL.algorithm, 0.01500948), (LOCAL.short_rounds, 0.00410659)):
        single = sgd.solve_ode(ERF, algorithm, START, times=[8.0], rtol=1e-10)
        np.testing.assert_allclose(single.excess_risk, risk, atol=6e-9)
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
    workers = LOCAL.replace(algorithm=sgd.OnePassSGD(lr=2.0))
    result = sgd.solve_ode(wide, workers, start, alpha=[2.0])
    Q = result.Q.values[0, 0]
    np.testing.assert_allclose(
        [Q[0, 0], Q[0, 1], Q[1, 1]], [0.90373045, -0.10044921, 0.65440357], atol=1e-8
    )
    np.testing.assert_allclose(
        np.diagonal(result.M.values[0, 0]), [0.50150324, 0.38591542], atol=1e-8
    )
    runs = sgd.simulate(wide, workers, start, alpha=[2.0], dimension=200, runs=400)
    for name in ("M", "Q"):
        error = runs[name].std("run").values / 20
        gap = np.abs(runs[name].mean("run").values - result[name].values[0])
        assert (gap < Z * error + 1 / 200).all(), name


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
    # Late in training, with rounds of tau = 2 and in the limit of short ones.
    options = {"rtol": 1e-9, "alpha": [40.0]}
    end = sgd.solve_ode(first, workers, start, **options)
    overlaps = [end.M.values[0, 0, 0, 0], end.Q.item()]
    np.testing.assert_allclose(overlaps, [0.58863, 0.56791], atol=6e-6)
    assert abs(end.excess_risk.item() - 0.0689229) < 1e-7
    short = [
        sgd.solve_ode(first, workers.replace(every=length), start, **options)
        for length in (0.2, 0.1)
    ]
    for name, expected in (("M", 0.60661), ("Q", 0.62323), ("excess_risk", 0.0735003)):
        values = [result[name].values.ravel()[0] for result in short]
        # The error of the limit is linear in the length of a round.
        assert abs(2 * values[1] - values[0] - expected) < 1e-3, name
        assert abs(values[1] - expected) < 0.6 * abs(values[0] - expected), name
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
