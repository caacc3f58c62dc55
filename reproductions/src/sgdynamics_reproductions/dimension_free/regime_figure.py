"""The map of the regimes of the slides, `regimes(quick=False, seed=0) -> (fig, data)`: which limit
describes SGD where, checked by runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    Regime,
    plot,
    random_start,
    regime,
    simulate,
    solve_mean_field,
    solve_ode,
)
from sgdynamics.analysis.regimes import HORIZON, LARGE, SMALL
from sgdynamics.base import checks
from sgdynamics.papers.dimension_free import setting
from sgdynamics_reproductions.dimension_free.figures import FLOW, TIME, spread
from sgdynamics_reproductions.dimension_free.wide_figures import repeat_particles

CORNERS = {  # regime: (gamma, p, d)
    "classical": (0.2, 4, 100),
    "high-dimensional": (3.0, 4, 500),
    "mean-field": (2.0, 24, 64),
    "fluctuating": (4.0, 4, 36),
}
DESCRIPTIONS = ("gradient flow", "ODE", "mean field")
COLOURS = {"gradient flow": "C3", "ODE": "C0", "mean field": "C2"}


def regimes(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The different regimes: the map of ``sgd.regime`` with a setting in each corner, and there SGD
    against every limit. erf, k = 1.

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
    The upper panel is the map of ``plot.regime_map``: the width on the horizontal axis, the noise
    of SGD on the vertical axis, and borders between the terms that may be neglected, with their
    sizes at the start of the runs. The lower panels show the mean risk of SGD runs from one random
    start in each corner of the map, divided by the risk of gradient flow. They also show the ODE
    with this gamma at d = infinity and the mean field of infinitely many units with the same
    (m, q). A band is the standard deviation of single runs. ``scatter`` is the largest standard
    deviation over runs of an overlap at t = 5, which the map predicts. The diagram of the slides
    has no numbers: all settings are chosen here, with Delta = 1e-3. Quick: fewer runs.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.regimes(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    k, Delta, runs = 1, 1e-3, 96 if quick else 256
    t = np.linspace(0.0, HORIZON, 11)
    widest = max(p for _, p, _ in CORNERS.values())
    table: dict[str, Regime] = {}
    risks, theory, scatter, names = [], [], [], []
    for row, (gamma, p, d) in enumerate(CORNERS.values()):
        configuration, still = setting(gamma, p, k, Delta), setting(FLOW, p, k, Delta)
        initial_state = random_start(configuration.problem, dimension=d, seed=seed + row)
        result = regime(configuration.problem, configuration.algorithm, d, start=initial_state)
        table[f"$\\gamma$ = {gamma:g}, $p$ = {p}, $d$ = {d}"] = result
        names.append(result.name)
        chain = simulate(
            configuration.problem,
            configuration.algorithm,
            initial_state,
            times=configuration.times(t),
            dimension=d,
            runs=runs,
            seed=seed + 10 + row,
        )
        risks.append(np.asarray(chain.excess_risk))
        scatter.append(
            max(
                float(np.asarray(chain[name])[:, -1].std(axis=0, ddof=1).max())
                for name in ("M", "Q")
            )
        )
        wide = setting(gamma, widest, k, Delta)
        mean_field = solve_mean_field(
            wide.problem, OnePassSGD(lr=gamma), repeat_particles(initial_state, widest), times=t
        )
        lines = [
            solve_ode(entry.problem, entry.algorithm, initial_state, times=entry.times(t))
            for entry in (still, configuration)
        ]
        theory.append([np.asarray(line.excess_risk)[0] for line in (*lines, mean_field)])
    terms = ("noise", "fluctuation", "finite_dimension", "finite_width")
    sizes = {name: [getattr(item, name).size for item in table.values()] for name in terms}
    risk, lines = np.array(risks), np.array(theory)
    gap = risk.mean(axis=1)[:, None] / lines - 1
    data = xr.Dataset(
        {
            "excess_risk": (("setting", "run", "time"), risk, {"long_name": "excess risk of SGD"}),
            "excess_risk_theory": (
                ("setting", "description", "time"),
                lines,
                {"long_name": "excess risk of each description"},
            ),
            "scatter": (
                "setting",
                scatter,
                {
                    "long_name": (
                        f"largest standard deviation over runs of an overlap at t = {HORIZON:g}"
                    )
                },
            ),
            **{
                f"size_{name}": (
                    "setting",
                    value,
                    {"long_name": f"size of the term {name} on the map"},
                )
                for name, value in sizes.items()
            },
        },
        {
            "setting": names,
            "description": list(DESCRIPTIONS),
            "t": ("time", t),
            **{
                name: ("setting", [corner[i] for corner in CORNERS.values()])
                for i, name in enumerate(("gamma", "p", "d"))
            },
        },
        {
            "k": k,
            "Delta": Delta,
            "activation": "erf",
            "runs": runs,
            "seed": seed,
            "small": SMALL,
            "large": LARGE,
        },
    )

    def largest_gaps(row: int) -> str:
        """Text of the largest relative gap to each description, with its sign."""
        return ", ".join(f"{curve[int(np.argmax(np.abs(curve)))]:+.3f}" for curve in gap[row])

    values = [
        f"{name} {largest_gaps(row)}, runs scatter by {scatter[row]:.3f} "
        f"({sizes['fluctuation'][row]:.3f} on the map)"
        for row, name in enumerate(names)
    ]
    data.attrs |= {
        "claim": (
            "gamma -> 0 is gradient flow, d -> infinity an ODE with the noise of SGD, p -> infinity"
            " a density of the units"
        ),
        "verdict": "mean risk of SGD over that of gradient flow, ODE, mean field, less 1,"
        f" where it is largest for t <= {HORIZON:g}: {'; '.join(values)}",
    }
    return _draw(table, data), data


def _draw(regimes: dict[str, Regime], data: xr.Dataset) -> Any:
    """Draw the map of regimes above and one panel for each of its corners below."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(16.5, 8.4), layout="constrained")
    grid = fig.add_gridspec(2, 4, height_ratios=(1.25, 1.0))
    map_ax = fig.add_subplot(grid[0, :])
    # `regime_map` draws the borders of its first entry. Those of the high-dimensional corner leave
    # enough space for all entries.
    high_dimensional_first = sorted(
        regimes.items(), key=lambda entry: entry[1].name != "high-dimensional"
    )
    plot.regime_map(dict(high_dimensional_first), map_ax)
    map_ax.set_title("(a)", loc="left")
    t = data.t.values
    for column, name in enumerate(data.setting.values):
        ax = fig.add_subplot(grid[1, column])
        flow = data.excess_risk_theory.values[column, 0]
        relative = data.excess_risk.values[column] / flow
        mean = relative.mean(axis=0)
        ax.fill_between(
            t,
            *(mean + sign * relative.std(axis=0, ddof=1) for sign in (-1, 1)),
            color="0.85",
            lw=0,
            label="single runs",
        )
        for row, description in enumerate(DESCRIPTIONS):
            ax.plot(
                t,
                data.excess_risk_theory.values[column, row] / flow,
                color=COLOURS[description],
                lw=1.5,
                label=description,
            )
        ax.errorbar(t, mean, spread(relative), fmt="ko", ms=4, capsize=2, lw=1, label="mean of SGD")
        gamma, p, d = (float(data[key][column]) for key in ("gamma", "p", "d"))
        ax.set(xlabel=TIME, title=f"{name}\n$\\gamma$ = {gamma:g}, $p$ = {p:g}, $d$ = {d:g}")
        ax.set_title(f"({'bcde'[column]})", loc="left")
        if column == 0:
            ax.set_ylabel("excess risk / gradient flow")
            ax.legend(frameon=False, fontsize="small")
    return fig
