"""Measure the speed of the exact chain on a GPU, as one kernel and step by step.

    python benchmarks/gpu_chain.py [--widths 1 2 4 8] [--losses square erf relu own]

The table contains run-steps per second with many runs, and the time of a step with few runs, for
random numbers drawn inside of the kernel, before the kernel, and without the kernel.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from measurement import measure_seconds
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu.chain import KernelChain
from sgdynamics.simulation.running import RunSetting

DIMENSION = 100_000
MANY, FEW = 1 << 20, 1 << 14  # numbers of runs
MIN_SECONDS = 0.3  # shortest measurement


def own_loss(fields: Any, signals: Any, head: Any, noise: Any) -> Any:
    """Logistic loss of a network with sine units, as an example of a user's own loss."""
    return jnp.logaddexp(
        0.0, -jnp.tanh(signals[0]) * jnp.mean(head * jnp.sin(fields)) + 0.1 * noise
    )


def chains(width: int, loss: str) -> tuple[KernelChain, ExactChain]:
    """Build the same chain as one GPU kernel and step by step."""
    problem: Any = (
        sgd.Problem(own_loss, width=width, signals=1)
        if loss == "own"
        else sgd.TeacherStudent(width=width, activation=loss, noise=0.1)
    )
    start = sgd.start(problem, M=np.full((width, 1), 0.1), Q=np.eye(width))
    setting = RunSetting(start, DIMENSION, np.array([DIMENSION]))
    arguments = (problem, sgd.OnePassSGD(lr=0.05), setting)
    return KernelChain(*arguments), ExactChain(*arguments)


@float64
def measure_step(chain: ExactChain, runs: int, steps: int) -> tuple[float, float]:
    """Measure the seconds per step of all runs, and the seconds of the first call, which compiles.

    The number of steps increases until the measurement takes MIN_SECONDS.
    """
    state, keys = chain.initial(np.zeros(runs, int)), run_keys(0, np.arange(runs))
    first_call = measure_seconds(lambda: chain.advance(state, keys, 0, steps))
    elapsed = measure_seconds(lambda: chain.advance(state, keys, 0, steps))
    while elapsed < MIN_SECONDS:
        steps *= 4
        elapsed = measure_seconds(lambda steps=steps: chain.advance(state, keys, 0, steps))
    return elapsed / steps, first_call


def main() -> None:
    """Print one row per loss and width."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--losses", nargs="+", default=["square", "erf", "relu", "own"])
    arguments = parser.parse_args()
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        raise SystemExit(
            f"This benchmark needs a GPU, but JAX uses {device.device_kind}."
            " For a CPU, run benchmarks/run.py."
        )
    print(
        f"{device.device_kind}, float64\n"
        f"kernel: run-steps per second of one kernel with {MANY} runs\n"
        f"stepwise: run-steps per second step by step with {FEW} runs\n"
        f"us inside, us ahead: microseconds of a step of {FEW} runs in one kernel,"
        " with random numbers drawn inside of the kernel and ahead of it\n"
        f"us stepwise: microseconds of a step of {FEW} runs step by step"
    )
    columns = ("kernel", "stepwise", "ratio", "us inside", "us ahead", "us stepwise", "compile s")
    print(f"{'loss':8}{'width':>6}{''.join(f'{column:>12}' for column in columns)}")
    for loss in arguments.losses:
        for width in arguments.widths:
            kernel, stepwise = chains(width, loss)
            many_runs, first_call = measure_step(kernel, MANY, 256)
            ahead, _ = measure_step(kernel, FEW, 1024)
            plain, _ = measure_step(stepwise, FEW, 1024)
            kernel.steps_ahead = lambda runs: 0  # draws the random numbers inside of the kernel
            inside, _ = measure_step(kernel, FEW, 1024)
            kernel_rate, plain_rate = MANY / many_runs, FEW / plain
            print(
                f"{loss:8}{width:6}{kernel_rate:12.3g}{plain_rate:12.3g}"
                f"{kernel_rate / plain_rate:12.1f}{inside * 1e6:12.2f}{ahead * 1e6:12.2f}"
                f"{plain * 1e6:12.2f}{first_call:12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
