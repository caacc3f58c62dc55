"""Figure 6: the exponent of the loss in time does not depend on the activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    Spectrum,
    TeacherStudent,
    fit_exponent,
    power_law,
    solve_ode,
    start,
    sweep,
)
from sgdynamics.base import checks
from sgdynamics.papers.scaling_laws import learning_exponent
from sgdynamics_reproductions.drawing import finish, panels

ACTIVATIONS = ("erf", "relu", "square")
EXPONENTS = (1.25, 1.5, 2.0)
TARGET, DIMENSION = 0.25, 1e9
LATE = 30.0  # from when on a power law is fitted
FIRST = 0.5  # the student starts at this times the teacher


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Students with erf, ReLU and square on power-law data, gradient flow: risk against time,
    fitted exponents on the closed one.

    Parameters
    ----------
    quick : bool, default False
        Times to 3e3 in place of 3e4, in about half a minute.
    seed : int, default 0
        Not used: nothing is random here.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Eigenvalues j^-s and a teacher with the coordinates j^-1/4 in 1e9 dimensions, scaled so that its
    field has the variance 1; the student has its activation and starts at half of it. By
    ``sgd.sweep`` over activation and s, with ``sgd.fit_exponent`` from t = 30 on. Where the
    activation is not linear, what is left of the transient falls with the excess risk itself.

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_6(quick=True)  # doctest: +SKIP
    """
    seed, end, bins = checks.integer("seed", seed, 0), 3e3 if quick else 3e4, 40 if quick else 80
    times = np.geomspace(3, end, 21)

    def excess_risk_curve(activation: str, exponent: float) -> xr.Dataset:
        law = power_law(exponent, DIMENSION, target=TARGET, raw=20, bins=bins)
        gram = law.target / float(law.eigenvalues @ law.target[:, 0, 0])
        problem = TeacherStudent(
            width=1,
            activation=activation,
            covariance=Spectrum(law.eigenvalues, law.multiplicities, gram),
        )
        initial_state = start(problem, M=FIRST * gram, Q=FIRST**2 * gram)
        return solve_ode(problem, OnePassSGD(lr=0.0, per="trace"), initial_state, times=times)[
            ["excess_risk"]
        ]

    grid = sweep(
        excess_risk_curve,
        over={"activation": list(ACTIVATIONS), "exponent": list(EXPONENTS)},
        workers=1,
        progress=False,
    )
    grid = grid.isel(run=0).drop_vars("t").assign_coords(t=("time", times))
    late = grid.isel(time=times >= LATE)
    fits = [
        [fit_exponent(late, "excess_risk", "t", activation=value, exponent=s) for s in EXPONENTS]
        for value in ACTIVATIONS
    ]
    data = xr.Dataset(
        {
            "excess_risk": (
                ("activation", "exponent", "time"),
                grid.excess_risk.transpose("activation", "exponent", "time").values,
            ),
            "fitted": (
                ("activation", "exponent"),
                [[-entry.exponent for entry in row] for row in fits],
                {"long_name": "minus the exponent in t"},
            ),
            "predicted": ("exponent", [learning_exponent(s, TARGET) for s in EXPONENTS]),
        },
        {"activation": list(ACTIVATIONS), "exponent": list(EXPONENTS), "time": times},
        {"target": TARGET, "d": DIMENSION, "late": LATE, "first": FIRST, "seed": seed},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(2, 5.2, 4.0)
    t, looks, marks = (
        data.time.values,
        ("-", "--", ":"),
        {"marker": ("o", "s", "^"), "ms": (12, 8, 4)},
    )
    late = t >= data.attrs["late"]
    for row, name in enumerate(data.activation.values):
        style: dict[str, Any] = {
            "marker": marks["marker"][row],
            "ms": marks["ms"][row],
            "mfc": "none",
            "ls": "none",
            "mew": 1.5,
        }
        axes[0].plot([], [], color=f"C{row}", label=name)
        axes[1].plot(data.exponent, data.fitted.values[row], color=f"C{row}", label=name, **style)
    for column, s in enumerate(data.exponent.values):
        axes[0].plot([], [], color="0.4", ls=looks[column], label=f"$s$ = {s:g}")
        for row in range(data.sizes["activation"]):
            axes[0].plot(t, data.excess_risk.values[row, column], color=f"C{row}", ls=looks[column])
        law = data.excess_risk.values[0, column, -1] * (t / t[-1]) ** -float(data.predicted[column])
        axes[0].plot(t[late], 0.5 * law[late], color="k", lw=0.8, ls=looks[column])
    axes[0].plot([], [], color="k", lw=0.8, label="closed exponent")
    s = np.linspace(1.2, 2.05, 50)
    axes[1].plot(
        s,
        [learning_exponent(value, data.attrs["target"]) for value in s],
        color="k",
        lw=0.9,
        zorder=0,
        label="$(s + 2e - 1)/s$",
    )
    axes[0].set(
        xscale="log", yscale="log", xlabel="time $t$", ylabel="excess risk", title="gradient flow"
    )
    axes[1].set(xlabel="$s$", ylabel="exponent of the excess risk in $t$", title="fitted exponents")
    finish(
        fig,
        axes,
        "erf, ReLU and square on eigenvalues $j^{-s}$, teacher $j^{-e}$, $e$ = 1/4, $d$ = $10^9$",
    )
    return fig
