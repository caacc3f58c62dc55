"""Figure 2: twenty epochs in three orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import EpochSGD, TeacherStudent, simulate, solve_dmft, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, readable

RATE, ALPHA, NOISE, EPOCHS = 1.2, 1.0, 0.25, 20
ORDERS = ("reshuffle", "fixed", "replacement")
RISKS = {"risk": "risk on fresh data", "train_risk": "risk on the data set"}


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Risk on fresh data and on the data set over twenty epochs: reshuffled, in one order, and
    drawn with replacement.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, paths and cells, in about a minute.
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
    One erf unit learns one from as many noisy samples as dimensions. Lines: DMFT in cells, with
    bands of two standard errors (of paths and of cells); circles: runs in d dimensions, of which
    those of all orders share data sets and starts.

    Examples
    --------
    >>> from sgdynamics_reproductions import epochs
    >>> fig, data = epochs.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs, paths, cells = (200, 100, 8192, 8) if quick else (800, 400, 65536, 32)
    problem = TeacherStudent(width=1, activation="erf", noise=NOISE)
    initial_state = start(problem, M=[[0.1]], Q=[[0.5]])
    epochs, some = np.arange(EPOCHS + 1.0), np.array([1, 2, 3, 5, 8, 12, 16, 20])
    table: dict[str, list[np.ndarray]] = {
        f"{name}{kind}": [] for name in RISKS for kind in ("", "_error", "_runs")
    }
    left = []
    for order in ORDERS:
        algorithm = EpochSGD(RATE, ALPHA, order=order)
        theory = solve_dmft(
            problem,
            algorithm,
            initial_state,
            alpha=ALPHA * epochs,
            cells=cells,
            paths=paths,
            seed=seed,
            progress=False,
        )
        options: dict[str, Any] = {
            "dimension": dimension,
            "runs": runs,
            "seed": seed + 1,
            "progress": False,
        }
        result = simulate(problem, algorithm, initial_state, alpha=ALPHA * some, **options)
        left.append([theory.attrs["error_cells"], theory.attrs["error_paths"]])
        for name in RISKS:
            table[name].append(theory[name].values[0])
            table[f"{name}_error"].append(theory[f"{name}_standard_error"].values[0])
            table[f"{name}_runs"].append(result[name].values)
    axes = {
        "": ("order", "after"),
        "_error": ("order", "after"),
        "_runs": ("order", "run", "point"),
    }
    data = xr.Dataset(
        {
            **{
                f"{name}{kind}": (axes[kind], np.array(table[f"{name}{kind}"]))
                for name in RISKS
                for kind in axes
            },
            "left": (
                ("order", "of"),
                np.array(left),
                {"long_name": "what cells and paths leave, as shares of the training risk"},
            ),
        },
        {"order": list(ORDERS), "after": epochs, "point": some, "of": ["cells", "paths"]},
        {
            "d": dimension,
            "runs": runs,
            "paths": paths,
            "cells": cells,
            "lr": RATE,
            "noise": NOISE,
            "seed": seed,
        },
    )
    data.attrs["samples_per_dimension"] = ALPHA
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 4.0)
    for ax, (name, words) in zip(axes, RISKS.items(), strict=False):
        for row, order in enumerate(data.order.values):
            line, band = data[name].values[row], 2 * data[f"{name}_error"].values[row]
            ax.plot(data.after, line, color=f"C{row}", label=str(order))
            ax.fill_between(data.after, line - band, line + band, color=f"C{row}", alpha=0.15, lw=0)
            draw_runs(ax, data.point, data[f"{name}_runs"].values[row], f"C{row}")
        ax.set(ylabel=words)
    for row in (1, 2):
        apart = data.risk_runs.values[row] - data.risk_runs.values[0]
        axes[2].plot(data.point, apart.mean(axis=0), color=f"C{row}", lw=0.8, ls=":")
        draw_runs(axes[2], data.point, apart, f"C{row}")
    axes[2].axhline(0.0, color="C0", lw=1)
    for ax in axes:
        ax.set(xlabel="epochs")
        ax.set_xticks(range(0, int(data.after[-1]) + 1, 4))
    axes[0].set(title="fresh data")
    axes[1].set(title="the data set", yscale="log")
    axes[2].set(title="less reshuffle, run by run", ylabel="difference of risks on fresh data")
    words = (
        f"twenty epochs: DMFT (lines, bands of 2 errors), {data.attrs['runs']} runs at $d$ ="
        f" {data.attrs['d']} (circles)"
    )
    finish(fig, axes, words, legends=[axes[0]])
    readable(axes)
    return fig
