"""Figure 1 of "High-dimensional limit theorems for SGD": matrix PCA below and above its critical
snr, from the exact chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, SpikedTensor, fixed_points, random_start, simulate
from sgdynamics.dynamics.spiked_equations import drift, equation_parameters
from sgdynamics.papers.effective_dynamics import saddle_variance, stationary_variance
from sgdynamics.simulation.spiked_tensor import SPAN

SNRS = (0.8, 1.2)
SHOWN = 12  # runs that are drawn


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Matrix PCA in n = 1500 dimensions, 10 n steps, c = 1, from random starts: lam = .8 (first
    row) and 1.2 (second).

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
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
    Left, paths of m: for lam = .8 a stable Ornstein-Uhlenbeck process, for lam = 1.2 an unstable
    one that ends at +-sqrt(lam - 1); the band is twice the standard deviation sqrt(V(t)/n) of
    (3.2), drawn until it reaches the fixed point. Right, the same paths in the plane of (m, r2),
    over the stream of the ODE (3.1) and its fixed points: crosses are stable, circles are not.
    ``quick`` has n = 500 and fewer runs in the data.

    Examples
    --------
    >>> from sgdynamics_reproductions import effective_dynamics
    >>> fig, data = effective_dynamics.figure_1(quick=True)  # doctest: +SKIP
    """
    c = 1.0
    n, runs = (500, 512) if quick else (1500, 2000)
    # a save point a span of the chain's random numbers: what is cut is drawn twice
    steps = np.append(np.arange(0, 10 * n, SPAN), 10 * n)
    table = {}
    for snr in SNRS:
        problem = SpikedTensor(order=2, snr=snr)
        initial_state = random_start(problem, dimension=n, seed=seed, runs=runs)
        table[snr] = simulate(
            problem, OnePassSGD(lr=c), initial_state, steps=steps, dimension=n, seed=seed + 1
        )
    t = np.asarray(table[SNRS[0]].t)
    band = np.sqrt(np.array([saddle_variance(t, snr, c) for snr in SNRS]) / n)
    data = xr.Dataset(
        {
            "m": (("snr", "run", "time"), np.stack([np.asarray(table[snr].m) for snr in SNRS])),
            "r2": (("snr", "run", "time"), np.stack([np.asarray(table[snr].r2) for snr in SNRS])),
            "standard_deviation_limit": (
                ("snr", "time"),
                band,
                {"long_name": "sqrt(V(t)/n) of the rescaled SDE at the saddle"},
            ),
            "stationary_variance_limit": ("snr", [stationary_variance(snr, c) for snr in SNRS]),
            "m_star": ("snr", [max(point.m for point in _points(snr, c)) for snr in SNRS]),
        },
        {"snr": list(SNRS), "t": ("time", t)},
        {"n": n, "c": c, "seed": seed},
    )
    return _draw(data, c), data


def _points(snr: float, c: float) -> Any:
    return fixed_points(SpikedTensor(order=2, snr=snr), OnePassSGD(lr=c))


def _draw(data: xr.Dataset, c: float) -> Any:
    import matplotlib.pyplot as plt

    n, t = data.attrs["n"], np.asarray(data.t)
    fig, axes = plt.subplots(2, 2, figsize=(9.6, 7.2), layout="constrained")
    for row, snr in enumerate(SNRS):
        component = data.sel(snr=snr)
        m, r2 = np.asarray(component.m)[:SHOWN], np.asarray(component.r2)[:SHOWN]
        star, width = float(component.m_star), 2 * np.asarray(component.standard_deviation_limit)
        top = 1.35 * max(np.abs(m).max(), width[-1] if star == 0 else star)
        ax = axes[row, 0]
        ax.plot(t, m.T, lw=0.7, alpha=0.8)
        valid = width <= (np.inf if star == 0 else star)
        ax.fill_between(
            t[valid],
            -width[valid],
            width[valid],
            color="0.6",
            alpha=0.35,
            lw=0,
            label="$\\pm 2\\sqrt{V(t)/n}$, rescaled SDE",
        )
        for value in {star, -star}:
            ax.axhline(
                value,
                color="k",
                ls="--",
                lw=1.2,
                label="stable fixed point" if value >= 0 else None,
            )
        ax.set(
            xlabel="$t$ = steps $c/n$",
            ylabel="$m$",
            ylim=(-top, top),
            title=f"({'ac'[row]})  $\\lambda$ = {snr:g}, $n$ = {n}, $c$ = {c:g}",
        )
        ax.legend(frameon=False, loc="upper right", ncols=2)

        ax = axes[row, 1]
        low, high = 0.6, 1.4
        values = equation_parameters(SpikedTensor(order=2, snr=snr), OnePassSGD(lr=c), None)
        across, up = np.linspace(-top, top, 40), np.linspace(low, high, 40)
        flow = drift(values, *np.meshgrid(across, up))
        ax.streamplot(across, up, *flow, color="0.75", linewidth=0.7, density=1.1, arrowsize=0.8)
        ax.plot(m.T, r2.T, lw=0.5, alpha=0.6)
        for point in _points(snr, c):
            if low <= point.r2 <= high:
                ax.plot(
                    point.m,
                    point.r2,
                    "kx" if point.stable else "wo",
                    mec="k",
                    ms=9,
                    mew=2 if point.stable else 1.2,
                    zorder=5,
                )
        ax.set(
            xlabel="$m$",
            ylabel="$r_\\perp^2$",
            xlim=(-top, top),
            ylim=(low, high),
            title=f"({'bd'[row]})  $\\lambda$ = {snr:g}",
        )
    return fig
