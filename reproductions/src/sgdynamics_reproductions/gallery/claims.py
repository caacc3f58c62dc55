"""Claims that data can contradict: a number with a tolerance, a statistic and its power.

A judge states each claim of the document as one or more findings and combines them by
``judge_claims``. A finding

- "differs" if its statistic exceeds its threshold; a false alarm has probability RATE per finding,
- is "reproduced" if it does not, and an error of the claim's own scale would have been detected
  with probability POWER,
- is not decided otherwise, and reports how many times as many runs would decide it.

The module ``statistics`` defines the statistics and their thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from sgdynamics.base.arrays import RealArray
from sgdynamics.sweeps.power_law_fit import weighted_line
from sgdynamics_reproductions.gallery.statistics import (
    deviation_statistic,
    quantile,
    smallest_detectable,
)

RATE = 1e-4  # probability of a false "differs" per finding
POWER = 0.99  # probability with which an error of the claim's scale must be detected
WORDS = {True: "reproduced", False: "differs", None: "not decided at this size"}


@dataclass(frozen=True)
class Finding:
    """A claim with its statistic, its verdict, and the size of the error that is detectable."""

    claim: str
    statistic: str
    value: float
    threshold: float
    detectable: float  # smallest detectable error in units of the claim's scale
    scale: str  # description of that scale
    holds: bool | None
    above: bool = False  # whether the value must be above the threshold, not below

    @property
    def word(self) -> str:
        return WORDS[self.holds]

    @property
    def power(self) -> str:
        """Description of the detectable error, and of the runs that would decide the claim."""
        if not math.isfinite(self.detectable):
            return f"no error would have been detected ({self.scale} should be)"
        advice = f"; {_times(self.detectable)} the runs would decide" if self.holds is None else ""
        size, kind = f"{self.detectable:.2g} x {self.scale}", "effect" if self.above else "error"
        return f"an {kind} of {size} would have been detected{advice}"

    def plain(self) -> dict[str, Any]:
        """The finding as a dictionary, for files and pages."""
        return {
            "claim": self.claim,
            "statistic": self.statistic,
            "value": float(self.value),
            "threshold": float(self.threshold),
            "side": "above" if self.above else "at most",
            "power": self.power,
            "verdict": self.word,
        }


def _times(detectable: float) -> str:
    return (
        f"about {max(math.ceil(detectable**2), 2)} times"
        if detectable < 100
        else "more than 10000 times"
    )


class Judgement(NamedTuple):
    """Verdict of a judge, a description of the measured numbers, and the findings behind it."""

    holds: bool | None
    words: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        return f"{WORDS[self.holds]}: {self.words}"


def judge_claims(words: str, *findings: Finding) -> Judgement:
    """Combine findings: reproduced if all claims are, "differs" if any claim does."""
    if not findings:
        raise ValueError("findings = (): a verdict needs at least one claim.")
    states = [finding.holds for finding in findings]
    return Judgement(
        False if False in states else None if None in states else True, words, findings
    )


def agreement(
    claim: str,
    measured: ArrayLike,
    error: ArrayLike,
    expected: ArrayLike,
    *,
    scale: ArrayLike,
    scale_words: str = "",
    tolerance: Any = 0.0,
    runs: int | None = None,
    correlation: ArrayLike | None = None,
    rate: float = RATE,
) -> Finding:
    """Test that measured and expected numbers agree up to a tolerance at all points.

    ``error`` has standard errors, estimated from ``runs`` runs; numbers without noise have 0 and
    are judged by the tolerance alone. ``tolerance`` is the uncertainty of the claim itself, in the
    units of ``measured``. ``scale`` is the size of an error at all points that must be detectable
    for the claim to count as tested. ``correlation`` is the correlation matrix of the points,
    "independent", or None for the worst case.
    """
    arrays = np.broadcast_arrays(
        *(
            np.asarray(array, dtype=np.float64)
            for array in (measured, error, expected, tolerance, scale)
        )
    )
    m, s, e, tol, wanted = (array.reshape(-1) for array in arrays)
    if not np.all(np.isfinite([m, s, e, tol, wanted])) or np.any(s < 0) or np.any(wanted <= 0):
        return Finding(
            claim,
            "points that are not finite",
            math.nan,
            0.0,
            math.inf,
            scale_words or "the claim",
            False,
        )
    off = np.abs(m - e)
    words = scale_words or _describe_scale(wanted)
    if not np.any(s):
        return _without_noise(claim, off, tol, wanted, words)
    if not np.all(s):
        raise ValueError(
            "error has zeros among the standard errors. Judge numbers without noise separately."
        )
    free = math.inf if runs is None else max(runs - 1, 1)
    statistic = deviation_statistic(len(m), free, correlation, rate)
    excess = np.maximum(off - tol, 0.0) / s
    value = statistic.value(excess)
    detectable = smallest_detectable(
        lambda f: statistic.power(np.maximum(f * wanted - tol, 0.0) / s), POWER
    )
    holds = False if value > 1 else True if detectable <= 1 else None
    return Finding(
        claim,
        statistic.describe(off / s, excess),
        value,
        1.0,
        detectable,
        words,
        holds,
    )


def _describe_scale(wanted: np.ndarray) -> str:
    low, high = f"{wanted.min():.2g}", f"{wanted.max():.2g}"
    return low if low == high else f"({low} to {high})"


def _without_noise(
    claim: str, off: np.ndarray, tol: np.ndarray, wanted: np.ndarray, words: str
) -> Finding:
    over = np.where(off > 0, off / np.maximum(tol, 1e-300), 0.0)
    worst = int(np.argmax(over))
    detectable = float(np.min(tol / wanted))
    holds = False if np.any(off > tol) else True if detectable <= 1 else None
    which = f" of {len(off)} numbers" if len(off) > 1 else ""
    return Finding(
        claim,
        f"largest deviation{which}, divided by its tolerance {tol[worst]:.2g}",
        float(over[worst]),
        1.0,
        detectable,
        words,
        holds,
    )


def larger(
    claim: str,
    difference: ArrayLike,
    error: ArrayLike,
    *,
    scale: float,
    scale_words: str = "",
    runs: int | None = None,
    rate: float = RATE,
) -> Finding:
    """Test that a difference is above 0 by more than its error.

    The claim is contradicted where the difference is significantly below ``scale``, the smallest
    effect that supports the claim. Several differences must all be above 0, at the rate of one
    claim.
    """
    values, errors = (
        array.reshape(-1)
        for array in np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (difference, error))
        )
    )
    words = scale_words or f"{scale:.2g}"
    if not np.all(np.isfinite([values, errors])):
        return Finding(claim, "points that are not finite", math.nan, 0.0, math.inf, words, False)
    limit = quantile(rate / len(values), math.inf if runs is None else max(runs - 1, 1))
    shown, refuted = values > limit * errors, values + limit * errors < scale
    holds = False if np.any(refuted) else True if np.all(shown) else None
    worst = int(np.argmin(values - limit * errors))
    detectable = float(np.max(errors) * (limit + special.ndtri(POWER)) / scale)
    which = "the difference"
    if len(values) > 1:
        which = f"the least certain of {len(values)} differences"
    statistic = (
        f"{which}, {values[worst]:.3g}({errors[worst]:.1g}), compared with "
        f"{limit:.2f} standard errors"
    )
    return Finding(
        claim,
        statistic,
        float(values[worst]),
        float(limit * errors[worst]),
        detectable,
        words,
        holds,
        above=True,
    )


def share(
    claim: str,
    count: SupportsFloat,
    runs: int,
    expected: float,
    *,
    scale: float,
    rate: float = RATE,
) -> Finding:
    """Test the probability of an event by the exact binomial test over independent runs.

    Deviations of ``scale`` must be detectable on both sides.
    """
    count, law = round(float(count)), stats.binom(runs, expected)
    low, high = (float(law.ppf(rate / 2)), float(law.isf(rate / 2)))

    def power(f: float) -> float:
        # a share of the runs is at least 0 and at most 1
        sides = [
            p
            for p in (max(expected - f * scale, 0.0), min(expected + f * scale, 1.0))
            if p != expected
        ]
        return min(
            float(stats.binom.cdf(low - 1, runs, p) + stats.binom.sf(high, runs, p)) for p in sides
        )

    outside = count < low or count > high
    detectable = smallest_detectable(power, POWER)
    holds = False if outside else True if detectable <= 1 else None
    spread = math.sqrt(max(expected * (1 - expected), 1e-12) / runs)
    middle = expected * runs
    statistic = (
        f"{count} of {runs} runs, {low:.0f} to {high:.0f} expected; distance from {middle:.1f}, "
        "divided by that of the nearer bound"
    )
    bound = (high - middle if count >= middle else middle - low) or spread * runs
    return Finding(
        claim,
        statistic,
        abs(count - middle) / bound,
        1.0,
        detectable,
        f"{scale:.2g} of the runs",
        holds,
    )


def count_wrong(claim: str, wrong: int, total: int) -> Finding:
    """Test numbers without error by counting those that disagree."""
    statistic = f"numbers that disagree, of {total}"
    return Finding(
        claim,
        statistic,
        float(wrong),
        0.0,
        1.0 if total else math.inf,
        "one number",
        wrong == 0 if total else None,
    )


class Mean(NamedTuple):
    """A mean over runs, its standard error, the correlation of its points, and the number of runs.

    The last two are those of ``agreement``.
    """

    value: Any
    error: Any
    correlation: Any = None
    runs: Any = None

    def over(self, scale: ArrayLike) -> Mean:
        """The mean in units of positive numbers without error."""
        return self._replace(value=self.value / scale, error=self.error / scale)

    def agrees(self, claim: str, expected: ArrayLike, **setting: Any) -> Finding:
        """Test the agreement with expected numbers (``agreement``)."""
        return agreement(
            claim,
            self.value,
            self.error,
            expected,
            runs=self.runs,
            correlation=self.correlation,
            **setting,
        )

    def is_above(self, claim: str, **setting: Any) -> Finding:
        """Test that the mean is above 0 (``larger``)."""
        return larger(claim, self.value, self.error, runs=self.runs, **setting)


def mean_over_runs(values: RealArray) -> Mean:
    """Mean over finite values (run, points...); the correlation has flattened points."""
    values = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(values)) or len(values) < 3:
        raise ValueError(f"values has {len(values)} runs: at least three finite runs are needed.")
    flat = values.reshape(len(values), -1)
    spread = flat.std(axis=0, ddof=1)
    scaled = (flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    R = scaled.T @ scaled / (len(values) - 1)
    np.fill_diagonal(R, 1.0)
    return Mean(
        values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values)), R, len(values)
    )


def difference(first: Mean, second: Mean) -> Mean:
    """Difference of two means over independent runs, point by point."""
    error = np.hypot(first.error, second.error)
    covariances = [
        mean.correlation * np.outer(mean.error.reshape(-1), mean.error.reshape(-1))
        for mean in (first, second)
    ]
    flat = np.where(error > 0, error, 1.0).reshape(-1)
    R = (covariances[0] + covariances[1]) / np.outer(flat, flat)
    np.fill_diagonal(R, 1.0)
    return Mean(first.value - second.value, error, R, min(first.runs, second.runs))


def fitted_power(x: RealArray, y: RealArray, error: ArrayLike) -> tuple[float, float, float]:
    """Exponent of y ~ x^exponent from independent points, its standard error, and a p-value.

    The p-value is that of the power law itself.
    """
    x, y, error = (np.asarray(array, dtype=np.float64) for array in (x, y, error))
    line, covariance, chi2 = weighted_line(np.log(x), np.log(y), (y / error) ** 2)
    free = len(x) - 2
    return (
        float(line[1]),
        math.sqrt(covariance[1, 1]),
        float(stats.chi2.sf(chi2, free)) if free > 0 else math.nan,
    )


def format_range(values: RealArray, digits: int = 3) -> str:
    """Format the range of values for a verdict."""
    values = np.asarray(values)[np.isfinite(values)]
    low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
    return low if low == high else f"{low} to {high}"


def format_list(values: RealArray) -> str:
    """Format a list of values for a verdict."""
    return ", ".join(f"{value:g}" for value in np.asarray(values))


def direction(
    claim: str,
    difference: ArrayLike,
    error: ArrayLike,
    *,
    scale: float,
    scale_words: str = "",
    runs: int | None = None,
    rate: float = RATE,
) -> Finding:
    """Test the sign of a difference at a size for which the document gives no number.

    As ``larger``, but an effect below ``scale`` may be due to the smaller size and is not decided.
    The claim is contradicted where a difference is significantly below 0.
    """
    finding = larger(
        claim, difference, error, scale=scale, scale_words=scale_words, runs=runs, rate=rate
    )
    if finding.holds is not False:
        return finding
    values, errors = (
        array.reshape(-1)
        for array in np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (difference, error))
        )
    )
    if not np.all(np.isfinite([values, errors])):
        return finding
    limit = quantile(rate / len(values), math.inf if runs is None else max(runs - 1, 1))
    return replace(finding, holds=False if np.any(values + limit * errors < 0) else None)


def occurs(
    claim: str, count: SupportsFloat, runs: int, *, scale: float, rate: float = RATE
) -> Finding:
    """Test that an event occurs in some of the runs; one occurrence is enough.

    The claim is contradicted if the event never occurs although a share ``scale`` would have been
    detected: an event of probability f is missed by n runs with probability (1 - f)^n.
    """
    count = round(float(count))
    detectable = (1 - (1 - POWER) ** (1 / max(runs, 1))) / scale
    holds = True if count else False if (1 - scale) ** runs <= rate else None
    return Finding(
        claim,
        f"runs in which it occurs, of {runs}; one is enough",
        float(count),
        1.0,
        detectable,
        f"{scale:.2g} of the runs",
        holds,
    )


def joined_runs(*errors_and_runs: tuple[Any, int]) -> int:
    """Effective number of runs of a standard error sqrt(sum s_i^2) with s_i from n_i runs.

    The number is that of Welch and Satterthwaite at the median point.
    """
    squares = [np.asarray(error, dtype=np.float64) ** 2 for error, _ in errors_and_runs]
    total, doubt = (
        sum(squares),
        sum(
            square**2 / max(runs - 1, 1)
            for square, (_, runs) in zip(squares, errors_and_runs, strict=True)
        ),
    )
    positive = np.asarray(total) > 0
    if not np.any(positive):
        return max(runs for _, runs in errors_and_runs)
    free = np.asarray(total)[positive] ** 2 / np.asarray(doubt)[positive]
    return int(np.floor(np.median(free))) + 1
