"""Figure 2: a sample that is seen twice teaches what one look cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, TeacherStudent, polynomial, simulate, solve_ode, start, updates
from sgdynamics.base import checks
from sgdynamics.papers.optimisers import reuse_drift
from sgdynamics_reproductions.drawing import draw_runs, finish, panels
from sgdynamics_reproductions.optimisers.problem import FIRST_Q, spread_over

HE3 = (0.0, -3.0, 0.0, 1.0)  # x^3 - 3x: information exponent 3
RATE, TIMES = 0.5, 2
RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # at which the first drift is measured
SHORT = 0.001  # and over this t


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Overlap with a He3 teacher from M = 0 at d = 1e3 to 1e5: with each sample used twice, used
    once, and the first drift against lr.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in about a minute.
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
    Two erf units, a teacher with the activation He3 (information exponent 3), no noise, lr = .5,
    exact chain from M = 0. (a) Used twice, M is a function of alpha = samples/d. (b) Used once, the
    drift at M = 0 is 0, and M is of the order 1/sqrt(d): drawn is the root mean square over runs
    and units. (c) dM/dt at M = 0 over ``reuse_drift``, its leading order in lr.

    Examples
    --------
    >>> from sgdynamics_reproductions import optimisers
    >>> fig, data = optimisers.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes, runs = ((1000, 10_000, 100_000), 48) if quick else ((1000, 10_000, 100_000), 200)
    problem = TeacherStudent(
        width=2, teacher_width=1, activation="erf", teacher_activation=polynomial(HE3), noise=0.0
    )
    initial_state = start(problem, M=[[0.0], [0.0]], Q=FIRST_Q)
    alpha, some = spread_over(4.0, 17, 4)
    rules = {"once": None, "twice": updates.reuse(TIMES)}
    lines = [
        solve_ode(problem, OnePassSGD(lr=RATE, update=rule), initial_state, alpha=alpha).M.values[
            0, :, :, 0
        ]
        for rule in rules.values()
    ]
    points = np.zeros((len(rules), len(sizes), runs, len(some), 2))
    for row, update in enumerate(rules.values()):
        for column, d in enumerate(sizes):
            table: dict[str, Any] = {
                "dimension": d,
                "runs": runs,
                "seed": 10 * seed + len(sizes) * row + column,
            }
            points[row, column] = simulate(
                problem, OnePassSGD(lr=RATE, update=update), initial_state, alpha=some, **table
            ).M.values[..., 0]
    slopes = [_slope(problem, initial_state, lr) for lr in RATES]
    data = xr.Dataset(
        {
            "M": (("use", "alpha", "unit"), np.array(lines), {"long_name": "overlaps of the ODE"}),
            "M_runs": (
                ("use", "d", "run", "point", "unit"),
                points,
                {"long_name": "overlaps of exact chain runs"},
            ),
            "slope": (
                ("rate", "unit"),
                np.array(slopes),
                {"long_name": "dM/dt of the ODE at M = 0, samples used twice"},
            ),
            "slope_closed": (
                ("rate", "unit"),
                np.array([reuse_drift(lr, TIMES, 0.5, np.diagonal(FIRST_Q)) for lr in RATES]),
            ),
        },
        {"use": list(rules), "alpha": alpha, "point": some, "d": list(sizes), "rate": list(RATES)},
        {"lr": RATE, "times": TIMES, "runs": runs, "every": 4, "seed": seed},
    )
    return _draw(data), data


def _slope(problem: Any, initial_state: Any, lr: float) -> np.ndarray:
    """dM/dt at the start, by a parabola through two points near it."""
    algorithm = OnePassSGD(lr=lr, update=updates.reuse(TIMES))
    M = solve_ode(
        problem, algorithm, initial_state, times=[SHORT / 2, SHORT], rtol=1e-10, atol=1e-14
    ).M.values[0, :, :, 0]
    return (4 * M[0] - M[1]) / SHORT


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    once, twice = data.M_runs.values
    axes[0].plot(data.alpha, data.M.values[1].mean(axis=1), color="k", lw=1.2, label="ODE")
    for row, d in enumerate(data.d.values):
        text = f"$d = 10^{round(np.log10(d))}$"
        draw_runs(axes[0], data.point + 0.06 * (row - 1), twice[row].mean(axis=-1), f"C{row}", text)
        # The error of a root is the error of the mean square over twice the root.
        squares, means = np.mean(once[row] ** 2, axis=2), twice[row].mean(axis=2)
        root, both = np.sqrt(squares.mean(axis=0)), 2 / np.sqrt(len(squares))
        look = {"fmt": "o-", "color": f"C{row}", "ms": 4, "mfc": "white", "capsize": 2, "lw": 1}
        axes[1].errorbar(
            data.point, root, both * squares.std(axis=0, ddof=1) / (2 * root), label=text, **look
        )
        axes[1].errorbar(
            data.point,
            np.abs(means.mean(axis=0)),
            both * means.std(axis=0, ddof=1),
            color=f"C{row}",
            lw=1,
            ls="--",
            capsize=2,
        )
    axes[0].set(
        xlabel="$\\alpha$ = samples/$d$", ylabel="$M$, mean over units", title="each sample twice"
    )
    axes[1].plot([], [], "k--", lw=1, label="twice, $|$mean$|$")
    axes[1].set(
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="root mean square of $M$",
        yscale="log",
        ylim=(1e-3, 1.5),
        title="each sample once",
    )
    ratio = data.slope.values / data.slope_closed.values
    for unit in range(2):
        axes[2].plot(
            data.rate,
            ratio[:, unit],
            "os"[unit],
            color=f"C{3 + unit}",
            ms=5 + 3 * (1 - unit),
            mfc="none",
            label=f"unit {unit + 1}",
        )
    axes[2].axhline(1, color="k", lw=0.9)
    axes[2].set(
        xscale="log",
        xlabel="lr",
        ylabel="d$M$/d$t$/leading order in lr",
        ylim=(0, 1.1),
        title="first drift, samples used twice",
    )
    words = (
        f"He3 teacher from $M$ = 0, lr = {data.attrs['lr']:g}: ODE, {data.attrs['runs']} runs of"
        " the exact chain (bars: 2 errors)"
    )
    finish(fig, axes, words, legends=[axes[0], axes[2]], loc="lower left")
    axes[1].legend(frameon=False, fontsize="small", ncols=2, loc="upper left")
    return fig
