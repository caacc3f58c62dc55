"""Judges of the figures of *Escape dynamics and implicit bias of quadratic networks*."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Judgement,
    Mean,
    agreement,
    count_wrong,
    fitted_power,
    format_list,
    format_range,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

ON_THE_ODE = 0.05  # tolerance of "closely align": overlaps and norms are of order one
EXPONENT = (
    0.25  # tolerance of the exponent of the best rate in p, at widths where its intercept matters
)
LINE = 0.03  # relative distance from a straight line up to which a best rate shows "a linear trend"
POWER_SEEN = 1.5  # power of p that must be distinguished from a straight line
RATE = 0.1  # relative tolerance of 16/(p p*): eta = .02 p slows it by 5%, a finite N by a few more


@judge_of(
    "figure_1",
    "all overlaps and the error: ODE and SGD, p = 6, p* = 3",
    "Runs of SGD lie on the ODE",
)
def runs_on_the_ode(data: xr.Dataset) -> Judgement:
    """Compare means of runs with the ODE at the save points that are stored run by run."""
    at = data.attrs
    save_indices = np.searchsorted(data.t.values, data.kept_t.values - 1e-9)
    upper = np.triu_indices(data.sizes["unit"])
    findings = []
    largest = {}
    for name, value, tolerance in (
        ("rho", "Overlaps rho", ON_THE_ODE),
        ("Q", "Overlaps Q", ON_THE_ODE),
        ("risk", "Risk", 0.02),
    ):
        values, ode = data[f"{name}_runs"].values, data[f"{name}_ode"].values[save_indices]
        if name == "Q":
            values, ode = values[:, :, *upper], ode[:, *upper]
        mean = mean_over_runs(values)
        largest[name] = float(np.abs(mean.value - ode).max())
        claim = f"{value}: the mean of the runs is that of the ODE, within {tolerance:g}"
        findings.append(mean.agrees(claim, ode, tolerance=tolerance, scale=2 * tolerance))
    return judge_claims(
        f"means of {at['runs']} runs at N = {at['N']} deviate from the ODE by at most "
        f"{largest['rho']:.3f} (rho), {largest['Q']:.3f} (Q) and {largest['risk']:.3f} (risk); the "
        f"error curve is {at['shift_t']:.3f} ahead in t at half of its fall; the noise of SGD adds "
        f"{at['noise_share']:.3f}/N to the variance of the overlaps",
        *findings,
    )


@judge_of(
    "figure_2",
    "samples needed to leave as a function of eta, and the best eta as a function of p",
    "There is a best eta, and it is linear in p",
)
def best_rates(data: xr.Dataset) -> Judgement:
    """Test for a minimum in eta, and for best rates on a straight line within 3%, unlike p^1.5."""
    at, alpha = data.attrs, data.alpha_c.values
    converged = np.isfinite(alpha).all(axis=1)
    good, etas = alpha[converged], data.eta.values[converged]
    lowest = int(np.argmin(good.mean(axis=1)))
    ends = mean_over_runs((good[[0, -1]] - good[lowest]).T)
    p, best, error = data.p.values.astype(float), data.eta_best.values, data.eta_best_error.values
    line = _line(p, best)
    exponent, exponent_error, _ = fitted_power(p, best, error)
    bent = p**POWER_SEEN
    bend = float(np.sqrt(np.mean((1 - _line(p, bent) / bent) ** 2)))
    on_line = Mean(best, error, "independent").over(line)
    deviation = np.abs(on_line.value - 1).max()
    short = (1 - data.eta_best / data.eta_formula).values
    share = best / p
    exact = (
        "curved beyond its errors" if at["chi2_per_freedom"] > 5 else "straight within its errors"
    )
    return judge_claims(
        f"alpha_c is smallest at eta = {best[0]:.3f} for p = {p[0]:g}; best eta = "
        f"{at['slope']:.4f}({at['slope_error']:.4f}) p "
        f"{at['intercept']:+.3f}({at['intercept_error']:.3f}), within {100 * deviation:.1f}% of a "
        f"straight line and {exact} (chi2 {at['chi2_per_freedom']:.1f} per degree of freedom); "
        f"eta/p goes from {share[0]:.3f} to {share[-1]:.3f} (a power would be p^{exponent:.2f}); "
        f"the closed optimal_rate (epsilon -> 0) is {100 * short.min():.0f} to "
        f"{100 * short.max():.0f}% larger",
        (ends if 0 < lowest < len(etas) - 1 else ends._replace(value=0 * ends.value)).is_above(
            f"alpha_c has an inner minimum: it is larger at eta = {etas[0]:.3f} and {etas[-1]:.3f} "
            f"than at {etas[lowest]:.3f}",
            scale=0.1 * float(good[lowest].mean()),
            scale_words="a tenth of the smallest alpha_c",
        ),
        on_line.agrees(
            f"The best eta is a straight line in p, within {100 * LINE:g}%",
            1.0,
            scale=bend,
            scale_words=f"the distance of p^{POWER_SEEN:g} from a line ({100 * bend:.0f}%)",
            tolerance=LINE,
        ),
        Mean(exponent, exponent_error).agrees(
            "The best eta grows with p like a line that starts near 0: exponent 1, within "
            f"{EXPONENT:g}",
            1.0,
            tolerance=EXPONENT,
            scale=0.5,
            scale_words="1/2 (p^1.5 or sqrt(p))",
        ),
    )


def _line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The straight line with the smallest mean square of relative deviations from y."""
    design = np.stack([np.ones(len(x)), x], axis=1)
    result = np.linalg.lstsq(design / y[:, None], np.ones(len(x)), rcond=None)[0]
    return design @ result


@judge_of(
    "figure_3",
    "distance to the predicted solution",
    "The start predicts which zero-error solution is reached",
)
def predicted_solution(data: xr.Dataset) -> Judgement:
    """Compare where each start ends with the prediction from it, along the ODE without noise.

    The distance to the prediction vanishes as 1/t.
    """
    own, apart = data.own_distance[:, -1].values, data.predicted_end[1:].values
    other, law = data.distance[1:, -1].values, float(data.distance_law[-1])
    risk, risk_law = data.risk[:, -1].values, float(data.risk_law[-1])
    half = int(np.searchsorted(data.t.values, data.t.values[-1] / 2))
    decay = np.log(own / data.own_distance[:, half].values).mean() / math.log(
        float(data.t[-1] / data.t[half])
    )
    return judge_claims(
        f"at t = {float(data.t[-1]):g} each start is at most {own.max():.4f} from the solution "
        f"predicted from it ({law:.4f} by the law 1/t), the others {other.min():.2f} or more from "
        "that of the first, which agrees with their own predictions within "
        f"{100 * np.abs(other / apart - 1).max():.1f}%; all errors are below {risk.max():.1e}; the "
        f"distance falls like t^{decay:.2f} over the last half of the time",
        agreement(
            "Each start ends at the solution predicted from it",
            own,
            0.0,
            0.0,
            tolerance=0.02,
            scale=0.05,
            scale_words=".05",
        ),
        Mean(other / apart, 0.0).agrees(
            "Uncorrelated starts end elsewhere, at the distance between the predictions",
            1.0,
            tolerance=0.01,
            scale=0.05,
            scale_words="5% of the distance",
        ),
        larger("The solutions of different starts differ", apart, 0.0, scale=0.5),
        agreement(
            "All starts reach zero error",
            risk,
            0.0,
            0.0,
            tolerance=2 * risk_law,
            scale=0.01,
            scale_words=".01 (the error starts at 1)",
        ),
    )


@judge_of(
    "figure_4",
    "the conserved matrix S",
    "S is constant during learning (ODE); SGD changes it by its noise alone (not in the paper)",
)
def conservation(data: xr.Dataset) -> Judgement:
    """Test that S is constant along the ODE, and that SGD moves it only by its noise."""
    ode, gaussian, sgd = (
        float(data.moved_ode.max()),
        data.moved_gaussian[:, -1].values,
        data.moved_sgd[:, -1].values,
    )
    expected = data.moved_expected.values
    gap = mean_over_runs(data.moved_gap.values.T)
    return judge_claims(
        f"along the ODE from orthonormal rows S moves by {ode:.0e}; SGD itself moves it at any N: "
        f"by {format_list(sgd.round(3))} at N = {format_list(data.N)}, where the noise in its "
        f"overlaps predicts {format_list(expected.round(3))}; from Gaussian rows the ODE moves it "
        f"by {format_list(gaussian.round(3))}",
        agreement(
            "S is constant along the ODE",
            ode,
            0.0,
            0.0,
            tolerance=1e-8,
            scale=1e-3,
            scale_words=".001 of its entries",
        ),
        gap.over(expected).agrees(
            "SGD moves S as much as its own noise predicts, within 10%",
            0.0,
            tolerance=0.1,
            scale=0.5,
            scale_words="half of the expected motion",
        ),
    )


@judge_of(
    "figure_5",
    "degrees of freedom as a function of the width",
    "The degrees of freedom are N p - p (p - 1)/2 up to p = N and N (N + 1)/2 beyond",
)
@judge_of(
    "figure_6",
    "dimension of the solution manifold",
    "The dimension is p (p - 1)/2 - (p - m)(p - m - 1)/2 with m = min(p*, N)",
)
def dimension_counts(data: xr.Dataset) -> Judgement:
    """Compare closed formulas with ranks that are counted at a random point."""
    is_finite = np.isfinite(data.formula.values)
    wrong = int((data.formula.values != data.counted.values)[is_finite].sum())
    total = int(is_finite.sum())
    return judge_claims(
        f"{total - wrong} of {total} numbers agree with the rank counted at a random point",
        count_wrong("The formula gives the rank at a random point", wrong, total),
    )


@judge_of(
    "escape_times",
    "escape times as a function of the width (not in the paper)",
    "More students change only the prefactor of (13), not the rate 16/(p p*)",
)
def escape_rates(data: xr.Dataset) -> Judgement:
    """Compare rates of escape with 16/(p p*) by the slopes dt/dlog N = 1/rate.

    The errors of these slopes are normal.
    """
    p, star = data.p.values.astype(float), data.p_star.values.astype(float)
    claimed = 16 / (p * star)
    slope, error = (
        1 / data.rate_chain.values,
        data.rate_chain_error.values / data.rate_chain.values**2,
    )
    share = 1 / (slope * claimed)
    runs = int(data.attrs["runs"])
    late = Mean(data.gap[:, -1].values, data.gap_error[:, -1].values, "independent", runs).over(
        data.t_noisy[:, -1].values
    )
    rates = Mean(slope * claimed, error * claimed, "independent", runs)
    slowed = (data.rate_ode.values / claimed).min()
    return judge_claims(
        f"rates from escape times of the exact chain are {format_list(share.round(3))} of 16/(p "
        f"p*) for (p, p*) = {', '.join(f'({a:g}, {b:g})' for a, b in zip(p, star, strict=True))} "
        f"(errors {format_range(error / slope)}); eta = {data.attrs['eta_over_p']:g} p alone slows "
        f"them to {slowed:.3f}; escape times at N = {int(data.N[-1])} are "
        f"{format_list((1 + late.value).round(3))} of those of the ODE with the noise of SGD",
        rates.agrees(
            f"Escape times grow with log N at the rate 16/(p p*), within {100 * RATE:g}%",
            1.0,
            tolerance=RATE,
            scale=0.25,
            scale_words="a quarter of the rate",
        ),
        _per_student(star, rates).agrees(
            "The rate in t/p does not depend on p: only the prefactor does",
            0.0,
            tolerance=0.05,
            scale=0.5,
            scale_words="half of the rate",
        ),
        late.agrees(
            "Escape times at the largest N are those of the ODE with the noise of SGD in the "
            "overlaps, within 3%",
            0.0,
            tolerance=0.03,
            scale=0.15,
            scale_words="15% of the time",
        ),
    )


def _per_student(star: np.ndarray, rates: Mean) -> Mean:
    """Differences of rates between the narrowest and the widest student of each teacher."""
    pairs = [
        (value[0], value[-1])
        for value in (np.flatnonzero(star == entry) for entry in np.unique(star))
        if len(value) > 1
    ]
    first, last = np.array(pairs).T
    return Mean(
        rates.value[last] - rates.value[first],
        np.hypot(rates.error[first], rates.error[last]),
        runs=rates.runs,
    )
