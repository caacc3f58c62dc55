"""Judges of scaling laws: a claim that is broken by a stated amount differs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from breaking import Break, check_break, check_few_runs, scale, shift
from sgdynamics import scaling
from sgdynamics.papers.scaling_laws import (
    emergence_exponent,
    emergence_loss,
    emergence_time,
    learning_exponent,
)
from sgdynamics_reproductions.gallery.judges import scaling_laws as judges
from test_judges_several_inputs import about

POINTS = {"Ia": (0.7, 0.3), "II": (1.0, 0.7), "IVb": (0.27, 0.9)}


@cache
def phases():
    laws = [scaling.phase(*point) for point in POINTS.values()]
    eta, xi = np.array([law.eta for law in laws]), np.array([law.xi for law in laws])
    off = np.array([1.002, 0.99, 1.055])
    return xr.Dataset(
        {
            "eta": ("phase", eta * off),
            "xi": ("phase", xi / off),
            "eta_predicted": ("phase", eta),
            "xi_predicted": ("phase", xi),
        },
        {"phase": list(POINTS), "phase_predicted": ("phase", [law.name for law in laws])},
    )


def scale_phase(name, which, by):
    """Return a change that multiplies a variable in one phase."""
    return scale(
        name, xr.DataArray(np.where(np.array(list(POINTS)) == which, by, 1.0), dims="phase")
    )


def exchange_phases(data):
    return data.assign_coords(phase_predicted=("phase", ["Ia", "III", "IVb"]))


@cache
def envelope():
    """Curves d^-1 + (n d^(1 - 1/xi))^-r d^-1 with xi = .4, eta = .4: every size is best where n =
    d^1.5.
    """
    sizes, flops = 10.0 ** np.arange(3, 8), np.logspace(7.5, 17.5, 41)
    steps = sizes[:, None] ** 1.5 * np.geomspace(1e-3, 1e3, 121)

    def loss(d, n):
        return (1 + (n / d**1.5) ** -1.5) / d

    d = np.geomspace(1e2, 1e9, 20_001)
    frontier = np.array([loss(d, budget / d).min() for budget in flops])
    both = np.stack([np.ones(7)] * 2)
    shape = (2, *steps.shape)
    return xr.Dataset(
        {
            "loss": (
                ("case", "size", "point"),
                np.broadcast_to(loss(sizes[:, None], steps), shape).copy(),
            ),
            "steps": (("case", "size", "point"), np.broadcast_to(steps, shape).copy()),
            "flops": (("case", "budget"), np.stack([flops] * 2)),
            "frontier": (("case", "budget"), np.stack([frontier] * 2)),
            **{name: ("case", [0.401, 0.399]) for name in ("eta", "xi")},
            **{f"{name}_predicted": ("case", [0.4, 0.4]) for name in ("eta", "xi")},
            "drawn": (
                ("case", "run", "drawn_steps"),
                np.stack([about(curve, 0.1, 80, row) for row, curve in enumerate(both)]),
            ),
            "equivalent": (("case", "drawn_steps"), both),
        },
        {"case": ["Ia", "III"], "size": sizes},
        {"features_drawn": 100},
    )


@cache
def relu():
    step = np.arange(1, 34)
    lines = np.stack([0.1 / (1 + step / tau) for tau in (60, 30, 15)])
    rates = np.stack([0.1 / np.array([1.0, 2.0, 3.0, 4.0])] * 4)

    def near(line, runs, seed, spread=0.03):
        return line * about(np.ones_like(line), spread, runs, seed)

    return xr.Dataset(
        {
            "excess_risk": (("exponent", "step"), lines),
            "excess_risk_runs": (
                ("exponent", "run", "point"),
                np.stack([near(line[4::4], 64, row) for row, line in enumerate(lines)]),
            ),
            "excess_risk_direct": (
                ("direct_run", "direct_point"),
                near(lines[1, 4::4][:6], 8, 7, 0.02),
            ),
            "g_l1": ("exponent", [0.011, 0.12, 0.28]),
            "by_rate": (("lr", "time"), rates),
            "by_rate_runs": (
                ("lr", "run", "time"),
                np.stack([near(line, 64, 10 + row) for row, line in enumerate(rates)]),
            ),
            "by_rate_g_l1": ("lr", [0.28, 0.56, 1.1, 2.2]),
        },
        {"exponent": [0.5, 1.0, 1.3], "lr": [1.0, 2.0, 4.0, 8.0]},
        {"every": 4, "direct": 1.0, "d": 2000, "width": 4},
    )


@cache
def samples():
    point, runs = np.array([3, 10, 30, 100, 300, 1000]), 400
    line = np.broadcast_to(0.2 + 0.3 / np.sqrt(point), (3, 2, 6)).copy()
    risk = line[:, :, None] * about(np.ones((3, 2, 6)), 0.1, runs).transpose(1, 2, 0, 3)
    risk[2, 1] *= 1e4 ** (np.log10(point) - 1)
    return xr.Dataset(
        {
            "gaussian_at": (("view", "lr", "point"), line),
            "repaired_at": (("view", "lr", "point"), line * 0.97),
            "risk": (("view", "lr", "run", "point"), risk),
            "largest_lr": ("view", [1.95, 1.89, 0.06]),
            "gaussian_lr": ("view", [0.91, 1.72, 1.81]),
        },
        {"view": ["raw", "centred", "standardised"], "lr": [0.2, 1.0], "point": point},
        {"start": 0.5},
    )


def scale_runs(name, view, lr, by):
    """Return a change that multiplies the runs of one view and one learning rate."""

    def alter(data):
        data[name].values[view, lr] *= by
        return data

    return alter


def stop_learning(data):
    data.risk.values[2, 1] = data.risk.values[1, 1]
    return data


@cache
def skills(late=1.0):
    """`late`: times of the single skills over those of flow."""
    b, K, t = np.array([1.5, 2.0]), 24, np.geomspace(0.1, 200, 161)
    skill_losses = emergence_loss(t / late, 1.5, 0.2, K)
    some = slice(8, 120, 12)
    size = 2 * np.arange(1, 6) ** -3.0
    return xr.Dataset(
        {
            "t": (("b", "time"), np.stack([t, t])),
            "fitted": ("b", [emergence_exponent(decay) + 0.02 for decay in b]),
            "fitted_closed": ("b", [emergence_exponent(decay) + 0.015 for decay in b]),
            "predicted": ("b", [emergence_exponent(decay) for decay in b]),
            "skill_loss": (("time", "skill"), skill_losses[:, :5]),
            "skill_loss_at": (("point", "skill"), skill_losses[some, :5]),
            "skill_loss_runs": (
                ("run", "point", "skill"),
                skill_losses[some, :5] + size * about(np.zeros((10, 5)), 0.01, 16),
            ),
            "loss_at": ("point", skill_losses[some].sum(axis=1)),
            "loss_runs": (
                ("run", "point"),
                skill_losses[some].sum(axis=1) * about(np.ones(10), 0.03, 16, 1),
            ),
        },
        {"b": b, "skill": np.arange(1, 6)},
        {"K": K, "d": 100, "lr": 0.02, "first": 0.2},
    )


def keep_last_skill(data):
    """Keep the loss of the last skill at its initial value."""
    data.skill_loss.values[:, -1] = data.skill_loss.values[0, -1]
    return data


@cache
def activations():
    s = np.array([1.25, 1.5, 2.0])
    law = np.array([learning_exponent(exponent, 0.25) for exponent in s])
    return xr.Dataset(
        {
            "fitted": (("activation", "exponent"), law + np.array([[-0.01], [0.0], [0.005]])),
            "predicted": ("exponent", law),
        },
        {"activation": ["erf", "relu", "square"], "exponent": s},
        {"late": 30.0},
    )


curves, real = judges.curves_and_envelope, judges.digits
BROKEN = [
    Break(
        judges.seven_phases, phases, "eta is", "eta 4% off in Ia", scale_phase("eta", "Ia", 1.04)
    ),
    Break(
        judges.seven_phases, phases, "eta is", "eta 8% off in IVb", scale_phase("eta", "IVb", 1.025)
    ),
    Break(judges.seven_phases, phases, "xi is", "xi 4% off in II", scale_phase("xi", "II", 0.95)),
    Break(judges.seven_phases, phases, "in its phase", "a point in another phase", exchange_phases),
    Break(curves, envelope, "eta and xi", "eta 5% off", scale("eta", 1.05)),
    Break(
        curves, envelope, "below the envelope", "an envelope 5% too high", scale("frontier", 1.05)
    ),
    Break(
        curves, envelope, "best for some budget", "an envelope 5% too low", scale("frontier", 0.95)
    ),
    Break(
        curves,
        envelope,
        "Phase III: the mean over draws",
        "draws 25% above their equivalent",
        scale("drawn", 1.25),
    ),
    Break(
        judges.relu_on_power_laws,
        relu,
        "Direct runs",
        "direct runs 10% lower",
        scale("excess_risk_direct", 0.9),
    ),
    Break(
        judges.relu_on_power_laws,
        relu,
        "s = 0.5",
        "chain runs 5% higher",
        scale("excess_risk_runs", 1.05),
    ),
    Break(
        judges.relu_on_power_laws,
        relu,
        "s = 1.3",
        "chain runs 10% lower",
        scale("excess_risk_runs", 0.9),
    ),
    Break(
        judges.relu_on_power_laws,
        relu,
        "lr = 8",
        "chain runs 40% higher at any rate",
        scale("by_rate_runs", 1.4),
    ),
    Break(
        real,
        samples,
        "Raw pixels, lr = 0.2",
        "SGD 7% above Gaussian theory",
        scale_runs("risk", 0, 0, 1.07),
    ),
    Break(
        real,
        samples,
        "Centred pixels, lr = 0.2",
        "SGD 7% below Gaussian theory",
        scale_runs("risk", 1, 0, 0.93),
    ),
    Break(
        real,
        samples,
        "Centred pixels, lr = 1",
        "SGD 15% below kappa's theory",
        scale_runs("risk", 1, 1, 0.82),
    ),
    Break(
        real,
        samples,
        "Raw pixels, lr = 1: the mean",
        "SGD 20% above kappa's theory",
        scale_runs("risk", 0, 1, 1.2),
    ),
    Break(real, samples, "SGD diverges", "standardised pixels settle", stop_learning),
    Break(
        real,
        samples,
        "SGD does not",
        "raw pixels end at three times the first risk",
        scale_runs("risk", 0, 1, 7.0),
    ),
    Break(
        real,
        samples,
        "largest_step",
        "it is blind to the samples",
        lambda data: data.assign(largest_lr=data.gaussian_lr),
    ),
    Break(judges.emergence, skills, "falls as", "exponents .05 off", shift("fitted", 0.03)),
    Break(
        judges.emergence,
        skills,
        "closed sum of 24",
        "exponents .025 from those of the closed sum",
        shift("fitted_closed", -0.02),
    ),
    Break(judges.emergence, skills, "its own time", "skills 30% late", lambda data: skills(1.3)),
    Break(judges.emergence, skills, "its own time", "a skill is never learned", keep_last_skill),
    Break(
        judges.emergence,
        skills,
        "single skills",
        "losses of skills 10% off",
        scale("skill_loss_runs", 0.9),
    ),
    Break(
        judges.emergence,
        skills,
        "The mean loss",
        "the loss of runs 20% off",
        scale("loss_runs", 1.2),
    ),
    Break(
        judges.any_activation,
        activations,
        "The exponent is",
        "exponents .04 off",
        shift("fitted", 0.04),
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.name for case in BROKEN])
def test_broken_claim_differs(case):
    check_break(case)


def test_half_of_the_first_skill_is_at_its_time():
    t = np.geomspace(0.01, 10, 400)
    assert judges._half_time(t, emergence_loss(t, 1.5, 0.2, 1)[:, 0], 1.0) == pytest.approx(
        float(emergence_time(1, 1.5, 0.2)), rel=1e-4
    )


@pytest.mark.parametrize(
    ("judge", "data", "few"),
    [
        (curves, envelope, {"run": 6}),
        (judges.relu_on_power_laws, relu, {"run": 3}),
        (real, samples, {"run": 5}),
        (judges.emergence, skills, {"run": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_few_runs_do_not_decide(judge, data, few):
    check_few_runs(
        judge, data(), data().isel({name: slice(0, count) for name, count in few.items()})
    )
