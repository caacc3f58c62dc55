"""E[h_ij x x^T], the Hessian of the risk: of two-layer networks by pairs of fields, or sampled.

A network needs E[F(u, v) x x^T] with u = w.x, v = v.x and F = f''(u) g(v) or f'(u) g'(v). For
smooth functions Stein's lemma, applied twice, gives

    E[F x x^T] = E[F] I + E[F_uu] w w^T + E[F_uv] (w v^T + v w^T) + E[F_vv] v v^T,

which needs no derivative with respect to the overlaps and so holds at any of them. For activations
with kinks the plane of w and v is integrated instead, with the point masses of f'' and g' on their
lines.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.expectations import mehler, pairs, polar
from sgdynamics.expectations.closed_forms import shared_closed_forms
from sgdynamics.expectations.closed_forms.family import HESSIAN_ORDERS
from sgdynamics.expectations.nodes import safe_ratio, sobol_normals
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.problem import Structure

# Radians. Aligned fields with kinks are a limit, taken from one side; the Hessian is continuous.
ONE_SIDED = 1e-12
# Nodes per sector: piecewise polynomials with kinks at 0 only, and all other activations.
PIECEWISE_NODES, NODES = 18, 60
REPLICATES, LOG2_POINTS = 4, 14  # Sobol points for a loss of any kind
OFFSET = 1e-9  # relative displacement that separates coinciding kinks of parallel units
TOP_BATCH = 1024  # points whose second derivatives with respect to the top are computed together
HALF_STEP = 1e-7  # distance on either side of a kink at which a jump is measured


class TopCurvature(NamedTuple):
    """The part of the Hessian that belongs to the numbers theta on top of the rows."""

    cross: np.ndarray  # E[d^2 loss/dtheta dlambda_i x], (p, D, n); 0 outside of the frame
    inside: np.ndarray  # E[d^2 loss/dtheta^2], (n, n)
    gradient: np.ndarray  # E[dloss/dtheta], (n,)


class Curvature(NamedTuple):
    """The Hessian in whitened coordinates of a frame with D columns, and outside of the frame."""

    inside: np.ndarray  # E[h_ij x x^T] on the frame, (p, D, p, D)
    outside: np.ndarray  # E[h_ij], (p, p): the Hessian in each direction outside of the frame
    gradient: np.ndarray  # E[h_i x], (p, D)
    top: TopCurvature | None = None  # the blocks of the numbers on top

    def plus(self, other: Curvature) -> Curvature:
        """Return the sum of two terms of a loss without numbers on top."""
        assert self.top is None
        assert other.top is None
        return Curvature(
            self.inside + other.inside,
            self.outside + other.outside,
            self.gradient + other.gradient,
        )


class PairCurvature(NamedTuple):
    """E[F x x^T] of rows i and fields c, in the basis I, a a^T, a b^T + b a^T, b b^T."""

    # (resolution, F = f'' g or f' g', basis, i, c)
    table: Float[np.ndarray, "2 2 4 p fields"]
    # a = w_i and b = w_c if Stein's lemma is used; orthonormal in their plane if that is integrated
    a: Float[np.ndarray, "p fields D"]
    b: Float[np.ndarray, "p fields D"]


def pair_curvature(
    first: Activation, second: Activation, terms: int, rows: np.ndarray, others: np.ndarray
) -> PairCurvature:
    """E[F x x^T] of all pairs of `rows` (students) and `others` (students or teachers)."""
    shape = (len(rows), *others.shape)
    if _is_smooth_pair(first, second):
        q1, q2 = np.sum(rows**2, axis=1), np.sum(others**2, axis=1)
        # twice the terms that K, A and B need: higher derivatives have longer tails
        table = _smooth_table(first, second, 2 * terms, q1, q2, rows @ others.T)
        return PairCurvature(
            np.asarray(table),
            np.broadcast_to(rows[:, None], shape),
            np.broadcast_to(others[None], shape),
        )
    s1, s2 = np.linalg.norm(rows, axis=1), np.linalg.norm(others, axis=1)
    unit_others = others / np.where(s2 > 0, s2, 1.0)[:, None]
    unit_rows = rows / np.where(s1 > 0, s1, 1.0)[:, None]
    # where w = 0 any direction is right: take that of the other field
    a = np.where((s1 > 0)[:, None, None], unit_rows[:, None], unit_others[None])
    cosine = np.einsum("icm,cm->ic", a, unit_others)
    b = unit_others[None] - cosine[..., None] * a
    # Gram-Schmidt twice, against cancellation between nearly parallel fields
    b = b - np.einsum("icm,icm->ic", b, a)[..., None] * a
    sine = np.linalg.norm(b, axis=-1)
    angle = np.clip(np.arctan2(sine, cosine), ONE_SIDED, np.pi - ONE_SIDED)
    # Aligned fields have no second direction: b = 0, and the coefficient of I covers it.
    b = b / np.where(sine > 0, sine, 1.0)[..., None]
    is_piecewise = pairs.polar_nodes(first, second) == pairs.PIECEWISE_NODES
    nodes = PIECEWISE_NODES if is_piecewise else NODES
    table = _kinked_table(first, second, nodes, s1, s2, angle)
    return PairCurvature(np.asarray(table), a, b)


def _is_smooth_pair(first: Activation, second: Activation) -> bool:
    """Whether Stein's lemma is used: for smooth activations, and where its terms are closed."""
    family = shared_closed_forms(first, second)
    if family is None:
        return not (first.kinks or second.kinks)
    table = partial(family.derivative_table, first, second)
    return jax.eval_shape(table, np.ones(1), np.ones(1), np.zeros((1, 1))) is not None


@partial(jax.jit, static_argnums=(0, 1, 2))
def _smooth_table(
    first: Activation,
    second: Activation,
    terms: int,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
) -> Float[Numeric, "2 2 4 m n"]:
    """E[f^(i) g^(j)] for `HESSIAN_ORDERS`, at two resolutions.

    Closed forms are the same twice. The Mehler series has all terms, then half of them.
    """
    family = shared_closed_forms(first, second)
    table = None if family is None else family.derivative_table(first, second, q1, q2, c)
    if table is not None:
        return jnp.array([table, table])
    # E[f^(i) g^(j)] = sum_n c_n[f^(i)] c_n[g^(j)] rho^n
    count = mehler.terms_needed(first, second, terms)
    series = mehler.powers(safe_ratio(c, jnp.sqrt(q1[:, None] * q2[None, :])), count)
    f = [mehler.coefficients(first.derivative(order), q1, count) for order in range(5)]
    g = [mehler.coefficients(second.derivative(order), q2, count) for order in range(4)]

    def truncated_table(n: int) -> list[list[Float[Numeric, "m n"]]]:
        return [
            [
                jnp.einsum("in,jn,ijn->ij", f[i][:, :n], g[j][:, :n], series[..., :n])
                for i, j in orders
            ]
            for orders in HESSIAN_ORDERS
        ]

    # a finite series (of a polynomial) has no truncation error
    half = count // 2 if count == terms else count
    return jnp.array([truncated_table(count), truncated_table(half)])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _kinked_table(
    first: Activation,
    second: Activation,
    nodes: int,
    s1: Float[Numeric, " m"],
    s2: Float[Numeric, " n"],
    angle: Float[Numeric, "m n"],
) -> Float[Numeric, "2 2 4 m n"]:
    """E[F (1, x1^2 - 1, x1 x2, x2^2 - 1)] for F = f''(u) g(v) and f'(u) g'(v), at two resolutions.

    u = s1 x1, v = s2 (x1 cos(angle) + x2 sin(angle)). The weights are Hermite polynomials: the
    coefficients of I, a a^T, a b^T + b a^T and b b^T in E[F x x^T].
    """

    def pair_table(
        s1: Float[Numeric, ""], s2: Float[Numeric, ""], theta: Float[Numeric, ""], resolution: int
    ) -> Float[Numeric, "2 4"]:
        masses_of_f = _mass_part(first, 1, second, 0, s1, s2, theta, resolution, flip=False)
        masses_of_g = _mass_part(second, 0, first, 1, s2, s1, theta, resolution, flip=True)
        smooth = _plane_part(first, second, s1, s2, theta, resolution)
        return smooth + jnp.stack([masses_of_f, masses_of_g])

    def table(resolution: int) -> Float[Numeric, "2 4 m n"]:
        # mapped over students, one after the other, to bound the memory
        rows = jax.lax.map(
            lambda row: jax.vmap(partial(pair_table, row[0], resolution=resolution))(s2, row[1]),
            (s1, angle),
        )
        return jnp.moveaxis(rows, (0, 1), (2, 3))

    return jnp.stack([table(nodes), table(nodes * 2 // 3)])


def _hermite_weights(x1: Float[Numeric, "*s"], x2: Float[Numeric, "*s"]) -> Float[Numeric, "4 ..."]:
    return jnp.stack([jnp.ones_like(x1), x1**2 - 1, x1 * x2, x2**2 - 1])


def _plane_part(
    first: Activation,
    second: Activation,
    s1: Float[Numeric, ""],
    s2: Float[Numeric, ""],
    angle: Float[Numeric, ""],
    nodes: int,
) -> Float[Numeric, "2 4"]:
    """The contribution of the smooth pieces of the plane."""
    points = polar.plane_points(first.kinks, second.kinks, s1, s2, angle, nodes)
    u, v = points.u, points.v
    F = jnp.stack(
        [
            first.derivative(2)(u) * second.derivative(0)(v),
            first.derivative(1)(u) * second.derivative(1)(v),
        ]
    )
    return jnp.einsum("ftrn,wtrn->fw", points.weights * F, _hermite_weights(points.x1, points.x2))


def _mass_part(
    masses: Activation,
    order: int,
    other: Activation,
    other_order: int,
    s: Float[Numeric, ""],
    t: Float[Numeric, ""],
    angle: Float[Numeric, ""],
    nodes: int,
    *,
    flip: bool,
) -> Float[Numeric, "4"]:
    """The contribution of the point masses of a derivative, integrated along their lines:

        sum over kinks of jump p(field = kink) E[other (1, ...) | field = kink].

    With `flip` the masses are those of v, whose direction in the frame of u is (cos, sin) of the
    angle.
    """
    total = jnp.zeros(4, angle.dtype)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    for kink, jump in zip(masses.kinks, masses.jumps(order), strict=True):
        if jump == 0.0:
            continue
        distance = safe_ratio(kink * jnp.ones_like(s), s)  # of the line from the origin
        normal = jnp.exp(-(distance**2) / 2) / (np.sqrt(2 * np.pi) * jnp.where(s > 0, s, 1.0))
        density = jnp.where(s > 0, normal, 0.0)
        # the other field on the line, as a function of the coordinate xi along it
        mean, scale = t * distance * cosine, t * sine * (-1.0 if flip else 1.0)

        def integrand(
            xi: Float[Numeric, "*s"],
            distance: Scalar = distance,
            mean: Scalar = mean,
            scale: Scalar = scale,
        ) -> Float[Numeric, "4 ..."]:
            if flip:
                x = (distance * cosine - xi * sine, distance * sine + xi * cosine)
            else:
                x = (distance * jnp.ones_like(xi), xi)
            return _hermite_weights(*x) * other.derivative(other_order)(mean + scale * xi)

        cuts = tuple(safe_ratio(other_kink - mean, scale) for other_kink in other.kinks)
        total = total + jump * density * polar.line_expectation(
            integrand, cuts, jnp.zeros_like(s), jnp.ones_like(s), nodes
        )
    return total


def network_curvature(
    table: Float[Numeric, "2 4 p fields"],
    a: Float[Numeric, "p fields D"],
    b: Float[Numeric, "p fields D"],
    lead: Float[Numeric, " p"],
    c: Float[Numeric, " fields"],
    rows: Float[Numeric, "p D"],
    fields: Float[Numeric, "fields D"],
) -> Curvature:
    """E[h_ij x x^T] from h_ij = lead_i [delta_ij s''_i sum_c c_c g_c + c_j s'_i s'_j].

    `table`, a and b are one resolution of `PairCurvature`.
    """
    p, D = rows.shape
    # f'' g on the diagonal (i = j), f' g' between students i and j
    diagonal, mixed = (lead[:, None] * c) * table[0], (lead[:, None] * c) * table[1]
    # E[h_ij]: the coefficient of the identity
    outside = mixed[0, :, :p] + np.diag(diagonal[0].sum(axis=1))
    gradient = diagonal[0].sum(axis=1)[:, None] * rows + mixed[0] @ fields
    ab = np.einsum("ic,icm,icn->imn", diagonal[2], a, b)
    own = np.einsum("ic,icm,icn->imn", diagonal[1], a, a) + np.einsum(
        "ic,icm,icn->imn", diagonal[3], b, b
    )
    own = own + ab + np.swapaxes(ab, -1, -2)
    a, b = a[:, :p], b[:, :p]
    cross = np.einsum("ij,ijm,ijn->imjn", mixed[2, :, :p], a, b)
    inside = np.einsum("ij,ijm,ijn->imjn", mixed[1, :, :p], a, a) + np.einsum(
        "ij,ijm,ijn->imjn", mixed[3, :, :p], b, b
    )
    identity = np.einsum("ij,mn->imjn", outside, np.eye(D))
    inside = inside + cross + np.swapaxes(cross, 1, 3) + identity
    inside[np.arange(p), :, np.arange(p), :] += own
    return Curvature(inside, np.asarray(outside), np.asarray(gradient))


def reduce_columns(rows: np.ndarray, signals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Students and signals in p + K columns and an empty one, and the axes (D, p + K) back.

    The empty column stands for all directions outside of the span.
    """
    axes, triangle = np.linalg.qr(np.concatenate([rows, signals]).T)
    return np.concatenate([triangle.T, np.zeros((len(triangle), 1))], axis=1), axes


def curvature_from_reduced(
    gradient: Float[Numeric, "p columns"],
    slope: Float[Numeric, "p columns p columns"],
    axes: np.ndarray,
) -> Curvature:
    """The curvature from E[h x] in reduced columns and its derivative with respect to the rows."""
    gradient, slope = np.asarray(gradient), np.asarray(slope)
    slope = (slope + np.transpose(slope, (2, 3, 0, 1))) / 2  # symmetric up to quadrature
    # the empty column is a direction orthogonal to all fields: its entry is E[h_ij]
    outside = slope[:, -1, :, -1]
    D, columns = axes.shape
    inner = slope[:, :-1, :, :-1] - np.einsum("ij,mn->imjn", outside, np.eye(columns))
    inside = np.einsum("iajb,ma,nb->imjn", inner, axes, axes, optimize=True) + np.einsum(
        "ij,mn->imjn", outside, np.eye(D)
    )
    return Curvature(inside, outside, gradient[:, :-1] @ axes.T)


def sample_curvatures(
    structure: Structure,
    parameters: Parameters,
    head: np.ndarray,
    rows: np.ndarray,
    signals: np.ndarray,
) -> list[Curvature]:
    """Replicates of the curvature of a loss of any kind, from Sobol points.

    A problem with a top also has the blocks of its numbers.
    """
    fields, axes = reduce_columns(rows, signals)
    replicates = sobol_normals(fields.shape[1] + 1, LOG2_POINTS, REPLICATES, whiten=True)
    curvatures = []
    for points in replicates:
        gradient, slope = _sampled_slope(structure, parameters, points, head, fields)
        curvature = curvature_from_reduced(gradient, slope, axes)
        if structure.top is not None:
            cross, inside, of_top = map(
                np.asarray, _sampled_top_slope(structure, parameters, points, head, fields)
            )
            cross = np.einsum("iaj,ma->imj", cross[:, :-1], axes)
            curvature = curvature._replace(top=TopCurvature(cross, inside, of_top))
        curvatures.append(curvature)
    return curvatures


@partial(jax.jit, static_argnums=0)
def _sampled_top_slope(
    structure: Structure,
    parameters: Parameters,
    points: Float[Numeric, "n columns_and_noise"],
    head: Float[Numeric, " entries"],
    fields: Float[Numeric, "fields columns"],
) -> tuple[Numeric, Numeric, Numeric]:
    """E[d^2 loss/dlambda_i dtheta z], E[d^2 loss/dtheta^2] and E[dloss/dtheta] of a smooth loss."""
    p, z, noise = structure.width, points[:, : fields.shape[1]], points[:, -1]
    count = len(z)

    def gradients(
        head: Float[Numeric, " entries"], values: Float[Numeric, " fields"], draw: Scalar
    ) -> tuple[Numeric, Numeric]:
        return jax.grad(structure.loss, argnums=(0, 2))(
            values[:p], values[p:], head, draw, parameters
        )

    def sums(position: Numeric, size: int) -> tuple[Numeric, Numeric, Numeric]:
        """Sums over a batch of points, so that the second derivatives fit into memory."""
        batch_z = jax.lax.dynamic_slice_in_dim(z, position, size)
        draws = jax.lax.dynamic_slice_in_dim(noise, position, size)
        values = batch_z @ fields.T
        of_top = jax.vmap(gradients, (None, 0, 0))(head, values, draws)[1]
        mixed, second = jax.vmap(jax.jacfwd(gradients), (None, 0, 0))(head, values, draws)
        return (
            jnp.einsum("nij,na->iaj", mixed, batch_z),
            jnp.sum(second, axis=0),
            jnp.sum(of_top, axis=0),
        )

    size = min(count, TOP_BATCH)
    totals = jax.lax.map(lambda index: sums(index * size, size), jnp.arange(count // size))
    cross, inside, of_top = (jnp.sum(total, axis=0) / count for total in totals)
    return cross, (inside + inside.T) / 2, of_top


@partial(jax.jit, static_argnums=0)
def _sampled_slope(
    structure: Structure,
    parameters: Parameters,
    points: Float[Numeric, "n columns_and_noise"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "fields columns"],
) -> tuple[Float[Numeric, "p columns"], Float[Numeric, "p columns p columns"]]:
    """E[h z] and E[h_ij z z^T] for lambda = fields @ z.

    A kink contributes a point mass to h_ij: the jump of h_i where lambda_j equals the kink,
    averaged over points projected onto that plane.
    """
    p, z, noise = structure.width, points[:, : fields.shape[1]], points[:, -1]

    def h(values: Float[Numeric, " fields"], draw: Scalar) -> Float[Numeric, " p"]:
        return jax.grad(structure.loss)(values[:p], values[p:], head, draw, parameters)

    values = z @ fields.T
    gradient = jax.vmap(h)(values, noise)
    smooth = jax.vmap(jax.jacfwd(h))(values, noise)[:, :, :p]
    slope = jnp.einsum("nij,na,nb->iajb", smooth, z, z)
    for j, kink in itertools.product(range(p), structure.kinks):
        norm = jnp.sqrt(jnp.sum(fields[j] ** 2))
        axis = safe_ratio(fields[j], norm)
        distance = safe_ratio(kink * jnp.ones_like(norm), norm)
        plane = z + (distance - z @ axis)[:, None] * axis
        # Parallel units meet their kinks together. A small random displacement of the other fields
        # replaces them by rows that are slightly apart.
        is_other = jnp.arange(len(fields)) != j
        on_plane = plane @ fields.T + OFFSET * jnp.roll(values, 1, axis=0) * is_other
        step = HALF_STEP * (jnp.arange(len(fields)) == j)
        jump = jax.vmap(h)(on_plane + step, noise) - jax.vmap(h)(on_plane - step, noise)
        density = safe_ratio(jnp.exp(-(distance**2) / 2) / np.sqrt(2 * np.pi), norm)
        slope = slope.at[:, :, j].add(density * jnp.einsum("ni,na,nb->iab", jump, plane, plane))
    return gradient.T @ z / len(z), slope / len(z)
