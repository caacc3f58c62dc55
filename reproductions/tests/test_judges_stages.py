"""Judges of stages and workers: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics_reproductions.gallery.judges import stages as judges
from test_judges_several_inputs import about


@cache
def generations_data():
    alpha = np.concatenate([np.linspace(0, 6, 13) + 6 * index for index in range(4)])
    ends = np.array(
        [[0.021, 0.041, 0.059, 0.077], [0.021, 0.028, 0.031, 0.032], [0.021, 0.018, 0.018, 0.018]]
    )
    within = np.exp(-np.linspace(0, 6, 13) / 2)
    paths = [np.concatenate([end * within / within[-1] for end in row]) for row in ends]
    strong_time, saved = np.linspace(0, 16, 33), np.array([2.0, 4.0, 8.0, 16.0])
    strong = 0.02 + 0.2 * np.exp(-strong_time)
    line = np.interp(saved, strong_time, strong)
    runs = [about(row, 0.002, 60, index) for index, row in enumerate(ends)]
    return xr.Dataset(
        {
            "alpha": ("time", alpha),
            "excess_risk": (("mixture", "time"), np.array(paths)),
            "excess_risk_runs": (("mixture", "run", "generation"), np.array(runs)),
            "best_share": ("count", np.array([0.6667, 0.631, 0.6209, 0.6182])),
            "weak_risk": 0.0266,
            "strong_risk": ("strong_time", strong),
            "gap": 0.4,
            "weak_runs": ("run", about(np.array([0.0266]), 0.002, 60, 5)[:, 0]),
            "strong_runs": (("run", "strong_point"), about(line, 0.001, 60, 6)),
        },
        {
            "mixture": ["no real labels", "half of the labels real", "labels 61.8% real"],
            "generation": [1, 2, 3, 4],
            "count": [2, 3, 4, 6],
            "strong_time": strong_time,
            "strong_point": saved,
        },
        {"d": 300},
    )


@cache
def workers_data():
    time, point = np.linspace(0, 8, 33), np.array([2.0, 4.0, 6.0, 8.0])
    lines = np.stack([0.24 * np.exp(-time * rate) for rate in (0.35, 0.51, 0.52, 0.51)])
    runs = [about(np.interp(point, time, lines[row]), 0.0005, 60, row) for row in (1, 2)]
    return xr.Dataset(
        {
            "excess_risk": (("case", "time"), lines),
            "excess_risk_runs": (("simulated", "run", "point"), np.array(runs)),
            "limit_risk": ("length", np.array([0.0735, 0.072, 0.0705, 0.069])),
            "stable_rate": ("delay", np.array([1.7, 1.1, 0.5])),
            "growth": (("tried_delay", "factor"), np.array([[-2.0, 1.5], [-1.0, 1.0]])),
        },
        {
            "time": time,
            "point": point,
            "case": ["one worker", "four workers", "DiLoCo", "batch of four"],
            "simulated": ["four workers", "DiLoCo"],
            "length": [0.125, 0.5, 1.0, 2.0],
        },
        {"d": 250},
    )


def change(name, index, value):
    """Return a change of one entry of a variable."""

    def alter(data):
        data[name].values[index] = value
        return data

    return alter


G, W = judges.generations, judges.many_workers
BROKEN = [
    Break(G, generations_data, "no real labels: the mean", "above", scale("excess_risk_runs", 1.4)),
    Break(G, generations_data, "get worse", "better", change("excess_risk", (0, -1), 0.05)),
    Break(G, generations_data, "than the first", "not", change("excess_risk", (2, -1), 0.03)),
    Break(G, generations_data, "are the exact ones", "0.01 off", change("best_share", 0, 0.6767)),
    Break(G, generations_data, "golden ratio", "0.01 off", change("best_share", -1, 0.628)),
    Break(G, generations_data, "40% of the gap", "half", shift("gap", 0.1)),
    Break(G, generations_data, "strong student follow", "above", scale("strong_runs", 1.4)),
    Break(G, generations_data, "surpasses", "no gain", shift("weak_runs", -0.01)),
    Break(W, workers_data, "four workers: the mean", "above", scale("excess_risk_runs", 1.4)),
    Break(W, workers_data, "half of the excess risk", "no", change("excess_risk", (0, -1), 0.005)),
    Break(W, workers_data, "as good as a batch", "no", change("excess_risk", (3, -1), 0.003)),
    Break(W, workers_data, "lower the limit", "raise it", change("limit_risk", -1, 0.08)),
    Break(W, workers_data, "delay lowers", "a rise", change("stable_rate", -1, 1.2)),
    Break(W, workers_data, "decay below", "growth", change("growth", (0, 0), 1.0)),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(("judge", "data"), [(G, generations_data), (W, workers_data)])
def test_few_runs_do_not_decide(judge, data):
    check_few_runs(judge, data(), data().isel(run=slice(0, 3)))
