"""`FixedPoint`: one root of the drift with its risk and linear stability."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sgdynamics.problems.overlap_starts import Start


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
        The head, (unit,); of a problem with a top all its numbers, (entry,).
    risk : float
        The population risk.
    excess_risk : float
        The risk minus the contribution of label noise; NaN if that is not defined.
    residual : float
        Norm of the drift.
    eigenvalues : ndarray of complex
        Eigenvalues of the drift's Jacobian, by decreasing real part.
    verdict : str
        "saddle" if a direction grows. "stable" if all directions decay, apart from the
        ``manifold_dimension`` directions along a family of roots through this one. "marginal" if
        more eigenvalues vanish, so that the linear part does not decide (for example at the optimum
        of a network with more units than its teacher, which is approached as a power law).
    manifold_dimension : int
        Dimension of the family of roots to which this root belongs; 0 if it is isolated.
    physical : bool
        Whether Omega is positive semi-definite, so that rows with these overlaps exist.
    error : float
        Error of the root due to the errors of the expectations.
    found : int
        Number of starts that led to this root.
    M_blocks : ndarray
        M in each covariance block.
    Q_blocks : ndarray
        Q in each covariance block.
    top : dict of ndarray or None
        The leaves of the top by name; None for a problem without a top.

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
    top: dict[str, np.ndarray] | None = None

    @property
    def stable(self) -> bool:
        """Whether the verdict is "stable"."""
        return self.verdict == "stable"

    @property
    def start(self) -> Start:
        """The point as an initial condition, for the solvers and ``hessian_spectrum``."""
        return Start(self.M_blocks[None], self.Q_blocks[None], self.a[None])
