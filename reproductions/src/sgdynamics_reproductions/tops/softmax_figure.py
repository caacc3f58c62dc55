"""Figure 1: softmax classification, its accuracy, and its error at fixed learning rates."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, expect, models, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels, ticks

DIMENSION, LR, LAST = 300, 1.0, 20.0
RATES = (0.5, 2.0)  # learning rates of the last panel
LATE = 40.0  # last time of the last panel


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Cross-entropy, accuracy and error of a softmax network of two classes.

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
    One unit, logits B tanh(w.x), and the larger of two signals is the label. The weights grow for
    ever, and so the share of errors falls for ever at a fixed learning rate.

    Examples
    --------
    >>> from sgdynamics_reproductions import tops
    >>> fig, data = tops.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    problem = models.softmax(classes=2, width=1)
    top = {"B": [[0.5], [-0.3]]}
    initial_state = start(problem, M=[[0.4, -0.3]], Q=[[1.0]], top=top)
    times, points = np.linspace(0.0, LAST, 41), np.linspace(2.5, LAST, 8)
    theory = solve_ode(problem, OnePassSGD(lr=LR), initial_state, times=times)
    table: dict[str, Any] = {"times": points, "dimension": DIMENSION, "runs": runs, "seed": seed}
    chain = simulate(problem, OnePassSGD(lr=LR), initial_state, **table)
    late = np.append(0.0, np.geomspace(1.0, LATE, 17))
    errors = []
    for lr in RATES:
        path = solve_ode(problem, OnePassSGD(lr=lr), initial_state, times=late)
        errors.append(angle_error(path.M.values[0], path.Q.values[0]))
    accuracy = expect(theory, _is_correct, problem).values[0]
    data = xr.Dataset(
        {
            "risk": ("time", theory.risk.values[0], {"long_name": "cross-entropy of the ODE"}),
            "risk_runs": (("run", "point"), chain.risk.values),
            "accuracy": ("time", accuracy, {"long_name": "accuracy of the ODE by expectations"}),
            "angle_accuracy": ("time", 1 - angle_error(theory.M.values[0], theory.Q.values[0])),
            "accuracy_runs": (("run", "point"), 1 - angle_error(chain.M.values, chain.Q.values)),
            "error": (("rate", "late"), np.array(errors), {"long_name": "share of errors"}),
            "column_sum": ("time", theory["top.B"].values[0].sum(axis=1)[:, 0]),
        },
        {"time": times, "point": points, "rate": list(RATES), "late": late},
        {"d": DIMENSION, "lr": LR, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def angle_error(M: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return the share of errors of one unit: its angle to w*_1 - w*_2, divided by pi."""
    cosine = (M[..., 0, 0] - M[..., 0, 1]) / np.sqrt(2 * Q[..., 0, 0])
    return np.arccos(np.clip(cosine, -1, 1)) / np.pi


def _is_correct(fields: Any, signals: Any, top: Any, draws: Any) -> Any:
    logits = top["B"] @ jnp.tanh(fields)
    return 1.0 * (jnp.argmax(logits) == jnp.argmax(signals))


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    axes[0].plot(data.time, data.risk, label="ODE")
    draw_runs(axes[0], data.point, data.risk_runs, "C0", "runs")
    axes[0].set(xlabel="$t$", ylabel="cross-entropy", title="loss")
    axes[1].plot(data.time, data.angle_accuracy, color="C1", label="ODE")
    draw_runs(axes[1], data.point, data.accuracy_runs, "C1", "runs")
    axes[1].set(xlabel="$t$", ylabel="share classified right", title="accuracy")
    for row, rate in enumerate(data.rate.values):
        axes[2].plot(
            data.late[1:], data.error[row, 1:], color=f"C{row + 2}", label=f"lr = {rate:g}"
        )
    axes[2].set(xscale="log", yscale="log", xlabel="$t$", ylabel="share of errors")
    axes[2].set(title="error at a fixed rate")
    ticks(axes[2], [1, 10, 100])
    title = f"softmax, two classes: ODE and {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
    finish(fig, axes, title)
    return fig
