"""Results: an `xarray.Dataset` with labelled dimensions, every time unit that is defined, and its provenance."""

from __future__ import annotations

import io
import json
import math
import os
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks, files
from sgdynamics.base.resources import check_memory
from sgdynamics.problems.overlap_starts import AuxiliaryState, Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.clock import Clock
from sgdynamics.results.records import algorithm_from, problem_from
from sgdynamics.results.variables import TIMES
from sgdynamics.version import __version__

# what a Dataset is made of, where many are needed: to make one takes as long as many a solution
Parts = namedtuple("Parts", ("variables", "coords", "attrs"))


def trajectory(
    dynamics: Any,
    clock: Clock,
    values: Mapping[str, np.ndarray],
    *,
    method: str,
    attributes: dict[str, Any],
    diverged_at: np.ndarray,
    ran_out_at: np.ndarray | None = None,
    made: Any = xr.Dataset,
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The Dataset of a solve or a simulation of a dynamics, from its variables with axes (run, time, ...); or its `Parts`.

    `more` are variables and coordinates with their axes, as a Dataset takes them.
    """
    labels = dynamics.labels(values)
    variables = {}
    for name, value in values.items():
        meaning, axes = labels.variables[name][:2]
        variables[name] = (("run", "time", *axes), value, {"long_name": meaning})
    coordinates = time_coordinates(clock, diverged_at, dynamics.dimension_symbol, ran_out_at)
    attributes = attributes | {"clock": clock.requested}
    for name, part in (more or {}).items():
        (variables if part[0][:1] == ("run",) else coordinates)[name] = part
    # many answers of one definition need not each say what it is
    attributes = (
        record(dynamics.problem, dynamics.algorithm, method, attributes)
        if made is xr.Dataset
        else attributes | {"method": method}
    )
    return made(variables, coordinates | labels.coordinates, attributes)


def time_name(divisor: str) -> str:
    """The long name of the coordinate t, t = lr steps/divisor."""
    return f"time t = lr steps/{divisor}" if divisor else "time t = lr steps"


def time_coordinates(
    clock: Clock, diverged_at: np.ndarray, d: str = "d", ran_out_at: np.ndarray | None = None
) -> dict[str, Any]:
    """Every unit of time that is defined, where runs diverged, and where an integrator ran out of steps, if any.

    `d` is the symbol of the dimension.
    """
    coordinates: dict[str, Any] = {
        "t": (
            "time",
            clock.t,
            {"long_name": time_name(d if clock.divisor == "d" else clock.divisor)},
        ),
        "diverged_at": (
            "run",
            diverged_at,
            {"long_name": "last finite time of a run that diverged"},
        ),
    }
    if ran_out_at is not None and np.any(np.isfinite(ran_out_at)):
        coordinates["ran_out_at"] = (
            "run",
            ran_out_at,
            {"long_name": "last time reached by a run whose integrator ran out of steps"},
        )
    if clock.alpha is not None and clock.samples:
        coordinates["alpha"] = ("time", clock.alpha, {"long_name": f"samples/{d}"})
    if clock.step is not None:
        coordinates["step"] = ("time", clock.step, {"long_name": "steps"})
    if clock.epoch is not None:
        coordinates["epoch"] = ("time", clock.epoch, {"long_name": "epochs"})
    return coordinates


def requested_clock(result: xr.Dataset) -> str:
    """The coordinate in which a result's save points were requested: "t", "alpha" or "step".

    Tables and pictures show it first. Results without the attribute `clock` (of older files, or
    changed by hand) and without that coordinate have "t".
    """
    name = str(result.attrs.get("clock", "t"))
    return name if name in TIMES and name in result.coords else "t"


def record(
    problem: Any, algorithm: OnePassSGD | FixedData, method: str, attributes: dict[str, Any]
) -> dict[str, Any]:
    """Where a result comes from; netCDF knows no None and no bool: what is not defined is left out."""
    return {name: value for name, value in attributes.items() if value is not None} | {
        "problem": encode(problem.describe()),
        "algorithm": encode(algorithm.describe()),
        "method": method,
        "version": __version__,
    }


ROUNDING = 1e-12  # of the largest risk of a result: below that share a risk, being a difference, is rounding


def largest_share(difference: Any, value: Any) -> float:
    """The largest |difference| / |value| over what is finite: a relative error for the record of a result.

    Values below 1e-12 of the largest are rounding: there the difference counts relative to that.
    """
    size = np.abs(value)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(difference) / np.maximum(
            size, ROUNDING * np.max(size[np.isfinite(size)], initial=0.0)
        )
    return float(np.max(share[np.isfinite(share)], initial=0.0))


def encode(value: Any) -> str:
    """JSON of plain values; infinities and NaN become strings that float() reads, so that every JSON reader accepts it."""
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def problem_of(result: xr.Dataset) -> Problem | SpikedTensor:
    """The problem that a result records, made again.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver of this library returned, or ``sgd.load``.

    Returns
    -------
    Problem or SpikedTensor
        Equal to the one that was solved.

    Raises
    ------
    ValueError
        If there is no record, it has been damaged, or it names a user's function, which cannot be made again.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> sgd.problem_of(result) == problem
    True
    """
    return problem_from(_recorded(result, "problem"))


def algorithm_of(result: xr.Dataset) -> OnePassSGD | FixedData:
    """The algorithm that a result records, made again.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver of this library returned, or ``sgd.load``.

    Returns
    -------
    OnePassSGD, GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
        Equal to the one that was used.

    Raises
    ------
    ValueError
        If there is no record, it has been damaged, or it names a user's function, which cannot be made again.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> sgd.algorithm_of(result)
    OnePassSGD(lr=0.1, batch=1, head_rate=1.0, update=None, per='dimension', temperature=0.0)
    """
    return algorithm_from(_recorded(result, "algorithm"))


def _recorded(result: Any, name: str) -> dict[str, Any]:
    """The record in an attribute of a result."""
    fix = "give a Dataset that this library made"
    checks.result("result", result, fix=fix)
    if name not in result.attrs:
        raise checks.reject("result", list(result.attrs), f"it has no attribute {name!r}: {fix}")
    return decode(f"the result's attribute {name}", result.attrs[name])


def decode(argument: str, text: Any) -> dict[str, Any]:
    """The record that `encode` wrote; refuse what has been damaged since."""
    fix = "this is not the JSON of a record that the library wrote: the file has been changed or damaged"
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise checks.reject(argument, text, fix)
    return found


def start_from(result: xr.Dataset, time: int | float = -1) -> Any:
    """Go on from where a result ended.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver returned.
    time : int or float, default -1
        An int counts save points (-1: the last), a float is a time t (the nearest save point).

    Returns
    -------
    Start, MeanFieldStart, SpikedStart or dict
        The state there as a start, of the result's kind (a dictionary of arrays for a dynamics of one's own).

    Raises
    ------
    ValueError
        If there is no such save point, or runs have diverged by then.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> sgd.start_from(result, time=0).M.round(3).tolist()
    [[[0.566], [0.189]]]
    """
    checks.result("result", result, "time", "run", "t")
    count = result.sizes["time"]
    if isinstance(time, (int, np.integer)) and not isinstance(time, bool):
        if not -count <= time < count:
            raise checks.reject(
                "time", time, f"the result has {count} save points: give -{count}..{count - 1}"
            )
        index = int(time)
    else:
        time = checks.number("time", time)
        times = np.asarray(result["t"])
        if not len(times) or not times[0] <= time <= times[-1]:
            raise checks.reject(
                "time",
                time,
                f"the result runs from t = {times[0]:g} to {times[-1]:g}"
                if len(times)
                else "no save points",
            )
        index = int(np.argmin(np.abs(times - time)))
    kind, values = _states_of(result.isel(time=index), ("run",))
    bad = ~np.all(
        [np.isfinite(value).reshape(len(value), -1).all(axis=1) for value in values.values()],
        axis=0,
    )
    if bad.any():
        raise ValueError(
            f"runs {np.flatnonzero(bad).tolist()} have diverged by then: drop them with result.isel(run=...) first"
        )
    if kind is None:
        return values
    found = kind(*values.values())
    return (
        replace(found, beside=_beside(result.isel(time=index), found)) if kind is Start else found
    )


def _beside(point: xr.Dataset, begin: Start) -> AuxiliaryState | None:
    """What an update kept beside the weights, at one save point."""
    if not {"rows_a", "update_scalars", "update_squares"} & set(point.variables):
        return None
    p, tail = begin.a.shape[1], "_block" if "M_block" in point else ""
    names = tuple(
        tuple(str(one) for one in point[axis].values) if axis in point.coords else ()
        for axis in ("update_scalar", "update_square")
    )
    if "rows_a" in point:
        sets = tuple(str(one) for one in point["row_set"].values[p::p])
        blocks = ("block",) if tail else ()
        M = _values(point, f"rows_M{tail}", ("run", *blocks, "set_row", "signal"))
        Q = _values(point, f"rows_Q{tail}", ("run", *blocks, "set_row", "set_row_other"))
        a = _values(point, "rows_a", ("run", "set_row"))
        M, Q = (M, Q) if tail else (M[:, None], Q[:, None])
    else:
        sets, M, Q, a = (), begin.M_blocks, begin.Q_blocks, begin.a
    scalars = (
        _values(point, "update_scalars", ("run", "update_scalar"))
        if "update_scalars" in point
        else np.zeros((begin.runs, 0))
    )
    squares = (
        _values(point, "update_squares", ("run", "update_square", "unit"))
        if "update_squares" in point
        else np.zeros((begin.runs, 0, p))
    )
    return AuxiliaryState((sets, *names), M, Q, a, scalars, squares)


def _states_of(result: xr.Dataset, lead: tuple[str, ...]) -> tuple[Any, dict[str, np.ndarray]]:
    """The states of a result, arrays with these leading axes, overlaps block by block; and what a start of them is."""
    kind, axes = _start_form(result)
    checks.result("result", result, *axes)
    values = {name: _values(result, name, (*lead, *dims)) for name, dims in axes.items()}
    if kind is Start and "M" in values:  # one block
        values = {
            name: np.expand_dims(value, len(lead)) if name != "a" else value
            for name, value in values.items()
        }
    if kind is Start:  # heads of contexts side by side
        values["a"] = values["a"].reshape(*values["a"].shape[: len(lead)], -1)
    return kind, values


def field_states(result: xr.Dataset, gram: np.ndarray) -> dict[str, np.ndarray]:
    """The states M, Q (block by block) and a of a result of fields, with axes (run, time) first.

    Particles are rows that are orthogonal outside of the signals, whose Gram matrix is `gram`. `alpha` (on fixed data t) is where numbers
    of a problem are read that depend on it.
    """
    checks.result("result", result, "time", "run", "t")
    kind, values = _states_of(result, ("run", "time"))
    if kind not in (Start, MeanFieldStart):
        raise checks.reject(
            "result",
            result.attrs.get("method"),
            "its states have no fields: give a result of a problem of fields",
        )
    M, second, a = values.values()
    if kind is MeanFieldStart:
        check_memory(
            "result",
            second.shape,
            8.0 * second.size * second.shape[-1],
            "their overlaps",
            "take fewer units, runs or times",
        )
        along = M @ np.linalg.solve(gram[0], np.swapaxes(M, -1, -2))
        M, second = M[:, :, None], (along + second[..., None] * np.eye(M.shape[-2]))[:, :, None]
    fixed_data = "samples_per_dimension" in _recorded(result, "algorithm")
    when = result["t" if fixed_data or "alpha" not in result.coords else "alpha"]
    return {
        "M": M,
        "Q": second,
        "a": a,
        "alpha": np.broadcast_to(np.asarray(when, dtype=np.float64), a.shape[:2]),
    }


def _start_form(result: xr.Dataset) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """What a start is made of, from the variables of a result and their axes; None for a dynamics of one's own, whose variables it is."""
    if "r2" in result:
        return SpikedStart, {"m": (), "r2": ()}
    if "M" not in result and "a" not in result and len(result) > 1:
        beside = ("risk", "evaluated_risk", *str(result.attrs.get("recorded", "")).split())
        return None, {
            str(name): tuple(map(str, part.dims[2:]))
            for name, part in result.items()
            if name not in beside
        }
    if "q" in result:
        return MeanFieldStart, {"M": ("unit", "signal"), "q": ("unit",), "a": ("unit",)}
    blocks, tail = (("block",), "_block") if "M_block" in result else ((), "")
    heads = ("context", "unit") if "context" in result["a"].dims else ("unit",)
    return Start, {
        f"M{tail}": (*blocks, "unit", "signal"),
        f"Q{tail}": (*blocks, "unit", "unit_other"),
        "a": heads,
    }


def _values(point: xr.Dataset, name: str, dims: tuple[str, ...]) -> np.ndarray:
    """A variable with the axes that this library gives it."""
    if point[name].dims != dims:
        raise checks.reject(
            f"result.{name}",
            point[name].dims,
            f"it has the axes {dims} in a result of this library's",
        )
    return checks.real_array(f"result.{name}", point[name].values, "give numbers")


def save(result: xr.Dataset | Mapping[str, xr.Dataset], path: str | os.PathLike[str]) -> Path:
    """Write a result as NetCDF, or several by name as groups of one file.

    The file is written under a temporary name and renamed, so that it is complete or absent. It ends with a checksum, which ``sgd.load``
    verifies.

    Parameters
    ----------
    result : xarray.Dataset or mapping of str to xarray.Dataset
        One result, or several by name.
    path : str or path
        The file; its folder must exist. A file of that name is replaced.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If there is no result, a name is no plain text, or the path is a folder or in none.
    OSError
        If the disk is full; the message names the folder, the size of the file and the free space.

    Examples
    --------
    >>> import tempfile, xarray
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = sgd.save({"theory": xarray.Dataset({"x": 1.0})}, f"{folder}/results.nc")
    ...     print(float(sgd.load(file, "theory")["x"]))
    1.0
    """
    # a Dataset is a mapping too, of its variables
    parts = (
        dict(result)
        if isinstance(result, Mapping) and not isinstance(result, xr.Dataset)
        else {None: result}
    )
    if not parts:
        raise checks.reject("result", result, "give one result at least")
    for name, part in parts.items():
        if not isinstance(part, xr.Dataset):
            raise checks.reject("result", part, "give a result (a Dataset), or several by name")
        plain = (
            isinstance(name, str)
            and name.strip()
            and name not in (".", "..")
            and not any(one in name for one in "/\0")
        )
        if name is not None and not plain:
            raise checks.reject(
                "group",
                name,
                "the name of a result in a file is plain text, without a slash, and not . or ..",
            )
    target = checks.path("path", path)
    if target.is_dir():
        raise checks.reject("path", str(path), "this is a folder: give the name of a file")
    if not target.parent.is_dir():
        raise checks.reject("path", str(path), "the folder does not exist: make it first")
    files.write(target, netcdf(parts), seal=True)
    return target


def netcdf(parts: Mapping[Any, xr.Dataset]) -> memoryview:
    """The content of a NetCDF file with results by name (None: the only one), made in memory: HDF5 does not survive a full disk."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        for name, part in parts.items():
            part.dump_to_store(H5NetCDFStore(file, group=name))
    return content.getbuffer()


def load(path: str | os.PathLike[str], group: str | None = None) -> xr.Dataset:
    """Read a result that ``sgd.save`` wrote.

    Parameters
    ----------
    path : str or path
        The file.
    group : str, optional
        The name of the result in a file of several; left out where there is one.

    Returns
    -------
    xarray.Dataset
        In memory; the file is closed.

    Raises
    ------
    ValueError
        If the file does not exist, is damaged, or has several results and none is named.

    Examples
    --------
    >>> import tempfile, xarray
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = sgd.save(xarray.Dataset({"x": 1.0}), f"{folder}/result.nc")
    ...     print(float(sgd.load(file)["x"]))
    1.0
    """
    return read_file(path, group)


def read_file(
    path: str | os.PathLike[str], group: str | None = None, sealed: bool = False
) -> xr.Dataset:
    """The result in a file; a file that must be `sealed` has a checksum."""
    names = groups_in(path, sealed=sealed)
    if group is not None:
        checks.choice("group", group, names)
    elif names:
        raise checks.reject(
            "group",
            None,
            f"{path} has several results: choose one of {', '.join(map(repr, names))}",
        )
    try:
        with xr.open_dataset(checks.path("path", path), engine="h5netcdf", group=group) as stored:
            return stored.load()
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged file can make the libraries below fail in any way
        raise checks.reject(
            "path",
            str(path),
            f"this file cannot be read, it is damaged or no result ({checks.reason(error)})",
        ) from None


def groups_in(
    path: str | os.PathLike[str], argument: str = "path", sealed: bool = False
) -> list[str]:
    """The names of the results in a file of several, none in a file of one; damaged files are rejected as `argument`."""
    import h5py

    file = checks.path(argument, path)
    if not file.is_file():
        raise checks.reject(
            argument,
            str(path),
            "this is a folder: give a file" if file.is_dir() else "no such file",
        )
    try:
        files.check_seal(file, required=sealed)
    except (files.DamagedFile, OSError) as error:
        fix = f"this file is damaged or cannot be read ({checks.reason(error)}). Restore it from a copy, or compute it again"
        raise checks.reject(argument, str(path), fix) from None
    try:
        with h5py.File(file) as content:
            return [name for name, part in content.items() if isinstance(part, h5py.Group)]
    except (OSError, RuntimeError, KeyError, ValueError, UnicodeDecodeError):
        raise checks.reject(
            argument, str(path), "this is no NetCDF file, or it is not whole"
        ) from None
