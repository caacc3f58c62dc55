"""Figure 8: optimisers on a fixed data set, DMFT compared with runs in d dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.special import erf

from sgdynamics import (
    EpochSGD,
    GradientDescent,
    Problem,
    Start,
    TeacherStudent,
    simulate,
    solve_dmft,
    start,
    updates,
)
from sgdynamics.base import checks
from sgdynamics.papers.optimisers import least_squares
from sgdynamics_reproductions.drawing import draw_runs, finish, readable, subplots

ALPHA, NOISE = 3.0, 0.05
EDGE_ALPHA, EDGE_BETA = 2.0, 0.8
# Learning rates over the edge of stability, of runs and of the line
EDGE_RUNS, EDGE_LINE = np.array([0.9, 0.95, 1.05, 1.1]), np.linspace(0.9, 1.1, 21)
OPTIMISERS = {
    "plain": None,
    "heavy ball": updates.momentum(0.7),
    "Nesterov": updates.nesterov(0.7),
    "SAM": updates.sam(0.4),
}
# Learning rates with the same lr/(1 - beta)
RATES = {"plain": 1.0, "heavy ball": 0.3, "Nesterov": 0.3, "SAM": 1.0}
SAM_RADIUS_OF_PHASES = 0.1
PHASE_RATE = 0.04
RADII = (0.0, 0.2, 0.4)
EPOCH_RATE, EPOCH_MEMORY = 1.5, 2.0


def figure_8(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Momentum, Nesterov and SAM on a fixed data set: DMFT (lines) and direct runs (circles).

    Parameters
    ----------
    quick : bool, default False
        Fewer paths and runs, in a few minutes.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Three samples per dimension. (a) Phase retrieval: overlap with the signal. (b) An erf unit with
    label noise 0.05: excess risk. (c) Heavy ball on least squares: growth of errors per step, from
    step 100 to step 200, about the edge of stability, lr s_max = 2 (1 + beta). (d) Epochs with a
    velocity over d/2 steps. (e) Largest eigenvalue of the Hessian of the training loss at the end
    point of SAM. (f) Excess risk against training risk of the runs in (b).

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_8(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs, paths, d = (24, 4096, 300) if quick else (200, 32768, 1000)
    settings = {"paths": paths, "replicates": 4, "seed": seed, "progress": False}
    sizes = {"dimension": d, "runs": runs, "method": "direct", "progress": False}
    steps = np.arange(0, 41, 5)

    def solve(problem: Problem, first: Start, algorithm: GradientDescent, number: int) -> tuple:
        theory = solve_dmft(problem, algorithm, first, steps=steps, **settings)
        direct = simulate(problem, algorithm, first, steps=steps, seed=20 * seed + number, **sizes)
        return theory, direct

    phases = TeacherStudent(width=1, teacher_width=1, activation="square")
    phase_start = start(phases, M=[[0.5]], Q=[[1.0]])
    erf_unit = TeacherStudent(width=1, teacher_width=1, activation="erf", noise=NOISE)
    erf_start = start(erf_unit, M=[[0.3]], Q=[[0.8]])
    phase_results, erf_results = [], []
    for number, (name, update) in enumerate(OPTIMISERS.items()):
        phase_update = updates.sam(SAM_RADIUS_OF_PHASES) if name == "SAM" else update
        rate = PHASE_RATE * RATES[name]
        algorithm = GradientDescent(rate, ALPHA, update=phase_update)
        phase_results.append(solve(phases, phase_start, algorithm, number))
        algorithm = GradientDescent(RATES[name], ALPHA, update=update)
        erf_results.append(solve(erf_unit, erf_start, algorithm, 8 + number))

    epochs = EpochSGD(EPOCH_RATE, ALPHA, update=updates.momentum(memory=EPOCH_MEMORY))
    epoch_alpha = ALPHA * np.array([0.5, 1.0, 2.0, 3.0, 4.0])
    epoch_options: dict[str, Any] = {} if not quick else {"cells": 24}
    epoch_theory = solve_dmft(
        erf_unit, epochs, erf_start, alpha=epoch_alpha, **settings, **epoch_options
    )
    epoch_runs = simulate(
        erf_unit, epochs, erf_start, alpha=epoch_alpha, seed=20 * seed + 19, **sizes
    )
    growth, growth_runs = _edge(runs, d, seed)
    sharpness = _sharpness(8 if quick else 32, d, seed)

    def stack(results: list, column: int, name: str) -> np.ndarray:
        return np.stack([np.asarray(pair[column][name]).squeeze() for pair in results])

    run_axes = ("optimiser", "run", "step")
    data = xr.Dataset(
        {
            "M": (("optimiser", "step"), stack(phase_results, 0, "M")),
            "M_error": (("optimiser", "step"), stack(phase_results, 0, "M_standard_error")),
            "M_runs": (run_axes, stack(phase_results, 1, "M")),
            "risk": (("optimiser", "step"), stack(erf_results, 0, "excess_risk")),
            "risk_error": (("optimiser", "step"), stack(erf_results, 0, "risk_standard_error")),
            "risk_runs": (run_axes, stack(erf_results, 1, "excess_risk")),
            "train": (("optimiser", "step"), stack(erf_results, 0, "train_risk")),
            "train_runs": (run_axes, stack(erf_results, 1, "train_risk")),
            "growth": ("relative_line", growth),
            "growth_runs": (("run", "relative"), growth_runs),
            "epoch_M": ("epoch", epoch_theory.M.values[0, :, 0, 0]),
            "epoch_M_error": ("epoch", epoch_theory.M_standard_error.values[0, :, 0, 0]),
            "epoch_M_runs": (("run", "epoch"), epoch_runs.M.values[..., 0, 0]),
            "sharpness": (("radius", "set"), sharpness),
        },
        {
            "optimiser": list(OPTIMISERS),
            "step": steps,
            "relative": EDGE_RUNS,
            "relative_line": EDGE_LINE,
            "epoch": epoch_alpha / ALPHA,
            "radius": list(RADII),
        },
        {"d": d, "runs": runs, "paths": paths, "seed": seed},
    )
    return _draw(data), data


def _edge(runs: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Growth of errors about the edge of stability: closed means, and runs."""
    problem = TeacherStudent(width=1, teacher_width=1, activation="linear")
    first = start(problem, M=[[0.2]], Q=[[0.5]])
    largest = (1 + EDGE_ALPHA**-0.5) ** 2
    edge = 2 * (1 + EDGE_BETA) / largest
    growth, growth_runs = [], []
    for share in EDGE_LINE:
        update = updates.momentum(EDGE_BETA)
        algorithm = GradientDescent(share * edge, EDGE_ALPHA, update=update)
        means = least_squares(algorithm, [100, 200], M=0.2, Q=0.5)
        growth.append(_growth_per_step(means.train_risk))
    for number, share in enumerate(EDGE_RUNS):
        update = updates.momentum(EDGE_BETA)
        algorithm = GradientDescent(share * edge, EDGE_ALPHA, update=update)
        options = {"dimension": d, "runs": runs, "method": "direct", "progress": False}
        direct = simulate(
            problem, algorithm, first, steps=[100, 200], seed=20 * seed + number, **options
        )
        growth_runs.append(_growth_per_step(direct.train_risk.values.T))
    return np.array(growth), np.stack(growth_runs, axis=1)


def _growth_per_step(train_risk: np.ndarray) -> np.ndarray:
    """Factor by which errors grow per step, from the training risks after 100 and 200 steps."""
    return (train_risk[1] / train_risk[0]) ** (1 / 200)


def _sharpness(sets: int, d: int, seed: int) -> np.ndarray:
    """Largest eigenvalue of the Hessian of the training loss after 200 steps of SAM, by radius."""
    generator, n = np.random.default_rng(seed), round(ALPHA * d)
    slope = np.sqrt(2 / np.pi)
    values = np.zeros((len(RADII), sets))
    for column in range(sets):
        X = generator.standard_normal((n, d))
        y = erf(X[:, 0] / np.sqrt(2)) + np.sqrt(NOISE) * generator.standard_normal(n)
        first = np.zeros(d)
        first[:2] = 0.3, np.sqrt(0.8 - 0.09)

        def gradient(w: np.ndarray, X: np.ndarray = X, y: np.ndarray = y) -> np.ndarray:
            fields = X @ w
            h = (erf(fields / np.sqrt(2)) - y) * slope * np.exp(-(fields**2) / 2)
            return X.T @ h / len(y)

        for row, radius in enumerate(RADII):
            w = first
            for _ in range(200):
                G = gradient(w)
                w = w - gradient(w + radius * G / np.linalg.norm(G))
            fields = X @ w
            derivative = slope * np.exp(-(fields**2) / 2)
            residual = erf(fields / np.sqrt(2)) - y
            curvature = derivative**2 - residual * fields * derivative
            hessian = X.T @ (curvature[:, None] * X) / n
            values[row, column] = np.linalg.eigvalsh(hessian)[-1]
    return values


def _draw(data: xr.Dataset) -> Any:
    fig, grid = subplots(2, 3, (13.5, 7.4))
    axes = grid.ravel()
    for number, name in enumerate(data.optimiser.values):
        for ax, quantity in ((axes[0], "M"), (axes[1], "risk")):
            ax.plot(data.step, data[quantity][number], color=f"C{number}", label=str(name))
            draw_runs(ax, data.step, data[f"{quantity}_runs"][number], f"C{number}")
        axes[5].plot(data.train[number], data.risk[number], color=f"C{number}", label=str(name))
        axes[5].plot(
            data.train_runs[number].mean("run"),
            data.risk_runs[number].mean("run"),
            "o",
            mfc="white",
            ms=4,
            color=f"C{number}",
        )
    axes[0].set(title="phase retrieval", xlabel="step", ylabel="$M$")
    axes[1].set(title="erf unit", xlabel="step", ylabel="excess risk", yscale="log")
    axes[2].plot(data.relative_line, data.growth, color="C1", label="closed means")
    draw_runs(axes[2], data.relative, data.growth_runs, "C1", "runs")
    axes[2].axvline(1, color="k", lw=0.8, label=r"lr $s_{\max} = 2 (1 + \beta)$")
    axes[2].axhline(1, color="0.7", lw=0.8)
    axes[2].set(
        title="edge of stability, heavy ball",
        xlabel="lr over the edge",
        ylabel="growth of errors per step",
    )
    axes[3].plot(data.epoch, data.epoch_M, color="C4", label="DMFT")
    draw_runs(axes[3], data.epoch, data.epoch_M_runs, "C4", "runs")
    axes[3].set(title="epochs, velocity over $d/2$ steps", xlabel="epochs", ylabel="$M$")
    draw_runs(axes[4], data.radius, data.sharpness.T, "C3", "data sets")
    axes[4].set(
        title="sharpness at SAM's end point",
        xlabel="radius",
        ylabel="largest eigenvalue of the Hessian",
    )
    axes[5].set(
        title="erf unit", xlabel="training risk", ylabel="excess risk", xscale="log", yscale="log"
    )
    readable(axes)
    words = (
        f"a fixed data set: DMFT (lines), {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
        " (circles)"
    )
    finish(fig, axes, words)
    return fig
