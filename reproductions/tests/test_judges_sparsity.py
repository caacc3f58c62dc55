"""Judges of diagonal networks: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale
from sgdynamics_reproductions.gallery.judges import sparsity as judges
from test_judges_several_inputs import about

STARTS = np.geomspace(0.01, 10, 9)
SIMULATED = np.array([0.2, 0.6, 2.0])
POINTS = np.array([2.0, 10.0, 40.0])


def near(line, runs, seed, spread=0.05):
    """Runs about a line, with noise proportional to the line."""
    return line * about(np.ones_like(line), spread, runs, seed)


@cache
def norms():
    risk = 0.025 * STARTS**2 / (0.04 + STARTS**2)
    expected = 0.025 * SIMULATED**2 / (0.04 + SIMULATED**2)
    l1_norm = 0.1 + 2 * expected
    runs = near(expected, 32, 0)
    return xr.Dataset(
        {
            "excess_risk": ("start", risk),
            "excess_risk_expected": ("simulated", expected),
            "l1_norm_expected": ("simulated", l1_norm),
            "excess_risk_runs": (("run", "simulated"), runs),
            "l1_norm_runs": (("run", "simulated"), near(l1_norm, 32, 1)),
            "train_risk_runs": (("run", "simulated"), np.full(runs.shape, 1e-9)),
        },
        {"start": STARTS, "simulated": SIMULATED},
        {"d": 400, "share": 0.1, "samples": 0.5},
    )


@cache
def noisy():
    alpha = np.concatenate([[0.0], POINTS, [400.0]])
    risk = np.stack([0.01 + 0.09 * np.exp(-rate * alpha) for rate in (0.1, 0.2)])
    imbalance = np.exp(-0.02 * alpha) * np.ones((2, 1))
    square = np.stack([0.2 * alpha / (1 + alpha**2)] * 2)
    names = {"excess_risk": risk, "imbalance": imbalance, "square": square}
    variables = {name: (("rate", "alpha"), value) for name, value in names.items()}
    for index, name in enumerate(("excess_risk", "imbalance")):
        expected = names[name][:, 1:4]
        runs = np.stack([near(line, 32, 2 * index + row) for row, line in enumerate(expected)])
        variables[f"{name}_expected"] = (("rate", "point"), expected)
        variables[f"{name}_runs"] = (("rate", "run", "point"), runs)
    variables |= {"late": ("rate", [0.01, 0.01]), "linear": ("rate", [0.03, 0.04])}
    coordinates = {"alpha": alpha, "point": POINTS, "rate": [0.3, 0.6]}
    return xr.Dataset(variables, coordinates, {"d": 400})


def one_value(name, index, value):
    """Return a change that sets an entry of a variable."""

    def alter(data):
        data[name].values[index] = value
        return data

    return alter


BIAS, NOISE = judges.start_chooses_the_norm, judges.noise_finds_sparsity
BROKEN = [
    Break(BIAS, norms, "least potential", "the risk is 1.3 times", scale("excess_risk_runs", 1.3)),
    Break(BIAS, norms, "L1 norm", "the norm is 1.3 times", scale("l1_norm_runs", 1.3)),
    Break(BIAS, norms, "interpolate", "one run", one_value("train_risk_runs", (0, 0), 1e-3)),
    Break(BIAS, norms, "the ends", "a risk of .02 at the end", one_value("excess_risk", 0, 0.02)),
    Break(BIAS, norms, "rises", "one point is lower", one_value("excess_risk", 4, 0.001)),
    Break(NOISE, noisy, "mean risk", "the risk is 1.3 times", scale("excess_risk_runs", 1.3)),
    Break(NOISE, noisy, "mean imbalance", "it is 1.3 times", scale("imbalance_runs", 1.3)),
    Break(NOISE, noisy, "late law is reached", "5% above", one_value("late", 0, 0.0095)),
    Break(NOISE, noisy, "vanish", "weights of .1 stay", one_value("square", (0, -1), 0.1)),
    Break(NOISE, noisy, "below that of", "regression has .012", one_value("linear", 0, 0.012)),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(("judge", "data"), [(BIAS, norms), (NOISE, noisy)])
def test_few_runs_do_not_decide(judge, data):
    check_few_runs(judge, data(), data().isel(run=slice(0, 3)))
