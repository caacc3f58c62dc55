"""`sweep`: any solver over any parameters, with one labelled Dataset as the result."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.devices import choose_devices
from sgdynamics.base.progress import meter
from sgdynamics.results.datasets import encode
from sgdynamics.sweeps.answers import MISSING, Stack, dataset, select_points
from sgdynamics.sweeps.compute import batch_size
from sgdynamics.sweeps.job import AlgorithmArgument, Job, ProblemArgument, StartArgument
from sgdynamics.sweeps.points import Point, SweepPlan, groups, plan_sweep
from sgdynamics.sweeps.running import compute_tasks, reject_inside_worker_start
from sgdynamics.sweeps.store import Store
from sgdynamics.version import __version__

if TYPE_CHECKING:
    from distributed import Client

# Minimum time between two pieces of a store: a piece holds all points finished since the last one,
# so that cheap points do not make many small files.
SECONDS_BETWEEN_WRITES = 0.25


def sweep(
    solver: str | Function,
    *,
    over: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    problem: ProblemArgument = None,
    algorithm: AlgorithmArgument = None,
    start: StartArgument = None,
    store: str | PathLike[str] | None = None,
    workers: int | None = None,
    scheduler: str | Client | None = None,
    shard: tuple[int, int] | None = None,
    devices: int | None = None,
    progress: bool | None = None,
    **arguments: Any,
) -> xr.Dataset:
    """Run any solver at each point of a grid or of a list.

    Parameters
    ----------
    solver : str or callable
        "solve_ode", "solve_sde", "solve_mean_field", "solve_dmft", "solve_linear",
        "solve_large_batch", "simulate" or "exit_time", or a function of the parameters that returns
        a Dataset, a dataclass, a dictionary of numbers or a number.
    over : dict or list of dict
        A grid ``{"lr": [...], "problem.noise": [...]}``, or a list of points
        ``[{"lr": 0.1, ...}, ...]``. Names are dotted ("problem.noise", "algorithm.lr",
        "start.seed"), or bare where they are unique; "dimension", "seed" and "runs" are those of
        the solver rather than of the start. A function instead of a list makes a parameter depend
        on others: ``{"dimension": [...], "lr": lambda dimension: 0.1 / dimension}``; such a
        parameter is a variable of the result.
    problem : Problem or dict, optional
        Problem whose parameters the points vary: an object, or a record
        ``{"kind": "TeacherStudent", ...}``.
    algorithm : OnePassSGD, an algorithm on fixed data or dict, optional
        Algorithm whose parameters the points vary, likewise.
    start : Start, dict or callable, optional
        Initial condition, a record ``{"kind": "random", "seed": 0}``, or a function of (problem,
        parameters).
    store : str or path, optional
        Folder that stores points as they finish. A call that was stopped continues from it, and so
        does a call with more values; failed points are computed again.
    workers : int, optional
        Number of processes on this machine. By default this process works alone as long as little
        is left to do, and then all cores do (scripts need ``if __name__ == "__main__":``).
    scheduler : str or distributed.Client, optional
        Address or Client of a Dask cluster, instead of workers. The results do not depend on
        either.
    shard : (int, int), optional
        (i, n) computes every n-th group of points, for arrays of jobs that share a store, and
        returns the points that are finished. A last call without it returns all of them.
    devices : int, optional
        Number of local devices of this process; defaults to all of them. Points that are solved
        together are divided among them, and otherwise the runs or replicates of each point are.
    progress : bool, optional
        Whether to show a progress bar. By default it is shown on a terminal.
    **arguments
        Arguments of the solver: ``times``, ``dimension``, ``runs``, ...

    Returns
    -------
    xarray.Dataset
        Swept parameters as dimensions (for a list: "point"), then the dimensions of the solver.
        Arrays that are shorter at some points are filled with NaN. ``failed`` contains the error of
        each point that failed; the other points are not affected.

    Raises
    ------
    ValueError
        If a name is unknown, a value does not fit, or the store is damaged or belongs to another
        sweep; before anything is computed.
    OSError
        If the disk of the store is full. Finished points stay stored: the same call continues from
        them.

    Notes
    -----
    Points that differ only in numbers are solved together by the ODE (solve_ode, and exit_time with
    method="ode"). With other solvers they share their compiled program.

    A store identifies its points by everything that their functions compute with: bytecode, default
    arguments, closure variables, the global variables that they read, the state of bound objects,
    the contents of arrays, and the versions of installed packages. If any of these differs, the
    store belongs to another sweep. Each file in it has a checksum.

    Each point fails alone, with its error in ``failed``. This includes points whose answer has
    other dimensions than those of most points, and points that call ``sys.exit``.

    Examples
    --------
    >>> def product(lr, noise):
    ...     return {"product": lr * noise}
    >>> over = {"lr": [0.1, 0.2, 0.4], "noise": [1.0, 2.0]}
    >>> grid = sgd.sweep(product, over=over, workers=1, progress=False)
    >>> grid["product"].shape
    (3, 2)
    """
    reject_inside_worker_start()
    job = Job(solver, problem, algorithm, start, arguments)
    workers, shard_of = _check_settings(workers, shard, store)
    used_devices = choose_devices(devices)
    progress = checks.flag("progress", progress, optional=True)
    plan = plan_sweep(job, over)
    names = [point.name for point in plan.points]
    if store is not None and plan.unidentified is not None:
        raise checks.reject(
            "store",
            str(store),
            "the points of this sweep cannot be recognised later, because of "
            f"{plan.unidentified}. Replace it by numbers, text, arrays or functions of these, give "
            "its class a __getstate__ method that returns such values, or omit store",
        )
    folder = None if store is None else Store(store, job)
    stacks, versions = ([], [__version__]) if folder is None else folder.read()
    finished = {
        name
        for stack in stacks
        for name, error in zip(stack.names, stack.failed, strict=True)
        if not error
    }
    tasks = [] if set(names) <= finished else _tasks(job, plan.points, finished, shard_of)
    values = {point.name: json.dumps(point.identities) for point in plan.points}
    total = sum(len(points) for points, _ in tasks)
    unwritten: list[Stack] = []
    last_write = 0.0
    running = compute_tasks(job, tasks, list(plan.titles), workers, scheduler, used_devices)
    try:
        with meter(f"sweep, {job.name}, {total} points", total, progress) as bar:
            for stack in running:
                unwritten.append(stack)
                bar.advance(len(stack))
                if folder is not None and time.monotonic() - last_write > SECONDS_BETWEEN_WRITES:
                    # Emptied before the write: a full disk stays full, so each stack is tried once.
                    batch, unwritten = unwritten, []
                    stacks += folder.write(batch, values)
                    last_write = time.monotonic()
    finally:
        try:
            # Finished points are stored even if the user interrupts the sweep.
            if folder is not None and unwritten:
                batch, unwritten = unwritten, []
                stacks += folder.write(batch, values)
        finally:
            running.close()
    if shard is not None and folder is not None:
        stacks, versions = folder.read()  # other shards may have finished points meanwhile
    result = _result(job, plan, select_points(stacks + unwritten, names), versions)
    _warn(result)
    return result


def _check_settings(
    workers: int | None, shard: tuple[int, int] | None, store: str | PathLike[str] | None
) -> tuple[int | None, tuple[int, int]]:
    """The number of workers, and which share of the groups to compute."""
    workers = None if workers is None else checks.integer("workers", workers, 1, 100_000)
    if store is not None:
        checks.path("store", store)
    if shard is None:
        return workers, (0, 1)
    if store is None:
        raise checks.reject("shard", shard, "shards need a common store. Set store= too.")
    try:
        index, count = (checks.integer("shard", value, 0) for value in shard)
    except (TypeError, ValueError):
        raise checks.reject(
            "shard", shard, "this must be (i, n): part i of n, counted from 0."
        ) from None
    if not index < count:
        raise checks.reject("shard", shard, "this must be (i, n) with i = 0, ..., n - 1.")
    return workers, (index, count)


def _tasks(
    job: Job, points: list[Point], finished: set[str], shard: tuple[int, int]
) -> list[tuple[list[Point], int]]:
    """The unfinished points of each group, with the number of points that are solved together.

    The groups are those of the whole sweep: finished points change neither groups nor shards.
    """
    sizes: dict[int, int] = {}

    def size_of(point: Point) -> int:
        sizes[point.index] = batch_size(job, point)
        return sizes[point.index]

    tasks = []
    size = 1
    for number, group in enumerate(groups(points, size_of)):
        # Only the first point of a family has a size; the following groups have the same.
        size = sizes.get(group[0].index, size)
        missing = [point for point in group if point.name not in finished]
        if missing and number % shard[1] == shard[0]:
            tasks.append((missing, size))
    return tasks


def _result(job: Job, plan: SweepPlan, stack: Stack, versions: Iterable[str]) -> xr.Dataset:
    variables, coordinates = dataset(stack, plan.dims)
    dims, shape = tuple(plan.dims), tuple(len(labels) for labels in plan.dims.values())
    for name, labels in plan.dims.items():
        coordinates[name] = (name, _array(labels), {"long_name": plan.titles.get(name, name)})
    for name, (dim, labels) in plan.point_coordinates.items():
        coordinates[name] = (dim, _array(labels), {"long_name": plan.titles[name]})
    for name, labels in plan.dependent.items():
        attributes = {"long_name": plan.titles[name]}
        variables[name] = (dims, _array(labels).reshape(shape), attributes)
    for name, texts in (("failed", stack.failed), ("warning", stack.warning)):
        variables[name] = (dims, np.array(texts, dtype=str).reshape(shape))
    shared = job.describe()
    attributes = {
        "sweep": job.name,
        "over": encode({plan.titles.get(name, name): labels for name, labels in plan.dims.items()}),
        "fixed": encode({name: value for name, value in shared.items() if value is not None}),
        "points": len(plan.points),
        "version": ", ".join(versions),
        **stack.texts,
    }
    for name in ("problem", "algorithm"):
        if name in shared:
            attributes[name] = encode(shared[name])
    return xr.Dataset(variables, coordinates, attributes)


def _array(labels: list[Any]) -> np.ndarray:
    """Labels as an array; of numbers among texts, the text."""
    if any(isinstance(value, str) for value in labels):
        texts = [value if isinstance(value, str) else f"{value:g}" for value in labels]
        return np.array(texts, dtype=str)
    return np.array(labels)


def _warn(result: xr.Dataset) -> None:
    """Warn once for all points: how many failed or warned, and the first message."""
    failed = np.ravel(result["failed"].values)
    errors = [text for text in failed if text and text != MISSING]
    messages = [text for text in np.ravel(result["warning"].values) if text]
    for texts, verb, variable in ((errors, "failed", "failed"), (messages, "warned", "warning")):
        if texts:
            warnings.warn(
                f"sweep: {len(texts)} of {len(failed)} points {verb} (variable {variable!r}); the "
                f"first: {texts[0]}",
                stacklevel=3,
            )
