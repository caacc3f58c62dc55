"""The state of the whole repository: which folders are clean, and the counts of the others."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.style import rules
from tests.style.checker import ROOT, Report, check_file, path_name

# Folders that have no findings and keep it so. Add a folder once
# `python -m tests.style FOLDER` prints none.
CLEAN: list[str] = [
    "docs",
    "paper",
    "src/sgdynamics/analysis/effective",
    "src/sgdynamics/analysis/protocols",
    "src/sgdynamics/base",
    "src/sgdynamics/cli",
    "src/sgdynamics/dynamics",
    "src/sgdynamics/expectations",
    "src/sgdynamics/fixed_data",
    "src/sgdynamics/papers",
    "src/sgdynamics/plotting",
    "src/sgdynamics/results",
    "src/sgdynamics/samples",
    "src/sgdynamics/scaling",
    "src/sgdynamics/sde",
    "src/sgdynamics/solvers",
    "src/sgdynamics/sweeps",
    "tests/analysis/effective",
    "tests/analysis/protocols",
    "tests/base",
    "tests/cli",
    "tests/contracts",
    "tests/docs",
    "tests/dynamics",
    "tests/expectations",
    "tests/fixed_data",
    "tests/plotting",
    "tests/results",
    "tests/scaling",
    "tests/solvers",
    "tests/stored",
    "tests/style",
    "tests/sweeps",
]

STORED = Path(__file__).with_name("counts.json")
TREES = ("src", "tests", "docs", "benchmarks", "examples", "paper", "reproductions")


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Python files and Markdown pages under some paths, in order; hidden folders are left out."""
    files = set()
    for path in paths:
        if path.is_dir():
            for suffix in (".py", ".md"):
                inside = path.rglob(f"*{suffix}")
                files.update(file for file in inside if not _is_hidden(file.relative_to(path)))
        else:
            files.add(path)
    return sorted(files)


def _is_hidden(path: Path) -> bool:
    return any(name.startswith((".", "__pycache__")) or name == "build" for name in path.parts)


def all_files() -> list[Path]:
    """All files of the repository that are checked."""
    folders = [ROOT / name for name in TREES if (ROOT / name).is_dir()]
    return files_of([*ROOT.glob("*.md"), *folders])


def folder_of(path: str) -> str:
    """The key of a file in tables: its package of the library or of the tests, or its folder."""
    folders = Path(path).parts[:-1]
    depth = {"src": 3, "tests": 2}.get(folders[0], 1) if folders else 0
    return "/".join(folders[:depth]) or "."


def check_all(files: Iterable[Path]) -> dict[str, Report]:
    """Check files, and join their reports by folder."""
    reports: dict[str, Report] = {}
    with without_garbage_collection():
        for file in files:
            reports.setdefault(folder_of(path_name(file)), Report()).add(check_file(file))
    return dict(sorted(reports.items()))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Syntax trees are many objects without cycles: searching them for cycles triples the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def stored_counts() -> dict[str, int]:
    """The stored number of findings of each folder."""
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def store(reports: dict[str, Report]) -> str | None:
    """Store the number of findings of each folder; return why not if the total would grow."""
    counts = {folder: len(report.findings) for folder, report in reports.items()}
    total, stored_total = sum(counts.values()), sum(stored_counts().values())
    if STORED.exists() and total > stored_total:
        return f"{total} findings, {stored_total} are stored: the total may only decrease"
    STORED.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return None


def failures(
    reports: dict[str, Report],
    counts: dict[str, int],
    clean: Iterable[str] = (),
) -> list[str]:
    """Folders with more findings than stored, and findings in folders that are clean.

    A folder without a stored count, a new package for instance, may use up what other folders have
    fewer than stored: moving files between packages does not fail, adding findings does.
    """
    messages = []
    known_folders = [folder for folder in reports if folder in counts]
    for folder in known_folders:
        number = len(reports[folder].findings)
        if number > counts[folder]:
            messages.append(
                f"{folder}: {number} findings, {counts[folder]} are stored. Run"
                f" `python -m tests.style {folder}` and rewrite the new ones."
            )
    total = sum(len(report.findings) for report in reports.values())
    if not messages and total > sum(counts.values()):
        messages.append(f"{total} findings in all folders, {sum(counts.values())} are stored")
    for folder in clean:
        messages += clean_failures(folder)
    return messages


def clean_failures(folder: str) -> list[str]:
    """Findings in a folder that is listed as clean."""
    if not (ROOT / folder).exists():
        return [f"{folder}: listed in CLEAN and does not exist. Update CLEAN in {__name__}."]
    report = Report()
    for file in files_of([ROOT / folder]):
        report.add(check_file(file))
    messages = [str(finding) for finding in report.findings]
    if report.filler_share >= rules.MAX_FILLER_SHARE:
        share, limit = 100 * report.filler_share, 100 * rules.MAX_FILLER_SHARE
        messages.append(f"{folder}: {share:.1f}% of names are fillers, at most {limit:g}%")
    return messages
