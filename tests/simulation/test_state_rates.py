"""Learning rates that read the overlaps, against closed forms, SciPy and SGD written in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize

import sgdynamics as sgd
from tests.conftest import same_law

NOISE = 0.1
EIGENVALUES, FRACTIONS = np.array([0.5, 2.0]), np.array([0.75, 0.25])


def polyak(overlaps):
    """The step that decreases |w - w*|^2 most, for isotropic inputs."""
    error = overlaps.Q[0, 0] - 2 * overlaps.M[0, 0] + overlaps.P[0, 0]
    return error / (error + NOISE)


def line_search(overlaps):
    """Exact line search: the step that decreases the risk most (Collins-Woodfin et al. 2024).

    With e_b = |w_b - w*_b|^2, eigenvalues l_b and fractions f_b of the blocks it is::

        sum_b l_b^2 e_b / (sum_b l_b^2 f_b (sum_b l_b e_b + noise))
    """
    b = overlaps.blocks
    errors = b.Q[:, 0, 0] - 2 * b.M[:, 0, 0] + b.P[:, 0, 0]
    slope = jnp.sum(b.eigenvalues**2 * errors)
    return slope / (
        jnp.sum(b.eigenvalues**2 * b.fractions) * (jnp.sum(b.eigenvalues * errors) + NOISE)
    )


def linear(**options):
    return sgd.TeacherStudent(width=1, activation="linear", noise=NOISE, **options)


def test_polyak_step_has_its_closed_form():
    """With noise s, de/dalpha = -e^2/(e + s), hence log(1/e) + s (1/e - 1) = alpha."""
    problem = linear()
    algorithm = sgd.OnePassSGD(lr=1.0, update=sgd.updates.state_rate(polyak))
    alphas = np.array([2.0, 10.0])
    path = sgd.solve_ode(problem, algorithm, sgd.start(problem, M=[[0.0]], Q=[[0.0]]), alpha=alphas)
    for alpha_end, error in zip(alphas, 2 * path.excess_risk.values[0], strict=True):
        expected = optimize.brentq(
            lambda e, alpha_end=alpha_end: np.log(1 / e) + NOISE * (1 / e - 1) - alpha_end,
            1e-9,
            1.0,
        )
        np.testing.assert_allclose(error, expected, rtol=1e-6)


def test_line_search_against_scipy():
    """Two blocks: de_b/dalpha = -2 g l_b e_b + g^2 l_b f_b (sum_c l_c e_c + s), optimal g."""
    problem = linear(covariance=list(zip(EIGENVALUES, FRACTIONS, strict=True)))
    algorithm = sgd.OnePassSGD(lr=1.0, update=sgd.updates.state_rate(line_search))
    path = sgd.solve_ode(
        problem, algorithm, sgd.start(problem, M=[[0.0]], Q=[[0.0]]), alpha=[3.0, 20.0]
    )

    def rate(alpha, errors):
        total = EIGENVALUES @ errors + NOISE
        g = EIGENVALUES**2 @ errors / (EIGENVALUES**2 @ FRACTIONS * total)
        return -2 * g * EIGENVALUES * errors + g**2 * EIGENVALUES * FRACTIONS * total

    expected = integrate.solve_ivp(
        rate, [0, 20], FRACTIONS, t_eval=[3.0, 20.0], rtol=1e-10, atol=1e-13
    ).y
    np.testing.assert_allclose(2 * path.excess_risk.values[0], EIGENVALUES @ expected, rtol=1e-6)


def line_search_in_numpy(d, steps, runs, decay, generator):
    """M and Q of SGD from w = 0, with a teacher along the first axis of each block."""
    sizes = np.round(FRACTIONS * d).astype(int)
    variances = np.repeat(EIGENVALUES, sizes)
    first = np.array([0, sizes[0]])
    teacher = np.zeros(d)
    teacher[first] = np.sqrt(FRACTIONS)
    w = np.zeros((runs, d))
    for _ in range(steps):
        x = np.sqrt(variances) * generator.standard_normal((runs, d))
        residual = np.sum((w - teacher) * x, axis=1) - np.sqrt(NOISE) * generator.standard_normal(
            runs
        )
        squares = np.add.reduceat((w - teacher) ** 2, first, axis=1)
        g = (
            squares
            @ EIGENVALUES**2
            / (EIGENVALUES**2 @ FRACTIONS * (squares @ EIGENVALUES + NOISE))
        )
        w = w - g[:, None] / d * (residual[:, None] * x + decay * w)
    return w @ teacher, np.sum(w**2, axis=1)


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_runs_with_line_search_have_the_law_of_numpy(method):
    d, steps, runs, decay = 12, 30, 1000, 0.3
    problem = linear(covariance=list(zip(EIGENVALUES, FRACTIONS, strict=True)), weight_decay=decay)
    algorithm = sgd.OnePassSGD(lr=1.0, update=sgd.updates.state_rate(line_search))
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    result = sgd.simulate(
        problem, algorithm, start, steps=[0, steps], dimension=d, runs=runs, seed=1, method=method
    )
    M, Q = line_search_in_numpy(d, steps, runs, decay, np.random.default_rng(2))
    same_law(result.M.values[:, 1, 0, 0], M, "M")
    same_law(result.Q.values[:, 1, 0, 0], Q, "Q")


def test_invalid_rates_raise():
    problem = linear()
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    with pytest.raises(ValueError, match=r"rate = 0.5: .*function of overlaps"):
        sgd.updates.state_rate(0.5)
    with pytest.raises(ValueError, match=r"rate = .*one argument"):
        sgd.updates.state_rate(lambda alpha, overlaps: 1.0)
    for rate, match in (
        (lambda overlaps: overlaps.Q, r"shape \(1, 1\)"),
        (lambda overlaps: overlaps.R, "failed with"),
    ):
        with pytest.raises(ValueError, match=match):
            sgd.solve_ode(
                problem, sgd.OnePassSGD(update=sgd.updates.state_rate(rate)), start, alpha=[1.0]
            )
    tensor, algorithm = sgd.SpikedTensor(), sgd.OnePassSGD(update=sgd.updates.state_rate(polyak))
    spiked = sgd.start(tensor, m=0.5, r2=1.0)
    with pytest.raises(ValueError, match=r"update|algorithm"):
        sgd.simulate(tensor, algorithm, spiked, steps=[1], dimension=20)
    with pytest.raises(ValueError, match=r"lr = .*sgd.updates.state_rate"):
        sgd.OnePassSGD(lr=lambda alpha, overlaps: 0.1)


def test_records_name_the_function():
    record = sgd.updates.state_rate(polyak).describe()
    assert record["kind"] == "state_rate"
    assert record["function"] == "polyak"
    assert record["rerunnable"] is False
