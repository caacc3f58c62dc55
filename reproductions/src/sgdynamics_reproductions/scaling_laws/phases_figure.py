"""Figure 1: the phases of compute-optimal training in the plane of data and target exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.scaling import compute_optimal, phase
from sgdynamics_reproductions.drawing import finish, panels

# one point in each phase, and the decade of the last budget: where the phase's law has taken over,
# as far as it does
POINTS = {
    "Ia": (0.7, 0.3, 14),
    "Ib": (0.4, 0.3, 11),
    "Ic": (0.15, 0.8, 25),
    "II": (1.0, 0.7, 16),
    "III": (0.7, 1.2, 12),
    "IVa": (0.4, 0.8, 20),
    "IVb": (0.27, 0.9, 23),
}
COLOURS = {name: f"C{index}" for index, name in enumerate(POINTS)}
WIDEST = (1.2, 1.4)  # of the map


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Seven phases of compute-optimal random features: their map, and eta and xi measured next to
    those predicted.

    Parameters
    ----------
    quick : bool, default False
        Five budgets a point in place of nine, in less than half a minute.
    seed : int, default 0
        Not used: nothing is random here.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Loss ~ flops^-eta at sizes ~ flops^xi, with inputs j^-a and targets j^-b: ``sgd.scaling.phase``
    predicts, ``sgd.scaling.compute_optimal`` measures, over the last two of four decades of flops.
    In IVb two terms of the loss differ by powers of about d^.05 only, so that corrections to both
    exponents fade as d^-.05: several percent are left at any size. After Paquette, Paquette, Xiao
    and Pennington, "4+3 phases of compute-optimal neural scaling laws" (2024).

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_1(quick=True)  # doctest: +SKIP
    """
    seed, count = checks.integer("seed", seed, 0), 5 if quick else 9
    names = list(POINTS)
    table = {
        name: compute_optimal(
            a, b, flops=np.geomspace(10.0 ** (top - 4), 10.0**top, count).tolist()
        )
        for name, (a, b, top) in POINTS.items()
    }
    predicted = {name: phase(*POINTS[name][:2]) for name in names}
    a, b = (
        np.linspace(0.0, WIDEST[0], 121)[1:] - 0.004,
        np.linspace(0.0, WIDEST[1], 141)[1:] - 0.0055,
    )  # off the boundaries
    data = xr.Dataset(
        {
            "map": (
                ("b", "a"),
                np.array([[_index(a_point, b_point) for a_point in a] for b_point in b]),
                {"long_name": "phase by its number, -1 none"},
            ),
            "data_exponent": ("phase", [POINTS[name][0] for name in names]),
            "target_exponent": ("phase", [POINTS[name][1] for name in names]),
            **{
                value: ("phase", [getattr(table[name], value) for name in names])
                for value in ("eta", "eta_error", "xi", "xi_error")
            },
            **{
                f"{entry}_predicted": ("phase", [getattr(predicted[name], entry) for name in names])
                for entry in ("eta", "xi")
            },
            **{
                item: (("phase", "budget"), [getattr(table[name], item) for name in names])
                for item in ("flops", "loss", "size")
            },
        },
        {
            "phase": names,
            "phase_predicted": ("phase", [predicted[name].name for name in names]),
            "a": a,
            "b": b,
        },
        {"rate": 0.5, "batch": 1, "seed": seed},
    )
    return _draw(data), data


def _index(a: float, b: float) -> int:
    """The number of the phase; -1 where the target has no variance."""
    return list(POINTS).index(phase(a, b).name) if 2 * (a + b) > 1 else -1


def _draw(data: xr.Dataset) -> Any:
    from matplotlib.colors import ListedColormap, to_rgba

    fig, axes = panels(3, 4.5, 4.0)
    shades = [(1.0, 1.0, 1.0, 1.0)] + [(*to_rgba(COLOURS[name])[:3], 0.3) for name in POINTS]
    edges = (0, WIDEST[0], 0, WIDEST[1])
    axes[0].imshow(
        data["map"],
        origin="lower",
        extent=edges,
        cmap=ListedColormap(shades),
        vmin=-1.5,
        vmax=6.5,
        aspect="auto",
    )
    for row, name in enumerate(data.phase.values):
        a, b = float(data.data_exponent[row]), float(data.target_exponent[row])
        axes[0].plot(a, b, "o", color=COLOURS[name], mec="k", mew=0.6)
        axes[0].annotate(name, (a, b), xytext=(0, 6), textcoords="offset points", ha="center")
        for ax, entry in ((axes[1], "eta"), (axes[2], "xi")):
            x, y, error = (
                float(data[key][row]) for key in (f"{entry}_predicted", entry, f"{entry}_error")
            )
            ax.errorbar(
                x,
                y / x - 1,
                error / x,
                fmt="o",
                color=COLOURS[name],
                mec="k",
                mew=0.6,
                capsize=2,
                label=name,
            )
    axes[0].text(0.06, 0.12, "infinite\nvariance", fontsize="small", color="0.4")
    axes[0].set(xlabel="data exponent $a$", ylabel="target exponent $b$", title="phases")
    for ax, value, symbol in (
        (axes[1], "loss $\\sim$ flops$^{-\\eta}$", "\\eta"),
        (axes[2], "best size $\\sim$ flops$^{\\xi}$", "\\xi"),
    ):
        ax.axhline(0, color="k", lw=0.9)
        ax.axhspan(-0.03, 0.03, color="0.92", zorder=0)
        ax.set(
            xlabel=f"predicted ${symbol}$",
            ylabel=f"measured ${symbol}$/predicted - 1",
            ylim=(-0.08, 0.08),
            title=value,
        )
        ax.yaxis.set_major_formatter("{x:.0%}")
    axes[2].set_xticks([0.4, 0.45, 0.5, 0.55, 0.6])
    words = (
        "compute-optimal random features: bars, difference from the two decades before; grey, 3%"
    )
    finish(fig, axes, words, legends=[axes[2]], ncols=3, loc="lower center")
    return fig
