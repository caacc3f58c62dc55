"""Pytest hooks for the tests of both distributions, ``tests`` and ``reproductions/tests``.

Helpers that tests import are in ``tests/conftest.py``.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys

import jax
import pytest
from tests.conftest import clear_full_caches, tenths

MAX_SECONDS = 900  # time limit of one test in a run of `--tenth`
HANG_SECONDS = 1200  # time after which a test is considered to hang

# XLA's older code generator with little LLVM optimisation, in a single piece, because the pytest
# workers already occupy all cores.
FAST_COMPILATION = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the fast tests with XLA's older code generator and little LLVM optimisation.

    The fast tests spend their time in the compiler: these flags save a third of it and give the
    same numbers. Tests without the marker `runs_long` are not optimised at all, which halves the
    compile time and multiplies the run time. Runs of the slow tests (`make slow`, `make tenth`,
    `make docs`) use the compiler as users have it.
    """
    config.addinivalue_line(
        "markers",
        "runs_long: spends its time in running, so its programs are optimised in fast runs too",
    )
    flags = os.environ.get("XLA_FLAGS", "")
    is_worker = hasattr(config, "workerinput")
    if config.option.markexpr != "not slow" or FAST_COMPILATION in flags or is_worker:
        return
    # XLA aborts on an unknown flag, so a separate process tries the flags first.
    environment = {**os.environ, "XLA_FLAGS": f"{flags} {FAST_COMPILATION}".strip()}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    if subprocess.run(command, env=environment, capture_output=True).returncode == 0:
        os.environ["XLA_FLAGS"] = environment["XLA_FLAGS"]


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    is_fast_run = item.config.option.markexpr == "not slow"
    unoptimised = is_fast_run and not item.get_closest_marker("runs_long")
    # The environment variable is for processes that the test starts: both must agree bit by bit.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(unoptimised))
    jax.config.update("jax_disable_most_optimizations", unoptimised)


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection.

    Traces allocate many long-lived objects, and each of them would make the collector search all
    imported modules again.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tenth",
        type=int,
        help="run only one tenth of the collected tests: the one with this number, modulo ten",
    )


@pytest.hookimpl(trylast=True)  # after the selection by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tenth given by `--tenth`.

    The tests of a file are distributed in turn, so that cases of one kind, which take similar
    times, are spread over all tenths.
    """
    if (number := config.getoption("--tenth")) is None:
        return
    tenth_of = tenths([item.nodeid for item in items])
    selected = [item for item in items if tenth_of[item.nodeid] == number % 10]
    deselected = [item for item in items if tenth_of[item.nodeid] != number % 10]
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """End the process of a test that hangs, in compiled code too, so that the test fails.

    A test in a run of `--tenth` fails after `MAX_SECONDS`, which bounds the duration of the run.
    """
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        return (yield from _run_with_time_limit(item))
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run_with_time_limit(item: pytest.Item):
    if item.config.getoption("--tenth") is None or not hasattr(signal, "SIGALRM"):
        return (yield)

    def fail(*_):
        pytest.fail(f"{item.nodeid} takes more than {MAX_SECONDS} s. Make it cheaper.")

    previous_handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(MAX_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous_handler)


@pytest.fixture(autouse=True, scope="module")
def bounded_program_cache():
    """Drop the compiled programs of earlier modules when they take too much memory."""
    yield
    clear_full_caches()
