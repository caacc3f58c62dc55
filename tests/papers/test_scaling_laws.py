"""Scaling laws: closed formulas against sums over modes and integrated gradient flows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from sgdynamics.papers import scaling_laws as paper


@pytest.mark.parametrize(("s", "e"), [(1.25, 0.25), (2.0, 0.0), (1.5, 0.6)])
def test_learning_exponents_are_those_of_the_sum_over_modes(s, e):
    j, t = np.arange(1.0, 3e5), np.array([400.0, 440.0])
    loss = [np.sum(j ** (-s - 2 * e) * np.exp(-2 * j**-s * time)) for time in t]
    # The modes beyond the last one have not been learned: their sum is approximated by an integral.
    loss += j[-1] ** (1 - s - 2 * e) / (s + 2 * e - 1)
    assert -np.log(loss[1] / loss[0]) / np.log(t[1] / t[0]) == pytest.approx(
        paper.learning_exponent(s, e), abs=2e-3
    )


def test_skills_follow_the_flow_of_their_own_population_risk():
    """Three students and three teachers in eight dimensions, under the spherical gradient flow.

    The gradient of the population risk follows from the fourth moments of Gaussian inputs.
    """
    c, m0 = np.arange(1, 4.0) ** -1.5, 0.2
    # The component of each row orthogonal to its teacher has an axis of its own.
    axes = np.eye(8)
    teachers, start = axes[:3], m0 * axes[:3] + np.sqrt(1 - m0**2) * axes[5:]

    def rate(_, y):
        W = y.reshape(3, 8)
        # f - y = x^T A x, and E[(x^T A x) x x^T] = 2 A + tr(A) I; on the sphere tr(A) = 0.
        A = np.einsum("k,ki,kj->ij", c, W, W) - np.einsum("k,ki,kj->ij", c, teachers, teachers)
        grad = 2 * c[:, None] * (W @ (2 * A + np.trace(A) * np.eye(8)))
        grad -= np.sum(grad * W, axis=1)[:, None] * W
        return -grad.ravel()

    t = np.array([0.5, 3.0, 12.0])
    W = solve_ivp(rate, (0, t[-1]), start.ravel(), t_eval=t, rtol=1e-10, atol=1e-12).y.T.reshape(
        -1, 3, 8
    )
    m = np.diagonal(W[:, :, :3], axis1=1, axis2=2)
    expected = paper.emergence_loss(t, 1.5, m0, skills=3)
    np.testing.assert_allclose(2 * c**2 * (1 - m**2), expected, rtol=1e-6, atol=1e-7)
    half = paper.emergence_time([1, 2, 3], 1.5, m0)
    np.testing.assert_allclose(np.diagonal(paper.emergence_loss(half, 1.5, m0, skills=3)), c**2)


@pytest.mark.parametrize("b", [1.0, 1.5, 2.5])
def test_many_skills_sum_to_a_power_law(b):
    t = paper.emergence_time([30, 60], b, 0.1)
    loss = paper.emergence_loss(t, b, 0.1, skills=100_000).sum(axis=1)
    # The loss of the skills beyond these, which are not learned yet.
    tail = 2 * 0.99 * 100_000.5 ** (1 - 2 * b) / (2 * b - 1)
    measured = -np.diff(np.log(loss + tail))[0] / np.diff(np.log(t))[0]
    assert measured == pytest.approx(paper.emergence_exponent(b), abs=3e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: paper.learning_exponent(0.5, 0.1),
            "target_exponent = 0.1: the target has infinite variance",
        ),
        (lambda: paper.emergence_exponent(0.5), "decay = 0.5"),
        (lambda: paper.emergence_time([0], 1.0, 0.1), "skill = "),
        (lambda: paper.emergence_loss([-1.0], 1.0, 0.1, 3), "times = "),
        (lambda: paper.emergence_loss([1.0], 1.0, 1.0, 3), "overlap = 1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
