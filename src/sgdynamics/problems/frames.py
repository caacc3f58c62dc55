"""Orthonormal frames in which signals and rows are written, one per covariance block.

In block b the signals have coordinates C_b with C_b C_b^T = P_b, and the rows are [T_b | L_b] with
M_b = T_b C_b^T and Q_b = T_b T_b^T + L_b L_b^T: the compressed space of K + p columns.

A block is called small if it has fewer coordinates than signals and rows. There the columns of the
frame are the coordinates themselves, and the remaining columns are zero.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.repetition import is_repeated
from sgdynamics.base.support import require
from sgdynamics.problems.overlap_starts import RESULT_TOLERANCE, TOLERANCE, Start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.input_covariance import coordinate_scales
from sgdynamics.samples.inputs import Embedding
from sgdynamics.samples.spectra import MAX_DIMENSION


@runtime_checkable
class RowOverlaps(Protocol):
    """Overlaps of any rows: M (runs, blocks, rows, K) and Q (runs, blocks, rows, rows)."""

    @property
    def M(self) -> np.ndarray: ...
    @property
    def Q(self) -> np.ndarray: ...


def check_dimension(
    problem: Problem, dimension: int | float | None, small: bool = False
) -> tuple[int, np.ndarray]:
    """Validate the dimension d and return it with the sizes of the covariance blocks.

    Every block needs at least signals + width coordinates, or one coordinate if `small` blocks are
    allowed. A spectrum fixes the dimension, which may then be None; a spectrum of infinitely many
    directions counts the directions that represent them.
    """
    require("functional", problem)
    spectrum = problem.spectrum
    if spectrum is not None and dimension is not None and dimension != spectrum.dimension:
        raise checks.reject(
            "dimension",
            dimension,
            f"the spectrum of the inputs has {spectrum.dimension:g} dimensions. Omit dimension.",
        )
    if spectrum is not None:
        d = int(spectrum.multiplicities.sum())
    elif dimension is None:
        raise checks.reject(
            "dimension", dimension, "give the dimension d of the inputs, an integer"
        )
    else:
        d = checks.integer("dimension", dimension, 1, MAX_DIMENSION)
    sizes = problem.block_dimensions(d)
    needed = problem.signals + problem.width
    least = 1 if small and len(sizes) > 1 else needed
    if sizes.min() < least:
        _reject_small_blocks(problem, d, sizes, least, needed)
    return d, sizes


def _reject_small_blocks(
    problem: Problem, d: int, sizes: np.ndarray, least: int, needed: int
) -> None:
    if problem.spectrum is not None:
        raise checks.reject(
            "covariance",
            problem.spectrum,
            f"rows and signals need signals + width = {needed} coordinates in every block here, "
            f"and one block has {sizes.min()}. Merge eigenvalues, or use solve_ode or simulate.",
        )
    reason = "a covariance block has no coordinate"
    if least == needed:
        reason = f"rows and signals need signals + width = {needed} coordinates per block"
    where = f" (block sizes are {sizes.tolist()})" if len(sizes) > 1 else ""
    smallest = max(math.ceil(least / fraction) for fraction in problem.parameters["fractions"])
    raise checks.reject("dimension", d, f"{reason}{where}. Use {smallest} or more.")


def _small_blocks(
    problem: Problem, sizes: np.ndarray | None, rows: int | None = None
) -> list[tuple[int, int]]:
    """Return (block, size) of the blocks with fewer coordinates than signals and rows."""
    if sizes is None:
        return []
    needed = problem.signals + (rows or problem.width)
    return [(block, size) for block, size in enumerate(sizes.tolist()) if size < needed]


def signal_frames(problem: Problem, sizes: np.ndarray | None) -> np.ndarray:
    """Return coordinates C of the signals in each block, C C^T = P, of shape (blocks, K, K).

    In a small block of n coordinates only the first n columns are used; the others are zero.
    """
    frames = problem.parameters["frame"].copy()
    for block, size in _small_blocks(problem, sizes):
        # In a small block the columns are ordered by decreasing eigenvalue of P, so that the
        # directions that the signals span come first.
        values, vectors = np.linalg.eigh(problem.gram[block])
        spanned = values[::-1] > TOLERANCE * max(1.0, *values[-1:])
        if spanned.sum() > size:
            raise checks.reject(
                "gram",
                problem.gram[block],
                f"block {block} has {size} coordinates, and the signals have rank "
                f"{spanned.sum()} there. Give one Gram matrix per block, of a rank not larger "
                "than the size of the block, or a larger dimension.",
            )
        frames[block] = vectors[:, ::-1] * np.sqrt(np.where(spanned, values[::-1], 0.0))
    return frames


def compressed_rows(
    problem: Problem, start: Start | RowOverlaps, sizes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the compressed rows T (runs, blocks, p, K) and L (runs, blocks, p, p) of a start.

    They satisfy M = T C^T with C C^T = P, and L L^T = Q - T T^T, block by block. `start` is a
    `Start`, or the overlaps of more rows, such as those of an update. In a small block of n
    coordinates only the first n of the columns [T | L] are used.
    """
    M, Q = (start.M_blocks, start.Q_blocks) if isinstance(start, Start) else (start.M, start.Q)
    runs = len(M)
    if is_repeated(M, Q):
        # All runs of one start are factorised once.
        M, Q = M[:1], Q[:1]
    frames, k, rows = signal_frames(problem, sizes), problem.signals, M.shape[2]
    T = M @ np.swapaxes(np.linalg.pinv(frames, rcond=1e-12), -1, -2)
    orthogonal = Q - T @ np.swapaxes(T, -1, -2)
    values, vectors = np.linalg.eigh((orthogonal + np.swapaxes(orthogonal, -1, -2)) / 2)
    # Starts are accepted as positive semi-definite to a tolerance: negative values are rounding.
    L = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    for block, size in _small_blocks(problem, sizes, rows):
        along_signals = int(np.count_nonzero(frames[block].any(axis=0)))
        free = min(size - along_signals, rows)
        # Eigenvalues are in increasing order: all but the last `free` have to vanish.
        excess = values[:, block, : rows - free].max(initial=0.0)
        if excess > RESULT_TOLERANCE * max(1.0, float(values[:, block].max())):
            raise ValueError(
                f"start has overlaps of rank {along_signals + free + 1} or more in block {block}, "
                f"which has {size} coordinates. Give M and Q block by block with a rank of at "
                "most the size of the block, as sgd.random_start(..., dimension=) does, or use "
                "solve_ode, which needs no coordinates."
            )
        columns = [T[:, block, :, :along_signals], L[:, block, :, ::-1][..., :free]]
        compressed = np.concatenate(columns, axis=-1)
        unused = k + rows - compressed.shape[-1]
        compressed = np.pad(compressed, ((0, 0), (0, 0), (0, unused)))
        T[:, block], L[:, block] = compressed[..., :k], compressed[..., k:]
    if len(T) < runs:
        T, L = (np.repeat(array, runs, axis=0) for array in (T, L))
    return T, L


def place_signals(problem: Problem, sizes: np.ndarray) -> Embedding:
    """Put the signals along the first axes of each covariance block of d coordinates.

    Any other position differs by a rotation within the blocks, which leaves the law of the inputs
    unchanged.
    """
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    used = np.arange(problem.signals) < sizes[:, None]  # a small block has fewer axes than signals
    axes = (first[:, None] + np.arange(problem.signals))[used]
    signals = np.moveaxis(signal_frames(problem, sizes), 0, 1)[:, used]
    return Embedding(coordinate_scales(problem.parameters, sizes), axes, signals)
