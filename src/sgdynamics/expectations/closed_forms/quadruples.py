"""Sums over quadruples of fields, from which the gradient noise is made.

    N_ij = E[s'(lambda_i) s'(lambda_j) E0^2] = sum_bc c_b c_c E[s'_i s'_j g_b g_c],
    E0 = sum_b c_b g_b

with students i, j and fields b, c (the students 0..p-1, then the signals).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric


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


def _symmetric_matrix(upper: Float[Numeric, " n"], p: int) -> Float[Numeric, "p p"]:
    """The symmetric matrix with these entries on and above the diagonal, row by row."""
    rows, columns = np.triu_indices(p)
    # position of (i, j) and of (j, i) among the upper entries
    position = np.empty((p, p), dtype=int)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows))
    return upper[position]
