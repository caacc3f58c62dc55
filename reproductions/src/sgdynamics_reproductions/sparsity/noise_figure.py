"""Figure 2: label noise finds sparse predictors in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import DiagonalNetwork, OnePassSGD, simulate, solve_ode
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

SHARE, NOISE, START = 0.2, 0.25, 1.0
RATES = (0.3, 0.6)
ALPHA = np.concatenate([[0.0], np.geomspace(0.5, 400.0, 40)])
SIMULATED = np.array([2.0, 5.0, 10.0, 20.0, 40.0])
SHARES = np.linspace(0.02, 0.98, 25)


def linear_excess(lr: float, noise: float) -> float:
    """Late excess risk of one weight per coordinate: E = lr R/2 with R = noise + E, halved."""
    return 0.5 * lr * noise / (2 - lr)


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk and weights of one-pass SGD with label noise, from a start of order 1.

    Parameters
    ----------
    quick : bool, default False
        Fewer and smaller runs, in about two minutes.
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
    Label noise makes c = |u^2 - v^2| decay exponentially, so that weights whose teacher is 0 vanish
    and stop to contribute: the late excess risk is below that of linear regression, in which every
    coordinate fluctuates. Dashed lines are the closed law of c -> 0
    (``DiagonalNetwork.late_law``).

    Examples
    --------
    >>> from sgdynamics_reproductions import sparsity
    >>> fig, data = sparsity.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (200, 32) if quick else (1000, 100)
    problem = DiagonalNetwork(teacher=[(1.0, SHARE), (0.0, 1 - SHARE)], start=START, noise=NOISE)
    names = ("excess_risk", "imbalance", "square")
    table: dict[str, list[np.ndarray]] = {name: [] for name in names}
    table |= {f"{name}_runs": [] for name in names} | {f"{name}_expected": [] for name in names}
    for index, lr in enumerate(RATES):
        algorithm = OnePassSGD(lr=lr)
        points = np.union1d(ALPHA, SIMULATED)
        law = solve_ode(problem, algorithm, alpha=points).isel(run=0)
        ran = simulate(
            problem,
            algorithm,
            alpha=SIMULATED,
            dimension=dimension,
            runs=runs,
            seed=len(RATES) * seed + index,
        )
        # The mean squares of weights whose teacher is 0
        law["square"], ran["square"] = law.weight_square[..., 1], ran.weight_square[..., 1]
        for name in names:
            table[name].append(law[name].values[np.isin(points, ALPHA)])
            table[f"{name}_expected"].append(law[name].values[np.isin(points, SIMULATED)])
            table[f"{name}_runs"].append(ran[name].values)
    by_share = [
        [
            problem.replace(teacher=[(1.0, share), (0.0, 1 - share)]).late_law(lr).excess_risk
            for share in SHARES
        ]
        for lr in RATES
    ]
    dims = {
        "": ("rate", "alpha"),
        "_runs": ("rate", "run", "point"),
        "_expected": ("rate", "point"),
    }
    variables = {
        f"{name}{suffix}": (axes, np.array(table[f"{name}{suffix}"]))
        for name in names
        for suffix, axes in dims.items()
    }
    variables["late"] = ("rate", np.array([problem.late_law(lr).excess_risk for lr in RATES]))
    variables["late_by_share"] = (("rate", "share"), np.array(by_share))
    variables["linear"] = ("rate", np.array([linear_excess(lr, NOISE) for lr in RATES]))
    data = xr.Dataset(
        variables,
        {"rate": list(RATES), "alpha": ALPHA, "point": SIMULATED, "share": SHARES},
        {"d": dimension, "runs": runs, "seed": seed, "noise": NOISE, "teacher_share": SHARE},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.4, 3.8)
    for index, lr in enumerate(data.rate.values):
        colour = f"C{index}"
        for ax, name in ((axes[0], "excess_risk"), (axes[1], "square")):
            ax.loglog(data.alpha[1:], data[name][index, 1:], color=colour, label=f"lr = {lr:g}")
            draw_runs(ax, data.point, data[f"{name}_runs"].values[index], colour)
        axes[0].axhline(float(data.late[index]), color=colour, ls="--")
        axes[0].axhline(float(data.linear[index]), color=colour, ls=":")
        axes[2].plot(data.share, data.late_by_share[index], color=colour, label=f"lr = {lr:g}")
        axes[2].axhline(float(data.linear[index]), color=colour, ls=":")
    axes[0].set(
        xlabel="samples/$d$", ylabel="excess risk", title="late law (dashed), regression (dotted)"
    )
    axes[1].set(xlabel="samples/$d$", ylabel="mean $a_j^2$", title="weights whose teacher is 0")
    axes[2].set(
        ylim=(0, None),
        xlabel="share of teacher weights that are 1",
        ylabel="late excess risk",
        title="diagonal network, regression (dotted)",
    )
    words = (
        f"label noise of variance {data.attrs['noise']:g}: law (lines), {data.attrs['runs']} runs "
        f"at $d$ = {data.attrs['d']} (bars: 2 errors)"
    )
    finish(fig, axes, words)
    return fig
