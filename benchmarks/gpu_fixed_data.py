"""Measure direct simulation on fixed data sets on a GPU, and run a figure at full size.

    python benchmarks/gpu_fixed_data.py                 table of bandwidths compared with a copy in
                                                        memory; also as JSON in $OUT if that is set
    python benchmarks/gpu_fixed_data.py --small         the same with small arrays, also on a CPU
    python benchmarks/gpu_fixed_data.py --headline PSGD --out psgd.nc
                                                        figure 2 of rough_landscapes: 500 seeds,
                                                        1e5 steps, N = 1000; --group 0/4 computes a
                                                        quarter of the seeds
    python benchmarks/gpu_fixed_data.py --combine a.nc b.nc --out all.nc
                                                        join groups of seeds into one file

A measurement that fails prints its error, and the others continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdynamics as sgd
from measurement import measure_seconds
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.simulation.gpu import data_gradients
from sgdynamics.simulation.running import RunSetting

# Parameters of figure 2, in the units of the paper (Mignacco, Urbani and Zdeborova, 2021).
ALPHA, M0, ETA, BATCH, TAU = 3.0, 0.2, 0.01, 0.5, 1.0
THRESHOLD = 1e-7  # mean loss of the paper, which is half of the library's training risk
DEFAULT_TILING = (data_gradients.CHUNK, data_gradients.WARP_VALUES)
PROBLEM = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")


def algorithm_of(name: str) -> Any:
    """Build an algorithm of the paper: lr = alpha eta/2, and times are multiplied by alpha/2."""
    common: dict[str, Any] = {"lr": ALPHA * ETA / 2, "samples_per_dimension": ALPHA}
    if name == "GD":
        return sgd.GradientDescent(**common)
    if name == "SGD":
        return sgd.MultiPassSGD(**common, batch_fraction=BATCH)
    return sgd.PersistentSGD(**common, batch_fraction=BATCH, persistence_time=ALPHA * TAU / 2)


# ---- measurements


def fastest_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Measure the fastest of several calls, after one call that compiles."""
    jax.block_until_ready(work())
    return min(measure_seconds(work) for _ in range(repeats))


def copy_bandwidth(small: bool) -> dict[str, float]:
    """Measure the bandwidth of the memory by elementary operations on one large array."""
    x = jnp.ones((1 << (22 if small else 30),), jnp.float32)
    add, total = jax.jit(lambda x: x + 1), jax.jit(jnp.sum)
    return {
        "copy GB/s (read + write)": 2 * x.nbytes / fastest_seconds(lambda: jnp.copy(x)) / 1e9,
        "x + 1 GB/s (read + write)": 2 * x.nbytes / fastest_seconds(lambda: add(x)) / 1e9,
        "sum GB/s (read)": x.nbytes / fastest_seconds(lambda: total(x)) / 1e9,
    }


def library_bandwidth(
    name: str, runs: int, d: int, dtype: str, steps: int, reads: int
) -> dict[str, float]:
    """Measure the bandwidth of the steps of `method="direct"`.

    With `reads=1` a kernel reads the data sets once per step (interpreted on a CPU); with `reads=2`
    two matrix products read them twice.
    """
    algorithm = algorithm_of(name)
    start = sgd.start(PROBLEM, M=np.full((runs, 1, 1), M0), Q=np.ones((runs, 1, 1)))
    simulator = DirectFixedData(
        PROBLEM, algorithm, RunSetting(start, d, PROBLEM.block_dimensions(d), dtype=dtype)
    )
    if reads == 2:
        simulator.options = simulator.options._replace(kernel="", together=True)
    elif not simulator.options.kernel:
        simulator.use_kernel("interpret")
    with jax.enable_x64(True):
        start_time = time.perf_counter()
        state = jax.block_until_ready(simulator.initial(np.arange(runs)))
        keys = run_keys(0, np.arange(runs))
        draw_seconds = time.perf_counter() - start_time
        compile_seconds = measure_seconds(lambda: simulator.advance(state, keys, 0, 1))
        step_seconds = fastest_seconds(lambda: simulator.advance(state, keys, 0, steps)) / steps
        final_state = simulator.advance(state, keys, 0, steps)[0]
        risk = float(simulator.train_risk(final_state).mean())
    # The kernel reads only the samples of the batch; the products read all samples.
    fraction = algorithm.fraction if reads == 1 else 1.0
    size = fraction * runs * algorithm.samples(d) * d * np.dtype(dtype).itemsize
    return {
        "runs": runs,
        "ms per step": 1e3 * step_seconds,
        "GB/s": reads * size / step_seconds / 1e9,
        "train risk at the end": risk,
        "s to draw the data (with compilation)": draw_seconds,
        "s to compile a step": compile_seconds,
        "s for 1e5 steps": 1e5 * step_seconds,
    }


def measure_tilings(
    runs: int, d: int, dtype: str, steps: int, variants: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Measure the kernel with other tilings.

    A variant is a pair of the number of samples per program and of the number of matrix entries in
    the tile of a warp.
    """
    measurements: list[dict[str, Any]] = []
    for chunk, entries_per_warp in variants:
        data_gradients.CHUNK, data_gradients.WARP_VALUES = chunk, entries_per_warp
        jax.clear_caches()
        row: dict[str, Any] = {
            "chunk": chunk,
            "entries per warp": entries_per_warp,
            **data_gradients.tiling(1, d)._asdict(),
        }
        try:
            row |= library_bandwidth("PSGD", runs, d, dtype, steps, 1)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        measurements.append(row)
        print("   ", format_row(row), flush=True)
    data_gradients.CHUNK, data_gradients.WARP_VALUES = DEFAULT_TILING
    jax.clear_caches()
    return measurements


def format_row(row: dict[str, Any]) -> str:
    """Format names and numbers of a measurement as one line."""
    return ", ".join(
        f"{name} {entry:.4g}" if isinstance(entry, float) else f"{name} {entry}"
        for name, entry in row.items()
    )


def measure(small: bool) -> dict[str, Any]:
    """Run all measurements, print them, and return them by name."""
    d, few, many, steps = (100, 2, 4, 3) if small else (1000, 64, 500, 100)
    variants = (
        [(64, 1024)] if small else list(itertools.product((64, 128, 256), (1024, 2048, 4096)))
    )
    measurements: dict[str, Callable[[], Any]] = {
        "device": lambda: {
            "device": str(jax.devices()[0]),
            "jax": jax.__version__,
            "memory": jax.local_devices()[0].memory_stats() or {},
        },
        "copy": lambda: copy_bandwidth(small),
    }
    for dtype, reads, runs in (
        ("float32", 2, few),
        ("float32", 1, few),
        ("float32", 2, many),
        ("float32", 1, many),
        ("float16", 1, many),
    ):
        for name in ("GD", "PSGD"):
            title = f"{name}, {dtype}, {'one read' if reads == 1 else 'two reads'}, {runs} runs"
            measurements[title] = partial(library_bandwidth, name, runs, d, dtype, steps, reads)
    figure_7 = [(100, 200), (2500, 20)]  # pairs of N and number of runs
    for N, runs in [] if small else figure_7:
        measurements[f"PSGD, float16, one read, N = {N}, {runs} runs"] = partial(
            library_bandwidth, "PSGD", runs, N, "float16", steps, 1
        )
    measurements["other tiles"] = lambda: measure_tilings(many, d, "float16", steps, variants)
    results: dict[str, Any] = {}
    for name, run_measurement in measurements.items():
        print(name, flush=True)
        try:
            results[name] = run_measurement()
            if isinstance(results[name], dict):
                print("   ", format_row(results[name]), flush=True)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
            traceback.print_exc()
    print_ratios(results)
    return results


def print_ratios(results: dict[str, Any]) -> None:
    """Print all bandwidths relative to that of a copy, and add the ratios to the results."""
    copies = [speed for name, speed in results.get("copy", {}).items() if name != "error"]
    copy = max(copies, default=float("nan"))
    print(f"\n{'':48}{'GB/s':>10}{'of the copy':>14}{'s for 1e5 steps':>18}")
    for name, result in results.items():
        for row in result if isinstance(result, list) else [result]:
            speed = row.get("GB/s")
            if speed is not None:
                variant = (
                    f" {row['chunk']}, {row['rows']}x{row['columns']}, {row['warps']} warps"
                    if "chunk" in row
                    else ""
                )
                row["share of the copy"] = speed / copy
                print(
                    f"{name + variant:48}{speed:10.1f}{speed / copy:14.2f}"
                    f"{row['s for 1e5 steps']:18.1f}"
                )


# ---- figure 2 at full size


def warm_start(dimension: int, seeds: int, seed: int) -> sgd.Start:
    """Draw the warm start of the paper: w = m0 w0 + c z with Gaussian z, and c such that |w| = 1.

    With z0 = z.w0 the norm is m0^2 + 2 m0 c z0 + c^2 |z|^2 = 1, and the overlap is m0 + c z0.
    """
    generator = np.random.default_rng(seed)
    z0, orthogonal_square = (
        generator.standard_normal(seeds),
        generator.chisquare(dimension - 1, seeds),
    )
    square = z0**2 + orthogonal_square
    c = (-M0 * z0 + np.sqrt((M0 * z0) ** 2 + square * (1 - M0**2))) / square
    return sgd.start(PROBLEM, M=(M0 + c * z0)[:, None, None], Q=np.ones((seeds, 1, 1)))


def with_fractions(result: xr.Dataset) -> xr.Dataset:
    """Add the fraction of seeds whose mean loss, as the paper defines it, is below THRESHOLD."""
    fraction = (result.train_risk / 2 < THRESHOLD).mean("run")
    error = np.sqrt(fraction * (1 - fraction) / result.sizes["run"])
    paper_time = (
        "time",
        np.asarray(result.t) * 2 / ALPHA,
        {"long_name": "the paper's time, steps * eta"},
    )
    return result.assign(fraction_below=fraction, fraction_below_error=error).assign_coords(
        paper_time=paper_time
    )


def headline(
    name: str,
    seeds: int,
    dimension: int,
    span: float,
    group: tuple[int, int],
    out: Path,
    dtype: str,
) -> None:
    """Run figure 2 for one group of the seeds, and write and report the result."""
    index, groups = group
    group_size = len(range(index, seeds, groups))
    algorithm, seed = algorithm_of(name), 1000 * (1 + index)
    last_step = round(span / ETA)
    steps = np.unique(np.concatenate([[0], np.rint(np.geomspace(1, last_step, 61))]).astype(int))
    start_time = time.perf_counter()
    result = sgd.simulate(
        PROBLEM,
        algorithm,
        warm_start(dimension, group_size, seed),
        steps=steps,
        dimension=dimension,
        seed=seed,
        method="direct",
        dtype=dtype,
        stop_at=2 * THRESHOLD,
    )
    result = with_fractions(result)
    result.attrs |= {
        "seconds": time.perf_counter() - start_time,
        "device": str(jax.devices()[0]),
        "group": f"{index}/{groups}",
    }
    store(result, out)
    report(name, result)


def store(result: xr.Dataset, out: Path) -> None:
    """Write the result as netCDF, or as a pickle on a machine without a netCDF library."""
    try:
        sgd.save(result, out)
    except ModuleNotFoundError as error:
        # A result of many minutes on a GPU must not be lost because of a missing package.
        print(f"{error}: the result is a pickled dictionary, for xarray.Dataset.from_dict")
        out.with_suffix(".pickle").write_bytes(pickle.dumps(result.to_dict()))


def report(name: str, result: xr.Dataset) -> None:
    """Print the outcome of the runs at the last time."""
    final = result.isel(time=-1)
    print(
        f"{name}: {result.sizes['run']} seeds at N = {result.attrs['dimension']}"
        f" to t = {float(final.paper_time):g} in {result.attrs['seconds']:.0f} s:"
        f" {100 * float(final.fraction_below):.1f}"
        f" +- {100 * float(final.fraction_below_error):.1f}% below {THRESHOLD:g},"
        f" mean |m| {float(abs(final.M).mean()):.3f},"
        f" {int(np.isfinite(result.diverged_at).sum())} diverged"
    )


def combine(files: list[Path], out: Path) -> None:
    """Join the results of several groups of seeds into one file."""
    results = [
        sgd.load(file).drop_vars(["fraction_below", "fraction_below_error"]) for file in files
    ]
    whole = xr.concat(results, dim="run", combine_attrs="override")
    whole.attrs |= {
        "seconds": float(sum(result.attrs["seconds"] for result in results)),
        "group": "all",
    }
    combined = with_fractions(whole)
    store(combined, out)
    report(json.loads(combined.attrs["algorithm"])["kind"], combined)


def main() -> None:
    """Read the command line and run what it selects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help="use small arrays, as a test of the script"
    )
    parser.add_argument("--headline", choices=("GD", "SGD", "PSGD"))
    parser.add_argument("--combine", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument(
        "--time", type=float, default=1000.0, help="last time, in the units of the paper"
    )
    parser.add_argument("--group", default="0/1", help="i/n computes the i-th of n groups of seeds")
    parser.add_argument("--dtype", default="float32", choices=("float16", "float32", "float64"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("OUT", "."))
    if arguments.combine:
        combine(arguments.combine, arguments.out or folder / "combined.nc")
    elif arguments.headline:
        index, groups = (int(number) for number in arguments.group.split("/"))
        name = f"headline_{arguments.headline}_{index}of{groups}.nc"
        out = arguments.out or folder / name
        headline(
            arguments.headline,
            arguments.seeds,
            arguments.dimension,
            arguments.time,
            (index, groups),
            out,
            arguments.dtype,
        )
    else:
        results = measure(arguments.small)
        if "OUT" in os.environ:
            (folder / "gpu_fixed_data.json").write_text(json.dumps(results, indent=1, default=str))


if __name__ == "__main__":
    main()
