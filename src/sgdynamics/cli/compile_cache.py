"""A folder of compiled programs: JAX's compilation cache, filled with those of a first session.

No import uses it. JAX reads the folder that the environment variable JAX_COMPILATION_CACHE_DIR
names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MIN_COMPILE_SECONDS = 0.1  # reading a program takes about as long


def folder() -> Path:
    """The folder that the environment names; by default the user's folder for caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sgdynamics" / "programs"


def warm() -> dict[str, Any]:
    """Compile the programs of the README's first example and of the explorer's first page."""
    import jax
    import numpy as np

    from sgdynamics.algorithms.one_pass import OnePassSGD
    from sgdynamics.base import checks
    from sgdynamics.cli.explorer.curves import curves
    from sgdynamics.cli.explorer.states import State
    from sgdynamics.problems import TeacherStudent, random_start
    from sgdynamics.solvers.ode import solve_ode
    from sgdynamics.solvers.simulate import simulate

    cache = folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise checks.reject(
            VARIABLE,
            str(cache),
            f"the folder cannot be created ({error.strerror}). Name another one.",
        ) from None
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    begin_time = time.perf_counter()
    # The sizes of the README's example, because programs depend on them; a test compares.
    problem, algorithm = TeacherStudent(width=2, activation="erf", noise=0.01), OnePassSGD(lr=0.5)
    start = random_start(problem, dimension=1000, seed=0)
    times = np.linspace(0, 4, 5)
    solve_ode(problem, algorithm, start, times=times)
    simulate(problem, algorithm, start, times=times[:2], dimension=1000, runs=100, progress=False)
    curves(State(), pieces=1)
    files = [path for path in cache.iterdir() if path.is_file()]
    about = {"folder": str(cache), "programs": sum(path.name.endswith("-cache") for path in files)}
    return about | {
        "bytes": sum(path.stat().st_size for path in files),
        "seconds": round(time.perf_counter() - begin_time, 1),
    }
