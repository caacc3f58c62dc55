"""Closed formulas of the models of several inputs and of own rules, in the library's units: alpha =
samples/d, t = lr alpha.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray

LATE_EXPONENTS = {"hebb": -1 / 2, "perceptron": -1 / 3, "adatron": -1.0}
CONTENT, PLACE = (
    0.2205022,
    (-0.1332601, 0.1533972),
)  # growth at the origin, of the overlaps with w* and with pos


def late_error(rule: str, alpha: ArrayLike, lr: float = 1.0) -> np.ndarray:
    """Probability of a wrong label after many samples, by Hebb's rule, the perceptron's or the
    Adatron's.

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
        (2 pi alpha)^(-1/2), (2/3)^(1/3)/pi alpha^(-1/3) or 3/((3 - lr) lr alpha), of the shape of
        alpha.

    Raises
    ------
    ValueError
        If there is no such rule, or its law does not hold at this rate.

    Notes
    -----
    Leading terms of acos(M/sqrt(Q))/pi in the ODE of ``sgd.models.perceptron``. See Kinouchi and
    Caticha (1992), Biehl and Schwarze (1992), Anlauf and Biehl (1989).

    Examples
    --------
    >>> sgd.papers.several_inputs.late_error("adatron", [100.0, 1000.0]).round(4).tolist()
    [0.015, 0.0015]
    """
    rule = checks.choice("rule", rule, tuple(LATE_EXPONENTS))
    lr = checks.number("lr", lr, above=0.0)
    if lr >= 3:
        raise checks.reject("lr", lr, "give a rate below 3: above it the Adatron does not learn")
    front = {
        "hebb": 1 / math.sqrt(2 * math.pi),
        "perceptron": (2 / 3) ** (1 / 3) / math.pi,
        "adatron": 3 / ((3 - lr) * lr),
    }
    return front[rule] * np.asarray(alpha, dtype=np.float64) ** LATE_EXPONENTS[rule]


def component_path(t: ArrayLike, spike: float, first: float) -> np.ndarray:
    """What the rows of a linear autoencoder of tied weights hold of one spike, alone and without
    noise.

    Parameters
    ----------
    t : float or array
        Time, lr steps/d.
    spike : float
        beta: the variance along the spike is 1 + beta.
    first : float
        u(0), between 0 and 1: the sum over the rows of their squared overlaps with the spike.

    Returns
    -------
    array
        u(t) = 1/(1 + (1/u(0) - 1) exp(-4 (1 + beta) t)), of the shape of t.

    Raises
    ------
    ValueError
        If ``first`` is not between 0 and 1.

    Notes
    -----
    dW/dt = 2 W S - W S W^T W - W W^T W S of the covariance S; what is held of its eigenvectors is
    logistic, u' = 4 (1 + beta) u (1 - u).

    Examples
    --------
    >>> print(f"{sgd.papers.several_inputs.component_path(0.2, spike=4.0, first=0.001):.4f}")
    0.0518
    """
    u, beta = checks.number("first", first, above=0.0), checks.number("spike", spike, minimum=0.0)
    if u >= 1:
        raise checks.reject("first", first, "give a share between 0 and 1")
    return 1 / (1 + (1 / u - 1) * np.exp(-4 * (1 + beta) * np.asarray(t, dtype=np.float64)))


def exit_law(exponent: int, dimension: ArrayLike, lr: float = 0.0) -> np.ndarray:
    """How the time to leave m = d^(-1/2) grows with d for products of one, two or three tokens, on
    the sphere, by the ODE.

    Parameters
    ----------
    exponent : int
        n, the sequence information exponent: 1, 2 or 3.
    dimension : float or array
        d.
    lr : float, default 0.0
        The learning rate for n = 2, below 1/2; for n = 3 the rate times sqrt(d), below 1/5.

    Returns
    -------
    array
        The part of t that grows: 0, log(d)/(4 (1 - 2 lr)), or sqrt(d)/3 log(1/(1 - 5 lr))/(5 lr).
        To it belongs a constant.

    Raises
    ------
    ValueError
        If the exponent is none of these, or noise keeps SGD at this rate from leaving.

    Notes
    -----
    While m is small, dm/dt = n m^(n-1) - (lr/2) n (3^(n-1) + 1) m; as lr -> 0, log(d)/4 and
    sqrt(d)/3.

    Examples
    --------
    >>> [round(float(sgd.papers.several_inputs.exit_law(n, 400)), 3) for n in (1, 2, 3)]
    [0.0, 1.498, 6.667]
    """
    n, d, c = (
        checks.integer("exponent", exponent, 1, 3),
        np.asarray(dimension, dtype=np.float64),
        checks.number("lr", lr, minimum=0.0),
    )
    if c >= (np.inf, 1 / 2, 1 / 5)[n - 1]:
        raise checks.reject(
            "lr",
            lr,
            f"give a rate below {1 / 2 if n == 2 else 1 / 5:g}: above it noise keeps m at zero",
        )
    if n == 1:
        return 0.0 * d
    return (
        np.log(d) / (4 * (1 - 2 * c))
        if n == 2
        else np.sqrt(d) / 3 * (-math.log1p(-5 * c) / (5 * c) if c else 1.0)
    )


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
    The linear part of the drift of ``sgd.models.positional_semantic`` on the sphere at m = e = 0,
    for its contrast .75^2; by a trapezoidal rule, to the digits shown.

    Examples
    --------
    >>> content, place = sgd.papers.several_inputs.positional_growth(0.9)
    >>> print(f"{content:.4f} {place:.4f}")
    0.0221 0.0048
    """
    omega, c0 = np.asarray(omega, dtype=np.float64), checks.number("encoding", encoding)
    return CONTENT * (1 - omega), c0**2 * (PLACE[0] + PLACE[1] * omega)


def positional_crossings(encoding: float = 1.0) -> tuple[float, float]:
    """Shares of position in the target above which it can be learned, and above which it is learned
    faster than content.

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
    ['0.868726', '0.903430']
    """
    squared = checks.number("encoding", encoding) ** 2
    return -PLACE[0] / PLACE[1], (CONTENT - squared * PLACE[0]) / (CONTENT + squared * PLACE[1])


def reward_drift(
    m: RealArray, Q: RealArray, tokens: RealArray, reward: RealArray, penalty: RealArray
) -> tuple[RealArray, RealArray]:
    """How the overlaps of a perceptron that is told only whether a whole episode was right move
    with alpha, lr = 1.

    Parameters
    ----------
    m : float or array
        Overlap with the teacher, w.w*.
    Q : float or array
        Squared norm of w.
    tokens : int or array
        T: how many decisions an episode has.
    reward : float or array
        e1: the step towards its own decisions where all T were the teacher's.
    penalty : float or array
        e2: the step away from them where one was not.

    Returns
    -------
    dm : float or array
        u - e2 rho sqrt(2/pi), with u = (e1 + e2) (1 + rho)/sqrt(2 pi) (1 - th/pi)^(T-1), rho =
        m/sqrt(Q), th = acos(rho).
    dQ : float or array
        2 sqrt(Q) (u - e2 sqrt(2/pi)) + [(e1^2 - e2^2) (1 - th/pi)^T + e2^2]/T.

    Notes
    -----
    The move of a sample is (1/T) sum_l sign(w.x_l) x_l, times e1 or -e2. After Patel, Lee,
    Mannelli, Goldt and Saxe, "The RL perceptron" (2023).

    Examples
    --------
    >>> ["%.4f" % one for one in sgd.papers.several_inputs.reward_drift(0.2, 1.0, 3, 1.0, 0.2)]
    ['0.1509', '0.1172']
    """
    rho = np.clip(m / np.sqrt(Q), -1.0, 1.0)
    right = 1 - np.arccos(rho) / math.pi
    u = (reward + penalty) * (1 + rho) / math.sqrt(2 * math.pi) * right ** (tokens - 1)
    steps = ((reward**2 - penalty**2) * right**tokens + penalty**2) / tokens
    turn = penalty * math.sqrt(2 / math.pi)
    return u - rho * turn, 2 * np.sqrt(Q) * (u - turn) + steps


def reward_path(
    alpha: ArrayLike,
    rho: ArrayLike = 0.2,
    *,
    tokens: ArrayLike = 3,
    reward: ArrayLike = 1.0,
    penalty: ArrayLike = 0.2,
) -> tuple[np.ndarray, np.ndarray]:
    """The overlaps m and Q of the same perceptron at the given alpha, from a row of norm 1.

    Parameters
    ----------
    alpha : array
        Samples/d, increasing, from 0 or more.
    rho : float or array, default 0.2
        Cosine of w and w* at the start.
    tokens : int or array, default 3
        T: how many decisions an episode has.
    reward : float or array, default 1.0
        e1: the step after an episode without a mistake.
    penalty : float or array, default 0.2
        e2: the step after one with a mistake.

    Returns
    -------
    m : array
        Overlap with the teacher; the shape that all arguments broadcast to, with alpha as the last
        axis.
    Q : array
        Squared norm, likewise.

    Raises
    ------
    ValueError
        If alpha does not increase, or the equation could not be solved.

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
    if when.ndim != 1 or when[0] < 0 or np.any(np.diff(when) <= 0):
        raise checks.reject("alpha", alpha, "give increasing numbers from 0 on")
    cosine, T, e1, e2 = np.broadcast_arrays(
        *(np.asarray(one, dtype=np.float64) for one in (rho, tokens, reward, penalty))
    )

    def right_hand(_: float, y: np.ndarray) -> np.ndarray:
        m, Q = y.reshape(2, -1)
        return np.concatenate(reward_drift(m, Q, T.ravel(), e1.ravel(), e2.ravel()))

    begin = np.concatenate([cosine.ravel(), np.ones(cosine.size)])
    found = solve_ivp(
        right_hand,
        (0.0, max(when[-1], 1e-9)),
        begin,
        t_eval=when,
        method="DOP853",
        rtol=1e-9,
        atol=1e-11,
    )
    if not found.success:
        raise ValueError(f"alpha = {when[-1]:g}: {found.message}")
    m, Q = found.y.reshape(2, *cosine.shape, len(when))
    return m, Q
