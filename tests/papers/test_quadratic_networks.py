"""Quadratic networks (arXiv:2604.03068): closed formulas against independent computations.

The references are exact quadrature, the drift of the library, dense Hessians, and integrations of
the ODE by SciPy.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from scipy.integrate import solve_ivp

import sgdynamics as sgd
from sgdynamics.papers import quadratic_networks as qn
from sgdynamics.solvers import functional
from tests.conftest import Z

POINT_B = np.array([[0.5, -0.2, 0.3, 0.7], [0.1, 0.4, -0.6, 0.2], [-0.3, 0.8, 0.2, -0.1]])
RHO_0 = np.array([[0.05, -0.02], [0.01, 0.04], [-0.03, 0.03]])
ETA = 0.12
SIZES = [(9, 3, 2), (8, 4, 2), (7, 2, 2), (9, 4, 3), (8, 5, 1), (6, 1, 1), (9, 2, 3)]  # N, p, p*


def integrate(rho, Q, times, eta=0.0, noise=0.0, method="DOP853", rtol=1e-12, atol=1e-14):
    """Overlaps rho and Q at the times t = eta alpha along the ODE of SGD, integrated by SciPy.

    For eta = 0 the ODE is gradient flow. Leading axes of rho and Q are runs.
    """
    n, times = rho.size, np.asarray(times, dtype=float)

    def field(_, y):
        state = y[:n].reshape(rho.shape), y[n:].reshape(Q.shape)
        rates = qn.gradient_flow(*state) if eta == 0 else qn.drift(*state, eta, noise=noise)
        return np.concatenate([rate.ravel() for rate in rates]) / (eta or 1.0)

    solution = solve_ivp(
        field,
        (0, times[-1]),
        np.concatenate([rho.ravel(), Q.ravel()]),
        method,
        times,
        rtol=rtol,
        atol=atol,
    )
    assert solution.success
    return solution.y[:n].T.reshape(-1, *rho.shape), solution.y[n:].T.reshape(-1, *Q.shape)


def jacobian(rho, Q, eta):
    """Jacobian of the drift per unit of t, by central differences.

    The drift is a cubic polynomial, so that the error of the differences is of order step^2 = 1e-8.
    """
    n, step = rho.size, 1e-4
    rows = []
    for direction in np.eye(n + Q.size):
        d_rho, d_Q = direction[:n].reshape(rho.shape), direction[n:].reshape(Q.shape)
        d_Q = (d_Q + d_Q.T) / 2
        plus = qn.drift(rho + step * d_rho, Q + step * d_Q, eta)
        minus = qn.drift(rho - step * d_rho, Q - step * d_Q, eta)
        slopes = [(a - b) / (2 * step * eta) for a, b in zip(plus, minus, strict=True)]
        rows.append(np.concatenate([slope.ravel() for slope in slopes]))
    return np.array(rows).T


@pytest.mark.parametrize(("p", "p_star", "n"), [(3, 2, 4), (2, 3, 4), (1, 1, 2), (4, 1, 4)])
def test_drift_and_risk_are_the_gaussian_moments(p, p_star, n):
    # F F^T has degree 6 in the inputs. Four Gauss-Hermite nodes per axis are exact to degree 7.
    W = POINT_B if (p, p_star) == (3, 2) else np.random.default_rng(p).normal(size=(p, n))
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    x = np.array(list(itertools.product(nodes, repeat=n + 1)))
    weight = np.prod(list(itertools.product(weights, repeat=n + 1)), axis=1) / (2 * np.pi) ** (
        (n + 1) / 2
    )
    eta, noise = ETA, 0.3
    u, fields = x[:, :p_star], x[:, :n] @ W.T
    clean = (u**2).mean(axis=1) - (fields**2).mean(axis=1)
    F = (4 * eta / p) * (clean + math.sqrt(noise) * x[:, n])[:, None] * fields
    rho, Q = W[:, :p_star], W @ W.T
    d_rho, d_Q = qn.drift(rho, Q, eta, noise=noise)
    pull = np.einsum("a,ai,aj->ij", weight, F, fields)
    np.testing.assert_allclose(d_rho, np.einsum("a,ai,aj->ij", weight, F, u), rtol=0, atol=1e-13)
    np.testing.assert_allclose(
        d_Q, pull + pull.T + np.einsum("a,ai,aj->ij", weight, F, F), rtol=0, atol=1e-12
    )
    assert qn.risk(rho, Q) == pytest.approx(weight @ clean**2, rel=1e-12)
    stacked = qn.drift(np.stack([rho, 2 * rho]), np.stack([Q, 4 * Q]), eta, noise=noise)
    np.testing.assert_allclose(stacked[1][0], d_Q, rtol=1e-13)
    np.testing.assert_allclose(
        stacked[1][1], qn.drift(2 * rho, 4 * Q, eta, noise=noise)[1], rtol=1e-13
    )


def test_reference_values():
    rho, Q = POINT_B[:, :2], POINT_B @ POINT_B.T
    d_rho, d_Q = qn.drift(rho, Q, ETA)
    linear = ETA * qn.gradient_flow(rho, Q)[1]
    assert qn.risk(rho, Q) == pytest.approx(0.7075555556, abs=5e-11)
    assert (d_Q - linear)[0, 0] == pytest.approx(0.02392569173, abs=5e-12)
    assert (d_Q - linear)[0, 1] == pytest.approx(0.0003009877333, abs=5e-14)
    assert d_rho[0, 0] == pytest.approx(0.04490666667, abs=5e-12)
    assert d_rho[2, 1] == pytest.approx(0.08149333333, abs=5e-12)
    assert linear[0, 0] == pytest.approx(-0.01917866667, abs=5e-12)
    assert linear[2, 2] == pytest.approx(0.1420586667, abs=5e-11)
    np.testing.assert_allclose(
        qn.closest_solution(RHO_0)[0], [0.8291994844, -0.1661869083], rtol=0, atol=5e-11
    )
    end = integrate(RHO_0, np.eye(3), [10 * ETA], eta=ETA)
    assert qn.risk(end[0][0], end[1][0]) == pytest.approx(1.36996301, abs=5e-9)


def test_the_drift_of_the_library_is_the_same():
    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="square")
    engine = jax.jit(
        lambda parameters, state, lr: functional.drift(problem.structure, parameters, state, lr=lr)
    )
    W = np.random.default_rng(0).normal(size=(3, 5))
    with jax.enable_x64(True):
        for rows, eta, noise in ((POINT_B, ETA, 0.0), (W, 0.4, 0.2)):
            rho, Q = rows[:, :2], rows @ rows.T
            state = functional.state(sgd.start(problem, M=rho, Q=Q))
            rates = engine(
                {**problem.parameters, "noise": np.float64(noise)}, state, np.float64(2 * eta)
            )
            d_rho, d_Q = qn.drift(rho, Q, eta, noise=noise)
            np.testing.assert_allclose(
                2 * eta * np.asarray(rates["M"])[0], d_rho, rtol=1e-12, atol=1e-14
            )
            np.testing.assert_allclose(
                2 * eta * np.asarray(rates["Q"])[0], d_Q, rtol=1e-12, atol=1e-14
            )


@pytest.mark.parametrize(("p", "p_star"), [(3, 2), (1, 1), (2, 3), (6, 3)])
def test_plateau_and_its_rates(p, p_star):
    flat = qn.plateau(p, p_star)
    np.testing.assert_array_equal(qn.plateau(p), flat.Q)
    assert np.isnan(qn.plateau(p).risk)
    zero = np.zeros((p, p_star))
    omega_rho, omega_q = qn.growth_rates(p, p_star)
    assert np.abs(qn.gradient_flow(zero, flat.Q)[1]).max() < 1e-15
    assert flat.risk == pytest.approx(qn.risk(zero, flat.Q), rel=1e-14)
    rng, step = np.random.default_rng(0), 1e-6
    rho = step * rng.normal(size=(p, p_star))
    np.testing.assert_allclose(qn.gradient_flow(rho, flat.Q)[0], omega_rho * rho, rtol=1e-12)
    change = rng.normal(size=(p, p))
    change = change + change.T
    trace = np.trace(change) / p * np.eye(p)
    plus, minus = (qn.gradient_flow(zero, flat.Q + sign * step * change)[1] for sign in (1, -1))
    np.testing.assert_allclose(
        (plus - minus) / (2 * step),
        -omega_q * (change - trace) - (8 / p) * trace,
        rtol=1e-8,
        atol=1e-9,
    )


@pytest.mark.parametrize(("p", "p_star"), [(3, 2), (2, 1)])
def test_loss_reduction_follows_gradient_flow(p, p_star):
    epsilon, flat = 1e-6, qn.plateau(p, p_star)
    rho = np.random.default_rng(1).normal(size=(p, p_star))
    # |rho|^2 equals its mean over random starts, so that the risk is the mean over starts too.
    rho *= epsilon * math.sqrt(p * p_star) / np.linalg.norm(rho)
    times = np.array([0.0, 0.5, 7.0, 8.0]) / qn.growth_rates(p, p_star)[0]
    risk = qn.risk(*integrate(rho, flat.Q, times, rtol=1e-13, atol=1e-16))
    np.testing.assert_allclose(
        (risk[0] - risk) / risk[0],
        qn.loss_reduction(times, p, p_star, epsilon),
        rtol=1e-4,
        atol=1e-15,
    )
    # From Q(0) = I the risk falls also because the norms relax. A run with rho = 0 measures this
    # contribution, which is subtracted.
    risk, norms = (
        qn.risk(*integrate(x, np.eye(p), times, rtol=1e-13, atol=1e-16))[2:] for x in (rho, 0 * rho)
    )
    np.testing.assert_allclose(
        (norms - risk) / flat.risk,
        qn.loss_reduction(times[2:], p, p_star, epsilon, since="start"),
        rtol=1e-3,
    )


def dense(W, p_star):
    """Gradient and Hessian of E[(y - yhat)^2] in the p N weights.

    The expectations are contractions of the tensor of fourth moments of x (Isserlis' theorem),
    E[x_i x_j x_a x_b] = delta_ij delta_ab + delta_ia delta_jb + delta_ib delta_ja.
    """
    p, N = W.shape
    delta = np.eye(N)
    fourth = (
        np.einsum("ij,ab->ijab", delta, delta)
        + np.einsum("ia,jb->ijab", delta, delta)
        + np.einsum("ib,ja->ijab", delta, delta)
    )
    teacher = delta[:p_star]
    error = (
        np.einsum("ijab,la,lb->ij", fourth, teacher, teacher) / p_star
        - np.einsum("ijab,ka,kb->ij", fourth, W, W) / p
    )
    gradient = -(4 / p) * W @ error
    hessian = (8 / p**2) * np.einsum("ijab,ma,nb->minj", fourth, W, W)
    hessian -= (4 / p) * np.einsum("mn,ij->minj", np.eye(p), error)
    return gradient, hessian.reshape(p * N, p * N)


def weights(point, N, seed):
    """Weights at a random point of a critical manifold, and the rotation of the students.

    The teacher is the first p* axes. Rotations that leave the teacher invariant are applied on the
    right.
    """
    left = stats.ortho_group.rvs(point.p, random_state=seed) if point.p > 1 else np.eye(1)
    right = np.eye(N)
    for axes in (slice(0, point.p_star), slice(point.p_star, N)):
        size = len(range(N)[axes])
        right[axes, axes] = (
            stats.ortho_group.rvs(size, random_state=seed) if size > 1 else np.eye(size)
        )
    W = np.zeros((point.p, N))
    W[:, : point.p_star] = point.rho
    for unit in range(point.s, point.s + point.r):
        W[unit, point.p_star + unit - point.s] = math.sqrt(point.alpha)
    return left @ W @ right, left


@pytest.mark.parametrize(("N", "p", "p_star"), SIZES)
def test_critical_points_and_spectra_against_dense_hessians(N, p, p_star):
    points = qn.critical_points(p, p_star)
    for seed, point in enumerate(points):
        W, left = weights(point, N, seed)
        gradient, hessian = dense(W, p_star)
        assert np.abs(gradient).max() < 1e-12
        np.testing.assert_allclose(W @ W.T, left @ point.Q @ left.T, rtol=0, atol=1e-13)
        assert point.risk == pytest.approx(qn.risk(W[:, :p_star], W @ W.T), abs=1e-13)
        np.testing.assert_allclose(np.hstack(qn.gradient_flow(point.rho, point.Q)), 0, atol=1e-13)
        spectrum = point.spectrum(N)
        assert np.all(np.diff(spectrum.eigenvalues) > 1e-9)
        expected = np.repeat(spectrum.eigenvalues, spectrum.multiplicities)
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian), expected, rtol=0, atol=1e-12)
        assert (spectrum.negative == 0) == (point is points[0])
        assert spectrum.negative + spectrum.null + spectrum.positive == p * N


@pytest.mark.parametrize(("N", "p", "p_star"), [size for size in SIZES if size[1] >= size[2]])
def test_the_papers_four_spectra(N, p, p_star):
    unit = 8 / (p * p_star)
    printed = {
        (0, 0): {-4 / p * (1 + 2 / p_star): p * p_star, -4 / p: p * (N - p_star)},
        (p, 0): {
            -unit: p * p_star,
            0.0: p * (N - p_star - p) + p * (p - 1) // 2,
            16 / (p * (p + 2)): p * (p - 1) // 2 + p - 1,
            8 / p: 1,
        },
        (0, p_star): {
            0.0: (N - p_star) * (p - p_star) + p_star * (p - p_star) + p_star * (p_star - 1) // 2,
            unit: p_star * (N - p_star),
            2 * unit: p_star * (p_star + 1) // 2 - 1,
            (2 + p_star) * unit: 1,
        },
    }
    if p_star > 1:
        printed[0, 1] = {
            -8 * (p_star + 2) / (3 * p * p_star): (p_star - 1) * (p - 1),
            -8 * (p_star - 1) / (3 * p * p_star): (N - p_star) * (p - 1),
            0.0: p + p_star - 2,
            unit: N - p_star,
            (2 + p_star) * unit: 1,
        }
    for (r, s), table in printed.items():
        spectrum = qn.critical_point(p, p_star, r, s).spectrum(N)
        expected = sorted((value, count) for value, count in table.items() if count)
        np.testing.assert_allclose(
            spectrum.eigenvalues, [value for value, _ in expected], rtol=1e-13
        )
        assert spectrum.multiplicities.tolist() == [count for _, count in expected]
    flat = qn.critical_point(p, p_star, p, 0).spectrum(1000)
    # equation (29) of the paper
    assert flat.negative / flat.null == pytest.approx(
        p_star / (1000 - p_star - p / 2 - 1 / 2), rel=1e-12
    )
    assert qn.critical_point(p, p_star, p, 0).risk == pytest.approx(
        qn.plateau(p, p_star).risk, rel=1e-14
    )


def test_there_are_no_other_critical_points():
    """Least squares on the gradient, from 60 random starts, ends only at the listed points."""
    N, p, p_star = 5, 3, 2
    rng = np.random.default_rng(0)
    risks = {(point.r, point.s): point.risk for point in qn.critical_points(p, p_star)}
    # The residual and its Jacobian are needed at the same weights: the cache computes both once.
    derivatives = lru_cache(maxsize=2)(lambda w: dense(np.frombuffer(w).reshape(p, N), p_star))
    labels = set()
    for _ in range(60):
        W = rng.normal(size=(p, N)) * np.repeat(
            [rng.uniform(0, 1.2), rng.uniform(0, 1.2)], [p_star, N - p_star]
        )
        solution = optimize.least_squares(
            lambda w: derivatives(w.tobytes())[0].ravel(),
            W.ravel(),
            lambda w: derivatives(w.tobytes())[1],
            method="lm",
            xtol=1e-15,
            ftol=1e-15,
        )
        if np.abs(solution.fun).max() > 1e-12:
            continue
        W = solution.x.reshape(p, N)
        risk = qn.risk(W[:, :p_star], W @ W.T)
        label = min(risks, key=lambda label: abs(risks[label] - risk))
        assert risk == pytest.approx(risks[label], abs=1e-8)
        labels.add(label)
    # (1, 1) and (2, 1) are mixed critical points, which the paper does not list.
    assert labels >= {(0, 2), (1, 1), (2, 1)}, labels


def test_closest_solution_is_closest_and_is_reached():
    S = qn.closest_solution(RHO_0)
    rho, Q = qn.solution_overlaps(S)
    assert qn.risk(rho, Q) == pytest.approx(0, abs=1e-14)
    for rate in qn.drift(rho, Q, ETA):
        np.testing.assert_allclose(rate, 0, atol=1e-15)
    # |W_S - W(0)|^2 = const - 2 sqrt(p/p*) Tr S^T rho0. No other S has a smaller distance, neither
    # one far from S nor one near it.
    far = np.random.default_rng(0).normal(size=(500, 3, 2))
    others = np.linalg.qr(np.concatenate([far, S + 0.03 * far]))[0]
    others = others * np.sign(np.einsum("akl,kl->al", others, S))[:, None, :]
    assert np.abs(others[500:] - S).max() < 0.2
    assert np.einsum("akl,kl->a", others, RHO_0).max() < np.sum(S * RHO_0)
    for eta in (0.0, ETA):
        end = integrate(RHO_0, np.eye(3), [300.0], eta=eta, method="LSODA", rtol=1e-10)
        np.testing.assert_allclose(qn.closest_solution(end[0][0]), S, rtol=0, atol=1e-6)
        np.testing.assert_allclose(end[0][0], rho, rtol=0, atol=5e-3)  # the distance decays as 1/t
    wide = np.random.default_rng(3).normal(size=(3, 3))
    end = integrate(0.03 * wide, np.eye(3), [60.0])
    np.testing.assert_allclose(end[0][0], qn.closest_solution(wide), rtol=0, atol=1e-9)


def test_manifold_and_degrees_of_freedom():
    rng = np.random.default_rng(0)
    for N, p, p_star in [size for size in SIZES if size[1] >= size[2]]:
        S = qn.closest_solution(rng.normal(size=(p, p_star)))
        moves = np.eye(p * p_star).reshape(-1, p, p_star)
        constraint = S.T @ moves + np.swapaxes(moves, -1, -2) @ S
        rank = np.linalg.matrix_rank(constraint.reshape(p * p_star, -1))
        assert qn.manifold_dimension(p, p_star, N) == p * p_star - rank
        null = qn.critical_point(p, p_star, 0, p_star).spectrum(N).null
        assert null == qn.manifold_dimension(p, p_star, N) + (N - p_star) * (p - p_star)
    for p, N in [(2, 4), (4, 4), (5, 4), (1, 3)]:
        W = rng.normal(size=(p, N))
        moves = np.eye(p * N).reshape(-1, p, N)
        change = W.T @ moves + np.swapaxes(moves, -1, -2) @ W
        assert qn.degrees_of_freedom(p, N) == np.linalg.matrix_rank(change.reshape(p * N, -1))
    assert qn.manifold_dimension(4, 7, 3) == 6  # a teacher of rank N, the whole space


@pytest.mark.parametrize(("p", "p_star", "eta"), [(3, 2, 0.0), (3, 2, ETA), (4, 1, 0.2)])
def test_power_law_tail(p, p_star, eta):
    rho = 0.2 * np.random.default_rng(p).normal(size=(p, p_star))
    times = np.array([2000.0, 4000.0])
    risk = qn.risk(*integrate(rho, np.eye(p), times, eta=eta, method="LSODA", rtol=1e-11))
    law = qn.tail(p, p_star, times, eta=eta)
    np.testing.assert_allclose(risk, law, rtol=5e-3)
    # R^(-1/2) is linear in t. Its slope does not depend on when the run left the plateau.
    assert np.diff(risk**-0.5) == pytest.approx(np.diff(law**-0.5), rel=2e-4)


def test_exponential_tail_and_its_prefactor():
    rng = np.random.default_rng(2)
    for p in (2, 3):
        rho, orthogonal = 0.1 * rng.normal(size=(p, p)), rng.normal(size=(p, p))
        Q = rho @ rho.T + orthogonal @ orthogonal.T / 3  # a generic Q, independent of rho
        times = np.array([1.6, 1.9]) * p**2
        risk = qn.risk(*integrate(rho, Q, times, rtol=1e-13, atol=1e-16))
        np.testing.assert_allclose(risk, qn.tail(p, p, times, rho0=rho, Q0=Q), rtol=2e-3)
        assert -np.diff(np.log(risk)) / np.diff(times) == pytest.approx(qn.tail_rate(p), rel=1e-3)


@pytest.mark.parametrize(("p", "p_star"), [(2, 2), (3, 3), (3, 2), (4, 1), (1, 1)])
def test_stability_of_the_solutions(p, p_star):
    rho, Q = qn.solution_overlaps(
        qn.closest_solution(np.random.default_rng(0).normal(size=(p, p_star)))
    )
    threshold = qn.largest_stable_rate(p, p_star)
    for ratio in (0.5, 0.9, 1.1):
        eigenvalues = np.linalg.eigvals(jacobian(rho, Q, ratio * threshold)).real
        assert np.abs(eigenvalues - 16 / (p * p_star) * (ratio - 1)).min() < 1e-6
        assert (eigenvalues.max() > 1e-6) == (ratio > 1)
        if p == p_star and ratio < 1:
            # Rotations have eigenvalue 0. The slowest of the other modes determines the tail.
            assert -eigenvalues[np.abs(eigenvalues) > 1e-6].max() == pytest.approx(
                qn.tail_rate(p, eta=ratio * threshold), abs=1e-6
            )


@pytest.mark.slow
def test_S_is_conserved_by_commuting_starts_only():
    problem = sgd.TeacherStudent(
        width=3, teacher_width=2, activation="square", noise=0.1, weight_decay=0.02
    )
    vectors = np.linalg.eigh(RHO_0 @ RHO_0.T)[1]
    commuting = (vectors * np.array([0.7, 1.1, 1.6])) @ vectors.T
    other = np.eye(3) + 0.1 * (np.ones((3, 3)) - np.eye(3))
    start = sgd.start(problem, M=np.stack([RHO_0] * 3), Q=np.stack([np.eye(3), commuting, other]))
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=2 * ETA), start, alpha=[0, 5, 10, 40])
    S = qn.conserved_S(result)
    assert S.dims == ("run", "time", "unit", "signal")
    assert S.t.values.tolist() == result.t.values.tolist()
    np.testing.assert_allclose(S[0, 0], qn.closest_solution(RHO_0), rtol=0, atol=1e-14)
    change = np.abs(S - S.isel(time=0)).max(("time", "unit", "signal"))
    assert change[:2].max() < 1e-10
    assert change[2] > 1e-3
    # S is constant although the overlaps themselves change.
    assert float(np.abs(result.M[1, -1] - result.M[1, 0]).max()) > 0.3
    # Without noise and decay, twice the risk of the library is the risk of the paper.
    noiseless = sgd.TeacherStudent(width=3, teacher_width=2, activation="square")
    plain = sgd.solve_ode(noiseless, sgd.OnePassSGD(lr=2 * ETA), start, alpha=[0, 5, 10, 40])
    assert 2 * float(plain.risk[0, 2]) == pytest.approx(1.36996301, abs=5e-9)
    np.testing.assert_allclose(
        2 * plain.risk[:, 2], qn.risk(plain.M[:, 2], plain.Q[:, 2]), rtol=1e-12
    )
    diverged = result.copy(deep=True)
    diverged["M"][0, -1] = np.nan
    assert np.isnan(qn.conserved_S(diverged)[0, -1]).all()
    assert np.isfinite(qn.conserved_S(diverged)[1:]).all()


def test_S_drifts_as_one_over_root_N_from_gaussian_starts():
    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="square")
    means = {}
    for N, reference in ((100, 0.052), (1000, 0.018), (10000, 0.0057)):
        start = sgd.random_start(problem, dimension=N, seed=11, runs=200)
        rho, _ = integrate(start.M, start.Q, [15.0], eta=ETA, rtol=1e-7, atol=1e-9)
        change = np.abs(qn.closest_solution(rho[0]) - qn.closest_solution(start.M)).max(axis=(1, 2))
        error = change.std(ddof=1) / math.sqrt(len(change))
        # The reference is a mean over 400 other runs, so that its error is smaller by sqrt(2).
        assert abs(change.mean() - reference) < Z * math.hypot(error, error / math.sqrt(2))
        means[N] = change.mean()
    assert math.log10(means[100] / means[10000]) / 2 == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qn.drift(np.zeros((2, 1)), np.eye(3), 0.1), "Q has shape"),
        (lambda: qn.drift(np.zeros((2, 1)), [[1, 1], [0, 1]], 0.1), "not symmetric"),
        (lambda: qn.drift(np.zeros((2, 1)), np.eye(2), -0.1), "eta = -0.1"),
        (lambda: qn.risk(np.zeros(2), np.eye(2)), "rho has shape"),
        (lambda: qn.growth_rates(0, 1), "p = 0"),
        (lambda: qn.loss_reduction(-1.0, 2, 1, 1e-3), "t = -1.0"),
        (lambda: qn.loss_reduction(1.0, 2, 1, 1e-3, since="begin"), "since = 'begin'"),
        (lambda: qn.closest_solution(np.ones((2, 3))), "p = 2 < p_star = 3"),
        (lambda: qn.closest_solution(np.ones((3, 2))), "full rank"),
        (lambda: qn.solution_overlaps(np.ones((3, 2))), "orthonormal columns"),
        (lambda: qn.solution_overlaps(np.eye(3)[:2]), "p = .* for p < p_star. Use p >= 3"),
        (lambda: qn.critical_point(3, 2, 0, 3), "s = 3"),
        (lambda: qn.critical_point(3, 2, 3, 1), "r \\+ s = 4"),
        (lambda: qn.critical_point(3, 2, 1, 2), "r = 1"),
        (lambda: qn.critical_point(3, 2, -1, 0), "r = -1"),
        (lambda: qn.critical_point(3, 2, 3, 0).spectrum(4), "N = 4"),
        (lambda: qn.manifold_dimension(2, 3, 10), "p = 2"),
        (lambda: qn.degrees_of_freedom(2, 0), "N = 0"),
        (lambda: qn.tail(1, 2, 3.0), "p = 1"),
        (lambda: qn.tail(3, 2, 0.0), "t = 0.0"),
        (lambda: qn.tail(3, 2, 1.0, eta=0.4), "eta = 0.4"),
        (lambda: qn.tail(3, 2, 1.0, rho0=np.ones((3, 2))), "Omit rho0"),
        (lambda: qn.tail(2, 2, 1.0), "rho0 = None"),
        (lambda: qn.tail(2, 2, 1.0, rho0=np.ones((2, 2)) / 4), "full rank"),
        (lambda: qn.tail(2, 2, 1.0, rho0=2 * np.eye(2)), "Q0 - rho0"),
        (lambda: qn.tail(2, 2, 1.0, eta=0.1, rho0=np.eye(2)), "tail_rate"),
        (lambda: qn.tail_rate(2, eta=0.25), "eta = 0.25"),
        (lambda: qn.conserved_S(np.zeros((2, 2))), "trajectory = 'ndarray'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def printed_drift(rho, Q, eta):
    """The drift (34) as the paper prints it.

    It differs from the correct drift by the factor of Q in the term of order eta^2.
    """
    p, p_star = rho.shape
    T, A = np.trace(Q), np.sum(rho**2)
    correct = 1 + 2 / p_star - 2 * T / p + (T**2 + 2 * np.sum(Q**2)) / p**2 - 4 * A / (p * p_star)
    printed = 1 + 2 / p_star - (2 * p - 1) / p**2 * T**2 - A / (p * p_star)
    drho, dQ = qn.drift(rho, Q, eta)
    return drho, dQ + 16 * eta**2 / p**2 * (printed - correct) * Q


@pytest.mark.slow
def test_direct_sgd_follows_the_corrected_34_and_not_the_printed_one():
    """Risk of twelve runs of SGD in N = 2000 dimensions, at alpha = 8 and 16.

    The setting is p = 3, p* = 2, eta = 0.12.
    """
    rho0 = np.array([[0.25, -0.1], [0.05, 0.2], [-0.15, 0.15]])
    eta, alphas = 0.12, [8.0, 16.0]

    def risks(drift):
        def rate(_, y):
            d_rho, d_Q = drift(y[:6].reshape(3, 2), y[6:].reshape(3, 3), eta)
            return np.concatenate([d_rho.ravel(), d_Q.ravel()])

        y = solve_ivp(
            rate,
            (0, 16),
            np.concatenate([rho0.ravel(), np.eye(3).ravel()]),
            t_eval=alphas,
            rtol=1e-9,
            atol=1e-11,
        ).y.T
        return np.array([qn.risk(row[:6].reshape(3, 2), row[6:].reshape(3, 3)) for row in y])

    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="square")
    start = sgd.start(problem, M=rho0, Q=np.eye(3))
    runs = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=2 * eta),
        start,
        alpha=alphas,
        dimension=2000,
        runs=12,
        seed=1,
        method="direct",
        dtype="float32",
    )
    measured = 2 * np.asarray(runs.risk)
    error = measured.std(axis=0, ddof=1) / np.sqrt(12)
    # With twelve runs, |t| of Student's law with 11 degrees of freedom exceeds 9.5 with probability
    # 1e-6.
    assert np.all(np.abs(measured.mean(axis=0) - risks(qn.drift)) <= 9.5 * error)
    assert np.all(error < 0.05 * measured.mean(axis=0))
    assert np.all(np.abs(measured.mean(axis=0) - risks(printed_drift)) > 20 * error)
