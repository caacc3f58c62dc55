"""Fixed data sets on a GPU: direct simulation against the memory's speed, one fused read a step, and figure 2 of 002 at full size.

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
from sgdynamics.random import run_keys
from sgdynamics.simulation.fixed_direct import DirectFixedData

ALPHA, M0, ETA, BATCH, TAU = 3.0, 0.2, 0.01, 0.5, 1.0  # of figure 2, in the paper's units
THRESHOLD = 1e-7  # of the paper's mean loss, half of ours
PROBLEM = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")


def algorithm_of(name: str) -> Any:
    """The paper's algorithm in our units: lr = alpha eta/2, times are alpha/2 of theirs."""
    common = {"lr": ALPHA * ETA / 2, "samples_per_dimension": ALPHA}
    if name == "GD":
        return sgd.GradientDescent(**common)
    if name == "SGD":
        return sgd.MultiPassSGD(**common, batch_fraction=BATCH)
    return sgd.PersistentSGD(**common, batch_fraction=BATCH, persistence_time=ALPHA * TAU / 2)


# ---- one read a step: each row is used for its field and for its gradient while it is in registers

PerSample = Callable[[list[Any], Any, Any], tuple[list[Any], Any]]


def square_committee(fields: list[Any], label: Any, selected: Any) -> tuple[list[Any], Any]:
    """Slopes and loss of ((1/p) sum_i lambda_i^2 - y)^2/2 at some samples, the slopes of those in use."""
    residual = sum(field * field for field in fields) / len(fields) - label
    return [selected * residual * 2.0 * field / len(fields) for field in fields], 0.5 * residual * residual


def padded(x: Any, tile: int, parts: int) -> Any:
    """Inputs (runs, n, d) with zero rows and columns added: a power of two of columns, tile * parts a divisor of the rows."""
    rows, columns = -x.shape[1] % (tile * parts), (1 << (x.shape[2] - 1).bit_length()) - x.shape[2]
    return jnp.pad(x, ((0, 0), (0, rows), (0, columns)))


@partial(jax.jit, static_argnames=("per_sample", "tile", "parts", "warps", "interpret"))
def fused_gradient(
    x: Any,
    weights: Any,
    labels: Any,
    selected: Any,
    *,
    per_sample: PerSample = square_committee,
    tile: int = 8,
    parts: int = 8,
    warps: int = 8,
    interpret: bool = False,
) -> tuple[Any, Any]:
    """sum_mu slope_mu x_mu (runs, p, d) and the summed loss (runs), from padded x (runs, n, d), reading x once.

    weights (runs, p, d), p = 1..4; labels and selected (runs, n). Padded rows must have zero inputs and, for the loss, the label 0.
    A program of the grid takes a run's n/parts rows, `tile` of them at a time; the parts are added up outside, so the sum has one order.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as backend

    runs, n, d = x.shape
    p = weights.shape[1]
    rounds = n // (tile * parts)

    def kernel(x_ref: Any, w_ref: Any, y_ref: Any, s_ref: Any, gradient_ref: Any, loss_ref: Any) -> None:
        run, part = pl.program_id(0), pl.program_id(1)
        rows = [w_ref[run, unit, :] for unit in range(p)]

        def round_(index: Any, carry: Any) -> Any:
            sums, loss = carry
            here = pl.ds((part * rounds + index) * tile, tile)
            inputs = x_ref[run, here, :]
            fields = [jnp.sum(inputs * row[None, :], axis=1) for row in rows]
            slopes, more = per_sample(fields, y_ref[run, here], s_ref[run, here])
            return [total + jnp.sum(inputs * slope[:, None], axis=0) for total, slope in zip(sums, slopes, strict=True)], loss + more

        begin = ([jnp.zeros((d,), x.dtype)] * p, jnp.zeros((tile,), x.dtype))
        sums, loss = jax.lax.fori_loop(np.int32(0), np.int32(rounds), round_, begin)
        for unit in range(p):
            gradient_ref[run, part, unit, :] = sums[unit]
        loss_ref[run, part, :] = loss

    shapes = (jax.ShapeDtypeStruct((runs, parts, p, d), x.dtype), jax.ShapeDtypeStruct((runs, parts, tile), x.dtype))
    options = {"interpret": True} if interpret else {"compiler_params": backend.CompilerParams(num_warps=warps, num_stages=2)}
    gradient, loss = pl.pallas_call(kernel, out_shape=shapes, grid=(runs, parts), **options)(x, weights, labels, selected)
    return gradient.sum(axis=1), loss.sum(axis=(1, 2))


@partial(jax.jit, static_argnames=("steps", "samples", "tile", "parts", "warps", "interpret"))
def fused_descent(x: Any, weights: Any, labels: Any, lr: Any, steps: int, samples: int, **shape: Any) -> tuple[Any, Any]:
    """Gradient descent on the sphere by the fused kernel: the rows after these steps, and the mean loss at the last of them."""
    every = jnp.ones_like(labels)

    def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        rows, _ = carry
        gradient, loss = fused_gradient(x, rows, labels, every, **shape)
        rows = rows - lr / samples * gradient
        return rows / jnp.sqrt(jnp.sum(rows * rows, axis=-1, keepdims=True)), loss / samples

    return jax.lax.fori_loop(0, steps, step, (weights, jnp.zeros(x.shape[0], x.dtype)))


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


def library_bandwidth(name: str, runs: int, d: int, dtype: str, steps: int) -> dict[str, float]:
    """Steps of `method="direct"`, counted as two reads of the data sets each."""
    algorithm = algorithm_of(name)
    begin = sgd.start(PROBLEM, M=np.full((runs, 1, 1), M0), Q=np.ones((runs, 1, 1)))
    simulator = DirectFixedData(PROBLEM, algorithm, begin, d, PROBLEM.block_dimensions(d), dtype)
    with jax.enable_x64(True):
        began = time.perf_counter()
        state, keys = jax.block_until_ready(simulator.initial(np.arange(runs))), run_keys(0, np.arange(runs))
        made = time.perf_counter() - began
        began = time.perf_counter()
        jax.block_until_ready(simulator.advance(state, keys, 0, 1))
        compiled = time.perf_counter() - began
        taken = seconds(lambda: simulator.advance(state, keys, 0, steps)) / steps
        moved = simulator.advance(state, keys, 0, steps)[0]
        risk = float(simulator.train_risk(moved).mean())
    size = runs * algorithm.samples(d) * d * np.dtype(dtype).itemsize
    return {
        "runs": runs,
        "ms a step": 1e3 * taken,
        "GB/s (two reads)": 2 * size / taken / 1e9,
        "train risk at the end": risk,
        "s to draw the data (with compiling)": made,
        "s to compile a step": compiled,
        "s for 1e5 steps": 1e5 * taken,
    }


def fused_bandwidth(runs: int, d: int, steps: int, interpret: bool, variants: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """The fused kernel, counted as one read of the data sets a step, and how far its rows are from those of two products."""
    n, lr = int(ALPHA * d), np.float32(ALPHA * ETA / 2)
    x = jax.random.normal(jax.random.key(0), (runs, n, d), jnp.float32)
    labels = x[:, :, 0] ** 2
    weights = jnp.zeros((runs, 1, d), jnp.float32).at[:, 0, 0].set(M0).at[:, 0, 1].set(np.sqrt(1 - M0**2))

    def plain(x: Any, rows: Any) -> Any:
        def step(_: Any, rows: Any) -> Any:
            fields = jnp.einsum("rnd,rpd->rnp", x, rows, precision="highest")
            slopes = 2 * fields * (fields**2 - labels[:, :, None])
            rows = rows - lr / n * jnp.einsum("rnp,rnd->rpd", slopes, x, precision="highest")
            return rows / jnp.sqrt(jnp.sum(rows * rows, axis=-1, keepdims=True))

        return jax.lax.fori_loop(0, steps, step, rows)

    expected = jax.jit(plain)(x, weights)
    found: list[dict[str, Any]] = []
    for tile, parts, warps in variants:
        row: dict[str, Any] = {"runs": runs, "tile": tile, "parts": parts, "warps": warps}
        try:
            wide = padded(x, tile, parts)
            y = jnp.pad(labels, ((0, 0), (0, wide.shape[1] - n)))
            begin = jnp.pad(weights, ((0, 0), (0, 0), (0, wide.shape[2] - d)))
            shape = {"tile": tile, "parts": parts, "warps": warps, "interpret": interpret}
            rows, loss = fused_descent(wide, begin, y, lr, steps, n, **shape)
            row["largest difference of a row"] = float(jnp.abs(rows[:, :, :d] - expected).max())
            row["train risk at the end"] = float(loss.mean())
            taken = seconds(lambda wide=wide, begin=begin, y=y, shape=shape: fused_descent(wide, begin, y, lr, steps, n, **shape)) / steps
            row |= {"ms a step": 1e3 * taken, "GB/s (one read)": x.nbytes / taken / 1e9, "s for 1e5 steps": 1e5 * taken}
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        found.append(row)
        print("   ", shown(row), flush=True)
    return found


def committee_check(interpret: bool) -> dict[str, float]:
    """The kernel at widths 1 to 4 with a selection, against einsum: the largest relative difference of gradient and loss."""
    worst = {}
    generator = np.random.default_rng(0)
    for p in (1, 2, 3, 4):
        x, w, y = (jnp.asarray(generator.standard_normal(shape), jnp.float32) for shape in ((3, 70, 24), (3, p, 24), (3, 70)))
        w, s = w / 5, jnp.asarray(generator.random((3, 70)) < 0.5, jnp.float32)
        fields = jnp.einsum("rnd,rpd->rnp", x, w, precision="highest")
        residual = (fields**2).mean(axis=-1) - y
        slopes = (s * residual)[:, :, None] * 2 * fields / p
        gradient, loss = jnp.einsum("rnp,rnd->rpd", slopes, x, precision="highest"), 0.5 * (residual**2).sum(axis=1)
        wide = padded(x, 8, 2)
        more = ((0, 0), (0, wide.shape[1] - 70))
        shape = {"tile": 8, "parts": 2, "warps": 4, "interpret": interpret}
        got, total = fused_gradient(wide, jnp.pad(w, ((0, 0), (0, 0), (0, 8))), jnp.pad(y, more), jnp.pad(s, more), **shape)
        worst[f"width {p}"] = float(jnp.abs(got[:, :, :24] - gradient).max() / jnp.abs(gradient).max() + jnp.abs(total / loss - 1).max())
    return worst


def shown(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items())


def measure(small: bool) -> dict[str, Any]:
    interpret = jax.default_backend() == "cpu"
    d, few, many, steps = (100, 2, 4, 3) if small else (1000, 64, 500, 100)
    variants = [(8, 4, 4)] if small else [(t, p, w) for t in (4, 8, 16) for p in (8, 16) for w in (4, 8)]
    parts: dict[str, Callable[[], Any]] = {
        "device": lambda: {"device": str(jax.devices()[0]), "jax": jax.__version__, "memory": jax.local_devices()[0].memory_stats() or {}},
        "copy": lambda: copy_bandwidth(small),
        "library, GD, float32, few": lambda: library_bandwidth("GD", few, d, "float32", steps),
        "library, PSGD, float32, few": lambda: library_bandwidth("PSGD", few, d, "float32", steps),
        "library, GD, float64, few": lambda: library_bandwidth("GD", few, d, "float64", steps),
        "library, GD, float32, many": lambda: library_bandwidth("GD", many, d, "float32", steps),
        "library, PSGD, float32, many": lambda: library_bandwidth("PSGD", many, d, "float32", steps),
        "fused kernel, widths 1 to 4": lambda: committee_check(interpret),
        "fused kernel, few": lambda: fused_bandwidth(few, d, steps, interpret, variants),
        "fused kernel, many": lambda: fused_bandwidth(many, d, steps, interpret, variants),
    }
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
    copy = max((value for name, value in found.get("copy", {}).items() if name != "error"), default=float("nan"))
    print(f"\n{'':40}{'GB/s':>10}{'of the copy':>14}{'s for 1e5 steps':>18}")
    for name, part in found.items():
        for row in part if isinstance(part, list) else [part]:
            speed = next((value for key, value in row.items() if key.startswith("GB/s")), None)
            if speed is not None:
                variant = f" {row['tile']}x{row['parts']}, {row['warps']} warps" if "tile" in row else ""
                row["share of the copy"] = speed / copy
                print(f"{name + variant:40}{speed:10.1f}{speed / copy:14.2f}{row['s for 1e5 steps']:18.1f}")


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
    paper = ("time", np.asarray(result.t) * 2 / ALPHA, {"long_name": "the paper's time, steps * eta"})
    return result.assign(fraction_below=share, fraction_below_error=error).assign_coords(paper_time=paper)


def headline(name: str, seeds: int, dimension: int, span: float, group: tuple[int, int], out: Path, dtype: str) -> None:
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
    result.attrs |= {"seconds": time.perf_counter() - began, "device": str(jax.devices()[0]), "group": f"{index}/{groups}"}
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small arrays, to try the script out")
    parser.add_argument("--headline", choices=("GD", "SGD", "PSGD"))
    parser.add_argument("--combine", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--time", type=float, default=1000.0, help="the paper's t")
    parser.add_argument("--group", default="0/1", help="i/n: the i-th of n groups of seeds, for runs in pieces")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    folder = Path(os.environ.get("OUT", "."))
    if chosen.combine:
        combine(chosen.combine, chosen.out or folder / "combined.nc")
    elif chosen.headline:
        index, groups = (int(part) for part in chosen.group.split("/"))
        out = chosen.out or folder / f"headline_{chosen.headline}_{index}of{groups}.nc"
        headline(chosen.headline, chosen.seeds, chosen.dimension, chosen.time, (index, groups), out, chosen.dtype)
    else:
        found = measure(chosen.small)
        if "OUT" in os.environ:
            (folder / "gpu_fixed_data.json").write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
