"""ReLU networks that classify a Gaussian mixture: one quadrature per cluster.

The output is f = sum_i a_i relu(lambda_i) under logistic loss, e = sigmoid(f) - y. With the moments
P, D, S, B of `expectations.mixtures` for each cluster c of weight w_c, Stein's lemma gives

    H_ij = a_i (D_i delta_ij + a_j S_ij),   C_ij = a_i a_j B_ij,
    shift_ir = a_i sum_c w_c P_i^c coefficient_cr,
    E[relu(lambda_i) e] = sum_c w_c mean_i^c P_i^c + Omega_ii D_i + sum_j Omega_ij a_j S_ij,

where D, S and B without an index are averages over the clusters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.expectations import mixtures
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.nodes import columns_of_product, lower_root
from sgdynamics.expectations.sampled import SobolAverages, sum_over_points
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.expectations.weighted_points import root_order
from sgdynamics.samples import input_covariance

MOST_COLUMNS = 8  # of a root of the covariance that is computed without a loop


class Clusters(SobolAverages):
    """Moments of a ReLU network on Gaussian clusters under logistic loss."""

    @property
    def drift_sampled(self) -> bool:
        return mixtures.is_sampled(self.structure.width)

    def sampled(self, flow: bool) -> bool:
        return self.drift_sampled

    def quadrature(self, largest: float) -> Quadrature:
        return Quadrature(mixture=mixtures.choose_quadrature(self.structure.width))

    def quick(self, quadrature: Quadrature) -> Quadrature | None:
        if self.structure.width != mixtures.MOST_INTEGRATED:
            return None
        quick = mixtures.choose_quadrature(self.structure.width, pairs=False)
        return replace(quadrature, mixture=quick)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        # there are two resolutions; sampled moments are not refined but have replicates
        finest = mixtures.choose_quadrature(self.structure.width, fine=True)
        if self.drift_sampled or finest == self._mixture_quadrature(quadrature):
            return None
        return replace(quadrature, mixture=finest)

    def _mixture_quadrature(self, quadrature: Quadrature) -> mixtures.MixtureQuadrature:
        return quadrature.mixture or mixtures.choose_quadrature(self.structure.width)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return mixtures.build_nodes(self._mixture_quadrature(quadrature), self.structure.width)

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        # three and more units: Sobol points are cheaper than the nested quadrature
        if self.structure.width <= 2 or not (quick or self.drift_sampled):
            return self.nodes(quadrature, flow=True)
        return super().risk_nodes(quadrature)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.nodes(quadrature, flow), None

    def _cluster_fields(
        self, parameters: Parameters, overlaps: Overlaps
    ) -> tuple[Float[Numeric, "clusters p"], Float[Numeric, "p p"]]:
        """Means of the students' fields in each cluster, and their common covariance."""
        p = self.structure.width
        means = overlaps.means(parameters["cluster_coefficients"])[:, :p]
        return means, overlaps.covariance[:p, :p]

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        p, head, parameters = self.structure.width, at.head, at.parameters
        weights, coefficients = parameters["cluster_weights"], parameters["cluster_coefficients"]
        means, covariance = self._cluster_fields(parameters, at.overlaps)
        cluster_moments = partial(
            mixtures.cluster_moments,
            self._mixture_quadrature(at.quadrature),
            at.nodes,
            head=head,
            labels=parameters["cluster_labels"],
        )
        # one evaluation for all clusters; they share the covariance and differ in mean and label
        clusters = cluster_moments(means=means, covariance=covariance)
        D, S, B, risk = (jnp.tensordot(weights, moment, axes=1) for moment in clusters[1:])
        # H: relu'' is a point mass (D), and e depends on all active units (S)
        on_students = head[:, None] * (jnp.diag(D) + S * head)
        # the loss does not read the signals: they enter through the means of the clusters only
        on_signals = jnp.zeros((p, self.structure.signals), covariance.dtype)
        stein = jnp.concatenate([on_students, on_signals], axis=1)
        shift = head[:, None] * jnp.einsum("c,ci,cr->ir", weights, clusters.P, coefficients)
        # E[relu(lambda_i) e] by Stein's lemma on the centred part of lambda_i
        head_gradient = (
            weights @ (means * clusters.P) + jnp.diagonal(covariance) * D + (covariance * S) @ head
        )
        outer = head[:, None] * head
        # E[h h^T (|x_b|^2 - eigenvalue_b d_b)] of each block
        norms = None
        if finite:
            directions = input_covariance.times_eigenvalues(parameters, at.overlaps.blocks)

            def block_norms(
                gram: Float[Numeric, "K K"],
                direction: Float[Numeric, "fields fields"],
                scaled_direction: Float[Numeric, "fields fields"],
            ) -> Float[Numeric, "p p"]:
                # |x_b|^2 has three parts: the squared mean, twice the mean times the noise (Stein's
                # lemma along the mean), and the squared noise (a derivative in the covariance)
                tangents = (2 * coefficients @ direction[p:, :p], 2 * scaled_direction[:p, :p])
                _, slope = jax.jvp(
                    lambda means, covariance: cluster_moments(means=means, covariance=covariance).B,
                    (means, covariance),
                    tangents,
                )
                squared_means = jnp.einsum("cr,rs,cs->c", coefficients, gram, coefficients)
                total = slope + squared_means[:, None, None] * clusters.B
                return jnp.tensordot(weights, total, axes=1)

            scaled_directions = input_covariance.times_eigenvalues(parameters, directions)
            norms = outer * jax.vmap(block_norms)(parameters["gram"], directions, scaled_directions)
        return Moments(stein, outer * B, norms, head_gradient, risk, shift)

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        if "plain" not in at.nodes:
            return self.evaluate_moments(at, flow=True).risk
        structure, head, parameters = self.structure, at.head, at.parameters
        means, _ = self._cluster_fields(parameters, at.overlaps)
        labels, weights = parameters["cluster_labels"], parameters["cluster_weights"]
        order = root_order(structure)
        covariance = at.overlaps.covariance[order][:, order]
        # a loop of few columns takes long to compile
        root = lower_root(covariance, unrolled=structure.fields <= MOST_COLUMNS)

        def risk_of_points(
            points: Float[Numeric, "n coordinates"], point_weights: Float[Numeric, " n"] | None
        ) -> Float[Numeric, ""]:
            # all clusters have the same fields apart from their means
            centred = columns_of_product(points[:, : structure.fields], root[structure.signals :].T)

            def losses(mean: Float[Numeric, " p"], label: Scalar) -> Float[Numeric, " n"]:
                # unrolled, so that XLA fuses the output with the average
                units = [structure.loss.student(field + mean[i]) for i, field in enumerate(centred)]
                output = reduce(add, (head[i] * unit for i, unit in enumerate(units)))
                return jax.nn.softplus(output) - label * output

            by_cluster = (weights[c] * losses(means[c], labels[c]) for c in range(len(means)))
            total = reduce(add, by_cluster)
            return jnp.mean(total) if point_weights is None else point_weights @ total

        return sum_over_points(risk_of_points, at.nodes["plain"], None)

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        if self.drift_sampled:
            return super().estimate_error(at)
        # `mixtures.error` expects the axis of replicates
        replicates = jax.tree.map(lambda value: value[None], at.nodes)
        return mixtures.error(
            self._mixture_quadrature(at.quadrature),
            replicates,
            *self._cluster_fields(at.parameters, at.overlaps),
            at.head,
            at.parameters["cluster_labels"],
        )
