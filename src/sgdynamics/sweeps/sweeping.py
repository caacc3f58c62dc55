"""`sweep`: any solver over any parameters, as one labelled Dataset."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.progress import meter
from sgdynamics.results.datasets import encode
from sgdynamics.sweeps.answers import MISSING, Stack, chosen, dataset
from sgdynamics.sweeps.compute import together
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import Point, SweepPlan, groups, plan_sweep
from sgdynamics.sweeps.running import answers, refuse_inside_a_start
from sgdynamics.sweeps.store import Store
from sgdynamics.version import __version__

BETWEEN_WRITES = 0.25  # seconds: a piece holds what has finished since the last one, so that cheap points do not drown in files


def sweep(
    solver: str | Function,
    *,
    over: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    problem: Any = None,
    algorithm: Any = None,
    start: Any = None,
    store: str | PathLike[str] | None = None,
    workers: int | None = None,
    scheduler: Any = None,
    shard: tuple[int, int] | None = None,
    progress: bool | None = None,
    **arguments: Any,
) -> xr.Dataset:
    """Any solver at every point of a grid, or of a list.

    Parameters
    ----------
    solver : str or callable
        "solve_ode", "solve_sde", "solve_mean_field", "solve_dmft", "solve_linear", "solve_large_batch", "simulate", "exit_time", or a
        function of the parameters that returns a Dataset, a dataclass, a dictionary of numbers or a number.
    over : dict or list of dict
        A grid ``{"lr": [...], "problem.noise": [...]}``, or a list of points ``[{"lr": 0.1, ...}, ...]``. Names are dotted
        ("problem.noise", "algorithm.lr", "start.seed"), or bare where one thing has them; "dimension", "seed", "runs" are the solver's
        before the start's. A function in place of a list makes a parameter depend on others: ``{"dimension": [...], "lr": lambda dimension:
        0.1 / dimension}``; it is a variable of the result.
    problem : Problem or dict, optional
        What points vary: an object, or a record ``{"kind": "TeacherStudent", ...}``.
    algorithm : OnePassSGD, an algorithm on fixed data or dict, optional
        The same for the algorithm.
    start : Start, dict or callable, optional
        A start, a record ``{"kind": "random", "seed": 0}``, or a function of (problem, parameters).
    store : str or path, optional
        Folder in which finished points are stored as they are computed. A call that was stopped continues from there, and so does one
        with more values; failed points are computed again.
    workers : int, optional
        Processes on this machine; unless given this process as long as little is left to do, then all cores (scripts need
        ``if __name__ == "__main__":``).
    scheduler : str or distributed.Client, optional
        The address or Client of a Dask cluster, in place of workers. The numbers do not depend on either.
    shard : (int, int), optional
        (i, n) computes every n-th group, for arrays of jobs that share a store, and returns what is there so far; a last call without
        it puts everything together.
    progress : bool, optional
        A progress bar; unless given on a terminal only.
    **arguments
        Those of the solver: ``times``, ``dimension``, ``runs``, ...

    Returns
    -------
    xarray.Dataset
        The swept parameters as dimensions (a list: "point"), then the solver's own; what is shorter at some points is filled with NaN.
        ``failed`` has the error of every point that has one; the others go on.

    Raises
    ------
    ValueError
        If a name is not known, a value does not fit, or the store is damaged or belongs to another sweep, before anything runs.
    OSError
        If the disk of the store is full. Finished points stay stored: the same call continues from them.

    Notes
    -----
    Points that differ only in numbers are solved together by the ODE (solve_ode, and exit_time with method="ode"), elsewhere they share
    their compilation.

    A store recognises its points by all that their functions compute with: bytecode, default arguments, closure variables, the global
    variables that they read, the state of bound objects, the content of arrays, and the versions of installed packages. If any of these
    differs, the store belongs to another sweep. Every file in it has a checksum.

    Each point fails alone, with its error in ``failed``: also one whose answer has other dimensions than at most points, or one that
    calls ``sys.exit``.

    Examples
    --------
    >>> def product(lr, noise):
    ...     return {"product": lr * noise}
    >>> grid = sgd.sweep(product, over={"lr": [0.1, 0.2, 0.4], "noise": [1.0, 2.0]}, workers=1, progress=False)
    >>> grid["product"].shape
    (3, 2)
    """
    refuse_inside_a_start()
    job = Job(solver, problem, algorithm, start, arguments)
    workers, part = _checked(workers, shard, store)
    progress = checks.flag("progress", progress, optional=True)
    made = plan_sweep(job, over)
    swept = list(made.titles)
    if store is not None and made.unidentified is not None:
        raise checks.reject(
            "store",
            str(store),
            f"the points of this sweep cannot be recognised later, because of {made.unidentified}. Replace it by "
            "numbers, text, arrays or functions of these, give its class a __getstate__ method that returns such "
            "values, or omit store",
        )
    folder = None if store is None else Store(store, job)
    parts, versions = ([], [__version__]) if folder is None else folder.read()
    done = {
        name
        for piece in parts
        for name, failed in zip(piece.names, piece.failed, strict=True)
        if not failed
    }
    complete = {point.name for point in made.points} <= done
    tasks = [] if complete else _tasks(job, made.points, done, part)
    values = {point.name: json.dumps(point.identities) for point in made.points}
    total = sum(len(points) for points, _ in tasks)
    waiting: list[Stack] = []
    last = 0.0
    running = answers(job, tasks, swept, workers, scheduler)
    try:
        with meter(f"sweep, {job.name}, {total} points", total, progress) as shown:
            for stack in running:
                waiting.append(stack)
                shown.advance(len(stack))
                if folder is not None and time.monotonic() - last > BETWEEN_WRITES:
                    finished, waiting = waiting, []  # one attempt: a disk that is full stays full
                    parts += folder.write(finished, values)
                    last = time.monotonic()
    finally:
        try:
            # also where the user stops it: what is finished is kept
            if folder is not None and waiting:
                finished, waiting = waiting, []
                parts += folder.write(finished, values)
        finally:
            running.close()
    if shard is not None and folder is not None:
        parts, versions = folder.read()  # with what other shards have finished in the meantime
    result = _result(
        job, made, chosen(parts + waiting, [point.name for point in made.points]), versions
    )
    _report(result, job.name)
    return result


def _checked(workers: object, shard: Any, store: object) -> tuple[int | None, tuple[int, int]]:
    workers = None if workers is None else checks.integer("workers", workers, 1, 100_000)
    if store is not None:
        checks.path("store", store)
    if shard is None:
        return workers, (0, 1)
    if store is None:
        raise checks.reject("shard", shard, "shards meet in a store: give store= too")
    try:
        index, count = (checks.integer("shard", one, 0) for one in shard)
    except (TypeError, ValueError):
        raise checks.reject(
            "shard", shard, "give (i, n): this is part i of n, counted from 0"
        ) from None
    if not index < count:
        raise checks.reject("shard", shard, "give (i, n) with i = 0, ..., n - 1")
    return workers, (index, count)


def _tasks(
    job: Job, points: list[Point], done: set[str], shard: tuple[int, int]
) -> list[tuple[list[Point], int]]:
    """Groups with what they still lack. They are those of the whole sweep: what is finished changes neither groups nor shards."""
    sizes: dict[int, int] = {}

    def size(point: Point) -> int:
        sizes[point.index] = together(job, point)
        return sizes[point.index]

    found = []
    at_once = 1
    for number, group in enumerate(groups(points, size)):
        at_once = sizes.get(
            group[0].index, at_once
        )  # of its family, which begins with a point that was asked
        missing = [point for point in group if point.name not in done]
        if missing and number % shard[1] == shard[0]:
            found.append((missing, at_once))
    return found


def _result(job: Job, made: SweepPlan, stack: Stack, versions: Iterable[str]) -> xr.Dataset:
    variables, coordinates = dataset(stack, made.dims)
    shape = tuple(len(labels) for labels in made.dims.values())
    for name, labels in made.dims.items():
        coordinates[name] = (name, _array(labels), {"long_name": made.titles.get(name, name)})
    for name, (dim, labels) in made.along.items():
        coordinates[name] = (dim, _array(labels), {"long_name": made.titles[name]})
    for name, labels in made.dependent.items():
        variables[name] = (
            tuple(made.dims),
            _array(labels).reshape(shape),
            {"long_name": made.titles[name]},
        )
    for name, texts in (("failed", stack.failed), ("warning", stack.warning)):
        variables[name] = (tuple(made.dims), np.array(texts, dtype=str).reshape(shape))
    shared = job.describe()
    attributes = {
        "sweep": job.name,
        "over": encode({made.titles.get(name, name): labels for name, labels in made.dims.items()}),
        "fixed": encode({name: value for name, value in shared.items() if value is not None}),
        "points": len(made.points),
        "version": ", ".join(versions),
        **stack.texts,
    }
    for name in ("problem", "algorithm"):
        if name in shared:
            attributes[name] = encode(shared[name])
    return xr.Dataset(variables, coordinates, attributes)


def _array(labels: list[Any]) -> np.ndarray:
    if any(isinstance(value, str) for value in labels):
        return np.array(
            [value if isinstance(value, str) else f"{value:g}" for value in labels], dtype=str
        )
    return np.array(labels)


def _report(result: xr.Dataset, name: str) -> None:
    """One warning for all points: how many failed or warned, and the first of them."""
    failed = np.asarray(result["failed"]).reshape(-1)
    bad = [text for text in failed if text and text != MISSING]
    if bad:
        warnings.warn(
            f"sweep: {len(bad)} of {len(failed)} points failed (variable 'failed'); the first: {bad[0]}",
            stacklevel=3,
        )
    told = [text for text in np.asarray(result["warning"]).reshape(-1) if text]
    if told:
        warnings.warn(
            f"sweep: {len(told)} of {len(failed)} points warned (variable 'warning'); the first: {told[0]}",
            stacklevel=3,
        )
