"""Closed expectations of polynomials, by Wick's (Isserlis') theorem.

Expanding in the number n of contractions between u and v,

    E[f(u) g(v)] = sum_n c^n/n! E[f^(n)(u)] E[g^(n)(v)],

a finite sum, exact, without a square root or a quotient: it has all derivatives, also at zero
variance.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.closed_forms.family import (
    HESSIAN_ORDERS,
    ClosedForms,
    Matrix,
    NoiseTerm,
    PairMoments,
    register,
)
from sgdynamics.expectations.closed_forms.quadruples import sum_quadruples
from sgdynamics.problems.activations import Activation

SQUARE = (0.0, 0.0, 1.0)  # coefficients of x^2, lowest degree first

# the pairs (12, 13, 14, 23, 24, 34) that contain each of the four slots
PAIRS_OF_SLOT = ([0, 1, 2], [0, 3, 4], [1, 3, 5], [2, 4, 5])


class PolynomialForms(ClosedForms):
    """Polynomials with known coefficients."""

    def covers(self, activation: Activation) -> bool:
        return activation.coefficients is not None

    def pair_moments(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> PairMoments:
        m, n = first.degree or 0, second.degree or 0
        top = min(m, n)  # largest number of contractions
        # F_n = E[f^(n)(u)] and G_n = E[g^(n)(v)]; derivatives beyond the degree are 0
        F = derivative_means(first, 0, max(m, top + 2), q1)
        G = derivative_means(second, 0, max(n, top + 1), q2)
        series = _contraction_weights(c, top)
        # K, A and B differ in the derivative that is contracted n times: (0, 0), (2, 0), (1, 1)
        left = jnp.stack([F[:, : top + 1], F[:, 2 : top + 3], F[:, 1 : top + 2]])
        right = jnp.stack([G[:, : top + 1], G[:, : top + 1], G[:, 1 : top + 2]])
        K, A, B = jnp.sum(left[:, :, None] * right[:, None] * series, axis=-1)
        return K, A, B

    def derivative_table(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> Float[Numeric, "2 4 m n"]:
        top = min(first.degree or 0, second.degree or 0)
        F = derivative_means(first, 0, top + 4, q1)
        G = derivative_means(second, 0, top + 3, q2)
        series = _contraction_weights(c, top)

        def expectation(i: int, j: int) -> Matrix:
            return jnp.einsum("in,jn,ijn->ij", F[:, i : i + top + 1], G[:, j : j + top + 1], series)

        return jnp.array([[expectation(*order) for order in orders] for orders in HESSIAN_ORDERS])

    def noise_term(self, student: Activation, teacher: Activation) -> NoiseTerm:
        # x^2 has a formula in matrices, without the sum over quadruples
        if student.coefficients == teacher.coefficients == SQUARE:
            return square_noise
        return lambda omega, c, p: polynomial_noise(student, teacher, omega, c, p)


def _contraction_weights(c: Matrix, top: int) -> Float[Numeric, "m n top"]:
    """c^n/n! for n = 0, ..., top, along a new last axis."""
    return integer_powers(c, top) / np.array([float(math.factorial(n)) for n in range(top + 1)])


def integer_powers(x: Float[Numeric, "..."], top: int) -> Float[Numeric, "... top"]:
    """x^0, ..., x^top along a new last axis, by products: jnp.power has no derivative at 0."""
    powers = [jnp.ones_like(x)]
    for _ in range(top):
        powers.append(powers[-1] * x)
    return jnp.stack(powers, axis=-1)


def derivative_means(
    activation: Activation, lowest: int, count: int, variance: Float[Numeric, " n"]
) -> Float[Numeric, "n m"]:
    """E[f^(lowest + e)(sqrt(q) z)] for e = 0, ..., count and each variance q: (fields, count + 1).

    Uses E[z^(2m)] = (2m - 1)!! for a standard normal z.
    """
    columns = []
    for order in range(lowest, lowest + count + 1):
        # coefficients of f^(order); odd powers have mean 0
        derived = np.polynomial.polynomial.polyder(np.asarray(activation.coefficients), order)
        total = jnp.zeros_like(variance)
        power = jnp.ones_like(variance)
        for even in range(0, len(derived), 2):
            total = total + derived[even] * math.prod(range(even - 1, 0, -2)) * power
            power = power * variance
        columns.append(total)
    return jnp.stack(columns, axis=1)


def square_noise(
    omega: Float[Numeric, "fields fields"], c: Float[Numeric, " fields"], p: int
) -> Float[Numeric, "p p"]:
    """N = 4 E[lambda_i lambda_j (sum_b c_b lambda_b^2)^2] of x^2 students and teachers, by Wick.

    With D = diag(c) and tau = Tr(D Omega),

        N = 4 [(tau^2 + 2 Tr (D Omega)^2) Omega + 4 tau Omega D Omega + 8 Omega D Omega D Omega]_ij.

    The cost is that of a matrix product, where the sum over quadruples costs p^2 fields^2.
    """
    weighted = c[:, None] * omega
    tau = jnp.trace(weighted)
    # Omega D Omega
    once = omega @ weighted
    scalar = tau**2 + 2 * jnp.sum(weighted * weighted.T)
    full = scalar * omega + 4 * tau * once + 8 * once @ weighted
    return 4 * full[:p, :p]


@lru_cache(maxsize=32)
def _wick_exponents(degrees: tuple[int, int, int, int]) -> np.ndarray:
    """All numbers of contractions (12, 13, 14, 23, 24, 34) of four polynomials of these degrees."""
    d1, d2, d3, d4 = degrees
    exponents = []
    for e12 in range(min(d1, d2) + 1):
        for e13 in range(min(d1 - e12, d3) + 1):
            for e14 in range(min(d1 - e12 - e13, d4) + 1):
                for e23 in range(min(d2 - e12, d3 - e13) + 1):
                    for e24 in range(min(d2 - e12 - e23, d4 - e14) + 1):
                        for e34 in range(min(d3 - e13 - e23, d4 - e14 - e24) + 1):
                            exponents.append((e12, e13, e14, e23, e24, e34))
    return np.array(exponents)


def polynomial_noise(
    student: Activation,
    teacher: Activation,
    omega: Float[Numeric, "fields fields"],
    c: Float[Numeric, " fields"],
    p: int,
) -> Float[Numeric, "p p"]:
    """N of polynomials, by Wick's theorem for four fields:

        E[prod_a f_a(lambda_a)] = sum_e prod_{a<b} C_ab^e_ab/e_ab! prod_a E[f_a^(e_a)(sqrt(C_aa)
        z)].

    e_a = sum_b e_ab counts the contractions of field a with the others. Contractions of a field
    with itself are in the last factor.
    """

    def four_point(
        omega: Float[Numeric, "fields fields"], index: np.ndarray, p: int
    ) -> Float[Numeric, " n"]:
        are_students = index[:, 2:] < p
        total = jnp.zeros(len(index), omega.dtype)
        variance = jnp.diagonal(omega)
        # slots 3 and 4 are students or teachers: four cases, each with degrees of its own
        for kinds in itertools.product((True, False), repeat=2):
            chosen = np.flatnonzero(np.all(are_students == np.array(kinds), axis=1))
            if len(chosen) == 0:
                continue
            partners = [student if is_student else teacher for is_student in kinds]
            # activation and order of its derivative in each slot
            slots = [(student, 1), (student, 1), (partners[0], 0), (partners[1], 0)]
            degrees = [(activation.degree or 0) - order for activation, order in slots]
            exponents = _wick_exponents((degrees[0], degrees[1], degrees[2], degrees[3]))
            contractions = np.stack([exponents[:, pairs].sum(axis=1) for pairs in PAIRS_OF_SLOT])
            weights = [1.0 / math.prod(math.factorial(e) for e in row) for row in exponents]
            members = index[chosen]
            terms = np.array(weights) * jnp.ones((len(chosen), 1), omega.dtype)
            for slot, ((activation, order), degree) in enumerate(zip(slots, degrees, strict=True)):
                # E[f_a^(e_a)] of the slot
                means = derivative_means(activation, order, degree, variance)
                terms = terms * means[members[:, slot]][:, contractions[slot]]
            for pair, (a, b) in enumerate(itertools.combinations(range(4), 2)):
                exponent = exponents[:, pair]
                # C_ab^e_ab of the pair
                powers = integer_powers(omega[members[:, a], members[:, b]], int(exponent.max()))
                terms = terms * powers[:, exponent]
            total = total.at[chosen].set(jnp.sum(terms, axis=1))
        return total

    return sum_quadruples(omega, c, p, four_point)


register(PolynomialForms())
