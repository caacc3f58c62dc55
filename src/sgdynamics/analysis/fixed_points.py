"""Fixed points of the ODE for any problem: all roots of the drift that a search finds, each once, with its linear stability.

    drift(M, Q, a) = 0,     eigenvalues of d drift / d(M, Q, a) on the independent coordinates

Independent are M (within the span of the signals), the upper triangle of Q (on the sphere without the diagonal, which is 1) and a where
it is trained. The search runs in the factor W = [T | L], so that it stays physical (M = T C^T, Q = T T^T + L L^T), from many starts at
once; a Newton iteration in the overlaps then polishes, also where Omega is singular, as it is wherever something has been learnt.

Jacobians are singular wherever roots form a family, so both are least-squares steps: Levenberg-Marquardt, and Newton with a pseudo-inverse.
They are not taken from a root finder because many tiny systems run side by side in one compiled function and stop one by one.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.analysis.spiked_fixed_points import spiked_fixed_points
from sgdynamics.base import checks
from sgdynamics.base.arrays import Nodes, Numeric, Parameters, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.fields import KINKED_TOLERANCE
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.mehler import MOST_TERMS
from sgdynamics.expectations.risk import choose_quadrature, compute_risks
from sgdynamics.ode.drift import drift
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start, overlap_matrix, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance

TOLERANCE = 1e-12  # largest norm of the drift at a root
PHYSICAL = 1e-9  # how negative an eigenvalue of Omega may be
CHUNK, SAMPLED_CHUNK = (
    16,
    4,
)  # points evaluated at once; the last chunk is filled up, so that any number of them compiles once
SEARCH_STEPS, DESCENT_STEPS, POLISH_STEPS = 100, 300, 60
MOST_TRIES = 10**6  # all of them are held in memory at once
NULL = 1e-6  # an eigenvalue below this share of the largest is 0
NEAR = 3e-2  # rows, or parts of rows, this close at a degenerate root are taken to coincide, if that is a root too
RUNAWAY = 16.0  # mean squared row over squared signal
FARTHEST = 1e6  # overlaps beyond this are no roots
STEP = 3e-3  # how far along null directions one looks for more of the family
SAME = 1e-6  # risks this close, with Jacobians whose eigenvalues are ten times this close, belong to the same point up to symmetry
EDGE = 1e-5  # smooth problems on the edge of the physical region are differentiated this far inside, and extrapolated


@dataclass(frozen=True)
class FixedPoint:
    """One root of the drift.

    Attributes
    ----------
    M : ndarray
        Overlaps with the signals, (unit, signal).
    Q : ndarray
        Gram matrix of the rows, (unit, unit).
    a : ndarray
        The head, (unit,).
    risk : float
        The population risk there.
    excess_risk : float
        Less the label noise's share, where that is defined.
    residual : float
        The norm of the drift.
    eigenvalues : ndarray of complex
        Those of the drift's Jacobian, growing first.
    verdict : str
        "saddle" if one grows; "stable" if all decay but for the ``manifold_dimension`` directions along a family of roots through this one;
        "marginal" if others are null too, so that the linear part does not decide (wide networks that have learnt are: they decay as a
        power law).
    manifold_dimension : int
        Of the family of roots that it belongs to.
    physical : bool
        Whether Omega is positive semi-definite, so that there are such rows.
    error : float
        What the error of the expectations may move the root by.
    found : int
        How many starts ended here.
    M_blocks : ndarray
        M in each covariance block.
    Q_blocks : ndarray
        Q in each covariance block.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> points = sgd.fixed_points(problem, sgd.OnePassSGD(lr=0.1), tries=8)
    >>> points[0].stable, points[0].start.M.round(6).tolist()
    (True, [[[1.0]]])
    """

    M: np.ndarray
    Q: np.ndarray
    a: np.ndarray
    risk: float
    excess_risk: float
    residual: float
    eigenvalues: np.ndarray
    verdict: str
    manifold_dimension: int
    physical: bool
    error: float
    found: int
    M_blocks: np.ndarray = field(repr=False)
    Q_blocks: np.ndarray = field(repr=False)

    @property
    def stable(self) -> bool:
        """Whether the verdict is "stable"."""
        return self.verdict == "stable"

    @property
    def start(self) -> Start:
        """The point as a start, for the solvers and ``hessian_spectrum``."""
        return Start(self.M_blocks[None], self.Q_blocks[None], self.a[None])


@float64
def fixed_points(
    problem: Any,
    algorithm: OnePassSGD,
    *,
    starts: Start | None = None,
    tries: int = 64,
    seed: int = 0,
    tolerance: float | None = None,
    unphysical: bool = False,
) -> list[Any]:
    """Fixed points of the ODE as d -> infinity (lr = 0: of gradient flow), by increasing risk, each once up to symmetry.

    ::

        drift(M, Q, a) = 0        (equations (1) to (4) of the theory page; Saad and Solla 1995 for erf)

    Parameters
    ----------
    problem : Problem or SpikedTensor
        What is learned. Of a ``SpikedTensor`` all fixed points are found, from its closed equations; then the other arguments have no
        meaning.
    algorithm : OnePassSGD
        Plain one-pass SGD with a constant rate.
    starts : Start, optional
        States to search from besides. A fixed head is that of ``starts``, or ones.
    tries : int, default 64
        How many random starts (generic rows, rows in the signals' span or orthogonal to it, equal rows, small rows).
    seed : int, default 0
        Of the random starts.
    tolerance : float, optional
        Largest norm of the drift at a root; 1e-12 unless given (1e-6 for a user's own loss with kinks, which is sampled).
    unphysical : bool, default False
        Keep roots whose Omega is not positive semi-definite to 1e-9, which belong to no rows.

    Returns
    -------
    list of FixedPoint
        What was found, not a proof that there is nothing else: raise ``tries`` for more. Spiked tensors have points of their own.

    Raises
    ------
    ValueError
        If an argument is refused, or the question is not answered for this problem or algorithm.

    Notes
    -----
    They are searched as roots, which finds saddles too, and from a quarter of the starts (and all of ``starts``) by following the dynamics.
    Roots with the same risk and the same Jacobian eigenvalues count once, for every symmetry of the problem (relabelled units, signs that
    the loss does not see, signals that it treats alike) leaves both alone; so do the points of a continuous family, of one risk and
    dimension. With kinks and lr > 0 the noise has a cusp where units are parallel: no linear part exists there, and the verdict is
    "marginal".

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> points = sgd.fixed_points(problem, sgd.OnePassSGD(lr=0.1), tries=8)
    >>> [point.verdict for point in points]
    ['stable']
    """
    algorithm = validate_algorithm(algorithm, "fixed_points", problem)
    if "spiked tensor" in problem.kinds:
        return spiked_fixed_points(problem, algorithm)
    constant_rate(algorithm, "fixed points")
    if problem.signals == 0:
        fix = "the search takes its scale from the signals, and there are none. Solve to long times by solve_ode"
        raise checks.reject("signals", 0, fix)
    tries = checks.integer("tries", tries, 0, MOST_TRIES)
    unphysical = checks.flag("unphysical", unphysical)
    seed = checks.integer("seed", seed, 0)
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, above=0.0)
    given = None if starts is None else validate_start(problem, starts)
    if given is None and tries == 0:
        raise checks.reject("tries", tries, "give starts, or a number of tries above 0")
    rough = bool(problem.structure.kinks) and expectation_of(problem.structure).drift_sampled
    limit = tolerance or (KINKED_TOLERANCE if rough else TOLERANCE)
    X, a = _first_rows(problem, given, tries, seed)
    runs = tries // 4 + (0 if given is None else given.runs)
    noisy = np.einsum("bii->bi", problem.gram).max(axis=1)[:, None, None] * np.eye(
        problem.width
    )  # noise lengthens rows
    quadrature = choose_quadrature(problem, noisy, 1.5 if algorithm.lr > 0 else 0.0)
    # the search tries rows that overflow: their drift is not finite, and they are never taken
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        system, roots = _found(problem, algorithm, quadrature, X, a, runs, limit)
        if len(roots.y):
            return _described(system, roots, limit, unphysical)
    warnings.warn(
        f"none of {len(a)} starts led to a fixed point (the drift did not fall below {limit:.0e}): raise tries",
        stacklevel=3,
    )
    return []


def _found(
    problem: Problem,
    algorithm: OnePassSGD,
    quadrature: Quadrature,
    X: np.ndarray,
    a: np.ndarray,
    runs: int,
    limit: float,
) -> tuple[_System, _Candidates]:
    """Roots from these rows and heads, by a quadrature that is fine enough for them."""
    while True:
        system = _System(problem, algorithm, quadrature)
        roots = _search(system, X, a, limit)
        if runs:
            roots = _Candidates(
                *map(
                    np.concatenate,
                    zip(roots, _descend(system, X[:runs], a[:runs], limit), strict=True),
                )
            )
        roots = roots.take(roots.residual <= limit)
        lengths = system.overlaps(roots)["Q"]
        needed = np.array(
            [choose_quadrature(problem, Q[None], 1.0).terms for Q in lengths], dtype=int
        )
        # rows run off to infinity where a saturating activation has no drift left: no roots, and not worth a longer series
        size = np.einsum("nbii->n", lengths)
        near = size <= RUNAWAY * problem.width * np.einsum("bii->i", problem.gram).max()
        roots = roots.take(
            (needed <= quadrature.terms) & (near | (needed < MOST_TERMS)) & (size < FARTHEST)
        )
        if not np.any(near & (needed > quadrature.terms)):
            return system, roots
        quadrature = replace(quadrature, terms=int(needed[near].max()))


class _Candidates(NamedTuple):
    """Many states: coordinates y (n, m), what they are counted from (n, full), the drift and its Jacobian there."""

    y: np.ndarray
    base: np.ndarray
    drift: np.ndarray
    jacobian: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        size = np.linalg.norm(self.drift, axis=1)
        return np.where(np.isfinite(size), size, np.inf)

    def take(self, index: np.ndarray | Sequence[int]) -> _Candidates:
        return _Candidates(*(part[index] for part in self))

    def put(self, index: np.ndarray | Sequence[int], other: _Candidates) -> None:
        for mine, new in zip(self, other, strict=True):
            mine[index] = new


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _rates(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    flow: bool,
    numbers: tuple[Nodes, Parameters, Parameters, Parameters],
    y: Float[Numeric, "... coordinates"],
    base: Float[Numeric, "... entries"],
    edge: Scalar,
) -> tuple[Any, Any]:
    """The drift of a chunk of states (point, replicate, coordinate), and its Jacobian at states moved by `edge`."""
    B, p, K = structure.blocks, structure.width, structure.signals
    nodes, parameters, algorithm, frame = numbers

    def one(
        node: Nodes, y: Float[Numeric, "... coordinates"], base: Float[Numeric, "... entries"]
    ) -> Any:
        M, Q, a = jnp.split(base + frame["out"] @ y, (B * p * K, B * p * (K + p)))
        state = {"M": M.reshape(B, p, K), "Q": Q.reshape(B, p, p), "a": a}
        rate = drift(
            structure, quadrature, node, parameters, algorithm, state, batch=batch, flow=flow
        )
        return frame["back"] @ jnp.concatenate(
            [rate["M"].reshape(-1), rate["Q"].reshape(-1), rate["a"]]
        )

    def every(y: Float[Numeric, "... coordinates"], base: Float[Numeric, "... entries"]) -> Any:
        return jax.vmap(one, (0, None, None))(nodes, y, base)

    def both(point: tuple[Any, Any]) -> tuple[Any, Any]:
        y, base = point
        return every(y, base), jax.jacfwd(lambda y: jnp.mean(every(y, base + edge), axis=0))(y)

    return jax.lax.map(both, (y, base), batch_size=1 if "points" in nodes else CHUNK)


class _System:
    """The drift of one problem and algorithm in independent coordinates: full = base + out y, (M, Q, a) side by side."""

    def __init__(self, problem: Problem, algorithm: OnePassSGD, quadrature: Quadrature) -> None:
        self.problem, self.algorithm, self.quadrature = problem, algorithm, quadrature
        self.structure = structure = problem.structure
        self.flow = algorithm.lr == 0.0
        self.nodes, self.coarse_nodes = expectation_of(structure).search_nodes(
            quadrature, self.flow
        )
        B, p, K = structure.blocks, structure.width, structure.signals
        self.shapes = {"M": (B, p, K), "Q": (B, p, p), "a": (p,)}
        size = B * p * (K + p) + p
        of_M, of_Q = (
            np.arange(B * p * K).reshape(B, p, K),
            B * p * K + np.arange(B * p * p).reshape(B, p, p),
        )
        self.diagonal = np.zeros(size)  # of Q, spread over the blocks
        self.diagonal[np.einsum("bii->bi", of_Q)] = 1.0 / B
        columns = []
        for b, i in itertools.product(range(B), range(p)):
            values, vectors = np.linalg.eigh(problem.gram[b])
            kept = (
                values > 1e-12 * values[-1]
            )  # a row of M lies in the span of the signals, which may be dependent
            span = np.eye(K) if kept.all() else vectors[:, kept]
            columns += [np.bincount(of_M[b, i], direction, size) for direction in span.T]
        for b, (i, j) in itertools.product(range(B), zip(*np.triu_indices(p), strict=True)):
            column = np.zeros(size)
            column[[of_Q[b, i, j], of_Q[b, j, i]]] = 1.0
            if structure.constraint.fixes_norms and i == j:
                column[of_Q[-1, i, i]] -= (
                    1.0  # the last block has what the others leave of the norm
                )
            if column.any():
                columns.append(column)
        if structure.trained:
            columns += list(np.eye(size)[-p:])
        out = np.array(columns).T
        self.frame = {"out": out, "back": np.linalg.pinv(out)}
        self.edge = (
            EDGE
            if not structure.kinks
            else 10 * EDGE
            if expectation_of(structure).sampled(self.flow)
            else 0.0
        )

    def rates(
        self, y: np.ndarray, base: np.ndarray, edge: float, nodes: Nodes | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Drift (point, replicate, coordinate) and Jacobian, in chunks."""
        numbers = (
            nodes or self.nodes,
            self.problem.parameters,
            self.algorithm.parameters,
            self.frame,
        )
        found = []
        chunk = SAMPLED_CHUNK if "points" in self.nodes else CHUNK
        for first in range(0, len(y), chunk):
            index = np.minimum(np.arange(first, first + chunk), len(y) - 1)
            static = (self.structure, self.quadrature, self.algorithm.batch, self.flow)
            found.append(
                [
                    np.asarray(part)
                    for part in _rates(
                        *static, numbers, y[index], base[index], edge * self.diagonal
                    )
                ]
            )
        rates, jacobians = (np.concatenate(part)[: len(y)] for part in zip(*found, strict=True))
        return rates, jacobians

    def at(self, y: np.ndarray, base: np.ndarray) -> _Candidates:
        rates, jacobians = self.rates(
            y, base, 1e-4 * self.edge
        )  # a Jacobian for Newton need not be exact, but finite
        return _Candidates(y.copy(), base.copy(), rates.mean(axis=1), jacobians)

    def overlaps(self, points: _Candidates) -> dict[str, np.ndarray]:
        """M, Q (block by block) and a."""
        full = points.base + points.y @ self.frame["out"].T
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        parts = zip(self.shapes.items(), np.split(full, cuts, axis=1), strict=True)
        return {name: part.reshape(-1, *shape) for (name, shape), part in parts}

    def of_rows(self, X: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates and base of rows [T | L] (n, block, unit, column)."""
        M = np.einsum(
            "nbic,bkc->nbik", X[..., : self.structure.signals], self.problem.parameters["frame"]
        )
        Q = np.einsum("nbic,nbjc->nbij", X, X)
        full = np.concatenate([part.reshape(len(X), -1) for part in (M, Q, a)], axis=1)
        y = full @ self.frame["back"].T
        return y, full - y @ self.frame["out"].T

    def row_slopes(self, X: np.ndarray, a: np.ndarray) -> np.ndarray:
        """d(coordinates)/d(rows, head): (n, m, unknowns). Overlaps are quadratic in the rows, so a central difference is exact."""
        n, size = len(X), X[0].size
        moves = np.eye(size).reshape(size, *X.shape[1:])
        ahead, behind = (
            self.of_rows((X[:, None] + m).reshape(-1, *X.shape[1:]), np.repeat(a, size, axis=0))[0]
            for m in (moves, -moves)
        )
        slopes = np.swapaxes((ahead - behind).reshape(n, size, -1) / 2, 1, 2).reshape(
            n, -1, *X.shape[1:]
        )
        if self.structure.constraint.fixes_norms:  # radial moves are undone by the normalisation
            slopes = (
                slopes - np.einsum("nmbic,nbic->nmi", slopes, X)[:, :, None, :, None] * X[:, None]
            )
        on_head = np.broadcast_to(
            self.frame["back"][:, -a.shape[1] :], (n, slopes.shape[1], a.shape[1])
        )
        return np.concatenate([slopes.reshape(n, -1, size), on_head], axis=2)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0.0)


def _first_rows(
    problem: Problem, given: Start | None, tries: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [T | L] and heads to search from: the given ones, then random ones of every kind that a fixed point may be of."""
    B, p, K = problem.structure.blocks, problem.width, problem.signals
    X, a = np.zeros((tries, B, p, K + p)), np.ones((tries, p))
    size = np.sqrt(np.einsum("bii->", problem.gram) / K)
    if given is not None and not problem.structure.trained:
        a[:] = given.a[0]
    for run in range(tries):
        draw = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        rows = (
            draw.standard_normal((B, p, K + p))
            / np.sqrt(B * (K + p))
            * size
            * np.exp(draw.uniform(-1.5, 0.7))
        )
        groups = draw.integers(0, p, size=p) if draw.random() < 0.4 else np.arange(p)
        rows, kind, small = rows[:, groups], draw.random(), draw.random()
        if kind < 0.3:
            rows[..., K:] = 0.0
        elif kind < 0.5:
            rows[..., :K] = 0.0
        if small < 0.3:
            rows[:, groups == groups[draw.integers(p)]] *= 1e-3
        X[run] = rows
        if problem.structure.trained:
            a[run] = draw.standard_normal(p)[groups] + draw.integers(0, 2)
    if given is not None:
        T, L = compressed_rows(problem, given)
        X, a = np.concatenate([np.concatenate([T, L], axis=-1), X]), np.concatenate([given.a, a])
    return X, a


def _search(system: _System, X: np.ndarray, a: np.ndarray, limit: float) -> _Candidates:
    """Levenberg-Marquardt on the drift, in rows and head, every start at its own pace; then the polish."""

    def normal(rows: np.ndarray) -> np.ndarray:
        return np.asarray(system.structure.constraint.project_rows(rows, axes=(1, 3)))

    X, a = normal(X), a.copy()
    points = system.at(*system.of_rows(X, a))
    damping, live = np.full(len(X), 1e-2), np.arange(len(X))
    for _ in range(SEARCH_STEPS):
        part = points.take(live)
        J = _finite(part.jacobian @ system.row_slopes(X[live], a[live]))
        square = np.einsum("nmx,nmy->nxy", J, J) + damping[live, None, None] * np.eye(J.shape[2])
        step = -np.linalg.solve(square, np.einsum("nmx,nm->nx", J, _finite(part.drift))[..., None])[
            ..., 0
        ]
        rows = normal(X[live] + step[:, : X[0].size].reshape(-1, *X.shape[1:]))
        heads = a[live] + step[:, X[0].size :]
        new = system.at(*system.of_rows(rows, heads))
        better = new.residual < part.residual
        chosen = live[better]
        X[chosen], a[chosen] = rows[better], heads[better]
        points.put(chosen, new.take(better))
        damping[live] = np.maximum(np.where(better, damping[live] / 4, damping[live] * 4), 1e-14)
        live = live[(points.residual[live] > 100 * limit) & (damping[live] < 1e8)]
        if len(live) == 0:
            break
    return _polish(system, points, limit)


def _descend(system: _System, X: np.ndarray, a: np.ndarray, limit: float) -> _Candidates:
    """Where the ODE leads: implicit Euler steps that lengthen, but not past what grows, so that a saddle is left as fast as it can be."""
    draw = np.random.default_rng(11)
    X = X + 1e-2 * draw.standard_normal(X.shape)  # off the subspaces that the dynamics would keep
    X = np.asarray(system.structure.constraint.project_rows(X, axes=(1, 3)))
    points = system.at(*system.of_rows(X, a))
    live = np.flatnonzero(np.isfinite(points.jacobian).all(axis=(1, 2)))
    pace = np.full(len(X), 0.1)
    for _ in range(DESCENT_STEPS):
        if len(live) == 0:
            break
        part = points.take(live)
        growth = np.linalg.eigvals(part.jacobian).real.max(axis=1)
        rate = np.maximum(1 / pace[live], growth / 0.7)
        step = np.linalg.solve(
            rate[:, None, None] * np.eye(part.y.shape[1]) - part.jacobian, part.drift[..., None]
        )[..., 0]
        new = system.at(part.y + step, part.base)
        good = np.isfinite(new.jacobian).all(axis=(1, 2)) & (
            np.abs(step).max(axis=1) < 0.2 * np.maximum(1, np.abs(part.y).max(axis=1))
        )
        points.put(live[good], new.take(good))
        pace[live] = np.where(good, 2.0, 0.25) / rate
        live = live[
            (points.residual[live] > 100 * limit)
            & (pace[live] > 1e-9)
            & (np.abs(points.y[live]).max(axis=1) < FARTHEST)
        ]
    return _polish(system, points, limit)


def _polish(system: _System, points: _Candidates, limit: float, cut: float = 1e-9) -> _Candidates:
    """Newton in the overlaps with a pseudo-inverse, steps halved while they do not help; past the limit, as far as rounding allows."""
    step, live = np.ones(len(points.y)), np.arange(len(points.y))
    for _ in range(POLISH_STEPS):
        part = points.take(live)
        towards = np.einsum(
            "nym,nm->ny", np.linalg.pinv(_finite(part.jacobian), rcond=cut), _finite(part.drift)
        )
        new = system.at(part.y - step[live, None] * towards, part.base)
        better = new.residual < part.residual
        points.put(live[better], new.take(better))
        step[live] = np.where(better, np.minimum(1.0, 2 * step[live]), step[live] / 2)
        live = live[(points.residual[live] > 1e-5 * limit) & (step[live] > 0.01)]
        if len(live) == 0:
            break
    return points


def _jacobians(system: _System, points: _Candidates) -> np.ndarray:
    """Jacobians at roots; on the edge of the physical region those of smooth problems are limits from inside, extrapolated."""
    jacobians = system.rates(points.y, points.base, 0.0)[1].copy()
    state = system.overlaps(points)
    omega = overlap_matrix(state["M"], state["Q"], system.problem.gram)
    edge = (
        np.linalg.eigvalsh(input_covariance.field_covariance(system.problem.parameters, omega))[
            :, 0
        ]
        < NULL
    )
    if system.edge and edge.any():
        part = points.take(edge)
        near, far = (system.rates(part.y, part.base, times * system.edge)[1] for times in (1, 2))
        jacobians[edge] = near if system.structure.kinks else 2 * near - far
    return jacobians


def _null_space(jacobian: np.ndarray) -> np.ndarray:
    """Right null vectors, as columns."""
    _, values, right = np.linalg.svd(_finite(jacobian))
    return right[values <= NULL * max(values[0], 1e-300)].T


def _settled(system: _System, roots: _Candidates, limit: float) -> _Candidates:
    """Degenerate roots are known badly (a triple root to 1e-4): put small parts to 0 and close rows together, if that is a root."""
    degenerate = [
        index for index, jacobian in enumerate(roots.jacobian) if _null_space(jacobian).shape[1]
    ]
    if not degenerate:
        return roots
    part = roots.take(degenerate)
    state = system.overlaps(part)
    T, L = compressed_rows(system.problem, Start(state["M"], state["Q"], state["a"]))
    size = np.sqrt(np.abs(np.einsum("nbii->n", state["Q"])) + 1e-300)[:, None, None]
    L = np.where((np.sqrt(np.sum(L**2, axis=-2)) > NEAR * size)[:, :, None, :], L, 0.0)
    X, a = np.concatenate([T, L], axis=-1), state["a"].copy()
    together, heads = X.copy(), a.copy()
    for n, i in itertools.product(range(len(X)), range(X.shape[2])):
        gaps = np.sqrt(np.sum((X[n] - X[n, :, i : i + 1]) ** 2, axis=(0, 2))) + np.abs(
            a[n] - a[n, i]
        )
        close = gaps <= NEAR * size[n, 0, 0]
        together[n, :, i], heads[n, i] = X[n][:, close].mean(axis=1), a[n, close].mean()
        if np.sum(X[n, :, i] ** 2) <= (NEAR * size[n, 0, 0]) ** 2:
            together[n, :, i] = 0.0
    for rows, values in ((X, a), (together, heads)):
        moved = _polish(system, system.at(*system.of_rows(rows, values)), limit)
        here = roots.take(degenerate)
        near = np.abs(moved.y - here.y).max(axis=1) <= 3 * NEAR * np.maximum(
            1.0, np.abs(here.y).max(axis=1)
        )
        chosen = near & (moved.residual <= np.maximum(limit / 100, here.residual))
        roots.put(np.array(degenerate)[chosen], moved.take(chosen))
    return roots


def _family_dimension(system: _System, root: _Candidates, null: np.ndarray, limit: float) -> int:
    """The dimension of the family of roots through a root: nearby starts are sent to their own roots, whose moves are counted.

    Only moves along null directions of the Jacobian can belong to a family; a null direction that leads back is none.
    """
    if null.shape[1] == 0:
        return 0
    state = system.overlaps(root)
    T, L = compressed_rows(system.problem, Start(state["M"], state["Q"], state["a"]))
    # L enters squared: where it is 0, a step of the overlaps is the square root of one of the rows
    reach = np.where(
        np.sqrt(np.sum(L**2, axis=-2, keepdims=True)) > np.sqrt(STEP), STEP, np.sqrt(STEP)
    )
    scales = np.concatenate([np.full_like(T, STEP), np.broadcast_to(reach, L.shape)], axis=-1)
    draw, count = np.random.default_rng(7), 2 * null.shape[1] + 6
    X = np.concatenate([T, L], axis=-1) + scales * draw.standard_normal((count, *scales.shape[1:]))
    a = state["a"] + STEP * system.structure.trained * draw.standard_normal(
        (count, state["a"].shape[1])
    )
    # degenerate roots are approached slowly, along directions that are all but null: those must not pass for moves
    found = _polish(system, _search(system, X, a, limit), limit, 1e-12)
    moves = found.y - root.y
    moves = moves[found.residual <= limit] @ null
    # every start moves along a family; one that finds another root nearby is no family
    moves = moves[np.argsort(np.linalg.norm(moves, axis=1))][: null.shape[1] + 3]
    return int(
        np.sum(np.linalg.svd(moves, compute_uv=False) > 0.03 * STEP * np.sqrt(max(len(moves), 1)))
    )


def _described(
    system: _System, roots: _Candidates, limit: float, unphysical: bool
) -> list[FixedPoint]:
    """Roots as fixed points: physical, each once, with risk, stability and family."""
    problem = system.problem
    roots = _settled(system, roots, limit)
    state = system.overlaps(roots)
    physical = _physical(problem, state)
    risk = compute_risks(problem.structure, system.quadrature, [problem.parameters], [state])[
        0
    ].risk
    jacobians, rates = _jacobians(system, roots), _rates_twice(system, roots)
    found: list[FixedPoint] = []
    for n in np.argsort(np.round(risk, 9), kind="stable"):
        on_kink = (
            0.0 in problem.structure.kinks and np.einsum("bii->i", state["Q"][n]).min() <= PHYSICAL
        )
        if on_kink or not (physical[n] or unphysical) or not np.isfinite(jacobians[n]).all():
            continue
        values = np.array(
            sorted(
                np.linalg.eigvals(jacobians[n]).tolist(),
                key=lambda value: (-value.real, value.imag),
            ),
            dtype=complex,
        )
        error = _root_error(rates[n], jacobians[n])
        close = SAME + 10 * error
        level = [
            k
            for k, one in enumerate(found)
            if abs(one.risk - risk[n]) <= close * max(1.0, abs(risk[n]))
        ]
        same = [
            k
            for k in level
            if np.abs(found[k].eigenvalues - values).max()
            <= 10 * close * float(np.abs(values).max())
        ]
        dimension = (
            0
            if same
            else _family_dimension(system, roots.take([n]), _null_space(jacobians[n]), limit)
        )
        same = same or [k for k in level if dimension and found[k].manifold_dimension == dimension]
        if same:
            found[same[0]] = replace(found[same[0]], found=found[same[0]].found + 1)
            continue
        if expectation_of(problem.structure).uses_series:
            own = {name: part[n : n + 1] for name, part in state.items()}
            error += compute_risks(
                problem.structure, system.quadrature, [problem.parameters], [own]
            )[0].worst * float(np.abs(roots.y[n]).max())
        M, Q, a = (part[n] for part in state.values())
        verdict = _verdict(system, values, dimension, Q.sum(axis=0))
        excess = (
            float(risk[n]) - problem.noise_floor if problem.structure.has_excess else float("nan")
        )
        numbers = (
            float(risk[n]),
            excess,
            float(roots.residual[n]),
            values,
            verdict,
            dimension,
            bool(physical[n]),
            error,
            1,
        )
        found.append(FixedPoint(M.sum(axis=0), Q.sum(axis=0), a, *numbers, M, Q))
    return found


def _physical(problem: Problem, state: dict[str, np.ndarray]) -> np.ndarray:
    """Whether there are rows with these overlaps: (n,)."""
    omega = overlap_matrix(state["M"], state["Q"], problem.gram)
    lowest = np.linalg.eigvalsh(omega).min(axis=(1, 2))
    return lowest >= -PHYSICAL * np.maximum(1.0, np.abs(omega).max(axis=(1, 2, 3)))


def _rates_twice(system: _System, roots: _Candidates) -> np.ndarray:
    """The drift at the roots by every replicate, or by two grids where coarser nodes tell the error: (n, 1 or more, m)."""
    rates = system.rates(roots.y, roots.base, 0.0)[0]
    if system.coarse_nodes is None:
        return rates
    return np.concatenate(
        [rates, 2 * system.rates(roots.y, roots.base, 0.0, system.coarse_nodes)[0] - rates], axis=1
    )


def _root_error(rates: np.ndarray, jacobian: np.ndarray) -> float:
    """What replicates, or two grids, disagree on, as a move of the root."""
    moves = (rates - rates.mean(axis=0)) @ np.linalg.pinv(jacobian, rcond=NULL).T
    return float(np.sqrt(np.mean(moves**2, axis=0).max() / max(len(moves) - 1, 1)))


def _verdict(system: _System, values: np.ndarray, dimension: int, Q: np.ndarray) -> str:
    """Stable, saddle or marginal, from the eigenvalues; at parallel rows the noise term of a kinked loss has no derivative to judge by."""
    scale = float(np.abs(values).max())
    growing, flat = (
        int(np.sum(chosen))
        for chosen in (np.real(values) > NULL * scale, np.abs(np.real(values)) <= NULL * scale)
    )
    lengths = np.sqrt(np.abs(np.diag(Q)))
    parallel = np.any(np.triu(Q - (1 - 1e-9) * np.outer(lengths, lengths), 1) > 0)
    if not system.flow and system.problem.structure.kinks and parallel:
        return "marginal"
    return "saddle" if growing else "stable" if flat <= dimension else "marginal"
