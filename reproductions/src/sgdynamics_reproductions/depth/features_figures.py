"""Figures 4 and 5: wide networks from lazy to rich, and features of trained networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import GradientDescent, WideNetwork, solve_dmft
from sgdynamics.base import checks
from sgdynamics_reproductions.depth.finite_network import train
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, readable, ticks

SAMPLES, DIMENSION = 6, 12
RICHNESS = (0.1, 1.0, 3.0)
STEPS = np.arange(0, 41, 4)
RATE = 0.2
NEURONS = (32, 64, 128, 256)


def task(gamma0: float) -> WideNetwork:
    """Two hidden layers of tanh on six random inputs with the labels 1 and -1."""
    inputs = np.random.default_rng(0).standard_normal((SAMPLES, DIMENSION))
    labels = np.where(np.arange(SAMPLES) < SAMPLES // 2, 1.0, -1.0)
    return WideNetwork(inputs, labels, hidden_layers=2, activation="tanh", gamma0=gamma0)


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Training risk and kernels of infinitely wide networks from lazy to rich.

    Parameters
    ----------
    quick : bool, default False
        Fewer sampled neurons.
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
    Two hidden layers, tanh, six Gaussian inputs in 12 dimensions, gradient descent at lr = .2.
    "Lazy" is regression with the tangent kernel at the start. The movement of a kernel is the
    Frobenius norm of its change relative to that of the start.

    Examples
    --------
    >>> from sgdynamics_reproductions import depth
    >>> fig, data = depth.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    paths = 8192 if quick else 32768
    results = [
        solve_dmft(
            task(gamma0),
            GradientDescent(lr=RATE),
            steps=STEPS,
            paths=paths,
            seed=seed,
            progress=False,
        )
        for gamma0 in RICHNESS
    ]
    tangent = results[0].tangent_kernel.values[0, 0]
    labels = np.asarray(task(1.0).labels)
    f, lazy = np.zeros(SAMPLES), []
    for _ in range(STEPS[-1] + 1):
        lazy.append(0.5 * np.mean((labels - f) ** 2))
        f = f + RATE / SAMPLES * tangent @ (labels - f)
    axes = ("gamma0", "step")
    shape = (*axes, "layer", "sample", "sample_other")
    data = xr.Dataset(
        {
            "train_risk": (axes, np.array([result.train_risk.values[0] for result in results])),
            "train_risk_error": (
                axes,
                np.array([result.train_risk_standard_error.values[0] for result in results]),
            ),
            "feature_kernel": (
                shape,
                np.array([result.feature_kernel.values[0] for result in results]),
                {"long_name": "feature kernel"},
            ),
            "lazy_risk": ("step", np.array(lazy)[STEPS], {"long_name": "kernel regression"}),
        },
        {"gamma0": list(RICHNESS), "step": STEPS, "layer": [1, 2]},
        {"lr": RATE, "paths": paths, "seed": seed},
    )
    return _draw_richness(data), data


def movement(kernel: xr.DataArray) -> xr.DataArray:
    """Frobenius norm of the change of a kernel relative to that of the start."""
    pair = ["sample", "sample_other"]
    start = kernel.isel(step=0)
    return (((kernel - start) ** 2).sum(pair) / (start**2).sum(pair)) ** 0.5


def _draw_richness(data: xr.Dataset) -> Any:
    fig, axes = panels(4, 3.5, 3.5)
    moved = movement(data.feature_kernel)
    for row, gamma0 in enumerate(data.gamma0.values):
        text = rf"$\gamma_0 = {gamma0:g}$"
        axes[0].semilogy(data.step, data.train_risk[row], color=f"C{row}", label=text)
        for column, style in enumerate(("--", "-")):
            text = f"layer {column + 1}"
            axes[1].plot(data.step, moved[row, :, column], style, color=f"C{row}", label=text)
    axes[0].semilogy(data.step, data.lazy_risk, "k:", label="kernel regression")
    axes[0].set(xlabel="step", ylabel="training risk", title="risk")
    axes[1].set(xlabel="step", title="movement of feature kernels")
    final = data.feature_kernel.isel(step=-1, layer=1)
    largest = float(np.abs(final).max())
    for ax, row in zip(axes[2:], (0, -1), strict=True):
        ax.imshow(final[row], vmin=-largest, vmax=largest, cmap="RdBu_r")
        ax.set(title=rf"last kernel, $\gamma_0 = {data.gamma0.values[row]:g}$", xlabel="sample")
    handles, texts = axes[1].get_legend_handles_labels()
    finish(fig, axes, "Rich networks move their features, lazy ones do not", [axes[0]])
    axes[1].legend(handles[:2], texts[:2], frameon=False, fontsize="small")
    return fig


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Features of trained networks of 32 to 256 neurons, and those of the infinitely wide one.

    Parameters
    ----------
    quick : bool, default False
        32 networks of each width instead of 128, and fewer sampled neurons.
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
    The task of figure 4 at gamma0 = 3, after 24 steps. The networks are trained with all of their
    weights.

    Examples
    --------
    >>> from sgdynamics_reproductions import depth
    >>> fig, data = depth.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    count, paths, steps = (32, 8192, 24) if quick else (128, 32768, 24)
    problem = task(RICHNESS[-1])
    limit = solve_dmft(
        problem, GradientDescent(lr=RATE), steps=[0, steps], paths=paths, seed=seed, progress=False
    )
    kernels = np.zeros((len(NEURONS), count, 2, SAMPLES, SAMPLES))
    for row, neurons in enumerate(NEURONS):
        for index in range(count):
            rng = np.random.default_rng([seed, row, index])
            kernels[row, index] = train(problem, RATE, steps, neurons, rng)
    pair = ("layer", "sample", "sample_other")
    data = xr.Dataset(
        {
            "kernel": (pair, limit.feature_kernel.values[0, 1], {"long_name": "limit"}),
            "kernel_error": (pair, limit.feature_kernel_standard_error.values[0, 1]),
            "kernel_start": (pair, limit.feature_kernel.values[0, 0]),
            "kernel_runs": (("neurons", "run", *pair), kernels, {"long_name": "trained networks"}),
        },
        {"neurons": list(NEURONS), "layer": [1, 2]},
        {"lr": RATE, "steps": steps, "gamma0": problem.gamma0, "paths": paths, "seed": seed},
    )
    return _draw_networks(data), data


def distances(data: xr.Dataset) -> xr.DataArray:
    """Relative distance (neurons, run, layer) of the kernels of networks from the limit."""
    pair = ["sample", "sample_other"]
    squares = ((data.kernel_runs - data.kernel) ** 2).sum(pair)
    return np.sqrt(squares / (data.kernel**2).sum(pair))


def _draw_networks(data: xr.Dataset) -> Any:
    fig, axes = panels(4, 3.5, 3.5)
    last = data.sel(layer=2)
    pictures = {
        "start": last.kernel_start,
        "trained, limit": last.kernel,
        f"one network, N = {NEURONS[-1]}": last.kernel_runs[-1, 0],
    }
    largest = float(np.abs(last.kernel).max())
    for ax, (title, kernel) in zip(axes, pictures.items(), strict=False):
        ax.imshow(kernel, vmin=-largest, vmax=largest, cmap="RdBu_r")
        ax.set(title=title, xlabel="sample")
    away = distances(data)
    for column in range(2):
        values = away[:, :, column].values.T
        draw_runs(axes[3], data.neurons, values, f"C{column}", f"layer {column + 1}")
        scale = np.mean(values.mean(axis=0) * np.sqrt(data.neurons.values))
        axes[3].plot(data.neurons, scale / np.sqrt(data.neurons), ":", color=f"C{column}")
    axes[3].set(xscale="log", yscale="log", xlabel="neurons N", title="distance from the limit")
    readable([axes[3]])
    ticks(axes[3], data.neurons.values)
    finish(fig, axes, "Features of a wide network and of trained ones", [axes[3]])
    return fig
