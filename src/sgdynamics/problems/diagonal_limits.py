"""Late limits of diagonal networks: the law under label noise, and the interpolating predictor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgdynamics.base.roots import find_root

# Nodes of the standard normal of the interpolator: the trapezoidal rule converges faster than any
# power for smooth functions, and small starts bend within a short interval.
NORMAL_NODES, LARGEST_NORMAL = 2001, 9.0
NEWTON_STEPS = 100


class LateLaw(NamedTuple):
    """The law of the weights a = u v after long training with label noise.

    Attributes
    ----------
    excess_risk : float
        E[(a - b)^2]/2.
    rate : float
        r = lr R/batch, where R is the mean squared residual.
    shapes : ndarray
        Shape of the Gamma law of abs(a) by teacher weight, 0 where a vanishes; its scale is r.
    means : ndarray
        Mean of a by teacher weight.
    is_zero : ndarray
        Whether a vanishes, by teacher weight.
    """

    excess_risk: float
    rate: float
    shapes: np.ndarray
    means: np.ndarray
    is_zero: np.ndarray


def solve_late_law(values: np.ndarray, shares: np.ndarray, noise: float, rate: float) -> LateLaw:
    """The late law for teacher weights with shares, at the learning rate per sample."""
    sizes = np.abs(values)

    def excess(r: float) -> float:
        """E[(a - b)^2] at r = lr R/batch."""
        errors = np.where(sizes > r / 2, r * sizes - r * r / 4, sizes**2)
        return float(shares @ errors)

    # noise + excess(r) - r/rate falls to -infinity: excess is bounded by E[b^2].
    def gap(r: float) -> float:
        return rate * (noise + excess(r)) - r

    largest = rate * (noise + float(shares @ sizes**2))
    if noise == 0 or gap(largest) >= 0:
        # Without noise R = 0 is the limit, as long as steps are stable.
        r = 0.0 if noise == 0 else largest
    else:
        r = find_root(gap, 0.0, largest, xtol=1e-300)
    is_zero = sizes <= r / 2
    means = np.where(is_zero, 0.0, np.sign(values) * (sizes - r / 2))
    shapes = np.where(is_zero, 0.0, sizes / r - 0.5 if r > 0 else np.inf)
    return LateLaw(excess(r) / 2, r, shapes, means, is_zero)


class Interpolator(NamedTuple):
    """The interpolating predictor of gradient flow in the limit d -> infinity.

    Attributes
    ----------
    excess_risk : float
        E[(a - b)^2]/2.
    l1_norm : float
        Mean size of a.
    squared_norm : float
        E[a^2].
    threshold : float
        gamma of the map a + gamma arcsinh(2 a/c) = x.
    """

    excess_risk: float
    l1_norm: float
    squared_norm: float
    threshold: float


def potential_map(x: np.ndarray, gamma: float, scale: float) -> np.ndarray:
    """The solution a of a + gamma arcsinh(2 a/scale) = x, to rounding.

    With a = (scale/2) sinh(theta) the left side is convex in theta > 0, so that Newton's method
    converges from the side where it exceeds x.
    """
    target = np.abs(x)
    # Each of the two terms alone is below the target.
    theta = np.minimum(np.arcsinh(2 * target / scale), target / gamma if gamma > 0 else np.inf)
    for _ in range(NEWTON_STEPS):
        value = 0.5 * scale * np.sinh(theta) + gamma * theta - target
        move = value / (0.5 * scale * np.cosh(theta) + gamma)
        theta = theta - move
        if np.all(np.abs(move) <= 1e-15 * (1 + theta)):
            break
    return np.sign(x) * 0.5 * scale * np.sinh(theta)


def solve_interpolator(
    values: np.ndarray, shares: np.ndarray, alpha: float, scale: float
) -> Interpolator:
    """The fixed point of E = E[(a - b)^2], a = P(b + sqrt(E/alpha) z), with E[P'] = alpha."""
    z = np.linspace(-LARGEST_NORMAL, LARGEST_NORMAL, NORMAL_NODES)
    weights = np.exp(-(z**2) / 2)
    joint = shares[:, None] * (weights / weights.sum())

    def predictor(excess: float) -> tuple[np.ndarray, float]:
        x = values[:, None] + np.sqrt(excess / alpha) * z

        def mean_slope(log_gamma: float) -> float:
            gamma = np.exp(log_gamma)
            a = potential_map(x, gamma, scale)
            return float(np.sum(joint / (1 + 2 * gamma / np.hypot(2 * a, scale)))) - alpha

        centre = np.log(scale)
        log_gamma = find_root(mean_slope, centre - 40, centre + 40, xtol=1e-14)
        return potential_map(x, np.exp(log_gamma), scale), np.exp(log_gamma)

    def gap(log_excess: float) -> float:
        excess = np.exp(log_excess)
        a, _ = predictor(excess)
        return float(np.log(np.sum(joint * (a - values[:, None]) ** 2))) - log_excess

    # The excess risk of the least L2 norm, (1 - alpha) E[b^2], bounds that of no learning.
    top = np.log(max(float(shares @ values**2), 1e-300))
    low = top
    while gap(low) < 0 and low > top - 60:
        low -= 1.0
    log_excess = low if low == top else find_root(gap, low, low + 1.0, xtol=1e-13)
    a, gamma = predictor(np.exp(log_excess))
    l1_norm, square = float(np.sum(joint * np.abs(a))), float(np.sum(joint * a**2))
    return Interpolator(0.5 * float(np.exp(log_excess)), l1_norm, square, float(gamma))
