"""A top at its optimum for the overlaps, rates of order d, and optimisers of tops."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z
from tests.problems.trained_tops import g, polynomial

OVERLAPS = {"M": [[0.3], [-0.2]], "Q": [[1, 0.2], [0.2, 0.8]]}


def sum_loss(fields, signals, top, noise_draw):
    label = g(signals[0]) + jnp.sqrt(0.1) * noise_draw
    return (jnp.sum(top["a"] * g(fields)) - label) ** 2 / 2


def sum_problem():
    problem = sgd.Problem(sum_loss, width=2, signals=1, top={"a": 2})
    return problem, sgd.start(problem, **OVERLAPS, top={"a": [1, 0.5]})


@pytest.mark.slow
def test_static_top_reference_values():
    """Values by closed erf integrals; the optimum solves E[phi phi^T] a = E[phi y]."""
    problem, start = sum_problem()
    algorithm = sgd.OnePassSGD(lr=0.5, head_rate="static")
    assert json.loads(json.dumps(algorithm.describe()))["head_rate"] == "static"
    assert algorithm.replace(lr=0.5) == algorithm
    result = sgd.solve_ode(problem, algorithm, start, times=[0, 1.0, 3.0])
    np.testing.assert_allclose(result.risk[0, 1:], [0.16598164, 0.10965303], atol=2e-8)
    np.testing.assert_allclose(result.M[0, -1, :, 0], [0.57182233, -0.47234156], atol=2e-8)
    # at t = 0 and t = 3 the top is the least-squares solution
    for time in (0, -1):
        point = sgd.start_from(result, time)

        def products(fields, signals, top, draws):
            features = g(fields)
            return jnp.append(jnp.outer(features, features), features * g(signals[0]))

        means = sgd.expect(point, products, problem).values[0]
        optimum = np.linalg.solve(means[:4].reshape(2, 2), means[4:])
        np.testing.assert_allclose(result["top.a"].values[0, time], optimum, atol=2e-3)


@pytest.mark.slow
def test_fast_rates_approach_the_static_top():
    problem, start = polynomial()
    static = sgd.solve_ode(problem, sgd.OnePassSGD(0.3, head_rate="static"), start, times=[1.0])
    gaps = []
    for rate in (40.0, 80.0):
        fast = sgd.solve_ode(problem, sgd.OnePassSGD(0.3, head_rate=rate), start, times=[1.0])
        gaps.append(float(abs(fast.Q - static.Q).max()))
    assert gaps[0] < 0.1
    np.testing.assert_allclose(gaps[0] / gaps[1], 2, rtol=0.25)  # corrections of order 1/r


@pytest.mark.slow
def test_rates_of_order_d_are_for_the_chain():
    problem, start = polynomial()
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate={"a": 200.0})
    with pytest.raises(ValueError, match=r"head_rate = 200\.0: it is of order d for d = 200"):
        sgd.solve_ode(problem, algorithm, start, times=[0.1], dimension=200)
    with pytest.raises(ValueError, match=r"head_rate = 20000\.0: it is of order d"):
        sgd.solve_ode(problem, algorithm.replace(head_rate=2e4), start, times=[0.1])
    runs = sgd.simulate(problem, algorithm, start, steps=[10], dimension=200, runs=2)
    assert np.all(np.isfinite(runs["top.a"]))


def test_static_heads_are_refused_by_name():
    problem, start = polynomial()
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate="static")
    with pytest.raises(ValueError, match="head_rate"):
        sgd.simulate(problem, algorithm, start, steps=[1], dimension=50)
    fixed = sgd.TeacherStudent(width=2, activation="erf")
    fixed_start = sgd.start(fixed, **OVERLAPS)
    with pytest.raises(ValueError, match="the head is fixed"):
        sgd.solve_ode(fixed, algorithm, fixed_start, times=[1.0])
    for rate in ("fast", {"a": "static"}):
        with pytest.raises(ValueError, match="head_rate"):
            sgd.OnePassSGD(lr=0.3, head_rate=rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [sgd.updates.momentum(0.5), sgd.updates.momentum(memory=3.0), sgd.updates.average(2.0)],
    ids=["fixed memory", "slow momentum", "average"],
)
def test_momentum_on_a_top(update):
    """The ODE, the chain and direct runs, with more numbers on top (4) than units (2)."""
    problem, start = polynomial()
    problem = problem.replace(weight_decay=0.02)
    lr = 0.15 if update.numbers.get("beta") else 0.3
    algorithm = sgd.OnePassSGD(lr=lr, head_rate={"b": 0.5}, update=update)
    common = {"times": [1.0], "dimension": 200, "runs": 300}
    exact = sgd.simulate(problem, algorithm, start, seed=1, **common)
    direct = sgd.simulate(problem, algorithm, start, method="direct", seed=2, **common)
    theory = sgd.solve_ode(problem, algorithm, start, times=[1.0])
    plain = sgd.solve_ode(problem, algorithm.replace(update=None), start, times=[1.0])
    for name in ("M", "Q", "top.a", "top.b"):
        first, second = (runs[name].values[:, -1].reshape(300, -1) for runs in (exact, direct))
        error = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 300)
        assert np.all(np.abs(first.mean(axis=0) - second.mean(axis=0)) < Z * error + 1e-12)
        mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
        expected = theory[name].values[0, -1].reshape(-1)
        assert np.all(np.abs(mean - expected) < Z * error + 0.02)  # a gap of order 1/d
    assert float(abs(theory["top.a"] - plain["top.a"]).max()) > 0.02  # the update matters


@pytest.mark.slow
def test_fixed_momentum_has_the_limit_of_a_longer_step():
    """dm/dt = 0: momentum at a fixed beta is plain SGD at lr/(1 - beta), also for the top."""
    problem, start = polynomial()
    problem = problem.replace(weight_decay=0.02)
    update = sgd.updates.momentum(0.5)
    first = sgd.solve_ode(problem, sgd.OnePassSGD(0.1, update=update), start, alpha=[5.0])
    second = sgd.solve_ode(problem, sgd.OnePassSGD(0.2), start, alpha=[5.0])
    for name in ("M", "Q", "top.a", "top.b"):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-6)
