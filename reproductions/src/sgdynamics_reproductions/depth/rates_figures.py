"""Figures 1 and 2: the best learning rate of deep linear networks over width and over depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import minimize_scalar

from sgdynamics import DeepLinear, OnePassSGD, solve_large_batch
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, panels, readable, ticks

NAMES = ("mup", "ntk", "standard")
LABELS = {"mup": "maximal update", "ntk": "neural tangent", "standard": "standard"}
STEPS, NOISE = 20, 0.25
WIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
DEPTHS = (2, 3, 4, 6, 8)
PRECISION = 0.003  # of the logarithm of the best rate
CURVE_POINTS = 13  # rates of a drawn curve
BLOWN_UP = 1e6  # excess risk of a rate at which the training diverges


def excess_after(problem: DeepLinear, lr: float) -> float:
    """u^T C u after the steps, with a fresh batch of d samples per step."""
    result = solve_large_batch(
        problem, OnePassSGD(lr=lr), steps=[STEPS], samples_per_dimension=1.0, progress=False
    )
    excess = 2 * float(result.excess_risk.values[0, 0])
    return excess if np.isfinite(excess) else BLOWN_UP


def best_rate(problem: DeepLinear, scale: float) -> tuple[float, float]:
    """The best learning rate within a factor of 4 of `scale`, and the excess risk there."""
    minimum: Any = minimize_scalar(
        lambda log_lr: np.log(excess_after(problem, float(np.exp(log_lr)))),
        bounds=(np.log(scale / 4), np.log(4 * scale)),
        method="bounded",
        options={"xatol": PRECISION},
    )
    return float(np.exp(minimum.x)), float(np.exp(minimum.fun))


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk against the learning rate at five widths, in three parametrisations.

    Parameters
    ----------
    quick : bool, default False
        Fewer points of the curves.
    seed : int, default 0
        Not used: the limit is deterministic.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Three linear layers, a batch of d fresh samples per step, 20 steps, label noise of variance .25.
    The last panel is the best rate of each width.

    Examples
    --------
    >>> from sgdynamics_reproductions import depth
    >>> fig, data = depth.figure_1(quick=True)  # doctest: +SKIP
    """
    checks.integer("seed", seed, 0)
    points = 7 if quick else CURVE_POINTS
    best = np.zeros((len(NAMES), len(WIDTHS), 2))
    rates = np.zeros((len(NAMES), len(WIDTHS), points))
    curves = np.zeros_like(rates)
    for row, name in enumerate(NAMES):
        for column, width in enumerate(WIDTHS):
            problem = DeepLinear(
                depth=3, width_per_dimension=width, parametrisation=name, noise=NOISE
            )
            scale = 0.08 / width if name == "standard" else 0.055
            best[row, column] = best_rate(problem, scale)
            rates[row, column] = best[row, column, 0] * np.geomspace(0.25, 1.6, points)
            curves[row, column] = [excess_after(problem, lr) for lr in rates[row, column]]
    axes = ("parametrisation", "width")
    data = xr.Dataset(
        {
            "best_rate": (axes, best[..., 0], {"long_name": "learning rate of the least risk"}),
            "best_excess": (axes, best[..., 1], {"long_name": "excess risk there"}),
            "rate": ((*axes, "point"), rates),
            "excess": ((*axes, "point"), curves, {"long_name": "excess risk u^T C u"}),
        },
        {"parametrisation": list(NAMES), "width": list(WIDTHS)},
        {"steps": STEPS, "noise": NOISE, "depth": 3},
    )
    return _draw_widths(data), data


def _draw_widths(data: xr.Dataset) -> Any:
    fig, axes = panels(4, 3.4, 3.6)
    for ax, name in zip(axes, NAMES, strict=False):
        chosen = data.sel(parametrisation=name)
        for column, width in enumerate(data.width.values):
            curve = chosen.isel(width=column)
            colour = f"C{column}"
            ax.loglog(curve.rate, curve.excess, color=colour, label=f"N = {width:g} d")
            ax.plot(curve.best_rate, curve.best_excess, "o", color=colour, ms=4)
        ax.set(title=LABELS[name], xlabel="learning rate", ylim=(0.02, 1))
        axes[3].loglog(data.width, chosen.best_rate, "o-", label=LABELS[name])
    axes[0].set_ylabel("excess risk after 20 steps")
    axes[3].set(xlabel="width N/d", title="best rate")
    readable(axes)
    ticks(axes[3], data.width.values)
    finish(
        fig, axes, "Learning rates transfer over width in two parametrisations", (axes[0], axes[3])
    )
    return fig


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Risk of deep linear networks of two to eight layers, and their best learning rates.

    Parameters
    ----------
    quick : bool, default False
        Has no effect: the figure takes seconds.
    seed : int, default 0
        Not used: the limit is deterministic.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Maximal update parametrisation, N = 4 d, a batch of d fresh samples per step, label noise of
    variance .25. The curves have the best rate of three layers after 20 steps.

    Examples
    --------
    >>> from sgdynamics_reproductions import depth
    >>> fig, data = depth.figure_2(quick=True)  # doctest: +SKIP
    """
    checks.integer("seed", seed, 0)
    problem = DeepLinear(width_per_dimension=4.0, noise=NOISE)
    best = np.array([best_rate(problem.replace(depth=L), 0.144 / L) for L in DEPTHS])
    shared = float(best[DEPTHS.index(3), 0])
    steps = np.arange(0, STEPS + 1)
    curves = []
    for layers, (lr, _) in zip(DEPTHS, best, strict=True):
        deep = problem.replace(depth=layers)
        results = [
            solve_large_batch(
                deep, OnePassSGD(lr=rate), steps=steps, samples_per_dimension=1.0, progress=False
            )
            for rate in (shared, lr)
        ]
        curves.append([2 * result.excess_risk.values[0] for result in results])
    data = xr.Dataset(
        {
            "best_rate": ("depth", best[:, 0], {"long_name": "learning rate of the least risk"}),
            "best_excess": ("depth", best[:, 1], {"long_name": "excess risk there"}),
            "excess": (
                ("depth", "choice", "step"),
                np.array(curves),
                {"long_name": "excess risk u^T C u"},
            ),
        },
        {"depth": list(DEPTHS), "choice": ["rate of three layers", "best rate"], "step": steps},
        {"width": 4.0, "noise": NOISE},
    )
    return _draw_depths(data), data


def _draw_depths(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.2, 3.7)
    for column, choice in enumerate(data.choice.values):
        for row, layers in enumerate(data.depth.values):
            curve = data.excess.isel(depth=row, choice=column)
            axes[column].semilogy(data.step, curve, color=f"C{row}", label=f"L = {layers}")
        axes[column].set(xlabel="step", title=str(choice), ylim=(0.02, 1.6))
    axes[0].set_ylabel("excess risk")
    product = float((data.best_rate * data.depth).mean())
    axes[2].loglog(data.depth, data.best_rate, "o", label="best rate after 20 steps")
    axes[2].loglog(data.depth, product / data.depth, "k:", label="proportional to 1/L")
    axes[2].set(xlabel="layers L", ylabel="learning rate", title="transfer over depth")
    readable([axes[2]])
    ticks(axes[2], data.depth.values)
    finish(fig, axes, "Learning rates do not transfer over depth: they fall as 1/L", axes[[0, 2]])
    return fig
