"""`python -m tests.stored.make`: compute the cases that are missing in the store.

Stored cases stay as they are. `--replace NAME ...` is for a deliberate change of numbers, and
`--remove NAME ...` for cases that are no longer in the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.conftest import clear_full_caches
from tests.stored import store
from tests.stored.cases import CASES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compute the cases that are missing in the store of seeded results."
    )
    parser.add_argument(
        "--replace",
        nargs="+",
        default=[],
        metavar="NAME",
        help="compute these cases again, for a deliberate change of numbers",
    )
    parser.add_argument(
        "--remove",
        nargs="+",
        default=[],
        metavar="NAME",
        help="remove these cases, which are no longer in the table",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="compute only these of the missing cases"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=store.PATH,
        metavar="FILE",
        help="file to update; defaults to the store itself",
    )
    options = parser.parse_args(arguments)
    stored = store.read(options.into)
    only = options.only or []
    unknown = sorted({*options.replace, *only} - set(CASES))
    unknown += sorted(set(options.remove) - set(stored))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    already_stored = sorted(set(only) & set(stored) - set(options.replace))
    if already_stored:
        parser.error(
            f"{', '.join(already_stored)}: already stored. Use --replace to change the numbers."
        )
    for name in options.remove:
        del stored[name]
    missing = [name for name in CASES if name not in stored and name not in options.remove]
    names = only or missing
    names += [name for name in options.replace if name not in names]
    for name in names:
        start_time = time.perf_counter()
        arrays = CASES[name]()
        if name in stored:
            largest_gap = max(store.gaps(arrays, stored[name]).values())
            print(f"{name}: replaced, largest relative difference {largest_gap:.1e}")
        stored[name] = arrays
        # The file has the order of the table, whichever case was computed first.
        order = [*CASES, *(set(stored) - set(CASES))]
        store.write({case: stored[case] for case in order if case in stored}, options.into)
        seconds = time.perf_counter() - start_time
        print(f"{name}: {len(arrays)} arrays, {seconds:.1f} s", flush=True)
        clear_full_caches()
    if options.remove:
        store.write(stored, options.into)
    kilobytes = options.into.stat().st_size / 1e3
    print(f"{len(stored)} cases in {options.into.name}, {kilobytes:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
