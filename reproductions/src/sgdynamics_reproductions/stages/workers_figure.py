"""Figure 2: local SGD and DiLoCo, workers with different teachers, and delayed gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    TeacherStudent,
    Workers,
    largest_stable_lr,
    simulate,
    solve_ode,
    start,
    updates,
)
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DIMENSION, LAST = 250, 8.0
LENGTHS = (0.5, 1.0, 2.0)  # rounds of workers with different teachers, in samples/d
TRIED_DELAYS = (0.2, 1.0, 3.0)  # in units of d steps
FACTORS = (0.9, 1.1)  # of the largest stable rate


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk of four workers, the limit of workers with two teachers, and stable rates.

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
    The third panel has the largest stable rate of linear students against the delay, with rates
    10% below and above it, at which the ODE of two times decays and grows.

    Examples
    --------
    >>> from sgdynamics_reproductions.stages import figure_2
    >>> fig, data = figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    runs = 60 if quick else 400
    variables = _workers(runs, seed) | _different_teachers() | _delays()
    attributes = {"d": DIMENSION, "runs": runs, "seed": seed}
    data = xr.Dataset(variables, attrs=attributes)
    return _draw(data), data


def _workers(runs: int, seed: int) -> dict[str, Any]:
    """Four workers and DiLoCo between one worker and a batch of four."""
    problem = TeacherStudent(width=1, activation="erf", noise=0.1)
    initial, inner = start(problem, M=[[0.1]], Q=[[0.5]]), OnePassSGD(lr=1.0)
    local = Workers(inner, workers=4, every=0.5)
    diloco = local.replace(outer_lr=0.7, outer_momentum=0.5)
    cases = {"one worker": inner, "four workers": local, "DiLoCo": diloco}
    cases["batch of four"] = local.short_rounds
    times = np.linspace(0.0, LAST, 33)
    points = np.array([2.0, 4.0, 6.0, LAST])
    theory = [
        solve_ode(problem, algorithm, initial, times=times).excess_risk.values[0]
        for algorithm in cases.values()
    ]
    options: dict[str, Any] = {"times": points, "dimension": DIMENSION, "runs": runs, "seed": seed}
    chains = [
        simulate(problem, algorithm, initial, **options).excess_risk.values
        for algorithm in (local, diloco)
    ]
    return {
        "time": times,
        "point": points,
        "case": list(cases),
        "simulated": ["four workers", "DiLoCo"],
        "excess_risk": (("case", "time"), np.array(theory)),
        "excess_risk_runs": (("simulated", "run", "point"), np.array(chains)),
    }


def _different_teachers() -> dict[str, Any]:
    """The mean risk to which two workers with teachers of their own converge."""
    first = TeacherStudent(
        width=1,
        teacher_width=2,
        activation="erf",
        teacher_head=[2.0, 0.0],
        teacher_gram=[[1.0, 0.3], [0.3, 1.0]],
        noise=0.05,
    )
    problems = [first, first.replace(teacher_head=[0.0, 2.0])]
    initial = start(first, M=[[0.1, 0.2]], Q=[[0.5]])
    risks = []
    for length in LENGTHS:
        workers = Workers(OnePassSGD(lr=1.0), workers=2, every=length, problems=problems)
        result = solve_ode(first, workers, initial, alpha=[40.0])
        risks.append(result.excess_risk.item())
    return {"length": list(LENGTHS), "limit_risk": ("length", np.array(risks))}


def _delays() -> dict[str, Any]:
    """The stability line of delays, and the growth of errors below and above it."""
    problem = TeacherStudent(width=1, activation="linear")
    initial = start(problem, M=[[0.0]], Q=[[0.0]])
    delays = np.linspace(0.02, 4.0, 60)
    growth, rates = [], []
    for delay in TRIED_DELAYS:
        algorithm = OnePassSGD(update=updates.delayed(per_dimension=delay))
        limit = largest_stable_lr(algorithm)
        for factor in FACTORS:
            rate = factor * limit
            result = solve_ode(problem, algorithm.replace(lr=rate), initial, times=[20.0, 40.0])
            rates.append(rate)
            growth.append(np.log(result.risk.values[0, 1] / result.risk.values[0, 0]))
    shape = (len(TRIED_DELAYS), len(FACTORS))
    limits = [
        largest_stable_lr(OnePassSGD(update=updates.delayed(per_dimension=delay)))
        for delay in delays
    ]
    return {
        "delay": delays,
        "tried_delay": list(TRIED_DELAYS),
        "factor": list(FACTORS),
        "stable_rate": ("delay", np.array(limits)),
        "tried_rate": (("tried_delay", "factor"), np.reshape(rates, shape)),
        "growth": (("tried_delay", "factor"), np.reshape(growth, shape)),
    }


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3)
    for row, name in enumerate(data.case.values):
        style = "--" if name == "batch of four" else "-"
        axes[0].plot(data.time, data.excess_risk[row], style, color=f"C{row}", label=name)
    for row, name in enumerate(data.simulated.values):
        colour = f"C{list(data.case.values).index(name)}"
        draw_runs(axes[0], data.point, data.excess_risk_runs[row], colour)
    axes[0].set(yscale="log", xlabel="$t$", ylabel="excess risk")
    axes[1].plot(data.length, data.limit_risk, "o-", label="two workers, two teachers")
    axes[1].set(xlabel="samples / $d$ in a round", ylabel="excess risk in the end")
    axes[2].plot(data.delay, data.stable_rate, color="C0", label="largest stable rate")
    for column, (name, marker) in enumerate((("decays", "o"), ("grows", "x"))):
        axes[2].plot(data.tried_delay, data.tried_rate[:, column], marker, color="C3", label=name)
    axes[2].set(xlabel="delay / $d$ in steps", ylabel="learning rate", ylim=(0, None))
    title = f"many workers: ODE and {data.attrs['runs']} runs at $d$ = {data.attrs['d']}"
    finish(fig, axes, title)
    return fig
