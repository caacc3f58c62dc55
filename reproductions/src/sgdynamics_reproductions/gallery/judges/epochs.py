"""Judges of the figures about epochs.

The data are compared with two-time equations, with DMFT, and with results of other programs.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    agreement,
    count_wrong,
    format_list,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

PER_DIMENSION = 6.0  # runs at dimension d agree with the limit up to this multiple of 1/d
IN_WORTH = 6.0  # worths of samples agree with the limit up to this multiple of 1/d
ERRORS = 3.0  # tolerance of comparisons with DMFT, in standard errors of DMFT
PRINTED = 0.006  # rounding error of worths that are given to two digits


def _on_theory(
    claim: str, runs: np.ndarray, line: np.ndarray, error: np.ndarray | float, d: int, scale: float
) -> Finding:
    """Test that the mean of runs is a curve of DMFT, in units of the curve."""
    tolerance = ERRORS * np.asarray(error) / line + PER_DIMENSION / d
    return mean_over_runs(runs / line).agrees(
        claim, 1.0, tolerance=tolerance, scale=scale, scale_words=f"{scale:.0%} of the curve"
    )


def _largest_deviation(runs: np.ndarray, line: np.ndarray) -> float:
    return float(np.abs(runs.mean(axis=0) / line - 1).max())


@judge_of(
    "figure_1",
    "the worth of a sample that is used again",
    "A sample that is used again is worth .56, .42, .36, .30 fresh ones in epochs 2, 3, 4, 6 "
    "without noise, and less than nothing from the third epoch on with noise .25",
)
def worth_of_repeats(data: xr.Dataset) -> Judgement:
    """Compare the two-time equations with another program, and runs and DMFT with the equations.

    The signs of the worths are tested on the runs.
    """
    from sgdynamics_reproductions.epochs.worth_figure import (
        REFERENCE_EPOCHS,
        REFERENCE_WORTHS,
        worths,
        worths_of_runs,
    )

    d, lines, runs = data.attrs["d"], worths(data), worths_of_runs(data)
    indices = np.array(REFERENCE_EPOCHS) - 1
    named = [
        f"lr = {lr:g}, noise {noise:g}"
        for lr, noise in zip(data.lr.values, data.noise.values, strict=True)
    ]
    means = [mean_over_runs(run) for run in runs]
    solved = [int(case) for case in data.solved.values]
    early = data.sizes["early"]
    quiet, loud = (
        int(np.argmax((data.noise.values == noise) & (data.lr.values == 0.8)))
        for noise in (0.0, 0.25)
    )
    falls = mean_over_runs(-np.diff(runs[quiet][:, :early]))
    fourth = mean_over_runs(-runs[loud][:, 3:4])
    text = "; ".join(
        f"{words}: {format_list(mean.value[indices].round(3))}"
        for words, mean in zip(named, means, strict=True)
    )
    gap = max(
        float(np.abs(value.value - line).max()) for value, line in zip(means, lines, strict=True)
    )
    return judge_claims(
        f"worth of epochs {format_list(np.array(REFERENCE_EPOCHS))} in runs at d = {d}: {text}; "
        f"runs deviate from the two-time equations by at most {gap:.3f}, DMFT by at most "
        f"{np.abs(data.dmft.values - lines[solved][:, :early]).max():.3f}",
        agreement(
            "The two-time equations give the worths of another program, within its rounding",
            [lines[case][indices] for case in REFERENCE_WORTHS],
            0.0,
            list(REFERENCE_WORTHS.values()),
            tolerance=PRINTED,
            scale=0.05,
        ),
        *(
            entry.agrees(
                f"{words}: the worths in runs are those of the two-time equations, within "
                f"{IN_WORTH / d:.1g}",
                line,
                tolerance=IN_WORTH / d,
                scale=0.2,
                scale_words=".2 fresh samples",
            )
            for words, entry, line in zip(named, means, lines, strict=True)
        ),
        *(
            agreement(
                f"{named[case]}: the worths by DMFT are those of the two-time equations",
                item.values,
                error.values,
                lines[case][:early],
                scale=0.8,
                scale_words=".8 fresh samples",
                runs=data.attrs["replicates"],
            )
            for case, item, error in zip(solved, data.dmft, data.dmft_error, strict=True)
        ),
        falls.is_above(
            "Without noise each of the first four epochs is worth less than the one before",
            scale=0.02,
        ),
        fourth.is_above("With noise .25 a fourth epoch does harm", scale=0.02),
    )


@judge_of(
    "figure_2",
    "twenty epochs with three orders of the samples",
    "Runs with each order agree with DMFT; with noise the risk on fresh data rises again while the "
    "risk on the data set falls, and one fixed order ends worse than reshuffling",
)
def three_orders(data: xr.Dataset) -> Judgement:
    """Compare risks of runs with DMFT, and times and orders within the same runs."""
    d, left = data.attrs["d"], data.attrs["noise"] / 2
    names, points = [str(order) for order in data.order.values], data.point.values
    at = np.searchsorted(data.after.values, points)
    fresh, train = data.risk_runs.values, data.train_risk_runs.values
    lines = {"fresh data": (fresh - left, data.risk.values - left, data.risk_error.values)}
    lines["the data set"] = (train, data.train_risk.values, data.train_risk_error.values)
    first, third, eighth, last = (list(points).index(entry) for entry in (1, 3, 8, points[-1]))
    same, other, drawn = (names.index(item) for item in ("reshuffle", "fixed", "replacement"))
    turns = mean_over_runs((fresh[:, :, last] - fresh[:, :, third]).T)
    falls = mean_over_runs((train[:, :, eighth] - train[:, :, last]).T)
    worse = mean_over_runs(fresh[other, :, last:] - fresh[same, :, last:])
    behind = mean_over_runs(fresh[drawn, :, first : first + 1] - fresh[same, :, first : first + 1])
    equal = np.abs(fresh[other, :, first] - fresh[same, :, first]) < 1e-9
    ends = [
        f"{name} {value:.4f}"
        for name, value in zip(names, fresh[:, :, last].mean(axis=1) - left, strict=True)
    ]
    deviations = [
        f"{name}, {sample}: {_largest_deviation(runs[row], line[row, at]):.1%}"
        for sample, (runs, line, _) in lines.items()
        for row, name in enumerate(names)
    ]
    return judge_claims(
        f"excess risk on fresh data after {points[last]} epochs: {', '.join(ends)}; it rises after "
        f"epoch 3 by {format_list(turns.value.round(4))}, and one fixed order is worse than "
        f"reshuffling by {worse.value[0]:.4f}({worse.error[0]:.1g}); runs at d = {d} deviate from "
        f"DMFT by at most {'; '.join(deviations)}",
        *(
            _on_theory(
                f"{name}: the risk of the runs on {sample}, minus the contribution of the noise, "
                f"is that of DMFT"
                if sample == "fresh data"
                else f"{name}: the risk of the runs on {sample} is that of DMFT",
                runs[row],
                line[row, at],
                error[row, at],
                d,
                0.25,
            )
            for sample, (runs, line, error) in lines.items()
            for row, name in enumerate(names)
        ),
        count_wrong(
            "The first epoch is the same with and without reshuffling later",
            int(np.sum(~equal)),
            equal.size,
        ),
        turns.is_above(
            "With each order the risk on fresh data rises after the third epoch", scale=0.01
        ),
        falls.is_above("With each order the risk on the data set falls", scale=0.002),
        worse.is_above("With noise one fixed order ends worse than reshuffling", scale=5e-4),
        behind.is_above(
            "The first epoch is worth less if samples are drawn with replacement", scale=0.01
        ),
    )


@judge_of(
    "figure_3",
    "features that are learned and then unlearned",
    "The signal is learned by t = 5; then the risk on fresh data rises from .089 to .237 and the "
    "fraction of |W| along the signal falls from .75 to .43, while the risk on the data set goes "
    "to 0",
)
def unlearning(data: xr.Dataset) -> Judgement:
    """Compare runs with DMFT at its times and with another program, and late with early times."""
    from sgdynamics_reproductions.epochs.unlearning_figure import REFERENCE

    d, points = data.attrs["d"], data.point.values
    is_saved = np.isin(points, data.t.values)
    at = np.searchsorted(data.t.values, points[is_saved])
    reference = [time for time in REFERENCE if time in points]
    indices = [list(points).index(entry) for entry in reference]
    excess, train, share = (
        data[f"{name}_runs"].values for name in ("excess_risk", "train_risk", "share")
    )
    early = list(points).index(5.0)
    rises = mean_over_runs(excess[:, -1:] - excess[:, early : early + 1])
    turned = mean_over_runs(share[:, early : early + 1] - share[:, -1:])
    left = mean_over_runs(0.1 - train[:, -1:] / train[:, early].mean())
    # The tolerance is three standard errors of the six runs of the other program.
    findings = [
        mean_over_runs(item[:, indices]).agrees(
            f"{words} at t = {format_list(np.array(reference))}: that of another program, within "
            "three standard errors of its six runs",
            [REFERENCE[time][which] for time in reference],
            tolerance=0.03,
            scale=0.1,
        )
        for which, (words, item) in enumerate(
            (("Excess risk", excess), ("Fraction along the signal", share))
        )
    ]
    lines = {
        "Excess risk": (excess, "excess_risk"),
        "Risk on the data set": (train, "train_risk"),
        "Fraction along the signal": (share, "share"),
    }
    errors = {"share": np.zeros(data.sizes["t"])} | {
        name: data[f"{name}_error"].values for name in ("excess_risk", "train_risk")
    }
    deviations = [
        f"{words.lower()} {_largest_deviation(line[:, is_saved], data[name].values[at]):.1%}"
        for words, (line, name) in lines.items()
    ]
    return judge_claims(
        f"t = {format_list(points[[early, -1]])}: excess risk "
        f"{format_list(excess.mean(axis=0)[[early, -1]].round(4))}, risk on the data set "
        f"{format_list(train.mean(axis=0)[[early, -1]].round(4))}, fraction along the signal "
        f"{format_list(share.mean(axis=0)[[early, -1]].round(4))}; runs at d = {d} deviate from "
        f"DMFT up to t = {data.t.values[-1]:g} by at most {', '.join(deviations)}",
        *(
            _on_theory(
                f"{words}: the runs agree with DMFT",
                runs[:, is_saved],
                data[name].values[at],
                errors[name][at],
                d,
                0.3,
            )
            for words, (runs, name) in lines.items()
        ),
        *findings,
        rises.is_above("The risk on fresh data rises after t = 5", scale=0.05),
        turned.is_above("The fraction of |W| along the signal falls", scale=0.1),
        larger(
            "The risk on the data set falls to less than a tenth",
            left.value,
            left.error,
            scale=0.02,
            scale_words="2% of the risk at t = 5",
            runs=left.runs,
        ),
    )
