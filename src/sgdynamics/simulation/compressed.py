"""The compressed space: d-dimensional one-pass SGD as SGD on a few columns, exactly in law.

The inputs are isotropic inside of a covariance block. A step depends on the rows W of a block
through their overlaps with the signals and with each other only, so that the part of W that is
orthogonal to the signals may be rotated into p columns L. With T, the coordinates along the
signals,

    W (p x d)  ->  [T | L]  (p x (K + p)),     M = T C^T,  C C^T = P,     Q = T T^T + L L^T.

In this frame an input has K + p standard normals and an outside part. The outside parts of several
inputs are drawn by their Gram matrix (`span_draws`): input j lies in the first j of a few new
columns. A few steps (a segment) are thus plain SGD on [T | L | new columns]. Then `fold` rotates
the new columns into L by a QR decomposition, and the next segment starts.

- A batch with more inputs than units needs only the p combinations h^T X_outside of them, unless
  the batch is read again after a move along it (`updates.rereads`).
- The rows of the memory of an update, such as a velocity, are stacked under those of W. With one
  such set L has 2 p columns.
- A block with no more coordinates than columns is *explicit*: its coordinates are the columns, and
  it has no outside. All explicit blocks form one strip, with an eigenvalue per column. Rows are
  stored flat, [strip | T L new | T L new | ...].

Steps act on the factors T and L, not on the overlaps. Q = W W^T therefore stays positive
semi-definite by construction, without clipping.

`layout` defines the columns and the groups of steps, `span_draws` the random numbers,
`chain_batch` the gradients of a batch, and `chain_steps` the steps.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.simulation.layout import Layout


def initial_rows(
    layout: Layout,
    T: Float[Numeric, "blocks rows K"],
    L: Float[Numeric, "blocks rows rows"],
    head: Float[Numeric, " rows"],
    scalars: tuple[Numeric, ...] = (),
    vectors: tuple[Numeric, ...] = (),
) -> Rows:
    """The state [strip | T L 0 | ...] of a run at its start.

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    T, L : array
        Rows in factor form (`problems.frames.compressed_rows`), of all sets of the update or of the
        weights alone. In the second case the other sets start at 0.
    head : array, (rows,)
        Second-layer weights of these rows.
    scalars, vectors : tuple of array
        Scalars of the update, and its vectors over the entries of a trained head.
    """
    missing = count_row_sets(layout.update) * layout.structure.width - T.shape[1]
    # The columns of L that belong to the missing rows, and the new columns, start at 0.
    empty_columns = missing + layout.columns
    rows = jnp.concatenate([T, L], axis=-1)
    rows = jnp.moveaxis(jnp.pad(rows, ((0, 0), (0, missing), (0, empty_columns))), 0, 1)
    # In an explicit block [T | L] holds the coordinates themselves, with zeros behind the last one.
    strip = rows[:, layout.explicit_blocks, layout.explicit_coordinates]
    blocks = rows[:, layout.compressed_blocks]
    heads = count_row_sets(layout.update) * layout.structure.head_size
    head = jnp.pad(head, (0, heads - len(head)))
    return Rows(layout.join(strip, blocks), head, scalars, vectors=vectors)


def overlaps(layout: Layout, parameters: Parameters, state: Rows) -> dict[str, Numeric]:
    """M and Q (block by block) of the weights, and the head a."""
    # The rows of the weights are the first set.
    p = layout.structure.width
    Q, M = gram_and_overlaps(layout, parameters, state.rows[:p])
    return {"M": M, "Q": Q, "a": state.head[: layout.structure.head_size]}


def overlaps_with_memory(layout: Layout, parameters: Parameters, state: Rows) -> dict[str, Numeric]:
    """`overlaps` of the weights, and those of all sets of rows if the update has a memory."""
    Q, M = gram_and_overlaps(layout, parameters, state.rows)
    p = layout.structure.width
    values = {"M": M[:, :p], "Q": Q[:, :p, :p], "a": state.head[: layout.structure.head_size]}
    # More rows than units: the update stores velocities or averages.
    if len(Q[0]) > p:
        values |= {"rows_M": M, "rows_Q": Q, "rows_a": state.head}
    if state.scalars:
        values["update_scalars"] = jnp.stack(state.scalars)
    if state.vectors:
        values["update_vectors"] = jnp.stack(state.vectors)
    return values


def gram_and_overlaps(
    layout: Layout, parameters: Parameters, rows: Float[Numeric, "p columns"]
) -> tuple[Float[Array, "blocks p p"], Float[Array, "blocks p K"]]:
    """Q = W W^T and M = T C^T of rows, block by block.

    The sums of products are not written as matrix products: on a CPU the many tiny matrices of a
    batch of runs then fuse into one loop.
    """
    strip, blocks = layout.split(rows)
    blocks = jnp.moveaxis(blocks, 1, 0)
    frame = parameters["frame"][layout.compressed_blocks]
    # Only the first K columns of a block overlap with the signals.
    T = blocks[..., : layout.structure.signals]
    M = jnp.sum(T[:, :, None] * frame[:, None], axis=-1)
    # New columns count too: inside of a segment they are part of the rows.
    Q = jnp.sum(blocks[:, :, None] * blocks[:, None], axis=-1)
    if not layout.explicit_sizes:
        return Q, M

    def merge_blocks(
        products: Float[Numeric, "p q columns"], compressed: Float[Numeric, "blocks p q"]
    ) -> Float[Array, "blocks p q"]:
        """Overlaps of all blocks, from products per strip column and those of compressed blocks."""
        sums = jnp.zeros((len(layout.explicit_sizes), *products.shape[:2]), products.dtype)
        return (
            sums.at[layout.explicit_blocks]
            .add(jnp.moveaxis(products, -1, 0))
            .at[layout.compressed_blocks]
            .set(compressed)
        )

    signals = explicit_signals(layout, parameters)
    return (
        merge_blocks(strip[:, None] * strip[None], Q),
        merge_blocks(strip[:, None] * signals[None], M),
    )


def explicit_signals(layout: Layout, parameters: Parameters) -> Float[Array, "K columns"]:
    """Coordinates of the signals along the columns of the strip."""
    # The signals lie along the first K coordinates of a block; further coordinates are 0.
    largest = max(layout.explicit_sizes, default=0)
    frame = jnp.pad(
        jnp.asarray(parameters["frame"]),
        ((0, 0), (0, 0), (0, max(0, largest - layout.structure.signals))),
    )
    return frame[layout.explicit_blocks, :, layout.explicit_coordinates].T


def signal_rows(layout: Layout, parameters: Parameters) -> Float[Numeric, "K columns"]:
    """The signals as rows over all columns, next to those of W."""
    frame = jnp.moveaxis(jnp.asarray(parameters["frame"])[layout.compressed_blocks], 0, 1)
    # By construction of the frame the signals have no component along L and the new columns.
    empty_columns = layout.inside + layout.columns - layout.structure.signals
    return layout.join(
        explicit_signals(layout, parameters),
        jnp.pad(frame, ((0, 0), (0, 0), (0, empty_columns))),
    )


def fold(layout: Layout, rows: Float[Numeric, "rows columns"]) -> Float[Numeric, "rows columns"]:
    """[T | L | new] -> [T | L' | 0] with the same Gram matrix, block by block.

    With the QR decomposition [L | new]^T = O R, L' = R^T satisfies L' L'^T = L L^T + new new^T.
    That is a rotation of the columns. It also exists if the rows are linearly dependent, where a
    Cholesky factor of the Gram matrix does not.
    """
    # Explicit blocks have no new columns to fold.
    if not len(layout.compressed_blocks):
        return rows
    k, (strip, blocks) = layout.structure.signals, layout.split(rows)
    outside_signals = jnp.transpose(blocks[..., k:], (1, 2, 0))
    if layout.rows == 1:
        # R of a single column is its length.
        L = jnp.sqrt(jnp.sum(outside_signals**2, axis=1, keepdims=True))
    else:
        L = jnp.swapaxes(jnp.linalg.qr(outside_signals, mode="r"), -1, -2)
    # The segment that follows starts with empty new columns.
    empty = jnp.zeros((*L.shape[:-1], layout.columns), rows.dtype)
    folded = jnp.moveaxis(jnp.concatenate([L, empty], axis=-1), 0, 1)
    return layout.join(strip, jnp.concatenate([blocks[..., :k], folded], axis=-1))


def rotate_to_input(
    layout: Layout, rows: Float[Numeric, "rows columns"], x: Float[Numeric, "1 columns"]
) -> tuple[Float[Numeric, "rows columns"], Float[Numeric, "1 columns"]]:
    """Rotate the columns of L so that the input has a single non-zero coordinate along them.

    Givens rotations of two neighbouring columns, from the last pair to the first, send the input's
    coordinates x_1, ..., x_p to (|x|, 0, ..., 0) and fold the last column back each time. Inner
    products do not change. A lower-triangular L gets one more diagonal (lower Hessenberg). A step
    then changes only the first of these columns, and the step and the next fold take p^2 operations
    instead of p^3 in code that skips known zeros.
    """
    k, inside = layout.structure.signals, layout.inside
    (strip, blocks), (input_strip, input_blocks) = layout.split(rows), layout.split(x)
    rotated_blocks, rotated_inputs = [], []
    # Scalars instead of arrays: the loops are unrolled into straight-line code.
    for block in range(len(layout.compressed_blocks)):
        columns = [blocks[:, block, column] for column in range(k, inside)]
        coordinates = [input_blocks[0, block, column] for column in range(k, inside)]
        # Givens rotation in the plane of the columns j - 1 and j.
        for j in range(len(columns) - 1, 0, -1):
            length = jnp.sqrt(coordinates[j - 1] ** 2 + coordinates[j] ** 2)
            # If both coordinates are 0 the rotation is the identity, not 0/0.
            is_positive = length > 0
            divisor = jnp.where(is_positive, length, 1.0)
            cosine = jnp.where(is_positive, coordinates[j - 1] / divisor, 1.0)
            sine = coordinates[j] / divisor
            columns[j - 1], columns[j] = (
                cosine * columns[j - 1] + sine * columns[j],
                cosine * columns[j] - sine * columns[j - 1],
            )
            coordinates[j - 1] = length
        rotated = blocks[:, block, :k], jnp.stack(columns, axis=1), blocks[:, block, inside:]
        rotated_blocks.append(jnp.concatenate(rotated, axis=1))
        # Exact zeros behind the first coordinate, which unrolled code recognises.
        zeros = jnp.zeros(len(coordinates) - 1, x.dtype)
        along_L = jnp.concatenate([coordinates[0][None], zeros])[None]
        rotated_input = input_blocks[:, block, :k], along_L, input_blocks[:, block, inside:]
        rotated_inputs.append(jnp.concatenate(rotated_input, axis=1))
    return (
        layout.join(strip, jnp.stack(rotated_blocks, axis=1)),
        layout.join(input_strip, jnp.stack(rotated_inputs, axis=1)),
    )
