"""Expectations of any per-sample loss, by averages over scrambled Sobol points, made continuous in the overlaps where it has kinks.

A sample of L inputs with the correlation C (`samples.Sample`) has the fields F = mean + root Y, Y = Z C^1/2, Omega = root root^T, Z of
independent normals (fields x L). With h (p x L) the gradient in the students' fields and c (L x K) the inputs' means on the signals,

    H = E[h Y^T] root^-1,   E[h C h^T],   shift = E[h c],
    norms_b = E[h U_b h^T],   U_b = l_b (Y^T S_b Y - Tr S_b C) + c P_b c^T + X_b + X_b^T,   X_b = c (l_b Omega_b)_signals root^-T Y,

S_b = root^-1 l_b Omega_b root^-T: U_b + l_b d_b C is the mean of the inputs' scalar products in block b, given the fields. Draws of few
values are summed over, all others have a coordinate of the points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.interface import Expectation, Moments, Overlaps, Quadrature
from sgdynamics.expectations.nodes import sobol_normals, solve_forward, solve_lower
from sgdynamics.expectations.read_fields import read_fields
from sgdynamics.expectations.weighted_points import (
    Points,
    columns,
    field_points,
    mirrored,
    norm_weights,
    order_of,
    sample_fields,
)
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

MOST_SLOPES = 512  # second derivatives of a loss that are taken at each point


@dataclass(frozen=True)
class SobolAverages(Expectation):
    """Any loss at all: averages over points, the discrete draws case by case."""

    structure: Structure

    @property
    def drift_sampled(self) -> bool:
        return True

    @property
    def by_slopes(self) -> bool:
        """Whether Stein's lemma is used the other way, with derivatives of a smooth move in place of products: they have less spread."""
        return self.structure.loss.smooth

    def sampled(self, flow: bool) -> bool:
        return True

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        # the drift is sampled too, not only the noise term: it needs more points
        return {"points": field_points(self.structure, quadrature, more=2)}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        normals, draws = columns(self.structure)
        every_case = (
            self.structure.sample.free < self.structure.sample.draw_normals
        )  # each point serves them all
        return {
            "plain": sobol_normals(
                normals + draws,
                quadrature.log2_points + (-2 if every_case else 2),
                quadrature.replicates,
                whiten=True,
            )
        }

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirrored(self.structure, self.nodes(quadrature, flow)), None

    def _over_cases(self, parameters: Parameters, one: Callable[..., Any]) -> Any:
        """The sum over all values of the draws that have few, each with its probability."""
        weights, cases = self.structure.sample.cases(parameters)
        if not cases:
            return one({})
        return jax.tree.map(
            lambda value: jnp.tensordot(jnp.asarray(weights), value, axes=1), jax.vmap(one)(cases)
        )

    def points(
        self,
        points: Float[Numeric, "n coordinates"],
        parameters: Parameters,
        overlaps: Overlaps,
        case: dict[str, Any],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Points:
        """Weighted samples that stand for all, at one value of the draws that are summed over."""
        if self.structure.dependence is not None:
            return read_fields(self.structure, points, overlaps, parameters, case, weights)
        return sample_fields(
            self.structure, points, overlaps, parameters, case, plain=plain, given_weights=weights
        )

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
        structure, sample = self.structure, self.structure.sample
        moves = jax.vmap(structure.loss.move, (0, 0, None, 0, None))
        reading = parameters_with_overlaps(structure, parameters, overlaps)

        by_slope = (
            self.by_slopes
            and structure.width * structure.fields * sample.inputs_a_sample**2 <= MOST_SLOPES
        )

        def one(case: dict[str, Any]) -> Moments:
            found = self.points(
                nodes["points"], parameters, overlaps, case, weights=nodes.get("weights")
            )
            fields = (sample.by_sample(found.students), sample.by_sample(found.signals))
            values, move = moves(*fields, head, found.given, reading)
            h, head_gradient = sample.by_input(move.inputs), move.head
            weighted = sample.each_input(found.weights)[:, None] * h
            if by_slope:
                stein = slopes(structure, parameters, fields, head, found, reading)
            else:
                stein = solve_lower(found.root, weighted.T @ found.z)[
                    :, np.argsort(order_of(structure))
                ]
            mixed = sample.mixed_inputs(parameters, h.T)
            noise = (sample.each_input(found.weights) * mixed) @ mixed.T
            norms = None
            if finite:
                by_token = h.reshape(-1, sample.inputs_a_sample, structure.width)
                swing = found.weights[:, None, None, None] * norm_weights(
                    structure, parameters, overlaps, found
                )
                norms = jnp.einsum("nbtu,nti,nuj->bij", swing, by_token, by_token)
            shift = None if found.means is None else weighted.T @ found.means
            pull = None
            if structure.loss.reads_overlaps:
                each = jnp.concatenate([move.rows, move.signals], axis=-1)
                pull = jnp.tensordot(found.weights, each, axes=1)
                if norms is not None:
                    norms = norms + pulled_norms(
                        structure, parameters, overlaps, found, weighted, each
                    )
            return Moments(
                stein,
                noise,
                norms,
                found.weights @ head_gradient,
                found.weights @ values,
                shift,
                pull,
            )

        return self._over_cases(parameters, one)

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        """A loss is continuous, so plain points do also where it has kinks."""
        return self.mean_loss(nodes["plain"], parameters, overlaps, head, plain=True)

    def mean_loss(
        self,
        points: Float[Numeric, "n coordinates"],
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Any:
        """E[loss] over points that all weigh the same unless weights are given; of a function of many values E of each."""
        structure, sample = self.structure, self.structure.sample
        reading = parameters_with_overlaps(structure, parameters, overlaps)

        def one(case: dict[str, Any]) -> Float[Numeric, "..."]:
            found = self.points(points, parameters, overlaps, case, plain=plain, weights=weights)
            fields = (sample.by_sample(found.students), sample.by_sample(found.signals))
            values = jax.vmap(structure.loss, (0, 0, None, 0, None))(
                *fields, head, found.given, reading
            )
            return (
                jnp.mean(values, axis=0)
                if weights is None
                else jnp.tensordot(found.weights, values, axes=1)
            )

        return self._over_cases(parameters, one)


def slopes(
    structure: Structure,
    parameters: Parameters,
    fields: tuple[Float[Numeric, "..."], Float[Numeric, "..."]],
    head: Float[Numeric, " p"],
    points: Points,
    reading: Parameters,
) -> Float[Numeric, "p fields"]:
    """G_ic = sum_lm C_lm E[dh_il/dF_cm] of a smooth loss, (p, fields): by Stein's lemma what E[h Y^T] root^-1 is, with less spread."""
    sample, p = structure.sample, structure.width

    def gradient(
        students: Float[Numeric, "..."], signals: Float[Numeric, "..."], given: Any
    ) -> Float[Numeric, "p tokens"]:
        return structure.loss.move(students, signals, head, given, reading)[1].inputs.reshape(p, -1)

    each = jax.vmap(jax.jacfwd(gradient, argnums=(0, 1)))(*fields, points.given)
    correlation = (
        parameters["token_correlation"] if sample.correlated else jnp.eye(sample.inputs_a_sample)
    )

    def summed(slope: Float[Numeric, "..."]) -> Float[Numeric, "p columns"]:
        slope = slope.reshape(*slope.shape[:4], -1)  # (n, p, tokens, fields, tokens)
        return jnp.einsum("n,nilcm,lm->ic", points.weights, slope, correlation)

    return jnp.concatenate([summed(part) for part in each], axis=1)


def parameters_with_overlaps(
    structure: Structure, parameters: Parameters, overlaps: Overlaps
) -> Any:
    """The numbers with the overlaps among them, where the loss reads them; lengths X X^T/d are those of d = infinity."""
    p = structure.width
    lengths = None
    if structure.loss.reads_lengths:
        sample = structure.sample
        correlation = (
            parameters["token_correlation"]
            if sample.correlated
            else jnp.eye(sample.inputs_a_sample)
        )
        lengths = input_covariance.trace(parameters) * correlation
    return structure.loss.parameters_with_overlaps(
        parameters, overlaps.blocks[:, :p, :p], overlaps.blocks[:, :p, p:], lengths
    )


def pulled_norms(
    structure: Structure,
    parameters: Parameters,
    overlaps: Overlaps,
    points: Points,
    weighted: Float[Numeric, "..."],
    pulls: Any,
) -> Any:
    """What the coefficients D = [A | B] of a sample add to the mean of its increment's square, (blocks, p, p): with F_b the part of the
    fields in block b, E[h F_b^T D^T + transpose + D Omega_b D^T]."""
    p, fields = structure.width, structure.fields
    tokens, order = structure.sample.inputs_a_sample, order_of(structure)
    back = np.argsort(order)

    def one(
        blocks: Float[Numeric, "..."],
        scaled: Float[Numeric, "..."],
        pulls: Float[Numeric, "n p fields"],
    ) -> Any:
        # the mean of the fields' part in the block, given all of it
        part = points.z @ solve_forward(points.root, scaled[order][:, order])[:, back]
        if points.means is not None:
            part = part + points.means @ blocks[p:]
        along = jnp.einsum(
            "nti,ntf->nif", weighted.reshape(-1, tokens, p), part.reshape(-1, tokens, fields)
        )
        cross = jnp.einsum("nif,njf->ij", along, pulls)
        return (
            cross + cross.T + jnp.einsum("n,nic,cd,njd->ij", points.weights, pulls, blocks, pulls)
        )

    if structure.loss.moves_by_block:
        return jax.vmap(one, (0, 0, 1))(
            overlaps.blocks, input_covariance.scaled(parameters, overlaps.blocks), pulls
        )
    return jax.vmap(partial(one, pulls=pulls))(
        overlaps.blocks, input_covariance.scaled(parameters, overlaps.blocks)
    )
