"""Fixed data sets on a GPU: direct simulation by one read a step and by two against the memory's speed, and figure 2 of 002 at full size.

    python benchmarks/gpu_fixed_data.py                                   bandwidths, a table; JSON under $OUT where that is set
    python benchmarks/gpu_fixed_data.py --small                           the same on small arrays, to try it out (also on a CPU)
    python benchmarks/gpu_fixed_data.py --headline PSGD --out psgd.nc     500 seeds x 1e5 steps at N = 1000 (--group 0/4: a quarter of them)
    python benchmarks/gpu_fixed_data.py --combine a.nc b.nc --out all.nc  groups of seeds into one file

A part that fails says why, and the others go on.
"""

from __future__ import annotations

import argparse
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
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.simulation.gpu import data_gradients

ALPHA, M0, ETA, BATCH, TAU = 3.0, 0.2, 0.01, 0.5, 1.0  # of figure 2, in the paper's units
THRESHOLD = 1e-7  # of the paper's mean loss, half of ours
CHOSEN = (data_gradients.CHUNK, data_gradients.WARP_VALUES)
PROBLEM = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")


def algorithm_of(name: str) -> Any:
    """The paper's algorithm in our units: lr = alpha eta/2, times are alpha/2 of theirs."""
    common: dict[str, Any] = {"lr": ALPHA * ETA / 2, "samples_per_dimension": ALPHA}
    if name == "GD":
        return sgd.GradientDescent(**common)
    if name == "SGD":
        return sgd.MultiPassSGD(**common, batch_fraction=BATCH)
    return sgd.PersistentSGD(**common, batch_fraction=BATCH, persistence_time=ALPHA * TAU / 2)


# ---- measurements


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    jax.block_until_ready(work())
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        found.append(time.perf_counter() - began)
    return min(found)


def copy_bandwidth(small: bool) -> dict[str, float]:
    x = jnp.ones((1 << (22 if small else 30),), jnp.float32)
    add, total = jax.jit(lambda x: x + 1), jax.jit(jnp.sum)
    return {
        "copy GB/s (read + write)": 2 * x.nbytes / seconds(lambda: jnp.copy(x)) / 1e9,
        "x + 1 GB/s (read + write)": 2 * x.nbytes / seconds(lambda: add(x)) / 1e9,
        "sum GB/s (read)": x.nbytes / seconds(lambda: total(x)) / 1e9,
    }


def library_bandwidth(
    name: str, runs: int, d: int, dtype: str, steps: int, reads: int
) -> dict[str, float]:
    """Steps of `method="direct"`: by the kernel that reads the data sets once a step (interpreted on a CPU), or by two products."""
    algorithm = algorithm_of(name)
    begin = sgd.start(PROBLEM, M=np.full((runs, 1, 1), M0), Q=np.ones((runs, 1, 1)))
    simulator = DirectFixedData(PROBLEM, algorithm, begin, d, PROBLEM.block_dimensions(d), dtype)
    if reads == 2:
        simulator.options = simulator.options._replace(kernel="", together=True)
    elif not simulator.options.kernel:
        simulator.use_kernel("interpret")
    with jax.enable_x64(True):
        began = time.perf_counter()
        state, keys = (
            jax.block_until_ready(simulator.initial(np.arange(runs))),
            run_keys(0, np.arange(runs)),
        )
        made = time.perf_counter() - began
        began = time.perf_counter()
        jax.block_until_ready(simulator.advance(state, keys, 0, 1))
        compiled = time.perf_counter() - began
        taken = seconds(lambda: simulator.advance(state, keys, 0, steps)) / steps
        moved = simulator.advance(state, keys, 0, steps)[0]
        risk = float(simulator.train_risk(moved).mean())
    read = algorithm.fraction if reads == 1 else 1.0  # one read is of the samples in use
    size = read * runs * algorithm.samples(d) * d * np.dtype(dtype).itemsize
    return {
        "runs": runs,
        "ms a step": 1e3 * taken,
        "GB/s": reads * size / taken / 1e9,
        "train risk at the end": risk,
        "s to draw the data (with compiling)": made,
        "s to compile a step": compiled,
        "s for 1e5 steps": 1e5 * taken,
    }


def tuned(
    runs: int, d: int, dtype: str, steps: int, variants: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    """The kernel with other chunks and tiles: samples of a program, numbers of a tile for each warp."""
    found: list[dict[str, Any]] = []
    for chunk, numbers in variants:
        data_gradients.CHUNK, data_gradients.WARP_VALUES = chunk, numbers
        jax.clear_caches()
        row: dict[str, Any] = {
            "chunk": chunk,
            "numbers a warp": numbers,
            **data_gradients.tiling(1, d)._asdict(),
        }
        try:
            row |= library_bandwidth("PSGD", runs, d, dtype, steps, 1)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        found.append(row)
        print("   ", shown(row), flush=True)
    data_gradients.CHUNK, data_gradients.WARP_VALUES = CHOSEN
    jax.clear_caches()
    return found


def shown(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )


def measure(small: bool) -> dict[str, Any]:
    d, few, many, steps = (100, 2, 4, 3) if small else (1000, 64, 500, 100)
    variants = (
        [(64, 1024)]
        if small
        else [(chunk, numbers) for chunk in (64, 128, 256) for numbers in (1024, 2048, 4096)]
    )
    parts: dict[str, Callable[[], Any]] = {
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
            parts[title] = partial(library_bandwidth, name, runs, d, dtype, steps, reads)
    for N, runs in ((100, 200), (2500, 20)) if not small else ():  # of figure 7
        parts[f"PSGD, float16, one read, N = {N}, {runs} runs"] = partial(
            library_bandwidth, "PSGD", runs, N, "float16", steps, 1
        )
    parts["other tiles"] = lambda: tuned(many, d, "float16", steps, variants)
    found: dict[str, Any] = {}
    for name, part in parts.items():
        print(name, flush=True)
        try:
            found[name] = part()
            if isinstance(found[name], dict):
                print("   ", shown(found[name]), flush=True)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
            traceback.print_exc()
    ratios(found)
    return found


def ratios(found: dict[str, Any]) -> None:
    """Everything as a share of the copy's bandwidth."""
    copy = max(
        (value for name, value in found.get("copy", {}).items() if name != "error"),
        default=float("nan"),
    )
    print(f"\n{'':48}{'GB/s':>10}{'of the copy':>14}{'s for 1e5 steps':>18}")
    for name, part in found.items():
        for row in part if isinstance(part, list) else [part]:
            speed = next((value for key, value in row.items() if key.startswith("GB/s")), None)
            if speed is not None:
                variant = (
                    f" {row['chunk']}, {row['rows']}x{row['columns']}, {row['warps']} warps"
                    if "chunk" in row
                    else ""
                )
                row["share of the copy"] = speed / copy
                print(
                    f"{name + variant:48}{speed:10.1f}{speed / copy:14.2f}{row['s for 1e5 steps']:18.1f}"
                )


# ---- figure 2 at full size


def warm_start(dimension: int, seeds: int, seed: int) -> sgd.Start:
    """w = m0 w0 + c z with Gaussian z and |w| = 1: the overlap with w0 at dimension d."""
    generator = np.random.default_rng(seed)
    along, across = generator.standard_normal(seeds), generator.chisquare(dimension - 1, seeds)
    square = along**2 + across
    c = (-M0 * along + np.sqrt((M0 * along) ** 2 + square * (1 - M0**2))) / square
    return sgd.start(PROBLEM, M=(M0 + c * along)[:, None, None], Q=np.ones((seeds, 1, 1)))


def with_fractions(result: xr.Dataset) -> xr.Dataset:
    """Beside the runs: the share of seeds whose mean loss (the paper's) is below the threshold, at every time."""
    share = (result.train_risk / 2 < THRESHOLD).mean("run")
    error = np.sqrt(share * (1 - share) / result.sizes["run"])
    paper = (
        "time",
        np.asarray(result.t) * 2 / ALPHA,
        {"long_name": "the paper's time, steps * eta"},
    )
    return result.assign(fraction_below=share, fraction_below_error=error).assign_coords(
        paper_time=paper
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
    index, groups = group
    mine = len(range(index, seeds, groups))
    algorithm, seed = algorithm_of(name), 1000 * (1 + index)
    last = round(span / ETA)
    steps = np.unique(np.concatenate([[0], np.rint(np.geomspace(1, last, 61))]).astype(int))
    began = time.perf_counter()
    result = sgd.simulate(
        PROBLEM,
        algorithm,
        warm_start(dimension, mine, seed),
        steps=steps,
        dimension=dimension,
        seed=seed,
        method="direct",
        dtype=dtype,
        stop_at=2 * THRESHOLD,
    )
    result = with_fractions(result)
    result.attrs |= {
        "seconds": time.perf_counter() - began,
        "device": str(jax.devices()[0]),
        "group": f"{index}/{groups}",
    }
    store(result, out)
    report(name, result)


def store(result: xr.Dataset, out: Path) -> None:
    try:
        sgd.save(result, out)
    except ModuleNotFoundError as error:
        # a machine without the file format's library: nothing of minutes on a GPU is lost
        print(f"{error}: kept as a pickled dictionary, for xarray.Dataset.from_dict")
        out.with_suffix(".pickle").write_bytes(pickle.dumps(result.to_dict()))


def report(name: str, result: xr.Dataset) -> None:
    final = result.isel(time=-1)
    taken, runs = result.attrs["seconds"], result.sizes["run"]
    print(
        f"{name}: {runs} seeds at N = {result.attrs['dimension']} to t = {float(final.paper_time):g} in {taken:.0f} s: "
        f"{100 * float(final.fraction_below):.1f} +- {100 * float(final.fraction_below_error):.1f}% below {THRESHOLD:g}, "
        f"mean |m| {float(abs(final.M).mean()):.3f}, {int(np.isfinite(result.diverged_at).sum())} diverged"
    )


def combine(files: list[Path], out: Path) -> None:
    parts = [sgd.load(file).drop_vars(["fraction_below", "fraction_below_error"]) for file in files]
    whole = xr.concat(parts, dim="run", combine_attrs="override")
    whole.attrs |= {"seconds": float(sum(part.attrs["seconds"] for part in parts)), "group": "all"}
    result = with_fractions(whole)
    store(result, out)
    report(json.loads(result.attrs["algorithm"])["kind"], result)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="small arrays, to try the script out")
    parser.add_argument("--headline", choices=("GD", "SGD", "PSGD"))
    parser.add_argument("--combine", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--time", type=float, default=1000.0, help="the paper's t")
    parser.add_argument(
        "--group", default="0/1", help="i/n: the i-th of n groups of seeds, for runs in pieces"
    )
    parser.add_argument("--dtype", default="float32", choices=("float16", "float32", "float64"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    folder = Path(os.environ.get("OUT", "."))
    if chosen.combine:
        combine(chosen.combine, chosen.out or folder / "combined.nc")
    elif chosen.headline:
        index, groups = (int(part) for part in chosen.group.split("/"))
        out = chosen.out or folder / f"headline_{chosen.headline}_{index}of{groups}.nc"
        headline(
            chosen.headline,
            chosen.seeds,
            chosen.dimension,
            chosen.time,
            (index, groups),
            out,
            chosen.dtype,
        )
    else:
        found = measure(chosen.small)
        if "OUT" in os.environ:
            (folder / "gpu_fixed_data.json").write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
