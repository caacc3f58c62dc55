"""Figure 7 of "Stochasticity helps to navigate rough landscapes": random starts, growing N, and
what the limit says of log N.

Units, methods and sizes as in `main_figures`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes import setting
from sgdynamics_reproductions.rough_landscapes.pictures import draw_7
from sgdynamics_reproductions.rough_landscapes.style import (
    HIGH_OVERLAP,
    REPLICATES,
    UNITS,
    crossing,
    log_times,
    quartiles,
    runs_of,
    theory_of,
)

ALPHA, ETA = 2.5, 0.01
RANDOM: dict[str, dict[str, Any]] = {"GD": {}, "p-SGD": {"l": 0.5, "tau": 2.0}}
GROWING = (0.02, 0.05, 0.1)  # m0 of DMFT
SPANS = ((1.2, 10.0), (10.0, 30.0), (30.0, 100.0))  # of t, between which d ln m/dt is taken
ETA_LIMIT = 0.02  # of DMFT: the rates are of growth over times of 10 and more


class Sizes(NamedTuple):
    """Sizes of the simulations of figure 7."""

    runs: dict[int, int]  # number of runs for each N
    rates: tuple[float, ...]  # learning rates of p-SGD
    end: float  # last time of p-SGD
    end_gd: float  # last time of GD
    paths: int  # paths of DMFT; 0 omits DMFT


QUICK = Sizes({30: 32, 60: 32, 120: 32}, (ETA,), 120.0, 120.0, 0)
FULL = Sizes(
    {100: 200, 250: 200, 500: 200, 1000: 200, 2500: 20}, (ETA, ETA / 2), 10_000.0, 1000.0, 1 << 19
)


def figure_7(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Gradient descent and persistent SGD from random starts at alpha = 2.5, for growing N:
    medians, and the share that recovers by t.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Section 5.5: m0 = 0, l = .5, tau = 2, N = 100, 500, 1000, 2500. The caption is not in the text,
    so eta, the runs and the time are chosen here: eta = .01 and, for p-SGD, .005; 200 runs, 20 at N
    = 2500; N = 250 too; t <= 10000, of GD 1000. A recovery in a time like log N needs an
    exponential growth of m at N -> infinity: DMFT from m0 = .02, .05, .1 to t = 100 (eta = .02,
    2^19 paths) shows d ln m/dt. Quick: N = 30, 60, 120, 32 runs, t <= 120, eta = .01, no DMFT.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_7(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    plan = QUICK if quick else FULL
    t = log_times(plan.end, 50 if quick else 80)
    t = np.sort(np.append(t, () if plan.end_gd in t else plan.end_gd))
    early = t <= plan.end_gd
    shape = (
        len(plan.runs),
        max(plan.runs.values()),
    )  # NaN where a size has fewer runs, and past the end of GD

    def runs(N: int, name: str, eta: float) -> xr.Dataset:
        item = setting(
            ALPHA, eta, 0.0, name, dimension=N, seed=seed + N, runs=plan.runs[N], **RANDOM[name]
        )
        return runs_of(item, t[early] if name == "GD" else t, N, seed + N)

    m, loss = (np.full((len(plan.rates), len(RANDOM), *shape, len(t)), np.nan) for _ in range(2))
    for size, N in enumerate(plan.runs):
        for number, eta in enumerate(plan.rates):
            for which, name in enumerate(RANDOM):
                if name == "GD" and number:
                    continue  # it only has to stay where it is
                result = runs(N, name, eta)
                count, points = result["m"].shape
                m[number, which, size, :count, :points] = np.abs(result["m"].values)
                loss[number, which, size, :count, :points] = result["loss"].values
    data = _measure(plan, t, m, loss)
    if plan.paths:
        data = data.merge(_limit(plan.paths, seed)).assign_attrs(
            paths=plan.paths, replicates=REPLICATES
        )
    data.attrs |= {
        "alpha": ALPHA,
        "eta": ETA,
        "m0": 0.0,
        "l": 0.5,
        "tau": 2.0,
        "runs": shape[1],
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "claim": (
            "GD stays at a plateau that falls with N, p-SGD recovers the signal, in a time"
            " compatible with log N"
        ),
        "verdict": _describe(plan, data),
    }
    return draw_7(data), data


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Over runs that are there; NaN where none is."""
    is_finite = np.isfinite(values).any(axis=axis)
    return np.where(
        is_finite,
        np.nanmedian(np.where(np.expand_dims(is_finite, axis), values, 0.0), axis=axis),
        np.nan,
    )


def _measure(plan: Sizes, t: np.ndarray, m: np.ndarray, loss: np.ndarray) -> xr.Dataset:
    """Medians of the first learning rate, and of p-SGD at all of them times and shares; m, loss
    (rate, algorithm, size, run, time).
    """
    last = int(np.searchsorted(t, plan.end_gd, side="right")) - 1
    ends = np.stack([m[0, 0, :, :, last], m[0, 1, :, :, -1]], axis=1)
    persistent = m[:, 1]
    is_finite = np.isfinite(persistent[..., 0])
    passed = np.array(
        [
            [[crossing(t, item, HIGH_OVERLAP) for item in size] for size in rate]
            for rate in persistent
        ]
    )
    medians = _median(persistent, axis=2)
    reached = np.array([[crossing(t, entry, HIGH_OVERLAP) for entry in rate] for rate in medians])
    count = is_finite.sum(axis=2)[..., None]
    share = ((persistent >= HIGH_OVERLAP) & is_finite[..., None]).sum(
        axis=2
    ) / count  # one that has exploded has found nothing
    dims = ("size", "algorithm", "time")
    spread, by_size = (
        (*dims[:2], "quartile", "time"),
        [np.swapaxes(value[0], 0, 1) for value in (m, loss)],
    )
    return xr.Dataset(
        {
            "m": (dims, _median(m[0], axis=2).swapaxes(0, 1), {"long_name": "median |m|"}),
            "loss": (dims, _median(loss[0], axis=2).swapaxes(0, 1), {"long_name": "median loss"}),
            "m_quartiles": (
                spread,
                quartiles(by_size[0]),
                {"long_name": "quarter and three quarters of the runs have a smaller |m|"},
            ),
            "loss_quartiles": (
                spread,
                quartiles(by_size[1]),
                {"long_name": "the same of the loss"},
            ),
            "m_end": (
                ("size", "algorithm", "run"),
                ends,
                {"long_name": "|m| of each run at the end"},
            ),
            "time_run": (
                ("size", "run"),
                passed[0],
                {"long_name": "time at which |m| of a run of p-SGD is .9"},
            ),
            "time_to_recover": (
                "size",
                reached[0],
                {"long_name": "time at which the median |m| of p-SGD is .9"},
            ),
            "runs_size": ("size", list(plan.runs.values()), {"long_name": "runs"}),
            "m_rate": (("rate", "size", "time"), medians, {"long_name": "median |m| of p-SGD"}),
            "m_end_rate": (
                ("rate", "size", "run"),
                persistent[..., -1],
                {"long_name": "|m| of each run of p-SGD at the end"},
            ),
            "time_rate": (
                ("rate", "size", "run"),
                passed,
                {"long_name": "time at which |m| of a run of p-SGD is .9"},
            ),
            "share": (
                ("rate", "size", "time"),
                share,
                {"long_name": "share of the runs of p-SGD with |m| above .9"},
            ),
            "share_error": (
                ("rate", "size", "time"),
                np.sqrt(share * (1 - share) / count),
                {"long_name": "its standard error"},
            ),
        },
        {
            "t": ("time", t),
            "N": ("size", list(plan.runs)),
            "algorithm": list(RANDOM),
            "eta_rate": ("rate", list(plan.rates)),
        },
    )


def _limit(paths: int, seed: int) -> xr.Dataset:
    """Compute m of p-SGD by DMFT from small m0, and the growth rates d ln m/dt over spans of time.

    The errors of the rates follow from those of m at both ends of a span.
    """
    t = np.concatenate([[0.0], np.geomspace(0.1, SPANS[-1][1], 60)])
    t = np.unique(np.round(np.concatenate([t, np.ravel(SPANS)]) / ETA_LIMIT)) * ETA_LIMIT
    values = [
        theory_of(setting(ALPHA, ETA_LIMIT, m0, "p-SGD", **RANDOM["p-SGD"]), t, paths, seed + k)
        for k, m0 in enumerate(GROWING)
    ]
    m, error = (np.stack([entry[name].values for entry in values]) for name in ("m", "m_error"))
    rate, rate_error = np.empty((2, len(GROWING), len(SPANS)))
    for number, span in enumerate(SPANS):
        low, high = (int(np.argmin(np.abs(t - value))) for value in span)
        rate[:, number] = np.log(np.abs(m[:, high] / m[:, low])) / (t[high] - t[low])
        rate_error[:, number] = np.hypot(error[:, high] / m[:, high], error[:, low] / m[:, low]) / (
            t[high] - t[low]
        )
    return xr.Dataset(
        {
            "m_limit": (("start", "time_limit"), m, {"long_name": "m of p-SGD by DMFT"}),
            "m_limit_error": (("start", "time_limit"), error, {"long_name": "its standard error"}),
            "growth": (
                ("start", "span"),
                rate,
                {"long_name": "d ln m/dt over a span of time, N -> infinity"},
            ),
            "growth_error": (
                ("start", "span"),
                np.abs(rate_error),
                {"long_name": "its standard error"},
            ),
        },
        {
            "t_limit": ("time_limit", t),
            "m0_limit": ("start", list(GROWING)),
            "span_begin": ("span", [low for low, _ in SPANS]),
            "span_end": ("span", [high for _, high in SPANS]),
        },
    )


def _describe(plan: Sizes, data: xr.Dataset) -> str:
    """Describe the measurements in words."""
    plateaus = [
        float(entry[np.isfinite(entry)][-1]) for entry in data["m"].sel(algorithm="GD").values
    ]
    text = "median |m| of GD at the end: " + ", ".join(
        f"{value:.2f} (N = {N})" for N, value in zip(plan.runs, plateaus, strict=True)
    )
    text += "; time at which that of p-SGD is .9: "
    text += ", ".join(
        f"{value:.4g}" if math.isfinite(value) else f"not by {plan.end:g}"
        for value in data["time_to_recover"].values
    )
    if len(plan.rates) > 1:
        later = _median(data["time_rate"].values[-1], axis=1)  # of those that recover
        text += f"; share recovered by t = {plan.end:g}: " + ", ".join(
            f"{value:.0%}" for value in data["share"].values[0, :, -1]
        )
        text += f", at eta = {plan.rates[-1]:g}: " + ", ".join(
            f"{value:.0%}" for value in data["share"].values[-1, :, -1]
        )
        text += " (median times of those: " + ", ".join(f"{value:.4g}" for value in later) + ")"
    if "growth" in data:
        rates = zip(
            GROWING, data["growth"].values[:, -1], data["growth_error"].values[:, -1], strict=True
        )
        text += "; DMFT, d ln m/dt late: " + ", ".join(
            f"{rate:.4f} ({error:.4f}) from m0 = {m0:g}" for m0, rate, error in rates
        )
    return text
