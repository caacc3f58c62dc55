"""Figure 3: dropout that grows, weight decay that switches."""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, subplots
from sgdynamics_reproductions.protocols.protocol_data import (
    draw_control,
    draw_risk,
    protocol_dataset,
)
from sgdynamics_reproductions.protocols.reference import decay, dropout

DIMENSION = 1000
LABELS = {"dropout": "share of units kept", "weight decay": "weight decay"}


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The best share of units that dropout keeps, and the best weight decay, against alpha, with
    the risk under them.

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
    Dropout: two erf units learn one, noise .3, all units at test with the gain .6; a low share is
    also a low rate. Weight decay: one erf unit that begins with squared length 2, noise .5. It
    enters the equations linearly, and is best at its bounds 0 and 1: large first, to forget a start
    that is too long, none, and large again at the end. Circles: the exact chain at d = 1000.

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    pieces, runs = (40, 150) if quick else (80, 1000)
    table = {"dropout": dropout(pieces), "weight decay": decay(pieces)}
    measured = {
        name: value.confirm(dimension=DIMENSION, runs=runs, seed=seed, progress=False)
        for name, value in table.items()
    }
    data = protocol_dataset(table, measured, seed)
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = subplots(2, 2, (9.6, 6.4), sharex="col", height_ratios=(1.2, 1))
    for column, name in enumerate(data.problem.values):
        item = data.sel(problem=name)
        draw_control(axes[0, column], item, LABELS[str(name)])
        draw_risk(axes[1, column], item, f"chain, $d$ = {data.attrs['d']}")
        axes[0, column].set(ylim=(-0.08, 1.08), title=str(name))
    words = (
        f"dropout and weight decay: {data.attrs['pieces']} pieces; {data.attrs['runs']} runs at the"
        " end (bars: 2 errors)"
    )
    finish(fig, list(axes.flat), words)
    axes[0, 0].legend(
        frameon=False, fontsize="small", loc="upper right", bbox_to_anchor=(1.0, 0.93)
    )
    axes[0, 1].legend(frameon=False, fontsize="small", loc="center", bbox_to_anchor=(0.55, 0.55))
    return fig
