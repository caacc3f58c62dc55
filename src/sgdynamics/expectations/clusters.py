"""ReLU networks that classify a Gaussian mixture: one quadrature a cluster (`expectations.mixtures`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import mixtures
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.samples import input_covariance


class Clusters(SobolAverages):
    """f = sum_i a_i relu(lambda_i) under logistic loss, by Stein's lemma from P, D, S, B of `expectations.mixtures`:

    H_ij = a_i (D_i delta_ij + a_j S_ij),   shift_ir = a_i sum_c w_c P_i^c coefficient_cr,   C_ij = a_i a_j B_ij,
    E[relu(lambda_i) e] = sum_c w_c mean_i^c P_i^c + Omega_ii D_i + sum_j Omega_ij a_j S_ij.
    """

    @property
    def drift_sampled(self) -> bool:
        return mixtures.sampled(self.structure.width)

    def sampled(self, flow: bool) -> bool:
        return self.drift_sampled

    def quadrature(self, largest: float) -> Quadrature:
        return Quadrature(mixture=mixtures.choose_quadrature(self.structure.width))

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        best = mixtures.choose_quadrature(self.structure.width, fine=True)
        return (
            None
            if self.drift_sampled or best == self._mixture_quadrature(quadrature)
            else replace(quadrature, mixture=best)
        )

    def _mixture_quadrature(self, quadrature: Quadrature) -> mixtures.MixtureQuadrature:
        return quadrature.mixture or mixtures.choose_quadrature(self.structure.width)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return mixtures.nodes_for(self._mixture_quadrature(quadrature), self.structure.width)

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        if self.structure.width <= 2 or not (quick or self.drift_sampled):
            return self.nodes(quadrature, flow=True)
        return super().risk_nodes(quadrature)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.nodes(quadrature, flow), None

    def _means(
        self, parameters: Parameters, overlaps: Overlaps
    ) -> tuple[Float[Numeric, "clusters p"], Float[Numeric, "p p"]]:
        """Means of the students, cluster by cluster, and their covariance."""
        p = self.structure.width
        return overlaps.means(parameters["cluster_coefficients"])[:, :p], overlaps.covariance[
            :p, :p
        ]

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
        p = self.structure.width
        weights, coefficients = parameters["cluster_weights"], parameters["cluster_coefficients"]
        middle, spread = self._means(parameters, overlaps)
        find = partial(
            mixtures.cluster_moments,
            self._mixture_quadrature(quadrature),
            nodes,
            head=head,
            labels=parameters["cluster_labels"],
        )
        found = find(means=middle, covariance=spread)
        D, S, B, risk = (jnp.tensordot(weights, part, axes=1) for part in found[1:])
        students = head[:, None] * (jnp.diag(D) + S * head)
        stein = jnp.concatenate(
            [students, jnp.zeros((p, self.structure.signals), spread.dtype)], axis=1
        )
        shift = head[:, None] * jnp.einsum("c,ci,cr->ir", weights, found.P, coefficients)
        pull = weights @ (middle * found.P) + jnp.diagonal(spread) * D + (spread * S) @ head
        outer = head[:, None] * head
        norms = None
        if finite:
            # |x_b|^2 by its mean, by Stein's lemma along that mean, and by the scale of the noise
            directions = input_covariance.scaled(parameters, overlaps.blocks)

            def along(gram: Any, direction: Any, again: Any) -> Any:
                tangents = (2 * coefficients @ direction[p:, :p], 2 * again[:p, :p])
                _, slope = jax.jvp(
                    lambda middle, spread: find(means=middle, covariance=spread).B,
                    (middle, spread),
                    tangents,
                )
                own = jnp.einsum("cr,rs,cs->c", coefficients, gram, coefficients)
                return jnp.tensordot(weights, slope + own[:, None, None] * found.B, axes=1)

            norms = outer * jax.vmap(along)(
                parameters["gram"], directions, input_covariance.scaled(parameters, directions)
            )
        return Moments(stein, outer * B, norms, pull, risk, shift)

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        if "plain" in nodes:
            return super().risk(quadrature, nodes, parameters, overlaps, head)
        return self.moments(quadrature, nodes, parameters, overlaps, head, flow=True).risk

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        if self.drift_sampled:
            return super().error(quadrature, nodes, parameters, overlaps, head)
        every = jax.tree.map(lambda value: value[None], nodes)
        return mixtures.error(
            self._mixture_quadrature(quadrature),
            every,
            *self._means(parameters, overlaps),
            head,
            parameters["cluster_labels"],
        )
