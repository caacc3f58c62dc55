"""The curves of a state: the ODE, and as many steps of the exact runs as a moment has."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import problem_files
from sgdynamics.explorer.states import State, address, record, settings
from sgdynamics.tables import picture, plain

MOST_STEPS = 40_000  # of each exact run: half a second on one core


@lru_cache(maxsize=32)
def solved(state: State, most_steps: int = MOST_STEPS) -> tuple[dict[str, xr.Dataset], tuple[str, ...]]:
    """The results of both methods, and what a reader should know of them."""
    plan = problem_files.plan(record(state))
    notes = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        results = {"ode": problem_files.solve(plan, "ode", False)}
        times = np.asarray(plan.when["times"])
        affordable = times[times * state.dimension / state.lr <= most_steps]
        if len(affordable) < 2:
            affordable = times[:1]
            notes.append(f"One piece of this time is more than {most_steps} steps: exact runs are left out. Take a smaller d or time.")
        elif len(affordable) < len(times):
            notes.append(f"Exact runs end at t = {affordable[-1]:g}, after {most_steps} steps; what is exported goes on to the end.")
        results["exact"] = problem_files.solve(replace(plan, when={"times": affordable}), "exact", False)
    said = [str(one.message) for one in told if issubclass(one.category, UserWarning)]
    notes += [f"{one[:1].upper()}{one[1:]}." for one in said]
    return results, tuple(notes)


def curves(state: State, most_steps: int = MOST_STEPS) -> dict[str, Any]:
    """What the page draws, in plain values: risks of the ODE and of every run, overlaps of the ODE and their mean over runs."""
    results, notes = solved(state, most_steps)
    theory, runs = results["ode"], results["exact"]
    return {
        "state": asdict(state),
        "notes": list(notes),
        "ode": {"t": _short(theory["t"]), "risk": _short(theory["excess_risk"][0]), "M": _entries(theory)},
        "exact": {"t": _short(runs["t"]), "risk": _short(runs["excess_risk"]), "M": _entries(runs)},
    }


def _entries(result: xr.Dataset) -> list[list[Any]]:
    """Overlaps of units with the first teacher, then with the second, each along time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no run is left
        mean = np.nanmean(result["M"].values, axis=0)
    return [_short(mean[:, unit, signal]) for signal in range(mean.shape[2]) for unit in range(mean.shape[1])]


def _short(values: Any) -> Any:
    """Five digits are more than a screen shows."""
    return plain([float(f"{one:.5g}") for one in row] if (row := np.asarray(values)).ndim == 1 else [_short(one) for one in row])


def pdf(state: State) -> bytes:
    """The picture that `sgdynamics run` draws of the exported file, as far as the page goes."""
    import io

    file = io.BytesIO()
    picture(solved(state)[0], str(record(state)["title"])).savefig(file, format="pdf")
    return file.getvalue()


# few enough for the build of the documentation, whose page computes nothing: each width and activation is compiled once
GRID: dict[str, list[Any]] = {
    "width": [2, 4],
    "activation": ["erf"],
    "lr": [2.0, 5.0, 10.0],
    "noise": [0.001, 0.1],
    "dimension": [30, 100, 300],
    "time": [1000.0],
    "seed": [0],
}


def grid(over: Mapping[str, list[Any]] = GRID, most_steps: int = 20_000) -> dict[str, Any]:
    """Settings with the curves of every state of a grid, by address: the page without a server."""
    states = [State(**dict(zip(over, values, strict=True))) for values in itertools.product(*over.values())]
    return settings(over, curves={address(one): curves(one, most_steps) for one in states})
