"""Shared helpers of the tests.

They share compiled programs between processes, provide the start S0 of the reference values, and
compare samples at a stated false-alarm rate.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zlib
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd

FALSE_ALARM = 1e-6  # probability that a statistical check fails although the code is right
Z = float(stats.norm.isf(FALSE_ALARM / 2))  # 4.9 standard errors

S0_M = np.array([[0.2, 0.1], [0.1, 0.2], [-0.1, 0.05], [0.05, -0.15]])
S0_Q = S0_M @ S0_M.T + np.diag([0.9, 1.0, 1.1, 0.8])

# Number of memory maps of a process above which the compiled programs are dropped.
MAX_MEMORY_MAPS = 30_000

C4 = np.array(
    [[1, 0.3, 0.2, 0.1], [0.3, 1.2, 0.4, 0.25], [0.2, 0.4, 0.9, 0.35], [0.1, 0.25, 0.35, 1.1]]
)


def share_programs() -> None:
    """Share compiled programs between the processes of one test run.

    The processes are pytest's workers, the commands that tests start, and a process that has
    dropped its own programs. The cache folder is temporary, because programs are specific to the
    machine and a permanent folder would have to be pruned. The library itself never sets a cache
    folder, and a folder that the user has set stays in use.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # set by the user, or by the controller of this worker
    folder = tempfile.mkdtemp(prefix="sgdynamics-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Programs that compile in less than 0.2 s take as long to read from the cache.
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    for name, value in settings.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


share_programs()


@contextmanager
def full_optimisation():
    """Compile with all optimisations, as in a test marked `runs_long`, for a part of a test."""
    # `pytest_runtest_setup` in /conftest.py sets the variable.
    was_unoptimised = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1"
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", was_unoptimised)


def tenths(names: list[str]) -> dict[str, int]:
    """Assign each test, given by its pytest name, to one of ten parts.

    The tests of a file go to consecutive parts. The first part depends on the file name, so that
    small files are spread too.
    """
    tests_of_file = defaultdict(list)
    for name in sorted(names):
        tests_of_file[name.partition("::")[0]].append(name)
    return {
        name: (index + zlib.crc32(file.encode())) % 10
        for file, tests in tests_of_file.items()
        for index, name in enumerate(tests)
    }


def clear_full_caches() -> None:
    """Drop the compiled programs of this process if they use many memory maps.

    Linux allows 65530 memory maps per process, and the compiler crashes at the limit.
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MEMORY_MAPS:
        jax.clear_caches()


def slow(names, slow_names):
    """Parameters of a test, with the marker `slow` for those in `slow_names`.

    Each parameter compiles a program of its own, which makes some of them expensive.
    """
    return [
        pytest.param(name, marks=pytest.mark.slow) if name in slow_names else name for name in names
    ]


def s0(problem: sgd.Problem) -> sgd.Start:
    """The start S0 of the reference values, with normalised rows for a problem on the sphere."""
    if problem.constraint == "sphere":
        norm = np.sqrt(np.diag(S0_Q))
        return sgd.start(problem, M=S0_M / norm[:, None], Q=S0_Q / np.outer(norm, norm))
    return sgd.start(problem, M=S0_M, Q=S0_Q)


def same_law(sample: np.ndarray, other_sample: np.ndarray, label: str) -> None:
    """Assert that two samples agree in law.

    The distributions are compared by a Kolmogorov-Smirnov test, and the mean, the variance and
    three quantiles by their standard errors, each at the rate `FALSE_ALARM`.
    """
    # Atoms (a ReLU that was never active, a row on the sphere) are equal up to rounding.
    first, second = np.round(sample, 11), np.round(other_sample, 11)
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        assert first[0] == second[0], label
        return
    ks = stats.ks_2samp(first, second)
    assert ks.pvalue > FALSE_ALARM, f"{label}: KS p = {ks.pvalue:.2e}"
    for name, f in (("mean", lambda x: x), ("variance", lambda x: (x - x.mean()) ** 2)):
        a, b = f(first), f(second)
        error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        assert abs(a.mean() - b.mean()) <= Z * error, (
            f"{label}: {name} {a.mean():.6g} and {b.mean():.6g} ± {error:.2g}"
        )
    for level in (0.1, 0.5, 0.9):
        # The quantile of the first sample splits the second in the same proportion.
        split = np.quantile(first, level, method="lower")
        share, expected = np.mean(second <= split), np.mean(first <= split)
        error = np.sqrt(expected * (1 - expected) * (1 / len(first) + 1 / len(second)))
        assert abs(share - expected) <= Z * error + 2 / len(first), (
            f"{label}: quantile {level}: {share:.4f}, expected {expected:.4f}"
        )


@pytest.fixture
def phase_retrieval() -> sgd.TeacherStudent:
    return sgd.TeacherStudent(width=2, activation="square", noise=0.1)
