"""The schedule with the lowest predicted final loss.

For the theory with level h = eta^q ref^(1 - q), constant h_k over n segments of w steps each, and
R_k = w sum_(j >= k) h_j the sum that remains after the start of segment k, the final loss is

    floor + A R_0^-alpha + B sum_k (h_k - h_(k-1)) phi(R_k),   phi(R) = 1 - (1 + R/tau)^-beta,

whose gradient by h_i is -alpha A w R_0^(-alpha-1) + B [phi(R_i) - phi(R_(i+1))
+ w sum_(k <= i) (h_k - h_(k-1)) phi'(R_k)]. The levels are optimised within 0 and that of the peak
(L-BFGS-B), because the derivative by the rate itself is infinite at 0 for q < 1.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

from sgdynamics.scaling.forecast.fitting import FittedModel
from sgdynamics.scaling.forecast.rates import RateCurve

PIECES = 200  # of an optimal schedule


def optimal_rates(fit: FittedModel, steps: float, peak: float, warmup: float) -> RateCurve:
    """The rates of a run with the lowest predicted final loss, after a linear warm-up."""
    parameters = fit.parameters
    q = parameters.get("q", 1.0)
    reference = fit.reference ** (1 - q)
    highest = peak**q * reference
    width = (steps - warmup) / PIECES
    # A linear warm-up adds its sum to the clock, and its rise is part of the first change.
    before = warmup * highest / (1 + q)

    def final_loss(levels: np.ndarray) -> tuple[float, np.ndarray]:
        return _final_loss(levels, parameters, width, before)

    centres = (np.arange(PIECES) + 0.5) / PIECES
    starts = (
        np.full(PIECES, highest),
        highest * (1 - centres),
        highest * np.clip((1 - centres) / 0.25, 0.0, 1.0),
    )
    solutions = [
        optimize.minimize(
            final_loss,
            np.maximum(start, 1e-3 * highest),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, highest)] * PIECES,
            options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-12},
        )
        for start in starts
    ]
    levels = min(solutions, key=lambda solution: solution.fun).x
    rates = np.minimum((levels / reference) ** (1 / q), peak)
    knots, values = warmup + centres * width * PIECES, rates
    # Rates at the centres of the segments, continued to both ends.
    knots = np.concatenate([[0.0] if warmup else [], [warmup], knots, [steps]])
    values = np.concatenate([[0.0] if warmup else [], rates[:1], values, rates[-1:]])
    return RateCurve(knots, values)


def _final_loss(
    levels: np.ndarray, parameters: dict[str, float], width: float, before: float
) -> tuple[float, np.ndarray]:
    alpha, tau, beta = parameters["alpha"], parameters["tau"], parameters["beta"]
    remaining = width * np.cumsum(levels[::-1])[::-1]
    changes = np.diff(levels, prepend=0.0)
    total = before + remaining[0]
    relative = 1 + remaining / tau
    forgotten = 1 - relative**-beta
    slope = beta / tau * relative ** (-beta - 1)
    signal = parameters["A"] * total**-alpha
    loss = parameters["floor"] + signal + parameters["B"] * float(changes @ forgotten)
    noise_gradient = forgotten - np.append(forgotten[1:], 0.0) + width * np.cumsum(changes * slope)
    gradient = -alpha * width * signal / total + parameters["B"] * noise_gradient
    return loss, gradient
