"""Figures 2, 3 and 7: a hard phase, specialisation, and thresholds of weak recovery."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy import special

from sgdynamics import AMP, TeacherStudent, bayes_optimal, simulate, start, weak_recovery
from sgdynamics.base import checks
from sgdynamics.fixed_data.message_passing import MessagePassing
from sgdynamics.fixed_data.spectral_start import spectral_law
from sgdynamics.problems.likelihoods import likelihood_of
from sgdynamics.statics.channel_states import state_channel
from sgdynamics_reproductions.drawing import finish, panels, ticks
from sgdynamics_reproductions.statics import learners
from sgdynamics_reproductions.statics.comparison import comparison, draw_comparison

AMP_POINTS, AMP_STEPS, AMP_FIRST = (0.8, 1.6), 14, 0.4
COMMITTEE_POINTS, COMMITTEE_STEPS, COMMITTEE_FIRST = (1.5, 3.0, 4.0), 40, 0.2
LINKS = ("abs(z)", "z^2 with noise 1", "sign(z^2 - 1)")
MULTIPLES = (2.0, 4.0)  # samples of the runs, in units of the threshold
WIDTH = 1.0  # standard deviation of the noise of the second link


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Phase retrieval: the optimal overlap, that of message passing, and runs.

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
    Labels abs(w*.x) without noise. Runs of message passing start with the overlap 0.4.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (250, 16) if quick else (1000, 20)
    problem = TeacherStudent(width=1, activation="linear", teacher_activation="abs")
    alpha, points = np.linspace(0.4, 1.7, 66), np.array(AMP_POINTS)
    curve, at_points = bayes_optimal(problem, alpha), bayes_optimal(problem, points)
    first = start(problem, M=[[AMP_FIRST]], Q=[[AMP_FIRST]])
    runs = np.empty((1, count, len(points)))
    for index, ratio in enumerate(points):
        result = simulate(
            problem,
            AMP(ratio, start="overlaps"),
            first,
            steps=[AMP_STEPS],
            dimension=d,
            runs=count,
            method="direct",
            seed=seed + index,
            progress=False,
        )
        runs[0, :, index] = result["M"].values.reshape(count)
    data = comparison(
        ["message passing"],
        alpha,
        curve["q_amp"].values[None, :, 0, 0],
        points[None],
        at_points["q_amp"].values[None, :, 0, 0],
        runs,
        "overlap with the signal",
        d=d,
        seed=seed,
        threshold=float(weak_recovery(problem)),
        spinodal=float(curve.attrs["spinodals"][0]),
    )
    data["bayes"] = ("x", curve["q"].values[:, 0, 0])
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].plot(data.x, data.bayes, "k--", lw=1, label="Bayes-optimal")
    hard = (data.bayes - data.curve[0]).values > 1e-3
    axes[0].fill_between(data.x, 0, 1, where=hard, color="0.92", label="hard")
    axes[0].set(xlabel="samples/d", ylabel="overlap with the signal")
    finish(fig, axes, f"phase retrieval: limits (lines), {count} runs at d = {d} (points)")
    return fig, data


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """A committee of two signs: overlaps of the sum and of the difference of its units.

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
    Labels (sign z1 + sign z2)/2. Below 2.05 samples per dimension the learner knows z1 + z2 only;
    beyond, its units specialise. Runs of message passing start with the overlap 0.2.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (250, 12) if quick else (1000, 24)
    problem = TeacherStudent(
        width=1, activation="linear", teacher_width=2, teacher_activation="sign"
    )
    points = np.array(COMMITTEE_POINTS)
    other = np.array([1.0, 2.0, 2.1, 2.3, 2.6]) if quick else np.linspace(0.8, 4.4, 24)
    alpha = np.unique(np.concatenate([points, other]))
    q = bayes_optimal(problem, alpha)["q_amp"].values
    curve = np.array([q[:, 0, 0] + q[:, 0, 1], q[:, 0, 0] - q[:, 0, 1]])
    likelihood = likelihood_of(problem)
    law: Any = likelihood.law
    values = np.array(law.values)
    channel: Any = state_channel(likelihood, np.eye(2))
    rng = np.random.default_rng(seed)
    runs = np.empty((2, count, len(points)))
    for index, ratio in enumerate(points):
        for run in range(count):
            X = rng.standard_normal((round(ratio * d), d))
            y = np.sign(X[:, :2]).mean(axis=1)
            M = learners.committee_amp(
                X, y, channel.distributions, values, COMMITTEE_FIRST, COMMITTEE_STEPS, rng
            )
            same, crossed = np.trace(M) / 2, (M[0, 1] + M[1, 0]) / 2
            runs[:, run, index] = same + crossed, same - crossed
    at = np.searchsorted(alpha, points)
    data = comparison(
        ["sum of the units", "difference of the units"],
        alpha,
        curve,
        np.tile(points, (2, 1)),
        curve[:, at],
        runs,
        "overlap",
        d=d,
        seed=seed,
        threshold=float(weak_recovery(problem).samples_per_dimension[1]),
    )
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].axvline(data.attrs["threshold"], color="0.6", ls=":", label="specialisation")
    axes[0].set(xlabel="samples/d", ylabel="overlap with the signal")
    finish(fig, axes, f"committee of two signs: limits (lines), {count} runs at d = {d} (points)")
    return fig, data


def figure_7(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Weak recovery: the squared cosine of the best spectral estimate for several links.

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
    Top eigenvector of X^T T(y) X with T = 1 - 1/E[z^2 | y], from the threshold of weak recovery on.

    Examples
    --------
    >>> from sgdynamics_reproductions import statics
    >>> fig, data = statics.figure_7(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, count = (250, 30) if quick else (1000, 60)
    problems = (
        TeacherStudent(width=1, activation="linear", teacher_activation="abs"),
        TeacherStudent(width=1, activation="linear", teacher_activation="square", noise=WIDTH**2),
        _band(),
    )
    thresholds = np.array([float(weak_recovery(problem)) for problem in problems])
    alpha = np.geomspace(0.4, 6.0, 80)
    rng = np.random.default_rng(seed)
    curve, points, limits, runs = [], [], [], np.empty((len(LINKS), count, len(MULTIPLES)))
    for row, (problem, threshold) in enumerate(zip(problems, thresholds, strict=True)):
        law = spectral_law(problem, MessagePassing.from_problem(problem, "bayes"))
        at = threshold * np.array(MULTIPLES)
        curve.append([law.cosine2(ratio) for ratio in alpha])
        points.append(at)
        limits.append([law.cosine2(ratio) for ratio in at])
        for index, ratio in enumerate(at):
            for run in range(count):
                X = rng.standard_normal((round(ratio * d), d))
                T = 1.0 - 1.0 / _second_moment(row, X[:, 0], rng)
                runs[row, run, index] = learners.top_cosine2(X, T)
    data = comparison(LINKS, alpha, curve, points, limits, runs, "squared cosine", d=d, seed=seed)
    data["threshold"] = ("case", thresholds, {"long_name": "samples/d of weak recovery"})
    fig, axes = panels(1, 5.6, 4.2)
    draw_comparison(axes[0], data)
    axes[0].set(xlabel="samples/d", ylabel="squared cosine with the signal", xscale="log")
    ticks(axes[0], [0.5, 1.0, 2.0, 5.0])
    finish(fig, axes, f"spectral estimates: limits (lines), {count} runs at d = {d} (points)")
    return fig, data


def _band() -> Any:
    """Labels sign(z^2 - 1)."""
    from sgdynamics import MultiIndex

    return MultiIndex(_band_label, 1, 1, "linear", kinks=[-1.0, 1.0])


def _band_label(z: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sign(z[0] ** 2 - 1.0)


def _second_moment(row: int, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """E[z^2 | y] of each sample: closed forms, and Riemann sums with noise."""
    if row == 0:
        return z**2
    if row == 1:
        y = z**2 + WIDTH * rng.standard_normal(len(z))
        grid = np.linspace(0.0, 6.5, 651)
        logs = -0.5 * ((y[:, None] - grid**2) / WIDTH) ** 2 - 0.5 * grid**2
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights[:, 0] *= 0.5
        return (weights @ grid**2) / weights.sum(axis=1)
    # E[z^2; |z| > 1] = 2 (phi(1) + Phi(-1))
    outer = 2.0 * special.ndtr(-1.0)
    square = 2.0 * (np.exp(-0.5) / np.sqrt(2.0 * np.pi) + special.ndtr(-1.0))
    return np.where(np.abs(z) > 1.0, square / outer, (1.0 - square) / (1.0 - outer))
