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

import warnings
from dataclasses import dataclass

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.base.support import require
from sgdynamics.dynamics.fields import WARN_ABOVE
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.curvature import Curvature
from sgdynamics.expectations.nodes import PIVOT
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.problems.frames import check_dimension, compressed_rows
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples import input_covariance

GROUPING = 1e-9  # eigenvalues closer than this share of the largest are one
ROUNDING = 1e-14  # of an entry of the Hessian, relative to the largest
MOST_DIMENSIONS = 10**18
DIMENSION = 1000


@dataclass(frozen=True)
class HessianSpectrum:
    """Eigenvalues of the risk's Hessian at one state, and how often each occurs.

    Attributes
    ----------
    eigenvalues : ndarray
        Increasing, equal ones grouped.
    multiplicities : tuple of int
        How often each occurs.
    gradient_norm : float
        ``|dR/dW|`` (its tangent part on the sphere), 0 at a critical point.
    error : float
        How far an eigenvalue can be off, from the expectations it is made of.
    tolerance : float
        Below it eigenvalues count as null, and as equal.
    dimension : int
        N.
    constraint : str or None
        "sphere" for the Riemannian Hessian.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> found = sgd.hessian_spectrum(problem, sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)), dimension=100)
    >>> found.negative + found.null + found.positive
    200
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
        """How many directions are below ``-tolerance``."""
        return self._count(self.eigenvalues < -self.tolerance)

    @property
    def null(self) -> int:
        """How many directions are within ``tolerance`` of 0."""
        return self._count(np.abs(self.eigenvalues) <= self.tolerance)

    @property
    def positive(self) -> int:
        """How many directions are above ``tolerance``."""
        return self._count(self.eigenvalues > self.tolerance)

    def _count(self, chosen: np.ndarray) -> int:
        return sum(
            times
            for times, counts in zip(self.multiplicities, chosen.tolist(), strict=True)
            if counts
        )


@float64
def hessian_spectrum(
    problem: Problem,
    start: Start,
    *,
    dimension: int = DIMENSION,
    constraint: str | None = "problem",
    run: int = 0,
    tolerance: float | None = None,
) -> HessianSpectrum:
    """All eigenvalues of the population risk's Hessian over the rows, the head held fixed.

    ::

        d^2 R / dw_i dw_j = E[h_ij x x^T]

    Parameters
    ----------
    problem : Problem
        What is learned, with centred Gaussian inputs.
    start : Start
        The state at which it is asked for.
    dimension : int, default 1000
        N, the dimension of the inputs; that of a ``sgd.Spectrum`` is known.
    constraint : str or None, default "problem"
        "sphere" is the Riemannian Hessian on rows of fixed norm, P (Hess - diag(w_i.dR/dw_i/w_i.w_i)) P on the p (N - 1) tangent
        directions; None is the plain one; "problem" follows the problem's constraint.
    run : int, default 0
        Which run of the start.
    tolerance : float, optional
        Under which distance eigenvalues are equal, and null; unless given 1e-9 of the largest, or the error where that is more.

    Returns
    -------
    HessianSpectrum
        Eigenvalues with their multiplicities, p N in all.

    Raises
    ------
    ValueError
        If an argument is refused, or an activation has its kink at a row (ReLU at w = 0), where there is no second derivative.

    Notes
    -----
    Exact for Gaussian inputs at any N (by Stein's lemma; for ReLU it is the Hessian of Safran and Shamir 2018); weight decay is not part
    of it (add al to each eigenvalue for the penalised risk).

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> found = sgd.hessian_spectrum(problem, sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)), dimension=100)
    >>> found.eigenvalues.round(2).tolist()
    [-0.95, -0.88, 1.0, 2.95, 2.95, 4.93]
    >>> found.multiplicities
    (1, 1, 195, 1, 1, 1)
    """
    require("hessian_spectrum", problem)
    begin = validate_start(problem, start)
    run = checks.integer("run", run, 0)
    if run >= begin.runs:
        raise checks.reject(
            "run", run, f"the start has {begin.runs} runs: give 0..{begin.runs - 1}"
        )
    limit = checks.choice("constraint", constraint, ("problem", None, "sphere"))
    limit = problem.constraint if limit == "problem" else limit
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, 0.0)
    if problem.spectrum is not None and dimension == DIMENSION:
        dimension = int(check_dimension(problem, None)[0])  # the spectrum's own
    n = checks.integer("dimension", dimension, 1)
    if n > MOST_DIMENSIONS:
        raise checks.reject("dimension", dimension, f"give at most {MOST_DIMENSIONS:.0e}")
    sizes = [int(size) for size in check_dimension(problem, n)[1]]
    sizes[int(np.argmax(sizes))] += n - sum(sizes)  # beyond 2^53 a float cannot hold them all
    rows, signals = _frame_rows(problem, begin, run)
    dead = np.flatnonzero(np.all(rows == 0.0, axis=1)).tolist()
    if dead and 0.0 in problem.structure.kinks:
        raise ValueError(
            f"rows {dead} are zero, on the kink of the activation: the risk has no second derivative there; give other rows"
        )
    if dead and limit == "sphere":
        raise ValueError(
            f"rows {dead} are zero: constraint='sphere' needs rows with a direction; give constraint=None"
        )
    eigenvalues = input_covariance.eigenvalues(problem.parameters)
    columns = problem.structure.fields
    scale = np.sqrt(np.repeat(eigenvalues, columns))
    quadrature = choose_quadrature(problem, begin.Q_blocks[run : run + 1], 1.0)
    given = (
        problem.structure,
        quadrature,
        problem.parameters,
        begin.a[run],
        rows * scale,
        signals * scale,
    )
    versions, replicates = expectation_of(problem.structure).curvatures(*given)
    parts = [
        np.stack(part)
        for part in zip(
            *(_unwhitened(one, rows, scale, np.asarray(eigenvalues), limit) for one in versions),
            strict=True,
        )
    ]
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
            f"eigenvalues up to {largest:.1e} are known only to {gap:.1e}: {expectation_of(problem.structure).advice}.",
            stacklevel=3,
        )
    error = gap + ROUNDING * rows.size * largest
    within = float(max(GROUPING * largest, error)) if tolerance is None else tolerance
    grouped, counts = _grouped(values, within)
    return HessianSpectrum(
        grouped, counts, float(np.linalg.norm(gradient)), float(error), within, n, limit
    )


def _frame_rows(problem: Problem, begin: Start, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Students (p, D) and signals (K, D) in an orthonormal frame that holds both: [T_b | L_b] of every block side by side."""
    one = Start(
        begin.M_blocks[run : run + 1], begin.Q_blocks[run : run + 1], begin.a[run : run + 1]
    )
    T, L = (part[0] for part in compressed_rows(problem, one))
    size = np.einsum("bii->bi", one.Q_blocks[0]).max(axis=-1)[:, None]
    # a root of what is rounding in Omega would couple columns at 1e-8
    kept = np.sum(L**2, axis=-2) > PIVOT * size
    L = np.where(kept[:, None, :], L, 0.0)
    frame = problem.parameters["frame"]
    empty = np.zeros((len(frame), problem.signals, problem.width))
    rows = np.concatenate(np.concatenate([T, L], axis=-1), axis=-1)
    signals = np.concatenate(np.concatenate([frame, empty], axis=-1), axis=-1)
    return rows, signals


def _unwhitened(
    found: Curvature,
    rows: np.ndarray,
    scale: np.ndarray,
    eigenvalues: np.ndarray,
    limit: str | None,
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
