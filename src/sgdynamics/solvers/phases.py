"""`phases`: one run in several phases, with a problem or algorithm that changes in between."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.results.states import start_from
from sgdynamics.results.variables import TIMES

PHASE_POINTS = 33  # save points of a phase of which only the length is given
CLOCK_ARGUMENTS = ("alpha", "times", "steps")
END_COORDINATES = ("diverged_at", "ran_out_at", "stopped_at")


def phases(
    solver: Callable[..., xr.Dataset],
    parts: Sequence[tuple[Any, Any, Any]],
    start: object,
    **arguments: Any,
) -> xr.Dataset:
    """Solve or simulate several phases, each from the final state of the phase before.

    Parameters
    ----------
    solver : callable
        Any solver: ``sgd.solve_ode``, ``sgd.simulate``, ``sgd.solve_sde``, ...
    parts : sequence of (problem, algorithm, alpha)
        The phases. alpha (samples over d) is the length of the phase, or a list of save points
        counted from the beginning of the phase, as are functions of alpha in the problem and the
        algorithm. In other units give {"times": ...} or {"steps": ...}.
    start : Start
        Initial condition of the first phase.
    **arguments
        Further arguments of the solver, such as dimension, runs and seed.

    Returns
    -------
    xarray.Dataset
        The result of the solver, with a coordinate ``phase`` along time; t, alpha and step
        continue from phase to phase. The point at which one phase ends and the next begins occurs
        twice if both have saved it: first with the risk of one problem, then of the other.

    Raises
    ------
    ValueError
        If the arguments of a phase are invalid or a phase has diverged; the message names it.

    Notes
    -----
    Phase i > 0 draws its random numbers from a seed made of ``seed`` and i. The internal state of
    an update carries over to the next phase if that has the same update.

    Examples
    --------
    Doubled learning rate and four times the batch after alpha = 2:

    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    >>> first = (problem, sgd.OnePassSGD(lr=1.0), [1.0, 2.0])
    >>> second = (problem, sgd.OnePassSGD(lr=2.0, batch=4), [1.0, 2.0])
    >>> result = sgd.phases(sgd.solve_ode, [first, second], start)
    >>> result.alpha.values.tolist(), result.phase.values.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    """
    takes_seed = "seed" in _solver_arguments(solver)
    _validate_parts(parts)
    for name in (*CLOCK_ARGUMENTS, "start"):
        if name in arguments:
            fix = "each phase has its own, the third element of its tuple: leave it out"
            raise checks.reject(name, arguments[name], fix)
    save_points = [_save_points(index, phase[2]) for index, phase in enumerate(parts)]
    seed = checks.integer("seed", arguments.get("seed", 0), 0)
    results: list[xr.Dataset] = []
    for index, (problem, algorithm, _) in enumerate(parts):
        if takes_seed:
            sequence = np.random.SeedSequence((seed, index))
            arguments["seed"] = seed if index == 0 else int(sequence.generate_state(1)[0])
        try:
            initial = start if index == 0 else start_from(results[-1])
            results.append(solver(problem, algorithm, initial, **save_points[index], **arguments))
        except ValueError as error:
            raise ValueError(f"phase {index}: {error}") from error
    joined = _join(results, getattr(solver, "__name__", "solver"))
    return joined.assign_attrs(seed=seed) if "seed" in joined.attrs else joined


def _validate_parts(entries: object) -> None:
    fix = (
        "give phases (problem, algorithm, alpha), such as "
        "[(problem, algorithm, 5.0), (other, algorithm, 5.0)]"
    )
    is_text = isinstance(entries, (str, bytes, Mapping))
    if is_text or not isinstance(entries, Sequence) or not entries:
        raise checks.reject("parts", entries, fix)
    if any(not isinstance(phase, (tuple, list)) or len(phase) != 3 for phase in entries):
        raise checks.reject("parts", entries, fix)


def _solver_arguments(solver: object) -> list[str]:
    """The names of a solver's arguments; raises ValueError for anything else."""
    names: list[str] = []
    if callable(solver):
        try:
            names = list(inspect.signature(solver).parameters)
        except ValueError:  # a builtin without a signature
            names = []
    if names[:3] != ["problem", "algorithm", "start"]:
        fix = "give a solver, such as sgd.solve_ode or sgd.simulate"
        raise checks.reject("solver", solver, fix)
    return names


def _save_points(
    index: int, value: ArrayArgument | Mapping[str, ArrayArgument]
) -> dict[str, np.ndarray]:
    """The save points of a phase, by the argument of their unit."""
    argument, unit, points = f"parts[{index}][2]", "alpha", value
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in CLOCK_ARGUMENTS:
            names = ", ".join(CLOCK_ARGUMENTS)
            fix = f"give one of {names}, such as {{'times': [1.0, 2.0]}}"
            raise checks.reject(argument, value, fix)
        unit, points = next(iter(value.items()))
    points = checks.real_array(argument, points, "give the length of the phase, or its save points")
    if points.ndim == 0:
        length = checks.number(argument, float(points), above=0.0)
        points = np.linspace(0.0, length, PHASE_POINTS)
        points = np.unique(np.round(points)) if unit == "steps" else points
    return {unit: points}


def _join(results: list[xr.Dataset], solver: str) -> xr.Dataset:
    """All phases along time, as one result."""
    shifted, elapsed = [], dict.fromkeys(TIMES, 0.0)
    for index, result in enumerate(results):
        coordinates: dict[str, Any] = {}
        for name in TIMES:
            if name in result.coords:
                is_integer = result[name].dtype.kind == "i"
                shift = int(elapsed[name]) if is_integer else elapsed[name]
                coordinates[name] = result[name] + shift
                elapsed[name] = float(coordinates[name].values[-1])
        phase = np.full(result.sizes["time"], index)
        coordinates["phase"] = ("time", phase, {"long_name": "phase"})
        shifted.append(result.assign_coords(coordinates).drop_attrs(deep=False))
    # Variables of some phases only are NaN in the others.
    variables = {
        str(name): variable for result in shifted for name, variable in result.data_vars.items()
    }
    complete = []
    for result in shifted:
        missing = [name for name in variables if name not in result]
        filled = {name: _fill_missing(variables[name], result) for name in missing}
        complete.append(result.assign(filled).drop_vars(END_COORDINATES, errors="ignore"))
    joined = xr.concat(complete, dim="time", coords="minimal", compat="override", join="exact")
    last = results[-1]
    ends = {name: last[name] for name in END_COORDINATES if name in last.coords}
    attributes = _join_attributes(results) | {"method": f"phases of {solver}"}
    return joined.assign_coords(ends).assign_attrs(attributes)


def _join_attributes(results: list[xr.Dataset]) -> dict[str, Any]:
    """Attributes of the last phase, with the largest errors and the records of all phases."""
    attributes = dict(results[-1].attrs)
    for result in results:
        for name in result.attrs:
            if name.startswith("error_"):
                errors = [float(other.attrs[name]) for other in results if name in other.attrs]
                attributes[name] = max(errors)
    records = [
        {
            name: json.loads(result.attrs[name])
            for name in ("problem", "algorithm")
            if name in result.attrs
        }
        for result in results
    ]
    clocks = {str(result.attrs["clock"]) for result in results if "clock" in result.attrs}
    attributes["clock"] = clocks.pop() if len(clocks) == 1 else "t"
    return attributes | {"phases": json.dumps(records)}


def _fill_missing(variable: xr.DataArray, result: xr.Dataset) -> xr.DataArray:
    """NaN in place of a variable of another phase."""
    sizes = [result.sizes.get(name, variable.sizes[name]) for name in variable.dims]
    return xr.DataArray(np.full(sizes, np.nan), dims=variable.dims, attrs=variable.attrs)
