"""The ODE of optimisers on a top, against equations that are written and integrated by hand."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf
from scipy.integrate import solve_ivp
from scipy.special import ndtr

import sgdynamics as sgd
from sgdynamics.problems.overlap_starts import AuxiliaryState
from tests.problems.linear_top import LABELS, NOISE, TOP, M, Q, linear_top, linear_top_start

U = sgd.updates
LR, RATES, DECAY = 0.5, {"V": 0.7, "b": 0.5}, {"rows": 0.2, "V": 0.1}


def means(state):
    """E[h z], E[h lambda^T], E[h h^T] and mean and mean square of the gradient of the top."""
    M, Q, V, u, b = state[:2], state[2:6].reshape(2, 2), state[6:10], state[10:12], state[12]
    V = V.reshape(2, 2)
    A, c = u[:, None] * V, np.array(LABELS)
    # errors e = A lambda + b - c z - noise
    with_fields, with_signal = A @ Q - np.outer(c, M), A @ M - c
    covariance = with_fields @ A.T - np.outer(with_signal, c) + NOISE**2
    with_hidden = np.sum(V * with_fields, axis=1)
    of_top = {"V": u[:, None] * with_fields, "u": with_hidden, "b": 2 * b}
    # E[e^2 s^2] for a centred Gaussian s: E[e^2] E[s^2] + 2 E[e s]^2
    squares = {
        "u": (np.diag(covariance) + b**2) * np.diag(V @ Q @ V.T) + 2 * with_hidden**2,
        "sum of errors": covariance.sum(),
    }
    noise = A.T @ (covariance + b**2) @ A
    return A.T @ with_signal, A.T @ with_fields, noise, of_top, squares


def flow_of_rows(state):
    """dM/dt and dQ/dt of plain steps with weight decay."""
    with_signal, with_fields, noise, _, _ = means(state)
    dM = -with_signal - DECAY["rows"] * state[:2]
    dQ = -with_fields - with_fields.T - 2 * DECAY["rows"] * state[2:6].reshape(2, 2) + LR * noise
    return dM, dQ.reshape(-1)


def initial(problem):
    start = linear_top_start(problem)
    return start, np.concatenate([np.ravel(M), np.ravel(Q), np.ravel(TOP["V"]), TOP["u"], [0.3]])


@pytest.mark.slow
def test_muon_and_adam_by_leaf():
    """Muon with memory on a matrix leaf, Adam on a vector, plain steps elsewhere."""
    problem = linear_top(weight_decay=DECAY)
    start, y = initial(problem)
    update = U.separate(head={"V": U.muon(memory=3.0), "u": U.adam(2.0, eps=0.05)})
    algorithm = sgd.OnePassSGD(lr=LR, head_rate=RATES, update=update)

    def rate(alpha, state):
        dM, dQ = flow_of_rows(state)
        _, _, _, g, squares = means(state)
        V = state[6:10].reshape(2, 2)
        velocity, average = state[13:17].reshape(2, 2), state[17:19]
        left, _, right = np.linalg.svd(velocity)
        corrected = average / -np.expm1(-2.0 * alpha)
        step = np.sqrt(np.maximum(corrected, 0)) + 0.05
        return np.concatenate(
            [
                LR * dM,
                LR * dQ,
                -LR * RATES["V"] * (left @ right + DECAY["V"] * V).reshape(-1),
                -LR * g["u"] / step,
                [-LR * RATES["b"] * g["b"]],
                3.0 * (g["V"] - velocity).reshape(-1),
                2.0 * (squares["u"] - average),
            ]
        )

    # after a short time the velocity has its direction, and the averages their bias
    _, _, _, g, squares = means(y)
    first = 1e-8
    memory = [3.0 * first * g["V"].reshape(-1), 2.0 * first * squares["u"]]
    flow = solve_ivp(
        rate, (first, 2.0), np.concatenate([y, *memory]), rtol=1e-9, atol=1e-12, method="LSODA"
    )
    result = sgd.solve_ode(problem, algorithm, start, alpha=[2.0])
    names = ("M", "Q", "top.V", "top.u", "top.b")
    values = np.concatenate([result[name].values.reshape(-1) for name in names])
    np.testing.assert_allclose(values, flow.y[:13, -1], atol=2e-6)
    assert list(result.update_vector.values) == ["V_velocity", "u_squares"]


@pytest.mark.slow
def test_sign_of_the_gradient_of_a_leaf():
    """E[sign e] = 2 Phi(2b/s) - 1 for a bias, whose gradient is a Gaussian sum of errors."""
    problem = linear_top(weight_decay=DECAY)
    start, y = initial(problem)
    update = U.separate(head={"b": U.sign()})
    algorithm = sgd.OnePassSGD(lr=LR, head_rate=RATES, update=update)

    def rate(alpha, state):
        dM, dQ = flow_of_rows(state)
        _, _, _, g, squares = means(state)
        V, b = state[6:10].reshape(2, 2), state[12]
        sign = 2 * ndtr(2 * b / np.sqrt(squares["sum of errors"])) - 1
        dV, du = -RATES["V"] * (g["V"] + DECAY["V"] * V), -g["u"]
        return LR * np.concatenate([dM, dQ, dV.reshape(-1), du, [-RATES["b"] * sign]])

    flow = solve_ivp(rate, (0.0, 1.0), y, rtol=1e-9, atol=1e-12)
    result = sgd.solve_ode(problem, algorithm, start, alpha=[1.0])
    names = ("M", "Q", "top.V", "top.u", "top.b")
    values = np.concatenate([result[name].values.reshape(-1) for name in names])
    np.testing.assert_allclose(values, flow.y[:, -1], atol=1e-3)


def erf_loss(fields, signals, top, noise_draw):
    s = erf(jnp.append(fields, signals) / np.sqrt(2.0))
    return (jnp.sum(top["a"] * s[:2]) - s[2] - np.sqrt(0.1) * noise_draw) ** 2 / 2


def erf_problem():
    problem = sgd.Problem(erf_loss, width=2, signals=1, top={"a": 2})
    overlaps = {"M": [[0.3], [-0.2]], "Q": [[1, 0.2], [0.2, 0.8]]}
    return problem, sgd.start(problem, **overlaps, top={"a": [1, 0.5]})


def erf_gradients(problem, start):
    """Mean and mean square of the gradient of the top, on Gauss-Hermite nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = weights / weights.sum()
    weights = np.einsum("i,j,k->ijk", weights, weights, weights).reshape(-1)
    omega = np.block([[start.Q[0], start.M[0]], [start.M[0].T, np.eye(1)]])
    s = np.asarray(erf(grid @ np.linalg.cholesky(omega).T / np.sqrt(2.0)))
    error = s[:, :2] @ start.a[0] - s[:, 2]
    slopes = weights[:, None] * s[:, :2]
    return error @ slopes, (error**2 + 0.1) @ (slopes * s[:, :2])


@pytest.mark.slow
def test_adam_on_the_head_reference_values():
    """Adam with slow averages that start at their means, on a alone."""
    problem, start = erf_problem()
    update = U.separate(head=U.adam(2.0, eps=0.05, velocity_memory=4.0))
    # an old average has no correction for its start at 0
    memory = AuxiliaryState(
        ((), update.law.scalars, ()),
        start.M_blocks,
        start.Q_blocks,
        start.a,
        np.array([[1e3]]),
        np.zeros((1, 0, 2)),
        np.array([erf_gradients(problem, start)]),
        update.law.vector_names(True),
    )
    algorithm = sgd.OnePassSGD(lr=0.5, update=update)
    result = sgd.solve_ode(problem, algorithm, replace(start, beside=memory), alpha=[4.0])
    assert float(result.M[0, 0, 0, 0]) == pytest.approx(0.64433715, abs=3e-8)
    np.testing.assert_allclose(result["top.a"][0, 0], [0.62700774, -0.03810607], atol=3e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (U.adam(2.0, eps=0.05), 1.0),
        (U.rmsprop(2.0, eps=0.05), 0.5),
        (U.adagrad(0.5), 0.5),
        (U.muon(memory=3.0), 1.0),
    ],
    ids=["adam", "rmsprop", "adagrad", "muon"],
)
def test_updates_of_rows_and_top_follow_the_ode(update, rate):
    """Direct runs, extrapolated from d = 100 and 400, agree with the ODE.

    They approach it at the rate 1/d. The root is that of squares which start at 0 without a
    correction: the first steps n have the size 1/sqrt(n/d), and their sum is off by 1/sqrt(d).
    """
    problem, start = erf_problem()
    algorithm = sgd.OnePassSGD(lr=0.5, update=update)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[1.0])
    samples = []
    for dimension, runs in ((100, 400), (400, 150)):
        options = {"dimension": dimension, "runs": runs, "method": "direct", "progress": False}
        samples.append(sgd.simulate(problem, algorithm, start, alpha=[1.0], **options))
    ratio = 4.0**rate
    for name in ("M", "Q", "top.a"):
        small, large = (runs[name].values[:, 0].reshape(runs.sizes["run"], -1) for runs in samples)
        mean = (ratio * large.mean(axis=0) - small.mean(axis=0)) / (ratio - 1)
        error = np.hypot(
            ratio * large.std(axis=0) / np.sqrt(len(large)), small.std(axis=0) / np.sqrt(len(small))
        ) / (ratio - 1)
        gap = np.abs(mean - theory[name].values.reshape(-1))
        assert np.all(gap < 5 * error + 0.01), name


@pytest.mark.slow
def test_a_run_with_a_memory_of_the_top_continues():
    problem = linear_top()
    start = linear_top_start(problem)
    update = U.separate(rows=U.momentum(memory=3.0), head=U.adam(2.0, eps=0.05))
    algorithm = sgd.OnePassSGD(lr=0.5, update=update)
    whole = sgd.solve_ode(problem, algorithm, start, times=[0.0, 0.4, 1.0], rtol=1e-10)
    first = sgd.solve_ode(problem, algorithm, start, times=[0.0, 0.4], rtol=1e-10)
    second = sgd.solve_ode(problem, algorithm, sgd.start_from(first), times=[0.6], rtol=1e-10)
    for name in ("M", "Q", "top.V", "top.u", "update_vectors"):
        np.testing.assert_allclose(second[name][0, -1], whole[name][0, -1], atol=1e-8)
    runs = {"dimension": 40, "runs": 3, "seed": 3}
    first = sgd.simulate(problem, algorithm, start, times=[0.5], **runs)
    second = sgd.simulate(
        problem, algorithm, sgd.start_from(first), times=[0.0], dimension=40, seed=3
    )
    for name in ("M", "top.u", "update_vectors", "rows_Q", "rows_a"):
        np.testing.assert_allclose(second[name][:, 0], first[name][:, -1], atol=1e-12)
