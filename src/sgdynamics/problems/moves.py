"""`Move`, the step that one sample causes, and the overlaps that a loss or rule may read."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.samples import input_covariance


class Move(NamedTuple):
    """The step of rows R and head a that one sample causes, as returned by a ``Rule``.

    ::

        R <- R - (lr/D)(H X + A R + B S),      a <- a - (head_rate lr/D) g

    X are the sample's inputs and S the signals. The gradient of a loss is a move with A = B = 0.

    Parameters
    ----------
    inputs : array (p,) or (p, tokens)
        Coefficients H of the inputs.
    rows : array (p, p) or (blocks, p, p), optional
        Coefficients A of the rows, zero by default; with a leading axis they differ between
        covariance blocks.
    signals : array (p, K) or (blocks, p, K), optional
        Coefficients B of the signals, zero by default; with a leading axis they differ between
        covariance blocks.
    head : array (p,), optional
        Step g of the head, if it is trained; zero by default.

    Examples
    --------
    Hebb's rule, which moves a row along the input by its label:

    >>> import jax.numpy as jnp
    >>> import sgdynamics as sgd
    >>> def hebb(fields, signals, head, noise_draw, overlaps):
    ...     return sgd.Move(-jnp.sign(signals))
    >>> rule = sgd.Rule(hebb, groups={"w": 1})
    >>> rule.width, rule.signals
    (1, 1)
    """

    inputs: Numeric
    rows: Numeric | None = None
    signals: Numeric | None = None
    head: Numeric | None = None

    def coefficients(self, p: int, K: int) -> tuple[Numeric, Numeric, Numeric, Numeric]:
        """Return H, A, B and g for p rows and K signals, with zeros for those that are None."""

        def zeros_if_none(coefficient: Numeric | None, shape: tuple[int, ...]) -> Numeric:
            return jnp.zeros(shape, self.inputs.dtype) if coefficient is None else coefficient

        return (
            self.inputs,
            zeros_if_none(self.rows, (p, p)),
            zeros_if_none(self.signals, (p, K)),
            zeros_if_none(self.head, (p,)),
        )


class BlockOverlaps(NamedTuple):
    """Overlaps of the rows inside each covariance block.

    Attributes
    ----------
    Q : array (blocks, p, p)
        Gram matrices of the rows.
    M : array (blocks, p, K)
        Overlaps of the rows with the signals.
    P : array (blocks, K, K)
        Gram matrices of the signals.
    eigenvalues : array (blocks,)
        Eigenvalues of the inputs' covariance.
    fractions : array (blocks,)
        Fractions of the dimension.
    """

    Q: Numeric
    M: Numeric
    P: Numeric
    eigenvalues: Numeric
    fractions: Numeric


class LossOverlaps(NamedTuple):
    """The argument `overlaps` of a loss or rule.

    Attributes
    ----------
    Q : array (p, p)
        Gram matrix W W^T of the full rows.
    M : array (p, K)
        Overlaps W W*^T with the signals.
    P : array (K, K)
        Gram matrix W* W*^T of the signals.
    lengths : array (tokens, tokens), optional
        X X^T/d of the sample's inputs, if a rule declares that it reads them.
    blocks : BlockOverlaps, optional
        The overlaps of each covariance block, if the function reads them.
    """

    Q: Numeric
    M: Numeric
    P: Numeric
    lengths: Numeric | None = None
    blocks: BlockOverlaps | None = None


def loss_overlaps(
    parameters: Parameters,
    Q: Numeric,
    M: Numeric,
    lengths: Numeric | None = None,
    *,
    with_blocks: bool = True,
) -> LossOverlaps:
    """Return the argument `overlaps` of a loss from Q (blocks, p, p) and M (blocks, p, K)."""
    P = jnp.broadcast_to(parameters["gram"], (*M.shape[:1], *parameters["gram"].shape[-2:]))
    overlaps = LossOverlaps(jnp.sum(Q, axis=0), jnp.sum(M, axis=0), jnp.sum(P, axis=0), lengths)
    if not with_blocks:
        return overlaps
    blocks = BlockOverlaps(
        Q, M, P, input_covariance.eigenvalues(parameters), input_covariance.fractions(parameters)
    )
    return overlaps._replace(blocks=jax.tree.map(lambda leaf: jnp.asarray(leaf, Q.dtype), blocks))


class RecordedOverlaps:
    """Overlaps for one trial call of a user's function, which record whether `blocks` is read."""

    def __init__(self, overlaps: LossOverlaps) -> None:
        self.Q, self.M, self.P, self.lengths, self._blocks = overlaps
        self.blocks_read = False

    @property
    def blocks(self) -> BlockOverlaps | None:
        """The overlaps of each block; reading them is recorded."""
        self.blocks_read = True
        return self._blocks
