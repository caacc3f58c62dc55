"""Networks that learn any function of the signals: pairs of students, and a grid over the signals for what meets the target."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import curvature, cut_grids
from sgdynamics.expectations.conditional import conditional_means
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.networks import Networks, Pairs
from sgdynamics.expectations.nodes import (
    PIVOT,
    gauss_hermite,
    gauss_hermite_grid,
    hermite_product,
    lower_root,
    safe_root,
    sobol_normals,
    solve_forward,
    solve_lower,
)
from sgdynamics.problems.problem import Structure

GRID = {
    1: 96,
    2: 40,
    3: 18,
}  # Gauss-Hermite nodes an axis over the signals; beyond three signals, Sobol points

LABEL_NODES = {1: 600, 2: 160, 3: 64, 4: 32}  # an axis, for the series of a target, once per solve

# two thirds of the nodes differ from all of them by this share of the error, where that falls like the root of their number: at a jump that
# was not declared, the slowest case. A smooth target's difference is rounding, and five times that is nothing
UNDECLARED = 1 / (1.5**0.5 - 1)


class SignalGrids(Networks):
    """A target y = g(signals): given the signals, lambda_i = t_i . zeta + sqrt(v_i) xi is Gaussian, and E over xi one-dimensional."""

    @property
    def advice(self) -> str:  # type: ignore[override]
        return f"a target with kinks or jumps should declare them, sgd.MultiIndex(..., kinks=...); {super().advice}"

    @property
    def few(self) -> bool:
        """Whether the signals are few enough for a grid."""
        return self.structure.signals in GRID

    @property
    def by_planes(self) -> bool:
        """Whether the grid is cut along planes, which move with the signals' Gram matrix, and so is made where it is used."""
        return bool(self.structure.loss.cuts) and self.few

    def sampled(self, flow: bool) -> bool:
        return not self.few or super().sampled(flow)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        found = super().nodes(quadrature, flow)
        if self.by_planes:
            return found
        if not self.few:
            grid = sobol_normals(
                self.structure.signals,
                quadrature.log2_points,
                quadrature.replicates,
                whiten=True,
                seed=711,
            )
            return {
                **found,
                "grid": grid,
                "grid_weights": np.full(grid.shape[:2], 1.0 / grid.shape[1]),
            }
        replicates = len(next(iter(found.values())))
        return found | {
            name: np.broadcast_to(value, (replicates, *value.shape))
            for name, value in self._grid().items()
        }

    def _grid(self, *, coarse: bool = False) -> dict[str, np.ndarray]:
        signals = self.structure.signals
        return dict(
            zip(
                ("grid", "grid_weights"),
                gauss_hermite_grid(GRID[signals] * (2 if coarse else 3) // 3, signals),
                strict=True,
            )
        )

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        nodes, _ = super().search_nodes(quadrature, flow)
        if "grid" not in nodes or not self.few:
            return nodes, None
        coarse = dict(nodes)
        for name, value in self._grid(coarse=True).items():
            coarse[name] = np.zeros_like(
                nodes[name]
            )  # filled to the same shape: no second compilation
            coarse[name][:, : len(value)] = value
        return nodes, coarse

    def parts(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " p"],
        own: Pairs,
    ) -> tuple[Float[Numeric, "p fields"], Float[Numeric, " p"], Float[Numeric, ""]]:
        loss, p = self.structure.loss, self.structure.width
        K, A, B = own
        q = jnp.diagonal(omega)[:p]
        frame = lower_root(omega[p:, p:])
        t = solve_forward(frame, omega[p:, :p]).T
        spread = safe_root(q - jnp.sum(t**2, axis=1))
        if loss.cuts and "grid" not in nodes:
            normals, levels = (jnp.asarray(part) for part in zip(*loss.cuts, strict=True))
            grid, weights = cut_grids.turned_grid(
                normals @ frame, levels, loss.cut_dimensions, coarse="coarse" in nodes
            )
        else:
            grid, weights = nodes["grid"], nodes["grid_weights"]
        labels = jax.vmap(lambda zeta: loss.label(frame @ zeta, parameters))(grid)
        mean = t @ grid.T
        s0, s1, s2 = conditional_means(
            loss.student, mean, jnp.broadcast_to(spread[:, None], mean.shape)
        )
        weighted = weights * labels
        values = s0 @ weighted
        along = jnp.einsum("in,n,nr->ir", s1, weighted, grid)
        bend = s2 @ weighted
        on_signals = solve_lower(frame, along - bend[:, None] * t)
        on_students = B * c + jnp.diag(A @ c + bend)
        slope = jnp.concatenate([on_students, on_signals], axis=1)
        return (
            slope,
            K @ c + values,
            0.5 * (c @ K @ c + 2 * c @ values + jnp.sum(weighted * labels)),
        )

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        worst = super().error(quadrature, nodes, parameters, overlaps, head)
        if not self.few:
            return worst
        coarser, doubt = (
            ({"coarse": jnp.zeros(0)}, 1.0)
            if self.by_planes
            else (self._grid(coarse=True), UNDECLARED)
        )
        given = (
            parameters,
            overlaps.covariance,
            head,
            self.residual(parameters, head),
            self.own_pairs(quadrature, overlaps.covariance),
        )
        for left, right in zip(
            *(self.answers(quadrature, one, *given) for one in (nodes, coarser)), strict=True
        ):
            scale = jnp.max(jnp.abs(left)) + 1e-300
            worst = jnp.maximum(worst, doubt * jnp.max(jnp.abs(left - right)) / scale)
        return worst

    @property
    def has_label_series(self) -> bool:
        return self.structure.signals in LABEL_NODES

    def label_series(
        self,
        parameters: Parameters,
        frame: np.ndarray,
        terms: int,
        powers: np.ndarray,
        roots: np.ndarray,
    ) -> tuple[np.ndarray, float, float]:
        count = LABEL_NODES[self.structure.signals]
        (fine, square), (coarse, rough) = (
            self._label_table(parameters, frame, terms, nodes) for nodes in (count, count * 2 // 3)
        )
        chosen = tuple(powers.T)
        apart = math.sqrt(float(np.sum((fine[chosen] - coarse[chosen]) ** 2))) + abs(square - rough)
        return fine[chosen], square, apart

    def _label_table(
        self, parameters: Parameters, frame: np.ndarray, terms: int, count: int
    ) -> tuple[np.ndarray, float]:
        """E[g(C zeta) h_alpha(zeta)] for all alpha_r < terms, and E[g^2], on a Gauss-Hermite grid of count^K nodes."""
        k = self.structure.signals
        x, weights = gauss_hermite(count)
        grid, _ = hermite_product((count,) * k)
        label = jax.vmap(lambda signals: self.structure.loss.label(signals, parameters))
        values = np.asarray(label(jnp.asarray(grid @ frame.T))).reshape((count,) * k)
        functions = np.ones((count, terms))
        for n in range(1, terms):
            lower = functions[:, n - 2] * math.sqrt(n - 1) if n > 1 else 0.0
            functions[:, n] = (x * functions[:, n - 1] - lower) / math.sqrt(n)
        weighted = weights[:, None] * functions
        result, square = values, values**2
        for _ in range(k):
            result = np.tensordot(
                result, weighted, axes=(0, 0)
            )  # each pass moves one axis to the end: after k, all are in order
            square = np.tensordot(square, weights, axes=(0, 0))
        return result, float(square)

    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        """Those of the students' pairs, and what the target adds: on a fine and a coarse grid, or on replicates of sampled ones."""
        own, _ = super().curvatures(structure, quadrature, parameters, head, rows, signals)
        fields, axes = curvature.reduced(rows, signals)
        rest = np.linalg.norm(rows - rows @ np.linalg.pinv(signals) @ signals, axis=1)
        inside = np.flatnonzero(rest**2 <= PIVOT * np.sum(rows**2, axis=1)).tolist()
        if structure.kinks and inside:
            raise ValueError(
                f"rows {inside} lie in the span of the signals: with a kinked activation and an arbitrary target no quadrature resolves "
                "the curvature there; give a start with Q_ii a little larger"
            )
        if self.few:
            grids = [tuple(self._grid(coarse=coarse).values()) for coarse in (False, True)]
        else:
            nodes = self.nodes(quadrature, flow=True)
            grids = list(zip(nodes["grid"], nodes["grid_weights"], strict=True))
            own = own[:1] * len(grids)
        targets = [
            curvature.lifted(_target_slope(structure, parameters, *grid, head, fields), axes)
            for grid in grids
        ]
        return [
            curvature.Curvature(*(a + b for a, b in zip(*both, strict=True)))
            for both in zip(own, targets, strict=True)
        ], not self.few


@partial(jax.jit, static_argnums=0)
def _target_slope(
    structure: Structure,
    parameters: Parameters,
    grid: Float[Numeric, "n K"],
    weights: Float[Numeric, " n"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "fields columns"],
) -> tuple[Any, Any]:
    """- (a_i/p) E[s'_i y x] for a target y, and its derivative with respect to the rows.

    Given the coordinates zeta of x along the signals, lambda_i = t_i.zeta + |r_i| xi with r_i the rest of the row; the expectation over
    xi is one-dimensional, and E[s' y x] = E[s' y zeta] along the signals and E[s'' y] r_i beyond.
    """
    loss, p = structure.loss, structure.width
    axes, triangle = jnp.linalg.qr(fields[p:].T)
    labels = weights * jax.vmap(lambda zeta: loss.label(triangle.T @ zeta, parameters))(grid)

    def mean(students: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
        t = students @ axes
        rest = students - t @ axes.T
        # the tiny number gives the root a derivative at 0; what depends on it is even in it
        spread = jnp.sqrt(jnp.sum(rest**2, axis=1) + 1e-200)
        along = t @ grid.T
        _, s1, s2 = conditional_means(
            loss.student, along, jnp.broadcast_to(spread[:, None], along.shape)
        )
        return -(head / p)[:, None] * (
            ((s1 * labels) @ grid) @ axes.T + (s2 @ labels)[:, None] * rest
        )

    return mean(fields[:p]), jax.jacfwd(mean)(fields[:p])
