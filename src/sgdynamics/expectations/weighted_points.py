"""Weighted samples for expectations: Sobol points for all fields and draws.

A sample of L inputs with the correlation C (`samples.Sample`) has the fields F = mean + root Y,
with Y = Z C^1/2, Omega = root root^T and Z of independent normals (fields x L). For losses with
kinks the points are made such that averages are continuous in the overlaps. If it is known what a
loss reads, `read_fields` supplies its points instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.nodes import (
    gauss_legendre,
    lower_root,
    sobol_normals,
    solve_forward,
    times_small,
)
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

ARC_NODES = 5  # nodes per arc of a circle
LONG_ARC_NODES = 16  # the same where circles are few, and cut at the zeros of the signals too
LINE_NODES, LINE_REACH = 8, 6.5
MOST_MIRRORED = 6  # students: there are 2^p signs


def count_coordinates(structure: Structure) -> tuple[int, int]:
    """Number of coordinates of a point for the fields (token by token) and for the draws.

    There is at least one for draws, also if all draws are summed over. If it is known what the loss
    reads, only that has coordinates.
    """
    if structure.dependence is not None:
        return structure.dependence.size, 0
    return structure.sample.tokens.inputs_per_sample * structure.fields, max(
        structure.sample.sampled_normals, 1
    )


def root_order(structure: Structure) -> np.ndarray:
    """The order of the fields in the root of Omega: signals first, then students.

    In this order a kink of the label stays at the same points while the rows move.
    """
    return np.r_[structure.width : structure.fields, 0 : structure.width]


def field_points(structure: Structure, quadrature: Quadrature, log2_factor: int) -> np.ndarray:
    """Sobol points for fields and draws, 2^log2_factor times as many as the quadrature has.

    With kinks the points are pairs, see `sample_fields`.
    """
    normals, draws = count_coordinates(structure)
    replicates = quadrature.replicates
    if structure.kinks:
        log2_circles = quadrature.log2_circles + log2_factor
        return sobol_normals(2 * normals + draws, log2_circles, replicates, whiten=False)
    log2_points = quadrature.log2_points + log2_factor
    return sobol_normals(normals + draws, log2_points, replicates, whiten=log2_factor > 0)


def mirror_points(structure: Structure, nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace Sobol points by fewer, each with all signs of the students' coordinates.

    Functions that are odd in a coordinate then average to 0 exactly. This makes a sampled drift
    smooth up to the edge of the physical region, where a coordinate of the root of Omega is a
    square root of the overlaps.
    """
    p, k = structure.width, structure.signals
    if "points" not in nodes or "weights" in nodes or p > MOST_MIRRORED:
        return nodes
    replicates, count, size = nodes["points"].shape
    log2_count = max(int(np.log2(count)) - p, 6)
    # 2^p signs multiply the number of points: start from as many fewer
    points = np.array(sobol_normals(size, log2_count, replicates, whiten=False))
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=p)))
    mirrored = np.repeat(points[:, None], len(signs), axis=1)
    if structure.dependence is not None:
        for coordinate, student in _student_coordinates(structure):
            mirrored[..., coordinate] *= signs[:, None, student]
    else:
        # the students follow the signals in each token, and in both points of a pair
        for start in range(k, size - count_coordinates(structure)[1], structure.fields):
            mirrored[..., start : start + p] *= signs[:, None, :]
    mirrored = mirrored.reshape(replicates, -1, size)
    if not structure.kinks:
        mirrored = mirrored / np.sqrt(np.mean(mirrored**2, axis=1, keepdims=True))
    return {**nodes, "points": mirrored}


def _student_coordinates(structure: Structure) -> list[tuple[int, int]]:
    """Coordinates of a point that belong to a single student, with the index of that student."""
    assert structure.dependence is not None
    size = structure.sample.tokens.inputs_per_sample * structure.fields
    coordinates = []
    for coordinate, row in enumerate(structure.dependence.rows):
        # a combination of several fields has no sign of its own
        fields = np.flatnonzero(row)
        if len(fields) == 1 and fields[0] < size:
            field = int(fields[0]) % structure.fields
            if field < structure.width:
                coordinates.append((coordinate, field))
    return coordinates


class UnreadCovariance(NamedTuple):
    """Covariances given what the loss reads: of Y, of the coefficients c of the means, of both."""

    own: Float[Numeric, "L fields L fields"]
    means: Float[Numeric, "L K L K"] | None = None
    both: Float[Numeric, "L K L fields"] | None = None


class Points(NamedTuple):
    """Weighted samples of L inputs each, with one row per input."""

    root: Float[Numeric, "fields fields"]  # of Omega, in the order of `root_order`
    z: Float[Numeric, "inputs fields"]  # Y = Z C^1/2
    students: Float[Numeric, "inputs p"]
    signals: Float[Numeric, "inputs K"]
    means: Float[Numeric, "inputs K"] | None  # coefficients of the means on the signals
    draws: PyTree  # the draws, the fourth argument of the loss
    weights: Float[Numeric, " n"]
    # set if z and means are conditional means given what the loss reads
    unread: UnreadCovariance | None = None


def sample_fields(
    structure: Structure,
    points: Float[Numeric, "m n"],
    overlaps: Overlaps,
    parameters: Parameters,
    case: dict[str, Numeric] | None = None,
    *,
    plain: bool = False,
    point_weights: Float[Numeric, " m"] | None = None,
) -> Points:
    """Fields and draws at Sobol points, of equal weights by default.

    A kink of the student moves with its row, and an average over points would jump each time the
    kink passes one. With kinks the points therefore come in pairs. Each pair spans a circle or a
    line that is integrated between the positions at which a field meets a kink: the average is then
    continuous in the overlaps, as an integrator needs. `plain` points are not pairs.
    """
    sample, k, fields = structure.sample, structure.signals, structure.fields
    tokens, (size, free) = sample.tokens.inputs_per_sample, count_coordinates(structure)
    order = root_order(structure)
    root = lower_root(overlaps.covariance[order][:, order])
    count = points.shape[0]
    case = {
        name: jnp.broadcast_to(value, (count, *np.shape(value)))
        for name, value in (case or {}).items()
    }
    # the last coordinates of a point are those of the draws
    draws = sample.draw(parameters, points[:, -free:], case)
    means = sample.mean_coefficients(parameters, draws)
    if means is not None:
        means = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k))
    loss_draws = sample.loss_argument(draws)

    def students_of(z: Float[Numeric, "n fields"]) -> Float[Numeric, "n p"]:
        mixed = sample.tokens.correlate(parameters, z.reshape(-1, tokens, fields), -2)
        return (mixed @ root[k:].T).reshape(len(z), -1)

    if plain or not structure.kinks:
        z = points[:, :size]
        equal = jnp.full(count, 1.0 / count, points.dtype)
        weights = equal if point_weights is None else point_weights
    else:
        pair = points[:, :size], points[:, size : 2 * size]
        if means is None and not any(structure.kinks):
            # kinks at 0 of centred fields: each field vanishes at two opposite angles of a circle
            if point_weights is None:
                z, weights = _on_circles(*pair, students_of, ARC_NODES)
            else:
                z, weights = _on_circles(*pair, lambda z: z @ root.T, LONG_ARC_NODES)
        else:
            level = 0.0
            if means is not None:
                level = overlaps.means(means)[..., : structure.width].reshape(count, -1)
            z, weights = _on_lines(structure.kinks, *pair, students_of, level)
        # all nodes of one circle or line share the draws of its point
        means, loss_draws = jax.tree.map(
            lambda value: jnp.repeat(value, z.shape[1], axis=0), (means, loss_draws)
        )
        share = 1 / count if point_weights is None else point_weights[:, None]
        z, weights = z.reshape(-1, size), (weights * share).reshape(-1)
    # Y = Z C^1/2 mixes the inputs of a sample, field by field
    z = sample.tokens.correlate(parameters, z.reshape(-1, tokens, fields), -2).reshape(-1, fields)
    values = times_small(z, root.T)
    if means is not None:
        means = means.reshape(-1, k)
        values = values + overlaps.means(means)[:, order]
    return Points(root, z, values[:, k:], values[:, :k], means, loss_draws, weights)


FieldsOf = Callable[[Float[Numeric, "n size"]], Float[Numeric, "n fields"]]


def _on_circles(
    first: Float[Numeric, "n size"],
    second: Float[Numeric, "n size"],
    fields_of: FieldsOf,
    count: int,
) -> tuple[Float[Numeric, "n m size"], Float[Numeric, "n m"]]:
    """Points and weights on the circles first cos(phi) + second sin(phi), cut at zeros of fields.

    A field A cos(phi) + B sin(phi) vanishes at two opposite angles.
    """
    angle = jnp.arctan2(fields_of(second), fields_of(first))
    cuts = [jnp.zeros((first.shape[0], 1)), jnp.full((first.shape[0], 1), 2 * np.pi)]
    cuts += [jnp.mod(angle + turn, 2 * np.pi) for turn in (np.pi / 2, -np.pi / 2)]
    phi, weights = _legendre_pieces(jnp.concatenate(cuts, axis=1), count)
    z = jnp.cos(phi)[..., None] * first[:, None] + jnp.sin(phi)[..., None] * second[:, None]
    return z, weights / (2 * np.pi)


def _on_lines(
    kinks: tuple[float, ...],
    first: Float[Numeric, "n size"],
    second: Float[Numeric, "n size"],
    students_of: FieldsOf,
    mean: Float[Numeric, "n fields"] | float,
) -> tuple[Float[Numeric, "n m size"], Float[Numeric, "n m"]]:
    """Points and weights on lines, for kinks away from the mean of the fields.

    A circle may touch such a kink, and its average has an infinite slope there; a line crosses it.
    The line has the direction of `first` and passes through `second`.
    """
    direction = first / jnp.sqrt(jnp.sum(first**2, axis=1, keepdims=True))
    # the point of the line closest to 0, so that t is standard normal
    base = second - jnp.sum(second * direction, axis=1, keepdims=True) * direction
    slope, level = students_of(direction), students_of(base) + mean
    cuts = [jnp.full((first.shape[0], 1), end) for end in (-LINE_REACH, 0.0, LINE_REACH)]
    for kink in kinks:
        crossing = (kink - level) / jnp.where(slope == 0, 1e-300, slope)
        cuts.append(jnp.clip(crossing, -LINE_REACH, LINE_REACH))
    t, weights = _legendre_pieces(jnp.concatenate(cuts, axis=1), LINE_NODES)
    density = jnp.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    return base[:, None] + t[..., None] * direction[:, None], weights * density


def _legendre_pieces(
    cuts: Float[Numeric, "n c"], count: int
) -> tuple[Float[Numeric, "n m"], Float[Numeric, "n m"]]:
    """Gauss-Legendre nodes and weights between cuts, (n, pieces times count)."""
    edges = jnp.sort(cuts, axis=1)
    node, weight = gauss_legendre(count)
    lengths = jnp.diff(edges, axis=1)[..., None]
    nodes = edges[:, :-1, None] + lengths * node
    return nodes.reshape(len(edges), -1), (lengths * weight).reshape(len(edges), -1)


def norm_weights(
    structure: Structure, parameters: Parameters, overlaps: Overlaps, points: Points
) -> Float[Numeric, "n blocks L L"]:
    """U_b, which turns E[h C h^T] into E[sum_lm h_l h_m^T (x_l.x_m - eigenvalue_b d_b C_lm)].

    The scalar products are those of block b. The formula is in the docstring of `sampled`.
    """
    sample, fields, unread = structure.sample, structure.fields, points.unread
    tokens, order = sample.tokens.inputs_per_sample, root_order(structure)
    z = points.z.reshape(-1, tokens, fields)
    if sample.tokens.correlated:
        correlation = parameters["token_correlation"]
    else:
        correlation = jnp.eye(tokens, dtype=z.dtype)

    def centred_square(direction: Float[Numeric, "fields fields"]) -> Float[Numeric, "n L L"]:
        # Y^T S_b Y - Tr(S_b) C, with the variance of Y that the conditional means lack
        S = solve_forward(points.root, solve_forward(points.root, direction[order][:, order]).T)
        square = jnp.einsum("ntc,cd,nud->ntu", z, S, z) - jnp.trace(S) * correlation
        return square if unread is None else square + jnp.einsum("tcud,cd->tu", unread.own, S)

    directions = input_covariance.times_eigenvalues(parameters, overlaps.blocks)
    weights = input_covariance.times_eigenvalues(
        parameters, jax.vmap(centred_square, out_axes=1)(directions)
    )
    if points.means is None:
        return weights
    c = points.means.reshape(-1, tokens, structure.signals)
    # P_b of each block
    gram = jnp.broadcast_to(parameters["gram"], (structure.blocks, *parameters["gram"].shape[-2:]))

    def mean_terms(
        direction: Float[Numeric, "fields fields"], gram: Float[Numeric, "K K"]
    ) -> Float[Numeric, "n L L"]:
        # c P_b c^T + X_b + X_b^T
        projection = solve_forward(points.root, direction[order][:, structure.width :])
        cross = jnp.einsum("ntr,cr,nuc->ntu", c, projection, z)
        square = jnp.einsum("ntr,rs,nus->ntu", c, gram, c)
        if unread is not None and unread.means is not None:
            cross = cross + jnp.einsum("truc,cr->tu", unread.both, projection)
            square = square + jnp.einsum("trus,rs->tu", unread.means, gram)
        return square + cross + jnp.swapaxes(cross, 1, 2)

    return weights + jax.vmap(mean_terms, out_axes=1)(directions, gram)
