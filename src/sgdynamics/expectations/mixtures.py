"""Gaussian expectations of a ReLU network under logistic loss, on clusters of its fields.

`mixture_moments` defines the moments P, D, S, B and the risk of a cluster. By Stein's lemma they
determine the drift of one-pass SGD on a Gaussian mixture (Ben Arous, Gheissari and Jagannath 2022,
Prop. 4.1 and its analogue for XOR), at any covariance, including singular ones.

One and two units are integrated to rounding, three and four by a pair given the others
(`mixture_pairs`, `nested`), more on circles through Sobol points (`mixture_circles`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Scalar
from sgdynamics.base.checks import integer
from sgdynamics.expectations import half_lines, nested
from sgdynamics.expectations.mixture_circles import circle_moments
from sgdynamics.expectations.mixture_moments import (
    ClusterMoments,
    MixtureQuadrature,
    condition_on_kinks,
)
from sgdynamics.expectations.mixture_pairs import pair_moments
from sgdynamics.expectations.nodes import safe_root, sobol_normals

MOST_INTEGRATED = 4  # units; more are sampled


def choose_quadrature(width: int, *, fine: bool = False, pairs: bool = True) -> MixtureQuadrature:
    """The quadrature for a number of units.

    Without `pairs`, four units are integrated by nested half-lines alone; `error` is large where
    they do not suffice.

    Its error is rounding for one and two units and 1e-8 for three and four (1e-5 for four nearly
    parallel units, 1e-6 if `fine`); more units are sampled. This holds if v_i times the standard
    deviation of h_i is about 1 or less. A steeper f needs more nodes, and `error` reports it.
    """
    width = integer("width", width, 1)
    # one plane at most: nodes are cheap
    if width <= 2:
        return MixtureQuadrature(line=16, inner=(16, 16, 40), span=8.5)
    if width == 3:
        return MixtureQuadrature(line=12, inner=(12, 12, 28), graded=12, span=7.5)
    # four units: nested half-lines with few nodes, and pairs where these disagree
    if not fine:
        return MixtureQuadrature(lines=(5, 7), pairs=pairs)
    return MixtureQuadrature(
        lines=(7, 9),
        line=8,
        inner=(6, 7, 16),
        outer=(7, 6, 9),
        graded=8,
        span=6.3,
        log2_circles=12,
        log2_points=14,
    )


def is_sampled(width: int) -> bool:
    """Whether the moments of this many units are averages over random points."""
    return width > MOST_INTEGRATED


def build_nodes(quadrature: MixtureQuadrature, width: int) -> dict[str, np.ndarray]:
    """The arrays of a quadrature, with a leading axis of replicates."""
    if is_sampled(width):
        # different seeds: circles and points must be independent
        replicates = quadrature.replicates
        return {
            "circles": sobol_normals(2 * width, quadrature.log2_circles, replicates, whiten=False),
            "points": sobol_normals(
                width, quadrature.log2_points, replicates, whiten=False, seed=20261
            ),
        }
    # one table for each number of nodes that occurs
    counts = set(quadrature.lines)
    if quadrature.pairs:
        counts |= {quadrature.line, *quadrature.inner[:2]}
        if width == MOST_INTEGRATED:
            counts |= set(quadrature.outer[:2])
    return {f"half_line_{count}": half_lines.table(count)[None] for count in counts}


@partial(jax.jit, static_argnums=0)  # traced once for all programs that use it
def cluster_moments(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    means: Float[Numeric, "clusters p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    labels: Float[Numeric, " clusters"],
) -> ClusterMoments:
    """P, D, S, B and the risk of all clusters; `nodes` is one replicate of `build_nodes`.

    The labels are 0 or 1. A unit without variance is active if its mean is >= 0, and its D is 0.
    The moments are exact up to quadrature; see `error`.
    """
    means, covariance, head, labels = (jnp.asarray(x) for x in (means, covariance, head, labels))
    if is_sampled(means.shape[1]):
        return jax.vmap(
            lambda mean, label: circle_moments(nodes, mean, covariance, head, 1 - 2 * label)
        )(means, labels)

    def integrate_pairs(mean: Float[Numeric, " p"], label: Scalar) -> ClusterMoments:
        # flip = 1 - 2y is 1 for label 0 and -1 for label 1
        return pair_moments(quadrature, nodes, mean, covariance, head, 1 - 2 * label)

    if not quadrature.lines:
        return jax.vmap(integrate_pairs)(means, labels)

    def integrate_lines(cluster: tuple[Float[Numeric, " p"], Scalar]) -> ClusterMoments:
        mean, label = cluster
        table = nodes[f"half_line_{quadrature.lines[-1]}"]
        return _line_moments(table, mean, covariance, head, 1 - 2 * label)[0]

    def integrate_cluster(cluster: tuple[Float[Numeric, " p"], Scalar]) -> ClusterMoments:
        mean, label = cluster
        by_lines, doubt = _doubted_line_moments(
            quadrature, nodes, mean, covariance, head, 1 - 2 * label
        )

        def interpolate() -> ClusterMoments:
            # a smooth transition: pairs where half-lines are doubted
            return jax.tree.map(
                lambda pairs, lines: doubt * pairs + (1 - doubt) * lines,
                integrate_pairs(mean, label),
                by_lines,
            )

        return jax.lax.cond(doubt > 0, interpolate, lambda: by_lines)

    # one cluster after the other: together their many points would not fit into the cache
    integrate = integrate_cluster if quadrature.pairs else integrate_lines
    return jax.lax.map(integrate, (means, labels))


def _doubted_line_moments(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> tuple[ClusterMoments, Float[Numeric, ""]]:
    """The moments of one cluster by nested half-lines, and the doubt about them (0 to 1)."""
    # the difference between two numbers of nodes decides how far to trust the finer
    coarse_table, fine_table = (nodes[f"half_line_{count}"] for count in quadrature.lines)
    coarse = nested.orthant_moments(coarse_table, mean, covariance, head, flip)
    moments, fine = _line_moments(fine_table, mean, covariance, head, flip)
    return moments, nested.doubt(coarse, fine)


def _line_moments(
    table: Float[Numeric, "l k m"],
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    flip: Scalar,
) -> tuple[ClusterMoments, nested.OrthantMoments]:
    """The moments of one cluster by nested half-lines, and the moments of its orthants."""
    fine = nested.orthant_moments(table, mean, covariance, head, flip)
    at_kink = condition_on_kinks(mean, covariance, head)
    # E[q | h_i = 0] of each unit, over the other units
    at_kinks = jax.vmap(
        lambda mean, covariance, head: (
            nested.orthant_moments(table, mean, covariance, head, flip).total
        )
    )(at_kink.mean, at_kink.covariance, at_kink.head)
    moments = ClusterMoments(
        flip * fine.first,
        flip * at_kink.density * at_kinks,
        # S = E[1_i 1_j (q - q^2)]
        fine.both - fine.squares,
        fine.squares,
        fine.risk,
    )
    return moments, fine


def error(
    quadrature: MixtureQuadrature,
    nodes: Nodes,
    means: Float[Numeric, "p p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
    labels: Float[Numeric, " clusters"],
) -> Float[Numeric, ""]:
    """Estimated relative error of `cluster_moments` at one state; `nodes` includes all replicates.

    If sampled, the standard error over replicates. Otherwise the difference from a second
    quadrature: a coarser one for one and two units, a finer one for three and four. D, in units of
    1/(standard deviation), is compared with P.
    """
    means, covariance, head, labels = (jnp.asarray(x) for x in (means, covariance, head, labels))
    state = (means, covariance, head, labels)
    scale = safe_root(jnp.diagonal(covariance))
    width = means.shape[1]
    if is_sampled(width):
        # the standard error of the mean over independent scramblings
        replicates = jax.vmap(lambda node: cluster_moments(quadrature, node, *state))(nodes)
        values = jax.tree.map(lambda value: jnp.mean(value, axis=0), replicates)
        gaps = jax.tree.map(
            lambda value: jnp.std(value, axis=0, ddof=1) / np.sqrt(value.shape[0]), replicates
        )
        least = 0.0
    else:
        first_replicate = {name: value[0] for name, value in nodes.items()}
        if quadrature.lines and not quadrature.pairs:

            def integrate_cluster(
                cluster: tuple[Float[Numeric, " p"], Scalar],
            ) -> tuple[ClusterMoments, Float[Numeric, ""]]:
                mean, label = cluster
                return _doubted_line_moments(
                    quadrature, first_replicate, mean, covariance, head, 1 - 2 * label
                )

            values, doubts = jax.lax.map(integrate_cluster, (means, labels))
            # half-lines that are doubted may agree by chance
            least = jnp.where(jnp.max(doubts) > 0, nested.TRUSTED, 0.0)
        else:
            values, least = cluster_moments(quadrature, first_replicate, *state), 0.0
        # a deterministic quadrature is compared with a second one
        second = _second_quadrature(quadrature, width)
        second_nodes = {
            name: jnp.asarray(value[0]) for name, value in build_nodes(second, width).items()
        }
        second_values = cluster_moments(second, second_nodes, *state)
        gaps = jax.tree.map(lambda left, right: jnp.abs(left - right), values, second_values)

    def relative(gap: Float[Numeric, "*s"], *sizes: Float[Numeric, "..."]) -> Float[Numeric, ""]:
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(size)) for size in sizes]))
        return jnp.max(gap) / (largest + 1e-300)

    # D may be 0 by symmetry: it is compared with P too
    errors = [relative(gaps.D * scale, values.D * scale, values.P)]
    errors += [
        relative(getattr(gaps, name), getattr(values, name)) for name in ("P", "S", "B", "risk")
    ]
    return jnp.maximum(jnp.max(jnp.stack(errors)), least)


def _second_quadrature(quadrature: MixtureQuadrature, width: int) -> MixtureQuadrature:
    """The quadrature with which another one is compared to estimate its error."""
    parallel, across, middle = quadrature.inner
    # one and two units are exact to rounding: a coarser one bounds the error
    if width <= 2:
        coarser = (parallel - 4, across - 4, middle - 10)
        return replace(quadrature, line=quadrature.line - 4, inner=coarser)
    # three and four units: the difference from a finer one is the error itself
    first, second, third = (count + 2 for count in quadrature.outer)
    return replace(
        quadrature,
        line=quadrature.line + 2,
        inner=(parallel + 1, across + 1, middle + 4),
        outer=(first, second, third),
        graded=quadrature.graded + 4,
        near=0.7 * quadrature.near,
        span=quadrature.span + 0.7,
        lines=tuple(count + 1 for count in quadrature.lines),
    )
