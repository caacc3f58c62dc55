"""Compiled programs, kept in a folder that the user asks for: JAX's own cache, filled beforehand with what a first session computes.

Nothing here is done by an import: the folder is used where the environment variable JAX_COMPILATION_CACHE_DIR names it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
SHORTEST = 0.1  # seconds: what compiles faster is hardly read faster


def folder() -> Path:
    """The folder that the environment names, else the user's own for caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sgdynamics" / "programs"


def warm() -> dict[str, Any]:
    """Fill the folder with the programs of the README's first block and of the explorer's first state."""
    import jax
    import numpy as np

    from sgdynamics.algorithms.one_pass import OnePassSGD
    from sgdynamics.base import checks
    from sgdynamics.cli.explorer.curves import curves
    from sgdynamics.cli.explorer.states import State
    from sgdynamics.problems import TeacherStudent, random_start
    from sgdynamics.solvers.ode import solve_ode
    from sgdynamics.solvers.simulate import simulate

    where = folder()
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise checks.reject(
            VARIABLE, str(where), f"no folder can be made there ({error.strerror}): name another"
        ) from None
    jax.config.update("jax_compilation_cache_dir", str(where))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    began = time.perf_counter()
    # as in the README: sizes are those of the programs, and a test holds that its block finds them
    problem, algorithm = TeacherStudent(width=2, activation="erf", noise=0.01), OnePassSGD(lr=0.5)
    start = random_start(problem, dimension=1000, seed=0)
    times = np.linspace(0, 4, 5)
    solve_ode(problem, algorithm, start, times=times)
    simulate(problem, algorithm, start, times=times[:2], dimension=1000, runs=100, progress=False)
    curves(State(), pieces=1)
    files = [path for path in where.iterdir() if path.is_file()]
    about = {"folder": str(where), "programs": sum(path.name.endswith("-cache") for path in files)}
    return about | {
        "bytes": sum(path.stat().st_size for path in files),
        "seconds": round(time.perf_counter() - began, 1),
    }
