"""solve_dmft against another checkout of the library, side by side: seconds without compile, bytes moved, and the memory's own speed.

    python benchmarks/dmft_speed.py --against PATH        PATH: the src folder of another checkout; ratios of the fastest of three runs each
    python benchmarks/dmft_speed.py --size gpu            sizes for a GPU: 1.05e6 paths x 1000 steps, p = 8 with 65536 x 300
    python benchmarks/dmft_speed.py --case GD --runs 1    one case alone

Each checkout runs in a process of its own, one after the other, and again in turn: what else runs on the machine hits both. Bytes are those
of one read of P and A a step, at the directions in use (the mean over steps, from the rank); seconds are of the whole solution, whose
quarter of the paths is counted too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES = {  # paths, steps
    "small": {"GD": (4096, 40), "SGD": (4096, 40), "ReLU": (1024, 6)},
    "cpu": {"GD": (16384, 300), "SGD": (16384, 300), "ReLU": (16384, 160)},
    "gpu": {"GD": (1 << 20, 1000), "SGD": (1 << 18, 300), "ReLU": (65536, 300)},
}
TARGETS = {"cpu": {"GD": 2.5, "SGD": 2.5, "ReLU": 2.0}, "gpu": {"GD": 8.0, "ReLU": 15.0}}
WIDTHS = {"GD": 1, "SGD": 1, "ReLU": 8}


def solved(case: str, paths: int, steps: int, dtype: str) -> dict[str, float]:
    """Seconds of a solution whose programs are compiled, its rank and training risk."""
    import sgdynamics as sgd

    if case == "GD":  # phase retrieval on the sphere
        problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
        algorithm, begin = (
            sgd.GradientDescent(lr=0.02, samples_per_dimension=2.0),
            sgd.start(problem, M=[[0.5]], Q=[[1.0]]),
        )
    elif case == "SGD":
        problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
        algorithm = sgd.MultiPassSGD(lr=0.3, samples_per_dimension=2.0, batch_fraction=0.5)
        begin = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    else:
        problem = sgd.TeacherStudent(width=8, teacher_width=3, activation="relu", noise=0.05)
        algorithm = sgd.MultiPassSGD(lr=0.2, samples_per_dimension=3.0, batch_fraction=0.5)
        begin = sgd.random_start(problem, dimension=1000, seed=1)
    more: dict[str, Any] = {"steps": [steps], "paths": paths, "progress": False}
    if hasattr(sgd, "DMFT"):
        more["method"] = sgd.DMFT(dtype=dtype)
    else:  # an older checkout, in which the options were arguments
        more["dtype"] = dtype
    sgd.solve_dmft(problem, algorithm, begin, **more)
    began, busy = time.perf_counter(), time.process_time()
    found = sgd.solve_dmft(problem, algorithm, begin, **more)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    risk, error = (
        float(found[name][0, -1]) for name in ("train_risk", "train_risk_standard_error")
    )
    return {
        "seconds": seconds,
        "busy": busy,
        "rank": float(found.attrs["rank"]),
        "risk": risk,
        "error": error,
    }


def bandwidth() -> float:
    """Bytes a second of a sum over an array that no cache holds."""
    import jax
    import jax.numpy as jnp

    values = jnp.ones((1 << 28,), jnp.float32)
    total = jax.jit(jnp.sum)
    total(values).block_until_ready()
    began = time.perf_counter()
    for _ in range(5):
        total(values).block_until_ready()
    return 5 * values.nbytes / (time.perf_counter() - began)


def measured(source: Path | None, case: str, size: str, dtype: str) -> dict[str, float]:
    """The same in a process of its own, with the library from there."""
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    command = [sys.executable, __file__, "--inner", case, "--size", size, "--dtype", dtype]
    made = subprocess.run(command, env=environment, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(made.stderr[-2000:])
    return json.loads(made.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--case", choices=sorted(WIDTHS), action="append")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inner:
        print(json.dumps(solved(given.inner, *SIZES[given.size][given.inner], given.dtype)))
        return
    own = Path(__file__).resolve().parents[1] / "src"
    speed = bandwidth()
    print(f"memory: {speed / 1e9:.3g} GB/s")
    for case in given.case or list(WIDTHS):
        paths, steps = SIZES[given.size][case]
        sources = [own] if given.against is None else [own, given.against]
        runs = [
            [measured(source, case, given.size, given.dtype) for source in sources]
            for _ in range(given.runs)
        ]
        best = [
            min((run[place] for run in runs), key=lambda one: one["seconds"])
            for place in range(len(sources))
        ]
        rank, p = best[0]["rank"], WIDTHS[case]
        filling = min(1.0, rank / (p * steps))
        used = rank * (1 - filling / 2)
        moved = 2 * (8 if given.dtype == "float64" else 4) * 1.25 * paths * steps * used
        line = f"{case}, p = {p}, {paths} paths x {steps} steps, rank {rank:.0f}: {best[0]['seconds']:.2f} s"
        pace = moved / best[0]["seconds"]
        line += (
            f", {moved / 1e9:.3g} GB at {pace / 1e9:.3g} GB/s, {pace / speed:.2f} of the memory's"
        )
        if given.against is not None:
            ratio, busy = (best[1][name] / best[0][name] for name in ("seconds", "busy"))
            gap = abs(best[0]["risk"] - best[1]["risk"]) / max(
                1e-300, (best[0]["error"] ** 2 + best[1]["error"] ** 2) ** 0.5
            )
            target = TARGETS.get(given.size, {}).get(case)
            line += f"; there {best[1]['seconds']:.2f} s: {ratio:.1f} times" + (
                f" (target {target:g})" if target else ""
            )
            line += f", in processor time {busy:.1f}; train risks {gap:.1f} standard errors apart"
        print(line, flush=True)


if __name__ == "__main__":
    main()
