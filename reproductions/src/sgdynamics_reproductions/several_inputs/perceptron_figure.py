"""Figure 5: the errors of three classical rules and their late laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics.papers.several_inputs import late_error
from sgdynamics.papers.several_inputs.formulas import LATE_EXPONENTS
from sgdynamics_reproductions.several_inputs.style import ALPHA, draw_runs, finish, panels

COLOURS = {"hebb": "C0", "perceptron": "C1", "adatron": "C2"}
NAMES = {"hebb": "Hebb", "perceptron": "perceptron", "adatron": "Adatron"}
LAWS = {"hebb": "-1/2", "perceptron": "-1/3", "adatron": "-1"}


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Hebb, perceptron and Adatron: error against alpha with the closed late laws, ODE (lines) and
    exact chain (points).

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in about half a minute.
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
    (a) The error acos(rho)/pi, dashed its law. (b) The error over that law. (c) The local exponent,
    d log(error)/d log(alpha). From m = .2, Q = 1 at lr = 1, up to alpha = 1000; runs up to alpha =
    100 at d = 400, or 1000 at d = 1000 in full. By the rules that ``sgd.models.perceptron`` states.

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, last, lr = (400, 128, 100.0, 1.0) if quick else (1000, 256, 1000.0, 1.0)
    alpha = np.geomspace(0.1, 1000.0, 49)
    some = np.flatnonzero(alpha <= 1.001 * last)[::4]
    rules = tuple(COLOURS)
    error, measured = np.zeros((3, len(alpha))), np.zeros((3, runs, len(some)))
    for row, rule in enumerate(rules):
        problem, algorithm = models.perceptron(rule), OnePassSGD(lr=lr)
        initial_state = start(problem, M=[[0.2]], Q=[[1.0]])
        error[row] = solve_ode(problem, algorithm, initial_state, alpha=alpha).risk[0]
        # more seeds than one a figure, so that the rules' runs are independent
        measured[row] = simulate(
            problem,
            algorithm,
            initial_state,
            alpha=alpha[some],
            dimension=d,
            runs=runs,
            seed=3 * seed + row,
        ).risk
    law = np.array([late_error(rule, alpha, lr) for rule in rules])
    exponent = np.gradient(np.log(error), np.log(alpha), axis=1, edge_order=2)
    data = xr.Dataset(
        {
            "error": (("rule", "time"), error, {"long_name": "error of the ODE"}),
            "late_error": (("rule", "time"), law, {"long_name": "closed late law"}),
            "exponent": (("rule", "time"), exponent, {"long_name": "local exponent of the ODE"}),
            "error_runs": (
                ("rule", "run", "point"),
                measured,
                {"long_name": "error of exact chain runs"},
            ),
            "error_at_runs": (
                ("rule", "point"),
                error[:, some],
                {"long_name": "error of the ODE there"},
            ),
        },
        {"rule": list(rules), "alpha": ("time", alpha), "alpha_runs": ("point", alpha[some])},
        {"d": d, "lr": lr, "m": 0.2, "Q": 1.0, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.2)
    alpha, at = data.alpha.values, data.alpha_runs.values
    for row, rule in enumerate(data.rule.values):
        colour, law = COLOURS[rule], data.late_error.values[row]
        error, runs = data.error.values[row], data.error_runs.values[row]
        axes[0].plot(alpha, error, color=colour, label=f"{NAMES[rule]} (ODE)")
        late = alpha >= 3
        axes[0].plot(
            alpha[late],
            law[late],
            color="k",
            lw=0.9,
            ls="--",
            zorder=4,
            label="closed late law" if row == 2 else None,
        )
        draw_runs(axes[0], at, runs, colour)
        axes[1].plot(alpha, error / law, color=colour, label=NAMES[rule])
        draw_runs(axes[1], at, runs / np.interp(np.log(at), np.log(alpha), law), colour)
        axes[2].plot(
            alpha, data.exponent.values[row], color=colour, label=f"{NAMES[rule]}, law {LAWS[rule]}"
        )
        axes[2].axhline(LATE_EXPONENTS[rule], color=colour, lw=0.9, ls="--")
    axes[0].errorbar(
        [],
        [],
        [],
        fmt="o",
        ms=4,
        mfc="white",
        color="0.3",
        capsize=2,
        label=f"exact chain, $d$ = {data.attrs['d']}",
    )
    axes[0].set(
        xscale="log",
        yscale="log",
        xlabel=ALPHA,
        ylabel="probability of a wrong label",
        title="error",
    )
    axes[1].axhline(1.0, color="k", lw=0.9, ls="--")
    axes[1].set(
        xscale="log", xlabel=ALPHA, ylabel="error / late law", ylim=(0, 1.5), title="prefactor"
    )
    axes[2].set(
        xscale="log",
        xlabel=ALPHA,
        ylabel="d log(error) / d log($\\alpha$)",
        ylim=(-1.15, 0.05),
        title="exponent",
    )
    finish(
        fig,
        axes,
        f"Hebb, perceptron, Adatron: lr = {data.attrs['lr']:g}, from $m$ = 0.2, $Q$ = 1 (bars: 2"
        " standard errors)",
    )
    return fig
