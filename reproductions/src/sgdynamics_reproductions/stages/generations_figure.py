"""Figure 1: generations of students, the best share of real labels, and weak-to-strong learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    TeacherStudent,
    best_share,
    gap_recovered,
    model_collapse,
    simulate,
    solve_ode,
    stages,
    start,
    weak_to_strong,
)
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DIMENSION, LENGTH, POINTS, GENERATIONS = 300, 6.0, 13, 4
MIXTURES = {
    "no real labels": (0.0, "weighted"),
    "half of the labels real": (0.5, "drawn"),
    "labels 61.8% real": (0.618, "weighted"),
}
COUNTS = (2, 3, 4, 6)  # generations whose best share is searched
GOLDEN = (np.sqrt(5) - 1) / 2


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of generations, best shares of real labels, and a strong student of a weak one.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs, in two minutes.
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
    Generations are erf units that start anew. Best shares are those of linear students that learn
    to the end of each generation. The weak student is linear and learns erf, the strong one is erf
    and learns the outputs of the weak one.

    Examples
    --------
    >>> from sgdynamics_reproductions.stages import figure_1
    >>> fig, data = figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    variables = _generations(runs, seed) | _best_shares() | _weak_to_strong(runs, seed)
    coordinates = {
        "mixture": list(MIXTURES),
        "generation": np.arange(1, GENERATIONS + 1),
        "count": list(COUNTS),
    }
    attributes = {"d": DIMENSION, "runs": runs, "seed": seed}
    data = xr.Dataset(variables, coordinates, attributes)
    return _draw(data), data


def _generations(runs: int, seed: int) -> dict[str, Any]:
    """The ODE of three mixtures of labels, and runs at the ends of their generations."""
    problem = TeacherStudent(width=1, activation="erf", noise=0.1)
    initial, algorithm = start(problem, M=[[0.0]], Q=[[0.5]]), OnePassSGD(lr=1.0)
    paths, ends = [], []
    for real, mixing in MIXTURES.values():
        save_points = np.linspace(0.0, LENGTH, POINTS)
        sequence = model_collapse(problem, algorithm, save_points, GENERATIONS, real, mixing)
        theory = stages(solve_ode, sequence, initial)
        paths.append(theory.excess_risk.values[0])
        sequence = model_collapse(problem, algorithm, [LENGTH], GENERATIONS, real, mixing)
        chain = stages(simulate, sequence, initial, dimension=DIMENSION, runs=runs, seed=seed)
        ends.append(chain.excess_risk.values)
    return {
        "alpha": ("time", theory.alpha.values),
        "excess_risk": (("mixture", "time"), np.array(paths)),
        "excess_risk_runs": (("mixture", "run", "generation"), np.array(ends)),
    }


def _best_shares() -> dict[str, Any]:
    """The best share of real labels of linear students for some numbers of generations."""
    problem = TeacherStudent(width=1, activation="linear", noise=0.2)
    initial, algorithm = start(problem, M=[[0.0]], Q=[[0.0]]), OnePassSGD(lr=0.5)
    shares = [
        best_share(problem, algorithm, initial, alpha={"times": [20.0]}, generations=count)
        for count in COUNTS
    ]
    return {"best_share": ("count", np.array(shares))}


def _weak_to_strong(runs: int, seed: int) -> dict[str, Any]:
    """A strong student on labels of a weak one, and on those of the truth."""
    linear = TeacherStudent(width=1, activation="linear", teacher_activation="erf", noise=0.2)
    network = TeacherStudent(width=1, activation="erf", noise=0.2)
    initial = start(linear, M=[[0.0]], Q=[[0.0]])
    fresh = start(network, M=[[0.0]], Q=[[0.3]])

    def sequence(weak_points: Any, strong_points: Any) -> list[Any]:
        weak = (linear, OnePassSGD(lr=0.3), {"times": weak_points})
        return weak_to_strong(weak, (network, OnePassSGD(lr=0.5), {"times": strong_points}), fresh)

    strong_points = np.linspace(0.0, 16.0, 33)
    theory = stages(solve_ode, sequence([4.0], strong_points), initial).isel(run=0)
    risks = {name: theory.excess_risk[theory.stage == name] for name in ("strong", "ceiling")}
    saved = np.array([2.0, 4.0, 8.0, 16.0])
    options = {"dimension": DIMENSION, "runs": runs, "seed": seed}
    chain = stages(simulate, sequence([4.0], saved), initial, **options)
    return {
        "strong_time": strong_points,
        "strong_point": saved,
        "weak_risk": ((), float(theory.excess_risk[theory.stage == "weak"][-1])),
        "strong_risk": ("strong_time", risks["strong"].values),
        "ceiling_risk": ("strong_time", risks["ceiling"].values),
        "gap": ((), gap_recovered(theory.expand_dims("run"))),
        "weak_runs": ("run", chain.excess_risk[:, chain.stage == "weak"].values[:, -1]),
        "strong_runs": (
            ("run", "strong_point"),
            chain.excess_risk[:, chain.stage == "strong"].values,
        ),
    }


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    for row, name in enumerate(data.mixture.values):
        axes[0].plot(data.alpha, data.excess_risk[row], color=f"C{row}", label=name)
        draw_runs(axes[0], LENGTH * data.generation, data.excess_risk_runs[row], f"C{row}")
    axes[0].set(xlabel="samples / $d$", ylabel="excess risk on the truth")
    axes[0].set(yscale="log", ylim=(0.01, 1.5))  # room for the legend
    axes[1].plot(data["count"], data.best_share, "o-", label="linear students")
    axes[1].axhline(GOLDEN, color="grey", ls="--", label="golden ratio")
    axes[1].set(xlabel="generations", ylabel="best share of real labels")
    axes[2].plot(data.strong_time, data.strong_risk, color="C0", label="strong, on weak labels")
    draw_runs(axes[2], data.strong_point, data.strong_runs, "C0")
    axes[2].plot(data.strong_time, data.ceiling_risk, color="C2", label="strong, on real labels")
    axes[2].axhline(float(data.weak_risk), color="C3", ls="--", label="weak")
    axes[2].set(xlabel="$t$", ylabel="excess risk on the truth", yscale="log")
    title = f"learning from students: ODE and {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
    finish(fig, axes, title)
    return fig
