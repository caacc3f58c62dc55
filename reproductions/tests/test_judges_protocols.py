"""Judges of protocols: each claim, broken by a stated amount, turns "reproduced" into "differs"."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale
from sgdynamics.papers.protocols import best_error, best_rate, horizon_exponents
from sgdynamics_reproductions.gallery.judges import protocols as judges
from sgdynamics_reproductions.protocols.reference import (
    EASY,
    ERF_RATES,
    HARD,
    KEEP,
    RAMPS,
    REFERENCE,
    REPLAY_ARC,
    SWITCHES,
)
from test_judges_several_inputs import about

PIECES = 40


def correct_data(name, control, alpha):
    """Data of a search that has found the reference optimum, and of runs that agree with it."""
    optimum = REFERENCE[name]
    edges = np.linspace(0, alpha, PIECES + 1)
    scalars = {
        "value": optimum.risk * 1.0003,
        "extrapolated": optimum.risk * (1 + 1e-5),
        "constant": optimum.constant,
        "constant_value": optimum.constant_risk,
        "residual": 1e-6,
        "runs_value": optimum.risk * 1.002,
        "runs_value_error": 0.004 * optimum.risk,
        "runs_constant": optimum.constant_risk * 1.002,
        "runs_constant_error": 0.004 * optimum.constant_risk,
        "runs_gain": optimum.gain,
        "runs_gain_error": 0.02 * (optimum.gain - 1),
    }
    switches = np.append(SWITCHES.get(name, ()), [np.nan] * 4)[:4]
    return xr.Dataset(
        {
            **{key: ("problem", [value]) for key, value in scalars.items()},
            "edges": (("problem", "edge"), edges[None]),
            "control": (("problem", "piece"), np.asarray(control, dtype=float)[None]),
            "switches": (("problem", "switch"), switches[None]),
        },
        {"problem": [name]},
        {"d": 1000, "runs": 100, "pieces": PIECES},
    )


def change_entries(name, index, by):
    """Return a change that multiplies entries of a variable."""

    def alter(data):
        data[name].values[index] *= by
        return data

    return alter


def put(name, index, value):
    """Return a change that replaces entries of a variable."""

    def alter(data):
        data[name].values[index] = value
        return data

    return alter


def fewer(data):
    """Increase all errors tenfold, as for a hundredth of the runs."""
    wider = {str(name): 10 * data[name] for name in data if str(name).endswith("_error")}
    return data.assign(wider).assign_attrs(runs=5)


@cache
def rates():
    edges = np.linspace(0, 20, PIECES + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    linear, erf = (
        best_rate(middles, 1.0, 0.1),
        np.interp(edges[:-1], list(ERF_RATES), list(ERF_RATES.values())),
    )
    optimum = REFERENCE["linear"]
    data = xr.concat(
        [correct_data("linear", linear * 1.005, 20.0), correct_data("erf", erf, 20.0)], "problem"
    )
    return data.assign(
        closed=("piece", linear),
        closed_risks=("edge", best_error(edges, 1.0, 0.1) / 2),
        closed_constant=("of", [optimum.constant, optimum.constant_risk]),
        reference=("place", list(ERF_RATES.values())),
    ).assign_coords(place=list(ERF_RATES))


@cache
def tasks():
    middles = (np.arange(PIECES) + 0.5) / 4
    first, last = SWITCHES["replay"]
    share = np.where(
        middles < first,
        1.0,
        np.where(middles > last, 0.0, np.interp(middles, SWITCHES["replay"], REPLAY_ARC)),
    )
    risks = np.zeros((3, PIECES + 1, 2))
    risks[:, -1] = [[0.012, 0.0126], [0.014, 0.014], [0.04, 2 * 0.0258949173 - 0.04]]
    return correct_data("replay", share, 10.0).assign(task_risks=(("share", "edge", "task"), risks))


@cache
def units():
    middles = (np.arange(PIECES) + 0.5) / 8
    first, last = SWITCHES["weight decay"]
    decay = np.where((middles < first) | (middles > last), 1.0, 0.0)
    return xr.concat(
        [
            correct_data("dropout", np.linspace(*KEEP, PIECES), 30.0),
            correct_data("weight decay", decay, 5.0),
        ],
        "problem",
    )


@cache
def orders():
    names, last = (
        ("mixed", "easy first", "easy last", "optimum"),
        np.array([0.0478011553, 0.0472214328, 0.0525590721, 0.0456272433]),
    )
    edges, runs = np.linspace(0, 8, PIECES + 1), 400
    lines = last[:, None] * (1 + np.exp(-edges) - np.exp(-8.0))
    common = about(np.ones(4), 0.05, runs, 1)  # the same random numbers in all orders
    points = (
        lines[:, None, 10::10]
        * common
        * np.stack([about(np.ones(4), 0.01, runs, 2 + row) for row in range(4)])
    )
    data = correct_data("curriculum", np.zeros(PIECES), 8.0)
    return data.assign(
        shares=(("order", "piece"), np.full((4, PIECES), 0.5)),
        excess_risk=(("order", "edge"), lines),
        excess_risk_runs=(("order", "run", "point"), points),
    ).assign_coords(order=list(names), point=edges[10::10])


def same_order(data):
    """Runs of easy first end where those of mixed ones do."""
    data.excess_risk_runs.values[1, :, -1] = data.excess_risk_runs.values[0, :, -1]
    return data


@cache
def laws():
    steps, pieces = np.array(list(EASY)), 100
    logs = np.log(steps / steps[0])
    slow = np.exp(-np.concatenate([[0.0], np.cumsum(np.diff(logs) * [0.305, 0.295, 0.289])]))
    constant = np.stack(
        [
            0.0089361 * (steps / 3000) ** -0.534,
            0.44 * np.exp(-0.245 * logs),
            0.38 * np.exp(-0.3 * logs),
        ]
    )
    inside = (np.arange(pieces) + 0.5) / pieces
    rates = np.stack(
        [0.5 * np.where(inside[None] < 1 - np.array([[0.3], [0.2], [0.15], [0.1]]), 1.0, 0.1)] * 3
    )
    pairs = ((2.5, 1.2), (1.5, 2.0), (1.5, 2.0))
    return xr.Dataset(
        {
            "risk": (
                ("law", "steps"),
                np.stack([list(EASY.values()), 0.376 * slow, list(HARD.values())]),
            ),
            "constant_risk": (("law", "steps"), constant),
            "rates": (("law", "steps", "piece"), rates),
            "invariant": (("steps", "piece"), np.ones((4, pieces))),
            "loud_invariant": ("piece", np.ones(pieces)),
            "loud_risk": ("of", [0.1, 0.1]),
            "exponents": (("law", "schedule"), [horizon_exponents(*pair) for pair in pairs]),
            "early": ("law", [(a - 1) / b for a, b in pairs]),
        },
        {"law": ["easy", "hard", "hard, 400 inputs"], "steps": steps, "share": ("piece", inside)},
        {"loud": 100.0},
    )


@cache
def ramps():
    last = np.array([risk for _, risk in RAMPS.values()])
    return xr.Dataset(
        {
            "steps": ("lr", [steps for steps, _ in RAMPS.values()]),
            "last": ("lr", last),
            "whole": ("lr", last),
            "excess_risk_runs": (
                ("lr", "run"),
                np.stack([risk * about(1.0, 0.05, 400, row) for row, risk in enumerate(last)]),
            ),
        },
        {"lr": list(RAMPS)},
        {"d": 1000, "best": 0.0033162},
    )


BROKEN = [
    Break(
        judges.best_learning_rates,
        rates,
        "the rates are eps",
        "rates of the linear student 3% off",
        change_entries("control", 0, 1.03),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "Lambert",
        "its least risk 3e-4 off",
        change_entries("extrapolated", 0, 1.0003),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "that of the closed form",
        "its best constant 1e-4 off",
        change_entries("constant", 0, 1.0001),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "Pontryagin's equations",
        "rates of the erf student 8% off",
        change_entries("control", 1, 1.08),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "erf: the smallest risk",
        "its least risk 3e-4 off",
        change_entries("extrapolated", 1, 1.0003),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "erf: the risk of the best constant",
        "its best constant's risk 1e-4 off",
        change_entries("constant_value", 1, 1.0001),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "erf: the best constant is",
        "its best constant 1e-4 off",
        change_entries("constant", 1, 1.0001),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "erf: Pontryagin's condition",
        "a slope of 1e-3 left",
        put("residual", 1, 1e-3),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "erf: risks of runs",
        "risks of runs 5% off",
        change_entries("runs_constant", 1, 1.05),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "linear: the gain of runs",
        "the gain of runs a tenth off",
        change_entries("runs_gain", 0, 0.9),
    ),
    Break(
        judges.best_learning_rates,
        rates,
        "linear: runs gain",
        "runs gain nothing",
        put("runs_gain", 0, 1.0),
    ),
    Break(
        judges.replay,
        tasks,
        "the smallest risk",
        "no better than the best constant",
        scale("extrapolated", 1.14),
    ),
    Break(
        judges.replay, tasks, "the switches", "a switch .05 late", put("switches", (0, 0), 5.054)
    ),
    Break(judges.replay, tasks, "there are 2", "a third switch", put("switches", (0, 2), 9.9)),
    Break(
        judges.replay,
        tasks,
        "before the arc",
        "a little of task one from the start",
        change_entries("control", (0, slice(0, 4)), 0.95),
    ),
    Break(
        judges.replay,
        tasks,
        "On the arc",
        "shares on the arc 4% off",
        change_entries("control", (0, slice(20, 39)), 1.04),
    ),
    Break(
        judges.replay,
        tasks,
        "Without replay",
        "without replay 1% off",
        change_entries("task_risks", (2, -1), 1.01),
    ),
    Break(
        judges.replay,
        tasks,
        "the gain of runs",
        "the gain of runs .07 off",
        scale("runs_gain", 0.94),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "dropout: the smallest risk",
        "no better than the best constant",
        change_entries("extrapolated", 0, 1.0447),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "from .635",
        "the last share .05 off",
        put("control", (0, -1), 0.09),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "kept falls from piece",
        "the share rises once",
        put("control", (0, 20), 0.5),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "the switches",
        "a switch .05 early",
        put("switches", (1, 1), 4.6),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "at a bound",
        "three pieces between",
        put("control", (1, slice(3, 6)), 0.5),
    ),
    Break(
        judges.dropout_and_decay,
        units,
        "weight decay: runs gain",
        "runs gain nothing",
        put("runs_gain", 1, 1.0),
    ),
    Break(
        judges.curriculum,
        orders,
        "curriculum: the smallest risk",
        "the least risk 1e-3 off",
        scale("extrapolated", 1.001),
    ),
    Break(
        judges.curriculum,
        orders,
        "the switches",
        "easy last",
        put("switches", (0, slice(0, 2)), (0.0, 4.0)),
    ),
    Break(
        judges.curriculum,
        orders,
        "The four risks",
        "one risk 2e-4 off",
        change_entries("excess_risk", (1, -1), 1.0002),
    ),
    Break(
        judges.curriculum,
        orders,
        "Half of the samples",
        "more hard ones",
        change_entries("shares", 3, 1.01),
    ),
    Break(
        judges.curriculum,
        orders,
        "easy last: the mean",
        "runs of easy last 5% off",
        change_entries("excess_risk_runs", 2, 1.05),
    ),
    Break(
        judges.curriculum,
        orders,
        "easy first is better than mixed",
        "easy first is as mixed",
        same_order,
    ),
    Break(
        judges.horizons,
        laws,
        "easy: the smallest risks",
        "risks 1e-5 off",
        change_entries("risk", 0, 1.00001),
    ),
    Break(
        judges.horizons,
        laws,
        "hard, 400 inputs",
        "risks 2e-4 off",
        change_entries("risk", 2, 1.0002),
    ),
    Break(
        judges.horizons,
        laws,
        "exponents are .589",
        "the last constant risk 1% off",
        change_entries("constant_risk", (0, -1), 1.01),
    ),
    Break(
        judges.horizons,
        laws,
        "those of theory",
        "the last constant risk 5% larger",
        change_entries("constant_risk", (0, -1), 1.05),
    ),
    Break(
        judges.horizons,
        laws,
        "from above",
        "the last risk 2% smaller",
        change_entries("risk", (1, -1), 0.98),
    ),
    Break(
        judges.horizons,
        laws,
        "(a - 1)/b, within .05",
        "the last risk 5% smaller",
        change_entries("risk", (1, -1), 0.95),
    ),
    Break(
        judges.horizons,
        laws,
        "constant rate: the exponent",
        "the last constant risk 3% larger",
        change_entries("constant_risk", (1, -1), 1.03),
    ),
    Break(
        judges.horizons,
        laws,
        "share of annealing steps",
        "as long at the largest T",
        put("rates", (1, -1, slice(50, 100)), 0.05),
    ),
    Break(
        judges.horizons,
        laws,
        "rates start",
        "rates begin at half of that",
        change_entries("rates", 1, 0.5),
    ),
    Break(
        judges.horizons,
        laws,
        "after a tenth",
        "the invariant falls by 10%",
        change_entries("invariant", (-1, slice(50, 100)), 0.9),
    ),
    Break(
        judges.horizons,
        laws,
        "from the start",
        "with noise it is 3% off at first",
        change_entries("loud_invariant", slice(0, 3), 0.97),
    ),
    Break(
        judges.horizons,
        laws,
        "that of the law",
        "the law's risk 1% off",
        change_entries("loud_risk", 0, 1.01),
    ),
    Break(judges.batch_ramps, ramps, "as many steps", "a step more", put("steps", 2, 54)),
    Break(judges.batch_ramps, ramps, "the same risks", "risks 1e-4 off", scale("last", 1.0001)),
    Break(
        judges.batch_ramps,
        ramps,
        "above that of the falling rate",
        "8% above at lr = 100",
        change_entries("last", 2, 1.05),
    ),
    Break(
        judges.batch_ramps,
        ramps,
        "grows with lr",
        "the largest rate is best",
        change_entries("last", 3, 0.8),
    ),
    Break(
        judges.batch_ramps,
        ramps,
        "lr = 10: the mean",
        "runs 2% off",
        change_entries("excess_risk_runs", 1, 1.02),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data"),
    [
        (judges.best_learning_rates, rates),
        (judges.replay, tasks),
        (judges.dropout_and_decay, units),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_large_errors_do_not_decide(judge, data):
    check_few_runs(judge, data(), fewer(data()))


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [(judges.curriculum, orders, 4), (judges.batch_ramps, ramps, 4)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), data().isel(run=slice(0, few)))
