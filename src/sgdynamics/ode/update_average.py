"""The mean of one step of an update over points of the fields of a batch.

An update that is not linear in the gradient (clipping, Muon, two reads of one batch, ...) has no
mean step along a mean gradient. Its step depends on a batch through the fields of its inputs on the
rows that it reads and on the signals, on the draws of the samples, and on the outside parts of the
inputs, which are orthogonal and of fixed length in the limit. The mean over the fields and draws is
a sum over weighted points; each point takes the step of the exact chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    StepSettings,
    detach_head,
    increments,
)
from sgdynamics.algorithms.updates.update import Law
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar
from sgdynamics.expectations.nodes import lower_root, solve_forward
from sgdynamics.ode.update_frames import Frame, JointFrame
from sgdynamics.ode.update_points import two_points, two_points_of_law
from sgdynamics.problems.moves import LossOverlaps
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.chain_batch import ChainBatch, segment_inputs, segment_kicks
from sgdynamics.simulation.span_draws import SpanDraws

if TYPE_CHECKING:
    from sgdynamics.ode.update_step import UpdateStep


class EvaluationPoint(NamedTuple):
    """Rows and head at which a step takes a gradient.

    Attributes
    ----------
    rows : array, (blocks, p, columns)
        Rows in the columns of a frame.
    head : array, (p,)
        Second-layer weights.
    """

    rows: Float[Numeric, "blocks p columns"]
    head: Float[Numeric, " p"]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """Inputs of the mean of one step.

    Attributes
    ----------
    field : UpdateStep
        The vector field, with all static choices.
    replicate : pytree
        Nodes of the expectations, or points of the fields.
    parameters : dict
        Parameters of the problem.
    algorithm : dict
        Parameters of the algorithm, with the hyperparameters of the update under "update".
    frame : Frame
        Columns in which the step is taken.
    settings : StepSettings
        Settings of the step.
    points : list of EvaluationPoint
        Rows and heads at which the step takes gradients.
    """

    field: UpdateStep
    replicate: PyTree
    parameters: Parameters
    algorithm: Parameters
    frame: Frame
    settings: StepSettings
    points: list[EvaluationPoint]


class _ReadRecorder(GradientSource):
    """A batch whose gradients are 0, which records the rows at which a step takes them."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.rows_read: list[Numeric] = []

    def note(self, rows: Numeric) -> None:
        # By identity: a step that reads the same rows twice passes the same traced array.
        if not any(rows is earlier for earlier in self.rows_read):
            self.rows_read.append(rows)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        return jnp.zeros_like(rows), jnp.zeros_like(head)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        batch = self.frame.batch
        row_gradients = jnp.zeros((batch, *rows.shape), rows.dtype)
        return row_gradients, jnp.zeros((batch, *head.shape), head.dtype)

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        return self.frame.overlaps_for_loss(rows)

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        return rows

    def noise(self) -> Numeric:
        return jnp.zeros((self.frame.p, self.frame.blocks * (self.frame.inside + self.frame.new)))


def evaluation_points(
    law: Law, hyperparameters: Parameters, frame: Frame, settings: StepSettings
) -> list[EvaluationPoint]:
    """Return the rows and heads at which a step takes its gradients.

    They are recorded in a step whose gradients are 0. A shift along gradients needs no point of its
    own, because it lies in the columns of the batch.
    """
    state, recorder = frame.step_state(), _ReadRecorder(frame)
    head = state.head[: settings.structure.head_size]
    increments(law, hyperparameters, state, recorder, settings)
    if not recorder.rows_read:
        weights = state.rows[: frame.p]
        return [EvaluationPoint(frame.split_blocks(weights), head)]
    points = []
    for joint_rows in recorder.rows_read:
        rows, point_head = joint_rows, head
        if settings.structure.trained:  # a trained head is in the last columns of the rows
            rows, point_head = detach_head(joint_rows, len(head))
        points.append(EvaluationPoint(frame.split_blocks(rows), point_head))
    return points


@dataclass(frozen=True, eq=False)
class _LimitBatch(ChainBatch):
    """The batch of one point. Coordinatewise functions are means over each block."""

    _: KW_ONLY
    frame: Frame | JointFrame

    def squares(self, G: Numeric) -> Numeric:
        # A joint frame has no mean squares per block.
        assert isinstance(self.frame, Frame)
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Numeric:
        return self.frame.sign(G)


class PointAverage:
    """The mean of the rates of one step over weighted points of the fields and draws.

    Parameters
    ----------
    inputs : StepInputs
        Inputs of the step. `inputs.replicate` contains "fields", "noise" and "weights" with the
        leading axes (chunks, points).
    """

    def __init__(self, inputs: StepInputs) -> None:
        frame, structure = inputs.frame, inputs.field.structure
        self.inputs = inputs
        # A loss that reads overlaps may read those of each block, which a joint frame mixes.
        has_own_blocks = frame.blocks == 1 or structure.loss.reads_overlaps
        self.view = frame if has_own_blocks else JointFrame(frame)
        # Inputs with given fields: x_b = l_b X_b^T C^-T zeta along the rows X = (signals, rows
        # read), where C C^T is the covariance of their fields.
        rows_read = [point.rows for point in inputs.points]
        X = jnp.concatenate([frame.S, *rows_read], axis=1)[..., : frame.inside]
        gram = X @ jnp.swapaxes(X, -1, -2)
        C = lower_root(input_covariance.field_covariance(inputs.parameters, gram))
        self.input_map = self.view.input_map(jax.vmap(partial(solve_forward, C))(X))
        self.outside = self.view.outside
        self.state = self.view.step_state()

    def rates(self) -> dict[str, Numeric]:
        """Return the mean rates of all overlaps."""
        replicate = self.inputs.replicate
        nodes = (replicate["fields"], replicate["noise"], replicate["weights"])
        point_rates = self._integrate_noise if self.inputs.field.sums_noise else self._point_rates

        def add_chunk(total: PyTree, chunk: PyTree) -> tuple[PyTree, None]:
            rates = jax.vmap(point_rates)(*chunk)
            return jax.tree.map(lambda sum_, rate: sum_ + jnp.sum(rate, axis=0), total, rates), None

        shapes = jax.eval_shape(point_rates, *(array[0, 0] for array in nodes))
        zero = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        # One chunk after the other: the memory is that of one chunk.
        total, _ = jax.lax.scan(add_chunk, zero, nodes)
        return self.view.combine(total)

    def _batch(
        self, zeta: Float[Numeric, " fields"], noise: Float[Numeric, " draws"]
    ) -> _LimitBatch:
        """Return the batch at one point: standard normals of its fields and of its draws."""
        view, layout = self.view, self.view.layout
        sample, batch = self.inputs.field.structure.sample, self.inputs.field.batch
        inside = jnp.einsum(
            "...n,bnc->...bc", zeta.reshape(1, batch, *sample.tokens.shape, -1), self.input_map
        )
        draws = SpanDraws(inside, noise.reshape(1, batch, -1), self.outside)
        if layout.kicks:
            # The update's own noise lies outside of the frame: its part inside is O(1) of sqrt(D).
            shape = (1, layout.kicks, layout.structure.blocks, view.inside)
            draws = draws._replace(kicks=jnp.zeros(shape))
        # Segments of the chain have a leading axis of steps, here with a single one.
        x, loss_argument = segment_inputs(layout, view.parameters, draws)
        loss_argument = jax.tree.map(lambda leaf: leaf[0], loss_argument)
        kicks = segment_kicks(layout, draws)
        return _LimitBatch(
            layout,
            view.parameters,
            self.inputs.frame.D,
            x[0],
            loss_argument,
            self.outside,
            None if kicks is None else kicks[0],
            frame=view,
        )

    def _weighted_rates(
        self,
        zeta: Float[Numeric, " fields"],
        noise: Float[Numeric, " draws"],
        weight: Scalar,
    ) -> dict[str, Numeric]:
        """Return the rates of the step at one point, times a weight."""
        step = increments(
            self.inputs.field.law,
            self.inputs.algorithm["update"],
            self.state,
            self._batch(zeta, noise),
            self.inputs.settings,
        )
        return jax.tree.map(lambda rate: weight * rate, self.view.rates(step))

    def _point_rates(
        self,
        zeta: Float[Numeric, " fields"],
        noise: Float[Numeric, " draws"],
        weight: Float[Numeric, ""],
    ) -> dict[str, Numeric]:
        """Return the weighted rates of one point of the fields and draws."""
        return self._weighted_rates(zeta, noise, weight)

    def _integrate_noise(
        self,
        zeta: Float[Numeric, " fields"],
        noise: Float[Numeric, " draws"],
        weight: Float[Numeric, ""],
    ) -> dict[str, Numeric]:
        """Return the weighted rates of one point of the fields, integrated over label noise.

        The gradient of a sample is linear in its label noise z: the residual times one vector,
        h = h_0 + z (h_1 - h_0). A step jumps where h vanishes, and has kinks where the norm of h is
        the bound of a clipped update. Between these edges it is a polynomial of z, which two nodes
        integrate.
        """
        zero = jnp.zeros_like(noise)
        edges, is_noiseless = self._noise_edges(zeta, zero)
        total = None
        for z, probability in self._noise_nodes(edges):
            # Where the gradient does not depend on the noise all nodes are the same point.
            shift = jnp.where(is_noiseless, 0.0, z)
            rates = self._weighted_rates(zeta, zero + shift, weight * probability)
            total = rates if total is None else jax.tree.map(jnp.add, total, rates)
        assert total is not None
        return total

    def _noise_edges(
        self, zeta: Float[Numeric, " fields"], zero: Float[Numeric, " draws"]
    ) -> tuple[list[Array], Bool[Array, ""]]:
        """Return the increasing edges of label noise, and whether the gradient ignores the noise.

        h vanishes at z = root and has the norm |z - root| |slope| elsewhere, which is the bound c
        of a clipped update at the distance c/|slope| on both sides.
        """
        rows, head = self.inputs.points[0]
        coordinates = self.view.coordinates(rows)
        h0, h1 = (
            self._batch(zeta, zero + z)._moves(coordinates, head, None, None)[2] for z in (0.0, 1.0)
        )
        slope = jnp.sqrt(jnp.sum((h1 - h0) ** 2))
        is_noiseless = slope == 0
        slope = jnp.where(is_noiseless, 1.0, slope)
        # The slope is not squared: it may be as small as the smallest number.
        root = -jnp.sum(h0 * ((h1 - h0) / slope)) / slope
        law = self.inputs.field.law
        if not law.bends:
            return [root], is_noiseless
        # The bound is a norm of the gradient over sqrt(D), which is |h| times |x|/sqrt(D).
        bound = _nested_hyperparameter(self.inputs.algorithm["update"], law.bends)
        bound = bound / jnp.sqrt(input_covariance.trace(self.inputs.parameters))
        slopes = jnp.sqrt(jnp.sum((h1 - h0) ** 2, axis=0)) if law.bends_by_row else slope[None]
        # A row whose gradient does not depend on the noise has no kink.
        reach = jnp.where(slopes > 0, bound / jnp.where(slopes > 0, slopes, 1.0), jnp.inf)
        edges = jnp.sort(jnp.concatenate([root - reach, root[None], root + reach]))
        return list(edges), is_noiseless

    def _noise_nodes(self, edges: list[Array]) -> Iterator[tuple[Array, Array]]:
        """Return nodes and probabilities of label noise: two between each pair of edges."""
        law, parameters = self.inputs.field.noise_law, self.inputs.parameters
        for low, high in zip([-jnp.inf, *edges], [*edges, jnp.inf], strict=True):
            if law is None:
                yield from two_points(low, high)
            else:
                yield from two_points_of_law(law, parameters["noise_law"], low, high)


def _nested_hyperparameter(hyperparameters: Parameters, name: str) -> Scalar:
    """Return a hyperparameter of an update, or of the update inside it."""
    if name in hyperparameters:
        return hyperparameters[name]
    return _nested_hyperparameter(hyperparameters["of"], name)
