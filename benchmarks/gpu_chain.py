"""Run-steps a second of the exact chain on a GPU: one kernel, and step by step, side by side; and the least time of a step.

python benchmarks/gpu_chain.py [--widths 1 2 4 8] [--losses square erf relu own]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu.chain import KernelChain

DIMENSION, MANY, FEW = 100_000, 1 << 20, 1 << 14
SECONDS = 0.3  # at least, of what is measured


def own_loss(fields: Any, signals: Any, head: Any, noise: Any) -> Any:
    """Logistic regression on a network's output."""
    return jnp.logaddexp(
        0.0, -jnp.tanh(signals[0]) * jnp.mean(head * jnp.sin(fields)) + 0.1 * noise
    )


def chains(width: int, loss: str) -> tuple[KernelChain, ExactChain]:
    """The same chain in both ways."""
    problem: Any = (
        sgd.Problem(own_loss, width=width, signals=1)
        if loss == "own"
        else sgd.TeacherStudent(width=width, activation=loss, noise=0.1)
    )
    begin = sgd.start(problem, M=np.full((width, 1), 0.1), Q=np.eye(width))
    setting = (problem, sgd.OnePassSGD(lr=0.05), begin, DIMENSION, np.array([DIMENSION]))
    return KernelChain(*setting), ExactChain(*setting)


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - began


@float64
def pace(chain: ExactChain, runs: int, steps: int) -> tuple[float, float]:
    """Seconds a step, and seconds of the first call, which compiles."""
    state, keys = chain.initial(np.zeros(runs, int)), run_keys(0, np.arange(runs))
    first = seconds(lambda: chain.advance(state, keys, 0, steps))
    took = seconds(lambda: chain.advance(state, keys, 0, steps))
    while took < SECONDS:
        steps *= 4
        took = seconds(lambda steps=steps: chain.advance(state, keys, 0, steps))
    return took / steps, first


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--losses", nargs="+", default=["square", "erf", "relu", "own"])
    asked = parser.parse_args()
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        raise SystemExit(
            f"this measures a GPU, and JAX found {device.device_kind}: benchmarks/run.py has the CPU's rows"
        )
    print(
        f"{device.device_kind}, float64; run-steps a second with {MANY} runs (step by step: {FEW}), a step of {FEW} runs in us:"
    )
    print("random numbers made in the kernel, ahead of it, and step by step")
    columns = ("kernel", "present", "ratio", "us kernel", "us ahead", "us present", "compile s")
    print(f"{'loss':8}{'width':>6}{''.join(f'{one:>12}' for one in columns)}")
    for loss in asked.losses:
        for width in asked.widths:
            kernel, plain = chains(width, loss)
            (fast, first), (ahead, _), (slow, _) = (
                pace(kernel, MANY, 256),
                pace(kernel, FEW, 1024),
                pace(plain, FEW, 1024),
            )
            kernel.steps_ahead = lambda runs: 0
            least, _ = pace(kernel, FEW, 1024)
            rates = MANY / fast, FEW / slow
            row = f"{loss:8}{width:6}{rates[0]:12.3g}{rates[1]:12.3g}{rates[0] / rates[1]:12.1f}"
            print(
                f"{row}{least * 1e6:12.2f}{ahead * 1e6:12.2f}{slow * 1e6:12.2f}{first:12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
