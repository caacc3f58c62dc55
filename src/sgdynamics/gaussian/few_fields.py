"""Expectations of any loss or rule of few fields, on grids: nothing is sampled, and the error is that of a coarser grid.

Fields and draws that are functions of up to three normals go on a trapezoidal grid, which is exact beyond every power of its spacing for
smooth functions (a Gauss-Hermite rule of as many points is not: its nodes are sparse where the function bends). A rule that jumps where a
field is 0, of one row and one signal, goes on circles about the origin of their plane, cut at those zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.gaussian.expectation import Moments, Overlaps, Rule
from sgdynamics.gaussian.nodes import gauss_legendre
from sgdynamics.gaussian.sampled import Sampled, columns
from sgdynamics.problems.problem import Structure

MOST_NORMALS = 3
REACH = 8.5  # standard deviations: beyond, x^6 times the density is below 1e-10
RADII = 48
ROUNDING = 1e-14
FINEST = 8  # points in a standard deviation


def normals_of(structure: Structure) -> int:
    """How many normals the fields and the draws that are read are functions of."""
    sample = structure.sample
    return columns(structure)[0] + (sample.free if structure.loss.noisy or callable(sample.means) else 0)


def on_circles(structure: Structure) -> bool:
    """Whether the fields are a row and a signal, of centred inputs, that jump at 0."""
    plain = structure.sample.tokens is None and structure.sample.centred
    return plain and structure.kinks == (0.0,) and structure.fields == 2 and normals_of(structure) == 2


def few_fields(structure: Structure) -> bool:
    """Whether a grid does: few normals, and no kink but where the circles are cut."""
    return (structure.loss.smooth and normals_of(structure) <= MOST_NORMALS) or on_circles(structure)


@lru_cache(maxsize=16)
def _trapezoids(dimensions: int, per_deviation: int) -> tuple[np.ndarray, np.ndarray]:
    """A grid of standard normals (n, dimensions) and its weights, without corners that weigh nothing."""
    half = round(REACH * per_deviation)
    line = np.arange(-half, half + 1) / per_deviation
    grid = np.stack(np.meshgrid(*[line] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
    grid = grid[np.sum(grid**2, axis=1) <= REACH**2]
    weights = np.exp(-0.5 * np.sum(grid**2, axis=1))
    return grid, weights / weights.sum()


@lru_cache(maxsize=4)
def _circles(radii: int) -> tuple[np.ndarray, np.ndarray]:
    """Radii of circles in the plane as pairs of points that span them, (n, 4), and their weights."""
    nodes, weights = gauss_legendre(radii)
    r = REACH * nodes
    density = REACH * weights * r * np.exp(-(r**2) / 2)
    pairs = np.zeros((radii, 4))
    pairs[:, 0] = pairs[:, 3] = r
    return pairs, density / density.sum()


@dataclass(frozen=True)
class FewFields(Sampled):
    """A grid over all normals, or circles in the plane of one row and one signal."""

    @property
    def drift_sampled(self) -> bool:
        return False

    def sampled(self, flow: bool) -> bool:
        return False

    def finer(self, rule: Rule, largest: float) -> Rule | None:
        return replace(rule, per_deviation=2 * rule.per_deviation) if 2 * rule.per_deviation <= FINEST and not self.circles else None

    @property
    def circles(self) -> bool:
        return on_circles(self.structure)

    def nodes(self, rule: Rule, flow: bool) -> dict[str, np.ndarray]:
        grid, weights = _circles(RADII) if self.circles else _trapezoids(normals_of(self.structure), rule.per_deviation)
        return self._with_draws(grid[None], weights[None])

    def _with_draws(self, grid: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Nodes with zeros for draws that are not read."""
        size, draws = columns(self.structure)
        empty = np.zeros((*grid.shape[:-1], (2 if self.circles else 1) * size + draws - grid.shape[-1]))
        return {"points": np.concatenate([grid, empty], axis=-1), "weights": weights}

    def risk_nodes(self, rule: Rule, *, quick: bool = True) -> dict[str, np.ndarray]:
        return self.nodes(rule, flow=True)

    def risk(self, rule: Rule, nodes: dict[str, Any], parameters: Any, overlaps: Overlaps, head: Any) -> Any:
        return self.moments(rule, nodes, parameters, overlaps, head, flow=True).risk

    def search_nodes(self, rule: Rule, flow: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.nodes(rule, flow), None

    def error(self, rule: Rule, nodes: dict[str, Any], parameters: Any, overlaps: Overlaps, head: Any) -> Any:
        """The largest change of the moments, relative to their own size, on a grid of half as many points a standard deviation."""
        coarser = replace(rule, per_deviation=rule.per_deviation // 2)
        nodes_of = self._with_draws(*_circles(RADII // 2)) if self.circles else self._at(coarser)
        fine, rough = (self.moments(rule, one, parameters, overlaps, head) for one in (nodes, nodes_of))
        worst = _apart(fine, rough)
        # halving the spacing of a trapezoidal rule at least squares its error
        return worst if self.circles else jnp.maximum(worst**2, ROUNDING)

    def _at(self, rule: Rule) -> dict[str, np.ndarray]:
        return {name: value[0] for name, value in self.nodes(rule, False).items()}


def _apart(fine: Moments, rough: Moments) -> Any:
    """The largest change of any moment, relative to its largest entry."""
    pairs = zip(jax.tree.leaves(fine), jax.tree.leaves(rough), strict=True)
    shares = [jnp.max(jnp.abs(one - other)) / jnp.maximum(jnp.max(jnp.abs(one)), 1e-12) for one, other in pairs if one.size]
    return jnp.max(jnp.nan_to_num(jnp.stack(shares)))
