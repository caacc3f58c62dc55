"""Pair expectations of smooth activations by the Mehler expansion.

For (u, v) Gaussian with variances q1, q2 and correlation rho,

    E[f(u) g(v)] = sum_n c_n[f](q1) c_n[g](q2) rho^n,   c_n[f](q) = E[f(sqrt(q) x) h_n(x)],

with h_n the orthonormal Hermite polynomials. The sum is finite if f or g is a polynomial. It
converges too slowly for activations with kinks (an error of 3e-3 after 320 terms).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.nodes import REACH, gauss_legendre, safe_ratio
from sgdynamics.problems.activations import Activation

LEAST_TERMS = 32
MOST_TERMS = 512
ERROR = 1e-10  # relative error of K, A and B at which a series may be truncated


def hermite_functions(x: np.ndarray, first: float | Float[Numeric, " n"], order: int) -> np.ndarray:
    """h_0, ..., h_order times `first`, (order + 1, points), by the three-term recurrence

        sqrt(k) h_k = x h_(k-1) - sqrt(k - 1) h_(k-2).

    With the square root of the density as `first` nothing overflows.
    """
    functions = np.empty((order + 1, len(x)))
    functions[0] = first
    if order:
        functions[1] = x * first
    for k in range(2, order + 1):
        functions[k] = (x * functions[k - 1] - math.sqrt(k - 1) * functions[k - 2]) / math.sqrt(k)
    return functions


@lru_cache(maxsize=16)
def hermite_projection(terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x and a matrix with f(x) @ matrix = c_0, ..., c_(terms - 1)."""
    # enough nodes for the oscillations of h_n on [-REACH, REACH], about sqrt(n)/pi per unit
    nodes, weights = gauss_legendre(400 + 2 * terms)
    x = (2 * nodes - 1) * REACH
    # h_n sqrt(phi) is bounded where h_n alone overflows
    root_density = np.exp(-(x**2) / 4) / (2 * np.pi) ** 0.25
    functions = np.ascontiguousarray(hermite_functions(x, root_density, terms - 1).T)
    return x, functions * (2 * REACH * weights * root_density)[:, None]


def coefficients(
    f: Callable[[Float[Numeric, "n x"]], Float[Numeric, "n x"]], q: Float[Numeric, " n"], terms: int
) -> Float[Numeric, "n m"]:
    """c_n[f](q) for each variance in q, (len(q), terms)."""
    x, matrix = hermite_projection(terms)
    return f(jnp.sqrt(q)[:, None] * x) @ matrix


def powers(rho: Float[Numeric, "m n"], terms: int) -> Float[Numeric, "m n terms"]:
    """rho^0, ..., rho^(terms - 1) along a new last axis.

    By doubling, with log2(terms) products; jnp.power has no derivative at 0.
    """
    result = jnp.ones((*rho.shape, 1), rho.dtype)
    top = rho[..., None]
    while result.shape[-1] < terms:
        result = jnp.concatenate([result, result * top], axis=-1)
        top = top * top
    return result[..., :terms]


def terms_needed(first: Activation, second: Activation, terms: int) -> int:
    """Number of nonzero terms: the lower degree plus 1 if f or g is a polynomial, else `terms`."""
    degrees = [activation.degree for activation in (first, second) if activation.degree is not None]
    return min([degree + 1 for degree in degrees], default=terms)


def pair_value(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
) -> Float[Numeric, "m n"]:
    """K = E[f(u) g(v)]."""
    count = terms_needed(first, second, terms)
    # K_ij = sum_n c_n[f](q1_i) c_n[g](q2_j) rho_ij^n
    series = powers(_correlation(q1, q2, c), count)
    left = coefficients(first.derivative(0), q1, count)
    right = coefficients(second.derivative(0), q2, count)
    return jnp.einsum("in,jn,ijn->ij", left, right, series)


def pair_moments(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
    terms: int,
) -> tuple[Float[Numeric, "m n"], Float[Numeric, "m n"], Float[Numeric, "m n"]]:
    """K = E[f g], A = E[f'' g], B = E[f' g'] for all pairs (q1[i], q2[j], c[i, j])."""
    count = terms_needed(first, second, terms)
    series = powers(_correlation(q1, q2, c), count)
    # Mehler coefficients of f, f', f'' and g, g'
    f0, f1, f2 = (coefficients(first.derivative(order), q1, count) for order in range(3))
    g0, g1 = (coefficients(second.derivative(order), q2, count) for order in range(2))
    # the three series K (f, g), A (f'', g) and B (f', g') in one contraction
    left = jnp.stack([f0, f2, f1])
    right = jnp.stack([g0, g0, g1])
    K, A, B = jnp.einsum("min,mjn,ijn->mij", left, right, series)
    return K, A, B


def error(
    first: Activation,
    second: Activation,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    terms: int,
) -> Float[Numeric, ""]:
    """Estimated relative error of K, A, B with this many terms.

    By Cauchy and Schwarz the error is at most the geometric mean of the tails of f and g. The last
    four squared coefficients are continued as a geometric series, with their ratio to the four
    before: right for a smooth f, and an alarm for the slow decay that an undeclared kink causes.
    """

    def tail_share(
        activation: Activation, q: Float[Numeric, " n"], order: int
    ) -> Float[Numeric, ""]:
        squares = coefficients(activation.derivative(order), q, terms) ** 2
        # groups of four, because even and odd coefficients may vanish by parity
        last, previous = jnp.sum(squares[:, -4:], axis=1), jnp.sum(squares[:, -8:-4], axis=1)
        # sum of a geometric series with this ratio per group
        ratio = jnp.minimum(safe_ratio(last, previous), 0.999)
        return jnp.max(safe_ratio(last, jnp.sum(squares, axis=1) * (1 - ratio)))

    orders = [(0, 0), (2, 0), (1, 1)]  # of K, A, B
    tails = [tail_share(first, q1, i) * tail_share(second, q2, j) for i, j in orders]
    return jnp.sqrt(jnp.max(jnp.stack(tails)))


@partial(jax.jit, static_argnums=0)
def _squared_coefficients(
    activation: Activation, q: Float[Numeric, " n"]
) -> Float[Numeric, "3 n m"]:
    """Squares of the first MOST_TERMS coefficients of f, f' and f''."""
    orders = [coefficients(activation.derivative(order), q, MOST_TERMS) for order in range(3)]
    return jnp.stack(orders) ** 2


def _tail_shares(activation: Activation, largest: float) -> np.ndarray:
    """Shares of E[f^2], E[f'^2], E[f''^2] beyond the first n coefficients, (3, MOST_TERMS).

    Taken at the largest variance, which needs the most terms.
    """
    squares = np.asarray(_squared_coefficients(activation, np.array([max(largest, 1e-12)])))[:, 0]
    tails = np.cumsum(squares[:, ::-1], axis=1)[:, ::-1]
    return tails / (squares.sum(axis=1, keepdims=True) + 1e-300)


def terms_for(first: Activation, second: Activation, largest: float) -> int:
    """Number of terms, a power of two, for K, A and B at variances up to `largest`.

    By Cauchy and Schwarz on the tails of f and g.
    """
    if first.degree is not None or second.degree is not None or not np.isfinite(largest):
        return LEAST_TERMS
    f, g = _tail_shares(first, largest), _tail_shares(second, largest)
    # Cauchy and Schwarz for K, A and B
    bound = np.sqrt(np.max([f[0] * g[0], f[2] * g[0], f[1] * g[1]], axis=0))
    terms = LEAST_TERMS
    while terms < MOST_TERMS and bound[terms] > ERROR:
        terms *= 2
    return terms


def _correlation(
    q1: Float[Numeric, " m"], q2: Float[Numeric, " n"], c: Float[Numeric, "m n"]
) -> Float[Numeric, "m n"]:
    return safe_ratio(c, jnp.sqrt(q1[:, None] * q2[None, :]))


def hermite_coefficients(activation: Activation, variances: np.ndarray, count: int) -> np.ndarray:
    """c_n(v) = E[s(sqrt(v) x) h_n(x)] for n < count and each variance v, (variances, count).

    By Gauss-Legendre quadrature between the kinks, so that it holds for any activation.
    """
    nodes, weights = gauss_legendre(300 + 2 * count)
    roots = np.sqrt(variances)
    # the kinks in units of the standard deviation
    cuts = [np.clip(kink / roots, -REACH, REACH) for kink in activation.kinks]
    edges = np.sort(
        np.stack([np.full_like(roots, -REACH), *cuts, np.full_like(roots, REACH)], axis=1), axis=1
    )
    lengths = np.diff(edges, axis=1)
    x = (edges[:, :-1, None] + lengths[..., None] * nodes).reshape(len(roots), -1)
    weight = (lengths[..., None] * weights).reshape(len(roots), -1)
    values = np.asarray(activation.derivative(0)(roots[:, None] * x))
    # h_n sqrt(phi) is bounded where h_n alone overflows
    root_density = np.exp(-(x**2) / 4) / (2 * np.pi) ** 0.25
    weight = weight * values * root_density
    # the recurrence of `hermite_functions`, with two rows in memory
    previous, current = np.zeros_like(x), root_density
    result = np.empty((len(roots), count))
    for n in range(count):
        result[:, n] = np.sum(weight * current, axis=1)
        following = (x * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
        previous, current = current, following
    return result
