"""E[h_ij x x^T], the Hessian of the risk: of a two-layer network by pairs of fields, E[F(u, v) x x^T] with u = w.x, v = v.x; or sampled.

F = f''(u) g(v) or f'(u) g'(v). For smooth functions by Stein's lemma,

    E[F x x^T] = E[F] I + E[F_uu] w w^T + E[F_uv] (w v^T + v w^T) + E[F_vv] v v^T,

which needs no derivative of the overlaps and so holds at any of them; for kinked ones by quadrature in the plane of w and v, with the point
masses of f'' and g' on their lines.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.expectations import closed_forms, mehler, pairs, polar
from sgdynamics.expectations.nodes import safe_ratio, sobol_normals
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.problem import Structure

ONE_SIDED = 1e-12  # radians: aligned kinked fields are a limit, taken from the side; the Hessian is continuous there
PIECEWISE_NODES, NODES = (
    18,
    60,
)  # a sector: piecewise polynomials with kinks at 0 only, and all others (kinks elsewhere need them)

REPLICATES, LOG2_POINTS = 4, 14  # of any loss at all

# derivatives (of f, of g) that multiply I, w w^T, w v^T + v w^T, v v^T in E[f'' g x x^T] and in E[f' g' x x^T]
ORDERS = (((2, 0), (4, 0), (3, 1), (2, 2)), ((1, 1), (3, 1), (2, 2), (1, 3)))


class Curvature(NamedTuple):
    """In whitened coordinates: the Hessian on the frame (p, D, p, D), E[h_ij] outside of it (p, p), and the gradient (p, D)."""

    inside: np.ndarray
    outside: np.ndarray
    gradient: np.ndarray


def pair_curvature(
    first: Activation, second: Activation, terms: int, rows: np.ndarray, others: np.ndarray
) -> tuple[Any, Any, Any]:
    """Coefficients (resolution, ww or wv, 4, i, c) of I, a a^T, a b^T + b a^T, b b^T, and the vectors a, b (i, c, D).

    a = w_i and b = w_c where Stein's lemma is used; an orthonormal pair in their plane where the plane is integrated.
    """
    shape = (len(rows), *others.shape)
    if pairs.method(first, second) not in ("relu", "polar"):
        q1, q2 = np.sum(rows**2, axis=1), np.sum(others**2, axis=1)
        # twice the terms that K, A and B need: higher derivatives have longer tails
        table = _smooth_table(first, second, 2 * terms, q1, q2, rows @ others.T)
        return (
            np.asarray(table),
            np.broadcast_to(rows[:, None], shape),
            np.broadcast_to(others[None], shape),
        )
    s1, s2 = np.linalg.norm(rows, axis=1), np.linalg.norm(others, axis=1)
    unit = others / np.where(s2 > 0, s2, 1.0)[:, None]
    # where w = 0 any direction will do: that of the other
    along = np.where(
        (s1 > 0)[:, None, None], (rows / np.where(s1 > 0, s1, 1.0)[:, None])[:, None], unit[None]
    )
    cosine = np.einsum("icm,cm->ic", along, unit)
    across = unit[None] - cosine[..., None] * along
    across = across - np.einsum("icm,icm->ic", across, along)[..., None] * along
    sine = np.linalg.norm(across, axis=-1)
    angle = np.clip(np.arctan2(sine, cosine), ONE_SIDED, np.pi - ONE_SIDED)
    # aligned fields: no second direction, and the expectation is that of the identity on what is left
    across = across / np.where(sine > 0, sine, 1.0)[..., None]
    simple = pairs.polar_nodes(first, second) == pairs.PIECEWISE_NODES
    table = _kinked_table(first, second, PIECEWISE_NODES if simple else NODES, s1, s2, angle)
    return np.asarray(table), along, across


@partial(jax.jit, static_argnums=(0, 1, 2))
def _smooth_table(
    first: Activation,
    second: Activation,
    terms: int,
    q1: Float[Numeric, " m"],
    q2: Float[Numeric, " n"],
    c: Float[Numeric, "m n"],
) -> Float[Numeric, "2 2 4 m n"]:
    """E[f^(i) g^(j)] for the orders that Stein's lemma needs: closed for erf and polynomials, else Mehler (all terms, and half of them)."""
    if pairs.method(first, second) == "erf":
        al1, al2 = (1.0 + q1)[:, None], ((closed_forms.erf_offset(second) or 0.0) + q2)[None, :]
        root = jnp.sqrt(al1 * al2 - c**2)
        A, fourth = -c / (al1 * root), 2 * c / (al1**2 * root) + al2 * c / (al1 * root**3)
        ww, wv = (
            (A, fourth, -al2 / root**3, c / root**3),
            (1 / root, -al2 / root**3, c / root**3, -al1 / root**3),
        )
        return 2 / np.pi * jnp.array([[ww, wv], [ww, wv]])
    if pairs.method(first, second) == "polynomial":
        # Wick, with n contractions between u and v: sum_n c^n/n! E[f^(i + n)] E[g^(j + n)]
        top = min(first.degree or 0, second.degree or 0)
        F, G = (
            closed_forms.derivative_means(first, 0, top + 4, q1),
            closed_forms.derivative_means(second, 0, top + 3, q2),
        )
        share = closed_forms.powers(c, top) / np.array(
            [float(math.factorial(n)) for n in range(top + 1)]
        )
        table = [
            [
                jnp.einsum("in,jn,ijn->ij", F[:, i : i + top + 1], G[:, j : j + top + 1], share)
                for i, j in kind
            ]
            for kind in ORDERS
        ]
        return jnp.array([table, table])
    count = mehler.terms_needed(first, second, terms)
    series = mehler.powers(safe_ratio(c, jnp.sqrt(q1[:, None] * q2[None, :])), count)
    f = [mehler.coefficients(first.derivative(order), q1, count) for order in range(5)]
    g = [mehler.coefficients(second.derivative(order), q2, count) for order in range(4)]

    def cut(n: int) -> Any:
        return [
            [
                jnp.einsum("in,jn,ijn->ij", f[i][:, :n], g[j][:, :n], series[..., :n])
                for i, j in kind
            ]
            for kind in ORDERS
        ]

    return jnp.array([cut(count), cut(count // 2 if count == terms else count)])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _kinked_table(
    first: Activation,
    second: Activation,
    nodes: int,
    s1: Float[Numeric, " m"],
    s2: Float[Numeric, " n"],
    angle: Float[Numeric, "m n"],
) -> Float[Numeric, "2 2 4 m n"]:
    """E[F (1, x1^2 - 1, x1 x2, x2^2 - 1)] for F = f''(u) g(v) and f'(u) g'(v), by quadrature at two resolutions.

    u = s1 x1, v = s2 (x1 cos(angle) + x2 sin(angle)).
    """

    def one(
        a: Float[Numeric, ""], b: Float[Numeric, ""], theta: Float[Numeric, ""], resolution: int
    ) -> Float[Numeric, "2 4"]:
        masses_of_f = _line(first, 1, second, 0, a, b, theta, resolution, flip=False)
        masses_of_g = _line(second, 0, first, 1, b, a, theta, resolution, flip=True)
        return _plane(first, second, a, b, theta, resolution) + jnp.stack(
            [masses_of_f, masses_of_g]
        )

    def table(resolution: int) -> Any:
        each = jax.lax.map(
            lambda args: jax.vmap(partial(one, args[0], resolution=resolution))(s2, args[1]),
            (s1, angle),
        )
        return jnp.moveaxis(each, (0, 1), (2, 3))

    return jnp.stack([table(nodes), table(nodes * 2 // 3)])


def _weights(x1: Float[Numeric, "*s"], x2: Float[Numeric, "*s"]) -> Float[Numeric, "4 ..."]:
    return jnp.stack([jnp.ones_like(x1), x1**2 - 1, x1 * x2, x2**2 - 1])


def _plane(
    first: Activation,
    second: Activation,
    s1: Float[Numeric, ""],
    s2: Float[Numeric, ""],
    angle: Float[Numeric, ""],
    nodes: int,
) -> Float[Numeric, "2 4"]:
    """The smooth pieces: (2, 4)."""
    points = polar.plane_points(first.kinks, second.kinks, s1, s2, angle, nodes)
    u, v = points.u, points.v
    F = jnp.stack(
        [
            first.derivative(2)(u) * second.derivative(0)(v),
            first.derivative(1)(u) * second.derivative(1)(v),
        ]
    )
    return jnp.einsum("ftrn,wtrn->fw", points.weights * F, _weights(points.x1, points.x2))


def _line(
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
    """What the point masses of a derivative add: sum over kinks of jump p(field = kink) E[other (1, ...) | field = kink].

    With `flip` the masses are those of v, whose direction is (cos, sin) of the angle in the frame of u.
    """
    total = jnp.zeros(4, angle.dtype)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    for kink, jump in zip(masses.kinks, masses.jumps(order), strict=True):
        if jump == 0.0:
            continue
        near = safe_ratio(kink * jnp.ones_like(s), s)  # distance of the line from the origin
        density = jnp.where(
            s > 0, jnp.exp(-(near**2) / 2) / (np.sqrt(2 * np.pi) * jnp.where(s > 0, s, 1.0)), 0.0
        )
        mean, spread = t * near * cosine, t * sine * (-1.0 if flip else 1.0)

        def weighted(
            xi: Float[Numeric, "*s"],
            near: Scalar = near,
            mean: Scalar = mean,
            spread: Scalar = spread,
        ) -> Float[Numeric, "4 ..."]:
            x = (
                (near * cosine - xi * sine, near * sine + xi * cosine)
                if flip
                else (near * jnp.ones_like(xi), xi)
            )
            return _weights(*x) * other.derivative(other_order)(mean + spread * xi)

        cuts = tuple(safe_ratio(own - mean, spread) for own in other.kinks)
        total = total + jump * density * polar.line_expectation(
            weighted, cuts, jnp.zeros_like(s), jnp.ones_like(s), nodes
        )
    return total


def of_network(
    table: Float[Numeric, "2 4 p fields"],
    first: Float[Numeric, "p fields D"],
    second: Float[Numeric, "p fields D"],
    lead: Float[Numeric, " p"],
    c: Float[Numeric, " fields"],
    rows: Float[Numeric, "p D"],
    fields: Float[Numeric, "fields D"],
) -> Curvature:
    """E[h_ij x x^T] from h_ij = lead_i [delta_ij s''_i sum_c c_c g_c + c_j s'_i s'_j]."""
    p, D = rows.shape
    ww, wv = (lead[:, None] * c) * table[0], (lead[:, None] * c) * table[1]
    outside = wv[0, :, :p] + np.diag(ww[0].sum(axis=1))
    gradient = ww[0].sum(axis=1)[:, None] * rows + wv[0] @ fields
    mixed = np.einsum("ic,icm,icn->imn", ww[2], first, second)
    own = np.einsum("ic,icm,icn->imn", ww[1], first, first) + np.einsum(
        "ic,icm,icn->imn", ww[3], second, second
    )
    own = own + mixed + np.swapaxes(mixed, -1, -2)
    a, b = first[:, :p], second[:, :p]
    cross = np.einsum("ij,ijm,ijn->imjn", wv[2, :, :p], a, b)
    inside = np.einsum("ij,ijm,ijn->imjn", wv[1, :, :p], a, a) + np.einsum(
        "ij,ijm,ijn->imjn", wv[3, :, :p], b, b
    )
    inside = (
        inside + cross + np.swapaxes(cross, 1, 3) + np.einsum("ij,mn->imjn", outside, np.eye(D))
    )
    inside[np.arange(p), :, np.arange(p), :] += own
    return Curvature(inside, np.asarray(outside), np.asarray(gradient))


def reduced(rows: np.ndarray, signals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Students and signals in p + K columns and an empty one that stands for all directions outside; the axes (D, p + K) back."""
    axes, triangle = np.linalg.qr(np.concatenate([rows, signals]).T)
    return np.concatenate([triangle.T, np.zeros((len(triangle), 1))], axis=1), axes


def lifted(found: tuple[Any, Any], axes: np.ndarray) -> Curvature:
    """The curvature from E[h x] in reduced columns (p, columns) and its derivative with respect to the rows."""
    gradient, slope = (np.asarray(part) for part in found)
    slope = (slope + np.transpose(slope, (2, 3, 0, 1))) / 2
    outside = slope[:, -1, :, -1]
    D, columns = axes.shape
    inner = slope[:, :-1, :, :-1] - np.einsum("ij,mn->imjn", outside, np.eye(columns))
    inside = np.einsum("iajb,ma,nb->imjn", inner, axes, axes, optimize=True) + np.einsum(
        "ij,mn->imjn", outside, np.eye(D)
    )
    return Curvature(inside, outside, gradient[:, :-1] @ axes.T)


def sampled(
    structure: Structure,
    parameters: Parameters,
    head: np.ndarray,
    rows: np.ndarray,
    signals: np.ndarray,
) -> list[Curvature]:
    """Any loss at all, from points: replicates."""
    fields, axes = reduced(rows, signals)
    every = sobol_normals(fields.shape[1] + 1, LOG2_POINTS, REPLICATES, whiten=True)
    return [
        lifted(_sampled_slope(structure, parameters, points, head, fields), axes)
        for points in every
    ]


@partial(jax.jit, static_argnums=0)
def _sampled_slope(
    structure: Structure,
    parameters: Parameters,
    points: Float[Numeric, "n columns_and_noise"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "fields columns"],
) -> tuple[Any, Any]:
    """E[h z] (p, columns) and E[h_ij z z^T], lambda = fields @ z.

    What a kink contributes to h_ij is a point mass: the jump of h_i where lambda_j meets it, averaged over the points of that plane.
    """
    p, z, noise = structure.width, points[:, : fields.shape[1]], points[:, -1]

    def h(values: Float[Numeric, " fields"], draw: Scalar) -> Float[Numeric, " p"]:
        return jax.grad(structure.loss)(values[:p], values[p:], head, draw, parameters)

    values = z @ fields.T
    gradient = jax.vmap(h)(values, noise)
    curved = jax.vmap(jax.jacfwd(h))(values, noise)[:, :, :p]
    slope = jnp.einsum("nij,na,nb->iajb", curved, z, z)
    for j, kink in itertools.product(range(p), structure.kinks):
        norm = jnp.sqrt(jnp.sum(fields[j] ** 2))
        axis, near = safe_ratio(fields[j], norm), safe_ratio(kink * jnp.ones_like(norm), norm)
        plane = z + (near - z @ axis)[:, None] * axis
        # parallel units meet their kinks together: a little off at random, which is what rows a little apart would be
        on_plane = plane @ fields.T + 1e-9 * jnp.roll(values, 1, axis=0) * (
            jnp.arange(len(fields)) != j
        )
        step = 1e-7 * (jnp.arange(len(fields)) == j)
        jump = jax.vmap(h)(on_plane + step, noise) - jax.vmap(h)(on_plane - step, noise)
        density = safe_ratio(jnp.exp(-(near**2) / 2) / np.sqrt(2 * np.pi), norm)
        slope = slope.at[:, :, j].add(density * jnp.einsum("ni,na,nb->iab", jump, plane, plane))
    return gradient.T @ z / len(z), slope / len(z)
