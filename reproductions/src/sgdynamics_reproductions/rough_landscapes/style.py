"""Common functions of the figures: runs and DMFT in the units of the paper, and averages."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics import DMFT, simulate, solve_dmft
from sgdynamics.papers.rough_landscapes import Setting, fraction_recovered
from sgdynamics.papers.rough_landscapes.formulas import THRESHOLD
from sgdynamics_reproductions import pieces

REPLICATES = 8  # replicates of DMFT, which give its standard errors
# N from which data sets are stored in float16, because reading them dominates the time of a run.
HALF_PRECISION_FROM = 500
HIGH_OVERLAP = 0.9  # |m| above which a run or a median has recovered the signal in figure 7
RECOVERED = 0.99  # |m| of a recovered signal; the loss may still be above its threshold
ALGORITHMS = ("GD", "SGD", "p-SGD")
COLORS = {"GD": "C3", "SGD": "C2", "p-SGD": "C0", "Langevin": "C1"}
LINES = {"GD": "-", "SGD": ":", "p-SGD": "--", "Langevin": "-."}
MARKS = {"GD": "^", "SGD": "s", "p-SGD": "o"}
NAMES = {"GD": "GD", "SGD": "SGD", "p-SGD": "persistent SGD", "Langevin": "Langevin"}
# Difference of the seeds of successive batches of runs. All other seeds of a figure are less than
# 300 above its own seed.
BATCH_SEED_STEP = 1000
UNITS = (
    "those of the paper: t = eta steps, gradient summed over the samples, mean loss of (h^2 -"
    " h0^2)^2/4"
)


def log_times(end: float, points: int, grid: float = 0.01) -> np.ndarray:
    """Return 0 and times that are equally spaced in log t, rounded to multiples of `grid`."""
    steps = np.unique(np.round(np.geomspace(1, end / grid, points)).astype(np.int64))
    return np.concatenate([[0.0], steps * grid])


def batch_seeds(seed: int, batches: int) -> range:
    """Return the seeds of several batches of runs.

    The first seed does not depend on the number of batches, so that stored batches stay valid.
    """
    return range(seed, seed + BATCH_SEED_STEP * batches, BATCH_SEED_STEP)


def runs_of(
    setting: Setting,
    t: np.ndarray,
    dimension: int,
    seed: int,
    runs: int | None = None,
    shared_data: bool = False,
) -> xr.Dataset:
    """Simulate a setting; return m, q and the mean loss (20), of shape (run, time), in float32.

    By default each run has its own data set. Large data sets are stored in float16, and their
    labels are computed from the rounded inputs. `runs` is only used for a setting without a
    dimension, whose start has overlaps of exactly m0.

    A run whose loss is below the threshold has recovered the signal. It stops there and keeps its
    values. A run that diverges is NaN from then on.
    """
    dtype = "float16" if dimension >= HALF_PRECISION_FROM else "float32"
    options: dict[str, Any] = {
        "steps": setting.steps(t),
        "dimension": dimension,
        "runs": runs,
        "seed": seed,
        "shared_data": shared_data,
    }
    options |= {"method": "direct", "dtype": dtype, "stop_at": THRESHOLD / setting.loss_factor}
    call = {
        "problem": setting.problem,
        "algorithm": setting.algorithm,
        "M": setting.start.M_blocks,
        "Q": setting.start.Q_blocks,
        "t": t,
        **options,
    }
    return pieces.compute_piece(
        f"runs-{dimension}", call, partial(_run, setting, t, options), resumes=True
    )


def _run(
    setting: Setting, t: np.ndarray, options: dict[str, Any], **checkpointing: Any
) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the figures count divergent runs
        result = simulate(
            setting.problem, setting.algorithm, setting.start, **options, **checkpointing
        )
    return xr.Dataset(
        {
            "m": (
                ("run", "time"),
                result["M"].values[:, :, 0, 0],
                {"long_name": "magnetization m"},
            ),
            "q": (("run", "time"), result["Q"].values[:, :, 0, 0], {"long_name": "norm q"}),
            "loss": (
                ("run", "time"),
                setting.loss_factor * result["train_risk"].values,
                {"long_name": "mean training loss"},
            ),
        },
        {"t": ("time", t)},
    )


def theory_of(setting: Setting, t: np.ndarray, paths: int, seed: int) -> xr.Dataset:
    """Solve DMFT at the same finite eta; return m and loss over time with standard errors."""
    options: dict[str, Any] = {
        "steps": setting.steps(t),
        "paths": paths,
        "replicates": REPLICATES,
        "seed": seed,
        "dtype": "float32",
    }
    call = {
        "problem": setting.problem,
        "algorithm": setting.algorithm,
        "M": setting.start.M_blocks,
        "Q": setting.start.Q_blocks,
        "t": t,
        **options,
    }
    return pieces.compute_piece("theory", call, partial(_solve, setting, t, options))


def _solve(setting: Setting, t: np.ndarray, options: dict[str, Any]) -> xr.Dataset:
    arguments = {name: value for name, value in options.items() if name != "dtype"}
    method = DMFT(dtype=options["dtype"])
    result = solve_dmft(
        setting.problem, setting.algorithm, setting.start, method=method, **arguments
    ).isel(run=0)
    half = setting.loss_factor
    return xr.Dataset(
        {
            "m": ("time", result["M"].values[:, 0, 0]),
            "m_error": ("time", result["M_standard_error"].values[:, 0, 0]),
            "loss": ("time", half * result["train_risk"].values),
            "loss_error": ("time", half * result["train_risk_standard_error"].values),
        },
        {"t": ("time", t)},
    )


def average(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over runs and its standard error, without the runs that have diverged."""
    array, axis = values.values, values.dims.index("run")
    count = np.maximum(np.isfinite(array).sum(axis=axis), 1)
    return np.nanmean(array, axis=axis), np.nanstd(array, axis=axis) / np.sqrt(
        np.maximum(count - 1, 1)
    )


def quartiles(curves: np.ndarray) -> np.ndarray:
    """Lower and upper quartile of the runs (..., run, time), of shape (..., quartile, time).

    Runs that have diverged do not count. The quartiles are NaN where no run is left.
    """
    is_finite = np.isfinite(curves).any(axis=-2, keepdims=True)
    return np.where(
        is_finite,
        np.moveaxis(np.nanquantile(np.where(is_finite, curves, 0.0), [0.25, 0.75], axis=-2), 0, -2),
        np.nan,
    )


def share_text(loss: xr.DataArray) -> str:
    """Describe the share of runs whose loss is below the threshold at the end."""
    share, error = fraction_recovered(loss.isel(time=-1).values)
    return f"{share:.1%} ({error:.1%})"


def compare_with_dmft(theory: xr.Dataset, runs: xr.Dataset) -> xr.Dataset:
    """Compare averages of the runs with DMFT, and compute their gaps in standard errors.

    The result also contains the correlations between the times, over the runs.
    """
    variables: dict[str, Any] = {}
    for name in ("m", "loss"):
        mean, error = average(runs[name])
        correlation = np.nan_to_num(
            np.ma.corrcoef(np.ma.masked_invalid(runs[name].values), rowvar=False).filled(0.0)
        )
        np.fill_diagonal(correlation, 1.0)
        # Both are computed in float32. At the start, where the runs are equal, the two differ by
        # rounding errors only.
        rounding = np.finfo(np.float32).eps * np.abs(mean)
        both = np.sqrt(error**2 + theory[f"{name}_error"].values ** 2 + rounding**2)
        gap = mean - theory[name].values
        variables |= {
            f"{name}_mean": ("time", mean, {"long_name": f"average {name} of the runs"}),
            f"{name}_error": ("time", error, {"long_name": "its standard error"}),
            f"{name}_dmft": ("time", theory[name].values, {"long_name": f"{name} by DMFT"}),
            f"{name}_dmft_error": (
                "time",
                theory[f"{name}_error"].values,
                {"long_name": "its standard error"},
            ),
            f"{name}_gap": ("time", gap, {"long_name": "runs less DMFT"}),
            f"{name}_z": (
                "time",
                gap / np.where(both > 0, both, np.inf),
                {"long_name": "the same in standard errors"},
            ),
            f"{name}_correlation": (
                ("time", "time_other"),
                correlation,
                {"long_name": f"correlation of {name} among the runs"},
            ),
        }
    return xr.Dataset(variables, {"t": theory["t"]})


def gap_text(data: xr.Dataset) -> str:
    """Describe the largest gaps between runs and DMFT."""
    texts = []
    for name in ("m", "loss"):
        gap, z = np.abs(data[f"{name}_gap"].values), np.abs(data[f"{name}_z"].values)
        texts.append(f"{name} {gap.max():.4f} (at most {z.max():.1f} standard errors)")
    return ", ".join(texts)


def draw_comparison(
    ax: Axes, data: xr.Dataset, name: str, stride: int, labels: bool = True
) -> None:
    """Draw runs as grey dots with error bars, and DMFT as a red line with its standard error."""
    t, mean, error, line = (
        data[key].values for key in ("t", f"{name}_mean", f"{name}_error", f"{name}_dmft")
    )
    chosen = slice(None, None, stride)
    ax.errorbar(
        t[chosen],
        mean[chosen],
        error[chosen],
        fmt="o",
        ms=4,
        lw=1,
        color="0.55",
        label="average of runs" if labels else None,
        zorder=1,
    )
    ax.plot(t, line, color="C3", lw=1.5, label="DMFT" if labels else None, zorder=2)
    spread = data[f"{name}_dmft_error"].values
    ax.fill_between(t, line - spread, line + spread, color="C3", alpha=0.25, lw=0, zorder=0)


def figure(columns: float, rows: float) -> Any:
    """Make a figure for this many panels, without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(3.6 * columns, 2.9 * rows + 0.3), layout="constrained")


def threshold_line(ax: Axes) -> None:
    """Draw the loss below which a run has recovered the signal."""
    ax.axhline(THRESHOLD, color="0.6", lw=0.8, ls="-", zorder=0)


def crossing(t: np.ndarray, values: np.ndarray, level: float) -> float:
    """First time at which a curve is at the level or above, NaN if it never is."""
    above = np.flatnonzero(values >= level)
    return float(t[above[0]]) if above.size else math.nan


def plateau_counts(t: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the save points of each run on a plateau, and all save points without recovery.

    A run is on a plateau at t > 1 if it has not recovered and |m| changes by less than 0.002
    between t and 1.2 t.
    """
    quiet, unrecovered = np.zeros(len(m)), np.zeros(len(m))
    for start in np.flatnonzero((t > 1) & (1.2 * t < t[-1])):
        later = int(np.searchsorted(t, 1.2 * t[start]))
        open_runs = m[:, start] < RECOVERED
        quiet += open_runs & (np.ptp(m[:, start : later + 1], axis=1) < 0.002)
        unrecovered += open_runs
    return quiet, unrecovered


def plateau_share(t: np.ndarray, m: np.ndarray) -> float:
    """Fraction of the save points without recovery that lie on a plateau, over all runs."""
    quiet, unrecovered = plateau_counts(t, m)
    return float(quiet.sum() / max(unrecovered.sum(), 1))
