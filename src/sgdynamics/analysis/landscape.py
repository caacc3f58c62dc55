"""The Hessian of the population risk in weight space: all p N eigenvalues, at a cost that does not depend on N.

With h_i = dloss/dlambda_i and x the input, the Hessian is one Gaussian expectation,

    d^2 R / dw_i dw_j = E[h_ij x x^T],     h_ij = dh_i/dlambda_j = d^2 loss/dlambda_i dlambda_j,

which is E[h_ij] times the identity on all directions orthogonal to students and signals. So the spectrum is that of one block on
[T | L] (K + p columns), and that of the p x p matrix E[h_ij], N - K - p times. In covariance block b (eigenvalue l_b) both x carry a
factor sqrt(l_b): each block has its own columns, and its own outside matrix l_b E[h_ij].

For two-layer networks h_ij = - (a_i/p) [delta_ij s''_i E0 + c_j s'_i s'_j], E0 = sum_c c_c g_c, so all that is needed are, for pairs of
fields u = w.x and v = v.x, E[f''(u) g(v) x x^T] and E[f'(u) g'(v) x x^T]. For smooth functions Stein's lemma gives, F = f^(i) g^(j),

    E[F x x^T] = E[F] I + E[F_uu] w w^T + E[F_uv] (w v^T + v w^T) + E[F_vv] v v^T,

which needs no derivative of the overlaps and so holds at any of them: equal rows, rows on the signals, w = 0. For kinked functions the
same expectation is taken in the plane of w and v, with the point masses of f'' and g' on their lines.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics import checks
from sgdynamics.gaussian import closed, mehler, pairs, polar
from sgdynamics.gaussian.moments import GRID, Rule, exact_pairs, generic_conditional_means, nodes_for, relu_conditional_means
from sgdynamics.gaussian.nodes import PIVOT, gauss_hermite_grid, gauss_legendre, safe_ratio, sobol_normals
from sgdynamics.gaussian.polar import RADIUS
from sgdynamics.gaussian.risk import rule_for
from sgdynamics.limits.ode import WARN_ABOVE
from sgdynamics.precision import float64
from sgdynamics.problems.activations import NAMED, Activation
from sgdynamics.problems.losses import CommitteeLoss, squared
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, check_dimension, checked_start, factor

GROUPING = 1e-9  # eigenvalues closer than this share of the largest are one
ROUNDING = 1e-14  # of an entry of the Hessian, relative to the largest
MOST_DIMENSIONS = 10**18
ONE_SIDED = 1e-12  # radians: aligned kinked fields are a limit, taken from the side; the Hessian is continuous there
PIECEWISE_NODES, NODES = 18, 60  # a sector: piecewise polynomials with kinks at 0 only, and all others (kinks elsewhere need them)
REPLICATES = 4
LOG2_POINTS = 14  # a replicate, where the loss is a user's own

# derivatives (of f, of g) that multiply I, w w^T, w v^T + v w^T, v v^T in E[f'' g x x^T] and in E[f' g' x x^T]
ORDERS = (((2, 0), (4, 0), (3, 1), (2, 2)), ((1, 1), (3, 1), (2, 2), (1, 3)))


@dataclass(frozen=True)
class HessianSpectrum:
    """Eigenvalues (increasing, equal ones grouped) and how often each occurs, of the risk's Hessian at one state.

    `negative`, `null` and `positive` count directions below, within and above `tolerance`, which is also the distance under which
    eigenvalues are grouped; `gradient_norm` is |dR/dW| (its tangent part on the sphere), 0 at a critical point; `error` estimates
    how far an eigenvalue can be off, from the expectations it is made of.
    """

    eigenvalues: np.ndarray
    multiplicities: tuple[int, ...]
    gradient_norm: float
    error: float
    tolerance: float
    dimension: int
    constraint: str | None

    @property
    def negative(self) -> int:
        return self._count(self.eigenvalues < -self.tolerance)

    @property
    def null(self) -> int:
        return self._count(np.abs(self.eigenvalues) <= self.tolerance)

    @property
    def positive(self) -> int:
        return self._count(self.eigenvalues > self.tolerance)

    def _count(self, chosen: np.ndarray) -> int:
        return sum(times for times, counts in zip(self.multiplicities, chosen.tolist(), strict=True) if counts)


class _Curvature(NamedTuple):
    """In whitened coordinates: the Hessian on the frame (p, D, p, D), E[h_ij] outside of it (p, p), and the gradient (p, D)."""

    inside: np.ndarray
    outside: np.ndarray
    gradient: np.ndarray


@float64
def hessian_spectrum(
    problem: Problem,
    start: Start,
    *,
    dimension: int = 1000,
    constraint: str | None = "problem",
    run: int = 0,
    tolerance: float | None = None,
) -> HessianSpectrum:
    """All eigenvalues of the population risk's Hessian over the rows, in N = `dimension` dimensions, the head held fixed.

        d^2 R / dw_i dw_j = E[h_ij x x^T]

    Exact for Gaussian inputs at any N (by Stein's lemma; for ReLU it is the Hessian of Safran and Shamir 2018); weight decay is not part
    of it (add al to each eigenvalue for the penalised risk).
    constraint="sphere" is the Riemannian Hessian on rows of fixed norm, P (Hess - diag(w_i.dR/dw_i/|w_i|^2)) P on the p (N - 1) tangent
    directions; "problem" follows the problem's constraint. `run` picks one run of the start. `tolerance`: under which distance
    eigenvalues are equal, and null; unless given, 1e-9 of the largest, or the error where that is more.
    A kinked activation has no second derivative at a row that lies on its kink (ReLU at w = 0): refused.
    """
    begin = checked_start(problem, start)
    run = checks.whole("run", run, 0)
    if run >= begin.runs:
        raise checks.reject("run", run, f"the start has {begin.runs} runs: give 0..{begin.runs - 1}")
    limit = checks.choice("constraint", constraint, ("problem", None, "sphere"))
    limit = problem.constraint if limit == "problem" else limit
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, 0.0)
    n = checks.whole("dimension", dimension, 1)
    if n > MOST_DIMENSIONS:
        raise checks.reject("dimension", dimension, f"give at most {MOST_DIMENSIONS:.0e}")
    sizes = [int(size) for size in check_dimension(problem, n)[1]]
    sizes[int(np.argmax(sizes))] += n - sum(sizes)  # beyond 2^53 a float cannot hold them all
    rows, signals = _frame_rows(problem, begin, run)
    dead = np.flatnonzero(np.all(rows == 0.0, axis=1)).tolist()
    if dead and 0.0 in problem.structure.kinks:
        raise ValueError(f"rows {dead} are zero, on the kink of the activation: the risk has no second derivative there; give other rows")
    if dead and limit == "sphere":
        raise ValueError(f"rows {dead} are zero: constraint='sphere' needs rows with a direction; give constraint=None")
    eigenvalues = np.asarray(problem.parameters["eigenvalues"])
    columns = problem.structure.fields
    scale = np.sqrt(np.repeat(eigenvalues, columns))
    versions, replicates = _curvatures(problem, begin.Q_blocks[run : run + 1], begin.a[run], rows * scale, signals * scale)
    parts = [np.stack(part) for part in zip(*(_unwhitened(one, rows, scale, eigenvalues, limit) for one in versions), strict=True)]
    if replicates:
        inside, outside, gradient = (part.mean(axis=0) for part in parts)
        unsure = [part.std(axis=0, ddof=1) / np.sqrt(len(part)) for part in parts]
    else:
        inside, outside, gradient = (part[0] for part in parts)
        unsure = [part[0] - part[1] for part in parts]
    # Weyl: eigenvalues are off by no more than the norm of what the matrix is off
    gap = float(max(np.linalg.norm(unsure[0]), np.linalg.norm(unsure[1])))
    values = [(value, 1) for value in np.linalg.eigvalsh(inside)]
    for block, size in zip(outside, sizes, strict=True):
        values += [(value, size - columns) for value in np.linalg.eigvalsh(block)]
    largest = max(abs(value) for value, _ in values)
    if gap > WARN_ABOVE * largest and not replicates:
        warnings.warn(
            f"eigenvalues up to {largest:.1e} are known only to {gap:.1e}: an activation with kinks should declare them, "
            "sgd.Activation(f, kinks=...)",
            stacklevel=3,
        )
    error = gap + ROUNDING * rows.size * largest
    within = float(max(GROUPING * largest, error)) if tolerance is None else tolerance
    grouped, counts = _grouped(values, within)
    return HessianSpectrum(grouped, counts, float(np.linalg.norm(gradient)), float(error), within, n, limit)


def _frame_rows(problem: Problem, begin: Start, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Students (p, D) and signals (K, D) in an orthonormal frame that holds both: [T_b | L_b] of every block side by side."""
    one = Start(begin.M_blocks[run : run + 1], begin.Q_blocks[run : run + 1], begin.a[run : run + 1])
    T, L = (part[0] for part in factor(problem, one))
    size = np.einsum("bii->bi", one.Q_blocks[0]).max(axis=-1)[:, None]
    # a root of what is rounding in Omega would couple columns at 1e-8
    kept = np.sum(L**2, axis=-2) > PIVOT * size
    L = np.where(kept[:, None, :], L, 0.0)
    frame = problem.parameters["frame"]
    empty = np.zeros((len(frame), problem.signals, problem.width))
    rows = np.concatenate(np.concatenate([T, L], axis=-1), axis=-1)
    signals = np.concatenate(np.concatenate([frame, empty], axis=-1), axis=-1)
    return rows, signals


def _curvatures(problem: Problem, Q: np.ndarray, head: np.ndarray, rows: np.ndarray, signals: np.ndarray) -> tuple[list[_Curvature], bool]:
    """The curvature at whitened rows, more than once: a fine and a coarse version, or (True) equally good replicates."""
    structure = problem.structure
    if not exact_pairs(structure):
        return _sampled_curvatures(problem, head, rows, signals), True
    loss = structure.loss
    rule = rule_for(problem, Q, 1.0)
    committee = isinstance(loss, CommitteeLoss)
    p = len(rows)
    c = -head / p if loss.outer is squared else np.zeros(p)
    parts = [_pair_parts(loss.student, loss.student, rule.terms, rows, rows)]
    fields = rows
    if committee:
        teacher_head = problem.parameters["teacher_head"]
        c = np.concatenate([c, teacher_head / len(teacher_head)])
        parts.append(_pair_parts(loss.student, loss.teacher, rule.terms, rows, signals))
        fields = np.concatenate([rows, signals])
    tables, first, second = (np.concatenate(arrays, axis=axis) for arrays, axis in zip(zip(*parts, strict=True), (4, 1, 1), strict=True))
    versions = [_network_curvature(table, first, second, -head / p, c, rows, fields) for table in tables]
    if committee:
        return versions, False
    targets = _target_curvatures(problem, rule, head, rows, signals)
    sampled = structure.signals not in GRID
    own = versions[:1] * len(targets) if sampled else versions
    return [_Curvature(*(a + b for a, b in zip(*both, strict=True))) for both in zip(own, targets, strict=True)], sampled


def _pair_parts(first: Activation, second: Activation, terms: int, rows: np.ndarray, others: np.ndarray) -> tuple[Any, Any, Any]:
    """Coefficients (resolution, ww or wv, 4, i, c) of I, a a^T, a b^T + b a^T, b b^T, and the vectors a, b (i, c, D).

    a = w_i and b = w_c where Stein's lemma is used; an orthonormal pair in their plane where the plane is integrated.
    """
    shape = (len(rows), *others.shape)
    if pairs.method(first, second) not in ("relu", "polar"):
        q1, q2 = np.sum(rows**2, axis=1), np.sum(others**2, axis=1)
        # twice the terms that K, A and B need: higher derivatives have longer tails
        table = _smooth_table(first, second, 2 * terms, q1, q2, rows @ others.T)
        return np.asarray(table), np.broadcast_to(rows[:, None], shape), np.broadcast_to(others[None], shape)
    s1, s2 = np.linalg.norm(rows, axis=1), np.linalg.norm(others, axis=1)
    unit = others / np.where(s2 > 0, s2, 1.0)[:, None]
    # where w = 0 any direction will do: that of the other
    along = np.where((s1 > 0)[:, None, None], (rows / np.where(s1 > 0, s1, 1.0)[:, None])[:, None], unit[None])
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
def _smooth_table(first: Activation, second: Activation, terms: int, q1: Any, q2: Any, c: Any) -> Any:
    """E[f^(i) g^(j)] for the orders that Stein's lemma needs: closed for erf and polynomials, else Mehler (all terms, and half of them)."""
    if pairs.method(first, second) == "erf":
        al1, al2 = (1.0 + q1)[:, None], ((closed.erf_offset(second) or 0.0) + q2)[None, :]
        root = jnp.sqrt(al1 * al2 - c**2)
        A, fourth = -c / (al1 * root), 2 * c / (al1**2 * root) + al2 * c / (al1 * root**3)
        ww, wv = (A, fourth, -al2 / root**3, c / root**3), (1 / root, -al2 / root**3, c / root**3, -al1 / root**3)
        return 2 / np.pi * jnp.array([[ww, wv], [ww, wv]])
    if pairs.method(first, second) == "polynomial":
        # Wick, with n contractions between u and v: sum_n c^n/n! E[f^(i + n)] E[g^(j + n)]
        top = min(first.degree or 0, second.degree or 0)
        F, G = closed.derivative_means(first, 0, top + 4, q1), closed.derivative_means(second, 0, top + 3, q2)
        share = closed.powers(c, top) / np.array([float(math.factorial(n)) for n in range(top + 1)])
        table = [[jnp.einsum("in,jn,ijn->ij", F[:, i : i + top + 1], G[:, j : j + top + 1], share) for i, j in kind] for kind in ORDERS]
        return jnp.array([table, table])
    count = mehler.terms_needed(first, second, terms)
    series = mehler.powers(safe_ratio(c, jnp.sqrt(q1[:, None] * q2[None, :])), count)
    f = [mehler.coefficients(first.derivative(order), q1, count) for order in range(5)]
    g = [mehler.coefficients(second.derivative(order), q2, count) for order in range(4)]

    def cut(n: int) -> Any:
        return [[jnp.einsum("in,jn,ijn->ij", f[i][:, :n], g[j][:, :n], series[..., :n]) for i, j in kind] for kind in ORDERS]

    return jnp.array([cut(count), cut(count // 2 if count == terms else count)])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _kinked_table(first: Activation, second: Activation, nodes: int, s1: Any, s2: Any, angle: Any) -> Any:
    """E[F (1, x1^2 - 1, x1 x2, x2^2 - 1)] for F = f''(u) g(v) and f'(u) g'(v), by quadrature at two resolutions.

    u = s1 x1, v = s2 (x1 cos(angle) + x2 sin(angle)).
    """

    def one(a: Any, b: Any, theta: Any, resolution: int) -> Any:
        masses_of_f = _line(first, 1, second, 0, a, b, theta, resolution, flip=False)
        masses_of_g = _line(second, 0, first, 1, b, a, theta, resolution, flip=True)
        return _plane(first, second, a, b, theta, resolution) + jnp.stack([masses_of_f, masses_of_g])

    def table(resolution: int) -> Any:
        each = jax.lax.map(lambda args: jax.vmap(partial(one, args[0], resolution=resolution))(s2, args[1]), (s1, angle))
        return jnp.moveaxis(each, (0, 1), (2, 3))

    return jnp.stack([table(nodes), table(nodes * 2 // 3)])


def _weights(x1: Any, x2: Any) -> Any:
    return jnp.stack([jnp.ones_like(x1), x1**2 - 1, x1 * x2, x2**2 - 1])


def _plane(first: Activation, second: Activation, s1: Any, s2: Any, angle: Any, nodes: int) -> Any:
    """The smooth pieces in polar coordinates, cut along every kink as `gaussian.polar` does: (2, 4)."""
    lines1 = [kink for kink in first.kinks if kink != 0.0]
    lines2 = [kink for kink in second.kinks if kink != 0.0]
    turn = jnp.ones_like(angle) * np.pi
    breaks = [angle - np.pi / 2, turn / 2, angle + np.pi / 2]
    for kink1 in lines1:
        for kink2 in lines2:
            x, y = safe_ratio(kink1 * turn, s1 * turn), safe_ratio(kink2 * turn, s2 * turn)
            meeting = jnp.arctan2(y - jnp.cos(angle) * x, jnp.sin(angle) * x)
            breaks.append(jnp.where(meeting < -np.pi / 2, meeting + 2 * np.pi, meeting))
    starts = jnp.sort(jnp.stack([-turn / 2, *breaks, 1.5 * turn]))
    node, weight = gauss_legendre(nodes)
    widths = jnp.diff(starts)
    theta = (starts[:-1, None] + widths[:, None] * node).reshape(-1)
    angle_weight = (widths[:, None] * weight).reshape(-1) / (2 * np.pi)
    along1, along2 = s1 * jnp.cos(theta), s2 * jnp.cos(theta - angle)
    radii = [jnp.zeros_like(theta), jnp.full_like(theta, RADIUS)]
    for kink, along in [(kink, along1) for kink in lines1] + [(kink, along2) for kink in lines2]:
        crossing = safe_ratio(kink * jnp.ones_like(along), along)
        radii.append(jnp.clip(jnp.where(crossing > 0, crossing, 0.0), 0.0, RADIUS))
    edges = jnp.sort(jnp.stack(radii, axis=-1), axis=-1)
    radial_node, radial_weight = gauss_legendre(nodes + 16)
    lengths = jnp.diff(edges, axis=-1)
    r = edges[:, :-1, None] + lengths[..., None] * radial_node
    full = angle_weight[:, None, None] * lengths[..., None] * radial_weight * r * jnp.exp(-(r**2) / 2)
    u, v = r * along1[:, None, None], r * along2[:, None, None]
    F = full * jnp.stack([first.derivative(2)(u) * second.derivative(0)(v), first.derivative(1)(u) * second.derivative(1)(v)])
    weights = _weights(r * jnp.cos(theta)[:, None, None], r * jnp.sin(theta)[:, None, None])
    return jnp.einsum("ftrn,wtrn->fw", F, weights)


def _line(
    masses: Activation, order: int, other: Activation, other_order: int, s: Any, t: Any, angle: Any, nodes: int, *, flip: bool
) -> Any:
    """What the point masses of a derivative add: sum over kinks of jump p(field = kink) E[other (1, ...) | field = kink].

    With `flip` the masses are those of v, whose direction is (cos, sin) of the angle in the frame of u.
    """
    total = jnp.zeros(4, angle.dtype)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    for kink, jump in zip(masses.kinks, masses.jumps(order), strict=True):
        if jump == 0.0:
            continue
        near = safe_ratio(kink * jnp.ones_like(s), s)  # distance of the line from the origin
        density = jnp.where(s > 0, jnp.exp(-(near**2) / 2) / (np.sqrt(2 * np.pi) * jnp.where(s > 0, s, 1.0)), 0.0)
        mean, spread = t * near * cosine, t * sine * (-1.0 if flip else 1.0)

        def weighted(xi: Any, near: Any = near, mean: Any = mean, spread: Any = spread) -> Any:
            x = (near * cosine - xi * sine, near * sine + xi * cosine) if flip else (near * jnp.ones_like(xi), xi)
            return _weights(*x) * other.derivative(other_order)(mean + spread * xi)

        cuts = tuple(safe_ratio(own - mean, spread) for own in other.kinks)
        total = total + jump * density * polar.line_expectation(weighted, cuts, jnp.zeros_like(s), jnp.ones_like(s), nodes)
    return total


def _network_curvature(table: Any, first: Any, second: Any, lead: Any, c: Any, rows: Any, fields: Any) -> _Curvature:
    """E[h_ij x x^T] from h_ij = lead_i [delta_ij s''_i sum_c c_c g_c + c_j s'_i s'_j]."""
    p, D = rows.shape
    ww, wv = (lead[:, None] * c) * table[0], (lead[:, None] * c) * table[1]
    outside = wv[0, :, :p] + np.diag(ww[0].sum(axis=1))
    gradient = ww[0].sum(axis=1)[:, None] * rows + wv[0] @ fields
    mixed = np.einsum("ic,icm,icn->imn", ww[2], first, second)
    own = np.einsum("ic,icm,icn->imn", ww[1], first, first) + np.einsum("ic,icm,icn->imn", ww[3], second, second)
    own = own + mixed + np.swapaxes(mixed, -1, -2)
    a, b = first[:, :p], second[:, :p]
    cross = np.einsum("ij,ijm,ijn->imjn", wv[2, :, :p], a, b)
    inside = np.einsum("ij,ijm,ijn->imjn", wv[1, :, :p], a, a) + np.einsum("ij,ijm,ijn->imjn", wv[3, :, :p], b, b)
    inside = inside + cross + np.swapaxes(cross, 1, 3) + np.einsum("ij,mn->imjn", outside, np.eye(D))
    inside[np.arange(p), :, np.arange(p), :] += own
    return _Curvature(inside, outside, gradient)


def _reduced(rows: np.ndarray, signals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Students and signals in p + K columns and an empty one that stands for all directions outside; the axes (D, p + K) back."""
    axes, triangle = np.linalg.qr(np.concatenate([rows, signals]).T)
    return np.concatenate([triangle.T, np.zeros((len(triangle), 1))], axis=1), axes


def _lifted(found: tuple[Any, Any], axes: np.ndarray) -> _Curvature:
    """The curvature from E[h x] in reduced columns (p, columns) and its derivative with respect to the rows."""
    gradient, slope = (np.asarray(part) for part in found)
    slope = (slope + np.transpose(slope, (2, 3, 0, 1))) / 2
    outside = slope[:, -1, :, -1]
    D, columns = axes.shape
    inner = slope[:, :-1, :, :-1] - np.einsum("ij,mn->imjn", outside, np.eye(columns))
    inside = np.einsum("iajb,ma,nb->imjn", inner, axes, axes, optimize=True) + np.einsum("ij,mn->imjn", outside, np.eye(D))
    return _Curvature(inside, outside, gradient[:, :-1] @ axes.T)


def _target_curvatures(problem: Problem, rule: Rule, head: np.ndarray, rows: np.ndarray, signals: np.ndarray) -> list[_Curvature]:
    """What a target of the signals adds to the pairs of students: on a fine and a coarse grid, or on replicates of sampled ones."""
    structure = problem.structure
    fields, axes = _reduced(rows, signals)
    rest = np.linalg.norm(rows - rows @ np.linalg.pinv(signals) @ signals, axis=1)
    inside = np.flatnonzero(rest**2 <= PIVOT * np.sum(rows**2, axis=1)).tolist()
    if structure.kinks and inside:
        raise ValueError(
            f"rows {inside} lie in the span of the signals: with a kinked activation and an arbitrary target no quadrature resolves the "
            "curvature there; give a start with Q_ii a little larger"
        )
    nodes = nodes_for(structure, rule, flow=True)
    grids = list(zip(nodes["grid"], nodes["grid_weights"], strict=True))
    if structure.signals in GRID:
        grids.append(gauss_hermite_grid(GRID[structure.signals] * 2 // 3, structure.signals))
    return [_lifted(_target_slope(structure, problem.parameters, *grid, head, fields), axes) for grid in grids]


@partial(jax.jit, static_argnums=0)
def _target_slope(structure: Structure, parameters: Any, grid: Any, weights: Any, head: Any, fields: Any) -> tuple[Any, Any]:
    """- (a_i/p) E[s'_i y x] for a target y, and its derivative with respect to the rows.

    Given the coordinates zeta of x along the signals, lambda_i = t_i.zeta + |r_i| xi with r_i the rest of the row; the expectation over
    xi is one-dimensional, and E[s' y x] = E[s' y zeta] along the signals and E[s'' y] r_i beyond.
    """
    loss, p = structure.loss, structure.width
    axes, triangle = jnp.linalg.qr(fields[p:].T)
    labels = weights * jax.vmap(lambda zeta: loss.label(triangle.T @ zeta, parameters))(grid)
    means = relu_conditional_means if loss.student == NAMED["relu"] else partial(generic_conditional_means, loss.student)

    def mean(students: Any) -> Any:
        t = students @ axes
        rest = students - t @ axes.T
        # the tiny number gives the root a derivative at 0; what depends on it is even in it
        spread = jnp.sqrt(jnp.sum(rest**2, axis=1) + 1e-200)
        along = t @ grid.T
        _, s1, s2 = means(along, jnp.broadcast_to(spread[:, None], along.shape))
        return -(head / p)[:, None] * (((s1 * labels) @ grid) @ axes.T + (s2 @ labels)[:, None] * rest)

    return mean(fields[:p]), jax.jacfwd(mean)(fields[:p])


def _sampled_curvatures(problem: Problem, head: np.ndarray, rows: np.ndarray, signals: np.ndarray) -> list[_Curvature]:
    """Any loss at all, from points: replicates."""
    fields, axes = _reduced(rows, signals)
    every = sobol_normals(fields.shape[1] + 1, LOG2_POINTS, REPLICATES, whiten=True)
    return [_lifted(_sampled_slope(problem.structure, problem.parameters, points, head, fields), axes) for points in every]


@partial(jax.jit, static_argnums=0)
def _sampled_slope(structure: Structure, parameters: Any, points: Any, head: Any, fields: Any) -> tuple[Any, Any]:
    """E[h z] (p, columns) and E[h_ij z z^T], lambda = fields @ z.

    What a kink contributes to h_ij is a point mass: the jump of h_i where lambda_j meets it, averaged over the points of that plane.
    """
    p, z, noise = structure.width, points[:, : fields.shape[1]], points[:, -1]

    def h(values: Any, draw: Any) -> Any:
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
        on_plane = plane @ fields.T + 1e-9 * jnp.roll(values, 1, axis=0) * (jnp.arange(len(fields)) != j)
        step = 1e-7 * (jnp.arange(len(fields)) == j)
        jump = jax.vmap(h)(on_plane + step, noise) - jax.vmap(h)(on_plane - step, noise)
        density = safe_ratio(jnp.exp(-(near**2) / 2) / np.sqrt(2 * np.pi), norm)
        slope = slope.at[:, :, j].add(density * jnp.einsum("ni,na,nb->iab", jump, plane, plane))
    return gradient.T @ z / len(z), slope / len(z)


def _unwhitened(
    found: _Curvature, rows: np.ndarray, scale: np.ndarray, eigenvalues: np.ndarray, limit: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices to diagonalise, in the coordinates of W: inside (a square matrix), outside (one p x p a block), gradient."""
    D = rows.shape[1]
    inside = found.inside * scale[:, None, None] * scale
    outside = eigenvalues[:, None, None] * found.outside
    gradient = found.gradient * scale
    if limit == "sphere":
        radial = np.sum(rows * gradient, axis=1) / np.sum(rows**2, axis=1)
        outside = outside - np.diag(radial)
        inside = inside - np.einsum("ij,mn->imjn", np.diag(radial), np.eye(D))
        gradient = gradient - radial[:, None] * rows
        # an orthonormal basis of what is tangent to each row's sphere
        tangent = np.stack([np.linalg.qr(row[:, None], mode="complete")[0][:, 1:] for row in rows])
        inside = np.einsum("imjn,ima,jnb->iajb", inside, tangent, tangent, optimize=True)
    size = inside.shape[0] * inside.shape[1]
    inside = inside.reshape(size, size)
    return (inside + inside.T) / 2, (outside + np.swapaxes(outside, -1, -2)) / 2, gradient


def _grouped(values: list[tuple[float, int]], within: float) -> tuple[np.ndarray, tuple[int, ...]]:
    """Equal eigenvalues as one, with the sum of their multiplicities (Python integers: they may pass 2^63)."""
    groups: list[list[tuple[float, int]]] = []
    for value, count in sorted(values):
        if count and groups and value - groups[-1][-1][0] <= within:
            groups[-1].append((value, count))
        elif count:
            groups.append([(value, count)])
    means = [float(np.mean([value for value, _ in group])) for group in groups]
    return np.array(means), tuple(sum(count for _, count in group) for group in groups)
