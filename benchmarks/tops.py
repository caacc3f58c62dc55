"""Compare a chain step of a problem with a top of 20 numbers with one of a head, on the CPU.

The problem is a committee of four units stated as a loss, and the same committee with an output
layer of 4 x 4 numbers and 4 biases.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd
from measurement import Measurement, measure_seconds

STEPS, RUNS, DIMENSION = 4000, 32, 1000


def head_loss(fields, signals, head, noise_draw):
    """Return the squared loss of a committee."""
    return (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.1 * noise_draw) ** 2 / 2


def top_loss(fields, signals, top, noise_draw):
    """Return the squared loss of a committee with a second layer of 20 numbers."""
    hidden = top["V"] @ jnp.tanh(fields) + top["c"]
    return (jnp.mean(hidden) - jnp.tanh(signals[0]) - 0.1 * noise_draw) ** 2 / 2


def seconds_of(problem, start):
    """Measure one simulation of the exact chain."""
    algorithm = sgd.OnePassSGD(lr=0.5)
    runs = {"steps": [STEPS], "dimension": DIMENSION, "runs": RUNS}
    return measure_seconds(lambda: sgd.simulate(problem, algorithm, start, **runs).Q.values)


def ratios(pairs=5) -> Iterator[Measurement]:
    """Yield the median ratio over pairs measured in turn."""
    head = sgd.Problem(head_loss, width=4, signals=1, head="trained")
    top = sgd.Problem(top_loss, width=4, signals=1, top={"V": (4, 4), "c": 4})
    overlaps = {"M": [[0.3], [0.2], [-0.1], [0.1]], "Q": np.eye(4)}
    starts = [
        sgd.start(head, **overlaps, a=np.ones(4)),
        sgd.start(top, **overlaps, top={"V": np.eye(4), "c": np.zeros(4)}),
    ]
    cases = list(zip((head, top), starts, strict=True))
    for case in cases:
        seconds_of(*case)  # compiles
    values = []
    for _ in range(pairs):
        head_seconds, top_seconds = (seconds_of(*case) for case in cases)
        values.append(top_seconds / head_seconds)
    label = f"exact chain, {RUNS} runs of {STEPS} steps, width 4: top of 20 numbers / head"
    yield Measurement(label, float(np.median(values)), 1.3, False)


if __name__ == "__main__":
    for measurement in ratios():
        print(measurement, flush=True)
