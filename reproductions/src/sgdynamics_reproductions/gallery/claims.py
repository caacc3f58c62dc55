"""Claims that data can contradict: a number with a tolerance, a statistic over all points, and the
size of wrong that would have been seen.

A judge of a figure states each claim of the document as one or more findings and collects them by
`judged`. A finding

- "differs" where its statistic is beyond its threshold: a false alarm has the probability RATE a finding,
- "reproduced" where it is not, although a wrong of the claim's own scale would have been seen with the probability POWER,
- is not decided otherwise, and says how many times the runs would decide it.

Points that share their runs are correlated. The sum of z^2 has the law of sum_i l_i chi2_1 (over
chi2_f/f where the errors come from f + 1 runs), l_i the eigenvalues of their correlation matrix R;
its tail is the saddlepoint's (Lugannani and Rice 1980; Kuonen 1999, Biometrika 86), good to a few
percent however far out, where matching two moments (Box 1954) is short by factors of ten. Where R
is not known the worst is taken, all points as one. One point far off is caught by the largest |z|
(Bonferroni). Half of the rate goes to each. Errors are taken as normal: means of a few runs with
heavy tails are not, and want more runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from sgdynamics.base.arrays import RealArray
from sgdynamics.sweeps.power_law_fit import weighted_line

RATE = 1e-4  # of a false "differs", a finding
POWER = 0.99  # with which a wrong of the claim's scale must be seen
WORDS = {True: "reproduced", False: "differs", None: "not decided at this size"}


@dataclass(frozen=True)
class Finding:
    """One claim with its number: how it was judged, and what size of wrong would have been seen."""

    claim: str
    statistic: str
    value: float
    threshold: float
    seen: float  # the least wrong that would have been seen, in units of the claim's own scale
    scale: str  # that scale, in words
    holds: bool | None
    above: bool = False  # whether the value must be above the threshold, not below

    @property
    def word(self) -> str:
        return WORDS[self.holds]

    @property
    def power(self) -> str:
        """What would have been seen; where that is not enough, how many times the runs would be."""
        if not math.isfinite(self.seen):
            return f"no wrong would have been seen ({self.scale} must be)"
        more = f", {_times(self.seen)} the runs would decide" if self.holds is None else ""
        if self.above:
            return f"an effect of {self.seen:.2g} x {self.scale} would have been shown{more}"
        return f"a wrong of {self.seen:.2g} x {self.scale} would have been seen{more}"

    def plain(self) -> dict[str, Any]:
        """As it is kept in a file and shown on the gallery's page."""
        return {
            "claim": self.claim,
            "statistic": self.statistic,
            "value": float(self.value),
            "threshold": float(self.threshold),
            "side": "above" if self.above else "at most",
            "power": self.power,
            "verdict": self.word,
        }


def _times(seen: float) -> str:
    return f"about {max(math.ceil(seen**2), 2)} times" if seen < 100 else "more than 10000 times"


class Judgement(NamedTuple):
    """What a judge says of a figure: the verdict, the measured numbers in words, and the findings
    that it rests on.
    """

    holds: bool | None
    words: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        return f"{WORDS[self.holds]}: {self.words}"


def judged(words: str, *findings: Finding) -> Judgement:
    """Reproduced where every claim is, "differs" where one does."""
    if not findings:
        raise ValueError("findings = (): a verdict rests on one claim at least")
    states = [one.holds for one in findings]
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
    """Measured numbers are the expected ones: |E[measured] - expected| <= tolerance at every point.

    `error`: standard errors (0 for numbers without noise, judged by the tolerance alone); from
    `runs` runs where they were estimated. `tolerance`: what the claim itself leaves open, in the
    units of `measured`. `scale`: the size of a wrong, at all points together, that must be seen for
    the claim to count as tested. `correlation`: the points' matrix, "independent", or None for the
    worst case.
    """
    parts = np.broadcast_arrays(
        *(
            np.asarray(part, dtype=np.float64)
            for part in (measured, error, expected, tolerance, scale)
        )
    )
    m, s, e, tol, wanted = (part.reshape(-1) for part in parts)
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
    words = scale_words or _sized(wanted)
    if not np.any(s):
        return _without_noise(claim, off, tol, wanted, words)
    if not np.all(s):
        raise ValueError(
            "error has zeros among the standard errors: judge numbers without noise apart"
        )
    free = math.inf if runs is None else max(runs - 1, 1)
    statistic = _statistic(len(m), free, correlation, rate)
    value = statistic.value(np.maximum(off - tol, 0.0) / s)
    seen = _least(lambda f: statistic.power(np.maximum(f * wanted - tol, 0.0) / s))
    holds = False if value > 1 else True if seen <= 1 else None
    return Finding(
        claim,
        statistic.words(off / s, np.maximum(off - tol, 0.0) / s),
        value,
        1.0,
        seen,
        words,
        holds,
    )


def _sized(wanted: np.ndarray) -> str:
    low, high = f"{wanted.min():.2g}", f"{wanted.max():.2g}"
    return low if low == high else f"({low} to {high})"


def _without_noise(
    claim: str, off: np.ndarray, tol: np.ndarray, wanted: np.ndarray, words: str
) -> Finding:
    over = np.where(off > 0, off / np.maximum(tol, 1e-300), 0.0)
    worst = int(np.argmax(over))
    seen = float(np.min(tol / wanted))
    holds = False if np.any(off > tol) else True if seen <= 1 else None
    which = f" of {len(off)} numbers" if len(off) > 1 else ""
    return Finding(
        claim,
        f"largest deviation{which} over its tolerance {tol[worst]:.2g}",
        float(over[worst]),
        1.0,
        seen,
        words,
        holds,
    )


class _Statistic(NamedTuple):
    """The larger of rms z and max |z|, each over its threshold: above 1 with the probability `rate`
    at most where all agree.
    """

    spectrum: np.ndarray  # of the correlation matrix
    axes: np.ndarray | None  # its eigenvectors; None where any will do
    points: int
    free: float
    rms: float  # thresholds
    largest: float

    def value(self, z: np.ndarray) -> float:
        return float(max(math.sqrt(np.mean(z**2)) / self.rms, np.max(z) / self.largest))

    def power(self, z: np.ndarray) -> float:
        """Probability of a value above 1 where E[z] is this, at least: the better of the two."""
        if not np.any(z):
            return 0.0
        shifts = (
            (z @ self.axes) ** 2
            if self.axes is not None
            else z**2
            if len(self.spectrum) == len(z)
            else np.array([np.sum(z**2)])
        )
        together = _tail(self.points * self.rms**2, self.spectrum, shifts, self.free)
        # a noncentral t at its threshold, by the normal that is good to a percent (Abramowitz and
        # Stegun 26.7.10)
        near, wide = (
            (1.0, 0.0)
            if math.isinf(self.free)
            else (1 - 1 / (4 * self.free), self.largest**2 / (2 * self.free))
        )
        return max(
            together, float(stats.norm.cdf((np.max(z) - near * self.largest) / math.sqrt(1 + wide)))
        )

    def words(self, off: np.ndarray, beyond: np.ndarray) -> str:
        """From |z|, and from what is left of it beyond the tolerance, which is what is judged."""
        if self.points == 1:
            left = f", {beyond[0]:.2f} beyond the tolerance" if np.any(beyond != off) else ""
            return f"{off[0]:.2f} standard errors off{left} (at most {self.largest:.2f}), over its threshold"
        left = (
            f", {_rms(beyond):.2f} and {np.max(beyond):.2f} beyond the tolerance"
            if np.any(beyond != off)
            else ""
        )
        return (
            f"{self.points} points off by rms {_rms(off):.2f}, at most {np.max(off):.2f} standard errors{left} (at most {self.rms:.2f} and "
            f"{self.largest:.2f}); the larger over its threshold"
        )


def _rms(z: np.ndarray) -> float:
    return math.sqrt(float(np.mean(z**2)))


def _statistic(points: int, free: float, correlation: ArrayLike | None, rate: float) -> _Statistic:
    axes = None
    if isinstance(correlation, str):
        if correlation != "independent":
            raise ValueError(f"correlation = {correlation!r}: give a matrix, 'independent' or None")
        spectrum = np.ones(points)
    elif correlation is None:
        spectrum = np.array([float(points)])
    else:
        R = np.asarray(correlation, dtype=np.float64)
        if R.shape != (points, points):
            raise ValueError(
                f"correlation has shape {R.shape}: give ({points}, {points}), one row a point"
            )
        spectrum, axes = np.linalg.eigh(R)
        spectrum = np.maximum(
            spectrum, 0.0
        )  # a matrix estimated from few runs has many zeros, to rounding
    if points == 1:  # both are the same: the whole rate
        limit = _quantile(rate / 2, free)
        return _Statistic(np.ones(1), None, 1, free, limit, limit)
    return _Statistic(
        spectrum,
        axes,
        points,
        free,
        math.sqrt(_far(rate / 2, spectrum, free) / points),
        _quantile(rate / 4 / points, free),
    )


def _far(rate: float, spectrum: np.ndarray, free: float) -> float:
    """What sum_i l_i chi2_1/(chi2_free/free) exceeds with the probability `rate`."""
    none = np.zeros(len(spectrum))

    def excess(log_t: float) -> float:
        return math.log(max(_tail(math.exp(log_t), spectrum, none, free), 1e-300)) - math.log(rate)

    low = math.log(float(np.sum(spectrum))) + 0.01
    high = low + 1
    while excess(high) > 0:
        high += 2
    return math.exp(float(np.asarray(optimize.brentq(excess, low, high, xtol=1e-8))))


def _tail(t: float, spectrum: np.ndarray, shifts: np.ndarray, free: float) -> float:
    """P[sum_i (sqrt(l_i) g_i + sqrt(b_i))^2 > t chi2_free/free], g_i standard normals, by the
    saddlepoint.
    """
    f = free if math.isfinite(free) else 1e12

    def K(s: float, order: int) -> float:
        u, v = 1 - 2 * s * spectrum, 1 + 2 * s * t / f
        if order == 0:
            return float(
                np.sum(-0.5 * np.log(u) + shifts * s / u) - 0.5 * f * math.log1p(2 * s * t / f)
            )
        if order == 1:
            return float(np.sum(spectrum / u + shifts / u**2) - t / v)
        return float(
            np.sum(2 * spectrum**2 / u**2 + 4 * shifts * spectrum / u**3) + 2 * t**2 / f / v**2
        )

    edge, floor = 0.5 / float(spectrum.max()), -0.5 * f / t
    low, high = -edge, edge * (1 - 1e-12)
    while K(max(low, floor * (1 - 1e-12)), 1) > 0:
        if low < floor or low < -1e15 * edge:
            return 1.0  # it cannot be less
        low *= 4
    s = float(
        np.asarray(
            optimize.brentq(
                lambda s: K(s, 1), max(low, floor * (1 - 1e-12)), high, xtol=1e-14 * edge
            )
        )
    )
    w = math.copysign(math.sqrt(max(-2 * K(s, 0), 0.0)), s)
    if abs(w) < 1e-3:  # at the mean the formula is 0/0, and the answer near a half
        return 0.5
    v = s * math.sqrt(K(s, 2))
    return float(stats.norm.sf(w + math.log(v / w) / w))


def _quantile(rate: float, free: float) -> float:
    return float(stats.norm.isf(rate) if math.isinf(free) else stats.t.isf(rate, free))


def _least(power: Callable[[float], float]) -> float:
    """The least multiple of the scale that is seen with the probability POWER."""
    high = 1.0
    while power(high) < POWER:
        high *= 2
        if high > 1e6:
            return math.inf
    low = high
    while power(low) >= POWER:
        low /= 2
        if low < 1e-9:
            return low
    return float(
        np.asarray(optimize.brentq(lambda f: power(f) - POWER, low, high, xtol=1e-6 * high))
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
    """A difference is above 0: shown where it is so beyond its error, contradicted where it is
    surely less than `scale`.

    `scale` is the smallest effect that would bear the claim out: one that is above 0 and still
    surely smaller does not. Several differences must all be so, at the rate of one claim.
    """
    found, errors = (
        part.reshape(-1)
        for part in np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (difference, error))
        )
    )
    words = scale_words or f"{scale:.2g}"
    if not np.all(np.isfinite([found, errors])):
        return Finding(claim, "points that are not finite", math.nan, 0.0, math.inf, words, False)
    limit = _quantile(rate / len(found), math.inf if runs is None else max(runs - 1, 1))
    shown, refuted = found > limit * errors, found + limit * errors < scale
    holds = False if np.any(refuted) else True if np.all(shown) else None
    worst = int(np.argmin(found - limit * errors))
    seen = float(np.max(errors) * (limit + special.ndtri(POWER)) / scale)
    which = f"the least sure of {len(found)} differences" if len(found) > 1 else "the difference"
    said = f"{which}, {found[worst]:.3g}({errors[worst]:.1g}), against {limit:.2f} standard errors"
    return Finding(
        claim,
        said,
        float(found[worst]),
        float(limit * errors[worst]),
        seen,
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
    """A share of independent runs has the expected probability: the exact binomial test, which must
    see `scale` on both sides.
    """
    count, law = round(float(count)), stats.binom(runs, expected)
    low, high = (float(law.ppf(rate / 2)), float(law.isf(rate / 2)))

    def power(f: float) -> float:
        # none or all of the runs is as far as a share goes
        sides = [
            p
            for p in (max(expected - f * scale, 0.0), min(expected + f * scale, 1.0))
            if p != expected
        ]
        return min(
            float(stats.binom.cdf(low - 1, runs, p) + stats.binom.sf(high, runs, p)) for p in sides
        )

    outside = count < low or count > high
    seen = _least(power)
    holds = False if outside else True if seen <= 1 else None
    spread = math.sqrt(max(expected * (1 - expected), 1e-12) / runs)
    said = f"{count} of {runs}, {low:.0f} to {high:.0f} expected; distance from {expected * runs:.1f} over the nearer bound's"
    middle = expected * runs
    bound = (high - middle if count >= middle else middle - low) or spread * runs
    return Finding(
        claim, said, abs(count - middle) / bound, 1.0, seen, f"{scale:.2g} of the runs", holds
    )


def counted(claim: str, wrong: int, total: int) -> Finding:
    """Numbers without error that agree or do not: one wrong number is seen."""
    said = f"numbers that disagree, of {total}"
    return Finding(
        claim,
        said,
        float(wrong),
        0.0,
        1.0 if total else math.inf,
        "one number",
        wrong == 0 if total else None,
    )


class Mean(NamedTuple):
    """A mean over runs, its standard error, the correlation of its points, and the runs that it
    rests on (both as in `agreement`).
    """

    value: Any
    error: Any
    correlation: Any = None
    runs: Any = None

    def over(self, scale: ArrayLike) -> Mean:
        """In units of positive numbers without error."""
        return self._replace(value=self.value / scale, error=self.error / scale)

    def agrees(self, claim: str, expected: ArrayLike, **setting: Any) -> Finding:
        """`agreement` with the expected numbers."""
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
        """`larger`: above 0."""
        return larger(claim, self.value, self.error, runs=self.runs, **setting)


def mean_over_runs(values: RealArray) -> Mean:
    """Of values (run, points...), all finite; points are flattened in the correlation."""
    values = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(values)) or len(values) < 3:
        raise ValueError(f"values = {len(values)} runs: give three finite ones or more")
    flat = values.reshape(len(values), -1)
    spread = flat.std(axis=0, ddof=1)
    scaled = (flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    R = scaled.T @ scaled / (len(values) - 1)
    np.fill_diagonal(R, 1.0)
    return Mean(
        values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values)), R, len(values)
    )


def difference(first: Mean, second: Mean) -> Mean:
    """Of two means over runs of their own, point by point."""
    error = np.hypot(first.error, second.error)
    parts = [
        one.correlation * np.outer(one.error.reshape(-1), one.error.reshape(-1))
        for one in (first, second)
    ]
    flat = np.where(error > 0, error, 1.0).reshape(-1)
    R = (parts[0] + parts[1]) / np.outer(flat, flat)
    np.fill_diagonal(R, 1.0)
    return Mean(first.value - second.value, error, R, min(first.runs, second.runs))


def fitted_power(x: RealArray, y: RealArray, error: ArrayLike) -> tuple[float, float, float]:
    """Exponent of y ~ x^exponent from independent points, its standard error, and the p-value of
    the power law itself.
    """
    x, y, error = (np.asarray(part, dtype=np.float64) for part in (x, y, error))
    found, covariance, chi2 = weighted_line(np.log(x), np.log(y), (y / error) ** 2)
    free = len(x) - 2
    return (
        float(found[1]),
        math.sqrt(covariance[1, 1]),
        float(stats.chi2.sf(chi2, free)) if free > 0 else math.nan,
    )


def spanned(values: RealArray, digits: int = 3) -> str:
    """The range of values, for the words of a verdict."""
    values = np.asarray(values)[np.isfinite(values)]
    low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
    return low if low == high else f"{low} to {high}"


def listed(values: RealArray) -> str:
    """Values one after the other, for the words of a verdict."""
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
    """A difference is above 0 at a size for which the document gives no number: contradicted where
    one is surely below 0.

    As `larger`, but an effect that is less than `scale` here may be a matter of the size, and is
    not decided.
    """
    found = larger(
        claim, difference, error, scale=scale, scale_words=scale_words, runs=runs, rate=rate
    )
    if found.holds is not False:
        return found
    each, errors = (
        part.reshape(-1)
        for part in np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (difference, error))
        )
    )
    if not np.all(np.isfinite([each, errors])):
        return found
    limit = _quantile(rate / len(each), math.inf if runs is None else max(runs - 1, 1))
    return replace(found, holds=False if np.any(each + limit * errors < 0) else None)


def occurs(
    claim: str, count: SupportsFloat, runs: int, *, scale: float, rate: float = RATE
) -> Finding:
    """Something happens in some of the runs: once is enough; contradicted where it never does
    although a share `scale` would have shown.

    A share f is missed by all of n runs with the probability (1 - f)^n.
    """
    count = round(float(count))
    seen = (1 - (1 - POWER) ** (1 / max(runs, 1))) / scale
    holds = True if count else False if (1 - scale) ** runs <= rate else None
    return Finding(
        claim,
        f"runs in which it does, of {runs}, against 1",
        float(count),
        1.0,
        seen,
        f"{scale:.2g} of the runs",
        holds,
    )


def joined_runs(*parts: tuple[Any, int]) -> int:
    """What a standard error sqrt(sum s_i^2) with parts from n_i runs is worth in runs (Welch,
    Satterthwaite): at the median point.
    """
    squares = [np.asarray(error, dtype=np.float64) ** 2 for error, _ in parts]
    total, doubt = (
        sum(squares),
        sum(square**2 / max(runs - 1, 1) for square, (_, runs) in zip(squares, parts, strict=True)),
    )
    known = np.asarray(total) > 0
    if not np.any(known):
        return max(runs for _, runs in parts)
    free = np.asarray(total)[known] ** 2 / np.asarray(doubt)[known]
    return int(np.floor(np.median(free))) + 1
