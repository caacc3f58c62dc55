"""Measure the cost of samples with several tokens in the exact chain.

A step on one sample with L tokens, whose loss is a mean over the tokens, is compared with a step on
a batch of L samples with one token. Both need the same number of inputs and of losses per step.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds
from sgdynamics.base.random import run_keys
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.layout import SPAN
from sgdynamics.simulation.running import RunSetting

RUNS, WIDTH, DIMENSION = 256, 4, 10_000


def token_loss(fields, signals, head, noise_draw):
    """Squared error of a tanh network on one token."""
    return 0.5 * (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0])) ** 2


def mean_token_loss(fields, signals, head, noise_draw):
    """Mean of `token_loss` over the tokens, the last axis of fields and signals."""
    return jnp.mean(jax.vmap(token_loss, (1, 1, None, None))(fields, signals, head, noise_draw))


def compile_chain(problem, batch):
    """Compile the exact chain; return the simulator, its state and random keys."""
    start = sgd.random_start(problem, dimension=DIMENSION, runs=RUNS)
    setting = RunSetting(start, DIMENSION, problem.block_dimensions(DIMENSION))
    simulator = ExactChain(problem, sgd.OnePassSGD(lr=0.1, batch=batch), setting)
    state, keys = simulator.initial(np.arange(RUNS)), run_keys(0, np.arange(RUNS))
    jax.block_until_ready(simulator.advance(state, keys, 0, SPAN))
    return simulator, state, keys


def seconds_per_step(chain, steps):
    """Measure the time of one step of all runs."""
    simulator, state, keys = chain
    return measure_seconds(lambda: simulator.advance(state, keys, 0, steps)) / steps


def ratios(tokens=(2, 8), steps=512, pairs=7) -> Iterator[Measurement]:
    """Yield medians over pairs measured in turn, one for each number of tokens."""
    for count in tokens:
        problem = sgd.Problem(mean_token_loss, width=WIDTH, signals=1, tokens=count)
        tokens_chain = compile_chain(problem, batch=1)
        batch_chain = compile_chain(sgd.Problem(token_loss, width=WIDTH, signals=1), batch=count)
        time_ratios = [
            seconds_per_step(tokens_chain, steps) / seconds_per_step(batch_chain, steps)
            for _ in range(pairs)
        ]
        yield Measurement(
            f"time of a step with {count} tokens / with batch {count}",
            float(np.median(time_ratios)),
            1.3,
            False,
        )
