"""Bounds of the controls, and the coordinates in which the search moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A control is at a bound if it is nearer to it than this share of its range.
BOUND_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Box:
    """Bounds and budgets of the controls.

    The search coordinate z of a control u is log u where `log` is true, and otherwise its relative
    position between the bounds, (u - low)/(high - low).

    Attributes
    ----------
    low, high : ndarray
        Bounds of the controls, (controls,).
    log : ndarray of bool
        Whether the coordinate of a control is its logarithm.
    budget : ndarray
        Prescribed mean of a control over alpha; NaN for a control without a budget.
    """

    low: np.ndarray
    high: np.ndarray
    log: np.ndarray
    budget: np.ndarray

    @property
    def has_budget(self) -> np.ndarray:
        """Whether the mean of a control is prescribed."""
        return np.isfinite(self.budget)

    @property
    def coordinate_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds in search coordinates."""
        # `np.where` evaluates both branches, so that the unused logarithms need positive arguments.
        low = np.where(self.log, np.log(np.where(self.log, self.low, 1.0)), 0.0)
        high = np.where(self.log, np.log(np.maximum(self.high, 1e-300)), 1.0)
        return low, high

    def values(self, z: np.ndarray) -> np.ndarray:
        """The controls at search coordinates z."""
        exponential = np.exp(np.where(self.log, z, 0.0))
        linear = self.low + (self.high - self.low) * np.where(self.log, 0.0, z)
        return np.where(self.log, exponential, linear)

    def coordinates(self, values: np.ndarray) -> np.ndarray:
        """The search coordinates of controls."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(np.where(self.log, values, 1.0))
            return np.where(self.log, logarithm, (values - self.low) / (self.high - self.low))

    def coordinate_gradient(self, gradient: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Convert a gradient with respect to the controls to search coordinates."""
        return gradient * np.where(self.log, values, self.high - self.low)

    def at_bounds(self, z: np.ndarray) -> np.ndarray:
        """-1 where a coordinate is at its lower bound, 1 at its upper bound, 0 in between."""
        low, high = self.coordinate_bounds
        tolerance = BOUND_TOLERANCE * (high - low)
        return np.where(z <= low + tolerance, -1, np.where(z >= high - tolerance, 1, 0))


def points_outward(sides: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Whether descent would leave the bounds; `sides` is the result of `Box.at_bounds`."""
    return ((sides < 0) & (gradient > 0)) | ((sides > 0) & (gradient < 0))
