"""Conditioning of Gaussian matrices on their products with vectors, from either side.

Let G have independent normal entries of variance v, and let its products with orthonormal q_k from
the right and with orthonormal p_j from the left be known. Given these products, the product with a
further unit vector q that is orthogonal to all q_k is (Bolthausen's conditioning technique)

    G q = sum_j p_j <G^T p_j, q> + (1 - P P^T) z,      z ~ N(0, v I),    P = (p_1, p_2, ...)

and G^T p follows by exchanging the two sides. In a space of m dimensions of which a frame of D
orthonormal directions is in use, z has D normal components along the frame and one component of
length sqrt(v) chi, chi^2 ~ chi^2(m - D), along a new direction, which joins the frame. No vector of
m components is needed. For m -> infinity at fixed v m the components along the frame vanish, and
the length is sqrt(v m): the products become deterministic.

`fixed_data.conditioning` uses this for one data matrix whose rows are explicit samples,
`fixed_data.deep_linear` for the data matrix and the layers of a network, and
`fixed_data.wide_network` for the layers of an infinitely wide one, whose spaces are sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Num

from sgdynamics.base.arrays import IntScalar, Numeric, RandomKey, Scalar
from sgdynamics.base.random import draw_chi, normals_at, uniforms_at

# Count of the random numbers of the lengths, beyond those of any frame
LENGTH_COUNT = np.uint64(1 << 50)
TOLERANCE = 1e-10  # relative length of a residual that is rounding and no new direction


class GaussianMatrix(NamedTuple):
    """The known products of a Gaussian matrix G, as coefficients in the frames of its two spaces.

    Rows that are not in use are zero. `transpose` exchanges the two sides.
    """

    right: Float[Numeric, "right columns"]  # orthonormal q_k
    right_products: Float[Numeric, "right rows"]  # G q_k
    left: Float[Numeric, "left rows"]  # orthonormal p_j
    left_products: Float[Numeric, "left columns"]  # G^T p_j

    @property
    def transpose(self) -> GaussianMatrix:
        """The known products of G^T."""
        return GaussianMatrix(self.left, self.left_products, self.right, self.right_products)


def orthogonal_part(
    P: Float[Numeric, "capacity inputs"], vectors: Float[Numeric, "m inputs"], passes: int
) -> Float[Numeric, "m inputs"]:
    """The part (1 - P^T P) v of vectors (m, n) orthogonal to the orthonormal rows of P.

    One pass of Gram-Schmidt leaves rounding that grows from step to step. Two passes are enough
    (Kahan and Parlett): residuals that become new directions need them.
    """
    for _ in range(passes):
        coefficients = jnp.einsum("kn,mn->mk", P, vectors, precision="highest")
        vectors = vectors - jnp.einsum("mk,kn->mn", coefficients, P, precision="highest")
    return vectors


def unit_residual(residual: Float[Numeric, " n"], grows: Bool[Numeric, ""]) -> Float[Numeric, " n"]:
    """The direction of a residual that extends the basis; zero for one that does not."""
    square = jnp.sum(residual**2)
    return jnp.where(grows, residual / jnp.sqrt(jnp.where(grows, square, 1.0)), 0.0)


def extends_basis(
    residual: Float[Numeric, " n"], vector: Float[Numeric, " n"], tolerance: Scalar
) -> Bool[Numeric, ""]:
    """Whether a residual exceeds `tolerance` times the vector whose orthogonal part it is."""
    return jnp.sum(residual**2) > tolerance**2 * jnp.sum(vector**2)


def product(
    matrix: GaussianMatrix,
    vector: Float[Numeric, " columns"],
    index: IntScalar,
    draw: Float[Numeric, " rows"],
    tolerance: Scalar,
) -> tuple[GaussianMatrix, Float[Numeric, " rows"]]:
    """The product G `vector`, and the matrix conditioned on it.

    Parameters
    ----------
    matrix : GaussianMatrix
        The known products.
    vector : array
        Coefficients in the frame of the columns.
    index : int
        Row of `right` that stores the direction of the vector.
    draw : array
        The variable z in the frame of the rows, with its component along the new direction.
    tolerance : float
        Relative length of the orthogonal part of the vector below which it is rounding.
    """
    residual = orthogonal_part(matrix.right, vector[None], 2)[0]
    direction = unit_residual(residual, extends_basis(residual, vector, tolerance))
    # New directions of the frame are orthogonal to all left vectors, so that one projection of z
    # also serves its last component. A direction that is zero has no product.
    is_new = jnp.any(direction != 0)
    fluctuation = orthogonal_part(matrix.left, draw[None], 1)
    new_product = jnp.where(is_new, new_products(matrix, direction[None], fluctuation)[0], 0.0)
    conditioned = matrix._replace(
        right=jnp.asarray(matrix.right).at[index].set(direction),
        right_products=jnp.asarray(matrix.right_products).at[index].set(new_product),
    )
    coefficients = jnp.einsum("kc,c->k", conditioned.right, vector, precision="highest")
    result = jnp.einsum("kr,k->r", conditioned.right_products, coefficients, precision="highest")
    return conditioned, result


def new_products(
    matrix: GaussianMatrix,
    directions: Float[Numeric, "m columns"],
    fluctuations: Float[Numeric, "m rows"],
) -> Float[Numeric, "m rows"]:
    """The products G q with new directions q: their conditional means plus fluctuations.

    The fluctuations (1 - P P^T) z are orthogonal to all left vectors.
    """
    coefficients = jnp.einsum("jc,mc->mj", matrix.left_products, directions, precision="highest")
    means = jnp.einsum("mj,jr->mr", coefficients, matrix.left, precision="highest")
    return means + fluctuations


def principal_residuals(
    P: Float[Numeric, "capacity n"], vectors: Float[Numeric, "m n"], tolerance: Scalar
) -> tuple[Float[Numeric, "m n"], Bool[Numeric, " m"]]:
    """Orthonormal directions that extend the basis P by the main part of several vectors.

    They are the principal directions of the orthogonal parts of the vectors, by decreasing size.
    Those whose size is below `tolerance` times the length of the longest vector are zero; the
    second value marks the others.
    """
    longest = jnp.max(jnp.sum(vectors**2, axis=1))
    residuals = orthogonal_part(P, vectors, 2)
    gram = jnp.einsum("mn,kn->mk", residuals, residuals, precision="highest")
    squares, combinations = jnp.linalg.eigh(gram)
    squares, combinations = squares[::-1], combinations[:, ::-1]
    grows = squares > tolerance**2 * longest
    factors = jnp.where(grows, 1 / jnp.sqrt(jnp.where(grows, squares, 1.0)), 0.0)
    directions = jnp.einsum("mk,mn->kn", combinations * factors, residuals, precision="highest")
    # The division by a small size amplifies what rounding has left along the basis.
    return orthogonal_part(P, directions, 1), grows


def transposed_product(
    matrix: GaussianMatrix,
    vector: Float[Numeric, " rows"],
    index: IntScalar,
    draw: Float[Numeric, " columns"],
    tolerance: Scalar,
) -> tuple[GaussianMatrix, Float[Numeric, " columns"]]:
    """The product G^T `vector`, and the matrix conditioned on it; arguments as in `product`."""
    conditioned, result = product(matrix.transpose, vector, index, draw, tolerance)
    return conditioned.transpose, result


def limit_draw(
    lengths: Float[Numeric, " blocks"], directions: int, slot: IntScalar
) -> Float[Numeric, "directions blocks"]:
    """The variable z for m -> infinity: its length sqrt(v m_b) in each block, on the new slot."""
    return jnp.zeros((directions, lengths.shape[0]), lengths.dtype).at[slot].set(lengths)


def frame_draw(
    key: RandomKey,
    sizes: Num[Numeric, " blocks"],
    in_use: Bool[Numeric, "directions blocks"],
    slot: IntScalar,
) -> tuple[Float[Numeric, "directions blocks"], Bool[Numeric, "directions blocks"]]:
    """A standard normal variable z of a space of m_b dimensions per block, and the extended frame.

    Its components along the directions in use are normal, and that along the new direction at
    `slot` is a chi variable with m_b - D degrees of freedom. A block whose D directions span it
    gets no further direction.
    """
    directions, blocks = in_use.shape
    # Numbers at fixed counts do not depend on the capacity of the frame.
    offset = jax.random.bits(key, (), dtype=jnp.uint64)
    entry = jnp.arange(directions * blocks, dtype=jnp.uint64).reshape(directions, blocks)
    block = jnp.arange(blocks, dtype=jnp.uint64)
    components = normals_at(offset, 2 * entry)[..., 0]
    proposal = normals_at(offset, LENGTH_COUNT + 2 * block)[..., 0]
    uniform = uniforms_at(offset, LENGTH_COUNT + np.uint64(2 * blocks) + block)
    degrees = sizes - jnp.sum(in_use, axis=0)
    lengths = draw_chi(jax.random.fold_in(key, 1), degrees, proposal, uniform)
    draw = jnp.where(in_use, components, 0.0).at[slot].set(lengths)
    return draw, jnp.asarray(in_use).at[slot].set(degrees > 0)
