"""Answers of the commands as plain values: the output of --json, and what the tables show."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.comparison import compare as compare_results
from sgdynamics.analysis.exit_results import ExitTimes
from sgdynamics.analysis.landscape import HessianSpectrum
from sgdynamics.base import checks, registry
from sgdynamics.cli.problem_files import is_random, method_of
from sgdynamics.plotting.time_axis import table_clocks
from sgdynamics.results.datasets import time_name
from sgdynamics.results.variables import TIMES
from sgdynamics.sweeps.answers import MISSING
from sgdynamics.version import __version__

PACKAGES = (
    "jax",
    "jaxlib",
    "diffrax",
    "optimistix",
    "numpy",
    "scipy",
    "xarray",
    "h5netcdf",
    "matplotlib",
    "typer",
    "rich",
    "distributed",
)
ERROR_ATTRIBUTES = ("error_quadrature", "error_integrator", "error_sampling")
# The variable of a sweep to show: the first one that exists.
SHOWN_VARIABLES = ("excess_risk", "risk", "mean", "m")


def plain(value: object) -> Any:
    """Convert a value for JSON: NumPy values to Python ones, NaN to null, infinity to a string."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return str(value) if isinstance(value, Path) else value


# Results of `run` and `compare`


def select_result(
    results: dict[str, xr.Dataset], name: str, option: str, is_simulation: bool, file: Path
) -> xr.Dataset:
    """Select a result of a file: by name, or the only one, or the only theory or simulation."""
    if name:
        return results[checks.choice(option, name, tuple(results))]
    candidates = list(results)
    if len(results) > 1:
        candidates = [key for key in results if is_random(key) == is_simulation]
    if len(candidates) != 1:
        raise ValueError(
            f"{file} has the results {', '.join(results)}. Choose one with --{option} NAME."
        )
    return results[candidates[0]]


def in_common_time(result: xr.Dataset) -> xr.Dataset:
    """A result with the coordinate t of the other solvers; that of the mean field is t/p."""
    method = registry.method_of_result(str(result.attrs.get("method", "")))
    if method is None or not method.times_per_width:
        return result
    t = result["t"] * result.sizes["unit"]
    return result.assign_coords(t=t.assign_attrs(long_name=time_name("d")))


def summarise(results: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Summarise the results of several methods.

    Returns the mean risk of each method at each save point, and the distance of each simulation
    from each theory in standard errors.
    """
    results = {name: in_common_time(result) for name, result in results.items()}
    quantity = shown_risk(list(results.values()))
    first = next(iter(results.values()))
    summary: dict[str, Any] = {"quantity": quantity, "clocks": table_clocks(first)}
    summary |= {name: first[name].values for name in (*TIMES, "epoch") if name in first.coords}
    summary["methods"] = {
        name: _method_summary(result, quantity, is_random(name)) for name, result in results.items()
    }
    summary["comparisons"] = [
        {
            "theory": theory,
            "simulation": simulation,
            **_distances(results[theory], results[simulation], quantity),
        }
        for theory, simulation in itertools.product(results, results)
        if not is_random(theory) and is_random(simulation)
    ]
    return summary


def shown_risk(results: list[xr.Dataset]) -> str:
    """The name of the risk that all results have; given inputs only have a training risk."""
    names = ("excess_risk", "risk", "train_risk")
    return next(name for name in names if all(name in result for result in results))


def _method_summary(result: xr.Dataset, quantity: str, is_simulation: bool) -> dict[str, Any]:
    values = result[quantity].values
    if "diverged_at" in result.coords:
        diverged = np.isfinite(result["diverged_at"].values)
    else:  # exact means without stepping have no time of divergence
        diverged = ~np.isfinite(values).all(axis=1)
    finite = values[~diverged]
    summary: dict[str, Any] = {"runs": len(values), "diverged": int(diverged.sum())}
    summary["mean"] = finite.mean(axis=0) if len(finite) else np.full(values.shape[1], np.nan)
    # A theory that samples, such as DMFT, has a standard error of its own.
    error = f"{quantity.removeprefix('excess_')}_standard_error"
    if is_simulation and len(finite) > 1:
        summary["standard_error"] = finite.std(axis=0, ddof=1) / math.sqrt(len(finite))
    elif error in result:
        summary["standard_error"] = result[error].values.mean(axis=0)
    return summary | {key: result.attrs[key] for key in ERROR_ATTRIBUTES if key in result.attrs}


def _distances(theory: xr.Dataset, simulation: xr.Dataset, quantity: str) -> dict[str, Any]:
    try:
        comparison = compare_results(theory, simulation)
    except ValueError as error:
        # All runs diverged, or the numbers of runs differ: report it with the other results.
        return {"z": [], "largest_z": math.nan, "refused": str(error)}
    z = comparison[f"{quantity}_z"].values
    return {"z": z, "largest_z": _largest(z)}


def _largest(z: np.ndarray) -> float:
    """The largest distance in standard errors, or NaN if there are no standard errors."""
    distances = np.abs(z[~np.isnan(z)])
    return float(distances.max()) if distances.size else math.nan


def compare_variables(theory: xr.Dataset, simulation: xr.Dataset) -> dict[str, Any]:
    """Compare two results variable by variable.

    Returns for each variable the largest difference, and the largest and the root mean square
    distance in standard errors.
    """
    if theory.identical(simulation):
        raise ValueError(
            f"theory and simulation are the same result ({method_of(theory)}). Use a file that "
            "has both, or one file for each."
        )
    theory, simulation = in_common_time(theory), in_common_time(simulation)
    with warnings.catch_warnings():
        # The answer itself reports different problems and algorithms.
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare_results(theory, simulation)
    names = [str(name).removesuffix("_z") for name in comparison if str(name).endswith("_z")]
    settings = ("theory", "simulation", "runs", "runs_left_out")
    return {
        **{key: comparison.attrs[key] for key in settings},
        **{
            f"same_{name}": theory.attrs.get(name) == simulation.attrs.get(name)
            for name in ("problem", "algorithm")
        },
        "variables": [_variable_row(comparison, name) for name in names],
    }


def _largest_size(values: np.ndarray) -> float:
    """The largest absolute value; NaN if all values are."""
    return math.nan if np.isnan(values).all() else float(np.nanmax(np.abs(values)))


def _variable_row(comparison: xr.Dataset, name: str) -> dict[str, Any]:
    z = comparison[f"{name}_z"].values
    difference = comparison[f"{name}_simulation"].values - comparison[f"{name}_theory"].values
    # At a start that theory and simulation share, the distance is zero by construction.
    nonzero = z[np.isfinite(z) & (z != 0)]
    return {
        "variable": name,
        "largest_gap": _largest_size(difference),
        "largest_z": _largest(z),
        "rms_z": math.sqrt(float(np.mean(nonzero**2))) if nonzero.size else math.nan,
        "numbers": z.size,
    }


# Answers of `exit-time` and `hessian`


def exit_row(exits: ExitTimes) -> dict[str, Any]:
    """The exit times of one method."""
    with np.errstate(all="ignore"):
        median = float(exits.quantile(0.5))
        return {
            "method": exits.method,
            "dimension": exits.dimension,
            "runs": exits.runs,
            "left": exits.left,
            "mean": exits.mean,
            "standard_error": exits.standard_error,
            # NaN instead of infinity if half of the runs have not left.
            "median": median if math.isfinite(median) else math.nan,
            "max_time": exits.max_time,
            "alpha": float(np.nanmean(exits.alpha)) if exits.left and exits.lr else math.nan,
            "times": exits.times,
        }


def hessian_summary(spectrum: HessianSpectrum) -> dict[str, Any]:
    """The eigenvalues of a Hessian, their signs and their error."""
    pairs = zip(spectrum.eigenvalues, spectrum.multiplicities, strict=True)
    return {
        "eigenvalues": [
            {"eigenvalue": float(eigenvalue), "multiplicity": multiplicity}
            for eigenvalue, multiplicity in pairs
        ],
        "negative": spectrum.negative,
        "null": spectrum.null,
        "positive": spectrum.positive,
        "gradient_norm": spectrum.gradient_norm,
        "error": spectrum.error,
        "dimension": spectrum.dimension,
        "constraint": spectrum.constraint,
    }


# Answers of `sweep`


def sweep_summary(result: xr.Dataset, names: list[str]) -> dict[str, Any]:
    """Summarise a sweep: its size, its failed and missing points, and one value per point."""
    texts = [str(text) for text in np.ravel(result["failed"].values)]
    errors = [text for text in texts if text and text != MISSING]
    summary: dict[str, Any] = {
        "over": names,
        "points": len(texts),
        "sizes": {str(name): int(size) for name, size in result.sizes.items()},
        "variables": [str(name) for name in result.data_vars],
        "failed": len(errors),
        "missing": texts.count(MISSING),
        "errors": sorted(set(errors)),
    }
    values = point_values(result)
    if values is None:
        return summary
    labels = {
        str(name): values[name].values if name in values.coords else np.arange(values.sizes[name])
        for name in values.dims
    }
    table = [
        {**dict(zip(labels, point, strict=True)), "value": value}
        for point, value in zip(
            itertools.product(*labels.values()), np.ravel(values.values), strict=True
        )
    ]
    return {**summary, "quantity": str(values.name), "table": table}


def point_values(result: xr.Dataset) -> xr.DataArray | None:
    """One value at each point of a sweep: at the last save point, the mean over runs.

    The name of the array describes the value. Returns None if no variable has such a value.
    """
    grid = result["failed"].dims
    for name in (*SHOWN_VARIABLES, *(str(variable) for variable in result.data_vars)):
        if name not in result or result[name].dtype.kind not in "iuf":
            continue
        values, description = result[name], name.replace("_", " ")
        if "time" in values.dims:
            values, description = values.isel(time=-1), f"{description} at the last save point"
        if "run" in values.dims:
            values = values.mean("run")
        if set(values.dims) == set(grid):
            description = "mean exit time t" if name == "mean" else description
            return values.rename(description).transpose(*grid)
    return None


# Answer of `info`


def machine() -> dict[str, Any]:
    """Versions, devices and the compilation cache."""
    import jax

    versions = {"sgdynamics": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    devices = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
    cache = jax.config.values.get("jax_compilation_cache_dir")
    return {
        "versions": versions,
        "devices": devices,
        "precision": "float64 inside the library, whatever the settings of JAX",
        "compilation_cache": str(cache or "off (sgdynamics info --warm fills one)"),
    }
