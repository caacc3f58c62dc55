"""The best learning rates of linear students on any spectrum, batches in their place, and the law of both where label noise dominates."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy import optimize
from scipy.optimize import OptimizeResult

from sgdynamics.analysis.protocols.linear_recursion import (
    LinearRecursion,
    linear_recursion,
    room_for,
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

LOWEST = 1e-9  # of the largest step: rates are searched above
GRID, ZOOMS = 33, 5  # constant rates tried at once, then again between the neighbours of the best
DIVERGED = 1e3  # stands for the logarithm of a risk that is not finite: the line search then takes shorter steps


@dataclass(frozen=True)
class LinearOptimum:
    """The best piecewise rates of a linear student, found by `optimal_rates`: ``rates[i]`` for the steps from edges[i] to edges[i + 1]."""

    rates: np.ndarray
    edges: np.ndarray  # in steps
    risk: float  # the excess risk after the last step
    risks: np.ndarray  # at every edge
    best_constant_lr: float
    best_constant_risk: float
    history: np.ndarray  # the risk after each iteration, from the constant rate on
    gradients: int  # how many were taken
    converged: bool
    schedule: Schedule | float  # the rates as lr

    @property
    def gain(self) -> float:
        """How many times smaller the risk is than with the best constant rate."""
        return self.best_constant_risk / self.risk


def _level(recursion: LinearRecursion, batches: PyTree, edges: PyTree, log_rates: Numeric) -> Any:
    return jnp.log(recursion.risks(jnp.exp(log_rates), batches, edges)[-1])


@jax.jit
def _levels(
    recursion: LinearRecursion,
    batches: PyTree,
    edges: PyTree,
    log_rates: Float[Numeric, "several pieces"],
) -> Any:
    return jax.lax.map(partial(_level, recursion, batches, edges), log_rates, batch_size=11)


@jax.jit
def _with_gradient(
    recursion: LinearRecursion, batches: PyTree, edges: PyTree, log_rates: Float[Numeric, " pieces"]
) -> Any:
    return jax.value_and_grad(partial(_level, recursion, batches, edges))(log_rates)


@jax.jit
def _risks(
    recursion: LinearRecursion, batches: PyTree, edges: PyTree, rates: Float[Numeric, " pieces"]
) -> Any:
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
    bar: Meter = Meter(),  # noqa: B008  which shows nothing, and keeps nothing
) -> LinearOptimum:
    """The piecewise constant rates with the smallest risk after the last step: L-BFGS on their logarithms from the best constant one.

    Parameters
    ----------
    recursion : LinearRecursion
        What is learned, and how long.
    pieces : int, default 100
        How many rates; as many as steps for a rate a step.
    lr : (float, float), optional
        Rates stay within (lowest, highest); 1e-9 to 1 times 2/l_max, beyond which full batches diverge, unless given.
    batches : (pieces,) or float, optional
        Samples in a step; the algorithm's unless given.
    edges : (pieces + 1,), optional
        Steps at which pieces begin and end; equal shares unless given.
    iterations : int, default 500
        Of the search, at most.
    bar : Meter, optional
        A progress bar, moved by one for each of them.

    Returns
    -------
    LinearOptimum
        ``.rates``, ``.risk``, ``.best_constant_lr``, ``.best_constant_risk``, ``.gain``, ``.history``.

    Raises
    ------
    ValueError
        If an argument is refused, or the best constant rate is outside of the range.
    """
    pieces = checks.integer("pieces", pieces, 1)
    if pieces > recursion.steps:
        raise checks.reject(
            "pieces", pieces, f"there are {recursion.steps} steps: take as many at most"
        )
    low, high = _checked_range(recursion, lr)
    ends = np.asarray(recursion.edges(pieces) if edges is None else edges)
    batches = (
        None if batches is None else np.broadcast_to(np.asarray(batches, dtype=float), (pieces,))
    )
    constant, level = _best_constant(
        recursion, batches, edges, pieces, (math.log(low), math.log(high))
    )
    path = [level]

    def value(log_rates: np.ndarray) -> tuple[float, np.ndarray]:
        found, slope = _with_gradient(recursion, batches, edges, log_rates)
        found, slope = float(found), np.array(slope)
        return (
            (found, slope)
            if math.isfinite(found) and np.all(np.isfinite(slope))
            else (DIVERGED, np.zeros(pieces))
        )

    def note(intermediate_result: OptimizeResult) -> None:
        path.append(float(intermediate_result.fun))
        bar.advance(1)

    found: Any = optimize.minimize(
        value,
        np.full(pieces, constant),
        jac=True,
        method="L-BFGS-B",
        bounds=[(math.log(low), math.log(high))] * pieces,
        callback=note,
        options={
            "maxiter": iterations,
            "maxfun": 4 * iterations,
            "ftol": 1e-13,
            "gtol": 1e-9,
            "maxcor": 30,
        },
    )
    converged = bool(found.status != 1)
    if not converged:
        warnings.warn(
            f"the rates still improve after {iterations} iterations: give more, iterations=...",
            stacklevel=3,
        )
    rates = np.exp(np.asarray(found.x))
    risks = np.asarray(_risks(recursion, batches, edges, rates))
    history, schedule = np.exp(np.array(path)), recursion.schedule(rates, ends)
    return LinearOptimum(
        rates,
        ends,
        float(risks[-1]),
        risks,
        math.exp(constant),
        math.exp(level),
        history,
        int(found.nfev),
        converged,
        schedule,
    )


def _checked_range(
    recursion: LinearRecursion, lr: tuple[float, float] | None
) -> tuple[float, float]:
    numbers = recursion.numbers
    if lr is None:
        high = 2 / float(numbers["eigenvalues"].max() * numbers["scale"].max() * numbers["unit"])
        return LOWEST * high, high
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
    bounds: tuple[float, float],
) -> tuple[float, float]:
    """The best constant log-rate and its level, by grids that close in on it."""
    (low, high), (best, level) = bounds, (bounds[0], math.inf)
    single = batches is None or np.ptp(batches) == 0
    if single:  # then all steps are one piece
        batches, edges, pieces = (None if batches is None else batches[:1]), None, 1
    for zoom in range(ZOOMS):
        grid = np.linspace(low, high, GRID)
        levels = np.asarray(
            _levels(recursion, batches, edges, np.repeat(grid[:, None], pieces, axis=1))
        )
        at = int(np.argmin(np.where(np.isfinite(levels), levels, np.inf)))
        if zoom == 0 and (not np.isfinite(levels[at]) or at == 0):
            fix = "the smallest of these rates is the best constant one, or all diverge: give another range, lr=(lowest, highest)"
            raise checks.reject("lr", tuple(math.exp(value) for value in bounds), fix)
        best, level = float(grid[at]), float(levels[at])
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, GRID - 1)]
    return best, level


@float64
def batch_ramp(
    recursion: LinearRecursion, rates: Float[Numeric, " pieces"], lr: float
) -> tuple[LinearRecursion, np.ndarray, np.ndarray]:
    """Growing batches in place of falling rates: a step of ``lr`` on as many samples as would have moved it as far.

    With the batch B of the algorithm a rate lr* becomes a batch of B lr/lr*, real here. After as many samples, in fewer steps, the risk is
    the same up to O(g l_max).

    Parameters
    ----------
    recursion : LinearRecursion
        With a batch of its own, B.
    rates : (pieces,)
        Of equal shares of its steps, above 0.
    lr : float
        The rate of all steps but the last, which is cut to what is left.

    Returns
    -------
    tuple
        A recursion of so many steps, and for each of them its rate and its batch, for ``.risks(rates, batches)``.

    Raises
    ------
    ValueError
        If rates are not above 0.
    """
    lr, given = (
        checks.number("lr", lr, above=0.0),
        checks.real_array("rates", rates, "give rates above 0"),
    )
    if given.ndim != 1 or not len(given) or np.any(given <= 0):
        raise checks.reject("rates", rates, "give rates above 0")
    edges = np.asarray(recursion.edges(len(given)), dtype=float)
    way = np.append(0.0, np.cumsum(given * np.diff(edges)))
    steps = max(1, math.ceil(way[-1] / lr - 1e-9))
    reached = np.append(lr * np.arange(steps), way[-1])
    batches = recursion.batch * np.diff(np.interp(reached, way, edges))
    ramped = replace(
        recursion, numbers={**recursion.numbers, "steps": np.int64(steps)}, room=room_for(steps)
    )
    return ramped, np.diff(reached), batches


@dataclass(frozen=True)
class NoiseDominated:
    """The best rates where label noise alone disturbs learning and steps are small."""

    risk: float
    rates: np.ndarray  # their means over the pieces
    edges: np.ndarray  # in steps
    left: np.ndarray  # chi, the sum of the steps g still to come, at the edges
    invariant: float  # g K(chi)^(1/2), the same at all times


def noise_dominated(recursion: LinearRecursion, pieces: int = 100) -> NoiseDominated:
    """The law of the best rates where the noise of labels is far above the excess risk and g l is small, for any spectrum.

    Parameters
    ----------
    recursion : LinearRecursion
        Without weight decay, with label noise, and one head for all runs.
    pieces : int, default 100
        Into how many the steps are cut, for the rates.

    Returns
    -------
    NoiseDominated
        ``.risk``, ``.rates``, ``.left``, ``.invariant``.

    Raises
    ------
    ValueError
        If there is no label noise, or weight decay.

    Notes
    -----
    With chi the sum of steps still to come, the start leaves sum l c e^(-2 l chi0)/2 and a step adds (g^2 s2/2B) K(chi), K(chi) =
    sum n l^2 e^(-2 l chi). By Cauchy and Schwarz g K^(1/2) is constant, and the noise adds s2 y(chi0)^2/(2TB) in all, y the integral of
    K^(1/2) from 0: the best chi0 makes the sum of both smallest.
    """
    numbers = recursion.numbers
    noise, share = (
        float(numbers["noise"]),
        float(numbers["noise"]) / (recursion.steps * recursion.batch),
    )
    if not noise > 0 or recursion.decays or len(numbers["scale"]) > 1:
        raise checks.reject(
            "recursion",
            recursion.numbers["noise"],
            "the law needs label noise, no weight decay, and one head for all runs",
        )
    each_l, errors = numbers["eigenvalues"], numbers["errors"][0]
    nodes, weights = np.polynomial.legendre.leggauss(10)
    ends = np.append(0.0, np.geomspace(1e-3 / each_l.max(), 30 / each_l.min(), 400))

    def root_K(chi: np.ndarray) -> np.ndarray:
        return np.sqrt(
            np.exp(-2 * np.multiply.outer(chi, each_l)) @ (numbers["counts"] * each_l**2)
        )

    def between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        half = (high - low)[:, None] / 2
        return np.sum(half * weights * root_K(low[:, None] + half * (1 + nodes)), axis=1)

    sums = np.append(0.0, np.cumsum(between(ends[:-1], ends[1:])))

    def y(chi: np.ndarray) -> np.ndarray:
        panel = np.clip(np.searchsorted(ends, chi, side="right") - 1, 0, len(ends) - 2)
        return sums[panel] + between(ends[panel], chi)

    def slope(chi: float) -> float:
        here = np.array([chi])
        return float(
            -(np.exp(-2 * each_l * chi) @ (each_l**2 * errors))
            + share * y(here)[0] * root_K(here)[0]
        )

    levels = (
        np.exp(-2 * np.multiply.outer(ends, each_l)) @ (each_l * errors) / 2 + share * sums**2 / 2
    )
    at = int(np.clip(np.argmin(levels), 1, len(ends) - 2))
    chi: Any = optimize.brentq(slope, ends[at - 1], ends[at + 1], xtol=1e-14 * ends[at])
    whole = y(np.array([chi]))[0]
    edges = np.asarray(recursion.edges(checks.integer("pieces", pieces, 1, recursion.steps)))
    wanted = whole * (1 - edges / recursion.steps)
    left = np.interp(wanted, sums, ends)
    for _ in range(20):  # Newton: y grows, and is concave
        left = np.clip(left - (y(left) - wanted) / root_K(left), 0.0, chi)
    rates = -np.diff(left) / np.diff(edges) / float(numbers["unit"] * numbers["scale"][0])
    risk = float(np.exp(-2 * each_l * chi) @ (each_l * errors) + share * whole**2) / 2
    return NoiseDominated(risk, rates, edges, left, float(whole) / recursion.steps)
