"""Claims of the gallery: they say "differs" as rarely as stated, see what they say they see, and
can say all three.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from sgdynamics_reproductions.gallery import claims, statistics
from sgdynamics_reproductions.gallery.claims import (
    agreement,
    count_wrong,
    difference,
    fitted_power,
    judge_claims,
    larger,
    mean_over_runs,
    share,
)

POINTS = 12
LOOSE = 0.02  # a false-alarm rate that a Monte Carlo simulation can measure
TRIALS = 3000
RUNS = 10
MOST = stats.binom.isf(1e-6, TRIALS, LOOSE)  # largest plausible number of alarms at this rate


def correlation(kind: str) -> np.ndarray:
    """Independent points; points that share half of their variance; a path, where neighbours share
    most.
    """
    if kind == "independent":
        return np.eye(POINTS)
    if kind == "shared":
        return 0.5 * np.eye(POINTS) + 0.5
    lag = np.abs(np.arange(POINTS)[:, None] - np.arange(POINTS))
    return 0.95**lag


def root(kind: str) -> np.ndarray:
    return np.linalg.cholesky(correlation(kind))


# false alarms


QUICK = ((4, "independent"), (12, "shared"), (60, "path"))  # each kind and each number of runs once


@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        pytest.param(runs, kind, marks=() if (runs, kind) in QUICK else pytest.mark.slow)
        for runs in (4, 12, 60)
        for kind in ("independent", "shared", "path")
    ],
)
def test_agreement_differs_as_rarely_as_stated(runs, kind):
    rng = np.random.default_rng(runs)
    alarms = {"estimated": 0, "worst": 0}
    for trial in range(TRIALS):
        mean = mean_over_runs(rng.normal(size=(runs, POINTS)) @ root(kind).T)
        z = np.abs(mean.value) / mean.error
        alarms["worst"] += WORST[runs].value(z) > 1
        if trial % RUNS == 0:  # a threshold of its own, from the correlation of its own runs
            alarms["estimated"] += (
                statistics.deviation_statistic(POINTS, runs - 1.0, mean.correlation, LOOSE).value(z)
                > 1
            )
    assert 0 < alarms["worst"] <= MOST  # and not for being blind
    assert alarms["estimated"] <= stats.binom.isf(1e-6, TRIALS // RUNS, LOOSE)


WORST = {
    runs: statistics.deviation_statistic(POINTS, runs - 1.0, None, LOOSE) for runs in (4, 12, 60)
}


@pytest.mark.parametrize(
    "spectrum",
    [np.ones(12), np.array([6.0] + [6 / 11] * 11), np.array([9.0, 2.0, 1.0]), np.array([12.0])],
)
@pytest.mark.parametrize("free", [8.0, math.inf])
def test_thresholds_are_right_far_out_in_the_tail(spectrum, free):
    # matching two moments (Box) gives a threshold that five times as many pass for the second
    # spectrum
    rate, rng, count = 1e-4, np.random.default_rng(0), 0
    limit = statistics.weighted_chi2_quantile(rate, spectrum, free)
    for _ in range(8):
        total = spectrum @ rng.chisquare(1, size=(len(spectrum), 10**5))
        count += int(
            np.sum(
                total
                > limit * (rng.chisquare(free, size=10**5) / free if math.isfinite(free) else 1.0)
            )
        )
    if len(set(spectrum)) == 2 and math.isinf(free):
        g, h = np.sum(spectrum**2) / np.sum(spectrum), np.sum(spectrum) ** 2 / np.sum(spectrum**2)
        assert (
            statistics.weighted_chi2_tail(g * stats.chi2.isf(rate, h), spectrum, 0 * spectrum, free)
            > 5 * rate
        )
    low, high = stats.binom.interval(1 - 1e-6, 8 * 10**5, rate)
    assert 0.8 * low <= count <= 1.1 * high  # the saddlepoint is good to ten percent or so


def test_larger_and_share_err_as_rarely_as_stated():
    rng = np.random.default_rng(1)
    shown = sum(
        larger("c", x, 1.0, scale=5.0, rate=LOOSE).holds is True for x in rng.normal(size=TRIALS)
    )
    refuted = sum(
        larger("c", 5.0 + x, 1.0, scale=5.0, rate=LOOSE).holds is False
        for x in rng.normal(size=TRIALS)
    )
    assert shown <= MOST
    assert refuted <= MOST
    assert shown > 0
    counts = rng.binomial(200, 3 / 32, size=TRIALS)
    alarms = {
        int(count): share("c", count, 200, 3 / 32, scale=0.2, rate=LOOSE).holds is False
        for count in np.unique(counts)
    }
    assert 0 < sum(alarms[int(count)] for count in counts) <= MOST


# power


@pytest.mark.parametrize("kind", ["independent", "shared", "path"])
@pytest.mark.parametrize("runs", [8, 60])
@pytest.mark.parametrize("shape", ["level", "slope"])
def test_agreement_sees_what_it_says_it_sees(kind, runs, shape):
    # errors known to be 1/sqrt(runs): what is stated is for the errors as they are, and holds on
    # average over those estimated
    scale = np.ones(POINTS) if shape == "level" else np.linspace(0.1, 1.0, POINTS)
    rng, trials, tolerance = np.random.default_rng(runs), 400, 0.3
    setting = {
        "scale": scale,
        "tolerance": tolerance,
        "runs": runs,
        "correlation": correlation(kind),
    }
    detectable = agreement("c", np.zeros(POINTS), 1 / math.sqrt(runs), 0.0, **setting).detectable
    statistic = statistics.deviation_statistic(
        POINTS, runs - 1.0, correlation(kind), claims.RATE
    )  # that of `agreement`: made once

    def hits(size):
        means = (
            mean_over_runs(size * scale + rng.normal(size=(runs, POINTS)) @ root(kind).T)
            for _ in range(trials)
        )
        return sum(
            statistic.value(np.maximum(np.abs(mean.value) - tolerance, 0.0) / mean.error) > 1
            for mean in means
        )

    assert hits(detectable) >= stats.binom.ppf(1e-6, trials, claims.POWER) - 0.01 * trials
    # and not much less than that: half of the excess over the tolerance is often missed
    assert (
        hits(tolerance / scale.max() + 0.4 * (detectable - tolerance / scale.max())) < 0.7 * trials
    )
    mean = mean_over_runs(detectable * scale + rng.normal(size=(runs, POINTS)) @ root(kind).T)
    finding = agreement("c", mean.value, mean.error, 0.0, **setting)
    assert finding.value == pytest.approx(
        statistic.value(np.maximum(np.abs(mean.value) - tolerance, 0.0) / mean.error)
    )


def test_larger_and_share_see_what_they_say_they_see():
    rng = np.random.default_rng(2)
    detectable = larger("c", 0.0, 1.0, scale=5.0).detectable * 5.0
    hits = sum(
        larger("c", detectable + x, 1.0, scale=5.0).holds is True for x in rng.normal(size=TRIALS)
    )
    low, high = stats.binom.interval(1 - 1e-6, TRIALS, claims.POWER)
    assert low <= hits <= high
    for expected in (0.5, 3 / 32):
        detectable = share("c", round(400 * expected), 400, expected, scale=0.1).detectable * 0.1
        for p in (max(expected - detectable, 0.0), expected + detectable):
            counts = rng.binomial(400, p, size=TRIALS)
            alarms = {
                int(count): share("c", count, 400, expected, scale=0.1).holds is False
                for count in np.unique(counts)
            }
            assert sum(alarms[int(count)] for count in counts) >= stats.binom.ppf(
                1e-6, TRIALS, claims.POWER
            )


def test_a_share_that_cannot_be_too_small_to_see_is_not_decided():
    # 20 runs at 3/32 may all fail: nothing tells 3/32 from 0, however large the scale
    few = share("c", 2, 20, 3 / 32, scale=0.5)
    assert few.holds is None
    assert few.detectable == math.inf
    assert "no error would have been detected" in few.power


# the three words


def say(holds):
    return claims.WORDS[holds]


@pytest.mark.parametrize(
    ("finding", "word"),
    [
        (
            lambda: agreement("c", [1.0, 1.02], 0.02, 1.0, scale=0.2, correlation="independent"),
            "reproduced",
        ),
        (
            lambda: agreement("c", [1.2, 1.2], 0.02, 1.0, scale=0.2, correlation="independent"),
            "differs",
        ),
        (lambda: agreement("c", [1.2, 1.2], 0.02, 1.0, scale=0.4, tolerance=0.2), "reproduced"),
        (lambda: agreement("c", [1.0, 1.02], 0.1, 1.0, scale=0.2), "not decided at this size"),
        (
            lambda: agreement("c", [1.0, 1.02], 0.02, 1.0, scale=0.2, runs=3),
            "not decided at this size",
        ),  # three runs say little
        (lambda: agreement("c", [1.0, math.nan], 0.1, 1.0, scale=0.2), "differs"),
        (
            lambda: agreement("c", [1.0, 1.0 + 1e-9], 0.0, 1.0, scale=0.2, tolerance=1e-6),
            "reproduced",
        ),
        (lambda: agreement("c", [1.0, 1.1], 0.0, 1.0, scale=0.2, tolerance=1e-6), "differs"),
        (
            lambda: agreement("c", [1.0, 1.1], 0.0, 1.0, scale=0.2, tolerance=0.3),
            "not decided at this size",
        ),
        (lambda: agreement("c", 0.0, 0.0, 0.0, scale=0.2), "reproduced"),
        (lambda: larger("c", [1.0, 0.9], 0.1, scale=0.5), "reproduced"),
        (lambda: larger("c", [1.0, 0.01], 0.1, scale=0.5), "differs"),
        (lambda: larger("c", 0.3, 0.2, scale=0.5), "not decided at this size"),
        (
            lambda: larger("c", 0.1, 0.001, scale=0.5),
            "differs",
        ),  # above 0, and surely too small to bear the claim out
        (lambda: larger("c", 1.0, 0.1, scale=0.5, runs=3), "not decided at this size"),
        (lambda: larger("c", math.nan, 0.1, scale=0.5), "differs"),
        (lambda: share("c", 130, 256, 0.5, scale=0.2), "reproduced"),
        (lambda: share("c", 200, 256, 0.5, scale=0.2), "differs"),
        (lambda: share("c", 13, 26, 0.5, scale=0.2), "not decided at this size"),
        (lambda: count_wrong("c", 0, 7), "reproduced"),
        (lambda: count_wrong("c", 1, 7), "differs"),
        (lambda: count_wrong("c", 0, 0), "not decided at this size"),
    ],
)
def test_every_kind_of_claim_can_say_all_three(finding, word):
    result = finding()
    assert result.word == word
    json.dumps(result.plain())
    assert result.plain()["verdict"] == word
    assert (
        (result.value <= result.threshold) == (result.holds is not False)
        or result.above
        or math.isnan(result.value)
    )


def test_a_verdict_is_the_worst_of_its_findings_and_needs_one():
    good, bad, open_ = count_wrong("c", 0, 7), count_wrong("c", 1, 7), count_wrong("c", 0, 0)
    assert judge_claims("w", good, good).holds is True
    assert judge_claims("w", good, open_).holds is None
    assert judge_claims("w", open_, bad, good).holds is False
    assert judge_claims("w", good).findings == (good,)
    with pytest.raises(ValueError, match="at least one claim"):
        judge_claims("w")


def test_more_runs_decide_as_said():
    few = agreement("c", 1.0, 0.1, 1.0, scale=0.2)
    assert "times the runs would decide" in few.power
    times = int(few.power.split("about ")[1].split(" times")[0])
    assert agreement("c", 1.0, 0.1 / math.sqrt(times), 1.0, scale=0.2).holds is True
    assert agreement("c", 1.0, 0.1 / math.sqrt(times / 2), 1.0, scale=0.2).holds is None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: agreement("c", [1.0, 2.0], [0.1, 0.0], 1.0, scale=1.0),
            "without noise separately",
        ),
        (
            lambda: agreement("c", [1.0, 2.0], 0.1, 1.0, scale=1.0, correlation="some"),
            "correlation = 'some'",
        ),
        (
            lambda: agreement("c", [1.0, 2.0], 0.1, 1.0, scale=1.0, correlation=np.eye(3)),
            r"shape \(3, 3\)",
        ),
        (lambda: mean_over_runs([[1.0], [2.0]]), "2 runs"),
        (lambda: mean_over_runs([[1.0], [2.0], [math.nan]]), "three finite"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_means_their_differences_and_powers():
    rng = np.random.default_rng(3)
    first, second = (rng.normal(size=(400, POINTS)) @ root("path").T for _ in range(2))
    first_mean, second_mean = mean_over_runs(first), mean_over_runs(2 * second + 1)
    gap = difference(first_mean, second_mean)
    np.testing.assert_allclose(gap.value, first_mean.value - second_mean.value)
    np.testing.assert_allclose(gap.error**2, first_mean.error**2 + second_mean.error**2)
    np.testing.assert_allclose(gap.correlation, correlation("path"), atol=0.25)
    assert np.all(np.diag(gap.correlation) == 1)
    x = np.array([1.0, 2.0, 4.0, 8.0])
    power, error, p = fitted_power(x, 3 * x**2, 0.01 * x**2)
    assert power == pytest.approx(2, abs=1e-12)
    assert 0.001 < error < 0.01
    assert p == pytest.approx(1)
    assert fitted_power(x, 3 * x**2 + 1, 0.01 * x**2)[2] < 1e-6
