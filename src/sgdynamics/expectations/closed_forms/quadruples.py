"""Sums over quadruples of fields, from which the gradient noise is made.

    N_ij = E[s'(lambda_i) s'(lambda_j) E0^2] = sum_bc c_b c_c E[s'_i s'_j g_b g_c],
    E0 = sum_b c_b g_b

with students i, j and fields b, c (the students 0..p-1, then the signals).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Numeric

# Quadruples that are evaluated together, on a CPU and on a GPU. XLA divides a loop among the cores
# of a CPU from about 2^16 terms on.
BATCH_TERMS = (1 << 17, 1 << 22)


@lru_cache(maxsize=32)
def quadruples(p: int, fields: int) -> tuple[np.ndarray, np.ndarray]:
    """All (i, j, b, c) with students i <= j and fields b <= c, and the multiplicity of (b, c)."""
    students, pairs = (np.stack(np.triu_indices(count), axis=1) for count in (p, fields))
    # (i, j) varies slowest, so that the sum over (b, c) is over consecutive entries
    index = np.concatenate(
        [np.repeat(students, len(pairs), axis=0), np.tile(pairs, (len(students), 1))], axis=1
    )
    return index, np.where(index[:, 2] == index[:, 3], 1.0, 2.0)


def sum_quadruples(
    omega: Float[Numeric, "fields fields"],
    c: Float[Numeric, " fields"],
    p: int,
    four_point: Callable[[Float[Numeric, "fields fields"], np.ndarray, int], Float[Numeric, " n"]],
) -> Float[Numeric, "p p"]:
    """N from E[s'_i s'_j g_b g_c] = four_point(Omega, index, p).

    Evaluates each symmetric term once.
    """
    index, multiplicity = quadruples(p, omega.shape[0])
    # off-diagonal (b, c) count twice
    terms = four_point(omega, index, p) * multiplicity * c[index[:, 2]] * c[index[:, 3]]
    upper = terms.reshape(p * (p + 1) // 2, -1).sum(axis=1)
    return _symmetric_matrix(upper, p)


def sum_pairs_of_fields(
    omega: Float[Numeric, "fields fields"],
    c: Float[Numeric, " fields"],
    p: int,
    four_point: Callable[..., Float[Numeric, "fields offsets"]],
) -> Float[Numeric, "p p"]:
    """N from E[s'_i s'_j g_b g_c] = four_point(Omega, i, j, partners) for all fields b and c.

    `partners` are the fields c of each b, (fields, offsets): b + offset for the offsets 0 to n/2,
    which are all pairs (b, c) once. The pairs (i, j) are evaluated in batches: arrays of all
    quadruples would not fit into the cache, and their indices would be constants of the program.
    """
    fields = omega.shape[0]
    offsets = np.arange(fields // 2 + 1)
    partners = (np.arange(fields)[:, None] + offsets) % fields
    # each pair of different fields counts twice, and half of the circle is met from both ends
    is_single = (offsets == 0) | (2 * offsets == fields)
    weights = jnp.where(is_single, 1.0, 2.0) * c[:, None] * c[partners]
    rows, columns = np.triu_indices(p)

    def entry(pair: tuple[IntScalar, IntScalar]) -> Float[Numeric, ""]:
        return jnp.sum(weights * four_point(omega, *pair, partners))

    batch = max(1, BATCH_TERMS[jax.default_backend() == "gpu"] // partners.size)
    pairs = (jnp.asarray(rows), jnp.asarray(columns))
    if batch >= len(rows):
        return _symmetric_matrix(jax.vmap(entry)(pairs), p)
    return _symmetric_matrix(jax.lax.map(entry, pairs, batch_size=batch), p)


def _symmetric_matrix(upper: Float[Numeric, " n"], p: int) -> Float[Numeric, "p p"]:
    """The symmetric matrix with these entries on and above the diagonal, row by row."""
    rows, columns = np.triu_indices(p)
    # position of (i, j) and of (j, i) among the upper entries
    position = np.empty((p, p), dtype=int)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows))
    return upper[position]
