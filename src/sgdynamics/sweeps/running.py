"""Execution of a sweep: in this process, in processes on this machine, or on a Dask cluster."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import pickle
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import jax

from sgdynamics.base import checks
from sgdynamics.base.arrays import Device
from sgdynamics.base.cores import count_cores
from sgdynamics.base.devices import limited_devices
from sgdynamics.sweeps.answers import Stack, error_text, failure
from sgdynamics.sweeps.compute import compute
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import Point

if TYPE_CHECKING:
    from distributed import Client

# Seconds of remaining work from which processes pay: several times the cost of starting Python and
# compiling in each of them.
WORTH_PROCESSES = 30.0
SECONDS_TO_ESTIMATE = 5.0  # work before the remaining time is estimated
FEW_CORES = 4
DIED = "the process that computed this point died twice (killed, or out of memory)"

NO_GUARD = (
    "sweep: processes cannot be started; a script that starts them needs its calls under "
    'if __name__ == "__main__":, or take workers=1'
)

Task = tuple[list[Point], int]


class CannotStart(RuntimeError):
    """Processes cannot be started on this machine."""


def reject_inside_worker_start() -> None:
    """Raise an error in a process that is just starting.

    It runs the script that started it, so the sweep of that script would run once more.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise CannotStart(NO_GUARD)


def compute_tasks(
    job: Job,
    tasks: list[Task],
    swept: list[str],
    workers: int | None,
    scheduler: str | Client | None,
    devices: Sequence[Device],
) -> Generator[Stack]:
    """Compute groups of points, in the order in which they finish."""
    if not tasks:
        return
    if scheduler is not None:
        yield from _on_cluster(job, tasks, swept, scheduler)
    elif workers == 1:
        for points, size in tasks:
            yield from _compute_on(devices, job, points, size, swept)
    elif workers is None:
        yield from _as_needed(job, tasks, swept, devices)
    else:
        yield from _on_processes(job, tasks, swept, workers)


def _compute_on(
    devices: Sequence[Device], job: Job, points: list[Point], size: int, swept: list[str]
) -> list[Stack]:
    """Compute a group of points on these devices; JAX's settings are those of a thread."""
    with limited_devices(devices):
        return compute(job, points, size, swept)


def _as_needed(
    job: Job, tasks: list[Task], swept: list[str], devices: Sequence[Device]
) -> Generator[Stack]:
    """Compute in this process as long as little is left to do, then in processes on all cores."""
    # On an accelerator several processes would compete for its memory.
    cores = count_cores()
    is_single = cores == 1 or jax.default_backend() != "cpu"
    # Programs of many points release Python's lock while they run, so threads fill the cores. A
    # solver that takes one point may not be safe in threads.
    is_batched = min(size for _, size in tasks) > 1
    threads = cores if is_batched and not is_single else 1
    threads = max(threads, len(devices)) if is_batched else threads
    # Each thread has a device of its own, if there are several.
    shares: list[Sequence[Device]] = [devices]
    if is_batched:
        shares = [[device] for device in devices]
    # The first group compiles, so its time says nothing about the others.
    yield from _compute_on(shares[0], job, *tasks[0], swept)
    waiting, start_time, done = tasks[:0:-1], time.monotonic(), 0
    missing = sum(len(points) for points, _ in waiting)
    stop = threading.Event()
    for stack in _in_threads(job, waiting, swept, threads, stop, shares):
        yield stack
        done, missing = done + len(stack), missing - len(stack)
        seconds = time.monotonic() - start_time
        # A few threads are as fast as processes; many wait for Python's lock.
        stay = (
            is_single
            or 1 < threads <= FEW_CORES
            or seconds < SECONDS_TO_ESTIMATE
            or seconds / done * missing < WORTH_PROCESSES
        )
        if not stay and len(waiting) > 1:
            stop.set()
    if not waiting:
        return
    finished: set[str] = set()
    try:
        for stack in _on_processes(job, waiting[::-1], swept, min(cores, len(waiting))):
            finished.update(stack.names)
            yield stack
    except CannotStart as error:
        warnings.warn(f"{error}; continuing in this process", stacklevel=4)
        for points, size in waiting[::-1]:
            if points[0].name not in finished:
                yield from _compute_on(devices, job, points, size, swept)


def _in_threads(
    job: Job,
    waiting: list[Task],
    swept: list[str],
    threads: int,
    stop: threading.Event,
    shares: list[Sequence[Device]],
) -> Generator[Stack]:
    """Compute groups from the end of `waiting`, until `stop` is set.

    The groups take the `shares` of the devices in turn.
    """
    if threads == 1:
        while waiting and not stop.is_set():
            yield from _compute_on(shares[0], job, *waiting.pop(), swept)
        return
    running: set[Future[list[Stack]]] = set()
    turns = itertools.cycle(shares)
    with ThreadPoolExecutor(threads) as pool:
        while running or (waiting and not stop.is_set()):
            while waiting and not stop.is_set() and len(running) < threads:
                points, size = waiting.pop()
                running.add(pool.submit(_compute_on, next(turns), job, points, size, swept))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield from future.result()


def pack(job: Job) -> bytes:
    """Serialise a job for another process.

    With cloudpickle, functions of notebooks and closures are sent by value.
    """
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(job)
    except Exception as error:
        raise ValueError(
            f"workers: the sweep cannot be sent to other processes ({error}). Install cloudpickle, "
            "define functions at the top of a module, or use workers=1."
        ) from None


_jobs: dict[str, Job] = {}


def remote(job: bytes, points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    """Compute points in a worker, which unpacks a job once."""
    key = hashlib.sha256(job).hexdigest()
    if key not in _jobs:
        _jobs.clear()
        _jobs[key] = pickle.loads(job)
    return compute(_jobs[key], points, size, swept)


_sent: bytes = b""


def _start_worker(job: bytes) -> None:
    """Initialise a worker process: store the job, and exit when the parent process does."""
    global _sent
    _sent = job
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _compute_sent(points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    return remote(_sent, points, size, swept)


@contextmanager
def _limited_threads(count: int) -> Iterator[None]:
    """Limit the threads of processes started inside, so that they share the cores."""
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(count) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _ready() -> bool:
    return True


def _on_processes(job: Job, tasks: list[Task], swept: list[str], workers: int) -> Generator[Stack]:
    """Compute in new processes on this machine, because JAX does not survive a fork.

    A process that dies loses its group, which is tried again.
    """
    sent = pack(job)
    waiting = list(tasks)[::-1]
    # Groups that were running when a process died. They are tried one at a time, to find the cause.
    suspects: list[Task] = []
    deaths: dict[str, int] = {}
    while waiting or suspects:
        queue, count = (suspects, 1) if suspects else (waiting, workers)
        running: dict[Future[list[Stack]], Task] = {}
        with _limited_threads(max(1, (os.cpu_count() or 1) // workers)):
            pool = ProcessPoolExecutor(
                count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(sent,),
            )
            try:
                _wait_for(pool)
                while queue or running:
                    while queue and len(running) < count:
                        task = queue.pop()
                        running[pool.submit(_compute_sent, *task, swept)] = task
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        stacks = future.result()
                        del running[future]
                        yield from stacks
            except BrokenProcessPool:
                broken = list(running.values())
                running = {}
                for points, size in broken:
                    name = points[0].name
                    deaths[name] = deaths.get(name, 0) + 1
                    # The first death may have been caused by another group; alone, two are enough.
                    if deaths[name] > 2:
                        yield failure([point.name for point in points], DIED)
                    else:
                        suspects.append((points, size))
            finally:
                _stop(pool, bool(running))


def _wait_for(pool: ProcessPoolExecutor) -> None:
    """Wait until a process answers: if it dies before, no point is the cause."""
    try:
        pool.submit(_ready).result()
    except BrokenProcessPool:
        raise CannotStart(NO_GUARD) from None


def _stop(pool: ProcessPoolExecutor, busy: bool) -> None:
    """End the processes of a pool; terminate them if they still work on abandoned points."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    if busy:
        for process in processes:
            process.terminate()
    for process in processes:
        process.join(timeout=10)


def _on_cluster(
    job: Job, tasks: list[Task], swept: list[str], scheduler: str | Client
) -> Generator[Stack]:
    """Compute on a Dask cluster; the points of a lost worker are computed again by another."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise checks.reject(
            "scheduler", scheduler, "this needs Dask: pip install 'sgdynamics[cluster]'"
        ) from None
    if not isinstance(scheduler, (str, Client)):
        raise checks.reject(
            "scheduler",
            scheduler,
            'this must be an address such as "tcp://10.0.0.1:8786", or a distributed.Client.',
        )
    try:
        client = Client(scheduler) if isinstance(scheduler, str) else scheduler
    except (ValueError, OSError) as error:
        raise checks.reject(
            "scheduler",
            scheduler,
            f'no scheduler answers at this address ({error}). Use "tcp://host:port".',
        ) from error
    try:
        sent = pack(job)
        futures = {
            client.submit(remote, sent, points, size, swept, pure=False): points
            for points, size in tasks
        }
        for future in as_completed(list(futures)):
            points = futures[future]
            error = future.exception() if future.status != "finished" else None
            if error is None:
                yield from future.result()
            else:
                yield failure([point.name for point in points], error_text(error))
            future.release()
    finally:
        if client is not scheduler:
            client.close()
