"""Whether the data of the figures of *Dimension-free limits* show what it claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

Judgement = tuple[bool | None, str]
Z = 4.9  # standard errors; a false alarm in a million


def _slope(x: Any, y: Any) -> float:
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.abs(np.asarray(y, dtype=float))), 1)[0])


def _said(data: xr.Dataset, holds: bool | None) -> Judgement:
    return holds, str(data.attrs["verdict"])


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
