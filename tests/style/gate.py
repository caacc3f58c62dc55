"""The files of the repository, and what fails the check of all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.style import rules
from tests.style.checker import ROOT, Report, check_file, path_name

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


def failures(reports: dict[str, Report]) -> list[str]:
    """All findings, and the folders with too many filler names, marked exceptions included."""
    messages = [str(finding) for report in reports.values() for finding in report.findings]
    for folder, report in reports.items():
        if report.filler_share >= rules.MAX_FILLER_SHARE:
            share, limit = 100 * report.filler_share, 100 * rules.MAX_FILLER_SHARE
            messages.append(f"{folder}: {share:.1f}% of names are fillers, at most {limit:g}%")
    return messages
