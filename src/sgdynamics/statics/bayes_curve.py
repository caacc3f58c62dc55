"""Bayes-optimal learning of one signal: all fixed points at once, without iteration.

The overlap q of the posterior mean fields with the signal obeys qh = alpha J(q), and the prior

    V = rho - q = sum_b l_b P_b/(1 + (l_b/phi_b) P_b qh)

gives qh as a function of q. Therefore alpha(q) = qh(q)/J(q) is explicit: its rising branches are
the stable fixed points, its extrema the spinodals, and its limit at q = 0 the threshold of weak
recovery. J is interpolated by Chebyshev polynomials of s = sqrt(V/rho), in which it is analytic
also for laws with kinks and jumps, whose J diverges as 1/s, and without noise, as 1/s^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.polynomial import chebyshev

from sgdynamics.base.progress import warn
from sgdynamics.base.roots import find_minimum, find_root
from sgdynamics.statics.channel import Channel, Information, channel_of
from sgdynamics.statics.setup import Setup

# Numbers of Chebyshev nodes that are tried in turn, and the relative error that is enough. Each
# set of nodes contains the one before.
NODE_COUNTS = (32, 96)
ENOUGH = 1e-9
# Points at which the signs of alpha(q) - alpha are compared, clustered at both ends.
GRID_POINTS = 4001
# Number of curves that are stored.
MOST_CURVES = 16
# Overlaps q/rho below this value count as 0.
SMALLEST = 1e-5


class FixedPoint(NamedTuple):
    """One state: its overlap q and its free entropy."""

    q: float
    free_entropy: float


@dataclass
class BayesCurve:
    """J, Psi and alpha as functions of s = sqrt(1 - q/rho), for one signal.

    Attributes
    ----------
    setup : Setup
        The problem.
    channel : Channel
        Its channel.
    error : float
        Relative error of J, from the tail of the series and from a second quadrature.
    """

    setup: Setup
    channel: Channel
    error: float = 0.0

    def __post_init__(self) -> None:
        self.rho = float(self.setup.rho[0, 0])
        self.signal_gram = self.setup.gram[:, 0, 0]
        self.power = 2 if self.channel.end > 0 else int(self.channel.jumps)
        tail = np.inf
        moments: list[Information] = []
        for count in NODE_COUNTS:
            u = chebyshev.chebpts1(count)
            s = (1 + u) / 2
            previous = moments
            moments = [
                previous[index // 3]
                if previous and index % 3 == 1
                else self.channel.information(self.rho * (1 - s[index] ** 2))
                for index in range(count)
            ]
            J = np.array([moment.J for moment in moments]) * self._weight(s)
            psi = np.array([moment.psi for moment in moments]) + self.channel.end * np.log(s)
            self.J_series = chebyshev.chebfit(u, J, count - 1)
            self.psi_series = chebyshev.chebfit(u, psi, count - 1)
            tail = np.max(np.abs(self.J_series[-count // 8 :])) / np.max(np.abs(J))
            if tail < ENOUGH:
                break
        checked = [
            (
                self.channel.information(self.rho * q),
                self.channel.information(self.rho * q, "coarse"),
            )
            for q in (0.1, 0.5, 0.95)
        ]
        difference = max(abs(coarse.J / fine.J - 1) for fine, coarse in checked)
        self.error = float(max(tail, difference))
        if self.error > 1e-5:
            warn(
                f"error_quadrature = {self.error:.1e}: the label law varies faster than the "
                "quadrature resolves. Declare its kinks and jumps in kinks=."
            )
        theta = np.linspace(0.0, np.pi, GRID_POINTS)[1:-1]
        s = 0.5 * (1 + np.cos(theta))  # from q = 0 up to q = rho
        self.grid = s[1 - s**2 > SMALLEST]
        self.alphas = self.alpha(self.grid)

    def J(self, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return J = E g^2."""
        s = np.asarray(s)
        return chebyshev.chebval(2 * s - 1, self.J_series) / self._weight(s)

    def _weight(self, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the factor that removes the growth of J for s -> 0."""
        if self.channel.offset > 0:
            return (s**2 + self.channel.offset) / (1 + self.channel.offset)
        return s**self.power

    def psi(self, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return Psi = E log Z."""
        s = np.asarray(s)
        return chebyshev.chebval(2 * s - 1, self.psi_series) - self.channel.end * np.log(s)

    def conjugate(self, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return qh at which the prior has V = rho s^2, by bisection in log qh."""
        s = np.asarray(s, np.float64)
        weights = self.setup.eigenvalues * self.signal_gram
        rates = weights / self.setup.fractions
        if len(weights) == 1:
            return (1 / s**2 - 1) / rates[0]
        active = weights > 0
        weights, rates = weights[active], rates[active]
        # one block alone bounds qh from both sides
        low = np.log((1 / s**2 - 1) / rates.max()) - 1e-12
        high = np.log((1 / s**2 - 1) / rates.min()) + 1e-12
        for _ in range(60):
            middle = (low + high) / 2
            V = np.sum(weights / (1 + rates * np.exp(middle)[..., None]), axis=-1)
            is_low = self.rho * s**2 < V
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return np.exp((low + high) / 2)

    def alpha(self, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the samples per dimension at which s is a fixed point."""
        with np.errstate(divide="ignore"):
            return self.conjugate(s) / np.maximum(self.J(s), 1e-300)

    @property
    def end(self) -> float:
        """Samples per dimension at which q = rho becomes stable; infinite with noise."""
        if self.channel.end == 0.0:
            return np.inf
        return float(np.sum(self.setup.fractions[self.signal_gram > 0])) / self.channel.end

    def free_entropy(self, s: float, alpha: float) -> float:
        """Return Phi at a fixed point."""
        if s <= 0.0:
            return np.inf
        qh = float(self.conjugate(np.array([s]))[0]) if s < 1.0 else 0.0
        prior = self.setup.eigenvalues * self.signal_gram
        fractions = self.setup.fractions
        entropy = 0.5 * np.sum(prior * qh - fractions * np.log1p(prior / fractions * qh))
        psi = float(self.psi(np.array([min(s, 1.0)]))[0])
        return float(entropy + alpha * psi - 0.5 * self.rho * (1 - s**2) * qh)

    def fixed_points(self, alpha: float) -> tuple[FixedPoint, FixedPoint]:
        """Return the fixed point reached from q = 0+ and the one of largest free entropy."""
        stable = self._stable(alpha)
        points = [FixedPoint(self.rho * (1 - s**2), self.free_entropy(s, alpha)) for s in stable]
        best = max(points, key=lambda point: point.free_entropy)
        return points[0], best

    def _stable(self, alpha: float) -> list[float]:
        """Return s at all stable fixed points in order of increasing q."""
        if alpha == 0.0:
            return [1.0]
        above = self.alphas > alpha
        stable = []
        if above[0]:
            # q below the grid: 0 by symmetry, or proportional to alpha
            stable.append(float(np.sqrt(1 - self._smallest(alpha) / self.rho)))
        for index in np.flatnonzero(above[1:] & ~above[:-1]):
            stable.append(
                find_root(
                    lambda s: float(self.alpha(np.array([s]))[0]) - alpha,
                    self.grid[index + 1],
                    self.grid[index],
                    xtol=1e-15,
                )
            )
        if not above[-1]:
            stable.append(0.0 if self.channel.end > 0 else float(self.grid[-1]))
        elif self.end < alpha:
            stable.append(0.0)
        return stable

    def _smallest(self, alpha: float) -> float:
        """Return the fixed point below the grid, by iteration from q = 0."""
        weights = self.setup.eigenvalues * self.signal_gram
        rates, q = weights / self.setup.fractions, 0.0
        for _ in range(8):
            J = float(self.J(np.array([np.sqrt(1 - q / self.rho)]))[0])
            qh = alpha * J if J > 1e-8 else 0.0
            q = float(np.sum(weights * rates * qh / (1 + rates * qh)))
        return min(q, SMALLEST * self.rho)

    def spinodals(self) -> list[float]:
        """Return alpha at the local extrema of alpha(q), in order of q."""
        turns = np.diff(np.sign(np.diff(self.alphas)))
        extrema = []
        for index in np.flatnonzero(turns) + 1:
            if 1 - self.grid[index] ** 2 < 1e-3:
                continue
            sign = np.sign(turns[index - 1])
            minimum = find_minimum(
                lambda s, sign=sign: sign * float(self.alpha(np.array([s]))[0]),
                self.grid[index + 1],
                self.grid[index - 1],
                xtol=1e-12,
            )
            extrema.append(float(sign * minimum.value))
        return extrema


def bayes_curve(setup: Setup) -> BayesCurve:
    """The curve of a problem with one signal; those of the last problems are stored."""
    arrays = (setup.eigenvalues, setup.fractions, setup.gram)
    key = (setup.likelihood.key, *(np.asarray(array, np.float64).tobytes() for array in arrays))
    if key not in _curves:
        if len(_curves) >= MOST_CURVES:
            del _curves[next(iter(_curves))]
        _curves[key] = BayesCurve(setup, channel_of(setup.likelihood, float(setup.rho[0, 0])))
    return _curves[key]


_curves: dict[tuple[Any, ...], BayesCurve] = {}
