"""Figure 7: a generator and a discriminator that learn together."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.several_inputs.style import ALPHA, draw_runs, finish, panels

# rates of discriminator and generator, variance of both noises
CASES = {
    "recovery": (0.2, 0.04, 1.0),
    "oscillation": (0.2, 0.04, 0.2),
    "no learning": (0.4, 0.04, 2.0),
}


def figure_7(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """A generative adversarial network recovers a direction, oscillates, or learns nothing:
    overlaps against alpha, ODE and exact chain.

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
    ``sgd.models.gan``: overlaps of the discriminator w and the generator v with the direction u of
    the data, from w.u = .3, v.u = .2, w.v = .3 and rows of norm 1. (a) Rates .2 and .04, noise 1:
    the generator finds u and the discriminator is left with nothing to tell apart. (b) Noise .2:
    the two chase each other for ever. (c) Discriminator rate .4, noise 2: its own noise drowns what
    it knows of u before it can guide the generator. After Wang, Hu and Lu, "A solvable
    high-dimensional model of GAN" (2019). Quick: d = 1000, 48 runs; full: d = 10000, 96.

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_7(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, end = (1000, 48, 240.0) if quick else (10000, 96, 240.0)
    alpha, values = np.linspace(0, end, 481), 20
    overlaps, measured = (
        np.zeros((3, len(alpha), 2)),
        np.zeros((3, runs, (len(alpha) - 1) // values, 2)),
    )
    for row, (discriminator, generator, noise) in enumerate(CASES.values()):
        problem = models.gan(
            {"discriminator": discriminator, "generator": generator},
            noise=noise,
            generator_noise=noise,
        )
        initial_state, algorithm = (
            start(problem, M=[[0.3], [0.2]], Q=[[1.0, 0.3], [0.3, 1.0]]),
            OnePassSGD(lr=1.0),
        )
        overlaps[row] = solve_ode(problem, algorithm, initial_state, alpha=alpha).M.values[
            0, :, :, 0
        ]
        chain = simulate(
            problem,
            algorithm,
            initial_state,
            alpha=alpha[values::values],
            dimension=d,
            runs=runs,
            seed=3 * seed + row,
        )
        measured[row] = chain.M.values[..., 0]
    data = xr.Dataset(
        {
            "M": (("case", "time", "row"), overlaps, {"long_name": "overlaps with u, ODE"}),
            "M_runs": (
                ("case", "run", "point", "row"),
                measured,
                {"long_name": "overlaps with u, exact chain runs"},
            ),
            "rates": (("case", "row"), [case[:2] for case in CASES.values()]),
            "noise": ("case", [value[2] for value in CASES.values()]),
        },
        {
            "case": list(CASES),
            "row": ["discriminator", "generator"],
            "alpha": ("time", alpha),
            "alpha_runs": ("point", alpha[values::values]),
        },
        {"d": d, "runs": runs, "lr": 1.0, "every": values, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.3)
    for row, (ax, case) in enumerate(zip(axes, data.case.values, strict=True)):
        for index, (label, colour) in enumerate(
            (("$w\\cdot u$, discriminator", "C0"), ("$v\\cdot u$, generator", "C3"))
        ):
            ax.plot(data.alpha, data.M.values[row, :, index], color=colour, label=label)
            draw_runs(ax, data.alpha_runs, data.M_runs.values[row, :, :, index], colour)
        ax.axhline(0.0, color="0.7", lw=0.8, zorder=0)
        first, second = data.rates.values[row]
        ax.set(
            xlabel=ALPHA,
            ylim=(-0.75, 1.85),
            title=f"{case}: rates {first:g}, {second:g}, noise {float(data.noise[row]):g}",
        )
    axes[0].set_ylabel("overlap with the data's direction $u$")
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
    finish(
        fig,
        axes,
        f"a generative adversarial network of one direction ({data.attrs['runs']} runs, bars: 2"
        " standard errors)",
        loc="upper right",
    )
    return fig
