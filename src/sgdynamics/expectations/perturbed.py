"""Expectations that wrap another one: dropout, and noise on the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.solver_interface import Evaluation, SolverExpectation
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

MOST_DROPOUT_UNITS = 10  # the moments are sums over all 2^p sets of active units


@dataclass(frozen=True)
class Wrapper(SolverExpectation):
    """An expectation with the nodes, quadratures and errors of the one that it wraps."""

    structure: Structure
    inner: SolverExpectation

    @property
    def uses_series(self) -> bool:  # type: ignore[override]
        return self.inner.uses_series

    @property
    def advice(self) -> str:  # type: ignore[override]
        return self.inner.advice

    def quadrature(self, largest: float) -> Quadrature:
        return self.inner.quadrature(largest)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        return self.inner.finer(quadrature, largest)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return self.inner.nodes(quadrature, flow)

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        return self.inner.risk_nodes(quadrature, quick=quick)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return self.inner.search_nodes(quadrature, flow)

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.inner.estimate_error(at)

    def sampled(self, flow: bool) -> bool:
        return self.inner.sampled(flow)

    @property
    def drift_sampled(self) -> bool:
        return self.inner.drift_sampled

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.inner.evaluate_risk(at)


@dataclass(frozen=True)
class DropoutSums(Wrapper):
    """Dropout: the moments are sums over all sets of active units.

    With the gates g in {0, 1}^p, each of probability prod_i keep^g_i (1 - keep)^(1 - g_i), a sample
    has the head g a. The risk is that of the network at test time, with the head gain a.
    """

    def quadrature(self, largest: float) -> Quadrature:
        p = self.structure.width
        if p > MOST_DROPOUT_UNITS:
            fix = (
                f"its theory sums over 2^{p} sets of units. Use a width of {MOST_DROPOUT_UNITS} "
                "or less, or sgd.simulate"
            )
            raise checks.reject("keep", f"of width {p}", fix)
        return super().quadrature(largest)

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        p, keep = self.structure.width, at.parameters["keep"]
        gates = np.indices((2,) * p).reshape(p, -1).T.astype(np.float64)
        # as products, not as powers, so that keep = 0 and 1 have derivatives
        weights = jnp.prod(jnp.where(gates > 0, keep, 1 - keep), axis=1)

        def gated_moments(gate: Float[Numeric, " p"]) -> Moments:
            gated = at._replace(head=at.head * gate)
            moments = self.inner.evaluate_moments(gated, finite=finite, flow=flow)
            # the chain rule: a unit that is dropped has no head gradient
            return moments._replace(head_gradient=gate * moments.head_gradient)

        moments = jax.vmap(gated_moments)(jnp.asarray(gates))
        return jax.tree.map(lambda moment: jnp.tensordot(weights, moment, axes=1), moments)

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        # at test time all units are active, with the head multiplied by the gain
        return self.inner.evaluate_risk(at._replace(head=at.parameters["gain"] * at.head))


@dataclass(frozen=True)
class NoisyInputs(Wrapper):
    """Noise of variance nu on the inputs of the students, not on those of the signals.

    In block b the students see the variance l_b + nu. The covariance of the fields is

        [[(l + nu) Q, l M], [l M^T, l P]].

    E[h x] has the factor l_b + nu on the students' columns of H and l_b on the signals', and the
    noise has the factor l_b + nu. The risk is that of inputs without noise.
    """

    def _noisy_covariance(self, at: Evaluation) -> Float[Numeric, "fields fields"]:
        p = self.structure.width
        noise = at.parameters["input_noise"] * jnp.sum(at.overlaps.blocks, axis=0)[:p, :p]
        return jnp.asarray(at.overlaps.covariance).at[:p, :p].add(noise)

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        p, blocks = self.structure.width, at.overlaps.blocks
        ratio = 1 + at.parameters["input_noise"] / input_covariance.eigenvalues(at.parameters)
        # (l_b + nu)/l_b on students, 1 on signals: solvers multiply by the eigenvalue l_b later
        on_students = jnp.broadcast_to(ratio[:, None], (len(ratio), p))
        on_signals = jnp.ones((len(ratio), self.structure.signals))
        scale = jnp.concatenate([on_students, on_signals], axis=1)
        # |x|^2 of the noisy inputs: the students' part of each block is multiplied by the same
        # ratio
        noisy_blocks = scale[:, :, None] * blocks * scale[:, None, :]
        overlaps = Overlaps(noisy_blocks, self._noisy_covariance(at))
        moments = self.inner.evaluate_moments(
            at._replace(overlaps=overlaps), finite=finite, flow=flow
        )
        return moments._replace(
            stein=scale[:, None, :] * moments.stein, noise=ratio[:, None, None] * moments.noise
        )

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        overlaps = at.overlaps._replace(covariance=self._noisy_covariance(at))
        return self.inner.estimate_error(at._replace(overlaps=overlaps))
