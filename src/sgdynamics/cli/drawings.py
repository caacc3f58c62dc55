"""Figures of the commands `run` and `sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from sgdynamics.cli.summaries import in_common_time, shown_risk
from sgdynamics.plotting import plot
from sgdynamics.plotting.time_axis import add_epoch_axis
from sgdynamics.results.datasets import requested_clock

if TYPE_CHECKING:  # Matplotlib is imported by the functions that draw.
    from matplotlib.figure import Figure

LOG_AXIS_RATIO = 30  # a sweep gets a logarithmic axis if its values span more than this factor


def draw_results(results: dict[str, xr.Dataset], title: str) -> Figure:
    """Draw risk and overlaps of all methods, on the clock of the requested save points."""
    from matplotlib.figure import Figure

    shown = [in_common_time(result) for result in results.values()]
    has_overlaps = "M" in shown[0]
    fig = Figure(figsize=(12 if has_overlaps else 6, 4.2), layout="constrained")
    axes = np.atleast_1d(fig.subplots(1, 2 if has_overlaps else 1))
    clock = requested_clock(shown[0])
    clock = clock if all(clock in result.coords for result in shown) else "t"
    is_log = _needs_log_axis(shown)
    for result in shown:
        if shown_risk([result]) == "train_risk":
            axes[0].plot(result[clock], result["train_risk"].mean("run"))
            axes[0].set(xlabel=clock, ylabel="training risk", yscale="log" if is_log else "linear")
        else:
            plot.risk(result, axes[0], x=clock, log=is_log)
        if has_overlaps:
            plot.overlaps(result, axes[1], x=clock)
    for ax in axes:
        add_epoch_axis(ax, shown[0], clock)
    if has_overlaps and axes[1].get_legend_handles_labels()[0]:
        # next to the curves, which fill their panel
        axes[1].legend(
            frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small"
        )
    fig.suptitle(title)
    return fig


def _needs_log_axis(results: list[xr.Dataset]) -> bool:
    """Whether the risks vary enough for the ticks of a logarithmic axis: by a factor of 3."""
    risks = np.concatenate([result[shown_risk([result])].mean("run").values for result in results])
    risks = risks[np.isfinite(risks) & (risks > 0)]
    return bool(risks.size > 0 and risks.max() > 3 * risks.min())


def draw_sweep(values: xr.DataArray) -> Figure | None:
    """Draw the values of a sweep over one number (a curve) or two (a map); None for others."""
    from matplotlib.figure import Figure

    axes = [str(name) for name in values.dims]
    is_numeric = all(
        name in values.coords and values[name].dtype.kind in "iuf" and values.sizes[name] > 1
        for name in axes
    )
    if not is_numeric or len(axes) > 2 or not np.isfinite(values.values).any():
        return None
    fig = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = fig.subplots()
    label = str(values.name)
    if len(axes) == 2:
        table = values.rename("value").to_dataset().sortby(axes)
        plot.phase_diagram(table, x=axes[0], y=axes[1], ax=ax, label=label)
        return fig
    values = values.sortby(axes[0])
    x, y = values[axes[0]].values.astype(float), values.values
    ax.plot(x, y, "o-", ms=4)
    ax.set(xlabel=plot.PARAMETER_LABELS.get(axes[0], axes[0]), ylabel=label)
    for coordinates, set_scale in ((x, ax.set_xscale), (y[np.isfinite(y)], ax.set_yscale)):
        if 0 < LOG_AXIS_RATIO * coordinates.min() < coordinates.max():
            set_scale("log")
    return fig
