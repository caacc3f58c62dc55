"""Figure 1: an attention head that learns from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, start
from sgdynamics.base import checks
from sgdynamics_reproductions.several_inputs.style import TIME, draw_runs, finish, panels
from sgdynamics_reproductions.several_inputs.theory import path

PAIRS = {
    "$q\\cdot q^*$": (0, 0),
    "$v\\cdot v^*$": (1, 1),
    "$q\\cdot v^*$": (0, 1),
    "$v\\cdot q^*$": (1, 0),
}
GRAM = {"$q\\cdot q$": (0, 0), "$v\\cdot v$": (1, 1), "$q\\cdot v$": (0, 1)}


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Attention that learns from attention, two correlated tokens: excess risk and overlaps, ODE
    (lines) and exact chain (points).

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in about half a minute.
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
    ``sgd.models.attention`` with tokens of correlation .4 and label noise .1, at lr = 1 from Q =
    [[1, .2], [.2, .8]], M = [[.3, .1], [-.2, .4]]: rows q (query) and v (value), signals q* and v*.
    Quick: d = 400, 96 runs to t = 8; full: d = 2000, 256 runs to t = 24. The value row is learned
    at once, the query row slowly: it is seen only through the softmax.

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, end = (400, 96, 8.0) if quick else (2000, 256, 24.0)
    problem = models.attention(noise=0.1, token_correlation=0.4)
    initial_state = start(problem, M=[[0.3, 0.1], [-0.2, 0.4]], Q=[[1.0, 0.2], [0.2, 0.8]])
    t, values = np.linspace(0, end, 49), 6
    ode = path(problem, initial_state, t, 1.0)
    chain = simulate(
        problem,
        OnePassSGD(lr=1.0),
        initial_state,
        times=t[values::values],
        dimension=d,
        runs=runs,
        seed=seed,
    )
    overlap, gram = ("pair", list(PAIRS)), ("product", list(GRAM))
    data = xr.Dataset(
        {
            "excess_risk": ("time", ode["risk"] - 0.05, {"long_name": "excess risk of the ODE"}),
            "excess_risk_runs": (
                ("run", "point"),
                chain.excess_risk.values,
                {"long_name": "excess risk of exact chain runs"},
            ),
            "M": (
                ("time", "pair"),
                np.stack([ode["M"][:, i, j] for i, j in PAIRS.values()], axis=-1),
            ),
            "M_runs": (
                ("run", "point", "pair"),
                np.stack([chain.M.values[:, :, i, j] for i, j in PAIRS.values()], axis=-1),
            ),
            "Q": (
                ("time", "product"),
                np.stack([ode["Q"][:, i, j] for i, j in GRAM.values()], axis=-1),
            ),
            "Q_runs": (
                ("run", "point", "product"),
                np.stack([chain.Q.values[:, :, i, j] for i, j in GRAM.values()], axis=-1),
            ),
        },
        {
            "t": ("time", t),
            "t_runs": ("point", t[values::values]),
            overlap[0]: overlap[1],
            gram[0]: gram[1],
        },
        {
            "d": d,
            "runs": runs,
            "lr": 1.0,
            "noise": 0.1,
            "token_correlation": 0.4,
            "every": values,
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.3)
    t, at = data.t.values, data.t_runs.values
    axes[0].plot(t, data.excess_risk, color="C0", label="ODE")
    draw_runs(axes[0], at, data.excess_risk_runs, "C0", f"exact chain, $d$ = {data.attrs['d']}")
    axes[0].set(yscale="log", ylabel="excess risk", title="excess risk")
    for ax, name, of in ((axes[1], "M", "pair"), (axes[2], "Q", "product")):
        for index, label in enumerate(data[of].values):
            ax.plot(t, data[name].values[:, index], color=f"C{index}", label=label)
            draw_runs(ax, at, data[f"{name}_runs"].values[:, :, index], f"C{index}")
    axes[1].set(ylabel="overlap with the teacher's rows", title="overlaps", ylim=(-0.25, 1.2))
    axes[2].set(ylabel="products of the rows", title="norms", ylim=(-0.05, 1.35))
    for ax in axes:
        ax.set_xlabel(TIME)
    words = (
        "one attention head learns from another: 2 tokens of correlation {token_correlation:g},"
        " noise {noise:g}, lr = {lr:g}"
    )
    finish(
        fig,
        axes,
        words.format(**data.attrs) + f" ({data.attrs['runs']} runs, bars: 2 standard errors)",
    )
    for ax in axes[1:]:
        ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper left")
    return fig
