"""Figure 1: the best learning rate, in closed form and found."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy import optimize

from sgdynamics.base import checks
from sgdynamics.papers.protocols import best_error, best_rate, constant_error
from sgdynamics_reproductions.drawing import finish, subplots
from sgdynamics_reproductions.protocols.protocol_data import (
    draw_control,
    draw_risk,
    protocol_dataset,
)
from sgdynamics_reproductions.protocols.reference import (
    ERF_RATES,
    NOISE,
    rate_of_erf,
    rate_of_linear,
)

DIMENSION = 1000
FINE = 20  # points of the closed form in a piece


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The best learning rate of a linear and of an erf student against alpha, next to the best
    constant, and the risk under both.

    Parameters
    ----------
    quick : bool, default False
        Fewer pieces and runs, in about a minute.
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
    One unit learns one, noise .1, to alpha = 20. The linear student's best rate is known, lr =
    eps/(eps + noise) (``best_rate``); that of the erf student by Pontryagin's equations: it rises
    first, while there is little to lose. Circles: the exact chain at d = 1000 at the end, the same
    random numbers with the protocol and with the best constant.

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    pieces, runs = (40, 100) if quick else (160, 1000)
    table = {"linear": rate_of_linear(pieces), "erf": rate_of_erf(pieces)}
    measured = {
        name: value.confirm(dimension=DIMENSION, runs=runs, seed=seed, progress=False)
        for name, value in table.items()
    }
    data = protocol_dataset(table, measured, seed)
    edges = table["linear"].edges
    inside = edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(FINE) + 0.5) / FINE
    least: Any = optimize.minimize_scalar(
        lambda lr: float(constant_error(20.0, 1.0, NOISE, lr)),
        bounds=(0.01, 1.9),
        options={"xatol": 1e-9},
    )
    data = data.assign(
        closed=(
            "piece",
            best_rate(inside, 1.0, NOISE).mean(axis=1),
            {"long_name": "mean over a piece of the closed form, linear"},
        ),
        closed_risks=(
            "edge",
            best_error(edges, 1.0, NOISE) / 2,
            {"long_name": "excess risk of the closed form, linear"},
        ),
        closed_constant=(
            "of",
            [least.x, least.fun / 2],
            {"long_name": "the best constant of the closed form and its risk, linear"},
        ),
        reference=(
            "place",
            list(ERF_RATES.values()),
            {"long_name": "best rate by Pontryagin's equations, erf"},
        ),
    )
    data = data.assign_coords(place=list(ERF_RATES)).assign_attrs(noise=NOISE)
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = subplots(2, 2, (9.6, 6.4), sharex="col", height_ratios=(1.2, 1))
    for column, name in enumerate(data.problem.values):
        item = data.sel(problem=name)
        draw_control(axes[0, column], item, "learning rate", bounds=False)
        axes[0, column].set(ylim=(0, (1.0, 1.3)[column]))
        draw_risk(axes[1, column], item, f"chain, $d$ = {data.attrs['d']}")
    at = np.linspace(0, float(data.edges[0, -1]), 401)
    axes[0, 0].plot(
        at, best_rate(at, 1.0, data.attrs["noise"]), color="k", lw=0.9, label="eps/(eps + noise)"
    )
    axes[1, 0].plot(data.edges[0][::4], data.closed_risks[::4], "k+", ms=6, label="closed form")
    axes[0, 1].plot(
        data.place,
        data.reference,
        "k+",
        ms=8,
        mew=1.4,
        label="Pontryagin's equations",
        zorder=4,
        clip_on=False,
    )
    axes[0, 0].set_title("linear student")
    axes[0, 1].set_title("erf student")
    words = (
        f"the best learning rate: {data.attrs['pieces']} pieces; {data.attrs['runs']} runs at the"
        " end (bars: 2 errors)"
    )
    finish(fig, list(axes.flat), words)
    return fig
