"""Dropout, input noise, temperature and contexts.

The ODE has its reference values, which another program computed and compared with direct runs at
d = 1000. The exact chain and direct runs have one law, and the SDE agrees with them.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, full_optimisation, same_law, slow

D = 24


def decreasing(alpha):
    return jnp.exp(-alpha)


def task_probabilities(alpha):
    return jnp.stack([decreasing(alpha), 1 - decreasing(alpha)])


def tasks(heads="own", probabilities=(0.7, 0.3), **changes):
    """Two contexts that share their rows: the teacher of each task has one of two signals."""
    first = sgd.TeacherStudent(
        **(
            {
                "width": 2,
                "teacher_width": 2,
                "activation": "erf",
                "head": "trained",
                "teacher_head": [2.0, 0.0],
            }
            | changes
        )
    )
    return sgd.contexts(
        {"one": first, "other": first.replace(teacher_head=[0.0, 2.0])},
        probabilities=probabilities,
        heads=heads,
    )


def groups(**changes):
    """Two groups of inputs with variance 0 and 1 in the second block of coordinates."""
    options = {
        "width": 1,
        "activation": "erf",
        "noise": 0.3,
        "teacher_gram": [[[1.0]], [[0.0]]],
        **changes,
    }
    easy, hard = (
        sgd.TeacherStudent(**options, covariance=[(1.0, 0.5), (size, 0.5)]) for size in (0.0, 1.0)
    )
    return sgd.contexts({"easy": easy, "hard": hard})


# --------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize(("keep", "expected"), [(1.0, 0.0666873054), (0.29182, 0.0372338421)])
def test_dropout(keep, expected):
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.3, keep=keep, gain=0.6)
    start = sgd.start(problem, M=[[0.1], [0.05]], Q=np.diag([1.0, 0.8]), a=[2.0, 2.0])
    solution = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, alpha=[30.0])
    assert solution.excess_risk.item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.slow
def test_noise_on_inputs():
    problem = sgd.TeacherStudent(
        width=2,
        activation="erf",
        noise=0.1,
        input_noise=sgd.piecewise_rate([2.0, 4.0], [0.5, 0.1, 0.3]),
    )
    start = sgd.start(problem, M=[[0.2], [-0.1]], Q=[[1.0, 0.1], [0.1, 0.8]], a=[1.5, 1.0])
    solution = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.5), start, alpha=[6.0])
    assert solution.excess_risk.item() == pytest.approx(0.0463338713, rel=1e-8)
    assert sgd.problem_of(solution) == problem


def test_replay_with_two_heads():
    problem = tasks(probabilities=[1.0, 0.0], teacher_gram=[[1.0, 0.3], [0.3, 1.0]])
    start = sgd.start(
        problem,
        M=[[0.1, 0.02], [-0.05, 0.08]],
        Q=[[0.5, 0.05], [0.05, 0.4]],
        a=[[1.0, 0.4], [0.6, 1.0]],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=4.0)
    first_phase = sgd.solve_ode(problem, algorithm, start, alpha=[30.0])
    np.testing.assert_allclose(
        first_phase.context_risk[0, 0], [0.0002000957, 0.1573709237], atol=2e-10
    )
    np.testing.assert_allclose(first_phase.a[0, 0, 1], [0.6, 1.0], rtol=1e-12)  # not trained yet
    second_phase = sgd.solve_ode(
        problem.replace(probabilities=[0.0, 1.0]),
        algorithm,
        sgd.start_from(first_phase),
        alpha=[10.0],
    )
    assert second_phase.context_risk.mean().item() == pytest.approx(0.0258949173, rel=1e-8)


@pytest.mark.slow
def test_curriculum():
    problem = groups()
    start = sgd.start(problem, M=[[[0.1]], [[0.0]]], Q=[[[0.5]], [[0.5]]])
    probabilities_of_risk = {
        0.0478011553: [0.5, 0.5],
        0.0472214328: sgd.piecewise_rate([4.0], [[1, 0], [0, 1]]),
    }
    for risk, probabilities in probabilities_of_risk.items():
        curriculum = problem.replace(probabilities=probabilities)
        solution = sgd.solve_ode(
            curriculum,
            sgd.OnePassSGD(lr=1.0),
            start,
            alpha=[8.0],
            evaluate={"hard": problem.problems["hard"]},
        )
        assert solution.context_risk.sel(context="hard").item() - 0.15 == pytest.approx(
            risk, rel=1e-8
        )
        np.testing.assert_allclose(
            solution.evaluated_risk.sel(evaluation="hard"),
            solution.context_risk.sel(context="hard"),
            rtol=1e-12,
        )
        assert sgd.problem_of(solution) == curriculum


def test_momentum_whose_memory_changes():
    """Momentum with a memory c(alpha) follows the closed equations of a linear student.

    The overlaps M, Q of the weights w, and MU = v.w*, R = v.w, S = |v|^2 of the velocity v, are
    integrated by the Runge-Kutta method of order four.
    """
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(lr=0.7, update=sgd.updates.momentum(memory=lambda alpha: 1 + alpha))
    solution = sgd.solve_ode(problem, algorithm, start, alpha=[2.0], rtol=1e-10)
    state = np.array([0.1, 1.0, 0.0, 0.0, 0.0])  # M, Q, MU, R, S
    step = 1e-3

    def drift(alpha, y):
        M, Q, MU, R, S = y
        c, lr, e = 1 + alpha, 0.7, Q - 2 * M + 1 + 0.1
        dS = c * (2 * (R - MU) - 2 * S) + c**2 * e
        return np.array([-lr * MU, -2 * lr * R, c * (M - 1 - MU), -lr * S + c * (Q - M - R), dS])

    for index in range(2000):
        alpha = index * step
        k1 = drift(alpha, state)
        k2 = drift(alpha + step / 2, state + step / 2 * k1)
        k3 = drift(alpha + step / 2, state + step / 2 * k2)
        state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + drift(alpha + step, state + step * k3))
    assert solution.M.item() == pytest.approx(state[0], abs=1e-8)
    assert solution.Q.item() == pytest.approx(state[1], abs=1e-8)


# ------------------------------------------------------------------------------------------- in law

NETWORK = {"width": 2, "activation": "erf", "noise": 0.1}
BLOCKS = {"covariance": [(2.0, 0.5), (0.5, 0.5)]}
CASES = {
    "dropout": (sgd.TeacherStudent(**NETWORK, keep=0.5, head="trained"), {}),
    "dropout that ends": (
        sgd.TeacherStudent(**NETWORK, keep=lambda alpha: 1 - 0.7 * decreasing(alpha)),
        {},
    ),
    "input noise": (sgd.TeacherStudent(**NETWORK, input_noise=0.8), {}),
    "input noise, two signals": (
        sgd.TeacherStudent(**NETWORK, **BLOCKS, teacher_width=2, input_noise=decreasing),
        {},
    ),
    "temperature": (sgd.TeacherStudent(**NETWORK, **BLOCKS), {"temperature": decreasing}),
    "temperature and momentum": (
        sgd.TeacherStudent(**NETWORK),
        {"temperature": 0.3, "update": sgd.updates.momentum(0.5)},
    ),
    "two heads": (tasks(noise=0.1), {}),
    "shares of tasks": (tasks("shared", task_probabilities, noise=0.1), {}),
    "groups": (groups(head="trained"), {}),
    "all combined": (
        sgd.TeacherStudent(
            **NETWORK, **BLOCKS, keep=0.5, input_noise=0.3, weight_decay=decreasing, head="trained"
        ),
        {
            "temperature": 0.1,
            "head_rate": lambda alpha: 1 + alpha,
            "lr": sgd.piecewise_rate([0.3], [3.0, 1.0]),
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    slow(CASES, [name for name in CASES if name not in ("input noise, two signals", "groups")]),
)
def test_chain_against_direct(name, batch):
    """M, Q, a and risk of 2000 runs with each method have one law at d = 24, up to alpha = 1/2."""
    problem, options = CASES[name]
    algorithm = sgd.OnePassSGD(**{"lr": 3.0 * batch, "batch": batch, **options})
    start = sgd.random_start(problem, dimension=D, seed=1)
    alpha = [0.25, 0.5]
    with full_optimisation():
        exact, direct = (
            sgd.simulate(
                problem,
                algorithm,
                start,
                alpha=alpha,
                dimension=D,
                runs=2000,
                seed=seed,
                method=method,
            )
            for seed, method in enumerate(("exact", "direct"))
        )
    for variable in ("M", "Q", "a", "risk"):
        exact_sample, direct_sample = (
            result[variable].values[:, -1].reshape(2000, -1) for result in (exact, direct)
        )
        for index in range(exact_sample.shape[1]):
            same_law(exact_sample[:, index], direct_sample[:, index], f"{variable}[{index}]")


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(CASES, [name for name in CASES if name != "two heads"]))
def test_ode_agrees_with_the_mean_of_runs(name):
    """400 runs of the exact chain at d = 400 agree to 4.9 standard errors plus a bias of 4/d."""
    problem, options = CASES[name]
    algorithm = sgd.OnePassSGD(**{"lr": 1.5, **options})
    start = sgd.random_start(problem, dimension=D, seed=1)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[1.0])
    with full_optimisation():
        runs = sgd.simulate(problem, algorithm, start, alpha=[1.0], dimension=400, runs=400, seed=2)
    for variable in ("M", "Q", "a", "risk"):
        values = runs[variable].values[:, -1]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert np.all(
            np.abs(values.mean(axis=0) - theory[variable].values[0, -1]) <= Z * error + 4 / 400
        ), variable


def assert_drift_is_the_mean_step(problem, batch):
    """Assert that the drift at finite d is the mean of the first step of 20,000 runs."""
    start = sgd.random_start(problem, dimension=D, seed=1)
    algorithm = sgd.OnePassSGD(lr=2.0, batch=batch)
    with full_optimisation():
        runs = sgd.simulate(problem, algorithm, start, steps=[1], dimension=D, runs=20_000, seed=3)
    state = sgd.functional.state(start)
    import jax

    with jax.enable_x64(True):
        finite = sgd.functional.finite(problem, D, batch)
        drift = sgd.functional.drift(
            problem.structure, problem.parameters, state, lr=2.0, batch=batch, finite=finite
        )
    for name in ("M", "Q"):
        mean = np.asarray(drift[name]).sum(axis=0) * 2.0 / D
        increments = runs[name].values[:, 0] - getattr(start, name)[0]
        error = increments.std(axis=0, ddof=1) / np.sqrt(len(increments))
        assert np.all(np.abs(increments.mean(axis=0) - mean) <= Z * error + 1e-12), (
            name,
            increments.mean(axis=0),
            mean,
            error,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["input noise, two signals", "groups", "dropout"])
def test_drift_at_finite_d_is_the_mean_of_one_step(name):
    problem = CASES[name][0]
    if name.startswith("input"):
        problem = problem.replace(input_noise=0.7)
    assert_drift_is_the_mean_step(problem, batch=2)


PATHS = [
    "dropout",
    "shares of tasks",
    "input noise, two signals",
    "temperature",
    "groups",
    "all combined",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_sde_has_mean_and_variance_of_runs(name):
    """4000 paths and 4000 runs at d = 400 agree in the means and variances of M and Q.

    Variances agree within 16%, about 4.9 standard errors: the ratio of two sample variances of
    Gaussian variables has a standard error of 3.2%.
    """
    problem, options = CASES[name]
    algorithm, start = (
        sgd.OnePassSGD(**{"lr": 1.5, **options}),
        sgd.random_start(problem, dimension=D, seed=1),
    )
    paths = sgd.solve_sde(problem, algorithm, start, alpha=[1.0], dimension=400, runs=4000, seed=1)
    runs = sgd.simulate(problem, algorithm, start, alpha=[1.0], dimension=400, runs=4000, seed=2)
    for variable in ("M", "Q"):
        path_sample, run_sample = (result[variable].values[:, -1] for result in (paths, runs))
        error = np.sqrt((path_sample.var(axis=0) + run_sample.var(axis=0)) / 4000)
        # In addition to the sampling error, the paths have the error of their time steps, and runs
        # differ from a flow by the relative order lr/d of one step.
        own = float(algorithm.rates(np.zeros(1))[0]) / 400
        bias = (2 * paths.attrs["error_integrator"] + own) * np.abs(run_sample.mean(axis=0))
        assert np.all(
            np.abs(path_sample.mean(axis=0) - run_sample.mean(axis=0)) <= Z * error + bias
        ), variable
        np.testing.assert_allclose(path_sample.var(axis=0), run_sample.var(axis=0), rtol=0.16)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_sde_at_a_huge_dimension_follows_the_ode(name):
    problem, options = CASES[name]
    algorithm, start = (
        sgd.OnePassSGD(**{"lr": 1.5, **options}),
        sgd.random_start(problem, dimension=D, seed=1),
    )
    path = sgd.solve_sde(
        problem, algorithm, start, alpha=[0.5], dimension=10**12, runs=1, step=0.002
    )
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[0.5])
    for variable in ("M", "Q", "a", "risk"):
        np.testing.assert_allclose(path[variable], theory[variable], rtol=2e-4, atol=2e-5)


# ------------------------------------------------------------------------------------------- errors


def test_invalid_and_unsupported_arguments_raise():
    plain = sgd.TeacherStudent(width=2, activation="erf")
    with_dropout, start = (
        sgd.TeacherStudent(width=2, activation="erf", keep=0.5),
        sgd.start(plain, M=[[0.1], [0.2]], Q=np.eye(2)),
    )
    calls = {
        "keep = 1.5: give a number, 0 or more and at most 1": lambda: plain.replace(keep=1.5),
        "all contexts need the same width": lambda: sgd.contexts(
            {"a": plain, "b": plain.replace(width=3)}
        ),
        "all contexts need the same signals": lambda: sgd.contexts(
            {
                "a": plain.replace(teacher_width=2),
                "b": plain.replace(teacher_width=2, teacher_gram=[[1, 0.5], [0.5, 1]]),
            }
        ),
        "the same weight decay": lambda: sgd.contexts(
            {"a": plain, "b": plain.replace(weight_decay=0.1)}
        ),
        "give one probability for each": lambda: sgd.contexts(
            {"a": plain, "b": plain}, probabilities=[0.2, 0.3, 0.5]
        ),
        "adding up to 1": lambda: sgd.contexts({"a": plain, "b": plain}, probabilities=[0.2, 0.3]),
        "Omit draws, clusters, tokens, dropout": lambda: sgd.contexts(
            {"a": plain, "b": with_dropout}
        ),
        "give two or more problems by name": lambda: sgd.contexts({"a": plain}),
        "at alpha = 0.49": lambda: sgd.solve_ode(
            with_dropout.replace(keep=lambda alpha: 1 - 2.01 * alpha),
            sgd.OnePassSGD(lr=0.1),
            start,
            alpha=[0.5],
        ),
        "dropout, input noise and contexts are not supported here": lambda: sgd.simulate(
            with_dropout,
            sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0),
            start,
            steps=[1],
            dimension=20,
        ),
        "thermal noise is only supported for plain steps": lambda: sgd.OnePassSGD(
            temperature=0.1, update=sgd.updates.sign()
        ),
        "its theory sums over": lambda: sgd.solve_ode(
            with_dropout.replace(width=11),
            sgd.OnePassSGD(),
            sgd.random_start(with_dropout.replace(width=11), dimension=50),
            alpha=[1.0],
        ),
        "do not support noise on inputs": lambda: sgd.solve_ode(
            plain.replace(input_noise=0.1),
            sgd.OnePassSGD(update=sgd.updates.clipped(0.3)),
            start,
            alpha=[1.0],
        ),
        "an update that commutes with rotations": lambda: sgd.simulate(
            plain.replace(input_noise=0.1),
            sgd.OnePassSGD(update=sgd.updates.sign()),
            start,
            alpha=[1.0],
            dimension=30,
        ),
        "the same contexts with other probabilities": lambda: sgd.solve_ode(
            tasks(),
            sgd.OnePassSGD(),
            sgd.random_start(tasks(), dimension=50),
            alpha=[1.0],
            evaluate={"one": tasks().problems["one"]},
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
