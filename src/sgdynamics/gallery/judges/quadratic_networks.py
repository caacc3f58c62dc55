"""Whether the data of the figures of *Escape dynamics and implicit bias of quadratic networks* show what it claims."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.gallery.claims import listed, spanned

Judgement = tuple[bool | None, str]
Z = 4.9  # standard errors; a false alarm in a million


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
        f"along the ODE from orthonormal rows S moves by {ode:.0e}; from Gaussian rows by {listed(gaussian.round(3))} at N = "
        f"{listed(data.N)}; SGD itself moves it by {listed(sgd.round(3))} there ({listed(expected.round(3))} expected of its noise)"
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
        f"eta, which are {spanned(slowed)} of 16/(p p*); exit times at N = {int(data.N[-1])} at most "
        f"{np.abs(last).max():.1f} from the ODE with SGD's noise"
    )
