"""Judges of the figures of *Stochasticity helps to navigate rough landscapes*.

The numbers of the document are for N = 1000 and t = 1000. At a smaller size only the direction of
an effect is claimed: the claim is reproduced if the effect is significant, contradicted if the
opposite is, and not decided otherwise. Errors are over runs. Runs of the same number have the same
data set and start for all algorithms, so that differences between algorithms are paired.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, SupportsFloat

import numpy as np
import xarray as xr
from scipy import linalg

from sgdynamics.sweeps.power_law_fit import weighted_line
from sgdynamics_reproductions.gallery.claims import (
    RATE,
    Finding,
    Judgement,
    Mean,
    agreement,
    count_wrong,
    direction,
    joined_runs,
    judge_claims,
    larger,
    mean_over_runs,
    occurs,
    share,
)
from sgdynamics_reproductions.gallery.entries import judge_of

FULL = 1000  # N and t of the claims
DOT = 0.01  # radius of a dot in the figures, which "very good agreement" leaves open
FIFTH = 0.2  # relative error of the change since the start that DMFT must not have
REPLICATES = 4  # number of replicates of DMFT in data that do not store it
RECOVERED, THRESHOLD = 0.99, 1e-7  # |m| and loss of a run that has recovered the signal
SHARES = {"GD": 0.09, "SGD": 0.30, "p-SGD": 0.99}  # shares of 500 runs in figure 2
FOLLOWED = "There is very good agreement between DMFT and the average of runs"  # figures 5 and 6
# Growth rate d ln m/dt that must be detectable: at N = 100, where m starts at .1, p-SGD recovers at
# t = 200, which is a rate of .01.
GROWTH = 0.005
APART = 0.2  # difference of the shares of GD and SGD in figure 2


def _judge_with_stored_words(data: xr.Dataset, *findings: Finding) -> Judgement:
    """Combine findings under the description that the figure has stored with its data."""
    return judge_claims(str(data.attrs["verdict"]), *findings)


def _is_full(data: xr.Dataset) -> bool:
    return float(np.max(data.attrs.get("N", data.coords.get("N", FULL)))) >= FULL


def _is_late(data: xr.Dataset) -> bool:
    return float(data.t.values[-1]) >= FULL


def _order_test(data: xr.Dataset) -> Any:
    """The test of an order: ``larger`` at the size of the claims, ``direction`` at smaller ones."""
    return larger if _is_full(data) else direction


def _at_the_end(finding: Finding, data: xr.Dataset) -> Finding:
    """Leave a claim about t = 1000 undecided if the figure ends earlier."""
    if _is_late(data):
        return finding
    return replace(
        finding,
        claim=f"{finding.claim} (at t = {FULL}; here t = {float(data.t.values[-1]):g})",
        holds=None,
    )


def _never(
    claim: str, count: SupportsFloat, runs: int, scale: float, expected: float = 0.0
) -> Finding:
    """Test that an event occurs in no run (or in all runs): one exception contradicts the claim."""
    result = share(claim, count, runs, expected, scale=scale)
    wrong = abs(round(float(count)) - expected * runs)
    return replace(
        result, statistic=f"exceptions among {runs} runs", value=float(wrong), threshold=0.0
    )


# --- averages compared with DMFT


def _dmft(data: xr.Dataset) -> list[Finding]:
    """Test that average m and loss are those of DMFT at all times, within the radius of a dot."""
    results = []
    for name, words in (("m", "magnetization"), ("loss", "training loss")):
        mean, runs_error, theory, theory_error = (
            data[f"{name}_{value}"].values for value in ("mean", "error", "dmft", "dmft_error")
        )
        both, change = np.hypot(runs_error, theory_error), np.abs(theory - theory[..., :1])
        keep = (both > 0) & (change > 0)
        runs, replicates = int(data.attrs["runs"]), int(data.attrs.get("replicates", REPLICATES))
        runs = joined_runs((runs_error[keep], runs), (theory_error[keep], replicates))
        gap = Mean(
            mean[keep], both[keep], _correlation(data, name, runs_error, theory_error, keep), runs
        )
        claim, scale = f"The average {words} is that of DMFT within {DOT:g}", FIFTH * change[keep]
        results.append(
            gap.agrees(
                claim,
                theory[keep],
                tolerance=DOT,
                scale=scale,
                scale_words="a fifth of the change since the start",
            )
        )
    return results


def _correlation(
    data: xr.Dataset, name: str, runs_error: np.ndarray, theory_error: np.ndarray, keep: np.ndarray
) -> np.ndarray | None:
    """Correlation matrix of the gaps between runs and DMFT.

    The correlation of the runs is measured. That of the times of one DMFT solution is unknown and
    taken as 1, the worst case. Different starts are independent.
    """
    if f"{name}_correlation" not in data:
        return None
    blocks, count = [], runs_error.shape[-1]
    arrays = (value.reshape(-1, count) for value in (runs_error, theory_error, keep))
    for among, s, d, k in zip(
        data[f"{name}_correlation"].values.reshape(-1, count, count), *arrays, strict=True
    ):
        both = np.hypot(s, d)[k]
        blocks.append(
            (np.outer(s, s) * among + np.outer(d, d))[np.ix_(k, k)] / np.outer(both, both)
        )
    return np.asarray(linalg.block_diag(*blocks))


@judge_of("figure_5", "persistent SGD compared with its DMFT", FOLLOWED)
@judge_of("figure_6", "Langevin dynamics compared with its DMFT", FOLLOWED)
def follows_dmft(data: xr.Dataset) -> Judgement:
    return _judge_with_stored_words(data, *_dmft(data))


@judge_of(
    "figure_1",
    "gradient descent from warm starts, compared with DMFT",
    "Averages follow DMFT; single runs get stuck",
)
def warm_starts(data: xr.Dataset) -> Judgement:
    """Test which of the 40 runs per panel get stuck at N = 1000.

    Some runs from m0 = .65 are stuck and some from .5 are not; all runs from .8 recover.
    """
    recovered = np.abs(data.m_seed.values[:, :, -1]) > RECOVERED
    runs = recovered.shape[1]
    results = [
        *_dmft(data),
        _never("All runs from m0 = .8 recover", recovered[2].sum(), runs, 0.2, expected=1.0),
    ]
    results.append(
        occurs("Runs from m0 < .8 get stuck", (~recovered[:2]).sum(), 2 * runs, scale=0.25)
    )
    if _is_full(data):
        results.append(occurs("A run from m0 = .5 recovers", recovered[0].sum(), runs, scale=0.25))
        results.append(
            occurs("A run from m0 = .65 gets stuck", (~recovered[1]).sum(), runs, scale=0.25)
        )
    return _judge_with_stored_words(data, *results)


# --- shares of runs


def _mean_difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Mean difference of paired runs and its standard error.

    Boolean outcomes have an error of at least one run, also if all pairs are alike.
    """
    values = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(
        max(error, 1 / len(values) if values.dtype == bool else error)
    )


@judge_of(
    "figure_2",
    "GD, SGD and p-SGD: share of runs that recover the signal",
    "The signal is recovered in 9%, 30% and 99% of the runs",
)
def recovered_shares(data: xr.Dataset) -> Judgement:
    result, runs = data.recovered.values, int(data.attrs["runs"])
    if _is_full(data) and _is_late(data):
        findings = []
        for (name, claimed), value in zip(SHARES.items(), result, strict=True):
            # Both shares are counts; that of the document is over 500 runs.
            p = (claimed + float(value)) / 2
            error = math.sqrt(max(p * (1 - p), 1 / runs) * (1 / runs + 1 / 500))
            claim, apart = (
                f"{claimed:.0%} of the runs of {name} recover",
                f"{APART:g} of the runs (the difference between SGD and GD)",
            )
            findings.append(agreement(claim, value, error, claimed, scale=APART, scale_words=apart))
        return _judge_with_stored_words(data, *findings)
    recovered = data.loss.isel(time=-1).values < THRESHOLD
    findings = []
    for high, low in ((2, 0), (2, 1), (1, 0)):
        names = list(SHARES)
        difference, error = _mean_difference(recovered[high], recovered[low])
        claim = f"More runs of {names[high]} than of {names[low]} recover"
        findings.append(
            direction(
                claim,
                difference,
                max(error, 1 / runs),
                scale=APART,
                runs=runs,
                scale_words=f"{APART:g} of the runs",
            )
        )
    return _judge_with_stored_words(data, *findings)


def _plateau_counts(data: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Times on plateaus and all times before recovery of each run of an algorithm."""
    from sgdynamics_reproductions.rough_landscapes.style import plateau_counts

    return plateau_counts(data.t.values, np.abs(data.m.sel(algorithm=name).values))


def _ratio(quiet: np.ndarray, detectable: np.ndarray) -> tuple[float, np.ndarray]:
    """Share of the time on plateaus over all runs, and contributions of the runs to its error."""
    value = float(quiet.sum() / max(detectable.sum(), 1))
    return value, (quiet - value * detectable) / max(detectable.mean(), 1e-300)


@judge_of(
    "figure_3",
    "single runs: plateaus and jumps",
    "GD has long plateaus, p-SGD has none, and SGD is in between",
)
def plateaus(data: xr.Dataset) -> Judgement:
    table = {name: _ratio(*_plateau_counts(data, name)) for name in SHARES}
    runs, test = data.sizes["run"], _order_test(data)

    def error(*contributions: np.ndarray) -> float:
        total = np.sum(contributions, axis=0)
        # A run may always spend a hundredth of its time on plateaus.
        return max(float(total.std(ddof=1)), 0.01) / math.sqrt(runs)

    (gd, gd_runs), (sgd, sgd_runs), (persistent, persistent_runs) = table.values()
    return _judge_with_stored_words(
        data,
        larger("GD spends time on plateaus", gd, error(gd_runs), scale=0.1, runs=runs),
        test(
            "p-SGD spends less than half as much time on plateaus as GD",
            gd / 2 - persistent,
            error(gd_runs / 2, -persistent_runs),
            scale=0.05,
            runs=runs,
        ),
        test(
            "SGD spends less time on plateaus than GD",
            gd - sgd,
            error(gd_runs, -sgd_runs),
            scale=0.05,
            runs=runs,
        ),
        test(
            "SGD spends more time on plateaus than p-SGD",
            sgd - persistent,
            error(sgd_runs, -persistent_runs),
            scale=0.02,
            runs=runs,
        ),
    )


# --- noise


@judge_of("figure_4", "batch sizes, persistence times, temperatures", "Intermediate noise is best")
def intermediate_noise(data: xr.Dataset) -> Judgement:
    """Test that the best curve of each list is not at one of its ends.

    Curves are scored by the mean of |m| in log t after t = 1; temperatures by |m| at the end, after
    they have been switched off.
    """
    tried = int(data.attrs["runs_exploding"])
    gone = float(data.exploded.values[0])
    findings = [
        _never(
            "Runs at l = .01 with the printed eta = .0025 do not explode", gone * tried, tried, 0.25
        )
    ]
    late = data.t.values >= 1
    for panel, words in (
        ("batch", "batch size"),
        ("persistence", "persistence time"),
        ("temperature", "temperature"),
    ):
        m = np.nan_to_num(data[f"m_runs_{panel}"].values)  # a run that explodes has no overlap
        score = m[..., -1] if panel == "temperature" else m[..., late].mean(axis=-1)
        inner = score[1:-1]
        best = inner[int(np.argmax(inner.mean(axis=1)))]
        pairs = [_mean_difference(best, end) for end in (score[0], score[-1])]
        difference, error = np.array(pairs).T
        claim = f"An intermediate {words} is better than both ends of the list"
        setting = {
            "scale": 0.05,
            "scale_words": ".05 of |m|",
            "runs": m.shape[1],
            "rate": RATE / len(inner),
        }
        result = _order_test(data)(claim, difference, np.maximum(error, 1e-9), **setting)
        findings.append(_at_the_end(result, data))
    printed = (
        f"as printed {gone:.0%} of the runs at l = .01 explode; {data.attrs['verdict']}"
        if gone
        else str(data.attrs["verdict"])
    )
    return judge_claims(printed, *findings)


@judge_of(
    "figure_7",
    "GD and p-SGD from random starts, growing N",
    "GD stays at a plateau, and p-SGD recovers in a time like log N",
)
def random_starts(data: xr.Dataset) -> Judgement:
    """Test the plateau of GD, and the recovery of p-SGD and its time as a function of N.

    The plateau is the median of |m| at the end of GD. The time of p-SGD is compared with log N and
    N, and with the growth in the limit N -> infinity that log N needs. If single runs are not
    stored, |m| of GD is taken to scatter as its median (a half-normal has .9 of it), and log t by
    one. Sizes may have different numbers of runs, and GD may end earlier: such values are NaN.
    """
    values = data.get("runs_size", xr.full_like(data.N, int(data.attrs["runs"]))).values
    runs = int(values.min())
    gd, persistent = (
        np.array([item[np.isfinite(item)][-1] for item in data.m.sel(algorithm=name).values])
        for name in ("GD", "p-SGD")
    )
    median_error = np.sqrt(math.pi / 2 / values)  # of the median of standard normal numbers
    if "m_end" in data:
        ends = {name: data.m_end.sel(algorithm=name).values for name in ("GD", "p-SGD")}
        spread = np.nanstd(ends["GD"], axis=1, ddof=1)
        both_finite = [
            np.isfinite(value) & np.isfinite(other)
            for value, other in zip(*ends.values(), strict=True)
        ]
        pairs = [
            _mean_difference(entry[k], other[k])
            for entry, other, k in zip(ends["p-SGD"], ends["GD"], both_finite, strict=True)
        ]
        above, above_error = np.array(pairs).T
    else:
        spread = gd
        above, above_error = (
            persistent - gd,
            np.hypot(gd, np.minimum(persistent, 1 - persistent) + 0.05) * median_error,
        )
    fall, fall_error, test = (
        gd[0] - gd[-1],
        float(np.linalg.norm((median_error * spread)[[0, -1]])),
        _order_test(data),
    )
    findings = [
        test(
            "The plateau of GD falls with N",
            fall,
            fall_error,
            scale=0.05,
            runs=runs,
            scale_words=".05 of |m|",
        ),
        test(
            "p-SGD reaches a larger |m| than GD",
            above,
            above_error,
            scale=0.2,
            runs=runs,
            scale_words=".2 of |m|",
        ),
    ]
    times = data.time_to_recover.values
    if _is_full(data):
        findings.append(
            count_wrong(
                "Half of the runs of p-SGD recover at all N",
                int((~np.isfinite(times)).sum()),
                len(times),
            )
        )
    findings.append(_growth(data, times, values, median_error))
    for number, eta in enumerate(
        data.eta_rate.values[1:] if "eta_rate" in data.coords else (), start=1
    ):
        late = data.share.values[number, :, -1]
        findings.append(
            count_wrong(
                f"Half of the runs of p-SGD recover at all N at eta = {eta:g} too",
                int((late < 0.5).sum()),
                len(late),
            )
        )
    if "growth" in data:
        rate, error = (data[name].values[:, -1] for name in ("growth", "growth_error"))
        first, last = (float(data[name].values[-1]) for name in ("span_begin", "span_end"))
        claim = (
            "In the limit N -> infinity m of p-SGD grows exponentially, as log N needs: d ln m/dt "
            f"is above 0 from t = {first:g} to {last:g}"
        )
        setting = {
            "scale": GROWTH,
            "scale_words": f"a rate of {GROWTH:g}",
            "runs": int(data.attrs.get("replicates", REPLICATES)),
        }
        findings.append(larger(claim, rate, error, **setting))
    return _judge_with_stored_words(data, *findings)


def _growth(
    data: xr.Dataset, times: np.ndarray, runs: np.ndarray, median_error: np.ndarray
) -> Finding:
    """Compare the slope of log t in log log N with 1; the alternative is a growth like N.

    All N with a recovery time are used. Runs are taken to scatter everywhere as much as where they
    scatter most.
    """
    claim, solved = (
        "The time of p-SGD grows like log N, within a factor 1.5 over all N",
        np.flatnonzero(np.isfinite(times)),
    )
    words = "a growth like N"
    if len(solved) < 2:
        return Finding(
            claim,
            "sizes at which half of the runs recover (2 are needed)",
            float(len(solved)),
            2.0,
            math.inf,
            words,
            None,
        )
    spread, counted_runs = 1.0, int(runs.min())
    if "time_run" in data:
        logs = [
            np.log(np.where(np.isfinite(value), value, float(data.t[-1])))[:k]
            for value, k in zip(data.time_run.values, runs, strict=True)
        ]
        spreads = [float(log.std(ddof=1)) for log in logs]
        spread, counted_runs = max(spreads), int(runs[int(np.argmax(spreads))])
    x, log_N = np.log(np.log(data.N.values[solved])), np.log(data.N.values[solved])
    line, covariance, _ = weighted_line(
        x, np.log(times[solved]), (spread * median_error[solved]) ** -2
    )
    reach = x[-1] - x[0]
    slope = Mean(line[1], math.sqrt(covariance[1, 1]), runs=counted_runs)
    setting = {
        "tolerance": math.log(1.5) / reach,
        "scale": (log_N[-1] - log_N[0]) / reach - 1,
        "scale_words": words,
    }
    return slope.agrees(claim, 1.0, **setting)


@judge_of(
    "figure_b4",
    "single runs at several persistence times",
    "Longer persistence leaves fewer plateaus and delays the start",
)
def persistence(data: xr.Dataset) -> Judgement:
    recovered = data.loss.isel(time=-1).values < THRESHOLD
    t, m, runs, test = data.t.values, np.abs(data.m.values), data.sizes["run"], _order_test(data)
    early = np.stack([[np.interp(1.0, t, value) for value in curve] for curve in m])
    late, late_error = np.array([_mean_difference(early[0], early[i]) for i in (2, 3)]).T
    gain, gain_error = _mean_difference(recovered[-1], recovered[0])
    claim, words = (
        "Fewer runs are stuck at the end at tau = 5 than at tau = .05",
        f"{APART:g} of the runs",
    )
    fewer = test(claim, gain, max(gain_error, 1 / runs), scale=APART, runs=runs, scale_words=words)
    return _judge_with_stored_words(
        data,
        _at_the_end(fewer, data),
        larger(
            "At t = 1, |m| is lower at tau = 2 and 5 than at tau = .05",
            late,
            late_error,
            scale=0.05,
            runs=runs,
            scale_words=".05 of |m|",
        ),
    )


# --- ridge


def _formula(data: xr.Dataset) -> Finding:
    """Test that (B.8) of each run is its error on fresh samples, at all times and curves.

    The fresh samples of different times and curves are independent. Algorithms may have different
    numbers of runs (NaN from the start on). Times after a run has exploded (NaN later) are ignored.
    """
    gap = (data.mse_run - data.mse_own).transpose("run", ..., "time").values
    values = np.ma.masked_array(gap, np.broadcast_to(np.isnan(gap[..., :1]), gap.shape))
    mean, spread, count = (
        np.asarray(value).reshape(-1)
        for value in (values.mean(axis=0), values.std(axis=0, ddof=1), values.count(axis=0))
    )
    keep = spread > 1e-12
    claim = (
        "(B.8) is the mean squared error of each run (the measured error deviates by at most "
        f"{np.abs(mean[keep]).max():.4f})"
    )
    error, runs = spread[keep] / np.sqrt(count[keep]), int(count[keep].min())
    return agreement(
        claim, mean[keep], error, 0.0, scale=0.05, runs=runs, correlation="independent"
    )


def _own(data: xr.Dataset, algorithm: str, **where: Any) -> np.ndarray:
    """(B.8) of each run of an algorithm (run, time), which is its error without test-set noise.

    Missing runs of an algorithm are NaN from the start on.
    """
    values = data.mse_own.sel(algorithm=algorithm, **where).transpose("run", "time").values
    return values[np.isfinite(values[:, 0])]


def _ends(data: xr.Dataset, algorithm: str, **where: Any) -> np.ndarray:
    return _own(data, algorithm, **where)[:, -1]


@judge_of(
    "figure_b1",
    "ridge in place of the sphere",
    "(B.8) gives the error, and there is double descent in time at small ridge",
)
def ridges(data: xr.Dataset) -> Judgement:
    test, (sgd, persistent) = (
        _order_test(data),
        ({at: _ends(data, name, ridge=at) for at in (0.0, 0.1, 1.0)} for name in ("SGD", "p-SGD")),
    )
    gain, gain_error = _mean_difference(sgd[0.0], sgd[1.0])
    low, low_error = np.array(
        [_mean_difference(persistent[1.0], persistent[ridge]) for ridge in (0.0, 0.1)]
    ).T
    lower = test(
        "p-SGD has a lower error at lambda = 0 and .1 than at 1",
        low,
        low_error,
        scale=0.05,
        runs=len(persistent[1.0]),
    )
    return _judge_with_stored_words(
        data,
        _formula(data),
        _at_the_end(
            test(
                "SGD has a lower error at lambda = 1 than at 0",
                gain,
                gain_error,
                scale=0.05,
                runs=len(sgd[0.0]),
            ),
            data,
        ),
        _at_the_end(lower, data),
        *(_at_the_end(_double_descent(data, ridge), data) for ridge in (0.0, 0.1)),
    )


def _double_descent(data: xr.Dataset, ridge: float) -> Finding:
    """Test that the average error of an algorithm rises again.

    The test takes the pair of times with the largest rise among all pairs of all three algorithms,
    with a Bonferroni correction.
    """
    best, pairs = (-math.inf, math.nan, 1), 0
    for name in SHARES:
        values = _own(data, name, ridge=ridge)
        mean = values.mean(axis=0)
        rise = mean[None, :] - mean[:, None]
        first, second = np.unravel_index(int(np.argmax(np.triu(rise, 1))), rise.shape)
        best = max(best, (*_mean_difference(values[:, second], values[:, first]), len(values)))
        pairs += len(mean) * (len(mean) - 1) // 2
    claim = f"Double descent in time at lambda = {ridge:g}: an average error rises again"
    return _order_test(data)(claim, best[0], best[1], scale=0.02, runs=best[2], rate=RATE / pairs)


@judge_of(
    "figure_b2",
    "gradients with and without division by the batch fraction",
    "Dividing by the batch fraction is better for p-SGD, not dividing is better for SGD",
)
def rescaled_gradient(data: xr.Dataset) -> Judgement:
    test, findings = _order_test(data), [_formula(data)]
    for name, better, worse in (
        ("p-SGD", "rescaled", "not rescaled"),
        ("SGD", "not rescaled", "rescaled"),
    ):
        ends = _ends(data, name, gradient=worse), _ends(data, name, gradient=better)
        gain, error = _mean_difference(*ends)
        words = "Dividing by l" if better == "rescaled" else "Not dividing by l"
        findings.append(
            test(f"{words} is better for {name}", gain, error, scale=0.02, runs=len(ends[0]))
        )
    return _judge_with_stored_words(data, *findings)


@judge_of(
    "figure_b3",
    "decreasing learning rates",
    "As the learning rate decreases, SGD becomes GD and p-SGD does not",
)
def small_rates(data: xr.Dataset) -> Judgement:
    """Test differences of the loss to GD of the same run: they vanish for SGD, not for p-SGD."""
    runs, eta = data.sizes["run"], float(data.eta[-1])
    sgd = mean_over_runs(
        data.difference.sel(other="SGD")
        .isel(rate=-1, time=slice(1, None))
        .transpose("run", "time")
        .values
    )
    persistent = data.difference.sel(other="p-SGD")
    # The time is chosen at the largest rate and judged at the smallest.
    when = int(np.argmax(np.abs(persistent.isel(rate=0).mean("run").values)))
    sign = float(np.sign(persistent.isel(rate=0, time=when).mean()))
    least, first = (sign * persistent.isel(rate=rate, time=when).values for rate in (-1, 0))
    size, size_error = _mean_difference(least, np.zeros(runs))
    excess, excess_error = _mean_difference(least, first / 2)
    return _judge_with_stored_words(
        data,
        sgd.agrees(
            f"At eta = {eta:g} the average loss of SGD is that of GD within {DOT:g}",
            0.0,
            tolerance=DOT,
            scale=0.05,
        ),
        larger(
            f"At eta = {eta:g} the average loss of p-SGD differs from that of GD",
            size,
            size_error,
            scale=0.05,
            runs=runs,
        ),
        larger(
            "The difference of p-SGD does not vanish with eta: at least half of it remains",
            excess,
            excess_error,
            scale=0.02,
            runs=runs,
        ),
    )
