"""Judges of the figures about depth and width."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Judgement,
    agreement,
    count_wrong,
    format_list,
    judge_claims,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

RATE_CHANGE = (
    0.12  # relative change of the best rate between the two largest widths, where it settles
)
HALVING_ERROR = 0.1  # tolerance of the ratio 1/2 in the standard parametrisation
DEPTH_EXPONENT = 0.15  # tolerance of the exponent -1 of the best rate in the number of layers
BIAS = 1.5  # of the excess risk of runs, times d: about .6, and more than at d = 100
LAZY = 0.03  # relative deviation from kernel regression at the smallest gamma0
STILL, RICH = 0.05, 0.3  # movement of the kernels that is lazy, and that is rich
WIDTH_BIAS = 6.0  # of kernel entries of trained networks, times N


@judge_of(
    "figure_1",
    "learning-rate transfer over width in three parametrisations",
    "The best learning rate of deep linear networks settles with the width in the maximal update "
    "and the neural tangent parametrisation, falls as 1/N in the standard one, and only the "
    "maximal update parametrisation keeps its best risk",
)
def transfer_over_width(data: xr.Dataset) -> Judgement:
    """Compare the best rates at the two largest widths, and the risks there."""
    best, excess = data.best_rate, data.best_excess
    ratio = (best.isel(width=-1) / best.isel(width=-2)).values
    text = ", ".join(
        f"{name} {format_list(np.round(row, 4))}"
        for name, row in zip(data.parametrisation.values, best.values, strict=True)
    )
    order = excess.isel(width=-1).values
    return judge_claims(
        f"the best rates at N/d = {format_list(data.width.values)} are: {text}",
        agreement(
            "the best rate settles in the maximal update and neural tangent parametrisations",
            ratio[:2],
            0.0,
            1.0,
            tolerance=RATE_CHANGE,
            scale=0.5,
            scale_words="a fall as 1/N",
        ),
        agreement(
            "the best rate of the standard parametrisation halves with twice the width",
            ratio[2:],
            0.0,
            0.5,
            tolerance=HALVING_ERROR,
            scale=0.5,
            scale_words="no change",
        ),
        count_wrong(
            "the maximal update parametrisation has the least risk at the largest width",
            int(order[0] >= order[1]) + int(order[0] >= order[2]),
            2,
        ),
    )


@judge_of(
    "figure_2",
    "learning rates over depth",
    "The best learning rate falls as 1/L with the number L of layers",
)
def transfer_over_depth(data: xr.Dataset) -> Judgement:
    """Fit the exponent of the best rate in the number of layers."""
    x, y = np.log(data.depth.values), np.log(data.best_rate.values)
    exponent = float(np.polyfit(x, y, 1)[0])
    return judge_claims(
        f"the best rates of {format_list(data.depth.values)} layers are "
        f"{format_list(np.round(data.best_rate.values, 4))}, with an exponent of {exponent:.2f}",
        agreement(
            "the exponent is -1",
            exponent,
            0.0,
            -1.0,
            tolerance=DEPTH_EXPONENT,
            scale=0.5,
            scale_words="an exponent of 1/2",
        ),
    )


@judge_of(
    "figure_3",
    "the spread of finite deep networks about the limit",
    "Runs at dimension d have the mean of the limit up to order 1/d, and a standard deviation that "
    "falls as 1/sqrt(d)",
)
def spread(data: xr.Dataset) -> Judgement:
    """Compare the mean of runs with the limit, and the scaled spread between dimensions."""
    findings, scaled = [], []
    for row, d in enumerate(data.d.values):
        runs = data.excess_runs.values[row]
        findings.append(
            mean_over_runs(runs / data.limit.values - 1).agrees(
                f"d = {d}: the mean of runs is the limit",
                0.0,
                tolerance=BIAS / d / data.limit.values,
                scale=0.5,
                scale_words="half of the excess risk",
            )
        )
        scaled.append(runs.std(axis=0, ddof=1) * np.sqrt(d))
    scaled = np.array(scaled)
    # The logarithm of a standard deviation of n normal numbers has the error 1/sqrt(2 n); the tails
    # of the excess risk are heavier, with a kurtosis of up to 5.
    error = 1 / np.sqrt(data.sizes["run"])
    logs = np.log(scaled[-1] / scaled[0])
    growth = float(np.sqrt(data.d.values[-1] / data.d.values[0]))
    text = ", ".join(f"{value:.2f}" for value in scaled[-1])
    return judge_claims(
        f"at d = {data.d.values[-1]} the standard deviation of the excess risk times the root of d "
        f"is {text} after steps {format_list(data.step.values)}",
        *findings,
        agreement(
            "the spread falls as 1/sqrt(d)",
            logs,
            np.full(len(logs), np.sqrt(2) * error),
            0.0,
            tolerance=0.1,
            scale=np.log(growth),
            scale_words="a spread that does not fall",
            runs=data.sizes["run"],
        ),
    )


@judge_of(
    "figure_4",
    "wide networks from lazy to rich",
    "At small gamma0 an infinitely wide network is kernel regression and keeps its features; at "
    "large gamma0 its feature kernels move, and it learns faster",
)
def lazy_to_rich(data: xr.Dataset) -> Judgement:
    """Compare the lazy end with kernel regression, and the movement of the kernels."""
    from sgdynamics_reproductions.depth.features_figures import movement

    moved = movement(data.feature_kernel).values[:, -1, -1]
    risk = data.train_risk.values[:, -1]
    deviation = data.train_risk.values[0] / data.lazy_risk.values - 1
    disorder = int(np.sum(np.diff(moved) <= 0) + np.sum(np.diff(risk) >= 0))
    return judge_claims(
        f"at gamma0 = {format_list(data.gamma0.values)} the last feature kernel moves by "
        f"{format_list(np.round(moved, 3))} of its norm, and the final training risk is "
        f"{format_list(np.round(risk, 5))}; at the smallest gamma0 the risk deviates by at most "
        f"{np.abs(deviation).max():.1%} from kernel regression",
        agreement(
            "the lazy network is kernel regression",
            deviation,
            0.0,
            0.0,
            tolerance=LAZY,
            scale=0.2,
            scale_words="20% of the risk",
        ),
        count_wrong(
            "movement grows and the final risk falls with gamma0", disorder, 2 * (len(moved) - 1)
        ),
        count_wrong(
            "the features are still at the lazy end and move at the rich end",
            int(moved[0] > STILL) + int(moved[-1] < RICH),
            2,
        ),
    )


@judge_of(
    "figure_5",
    "features of a wide network and of trained networks",
    "The feature kernels of trained networks of N neurons approach those of the infinitely wide "
    "network: their mean up to order 1/N, each network up to order 1/sqrt(N)",
)
def trained_features(data: xr.Dataset) -> Judgement:
    """Compare kernels of the widest networks with the limit, and distances between widths."""
    from sgdynamics_reproductions.depth.features_figures import distances

    neurons = float(data.neurons.values[-1])
    runs = data.kernel_runs.values[-1]
    size = float(np.sqrt(np.mean(data.kernel.values[-1] ** 2)))
    rows, columns = np.triu_indices(runs.shape[-1])  # the kernels are symmetric
    entries = mean_over_runs(runs[:, -1, rows, columns] / size)
    limit = data.kernel.values[-1, rows, columns] / size
    away = distances(data).values.mean(axis=1)
    slope = np.polyfit(np.log(data.neurons.values), np.log(away[:, -1]), 1)[0]
    moved = np.sqrt(np.mean((data.kernel - data.kernel_start).values[-1] ** 2)) / size
    return judge_claims(
        f"the last feature kernel moves by {moved:.2f} of its norm in training; single networks of "
        f"{format_list(data.neurons.values)} neurons are {format_list(np.round(away[:, -1], 3))} "
        f"of the norm away from the limit, an exponent of {slope:.2f}",
        entries.agrees(
            f"the mean kernel of {neurons:g} neurons is that of the limit",
            limit,
            tolerance=WIDTH_BIAS / neurons,
            scale=0.3,
            scale_words="30% of the kernel",
        ),
        agreement(
            "the distance falls as 1/sqrt(N)",
            slope,
            0.0,
            -0.5,
            tolerance=0.12,
            scale=0.5,
            scale_words="no fall, or one as 1/N",
        ),
    )
