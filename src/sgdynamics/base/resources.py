"""What a machine can reach: memory that is free, steps that end in somebody's lifetime. Work beyond that is refused before it starts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sgdynamics.base import checks

# Generous, so that nothing that somebody could wait for is refused: steps of one run come one after the other, and no program makes more
# than about 1e8 of them a second; runs go side by side, and 1e11 run-steps a second are a thinkable accelerator.
MAX_STEPS = 1e15
MAX_RUN_STEPS = 1e18
STEPS_PER_SECOND, RUN_STEPS_PER_SECOND = 1e8, 1e11
YEAR = 365.25 * 86400.0
MEMORY_FRACTION = 0.9  # of what is free, for arrays whose size is known exactly


def check_steps(argument: str, value: object, steps: float, fix: str = "give less") -> None:
    """Refuse a number of steps of one run that no machine gets through."""
    if not steps <= MAX_STEPS:
        years = steps / STEPS_PER_SECOND / YEAR
        raise checks.reject(
            argument,
            value,
            f"that is {steps:.3g} steps a run, {years:.2g} years at {STEPS_PER_SECOND:.0e} steps a second: {fix}",
        )


def check_work(argument: str, runs: float, steps: float, moves: float = 1.0) -> None:
    """Refuse so many runs of so many steps (of so many `moves` each) together."""
    check_steps(argument, float(steps), float(steps) * moves)
    work = float(runs) * float(steps) * moves
    if not work <= MAX_RUN_STEPS:
        years = work / RUN_STEPS_PER_SECOND / YEAR
        raise checks.reject(
            "runs",
            runs,
            f"{steps:.3g} steps of each are {work:.3g} steps in all, {years:.2g} years at {RUN_STEPS_PER_SECOND:.0e} a second: give fewer "
            "runs or shorter times",
        )


def check_memory(
    argument: str, value: object, needed: float, what: str, fix: str, host: bool = False
) -> None:
    """Reject arrays that do not fit into the free memory of JAX's device, or of the `host`."""
    if needed < 1 << 28:  # asking the system costs more than these
        return
    free = host_bytes() if host else available_bytes()
    if needed > MEMORY_FRACTION * free:
        raise checks.reject(
            argument,
            value,
            f"{what} need {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free: {fix}",
        )


def available_bytes() -> float:
    """Memory that is free on the device that JAX computes on: of a GPU what JAX may still take, else RAM; infinite where nobody says."""
    import jax

    if jax.default_backend() != "cpu":
        stats = jax.local_devices()[0].memory_stats() or {}
        return (
            float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
            if "bytes_limit" in stats
            else np.inf
        )
    return host_bytes()


def host_bytes() -> float:
    """Free RAM, and the rest of a container's limit; infinite if the system reports neither."""
    free = np.inf
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in os.sysconf_names:
            free = min(free, float(os.sysconf(name)) * os.sysconf("SC_PAGE_SIZE"))
    try:  # files that are only cached count as free
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = float(lines["MemAvailable"].split()[0]) * 1024
        limit, used = (
            Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current")
        )
        return free if limit == "max" else min(free, float(limit) - float(used))
    except (OSError, KeyError, ValueError):
        return free
