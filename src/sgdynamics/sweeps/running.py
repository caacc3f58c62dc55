"""Who computes the groups of a sweep: this process, processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import threading
import time
import warnings
from collections.abc import Generator, Iterator
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
from typing import Any

from sgdynamics.base import checks
from sgdynamics.sweeps.answers import Stack, error_text, failure
from sgdynamics.sweeps.compute import compute
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import Point

WORTH_PROCESSES = (
    30.0  # seconds of work left: several times what it takes to start Python and compile in each
)
TO_JUDGE = 5.0  # seconds of work before that is estimated
FEW_CORES = 4
DIED = "the process that computed this point died twice (killed, or out of memory)"

NO_GUARD = 'sweep: processes cannot be started; a script that starts them needs its calls under if __name__ == "__main__":, or take workers=1'

Task = tuple[list[Point], int]


class CannotStart(RuntimeError):
    """Processes of this machine do not come up."""


def refuse_inside_a_start() -> None:
    """A process that is just starting runs the script that started it: a sweep there would be that script's, once more."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise CannotStart(NO_GUARD)


def answers(
    job: Job, tasks: list[Task], swept: list[str], workers: int | None, scheduler: Any
) -> Generator[Stack]:
    """Finished groups, in whatever order they finish."""
    if not tasks:
        return
    if scheduler is not None:
        yield from _on_cluster(job, tasks, swept, scheduler)
    elif workers == 1:
        for points, size in tasks:
            yield from compute(job, points, size, swept)
    elif workers is None:
        yield from _as_needed(job, tasks, swept)
    else:
        yield from _on_processes(job, tasks, swept, workers)


def _as_needed(job: Job, tasks: list[Task], swept: list[str]) -> Generator[Stack]:
    """In this process as long as little is left to do, then in processes on all cores: the answers are the same."""
    # here, because it starts the backend: on an accelerator several processes would fight for its memory
    import jax

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    alone = cores == 1 or jax.default_backend() != "cpu"
    # programs of many lanes leave Python alone while they run, so threads fill the cores; a solver by itself may not bear them
    threads = cores if min(size for _, size in tasks) > 1 and not alone else 1
    yield from compute(job, *tasks[0], swept)  # this one compiles, which says nothing of the others
    waiting, began, done = tasks[:0:-1], time.monotonic(), 0
    missing = sum(len(points) for points, _ in waiting)
    stop = threading.Event()
    for stack in _in_threads(job, waiting, swept, threads, stop):
        yield stack
        took, done, missing = time.monotonic() - began, done + len(stack), missing - len(stack)
        # a few threads are as good as processes; many wait for one another's Python
        stay = (
            alone
            or 1 < threads <= FEW_CORES
            or took < TO_JUDGE
            or took / done * missing < WORTH_PROCESSES
        )
        if not stay and len(waiting) > 1:
            stop.set()
    if not waiting:
        return
    there: set[str] = set()
    try:
        for stack in _on_processes(job, waiting[::-1], swept, min(cores, len(waiting))):
            there.update(stack.names)
            yield stack
    except CannotStart as error:
        warnings.warn(f"{error}; going on in this process", stacklevel=4)
        for points, size in waiting[::-1]:
            if points[0].name not in there:
                yield from compute(job, points, size, swept)


def _in_threads(
    job: Job, waiting: list[Task], swept: list[str], threads: int, stop: threading.Event
) -> Generator[Stack]:
    """Groups from the end of `waiting`, until it is told to stop."""
    if threads == 1:
        while waiting and not stop.is_set():
            yield from compute(job, *waiting.pop(), swept)
        return
    running: set[Future[list[Stack]]] = set()
    with ThreadPoolExecutor(threads) as pool:
        while running or (waiting and not stop.is_set()):
            while waiting and not stop.is_set() and len(running) < threads:
                points, size = waiting.pop()
                running.add(pool.submit(compute, job, points, size, swept))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield from future.result()


def packed(job: Job) -> bytes:
    """A job as bytes for another process; functions of notebooks and closures travel by value where cloudpickle is installed."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(job)
    except Exception as error:
        raise ValueError(
            f"workers: the sweep cannot be sent to other processes ({error}): install cloudpickle, define functions at the top of a "
            "module, or take workers=1"
        ) from None


_jobs: dict[str, Job] = {}


def remote(job: bytes, points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    """What a worker does; it unpacks a job once."""
    mark = hashlib.sha256(job).hexdigest()
    if mark not in _jobs:
        _jobs.clear()
        _jobs[mark] = pickle.loads(job)
    return compute(_jobs[mark], points, size, swept)


_sent: bytes = b""


def _start_worker(job: bytes) -> None:
    """At the start of a worker process: keep the job, and end with the parent, even where that is killed."""
    global _sent
    _sent = job
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _local(points: list[Point], size: int, swept: list[str]) -> list[Stack]:
    return remote(_sent, points, size, swept)


@contextmanager
def _few_threads(each: int) -> Iterator[None]:
    """Processes started inside have this many threads each, so that all of them together have as many as there are cores."""
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(each) for name in names})
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
    """Processes of this machine, started afresh (JAX does not survive a fork). One that dies takes its group with it: it is tried again."""
    sent = packed(job)
    waiting = list(tasks)[::-1]
    suspects: list[
        Task
    ] = []  # running when a process died: tried one at a time, so that it is clear which one it is
    deaths: dict[str, int] = {}
    while waiting or suspects:
        alone = bool(suspects)
        queue, count = (suspects, 1) if alone else (waiting, workers)
        running: dict[Future[list[Stack]], Task] = {}
        with _few_threads(max(1, (os.cpu_count() or 1) // workers)):
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
                        running[pool.submit(_local, *task, swept)] = task
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
                    # the first death may have been a neighbour's; alone, two are enough
                    if deaths[name] > 2:
                        yield failure([point.name for point in points], DIED)
                    else:
                        suspects.append((points, size))
            finally:
                _stop(pool, bool(running))


def _wait_for(pool: ProcessPoolExecutor) -> None:
    """Until a process answers: one that dies before has not died of a point."""
    try:
        pool.submit(_ready).result()
    except BrokenProcessPool:
        raise CannotStart(NO_GUARD) from None


def _stop(pool: ProcessPoolExecutor, busy: bool) -> None:
    """End the processes of a pool; at once where they still work on what nobody waits for."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    if busy:
        for process in processes:
            process.terminate()
    for process in processes:
        process.join(timeout=10)


def _on_cluster(job: Job, tasks: list[Task], swept: list[str], scheduler: Any) -> Generator[Stack]:
    """A Dask cluster, by its address or its Client. What a lost worker had is computed again by another."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise checks.reject(
            "scheduler", scheduler, "needs Dask: pip install 'sgdynamics[cluster]'"
        ) from None
    if not isinstance(scheduler, (str, Client)):
        raise checks.reject(
            "scheduler",
            scheduler,
            'give the address of a scheduler, such as "tcp://10.0.0.1:8786", or a distributed.Client',
        )
    try:
        client = Client(scheduler) if isinstance(scheduler, str) else scheduler
    except (ValueError, OSError) as error:
        raise checks.reject(
            "scheduler",
            scheduler,
            f'no scheduler answers there ({error}): give its address, "tcp://host:port"',
        ) from error
    try:
        sent = packed(job)
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
