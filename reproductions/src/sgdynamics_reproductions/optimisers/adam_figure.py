"""Figure 6: Adam and SGD on two eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import spread_over, two_units

NOISE = 0.1
BLOCKS = ((1.8, 0.5), (0.2, 0.5))  # eigenvalues and fractions of the coordinates
OPTIMISERS = {"SGD": (2.0, None), "Adam": (0.3, updates.adam(4.0))}
SHORT = 1e-3  # interval of alpha for the initial slopes


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Overlaps learned by SGD and Adam on inputs of variance 1.8 and 0.2: ODE and direct runs.

    Parameters
    ----------
    quick : bool, default False
        Fewer and smaller runs, in about a minute.
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
    Two erf units learn one; half of the coordinates have the eigenvalue 1.8, half .2, and M_b is
    the overlap inside each half. From rows that are spread evenly dM_b/dt is in proportion to l_b
    for SGD and to l_b/sqrt(l_b) for Adam, which divides every coordinate by the root of its mean
    squared gradient: a ratio of 9 between the halves becomes one of 3.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (300, 32) if quick else (1000, 200)
    problem, initial_state = two_units(NOISE, covariance=list(BLOCKS))
    alpha, some = spread_over(8.0, 33, 4)
    table: dict[str, list[np.ndarray]] = {
        name: [] for name in ("M", "excess_risk", "M_runs", "excess_risk_runs", "speed")
    }
    for row, (lr, update) in enumerate(OPTIMISERS.values()):
        algorithm = OnePassSGD(lr=lr, update=update)
        line = solve_ode(problem, algorithm, initial_state, alpha=alpha)
        near = solve_ode(
            problem, algorithm, initial_state, alpha=[0.0, SHORT / 2, SHORT]
        ).M_block.values[0, ..., 0]
        options: dict[str, Any] = {
            "dimension": dimension,
            "runs": runs,
            "seed": len(OPTIMISERS) * seed + row,
            "method": "direct",
        }
        ran = simulate(problem, algorithm, initial_state, alpha=some, **options)
        # sums over units: they are alike
        table["M"].append(line.M_block.values[0, ..., 0].sum(axis=-1))
        table["M_runs"].append(ran.M_block.values[..., 0].sum(axis=-1))
        table["excess_risk"].append(line.excess_risk.values[0])
        table["excess_risk_runs"].append(ran.excess_risk.values)
        table["speed"].append((4 * (near[1] - near[0]) - (near[2] - near[0])).sum(axis=-1) / SHORT)
    dims = {
        "M": ("optimiser", "alpha", "block"),
        "excess_risk": ("optimiser", "alpha"),
        "M_runs": ("optimiser", "run", "point", "block"),
        "excess_risk_runs": ("optimiser", "run", "point"),
        "speed": ("optimiser", "block"),
    }
    data = xr.Dataset(
        {name: (dims[name], np.array(value)) for name, value in table.items()},
        {
            "optimiser": list(OPTIMISERS),
            "alpha": alpha,
            "point": some,
            "eigenvalue": ("block", [block for block, _ in BLOCKS]),
            "fraction": ("block", [entry for _, entry in BLOCKS]),
        },
        {"d": dimension, "noise": NOISE, "runs": runs, "every": 4, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    for row, name in enumerate(data.optimiser.values):
        for block, (value, f) in enumerate(
            zip(data.eigenvalue.values, data.fraction.values, strict=True)
        ):
            colour = f"C{block}"
            axes[row].plot(
                data.alpha,
                data.M.values[row, :, block] / f,
                color=colour,
                label=f"eigenvalue {value:g}",
            )
            draw_runs(axes[row], data.point, data.M_runs.values[row, :, :, block] / f, colour)
        lr = OPTIMISERS[name][0]
        axes[row].set(
            xlabel="$\\alpha$ = samples/$d$",
            ylabel="$M_1 + M_2$ in a half/its share",
            ylim=(0.4, 2.6),
            title=f"{name}, lr = {lr:g}",
        )
        axes[2].plot(data.alpha, data.excess_risk.values[row], color=f"C{2 + row}", label=str(name))
        draw_runs(axes[2], data.point, data.excess_risk_runs.values[row], f"C{2 + row}")
    axes[2].set(
        yscale="log", xlabel="$\\alpha$ = samples/$d$", ylabel="excess risk", title="excess risk"
    )
    words = (
        f"inputs of two variances: ODE (lines), {data.attrs['runs']} direct runs at $d$ ="
        f" {data.attrs['d']} (bars: 2 errors)"
    )
    finish(fig, axes, words)
    return fig
