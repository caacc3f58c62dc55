"""Closed formulas for samples of several inputs and other learning rules.

Units are those of the library: alpha = samples/d and t = lr alpha.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray

LATE_EXPONENTS = {"hebb": -1 / 2, "perceptron": -1 / 3, "adatron": -1.0}
# growth rates at the origin: of the overlap with w* at omega = 0, and of the overlap with pos as
# constant and slope in omega
CONTENT = 0.2205022
POSITION = (-0.1332601, 0.1533972)


def late_error(rule: str, alpha: ArrayLike, lr: float = 1.0) -> np.ndarray:
    """Generalisation error of the Hebb, perceptron or Adatron rule after many samples.

    Parameters
    ----------
    rule : str
        "hebb", "perceptron" or "adatron".
    alpha : float or array
        Samples/d.
    lr : float, default 1.0
        Learning rate, below 3. Only the law of the Adatron depends on it.

    Returns
    -------
    array
        Probability of a wrong label: (2 pi alpha)^(-1/2), (2/3)^(1/3)/pi alpha^(-1/3) or
        3/((3 - lr) lr alpha).

    Raises
    ------
    ValueError
        If the rule is unknown, or its law does not hold at this rate.

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
        raise checks.reject("lr", lr, "the Adatron does not learn at this rate. Use lr below 3.")
    front = {
        "hebb": 1 / math.sqrt(2 * math.pi),
        "perceptron": (2 / 3) ** (1 / 3) / math.pi,
        "adatron": 3 / ((3 - lr) * lr),
    }
    return front[rule] * np.asarray(alpha, dtype=np.float64) ** LATE_EXPONENTS[rule]


def component_path(t: ArrayLike, spike: float, first: float) -> np.ndarray:
    """Overlap of a linear autoencoder of tied weights with a single spike, without noise.

    Parameters
    ----------
    t : float or array
        Time, lr steps/d.
    spike : float
        Strength beta of the spike, along which the variance is 1 + beta.
    first : float
        Initial value u(0) of the sum of squared overlaps of the rows with the spike, between 0 and
        1.

    Returns
    -------
    array
        Sum of squared overlaps u(t) = 1/(1 + (1/u(0) - 1) exp(-4 (1 + beta) t)).

    Raises
    ------
    ValueError
        If ``first`` is not between 0 and 1.

    Notes
    -----
    From dW/dt = 2 W S - W S W^T W - W W^T W S with the covariance S: the squared overlap with an
    eigenvector follows the logistic equation u' = 4 (1 + beta) u (1 - u).

    Examples
    --------
    >>> print(f"{sgd.papers.several_inputs.component_path(0.2, spike=4.0, first=0.001):.4f}")
    0.0518
    """
    u, beta = checks.number("first", first, above=0.0), checks.number("spike", spike, minimum=0.0)
    if u >= 1:
        raise checks.reject("first", first, "give a number between 0 and 1.")
    return 1 / (1 + (1 / u - 1) * np.exp(-4 * (1 + beta) * np.asarray(t, dtype=np.float64)))


def exit_law(exponent: int, dimension: ArrayLike, lr: float = 0.0) -> np.ndarray:
    """Growth with d of the time to leave m = d^(-1/2), for products of up to three tokens.

    Parameters
    ----------
    exponent : int
        Sequence information exponent n: 1, 2 or 3.
    dimension : float or array
        Input dimension d.
    lr : float, default 0.0
        Learning rate for n = 2, below 1/2; for n = 3 the learning rate times sqrt(d), below 1/5.

    Returns
    -------
    array
        Growing term of t: 0, log(d)/(4 (1 - 2 lr)) or sqrt(d)/3 log(1/(1 - 5 lr))/(5 lr), up to an
        additive constant.

    Raises
    ------
    ValueError
        If the exponent is not 1, 2 or 3, or noise keeps SGD at m = 0 at this rate.

    Notes
    -----
    From the ODE on the sphere at small m, dm/dt = n m^(n-1) - (lr/2) n (3^(n-1) + 1) m. As lr -> 0
    the growing terms are log(d)/4 and sqrt(d)/3.

    Examples
    --------
    >>> [round(float(sgd.papers.several_inputs.exit_law(n, 400)), 3) for n in (1, 2, 3)]
    [0.0, 1.498, 6.667]
    """
    n = checks.integer("exponent", exponent, 1, 3)
    d = np.asarray(dimension, dtype=np.float64)
    c = checks.number("lr", lr, minimum=0.0)
    if c >= (np.inf, 1 / 2, 1 / 5)[n - 1]:
        raise checks.reject(
            "lr",
            lr,
            f"noise keeps m at zero. Use a rate below {1 / 2 if n == 2 else 1 / 5:g}.",
        )
    if n == 1:
        return 0.0 * d
    return (
        np.log(d) / (4 * (1 - 2 * c))
        if n == 2
        else np.sqrt(d) / 3 * (-math.log1p(-5 * c) / (5 * c) if c else 1.0)
    )


def positional_growth(omega: ArrayLike, encoding: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Growth rates of the overlaps with w* (content) and pos (position) from zero, at lr = 0.

    Parameters
    ----------
    omega : float or array
        Share of the target that depends on the position.
    encoding : float, default 1.0
        Size c0 of the positional encoding.

    Returns
    -------
    content : array
        Growth rate 0.2205022 (1 - omega) of the overlap with w*.
    position : array
        Growth rate c0^2 (-0.1332601 + 0.1533972 omega) of the overlap with pos.

    Notes
    -----
    The linear term of the drift of ``sgd.models.positional_semantic`` on the sphere at m = e = 0,
    for its contrast 0.75^2, by a trapezoidal rule to the digits shown.

    Examples
    --------
    >>> content, position = sgd.papers.several_inputs.positional_growth(0.9)
    >>> print(f"{content:.4f} {position:.4f}")
    0.0221 0.0048
    """
    omega, c0 = np.asarray(omega, dtype=np.float64), checks.number("encoding", encoding)
    return CONTENT * (1 - omega), c0**2 * (POSITION[0] + POSITION[1] * omega)


def positional_crossings(encoding: float = 1.0) -> tuple[float, float]:
    """Shares omega above which position can be learned, and is learned faster than content.

    Parameters
    ----------
    encoding : float, default 1.0
        Size c0 of the positional encoding.

    Returns
    -------
    unstable : float
        Share at which the growth rate of the overlap with pos is zero, for any c0.
    faster : float
        Share at which it equals the growth rate of the overlap with w*.

    See Also
    --------
    positional_growth : the two rates.

    Examples
    --------
    >>> ["%.6f" % omega for omega in sgd.papers.several_inputs.positional_crossings(2.0)]
    ['0.868726', '0.903430']
    """
    squared = checks.number("encoding", encoding) ** 2
    return -POSITION[0] / POSITION[1], (CONTENT - squared * POSITION[0]) / (
        CONTENT + squared * POSITION[1]
    )


def reward_drift(
    m: RealArray, Q: RealArray, tokens: RealArray, reward: RealArray, penalty: RealArray
) -> tuple[RealArray, RealArray]:
    """Drift of the overlaps of the RL perceptron, which is rewarded for whole episodes, at lr = 1.

    Parameters
    ----------
    m : float or array
        Overlap with the teacher, w.w*.
    Q : float or array
        Squared norm of w.
    tokens : int or array
        Number T of decisions per episode.
    reward : float or array
        Step e1 towards the student's decisions where all T are right.
    penalty : float or array
        Step e2 away from the student's decisions where any is wrong.

    Returns
    -------
    dm : float or array
        Derivative dm/d alpha = u - e2 rho sqrt(2/pi), with
        u = (e1 + e2) (1 + rho)/sqrt(2 pi) (1 - th/pi)^(T-1), rho = m/sqrt(Q), th = acos(rho).
    dQ : float or array
        Derivative dQ/d alpha = 2 sqrt(Q) (u - e2 sqrt(2/pi))
        + [(e1^2 - e2^2) (1 - th/pi)^T + e2^2]/T.

    Notes
    -----
    A sample moves w along (1/T) sum_l sign(w.x_l) x_l, times e1 or -e2. Source: Patel, Lee,
    Sarao Mannelli, Goldt and Saxe, "RL perceptron" (2025).

    Examples
    --------
    >>> ["%.4f" % rate for rate in sgd.papers.several_inputs.reward_drift(0.2, 1.0, 3, 1.0, 0.2)]
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
    """Overlaps m and Q of the RL perceptron at the save points alpha, from a row of norm 1.

    Parameters
    ----------
    alpha : array
        Samples/d, increasing, from 0 or more.
    rho : float or array, default 0.2
        Initial cosine of w and w*.
    tokens : int or array, default 3
        Number T of decisions per episode.
    reward : float or array, default 1.0
        Step e1 after an episode without a mistake.
    penalty : float or array, default 0.2
        Step e2 after an episode with a mistake.

    Returns
    -------
    m : array
        Overlap with the teacher. The shape is that of the broadcast arguments, with alpha as the
        last axis.
    Q : array
        Squared norm, of the same shape.

    Raises
    ------
    ValueError
        If alpha does not increase, or the equation could not be solved.

    See Also
    --------
    reward_drift : the right-hand side.

    Examples
    --------
    The error of a decision after five episodes per dimension:

    >>> m, Q = sgd.papers.several_inputs.reward_path([5.0])
    >>> print(f"{np.arccos(m[0] / np.sqrt(Q[0])) / np.pi:.8f}")
    0.25004350
    """
    from scipy.integrate import solve_ivp

    save_points = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if save_points.ndim != 1 or save_points[0] < 0 or np.any(np.diff(save_points) <= 0):
        raise checks.reject("alpha", alpha, "give increasing numbers, 0 or more.")
    cosine, T, e1, e2 = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (rho, tokens, reward, penalty))
    )

    def right_hand(_: float, y: np.ndarray) -> np.ndarray:
        m, Q = y.reshape(2, -1)
        return np.concatenate(reward_drift(m, Q, T.ravel(), e1.ravel(), e2.ravel()))

    initial_state = np.concatenate([cosine.ravel(), np.ones(cosine.size)])
    solution = solve_ivp(
        right_hand,
        (0.0, max(save_points[-1], 1e-9)),
        initial_state,
        t_eval=save_points,
        method="DOP853",
        rtol=1e-9,
        atol=1e-11,
    )
    if not solution.success:
        raise ValueError(f"alpha = {save_points[-1]:g}: {solution.message}")
    m, Q = solution.y.reshape(2, *cosine.shape, len(save_points))
    return m, Q
