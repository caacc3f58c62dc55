"""Closed formulas of the models of several inputs and of own rules, in the library's units: alpha = samples/d, t = lr alpha."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sgdynamics import checks

LATE_EXPONENTS = {"hebb": -1 / 2, "perceptron": -1 / 3, "adatron": -1.0}
CONTENT, PLACE = 0.2205022, (-0.1332601, 0.1533972)  # growth at the origin, of the overlaps with w* and with pos
EXIT_RATES = {2: 4.0, 3: 3.0}  # t ~ log(d)/4 and sqrt(d)/3


def late_error(rule: str, alpha: ArrayLike, lr: float = 1.0) -> np.ndarray:
    """Probability of a wrong label after many samples, by Hebb's rule, the perceptron's or the Adatron's.

    Parameters
    ----------
    rule : str
        "hebb", "perceptron" or "adatron".
    alpha : float or array
        Samples/d.
    lr : float, default 1.0
        The learning rate, below 3. Of the three only the Adatron's law depends on it.

    Returns
    -------
    array
        (2 pi alpha)^(-1/2), (2/3)^(1/3)/pi alpha^(-1/3) or 3/((3 - lr) lr alpha), of the shape of alpha.

    Raises
    ------
    ValueError
        If there is no such rule, or its law does not hold at this rate.

    Notes
    -----
    Leading terms of acos(M/sqrt(Q))/pi in the ODE of ``sgd.models.perceptron``. See Kinouchi and Caticha (1992), Biehl and Schwarze (1992),
    Anlauf and Biehl (1989).

    Examples
    --------
    >>> sgd.papers.several_inputs.late_error("adatron", [100.0, 1000.0]).round(4).tolist()
    [0.015, 0.0015]
    """
    rule = checks.choice("rule", rule, tuple(LATE_EXPONENTS))
    lr = checks.number("lr", lr, above=0.0)
    if lr >= 3:
        raise checks.reject("lr", lr, "give a rate below 3: above it the Adatron does not learn")
    front = {"hebb": 1 / math.sqrt(2 * math.pi), "perceptron": (2 / 3) ** (1 / 3) / math.pi, "adatron": 3 / ((3 - lr) * lr)}
    return front[rule] * np.asarray(alpha, dtype=np.float64) ** LATE_EXPONENTS[rule]


def positional_growth(omega: ArrayLike, encoding: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rates at which the overlaps with w* (content) and with pos (position) grow from zero, lr = 0.

    Parameters
    ----------
    omega : float or array
        Share of the target that goes by position.
    encoding : float, default 1.0
        Size c0 of the positional encoding.

    Returns
    -------
    content : array
        .2205022 (1 - omega).
    place : array
        c0^2 (-.1332601 + .1533972 omega).

    Notes
    -----
    The linear part of the drift of ``sgd.models.positional_semantic`` on the sphere at m = e = 0, for its contrast .75^2; by a
    trapezoidal rule, to the digits shown.

    Examples
    --------
    >>> content, place = sgd.papers.several_inputs.positional_growth(0.9)
    >>> print(f"{content:.4f} {place:.4f}")
    0.0221 0.0048
    """
    omega, c0 = np.asarray(omega, dtype=np.float64), checks.number("encoding", encoding)
    return CONTENT * (1 - omega), c0**2 * (PLACE[0] + PLACE[1] * omega)


def positional_crossings(encoding: float = 1.0) -> tuple[float, float]:
    """Shares of position in the target above which it can be learned, and above which it is learned faster than content.

    Parameters
    ----------
    encoding : float, default 1.0
        Size c0 of the positional encoding.

    Returns
    -------
    unstable : float
        Where the growth rate of the overlap with pos passes zero, at any c0.
    faster : float
        Where it passes that of the overlap with w*.

    See Also
    --------
    positional_growth : the two rates.

    Examples
    --------
    >>> ["%.6f" % omega for omega in sgd.papers.several_inputs.positional_crossings(2.0)]
    ['0.868727', '0.903430']
    """
    squared = checks.number("encoding", encoding) ** 2
    return -PLACE[0] / PLACE[1], (CONTENT - squared * PLACE[0]) / (CONTENT + squared * PLACE[1])


def reward_drift(m: float, Q: float, tokens: int, reward: float, penalty: float) -> tuple[float, float]:
    """How the overlaps of a perceptron that is told only whether a whole episode was right move with alpha, lr = 1.

    Parameters
    ----------
    m : float
        Overlap with the teacher, w.w*.
    Q : float
        Squared norm of w.
    tokens : int
        T: how many decisions an episode has.
    reward : float
        e1: the step towards its own decisions where all T were the teacher's.
    penalty : float
        e2: the step away from them where one was not.

    Returns
    -------
    dm : float
        u - e2 rho sqrt(2/pi), with u = (e1 + e2) (1 + rho)/sqrt(2 pi) (1 - th/pi)^(T-1), rho = m/sqrt(Q), th = acos(rho).
    dQ : float
        2 sqrt(Q) (u - e2 sqrt(2/pi)) + [(e1^2 - e2^2) (1 - th/pi)^T + e2^2]/T.

    Notes
    -----
    The move of a sample is (1/T) sum_l sign(w.x_l) x_l, times e1 or -e2. After Patel, Lee, Mannelli, Goldt, Saxe, "The RL perceptron" (2023).

    Examples
    --------
    >>> ["%.4f" % one for one in sgd.papers.several_inputs.reward_drift(0.2, 1.0, 3, 1.0, 0.2)]
    ['0.1500', '0.0875']
    """
    rho = float(np.clip(m / math.sqrt(Q), -1.0, 1.0))
    right = 1 - math.acos(rho) / math.pi
    u = (reward + penalty) * (1 + rho) / math.sqrt(2 * math.pi) * right ** (tokens - 1)
    steps = ((reward**2 - penalty**2) * right**tokens + penalty**2) / tokens
    turn = penalty * math.sqrt(2 / math.pi)
    return u - rho * turn, 2 * math.sqrt(Q) * (u - turn) + steps


def reward_path(
    alpha: ArrayLike, rho: float = 0.2, *, tokens: int = 3, reward: float = 1.0, penalty: float = 0.2
) -> tuple[np.ndarray, np.ndarray]:
    """The overlaps m and Q of the same perceptron at the given alpha, from a row of norm 1.

    Parameters
    ----------
    alpha : array
        Samples/d, increasing, from 0 or more.
    rho : float, default 0.2
        Cosine of w and w* at the start.
    tokens : int, default 3
        T: how many decisions an episode has.
    reward : float, default 1.0
        e1: the step after an episode without a mistake.
    penalty : float, default 0.2
        e2: the step after one with a mistake.

    Returns
    -------
    m : array
        Overlap with the teacher.
    Q : array
        Squared norm.

    Raises
    ------
    ValueError
        If an argument is refused, or the equation could not be solved.

    See Also
    --------
    reward_drift : the right-hand side.

    Examples
    --------
    The error of one decision after five episodes a dimension:

    >>> m, Q = sgd.papers.several_inputs.reward_path([5.0])
    >>> print(f"{np.arccos(m[0] / np.sqrt(Q[0])) / np.pi:.8f}")
    0.25004350
    """
    from scipy.integrate import solve_ivp

    when = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if when.ndim != 1 or np.any(when < 0) or np.any(np.diff(when) <= 0):
        raise checks.reject("alpha", alpha, "give increasing numbers from 0 on")
    T, cosine = checks.whole("tokens", tokens, 1), checks.number("rho", rho, least=-1.0)
    e1, e2 = checks.number("reward", reward, least=0.0), checks.number("penalty", penalty, least=0.0)

    def right_hand(_: float, y: Any) -> tuple[float, float]:
        return reward_drift(y[0], y[1], T, e1, e2)

    found = solve_ivp(right_hand, (0.0, max(when[-1], 1e-9)), (cosine, 1.0), t_eval=when, method="LSODA", rtol=1e-10, atol=1e-12)
    if not found.success:
        raise ValueError(f"alpha = {when[-1]:g}: {found.message}")
    return found.y[0], found.y[1]
