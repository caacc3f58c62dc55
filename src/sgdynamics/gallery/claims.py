"""Claims that data can contradict: a number with a tolerance, a statistic over all points, and the size of wrong that would have been seen.

A judge of a figure states each claim of the document as one or more findings and collects them by `judged`. A finding

- "differs" where its statistic is beyond its threshold: a false alarm has the probability RATE a finding,
- "reproduced" where it is not, although a wrong of the claim's own scale would have been seen with the probability POWER,
- is not decided otherwise, and says how many times the runs would decide it.

Points that share their runs are correlated. Their mean square of z has, to two moments, the law of g chi2_h with g = tr R^2/tr R,
h = (tr R)^2/tr R^2 (Box 1954, Ann. Math. Stat. 25, theorem 3.1), R their correlation matrix; where R is not known the worst is taken, all
points as one (h = 1). One point far off is caught by the largest |z| (Bonferroni). Half of the rate goes to each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

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

    @property
    def word(self) -> str:
        return WORDS[self.holds]

    @property
    def power(self) -> str:
        """What would have been seen; where that is not enough, how many times the runs would be."""
        if not math.isfinite(self.seen):
            return f"no wrong would have been seen ({self.scale} must be)"
        more = f", {_times(self.seen)} the runs would decide" if self.holds is None else ""
        return f"a wrong of {self.seen:.2g} x {self.scale} would have been seen{more}"

    def plain(self) -> dict[str, Any]:
        """As it is kept in a file and shown on the gallery's page."""
        return {
            "claim": self.claim,
            "statistic": self.statistic,
            "value": self.value,
            "threshold": self.threshold,
            "power": self.power,
            "verdict": self.word,
        }


def _times(seen: float) -> str:
    return f"about {max(math.ceil(seen**2), 2)} times" if seen < 100 else "more than 10000 times"


class Judgement(NamedTuple):
    """What a judge says of a figure: the verdict, the measured numbers in words, and the findings that it rests on."""

    holds: bool | None
    words: str
    findings: tuple[Finding, ...]


def judged(words: str, *findings: Finding) -> Judgement:
    """Reproduced where every claim is, "differs" where one does."""
    if not findings:
        raise ValueError("findings = (): a verdict rests on one claim at least")
    states = [one.holds for one in findings]
    return Judgement(False if False in states else None if None in states else True, words, findings)


def agreement(
    claim: str,
    measured: Any,
    error: Any,
    expected: Any,
    *,
    scale: Any,
    scale_words: str = "",
    tolerance: Any = 0.0,
    runs: int | None = None,
    correlation: Any = None,
    rate: float = RATE,
) -> Finding:
    """Measured numbers are the expected ones: |E[measured] - expected| <= tolerance at every point.

    `error`: standard errors (0 for numbers without noise, judged by the tolerance alone); from `runs` runs where they were estimated.
    `tolerance`: what the claim itself leaves open, in the units of `measured`. `scale`: the size of a wrong, at all points together,
    that must be seen for the claim to count as tested. `correlation`: the points' matrix, "independent", or None for the worst case.
    """
    parts = np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in (measured, error, expected, tolerance, scale)))
    m, s, e, tol, wanted = (part.reshape(-1) for part in parts)
    if not np.all(np.isfinite([m, s, e, tol, wanted])) or np.any(s < 0) or np.any(wanted <= 0):
        return Finding(claim, "points that are not finite", math.nan, 0.0, math.inf, scale_words or "the claim", False)
    off = np.abs(m - e)
    words = scale_words or _sized(wanted)
    if not np.any(s):
        return _without_noise(claim, off, tol, wanted, words)
    if not np.all(s):
        raise ValueError("error has zeros among the standard errors: judge numbers without noise apart")
    free = math.inf if runs is None else max(runs - 1, 1)
    statistic = _statistic(len(m), free, correlation, rate)
    value = statistic.value(np.maximum(off - tol, 0.0) / s)
    seen = _least(lambda f: statistic.power(np.maximum(f * wanted - tol, 0.0) / s))
    holds = False if value > 1 else True if seen <= 1 else None
    return Finding(claim, statistic.words(m, e, s), value, 1.0, seen, words, holds)


def _sized(wanted: np.ndarray) -> str:
    low, high = f"{wanted.min():.2g}", f"{wanted.max():.2g}"
    return low if low == high else f"({low} to {high})"


def _without_noise(claim: str, off: np.ndarray, tol: np.ndarray, wanted: np.ndarray, words: str) -> Finding:
    worst = int(np.argmax(off / np.maximum(tol, 1e-300)))
    seen = float(np.min(tol / wanted))
    holds = False if np.any(off > tol) else True if seen <= 1 else None
    which = f" of {len(off)} numbers" if len(off) > 1 else ""
    return Finding(claim, f"largest deviation{which} over its tolerance {tol[worst]:.2g}", off[worst] / tol[worst], 1.0, seen, words, holds)


class _Statistic(NamedTuple):
    """The larger of rms z and max |z|, each over its threshold: above 1 with the probability `rate` at most where all agree."""

    points: int
    g: float
    h: float
    free: float
    rms: float  # thresholds
    largest: float

    def value(self, z: np.ndarray) -> float:
        return float(max(math.sqrt(np.mean(z**2)) / self.rms, np.max(z) / self.largest))

    def power(self, z: np.ndarray) -> float:
        """Probability of a value above 1 where E[z] is this."""
        total = self.points * self.rms**2 / self.g
        together = float(stats.ncx2.sf(total, self.h, np.sum(z**2) / self.g)) if np.any(z) else 0.0
        return max(together, float(stats.norm.sf(self.largest - np.max(z))))

    def words(self, m: np.ndarray, e: np.ndarray, s: np.ndarray) -> str:
        z = np.abs(m - e) / s
        if self.points == 1:
            return f"{z[0]:.2f} standard errors (at most {self.largest:.2f}, the tolerance aside), over its threshold"
        return (
            f"{self.points} points, rms {math.sqrt(np.mean(z**2)):.2f} standard errors (at most {self.rms:.2f}) and "
            f"largest {np.max(z):.2f} (at most {self.largest:.2f}), the tolerance aside; the larger over its threshold"
        )


def _statistic(points: int, free: float, correlation: Any, rate: float) -> _Statistic:
    if isinstance(correlation, str):
        if correlation != "independent":
            raise ValueError(f"correlation = {correlation!r}: give a matrix, 'independent' or None")
        g, h = 1.0, float(points)
    elif correlation is None:
        g, h = float(points), 1.0
    else:
        R = np.asarray(correlation, dtype=np.float64)
        squares = float(np.sum(R**2))
        g, h = squares / np.trace(R), float(np.trace(R) ** 2 / squares)
    if points == 1:  # both are the same: the whole rate
        limit = _quantile(rate / 2, free)
        return _Statistic(1, 1.0, 1.0, free, limit, limit)
    quantile = stats.chi2.isf(rate / 2, h) / h if math.isinf(free) else stats.f.isf(rate / 2, h, free)
    return _Statistic(points, g, h, free, math.sqrt(g * h * quantile / points), _quantile(rate / 4 / points, free))


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
    return float(np.asarray(optimize.brentq(lambda f: power(f) - POWER, low, high, xtol=1e-6 * high)))


def larger(
    claim: str, difference: Any, error: Any, *, scale: float, scale_words: str = "", runs: int | None = None, rate: float = RATE
) -> Finding:
    """A difference is above 0: shown where it is so beyond its error, contradicted where it is surely less than `scale`.

    `scale` is the smallest effect that would bear the claim out. Several differences must all be so, at the rate of one claim.
    """
    found, errors = (part.reshape(-1) for part in np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (difference, error))))
    words = scale_words or f"{scale:.2g}"
    if not np.all(np.isfinite([found, errors])):
        return Finding(claim, "points that are not finite", math.nan, 0.0, math.inf, words, False)
    limit = _quantile(rate / len(found), math.inf if runs is None else max(runs - 1, 1))
    shown, refuted = found > limit * errors, found + limit * errors < scale
    holds = True if np.all(shown) else False if np.any(refuted & ~shown) else None
    worst = int(np.argmin(found - limit * errors))
    seen = float(np.max(errors) * (limit + special.ndtri(POWER)) / scale)
    which = f"the least sure of {len(found)} differences" if len(found) > 1 else "the difference"
    said = f"{which}, {found[worst]:.3g}({errors[worst]:.1g}), against {limit:.2f} standard errors"
    return Finding(claim, said, float(found[worst]), float(limit * errors[worst]), seen, words, holds)


def share(claim: str, count: Any, runs: int, expected: float, *, scale: float, rate: float = RATE) -> Finding:
    """A share of independent runs has the expected probability: the exact binomial test, which must see `scale` on both sides."""
    count, law = round(float(count)), stats.binom(runs, expected)
    low, high = (float(law.ppf(rate / 2)), float(law.isf(rate / 2)))

    def power(f: float) -> float:
        sides = [p for p in (expected - f * scale, expected + f * scale) if 0 <= p <= 1]
        return min((float(stats.binom.cdf(low - 1, runs, p) + stats.binom.sf(high, runs, p)) for p in sides), default=1.0)

    outside = count < low or count > high
    seen = _least(power)
    holds = False if outside else True if seen <= 1 else None
    spread = math.sqrt(max(expected * (1 - expected), 1e-12) / runs)
    said = f"{count} of {runs}, {low:.0f} to {high:.0f} expected; distance from {expected * runs:.1f} over the nearer bound's"
    middle = expected * runs
    bound = (high - middle if count >= middle else middle - low) or spread * runs
    return Finding(claim, said, abs(count - middle) / bound, 1.0, seen, f"{scale:.2g} of the runs", holds)


def counted(claim: str, wrong: int, total: int) -> Finding:
    """Numbers without error that agree or do not: one wrong number is seen."""
    said = f"numbers that disagree, of {total}"
    return Finding(claim, said, float(wrong), 0.0, 1.0 if total else math.inf, "one number", wrong == 0 if total else None)


class Mean(NamedTuple):
    """A mean over runs, its standard error, the correlation matrix of its points, and the runs that it rests on."""

    value: np.ndarray
    error: np.ndarray
    correlation: np.ndarray
    runs: int


def mean_over_runs(values: Any) -> Mean:
    """Of values (run, points...), all finite; points are flattened in the correlation."""
    values = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(values)) or len(values) < 3:
        raise ValueError(f"values = {len(values)} runs: give three finite ones or more")
    flat = values.reshape(len(values), -1)
    spread = flat.std(axis=0, ddof=1)
    scaled = (flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    R = scaled.T @ scaled / (len(values) - 1)
    np.fill_diagonal(R, 1.0)
    return Mean(values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values)), R, len(values))


def fitted_power(x: Any, y: Any, error: Any) -> tuple[float, float, float]:
    """Exponent of y ~ x^exponent from independent points, its standard error, and the p-value of the power law itself."""
    x, y, error = (np.asarray(part, dtype=np.float64) for part in (x, y, error))
    design = np.stack([np.ones(len(x)), np.log(x)], axis=1) * (y / error)[:, None]
    target = np.log(y) * (y / error)
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ target
    free = len(x) - 2
    chi2 = float(np.sum((target - design @ found) ** 2))
    return float(found[1]), float(math.sqrt(inverse[1, 1])), float(stats.chi2.sf(chi2, free)) if free > 0 else math.nan


def finite_mean(values: Any) -> tuple[float, float, int]:
    """Mean, standard error and number of what is finite."""
    good = np.asarray(values)[np.isfinite(values)]
    error = float(good.std(ddof=1) / math.sqrt(len(good))) if len(good) > 1 else math.nan
    return float(good.mean()) if len(good) else math.nan, error, len(good)


def spanned(values: Any, digits: int = 3) -> str:
    """The range of values, for the words of a verdict."""
    values = np.asarray(values)[np.isfinite(values)]
    low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
    return low if low == high else f"{low} to {high}"


def listed(values: Any) -> str:
    """Values one after the other, for the words of a verdict."""
    return ", ".join(f"{value:g}" for value in np.asarray(values))


def direction(
    claim: str, difference: Any, error: Any, *, scale: float, scale_words: str = "", runs: int | None = None, rate: float = RATE
) -> Finding:
    """A difference is above 0 at a size for which the document gives no number: contradicted where one is surely below 0.

    As `larger`, but an effect that is less than `scale` here may be a matter of the size, and is not decided.
    """
    found = larger(claim, difference, error, scale=scale, scale_words=scale_words, runs=runs, rate=rate)
    if found.holds is not False:
        return found
    each, errors = (part.reshape(-1) for part in np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (difference, error))))
    if not np.all(np.isfinite([each, errors])):
        return found
    limit = _quantile(rate / len(each), math.inf if runs is None else max(runs - 1, 1))
    return replace(found, holds=False if np.any(each + limit * errors < 0) else None)


def occurs(claim: str, count: Any, runs: int, *, scale: float, rate: float = RATE) -> Finding:
    """Something happens in some of the runs: once is enough; contradicted where it never does although a share `scale` would have shown.

    A share f is missed by all of n runs with the probability (1 - f)^n.
    """
    count = round(float(count))
    seen = (1 - (1 - POWER) ** (1 / max(runs, 1))) / scale
    holds = True if count else False if (1 - scale) ** runs <= rate else None
    return Finding(claim, f"runs in which it does, of {runs}, against 1", float(count), 1.0, seen, f"{scale:.2g} of the runs", holds)


def joined_runs(*parts: tuple[Any, int]) -> int:
    """What a standard error sqrt(sum s_i^2) with parts from n_i runs is worth in runs (Welch, Satterthwaite): at the median point."""
    squares = [np.asarray(error, dtype=np.float64) ** 2 for error, _ in parts]
    total, doubt = sum(squares), sum(square**2 / max(runs - 1, 1) for square, (_, runs) in zip(squares, parts, strict=True))
    known = np.asarray(total) > 0
    if not np.any(known):
        return max(runs for _, runs in parts)
    free = np.asarray(total)[known] ** 2 / np.asarray(doubt)[known]
    return int(np.floor(np.median(free))) + 1
