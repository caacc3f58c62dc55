"""Closed expectations of ReLU students with ReLU teachers.

Pairs are arc-cosine kernels (Cho and Saul, NeurIPS 2009). The gradient noise needs
E[1_i 1_j relu_b relu_c], a second moment on the orthant where the distinct fields among i, j, b, c
are positive; it follows from orthant probabilities by Stein's lemma.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.closed_forms.family import (
    ClosedForms,
    ConditionalMeans,
    Matrix,
    NoiseTerm,
    PairMoments,
    register,
)
from sgdynamics.expectations.closed_forms.quadruples import sum_quadruples
from sgdynamics.expectations.nodes import PIVOT, gauss_legendre, safe_ratio, safe_root
from sgdynamics.problems.activations import NAMED, Activation

ORTHANT_NODES = 24  # Gauss-Legendre nodes of the orthant probability of four fields
ROUNDING = 1e-15


class ReluForms(ClosedForms):
    """ReLU."""

    has_logistic_moments = True
    # The sets of four fields number width^4/24: 0.8 million at width 64, 12 million at width 128.
    widest_noise = 48

    def covers(self, activation: Activation) -> bool:
        return activation == NAMED["relu"]

    def pair_moments(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> PairMoments:
        """K = gap/(2 pi) + c P,  A = gap/(2 pi q1),  B = P.

        gap = sqrt(q1 q2 - c^2) and P = P(u > 0, v > 0).
        """
        product = q1[:, None] * q2[None, :]
        difference = product - c**2
        # A unit with itself has difference 0, of which a fused multiply-add leaves about 1e-16;
        # under the root that would become 1e-8.
        gap = safe_root(jnp.where(difference > ROUNDING * product, difference, 0.0))
        both_positive = quadrant_probability(safe_ratio(c, jnp.sqrt(product)))
        value = gap / (2 * np.pi) + c * both_positive
        return value, gap / (2 * np.pi * q1[:, None]), both_positive

    def noise_term(self, student: Activation, teacher: Activation) -> NoiseTerm:
        return lambda omega, c, p: sum_quadruples(omega, c, p, relu_four_point)

    def conditional_means(
        self, activation: Activation, mean: Matrix, scale: Matrix
    ) -> ConditionalMeans:
        return relu_conditional_means(mean, scale)


def relu_conditional_means(mean: Matrix, scale: Matrix) -> ConditionalMeans:
    """E[relu] = mean P + scale^2 rho,  E[relu'] = P = Phi(mean/scale),  E[relu''] = rho.

    rho is the density of the field at 0: relu'' is a point mass there. Without variance P is 0 or
    1, and rho is 0.
    """
    positive_scale = jnp.where(scale > 0, scale, 1.0)
    ratio = mean / positive_scale
    certain = jnp.where(mean > 0, 1.0, 0.0)
    probability = jnp.where(scale > 0, jax.scipy.stats.norm.cdf(ratio), certain)
    normal = jnp.exp(-(ratio**2) / 2) / (np.sqrt(2 * np.pi) * positive_scale)
    density = jnp.where(scale > 0, normal, 0.0)
    return mean * probability + scale**2 * density, probability, density


def quadrant_probability(rho: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """P(u > 0, v > 0) = 1/4 + arcsin(rho)/(2 pi) (Sheppard 1899).

    At |rho| = 1 the derivative is set to 0, the right value when both fields are scaled together.
    """
    inside = jnp.abs(rho) < 1
    angle = jnp.where(inside, jnp.arcsin(jnp.where(inside, rho, 0.0)), jnp.sign(rho) * np.pi / 2)
    return 0.25 + angle / (2 * np.pi)


# -- the gradient noise --------------------------------------------------------------------------


@dataclass(frozen=True)
class _QuadrupleGroup:
    """Quadruples (i, j, b, c) with the same number m of distinct fields, and their sets of fields.

    The orthant probability depends on the set {i, j, b, c} alone, and up to six quadruples have the
    same set: the expensive part is computed once per set.
    """

    rows: np.ndarray  # positions of these quadruples among all, (n,)
    members: np.ndarray  # fields of each set, increasing, (sets, m)
    set_index: np.ndarray  # set of each quadruple, (n,)
    first: np.ndarray  # position of b among the members, (n,)
    second: np.ndarray  # position of c among the members, (n,)


def _group_quadruples(index: np.ndarray) -> list[_QuadrupleGroup]:
    """Group quadruples by their number of distinct fields."""
    # sorted members: equal neighbours are repetitions of one field
    ordered = np.sort(index, axis=1)
    is_new = np.diff(ordered, axis=1, prepend=-1) != 0
    sizes = is_new.sum(axis=1)
    groups = []
    for m in np.unique(sizes):
        rows = np.flatnonzero(sizes == m)
        members = ordered[rows][is_new[rows]].reshape(-1, m)
        first, second = (np.argmax(members == index[rows, slot, None], axis=1) for slot in (2, 3))
        # quadruples with the same set share one orthant
        sets, set_index = np.unique(members, axis=0, return_inverse=True)
        groups.append(_QuadrupleGroup(rows, sets, set_index.reshape(-1), first, second))
    return groups


def relu_four_point(
    omega: Float[Numeric, "fields fields"], index: np.ndarray, p: int
) -> Float[Numeric, " m"]:
    """E[s'_i s'_j s_b s_c] for ReLU, grouped by the number of distinct fields.

    A repeated field is one constraint, not two. The result is exact where fields coincide and has
    an error of about 1e-11 elsewhere. Between different fields within 1e-6 of each other up to 1e-4
    is lost, because their conditional correlation is rounded.
    """
    total = jnp.zeros(len(index), omega.dtype)
    for group in _group_quadruples(index):
        covariance = omega[group.members[:, :, None], group.members[:, None, :]]
        probability = orthant_probability(covariance)[group.set_index]
        edges = _edge_densities(covariance)[:, group.set_index]
        moments = _orthant_moment(
            covariance[group.set_index], group.first, group.second, probability, edges
        )
        total = total.at[group.rows].set(moments)
    return total


def _edge_densities(C: Float[Numeric, "n m m"]) -> Float[Numeric, "pairs n"]:
    """Density of lambda_q = lambda_r = 0 with all other fields positive, for each pair q < r.

    For m <= 4 fields: p(lambda_q = lambda_r = 0) P(others > 0 | lambda_q = lambda_r = 0).
    """
    n, m, _ = C.shape
    edges = []
    for q, r in itertools.combinations(range(m), 2):
        others = [field for field in range(m) if field not in (q, r)]
        if len(others) == 2:
            probability = _both_positive(C, others[0], others[1], q, r)
        else:
            probability = 0.5 ** len(others)
        full = C[:, q, q] * C[:, r, r]
        # where the two fields coincide the determinant is only rounding: the density is 0 there
        determinant = _variance_or_zero(full - C[:, q, r] ** 2, full)
        density = safe_ratio(jnp.ones_like(full), 2 * np.pi * safe_root(determinant))
        edges.append(density * probability)
    return jnp.stack(edges) if edges else jnp.zeros((0, n), C.dtype)


def _orthant_moment(
    C: Float[Numeric, "n m m"],
    first: np.ndarray,
    second: np.ndarray,
    probability: Float[Numeric, " n"],
    edges: Float[Numeric, "pairs n"],
) -> Float[Numeric, " n"]:
    """E[prod_s 1(lambda_s > 0) lambda_a lambda_b], with a and b the fields at `first`, `second`.

    Stein's lemma twice, with the probability P of the orthant and the densities of its edges q < r:

        C_ab P + sum_{q<r} edge_qr [C_aq (C_br - C_bq C_qr/C_qq) + C_ar (C_bq - C_br C_qr/C_rr)]
    """
    n, m, _ = C.shape
    rows = np.arange(n)
    result = C[rows, first, second] * probability
    for edge, (q, r) in zip(edges, itertools.combinations(range(m), 2), strict=True):
        # covariances of a and b with the fields at the edge
        aq, ar = C[rows, first, q], C[rows, first, r]
        bq, br = C[rows, second, q], C[rows, second, r]
        conditional_on_q = br - bq * C[:, q, r] / C[:, q, q]
        conditional_on_r = bq - br * C[:, q, r] / C[:, r, r]
        result = result + edge * (aq * conditional_on_q + ar * conditional_on_r)
    return result


def orthant_probability(C: Float[Numeric, "n m m"]) -> Float[Numeric, " n"]:
    """P(all of m <= 4 centred Gaussian variables are positive).

    m <= 3 is elementary: P_3 = (P_12 + P_13 + P_23)/2 - 1/4 by inclusion and exclusion. For m = 4
    the correlations between (0, 1) and (2, 3) are multiplied by t. The probability factorises at t
    = 0, and its derivative in t is elementary (Plackett, Biometrika 41 (1954) 351):

        dP/drho_ij = P(lambda_k, lambda_l > 0 | lambda_i = lambda_j = 0)/(2 pi sqrt(1 - rho_ij^2)).
    """
    m = C.shape[-1]
    if m == 1:
        return jnp.full(C.shape[:-2], 0.5, C.dtype)
    # an orthant probability depends on correlations alone
    scale = jnp.sqrt(jnp.einsum("...ii->...i", C))
    r = safe_ratio(C, scale[..., :, None] * scale[..., None, :])
    if m == 2:
        return quadrant_probability(r[..., 0, 1])
    if m == 3:
        pairs = [quadrant_probability(r[..., i, j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        return (pairs[0] + pairs[1] + pairs[2]) / 2 - 0.25
    node, weight = gauss_legendre(ORTHANT_NODES)
    # t = x (2 - x) crowds the nodes at t -> 1, where the covariance is nearly singular
    t = node * (2 - node)
    jacobian = 2 * (1 - node)
    cross = np.zeros((4, 4))
    cross[:2, 2:] = cross[2:, :2] = 1.0
    factor = 1.0 + cross * (t[:, None, None] - 1.0)
    scaled = r[..., None, :, :] * factor
    total = quadrant_probability(r[..., 0, 1]) * quadrant_probability(r[..., 2, 3])
    for i, j in itertools.product((0, 1), (2, 3)):
        k, ell = 1 - i, 5 - j  # the other two variables
        probability = _both_positive(scaled, k, ell, i, j)
        slope = safe_ratio(
            r[..., i, j][..., None], 2 * np.pi * safe_root(1 - scaled[..., i, j] ** 2)
        )
        total = total + jnp.sum(weight * jacobian * slope * probability, axis=-1)
    return total


def _variance_or_zero(
    conditional: Float[Numeric, "*s"], full: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """A conditional variance, 0 where only rounding is left of it: two fields that coincide."""
    return jnp.where(conditional > PIVOT * full, conditional, 0.0)


def _conditional_covariance(
    C: Float[Numeric, "*s n n"], a: int, b: int, i: int, j: int
) -> Float[Numeric, "*s"]:
    """Covariance of the fields a and b given the fields i and j (a Schur complement)."""
    # C_ab - C_a(ij) C_(ij)(ij)^-1 C_(ij)b, with the inverse of a 2 x 2 matrix written out
    det = C[..., i, i] * C[..., j, j] - C[..., i, j] ** 2
    on_i = C[..., j, j] * C[..., i, b] - C[..., i, j] * C[..., j, b]
    on_j = C[..., i, i] * C[..., j, b] - C[..., i, j] * C[..., i, b]
    return C[..., a, b] - safe_ratio(C[..., a, i] * on_i + C[..., a, j] * on_j, det)


def _both_positive(
    C: Float[Numeric, "*s n n"], k: int, ell: int, i: int, j: int
) -> Float[Numeric, "*s"]:
    """P(lambda_k > 0, lambda_ell > 0 | lambda_i = lambda_j = 0).

    A field that coincides with i or j has no sign there. It gets the share for which the terms of
    all coinciding fields add up: one half for two of them, one third each for three.
    """
    first = _variance_or_zero(_conditional_covariance(C, k, k, i, j), C[..., k, k])
    second = _variance_or_zero(_conditional_covariance(C, ell, ell, i, j), C[..., ell, ell])
    covariance = _conditional_covariance(C, k, ell, i, j)
    correlation = safe_ratio(covariance, safe_root(first) * safe_root(second))
    distance = C[..., k, k] + C[..., ell, ell] - 2 * C[..., k, ell]
    all_coincide = (first == 0) & (second == 0) & (distance <= PIVOT * C[..., k, k])
    probability = quadrant_probability(jnp.clip(correlation, -1.0, 1.0))
    return jnp.where(all_coincide, 1 / 3, probability)


register(ReluForms())
