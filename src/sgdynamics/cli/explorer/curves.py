"""Curves of the explorer: the ODE, the ODE with the exact mean step at dimension d, and exact runs.

The ODE of d -> infinity compiles first and is drawn while the other programs compile. Exact runs
take t d/lr steps, which can be millions. They are computed in pieces of about half a second: the
page draws the first piece at once and asks for the next one until the runs are complete or a slider
moves. A checkpoint lets each piece continue where the previous one ended.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.cli import problem_files
from sgdynamics.cli.drawings import draw_results
from sgdynamics.cli.explorer.states import SLIDERS, State, address, record, settings
from sgdynamics.cli.explorer.warning_records import record_warnings
from sgdynamics.cli.summaries import plain

STEPS_PER_PIECE = 80_000  # steps of eight exact runs: about half a second on one core
MAX_STEPS = 4_000_000  # per run: half a minute on one core
DIRECT_DIMENSION = 20  # a direct step in d dimensions costs as much as d/20 exact steps
MAX_CHECKPOINTS = 32  # states whose runs can be continued, 0.2 MB each


@dataclass(frozen=True)
class Theory:
    """Deterministic curves of one state.

    ``limit`` is the ODE of d -> infinity, ``finite`` the ODE whose drift is the exact mean of a
    step at dimension d, None for optimisers. ``times`` are the save points, which end early where
    the ODE diverges; ``diverged`` states whether it does.
    """

    times: np.ndarray
    limit: xr.Dataset
    finite: xr.Dataset | None
    notes: tuple[str, ...]
    diverged: bool


@lru_cache(maxsize=64)
def solve_limit(state: State) -> Theory:
    """Solve the ODE of d -> infinity, up to the time at which it diverges, if it does."""
    times = _save_points(state)
    with record_warnings() as caught:
        limit = _solve(state, "ode", times)
        diverged = _diverged(limit)
        if diverged:
            times, limit = _times_before_divergence(state, times, limit)
    # The solver's own warnings name save points of solutions that are not shown.
    notes = (_divergence_note(state, times[-1]),) if diverged else _sentences(caught)
    return Theory(times, limit, None, notes, diverged)


@lru_cache(maxsize=64)
def solve_theory(state: State) -> Theory:
    """Solve both ODEs of a state, at the save points of the limit."""
    theory = solve_limit(state)
    if not state.has_finite_theory:
        return theory
    with record_warnings() as caught:
        finite = _solve(state, "ode", theory.times, dimension=state.dimension)
    notes = () if theory.diverged else _sentences(caught)
    return replace(theory, finite=finite, notes=tuple(dict.fromkeys(theory.notes + notes)))


def _times_before_divergence(
    state: State, times: np.ndarray, limit: xr.Dataset
) -> tuple[np.ndarray, xr.Dataset]:
    """Shrink the time axis until a solution that diverges has a visible beginning.

    A result knows the last save point at which it is finite. Each pass takes the next save point,
    which lies beyond the divergence, as the new end: the axis shrinks by the number of points.
    """
    last = _last_finite(limit)
    while last < len(times) // 4 and times[-1] > 1e-9:
        times = np.linspace(0.0, times[last + 1], len(times))
        limit = _solve(state, "ode", times)
        last = _last_finite(limit)
    return times[: last + 1], limit.isel(time=slice(last + 1))


def _last_finite(result: xr.Dataset) -> int:
    finite = np.flatnonzero(np.isfinite(result["excess_risk"].values[0]))
    return int(finite[-1])


def _diverged(result: xr.Dataset) -> bool:
    return bool(np.isfinite(result["diverged_at"][0]))


def _divergence_note(state: State, diverged_at: float) -> str:
    """Note when the ODE diverges, and the largest learning rate of the slider that is stable."""
    slower = [lr for lr in SLIDERS["lr"] if lr < state.lr]
    low, high = (
        0,
        len(slower),
    )  # slower[:low] are stable; bisection assumes that slower[high:] are not
    while low < high:
        middle = (low + high) // 2
        if _diverges(replace(state, lr=slower[middle])):
            high = middle
        else:
            low = middle + 1
    advice = (
        f"Move the learning rate to {slower[low - 1]:g} or less."
        if low
        else "Reduce the learning rate."
    )
    return f"The ODE diverges at t = {diverged_at:.3g}, where the curves end. {advice}"


@lru_cache(maxsize=256)
def _diverges(state: State) -> bool:
    with record_warnings():
        return _diverged(_solve(state, "ode", _save_points(state)))


@lru_cache(maxsize=64)
def simulate_runs(
    state: State, pieces: int | None = None
) -> tuple[xr.Dataset, bool, tuple[str, ...]]:
    """Return the runs after some pieces (default: all), whether they are complete, and notes."""
    times = solve_theory(state).times
    steps = times * state.dimension / state.lr
    cost = _cost_of_step(state)
    per_piece, most = round(STEPS_PER_PIECE / cost), round(MAX_STEPS / cost)
    reachable = int(np.searchsorted(steps, most, side="right"))
    if reachable < 2:
        note = (
            f"Runs are omitted: the first of {len(times) - 1} save points takes "
            f"{steps[1]:.2g} steps, and the limit is {most:.2g}. Reduce the dimension or the time."
        )
        return _solve(state, state.method, times[:1]), True, (note,)
    affordable = reachable
    if pieces is not None:
        # At least one interval between save points per piece, however long it is.
        piece = np.searchsorted(steps, pieces * per_piece, side="right")
        affordable = min(reachable, max(int(piece), pieces + 1))
    with record_warnings() as caught:
        runs = _solve(state, state.method, times[:affordable], checkpoint=_checkpoint(state))
    notes = _sentences(caught)
    if reachable < len(times):
        end = f"t = {times[reachable - 1]:g}, after {steps[reachable - 1]:.2g} steps"
        notes = (f"The runs end at {end}. The exported program continues to the end.", *notes)
    return runs, affordable == reachable, notes


def _cost_of_step(state: State) -> float:
    """Cost of a step in units of an exact step with one sample."""
    samples = max(1.0, state.batch / 4)  # a batch of more than p samples has p columns
    if state.method == "exact":
        return samples
    return samples * max(1.0, state.dimension / DIRECT_DIMENSION)


def _save_points(state: State) -> np.ndarray:
    return np.asarray(problem_files.plan(record(state)).save_points["times"], dtype=float)


def _solve(state: State, method: str, times: np.ndarray, **options: object) -> xr.Dataset:
    """Solve a state by one method of its problem file, at these save points."""
    plan = problem_files.plan(record(state))
    calls = {**plan.calls, method: {**plan.calls[method], **options}}
    return problem_files.solve(
        replace(plan, save_points={"times": times}, calls=calls), method, False
    )


@cache
def _checkpoints() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sgdynamics-explorer-")


def _checkpoint(state: State) -> Path:
    """Return the folder of the runs of a state.

    It is removed when the process ends, or when many other states have been used since.
    """
    root = Path(_checkpoints().name)
    folder = root / hashlib.sha256(address(state).encode()).hexdigest()[:24]
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    by_age = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime)
    for oldest in by_age[:-MAX_CHECKPOINTS]:
        shutil.rmtree(oldest, ignore_errors=True)
    return folder


def _sentences(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Texts of the library's warnings, each once, as sentences."""
    texts = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    return tuple(f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in dict.fromkeys(texts))


def curves(state: State, pieces: int | None = None) -> dict[str, Any]:
    """Return what the page draws, as plain values.

    These are the risks of both ODEs and of each run, the overlaps of the ODE, and their mean over
    runs. ``complete`` is False as long as a call with more ``pieces`` computes longer runs. With
    zero pieces the answer is the ODE of d -> infinity alone.
    """
    if pieces == 0:
        theory, complete, notes = solve_limit(state), False, ()
        exact: dict[str, list[Any]] = {"t": [], "risk": [], "M": []}
    else:
        theory = solve_theory(state)
        runs, complete, notes = simulate_runs(state, pieces)
        exact = {
            "t": _round(runs["t"]),
            "risk": _round(runs["excess_risk"]),
            "M": _overlap_curves(runs),
        }
    return {
        "state": asdict(state),
        "notes": [*theory.notes, *notes],
        "complete": complete,
        "ode": {
            "t": _round(theory.limit["t"]),
            "risk": _round(theory.limit["excess_risk"][0]),
            "M": _overlap_curves(theory.limit),
        },
        "finite": None
        if theory.finite is None
        else {
            "t": _round(theory.finite["t"]),
            "risk": _round(theory.finite["excess_risk"][0]),
        },
        "exact": exact,
    }


def _overlap_curves(result: xr.Dataset) -> list[list[Any]]:
    """Mean overlaps over runs: all units with the first teacher unit, then all with the second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all runs diverged: the mean is NaN
        mean = np.nanmean(result["M"].values, axis=0)
    _, units, signals = mean.shape
    return [_round(mean[:, unit, signal]) for signal in range(signals) for unit in range(units)]


def _round(values: np.ndarray | xr.DataArray) -> list[Any]:
    """Nested lists with five digits, which is more than a screen shows."""
    array = np.asarray(values)
    if array.ndim > 1:
        return [_round(row) for row in array]
    return plain([float(f"{value:.5g}") for value in array])


def pdf(state: State) -> bytes:
    """Return the figure that `sgdynamics run` draws of the exported file, at the page's times."""
    file = io.BytesIO()
    results = {"ode": solve_theory(state).limit, state.method: simulate_runs(state)[0]}
    draw_results(results, str(record(state)["title"])).savefig(file, format="pdf")
    return file.getvalue()


# The page of the documentation computes nothing: its build solves these states with two programs.
GRID: dict[str, list[Any]] = {
    "width": [2, 4],
    "activation": ["erf"],
    "lr": [2.0, 5.0, 10.0],
    "noise": [0.001, 0.1],
    "dimension": [100, 300, 1000],
    "time": [1000.0],
    "seed": [0],
    "optimiser": ["SGD"],
    "batch": [1],
    "covariance": ["identity"],
    "head": ["fixed"],
}


def grid(values: Mapping[str, list[Any]] = GRID) -> dict[str, Any]:
    """Return the settings and the curves of all states of a grid, for the page without a server."""
    states = [
        State(**dict(zip(values, combination, strict=True)))
        for combination in itertools.product(*values.values())
    ]
    return settings(values, curves={address(state): curves(state) for state in states})
