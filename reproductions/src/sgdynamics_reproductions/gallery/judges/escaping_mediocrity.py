"""Judges of the figures of *Escaping mediocrity*."""

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

HARDLY = 0.125  # largest relative change of an exit time that is not "considerable"
FORMULA = 0.05  # relative error of an exit time up to which a formula "describes" it
VISIBLE = 0.05  # curves closer than this fraction of the initial risk look like one in a picture
SPREAD = (  # figures 1 and 5
    "The SDE has the spread that the ODE lacks, and stochasticity hardly changes the exit time"
)
FLAT = 1e-3  # eigenvalues of the Hessian below this count as 0; second differences have error 1e-6


@judge_of("figure_1", "SGD and SDE paths next to the ODE, p = 1", SPREAD)
@judge_of("figure_5", "SGD and SDE paths next to the ODE, p = 2", SPREAD)
def exits_from_one_start(data: xr.Dataset) -> Judgement:
    """Compare exit times of SGD and SDE with the ODE, and the scatter of SGD and SDE about it."""
    from sgdynamics.papers.escaping_mediocrity import stochastic_shift

    ode, end = float(data.exit_time_ODE.mean()), float(data.t[-1])
    means: dict[str, Mean] = {}
    late = {}
    for name in ("SGD", "SDE"):
        times = data[f"exit_time_{name}"].values
        late[name] = int(np.sum(~np.isfinite(times)))
        # A run that has not left counts with the last time. The mean is then slightly too small,
        # but it is not silently the mean of the other runs.
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
        f"{name} {mean.value[0]:.3f}({mean.error[0]:.3f}) of that of the ODE"
        + (f", {late[name]} runs have not left" if late[name] else "")
        for name, mean in means.items()
    )
    return judge_claims(
        f"exit time from one start at d = {data.attrs['d']}: {text}; the risk scatters about the "
        f"ODE by up to {math.sqrt(size.max()):.2f} (SGD) and "
        f"{math.sqrt(scatter['SDE'].value.max()):.2f} (SDE); over random starts the noise brings "
        f"the exit forward by {-shift:.3f}, which is {-shift / ode:.1%} of this time (0 in the "
        "paper)",
        *(
            mean.agrees(
                f"The exit time of {name} is that of the ODE, within {100 * HARDLY:g}%",
                1.0,
                tolerance=HARDLY,
                scale=2 * HARDLY,
                scale_words="a quarter of the exit time",
            )
            for name, mean in means.items()
        ),
        largest.over(size.max()).is_above(
            "Runs of the SDE scatter about the ODE, which has no spread",
            scale=0.5,
            scale_words="half of the mean square of SGD",
        ),
        apart.over(size).agrees(
            "The SDE has the spread of SGD: mean squares about the ODE agree within 10%",
            0.0,
            tolerance=0.1,
            scale=0.6,
            scale_words="60% of the mean square",
        ),
    )


@judge_of(
    "figure_2",
    "measured divided by predicted exit times, as a function of d",
    "The annealed and quenched formulas describe the exit time at any d, and stochasticity can be "
    "neglected",
)
def exit_ratios(data: xr.Dataset) -> Judgement:
    """Compare measured mean exit times with the formulas; each (p, d) has independent runs."""
    from sgdynamics.papers.escaping_mediocrity import stochastic_shift

    measured, error, d = data.measured.values, data.standard_error.values, data.d.values
    is_finite = np.isfinite(measured)
    p = data.p.values.astype(float)
    shift = np.asarray(stochastic_shift(p, data.attrs["gamma_over_p"] * p, data.attrs["noise"]))
    ode_time = data.corrected.values - shift[:, None]  # mean exit time of the ODE, without noise
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
        for item in (data.quenched.values, ode_time)
    )
    return judge_claims(
        f"measured divided by predicted exit times: {text}, for p = {format_list(data.p)}, d = "
        f"{format_list(d)}; without the noise of SGD the mean time of the ODE is "
        f"{format_range((ode_time / measured)[is_finite])} of the measured one; from d = {d[0]:g} "
        f"on the measured time grows by {format_list(growth.value.round(3))} of the growth that "
        "the formulas predict for each p; annealed and quenched times differ by "
        f"{format_list(gap[:, 0].round(3))}, the same at all d within "
        f"{np.nanmax(np.abs(gap - gap[:, :1])):.3f}",
        by_formula.agrees(
            f"The quenched formula gives the mean exit time, within {100 * FORMULA:g}%",
            1.0,
            **common,
        ),
        by_ode.agrees(
            "Stochasticity can be neglected: the mean exit time of the ODE is that of SGD, within "
            f"{100 * FORMULA:g}%",
            1.0,
            **common,
        ),
        growth.agrees(
            "Exit times grow with log d as the formulas predict, within 10%",
            1.0,
            tolerance=0.1,
            scale=0.4,
            scale_words="40% of the growth",
        ),
        larger(
            "The annealed and quenched formulas meet at large width",
            gap[0, 0] - gap[-1, 0],
            0.0,
            scale=0.5 * gap[0, 0],
            scale_words=f"half of their difference at p = {p[0]:g}",
        ),
    )


def _first_passage(t: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """Time at which values (..., time) first reach the level, interpolated between save points.

    The last time is returned for values that do not reach the level.
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
    "Exit times with fixed and trained heads agree, and the dynamics after the exit differs",
)
def heads(data: xr.Dataset) -> Judgement:
    """Compare fixed with trained heads, run by run with the same noise.

    The exit times are compared, and the risk at four times the exit time.
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
        f"relative change of the exit time by training the head (p = {format_list(data.p)}, d = "
        f"{data.attrs['d']}): ODE {format_list((100 * apart).round(2))}%, SGD "
        f"{format_list((100 * paired.value).round(2))}"
        f"({format_list((100 * paired.error).round(2))})%; "
        f"at t = {t[after]:.2f}, four exit times, the risk with a fixed head is "
        f"{format_list(ratio.round(2))} (ODE) and "
        f"{format_list(np.exp(logs.value).round(2))} (SGD) times that with a trained head",
        Mean(apart, 0.0).agrees("ODE: the exit times agree within 2%", 0.0, **same),
        paired.agrees("SGD: the exit times agree within 2%", 0.0, **same),
        larger(
            "ODE: after the exit the risk with a fixed head is larger",
            np.log(ratio),
            0.0,
            **later,
        ),
        logs.is_above("SGD: after the exit the risk with a fixed head is larger", **later),
    )


@judge_of(
    "figure_4",
    "the ODE compared with many runs, p = 5 and 20",
    "The ODE describes the mean of the runs",
)
def mean_of_runs(data: xr.Dataset) -> Judgement:
    """Compare the ODE with the mean of runs at all times at which it has left its start."""
    runs = data.sizes["run"]
    findings, texts = [], []
    for p, value, line in zip(
        data.p.values, data.excess_risk.values, data.excess_risk_ode.values, strict=True
    ):
        first = line[0]
        points = np.flatnonzero(line < 0.98 * first)[::3]
        gap = mean_over_runs(value[:, points] - line[points]).over(first)
        texts.append(
            f"p = {int(p)}: the mean deviates from the ODE by at most "
            f"{100 * np.abs(gap.value).max():.1f}%, runs scatter by "
            f"{value.std(axis=0).max() / first:.0%}"
        )
        findings.append(
            gap.agrees(
                f"p = {int(p)}: the mean of the runs is the ODE, within {100 * VISIBLE:g}% of the "
                "initial risk",
                0.0,
                tolerance=VISIBLE,
                scale=2 * VISIBLE,
                scale_words="10% of the initial risk",
            )
        )
    # Before anything is learned the runs do not scatter, and the level itself is tested.
    start = [
        float(np.abs(entry[:, 0].mean() / line[0] - 1))
        for entry, line in zip(data.excess_risk.values, data.excess_risk_ode.values, strict=True)
    ]
    findings.append(
        agreement(
            "The runs and the ODE start at the same risk",
            start,
            0.0,
            0.0,
            tolerance=1e-6,
            scale=0.01,
            scale_words="1% of the initial risk",
        )
    )
    return judge_claims(
        f"mean of {runs} runs at d = {data.attrs['d']}, relative to the initial risk: "
        f"{'; '.join(texts)}",
        *findings,
    )


@judge_of(
    "figure_6",
    "the risk on the sphere, its Hessian at a start, and the samples needed to leave",
    "At a start without overlap one direction, towards w*, leads down and d - 1 directions are "
    "flat, so that n ~ d log d samples are needed to develop correlation with the signal",
)
def golf_course(data: xr.Dataset) -> Judgement:
    """Test the Hessian at a point without overlap, and the growth of the samples with log d.

    The Hessian is computed by second differences of the risk.
    """
    sizes = data.hessian_d.values
    saddle = [row[:d] for row, d in zip(data.eigenvalues_saddle.values, sizes, strict=True)]
    # One eigenvalue is 0 because its direction leaves the sphere.
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
    # Slope of n/d in log d for p = 1 without label noise.
    slope = 1 / (2 * data.attrs["gamma"] * 4 * (1 - 6 * data.attrs["gamma"]))
    grown = (samples[-1] - samples[0]) / (slope * math.log(d[-1] / d[0]))
    grown_error = math.hypot(error[-1], error[0]) / (slope * math.log(d[-1] / d[0]))
    least = np.array([row.min() for row in saddle])
    return judge_claims(
        f"at w orthogonal to w*, d = {format_list(sizes)}: {format_list(down)} eigenvalues below "
        f"0, {format_list(least.round(3))}, and {format_list(flat)} flat directions, of which one "
        "leaves the sphere (d - 2 on it); the direction down has overlap "
        f"{float(data.toward_teacher.min()):.6f} with w*; samples/d to leave: "
        f"{format_list(samples.round(1))} at d = {format_list(d)}, growing with log d by "
        f"{grown:.3f}({grown_error:.3f}) of 1/(2 gamma omega_M)",
        count_wrong(
            "The point is a saddle with one direction down and d - 1 flat ones",
            wrong,
            2 * len(sizes),
        ),
        agreement(
            "The direction down has the eigenvalue -4",
            least,
            0.0,
            -4.0,
            tolerance=FLAT,
            scale=0.1,
        ),
        agreement(
            "The direction down points to the minimum w*",
            data.toward_teacher,
            0.0,
            1.0,
            tolerance=1e-4,
            scale=0.01,
            scale_words=".01 of the overlap",
        ),
        larger(
            "w* is a minimum: the risk rises in all directions on the sphere",
            hole,
            0.0,
            scale=1.0,
        ),
        Mean(grown, grown_error).agrees(
            "Leaving takes n ~ d log d samples: n/d grows with log d by 1/(2 gamma omega_M), "
            "within 10%",
            1.0,
            tolerance=0.1,
            scale=0.7,
            scale_words="70% of it (n ~ d would be 100%)",
        ),
    )
