"""Quadrature nodes and triangular matrices that the expectations share."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from scipy import special

from sgdynamics.base.arrays import IntScalar, Numeric

# The mass of a standard normal beyond this is below 1e-37; that of its square root, which Hermite
# functions contain, is 1e-18.
REACH = 13.0
PIVOT = 1e-13  # a pivot below this share of its diagonal entry is rounding, not variance
MOST_SUMMED = 16  # rows of a small matrix

AnyArray = TypeVar("AnyArray", bound=Numeric)


@lru_cache(maxsize=64)
def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1], exact for polynomials of degree 2 count - 1."""
    nodes, weights = special.roots_legendre(count)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal, exact for polynomials of degree 2 count - 1."""
    nodes, weights = special.roots_hermitenorm(count)
    return nodes, weights / weights.sum()


def product_rule(
    module: ModuleType, first: tuple[AnyArray, AnyArray], second: tuple[AnyArray, AnyArray]
) -> tuple[AnyArray, AnyArray]:
    """Points (n, dimensions) and weights of a product of two rules; the first varies slowest.

    `module` is numpy or jax.numpy.
    """
    (x, v), (y, w) = first, second
    left, right = module.repeat(x, len(y), axis=0), module.tile(y, (len(x), 1))
    return module.concatenate([left, right], axis=1), module.outer(v, w).reshape(-1)


def hermite_product(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The product of Gauss-Hermite rules with these numbers of nodes.

    It keeps its corners, without which it would not be exact for polynomials.
    """
    grid, weight = np.zeros((1, 0)), np.ones(1)
    for count in counts:
        nodes, weights = gauss_hermite(count)
        grid, weight = product_rule(np, (grid, weight), (nodes[:, None], weights))
    return grid, weight


@lru_cache(maxsize=32)
def gauss_hermite_grid(count: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """The product rule of count nodes per axis, without corners of negligible weight."""
    grid, weight = hermite_product((count,) * dimensions)
    # corners of a product of Gauss-Hermite rules have tiny weights
    keep = weight > 1e-22
    return grid[keep], weight[keep] / weight[keep].sum()


@lru_cache(maxsize=8)
def sobol_normals(
    dimensions: int, log2_count: int, replicates: int, *, whiten: bool, seed: int = 20260
) -> np.ndarray:
    """Standard normals from scrambled Sobol points, (replicates, 2^log2_count, dimensions).

    Replicates are independent scramblings (Owen 1995), whose spread estimates the error. `whiten`
    makes the first and second moments exact, at the price of a bias of order dimensions/count in
    the fourth moments that the spread does not show: it is meant for many points.
    """
    from scipy.stats import qmc  # imported here: it takes as long as a small solution

    result = np.empty((replicates, 2**log2_count, dimensions))
    for replicate in range(replicates):
        engine = qmc.Sobol(
            dimensions, scramble=True, rng=np.random.default_rng((seed, replicate, dimensions))
        )
        points = engine.random_base2(log2_count)
        # a scrambled point may be 0 or 1, whose normal quantile is infinite
        normals = special.ndtri(np.clip(points, 2.0**-40, 1 - 2.0**-40))
        if whiten:
            # mean 0 and covariance I over the points
            normals -= normals.mean(axis=0)
            root = np.linalg.cholesky(normals.T @ normals / len(normals))
            normals = np.linalg.solve(root, normals.T).T
        result[replicate] = normals
    result.setflags(write=False)
    return result


def times_small(
    rows: Float[Numeric, "n m"], matrix: Float[Numeric, "m fields"]
) -> Float[Numeric, "n fields"]:
    """The product of many rows and a small matrix.

    On a GPU it is a sum of products, which XLA fuses with the operations that use it. The result of
    a matrix product would be written to memory, which takes longer than the loss of a sample.
    """
    if jax.default_backend() != "gpu" or not 0 < len(matrix) <= MOST_SUMMED:
        return rows @ matrix
    products = (rows[:, j, None] * matrix[j] for j in range(len(matrix)))
    return functools.reduce(operator.add, products)


def columns_of_product(
    rows: Float[Numeric, "n m"], matrix: Float[Numeric, "m fields"]
) -> list[Float[Numeric, " n"]]:
    """The columns of `times_small`, on a GPU each as a sum that XLA fuses with what uses it."""
    if jax.default_backend() != "gpu" or not 0 < len(matrix) <= MOST_SUMMED:
        return list((rows @ matrix).T)
    return [
        functools.reduce(operator.add, (rows[:, j] * matrix[j, i] for j in range(len(matrix))))
        for i in range(matrix.shape[1])
    ]


def single_on_gpu(
    function: Callable[[Float[Numeric, "*s"]], Float[Numeric, "*s"]], x: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """f(x), on a GPU in single precision, for averages over points with a larger error than that.

    There a special function in double precision would take most of the time of an average.
    """
    if jax.default_backend() != "gpu":
        return function(x)
    return function(x.astype(jnp.float32)).astype(x.dtype)


def safe_root(x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """The square root of a number that is nonnegative up to rounding.

    Its derivative at 0 is 0, not infinity. Both branches of `where` must be finite, because JAX
    multiplies the derivative of the other branch by 0.
    """
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_ratio(
    numerator: Float[Numeric, "..."], denominator: Float[Numeric, "..."]
) -> Float[Numeric, "..."]:
    """numerator/denominator, 0 where the denominator is 0."""
    nonzero = denominator != 0
    return jnp.where(nonzero, numerator / jnp.where(nonzero, denominator, 1.0), 0.0)


def lower_root(matrix: Float[Numeric, "n n"], *, unrolled: bool = False) -> Float[Numeric, "n n"]:
    """Lower-triangular L with L L^T = matrix, also if the matrix is singular (Cholesky).

    A pivot that is only rounding leaves a column of zeros. `unrolled` avoids the loop, for small
    matrices of which there are very many.
    """
    size = matrix.shape[-1]
    if size == 0:
        return matrix
    index = jnp.arange(size)

    def set_column(j: IntScalar, L: Float[Array, "n n"]) -> Float[Array, "n n"]:
        residual = matrix[:, j] - L @ L[j]
        # the variance of field j given the fields before it
        pivot = residual[j]
        good = pivot > PIVOT * jnp.abs(matrix[j, j])
        scaled = residual / jnp.sqrt(jnp.where(good, pivot, 1.0))
        return L.at[:, j].set(jnp.where(good & (index >= j), scaled, 0.0))

    if not unrolled:
        return jax.lax.fori_loop(0, size, set_column, jnp.zeros_like(matrix))
    L = jnp.zeros_like(matrix)
    for j in range(size):
        L = set_column(j, L)
    return L


def solve_lower(L: Float[Numeric, "n n"], right: Float[Numeric, "m n"]) -> Float[Numeric, "m n"]:
    """X with X L = right, with rows along the first axis; 0 along null pivots of L."""
    size = L.shape[-1]
    if size == 0:
        return right

    def set_column(step: IntScalar, X: Float[Array, "m n"]) -> Float[Array, "m n"]:
        j = size - 1 - step  # back substitution
        residual = right[:, j] - X @ L[:, j]
        return X.at[:, j].set(safe_ratio(residual, L[j, j]))

    return jax.lax.fori_loop(0, size, set_column, jnp.zeros_like(right))


def solve_forward(L: Float[Numeric, "n n"], right: Float[Numeric, "n m"]) -> Float[Numeric, "n m"]:
    """Y with L Y = right, by forward substitution; 0 along null pivots of L."""
    if L.shape[-1] == 0:
        return right

    def set_row(j: IntScalar, Y: Float[Array, "n m"]) -> Float[Array, "n m"]:
        residual = right[j] - L[j] @ Y
        return Y.at[j].set(safe_ratio(residual, L[j, j]))

    return jax.lax.fori_loop(0, L.shape[-1], set_row, jnp.zeros_like(right))
