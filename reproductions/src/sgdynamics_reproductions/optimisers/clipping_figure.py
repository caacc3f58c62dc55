"""Figure 5: clipped steps where labels are noisy."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import one_unit, spread_over

NOISES = (0.1, 1.0, 10.0)
RATE, THRESHOLD = 1.0, 0.2
RATES = {
    "plain": np.geomspace(0.02, 1.28, 7),
    "clipped": np.geomspace(0.0625, 4.0, 7),
}  # among which the best are


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Plain and clipped SGD under label noise of variance .1, 1, 10: at one learning rate, and
    after the same samples at the best one.

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
    One erf unit learns one. Noise on labels adds lr^2 noise E[s'^2] to dQ/dtau, tau = steps/d, of
    plain SGD; clipping bounds that by lr^2 threshold^2 whatever the noise. (c) With a learning rate
    of its own for each noise, plain SGD needs no clipping: noise is Gaussian.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (1000, 100) if quick else (4000, 400)
    alpha, some = spread_over(20.0, 41, 8)
    table = {"plain": None, "clipped": updates.clipped(THRESHOLD)}
    shape = (len(table), len(NOISES))
    lines, points = np.zeros((*shape, len(alpha))), np.zeros((*shape, runs, len(some)))
    last = np.zeros((*shape, len(RATES["plain"])))
    for row, (name, update) in enumerate(table.items()):
        for column, noise in enumerate(NOISES):
            problem, initial_state = one_unit(noise)
            algorithm = OnePassSGD(lr=RATE, update=update)
            lines[row, column] = solve_ode(
                problem, algorithm, initial_state, alpha=alpha
            ).excess_risk.values[0]
            options: dict[str, Any] = {
                "dimension": dimension,
                "runs": runs,
                "seed": 10 * seed + len(NOISES) * row + column,
            }
            points[row, column] = simulate(
                problem, algorithm, initial_state, alpha=some, **options
            ).excess_risk.values
            for index, lr in enumerate(RATES[name]):
                solution = solve_ode(
                    problem, OnePassSGD(lr=lr, update=update), initial_state, alpha=alpha[-1:]
                )
                last[row, column, index] = float(solution.excess_risk.values[0, -1])
    data = xr.Dataset(
        {
            "excess_risk": (
                ("update", "noise", "alpha"),
                lines,
                {"long_name": "excess risk of the ODE, lr = 1"},
            ),
            "excess_risk_runs": (
                ("update", "noise", "run", "point"),
                points,
                {"long_name": "excess risk of exact chain runs, lr = 1"},
            ),
            "last": (
                ("update", "noise", "rate"),
                last,
                {"long_name": "excess risk of the ODE at the last alpha"},
            ),
            "lr": (("update", "rate"), np.array(list(RATES.values()))),
        },
        {"update": list(table), "noise": list(NOISES), "alpha": alpha, "point": some},
        {
            "d": dimension,
            "rate": RATE,
            "threshold": THRESHOLD,
            "runs": runs,
            "every": 8,
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    for row, name in enumerate(data["update"].values):
        for column, noise in enumerate(data.noise.values):
            colour = f"C{column}"
            axes[row].plot(
                data.alpha,
                data.excess_risk.values[row, column],
                color=colour,
                label=f"noise {noise:g}",
            )
            draw_runs(axes[row], data.point, data.excess_risk_runs.values[row, column], colour)
            x, y, best = (
                data.lr.values[row],
                data.last.values[row, column],
                int(np.argmin(data.last.values[row, column])),
            )
            axes[2].plot(x, y, color=colour, ls=("-", "--")[row], label=f"{name}, noise {noise:g}")
            axes[2].plot(x[best], y[best], "o", color=colour, mfc=("white", colour)[row], ms=6)
        axes[row].set(
            yscale="log", xlabel="$\\alpha$ = samples/$d$", ylabel="excess risk", ylim=(0.004, 0.8)
        )
    axes[0].set(title=f"plain, lr = {data.attrs['rate']:g}")
    axes[1].set(title=f"clipped at {data.attrs['threshold']:g}, lr = {data.attrs['rate']:g}")
    axes[2].set(
        xscale="log",
        yscale="log",
        xlabel="lr",
        ylabel="excess risk",
        ylim=(0.003, 3.0),
        title=f"at $\\alpha$ = {data.alpha.values[-1]:g}; dots: best",
    )
    words = (
        f"label noise: ODE (lines), {data.attrs['runs']} runs of the exact chain at $d$ ="
        f" {data.attrs['d']} (circles in a, b)"
    )
    finish(fig, axes, words, legends=axes[:2], loc="lower left", ncols=3, columnspacing=1.0)
    axes[2].legend(frameon=False, fontsize="x-small", ncols=2, loc="upper left")
    return fig
