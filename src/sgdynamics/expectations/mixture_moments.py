"""Moments of a ReLU network on one Gaussian cluster: their definition and common formulas.

With f = sum_i v_i relu(h_i), h ~ N(mean, covariance), the label y in {0, 1}, e = sigmoid(f) - y and
1_i = 1{h_i >= 0},

    P_i = E[1_i e],   D_i = p_{h_i}(0) E[e | h_i = 0],   S_ij = E[1_i 1_j sigmoid'(f)],
    B_ij = E[1_i 1_j e^2],   risk = E[softplus(f) - y f].

All modules use flip = 1 - 2y and q = sigmoid(flip f), in terms of which

    e = flip q,   e^2 = q^2,   sigmoid'(f) = q - q^2,   loss = softplus(flip f).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.expectations.nodes import safe_ratio


@dataclass(frozen=True)
class MixtureQuadrature:
    """Resolution of the moments of a cluster.

    Units that are integrated first have graded nodes next to their kinks, which resolve the layers
    that nearly parallel units make there.
    """

    line: int = 6  # nodes per half-line of a single unit
    # The pair integrated last: nodes along and across the bisector (half-lines), and between the
    # lines.
    inner: tuple[int, int, int] = (5, 5, 14)
    # The same for a pair integrated first; the third number counts nodes from either line.
    outer: tuple[int, int, int] = (5, 4, 8)
    graded: int = 6  # additional nodes on either side of a kink of units integrated first
    near: float = 1.0  # length of the stretch that has the graded nodes
    span: float = 5.5  # standard deviations up to which nodes between lines reach
    # Two numbers of nodes per half-line of nested rules, which are better if no units are nearly
    # parallel and are used where the two agree.
    lines: tuple[int, ...] = ()
    pairs: bool = True  # whether pairs are integrated where nested rules disagree
    # More than four units: circles for P, S, B and the risk, points for D, in independent
    # replicates.
    log2_circles: int = 9
    log2_points: int = 11
    replicates: int = 4


class ClusterMoments(NamedTuple):
    """Moments of C clusters and K units, or of one cluster without the first axis."""

    P: Float[Numeric, "*clusters p"]
    D: Float[Numeric, "*clusters p"]
    S: Float[Numeric, "*clusters p p"]
    B: Float[Numeric, "*clusters p p"]
    risk: Float[Numeric, "*clusters"]


class KinkConditions(NamedTuple):
    """The other units given h_i = 0, for each unit i."""

    density: Float[Numeric, " p"]  # p_{h_i}(0)
    mean: Float[Numeric, "p n"]
    covariance: Float[Numeric, "p n n"]
    head: Float[Numeric, "p n"]


def condition_on_kinks(
    mean: Float[Numeric, " p"], covariance: Float[Numeric, "p p"], head: Float[Numeric, " p"]
) -> KinkConditions:
    """The density of each unit at its kink, and the law of the other units there."""
    width = mean.shape[0]

    def condition(i: IntScalar, others: Int[Numeric, " n"]) -> KinkConditions:
        variance = covariance[i, i]
        slope = safe_ratio(covariance[:, i], variance)  # regression on h_i
        positive = jnp.where(variance > 0, variance, 1.0)
        normal = jnp.exp(-(mean[i] ** 2) / (2 * positive)) / jnp.sqrt(2 * np.pi * positive)
        residual = covariance - slope[:, None] * slope * variance
        return KinkConditions(
            jnp.where(variance > 0, normal, 0.0),
            (mean - slope * mean[i])[others],
            residual[others][:, others],
            head[others],
        )

    others = np.array([[j for j in range(width) if j != i] for i in range(width)], int)
    return jax.vmap(condition)(np.arange(width), others.reshape(width, width - 1))


def softplus_from_sigmoid(f: Float[Numeric, "*s"], q: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """log(1 + exp f) from q = sigmoid(f), at the cost of one logarithm."""
    return jnp.maximum(f, 0.0) - jnp.log(jnp.maximum(q, 1 - q))
