"""Figure 4: a deep network that is narrow in all its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DIMENSION, LR, LAST = 300, 0.3, 60.0
WIDTHS = {"one layer (3)": (3,), "two layers (3, 2)": (3, 2)}
DEEP = "two layers (3, 2)"
OVERLAPS = {"M": [[0.5, 0.2], [0.3, -0.4], [-0.2, 0.3]], "Q": 0.8 * np.eye(3) + 0.1}
TOPS: dict[str, dict[str, Any]] = {
    "one layer (3)": {"u": [1.0, -1.0, 0.5]},
    DEEP: {"V1": [[0.8, -0.5, 0.3], [0.2, 0.6, -0.7]], "c1": [0.3, -0.2], "u": [1.0, -1.0]},
}


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Risk of narrow networks of one and two layers on a product of signals, and their overlaps.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in a minute.
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
    f = u.tanh(V tanh(W x) + c) learns y = z_1 z_2. All layers but the first have a few parameters,
    which the ODE follows together with the overlaps. One layer of odd units is an odd function and
    cannot learn an even target.

    Examples
    --------
    >>> from sgdynamics_reproductions import tops
    >>> fig, data = tops.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    times, points = np.linspace(0.0, LAST, 61), np.linspace(5.0, LAST, 12)
    table: dict[str, Any] = {"times": points, "dimension": DIMENSION, "runs": runs, "seed": seed}
    risks, samples, variables = [], [], {}
    for name, widths in WIDTHS.items():
        problem = models.mlp(widths, activation="tanh", signals=2)
        initial_state = start(problem, **OVERLAPS, top=TOPS[name])
        theory = solve_ode(problem, OnePassSGD(lr=LR), initial_state, times=times)
        chain = simulate(problem, OnePassSGD(lr=LR), initial_state, **table)
        risks.append(theory.risk.values[0])
        samples.append(chain.risk.values)
        if name == DEEP:
            variables = {
                "M": (("time", "unit", "signal"), theory.M.values[0]),
                "M_runs": (("run", "point", "unit", "signal"), chain.M.values),
                "u": (("time", "layer_unit"), theory["top.u"].values[0]),
                "u_runs": (("run", "point", "layer_unit"), chain["top.u"].values),
                "V": (("time", "layer_unit", "unit"), theory["top.V1"].values[0]),
                "V_runs": (("run", "point", "layer_unit", "unit"), chain["top.V1"].values),
            }
    data = xr.Dataset(
        {
            "risk": (("network", "time"), np.array(risks)),
            "risk_runs": (("network", "run", "point"), np.array(samples)),
            **variables,
        },
        {"time": times, "point": points, "network": list(WIDTHS)},
        {"d": DIMENSION, "lr": LR, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    for row, name in enumerate(data.network.values):
        axes[0].plot(data.time, data.risk[row], color=f"C{row}", label=name)
        draw_runs(axes[0], data.point, data.risk_runs[row], f"C{row}")
    axes[0].set(ylabel="risk", title="risk", yscale="log")
    for unit in range(data.sizes["unit"]):
        axes[1].plot(data.time, data.M[:, unit, 0], color=f"C{unit}", label=f"unit {unit + 1}")
        axes[1].plot(data.time, data.M[:, unit, 1], color=f"C{unit}", ls="--")
        for signal in range(data.sizes["signal"]):
            draw_runs(axes[1], data.point, data.M_runs[..., unit, signal], f"C{unit}")
    axes[1].set(ylabel="overlap", title=r"overlaps with $w^*_1$ (solid), $w^*_2$ (dashed)")
    for unit in range(data.sizes["layer_unit"]):
        axes[2].plot(data.time, data.u[:, unit], color=f"C{unit}", label=f"$u_{unit + 1}$")
        draw_runs(axes[2], data.point, data.u_runs[..., unit], f"C{unit}")
    for column in range(data.sizes["unit"]):
        label = f"$V_{{1{column + 1}}}$"
        axes[2].plot(data.time, data.V[:, 0, column], color=f"C{column + 2}", ls="--", label=label)
        draw_runs(axes[2], data.point, data.V_runs[..., 0, column], f"C{column + 2}")
    axes[2].set(ylabel="parameter", title="second and last layer")
    for axis in axes:
        axis.set(xlabel="$t$")
    title = (
        f"narrow networks on $y = z_1 z_2$: ODE and {data.attrs['runs']} runs "
        f"at $d$ = {data.attrs['d']}"
    )
    finish(fig, axes, title)
    return fig
