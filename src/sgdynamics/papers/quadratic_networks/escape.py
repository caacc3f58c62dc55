"""The plateau of one-pass SGD at a finite learning rate: growth rate, best rate and noise."""

from __future__ import annotations

import math

import numpy as np
from scipy.integrate import solve_ivp

from sgdynamics.base import checks
from sgdynamics.papers.quadratic_networks.formulas import widths


def plateau_growth(p: int, p_star: int, eta: float) -> tuple[float, float]:
    """Squared row norm on the plateau of SGD at a finite rate, and growth rate of the overlaps.

    ::

        norm = u p/(p + 2),   2 x b u^2 - (1 + 4 x) u + 1 + 2 x kap = 0 (the smaller root)
        d log rho/dt = (4/p) (kap - u)
        x = eta/p,   kap = 1 + 2/p*,   b = (p + 4)/(p + 2)

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    eta : float
        The learning rate.

    Returns
    -------
    tuple of float
        The squared norm and the growth rate.

    Notes
    -----
    Q = norm I, rho = 0 is a fixed point of the ODE (N -> infinity). At eta = 0, u = 1 and the rate
    is 8/(p p*), as in (12); the noise of SGD makes the norms larger and the growth slower. The
    result is NaN where no fixed point exists. This formula is not in the paper.

    Examples
    --------
    >>> [round(value, 4) for value in sgd.papers.quadratic_networks.plateau_growth(3, 2, 0.02)]
    [0.6113, 1.3082]
    """
    p, p_star = widths(p, p_star)
    x = checks.number("eta", eta, 0.0) / p
    kappa, b = 1 + 2 / p_star, (p + 4) / (p + 2)
    square = (1 + 4 * x) ** 2 - 8 * x * b * (1 + 2 * x * kappa)
    if square < 0:
        return math.nan, math.nan
    u = 2 * (1 + 2 * x * kappa) / (1 + 4 * x + math.sqrt(square))
    return u * p / (p + 2), (4 / p) * (kappa - u)


def optimal_rate(p: int, p_star: int) -> float:
    """Learning rate at which overlaps on the plateau grow fastest per sample.

    ::

        eta = p (u - 1)/(2 B(u)),   B(u) = b u^2 - 2 u + kap
        u = [kap (b - 1) + sqrt(kap^2 (b - 1)^2 + A kap (kap - 1))]/A
        A = b (kap + 1) - 2,   kap = 1 + 2/p*,   b = (p + 4)/(p + 2)
        eta/p -> (1/4) sqrt(p*/(p* + 2)) as p -> infinity

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.

    Returns
    -------
    float
        The rate eta.

    Notes
    -----
    At this rate the plateau is left soonest as epsilon -> 0. It maximises eta d log rho/dt of
    ``plateau_growth``, that is 2 (u - 1)(kap - u)/B(u) along x = (u - 1)/(2 B(u)). It is linear in
    p at large p, as figure 2 of the paper finds numerically. This formula is not in the paper.

    Examples
    --------
    >>> round(sgd.papers.quadratic_networks.optimal_rate(3, 3), 4)
    0.2946
    """
    p, p_star = widths(p, p_star)
    kappa, b = 1 + 2 / p_star, (p + 4) / (p + 2)
    lead = b * (kappa + 1) - 2
    u = (kappa * (b - 1) + math.sqrt((kappa * (b - 1)) ** 2 + lead * kappa * (kappa - 1))) / lead
    return p * (u - 1) / (2 * (b * u**2 - 2 * u + kappa))


def noise_share(p: int, p_star: int, eta: float) -> float:
    """Variance that the noise of SGD adds to the overlaps, relative to their initial variance 1/N.

    ::

        share = integral over tau of 16 x V(c) / g^2,   d log g/dtau = 4 (kap - u)
        dc/dtau = 8 c [1 - u + 2 x B(u)],   u = c (p + 2)/p
        V = E[(y - yhat)^2 lambda_k^2 u_l^2]
          = c kap (1 + 4/p*) - 2 kap c^2 (p + 2)/p + c^3 (p + 2)(p + 4)/p^2

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    eta : float
        The learning rate.

    Returns
    -------
    float
        The ratio of variances.

    Notes
    -----
    Small overlaps are Gaussian and grow as g. Each sample adds (16 x^2/N^2) V to the variance of
    each overlap; the sum is of order 1/N like the initial variance, so that it does not vanish as
    N -> infinity. The ODE neglects it: SGD from random rows escapes when the ODE from variance
    (1 + share)/N does. Valid for eta well below ``optimal_rate``. This formula is not in the
    paper.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.noise_share(3, 2, 0.02) > 0
    True
    """
    p, p_star = widths(p, p_star)
    eta = checks.number("eta", eta, 0.0)
    x, kappa, b = eta / p, 1 + 2 / p_star, (p + 4) / (p + 2)

    def derivatives(_: float, y: np.ndarray) -> list[float]:
        c, log_g, _ = y
        u = c * (p + 2) / p
        V = (
            c * kappa * (1 + 4 / p_star)
            - 2 * kappa * c**2 * (p + 2) / p
            + c**3 * (p + 2) * (p + 4) / p**2
        )
        return [
            8 * c * (1 - u + 2 * x * (b * u**2 - 2 * u + kappa)),
            4 * (kappa - u),
            16 * x * V * math.exp(-2 * log_g),
        ]

    # initial values c = 1, log g = 0, share = 0; the integrand decays as g^-2
    solution = solve_ivp(
        derivatives, (0, 5 * p_star), [1.0, 0.0, 0.0], "DOP853", rtol=1e-8, atol=1e-12
    )
    return float(solution.y[2, -1])
