"""Dynamical mean-field theory: paths of the effective process of a fixed data set (`fixed_data.dmft`), their means and standard errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.algorithms.cell_stability import CellStability
from sgdynamics.algorithms.epochs import SIMULATE, EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData, checked_fixed_data
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import is_scheduled
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Cost, Meter, meter, warn
from sgdynamics.base.support import require
from sgdynamics.fixed_data.dmft import FEWER, FEWEST_PATHS, ROUNDING, Sweep, within_reach
from sgdynamics.fixed_data.forgetting import Memory
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.fixed_data.response_sweep import (
    FEW_BLOCKS,
    DependentFields,
    ResponseSweep,
    paths_needed,
    paths_per_row,
    response_form_obstacle,
    singular,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.build import build_result, evaluate_observables
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES
from sgdynamics.solvers.call import SolverCall, validate_call
from sgdynamics.solvers.linear import has_linear_output, output_gain

DEFAULT_OPTIONS = DMFT()
# where a caller of the former arguments finds them
HINTS = {
    field.name: f"Write method=sgd.DMFT({field.name}=...)." for field in dataclasses.fields(DMFT)
}
TOGETHER = "save points are at multiples of"  # so begins what is said of those that cells do not tell apart
FEW_COORDINATES = 100  # of a block, whose limit they are far from
LARGE_LANGEVIN_ERROR = 0.05  # relative standard error of Langevin dynamics that is warned of


@checks.argument_hints(HINTS)
@float64
def solve_dmft(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    paths: int = 20000,
    seed: int = 0,
    replicates: int = 4,
    two_time: bool = False,
    cells: int | None = None,
    method: DMFT = DEFAULT_OPTIONS,
    progress: bool | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Overlaps, training risk and population risk of a fixed-data algorithm in the limit d -> infinity.

    The learning rate is the finite one of the algorithm. Set exactly one of ``times``, ``alpha`` and
    ``steps``.

    Parameters
    ----------
    problem : Problem
        The learning problem, with Gaussian inputs.
    algorithm : GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
        The training algorithm on a fixed data set.
    start : Start
        Initial condition of one or several runs. A run that starts at M = 0 stays there up to the
        sampling error of the paths; if M = 0 is unstable, this error makes the run leave it.
    times : array_like, optional
        Save points in t = lr steps, rounded to whole steps. With ``EpochSGD`` in t = lr steps/d,
        rounded to 4/m of an epoch of m cells.
    alpha : array_like, optional
        Save points in samples used/d.
    steps : array_like, optional
        Save points in steps. Not available with ``EpochSGD``, whose epochs have infinitely many.
    paths : int, default 20000
        Total number of Monte Carlo paths of the effective process.
    seed : int, default 0
        Seed of the random number generator.
    replicates : int, default 4
        Number of independent sets of paths, whose scatter yields the ``X_standard_error`` of each
        quantity X. The size of a set is rounded to a power of two, for quasi-random points.
    two_time : bool, default False
        Whether to add C(t, t') = W(t) W(t')^T and the response R(t, t') = tr dW_i(t)/dW_j(t') / d at
        all pairs of save points. R costs one additional sweep of twice the cost per save point.
    cells : int, optional
        Number m of cells of an epoch of ``EpochSGD``, rounded up to a multiple of 4. By default t of
        a cell, lr samples_per_dimension/(batch m), is at most 0.04, m is at least 16, and a quarter
        of the cells is stable with a margin (see Notes).
    method : DMFT, default DMFT()
        Numerical options: basis, storage precision, memory and form of the equations.
    progress : bool, optional
        Whether to display a progress bar. By default only on a terminal.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``, or ``sgd.on_train(...)`` of a sample.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``. Their risks are the variable
        ``evaluated_risk``.

    Returns
    -------
    xarray.Dataset
        ``M``, ``Q``, ``a``, ``risk`` and ``train_risk``, each with its ``_standard_error``, and with
        ``two_time`` ``C`` and ``R``. With ``EpochSGD`` the coordinate ``epoch`` and the attributes
        ``cells`` and ``error_cells``; with ``memory_directions`` the attribute ``error_memory``.

    Raises
    ------
    ValueError
        If an argument is out of range, if a quarter of ``cells`` is unstable, if the paths are too
        few for the directions that the cells of all epochs add, or if the solution needs more memory
        than available or more than ten days.

    Warns
    -----
    UserWarning
        If the solution diverges, if the three levels of cells do not converge, if a standard error
        exceeds the value, or if the standard error of ``Langevin`` exceeds 5%.

    Notes
    -----
    **Sampling error.** The bias of order 1/paths, and the effect of ``tolerance``, are measured by a
    second solution with a quarter of each set and four times the tolerance: a third of the change is
    included in the standard errors in quadrature (not in that of R). ``error_paths`` is its largest
    value relative to the training risk, ``error_sampling`` that of the whole standard error.

    **Cells.** With ``EpochSGD`` all visits of a cell use the weights at its start, with an error of
    first order in t of a cell. The result is therefore 2 x(m) - x(m/2), extrapolated from solutions
    with m, m/2 and m/4 cells. The change by a third level, (2 x(m) - 3 x(m/2) + x(m/4))/3, is included
    in the standard errors (not in those of C and R); ``error_cells`` is its largest value relative to
    the training risk. The levels converge if the coarsest one is stable. For a linear student the
    condition is exact (``load(m/4) < 1`` in ``sgdynamics.algorithms.cell_stability``) and is checked
    before the start. For other students the default takes the largest eigenvalue of the covariance
    into account. Where the extrapolated risk is negative, or the change by a third level exceeds both
    the value and the initial risk, the solution has failed: later values are NaN and ``diverged_at``
    is the last save point before.

    **Bounded memory.** With ``memory_directions`` a quarter of the paths is also solved with half of
    that memory: the change is included in the standard errors (not in those of C and R), and
    ``error_memory`` is its largest value relative to the training risk. Discarding directions changes
    neither rows nor fields; the correlations of later gradients with the discarded directions are
    lost, which matters least where steps are noisy. With ``EpochSGD`` coarser cells have a
    proportionally smaller memory, the same in epochs.

    **Memory.** The projections need 8 bytes (dtype="float32": 4) per path and direction, 2 (1 +
    blocks) times. The response form needs four times 8 bytes whatever the number of blocks, and
    16 (2 blocks + 1) bytes per pair of rows at two times. It computes C and R without additional
    cost, and needs 40 paths of a replicate for each row of each step, or 8 times
    samples_per_dimension times the largest squared eigenvalue over their mean if that is more: with
    fewer paths, the overlaps of a quarter of them need not be positive definite.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> result = sgd.solve_dmft(problem, algorithm, start, steps=[0, 4], paths=1024, progress=False)
    >>> result["train_risk"].shape, "M_standard_error" in result
    ((1, 2), True)
    """
    require("solve_dmft", problem, algorithm)
    checked_fixed_data(algorithm)
    if not isinstance(method, DMFT):
        raise checks.reject("method", method, "expected sgd.DMFT(...).")
    parts = _parts(problem, algorithm, start, cells, steps)
    where = {
        "times": times,
        "alpha": alpha,
        "steps": steps,
        "seed": seed,
        "progress": progress,
        "cells": parts[0] if parts else None,
    }
    call = validate_call(
        "solve_dmft",
        problem,
        algorithm,
        start,
        **where,
        whole_steps=True,
        record=record,
        evaluate=evaluate,
    )
    given = alpha if times is None else times
    asked_for = 0 if given is None else len(np.unique(np.asarray(given)))
    if parts and len(np.unique(call.save_steps)) < asked_for:
        warn(
            f"{TOGETHER} {4 / parts[-1]:.3g} epochs, four cells: some of {asked_for} fall together (see the coordinates), give more cells="
        )
    if problem.spectrum is not None and problem.spectrum.multiplicities.min() < FEW_COORDINATES:
        warn(
            "every block of the covariance is taken as infinite here, and some have few coordinates: sgd.simulate is exact for them"
        )
    replicates = checks.integer("replicates", replicates, 2)
    checks.choice("two_time", two_time, (False, True))
    each = 1 << round(np.log2(max(checks.integer("paths", paths, 1) / replicates, 1)))
    if each < FEWEST_PATHS:
        raise checks.reject(
            "paths",
            paths,
            f"{replicates} replicates of {FEWEST_PATHS} paths at least: take {replicates * FEWEST_PATHS} or more",
        )
    if method.memory_directions is not None and two_time:
        raise checks.reject(
            "memory_directions",
            method.memory_directions,
            "C and R depend on the discarded directions. Omit memory_directions or two_time.",
        )
    # where epochs are cut into cells the fewest come first: the save points are at these
    finer = [count // parts[0] for count in parts] or [1]
    algorithms = [call.dynamics.algorithm]
    if isinstance(algorithm, EpochSGD):
        last_step = float(call.save_steps[-1])
        algorithms = [
            algorithm.in_steps(1 / count).counted(ratio * last_step)
            for count, ratio in zip(parts, finer, strict=True)
        ]
    asked = _Asked(
        problem,
        call,
        each,
        replicates,
        two_time,
        method,
        algorithms,
        finer,
    )
    if _uses_response_form(asked, algorithm, paths):
        try:
            return _answer(asked, ResponseSweep)
        except DependentFields as error:
            if method.form == "response":
                raise
            warn(f"{error} The projections are used here.")
    return _answer(asked, Sweep)


class _Asked(NamedTuple):
    """What is asked for, checked."""

    problem: Problem
    call: SolverCall
    each: int
    replicates: int
    two_time: bool
    method: DMFT
    algorithms: Sequence[FixedData]  # one for each number of cells
    finer: list[int]  # how many steps of each are one of the first

    @property
    def steps(self) -> int:
        """Of the finest."""
        return self.finer[-1] * int(self.call.save_steps[-1])


def _uses_response_form(asked: _Asked, algorithm: FixedData, paths: int) -> bool:
    """Whether the response form is used; raises ValueError if it is required and not available."""
    form, problem = asked.method.form, asked.problem
    if form == "projections" or (form == "auto" and problem.structure.blocks < FEW_BLOCKS):
        return False
    obstacle = response_form_obstacle(problem, algorithm)
    if not obstacle and asked.two_time and singular(problem, asked.call.initial_state):
        obstacle = (
            "R at time 0 does not exist in this form if the initial fields are linearly dependent. "
            "Omit two_time"
        )
    least = FEWER * paths_needed(problem, algorithm, asked.steps)
    if form == "auto":
        # the basis options apply to the projections only
        for_projections = (
            asked.method.rank is not None or asked.method.memory_directions is not None
        )
        return not obstacle and not for_projections and asked.each >= least
    if obstacle:
        raise checks.reject("form", form, f"{obstacle}, or use form='projections'.")
    if asked.each < least:
        enough = asked.replicates << math.ceil(math.log2(least))
        per_row = FEWER * paths_per_row(problem, algorithm)
        raise checks.reject(
            "paths",
            paths,
            f"form='response' needs {per_row:.4g} paths of a replicate for each row of "
            f"{asked.steps} steps. Use paths = {enough} or more, or fewer steps.",
        )
    return True


def _answer(asked: _Asked, kind: type[Sweep]) -> xr.Dataset:
    """The solution in one form."""
    call, each, two_time, finer = asked.call, asked.each, asked.two_time, asked.finer
    setting, floor = (call.seed, asked.replicates), ROUNDING[asked.method.dtype]
    problem, dtype = asked.problem, np.dtype(asked.method.dtype)
    sweeps = {
        fewer: [
            kind(
                problem,
                one,
                each,
                fewer,
                *setting,
                max(fewer * asked.method.tolerance, floor),
                dtype,
            )
            for one in asked.algorithms
        ]
        for fewer in (1, FEWER)
    }
    last = sweeps[1][-1]
    bound = Memory.from_options(last.setup, asked.method)
    levels = {"all": (sweeps[1], 1), "fewer": (sweeps[FEWER], 1)}
    if bound is not None:
        levels["half"] = ([copy(sweep) for sweep in sweeps[FEWER]], 2)
    if asked.method.dtype == "float32":
        wide = [copy(sweep) for sweep in sweeps[FEWER]]
        for sweep in wide:
            sweep.dtype = np.dtype("float64")
        levels["wide"] = (wide, 1)
    for chosen, halved in levels.values():
        for sweep, ratio in zip(chosen, finer, strict=True):
            sweep.on_train = call.observables.losses()
            # an epoch of fewer cells has fewer directions: the same memory in epochs
            sweep.memory = (
                None if bound is None else bound.over(sweep.setup, halved * finer[-1] // ratio)
            )
    within_reach(
        last, finer[-1] * call.save_steps, asked.method.rank, call.initial_state.runs, two_time
    )
    last.check_paths(asked.steps, asked.method.rank)
    for chosen, _ in levels.values():
        for sweep in chosen:
            sweep.make_room(asked.steps, asked.method.rank, asked.method.memory)
    shares = sum(1 / chosen[0].fewer for chosen, _ in levels.values())
    work = float(call.save_steps[-1]) * call.initial_state.runs * sum(finer) * shares
    states = {}
    cost = Cost(
        "step", " of the solution and its error estimates", "at least"
    )  # steps slow down as the basis grows
    with meter(f"DMFT, {each * asked.replicates} paths", work, call.progress, cost) as bar:
        for name, (chosen, _) in levels.items():
            two = two_time and name in ("all", "fewer")
            states[name] = [
                _solved(call, sweep, ratio, two, bar)
                for sweep, ratio in zip(chosen, finer, strict=True)
            ]
    if any(sweep.crowded for sweep in sweeps[1]):
        warn(
            f"The gradients span half of the {each} paths of a replicate, or all of the {float(np.sum(last.numbers[2])):.0f} "
            "dimensions that the paths represent, so that later gradients add no directions. Use more paths, fewer steps or "
            "fewer replicates."
        )
    return _dataset(call, states, last, asked.method.tolerance, bound, np.array(last.initial_risk))


def cell_stability(problem: Problem, algorithm: EpochSGD, start: Start) -> CellStability | None:
    """The stability of the cells of an epoch; None where the spectrum is infinite or inputs have means."""
    infinite = problem.spectrum is not None and problem.spectrum.infinite
    if infinite or not isinstance(start, Start) or not problem.structure.sample.centred:
        return None
    is_linear = (
        has_linear_output(problem)
        and problem.head == "fixed"
        and problem.constraint is None
        and not is_scheduled(problem.weight_decay)
    )
    curvature, decay = 1.0, 0.0
    if is_linear:
        curvature = max(output_gain(start, run) for run in range(start.runs))
        if curvature == 0:
            return None
        decay = float(problem.weight_decay) / curvature
    values, fractions = (
        np.asarray(problem.parameters[name], dtype=np.float64)
        for name in ("eigenvalues", "fractions")
    )
    rate = curvature * algorithm.largest_rate
    return CellStability(rate, algorithm.samples_per_dimension, values, fractions, decay, is_linear)


def number_of_cells(
    problem: Problem, algorithm: EpochSGD, start: Start, given: int | None = None
) -> int:
    """Number of cells that an epoch is divided into: the default, or a given one that is large enough."""
    return algorithm.cells(given, cell_stability(problem, algorithm, start))


def _parts(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    cells: int | None,
    steps: ArrayArgument | None,
) -> list[int]:
    """Numbers of cells per epoch, the smallest first; empty for algorithms without epochs."""
    if not isinstance(algorithm, EpochSGD):
        if cells is not None:
            fix = "only used with sgd.EpochSGD. Omit cells."
            raise checks.reject("cells", cells, fix)
        return []
    if steps is not None:
        fix = "an epoch has infinitely many steps at d -> infinity. Use times= or alpha=."
        raise checks.reject("steps", steps, fix)
    count = number_of_cells(problem, algorithm, start, cells)
    return [count // 4, count // 2, count]


def _solved(
    call: SolverCall, sweep: Sweep, ratio: int, two_time: bool, bar: Meter
) -> dict[str, np.ndarray]:
    """All runs of a start, (run, replicate, time, ...), with `ratio` steps for each of the door's."""
    begin, found = call.initial_state, []
    for run in range(begin.runs):
        one = Start(*(part[run : run + 1] for part in (begin.M_blocks, begin.Q_blocks, begin.a)))
        found.append(sweep.solve(one, ratio * call.save_steps, two_time, bar))
    return {name: np.stack([part[name] for part in found]) for name in found[0]}


def _extrapolated(
    levels: list[dict[str, np.ndarray]],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Values without the first order of a cell's length, and what the second order would change, from a quarter, a half and all cells."""
    if len(levels) == 1:
        return levels[0], {}
    coarse, half, fine = levels
    values = {name: 2 * fine[name] - half[name] for name in fine}
    return values, {name: (2 * fine[name] - 3 * half[name] + coarse[name]) / 3 for name in fine}


def _dataset(
    call: SolverCall,
    solved: dict[str, list[dict[str, np.ndarray]]],
    sweep: Sweep,
    tolerance: float,
    bound: Memory | None,
    initial_risk: np.ndarray,
) -> xr.Dataset:
    """Means over replicates, and their standard errors: from all paths, a quarter of them, and that with half the memory or in float64."""
    error, observed, of_others = 0.0, {}, 0.0
    for part in (part for levels in solved.values() for part in levels):
        part["risk"], error = call.dynamics.risk_along(part, call.clock, None)
        observed, of_others = evaluate_observables(call, part, 3)
        part |= observed
    (states, bent), (fewer, _) = (_extrapolated(solved[name]) for name in ("all", "fewer"))
    means = {name: value.mean(axis=1) for name, value in states.items()}
    whole, change, bent = (
        {name: _all_blocks(name, value) for name, value in part.items()}
        for part in (states, fewer, bent)
    )
    biases = {
        name: np.abs((value - whole[name]).mean(axis=1)) / (FEWER - 1)
        for name, value in change.items()
    }
    spreads = {
        name: value.std(axis=1, ddof=1) / np.sqrt(sweep.replicates) for name, value in whole.items()
    }
    of_cells = {
        name: np.abs(value.mean(axis=1)) for name, value in bent.items() if name not in ("C", "R")
    }
    others = {}  # what half the memory, and float64, change
    for kind in ("half", "wide"):
        if kind in solved:
            other = {
                name: _all_blocks(name, value)
                for name, value in _extrapolated(solved[kind])[0].items()
            }
            others[kind] = {
                name: np.abs((value - change[name]).mean(axis=1)) for name, value in other.items()
            }
    parts = (biases, of_cells, *others.values())
    errors = {
        name: np.sqrt(value**2 + sum(part.get(name, 0.0) ** 2 for part in parts))
        for name, value in spreads.items()
    }
    texts = ()
    if of_cells:
        failed = _cells_fail(solved["all"], means, of_cells, initial_risk)
        if failed.any():
            texts = (_cell_failure(call, sweep, failed),)
        for values in (means, errors):
            for name in values.keys() - {"C", "R"}:
                values[name][failed] = np.nan
    good = np.isfinite(means["Q"]).all(axis=(2, 3, 4))
    diverged_at = np.where(
        good.all(axis=1), np.nan, call.clock.t[np.maximum(good.argmin(axis=1) - 1, 0)]
    )
    if not texts and not good.all():
        texts = (
            f"The paths diverged after t = {np.nanmin(diverged_at):.4g}. At fixed lr the limit d -> infinity may be only "
            "metastable. Use a smaller lr.",
        )
    texts += _large_errors(means, errors, of_cells, sweep.setup.hot)
    attributes = {
        "seed": call.seed,
        "paths": sweep.each * sweep.replicates,
        "replicates": sweep.replicates,
        "rank": sweep.rank,
        "form": sweep.form,
        "tolerance": tolerance,
        "dtype": str(sweep.dtype),
        "assumptions": f"{call.dynamics.assumptions}, d -> infinity at fixed samples_per_dimension and lr",
        "error_quadrature": error,
        "error_sampling": largest_share(errors["train_risk"], means["train_risk"]),
        "error_paths": largest_share(biases["train_risk"], means["train_risk"]),
        "error_evaluated": of_others if "evaluated_risk" in observed else None,
    }
    if of_cells:
        attributes["cells"] = sweep.cells
        attributes["error_cells"] = largest_share(of_cells["train_risk"], means["train_risk"])
        call = replace(call, clock=replace(call.clock, step=None))  # cells are no steps
    if bound is not None:
        attributes |= {"memory_directions": bound.directions, "keep": bound.keep}
        attributes["error_memory"] = largest_share(
            others["half"]["train_risk"], means["train_risk"]
        )
    if "wide" in others:
        attributes["error_storage"] = largest_share(
            others["wide"]["train_risk"], means["train_risk"]
        )
    more = {name: means[name] for name in observed}
    result = build_result(
        call,
        "solve_dmft",
        means,
        attributes,
        {"diverged_at": diverged_at},
        risk=means["risk"],
        warnings=texts,
        recorded=more,
    )
    for name in ("C", "R"):
        if name in means:
            result[name] = (
                ("run", "time", *VARIABLES[name].axes),
                means[name],
                {"long_name": VARIABLES[name].meaning},
            )
    for name in (*(name for name in VARIABLES if name in result and name in errors), *observed):
        label = result[name].attrs["long_name"]
        result[name + STANDARD_ERROR] = (
            result[name].dims,
            errors[name],
            {"long_name": f"{label}, standard error"},
        )
    return result


def _cells_fail(
    levels: list[dict[str, np.ndarray]],
    means: dict[str, np.ndarray],
    cell_errors: dict[str, np.ndarray],
    initial_risk: np.ndarray,
) -> np.ndarray:
    """At which save points (run, time) the extrapolation in the number of cells has failed, and all later ones.

    A risk that is positive at all levels of cells and negative after the extrapolation, or whose error
    exceeds both its value and the initial risk, is not a risk.
    """
    failed = np.zeros(means["risk"].shape, dtype=bool)
    for name in ("risk", "train_risk"):
        value, error = means[name], cell_errors[name]
        positive = np.all([level[name].mean(axis=1) > 0 for level in levels], axis=0)
        exceeds = error > np.maximum(np.abs(value), initial_risk[:, None])
        unknown = np.isfinite(value) & ~np.isfinite(error)  # the coarsest level has diverged
        failed |= (positive & (value < 0)) | exceeds | unknown
    return np.logical_or.accumulate(failed, axis=1)


def _cell_failure(call: SolverCall, sweep: Sweep, failed: np.ndarray) -> str:
    first = int(np.argmax(failed.any(axis=0)))
    return (
        f"cells = {sweep.cells}: the solutions with a quarter, a half and all of the cells do not converge "
        f"at t = {call.clock.t[first]:.4g}, and values from there on are NaN. "
        f"Use more cells, a smaller lr, or {SIMULATE}."
    )


def _large_errors(
    means: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    cell_errors: dict[str, np.ndarray],
    hot: bool,
) -> tuple[str, ...]:
    """Warnings of standard errors that exceed the value, and of those of Langevin dynamics that exceed 5%."""
    texts = []
    for name in ("risk", "train_risk"):
        large = errors[name] > np.abs(means[name])
        if large.any():
            of_cells = bool(cell_errors) and np.any(
                cell_errors[name][large] > errors[name][large] / 2
            )
            texts.append(
                f"The standard error of {name} exceeds its value at {int(large.sum())} of {large.size} save points. "
                f"Use more {'cells' if of_cells else 'paths'}, or sgd.simulate."
            )
    share = largest_share(errors["train_risk"], means["train_risk"])
    if hot and not texts and share > LARGE_LANGEVIN_ERROR:
        texts.append(
            f"The standard error of train_risk is up to {100 * share:.2g}%: that of Langevin dynamics grows with the number "
            "of steps, because each step adds new directions. Use more paths, or sgd.simulate, which is cheaper here."
        )
    return tuple(texts)


def _all_blocks(name: str, value: np.ndarray) -> np.ndarray:
    return value.sum(axis=3) if name in ("M", "Q") else value
