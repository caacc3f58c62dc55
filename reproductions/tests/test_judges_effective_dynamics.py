"""Judges of *High-dimensional limit theorems*: each claim, broken by a stated amount, turns
"reproduced" into "differs".
"""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, describe, scale
from sgdynamics_reproductions.gallery.judges import effective_dynamics as judges

RUNS, N = 512, 500


def paths(rng, t, rate):
    """Normal numbers of variance one whose correlation decays with time."""
    z = np.empty((RUNS, len(t)))
    z[:, 0] = rng.normal(size=RUNS)
    keep = math.exp(-rate * (t[1] - t[0]))
    for k in range(1, len(t)):
        z[:, k] = keep * z[:, k - 1] + math.sqrt(1 - keep**2) * rng.normal(size=RUNS)
    return z


@cache
def spiked_tensor():
    t, rng = np.linspace(0, 10, 41), np.random.default_rng(0)
    low, high = np.sqrt(5 / N) * np.sqrt(1.1 - np.exp(-1.6 * t)), np.sqrt(1 / N) * np.exp(0.8 * t)
    first = rng.normal(size=RUNS) + 0.02
    above = np.where(
        high < 0.15,
        first[:, None] * high,
        math.sqrt(0.2) * np.sign(first)[:, None] * (1 + 0.05 * rng.normal(size=(RUNS, 41))),
    )
    return xr.Dataset(
        {
            "m": (("snr", "run", "time"), np.stack([low * paths(rng, t, 0.8), above])),
            "standard_deviation_limit": (("snr", "time"), np.stack([low, high])),
        },
        {"snr": [0.8, 1.2], "t": ("time", t)},
        {"n": N},
    )


def at(snr, where, factor):
    """m of one snr multiplied at some times."""

    def alter(data):
        size = np.ones((2, 1, data.sizes["time"]))
        size[snr, 0, where] = factor
        return data.assign(m=data.m * size)

    return alter


@cache
def mixture(kind, share, attracting=False, rank=None):
    """As the document says it is: arcs that drive away. `attracting`: as they are."""
    rng, runs, arc_runs = np.random.default_rng(0), 320, 1024
    types, alpha = (2, 0.1) if kind == "binary" else (4, 0.1)
    arcs, t = (
        types // 2,
        np.linspace(0, 20 if kind == "binary" else 60, 41 if kind == "binary" else 25),
    )
    C = math.log((1 - types * alpha) / (types * alpha))
    r = 2 * C * (alpha - alpha**2 * types)
    V = np.full(arcs, 0.17)
    grown = -np.expm1(-2 * r * t) if attracting else np.expm1(2 * r * t)
    z = rng.normal(size=(arc_runs, 1 if not attracting else len(t), arcs))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    good = np.arange(runs) < round(share * runs)
    angle = rng.uniform(0.2, 1.3, size=runs)
    ring = math.sqrt(C) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    m = np.where(good[:, None], math.sqrt(C) * np.array([1.0, -1.0]), ring) * (
        1 + 0.02 * rng.normal(size=(runs, 1))
    )
    direction = np.eye(4)[: arcs if rank is None else rank]
    return xr.Dataset(
        {
            "optimal": (("run", "time"), np.repeat(good[:, None], 8, axis=1)),
            "m_end": (("run", "unit", "signal"), m[:, :, None]),
            "rho_chain_noiseless": (
                ("arc_run", "arc_time", "arc"),
                np.sqrt(V * grown[:, None]) * z,
            ),
            "rho_deviation_stationary": ("arc", np.sqrt(V)),
            "covariance_chain": (("u", "v"), direction.T @ direction),
            "covariance_chain_noiseless": (("u", "v"), 0.5 * np.eye(4)[:arcs].T @ np.eye(4)[:arcs]),
        },
        {"arc_t": ("arc_time", t), "types": np.arange(1, types + 1)},
        {"ring_radius_squared": C, "alpha": alpha},
    )


@cache
def order():
    high, low = np.array([30, 29, 40]), np.array([35, 48, 62])
    return xr.Dataset(
        {"fraction": (("snr", "size"), np.stack([low, high]) / 320)},
        {"snr": [20.0, 1000.0], "N": ("size", [20, 60, 200])},
        {"runs": 320},
    )


binary, xor = partial(mixture, "binary", 0.5), partial(mixture, "xor", 3 / 32)
both = {
    "binary": (judges.binary_mixture, binary, partial(mixture, "binary")),
    "xor": (judges.xor_mixture, xor, partial(mixture, "xor")),
}
BROKEN = [
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "stable diffusion",
        "variance at lambda = .8 40% larger",
        at(0, slice(None), math.sqrt(1.4)),
    ),
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "stable diffusion",
        "variance at lambda = .8 40% smaller",
        at(0, slice(None), math.sqrt(0.6)),
    ),
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "unstable diffusion",
        "early variance at 1.2 60% larger",
        at(1, slice(0, 8), math.sqrt(1.6)),
    ),
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "ends at",
        "m^2 at the end 25% larger",
        at(1, -1, math.sqrt(1.25)),
    ),
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "ends at",
        "m^2 at the end 25% smaller",
        at(1, -1, math.sqrt(0.75)),
    ),
    Break(
        judges.spiked_matrix,
        spiked_tensor,
        "either sign",
        "all runs at +",
        lambda data: data.assign(m=np.abs(data.m)),
    ),
    Break(
        judges.binary_mixture,
        binary,
        "probability 1/2",
        "optimal in .7 of the runs",
        lambda data: mixture("binary", 0.7),
    ),
    Break(
        judges.binary_mixture,
        binary,
        "probability 1/2",
        "optimal in .3 of the runs",
        lambda data: mixture("binary", 0.3),
    ),
    Break(
        judges.binary_mixture, binary, "runs end at", "end points 10% too far", scale("m_end", 1.1)
    ),
    Break(
        judges.binary_mixture,
        binary,
        "rank 1",
        "rank 2",
        lambda data: mixture("binary", 0.5, rank=2),
    ),
    Break(
        judges.xor_mixture,
        xor,
        "3/32",
        "optimal in 29/32 of the runs",
        lambda data: mixture("xor", 29 / 32),
    ),
    Break(
        judges.xor_mixture,
        xor,
        "3/32",
        "optimal in .22 of the runs",
        lambda data: mixture("xor", 0.22),
    ),
    Break(
        judges.xor_mixture,
        xor,
        "3/32",
        "optimal in none of the runs",
        lambda data: mixture("xor", 0.0),
    ),
    Break(judges.xor_mixture, xor, "rank 2", "rank 1", lambda data: mixture("xor", 3 / 32, rank=1)),
    Break(judges.xor_mixture, xor, "rank 2", "rank 3", lambda data: mixture("xor", 3 / 32, rank=3)),
    *(
        Break(
            judge,
            data,
            "noise about the arcs",
            f"{kind}: variance of the noise {name}",
            scale("rho_chain_noiseless", size),
        )
        for kind, (judge, data, _) in both.items()
        for name, size in (("half as much again", math.sqrt(1.5)), ("halved", math.sqrt(0.5)))
    ),
    *(
        Break(
            judge,
            data,
            "unstable",
            f"{kind}: the arcs attract",
            lambda whole, broken_data=broken_data, s=share: broken_data(s, attracting=True),
        )
        for (kind, (judge, data, broken_data)), share in zip(
            both.items(), (0.5, 3 / 32), strict=True
        )
    ),
    Break(
        judges.order_of_limits,
        order,
        "3/32 if",
        "a share of .18 at snr = 1000",
        scale("fraction", [[1.0], [2.0]]),
    ),
    Break(
        judges.order_of_limits,
        order,
        "More runs",
        "3/32 at snr = 20 too",
        scale("fraction", [[0.5], [1.0]]),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (judges.spiked_matrix, spiked_tensor, lambda data: data.isel(run=slice(0, 40))),
        (judges.binary_mixture, binary, lambda data: data.isel(run=slice(130, 190))),
        (judges.xor_mixture, xor, lambda data: data.isel(run=slice(26, 66))),
        (judges.binary_mixture, binary, lambda data: data.isel(arc_run=slice(0, 60))),
        (judges.order_of_limits, order, lambda data: data.assign_attrs(runs=64)),
    ],
    ids=[
        "spiked_matrix",
        "binary_mixture",
        "xor_mixture",
        "binary_mixture, arcs",
        "order_of_limits",
    ],
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), few(data()))


@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_words_follow_the_data(kind):
    judge, data, broken_data = both[kind]
    leave, back = judge(data()), judge(broken_data(0.5, attracting=True))
    assert "they leave the arcs" in leave.words, describe(leave)
    assert "they return to the arcs" in back.words, describe(back)
    assert (
        f"rank {'2 and 3' if kind == 'xor' else '1 and 2'}"
        in judge(broken_data(0.5, rank=3 if kind == "xor" else 2)).words
    )
