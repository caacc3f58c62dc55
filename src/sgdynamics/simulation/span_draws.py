"""Random numbers of the exact chain: those of a span of steps, from one key.

The outside parts of n inputs are independent Gaussian vectors in the nu directions of a block that
no column covers. A step reads them through inner products only, so that any vectors with the same
Gram matrix serve as well. The Gram matrix is a Wishart matrix. By Bartlett's decomposition it is
A A^T with a lower-triangular A,

    A_jj = chi_(nu - j),     A_ij = N(0, 1) for i > j,     j = 0, 1, ...

whose rows are the inputs in n new columns: n (n + 1)/2 numbers replace n nu, whatever the
dimension. See M. S. Bartlett (1933), and theorem 3.2.14 of R. J. Muirhead, *Aspects of
Multivariate Statistical Theory* (1982).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, RandomKey
from sgdynamics.base.random import bartlett_factor, draw_chi, normals_and_uniforms
from sgdynamics.simulation.layout import Layout


class SpanDraws(NamedTuple):
    """Random numbers of a span; of a single segment without the leading axis.

    Attributes
    ----------
    inside : array, (folds, steps, batch, [tokens,] blocks, K + p)
        Normals of the inputs along the columns [T | L] of the compressed blocks.
    noise : array, (folds, steps, batch, normals)
        Normals from which the named draws of the samples are made, such as label noise.
    outside : array, (folds, blocks, columns, columns)
        Bartlett factors of the outside parts of the inputs and of the kicks.
    explicit : array, (folds, steps, batch, [tokens,] strip columns), optional
        Normals of the inputs along the columns of the strip.
    kicks : array, (folds, steps, p, blocks, K + p), optional
        Normals of the update's own noise along [T | L].
    explicit_kicks : array, (folds, steps, p, strip columns), optional
        Normals of the update's own noise along the strip.
    """

    inside: Float[Numeric, "folds steps ... blocks inside"]
    noise: Float[Numeric, "folds steps batch ..."]
    outside: Float[Numeric, "folds blocks columns columns"]
    explicit: Numeric | None = None
    kicks: Numeric | None = None
    explicit_kicks: Numeric | None = None


def normal_shapes(layout: Layout, folds: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of all normals of this many segments, in the order in which they are drawn.

    The order is: the inputs along [T | L], the named draws, the entries below the diagonal of the
    Bartlett factors, the proposals of their chi variables, the inputs along the strip, and the
    kicks along [T | L] and along the strip. Seeded results depend on it.
    """
    structure, blocks, columns = layout.structure, len(layout.compressed_blocks), layout.columns
    inside = (
        folds,
        layout.steps,
        layout.batch,
        *structure.sample.tokens.shape,
        blocks,
        layout.inside,
    )
    # Draws belong to samples, which may consist of several inputs (tokens).
    noise = (folds, layout.steps, layout.batch, structure.sample.normals_per_sample)
    kicks = (folds, layout.steps, layout.kicks, blocks, layout.inside)
    strip = (*inside[:-2], len(layout.explicit_blocks))
    # A triangular factor of n columns has n (n - 1)/2 entries below its diagonal.
    lower = (folds, blocks, columns * (columns - 1) // 2)
    # The GPU kernel counts on the place of the proposals, behind the first three groups.
    return (
        inside,
        noise,
        lower,
        (folds, blocks, columns),
        strip,
        kicks,
        (*kicks[:3], len(layout.explicit_blocks)),
    )


def split_into_shapes(
    normals: Float[Numeric, " n"], shapes: tuple[tuple[int, ...], ...]
) -> list[Numeric]:
    """Consecutive pieces of a flat array in these shapes."""
    # Static offsets: slices of a traced array need known limits.
    edges = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [
        normals[low:high].reshape(shape)
        for low, high, shape in zip(edges, edges[1:], shapes, strict=False)
    ]


def degrees_of_freedom(
    layout: Layout, sizes: Float[Numeric, " blocks"]
) -> Float[Numeric, "wide columns"]:
    """Degrees of freedom of the chi variables: the directions that no earlier column covers.

    In a block of d_b coordinates, of which [T | L] covers n, new column j has d_b - n - j. Columns
    beyond the size of the block have none, or a negative number, and are 0.
    """
    return (sizes[layout.compressed_blocks] - layout.inside)[:, None] - jnp.arange(layout.columns)


def assemble_draws(
    layout: Layout,
    normals: list[Numeric],
    chi: Float[Numeric, "folds blocks columns"],
    degrees: Numeric,
) -> SpanDraws:
    """Random numbers of segments, from normals (`normal_shapes`) and chi variables."""
    inside, noise, lower, _, strip, kicks, strip_kicks = normals
    # The proposals of the chi variables, the fourth piece, are used up.
    outside = bartlett_factor(lower, chi, degrees, layout.columns)
    # None, not empty arrays: whether there are kicks is part of the structure of the pytree.
    if not layout.kicks:
        return SpanDraws(inside, noise, outside, strip)
    return SpanDraws(inside, noise, outside, strip, kicks, strip_kicks)


def draw_span(layout: Layout, key: RandomKey, sizes: Float[Numeric, " blocks"]) -> SpanDraws:
    """Random numbers of one span of one run.

    Parameters
    ----------
    layout : Layout
        The layout of the chain.
    key : key
        Key of the run and of the span.
    sizes : array, (blocks,)
        Sizes of the covariance blocks. They are traced, so that one program serves all dimensions.
    """
    shapes = normal_shapes(layout, layout.folds)
    counts = [int(np.prod(shape)) for shape in shapes]
    # One call draws everything: many small calls of the generator cost more than the numbers.
    normals, uniforms = normals_and_uniforms(key, sum(counts), counts[3])
    pieces, degrees = split_into_shapes(normals, shapes), degrees_of_freedom(layout, sizes)
    # Rejection sampling: the normals of the fourth piece are the first proposals.
    chi = draw_chi(key, degrees, pieces[3], uniforms.reshape(shapes[3]))
    return assemble_draws(layout, pieces, chi, degrees)


def outside_rows(
    layout: Layout, outside: Float[Numeric, "blocks columns columns"]
) -> Float[Array, "steps vectors blocks columns"]:
    """Outside parts of the vectors of each step of a segment, in the new columns.

    The vectors of a step are its inputs (or the p combinations of a wide batch), then its kicks.
    """
    # The rows of the Bartlett factor are divided evenly among the steps.
    return jnp.moveaxis(jnp.asarray(outside), 0, 1).reshape(
        layout.steps, layout.columns // layout.steps, len(layout.compressed_blocks), layout.columns
    )
