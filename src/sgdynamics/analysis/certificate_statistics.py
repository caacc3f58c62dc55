"""Statistical tests of a certificate: exact against direct runs, and runs against the theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from scipy import stats

from sgdynamics.analysis.certificate import Check
from sgdynamics.analysis.certificate_runs import REPLICATES, Entries, Theory
from sgdynamics.problems.overlap_starts import Start

# Significant decimals of compared values: equal values may differ by rounding beyond them.
DIGITS = 10
# Spreads below this, relative to the value, are rounding errors.
ROUNDING = 1e-12
# Largest relative error of the theory's risk that a certificate accepts.
SMALL_ERROR = 1e-2
# Largest fraction of diverged runs that a certificate accepts.
FEW_DIVERGED = 0.01
BOOTSTRAPS = 200
# Upper of the two quantiles whose half distance is the spread, 84% (the lower one is 16%):
# quantiles are robust to heavy tails, unlike the variance.
UPPER_QUANTILE = float(stats.norm.cdf(1.0))


def compare_laws(exact: Entries, direct: Entries, level: float) -> tuple[list[Check], int]:
    """Test exact = direct in law; return the checks and the number of compared entries.

    Two checks at this level each: the smallest two-sample Kolmogorov-Smirnov p-value over all
    entries, with Bonferroni's correction, and the largest difference of means in units of its
    standard error.
    """
    first, second = (
        np.concatenate([values.reshape(len(values), -1) for values in entries.values()], axis=1)
        for entries in (exact, direct)
    )
    # A diverged run counts as larger than all others, so that the fraction of diverged runs is
    # part of the law that is tested.
    first, second = (np.where(np.isfinite(values), values, np.inf) for values in (first, second))
    scale = np.maximum(1.0, np.abs(np.where(np.isfinite(first), first, 0.0)).max(axis=0))
    # Atoms of the law (a ReLU that is never active, a row on the sphere) agree only up to rounding.
    first, second = (np.round(values / scale, DIGITS) for values in (first, second))
    lowest = np.minimum(first.min(axis=0), second.min(axis=0))
    highest = np.maximum(first.max(axis=0), second.max(axis=0))
    first, second = (values[:, lowest < highest] for values in (first, second))
    count = first.shape[1]
    p_values = [
        float(cast(Any, stats.ks_2samp(first[:, i], second[:, i])).pvalue) for i in range(count)
    ]
    smallest = min([1.0, *(count * p_value for p_value in p_values)])
    law = Check(
        "exact = direct: law",
        smallest,
        f"corrected KS p-value of {level:.2g} or more",
        smallest >= level,
    )
    is_finite = np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0)
    z = _mean_difference(first[:, is_finite], second[:, is_finite])
    limit = largest_score(level, int(is_finite.sum()))
    means = Check("exact = direct: means", z, f"largest |z| of {limit:.2f} or less", z <= limit)
    return [law, means], count


def _mean_difference(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of the means of two samples, in units of its standard error."""
    variance = first.var(axis=0, ddof=1) / len(first) + second.var(axis=0, ddof=1) / len(second)
    difference = np.abs(first.mean(axis=0) - second.mean(axis=0))
    return float(np.max(difference / np.maximum(np.sqrt(variance), 10.0**-DIGITS), initial=0.0))


def largest_score(level: float, count: int) -> float:
    """The bound that the largest |z| of `count` standard normal variables exceeds with probability
    at most `level` (Bonferroni)."""
    return float(stats.norm.isf(level / (2 * max(count, 1))))


def compare_with_theory(
    dimensions: Sequence[int],
    runs: Sequence[Entries],
    theory: Theory,
    initial_state: Start,
    level: float,
    seed: int,
) -> tuple[list[Check], dict[str, Any]]:
    """Test whether runs at growing d approach the theory at the predicted rates.

    ::

        spread of X = c d^s (1 + b/d),  s = -1/2,        mean of X - x = g_0 + g_1/d,  g_0 = 0

    for each entry X of the runs with theoretical value x. Returns the checks and the statistics
    that a `Certificate` stores, by the names of its attributes.
    """
    names = list(theory.values[0])
    # Rows of `values` are runs; columns are all entries at all save points.
    values = [_arrange_columns(entries, theory, names) for entries in runs]
    targets = [
        np.concatenate([entries[name].reshape(-1) for name in names]) for entries in theory.values
    ]
    if len(targets) == 1:
        targets = targets * len(values)
    is_finite = [np.isfinite(samples).all(axis=1) for samples in values]
    diverged = float(1 - is_finite[-1].mean())
    values = [samples[keep] for samples, keep in zip(values, is_finite, strict=True)]
    has_finite_theory = all(np.isfinite(target).all() for target in targets)
    if min(len(samples) for samples in values) < 2 or not has_finite_theory:
        expected = "finite runs and a finite theory"
        return [Check("runs against the theory", math.nan, expected, False)], {}

    means = np.stack([samples.mean(axis=0) for samples in values])
    gap = means - np.stack(targets)
    error = np.stack([samples.std(axis=0, ddof=1) / math.sqrt(len(samples)) for samples in values])
    scale = np.maximum(1.0, np.abs(targets[-1]))
    # Entries without fluctuations (of a row on the sphere, for example) are not tested.
    fluctuates = np.all(error > ROUNDING * scale, axis=0)
    values = [samples[:, fluctuates] for samples in values]

    spread, spread_error = _pooled_spread(values, scale[fluctuates], seed)
    slope, slope_error = fit_exponent(np.array(dimensions), np.log(spread), spread_error / spread)
    slope_check = _check_slope(slope, slope_error, level)

    limit = largest_score(level, int(fluctuates.sum()))
    largest_change = np.max(np.abs(means - _initial_columns(initial_state, theory, names)))
    theory_error = _theory_error(theory, names, gap.shape[1], limit)
    theory_error = np.hypot(theory_error, theory.relative * largest_change)
    z = intercept_scores(
        np.array(dimensions), gap[:, fluctuates], error[:, fluctuates], theory_error[fluctuates]
    )
    largest = float(np.max(np.abs(z), initial=0.0))
    expected = f"largest |z| of {limit:.2f} or less"
    mean_check = Check("mean gap, d -> infinity", largest, expected, largest <= limit)

    rms_gap, rms_error = (
        np.sqrt(np.mean(columns[:, fluctuates] ** 2, axis=1)) for columns in (gap, error)
    )
    statistics = {
        "spread": spread,
        "spread_slope": slope,
        "spread_slope_error": slope_error,
        "gap": rms_gap,
        "gap_noise": rms_error,
        "error_quadrature": theory.quadrature,
        "error_integrator": theory.integrator,
        "error_sampling": float(np.max(error[-1][fluctuates], initial=0.0)),
    }
    accuracy_checks = _check_accuracy(theory, diverged, dimensions[-1])
    return [slope_check, mean_check, *accuracy_checks], statistics


def _check_slope(slope: float, error: float, level: float) -> Check:
    """Check that the exponent of the spread is -1/2 within its error."""
    limit = largest_score(level, 1)
    expected = f"-0.5 within {limit:.2f} x {error:.2g}"
    return Check("spread ~ d^s: s", slope, expected, abs(slope + 0.5) <= limit * error, error)


def _check_accuracy(theory: Theory, diverged: float, dimension: int) -> list[Check]:
    """Check the numerical errors of the theory and, if any run diverged, the fraction of those."""
    accuracy_checks = []
    for name, error in (
        ("error of the quadrature", theory.quadrature),
        ("error of the integrator", theory.integrator),
    ):
        if math.isfinite(error):
            expected = f"{SMALL_ERROR:g} of the risk or less"
            accuracy_checks.append(Check(name, error, expected, error <= SMALL_ERROR))
    if diverged:
        expected = f"{FEW_DIVERGED:g} of the runs at d = {dimension} or fewer"
        accuracy_checks.append(Check("diverged", diverged, expected, diverged <= FEW_DIVERGED))
    return accuracy_checks


def _theory_error(theory: Theory, names: Sequence[str], count: int, limit: float) -> np.ndarray:
    """Standard errors of the theory, scaled for a comparison with the normal quantile `limit`.

    They are estimated from a few replicates, so a t-distribution applies instead of the normal
    one. The ratio of the two quantiles at the same level widens them accordingly.
    """
    if theory.errors is None:
        return np.zeros(count)
    widening = float(stats.t.isf(stats.norm.sf(limit), REPLICATES - 1)) / limit
    return widening * np.concatenate([theory.errors[name].reshape(-1) for name in names])


def _arrange_columns(entries: Entries, theory: Theory, names: Sequence[str]) -> np.ndarray:
    """Runs as rows, with columns in the order of the theory's entries.

    Covariance blocks are summed if the theory has only their sums.
    """
    columns = []
    for name in names:
        values, count = entries[name], theory.values[0][name].shape[-1]
        if values.shape[-1] != count:
            values = values.reshape(*values.shape[:2], -1, count).sum(axis=2)
        columns.append(values.reshape(len(values), -1))
    return np.concatenate(columns, axis=1)


def _initial_columns(initial_state: Start, theory: Theory, names: Sequence[str]) -> np.ndarray:
    """The initial condition in the same order of columns, repeated at each save point.

    It is 0 for the training risk, which the initial overlaps do not determine.
    """
    rows, columns = np.triu_indices(initial_state.Q_blocks.shape[-1])
    initial_entries = {
        "M": initial_state.M_blocks[0],
        "Q": initial_state.Q_blocks[0][..., rows, columns],
        "a": initial_state.a[0],
    }
    repeated = []
    for name in names:
        times, count = theory.values[0][name].shape
        if name in initial_entries:
            entry = initial_entries[name].reshape(-1, count).sum(axis=0)
        else:
            entry = np.zeros(count)
        repeated.append(np.tile(entry, times))
    return np.concatenate(repeated)


def _spread(values: np.ndarray) -> np.ndarray:
    """Half the distance between the 16% and 84% quantiles over runs.

    It is the standard deviation if the values have a normal distribution.
    """
    low, high = np.quantile(values, [1 - UPPER_QUANTILE, UPPER_QUANTILE], axis=0)
    return (high - low) / 2


def _pooled_spread(
    values: Sequence[np.ndarray], scale: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The spread at each dimension, a geometric mean over entries and times, with its error.

    The error is estimated by the bootstrap over whole runs, because the entries and times of one
    run are correlated. Entries whose spread is a rounding error at any dimension are left out.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(7,)))
    spreads = np.stack([_spread(samples) for samples in values])
    is_wide = np.all(spreads > ROUNDING * scale, axis=0)
    if not np.any(is_wide):
        return np.full(len(values), np.nan), np.full(len(values), np.nan)
    pooled, errors = [], []
    for samples in values:
        wide = samples[:, is_wide]
        resampled = [
            np.mean(_log(_spread(wide[generator.integers(0, len(wide), len(wide))])))
            for _ in range(BOOTSTRAPS)
        ]
        pooled.append(float(np.exp(np.mean(_log(_spread(wide))))))
        errors.append(pooled[-1] * float(np.std(resampled, ddof=1)))
    return np.array(pooled), np.array(errors)


def _log(values: np.ndarray) -> np.ndarray:
    """The logarithm, finite at 0: a bootstrap sample may have a spread of 0."""
    return np.log(np.maximum(values, np.finfo(float).tiny))


def fit_exponent(
    dimensions: np.ndarray, logarithms: np.ndarray, errors: np.ndarray
) -> tuple[float, float]:
    """The exponent s of log(spread) = c + s log d + b/d with its standard error.

    Weighted least squares with the standard errors of the logarithms.
    """
    if not np.all(np.isfinite(logarithms)):
        return math.nan, math.nan
    design = np.stack([np.ones(len(dimensions)), np.log(dimensions), 1.0 / dimensions], axis=1)
    inverse = np.linalg.pinv(design / errors[:, None])
    return float(inverse[1] @ (logarithms / errors)), float(np.linalg.norm(inverse[1]))


def intercept_scores(
    dimensions: np.ndarray, gap: np.ndarray, error: np.ndarray, theory_error: np.ndarray
) -> np.ndarray:
    """g_0 of the fit gap = g_0 + g_1/d of each entry, in units of its standard error.

    With weights w = 1/error^2, x = 1/d and S_f = sum_d w f, weighted least squares gives::

        g_0 = (S_xx S_gap - S_x S_(x gap)) / (S_1 S_xx - S_x^2),
        variance of g_0 = S_xx / (S_1 S_xx - S_x^2).

    `theory_error` is common to all dimensions, so that it adds to this variance.
    """
    x = 1.0 / dimensions[:, None]
    weight = error**-2.0
    total, first, second = weight.sum(axis=0), (weight * x).sum(axis=0), (weight * x**2).sum(axis=0)
    determinant = total * second - first**2
    moments = second * (weight * gap).sum(axis=0) - first * (weight * x * gap).sum(axis=0)
    return moments / determinant / np.sqrt(second / determinant + theory_error**2)
