"""Whether the data of the figures of *Stochasticity helps to navigate rough landscapes* show what it claims."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

Judgement = tuple[bool | None, str]
Z = 4.9  # standard errors; a false alarm in a million
FULL = 1000  # N of the claims


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
