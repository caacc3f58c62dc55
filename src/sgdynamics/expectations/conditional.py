"""Means of an activation and its derivatives at a Gaussian field: E[s], E[s'], E[s'']."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations import pairs, polar
from sgdynamics.expectations.closed_forms import closed_forms_of
from sgdynamics.expectations.nodes import gauss_hermite
from sgdynamics.problems.activations import Activation

HERMITE_NODES = 48


def conditional_means(
    student: Activation, mean: Float[Numeric, "p n"], scale: Float[Numeric, "p n"]
) -> tuple[Float[Numeric, "p n"], Float[Numeric, "p n"], Float[Numeric, "p n"]]:
    """E[s], E[s'], E[s''] of the field mean + scale xi, with the point masses of s''."""
    # a family may have closed pairs and no closed conditional means
    family = closed_forms_of(student)
    means = None if family is None else family.conditional_means(student, mean, scale)
    return generic_conditional_means(student, mean, scale) if means is None else means


def generic_conditional_means(
    student: Activation, mean: Float[Numeric, "p n"], scale: Float[Numeric, "p n"]
) -> tuple[Float[Numeric, "p n"], Float[Numeric, "p n"], Float[Numeric, "p n"]]:
    """The same for any activation by quadrature: Gauss-Hermite, or cut at the kinks."""
    if not student.kinks:
        # smooth: Gauss-Hermite nodes of the field itself
        xi, weights = gauss_hermite(HERMITE_NODES)
        points = mean[..., None] + scale[..., None] * xi
        s0, s1, s2 = (student.derivative(order)(points) @ weights for order in range(3))
        return s0, s1, s2
    # with kinks: Gauss-Legendre between them, where s and its derivatives are smooth
    s0, s1, s2 = (
        polar.line_expectation(
            student.derivative(order), student.kinks, mean, scale, pairs.POLAR_NODES
        )
        for order in range(3)
    )
    # s'' has a point mass jump(s') at each kink, weighted with the density of the field there
    for kink, jump in zip(student.kinks, student.jumps(1), strict=True):
        positive_scale = jnp.where(scale > 0, scale, 1.0)
        ratio = (kink - mean) / positive_scale
        density = jnp.exp(-(ratio**2) / 2) / (np.sqrt(2 * np.pi) * positive_scale)
        s2 = s2 + jump * jnp.where(scale > 0, density, 0.0)
    return s0, s1, s2
