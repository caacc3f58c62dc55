"""Judges of the figures of *Dimension-free limits*: do the data show what the slides claim?

Limits are judged by their exponents, which are fitted with errors over runs. Known contributions of
a finite size are subtracted, and the claim says so.
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

# Exponents of the samples in d, by information exponent; exponent 2 needs d log d.
LIMITS = {1: 1, 3: 2, 4: 3}
# Largest finite-size correction to an exponent that is accepted; beyond it, these d decide nothing.
FINITE = 0.6
SMALL = 0.05  # relative size of terms that a description may neglect, as in sgd.regime
# For each corner of the map: the description that holds there, the terms that it neglects, and the
# descriptions that do not hold.
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


def _judge_with_stored_words(data: xr.Dataset, *findings: Finding) -> Judgement:
    """Combine findings under the description that the figure has stored with its data."""
    return judge_claims(str(data.attrs["verdict"]), *findings)


def _slope(x: ArrayLike, y: ArrayLike) -> float:
    return float(
        np.polyfit(
            np.log(np.asarray(x, dtype=float)), np.log(np.abs(np.asarray(y, dtype=float))), 1
        )[0]
    )


def _mean_over_last_axis(runs: ArrayLike) -> Mean:
    """Means over the last axis, that of the runs; points may be correlated."""
    runs = np.asarray(runs, dtype=np.float64)
    return Mean(
        runs.mean(axis=-1),
        runs.std(axis=-1, ddof=1) / math.sqrt(runs.shape[-1]),
        runs=runs.shape[-1],
    )


def _power(
    claim: str,
    x: RealArray,
    runs: ArrayLike,
    expected: float,
    *,
    tolerance: float,
    scale: float,
    words: str,
) -> Finding:
    """Test that the mean over runs (x, run) is a power of x, with independent runs at each x."""
    mean = _mean_over_last_axis(runs)
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
    "the map of the regimes, and SGD compared with each limit in the corners",
    "SGD follows gradient flow as gamma -> 0, an ODE with the noise of SGD as d -> infinity, and a "
    "density of the units as p -> infinity",
)
def regimes(data: xr.Dataset) -> Judgement:
    """Test the description of each corner up to its neglected terms, and reject the others."""
    names, runs = [str(name) for name in data.setting.values], data.sizes["run"]
    wrong = sum(value != other for value, other in zip(names, CORNERS, strict=True))
    findings = [count_wrong("Each setting lies in its corner of the map", wrong, len(names))]
    theory = data.excess_risk_theory.assign_coords(setting=list(CORNERS))
    for row, (name, (right, terms, others)) in enumerate(CORNERS.items()):
        risk, line = (
            data.excess_risk.values[row],
            theory.sel(setting=name, description=right).values,
        )
        allowed = float(sum(data[f"size_{term}"].values[row] for term in terms))
        result = mean_over_runs(risk[:, 1:] / line[1:])
        claim = (
            f"{name} corner: the mean risk of SGD is that of {right}, within the neglected terms "
            f"({allowed:.3f})"
        )
        findings.append(
            result.agrees(claim, 1.0, tolerance=allowed, scale=0.5, scale_words="half of the risk")
        )
        for other in others:
            away = theory.sel(setting=name, description=other).values
            # The time is chosen from the descriptions alone, without the runs.
            when = 1 + int(np.argmax(np.abs(line / away - 1)[1:]))
            values = np.sign(line[when] / away[when] - 1) * (risk[:, when] / away[when] - 1)
            claim = (
                f"{name} corner: {other} deviates by more than {SMALL:g} "
                f"(t = {float(data.t[when]):g})"
            )
            doubt = max(float(values.std(ddof=1)) / math.sqrt(runs), 1e-12)
            findings.append(larger(claim, values.mean() - SMALL, doubt, scale=0.05, runs=runs))
    scatter = data.scatter.values
    error = scatter / math.sqrt(2 * (runs - 1))
    findings.append(
        larger(
            f"Runs scatter by less than {SMALL:g} in the first three corners",
            SMALL - scatter[:3],
            error[:3],
            scale=0.01,
            runs=runs,
        )
    )
    findings.append(
        larger(
            f"Runs scatter by more than {SMALL:g} in the fluctuating corner: {scatter[3]:.3f}",
            scatter[3] - SMALL,
            error[3],
            scale=0.02,
            runs=runs,
        )
    )
    return _judge_with_stored_words(data, *findings)


@judge_of(
    "classical",
    "gamma -> 0: gradient flow",
    "As gamma -> 0, one-pass SGD follows gradient flow",
)
def classical(data: xr.Dataset) -> Judgement:
    findings, tenth = [], {"scale": 0.1, "scale_words": "a tenth of the risk"}
    for row, k in enumerate(data.k.values):
        relative = (data.excess_risk / data.excess_risk_flow).isel(k=row, time=slice(1, None))
        slow = mean_over_runs(relative.isel(gamma=0).transpose("run", "time").values)
        claim = (
            f"k = {k}: at gamma = {float(data.gamma[0]):g} the mean of SGD follows gradient flow "
            "within 2%"
        )
        findings.append(slow.agrees(claim, 1.0, tolerance=0.02, **tenth))
        gap, claim = (
            _mean_over_last_axis(relative.isel(time=-1).values - 1),
            f"k = {k}: the gap between SGD and gradient flow is that of the ODE, within .01 + 1/d",
        )
        findings.append(
            gap.agrees(
                claim, data.gap_ode.values[row], tolerance=0.01 + 1 / data.attrs["d"], **tenth
            )
        )
        exponent = _slope(data.gamma, data.gap_ode.values[row])
        claim = f"k = {k}: the gap of the ODE vanishes like gamma (exponent {exponent:.3f})"
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
    return _judge_with_stored_words(data, *findings)


@judge_of(
    "high_dimensional",
    "d -> infinity: the ODE",
    "The deviation of SGD from the ODE is at most exp(C t) sqrt(gamma/(d p))",
)
def high_dimensional(data: xr.Dataset) -> Judgement:
    inside = data.t.values <= 5
    apart = data.deviation.values
    worst = int(np.argmax(apart.mean(axis=(0, 1)) * inside))
    ratio = apart[..., inside] / (
        data.theorem_scale.values[:, None, None] * np.exp(data.t.values[inside])
    )
    below = _mean_over_last_axis(1 - np.moveaxis(ratio, 1, -1)[:, 1:])
    claim = "The largest deviation from the ODE falls like d^-1/2"
    return _judge_with_stored_words(
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
            "The deviation is at most exp(t) sqrt(gamma/(d p)) for t <= 5",
            scale=0.2,
            scale_words="a fifth of the bound",
        ),
    )


@judge_of(
    "mean_field",
    "p -> infinity: the density of the units",
    "As p -> infinity, SGD follows the density of (m, q)",
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
            f"At t = {float(data.t[i]):g} the gap of the risk to p = infinity falls like 1/p",
            data.p,
            difference[i],
            -1.0,
            **setting,
        )
        for i in (1, 2, 3)
    ]
    claim = f"At p = {p} the risk of SGD is that of p = infinity within a fraction 2/p, at all t"
    return _judge_with_stored_words(
        data,
        *fits,
        wide.agrees(claim, 0.0, tolerance=2 / p, scale=0.5, scale_words="half of the risk"),
    )


@judge_of(
    "mean_field_high_dimension",
    "p, d -> infinity together",
    "The components of the rows outside the signals become orthogonal like p^-1/2 + d^-1/2",
)
def mean_field_high_dimension(data: xr.Dataset) -> Judgement:
    """Test the exponent of the largest entry over all times.

    The verdict also gives the exponent without the factor sqrt(log p) of p^2 random entries.
    """
    largest = data.off_diagonal.max("time").transpose("p", "run").values
    p = data.p.values
    rooted = largest / np.sqrt(np.log(p))[:, None]
    first = data.off_diagonal.isel(time=0).transpose("p", "run").values / data.scale.values[:, None]
    ours, doubt, _ = fitted_power(p, *_mean_over_last_axis(rooted)[:2])
    bound = first.mean(axis=1)
    words = (
        f"at t = 0 the largest entry is {bound[0]:.2f} to {bound[-1]:.2f} times "
        f"p^(-1/2) + d^(-1/2) for p = {p[0]} to {p[-1]}; without the factor sqrt(log p) of random "
        f"rows it falls like p^{ours:.3f}({doubt:.3f}); {data.attrs['verdict']}"
    )
    claim = "The largest entry over all times falls like p^-1/2 at d = 2p"
    result = _power(claim, p, largest, -0.5, tolerance=0.05, scale=0.5, words="p^-1/2 more or less")
    exponent = _slope(data.dimension, data.change.isel(time=-1))
    claim = (
        f"The effect of a finite d at p = infinity falls like 1/d (exponent {exponent:.2f}; "
        "not in the slides)"
    )
    return judge_claims(
        words,
        result,
        agreement(claim, exponent, 0.0, -1.0, tolerance=0.15, scale=0.5, scale_words="d^1/2"),
    )


@judge_of(
    "noise_matters",
    "the effect of the noise of SGD",
    "The noise of SGD makes runs scatter, unlike the ODE, and does not change the order of the "
    "exit time",
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
    return _judge_with_stored_words(
        data,
        larger(
            "Paths of SGD from one start scatter, unlike the ODE",
            sgd,
            sgd / math.sqrt(2 * (runs - 1)),
            scale=0.1,
            runs=runs,
        ),
        ratio.agrees(
            "Paths of the SDE scatter as much as those of SGD, within a fifth",
            0.0,
            tolerance=math.log(1.2),
            scale=math.log(4),
            scale_words="a factor 4",
        ),
        times.agrees(
            "The mean exit time of SGD is that of the ODE within 30%",
            1.0,
            tolerance=0.3,
            scale=1.0,
            scale_words="a factor 2",
        ),
        times.agrees(
            "The difference is the constant shift (not in the slides), within .03",
            shift,
            tolerance=0.03,
            scale=0.2,
            scale_words="a fifth of the exit time",
        ),
    )


@judge_of(
    "width_matters",
    "the effect of width on the exit time",
    "Overparametrisation gains a constant factor, not a power of d",
)
def width_matters(data: xr.Dataset) -> Judgement:
    findings = []
    for name, words, tolerance, scale in (
        ("annealed", "t_anl", 0.15, 0.5),
        ("quenched", "t_qnc", 0.15, 0.5),
        ("corrected", "t_qnc with nonlinear ODE and noise (not in the slides)", 0.05, 0.2),
    ):
        times = Mean(
            data.exit_time.values, data.exit_time_error.values, "independent", data.attrs["runs"]
        ).over(data[f"exit_time_{name}"].values)
        claim = f"The mean exit time is {words} within {tolerance:.0%} at all widths"
        findings.append(
            times.agrees(
                claim, 1.0, tolerance=tolerance, scale=scale, scale_words=f"{scale:g} of it"
            )
        )
    gain, exponent = data.gain.values[-1], _slope(data["size"], data.gain.values[-1])
    claim = f"The gain from width is not a power of d (exponent {exponent:.3f})"
    findings.append(
        agreement(claim, exponent, 0.0, 0.0, tolerance=0.03, scale=0.25, scale_words="d^1/4")
    )
    most = float(data.attrs["largest_gain"])
    findings.append(
        agreement(
            f"The gain tends to {most:.3g} from above",
            gain[-1] / most,
            0.0,
            1.0,
            tolerance=0.05,
            scale=1.0,
            scale_words="a factor 2",
        )
    )
    return _judge_with_stored_words(data, *findings)


@judge_of(
    "single_index",
    "samples as a function of d for information exponents 1 to 4",
    "The number of samples is n ~ d, d log d, d^2 and d^3",
)
def single_index(data: xr.Dataset) -> Judgement:
    """Test the claimed exponents after subtracting the contribution of a finite d.

    The contribution is that of the diffusion over the same d, which has the claimed exponents in
    its limit.
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
            f"exponent {kappa}: n ~ d^{value:.3f}({doubt:.3f}), to which finite d contributes "
            f"{added:+.3f}, {power} claimed"
        )
        claim = (
            f"Exponent {kappa}: n ~ d^{power}, after subtracting the contribution of finite d "
            f"({added:+.3f})"
        )
        result = Mean(value - added, doubt, runs=runs)
        findings.append(
            result.agrees(claim, power, tolerance=0.1, scale=1.0, scale_words="one power of d")
        )
        claim = f"Exponent {kappa}: finite d contributes less than {FINITE} to the exponent"
        findings.append(
            agreement(
                claim, added, 0.0, 0.0, tolerance=FINITE, scale=1.0, scale_words="one power of d"
            )
        )
    last, error = (float(data[f"{name}_1"][-1] / data.d_1[-1]) for name in ("samples", "error"))
    limit, ended = at["prefactor_1"], Mean(last, error, runs=int(data.runs_1[-1]))
    claim = "Exponent 1: n/d is its predicted limit, within 5%"
    findings.append(
        ended.agrees(
            claim, limit, tolerance=0.05 * limit, scale=0.5 * limit, scale_words="half of it"
        )
    )
    slope, doubt = at["slope_2"], (at["slope_2_high"] - at["slope_2_low"]) / (2 * 1.96)
    claim, words = (
        "Exponent 2: n/d grows like log d with the predicted constant",
        "that constant (it would be 0 if n ~ d)",
    )
    grown = Mean(slope, doubt, runs=int(np.min(data.runs_2)))
    findings.append(
        grown.agrees(claim, at["prefactor_2"], scale=at["prefactor_2"], scale_words=words)
    )
    texts.append(
        f"exponent 2: n/d has slope {slope:.2f}({doubt:.2f}) in log d, "
        f"{at['prefactor_2']:.2f} predicted"
    )
    left, scaled, runs = (
        float(data.share_fixed_lr[-1]),
        float(data.share_scaled_lr[-1]),
        int(at["runs_fixed"]),
    )
    wide = math.sqrt((left * (1 - left) + scaled * (1 - scaled) + 1 / runs) / runs)
    findings.append(
        larger(
            "Exponent 3: at a fixed learning rate fewer runs leave",
            scaled - left,
            wide,
            scale=0.3,
            runs=runs,
            scale_words=".3 of the runs",
        )
    )
    findings.append(
        count_wrong(
            "Exponent 3: at a fixed learning rate m = 0 is stable",
            int(at["growth_rate_fixed_lr"] >= 0),
            1,
        )
    )
    texts.append(
        f"exponent 3: at a fixed learning rate {left:.0%} of the runs leave at d = "
        f"{int(data.d_fixed[-1])}, {scaled:.0%} at the scaled one"
    )
    return judge_claims("; ".join(texts), *findings)


@judge_of(
    "optimal_schedules",
    "optimal learning-rate schedules",
    "Annealing gains over the best constant rate, in the ODE and in SGD (not in the slides)",
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
        findings.append(
            larger(f"{name}: the schedule gains in SGD", chain - 1, error, scale=0.1, runs=runs)
        )
        # From many random starts the ODE does not know when runs leave, and SGD gains less.
        if "random" not in case:
            claim, scale = f"{name}: SGD gains as much as the ODE, within 5%", max(gain - 1, 0.05)
            gained = Mean(chain, error, runs=runs)
            findings.append(
                gained.agrees(
                    claim, gain, tolerance=0.05 * gain, scale=scale, scale_words="the gain itself"
                )
            )
    return judge_claims(
        f"final risk with the best constant rate, divided by that with the schedule: "
        f"{'; '.join(texts)}",
        *findings,
    )
