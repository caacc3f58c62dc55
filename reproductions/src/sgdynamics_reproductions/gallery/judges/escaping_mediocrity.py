"""Whether the data of the figures of *Escaping mediocrity* show what it claims."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Judgement,
    Mean,
    agreement,
    count_wrong,
    difference,
    format_list,
    format_range,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

HARDLY = 0.125  # of the ODE's exit time: a change up to this is no "considerable" one
FORMULA = 0.05  # of an exit time: what "describes" means of a formula
VISIBLE = 0.05  # of the first risk: two lines closer than this are one in a picture
SPREAD = "the SDE has the spread that the ODE lacks, and stochasticity hardly changes the exit time"  # figures 1 and 5
FLAT = 1e-3  # an eigenvalue of the Hessian below this is 0: second differences have 1e-6


@judge_of("figure_1", "SGD and SDE paths next to the ODE, p = 1", SPREAD)
@judge_of("figure_5", "SGD and SDE paths next to the ODE, p = 2", SPREAD)
def exits_from_one_start(data: xr.Dataset) -> Judgement:
    """Exit times of SGD and SDE against the ODE's; and the scatter of the risk about the ODE, which
    SGD and SDE must share.
    """
    from sgdynamics.papers.escaping_mediocrity import stochastic_shift

    ode, end = float(data.exit_time_ODE.mean()), float(data.t[-1])
    means: dict[str, Mean] = {}
    late = {}
    for name in ("SGD", "SDE"):
        times = data[f"exit_time_{name}"].values
        late[name] = int(np.sum(~np.isfinite(times)))
        # a run that is not out yet counts with the last time: the mean is then a little too small,
        # not silently of the others
        means[name] = mean_over_runs(np.where(np.isfinite(times), times, end)[:, None] / ode)
    line = data.excess_risk_ODE.values[0]
    fallen = np.flatnonzero((line < 0.9 * line[0]) & (line > 0.02 * line[0]))
    points = fallen[:: max(len(fallen) // 12, 1)]
    scatter = {
        name: mean_over_runs((data[f"excess_risk_{name}"].values[:, points] - line[points]) ** 2)
        for name in means
    }
    apart = difference(scatter["SDE"], scatter["SGD"])
    size, worst = scatter["SGD"].value, [int(np.argmax(scatter["SGD"].value))]
    largest = Mean(
        scatter["SDE"].value[worst], scatter["SDE"].error[worst], runs=scatter["SDE"].runs
    )
    shift = float(stochastic_shift(*(data.attrs[name] for name in ("p", "gamma", "noise"))))
    text = "; ".join(
        f"{name} {mean.value[0]:.3f}({mean.error[0]:.3f}) of the ODE's"
        + (f", {late[name]} not out yet" if late[name] else "")
        for name, mean in means.items()
    )
    return judge_claims(
        f"exit time from one start at d = {data.attrs['d']}: {text}; the risk scatters about the ODE by up to "
        f"{math.sqrt(size.max()):.2f} (SGD) and {math.sqrt(scatter['SDE'].value.max()):.2f} (SDE); over random starts noise brings the "
        f"exit forward by {-shift:.3f}, {-shift / ode:.1%} of this time (printed: 0)",
        *(
            mean.agrees(
                f"the exit time of {name} is the ODE's, to {100 * HARDLY:g}%",
                1.0,
                tolerance=HARDLY,
                scale=2 * HARDLY,
                scale_words="a quarter of the exit time",
            )
            for name, mean in means.items()
        ),
        largest.over(size.max()).is_above(
            "runs of the SDE scatter about the ODE, which has no spread",
            scale=0.5,
            scale_words="half of the mean square of SGD",
        ),
        apart.over(size).agrees(
            "the SDE has the spread of SGD: mean squares about the ODE, to 10%",
            0.0,
            tolerance=0.1,
            scale=0.6,
            scale_words="60% of the mean square",
        ),
    )


@judge_of(
    "figure_2",
    "measured over predicted exit times against d",
    "annealed and quenched formulas describe the exit time at any d, and stochasticity can be neglected",
)
def exit_ratios(data: xr.Dataset) -> Judgement:
    """Measured mean exit times against the formulas, in ratios; every (p, d) has runs of its own."""
    from sgdynamics.papers.escaping_mediocrity import stochastic_shift

    measured, error, d = data.measured.values, data.standard_error.values, data.d.values
    is_finite = np.isfinite(measured)
    p = data.p.values.astype(float)
    shift = stochastic_shift(p, data.attrs["gamma_over_p"] * p, data.attrs["noise"])
    still = data.corrected.values - shift[:, None]  # the ODE's own mean time
    ratios = {
        name: (data.measured / data[name]).values for name in ("annealed", "quenched", "corrected")
    }
    gap = data.quenched.values - data.annealed.values
    columns = [np.flatnonzero(row)[[0, -1]] for row in is_finite]
    grown, predicted = (
        np.array(
            [entry[row, last] - entry[row, first] for row, (first, last) in enumerate(columns)]
        )
        for entry in (measured, data.annealed.values)
    )
    grown_error = np.array(
        [
            math.hypot(error[row, first], error[row, last])
            for row, (first, last) in enumerate(columns)
        ]
    )
    growth = Mean(grown, grown_error, "independent").over(predicted)
    text = ", ".join(f"{name} {format_range(value)}" for name, value in ratios.items())
    common = {"tolerance": FORMULA, "scale": 0.12, "scale_words": "12% of the exit time"}
    by_formula, by_ode = (
        Mean(measured[is_finite], error[is_finite], "independent").over(item[is_finite])
        for item in (data.quenched.values, still)
    )
    return judge_claims(
        f"measured over predicted: {text}, for p = {format_list(data.p)}, d = {format_list(d)}; without the noise of SGD the ODE's mean time is "
        f"{format_range((still / measured)[is_finite])} of the measured one; from d = {d[0]:g} on it grows by "
        f"{format_list(growth.value.round(3))} of what the formulas say; annealed and quenched differ by {format_list(gap[:, 0].round(3))}, "
        f"the same at every d to "
        f"{np.nanmax(np.abs(gap - gap[:, :1])):.3f}",
        by_formula.agrees(
            f"the quenched formula is the mean exit time, to {100 * FORMULA:g}%", 1.0, **common
        ),
        by_ode.agrees(
            f"stochasticity can be neglected: the ODE's mean exit time is that of SGD, to {100 * FORMULA:g}%",
            1.0,
            **common,
        ),
        growth.agrees(
            "exit times grow with log d as the formulas say, to 10%",
            1.0,
            tolerance=0.1,
            scale=0.4,
            scale_words="40% of the growth",
        ),
        larger(
            "annealed and quenched formulas meet at large width",
            gap[0, 0] - gap[-1, 0],
            0.0,
            scale=0.5 * gap[0, 0],
            scale_words=f"half of their difference at p = {p[0]:g}",
        ),
    )


def _first_passage(t: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """When values (..., time) first reach the level, between save points; the last time where they
    do not.
    """
    above = values >= level
    at = np.where(above.any(axis=-1), above.argmax(axis=-1), len(t) - 1)
    before = np.maximum(at - 1, 0)
    low, high = (np.take_along_axis(values, value[..., None], -1)[..., 0] for value in (before, at))
    share = np.clip((level - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return t[before] + share * (t[at] - t[before])


@judge_of(
    "figure_3",
    "fixed and trained heads, p = 20 and 50",
    "exit times agree, what comes after differs",
)
def heads(data: xr.Dataset) -> Judgement:
    """Fixed against trained heads, run by run with the same noise: exit times, and the risk at four
    times the exit time.
    """
    exits, t = data.exit_time_ode.values, data.t.values
    after = min(int(np.searchsorted(t, 4 * exits.max())), len(t) - 1)
    apart = exits[:, 1] / exits[:, 0] - 1
    ratio = data.excess_risk_ode.values[:, 0, after] / data.excess_risk_ode.values[:, 1, after]
    left = _first_passage(t, data.largest_overlap.values, data.attrs["threshold"])  # (p, head, run)
    paired = mean_over_runs(((left[:, 1] - left[:, 0]) / left[:, 0].mean(axis=1, keepdims=True)).T)
    logs = mean_over_runs(
        np.log(data.excess_risk.values[:, 0, :, after] / data.excess_risk.values[:, 1, :, after]).T
    )
    same = {"tolerance": 0.02, "scale": 0.1, "scale_words": "10% of the exit time"}
    later = {"scale": math.log(1.25), "scale_words": "a quarter of the risk"}
    return judge_claims(
        f"exit times with a trained head less those with a fixed one (p = {format_list(data.p)}, d = {data.attrs['d']}): ODE "
        f"{format_list((100 * apart).round(2))}%, SGD {format_list((100 * paired.value).round(2))}({format_list((100 * paired.error).round(2))})%; at t = "
        f"{t[after]:.2f}, four exit times, the fixed head's risk is {format_list(ratio.round(2))} (ODE) and "
        f"{format_list(np.exp(logs.value).round(2))} (SGD) times the other's",
        Mean(apart, 0.0).agrees("ODE: the exit times agree, to 2%", 0.0, **same),
        paired.agrees("SGD: the exit times agree, to 2%", 0.0, **same),
        larger(
            "ODE: what comes after differs, the fixed head's risk is larger",
            np.log(ratio),
            0.0,
            **later,
        ),
        logs.is_above("SGD: what comes after differs, the fixed head's risk is larger", **later),
    )


@judge_of(
    "figure_4", "the ODE against many runs, p = 5 and 20", "the ODE describes the mean of the runs"
)
def mean_of_runs(data: xr.Dataset) -> Judgement:
    """The ODE against the mean of runs at every time at which it has moved."""
    runs = data.sizes["run"]
    findings, texts = [], []
    for p, value, line in zip(
        data.p.values, data.excess_risk.values, data.excess_risk_ode.values, strict=True
    ):
        first = line[0]
        points = np.flatnonzero(line < 0.98 * first)[::3]
        gap = mean_over_runs(value[:, points] - line[points]).over(first)
        texts.append(
            f"p = {int(p)}: {100 * np.abs(gap.value).max():.1f}% from the ODE at most, runs scatter by {value.std(axis=0).max() / first:.0%}"
        )
        findings.append(
            gap.agrees(
                f"p = {int(p)}: the mean of the runs is the ODE, to {100 * VISIBLE:g}% of the first risk",
                0.0,
                tolerance=VISIBLE,
                scale=2 * VISIBLE,
                scale_words="10% of the first risk",
            )
        )
    # while nothing has been learned there is no scatter to hide behind: the level itself
    start = [
        float(np.abs(entry[:, 0].mean() / line[0] - 1))
        for entry, line in zip(data.excess_risk.values, data.excess_risk_ode.values, strict=True)
    ]
    findings.append(
        agreement(
            "both start at the same risk",
            start,
            0.0,
            0.0,
            tolerance=1e-6,
            scale=0.01,
            scale_words="1% of the first risk",
        )
    )
    return judge_claims(
        f"mean of {runs} runs at d = {data.attrs['d']}, of the risk at the start: {'; '.join(texts)}",
        *findings,
    )


@judge_of(
    "figure_6",
    "the risk on the sphere, its Hessian at a start, and the samples to leave",
    "one direction down, to w*, and d - 1 flat ones: n ~ d log d samples to develop correlation with the signal",
)
def golf_course(data: xr.Dataset) -> Judgement:
    """The Hessian at a point without overlap, counted by second differences, and the growth of the
    samples with log d.
    """
    sizes = data.hessian_d.values
    saddle = [row[:d] for row, d in zip(data.eigenvalues_saddle.values, sizes, strict=True)]
    # one is 0 for the direction off the sphere
    hole = np.concatenate(
        [
            row[:d][np.argsort(np.abs(row[:d]))][1:]
            for row, d in zip(data.eigenvalues_minimum.values, sizes, strict=True)
        ]
    )
    flat = np.array([int(np.sum(np.abs(row) < FLAT)) for row in saddle])
    down = np.array([int(np.sum(row < -FLAT)) for row in saddle])
    wrong = int(np.sum(flat != sizes - 1) + np.sum(down != 1))
    samples, error, d = data.samples.values, data.samples_error.values, data.d.values
    slope = 1 / (
        2 * data.attrs["gamma"] * 4 * (1 - 6 * data.attrs["gamma"])
    )  # of n/d in log d: p = 1, no label noise
    grown = (samples[-1] - samples[0]) / (slope * math.log(d[-1] / d[0]))
    grown_error = math.hypot(error[-1], error[0]) / (slope * math.log(d[-1] / d[0]))
    least = np.array([row.min() for row in saddle])
    return judge_claims(
        f"at w orthogonal to w*, d = {format_list(sizes)}: {format_list(down)} eigenvalues below 0, {format_list(least.round(3))}, and {format_list(flat)} "
        f"flat directions, of which one leaves the sphere (d - 2 on it); the one down has overlap "
        f"{float(data.toward_teacher.min()):.6f} with w*; "
        f"samples/d to leave: {format_list(samples.round(1))} at d = {format_list(d)}, growing with log d by {grown:.3f}({grown_error:.3f}) of "
        f"1/(2 gamma omega_M)",
        count_wrong("a saddle with one direction down and d - 1 flat ones", wrong, 2 * len(sizes)),
        agreement(
            "the one down has the eigenvalue -4", least, 0.0, -4.0, tolerance=FLAT, scale=0.1
        ),
        agreement(
            "it points to the minimum w*",
            data.toward_teacher,
            0.0,
            1.0,
            tolerance=1e-4,
            scale=0.01,
            scale_words=".01 of the overlap",
        ),
        larger(
            "w* is a minimum: the risk rises in all directions on the sphere", hole, 0.0, scale=1.0
        ),
        Mean(grown, grown_error).agrees(
            "leaving takes n ~ d log d samples: n/d grows with log d by 1/(2 gamma omega_M), to 10%",
            1.0,
            tolerance=0.1,
            scale=0.7,
            scale_words="70% of it (all of it is n ~ d)",
        ),
    )
