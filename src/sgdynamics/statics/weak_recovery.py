"""`weak_recovery`: the number of samples from which message passing learns each direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.base.roots import find_root
from sgdynamics.base.support import require
from sgdynamics.problems.problem import Problem
from sgdynamics.statics.bayes import require_states
from sgdynamics.statics.bayes_states import BayesStates
from sgdynamics.statics.channel import Channel, channel_of
from sgdynamics.statics.channel_states import GridTooLargeError
from sgdynamics.statics.setup import Setup, setup_of

# Overlaps, relative to rho, from which derivatives at 0 are computed.
STEP = 1e-4
# Information E g^2 below this value counts as 0.
ZERO = 1e-7
# Thresholds are searched up to this many samples per dimension.
MOST_SAMPLES = 1e3
POWER_STEPS = 40


@dataclass(frozen=True)
class WeakRecovery:
    """The thresholds of weak recovery.

    Attributes
    ----------
    samples_per_dimension : ndarray
        Critical samples per dimension of each direction, in increasing order; 0 for a direction
        that labels reveal at any number of samples, infinity for one that they never reveal.
    directions : ndarray
        The directions as rows, unit vectors of coefficients of the signals.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="square")
    >>> round(float(sgd.weak_recovery(problem)), 4)
    0.5
    """

    samples_per_dimension: Float[np.ndarray, " k"]
    directions: Float[np.ndarray, "k k"]

    def __float__(self) -> float:
        """The samples per dimension from which some direction is learned."""
        return float(self.samples_per_dimension[0])


@float64
def weak_recovery(problem: Problem) -> WeakRecovery:
    """The samples per dimension from which approximate message passing learns each direction.

    Parameters
    ----------
    problem : Problem
        A problem whose labels have a law given at most three signals, as for ``bayes_optimal``.

    Returns
    -------
    WeakRecovery
        Critical samples per dimension and directions.

    Raises
    ------
    ValueError
        If the labels have no law given the signals, several signals have no noise, or a direction
        stays unknown beyond the reach of the quadrature.

    See Also
    --------
    information_exponent, generative_exponent, leap_complexity : the same question for one-pass SGD.

    Notes
    -----
    Directions with ``E[z | y] != 0`` are learned at any alpha. Others are unstable at overlap 0 if
    the largest eigenvalue of the linear map of matrices ::

        D -> alpha sum_b (l_b^2/phi_b) P_b E[G D G] P_b,
        G = V^-1 Cov(z | y, om) V^-1 - V^-1 (+ g g^T)

    exceeds 1, given the directions that are already learned at this alpha. For one signal and
    isotropic inputs ``1/alpha_c = E_y (E[z^2 | y] - 1)^2``. Thresholds above 1000 are given as
    infinity.
    Sources: Mondelli and Montanari, Found. Comput. Math. 19 (2019) 703; Barbier et al., PNAS 116
    (2019) 5451; Troiani et al. (2024) for several directions.

    Examples
    --------
    >>> phase = sgd.TeacherStudent(width=1, activation="abs")
    >>> sgd.weak_recovery(phase).samples_per_dimension.round(4)
    array([0.5])
    """
    checks.require_outside_jit("weak_recovery")
    require("weak_recovery", problem)
    setup = setup_of(problem)
    if setup.likelihood.kind == "clusters":
        return WeakRecovery(np.zeros(1), np.eye(1))
    if setup.directions == 1:
        channel = channel_of(setup.likelihood, float(setup.rho[0, 0]))
        return WeakRecovery(np.array([_single_threshold(setup, channel)]), np.eye(1))
    require_states(problem, setup)
    try:
        return _thresholds(BayesStates(setup))
    except GridTooLargeError:
        fix = (
            "after the first directions are learned, another one remains unknown, and the "
            "quadrature of the labels becomes too large before it is learned"
        )
        raise checks.reject("problem", problem.kind, fix) from None


def _single_threshold(setup: Setup, channel: Channel) -> float:
    """The threshold of one signal: 1/alpha_c = dJ/dq sum_b l_b^2 P_b^2/phi_b at q = 0."""
    rho = channel.rho
    J0, J1, J2 = (channel.information(share * STEP * rho).J for share in (0, 1, 2))
    if J0 * rho > ZERO:
        return 0.0
    slope = (4 * J1 - J2 - 3 * J0) / (2 * STEP * rho)
    gain = slope * float(np.sum((setup.eigenvalues * setup.gram[:, 0, 0]) ** 2 / setup.fractions))
    return 1.0 / gain if gain > 1.0 / MOST_SAMPLES else np.inf


def _thresholds(states: BayesStates) -> WeakRecovery:
    """The thresholds of several signals, one after the other."""
    k = len(states.rho)
    J = states.channel.information(np.zeros((k, k))).J
    values, vectors = np.linalg.eigh(J)
    is_revealed = values * np.max(np.abs(states.rho)) > ZERO
    learned_rows = vectors[:, is_revealed].T
    thresholds = [0.0] * len(learned_rows)
    while len(learned_rows) < k:
        last = thresholds[-1] if thresholds else 0.0
        threshold, new = _next_threshold(states, learned_rows, last)
        thresholds += [threshold] * len(new)
        learned_rows = np.concatenate([learned_rows, new])
    return WeakRecovery(np.array(thresholds), learned_rows)


def _next_threshold(
    states: BayesStates, learned_rows: Float[np.ndarray, "m k"], last: float
) -> tuple[float, Float[np.ndarray, "n k"]]:
    """The next threshold above the last one, and its directions; all others if it is infinite."""
    k = len(states.rho)
    other_space = np.eye(k) - learned_rows.T @ learned_rows

    def growth(alpha: float) -> tuple[float, np.ndarray]:
        return _growth(states, learned_rows, other_space, alpha)

    if len(learned_rows) == 0:
        rate, D = growth(1.0)  # the map is linear in alpha
        alpha = 1.0 / rate if rate > 1.0 / MOST_SAMPLES else np.inf
    else:
        low = max(last, 0.01)
        high = 2 * max(low, 0.5)
        while growth(high)[0] < 1.0 and high < MOST_SAMPLES:
            low, high = high, 2 * high
        if high >= MOST_SAMPLES:
            alpha, D = np.inf, other_space
        else:
            alpha = find_root(lambda value: growth(value)[0] - 1.0, low, high, xtol=1e-7)
            D = growth(alpha)[1]
    if not np.isfinite(alpha):
        D = other_space
    values, vectors = np.linalg.eigh(D)
    return alpha, vectors[:, values > 1e-3 * values.max()].T


def _growth(
    states: BayesStates, learned_rows: np.ndarray, other_space: np.ndarray, alpha: float
) -> tuple[float, np.ndarray]:
    """The factor per iteration by which overlaps in other directions grow, and their matrix D."""
    learned = learned_rows.T @ learned_rows
    q = np.zeros_like(states.rho)
    if len(learned_rows):
        q = states.iterate(1e-2 * learned @ states.rho @ learned, alpha, learned)

    def next_overlaps(matrix: np.ndarray) -> np.ndarray:
        overlaps = states.overlaps(alpha * states.channel.information(matrix).J)
        return other_space @ overlaps @ other_space

    start = next_overlaps(q)
    D = other_space @ states.rho @ other_space
    D /= np.linalg.norm(D)
    rate = 0.0
    for _ in range(POWER_STEPS):
        step = STEP * np.max(np.abs(states.rho)) * D
        image = (4 * next_overlaps(q + step) - next_overlaps(q + 2 * step) - 3 * start) / (
            2 * STEP * np.max(np.abs(states.rho))
        )
        before, rate = rate, float(np.linalg.norm(image))
        if rate < 1e-6:
            return 0.0, D
        D = image / rate
        if abs(rate - before) < 10 * states.channel.tolerance * rate:
            break
    return rate, (D + D.T) / 2
