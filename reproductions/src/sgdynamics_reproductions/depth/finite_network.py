"""Finite tanh networks in the units of `WideNetwork`, trained with all of their weights."""

from __future__ import annotations

import numpy as np

from sgdynamics import WideNetwork


def train(
    problem: WideNetwork, lr: float, steps: int, neurons: int, rng: np.random.Generator
) -> np.ndarray:
    """Feature kernels (layer, sample, sample) after gradient descent of two hidden tanh layers."""
    inputs, labels = problem.all_inputs()[0], np.asarray(problem.labels)
    gamma0, root = problem.gamma0, np.sqrt(neurons)
    x = inputs.T / np.sqrt(inputs.shape[1])
    first = rng.standard_normal((neurons, inputs.shape[1]))
    second = rng.standard_normal((neurons, neurons))
    head = rng.standard_normal(neurons)
    start = None
    for step in range(steps + 1):
        below = np.tanh(first @ x)
        above = np.tanh(second @ below / root)
        if step == steps:
            break
        f = head @ above / (gamma0 * neurons)
        start = f if start is None else start
        signals = gamma0 * (labels - f + start) / len(labels)
        gradient = head[:, None] * (1 - above**2)
        below_gradient = (1 - below**2) * (second.T @ gradient / root)
        first += lr * (below_gradient * signals) @ x.T
        second += lr * (gradient * signals) @ below.T / root
        head += lr * above @ signals
    return np.stack([features.T @ features / neurons for features in (below, above)])
