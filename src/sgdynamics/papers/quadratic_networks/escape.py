"""The plateau of one-pass SGD at a finite learning rate: growth of the overlaps, best rate, noise."""

from __future__ import annotations

import math

import numpy as np
from scipy.integrate import solve_ivp

from sgdynamics.base import checks
from sgdynamics.papers.quadratic_networks.formulas import widths


def plateau_growth(p: int, p_star: int, eta: float) -> tuple[float, float]:
    """The plateau of SGD at a finite learning rate: the squared norm of its rows, and the rate at which overlaps leave it.

    ::

        norm = u p/(p + 2),   2 x b u^2 - (1 + 4 x) u + 1 + 2 x kap = 0 (the smaller root),   d log rho/dt = (4/p) (kap - u)
        x = eta/p,  kap = 1 + 2/p*,  b = (p + 4)/(p + 2)

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.
    eta : float
        The learning rate.

    Returns
    -------
    tuple of float
        (norm, rate).

    Notes
    -----
    Q = norm I, rho = 0 is a fixed point of the ODE (N -> infinity). At eta = 0: u = 1 and the rate 8/(p p*) of (12); the noise of SGD
    makes norms larger and growth slower. NaN where the noise leaves no fixed point. Not in the paper.

    Examples
    --------
    >>> [round(one, 4) for one in sgd.papers.quadratic_networks.plateau_growth(3, 2, 0.02)]
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
    """The learning rate at which overlaps grow fastest per sample, so that the plateau is left soonest as epsilon -> 0.

    ::

        eta = p (u - 1)/(2 B(u)),   B(u) = b u^2 - 2 u + kap,   u = [kap (b - 1) + sqrt(kap^2 (b - 1)^2 + A kap (kap - 1))]/A
        A = b (kap + 1) - 2,   kap = 1 + 2/p*,   b = (p + 4)/(p + 2);   eta/p -> (1/4) sqrt(p*/(p* + 2)) as p -> infinity

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.

    Returns
    -------
    float
        eta.

    Notes
    -----
    The maximum over eta of eta d log rho/dt of ``plateau_growth``, that is of 2 (u - 1)(kap - u)/B(u) along x = (u - 1)/(2 B(u)). Linear
    in p at large p, as the paper finds by integrations (its figure 2), where it takes the question to have no analytical answer.
    Not in the paper.

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
    """What the noise of SGD adds to the variance of the overlaps by the time they leave, over the variance 1/N they start with.

    ::

        share = integral over tau of 16 x V(c) / g^2,   d log g/dtau = 4 (kap - u),   dc/dtau = 8 c [1 - u + 2 x B(u)],   u = c (p + 2)/p
        V = E[(y - yhat)^2 lambda_k^2 u_l^2] = c kap (1 + 4/p*) - 2 kap c^2 (p + 2)/p + c^3 (p + 2)(p + 4)/p^2

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.
    eta : float
        The learning rate.

    Returns
    -------
    float
        A ratio of variances.

    Notes
    -----
    Small overlaps are Gaussian and grow as g, each sample adding (16 x^2/N^2) V to the variance of each: as large in N as the start's, so
    that it does not vanish as N -> infinity. The ODE leaves it out; SGD from random rows leaves when the ODE from variance (1 + share)/N
    does. For eta well below ``optimal_rate`` (overlaps that grow). Not in the paper.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.noise_share(3, 2, 0.02) > 0
    True
    """
    p, p_star = widths(p, p_star)
    eta = checks.number("eta", eta, 0.0)
    x, kappa, b = eta / p, 1 + 2 / p_star, (p + 4) / (p + 2)

    def field(_: float, y: np.ndarray) -> list[float]:
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

    return float(
        solve_ivp(field, (0, 5 * p_star), [1.0, 0.0, 0.0], "DOP853", rtol=1e-8, atol=1e-12).y[2, -1]
    )
