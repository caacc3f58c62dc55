"""E[s], E[s'], E[s''] of an activation at a field of given mean and spread."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations import pairs, polar
from sgdynamics.expectations.nodes import gauss_hermite
from sgdynamics.problems.activations import NAMED, Activation


def conditional_means(
    student: Activation, mean: Float[Numeric, "p n"], spread: Float[Numeric, "p n"]
) -> tuple[Float[Numeric, "p n"], Float[Numeric, "p n"], Float[Numeric, "p n"]]:
    """E[s], E[s'], E[s''] of mean + spread xi, point masses of s'' included."""
    if student == NAMED["relu"]:
        return relu_conditional_means(mean, spread)
    return generic_conditional_means(student, mean, spread)


def relu_conditional_means(
    mean: Float[Numeric, "p n"], spread: Float[Numeric, "p n"]
) -> tuple[Float[Numeric, "p n"], Float[Numeric, "p n"], Float[Numeric, "p n"]]:
    """The same for ReLU in closed form."""
    positive = jnp.where(spread > 0, spread, 1.0)
    ratio = mean / positive
    chance = jnp.where(spread > 0, jax.scipy.stats.norm.cdf(ratio), jnp.where(mean > 0, 1.0, 0.0))
    density = jnp.where(spread > 0, jnp.exp(-(ratio**2) / 2) / (np.sqrt(2 * np.pi) * positive), 0.0)
    return mean * chance + spread**2 * density, chance, density


def generic_conditional_means(
    student: Activation, mean: Float[Numeric, "p n"], spread: Float[Numeric, "p n"]
) -> tuple[Float[Numeric, "p n"], Float[Numeric, "p n"], Float[Numeric, "p n"]]:
    """The same for any activation, by quadrature."""
    if not student.kinks:
        xi, weights = gauss_hermite(48)
        points = mean[..., None] + spread[..., None] * xi
        s0, s1, s2 = (student.derivative(order)(points) @ weights for order in range(3))
        return s0, s1, s2
    s0, s1, s2 = (
        polar.line_expectation(
            student.derivative(order), student.kinks, mean, spread, pairs.POLAR_NODES
        )
        for order in range(3)
    )
    for kink, jump in zip(student.kinks, student.jumps(1), strict=True):
        positive = jnp.where(spread > 0, spread, 1.0)
        density = jnp.exp(-(((kink - mean) / positive) ** 2) / 2) / (np.sqrt(2 * np.pi) * positive)
        s2 = s2 + jump * jnp.where(spread > 0, density, 0.0)
    return s0, s1, s2
