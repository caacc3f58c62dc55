"""The best learning rates of linear students on a spectrum: by the exact recursion of their mean, not by the ODE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols.controls import Controls
from sgdynamics.analysis.protocols.linear_rates import (
    LinearOptimum,
    LinearRecursion,
    linear_recursion,
    optimal_rates,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.base.progress import meter
from sgdynamics.base.resources import check_steps
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.solvers.linear import linear_student

NEAR = 1e-6  # of log lr: a rate that is at its bound


@dataclass(frozen=True)
class LinearProtocol:
    """The best rates and those of half as many pieces, where pieces end in alpha, and how far they are from Pontryagin's condition."""

    best: LinearOptimum
    half: LinearOptimum | None
    edges: np.ndarray
    constant_risks: np.ndarray
    residual: float
    ends: np.ndarray  # -1 at the lowest rate, 1 at the highest

    @property
    def extrapolated(self) -> float:
        """The value for infinitely many pieces: errors go as their number squared."""
        if self.half is None:
            return float("nan")
        ratio = len(self.best.rates) / len(self.half.rates)
        return self.best.risk + (self.best.risk - self.half.risk) / (ratio**2 - 1)


def by_recursion(problem: object, algorithm: OnePassSGD, chosen: Controls, *others: object) -> bool:
    """Whether the question is for the learning rate of a linear student on a spectrum, and asks for the last risk and nothing else."""
    known = (
        linear_student(problem)
        and problem.spectrum is not None
        and algorithm.law is None
        and algorithm.counts
    )
    plain = all(other is None or other == "final" for other in others)
    return bool(
        known
        and plain
        and chosen.paths == (("algorithm", "lr"),)
        and np.all(np.isnan(chosen.box.budget))
    )


def solve_linear_protocol(
    problem: Any,
    algorithm: OnePassSGD,
    start: Start,
    chosen: Controls,
    alpha: float,
    pieces: int,
    iterations: int,
    progress: bool | None,
) -> LinearProtocol:
    """The best rates for alpha = samples/d, or where d is infinite for so many steps."""
    spectrum = problem.spectrum
    each = (
        1.0 if spectrum.infinite else algorithm.batch / float(spectrum.dimension)
    )  # alpha of a step
    check_steps("alpha", alpha, alpha / each)
    steps = round(alpha / each)
    if steps < pieces:
        raise checks.reject(
            "pieces",
            pieces,
            f"alpha = {alpha:g} is {steps} steps: give as many pieces at most, or a larger alpha",
        )
    recursion = linear_recursion(problem, algorithm, start, steps=steps)
    bounds = (float(chosen.box.low[0]), float(chosen.box.high[0]))
    with meter("optimal protocol", iterations * (1 + (pieces > 1)), progress) as bar:
        best = optimal_rates(recursion, pieces, lr=bounds, iterations=iterations, bar=bar)
        half = (
            optimal_rates(recursion, pieces // 2, lr=bounds, iterations=iterations, bar=bar)
            if pieces > 1
            else None
        )
    flat = np.asarray(recursion.risks(np.full(pieces, best.best_constant_lr)))
    logs = np.log(best.rates)
    ends = np.where(
        logs <= np.log(bounds[0]) + NEAR, -1, np.where(logs >= np.log(bounds[1]) - NEAR, 1, 0)
    )
    slope = pieces * np.asarray(_slope(recursion, best.rates)) / best.risk
    outward = ((ends < 0) & (slope > 0)) | ((ends > 0) & (slope < 0))
    return LinearProtocol(
        best,
        half,
        best.edges * each,
        flat,
        float(np.abs(np.where(outward, 0.0, slope)).max()),
        ends,
    )


@jax.jit
def _slope(recursion: LinearRecursion, rates: Float[Numeric, " pieces"]) -> Any:
    """dJ/dlog lr of every piece."""
    return rates * jax.grad(lambda rates: recursion.risks(rates)[-1])(rates)
