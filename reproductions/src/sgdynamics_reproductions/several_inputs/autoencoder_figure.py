"""Figure 4: an autoencoder learns principal components one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics.papers.several_inputs import component_path
from sgdynamics_reproductions.several_inputs.style import TIME, draw_runs, finish, panels

SPIKES = (10.0, 4.0, 1.5)
FIRST = 1e-3  # squared overlap with each spike at the start
OUTSIDE = 1e-3  # squared norm of each row outside of the spikes there


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """A linear autoencoder of tied weights finds three spikes, the largest first: squared overlaps
    and risk, ODE and exact chain.

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
    ``sgd.models.autoencoder`` of width 3 with spikes 10, 4, 1.5. (a) u_r = sum_i M_ir^2, what the
    rows hold of spike r; (b) the same, dashed the logistic path of rate 4 (1 + beta_r) that each
    would take alone without noise; (c) the risk, which falls in steps. From u_r = .001 for all r
    and as much outside of the spikes for each row, at lr = .02. Quick: d = 500, 48 runs; full: d =
    4000, 128.

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, lr, end = (500, 48, 0.02, 1.2) if quick else (4000, 128, 0.02, 1.2)
    problem, algorithm = (
        models.autoencoder(3, "linear", spikes=SPIKES, tied=True),
        OnePassSGD(lr=lr),
    )
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    initial_state = start(problem, M=np.sqrt(FIRST) * turned, Q=(OUTSIDE + FIRST) * np.eye(3))
    t, values = np.linspace(0, end, 121), 8
    ode = solve_ode(problem, algorithm, initial_state, times=t)
    chain = simulate(
        problem,
        algorithm,
        initial_state,
        times=t[values::values],
        dimension=d,
        runs=runs,
        seed=seed,
    )
    data = xr.Dataset(
        {
            "held": (
                ("time", "spike"),
                (ode.M.values[0] ** 2).sum(axis=1),
                {"long_name": "squared overlap of the rows with a spike, ODE"},
            ),
            "held_runs": (
                ("run", "point", "spike"),
                (chain.M.values**2).sum(axis=2),
                {"long_name": "the same, exact chain runs"},
            ),
            "alone": (
                ("time", "spike"),
                np.stack([component_path(t, beta, FIRST) for beta in SPIKES], axis=-1),
            ),
            "risk": (
                "time",
                ode.risk.values[0],
                {"long_name": "risk less half of the mean square of x, ODE"},
            ),
            "risk_runs": (("run", "point"), chain.risk.values),
        },
        {"spike": list(SPIKES), "t": ("time", t), "t_runs": ("point", t[values::values])},
        {"d": d, "runs": runs, "lr": lr, "first": FIRST, "every": values, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.3)
    t, at = data.t.values, data.t_runs.values
    for index, beta in enumerate(data.spike.values):
        for ax in axes[:2]:
            ax.plot(t, data.held.values[:, index], color=f"C{index}", label=f"spike {beta:g}")
            draw_runs(ax, at, data.held_runs.values[:, :, index], f"C{index}")
        alone = data.alone.values[:, index]
        axes[1].plot(
            t,
            alone,
            color="k",
            lw=0.9,
            ls="--",
            zorder=4,
            label="alone, logistic" if index == 2 else None,
        )
    axes[0].errorbar(
        [],
        [],
        [],
        fmt="o",
        ms=4,
        mfc="white",
        color="0.3",
        capsize=2,
        label=f"exact chain, $d$ = {data.attrs['d']}",
    )
    axes[0].set(
        ylabel="$\\sum_i M_{ir}^2$, held of spike $r$",
        ylim=(-0.03, 1.08),
        title="one after the other",
    )
    axes[1].set(
        yscale="log",
        ylabel="$\\sum_i M_{ir}^2$",
        ylim=(5e-4, 1.5),
        title="at rates $4\\,(1+\\beta_r)$",
    )
    axes[2].plot(t, data.risk, color="C4", label="ODE")
    draw_runs(axes[2], at, data.risk_runs, "C4", f"exact chain, $d$ = {data.attrs['d']}")
    for index, beta in enumerate(data.spike.values):
        half = t[np.argmax(data.held.values[:, index] > 0.5)]
        axes[2].axvline(half, color=f"C{index}", lw=0.9, ls=":", label=f"half of spike {beta:g}")
    axes[2].set(ylabel="risk $-\\,\\mathrm{E}|x|^2/2$", title="risk")
    for ax in axes:
        ax.set_xlabel(TIME)
    words = (
        "a linear autoencoder of tied weights, width 3: lr = {lr:g}, {runs} runs (bars: 2 standard"
        " errors)"
    )
    finish(fig, axes, words.format(**data.attrs))
    return fig
