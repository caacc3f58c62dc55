"""What spectra cost: the exact chain with raw and binned blocks against NumPy in d dimensions, and random features at d = 1e8."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import numpy as np
from scipy.special import erf

import sgdynamics as sgd
from sgdynamics.base.random import run_keys
from sgdynamics.simulation import compressed
from sgdynamics.simulation.exact import ExactChain

WIDTH, TEACHERS = 4, 2


def problem_at(dimension):
    """erf units on l = 1/j, 30 blocks of one coordinate and 30 bins."""

    def target(j):
        return np.stack([j**-0.5, j**-0.5 * np.cos(np.log(j))])

    spectrum = sgd.power_law(1.0, dimension, target=target, raw=30, bins=30)
    return sgd.TeacherStudent(
        width=WIDTH, teacher_width=TEACHERS, activation="erf", noise=1e-3, covariance=spectrum
    )


def chain(dimension):
    """As many runs as the library takes together, compiled."""
    problem = problem_at(dimension)
    algorithm = sgd.OnePassSGD(lr=1.0, per="trace").on(problem)
    sizes = problem.block_dimensions(dimension)
    runs = ExactChain(
        problem, algorithm, sgd.random_start(problem), dimension, sizes
    ).largest_group()
    simulator = ExactChain(
        problem, algorithm, sgd.random_start(problem, runs=runs), dimension, sizes
    )
    state, keys = simulator.initial(np.arange(runs)), run_keys(0, np.arange(runs))
    jax.block_until_ready(simulator.advance(state, keys, 0, compressed.SPAN))
    return simulator, state, keys


def of_chain(made, steps):
    """Seconds a step of one run."""
    simulator, state, keys = made
    began = time.perf_counter()
    jax.block_until_ready(simulator.advance(state, keys, 0, steps))
    return (time.perf_counter() - began) / steps / len(keys)


def of_numpy(dimension, steps, generator, runs=16):
    """The same of SGD in d dimensions, all runs at once."""
    eigenvalues = 1 / np.arange(1.0, dimension + 1)
    spread, rate = np.sqrt(eigenvalues), 1 / eigenvalues.sum()
    weights = generator.standard_normal((runs, WIDTH, dimension)) / np.sqrt(dimension)
    teacher = generator.standard_normal((TEACHERS, dimension)) / np.sqrt(dimension)
    began = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((runs, dimension)) * spread
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        residual = erf(fields / np.sqrt(2)).mean(axis=1) - erf((x @ teacher.T) / np.sqrt(2)).mean(
            axis=1
        )
        slope = residual[:, None] * np.exp(-(fields**2) / 2) * np.sqrt(2 / np.pi) / WIDTH
        weights -= rate * slope[:, :, None] * x[:, None]
    return (time.perf_counter() - began) / steps / runs


def ratios(pairs=5) -> Iterator[tuple[str, float, float, bool]]:
    """Medians over interleaved pairs."""
    small, large, generator = chain(2000), chain(10**6), np.random.default_rng(0)
    faster = [of_numpy(2000, 64, generator) / of_chain(small, 512) for _ in range(pairs)]
    yield (
        "chain with 30 raw and 30 binned blocks over NumPy at d = 2000",
        float(np.median(faster)),
        5.0,
        True,
    )
    same = [of_chain(large, 512) / of_chain(small, 512) for _ in range(pairs)]
    yield "that chain at d = 1e6 over d = 2000", float(np.median(same)), 1.25, False
    loss = sgd.scaling.RandomFeatures(0.7, 1.2, features=1e8).equivalent()
    steps = np.geomspace(10, 1e10, 60)
    loss.risk(steps, 0.5 / loss.trace)
    curve = []
    for _ in range(pairs):
        began = time.perf_counter()
        loss.risk(steps, 0.5 / loss.trace)
        curve.append(time.perf_counter() - began)
    yield "seconds for 60 points of random features at d = 1e8", float(np.median(curve)), 1.0, False
