"""Judges of samples of several inputs and own rules: each claim, broken by a stated amount, turns
"reproduced" into "differs".
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics.papers.several_inputs import (
    component_path,
    exit_law,
    late_error,
    positional_crossings,
    positional_growth,
    reward_path,
)
from sgdynamics_reproductions.gallery.judges import several_inputs as judges
from sgdynamics_reproductions.several_inputs.reward_figure import CELLS


def about(line, spread, runs, seed=0):
    """Runs about a line, whose mean is on it to a tenth of its error."""
    noise = np.random.default_rng(seed).normal(size=(runs, *np.shape(line)))
    return line + spread * (noise - 0.9 * noise.mean(axis=0))


@cache
def laws():
    alpha, rules = np.geomspace(0.1, 1000, 49), ("hebb", "perceptron", "adatron")
    law = np.array([late_error(rule, alpha) for rule in rules])
    error = law / (1 + 1 / alpha)
    some = np.arange(0, 37, 4)
    return xr.Dataset(
        {
            "error": (("rule", "time"), error),
            "late_error": (("rule", "time"), law),
            "exponent": (
                ("rule", "time"),
                np.gradient(np.log(error), np.log(alpha), axis=1, edge_order=2),
            ),
            "error_runs": (
                ("rule", "run", "point"),
                np.stack([row * about(np.ones(len(some)), 0.03, 64) for row in error[:, some]]),
            ),
            "error_at_runs": (("rule", "point"), error[:, some]),
        },
        {"rule": list(rules), "alpha": ("time", alpha), "alpha_runs": ("point", alpha[some])},
        {"d": 400},
    )


def steeper(data):
    return data.assign(exponent=data.exponent * np.array([[1.0], [1.1], [1.0]]))


@cache
def attention():
    t = np.linspace(0, 8, 49)
    M = np.stack(
        [0.3 + 0.03 * t, 1 - 0.6 * np.exp(-t), 0.1 * np.exp(-t), -0.2 * np.exp(-t)], axis=-1
    )
    Q = np.stack([1 - 0.02 * t, 1 - 0.2 * np.exp(-t), 0.2 * np.exp(-t)], axis=-1)
    risk, at = 0.4 * np.exp(-t / 3), slice(6, None, 6)
    return xr.Dataset(
        {
            "excess_risk": ("time", risk),
            "excess_risk_runs": (("run", "point"), about(risk[at], 0.01, 64)),
            "M": (("time", "pair"), M),
            "M_runs": (("run", "point", "pair"), about(M[at], 0.02, 64, 1)),
            "Q": (("time", "product"), Q),
            "Q_runs": (("run", "point", "product"), about(Q[at], 0.02, 64, 2)),
        },
        {"t": ("time", t), "t_runs": ("point", t[at])},
        {"d": 400, "every": 6},
    )


def swap_query_and_value(data):
    """Exchange query and value, in theory and runs."""
    order = [1, 0, 2, 3]
    return data.assign(M=data.M[:, order], M_runs=data.M_runs[:, :, order])


@cache
def rates(c0_2=1.0):
    """`c0_2`: the growth of position at c0 = 2 over the closed one."""
    share, omega, t = (
        np.linspace(0.75, 1, 6),
        np.array([0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0]),
        np.linspace(0, 150, 61),
    )
    closed_form = np.array([np.stack(positional_growth(share, c0), axis=-1) for c0 in (1.0, 2.0)])
    content, position = positional_growth(omega, 2.0)
    M = np.stack(
        [0.1 * np.exp(growth_rate[:, None] * t / 3) for growth_rate in (content, position)], axis=-1
    )
    rows = [1, 4, 7]
    measured = closed_form + 3e-4 * np.array([1.0, -1.0])
    measured[1, :, 1] *= c0_2
    runs = np.stack([about(M[row, 6::6], 0.05, 48, row) for row in rows])
    return xr.Dataset(
        {
            "growth": (("c0", "share", "overlap"), measured),
            "growth_closed": (("c0", "share", "overlap"), closed_form),
            "crossing": (("c0", "kind"), [positional_crossings(c0) for c0 in (1.0, 2.0)]),
            "M": (("omega", "time", "overlap"), M),
            "M_runs": (("shown", "run", "point", "overlap"), runs),
        },
        {
            "c0": [1.0, 2.0],
            "share": share,
            "omega": omega,
            "shown": omega[rows],
            "t": ("time", t),
            "t_runs": ("point", t[6::6]),
        },
        {"d": 100, "early": 50.0, "every": 6},
    )


def later_lead(data):
    """Position leads from a share .05 larger on."""
    return data.assign(M=data.M * xr.DataArray([1.0, np.exp(-0.3)], dims="overlap"))


@cache
def exits(growth=1.0, slow=1.0):
    """`growth`: that of exponent 2 and 3 with d over the law; `slow`: times of the runs of exponent
    2 over the ODE's.
    """
    d_ode, d = (
        np.geomspace(16, 16 * 4**6, 13),
        np.array([[100, 400, 1600], [100, 400, 1600], [20, 36, 64]], dtype=float),
    )
    law = np.array([exit_law(n, d_ode, 0.1 if n > 1 else 0.0) for n in (1, 2, 3)])
    ode = np.array([[0.55], [0.1], [0.1]]) + growth * law
    at = np.array([np.interp(size, d_ode, row) for size, row in zip(d, ode, strict=True)])
    rng, spread = np.random.default_rng(0), np.array([0.05, 0.3, 0.7])[:, None, None]
    times = (
        at[..., None]
        * np.exp(spread * rng.normal(size=(3, 3, 768)))
        * np.array([1.0, slow, 0.95])[:, None, None]
    )
    return xr.Dataset(
        {
            "exit_ode": (("exponent", "d_ode"), ode),
            "law": (("exponent", "d_ode"), law),
            "exit_runs": (
                ("exponent", "point", "run"),
                np.where(times < 2 * at[..., None], times, np.nan),
            ),
            "exit_ode_runs": (("exponent", "point"), at),
            "d": (("exponent", "point"), d),
        },
        {"exponent": [1, 2, 3], "d_ode": d_ode, "runs": ("exponent", [256, 256, 768])},
        {},
    )


def growing(data):
    """Exponent 1 takes log d."""
    return data.assign(
        exit_ode=data.exit_ode
        + xr.DataArray([1.0, 0.0, 0.0], dims="exponent") * 0.1 * np.log(data.d_ode)
    )


@cache
def components(late=1.0):
    """`late`: the time of the last spike in the ODE and the runs over what its rate says."""
    t, spikes = np.linspace(0, 1.2, 121), np.array([10.0, 4.0, 1.5])
    overlaps = np.stack(
        [
            component_path(t / factor, beta, 1e-3)
            for beta, factor in zip(spikes, (1, 1, late), strict=True)
        ],
        axis=-1,
    )
    risk = -overlaps @ (1 + spikes) / 2
    return xr.Dataset(
        {
            "held": (("time", "spike"), overlaps),
            "held_runs": (("run", "point", "spike"), about(overlaps[8::8], 0.004, 48)),
            "risk": ("time", risk),
            "risk_runs": (("run", "point"), about(risk[8::8], 0.02, 48)),
        },
        {"spike": spikes, "t": ("time", t), "t_runs": ("point", t[8::8])},
        {"d": 500, "every": 8, "first": 1e-3},
    )


def reversed_spikes(data):
    return data.assign(held_runs=(data.held_runs.dims, data.held_runs.values[:, :, ::-1]))


@cache
def phases():
    alpha, penalty, cosine, tokens = (
        np.linspace(0, 60, 61),
        np.linspace(0, 1, 11),
        np.linspace(0, 0.98, 11),
        np.arange(1, 13),
    )
    ends = [
        (m / np.sqrt(Q))[..., 0]
        for m, Q in (
            reward_path([60.0], 0.05, tokens=tokens[:, None], penalty=penalty[None]),
            reward_path([60.0], cosine[:, None], tokens=8, penalty=penalty[None]),
        )
    ]
    m, Q = reward_path(
        alpha,
        *(np.array(cosines) for cosines in ([c for _, _, c in CELLS],)),
        tokens=[a for a, _, _ in CELLS],
        penalty=[b for _, b, _ in CELLS],
    )
    path = m / np.sqrt(Q)
    return xr.Dataset(
        {
            "by_length": (("tokens", "penalty"), ends[0]),
            "by_start": (("first", "penalty"), ends[1]),
            "path": (("cell", "time"), path),
            "path_runs": (
                ("cell", "run", "point"),
                np.stack([about(line[6::6], 0.04, 96, row) for row, line in enumerate(path)]),
            ),
            **{
                f"cell_{name}": ("cell", [cell[index] for cell in CELLS])
                for index, name in enumerate(("tokens", "penalty", "first"))
            },
        },
        {"tokens": tokens, "penalty": penalty, "first": cosine, "alpha": ("time", alpha)},
        {"d": 400, "every": 6, "end": 60.0, "small": 0.05, "long": 8},
    )


def both_sides_alike(data):
    data.path_runs.values[1] = data.path_runs.values[0]
    return data


def entry(name, index, value):
    def alter(data):
        data[name].values[index] = value
        return data

    return alter


@cache
def adversaries(recovered=0.93, swing=0.4):
    """`recovered`: where the generator ends in the first case; `swing`: how far the discriminator
    goes in the second.
    """
    alpha = np.linspace(0, 240, 481)
    fall = np.exp(-alpha / 30)
    discriminator = np.stack([fall, swing * np.sin(alpha / 12), 0.3 * fall])
    generator = np.stack(
        [recovered - (recovered - 0.2) * fall, 1 - 0.8 * fall, np.full_like(alpha, 0.21)]
    )
    M = np.stack([discriminator, generator], axis=-1)
    return xr.Dataset(
        {
            "M": (("case", "time", "row"), M),
            "M_runs": (
                ("case", "run", "point", "row"),
                np.stack([about(curve[20::20], 0.02, 48, row) for row, curve in enumerate(M)]),
            ),
        },
        {
            "case": ["recovery", "oscillation", "no learning"],
            "alpha": ("time", alpha),
            "alpha_runs": ("point", alpha[20::20]),
        },
        {"d": 1000, "every": 20},
    )


def generator_learns(data):
    by = xr.DataArray([0.0, 0.0, 0.3], dims="case") * xr.DataArray([0.0, 1.0], dims="row")
    return data.assign(M=data.M + by, M_runs=data.M_runs + by)


late, phase = judges.late_laws, judges.rewards
BROKEN = [
    Break(late, laws, "exponents", "the perceptron's exponent 10% off", steeper),
    Break(late, laws, "Prefactors", "errors 2% above the laws", scale("error", 1.02)),
    Break(late, laws, "hebb: the mean", "runs 5% above the ODE", scale("error_runs", 1.05)),
    Break(late, laws, "adatron: the mean", "runs 5% below the ODE", scale("error_runs", 0.95)),
    Break(
        judges.attention_curves,
        attention,
        "Excess risk",
        "runs 5% of the first risk higher",
        shift("excess_risk_runs", 0.02),
    ),
    Break(
        judges.attention_curves,
        attention,
        "Overlap with",
        "overlaps of runs .05 higher",
        shift("M_runs", 0.05),
    ),
    Break(
        judges.attention_curves,
        attention,
        "Product of",
        "norms of runs .05 lower",
        shift("Q_runs", -0.05),
    ),
    Break(
        judges.attention_curves,
        attention,
        "before the query",
        "the query is learned first",
        swap_query_and_value,
    ),
    Break(
        judges.content_or_position,
        rates,
        "Growth rates",
        "content grows .005 faster",
        shift("growth", [0.005, 0.0]),
    ),
    Break(
        judges.content_or_position,
        rates,
        "unstable and faster",
        "position at c0 = 2 grows 40% faster",
        lambda data: rates(1.4),
    ),
    Break(
        judges.content_or_position,
        rates,
        "leading overlap",
        "position leads from a larger share on",
        later_lead,
    ),
    Break(
        judges.content_or_position,
        rates,
        "Runs end",
        "runs at .98 end by content",
        lambda data: data.assign(M_runs=data.M_runs[:, :, :, ::-1]),
    ),
    Break(
        judges.content_or_position, rates, "omega = 0.92", "runs .25 higher", shift("M_runs", 0.25)
    ),
    Break(judges.exits_of_sequences, exits, "Exponent 1", "exponent 1 takes .1 log d", growing),
    Break(
        judges.exits_of_sequences,
        exits,
        "closed laws",
        "times grow 10% more",
        lambda data: exits(1.1),
    ),
    Break(
        judges.exits_of_sequences,
        exits,
        "Exponent 2, d = 400",
        "runs of exponent 2 take 1.4 times as long",
        lambda data: exits(slow=1.4),
    ),
    Break(
        judges.exits_of_sequences,
        exits,
        "Exponent 3, d = 64",
        "runs take twice as long",
        scale("exit_runs", 2.0),
    ),
    Break(
        judges.exits_of_sequences,
        exits,
        "Exponent 3, d = 20",
        "runs take half as long",
        scale("exit_runs", 0.5),
    ),
    Break(
        judges.one_after_the_other,
        components,
        "its own rate",
        "the last spike 20% later",
        lambda data: components(1.2),
    ),
    Break(
        judges.one_after_the_other,
        components,
        "learned first",
        "the smallest spike first",
        reversed_spikes,
    ),
    Break(
        judges.one_after_the_other,
        components,
        "Squared overlaps",
        "runs hold .02 more",
        shift("held_runs", 0.02),
    ),
    Break(
        judges.one_after_the_other,
        components,
        "The mean risk",
        "the risk of runs 5% off",
        shift("risk_runs", 0.5),
    ),
    Break(
        phase,
        phases,
        "T = 8, e2 = 0.05, from 0.3",
        "cosines of runs .05 lower",
        shift("path_runs", -0.05),
    ),
    Break(phase, phases, "learned from 0.8", "both starts end alike", both_sides_alike),
    Break(
        phase,
        phases,
        "up to three",
        "a short episode is not learned",
        entry("by_length", (2, 9), 0.1),
    ),
    Break(
        phase,
        phases,
        "Long episodes",
        "a long one is learned with a penalty",
        entry("by_length", (9, 5), 0.9),
    ),
    Break(
        phase,
        phases,
        "any nearer start",
        "a nearer start undoes it",
        entry("by_start", (10, 1), 0.0),
    ),
    Break(
        judges.adversaries,
        adversaries,
        "recovery: the mean",
        "overlaps of runs .05 higher",
        shift("M_runs", 0.05),
    ),
    Break(
        judges.adversaries,
        adversaries,
        "above .75",
        "the generator ends at .6",
        lambda data: adversaries(recovered=0.6),
    ),
    Break(
        judges.adversaries,
        adversaries,
        "continues to oscillate",
        "it swings by a tenth",
        lambda data: adversaries(swing=0.04),
    ),
    Break(
        judges.adversaries,
        adversaries,
        "no learning: the generator",
        "the generator ends at .51",
        generator_learns,
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


def fewer(count):
    return lambda data: data.isel(run=slice(0, count))


def few_exits(data):
    return data.isel(run=slice(0, 40)).assign_coords(runs=("exponent", [40, 40, 40]))


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (late, laws, fewer(3)),
        (judges.attention_curves, attention, fewer(3)),
        (judges.content_or_position, rates, fewer(3)),
        (judges.exits_of_sequences, exits, few_exits),
        (judges.one_after_the_other, components, fewer(3)),
        (phase, phases, fewer(5)),
        (judges.adversaries, adversaries, fewer(3)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), few(data()))
