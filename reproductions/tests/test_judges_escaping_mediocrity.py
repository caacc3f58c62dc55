"""Judges of *Escaping mediocrity*: each claim, broken by a stated amount, turns "reproduced" into
"differs".
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics.papers.escaping_mediocrity import exit_time_annealed, stochastic_shift
from sgdynamics_reproductions.escaping_mediocrity.landscape_figure import hessian_on_the_sphere
from sgdynamics_reproductions.gallery.judges import escaping_mediocrity as judges


def falling(t, exit_time, height=2.0):
    """A risk that leaves its plateau about the exit time."""
    return height / (1 + np.exp(6 * (t - np.asarray(exit_time)[..., None])))


@cache
def one_start(spread=1.0):
    t, rng, ode = np.linspace(0, 3.5, 121), np.random.default_rng(0), 1.1
    normal = rng.normal(size=(2, 512))
    normal -= normal.mean(axis=1, keepdims=True)
    left = {"SGD": ode + 0.3 * normal[0], "SDE": ode + 0.3 * spread * normal[1]}
    return xr.Dataset(
        {
            f"excess_risk_{name}": (("run", "time"), falling(t, times))
            for name, times in left.items()
        }
        | {f"exit_time_{name}": (f"exit_{name}", times) for name, times in left.items()}
        | {
            "excess_risk_ODE": (("one", "time"), falling(t, [ode])),
            "exit_time_ODE": ("exit_ODE", [ode]),
        },
        {"t": ("time", t)},
        {"p": 1, "d": 500, "gamma": 0.05, "noise": 0.0},
    )


@cache
def ratios():
    p, d, ratio = np.array([1.0, 4.0]), np.array([100, 300, 1000]), 0.1
    annealed = np.array([[exit_time_annealed(a, b, ratio * a, 0.0, 0.1) for b in d] for a in p])
    quenched = annealed + np.array([[0.4], [0.04]])
    measured = quenched * (1 + 0.01 * np.random.default_rng(0).normal(size=quenched.shape))
    return xr.Dataset(
        {
            "measured": (("p", "d"), measured),
            "standard_error": (("p", "d"), 0.015 * quenched),
            "annealed": (("p", "d"), annealed),
            "quenched": (("p", "d"), quenched),
            "corrected": (
                ("p", "d"),
                quenched + np.array([[stochastic_shift(a, ratio * a, 0.0)] for a in p]),
            ),
        },
        {"p": p.astype(int), "d": d},
        {"gamma_over_p": ratio, "noise": 0.0},
    )


@cache
def heads(trained=1.0, after=2.0, runs=32):
    """`trained`: exit times of runs with a trained head, over the others; `after`: the risk of
    fixed over trained heads.
    """
    t, rng = np.linspace(0, 3, 161), np.random.default_rng(0)
    left = 0.47 * (1 + 0.05 * rng.normal(size=runs))
    pair = np.stack([left, trained * left * (1 + 0.01 * rng.normal(size=runs))])
    overlap = 1 / (1 + np.exp(-8 * (t - pair[..., None])))
    risk = (
        np.exp(-t)
        * (1 + 0.1 * rng.normal(size=(2, runs, 1)))
        * np.array([after, 1.0])[:, None, None]
    )
    return xr.Dataset(
        {
            "largest_overlap": (("p", "head", "run", "time"), overlap[None]),
            "excess_risk": (("p", "head", "run", "time"), risk[None]),
            "excess_risk_ode": (
                ("p", "head", "time"),
                np.stack([2 * np.exp(-t), np.exp(-t)])[None],
            ),
            "exit_time_ode": (("p", "head"), [[0.47, 0.471]]),
        },
        {"p": [20], "t": ("time", t)},
        {"d": 200, "threshold": 0.5},
    )


@cache
def means():
    t, rng = np.linspace(0, 1.6, 81), np.random.default_rng(0)
    lines = np.stack([falling(t, 0.9, 1.2), falling(t, 0.8, 1.2)])
    curves = np.stack(
        [
            falling(t, 0.89 + 0.07 * rng.normal(size=96), 1.2),
            falling(t, 0.79 + 0.04 * rng.normal(size=96), 1.2),
        ]
    )
    curves[:, :, 0] = lines[:, :1]
    return xr.Dataset(
        {"excess_risk": (("p", "run", "time"), curves), "excess_risk_ode": (("p", "time"), lines)},
        {"p": [5, 20], "t": ("time", t)},
        {"d": 500},
    )


def ode_in_time(factor):
    """The ODE's time stretched."""

    def alter(data):
        t = data.t.values
        lines = [np.interp(t / factor, t, line) for line in data.excess_risk_ode.values]
        return data.assign(excess_risk_ode=(("p", "time"), np.array(lines)))

    return alter


@cache
def golf():
    """The Hessians are real, the samples are the formula's."""
    sizes, d = (3, 6), np.array([100, 300, 1000])
    rows = {name: np.full((2, 6), np.nan) for name in ("saddle", "minimum")}
    toward = np.zeros(2)
    for row, size in enumerate(sizes):
        values, axes = np.linalg.eigh(hessian_on_the_sphere(np.eye(size)[1]))
        rows["saddle"][row, :size], toward[row] = values, abs(axes[0, 0])
        rows["minimum"][row, :size] = np.linalg.eigvalsh(hessian_on_the_sphere(np.eye(size)[0]))
    slope = 1 / (2 * 0.1 * 1.6)
    return xr.Dataset(
        {f"eigenvalues_{name}": (("size", "index"), value) for name, value in rows.items()}
        | {
            "toward_teacher": ("size", toward),
            "samples": ("d", 9 + slope * np.log(d / 100) + np.array([0.1, -0.1, -0.2])),
            "samples_error": ("d", [0.35, 0.35, 0.35]),
        },
        {"hessian_d": ("size", list(sizes)), "d": d},
        {"gamma": 0.1},
    )


def entry(name, index, value):
    def alter(data):
        data[name].values[index] = value
        return data

    return alter


def flat_in_d(data):
    return data.assign(samples=data.samples * 0 + 9.0)


exits, risks = judges.exits_from_one_start, judges.mean_of_runs
BROKEN = [
    Break(
        exits, one_start, "exit time of SGD", "SGD leaves 20% later", scale("exit_time_SGD", 1.2)
    ),
    Break(
        exits, one_start, "exit time of SGD", "SGD leaves 20% sooner", scale("exit_time_SGD", 0.8)
    ),
    Break(
        exits,
        one_start,
        "exit time of SDE",
        "the SDE leaves 20% later",
        scale("exit_time_SDE", 1.2),
    ),
    Break(
        exits,
        one_start,
        "exit time of SGD",
        "the ODE leaves 20% sooner",
        scale("exit_time_ODE", 0.8),
    ),
    Break(exits, one_start, "has no spread", "the SDE has no spread", lambda data: one_start(0.0)),
    Break(
        exits,
        one_start,
        "the spread of SGD",
        "the SDE has half of the spread",
        lambda data: one_start(0.5),
    ),
    Break(
        exits,
        one_start,
        "the spread of SGD",
        "the SDE has 1.5 times the spread",
        lambda data: one_start(1.5),
    ),
    Break(
        judges.exit_ratios,
        ratios,
        "quenched formula",
        "measured times 12% longer",
        scale("measured", 1.12),
    ),
    Break(
        judges.exit_ratios,
        ratios,
        "quenched formula",
        "measured times 12% shorter",
        scale("measured", 0.88),
    ),
    Break(
        judges.exit_ratios,
        ratios,
        "neglected",
        "the ODE's own time 12% longer",
        scale("corrected", 1.15),
    ),
    Break(
        judges.exit_ratios,
        ratios,
        "log d",
        "growth with log d 40% more",
        lambda data: data.assign(measured=1.4 * data.measured - 0.3),
    ),
    Break(
        judges.exit_ratios,
        ratios,
        "large width",
        "formulas as far apart at p = 4",
        shift("quenched", [[0.0], [0.36]]),
    ),
    Break(
        judges.heads,
        heads,
        "ODE: the exit",
        "the trained head's ODE leaves 5% later",
        scale("exit_time_ode", [[1.0, 1.05]]),
    ),
    Break(
        judges.heads,
        heads,
        "SGD: the exit",
        "runs with a trained head leave 5% later",
        lambda data: heads(trained=1.05),
    ),
    Break(
        judges.heads,
        heads,
        "SGD: after the exit",
        "runs end alike",
        lambda data: heads(after=1.0),
    ),
    Break(
        judges.heads,
        heads,
        "ODE: after the exit",
        "ODEs end alike",
        scale("excess_risk_ode", np.array([0.5, 1.0])[None, :, None]),
    ),
    Break(risks, means, "the same risk", "the ODE 8% too high", scale("excess_risk_ode", 1.08)),
    Break(risks, means, "p = 20", "the ODE 8% too high", scale("excess_risk_ode", 1.08)),
    Break(risks, means, "p = 5", "the ODE 15% too slow", ode_in_time(1.15)),
    Break(risks, means, "p = 20", "the ODE 15% too fast", ode_in_time(0.85)),
    Break(
        judges.golf_course,
        golf,
        "one direction down",
        "a second direction down",
        entry("eigenvalues_saddle", (1, 3), -0.1),
    ),
    Break(
        judges.golf_course,
        golf,
        "one direction down",
        "a direction that is not flat",
        entry("eigenvalues_saddle", (1, 3), 0.1),
    ),
    Break(
        judges.golf_course,
        golf,
        "-4",
        "the one down is -3.9",
        entry("eigenvalues_saddle", (0, 0), -3.9),
    ),
    Break(
        judges.golf_course,
        golf,
        "points to",
        "the one down is .01 off",
        scale("toward_teacher", 0.99),
    ),
    Break(
        judges.golf_course,
        golf,
        "minimum",
        "a direction down at w*",
        entry("eigenvalues_minimum", (0, 2), -1.0),
    ),
    Break(judges.golf_course, golf, "d log d", "n ~ d", flat_in_d),
    Break(
        judges.golf_course,
        golf,
        "d log d",
        "n/d grows twice as fast",
        lambda data: data.assign(samples=2 * data.samples - 9),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


def fewer(data, count):
    return data.isel(
        {
            name: slice(0, count)
            for name in data.dims
            if name == "run" or name in ("exit_SGD", "exit_SDE")
        }
    )


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (judges.exits_from_one_start, one_start, lambda data: fewer(data, 30)),
        (judges.exit_ratios, ratios, scale("standard_error", 2.5)),
        (judges.heads, heads, lambda data: fewer(data, 3)),
        (judges.mean_of_runs, means, lambda data: fewer(data, 6)),
        (judges.golf_course, golf, scale("samples_error", 3.0)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), few(data()))


def test_words_follow_the_data():
    assert "have not left" not in judges.exits_from_one_start(one_start()).words
    times = one_start().exit_time_SGD.values.copy()
    times[:3] = np.nan
    late = judges.exits_from_one_start(one_start().assign(exit_time_SGD=("exit_SGD", times)))
    assert "3 runs have not left" in late.words
    assert late.findings[0].value >= judges.exits_from_one_start(one_start()).findings[0].value


def test_hessian_of_the_golf_course():
    for m in (0.0, 0.3, 1.0):
        w = np.array([m, math.sqrt(1 - m**2), 0.0, 0.0])
        P, star = np.eye(4) - np.outer(w, w), np.eye(4)[0]
        np.testing.assert_allclose(
            hessian_on_the_sphere(w), 4 * (m**2 * P - np.outer(P @ star, P @ star)), atol=2e-5
        )
