"""`python -m tests.style [PATH ...]`: list the findings of files and folders, with a summary."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.style import gate
from tests.style.checker import KINDS, Report


def summary(reports: dict[str, Report]) -> str:
    """A table with a row for each folder, and the totals."""
    width = max(map(len, reports), default=5)
    header = [*KINDS, "all", "filler %", "comments/100"]
    rows = [f"{'folder':{width}}  " + "  ".join(header)]
    total = Report()
    for report in reports.values():
        total.add(report)
    for folder, report in [*reports.items(), *([("total", total)] if len(reports) > 1 else [])]:
        counts = report.count_by_kind()
        values = [str(counts[kind]) for kind in KINDS] + [str(len(report.findings))]
        values.append(f"{100 * report.filler_share:.1f}")
        values.append(f"{100 * report.comments / max(report.code_lines, 1):.1f}")
        cells = (f"{value:>{len(name)}}" for value, name in zip(values, header, strict=True))
        rows.append(f"{folder:{width}}  " + "  ".join(cells))
    return "\n".join(rows)


def main() -> int:
    """Run the checker; the exit status is 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.style", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; all by default")
    parser.add_argument("--only", choices=KINDS, help="list findings of one kind")
    parser.add_argument("--summary", action="store_true", help="print the table alone")
    parser.add_argument("--gate", action="store_true", help="check the whole repository")
    arguments = parser.parse_args()
    if missing := [str(path) for path in arguments.paths if not path.exists()]:
        parser.error(f"paths = {', '.join(missing)}: there is no such file or folder.")
    if arguments.paths and arguments.gate:
        parser.error("paths: --gate is for the whole repository. Omit the paths.")
    files = gate.files_of(arguments.paths) if arguments.paths else gate.all_files()
    reports = gate.check_all(files)
    if arguments.only:
        for report in reports.values():
            report.findings = [item for item in report.findings if item.kind == arguments.only]
    if arguments.gate:
        messages = gate.failures(reports)
        print("\n".join(messages) or f"style: no findings in {len(files)} files")
        return int(bool(messages))
    if not arguments.summary:
        for report in reports.values():
            for finding in report.findings:
                print(finding)
    print(summary(reports))
    return int(any(report.findings for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
