"""Expectations of any per-sample loss, by averages over scrambled Sobol points.

A sample of L inputs with the correlation C (`samples.Sample`) has the fields F = mean + root Y,
with Y = Z C^1/2, Omega = root root^T and Z of independent normals (fields x L). With h (p x L) the
gradient in the fields of the students and c (L x K) the coefficients of the means of the inputs on
the signals,

    H = E[h Y^T] root^-1,   E[h C h^T],   shift = E[h c],   norms_b = E[h U_b h^T],
    U_b = l_b (Y^T S_b Y - Tr S_b C) + c P_b c^T + X_b + X_b^T,
    S_b = root^-1 l_b Omega_b root^-T,   X_b = c (l_b Omega_b)_signals root^-T Y.

U_b + l_b d_b C is the mean of the scalar products of the inputs in block b, given the fields. Draws
with few outcomes are summed over; all others have a coordinate of the points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.nodes import sobol_normals, solve_forward, solve_lower
from sgdynamics.expectations.read_fields import read_fields
from sgdynamics.expectations.solver_interface import Evaluation, SolverExpectation
from sgdynamics.expectations.weighted_points import (
    Points,
    count_coordinates,
    field_points,
    mirror_points,
    norm_weights,
    root_order,
    sample_fields,
)
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

MOST_SLOPES = 512  # second derivatives of a loss that are evaluated at each point
# Directions of derivatives that are evaluated one after the other, which is faster than together.
MOST_UNROLLED = 16
# Points that are evaluated together on a CPU: all values of that many fit into its cache, also for
# several replicates at once.
POINTS_IN_CACHE = 512

# Result of a function of weighted points.
Result = TypeVar("Result")


@dataclass(frozen=True)
class SobolAverages(SolverExpectation):
    """Moments of any loss or rule, as averages over Sobol points."""

    structure: Structure

    @property
    def drift_sampled(self) -> bool:
        return True

    @property
    def by_slopes(self) -> bool:
        """Whether H is the average of dh/dF, which has less variance than h Y^T root^-1."""
        return self.structure.loss.smooth

    def sampled(self, flow: bool) -> bool:
        return True

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        # four times the points of `Networks`, where only the noise is sampled and not the drift
        return {"points": field_points(self.structure, quadrature, log2_factor=2)}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        sample = self.structure.sample
        # each point serves all cases of discrete draws: fewer points are needed
        has_cases = sample.sampled_normals < sample.normals_per_sample
        log2_points = quadrature.log2_points + (-2 if has_cases else 2)
        coordinates = sum(count_coordinates(self.structure))
        points = sobol_normals(coordinates, log2_points, quadrature.replicates, whiten=True)
        return {"plain": points}

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirror_points(self.structure, self.nodes(quadrature, flow)), None

    def _sum_cases(
        self, parameters: Parameters, average: Callable[[dict[str, Any]], PyTree]
    ) -> PyTree:
        """The mean of `average(case)` over all outcomes of the discrete draws."""
        # draws with few outcomes are integrated exactly, at the cost of one average per case
        weights, cases = self.structure.sample.cases(parameters)
        if not cases:
            return average({})
        return jax.tree.map(
            lambda value: jnp.tensordot(jnp.asarray(weights), value, axes=1),
            jax.vmap(average)(cases),
        )

    def sample_points(
        self,
        points: Float[Numeric, "n coordinates"],
        parameters: Parameters,
        overlaps: Overlaps,
        case: dict[str, Any],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Points:
        """Weighted samples at these points, for one outcome of the discrete draws."""
        if self.structure.dependence is not None:
            return read_fields(self.structure, points, overlaps, parameters, case, weights)
        return sample_fields(
            self.structure, points, overlaps, parameters, case, plain=plain, point_weights=weights
        )

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        structure, sample = self.structure, self.structure.sample
        parameters, overlaps, head = at.parameters, at.overlaps, at.head
        # values and moves (h, A, B and the head gradient) of all samples
        moves = jax.vmap(structure.loss.move, (0, 0, None, 0, None))
        reading = parameters_with_overlaps(structure, parameters, overlaps)
        # second derivatives dh_il/dF_cm per point: too many cost more than they save
        slopes_per_point = structure.width * structure.fields * sample.tokens.inputs_per_sample**2
        by_slopes = self.by_slopes and slopes_per_point <= MOST_SLOPES

        def moments_of_points(
            case: dict[str, Any],
            point_values: Float[Numeric, "n coordinates"],
            point_weights: Float[Numeric, " n"] | None,
        ) -> Moments:
            points = self.sample_points(
                point_values, parameters, overlaps, case, weights=point_weights
            )
            # the loss takes the fields of all inputs of a sample together
            fields = (
                sample.tokens.group_by_sample(points.students),
                sample.tokens.group_by_sample(points.signals),
            )
            losses, move = moves(*fields, head, points.draws, reading)
            h = sample.tokens.flatten_inputs(move.inputs)
            # all inputs of a sample have its weight
            weighted = sample.tokens.repeat(points.weights)[:, None] * h
            if by_slopes:
                stein = mean_slopes(structure, parameters, fields, head, points, reading)
            else:
                # E[h Y^T] root^-1, back in the order students, signals
                stein = solve_lower(points.root, weighted.T @ points.z)
                stein = stein[:, np.argsort(root_order(structure))]
            # h C^1/2, so that E[h C h^T] is a plain product
            mixed = sample.tokens.correlate_inputs(parameters, h.T)
            noise = (sample.tokens.repeat(points.weights) * mixed) @ mixed.T
            norms = None
            if finite:
                # sum over pairs (t, u) of inputs of a sample
                by_token = h.reshape(-1, sample.tokens.inputs_per_sample, structure.width)
                U = norm_weights(structure, parameters, overlaps, points)
                U = points.weights[:, None, None, None] * U
                norms = jnp.einsum("nbtu,nti,nuj->bij", U, by_token, by_token)
            # E[h c]: the means of the inputs on the signals
            shift = None if points.means is None else weighted.T @ points.means
            pull = None
            if structure.loss.reads_overlaps:
                # the coefficients [A | B] of the move on rows and signals
                pulls = jnp.concatenate([move.rows, move.signals], axis=-1)
                pull = jnp.tensordot(points.weights, pulls, axes=1)
                if norms is not None:
                    norms = norms + pull_norms(
                        structure, parameters, overlaps, points, weighted, pulls
                    )
            head_gradient, risk = points.weights @ move.head, points.weights @ losses
            return Moments(stein, noise, norms, head_gradient, risk, shift, pull)

        def case_moments(case: dict[str, Any]) -> Moments:
            nodes = at.nodes
            evaluate = partial(moments_of_points, case)
            return sum_over_points(evaluate, nodes["points"], nodes.get("weights"))

        return self._sum_cases(parameters, case_moments)

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        """E[loss]; a loss is continuous, so that plain points suffice also if it has kinks."""
        return self.mean_loss(at, at.nodes["plain"], plain=True)

    def mean_loss(
        self,
        at: Evaluation,
        points: Float[Numeric, "n coordinates"],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Float[Numeric, "..."]:
        """E[loss] over points with these weights (equal by default); for any shape of the loss."""
        return self._mean_of(self.structure.loss, at, points, plain=plain, weights=weights)

    def mean_head_squares(self, at: Evaluation) -> Float[Numeric, " entries"]:
        """E[(dloss/dtheta_j)^2] for every entry theta_j of a trained head or top."""
        move = self.structure.loss.move

        def squares(*arguments: Any) -> Numeric:
            return move(*arguments)[1].head ** 2

        return self._mean_of(squares, at, at.nodes["points"], weights=at.nodes.get("weights"))

    def _mean_of(
        self,
        function: Callable[..., Numeric],
        at: Evaluation,
        points: Float[Numeric, "n coordinates"],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Float[Numeric, "..."]:
        """The mean of a function with the arguments of the loss, of any shape."""
        structure, sample = self.structure, self.structure.sample
        reading = parameters_with_overlaps(structure, at.parameters, at.overlaps)

        def mean_of_points(
            case: dict[str, Any],
            point_values: Float[Numeric, "n coordinates"],
            point_weights: Float[Numeric, " n"] | None,
        ) -> Float[Numeric, "..."]:
            samples = self.sample_points(
                point_values, at.parameters, at.overlaps, case, plain=plain, weights=point_weights
            )
            fields = (
                sample.tokens.group_by_sample(samples.students),
                sample.tokens.group_by_sample(samples.signals),
            )
            values = jax.vmap(function, (0, 0, None, 0, None))(
                *fields, at.head, samples.draws, reading
            )
            return jnp.tensordot(samples.weights, values, axes=1)

        def case_mean(case: dict[str, Any]) -> Float[Numeric, "..."]:
            return sum_over_points(partial(mean_of_points, case), points, weights)

        return self._sum_cases(at.parameters, case_mean)


def sum_over_points(
    evaluate: Callable[[Numeric, Numeric | None], Result],
    points: Float[Numeric, "n coordinates"],
    weights: Float[Numeric, " n"] | None,
) -> Result:
    """The sum of a function of weighted points; on a CPU in batches that fit into its cache.

    Values of all points at once would be written to memory and read back by each operation.
    """
    count = len(points)
    batches = -(-count // POINTS_IN_CACHE)
    if batches < 2 or jax.default_backend() != "cpu":
        return evaluate(points, weights)
    weights = jnp.full(count, 1.0 / count, points.dtype) if weights is None else weights
    size = -(-count // batches)
    # The last batch is filled up with points of weight 0.
    missing = batches * size - count
    filling = jnp.broadcast_to(points[:1], (missing, *points.shape[1:]))
    points = jnp.concatenate([points, filling]).reshape(batches, size, *points.shape[1:])
    weights = jnp.concatenate([weights, jnp.zeros(missing, weights.dtype)]).reshape(batches, size)
    values = jax.lax.map(lambda batch: evaluate(*batch), (points, weights))
    return jax.tree.map(lambda value: jnp.sum(value, axis=0), values)


def _token_correlation(structure: Structure, parameters: Parameters) -> Float[Numeric, "L L"]:
    """The correlation C of the inputs of one sample."""
    if structure.sample.tokens.correlated:
        return parameters["token_correlation"]
    return jnp.eye(structure.sample.tokens.inputs_per_sample)


def mean_slopes(
    structure: Structure,
    parameters: Parameters,
    fields: tuple[Float[Numeric, "..."], Float[Numeric, "..."]],
    head: Float[Numeric, " p"],
    points: Points,
    reading: Parameters,
) -> Float[Numeric, "p fields"]:
    """H_ic = sum_lm C_lm E[dh_il/dF_cm] of a smooth loss.

    By Stein's lemma this is E[h Y^T] root^-1, with a smaller variance over the points.
    """
    p = structure.width

    def gradient(
        students: Float[Numeric, "..."], signals: Float[Numeric, "..."], draws: PyTree
    ) -> Float[Numeric, "p tokens"]:
        return structure.loss.move(students, signals, head, draws, reading)[1].inputs.reshape(p, -1)

    def gradients(
        students: Float[Numeric, "n ..."], signals: Float[Numeric, "n ..."]
    ) -> Float[Numeric, "n p tokens"]:
        return jax.vmap(gradient)(students, signals, points.draws)

    correlation = _token_correlation(structure, parameters)
    tokens = len(correlation)
    students, signals = fields
    shapes = students.shape[1:], signals.shape[1:]
    if structure.fields * tokens <= MOST_UNROLLED:
        _, derivative = jax.linearize(gradients, students, signals)

        def average_along(field: int, token: int) -> Float[Numeric, " p"]:
            # sum_l C_lm E[dh_il/dF_cm], reduced at once
            directions = np.zeros((structure.fields, tokens))
            directions[field, token] = 1.0
            slope = derivative(
                jnp.broadcast_to(directions[:p].reshape(shapes[0]), students.shape),
                jnp.broadcast_to(directions[p:].reshape(shapes[1]), signals.shape),
            )
            return jnp.einsum("n,nil,l->i", points.weights, slope, correlation[:, token])

        averages = [
            sum(average_along(field, token) for token in range(tokens))
            for field in range(structure.fields)
        ]
        return jnp.stack(averages, axis=1)
    # derivatives with respect to students and signals, (n, p, L, fields, L)
    slopes = jax.vmap(jax.jacfwd(gradient, argnums=(0, 1)))(*fields, points.draws)

    def average(slope: Float[Numeric, "..."]) -> Float[Numeric, "p columns"]:
        slope = slope.reshape(*slope.shape[:4], -1)  # (n, p, tokens, fields, tokens)
        return jnp.einsum("n,nilcm,lm->ic", points.weights, slope, correlation)

    return jnp.concatenate([average(slope) for slope in slopes], axis=1)


def parameters_with_overlaps(
    structure: Structure, parameters: Parameters, overlaps: Overlaps
) -> Parameters:
    """The parameters, together with the overlaps if the loss reads them.

    The lengths X X^T/d of the inputs, if the loss reads them, are those of d = infinity.
    """
    p = structure.width
    lengths = None
    if structure.loss.reads_lengths:
        correlation = _token_correlation(structure, parameters)
        # x_l.x_m/d concentrates at Tr(Sigma)/d C_lm
        lengths = input_covariance.trace(parameters) * correlation
    return structure.loss.parameters_with_overlaps(
        parameters, overlaps.blocks[:, :p, :p], overlaps.blocks[:, :p, p:], lengths
    )


def pull_norms(
    structure: Structure,
    parameters: Parameters,
    overlaps: Overlaps,
    points: Points,
    weighted: Float[Numeric, "inputs p"],
    pulls: Float[Numeric, "..."],
) -> Float[Numeric, "blocks p p"]:
    """The contribution of the coefficients D = [A | B] to the mean square of the increment.

    With F_b the part of the fields in block b: E[h F_b^T D^T + transpose + D Omega_b D^T].
    """
    p, fields = structure.width, structure.fields
    tokens, order = structure.sample.tokens.inputs_per_sample, root_order(structure)
    inverse_order = np.argsort(order)

    def block_norms(
        block: Float[Numeric, "fields fields"],
        scaled: Float[Numeric, "fields fields"],
        pulls: Float[Numeric, "n p fields"],
    ) -> Float[Numeric, "p p"]:
        # the mean of F_b given all fields: l_b Omega_b Omega^-1 F
        projection = solve_forward(points.root, scaled[order][:, order])[:, inverse_order]
        block_fields = points.z @ projection
        if points.means is not None:
            block_fields = block_fields + points.means @ block[p:]
        products = jnp.einsum(
            "nti,ntf->nif",
            weighted.reshape(-1, tokens, p),
            block_fields.reshape(-1, tokens, fields),
        )
        cross = jnp.einsum("nif,njf->ij", products, pulls)
        square = jnp.einsum("n,nic,cd,njd->ij", points.weights, pulls, block, pulls)
        return cross + cross.T + square

    # vectorised over blocks; A and B may differ between them
    scaled = input_covariance.times_eigenvalues(parameters, overlaps.blocks)
    if structure.loss.moves_by_block:
        return jax.vmap(block_norms, (0, 0, 1))(overlaps.blocks, scaled, pulls)
    return jax.vmap(partial(block_norms, pulls=pulls))(overlaps.blocks, scaled)
