"""Expectations of a frozen network with an update of low rank (LoRA): those of two networks.

The preactivations of the units and of the teacher's units are linear in the fields,

    lambda'_i = W0_i.x + sum_j B_ij A_j.x,     lambda*_i = W0_i.x + u_i v*.x,

so that with the rows T of their coefficients on (A, W0, v*) the moments are those of a network of
the units that learns from one with the same units, at the overlaps T Omega_b T^T. With H' and C'
the Stein matrix and the noise of that network, the chain rule gives

    H = B^T H' T,     C = B^T C' B,     E[dloss/dB_ij] = (H' T Omega)_ij.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.closed_pairs import ClosedPairs
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.perturbed import Wrapper
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.losses import CommitteeLoss, squared
from sgdynamics.problems.problem import Structure
from sgdynamics.samples.sample import GaussianSample

# Variance of a preactivation relative to the largest of a field, for the length of a series.
LARGER = 4.0


def is_low_rank(structure: Structure) -> bool:
    """Whether the loss declares the activation of a frozen network with an update of low rank."""
    function = getattr(structure.loss, "function", None)
    has_plain_sample = structure.sample == GaussianSample(structure.signals)
    return hasattr(function, "low_rank_activation") and has_plain_sample


class LowRankMoments(Wrapper):
    """Moments of a network with an update of low rank, from those of its units."""

    def __init__(self, structure: Structure) -> None:
        units = structure.signals - 1
        activation = structure.loss.function.low_rank_activation
        network = replace(
            structure,
            width=units,
            signals=units,
            loss=CommitteeLoss(student=activation, outer=squared, teacher=activation),
            trained=False,
            sample=GaussianSample(units),
            expectation=None,
            dependence=None,
            top=None,
        )
        super().__init__(structure, ClosedPairs(network))

    def _update(self, at: Evaluation) -> Float[Numeric, "units rank"]:
        """The factor B."""
        return jnp.reshape(at.head, (self.structure.signals - 1, self.structure.width))

    def _coefficients(self, at: Evaluation) -> Float[Numeric, "preactivations fields"]:
        """The preactivations of student and teacher as combinations of the fields."""
        units, rank = self.structure.signals - 1, self.structure.width
        frozen, zero = jnp.eye(units), jnp.zeros((units, 1))
        shift = jnp.asarray(at.parameters["user"]["shift"])[:, None]
        of_student = jnp.concatenate([self._update(at), frozen, zero], axis=1)
        of_teacher = jnp.concatenate([jnp.zeros((units, rank)), frozen, shift], axis=1)
        return jnp.concatenate([of_student, of_teacher])

    def _convert_to_units(self, at: Evaluation) -> Evaluation:
        """The arguments for the network of the units, whose output is a mean."""
        user, T = at.parameters["user"], self._coefficients(at)
        head = (self.structure.signals - 1) * jnp.asarray(user["head"])
        parameters = at.parameters | {"teacher_head": head, "noise": user["noise"]}
        blocks = T @ at.overlaps.blocks @ T.T
        overlaps = Overlaps(blocks, T @ at.overlaps.covariance @ T.T)
        return at._replace(parameters=parameters, overlaps=overlaps, head=head)

    def quadrature(self, largest: float) -> Quadrature:
        return self.inner.quadrature(LARGER * largest)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        return self.inner.finer(quadrature, LARGER * largest)

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        B, T, rank = self._update(at), self._coefficients(at), self.structure.width
        moments = self.inner.evaluate_moments(self._convert_to_units(at), finite=finite, flow=flow)
        slopes = moments.stein @ T
        of_update = slopes @ at.overlaps.covariance[:, :rank]
        norms = None if moments.norms is None else B.T @ moments.norms @ B
        return Moments(
            B.T @ slopes, B.T @ moments.noise @ B, norms, of_update.reshape(-1), moments.risk
        )

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.inner.evaluate_risk(self._convert_to_units(at))

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.inner.estimate_error(self._convert_to_units(at))
