"""Figure 1: eight optimisers on one problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import spread_over, two_units

NOISE, ACCURATE = 0.1, 1e-4  # runs are known to a percent
OPTIMISERS = {
    "plain SGD": (2.0, None),
    "momentum": (2.0, updates.momentum(memory=1.5)),
    "schedule-free": (2.0, updates.schedule_free(0.9)),
    "clipped": (2.0, updates.clipped(0.2)),
    "normalised": (0.5, updates.normalised()),
    "Muon": (0.5, updates.muon(memory=3.0)),
    "sign": (0.5, updates.sign()),
    "Adam": (0.3, updates.adam(4.0, eps=0.02)),
}


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of eight optimisers on the same problem: ODE (lines) and direct runs (circles),
    and one over the other.

    Parameters
    ----------
    quick : bool, default False
        Fewer and smaller runs, in about two minutes, most of which compiles.
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
    Two erf units learn one, noise .1, batch 1. Runs are in d dimensions: sign SGD and Adam act on
    coordinates, and have no exact chain. Learning rates are chosen so that all are of about one
    speed: what is compared is theory and runs, not optimisers.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (200, 48) if quick else (1000, 200)
    problem, initial_state = two_units(NOISE)
    alpha, some = spread_over(6.0, 25, 4)
    lines, points = [], []
    for row, (lr, update) in enumerate(OPTIMISERS.values()):
        algorithm = OnePassSGD(lr=lr, update=update)
        lines.append(
            solve_ode(
                problem, algorithm, initial_state, alpha=alpha, rtol=ACCURATE
            ).excess_risk.values[0]
        )
        table: dict[str, Any] = {
            "dimension": dimension,
            "runs": runs,
            "seed": len(OPTIMISERS) * seed + row,
            "method": "direct",
        }
        points.append(
            simulate(problem, algorithm, initial_state, alpha=some, **table).excess_risk.values
        )
    data = xr.Dataset(
        {
            "excess_risk": (
                ("optimiser", "alpha"),
                np.array(lines),
                {"long_name": "excess risk of the ODE"},
            ),
            "excess_risk_runs": (
                ("optimiser", "run", "point"),
                np.array(points),
                {"long_name": "excess risk of direct runs"},
            ),
            "lr": ("optimiser", [lr for lr, _ in OPTIMISERS.values()]),
        },
        {"optimiser": list(OPTIMISERS), "alpha": alpha, "point": some},
        {"d": dimension, "noise": NOISE, "runs": runs, "every": 4, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.6, 4.0)
    stride = data.attrs["every"]
    for row, name in enumerate(data.optimiser.values):
        ax, colour = axes[row // 4], f"C{row}"
        line, runs = data.excess_risk.values[row], data.excess_risk_runs.values[row]
        ax.plot(data.alpha, line, color=colour, label=f"{name}, lr = {float(data.lr[row]):g}")
        draw_runs(ax, data.point, runs, colour)
        draw_runs(axes[2], data.point + 0.08 * (row - 3.5), runs / line[stride::stride], colour)
    for ax, words in zip(
        axes, ("memories and lengths", "directions and coordinates"), strict=False
    ):
        ax.set(
            yscale="log",
            xlabel="$\\alpha$ = samples/$d$",
            ylabel="excess risk",
            title=words,
            ylim=(0.01, 0.25),
        )
    axes[2].axhline(1, color="k", lw=0.9)
    axes[2].set(
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="runs/ODE",
        title="runs over the ODE",
        ylim=(0.85, 1.15),
    )
    words = (
        f"eight optimisers on one problem: ODE (lines), {data.attrs['runs']} direct runs at $d$ ="
        f" {data.attrs['d']} (bars: 2 errors)"
    )
    finish(fig, axes, words, legends=axes[:2])
    return fig
