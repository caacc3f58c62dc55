"""Judges of tops: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs
from sgdynamics_reproductions.gallery.judges import tops as judges
from test_judges_several_inputs import about

TIME, POINT = np.linspace(0, 20, 41), np.linspace(2.5, 20, 8)


def draw_runs(line, spread, seed):
    """Draw runs about a line of the theory at the points."""
    flat = np.asarray(line).reshape(len(TIME), -1)
    values = np.stack([np.interp(POINT, TIME, column) for column in flat.T], axis=-1)
    values = values.reshape(len(POINT), *np.shape(line)[1:])
    return about(values, spread, 48, seed)


@cache
def softmax():
    risk, accuracy = 0.2 + 0.4 * np.exp(-TIME / 6), 0.91 - 0.25 * np.exp(-TIME / 5)
    late = np.array([0.0, 10.0, 40.0])
    return xr.Dataset(
        {
            "risk": ("time", risk),
            "risk_runs": (("run", "point"), draw_runs(risk, 0.01, 0)),
            "accuracy": ("time", accuracy + 1e-3 * np.sin(TIME)),
            "angle_accuracy": ("time", accuracy),
            "accuracy_runs": (("run", "point"), draw_runs(accuracy, 0.006, 1)),
            "error": (("rate", "late"), np.array([[0.3, 0.1, 0.04], [0.3, 0.2, 0.08]])),
            "column_sum": ("time", np.full(41, 0.2)),
        },
        {"time": TIME, "point": POINT, "rate": [0.5, 2.0], "late": late},
        {"d": 300},
    )


@cache
def bias_data():
    lines = np.stack([0.14 + 0.1 * np.exp(-TIME / 4), 0.003 + 0.2 * np.exp(-TIME / 4)])
    biases = np.stack([-0.9 + np.exp(-TIME / 5), -0.2 * np.ones(41)], axis=-1)
    runs = np.stack([draw_runs(line, 0.003, row) for row, line in enumerate(lines)])
    return xr.Dataset(
        {
            "excess_risk": (("biases", "time"), lines),
            "excess_risk_runs": (("biases", "run", "point"), runs),
            "b": (("time", "unit"), biases),
            "b_runs": (("run", "point", "unit"), draw_runs(biases, 0.02, 3)),
        },
        {"biases": ["without", "with"], "time": TIME, "point": POINT},
        {"d": 300},
    )


@cache
def lora_data():
    def decay(delay):
        return 0.06 / (1 + np.exp((TIME - delay) / 1.5))

    overlap, rate, rank = (
        np.stack([decay(delay) for delay in delays])
        for delays in ((5.0, 8.0, 12.0), (12.0, 8.0, 6.0), (8.0, 6.0))
    )
    return xr.Dataset(
        {
            "by_overlap": (("overlap", "time"), overlap),
            "by_rate": (("rate", "time"), rate),
            "by_rank": (("rank", "time"), rank),
            "excess_risk_runs": (("run", "point"), draw_runs(overlap[1], 5e-4, 5)),
        },
        {
            "time": TIME,
            "point": POINT,
            "overlap": [0.3, 0.1, 0.03],
            "rate": [0.5, 2.0, 8.0],
            "rank": [1, 2],
        },
        {"d": 300},
    )


@cache
def deep_data():
    risks = np.stack([0.3 + 0.8 * np.exp(-TIME / 3), 0.05 + 1.2 * np.exp(-TIME / 5)])
    overlaps = np.stack([0.9 - 0.5 * np.exp(-TIME / 4), 1.1 - 0.2 * np.exp(-TIME / 4)], axis=-1)
    biases = np.stack([0.8 - 0.4 * np.exp(-TIME / 6)], axis=-1)
    u = np.stack([2.0 - np.exp(-TIME / 6), -2.0 + np.exp(-TIME / 6)], axis=-1)
    risk_runs = np.stack([draw_runs(line, 0.006, 7 + row) for row, line in enumerate(risks)])
    return xr.Dataset(
        {
            "risk": (("network", "time"), risks),
            "risk_runs": (("network", "run", "point"), risk_runs),
            "overlaps": (("time", "overlap"), overlaps),
            "overlaps_runs": (("run", "point", "overlap"), draw_runs(overlaps, 0.01, 9)),
            "c": (("time", "inner_unit"), biases),
            "c_runs": (("run", "point", "inner_unit"), draw_runs(biases, 0.01, 10)),
            "u": (("time", "unit"), u),
            "u_runs": (("run", "point", "unit"), draw_runs(u, 0.02, 11)),
        },
        {"network": ["one layer (1)", "three layers (1, 3, 2)"], "time": TIME, "point": POINT},
        {"d": 300},
    )


def without_effect(name):
    """Return a change that makes all curves of a family equal."""

    def alter(data):
        data[name].values[:] = data[name].values[:1]
        return data

    return alter


def add(name, amount, index=...):
    """Return a change that adds to entries of a variable."""

    def alter(data):
        data[name].values[index] += amount
        return data

    return alter


def drifting_sum(data):
    data.column_sum.values[:] += 1e-3 * TIME
    return data


def equal_errors(data):
    data.error.values[1] = data.error.values[0]
    return data


def useless_biases(data):
    data.excess_risk_runs.values[0] = data.excess_risk_runs.values[1]
    return data


def equal_depths(data):
    data.risk_runs.values[1] = data.risk_runs.values[0]
    return data


BROKEN = [
    Break(judges.softmax_network, softmax, "Cross-entropy", "runs above", add("risk_runs", 0.05)),
    Break(judges.softmax_network, softmax, "Accuracy:", "runs below", add("accuracy_runs", -0.03)),
    Break(judges.softmax_network, softmax, "of the angle", "2% off", add("accuracy", 0.02)),
    Break(judges.softmax_network, softmax, "sums of the columns", "a drift", drifting_sum),
    Break(judges.softmax_network, softmax, "larger learning rate", "none", equal_errors),
    Break(
        judges.trained_biases,
        bias_data,
        "without biases: the mean",
        "runs above",
        add("excess_risk_runs", 0.02, 0),
    ),
    Break(judges.trained_biases, bias_data, "The biases", "biases off", add("b_runs", 0.1)),
    Break(judges.trained_biases, bias_data, "at least halve", "no gain", useless_biases),
    Break(
        judges.low_rank_update,
        lora_data,
        "Excess risk:",
        "runs above",
        add("excess_risk_runs", 0.01),
    ),
    Break(
        judges.narrow_deep_network,
        deep_data,
        "Risk of three layers",
        "runs above",
        add("risk_runs", 0.1, 1),
    ),
    Break(judges.narrow_deep_network, deep_data, "Overlaps", "runs off", add("overlaps_runs", 0.1)),
    Break(judges.narrow_deep_network, deep_data, "The second layer", "off", add("c_runs", 0.1)),
    Break(judges.narrow_deep_network, deep_data, "The last layer", "runs off", add("u_runs", 0.2)),
    Break(
        judges.narrow_deep_network,
        deep_data,
        "One layer keeps",
        "a lower risk",
        add("risk_runs", -0.1, 0),
    ),
    Break(judges.narrow_deep_network, deep_data, "go below the risk", "no gain", equal_depths),
    *(
        Break(judges.low_rank_update, lora_data, claim, "no effect", without_effect(name))
        for name, claim in (
            ("by_rate", "larger rate of B"),
            ("by_rank", "larger rank"),
        )
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data"),
    [
        (judges.softmax_network, softmax),
        (judges.trained_biases, bias_data),
        (judges.low_rank_update, lora_data),
        (judges.narrow_deep_network, deep_data),
    ],
)
def test_few_runs_do_not_decide(judge, data):
    check_few_runs(judge, data(), data().isel(run=slice(0, 3)))
