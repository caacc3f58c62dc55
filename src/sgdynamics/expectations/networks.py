"""Two-layer networks under squared or correlation loss: what closed pairs and grids over the signals have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import curvature, mehler, pairs
from sgdynamics.expectations.interface import Expectation, Moments, Overlaps, Quadrature
from sgdynamics.expectations.weighted_points import (
    field_points,
    mirrored,
    norm_weights,
    sample_fields,
)
from sgdynamics.problems.activations import NAMED, Activation
from sgdynamics.problems.losses import squared
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

Pairs = tuple[Any, Any, Any]  # K = E[s s], A = E[s'' s], B = E[s' s'] of the students


@dataclass(frozen=True)
class Networks(Expectation):
    """f = (1/p) sum_i a_i s(lambda_i), the residual y - f (squared loss) or y (correlation) = sum_b c_b g_b + noise: pairs of students."""

    structure: Structure

    @abstractmethod
    def parts(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " c"],
        own: Pairs,
    ) -> tuple[Any, Any, Any]:
        """With E0 the residual without its noise: the Stein matrix of s'_i E0, E[s_i E0] and E[E0^2]/2."""

    @property
    def advice(self) -> str:  # type: ignore[override]
        """What to do about a large error; the library's own activations declare their kinks."""
        own = [
            one for one in self.partners if one.coefficients is None and one not in NAMED.values()
        ]
        if any(not activation.kinks for activation in own):
            return "an activation with kinks should declare them, sgd.Activation(f, kinks=...)"
        return super().advice

    @property
    def partners(self) -> tuple[Activation, ...]:
        """The activations that a student's is paired with."""
        return (self.structure.loss.student,)

    @property
    def closed_noise(self) -> Any:
        """E[s'_i s'_j E0^2] as a function of (Omega, c, p), where it has a closed form."""
        return None

    def quadrature(self, largest: float) -> Quadrature:
        """The Mehler series, where one is cut, is long enough up to fields of variance `largest`."""
        student = self.structure.loss.student
        cut = [other for other in self.partners if pairs.method(student, other) == "mehler"]
        return replace(
            Quadrature(),
            terms=max(
                (mehler.terms_for(student, other, largest) for other in cut),
                default=Quadrature().terms,
            ),
        )

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        longer = self.quadrature(largest)
        return longer if longer.terms > quadrature.terms else None

    def sampled(self, flow: bool) -> bool:
        """The noise term without closed form is (unless lr = 0)."""
        return (
            not flow
            and self.closed_noise is None
            and self.structure.loss.student != NAMED["linear"]
        )

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        found = (
            {"points": field_points(self.structure, quadrature, more=0)}
            if self.sampled(flow)
            else {}
        )
        return found or super().nodes(quadrature, flow)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirrored(self.structure, self.nodes(quadrature, flow)), None

    def residual(self, parameters: Parameters, head: Float[Numeric, " p"]) -> Float[Numeric, " p"]:
        """c of the students."""
        return (
            -head / self.structure.width
            if self.structure.loss.outer is squared
            else jnp.zeros_like(head)
        )

    def own_pairs(self, quadrature: Quadrature, omega: Float[Numeric, "fields fields"]) -> Pairs:
        """K, A, B among the students."""
        p, student = self.structure.width, self.structure.loss.student
        q = jnp.diagonal(omega)[:p]
        return pairs.moments(student, student, q, q, omega[:p, :p], quadrature.terms)

    def answers(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        omega: Float[Numeric, "fields fields"],
        head: Float[Numeric, " p"],
        c: Float[Numeric, " n"],
        own: Pairs,
    ) -> tuple[Float[Numeric, "p fields"], Float[Numeric, " p"], Float[Numeric, ""]]:
        """The Stein matrix of s'_i E0, E[s_i E0] and the risk."""
        slope, values, excess = self.parts(quadrature, nodes, parameters, omega, c, own)
        if self.structure.loss.outer is squared:
            return slope, values, excess + 0.5 * parameters["noise"]
        return slope, values, -(head / self.structure.width) @ values

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
        p, omega, lead = self.structure.width, overlaps.covariance, head / self.structure.width
        c, own = self.residual(parameters, head), self.own_pairs(quadrature, omega)
        slope, values, risk = self.answers(quadrature, nodes, parameters, omega, head, c, own)
        stein = -lead[:, None] * slope
        if flow:
            return Moments(stein, jnp.zeros((p, p), omega.dtype), None, -values / p, risk)
        noise, slopes = self._noise(quadrature, nodes, parameters, overlaps, c, own, finite)
        outer = lead[:, None] * lead[None, :]
        norms = None if slopes is None else outer * slopes
        return Moments(stein, outer * noise, norms, -values / p, risk)

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.moments(quadrature, nodes, parameters, overlaps, head, flow=True).risk

    def _noise(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        c: Float[Numeric, " n"],
        own: Pairs,
        finite: bool,
    ) -> tuple[Float[Numeric, "p p"], Any]:
        """E[s'_i s'_j (E0^2 + noise)] and, where `finite`, the same times |x_b|^2 - eigenvalue_b d_b."""
        loss, p, omega = self.structure.loss, self.structure.width, overlaps.covariance
        closed, student = self.closed_noise, loss.student
        if closed is not None or student == NAMED["linear"]:

            def full(matrix: Float[Numeric, "fields fields"], mine: Pairs) -> Float[Numeric, "p p"]:
                label_noise = parameters["noise"] * mine[2]
                if closed is not None:
                    return closed(matrix, c, p) + label_noise
                # a linear student has s' = 1: the noise is the mean squared residual, whatever the label
                return (
                    2 * self.parts(quadrature, nodes, parameters, matrix, c, mine)[2] + label_noise
                )

            if not finite:
                return full(omega, own), None
            directions = input_covariance.scaled(parameters, overlaps.blocks)

            def slope(direction: Float[Numeric, "fields fields"]) -> tuple[Any, Any]:
                return jax.jvp(
                    lambda matrix: full(matrix, self.own_pairs(quadrature, matrix)),
                    (omega,),
                    (direction,),
                )

            # mapped, not a loop over blocks, of which a spectrum has a hundred
            value, slopes = jax.vmap(slope, out_axes=(None, 0))(directions)
            return value, input_covariance.scaled(parameters, 2 * slopes)
        sample = sample_fields(self.structure, nodes["points"], overlaps, parameters)
        d = student.derivative(1)(sample.students)
        labels = jax.vmap(lambda signals: loss.label(signals, parameters))(sample.signals)
        residual2 = (labels + student.derivative(0)(sample.students) @ c[:p]) ** 2
        N = (
            jnp.einsum("n,ni,nj->ij", sample.weights * residual2, d, d)
            + parameters["noise"] * own[2]
        )
        if not finite:
            return N, None
        full_weights = sample.weights * (residual2 + parameters["noise"])
        swing = norm_weights(self.structure, parameters, overlaps, sample)[..., 0, 0]
        return N, jnp.einsum("n,nb,ni,nj->bij", full_weights, swing, d, d)

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        p, student = self.structure.width, self.structure.loss.student
        q = jnp.diagonal(overlaps.covariance)[:p]
        return pairs.error(student, student, q, q, overlaps.covariance[:p, :p], quadrature.terms)

    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        c, student, others = (
            np.asarray(self.residual(parameters, head)),
            structure.loss.student,
            (rows, signals),
        )
        parts = [
            curvature.pair_curvature(student, one, quadrature.terms, rows, other)
            for one, other in zip(self.partners, others, strict=False)
        ]
        tables, first, second = (
            np.concatenate(arrays, axis=axis)
            for arrays, axis in zip(zip(*parts, strict=True), (4, 1, 1), strict=True)
        )
        fields = np.concatenate(others)[: len(c)]
        return [
            curvature.of_network(table, first, second, -head / len(rows), c, rows, fields)
            for table in tables
        ], False
