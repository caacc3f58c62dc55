"""Data and drawing shared by the figures: limits as curves, learners at finite d as points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics_reproductions.drawing import draw_runs


def comparison(
    cases: Sequence[str],
    x: np.ndarray,
    curve: Any,
    point: Any,
    limit: Any,
    runs: Any,
    quantity: str,
    **attributes: Any,
) -> xr.Dataset:
    """Return the data of a figure.

    Parameters
    ----------
    cases : sequence of str
        Names of the learners or problems.
    x : ndarray
        Abscissas of the curves.
    curve : array (case, x)
        Limits.
    point : array (case, point)
        Abscissas of the runs.
    limit, runs : arrays (case, point) and (case, run, point)
        Limits there, and values of the runs.
    quantity : str
        Meaning of the ordinate.
    **attributes
        Plain values.
    """
    return xr.Dataset(
        {
            "curve": (("case", "x"), np.array(curve), {"long_name": f"{quantity}, limit"}),
            "point": (("case", "position"), np.array(point)),
            "limit": (("case", "position"), np.array(limit), {"long_name": f"{quantity}, limit"}),
            "runs": (("case", "run", "position"), np.array(runs), {"long_name": quantity}),
        },
        {"case": list(cases), "x": np.asarray(x)},
        {"quantity": quantity, **attributes},
    )


def draw_comparison(ax: Axes, data: xr.Dataset, dashed: Sequence[str] = ()) -> None:
    """Draw the curves and the runs of all cases."""
    for index, case in enumerate(data.case.values):
        colour = f"C{index}"
        style = "--" if case in dashed else "-"
        ax.plot(data.x, data.curve[index], style, color=colour, label=str(case))
        draw_runs(ax, data.point[index].values, data.runs[index].values, colour)
