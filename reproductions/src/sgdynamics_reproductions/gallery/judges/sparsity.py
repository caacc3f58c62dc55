"""Judges of the figures about diagonal networks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    count_wrong,
    judge_claims,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

# Runs at dimension d agree with the limit up to this multiple of 1/d, relative to the curve: a
# coordinate that turns on by chance weighs 1/d, and few of them carry the risk.
PER_DIMENSION = 8.0
CONVERGED = 1e-6  # training risk at which gradient descent has reached its interpolator
SPARSE = 0.25  # excess risk of the smallest start over that of the least L2 norm, at most
NEAR_L2 = 0.02  # the same for the largest start, relative to that of the least L2 norm
LATE = 0.02  # relative distance of the law at the last time from its late limit


def _on_limit(claim: str, runs: np.ndarray, line: np.ndarray, d: int) -> Finding:
    """Test that the mean of runs (run, points) is the limit, in relative units."""
    tolerance = PER_DIMENSION / d
    return mean_over_runs(runs / line - 1).agrees(
        f"{claim}, within {tolerance:.1%}",
        0.0,
        tolerance=tolerance,
        scale=0.25,
        scale_words="25% of the limit",
    )


def _largest_deviation(runs: np.ndarray, line: np.ndarray) -> float:
    return float(np.abs(runs.mean(axis=0) / line - 1).max())


@judge_of(
    "figure_1",
    "the start interpolates between the least L2 and L1 norm",
    "Gradient descent on a diagonal network ends near the predictor of least L2 norm from a large "
    "start and of least L1 norm from a small one",
)
def start_chooses_the_norm(data: xr.Dataset) -> Judgement:
    """Compare trained networks with the least potential, and its two limits."""
    d, runs = data.attrs["d"], data.excess_risk_runs.values
    least_l2 = 0.5 * (1 - data.attrs["samples"]) * data.attrs["share"]
    curve = data.excess_risk.values
    unfinished = int(np.sum(data.train_risk_runs.values > CONVERGED))
    is_wrong = [curve[0] > SPARSE * least_l2, abs(curve[-1] / least_l2 - 1) > NEAR_L2]
    rises = int(np.sum(np.diff(curve) < -1e-9))
    return judge_claims(
        f"from u = {data.start.values[0]:g} to {data.start.values[-1]:g} the excess risk rises "
        f"from {curve[0]:.2g} to {curve[-1]:.3g} (least L2 norm {least_l2:.3g}); runs at d = {d} "
        f"deviate by at most {_largest_deviation(runs, data.excess_risk_expected.values):.1%}",
        _on_limit(
            "the risk of gradient descent is that of the least potential",
            runs,
            data.excess_risk_expected.values,
            d,
        ),
        _on_limit("so is its L1 norm", data.l1_norm_runs.values, data.l1_norm_expected.values, d),
        count_wrong("all runs interpolate", unfinished, data.train_risk_runs.size),
        count_wrong("the ends are the least L1 and L2 norm", int(sum(is_wrong)), 2),
        count_wrong("the risk rises with the start", rises, len(curve) - 1),
    )


@judge_of(
    "figure_2",
    "label noise finds sparsity",
    "With label noise one-pass SGD on a diagonal network forgets its start: weights whose teacher "
    "is 0 vanish, and the late risk is below that of linear regression for sparse teachers",
)
def noise_finds_sparsity(data: xr.Dataset) -> Judgement:
    """Compare runs with the law of one variable, and its late times with the closed law."""
    d = data.attrs["d"]
    findings = [
        _on_limit(
            f"lr = {lr:g}: the mean {name} of runs is that of the law",
            data[f"{key}_runs"].values[index],
            data[f"{key}_expected"].values[index],
            d,
        )
        for index, lr in enumerate(data.rate.values)
        for key, name in (("excess_risk", "risk"), ("imbalance", "imbalance"))
    ]
    gaps = np.abs(data.excess_risk.values[:, -1] / data.late.values - 1)
    squares = data.square.values[:, -1] / data.square.values.max(axis=1)
    above = int(np.sum(data.late.values > 0.6 * data.linear.values))
    rates = data.rate.size
    deviation = max(
        _largest_deviation(
            data.excess_risk_runs.values[index], data.excess_risk_expected.values[index]
        )
        for index in range(rates)
    )
    return judge_claims(
        f"the risk of the law at samples/d = {data.alpha.values[-1]:g} differs from the late law "
        f"by {gaps.max():.1%}, runs at d = {d} from the law by at most {deviation:.1%}",
        *findings,
        count_wrong("the late law is reached", int(np.sum(gaps > LATE)), rates),
        count_wrong("weights whose teacher is 0 vanish", int(np.sum(squares > 0.05)), rates),
        count_wrong("the late risk is below that of regression", above, rates),
    )
