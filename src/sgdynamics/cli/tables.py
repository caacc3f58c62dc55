"""What the command line shows: plain values for --json, and tables of them."""

from __future__ import annotations

import itertools
import math
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.comparison import compare as compare_results
from sgdynamics.base import checks
from sgdynamics.cli.problem_files import is_random, method_of
from sgdynamics.plotting.time_axis import add_epoch_axis, table_clocks
from sgdynamics.results.datasets import requested_clock, time_name
from sgdynamics.results.variables import TIMES
from sgdynamics.sweeps.answers import MISSING

ROWS = 11  # lines of a table of times
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


def plain(value: object) -> Any:
    """For JSON: NumPy values as Python ones, NaN as null, infinities as strings."""
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


def picked(
    results: dict[str, xr.Dataset], name: str, what: str, sampled: bool, file: Path
) -> xr.Dataset:
    """One result of a file: the one named, or the only one, or the only one of its kind."""
    if name:
        return results[checks.choice(what, name, tuple(results))]
    fitting = (
        [key for key in results if is_random(key) == sampled] if len(results) > 1 else list(results)
    )
    if len(fitting) != 1:
        raise ValueError(f"{file} has the results {', '.join(results)}: choose with --{what} NAME")
    return results[fitting[0]]


def in_t(result: xr.Dataset) -> xr.Dataset:
    """In the clock t of all other results; that of a mean field is t/p."""
    if method_of(result) != "mean_field":
        return result
    t = result["t"] * result.sizes["unit"]
    return result.assign_coords(t=t.assign_attrs(long_name=time_name("d")))


def beside(results: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Every method's mean at every save point, and each simulation's distance from each theory in standard errors."""
    shown = {name: in_t(result) for name, result in results.items()}
    quantity = (
        "excess_risk" if all("excess_risk" in result for result in shown.values()) else "risk"
    )
    first = next(iter(shown.values()))
    found: dict[str, Any] = {"quantity": quantity, "clocks": table_clocks(first)}
    found |= {name: first[name].values for name in (*TIMES, "epoch") if name in first.coords}
    found["methods"] = {}
    for name, result in shown.items():
        values = result[quantity].values
        # exact means without stepping have no time at which they diverge
        diverged = (
            np.isfinite(result["diverged_at"].values)
            if "diverged_at" in result.coords
            else ~np.isfinite(values).all(axis=1)
        )
        good = values[~diverged]
        one: dict[str, Any] = {"runs": len(values), "diverged": int(diverged.sum())}
        one["mean"] = good.mean(axis=0) if len(good) else np.full(values.shape[1], np.nan)
        own = f"{quantity.removeprefix('excess_')}_standard_error"
        if is_random(name) and len(good) > 1:
            one["standard_error"] = good.std(axis=0, ddof=1) / math.sqrt(len(good))
        elif own in result:
            one["standard_error"] = result[own].values.mean(axis=0)
        one |= {
            key: result.attrs[key]
            for key in ("error_quadrature", "error_integrator", "error_sampling")
            if key in result.attrs
        }
        found["methods"][name] = one
    theories, simulations = (
        [name for name in shown if is_random(name) == wanted] for wanted in (False, True)
    )
    found["comparisons"] = [
        {"theory": theory, "simulation": other, **_distances(shown[theory], shown[other], quantity)}
        for theory in theories
        for other in simulations
    ]
    return found


def _distances(theory: xr.Dataset, simulation: xr.Dataset, quantity: str) -> dict[str, Any]:
    try:
        found = compare_results(theory, simulation)
    except (
        ValueError
    ) as error:  # all runs diverged, another number of runs: say so and show the rest
        return {"z": [], "largest_z": math.nan, "refused": str(error)}
    z = found[f"{quantity}_z"].values
    return {"z": z, "largest_z": _largest(z)}


def _largest(z: np.ndarray) -> float:
    """The largest distance in standard errors where one exists; NaN where none does."""
    distances = np.abs(z[~np.isnan(z)])
    return float(distances.max()) if distances.size else math.nan


def compared(theory: xr.Dataset, simulation: xr.Dataset) -> dict[str, Any]:
    """Two results, variable by variable: largest gap, largest and root-mean-square distance in standard errors."""
    if theory.identical(simulation):
        raise ValueError(
            f"theory and simulation are the same result ({method_of(theory)}): give a file that has both, or one of each"
        )
    theory, simulation = in_t(theory), in_t(simulation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of different problems: the answer says it
        found = compare_results(theory, simulation)
    rows = []
    for name in (str(one).removesuffix("_z") for one in found if str(one).endswith("_z")):
        z = found[f"{name}_z"].values
        gap = np.abs(found[f"{name}_simulation"].values - found[f"{name}_theory"].values)
        inner = z[np.isfinite(z) & (z != 0)]  # at a start that both share nothing can differ
        rms = math.sqrt(float(np.mean(inner**2))) if inner.size else math.nan
        rows.append(
            {
                "variable": name,
                "largest_gap": float(np.nanmax(gap)),
                "largest_z": _largest(z),
                "rms_z": rms,
                "numbers": z.size,
            }
        )
    about = {key: found.attrs[key] for key in ("theory", "simulation", "runs", "runs_left_out")}
    same = {
        f"same_{name}": theory.attrs.get(name) == simulation.attrs.get(name)
        for name in ("problem", "algorithm")
    }
    return {**about, **same, "variables": rows}


def exit_row(found: Any) -> dict[str, Any]:
    """One method's exit times."""
    with np.errstate(all="ignore"):
        row = {
            "method": found.method,
            "dimension": found.dimension,
            "runs": found.runs,
            "left": found.left,
            "mean": found.mean,
        }
        # NaN (null) in place of an infinity: half of the runs had not left, and `left` tells how many had
        median = float(found.quantile(0.5)) if math.isfinite(found.quantile(0.5)) else math.nan
        row |= {
            "standard_error": found.standard_error,
            "median": median,
            "max_time": found.max_time,
        }
        row |= {
            "alpha": float(np.nanmean(found.alpha)) if found.left and found.lr else math.nan,
            "times": found.times,
        }
    return row


def spectrum(found: Any) -> dict[str, Any]:
    """A Hessian's eigenvalues and what they say."""
    pairs = [
        {"eigenvalue": float(value), "multiplicity": times}
        for value, times in zip(found.eigenvalues, found.multiplicities, strict=True)
    ]
    counts = {"negative": found.negative, "null": found.null, "positive": found.positive}
    rest = {
        "gradient_norm": found.gradient_norm,
        "error": found.error,
        "dimension": found.dimension,
        "constraint": found.constraint,
    }
    return {"eigenvalues": pairs, **counts, **rest}


def sweep_summary(result: xr.Dataset, names: list[str]) -> dict[str, Any]:
    """How large a sweep is, how much of it failed, how much is left to other shards, and a number at each point."""
    said = [str(text) for text in np.ravel(result["failed"].values)]
    errors = [text for text in said if text and text != MISSING]
    sizes = {str(name): int(size) for name, size in result.sizes.items()}
    about = {
        "over": names,
        "points": len(said),
        "sizes": sizes,
        "variables": [str(name) for name in result.data_vars],
    }
    found = {
        **about,
        "failed": len(errors),
        "missing": said.count(MISSING),
        "errors": sorted(set(errors)),
    }
    numbers = swept_numbers(result)
    if numbers is None:
        return found
    labels = {
        str(name): numbers[name].values
        if name in numbers.coords
        else np.arange(numbers.sizes[name])
        for name in numbers.dims
    }
    points = [dict(zip(labels, at, strict=True)) for at in itertools.product(*labels.values())]
    table = [
        {**at, "value": value} for at, value in zip(points, np.ravel(numbers.values), strict=True)
    ]
    return {**found, "quantity": str(numbers.name), "table": table}


SHOWN = (
    "excess_risk",
    "risk",
    "mean",
    "m",
)  # of a sweep, the first that is there: at the last save point, the mean over runs


def swept_numbers(result: xr.Dataset) -> xr.DataArray | None:
    """One number at every point of a sweep, with what it is as its name; None where nothing is left to show."""
    along = set(result["failed"].dims)
    for name in (*SHOWN, *(str(one) for one in result.data_vars)):
        if (
            name not in result
            or result[name].dtype.kind not in "iuf"
            or not along <= set(result[name].dims)
        ):
            continue
        found, said = result[name], name.replace("_", " ")
        if "time" in found.dims:
            found, said = found.isel(time=-1), f"{said} at the last save point"
        if "run" in found.dims:
            found = found.mean("run")
        if set(found.dims) == along:
            return found.rename("mean exit time t" if name == "mean" else said).transpose(
                *result["failed"].dims
            )
    return None


def sweep_picture(numbers: xr.DataArray) -> Any:
    """The numbers of a sweep over one number (a curve) or two (a map); None over others."""
    from matplotlib.figure import Figure

    from sgdynamics.plotting import plot

    axes = [str(name) for name in numbers.dims]
    known = all(
        name in numbers.coords and numbers[name].dtype.kind in "iuf" and numbers.sizes[name] > 1
        for name in axes
    )
    if not known or len(axes) > 2 or not np.isfinite(numbers.values).any():
        return None
    fig = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = fig.subplots()
    label = str(numbers.name)
    if len(axes) == 2:
        table = numbers.rename("value").to_dataset().sortby(axes)
        plot.phase_diagram(table, x=axes[0], y=axes[1], ax=ax, label=label)
        return fig
    numbers = numbers.sortby(axes[0])
    x, y = numbers[axes[0]].values.astype(float), numbers.values
    ax.plot(x, y, "o-", ms=4)
    ax.set(xlabel=plot.PARAMETER_LABELS.get(axes[0], axes[0]), ylabel=label)
    if x.min() > 0 and x.max() > 30 * x.min():
        ax.set_xscale("log")
    good = y[np.isfinite(y)]
    if good.min() > 0 and good.max() > 30 * good.min():
        ax.set_yscale("log")
    return fig


def machine() -> dict[str, Any]:
    """Versions, devices and the compilation cache."""
    import importlib.metadata
    import platform

    import jax

    from sgdynamics.version import __version__

    versions = {"sgdynamics": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    devices = [f"{one.platform}:{one.id} {one.device_kind}" for one in jax.devices()]
    cache = jax.config.values.get("jax_compilation_cache_dir")
    return {
        "versions": versions,
        "devices": devices,
        "precision": "float64 inside the library, whatever JAX is set to",
        "compilation_cache": str(cache)
        if cache
        else "off (`sgdynamics info --warm` fills one and says how to use it)",
    }


def picture(results: dict[str, xr.Dataset], title: str) -> Any:
    """Risk and overlaps of all methods, in the unit of time in which save points were requested."""
    from matplotlib.figure import Figure

    from sgdynamics.plotting import plot

    shown = [in_t(result) for result in results.values()]
    both = "M" in shown[0]
    fig = Figure(figsize=(12 if both else 6, 4.2), layout="constrained")
    axes = np.atleast_1d(fig.subplots(1, 2 if both else 1))
    drawn = np.concatenate(
        [
            (result["excess_risk"] if "excess_risk" in result else result["risk"])
            .mean("run")
            .values
            for result in shown
        ]
    )
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    wide = (
        drawn.size > 0 and drawn.max() > 3 * drawn.min()
    )  # a log scale for less has no ticks worth reading
    clock = requested_clock(shown[0])
    clock = clock if all(clock in result.coords for result in shown) else "t"
    for result in shown:
        plot.risk(result, axes[0], x=clock, log=bool(wide))
        if both:
            plot.overlaps(result, axes[1], x=clock)
    for ax in axes:
        add_epoch_axis(ax, shown[0], clock)
    if both and axes[1].get_legend_handles_labels()[0]:  # beside the curves, which fill their panel
        axes[1].legend(
            frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small"
        )
    fig.suptitle(title)
    return fig


# what a reader sees


def _show(columns: list[str], rows: list[list[str]], title: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column not in TEXT else "left",
            no_wrap=column not in TEXT,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    console = Console()
    # a pipe or a narrow window must not cut numbers
    Console(width=max(console.width, 20 * len(columns)), soft_wrap=not console.is_terminal).print(
        table
    )


TEXT = ("method", "variable", "document", "number", "figure", "what", "")


def _number(value: object, digits: int = 5) -> str:
    return (
        "-"
        if value is None or (isinstance(value, float) and math.isnan(value))
        else f"{value:.{digits}g}"
    )


def _cell(value: Any) -> str:
    return _number(float(value)) if isinstance(value, (int, float, np.number)) else str(value)


def _score(z: float) -> str:
    """A distance in standard errors; a dash where there is no standard error."""
    return "-" if math.isnan(z) else f"{z:+.1f}"


def _verdict(largest_z: float) -> str:
    return (
        "no standard errors"
        if math.isnan(largest_z)
        else f"at most {largest_z:.1f} standard errors apart"
    )


def _with_error(mean: float, error: float | None) -> str:
    if error is None or error <= 1e-12 * abs(mean):  # one start that all share
        return _number(mean)
    return f"{_number(mean)} ± {_number(error, 2)}"


def print_beside(found: dict[str, Any]) -> None:
    """Theory beside simulation at a few times, then the largest distance of each pair."""
    clocks, methods, count = found["clocks"], found["methods"], len(found["t"])
    chosen = np.unique(np.linspace(0, count - 1, min(ROWS, count)).round().astype(int))
    z = {(one["theory"], one["simulation"]): one["z"] for one in found["comparisons"]}
    first = next(iter(name for name in methods if not is_random(name)), None)
    columns = [*clocks, *methods] + [f"z {name}" for name in methods if (first, name) in z]
    rows, nothing = [], [None] * count
    for index in chosen:
        cells = [
            _with_error(one["mean"][index], one.get("standard_error", nothing)[index])
            for one in methods.values()
        ]
        scores = [z[first, name] for name in methods if (first, name) in z]
        times = [_number(found[clock][index]) for clock in clocks]
        rows.append(
            [*times, *cells, *(_score(values[index]) if len(values) else "-" for values in scores)]
        )
    title = found["quantity"].replace("_", " ")
    _show(columns, rows, f"{title}; z: (simulation - {first})/standard error" if z else title)
    for one in found["comparisons"]:
        print(
            f"{one['simulation']} against {one['theory']}: {one.get('refused') or _verdict(one['largest_z'])}"
        )
    for name, one in methods.items():
        if one["diverged"]:
            print(f"{name}: {one['diverged']} of {one['runs']} runs diverged and are left out")
    print(f"written: {', '.join(found['files'])}")


def print_compared(found: dict[str, Any]) -> None:
    rows = [
        [
            one["variable"],
            *(_number(one[key], 3) for key in ("largest_gap", "largest_z", "rms_z")),
            str(one["numbers"]),
        ]
        for one in found["variables"]
    ]
    title = f"{found['simulation']} ({found['runs']} runs) against {found['theory']}"
    _show(["variable", "largest gap", "largest |z|", "rms z", "numbers"], rows, title)
    for name in ("problem", "algorithm"):
        if not found[f"same_{name}"]:
            print(f"note: the two results record different {name}s")


def print_exits(found: dict[str, Any]) -> None:
    rows = []
    for one in found["exit_times"]:
        size = "∞" if one["dimension"] is None else str(one["dimension"])
        mean = _with_error(
            one["mean"], None if math.isnan(one["standard_error"]) else one["standard_error"]
        )
        rows.append(
            [
                one["method"],
                size,
                f"{one['left']}/{one['runs']}",
                mean,
                _number(one["median"]),
                _number(one["alpha"]),
            ]
        )
    _show(["method", "d", "left", "exit time t", "median", "samples/d"], rows)


def print_hessian(found: dict[str, Any]) -> None:
    rows = [[f"{one['eigenvalue']:.8g}", str(one["multiplicity"])] for one in found["eigenvalues"]]
    _show(["eigenvalue", "multiplicity"], rows, f"Hessian of the risk, N = {found['dimension']}")
    print(
        f"{found['negative']} negative, {found['null']} null, {found['positive']} positive directions"
    )
    print(
        f"|gradient| = {found['gradient_norm']:.4g}; eigenvalues are known to {found['error']:.1e}"
    )


MOST_ROWS = 40  # of the table of a sweep


def print_sweep(found: dict[str, Any]) -> None:
    if rows := found.get("table"):
        names = [name for name in rows[0] if name != "value"]
        # of a large sweep evenly chosen points; all are in the file, and with --json
        chosen = np.unique(
            np.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows))).round().astype(int)
        )
        cells = [[_cell(rows[place][name]) for name in (*names, "value")] for place in chosen]
        _show(
            [*names, found["quantity"]],
            cells,
            None if len(chosen) == len(rows) else f"{len(chosen)} of {len(rows)} points",
        )
    left = f", {found['missing']} left to other shards" if found["missing"] else ""
    print(
        f"{found['points']} points over {', '.join(found['over'])}{left}, {found['failed']} failed; kept in {found['store']}"
    )
    for text in found["errors"][:5]:
        print(f"failed: {text}")
    for one in found.get("files", ()):
        print(f"written: {one}")


def print_figure(found: dict[str, Any]) -> None:
    print(
        f"claim: {found['claim']}\n{found['verdict']}\n{', '.join(found['files'])} ({found['seconds']} s)"
    )


def print_figures(found: dict[str, Any]) -> None:
    for one in found["figures"]:
        print(f"{one['document']:20s} {one['number']:26s} {one['line']}")


def print_machine(found: dict[str, Any]) -> None:
    rest = {
        "devices": ", ".join(found["devices"]),
        "precision": found["precision"],
        "cache": found["compilation_cache"],
    }
    for name, text in {**found["versions"], **rest}.items():
        print(f"{name:14s} {text}")
    if kept := found.get("warmed"):
        print(
            f"\n{kept['programs']} programs, {kept['bytes'] / 1e6:.1f} MB, in {kept['seconds']} s. To use them, before Python starts:"
        )
        print(f"export JAX_COMPILATION_CACHE_DIR={shlex.quote(kept['folder'])}")
