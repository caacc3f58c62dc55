"""Expectations of a loss whose label is the largest of two or three orthonormal signals.

The label jumps where two signals tie, so no grid across the ties converges. The differences of the
signals have a grid of their own, cut at the ties: a line for two classes, and for three the plane
in polar coordinates, with Gauss-Legendre nodes in each of the three sectors between the ties and
along the radius. Given the differences, the fields of the students are Gaussian and the loss is
smooth in them: they have the trapezoidal grid of `FewFields`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sgdynamics.expectations.field_grids import FURTHER, FewFields, trapezoids
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import gauss_legendre, product_rule
from sgdynamics.problems.problem import Structure

REACH = 6.5  # radius in standard deviations: the mass beyond is 1e-9
RADII, ANGLES = 16, 12  # nodes along the radius, and in each sector
START_PER_DEVIATION = 2  # points per standard deviation of the students' fields
FINEST_OF_WIDTH = {1: 16, 2: 4}
# Variance of a field up to which two points per standard deviation resolve a tanh unit, whose pole
# is pi/2 standard deviations of its field away: the error is exp(-2 pi^2/sqrt(variance)) < 4e-4 of
# the part that bends, and far smaller given the signals.
SMALL_VARIANCE = 6.0


def has_class_grid(structure: Structure) -> bool:
    """Whether the loss declares `classes` and its dependence, for few classes and units."""
    function = getattr(structure.loss, "function", None)
    return hasattr(function, "classes") and structure.dependence is not None


@lru_cache(maxsize=8)
def class_points(classes: int, radii: int, angles: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the normal differences of the signals (n, classes - 1), and their weights."""
    nodes, weights = gauss_legendre(radii)
    radius = REACH * nodes
    if classes == 2:
        weights = REACH * weights * np.exp(-(radius**2) / 2)
        points = np.concatenate([radius, -radius])[:, None]
        weights = np.concatenate([weights, weights])
        return points, weights / weights.sum()
    weights = REACH * weights * radius * np.exp(-(radius**2) / 2)
    share, angle_weights = gauss_legendre(angles)
    # the ties of three signals are the rays at 90, 210 and 330 degrees
    sectors = np.pi / 2 + 2 * np.pi / 3 * (np.arange(3)[:, None] + share)
    sectors = sectors.reshape(-1)
    points = radius[:, None, None] * np.stack([np.cos(sectors), np.sin(sectors)], axis=-1)
    joint = np.outer(weights, np.tile(angle_weights, 3))
    return points.reshape(-1, 2), joint.reshape(-1) / joint.sum()


@dataclass(frozen=True)
class ClassGrids(FewFields):
    """Moments on a grid that is cut where two of the signals tie."""

    def quadrature(self, largest: float) -> Quadrature:
        return Quadrature(per_deviation=START_PER_DEVIATION)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        doubled = 2 * quadrature.per_deviation
        if largest < SMALL_VARIANCE or doubled > FINEST_OF_WIDTH[self.structure.width]:
            return None
        return replace(quadrature, per_deviation=doubled)

    def fine_enough(
        self, quadrature: Quadrature, error: Callable[[Quadrature], float]
    ) -> Quadrature:
        return quadrature

    def _build_grid(
        self, per_deviation: int, reach_factor: float = 1.0, shift: float = 0.0
    ) -> dict[str, np.ndarray]:
        classes = self.structure.loss.function.classes
        # the second grid of an error estimate also has fewer nodes in the sectors
        radii, angles = (RADII, ANGLES) if shift == 0.0 else (RADII - 2, ANGLES - 2)
        signals = class_points(classes, radii, angles)
        fields = trapezoids(self.structure.width, per_deviation, reach_factor, shift)
        points, weights = product_rule(np, signals, fields)
        none = {"few": np.zeros((1, 0)), "few_weights": np.ones(1)}
        none |= {"more": np.zeros((1, 0)), "more_weights": np.ones(1)}
        return {"points": points, "weights": weights, **none}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        per_deviation = quadrature.per_deviation
        nodes = self._build_grid(per_deviation)
        second = self._build_grid(per_deviation, FURTHER, 0.5)
        between = {f"between_{name}": second[name] for name in ("points", "weights")}
        return {name: value[None] for name, value in (nodes | between).items()}
