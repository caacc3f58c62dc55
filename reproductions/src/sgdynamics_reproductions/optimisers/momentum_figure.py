"""Figure 3: when momentum is a larger learning rate and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import spread_over, two_units

NOISE, RATE = 0.1, 2.0  # RATE is the effective one, lr/(1 - beta)
BETAS = (0.5, 0.9)
MEMORIES = (0.5, 2.0, 8.0)


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Momentum with fixed beta is plain SGD at lr/(1 - beta); with 1 - beta = c/d it is not: ODE
    (lines) and exact chain (circles).

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
    All have the effective rate lr/(1 - beta) = 2. (a) Fixed beta: one line, that of plain SGD. (b)
    memory = c: the velocity is an average over d/c steps, which is as long as learning takes. (c)
    Runs at fixed beta over that line: they are late by beta/(1 - beta) steps, a share of 1/d of the
    clock.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes, runs = ((100, 1000), 200) if quick else ((100, 1000), 2000)
    problem, initial_state = two_units(NOISE)
    alpha, some = spread_over(8.0, 33, 4)

    def line(algorithm: OnePassSGD) -> np.ndarray:
        return solve_ode(problem, algorithm, initial_state, alpha=alpha).excess_risk.values[0]

    def ran(algorithm: OnePassSGD, d: int, number: int) -> np.ndarray:
        return simulate(
            problem,
            algorithm,
            initial_state,
            alpha=some,
            dimension=d,
            runs=runs,
            seed=20 * seed + number,
        ).excess_risk.values

    fixed = [OnePassSGD(lr=RATE * (1 - beta), update=updates.momentum(beta)) for beta in BETAS]
    slow = [OnePassSGD(lr=RATE, update=updates.momentum(memory=c)) for c in MEMORIES]
    data = xr.Dataset(
        {
            "plain": (
                "alpha",
                line(OnePassSGD(lr=RATE)),
                {"long_name": "excess risk of plain SGD at lr/(1 - beta), ODE"},
            ),
            "fixed": (
                ("beta", "alpha"),
                np.array([line(value) for value in fixed]),
                {"long_name": "excess risk at fixed beta, ODE"},
            ),
            "slow": (
                ("memory", "alpha"),
                np.array([line(entry) for entry in slow]),
                {"long_name": "excess risk at 1 - beta = c/d, ODE"},
            ),
            "fixed_runs": (
                ("beta", "d", "run", "point"),
                np.array(
                    [
                        [ran(item, d, 2 * row + column) for column, d in enumerate(sizes)]
                        for row, item in enumerate(fixed)
                    ]
                ),
            ),
            "slow_runs": (
                ("memory", "run", "point"),
                np.array([ran(item, sizes[-1], 10 + row) for row, item in enumerate(slow)]),
            ),
        },
        {
            "alpha": alpha,
            "point": some,
            "beta": list(BETAS),
            "memory": list(MEMORIES),
            "d": list(sizes),
        },
        {"effective_rate": RATE, "noise": NOISE, "runs": runs, "every": 4, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    stride, plain, far = data.attrs["every"], data.plain.values, int(data.d[-1])
    for ax in axes[:2]:
        ax.plot(data.alpha, plain, color="k", lw=1.2, label="plain SGD, ODE")
    for row, beta in enumerate(data.beta.values):
        axes[0].plot(
            data.alpha,
            data.fixed.values[row],
            color=f"C{row}",
            ls=(0, (3 + 3 * row, 6)),
            lw=3,
            alpha=0.7,
        )
        for column, d in enumerate(data.d.values):
            colour = f"C{row + 2 * column}"
            if column:
                draw_runs(
                    axes[0],
                    data.point + 0.12 * row,
                    data.fixed_runs.values[row, column],
                    f"C{row}",
                    f"$\\beta$ = {beta:g}",
                )
            ratio = data.fixed_runs.values[row, column] / plain[stride::stride]
            draw_runs(
                axes[2],
                data.point + 0.08 * (2 * column + row),
                ratio,
                colour,
                f"$\\beta$ = {beta:g}, $d$ = {d}",
            )
    for row, c in enumerate(data.memory.values):
        axes[1].plot(data.alpha, data.slow.values[row], color=f"C{4 + row}", label=f"$c$ = {c:g}")
        draw_runs(axes[1], data.point, data.slow_runs.values[row], f"C{4 + row}")
    axes[0].set(title=f"fixed $\\beta$, $d$ = {far}")
    axes[1].set(title=f"$1 - \\beta = c/d$, $d$ = {far}")
    for ax in axes[:2]:
        ax.set(
            yscale="log", xlabel="$\\alpha$ = samples/$d$", ylabel="excess risk", ylim=(0.012, 0.25)
        )
    axes[2].axhline(1, color="k", lw=0.9)
    axes[2].set(
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="runs/ODE of plain SGD",
        ylim=(0.96, 1.1),
        title="fixed $\\beta$, two dimensions",
    )
    words = (
        f"momentum at the effective rate {data.attrs['effective_rate']:g}: ODE (lines),"
        f" {data.attrs['runs']} runs of the exact chain"
    )
    finish(fig, axes, words)
    return fig
