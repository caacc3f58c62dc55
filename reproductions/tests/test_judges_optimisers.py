"""Judges of optimisers: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics_reproductions.gallery.judges import optimisers as judges
from test_judges_several_inputs import about

ALPHA = np.linspace(0, 8, 33)
SOME = ALPHA[4::4]


def falling(rate, floor=0.01):
    return 0.2 * np.exp(-rate * ALPHA) + floor


def near(line, runs, seed=0, spread=0.03):
    """Draw runs about a line, with noise proportional to the line."""
    return line * about(np.ones_like(line), spread, runs, seed)


def change_entries(name, index, by):
    """Return a change that multiplies entries of a variable."""

    def alter(data):
        data[name].values[index] *= by
        return data

    return alter


@cache
def eight():
    lines = np.stack([falling(0.3), falling(0.6)])
    return xr.Dataset(
        {
            "excess_risk": (("optimiser", "alpha"), lines),
            "excess_risk_runs": (
                ("optimiser", "run", "point"),
                np.stack([near(line[4::4], 48, row) for row, line in enumerate(lines)]),
            ),
        },
        {"optimiser": ["plain SGD", "Adam"]},
        {"every": 4, "d": 400},
    )


@cache
def reused_batches():
    """Runs at d = 1e3, 1e4 and 1e5 whose noise has exactly the variance 1/d."""
    sizes, alpha, runs = np.array([1000, 10_000, 100_000]), np.linspace(0, 4, 17), 48
    line = np.stack([-0.04 * alpha, -0.045 * alpha], axis=-1)
    noise = np.stack([about(np.zeros((4, 2)), 1.0, runs, row) for row in range(3)])
    noise *= (1 / np.sqrt(sizes * np.mean(noise[:, :, -1] ** 2, axis=(1, 2))))[:, None, None, None]
    closed_form = np.array([[-0.4, -0.5], [-1.6, -2.0]])
    return xr.Dataset(
        {
            "M": (("use", "alpha", "unit"), np.stack([0 * line, line])),
            "M_runs": (("use", "d", "run", "point", "unit"), np.stack([noise, line[4::4] + noise])),
            "slope": (("rate", "unit"), closed_form * np.array([[0.995], [0.9]])),
            "slope_closed": (("rate", "unit"), closed_form),
        },
        {"d": sizes, "point": alpha[4::4], "rate": [0.01, 0.02]},
        {"every": 4},
    )


def drifts(data):
    """Runs that use samples once have the overlaps of the smallest d at any d."""
    data.M_runs.values[0] = data.M_runs.values[0, 0]
    return data


@cache
def velocities():
    plain = falling(0.4)
    slow = np.stack([falling(0.25), falling(0.35)])
    return xr.Dataset(
        {
            "plain": ("alpha", plain),
            "fixed": (("beta", "alpha"), np.stack([plain, plain])),
            "slow": (("memory", "alpha"), slow),
            "fixed_runs": (
                ("beta", "d", "run", "point"),
                np.array(
                    [
                        [near(plain[4::4], 200, 2 * row + column) for column in range(2)]
                        for row in range(2)
                    ]
                ),
            ),
            "slow_runs": (
                ("memory", "run", "point"),
                np.stack([near(line[4::4], 200, 9 + row) for row, line in enumerate(slow)]),
            ),
        },
        {"alpha": ALPHA, "beta": [0.5, 0.9], "memory": [0.5, 2.0], "d": [100, 1000]},
        {"every": 4},
    )


def as_plain(data):
    """A slow velocity that is plain SGD, in its ODE too."""
    plain = data.plain.values
    data.slow_runs.values *= plain[4::4] / data.slow.values[:, None, 4::4]
    data.slow.values[:] = plain
    return data


@cache
def batches():
    B, tau = np.array([1, 4, 16, 64]), np.array([1.0, 4.0, 10.0, 80.0, 90.0, 100.0])
    powers = (-1.0, -0.55, -0.5)
    lines = np.array([[0.01 * b**e * (1 + 10 * np.exp(-tau / 3)) for b in B] for e in powers])
    runs = np.array(
        [
            [near(line, 24, 4 * row + column) for column, line in enumerate(rows)]
            for row, rows in enumerate(lines)
        ]
    )
    return xr.Dataset(
        {
            "excess_risk_runs": (("optimiser", "batch", "run", "point"), runs),
            "excess_risk": (("solved", "tau"), lines[2, [0, 2]]),
            "normalised_runs": (("run", "early"), runs[1, 0, :, :3]),
        },
        {
            "optimiser": ["SGD", "Muon", "Muon, memory 3"],
            "batch": B,
            "point": tau,
            "solved": [1, 16],
            "tau": tau,
        },
        {"d": 300, "late": 80.0},
    )


@cache
def noisy():
    lines = np.array(
        [
            [falling(0.3), 0.21 - 0.01 * ALPHA, 0.21 + 0.02 * ALPHA],
            [falling(0.2), falling(0.1, 0.01), 0.21 - 0.01 * ALPHA],
        ]
    )
    runs = np.array(
        [
            [near(line[4::4], 100, 3 * row + column) for column, line in enumerate(rows)]
            for row, rows in enumerate(lines)
        ]
    )
    best = np.array([[4, 4, 2], [4, 4, 4]])  # of rates that double
    last = (
        0.02
        * np.array([[1.0, 2.0, 4.0], [1.1, 2.2, 4.4]])[..., None]
        * 2.0 ** (0.3 * np.abs(np.arange(7) - best[..., None]))
    )
    return xr.Dataset(
        {
            "excess_risk": (("update", "noise", "alpha"), lines),
            "excess_risk_runs": (("update", "noise", "run", "point"), runs),
            "last": (("update", "noise", "rate"), last),
            "lr": (("update", "rate"), np.stack([2.0 ** np.arange(7)] * 2)),
        },
        {"update": ["plain", "clipped"], "noise": [0.1, 1.0, 10.0]},
        {"every": 4, "d": 1000, "rate": 1.0},
    )


def level(row, by):
    """One update at the largest noise ends elsewhere, its ODE with it."""

    def alter(data):
        data.excess_risk.values[row, -1, 1:] *= by
        data.excess_risk_runs.values[row, -1] *= by
        return data

    return alter


@cache
def halves():
    M = np.stack(
        [
            np.stack([1 - 0.5 * np.exp(-ALPHA * fast), 1 - 0.5 * np.exp(-ALPHA * slow)], -1)
            for fast, slow in ((0.9, 0.1), (0.6, 0.2))
        ]
    )
    risk = np.stack([falling(0.3), falling(0.4)])
    runs = [curve[4::4] + about(np.zeros((8, 2)), 0.03, 32, row) for row, curve in enumerate(M)]
    return xr.Dataset(
        {
            "M": (("optimiser", "alpha", "block"), M),
            "M_runs": (("optimiser", "run", "point", "block"), np.stack(runs)),
            "excess_risk": (("optimiser", "alpha"), risk),
            "excess_risk_runs": (
                ("optimiser", "run", "point"),
                np.stack([near(curve[4::4], 32, 5 + row) for row, curve in enumerate(risk)]),
            ),
            "speed": (("optimiser", "block"), np.array([[0.9, 0.1], [0.6, 0.2]])),
        },
        {
            "optimiser": ["SGD", "Adam"],
            "eigenvalue": ("block", [1.8, 0.2]),
            "fraction": ("block", [0.5, 0.5]),
        },
        {"every": 4, "d": 300},
    )


@cache
def privacy():
    sigma = np.array([0.0, 0.05, 0.1, 0.4])
    lines = falling(0.3) + sigma[:, None] ** 2 * (1 - np.exp(-ALPHA))
    return xr.Dataset(
        {
            "excess_risk": (("sigma", "alpha"), lines),
            "excess_risk_runs": (
                ("sigma", "run", "point"),
                np.stack([near(line[4::4], 100, row) for row, line in enumerate(lines)]),
            ),
            "growth": ("sigma", -0.1 + sigma**2),
        },
        {"sigma": sigma, "point": SOME},
        {"every": 4, "d": 1000, "lr": 1.0},
    )


def steeper(data):
    """At the smallest noise the ODE costs as much as it does where the cost grows as sigma^1.5."""
    lines = data.excess_risk.values
    lines[1] = lines[0] + (lines[2] - lines[0]) / 2**1.5
    return data


def unpaid(data):
    """The largest noise costs nothing, in the ODE either."""
    data.excess_risk_runs.values[-1] *= (
        data.excess_risk.values[0, 4::4] / data.excess_risk.values[-1, 4::4]
    )
    data.excess_risk.values[-1] = data.excess_risk.values[0]
    return data


@cache
def data_set():
    """Two optimisers on a fixed data set: runs on their DMFT, growth at the edge, sharpness."""
    names, points, runs = ["gradient descent", "SAM"], 6, 48
    steps = np.arange(points)
    train = np.stack([0.2 * np.exp(-0.5 * steps) + 0.01, 0.2 * np.exp(-0.4 * steps) + 0.01])
    lines = {"M": 1 - 0.6 * np.exp(-0.4 * steps), "risk": 0.3 * np.exp(-0.3 * steps) + 0.02}
    relative = np.array([0.8, 0.9, 1.1, 1.2])
    curves = {name: np.tile(line, (2, 1)) for name, line in lines.items()}
    samples = {
        f"{name}_runs": np.stack([near(line, runs, row) for row in range(2)])
        for name, line in lines.items()
    }
    sharpness = np.stack([near(np.array([1 - level]), runs, 9)[:, 0] for level in (0, 0.1, 0.2)])
    growth = near(np.exp(relative - 1), runs, 3, spread=0.001)
    return xr.Dataset(
        {
            **{name: (("optimiser", "point"), value) for name, value in curves.items()},
            **{
                f"{name}_error": (("optimiser", "point"), 1e-4 * value)
                for name, value in curves.items()
            },
            **{name: (("optimiser", "run", "point"), value) for name, value in samples.items()},
            "train": (("optimiser", "point"), train),
            "epoch_M": ("epoch", lines["M"][1:4]),
            "epoch_M_error": ("epoch", 1e-4 * lines["M"][1:4]),
            "epoch_M_runs": (("run", "epoch"), near(lines["M"][1:4], runs, 5)),
            "growth_runs": (("run", "relative"), growth),
            "sharpness": (("radius", "run"), sharpness),
        },
        {"optimiser": names, "relative": relative, "radius": [0.0, 0.2, 0.4]},
        {"d": 400},
    )


def sharp(data):
    """The largest radius ends where the smallest does."""
    data.sharpness.values[-1] = data.sharpness.values[0]
    return data


def stable(data):
    """Runs beyond the edge decay as those below it grow."""
    data.growth_runs.values[:] = 1 / data.growth_runs.values
    return data


BROKEN = [
    Break(judges.fixed_data, data_set, "SAM, erf unit", "runs 20% above", scale("risk_runs", 1.2)),
    Break(judges.fixed_data, data_set, "epochs with", "runs 20% above", scale("epoch_M_runs", 1.2)),
    Break(judges.fixed_data, data_set, "Heavy ball", "decay beyond the edge", stable),
    Break(judges.fixed_data, data_set, "flatter point", "no flatter with radius", sharp),
    Break(
        judges.eight_optimisers,
        eight,
        "Adam: the mean",
        "runs of Adam 8% above",
        change_entries("excess_risk_runs", 1, 1.08),
    ),
    Break(
        judges.reused_samples,
        reused_batches,
        "d = 100000: the mean overlap",
        "overlaps 5% smaller",
        scale("M_runs", 0.95),
    ),
    Break(
        judges.reused_samples,
        reused_batches,
        "the ODE stays",
        "plain SGD drifts in its ODE",
        shift("M", 1e-6),
    ),
    Break(
        judges.reused_samples,
        reused_batches,
        "1/sqrt(d)",
        "overlaps used once do not fall with d",
        drifts,
    ),
    Break(
        judges.reused_samples,
        reused_batches,
        "initial drift",
        "the first drift 3% off",
        scale("slope", 1.03),
    ),
    Break(
        judges.momentum,
        velocities,
        "At fixed beta the ODE",
        "ODEs at fixed beta 1e-4 apart",
        scale("fixed", 1.0001),
    ),
    Break(
        judges.momentum,
        velocities,
        "beta = 0.9, d = 1000",
        "runs 5% above",
        scale("fixed_runs", 1.05),
    ),
    Break(
        judges.momentum,
        velocities,
        "c = 2: the mean",
        "runs with memory 5% above",
        change_entries("slow_runs", 1, 1.05),
    ),
    Break(
        judges.momentum, velocities, "above plain SGD", "a slow velocity changes nothing", as_plain
    ),
    Break(
        judges.muon_and_batches,
        batches,
        "SGD: the late excess",
        "SGD falls as 1/sqrt(B)",
        change_entries("excess_risk_runs", (0, 3), 2.0),
    ),
    Break(
        judges.muon_and_batches,
        batches,
        "Muon: the late excess",
        "Muon falls as 1/B",
        change_entries("excess_risk_runs", (1, 3), 0.5),
    ),
    Break(
        judges.muon_and_batches,
        batches,
        "B = 16: the mean",
        "runs with memory 15% above",
        change_entries("excess_risk_runs", (2, 2), 1.15),
    ),
    Break(
        judges.muon_and_batches,
        batches,
        "run by run",
        "normalised runs 1e-5 apart",
        scale("normalised_runs", 1.00001),
    ),
    Break(
        judges.clipping,
        noisy,
        "clipped, noise 1:",
        "clipped runs 6% above",
        change_entries("excess_risk_runs", (1, 1), 1.06),
    ),
    Break(judges.clipping, noisy, "ends above", "plain SGD ends below its start", level(0, 0.5)),
    Break(judges.clipping, noisy, "ends below", "clipped SGD ends above its start", level(1, 2.0)),
    Break(
        judges.clipping,
        noisy,
        "25% worse",
        "plain SGD 30% worse than clipped",
        change_entries("last", 0, 1.45),
    ),
    Break(
        judges.clipping,
        noisy,
        "best rate of plain",
        "one rate is best for all noises",
        lambda data: data.assign(last=data["last"][:, :1] + 0 * data["last"]),
    ),
    Break(
        judges.clipping,
        noisy,
        "inside",
        "a best rate at the end",
        change_entries("last", (0, 0, 0), 0.1),
    ),
    Break(
        judges.adam_equalises,
        halves,
        "Initial speeds",
        "the power of Adam .05 off",
        change_entries("speed", (1, 0), 1.12),
    ),
    Break(
        judges.adam_equalises, halves, "Adam: overlaps", "overlaps 8% off", scale("M_runs", 1.08)
    ),
    Break(
        judges.adam_equalises,
        halves,
        "SGD: the mean excess",
        "excess risk 8% off",
        scale("excess_risk_runs", 1.08),
    ),
    Break(
        judges.private,
        privacy,
        "sigma = 0.1: the mean",
        "runs 6% above",
        scale("excess_risk_runs", 1.06),
    ),
    Break(judges.private, privacy, "adds lr^2", "Q grows 5% too much", scale("growth", 1.05)),
    Break(judges.private, privacy, "grows as sigma^2", "the cost begins as sigma^1.5", steeper),
    Break(judges.private, privacy, "noise costs", "noise costs nothing", unpaid),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (judges.eight_optimisers, eight, {"run": 3}),
        (judges.reused_samples, reused_batches, {"run": 6}),
        (judges.momentum, velocities, {"run": 3}),
        (judges.clipping, noisy, {"run": 3}),
        (judges.adam_equalises, halves, {"run": 3}),
        (judges.private, privacy, {"run": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(
        judge, data(), data().isel({name: slice(0, count) for name, count in few.items()})
    )
