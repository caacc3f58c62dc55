"""Figure 7: what noise for privacy costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import one_unit, spread_over

NOISE, RATE, THRESHOLD = 0.1, 1.0, 0.2
SIGMAS = (0.0, 0.05, 0.1, 0.2, 0.4)
SHORT = 1e-3  # of alpha, over which the first growth of Q is measured


def figure_7(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """DP-SGD: excess risk with samples clipped and Gaussian noise on the gradient, against alpha
    and against the noise.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in about a minute.
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
    One erf unit learns one, noise .1 on labels, each sample clipped at .2 sqrt(d), lr = 1, batch 1.
    Noise sigma in every coordinate of the gradient adds lr^2 sigma^2 to dQ/dtau, tau = steps/d, and
    nothing to dM/dtau: the cost begins as sigma^2. A noise multiplier z is sigma = z threshold
    sqrt(d)/batch: batches of order sqrt(d) or more afford one of order 1.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_7(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (1000, 100) if quick else (4000, 400)
    problem, initial_state = one_unit(NOISE)
    alpha, some = spread_over(20.0, 41, 8)
    lines, points, growth = [], [], []
    for row, sigma in enumerate(SIGMAS):
        algorithm = OnePassSGD(
            lr=RATE,
            update=updates.gradient_noise(sigma, of=updates.clipped(THRESHOLD, over="sample")),
        )
        lines.append(
            solve_ode(problem, algorithm, initial_state, alpha=alpha).excess_risk.values[0]
        )
        near = solve_ode(problem, algorithm, initial_state, alpha=[SHORT]).Q.values[0, 0, 0, 0]
        growth.append((near - 1.0) / SHORT)
        table: dict[str, Any] = {
            "dimension": dimension,
            "runs": runs,
            "seed": len(SIGMAS) * seed + row,
        }
        points.append(
            simulate(problem, algorithm, initial_state, alpha=some, **table).excess_risk.values
        )
    data = xr.Dataset(
        {
            "excess_risk": (
                ("sigma", "alpha"),
                np.array(lines),
                {"long_name": "excess risk of the ODE"},
            ),
            "excess_risk_runs": (
                ("sigma", "run", "point"),
                np.array(points),
                {"long_name": "excess risk of exact chain runs"},
            ),
            "growth": ("sigma", np.array(growth), {"long_name": "dQ/dtau of the ODE at the start"}),
        },
        {"sigma": list(SIGMAS), "alpha": alpha, "point": some},
        {
            "d": dimension,
            "noise": NOISE,
            "lr": RATE,
            "threshold": THRESHOLD,
            "runs": runs,
            "every": 8,
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(2, 4.8, 3.9)
    stride, sigma = data.attrs["every"], data.sigma.values
    for row, value in enumerate(sigma):
        axes[0].plot(
            data.alpha,
            data.excess_risk.values[row],
            color=f"C{row}",
            label=f"$\\sigma$ = {value:g}",
        )
        draw_runs(axes[0], data.point, data.excess_risk_runs.values[row], f"C{row}")
    lines, points = data.excess_risk.values, data.excess_risk_runs.values
    for row, index in enumerate((0, len(data.point) // 2, len(data.point) - 1)):
        at, colour = (index + 1) * stride, f"C{5 + row}"
        axes[1].plot(
            sigma[1:],
            lines[1:, at] - lines[0, at],
            color=colour,
            label=f"$\\alpha$ = {data.point.values[index]:g}",
        )
        draw_runs(axes[1], sigma[1:], (points[1:, :, index] - lines[0, at]).T, colour)
    axes[1].plot(
        sigma[1:3],
        2 * (lines[1, -1] - lines[0, -1]) * (sigma[1:3] / sigma[1]) ** 2,
        "k--",
        lw=0.9,
        label="$\\sigma^2$",
    )
    axes[0].set(
        yscale="log",
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="excess risk",
        title="with time",
        ylim=(0.0035, 0.6),
    )
    axes[1].set(
        xscale="log",
        yscale="log",
        xlabel="$\\sigma$",
        ylabel="excess risk less that without noise",
        title="with noise",
    )
    axes[1].set_xticks(sigma[1:], [f"{entry:g}" for entry in sigma[1:]])
    axes[1].set_xticks([], minor=True)
    words = (
        f"clipped samples and noise on the gradient: ODE (lines), {data.attrs['runs']} runs of the"
        f" exact chain at $d$ = {data.attrs['d']}"
    )
    finish(fig, axes, words, legends=[axes[1]], loc="upper left")
    axes[0].legend(frameon=False, fontsize="small", ncols=3, loc="lower left")
    return fig
