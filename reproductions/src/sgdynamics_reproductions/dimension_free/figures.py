"""Figures of narrow networks: the classical and the high-dimensional regime.

Each function `name(quick=False, seed=0)` returns `(fig, data)`. Times are those of the slides,
t = steps gamma/(d p), and SGD is simulated by the exact chain. `data.attrs` contains the
parameters, the statement of the slide (`claim`) and the measurement (`verdict`). The slides specify
k, p, gamma, Delta and the activation erf; d, the starts and the times are chosen here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from sgdynamics import random_start, simulate, solve_ode
from sgdynamics.base import checks
from sgdynamics.papers.dimension_free import setting, theorem_scale
from sgdynamics_reproductions.drawing import legend_below, letters, readable, subplots

TIME = "$t$ = steps $\\gamma/(d\\,p)$"
# A learning rate so small that SGD equals gradient flow up to rounding errors. Unlike lr = 0, it
# uses the program that is already compiled for the other rates.
FLOW = 1e-12


def panels(columns: int, width: float = 4.6, height: float = 4.4) -> tuple[Any, Any]:
    """Make a figure with one row of axes."""
    fig, axes = subplots(1, columns, (width * columns, height), squeeze=False)
    return fig, axes[0]


def finish(axes: Iterable[Axes], legends: Iterable[Axes] | None = None) -> None:
    """Add letters, readable ticks, and legends below all axes or below those in `legends`."""
    for ax in axes if legends is None else legends:
        legend_below(ax)
    readable(axes)
    letters(axes)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Fit the exponent e of y ~ x^e by least squares on the logarithms."""
    return float(
        np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)), 1)[0]
    )


def spread(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the first axis."""
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


def early_times(end: float, count: int) -> np.ndarray:
    """Return 0 and a geometric sequence up to `end`, because the risk falls fast at first."""
    return np.concatenate([[0.0], np.geomspace(end / 200, end, count - 1)])


def classical(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The classical regime, gamma -> 0 at fixed d and p: SGD follows gradient flow on the
    population risk. erf, k = 2 and 5, p = 10.

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
    (a) k = 2, (b) k = 5: the mean of SGD runs and single ones at the slides' gamma = 5e-2 and at
    larger rates, the ODE of each rate and gradient flow (gamma = 0), all from one random start. (c)
    The relative gap of the risk to gradient flow at the last time against gamma: the ODE's, and
    that of SGD with its standard error; it is linear in gamma/p. From the slides: k, p, gamma,
    Delta = 1e-3. Chosen: d = 100, t <= 30, the larger rates. Quick: k = 2, d = 50, t <= 5.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.classical(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    p, Delta, d, end, runs = 10, 1e-3, *((50, 5.0, 48) if quick else (100, 30.0, 48))
    teachers, rates = ((2,), (0.05, 0.2, 0.8)) if quick else ((2, 5), (0.05, 0.4, 1.6))
    t = early_times(end, 16)
    shape = (len(teachers), len(rates))
    risk = np.zeros((*shape, runs, len(t)))
    ode, flow = np.zeros((*shape, len(t))), np.zeros((len(teachers), len(t)))
    for row, k in enumerate(teachers):
        still = setting(FLOW, p, k, Delta)
        initial_state = random_start(still.problem, dimension=d, seed=seed)
        flow[row] = solve_ode(
            still.problem, still.algorithm, initial_state, times=still.times(t)
        ).excess_risk[0]
        for column, gamma in enumerate(rates):
            item = setting(gamma, p, k, Delta)
            ode[row, column] = solve_ode(
                item.problem, item.algorithm, initial_state, times=item.times(t)
            ).excess_risk[0]
            chain = simulate(
                item.problem,
                item.algorithm,
                initial_state,
                times=item.times(t),
                dimension=d,
                runs=runs,
                seed=seed + 1,
            )
            risk[row, column] = chain.excess_risk
    mean = risk.mean(axis=2)
    gap, error = (
        mean[..., -1] / flow[:, None, -1] - 1,
        spread(np.moveaxis(risk[..., -1], 2, 0)) / flow[:, None, -1],
    )
    gap_ode = ode[..., -1] / flow[:, None, -1] - 1
    exponent = [slope(rates, row) for row in np.abs(gap_ode)]
    largest = np.abs(mean[:, 0] / flow - 1).max(axis=1)
    data = xr.Dataset(
        {
            "excess_risk": (
                ("k", "gamma", "run", "time"),
                risk,
                {"long_name": "excess risk of SGD"},
            ),
            "excess_risk_ode": (
                ("k", "gamma", "time"),
                ode,
                {"long_name": "excess risk of the ODE at this gamma"},
            ),
            "excess_risk_flow": (
                ("k", "time"),
                flow,
                {"long_name": "excess risk of gradient flow"},
            ),
            "gap": (
                ("k", "gamma"),
                gap,
                {"long_name": "mean of SGD over gradient flow, less 1, at the last time"},
            ),
            "gap_error": (("k", "gamma"), error, {"long_name": "standard error of gap"}),
            "gap_ode": (
                ("k", "gamma"),
                gap_ode,
                {"long_name": "ODE over gradient flow, less 1, at the last time"},
            ),
        },
        {"k": list(teachers), "gamma": list(rates), "t": ("time", t)},
        {"p": p, "d": d, "Delta": Delta, "activation": "erf", "runs": runs, "seed": seed},
    )
    data.attrs |= {
        "claim": (
            "as gamma -> 0 at fixed d and p, one-pass SGD follows gradient flow on the population"
            " risk"
        ),
        "verdict": "; ".join(
            f"k = {k}: at gamma = {rates[0]:g} SGD is at most {100 * largest[row]:.2f}% from"
            f" gradient flow for t <= {end:g}, at "
            f"gamma = {rates[-1]:g} {100 * gap[row, -1]:.1f}({100 * error[row, -1]:.1f})% above it"
            " at the end; the ODE's gap grows "
            f"like gamma^{exponent[row]:.3f}"
            for row, k in enumerate(teachers)
        ),
    }
    fig, axes = panels(len(teachers) + 1)
    later = slice(1, None)
    for row, k in enumerate(teachers):
        ax = axes[row]
        ax.plot(t[later], flow[row, later], "k-", lw=2.4, alpha=0.35, label="gradient flow")
        for column, gamma in enumerate(rates):
            color = f"C{column}"
            ax.plot(t[later], risk[row, column, :3, later].T, color=color, lw=0.5, alpha=0.5)
            ax.plot(t[later], ode[row, column, later], "--", color=color, lw=1.2)
            label, error_here = f"SGD, $\\gamma$ = {gamma:g}", spread(risk[row, column])[later]
            ax.errorbar(
                t[later],
                mean[row, column, later],
                error_here,
                fmt="o",
                ms=3.5,
                color=color,
                label=label,
            )
        ax.plot([], [], "k--", lw=1.2, label="ODE at this $\\gamma$")
        ax.set(
            xscale="log",
            yscale="log",
            xlabel=TIME,
            title=f"$k$ = {k}, $p$ = {p}, $d$ = {d}, $\\Delta$ = {Delta:g}",
        )
        axes[-1].errorbar(
            rates,
            gap[row],
            error[row],
            fmt="os"[row],
            ms=5,
            capsize=2,
            color=f"C{row + 3}",
            label=f"SGD, $k$ = {k}",
        )
        axes[-1].plot(
            rates,
            gap_ode[row],
            "--",
            color=f"C{row + 3}",
            label=f"ODE, $\\gamma^{{{exponent[row]:.2f}}}$",
        )
    axes[0].set_ylabel("excess risk")
    axes[-1].set(
        xscale="log",
        yscale="log",
        xlabel="$\\gamma$",
        ylabel="$R/R_{\\mathrm{flow}} - 1$",
        title=f"at $t$ = {end:g}",
    )
    finish(axes)
    return fig, data


def high_dimensional(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The high-dimensional regime, d -> infinity at fixed gamma and p: SGD concentrates on the ODE.
    erf, k = 4, p = 8, gamma = .1.

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
    (a) SGD runs at two dimensions and the ODE, from one start. (b) The mean over runs of ``|Omega -
    Omega_ODE|_inf``, where it is largest for t <= 5, against d, next to the theorem's scale
    sqrt(gamma/(d p)). From the slides: k, p, gamma, Delta = 1e-3. Chosen: the start (random rows at
    d = 500), dimensions, times. Quick: smaller d, t <= 5.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.high_dimensional(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    p, k, gamma, Delta, horizon = 8, 4, 0.1, 1e-3, 5.0
    sizes, runs, end = ((25, 100, 400), 32, 5.0) if quick else ((50, 200, 800, 2000), 24, 12.0)
    configuration = setting(gamma, p, k, Delta)
    initial_state = random_start(configuration.problem, dimension=500, seed=seed)
    t = np.concatenate(
        [
            [0.0],
            np.geomspace(0.1, horizon, 11),
            np.linspace(horizon, end, 7)[1:] if end > horizon else [],
        ]
    )
    ode = solve_ode(
        configuration.problem, configuration.algorithm, initial_state, times=configuration.times(t)
    )
    risk, apart = np.zeros((len(sizes), runs, len(t))), np.zeros((len(sizes), runs, len(t)))
    for row, d in enumerate(sizes):
        chain = simulate(
            configuration.problem,
            configuration.algorithm,
            initial_state,
            times=configuration.times(t),
            dimension=d,
            runs=runs,
            seed=seed + 1 + row,
        )
        risk[row] = chain.excess_risk
        for name in ("M", "Q"):
            apart[row] = np.maximum(
                apart[row], np.abs(np.asarray(chain[name]) - np.asarray(ode[name])).max(axis=(2, 3))
            )
    inside = t <= horizon
    worst = int(np.argmax(apart.mean(axis=(0, 1)) * inside))
    deviation, error = (
        apart[:, :, worst].mean(axis=1),
        spread(np.moveaxis(apart[:, :, worst], 1, 0)),
    )
    scale = np.array([theorem_scale(gamma, p, d) for d in sizes])
    exponent = slope(sizes, deviation)
    line = np.asarray(ode.excess_risk)[0]
    data = xr.Dataset(
        {
            "excess_risk": (("d", "run", "time"), risk, {"long_name": "excess risk of SGD"}),
            "excess_risk_ode": ("time", line, {"long_name": "excess risk of the ODE"}),
            "deviation": (("d", "run", "time"), apart, {"long_name": "|Omega - Omega_ODE|_inf"}),
            "mean_deviation": (
                "d",
                deviation,
                {
                    "long_name": (
                        f"mean over runs at t = {t[worst]:.3g}, where it is largest for t <="
                        f" {horizon:g}"
                    )
                },
            ),
            "mean_deviation_error": ("d", error, {"long_name": "its standard error"}),
            "theorem_scale": ("d", scale, {"long_name": "sqrt(gamma/(d p))"}),
        },
        {"d": list(sizes), "t": ("time", t)},
        {
            "p": p,
            "k": k,
            "gamma": gamma,
            "Delta": Delta,
            "activation": "erf",
            "runs": runs,
            "seed": seed,
        },
    )
    data.attrs |= {
        "claim": (
            "E |Omega - Omega_ODE|_inf <= exp(C t) sqrt(gamma/(d p)): at fixed gamma and p SGD"
            " concentrates on the ODE as d grows"
        ),
        "verdict": (
            f"for t <= {horizon:g} the deviation is {(deviation / scale).min():.2f} to"
            f" {(deviation / scale).max():.2f} times "
            f"sqrt(gamma/(d p)) and falls like d^{exponent:.3f} over d = {sizes[0]}..{sizes[-1]};"
            f" at d = {sizes[-1]} the mean risk is "
            f"at most {100 * np.abs(risk[-1].mean(axis=0) / line - 1).max():.2f}% from the ODE"
        ),
    }
    fig, axes = panels(2)
    for color, row in (("C1", 0), ("C0", len(sizes) - 1)):
        axes[0].plot(t, risk[row, :8].T, color=color, lw=0.7, alpha=0.6)
        axes[0].plot([], [], color=color, label=f"SGD, $d$ = {sizes[row]}")
    axes[0].plot(t, line, "k--", lw=1.8, label="ODE")
    axes[0].set(
        yscale="log",
        xlabel=TIME,
        ylabel="excess risk",
        title=f"$k$ = {k}, $p$ = {p}, $\\gamma$ = {gamma:g}, $\\Delta$ = {Delta:g}",
    )
    axes[1].errorbar(
        sizes, deviation, error, fmt="o", capsize=2, label=f"SGD, $d^{{{exponent:.2f}}}$"
    )
    axes[1].plot(sizes, scale, "k-", lw=1, label="$\\sqrt{\\gamma/(d\\,p)}$")
    axes[1].set(
        xscale="log",
        yscale="log",
        xlabel="$d$",
        ylabel="mean of $|\\Omega - \\Omega_{\\mathrm{ODE}}|_\\infty$",
    )
    axes[1].set_title(f"$t$ = {t[worst]:.2g}, {runs} runs")
    finish(axes)
    return fig, data
