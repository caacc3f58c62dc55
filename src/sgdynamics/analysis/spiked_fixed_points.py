"""Fixed points of the ODE for spiked tensors: all of them, from equations in one unknown.

With A = 2k R^(2k-2), ridge al and c = lr/B, both rates vanish where

    m = 0 or 2k snr m^(k-2) = A + al,        (A + al) r2 = c A.

- m = 0: r2 = 0, or r2^(k-2) (c - r2) = al/(2k);
- m != 0, k = 2: R^2 = snr - al/4 and r2 = c (1 - al/(4 snr));
- m != 0, k >= 3: A is the one unknown, m = ((A + al)/(2k snr))^(1/(k-2)), r2 = c A/(A + al), and m^2 + r2 = (A/(2k))^(1/(k-1)).

k odd: only m > 0. The last has at most two roots with al = 0, and has been seen to have four with a ridge. With al = 0 these are
Proposition 3.2, (D.4) and (D.5) of "High-dimensional limit theorems for SGD".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.dynamics.spiked_equations import drift, equation_parameters, jacobian
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor, check_spiked_problem

GRID = 4001  # points over the bounded range of log A in which a sign change is looked for
TOUCHING = 1e-13  # two roots closer than rounding can tell apart: the curves touch
NULL = 1e-6  # an eigenvalue below this share of the largest is 0


@dataclass(frozen=True)
class SpikedFixedPoint:
    """One fixed point of the ODE, with the eigenvalues of its Jacobian (complex, growing first).

    `verdict`: "saddle" if something grows, "stable" if all decays, "marginal" if an eigenvalue is null so that the linear part does not
    decide. At x = 0 with k >= 3 and no ridge both are null, but m' = 2k snr m^(k-1) grows all the same: a saddle. `residual` is the norm
    of the drift there.
    """

    m: float
    r2: float
    risk: float
    eigenvalues: np.ndarray
    verdict: str
    residual: float

    @property
    def stable(self) -> bool:
        return self.verdict == "stable"

    @property
    def excess_risk(self) -> float:
        """The same as the risk, whose least value is 0 (at x = snr^(1/k) v)."""
        return self.risk

    @property
    def start(self) -> SpikedStart:
        """The point as a start, for the solvers."""
        return SpikedStart(np.array([self.m]), np.array([self.r2]))


def spiked_fixed_points(problem: SpikedTensor, algorithm: OnePassSGD) -> list[SpikedFixedPoint]:
    """Every fixed point of the ODE as n -> infinity (lr = 0: of gradient flow), by increasing risk; +m before -m where k is even.

        2 m (k snr m^(k-2) - k R^(2k-2)) = al m,      4k R^(2k-2) (r2 - lr/B) = - 2 al r2

    Below the critical snr, or with a ridge that nothing survives, the list is shorter: x = 0 is always in it. Proposition 3.2, with
    ridge and batch.
    """
    check_spiked_problem(problem)
    validate_algorithm(algorithm)
    constant_rate(algorithm, "spiked tensors")
    k, c, ridge = problem.order, np.float64(algorithm.lr / algorithm.batch), problem.ridge
    # high powers leave float64 on the way to a root: infinite on one side is an answer for a bisection
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        points = [(0.0, float(r2)) for r2 in _without_signal(k, c, ridge)]
        for m, r2 in correlated(k, problem.snr, c, ridge):
            points += [(m, r2)] if k % 2 else [(m, r2), (-m, r2)]
        found = [_described(problem, algorithm, m, r2) for m, r2 in points]
    return sorted(found, key=lambda point: (point.risk, -point.m))


def _without_signal(k: int, c: float, ridge: float) -> list[float]:
    """r2 of the fixed points with m = 0."""
    found = [0.0]
    if c == 0.0:
        return found
    if k == 2:
        return found + ([c - ridge / 4] if ridge < 4 * c else [])
    if ridge == 0.0:
        return [*found, c]

    def excess(r2: float) -> float:
        return np.float64(r2) ** (k - 2) * (c - r2) - ridge / (2 * k)

    top = c * (k - 2) / (k - 1)
    if excess(top) < 0:
        return found
    return [*found, _root(excess, 0.0, top), _root(excess, top, c)]


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = optimize.brentq(function, low, high, xtol=1e-300)
    return float(found)


def correlated(k: int, snr: float, c: float, ridge: float) -> list[tuple[float, float]]:
    """(m, r2) of the fixed points with m > 0, by increasing m."""
    if k == 2:
        total = snr - ridge / 4
        r2 = c * (1 - ridge / (4 * snr))
        return [(float(np.sqrt(total - r2)), r2)] if total > 0 and total - r2 > 0 else []
    if ridge == 0.0 and c == 0.0:
        return [(snr ** (1 / k), 0.0)]

    def parts(log_A: float) -> tuple[float, float, float]:
        A = np.exp(log_A)
        m = ((A + ridge) / (2 * k * snr)) ** (1 / (k - 2))
        return m, c * A / (A + ridge), (A / (2 * k)) ** (1 / (k - 1))

    def gap(log_A: float) -> float:
        m, r2, total = parts(log_A)
        return np.log((m**2 + r2) / total)

    # R^2 lies above (al/(2k snr))^(2/(k-2)), above c if al = 0, and below snr^(2/k): a little more on either side
    least = c if ridge == 0.0 else (ridge / (2 * k * snr)) ** (2 / (k - 2))
    most = snr ** (2 / k)
    if least >= most:
        return []
    low, high = (np.log(2 * k) + (k - 1) * np.log(bound) for bound in (least, most))
    grid = np.linspace(low - 1e-3, high + 1e-3, GRID)
    values = np.array([gap(point) for point in grid])
    # dips that the grid steps over: roots that have just been born
    for i in (
        np.flatnonzero(
            (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:]) & (values[1:-1] > 0)
        )
        + 1
    ):
        dip: Any = optimize.minimize_scalar(
            gap, bounds=(grid[i - 1], grid[i + 1]), method="bounded", options={"xatol": 1e-10}
        )
        # in the place of the grid's own lowest point
        grid[i], values[i] = dip.x, dip.fun if abs(dip.fun) > TOUCHING else 0.0
    roots = [grid[i] for i in np.flatnonzero(values == 0.0)]
    for i in np.flatnonzero(values[:-1] * values[1:] < 0):
        roots.append(_root(gap, grid[i], grid[i + 1]))
    return [(float(m), float(r2)) for m, r2, _ in sorted(parts(root) for root in roots)]


def _described(
    problem: SpikedTensor, algorithm: OnePassSGD, m: float, r2: float
) -> SpikedFixedPoint:
    numbers = equation_parameters(problem, algorithm, None)
    values = np.linalg.eigvals(jacobian(numbers, m, r2)).astype(complex)
    values = values[np.argsort(-np.real(values), kind="stable")]
    null = NULL * np.abs(values).max()
    grows = (
        values[0].real > null or not values.any()
    )  # all null: only at x = 0, where higher orders grow
    verdict = "saddle" if grows else "stable" if values[0].real < -null else "marginal"
    residual = float(np.linalg.norm(np.asarray(drift(numbers, np.float64(m), np.float64(r2)))))
    return SpikedFixedPoint(m, r2, float(problem.risk(m, r2)), values, verdict, residual)
