"""Compute-optimal training: the best model size for each budget of flops, and its exponents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import optimize

from sgdynamics.base import checks
from sgdynamics.scaling.modes import validate_values
from sgdynamics.scaling.random_features import RandomFeatures

# boundary of the phases IVa and IVb
SHARP = 1.0 - 2.0**-0.5
# logarithm of the loss of an unstable model
UNSTABLE = 300.0
# smallest number of features: the deterministic equivalent holds for many
LEAST_SIZE = 16.0


@dataclass(frozen=True)
class Phase:
    """Phase of compute-optimal training: loss ~ flops^-eta at the optimal size ~ flops^xi.

    Attributes
    ----------
    name : str
        "Ia", "Ib", "Ic", "II", "III", "IVa" or "IVb".
    eta : float
        Exponent of the loss.
    xi : float
        Exponent of the optimal size.
    trade_off : tuple of str
        The two terms of the loss that are equal at the optimal size.

    Examples
    --------
    >>> sgd.scaling.phase(0.7, 1.2).trade_off
    ('kpp', 'ac')
    """

    name: str
    eta: float
    xi: float
    trade_off: tuple[str, str]


def phase(data_exponent: float, target_exponent: float) -> Phase:
    """Predicted exponents of compute-optimal training with power-law random features.

    Parameters
    ----------
    data_exponent : float
        Exponent a of the standard deviations j^-a of the inputs.
    target_exponent : float
        Exponent b of the target sum_j j^-b x_j; 2 (a + b) > 1.

    Returns
    -------
    Phase
        Name, exponents and trade-off.

    Raises
    ------
    ValueError
        If the target has infinite variance, or the pair lies on a boundary of two phases.

    Notes
    -----
    Loss ~ pp + F0 + ac + kpp with, for r = 2a + 2b - 1:

    - pp = (g n)^(-r/2a), the power law of the target;
    - F0 = d^(-2a + max(0, 1 - 2b)), the part of the target that the features cannot represent;
    - ac = (g n)^(-1 + 1/2a)/d, modes embedded by the features;
    - kpp = g (g n)^(-2 + 1/2a), the noise of SGD.

    Flops are d n B. Paquette, Paquette, Xiao and Pennington (2024); rederived here.

    Examples
    --------
    >>> phase = sgd.scaling.phase(0.7, 0.3)
    >>> phase.name, round(phase.eta, 4), round(phase.xi, 4)
    ('Ia', 0.4167, 0.4167)
    """
    a, b = (
        checks.number("data_exponent", data_exponent, above=0.0),
        checks.number("target_exponent", target_exponent),
    )
    if 2 * (a + b) <= 1:
        raise checks.reject(
            "target_exponent", b, f"the target has infinite variance. Use more than {0.5 - a:g}."
        )
    r = 2 * a + 2 * b - 1
    if b < 0.5 < a:
        return Phase("Ia", r / (2 * a + 1), 1 / (2 * a + 1), ("pp", "F0"))
    if b < 0.5 and a < 0.5:
        return Phase("Ib", r / 2, 0.5, ("pp", "F0"))
    if a < 0.25 and b > 0.5:
        w = (2 - 2 * a) * r + 4 * a**2
        return Phase("Ic", 2 * a * r / w, r / w, ("pp", "F0"))
    if 0.5 < b < a:
        return Phase("II", r / (2 * a + 2 * b), b / (a + b), ("pp", "ac"))
    if 0.5 < a < b:
        return Phase("III", 1 - 1 / (4 * a), 0.5, ("kpp", "ac"))
    if SHARP < a < 0.5 < b:
        return Phase("IVa", a, 0.5, ("kpp", "F0"))
    if 0.25 < a < SHARP and b > 0.5:
        w = 2 * b - a - 2 * a * b
        return Phase("IVb", (1 - 2 * a) * r / (2 * w), (b - a) / w, ("pp", "kpp"))
    raise checks.reject(
        "data_exponent", (a, b), "this pair lies on the boundary of two phases. Change it slightly."
    )


@dataclass(frozen=True)
class ComputeOptimal:
    """Compute-optimal frontier: the smallest loss for each number of flops.

    Attributes
    ----------
    flops : ndarray
        Budgets d n B.
    loss : ndarray
        Smallest loss at each budget.
    size : ndarray
        Optimal number of features d.
    eta : float
        Exponent of the loss over the last two decades, loss ~ flops^-eta.
    eta_error : float
        Difference from the exponent of the preceding decades.
    xi : float
        Exponent of the size, size ~ flops^xi.
    xi_error : float
        Difference from the exponent of the preceding decades.
    predicted : Phase or None
        Prediction of ``phase``; None on a boundary.

    Examples
    --------
    >>> frontier = sgd.scaling.compute_optimal(1.0, 0.7, flops=[1e7, 1e8, 1e9, 1e10])
    >>> bool(np.all(np.diff(frontier.size) > 0)), bool(np.all(np.diff(frontier.loss) < 0))
    (True, True)
    """

    flops: np.ndarray
    loss: np.ndarray
    size: np.ndarray
    eta: float
    eta_error: float
    xi: float
    xi_error: float
    predicted: Phase | None


def compute_optimal(
    data_exponent: float,
    target_exponent: float,
    *,
    flops: Sequence[float] | np.ndarray,
    rate: float = 0.5,
    batch: int = 1,
    inputs_per_feature: float = 4.0,
) -> ComputeOptimal:
    """Compute-optimal loss and number of features as functions of flops, with their exponents.

    Parameters
    ----------
    data_exponent : float
        Exponent a of the standard deviations j^-a of the inputs.
    target_exponent : float
        Exponent b of the target sum_j j^-b x_j.
    flops : sequence of float
        Increasing budgets d n B over at least three decades.
    rate : float, default 0.5
        Step size times the trace of the input covariance.
    batch : int, default 1
        Batch size B.
    inputs_per_feature : float, default 4.0
        Ratio of inputs to features for 2 a < 1, where the number of inputs must be finite; it is
        infinite otherwise.

    Returns
    -------
    ComputeOptimal
        The frontier, with exponents fitted to its end.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> frontier = sgd.scaling.compute_optimal(0.7, 0.3, flops=np.geomspace(1e8, 1e12, 9))
    >>> bool(abs(frontier.eta / frontier.predicted.eta - 1) < 0.03)
    True
    """
    a, b = (
        checks.number("data_exponent", data_exponent, above=0.0),
        checks.number("target_exponent", target_exponent),
    )
    budgets = validate_values("flops", flops, 1.0)
    if len(budgets) < 4 or np.any(np.diff(budgets) <= 0) or budgets[-1] < 1e3 * budgets[0]:
        raise checks.reject(
            "flops", flops, "use at least four increasing numbers over at least three decades"
        )
    eta0 = checks.number("rate", rate, above=0.0)
    if eta0 >= 2.0:
        raise checks.reject(
            "rate", rate, "SGD diverges for rates of 2 or more. Use a smaller rate."
        )
    B = checks.integer("batch", batch, 1)
    if budgets[0] < 20.0 * B * LEAST_SIZE:
        raise checks.reject(
            "flops",
            flops,
            f"{LEAST_SIZE:g} features and 20 steps of this batch need {20 * B * LEAST_SIZE:.3g} "
            "flops. Use larger budgets.",
        )
    ratio = checks.number("inputs_per_feature", inputs_per_feature, minimum=1.0)

    @cache  # the search revisits the same number of features
    def loss_with(budget: float, d: float) -> float:
        """Return the logarithm of the loss with d features."""
        model = RandomFeatures(a, b, d, math.inf if 2 * a > 1 else float(round(ratio * d)))
        loss = model.equivalent()
        risk = float(loss.risk([max(budget / (d * B), 10.0)], eta0 / loss.trace, B)[0])
        return math.log(risk) if 0 < risk < math.inf else UNSTABLE

    def loss_at(budget: float, log_size: float) -> float:
        return loss_with(budget, max(1.0, round(math.exp(log_size))))

    sizes, losses = [], []
    for budget in budgets:
        low, high = math.log(LEAST_SIZE), math.log(budget / (10.0 * B))
        grid = np.linspace(low, high, 13)
        values = [loss_at(budget, log_size) for log_size in grid]
        best = int(np.argmin(values))
        bracket = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        minimum: Any = optimize.minimize_scalar(
            partial(loss_at, budget), bounds=bracket, method="bounded", options={"xatol": 1e-4}
        )
        sizes.append(math.exp(minimum.x))
        losses.append(math.exp(minimum.fun))
    x, y, z = np.log(budgets), np.log(losses), np.log(sizes)
    (eta, eta_error), (xi, xi_error) = (_slope(x, values) for values in (y, z))
    try:
        predicted = phase(a, b)
    except ValueError:
        predicted = None
    return ComputeOptimal(
        budgets, np.array(losses), np.array(sizes), -eta, eta_error, xi, xi_error, predicted
    )


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope over the last two decades, and its difference from the two before."""
    late = x >= x[-1] - math.log(100.0) - 1e-9
    if late.sum() < 3:
        late[-3:] = True
    early = (x <= x[late][0] + 1e-9) & (x >= x[-1] - math.log(1e4) - 1e-9)
    if early.sum() < 2:
        early[: max(2, int(early.sum()))] = True
    slope, early_slope = (float(np.polyfit(x[mask], y[mask], 1)[0]) for mask in (late, early))
    return slope, abs(slope - early_slope)
