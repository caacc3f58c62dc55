"""Whether the data of the figures of *High-dimensional limit theorems for SGD* show what it claims."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from scipy import stats

from sgdynamics.gallery.claims import spanned

Judgement = tuple[bool | None, str]
Z = 4.9  # standard errors; a false alarm in a million


def _likely(count: float, runs: int, p: float) -> bool:
    return bool(stats.binomtest(round(float(count)), runs, p).pvalue > 1e-6)


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
        f"at snr = 1000 optimal in {spanned(high)} of {runs} runs (3/32 = .094); at snr = 20 in {low[0]:.3f} at N = {N[0]} and "
        f"{low[-1]:.3f} at N = {N[-1]}: more succeed where N >> snr"
    )
