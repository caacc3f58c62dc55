"""Closed noise terms N_ij = E[s'(lambda_i) s'(lambda_j) E0^2], E0 = sum_b c_b g_b(lambda_b): the one four-point object of the theory.

Closed for erf students (erf and sign teachers), ReLU with ReLU, polynomials and linear students; otherwise `noise_term` is
None and the caller samples. Fields are the students 0..p-1, then the signals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.closed_forms import derivative_means, erf_offset, powers, quadrant
from sgdynamics.expectations.nodes import PIVOT, gauss_legendre, safe_ratio, safe_root
from sgdynamics.problems.activations import NAMED, Activation

ORTHANT_NODES = 24
TOUCHING = (
    [0, 1, 2],
    [0, 3, 4],
    [1, 3, 5],
    [2, 4, 5],
)  # of the pairs (12, 13, 14, 23, 24, 34): those with each of the four fields


def noise_term(student: Activation, teacher: Activation) -> Callable[[Any, Any, int], Any] | None:
    """N(Omega, c, p) in closed form, or None where there is none."""
    if student == teacher == NAMED["square"]:
        return square_noise
    if student == NAMED["erf"] and erf_offset(teacher) is not None:
        kappa = erf_offset(teacher) or 0.0
        return lambda omega, c, p: _quadruple_sum(omega, c, p, lambda *args: erf_four(kappa, *args))
    if student == teacher == NAMED["relu"]:
        return lambda omega, c, p: _quadruple_sum(omega, c, p, relu_four)
    if student.degree is not None and teacher.degree is not None:
        return lambda omega, c, p: polynomial_noise(student, teacher, omega, c, p)
    return None


@lru_cache(maxsize=32)
def _quadruples(p: int, fields: int) -> tuple[np.ndarray, np.ndarray]:
    """All (i <= j students, b <= c fields) and how often each (b, c) counts."""
    pairs, others = (np.stack(np.triu_indices(count), axis=1) for count in (p, fields))
    index = np.concatenate(
        [np.repeat(pairs, len(others), axis=0), np.tile(others, (len(pairs), 1))], axis=1
    )
    return index, np.where(index[:, 2] == index[:, 3], 1.0, 2.0)


def _quadruple_sum(
    omega: Float[Numeric, "fields fields"],
    c: Float[Numeric, " fields"],
    p: int,
    four: Callable[[Any, np.ndarray, int], Any],
) -> Float[Numeric, "p p"]:
    """sum_bc c_b c_c E[s'_i s'_j g_b g_c], each symmetric quadruple computed once."""
    fields = omega.shape[0]
    index, count = _quadruples(p, fields)
    values = four(omega, index, p) * count * c[index[:, 2]] * c[index[:, 3]]
    upper = values.reshape(p * (p + 1) // 2, -1).sum(axis=1)
    return _symmetric(upper, p)


def _symmetric(upper: Float[Numeric, " n"], p: int) -> Float[Numeric, "p p"]:
    rows, columns = np.triu_indices(p)
    position = np.empty((p, p), dtype=int)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows))
    return upper[position]


def square_noise(
    omega: Float[Numeric, "fields fields"], c: Float[Numeric, " fields"], p: int
) -> Float[Numeric, "p p"]:
    """N for squared activations (student and teacher), by Wick: 4 E[lambda_i lambda_j (sum_b c_b lambda_b^2)^2].

    With D = diag(c) and tau = Tr(D Omega): 4 [(tau^2 + 2 Tr (D Omega)^2) Omega + 4 tau Omega D Omega + 8 Omega D Omega D Omega]_ij.
    """
    weighted = c[:, None] * omega
    tau = jnp.trace(weighted)
    once = omega @ weighted
    full = (
        (tau**2 + 2 * jnp.sum(weighted * weighted.T)) * omega + 4 * tau * once + 8 * once @ weighted
    )
    return 4 * full[:p, :p]


def erf_four(
    kappa: float, omega: Float[Numeric, "fields fields"], index: np.ndarray, p: int
) -> Float[Numeric, " n"]:
    """I4 = E[g1' g2' g3 g4] for erf (kappa = 1) and sign (kappa = 0, slots 3 and 4 beyond the students)."""
    i, j, b, c = index.T
    al1, al2 = 1.0 + omega[i, i], 1.0 + omega[j, j]
    al3 = jnp.where(b < p, 1.0, kappa) + omega[b, b]
    al4 = jnp.where(c < p, 1.0, kappa) + omega[c, c]
    C12, C13, C14, C23, C24, C34 = (
        omega[i, j],
        omega[i, b],
        omega[i, c],
        omega[j, b],
        omega[j, c],
        omega[b, c],
    )
    L4 = al1 * al2 - C12**2
    L0 = L4 * C34 - C23 * C24 * al1 - C13 * C14 * al2 + C12 * (C13 * C24 + C14 * C23)
    L1 = L4 * al3 - C23**2 * al1 - C13**2 * al2 + 2 * C12 * C13 * C23
    L2 = L4 * al4 - C24**2 * al1 - C14**2 * al2 + 2 * C12 * C14 * C24
    ratio = L0 / jnp.sqrt(L1 * L2)
    # a sign teacher's own square (kappa = 0, b = c) has ratio 1 exactly: its asin has no derivative there, and needs none
    certain = (b == c) & (b >= p) & (kappa == 0.0)
    angle = jnp.where(certain, np.pi / 2, jnp.arcsin(jnp.where(certain, 0.0, ratio)))
    return 4 / np.pi**2 * angle / jnp.sqrt(L4)


# ReLU: E[1_i 1_j relu_b relu_c] is a second moment on the orthant of the distinct fields among i, j, b, c.


@dataclass(frozen=True)
class _Orthants:
    """Quadruples (i, j, b, c) with the same number m of distinct fields, and the sets of fields that they share.

    The orthant probability and its edges depend on the set {i, j, b, c} alone, and up to six quadruples have
    the same set: the expensive part is computed once per set.
    """

    rows: np.ndarray  # of these quadruples among all, (n,)
    members: np.ndarray  # fields of each set, increasing, (sets, m)
    set_of: np.ndarray  # set of each quadruple, (n,)
    first: np.ndarray  # position of b among the members, (n,)
    second: np.ndarray  # position of c among the members, (n,)


def _orthants(index: np.ndarray) -> list[_Orthants]:
    """Group quadruples by their number of distinct fields, and list the sets of each group."""
    ordered = np.sort(index, axis=1)
    is_new = np.diff(ordered, axis=1, prepend=-1) != 0
    sizes = is_new.sum(axis=1)
    groups = []
    for m in np.unique(sizes):
        rows = np.flatnonzero(sizes == m)
        members = ordered[rows][is_new[rows]].reshape(-1, m)
        first, second = (np.argmax(members == index[rows, slot, None], axis=1) for slot in (2, 3))
        sets, set_of = np.unique(members, axis=0, return_inverse=True)
        groups.append(_Orthants(rows, sets, set_of.reshape(-1), first, second))
    return groups


def relu_four(
    omega: Float[Numeric, "fields fields"], index: np.ndarray, p: int
) -> Float[Numeric, " m"]:
    """E[s'_i s'_j s_b s_c] for ReLU, by the number of distinct fields (a repeated field is one constraint, not two).

    Exact where fields coincide, and to about 1e-11 elsewhere, except for different fields within 1e-6 of each other, whose
    conditional correlation rounds: there up to 1e-4 is lost.
    """
    total = jnp.zeros(len(index), omega.dtype)
    for group in _orthants(index):
        of_sets = omega[group.members[:, :, None], group.members[:, None, :]]
        probability, edges = orthant(of_sets)[group.set_of], _edges(of_sets)[:, group.set_of]
        moments = _orthant_moment(
            of_sets[group.set_of], group.first, group.second, probability, edges
        )
        total = total.at[group.rows].set(moments)
    return total


def _edges(C: Float[Numeric, "n m m"]) -> Float[Numeric, "pairs n"]:
    """p(lambda_q = lambda_r = 0) P(all others > 0 | lambda_q = lambda_r = 0), for each pair q < r of m <= 4 fields."""
    n, m, _ = C.shape
    edges = []
    for q, r in itertools.combinations(range(m), 2):
        others = [s for s in range(m) if s not in (q, r)]
        chance = (
            _both_positive(C, others[0], others[1], q, r)
            if len(others) == 2
            else 0.5 ** len(others)
        )
        # 0 where the two fields coincide: there the determinant is only rounding
        full = C[:, q, q] * C[:, r, r]
        density = safe_ratio(
            jnp.ones_like(full), 2 * np.pi * safe_root(_variance_left(full - C[:, q, r] ** 2, full))
        )
        edges.append(density * chance)
    return jnp.stack(edges) if edges else jnp.zeros((0, n), C.dtype)


def _orthant_moment(
    C: Float[Numeric, "n m m"],
    first: np.ndarray,
    second: np.ndarray,
    probability: Float[Numeric, " n"],
    edges: Float[Numeric, "pairs n"],
) -> Float[Numeric, " n"]:
    """E[prod_s 1(lambda_s > 0) lambda_a lambda_b], with a and b the fields at `first` and `second`.

    Stein's lemma twice, with `probability` that of the orthant and `edges` those of its edges q < r:

        C_ab P + sum_{q<r} edge_qr [C_aq (C_br - C_bq C_qr/C_qq) + C_ar (C_bq - C_br C_qr/C_rr)]
    """
    n, m, _ = C.shape
    rows = np.arange(n)
    result = C[rows, first, second] * probability
    for edge, (q, r) in zip(edges, itertools.combinations(range(m), 2), strict=True):
        aq, ar, bq, br = (
            C[rows, first, q],
            C[rows, first, r],
            C[rows, second, q],
            C[rows, second, r],
        )
        given_q = br - bq * C[:, q, r] / C[:, q, q]
        given_r = bq - br * C[:, q, r] / C[:, r, r]
        result = result + edge * (aq * given_q + ar * given_r)
    return result


def orthant(C: Float[Numeric, "n m m"]) -> Float[Numeric, " n"]:
    """P(all of m <= 4 Gaussian variables > 0)."""
    m = C.shape[-1]
    if m == 1:
        return jnp.full(C.shape[:-2], 0.5, C.dtype)
    scale = jnp.sqrt(jnp.einsum("...ii->...i", C))
    r = safe_ratio(C, scale[..., :, None] * scale[..., None, :])
    if m == 2:
        return quadrant(r[..., 0, 1])
    if m == 3:
        return (quadrant(r[..., 0, 1]) + quadrant(r[..., 0, 2]) + quadrant(r[..., 1, 2])) / 2 - 0.25
    # scale the correlations between (0, 1) and (2, 3) by t: t = 0 factorises, and the derivative in t is elementary (Plackett)
    node, weight = gauss_legendre(ORTHANT_NODES)
    t = node * (2 - node)  # nodes crowd where t -> 1, the near-singular end
    jacobian = 2 * (1 - node)
    cross = np.zeros((4, 4))
    cross[:2, 2:] = cross[2:, :2] = 1.0
    factor = 1.0 + cross * (t[:, None, None] - 1.0)
    scaled = r[..., None, :, :] * factor
    total = quadrant(r[..., 0, 1]) * quadrant(r[..., 2, 3])
    for i, j in itertools.product((0, 1), (2, 3)):
        k, ell = 1 - i, 5 - j
        chance = _both_positive(scaled, k, ell, i, j)
        slope = safe_ratio(
            r[..., i, j][..., None], 2 * np.pi * safe_root(1 - scaled[..., i, j] ** 2)
        )
        total = total + jnp.sum(weight * jacobian * slope * chance, axis=-1)
    return total


def _variance_left(
    conditional: Float[Numeric, "*s"], full: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """A conditional variance, 0 where it is only rounding: two fields that coincide."""
    return jnp.where(conditional > PIVOT * full, conditional, 0.0)


def _conditional(
    C: Float[Numeric, "*s n n"], a: int, b: int, i: int, j: int
) -> Float[Numeric, "*s"]:
    """Covariance of fields a and b given fields i and j."""
    det = C[..., i, i] * C[..., j, j] - C[..., i, j] ** 2
    on_i = C[..., j, j] * C[..., i, b] - C[..., i, j] * C[..., j, b]
    on_j = C[..., i, i] * C[..., j, b] - C[..., i, j] * C[..., i, b]
    return C[..., a, b] - safe_ratio(C[..., a, i] * on_i + C[..., a, j] * on_j, det)


def _both_positive(
    C: Float[Numeric, "*s n n"], k: int, ell: int, i: int, j: int
) -> Float[Numeric, "*s"]:
    """P(lambda_k > 0, lambda_ell > 0 | lambda_i = lambda_j = 0).

    A field that coincides with i or j has no sign there. It gets the share that makes the terms of all coinciding fields add up:
    one half for two of them, one third each for three.
    """
    first = _variance_left(_conditional(C, k, k, i, j), C[..., k, k])
    second = _variance_left(_conditional(C, ell, ell, i, j), C[..., ell, ell])
    bounded = safe_ratio(_conditional(C, k, ell, i, j), safe_root(first) * safe_root(second))
    apart = C[..., k, k] + C[..., ell, ell] - 2 * C[..., k, ell]
    triple = (first == 0) & (second == 0) & (apart <= PIVOT * C[..., k, k])
    return jnp.where(triple, 1 / 3, quadrant(jnp.clip(bounded, -1.0, 1.0)))


@lru_cache(maxsize=32)
def _wick_exponents(degrees: tuple[int, int, int, int]) -> np.ndarray:
    """All numbers of contractions (12, 13, 14, 23, 24, 34) that four polynomials of these degrees allow."""
    d1, d2, d3, d4 = degrees
    found = []
    for e12 in range(min(d1, d2) + 1):
        for e13 in range(min(d1 - e12, d3) + 1):
            for e14 in range(min(d1 - e12 - e13, d4) + 1):
                for e23 in range(min(d2 - e12, d3 - e13) + 1):
                    for e24 in range(min(d2 - e12 - e23, d4 - e14) + 1):
                        for e34 in range(min(d3 - e13 - e23, d4 - e14 - e24) + 1):
                            found.append((e12, e13, e14, e23, e24, e34))
    return np.array(found)


def polynomial_noise(
    student: Activation,
    teacher: Activation,
    omega: Float[Numeric, "fields fields"],
    c: Float[Numeric, " fields"],
    p: int,
) -> Float[Numeric, "p p"]:
    """N for polynomials, by Wick: E[prod_a f_a(lambda_a)] = sum_e prod_{a<b} C_ab^e_ab/e_ab! prod_a E[f_a^(e_a)(sqrt(C_aa) z)].

    e_a = sum_b e_ab is how often field a is contracted with others; contractions of a field with itself are in the last factor.
    """
    fields = omega.shape[0]
    index, count = _quadruples(p, fields)
    students = index[:, 2:] < p
    total = jnp.zeros(len(index), omega.dtype)
    variance = jnp.diagonal(omega)
    for kinds in itertools.product((True, False), repeat=2):
        chosen = np.flatnonzero(np.all(students == np.array(kinds), axis=1))
        if len(chosen) == 0:
            continue
        partners = [student if kind else teacher for kind in kinds]
        functions = [(student, 1), (student, 1), (partners[0], 0), (partners[1], 0)]
        degrees = [(activation.degree or 0) - shift for activation, shift in functions]
        exponents = _wick_exponents((degrees[0], degrees[1], degrees[2], degrees[3]))
        touched = np.stack([exponents[:, touching].sum(axis=1) for touching in TOUCHING])
        weights = np.array([1.0 / math.prod(math.factorial(e) for e in row) for row in exponents])
        quad = index[chosen]
        term = weights * jnp.ones((len(chosen), 1), omega.dtype)
        for slot, ((activation, shift), degree) in enumerate(zip(functions, degrees, strict=True)):
            means = derivative_means(activation, shift, degree, variance)
            term = term * means[quad[:, slot]][:, touched[slot]]
        for position, (a, b) in enumerate(itertools.combinations(range(4), 2)):
            covariance = omega[quad[:, a], quad[:, b]]
            term = (
                term
                * powers(covariance, int(exponents[:, position].max()))[:, exponents[:, position]]
            )
        total = total.at[chosen].set(jnp.sum(term, axis=1))
    values = (
        (total * count * c[index[:, 2]] * c[index[:, 3]]).reshape(p * (p + 1) // 2, -1).sum(axis=1)
    )
    return _symmetric(values, p)
