"""`sgdynamics info --warm`: a compilation cache with the programs of a first session."""

from __future__ import annotations

import time
from typing import Any


def warm() -> dict[str, Any]:
    """Compile the programs of the README's first example and of the explorer's first page."""
    import numpy as np

    from sgdynamics.algorithms.one_pass import OnePassSGD
    from sgdynamics.base.compile_cache import compile_cache
    from sgdynamics.cli.explorer.curves import curves
    from sgdynamics.cli.explorer.states import State
    from sgdynamics.problems import TeacherStudent, random_start
    from sgdynamics.solvers.ode import solve_ode
    from sgdynamics.solvers.simulate import simulate

    cache = compile_cache()
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
