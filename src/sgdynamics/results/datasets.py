"""Parts that all results share: coordinates of time, the record of provenance, relative errors."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from typing import Any, Protocol

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedTensor
from sgdynamics.results.clock import Clock
from sgdynamics.results.records import algorithm_from, problem_from
from sgdynamics.results.variables import TIMES
from sgdynamics.version import __version__

# Arguments of a Dataset, where many results are needed: building one takes as long as many a
# solution.
ResultParts = namedtuple("ResultParts", ("variables", "coords", "attrs"))
# Relative to the largest risk of a result: smaller risks, being differences, are rounding errors.
ROUNDING = 1e-12


def time_name(divisor: str) -> str:
    """The long name of the coordinate t, t = lr steps/divisor."""
    return f"time t = lr steps/{divisor}" if divisor else "time t = lr steps"


def time_coordinates(
    clock: Clock, diverged_at: np.ndarray, d: str = "d", ran_out_at: np.ndarray | None = None
) -> dict[str, Any]:
    """Coordinates of time in all units that are defined, and of the ends of runs.

    `d` is the symbol of the dimension. `ran_out_at` is left out if no integrator ran out of steps.
    """

    def coordinate(axis: str, values: np.ndarray, meaning: str) -> tuple[Any, ...]:
        return axis, values, {"long_name": meaning}

    name = time_name(d if clock.divisor == "d" else clock.divisor)
    diverged = "last finite time of a run that diverged"
    coordinates = {
        "t": coordinate("time", clock.t, name),
        "diverged_at": coordinate("run", diverged_at, diverged),
    }
    if ran_out_at is not None and np.any(np.isfinite(ran_out_at)):
        ran_out = "last time reached by a run whose integrator ran out of steps"
        coordinates["ran_out_at"] = coordinate("run", ran_out_at, ran_out)
    if clock.alpha is not None and clock.samples:
        coordinates["alpha"] = coordinate("time", clock.alpha, f"samples/{d}")
    if clock.step is not None:
        coordinates["step"] = coordinate("time", clock.step, "steps")
    if clock.epoch is not None:
        coordinates["epoch"] = coordinate("time", clock.epoch, "epochs")
    return coordinates


def requested_clock(result: xr.Dataset) -> str:
    """The coordinate in which a result's save points were requested: "t", "alpha" or "step".

    Tables and pictures show it first. Results without the attribute `clock` (of older files, or
    changed by hand) and without that coordinate have "t".
    """
    name = str(result.attrs.get("clock", "t"))
    return name if name in TIMES and name in result.coords else "t"


class RecordSource(Protocol):
    """A problem or a user's dynamics, which records itself as plain values."""

    def describe(self) -> dict[str, Any]: ...


def record(
    problem: RecordSource,
    algorithm: OnePassSGD | FixedData,
    method: str,
    attributes: dict[str, Any],
) -> dict[str, Any]:
    """Attributes of a result, with its provenance.

    Attributes that are None are left out, because netCDF has no None.
    """
    return {name: value for name, value in attributes.items() if value is not None} | {
        "problem": encode(problem.describe()),
        "algorithm": encode(algorithm.describe()),
        "method": method,
        "version": __version__,
    }


def largest_share(difference: np.ndarray, value: np.ndarray) -> float:
    """The largest |difference| / |value| where it is finite: a relative error of a result.

    Values below 1e-12 of the largest are rounding errors and count as 1e-12 of the largest.
    """
    size = np.abs(value)
    smallest = ROUNDING * np.max(size[np.isfinite(size)], initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(difference) / np.maximum(size, smallest)
    return float(np.max(share[np.isfinite(share)], initial=0.0))


def encode(value: object) -> str:
    """JSON of plain values. Infinities and NaN become strings that float() reads.

    Strict JSON has no such numbers, and not every reader accepts Python's extension.
    """
    return json.dumps(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(argument: str, text: object) -> dict[str, Any]:
    """The record that `encode` wrote; ValueError if it has been damaged since."""
    try:
        values = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        fix = (
            "this is not the JSON of a record that the library wrote: the file has been changed "
            "or damaged"
        )
        raise checks.reject(argument, text, fix)
    return values


def problem_of(result: xr.Dataset) -> Problem | SpikedTensor:
    """Rebuild the problem that a result records.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver, or of ``sgd.load``.

    Returns
    -------
    Problem or SpikedTensor
        A problem equal to the one that was solved.

    Raises
    ------
    ValueError
        If the result has no record, if the record has been damaged, or if it names a function of
        the user, which cannot be rebuilt.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> sgd.problem_of(result) == problem
    True
    """
    return problem_from(read_record(result, "problem"))


def algorithm_of(result: xr.Dataset) -> OnePassSGD | FixedData | Workers:
    """Rebuild the algorithm that a result records.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver, or of ``sgd.load``.

    Returns
    -------
    OnePassSGD, GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
        An algorithm equal to the one that was used.

    Raises
    ------
    ValueError
        If the result has no record, if the record has been damaged, or if it names a function of
        the user, which cannot be rebuilt.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> sgd.algorithm_of(result)
    OnePassSGD(lr=0.1, batch=1, head_rate=1.0, update=None, per='dimension', temperature=0.0)
    """
    return algorithm_from(read_record(result, "algorithm"))


def read_record(result: xr.Dataset, name: str) -> dict[str, Any]:
    """The record in an attribute of a result."""
    fix = "give a Dataset that this library made"
    checks.result("result", result, fix=fix)
    if name not in result.attrs:
        raise checks.reject("result", list(result.attrs), f"it has no attribute {name!r}: {fix}")
    return decode(f"the result's attribute {name}", result.attrs[name])
