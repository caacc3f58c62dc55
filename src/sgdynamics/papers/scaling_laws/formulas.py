"""Closed exponents of the loss on power-law data, and of skills that are learned in turn."""

from __future__ import annotations

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument

FLAT = 700.0  # exponent beyond which exp overflows; such a skill has long been learned


def learning_exponent(data_exponent: float, target_exponent: float) -> float:
    """Late exponent of gradient flow on power-law data: excess risk ~ t^-exponent.

    Parameters
    ----------
    data_exponent : float
        Exponent s of the eigenvalues j^-s, above 0.
    target_exponent : float
        Exponent e of the signal's coordinates j^-e. The target has a finite variance if
        s + 2 e > 1.

    Returns
    -------
    float
        The exponent (s + 2 e - 1)/s.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    A linear student has the excess risk (1/2) sum_j l_j w*_j^2 exp(-2 l_j t): modes up to j ~
    t^(1/s) are learned, and those beyond sum to t^(-(s + 2e - 1)/s). A student with the teacher's
    activation is linear about it late: its Hessian E[f'(w* x)^2 x x^T] is a number times the
    covariance plus a matrix of rank one, and neither changes an exponent.

    Examples
    --------
    >>> sgd.papers.scaling_laws.learning_exponent(2.0, 0.25)
    0.75
    """
    s = checks.number("data_exponent", data_exponent, above=0.0)
    e = checks.number("target_exponent", target_exponent)
    if s + 2 * e <= 1:
        raise checks.reject(
            "target_exponent",
            e,
            f"the target has infinite variance. Use more than {(1 - s) / 2:g}.",
        )
    return (s + 2 * e - 1) / s


def emergence_exponent(decay: float) -> float:
    """Exponent of the total loss of many skills with weights k^-b: loss ~ t^-exponent.

    Parameters
    ----------
    decay : float
        Exponent b of the weights k^-b, k = 1, 2, ..., above 1/2.

    Returns
    -------
    float
        The exponent (2 b - 1)/(2 b).

    Raises
    ------
    ValueError
        If b is 1/2 or less, where the loss is infinite.

    Notes
    -----
    Skill k has the loss 2 k^-2b and the time ``emergence_time`` ~ k^2b. At time t the skills up to
    k ~ t^(1/2b) are learned, and the others sum to k^(1 - 2b). The loss of each skill jumps; the
    sum is a power law.

    Examples
    --------
    >>> sgd.papers.scaling_laws.emergence_exponent(2.0)
    0.75
    """
    b = checks.number("decay", decay, above=0.5)
    return (2 * b - 1) / (2 * b)


def emergence_time(skill: ArrayArgument, decay: float, overlap: float) -> np.ndarray:
    """Time at which gradient flow has halved the loss of a skill.

    Parameters
    ----------
    skill : array_like
        Index k of the skill, above 0.
    decay : float
        Exponent b of the weights k^-b.
    overlap : float
        Initial overlap m0 of each student with its own teacher, between 0 and 1.

    Returns
    -------
    float or ndarray
        The time log(1/m0^2 - 1) k^2b/8.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> print(np.round(sgd.papers.scaling_laws.emergence_time([1, 2, 4], 1.5, 0.2), 3))
    [ 0.397  3.178 25.424]
    """
    odds = _odds(overlap)
    k = checks.real_array("skill", skill, "give numbers above 0.")
    if np.any(k <= 0):
        raise checks.reject("skill", skill, "give numbers above 0.")
    return np.log(odds) * k ** (2 * checks.number("decay", decay, above=0.5)) / 8


def emergence_loss(times: ArrayArgument, decay: float, overlap: float, skills: int) -> np.ndarray:
    """Loss of each skill as a function of time under gradient flow.

    Parameters
    ----------
    times : array_like (n,)
        Times t, 0 or more.
    decay : float
        Exponent b of the weights k^-b, above 1/2.
    overlap : float
        Initial overlap m0 of each student with its own teacher, between 0 and 1.
    skills : int
        Number of skills.

    Returns
    -------
    ndarray (n, skills)
        Losses 2 c_k^2 (1 - m_k^2) with c_k = k^-b. Their sum is the excess risk.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    y = sum_k c_k (w*_k x)^2 with orthonormal teachers, f = sum_k c_k (w_k x)^2 on the sphere, loss
    (f - y)^2/2. Students that start orthogonal to all teachers but their own (m_k = m0) and to each
    other stay so, because reflections of one teacher and student are a symmetry. The risk is
    then 2 sum_k c_k^2 (1 - m_k^2), and flow on the sphere gives dm_k/dt = 4 c_k^2 m_k (1 -
    m_k^2), so that m_k^2 = 1/(1 + (1/m0^2 - 1) exp(-8 c_k^2 t)). The noise of SGD
    slows all skills by a relative amount lr loss(t), which decreases as they are learned.

    Examples
    --------
    >>> loss = sgd.papers.scaling_laws.emergence_loss([0.0, 3.0, 12.0], 1.5, 0.2, skills=3)
    >>> print(np.round(loss, 3))
    [[1.92  0.24  0.071]
     [0.    0.136 0.067]
     [0.    0.    0.03 ]]
    """
    odds = _odds(overlap)
    weights = np.arange(1, checks.integer("skills", skills, 1) + 1.0) ** -checks.number(
        "decay", decay, above=0.5
    )
    t = np.atleast_1d(checks.real_array("times", times, "give times, 0 or later."))
    if t.ndim != 1 or np.any(t < 0):
        raise checks.reject("times", times, "give times in one row, 0 or later.")
    grown = np.minimum(8 * weights**2 * t[:, None], FLAT)
    return 2 * weights**2 / (1 + np.exp(grown) / odds)


def _odds(overlap: float) -> float:
    """The ratio 1/m0^2 - 1 for an overlap m0 between 0 and 1."""
    m0 = checks.number("overlap", overlap, above=0.0)
    if m0 >= 1:
        raise checks.reject("overlap", overlap, "give a number between 0 and 1.")
    return 1 / m0**2 - 1
