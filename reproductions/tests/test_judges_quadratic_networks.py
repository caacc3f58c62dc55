"""Judges of *Quadratic networks*: each claim, broken by a stated amount, turns "reproduced" into
"differs".
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics_reproductions.gallery.judges import quadratic_networks as judges


@cache
def runs_and_ode():
    """Two units and one teacher, with 64 runs that scatter by 0.07 about the ODE."""
    t, rng, runs = np.linspace(0, 12, 61), np.random.default_rng(0), 64
    saved = slice(6, None, 6)
    size = 1 / (1 + np.exp(6 - t))
    ode = {
        "rho": size[:, None, None] * np.array([[1.0], [0.8]]),
        "Q": 0.7 * np.eye(2) + 0.3 * size[:, None, None],
        "risk": 1 - 0.9 * size,
    }
    scatter = {name: rng.normal(size=(runs, *line.shape[1:])) for name, line in ode.items()}
    scatter["Q"] = (scatter["Q"] + np.swapaxes(scatter["Q"], 1, 2)) / 2
    wide = {"rho": 0.07, "Q": 0.08, "risk": 0.02}
    dims = {"rho": ("unit", "signal"), "Q": ("unit", "unit_other"), "risk": ()}
    run_curves = {
        name: line[saved] + wide[name] * (scatter[name] - scatter[name].mean(axis=0))[:, None]
        for name, line in ode.items()
    }
    return xr.Dataset(
        {f"{name}_runs": (("run", "kept", *dims[name]), run_curves[name]) for name in ode}
        | {f"{name}_ode": (("time", *dims[name]), line) for name, line in ode.items()},
        {"t": ("time", t), "kept_t": ("kept", t[saved])},
        {"runs": runs, "N": 100, "shift_t": 0.0, "noise_share": 0.01},
    )


def slower(data):
    """Slow down the risk of the ODE by 10%."""
    return data.assign(risk_ode=("time", np.interp(data.t / 1.1, data.t, data.risk_ode)))


@cache
def rates():
    rng = np.random.default_rng(0)
    etas, p = np.geomspace(0.03, 0.38, 12), np.array([3, 4, 6, 9, 16])
    alpha = (20 + 40 * np.log(etas / 0.15)[:, None] ** 2) * (1 + 0.05 * rng.normal(size=20))
    alpha[-1] = np.nan  # beyond the largest stable rate
    best = 0.137 * p - 0.15
    return xr.Dataset(
        {
            "alpha_c": (("rate", "start"), alpha),
            "eta_best": ("width", best * (1 + 0.004 * rng.normal(size=5))),
            "eta_best_error": ("width", 0.004 * best),
            "eta_formula": ("width", 1.1 * best),
        },
        {"eta": ("rate", etas), "p": ("width", p)},
        {
            "slope": 0.137,
            "slope_error": 0.001,
            "intercept": -0.15,
            "intercept_error": 0.01,
            "chi2_per_freedom": 1.0,
            "power": 1.15,
        },
    )


def power(exponent):
    return lambda data: data.assign(
        eta_best=data.eta_best * 0 + 0.05 * data.p**exponent,
        eta_best_error=0.0002 * data.p**exponent,
    )


def monotone(data):
    return data.assign(alpha_c=data.alpha_c * 0 + 6 / data.eta)


def vary_starts(data):
    """Let alpha_c differ by a factor of three between starts, differently at each eta."""
    signs = np.array([1, -1, 1, -1] * 5)
    return data.assign(
        alpha_c=data.alpha_c * (1 + 3 * np.sin(9.0 * np.arange(12))[:, None] * signs)
    )


@cache
def solutions():
    t, rng = np.linspace(1, 100, 60), np.random.default_rng(0)
    apart = np.concatenate([[0.0], 2.4 + rng.uniform(size=9)])
    own = 0.5 / t * np.ones((10, 1))
    return xr.Dataset(
        {
            "own_distance": (("run", "time"), own),
            "distance": (
                ("run", "time"),
                apart[:, None] + np.where(np.arange(10)[:, None] == 0, own, 0.2 * own),
            ),
            "predicted_end": ("run", apart),
            "distance_law": ("time", 0.5 / t),
            "risk": (("run", "time"), 0.6 / t**2 * np.ones((10, 1))),
            "risk_law": ("time", 0.6 / t**2),
        },
        {"t": ("time", t)},
    )


def equal_distances(data):
    return data.assign(predicted_end=data.predicted_end * 0 + 0.1, distance=data.distance * 0 + 0.1)


@cache
def S():
    rng, expected = np.random.default_rng(0), np.array([0.104, 0.107])
    gap = 0.04 * rng.normal(size=(2, 40))
    gap -= gap.mean(axis=1, keepdims=True)
    return xr.Dataset(
        {
            "moved_ode": ("time", np.full(5, 1e-15)),
            "moved_gaussian": (("size", "time"), np.full((2, 5), 0.05)),
            "moved_sgd": (("size", "time"), np.repeat(expected[:, None], 5, axis=1)),
            "moved_gap": (("size", "run"), gap),
            "moved_expected": ("size", expected),
        },
        {"N": ("size", [50, 200])},
    )


@cache
def degrees_of_freedom():
    formula = np.arange(24.0).reshape(2, 12)
    formula[0, :3] = np.nan
    return xr.Dataset(
        {"formula": (("size", "width"), formula), "counted": (("size", "width"), formula.copy())}
    )


def one_wrong(data):
    data.counted.values[1, 5] += 1
    return data


@cache
def escapes():
    p, star = np.array([2, 4, 4]), np.array([1, 1, 2])
    claimed = 16 / (p * star)
    rate = 0.95 * claimed * np.array([1.01, 0.98, 1.02])
    times = np.array([[0.5, 0.8], [1.0, 1.5], [1.8, 2.8]])
    return xr.Dataset(
        {
            "rate_chain": ("case", rate),
            "rate_chain_error": ("case", 0.03 * rate),
            "rate_ode": ("case", 0.95 * claimed),
            "t_noisy": (("case", "size"), times),
            "gap": (("case", "size"), 0.01 * times),
            "gap_error": (("case", "size"), 0.01 * times),
        },
        {"p": ("case", p), "p_star": ("case", star), "N": ("size", [250, 2000])},
        {"runs": 64, "eta_over_p": 0.02},
    )


def slow_rates(data):
    return data.assign(
        rate_chain=0.7 * data.rate_chain, rate_chain_error=0.7 * data.rate_chain_error
    )


ode, line, ends, escape = (
    judges.runs_on_the_ode,
    judges.best_rates,
    judges.predicted_solution,
    judges.escape_rates,
)
BROKEN = [
    Break(ode, runs_and_ode, "Overlaps rho", "rho off by .1", shift("rho_ode", 0.1)),
    Break(
        ode,
        runs_and_ode,
        "Overlaps rho",
        "rho of one unit off by -.2",
        shift("rho_ode", [[-0.2], [0.0]]),
    ),
    Break(ode, runs_and_ode, "Overlaps Q", "Q off by .1", shift("Q_ode", 0.1)),
    Break(ode, runs_and_ode, "Risk", "the risk off by .04", shift("risk_ode", 0.04)),
    Break(ode, runs_and_ode, "Risk", "the ODE 10% slower", slower),
    Break(line, rates, "inner minimum", "alpha_c falls throughout", monotone),
    Break(line, rates, "straight line", "the best eta as p^1.5", power(1.5)),
    Break(line, rates, "straight line", "the best eta as p^2.5", power(2.5)),
    Break(line, rates, "exponent 1", "the best eta as p^0.5", power(0.5)),
    Break(line, rates, "exponent 1", "a best eta that does not know p", power(0.0)),
    Break(
        ends, solutions, "solution predicted", "a start ends .05 away", shift("own_distance", 0.05)
    ),
    Break(ends, solutions, "end elsewhere", "distances 5% off", scale("distance", 1.05)),
    Break(ends, solutions, "different starts differ", "one solution for all", equal_distances),
    Break(ends, solutions, "zero error", "an error of .01 is left", shift("risk", 0.01)),
    Break(
        judges.conservation,
        S,
        "constant along the ODE",
        "S moves by .001 along the ODE",
        shift("moved_ode", 1e-3),
    ),
    Break(
        judges.conservation,
        S,
        "its own noise",
        "SGD moves S half as far again",
        shift("moved_gap", [[0.052], [0.053]]),
    ),
    Break(
        judges.conservation,
        S,
        "its own noise",
        "SGD moves S half as far",
        shift("moved_gap", [[-0.052], [-0.053]]),
    ),
    Break(
        judges.dimension_counts,
        degrees_of_freedom,
        "The formula",
        "one number off by one",
        one_wrong,
    ),
    Break(escape, escapes, "16/(p p*)", "rates three times as large", scale("rate_chain", 3.0)),
    Break(escape, escapes, "16/(p p*)", "rates a third as large", scale("rate_chain", 1 / 3)),
    Break(escape, escapes, "16/(p p*)", "rates 30% smaller", slow_rates),
    Break(
        escape,
        escapes,
        "does not depend on p",
        "p = 4 leaves at the rate of p = 2",
        scale("rate_chain", [1.0, 2.0, 1.0]),
    ),
    Break(
        escape,
        escapes,
        "largest N",
        "escape times 15% longer",
        shift("gap", 0.15 * np.array([[0.5, 0.8], [1.0, 1.5], [1.8, 2.8]])),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (judges.runs_on_the_ode, runs_and_ode, lambda data: data.isel(run=slice(0, 5))),
        (judges.best_rates, rates, scale("eta_best_error", 8.0)),
        (judges.best_rates, rates, vary_starts),
        (judges.conservation, S, lambda data: data.isel(run=slice(0, 6))),
        (
            judges.dimension_counts,
            degrees_of_freedom,
            lambda data: data.assign(formula=data.formula * np.nan),
        ),
        (
            judges.escape_rates,
            escapes,
            lambda data: data.assign(rate_chain_error=4 * data.rate_chain_error),
        ),
    ],
    ids=[
        "runs_on_the_ode",
        "best_rates",
        "best_rates, starts",
        "conservation",
        "dimension_counts",
        "escape_rates",
    ],
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(judge, data(), few(data()))


def test_words_follow_the_data():
    assert "straight within its errors (chi2 1.0" in judges.best_rates(rates()).words
    assert (
        "curved beyond its errors (chi2 14.8"
        in judges.best_rates(rates().assign_attrs(chi2_per_freedom=14.8)).words
    )
