"""Local SGD and DiLoCo: rounds of several students with data of their own, and outer steps.

In a round the K p rows of all workers are stacked, with those of the common start and of the outer
momentum if the outer step reads them. The outer step is a linear map of rows, so that overlaps
follow exactly: M <- R M, Q <- R Q R^T. Equal workers have overlaps Q between any row and itself and
C between workers; `solve_ode` follows two of them, from which all K are filled in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks
from sgdynamics.base.support import require
from sgdynamics.expectations.risk import population_risk
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.students import TRUTH, Labels, Student, Students, check_student
from sgdynamics.results.datasets import encode
from sgdynamics.results.states import field_states, start_from
from sgdynamics.solvers.sequence import join_results, stage_seed

R = TypeVar("R")
Solver = Callable[..., xr.Dataset]
ANCHOR, VELOCITY = "anchor", "velocity"  # students of the outer step
MOST_ROUNDS = 20_000
UNSUPPORTED = {
    "reduce": "a later round continues each run, which a mean would lose. Omit reduce.",
    "checkpoint": "checkpoints store runs without rounds. Omit checkpoint.",
    "seconds": "checkpoints store runs without rounds. Omit seconds.",
    "record": "functions of the state see all workers. Omit record.",
    "evaluate": "evaluate other problems with workers by sgd.expect. Omit evaluate.",
}


def redirect_workers(function: Callable[..., R], answer: Callable[..., R]) -> Callable[..., R]:
    """Call `answer`, with the arguments by name, where `Workers` take the algorithm's position."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def solve(*args: Any, **kwargs: Any) -> R:
        algorithm = kwargs["algorithm"] if "algorithm" in kwargs else (args[1:2] or (None,))[0]
        if not isinstance(algorithm, Workers):
            return function(*args, **kwargs)
        return answer(**signature.bind(*args, **kwargs).arguments)

    return solve


def accepts_workers(solver: Solver) -> Solver:
    """Decorate a solver, so that `Workers` may take the position of its algorithm."""
    takes_seed = "seed" in inspect.signature(solver).parameters

    def answer(problem: Any, algorithm: Any, start: Any, **arguments: Any) -> xr.Dataset:
        return solve_rounds(solver, problem, algorithm, start, arguments, takes_seed)

    return redirect_workers(solver, answer)


def solve_rounds(
    solver: Solver,
    problem: Problem,
    algorithm: Workers,
    start: Start,
    arguments: dict[str, Any],
    takes_seed: bool,
) -> xr.Dataset:
    """Solve or simulate rounds of workers, and return the result of the mean of their rows."""
    require(solver.__name__, problem, algorithm)
    for name, fix in UNSUPPORTED.items():
        if arguments.get(name) is not None:
            raise checks.reject(name, arguments[name], fix)
    check_student("workers", problem)
    if problem.structure.constraint.fixes_norms:
        fix = "a mean of rows does not stay on the sphere. Use constraint=None."
        raise checks.reject("constraint", problem.constraint, fix)
    if problem.scheduled:
        fix = "with workers the parameters of the problem must be numbers"
        raise checks.reject("problem", problem, fix)
    rounds = _Rounds(problem, algorithm, two_only=not takes_seed)
    points = _save_points(algorithm, arguments, solver.__name__)
    length, unit = _round_length(algorithm, arguments, takes_seed)
    last = int(np.ceil(points[-1] / length - 1e-9)) if points[-1] > 0 else 1
    if last > MOST_ROUNDS:
        raise checks.reject("every", algorithm.every, f"{last} rounds. Use longer rounds.")
    state = rounds.stack(validate_start(problem, start))
    results, seed = [], checks.integer("seed", arguments.get("seed", 0), 0)
    for index in range(last):
        first = index * length
        within = (points > first + 1e-9) & (points < first + length - 1e-9)
        if index == 0:
            within |= points < 1e-9
        own = points[within] - first
        own = np.unique(np.concatenate([own, [length]]))
        if takes_seed:
            arguments["seed"] = stage_seed(seed, index)
        solved = solver(rounds.joint, algorithm.algorithm, state, **{unit: own}, **arguments)
        ends = rounds.expand(start_from(solved))
        state = rounds.outer_step(ends)
        saved = rounds.result(solved, state)
        is_saved = np.isclose(points[:, None], first + own[None], atol=1e-9).any(axis=0)
        results.append((saved, is_saved))
    joined = join_results(
        [saved for saved, _ in results],
        solver.__name__,
        "round",
        list(range(1, last + 1)),
        [{} for _ in results],
    )
    joined = joined.isel(time=np.concatenate([chosen for _, chosen in results]))
    attributes = {name: value for name, value in joined.attrs.items() if name != "rounds"}
    method = str(results[-1][0].attrs.get("method", solver.__name__))
    attributes |= {"method": method, "algorithm": encode(algorithm.describe())}
    joined.attrs = attributes | ({"seed": seed} if takes_seed else {})
    return joined


def _save_points(algorithm: Workers, arguments: dict[str, Any], solver: str) -> np.ndarray:
    """Remove the save points from the arguments, and return them in samples/d of one worker."""
    stated = {
        name: value
        for name in ("times", "alpha", "steps")
        if (value := arguments.pop(name, None)) is not None
    }
    if len(stated) != 1:
        received = ", ".join(stated) or "none of them"
        raise ValueError(f"give exactly one of times=, alpha=, steps= (received {received})")
    name, value = next(iter(stated.items()))
    points = np.atleast_1d(checks.real_array(name, value, "give increasing save points"))
    if points.ndim != 1 or not len(points) or points[0] < 0 or np.any(np.diff(points) <= 0):
        raise checks.reject(name, value, "give increasing save points, 0 or more")
    batch = algorithm.algorithm.batch
    if name == "alpha":
        return points
    if name == "times":
        return points * batch / float(algorithm.algorithm.lr)
    if arguments.get("dimension") is None:
        raise checks.reject("steps", value, f"{solver} needs a dimension to count steps")
    return points * batch / arguments["dimension"]


def _round_length(
    algorithm: Workers, arguments: Mapping[str, Any], whole_steps: bool
) -> tuple[float, str]:
    """Return the length of a round in samples/d, a whole number of steps at finite d."""
    dimension = arguments.get("dimension")
    if dimension is None or not whole_steps:
        return algorithm.every, "alpha"
    batch = algorithm.algorithm.batch
    d = checks.integer("dimension", dimension, 1)
    steps = round(algorithm.every * d / batch)
    if steps < 1:
        fix = f"a round has less than half a step at d = {d}. Use every={batch / d:g} or more."
        raise checks.reject("every", algorithm.every, fix)
    return steps * batch / d, "alpha"


class _Rounds:
    """The students of a round, and the linear maps between rounds.

    Attributes
    ----------
    joint : Students
        The workers that a solver follows, then the rows of the outer step.
    """

    def __init__(self, problem: Problem, algorithm: Workers, two_only: bool) -> None:
        self.problem, self.algorithm = problem, algorithm
        self.width, self.workers = problem.width, algorithm.workers
        is_equal = algorithm.problems is None
        self.followed = min(2, self.workers) if two_only and is_equal else self.workers
        problems = [problem] * self.workers if is_equal else list(algorithm.problems or ())
        self.judged = problems[:1] if is_equal else problems
        for index, own in enumerate(problems):
            check_student(f"worker {index}", own)
            if own.width != problem.width or own.head != problem.head:
                fix = "all workers train the same network: give problems of one width and head"
                raise checks.reject("problems", own, fix)
        students = {
            f"worker {index}": Student(problems[index], (Labels({TRUTH: 1.0}),))
            for index in range(self.followed)
        }
        if not algorithm.averages:
            students |= {ANCHOR: Student(problem), VELOCITY: Student(problem)}
        self.joint = Students(students, data="own")
        self.extra = 0 if algorithm.averages else 2

    def stack(self, start: Start, velocity: Start | None = None) -> Start:
        """Return the start of a round: copies of common rows, and a velocity of 0."""
        copies = self.followed + (1 if self.extra else 0)
        selection = np.tile(np.eye(self.width), (copies, 1))
        if self.extra:
            selection = np.concatenate([selection, np.zeros((self.width, self.width))])
        return _map_rows(selection, start)

    def expand(self, start: Start) -> Start:
        """Return the rows of all workers, from the two that a solver followed."""
        if self.followed == self.workers:
            return start
        p, K = self.width, self.workers
        positions = [min(worker, 1) for worker in range(K)]
        positions += [2 + extra for extra in range(self.extra)]
        index = np.concatenate([np.arange(p) + p * student for student in positions])
        Q = start.Q_blocks[:, :, index][..., index].copy()
        own, cross = start.Q_blocks[..., :p, :p], start.Q_blocks[..., :p, p : 2 * p]
        for first in range(K):
            for second in range(K):
                block = own if first == second else cross
                Q[..., first * p : (first + 1) * p, second * p : (second + 1) * p] = block
        return Start(start.M_blocks[:, :, index], Q, start.a[:, index])

    def mean(self, rows: int) -> np.ndarray:
        """Return the matrix that maps all rows to the mean of the workers."""
        matrix = np.zeros((self.width, rows))
        for worker in range(self.workers):
            own = slice(worker * self.width, (worker + 1) * self.width)
            matrix[:, own] = np.eye(self.width) / self.workers
        return matrix

    def outer_step(self, ends: Start) -> Start:
        """Return the start of the next round from the rows at the end of one."""
        algorithm, p = self.algorithm, self.width
        mean = self.mean(ends.a.shape[1])
        if algorithm.averages:
            return _map_rows(np.tile(mean, (self.followed, 1)), ends)
        columns = np.eye(ends.a.shape[1])
        anchor = columns[self.workers * p : (self.workers + 1) * p]
        velocity = columns[(self.workers + 1) * p :]
        gradient = anchor - mean
        velocity = algorithm.outer_momentum * velocity + gradient
        common = anchor - algorithm.outer_lr * (gradient + algorithm.outer_momentum * velocity)
        return _map_rows(np.concatenate([*[common] * (self.followed + 1), velocity]), ends)

    def result(self, solved: xr.Dataset, state: Start) -> xr.Dataset:
        """Return the result of the mean rows during a round, and of the common rows at its end."""
        states = field_states(solved, np.asarray(self.problem.gram))
        runs, times = states["a"].shape[:2]
        M, Q, a = (states[name].reshape(-1, *states[name].shape[2:]) for name in ("M", "Q", "a"))
        flat = Start(M, Q, a)
        expanded = self.expand(flat)
        means = _map_rows(self.mean(expanded.a.shape[1]), expanded)
        M, Q, a = (
            value.reshape(runs, times, *value.shape[1:]).copy()
            for value in (means.M_blocks, means.Q_blocks, means.a)
        )
        p = self.width
        M[:, -1], Q[:, -1], a[:, -1] = (
            state.M_blocks[:, :, :p],
            state.Q_blocks[:, :, :p, :p],
            state.a[:, :p],
        )
        risks, errors = zip(
            *(population_risk(own, {"M": M, "Q": Q, "a": a}) for own in self.judged), strict=True
        )
        risk = np.mean(risks, axis=0)
        variables: dict[str, Any] = {
            "M": (("unit", "signal"), M.sum(axis=2)),
            "Q": (("unit", "unit_other"), Q.sum(axis=2)),
            "a": (("unit",), a),
            "risk": ((), risk),
            "worker_risk": ((), np.asarray(solved["risk"])),
        }
        if self.problem.structure.has_excess:
            floor = np.mean([own.noise_floor for own in self.judged])
            variables["excess_risk"] = ((), risk - floor)
        if self.problem.structure.blocks > 1:
            variables["M_block"] = (("block", "unit", "signal"), M)
            variables["Q_block"] = (("block", "unit", "unit_other"), Q)
        meanings = {name: solved[name].attrs for name in variables if name in solved}
        meanings["worker_risk"] = {"long_name": "mean population risk of the single workers"}
        data = {
            name: (("run", "time", *axes), value, meanings.get(name, {}))
            for name, (axes, value) in variables.items()
        }
        coordinates = {
            name: coordinate
            for name, coordinate in solved.coords.items()
            if set(coordinate.dims) <= {"run", "time", "block"}
        }
        attributes = dict(solved.attrs) | {"problem": encode(self.problem.describe())}
        attributes["error_quadrature"] = max(
            [float(solved.attrs.get("error_quadrature", 0.0)), *errors]
        )
        return xr.Dataset(data, coordinates, attributes)


def _map_rows(matrix: np.ndarray, start: Start) -> Start:
    """Return the overlaps of the rows R W, with their heads R a."""
    Q = matrix @ start.Q_blocks @ matrix.T
    return Start(matrix @ start.M_blocks, (Q + np.swapaxes(Q, -1, -2)) / 2, start.a @ matrix.T)
