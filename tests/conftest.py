"""What the tests share: compiled programs, the start S0 of the reference values, and statistical checks with a stated false-alarm rate."""

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

FALSE_ALARM = 1e-6  # of each statistical check
Z = float(stats.norm.isf(FALSE_ALARM / 2))  # 4.9 standard errors

S0_M = np.array([[0.2, 0.1], [0.1, 0.2], [-0.1, 0.05], [0.05, -0.15]])
S0_Q = S0_M @ S0_M.T + np.diag([0.9, 1.0, 1.1, 0.8])

MANY_MAPS = 30_000

C4 = np.array(
    [[1, 0.3, 0.2, 0.1], [0.3, 1.2, 0.4, 0.25], [0.2, 0.4, 0.9, 0.35], [0.1, 0.25, 0.35, 1.1]]
)


def share_programs() -> None:
    """Let the processes of this run share what they compile: pytest's workers, the commands that tests start, and a process whose own
    programs were dropped to make room.

    The folder is of this run alone: programs are made for one machine, and a folder that stays would have to be pruned. The library never
    sets this; a folder that the user has set is left as it is.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # the user's, or this is a worker and the folder is that of its controller
    folder = tempfile.mkdtemp(prefix="sgdynamics-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # what compiles faster is not read faster than compiled
    for name, value in (
        ("jax_compilation_cache_dir", folder),
        ("jax_persistent_cache_min_compile_time_secs", 0.2),
    ):
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


share_programs()


@contextmanager
def optimised():
    """As in a test marked `runs_long`, for the part of a test whose time is that of running."""
    before = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1"  # of `pytest_runtest_setup`
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def tenths(names: list[str]) -> dict[str, int]:
    """The tenth of each test, by its name in pytest; where a file begins to deal is the file's own, so that small files are spread too."""
    files = defaultdict(list)
    for name in sorted(names):
        files[name.partition("::")[0]].append(name)
    return {
        name: (place + zlib.crc32(file.encode())) % 10
        for file, tests in files.items()
        for place, name in enumerate(tests)
    }


def make_room() -> None:
    """Every compiled program takes maps of memory, of which Linux gives a process 65530; one more and the compiler crashes."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


def slow(names, later):
    """Parameters of a test of which some run with the slow reproductions only (each is a program of its own to compile)."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in later else name for name in names]


def s0(problem: sgd.Problem) -> sgd.Start:
    """The start S0, with rows normalised where the problem is on the sphere."""
    if problem.constraint == "sphere":
        norm = np.sqrt(np.diag(S0_Q))
        return sgd.start(problem, M=S0_M / norm[:, None], Q=S0_Q / np.outer(norm, norm))
    return sgd.start(problem, M=S0_M, Q=S0_Q)


def same_law(one: np.ndarray, other: np.ndarray, what: str) -> None:
    """Two samples agree in law: Kolmogorov-Smirnov, mean and variance, each at the false-alarm rate above."""
    # atoms (a ReLU that was never active, a row on the sphere) are equal up to rounding
    one, other = np.round(one, 11), np.round(other, 11)
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        assert one[0] == other[0], what
        return
    ks = stats.ks_2samp(one, other)
    assert ks.pvalue > FALSE_ALARM, f"{what}: KS p = {ks.pvalue:.2e}"
    for name, f in (("mean", lambda x: x), ("variance", lambda x: (x - x.mean()) ** 2)):
        a, b = f(one), f(other)
        error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        assert abs(a.mean() - b.mean()) <= Z * error, (
            f"{what}: {name} {a.mean():.6g} against {b.mean():.6g} ± {error:.2g}"
        )
    for level in (0.1, 0.5, 0.9):
        # the quantile of one sample splits the other in the same proportion
        split = np.quantile(one, level, method="lower")
        share, expected = np.mean(other <= split), np.mean(one <= split)
        error = np.sqrt(expected * (1 - expected) * (1 / len(one) + 1 / len(other)))
        assert abs(share - expected) <= Z * error + 2 / len(one), (
            f"{what}: quantile {level}: {share:.4f} for {expected:.4f}"
        )


@pytest.fixture
def phase_retrieval() -> sgd.TeacherStudent:
    return sgd.TeacherStudent(width=2, activation="square", noise=0.1)
