"""Judges of epochs: each claim, broken by a stated amount, turns "reproduced" into "differs"."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs
from sgdynamics.papers.epochs import linear_epochs
from sgdynamics_reproductions.epochs.unlearning_figure import POINTS, REFERENCE
from sgdynamics_reproductions.epochs.worth_figure import (
    ALPHA,
    BY_DMFT,
    CASES,
    EPOCHS,
    SOLVED,
    worths,
)
from sgdynamics_reproductions.gallery.judges import epochs as judges
from test_judges_several_inputs import about

RUNS = 100


def change_entries(name, index, by=1.0, offset=0.0):
    """Return a change that multiplies entries of a variable and adds an offset."""

    def alter(data):
        data[name].values[index] = data[name].values[index] * by + offset
        return data

    return alter


@cache
def repeats():
    distance = np.stack([linear_epochs(lr, ALPHA, noise, EPOCHS)[0] for lr, noise in CASES])
    data = xr.Dataset(
        {
            "distance": (("case", "after"), distance),
            "distance_runs": (
                ("case", "run", "after"),
                np.stack([curve * about(np.ones(EPOCHS + 1), 0.02, RUNS) for curve in distance]),
            ),
        },
        {
            "lr": ("case", [lr for lr, _ in CASES]),
            "noise": ("case", [noise for _, noise in CASES]),
            "solved": list(BY_DMFT),
            "early": np.arange(1, SOLVED + 1),
        },
        {"d": 200, "samples_per_dimension": ALPHA, "replicates": 16},
    )
    expected = worths(data)[list(BY_DMFT)][:, :SOLVED]
    return data.assign(
        dmft=(("solved", "early"), expected + 0.02),
        dmft_error=(("solved", "early"), np.full_like(expected, 0.06)),
    )


@cache
def orders():
    after, some = np.arange(21.0), np.array([1, 2, 3, 5, 8, 12, 16, 20])
    fresh = np.stack(
        [
            0.25 + 0.1 * np.exp(-after / slow) + high * after
            for slow, high in ((0.6, 0.0025), (0.6, 0.0026), (1.2, 0.0022))
        ]
    )
    train = np.stack(
        [0.02 + 0.3 * np.exp(-after / slow) + 0.02 * np.exp(-after / 9) for slow in (0.8, 0.8, 1.2)]
    )
    at = some.astype(int)
    fresh[1, 1] = fresh[0, 1]
    common = about(np.zeros(len(at)), 0.01, RUNS)  # the same data sets in all orders
    own = np.stack([about(np.zeros(len(at)), 0.001, RUNS, 1 + row) for row in range(3)])
    own[1, :, 0] = own[0, :, 0]
    return xr.Dataset(
        {
            "risk": (("order", "after"), fresh),
            "risk_error": (("order", "after"), np.full_like(fresh, 0.002)),
            "risk_runs": (("order", "run", "point"), fresh[:, None, at] + common + own),
            "train_risk": (("order", "after"), train),
            "train_risk_error": (("order", "after"), 0.02 * train),
            "train_risk_runs": (("order", "run", "point"), train[:, None, at] * (1 + common + own)),
        },
        {"order": ["reshuffle", "fixed", "replacement"], "after": after, "point": some},
        {"d": 200, "noise": 0.25},
    )


@cache
def features():
    points, t = np.array(POINTS), np.array([0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0])
    logs, reference_logs = np.log(points), np.log(list(REFERENCE))
    excess, share = (
        np.interp(logs, reference_logs, [entry[which] for entry in REFERENCE.values()])
        for which in (0, 1)
    )
    train = 0.085 * np.exp(-points / 60)
    lines = {"excess_risk": excess, "train_risk": train, "share": share}
    inside = {name: np.concatenate([[0.1], line[: len(t) - 1]]) for name, line in lines.items()}
    return xr.Dataset(
        {
            **{name: ("t", line) for name, line in inside.items()},
            **{
                f"{name}_error": ("t", 0.01 * inside[name])
                for name in ("excess_risk", "train_risk")
            },
            **{
                f"{name}_runs": (
                    ("run", "point"),
                    line * about(np.ones(len(points)), 0.1, RUNS, row),
                )
                for row, (name, line) in enumerate(lines.items())
            },
        },
        {"t": t, "point": points},
        {"d": 120},
    )


def as_reshuffled(data):
    """Runs of one fixed order are those that reshuffle."""
    data.risk_runs.values[1, :, 1:] = (
        data.risk_runs.values[0, :, 1:] + 1e-6 * np.arange(RUNS)[:, None]
    )
    return data


def as_fresh(data):
    """The fourth epoch with noise .25 brings what the first does of what is left."""
    data.distance_runs.values[3, :, 4:] *= 0.9
    return data


def no_turn(data):
    """The risk on fresh data stays where it was after the third epoch."""
    data.risk_runs.values[:, :, 3:] = (
        data.risk_runs.values[:, :, 2:3] + 1e-6 * np.arange(RUNS)[None, :, None]
    )
    return data


def no_rise(data):
    data.excess_risk_runs.values[:, -1] = data.excess_risk_runs.values[:, 2]
    return data


ALL = slice(None)
BROKEN = [
    Break(
        judges.worth_of_repeats,
        repeats,
        "another program",
        "the equations 2% off after 3 epochs",
        change_entries("distance", (0, 3), 1.02),
    ),
    Break(
        judges.worth_of_repeats,
        repeats,
        "noise 0: the worths in runs",
        "2nd epoch .1 less",
        change_entries("distance_runs", (0, ALL, slice(2, 7)), 1.25),
    ),
    Break(
        judges.worth_of_repeats,
        repeats,
        "0.3, noise 0.25: the worths in runs",
        "4% off",
        change_entries("distance_runs", (4, ALL, 2), 1.08),
    ),
    Break(
        judges.worth_of_repeats,
        repeats,
        "noise 0: the worths by DMFT",
        "DMFT: .6 more",
        change_entries("dmft", (0, 1), offset=0.6),
    ),
    Break(
        judges.worth_of_repeats,
        repeats,
        "noise 0.25: the worths by DMFT",
        "DMFT: .6 less",
        change_entries("dmft", (1, 2), offset=-0.6),
    ),
    Break(
        judges.worth_of_repeats,
        repeats,
        "less than the one before",
        "a third epoch as good",
        change_entries("distance_runs", (0, ALL, slice(3, 7)), 0.7),
    ),
    Break(judges.worth_of_repeats, repeats, "does harm", "the fourth epoch helps", as_fresh),
    Break(
        judges.three_orders,
        orders,
        "reshuffle: the risk of the runs on fresh data",
        "15% off",
        change_entries("risk_runs", 0, offset=0.03),
    ),
    Break(
        judges.three_orders,
        orders,
        "fixed: the risk of the runs on fresh data",
        "15% off",
        change_entries("risk_runs", 1, offset=-0.03),
    ),
    Break(
        judges.three_orders,
        orders,
        "replacement: the risk of the runs on the data set",
        "20% off",
        change_entries("train_risk_runs", 2, 1.2),
    ),
    Break(
        judges.three_orders,
        orders,
        "The first epoch is the same",
        "one run other",
        change_entries("risk_runs", (1, 7, 0), offset=1e-6),
    ),
    Break(judges.three_orders, orders, "rises after the third", "it stays", no_turn),
    Break(
        judges.three_orders,
        orders,
        "the risk on the data set falls",
        "it rises",
        change_entries("train_risk_runs", (ALL, ALL, 7), 1.5),
    ),
    Break(
        judges.three_orders,
        orders,
        "ends worse than reshuffling",
        "it ends the same",
        as_reshuffled,
    ),
    Break(
        judges.three_orders,
        orders,
        "worth less",
        "as much",
        change_entries("risk_runs", (2, ALL, 0), offset=-0.045),
    ),
    Break(
        judges.unlearning,
        features,
        "Excess risk: the runs",
        "20% off",
        change_entries("excess_risk_runs", ALL, 1.2),
    ),
    Break(
        judges.unlearning,
        features,
        "Risk on the data set: the runs",
        "20% off",
        change_entries("train_risk_runs", ALL, 1.2),
    ),
    Break(
        judges.unlearning,
        features,
        "Fraction along the signal: the runs",
        "15% off",
        change_entries("share", ALL, 1.15),
    ),
    Break(
        judges.unlearning,
        features,
        "Excess risk at t",
        ".06 off at t = 80",
        change_entries("excess_risk_runs", (ALL, 6), offset=0.06),
    ),
    Break(
        judges.unlearning,
        features,
        "Fraction along the signal at t",
        ".07 off at t = 80",
        change_entries("share_runs", (ALL, 6), offset=0.07),
    ),
    Break(judges.unlearning, features, "rises after t = 5", "it does not", no_rise),
    Break(
        judges.unlearning,
        features,
        "fraction of |W|",
        "it stays at .72",
        change_entries("share_runs", (ALL, 8), 0.0, 0.72),
    ),
    Break(
        judges.unlearning,
        features,
        "less than a tenth",
        "a fifth is left",
        change_entries("train_risk_runs", (ALL, 8), 0.0, 0.016),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (judges.worth_of_repeats, repeats, 3),
        (judges.three_orders, orders, 3),
        (judges.unlearning, features, 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), data().isel(run=slice(0, few)))
