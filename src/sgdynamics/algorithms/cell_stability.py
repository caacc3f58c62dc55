"""Stability of SGD whose epochs are divided into cells (`algorithms.epochs`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule

# Factor between the numbers of cells at the finest and the coarsest level of the extrapolation.
LEVELS = 4
# Share of the distance to the stability threshold that the coarsest level may use.
MARGIN = 0.15
# Largest number of cells per epoch.
MOST_CELLS = 1 << 30
ITERATIONS = 10_000


def smallest_cells(
    is_enough: Callable[[int], bool], lr: float | Schedule, first: int = LEVELS
) -> int:
    """Return the smallest multiple of 4 that is enough cells, at least ``first``.

    ``is_enough`` must be monotone: all numbers of cells above a threshold are enough. ``lr`` is the
    learning rate that the error message shows.
    """
    if is_enough(first):
        return first
    low, high = first, 2 * first
    while not is_enough(high):
        if high > MOST_CELLS:
            fix = (
                "this is too close to the stability threshold, where more than "
                f"{MOST_CELLS} cells per epoch would be needed. Use a smaller lr."
            )
            raise checks.reject("lr", lr, fix)
        low, high = high, 2 * high
    while high - low > LEVELS:
        middle = low + (high - low) // (2 * LEVELS) * LEVELS
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class CellStability:
    """The stability of SGD on a fixed data set with a finite number of cells, at d -> infinity.

    An epoch is divided into m cells, and all visits of a cell use the weights at its start. This is
    a gradient step of length tau = rate alpha/m on the samples of the cell, with
    alpha = samples_per_dimension.
    Along an eigenvector of the sample covariance with eigenvalue x, the mean error of a linear
    student contracts by 1 - tau (x + decay); the choice of the samples adds noise. The second
    moments are stable if and only if

        load(m) = rate (1 - 1/m) int x^2/((x + decay)(2 - tau (x + decay))) dmu(x) < 1.

    Here mu is the spectral density of the sample covariance. In the first epoch, where samples are
    fresh, mu is the spectrum of the covariance and the factor 1 - 1/m is missing. As m -> infinity
    without decay the load is rate trace/2, as in Paquette et al. (2021), "SGD in the large".

    Attributes
    ----------
    rate : float
        lr/batch times the curvature of the loss.
    samples_per_dimension : float
        Samples of the data set over d.
    eigenvalues : ndarray
        Eigenvalues of the covariance.
    fractions : ndarray
        Fraction of the dimensions with each eigenvalue.
    decay : float
        Weight decay over the curvature of the loss.
    is_linear : bool
        Whether the student is linear with the squared loss, for which the load is exact. Otherwise
        only the step along the largest eigenvalue limits the cells.
    """

    rate: float
    samples_per_dimension: float
    eigenvalues: np.ndarray
    fractions: np.ndarray
    decay: float = 0.0
    is_linear: bool = True

    @property
    def eigenvalue_bound(self) -> float:
        """Upper bound on the eigenvalues of the sample covariance (Gordon's inequality).

        With the eigenvalues l of the covariance it is (sqrt(max l) + sqrt(mean l/alpha))^2.
        """
        mean = float(self.eigenvalues @ self.fractions) / self.samples_per_dimension
        return (math.sqrt(float(np.max(self.eigenvalues))) + math.sqrt(mean)) ** 2

    def resolvent(self, z: float) -> float:
        """Return (1/d) tr (z - S)^-1 of the sample covariance S; infinite inside of its spectrum.

        By Silverstein's equation (z - S)^-1 is equivalent to (z - s Sigma)^-1 with
        s = 1/(1 - (1/n) tr Sigma (z - s Sigma)^-1). The iteration from s = 1 is monotone.
        """
        values, shares, s = self.eigenvalues, self.fractions, 1.0
        for _ in range(ITERATIONS):
            gaps = z - s * values
            if z > 0 and np.min(gaps) <= 0:
                return math.inf
            denominator = 1 - float(np.sum(shares * values / gaps)) / self.samples_per_dimension
            if denominator <= 0:
                return math.inf
            s, previous = 1 / denominator, s
            if abs(s - previous) <= 1e-12 * s:
                return float(np.sum(shares / (z - s * values)))
        return math.inf  # the iteration is this slow only at the edge of the spectrum

    def load(self, cells: float) -> float:
        """Return the load with this many cells per epoch; cells = inf is SGD itself."""
        rate, decay, values, shares = self.rate, self.decay, self.eigenvalues, self.fractions
        tau = rate * self.samples_per_dimension / cells
        contraction = 2 - tau * (values + decay)
        if np.min(contraction) <= 0:
            return math.inf
        fresh = rate * float(np.sum(shares * values**2 / ((values + decay) * contraction)))
        # x^2/((x + w)(z - x)) = (w^2/(x + w) + z^2/(z - x))/(z + w) - 1 with z = 2/tau - w
        below = -(decay**2) * self.resolvent(-decay) if decay > 0 else 0.0
        if tau == 0:
            return max(fresh, rate / 2 * (float(values @ shares) - decay + below))
        z = 2 / tau - decay
        above = z**2 * self.resolvent(z) if z > 0 else math.inf
        repeated = rate * (1 - 1 / cells) / tau * ((below + above) / (z + decay) - 1)
        return max(fresh, repeated) if cells > 1 else (math.inf if math.isinf(above) else fresh)

    def allows_cells(self, cells: int) -> bool:
        """Whether this number of cells per epoch is allowed.

        It is not allowed if the dynamics with these cells diverges although SGD itself does not.
        All numbers are allowed if SGD itself diverges, or if the load is unknown.
        """
        if not self.is_linear or self.load(math.inf) >= 1:
            return True
        return self.load(cells) < 1

    def has_margin(self, cells: int) -> bool:
        """Whether an extrapolation in 1/cells may include this many cells.

        The mean must not oscillate, and the load must be close to that of SGD itself.
        """
        tau = self.rate * self.samples_per_dimension / cells
        if tau * (self.eigenvalue_bound + self.decay) > 1:
            return False
        limit = self.load(math.inf) if self.is_linear else 1.0
        return limit >= 1 or self.load(cells) <= limit + MARGIN * (1 - limit)
