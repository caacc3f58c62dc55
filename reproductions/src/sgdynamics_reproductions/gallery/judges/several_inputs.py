"""Judges of the figures about samples of several inputs and about learning rules of one's own."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy import stats

from sgdynamics_reproductions.gallery.claims import (
    RATE,
    Finding,
    Judgement,
    Mean,
    agreement,
    count_wrong,
    difference,
    format_list,
    judge_claims,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

# The theory is for d -> infinity: runs at dimension d may differ from it by this multiple of 1/d,
# relative to the size of the curve.
PER_DIMENSION = 4.0
WRONG = 0.05  # relative error that must be detectable
LONG = 20.0  # as PER_DIMENSION, for hundreds of samples per dimension, over which deviations add up
# Relative tolerance of the median of runs as an estimate of the exit time of the ODE, by exponent.
NEAR = {1: 0.02, 2: 0.05, 3: 0.25}


def _on_theory(
    claim: str,
    runs: np.ndarray,
    theory: np.ndarray,
    d: float,
    *,
    size: float | np.ndarray = 1.0,
    most: float = PER_DIMENSION,
) -> Finding:
    """Test that the mean of runs (run, points...) is the curve of the theory (points...).

    The tolerance is ``most``/d times the size of the curve.
    """
    return (
        mean_over_runs(np.asarray(runs) - theory)
        .over(size)
        .agrees(
            f"{claim}, within {most:g}/d",
            0.0,
            tolerance=most / d,
            scale=WRONG,
            scale_words=f"{WRONG:.0%} of the size",
        )
    )


def _largest_deviation(
    runs: np.ndarray, theory: np.ndarray, size: float | np.ndarray = 1.0
) -> float:
    return float(np.abs((np.asarray(runs).mean(axis=0) - theory) / size).max())


def _first_passage(t: np.ndarray, values: np.ndarray, level: float) -> float:
    """Time at which values first reach the level, between save points; NaN if they do not."""
    above = np.flatnonzero(values >= level)
    if not len(above):
        return np.nan
    at = max(int(above[0]), 1)
    share = np.clip((level - values[at - 1]) / (values[at] - values[at - 1]), 0.0, 1.0)
    return float(t[at - 1] + share * (t[at] - t[at - 1]))


@judge_of(
    "figure_5",
    "Hebb, perceptron and Adatron: errors and their asymptotic laws",
    "Errors fall as alpha^-1/2, alpha^-1/3 and 1/alpha with the closed prefactors, and runs agree "
    "with the ODE",
)
def late_laws(data: xr.Dataset) -> Judgement:
    """Test exponents and prefactors of the ODE at its end, and compare runs with the ODE."""
    from sgdynamics.papers.several_inputs.formulas import LATE_EXPONENTS

    end, d = float(data.alpha[-1]), data.attrs["d"]
    law = np.array([LATE_EXPONENTS[rule] for rule in data.rule.values])
    exponent, front = data.exponent.values[:, -1], (data.error / data.late_error).values[:, -1]
    findings, texts = [], []
    for row, rule in enumerate(data.rule.values):
        runs, line = data.error_runs.values[row], data.error_at_runs.values[row]
        texts.append(f"{rule} {100 * _largest_deviation(runs, line, line):.2f}%")
        findings.append(
            _on_theory(
                f"{rule}: the mean error of the runs is that of the ODE", runs, line, d, size=line
            )
        )
    return judge_claims(
        f"at alpha = {end:g} the exponents are {format_list(exponent.round(4))} and the errors "
        f"{format_list(front.round(4))} of the closed laws; runs at d = {d} deviate from the ODE "
        f"by at most {', '.join(texts)}",
        agreement(
            "Local exponents are -1/2, -1/3 and -1, within .005",
            exponent,
            0.0,
            law,
            tolerance=0.005,
            scale=0.02,
        ),
        agreement(
            "Prefactors are the closed ones, within .5%",
            front,
            0.0,
            1.0,
            tolerance=0.005,
            scale=0.02,
            scale_words="2% of the prefactors",
        ),
        *findings,
    )


@judge_of(
    "figure_1",
    "an attention head learns from another: risk and overlaps",
    "Runs of SGD agree with the ODE, and the value row is learned before the query row",
)
def attention_curves(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, and test that half of v* is learned before half of q*."""
    d, at = data.attrs["d"], slice(data.attrs["every"], None, data.attrs["every"])
    first = float(data.excess_risk[0])
    lines = {name: data[name].values[at] for name in ("excess_risk", "M", "Q")}
    runs = {name: data[f"{name}_runs"].values for name in lines}
    sizes = {"excess_risk": first, "M": 1.0, "Q": 1.0}
    text = {
        "excess_risk": "excess risk relative to the initial one",
        "M": "overlap with the teacher",
        "Q": "product of the rows",
    }
    query, value = ((np.abs(runs["M"][:, 0, entry])) for entry in (0, 1))
    ahead = mean_over_runs((value - query)[:, None])
    halves = [_first_passage(data.t.values, data.M.values[:, item], 0.5) for item in (0, 1)]
    gaps = ", ".join(
        f"{text[name]} {_largest_deviation(runs[name], lines[name], sizes[name]):.4f}"
        for name in lines
    )
    return judge_claims(
        f"mean of {data.sizes['run']} runs at d = {d}, largest deviation from the ODE: {gaps}; at "
        f"t = {float(data.t_runs[0]):g} the overlap of v with v* is ahead of that of q with q* by "
        f"{ahead.value[0]:.3f}({ahead.error[0]:.3f}); half of v* is reached at t = {halves[1]:.2f} "
        f"and half of q* at {halves[0]:.2f}",
        *(
            _on_theory(
                f"{text[name].capitalize()}: the mean of the runs is the ODE",
                runs[name],
                lines[name],
                d,
                size=sizes[name],
            )
            for name in lines
        ),
        ahead.is_above(
            "The value row is learned before the query row",
            scale=0.1,
            scale_words=".1 of the overlap",
        ),
    )


@judge_of(
    "figure_4",
    "a linear autoencoder learns principal components one after the other",
    "Larger spikes are learned first, each at the time that its own rate 4 (1 + beta) predicts, "
    "and runs agree with the ODE",
)
def one_after_the_other(data: xr.Dataset) -> Judgement:
    """Test the times at which half of each spike is learned, in the ODE and in runs.

    The ODE is compared with the logistic path, and the order is tested in the runs.
    """
    d, t, stride = data.attrs["d"], data.t.values, data.attrs["every"]
    beta = data.spike.values
    alone = np.log(1 / data.attrs["first"] - 1) / (4 * (1 + beta))
    half = np.array([_first_passage(t, row, 0.5) for row in data.held.values.T])
    began = np.append(0.0, data.t_runs.values)
    of_runs = np.concatenate(
        [np.full_like(data.held_runs.values[:, :1], data.attrs["first"]), data.held_runs.values],
        axis=1,
    )
    times = np.array([[_first_passage(began, row, 0.5) for row in run.T] for run in of_runs])
    waits = mean_over_runs(np.diff(times, axis=1))
    lines = data.held.values[stride::stride]
    risk, risks = data.risk.values[stride::stride], data.risk_runs.values
    size = float(np.ptp(data.risk.values))
    return judge_claims(
        f"half of the spikes {format_list(beta)} is learned at t = {format_list(half.round(3))} "
        f"(ODE), {format_list(times.mean(axis=0).round(3))} (mean of {len(times)} runs at d = {d}) "
        f"and {format_list(alone.round(3))} (each alone, without noise); runs deviate from the ODE "
        f"by at most {_largest_deviation(data.held_runs.values, lines):.4f} in squared overlaps "
        f"and {_largest_deviation(risks, risk, size):.4f} of the fall of the risk",
        agreement(
            "ODE: each spike is learned at the time that its own rate predicts, within 10%",
            half / alone,
            0.0,
            1.0,
            tolerance=0.1,
            scale=0.2,
            scale_words="20% of the time",
        ),
        waits.is_above(
            "Runs: the larger spike is learned first", scale=0.05, scale_words="t = .05"
        ),
        _on_theory(
            "Squared overlaps of the runs with the spikes are those of the ODE",
            data.held_runs.values,
            lines,
            d,
        ),
        _on_theory("The mean risk of the runs is that of the ODE", risks, risk, d, size=size),
    )


@judge_of(
    "figure_7",
    "a generative adversarial network: recovery, oscillation, no learning",
    "Depending on the noise, the generator finds the direction, oscillates about it or learns "
    "nothing, and runs agree with the ODE",
)
def adversaries(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, and test each case on the last third of the paths of the runs."""
    d, stride = data.attrs["d"], data.attrs["every"]
    late = data.alpha_runs.values > 2 / 3 * float(data.alpha[-1])
    lines, runs = data.M.values[:, stride::stride], data.M_runs.values
    generator = [mean_over_runs(run[:, late, 1].mean(axis=1)[:, None]) for run in runs]
    swing = [mean_over_runs(value[:, late, 0].std(axis=1)[:, None]) for value in runs]
    gaps = [_largest_deviation(entry, line) for entry, line in zip(runs, lines, strict=True)]
    shown = "; ".join(
        f"{case}: v.u = {item.value[0]:.3f}({item.error[0]:.3f}), w.u oscillates by "
        f"{spread.value[0]:.3f}, runs deviate from the ODE by at most {gap:.3f}"
        for case, item, spread, gap in zip(data.case.values, generator, swing, gaps, strict=True)
    )
    size = {"scale": 0.2, "scale_words": ".2 of the overlap"}
    return judge_claims(
        f"last third of the time, runs at d = {d}: {shown}",
        *(
            _on_theory(
                f"{case}: the mean overlaps of the runs are those of the ODE",
                values,
                line,
                d,
                most=LONG,
            )
            for case, values, line in zip(data.case.values, runs, lines, strict=True)
        ),
        Mean(generator[0].value - 0.75, generator[0].error, runs=generator[0].runs).is_above(
            "recovery: the overlap of the generator is above .75",
            scale=0.05,
            scale_words=".05 of the overlap",
        ),
        difference(swing[1], swing[0]).is_above(
            "oscillation: with little noise w.u continues to oscillate, more than in recovery",
            **size,
        ),
        generator[2].agrees(
            "no learning: the generator stays at its start, within .1", 0.2, tolerance=0.1, **size
        ),
    )


@judge_of(
    "figure_3",
    "exit times of sequences of exponent 1, 2 and 3 as a function of d",
    "The exit time is O(1), log d and sqrt(d) for exponents 1, 2 and 3, with the closed factors; "
    "medians of runs are near the ODE and grow in the same way",
)
def exits_of_sequences(data: xr.Dataset) -> Judgement:
    """Compare the growth of the ODE's time with the closed laws, and medians of runs with the ODE.

    Medians are compared by ranks.
    """
    ode, law, d = data.exit_ode.values, data.law.values, data.d_ode.values
    grown = (ode[1:, -1] - ode[1:, -5]) / (law[1:, -1] - law[1:, -5])
    flat = ode[0, -1] / ode[0, -5]
    findings, texts = [], []
    for row, n in enumerate(data.exponent.values):
        is_finite = np.isfinite(data.d.values[row])
        times = data.exit_runs.values[row, is_finite, : int(data.runs[row])]
        times = np.where(np.isfinite(times), times, np.inf)
        expected, at = data.exit_ode_runs.values[row, is_finite], data.d.values[row, is_finite]
        medians = np.median(times, axis=1)
        texts.append(
            f"exponent {n} {format_list((medians / expected).round(3))} at d = {format_list(at)}"
        )
        tolerance = NEAR[int(n)]
        findings += [
            _median_between(
                f"Exponent {n}, d = {size:g}: the median of the runs is the time of the ODE, "
                f"within {tolerance:.0%}",
                value,
                time,
                tolerance,
            )
            for value, time, size in zip(times, expected, at, strict=True)
        ]
    return judge_claims(
        f"from d = {d[-5]:.3g} to {d[-1]:.3g} the time of the ODE grows by "
        f"{format_list(grown.round(3))} of the closed laws for exponents 2 and 3 and by "
        f"{flat - 1:.1%} for exponent 1; medians of {format_list(data.runs)} runs divided by the "
        f"time of the ODE: {'; '.join(texts)}",
        agreement(
            "Exponent 1: the time does not grow, within 5%",
            flat,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
            scale_words="20% of the time (log d would be 33%)",
        ),
        agreement(
            "Exponents 2 and 3: the time grows as the closed laws predict, within 5%",
            grown,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
            scale_words="20% of the growth",
        ),
        *findings,
    )


def _median_between(claim: str, times: np.ndarray, expected: float, tolerance: float) -> Finding:
    """Test by the sign test that the median of runs is within the tolerance of a time.

    Not too many runs may lie below the lower end of the interval or above its upper end. Runs that
    have not left are later than any time. A median twice or half as long must be detectable.
    """
    runs, far = len(times), float(stats.binom.isf(RATE / 2, len(times), 0.5))
    low, high = (
        int(np.sum(times < (1 - tolerance) * expected)),
        int(np.sum(times > (1 + tolerance) * expected)),
    )
    # Detectable: the smallest f such that a median at (1 + f) or 1/(1 + f) times the expected one
    # is recognised, for the empirical law of the runs.
    middle = float(np.median(times))
    factors = np.geomspace(1 + tolerance, 4.0, 200)
    is_detected = [
        min(
            np.sum(times * f > (1 + tolerance) * middle),
            np.sum(times / f < (1 - tolerance) * middle),
        )
        > far + 2.33 * np.sqrt(runs) / 2
        for f in factors
    ]
    detectable = float(factors[int(np.argmax(is_detected))] - 1) if any(is_detected) else np.inf
    value = max(low, high) / far
    return Finding(
        claim,
        f"{low} and {high} of {runs} runs are beyond the ends, at most {far:.0f}; the larger, "
        "divided by that",
        value,
        1.0,
        detectable,
        "the time (twice or half of it)",
        False if value > 1 else True if detectable <= 1 else None,
    )


@judge_of(
    "figure_6",
    "phases of a perceptron that is rewarded per episode",
    "Long episodes with a penalty are learned only from near the teacher, short ones from "
    "anywhere, and runs agree with the closed ODE",
)
def rewards(data: xr.Dataset) -> Judgement:
    """Compare runs with the closed ODE, the two outcomes of one penalty by start, and the maps."""
    d, stride, threshold = data.attrs["d"], data.attrs["every"], 0.5
    runs, lines = data.path_runs.values, data.path.values[:, stride::stride]
    T, e2, first = (data[f"cell_{name}"].values for name in ("tokens", "penalty", "first"))
    learned = lines[:, -1] > threshold
    ends = [mean_over_runs(run[:, -1:]) for run in runs]
    text = "; ".join(
        f"T = {a}, e2 = {b:g}, from {c:g}: {end.value[0]:.3f}({end.error[0]:.3f}), ODE "
        f"{line[-1]:.3f}"
        for a, b, c, end, line in zip(T, e2, first, ends, lines, strict=True)
    )
    pairs = [
        (i, j)
        for i in np.flatnonzero(learned)
        for j in np.flatnonzero(~learned)
        if (T[i], e2[i]) == (T[j], e2[j])
        and T[i] == data.attrs["long"]
        and first[i] > first[j]
        and first[j] > data.attrs["small"]
    ]
    apart = [difference(ends[i], ends[j]) for i, j in pairs]
    by_start, by_length = data.by_start.values > threshold, data.by_length.values > threshold
    undone = np.sum(by_start[:-1] & ~by_start[1:]) + np.sum(by_length[1:] & ~by_length[:-1])
    short = int(np.sum(~by_length[data.tokens.values <= 3]))
    penalised = by_length[data.tokens.values >= data.attrs["long"]][:, data.penalty.values >= 0.2]
    return judge_claims(
        f"cosine at alpha = {data.attrs['end']:g} of {data.sizes['run']} runs at d = {d}: {text}; "
        f"T = {data.attrs['long']} is learned in {by_start.mean():.0%} of the map, T <= 3 in "
        f"{1 - short / np.sum(data.tokens.values <= 3) / data.sizes['penalty']:.0%} of it from "
        f"{data.attrs['small']:g}",
        *(
            _on_theory(
                f"T = {a}, e2 = {b:g}, from {c:g}: the mean cosine of the runs is that of the ODE",
                value,
                line,
                d,
            )
            for a, b, c, value, line in zip(T, e2, first, runs, lines, strict=True)
        ),
        *(
            entry.is_above(
                f"T = {T[i]}, e2 = {e2[i]:g}: the teacher is learned from {first[i]:g} and not "
                f"from {first[j]:g}",
                scale=0.5,
                scale_words=".5 of the cosine",
            )
            for (i, j), entry in zip(pairs, apart, strict=True)
        ),
        count_wrong(
            "Episodes of up to three decisions are learned from a small overlap at any penalty",
            short,
            by_length[:3].size,
        ),
        count_wrong(
            "Long episodes with a penalty of .2 or more are not learned from a small overlap",
            int(np.sum(penalised)),
            penalised.size,
        ),
        count_wrong(
            "An episode that is learned is also learned from any nearer start and if it is shorter",
            int(undone),
            by_start.size + by_length.size,
        ),
    )


@judge_of(
    "figure_2",
    "attention by content or by position: growth rates and phases",
    "The overlap with content grows at .2205 (1 - omega), that with position at c0^2 (-.1333 + "
    ".1534 omega), and the leading one changes where the rates cross",
)
def content_or_position(data: xr.Dataset) -> Judgement:
    """Compare growth rates and their crossings with closed ones, and runs with the ODE.

    The overlap that leads at an early time must change where the rates cross.
    """
    d, omega, share, t = data.attrs["d"], data.omega.values, data.share.values, data.t.values
    gap = data.growth.values - data.growth_closed.values
    crossings = []
    for rates in data.growth.values:  # straight lines in omega
        content, position = (np.polyfit(share, rates[:, column], 1) for column in (0, 1))
        crossings.append(
            (-position[1] / position[0], (content[1] - position[1]) / (position[0] - content[0]))
        )
    early = int(np.argmin(np.abs(t - data.attrs["early"])))
    ahead = data.M.values[:, early, 1] - data.M.values[:, early, 0]
    lead = _first_passage(omega, ahead, 0.0)
    rows = [int(np.argmin(np.abs(omega - value))) for value in data.shown.values]
    lines, runs = (
        data.M.values[rows][:, data.attrs["every"] :: data.attrs["every"]],
        data.M_runs.values,
    )
    gaps = [_largest_deviation(run, line) for run, line in zip(runs, lines, strict=True)]
    ends = mean_over_runs(
        np.stack(
            [runs[0, :, -1, 0] - runs[0, :, -1, 1], runs[-1, :, -1, 1] - runs[-1, :, -1, 0]], axis=1
        )
    )
    return judge_claims(
        f"growth rates deviate from the closed ones by at most {np.abs(gap).max():.5f}; position "
        f"is unstable from omega = {crossings[0][0]:.4f} on and faster from {crossings[0][1]:.4f} "
        f"(c0 = 1) and {crossings[1][1]:.4f} (c0 = 2); at t = {t[early]:g} it leads from "
        f"{lead:.3f} on; runs at d = {d} deviate from the ODE by at most "
        f"{format_list(np.round(gaps, 3))} at omega = {format_list(data.shown)}",
        agreement(
            "Growth rates are the closed ones, within .002",
            gap,
            0.0,
            0.0,
            tolerance=0.002,
            scale=0.02,
        ),
        agreement(
            "Position becomes unstable and faster at the closed values of omega, within .004",
            crossings,
            0.0,
            data.crossing.values,
            tolerance=0.004,
            scale=0.02,
        ),
        agreement(
            "c0 = 2: the leading overlap at an early time changes where the rates cross, within "
            ".02",
            lead,
            0.0,
            float(data.crossing[1, 1]),
            tolerance=0.02,
            scale=0.05,
        ),
        ends.is_above(
            f"Runs end with content at omega = {float(data.shown[0]):g} and with position at "
            f"{float(data.shown[-1]):g}",
            scale=0.1,
            scale_words=".1 of the overlap",
        ),
        *(
            mean_over_runs(item - line).agrees(
                f"omega = {which:g}: the mean overlaps of the runs are those of the ODE, within "
                f"{PER_DIMENSION:g}/d",
                0.0,
                tolerance=PER_DIMENSION / d,
                scale=0.2,
            )
            for item, line, which in zip(runs, lines, data.shown.values, strict=True)
        ),
    )
