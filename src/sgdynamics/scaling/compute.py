"""Compute-optimal training: for each budget of flops the best size, and the exponents that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import optimize

from sgdynamics.base import checks
from sgdynamics.scaling.modes import listed
from sgdynamics.scaling.random_features import RandomFeatures

SHARP = 1.0 - 2.0**-0.5
UNSTABLE = 300.0  # in place of the logarithm of a loss that has none
LEAST_SIZE = 16.0  # features: the equivalent is for many


@dataclass(frozen=True)
class Phase:
    """Where a pair of exponents lies in the plane of compute-optimal training: loss ~ flops^-eta at sizes ~ flops^xi.

    Attributes
    ----------
    name : str
        "Ia", "Ib", "Ic", "II", "III", "IVa" or "IVb".
    eta : float
        Of the loss.
    xi : float
        Of the best size.
    trade_off : tuple of str
        The two terms of the loss that meet at the best size.

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
    """The predicted exponents of compute-optimal training of power-law random features.

    Parameters
    ----------
    data_exponent : float
        a: inputs have the standard deviations j^-a.
    target_exponent : float
        b: the target is sum_j j^-b x_j; 2 (a + b) > 1.

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
    Loss ~ pp + F0 + ac + kpp with, for r = 2a + 2b - 1: pp = (g n)^(-r/2a), the power law of the target;
    F0 = d^(-2a + max(0, 1 - 2b)), what features cannot reach; ac = (g n)^(-1 + 1/2a)/d, modes that the features embed;
    kpp = g (g n)^(-2 + 1/2a), the noise of SGD. Flops are d n B.
    Paquette, Paquette, Xiao and Pennington (2024); rederived here.

    Examples
    --------
    >>> found = sgd.scaling.phase(0.7, 0.3)
    >>> found.name, round(found.eta, 4), round(found.xi, 4)
    ('Ia', 0.4167, 0.4167)
    """
    a, b = (
        checks.number("data_exponent", data_exponent, above=0.0),
        checks.number("target_exponent", target_exponent),
    )
    if 2 * (a + b) <= 1:
        raise checks.reject(
            "target_exponent", b, f"the target has infinite variance: give more than {0.5 - a:g}"
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
        "data_exponent", (a, b), "this pair lies on the boundary of two phases: move it a little"
    )


@dataclass(frozen=True)
class ComputeOptimal:
    """The frontier of loss against flops.

    Attributes
    ----------
    flops : ndarray
        d n B.
    loss : ndarray
        The least loss at each.
    size : ndarray
        The number of features d that reaches it.
    eta : float
        Minus the exponent of the loss in flops, over the last two decades.
    eta_error : float
        By how much it differs from the decade before.
    xi : float
        The exponent of the size.
    xi_error : float
        Likewise.
    predicted : Phase or None
        What ``phase`` says; None on a boundary.

    Examples
    --------
    >>> found = sgd.scaling.compute_optimal(1.0, 0.7, flops=[1e7, 1e8, 1e9, 1e10])
    >>> bool(np.all(np.diff(found.size) > 0)), bool(np.all(np.diff(found.loss) < 0))
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
    """Loss against flops, the best number of features, and their exponents, by the equivalent at any size.

    Parameters
    ----------
    data_exponent : float
        a.
    target_exponent : float
        b.
    flops : sequence of float
        Budgets d n B, in growing order, over at least three decades.
    rate : float, default 0.5
        The step is rate over the trace of the inputs.
    batch : int, default 1
        B.
    inputs_per_feature : float, default 4.0
        Where 2 a < 1 the inputs must be finite: so many times the features. Elsewhere they are infinitely many.

    Returns
    -------
    ComputeOptimal
        The frontier, with exponents fitted to its end.

    Raises
    ------
    ValueError
        If an argument is refused.

    Examples
    --------
    >>> found = sgd.scaling.compute_optimal(0.7, 0.3, flops=np.geomspace(1e8, 1e12, 9))
    >>> bool(abs(found.eta / found.predicted.eta - 1) < 0.03)
    True
    """
    a, b = (
        checks.number("data_exponent", data_exponent, above=0.0),
        checks.number("target_exponent", target_exponent),
    )
    budgets = listed("flops", flops, 1.0)
    if len(budgets) < 4 or np.any(np.diff(budgets) <= 0) or budgets[-1] < 1e3 * budgets[0]:
        raise checks.reject(
            "flops", flops, "give four numbers or more in growing order, over three decades or more"
        )
    eta0 = checks.number("rate", rate, above=0.0)
    if eta0 >= 2.0:
        raise checks.reject("rate", rate, "steps of 2 over the trace or more diverge: give less")
    B = checks.integer("batch", batch, 1)
    if budgets[0] < 20.0 * B * LEAST_SIZE:
        raise checks.reject(
            "flops",
            flops,
            f"{LEAST_SIZE:g} features and 20 steps of this batch take {20 * B * LEAST_SIZE:.3g}: give more",
        )
    ratio = checks.number("inputs_per_feature", inputs_per_feature, minimum=1.0)

    @cache  # a search for the best of few features comes back to the same number of them
    def loss_with(budget: float, d: float) -> float:
        """The logarithm of the loss."""
        model = RandomFeatures(a, b, d, math.inf if 2 * a > 1 else float(round(ratio * d)))
        loss = model.equivalent()
        found = float(loss.risk([max(budget / (d * B), 10.0)], eta0 / loss.trace, B)[0])
        return math.log(found) if 0 < found < math.inf else UNSTABLE

    def loss_at(budget: float, log_size: float) -> float:
        return loss_with(budget, max(1.0, round(math.exp(log_size))))

    sizes, losses = [], []
    for budget in budgets:
        low, high = math.log(LEAST_SIZE), math.log(budget / (10.0 * B))
        grid = np.linspace(low, high, 13)
        values = [loss_at(budget, one) for one in grid]
        best = int(np.argmin(values))
        bracket = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        found: Any = optimize.minimize_scalar(
            partial(loss_at, budget), bounds=bracket, method="bounded", options={"xatol": 1e-4}
        )
        sizes.append(math.exp(found.x))
        losses.append(math.exp(found.fun))
    x, y, z = np.log(budgets), np.log(losses), np.log(sizes)
    (eta, eta_error), (xi, xi_error) = (_slope(x, one) for one in (y, z))
    try:
        predicted = phase(a, b)
    except ValueError:
        predicted = None
    return ComputeOptimal(
        budgets, np.array(losses), np.array(sizes), -eta, eta_error, xi, xi_error, predicted
    )


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope over the last two decades, and how far that over those before is from it."""
    late = x >= x[-1] - math.log(100.0) - 1e-9
    if late.sum() < 3:
        late[-3:] = True
    early = (x <= x[late][0] + 1e-9) & (x >= x[-1] - math.log(1e4) - 1e-9)
    if early.sum() < 2:
        early[: max(2, int(early.sum()))] = True
    one, other = (float(np.polyfit(x[part], y[part], 1)[0]) for part in (late, early))
    return one, abs(one - other)
