"""States in results: initial conditions from a save point, overlaps along a trajectory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.resources import check_memory
from sgdynamics.problems.overlap_starts import AuxiliaryState, Start
from sgdynamics.problems.spiked_tensor import SpikedStart
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.datasets import read_record
from sgdynamics.results.reduced import require_runs
from sgdynamics.results.variables import TOP_PREFIX

Axes = dict[str, tuple[str, ...]]
# Kinds of networks whose weights are not recorded, by a variable of their results.
WITHOUT_STATES = {
    "tangent_kernel": "a wide",
    "imbalance": "a diagonal",
    "squared_norm": "a deep linear",
}


def start_from(result: xr.Dataset, time: int | float = -1) -> Any:
    """Initial condition from a save point of a result, to continue from there.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver.
    time : int or float, default -1
        Save point: an int is an index (-1 for the last), a float is a time t, of which the nearest
        save point is taken.

    Returns
    -------
    Start, MeanFieldStart, SpikedStart or dict
        The state at the save point, of the kind of the result; a dictionary of arrays for a
        user-defined dynamics.

    Raises
    ------
    ValueError
        If there is no such save point, or if runs have diverged by then.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> sgd.start_from(result, time=0).M.round(3).tolist()
    [[[0.566], [0.189]]]
    """
    checks.result("result", result, "time", "run", "t")
    require_runs(result)
    for variable, kind in WITHOUT_STATES.items():
        if variable in result:
            fix = f"the weights of {kind} network are not recorded. Solve again with more steps."
            raise checks.reject("result", f"of {kind} network", fix)
    point = result.isel(time=_find_save_point(result, time))
    kind, values = _read_states(point, ("run",))
    finite = [np.isfinite(value).reshape(len(value), -1).all(axis=1) for value in values.values()]
    is_diverged = ~np.all(finite, axis=0)
    if is_diverged.any():
        runs = np.flatnonzero(is_diverged).tolist()
        raise ValueError(
            f"runs {runs} have diverged by then: drop them with result.isel(run=...) first"
        )
    if kind is None:
        return values
    start = kind(*values.values())
    return replace(start, beside=_read_update_state(point, start)) if kind is Start else start


def _find_save_point(result: xr.Dataset, time: int | float) -> int:
    """The index of a save point, from the argument `time` of `start_from`."""
    count = result.sizes["time"]
    if isinstance(time, (int, np.integer)) and not isinstance(time, bool):
        if not -count <= time < count:
            fix = f"the result has {count} save points: give -{count}..{count - 1}"
            raise checks.reject("time", time, fix)
        return int(time)
    time = checks.number("time", time)
    times = np.asarray(result["t"])
    if not len(times):
        raise checks.reject("time", time, "no save points")
    if not times[0] <= time <= times[-1]:
        fix = f"the result runs from t = {times[0]:g} to {times[-1]:g}"
        raise checks.reject("time", time, fix)
    return int(np.argmin(np.abs(times - time)))


def _read_update_state(point: xr.Dataset, start: Start) -> AuxiliaryState | None:
    """The internal state of an update at one save point; None if the result has none."""
    if not {"rows_a", "update_scalars", "update_squares", "update_vectors"} & set(point.variables):
        return None
    runs, width = start.a.shape[0], start.Q.shape[-1]
    is_blockwise = "M_block" in point
    suffix, blocks = ("_block", ("block",)) if is_blockwise else ("", ())

    def names(axis: str) -> tuple[str, ...]:
        return tuple(str(name) for name in point[axis].values) if axis in point.coords else ()

    scalars, squares = np.zeros((runs, 0)), np.zeros((runs, 0, width))
    if "update_scalars" in point:
        scalars = _read_variable(point, "update_scalars", ("run", "update_scalar"))
    if "update_squares" in point:
        squares = _read_variable(point, "update_squares", ("run", "update_square", "unit"))
    variable_names = (names("update_scalar"), names("update_square"))
    vectors = None
    if "update_vectors" in point:
        vectors = _read_variable(point, "update_vectors", ("run", "update_vector", "head_entry"))
    memory = (scalars, squares, vectors, names("update_vector"))
    if "rows_a" not in point:
        rows = (start.M_blocks, start.Q_blocks, start.a)
        return AuxiliaryState(((), *variable_names), *rows, *memory)
    # The first set of rows are the weights; the name of a set is repeated for each unit.
    sets = tuple(str(name) for name in point["row_set"].values[width::width])
    M = _read_variable(point, f"rows_M{suffix}", ("run", *blocks, "set_row", "signal"))
    Q = _read_variable(point, f"rows_Q{suffix}", ("run", *blocks, "set_row", "set_row_other"))
    # The numbers of a top belong to no row.
    entry = "set_entry" if "set_entry" in point["rows_a"].dims else "set_row"
    a = _read_variable(point, "rows_a", ("run", entry))
    M, Q = (M, Q) if is_blockwise else (M[:, None], Q[:, None])
    return AuxiliaryState((sets, *variable_names), M, Q, a, *memory)


def _read_states(
    result: xr.Dataset, leading_axes: tuple[str, ...]
) -> tuple[Any, dict[str, np.ndarray]]:
    """The class of a start and the states of a result, with overlaps by block."""
    kind, axes = _state_axes(result)
    checks.result("result", result, *axes)
    values = {
        name: _read_variable(result, name, (*leading_axes, *dims)) for name, dims in axes.items()
    }
    if kind is not Start:
        return kind, values
    count = len(leading_axes)
    values = _join_leaves(values, count)
    if "M" in values:  # one block, which results leave out
        values = {
            name: value if name == "a" else np.expand_dims(value, count)
            for name, value in values.items()
        }
    # heads of contexts side by side
    values["a"] = values["a"].reshape(*values["a"].shape[:count], -1)
    return kind, values


def field_states(result: xr.Dataset, gram: np.ndarray) -> dict[str, np.ndarray]:
    """The states M, Q (by block) and a of a problem of fields, with axes (run, time) first.

    Particles of the mean-field limit are rows that are orthogonal to each other outside of the
    signals, whose Gram matrix is `gram`. `alpha` (on fixed data t) is the argument of schedules of
    the problem.
    """
    checks.result("result", result, "time", "run", "t")
    kind, values = _read_states(result, ("run", "time"))
    if kind not in (Start, MeanFieldStart):
        fix = "its states have no fields: give a result of a problem of fields"
        raise checks.reject("result", result.attrs.get("method"), fix)
    M, second, a = values.values()
    if kind is MeanFieldStart:
        M, second = _particle_overlaps(M, second, gram)
    is_fixed_data = "samples_per_dimension" in read_record(result, "algorithm")
    unit = "t" if is_fixed_data or "alpha" not in result.coords else "alpha"
    points = np.asarray(result[unit], dtype=np.float64)
    return {"M": M, "Q": second, "a": a, "alpha": np.broadcast_to(points, a.shape[:2])}


def _particle_overlaps(
    M: np.ndarray, q: np.ndarray, gram: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps of particles of squared length q outside the signals: Q = M P^-1 M^T + diag q."""
    fix = "take fewer units, runs or times"
    check_memory("result", q.shape, 8.0 * q.size * q.shape[-1], "their overlaps", fix)
    inside = M @ np.linalg.solve(gram[0], np.swapaxes(M, -1, -2))
    Q = inside + q[..., None] * np.eye(M.shape[-2])
    return M[:, :, None], Q[:, :, None]


def _state_axes(result: xr.Dataset) -> tuple[Any, Axes]:
    """The class of a start, and the axes of its variables in a result.

    The class is None for a user-defined dynamics, whose state are all its variables.
    """
    if "r2" in result:
        return SpikedStart, {"m": (), "r2": ()}
    has_fields = "M" in result or "a" in result or "top" in result.attrs
    if not has_fields and len(result) > 1:
        recorded = str(result.attrs.get("recorded", "")).split()
        derived = ("risk", "evaluated_risk", *recorded)
        return None, {
            str(name): tuple(map(str, variable.dims[2:]))
            for name, variable in result.items()
            if name not in derived
        }
    if "q" in result:
        return MeanFieldStart, {"M": ("unit", "signal"), "q": ("unit",), "a": ("unit",)}
    blocks, suffix = (("block",), "_block") if "M_block" in result else ((), "")
    axes: Axes = {
        f"M{suffix}": (*blocks, "unit", "signal"),
        f"Q{suffix}": (*blocks, "unit", "unit_other"),
    }
    leaves = leaf_names(result)
    if leaves:
        own = {name: tuple(map(str, result[name].dims)) for name in leaves if name in result}
        lead = ("run", "time")
        return Start, axes | {
            name: tuple(axis for axis in own.get(name, ()) if axis not in lead) for name in leaves
        }
    heads = ("context", "unit") if "context" in result["a"].dims else ("unit",)
    return Start, axes | {"a": heads}


def leaf_names(result: xr.Dataset) -> list[str]:
    """The names of the variables that are the leaves of a top, in order; empty for a head."""
    return [f"{TOP_PREFIX}{name}" for name in str(result.attrs.get("top", "")).split()]


def head_of(result: xr.Dataset, suffix: str = "") -> np.ndarray:
    """The head (run, time, unit) of a result, or all leaves of its top in one last axis.

    `suffix` is that of the variables to read, such as that of standard errors.
    """
    names = leaf_names(result)
    if not names:
        return np.asarray(result[f"a{suffix}"])
    values = {name: np.asarray(result[f"{name}{suffix}"]) for name in names}
    return _join_leaves(values, 2)["a"]


def _join_leaves(values: dict[str, np.ndarray], leading_axes: int) -> dict[str, np.ndarray]:
    """Replace the leaves of a top by "a", one vector with all their entries."""
    leaves = [name for name in values if name.startswith(TOP_PREFIX)]
    if not leaves:
        return values
    joined = {name: value for name, value in values.items() if name not in leaves}
    vectors = [values[name].reshape(*values[name].shape[:leading_axes], -1) for name in leaves]
    return joined | {"a": np.concatenate(vectors, axis=-1)}


def _read_variable(point: xr.Dataset, name: str, dims: tuple[str, ...]) -> np.ndarray:
    """A variable, after a check of its axes."""
    if point[name].dims != dims:
        fix = f"it has the axes {dims} in a result of this library"
        raise checks.reject(f"result.{name}", point[name].dims, fix)
    return checks.real_array(f"result.{name}", point[name].values, "give numbers")
