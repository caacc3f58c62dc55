"""Hooks of pytest for the tests of both distributions, ``tests`` and ``reproductions/tests``.

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
from tests.conftest import make_room, tenths

SLOWEST = 900  # seconds that a test of a tenth may take
HANGING = 1200  # seconds after which a test is taken to hang

# XLA's older code generator, and less of LLVM's optimisation, in one piece: the workers have every
# core busy already
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"


def pytest_configure(config: pytest.Config) -> None:
    """The fast tests, whose time is that of the compiler, run on XLA's older code generator and
    with little of LLVM's optimisation: a third less time, the same numbers. Those not marked
    `runs_long` are not optimised at all: half the time to compile, several times that to run.

    What runs the slow ones (`make slow`, `make tenth`, `make docs`) keeps the compiler as users
    have it.
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


def pytest_collection_finish() -> None:
    """Traces make many objects that all live on: Python's collector would look through everything
    imported again and again for nothing.
    """
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
    """The tenth asked for. Each file deals its tests out one by one: cases of one kind, which take
    about as long, are spread over all.
    """
    if (number := config.getoption("--tenth")) is None:
        return
    dealt = tenths([item.nodeid for item in items])
    config.hook.pytest_deselected(
        items=[item for item in items if dealt[item.nodeid] != number % 10]
    )
    items[:] = [item for item in items if dealt[item.nodeid] == number % 10]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A test that hangs, in compiled code too, ends its process, which fails it: nobody waits for
    it. A test of a tenth fails where it takes too long, so that those who wait for all of them know
    how long at most.
    """
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


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Programs of the modules before are dropped where they take too much room."""
    yield
    make_room()
