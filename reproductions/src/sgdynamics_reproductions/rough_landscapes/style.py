"""What the figures share: runs and DMFT in the paper's units, save points, averages, colours."""

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

REPLICATES = 8  # of DMFT: its standard errors are from them
HALF_WIDTH = (
    500  # N from which data sets are stored in float16: there a run waits for its data to be read
)
THERE = 0.9  # of |m|: a run, or a median, that has recovered in figure 7
RECOVERED = 0.99  # of |m|, where the loss need not be below its threshold yet
THREE = ("GD", "SGD", "p-SGD")
COLORS = {"GD": "C3", "SGD": "C2", "p-SGD": "C0", "Langevin": "C1"}
LINES = {"GD": "-", "SGD": ":", "p-SGD": "--", "Langevin": "-."}
MARKS = {"GD": "^", "SGD": "s", "p-SGD": "o"}
NAMES = {"GD": "GD", "SGD": "SGD", "p-SGD": "persistent SGD", "Langevin": "Langevin"}
BETWEEN = 1000  # the seeds of one batch of runs and the next: all others of a figure are less than 300 above its own
UNITS = (
    "those of the paper: t = eta steps, gradient summed over the samples, mean loss of (h^2 -"
    " h0^2)^2/4"
)


def log_times(end: float, points: int, grid: float = 0.01) -> np.ndarray:
    """0 and times that are equally spaced in log t, on multiples of `grid`."""
    steps = np.unique(np.round(np.geomspace(1, end / grid, points)).astype(np.int64))
    return np.concatenate([[0.0], steps * grid])


def batch_seeds(seed: int, batches: int) -> range:
    """Of as many batches of runs: the first is that of a single one, and stays what it is where
    more are asked for.
    """
    return range(seed, seed + BETWEEN * batches, BETWEEN)


def runs_of(
    one: Setting,
    t: np.ndarray,
    dimension: int,
    seed: int,
    runs: int | None = None,
    shared_data: bool = False,
) -> xr.Dataset:
    """m, q and the mean loss (20) of the setting's runs (run, time), in float32, a data set a run
    unless shared.

    Large data sets are stored in float16, and are what is stored: their labels are those of the
    rounded inputs.

    `runs` is for a setting without a dimension, whose start has overlaps of exactly m0.

    A run whose loss is below the threshold has recovered the signal: it stops there, and keeps its
    values. One that explodes is NaN.
    """
    dtype = "float16" if dimension >= HALF_WIDTH else "float32"
    options: dict[str, Any] = {
        "steps": one.steps(t),
        "dimension": dimension,
        "runs": runs,
        "seed": seed,
        "shared_data": shared_data,
    }
    options |= {"method": "direct", "dtype": dtype, "stop_at": THRESHOLD / one.loss_factor}
    call = {
        "problem": one.problem,
        "algorithm": one.algorithm,
        "M": one.start.M_blocks,
        "Q": one.start.Q_blocks,
        "t": t,
        **options,
    }
    return pieces.compute_piece(
        f"runs-{dimension}", call, partial(_run, one, t, options), resumes=True
    )


def _run(one: Setting, t: np.ndarray, options: dict[str, Any], **more: Any) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of explosions: figures count them
        result = simulate(one.problem, one.algorithm, one.start, **options, **more)
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
                one.loss_factor * result["train_risk"].values,
                {"long_name": "mean training loss"},
            ),
        },
        {"t": ("time", t)},
    )


def theory_of(one: Setting, t: np.ndarray, paths: int, seed: int) -> xr.Dataset:
    """m and loss of DMFT (time), at the same finite eta, with their standard errors."""
    options: dict[str, Any] = {
        "steps": one.steps(t),
        "paths": paths,
        "replicates": REPLICATES,
        "seed": seed,
        "dtype": "float32",
    }
    call = {
        "problem": one.problem,
        "algorithm": one.algorithm,
        "M": one.start.M_blocks,
        "Q": one.start.Q_blocks,
        "t": t,
        **options,
    }
    return pieces.compute_piece("theory", call, partial(_solve, one, t, options))


def _solve(one: Setting, t: np.ndarray, options: dict[str, Any]) -> xr.Dataset:
    arguments = {name: value for name, value in options.items() if name != "dtype"}
    method = DMFT(dtype=options["dtype"])
    result = solve_dmft(one.problem, one.algorithm, one.start, method=method, **arguments).isel(
        run=0
    )
    half = one.loss_factor
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
    """Mean over runs and its standard error; runs that diverged are left out from then on."""
    array, axis = values.values, values.dims.index("run")
    count = np.maximum(np.isfinite(array).sum(axis=axis), 1)
    return np.nanmean(array, axis=axis), np.nanstd(array, axis=axis) / np.sqrt(
        np.maximum(count - 1, 1)
    )


def quartiles(each: np.ndarray) -> np.ndarray:
    """The lower and the upper quartile of the runs (..., run, time), as (..., quartile, time); runs
    that diverged are left out, and it is NaN where none is there.
    """
    is_finite = np.isfinite(each).any(axis=-2, keepdims=True)
    return np.where(
        is_finite,
        np.moveaxis(np.nanquantile(np.where(is_finite, each, 0.0), [0.25, 0.75], axis=-2), 0, -2),
        np.nan,
    )


def share_text(loss: xr.DataArray) -> str:
    """The share of runs below the threshold at the end, for a verdict."""
    share, error = fraction_recovered(loss.isel(time=-1).values)
    return f"{share:.1%} ({error:.1%})"


def beside(theory: xr.Dataset, runs: xr.Dataset) -> xr.Dataset:
    """Averages of the runs beside DMFT, their gaps in standard errors, and how times are correlated
    among the runs.
    """
    variables: dict[str, Any] = {}
    for name in ("m", "loss"):
        mean, error = average(runs[name])
        among = np.nan_to_num(
            np.ma.corrcoef(np.ma.masked_invalid(runs[name].values), rowvar=False).filled(0.0)
        )
        np.fill_diagonal(among, 1.0)
        # both are computed in float32: at the start, where nothing scatters, they differ by its
        # rounding
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
                among,
                {"long_name": f"correlation of {name} among the runs"},
            ),
        }
    return xr.Dataset(variables, {"t": theory["t"]})


def gap_text(data: xr.Dataset) -> str:
    """The largest gaps between runs and DMFT, for a verdict."""
    texts = []
    for name in ("m", "loss"):
        gap, z = np.abs(data[f"{name}_gap"].values), np.abs(data[f"{name}_z"].values)
        texts.append(f"{name} {gap.max():.4f} (at most {z.max():.1f} standard errors)")
    return ", ".join(texts)


def draw_beside(ax: Axes, data: xr.Dataset, name: str, every: int, labels: bool = True) -> None:
    """Grey dots with error bars for the runs, a red line for DMFT with a band of its standard
    error.
    """
    t, mean, error, line = (
        data[key].values for key in ("t", f"{name}_mean", f"{name}_error", f"{name}_dmft")
    )
    chosen = slice(None, None, every)
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
    from matplotlib.figure import Figure

    return Figure(figsize=(3.6 * columns, 2.9 * rows + 0.3), layout="constrained")


def threshold_line(ax: Axes) -> None:
    ax.axhline(THRESHOLD, color="0.6", lw=0.8, ls="-", zorder=0)


def crossing(t: np.ndarray, values: np.ndarray, level: float) -> float:
    """The first time at which a curve is at the level or above; NaN where it never is."""
    above = np.flatnonzero(values >= level)
    return float(t[above[0]]) if above.size else math.nan


def plateau_counts(t: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each run: times past t = 1, not recovered, at which |m| changes by less than .002 until
    1.2 t; and all times not recovered.
    """
    quiet, seen = np.zeros(len(m)), np.zeros(len(m))
    for start in np.flatnonzero((t > 1) & (1.2 * t < t[-1])):
        later = int(np.searchsorted(t, 1.2 * t[start]))
        open_runs = m[:, start] < RECOVERED
        quiet += open_runs & (np.ptp(m[:, start : later + 1], axis=1) < 0.002)
        seen += open_runs
    return quiet, seen


def plateau_share(t: np.ndarray, m: np.ndarray) -> float:
    """The share of `plateau_counts`, of all runs together."""
    quiet, seen = plateau_counts(t, m)
    return float(quiet.sum() / max(seen.sum(), 1))
