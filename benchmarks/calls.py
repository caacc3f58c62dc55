"""Measure public calls as a user sees them: the first call and the second one, and their limits.

    python benchmarks/calls.py                    all calls, each in a fresh process
    python benchmarks/calls.py "ODE, ReLU"        those whose name contains this
    python benchmarks/calls.py --cache FOLDER     with a persistent compilation cache
    python benchmarks/calls.py --json FILE        also write the table, for the history
    python benchmarks/calls.py --gpu --seconds 540
                                                  those of a GPU; no row ends later than this

The first call of a process compiles. Its limit is the time that the compiler takes. The second call
runs compiled programs. Its limit is the time inside of the loop that does the work: the steps of
the chain or the integration alone, without arguments, risks and the labelled result.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Call(NamedTuple):
    """A public call, and the function inside of it that does the work.

    Attributes
    ----------
    prepare : callable
        Returns the call as a function without arguments.
    work : str
        Import path of the function that does the work, "module:name", as its caller sees it.
    """

    prepare: Callable[[], Callable[[], Any]]
    work: str


def network(activation: Any, width: int, teachers: int, **options: Any) -> tuple[Any, Any]:
    """A committee machine and a random start at d = 1000."""
    import sgdynamics as sgd

    problem = sgd.TeacherStudent(
        width=width, teacher_width=teachers, activation=activation, noise=0.01, **options
    )
    return problem, sgd.random_start(problem, dimension=1000, seed=0)


def ode(activation: str, width: int, teachers: int) -> Callable[[], Any]:
    """`solve_ode` up to t = 4."""
    import sgdynamics as sgd

    problem, start = network(activation, width, teachers)
    times = np.linspace(0, 4, 17)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=times)


def run_chain(
    problem: Any, runs: int, steps: int, reduce: str | None = None, lr: float = 0.5
) -> Callable[[], Any]:
    """`simulate` by the exact chain with two save points."""
    import sgdynamics as sgd

    start = sgd.random_start(problem, dimension=1000, seed=0)
    setting = {"steps": [steps // 2, steps], "dimension": 1000, "runs": runs, "reduce": reduce}
    return lambda: sgd.simulate(problem, sgd.OnePassSGD(lr=lr), start, **setting)


def chain(
    runs: int,
    steps: int,
    reduce: str | None = None,
    activation: str = "erf",
    width: int = 2,
    teachers: int = 1,
) -> Callable[[], Any]:
    """Runs of a committee machine. The rate of unbounded units is small enough for all runs."""
    problem, _ = network(activation, width, teachers)
    lr = 0.1 if activation == "square" else 0.5
    return run_chain(problem, runs, steps, reduce, lr)


def xor_chain(runs: int, steps: int) -> Callable[[], Any]:
    """Runs on the XOR mixture, width 4."""
    import sgdynamics as sgd

    return run_chain(sgd.GaussianMixture("xor", width=4, snr=10.0), runs, steps)


def attention_chain(runs: int, steps: int) -> Callable[[], Any]:
    """Runs of attention with two tokens."""
    import sgdynamics as sgd

    return run_chain(sgd.models.attention(), runs, steps)


def power_law_chain(runs: int, steps: int) -> Callable[[], Any]:
    """Runs on inputs with the eigenvalues 1/j in 1e6 dimensions: 30 directions and 30 bins."""
    import sgdynamics as sgd

    def target(j: Any) -> Any:
        return np.stack([j**-0.5, j**-0.5 * np.cos(np.log(j))])

    spectrum = sgd.power_law(1.0, 1_000_000, target=target, raw=30, bins=30)
    problem = sgd.TeacherStudent(
        width=4, teacher_width=2, activation="erf", noise=0.01, covariance=spectrum
    )
    start = sgd.random_start(problem)
    setting = {"steps": [steps // 2, steps], "runs": runs}
    algorithm = sgd.OnePassSGD(lr=1.0, per="trace")
    return lambda: sgd.simulate(problem, algorithm, start, **setting)


def own_activation(x: Any) -> Any:
    """An activation without closed forms."""
    import jax.numpy as jnp

    return jnp.tanh(x) + 0.3 * x**2 * jnp.exp(-(x**2) / 4)


def exits() -> Callable[[], Any]:
    """`exit_time` of 24 runs at d = 1000: 35,000 steps of an own activation, head trained."""
    import sgdynamics as sgd

    problem, _ = network(own_activation, 2, 1, head="trained")
    start = sgd.random_start(problem, dimension=1000, runs=24, seed=1)
    setting = {"threshold": 0.9, "method": "exact", "dimension": 1000, "max_time": 17.5}
    return lambda: sgd.exit_time(problem, sgd.OnePassSGD(lr=0.5), start, **setting)


def xor() -> Callable[[], Any]:
    """`solve_ode` of the XOR mixture, width 4."""
    import sgdynamics as sgd

    problem = sgd.GaussianMixture("xor", width=4, snr=10.0)
    start = sgd.random_start(problem, dimension=1000, seed=0)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 1.0, 2.0])


def attention() -> Callable[[], Any]:
    """`solve_ode` of attention with two tokens."""
    import sgdynamics as sgd

    problem = sgd.models.attention()
    start = sgd.random_start(problem, dimension=1000, seed=0)
    times = np.linspace(0, 4, 17)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=times)


def own_loss(fields: Any, signals: Any, head: Any, z: Any) -> Any:
    """A loss that is integrated by sampling."""
    import jax.numpy as jnp

    residual = jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.1 * z
    return jnp.log1p(residual**2)


def sampled_loss() -> Callable[[], Any]:
    """`solve_ode` of an own loss of four units."""
    import sgdynamics as sgd

    problem = sgd.Problem(own_loss, width=4, signals=1)
    start = sgd.random_start(problem, dimension=1000, seed=0)
    times = np.linspace(0, 4, 17)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=times)


def many_starts() -> Callable[[], Any]:
    """`solve_ode` from 20,000 starts."""
    import sgdynamics as sgd

    problem, _ = network("erf", 2, 1)
    start = sgd.random_start(problem, dimension=1000, runs=20_000, seed=0)
    times = np.linspace(0, 4, 17)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=times)


def dmft(
    activation: str = "erf", width: int = 1, teachers: int = 1, paths: int = 4096, steps: int = 40
) -> Callable[[], Any]:
    """`solve_dmft` of gradient descent."""
    import sgdynamics as sgd

    problem, start = network(activation, width, teachers)
    algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=3.0)
    return lambda: sgd.solve_dmft(problem, algorithm, start, steps=[steps // 2, steps], paths=paths)


def sde() -> Callable[[], Any]:
    """`solve_sde`, 64 paths at d = 1000."""
    import sgdynamics as sgd

    problem, start = network("erf", 2, 1)
    setting = {"times": [0.5, 1.0], "dimension": 1000, "runs": 64}
    return lambda: sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.5), start, **setting)


# Start of the lines in which a process reports its measurements.
PREFIX = "measured "

INTEGRATION = "sgdynamics.solvers.batch:run_cases"
SIMULATION = "sgdynamics.solvers.simulate:run_until"
CALLS = {
    "ODE, erf p = 2": Call(lambda: ode("erf", 2, 1), INTEGRATION),
    "ODE, ReLU p = 4, k = 2": Call(lambda: ode("relu", 4, 2), INTEGRATION),
    "ODE, ReLU p = 16, k = 4": Call(lambda: ode("relu", 16, 4), INTEGRATION),
    "ODE, erf p = 64, k = 4": Call(lambda: ode("erf", 64, 4), INTEGRATION),
    "ODE, erf p = 2, 20,000 starts": Call(many_starts, INTEGRATION),
    "ODE, xor p = 4": Call(xor, INTEGRATION),
    "ODE, attention": Call(attention, INTEGRATION),
    "ODE, own loss p = 4": Call(sampled_loss, INTEGRATION),
    "chain, 100 runs x 2000 steps": Call(lambda: chain(100, 2000), SIMULATION),
    "chain, 8192 runs x 256 steps": Call(lambda: chain(1 << 13, 256), SIMULATION),
    "the same, reduce": Call(lambda: chain(1 << 13, 256, "mean"), SIMULATION),
    "exit times, own activation, 24 runs x 35,000 steps": Call(
        exits, "sgdynamics.analysis.exit_simulation:first_passage"
    ),
    "SDE, 64 paths": Call(sde, "sgdynamics.solvers.sde:run"),
    "DMFT, 4096 paths x 40 steps": Call(dmft, ""),
}
# Calls whose sizes are those of a GPU.
GPU_CALLS = {
    "chain, erf p = 1, 2^20 runs x 4096 steps": Call(
        lambda: chain(1 << 20, 4096, width=1), SIMULATION
    ),
    "chain, square p = 4, 2^20 runs x 2048 steps": Call(
        lambda: chain(1 << 20, 2048, activation="square", width=4), SIMULATION
    ),
    "chain, erf p = 8, k = 4, 2^20 runs x 1024 steps": Call(
        lambda: chain(1 << 20, 1024, width=8, teachers=4), SIMULATION
    ),
    "chain, xor p = 4, 2^20 runs x 1024 steps": Call(lambda: xor_chain(1 << 20, 1024), SIMULATION),
    "chain, attention, 2^20 runs x 512 steps": Call(
        lambda: attention_chain(1 << 20, 512), SIMULATION
    ),
    "ODE, erf p = 2, 20,000 starts": CALLS["ODE, erf p = 2, 20,000 starts"],
    "DMFT, 4096 paths x 40 steps": CALLS["DMFT, 4096 paths x 40 steps"],
    "DMFT, ReLU p = 8, k = 3, 65,536 paths x 300 steps": Call(
        lambda: dmft("relu", 8, 3, 1 << 16, 300), ""
    ),
    "chain, power law, 1024 runs x 512 steps": Call(lambda: power_law_chain(1024, 512), SIMULATION),
    "chain, erf p = 2, 2^20 runs x 4096 steps, reduce": Call(
        lambda: chain(1 << 20, 4096, "mean"), SIMULATION
    ),
}


class Timing(NamedTuple):
    """Seconds of a call: elapsed, of all cores, in the compiler, and in the loop of the work."""

    elapsed: float
    cores: float
    compiling: float
    working: float


def measure(name: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure the first and the second call in this process."""
    import jax

    compiling, working = [0.0], [0.0]

    def record_compilation(event: str, duration: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiling[0] += duration

    jax.monitoring.register_event_duration_secs_listener(record_compilation)
    call = (CALLS | GPU_CALLS)[name]
    work = call.prepare()
    if call.work:
        module, _, attribute = call.work.partition(":")
        owner = importlib.import_module(module)
        inner = getattr(owner, attribute)

        def run_work(*arguments: Any, **options: Any) -> Any:
            start_time = time.perf_counter()
            try:
                return jax.block_until_ready(inner(*arguments, **options))
            finally:
                working[0] += time.perf_counter() - start_time

        setattr(owner, attribute, run_work)
    for order in ("first", "second"):
        compiling[0] = working[0] = 0.0
        start_time, start_cores = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
        elapsed, cores = time.perf_counter() - start_time, time.process_time() - start_cores
        yield order, Timing(elapsed, cores, compiling[0], working[0])._asdict()


def describe_in_process() -> dict[str, Any]:
    """Describe this machine from another process: JAX would keep the memory of a GPU."""
    command = [sys.executable, __file__, "--describe"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_in_process(name: str, cache: str | None, seconds: float | None) -> dict[str, Any]:
    """Measure a call in a fresh process, with or without a compilation cache.

    The table of a call that does not end within `seconds` contains what was measured until then.
    """
    environment = {
        key: value for key, value in os.environ.items() if "COMPILATION_CACHE" not in key
    }
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = cache
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    command = [sys.executable, __file__, "--only", name]
    error = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=seconds
        )
        output = done.stdout
        if done.returncode:
            error = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or ""
        output = output.decode() if isinstance(output, bytes) else output
        error = f"stopped after {seconds:.0f} s"
    rows = {}
    for line in output.splitlines():
        if line.startswith(PREFIX):
            rows |= json.loads(line.removeprefix(PREFIX))
    return rows | ({"error": error} if error else {})


def describe_machine() -> dict[str, Any]:
    """Versions, device and load of this machine."""
    import jax

    import sgdynamics as sgd

    device = jax.devices()[0]
    return {
        "sgdynamics": sgd.__version__,
        "jax": jax.__version__,
        "device": f"{device.platform} {device.device_kind}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the names of the calls to measure")
    parser.add_argument("--cache", help="folder of a persistent compilation cache")
    parser.add_argument("--json", help="file to write the table to")
    parser.add_argument("--gpu", action="store_true", help="only the calls of a GPU's sizes")
    parser.add_argument("--seconds", type=float, help="time limit of the whole table")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.describe:
        print(json.dumps(describe_machine()))
        return
    if options.only:
        for order, timing in measure(options.only):
            print(f"{PREFIX}{json.dumps({order: timing})}", flush=True)
        return
    start_time = time.perf_counter()
    wanted = options.names or [""]
    machine = describe_in_process()
    calls = CALLS if machine["device"].startswith("cpu") else CALLS | GPU_CALLS
    calls = GPU_CALLS if options.gpu else calls
    selected = [name for name in calls if any(text in name for text in wanted)]
    rows = {}
    print(f"{machine}\n{'seconds':52s} {'first':>8s} {'compiler':>9s} {'second':>8s} {'work':>8s}")
    for name in selected:
        left = None
        if options.seconds is not None:
            left = max(0.1, options.seconds - (time.perf_counter() - start_time))
        row = rows[name] = measure_in_process(name, options.cache, left)
        text = f"{name:52s}"
        if "first" in row:
            text += f" {row['first']['elapsed']:8.2f} {row['first']['compiling']:9.2f}"
        if "second" in row:
            working = row["second"]["working"] or np.nan
            text += f" {row['second']['elapsed']:8.3f} {working:8.3f}"
        print(text, row.get("error", ""), flush=True)
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "calls": rows}, file, indent=1)
    sys.exit(any("error" in row for row in rows.values()))


if __name__ == "__main__":
    main()
