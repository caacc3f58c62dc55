"""Sparse gradients: closed linear equations, limits, direct runs, the coordinates of a step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import draw_order, select_coordinates
from tests.conftest import Z

LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
ORIGIN = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
WIDE = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
WIDE_START = sgd.start(WIDE, M=[[0.3], [-0.2]], Q=[[1.0, 0.1], [0.1, 0.8]])


def sparse(lr: float = 0.5, *, batch: int = 1, **options: Any) -> sgd.OnePassSGD:
    return sgd.OnePassSGD(lr=lr, batch=batch, update=sgd.updates.sparse(**options))


@pytest.mark.slow
def test_few_coordinates_a_step_follow_two_sets_of_rows():
    """A linear student, from the equations of W (sent) and V (all gradients)."""
    lr, count, noise = 0.5, 2.0, 0.2
    c = count / lr

    def rates(_, state):
        M_W, M_V, WW, VW, VV = state
        error = WW - 2 * M_W + 1 + noise  # E[h^2]
        return [
            c * (M_V - M_W),
            1 - M_W,
            c * (VV - WW),
            -(WW - M_W) + c * (VV - VW),
            -2 * (VW - M_V) + lr * error,
        ]

    times = [0.5, 4.0]
    expected = solve_ivp(rates, (0, 4), np.zeros(5), "DOP853", times, rtol=1e-11, atol=1e-13).y
    result = sgd.solve_ode(LINEAR, sparse(per_step=count), ORIGIN, times=times)
    np.testing.assert_allclose(result.M.values.ravel(), expected[0], atol=1e-8)
    np.testing.assert_allclose(result.Q.values.ravel(), expected[2], atol=1e-8)
    np.testing.assert_allclose(2 * result.excess_risk.values[0, 1], 0.11054386, atol=5e-9)


@pytest.mark.slow
def test_a_share_with_feedback_is_plain_sgd():
    result = sgd.solve_ode(LINEAR, sparse(share=0.2), ORIGIN, times=[2.0])
    plain = sgd.solve_ode(LINEAR, sgd.OnePassSGD(lr=0.5), ORIGIN, times=[2.0])
    np.testing.assert_allclose(result.Q, plain.Q, rtol=1e-8)
    np.testing.assert_allclose(2 * result.excess_risk, 0.113135, atol=5e-7)


@pytest.mark.slow
def test_a_share_without_feedback_multiplies_the_noise():
    """dU/dt = -2 U + (lr/(q B)) (U + noise)."""
    lr, share, batch = 0.6, 0.25, 2
    rate = lr / (share * batch)
    algorithm = sparse(lr, batch=batch, share=share, feedback=False)
    result = sgd.solve_ode(LINEAR, algorithm, ORIGIN, times=[1.5])
    stationary = rate * 0.2 / (2 - rate)
    U = stationary + (1 - stationary) * np.exp(-(2 - rate) * 1.5)
    np.testing.assert_allclose(2 * result.excess_risk, U, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"share": 0.3}, {"share": 0.3, "feedback": False}, {"per_step": 1.5}],
    ids=str,
)
def test_direct_runs_agree_with_the_ode(options):
    algorithm, d, count = sparse(**options), 200, 100
    theory = sgd.solve_ode(WIDE, algorithm, WIDE_START, times=[1.0, 3.0])
    arguments = {"dimension": d, "runs": count, "method": "direct"}
    runs = sgd.simulate(WIDE, algorithm, WIDE_START, times=[1.0, 3.0], **arguments)
    for name in ("M", "Q"):
        error = runs[name].std("run").values / np.sqrt(count)
        gap = np.abs(runs[name].mean("run").values - theory[name].values[0])
        assert (gap < Z * error + 3 / d).all(), name


def test_a_step_sends_the_number_of_coordinates():
    d, count = 20, 3.25
    keys = jax.random.split(jax.random.key(0), 4000)
    rows = np.ones((2, d), np.float32)
    selected = jax.vmap(
        lambda key: select_coordinates(draw_order(key, d, rows.dtype), rows, None, count)
    )(keys)
    selected = np.asarray(selected)
    assert (selected[:, 0] == selected[:, 1]).all()
    counts = selected[:, 0].sum(axis=1)
    assert set(counts.tolist()) == {3.0, 4.0}
    assert abs(counts.mean() - count) < Z * np.sqrt(0.25 * 0.75 / 4000)
    # All coordinates are sent equally often.
    share = count / d
    error = np.sqrt(share * (1 - share) / 4000)
    assert (np.abs(selected[:, 0].mean(axis=0) - share) < Z * error).all()


def test_the_largest_stable_rates_are_those_of_the_ode():
    for options, expected in (
        ({"per_step": 2.0}, 1.0),
        ({"share": 0.2, "feedback": False}, 0.4),
        ({"share": 0.2}, 2.0),
    ):
        assert sgd.largest_stable_lr(sparse(**options)) == pytest.approx(expected)
    assert sgd.largest_stable_lr(sparse(batch=3, per_step=2.0)) == pytest.approx(12 / 8)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_errors_grow_above_the_largest_stable_rate(batch):
    limit = sgd.largest_stable_lr(sparse(batch=batch, per_step=2.0))
    risks = []
    for factor in (0.97, 1.03):
        algorithm = sparse(factor * limit, batch=batch, per_step=2.0)
        result = sgd.solve_ode(LINEAR.replace(noise=0.0), algorithm, ORIGIN, times=[20.0, 40.0])
        risks.append(result.risk.values[0])
    assert risks[0][1] < risks[0][0]
    assert risks[1][1] > risks[1][0]


@pytest.mark.slow
def test_direct_runs_on_a_data_set():
    """A share of 1 is plain gradient descent."""
    algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    arguments = {"steps": [5], "dimension": 30, "runs": 200, "method": "direct", "seed": 3}
    plain = sgd.simulate(LINEAR, algorithm, ORIGIN, **arguments).risk.values.ravel()
    full = algorithm.replace(update=sgd.updates.sparse(share=1.0))
    all_sent = sgd.simulate(LINEAR, full, ORIGIN, **arguments).risk.values.ravel()
    error = np.hypot(plain.std(), all_sent.std()) / np.sqrt(200)
    assert abs(plain.mean() - all_sent.mean()) < Z * error


WRONG = {
    "Set exactly one of them": lambda: sgd.updates.sparse(),
    "share = 1.5": lambda: sgd.updates.sparse(share=1.5),
    "per_step = 0": lambda: sgd.updates.sparse(per_step=0.0),
    "without feedback the noise": lambda: sgd.updates.sparse(per_step=2.0, feedback=False),
    "acts on each coordinate": lambda: sgd.simulate(
        LINEAR, sparse(share=0.5), ORIGIN, steps=[1], dimension=50
    ),
    "per_step = 60": lambda: sgd.simulate(
        LINEAR, sparse(per_step=60.0), ORIGIN, steps=[1], dimension=50, method="direct"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_compressions_are_rejected(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
