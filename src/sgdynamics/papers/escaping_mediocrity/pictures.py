"""Pictures of figures whose data are kept at full size too: drawn from the data alone, be they of a quick run or of the full size."""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdynamics.papers.drawing import legend_below, subplots

MARKS = {"annealed": "s", "quenched": "o", "corrected": "x"}


def draw_2(data: xr.Dataset) -> Any:
    """Measured over predicted exit times against d, a colour a width, a mark a formula."""
    fig, ax = subplots(1, 1, (4.6, 4.2))
    dimensions, runs = data["d"].values, int(data["runs"].values[0])
    for row, p in enumerate(data["p"].values):
        for name, marker in MARKS.items():
            values = data[name].values[row]
            ratio, error = (data[key].values[row] / values for key in ("measured", "standard_error"))
            style: dict[str, Any] = {"ls": "-" if name != "corrected" else ":", "mfc": "none", "capsize": 2, "lw": 0.9, "ms": 5}
            label = f"$p$ = {p}" if name == "quenched" else None
            ax.errorbar(dimensions, ratio, error, marker=marker, color=f"C{row}", label=label, **style)
    ax.axhline(1.0, color="0.6", lw=0.8)
    for name, marker in MARKS.items():
        ax.plot([], [], marker, color="k", mfc="none", label=name)
    ax.set(
        xscale="log",
        xlabel="$d$",
        ylabel="measured / predicted $t_{ext}$",
        title=f"$\\gamma/p$ = {data.attrs['gamma_over_p']:g}, $\\Delta$ = 0, $T$ = {data.attrs['threshold']:g}, {runs} runs",
    )
    legend_below(ax, ncols=4)
    return fig
