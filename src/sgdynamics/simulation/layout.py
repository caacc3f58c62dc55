"""The layout of the exact chain: which columns there are, and how many steps they serve.

`compressed` explains the columns. A layout is static: compiled code depends on it, and nothing in
it depends on the number of runs, on the dimension or on the save points. Random numbers are drawn
in the groups that it defines, and so none of these changes the numbers of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import Numeric
from sgdynamics.problems.problem import Structure

# Number of inputs whose random numbers are drawn together: a few kilobytes per run.
SPAN = 64
# Largest number of covariance blocks that are compressed wherever possible. With more blocks the
# covariance is a spectrum, and a step costs as much as all columns together.
FEW_BLOCKS = 4
# Least number of new columns between two folds. More columns waste normals (an input has one in
# each of them), fewer waste QR decompositions.
LEAST_COLUMNS = 8
# The same for a single row, whose fold is a sum of squares and costs less than the normals of
# further columns.
COLUMNS_OF_ONE_ROW = 2


@dataclass(frozen=True)
class Layout:
    """Columns of the compressed space, and the grouping of steps.

    A *segment* is the group of steps between two folds, and a *span* is the group of segments whose
    random numbers are drawn together.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    batch : int
        Number of samples per step.
    single_step : bool, default False
        Whether a segment has a single step, as averages over one step need it.
    update : Law, optional
        Law of the update. Defaults to plain SGD.
    explicit_sizes : tuple of int, default ()
        Sizes of the explicit blocks, whose coordinates are the columns, and 0 for the compressed
        blocks. Empty if no block is explicit.
    spare : int, default 0
        Number of additional new columns that belong to no input.
    """

    structure: Structure
    batch: int
    single_step: bool = False
    update: Law | None = None
    explicit_sizes: tuple[int, ...] = ()
    spare: int = 0

    # ---- steps

    @property
    def inputs(self) -> int:
        """Number of inputs of a batch."""
        return self.batch * self.structure.sample.tokens.inputs_per_sample

    @property
    def kicks(self) -> int:
        """Number of rows of noise that the update itself adds in a step."""
        return self.structure.width if self.update is not None and self.update.noise else 0

    @property
    def wide_batch(self) -> bool:
        """Whether only p combinations of the outside parts of a batch are drawn.

        The rows move along h^T X. Its outside part has p rows, whatever the number of inputs, but
        their coefficients are known only when the gradient h is. That saves columns if a batch has
        more inputs than the student has units.
        """
        # An update that reads the batch again after a move along it needs each input by itself, and
        # so does a loss that reads the Gram matrix of the inputs.
        return (
            self.inputs > self.structure.width
            and not (self.update and self.update.rereads)
            and not self.structure.loss.reads_lengths
        )

    @property
    def steps(self) -> int:
        """Number of steps of a segment."""
        # The columns of a wide batch depend on the gradient, and hence on the step before.
        if self.wide_batch or self.single_step:
            return 1
        least = COLUMNS_OF_ONE_ROW if self.rows == 1 else max(LEAST_COLUMNS, self.structure.width)
        return max(1, least // (self.inputs + self.kicks))

    @property
    def folds(self) -> int:
        """Number of segments of a span; each of them ends with a fold."""
        return max(1, SPAN // (self.steps * self.inputs))

    @property
    def span_steps(self) -> int:
        """Number of steps of a span."""
        return self.steps * self.folds

    # ---- columns

    @property
    def rows(self) -> int:
        """Number of rows: those of the weights, and those of the memory of the update."""
        return count_row_sets(self.update) * self.structure.width

    @property
    def inside(self) -> int:
        """Number of columns of [T | L] in a compressed block."""
        # L is a square root of a Gram matrix of all rows, and has as many columns as rows.
        return self.structure.signals + self.rows

    @property
    def columns(self) -> int:
        """Number of new columns of a compressed block: one per input or kick of a segment."""
        return (
            (self.structure.width if self.wide_batch else self.steps * self.inputs)
            + self.steps * self.kicks
            + self.spare
        )

    def for_block_sizes(self, sizes: np.ndarray) -> Layout:
        """The layout for blocks of these sizes, which decides what blocks are explicit.

        A block with no more coordinates than [T | L] has columns is explicit. In a spectrum of many
        blocks its coordinates may also be as many as [T | L | new], because they cost no more.
        """
        most = self.inside + (self.columns if len(sizes) > FEW_BLOCKS else 0)
        explicit_sizes = tuple(int(size) if size <= most else 0 for size in sizes)
        # A single block is always compressed: its frame has zeros where coordinates are missing.
        has_explicit = any(explicit_sizes) and len(explicit_sizes) > 1
        return replace(self, explicit_sizes=explicit_sizes if has_explicit else ())

    @property
    def compressed_blocks(self) -> np.ndarray:
        """Indices of the compressed blocks."""
        return np.array(
            [
                block
                for block in range(self.structure.blocks)
                if not (self.explicit_sizes and self.explicit_sizes[block])
            ],
            dtype=int,
        )

    @property
    def explicit_blocks(self) -> np.ndarray:
        """The block of each column of the strip, which holds all explicit blocks side by side."""
        return np.repeat(np.arange(len(self.explicit_sizes)), self.explicit_sizes)

    @property
    def explicit_coordinates(self) -> np.ndarray:
        """The coordinate, counted inside of its block, of each column of the strip."""
        # The leading empty array makes the concatenation valid if no block is explicit.
        return np.concatenate(
            [np.arange(0), *(np.arange(size) for size in self.explicit_sizes)]
        ).astype(int)

    @property
    def column_blocks(self) -> np.ndarray:
        """The block of each column, first of the strip and then of the compressed blocks."""
        return np.concatenate(
            [self.explicit_blocks, np.repeat(self.compressed_blocks, self.inside + self.columns)]
        )

    def join(self, strip: Numeric | None, blocks: Numeric) -> Numeric:
        """Flat columns [strip | block | block | ...].

        Parameters
        ----------
        strip : array, (..., strip columns), or None
            Columns of the explicit blocks; only read if there are explicit blocks.
        blocks : array, (..., compressed blocks, columns)
            Columns of the compressed blocks.
        """
        flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
        if not self.explicit_sizes:
            return flat
        assert strip is not None
        return jnp.concatenate([strip, flat], axis=-1)

    def split(self, columns: Numeric) -> tuple[Numeric, Numeric]:
        """The strip and the compressed blocks of flat columns: the inverse of `join`."""
        cut = len(self.explicit_blocks)
        return columns[..., :cut], columns[..., cut:].reshape(
            *columns.shape[:-1], len(self.compressed_blocks), self.inside + self.columns
        )
