"""What the tests share: compiled programs, the start S0 of the reference values, and statistical checks with a stated false-alarm rate."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
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


SLOWEST = 900  # seconds that a test of a tenth may take
HANGING = 1200  # seconds after which a test is taken to hang


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

# XLA's older code generator, and less of LLVM's optimisation, in one piece: the workers have every core busy already
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"


def pytest_configure(config: pytest.Config) -> None:
    """The fast tests, whose time is that of the compiler, run on XLA's older code generator and with little of LLVM's optimisation: a third
    less time, the same numbers. Those not marked `runs_long` are not optimised at all: half the time to compile, several times
    that to run.

    What runs the slow ones (`make slow`, `make tenth`, `make docs`) keeps the compiler as users have it.
    """
    config.addinivalue_line(
        "markers",
        "runs_long: its time is that of running, so that its programs are optimised also in the fast set",
    )
    flags = os.environ.get("XLA_FLAGS", "")
    if config.option.markexpr != "not slow" or QUICK in flags or hasattr(config, "workerinput"):
        return
    # an XLA that no longer has the flag refuses to start, so another process tries it first
    quick = {**os.environ, "XLA_FLAGS": f"{flags} {QUICK}".strip()}
    if (
        subprocess.run(
            [sys.executable, "-c", "import jax; jax.devices()"], env=quick, capture_output=True
        ).returncode
        == 0
    ):
        os.environ["XLA_FLAGS"] = quick["XLA_FLAGS"]


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    unoptimised = item.config.option.markexpr == "not slow" and not item.get_closest_marker(
        "runs_long"
    )
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(
        int(unoptimised)
    )  # for the processes that it starts: the same to the bit
    jax.config.update("jax_disable_most_optimizations", unoptimised)


@contextmanager
def optimised():
    """As in a test marked `runs_long`, for the part of a test whose time is that of running."""
    before = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1"  # of `pytest_runtest_setup`
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def pytest_collection_finish() -> None:
    """Traces make many objects that all live on: Python's collector would look through everything imported again and again for nothing."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tenth",
        type=int,
        help="of the tests that are collected only the tenth with this number, taken modulo ten",
    )


@pytest.hookimpl(trylast=True)  # after the choice by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tenth asked for. Each file deals its tests out one by one: cases of one kind, which take about as long, are spread over all."""
    if (number := config.getoption("--tenth")) is None:
        return
    dealt = tenths([item.nodeid for item in items])
    config.hook.pytest_deselected(
        items=[item for item in items if dealt[item.nodeid] != number % 10]
    )
    items[:] = [item for item in items if dealt[item.nodeid] == number % 10]


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A test that hangs, in compiled code too, ends its process, which fails it: nobody waits for it. A test of a tenth fails where it
    takes too long, so that those who wait for all of them know how long at most."""
    faulthandler.dump_traceback_later(HANGING, exit=True)
    try:
        return (yield from _in_time(item))
    finally:
        faulthandler.cancel_dump_traceback_later()


def _in_time(item: pytest.Item):
    if item.config.getoption("--tenth") is None or not hasattr(signal, "SIGALRM"):
        return (yield)

    def too_long(*_):
        pytest.fail(f"{item.nodeid} takes more than {SLOWEST} s: make it cheaper")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SLOWEST)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_room() -> None:
    """Every compiled program takes maps of memory, of which Linux gives a process 65530; one more and the compiler crashes."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Programs of the modules before are dropped where they take too much room."""
    yield
    make_room()


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
