"""Optimal learning rates of linear students on any spectrum.

Also growing batches that replace falling rates, and the law of the optimal rates where label noise
dominates.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int
from scipy import optimize
from scipy.optimize import OptimizeResult

from sgdynamics.analysis.protocols.linear_recursion import (
    LinearRecursion,
    linear_recursion,
    pad_steps,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, PyTree, RealArray
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Meter

__all__ = [
    "LinearOptimum",
    "LinearRecursion",
    "NoiseDominated",
    "batch_ramp",
    "linear_recursion",
    "noise_dominated",
    "optimal_rates",
]

# Default lower bound of the rates, as a share of the upper one.
LOWEST_RATE = 1e-9
# Number of constant rates that are tried at once, and of grids between the neighbours of the best.
GRID_POINTS, ZOOMS = 33, 5
# Stands for the logarithm of a risk that is not finite; the line search then shortens its step.
DIVERGED = 1e3


@dataclass(frozen=True)
class LinearOptimum:
    """The optimal piecewise constant rates of a linear student.

    Attributes
    ----------
    rates : ndarray
        Rates; ``rates[i]`` applies to the steps from ``edges[i]`` to ``edges[i + 1]``.
    edges : ndarray
        Edges of the pieces in steps.
    risk : float
        Excess risk after the last step.
    risks : ndarray
        Excess risk at each edge.
    best_constant_lr, best_constant_risk : float
        Best constant rate, and its excess risk after the last step.
    history : ndarray
        Risk after each iteration, starting from the best constant rate.
    gradients : int
        Number of evaluations of the gradient.
    converged : bool
        Whether the search ended before its limit of iterations.
    schedule : Schedule or float
        The rates as ``lr`` of an algorithm.
    """

    rates: np.ndarray
    edges: np.ndarray
    risk: float
    risks: np.ndarray
    best_constant_lr: float
    best_constant_risk: float
    history: np.ndarray
    gradients: int
    converged: bool
    schedule: Schedule | float

    @property
    def gain(self) -> float:
        """Ratio of the risk with the best constant rate to that with the optimal rates."""
        return self.best_constant_risk / self.risk


def _log_risk(
    recursion: LinearRecursion, batches: PyTree, edges: PyTree, log_rates: Numeric
) -> Float[Array, ""]:
    """Logarithm of the final excess risk."""
    return jnp.log(recursion.risks(jnp.exp(log_rates), batches, edges)[-1])


@jax.jit
def _log_risks(
    recursion: LinearRecursion,
    batches: PyTree,
    edges: PyTree,
    log_rates: Float[Numeric, "several pieces"],
) -> Float[Array, " several"]:
    log_risk = partial(_log_risk, recursion, batches, edges)
    return jax.lax.map(log_risk, log_rates, batch_size=11)


@jax.jit
def _value_and_gradient(
    recursion: LinearRecursion, batches: PyTree, edges: PyTree, log_rates: Float[Numeric, " pieces"]
) -> tuple[Float[Array, ""], Float[Array, " pieces"]]:
    return jax.value_and_grad(partial(_log_risk, recursion, batches, edges))(log_rates)


@jax.jit
def _risks(
    recursion: LinearRecursion, batches: PyTree, edges: PyTree, rates: Float[Numeric, " pieces"]
) -> Float[Numeric, " edges"]:
    return recursion.risks(rates, batches, edges)


@float64
def optimal_rates(
    recursion: LinearRecursion,
    pieces: int = 100,
    *,
    lr: tuple[float, float] | None = None,
    batches: RealArray | None = None,
    edges: Int[Numeric, " edges"] | None = None,
    iterations: int = 500,
    bar: Meter = Meter(),  # noqa: B008  a meter that shows nothing and has no state
) -> LinearOptimum:
    """The piecewise constant rates that minimise the risk after the last step.

    The search is L-BFGS-B on the logarithms of the rates, from the best constant rate.

    Parameters
    ----------
    recursion : LinearRecursion
        The mean recursion of the student.
    pieces : int, default 100
        Number of rates, at most the number of steps.
    lr : (float, float), optional
        Lowest and highest rate. The highest defaults to 2/l_max, above which full batches diverge,
        and the lowest to 1e-9 of it.
    batches : (pieces,) or float, optional
        Batch sizes. Defaults to the batch of the algorithm.
    edges : (pieces + 1,), optional
        Edges of the pieces in steps. Defaults to equal shares.
    iterations : int, default 500
        Largest number of iterations.
    bar : Meter, optional
        Progress bar, which advances with each iteration.

    Returns
    -------
    LinearOptimum
        ``.rates``, ``.risk``, ``.best_constant_lr``, ``.best_constant_risk``, ``.gain`` and
        ``.history``.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the best constant rate is outside of the range.

    Warns
    -----
    UserWarning
        If the search reached its limit of iterations.
    """
    pieces = checks.integer("pieces", pieces, 1)
    if pieces > recursion.steps:
        raise checks.reject(
            "pieces",
            pieces,
            f"there are only {recursion.steps} steps. Give at most as many pieces.",
        )
    low, high = _validate_range(recursion, lr)
    log_bounds = (math.log(low), math.log(high))
    all_edges = np.asarray(recursion.edges(pieces) if edges is None else edges)
    if batches is not None:
        batches = np.broadcast_to(np.asarray(batches, dtype=float), (pieces,))
    constant, level = _best_constant(recursion, batches, edges, pieces, log_bounds)
    levels = [level]

    def objective(log_rates: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(recursion, batches, edges, log_rates)
        value, gradient = float(value), np.array(gradient)
        if not (math.isfinite(value) and np.all(np.isfinite(gradient))):
            return DIVERGED, np.zeros(pieces)
        return value, gradient

    def record(intermediate_result: OptimizeResult) -> None:
        levels.append(float(intermediate_result.fun))
        bar.advance(1)

    minimum: Any = optimize.minimize(
        objective,
        np.full(pieces, constant),
        jac=True,
        method="L-BFGS-B",
        bounds=[log_bounds] * pieces,
        callback=record,
        options={
            "maxiter": iterations,
            "maxfun": 4 * iterations,
            "ftol": 1e-13,
            "gtol": 1e-9,
            "maxcor": 30,
        },
    )
    converged = bool(minimum.status != 1)
    if not converged:
        warnings.warn(
            f"the rates still improve after {iterations} iterations. Increase iterations.",
            stacklevel=3,
        )
    rates = np.exp(np.asarray(minimum.x))
    risks = np.asarray(_risks(recursion, batches, edges, rates))
    return LinearOptimum(
        rates=rates,
        edges=all_edges,
        risk=float(risks[-1]),
        risks=risks,
        best_constant_lr=math.exp(constant),
        best_constant_risk=math.exp(level),
        history=np.exp(np.array(levels)),
        gradients=int(minimum.nfev),
        converged=converged,
        schedule=recursion.schedule(rates, all_edges),
    )


def _validate_range(
    recursion: LinearRecursion, lr: tuple[float, float] | None
) -> tuple[float, float]:
    """The lowest and the highest rate."""
    if lr is None:
        largest_gain = recursion.parameters["scale"].max() * recursion.parameters["unit"]
        high = 2 / float(recursion.eigenvalues.max() * largest_gain)
        return LOWEST_RATE * high, high
    fix = "give lr=(lowest, highest) with 0 < lowest < highest"
    try:
        low, high = (float(value) for value in lr)
    except (TypeError, ValueError):
        raise checks.reject("lr", lr, fix) from None
    if not 0 < low < high < math.inf:
        raise checks.reject("lr", lr, fix)
    return low, high


def _best_constant(
    recursion: LinearRecursion,
    batches: PyTree,
    edges: PyTree,
    pieces: int,
    log_bounds: tuple[float, float],
) -> tuple[float, float]:
    """Logarithms of the best constant rate and of its risk, by successively finer grids."""
    low, high = log_bounds
    best, level = low, math.inf
    if batches is None or np.ptp(batches) == 0:
        # With one batch size all steps are one piece.
        batches, edges, pieces = (None if batches is None else batches[:1]), None, 1
    for zoom in range(ZOOMS):
        grid = np.linspace(low, high, GRID_POINTS)
        log_rates = np.repeat(grid[:, None], pieces, axis=1)
        levels = np.asarray(_log_risks(recursion, batches, edges, log_rates))
        index = int(np.argmin(np.where(np.isfinite(levels), levels, np.inf)))
        if zoom == 0 and (not np.isfinite(levels[index]) or index == 0):
            raise checks.reject(
                "lr",
                tuple(math.exp(bound) for bound in log_bounds),
                "the best constant rate is the lowest one, or all rates diverge. Give another "
                "range, lr=(lowest, highest).",
            )
        best, level = float(grid[index]), float(levels[index])
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, GRID_POINTS - 1)]
    return best, level


@float64
def batch_ramp(
    recursion: LinearRecursion, rates: Float[Numeric, " pieces"], lr: float
) -> tuple[LinearRecursion, np.ndarray, np.ndarray]:
    """Growing batches at one rate that replace falling rates at the batch size of the algorithm.

    A rate lr* with batch size B becomes the rate ``lr`` with batch size B lr/lr*, a real number.
    After the same number of samples, in fewer steps, the risk is the same up to O(g l_max).

    Parameters
    ----------
    recursion : LinearRecursion
        The recursion with the batch size B.
    rates : (pieces,)
        Rates above 0 of equal shares of its steps.
    lr : float
        Rate of all steps except for the last, which is shortened to the samples that remain.

    Returns
    -------
    tuple
        The recursion over the new number of steps, and the rate and the batch size of each step,
        for ``.risks(rates, batches)``.

    Raises
    ------
    ValueError
        If a rate is not above 0.
    """
    lr = checks.number("lr", lr, above=0.0)
    array = checks.real_array("rates", rates, "give rates above 0")
    if array.ndim != 1 or not len(array) or np.any(array <= 0):
        raise checks.reject("rates", rates, "give rates above 0")
    edges = np.asarray(recursion.edges(len(array)), dtype=float)
    # The sum of rates over steps is the same after the same number of samples.
    rate_sums = np.append(0.0, np.cumsum(array * np.diff(edges)))
    steps = max(1, math.ceil(rate_sums[-1] / lr - 1e-9))
    new_sums = np.append(lr * np.arange(steps), rate_sums[-1])
    batches = recursion.batch * np.diff(np.interp(new_sums, rate_sums, edges))
    ramp = replace(
        recursion,
        parameters={**recursion.parameters, "steps": np.int64(steps)},
        padded_steps=pad_steps(steps),
    )
    return ramp, np.diff(new_sums), batches


@dataclass(frozen=True)
class NoiseDominated:
    """The optimal rates where only label noise disturbs learning and steps are small.

    Attributes
    ----------
    risk : float
        Final excess risk.
    rates : ndarray
        Means of the rates over the pieces.
    edges : ndarray
        Edges of the pieces in steps.
    left : ndarray
        chi, the sum of the step sizes g that remain, at the edges.
    invariant : float
        g K(chi)^(1/2), which is the same at all times.
    """

    risk: float
    rates: np.ndarray
    edges: np.ndarray
    left: np.ndarray
    invariant: float


def noise_dominated(recursion: LinearRecursion, pieces: int = 100) -> NoiseDominated:
    """The law of the optimal rates where label noise dominates, for any spectrum.

    Parameters
    ----------
    recursion : LinearRecursion
        A recursion with label noise, without weight decay, and with one head for all runs.
    pieces : int, default 100
        Number of pieces of the returned rates.

    Returns
    -------
    NoiseDominated
        ``.risk``, ``.rates``, ``.left`` and ``.invariant``.

    Raises
    ------
    ValueError
        If there is no label noise, or if there is weight decay.

    Notes
    -----
    Assumes label noise s2 far above the excess risk, and small g l. Let chi be the sum of the step
    sizes that remain. The initial errors contribute sum l c e^(-2 l chi0)/2 to the final risk, and
    a step of size g adds (g^2 s2/2B) K(chi) with K(chi) = sum n l^2 e^(-2 l chi). By the
    Cauchy-Schwarz inequality g K^(1/2) is constant at the optimum, and the noise adds
    s2 y(chi0)^2/(2TB) after T steps, where y is the integral of K^(1/2) from 0. The optimal chi0
    minimises the sum of both.
    """
    parameters = recursion.parameters
    noise = float(parameters["noise"])
    if not noise > 0 or recursion.has_decay or len(parameters["scale"]) > 1:
        raise checks.reject(
            "recursion",
            parameters["noise"],
            "the law needs label noise, no weight decay, and one head for all runs",
        )
    share = noise / (recursion.steps * recursion.batch)
    eigenvalues, errors = recursion.eigenvalues, parameters["errors"][0]
    nodes, weights = np.polynomial.legendre.leggauss(10)
    # panels of the quadrature of y
    grid = np.append(0.0, np.geomspace(1e-3 / eigenvalues.max(), 30 / eigenvalues.min(), 400))

    def root_K(chi: np.ndarray) -> np.ndarray:
        decay = np.exp(-2 * np.multiply.outer(chi, eigenvalues))
        return np.sqrt(decay @ (recursion.counts * eigenvalues**2))

    def integrate(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Gauss-Legendre integrals of K^(1/2) over intervals."""
        half = (high - low)[:, None] / 2
        return np.sum(half * weights * root_K(low[:, None] + half * (1 + nodes)), axis=1)

    grid_y = np.append(0.0, np.cumsum(integrate(grid[:-1], grid[1:])))

    def y(chi: np.ndarray) -> np.ndarray:
        panel = np.clip(np.searchsorted(grid, chi, side="right") - 1, 0, len(grid) - 2)
        return grid_y[panel] + integrate(grid[panel], chi)

    def slope(chi: float) -> float:
        """Derivative of the risk with respect to chi0."""
        point = np.array([chi])
        initial = np.exp(-2 * eigenvalues * chi) @ (eigenvalues**2 * errors)
        return float(-initial + share * y(point)[0] * root_K(point)[0])

    # The best grid point brackets the root of the slope.
    grid_decay = np.exp(-2 * np.multiply.outer(grid, eigenvalues))
    levels = grid_decay @ (eigenvalues * errors) / 2 + share * grid_y**2 / 2
    index = int(np.clip(np.argmin(levels), 1, len(grid) - 2))
    chi0: Any = optimize.brentq(slope, grid[index - 1], grid[index + 1], xtol=1e-14 * grid[index])
    y0 = y(np.array([chi0]))[0]
    edges = np.asarray(recursion.edges(checks.integer("pieces", pieces, 1, recursion.steps)))
    # y(chi) decreases linearly in the number of steps. Newton's method inverts it: y grows and is
    # concave.
    edge_y = y0 * (1 - edges / recursion.steps)
    left = np.interp(edge_y, grid_y, grid)
    for _ in range(20):
        left = np.clip(left - (y(left) - edge_y) / root_K(left), 0.0, chi0)
    step_sizes = -np.diff(left) / np.diff(edges)
    twice_risk = float(np.exp(-2 * eigenvalues * chi0) @ (eigenvalues * errors) + share * y0**2)
    return NoiseDominated(
        risk=twice_risk / 2,
        rates=step_sizes / float(parameters["unit"] * parameters["scale"][0]),
        edges=edges,
        left=left,
        invariant=float(y0) / recursion.steps,
    )
