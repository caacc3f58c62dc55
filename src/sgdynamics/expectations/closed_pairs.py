"""Committees that learn from committees: pairs of students and of students and teachers, in closed form or by series."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import four_point, mehler, pairs
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.networks import Networks, Pairs
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.losses import squared


class ClosedPairs(Networks):
    """A teacher y = (1/k) sum_r a*_r s*(w*_r.x): every expectation is a sum over pairs of fields (noise: over quadruples)."""

    uses_series = True

    @property
    def partners(self) -> tuple[Activation, Activation]:
        return (self.structure.loss.student, self.structure.loss.teacher)

    def quadrature(self, largest: float) -> Quadrature:
        """Among teachers the series, which enters the squared loss, may need more terms than with students."""
        quadrature, teacher = super().quadrature(largest), self.partners[1]
        if self.structure.loss.outer is not squared or pairs.method(teacher, teacher) != "mehler":
            return quadrature
        needed = mehler.terms_for(teacher, teacher, largest)
        return replace(quadrature, label_terms=needed) if needed > quadrature.terms else quadrature

    @property
    def closed_noise(self) -> Callable[..., Any] | None:
        return four_point.noise_term(*self.partners)

    def residual(
        self, parameters: Parameters, head: Float[Numeric, " p"]
    ) -> Float[Numeric, " fields"]:
        """c of the students, then of the teachers."""
        teachers = parameters["teacher_head"] / parameters["teacher_head"].shape[0]
        return jnp.concatenate([super().residual(parameters, head), teachers])

    def parts(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        omega: Float[Numeric, "fields fields"],
        c: Float[Numeric, " fields"],
        own: Pairs,
    ) -> tuple[Float[Numeric, "p fields"], Float[Numeric, " p"], Float[Numeric, ""]]:
        """G_ib = E[s'_i lambda_b E0] = A_i Omega_ib + sum_c c_c B_ic Omega_cb (formulas of 004)."""
        p, (student, teacher) = self.structure.width, self.partners
        q = jnp.diagonal(omega)
        cross = pairs.moments(student, teacher, q[:p], q[p:], omega[:p, p:], quadrature.terms)
        teachers = pairs.value(
            teacher,
            teacher,
            q[p:],
            q[p:],
            omega[p:, p:],
            max(quadrature.terms, quadrature.label_terms),
        )
        K, A, B = (
            jnp.concatenate([left, right], axis=1) for left, right in zip(own, cross, strict=True)
        )
        slope = B * c + jnp.eye(p, omega.shape[0], dtype=omega.dtype) * (A @ c)[:, None]
        excess = 0.5 * (
            c[:p] @ K[:, :p] @ c[:p] + 2 * c[:p] @ K[:, p:] @ c[p:] + c[p:] @ teachers @ c[p:]
        )
        return slope, K @ c, excess

    @property
    def has_closed_pairs(self) -> bool:
        found = itertools.combinations_with_replacement(self.partners, 2)
        return all(
            pairs.method(one, other) in ("polynomial", "erf", "relu") for one, other in found
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
        teacher, weights = self.partners[1], parameters["teacher_head"] / self.structure.signals
        variances = np.sum(frame**2, axis=1)
        c = mehler.hermite_coefficients(teacher, variances, terms)
        rho = frame / np.sqrt(variances)[:, None]
        found = roots * (
            weights @ (c[:, powers.sum(axis=1)] * np.prod(rho[:, None] ** powers, axis=2))
        )
        length = mehler.terms_for(teacher, teacher, float(variances.max()))
        gram = pairs.value(
            teacher,
            teacher,
            jnp.asarray(variances),
            jnp.asarray(variances),
            frame @ frame.T,
            length,
        )
        return found, float(weights @ np.asarray(gram) @ weights), 0.0

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        """For squared activations and loss by Wick: E[(sum_b c_b lambda_b^2)^2] = (sum_b c_b Omega_bb)^2 + 2 sum_bc c_b c_c Omega_bc^2."""
        if not self.structure.loss.quadratic:
            return super().risk(quadrature, nodes, parameters, overlaps, head)
        c, omega = self.residual(parameters, head), overlaps.covariance
        mean = jnp.sum(c * jnp.diagonal(omega))
        return 0.5 * (mean**2 + 2 * jnp.sum(c[:, None] * c * omega**2) + parameters["noise"])

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        p, omega = self.structure.width, overlaps.covariance
        q = jnp.diagonal(omega)
        cross = pairs.error(*self.partners, q[:p], q[p:], omega[:p, p:], quadrature.terms)
        worst = jnp.maximum(super().error(quadrature, nodes, parameters, overlaps, head), cross)
        if self.structure.loss.outer is not squared:
            return worst
        teacher, terms = self.partners[1], max(quadrature.terms, quadrature.label_terms)
        return jnp.maximum(worst, pairs.error(teacher, teacher, q[p:], q[p:], omega[p:, p:], terms))
