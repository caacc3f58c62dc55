"""The mean dynamics of trained tops against values of independent quadratures."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import full_optimisation
from tests.problems.trained_tops import bias_problem, bias_start, deep, step_loss, tasks


@pytest.mark.slow
def test_biases_with_rates_and_decay_by_leaf():
    problem = bias_problem(step_loss, weight_decay={"rows": 0.05, "a": 0.1})
    algorithm = sgd.OnePassSGD(lr=0.8, head_rate={"b": 2.0})
    result = sgd.solve_ode(problem, algorithm, bias_start(problem), times=[0, 5.0])
    final = result.isel(run=0, time=-1)
    # the label jumps: Sobol points, whose error is known
    expected = {
        "risk": 0.13052212,
        "M": [[0.48557864], [-0.03565181]],
        "top.b": [0.47959359, 0.34786898],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(final[name], values, atol=2e-4)
    np.testing.assert_allclose(final.Q[0], [0.57123013, 0.02881075], atol=2e-4)
    np.testing.assert_allclose(final["top.a"][0], 0.64478582, atol=2e-4)
    assert result.attrs["error_quadrature"] < 1e-3


@pytest.mark.slow
def test_contexts_with_own_and_shared_leaves():
    problem, start = tasks()
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0, 10.0])
    np.testing.assert_allclose(result.risk[0], [0.15501534, 0.02015262], atol=1e-8)
    final = result.isel(run=0, time=-1)
    assert final["top.a"].dims == ("context",)
    expected = [0.95126310, 0.98969185, 0.80383401, -0.21351166, 1.06776677]
    values = [final.M[0, 0], final.Q[0, 0], final["top.a"][0], final["top.b"][1], final["top.c"]]
    np.testing.assert_allclose([float(value) for value in values], expected, atol=1e-8)


@pytest.mark.slow
def test_deep_top():
    problem, start = deep()
    with full_optimisation():
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.3), start, times=[0, 6.0])
    np.testing.assert_allclose(result.risk[0], [0.842575, 0.509171], atol=2e-5)
    final = result.isel(run=0, time=-1)
    np.testing.assert_allclose(np.diag(final.M), [0.577045, -0.192027], atol=2e-5)
    np.testing.assert_allclose([final.Q[0, 0], final.Q[1, 2]], [0.975514, 0.446271], atol=2e-5)
    np.testing.assert_allclose(final["top.u"], [0.568263, -0.599710], atol=2e-5)


@pytest.mark.slow
def test_a_head_is_the_top_of_one_vector():
    """The same equations, whether the head is today's or a leaf."""
    import jax.numpy as jnp

    def loss(fields, signals, head, noise_draw):
        return (jnp.mean(head * jnp.tanh(fields)) - signals[0]) ** 2 / 2

    def top_loss(fields, signals, top, noise_draw):
        return loss(fields, signals, top["a"], noise_draw)

    overlaps = {"M": [[0.3], [-0.2]], "Q": [[1, 0.2], [0.2, 0.8]]}
    common = {"width": 2, "signals": 1, "weight_decay": 0.1}
    algorithm = sgd.OnePassSGD(lr=0.5, head_rate=0.7)
    head = sgd.Problem(loss, head="trained", **common)
    top = sgd.Problem(top_loss, top={"a": 2}, **common)
    for dimension in (None, 50):
        first = sgd.solve_ode(
            head,
            algorithm,
            sgd.start(head, **overlaps, a=[1, 0.5]),
            times=[2.0],
            dimension=dimension,
        )
        second = sgd.solve_ode(
            top,
            algorithm,
            sgd.start(top, **overlaps, top={"a": [1, 0.5]}),
            times=[2.0],
            dimension=dimension,
        )
        np.testing.assert_array_equal(second["top.a"], first["a"])  # to the last bit
        np.testing.assert_array_equal(second["Q"], first["Q"])
