"""Expectations around another one: dropout sums over gates, noise on the inputs changes what the fields' covariance is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.interface import Expectation, Moments, Overlaps, Quadrature
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

MOST_GATED = 10  # units: expectations sum over all 2^p ways to drop some


@dataclass(frozen=True)
class Wrapper(Expectation):
    """An expectation whose points, rules and errors are those of the one inside."""

    structure: Structure
    inner: Expectation

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

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.inner.error(quadrature, nodes, parameters, overlaps, head)

    def sampled(self, flow: bool) -> bool:
        return self.inner.sampled(flow)

    @property
    def drift_sampled(self) -> bool:
        return self.inner.drift_sampled

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.inner.risk(quadrature, nodes, parameters, overlaps, head)


@dataclass(frozen=True)
class DropoutSums(Wrapper):
    """Dropout: moments are sums over all gates, each with the head of the units that are there; the risk is that of the test's gain."""

    def quadrature(self, largest: float) -> Quadrature:
        p = self.structure.width
        if p > MOST_GATED:
            fix = f"its theory sums over 2^{p} sets of units: take a width of {MOST_GATED} or less, or sgd.simulate"
            raise checks.reject("keep", f"of width {p}", fix)
        return super().quadrature(largest)

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
        p, keep = self.structure.width, parameters["keep"]
        gates = np.indices((2,) * p).reshape(p, -1).T.astype(np.float64)
        # as products, so that keep = 0 and 1 have derivatives too
        weights = jnp.prod(jnp.where(gates > 0, keep, 1 - keep), axis=1)

        def one(gate: Numeric) -> Any:
            found = self.inner.moments(
                quadrature, nodes, parameters, overlaps, head * gate, finite=finite, flow=flow
            )
            return found._replace(head_gradient=gate * found.head_gradient)

        every = jax.vmap(one)(jnp.asarray(gates))
        return jax.tree.map(lambda part: jnp.tensordot(weights, part, axes=1), every)

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.inner.risk(quadrature, nodes, parameters, overlaps, parameters["gain"] * head)


@dataclass(frozen=True)
class NoisyInputs(Wrapper):
    """Noise of variance nu on the inputs that the students see, not on the signals; the risk is that of inputs without noise.

    In block b the students see l_b + nu: the fields' covariance is [[(l + nu) Q, l M], [l M^T, l P]], E[h x] has l_b + nu times
    the students' part of H and l_b times the signals', and the noise of SGD l_b + nu.
    """

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
        p, nu = self.structure.width, parameters["input_noise"]
        blocks = overlaps.blocks
        more = nu * jnp.sum(blocks, axis=0)[:p, :p]
        covariance = jnp.asarray(overlaps.covariance).at[:p, :p].add(more)
        ratio = 1 + nu / input_covariance.eigenvalues(parameters)
        scale = jnp.concatenate(
            [
                jnp.broadcast_to(ratio[:, None], (len(ratio), p)),
                jnp.ones((len(ratio), self.structure.signals)),
            ],
            axis=1,
        )
        # |x|^2 of the inputs that are seen goes along l (l + nu)/l of every student's part
        seen = Overlaps(scale[:, :, None] * blocks * scale[:, None, :], covariance)
        found = self.inner.moments(
            quadrature, nodes, parameters, seen, head, finite=finite, flow=flow
        )
        return found._replace(
            stein=scale[:, None, :] * found.stein, noise=ratio[:, None, None] * found.noise
        )

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        p = self.structure.width
        more = parameters["input_noise"] * jnp.sum(overlaps.blocks, axis=0)[:p, :p]
        seen = overlaps._replace(covariance=jnp.asarray(overlaps.covariance).at[:p, :p].add(more))
        return self.inner.error(quadrature, nodes, parameters, seen, head)
