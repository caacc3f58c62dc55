"""Closed formulas of "Escape dynamics and implicit bias of one-pass SGD" (arXiv:2604.03068).

Units of the paper: student (1/p) sum_k lambda_k^2, teacher (1/p*) sum_l u_l^2 with orthonormal
rows, loss (y - yhat)^2 without 1/2, alpha = steps/N, t = eta alpha. In the library's units
lr = 2 eta, alpha is the same, t = 2 eta alpha, M = rho, and the risk is half of the risk here.
Misprints are corrected, and the docstrings name them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray

FULL_RANK = 1e-10  # smallest ratio of singular values of an overlap matrix of full rank
# tolerance of the symmetry of Q: an implicit integrator perturbs single entries by 1e-8
SYMMETRIC = 1e-6
ORTHONORMAL = 1e-8  # tolerance of S^T S = I


def _matrix(name: str, value: ArrayLike) -> np.ndarray:
    """Check overlaps with the teacher, (..., p, p*)."""
    shape = np.shape(value)
    if len(shape) < 2 or 0 in shape:
        raise ValueError(
            f"{name} has shape {shape}: give (p, p_star), student units x teacher units."
        )
    return checks.array(name, value, shape, "student units x teacher units")


def _overlaps(rho: RealArray, Q: RealArray) -> tuple[np.ndarray, np.ndarray]:
    """Check overlaps (..., p, p*) and (..., p, p).

    Positivity is not checked: trial states of an integrator may violate it slightly.
    """
    first = _matrix("rho", rho)
    second = checks.array(
        "Q",
        Q,
        (*first.shape[:-1], first.shape[-2]),
        "the student's Gram matrix, with the leading axes of rho",
    )
    asymmetry = float(np.abs(second - np.swapaxes(second, -1, -2)).max(initial=0.0))
    if asymmetry > SYMMETRIC * max(1.0, float(np.abs(second).max(initial=0.0))):
        raise ValueError(
            f"Q is not symmetric (largest difference {asymmetry:.3g}): "
            "give a symmetric matrix of inner products."
        )
    return first, second


def widths(p: RealArray, p_star: RealArray) -> tuple[int, int]:
    """Check the two widths."""
    return checks.integer("p", p, 1), checks.integer("p_star", p_star, 1)


def _learner_widths(p: RealArray, p_star: RealArray) -> tuple[int, int]:
    """Check the two widths, and that a solution of zero error exists."""
    p, p_star = widths(p, p_star)
    if p < p_star:
        raise checks.reject(
            "p", p, f"no solution of zero error exists for p < p_star. Use p >= {p_star}."
        )
    return p, p_star


def _trace(matrix: np.ndarray) -> np.ndarray:
    return np.trace(matrix, axis1=-2, axis2=-1)[..., None, None]


def risk(rho: RealArray, Q: RealArray) -> float | np.ndarray:
    """Population risk E[(y - yhat)^2], twice the library's.

    ::

        R = 1 + 2/p* - 2 T/p - 4 Tr(rho rho^T)/(p p*) + (T^2 + 2 Tr Q^2)/p^2,   T = Tr Q

    Parameters
    ----------
    rho : array_like
        Overlaps with the teacher, (..., p, p*).
    Q : array_like
        Gram matrices of the rows, (..., p, p).

    Returns
    -------
    float or ndarray
        The risk, one number for each leading index.

    Notes
    -----
    For Gaussian inputs, an orthonormal teacher and no label noise. Leading axes of rho and Q
    broadcast. Source: (23).

    Examples
    --------
    >>> round(float(sgd.papers.quadratic_networks.risk([[0.3], [0.1]], np.eye(2))), 4)
    2.8
    """
    rho, Q = _overlaps(rho, Q)
    p, p_star = rho.shape[-2:]
    T = np.trace(Q, axis1=-2, axis2=-1)
    aligned, square = (rho**2).sum(axis=(-2, -1)), (Q**2).sum(axis=(-2, -1))
    value = 1 + 2 / p_star - 2 * T / p - 4 * aligned / (p * p_star) + (T**2 + 2 * square) / p**2
    return float(value) if np.ndim(value) == 0 else value


def gradient_flow(rho: RealArray, Q: RealArray) -> tuple[np.ndarray, np.ndarray]:
    """Right-hand side (d rho/dt, dQ/dt) of gradient flow on the population risk (eta -> 0).

    ::

        d rho/dt = (4/p) [(1 + 2/p* - T/p) rho - (2/p) Q rho]
        dQ/dt    = (8/p) [(1 - T/p) Q + (2/p*) rho rho^T - (2/p) Q^2],   T = Tr Q

    Parameters
    ----------
    rho : array_like
        Overlaps with the teacher, (..., p, p*).
    Q : array_like
        Gram matrices of the rows, (..., p, p).

    Returns
    -------
    tuple of ndarray
        The derivatives d rho/dt and dQ/dt in t = eta alpha.

    Notes
    -----
    Leading axes are allowed. Source: (33), (38), (39).

    Examples
    --------
    >>> drho, dQ = sgd.papers.quadratic_networks.gradient_flow([[0.3], [0.1]], np.eye(2))
    >>> drho.round(4).tolist()
    [[0.6], [0.2]]
    """
    return _flow(*_overlaps(rho, Q))


def _flow(rho: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, p_star = rho.shape[-2:]
    T = _trace(Q)
    aligned = rho @ np.swapaxes(rho, -1, -2)
    d_rho = (4 / p) * ((1 + 2 / p_star - T / p) * rho - (2 / p) * Q @ rho)
    return d_rho, (8 / p) * ((1 - T / p) * Q + (2 / p_star) * aligned - (2 / p) * Q @ Q)


def drift(
    rho: RealArray, Q: RealArray, eta: float, *, noise: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Drift (d rho/d alpha, dQ/d alpha) of one-pass SGD at learning rate eta as N -> infinity.

    ::

        d rho/d alpha = eta * flow,   dQ/d alpha = eta * flow + <F F^T>,   A = rho rho^T, T = Tr Q
        <F F^T> = (16 eta^2/p^2) {
                  [noise + 1 + 2/p* - 2T/p + (T^2 + 2 Tr Q^2)/p^2 - 4 Tr A/(p p*)] Q
                  + (4/p* + 8/p*^2 - 4T/(p p*)) A + (4T/p^2 - 4/p) Q^2 + 8 Q^3/p^2
                  - (8/(p p*)) (A Q + Q A) }

    Parameters
    ----------
    rho : array_like
        Overlaps with the teacher, (..., p, p*).
    Q : array_like
        Gram matrices of the rows, (..., p, p).
    eta : float
        The learning rate.
    noise : float, default 0.0
        Variance of the label noise, which is zero in the paper.

    Returns
    -------
    tuple of ndarray
        The derivatives d rho/d alpha and dQ/d alpha.

    Notes
    -----
    For Gaussian inputs and an orthonormal teacher. Leading axes are allowed. With M = rho and
    lr = 2 eta this drift is 2 eta times ``sgd.functional.drift``. Source: (31)-(34); the first
    bracket of (34) is misprinted and must be the noise plus the risk (23).

    Examples
    --------
    >>> drho, dQ = sgd.papers.quadratic_networks.drift([[0.3], [0.1]], np.eye(2), 0.05)
    >>> drho.round(4).tolist()
    [[0.03], [0.01]]
    """
    rho, Q = _overlaps(rho, Q)
    eta = checks.number("eta", eta, 0.0)
    noise = checks.number("noise", noise, 0.0)
    p, p_star = rho.shape[-2:]
    d_rho, d_Q = _flow(rho, Q)
    T, aligned, square = _trace(Q), rho @ np.swapaxes(rho, -1, -2), Q @ Q
    loss = (
        noise
        + 1
        + 2 / p_star
        - 2 * T / p
        + (T**2 + 2 * _trace(square)) / p**2
        - 4 * _trace(aligned) / (p * p_star)
    )
    product = aligned @ Q
    noise_term = (
        loss * Q
        + (4 / p_star + 8 / p_star**2 - 4 * T / (p * p_star)) * aligned
        + (4 * T / p**2 - 4 / p) * square
    )
    symmetric = product + np.swapaxes(product, -1, -2)
    noise_term = noise_term + (8 / p**2) * square @ Q - (8 / (p * p_star)) * symmetric
    return eta * d_rho, eta * d_Q + (16 * eta**2 / p**2) * noise_term


def growth_rates(p: int, p_star: int) -> tuple[float, float]:
    """Rates (omega_rho, omega_Q) of the overlaps on the plateau.

    ::

        d rho/dt = omega_rho rho,   dQ_kk'/dt = - omega_Q Q_kk' (k != k')
        omega_rho = 8/(p p*),   omega_Q = 16/(p (p + 2))

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.

    Returns
    -------
    tuple of float
        The rates omega_rho and omega_Q.

    Notes
    -----
    Gradient flow to first order around Q = p/(p + 2) I, rho = 0. Differences of the norms decay at
    omega_Q too, their sum at 8/p. Source: (12); (11) and (35) have + omega_Q, but overlaps between
    students decay.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.growth_rates(2, 1)
    (4.0, 2.0)
    """
    p, p_star = widths(p, p_star)
    return 8 / (p * p_star), 16 / (p * (p + 2))


@dataclass(frozen=True)
class Plateau:
    """The plateau at rho = 0, its Gram matrix and its risk; as an array it is the Gram matrix.

    Attributes
    ----------
    Q : ndarray
        Gram matrix of the student.
    risk : float
        Risk on the plateau.

    Examples
    --------
    >>> round(sgd.papers.quadratic_networks.plateau(3, 2).risk, 4)
    1.4
    """

    Q: np.ndarray
    risk: float

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.Q, dtype=dtype)


def plateau(p: int, p_star: int | None = None) -> Plateau:
    """Gram matrix and risk of the plateau.

    ::

        Q = p/(p + 2) I,   rho = 0,   R = 1 + 2/p* - p/(p + 2)

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int, optional
        Width p* of the teacher. Without it the risk is NaN.

    Returns
    -------
    Plateau
        The Gram matrix Q and the risk.

    Notes
    -----
    For gradient flow. Rows are orthogonal to each other and to the teacher, with the norm of the
    smallest risk. The overlaps do not depend on the teacher, the risk does. Source: (10) and
    section 7.3.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.plateau(2, 1).Q.tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    p, teachers = widths(p, 1 if p_star is None else p_star)
    norm = p / (p + 2)
    return Plateau(norm * np.eye(p), float("nan") if p_star is None else 1 + 2 / teachers - norm)


def loss_reduction(
    t: RealArray, p: int, p_star: int, epsilon: float, *, since: str = "plateau"
) -> float | np.ndarray:
    """Mean relative decrease (R(0) - R(t))/R(0) of the risk during the escape from the plateau.

    ::

        4 epsilon^2 [exp(16 t/(p p*)) - 1] / (1 + 2/p* - p/(p + 2))

    Parameters
    ----------
    t : float or ndarray
        Time t = eta alpha.
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    epsilon : float
        Standard deviation of the overlaps at t = 0.
    since : str, default "plateau"
        Origin of t, "plateau" or "start".

    Returns
    -------
    float or ndarray
        The relative decrease at each time.

    Notes
    -----
    Gradient flow from overlaps rho ~ N(0, epsilon^2), to first order in epsilon^2, so that the
    formula holds while the value is small. With ``since="plateau"`` the origin t = 0 is on the
    plateau. With ``since="start"`` it is Q(0) = I, where rho has that size: while the norms shrink,
    rho^2 grows as Tr Q exp(16 t/(p p*)), so that the value has a factor p/(p + 2); R(0) is the risk
    of the plateau in both cases. Source: (13), whose t is t/p of the other equations of the paper;
    here t = eta alpha.

    Examples
    --------
    >>> round(float(sgd.papers.quadratic_networks.loss_reduction(1.0, 3, 2, 0.01)), 5)
    0.00383
    """
    p, p_star = widths(p, p_star)
    epsilon = checks.number("epsilon", epsilon, above=0.0)
    checks.choice("since", since, ("plateau", "start"))
    times = _times(t)
    size = epsilon**2 * (p / (p + 2) if since == "start" else 1.0)
    value = (
        4
        * size
        * np.expm1(2 * growth_rates(p=p, p_star=p_star)[0] * times)
        / plateau(p=p, p_star=p_star).risk
    )
    return float(value) if np.ndim(value) == 0 else value


def _times(t: RealArray, above: bool = False) -> np.ndarray:
    values = np.asarray(t, dtype=np.float64)
    if not np.all(np.isfinite(values)) or np.any(values < 0) or (above and np.any(values == 0)):
        raise checks.reject(
            "t", t, "give times t = eta alpha " + ("above 0." if above else "not below 0.")
        )
    return values


def _polar(rho: np.ndarray, name: str) -> np.ndarray:
    """Polar factor rho (rho^T rho)^(-1/2), for any leading axes and full rank."""
    p, p_star = rho.shape[-2:]
    if p < p_star:
        raise ValueError(
            f"{name} has shape {rho.shape}: no solution of zero error exists for "
            f"p = {p} < p_star = {p_star}. Use p >= p_star."
        )
    left, values, right = np.linalg.svd(rho, full_matrices=False)
    if np.any(values[..., -1] <= FULL_RANK * values[..., 0]):
        raise ValueError(
            f"{name} does not have full rank (smallest singular value "
            f"{values[..., -1].min():.3g}): a teacher direction without overlap is never learned. "
            "Give overlaps of rank p_star."
        )
    return left @ right


def closest_solution(rho0: RealArray) -> np.ndarray:
    """Zero-error solution closest to a start, as the p x p* matrix S with S^T S = I.

    ::

        S = rho0 (rho0^T rho0)^(-1/2),   W = sqrt(p/p*) S W*

    Parameters
    ----------
    rho0 : array_like
        Initial overlaps, (..., p, p*).

    Returns
    -------
    ndarray
        The matrices S, (..., p, p*).

    Notes
    -----
    A run ends there if Q(0) commutes with rho0 rho0^T (``conserved_S``), for instance if Q(0) = I;
    otherwise it ends nearby. Requires p >= p* and rho0 of rank p*. Leading axes are allowed.
    Source: (19).

    Examples
    --------
    >>> S = sgd.papers.quadratic_networks.closest_solution([[0.1, 0.0], [0.0, 0.2], [0.0, 0.0]])
    >>> S.round(4).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    return _polar(_matrix("rho0", rho0), "rho0")


def solution_overlaps(S: RealArray) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps (rho, Q) at the zero-error solution S.

    ::

        rho = sqrt(p/p*) S,   Q = (p/p*) S S^T

    Parameters
    ----------
    S : array_like
        Solution, (..., p, p*), with S^T S = I.

    Returns
    -------
    tuple of ndarray
        The overlaps rho and Q.

    Notes
    -----
    For an orthonormal teacher. Leading axes are allowed. Source: (20), (21), where the sum in (21)
    is over the second index of S.

    Examples
    --------
    >>> rho, Q = sgd.papers.quadratic_networks.solution_overlaps([[1.0], [0.0]])
    >>> rho.round(4).tolist()
    [[1.4142], [0.0]]
    """
    S = _matrix("S", S)
    p, p_star = _learner_widths(*S.shape[-2:])
    transposed = np.swapaxes(S, -1, -2)
    deviation = float(np.abs(transposed @ S - np.eye(p_star)).max())
    if deviation > ORTHONORMAL:
        raise ValueError(
            f"S^T S differs from the identity by {deviation:.3g}: "
            "give S with orthonormal columns, as closest_solution returns it."
        )
    return math.sqrt(p / p_star) * S, (p / p_star) * S @ transposed


def conserved_S(trajectory: xr.Dataset) -> xr.DataArray:
    """Polar factor S(t) = M (M^T M)^(-1/2) along a trajectory; NaN where a run has diverged.

    Parameters
    ----------
    trajectory : xarray.Dataset
        Result of ``solve_ode`` or ``simulate``.

    Returns
    -------
    xarray.DataArray
        The matrices S, with dims (run, time, unit, signal).

    Notes
    -----
    In the ODE of square activations with an orthonormal teacher, without the sphere, S is constant
    if and only if Q(0) and A(0) = M(0) M(0)^T commute: at any learning rate, with label noise and
    with weight decay (the paper's section 7.4 assumes this closure for small eta). Reason: dM/dt =
    h(Q) M, and dQ/dt, dA/dt are made of Q and A, so matrices that commute at the start always do;
    then M(t) = F(t) M(0) with F > 0 symmetric and commuting with A(0), which does not change the
    polar factor. The paper's case is Q(0) = I. Otherwise S drifts: for rows N(0, I/N), p = 3, p* =
    2, eta = 0.12, the largest entry of ``|S(end) - S(0)|`` is on average 0.052, 0.018, 0.0057 at N
    = 100, 1000, 10000, as N^(-1/2). In a simulation the noise of SGD moves S as well. Eqs. (22),
    (37).

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> sgd.papers.quadratic_networks.conserved_S(path).shape
    (1, 2, 2, 1)
    """
    if not isinstance(trajectory, xr.Dataset) or "M" not in trajectory:
        raise checks.reject(
            "trajectory",
            type(trajectory).__name__,
            "give the Dataset of solve_ode or simulate, with its variable M.",
        )
    M = trajectory["M"]
    dims = ("run", "time", "unit", "signal")
    if set(M.dims) != set(dims):
        raise checks.reject(
            "trajectory",
            tuple(M.dims),
            f"M must have the dims {dims}. Keep run and time in selections.",
        )
    M = M.transpose(*dims)
    values = np.asarray(M, dtype=np.float64)
    good = np.isfinite(values).all(axis=(-2, -1))
    result = np.full(values.shape, np.nan)
    result[good] = _polar(values[good], "M")
    return M.copy(data=result).rename("S").assign_attrs(long_name="S = M (M^T M)^(-1/2)")


def largest_stable_rate(p: int, p_star: int) -> float:
    """Learning rate above which SGD leaves the zero-error solutions, however close it starts.

    ::

        eta_max = p p* / (4 (p* + 2))

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.

    Returns
    -------
    float
        The rate eta_max.

    Notes
    -----
    Let C = Q - rho rho^T be the part orthogonal to the teacher, in the coordinates of the
    solution. Near a solution SGD has d Tr C/dt = - (16/(p p*)) (1 - eta/eta_max) Tr C. The bound is
    local: from afar a run may diverge at smaller eta. This formula is not in the paper, whose
    figure 2 finds numerically that the best learning rate is linear in p.

    Examples
    --------
    >>> round(sgd.papers.quadratic_networks.largest_stable_rate(3, 2), 4)
    0.375
    """
    p, p_star = _learner_widths(p, p_star)
    return p * p_star / (4 * (p_star + 2))


def _share_of_largest(eta: RealArray, p: int, p_star: int) -> float:
    """Ratio eta/eta_max, which must be below 1."""
    eta = checks.number("eta", eta, 0.0)
    most = largest_stable_rate(p=p, p_star=p_star)
    if eta >= most:
        raise checks.reject(
            "eta", eta, f"SGD diverges. Use eta < p p_star/(4 (p_star + 2)) = {most:.6g}."
        )
    return eta / most


def tail_rate(p: int, eta: float = 0.0) -> float:
    """Final decay rate of the risk for p = p*: R ~ exp(-rate t).

    ::

        rate = (16/p^2) (1 - eta/eta_max),   eta_max = p^2/(4 (p + 2))

    Parameters
    ----------
    p : int
        Width p of the student.
    eta : float, default 0.0
        The learning rate.

    Returns
    -------
    float
        The rate, per unit of t = eta alpha.

    Notes
    -----
    Twice the smallest positive eigenvalue 8/p^2 of the Hessian at the solution (section 7.2.2),
    because R is quadratic in the distance; the noise of SGD slows it down as in
    ``largest_stable_rate``. This formula is not in the paper.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.tail_rate(2)
    4.0
    """
    p = checks.integer("p", p, 1)
    return (16 / p**2) * (1 - _share_of_largest(eta, p, p))


def tail(
    p: int,
    p_star: int,
    t: RealArray,
    *,
    eta: float = 0.0,
    rho0: RealArray | None = None,
    Q0: RealArray | None = None,
) -> float | np.ndarray:
    """Risk of noiseless SGD at late times: a power law for p > p*, an exponential for p = p*.

    ::

        p > p*:  R = p^2 (p - p*) (p* + 2) / (128 (p + 2) t^2) * [1 + (p*/(p* + 2)) x/(1 - x)]
                 x = eta/eta_max
        p = p*:  R = (4/p^2) exp(-16 t/p^2) [Tr (rho0^T Q0^-1 rho0)^-1 - p]   (eta -> 0)

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    t : float or ndarray
        Time t = eta alpha.
    eta : float, default 0.0
        The learning rate.
    rho0 : array_like, optional
        Initial overlaps, (..., p, p*).
    Q0 : array_like, optional
        Initial Gram matrix of the student. Defaults to the identity.

    Returns
    -------
    float or ndarray
        The risk at each time.

    Notes
    -----
    The prefactor of the power law does not depend on the start: the surplus units shrink as
    q = p^2 (p* + 2)/(16 (p + 2) t), all at the same rate. Its relative error, including the time of
    escape, is of order log(t)/t; rho0 must have rank p*, and the surplus units their full rank
    p - p*. The prefactor of the exponential depends on the start and is exact as t -> infinity, for
    any rho0 of full rank: gradient flow multiplies the components of W along and orthogonal to the
    teacher from the left by the same matrix F(t), the former also by exp(8 t/p^2), and the limit of
    F is known. At eta > 0 no closed prefactor is known; ``tail_rate`` gives the rate. These
    formulas are not in the paper.

    Examples
    --------
    >>> round(float(sgd.papers.quadratic_networks.tail(3, 2, 10.0)), 6)
    0.000562
    """
    p, p_star = _learner_widths(p, p_star)
    share = _share_of_largest(eta, p, p_star)
    times = _times(t, above=True)
    if p > p_star:
        if rho0 is not None or Q0 is not None:
            raise checks.reject(
                "rho0",
                rho0,
                f"for p > p_star = {p_star} the tail does not depend on the start. "
                "Omit rho0 and Q0.",
            )
        slowed = 1 + p_star / (p_star + 2) * share / (1 - share)
        value = p**2 * (p - p_star) * (p_star + 2) / (128 * (p + 2) * times**2) * slowed
        return float(value) if np.ndim(value) == 0 else value
    if share > 0:
        raise checks.reject(
            "eta",
            eta,
            "for p = p_star the prefactor is known only as eta -> 0. "
            "Use eta=0, or tail_rate for the rate alone.",
        )
    if rho0 is None:
        raise checks.reject(
            "rho0",
            rho0,
            "for p = p_star the prefactor depends on the start. Give the initial overlaps, (p, p).",
        )
    rho = checks.array("rho0", rho0, (p, p), "student units x teacher units")
    _polar(rho, "rho0")
    Q = checks.array("Q0", np.eye(p) if Q0 is None else Q0, (p, p), "the student's Gram matrix")
    checks.gram_matrix("Q0", Q)
    checks.gram_matrix("Q0 - rho0 rho0^T", Q - rho @ rho.T)
    inverse = np.linalg.inv(rho)
    value = (
        (4 / p**2)
        * np.trace(inverse @ (Q - rho @ rho.T) @ inverse.T)
        * np.exp(-tail_rate(p=p) * times)
    )
    return float(value) if np.ndim(value) == 0 else value
