"""Judges of the figures about statics: limits against learners on data sets of finite dimension."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    agreement,
    format_list,
    judge_claims,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

# Runs at dimension d agree with the limit up to these multiples of 1/d: relative to the limit for
# errors, and absolute for overlaps, which depend on d more strongly near thresholds.
PER_DIMENSION, NEAR_THRESHOLD = 12.0, 20.0
# Samples per dimension for an error of 0.1 with sign labels, by another program.
NEEDED = (4.105, 6.311, 4.649, 7.755)
ROUNDING = 6e-4  # relative rounding error of these numbers
SPINODAL, SPECIALISATION = 1.12847141, 2.0524  # by other programs
LINEAR = {"abs(z)": 0.5, "z^2 with noise 1": 0.6466}  # thresholds, by hand and by Riemann sums


def _on_limits(data: xr.Dataset, scale: float, per_dimension: float | None = None) -> list[Finding]:
    """Test that the mean of the runs of each case is the limit.

    With `per_dimension` deviations are absolute, otherwise relative to the limit.
    """
    findings = []
    for case, runs, limit in zip(
        data.case.values, data.runs.values, data.limit.values, strict=True
    ):
        unit = limit if per_dimension is None else np.ones_like(limit)
        tolerance = (per_dimension or PER_DIMENSION) / data.attrs["d"]
        findings.append(
            mean_over_runs((runs - limit) / unit).agrees(
                f"{case}: the mean of the runs is the limit, within {tolerance:.2g}",
                0.0,
                tolerance=tolerance,
                scale=scale,
                scale_words=f"{scale:g} of the limit" if per_dimension is None else f"{scale:g}",
            )
        )
    return findings


def _deviations(data: xr.Dataset) -> str:
    means = data.runs.values.mean(axis=1)
    texts = [
        f"{case}: {format_list(mean.round(4))} (limit {format_list(limit.round(4))})"
        for case, mean, limit in zip(data.case.values, means, data.limit.values, strict=True)
    ]
    return f"{data.attrs['quantity']} in runs at d = {data.attrs['d']}: {'; '.join(texts)}"


@judge_of(
    "figure_1",
    "the sign perceptron: the best possible error, and what learners reach",
    "Message passing reaches the Bayes-optimal error; maximal margin overtakes ridge regression, "
    "and one-pass SGD needs about twice the samples",
)
def sign_perceptron(data: xr.Dataset) -> Judgement:
    """Compare runs with limits, and the samples for an error of 0.1 with another program."""
    return judge_claims(
        f"{_deviations(data)}; samples/d for an error of 0.1: "
        f"{format_list(data.needed.values.round(3))}",
        *_on_limits(data, 0.2),
        agreement(
            "The samples for an error of 0.1 are those of another program",
            data.needed.values / np.array(NEEDED),
            0.0,
            1.0,
            tolerance=ROUNDING,
            scale=0.01,
        ),
    )


@judge_of(
    "figure_2",
    "phase retrieval and its hard phase",
    "The optimal overlap jumps to 1 at one sample per dimension, message passing at 1.128",
)
def phase_retrieval(data: xr.Dataset) -> Judgement:
    """Compare runs of message passing with the limit, and the thresholds with references."""
    beyond = data.bayes.values[data.x.values > 1.001]
    return judge_claims(
        f"{_deviations(data)}; message passing finds the signal from "
        f"{data.attrs['spinodal']:.6f} samples/d on",
        *_on_limits(data, 0.3, NEAR_THRESHOLD),
        agreement(
            "Message passing ends its hard phase where another program says",
            data.attrs["spinodal"],
            0.0,
            SPINODAL,
            tolerance=1e-6,
            scale=1e-3,
        ),
        agreement(
            "Weak recovery starts at half a sample per dimension",
            data.attrs["threshold"],
            0.0,
            0.5,
            tolerance=1e-5,
            scale=1e-2,
        ),
        agreement(
            "The optimal overlap is 1 beyond one sample per dimension",
            beyond,
            0.0,
            1.0,
            tolerance=1e-6,
            scale=1e-2,
        ),
    )


@judge_of(
    "figure_3",
    "specialisation of a committee of two signs",
    "Below 2.05 samples per dimension only the sum of the units is learned; beyond, their "
    "difference as well",
)
def committee(data: xr.Dataset) -> Judgement:
    """Compare runs of message passing with the limit, and the threshold with references."""
    return judge_claims(
        f"{_deviations(data)}; specialisation at {data.attrs['threshold']:.4f} samples/d",
        *_on_limits(data, 0.3, NEAR_THRESHOLD),
        agreement(
            "The units specialise where two other programs say",
            data.attrs["threshold"],
            0.0,
            SPECIALISATION,
            tolerance=1e-4,
            scale=1e-2,
        ),
    )


@judge_of(
    "figure_4",
    "the best weight decay of logistic regression",
    "Logistic regression with the best weight decay is within 0.0001 of the Bayes-optimal error",
)
def best_weight_decay(data: xr.Dataset) -> Judgement:
    """Compare runs with limits, and the best error with the floor."""
    excess = data.attrs["best"] - data.attrs["bayes"]
    return judge_claims(
        f"{_deviations(data)}; the best weight decay {data.attrs['best_decay']:.4f} has the error "
        f"{data.attrs['best']:.6f}, {excess:.1e} above the Bayes-optimal one",
        *_on_limits(data, 0.1),
        agreement(
            "The best error is that of the Bayes-optimal learner, within 0.0001",
            data.attrs["best"],
            0.0,
            data.attrs["bayes"],
            tolerance=1e-4,
            scale=1e-3,
        ),
    )


@judge_of(
    "figure_5",
    "ridge regression on a power law",
    "The closed form of ridge regression is the mean of runs, also in a few hundred dimensions and "
    "with little weight decay",
)
def power_law_ridge(data: xr.Dataset) -> Judgement:
    """Compare runs with the closed form."""
    return judge_claims(_deviations(data), *_on_limits(data, 0.25))


@judge_of(
    "figure_6",
    "Huber's loss and the squared loss with outliers",
    "With Student t noise of three degrees of freedom Huber's loss is closer to the target than "
    "the squared loss at all sample sizes",
)
def outliers(data: xr.Dataset) -> Judgement:
    """Compare runs with limits, and the losses within the same runs."""
    gap = mean_over_runs(data.runs.values[1] - data.runs.values[0])
    return judge_claims(
        _deviations(data),
        *_on_limits(data, 0.25),
        gap.is_above("Runs with Huber's loss end closer to the target", scale=0.002),
    )


@judge_of(
    "figure_7",
    "weak recovery of several links",
    "The best spectral estimate knows the signal beyond the threshold of weak recovery, with the "
    "squared cosine of its closed form",
)
def weak_recovery(data: xr.Dataset) -> Judgement:
    """Compare eigenvectors with the closed form, and thresholds with references."""
    indices = [list(data.case.values).index(case) for case in LINEAR]
    return judge_claims(
        f"{_deviations(data)}; thresholds {format_list(data.threshold.values.round(4))}",
        *_on_limits(data, 0.3, NEAR_THRESHOLD),
        agreement(
            "The thresholds are those of other programs",
            data.threshold.values[indices] / np.array(list(LINEAR.values())),
            0.0,
            1.0,
            tolerance=2e-4,
            scale=0.01,
        ),
    )
