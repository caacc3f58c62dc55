"""Figure 4: Muon and SGD as the batch grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, simulate, solve_ode, updates
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, ticks
from sgdynamics_reproductions.optimisers.problem import two_units

NOISE, DIMENSION = 0.1, 200
BATCHES = (1, 4, 16, 64)
SOLVED = (1, 16)  # of which the ODE is drawn
OPTIMISERS = {
    "SGD": (4.0, None),
    "Muon": (0.3, updates.muon()),
    "Muon, memory 3": (0.3, updates.muon(memory=3.0)),
}
STEPS = np.array([1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 80.0, 85.0, 90.0, 95.0, 100.0])  # over d
LATE = 80.0  # from here on runs have settled


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk against steps at batches 1 to 64: SGD, Muon, Muon with a slow velocity (ODE and
    exact chain), and what is left late.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in a minute or two, much of which compiles.
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
    Two erf units learn one, noise .1, d = 200. A step of Muon has one length whatever the batch:
    once gradients are mostly noise, of size 1/sqrt(B), its drift is sqrt(B) times as large and its
    noise the same, so that the late excess risk falls as 1/sqrt(B). That of SGD falls as 1/B. With
    one sample the polar factor has rank one, and Muon is normalised SGD.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 24 if quick else 200
    problem, initial_state = two_units(NOISE)
    steps = np.round(STEPS * DIMENSION).astype(int)
    points = np.zeros((len(OPTIMISERS), len(BATCHES), runs, len(steps)))
    table: dict[str, Any] = {"dimension": DIMENSION, "runs": runs}
    for row, (lr, update) in enumerate(OPTIMISERS.values()):
        for column, batch in enumerate(BATCHES):
            algorithm = OnePassSGD(lr=lr, batch=batch, update=update)
            number = 100 * seed + len(BATCHES) * row + column
            points[row, column] = simulate(
                problem, algorithm, initial_state, steps=steps, seed=number, **table
            ).excess_risk.values
    lr, update = OPTIMISERS["Muon, memory 3"]
    tau = np.sort(np.append(np.linspace(0.0, 24.0, 49), STEPS[STEPS > 24]))
    line = [
        solve_ode(
            problem, OnePassSGD(lr=lr, batch=batch, update=update), initial_state, alpha=tau * batch
        ).excess_risk.values[0]
        for batch in SOLVED
    ]
    # the same inputs as Muon's first runs, so that steps that are the same are the same run by run
    few = steps[: len(steps) // 2]
    item = OnePassSGD(lr=OPTIMISERS["Muon"][0], update=updates.normalised())
    same = simulate(
        problem, item, initial_state, steps=few, seed=100 * seed + len(BATCHES), **table
    ).excess_risk.values
    data = xr.Dataset(
        {
            "excess_risk_runs": (
                ("optimiser", "batch", "run", "point"),
                points,
                {"long_name": "excess risk of exact chain runs"},
            ),
            "excess_risk": (
                ("solved", "tau"),
                np.array(line),
                {"long_name": "excess risk of the ODE of Muon, memory 3"},
            ),
            "normalised_runs": (
                ("run", "early"),
                same,
                {"long_name": "excess risk of normalised SGD, batch 1"},
            ),
        },
        {
            "optimiser": list(OPTIMISERS),
            "batch": list(BATCHES),
            "point": STEPS,
            "solved": list(SOLVED),
            "tau": tau,
        },
        {"d": DIMENSION, "noise": NOISE, "runs": runs, "late": LATE, "seed": seed},
    )
    return _draw(data), data


def late_risks(data: xr.Dataset) -> np.ndarray:
    """Excess risk of each run, mean over late times: (optimiser, batch, run)."""
    return data.excess_risk_runs.values[..., data.point.values >= data.attrs["late"]].mean(axis=-1)


def _draw(data: xr.Dataset) -> Any:
    from matplotlib import colormaps

    fig, axes = panels(4, 4.1, 3.9)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, data.sizes["batch"]))
    for row, (ax, name) in enumerate(zip(axes[:3], data.optimiser.values, strict=True)):
        for column, batch in enumerate(data.batch.values):
            runs, shade = data.excess_risk_runs.values[row, column], shades[column]
            ax.plot(
                [],
                [],
                color=shade,
                marker="o",
                ms=4,
                mfc="white",
                ls="-" if row == 2 and batch in data.solved else ":",
                label=f"$B$ = {batch}",
            )
            draw_runs(ax, data.point, runs, shade)
            if row < 2 or batch not in data.solved:
                ax.plot(data.point, runs.mean(axis=0), color=shade, lw=0.8, ls=":")
            else:
                line = data.excess_risk.sel(solved=batch)
                ax.plot(data.tau[1:], line[1:], color=shade)
        lr = OPTIMISERS[name][0]
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="steps/$d$",
            ylabel="excess risk",
            ylim=(2e-4, 0.3),
            title=f"{name}, lr = {lr:g}",
        )
        ticks(ax, [1, 3, 10, 30, 100])
    late, B = late_risks(data), data.batch.values
    for row, name in enumerate(data.optimiser.values):
        draw_runs(axes[3], B * (1 + 0.03 * (row - 1)), late[row].T, f"C{row}", str(name))
    axes[3].plot(
        B, late[0].mean(axis=1)[-1] * B[-1] / B, color="k", lw=0.8, ls="--", label="$B^{-1}$"
    )
    axes[3].plot(
        B,
        late[1].mean(axis=1)[-1] * (B / B[-1]) ** -0.5,
        color="k",
        lw=0.8,
        ls="-.",
        label="$B^{-1/2}$",
    )
    axes[3].set(
        xscale="log",
        yscale="log",
        xlabel="batch $B$",
        ylabel="late excess risk",
        title="what is left late",
    )
    ticks(axes[3], B)
    words = (
        f"batches at the same learning rate: {data.attrs['runs']} runs of the exact chain at $d$ ="
        f" {data.attrs['d']}; lines in (c): ODE"
    )
    finish(fig, axes, words, loc="upper right")
    axes[3].legend(frameon=False, fontsize="small", loc="lower left")
    return fig
