"""Whether the data of the figures of *Escaping mediocrity* show what it claims."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.gallery.claims import finite_mean, listed, spanned

Judgement = tuple[bool | None, str]


def exits_from_one_start(data: xr.Dataset) -> Judgement:
    ode = float(data.exit_time_ODE.mean())
    parts, holds = [], True
    for name in ("SGD", "SDE"):
        times = data[f"exit_time_{name}"].values
        mean, error, left = finite_mean(times)
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
    said = ", ".join(f"{name} {spanned(value)}" for name, value in ratios.items())
    return (
        holds,
        f"measured over predicted: {said}, for p = {listed(data.p)}, d = {listed(data.d)}; quenched moves by {flat:.3f} in d",
    )


def heads(data: xr.Dataset) -> Judgement:
    exits, late = data.exit_time_ode.values, data.excess_risk_ode.values[:, :, -1]
    apart, ratio = np.abs(exits[:, 0] / exits[:, 1] - 1), late[:, 0] / late[:, 1]
    said = f"exit times of fixed and trained heads differ by at most {100 * apart.max():.1f}% (p = {listed(data.p)}, d = {data.attrs['d']})"
    return bool(
        apart.max() < 0.05 and ratio.min() > 1.5
    ), f"{said}; at the end the fixed head's risk is {spanned(ratio, 1)} times the other's"


def mean_of_runs(data: xr.Dataset) -> Judgement:
    gap = np.abs(data.excess_risk.mean("run") - data.excess_risk_ode).max("time").values
    spread = data.excess_risk.std("run").max("time").values
    first = float(data.excess_risk_ode[0, 0])
    parts = [f"p = {int(p)}: {g:.3f} from the ODE at most, runs scatter by {s:.3f}" for p, g, s in zip(data.p, gap, spread, strict=True)]
    holds = bool(np.all(gap < 2 * spread) and gap.max() < 0.1 * first)
    return holds, f"mean of {data.sizes['run']} runs at d = {data.attrs['d']} (risk {first:.2f} at the start): {'; '.join(parts)}"
