"""Figure 3: runs of finite networks scatter about the proportional limit as 1/sqrt(d)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import DeepLinear, GradientDescent, simulate, solve_dmft
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, readable

SIZES = (100, 400, 1600)
STEPS = np.array([2, 5, 10, 15])


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of a deep linear network: the limit, and runs at three dimensions.

    Parameters
    ----------
    quick : bool, default False
        100 runs instead of 400.
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
    Three layers of width d, gradient descent at lr = .1 on 2 d samples, label noise of variance
    .25, maximal update parametrisation. The runs are exact in law.

    Examples
    --------
    >>> from sgdynamics_reproductions import depth
    >>> fig, data = depth.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    count = 100 if quick else 400
    problem = DeepLinear(depth=3, noise=0.25)
    algorithm = GradientDescent(lr=0.1, samples_per_dimension=2.0)
    limit = 2 * solve_dmft(problem, algorithm, steps=STEPS, progress=False).excess_risk.values[0]
    runs = [
        2
        * simulate(
            problem,
            algorithm,
            steps=STEPS,
            dimension=d,
            runs=count,
            seed=len(SIZES) * seed + row,
            progress=False,
        ).excess_risk.values
        for row, d in enumerate(SIZES)
    ]
    data = xr.Dataset(
        {
            "limit": ("step", limit, {"long_name": "excess risk of the limit"}),
            "excess_runs": (
                ("d", "run", "step"),
                np.array(runs),
                {"long_name": "excess risk of runs"},
            ),
        },
        {"step": STEPS, "d": list(SIZES)},
        {"lr": 0.1, "samples_per_dimension": 2.0, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(2, 4.8, 3.8)
    axes[0].semilogy(data.step, data.limit, "k-", label="limit")
    for row, d in enumerate(data.d.values):
        runs = data.excess_runs.isel(d=row).values
        x = data.step.values + 0.3 * (row - 1)
        draw_runs(axes[0], x, runs, f"C{row}", f"runs, d = {d}", bars=np.sqrt(len(runs)))
    axes[0].set(xlabel="step", ylabel="excess risk", title="mean and standard deviation of runs")
    spread = data.excess_runs.std("run", ddof=1)
    for column in (1, 2, 3):
        step = int(data.step[column])
        axes[1].loglog(data.d, spread.isel(step=column), "o", color=f"C{column}")
        scale = float((spread.isel(step=column) * np.sqrt(data.d)).mean())
        text = f"step {step}: {scale:.2f} over root of d"
        axes[1].loglog(data.d, scale / np.sqrt(data.d), ":", color=f"C{column}", label=text)
    axes[1].set(xlabel="dimension d", ylabel="standard deviation over runs", title="spread")
    readable([axes[1]])
    finish(fig, axes, "Finite deep networks scatter about the limit")
    return fig
