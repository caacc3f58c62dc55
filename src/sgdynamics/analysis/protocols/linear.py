"""Optimal learning rates of linear students on a spectrum, by the exact recursion of their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.analysis.protocols.box import points_outward
from sgdynamics.analysis.protocols.linear_rates import (
    LinearOptimum,
    LinearRecursion,
    linear_recursion,
    optimal_rates,
)
from sgdynamics.analysis.protocols.request import ProtocolRequest
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.base.progress import meter
from sgdynamics.base.resources import check_steps
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.linear import linear_student

# A rate is at a bound if the difference of their logarithms is at most this.
BOUND_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LinearProtocol:
    """The optimal rates of a linear student.

    Attributes
    ----------
    best : LinearOptimum
        The optimal rates.
    half : LinearOptimum or None
        The optimal rates with half as many pieces; None for a single piece.
    edges : ndarray
        Edges of the pieces in alpha.
    constant_risks : ndarray
        Excess risk at the edges with the best constant rate.
    residual : float
        Deviation from Pontryagin's condition; see `OptimalProtocol`.
    sides : ndarray
        -1 for pieces at the lowest rate, 1 at the highest, 0 in between.
    """

    best: LinearOptimum
    half: LinearOptimum | None
    edges: np.ndarray
    constant_risks: np.ndarray
    residual: float
    sides: np.ndarray

    @property
    def extrapolated(self) -> float:
        """The risk with infinitely many pieces: errors are proportional to 1/pieces^2."""
        if self.half is None:
            return float("nan")
        ratio = len(self.best.rates) / len(self.half.rates)
        return self.best.risk + (self.best.risk - self.half.risk) / (ratio**2 - 1)


def has_exact_recursion(request: ProtocolRequest) -> bool:
    """Whether a request asks for the rate of a linear student on a spectrum with the least risk.

    Its mean then obeys an exact recursion, which replaces the ODE.
    """
    problem, algorithm, controls = request.problem, request.algorithm, request.controls
    has_plain_objective = (
        request.objective == "final" and request.evaluate is None and request.cost is None
    )
    return bool(
        linear_student(problem)
        and problem.spectrum is not None
        and algorithm.law is None
        and algorithm.counts
        and has_plain_objective
        and controls.paths == (("algorithm", "lr"),)
        and not np.any(controls.box.has_budget)
    )


def solve_linear_protocol(
    request: ProtocolRequest, alpha: float, pieces: int, iterations: int, progress: bool | None
) -> LinearProtocol:
    """The optimal rates up to alpha = samples/d; alpha counts steps if d is infinite."""
    # Only a linear student with a spectrum is solved here.
    problem, start = cast(Problem, request.problem), cast(Start, request.start)
    algorithm, box = request.algorithm, request.controls.box
    spectrum = problem.spectrum
    assert spectrum is not None
    alpha_per_step = 1.0 if spectrum.infinite else algorithm.batch / float(spectrum.dimension)
    check_steps("alpha", alpha, alpha / alpha_per_step)
    steps = round(alpha / alpha_per_step)
    if steps < pieces:
        raise checks.reject(
            "pieces",
            pieces,
            f"alpha = {alpha:g} corresponds to {steps} steps. Give at most as many pieces, or "
            "increase alpha.",
        )
    recursion = linear_recursion(problem, algorithm, start, steps=steps)
    lowest, highest = float(box.low[0]), float(box.high[0])
    arguments: dict[str, Any] = {"lr": (lowest, highest), "iterations": iterations}
    half = None
    with meter("optimal protocol", iterations * (1 + (pieces > 1)), progress) as bar:
        best = optimal_rates(recursion, pieces, bar=bar, **arguments)
        if pieces > 1:
            half = optimal_rates(recursion, pieces // 2, bar=bar, **arguments)
    log_rates = np.log(best.rates)
    is_lowest = log_rates <= np.log(lowest) + BOUND_TOLERANCE
    is_highest = log_rates >= np.log(highest) - BOUND_TOLERANCE
    sides = np.where(is_lowest, -1, np.where(is_highest, 1, 0))
    gradient = pieces * np.asarray(_log_gradient(recursion, best.rates)) / best.risk
    inner_gradient = np.where(points_outward(sides, gradient), 0.0, gradient)
    return LinearProtocol(
        best=best,
        half=half,
        edges=best.edges * alpha_per_step,
        constant_risks=np.asarray(recursion.risks(np.full(pieces, best.best_constant_lr))),
        residual=float(np.abs(inner_gradient).max()),
        sides=sides,
    )


@jax.jit
def _log_gradient(
    recursion: LinearRecursion, rates: Float[Numeric, " pieces"]
) -> Float[Array, " pieces"]:
    """dJ/dlog lr for all pieces, with the final risk J."""
    return rates * jax.grad(lambda rates: recursion.risks(rates)[-1])(rates)
