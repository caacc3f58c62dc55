"""Unbiased estimates of the drift, the corrector and the diffusion, with standard errors.

Gradients are centred at their mean over the draws, which takes a share 1/samples from all second
moments. Adding it back makes the corrector and the diffusion unbiased at any number of draws
(U-statistics). Standard errors are those of the means of the influence functions over units, which
are draws or antithetic pairs, so that they show what a pair or a control variate gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sgdynamics.analysis.effective.result import EffectiveDynamics
from sgdynamics.analysis.effective.sampling import (
    Derivatives,
    compute_derivatives,
    compute_gradients,
)
from sgdynamics.analysis.effective.task import GROUPS, Setup
from sgdynamics.base.progress import Meter

# Units that are reduced at a time, so that they stay in the cache.
SLICE = 1 << 10
# No standard error is reported below this share of the root mean square of the averaged values.
ROUNDING = 1e-12
# Standard errors at which a mean that should be zero is certainly not.
IMPOSSIBLE = 10.0

# A value and its standard error.
Estimate = tuple[np.ndarray, np.ndarray]


class Measurement(NamedTuple):
    """The effective dynamics at a point, and moments for the conditions of localizability.

    Attributes
    ----------
    dynamics : EffectiveDynamics
        Drift, corrector and diffusion.
    fourth : tuple of ndarray
        E <grad H, grad u_i>^4 and its standard error.
    square : tuple of ndarray
        E <hess u_i, grad H grad H^T - V>^2 and its standard error.
    """

    dynamics: EffectiveDynamics
    fourth: Estimate
    square: Estimate


def measure(setup: Setup, lr: float, meter: Meter) -> Measurement:
    """Estimate the effective dynamics by two passes over the draws."""
    samples, delta = setup.samples, lr / setup.dimension
    gradients = compute_gradients(setup, meter)
    controls = gradients.controls
    centre = gradients.group_sums.sum(axis=0) / samples
    derivatives = compute_derivatives(setup, centre, gradients.chunks, meter)
    check_means(derivatives.first, derivatives.second, controls)
    first, second, mean = derivatives.first, derivatives.second, derivatives.mean
    unit_first, unit_mean_second = derivatives.unit_first, second.mean(axis=1)
    # Centring at the mean of the draws takes Var(mean of a unit)/samples from second moments.
    centring = derivatives.unit_second.sum(axis=0) / (samples * (samples - 1))
    drift, drift_error = average(lambda units: unit_first[units], controls)
    corrector, corrector_error = average(lambda units: unit_mean_second[units], controls)
    increment, increment_error = average(
        lambda units: delta / 2 * unit_mean_second[units] - unit_first[units], controls
    )
    diffusion, diffusion_error = _diffusion(derivatives, controls, delta)
    # Typical sizes of the averaged values, for the rounding error.
    size = np.sqrt(mean**2 + (first**2).mean(axis=(0, 1)))
    second_size = delta / 2 * np.abs(second).mean(axis=(0, 1))
    group_sizes = np.bincount(np.arange(samples) * GROUPS // samples)
    norm, norm_error = squared_norm(gradients.group_sums / group_sizes[:, None])
    dynamics = EffectiveDynamics(
        names=setup.names,
        statistics=derivatives.statistics,
        drift=mean + drift,
        drift_error=drift_error + ROUNDING * size,
        corrector=delta / 2 * (corrector + centring),
        corrector_error=delta / 2 * corrector_error + ROUNDING * second_size,
        diffusion=diffusion,
        diffusion_error=diffusion_error + ROUNDING * delta * np.outer(size, size),
        mean_increment=increment - mean + delta / 2 * centring,
        mean_increment_error=increment_error + ROUNDING * (size + second_size),
        gradient_norm_squared=norm,
        gradient_norm_squared_error=norm_error + ROUNDING * float(np.sum(centre**2)),
        lr=lr,
        dimension=setup.dimension,
        draws=setup.task.draws_per_unit * samples,
    )
    no_controls = np.zeros((samples, 0))
    second_mean = unit_mean_second.mean(axis=0)
    fourth = average(lambda units: (first[units] ** 4).mean(axis=1), no_controls)
    square = average(lambda units: ((second[units] - second_mean) ** 2).mean(axis=1), no_controls)
    return Measurement(dynamics, fourth, square)


def average(values: Callable[[slice], np.ndarray], controls: np.ndarray) -> Estimate:
    """The mean over units with the controls regressed out, and its jackknife standard error.

    The estimate is linear in the values, with weights w_i, and leaving out unit i changes it by
    w_i residual_i/(1 - leverage_i). `values` returns the rows of a slice of units.
    """
    total, count = controls.shape
    slices = [slice(first, min(first + SLICE, total)) for first in range(0, total, SLICE)]
    mean_control = controls.mean(axis=0)
    centred = controls - mean_control
    inverse = np.linalg.pinv(centred.T @ centred, hermitian=True) if count else np.zeros((0, 0))
    weights = 1 / total - centred @ inverse @ mean_control
    leverage = 1 / total + np.einsum("nq,nq->n", centred @ inverse, centred)
    design = np.concatenate([np.ones((total, 1)), centred], axis=1)
    sums = np.sum([design[units].T @ values(units) for units in slices], axis=0)
    mean, slope = sums[0] / total, inverse @ sums[1:]
    coefficients = np.concatenate([mean[None], slope])
    influence = (weights / (1 - leverage)) ** 2
    variance = np.sum(
        [
            influence[units] @ (values(units) - design[units] @ coefficients) ** 2
            for units in slices
        ],
        axis=0,
    )
    return mean - mean_control @ slope, np.sqrt(variance)


def squared_norm(groups: np.ndarray) -> tuple[float, float]:
    """|mu|^2 from independent estimates of mu, unbiased, and its standard error.

    The estimate is the mean product theta of two different groups. The products of K groups split
    as theta + a_g + a_h + e_gh, and the standard error is
    sqrt(4 Var(a)/K + 2 Var(e)/(K (K - 1))). The second term dominates where mu is small compared
    with its noise.
    """
    K = len(groups)
    products = groups @ groups.T
    np.fill_diagonal(products, 0.0)
    theta = products.sum() / (K * (K - 1))
    a = (products.sum(axis=1) - (K - 1) * theta) / (K - 2)
    e = products - theta - a[:, None] - a
    np.fill_diagonal(e, 0.0)
    variance_e = (e**2).sum() / (K * (K - 3))
    variance_a = max(a.var(ddof=1) - variance_e / (K - 2), 0.0)
    return float(theta), math.sqrt(4 * variance_a / K + 2 * variance_e / (K * (K - 1)))


def _diffusion(derivatives: Derivatives, controls: np.ndarray, delta: float) -> Estimate:
    """delta E[(J h)(J h)^T] of the centred gradients h, (statistics, statistics), and its error."""
    first, unit_first = derivatives.first, derivatives.unit_first
    samples, draws, statistics = first.shape
    upper = np.triu_indices(statistics)

    def outer_products(units: slice) -> np.ndarray:
        """The upper triangle of (J h)(J h)^T, row by row, averaged over the draws of a unit."""
        slopes = first[units]
        rows = [np.einsum("nd,ndj->nj", slopes[..., i], slopes[..., i:]) for i in range(statistics)]
        return np.concatenate(rows, axis=1) / draws

    products, products_error = average(outer_products, controls)
    # The share that centring takes; see `measure`.
    products += (unit_first.T @ unit_first)[upper] / (samples * (samples - 1))
    diffusion, error = np.zeros((2, statistics, statistics))
    diffusion[upper], error[upper] = delta * products, delta * products_error
    diffusion.T[upper], error.T[upper] = diffusion[upper], error[upper]
    return diffusion, error


def check_means(first: np.ndarray, second: np.ndarray, controls: np.ndarray) -> None:
    """Raise ValueError if the draws contradict the user's antithetic partner or controls.

    Both draws of a pair must have the same law, and the controls must have mean zero.
    """

    def is_nonzero(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) + ROUNDING * scale
        return np.abs(values.mean(axis=0)) > IMPOSSIBLE * error

    if first.shape[1] == 2:
        for values in (first, first**2, second):
            scale = np.abs(values).max(axis=(0, 1))
            if np.any(is_nonzero(values[:, 0] - values[:, 1], scale)):
                raise ValueError(
                    "antithetic: the draws it returns do not have the law of sample. Give a map "
                    "that preserves the law, such as the negated noise."
                )
    wrong = np.flatnonzero(is_nonzero(controls, np.abs(controls).max(axis=0, initial=0.0)))
    if len(wrong):
        mean = controls[:, wrong[0]].mean()
        raise ValueError(
            f"controls: entry {wrong[0]} has mean {mean:.3g} over the draws. Give functions of "
            "mean zero."
        )
