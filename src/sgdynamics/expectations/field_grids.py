"""Expectations of any loss or rule of few fields, on grids: nothing is sampled, and a second grid between their points gives the error.

What a smooth loss reads (`problems.loss_dependence`)
goes on a trapezoidal grid, which is exact beyond every power of its spacing (a Gauss-Hermite
rule of as many points is not: its nodes are sparse where the function bends); what it is a polynomial in goes on the few Gauss-Hermite
nodes that are exact for it. A rule that jumps where a field is 0, of one row and one signal, goes on circles about the origin of their
plane, cut at those zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.nodes import gauss_legendre, hermite_product, product_rule
from sgdynamics.expectations.pairs import UNKNOWN
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.weighted_points import columns
from sgdynamics.problems.problem import Structure

# of a grid by its dimensions, in standard deviations: what lies beyond weighs 4e-12 or less, and 3e-7 in four, where points are dear
REACHES = (0.0, 8.5, 8.0, 7.5, 6.0)
MOST_POINTS, CHEAP_POINTS, QUICK_POINTS = (
    200_000,
    20_000,
    4_000,
)  # for a drift, to begin with, for the risks of many states
RADII = 48
ROUNDING = 1e-14
COARSEST, FINEST = 2, 8  # points in a standard deviation
FURTHER = 1.15  # reach of the grid that gives the error, relative to the grid used: it sees tails that weigh too much


def on_circles(structure: Structure) -> bool:
    """Whether the fields are a row and a signal, of centred inputs, that jump at 0."""
    plain = (
        structure.sample.tokens is None
        and structure.sample.centred
        and not structure.loss.reads_draws
    )
    return plain and structure.kinks == (0.0,) and structure.fields == 2


def few_fields(structure: Structure) -> bool:
    """Whether a grid does: few fields that are no polynomials, not too many points in all, and no kink but where the circles are cut."""
    if structure.dependence is None:
        return on_circles(structure)
    return (
        len(structure.dependence.general) < len(REACHES)
        and grid_points(structure, COARSEST) <= MOST_POINTS
    )


def grid_points(structure: Structure, per_deviation: int) -> float:
    """How many points such a grid has, those on Gauss-Hermite nodes counted."""
    assert structure.dependence is not None
    return _trapezoid_points(len(structure.dependence.general), per_deviation) * math.prod(
        map(float, structure.dependence.node_counts)
    )


@lru_cache(maxsize=64)
def _trapezoid_points(dimensions: int, per_deviation: int) -> int:
    """How many points `_trapezoids` has, without making them: of whole numbers in a ball, by the squares that they add up to."""
    radius = REACHES[dimensions] * per_deviation
    most = math.floor(radius**2)
    each = np.bincount(np.arange(-round(radius), round(radius) + 1) ** 2, minlength=most + 1)[
        : most + 1
    ]
    found = np.eye(1, most + 1, dtype=np.int64)[0]
    for _ in range(dimensions):
        found = np.convolve(found, each)[: most + 1]
    return int(found.sum())


@lru_cache(maxsize=16)
def _trapezoids(
    dimensions: int, per_deviation: int, share: float = 1.0, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """A grid of standard normals (n, dimensions) and its weights, without corners that weigh nothing, out to a share of its reach.

    `shift` moves it along every axis, in units of its spacing.
    """
    if dimensions == 0:
        return np.zeros((1, 0)), np.ones(1)
    reach = share * REACHES[dimensions]
    half = round(reach * per_deviation)
    line = (np.arange(-half, half + 1) - shift) / per_deviation
    grid = np.stack(np.meshgrid(*[line] * dimensions, indexing="ij"), axis=-1).reshape(
        -1, dimensions
    )
    grid = grid[np.sum(grid**2, axis=1) <= reach**2]
    weights = np.exp(-0.5 * np.sum(grid**2, axis=1))
    return grid, weights / weights.sum()


@lru_cache(maxsize=4)
def _circles(radii: int) -> tuple[np.ndarray, np.ndarray]:
    """Radii of circles in the plane as pairs of points that span them, (n, 4), and their weights."""
    nodes, weights = gauss_legendre(radii)
    r = REACHES[2] * nodes
    density = REACHES[2] * weights * r * np.exp(-(r**2) / 2)
    pairs = np.zeros((radii, 4))
    pairs[:, 0] = pairs[:, 3] = r
    return pairs, density / density.sum()


@dataclass(frozen=True)
class FewFields(SobolAverages):
    """A grid over what is read, or circles in the plane of one row and one signal."""

    advice = "the loss bends faster in its fields than the grid has points; sgd.simulate, which needs no grid, tells whether it matters"

    @property
    def drift_sampled(self) -> bool:
        return False

    def sampled(self, flow: bool) -> bool:
        return False

    @property
    def by_slopes(self) -> bool:
        return False  # a grid has no spread

    def quadrature(self, largest: float) -> Quadrature:
        """The finest grid that costs little: another one is another program."""
        cheap = [
            count
            for count in (FINEST, FINEST // 2)
            if not self.circles and grid_points(self.structure, count) <= CHEAP_POINTS
        ]
        return Quadrature(per_deviation=max(cheap, default=COARSEST))

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        reading = self.structure.dependence
        if reading is None or not reading.general or 2 * quadrature.per_deviation > FINEST:
            return None
        if grid_points(self.structure, 2 * quadrature.per_deviation) > 4 * MOST_POINTS:
            return None
        return replace(quadrature, per_deviation=2 * quadrature.per_deviation)

    @property
    def circles(self) -> bool:
        return self.structure.dependence is None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return {
            name: value[None] for name, value in self._at(quadrature.per_deviation, 1.0).items()
        }

    def _at(self, per_deviation: int, share: float, shift: float = 0.0) -> dict[str, np.ndarray]:
        """The grid of so many points a standard deviation, out to a share of its reach; what goes on Gauss-Hermite nodes beside it."""
        reading = self.structure.dependence
        if reading is None:
            grid, weights = _circles(round(RADII * share))
            return {
                "points": np.concatenate(
                    [grid, np.zeros((len(grid), columns(self.structure)[1]))], axis=1
                ),
                "weights": weights,
            }
        grid, weights = _trapezoids(len(reading.general), per_deviation, share, shift)
        (few, shares), (more, more_shares) = (
            hermite_product(reading.node_counts),
            hermite_product(reading.finite_node_counts),
        )
        parts = {"few": few, "few_weights": shares, "more": more, "more_weights": more_shares}
        return {"points": grid, "weights": weights, **parts}

    def moments(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
        *,
        finite: bool = False,
        flow: bool = False,
    ) -> Moments:
        nodes = self._whole(nodes, "more" if finite else "few")
        return super().moments(
            quadrature, nodes, parameters, overlaps, head, finite=finite, flow=flow
        )

    def _whole(self, nodes: Nodes, name: str) -> Nodes:
        """All points with their weights: the grid, and on each of its points the Gauss-Hermite nodes of this name."""
        if self.circles:
            return nodes
        grid, weights = product_rule(
            jnp, (nodes["points"], nodes["weights"]), (nodes[name], nodes[f"{name}_weights"])
        )
        return {"points": grid, "weights": weights}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        per_deviation, share = quadrature.per_deviation, 1.0
        if quick and not self.circles:
            cheap = [
                count
                for count in (FINEST // 2, COARSEST)
                if grid_points(self.structure, count) <= QUICK_POINTS
            ]
            least = 1 if len(self.structure.dependence.general) <= 2 else COARSEST  # type: ignore[union-attr]
            per_deviation, share = max(cheap, default=least), 0.75
        nodes = self._at(per_deviation, share)
        reach, shift = (0.5, 0.0) if self.circles else (FURTHER * share, 0.5)
        other = self._at(per_deviation, reach, shift)
        between = {f"between_{name}": other[name] for name in ("points", "weights")}
        return {name: value[None] for name, value in (nodes | between).items()}

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Any:
        nodes = self._whole(nodes, "few")
        return self.mean_loss(nodes["points"], parameters, overlaps, head, weights=nodes["weights"])

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.nodes(quadrature, flow), None

    def errors(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> tuple[Any, Any]:
        """Changes of the moments and of the risk, relative to their own size, on a second grid.

        The error of a trapezoidal rule of spacing h is a sum over the frequencies 2 pi k/h of the integrand, k != 0, and a shift of half a
        spacing changes the sign of all terms of odd k: half the change is the error itself, up to that of spacing h/2. With circles the
        second grid has half as many radii.
        """
        if self.structure.dependence is not None and not self.structure.dependence.general:
            return jnp.asarray(ROUNDING), jnp.asarray(
                ROUNDING
            )  # polynomials, on Gauss-Hermite nodes that are exact for them
        other = {**nodes, **{name: nodes[f"between_{name}"] for name in ("points", "weights")}}
        first, second = (
            self.moments(quadrature, one, parameters, overlaps, head) for one in (nodes, other)
        )
        changes = _changes(first, second)
        of_risk = changes["risk"] if self.structure.loss.has_risk else jnp.zeros(())
        worst = jnp.max(
            jnp.stack([of_risk, *(change for name, change in changes.items() if name != "risk")])
        )
        share = 1.0 if self.circles else 0.5
        return jnp.maximum(share * worst, ROUNDING), jnp.maximum(share * of_risk, ROUNDING)

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Any:
        return self.errors(quadrature, nodes, parameters, overlaps, head)[0]


def _changes(moments: Moments, others: Moments) -> dict[str, Any]:
    """The change of each moment, relative to its largest entry, or to the size of h where it may be 0 by symmetry."""
    h = jnp.sqrt(jnp.max(jnp.abs(moments.noise)))
    least = {"stein": h, "shift": h, "pull": h, "head_gradient": h}
    changes = {}
    for name, value in moments._asdict().items():
        if value is not None and value.size:
            size = jnp.maximum(jnp.maximum(jnp.max(jnp.abs(value)), least.get(name, 0.0)), 1e-12)
            change = jnp.max(jnp.abs(value - getattr(others, name))) / size
            # unknown where the second grid overflows; a state that diverged has no error
            changes[name] = jnp.where(jnp.isfinite(change) | ~jnp.isfinite(h), change, UNKNOWN)
    return changes
