"""The picture of a forecast: measured curves, the fit, and predictions with their bands."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sgdynamics.scaling.forecast.forecasting import Forecast

DRAWN_POINTS = 300  # of a measured curve


def draw_forecast(
    fit: Forecast, predictions: tuple[xr.Dataset, ...], ax: Axes | None
) -> tuple[Figure, Axes]:
    """Draw measured curves as points, the fit as lines, and predictions with bands."""
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    fig = ax.get_figure(root=True)
    assert fig is not None
    main = fit.fits[fit.model]
    for index, (curve, points) in enumerate(zip(fit.curves, main.points, strict=True)):
        steps, losses = curve.after(fit.skip)
        shown = slice(None, None, max(len(steps) // DRAWN_POINTS, 1))
        colour = f"C{index % 10}"
        ax.plot(steps[shown], losses[shown], ".", ms=3, color=colour, alpha=0.5, label=curve.name)
        grid = np.linspace(steps[0], steps[-1], DRAWN_POINTS)
        ax.plot(grid, main.loss(points.rates, grid), "-", lw=1, color=colour)
    for index, prediction in enumerate(predictions, start=len(fit.curves)):
        colour, step = f"C{index % 10}", prediction["step"].values
        ax.plot(step, prediction["loss"], "--", color=colour, label="prediction")
        ax.fill_between(
            step, prediction["lower"], prediction["upper"], color=colour, alpha=0.2, lw=0
        )
    losses = np.concatenate([points.losses for points in main.points])
    low, high = losses.min(), np.quantile(losses, 0.95)
    if predictions:
        low = min(low, *(float(p["loss"].min()) for p in predictions))
    margin = 0.1 * (high - low)
    ax.set_ylim(low - margin, high + margin)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    ax.legend(frameon=False, fontsize=8)
    return fig, ax  # type: ignore[return-value]  # the root of an axes is a Figure


def forecast_html(fit: Forecast) -> str:
    """The summary and the picture, for notebooks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(fig)
    draw_forecast(fit, (), fig.add_subplot())
    image = io.BytesIO()
    fig.savefig(image, format="png", dpi=100)
    encoded = base64.b64encode(image.getvalue()).decode()
    return f'<img src="data:image/png;base64,{encoded}"/><pre>{escape(fit.summary())}</pre>'
