"""Closed formulas: the best learning rate of a linear student, what it reaches, and exponents of
the risk in the horizon.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument


def best_error(alpha: ArrayArgument, start: float, noise: float) -> Any:
    """The squared error ``|w - w*|^2`` of a linear student under its best learning rate, d ->
    infinity: twice its excess risk.

    Parameters
    ----------
    alpha : array_like
        Samples over d, 0 or more.
    start : float
        The squared error at alpha = 0, above 0.
    noise : float
        The variance of the label noise, above 0.

    Returns
    -------
    float or ndarray
        The error.

    Raises
    ------
    ValueError
        If an argument is refused.

    Notes
    -----
    eps' = -2 lr eps + lr^2 (eps + noise) is least at lr = eps/(eps + noise) at every moment: eps =
    noise/W(r e^(r + alpha)), r = noise/start, W Lambert's function. Late, eps = noise/alpha.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.best_error(20.0, 1.0, 0.1)) / 2, 10)
    0.0033148159
    """
    when = _times(alpha)
    start, noise = (
        checks.number("start", start, above=0.0),
        checks.number("noise", noise, above=0.0),
    )
    r = noise / start
    # W(e^z) is the solution of w + log w = z, and e^z would overflow
    return noise / special.wrightomega(np.log(r) + r + when)


def best_rate(alpha: ArrayArgument, start: float, noise: float) -> Any:
    """The best learning rate of a linear student, lr = eps/(eps + noise), at alpha, d -> infinity.

    Parameters
    ----------
    alpha : array_like
        Samples over d, 0 or more.
    start : float
        The squared error at alpha = 0, above 0.
    noise : float
        The variance of the label noise, above 0.

    Returns
    -------
    float or ndarray
        The rate; both the risk at the end and its integral are least with it.

    Raises
    ------
    ValueError
        If an argument is refused.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.best_rate(0.0, 1.0, 0.1)), 4)
    0.9091
    """
    error = best_error(alpha, start, noise)
    return error / (error + noise)


def constant_error(alpha: ArrayArgument, start: float, noise: float, lr: ArrayArgument) -> Any:
    """The squared error of a linear student with a constant learning rate, d -> infinity.

    Parameters
    ----------
    alpha : array_like
        Samples over d, 0 or more.
    start : float
        The squared error at alpha = 0, above 0.
    noise : float
        The variance of the label noise, 0 or more.
    lr : array_like
        The rate, between 0 and 2.

    Returns
    -------
    float or ndarray
        e + (start - e) exp(-lr (2 - lr) alpha), e = lr noise/(2 - lr).

    Raises
    ------
    ValueError
        If an argument is refused.

    Examples
    --------
    >>> round(float(sgd.papers.protocols.constant_error(20.0, 1.0, 0.1, 0.172566)) / 2, 10)
    0.0056246228
    """
    when, rate = _times(alpha), checks.real_array("lr", lr, "give rates between 0 and 2")
    if np.any(rate <= 0) or np.any(rate >= 2):
        raise checks.reject("lr", lr, "give rates between 0 and 2")
    start, noise = checks.number("start", start, above=0.0), checks.number("noise", noise, 0.0)
    last = rate * noise / (2 - rate)
    return last + (start - last) * np.exp(-rate * (2 - rate) * when)


def horizon_exponents(a: float, b: float) -> tuple[float, float]:
    """How the risk after T steps falls with T on a power law: R ~ T^-e, with the best schedule and
    with the best constant rate.

    Parameters
    ----------
    a : float
        Of the target, l_k w*_k^2 = k^-a, above 1.
    b : float
        Of the spectrum, l_k = k^-b, above 1.

    Returns
    -------
    tuple of float
        (a - 1)/a with the best schedule where a > b (easy), (a - 1)/b where a <= b (hard); (a -
        1)/(a - 1 + b) with a constant rate.

    Raises
    ------
    ValueError
        If an argument is refused.

    Notes
    -----
    With label noise, for T -> infinity. A rate eta leaves the start with (eta T)^-((a-1)/b) and the
    noise with a share eta of its variance: a constant rate balances the two. A schedule that falls
    pays for the noise at its end alone. Where the excess risk is still above the noise a constant
    rate need not fall, and hard laws have the exponent of the schedule with both.

    Examples
    --------
    >>> sgd.papers.protocols.horizon_exponents(2.5, 1.5)
    (0.6, 0.5)
    """
    a, b = checks.number("a", a, above=1.0), checks.number("b", b, above=1.0)
    return (a - 1) / max(a, b), (a - 1) / (a - 1 + b)


def _times(alpha: ArrayArgument) -> np.ndarray:
    when = checks.real_array("alpha", alpha, "give samples over d, 0 or more")
    if np.any(when < 0):
        raise checks.reject("alpha", alpha, "give samples over d, 0 or more")
    return when
