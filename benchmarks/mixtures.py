"""The exact chain on the XOR Gaussian mixture: 1000 runs of figure 3, and chain against direct simulation, side by side in one run.

`rows` gives (label, value, target, at least) for `make bench`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import numpy as np

import sgdynamics as sgd
from sgdynamics.base.random import run_keys
from sgdynamics.papers.effective_dynamics.outcomes import active_types
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import run

RUNS, WIDTH, DECAY, SNR = 64, 4, 0.1, 1000.0
N, TIME, FIGURE_RUNS = 250, 300.0, 1000  # of figure 3

Row = tuple[str, float, float, bool]


def numpy_direct(d: int, steps: int, generator: np.random.Generator) -> float:
    """Steps a second of the XOR mixture in float32, all runs at once, as a careful NumPy user writes it."""
    weights = generator.standard_normal((RUNS, WIDTH, d), dtype=np.float32) / np.float32(np.sqrt(d))
    head = generator.standard_normal((RUNS, WIDTH), dtype=np.float32)
    rate, keep, spread = np.float32(1 / d), np.float32(1 - DECAY / d), np.float32(SNR**-0.5)
    every = np.arange(RUNS)
    began = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((RUNS, d), dtype=np.float32)
        x *= spread
        cluster = generator.integers(4, size=RUNS)  # +mu, -mu, +nu, -nu along the first two axes
        x[every, cluster // 2] += (1 - 2 * (cluster % 2)).astype(np.float32)
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        hidden = np.maximum(fields, 0)
        error = 1 / (1 + np.exp(-np.sum(head * hidden, axis=1))) - (cluster < 2)
        pull = (rate * error[:, None] * head * (fields > 0)).astype(np.float32)
        weights *= keep
        weights -= pull[:, :, None] * x[:, None, :]
        head = keep * head - (rate * error[:, None] * hidden).astype(np.float32)
    return steps / (time.perf_counter() - began)


def made(simulator_of, d: int):
    """The exact chain or direct SGD (float64) at d, compiled, with its state and keys."""
    problem = sgd.GaussianMixture("xor", snr=SNR, weight_decay=DECAY)
    begin = sgd.random_start(problem, dimension=d, runs=RUNS)
    simulator = simulator_of(problem, sgd.OnePassSGD(lr=1.0), begin, d, problem.block_dimensions(d))
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, simulator.grain))
    return simulator, state, keys


def speed(one, steps: int) -> float:
    simulator, state, keys = one
    began = time.perf_counter()
    jax.block_until_ready(simulator.advance(state, keys, 0, steps))
    return steps / (time.perf_counter() - began)


def against_direct() -> Iterator[Row]:
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        for d, direct_steps, target in ((N, 200, 10.0), (10_000, 10, 100.0)):
            chain, direct = made(ExactChain, d), made(DirectSGD, d)
            # interleaved: a slow moment of the machine hits all three
            speeds = [
                (
                    speed(chain, 4096),
                    speed(direct, direct_steps),
                    numpy_direct(d, direct_steps, generator),
                )
                for _ in range(5)
            ]
            ours, careful = (float(np.median([one[0] / one[n] for one in speeds])) for n in (1, 2))
            label = f"exact chain / method='direct' (both float64), steps a second, XOR mixture, {RUNS} runs, N = {d}"
            yield f"{label}; against NumPy in float32 {careful:.1f}", ours, target, True


def figure_runs() -> Row:
    """Seconds for the runs of figure 3(a), compile included."""
    began = time.perf_counter()
    problem = sgd.GaussianMixture("xor", snr=SNR, weight_decay=DECAY)
    begin = sgd.random_start(problem, dimension=N, runs=FIGURE_RUNS)
    simulator = ExactChain(problem, sgd.OnePassSGD(lr=1.0), begin, N, problem.block_dimensions(N))
    steps = np.rint(np.linspace(0, TIME, 25) * N).astype(np.int64)
    found, _ = run(simulator, FIGURE_RUNS, steps, 1, "XOR", False)
    share = (
        active_types("xor", found["M"].sum(axis=2)[:, -1], found["a"][:, -1], DECAY)
        .all(axis=-1)
        .mean()
    )
    label = f"{FIGURE_RUNS} chain runs of the XOR figure, N = {N}, t = {TIME:g}, compile included, seconds ({share:.3f} optimal, 3/32 = .094)"
    return label, time.perf_counter() - began, 120.0, False


def rows() -> Iterator[Row]:
    yield figure_runs()
    yield from against_direct()
