"""All fixed points of the ODE for spiked tensors, from equations in one unknown.

With A = 2k R^(2k-2), ridge al and c = lr/B, both rates vanish where

    m = 0 or 2k snr m^(k-2) = A + al,        (A + al) r2 = c A.

- m = 0: r2 = 0, or r2^(k-2) (c - r2) = al/(2k);
- m != 0, k = 2: R^2 = snr - al/4 and r2 = c (1 - al/(4 snr));
- m != 0, k >= 3: A is the only unknown, with m = ((A + al)/(2k snr))^(1/(k-2)), r2 = c A/(A + al)
  and m^2 + r2 = (A/(2k))^(1/(k-1)).

For odd k only m > 0 is possible. The last equation has at most two roots with al = 0; with a ridge,
examples with four are known. With al = 0 these are Proposition 3.2, (D.4) and (D.5) of
"High-dimensional limit theorems for SGD".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.base.roots import find_minimum, find_root
from sgdynamics.dynamics.spiked_equations import drift, equation_parameters, jacobian
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor, check_spiked_problem

# Points in the bounded range of log A between which sign changes are searched.
GRID = 4001
# Two roots that are closer than rounding can separate are one double root.
TOUCHING = 1e-13
# Absolute tolerance of roots, which are found to rounding.
SMALLEST = 1e-300
# Eigenvalues below this, relative to the largest, are 0.
NULL = 1e-6


@dataclass(frozen=True)
class SpikedFixedPoint:
    """One fixed point of the ODE for a spiked tensor.

    Attributes
    ----------
    m : float
        Correlation with the spike.
    r2 : float
        Squared norm orthogonal to the spike.
    risk : float
        The population risk.
    eigenvalues : ndarray of complex
        Eigenvalues of the drift's Jacobian, by decreasing real part.
    verdict : str
        "saddle" if a direction grows, "stable" if all decay, "marginal" if an eigenvalue vanishes,
        so that the linear part does not decide. At x = 0 with k >= 3 and no ridge both eigenvalues
        vanish, but m' = 2k snr m^(k-1) grows nevertheless, so that this point is a saddle.
    residual : float
        Norm of the drift.
    """

    m: float
    r2: float
    risk: float
    eigenvalues: np.ndarray
    verdict: str
    residual: float

    @property
    def stable(self) -> bool:
        """Whether the verdict is "stable"."""
        return self.verdict == "stable"

    @property
    def excess_risk(self) -> float:
        """The risk itself, whose smallest value is 0 (at x = snr^(1/k) v)."""
        return self.risk

    @property
    def start(self) -> SpikedStart:
        """The point as an initial condition, for the solvers."""
        return SpikedStart(np.array([self.m]), np.array([self.r2]))


def spiked_fixed_points(problem: SpikedTensor, algorithm: OnePassSGD) -> list[SpikedFixedPoint]:
    """All fixed points of the ODE for n -> infinity, by increasing risk; for even k, +m before -m.

        2 m (k snr m^(k-2) - k R^(2k-2)) = al m,      4k R^(2k-2) (r2 - lr/B) = - 2 al r2

    (Proposition 3.2, with ridge and batch). With lr = 0 they are those of gradient flow. Below the
    critical snr, or with a large ridge, x = 0 is the only one.
    """
    check_spiked_problem(problem)
    validate_algorithm(algorithm)
    constant_rate(algorithm, "spiked tensors")
    k, c, ridge = problem.order, np.float64(algorithm.lr / algorithm.batch), problem.ridge
    # High powers may overflow on the way to a root. A bisection needs only the sign of an infinite
    # value.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        solutions = [(0.0, float(r2)) for r2 in _uncorrelated_solutions(k, c, ridge)]
        for m, r2 in correlated_solutions(k, problem.snr, c, ridge):
            solutions += [(m, r2)] if k % 2 else [(m, r2), (-m, r2)]
        points = [_classify(problem, algorithm, m, r2) for m, r2 in solutions]
    return sorted(points, key=lambda point: (point.risk, -point.m))


def _uncorrelated_solutions(k: int, c: float, ridge: float) -> list[float]:
    """r2 of the fixed points with m = 0, which solve r2^(k-2) (c - r2) = al/(2k) unless r2 = 0."""
    if c == 0.0:
        return [0.0]
    if k == 2:
        return [0.0, c - ridge / 4] if ridge < 4 * c else [0.0]
    if ridge == 0.0:
        return [0.0, c]

    def excess(r2: float) -> float:
        return np.float64(r2) ** (k - 2) * (c - r2) - ridge / (2 * k)

    # The left side increases up to this r2 and decreases beyond it.
    maximum = c * (k - 2) / (k - 1)
    if excess(maximum) < 0:
        return [0.0]
    first = find_root(excess, 0.0, maximum, xtol=SMALLEST)
    return [0.0, first, find_root(excess, maximum, c, xtol=SMALLEST)]


def correlated_solutions(k: int, snr: float, c: float, ridge: float) -> list[tuple[float, float]]:
    """(m, r2) of the fixed points with m > 0, by increasing m."""
    if k == 2:
        total = snr - ridge / 4
        r2 = c * (1 - ridge / (4 * snr))
        return [(float(np.sqrt(total - r2)), r2)] if total > 0 and total - r2 > 0 else []
    if ridge == 0.0 and c == 0.0:
        return [(snr ** (1 / k), 0.0)]

    def solve_at(log_A: float) -> tuple[float, float, float]:
        """m, r2 and R^2 as functions of A, each from its own equation."""
        A = np.exp(log_A)
        m = ((A + ridge) / (2 * k * snr)) ** (1 / (k - 2))
        return m, c * A / (A + ridge), (A / (2 * k)) ** (1 / (k - 1))

    def gap(log_A: float) -> float:
        """The logarithm of (m^2 + r2)/R^2, which vanishes at a root."""
        m, r2, total = solve_at(log_A)
        return np.log((m**2 + r2) / total)

    # R^2 is larger than (al/(2k snr))^(2/(k-2)), or than c if al = 0, and smaller than snr^(2/k).
    # The range is extended slightly, so that rounding excludes no root.
    least = c if ridge == 0.0 else (ridge / (2 * k * snr)) ** (2 / (k - 2))
    most = snr ** (2 / k)
    if least >= most:
        return []
    low, high = (np.log(2 * k) + (k - 1) * np.log(bound) for bound in (least, most))
    grid = np.linspace(low - 1e-3, high + 1e-3, GRID)
    gaps = np.array([gap(log_A) for log_A in grid])
    # A pair of roots that is closer than the grid spacing shows as a positive local minimum. The
    # grid point is moved to the minimum itself, where the gap is 0 or negative if they exist.
    inner = gaps[1:-1]
    is_dip = (inner < gaps[:-2]) & (inner < gaps[2:]) & (inner > 0)
    for i in np.flatnonzero(is_dip) + 1:
        minimum = find_minimum(gap, grid[i - 1], grid[i + 1])
        grid[i] = minimum.x
        gaps[i] = minimum.value if abs(minimum.value) > TOUCHING else 0.0
    roots = [grid[i] for i in np.flatnonzero(gaps == 0.0)]
    for i in np.flatnonzero(gaps[:-1] * gaps[1:] < 0):
        roots.append(find_root(gap, grid[i], grid[i + 1], xtol=SMALLEST))
    return [(float(m), float(r2)) for m, r2, _ in sorted(solve_at(root) for root in roots)]


def _classify(
    problem: SpikedTensor, algorithm: OnePassSGD, m: float, r2: float
) -> SpikedFixedPoint:
    """The fixed point (m, r2) with its risk and linear stability."""
    parameters = equation_parameters(problem, algorithm, None)
    eigenvalues = np.linalg.eigvals(jacobian(parameters, m, r2)).astype(complex)
    eigenvalues = eigenvalues[np.argsort(-np.real(eigenvalues), kind="stable")]
    threshold = NULL * np.abs(eigenvalues).max()
    # All eigenvalues vanish only at x = 0, where terms of higher order grow.
    is_growing = eigenvalues[0].real > threshold or not eigenvalues.any()
    verdict = "stable" if eigenvalues[0].real < -threshold else "marginal"
    if is_growing:
        verdict = "saddle"
    rates = np.asarray(drift(parameters, np.float64(m), np.float64(r2)))
    residual = float(np.linalg.norm(rates))
    return SpikedFixedPoint(m, r2, float(problem.risk(m, r2)), eigenvalues, verdict, residual)
