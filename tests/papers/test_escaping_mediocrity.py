"""Escaping mediocrity: closed formulas against quadrature, ODEs, boundary value problems, SGD."""

from __future__ import annotations

import itertools

import jax
import mpmath
import numpy as np
import pytest
from scipy import integrate, optimize, special

import sgdynamics as sgd
from sgdynamics.papers import escaping_mediocrity as em
from sgdynamics.papers.escaping_mediocrity import formulas
from sgdynamics.solvers import functional
from tests.conftest import Z

PLATEAU = {"d": 1000, "noise": 0.0, "threshold": 0.1}


def gauss(dimensions: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (dimensions, points) and weights of a tensor product of Gauss-Hermite rules.

    The rule is exact for polynomials of degree 2 count - 1 in each normal variable.
    """
    nodes, weights = special.roots_hermitenorm(count)
    grid = np.array(list(itertools.product(range(count), repeat=dimensions))).T
    return nodes[grid], (weights / weights.sum())[grid].prod(axis=0)


def fields(
    m: np.ndarray, Q: np.ndarray, noise: float, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Quadrature of the fields: lambda* (points), lambda (p, points), y - f (points), weights."""
    p = len(m)
    g, weights = gauss(p + 2, count)
    # The fields are lambda = m lambda* plus Gaussian variables of covariance Q - m m^T. A singular
    # covariance, as for Q = m m^T, needs the tiny diagonal.
    factor = np.linalg.cholesky(Q - np.outer(m, m) + 1e-300 * np.eye(p))
    lam = m[:, None] * g[0] + factor @ g[1:-1]
    return g[0], lam, g[0] ** 2 - (lam**2).mean(axis=0) + np.sqrt(noise) * g[-1], weights


def drift(m: np.ndarray, Q: np.ndarray, rate: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Drift (15) with (33) on the sphere, for k = 1, rho = 1 and rate = gamma/p.

    The overlaps m have the shape (..., p). With the free drifts psi and phi of m and Q, the
    constraint Q_jj = 1 gives::

        dm_j/dt  = psi_j - m_j phi_jj/2
        dQ_jl/dt = phi_jl - Q_jl (phi_jj + phi_ll)/2
    """
    p = m.shape[-1]
    trace, square = (np.trace(x, axis1=-2, axis2=-1)[..., None, None] for x in (Q, Q @ Q))
    mm, Q2 = m[..., :, None] * m[..., None, :], Q @ Q
    m2 = (m**2).sum(axis=-1)[..., None, None]
    psi = 2 * (1 - trace[..., 0] / p) * m + 4 * (m - (Q @ m[..., None])[..., 0] / p)
    cubic = (trace**2 + 2 * square) * Q + 4 * trace * Q2 + 8 * Q2 @ Q
    cross = (trace + 2 * m2) * Q + 2 * trace * mm + 2 * Q2 + 4 * (mm @ Q + Q @ mm)
    phi = (
        4 * (1 - trace / p) * Q
        + 8 * (mm - Q2 / p)
        + 4 * rate * ((3 + noise) * Q + 12 * mm + cubic / p**2 - 2 * cross / p)
    )
    diagonal = np.diagonal(phi, axis1=-2, axis2=-1)
    return psi - m / 2 * diagonal, phi - Q / 2 * (diagonal[..., :, None] + diagonal[..., None, :])


def runge_kutta(
    m: np.ndarray, Q: np.ndarray, rate: float, noise: float, h: float
) -> tuple[np.ndarray, np.ndarray]:
    """One classical Runge-Kutta step of length h along the drift."""
    a1, b1 = drift(m, Q, rate, noise)
    a2, b2 = drift(m + h / 2 * a1, Q + h / 2 * b1, rate, noise)
    a3, b3 = drift(m + h / 2 * a2, Q + h / 2 * b2, rate, noise)
    a4, b4 = drift(m + h * a3, Q + h * b3, rate, noise)
    return m + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4), Q + h / 6 * (b1 + 2 * b2 + 2 * b3 + b4)


def final_excess(p: int, gamma: float, noise: float) -> float:
    """Excess risk at the end of the ODE from a generic small overlap."""
    m, Q = 0.01 * np.linspace(1, 1.5, p), np.eye(p)
    Q = Q + np.outer(m, m) - np.diag(m**2)
    for _ in range(1000):
        m, Q = runge_kutta(m, Q, gamma / p, noise, 0.04)
    return em.risk(m, Q)


def random_rows(p: int, d: int, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps m (runs, p) and Q of rows drawn uniformly from the sphere in d dimensions.

    The teacher is the first axis.
    """
    W = np.random.default_rng(seed).standard_normal((runs, p, d))
    W /= np.linalg.norm(W, axis=-1, keepdims=True)
    return W[:, :, 0].copy(), W @ W.transpose(0, 2, 1)


def linear_times(
    m: np.ndarray, Q: np.ndarray, d: int, gamma: float, noise: float, T: float
) -> np.ndarray:
    """Exit times of the linearised risk for each start, from (52)."""
    p = m.shape[-1]
    plateau = 1 + 1 / p
    target = (1 - T) * em.risk(m, Q)
    return np.log((plateau - target) / (2 * (m**2).sum(axis=-1) / p)) / (
        2 * em.growth_rates(p, gamma, noise)[0]
    )


def test_risk_at_point_A_and_by_quadrature():
    m, Q = np.array([0.3, -0.2]), np.array([[1.0, 0.4], [0.4, 0.8]])
    assert em.risk(m, Q, noise=0.5) == pytest.approx(1.615, rel=1e-13)
    assert em.risk(m[:, None], Q, 0.5) == em.risk(m, Q, 0.5)
    _, _, error, weights = fields(m, Q, 0.5, 4)
    assert em.risk(m, Q, noise=0.5) == pytest.approx((weights * error**2 / 2).sum(), rel=1e-12)
    # scaling teacher and student alike scales the noiseless risk by the square
    assert em.risk(1.7 * m, 1.7 * Q, rho=1.7) == pytest.approx(1.7**2 * em.risk(m, Q), rel=1e-13)
    many = em.risk(np.stack([m, 2 * m]), np.stack([Q, 4 * Q])[:, None], noise=[0.1, 0.2])
    assert many.shape == (2, 2)
    assert many[1, 0] == pytest.approx(em.risk(m, 4 * Q, 0.1))
    assert em.risk(np.zeros((7, 3, 1, 1)), np.ones((7, 3, 1, 1))).shape == (7, 3)


def test_growth_rates_from_the_increments_of_sgd():
    """The drift (33) is the mean increment of SGD, and its slopes at m = 0, Q = 1 are (45), (46).

    The mean increments are computed by quadrature.
    """
    for m, q, noise, gamma in (([0.1, -0.05], 0.02, 0.1, 0.2), ([0.5, 0.3], -0.4, 0.7, 0.3)):
        m, Q = np.array(m), np.array([[1, q], [q, 1]])
        star, lam, error, weights = fields(m, Q, noise, 4)
        rate = gamma / 2
        psi = (weights * 2 * error * lam * star).sum(axis=-1)
        phi = np.einsum("n,jn,ln->jl", weights * (4 * error + 4 * rate * error**2), lam, lam)
        dm, dQ = drift(m, Q, rate, noise)
        np.testing.assert_allclose(dm, psi - m / 2 * np.diag(phi), rtol=1e-11)
        np.testing.assert_allclose(dQ[0, 1], phi[0, 1] - q / 2 * np.trace(phi), rtol=1e-11)
        if noise == 0.1:
            np.testing.assert_allclose(
                [*dm, dQ[0, 1]], [0.296508, -0.152754, -0.0893872], rtol=1e-12
            )
    small = 1e-6
    for p, gamma, noise in ((1, 0.1, 0.4), (2, 0.3, 0.1), (5, 0.5, 0.3)):
        omega_M, omega_Q = em.growth_rates(p, gamma, noise)
        assert drift(np.full(p, small), np.eye(p), gamma / p, noise)[0][0] / small == pytest.approx(
            omega_M, abs=1e-8
        )
        if p > 1:
            Q = np.eye(p)
            Q[0, 1] = Q[1, 0] = small
            assert drift(np.zeros(p), Q, gamma / p, noise)[1][0, 1] / small == pytest.approx(
                -omega_Q, abs=1e-8
            )
    assert em.growth_rates(5, 0.5, 0.3) == pytest.approx((3.396, 1.344), rel=1e-13)
    assert em.growth_rates([1, 5], 0.5, [[0.0], [0.3]])[1].shape == (2, 2)


def test_annealed_time():
    assert em.exit_time_annealed(1, 3000, 0.05, 0, 0.3) == pytest.approx(1.214852185, abs=6e-10)
    assert em.exit_time_annealed(1, 3000, 0.08, 0.5, 0.2) == pytest.approx(1.599565525, abs=6e-10)
    assert em.exit_time_annealed(5, 1000, 0.5, 0.3, 0.25) == pytest.approx(0.7381670794, abs=6e-11)
    # Compare with the ODE, linearised numerically and integrated from the start whose mu0 and tau0
    # are the means over random starts.
    p, d, gamma, noise, T = 2, 1000, 0.3, 0.2, 0.25

    def velocity(m: float, q: float) -> list[float]:
        dm, dQ = drift(np.array([m, m]), np.array([[1, q], [q, 1]]), gamma / p, noise)
        return [dm[0], dQ[0, 1]]

    small = 1e-5
    slopes = np.array([velocity(small, 0), velocity(0, small)]).T / small
    start = np.full(2, d**-0.5)
    path = integrate.solve_ivp(
        lambda _, y: slopes @ y, (0, 2), start, rtol=1e-11, atol=1e-13, dense_output=True
    )

    def excess(y: np.ndarray, rows: float = 1.0) -> float:
        return em.risk([y[0], y[0]], [[1, rows * y[1]], [rows * y[1], 1]])

    exact, without_rows = (
        optimize.brentq(lambda t, k=k: excess(path.sol(t), k) - (1 - T) * excess(start), 0, 2)
        for k in (1.0, 0.0)
    )
    formula = em.exit_time_annealed(p, d, gamma, noise, T)
    assert formula == pytest.approx(without_rows, abs=1e-7)
    # The formula neglects the overlaps between rows, which have not yet decayed completely.
    assert 0 < exact - formula < 1e-5
    assert em.exit_time_annealed([1, 2, 5], 1000, 0.1, 0.0, [[0.1], [0.2]]).shape == (2, 3)


def test_quenched_time():
    assert em.exit_time_quenched(1, 3000, 0.05, 0, 0.3) == pytest.approx(1.441702586, abs=6e-10)
    assert em.exit_time_quenched(1, 3000, 0.08, 0.5, 0.2) == pytest.approx(1.917155795, abs=6e-10)

    # The chi-square law of mu0 is integrated directly, at a small T d.
    def integrand(x: float) -> float:
        return np.log(0.2 * 4 / x**2 + 0.8) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    direct = 2 * integrate.quad(integrand, 0, 40, limit=400)[0]
    assert em.exit_time_quenched(1, 4, 0.05, 0.0, 0.2) == pytest.approx(
        direct / (8 * 0.7), rel=1e-9
    )
    # For rows on the sphere and T -> 1, the time is -E ln m^2 over the rate, and E ln m^2 has a
    # closed form for one row.
    almost = 1 - 1e-15
    for d in (2, 3, 50, 10**9):
        expected = (special.digamma(d / 2) - special.digamma(0.5)) / (8 * 0.7)
        assert em.exit_time_quenched(1, d, 0.05, 0.0, almost, law="sphere") == pytest.approx(
            expected, rel=1e-11
        )


@pytest.mark.parametrize(("p", "d", "T"), [(1, 30, 0.3), (3, 30, 0.5), (3, 6, 0.8)])
def test_quenched_time_by_brute_force(p: int, d: int, T: float):
    m, Q = random_rows(p, d, 100_000, seed=p)
    times = linear_times(m, Q, d, 0.1, 0.2, T)
    value, error = em.exit_time_quenched(p, d, 0.1, 0.2, T, law="sphere", with_error=True)
    standard_error = times.std() / np.sqrt(len(times))
    assert abs(times.mean() - value) <= Z * standard_error
    assert 0 < error < 0.02 * standard_error
    # Most of the noise of the times comes from ln mu0. Without it the comparison is sharper.
    log_mu0 = np.log(d * (m**2).sum(axis=-1))
    mean_log_mu0, rate = formulas._mean_log_mu(p, d), 2 * em.growth_rates(p, 0.1, 0.2)[0]
    for draws, expected in (
        (log_mu0, mean_log_mu0),
        (times * rate + log_mu0, value * rate + mean_log_mu0),
    ):
        assert abs(draws.mean() - expected) <= Z * draws.std() / np.sqrt(len(draws))
    reseeded, reseeded_error = em.exit_time_quenched(
        p, d, 0.1, 0.2, T, law="sphere", with_error=True, seed=1
    )
    # The errors are from eight replicates and have the wide tails of Student's law.
    assert abs(reseeded - value) <= 8 * np.hypot(error, reseeded_error)
    assert value > em.exit_time_annealed(p, d, 0.1, 0.2, T)


def test_law_of_the_starts():
    """The moments of mu0 and tau0 have closed forms.

    The overlaps of independent rows are pairwise independent.
    """
    p, d = 3, 6
    mu0, tau0 = (
        x - mean for x, mean in zip(formulas._starts(p, d, 0), (p, p * (p - 1)), strict=True)
    )
    variance = 3 * d / (d + 2) - 1  # variance of d m^2
    for draws, expected in (
        (mu0, 0),
        (tau0, 0),
        (mu0**2, p * variance),
        (tau0**2, 2 * p * (p - 1) * variance),
        (mu0 * tau0, 0),
    ):
        means = draws.mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert error < 0.1
        # |t| of Student's law with 7 degrees of freedom exceeds 15.8 with probability 1e-6.
        assert abs(means.mean() - expected) <= 15.8 * error


@pytest.mark.slow
def test_quenched_time_approaches_annealed_time_for_wide_networks():
    quenched, error = em.exit_time_quenched([20, 60], 3000, [2.0, 6.0], 0.0, 0.1, with_error=True)
    gap = (
        (quenched - em.exit_time_annealed([20, 60], 3000, [2.0, 6.0], 0.0, 0.1))
        * 2
        * em.growth_rates([20, 60], [2.0, 6.0], 0.0)[0]
    )
    np.testing.assert_allclose(gap, [1 / 20, 1 / 60], rtol=0.05)  # ln p - E ln chi^2_p = 1/p + ...
    assert np.all(error < 1e-7)


def test_exit_time_of_the_p1_ode():
    for m0, gamma, noise, T in (
        (0.02, 0.05, 0.5, 0.3),
        (-0.3, 0.1, 0.2, 0.8),
        (1e-6, 0.08, 0.0, 0.2),
    ):
        slope = 4 * (1 - 6 * gamma)
        # Integrate ln m^2 and invert: the exit time is where m^2 = T + (1 - T) m0^2.
        path = integrate.solve_ivp(
            lambda _, y, slope=slope, loss=2 * gamma * noise: 2 * (slope * (1 - np.exp(y)) - loss),
            (0, 9), [2 * np.log(abs(m0))], rtol=1e-11, atol=1e-12, max_step=0.02, dense_output=True,
        )  # fmt: skip
        level = np.log(T + (1 - T) * m0**2)
        reached = optimize.brentq(
            lambda t, path=path, level=level: path.sol(t)[0] - level, 0, 9, xtol=1e-13
        )
        assert em.exit_time_p1(m0, gamma, noise, T) == pytest.approx(reached, rel=1e-9)
        # Equation (19) is the case p = 1 of (15) with (33).
        rate, _ = drift(np.array([m0]), np.eye(1), gamma, noise)
        assert rate[0] == pytest.approx(m0 * (slope * (1 - m0**2) - 2 * gamma * noise), rel=1e-12)
    assert em.exit_time_p1(0.0, 0.05, 0.0, 0.3) == np.inf
    with pytest.warns(
        UserWarning,
        match=r"threshold = 0.9: never reached, .* stops the ODE at m\^2 = 0.8214",
    ):
        assert em.exit_time_p1(0.1, 0.05, 5.0, [0.3, 0.9])[1] == np.inf
    # The linearised time is the limit of small starts and thresholds.
    assert em.exit_time_p1(1e-5, 0.05, 0.3, 1e-4) == pytest.approx(
        em.exit_time_annealed(1, 10**10, 0.05, 0.3, 1e-4), abs=1e-4
    )


def test_diffusive_time_solves_its_boundary_value_problem():
    d, gamma, noise, T = 3000, 0.05, 0.0, 0.3
    assert em.exit_time_diffusive(d, gamma, noise, T) == pytest.approx(1.5927819532, abs=6e-11)
    assert em.exit_time_diffusive(d, gamma, noise, T, m0=d**-0.5) == pytest.approx(
        1.2981293369, abs=6e-11
    )
    d, noise = 100, 0.4
    mu, variance = 4 * (1 - 6 * gamma) - 2 * gamma * noise, gamma / d * (48 + 4 * noise)
    edge = np.sqrt(T)
    solution = integrate.solve_bvp(
        lambda m, y: np.array([y[1], -2 * (1 + mu * m * y[1]) / variance]),
        lambda left, right: np.array([left[1], right[0]]),
        np.linspace(0, edge, 200), np.zeros((2, 200)), tol=1e-9, max_nodes=20000,
    )  # fmt: skip
    assert solution.success
    m0 = np.array([0.0, 0.01, 0.1, 0.3, 0.5])
    np.testing.assert_allclose(
        em.exit_time_diffusive(d, gamma, noise, T, m0=m0), solution.sol(m0)[0], rtol=1e-7
    )


@pytest.mark.filterwarnings("ignore:gamma = 0.2. nothing is learned")
def test_diffusive_time_for_any_argument():
    """Equation (59) is accurate for all arguments, compared with mpmath.

    The cases have mu T/sigma^2 from 1e-3 to 1e6, starts close to the edge, and mu < 0.
    """
    cases = [
        (30, 0.01, 0.1, 0.001, 0.0),
        (50, 0.05, 0.5, 0.3, 0.5),
        (3000, 0.05, 0.0, 0.3, 0.547),
        (10**5, 0.05, 0.0, 0.3, 0.01),
    ]
    cases += [
        (10**7, 0.02, 0.0, 0.5, 0.0),
        (10**7, 0.02, 0.0, 0.5, 0.2),
        (30, 0.2, 1.0, 0.3, 0.1),
        (300, 0.2, 1.0, 0.3, 0.1),
    ]
    with mpmath.workdps(30):
        for d, gamma, noise, T, m0 in cases:
            mu = 4 * (1 - 6 * mpmath.mpf(gamma)) - 2 * mpmath.mpf(gamma) * noise
            variance = mpmath.mpf(gamma) / d * (48 + 4 * mpmath.mpf(noise))
            expected = sum(
                sign * u / variance * mpmath.hyp2f2(1, 1, mpmath.mpf(3) / 2, 2, -mu * u / variance)
                for sign, u in ((1, mpmath.mpf(T)), (-1, mpmath.mpf(m0) ** 2))
            )
            assert em.exit_time_diffusive(d, gamma, noise, T, m0=m0) == pytest.approx(
                float(expected), rel=1e-12
            )
    # Without drift (gamma = 1/6) the process is a diffusion. The time is continuous in gamma there.
    with pytest.warns(UserWarning, match="Use gamma below 0.166667"):
        assert em.exit_time_diffusive(100, 1 / 6, 0.0, 0.3, m0=0.1) == pytest.approx(
            0.29 * 100 / 8, rel=1e-9
        )
    assert em.exit_time_diffusive(100, (1 - 1e-9) / 6, 0.0, 0.3, m0=0.1) == pytest.approx(
        0.29 * 100 / 8, rel=1e-6
    )


def test_stochastic_shift():
    for p, variance in ((1, 48), (5, 36.48), (20, 38.88)):
        rate = 2 * em.growth_rates(p, 0.1 * p, 0.0)[0]
        assert np.expm1(-em.stochastic_shift(p, 0.1 * p, 0.0) * rate) * rate / 0.1 == pytest.approx(
            variance, rel=1e-12
        )
    # The same variance, with label noise, from the increments of SGD. The increments of two rows
    # are uncorrelated.
    star, lam, error, weights = fields(np.zeros(2), np.eye(2), 0.3, 5)
    increments = 2 * error * lam * star
    rate = 2 * em.growth_rates(2, 0.2, 0.3)[0]
    variance = np.expm1(-em.stochastic_shift(2, 0.2, 0.3) * rate) * rate / 0.1
    np.testing.assert_allclose(
        (weights * increments) @ increments.T, variance * np.eye(2), atol=1e-10
    )
    # The noise of SGD adds D to the variance 1 of the random start. The average of (59) over
    # starts is therefore the corrected time.
    d, gamma, T = 10**6, 1 / 12, 0.1
    nodes, weights = special.roots_hermitenorm(120)
    averaged = (
        weights * em.exit_time_diffusive(d, gamma, 0.0, T, m0=nodes / d**0.5)
    ).sum() / weights.sum()
    assert em.exit_time_quenched(1, d, gamma, 0.0, T) + em.stochastic_shift(
        1, gamma, 0.0
    ) == pytest.approx(averaged, abs=1e-4)


@pytest.mark.slow  # the corrected times of width one, in closed form, are tested by fast tests
def test_corrected_time_at_width_five():
    """Mean exit time of the ODE over 300 random starts, 0.662, and the corrected time, 0.600.

    The exit time of the linearised ODE, whose mean has a closed form, is the control variate.
    """
    p, gamma, h = 5, 0.5, 0.01
    m, Q = random_rows(p, PLATEAU["d"], 300, seed=0)
    linear = linear_times(m, Q, PLATEAU["d"], gamma, 0.0, PLATEAU["threshold"])
    before, times = em.risk(m, Q), np.full(len(m), np.nan)
    target = (1 - PLATEAU["threshold"]) * before
    for step in range(300):
        m, Q = runge_kutta(m, Q, gamma / p, 0.0, h)
        after = em.risk(m, Q)
        out = np.isnan(times) & (after <= target)
        times[out] = h * (step + (before - target)[out] / (before - after)[out])
        before = after
    # A run that does not leave has the time NaN, with which the assertions below fail.
    difference = times - linear
    ode = em.exit_time_quenched(p, gamma=gamma, **PLATEAU) + difference.mean()
    error = Z * difference.std() / np.sqrt(len(difference))
    assert error < 0.003
    assert abs(ode - 0.6636) <= error
    assert ode == pytest.approx(0.662, abs=0.003)
    assert ode + em.stochastic_shift(p, gamma, 0.0) == pytest.approx(0.600, abs=0.004)
    corrected, spread = em.exit_time_corrected(p, gamma=gamma, with_error=True, **PLATEAU)
    assert spread < 0.001
    assert abs(corrected - ode - em.stochastic_shift(p, gamma, 0.0)) <= error + Z * spread
    # The library has the same drift for this problem.
    problem = sgd.TeacherStudent(width=2, activation="square", constraint="sphere", noise=0.1)
    state = functional.state(sgd.start(problem, M=[[0.1], [-0.05]], Q=[[1.0, 0.02], [0.02, 1.0]]))
    dm, dQ = em.drift(np.array([0.1, -0.05]), np.array([[1.0, 0.02], [0.02, 1.0]]), 0.1, 0.1)
    with jax.enable_x64(True):
        rates = functional.drift(problem.structure, problem.parameters, state, lr=0.2)
    np.testing.assert_allclose(dm, 2 * np.asarray(rates["M"])[0, :, 0], rtol=1e-12)
    np.testing.assert_allclose(dQ[0, 1], 2 * np.asarray(rates["Q"])[0, 0, 1], rtol=1e-12)
    np.testing.assert_allclose([*dm, dQ[0, 1]], [0.296508, -0.152754, -0.0893872], rtol=1e-6)


def mean_p1_time(d: int, gamma: float, T: float) -> float:
    """Average of `exit_time_p1` over a row drawn uniformly from the sphere, by quadrature.

    The overlap m has the density (1 - m^2)^((d-3)/2)/B(1/2, (d-1)/2).
    """
    norm = special.beta(0.5, (d - 1) / 2)

    def integrand(m: float) -> float:
        return em.exit_time_p1(m, gamma, 0.0, T) * (1 - m * m) ** ((d - 3) / 2) / norm

    return 2 * integrate.quad(integrand, 0, 10 / d**0.5, limit=200)[0]


@pytest.mark.slow
def test_sgd_leaves_at_the_corrected_time():
    gamma = 1 / 12
    # the reference ODE time 1.497
    assert mean_p1_time(1000, gamma, 0.1) == pytest.approx(1.497194, abs=1e-6)
    assert em.exit_time_corrected(1, 1000, gamma, 0.0, 0.1) == pytest.approx(
        1.497194 - np.log(2) / 4, abs=1e-6
    )
    # Here D_1 = 1, and the corrected time is 1.3239.
    assert em.stochastic_shift(1, gamma, 0.0) == pytest.approx(-np.log(2) / 4, rel=1e-12)
    # SGD for p = 1 at d = 300. A step depends on the input only by lambda*, lambda and |x|^2.
    d, T, runs = 300, 0.2, 1200
    generator = np.random.default_rng(0)
    m = random_rows(1, d, runs, seed=1)[0][:, 0]
    level, steps, active = T + (1 - T) * m**2, np.zeros(runs), np.arange(runs)
    count = 0
    while len(active):
        a, b = generator.standard_normal((2, len(active)))
        norm = (a**2 + b**2 + generator.chisquare(d - 2, len(active))) / d
        lam = m * a + np.sqrt(1 - m**2) * b
        c = 2 * gamma * (a**2 - lam**2) * lam
        m = (m + c * a / d) / np.sqrt(1 + 2 * c * lam / d + c**2 * norm / d)
        count += 1
        out = m**2 >= level
        steps[active[out]] = count
        m, level, active = m[~out], level[~out], active[~out]
    times = steps * gamma / d
    error = times.std() / np.sqrt(runs)
    ode = mean_p1_time(d, gamma, T)
    corrected = ode + em.stochastic_shift(1, gamma, 0.0)
    # The correction is of leading order in 1/(T d).
    assert abs(times.mean() - corrected) <= Z * error + 1.5 / (T * d)
    assert times.mean() < ode - 6 * error


def test_learning_rates():
    assert em.optimal_lr(1, 0.5) == pytest.approx(1 / 12.5)
    for p, noise in ((1, 0.3), (3, 6.0), (2, 2.0)):
        best = em.optimal_lr(p, noise)

        def steps(gamma: float, p: int = p, noise: float = noise) -> float:
            return p * 1000 / gamma * em.exit_time_annealed(p, 1000, gamma, noise, 0.1)

        optimum = optimize.minimize_scalar(
            steps, bounds=(best / 3, 1.5 * best), method="bounded", options={"xatol": 1e-9}
        )
        assert optimum.x == pytest.approx(best, rel=1e-5)
        assert em.minimal_steps(p, 1000, noise, 0.1) == pytest.approx(steps(best), rel=1e-12)
        assert em.minimal_steps(p, 1000, noise, 0.1, admissible=False) == pytest.approx(
            steps(best), rel=1e-12
        )
    with pytest.warns(
        UserWarning, match=r"gamma_opt = 0.287\d* at p = 2 .* only below .* = 0.2867"
    ):
        em.optimal_lr(2, 1.95)  # admissible for noise of at least 8 - 4/p - 16/p^2 = 2
    with pytest.warns(UserWarning, match=r"gamma_opt = 0.4 at p = 2 .* = 0.333333"):
        assert em.optimal_lr(2, 0.0) == pytest.approx(0.4)
    limited = em.minimal_steps(2, 1000, 0.0, 0.1)
    assert limited == pytest.approx(
        2 * 1000 / (1 / 3) * em.exit_time_annealed(2, 1000, 1 / 3, 0.0, 0.1), rel=1e-12
    )
    assert limited > em.minimal_steps(2, 1000, 0.0, 0.1, admissible=False)


def test_gain_is_the_limit_of_the_minimal_steps():
    noise = np.array([0.0, 3.0, 8.0, 20.0])
    for admissible in (True, False):
        narrow, wide = (
            em.minimal_steps(p, 10**14, noise, 0.5, admissible=admissible) for p in (1, 10**6)
        )
        logarithms = np.log(0.5e14) / np.log(0.25e14)
        np.testing.assert_allclose(
            em.overparametrization_gain(noise, admissible=admissible),
            narrow / wide / logarithms,
            rtol=1e-5,
        )
    assert em.overparametrization_gain(0.0) == pytest.approx(10 / 3)
    assert em.overparametrization_gain(0.0, admissible=False) == 6


@pytest.mark.slow
def test_stable_rate_against_the_ode():
    bound = em.largest_stable_lr(2, 0.0)
    assert final_excess(2, 0.9 * bound, 0.0) < 0.01
    assert final_excess(2, 1.1 * bound, 0.0) > 0.3
    # At gamma_opt, the risk stalls for p = 2 and increases to its maximum for p = 5.
    assert final_excess(2, 0.4, 0.0) == pytest.approx(1.02, abs=0.02)
    assert final_excess(5, 125 / 68, 0.0) == pytest.approx(2.0, abs=0.02)
    # With label noise, parallel rows separate at the rate 8 (1 - m^2) (1 - 4 rate), and the risk is
    # lower than that of a single unit with the rate gamma/p.
    rate, noise = 0.1, 1.0
    m2, distance = 1 - rate * noise / (2 * (1 - 6 * rate)), 1e-6
    Q = np.array([[1, 1 - distance], [1 - distance, 1]])
    velocity = -drift(np.full(2, np.sqrt(m2)), Q, rate, noise)[1][0, 1]
    assert velocity / distance == pytest.approx(8 * (1 - m2) * (1 - 4 * rate), rel=1e-4)
    assert final_excess(2, 2 * rate, noise) < 0.95 * rate * noise / (1 - 6 * rate)


def test_covariance_of_the_increments():
    reference = em.covariance_p1(0.3, 0.05, 0.5)
    np.testing.assert_allclose(
        reference[[0, 0, 1], [0, 1, 1]], [61.7648, 97.88328, 473.2344512], rtol=1e-12
    )
    cases = [(0.3, 0.05, 0.5), (-0.8, 0.12, 1.3), (0.0, 0.1, 0.0)]
    for m, gamma, noise in cases:
        star, lam, error, weights = fields(np.array([m]), np.eye(1), noise, 8)
        lam = lam[0]
        free = np.stack(
            [2 * error * lam * star, 4 * error * lam**2 + 4 * gamma * error**2 * lam**2]
        )
        centred = free - (weights * free).sum(axis=-1, keepdims=True)
        covariance = em.covariance_p1(m, gamma, noise)
        np.testing.assert_allclose(
            covariance, (weights * centred) @ centred.T, rtol=1e-11, atol=1e-10
        )
        # One step of SGD on the sphere at finite d, with the fluctuations of |x|^2. The variance of
        # m differs from that of the projected increment by a relative O(1/d).
        projected = np.array([1, -m / 2]) @ covariance @ np.array([1, -m / 2])
        gaps = []
        for d in (10**5, 10**6):
            n = np.arange(3)
            # Gauss-Laguerre rule for chi^2 with d - 2 degrees of freedom (Golub-Welsch)
            half = (d - 2) / 2
            off = np.sqrt(n[1:] * (n[1:] + half - 1))
            chi2, vectors = np.linalg.eigh(
                np.diag(2 * n + half) + np.diag(off, 1) + np.diag(off, -1)
            )
            g, point_weights = gauss(3, 8)
            joint = point_weights[:, None] * vectors[0] ** 2
            norm = ((g[0] ** 2 + (lam - m * star) ** 2 / (1 - m**2))[:, None] + 2 * chi2) / d
            # m and the squared norm q of the row after the step, before normalisation
            next_m = (m + 2 * gamma * error * lam * star / d)[:, None]
            linear, quadratic = 4 * gamma * error * lam**2, 4 * gamma**2 * error**2 * lam**2
            q = 1 + (linear[:, None] + quadratic[:, None] * norm) / d
            change = (next_m / np.sqrt(q) - m) * d / gamma
            gaps.append((joint * (change - (joint * change).sum()) ** 2).sum() / projected - 1)
        assert abs(gaps[1]) < 2e-3
        assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.1)
    assert em.covariance_p1(np.zeros((3, 1)), [0.1, 0.2], 0.0).shape == (3, 2, 2, 2)


@pytest.mark.parametrize("constraint", [None, "sphere"])
def test_critical_points_against_a_dense_hessian(constraint: str | None):
    """Gradient and Hessian of the population risk in d = 6, which a quadrature gives exactly.

    The Hessian is the derivative of the gradient by complex steps, exact to rounding.
    """
    d, rho, noise = 6, 1.7, 0.3
    x, weights = gauss(d, 3)
    teacher = np.zeros(d)
    teacher[:2] = np.sqrt(rho) * np.array([0.6, 0.8])
    orthogonal = np.zeros(d)
    orthogonal[[0, 1, 2]] = [0.8 / np.sqrt(2), -0.6 / np.sqrt(2), np.sqrt(0.5)]

    def gradient(w: np.ndarray) -> np.ndarray:
        field = w @ x
        return x @ (weights * -2 * ((teacher @ x) ** 2 - field**2) * field)

    points = em.critical_points(rho, noise, d=d, constraint=constraint)
    assert [point.kind for point in points] == [
        *(["maximum"] if constraint is None else []),
        "saddle",
        "minimum",
        "minimum",
    ]
    for point in points:
        w = (
            point.overlap / rho * teacher
            + np.sqrt(point.norm - point.overlap**2 / rho) * orthogonal
        )
        slope = gradient(w)
        hessian = np.array([gradient(w + 1e-30j * e).imag / 1e-30 for e in np.eye(d)])
        if constraint == "sphere":
            P = np.eye(d) - np.outer(w, w) / rho
            slope, hessian = P @ slope, P @ hessian @ P - (w @ slope) / rho * P
            basis = np.linalg.svd(P)[0][:, : d - 1]
            hessian = basis.T @ hessian @ basis
        np.testing.assert_allclose(slope, 0, atol=1e-12)
        expected = np.concatenate(
            [np.full(int(count), value) for value, count in point.eigenvalues]
        )
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian), np.sort(expected), atol=1e-11)
        assert point.risk == pytest.approx(
            (weights * ((teacher @ x) ** 2 - (w @ x) ** 2) ** 2).sum() / 2 + noise / 2, rel=1e-12
        )
        assert point.risk == pytest.approx(
            em.risk([point.overlap], [[point.norm]], noise=noise, rho=rho), rel=1e-12
        )
    assert em.critical_points(rho, constraint=constraint)[-2].eigenvalues[0] == (4 * rho, "d - 1")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: em.exit_time_annealed(1, 100, 0.1, 0.0, 1.0),
            "threshold = 1.0: give finite numbers, above 0 and below 1",
        ),
        (lambda: em.exit_time_quenched(1, 100, 0.1, 0.0, [0.1, 0.0]), "threshold = 0.0"),
        (
            lambda: em.exit_time_annealed(0, 100, 0.1, 0.0, 0.1),
            "p = 0: give whole numbers, 1 or more",
        ),
        (lambda: em.exit_time_corrected(5, 5, 0.1, 0.0, 0.1), r"d = 5.0: .* Use d >= p \+ 1"),
        (lambda: em.exit_time_p1(0.1, 0.0, 0.0, 0.1), "gamma = 0.0: give finite numbers, above 0"),
        (lambda: em.growth_rates(1, 0.1, -0.1), "noise = -0.1: give finite numbers, 0 or more"),
        (
            lambda: em.exit_time_diffusive(100, 0.1, 0.0, 0.1, m0=0.4),
            r"m0 = 0.4: give a start inside",
        ),
        (
            lambda: em.exit_time_annealed(5, 20, 0.1, 0.0, 0.01),
            r"threshold = 0.01: give more than .* = 0.03509",
        ),
        (
            lambda: em.exit_time_quenched(3, 12, 0.1, 0.0, 0.06),
            "threshold = 0.06: .* Use a larger threshold or a larger d",
        ),
        (lambda: em.exit_time_quenched(1, 100, 0.1, 0.0, 0.1, law="normal"), "law = 'normal'"),
        (lambda: em.risk([0.1, 0.2], np.eye(3)), r"M has shape \(2,\): give shape \(..., 3\)"),
        (lambda: em.covariance_p1(1.1, 0.1, 0.0), "m = 1.1"),
    ],
)
def test_bad_input(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()


def test_exit_time_without_learning_is_infinite_with_a_warning():
    for call in (
        lambda: em.exit_time_annealed([1, 5], 100, 0.2, 0.0, 0.1),
        lambda: em.exit_time_quenched([1, 5], 100, 0.2, 0.0, 0.1),
        lambda: em.exit_time_corrected([1, 5], 100, 0.2, 0.0, 0.1),
    ):
        message = "gamma = 0.2: nothing is learned at p = 1, noise = 0, .* Use gamma below 0.166667"
        with pytest.warns(UserWarning, match=message) as warnings:
            times = call()
        assert len(warnings) == 1
        assert times[0] == np.inf
        assert np.isfinite(times[1])
    with pytest.warns(UserWarning, match="Use gamma below"):
        assert em.exit_time_p1(0.1, 0.2, 0.0, 0.1) == np.inf
