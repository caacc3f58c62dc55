"""Networks that learn any function of the signals: pairs of students, and a grid over the signals.

The label is y = g(signals). Given the signals C zeta (C C^T = P, zeta standard normal), the field
of a student is Gaussian, lambda_i = t_i.zeta + sqrt(v_i) xi, and the expectation over xi is
one-dimensional (`conditional_means`). What remains is an expectation over zeta.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations import curvature, cut_grids
from sgdynamics.expectations.conditional import conditional_means
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.networks import Networks, Pairs, ResidualMoments
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
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.problem import Structure

# Gauss-Hermite nodes per signal, by the number of signals; beyond three signals Sobol points.
GRID = {1: 96, 2: 40, 3: 18}
# The same for the Hermite series of a label, which is computed once per solution.
LABEL_NODES = {1: 600, 2: 160, 3: 64, 4: 32}

# Ratio of the error to the difference between all nodes and two thirds of them, if the error falls
# like the root of their number: the slowest case, a jump that was not declared. For a smooth target
# the difference is rounding, and five times that is still negligible.
UNDECLARED = 1 / (1.5**0.5 - 1)


class SignalGrids(Networks):
    """Moments of a student network and a target, on a grid over up to three signals."""

    @property
    def advice(self) -> str:  # type: ignore[override]
        declare = "a target with kinks or jumps should declare them, sgd.MultiIndex(..., kinks=...)"
        return f"{declare}; {super().advice}"

    @property
    def has_grid(self) -> bool:
        """Whether the signals are few enough for a grid."""
        return self.structure.signals in GRID

    @property
    def has_planes(self) -> bool:
        """Whether the grid is cut along planes.

        The planes move with the Gram matrix of the signals, so the grid is built where it is used.
        """
        return bool(self.structure.loss.cuts) and self.has_grid

    def sampled(self, flow: bool) -> bool:
        return not self.has_grid or super().sampled(flow)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        nodes = super().nodes(quadrature, flow)
        if self.has_planes:
            return nodes
        if not self.has_grid:
            # a seed of its own: the grid is independent of the points of the noise
            points, replicates = quadrature.log2_points, quadrature.replicates
            grid = sobol_normals(self.structure.signals, points, replicates, whiten=True, seed=711)
            weights = np.full(grid.shape[:2], 1.0 / grid.shape[1])
            return {**nodes, "grid": grid, "grid_weights": weights}
        replicates = len(next(iter(nodes.values())))
        return nodes | {
            name: np.broadcast_to(value, (replicates, *value.shape))
            for name, value in self._grid().items()
        }

    def _grid(self, *, coarse: bool = False) -> dict[str, np.ndarray]:
        """The Gauss-Hermite grid, or one with two thirds of its nodes per axis."""
        signals = self.structure.signals
        count = GRID[signals] * (2 if coarse else 3) // 3
        grid, weights = gauss_hermite_grid(count, signals)
        return {"grid": grid, "grid_weights": weights}

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        nodes, _ = super().search_nodes(quadrature, flow)
        if "grid" not in nodes or not self.has_grid:
            return nodes, None
        coarse = dict(nodes)
        for name, value in self._grid(coarse=True).items():
            # padded with weights 0 to the same shape, so that nothing is compiled a second time
            coarse[name] = np.zeros_like(nodes[name])
            coarse[name][:, : len(value)] = value
        return nodes, coarse

    def residual_moments(
        self,
        at: Evaluation,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " p"],
        student_pairs: Pairs,
    ) -> ResidualMoments:
        """Pairs of students as in `ClosedPairs`, and with the label on the grid, by Stein's lemma:

        E[s'_i y x] = (E[s'_i y zeta] - E[s''_i y] t_i) C^-1 on the signals + E[s''_i y] w_i.
        """
        loss, p, nodes = self.structure.loss, self.structure.width, at.nodes
        K, A, B = student_pairs
        q = jnp.diagonal(omega)[:p]
        frame = lower_root(omega[p:, p:])  # C
        # regression of the students on zeta: t = M C^-T, and the residual variance q - |t|^2
        t = solve_forward(frame, omega[p:, :p]).T
        scale = safe_root(q - jnp.sum(t**2, axis=1))
        if loss.cuts and "grid" not in nodes:
            normals, levels = (jnp.asarray(column) for column in zip(*loss.cuts, strict=True))
            grid, weights = cut_grids.turned_grid(
                normals @ frame, levels, loss.cut_dimensions, coarse="coarse" in nodes
            )
        else:
            grid, weights = nodes["grid"], nodes["grid_weights"]
        # the noiseless label at each node
        labels = jax.vmap(lambda zeta: loss.label(frame @ zeta, at.parameters))(grid)
        mean = t @ grid.T
        scales = jnp.broadcast_to(scale[:, None], mean.shape)
        s0, s1, s2 = conditional_means(loss.student, mean, scales)
        weighted = weights * labels
        values = s0 @ weighted  # E[s_i y]
        on_zeta = jnp.einsum("in,n,nr->ir", s1, weighted, grid)  # E[s'_i y zeta]
        curved = s2 @ weighted  # E[s''_i y]
        on_signals = solve_lower(frame, on_zeta - curved[:, None] * t)
        # d/dlambda_j of s'_i E0: pairs of students, and s''_i y on the diagonal
        on_students = B * c + jnp.diag(A @ c + curved)
        slope = jnp.concatenate([on_students, on_signals], axis=1)
        # E[(y + sum_i c_i s_i)^2]
        label_square = jnp.sum(weights * loss.mean_square_label(labels))
        square = c @ K @ c + 2 * c @ values + label_square
        return slope, K @ c + values, 0.5 * square

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        """The error of the pairs, and the difference between two resolutions of the grid."""
        worst = super().estimate_error(at)
        if not self.has_grid:
            return worst
        if self.has_planes:
            coarse_nodes, factor = {"coarse": jnp.zeros(0)}, 1.0
        else:
            coarse_nodes, factor = self._grid(coarse=True), UNDECLARED
        c = self.residual(at.parameters, at.head)
        own = self.student_pairs(at.quadrature, at.overlaps.covariance)
        fine = self.loss_moments(at, c, own)
        coarse = self.loss_moments(at._replace(nodes=coarse_nodes), c, own)
        for fine_moment, coarse_moment in zip(fine, coarse, strict=True):
            scale = jnp.max(jnp.abs(fine_moment)) + 1e-300
            difference = jnp.max(jnp.abs(fine_moment - coarse_moment))
            worst = jnp.maximum(worst, factor * difference / scale)
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
        # the coefficients at two resolutions; their distance is the error
        count = LABEL_NODES[self.structure.signals]
        (fine, square), (coarse, coarse_square) = (
            self._label_table(parameters, frame, terms, nodes) for nodes in (count, count * 2 // 3)
        )
        chosen = tuple(powers.T)
        distance = math.sqrt(float(np.sum((fine[chosen] - coarse[chosen]) ** 2)))
        return fine[chosen], square, distance + abs(square - coarse_square)

    def _label_table(
        self, parameters: Parameters, frame: np.ndarray, terms: int, count: int
    ) -> tuple[np.ndarray, float]:
        """E[g(C zeta) h_alpha(zeta)] for all alpha_r < terms, and E[g^2], on count^K nodes."""
        k = self.structure.signals
        x, weights = gauss_hermite(count)
        grid, _ = hermite_product((count,) * k)
        label = jax.vmap(lambda signals: self.structure.loss.label(signals, parameters))
        values = np.asarray(label(jnp.asarray(grid @ frame.T))).reshape((count,) * k)
        # orthonormal Hermite polynomials by their three-term recurrence
        functions = np.ones((count, terms))
        for n in range(1, terms):
            lower = functions[:, n - 2] * math.sqrt(n - 1) if n > 1 else 0.0
            functions[:, n] = (x * functions[:, n - 1] - lower) / math.sqrt(n)
        weighted = weights[:, None] * functions
        table, square = values, values**2
        for _ in range(k):
            # each contraction moves one axis to the end: after k of them all are in order again
            table = np.tensordot(table, weighted, axes=(0, 0))
            square = np.tensordot(square, weights, axes=(0, 0))
        return table, float(square)

    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        """The curvature of the pairs of students plus that of the target.

        Versions are a fine and a coarse grid, or replicates of sampled ones.
        """
        own, _ = super().curvatures(structure, quadrature, parameters, head, rows, signals)
        fields, axes = curvature.reduce_columns(rows, signals)
        orthogonal = np.linalg.norm(rows - rows @ np.linalg.pinv(signals) @ signals, axis=1)
        inside = np.flatnonzero(orthogonal**2 <= PIVOT * np.sum(rows**2, axis=1)).tolist()
        if structure.kinks and inside:
            raise ValueError(
                f"rows {inside} lie in the span of the signals: with a kinked activation and an "
                "arbitrary target no quadrature resolves the curvature there. Use a start with a "
                "slightly larger Q_ii."
            )
        if self.has_grid:
            grids = [tuple(self._grid(coarse=coarse).values()) for coarse in (False, True)]
        else:
            nodes = self.nodes(quadrature, flow=True)
            grids = list(zip(nodes["grid"], nodes["grid_weights"], strict=True))
            own = own[:1] * len(grids)
        targets = []
        for grid, weights in grids:
            gradient, slope = _target_slope(structure, parameters, grid, weights, head, fields)
            targets.append(curvature.curvature_from_reduced(gradient, slope, axes))
        versions = [first.plus(second) for first, second in zip(own, targets, strict=True)]
        return versions, not self.has_grid


@partial(jax.jit, static_argnums=0)
def _target_slope(
    structure: Structure,
    parameters: Parameters,
    grid: Float[Numeric, "n K"],
    weights: Float[Numeric, " n"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "fields columns"],
) -> tuple[Float[Numeric, "p columns"], Float[Numeric, "p columns p columns"]]:
    """-(a_i/p) E[s'_i y x] for a target y, and its derivative with respect to the rows.

    With r_i the part of row i orthogonal to the signals, lambda_i = t_i.zeta + |r_i| xi. Then
    E[s'_i y x] is E[s'_i y zeta] along the signals and E[s''_i y] r_i orthogonal to them.
    """
    loss, p = structure.loss, structure.width
    axes, triangle = jnp.linalg.qr(fields[p:].T)
    labels = weights * jax.vmap(lambda zeta: loss.label(triangle.T @ zeta, parameters))(grid)

    def mean_gradient(students: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
        t = students @ axes
        orthogonal = students - t @ axes.T
        # The tiny number gives the root a derivative at 0; the result is even in the scale, so it
        # does not depend on the choice.
        scale = jnp.sqrt(jnp.sum(orthogonal**2, axis=1) + 1e-200)
        mean = t @ grid.T
        scales = jnp.broadcast_to(scale[:, None], mean.shape)
        _, s1, s2 = conditional_means(loss.student, mean, scales)
        on_signals = ((s1 * labels) @ grid) @ axes.T
        return -(head / p)[:, None] * (on_signals + (s2 @ labels)[:, None] * orthogonal)

    return mean_gradient(fields[:p]), jax.jacfwd(mean_gradient)(fields[:p])
