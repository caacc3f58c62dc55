"""Two-layer networks under squared or correlation loss: the common part of pairs and signal grids.

The output is f = (1/p) sum_i a_i s(lambda_i). The residual y - f (squared loss) or y (correlation
loss) is E0 plus label noise, with E0 = sum_b c_b g_b(lambda_b) over students and, for a committee
teacher, over signals. Then h_i = -(a_i/p) s'_i (E0 + noise).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations import curvature, mehler, pairs
from sgdynamics.expectations.closed_forms import closed_forms_of
from sgdynamics.expectations.closed_forms.family import NoiseTerm
from sgdynamics.expectations.interface import Moments, Quadrature
from sgdynamics.expectations.solver_interface import Evaluation, SolverExpectation
from sgdynamics.expectations.weighted_points import (
    field_points,
    mirror_points,
    norm_weights,
    sample_fields,
)
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.losses import squared
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

# Width from which the noise is evaluated at few times (`ode.deferred`).
LEAST_WIDE = 8
IDENTITY = (0.0, 1.0)  # coefficients of s(x) = x

# K = E[s s], A = E[s'' s], B = E[s' s'] of the students
Pairs = tuple[Float[Numeric, "p p"], Float[Numeric, "p p"], Float[Numeric, "p p"]]
# Stein matrix of s'_i E0, E[s_i E0], and a scalar
ResidualMoments = tuple[Float[Numeric, "p fields"], Float[Numeric, " p"], Float[Numeric, ""]]


@dataclass(frozen=True)
class Networks(SolverExpectation):
    """Moments of a two-layer network from pairs of students and from `residual_moments`."""

    structure: Structure

    @abstractmethod
    def residual_moments(
        self,
        at: Evaluation,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " c"],
        student_pairs: Pairs,
    ) -> ResidualMoments:
        """The Stein matrix of s'_i E0, E[s_i E0] and E[E0^2]/2.

        `omega` takes the place of the covariance in `at`, because the noise at finite d
        differentiates with respect to it.
        """

    @property
    def advice(self) -> str:  # type: ignore[override]
        """The cause of a large error: a user's activation may have kinks that are not declared."""
        own = [
            activation
            for activation in self.partners
            if activation.coefficients is None and not activation.is_named
        ]
        # only activations of users can lack a declaration
        if any(not activation.kinks for activation in own):
            return "an activation with kinks should declare them, sgd.Activation(f, kinks=...)"
        return super().advice

    @property
    def partners(self) -> tuple[Activation, ...]:
        """The activations that occur in pairs with that of the student."""
        return (self.structure.loss.student,)

    @property
    def closed_noise(self) -> NoiseTerm | None:
        """E[s'_i s'_j E0^2] as a function of (Omega, c, p), if it has a closed form."""
        return None

    @property
    def has_linear_students(self) -> bool:
        """Whether s' = 1, so that the noise is the mean squared residual for any label."""
        return self.structure.loss.student.coefficients == IDENTITY

    @property
    def has_quick_pairs(self) -> bool:
        """Whether pairs of students are closed: a series costs nearly as much as the noise."""
        return closed_forms_of(self.structure.loss.student) is not None

    def quadrature(self, largest: float) -> Quadrature:
        """A Mehler series, if there is one, that is accurate up to fields of variance `largest`."""
        student = self.structure.loss.student
        # closed and polar pairs have no series
        lengths = [
            mehler.terms_for(student, partner, largest)
            for partner in self.partners
            if pairs.method(student, partner) == "mehler"
        ]
        return replace(Quadrature(), terms=max(lengths, default=Quadrature().terms))

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        longer = self.quadrature(largest)
        return longer if longer.terms > quadrature.terms else None

    def sampled(self, flow: bool) -> bool:
        """Only the noise is sampled, where it has no closed form."""
        return not flow and self.closed_noise is None and not self.has_linear_students

    def coarser(self, quadrature: Quadrature, flow: bool) -> Quadrature | None:
        """Without the noise, where that costs more than the pairs of fields."""
        is_small = self.structure.width < LEAST_WIDE or not self.has_quick_pairs
        if flow or is_small or self.has_linear_students or not quadrature.noise:
            return None
        return replace(quadrature, noise=False)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        if self.sampled(flow or not quadrature.noise):
            return {"points": field_points(self.structure, quadrature, log2_factor=0)}
        return super().nodes(quadrature, flow)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirror_points(self.structure, self.nodes(quadrature, flow)), None

    def residual(self, parameters: Parameters, head: Float[Numeric, " p"]) -> Float[Numeric, " p"]:
        """Coefficients c of the students in the residual."""
        if self.structure.loss.outer is squared:
            # y - f contains -(1/p) sum_i a_i s_i; the correlation loss -y f has the residual y
            return -head / self.structure.width
        return jnp.zeros_like(head)

    def student_pairs(
        self, quadrature: Quadrature, omega: Float[Numeric, "fields fields"]
    ) -> Pairs:
        """K, A and B among the students."""
        p, student = self.structure.width, self.structure.loss.student
        # variances of the fields of the students
        q = jnp.diagonal(omega)[:p]
        return pairs.moments(student, student, q, q, omega[:p, :p], quadrature.terms)

    def loss_moments(
        self, at: Evaluation, c: Float[Numeric, " c"], student_pairs: Pairs
    ) -> ResidualMoments:
        """The Stein matrix of s'_i E0, E[s_i E0] and the risk."""
        omega = at.overlaps.covariance
        slope, values, half_square = self.residual_moments(at, omega, c, student_pairs)
        # squared loss: E[(E0 + noise)^2]/2; correlation loss: -E[y f]
        if self.structure.loss.outer is squared:
            return slope, values, half_square + 0.5 * at.parameters["noise"]
        return slope, values, -(at.head / self.structure.width) @ values

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        p, omega, lead = self.structure.width, at.overlaps.covariance, at.head / at.head.shape[0]
        # computed once and passed on: XLA does not merge repeated loops over pairs
        c, own = self.residual(at.parameters, at.head), self.student_pairs(at.quadrature, omega)
        slope, values, risk = self.loss_moments(at, c, own)
        # h_i = -(a_i/p) s'_i (E0 + noise), and the noise is independent of the fields
        stein = -lead[:, None] * slope
        if flow or not at.quadrature.noise:
            zeros = jnp.zeros((p, p), omega.dtype)
            norms = jnp.zeros((len(at.overlaps.blocks), p, p), omega.dtype) if finite else None
            return Moments(stein, zeros, norms, -values / p, risk)
        if self.closed_noise is not None or self.has_linear_students:
            noise, slopes = self._exact_noise(at, c, own, finite)
        else:
            noise, slopes = self._sampled_noise(at, c, own, finite)
        outer = lead[:, None] * lead[None, :]
        norms = None if slopes is None else outer * slopes
        return Moments(stein, outer * noise, norms, -values / p, risk)

    def _exact_noise(
        self, at: Evaluation, c: Float[Numeric, " c"], student_pairs: Pairs, finite: bool
    ) -> tuple[Float[Numeric, "p p"], Float[Numeric, "blocks p p"] | None]:
        """E[s'_i s'_j (E0^2 + noise)] and, if `finite`, the same times |x_b|^2 - eigenvalue_b d_b.

        The second is 2 eigenvalue_b D_b of the first: a derivative with respect to Omega.
        """
        p, noise_term = self.structure.width, self.closed_noise

        def full_noise(omega: Float[Numeric, "fields fields"], own: Pairs) -> Float[Numeric, "p p"]:
            # E[s'_i s'_j noise^2] = noise B_ij
            label_noise = at.parameters["noise"] * own[2]
            if noise_term is not None:
                return noise_term(omega, c, p) + label_noise
            # linear students have s' = 1: N = E[E0^2] in all entries
            return 2 * self.residual_moments(at, omega, c, own)[2] + label_noise

        if not finite:
            return full_noise(at.overlaps.covariance, student_pairs), None

        def derivative(
            direction: Float[Numeric, "fields fields"],
        ) -> tuple[Float[Numeric, "p p"], Float[Numeric, "p p"]]:
            return jax.jvp(
                lambda omega: full_noise(omega, self.student_pairs(at.quadrature, omega)),
                (at.overlaps.covariance,),
                (direction,),
            )

        # vectorised, not a loop: a spectrum may have a hundred blocks
        directions = input_covariance.times_eigenvalues(at.parameters, at.overlaps.blocks)
        noise, slopes = jax.vmap(derivative, out_axes=(None, 0))(directions)
        return noise, input_covariance.times_eigenvalues(at.parameters, 2 * slopes)

    def _sampled_noise(
        self, at: Evaluation, c: Float[Numeric, " c"], student_pairs: Pairs, finite: bool
    ) -> tuple[Float[Numeric, "p p"], Float[Numeric, "blocks p p"] | None]:
        """The same as an average over points; the label noise enters by its exact mean B."""
        loss, p, parameters = self.structure.loss, self.structure.width, at.parameters
        student = loss.student
        sample = sample_fields(self.structure, at.nodes["points"], at.overlaps, parameters)
        # s'_i, and the residual E0 = y + sum_i c_i s_i at each point
        slopes = student.derivative(1)(sample.students)
        labels = jax.vmap(lambda signals: loss.label(signals, parameters))(sample.signals)
        residual2 = (labels + student.derivative(0)(sample.students) @ c[:p]) ** 2
        residual2 = residual2 + loss.mean_square_label(labels) - labels**2
        noise = jnp.einsum("n,ni,nj->ij", sample.weights * residual2, slopes, slopes)
        noise = noise + parameters["noise"] * student_pairs[2]
        if not finite:
            return noise, None
        # the norm of the input is correlated with s': the label noise is part of this average
        full_weights = sample.weights * (residual2 + parameters["noise"])
        norms = norm_weights(self.structure, parameters, at.overlaps, sample)[..., 0, 0]
        return noise, jnp.einsum("n,nb,ni,nj->bij", full_weights, norms, slopes, slopes)

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        p, student, omega = (
            self.structure.width,
            self.structure.loss.student,
            at.overlaps.covariance,
        )
        q = jnp.diagonal(omega)[:p]
        return pairs.error(student, student, q, q, omega[:p, :p], at.quadrature.terms)

    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        c = np.asarray(self.residual(parameters, head))
        student, groups = structure.loss.student, (rows, signals)
        # a target that is no network has no partner: its signals are left to `SignalGrids`
        of_groups = [
            curvature.pair_curvature(student, partner, quadrature.terms, rows, group)
            for partner, group in zip(self.partners, groups, strict=False)
        ]
        tables, a, b = (
            np.concatenate(arrays, axis=axis)
            for arrays, axis in zip(zip(*of_groups, strict=True), (4, 1, 1), strict=True)
        )
        # c has entries for teachers only if the target is a network
        fields = np.concatenate(groups)[: len(c)]
        lead = -head / len(rows)
        versions = [
            curvature.network_curvature(table, a, b, lead, c, rows, fields) for table in tables
        ]
        return versions, False
