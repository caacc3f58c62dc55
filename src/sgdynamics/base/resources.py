"""Limits of memory and work: calls that no machine can finish raise ValueError at once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sgdynamics.base import checks

# The limits are generous, so that everything somebody could wait for is allowed. The steps of one
# run are sequential, and no program makes more than about 1e8 of them per second. Runs are
# parallel, and 1e11 run-steps per second are conceivable on an accelerator.
MAX_STEPS = 1e15
MAX_RUN_STEPS = 1e18
STEPS_PER_SECOND, RUN_STEPS_PER_SECOND = 1e8, 1e11
YEAR = 365.25 * 86400.0
# Fraction of the free memory that arrays of exactly known size may take.
MEMORY_FRACTION = 0.9


def check_steps(argument: str, value: object, steps: float, fix: str = "give less") -> None:
    """Raise ValueError if one run has more steps than any machine can make."""
    if not steps <= MAX_STEPS:
        years = steps / STEPS_PER_SECOND / YEAR
        rate = f"{STEPS_PER_SECOND:.0e} steps per second"
        raise checks.reject(
            argument,
            value,
            f"that is {steps:.3g} steps per run, {years:.2g} years at {rate}: {fix}",
        )


def check_work(argument: str, runs: float, steps: float, moves: float = 1.0) -> None:
    """Raise ValueError if all runs together have too many steps, of `moves` moves each."""
    check_steps(argument, float(steps), float(steps) * moves)
    work = float(runs) * float(steps) * moves
    if not work <= MAX_RUN_STEPS:
        years = work / RUN_STEPS_PER_SECOND / YEAR
        rate = f"{RUN_STEPS_PER_SECOND:.0e} per second"
        raise checks.reject(
            "runs",
            runs,
            f"with {steps:.3g} steps per run these are {work:.3g} steps in total, {years:.2g} "
            f"years at {rate}: give fewer runs or shorter times",
        )


def check_memory(
    argument: str, value: object, required: float, arrays: str, fix: str, host: bool = False
) -> None:
    """Raise ValueError if arrays exceed the free memory of JAX's device, or of the `host`."""
    # Reading the free memory would cost more than arrays of this size.
    if required < 1 << 28:
        return
    free = host_bytes() if host else available_bytes()
    if required > MEMORY_FRACTION * free:
        raise checks.reject(
            argument,
            value,
            f"{arrays} need {required / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free: {fix}",
        )


def available_bytes() -> float:
    """Free memory of the device that JAX computes on, in bytes.

    For a GPU this is the memory that JAX may still allocate, otherwise free RAM; infinite if
    unknown.
    """
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
    """Free RAM in bytes, within the limit of a container.

    Infinite if the system reports neither.
    """
    free = np.inf
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in getattr(os, "sysconf_names", ()):  # Windows has no sysconf
            free = min(free, float(os.sysconf(name)) * os.sysconf("SC_PAGE_SIZE"))
    try:
        # MemAvailable counts the cache of files as free.
        meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
        lines = dict(line.split(":", 1) for line in meminfo.splitlines())
        free = float(lines["MemAvailable"].split()[0]) * 1024
        limit, used = (
            Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="utf-8").strip()
            for name in ("max", "current")
        )
        return free if limit == "max" else min(free, float(limit) - float(used))
    except (OSError, KeyError, ValueError):
        return free
