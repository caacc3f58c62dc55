"""Figure 4: a deep network that is narrow in all its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, readable

DIMENSION, LR, LAST = 300, 0.2, 40.0
SHALLOW, DEEP = "one layer (1)", "three layers (1, 3, 2)"
WIDTHS = {SHALLOW: (1,), DEEP: (1, 3, 2)}
OVERLAPS = {"M": [[0.4]], "Q": [[1.0]]}
TOPS: dict[str, dict[str, Any]] = {
    SHALLOW: {"u": [1.0]},
    DEEP: {
        "V1": [[1.0], [-0.8], [0.6]],
        "c1": [0.5, 0.5, -0.5],
        "V2": [[0.6, -0.4, 0.5], [0.5, 0.6, -0.3]],
        "c2": [0.2, -0.3],
        "u": [1.0, -0.8],
    },
}


def uneven(signals: Any) -> Any:
    """Return the label z + (z^2 - 1)/2, whose second term is even."""
    return signals[0] + (signals[0] ** 2 - 1) / 2


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Risk of networks of one and three layers with a single row, their overlaps and last layer.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in half a minute.
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
    f = u.tanh(V_2 tanh(V_1 tanh(w.x) + c_1) + c_2) learns y = z + (z^2 - 1)/2. All layers but the
    first have a few parameters, which the ODE follows together with the overlaps. One odd unit is
    an odd function, whose risk stays above 1/4, half the variance of the even part.

    Examples
    --------
    >>> from sgdynamics_reproductions import tops
    >>> fig, data = tops.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    times, points = np.linspace(0.0, LAST, 81), np.linspace(4.0, LAST, 10)
    table: dict[str, Any] = {"times": points, "dimension": DIMENSION, "runs": runs, "seed": seed}
    risks, samples, variables = [], [], {}
    for name, widths in WIDTHS.items():
        problem = models.mlp(widths, "tanh", uneven, signals=1)
        initial_state = start(problem, **OVERLAPS, top=TOPS[name])
        theory = solve_ode(problem, OnePassSGD(lr=LR), initial_state, times=times)
        chain = simulate(problem, OnePassSGD(lr=LR), initial_state, **table)
        risks.append(theory.risk.values[0])
        samples.append(chain.risk.values)
        if name == DEEP:
            overlaps = [
                np.stack([path.M.values[..., 0, 0], path.Q.values[..., 0, 0]], axis=-1)
                for path in (theory, chain)
            ]
            variables = {
                "overlaps": (("time", "overlap"), overlaps[0][0]),
                "overlaps_runs": (("run", "point", "overlap"), overlaps[1]),
                "u": (("time", "unit"), theory["top.u"].values[0]),
                "u_runs": (("run", "point", "unit"), chain["top.u"].values),
                "c": (("time", "inner_unit"), theory["top.c1"].values[0]),
                "c_runs": (("run", "point", "inner_unit"), chain["top.c1"].values),
            }
    data = xr.Dataset(
        {
            "risk": (("network", "time"), np.array(risks)),
            "risk_runs": (("network", "run", "point"), np.array(samples)),
            **variables,
        },
        {"time": times, "point": points, "network": list(WIDTHS), "overlap": ["M", "Q"]},
        {"d": DIMENSION, "lr": LR, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    for row, name in enumerate(data.network.values):
        axes[0].plot(data.time, data.risk[row], color=f"C{row}", label=name)
        draw_runs(axes[0], data.point, data.risk_runs[row], f"C{row}")
    axes[0].set(ylabel="risk", title="risk", yscale="log")
    for column, name in enumerate(data.overlap.values):
        axes[1].plot(data.time, data.overlaps[:, column], color=f"C{column + 2}", label=f"${name}$")
        draw_runs(axes[1], data.point, data.overlaps_runs[..., column], f"C{column + 2}")
    axes[1].set(ylabel="overlap", title="first layer")
    for index, (name, label) in enumerate((("u", "u"), ("c", "c_1"))):
        for unit in range(data[name].shape[-1]):
            colour = f"C{unit + 4}"
            style, runs = ("-", "--")[index], data[f"{name}_runs"][..., unit]
            component = f"${label.replace('_1', '')}_{{{'1,' * index}{unit + 1}}}$"
            axes[2].plot(data.time, data[name][:, unit], color=colour, ls=style, label=component)
            draw_runs(axes[2], data.point, runs, colour)
    axes[2].set(ylabel="parameter", title="last layer and biases of the second")
    axes[2].set_ylim(top=3.2)
    for axis in axes:
        axis.set(xlabel="$t$")
    title = (
        f"narrow networks on $y = z + (z^2 - 1)/2$: ODE and {data.attrs['runs']} runs "
        f"at $d$ = {data.attrs['d']}"
    )
    finish(fig, axes, title, axes[:2])
    axes[2].legend(loc="upper left", ncols=3, frameon=False, fontsize="small")
    readable(axes)
    return fig
