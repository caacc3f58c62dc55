"""Drawing functions of the figures whose data are also stored at full size.

They use the data alone, from a quick run or at full size.
"""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdynamics_reproductions.drawing import letters, subplots

FORMULAS = {
    "annealed": "annealed",
    "quenched": "quenched",
    "corrected": "corrected (not in the paper)",
}
MARKS = "osD^v"
# Ratio of the positions of neighbouring widths at the same d, so that their points do not overlap.
WIDTH_OFFSET = 1.15


def draw_2(data: xr.Dataset) -> Any:
    """Draw measured over predicted exit times against d, one panel per formula."""
    fig, axes = subplots(1, len(FORMULAS), (3.7 * len(FORMULAS), 3.8), sharey=True)
    widths, runs = data["p"].values, int(data["runs"].values[0])
    for ax, (name, title) in zip(axes, FORMULAS.items(), strict=True):
        for row, p in enumerate(widths):
            ratio, error = (
                (data[key] / data[name]).values[row] for key in ("measured", "standard_error")
            )
            style: dict[str, Any] = {
                "marker": MARKS[row],
                "mfc": "white",
                "capsize": 2,
                "lw": 0.9,
                "ms": 4.5,
                "color": f"C{row}",
            }
            ax.errorbar(
                data["d"].values * WIDTH_OFFSET ** (row - (len(widths) - 1) / 2),
                ratio,
                error,
                label=f"$p$ = {p}",
                **style,
            )
        ax.axhline(1.0, color="0.6", lw=0.8, zorder=0)
        ax.set(xscale="log", xlabel="$d$", title=title)
    letters(axes)
    axes[0].set_ylabel("measured / predicted $t_{ext}$")
    fig.legend(
        *axes[0].get_legend_handles_labels(),
        frameon=False,
        loc="outside lower center",
        ncols=len(widths),
    )
    text = (
        f"$\\gamma/p$ = {data.attrs['gamma_over_p']:g}, $\\Delta$ = 0, $T$ ="
        f" {data.attrs['threshold']:g}"
    )
    fig.suptitle(
        f"{text}, {runs} runs a point, bars: one standard error (widths side by side at each $d$)",
        fontsize="medium",
    )
    return fig
