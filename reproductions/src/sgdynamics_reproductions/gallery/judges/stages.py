"""Judges of the figures about training in stages and by several workers."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Judgement,
    agreement,
    format_list,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

# Means of runs at dimension d differ from the limit by up to this multiple of 1/d, relatively.
PER_DIMENSION = 12.0
EXACT_SHARES = {2: 2 / 3, 3: 0.630993}
GOLDEN = (np.sqrt(5) - 1) / 2


@judge_of(
    "figure_1",
    "generations under three mixtures, the best share of real labels, weak-to-strong learning",
    "Generations without real labels get worse, 61.8% real labels are best, and a strong student "
    "recovers 40% of the gap to its ceiling",
)
def generations(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE at the ends of generations, and shares with exact ones."""
    d = data.attrs["d"]
    points = data.sizes["time"] // data.sizes["generation"]
    ends = data.excess_risk.values[:, points - 1 :: points]
    first, last = ends[:, 0], ends[:, -1]
    shares = dict(zip(data["count"].values.tolist(), data.best_share.values, strict=True))
    strong = data.strong_runs.values[:, -1]
    gain = data.weak_runs.values - strong
    expected = np.interp(data.strong_point, data.strong_time, data.strong_risk)
    return judge_claims(
        f"excess risk of the last generation {format_list(last.round(4))} of the three mixtures; "
        f"best shares {format_list(data.best_share.values.round(4))}; gap recovered "
        f"{float(data.gap):.2f}",
        *(
            mean_over_runs(runs - line).agrees(
                f"{name}: the mean of runs is the ODE",
                0.0,
                tolerance=PER_DIMENSION / d * line,
                scale=0.25 * line,
                scale_words="a quarter of the excess risk",
            )
            for name, runs, line in zip(
                data.mixture.values, data.excess_risk_runs.values, ends, strict=True
            )
        ),
        larger("Generations without real labels get worse", np.diff(ends[0]), 0.0, scale=1e-3),
        larger(
            "With 61.8% real labels the last generation is better than the first",
            first[2] - last[2],
            0.0,
            scale=1e-3,
        ),
        agreement(
            "The best shares of two and three generations are the exact ones",
            [shares[count] for count in EXACT_SHARES],
            0.0,
            list(EXACT_SHARES.values()),
            tolerance=1e-3,
            scale=0.01,
        ),
        agreement(
            "The best share tends to the golden ratio",
            shares[max(shares)],
            0.0,
            GOLDEN,
            tolerance=2e-3,
            scale=0.01,
        ),
        agreement(
            "The strong student recovers 40% of the gap",
            float(data.gap),
            0.0,
            0.40,
            tolerance=0.01,
            scale=0.05,
        ),
        mean_over_runs(data.strong_runs.values - expected).agrees(
            "Runs of the strong student follow the ODE",
            0.0,
            tolerance=PER_DIMENSION / d * expected,
            scale=0.25 * expected,
            scale_words="a quarter of the excess risk",
        ),
        larger(
            "The strong student surpasses the weak one in runs",
            gain.mean(),
            gain.std(ddof=1) / np.sqrt(len(gain)),
            scale=1e-3,
            runs=len(gain),
        ),
    )


@judge_of(
    "figure_2",
    "local SGD, DiLoCo, workers with different teachers, and delays",
    "Four workers that average rarely are as good as a batch of four, long rounds move the limit "
    "of workers with different teachers, and delays lower the largest stable rate",
)
def many_workers(data: xr.Dataset) -> Judgement:
    """Compare workers with the ODE, with one worker and a batch, and rates with the line."""
    d = data.attrs["d"]
    cases = list(data.case.values)
    last = dict(zip(cases, data.excess_risk.values[:, -1], strict=True))
    lines = {
        name: np.interp(data.point, data.time, data.excess_risk[cases.index(name)])
        for name in data.simulated.values
    }
    return judge_claims(
        f"excess risk at the end: {', '.join(f'{n} {value:.4f}' for n, value in last.items())}; "
        f"in the limit of rounds of {format_list(data.length.values)} d samples: "
        f"{format_list(data.limit_risk.values.round(4))}",
        *(
            mean_over_runs(runs - lines[name]).agrees(
                f"{name}: the mean of runs is the ODE",
                0.0,
                tolerance=PER_DIMENSION / d * lines[name],
                scale=0.25 * lines[name],
                scale_words="a quarter of the excess risk",
            )
            for name, runs in zip(data.simulated.values, data.excess_risk_runs.values, strict=True)
        ),
        larger(
            "Four workers have less than half of the excess risk of one",
            last["one worker"] - 2 * last["four workers"],
            0.0,
            scale=1e-3,
        ),
        agreement(
            "Four workers are as good as a batch of four",
            last["four workers"] / last["batch of four"],
            0.0,
            1.0,
            tolerance=0.02,
            scale=0.1,
        ),
        larger(
            "Longer rounds lower the limit of workers with different teachers",
            -np.diff(data.limit_risk.values),
            0.0,
            scale=1e-5,
        ),
        larger("A longer delay lowers the rate", -np.diff(data.stable_rate), 0.0, scale=1e-6),
        larger(
            "Errors decay below the line and grow above it",
            data.growth.values * np.array([-1.0, 1.0]),
            0.0,
            scale=0.01,
        ),
    )
