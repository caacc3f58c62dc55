"""Trained biases of TeacherStudent and MultiIndex, against the same network stated as a top."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import full_optimisation
from tests.problems.trained_tops import NOISE, bias_problem, bias_start, g

OVERLAPS = {"M": [[0.3], [-0.2]], "Q": [[1, 0.2], [0.2, 0.8]]}
TOP = {"a": [1, 0.5], "b": [0, 0.1]}


def shifted_target(signals):
    return g(signals[0] - 0.5)


def step_target(signals):
    return jnp.where(signals[0] > 0.5, 1.0, 0.0)


@pytest.mark.slow
def test_the_drift_is_that_of_the_network_stated_as_a_top():
    stated, algorithm = bias_problem(), sgd.OnePassSGD(lr=0.8)
    problem = sgd.MultiIndex(
        shifted_target, 1, width=2, activation="erf", head="trained", noise=NOISE, biases=True
    )
    assert problem.structure.top == stated.structure.top
    start = sgd.start(problem, **OVERLAPS, top=TOP)
    np.testing.assert_array_equal(start.a, bias_start(stated).a)
    first, second = (
        sgd.solve_ode(network, algorithm, start, times=[0, 0.5]) for network in (problem, stated)
    )
    for name in ("risk", "M", "Q", "top.a", "top.b"):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-9)


@pytest.mark.slow
def test_reference_values_with_a_jump():
    problem = sgd.MultiIndex(
        step_target,
        1,
        width=2,
        activation="erf",
        head="trained",
        noise=NOISE,
        biases=True,
        weight_decay={"rows": 0.05, "a": 0.1},
        kinks=[0.5],
    )
    start = sgd.start(problem, **OVERLAPS, top=TOP)
    algorithm = sgd.OnePassSGD(lr=0.8, head_rate={"b": 2.0})
    with full_optimisation():
        result = sgd.solve_ode(problem, algorithm, start, times=[0, 5.0], rtol=1e-10)
    # the signal is integrated in panels between its jumps
    assert result.attrs["error_quadrature"] < 1e-8
    np.testing.assert_allclose(result.risk[0], [0.21449724, 0.13052212], atol=1e-8)
    final = result.isel(run=0, time=-1)
    np.testing.assert_allclose(final.M[:, 0], [0.48557864, -0.03565181], atol=1e-8)
    np.testing.assert_allclose(final.Q[0], [0.57123013, 0.02881075], atol=1e-8)
    np.testing.assert_allclose(final["top.a"][0], 0.64478582, atol=1e-8)
    np.testing.assert_allclose(final["top.b"], [0.47959359, 0.34786898], atol=1e-8)


def test_a_fixed_head_trains_the_biases_alone():
    problem = sgd.TeacherStudent(width=2, activation="relu", biases=True, noise=0.1)
    assert problem.structure.top.names == ("b",)
    assert "top" in problem.kinds
    start = sgd.start(problem, **OVERLAPS, top={"b": [0.2, -0.3]})
    risk = sgd.expect(
        start, lambda f, z, top, draws: jnp.mean(jnp.maximum(f + top["b"], 0)), problem
    )
    # E[relu(s z + b)] = s phi(b/s) + b Phi(b/s)
    from scipy.stats import norm

    s, b = np.sqrt([1, 0.8]), np.array([0.2, -0.3])
    expected = np.mean(s * norm.pdf(b / s) + b * norm.cdf(b / s))
    np.testing.assert_allclose(risk.values, expected, rtol=3e-3)
    copy = problem.replace(width=3)
    assert copy.structure.top.shapes == ((3,),)
    record = problem.describe()
    assert record["biases"] is True
    assert record["head"] == "fixed"
    assert r"\lambda_i + b_i" in str(problem.equations(sgd.OnePassSGD(lr=0.1)))


@pytest.mark.slow
def test_results_restore_the_problem():
    problem = sgd.TeacherStudent(width=2, activation="erf", head="trained", biases=True)
    start = sgd.start(problem, **OVERLAPS, top=TOP)
    runs = sgd.simulate(problem, sgd.OnePassSGD(lr=0.5), start, steps=[0, 5], dimension=20, runs=2)
    assert sgd.problem_of(runs) == problem
    assert runs["top.b"].dims == ("run", "time", "b_0")


def test_what_is_not_supported_says_why():
    for options, message in [
        ({"keep": 0.5}, "biases = True: dropout"),
        ({"input_noise": 0.1}, "biases = True"),
        ({"biases": 1.5}, "biases = 1.5"),
        ({"head": "frozen"}, "head = 'frozen'"),
        ({"weight_decay": {"c": 0.1}}, "weight_decay = 'c'"),
    ]:
        with pytest.raises(ValueError, match=message):
            sgd.TeacherStudent(**{"width": 2, "biases": True, **options})
    problem = sgd.TeacherStudent(width=1, activation="linear", biases=True)
    with pytest.raises(ValueError, match="linear"):
        sgd.solve_linear(
            problem,
            sgd.OnePassSGD(lr=0.1),
            sgd.start(problem, M=[[0.1]], Q=[[1.0]], top={"b": [0.0]}),
            steps=[1],
            dimension=50,
        )
