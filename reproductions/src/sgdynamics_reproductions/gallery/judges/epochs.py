"""Whether the data of the figures of epochs show what two-time equations, DMFT and other programs
say of them.
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

PER_DIMENSION = 6.0  # runs at d are on the limit to this over d, relative
IN_WORTH = 6.0  # and worths of samples to this over d
ERRORS = 3.0  # standard errors of DMFT that are left open where runs are held against it
PRINTED = 0.006  # of worths given to two digits


def _on_theory(
    claim: str, runs: np.ndarray, line: np.ndarray, error: np.ndarray | float, d: int, scale: float
) -> Finding:
    """The mean of runs against a line of DMFT, in units of it."""
    tolerance = ERRORS * np.asarray(error) / line + PER_DIMENSION / d
    return mean_over_runs(runs / line).agrees(
        claim, 1.0, tolerance=tolerance, scale=scale, scale_words=f"{scale:.0%} of it"
    )


def _off(runs: np.ndarray, line: np.ndarray) -> float:
    return float(np.abs(runs.mean(axis=0) / line - 1).max())


@judge_of(
    "figure_1",
    "what a sample is worth when it is seen again",
    "a sample seen again is worth .56, .42, .36, .30 fresh ones in epochs 2, 3, 4, 6 without noise, and less than nothing from the third "
    "on with noise .25",
)
def worth_of_repeats(data: xr.Dataset) -> Judgement:
    """Equations in two times against another program's numbers; runs and DMFT against the
    equations; signs in the runs.
    """
    from sgdynamics_reproductions.epochs.worth_figure import (
        KNOWN,
        KNOWN_EPOCHS,
        worths,
        worths_of_runs,
    )

    d, lines, runs = data.attrs["d"], worths(data), worths_of_runs(data)
    indices = np.array(KNOWN_EPOCHS) - 1
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
        f"worth of epochs {format_list(np.array(KNOWN_EPOCHS))} in runs at d = {d}: {text}; runs are off the two-time equations by at most "
        f"{gap:.3f}, DMFT by at most {np.abs(data.dmft.values - lines[solved][:, :early]).max():.3f}",
        agreement(
            "the two-time equations give the worths of another program, to its digits",
            [lines[case][indices] for case in KNOWN],
            0.0,
            list(KNOWN.values()),
            tolerance=PRINTED,
            scale=0.05,
        ),
        *(
            entry.agrees(
                f"{words}: the worths of runs are those of the two-time equations, to {IN_WORTH / d:.1g}",
                line,
                tolerance=IN_WORTH / d,
                scale=0.2,
                scale_words=".2 fresh samples",
            )
            for words, entry, line in zip(named, means, lines, strict=True)
        ),
        *(
            agreement(
                f"{named[case]}: so are those of DMFT",
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
            "without noise each of the first four epochs is worth less than the one before",
            scale=0.02,
        ),
        fourth.is_above("with noise .25 a fourth epoch does harm", scale=0.02),
    )


@judge_of(
    "figure_2",
    "twenty epochs in three orders",
    "runs in each order are on DMFT; with noise the risk on fresh data turns while that on the data set falls, and one fixed order ends "
    "worse than reshuffling",
)
def three_orders(data: xr.Dataset) -> Judgement:
    """Risks of runs against DMFT; differences between times and orders in the same runs."""
    d, left = data.attrs["d"], data.attrs["noise"] / 2
    names, points = [str(one) for one in data.order.values], data.point.values
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
    off = [
        f"{name}, {what}: {_off(part[row], line[row, at]):.1%}"
        for what, (part, line, _) in lines.items()
        for row, name in enumerate(names)
    ]
    return judge_claims(
        f"excess risk on fresh data after {points[last]} epochs: {', '.join(ends)}; it rises from epoch 3 on by "
        f"{format_list(turns.value.round(4))}, and one fixed order is worse than reshuffling by {worse.value[0]:.4f}({worse.error[0]:.1g}); "
        f"runs at d = {d} are off DMFT by at most {'; '.join(off)}",
        *(
            _on_theory(
                f"{name}: the risk of runs on {what}, less the noise's share, is DMFT's"
                if what == "fresh data"
                else f"{name}: so is that on {what}",
                part[row],
                line[row, at],
                error[row, at],
                d,
                0.25,
            )
            for what, (part, line, error) in lines.items()
            for row, name in enumerate(names)
        ),
        count_wrong(
            "the first epoch is the same, reshuffled later or not", int(np.sum(~equal)), equal.size
        ),
        turns.is_above(
            "in every order the risk on fresh data rises after the third epoch", scale=0.01
        ),
        falls.is_above("and that on the data set falls", scale=0.002),
        worse.is_above("with noise one fixed order ends worse than reshuffling", scale=5e-4),
        behind.is_above("drawn with replacement the first epoch is worth less", scale=0.01),
    )


@judge_of(
    "figure_3",
    "features that are learned, and unlearned",
    "the signal is learned by t = 5; then the risk on fresh data rises from .089 to .237 and the share of |W| along the signal falls from "
    ".75 to .43, while that on the data set goes to 0",
)
def unlearned(data: xr.Dataset) -> Judgement:
    """Runs against DMFT as far as that goes, and against another program; later against earlier
    times in the same runs.
    """
    from sgdynamics_reproductions.epochs.unlearning_figure import KNOWN

    d, points = data.attrs["d"], data.point.values
    is_saved = np.isin(points, data.t.values)
    at = np.searchsorted(data.t.values, points[is_saved])
    reference = [value for value in KNOWN if value in points]
    indices = [list(points).index(entry) for entry in reference]
    excess, train, share = (
        data[f"{name}_runs"].values for name in ("excess_risk", "train_risk", "share")
    )
    early = list(points).index(5.0)
    rises = mean_over_runs(excess[:, -1:] - excess[:, early : early + 1])
    turned = mean_over_runs(share[:, early : early + 1] - share[:, -1:])
    left = mean_over_runs(0.1 - train[:, -1:] / train[:, early].mean())
    # another program's six runs: three of their errors
    findings = [
        mean_over_runs(item[:, indices]).agrees(
            f"{words} at t = {format_list(np.array(reference))}: that of another program, to three errors of its six runs",
            [KNOWN[one][which] for one in reference],
            tolerance=0.03,
            scale=0.1,
        )
        for which, (words, item) in enumerate(
            (("excess risk", excess), ("share along the signal", share))
        )
    ]
    lines = {
        "excess risk": (excess, "excess_risk"),
        "risk on the data set": (train, "train_risk"),
        "share along the signal": (share, "share"),
    }
    errors = {"share": np.zeros(data.sizes["t"])} | {
        name: data[f"{name}_error"].values for name in ("excess_risk", "train_risk")
    }
    off = [
        f"{words} {_off(line[:, is_saved], data[name].values[at]):.1%}"
        for words, (line, name) in lines.items()
    ]
    return judge_claims(
        f"t = {format_list(points[[early, -1]])}: excess risk {format_list(excess.mean(axis=0)[[early, -1]].round(4))}, risk on the data set "
        f"{format_list(train.mean(axis=0)[[early, -1]].round(4))}, share along the signal {format_list(share.mean(axis=0)[[early, -1]].round(4))}; "
        f"runs at d = {d} are off DMFT up to t = {data.t.values[-1]:g} by at most {', '.join(off)}",
        *(
            _on_theory(
                f"{words}: that of runs is DMFT's",
                part[:, is_saved],
                data[name].values[at],
                errors[name][at],
                d,
                0.3,
            )
            for words, (part, name) in lines.items()
        ),
        *findings,
        rises.is_above("the risk on fresh data rises after t = 5", scale=0.05),
        turned.is_above("the share of |W| along the signal falls", scale=0.1),
        larger(
            "that on the data set falls to less than a tenth",
            left.value,
            left.error,
            scale=0.02,
            scale_words="2% of that at t = 5",
            runs=left.runs,
        ),
    )
