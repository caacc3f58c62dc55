"""`python -m tests.stored.make`: compute the cases that the store does not have yet.

What it has stays as it is. A deliberate change of numbers is `--replace NAME ...`, a case that is gone from the table `--remove NAME ...`.
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
        description="Compute the cases that the store of seeded results does not have yet."
    )
    parser.add_argument(
        "--replace",
        nargs="+",
        default=[],
        metavar="NAME",
        help="compute these again: a deliberate change of numbers",
    )
    parser.add_argument(
        "--remove",
        nargs="+",
        default=[],
        metavar="NAME",
        help="take these out: they are gone from the table",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="of the cases that are missing, these only"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=store.PATH,
        metavar="FILE",
        help="another file than the store itself",
    )
    given = parser.parse_args(arguments)
    kept = store.read(given.into)
    unknown = sorted({*given.replace, *(given.only or [])} - set(CASES)) + sorted(
        set(given.remove) - set(kept)
    )
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    there = sorted(set(given.only or []) & set(kept) - set(given.replace))
    if there:
        parser.error(f"the store has {', '.join(there)}: numbers are changed by --replace only")
    for name in given.remove:
        del kept[name]
    wanted = given.only or [name for name in CASES if name not in kept and name not in given.remove]
    for name in [*wanted, *(name for name in given.replace if name not in wanted)]:
        begun = time.perf_counter()
        found = CASES[name]()
        if name in kept:
            worst = max(store.gaps(found, kept[name]).values())
            print(f"{name}: replaced, {worst:.1e} away from what was stored")
        kept[name] = found
        # in the table's order, so that the file does not tell which case came when
        store.write(
            {one: kept[one] for one in [*CASES, *(set(kept) - set(CASES))] if one in kept},
            given.into,
        )
        print(f"{name}: {len(found)} arrays, {time.perf_counter() - begun:.1f} s", flush=True)
        clear_full_caches()
    if given.remove:
        store.write(kept, given.into)
    print(f"{len(kept)} cases in {given.into.name}, {given.into.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
