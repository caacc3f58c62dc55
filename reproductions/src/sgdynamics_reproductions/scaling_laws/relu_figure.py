"""Figure 3: a ReLU network on power-law data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, TeacherStudent, power_law, random_start, simulate, solve_ode
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, ticks

EXPONENTS = (0.5, 1.0, 1.3)  # of the eigenvalues
DIRECT = 1.0  # of which direct runs are made
RATES = (1.0, 2.0, 4.0, 8.0)  # at the steepest spectrum
DIMENSION, WIDTH, NOISE = 2000, 4, 1e-3


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Four ReLUs learn two on power-law data: ODE (lines), exact chain (circles) and direct runs
    (crosses); ODE over chain against g l_1.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs and steps, in less than a minute.
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
    Eigenvalues j^-s, j = 1 ... 2000, the first ten one by one, the others in 20 bins (a spectrum of
    its own, of which all three are made); teachers with the coordinates 1 and (-1)^j over the root
    of the trace T; random rows with fields of variance 1; steps g = lr/T. The largest eigenvalues
    are single coordinates, which do not average over anything: the ODE is off by a share of order g
    l_1/(2 p), the step g = lr/T times the largest curvature of the risk (p units of weight 1/p,
    half of them on), from E[R] - R of the mean and from finite steps. (c) That share at s = 1.3 and
    four learning rates, at the same times t.

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs, direct_runs, last, direct_last = (64, 8, 2500, 1200) if quick else (512, 32, 40_000, 4000)
    steps = np.unique(np.round(np.geomspace(4, last, 33))).astype(int)
    values = 4
    some = steps[values::values]
    few = some[some <= direct_last]
    ode, chain, shares = (
        np.zeros((len(EXPONENTS), len(steps))),
        np.zeros((len(EXPONENTS), runs, len(some))),
        [],
    )
    direct = np.zeros((direct_runs, len(few)))
    for row, s in enumerate(EXPONENTS):
        problem = _problem(s)
        initial_state = random_start(problem, per="trace", seed=seed)
        algorithm = OnePassSGD(lr=1.0, per="trace")
        solution = solve_ode(problem, algorithm, initial_state, steps=steps)
        ode[row] = solution.excess_risk.values[0]
        shares.append([solution.attrs["g_l1"], solution.attrs["effective_dimension"]])
        table: dict[str, Any] = {"dimension": DIMENSION, "seed": len(EXPONENTS) * seed + row}
        chain[row] = simulate(
            problem, algorithm, initial_state, steps=some, runs=runs, **table
        ).excess_risk.values
        if s == DIRECT:
            direct[:] = simulate(
                problem,
                algorithm,
                initial_state,
                steps=few,
                runs=direct_runs,
                method="direct",
                **table,
            ).excess_risk.values
    fast, by_rate, at_rate, times = _compare_rates(seed, runs, 800 if quick else 8000)
    data = xr.Dataset(
        {
            "excess_risk": (("exponent", "step"), ode, {"long_name": "excess risk of the ODE"}),
            "excess_risk_runs": (
                ("exponent", "run", "point"),
                chain,
                {"long_name": "excess risk of exact chain runs"},
            ),
            "excess_risk_direct": (
                ("direct_run", "direct_point"),
                direct,
                {"long_name": "excess risk of direct runs"},
            ),
            "g_l1": ("exponent", [share for share, _ in shares]),
            "effective_dimension": ("exponent", [value for _, value in shares]),
            "by_rate": (
                ("lr", "time"),
                by_rate,
                {"long_name": "excess risk of the ODE at s = 1.3"},
            ),
            "by_rate_runs": (
                ("lr", "run", "time"),
                at_rate,
                {"long_name": "excess risk of exact chain runs at s = 1.3"},
            ),
            "by_rate_g_l1": ("lr", fast),
        },
        {
            "exponent": list(EXPONENTS),
            "step": steps,
            "point": some,
            "direct_point": few,
            "lr": list(RATES),
            "time": times,
        },
        {
            "d": DIMENSION,
            "width": WIDTH,
            "noise": NOISE,
            "every": values,
            "runs": runs,
            "direct": DIRECT,
            "seed": seed,
        },
    )
    return _draw(data), data


def _problem(s: float) -> TeacherStudent:
    bins: dict[str, Any] = {"raw": 10, "bins": 20}
    size = power_law(s, DIMENSION, **bins).trace ** -0.5
    spectrum = power_law(
        s,
        DIMENSION,
        target=lambda j: size * np.array([np.ones_like(j), (-1.0) ** np.asarray(j)]),
        **bins,
    )
    return TeacherStudent(
        width=WIDTH, teacher_width=2, activation="relu", covariance=spectrum, noise=NOISE
    )


def _compare_rates(
    seed: int, runs: int, last: int
) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Compare learning rates at the steepest spectrum.

    Returns g l_1, the ODE and the runs for each rate, and the times, which all rates share.
    """
    problem, shares, lines, points, times = _problem(EXPONENTS[-1]), [], [], [], np.zeros(0)
    initial_state = random_start(problem, per="trace", seed=seed)
    for index, lr in enumerate(RATES):
        algorithm = OnePassSGD(lr=lr, per="trace")
        steps = np.round(np.array([0.02, 0.1, 0.3, 1.0]) * last / lr).astype(int)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # that g l_1 is large is what is looked at here
            solution = solve_ode(problem, algorithm, initial_state, steps=steps)
        shares.append(solution.attrs["g_l1"])
        lines.append(solution.excess_risk.values[0])
        table: dict[str, Any] = {
            "dimension": DIMENSION,
            "seed": 1000 + len(RATES) * seed + index,
            "runs": runs,
        }
        points.append(
            simulate(problem, algorithm, initial_state, steps=steps, **table).excess_risk.values
        )
        times = solution.t.values
    return shares, np.array(lines), np.array(points), times


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    stride = data.attrs["every"]
    for row, s in enumerate(data.exponent.values):
        colour, line, runs = (
            f"C{row}",
            data.excess_risk.values[row],
            data.excess_risk_runs.values[row],
        )
        axes[0].plot(
            data.step,
            line,
            color=colour,
            label=f"$s$ = {s:g}, $g\\,l_1$ = {float(data.g_l1[row]):.2g}",
        )
        draw_runs(axes[0], data.point, runs, colour)
        draw_runs(
            axes[1],
            data.point * (1 + 0.06 * (row - 1)),
            runs / line[stride::stride],
            colour,
            f"$s$ = {s:g}, {len(runs)} chain runs",
        )
    row = int(np.argmin(np.abs(data.exponent.values - data.attrs["direct"])))
    direct, line = (
        data.excess_risk_direct.values,
        data.excess_risk.values[row, stride::stride][: data.sizes["direct_point"]],
    )
    error = 2 * direct.std(axis=0, ddof=1) / np.sqrt(len(direct))
    look: dict[str, Any] = {"fmt": "x", "color": "k", "ms": 5, "capsize": 2, "lw": 1, "zorder": 4}
    text = f"direct, $d$ = {data.attrs['d']}, {len(direct)} runs"
    axes[0].errorbar(data.direct_point, direct.mean(axis=0), error, label=text, **look)
    axes[1].errorbar(
        data.direct_point * 1.12, direct.mean(axis=0) / line, error / line, label=text, **look
    )
    axes[0].set(
        xscale="log",
        yscale="log",
        xlabel="steps",
        ylabel="excess risk",
        title="excess risk, lr = 1",
    )
    axes[1].axhline(1, color="k", lw=0.9)
    axes[1].set(
        xscale="log",
        xlabel="steps",
        ylabel="runs/ODE",
        title="runs over the ODE",
        ylim=(0.93, 1.07),
    )
    for index, t in enumerate(data.time.values):
        gap = data.by_rate_runs.values[:, :, index] / data.by_rate.values[:, None, index] - 1
        x = data.by_rate_g_l1.values * (1 + 0.05 * (index - 1.5))
        draw_runs(axes[2], x, gap.T, f"C{index + 4}", f"$t$ = {t:.3g}")
    x = np.geomspace(0.2, 3, 50)
    axes[2].fill_between(
        x,
        -x / (2 * data.attrs["width"]),
        x / (2 * data.attrs["width"]),
        color="0.92",
        lw=0,
        label="$\\pm g\\,l_1/2p$",
    )
    axes[2].axhline(0, color="k", lw=0.9)
    axes[2].set_xscale("log")
    ticks(axes[2], [0.25, 0.5, 1, 2])
    axes[2].set(
        xlabel="$g\\,l_1$",
        ylabel="runs/ODE - 1",
        xlim=(0.2, 3),
        ylim=(-0.35, 0.35),
        title="what single coordinates cost, $s$ = 1.3",
    )
    finish(
        fig,
        axes,
        "four ReLUs learn two, eigenvalues $j^{-s}$: ODE (lines), exact chain (circles), direct SGD"
        " (crosses); bars: 2 standard errors",
    )
    axes[2].legend(frameon=False, fontsize="small", loc="upper left")
    return fig
