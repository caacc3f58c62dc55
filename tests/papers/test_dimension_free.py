"""Dimension-free limits of SGD (slides): their units, and the closed formulas for scales."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, special

import sgdynamics as sgd
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.papers import dimension_free as paper
from sgdynamics.problems.overlap_starts import overlap_matrix
from sgdynamics.problems.wide_starts import particles


def test_units_of_the_slides():
    """One SGD step in d dimensions agrees with the step in the units of the slides.

    The slides use delta_t = gamma/(d p): a gradient step of (y - f)^2/2 with rate gamma/d for the
    rows and eps gamma/d for the head.
    """
    d, p, k, gamma, Delta, wd, eps = 7, 3, 2, 0.4, 0.3, 0.6, 0.25
    setting = paper.setting(gamma, p, k, Delta, wd=wd, eps=eps, head="trained")
    draw = np.random.default_rng(0)
    W, a, teacher, x, z = (draw.standard_normal(shape) for shape in ((p, d), p, (k, d), d, ()))
    s = special.erf(W @ x / np.sqrt(2))
    slope = np.sqrt(2 / np.pi) * np.exp(-((W @ x) ** 2) / 2)
    E = special.erf(teacher @ x / np.sqrt(2)).mean() + np.sqrt(Delta) * z - (a * s).mean()
    step = gamma / (d * p)
    expected = W + step * ((a * slope * E)[:, None] * x - wd * W), a + eps * step * (s * E - wd * a)
    gradient, head_gradient = -(a * slope * E)[:, None] * x / p, -s * E / p
    rate, decay = float(setting.algorithm.lr) / d, setting.problem.weight_decay
    stride = Stride(rate, setting.algorithm.head_rate, decay, setting.problem.structure)
    rows, head = stride.move(W, a, (gradient, head_gradient))
    np.testing.assert_allclose(rows, expected[0], rtol=1e-12)
    np.testing.assert_allclose(head, expected[1], rtol=1e-12)
    # The printed rate of the head, gamma_a = eps gamma, lacks the factor 1/d and is far off.
    printed_head = a + eps * gamma / p * (s * E - wd * a)
    assert np.abs(printed_head - head).max() > 5 * np.abs(head - a).max()
    # A time tau takes tau/delta_t steps.
    np.testing.assert_allclose(setting.times([0.0, 2.0]), [0.0, 6.0])
    np.testing.assert_allclose(setting.steps(2.0, d), 2.0 / step)
    assert setting.problem.noise == Delta
    assert np.isinf(paper.setting(0.0, p).steps(1.0, d))


def test_closed_scales():
    assert paper.theorem_scale(0.1, 8, 500) == pytest.approx(0.005)
    assert paper.mean_field_scale(4, 16) == pytest.approx(0.75)
    # The plateau contains E[s'^2]: 2/(pi sqrt 3) for erf, 1/2 for ReLU, 4 for the square.
    assert paper.plateau(0.3, 5, 0.01) == pytest.approx(
        0.3 * 0.01 / 20 * 2 / (np.pi * np.sqrt(3)), rel=1e-12
    )
    assert paper.plateau(0.3, 5, 0.01, "relu") == pytest.approx(0.3 * 0.01 / 40, rel=1e-12)
    assert paper.plateau(0.3, 5, 0.01, "square") == pytest.approx(0.3 * 0.01 / 5, rel=1e-12)
    mean = integrate.quad(
        lambda x: np.cosh(x) ** -4.0 * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi),
        -12,
        12,
        epsabs=1e-13,
    )[0]
    assert paper.plateau(1.0, 1, 4.0, "tanh") == pytest.approx(mean, rel=1e-10)


def test_rows_split_into_teacher_and_orthogonal_components():
    """Overlaps split into the span of the teachers and its orthogonal complement.

    The rows are W = M P^-1 W* + W_perp, so that Q = M P^-1 M^T + W_perp W_perp^T. For random rows
    the second term is diagonal up to O(1/sqrt(d)). The slides print P in place of P^-1 and the
    opposite sign of diag(Q_perp); both are wrong.
    """
    d, p, k = 4000, 3, 2
    draw = np.random.default_rng(1)
    teacher = np.array([[1.0, 0.0], [0.6, 0.8]]) @ np.linalg.qr(draw.standard_normal((d, k)))[0].T
    W = (
        draw.standard_normal((p, d)) / np.sqrt(d)
        + np.array([[0.5, 0.2], [-0.4, 0.9], [0.3, 0.3]]) @ teacher
    )
    M, Q, P = W @ teacher.T, W @ W.T, teacher @ teacher.T
    rows = np.concatenate([W, teacher])
    np.testing.assert_allclose(overlap_matrix(M, Q, P), rows @ rows.T, atol=1e-12)
    perpendicular = W - M @ np.linalg.inv(P) @ teacher
    spanned = M @ np.linalg.inv(P) @ M.T
    np.testing.assert_allclose(Q - spanned, perpendicular @ perpendicular.T, atol=1e-12)
    diagonal = np.diag(np.diag(Q - spanned))
    # The other entries are three inner products of random directions, of order 1/sqrt(d).
    assert np.abs(Q - spanned - diagonal).max() < 6 / np.sqrt(d)
    assert np.abs(Q - M @ P @ M.T - np.diag(np.diag(Q - M @ P @ M.T))).max() > 0.2
    assert np.abs(Q - spanned + diagonal).max() > 1.5
    # A start of the mean field, given by q, stores this diagonal.
    problem = sgd.TeacherStudent(width=p, teacher_width=k, activation="erf", teacher_gram=P)
    start = sgd.start(problem, M=M, Q=Q)
    np.testing.assert_allclose(start.Q[0], Q)
    np.testing.assert_allclose(particles(problem, start)[1][0], np.diag(diagonal), atol=1e-12)


@pytest.mark.slow
def test_the_largest_overlap_of_random_rows_grows_like_sqrt_log_p():
    """The bound p^(-1/2) + d^(-1/2) of the slides lacks a factor sqrt(log p), already at the start.

    The ratio of E |Q - M P^-1 M^T - diag(Q_perp)|_inf to the bound is computed with NumPy alone.
    With d = 2p it tends to 2 sqrt(log p/d) / (1.7 p^(-1/2)) = 0.83 sqrt(log p).
    """
    draw, ratios, sizes = np.random.default_rng(2), [], np.array([16, 64, 256, 512])
    for p in sizes:
        largest = []
        for _ in range(40):
            W = draw.standard_normal((p, 2 * p)) / np.sqrt(2 * p)
            orthogonal = W[:, 1:] @ W[:, 1:].T  # one teacher, along the first axis
            largest.append(np.abs(orthogonal - np.diag(np.diag(orthogonal))).max())
        ratios.append(np.mean(largest) / paper.mean_field_scale(int(p), int(2 * p)))
    # The statistical error of each ratio is about 2%.
    assert ratios[0] > 1
    assert ratios[-1] > 1.3 * ratios[0]
    rooted = np.array(ratios) / np.sqrt(np.log(sizes))
    assert rooted.max() / rooted.min() < 1.15


def test_the_risk_is_quadratic_in_the_density():
    """The output f is linear in the density of units, so the risk is quadratic.

    Along a mixture of two densities the third differences of the risk vanish, and the second ones
    do not.
    """
    problem = sgd.TeacherStudent(width=3, activation="erf")
    density = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]])
    start = sgd.start(
        problem, M=np.array([0.7, -0.4])[density][..., None], q=np.array([0.5, 1.2])[density]
    )
    risk = sgd.solve_mean_field(
        problem, sgd.OnePassSGD(lr=0.0), start, times=[0.0], expectations="pairs"
    ).excess_risk.values[:, 0]
    assert abs(np.diff(risk, 3)[0]) < 1e-14
    assert np.all(np.diff(risk, 2) > 1e-2)


def test_bad_input():
    for message, call in {
        "gamma = -1": lambda: paper.setting(-1, 2),
        "p = 0": lambda: paper.setting(0.1, 0),
        "k = 0": lambda: paper.setting(0.1, 2, 0),
        "Delta = -0.5": lambda: paper.setting(0.1, 2, 1, -0.5),
        "wd = -1": lambda: paper.setting(0.1, 2, wd=-1),
        "eps = -1": lambda: paper.setting(0.1, 2, eps=-1),
        "d = 0.5": lambda: paper.setting(0.1, 2).steps(1.0, 0.5),
        "d = 0": lambda: paper.theorem_scale(0.1, 2, 0),
        "did you mean 'relu'": lambda: paper.plateau(0.1, 2, 0.1, "rleu"),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
