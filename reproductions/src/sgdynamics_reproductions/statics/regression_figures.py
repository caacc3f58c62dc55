"""Figures 5 and 6: ridge regression on a power law, and Huber's loss with heavy-tailed noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import TeacherStudent, bayes_optimal, erm, labels, power_law
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, panels
from sgdynamics_reproductions.statics import learners
from sgdynamics_reproductions.statics.comparison import comparison, draw_comparison

EXPONENT, TARGET, NOISE = 1.5, 0.25, 0.1  # eigenvalues j^-1.5, coordinates w*_j ~ j^-.25
RIDGE_CASES = ("ridge, best weight decay", "ridge, weight decay 0.0001")
RIDGE_POINTS = (0.1, 0.4, 1.5)
DF, SCALE, DECAY = 3.0, 0.7, 0.1  # Student t noise and weight decay of figure 6
HUBER_CASES, HUBER_POINTS = ("huber", "squared"), (1.0, 3.0, 8.0)


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of ridge regression against samples on a power-law spectrum.

    Parameters
    ----------
    quick : bool, default False
        Smaller dimensions and fewer runs, in about half a minute.
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
    Eigenvalues j^-1.5, target coordinates proportional to j^-0.25, noise 0.1. The Bayes-optimal
    learner also knows the sizes of the target's coordinates.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (300, 40) if quick else (1500, 100)
    spectrum = power_law(EXPONENT, d, target=TARGET, raw=d)
    problem = TeacherStudent(width=1, activation="linear", noise=NOISE, covariance=spectrum)
    eigenvalues = np.array([float(value) for value, _ in problem.covariance_blocks])
    target = np.sqrt(np.asarray(problem.gram)[:, 0, 0])
    alpha, points = np.geomspace(0.05, 3.0, 25), np.array(RIDGE_POINTS)

    def limits(at: np.ndarray) -> list[np.ndarray]:
        return [
            erm(problem, at, weight_decay=decay)["excess_risk"].values for decay in ("best", 1e-4)
        ]

    best = erm(problem, points, weight_decay="best")["weight_decay"].values
    rng = np.random.default_rng(seed)
    runs = np.empty((2, count, len(points)))
    for index, ratio in enumerate(points):
        for run in range(count):
            X = rng.standard_normal((round(ratio * d), d)) * np.sqrt(eigenvalues)
            y = X @ target + np.sqrt(NOISE) * rng.standard_normal(len(X))
            for row, decay in enumerate((best[index], 1e-4)):
                gap = learners.ridge(X, y, decay) - target
                runs[row, run, index] = 0.5 * np.sum(eigenvalues * gap**2)
    data = comparison(
        RIDGE_CASES,
        alpha,
        limits(alpha),
        np.tile(points, (2, 1)),
        limits(points),
        runs,
        "excess risk",
        d=d,
        seed=seed,
    )
    data["bayes"] = ("x", bayes_optimal(problem, alpha)["excess_risk"].values)
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].plot(data.x, data.bayes, "k--", lw=1, label="Bayes-optimal")
    axes[0].set(xlabel="samples/d", ylabel="excess risk", xscale="log", yscale="log")
    finish(fig, axes, f"power law: limits (lines), {count} runs at d = {d} (points, 2 errors)")
    return fig, data


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Distance to the target with Student t noise: Huber's loss and the squared loss.

    Parameters
    ----------
    quick : bool, default False
        Smaller dimensions and fewer runs, in about half a minute.
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
    Noise 0.7 t with three degrees of freedom, whose outliers dominate the squared loss; weight
    decay 0.1.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (200, 60) if quick else (600, 200)
    noise = labels.student_t(DF, SCALE)
    problem = TeacherStudent(width=1, activation="linear", noise=noise)
    points = np.array(HUBER_POINTS)
    # The lines pass through the limits at the points.
    alpha = np.union1d(np.geomspace(0.5, 10.0, 6), points)
    curves = np.empty((len(HUBER_CASES), len(alpha)))
    for row, case in enumerate(HUBER_CASES):
        result = erm(problem, alpha, weight_decay=DECAY, loss=case)
        M, Q = (result[name].values.reshape(len(alpha)) for name in ("M", "Q"))
        curves[row] = 1.0 - 2.0 * M + Q
    rng = np.random.default_rng(seed)
    runs = np.empty((2, count, len(points)))
    for index, ratio in enumerate(points):
        for run in range(count):
            X = rng.standard_normal((round(ratio * d), d))
            y = X[:, 0] + SCALE * rng.standard_t(DF, len(X))
            for row, learner in enumerate((learners.huber, learners.ridge)):
                w = learner(X, y, DECAY)
                runs[row, run, index] = 1.0 - 2.0 * w[0] + w @ w
    data = comparison(
        HUBER_CASES,
        alpha,
        curves,
        np.tile(points, (2, 1)),
        curves[:, np.searchsorted(alpha, points)],
        runs,
        "|w - w*|^2",
        d=d,
        seed=seed,
    )
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].set(xlabel="samples/d", ylabel="$|w - w^*|^2$", xscale="log", yscale="log")
    finish(fig, axes, f"outliers: limits (lines), {count} runs at d = {d} (points, 2 errors)")
    return fig, data
