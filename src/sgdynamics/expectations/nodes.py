"""Nodes and roots that the expectations share: Gauss-Legendre, Gauss-Hermite, scrambled Sobol, positive semi-definite roots."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from scipy import special

from sgdynamics.base.arrays import IntScalar, Numeric

REACH = 13.0  # a standard normal beyond this weighs less than 1e-37; its square root, which Hermite functions carry, 1e-18
PIVOT = 1e-13  # a pivot below this share of its diagonal is rounding, not variance


@lru_cache(maxsize=64)
def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = special.roots_legendre(count)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal."""
    nodes, weights = special.roots_hermitenorm(count)
    return nodes, weights / weights.sum()


def product_rule(at: ModuleType, one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """Points (n, dimensions) and weights over the coordinates of both rules, those of the first varying slowest."""
    (x, v), (y, w) = one, other
    grid = at.concatenate([at.repeat(x, len(y), axis=0), at.tile(y, (len(x), 1))], axis=1)
    return grid, at.outer(v, w).reshape(-1)


def hermite_product(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes in as many dimensions: all of them, as without its corners the rule would not be exact for polynomials."""
    found = np.zeros((1, 0)), np.ones(1)
    for count in counts:
        nodes, weights = gauss_hermite(count)
        found = product_rule(np, found, (nodes[:, None], weights))
    return found


@lru_cache(maxsize=32)
def gauss_hermite_grid(count: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """The tensor rule in several dimensions, (count^dimensions, dimensions) nodes; negligible corners are dropped."""
    grid, weight = hermite_product((count,) * dimensions)
    keep = weight > 1e-22
    return grid[keep], weight[keep] / weight[keep].sum()


@lru_cache(maxsize=8)
def sobol_normals(
    dimensions: int, log2_count: int, replicates: int, *, whiten: bool, seed: int = 20260
) -> np.ndarray:
    """Standard normals from scrambled Sobol points, (replicates, 2^log2_count, dimensions).

    Replicates have independent scramblings: their spread is the error estimate. `whiten` makes first and second moments exact,
    at the price of a bias of order dimensions/count in the fourth that the spread does not show: for many points only.
    """
    from scipy.stats import qmc  # here: its import takes as long as a small solution

    result = np.empty((replicates, 2**log2_count, dimensions))
    for replicate in range(replicates):
        engine = qmc.Sobol(
            dimensions, scramble=True, rng=np.random.default_rng((seed, replicate, dimensions))
        )
        points = engine.random_base2(log2_count)
        normals = special.ndtri(np.clip(points, 2.0**-40, 1 - 2.0**-40))
        if whiten:
            normals -= normals.mean(axis=0)
            root = np.linalg.cholesky(normals.T @ normals / len(normals))
            normals = np.linalg.solve(root, normals.T).T
        result[replicate] = normals
    result.setflags(write=False)
    return result


def safe_root(x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """Square root of what is nonnegative up to rounding, with derivative 0 (not infinity) at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_ratio(
    numerator: Float[Numeric, "..."], denominator: Float[Numeric, "..."]
) -> Float[Numeric, "..."]:
    """numerator / denominator, 0 where the denominator is 0."""
    nonzero = denominator != 0
    return jnp.where(nonzero, numerator / jnp.where(nonzero, denominator, 1.0), 0.0)


def lower_root(matrix: Float[Numeric, "n n"], *, unrolled: bool = False) -> Float[Numeric, "n n"]:
    """Lower-triangular L with L L^T = matrix, also where the matrix is singular (a null pivot leaves a null column).

    `unrolled`: without a loop, for small matrices of which there are very many.
    """
    size = matrix.shape[-1]
    if size == 0:
        return matrix
    index = jnp.arange(size)

    def column(j: IntScalar, L: Float[Array, "n n"]) -> Float[Array, "n n"]:
        rest = matrix[:, j] - L @ L[j]
        pivot = rest[j]
        good = pivot > PIVOT * jnp.abs(matrix[j, j])
        scaled = rest / jnp.sqrt(jnp.where(good, pivot, 1.0))
        return L.at[:, j].set(jnp.where(good & (index >= j), scaled, 0.0))

    if not unrolled:
        return jax.lax.fori_loop(0, size, column, jnp.zeros_like(matrix))
    L = jnp.zeros_like(matrix)
    for j in range(size):
        L = column(j, L)
    return L


def solve_lower(L: Float[Numeric, "n n"], right: Float[Numeric, "m n"]) -> Float[Numeric, "m n"]:
    """X with X L = right (X and right are rows x size), 0 along null pivots of L."""
    size = L.shape[-1]
    if size == 0:
        return right

    def row(step: IntScalar, X: Float[Array, "m n"]) -> Float[Array, "m n"]:
        j = size - 1 - step
        rest = right[:, j] - X @ L[:, j]
        return X.at[:, j].set(safe_ratio(rest, L[j, j]))

    return jax.lax.fori_loop(0, size, row, jnp.zeros_like(right))


def solve_forward(L: Float[Numeric, "n n"], right: Float[Numeric, "n m"]) -> Float[Numeric, "n m"]:
    """Y with L Y = right, 0 along null pivots of L."""
    if L.shape[-1] == 0:
        return right

    def row(j: IntScalar, Y: Float[Array, "n m"]) -> Float[Array, "n m"]:
        rest = right[j] - L[j] @ Y
        return Y.at[j].set(safe_ratio(rest, L[j, j]))

    return jax.lax.fori_loop(0, L.shape[-1], row, jnp.zeros_like(right))
