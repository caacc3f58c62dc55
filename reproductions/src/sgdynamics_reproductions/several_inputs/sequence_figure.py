"""Figure 3: how long sequences of exponent 1, 2 and 3 take to leave a random start."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, exit_time, models, start
from sgdynamics.base import checks
from sgdynamics.papers.several_inputs import exit_law
from sgdynamics_reproductions.drawing import ticks
from sgdynamics_reproductions.several_inputs.style import finish, panels

RATE = 0.1  # lr of exponents 1 and 2, lr sqrt(d) of exponent 3
LEVEL = 0.5  # overlap of the exit
# Length of the runs in units of the exit time of the ODE. The median needs only half of the exits.
FOLLOWED = 2.0
LAWS = {1: "O(1)", 2: "\\log d", 3: "\\sqrt{d}"}


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Times to leave m = d^(-1/2) for products of 1, 2 and 3 tokens against d: ODE (lines), medians
    of the exact chain, closed laws.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in about a minute.
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
    ``sgd.models.sequence_single_index`` of n tokens, whose sequence information exponent is n, on
    the sphere. Left where m reaches 1/2. At lr = .1 for n = 1, 2 and .1 d^(-1/2) for n = 3: more
    lets noise win. Dashed: ``exit_law`` with a constant fitted at the largest d of the ODE. (d) The
    same times in samples/d. For n = 3 noise is as strong as drift at the start, and exit times of
    runs scatter about the ODE's by more than their median, at every d. Runs to d = 1600 (n = 3:
    64), in full 6400 (256).

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = (256, 256, 1536)  # exits of exponent 3 scatter far more
    short, long = (
        ((20, 36, 64), (100, 400, 1600))
        if quick
        else ((20, 36, 64, 128, 256), (100, 400, 1600, 6400))
    )
    d_ode = np.geomspace(16, 16 * 4**6, 13)
    ode, law = np.zeros((3, len(d_ode))), np.zeros((3, len(d_ode)))
    sizes = np.full((3, max(len(short), len(long))), np.nan)
    left, at_runs = np.full((*sizes.shape, max(runs)), np.nan), np.full(sizes.shape, np.nan)
    for row, n in enumerate((1, 2, 3)):
        problem = models.sequence_single_index(tokens=n)
        for column, d in enumerate(d_ode):
            ode[row, column] = _left(problem, n, d, 10 + 2 * float(exit_law(n, d, RATE)))[0]
        law[row] = exit_law(n, d_ode, RATE if n > 1 else 0.0)
        for column, d in enumerate(short if n == 3 else long):
            sizes[row, column] = d
            at_runs[row, column] = _left(problem, n, d, 10 + 2 * float(exit_law(n, d, RATE)))[0]
            table: dict[str, Any] = {
                "method": "exact",
                "dimension": d,
                "runs": runs[row],
                "seed": 100 * seed + 10 * row + column,
            }
            left[row, column, : runs[row]] = _left(
                problem, n, d, FOLLOWED * at_runs[row, column], **table
            )
    data = xr.Dataset(
        {
            "exit_ode": (("exponent", "d_ode"), ode, {"long_name": "time to m = 1/2, ODE"}),
            "law": (("exponent", "d_ode"), law, {"long_name": "closed law, to a constant"}),
            "exit_runs": (
                ("exponent", "point", "run"),
                left,
                {"long_name": "time to |m| = 1/2, exact chain; NaN where later"},
            ),
            "exit_ode_runs": (
                ("exponent", "point"),
                at_runs,
                {"long_name": "time of the ODE there"},
            ),
            "d": (("exponent", "point"), sizes),
        },
        {"exponent": [1, 2, 3], "d_ode": d_ode, "runs": ("exponent", list(runs))},
        {"rate": RATE, "level": LEVEL, "followed": FOLLOWED, "seed": seed},
    )
    return _draw(data), data


def _left(problem: Any, n: int, d: float, most: float, **options: Any) -> np.ndarray:
    lr = RATE if n < 3 else RATE / np.sqrt(d)
    initial_state = start(problem, M=[[d**-0.5]], Q=[[1.0]])
    with warnings.catch_warnings():
        # that runs have not left yet is no news here, and that nothing grows linearly is what an
        # exponent of 3 means
        warnings.simplefilter("ignore", UserWarning)
        return exit_time(
            problem,
            OnePassSGD(lr=float(lr)),
            initial_state,
            criterion="overlap",
            threshold=LEVEL,
            max_time=float(most),
            **options,
        ).times


def median_with_error(times: np.ndarray) -> tuple[float, float, float]:
    """The median of runs, NaN standing for "later", and the ends of its 95% interval, by order
    statistics.
    """
    result = np.sort(np.where(np.isfinite(times), times, np.inf))
    half = 0.98 * np.sqrt(len(result))
    low, high = int(np.floor(len(result) / 2 - half)), int(np.ceil(len(result) / 2 + half))
    return (
        float(np.median(result)),
        float(result[max(low, 0)]),
        float(result[min(high, len(result) - 1)]),
    )


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(4, 3.7, 3.6)
    d_ode = data.d_ode.values
    for row, n in enumerate(data.exponent.values):
        ode, law, colour = data.exit_ode.values[row], data.law.values[row], f"C{row}"
        is_finite = np.isfinite(data.d.values[row])
        at = data.d.values[row, is_finite]
        values = np.array(
            [
                median_with_error(value)
                for value in data.exit_runs.values[row, is_finite, : int(data.runs[row])]
            ]
        )
        bars = np.abs(values[:, 1:].T - values[:, 0])
        style: dict[str, Any] = {
            "fmt": "o",
            "ms": 4.5,
            "mfc": "white",
            "color": colour,
            "capsize": 2,
            "lw": 1,
            "zorder": 3,
        }
        shown = d_ode <= 4.01 * at[-1]
        x = np.sqrt if n == 3 else np.log if n == 2 else np.asarray
        ax = axes[row]
        ax.plot(x(d_ode[shown]), ode[shown], color=colour, label="ODE")
        offset = ode[-1] - law[-1]
        ax.plot(
            x(d_ode[shown]),
            law[shown] + offset,
            color="k",
            lw=0.9,
            ls="--",
            label=f"${LAWS[int(n)]}$ law",
        )
        ax.errorbar(x(at), values[:, 0], bars, label="median of runs", **style)
        ax.set(title=f"exponent {n}: $t \\sim {LAWS[int(n)]}$", ylim=(0, None))
        if n == 1:
            ax.set(xscale="log", xlabel="$d$", ylim=(0, 0.8))
        else:
            chosen = (25, 100, 400, 1600, 6400, 25600) if n == 2 else (20, 36, 64, 128, 256, 512)
            chosen = [entry for entry in chosen if entry <= d_ode[shown][-1] * 1.01]
            ticks(ax, x(np.array(chosen, dtype=float)))
            ax.set_xticklabels([f"{item:g}" for item in chosen])
            ax.set_xlabel(
                "$d$ (axis linear in $\\log d$)" if n == 2 else "$d$ (axis linear in $\\sqrt{d}$)"
            )
        rate = RATE if n < 3 else RATE / np.sqrt(d_ode)
        axes[3].plot(d_ode, ode / rate, color=colour, label=f"exponent {n}")
        rate = RATE if n < 3 else RATE / np.sqrt(at)
        axes[3].errorbar(at, values[:, 0] / rate, bars / rate, **style)
    axes[0].set_ylabel("time to $m$ = 1/2, $t$ = lr steps/$d$")
    axes[3].set(
        xscale="log",
        yscale="log",
        xlabel="$d$",
        ylabel="samples/$d$ to $m$ = 1/2",
        title="samples: $d$, $d\\,\\log d$, $d^2$",
    )
    words = (
        "products of 1, 2, 3 tokens from $m = d^{-1/2}$: lr = 0.1, exponent 3 with $0.1\\,d^{-1/2}$"
        " (medians of runs with 95% intervals)"
    )
    finish(fig, axes, words)
    return fig
