"""Expectations of several problems of which each sample draws one: weighted sums over contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric
from sgdynamics.expectations.interface import Moments, Quadrature
from sgdynamics.expectations.solver_interface import Evaluation, SolverExpectation
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.samples.draws import complete_probabilities


@dataclass(frozen=True)
class ContextSums(SolverExpectation):
    """The mean of the moments of all contexts.

    Each context has its own parameters, eigenvalues and, optionally, its own head.
    """

    structure: Structure
    contexts: tuple[SolverExpectation, ...]

    def _evaluations(
        self, at: Evaluation, *, own_covariance: bool
    ) -> Iterator[tuple[SolverExpectation, Evaluation]]:
        """The expectation of each context with its arguments."""
        for context, expectation in enumerate(self.contexts):
            # each context sees its own nodes, parameters and head, and the shared overlaps
            parameters, overlaps = at.parameters["contexts"][context], at.overlaps
            if own_covariance:
                covariance = input_covariance.field_covariance(parameters, overlaps.blocks)
                overlaps = overlaps._replace(covariance=covariance)
            yield (
                expectation,
                at._replace(
                    nodes=context_nodes(at.nodes, context),
                    parameters=parameters,
                    overlaps=overlaps,
                    head=self.structure.loss.context_head(at.head, context),
                ),
            )

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        own_spectra = self.structure.sample.context_spectra
        # a sample belongs to context c with probability w_c: moments are means over contexts
        weights = complete_probabilities(at.parameters["probabilities"])
        shared_eigenvalues = input_covariance.eigenvalues(at.parameters)
        totals: dict[str, Any] = {}
        head_gradients = []
        evaluations = self._evaluations(at, own_covariance=own_spectra)
        for context, (expectation, own) in enumerate(evaluations):
            moments = expectation.evaluate_moments(own, finite=finite, flow=flow)
            if own_spectra:
                # the sum is multiplied by the shared eigenvalues later: divide by them here
                ratio = input_covariance.eigenvalues(own.parameters) / shared_eigenvalues
                ratio = ratio[:, None, None]
                moments = moments._replace(stein=ratio * moments.stein, noise=ratio * moments.noise)
            for name, value in moments._asdict().items():
                weighted = None if value is None else weights[context] * value
                if name == "head_gradient":
                    # heads may belong to single contexts: gradients are assembled, not added
                    head_gradients.append(weighted)
                else:
                    # moments that a context does not have (shift, pull, norms) count as 0
                    totals[name] = _add(totals.get(name), weighted)
        return Moments(
            **totals, head_gradient=self.structure.loss.combine_head_gradients(head_gradients)
        )

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        risks = [
            expectation.evaluate_risk(own)
            for expectation, own in self._evaluations(at, own_covariance=True)
        ]
        return jnp.asarray(complete_probabilities(at.parameters["probabilities"])) @ jnp.stack(
            risks
        )

    def quadrature(self, largest: float) -> Quadrature:
        return finest([context.quadrature(largest) for context in self.contexts])

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        # one quadrature serves all contexts: it is refined if any of them asks for it
        proposals = [context.finer(quadrature, largest) for context in self.contexts]
        finer = [proposal for proposal in proposals if proposal is not None]
        return finest(finer) if finer else None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return join_nodes([context.nodes(quadrature, flow) for context in self.contexts])

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        return join_nodes(
            [context.risk_nodes(quadrature, quick=quick) for context in self.contexts]
        )

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        errors = [
            expectation.estimate_error(own)
            for expectation, own in self._evaluations(at, own_covariance=True)
            # plain points have replicates in place of an error estimate
            if "plain" not in own.nodes
        ]
        return jnp.max(jnp.stack([jnp.zeros(()), *errors]))

    def sampled(self, flow: bool) -> bool:
        return any(context.sampled(flow) for context in self.contexts)

    @property
    def drift_sampled(self) -> bool:
        return any(context.drift_sampled for context in self.contexts)


def _add(left: Numeric | None, right: Numeric | None) -> Numeric | None:
    """The sum of two moments, where None stands for 0."""
    if left is None or right is None:
        return right if left is None else left
    return left + right


def finest(quadratures: list[Quadrature]) -> Quadrature:
    """A quadrature that is as fine as each of these."""
    # all fields are counts, for which larger is finer, except the mixture quadrature
    largest = {
        field.name: max(getattr(quadrature, field.name) for quadrature in quadratures)
        for field in fields(Quadrature)
        if field.name != "mixture"
    }
    mixtures = [quadrature.mixture for quadrature in quadratures if quadrature.mixture is not None]
    return Quadrature(**largest, mixture=next(iter(mixtures), None))


def join_nodes(contexts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The nodes of all contexts, with a common number of replicates.

    Nodes that are not sampled have one replicate, which is repeated.
    """
    # solvers map over replicates: all arrays need the same number of them
    replicates = max(len(value) for nodes in contexts for value in nodes.values())
    joined = {}
    for context, nodes in enumerate(contexts):
        for name, value in nodes.items():
            repeated = np.broadcast_to(value, (replicates, *value.shape[1:]))
            joined[f"{context}.{name}"] = repeated
    return joined


def context_nodes(nodes: Nodes, context: int) -> Nodes:
    """The nodes of one context."""
    prefix = f"{context}."
    return {
        name.removeprefix(prefix): value for name, value in nodes.items() if name.startswith(prefix)
    }
