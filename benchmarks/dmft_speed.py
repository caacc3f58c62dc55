"""Measure `solve_dmft`: seconds without compilation, and bandwidth compared with the memory.

    python benchmarks/dmft_speed.py                       this checkout alone
    python benchmarks/dmft_speed.py --against PATH        ratios to the library in the folder PATH,
                                                          the src of another checkout
    python benchmarks/dmft_speed.py --size gpu            sizes for a GPU
    python benchmarks/dmft_speed.py --case GD --runs 1    a single case

Each measurement is a new process, and the two checkouts take turns, so that other load of the
machine affects both. The fastest of the runs counts. The bandwidth assumes one read per step of the
projections P and A, at the mean number of directions in use, which follows from the rank. The
seconds and the bytes include the additional solution with a quarter of the paths, which
`solve_dmft` needs for its error estimate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES = {  # (paths, steps) of each case
    "small": {"GD": (4096, 40), "SGD": (4096, 40), "ReLU": (1024, 6)},
    "cpu": {"GD": (16384, 300), "SGD": (16384, 300), "ReLU": (16384, 160)},
    "gpu": {"GD": (1 << 20, 1000), "SGD": (1 << 18, 300), "ReLU": (65536, 300)},
}
# Targets of the ratio of the two times, for --against.
TARGETS = {"cpu": {"GD": 2.5, "SGD": 2.5, "ReLU": 2.0}, "gpu": {"GD": 8.0, "ReLU": 15.0}}
WIDTHS = {"GD": 1, "SGD": 1, "ReLU": 8}
QUARTER_SOLUTION = 1.25  # work with the additional solution for the error estimate


def solve(case: str, paths: int, steps: int, dtype: str) -> dict[str, float]:
    """Solve a case twice; return seconds of the second solution, its rank and training risk."""
    import sgdynamics as sgd

    if case == "GD":  # phase retrieval on the sphere
        problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
        algorithm = sgd.GradientDescent(lr=0.02, samples_per_dimension=2.0)
        start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    elif case == "SGD":
        problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
        algorithm = sgd.MultiPassSGD(lr=0.3, samples_per_dimension=2.0, batch_fraction=0.5)
        start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    else:
        problem = sgd.TeacherStudent(width=8, teacher_width=3, activation="relu", noise=0.05)
        algorithm = sgd.MultiPassSGD(lr=0.2, samples_per_dimension=3.0, batch_fraction=0.5)
        start = sgd.random_start(problem, dimension=1000, seed=1)
    options: dict[str, Any] = {"steps": [steps], "paths": paths, "progress": False}
    if hasattr(sgd, "DMFT"):
        options["method"] = sgd.DMFT(dtype=dtype)
    else:  # in older checkouts the options were arguments
        options["dtype"] = dtype
    sgd.solve_dmft(problem, algorithm, start, **options)  # compiles
    start_time, start_cpu_time = time.perf_counter(), time.process_time()
    result = sgd.solve_dmft(problem, algorithm, start, **options)
    seconds = time.perf_counter() - start_time
    cpu_seconds = time.process_time() - start_cpu_time
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "rank": float(result.attrs["rank"]),
        "risk": float(result["train_risk"][0, -1]),
        "error": float(result["train_risk_standard_error"][0, -1]),
    }


def bandwidth() -> float:
    """Measure the bytes per second of a sum over an array that is larger than any cache."""
    import jax
    import jax.numpy as jnp

    array = jnp.ones((1 << 28,), jnp.float32)
    total = jax.jit(jnp.sum)
    total(array).block_until_ready()
    start_time = time.perf_counter()
    for _ in range(5):
        total(array).block_until_ready()
    return 5 * array.nbytes / (time.perf_counter() - start_time)


def solve_in_process(source: Path, case: str, size: str, dtype: str) -> dict[str, float]:
    """Call `solve` in a new process that imports the library from the folder `source`."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--inner", case, "--size", size, "--dtype", dtype]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])
    return json.loads(process.stdout.splitlines()[-1])


def describe_speed(case: str, arguments: argparse.Namespace, best: dict, speed: float) -> str:
    """Describe seconds and bandwidth of a solution, given the bandwidth `speed` of the memory.

    The number of directions grows by up to p per step until it reaches the rank r, which takes the
    fraction f = r/(p steps) of the steps. Its mean over the steps is r (1 - f/2).
    """
    paths, steps = SIZES[arguments.size][case]
    rank, p = best["rank"], WIDTHS[case]
    growth_fraction = min(1.0, rank / (p * steps))
    mean_directions = rank * (1 - growth_fraction / 2)
    itemsize = 8 if arguments.dtype == "float64" else 4
    read_bytes = 2 * itemsize * QUARTER_SOLUTION * paths * steps * mean_directions
    bytes_per_second = read_bytes / best["seconds"]
    return (
        f"{case}, p = {p}, {paths} paths x {steps} steps, rank {rank:.0f}: {best['seconds']:.2f} s,"
        f" {read_bytes / 1e9:.3g} GB at {bytes_per_second / 1e9:.3g} GB/s,"
        f" {bytes_per_second / speed:.2f} of the memory bandwidth"
    )


def describe_comparison(case: str, size: str, own: dict, other: dict) -> str:
    """Describe the ratio of the times of two checkouts and the difference of their results."""
    ratio = other["seconds"] / own["seconds"]
    cpu_ratio = other["cpu_seconds"] / own["cpu_seconds"]
    error = max(1e-300, math.hypot(own["error"], other["error"]))
    difference = abs(own["risk"] - other["risk"]) / error
    target = TARGETS.get(size, {}).get(case)
    promise = f" (target {target:g})" if target else ""
    return (
        f"; other checkout {other['seconds']:.2f} s: {ratio:.1f} times{promise},"
        f" in processor time {cpu_ratio:.1f};"
        f" the training risks differ by {difference:.1f} standard errors"
    )


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--case", choices=sorted(WIDTHS), action="append")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:  # the process of a single measurement
        paths, steps = SIZES[arguments.size][arguments.inner]
        print(json.dumps(solve(arguments.inner, paths, steps, arguments.dtype)))
        return
    own = Path(__file__).resolve().parents[1] / "src"
    speed = bandwidth()
    print(f"memory: {speed / 1e9:.3g} GB/s")
    sources = [own] if arguments.against is None else [own, arguments.against]
    for case in arguments.case or list(WIDTHS):
        measurements: dict[Path, list[dict[str, float]]] = {source: [] for source in sources}
        for _ in range(arguments.runs):
            for source in sources:
                measurement = solve_in_process(source, case, arguments.size, arguments.dtype)
                measurements[source].append(measurement)
        best = {
            source: min(runs, key=lambda run: run["seconds"])
            for source, runs in measurements.items()
        }
        line = describe_speed(case, arguments, best[own], speed)
        if arguments.against is not None:
            other = best[arguments.against]
            line += describe_comparison(case, arguments.size, best[own], other)
        print(line, flush=True)


if __name__ == "__main__":
    main()
