"""Whether the data of the figures of *Dimension-free limits* show what it claims.

Limits are judged by their exponents: fitted with errors over runs, with what a finite size adds
taken off where that is known, and said.
"""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from sgdynamics.base.arrays import RealArray
from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    Mean,
    agreement,
    count_wrong,
    fitted_power,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

LIMITS = {
    1: 1,
    3: 2,
    4: 3,
}  # exponents of the samples in d, by information exponent; the second is d log d
FINITE = 0.6  # the largest finite-size correction to an exponent that is believed: beyond it these d say nothing
SMALL = 0.05  # what a description may neglect: that of sgd.regime
# of each corner of the map: the description that holds there, the terms that it neglects, the
# descriptions that do not hold
CORNERS = {
    "classical": ("gradient flow", ("noise", "finite_dimension"), ("mean field",)),
    "high-dimensional": (
        "ODE",
        ("fluctuation", "finite_dimension"),
        ("gradient flow", "mean field"),
    ),
    "mean-field": ("mean field", ("noise", "finite_width"), ()),
    "fluctuating": ("ODE", ("fluctuation", "finite_dimension"), ("gradient flow", "mean field")),
}


def _said(data: xr.Dataset, *findings: Finding) -> Judgement:
    return judge_claims(str(data.attrs["verdict"]), *findings)


def _slope(x: ArrayLike, y: ArrayLike) -> float:
    return float(
        np.polyfit(
            np.log(np.asarray(x, dtype=float)), np.log(np.abs(np.asarray(y, dtype=float))), 1
        )[0]
    )


def _over_last(each: ArrayLike) -> Mean:
    """Means over the last axis, that of the runs; points may be correlated."""
    each = np.asarray(each, dtype=np.float64)
    return Mean(
        each.mean(axis=-1),
        each.std(axis=-1, ddof=1) / math.sqrt(each.shape[-1]),
        runs=each.shape[-1],
    )


def _power(
    claim: str,
    x: RealArray,
    each: ArrayLike,
    expected: float,
    *,
    tolerance: float,
    scale: float,
    words: str,
) -> Finding:
    """The mean over runs of `each` (x, run) is a power of x: independent runs at each x."""
    mean = _over_last(each)
    if np.any(mean.value <= 0):
        return Finding(
            claim,
            "means that are not positive",
            float(mean.value.min()),
            0.0,
            math.inf,
            words,
            False,
        )
    result, doubt, _ = fitted_power(x, mean.value, mean.error)
    fit = Mean(result, doubt, runs=mean.runs)
    return fit.agrees(
        f"{claim}: exponent {result:.3f}({doubt:.3f})",
        expected,
        tolerance=tolerance,
        scale=scale,
        scale_words=words,
    )


@judge_of(
    "regimes",
    "the map of the regimes, with SGD against every limit in its corners",
    "gamma -> 0 is gradient flow, d -> infinity an ODE with the noise of SGD, p -> infinity a density of the units",
)
def regimes(data: xr.Dataset) -> Judgement:
    """In each corner the mean risk is that of its description, to the terms that this neglects;
    other descriptions are off by more.
    """
    names, runs = [str(name) for name in data.setting.values], data.sizes["run"]
    wrong = sum(value != other for value, other in zip(names, CORNERS, strict=True))
    findings = [count_wrong("each setting lies in its corner of the map", wrong, len(names))]
    theory = data.excess_risk_theory.assign_coords(setting=list(CORNERS))
    for row, (name, (right, terms, others)) in enumerate(CORNERS.items()):
        risk, line = (
            data.excess_risk.values[row],
            theory.sel(setting=name, description=right).values,
        )
        allowed = float(sum(data[f"size_{term}"].values[row] for term in terms))
        result = mean_over_runs(risk[:, 1:] / line[1:])
        claim = (
            f"{name}: the mean risk of SGD is that of {right} to what it neglects, {allowed:.3f}"
        )
        findings.append(
            result.agrees(claim, 1.0, tolerance=allowed, scale=0.5, scale_words="half of the risk")
        )
        for other in others:
            away = theory.sel(setting=name, description=other).values
            when = 1 + int(
                np.argmax(np.abs(line / away - 1)[1:])
            )  # chosen from the descriptions alone
            values = np.sign(line[when] / away[when] - 1) * (risk[:, when] / away[when] - 1)
            claim = f"{name}: {other} is off by more than {SMALL:g} (t = {float(data.t[when]):g})"
            doubt = max(float(values.std(ddof=1)) / math.sqrt(runs), 1e-12)
            findings.append(larger(claim, values.mean() - SMALL, doubt, scale=0.05, runs=runs))
    scatter = data.scatter.values
    error = scatter / math.sqrt(2 * (runs - 1))
    findings.append(
        larger(
            f"runs scatter by less than {SMALL:g} in the first three",
            SMALL - scatter[:3],
            error[:3],
            scale=0.01,
            runs=runs,
        )
    )
    findings.append(
        larger(
            f"and by more in the fluctuating one: {scatter[3]:.3f}",
            scatter[3] - SMALL,
            error[3],
            scale=0.02,
            runs=runs,
        )
    )
    return _said(data, *findings)


@judge_of(
    "classical", "gamma -> 0: gradient flow", "as gamma -> 0 one-pass SGD follows gradient flow"
)
def classical(data: xr.Dataset) -> Judgement:
    findings, tenth = [], {"scale": 0.1, "scale_words": "a tenth of the risk"}
    for row, k in enumerate(data.k.values):
        relative = (data.excess_risk / data.excess_risk_flow).isel(k=row, time=slice(1, None))
        slow = mean_over_runs(relative.isel(gamma=0).transpose("run", "time").values)
        claim = (
            f"k = {k}: at gamma = {float(data.gamma[0]):g} the mean of SGD is gradient flow to 2%"
        )
        findings.append(slow.agrees(claim, 1.0, tolerance=0.02, **tenth))
        gap, claim = (
            _over_last(relative.isel(time=-1).values - 1),
            f"k = {k}: the gap of SGD to gradient flow is that of its ODE, to .01 + 1/d",
        )
        findings.append(
            gap.agrees(
                claim, data.gap_ode.values[row], tolerance=0.01 + 1 / data.attrs["d"], **tenth
            )
        )
        exponent = _slope(data.gamma, data.gap_ode.values[row])
        claim = f"k = {k}: that gap vanishes like gamma (exponent {exponent:.3f})"
        findings.append(
            agreement(
                claim,
                exponent,
                0.0,
                1.0,
                tolerance=0.1,
                scale=1.0,
                scale_words="one power of gamma",
            )
        )
    return _said(data, *findings)


@judge_of(
    "high_dimensional",
    "d -> infinity: the ODE",
    "the deviation from the ODE is at most exp(C t) sqrt(gamma/(d p))",
)
def high_dimensional(data: xr.Dataset) -> Judgement:
    inside = data.t.values <= 5
    apart = data.deviation.values
    worst = int(np.argmax(apart.mean(axis=(0, 1)) * inside))
    ratio = apart[..., inside] / (
        data.theorem_scale.values[:, None, None] * np.exp(data.t.values[inside])
    )
    below = _over_last(1 - np.moveaxis(ratio, 1, -1)[:, 1:])
    claim = "the largest deviation from the ODE falls like d^-1/2"
    return _said(
        data,
        _power(
            claim,
            data.d,
            apart[:, :, worst],
            -0.5,
            tolerance=0.05,
            scale=0.5,
            words="d^-1/2 more or less",
        ),
        below.is_above(
            "it is at most exp(t) sqrt(gamma/(d p)) for t <= 5",
            scale=0.2,
            scale_words="a fifth of that",
        ),
    )


@judge_of(
    "mean_field",
    "p -> infinity: the density of the units",
    "as p -> infinity SGD follows the density of (m, q)",
)
def mean_field(data: xr.Dataset) -> Judgement:
    difference = (
        (data.excess_risk - data.excess_risk_mean_field).transpose("time", "p", "run").values
    )
    wide = mean_over_runs(
        (
            difference
            / data.excess_risk_mean_field.mean("run").transpose("time", "p").values[..., None]
        )[1:, -1].T
    )
    p = int(data.p[-1])
    setting = {"tolerance": 0.1, "scale": 1.0, "words": "one power of p"}
    fits = [
        _power(
            f"at t = {float(data.t[i]):g} the gap of the risk to p = infinity falls like 1/p",
            data.p,
            difference[i],
            -1.0,
            **setting,
        )
        for i in (1, 2, 3)
    ]
    claim = f"at p = {p} the risk of SGD is that of p = infinity to 2/p of it, at every t"
    return _said(
        data,
        *fits,
        wide.agrees(claim, 0.0, tolerance=2 / p, scale=0.5, scale_words="half of the risk"),
    )


@judge_of(
    "mean_field_high_dimension",
    "p, d -> infinity together",
    "rows become orthogonal off the signal, like p^-1/2 + d^-1/2",
)
def mean_field_high_dimension(data: xr.Dataset) -> Judgement:
    """The sup norm, over entries and times, by the claim's exponent; and without the root of log p
    that p^2 random entries have.
    """
    largest = data.off_diagonal.max("time").transpose("p", "run").values
    p = data.p.values
    rooted = largest / np.sqrt(np.log(p))[:, None]
    first = data.off_diagonal.isel(time=0).transpose("p", "run").values / data.scale.values[:, None]
    ours, doubt, _ = fitted_power(p, *_over_last(rooted)[:2])
    bound = first.mean(axis=1)
    words = (
        f"at t = 0 the largest entry is {bound[0]:.2f} to {bound[-1]:.2f} times p^(-1/2) + d^(-1/2) for p = {p[0]} to {p[-1]}; without a "
        f"sqrt(log p) that random rows have it falls like p^{ours:.3f}({doubt:.3f}); {data.attrs['verdict']}"
    )
    claim = "the largest entry over all times falls like p^-1/2 at d = 2p"
    result = _power(claim, p, largest, -0.5, tolerance=0.05, scale=0.5, words="p^-1/2 more or less")
    exponent = _slope(data.dimension, data.change.isel(time=-1))
    claim = (
        f"what a finite d changes at p = infinity falls like 1/d (exponent {exponent:.2f}; ours)"
    )
    return judge_claims(
        words,
        result,
        agreement(claim, exponent, 0.0, -1.0, tolerance=0.15, scale=0.5, scale_words="d^1/2"),
    )


@judge_of(
    "noise_matters",
    "what the noise of SGD does",
    "a spread that the ODE lacks, and no change in the order of the exit time",
)
def noise_matters(data: xr.Dataset) -> Judgement:
    spreads = {}
    for name in ("SGD", "SDE"):
        values = data[f"excess_risk_{name}"].values
        spreads[name] = (float(values.std(axis=0, ddof=1).max()), len(values))
    sgd, runs = spreads["SGD"]
    error = math.sqrt(1 / (2 * (runs - 1)) + 1 / (2 * (spreads["SDE"][1] - 1)))
    ratio = Mean(math.log(spreads["SDE"][0] / sgd), error, runs=runs)
    exits, exits_error, shift = (
        data[name].values.ravel() for name in ("exit_ratio", "exit_ratio_error", "exit_ratio_shift")
    )
    times = Mean(exits, exits_error, runs=data.attrs["runs"])
    return _said(
        data,
        larger(
            "paths of SGD from one start scatter, as the ODE cannot",
            sgd,
            sgd / math.sqrt(2 * (runs - 1)),
            scale=0.1,
            runs=runs,
        ),
        ratio.agrees(
            "paths of the SDE scatter as much, to a fifth",
            0.0,
            tolerance=math.log(1.2),
            scale=math.log(4),
            scale_words="a factor 4",
        ),
        times.agrees(
            "the mean exit time of SGD is that of the ODE to 30%",
            1.0,
            tolerance=0.3,
            scale=1.0,
            scale_words="a factor 2",
        ),
        times.agrees(
            "what it is earlier is the constant shift (ours), to .03",
            shift,
            tolerance=0.03,
            scale=0.2,
            scale_words="a fifth of the exit time",
        ),
    )


@judge_of(
    "width_matters",
    "what width does to the exit time",
    "overparametrisation gains a constant factor, no power of d",
)
def width_matters(data: xr.Dataset) -> Judgement:
    findings = []
    for name, words, tolerance, scale in (
        ("annealed", "t_anl", 0.15, 0.5),
        ("quenched", "t_qnc", 0.15, 0.5),
        ("corrected", "t_qnc with the nonlinear ODE and the noise (ours)", 0.05, 0.2),
    ):
        times = Mean(
            data.exit_time.values, data.exit_time_error.values, "independent", data.attrs["runs"]
        ).over(data[f"exit_time_{name}"].values)
        claim = f"the mean exit time is {words} to {tolerance:.0%} at every width"
        findings.append(
            times.agrees(
                claim, 1.0, tolerance=tolerance, scale=scale, scale_words=f"{scale:g} of it"
            )
        )
    gain, exponent = data.gain.values[-1], _slope(data["size"], data.gain.values[-1])
    claim = f"the gain from width is no power of d (exponent {exponent:.3f})"
    findings.append(
        agreement(claim, exponent, 0.0, 0.0, tolerance=0.03, scale=0.25, scale_words="d^1/4")
    )
    most = float(data.attrs["largest_gain"])
    findings.append(
        agreement(
            f"it tends to {most:.3g} from above",
            gain[-1] / most,
            0.0,
            1.0,
            tolerance=0.05,
            scale=1.0,
            scale_words="a factor 2",
        )
    )
    return _said(data, *findings)


@judge_of(
    "single_index", "samples against d for information exponents 1 to 4", "n ~ d, d log d, d^2, d^3"
)
def single_index(data: xr.Dataset) -> Judgement:
    """Against the claim's own exponents: what finite d adds is that of the diffusion over the same
    d, which has them in its limit.
    """
    at, texts, findings = data.attrs, [], []
    for kappa, power in LIMITS.items():
        d, n, error = (
            np.asarray(data[f"{name}_{kappa}"], dtype=np.float64)
            for name in ("d", "samples", "error")
        )
        runs = int(np.min(data[f"runs_{kappa}"]))
        value, doubt, _ = fitted_power(d, n, error)
        diffusion = data[f"samples_diffusion_{kappa}"].values
        local, _, _ = fitted_power(d, diffusion, error / n * diffusion)
        added = local - at[f"exponent_{kappa}_limit"]
        texts.append(
            f"exponent {kappa}: n ~ d^{value:.3f}({doubt:.3f}), of which finite d makes {added:+.3f}, {power} claimed"
        )
        claim = f"exponent {kappa}: n ~ d^{power}, what finite d adds ({added:+.3f}) taken off"
        result = Mean(value - added, doubt, runs=runs)
        findings.append(
            result.agrees(claim, power, tolerance=0.1, scale=1.0, scale_words="one power of d")
        )
        claim = f"exponent {kappa}: what finite d adds is less than {FINITE} of a power"
        findings.append(
            agreement(
                claim, added, 0.0, 0.0, tolerance=FINITE, scale=1.0, scale_words="one power of d"
            )
        )
    last, error = (float(data[f"{name}_1"][-1] / data.d_1[-1]) for name in ("samples", "error"))
    limit, ended = at["prefactor_1"], Mean(last, error, runs=int(data.runs_1[-1]))
    claim = "exponent 1: n/d is its predicted limit to 5%"
    findings.append(
        ended.agrees(
            claim, limit, tolerance=0.05 * limit, scale=0.5 * limit, scale_words="half of it"
        )
    )
    slope, doubt = at["slope_2"], (at["slope_2_high"] - at["slope_2_low"]) / (2 * 1.96)
    claim, words = (
        "exponent 2: n/d grows like log d, by the predicted constant",
        "that constant (n ~ d would have 0)",
    )
    grown = Mean(slope, doubt, runs=int(np.min(data.runs_2)))
    findings.append(
        grown.agrees(claim, at["prefactor_2"], scale=at["prefactor_2"], scale_words=words)
    )
    texts.append(
        f"exponent 2: n/d has slope {slope:.2f}({doubt:.2f}) in log d, {at['prefactor_2']:.2f} predicted"
    )
    left, scaled, runs = (
        float(data.share_fixed_lr[-1]),
        float(data.share_scaled_lr[-1]),
        int(at["runs_fixed"]),
    )
    wide = math.sqrt((left * (1 - left) + scaled * (1 - scaled) + 1 / runs) / runs)
    findings.append(
        larger(
            "at a fixed rate exponent 3 leaves less often",
            scaled - left,
            wide,
            scale=0.3,
            runs=runs,
            scale_words=".3 of the runs",
        )
    )
    findings.append(count_wrong("there m = 0 is stable", int(at["growth_rate_fixed_lr"] >= 0), 1))
    texts.append(
        f"at a fixed rate exponent 3 leaves in {left:.0%} of the runs at d = {int(data.d_fixed[-1])}, {scaled:.0%} at the scaled one"
    )
    return judge_claims("; ".join(texts), *findings)


@judge_of(
    "optimal_schedules",
    "optimal learning-rate schedules",
    "annealing gains over the best constant rate, in the ODE and in SGD (ours)",
)
def optimal_schedules(data: xr.Dataset) -> Judgement:
    at, texts, findings = data.attrs, [], []
    for case in [
        name.removeprefix("best_constant_lr_")
        for name in at
        if name.startswith("best_constant_lr_")
    ]:
        gain, chain, error = (
            at[f"gain_{case}"],
            at[f"gain_chain_{case}"],
            at[f"gain_chain_error_{case}"],
        )
        name, runs = case.replace("_", " "), int(at.get(f"groups_{case}", at[f"runs_{case}"]))
        texts.append(
            f"{name}: {gain:.3f} in the ODE, {chain:.3f}({error:.3f}) at d = {at['dimension']}"
        )
        findings.append(larger(f"{name}: the schedule gains in the ODE", gain - 1, 0.0, scale=0.05))
        findings.append(larger(f"{name}: it gains in SGD", chain - 1, error, scale=0.1, runs=runs))
        if (
            "random" not in case
        ):  # from many random starts the ODE does not know when runs leave, and SGD gains less: see the figure
            claim, scale = f"{name}: SGD gains what the ODE does, to 5%", max(gain - 1, 0.05)
            gained = Mean(chain, error, runs=runs)
            findings.append(
                gained.agrees(
                    claim, gain, tolerance=0.05 * gain, scale=scale, scale_words="the gain itself"
                )
            )
    return judge_claims(
        f"final risk of the best constant rate over that of the schedule: {'; '.join(texts)}",
        *findings,
    )
