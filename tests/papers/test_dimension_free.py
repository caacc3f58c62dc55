"""Dimension-free limits of SGD (slides): units and closed scales."""

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
    """One step in d dimensions, written as the slides' rates need it, is the library's with the
    converted numbers.
    """
    d, p, k, gamma, Delta, wd, eps = 7, 3, 2, 0.4, 0.3, 0.6, 0.25
    here = paper.setting(gamma, p, k, Delta, wd=wd, eps=eps, head="trained")
    draw = np.random.default_rng(0)
    W, a, teacher, x, z = (draw.standard_normal(shape) for shape in ((p, d), p, (k, d), d, ()))
    s = special.erf(W @ x / np.sqrt(2))
    slope = np.sqrt(2 / np.pi) * np.exp(-((W @ x) ** 2) / 2)
    E = special.erf(teacher @ x / np.sqrt(2)).mean() + np.sqrt(Delta) * z - (a * s).mean()
    # with delta_t = gamma/(d p): the gradient of (y - f)^2/2, a step gamma/d, and gamma_a = eps
    # gamma/d for the head
    step = gamma / (d * p)
    moved = W + step * ((a * slope * E)[:, None] * x - wd * W), a + eps * step * (s * E - wd * a)
    gradient, head_gradient = -(a * slope * E)[:, None] * x / p, -s * E / p
    rate, decay = float(here.algorithm.lr) / d, here.problem.weight_decay
    found = Stride(rate, here.algorithm.head_rate, decay, here.problem.structure).move(
        W, a, (gradient, head_gradient)
    )
    for one, other in zip(found, moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    # the printed gamma_a = eps gamma and a step gamma that does not know d are far off
    assert (
        np.abs(a + eps * gamma / p * (s * E - wd * a) - found[1]).max()
        > 5 * np.abs(found[1] - a).max()
    )
    # time tau has floor(tau/delta_t) steps
    np.testing.assert_allclose(here.times([0.0, 2.0]), [0.0, 6.0])
    np.testing.assert_allclose(here.steps(2.0, d), 2.0 / step)
    assert here.problem.noise == Delta
    assert np.isinf(paper.setting(0.0, p).steps(1.0, d))


def test_closed_scales():
    assert paper.theorem_scale(0.1, 8, 500) == pytest.approx(0.005)
    assert paper.mean_field_scale(4, 16) == pytest.approx(0.75)
    # E[s'^2]: 2/(pi sqrt 3) for erf, 1/2 for relu, 4 for the square
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


def test_rows_split_along_and_beside_the_teachers():
    """W = M P^-1 W* + W_perp: Q = M P^-1 M^T + W_perp W_perp^T, the last nearly diagonal; M is p x
    k, P inverted, diag(Q_perp) off.
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
    along = M @ np.linalg.inv(P) @ M.T
    np.testing.assert_allclose(Q - along, perpendicular @ perpendicular.T, atol=1e-12)
    diagonal = np.diag(np.diag(Q - along))
    assert np.abs(Q - along - diagonal).max() < 6 / np.sqrt(
        d
    )  # three inner products of random directions
    assert np.abs(Q - M @ P @ M.T - np.diag(np.diag(Q - M @ P @ M.T))).max() > 0.2
    assert np.abs(Q - along + diagonal).max() > 1.5
    # and it is what a start by q means
    problem = sgd.TeacherStudent(width=p, teacher_width=k, activation="erf", teacher_gram=P)
    begin = sgd.start(problem, M=M, Q=Q)
    np.testing.assert_allclose(begin.Q[0], Q)
    np.testing.assert_allclose(particles(problem, begin)[1][0], np.diag(diagonal), atol=1e-12)


def test_the_largest_overlap_of_random_rows_has_a_root_of_log_p_more():
    """At the start already, E |Q - M P^-1 M^T - diag(Q_perp)|_inf over p^(-1/2) + d^(-1/2) grows
    like sqrt(log p): NumPy alone.
    """
    draw, ratios, sizes = np.random.default_rng(2), [], np.array([16, 64, 256, 512])
    for p in sizes:
        largest = []
        for _ in range(40):
            W = draw.standard_normal((p, 2 * p)) / np.sqrt(2 * p)
            rest = W[:, 1:] @ W[:, 1:].T  # one teacher, along the first axis
            largest.append(np.abs(rest - np.diag(np.diag(rest))).max())
        ratios.append(np.mean(largest) / paper.mean_field_scale(int(p), int(2 * p)))
    # each is known to about 2%; d = 2p, so that (2 sqrt(log p/d))/(1.7 p^-1/2) = .83 sqrt(log p) in
    # the end
    assert ratios[0] > 1
    assert ratios[-1] > 1.3 * ratios[0]
    rooted = np.array(ratios) / np.sqrt(np.log(sizes))
    assert rooted.max() / rooted.min() < 1.15


def test_the_risk_is_quadratic_in_the_density():
    """f is linear in the density of units, R quadratic: third differences along a mixture of two
    densities vanish, second ones do not.
    """
    problem = sgd.TeacherStudent(width=3, activation="erf")
    kinds = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]])
    start = sgd.start(
        problem, M=np.array([0.7, -0.4])[kinds][..., None], q=np.array([0.5, 1.2])[kinds]
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
