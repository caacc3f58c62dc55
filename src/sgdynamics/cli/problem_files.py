"""Problem files (TOML) and what a result records, turned into solver calls: every key is checked before anything is computed.

    [problem], [algorithm]      records, as in `sgdynamics.results.records`
    [start]                     {kind = "random", seed = 0, ...} or overlaps {M = ..., Q = ...}; random unless given
                                (at the dimension of the command's own table, else of [run], unless it names one or the spectrum fixes it)
    [run]                       methods, one of times/alpha/steps, dimension, runs, seed; [run.ode], [run.exact], ...: more for one method
    [exit_time], [hessian]      arguments of `exit_time` (with methods) and `hessian_spectrum`
    [sweep], [sweep.over]       a solver, its arguments, and what is varied

Times and what is varied are lists, or ranges {from = 0, to = 4, points = 21, spacing = "linear" | "log"}.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.exit_times import exit_time
from sgdynamics.analysis.landscape import hessian_spectrum
from sgdynamics.base import checks
from sgdynamics.base.files import read_toml, require_file
from sgdynamics.mean_field.particles import solve_mean_field
from sgdynamics.results.datasets import decode, encode, groups_in, load, start_from
from sgdynamics.results.records import algorithm_from, problem_from, start_of
from sgdynamics.solvers.dmft import solve_dmft
from sgdynamics.solvers.large_batch import solve_large_batch
from sgdynamics.solvers.linear import solve_linear
from sgdynamics.solvers.ode import solve_ode
from sgdynamics.solvers.sde import solve_sde
from sgdynamics.solvers.simulate import simulate

TABLES = ("title", "problem", "algorithm", "start", "run", "exit_time", "hessian", "sweep")
WHEN = ("times", "alpha", "steps")
COMMON = ("dimension", "runs", "seed")
# method: solver, what fixes it to this method, which of dimension, runs, seed it takes from [run]
METHODS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    "ode": (solve_ode, {}, ()),
    "sde": (solve_sde, {}, COMMON),
    "mean_field": (solve_mean_field, {}, ()),
    "dmft": (solve_dmft, {}, ("seed",)),
    "linear": (solve_linear, {}, ("dimension",)),
    "large_batch": (solve_large_batch, {}, ()),
    "exact": (simulate, {"method": "exact"}, COMMON),
    "direct": (simulate, {"method": "direct"}, COMMON),
    "tensor": (simulate, {"method": "tensor"}, COMMON),
}
SAMPLED = ("sde", "exact", "direct", "tensor")  # runs that scatter; the others are theory
EXIT_METHODS = ("ode", "sde", "exact", "direct", "dmft")
LARGEST_STATEMENT = 50_000  # characters: HDF5 keeps attributes below 64 kB
RECORDED = (
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
class FilePlan:
    """What a file states: `record` is the file in plain values, `calls` the arguments of each method."""

    record: dict[str, Any]
    problem: Any
    algorithm: Any
    start: Any
    when: dict[str, Any]
    calls: dict[str, dict[str, Any]]


def read(path: str | Path) -> dict[str, Any]:
    """The record in a TOML file, or the one that a result (.nc) keeps of the run that made it."""
    file = require_file(path)
    if file.suffix == ".nc":
        return next(iter(statements(file)))
    record = read_toml(file)
    checks.known_names("the file", record, TABLES)
    for name in TABLES[1:]:
        if not isinstance(record.get(name, {}), Mapping):
            raise checks.reject(
                name, record[name], f"this is a table: write [{name}] and its keys below it"
            )
    for name in ("problem", "algorithm"):
        if name not in record:
            raise ValueError(f"{path}: the table [{name}] is missing")
    return record


def statements(path: str | Path) -> list[dict[str, Any]]:
    """What the results in a NetCDF file were made from, each once: results of one command share theirs."""
    found = {
        encode(one): one for one in (_statement(result) for result in results_in(path).values())
    }
    return list(found.values())


def results_in(path: str | Path) -> dict[str, xr.Dataset]:
    """The results in a NetCDF file by name; a file of a single one has it under the name of its method."""
    found = {name: load(path, group=name) for name in groups_in(path, "file")} or {"": load(path)}
    if "" in found:
        found = {method_of(found[""]): found[""]}
    for name, result in found.items():
        which = f"{path}, group {name}" if len(found) > 1 else str(path)
        if "failed" in result:
            raise checks.reject(
                "file",
                which,
                "this is a sweep: select one of its points and save that, or use the sweep's problem file",
            )
        if "t" not in result.coords or "method" not in result.attrs:
            raise checks.reject("file", which, "this is no trajectory that the library made")
    return found


def method_of(result: xr.Dataset) -> str:
    """The name in METHODS of the method that made a result."""
    name = str(result.attrs.get("method", "result"))
    return name.removeprefix("solve_").removeprefix("simulate-")


def _statement(result: xr.Dataset) -> dict[str, Any]:
    """What would make this result again: the file it was made from, else its attributes, save points and first state."""
    if "statement" in result.attrs:
        return decode("the result's attribute statement", result.attrs["statement"])
    method = method_of(result)
    checks.choice("the result's method", method, tuple(METHODS))
    if float(result["t"][0]) != 0.0:
        raise ValueError(
            "this result does not record its start, and its first save point is after 0: save t = 0 too"
        )
    if method == "linear":
        raise ValueError(
            "a result of solve_linear does not record its start: state it in a problem file"
        )
    first = start_from(result, 0)
    problem, algorithm = (
        decode(f"the result's attribute {name}", result.attrs.get(name))
        for name in ("problem", "algorithm")
    )
    if "r2" in result:
        begin = {"m": first.m, "r2": first.r2}  # type: ignore[union-attr]
    elif "q" in result:
        begin = {
            "M": result["M"].values[:, 0],
            "q": result["q"].values[:, 0],
            "a": result["a"].values[:, 0],
        }
    else:
        begin = _rows(first, "M_block" in result, problem.get("constraint") == "sphere")
    whole = method in ("exact", "direct", "tensor", "dmft") and "step" in result.coords
    t = result["t"].values * (problem["width"] if method == "mean_field" else 1)
    run: dict[str, Any] = {
        "methods": [method],
        "steps" if whole else "times": (result["step"].values if whole else t).tolist(),
    }
    known = inspect.signature(METHODS[method][0]).parameters
    run[method] = {
        name: _plain(result.attrs[name])
        for name in RECORDED
        if name in result.attrs and name in known
    }
    if "higher_order" in run[method]:
        run[method]["higher_order"] = bool(run[method]["higher_order"])
    return {
        "problem": problem,
        "algorithm": algorithm,
        "start": {"kind": "overlaps", **{name: value.tolist() for name, value in begin.items()}},
        "run": run,
    }


def _rows(first: Any, blocks: bool, sphere: bool) -> dict[str, Any]:
    """The overlaps of a first state; on the sphere rows have norm 1 again, which float32 keeps to 1e-7 only."""
    norm = np.sqrt(np.einsum("rbii->ri", first.Q_blocks)) if sphere else np.ones(first.a.shape)
    M, Q = (
        first.M_blocks / norm[:, None, :, None],
        first.Q_blocks / (norm[:, None, :, None] * norm[:, None, None, :]),
    )
    return {"M": M if blocks else M[:, 0], "Q": Q if blocks else Q[:, 0], "a": first.a}


def plans(path: str | Path) -> list[FilePlan]:
    """The solver calls of a file: one plan of a TOML file, one for each statement of a NetCDF file."""
    made = [
        plan(one)
        for one in (
            statements(path)
            if Path(path).suffix == ".nc" and Path(path).is_file()
            else [read(path)]
        )
    ]
    methods = [method for one in made for method in one.calls]
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise checks.reject(
            "file",
            str(path),
            f"it has several results of the method {twice[0]!r}: save them in files of their own",
        )
    return made


def plan(record: Mapping[str, Any]) -> FilePlan:
    """The solver calls that [run] states."""
    table = _table(record, "run")
    checks.known_names("[run]", table, ("methods", *WHEN, *COMMON, *METHODS))
    methods = _methods("run", table, tuple(METHODS))
    for name in METHODS:
        if name in table and name not in methods:
            raise ValueError(
                f"[run.{name}] is there, but {name!r} is not among methods = {methods}"
            )
    problem, algorithm = problem_from(record["problem"]), algorithm_from(record["algorithm"])
    calls: dict[str, dict[str, Any]] = {}
    for name in methods:
        solver, fixed, common = METHODS[name]
        own = table.get(name, {})
        if not isinstance(own, Mapping):
            raise checks.reject(f"run.{name}", own, "give a table of arguments of this method")
        checks.known_names(f"[run.{name}]", own, _arguments(solver, ("method", *WHEN)))
        calls[name] = {**{key: table[key] for key in common if key in table}, **own, **fixed}
        if (
            "dimension" in common
            and "dimension" not in calls[name]
            and getattr(problem, "spectrum", None) is None
        ):
            raise ValueError(
                f"[run]: method {name!r} runs at a finite dimension: give dimension = ..."
            )
        for key, least in (("dimension", 1), ("runs", 1), ("seed", 0)):
            if calls[name].get(key) is not None:
                checks.whole(f"run.{key}", calls[name][key], least)
    when = _when("[run]", table)
    if "linear" in methods and "steps" not in when:
        raise ValueError(
            f"[run]: method 'linear' counts in steps: give steps = ... in place of {next(iter(when))}"
        )
    return FilePlan(dict(record), problem, algorithm, _start(problem, record, table), when, calls)


def solve(made: FilePlan, method: str, progress: bool | None = None) -> xr.Dataset:
    """One method of a plan; the result says in its attribute `statement` what it was made from."""
    solver = METHODS[method][0]
    arguments, when = dict(made.calls[method]), dict(made.when)
    if "progress" in inspect.signature(solver).parameters:
        arguments["progress"] = progress
    if method == "mean_field" and "times" in when:
        when["times"] = np.asarray(when["times"]) / made.problem.width  # its clock is t/p
    result = solver(made.problem, made.algorithm, made.start, **when, **arguments)
    statement = encode(made.record)
    if len(statement) <= LARGEST_STATEMENT:
        result.attrs["statement"] = statement
    return result


def exit_calls(record: Mapping[str, Any]) -> tuple[Any, Any, Any, dict[str, dict[str, Any]]]:
    """Problem, algorithm, start, and the arguments of `exit_time` for each method that [exit_time] names."""
    table = _table(record, "exit_time")
    names = _arguments(exit_time, ("method",))
    checks.known_names("[exit_time]", table, ("methods", *names))
    methods = _methods("exit_time", table, EXIT_METHODS)
    problem, algorithm = problem_from(record["problem"]), algorithm_from(record["algorithm"])
    rest = {key: value for key, value in table.items() if key != "methods"}
    if (size := _dimension(record, table)) is not None:
        rest["dimension"] = size
    calls = {}
    for method in methods:
        drop = COMMON if method == "ode" else ()
        calls[method] = {
            "method": method,
            **{key: value for key, value in rest.items() if key not in drop},
        }
    return problem, algorithm, _start(problem, record, table), calls


def hessian_call(record: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Problem, start and the arguments of `hessian_spectrum`; [hessian] may be left out."""
    table = record.get("hessian", {})
    checks.known_names("[hessian]", table, _arguments(hessian_spectrum, ()))
    problem = problem_from(record["problem"])
    size = _dimension(record, table)
    return (
        problem,
        _start(problem, record, table),
        {**({} if size is None else {"dimension": size}), **table},
    )


def sweep_call(record: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The solver of [sweep] and all arguments of `sgd.sweep`; what [sweep] does not say of times and sizes is taken from [run]."""
    table = dict(_table(record, "sweep"))
    named = table.pop("solver", None)
    if named is None:
        raise ValueError(f"[sweep]: give solver = ..., one of {', '.join((*METHODS, 'exit_time'))}")
    checks.choice("sweep.solver", named, (*METHODS, "exit_time"))
    solver, fixed = (exit_time, {}) if named == "exit_time" else METHODS[named][:2]
    known = _arguments(solver, () if named == "exit_time" else ("method",))
    checks.known_names("[sweep]", table, ("over", "store", "workers", *known))
    over = table.pop("over", None)
    if not isinstance(over, Mapping) or not over:
        raise ValueError("[sweep.over]: give at least one parameter to vary and its values")
    varied = {name: _values(f"sweep.over.{name}", value) for name, value in over.items()}
    settings = {name: table.pop(name) for name in ("store", "workers") if name in table}
    if not isinstance(settings.get("store", ""), str):
        raise checks.reject("sweep.store", settings["store"], "give the name of a folder")
    given = _sweep_defaults(record, named)
    if named != "exit_time" and not set(WHEN) & set(table):
        given |= _when("[sweep]", record.get("run", {}))
    told = {
        name: _points("[sweep]", name, value) if name in WHEN else value
        for name, value in table.items()
    }
    arguments = {
        name: value for name, value in {**given, **told, **fixed}.items() if name not in varied
    }
    if named == "mean_field" and "times" in arguments:  # its clock is t/p
        if {"width", "problem.width"} & set(varied):
            raise ValueError(
                "[sweep]: the clock of mean_field is t/width, which varies here: give alpha or steps in place of times"
            )
        arguments["times"] = (
            np.asarray(arguments["times"]) / problem_from(record["problem"]).width
        ).tolist()  # type: ignore[union-attr]
    begin = dict(record.get("start", {"kind": "random"}))
    size = _dimension(
        record, table if named != "exit_time" else {**record.get("exit_time", {}), **table}
    )
    problem = problem_from(record["problem"])
    # overlaps need no dimension, and a spectrum has its own; a random start has that of the runs, and the d -> infinity theory has none
    asks = getattr(problem, "spectrum", None) is None and not {"M", "m", "dimension"} & set(begin)
    if asks and not {"dimension", "start.dimension"} & {*arguments, *varied}:
        if size is None:
            raise ValueError(
                "start: a random start needs a dimension: give dimension = ... in [start], [run] or [sweep]"
            )
        begin["dimension"] = size
    algorithm_from(record["algorithm"])
    parts = {"problem": record["problem"], "algorithm": record["algorithm"], "start": begin}
    return solver.__name__, {**parts, "over": varied, **settings, **arguments}


def _sweep_defaults(record: Mapping[str, Any], named: str) -> dict[str, Any]:
    """What the tables [run] or [exit_time] say, as far as this method takes it from there."""
    if named != "exit_time":
        source = record.get("run", {})
        return {
            **{name: source[name] for name in METHODS[named][2] if name in source},
            **source.get(named, {}),
        }
    source = dict(record.get("exit_time", {}))
    methods = source.pop("methods", ["ode"])
    method = methods[0] if len(methods) == 1 else "ode"
    return {
        "method": method,
        **{name: value for name, value in source.items() if method != "ode" or name not in COMMON},
    }


def _start(problem: Any, record: Mapping[str, Any], table: Mapping[str, Any]) -> Any:
    return start_of(problem, record.get("start", {}), dimension=_dimension(record, table))


def _dimension(record: Mapping[str, Any], table: Mapping[str, Any]) -> int | None:
    return table.get("dimension", record.get("run", {}).get("dimension"))


def _table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in record:
        raise ValueError(f"the table [{name}] is missing: it says what to compute")
    return record[name]


def _methods(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    methods = table.get("methods")
    if not isinstance(methods, list) or not methods:
        raise checks.reject(
            f"{where}.methods", methods, f"give a list of some of {', '.join(known)}"
        )
    for method in methods:
        checks.choice(f"{where}.methods", method, known)
    return list(dict.fromkeys(methods))


def _when(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    given = [name for name in WHEN if name in table]
    if len(given) != 1:
        raise ValueError(
            f"{where}: give exactly one of times, alpha, steps (received {', '.join(given) or 'none of them'})"
        )
    return {given[0]: _points(where, given[0], table[given[0]])}


def _points(where: str, name: str, value: object) -> list[Any]:
    """Save points; the numbers of a range of steps are rounded."""
    points = _values(f"{where.strip('[]')}.{name}", value)
    return (
        np.unique(np.rint(points)).astype(int).tolist()
        if name == "steps" and isinstance(value, Mapping)
        else points
    )


def _values(name: str, value: object) -> list[Any]:
    """A list as it is, or the numbers of a range."""
    if isinstance(value, list):
        if not value:
            raise checks.reject(name, value, "give at least one value")
        return value
    if not isinstance(value, Mapping):
        raise checks.reject(name, value, "give a list, or a range {to = ..., points = ...}")
    checks.known_names(name, value, ("from", "to", "points", "spacing"))
    for key in ("to", "points"):
        if key not in value:
            raise ValueError(f"{name}: a range needs {key} = ...")
    spacing = checks.choice(f"{name}.spacing", value.get("spacing", "linear"), ("linear", "log"))
    first = checks.number(f"{name}.from", value.get("from", 0.0))
    last = checks.number(f"{name}.to", value["to"], above=first)
    points = checks.whole(f"{name}.points", value["points"], 2)
    if spacing == "linear":
        return np.linspace(first, last, points).tolist()
    return np.geomspace(checks.number(f"{name}.from", first, above=0.0), last, points).tolist()


def _arguments(solver: Callable[..., Any], without: tuple[str, ...]) -> tuple[str, ...]:
    """What a solver may be told in a file: its keyword arguments."""
    parameters = inspect.signature(solver).parameters.values()
    left_out = ("progress", *without)
    return tuple(
        one.name
        for one in parameters
        if one.kind is inspect.Parameter.KEYWORD_ONLY and one.name not in left_out
    )


def _plain(value: object) -> Any:
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
