"""Committees that learn from committees: all moments are sums over pairs of fields.

The label is y = (1/k) sum_r a*_r s*(w*_r.x). Pairs are closed or series; the noise is a sum over
quadruples of fields, closed for some families and sampled otherwise.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations import mehler, pairs
from sgdynamics.expectations.closed_forms import closed_noise_term, shared_closed_forms
from sgdynamics.expectations.closed_forms.family import NoiseTerm
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.networks import Networks, Pairs, ResidualMoments
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.losses import squared


class ClosedPairs(Networks):
    """Moments of a student network and a teacher network, as sums over pairs of fields."""

    uses_series = True

    @property
    def partners(self) -> tuple[Activation, Activation]:
        return (self.structure.loss.student, self.structure.loss.teacher)

    def quadrature(self, largest: float) -> Quadrature:
        """The series among teachers, part of the squared loss, may need more terms."""
        quadrature, teacher = super().quadrature(largest), self.partners[1]
        if self.structure.loss.outer is not squared or pairs.method(teacher, teacher) != "mehler":
            return quadrature
        # the correlation loss does not contain y^2: there teachers meet students only
        terms = mehler.terms_for(teacher, teacher, largest)
        return replace(quadrature, label_terms=terms) if terms > quadrature.terms else quadrature

    @property
    def closed_noise(self) -> NoiseTerm | None:
        return closed_noise_term(*self.partners, width=self.structure.width)

    def residual(
        self, parameters: Parameters, head: Float[Numeric, " p"]
    ) -> Float[Numeric, " fields"]:
        """Coefficients c of the students, then of the teachers."""
        # the label (1/k) sum_r a*_r s*_r: teachers enter the residual with a plus sign
        teachers = parameters["teacher_head"] / parameters["teacher_head"].shape[0]
        return jnp.concatenate([super().residual(parameters, head), teachers])

    def residual_moments(
        self,
        at: Evaluation,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " fields"],
        student_pairs: Pairs,
    ) -> ResidualMoments:
        """Sums over pairs, by Stein's lemma:

        E[s'_i lambda_b E0] = (sum_c c_c A_ic) Omega_ib + sum_c c_c B_ic Omega_cb,
        E[s_i E0] = sum_c c_c K_ic,   E[E0^2] = sum_bc c_b c_c K_bc.
        """
        p, (student, teacher) = self.structure.width, self.partners
        quadrature = at.quadrature
        q = jnp.diagonal(omega)
        # q: variances of the fields, students first
        cross = pairs.moments(student, teacher, q[:p], q[p:], omega[:p, p:], quadrature.terms)
        terms = max(quadrature.terms, quadrature.label_terms)
        teachers = pairs.value(teacher, teacher, q[p:], q[p:], omega[p:, p:], terms)
        # columns: students, then teachers
        K, A, B = (
            jnp.concatenate([left, right], axis=1)
            for left, right in zip(student_pairs, cross, strict=True)
        )
        # d(s'_i E0)/dlambda_c has B_ic c_c, and on the diagonal the term of s''_i
        slope = B * c + jnp.eye(p, omega.shape[0], dtype=omega.dtype) * (A @ c)[:, None]
        # students with students, with teachers, and teachers with teachers
        half_square = 0.5 * (
            c[:p] @ K[:, :p] @ c[:p] + 2 * c[:p] @ K[:, p:] @ c[p:] + c[p:] @ teachers @ c[p:]
        )
        return slope, K @ c, half_square

    @property
    def has_closed_pairs(self) -> bool:
        return all(
            shared_closed_forms(first, second) is not None
            for first, second in itertools.combinations_with_replacement(self.partners, 2)
        )

    @property
    def has_label_series(self) -> bool:
        return True

    def label_series(
        self,
        parameters: Parameters,
        frame: np.ndarray,
        terms: int,
        powers: np.ndarray,
        roots: np.ndarray,
    ) -> tuple[np.ndarray, float, float]:
        """Hermite coefficients of the label: with rho_r the direction of signal r, |rho_r| = 1,

        s*(sqrt(v_r) rho_r.zeta) = sum_alpha c_|alpha|(v_r) sqrt(|alpha|!/alpha!) rho_r^alpha
        h_alpha.
        """
        teacher, weights = self.partners[1], parameters["teacher_head"] / self.structure.signals
        variances = np.sum(frame**2, axis=1)
        c = mehler.hermite_coefficients(teacher, variances, terms)
        # unit vectors of the signals, in which the addition theorem of Hermite polynomials holds
        rho = frame / np.sqrt(variances)[:, None]
        products = c[:, powers.sum(axis=1)] * np.prod(rho[:, None] ** powers, axis=2)
        length = mehler.terms_for(teacher, teacher, float(variances.max()))
        q = jnp.asarray(variances)
        # E[y^2] is a sum over pairs of teachers
        gram = pairs.value(teacher, teacher, q, q, frame @ frame.T, length)
        return roots * (weights @ products), float(weights @ np.asarray(gram) @ weights), 0.0

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        """The risk; for squared activations and squared loss by Wick's theorem, at less cost:

        E[(sum_b c_b lambda_b^2)^2] = (sum_b c_b Omega_bb)^2 + 2 sum_bc c_b c_c Omega_bc^2.
        """
        if not self.structure.loss.quadratic:
            return super().evaluate_risk(at)
        c, omega = self.residual(at.parameters, at.head), at.overlaps.covariance
        # E0 = sum_b c_b lambda_b^2 has this mean; the second term is its variance
        mean = jnp.sum(c * jnp.diagonal(omega))
        return 0.5 * (mean**2 + 2 * jnp.sum(c[:, None] * c * omega**2) + at.parameters["noise"])

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        """The largest error among students, of students with teachers, and among teachers."""
        p, omega, quadrature = self.structure.width, at.overlaps.covariance, at.quadrature
        q = jnp.diagonal(omega)
        cross = pairs.error(*self.partners, q[:p], q[p:], omega[:p, p:], quadrature.terms)
        worst = jnp.maximum(super().estimate_error(at), cross)
        if self.structure.loss.outer is not squared:
            return worst
        teacher, terms = self.partners[1], max(quadrature.terms, quadrature.label_terms)
        return jnp.maximum(worst, pairs.error(teacher, teacher, q[p:], q[p:], omega[p:, p:], terms))
