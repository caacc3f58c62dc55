"""Measure the exact chain on the XOR Gaussian mixture.

The measurements are the time of the 1000 runs of figure 3 of the paper on effective dynamics, and
the speed of the chain compared with direct simulation, measured in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds
from sgdynamics.base.random import run_keys
from sgdynamics.papers.effective_dynamics.outcomes import active_types
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run

RUNS, WIDTH, DECAY, SNR = 64, 4, 0.1, 1000.0
N, TIME, FIGURE_RUNS = 250, 300.0, 1000  # dimension, time and runs of figure 3


def numpy_direct(d: int, steps: int, generator: np.random.Generator) -> float:
    """Measure the steps per second of vectorised NumPy code for the XOR mixture, in float32.

    The network is a ReLU layer with a trained head and logistic loss; the classes are the clusters
    +-mu and +-nu. All runs advance together.
    """
    weights = generator.standard_normal((RUNS, WIDTH, d), dtype=np.float32) / np.float32(np.sqrt(d))
    head = generator.standard_normal((RUNS, WIDTH), dtype=np.float32)
    rate, shrinkage = np.float32(1 / d), np.float32(1 - DECAY / d)
    scale = np.float32(SNR**-0.5)
    run_index = np.arange(RUNS)
    start_time = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((RUNS, d), dtype=np.float32)
        x *= scale
        cluster = generator.integers(4, size=RUNS)  # +mu, -mu, +nu, -nu along the first two axes
        x[run_index, cluster // 2] += (1 - 2 * (cluster % 2)).astype(np.float32)
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        hidden = np.maximum(fields, 0)
        error = 1 / (1 + np.exp(-np.sum(head * hidden, axis=1))) - (cluster < 2)
        slope = (rate * error[:, None] * head * (fields > 0)).astype(np.float32)
        weights *= shrinkage
        weights -= slope[:, :, None] * x[:, None, :]
        head = shrinkage * head - (rate * error[:, None] * hidden).astype(np.float32)
    return steps / (time.perf_counter() - start_time)


def compile_simulator(simulator_class, d: int):
    """Compile the exact chain or direct SGD (float64) at d; return it with its state and keys."""
    problem = sgd.GaussianMixture("xor", snr=SNR, weight_decay=DECAY)
    start = sgd.random_start(problem, dimension=d, runs=RUNS)
    simulator = simulator_class(
        problem, sgd.OnePassSGD(lr=1.0), RunSetting(start, d, problem.block_dimensions(d))
    )
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, simulator.grain))
    return simulator, state, keys


def measure_speed(compiled, steps: int) -> float:
    """Measure the steps per second of a compiled simulator."""
    simulator, state, keys = compiled
    return steps / measure_seconds(lambda: simulator.advance(state, keys, 0, steps))


def chain_speed() -> Iterator[Measurement]:
    """Compare the speeds of the exact chain, of direct simulation and of NumPy."""
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        for d, direct_steps, target in ((N, 200, 10.0), (10_000, 10, 100.0)):
            chain = compile_simulator(ExactChain, d)
            direct = compile_simulator(DirectSGD, d)
            # The three are measured in turn, so that a slow moment of the machine affects all.
            speeds = [
                (
                    measure_speed(chain, 4096),
                    measure_speed(direct, direct_steps),
                    numpy_direct(d, direct_steps, generator),
                )
                for _ in range(5)
            ]
            over_direct = float(np.median([chain / direct for chain, direct, _ in speeds]))
            over_numpy = float(np.median([chain / numpy for chain, _, numpy in speeds]))
            label = (
                "exact chain / method='direct' (both float64), steps per second, XOR mixture,"
                f" {RUNS} runs, N = {d} (over NumPy in float32: {over_numpy:.1f})"
            )
            yield Measurement(label, over_direct, target, True)


def figure_runs() -> Measurement:
    """Measure the runs of figure 3(a), with compilation."""
    start_time = time.perf_counter()
    problem = sgd.GaussianMixture("xor", snr=SNR, weight_decay=DECAY)
    start = sgd.random_start(problem, dimension=N, runs=FIGURE_RUNS)
    setting = RunSetting(start, N, problem.block_dimensions(N))
    simulator = ExactChain(problem, sgd.OnePassSGD(lr=1.0), setting)
    steps = np.rint(np.linspace(0, TIME, 25) * N).astype(np.int64)
    states, _ = run(simulator, FIGURE_RUNS, steps, 1, "XOR", False)
    active = active_types("xor", states["M"].sum(axis=2)[:, -1], states["a"][:, -1], DECAY)
    optimal_fraction = active.all(axis=-1).mean()
    label = (
        f"{FIGURE_RUNS} chain runs of the XOR figure, N = {N}, t = {TIME:g}, with compilation,"
        f" seconds ({optimal_fraction:.3f} of the runs optimal, theory 3/32 = 0.094)"
    )
    return Measurement(label, time.perf_counter() - start_time, 120.0, False)


def measurements() -> Iterator[Measurement]:
    """Yield all measurements of mixtures."""
    yield figure_runs()
    yield from chain_speed()
