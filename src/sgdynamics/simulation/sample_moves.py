"""The moves of rows and head that the samples of a batch cause, in any frame."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.problems.moves import Move
from sgdynamics.problems.problem import Structure


class SampleMoves(NamedTuple):
    """Moves of a batch; for a loss they are its derivatives.

    Attributes
    ----------
    h : array, (inputs, p)
        Coefficients of the inputs: dloss/dfields.
    head : array, (samples, p)
        Moves of the head: dloss/dhead.
    coefficients : array, (samples, [blocks,] p, p + K), or None
        Coefficients [A | B] of rows and signals, if the loss reads overlaps.
    """

    h: Numeric
    head: Numeric
    coefficients: Numeric | None


def sample_moves(
    structure: Structure,
    parameters: Parameters,
    fields: Numeric,
    signals: Numeric,
    head: Float[Numeric, " p"],
    loss_argument: PyTree,
    lengths: Numeric | None = None,
) -> SampleMoves:
    """Return the moves that the samples of a batch cause.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    parameters : dict
        Parameters of the problem, with the overlaps if the loss reads them.
    fields : array, (inputs, p)
        Preactivations of the inputs.
    signals : array, (inputs, K)
        Projections of the inputs on the signal directions.
    head : array, (p,)
        Second-layer weights.
    loss_argument : pytree
        Fourth argument of the loss for each sample, such as label noise.
    lengths : array, (samples, tokens, tokens), optional
        Gram matrices X X^T/d of the inputs of each sample, if the loss reads them.
    """
    sample = structure.sample

    def move(fields: Numeric, signals: Numeric, argument: PyTree, lengths: Numeric | None) -> Move:
        """The move of one sample."""
        values = parameters
        if lengths is not None:
            values = {**parameters, "overlaps": parameters["overlaps"]._replace(lengths=lengths)}
        return structure.loss.move(fields, signals, head, argument, values)[1]

    # The loss is a function of one sample, which may consist of several inputs (tokens).
    moves = jax.vmap(move)(
        sample.tokens.group_by_sample(fields),
        sample.tokens.group_by_sample(signals),
        loss_argument,
        lengths,
    )
    # A user's loss may contain float64 constants; a float32 simulation stays in float32.
    h = sample.tokens.flatten_inputs(moves.inputs).astype(fields.dtype)
    assert moves.head is not None
    head_move = moves.head.astype(fields.dtype)
    if not structure.loss.reads_overlaps:
        return SampleMoves(h, head_move, None)
    # The move of a loss that reads overlaps has all coefficients, zeros included.
    assert moves.rows is not None
    assert moves.signals is not None
    coefficients = jnp.concatenate([moves.rows, moves.signals], axis=-1)
    return SampleMoves(h, head_move, coefficients.astype(fields.dtype))


def sample_gradients(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "inputs p"],
    signals: Float[Numeric, "inputs K"],
    head: Float[Numeric, " p"],
    loss_argument: PyTree,
) -> tuple[Float[Numeric, "inputs p"], Float[Numeric, "samples p"]]:
    """Return dloss/dfields (inputs, p) and dloss/dhead (samples, p) of a loss without overlaps."""
    moves = sample_moves(structure, parameters, fields, signals, head, loss_argument)
    return moves.h, moves.head
