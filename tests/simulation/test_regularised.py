"""Dropout, noise on the inputs, temperature and contexts: reference values of the ODE, and the exact chain against direct runs in law.

Reference values: ODEs of another program, with direct runs at d = 1000 beside them.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, full_optimisation, same_law, slow

D = 24


def falling(alpha):
    return jnp.exp(-alpha)


def shares(alpha):
    return jnp.stack([falling(alpha), 1 - falling(alpha)])


def tasks(heads="own", probabilities=(0.7, 0.3), **changes):
    """Two tasks of two signals; with other eigenvalues in the second where it asks for them."""
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
    """Two groups of inputs, whose second block of coordinates is silent, or loud."""
    both = {
        "width": 1,
        "activation": "erf",
        "noise": 0.3,
        "teacher_gram": [[[1.0]], [[0.0]]],
        **changes,
    }
    easy, hard = (
        sgd.TeacherStudent(**both, covariance=[(1.0, 0.5), (size, 0.5)]) for size in (0.0, 1.0)
    )
    return sgd.contexts({"easy": easy, "hard": hard})


# ------------------------------------------------------------------------------------------------------ reference values


@pytest.mark.parametrize(("keep", "expected"), [(1.0, 0.0666873054), (0.29182, 0.0372338421)])
def test_dropout(keep, expected):
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.3, keep=keep, gain=0.6)
    begin = sgd.start(problem, M=[[0.1], [0.05]], Q=np.diag([1.0, 0.8]), a=[2.0, 2.0])
    found = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), begin, alpha=[30.0])
    assert found.excess_risk.item() == pytest.approx(expected, rel=1e-8)


def test_noise_on_inputs():
    problem = sgd.TeacherStudent(
        width=2,
        activation="erf",
        noise=0.1,
        input_noise=sgd.piecewise_rate([2.0, 4.0], [0.5, 0.1, 0.3]),
    )
    begin = sgd.start(problem, M=[[0.2], [-0.1]], Q=[[1.0, 0.1], [0.1, 0.8]], a=[1.5, 1.0])
    found = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.5), begin, alpha=[6.0])
    assert found.excess_risk.item() == pytest.approx(0.0463338713, rel=1e-8)
    assert sgd.problem_of(found) == problem


def test_replay_with_two_heads():
    both = tasks(probabilities=[1.0, 0.0], teacher_gram=[[1.0, 0.3], [0.3, 1.0]])
    begin = sgd.start(
        both,
        M=[[0.1, 0.02], [-0.05, 0.08]],
        Q=[[0.5, 0.05], [0.05, 0.4]],
        a=[[1.0, 0.4], [0.6, 1.0]],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=4.0)
    first = sgd.solve_ode(both, algorithm, begin, alpha=[30.0])
    np.testing.assert_allclose(first.context_risk[0, 0], [0.0002000957, 0.1573709237], atol=2e-10)
    np.testing.assert_allclose(first.a[0, 0, 1], [0.6, 1.0], rtol=1e-12)  # not trained yet
    second = sgd.solve_ode(
        both.replace(probabilities=[0.0, 1.0]), algorithm, sgd.start_from(first), alpha=[10.0]
    )
    assert second.context_risk.mean().item() == pytest.approx(0.0258949173, rel=1e-8)


def test_curriculum():
    both = groups()
    begin = sgd.start(both, M=[[[0.1]], [[0.0]]], Q=[[[0.5]], [[0.5]]])
    expected = {0.0478011553: [0.5, 0.5], 0.0472214328: sgd.piecewise_rate([4.0], [[1, 0], [0, 1]])}
    for risk, probabilities in expected.items():
        one = both.replace(probabilities=probabilities)
        found = sgd.solve_ode(
            one,
            sgd.OnePassSGD(lr=1.0),
            begin,
            alpha=[8.0],
            evaluate={"hard": both.problems["hard"]},
        )
        assert found.context_risk.sel(context="hard").item() - 0.15 == pytest.approx(risk, rel=1e-8)
        np.testing.assert_allclose(
            found.evaluated_risk.sel(evaluation="hard"),
            found.context_risk.sel(context="hard"),
            rtol=1e-12,
        )
        assert sgd.problem_of(found) == one


def test_momentum_whose_memory_changes():
    """A memory c(alpha): the closed equations of linear students, by another integrator's steps, and the chain at d = 600."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(lr=0.7, update=sgd.updates.momentum(memory=lambda alpha: 1 + alpha))
    found = sgd.solve_ode(problem, algorithm, begin, alpha=[2.0], rtol=1e-10)
    M, Q, MU, R, S, step = 0.1, 1.0, 0.0, 0.0, 0.0, 1e-3
    state = np.array([M, Q, MU, R, S])

    def rate(alpha, y):
        M, Q, MU, R, S = y
        c, lr, e = 1 + alpha, 0.7, Q - 2 * M + 1 + 0.1
        dS = c * (2 * (R - MU) - 2 * S) + c**2 * e
        return np.array([-lr * MU, -2 * lr * R, c * (M - 1 - MU), -lr * S + c * (Q - M - R), dS])

    for index in range(2000):
        a, h = index * step, step
        one = rate(a, state)
        two = rate(a + h / 2, state + h / 2 * one)
        three = rate(a + h / 2, state + h / 2 * two)
        state = state + h / 6 * (one + 2 * two + 2 * three + rate(a + h, state + h * three))
    assert found.M.item() == pytest.approx(state[0], abs=1e-8)
    assert found.Q.item() == pytest.approx(state[1], abs=1e-8)


# ---------------------------------------------------------------------------------------------------------------- in law

NETWORK = {"width": 2, "activation": "erf", "noise": 0.1}
BLOCKS = {"covariance": [(2.0, 0.5), (0.5, 0.5)]}
CASES = {
    "dropout": (sgd.TeacherStudent(**NETWORK, keep=0.5, head="trained"), {}),
    "dropout that ends": (
        sgd.TeacherStudent(**NETWORK, keep=lambda alpha: 1 - 0.7 * falling(alpha)),
        {},
    ),
    "input noise": (sgd.TeacherStudent(**NETWORK, input_noise=0.8), {}),
    "input noise, two signals": (
        sgd.TeacherStudent(**NETWORK, **BLOCKS, teacher_width=2, input_noise=falling),
        {},
    ),
    "temperature": (sgd.TeacherStudent(**NETWORK, **BLOCKS), {"temperature": falling}),
    "temperature and momentum": (
        sgd.TeacherStudent(**NETWORK),
        {"temperature": 0.3, "update": sgd.updates.momentum(0.5)},
    ),
    "two heads": (tasks(noise=0.1), {}),
    "shares of tasks": (tasks("shared", shares, noise=0.1), {}),
    "groups": (groups(head="trained"), {}),
    "all at once": (
        sgd.TeacherStudent(
            **NETWORK, **BLOCKS, keep=0.5, input_noise=0.3, weight_decay=falling, head="trained"
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
    """2000 runs each at d = 24, over 12 samples of d: M, Q, a and risk in law; false alarms 1e-6 a comparison."""
    problem, options = CASES[name]
    algorithm = sgd.OnePassSGD(**{"lr": 3.0 * batch, "batch": batch, **options})
    begin = sgd.random_start(problem, dimension=D, seed=1)
    alpha = [0.25, 0.5]
    with full_optimisation():
        exact, direct = (
            sgd.simulate(
                problem,
                algorithm,
                begin,
                alpha=alpha,
                dimension=D,
                runs=2000,
                seed=seed,
                method=method,
            )
            for seed, method in enumerate(("exact", "direct"))
        )
    for kept in ("M", "Q", "a", "risk"):
        one, other = (result[kept].values[:, -1].reshape(2000, -1) for result in (exact, direct))
        for index in range(one.shape[1]):
            same_law(one[:, index], other[:, index], f"{kept}[{index}]")


@pytest.mark.parametrize("name", slow(CASES, [name for name in CASES if name != "two heads"]))
def test_the_ode_is_the_mean_of_runs(name):
    """At d = 400, 400 runs of the exact chain: 4.9 standard errors (1e-6 each), and a bias of 4/d."""
    problem, options = CASES[name]
    algorithm = sgd.OnePassSGD(**{"lr": 1.5, **options})
    begin = sgd.random_start(problem, dimension=D, seed=1)
    theory = sgd.solve_ode(problem, algorithm, begin, alpha=[1.0])
    with full_optimisation():
        runs = sgd.simulate(problem, algorithm, begin, alpha=[1.0], dimension=400, runs=400, seed=2)
    for kept in ("M", "Q", "a", "risk"):
        values = runs[kept].values[:, -1]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert np.all(
            np.abs(values.mean(axis=0) - theory[kept].values[0, -1]) <= Z * error + 4 / 400
        ), kept


def finite_mean(problem, batch):
    """The ODE at d and the chain's mean over one step from one state."""
    begin = sgd.random_start(problem, dimension=D, seed=1)
    algorithm = sgd.OnePassSGD(lr=2.0, batch=batch)
    with full_optimisation():
        runs = sgd.simulate(problem, algorithm, begin, steps=[1], dimension=D, runs=20_000, seed=3)
    state = sgd.functional.state(begin)
    import jax

    with jax.enable_x64(True):
        finite = sgd.functional.finite(problem, D, batch)
        rate = sgd.functional.drift(
            problem.structure, problem.parameters, state, lr=2.0, batch=batch, finite=finite
        )
    for kept in ("M", "Q"):
        mean = np.asarray(rate[kept]).sum(axis=0) * 2.0 / D
        moved = runs[kept].values[:, 0] - getattr(begin, kept)[0]
        error = moved.std(axis=0, ddof=1) / np.sqrt(len(moved))
        assert np.all(np.abs(moved.mean(axis=0) - mean) <= Z * error + 1e-12), (
            kept,
            moved.mean(axis=0),
            mean,
            error,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["input noise, two signals", "groups", "dropout"])
def test_the_finite_mean_is_that_of_one_step(name):
    problem = CASES[name][0]
    finite_mean(problem.replace(input_noise=0.7) if name.startswith("input") else problem, 2)


PATHS = [
    "dropout",
    "shares of tasks",
    "input noise, two signals",
    "temperature",
    "groups",
    "all at once",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_the_sde_has_mean_and_spread_of_runs(name):
    """At d = 400 over 4000 paths and 4000 runs: means of M and Q within 4.9 standard errors (1e-6 each), and variances within 16%, as many
    standard errors of the ratio of two (a Gaussian's is 3.2%)."""
    problem, options = CASES[name]
    algorithm, begin = (
        sgd.OnePassSGD(**{"lr": 1.5, **options}),
        sgd.random_start(problem, dimension=D, seed=1),
    )
    paths = sgd.solve_sde(problem, algorithm, begin, alpha=[1.0], dimension=400, runs=4000, seed=1)
    runs = sgd.simulate(problem, algorithm, begin, alpha=[1.0], dimension=400, runs=4000, seed=2)
    for kept in ("M", "Q"):
        one, other = (found[kept].values[:, -1] for found in (paths, runs))
        error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / 4000)
        # beside the scatter: of the paths' steps, and of a run's, lr/d, which are no flow
        own = float(algorithm.rates(np.zeros(1))[0]) / 400
        bias = (2 * paths.attrs["error_integrator"] + own) * np.abs(other.mean(axis=0))
        assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) <= Z * error + bias), kept
        np.testing.assert_allclose(one.var(axis=0), other.var(axis=0), rtol=0.16)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_the_sde_at_a_huge_dimension_is_the_ode(name):
    problem, options = CASES[name]
    algorithm, begin = (
        sgd.OnePassSGD(**{"lr": 1.5, **options}),
        sgd.random_start(problem, dimension=D, seed=1),
    )
    path = sgd.solve_sde(
        problem, algorithm, begin, alpha=[0.5], dimension=10**12, runs=1, step=0.002
    )
    theory = sgd.solve_ode(problem, algorithm, begin, alpha=[0.5])
    for kept in ("M", "Q", "a", "risk"):
        np.testing.assert_allclose(path[kept], theory[kept], rtol=2e-4, atol=2e-5)


# -------------------------------------------------------------------------------------------------------------- refusals


def test_what_is_refused():
    one = sgd.TeacherStudent(width=2, activation="erf")
    network, begin = (
        sgd.TeacherStudent(width=2, activation="erf", keep=0.5),
        sgd.start(one, M=[[0.1], [0.2]], Q=np.eye(2)),
    )
    refused = {
        "keep = 1.5: give a number, 0 or more and at most 1": lambda: one.replace(keep=1.5),
        "all contexts need the same width": lambda: sgd.contexts(
            {"a": one, "b": one.replace(width=3)}
        ),
        "all contexts need the same signals": lambda: sgd.contexts(
            {
                "a": one.replace(teacher_width=2),
                "b": one.replace(teacher_width=2, teacher_gram=[[1, 0.5], [0.5, 1]]),
            }
        ),
        "the same weight decay": lambda: sgd.contexts(
            {"a": one, "b": one.replace(weight_decay=0.1)}
        ),
        "give one probability for each": lambda: sgd.contexts(
            {"a": one, "b": one}, probabilities=[0.2, 0.3, 0.5]
        ),
        "adding up to 1": lambda: sgd.contexts({"a": one, "b": one}, probabilities=[0.2, 0.3]),
        "Omit draws, clusters, tokens, dropout": lambda: sgd.contexts({"a": one, "b": network}),
        "give two or more problems by name": lambda: sgd.contexts({"a": one}),
        "at alpha = 0.49": lambda: sgd.solve_ode(
            network.replace(keep=lambda alpha: 1 - 2.01 * alpha),
            sgd.OnePassSGD(lr=0.1),
            begin,
            alpha=[0.5],
        ),
        "dropout, input noise and contexts are not supported here": lambda: sgd.simulate(
            network,
            sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0),
            begin,
            steps=[1],
            dimension=20,
        ),
        "thermal noise is only supported for plain steps": lambda: sgd.OnePassSGD(
            temperature=0.1, update=sgd.updates.sign()
        ),
        "its theory sums over": lambda: sgd.solve_ode(
            network.replace(width=11),
            sgd.OnePassSGD(),
            sgd.random_start(network.replace(width=11), dimension=50),
            alpha=[1.0],
        ),
        "do not support noise on inputs": lambda: sgd.solve_ode(
            one.replace(input_noise=0.1),
            sgd.OnePassSGD(update=sgd.updates.clipped(0.3)),
            begin,
            alpha=[1.0],
        ),
        "an update that commutes with rotations": lambda: sgd.simulate(
            one.replace(input_noise=0.1),
            sgd.OnePassSGD(update=sgd.updates.sign()),
            begin,
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
    for said, call in refused.items():
        with pytest.raises(ValueError, match=said):
            call()
