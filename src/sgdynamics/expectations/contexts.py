"""Expectations of problems of which a sample draws one: weighted sums, each context by its own expectation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters, PyTree
from sgdynamics.expectations.interface import Expectation, Moments, Overlaps, Quadrature
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.samples.draws import weights_of


@dataclass(frozen=True)
class ContextSums(Expectation):
    """sum_c w_c of the moments of every context, at its own numbers, eigenvalues and, where it has one, head."""

    structure: Structure
    parts: tuple[Expectation, ...]

    def moments(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " heads"],
        *,
        finite: bool = False,
        flow: bool = False,
    ) -> Moments:
        loss, total, heads = self.structure.loss, None, []
        weights = weights_of(parameters["probabilities"])
        whole = input_covariance.eigenvalues(parameters)
        for context, part in enumerate(self.parts):
            weight, numbers, seen = weights[context], parameters["contexts"][context], overlaps
            if self.structure.sample.own_spectra:
                seen = overlaps._replace(
                    covariance=input_covariance.variance(numbers, overlaps.blocks)
                )
            own = loss.context_head(head, context)
            found = part.moments(
                quadrature, _own(nodes, context), numbers, seen, own, finite=finite, flow=flow
            )
            if self.structure.sample.own_spectra:
                # in units of the eigenvalues of all contexts together, by which moments are multiplied
                ratio = (input_covariance.eigenvalues(numbers) / whole)[:, None, None]
                found = found._replace(stein=ratio * found.stein, noise=ratio * found.noise)
            heads.append(weight * found.head_gradient)
            rest = Moments(
                *(
                    None if one is None else weight * one
                    for one in found._replace(head_gradient=None)
                )
            )  # type: ignore[arg-type]
            total = (
                rest
                if total is None
                else Moments(*(_plus(one, other) for one, other in zip(total, rest, strict=True)))
            )
        assert total is not None
        return total._replace(head_gradient=loss.combine_head_gradients(heads))

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " heads"],
    ) -> Float[Numeric, ""]:
        every = jnp.stack(
            [
                part.risk(quadrature, *one)
                for part, *one in self._each(nodes, parameters, overlaps, head)
            ]
        )
        return jnp.asarray(weights_of(parameters["probabilities"])) @ every

    def _each(
        self,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " heads"],
    ) -> list[tuple[Any, ...]]:
        found = []
        for context, part in enumerate(self.parts):
            numbers = parameters["contexts"][context]
            seen = overlaps._replace(covariance=input_covariance.variance(numbers, overlaps.blocks))
            found.append(
                (
                    part,
                    _own(nodes, context),
                    numbers,
                    seen,
                    self.structure.loss.context_head(head, context),
                )
            )
        return found

    def quadrature(self, largest: float) -> Quadrature:
        every = [part.quadrature(largest) for part in self.parts]
        return _finest(every)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        every = [
            found for part in self.parts if (found := part.finer(quadrature, largest)) is not None
        ]
        return _finest(every) if every else None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return _together([part.nodes(quadrature, flow) for part in self.parts])

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        return _together([part.risk_nodes(quadrature, quick=quick) for part in self.parts])

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " heads"],
    ) -> Float[Numeric, ""]:
        errors = [
            part.error(quadrature, own, *one)
            for part, own, *one in self._each(nodes, parameters, overlaps, head)
            if "plain" not in own
        ]
        return jnp.max(jnp.stack([jnp.zeros(()), *errors]))

    def sampled(self, flow: bool) -> bool:
        return any(part.sampled(flow) for part in self.parts)

    @property
    def drift_sampled(self) -> bool:
        return any(part.drift_sampled for part in self.parts)


def _plus(one: PyTree, other: PyTree) -> Any:
    return other if one is None else one if other is None else one + other


def _finest(quadratures: list[Quadrature]) -> Quadrature:
    """A quadrature that is as fine as each of these."""
    finest = {
        one.name: max(getattr(quadrature, one.name) for quadrature in quadratures)
        for one in fields(Quadrature)
        if one.name != "mixture"
    }
    return Quadrature(
        **finest,
        mixture=next(
            (quadrature.mixture for quadrature in quadratures if quadrature.mixture is not None),
            None,
        ),
    )


def _together(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The points of all contexts, with one number of replicates: what is not sampled goes with each of them."""
    replicates = max(len(value) for part in parts for value in part.values())
    return {
        f"{context}.{name}": np.broadcast_to(value, (replicates, *value.shape[1:]))
        if len(value) == 1
        else value[:replicates]
        for context, part in enumerate(parts)
        for name, value in part.items()
    }


def _own(nodes: Nodes, context: int) -> dict[str, Any]:
    """The points of one context."""
    mark = f"{context}."
    return {
        name.removeprefix(mark): value for name, value in nodes.items() if name.startswith(mark)
    }
