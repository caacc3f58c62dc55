"""Weighted samples that stand for all in an expectation: Sobol points for all fields and draws, made continuous where there are kinks.

A sample of L inputs with the correlation C (`samples.Sample`) has the fields F = mean + root Y, Y = Z C^1/2, Omega = root root^T, Z of
independent normals (fields x L). Where it is known what a loss reads, its points are those of `read_fields`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.nodes import gauss_legendre, lower_root, sobol_normals, solve_forward
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance

ARC_NODES = 5
LONG_ARC_NODES = 16  # where circles are few, and cut at the zeros of the signals too
LINE_NODES, LINE_REACH = 8, 6.5
MOST_MIRRORED = 6  # students: there are 2^p signs


def columns(structure: Structure) -> tuple[int, int]:
    """How many coordinates of a point are normals of the fields (token by token, the signals first), and how many of draws.

    There is always one of draws, also where all are summed over. Where it is known what is read, only that has coordinates.
    """
    if structure.dependence is not None:
        return structure.dependence.size, 0
    return structure.sample.inputs_a_sample * structure.fields, max(structure.sample.free, 1)


def order_of(structure: Structure) -> np.ndarray:
    """The fields (students, then signals) in the order of the root: the signals first, so that a kink of the label stays where it is as
    the rows move."""
    return np.r_[structure.width : structure.fields, 0 : structure.width]


def field_points(structure: Structure, quadrature: Quadrature, more: int) -> np.ndarray:
    """Sobol points for the fields and draws, with kinks in pairs (`sample_fields`), 2^more times as many as the rule says."""
    normals, draws = columns(structure)
    if structure.kinks:
        return sobol_normals(
            2 * normals + draws, quadrature.log2_circles + more, quadrature.replicates, whiten=False
        )
    return sobol_normals(
        normals + draws, quadrature.log2_points + more, quadrature.replicates, whiten=more > 0
    )


def mirrored(structure: Structure, nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sobol points that have every sign of the students' coordinates, of all tokens together.

    What is odd in a coordinate then averages to 0 exactly, so that a sampled drift is smooth up to the edge of the physical region,
    where a coordinate of the root of Omega is a square root of the overlaps.
    """
    p, k = structure.width, structure.signals
    if "points" not in nodes or "weights" in nodes or p > MOST_MIRRORED:
        return nodes
    replicates, count, size = nodes["points"].shape
    points = np.array(
        sobol_normals(size, max(int(np.log2(count)) - p, 6), replicates, whiten=False)
    )
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=p)))
    every = np.repeat(points[:, None], len(signs), axis=1)
    if structure.dependence is not None:
        for place, student in _students_read(structure):
            every[..., place] *= signs[:, None, student]
    else:
        for first in range(
            k, size - columns(structure)[1], structure.fields
        ):  # with kinks the points are pairs
            every[..., first : first + p] *= signs[:, None, :]
    every = every.reshape(replicates, -1, size)
    return {
        **nodes,
        "points": every
        if structure.kinks
        else every / np.sqrt(np.mean(every**2, axis=1, keepdims=True)),
    }


def _students_read(structure: Structure) -> list[tuple[int, int]]:
    """Coordinates of a point that are those of one student each, and which."""
    assert structure.dependence is not None
    size = structure.sample.inputs_a_sample * structure.fields
    places = [np.flatnonzero(row) for row in structure.dependence.rows]
    alone = [
        (place, int(one[0])) for place, one in enumerate(places) if len(one) == 1 and one[0] < size
    ]
    return [
        (place, one % structure.fields)
        for place, one in alone
        if one % structure.fields < structure.width
    ]


class Hidden(NamedTuple):
    """Covariances given what is read: of Y (L, fields, L, fields), of the means' coefficients c (L, K, L, K), of c with Y."""

    own: Any
    means: Any = None
    both: Any = None


class Points(NamedTuple):
    """Weighted samples (n,) of L inputs each, one input a row: Y = Z C^1/2 (n L, fields), what it makes of students and signals, means."""

    root: Any  # of Omega, in the order of `order_of`
    z: Any
    students: Any
    signals: Any
    means: Any  # on the signals (n L, K), or None
    given: Any  # the loss's fourth argument
    weights: Any
    hidden: Hidden | None = None  # where z and means are those given what is read


def sample_fields(
    structure: Structure,
    points: Float[Numeric, "m n"],
    overlaps: Overlaps,
    parameters: Parameters,
    case: dict[str, Any] | None = None,
    *,
    plain: bool = False,
    given_weights: Float[Numeric, " m"] | None = None,
) -> Points:
    """Fields at Sobol points, with the signals first in the root: then a kink of the label stays where it is as the rows move.

    A kink of the student does move, and an average over points would jump each time it passes one. There the points come in pairs, each
    of which spans a circle or a line that is integrated exactly between the places where a field meets a kink: the average is then
    continuous in the overlaps, as an integrator needs. `plain` points are not in pairs. All weigh the same unless weights are given.
    """
    sample, k, fields = structure.sample, structure.signals, structure.fields
    tokens, (size, free) = sample.inputs_a_sample, columns(structure)
    order = np.r_[structure.width : fields, 0 : structure.width]
    root = lower_root(overlaps.covariance[order][:, order])
    count = points.shape[0]
    case = {
        name: jnp.broadcast_to(value, (count, *np.shape(value)))
        for name, value in (case or {}).items()
    }
    draws = sample.drawn(parameters, points[:, -free:], case)
    means = sample.mean_coefficients(parameters, draws)
    if means is not None:
        means = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k))
    given = sample.given(draws)

    def students_of(z: Float[Numeric, "n fields"]) -> Float[Numeric, "n p"]:
        return (sample.mixed(parameters, z.reshape(-1, tokens, fields), -2) @ root[k:].T).reshape(
            len(z), -1
        )

    if plain or not structure.kinks:
        z, weights = (
            points[:, :size],
            jnp.full(count, 1.0 / count, points.dtype) if given_weights is None else given_weights,
        )
    else:
        pair = points[:, :size], points[:, size : 2 * size]
        if means is None and not any(structure.kinks):
            every = students_of if given_weights is None else lambda z: z @ root.T
            z, weights = _on_circles(
                *pair, every, ARC_NODES if given_weights is None else LONG_ARC_NODES
            )
        else:
            level = (
                0.0
                if means is None
                else overlaps.means(means)[..., : structure.width].reshape(count, -1)
            )
            z, weights = _on_lines(structure.kinks, *pair, students_of, level)
        means, given = jax.tree.map(lambda one: jnp.repeat(one, z.shape[1], axis=0), (means, given))
        share = 1 / count if given_weights is None else given_weights[:, None]
        z, weights = z.reshape(-1, size), (weights * share).reshape(-1)
    z = sample.mixed(parameters, z.reshape(-1, tokens, fields), -2).reshape(-1, fields)
    values = z @ root.T
    if means is not None:
        means = means.reshape(-1, k)
        values = values + overlaps.means(means)[:, order]
    return Points(root, z, values[:, k:], values[:, :k], means, given, weights)


def _on_circles(
    one: Float[Numeric, "n fields"],
    other: Float[Numeric, "n fields"],
    fields_of: Callable[..., Any],
    count: int,
) -> tuple[Float[Numeric, "n m fields"], Float[Numeric, "n m"]]:
    """Points (n, nodes, normals) and weights on the circles z cos(phi) + z' sin(phi), cut where a field is 0: always at two angles."""
    angle = jnp.arctan2(fields_of(other), fields_of(one))
    breaks = [jnp.zeros((one.shape[0], 1)), jnp.full((one.shape[0], 1), 2 * np.pi)]
    breaks += [jnp.mod(angle + turn, 2 * np.pi) for turn in (np.pi / 2, -np.pi / 2)]
    phi, weights = _pieces(jnp.concatenate(breaks, axis=1), count)
    z = jnp.cos(phi)[..., None] * one[:, None] + jnp.sin(phi)[..., None] * other[:, None]
    return z, weights / (2 * np.pi)


def _on_lines(
    kinks: tuple[float, ...], one: Any, other: Any, students_of: Any, mean: Any
) -> tuple[Any, Any]:
    """The same on lines, for kinks away from the fields' mean: there a circle may touch a kink, where its average has an infinite slope."""
    direction = one / jnp.sqrt(jnp.sum(one**2, axis=1, keepdims=True))
    base = other - jnp.sum(other * direction, axis=1, keepdims=True) * direction
    slope, level = students_of(direction), students_of(base) + mean
    breaks = [jnp.full((one.shape[0], 1), place) for place in (-LINE_REACH, 0.0, LINE_REACH)]
    for kink in kinks:
        breaks.append(
            jnp.clip((kink - level) / jnp.where(slope == 0, 1e-300, slope), -LINE_REACH, LINE_REACH)
        )
    t, weights = _pieces(jnp.concatenate(breaks, axis=1), LINE_NODES)
    density = jnp.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    return base[:, None] + t[..., None] * direction[:, None], weights * density


def _pieces(
    breaks: Float[Numeric, "m n"], count: int
) -> tuple[Float[Numeric, "m k"], Float[Numeric, "m k"]]:
    """Gauss-Legendre nodes between sorted breaks, (n, pieces times count)."""
    edges = jnp.sort(breaks, axis=1)
    node, weight = gauss_legendre(count)
    lengths = jnp.diff(edges, axis=1)[..., None]
    return (edges[:, :-1, None] + lengths * node).reshape(len(edges), -1), (
        lengths * weight
    ).reshape(len(edges), -1)


def norm_weights(
    structure: Structure, parameters: Parameters, overlaps: Overlaps, points: Points
) -> Any:
    """U_b (n, blocks, L, L), which turn E[h C h^T] into E[sum_lm h_l h_m^T (x_l.x_m - eigenvalue_b d_b C_lm)]."""
    sample, fields, hidden = structure.sample, structure.fields, points.hidden
    tokens, order = sample.inputs_a_sample, order_of(structure)
    z = points.z.reshape(-1, tokens, fields)
    correlation = (
        parameters["token_correlation"] if sample.correlated else jnp.eye(tokens, dtype=z.dtype)
    )

    def one(direction: Float[Numeric, "fields fields"]) -> Any:
        S = solve_forward(points.root, solve_forward(points.root, direction[order][:, order]).T)
        found = jnp.einsum("ntc,cd,nud->ntu", z, S, z) - jnp.trace(S) * correlation
        return found if hidden is None else found + jnp.einsum("tcud,cd->tu", hidden.own, S)

    directions = input_covariance.scaled(parameters, overlaps.blocks)
    found = input_covariance.scaled(parameters, jax.vmap(one, out_axes=1)(directions))
    if points.means is None:
        return found
    c = points.means.reshape(-1, tokens, structure.signals)
    gram = jnp.broadcast_to(parameters["gram"], (structure.blocks, *parameters["gram"].shape[-2:]))

    def of_means(direction: Float[Numeric, "fields fields"], gram: Float[Numeric, "K K"]) -> Any:
        along = solve_forward(points.root, direction[order][:, structure.width :])
        cross = jnp.einsum("ntr,cr,nuc->ntu", c, along, z)
        square = jnp.einsum("ntr,rs,nus->ntu", c, gram, c)
        if hidden is not None and hidden.means is not None:
            cross = cross + jnp.einsum("truc,cr->tu", hidden.both, along)
            square = square + jnp.einsum("trus,rs->tu", hidden.means, gram)
        return square + cross + jnp.swapaxes(cross, 1, 2)

    return found + jax.vmap(of_means, out_axes=1)(directions, gram)
