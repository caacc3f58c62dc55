"""A batch of the exact chain: its inputs in the compressed space, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import GradientSource
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.problems.moves import LossOverlaps, loss_overlaps
from sgdynamics.samples.input_covariance import scale, select_blocks
from sgdynamics.samples.inputs import Embedding, clean_signals, compressed_inputs, inputs_in_space
from sgdynamics.samples.sample import select_row
from sgdynamics.simulation.compressed import explicit_signals, gram_and_overlaps, signal_rows
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.sample_moves import SampleMoves, sample_moves
from sgdynamics.simulation.span_draws import SpanDraws, outside_rows

# Parameters of the law of the samples that may be schedules.
SCHEDULED_IN_SAMPLES = ("draws", "probabilities", "input_noise")


class NoisySample(NamedTuple):
    """Argument of the loss and law of the signals of a sample whose inputs have noise.

    The student sees x + noise, and the label depends on x. Given the noisy input, the signals are
    the sum over blocks of s_b w*_b.x'_b plus an independent deviation (`samples.clean_signals`).

    Attributes
    ----------
    loss_argument : pytree
        Fourth argument of the loss.
    fraction : array, (..., blocks)
        The factors s_b.
    residual : array, (..., K)
        The deviations of the signals.
    """

    loss_argument: PyTree
    fraction: Numeric
    residual: Numeric


# ---- inputs


def segment_inputs(
    layout: Layout,
    parameters: Parameters,
    draws: SpanDraws,
    alpha: Float[Numeric, " steps"] | None = None,
) -> tuple[Float[Numeric, "steps inputs columns"], PyTree]:
    """Inputs of a segment in the compressed space, and the fourth arguments of the loss.

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    parameters : dict
        Parameters of the problem.
    draws : SpanDraws
        Random numbers of the segment.
    alpha : array, (steps,), optional
        Samples/d at each step, for a law of samples that depends on it.

    Returns
    -------
    inputs : array, (steps, inputs, columns)
        The inputs.
    loss_arguments : pytree
        Fourth arguments of the loss, or `NoisySample`, with a leading axis of steps.
    """
    shape = (*draws.inside.shape[:-1], layout.columns)
    own = outside_rows(layout, draws.outside)[:, : layout.inputs]
    # The inputs of a wide batch have no new columns: `ChainBatch.mean` adds their combinations.
    outside = jnp.zeros(shape, draws.inside.dtype) if layout.wide_batch else own.reshape(shape)
    normals = (jnp.concatenate([draws.inside, outside], axis=-1), draws.noise, draws.explicit)
    scheduled = {name: parameters[name] for name in SCHEDULED_IN_SAMPLES if name in parameters}
    leaves = jax.tree.leaves(scheduled, is_leaf=is_scheduled)
    if alpha is None or not any(is_scheduled(leaf) for leaf in leaves):
        return _assemble_inputs(layout, (layout.steps, layout.inputs), parameters, *normals)

    def inputs_at(
        alpha: Scalar, normals: Numeric, noise: Numeric, strip: Numeric | None
    ) -> tuple[Numeric, PyTree]:
        """Inputs of one step."""
        current = {**parameters, **values_at(scheduled, alpha)}
        return _assemble_inputs(layout, (layout.inputs,), current, normals, noise, strip)

    return jax.vmap(inputs_at)(alpha, *normals)


def _assemble_inputs(
    layout: Layout,
    leading_shape: tuple[int, ...],
    parameters: Parameters,
    normals: Numeric,
    noise: Numeric,
    strip: Numeric | None,
) -> tuple[Numeric, PyTree]:
    """Inputs (*leading_shape, columns) from their normals, and the arguments of the loss."""
    sample = layout.structure.sample
    draws = sample.draw(parameters, noise)
    loss_argument: PyTree = sample.loss_argument(draws)
    if sample.noisy_inputs:
        fraction, residual = clean_signals(sample, parameters, draws)
        if fraction.ndim == 1:
            # All leaves need the leading axes of the samples, over which a step is a slice.
            fraction = jnp.broadcast_to(fraction, (*residual.shape[:-1], *fraction.shape))
        loss_argument = NoisySample(loss_argument, fraction, residual)
    if strip is None or not layout.explicit_sizes:
        x = compressed_inputs(sample, parameters, normals, draws)
        return x.reshape(*leading_shape, -1), loss_argument
    selected = select_blocks(parameters, layout.compressed_blocks)
    x = compressed_inputs(sample, selected, normals, draws)
    # The strip is a space of its own, in which each column has the scale of its block.
    embedding = Embedding(
        scale(parameters)[..., layout.explicit_blocks],
        np.arange(len(layout.explicit_blocks)),
        explicit_signals(layout, parameters),
    )
    x_strip = inputs_in_space(sample, parameters, strip, draws, embedding)
    joined = layout.join(
        x_strip.reshape(*leading_shape, -1), x.reshape(*leading_shape, *x.shape[-2:])
    )
    return joined, loss_argument


def segment_kicks(layout: Layout, draws: SpanDraws) -> Float[Numeric, "steps p columns"] | None:
    """The update's own noise in each step of a segment; None if it has none.

    The rows are standard normal in every direction of the input space, whatever the covariance.
    """
    if draws.kicks is None or not layout.kicks:
        return None
    outside = outside_rows(layout, draws.outside)[:, -layout.kicks :]
    return layout.join(draws.explicit_kicks, jnp.concatenate([draws.kicks, outside], axis=-1))


# ---- gradients


@dataclass(frozen=True, eq=False)
class ChainBatch(GradientSource):
    """A batch in the compressed space.

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    parameters : dict
        Parameters of the problem at this step.
    dimension : float or None
        The dimension d; only needed by a loss that reads the lengths X X^T/d.
    x : array, (inputs, columns)
        The inputs.
    loss_argument : pytree
        Fourth arguments of the loss, or `NoisySample`.
    outside : array, (blocks, columns, columns)
        Bartlett factors, for the combinations of a wide batch.
    kicks : array, (p, columns), optional
        The update's own noise.
    """

    layout: Layout
    parameters: Parameters
    dimension: Scalar | None
    x: Numeric
    loss_argument: PyTree
    outside: Numeric
    kicks: Numeric | None = None

    def _moves(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric, Numeric, Numeric, Numeric | None]:
        """Shifted rows and head, and the moves h, head and coefficients of the samples there."""
        # Sums of products, not matrix products: on a CPU the many tiny matrices of a batch of runs
        # fuse into one loop.
        fields = jnp.sum(rows[None] * self.x[:, None], axis=-1)
        if shift is not None:
            # Added to the fields, not to the rows: a small shift along large inputs is not lost to
            # rounding.
            fields = fields + jnp.sum(shift[None] * self.x[:, None], axis=-1)
            rows = rows + shift
        head = head if head_shift is None else head + head_shift
        moves = self._moves_at(rows, head, fields)
        return rows, head, moves.h, moves.head, moves.coefficients

    def _moves_at(self, rows: Numeric, head: Numeric, fields: Numeric) -> SampleMoves:
        """The moves of the samples from their fields."""
        layout, parameters, x = self.layout, self.parameters, self.x
        loss = layout.structure.loss
        signals, loss_argument = self._signals()
        lengths, current = None, parameters
        if loss.reads_overlaps:
            current = loss.parameters_with_overlaps(
                parameters, *gram_and_overlaps(layout, parameters, rows)
            )
        if loss.reads_lengths:
            # Inner products of the inputs of one sample: exact, because a rotation preserves them.
            tokens = x.reshape(layout.batch, -1, x.shape[1])
            assert self.dimension is not None
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / self.dimension
        return sample_moves(
            layout.structure, current, fields, signals, head, loss_argument, lengths
        )

    def _signals(self) -> tuple[Numeric, PyTree]:
        """Projections of the inputs on the signals, and the fourth arguments of the loss."""
        layout, parameters = self.layout, self.parameters
        loss_argument, (in_strip, in_blocks) = self.loss_argument, layout.split(self.x)
        noisy = loss_argument if isinstance(loss_argument, NoisySample) else None
        if noisy is not None:
            # The signals are those of the inputs without noise: s_b w*_b.x'_b and a deviation.
            in_strip = in_strip * noisy.fraction[..., layout.explicit_blocks]
            in_blocks = in_blocks * noisy.fraction[..., layout.compressed_blocks, None]
        frame = (
            parameters["frame"][layout.compressed_blocks]
            if layout.explicit_sizes
            else parameters["frame"]
        )
        # W* x = sum_b C_b x_b, with the first K columns of a block along the signals.
        along_signals = in_blocks[:, :, None, : layout.structure.signals]
        signals = jnp.sum(frame * along_signals, axis=(1, 3))
        if layout.explicit_sizes:
            strip_signals = explicit_signals(layout, parameters)
            signals = signals + jnp.sum(strip_signals * in_strip[:, None], axis=-1)
        if noisy is not None:
            return signals + noisy.residual, noisy.loss_argument
        return signals, loss_argument

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        return loss_overlaps(
            self.parameters, *gram_and_overlaps(self.layout, self.parameters, rows)
        )

    def _combine_rows(self, coefficients: Numeric, rows: Numeric) -> Array:
        """A W + B W* from the coefficients [A | B], (..., [blocks,] p, p + K)."""
        layout, p = self.layout, self.layout.structure.width
        signals = signal_rows(layout, self.parameters)
        if not layout.structure.loss.moves_by_block:
            return jnp.asarray(coefficients[..., :p] @ rows + coefficients[..., p:] @ signals)
        # Coefficients that differ between blocks: each column takes those of its own block.
        by_column = jnp.take(coefficients, layout.column_blocks, axis=-3)
        return jnp.einsum("...cif,fc->...ic", by_column, jnp.concatenate([rows, signals]))

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        layout, x = self.layout, self.x
        rows, head, h, head_gradient, coefficients = self._moves(rows, head, shift, head_shift)
        if layout.inputs == 1:
            # No mean over a single sample: the compiler would keep it as a pass of its own.
            gradient = h[0, :, None] * x[0]
        else:
            gradient = jnp.sum(h[:, :, None] * x[:, None], axis=0) / layout.batch
        if layout.wide_batch:
            strip, blocks = layout.split(gradient)
            new = self._outside_combinations(h)
            blocks = jnp.asarray(blocks).at[..., layout.inside :].set(jnp.moveaxis(new, 0, 1))
            gradient = layout.join(strip, blocks)
        if coefficients is not None:
            gradient = gradient + self._combine_rows(jnp.mean(coefficients, axis=0), rows)
        return gradient, jnp.mean(head_gradient, axis=0)

    def _outside_combinations(self, h: Numeric) -> Array:
        """h^T X_outside/batch of a wide batch, in the new columns (blocks, p, columns).

        X_outside = l^(1/2) C^(1/2) Z with standard normal rows Z. With the QR decomposition
        C^(1/2) h = O R, h^T C^(1/2) Z = R^T (O^T Z). O has orthonormal columns, so that O^T Z are p
        standard normal vectors, and up to a rotation they are the rows of a Bartlett factor.
        """
        layout, parameters, p = self.layout, self.parameters, self.layout.structure.width
        sample = layout.structure.sample
        correlated = sample.tokens.correlate_inputs(parameters, h.T).T
        scales = scale(parameters)[..., layout.compressed_blocks]
        if sample.context_spectra:
            # The scale depends on the context of a sample and moves to its gradient, which then
            # differs between blocks.
            by_sample = select_row(self.loss_argument["context"], scales, h.dtype)
            correlated = by_sample.T[..., None] * correlated
            scales = jnp.ones(len(layout.compressed_blocks))
        R = jnp.linalg.qr(correlated, mode="r")
        combined = jnp.swapaxes(R, -1, -2) / layout.batch
        return jnp.asarray(scales)[:, None, None] * (combined @ self.outside[:, :p])

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        layout, p = self.layout, self.layout.structure.width
        rows, head, h, head_gradient, coefficients = self._moves(rows, head, shift, head_shift)
        # h x^T of each input, summed over the inputs of a sample.
        products = h[:, :, None] * self.x[:, None]
        gradients = jnp.sum(products.reshape(layout.batch, -1, p, self.x.shape[1]), axis=1)
        if coefficients is not None:
            gradients = gradients + self._combine_rows(coefficients, rows)
        return gradients, head_gradient

    def noise(self) -> Numeric:
        # Only the step of an update with noise calls this, and then there are kicks.
        assert self.kicks is not None
        return self.kicks
