"""The Hessian of the population risk in weight space: all p N eigenvalues, at a cost without N.

With h_i = dloss/dlambda_i and x the input, the Hessian is one Gaussian expectation,

    d^2 R / dw_i dw_j = E[h_ij x x^T],     h_ij = dh_i/dlambda_j = d^2 loss/dlambda_i dlambda_j,

which is E[h_ij] times the identity on all directions orthogonal to students and signals. So the
spectrum is that of one block on [T | L] (K + p columns), and N - K - p times that of the p x p
matrix E[h_ij]. In covariance block b (eigenvalue l_b) both x have a factor sqrt(l_b): each block
has its own columns, and its own outside matrix l_b E[h_ij].

For two-layer networks, with E0 = sum_c c_c g_c the residual,

    h_ij = -(a_i/p) [delta_ij s''_i E0 + c_j s'_i s'_j],

so that E[f''(u) g(v) x x^T] and E[f'(u) g'(v) x x^T] are needed for pairs of fields u = w.x and
v = v.x. For smooth functions Stein's lemma gives, with F = f^(i) g^(j),

    E[F x x^T] = E[F] I + E[F_uu] w w^T + E[F_uv] (w v^T + v w^T) + E[F_vv] v v^T,

which needs no derivative of the overlaps and holds at any of them: equal rows, rows on the signals,
w = 0. For functions with kinks the same expectation is computed in the plane of w and v, with the
point masses of f'' and g' on their lines.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

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

# Eigenvalues closer than this share of the largest one are equal.
GROUPING = 1e-9
# Rounding error of an entry of the Hessian, relative to the largest one.
ROUNDING = 1e-14
MAX_DIMENSION = 10**18
DIMENSION = 1000


@dataclass(frozen=True)
class HessianSpectrum:
    """Eigenvalues of the Hessian of the risk at one state, with their multiplicities.

    Attributes
    ----------
    eigenvalues : ndarray
        Distinct eigenvalues, increasing.
    multiplicities : tuple of int
        Multiplicity of each eigenvalue.
    gradient_norm : float
        Norm of the gradient dR/dW (of its tangent component on the sphere), 0 at a critical point.
    error : float
        Bound on the error of the eigenvalues, from the errors of the expectations.
    tolerance : float
        Distance below which eigenvalues count as equal, and as zero.
    dimension : int
        Dimension N of the inputs.
    constraint : str or None
        "sphere" for the Riemannian Hessian.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> spectrum = sgd.hessian_spectrum(problem, start, dimension=100)
    >>> spectrum.negative + spectrum.null + spectrum.positive
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
        """Number of eigenvalues below ``-tolerance``, with multiplicity."""
        return self._count(self.eigenvalues < -self.tolerance)

    @property
    def null(self) -> int:
        """Number of eigenvalues within ``tolerance`` of 0, with multiplicity."""
        return self._count(np.abs(self.eigenvalues) <= self.tolerance)

    @property
    def positive(self) -> int:
        """Number of eigenvalues above ``tolerance``, with multiplicity."""
        return self._count(self.eigenvalues > self.tolerance)

    def _count(self, selected: np.ndarray) -> int:
        # Python integers, because the sum may exceed 2^63.
        pairs = zip(self.multiplicities, selected.tolist(), strict=True)
        return sum(multiplicity for multiplicity, is_selected in pairs if is_selected)


@float64
def hessian_spectrum(
    problem: Problem,
    start: Start,
    *,
    dimension: int = DIMENSION,
    constraint: str | None = "problem",
    run: int = 0,
    tolerance: float | None = None,
    top: bool = True,
) -> HessianSpectrum:
    """All eigenvalues of the Hessian of the population risk in the rows, at a fixed head.

    ::

        d^2 R / dw_i dw_j = E[h_ij x x^T],   h_ij = d^2 loss/dlambda_i dlambda_j

    For a problem with a top the Hessian is that in rows and top together.

    Parameters
    ----------
    problem : Problem
        The learning problem, with centred Gaussian inputs.
    start : Start
        The state at which the Hessian is computed.
    dimension : int, default 1000
        Dimension N of the inputs; a ``sgd.Spectrum`` has its own.
    constraint : str or None, default "problem"
        "sphere" for the Riemannian Hessian on rows of fixed norm,
        P (Hess - diag(w_i.dR/dw_i/w_i.w_i)) P on the p (N - 1) tangent directions; None for the
        Euclidean one; "problem" for the constraint of the problem.
    run : int, default 0
        Index of the run of the start.
    tolerance : float, optional
        Distance below which eigenvalues count as equal, and as zero. Defaults to 1e-9 of the
        largest one, or to the error if that is larger.
    top : bool, default True
        Whether the numbers on top, if the problem has a top, are among the variables; False keeps
        them fixed.

    Returns
    -------
    HessianSpectrum
        Eigenvalues with their multiplicities, p N in total, and with a top of n numbers p N + n.

    Raises
    ------
    ValueError
        If an argument is invalid, or if a row lies on the kink of its activation (ReLU at w = 0),
        where there is no second derivative.

    Notes
    -----
    The spectrum is exact for Gaussian inputs at any N, by Stein's lemma; for ReLU it is that of
    Safran and Shamir (2018). Weight decay is not included: add its coefficient to each eigenvalue
    for the penalised risk.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> spectrum = sgd.hessian_spectrum(problem, start, dimension=100)
    >>> spectrum.eigenvalues.round(2).tolist()
    [-0.95, -0.88, 1.0, 2.95, 2.95, 4.93]
    >>> spectrum.multiplicities
    (1, 1, 195, 1, 1, 1)
    """
    require("hessian_spectrum", problem)
    state = validate_start(problem, start)
    run = checks.integer("run", run, 0)
    if run >= state.runs:
        fix = f"the start has {state.runs} runs. Use 0..{state.runs - 1}"
        raise checks.reject("run", run, fix)
    checks.choice("constraint", constraint, ("problem", None, "sphere"))
    constraint = problem.constraint if constraint == "problem" else constraint
    has_top = checks.flag("top", top) and problem.structure.top is not None
    if has_top and problem.structure.kinks:
        fix = "second derivatives in the top need a loss without kinks. Set top=False"
        raise checks.reject("top", top, fix)
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, 0.0)
    N, block_sizes = _dimensions(problem, dimension)
    rows, signals = _frame_rows(problem, state, run)
    _check_rows(problem, rows, constraint)
    eigenvalues = input_covariance.eigenvalues(problem.parameters)
    fields = problem.structure.fields
    # Whitened coordinates of the frame: x_m has standard deviation scale_m.
    scale = np.sqrt(np.repeat(eigenvalues, fields))
    quadrature = choose_quadrature(problem, state.Q_blocks[run : run + 1], 1.0)
    expectation = expectation_of(problem.structure)
    curvatures, are_replicates = expectation.curvatures(
        problem.structure,
        quadrature,
        problem.parameters,
        state.a[run],
        rows * scale,
        signals * scale,
    )
    versions = [
        _restore_units(
            curvature if has_top else curvature._replace(top=None),
            rows,
            scale,
            np.asarray(eigenvalues),
            constraint,
        )
        for curvature in curvatures
    ]
    hessian, errors = _combine_versions(versions, are_replicates)
    # Weyl's inequality: no eigenvalue changes by more than the norm of the perturbation.
    gap = float(max(np.linalg.norm(errors.inside), np.linalg.norm(errors.outside)))
    values = [(value, 1) for value in np.linalg.eigvalsh(hessian.inside)]
    for block, size in zip(hessian.outside, block_sizes, strict=True):
        values += [(value, size - fields) for value in np.linalg.eigvalsh(block)]
    largest = max(abs(value) for value, _ in values)
    if gap > WARN_ABOVE * largest and not are_replicates:
        warnings.warn(
            f"hessian_spectrum: eigenvalues of up to {largest:.1e} have an error of {gap:.1e}: "
            f"{expectation.advice}.",
            stacklevel=3,
        )
    error = float(gap + ROUNDING * rows.size * largest)
    if tolerance is None:
        tolerance = float(max(GROUPING * largest, error))
    distinct, multiplicities = _group_equal(values, tolerance)
    gradient_norm = float(np.linalg.norm(hessian.gradient))
    return HessianSpectrum(distinct, multiplicities, gradient_norm, error, tolerance, N, constraint)


def _dimensions(problem: Problem, dimension: int) -> tuple[int, list[int]]:
    """The dimension of the inputs, and the sizes of the covariance blocks."""
    if problem.spectrum is not None and dimension == DIMENSION:
        dimension = int(check_dimension(problem, None)[0])  # that of the spectrum
    N = checks.integer("dimension", dimension, 1)
    if N > MAX_DIMENSION:
        raise checks.reject("dimension", dimension, f"give at most {MAX_DIMENSION:.0e}")
    sizes = [int(size) for size in check_dimension(problem, N)[1]]
    # Sizes are computed in float64, which rounds integers above 2^53.
    sizes[int(np.argmax(sizes))] += N - sum(sizes)
    return N, sizes


def _check_rows(problem: Problem, rows: np.ndarray, constraint: str | None) -> None:
    """Raise ValueError for rows at which the Hessian does not exist."""
    zero_rows = np.flatnonzero(np.all(rows == 0.0, axis=1)).tolist()
    if zero_rows and 0.0 in problem.structure.kinks:
        raise ValueError(
            f"rows {zero_rows} are zero, on the kink of the activation, where the risk has no "
            "second derivative. Use a start without zero rows."
        )
    if zero_rows and constraint == "sphere":
        raise ValueError(
            f"rows {zero_rows} are zero: constraint='sphere' needs rows with a direction. "
            "Use constraint=None."
        )


def _frame_rows(problem: Problem, state: Start, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Students (p, D) and signals (K, D) in an orthonormal frame that contains both.

    The columns of the frame are [T_b | L_b] of all blocks, in order.
    """
    selected = slice(run, run + 1)
    single = Start(state.M_blocks[selected], state.Q_blocks[selected], state.a[selected])
    T, L = (factor[0] for factor in compressed_rows(problem, single))
    largest_norm = np.einsum("bii->bi", single.Q_blocks[0]).max(axis=-1)[:, None]
    # Rounding errors of Omega appear in its root as columns of size 1e-8, which are dropped.
    is_significant = np.sum(L**2, axis=-2) > PIVOT * largest_norm
    L = np.where(is_significant[:, None, :], L, 0.0)
    frame = problem.parameters["frame"]
    empty = np.zeros((len(frame), problem.signals, problem.width))
    rows = np.concatenate(np.concatenate([T, L], axis=-1), axis=-1)
    signals = np.concatenate(np.concatenate([frame, empty], axis=-1), axis=-1)
    return rows, signals


class _Hessian(NamedTuple):
    """The matrices to diagonalise, and the gradient, in the coordinates of W.

    `inside` is the Hessian on the frame, as one square matrix; `outside` has a p x p matrix for
    each covariance block.
    """

    inside: np.ndarray
    outside: np.ndarray
    gradient: np.ndarray


def _restore_units(
    curvature: Curvature,
    rows: np.ndarray,
    scale: np.ndarray,
    eigenvalues: np.ndarray,
    constraint: str | None,
) -> _Hessian:
    """The Hessian in the coordinates of W from that in whitened coordinates."""
    D = rows.shape[1]
    inside = curvature.inside * scale[:, None, None] * scale
    top = curvature.top
    cross = None if top is None else top.cross * scale[:, None]
    outside = eigenvalues[:, None, None] * curvature.outside
    gradient = curvature.gradient * scale
    if constraint == "sphere":
        # The Riemannian Hessian is P (Hess - diag(w_i.g_i/w_i.w_i)) P.
        radial = np.sum(rows * gradient, axis=1) / np.sum(rows**2, axis=1)
        outside = outside - np.diag(radial)
        inside = inside - np.einsum("ij,mn->imjn", np.diag(radial), np.eye(D))
        gradient = gradient - radial[:, None] * rows
        # The last columns of Q are an orthonormal basis of the tangent space at each row.
        tangent = np.stack([np.linalg.qr(row[:, None], mode="complete")[0][:, 1:] for row in rows])
        inside = np.einsum("imjn,ima,jnb->iajb", inside, tangent, tangent, optimize=True)
        if cross is not None:
            cross = np.einsum("imj,ima->iaj", cross, tangent)
    size = inside.shape[0] * inside.shape[1]
    inside = inside.reshape(size, size)
    if top is not None:
        assert cross is not None
        cross = cross.reshape(size, -1)
        inside = np.block([[inside, cross], [cross.T, top.inside]])
        gradient = np.concatenate([gradient.reshape(-1), top.gradient])
    symmetric_outside = (outside + np.swapaxes(outside, -1, -2)) / 2
    return _Hessian((inside + inside.T) / 2, symmetric_outside, gradient)


def _combine_versions(versions: list[_Hessian], are_replicates: bool) -> tuple[_Hessian, _Hessian]:
    """The Hessian and its errors, from replicates or from a fine and a coarse resolution."""
    arrays = [np.stack(array) for array in zip(*versions, strict=True)]
    if are_replicates:
        means = [array.mean(axis=0) for array in arrays]
        errors = [array.std(axis=0, ddof=1) / np.sqrt(len(array)) for array in arrays]
        return _Hessian(*means), _Hessian(*errors)
    fine, coarse = ([array[index] for array in arrays] for index in (0, 1))
    differences = [first - second for first, second in zip(fine, coarse, strict=True)]
    return _Hessian(*fine), _Hessian(*differences)


def _group_equal(
    values: list[tuple[float, int]], tolerance: float
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Distinct eigenvalues, and the sums of their multiplicities.

    Multiplicities are Python integers, because they may exceed 2^63.
    """
    groups: list[list[tuple[float, int]]] = []
    for value, count in sorted(values):
        if count and groups and value - groups[-1][-1][0] <= tolerance:
            groups[-1].append((value, count))
        elif count:
            groups.append([(value, count)])
    means = [float(np.mean([value for value, _ in group])) for group in groups]
    return np.array(means), tuple(sum(count for _, count in group) for group in groups)
