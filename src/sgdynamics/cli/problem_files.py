"""Problem files (TOML) and stored results (NetCDF), translated into solver calls.

Every key is checked before anything is computed. The tables of a problem file are

    [problem], [algorithm]   records, as in `sgdynamics.results.records`
    [start]                  {kind = "random", seed = 0, ...}, the default, or overlaps
                             {M = ..., Q = ...}; a random start without a dimension has that of
                             the command's table, else that of [run], else that of the spectrum
    [run]                    methods, one of times, alpha and steps, and dimension, runs, seed;
                             [run.ode], [run.exact], ...: further arguments of one method
    [[stages]]               the stages of `sgd.stages`, in place of the save points of [run]
                             (`cli.stage_tables`)
    [exit_time], [hessian]   arguments of `exit_time` (with methods) and `hessian_spectrum`
    [sweep], [sweep.over]    a solver, its arguments, and the parameters to vary

Save points and varied parameters are lists, or ranges
{from = 0, to = 4, points = 21, spacing = "linear" | "log"}.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from sgdynamics.algorithms.amp import AMP
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.workers import Workers
from sgdynamics.analysis import exit_times
from sgdynamics.analysis.landscape import hessian_spectrum
from sgdynamics.base import checks, registry
from sgdynamics.base.files import read_toml, require_file
from sgdynamics.base.registry import CLOCKS, RUN_KEYS, Method
from sgdynamics.cli.stage_tables import STAGE_METHODS, stages_from
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.results.datasets import decode, encode
from sgdynamics.results.records import STATING_START, algorithm_from, problem_from, start_of
from sgdynamics.results.states import start_from
from sgdynamics.results.storage import groups_in, load
from sgdynamics.solvers.stage_plan import Stage
from sgdynamics.solvers.stages import stages as solve_stages

TABLES = (
    "title",
    "problem",
    "algorithm",
    "start",
    "run",
    "exit_time",
    "hessian",
    "sweep",
    "stages",
)
MAX_STATEMENT_LENGTH = 50_000  # characters; HDF5 limits attributes to 64 kB
# Attributes of a result that are arguments of the solver which made it.
RECORDED_ARGUMENTS = (
    "dimension",
    "seed",
    "dtype",
    "paths",
    "replicates",
    "tolerance",
    "higher_order",
    "cells",
    "memory_directions",
    "keep",
    "form",
)


@dataclass(frozen=True)
class RunPlan:
    """The solver calls of a file.

    Attributes
    ----------
    record : dict
        The contents of the file as plain values.
    problem, algorithm, start : object
        Arguments of a solver, made from the records of the file.
    save_points : dict
        The clock of the save points (times, alpha or steps) and their values.
    calls : dict of str to dict
        The other arguments of each method.
    stages : list of Stage or None
        The stages, for `sgd.stages`; None for a single one.
    """

    record: dict[str, Any]
    problem: Problem | SpikedTensor
    algorithm: OnePassSGD | FixedData | Workers
    start: Start | MeanFieldStart | SpikedStart | dict[str, Any] | None
    save_points: dict[str, Any]
    calls: dict[str, dict[str, Any]]
    stages: list[Stage] | None = None


def is_random(method: str) -> bool:
    """Whether the runs of a method scatter; other methods, and unknown ones, are theory."""
    entry = registry.methods().get(method)
    return entry is not None and entry[1].is_random


def method_of(result: xr.Dataset) -> str:
    """The name in problem files of the method that made a result."""
    return registry.method_name(str(result.attrs.get("method", "result")))


# Reading files


def read(path: str | Path) -> dict[str, Any]:
    """Read the record of a TOML file, or the record that a result (.nc) was made from."""
    file = require_file(path)
    if file.suffix == ".nc":
        return next(iter(statements(file)))
    record = read_toml(file)
    checks.reject_unknown("the file", record, TABLES)
    for name in TABLES[1:-1]:
        if not isinstance(record.get(name, {}), Mapping):
            raise checks.reject(
                name, record[name], f"this must be a table. Write [{name}] with its keys below it."
            )
    for name in ("problem", "algorithm"):
        if name not in record:
            raise ValueError(f"{path}: the table [{name}] is missing.")
    return record


def statements(path: str | Path) -> list[dict[str, Any]]:
    """The records that the results in a NetCDF file were made from, without repetitions."""
    records = [_statement(result) for result in results_in(path).values()]
    return list({encode(record): record for record in records}.values())


def results_in(path: str | Path) -> dict[str, xr.Dataset]:
    """The results in a NetCDF file by name; a single result has the name of its method."""
    results = {name: load(path, group=name) for name in groups_in(path, "file")}
    if not results:
        result = load(path)
        results = {method_of(result): result}
    for name, result in results.items():
        source = f"{path}, group {name}" if len(results) > 1 else str(path)
        if "failed" in result:
            raise checks.reject(
                "file",
                source,
                "this is a sweep. Select one of its points and save it, or use the problem file "
                "of the sweep.",
            )
        if "t" not in result.coords or "method" not in result.attrs:
            raise checks.reject(
                "file",
                source,
                "this is not a trajectory of this library. Use a file that sgd.save or "
                "sgdynamics run has written.",
            )
    return results


def _statement(result: xr.Dataset) -> dict[str, Any]:
    """The record that reproduces a result.

    A result of the command line stores it. For other results it is rebuilt from their attributes,
    save points and first state.
    """
    if "statement" in result.attrs:
        return decode("the result's attribute statement", result.attrs["statement"])
    name = method_of(result)
    checks.choice("the result's method", name, tuple(registry.methods()))
    entry, method = registry.methods()[name]
    if float(result["t"][0]) != 0.0:
        raise ValueError(
            "this result does not record its start, because its first save point is after t = 0. "
            "Save t = 0 too."
        )
    if not method.records_start:
        raise ValueError(
            f"a result of {entry.public_name} does not record its start. Use a problem file."
        )
    problem, algorithm = (
        decode(f"the result's attribute {key}", result.attrs.get(key))
        for key in ("problem", "algorithm")
    )
    has_start = problem.get("kind") not in STATING_START
    if algorithm.get("kind") == "AMP":
        has_start = algorithm["start"] == "overlaps"
    first: Any = start_from(result, 0) if has_start else None
    if not has_start:
        overlaps = {}
    elif "r2" in result:
        overlaps = {"m": first.m, "r2": first.r2}  # type: ignore[union-attr]
    elif "q" in result:
        overlaps = {key: result[key].values[:, 0] for key in ("M", "q", "a")}
    else:
        on_sphere = problem.get("constraint") == "sphere"
        overlaps = _overlaps_of(first, "M_block" in result, on_sphere)
        network = problem_from(problem) if "top" in result.attrs else None
        top = network.structure.top if isinstance(network, Problem) else None
        head = {"a": first.a} if top is None else {"top": top.unravel(first.a)}
        overlaps |= head
    run: dict[str, Any] = {"methods": [name]}
    if method.counts_steps and "step" in result.coords:
        run["steps"] = result["step"].values.tolist()
    else:
        scale = problem["width"] if method.times_per_width else 1
        run["times"] = (result["t"].values * scale).tolist()
    accepted = argument_names(entry.load(), ())
    run[name] = {
        key: _plain(result.attrs[key])
        for key in RECORDED_ARGUMENTS
        if key in result.attrs and key in accepted
    }
    if "higher_order" in run[name]:
        run[name]["higher_order"] = bool(run[name]["higher_order"])
    statement = {"problem": problem, "algorithm": algorithm, "run": run}
    if has_start:
        start = {"kind": "overlaps", **jax.tree.map(np.ndarray.tolist, overlaps)}
        statement["start"] = start
    return statement


def _overlaps_of(first: Start, has_blocks: bool, on_sphere: bool) -> dict[str, Any]:
    """The overlaps of an initial state.

    On the sphere the rows are normalised, because a result in float32 has norms of 1 +- 1e-7.
    """
    lengths = np.sqrt(np.einsum("rbii->ri", first.Q_blocks))
    norms = lengths if on_sphere else np.ones(lengths.shape)
    M = first.M_blocks / norms[:, None, :, None]
    Q = first.Q_blocks / (norms[:, None, :, None] * norms[:, None, None, :])
    return {"M": M if has_blocks else M[:, 0], "Q": Q if has_blocks else Q[:, 0]}


# [run]


def plans(path: str | Path) -> list[RunPlan]:
    """The plans of a file: one for a TOML file, one for each statement of a NetCDF file."""
    is_result = Path(path).suffix == ".nc" and Path(path).is_file()
    records = statements(path) if is_result else [read(path)]
    file_plans = [plan(record) for record in records]
    methods = [method for file_plan in file_plans for method in file_plan.calls]
    repeated = sorted({method for method in methods if methods.count(method) > 1})
    if repeated:
        raise checks.reject(
            "file",
            str(path),
            f"it has several results of the method {repeated[0]!r}. Save them in separate files.",
        )
    return file_plans


def plan(record: Mapping[str, Any]) -> RunPlan:
    """The solver calls that the table [run] states."""
    table = _table(record, "run")
    methods = registry.methods()
    checks.reject_unknown("[run]", table, ("methods", *CLOCKS, *RUN_KEYS, *methods))
    names = _methods("run", table, tuple(methods))
    for name in methods:
        if name in table and name not in names:
            raise ValueError(
                f"[run.{name}]: methods = {names} does not contain {name!r}. Add it, or remove "
                "this table."
            )
    problem, algorithm = problem_from(record["problem"]), algorithm_from(record["algorithm"])
    calls = {name: _method_arguments(name, table, problem) for name in names}
    stages = stages_from(record)
    if stages is None:
        save_points = _save_points("[run]", table)
        for name in names:
            _check_clock(name, methods[name][1], next(iter(save_points)))
    else:
        save_points = {}
        _check_stages(names, table)
    start = None if _starts_by_itself(algorithm, record) else _start(problem, record, table)
    return RunPlan(dict(record), problem, algorithm, start, save_points, calls, stages)


def _check_stages(names: list[str], table: Mapping[str, Any]) -> None:
    """Raise ValueError for methods and save points that stages do not support."""
    for name in names:
        checks.choice("run.methods", name, STAGE_METHODS)
    for clock in CLOCKS:
        if clock in table:
            fix = "each of the [[stages]] has its own. Remove it."
            raise checks.reject(f"run.{clock}", table[clock], fix)


def _method_arguments(
    name: str, table: Mapping[str, Any], problem: Problem | SpikedTensor
) -> dict[str, Any]:
    """The arguments of a method: shared keys of [run], its own table, and what selects it."""
    entry, method = registry.methods()[name]
    own = table.get(name, {})
    if not isinstance(own, Mapping):
        raise checks.reject(
            f"run.{name}", own, f"this must be a table. Write [run.{name}] and its arguments."
        )
    checks.reject_unknown(f"[run.{name}]", own, argument_names(entry.load(), ("method", *CLOCKS)))
    shared = {key: table[key] for key in method.run_keys if key in table}
    arguments = {**shared, **_with_options(entry.load(), own), **method.arguments}
    has_spectrum = getattr(problem, "spectrum", None) is not None
    if "dimension" in method.run_keys and "dimension" not in arguments and not has_spectrum:
        raise ValueError(f"[run]: the method {name!r} needs a dimension. Set dimension = ...")
    for key, minimum in (("dimension", 1), ("runs", 1), ("seed", 0)):
        if arguments.get(key) is not None:
            checks.integer(f"run.{key}", arguments[key], minimum)
    return arguments


def _check_clock(name: str, method: Method, clock: str) -> None:
    if clock not in method.clocks:
        accepted = " or ".join(method.clocks)
        raise ValueError(
            f"[run]: the method {name!r} does not accept {clock}. Set {accepted} = ... instead."
        )


def solve(run_plan: RunPlan, method_name: str, progress: bool | None = None) -> xr.Dataset:
    """Compute the result of one method; its attribute `statement` stores the record of the plan."""
    entry, method = registry.methods()[method_name]
    solver = entry.load()
    arguments, save_points = dict(run_plan.calls[method_name]), dict(run_plan.save_points)
    if "progress" in inspect.signature(solver).parameters:
        arguments["progress"] = progress
    if method.times_per_width and "times" in save_points:
        # A spiked tensor has no width; the solver raises an error for it.
        width = getattr(run_plan.problem, "width", 1)
        save_points["times"] = np.asarray(save_points["times"]) / width
    if run_plan.stages is not None:
        result = solve_stages(solver, run_plan.stages, run_plan.start, **arguments)
    else:
        result = solver(
            run_plan.problem, run_plan.algorithm, run_plan.start, **save_points, **arguments
        )
    statement = encode(run_plan.record)
    if len(statement) <= MAX_STATEMENT_LENGTH:
        result.attrs["statement"] = statement
    return result


# [exit_time] and [hessian]


def exit_calls(record: Mapping[str, Any]) -> tuple[Any, Any, Any, dict[str, dict[str, Any]]]:
    """Problem, algorithm, start, and the arguments of each method of [exit_time]."""
    table = _table(record, "exit_time")
    accepted = argument_names(exit_times.exit_time, ("method",))
    checks.reject_unknown("[exit_time]", table, ("methods", *accepted))
    methods = _methods("exit_time", table, exit_times.METHODS)
    problem, algorithm = problem_from(record["problem"]), algorithm_from(record["algorithm"])
    shared = {key: value for key, value in table.items() if key != "methods"}
    if (dimension := _dimension(record, table)) is not None:
        shared["dimension"] = dimension
    calls = {method: {"method": method, **_exit_arguments(method, shared)} for method in methods}
    return problem, algorithm, _start(problem, record, table), calls


def _exit_arguments(method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a method of `exit_time` accepts: the ODE has no runs and no dimension."""
    ignored = RUN_KEYS if method == "ode" else ()
    return {key: value for key, value in arguments.items() if key not in ignored}


def hessian_call(record: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Problem, start and the arguments of `hessian_spectrum`; the table [hessian] is optional."""
    table = record.get("hessian", {})
    checks.reject_unknown("[hessian]", table, argument_names(hessian_spectrum, ()))
    problem = problem_from(record["problem"])
    dimension = _dimension(record, table)
    defaults = {} if dimension is None else {"dimension": dimension}
    return problem, _start(problem, record, table), {**defaults, **table}


# [sweep]


def swept_solvers() -> tuple[str, ...]:
    """The names that [sweep] accepts: methods of [run], and questions that have no method."""
    methods = registry.methods()
    with_method = {entry.public_name for entry, _ in methods.values()}
    others = [name for name in registry.swept_functions() if name not in with_method]
    return (*methods, *others)


def sweep_call(record: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The solver of [sweep] and all arguments of `sgd.sweep`.

    Save points, dimension, runs and seed default to those of [run].
    """
    table = dict(_table(record, "sweep"))
    name = table.pop("solver", None)
    if name is None:
        raise ValueError(f"[sweep]: solver is missing. Set it to one of {_join(swept_solvers())}")
    checks.choice("sweep.solver", name, swept_solvers())
    entry, method = registry.methods().get(name, (None, None))
    entry = entry or registry.swept_functions()[name]
    accepted = argument_names(entry.load(), ("method",) if method else ())
    checks.reject_unknown("[sweep]", table, ("over", "store", "workers", *accepted))
    over = table.pop("over", None)
    if not isinstance(over, Mapping) or not over:
        raise ValueError("[sweep.over]: no parameter is varied. Set at least one, with its values.")
    varied = {key: _values(f"sweep.over.{key}", value) for key, value in over.items()}
    settings = {key: table.pop(key) for key in ("store", "workers") if key in table}
    if not isinstance(settings.get("store", ""), str):
        raise checks.reject("sweep.store", settings["store"], "this must be the name of a folder.")
    defaults = _sweep_defaults(record, name, method)
    if method is not None and not set(CLOCKS) & set(table):
        defaults |= _save_points("[sweep]", record.get("run", {}))
    own = {
        key: _points("[sweep]", key, value) if key in CLOCKS else value
        for key, value in table.items()
    }
    arguments = {**defaults, **own, **(method.arguments if method else {})}
    arguments = {key: value for key, value in arguments.items() if key not in varied}
    arguments = _with_options(entry.load(), arguments)
    problem = problem_from(record["problem"])
    if method is not None and method.times_per_width and "times" in arguments:
        if {"width", "problem.width"} & set(varied):
            raise ValueError(
                f"[sweep]: the clock of {name} is t/width, and the width varies. Use alpha or "
                "steps instead of times."
            )
        width = problem.width  # type: ignore[union-attr]
        arguments["times"] = (np.asarray(arguments["times"]) / width).tolist()
    sizes = table if method is not None else {**record.get(name, {}), **table}
    algorithm, start = algorithm_from(record["algorithm"]), None
    if not _starts_by_itself(algorithm, record):
        start = _swept_start(record, problem, {*arguments, *varied}, _dimension(record, sizes))
    objects = {"problem": record["problem"], "algorithm": record["algorithm"], "start": start}
    return entry.public_name, {**objects, "over": varied, **settings, **arguments}


def _starts_by_itself(algorithm: object, record: Mapping[str, Any]) -> bool:
    """Whether an algorithm has a start of its own; ValueError if the file states one, too."""
    has_own_start = isinstance(algorithm, AMP) and algorithm.has_own_start
    if has_own_start and "start" in record:
        fix = "this algorithm starts by itself. Remove [start], or set start = 'overlaps'"
        raise checks.reject("[start]", record["start"], fix)
    return has_own_start


def _swept_start(
    record: Mapping[str, Any],
    problem: Problem | SpikedTensor,
    names: set[str],
    dimension: int | None,
) -> dict[str, Any] | None:
    """The record of the start, with a dimension where a random start needs one.

    None for a problem that states its initial weights itself.

    Overlaps need no dimension, a spectrum has its own, and a random start takes the `dimension`
    among the arguments of the solver, `names`.
    """
    if problem.kind in STATING_START and "start" not in record:
        return None
    start = dict(record.get("start", {"kind": "random"}))
    has_spectrum = getattr(problem, "spectrum", None) is not None
    has_dimension = {"dimension", "start.dimension"} & names
    if has_spectrum or has_dimension or {"M", "m", "dimension"} & set(start):
        return start
    if dimension is None:
        raise ValueError(
            "start: a random start needs a dimension. Set dimension = ... in [start], [run] or "
            "[sweep]."
        )
    return {**start, "dimension": dimension}


def _sweep_defaults(record: Mapping[str, Any], name: str, method: Method | None) -> dict[str, Any]:
    """The arguments that a sweep takes from [run], or from the table of its own question."""
    if method is not None:
        table = record.get("run", {})
        shared = {key: table[key] for key in method.run_keys if key in table}
        return {**shared, **table.get(name, {})}
    table = dict(record.get(name, {}))
    if name != "exit_time":
        return table
    methods = table.pop("methods", ["ode"])
    exit_method = methods[0] if len(methods) == 1 else "ode"
    return {"method": exit_method, **_exit_arguments(exit_method, table)}


def cited_subjects(record: Mapping[str, Any]) -> list[Any]:
    """The problem, the algorithm and the functions of a file, for `sgd.cite`."""
    subjects: list[Any] = [problem_from(record["problem"]), algorithm_from(record["algorithm"])]
    methods = registry.methods()
    names = [
        *record.get("run", {}).get("methods", []),
        *[record[name].get("solver", name) for name in ("exit_time", "sweep") if name in record],
    ]
    if "hessian" in record:
        names.append("hessian_spectrum")
    return subjects + [methods[name][0].public_name if name in methods else name for name in names]


# Shared by the tables


def _start(
    problem: Problem | SpikedTensor, record: Mapping[str, Any], table: Mapping[str, Any]
) -> Start | MeanFieldStart | SpikedStart | dict[str, Any] | None:
    return start_of(problem, record.get("start", {}), dimension=_dimension(record, table))


def _dimension(record: Mapping[str, Any], table: Mapping[str, Any]) -> int | None:
    return table.get("dimension", record.get("run", {}).get("dimension"))


def _table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in record:
        raise ValueError(f"the table [{name}] is missing. It states what to compute.")
    return record[name]


def _methods(where: str, table: Mapping[str, Any], accepted: tuple[str, ...]) -> list[str]:
    methods = table.get("methods")
    if not isinstance(methods, list) or not methods:
        raise checks.reject(
            f"{where}.methods", methods, f"this must be a list of methods out of {_join(accepted)}"
        )
    for method in methods:
        checks.choice(f"{where}.methods", method, accepted)
    return list(dict.fromkeys(methods))


def _join(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)}."


def _save_points(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    clocks = [name for name in CLOCKS if name in table]
    if len(clocks) != 1:
        raise ValueError(
            f"{where}: set exactly one of times, alpha, steps (received "
            f"{', '.join(clocks) or 'none of them'})."
        )
    return {clocks[0]: _points(where, clocks[0], table[clocks[0]])}


def _points(where: str, clock: str, value: object) -> list[Any]:
    """Save points on a clock; those of a range of steps are rounded to integers."""
    points = _values(f"{where.strip('[]')}.{clock}", value)
    if clock == "steps" and isinstance(value, Mapping):
        return np.unique(np.rint(points)).astype(int).tolist()
    return points


def _values(name: str, value: object) -> list[Any]:
    """The values of a list or of a range."""
    if isinstance(value, list):
        if not value:
            raise checks.reject(name, value, "this list is empty. Use at least one value.")
        return value
    if not isinstance(value, Mapping):
        raise checks.reject(
            name, value, "this must be a list, or a range {to = ..., points = ...}."
        )
    checks.reject_unknown(name, value, ("from", "to", "points", "spacing"))
    for key in ("to", "points"):
        if key not in value:
            raise ValueError(f"{name}: a range needs {key} = ...")
    spacing = checks.choice(f"{name}.spacing", value.get("spacing", "linear"), ("linear", "log"))
    first = checks.number(f"{name}.from", value.get("from", 0.0))
    last = checks.number(f"{name}.to", value["to"], above=first)
    count = checks.integer(f"{name}.points", value["points"], 2)
    if spacing == "linear":
        return np.linspace(first, last, count).tolist()
    return np.geomspace(checks.number(f"{name}.from", first, above=0.0), last, count).tolist()


def argument_names(function: Callable[..., Any], excluded: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that a file may set: keyword-only arguments, and fields of the options."""
    names = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.name not in ("progress", *excluded)
    ]
    return (*names, *_option_names(function))


def _option_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The fields of the options object, such as `sgd.DMFT`, that a solver takes as `method`."""
    method = inspect.signature(function).parameters.get("method")
    if method is None or not hasattr(method.default, "describe"):
        return ()
    return tuple(method.default.describe())


def _with_options(function: Callable[..., Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function, from a table with the fields of its options as plain keys."""
    options = {key: table[key] for key in _option_names(function) if key in table}
    if not options:
        return dict(table)
    default = inspect.signature(function).parameters["method"].default
    arguments = {key: value for key, value in table.items() if key not in options}
    return {**arguments, "method": default.replace(**options)}


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
