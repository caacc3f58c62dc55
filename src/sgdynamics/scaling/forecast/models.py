"""Models of a loss curve as a function of its learning-rate schedule.

All models have the form loss = floor + A f(t) + B g(t): three coefficients of 0 or more, and a few
shape parameters on which f and g depend nonlinearly. With the learning rate eta at each step and
S(t) = sum of eta:

theory    one-pass SGD on a linear student with a power-law spectrum, late in training (derived in
          the theory page from `solve_linear`). With h = eta^q ref^(1 - q) and S = sum of h,

              loss = floor + A S^-alpha
                     + B sum_k (h_k - h_(k-1)) [1 - (1 + (S(t) - S_k)/tau)^-beta].

          The second term is the signal that is not learned yet; the third is the noise of SGD: each
          change of the rate changes its level, and the spectrum forgets it like a power law. q = 1
          is SGD (`theory6`); q < 1 is an empirical correction for adaptive optimisers.
multi_power  the multi-power law of Luo et al., ICLR 2025, arXiv:2503.12811:

              loss = floor + A S^-alpha
                     - B sum_k (eta_(k-1) - eta_k) [1 - (1 + (S(t) - S_k)/tau_k)^-beta]

          with tau_k = tau (eta_k/ref)^gamma, where tau = ref^gamma/C in the notation of the paper.
annealing  the law of Tissue, Wang and Wang, arXiv:2408.11029, loss = floor + A S^-alpha - B S2 with

              S2 = sum_(i <= t) sum_(k <= i) (eta_(k-1) - eta_k) 0.999^(i - k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sgdynamics.scaling.forecast.rates import RateCurve

FORGETTING = 0.999  # factor per step of the annealing law


@dataclass(frozen=True)
class ShapeParameter:
    """A parameter on which a model depends nonlinearly.

    Attributes
    ----------
    name : str
        Name of the parameter.
    low, high : float
        Bounds, on the scale of the fit.
    starts : tuple of float
        Values from which fits start.
    prior : (float, float) or None
        Mean and standard deviation of the penalty, on the scale of the fit.
    is_log : bool
        Whether the fit is on the scale of the logarithm.
    per_total : bool
        Whether the value is in units of the largest sum of learning rates.
    """

    name: str
    low: float
    high: float
    starts: tuple[float, ...]
    prior: tuple[float, float] | None = None
    is_log: bool = False
    per_total: bool = False

    def value(self, coordinate: float, total: float) -> float:
        """The parameter in its own units from its coordinate in the fit."""
        value = float(np.exp(coordinate)) if self.is_log else float(coordinate)
        return value * total if self.per_total else value


# Functions f and g of a model at these steps, given its shape parameters and the reference rate.
Columns = Callable[[RateCurve, np.ndarray, dict[str, float], float], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class LossModel:
    """A model of a loss curve: its name, its shape parameters, and its two functions of time."""

    name: str
    shape: tuple[ShapeParameter, ...]
    columns: Columns


ALPHA = ShapeParameter(
    "alpha", np.log(0.05), np.log(3.0), tuple(np.log((0.5, 0.3, 0.8, 0.4))), None, is_log=True
)
BETA = ShapeParameter("beta", 0.02, 1.0, (0.6, 0.5, 0.8, 0.4), (0.6, 0.15))
TAU = ShapeParameter(
    "tau", -12.0, 1.0, (-6.0, -5.0, -6.5, -7.0), (-6.3, 1.0), is_log=True, per_total=True
)
Q = ShapeParameter("q", 0.3, 1.5, (0.8, 0.9, 0.8, 1.0), (0.8, 0.2))
GAMMA = ShapeParameter("gamma", 0.0, 1.5, (0.5, 0.4, 0.6, 0.3))
FREE_TAU = replace(TAU, low=-16.0, prior=None)
FREE_BETA = replace(BETA, high=2.0, prior=None)


def _clock(rates: RateCurve, level: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S at the knots and at these steps, for a level that is linear between knots."""
    sums = np.concatenate([[0.0], np.cumsum(0.5 * (level[1:] + level[:-1]) * np.diff(rates.steps))])
    return sums, np.interp(steps, rates.steps, sums)


def _changes(level: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Changes of the level between knots, and S in their middle; the first is from 0."""
    middles = np.concatenate([[0.0], 0.5 * (sums[1:] + sums[:-1])])
    return np.concatenate([level[:1], np.diff(level)]), middles


def _signal(sums: np.ndarray, alpha: float) -> np.ndarray:
    return np.maximum(sums, 1e-12) ** -alpha


def theory_columns(
    rates: RateCurve, steps: np.ndarray, shape: dict[str, float], reference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Signal and noise of the theory of linear modes."""
    q = shape.get("q", 1.0)
    level = rates.rates**q * reference ** (1 - q)
    at_knots, sums = _clock(rates, level, steps)
    changes, middles = _changes(level, at_knots)
    elapsed = np.maximum(sums[:, None] - middles, 0.0)
    forgotten = 1 - (1 + elapsed / shape["tau"]) ** -shape["beta"]
    return _signal(sums, shape["alpha"]), forgotten @ changes


def multi_power_columns(
    rates: RateCurve, steps: np.ndarray, shape: dict[str, float], reference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Signal and the loss reduction of the multi-power law; warm-up changes no loss."""
    at_knots, sums = _clock(rates, rates.rates, steps)
    changes, middles = _changes(rates.rates, at_knots)
    after_warmup = rates.steps > rates.warmup_end()
    changes, middles = changes[after_warmup], middles[after_warmup]
    # eta_k may reach 0, where its negative power is infinite
    relative = np.maximum(rates.rates[after_warmup] / reference, 1e-4)
    elapsed = np.maximum(sums[:, None] - middles, 0.0)
    tau = shape["tau"] * relative ** shape["gamma"]
    return _signal(sums, shape["alpha"]), (1 - (1 + elapsed / tau) ** -shape["beta"]) @ changes


def annealing_columns(
    rates: RateCurve, steps: np.ndarray, shape: dict[str, float], reference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Signal and the annealing area; warm-up is not annealing."""
    _, sums = _clock(rates, rates.rates, steps)
    after_warmup = rates.steps[1:] > rates.warmup_end()
    changes = np.diff(rates.rates)[after_warmup]
    middles = 0.5 * (rates.steps[1:] + rates.steps[:-1])[after_warmup]
    elapsed = np.maximum(steps[:, None] - middles, 0.0)
    return _signal(sums, shape["alpha"]), (1 - FORGETTING**elapsed) @ changes


MODELS = {
    model.name: model
    for model in (
        LossModel("theory", (ALPHA, TAU, BETA, Q), theory_columns),
        LossModel("theory6", (ALPHA, TAU, BETA), theory_columns),
        LossModel("multi_power", (ALPHA, FREE_TAU, FREE_BETA, GAMMA), multi_power_columns),
        LossModel("annealing", (ALPHA,), annealing_columns),
    )
}
