"""One run in several phases: a task, a loss, a batch size or an algorithm that changes on the way."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.results.datasets import start_from
from sgdynamics.results.variables import TIMES

POINTS = 33  # save points of a phase whose length is all that is given
UNITS = ("alpha", "times", "steps")


def phases(
    solver: Callable[..., xr.Dataset],
    parts: Sequence[tuple[Any, Any, Any]],
    start: object,
    **more: Any,
) -> xr.Dataset:
    """Solve or simulate several phases one after the other, each from where the one before ended.

    Parameters
    ----------
    solver : callable
        Any solver: ``sgd.solve_ode``, ``sgd.simulate``, ``sgd.solve_sde``, ...
    parts : sequence of (problem, algorithm, alpha)
        The phases. alpha, samples over d, is the length of the phase, or a list of save points in it, counted from its beginning (functions
        of alpha in the problem and the algorithm are too). In other units give {"times": ...} or {"steps": ...}.
    start : Start
        Where the first one starts.
    **more
        All other arguments of the solver, such as dimension, runs and seed.

    Returns
    -------
    xarray.Dataset
        As that of the solver, with a coordinate ``phase`` along time; t, alpha and step go on from phase to phase. The point at which one
        phase ends and the next begins is there twice where both have saved it: its risk is that of the one problem, then of the other.

    Raises
    ------
    ValueError
        If a phase is refused, which is then named, or has diverged.

    Notes
    -----
    Phase i > 0 draws its random numbers from a seed made of ``seed`` and i. What an update keeps beside the weights goes on where the next
    phase has the same update.

    Examples
    --------
    Half of the learning rate, and four times the batch, after alpha = 2:

    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    >>> parts = [(problem, sgd.OnePassSGD(lr=1.0), [1.0, 2.0]), (problem, sgd.OnePassSGD(lr=2.0, batch=4), [1.0, 2.0])]
    >>> found = sgd.phases(sgd.solve_ode, parts, begin)
    >>> found.alpha.values.tolist(), found.phase.values.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    """
    takes = _arguments(solver)
    fix = "give phases (problem, algorithm, alpha), such as [(problem, algorithm, 5.0), (other, algorithm, 5.0)]"
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Sequence) or not parts:
        raise checks.reject("parts", parts, fix)
    if any(not isinstance(part, (tuple, list)) or len(part) != 3 for part in parts):
        raise checks.reject("parts", parts, fix)
    given = set(more) & {*UNITS, "start"}
    if given:
        raise checks.reject(
            sorted(given)[0],
            more[sorted(given)[0]],
            "every phase has its own, the third of its parts: leave it out",
        )
    when = [_points(index, part[2]) for index, part in enumerate(parts)]
    seed = checks.integer("seed", more.get("seed", 0), 0)
    found: list[xr.Dataset] = []
    for index, ((problem, algorithm, _), points) in enumerate(zip(parts, when, strict=True)):
        if "seed" in takes:
            more["seed"] = (
                seed
                if index == 0
                else int(np.random.SeedSequence((seed, index)).generate_state(1)[0])
            )
        try:
            begin = start if index == 0 else start_from(found[-1])
            found.append(solver(problem, algorithm, begin, **points, **more))
        except ValueError as error:
            raise ValueError(f"phase {index}: {error}") from error
    joined = _joined(found, getattr(solver, "__name__", "solver"))
    return joined.assign_attrs(seed=seed) if "seed" in joined.attrs else joined


def _arguments(solver: object) -> list[str]:
    """The names of a solver's arguments; refuse what is none."""
    try:
        found = list(inspect.signature(solver).parameters) if callable(solver) else []
    except ValueError:
        found = []
    if found[:3] != ["problem", "algorithm", "start"]:
        raise checks.reject(
            "solver", solver, "give a solver, such as sgd.solve_ode or sgd.simulate"
        )
    return found


def _points(index: int, value: Any) -> dict[str, Any]:
    """The save points of a phase, by their unit."""
    name, points = "alpha", value
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in UNITS:
            raise checks.reject(
                f"parts[{index}][2]",
                value,
                f"give one of {', '.join(UNITS)}, such as {{'times': [1.0, 2.0]}}",
            )
        name, points = next(iter(value.items()))
    points = checks.real_array(
        f"parts[{index}][2]", points, "give the length of the phase, or its save points"
    )
    if points.ndim == 0:
        length = checks.number(f"parts[{index}][2]", float(points), above=0.0)
        points = np.linspace(0.0, length, POINTS)
        points = np.unique(np.round(points)) if name == "steps" else points
    return {name: points}


def _joined(parts: list[xr.Dataset], solver: str) -> xr.Dataset:
    """All phases along time, as one result."""
    shifted, past = [], dict.fromkeys(TIMES, 0.0)
    for number, part in enumerate(parts):
        moved = {}
        for name in TIMES:
            if name in part.coords:
                moved[name] = part[name] + (
                    int(past[name]) if part[name].dtype.kind == "i" else past[name]
                )
                past[name] = float(moved[name].values[-1])
        moved["phase"] = ("time", np.full(part.sizes["time"], number), {"long_name": "phase"})
        shifted.append(part.assign_coords(moved).drop_attrs(deep=False))
    # what only some phases have is not a number in the others
    both = {str(name): one for part in shifted for name, one in part.data_vars.items()}
    filled = [
        part.assign({name: _empty(one, part) for name, one in both.items() if name not in part})
        for part in shifted
    ]
    ends = [
        name
        for name in ("diverged_at", "ran_out_at", "stopped_at")
        if any(name in part.coords for part in filled)
    ]
    kept = [part.drop_vars(ends, errors="ignore") for part in filled]
    joined = xr.concat(kept, dim="time", coords="minimal", compat="override", join="exact")
    last = parts[-1]
    joined = joined.assign_coords({name: last[name] for name in ends if name in last.coords})
    attributes = dict(last.attrs)
    for name in {name for part in parts for name in part.attrs if name.startswith("error_")}:
        attributes[name] = max(float(part.attrs[name]) for part in parts if name in part.attrs)
    each = [
        {
            name: json.loads(part.attrs[name])
            for name in ("problem", "algorithm")
            if name in part.attrs
        }
        for part in parts
    ]
    clocks = {str(part.attrs["clock"]) for part in parts if "clock" in part.attrs}
    attributes["clock"] = clocks.pop() if len(clocks) == 1 else "t"
    return joined.assign_attrs(
        attributes | {"method": f"phases of {solver}", "phases": json.dumps(each)}
    )


def _empty(one: xr.DataArray, part: xr.Dataset) -> xr.DataArray:
    """A variable of another phase, for one that does not have it."""
    sizes = [part.sizes.get(name, one.sizes[name]) for name in one.dims]
    return xr.DataArray(np.full(sizes, np.nan), dims=one.dims, attrs=one.attrs)
