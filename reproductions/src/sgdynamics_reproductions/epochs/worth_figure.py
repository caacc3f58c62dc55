"""Figure 1: what a sample is worth when it is seen again."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import EpochSGD, TeacherStudent, simulate, start, worth_of_repeats
from sgdynamics.base import checks
from sgdynamics.papers.epochs import fresh_samples, linear_epochs
from sgdynamics_reproductions.drawing import finish, panels

ALPHA, EPOCHS, SOLVED = 2.0, 6, 4  # samples per dimension; epochs, and those that DMFT goes through
CASES = ((0.8, 0.0), (0.8, 0.02), (0.8, 0.1), (0.8, 0.25), (0.3, 0.25))  # learning rate, noise
BY_DMFT = (0, 3)  # of the cases
NEAR_ZERO = 1e-9  # |w|^2 of a start at 0
# worth of epochs 2, 3, 4, 6 of three cases by another program, +-.005
REFERENCE_WORTHS = {
    0: (0.56, 0.42, 0.36, 0.30),
    3: (0.29, -0.02, -0.06, -0.04),
    4: (0.47, 0.24, 0.11, 0.01),
}
REFERENCE_EPOCHS = (2, 3, 4, 6)


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Fresh samples that a sample of each epoch is worth, for several noises and two learning
    rates.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs and paths, in about half a minute.
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
    A linear unit from 0, two samples per dimension, reshuffled in every epoch. Lines: the equations
    in two times (``linear_epochs``) against the one-pass ODE in closed form (``fresh_samples``).
    Circles: runs in d dimensions; crosses: ``sgd.worth_of_repeats``, by DMFT.

    Examples
    --------
    >>> from sgdynamics_reproductions import epochs
    >>> fig, data = epochs.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs, paths, cells = (200, 100, 16384, 20) if quick else (800, 400, 131072, 40)
    distances, at_runs, worths, errors = [], [], [], []
    for row, (lr, noise) in enumerate(CASES):
        problem = TeacherStudent(width=1, activation="linear", noise=noise)
        initial_state, algorithm = start(problem, M=[[0.0]], Q=[[NEAR_ZERO]]), EpochSGD(lr, ALPHA)
        distances.append(linear_epochs(lr, ALPHA, noise, EPOCHS)[0])
        table: dict[str, Any] = {
            "dimension": dimension,
            "runs": runs,
            "seed": len(CASES) * seed + row,
            "progress": False,
        }
        at_runs.append(
            2
            * simulate(
                problem, algorithm, initial_state, alpha=ALPHA * np.arange(EPOCHS + 1), **table
            ).excess_risk.values
        )
        if row in BY_DMFT:
            table = {
                "epochs": SOLVED,
                "cells": cells,
                "paths": paths,
                "replicates": 16,
                "seed": seed,
                "progress": False,
            }
            result = worth_of_repeats(problem, algorithm, initial_state, **table)
            worths.append(result["worth"].values[0])
            errors.append(result["worth_standard_error"].values[0])
    data = xr.Dataset(
        {
            "distance": (
                ("case", "after"),
                np.array(distances),
                {"long_name": "|w - w*|^2, equations in two times"},
            ),
            "distance_runs": (
                ("case", "run", "after"),
                np.array(at_runs),
                {"long_name": "|w - w*|^2 of runs"},
            ),
            "dmft": (
                ("solved", "early"),
                np.array(worths),
                {"long_name": "worth of a sample by DMFT"},
            ),
            "dmft_error": (
                ("solved", "early"),
                np.array(errors),
                {"long_name": "its standard error"},
            ),
        },
        {
            "lr": ("case", [lr for lr, _ in CASES]),
            "noise": ("case", [noise for _, noise in CASES]),
            "after": np.arange(EPOCHS + 1),
            "solved": list(BY_DMFT),
            "early": np.arange(1, SOLVED + 1),
        },
        {
            "d": dimension,
            "runs": runs,
            "paths": paths,
            "replicates": 16,
            "cells": cells,
            "samples_per_dimension": ALPHA,
            "seed": seed,
        },
    )
    return _draw(data), data


def worths(data: xr.Dataset) -> np.ndarray:
    """Worth of a sample from the two-time equations, of shape (case, epoch)."""
    pairs = zip(data.distance.values, data.lr.values, data.noise.values, strict=True)
    return (
        np.stack([np.diff(fresh_samples(U, lr, noise)) for U, lr, noise in pairs])
        / data.attrs["samples_per_dimension"]
    )


def worths_of_runs(data: xr.Dataset) -> np.ndarray:
    """(case, run, epoch): the worth is that of the mean distance, and each run moves it by the
    slope there.
    """
    results = []
    for U, lr, noise in zip(
        data.distance_runs.values, data.lr.values, data.noise.values, strict=True
    ):
        mean = U.mean(axis=0)
        slope = -1 / (lr * (2 - lr) * mean - lr**2 * noise)
        results.append(np.diff(fresh_samples(mean, lr, noise) + slope * (U - mean)))
    return np.stack(results) / data.attrs["samples_per_dimension"]


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(2, 4.8, 3.9)
    lines, runs = worths(data), worths_of_runs(data)
    epoch, error = data.after.values[1:], 2 * runs.std(axis=1, ddof=1) / np.sqrt(runs.shape[1])
    solved = list(data.solved.values)
    for case, (lr, noise) in enumerate(zip(data.lr.values, data.noise.values, strict=True)):
        for ax, words in ((axes[0], f"noise {noise:g}"), (axes[1], f"lr = {lr:g}")):
            if (ax is axes[0] and lr != CASES[0][0]) or (ax is axes[1] and noise != CASES[-1][1]):
                continue
            table = {"color": f"C{case}", "capsize": 2, "lw": 1, "zorder": 3}
            ax.plot(epoch, lines[case], color=f"C{case}", label=words)
            ax.errorbar(
                epoch,
                runs[case].mean(axis=0),
                error[case],
                fmt="o",
                ms=5,
                mfc="white",
                mec=f"C{case}",
                **table,
            )
            if case in solved:
                row = solved.index(case)
                ax.errorbar(
                    data.early + 0.12,
                    data.dmft[row],
                    2 * data.dmft_error[row],
                    fmt="x",
                    ms=5,
                    alpha=0.7,
                    **table,
                )
    for ax, title in zip(
        axes, ("several noises, lr = 0.8", "two learning rates, noise 0.25"), strict=True
    ):
        ax.axhline(0.0, color="0.6", lw=0.8, ls=":")
        ax.set(
            xlabel="epoch",
            ylabel="fresh samples that a sample is worth",
            title=title,
            ylim=(-0.4, 1.15),
        )
        ax.set_xticks(epoch)
    words = (
        f"worth of a sample seen again: two-time equations (lines), {data.attrs['runs']} runs at"
        f" $d$ = {data.attrs['d']} (circles), "
        "DMFT (crosses); bars: 2 errors"
    )
    finish(fig, axes, words)
    return fig
