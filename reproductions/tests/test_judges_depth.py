"""Judges of depth and width: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale
from sgdynamics_reproductions.gallery.judges import depth as judges

STEPS = np.array([2, 5, 10, 15])


@cache
def transfer():
    """Best rates and risks like those of the figure."""
    rates = [
        [0.086, 0.060, 0.048, 0.042, 0.039],
        [0.086, 0.073, 0.063, 0.058, 0.055],
        [0.086, 0.048, 0.024, 0.011, 0.0052],
    ]
    excess = [
        [0.066, 0.043, 0.033, 0.029, 0.027],
        [0.066, 0.047, 0.037, 0.032, 0.030],
        [0.066, 0.060, 0.047, 0.038, 0.033],
    ]
    axes = ("parametrisation", "width")
    return xr.Dataset(
        {"best_rate": (axes, np.array(rates)), "best_excess": (axes, np.array(excess))},
        {"parametrisation": ["mup", "ntk", "standard"], "width": [1.0, 2.0, 4.0, 8.0, 16.0]},
    )


@cache
def depths():
    rates = np.array([0.070, 0.048, 0.037, 0.026, 0.020])
    return xr.Dataset({"best_rate": ("depth", rates)}, {"depth": [2, 3, 4, 6, 8]})


@cache
def scattered_runs():
    """Runs with a spread of .7/sqrt(d) about the limit."""
    sizes, limit = [100, 400, 1600], np.array([0.8, 0.5, 0.35, 0.3])
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((len(sizes), 100, len(STEPS)))
    runs = limit + 0.7 * noise / np.sqrt(np.array(sizes))[:, None, None]
    return xr.Dataset(
        {"limit": ("step", limit), "excess_runs": (("d", "run", "step"), runs)},
        {"step": STEPS, "d": sizes},
    )


@cache
def richness():
    """Kernels that move by .02, .9 and 5 times their norm."""
    start = np.stack([np.eye(4)] * 2)
    change = np.full((4, 4), 0.5)
    kernels = [[start, start + factor * change] for factor in (0.02, 0.9, 5.0)]
    risk = np.array([[0.5, 0.2], [0.5, 0.05], [0.5, 0.001]])
    return xr.Dataset(
        {
            "train_risk": (("gamma0", "step"), risk),
            "feature_kernel": (
                ("gamma0", "step", "layer", "sample", "sample_other"),
                np.array(kernels),
            ),
            "lazy_risk": ("step", np.array([0.5, 0.201])),
        },
        {"gamma0": [0.1, 1.0, 3.0], "step": [0, 40], "layer": [1, 2]},
    )


@cache
def networks():
    """Kernels of networks with symmetric noise of order 1/sqrt(N) about the limit."""
    rng = np.random.default_rng(2)
    limit = np.stack([np.eye(3) + 0.5] * 2)
    sizes = np.array([32, 64, 128, 256])
    noise = rng.standard_normal((len(sizes), 60, 2, 3, 3))
    noise = (
        0.6 * (noise + np.swapaxes(noise, -1, -2)) / np.sqrt(2 * sizes)[:, None, None, None, None]
    )
    pair = ("layer", "sample", "sample_other")
    return xr.Dataset(
        {
            "kernel": (pair, limit),
            "kernel_start": (pair, 0.3 * limit),
            "kernel_runs": (("neurons", "run", *pair), limit + noise),
        },
        {"neurons": sizes, "layer": [1, 2]},
    )


def change_best(name, index, factor):
    def alter(data):
        data[name].values[index] *= factor
        return data

    return alter


def constant_spread(data):
    """Runs of the largest dimension scatter as those of the smallest."""
    data.excess_runs.values[-1] = data.excess_runs.values[0]
    return data


def steeper(data):
    """Distances that fall as 1/N."""
    factors = np.sqrt(32 / data.neurons.values)[:, None, None, None, None]
    noise = data.kernel_runs.values - data.kernel.values
    data.kernel_runs.values[:] = data.kernel.values + factors * noise
    return data


def moved_mean(data):
    """The mean of the widest networks is 15% of the kernel away."""
    data.kernel_runs.values[-1] *= 1.15
    return data


BROKEN = [
    Break(
        judges.transfer_over_width,
        transfer,
        "settles",
        "the rate in mup falls by another 15%",
        change_best("best_rate", (0, -1), 0.85),
    ),
    Break(
        judges.transfer_over_width,
        transfer,
        "halves",
        "the standard rate stays",
        change_best("best_rate", (2, -1), 2.0),
    ),
    Break(
        judges.transfer_over_width,
        transfer,
        "least risk",
        "the risk in mup is 20% larger",
        change_best("best_excess", (0, -1), 1.2),
    ),
    Break(
        judges.transfer_over_depth,
        depths,
        "exponent",
        "the rate of 8 layers is twice as large",
        change_best("best_rate", -1, 2.0),
    ),
    Break(judges.spread, scattered, "mean of runs", "runs 20% above", scale("excess_runs", 1.2)),
    Break(judges.spread, scattered, "1/sqrt(d)", "the spread does not fall", constant_spread),
    Break(
        judges.lazy_to_rich,
        richness,
        "kernel regression",
        "the lazy risk 5% off",
        scale("lazy_risk", 1.05),
    ),
    Break(
        judges.lazy_to_rich,
        richness,
        "movement grows",
        "the rich network learns slower",
        change_best("train_risk", (2, 1), 300.0),
    ),
    Break(
        judges.lazy_to_rich,
        richness,
        "features are still",
        "the kernel of the lazy network moves by 7%",
        change_best("feature_kernel", (0, 1), 1.07),
    ),
    Break(judges.trained_features, networks, "mean kernel", "the mean 15% away", moved_mean),
    Break(judges.trained_features, networks, "1/sqrt(N)", "a fall as 1/N", steeper),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


def test_few_runs_do_not_decide():
    check_few_runs(judges.spread, scattered_runs(), scattered_runs().isel(run=slice(0, 6)))
