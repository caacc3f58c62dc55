"""Test statistics of the claims: the mean square and the largest of standardised deviations.

Points that share their runs are correlated. The sum of z^2 has the law of sum_i l_i chi2_1 (over
chi2_f/f where the errors come from f + 1 runs), where l_i are the eigenvalues of the correlation
matrix R of the points. Its tail is computed by the saddlepoint approximation (Lugannani and Rice
1980; Kuonen 1999, Biometrika 86), which is accurate to a few percent in the far tail. Matching two
moments (Box 1954) is wrong by factors of ten there. If R is unknown, the worst case is assumed:
fully correlated points. The largest |z| (Bonferroni) detects single outliers. Each of the two tests
has half of the rate of false alarms. Errors are taken as normal: means of a few runs with heavy
tails are not, and need more runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


class DeviationStatistic(NamedTuple):
    """The larger of rms z and max |z|, each divided by its threshold.

    If all points agree with their expected values, the statistic exceeds 1 at most at the rate of
    false alarms.

    Attributes
    ----------
    spectrum
        Eigenvalues of the correlation matrix of the points.
    axes
        Eigenvectors of the correlation matrix, or None if any orthonormal basis will do.
    points
        Number of points.
    free
        Degrees of freedom of the standard errors.
    rms, largest
        Thresholds of rms z and of max |z|.
    """

    spectrum: np.ndarray
    axes: np.ndarray | None
    points: int
    free: float
    rms: float
    largest: float

    def value(self, z: np.ndarray) -> float:
        """The statistic of absolute deviations in standard errors."""
        return float(max(root_mean_square(z) / self.rms, np.max(z) / self.largest))

    def power(self, z: np.ndarray) -> float:
        """Lower bound on the probability of a value above 1 if the mean deviations are ``z``."""
        if not np.any(z):
            return 0.0
        if self.axes is not None:
            shifts = (z @ self.axes) ** 2
        elif len(self.spectrum) == len(z):
            shifts = z**2
        else:
            shifts = np.array([np.sum(z**2)])
        threshold = self.points * self.rms**2
        power_of_sum = weighted_chi2_tail(threshold, self.spectrum, shifts, self.free)
        # The tail of a noncentral t at its threshold, by a normal approximation that is accurate to
        # a percent (Abramowitz and Stegun 26.7.10).
        shrinkage, extra_variance = 1.0, 0.0
        if not math.isinf(self.free):
            shrinkage = 1 - 1 / (4 * self.free)
            extra_variance = self.largest**2 / (2 * self.free)
        score = (np.max(z) - shrinkage * self.largest) / math.sqrt(1 + extra_variance)
        return max(power_of_sum, float(stats.norm.cdf(score)))

    def describe(self, deviations: np.ndarray, excess: np.ndarray) -> str:
        """Describe deviations in standard errors, and their excess over the tolerance.

        The excess is what the test judges.
        """
        has_tolerance = np.any(excess != deviations)
        if self.points == 1:
            beyond = f", {excess[0]:.2f} beyond the tolerance" if has_tolerance else ""
            return (
                f"deviation of {deviations[0]:.2f} standard errors{beyond} "
                f"(at most {self.largest:.2f}), divided by its threshold"
            )
        beyond = ""
        if has_tolerance:
            beyond = (
                f", {root_mean_square(excess):.2f} and {np.max(excess):.2f} beyond the tolerance"
            )
        return (
            f"{self.points} points deviate by rms {root_mean_square(deviations):.2f} and at most "
            f"{np.max(deviations):.2f} standard errors{beyond} (at most {self.rms:.2f} and "
            f"{self.largest:.2f}); the larger, divided by its threshold"
        )


def root_mean_square(z: np.ndarray) -> float:
    return math.sqrt(float(np.mean(z**2)))


def deviation_statistic(
    points: int, free: float, correlation: ArrayLike | None, rate: float
) -> DeviationStatistic:
    """The statistic of a number of points with its thresholds for a rate of false alarms.

    ``free`` is the number of degrees of freedom of the standard errors. ``correlation`` is the
    correlation matrix of the points, "independent", or None for the worst case.
    """
    axes = None
    if isinstance(correlation, str):
        if correlation != "independent":
            raise ValueError(
                f"correlation = {correlation!r}: unknown. Use a matrix, 'independent' or None."
            )
        spectrum = np.ones(points)
    elif correlation is None:
        spectrum = np.array([float(points)])
    else:
        R = np.asarray(correlation, dtype=np.float64)
        if R.shape != (points, points):
            raise ValueError(
                f"correlation has shape {R.shape}: expected ({points}, {points}). "
                "Use one row and one column per point."
            )
        spectrum, axes = np.linalg.eigh(R)
        # A matrix that is estimated from few runs has many zero eigenvalues, up to rounding.
        spectrum = np.maximum(spectrum, 0.0)
    if points == 1:  # both tests are the same, which has the whole rate
        limit = quantile(rate / 2, free)
        return DeviationStatistic(np.ones(1), None, 1, free, limit, limit)
    rms = math.sqrt(weighted_chi2_quantile(rate / 2, spectrum, free) / points)
    largest = quantile(rate / 4 / points, free)
    return DeviationStatistic(spectrum, axes, points, free, rms, largest)


def weighted_chi2_quantile(rate: float, spectrum: np.ndarray, free: float) -> float:
    """Quantile of sum_i l_i chi2_1/(chi2_free/free) that is exceeded with probability ``rate``."""
    no_shifts = np.zeros(len(spectrum))

    def excess(log_t: float) -> float:
        tail = weighted_chi2_tail(math.exp(log_t), spectrum, no_shifts, free)
        return math.log(max(tail, 1e-300)) - math.log(rate)

    low = math.log(float(np.sum(spectrum))) + 0.01
    high = low + 1
    while excess(high) > 0:
        high += 2
    return math.exp(float(np.asarray(optimize.brentq(excess, low, high, xtol=1e-8))))


def weighted_chi2_tail(t: float, spectrum: np.ndarray, shifts: np.ndarray, free: float) -> float:
    """P[sum_i (sqrt(l_i) g_i + sqrt(b_i))^2 > t chi2_free/free] by the saddlepoint approximation.

    The g_i are independent standard normals, ``spectrum`` has the l_i and ``shifts`` the b_i.
    """
    f = free if math.isfinite(free) else 1e12

    def cumulant(s: float, order: int) -> float:
        """Derivative of the cumulant generating function of the difference of both sides."""
        u, v = 1 - 2 * s * spectrum, 1 + 2 * s * t / f
        if order == 0:
            chi2_term = 0.5 * f * math.log1p(2 * s * t / f)
            return float(np.sum(-0.5 * np.log(u) + shifts * s / u) - chi2_term)
        if order == 1:
            return float(np.sum(spectrum / u + shifts / u**2) - t / v)
        second = np.sum(2 * spectrum**2 / u**2 + 4 * shifts * spectrum / u**3)
        return float(second + 2 * t**2 / f / v**2)

    edge, floor = 0.5 / float(spectrum.max()), -0.5 * f / t
    low, high = -edge, edge * (1 - 1e-12)
    while cumulant(max(low, floor * (1 - 1e-12)), 1) > 0:
        if low < floor or low < -1e15 * edge:
            return 1.0  # the sum cannot be smaller
        low *= 4
    bracket = max(low, floor * (1 - 1e-12)), high
    saddle = optimize.brentq(lambda s: cumulant(s, 1), *bracket, xtol=1e-14 * edge)
    s = float(np.asarray(saddle))
    w = math.copysign(math.sqrt(max(-2 * cumulant(s, 0), 0.0)), s)
    if abs(w) < 1e-3:  # at the mean the formula is 0/0, and the probability is near one half
        return 0.5
    v = s * math.sqrt(cumulant(s, 2))
    return float(stats.norm.sf(w + math.log(v / w) / w))


def quantile(rate: float, free: float) -> float:
    """One-sided quantile of a normal number, or of Student's t with ``free`` degrees of freedom."""
    return float(stats.norm.isf(rate) if math.isinf(free) else stats.t.isf(rate, free))


def smallest_detectable(power: Callable[[float], float], wanted: float) -> float:
    """Smallest multiple of a scale that is detected with probability ``wanted``."""
    high = 1.0
    while power(high) < wanted:
        high *= 2
        if high > 1e6:
            return math.inf
    low = high
    while power(low) >= wanted:
        low /= 2
        if low < 1e-9:
            return low
    root = optimize.brentq(lambda f: power(f) - wanted, low, high, xtol=1e-6 * high)
    return float(np.asarray(root))
