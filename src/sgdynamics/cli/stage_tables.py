"""Stages in problem files: `[[stages]]`, a list of tables.

A stage has the problem and the algorithm of the file, with the changes that its tables
``problem = {...}`` and ``algorithm = {...}`` state, and the arguments of `sgd.Stage`. Exactly one
of alpha, times and steps is its length, or its save points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgdynamics.base import checks
from sgdynamics.base.registry import CLOCKS
from sgdynamics.results.records import algorithm_from, problem_from, start_of
from sgdynamics.solvers.stage_plan import Stage

STAGE_KEYS = ("name", "labels", "mixing", "label_noise", "start", "problem", "algorithm", *CLOCKS)
# Methods of [run] that solve or simulate stages.
STAGE_METHODS = ("ode", "sde", "exact", "direct")


def stages_from(record: Mapping[str, Any]) -> list[Stage] | None:
    """Return the stages of a file; None if it has none."""
    if "stages" not in record:
        return None
    tables = record["stages"]
    if not isinstance(tables, list) or not tables:
        raise checks.reject("stages", tables, "write each stage as a table [[stages]]")
    return [_stage_from(f"stages[{index}]", table, record) for index, table in enumerate(tables)]


def _stage_from(where: str, table: object, record: Mapping[str, Any]) -> Stage:
    """Return the stage of one table."""
    if not isinstance(table, Mapping):
        raise checks.reject(where, table, "this must be a table. Write [[stages]].")
    checks.reject_unknown(where, table, STAGE_KEYS)
    clocks = [name for name in CLOCKS if name in table]
    if len(clocks) != 1:
        received = ", ".join(clocks) or "none of them"
        raise ValueError(f"{where}: set exactly one of {', '.join(CLOCKS)} (received {received}).")
    # The stage validates its problem and algorithm.
    problem: Any
    algorithm: Any
    records = {name: {**record[name], **table.get(name, {})} for name in ("problem", "algorithm")}
    problem, algorithm = problem_from(records["problem"]), algorithm_from(records["algorithm"])
    arguments = {name: table[name] for name in STAGE_KEYS[:4] if name in table}
    if "start" in table:
        start = table["start"]
        arguments["start"] = start_of(problem, start) if isinstance(start, Mapping) else start
    save_points = table[clocks[0]]
    try:
        return Stage(problem, algorithm, {clocks[0]: save_points}, **arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
