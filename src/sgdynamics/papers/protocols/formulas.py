"""Closed formulas: the best learning rate of a linear student, its error, and scaling exponents."""

from __future__ import annotations

import numpy as np
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument


def best_error(alpha: ArrayArgument, start: float, noise: float) -> np.ndarray:
    """Squared error ``|w - w*|^2`` of a linear student under its best learning rate, d -> infinity.

    Parameters
    ----------
    alpha : array_like
        Samples/d, 0 or more.
    start : float
        Squared error at alpha = 0, above 0.
    noise : float
        Variance of the label noise, above 0.

    Returns
    -------
    float or ndarray
        The squared error, twice the excess risk.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    eps' = -2 lr eps + lr^2 (eps + noise) is smallest at lr = eps/(eps + noise) at each alpha. Then
    eps = noise/W(r e^(r + alpha)) with r = noise/start and Lambert's function W. At late times
    eps = noise/alpha.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.best_error(20.0, 1.0, 0.1)) / 2, 10)
    0.0033148159
    """
    alpha = _samples_per_dimension(alpha)
    start = checks.number("start", start, above=0.0)
    noise = checks.number("noise", noise, above=0.0)
    r = noise / start
    # W(e^z) solves w + log w = z; Wright's omega function avoids the overflow of e^z
    return noise / special.wrightomega(np.log(r) + r + alpha)


def best_rate(alpha: ArrayArgument, start: float, noise: float) -> np.ndarray:
    """Best learning rate of a linear student at alpha, lr = eps/(eps + noise), as d -> infinity.

    Parameters
    ----------
    alpha : array_like
        Samples/d, 0 or more.
    start : float
        Squared error at alpha = 0, above 0.
    noise : float
        Variance of the label noise, above 0.

    Returns
    -------
    float or ndarray
        The rate, which minimises both the final risk and its integral.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.best_rate(0.0, 1.0, 0.1)), 4)
    0.9091
    """
    error = best_error(alpha, start, noise)
    return error / (error + noise)


def constant_error(
    alpha: ArrayArgument, start: float, noise: float, lr: ArrayArgument
) -> np.ndarray:
    """Squared error of a linear student with a constant learning rate, as d -> infinity.

    Parameters
    ----------
    alpha : array_like
        Samples/d, 0 or more.
    start : float
        Squared error at alpha = 0, above 0.
    noise : float
        Variance of the label noise, 0 or more.
    lr : array_like
        Learning rate, between 0 and 2.

    Returns
    -------
    float or ndarray
        The error e + (start - e) exp(-lr (2 - lr) alpha), with e = lr noise/(2 - lr).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.constant_error(20.0, 1.0, 0.1, 0.172566)) / 2, 10)
    0.0056246228
    """
    alpha = _samples_per_dimension(alpha)
    rate = checks.real_array("lr", lr, "give rates between 0 and 2.")
    if np.any(rate <= 0) or np.any(rate >= 2):
        raise checks.reject("lr", lr, "give rates between 0 and 2.")
    start, noise = checks.number("start", start, above=0.0), checks.number("noise", noise, 0.0)
    last = rate * noise / (2 - rate)
    return last + (start - last) * np.exp(-rate * (2 - rate) * alpha)


def horizon_exponents(a: float, b: float) -> tuple[float, float]:
    """Exponents of the risk R ~ T^-e after T steps, for the best schedule and constant rate.

    Parameters
    ----------
    a : float
        Exponent of the target, l_k w*_k^2 = k^-a, above 1.
    b : float
        Exponent of the spectrum, l_k = k^-b, above 1.

    Returns
    -------
    tuple of float
        Exponent of the best schedule, (a - 1)/a for a > b (easy) and (a - 1)/b for a <= b (hard),
        and exponent of the best constant rate, (a - 1)/(a - 1 + b).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    With label noise, as T -> infinity. At a rate eta the contribution of the start is
    (eta T)^-((a-1)/b), and that of the noise is eta times its variance; the best constant rate
    balances the two. With a decreasing schedule only the final rate determines the noise. While the
    excess risk is above the noise a constant rate need not decrease with T, and for hard targets
    both have the exponent of the schedule.

    Examples
    --------
    >>> sgd.papers.protocols.horizon_exponents(2.5, 1.5)
    (0.6, 0.5)
    """
    a, b = checks.number("a", a, above=1.0), checks.number("b", b, above=1.0)
    return (a - 1) / max(a, b), (a - 1) / (a - 1 + b)


def _samples_per_dimension(alpha: ArrayArgument) -> np.ndarray:
    values = checks.real_array("alpha", alpha, "give samples/d, 0 or more.")
    if np.any(values < 0):
        raise checks.reject("alpha", alpha, "give samples/d, 0 or more.")
    return values
