"""Compare `solve_dmft`, one causal sweep, with the damped iteration over kernels of the literature.

The iteration is that of appendix A.1 of Mignacco, Urbani and Zdeborova (2021), the document of
`sgdynamics_reproductions.rough_landscapes`. The measured ratio is the time to the same accuracy,
for gradient descent in phase retrieval on the sphere with alpha = 2, m0 = 0.5 and eta = dt = 0.01
up to t = 3. At alpha = 2 the learning rate and the time of the paper are those of the library.

The iteration is written to be a strong competitor:

- Each step of (14), (16) and (A.28) is divided by the norm that C gives it, which is (A.29) imposed
  on the step itself. The iteration thus converges to projected gradient descent with the same step
  size, and the O(dt) difference between the two does not count as its error.
- The response (A.22) of all paths is integrated in blocks of steps; nearly all of the work is one
  matrix product.
- The damping is 0.3. Without damping the iteration cycles, and 0.5 needs about twice the number of
  iterations.
- Its time ends at the first of three successive iterations that are within the accuracy, although
  a user does not know the exact solution and would continue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import sgdynamics as sgd
from measurement import Measurement

ALPHA, M0, ETA, STEPS = 2.0, 0.5, 0.01, 300
SAVED = np.arange(0, STEPS + 1, 10)
ACCURACY = 0.01  # largest error of m at any saved time
TARGET = 50.0  # promised ratio of the times
# The iteration: paths, damping, largest number of iterations, accurate iterations in succession.
PATHS, DAMPING, ITERATIONS, SUCCESSIVE = 10_000, 0.3, 14, 3
# solve_dmft: numbers of paths that are tried, seeds, and paths of the reference solution.
LADDER, SEEDS, REFERENCE = (4096, 8192, 16384, 32768), 5, 65536
BLOCK, CHUNK = 32, 64  # steps and paths that the response processes together


class Kernels(NamedTuple):
    """The functions of time that an iteration updates."""

    M_C: np.ndarray  # memory kernel of the noise (time, time)
    M_R: np.ndarray  # memory kernel of the response (time, time)
    delta_nu: np.ndarray  # mean curvature (time)
    mu: np.ndarray  # force on the overlap m (time)


def first_guess(steps: int) -> Kernels:
    """Return the first guess of appendix A.1.

    All functions have their values at t = 0, except that M_C is a tenth of its diagonal at two
    different times and that the response vanishes.
    """
    initial_M_C = 12 * ALPHA * (1 - M0**2)
    M_C = np.full((steps, steps), 0.1 * initial_M_C)
    np.fill_diagonal(M_C, initial_M_C)
    return Kernels(M_C, np.zeros((steps, steps)), np.full(steps, 2 * ALPHA), np.zeros(steps))


def order_parameters(kernels: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Integrate (14) and (A.28) for m(t), and return the factor that normalises each step.

    C is the correlation of the weights without their component m along the signal, and R their
    response per step. The factor `scale` of a step keeps C(t, t) + m(t)^2 = 1.
    """
    M_C, M_R, delta_nu, mu = kernels
    steps = len(mu)
    C = np.zeros((steps + 1, steps + 1))
    R = np.zeros((steps + 1, steps + 1))
    m = np.zeros(steps + 1)
    scale = np.zeros(steps)
    m[0], C[0, 0] = M0, 1 - M0**2
    for t in range(steps):
        decay, memory, past = 1 - ETA * delta_nu[t], ETA**2 * M_R[t, :t], slice(0, t + 1)
        C_past = decay * C[t, past] + memory @ C[:t, past] + ETA * R[past, :t] @ M_C[t, :t]
        response = decay * R[t, past] + memory @ R[:t, past]
        response[t] += ETA
        C_present = decay * C_past[t] + memory @ C_past[:t] + ETA * M_C[t, past] @ response
        m_step = m[t] - ETA * mu[t]
        scale[t] = 1 / np.sqrt(C_present + m_step**2)
        m[t + 1], R[t + 1, past] = scale[t] * m_step, scale[t] * response
        C[t + 1, past] = C[past, t + 1] = scale[t] * C_past
        C[t + 1, t + 1] = scale[t] ** 2 * C_present
    return m, scale


def realisations(
    kernels: Kernels, m: np.ndarray, scale: np.ndarray, paths: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw paths of the effective process (16)-(18).

    Returns the field h + m h0, of shape (time, path), and h0.
    """
    steps = len(scale)
    h, h0 = np.zeros((steps, paths)), generator.standard_normal(paths)
    h[0] = np.sqrt(1 - M0**2) * generator.standard_normal(paths)
    # M_C is a mean of Gram matrices: an eigenvalue below zero is a rounding error.
    eigenvalues, vectors = np.linalg.eigh(kernels.M_C)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0))
    noise = root @ generator.standard_normal((steps, paths))
    for t in range(steps - 1):
        field = h[t] + m[t] * h0
        force = (
            noise[t]
            - kernels.delta_nu[t] * h[t]
            - field * (field**2 - h0**2)
            + ETA * (kernels.M_R[t, :t] @ h[:t])
        )
        h[t + 1] = scale[t] * (h[t] + ETA * force)
    return h + m[:steps, None] * h0, h0


def mean_response(kernels: Kernels, scale: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Average v''(t) T(t, t') over the paths, where (A.22) gives the response T of each path.

    The curvature v'' has the shape (time, path).
    """
    steps, paths = curvature.shape
    memory, total = scale[:, None] * ETA**2 * kernels.M_R, np.zeros((steps, steps))
    for first in range(0, paths, CHUNK):
        chunk = np.ascontiguousarray(curvature[:, first : first + CHUNK])
        decay, n = scale[:, None] * (1 - ETA * (kernels.delta_nu[:, None] + chunk)), chunk.shape[1]
        T = np.zeros((steps, steps, n))  # time, time of the perturbation, path
        flat = T.reshape(steps, steps * n)
        for low in range(0, steps - 1, BLOCK):
            high = min(low + BLOCK, steps - 1)
            # The memory of all earlier blocks is one matrix product.
            if low:
                flat[low + 1 : high + 1, : low * n] = (
                    memory[low:high, 1 : low + 1] @ flat[1 : low + 1, : low * n]
                )
            for t in range(low, high):
                if t > low + 1:
                    flat[t + 1, : t * n] += memory[t, low + 1 : t] @ flat[low + 1 : t, : t * n]
                T[t + 1, :t] += decay[t] * T[t, :t]
                T[t + 1, t] = scale[t] * chunk[t]
        total += np.einsum("tsn,tn->ts", T, chunk)
    return total / paths


def iterate(paths: int, seed: int = 0, steps: int = STEPS) -> Iterator[tuple[float, np.ndarray]]:
    """Yield the elapsed seconds and m(t) after 0, 1, 2, ... updates, until the paths diverge."""
    generator, kernels = np.random.default_rng(seed), first_guess(steps)
    start_time = time.perf_counter()
    while True:
        m, scale = order_parameters(kernels)
        yield time.perf_counter() - start_time, m
        field, h0 = realisations(kernels, m, scale, paths, generator)
        slope, curvature = field * (field**2 - h0**2), 3 * field**2 - h0**2
        new = Kernels(
            ALPHA / paths * slope @ slope.T,
            ALPHA * mean_response(kernels, scale, curvature),
            ALPHA * curvature.mean(axis=1),
            ALPHA / paths * slope @ h0,
        )
        if not all(np.isfinite(kernel).all() for kernel in new):
            return
        kernels = Kernels(
            *(
                DAMPING * old + (1 - DAMPING) * fresh
                for old, fresh in zip(kernels, new, strict=True)
            )
        )


def sweep(paths: int, seed: int) -> tuple[float, np.ndarray]:
    """Solve by `solve_dmft`; return seconds and m(t)."""
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    algorithm = sgd.GradientDescent(lr=ALPHA * ETA / 2, samples_per_dimension=ALPHA)
    start = sgd.start(problem, M=[[M0]], Q=[[1.0]])
    start_time = time.perf_counter()
    result = sgd.solve_dmft(
        problem, algorithm, start, steps=SAVED, paths=paths, seed=seed, progress=False
    )
    return time.perf_counter() - start_time, result["M"].values.ravel()


def fastest_sweep(reference: np.ndarray) -> tuple[int, float, float, float]:
    """Find the smallest number of paths whose error is within the accuracy.

    Returns this number, the seconds with and without compilation, and the error, which is the root
    mean square over seeds.
    """
    for paths in LADDER:
        with_compile, _ = sweep(paths, 0)
        runs = [sweep(paths, seed) for seed in range(1, SEEDS + 1)]
        error = float(np.sqrt(np.mean([np.max(np.abs(m - reference)) ** 2 for _, m in runs])))
        if error <= ACCURACY:
            return paths, with_compile, float(np.median([seconds for seconds, _ in runs])), error
    raise RuntimeError(
        f"solve_dmft with {LADDER[-1]} paths has the error {error:.2g}, which exceeds {ACCURACY}"
    )


def measure_iteration(reference: np.ndarray) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Run the iteration until it has converged.

    Returns the seconds and the errors after 0, 1, 2, ... updates, and the number of updates to
    convergence (None if it has not converged).
    """
    times, errors = [], []
    for _, (seconds, m) in zip(range(ITERATIONS + 1), iterate(PATHS), strict=False):
        times.append(seconds)
        errors.append(float(np.max(np.abs(m[SAVED] - reference))))
        if len(errors) >= SUCCESSIVE and max(errors[-SUCCESSIVE:]) <= ACCURACY:
            return np.array(times), np.array(errors), len(errors) - SUCCESSIVE
    return np.array(times), np.array(errors), None


def measure() -> Measurement:
    """Measure the ratio of the times that the iteration and `solve_dmft` need."""
    _, reference = sweep(REFERENCE, 1000)
    paths, with_compile, warm, error = fastest_sweep(reference)
    times, errors, converged_after = measure_iteration(reference)
    updates = len(errors) - 1 if converged_after is None else converged_after
    seconds = times[updates]
    effort = f"{seconds:.0f} s, {updates} iterations"
    if converged_after is None:
        effort = (
            f"a lower bound, not converged after {effort}:"
            f" smallest error {errors.min():.4f}, last error {errors[-1]:.4f}"
        )
    accurate = np.flatnonzero(errors <= ACCURACY)
    first_accurate = (
        f"; to its first accurate iteration {times[accurate[0]] / warm:.1f}"
        if accurate.size
        else ""
    )
    label = (
        f"damped iteration of the kernels (NumPy, {PATHS} paths; {effort}) / solve_dmft"
        f" ({paths} paths, {warm:.2f} s, error {error:.4f}), time to m within {ACCURACY:g},"
        f" gradient descent, t = 3{first_accurate}; with compilation ({with_compile:.1f} s)"
        f" {seconds / with_compile:.1f}"
    )
    return Measurement(label, float(seconds / warm), TARGET, True)
