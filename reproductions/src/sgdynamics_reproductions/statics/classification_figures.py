"""Figures 1 and 4: the perceptron with sign labels, and the best weight decay of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    AMP,
    TeacherStudent,
    bayes_optimal,
    erm,
    labels,
    max_margin,
    samples_needed,
    simulate,
)
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, panels, ticks
from sgdynamics_reproductions.statics import learners
from sgdynamics_reproductions.statics.comparison import comparison, draw_comparison

LEARNERS = ("Bayes-optimal, AMP", "best ridge", "max margin", "one-pass SGD")
POINTS = (1.0, 3.0, 6.0)  # samples per dimension of the runs
AMP_STEPS = 12
NOISE, ALPHA = 0.25, 2.0  # probit labels and samples per dimension of figure 4
DECAYS = (0.004, 0.06, 0.5)


def angle_error(cosine: Any) -> np.ndarray:
    """Share of wrong signs at a cosine with the teacher."""
    return np.arccos(np.clip(cosine, -1.0, 1.0)) / np.pi


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Classification error against samples: the optimum, and four learners.

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
    Labels sign(w*.x). Message passing reaches the Bayes-optimal error. One-pass SGD has the best
    learning rates for the squared loss.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (200, 12) if quick else (600, 40)
    problem = TeacherStudent(width=1, activation="linear", labels=labels.sign())
    alpha = np.geomspace(0.3, 8.0, 30)
    points = np.array(POINTS)

    def limits(at: np.ndarray) -> list[np.ndarray]:
        return [
            bayes_optimal(problem, at)["error"].values,
            erm(problem, at, weight_decay="best", loss="squared")["error"].values,
            max_margin(problem, at)["error"].values,
            angle_error(np.sqrt(1.0 - _sgd_share(at))),
        ]

    decays = erm(problem, points, weight_decay="best", loss="squared")["weight_decay"].values
    rng = np.random.default_rng(seed)
    steps = np.round(points * d).astype(int)
    sgd_runs = learners.one_pass_sgd(rng, count, d, steps, _sgd_share(np.arange(steps[-1]) / d))
    runs = np.empty((len(LEARNERS), count, len(points)))
    runs[3] = angle_error(sgd_runs)
    for index, size in enumerate(steps):
        result = simulate(
            problem,
            AMP(points[index]),
            None,
            steps=[AMP_STEPS],
            dimension=d,
            runs=count,
            method="direct",
            seed=seed + index,
            progress=False,
        )
        M, Q = (result[name].values.reshape(count) for name in ("M", "Q"))
        runs[0, :, index] = angle_error(M / np.sqrt(Q))
        for run in range(count):
            X = rng.standard_normal((size, d))
            y = np.sign(X[:, 0])
            for row, w in (
                (1, learners.ridge(X, y, decays[index])),
                (2, learners.max_margin(X, y)),
            ):
                runs[row, run, index] = angle_error(w[0] / np.linalg.norm(w))
    data = comparison(
        LEARNERS,
        alpha,
        limits(alpha),
        np.tile(points, (len(LEARNERS), 1)),
        limits(points),
        runs,
        "classification error",
        d=d,
        seed=seed,
    )
    needed = samples_needed(problem, 0.1, ["bayes", "erm", "max_margin", "sgd"])
    data["needed"] = ("case", needed.values, {"long_name": "samples/d for an error of 0.1"})
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].set(xlabel="samples/d", ylabel="classification error", xscale="log", yscale="log")
    ticks(axes[0], [0.5, 1.0, 2.0, 5.0])
    finish(fig, axes, f"sign labels: limits (lines), {count} runs at d = {d} (points, 2 errors)")
    return fig, data


def _sgd_share(alpha: np.ndarray) -> np.ndarray:
    """Share u/u0 of the distance that one-pass SGD leaves, from alpha = ln(u0/u) + s(u0/u - 1)."""
    scale = (1.0 - 2.0 / np.pi) / (2.0 / np.pi)
    logs = np.linspace(0.0, 6.0, 20001)  # log(u0/u)
    return np.exp(-np.interp(alpha, logs + scale * np.expm1(logs), logs))


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Error of logistic regression and of ridge against weight decay, with the Bayes floor.

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
    Probit labels of noise 0.25, two samples per dimension.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (200, 70) if quick else (600, 100)
    problem = TeacherStudent(width=1, activation="linear", labels=labels.probit(NOISE))
    cases, decays = ("logistic", "squared"), np.geomspace(0.002, 2.0, 13)

    def limits(at: Any) -> list[list[float]]:
        return [
            [float(erm(problem, ALPHA, weight_decay=decay, loss=case)["error"][0]) for decay in at]
            for case in cases
        ]

    rng, n = np.random.default_rng(seed), round(ALPHA * d)
    runs = np.empty((2, count, len(DECAYS)))
    for run in range(count):
        X = rng.standard_normal((n, d))
        y = np.sign(X[:, 0] + np.sqrt(NOISE) * rng.standard_normal(n))
        for index, decay in enumerate(DECAYS):
            for row, learner in enumerate((learners.logistic, learners.ridge)):
                w = learner(X, y, decay)
                # P(sign(w.x) != sign(z + noise)): the cosine with the noisy output
                cosine = w[0] / np.linalg.norm(w) / np.sqrt(1.0 + NOISE)
                runs[row, run, index] = angle_error(cosine)
    data = comparison(
        cases,
        decays,
        limits(decays),
        [DECAYS, DECAYS],
        limits(DECAYS),
        runs,
        "classification error",
        d=d,
        seed=seed,
    )
    best = erm(problem, ALPHA, weight_decay="best", loss="logistic")
    data.attrs |= {
        "bayes": float(bayes_optimal(problem, ALPHA)["error"][0]),
        "best": float(best["error"][0]),
        "best_decay": float(best["weight_decay"][0]),
    }
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].axhline(data.attrs["bayes"], color="k", ls="--", lw=1, label="Bayes-optimal")
    axes[0].set(xlabel="weight decay", ylabel="classification error", xscale="log")
    finish(fig, axes, f"noisy labels: limits (lines), {count} runs at d = {d} (points, 2 errors)")
    return fig, data
