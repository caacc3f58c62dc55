"""Population risk, critical points for p = 1, and the covariance of one step's increments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.escaping_mediocrity.formulas import _plain, _values


def risk(
    M: RealArray, Q: RealArray, noise: RealArray = 0.0, rho: RealArray = 1.0
) -> float | np.ndarray:
    """Population risk of a squared student with a head of ones and one squared teacher.

    ::

        R = (3 rho^2 + Delta)/2 - (rho Tr Q + 2 |m|^2)/p + ((Tr Q)^2 + 2 Tr[Q^2])/(2 p^2)

    Parameters
    ----------
    M : array_like
        Overlaps with the teacher, (..., p) or (..., p, 1).
    Q : array_like
        Gram matrices of the rows, (..., p, p).
    noise : float or ndarray, default 0.0
        Variance Delta of the label noise.
    rho : float or ndarray, default 1.0
        The squared norm of the teacher.

    Returns
    -------
    float or ndarray
        The risk R, one number for each leading index.

    Notes
    -----
    M is (..., p), or (..., p, 1) as the library's results have it, Q is (..., p, p); leading axes
    broadcast, also with ``noise`` and ``rho``. Source: (6) and (34), where rho^2 is missing.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.risk([0.3, 0.1], np.eye(2))), 4)
    1.4
    """
    m, q = _values("M", M), _values("Q", Q)
    if q.ndim < 2 or q.shape[-1] != q.shape[-2] or q.shape[-1] == 0:
        raise ValueError(
            f"Q has shape {q.shape}: give shape (..., p, p), the overlaps of the p rows."
        )
    p = q.shape[-1]
    if m.shape[-2:] == (p, 1) and (p > 1 or m.ndim == q.ndim):
        m = m[..., 0]
    if m.ndim == 0 or m.shape[-1] != p:
        raise ValueError(
            f"M has shape {m.shape}: give shape (..., {p}) or (..., {p}, 1), "
            f"the overlaps of the {p} rows of Q with the teacher."
        )
    noise, rho = _values("noise", noise, least=0), _values("rho", rho, least=0)
    trace = np.trace(q, axis1=-2, axis2=-1)
    square = (q**2).sum(axis=(-2, -1))
    return _plain(
        (3 * rho**2 + noise) / 2
        - (rho * trace + 2 * (m**2).sum(axis=-1)) / p
        + (trace**2 + 2 * square) / (2 * p**2)
    )


def covariance_p1(m: RealArray, gamma: RealArray, noise: RealArray) -> np.ndarray:
    """Covariance of one step's increments of (m, Q) for p = 1, in units of gamma/d.

    The state is on the sphere; the increments are those before the projection.

    Parameters
    ----------
    m : float or ndarray
        The overlap with the teacher.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    ndarray
        Covariance matrices of (m, Q), of shape (..., 2, 2).

    Notes
    -----
    With s = 1 - m^2, lambda = w.x, lambda* = w*.x and E = y - f, the increments are
    (gamma/d) (U, V), U = 2 E lambda lambda* and V = 4 E lambda^2 + 4 gamma E^2 lambda^2, at
    q = rho = 1 and d -> infinity (``|x|^2`` = 1). Then

    ::

        Var U = 4 [Delta (1 + 2 m^2) + 12 s (1 + 4 m^2)]
        Cov   = 24 m (Delta + 20 s)(1 - 6 gamma s)
        Var V = 48 Delta + 320 s (3 + s) - 64 gamma s (17 Delta + 348 s)
                + 128 gamma^2 [Delta^2 + Delta s (42 + 18 s) + 36 s^2 (17 + 10 s)]

    In the paper's time the noise of the SDE is sqrt(gamma/d) times a square root of this matrix C.
    Projected on the sphere, as in (27) and (41), m has the variance v.C v with v = (1, -m/2).
    Source: (62), where gamma must read 2 gamma in Cov and Var V.

    Examples
    --------
    >>> sgd.papers.escaping_mediocrity.covariance_p1(0.5, 0.1, 0.0).round(2).tolist()
    [[72.0, 99.0], [99.0, 282.24]]
    """
    m, gamma, noise = (
        _values("m", m, least=-1),
        _values("gamma", gamma, least=0),
        _values("noise", noise, least=0),
    )
    if np.any(m > 1):
        raise checks.reject("m", float(m.max()), "give overlaps between -1 and 1.")
    s = (1 - m) * (1 + m)
    variance_m = 4 * (noise * (1 + 2 * m**2) + 12 * s * (1 + 4 * m**2)) + 0 * gamma
    covariance = 24 * m * (noise + 20 * s) * (1 - 6 * gamma * s)
    second = noise**2 + noise * s * (42 + 18 * s) + 36 * s**2 * (17 + 10 * s)
    variance_q = (
        48 * noise
        + 320 * s * (3 + s)
        - 64 * gamma * s * (17 * noise + 348 * s)
        + 128 * gamma**2 * second
    )
    return np.stack(
        [np.stack([variance_m, covariance], -1), np.stack([covariance, variance_q], -1)], -2
    )


@dataclass(frozen=True)
class CriticalPoint:
    """A critical point of the p = 1 population risk, up to rotations about the teacher.

    Attributes
    ----------
    kind : str
        "maximum", "saddle" or "minimum".
    risk : float
        Risk R, including the label noise.
    overlap : float
        Overlap m = w.w*.
    norm : float
        Squared norm q.
    eigenvalues : tuple of (float, int or str)
        Eigenvalues of the Hessian with multiplicities, which are integers if d is set and text
        otherwise.

    Examples
    --------
    >>> point = sgd.papers.escaping_mediocrity.critical_points(d=10)[-1]
    >>> point.risk, point.eigenvalues
    (0.0, ((4.0, 9), (12.0, 1)))
    """

    kind: str
    risk: float
    overlap: float
    norm: float
    eigenvalues: tuple[tuple[float, int | str], ...]


def critical_points(
    rho: float = 1.0, noise: float = 0.0, d: int | None = None, constraint: str | None = None
) -> tuple[CriticalPoint, ...]:
    """Critical points of the p = 1 population risk, with the spectra of their Hessians.

    ::

        R = Delta/2 + (3 rho^2 + 3 q^2 - 4 m^2 - 2 rho q)/2
        Hessian = 2 [(3 q - rho) I + 6 w w^T - 2 w* w*^T]

        w                         kind      R - Delta/2   eigenvalues
        0                         maximum   3 rho^2/2     -6 rho once, -2 rho (d - 1 times)
        w.w* = 0, q = rho/3       saddle    4 rho^2/3     -4 rho once, 0 (d - 2 times), 4 rho once
        +-w*                      minimum   0             4 rho (d - 1 times), 12 rho once

    Parameters
    ----------
    rho : float, default 1.0
        The squared norm of the teacher.
    noise : float, default 0.0
        Variance Delta of the label noise.
    d : int, optional
        Dimension. With it multiplicities are integers.
    constraint : str, optional
        "sphere" fixes the norm of the row.

    Returns
    -------
    tuple of CriticalPoint
        The critical points, by decreasing risk.

    Notes
    -----
    With ``constraint="sphere"``, ``|w|^2`` = rho, R = Delta/2 + 2 (rho^2 - m^2) and the Hessian
    (4/rho) m^2 P - 4 (P w*)(P w*)^T, with P = I - w w^T/rho, on the d - 1 tangent directions:
    orthogonal to w* (a saddle, and the highest risk) -4 rho once and 0 (d - 2 times), +-w*
    (minimum) 4 rho (d - 1 times). Units: x ~ N(0, I_d), ``|w|^2 = q, |w*|^2`` = rho; in the paper's
    x ~ N(0, I/d) the Hessian is this one over d. Source: appendix G; (72) and (75)-(81), (18),
    (92), (94) corrected.

    Examples
    --------
    >>> [point.kind for point in sgd.papers.escaping_mediocrity.critical_points()]
    ['maximum', 'saddle', 'minimum', 'minimum']
    """
    rho, noise = checks.number("rho", rho, above=0), checks.number("noise", noise, 0)
    checks.choice("constraint", constraint, (None, "sphere"))
    if d is not None:
        d = checks.integer("d", d, 2)

    def multiplicity(excluded: int) -> int | str:
        """d minus a number of directions, as an integer where d is known."""
        return f"d - {excluded}" if d is None else d - excluded

    floor = noise / 2
    if constraint == "sphere":
        minimum_eigenvalues = ((4 * rho, multiplicity(1)),)
        return (
            CriticalPoint(
                "saddle", floor + 2 * rho**2, 0.0, rho, ((-4 * rho, 1), (0.0, multiplicity(2)))
            ),
            CriticalPoint("minimum", floor, rho, rho, minimum_eigenvalues),
            CriticalPoint("minimum", floor, -rho, rho, minimum_eigenvalues),
        )
    minimum_eigenvalues = ((4 * rho, multiplicity(1)), (12 * rho, 1))
    return (
        CriticalPoint(
            "maximum", floor + 1.5 * rho**2, 0.0, 0.0, ((-6 * rho, 1), (-2 * rho, multiplicity(1)))
        ),
        CriticalPoint(
            "saddle",
            floor + 4 * rho**2 / 3,
            0.0,
            rho / 3,
            ((-4 * rho, 1), (0.0, multiplicity(2)), (4 * rho, 1)),
        ),
        CriticalPoint("minimum", floor, rho, rho, minimum_eigenvalues),
        CriticalPoint("minimum", floor, -rho, rho, minimum_eigenvalues),
    )
