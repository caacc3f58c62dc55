"""`stages`: training in stages, in which students may learn from earlier students.

The rows of earlier students that a stage or a later one reads are stacked under those of the
student, as rows that rest. Their overlaps with the student are then part of the state, in every run
their own, and no equation is new. Rows that no later stage reads are dropped, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.problems.frames import check_dimension, compressed_rows
from sgdynamics.problems.overlap_starts import Start, broadcast_runs
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.students import TRUTH, Labels, Student, Students, check_student
from sgdynamics.results.datasets import encode
from sgdynamics.results.states import start_from
from sgdynamics.solvers.sequence import (
    CLOCK_ARGUMENTS,
    join_results,
    read_save_points,
    solver_arguments,
    stage_seed,
)
from sgdynamics.solvers.stage_plan import PlannedStage, Stage, read_plan

# Arguments of solvers that a sequence of results cannot have, with the reason.
UNSUPPORTED = {
    "start": "the first stage starts from the third argument of sgd.stages. Omit it.",
    "reduce": "a later stage continues each run, which a mean would lose. Omit reduce.",
    "checkpoint": "checkpoints store runs of one stage. Omit checkpoint.",
    "record": "functions of the state see all students of a stage. Omit record.",
    **dict.fromkeys(CLOCK_ARGUMENTS, "each stage has its own length, Stage(..., alpha=). Omit it."),
}


def stages(
    solver: Callable[..., xr.Dataset], stages: Sequence[Stage], start: object, **arguments: object
) -> xr.Dataset:
    """Train in stages: pre-train and fine-tune, distil, learn from generated labels.

    Parameters
    ----------
    solver : callable
        Any solver: ``sgd.solve_ode``, ``sgd.solve_sde``, ``sgd.simulate``, ... Stages that read
        earlier students need one of these three.
    stages : sequence of Stage
        The stages in order.
    start : Start
        Initial condition of the first stage, and of later stages with ``start="fresh"``.
    **arguments
        Further arguments of the solver, such as dimension, runs, seed and method. ``evaluate`` are
        other problems of the widths of all stages.

    Returns
    -------
    xarray.Dataset
        The result of the solver, with a coordinate ``stage`` along time; t, alpha and step
        continue. In stages that read students, ``risk`` and ``excess_risk`` are those on the labels
        of the problem itself (the truth), ``label_risk`` is that on the labels of the stage, and
        ``earlier`` are the overlaps with the rows of earlier students, listed in the attribute
        ``stages``. Units that a stage does not have are NaN.

    Raises
    ------
    ValueError
        If a stage reads an unknown student, its arguments are invalid, or it has diverged; the
        message names the stage.

    Notes
    -----
    With teachers O of a student S, the signals of S have the Gram matrix [[Q_O, M_O], [M_O^T, P]],
    and at the end of a stage the overlaps of S with all of them are blocks of the next one. Fresh
    rows are orthogonal to earlier ones outside of the signals in the limit; in simulations and
    ``solve_sde`` at dimension d their directions are drawn uniformly. Stage i > 0 draws its random
    numbers from a seed made of ``seed`` and i.

    Examples
    --------
    A student learns from a student, with a third of real labels:

    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.5]])
    >>> algorithm = sgd.OnePassSGD(lr=1.0)
    >>> first = sgd.Stage(problem, algorithm, [6.0])
    >>> second = sgd.Stage(
    ...     problem, algorithm, [6.0], {"teacher": 1 / 3, "previous": 2 / 3}, start="fresh"
    ... )
    >>> result = sgd.stages(sgd.solve_ode, [first, second], start)
    >>> result.excess_risk.values.round(4).tolist(), result.stage.values.tolist()
    ([[0.0211, 0.0244]], ['stage 0', 'stage 1'])
    """
    names = solver_arguments(solver)
    plan = read_plan(stages)
    for name, fix in UNSUPPORTED.items():
        if name in arguments:
            raise checks.reject(name, arguments[name], fix)
    return run_stages(solver, names, plan, start, arguments)


@dataclass(frozen=True, eq=False)
class StackedRows:
    """The rows of several students, stacked: overlaps, heads and the rows of each student."""

    start: Start
    rows: dict[str, slice]
    problems: Mapping[str, Problem] = field(default_factory=dict)

    def select(self, names: Sequence[str]) -> StackedRows:
        """Return the rows of some students in this order; a name may occur twice."""
        index = np.concatenate([np.arange(self.start.a.shape[1])[self.rows[n]] for n in names])
        start = Start(
            self.start.M_blocks[:, :, index],
            self.start.Q_blocks[:, :, index][..., index],
            self.start.a[:, index],
        )
        rows, first = {}, 0
        for name in names:
            count = len(range(*self.rows[name].indices(self.start.a.shape[1])))
            rows[name] = slice(first, first + count)
            first += count
        return StackedRows(start, rows, self.problems)


def run_stages(
    solver: Callable[..., xr.Dataset],
    names: Sequence[str],
    plan: Sequence[PlannedStage],
    start: object,
    arguments: dict[str, Any],
    *,
    coordinate: str = "stage",
    argument: str = "stages[{}].alpha",
) -> xr.Dataset:
    """Run all stages of a plan and join their results along a coordinate."""
    save_points = [
        read_save_points(argument.format(index), entry.stage.alpha)
        for index, entry in enumerate(plan)
    ]
    seed = checks.integer("seed", arguments.get("seed", 0), 0)
    results: list[xr.Dataset] = []
    stacked: StackedRows | None = None
    for index, entry in enumerate(plan):
        if "seed" in names:
            arguments = {**arguments, "seed": stage_seed(seed, index)}
        label = f"phase {index}" if coordinate == "phase" else f"{entry.name!r}"
        try:
            result, stacked = _run_stage(
                solver,
                entry,
                (start, stacked, results),
                save_points[index],
                arguments,
                index == len(plan) - 1,
            )
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
        results.append(result)
    method = getattr(solver, "__name__", "solver")
    labels = [entry.name for entry in plan] if coordinate == "stage" else range(len(plan))
    joined = join_results(results, method, coordinate, list(labels), _describe(plan, coordinate))
    return joined.assign_attrs(seed=seed) if "seed" in joined.attrs else joined


def _describe(plan: Sequence[PlannedStage], coordinate: str) -> list[dict[str, Any]]:
    """Return what the record of a stage contains next to its problem and algorithm."""
    if coordinate == "phase":
        return [{} for _ in plan]
    return [
        {
            "name": entry.name,
            "labels": entry.shares,
            "mixing": entry.stage.mixing,
            "earlier": [name for name in entry.earlier for _ in range(_width(plan, name))],
        }
        for entry in plan
    ]


def _width(plan: Sequence[PlannedStage], name: str) -> int:
    return next(entry.stage.problem.width for entry in plan if entry.name == name)


def _run_stage(
    solver: Callable[..., xr.Dataset],
    entry: PlannedStage,
    history: tuple[Any, StackedRows | None, list[xr.Dataset]],
    save_points: dict[str, np.ndarray],
    arguments: dict[str, Any],
    is_last: bool,
) -> tuple[xr.Dataset, StackedRows | None]:
    """Run one stage; return its result and the rows of its student and of those that are kept."""
    start, stacked, results = history
    stage = entry.stage
    if not entry.earlier and set(entry.shares) == {TRUTH}:
        initial = entry.start if isinstance(entry.start, Start) else start
        if isinstance(entry.start, str) and entry.start != "fresh":
            # The result also has the internal state of an update.
            if stacked is None or set(stacked.rows) == {entry.start}:
                initial = start_from(results[-1])
            else:
                initial = stacked.select([entry.start]).start
        result = solver(stage.problem, stage.algorithm, initial, **save_points, **arguments)
        stacked = None
        if not is_last and isinstance(stage.problem, Problem):
            rows = {entry.name: slice(0, stage.problem.width)}
            stacked = _final_rows(result, rows, {entry.name: stage.problem})
        return result, stacked
    check_student(entry.name, stage.problem)
    assert stacked is not None
    initial_rows = _initial_rows(entry, start, stacked, arguments)
    problems = {
        entry.name: stage.problem,
        **{name: stacked.problems[name] for name in entry.earlier},
    }
    joint = _joint_problem(entry, problems)
    truth = {"truth": joint.with_truth([entry.name])}
    others = arguments.get("evaluate") or {}
    evaluate = truth | {
        name: joint.with_truth([entry.name], other) for name, other in others.items()
    }
    result = solver(
        joint,
        stage.algorithm,
        initial_rows.start,
        **save_points,
        **{**arguments, "evaluate": evaluate},
    )
    final = _final_rows(result, initial_rows.rows, problems)
    return _public_result(result, stage.problem, bool(others)), final


def _joint_problem(entry: PlannedStage, problems: Mapping[str, Problem]) -> Students:
    """Return the problem of a student together with the earlier ones that are kept."""
    stage = entry.stage
    shares: list[float] | None = None
    if stage.mixing == "drawn" and len(entry.shares) > 1:
        tasks = tuple(Labels({name: 1.0}, stage.label_noise) for name in entry.shares)
        shares = list(entry.shares.values())
    else:
        tasks = (Labels(entry.shares, stage.label_noise),)
    students = {name: Student(problem) for name, problem in problems.items()}
    students[entry.name] = Student(stage.problem, tasks)
    return Students(students, shares=shares)


def _initial_rows(
    entry: PlannedStage, start: object, stacked: StackedRows, arguments: Mapping[str, Any]
) -> StackedRows:
    """Return the rows of the student at the start of a stage, stacked on those that are kept."""
    if isinstance(entry.start, str) and entry.start != "fresh":
        joined = stacked.select([entry.start, *entry.earlier])
        count = joined.rows[entry.start].stop
        if entry.start in entry.earlier:  # its rows are there twice
            count = stacked.select([entry.start]).start.a.shape[1]
        earlier, first = {}, count
        for name in entry.earlier:
            width = stacked.select([name]).start.a.shape[1]
            earlier[name] = slice(first, first + width)
            first += width
        return StackedRows(joined.start, {entry.name: slice(0, count), **earlier})
    fresh = start if entry.start == "fresh" else entry.start
    if not isinstance(fresh, Start):
        raise checks.reject("start", fresh, "give what sgd.start or sgd.random_start returns")
    earlier_rows = stacked.select(entry.earlier)
    return _stack_fresh(entry, fresh, earlier_rows, arguments)


def _stack_fresh(
    entry: PlannedStage, fresh: Start, earlier: StackedRows, arguments: Mapping[str, Any]
) -> StackedRows:
    """Stack fresh rows on rows that are kept.

    Outside of the signals fresh rows L_F point in directions that do not depend on the rows L_E
    that are kept. With orthonormal rows U, uniform in d - K dimensions, their overlaps are
    L_F U_1 L_E^T, where U_1 are the components of U along the frame of L_E; they vanish in the
    limit. Solvers with a seed draw them at the dimension of the call.
    """
    problem = entry.stage.problem
    if fresh.M_blocks.shape[2:] != (problem.width, problem.signals):
        fix = (
            f"the stage {entry.name!r} has (width, signals) = "
            f"{(problem.width, problem.signals)}. Give Stage(..., start=sgd.start(...))."
        )
        raise checks.reject("start", fresh.M_blocks.shape[2:], fix)
    runs = max(fresh.runs, earlier.start.runs)
    new, old = broadcast_runs(fresh, runs), broadcast_runs(earlier.start, runs)
    sizes = None
    if "seed" in arguments:
        sizes = check_dimension(problem, arguments.get("dimension"), small=True)[1]
    T, L = compressed_rows(problem, new, sizes)
    T_kept, L_kept = compressed_rows(problem, old, sizes)
    cross = T @ np.swapaxes(T_kept, -1, -2)
    if sizes is not None:
        for run in range(runs):
            sequence = np.random.SeedSequence(arguments["seed"], spawn_key=(run, FRESH))
            generator = np.random.default_rng(sequence)
            for block, size in enumerate(sizes.tolist()):
                frame = _frame_components(
                    generator, L.shape[2], L_kept.shape[2], size - problem.signals
                )
                cross[run, block] += L[run, block] @ frame @ L_kept[run, block].T
    M = np.concatenate([new.M_blocks, old.M_blocks], axis=2)
    upper = np.concatenate([new.Q_blocks, cross], axis=3)
    lower = np.concatenate([np.swapaxes(cross, -1, -2), old.Q_blocks], axis=3)
    count = problem.width
    rows = {name: slice(own.start + count, own.stop + count) for name, own in earlier.rows.items()}
    joined = Start(
        M, np.concatenate([upper, lower], axis=2), np.concatenate([new.a, old.a], axis=1)
    )
    return StackedRows(joined, {entry.name: slice(0, count), **rows})


FRESH = 43  # part of the seed of the directions of fresh rows


def _frame_components(
    generator: np.random.Generator, rows: int, columns: int, dimension: int
) -> np.ndarray:
    """Draw the first columns of orthonormal rows that are uniform in this many dimensions.

    With Gaussian rows [X | Y] they are (X X^T + Y Y^T)^(-1/2) X, and Y Y^T is a Wishart matrix.
    """
    if dimension < rows + columns:
        gaussian = generator.standard_normal((rows, dimension))
        inside = np.zeros((rows, columns))
        inside[:, : min(columns, dimension)] = gaussian[:, : min(columns, dimension)]
        gram = gaussian @ gaussian.T
    else:
        inside = generator.standard_normal((rows, columns))
        free = dimension - columns
        factor = np.tril(generator.standard_normal((rows, rows)), -1)
        factor[np.diag_indices(rows)] = np.sqrt(generator.chisquare(free - np.arange(rows)))
        gram = inside @ inside.T + factor @ factor.T
    values, vectors = np.linalg.eigh(gram)
    return (vectors / np.sqrt(values)) @ vectors.T @ inside


def _final_rows(
    result: xr.Dataset, rows: dict[str, slice], problems: Mapping[str, Problem]
) -> StackedRows | None:
    """Return the rows of all students at the end of a stage."""
    final = start_from(result)
    if not isinstance(final, Start):
        return None
    return StackedRows(Start(final.M_blocks, final.Q_blocks, final.a), rows, problems)


def _public_result(result: xr.Dataset, problem: Problem, has_others: bool) -> xr.Dataset:
    """Return the variables of the student that learns, with its risk on the truth."""
    p = problem.width
    earlier = result["Q"].isel(unit=slice(p), unit_other=slice(p, None))
    earlier = earlier.rename(unit_other="earlier_unit")
    earlier.attrs["long_name"] = "overlaps with the rows of earlier students"
    memory = [name for name in result.variables if "set_row" in result[name].dims]
    units = {axis: slice(p) for axis in ("unit", "unit_other") if axis in result.dims}
    public = result.drop_vars(memory).isel(units)
    risk = public["evaluated_risk"].sel(evaluation="truth").drop_vars("evaluation")
    label_risk = public["risk"].assign_attrs(long_name="population risk on the labels of the stage")
    public = public.assign(
        risk=risk.assign_attrs(long_name="population risk"), label_risk=label_risk, earlier=earlier
    )
    public = public.isel(evaluation=slice(1, None))
    if not has_others:
        public = public.drop_dims("evaluation")
    if problem.structure.has_excess:
        floor: Any = (
            problem.noise_floor
            if not problem.scheduled
            else np.array(
                [problem.at(float(point)).noise_floor for point in public["alpha"].values]
            )
        )
        excess = (public["risk"] - floor).assign_attrs(long_name="excess risk")
        public = public.assign(excess_risk=excess)
    return public.assign_attrs(problem=encode(problem.describe()))
