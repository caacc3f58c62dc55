"""Closed expectations of erf(x/sqrt 2) students with erf or sign partners.

With erf_s(x) = erf(s x/sqrt 2) and kappa = 1/s^2 (1 for erf, 0 for sign, the limit s -> infinity),

    E[erf_1(u) erf_2(v)] = (2/pi) arcsin(c/sqrt((kappa1 + q1)(kappa2 + q2))),

Saad and Solla, Phys. Rev. E 52 (1995) 4225. A, B and the derivatives follow by Price's theorem.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.expectations.closed_forms.family import (
    ClosedForms,
    Matrix,
    NoiseTerm,
    PairMoments,
    register,
)
from sgdynamics.expectations.closed_forms.quadruples import sum_pairs_of_fields
from sgdynamics.problems.activations import NAMED, Activation

KAPPA = {NAMED["erf"]: 1.0, NAMED["sign"]: 0.0}


class ErfForms(ClosedForms):
    """The error function and its steep limit, the sign."""

    def covers(self, activation: Activation) -> bool:
        return activation in KAPPA

    def pair_value(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> Matrix:
        return arcsine_kernel(KAPPA[first], KAPPA[second], q1, q2, c)

    def pair_moments(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> PairMoments:
        # A = 2 dK/dq1 and B = dK/dc (Price)
        K = self.pair_value(first, second, q1, q2, c)
        s1, s2 = _shifted_variances(second, q1, q2)
        root = jnp.sqrt(s1 * s2 - c**2)
        return K, -2 / np.pi * c / (s1 * root), 2 / np.pi / root

    def derivative_table(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> Float[Numeric, "2 4 m n"]:
        # derivatives of B = (2/pi)/sqrt(s1 s2 - c^2) with respect to q1, q2 and c, by Price's
        # theorem
        s1, s2 = _shifted_variances(second, q1, q2)
        root = jnp.sqrt(s1 * s2 - c**2)
        second_zeroth = -c / (s1 * root)
        fourth_zeroth = 2 * c / (s1**2 * root) + s2 * c / (s1 * root**3)
        third_first, second_second, first_third = -s2 / root**3, c / root**3, -s1 / root**3
        table = [
            [second_zeroth, fourth_zeroth, third_first, second_second],
            [1 / root, third_first, second_second, first_third],
        ]
        return 2 / np.pi * jnp.array(table)

    def noise_term(self, student: Activation, teacher: Activation) -> NoiseTerm | None:
        if KAPPA[student] == 0.0:
            return None  # the sign has no gradient
        # slots of students have kappa = 1, those of teachers their own
        kappa = KAPPA[teacher]
        return lambda omega, c, p: sum_pairs_of_fields(
            omega, c, p, partial(erf_four_point, kappa, p)
        )


def _shifted_variances(
    second: Activation, q1: Float[Numeric, " m"], q2: Float[Numeric, " n"]
) -> tuple[Float[Numeric, "m 1"], Float[Numeric, "1 n"]]:
    """1 + q1 of the erf student and kappa + q2 of its partner, as a column and a row."""
    return (1.0 + q1)[:, None], (KAPPA[second] + q2)[None, :]


def arcsine_kernel(
    kappa1: float,
    kappa2: float,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Matrix,
) -> Matrix:
    """K = (2/pi) arcsin(c/sqrt((kappa1 + q1)(kappa2 + q2)))."""
    ratio = c / jnp.sqrt((kappa1 + q1)[:, None] * (kappa2 + q2)[None, :])
    # the ratio exceeds 1 by rounding only, for a sign paired with itself
    return 2 / np.pi * jnp.arcsin(jnp.clip(ratio, -1.0, 1.0))


def erf_four_point(
    kappa: float,
    p: int,
    omega: Float[Numeric, "fields fields"],
    i: IntScalar,
    j: IntScalar,
    partners: np.ndarray,
) -> Float[Numeric, "fields offsets"]:
    """I4 = E[g1' g2' g3 g4], Saad and Solla, Phys. Rev. E 52 (1995) 4225, appendix A:

        I4 = (4/pi^2) arcsin(L0/sqrt(L1 L2))/sqrt(L4),

    with the students i, j in slots 1 and 2, all fields b in slot 3, and the fields `partners` of b
    in slot 4. These are students (kappa = 1) or, from index p on, teachers with their `kappa`.
    """
    fields = np.arange(omega.shape[0])
    kappas = np.where(fields < p, 1.0, kappa)
    s1, s2, C12 = 1.0 + omega[i, i], 1.0 + omega[j, j], omega[i, j]
    with_i, with_j = omega[i], omega[j]
    # g1' g2' is a Gaussian weight: L0, L1, L2 are covariances of slots 3 and 4 under it, times L4
    L4 = s1 * s2 - C12**2
    first, second = s2 * with_i - C12 * with_j, s1 * with_j - C12 * with_i
    # L0 = L4 C34 - s1 C23 C24 - s2 C13 C14 + C12 (C13 C24 + C14 C23)
    L0 = L4 * omega[fields[:, None], partners] - (
        first[:, None] * with_i[partners] + second[:, None] * with_j[partners]
    )
    variances = L4 * (kappas + jnp.diagonal(omega)) - first * with_i - second * with_j
    ratio = L0 / jnp.sqrt(variances[:, None] * variances[partners])
    # The square of a sign teacher is 1: the ratio is exactly 1, where arcsin has no derivative. The
    # value does not depend on the overlaps there, so the derivative 0 of the constant is right.
    is_certain = (partners == fields[:, None]) & (kappas == 0.0)[:, None]
    angle = jnp.where(is_certain, np.pi / 2, jnp.arcsin(jnp.where(is_certain, 0.0, ratio)))
    return 4 / np.pi**2 * angle / jnp.sqrt(L4)


register(ErfForms())
