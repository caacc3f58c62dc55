"""Samples of several inputs, and learning rules: closed formulas against independent results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from sgdynamics.papers import several_inputs as paper

ALPHA = np.array([5.0, 100.0, 3000.0, 3001.0])


def classical(rule, lr=1.0):
    """Generalisation error of each rule at ALPHA, from its textbook ODE with m = 0.2 and Q = 1."""

    def rate(_, y):
        m, Q = y
        rho = m / math.sqrt(Q)
        angle = math.acos(min(rho, 1.0))
        if rule == "hebb":
            return math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * m + lr
        if rule == "perceptron":
            dm = (1 - rho) / math.sqrt(2 * math.pi)
            dQ = -2 * math.sqrt(Q / (2 * math.pi)) * (1 - rho) + lr * angle / math.pi
            return dm, dQ
        # AdaTron
        dm = math.sqrt(Q) * (math.sin(angle) - rho * angle) / math.pi
        dQ = (lr - 2) * Q * (angle - rho * math.sin(angle)) / math.pi
        return dm, dQ

    m, Q = solve_ivp(
        rate, (0, ALPHA[-1]), (0.2, 1.0), t_eval=ALPHA, method="DOP853", rtol=1e-11, atol=1e-12
    ).y
    return np.arccos(m / np.sqrt(Q)) / np.pi


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("hebb", (0.16794849, 0.03977669)),
        ("perceptron", (0.16696271, 0.05943050)),
        ("adatron", (0.19841674, 0.01471771)),
    ],
)
def test_late_laws(rule, expected):
    error = classical(rule)
    np.testing.assert_allclose(error[:2], expected, atol=2e-8)
    law = paper.late_error(rule, ALPHA)
    assert error[2] / law[2] == pytest.approx(1, abs=2e-3)
    assert np.log(error[3] / error[2]) == pytest.approx(np.log(law[3] / law[2]), rel=3e-3)


def test_the_reference_of_the_rl_perceptron():
    m, Q = paper.reward_path([1.0, 5.0], [[0.2], [0.6]])
    assert m.shape == Q.shape == (2, 1, 2)
    assert np.arccos(m[0, 0, 1] / np.sqrt(Q[0, 0, 1])) / np.pi == pytest.approx(
        0.25004350, abs=1e-8
    )


def test_the_drift_of_the_rl_perceptron_by_brute_force():
    rng, T, e1, e2, m, Q = np.random.default_rng(0), 3, 1.0, 0.2, 0.3, 1.4
    signal = rng.normal(size=(400_000, T))
    field = m * signal + math.sqrt(Q - m**2) * rng.normal(size=signal.shape)
    step = np.where(np.all(field * signal > 0, axis=1), e1, -e2)[:, None] * np.sign(field) / T
    samples = np.stack(
        [(step * signal).sum(axis=1), 2 * (step * field).sum(axis=1) + (step**2).sum(axis=1)]
    )
    error = samples.std(axis=1) / math.sqrt(len(signal))
    assert np.all(np.abs(samples.mean(axis=1) - paper.reward_drift(m, Q, T, e1, e2)) < 4.9 * error)


def test_growth_by_content_and_by_position():
    content, position = paper.positional_growth([0.0, 0.5, 1.0], 2.0)
    np.testing.assert_allclose(content, [0.2205022, 0.1102511, 0.0])
    expected = 4 * np.array([-0.1332601, -0.0565615, 0.0201371])
    np.testing.assert_allclose(position, expected, atol=1e-7)
    np.testing.assert_allclose(paper.positional_crossings(1.0), (0.868726, 0.946143), atol=1e-6)
    np.testing.assert_allclose(paper.positional_crossings(2.0), (0.868726, 0.903430), atol=1e-6)


@pytest.mark.parametrize(("n", "lr"), [(2, 0.1), (3, 0.1), (3, 0.0)])
def test_exit_laws_are_times_of_the_early_equation(n, lr):
    # The early equation is dm/dt = n m^(n-1) - (rate/2) n (3^(n-1) + 1) m. Its exit time from
    # m = d^(-1/2) is a quadrature, and constants cancel in the difference of two dimensions.
    times = []
    for d in (1e8, 1e10):
        u = np.geomspace(d**-0.5, 1e-2, 400_001)
        rate = lr / math.sqrt(d) if n == 3 else lr
        times.append(
            np.trapezoid(u / (n * u ** (n - 1) - rate / 2 * n * (3 ** (n - 1) + 1) * u), np.log(u))
        )
    grown = paper.exit_law(n, 1e10, lr) - paper.exit_law(n, 1e8, lr)
    assert times[1] - times[0] == pytest.approx(grown, rel=1e-3)


def test_components_are_projections_of_the_matrix_equation():
    rng, spikes = np.random.default_rng(0), np.array([10.0, 4.0, 1.5])
    S, first = np.diag(1 + spikes), 1e-3

    def rate(_, y):
        W = y.reshape(3, 3)
        return (2 * W @ S - W @ S @ W.T @ W - W @ W.T @ W @ S).ravel()

    start = math.sqrt(first) * np.linalg.qr(rng.normal(size=(3, 3)))[0]
    t = np.array([0.1, 0.3, 0.7])
    W = solve_ivp(rate, (0, t[-1]), start.ravel(), t_eval=t, rtol=1e-10, atol=1e-12).y.T.reshape(
        -1, 3, 3
    )
    expected = np.stack([paper.component_path(t, beta, first) for beta in spikes], axis=-1)
    np.testing.assert_allclose((W**2).sum(axis=1), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper.late_error("adaline", 1.0), "rule = 'adaline'"),
        (lambda: paper.late_error("adatron", 1.0, lr=3.0), "lr = 3.0: .* Use lr below 3"),
        (lambda: paper.exit_law(4, 100), "exponent = 4"),
        (lambda: paper.exit_law(2, 100, lr=0.5), "lr = 0.5: .* Use a rate below 0.5"),
        (lambda: paper.exit_law(3, 100, lr=0.2), "lr = 0.2: .* Use a rate below 0.2"),
        (lambda: paper.component_path(1.0, 3.0, 1.0), "first = 1.0"),
        (lambda: paper.reward_path([2.0, 1.0]), "alpha = "),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
