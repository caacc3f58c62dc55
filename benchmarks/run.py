"""Measure the speed of the library as ratios, side by side in one run.

    make bench            all benchmarks (a few minutes on 2 cores)

Most rows are ratios of two times measured on the same machine in turn, so that they hardly depend
on the machine. Each row has the target that the library promises and is printed as soon as it is
measured. The last line reports whether all targets are met, and so does the exit status.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import dmft_iteration
import mixtures
import optimisers
import protocols
import sequences
import sgdynamics as sgd
import spectra
import statics
import sweeps
import tops
import updates_on_data
import wide
from measurement import Measurement, measure_seconds
from sgdynamics.base.random import run_keys
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode import drift as ode_drift
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.layout import SPAN
from sgdynamics.simulation.running import RunSetting
from sgdynamics.solvers import functional

RUNS, WIDTH = 64, 8


def numpy_direct(d: int, steps: int, generator: np.random.Generator) -> float:
    """Measure the steps per second of vectorised NumPy code for phase retrieval, in float32.

    All runs advance together, which is the fastest form that plain NumPy allows.
    """
    weights = generator.standard_normal((RUNS, WIDTH, d), dtype=np.float32) / np.float32(np.sqrt(d))
    teacher = np.zeros(d, np.float32)
    teacher[0] = 1.0
    rate = np.float32(0.1 / d)
    start_time = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((RUNS, d), dtype=np.float32)
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        residual = (x @ teacher) ** 2 - np.mean(fields**2, axis=1)
        weights += (rate * 2 / WIDTH * residual[:, None] * fields)[:, :, None] * x[:, None, :]
    return steps / (time.perf_counter() - start_time)


def compile_chain(d: int):
    """Compile the exact chain in dimension d; return the simulator, its state and random keys."""
    problem = sgd.TeacherStudent(width=WIDTH, activation="square")
    start = sgd.random_start(problem, dimension=d, runs=RUNS)
    setting = RunSetting(start, d, problem.block_dimensions(d))
    simulator = ExactChain(problem, sgd.OnePassSGD(lr=0.1), setting)
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, SPAN))
    return simulator, state, keys


def chain_speed(chain, steps: int) -> float:
    """Measure the steps per second of a compiled chain."""
    simulator, state, keys = chain
    return steps / measure_seconds(lambda: simulator.advance(state, keys, 0, steps))


def simulation() -> Iterator[Measurement]:
    """Compare the exact chain with direct simulation, and its cost at two dimensions."""
    generator = np.random.default_rng(0)
    chains = {d: compile_chain(d) for d in (1000, 3000, 100_000, 10_000_000)}
    for d, direct_steps, target in ((3000, 60, 25.0), (100_000, 3, 800.0)):
        # The two are measured in turn, so that a slow moment of the machine affects both.
        ratios = [
            chain_speed(chains[d], 4096) / numpy_direct(d, direct_steps, generator)
            for _ in range(3)
        ]
        yield Measurement(
            f"exact chain (float64) / NumPy direct (float32), steps per second, p = 8, d = {d}",
            float(np.median(ratios)),
            target,
            True,
        )
    ratios = [
        chain_speed(chains[1000], 8192) / chain_speed(chains[10_000_000], 8192) for _ in range(5)
    ]
    yield Measurement(
        "exact chain, time at d = 1e7 / time at d = 1e3", float(np.median(ratios)), 1.2, False
    )


def integrator() -> Measurement:
    """Compare the adaptive integrator with compiled Euler steps that are much less accurate."""
    problem = sgd.TeacherStudent(width=8, teacher_width=4, activation="erf", noise=1e-3)
    generator = np.random.default_rng(1)
    M = 0.2 * generator.standard_normal((8, 4))
    start = sgd.start(problem, M=M, Q=M @ M.T + np.eye(8))
    state = functional.state(start)
    quadrature = Quadrature()
    nodes = {
        name: sets[0]
        for name, sets in expectation_of(problem.structure).nodes(quadrature, False).items()
    }
    algorithm = {"lr": np.float64(1.0), "head_rate": np.float64(1.0)}

    def field(y):
        return ode_drift.drift(
            problem.structure, quadrature, nodes, problem.parameters, algorithm, y
        )

    @jax.jit
    def euler(y):
        return jax.lax.fori_loop(
            0, 10_000, lambda _, y: jax.tree.map(lambda a, b: a + 0.01 * b, y, field(y)), y
        )

    @jax.jit
    def adaptive(y):
        return functional.solve(
            problem.structure, problem.parameters, y, [100.0], lr=1.0, last=True
        )

    # These calls also compile both functions.
    euler_error = float(jnp.max(jnp.abs(adaptive(state)["Q"] - euler(state)["Q"])))
    ratios = [
        measure_seconds(lambda: euler(state)) / measure_seconds(lambda: adaptive(state))
        for _ in range(3)
    ]
    label = (
        "Euler with dt = 0.01 / adaptive integrator with rtol = 1e-8, time, erf p = 8, k = 4,"
        f" T = 100 (error of Euler {euler_error:.1e})"
    )
    return Measurement(label, float(np.median(ratios)), 10.0, True)


FIRST_SOLVE = """
import time
import numpy as np, sgdynamics as sgd
imported = time.perf_counter()
problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-3)
start = sgd.start(problem, M=0.1 * np.ones((4, 2)), Q=np.eye(4))
sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=np.linspace(0, 10, 50))
print(time.perf_counter() - imported)
"""


def first_solve() -> Measurement:
    """Measure the first solve in a new process, with compilation and without the import."""
    process = subprocess.run(
        [sys.executable, "-c", FIRST_SOLVE], check=True, capture_output=True, text=True
    )
    return Measurement(
        "first solve in a new process, with compilation, seconds",
        float(process.stdout),
        10.0,
        False,
    )


def exit_times() -> Measurement:
    """Measure 1000 exit times of phase retrieval by the exact chain, with compilation."""
    problem = sgd.TeacherStudent(width=4, activation="square", constraint="sphere")
    start = sgd.random_start(problem, dimension=10_000, runs=1000)
    start_time = time.perf_counter()
    times = sgd.exit_time(
        problem,
        sgd.OnePassSGD(lr=0.4),
        start,
        threshold=0.1,
        method="exact",
        dimension=10_000,
        seed=1,
    )
    seconds = time.perf_counter() - start_time
    label = f"exit times of 1000 runs, p = 4, d = 1e4, lr/p = 0.1, threshold 0.1, seconds ({times})"
    return Measurement(label, seconds, 120.0, False)


def measurements() -> Iterator[Measurement]:
    """Yield the measurements, each as soon as it is complete."""
    with jax.enable_x64(True):
        yield from simulation()
        yield integrator()
        yield from sequences.ratios()
        yield from spectra.ratios()
    yield exit_times()
    yield first_solve()
    yield from optimisers.ratios()
    yield from updates_on_data.ratios()
    yield from protocols.ratios()
    yield from mixtures.measurements()
    yield from tops.ratios()
    yield from wide.ratios()
    yield from statics.curves()
    yield dmft_iteration.measure()
    yield sweeps.measure()


def main() -> int:
    """Print all measurements; return 0 if all targets are met and 1 otherwise."""
    all_met = True
    for measurement in measurements():
        print(measurement, flush=True)
        all_met &= measurement.meets_target
    print("all targets met" if all_met else "some targets missed")
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
