"""Models with a trained top: reference values, and quantities that do not change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import full_optimisation

Q = [[1, 0.1], [0.1, 0.9]]


def swiglu_loss(fields, signals, top, noise_draw):
    output = top["c"] * jax.nn.silu(fields[0]) * fields[1]
    return (output - jax.nn.silu(signals[0]) * signals[1]) ** 2 / 2


def rms_norm_loss(fields, signals, top, noise_draw):
    hidden = jnp.tanh(fields)
    output = top["gain"] @ hidden / jnp.sqrt(jnp.mean(hidden**2) + 0.1)
    return (output - signals[0] - (signals[0] ** 2 - 1) / 2) ** 2 / 2


rms_norm_loss.smooth = True  # the root is never taken at 0


def softmax_problem():
    problem = sgd.models.softmax()
    start = sgd.start(
        problem,
        M=[[0.4, -0.3, 0.1], [-0.1, 0.3, -0.4]],
        Q=Q,
        top={"B": [[0.5, -0.2], [-0.3, 0.4], [0.1, -0.4]]},
    )
    return problem, start


@pytest.mark.slow
def test_softmax_moments_on_the_grid():
    """Cross-entropy at the start, by quadrature, and the sums of the columns of B."""
    problem, start = softmax_problem()
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0, 0.05])
    np.testing.assert_allclose(result.risk[0, 0], 0.987000, atol=1e-6)
    sums = result["top.B"].values[0].sum(axis=1)
    np.testing.assert_allclose(sums[1], sums[0], atol=1e-9)
    assert result.attrs["error_quadrature"] < 1e-5


@pytest.mark.slow
def test_softmax_learning_curve():
    problem, start = softmax_problem()
    with full_optimisation():
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0, 10.0])
    final = result.isel(run=0, time=-1)
    np.testing.assert_allclose(final.risk, 0.574034, atol=1e-5)
    values = [final.Q[0, 0], final.Q[0, 1], final.Q[1, 1]]
    np.testing.assert_allclose(values, [2.45779, -0.47179, 2.49142], atol=2e-5)
    values = [final["top.B"][0, 0], final["top.B"][1, 1]]
    np.testing.assert_allclose(values, [1.19997, 0.94388], atol=2e-5)
    loss = problem.user_loss

    def correct(fields, signals, top, draws):
        return jnp.argmax(loss.logits(fields, top)) == jnp.argmax(signals)

    shares = sgd.expect(result, lambda *sample: 1.0 * correct(*sample), problem)
    np.testing.assert_allclose(shares.values[0], [0.5309, 0.8003], atol=1e-3)


def test_lora_keeps_its_balance_in_gradient_flow():
    """B^T B - A A^T is constant without noise and decay."""
    problem = sgd.models.lora(head=(1.0,), shift=(1.0,), gram=[[1, 0.2], [0.2, 1]])
    start = sgd.start(problem, M=[[0.1, 0.3]], Q=[[1.0]], top={"B": [[0.3]]})
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=[0, 8.0])
    balance = result["top.B"].values[0, :, 0, 0] ** 2 - result.Q.values[0, :, 0, 0]
    assert abs(result["top.B"].values[0, 1, 0, 0] - 0.3) > 0.05
    np.testing.assert_allclose(balance[1], balance[0], atol=1e-8)


@pytest.mark.slow
def test_noise_of_sgd_moves_the_balance_of_lora():
    """d(A A^T)/dt - d(B^T B)/dt = lr E[h h^T], which gradient flow lacks."""
    problem = sgd.models.lora(gram=[[1, 0.3, 0.2], [0.3, 1, 0], [0.2, 0, 1]], noise=0.01)
    start = sgd.start(problem, M=[[0.05, -0.1, 0.3]], Q=[[1.0]], top={"B": [[0.3], [0.1]]})
    state, lr = sgd.functional.state(start), 0.7
    with jax.enable_x64(True):
        rates = sgd.functional.drift(problem.structure, problem.parameters, state, lr=lr)

    def squared_gradient(fields, signals, top, noise_draw, parameters):
        loss = problem.user_loss
        return jax.grad(loss)(fields, signals, top, noise_draw, parameters)[0] ** 2

    noise = sgd.expect(start, squared_gradient, problem)
    balance = np.sum(rates["Q"]) - 2 * start.a[0] @ np.asarray(rates["a"])
    np.testing.assert_allclose(balance, lr * noise.values[0], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("exact", marks=pytest.mark.slow), "direct"])
def test_column_sums_of_softmax_do_not_move_in_runs(method):
    problem = sgd.models.softmax(classes=2, width=1)
    start = sgd.start(problem, M=[[0.4, -0.3]], Q=[[1.0]], top={"B": [[0.5], [-0.3]]})
    algorithm = sgd.OnePassSGD(lr=1.0)
    runs = sgd.simulate(problem, algorithm, start, steps=[0, 50], dimension=10, method=method)
    B = runs["top.B"].values[0, :, :, 0]
    assert np.abs(B[1] - B[0]).max() > 0.1
    np.testing.assert_allclose(B.sum(axis=1), 0.2, atol=1e-13)


@pytest.mark.slow
def test_lora_learning_curve():
    gram = [[1, 0.3, 0.2], [0.3, 1, 0], [0.2, 0, 1]]
    problem = sgd.models.lora(gram=gram, noise=0.01)
    start = sgd.start(problem, M=[[0.05, -0.1, 0.3]], Q=[[1.0]], top={"B": [[0.3], [0.1]]})
    with full_optimisation():
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0, 10.0])
        zero = sgd.start(problem, M=[[0.05, -0.1, 0.1]], Q=[[1.0]], top={"B": np.zeros((2, 1))})
        plateau = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), zero, times=[10.0])
    # erf: all moments are closed, also for two units
    np.testing.assert_allclose(result.risk[0], [0.06710072, 0.04491619], atol=1e-8)
    final = result.isel(run=0, time=-1)
    values = [final.M[0, 2], final.Q[0, 0], *final["top.B"][:, 0]]
    np.testing.assert_allclose(values, [0.60844514, 1.01828769, 0.29688382, -0.03593961], atol=1e-8)
    assert float(plateau.risk[0, 0]) == pytest.approx(0.06128615, abs=1e-8)


@pytest.mark.slow
def test_runs_of_lora_differ_from_the_limit_by_a_multiple_of_1_over_d():
    gram = [[1, 0.3, 0.2], [0.3, 1, 0], [0.2, 0, 1]]
    problem = sgd.models.lora(gram=gram, noise=0.01)
    zero = sgd.start(problem, M=[[0.05, -0.1, 0.1]], Q=[[1.0]], top={"B": np.zeros((2, 1))})
    limit = float(sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), zero, times=[10.0]).Q[0, 0, 0, 0])
    for d, runs in ((100, 1000), (200, 1000)):
        chain = sgd.simulate(
            problem, sgd.OnePassSGD(lr=1.0), zero, times=[10.0], dimension=d, runs=runs
        )
        Q = chain.Q.values[:, 0, 0, 0]
        # -0.52(2)/d, with a correction of order 1/d^2
        assert abs(d * (Q.mean() - limit) + 0.52) < 5 * d * Q.std() / np.sqrt(runs) + 0.06


@pytest.mark.slow
def test_swiglu():
    problem = sgd.Problem(swiglu_loss, width=2, signals=2, top={"c": ()})
    start = sgd.start(problem, M=[[0.4, 0.1], [0.1, 0.5]], Q=Q, top={"c": 0.5})
    with full_optimisation():
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.2), start, times=[0, 10.0])
    np.testing.assert_allclose(result.risk[0], [0.17897705, 0.05789115], atol=1e-7)
    final = result.isel(run=0, time=-1)
    values = [final.M[0, 0], final.M[1, 1], final.Q[0, 0], final["top.c"]]
    np.testing.assert_allclose(values, [1.01609376, 0.99301634, 1.28089166, 0.60969489], atol=1e-7)


@pytest.mark.slow
def test_rms_norm_doubles_its_points():
    """The pole of a norm layer is near: 6 points a standard deviation would be .008 wrong."""
    problem = sgd.Problem(rms_norm_loss, width=2, signals=1, top={"gain": 2})
    start = sgd.start(problem, M=[[0.4], [-0.3]], Q=Q, top={"gain": [0.6, -0.3]})
    with full_optimisation():
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.4), start, times=[0, 10.0])
    np.testing.assert_allclose(result.risk[0], [0.63906985, 0.35518532], atol=1e-6)
    final = result.isel(run=0, time=-1)
    values = [final.M[0, 0], final.Q[0, 0], *final["top.gain"]]
    np.testing.assert_allclose(values, [0.99921773, 1.34766352, 0.74233062, -0.55045987], atol=1e-7)


def test_mlp_is_the_network_it_states():
    problem = sgd.models.mlp(widths=(2, 3), signals=1, biases=True, noise=0.1)
    loss = problem.user_loss
    generator = np.random.default_rng(0)
    top = problem.structure.top.unravel(generator.standard_normal(problem.structure.head_size))
    fields = generator.standard_normal(2)
    hidden = np.tanh(top["V1"] @ np.tanh(fields + top["c0"]) + top["c1"])
    np.testing.assert_allclose(loss.output(fields, top), top["u"] @ hidden, rtol=1e-6)
    assert problem.noise_floor == 0.05
    with pytest.raises(ValueError, match="widths"):
        sgd.models.mlp(widths=3)
