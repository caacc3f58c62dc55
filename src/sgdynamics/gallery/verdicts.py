"""Whether the data of a figure show what the document claims: each function gives (holds, measured numbers in words).

`holds` is None where the sizes of the data cannot decide it (quick figures of claims about N = 1000 and t = 1000). Figures whose data carry
their own measured numbers in the attribute `verdict` are judged here by their variables, and speak through that attribute.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

Judgement = tuple[bool | None, str]
Z = 4.9  # standard errors; a false alarm in a million
FULL = 1000  # N of the rough landscapes' claims


def _mean_error(values: Any) -> tuple[float, float, int]:
    """Mean, standard error and number of what is finite."""
    good = np.asarray(values)[np.isfinite(values)]
    error = float(good.std(ddof=1) / math.sqrt(len(good))) if len(good) > 1 else math.nan
    return float(good.mean()) if len(good) else math.nan, error, len(good)


def _range(values: Any, digits: int = 3) -> str:
    values = np.asarray(values)[np.isfinite(values)]
    low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _slope(x: Any, y: Any) -> float:
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.abs(np.asarray(y, dtype=float))), 1)[0])


def _likely(count: float, runs: int, p: float) -> bool:
    return bool(stats.binomtest(round(float(count)), runs, p).pvalue > 1e-6)


# escaping mediocrity


def exits_from_one_start(data: xr.Dataset) -> Judgement:
    ode = float(data.exit_time_ODE.mean())
    parts, holds = [], True
    for name in ("SGD", "SDE"):
        times = data[f"exit_time_{name}"].values
        mean, error, left = _mean_error(times)
        spread = float(data[f"excess_risk_{name}"].std("run").max())
        missing = f", {len(times) - left} of {len(times)} not out yet" if left < len(times) else ""
        parts.append(f"{name} {mean / ode:.3f}({error / ode:.3f}) of the ODE's, spread of the excess risk up to {spread:.2f}{missing}")
        holds &= abs(mean / ode - 1) < 0.25 and spread > 0.1
    from sgdynamics.papers.escaping_mediocrity import stochastic_shift

    p, gamma, noise = (data.attrs[name] for name in ("p", "gamma", "noise"))
    shift = float(stochastic_shift(p, gamma, noise))
    return (
        holds,
        f"exit time at d = {data.attrs['d']}: {'; '.join(parts)}; over random starts noise brings it forward by {-shift:.3f} (printed: 0)",
    )


def exit_ratios(data: xr.Dataset) -> Judgement:
    ratios = {name: (data.measured / data[name]).values for name in ("annealed", "quenched", "corrected")}
    flat = float(np.nanmax(np.nanmax(ratios["quenched"], axis=1) - np.nanmin(ratios["quenched"], axis=1)))
    known = np.concatenate([value[np.isfinite(value)] for value in ratios.values()])
    holds = bool(np.all((known > 0.7) & (known < 1.35)) and flat < 0.25)
    said = ", ".join(f"{name} {_range(value)}" for name, value in ratios.items())
    return (
        holds,
        f"measured over predicted: {said}, for p = {_list(data.p)}, d = {_list(data.d)}; quenched moves by {flat:.3f} in d",
    )


def _list(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in np.asarray(values))


def heads(data: xr.Dataset) -> Judgement:
    exits, late = data.exit_time_ode.values, data.excess_risk_ode.values[:, :, -1]
    apart, ratio = np.abs(exits[:, 0] / exits[:, 1] - 1), late[:, 0] / late[:, 1]
    said = f"exit times of fixed and trained heads differ by at most {100 * apart.max():.1f}% (p = {_list(data.p)}, d = {data.attrs['d']})"
    return bool(
        apart.max() < 0.05 and ratio.min() > 1.5
    ), f"{said}; at the end the fixed head's risk is {_range(ratio, 1)} times the other's"


def mean_of_runs(data: xr.Dataset) -> Judgement:
    gap = np.abs(data.excess_risk.mean("run") - data.excess_risk_ode).max("time").values
    spread = data.excess_risk.std("run").max("time").values
    first = float(data.excess_risk_ode[0, 0])
    parts = [f"p = {int(p)}: {g:.3f} from the ODE at most, runs scatter by {s:.3f}" for p, g, s in zip(data.p, gap, spread, strict=True)]
    holds = bool(np.all(gap < 2 * spread) and gap.max() < 0.1 * first)
    return holds, f"mean of {data.sizes['run']} runs at d = {data.attrs['d']} (risk {first:.2f} at the start): {'; '.join(parts)}"


# effective dynamics


def spiked_matrix(data: xr.Dataset) -> Judgement:
    n, runs = data.attrs["n"], data.sizes["run"]
    below, above = (data.m.sel(snr=snr, method="nearest").values[:, -1] for snr in (0.8, 1.2))
    variance, limit = n * float(np.mean(below**2)), float(data.stationary_variance_limit[0])
    star, median = float(data.m_star[1]), float(np.median(np.abs(above)))
    up = float(np.mean(above > 0))
    holds = abs(variance - limit) < Z * limit * math.sqrt(2 / runs) and abs(median - star) < 0.05 and _likely(up * runs, runs, 0.5)
    return holds, (
        f"lambda = .8: n Var m = {variance:.2f}({limit * math.sqrt(2 / runs):.2f}) against {limit:.2f} of the "
        f"diffusion; lambda = 1.2: median |m| = {median:.3f} against sqrt(lambda - 1) = {star:.3f}, {up:.0%} at +; {runs} runs, n = {n}"
    )


def binary_mixture(data: xr.Dataset) -> Judgement:
    runs, last = data.sizes["run"], float(data.fraction[-1])
    measured, limit = float(data.rho_deviation_chain_noiseless[-1, 0]), float(data.rho_deviation_stationary[0])
    others = data.m_end.values[~data.optimal.values[:, -1].astype(bool), :, 0]
    ring = math.sqrt(data.attrs["ring_radius_squared"])
    away = float(np.abs(np.linalg.norm(others, axis=1) - ring).max())
    attract = away < 0.5 * ring and data.attrs["changed_late"] == 0
    found = _likely(last * runs, runs, 0.5) and abs(measured / limit - 1) < Z / math.sqrt(2 * runs) + 0.1 and _rank(data) == 1
    return bool(found and not attract), (
        f"optimal in {last:.3f}({math.sqrt(last * (1 - last) / runs):.3f}) of {runs} runs (1/2 predicted); fluctuations "
        f"{measured:.3f} along the radius against {limit:.3f} of the SDE, of rank {_rank(data)}; but the "
        f"open arcs attract (printed: unstable): the other {1 - last:.0%} of the runs end at most {away:.2f} from them "
        f"(radius {ring:.2f}) and stay; Prop. 4.3 has a sign wrong"
    )


def _rank(data: xr.Dataset) -> int:
    values = np.linalg.eigvalsh(data.covariance_chain.values)
    return int(np.sum(values > 1e-8 * values.max()))


def xor_mixture(data: xr.Dataset) -> Judgement:
    runs, last = data.sizes["run"], float(data.fraction[-1])
    fits = [name for name, p in (("3/32 (the right value)", 3 / 32), ("29/32 (printed)", 29 / 32)) if _likely(last * runs, runs, p)]
    return "29/32 (printed)" in fits, (
        f"optimal in {last:.3f}({math.sqrt(last * (1 - last) / runs):.3f}) of {runs} runs, compatible with "
        f"{' and '.join(fits) or 'neither'}; the caption's 29/32 = .906 is the share of sub-optimal runs; "
        f"fluctuations about the two arcs are of rank {_rank(data)}, as said"
    )


def order_of_limits(data: xr.Dataset) -> Judgement:
    runs, N = data.attrs["runs"], data.N.values
    high, low = data.fraction.sel(snr=1000.0).values, data.fraction.sel(snr=20.0).values
    holds = all(_likely(value * runs, runs, 3 / 32) for value, size in zip(high, N, strict=True) if size <= 200)
    return bool(holds and low[-1] > high[-1]), (
        f"at snr = 1000 optimal in {_range(high)} of {runs} runs (3/32 = .094); at snr = 20 in {low[0]:.3f} at N = {N[0]} and "
        f"{low[-1]:.3f} at N = {N[-1]}: more succeed where N >> snr"
    )


# quadratic networks


def runs_on_the_ode(data: xr.Dataset) -> Judgement:
    at = data.attrs
    return bool(at["z_rms"] < 2.5 and abs(at["shift_t"]) < 1), (
        f"means of {at['runs']} runs at N = {at['N']} lie {at['z_rms']:.2f} standard errors (rms) from the ODE, 1.13 where it is their "
        f"mean; the error curve is {at['shift_t']:.3f} ahead in t at half of the fall, as SGD's noise "
        f"adds {at['noise_share']:.2f}/N to the overlaps"
    )


def best_rates(data: xr.Dataset) -> Judgement:
    at, mean = data.attrs, data.alpha_c.mean("start", skipna=False).values
    lowest = int(np.nanargmin(mean))
    valley = 0 < lowest < int(np.isfinite(mean).sum()) - 1
    short = (1 - data.eta_best / data.eta_formula).values
    return bool(valley and at["slope"] > 10 * at["slope_error"]), (
        f"alpha_c is least at eta = {float(data.eta_best[0]):.3f} for p = 3; best eta = {at['slope']:.4f}({at['slope_error']:.4f}) p "
        f"{at['intercept']:+.3f}({at['intercept_error']:.3f}): linear, not proportional (a power would be p^{at['power']:.2f}); the "
        f"closed optimal_rate (epsilon -> 0) is {100 * short.min():.0f} to {100 * short.max():.0f}% above"
    )


def predicted_solution(data: xr.Dataset) -> Judgement:
    own, other = float(data.distance[0, -1]), float(data.distance[1:, -1].min())
    off = float(np.abs(data.distance[1:, -1] / data.predicted_end[1:] - 1).max())
    risk = float(data.risk[:, -1].max())
    return bool(own < 0.05 and other > 0.5 and off < 0.01 and risk < 1e-3), (
        f"at t = {float(data.t[-1]):g} the start of the prediction is at distance {own:.4f}, the others at {other:.2f} or more, where "
        f"their own predictions say to {100 * off:.1f}%; all errors below {risk:.1e}. The approach is not exponential but like 1/t"
    )


def conserved(data: xr.Dataset) -> Judgement:
    ode, gaussian, sgd = float(data.moved_ode.max()), data.moved_gaussian[:, -1].values, data.moved_sgd[:, -1].values
    expected = data.moved_expected.values
    return bool(ode < 1e-8), (
        f"along the ODE from orthonormal rows S moves by {ode:.0e}; from Gaussian rows by {_list(gaussian.round(3))} at N = "
        f"{_list(data.N)}; SGD itself moves it by {_list(sgd.round(3))} there ({_list(expected.round(3))} expected of its noise)"
    )


def counted(data: xr.Dataset) -> Judgement:
    known = np.isfinite(data.formula.values)
    wrong = int((data.formula.values != data.counted.values)[known].sum())
    return wrong == 0, f"{int(known.sum()) - wrong} of {int(known.sum())} numbers agree with the rank counted at a random point"


def escape_rates(data: xr.Dataset) -> Judgement:
    z = (data.rate_chain - data.rate_ode).values / data.rate_chain_error.values
    slowed = (data.rate_ode / data.rate_flow).values
    last = data.z[:, -1].values
    return bool(np.abs(z).max() < Z and np.abs(last).max() < Z), (
        f"rates from the chain's exit times are at most {np.abs(z).max():.1f} standard errors from those on the plateau at this "
        f"eta, which are {_range(slowed)} of 16/(p p*); exit times at N = {int(data.N[-1])} at most "
        f"{np.abs(last).max():.1f} from the ODE with SGD's noise"
    )


# rough landscapes: the numbers are in the data's own verdict


def _said(data: xr.Dataset, holds: bool | None, full: bool = False) -> Judgement:
    """The data's own words; `full`: what does not show at small N is not decided there."""
    small = full and float(np.max(data.attrs.get("N", data.coords.get("N", FULL)))) < FULL
    return (None if small and not holds else holds), str(data.attrs["verdict"])


def warm_starts(data: xr.Dataset) -> Judgement:
    share = (data.m_seed[:, :, -1] > 0.99).mean("run").values
    return _said(data, bool(share[2] == 1 and share[0] > 0 and share[1] < 1 and _near(data)), full=True)


def _near(data: xr.Dataset) -> bool:
    """Averages and DMFT agree within errors, or to 2%."""
    return all(np.nanmax(np.abs(data[f"{name}_z"])) < Z or np.nanmax(np.abs(data[f"{name}_gap"])) < 0.02 for name in ("m", "loss"))


def follows_dmft(data: xr.Dataset) -> Judgement:
    return _said(data, _near(data))


def recovered_shares(data: xr.Dataset) -> Judgement:
    found, count, claimed = data.recovered.values, data.attrs["runs"], np.array([0.09, 0.30, 0.99])
    if data.attrs["N"] < FULL or float(data.t[-1]) < FULL:
        return None, str(data.attrs["verdict"])
    error = np.sqrt(np.maximum(claimed * (1 - claimed), 0.01) * 2 / count)  # both are counts
    return _said(data, bool(np.all(np.abs(found - claimed) < 3 * error)))


def plateaus(data: xr.Dataset) -> Judgement:
    gd, sgd, persistent = data.plateau.values
    return _said(data, bool(gd > sgd >= persistent), full=True)


def intermediate_noise(data: xr.Dataset) -> Judgement:
    exploded = float(data.exploded.values[0])
    if exploded > 0:  # the printed learning rate at l = .01, which no larger size rescues
        return False, f"as printed {exploded:.0%} of the runs at l = .01 explode; {data.attrs['verdict']}"
    return _said(data, "at an end" not in data.attrs["verdict"], full=True)


def random_starts(data: xr.Dataset) -> Judgement:
    low = data.m.sel(algorithm="GD").values[:, -1]
    times = data.time_to_recover.values
    return _said(data, bool(np.isfinite(times).all() and low[-1] < low[0] and times[-1] < 3 * times[0]), full=True)


def ridges(data: xr.Dataset) -> Judgement:
    end, gd = data.mse.isel(time=-1), data.mse.sel(algorithm="GD").values
    formula = float(np.abs(data.mse - data.mse_formula_runs).max()) < 0.03 if "mse_formula_runs" in data else False
    gains = float(end.sel(algorithm="SGD", ridge=1.0)) < float(end.sel(algorithm="SGD", ridge=0.0))
    best = all(float(end.sel(algorithm="p-SGD", ridge=r)) <= float(end.sel(ridge=r).min()) + 1e-12 for r in (0.0, 0.1))
    rise = [float(np.max(gd[i] - np.minimum.accumulate(gd[i]))) for i in range(2)]
    return _said(data, bool(formula and gains and best and min(rise) > 0.02), full=True)


def rescaled_gradient(data: xr.Dataset) -> Judgement:
    end = data.mse.isel(time=-1)
    better = {
        name: float(end.sel(algorithm=name, gradient="rescaled") - end.sel(algorithm=name, gradient="not rescaled"))
        for name in ("SGD", "p-SGD")
    }
    return _said(data, better["p-SGD"] < 0 < better["SGD"], full=True)


def small_rates(data: xr.Dataset) -> Judgement:
    gap = {name: data.gap.sel(algorithm=name).values for name in ("SGD", "p-SGD")}
    return _said(data, bool(gap["SGD"][-1] < 0.3 * gap["SGD"][0] and gap["p-SGD"][-1] > 3 * gap["SGD"][-1]))


def persistence(data: xr.Dataset) -> Judgement:
    early, stuck = data.early.values, data["plateau"].values if "plateau" in data else np.array([0.0, math.inf])
    return _said(data, bool(early[-1] < early[0] and stuck[-1] <= stuck[0]), full=True)


# dimension-free limits


def classical(data: xr.Dataset) -> Judgement:
    gap = data.excess_risk.mean("run") / data.excess_risk_flow - 1
    exponents = [_slope(data.gamma, row) for row in data.gap_ode.values]
    return _said(data, bool(np.abs(gap[:, 0]).max() < 0.05 and max(abs(e - 1) for e in exponents) < 0.15))


def high_dimensional(data: xr.Dataset) -> Judgement:
    share = (data.mean_deviation / data.theorem_scale).values
    return _said(data, bool(abs(_slope(data.d, data.mean_deviation) + 0.5) < 0.15 and share.max() < 3))


def mean_field(data: xr.Dataset) -> Judgement:
    late = data.gap.isel(time=-1).values
    return _said(data, bool(np.abs(late[-1]) < np.abs(late[0]) and abs(_slope(data.p, late) + 1) < 0.35))


def mean_field_high_dimension(data: xr.Dataset) -> Judgement:
    typical = data.off_diagonal_rms.mean("run").isel(time=-1).values
    largest = (data.off_diagonal.mean("run") / data.scale).values
    return _said(data, bool(abs(_slope(data.p, typical) + 0.5) < 0.2 and largest.max() < 3))


def noise_matters(data: xr.Dataset) -> Judgement:
    ratio, shift, error = (data[name].values for name in ("exit_ratio", "exit_ratio_shift", "exit_ratio_error"))
    return _said(data, bool(ratio.min() > 0.5 and ratio.max() < 1.1 and np.all(np.abs(ratio - shift) < Z * error + 0.03)))


def width_matters(data: xr.Dataset) -> Judgement:
    ratios = np.stack([(data.exit_time / data[f"exit_time_{name}"]).values for name in ("annealed", "quenched")])
    gain = data.gain.values[-1]
    return _said(data, bool(ratios.min() > 0.7 and ratios.max() < 1.35 and gain[-1] <= gain[0] + 0.1))


def single_index(data: xr.Dataset) -> Judgement:
    at, parts, holds = data.attrs, [], True
    for kappa, power in ((1, 1), (3, 2), (4, 3)):
        value, expected = at[f"exponent_{kappa}"], at[f"exponent_{kappa}_diffusion"]
        error = (at[f"exponent_{kappa}_high"] - at[f"exponent_{kappa}_low"]) / (2 * 1.96)
        parts.append(
            f"exponent {kappa}: n ~ d^{value:.3f}({error:.3f}), the diffusion has {expected:.2f} over these d and {power} in the limit"
        )
        holds &= abs(value - expected) < Z * error + 0.05
    slope = f"{at['slope_2']:.2f} ({at['slope_2_low']:.2f} to {at['slope_2_high']:.2f})"
    doubt = (at["slope_2_high"] - at["slope_2_low"]) / (2 * 1.96)
    holds &= abs(at["slope_2"] - at["prefactor_2"]) < Z * doubt
    left = float(data.share_fixed_lr.values[-1])
    parts.append(f"exponent 2: n/d has slope {slope} in log d, {at['prefactor_2']:.2f} predicted")
    parts.append(f"at a fixed rate exponent 3 leaves in {left:.0%} of the runs at d = {int(data.d_fixed[-1])}")
    return bool(holds and at["growth_rate_fixed_lr"] < 0), "; ".join(parts)


def optimal_schedules(data: xr.Dataset) -> Judgement:
    at, parts, holds = data.attrs, [], True
    for case in [name.removeprefix("best_constant_lr_") for name in at if name.startswith("best_constant_lr_")]:
        gain, chain, error = at[f"gain_{case}"], at[f"gain_chain_{case}"], at[f"gain_chain_error_{case}"]
        parts.append(f"{case.replace('_', ' ')}: {gain:.3f} in the ODE, {chain:.3f}({error:.3f}) at d = {at['dimension']}")
        holds &= gain > 1 and abs(chain - gain) < Z * error
    return bool(holds), f"final risk of the best constant rate over that of the schedule: {'; '.join(parts)}"
