"""Tables of the commands for a reader."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np

from sgdynamics.cli.problem_files import is_random

MAX_TIMES = 11  # rows of a table of save points
MAX_POINTS = 40  # rows of the table of a sweep
TEXT_COLUMNS = ("method", "variable", "document", "number", "figure", "what", "")


def print_table(columns: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """Print a table; numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_text = column in TEXT_COLUMNS
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    console = Console()
    # A pipe or a narrow window must not cut numbers.
    width = max(console.width, 20 * len(columns))
    Console(width=width, soft_wrap=not console.is_terminal).print(table)


def _format(value: float | None, digits: int = 5) -> str:
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "-" if is_missing else f"{value:.{digits}g}"


def _cell(value: object) -> str:
    return _format(float(value)) if isinstance(value, (int, float, np.number)) else str(value)


def _score(z: float) -> str:
    """A distance in standard errors; a dash if there is no standard error."""
    return "-" if math.isnan(z) else f"{z:+.1f}"


def _verdict(largest_z: float) -> str:
    if math.isnan(largest_z):
        return "no standard errors"
    return f"at most {largest_z:.1f} standard errors apart"


def _with_error(mean: float, error: float | None) -> str:
    if error is None or error <= 1e-12 * abs(mean):  # all runs share the start
        return _format(mean)
    return f"{_format(mean)} ± {_format(error, 2)}"


def _evenly_spaced(count: int, maximum: int) -> np.ndarray:
    """At most `maximum` indices out of `count`, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(maximum, count)).round().astype(int))


def print_summary(summary: dict[str, Any]) -> None:
    """Print the methods of `run` at a few save points, and the largest distance of each pair."""
    clocks, methods, count = summary["clocks"], summary["methods"], len(summary["t"])
    comparisons = summary["comparisons"]
    z = {(pair["theory"], pair["simulation"]): pair["z"] for pair in comparisons}
    theory = next((name for name in methods if not is_random(name)), None)
    scored = [name for name in methods if (theory, name) in z]
    columns = [*clocks, *methods, *(f"z {name}" for name in scored)]
    rows, no_errors = [], [None] * count
    for index in _evenly_spaced(count, MAX_TIMES):
        times = [_format(summary[clock][index]) for clock in clocks]
        means = [
            _with_error(method["mean"][index], method.get("standard_error", no_errors)[index])
            for method in methods.values()
        ]
        scores = [
            _score(z[theory, name][index]) if len(z[theory, name]) else "-" for name in scored
        ]
        rows.append([*times, *means, *scores])
    title = summary["quantity"].replace("_", " ")
    note = f"; z = (simulation - {theory})/standard error"
    print_table(columns, rows, title + note if z else title)
    for pair in comparisons:
        verdict = pair.get("refused") or _verdict(pair["largest_z"])
        print(f"{pair['simulation']} against {pair['theory']}: {verdict}")
    for name, method in methods.items():
        if method["diverged"]:
            print(f"{name}: {method['diverged']} of {method['runs']} runs diverged (left out)")
    print(f"written: {', '.join(summary['files'])}")


def print_comparison(comparison: dict[str, Any]) -> None:
    """Print the differences between a theory and a simulation."""
    rows = [
        [
            row["variable"],
            *(_format(row[key], 3) for key in ("largest_gap", "largest_z", "rms_z")),
            str(row["numbers"]),
        ]
        for row in comparison["variables"]
    ]
    title = f"{comparison['simulation']} ({comparison['runs']} runs) against {comparison['theory']}"
    print_table(["variable", "largest gap", "largest |z|", "rms z", "values"], rows, title)
    for name in ("problem", "algorithm"):
        if not comparison[f"same_{name}"]:
            print(f"note: the two results record different {name}s")


def print_exits(answer: dict[str, Any]) -> None:
    """Print the exit times of each method."""
    rows = []
    for row in answer["exit_times"]:
        error = None if math.isnan(row["standard_error"]) else row["standard_error"]
        rows.append(
            [
                row["method"],
                "∞" if row["dimension"] is None else str(row["dimension"]),
                f"{row['left']}/{row['runs']}",
                _with_error(row["mean"], error),
                _format(row["median"]),
                _format(row["alpha"]),
            ]
        )
    print_table(["method", "d", "left", "exit time t", "median", "samples/d"], rows)


def print_hessian(answer: dict[str, Any]) -> None:
    """Print the eigenvalues of a Hessian."""
    rows = [
        [f"{pair['eigenvalue']:.8g}", str(pair["multiplicity"])] for pair in answer["eigenvalues"]
    ]
    print_table(
        ["eigenvalue", "multiplicity"], rows, f"Hessian of the risk, N = {answer['dimension']}"
    )
    print(
        f"{answer['negative']} negative, {answer['null']} null, {answer['positive']} positive "
        "directions"
    )
    print(f"|gradient| = {answer['gradient_norm']:.4g}; error of eigenvalues {answer['error']:.1e}")


def print_sweep(summary: dict[str, Any]) -> None:
    """Print a value at each point of a sweep; of a large sweep, at evenly spaced points."""
    if rows := summary.get("table"):
        names = [name for name in rows[0] if name != "value"]
        shown = _evenly_spaced(len(rows), MAX_POINTS)
        cells = [[_cell(rows[index][name]) for name in (*names, "value")] for index in shown]
        title = None if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} points"
        print_table([*names, summary["quantity"]], cells, title)
    missing = f", {summary['missing']} left to other shards" if summary["missing"] else ""
    print(
        f"{summary['points']} points over {', '.join(summary['over'])}{missing}, "
        f"{summary['failed']} failed; stored in {summary['store']}"
    )
    for text in summary["errors"][:5]:
        print(f"failed: {text}")
    for path in summary.get("files", ()):
        print(f"written: {path}")


def print_figure(record: dict[str, Any]) -> None:
    """Print the claim and the verdict of a figure."""
    print(f"claim: {record['claim']}\n{record['verdict']}")
    print(f"{', '.join(record['files'])} ({record['seconds']} s)")


def print_figures(answer: dict[str, Any]) -> None:
    """Print one line for each figure."""
    for row in answer["figures"]:
        print(f"{row['document']:20s} {row['number']:26s} {row['line']}")


def print_machine(about: dict[str, Any]) -> None:
    """Print versions, devices and the compilation cache."""
    lines = {
        **about["versions"],
        "devices": ", ".join(about["devices"]),
        "precision": about["precision"],
        "cache": about["compilation_cache"],
    }
    for name, text in lines.items():
        print(f"{name:14s} {text}")
    if cache := about.get("warmed"):
        size = f"{cache['programs']} programs, {cache['bytes'] / 1e6:.1f} MB"
        print(f"\n{size}, compiled in {cache['seconds']} s.")
        print("To use them, call sgd.compile_cache() first in a script, or before Python starts:")
        print(f"export JAX_COMPILATION_CACHE_DIR={shlex.quote(cache['folder'])}")
