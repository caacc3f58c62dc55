"""Ratios measured side by side in one run: chain and direct, cost in d, ODE and Euler; exit times, first solve, tokens, spectra, ...

    make bench            everything (a few minutes on 2 cores)

Each ratio has the target that the library promises, and is printed as soon as it is measured; the last line says whether all were met.
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
import sweeps
from sgdynamics.base.random import run_keys
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode import drift as right_hand_side
from sgdynamics.simulation import compressed
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.solvers import functional

RUNS, WIDTH = 64, 8


def numpy_direct(d: int, steps: int, generator: np.random.Generator) -> float:
    """Steps a second of phase retrieval in float32, all runs at once, as a careful NumPy user writes it."""
    weights = generator.standard_normal((RUNS, WIDTH, d), dtype=np.float32) / np.float32(np.sqrt(d))
    teacher = np.zeros(d, np.float32)
    teacher[0] = 1.0
    rate = np.float32(0.1 / d)
    began = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((RUNS, d), dtype=np.float32)
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        residual = (x @ teacher) ** 2 - np.mean(fields**2, axis=1)
        weights += (rate * 2 / WIDTH * residual[:, None] * fields)[:, :, None] * x[:, None, :]
    return steps / (time.perf_counter() - began)


def chain(d: int):
    """The exact chain at d, compiled, with its state."""
    problem = sgd.TeacherStudent(width=WIDTH, activation="square")
    begin = sgd.random_start(problem, dimension=d, runs=RUNS)
    simulator = ExactChain(problem, sgd.OnePassSGD(lr=0.1), begin, d, problem.block_dimensions(d))
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, compressed.SPAN))
    return simulator, state, keys


def chain_speed(made, steps: int) -> float:
    simulator, state, keys = made
    began = time.perf_counter()
    jax.block_until_ready(simulator.advance(state, keys, 0, steps))
    return steps / (time.perf_counter() - began)


def simulation() -> Iterator[tuple[str, float, float, bool]]:
    generator = np.random.default_rng(0)
    chains = {d: chain(d) for d in (1000, 3000, 100_000, 10_000_000)}
    for d, direct_steps, target in ((3000, 60, 25.0), (100_000, 3, 800.0)):
        # interleaved: a slow moment of the machine hits both
        ratios = [
            chain_speed(chains[d], 4096) / numpy_direct(d, direct_steps, generator)
            for _ in range(3)
        ]
        yield (
            f"exact chain (float64) / NumPy direct (float32), steps a second, p = 8, d = {d}",
            float(np.median(ratios)),
            target,
            True,
        )
    ratios = [
        chain_speed(chains[1000], 8192) / chain_speed(chains[10_000_000], 8192) for _ in range(5)
    ]
    yield "exact chain, time at d = 1e7 / time at d = 1e3", float(np.median(ratios)), 1.2, False


def integrator() -> tuple[str, float, float, bool]:
    problem = sgd.TeacherStudent(width=8, teacher_width=4, activation="erf", noise=1e-3)
    generator = np.random.default_rng(1)
    M = 0.2 * generator.standard_normal((8, 4))
    begin = sgd.start(problem, M=M, Q=M @ M.T + np.eye(8))
    state = functional.state(begin)
    quadrature = Quadrature()
    nodes = {
        name: value[0]
        for name, value in expectation_of(problem.structure).nodes(quadrature, False).items()
    }
    algorithm = {"lr": np.float64(1.0), "head_rate": np.float64(1.0)}

    def field(y):
        return right_hand_side.drift(
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

    def timed(function):
        began = time.perf_counter()
        jax.block_until_ready(function(state))
        return time.perf_counter() - began

    reference, rough = adaptive(state), euler(state)
    gap = float(jnp.max(jnp.abs(reference["Q"] - rough["Q"])))
    ratios = [timed(euler) / timed(adaptive) for _ in range(3)]
    label = f"Euler dt = .01 / adaptive rtol 1e-8, time, erf p = 8, k = 4, T = 100 (Euler is off by {gap:.1e})"
    return label, float(np.median(ratios)), 10.0, True


FIRST_SOLVE = """
import time; began = time.perf_counter()
import numpy as np, sgdynamics as sgd
imported = time.perf_counter()
problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-3)
begin = sgd.start(problem, M=0.1 * np.ones((4, 2)), Q=np.eye(4))
sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), begin, times=np.linspace(0, 10, 50))
print(time.perf_counter() - imported)
"""


def first_solve() -> tuple[str, float, float, bool]:
    """Seconds of a first solve in a fresh process, compile included, import not."""
    out = subprocess.run(
        [sys.executable, "-c", FIRST_SOLVE], check=True, capture_output=True, text=True
    )
    return (
        "first solve in a fresh process, compile included, seconds",
        float(out.stdout),
        10.0,
        False,
    )


def exit_times() -> tuple[str, float, float, bool]:
    """Seconds for the exit time of 1000 runs of phase retrieval through the chain, compile included."""
    problem = sgd.TeacherStudent(width=4, activation="square", constraint="sphere")
    begin = sgd.random_start(problem, dimension=10_000, runs=1000)
    began = time.perf_counter()
    found = sgd.exit_time(
        problem,
        sgd.OnePassSGD(lr=0.4),
        begin,
        threshold=0.1,
        method="exact",
        dimension=10_000,
        seed=1,
    )
    label = f"exit times of 1000 runs, p = 4, d = 1e4, lr/p = .1, T = .1, seconds ({found})"
    return label, time.perf_counter() - began, 120.0, False


def rows() -> Iterator[tuple[str, float, float, bool]]:
    """Each as soon as it is measured: label, value, target, whether that is the least (or the most)."""
    with jax.enable_x64(True):
        yield from simulation()
        yield integrator()
        yield from sequences.ratios()
        yield from spectra.ratios()
    yield exit_times()
    yield first_solve()
    yield from optimisers.ratios()
    yield from protocols.ratios()
    yield from mixtures.rows()
    yield from dmft_iteration.rows()
    yield sweeps.row()


def main() -> int:
    met = True
    for label, value, target, at_least in rows():
        good = value >= target if at_least else value <= target
        met &= good
        print(
            f"{value:10.2f}  (target {'>=' if at_least else '<='} {target:g}, {'met' if good else 'MISSED'})  {label}",
            flush=True,
        )
    print("all targets met" if met else "some targets missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
