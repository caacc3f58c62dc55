"""Figure 3: fine-tuning by an update of low rank (LoRA) from B = 0: plateau, rate and rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DIMENSION, LR, LAST, NOISE = 300, 1.0, 120.0, 0.01
GRAM = [[1.0, 0.3, 0.2], [0.3, 1.0, 0.0], [0.2, 0.0, 1.0]]
OVERLAPS = (0.3, 0.1, 0.03)  # of A with the direction v* in which the task has moved
IN_RUNS = 1  # index of the overlap of the runs
RATES = (0.5, 2.0, 8.0)  # of B relative to A
RANKS = (1, 2)


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of LoRA from B = 0, by the initial overlap, the rate of B and the rank.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in half a minute.
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
    Two frozen erf units whose task has moved along v*. At B = 0 the rows A do not move, and B moves
    in proportion to the overlap of A with v*, which is small: a plateau.

    Examples
    --------
    >>> from sgdynamics_reproductions import tops
    >>> fig, data = tops.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    times, points = np.linspace(0.0, LAST, 121), np.linspace(10.0, LAST, 12)
    problems = {rank: models.lora(rank=rank, gram=GRAM, noise=NOISE) for rank in RANKS}

    def initial_state(rank: int, overlap: float) -> Any:
        # rows of A that are orthogonal to each other, with opposite overlaps
        M = [[0.05, -0.1, overlap], [-0.05, 0.1, -overlap]][:rank]
        return start(problems[rank], M=M, Q=np.eye(rank), top={"B": np.zeros((2, rank))})

    def excess_risk(rank: int, overlap: float, rate: float) -> np.ndarray:
        algorithm = OnePassSGD(lr=LR, head_rate=rate)
        path = solve_ode(problems[rank], algorithm, initial_state(rank, overlap), times=times)
        return path.risk.values[0] - NOISE / 2

    middle = OVERLAPS[IN_RUNS]
    chain = simulate(
        problems[1],
        OnePassSGD(lr=LR),
        initial_state(1, middle),
        times=points,
        dimension=DIMENSION,
        runs=runs,
        seed=seed,
    )
    data = xr.Dataset(
        {
            "by_overlap": (
                ("overlap", "time"),
                np.array([excess_risk(1, overlap, 1.0) for overlap in OVERLAPS]),
            ),
            "by_rate": (
                ("rate", "time"),
                np.array([excess_risk(1, middle, rate) for rate in RATES]),
            ),
            "by_rank": (
                ("rank", "time"),
                np.array([excess_risk(rank, middle, 1.0) for rank in RANKS]),
            ),
            "excess_risk_runs": (("run", "point"), chain.risk.values - NOISE / 2),
        },
        {
            "time": times,
            "point": points,
            "overlap": list(OVERLAPS),
            "rate": list(RATES),
            "rank": list(RANKS),
        },
        {"d": DIMENSION, "lr": LR, "noise": NOISE, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def escape_times(curves: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the times at which each curve has fallen to half of its initial value."""
    reached = curves < curves[:, :1] / 2
    return np.array([times[row.argmax()] if row.any() else np.inf for row in reached])


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    for row, overlap in enumerate(data.overlap.values):
        label = f"overlap {overlap:g}"
        axes[0].plot(data.time, data.by_overlap[row], color=f"C{row}", label=label)
    draw_runs(axes[0], data.point, data.excess_risk_runs, f"C{IN_RUNS}", "runs")
    axes[0].set(title="initial overlap of $A$ with $v^*$")
    for row, rate in enumerate(data.rate.values):
        axes[1].plot(data.time, data.by_rate[row], color=f"C{row + 3}", label=f"rate {rate:g}")
    axes[1].set(title="rate of $B$")
    for row, rank in enumerate(data["rank"].values):
        axes[2].plot(data.time, data.by_rank[row], color=f"C{row + 6}", label=f"rank {rank}")
    axes[2].set(title="rank")
    for axis in axes:
        axis.set(xlabel="$t$", ylabel="excess risk", yscale="log")
    title = f"LoRA from $B = 0$: ODE and {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
    finish(fig, axes, title)
    return fig
