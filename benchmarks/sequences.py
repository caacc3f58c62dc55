"""What several inputs a sample cost: a step of the exact chain with L tokens, of a loss that is a sum over them, against a batch of L."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from sgdynamics.base.random import run_keys
from sgdynamics.simulation import compressed
from sgdynamics.simulation.exact import ExactChain

RUNS, WIDTH, DIMENSION = 256, 4, 10_000


def one(fields, signals, head, noise_draw):
    return 0.5 * (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0])) ** 2


def of_all(fields, signals, head, noise_draw):
    return jnp.mean(jax.vmap(one, (1, 1, None, None))(fields, signals, head, noise_draw))


def made(problem, batch):
    """A compiled chain with its state."""
    begin = sgd.random_start(problem, dimension=DIMENSION, runs=RUNS)
    simulator = ExactChain(
        problem,
        sgd.OnePassSGD(lr=0.1, batch=batch),
        begin,
        DIMENSION,
        problem.block_dimensions(DIMENSION),
    )
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, compressed.SPAN))
    return simulator, state, keys


def seconds(chain, steps):
    simulator, state, keys = chain
    began = time.perf_counter()
    jax.block_until_ready(simulator.advance(state, keys, 0, steps))
    return (time.perf_counter() - began) / steps


def ratios(tokens=(2, 8), steps=512, pairs=7) -> Iterator[tuple[str, float, float, bool]]:
    """Medians over interleaved pairs, each for a number of tokens."""
    for count in tokens:
        together = made(sgd.Problem(of_all, width=WIDTH, signals=1, tokens=count), 1)
        apart = made(sgd.Problem(one, width=WIDTH, signals=1), count)
        shares = [seconds(together, steps) / seconds(apart, steps) for _ in range(pairs)]
        yield (
            f"a step with {count} tokens, over a step of batch {count}",
            float(np.median(shares)),
            1.3,
            False,
        )
