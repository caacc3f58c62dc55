"""Figure 2: trained biases of the units."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics import MultiIndex, OnePassSGD, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DIMENSION, LR, LAST, NOISE = 300, 1.0, 30.0, 0.02
OVERLAPS = {"M": [[0.3], [-0.2]], "Q": [[1.0, 0.2], [0.2, 0.8]]}


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of a network with and without biases on a shifted target, and the biases.

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
    Two tanh units with a trained head learn y = tanh(z - 0.8). A network of odd units without
    biases is an odd function and misses the even part of the target.

    Examples
    --------
    >>> from sgdynamics_reproductions import tops
    >>> fig, data = tops.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    times, points = np.linspace(0.0, LAST, 61), np.linspace(2.5, LAST, 12)
    table: dict[str, Any] = {"times": points, "dimension": DIMENSION, "runs": runs, "seed": seed}
    variables: dict[str, Any] = {}
    risks, samples = [], []
    for biases in (False, True):
        problem = MultiIndex(
            _shifted_target,
            directions=1,
            width=2,
            activation="tanh",
            head="trained",
            noise=NOISE,
            biases=biases,
        )
        top: dict[str, Any] = {"top": {"a": [1.0, 0.5], "b": [0.0, 0.1]}}
        initial_state = start(problem, **OVERLAPS, **(top if biases else {"a": [1.0, 0.5]}))
        theory = solve_ode(problem, OnePassSGD(lr=LR), initial_state, times=times)
        chain = simulate(problem, OnePassSGD(lr=LR), initial_state, **table)
        risks.append(theory.excess_risk.values[0])
        samples.append(chain.excess_risk.values)
        if biases:
            variables["b"] = (("time", "unit"), theory["top.b"].values[0])
            variables["b_runs"] = (("run", "point", "unit"), chain["top.b"].values)
    variables["excess_risk"] = (("biases", "time"), np.array(risks))
    variables["excess_risk_runs"] = (("biases", "run", "point"), np.array(samples))
    coordinates = {"time": times, "point": points, "biases": ["without", "with"]}
    attributes = {"d": DIMENSION, "lr": LR, "noise": NOISE, "runs": runs, "seed": seed}
    data = xr.Dataset(variables, coordinates, attributes)
    return _draw(data), data


def _shifted_target(signals: Any) -> Any:
    return jnp.tanh(signals[0] - 0.8)


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(2)
    for row, name in enumerate(data.biases.values):
        axes[0].plot(data.time, data.excess_risk[row], color=f"C{row}", label=f"{name} biases")
        draw_runs(axes[0], data.point, data.excess_risk_runs[row], f"C{row}")
    axes[0].set(yscale="log", xlabel="$t$", ylabel="excess risk", title="risk")
    for unit in range(data.sizes["unit"]):
        axes[1].plot(data.time, data.b[:, unit], color=f"C{unit + 2}", label=f"$b_{unit + 1}$")
        draw_runs(axes[1], data.point, data.b_runs[..., unit], f"C{unit + 2}")
    axes[1].set(xlabel="$t$", ylabel="bias", title="biases")
    title = f"trained biases: ODE and {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
    finish(fig, axes, title)
    return fig
