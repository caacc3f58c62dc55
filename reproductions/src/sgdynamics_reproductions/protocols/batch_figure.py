"""Figure 6: batches that grow in place of a learning rate that falls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, TeacherStudent, start
from sgdynamics.analysis.protocols.linear_rates import (
    LinearRecursion,
    linear_recursion,
    optimal_rates,
)
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, subplots, ticks
from sgdynamics_reproductions.protocols.reference import NOISE, RAMPS

DIMENSION, SAMPLES = 1000, 20_000
POINTS = 81  # of a line


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """A constant learning rate with the batch lr/lr* against the best falling rate lr* at batch 1:
    batches, risks, and what a step costs.

    Parameters
    ----------
    quick : bool, default False
        Fewer pieces and runs, in less than a minute.
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
    A linear student from 0, noise .1, d = 1000, 20,000 samples, by the exact mean of SGD. Batches
    are real numbers there, and whole ones in the runs of the exact chain (circles), whose mean is
    compared with that of the same whole batches: at lr = 1 they are 1 and 2 at first where 1.1 is
    best, which costs 2%. Ramps save steps, not samples: the risk is that of the falling rate up to
    O(lr/d).

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    pieces, runs = (200, 2000) if quick else (1000, 20_000)
    fall = _recursion(SAMPLES)
    best = optimal_rates(fall, pieces)
    at = np.linspace(0, SAMPLES, POINTS)
    lines, sizes, steps, last, whole, points = [], [], [], [], [], []
    for row, lr in enumerate(RAMPS):
        rates, batches = ramp(lr)
        samples = np.append(0.0, np.cumsum(batches))
        risks = np.asarray(_recursion(len(rates)).risks(rates, batches))
        lines.append(np.interp(at, samples, risks))
        sizes.append(np.interp(at, (samples[1:] + samples[:-1]) / 2, batches / rates))
        steps.append(len(rates))
        last.append(risks[-1])
        counts = np.diff(np.round(samples)).astype(int)
        rates, counts = rates[counts > 0], counts[counts > 0]
        whole.append(float(_recursion(len(rates)).risks(rates, counts.astype(float))[-1]))
        points.append(chain(rates, counts, runs, 10 * seed + row))
    data = xr.Dataset(
        {
            "rates": ("piece", best.rates, {"long_name": "the best falling rate, batch 1"}),
            "fall": (
                "at",
                np.interp(at, best.edges, best.risks),
                {"long_name": "excess risk with it"},
            ),
            "excess_risk": (("lr", "at"), np.array(lines), {"long_name": "excess risk of ramps"}),
            "batch": (
                ("lr", "at"),
                np.array(sizes),
                {"long_name": "samples in a step over its rate"},
            ),
            "steps": ("lr", steps, {"long_name": "steps taken"}),
            "last": ("lr", last, {"long_name": "excess risk at the end"}),
            "whole": ("lr", whole, {"long_name": "the same with whole batches"}),
            "excess_risk_runs": (
                ("lr", "run"),
                np.array(points),
                {"long_name": "excess risk at the end, exact chain"},
            ),
        },
        {"lr": list(RAMPS), "at": at / DIMENSION},
        {
            "d": DIMENSION,
            "noise": NOISE,
            "best": best.risk,
            "pieces": pieces,
            "runs": runs,
            "seed": seed,
        },
    )
    return _draw(data), data


def ramp(lr: float) -> tuple[np.ndarray, np.ndarray]:
    """The batch that is best for the error at hand, B = lr (eps + noise)/eps, until the samples are
    used; the last step is cut to them.
    """
    d, error, used = DIMENSION, 1.0, 0.0
    rates: list[float] = []
    batches: list[float] = []
    while used < SAMPLES - 1e-9:
        batch = lr * (error + NOISE) / error
        share = min(1.0, (SAMPLES - used) / batch)
        rates.append(lr * share)
        batches.append(batch * share)
        used += batch * share
        g, size = rates[-1] / d, batches[-1]
        error = (1 - 2 * g + (1 + 1 / size) * g**2) * error + g**2 / size * d * (error + NOISE)
    return np.array(rates), np.array(batches)


def chain(rates: np.ndarray, batches: np.ndarray, runs: int, seed: int) -> np.ndarray:
    """Excess risks of runs of SGD itself at the end: the error is one number, and a step needs a
    few draws whatever d and the batch.

    With v = w - w*, the fields of the batch along v are |v| z, z normal, and r = |v| z + noise are
    its residuals. The step moves v along itself by (g/B) z.r and beyond by (g/B) |r| times the
    length of d - 1 normals. Of z and the noise only three numbers count.
    """
    generator, length = np.random.default_rng(seed), np.ones(runs)
    for lr, batch in zip(rates, batches, strict=True):
        parallel = generator.chisquare(batch, runs)  # z.z
        across = math.sqrt(NOISE) * generator.normal(size=runs)  # the noise along z
        remainder = NOISE * generator.chisquare(batch - 1, runs) if batch > 1 else 0.0  # and beyond
        move = lr / DIMENSION / batch
        inner = length * parallel + across * np.sqrt(parallel)
        residual = (length * np.sqrt(parallel) + across) ** 2 + remainder
        length = np.sqrt(
            (length - move * inner) ** 2
            + move**2 * residual * generator.chisquare(DIMENSION - 1, runs)
        )
    return length**2 / 2


def _recursion(steps: int) -> LinearRecursion:
    problem = TeacherStudent(width=1, activation="linear", noise=NOISE)
    return linear_recursion(
        problem,
        OnePassSGD(),
        start(problem, M=[[0.0]], Q=[[0.0]]),
        steps=steps,
        dimension=DIMENSION,
    )


def _draw(data: xr.Dataset) -> Any:
    fig, axes = subplots(1, 3, (14.0, 4.3))
    at, d, lr = data["at"].values, data.attrs["d"], data.lr.values
    edges = np.linspace(0, at[-1], len(data.piece) + 1)
    axes[0].stairs(
        1 / data.rates.values,
        edges,
        color="k",
        ls=":",
        lw=2,
        baseline=None,
        label="1/lr*, falling rate",
    )
    axes[1].plot(at, data.fall, color="k", ls=":", lw=2, label="falling rate", zorder=4)
    points = data.excess_risk_runs.values
    for row, value in enumerate(lr):
        colour = f"C{row}"
        axes[0].plot(
            at, data.batch.values[row], color=colour, lw=1.2, label=f"batch/lr, lr = {value:g}"
        )
        axes[1].plot(
            at,
            data.excess_risk.values[row],
            color=colour,
            label=f"lr = {value:g}, {int(data.steps[row])} steps",
        )
        mean, error = points[row].mean(), points[row].std(ddof=1) / np.sqrt(points.shape[1])
        scale = data.attrs["best"]
        axes[2].errorbar(
            [value / d],
            [mean / scale],
            [2 * error / scale],
            fmt="o",
            ms=5,
            mfc="white",
            color=colour,
            capsize=3,
            zorder=3,
        )
    axes[2].plot(lr / d, data["last"].values / data.attrs["best"], "k-", lw=1, label="exact mean")
    axes[2].plot(
        lr / d,
        data.whole.values / data.attrs["best"],
        "k+",
        ms=9,
        label="exact mean, whole batches",
        zorder=4,
    )
    axes[2].errorbar(
        [], [], [], fmt="o", mfc="white", color="0.4", label=f"chain, {points.shape[1]} runs"
    )
    axes[2].axhline(1, color="k", ls=":", lw=1.5, label="falling rate")
    axes[0].set(xlabel="$\\alpha$ = samples/$d$", ylabel="batch/lr", title="batches", yscale="log")
    axes[1].set(
        xlabel="$\\alpha$ = samples/$d$", ylabel="excess risk", yscale="log", title="excess risk"
    )
    axes[2].set(
        xscale="log",
        xlabel="lr/$d$",
        ylabel="excess risk at the end/that of the falling rate",
        title="at the end",
    )
    ticks(axes[2], lr / d)
    finish(
        fig,
        list(axes),
        f"growing batches in place of a falling rate: linear student, $d$ = {d} (bars: 2 errors)",
    )
    return fig
