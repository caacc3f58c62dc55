"""Expectations of a loss or rule of few fields on grids: nothing is sampled.

What a smooth loss reads (`problems.loss_dependence`) is integrated on a trapezoidal grid, whose
error falls faster than any power of the spacing; Gauss-Hermite nodes of the same number are sparse
where the function bends. Combinations of which the loss is a polynomial have the few Gauss-Hermite
nodes that are exact for them. A rule of one row and one signal that jumps where a field is 0 is
integrated on circles about the origin of their plane, cut at those zeros. A second grid between the
points of the first one estimates the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric
from sgdynamics.expectations.interface import Moments, Quadrature
from sgdynamics.expectations.nodes import gauss_legendre, hermite_product, product_rule
from sgdynamics.expectations.pairs import UNKNOWN
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.expectations.weighted_points import count_coordinates
from sgdynamics.problems.problem import Structure

# Radius of a grid by its number of dimensions, in standard deviations. The mass beyond is 4e-12 or
# less, and 3e-7 in four dimensions, where points are expensive.
REACHES = (0.0, 8.5, 8.0, 7.5, 6.0)
MOST_POINTS = 200_000  # of a grid for a drift
CHEAP_POINTS = 20_000  # of the grid that is used first
QUICK_POINTS = 4_000  # of a grid for the risks of many states
RADII = 48  # circles
ROUNDING = 1e-14
COARSEST, FINEST = 2, 8  # points per standard deviation
GRID_ERROR = 1e-10  # relative error of a grid that is chosen at the start of a run
# The same for networks on top of the rows. The error is exp(-2 pi y/spacing) with y the distance of
# the nearest pole from the real axis, which a norm layer or a nested tanh brings close.
FINEST_OF_TOP = 16
# Radius of the second grid, relative to the first one: it shows tails that are not negligible.
FURTHER = 1.15


def on_circles(structure: Structure) -> bool:
    """Whether the fields are one row and one signal of centred inputs, with a jump at 0."""
    sample = structure.sample
    is_plain = sample.tokens.count is None and sample.centred and not structure.loss.reads_draws
    return is_plain and structure.kinks == (0.0,) and structure.fields == 2


def few_fields(structure: Structure) -> bool:
    """Whether `FewFields` serves a loss.

    It must read at most four combinations that are not polynomial, on a grid of moderate size, and
    must not have kinks, except at 0 in the plane of one row and one signal.
    """
    if structure.dependence is None:
        return on_circles(structure)
    dimensions = len(structure.dependence.general)
    return dimensions < len(REACHES) and grid_points(structure, COARSEST) <= MOST_POINTS


def grid_points(structure: Structure, per_deviation: int) -> float:
    """Number of points of a grid, including the Gauss-Hermite nodes."""
    assert structure.dependence is not None
    trapezoids = _trapezoid_points(len(structure.dependence.general), per_deviation)
    return trapezoids * math.prod(map(float, structure.dependence.node_counts))


@lru_cache(maxsize=64)
def _trapezoid_points(dimensions: int, per_deviation: int) -> int:
    """Number of points of `trapezoids`, without building them.

    Counts the lattice points in a ball by their squared length: the generating function of the
    squares of integers, to the power of the dimension.
    """
    radius = REACHES[dimensions] * per_deviation
    most = math.floor(radius**2)
    squares = np.arange(-round(radius), round(radius) + 1) ** 2
    per_axis = np.bincount(squares, minlength=most + 1)[: most + 1]
    # counts[m]: number of lattice points of squared length m, starting from the origin alone
    counts = np.eye(1, most + 1, dtype=np.int64)[0]
    for _ in range(dimensions):
        counts = np.convolve(counts, per_axis)[: most + 1]
    return int(counts.sum())


@lru_cache(maxsize=16)
def trapezoids(
    dimensions: int, per_deviation: int, reach_factor: float = 1.0, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """A trapezoidal grid of standard normals (n, dimensions) in a ball, and its weights.

    `shift` moves the grid along all axes, in units of its spacing.
    """
    if dimensions == 0:
        return np.zeros((1, 0)), np.ones(1)
    reach = reach_factor * REACHES[dimensions]
    half = round(reach * per_deviation)
    axis = (np.arange(-half, half + 1) - shift) / per_deviation
    axes = np.meshgrid(*[axis] * dimensions, indexing="ij")
    grid = np.stack(axes, axis=-1).reshape(-1, dimensions)
    grid = grid[np.sum(grid**2, axis=1) <= reach**2]  # the corners have negligible weight
    weights = np.exp(-0.5 * np.sum(grid**2, axis=1))
    return grid, weights / weights.sum()


def half_grid(grid: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of the points x and -x of a symmetric grid, with the weights of both."""
    # The first coordinate that is not 0 decides; the origin is its own mirror image.
    first = np.take_along_axis(grid, np.argmax(grid != 0, axis=1)[:, None], axis=1)[:, 0]
    chosen = first >= 0
    return grid[chosen], np.where(first[chosen] > 0, 2.0, 1.0) * weights[chosen]


@lru_cache(maxsize=4)
def _circles(radii: int) -> tuple[np.ndarray, np.ndarray]:
    """Circles in the plane as pairs of points that span them, (n, 4), and their weights."""
    nodes, weights = gauss_legendre(radii)
    r = REACHES[2] * nodes
    # the radius of a plane normal has the density r exp(-r^2/2)
    density = REACHES[2] * weights * r * np.exp(-(r**2) / 2)
    # the points (r, 0) and (0, r) span the circle of radius r
    pairs = np.zeros((radii, 4))
    pairs[:, 0] = pairs[:, 3] = r
    return pairs, density / density.sum()


@dataclass(frozen=True)
class FewFields(SobolAverages):
    """Moments on a grid over what the loss reads, or on circles of a row and a signal."""

    advice = (
        "the loss varies faster in its fields than the grid resolves. Compare with sgd.simulate, "
        "which uses no grid"
    )

    @property
    def drift_sampled(self) -> bool:
        return False

    def sampled(self, flow: bool) -> bool:
        return False

    @property
    def by_slopes(self) -> bool:
        return False  # a grid has no sampling variance to reduce

    @property
    def has_circles(self) -> bool:
        return self.structure.dependence is None

    def quadrature(self, largest: float) -> Quadrature:
        """The finest cheap grid: a later refinement would have to be compiled again."""
        cheap = [
            count
            for count in (FINEST, FINEST // 2)
            if not self.has_circles and grid_points(self.structure, count) <= CHEAP_POINTS
        ]
        return Quadrature(per_deviation=max(cheap, default=COARSEST))

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        dependence, doubled = self.structure.dependence, 2 * quadrature.per_deviation
        finest = FINEST if self.structure.top is None else FINEST_OF_TOP
        if dependence is None or not dependence.general or doubled > finest:
            return None
        # a refinement is rare, and may be larger than the first grid
        if grid_points(self.structure, doubled) > 4 * MOST_POINTS:
            return None
        return replace(quadrature, per_deviation=doubled)

    def fine_enough(
        self, quadrature: Quadrature, error: Callable[[Quadrature], float]
    ) -> Quadrature:
        """The sparsest grid whose error at the start is expected to be below `GRID_ERROR`.

        The error of a trapezoidal rule is exp(-c density). Grids that are not large are fine.
        """
        finer = self.finer(quadrature, np.inf)
        if finer is None or grid_points(self.structure, finer.per_deviation) <= CHEAP_POINTS:
            return quadrature
        first = min(error(quadrature), 0.1)
        if first <= GRID_ERROR:
            return quadrature
        needed = quadrature.per_deviation * math.log(GRID_ERROR) / math.log(first)
        density = min(math.ceil(needed), finer.per_deviation)
        return replace(quadrature, per_deviation=density)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        grid = self._build_grid(quadrature.per_deviation)
        return {name: value[None] for name, value in grid.items()}

    def _build_grid(
        self, per_deviation: int, reach_factor: float = 1.0, shift: float = 0.0
    ) -> dict[str, np.ndarray]:
        """The grid, and the Gauss-Hermite nodes of the polynomial combinations."""
        dependence = self.structure.dependence
        if dependence is None:
            circles, weights = _circles(round(RADII * reach_factor))
            draws = np.zeros((len(circles), count_coordinates(self.structure)[1]))
            return {"points": np.concatenate([circles, draws], axis=1), "weights": weights}
        grid, weights = trapezoids(len(dependence.general), per_deviation, reach_factor, shift)
        if dependence.is_mirrored:
            grid, weights = half_grid(grid, weights)
        # the norms at finite d are polynomials of a higher degree than the other moments
        hermite = {}
        counts = {"few": dependence.node_counts, "more": dependence.finite_node_counts}
        if dependence.risk_node_counts:
            counts["risk"] = dependence.risk_node_counts
        for name, node_counts in counts.items():
            hermite[name], hermite[f"{name}_weights"] = hermite_product(node_counts)
        return {"points": grid, "weights": weights, **hermite}

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        nodes = self._product_nodes(at.nodes, "more" if finite else "few")
        return super().evaluate_moments(at._replace(nodes=nodes), finite=finite, flow=flow)

    def mean_head_squares(self, at: Evaluation) -> Float[Numeric, " entries"]:
        # Squares of the gradient of the head have up to twice the degree of the loss, as the norms
        # at finite d have.
        return super().mean_head_squares(at._replace(nodes=self._product_nodes(at.nodes, "more")))

    def _product_nodes(self, nodes: Nodes, name: str) -> Nodes:
        """The product of the grid and the Gauss-Hermite nodes of this name."""
        if self.has_circles:
            return nodes
        grid, weights = product_rule(
            jnp, (nodes["points"], nodes["weights"]), (nodes[name], nodes[f"{name}_weights"])
        )
        return {"points": grid, "weights": weights}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        """A grid, and a second one for `estimate_errors` under names that start with "between"."""
        dependence, per_deviation, reach = self.structure.dependence, quadrature.per_deviation, 1.0
        if quick and dependence is not None:
            cheap = [
                count
                for count in (FINEST // 2, COARSEST)
                if grid_points(self.structure, count) <= QUICK_POINTS
            ]
            least = 1 if len(dependence.general) <= 2 else COARSEST
            per_deviation, reach = max(cheap, default=least), 0.75
        nodes = self._build_grid(per_deviation, reach)
        if self.has_circles:
            second = self._build_grid(per_deviation, 0.5)  # half as many circles
        else:
            second = self._build_grid(per_deviation, FURTHER * reach, 0.5)
        between = {f"between_{name}": second[name] for name in ("points", "weights")}
        return {name: value[None] for name, value in (nodes | between).items()}

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, "..."]:
        dependence = self.structure.dependence
        has_own = dependence is not None and dependence.risk_node_counts
        nodes = self._product_nodes(at.nodes, "risk" if has_own else "few")
        return self.mean_loss(at, nodes["points"], weights=nodes["weights"])

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.nodes(quadrature, flow), None

    def estimate_errors(self, at: Evaluation) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        """Relative changes of the moments, and of the risk, on a second grid.

        By Poisson summation the error of a trapezoidal rule of spacing h is a sum over the
        frequencies 2 pi k/h of the integrand, k != 0. A shift by half a spacing changes the sign of
        all terms of odd k, so that half the change is the error itself, up to that of spacing h/2.
        With circles the second grid has half as many radii, and the change is taken whole.
        """
        dependence = self.structure.dependence
        if dependence is not None and not dependence.general:
            # polynomials, on Gauss-Hermite nodes that are exact for them
            return jnp.asarray(ROUNDING), jnp.asarray(ROUNDING)
        between = {name: at.nodes[f"between_{name}"] for name in ("points", "weights")}
        moments = self.evaluate_moments(at)
        second = self.evaluate_moments(at._replace(nodes={**at.nodes, **between}))
        changes = _relative_changes(moments, second)
        risk_change = changes.pop("risk") if self.structure.loss.has_risk else jnp.zeros(())
        changes.pop("risk", None)
        worst = jnp.max(jnp.stack([risk_change, *changes.values()]))
        factor = 1.0 if self.has_circles else 0.5
        return jnp.maximum(factor * worst, ROUNDING), jnp.maximum(factor * risk_change, ROUNDING)

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.estimate_errors(at)[0]


def _relative_changes(moments: Moments, others: Moments) -> dict[str, Float[Numeric, ""]]:
    """The change of each moment relative to its largest entry.

    A moment that may be 0 by symmetry is compared with the size of h instead.
    """
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
