"""Measure the cost of spectra: the exact chain with many blocks, and random features at d = 1e8.

The chain has 30 blocks of one coordinate each and 30 bins of coordinates with similar eigenvalues.
It is compared with vectorised NumPy code in d dimensions and with itself at another dimension.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import numpy as np
from scipy.special import erf

import sgdynamics as sgd
from measurement import Measurement, measure_seconds
from sgdynamics.base.random import run_keys
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.layout import SPAN
from sgdynamics.simulation.running import RunSetting

WIDTH, TEACHERS = 4, 2


def build_problem(dimension):
    """Erf units on inputs with the eigenvalues 1/j, in 30 blocks of one coordinate and 30 bins."""

    def target(j):
        return np.stack([j**-0.5, j**-0.5 * np.cos(np.log(j))])

    spectrum = sgd.power_law(1.0, dimension, target=target, raw=30, bins=30)
    return sgd.TeacherStudent(
        width=WIDTH, teacher_width=TEACHERS, activation="erf", noise=1e-3, covariance=spectrum
    )


def compile_chain(dimension):
    """Compile the chain for the largest number of runs that the library advances together."""
    problem = build_problem(dimension)
    algorithm = sgd.OnePassSGD(lr=1.0, per="trace").on(problem)
    sizes = problem.block_dimensions(dimension)
    single = RunSetting(sgd.random_start(problem), dimension, sizes)
    runs = ExactChain(problem, algorithm, single).resources().largest_group
    setting = RunSetting(sgd.random_start(problem, runs=runs), dimension, sizes)
    simulator = ExactChain(problem, algorithm, setting)
    state, keys = simulator.initial(np.arange(runs)), run_keys(0, np.arange(runs))
    jax.block_until_ready(simulator.advance(state, keys, 0, SPAN))
    return simulator, state, keys


def chain_seconds(chain, steps):
    """Measure seconds per step and run of a compiled chain."""
    simulator, state, keys = chain
    return measure_seconds(lambda: simulator.advance(state, keys, 0, steps)) / steps / len(keys)


def numpy_seconds(dimension, steps, generator, runs=16):
    """Measure seconds per step and run of SGD in d dimensions in NumPy, all runs at once."""
    eigenvalues = 1 / np.arange(1.0, dimension + 1)
    scale, rate = np.sqrt(eigenvalues), 1 / eigenvalues.sum()
    weights = generator.standard_normal((runs, WIDTH, dimension)) / np.sqrt(dimension)
    teacher = generator.standard_normal((TEACHERS, dimension)) / np.sqrt(dimension)
    start_time = time.perf_counter()
    for _ in range(steps):
        x = generator.standard_normal((runs, dimension)) * scale
        fields = np.matmul(weights, x[:, :, None])[:, :, 0]
        output = erf(fields / np.sqrt(2)).mean(axis=1)
        label = erf((x @ teacher.T) / np.sqrt(2)).mean(axis=1)
        residual = output - label
        # d/dz erf(z/sqrt(2)) = sqrt(2/pi) exp(-z^2/2), and the head is 1/WIDTH
        slope = residual[:, None] * np.exp(-(fields**2) / 2) * np.sqrt(2 / np.pi) / WIDTH
        weights -= rate * slope[:, :, None] * x[:, None]
    return (time.perf_counter() - start_time) / steps / runs


def ratios(pairs=5) -> Iterator[Measurement]:
    """Yield medians over pairs measured in turn, and the time of random features."""
    small, large = compile_chain(2000), compile_chain(10**6)
    generator = np.random.default_rng(0)
    speed_ratios = [
        numpy_seconds(2000, 64, generator) / chain_seconds(small, 512) for _ in range(pairs)
    ]
    yield Measurement(
        "speed of the chain with 30 raw and 30 binned blocks / NumPy, d = 2000",
        float(np.median(speed_ratios)),
        5.0,
        True,
    )
    time_ratios = [chain_seconds(large, 512) / chain_seconds(small, 512) for _ in range(pairs)]
    yield Measurement(
        "time of this chain at d = 1e6 / at d = 2000", float(np.median(time_ratios)), 1.25, False
    )
    loss = sgd.scaling.RandomFeatures(0.7, 1.2, features=1e8).equivalent()
    steps = np.geomspace(10, 1e10, 60)
    loss.risk(steps, 0.5 / loss.trace)  # compiles
    seconds = [measure_seconds(lambda: loss.risk(steps, 0.5 / loss.trace)) for _ in range(pairs)]
    yield Measurement(
        "seconds for 60 points of random features at d = 1e8", float(np.median(seconds)), 1.0, False
    )
