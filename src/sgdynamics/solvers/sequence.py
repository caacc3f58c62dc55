"""Results of several calls of a solver, one after the other, as one result."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.results.variables import TIMES

STAGE_POINTS = 33  # save points of a stage of which only the length is given
CLOCK_ARGUMENTS = ("alpha", "times", "steps")
END_COORDINATES = ("diverged_at", "ran_out_at", "stopped_at")
# Axes whose length differs between stages; shorter ones are filled with NaN.
UNEQUAL_AXES = ("unit", "unit_other", "earlier_unit")


def solver_arguments(solver: object) -> list[str]:
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


def read_save_points(
    argument: str, value: ArrayArgument | Mapping[str, ArrayArgument]
) -> dict[str, np.ndarray]:
    """The save points of a stage, by the argument of their unit; `argument` is named in errors."""
    unit, points = "alpha", value
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in CLOCK_ARGUMENTS:
            names = ", ".join(CLOCK_ARGUMENTS)
            fix = f"give one of {names}, such as {{'times': [1.0, 2.0]}}"
            raise checks.reject(argument, value, fix)
        unit, points = next(iter(value.items()))
    points = checks.real_array(argument, points, "give the length of the stage, or its save points")
    if points.ndim == 0:
        length = checks.number(argument, float(points), above=0.0)
        points = np.linspace(0.0, length, STAGE_POINTS)
        points = np.unique(np.round(points)) if unit == "steps" else points
    return {unit: points}


def stage_seed(seed: int, index: int) -> int:
    """The seed of a stage: that of the call for the first one."""
    sequence = np.random.SeedSequence((seed, index))
    return seed if index == 0 else int(sequence.generate_state(1)[0])


def join_results(
    results: list[xr.Dataset],
    solver: str,
    coordinate: str,
    labels: Sequence[Any],
    records: Sequence[Mapping[str, Any]],
) -> xr.Dataset:
    """All stages along time, as one result with a coordinate of the stages.

    Parameters
    ----------
    results : list of Dataset
        Results of the stages.
    solver : str
        Name of the solver.
    coordinate : str
        Name of the coordinate, "stage" or "phase".
    labels : sequence
        Value of the coordinate in each stage.
    records : sequence of dict
        Entries of the record of a stage next to its problem and algorithm.
    """
    shifted, elapsed = [], dict.fromkeys(TIMES, 0.0)
    for label, result in zip(labels, _pad_units(results), strict=True):
        coordinates: dict[str, Any] = {}
        for name in TIMES:
            if name in result.coords:
                is_integer = result[name].dtype.kind == "i"
                shift = int(elapsed[name]) if is_integer else elapsed[name]
                coordinates[name] = result[name] + shift
                elapsed[name] = float(coordinates[name].values[-1])
        stage = np.full(result.sizes["time"], label)
        coordinates[coordinate] = ("time", stage, {"long_name": coordinate})
        shifted.append(result.assign_coords(coordinates).drop_attrs(deep=False))
    # Variables of some stages only are NaN in the others.
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
    method = f"{coordinate}s of {last.attrs.get('method', solver)}"
    attributes = _join_attributes(results, coordinate, records) | {"method": method}
    return joined.assign_coords(ends).assign_attrs(attributes)


def _pad_units(results: list[xr.Dataset]) -> list[xr.Dataset]:
    """Results whose students have the same number of units, filled up with NaN."""
    padded = list(results)
    for axis in UNEQUAL_AXES:
        sizes = [result.sizes[axis] for result in results if axis in result.sizes]
        largest = max(sizes, default=0)
        for index, result in enumerate(padded):
            missing = largest - result.sizes.get(axis, largest)
            if missing:
                attributes = {name: variable.attrs for name, variable in result.variables.items()}
                result = result.pad({axis: (0, missing)}, constant_values=np.nan)
                for name, attribute in attributes.items():
                    result[name].attrs = attribute
                padded[index] = result
    return padded


def _join_attributes(
    results: list[xr.Dataset], coordinate: str, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Attributes of the last stage, with the largest errors and the records of all stages."""
    attributes = dict(results[-1].attrs)
    for result in results:
        for name in result.attrs:
            if name.startswith("error_"):
                errors = [float(other.attrs[name]) for other in results if name in other.attrs]
                attributes[name] = max(errors)
    described = [
        {
            name: json.loads(result.attrs[name])
            for name in ("problem", "algorithm")
            if name in result.attrs
        }
        | dict(record)
        for result, record in zip(results, records, strict=True)
    ]
    clocks = {str(result.attrs["clock"]) for result in results if "clock" in result.attrs}
    attributes["clock"] = clocks.pop() if len(clocks) == 1 else "t"
    return attributes | {f"{coordinate}s": json.dumps(described)}


def _fill_missing(variable: xr.DataArray, result: xr.Dataset) -> xr.DataArray:
    """NaN in place of a variable of another stage."""
    sizes = [result.sizes.get(name, variable.sizes[name]) for name in variable.dims]
    return xr.DataArray(np.full(sizes, np.nan), dims=variable.dims, attrs=variable.attrs)
