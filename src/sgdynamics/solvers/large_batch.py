"""Batches proportional to the dimension: every step is a deterministic map of the overlaps, for any update (`ode.update_step`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.additions import PLAIN
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, IntScalar, PyTree
from sgdynamics.base.controls import SCHEDULE_CHECK_POINTS, values_at
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Cost, meter, next_piece
from sgdynamics.base.support import require
from sgdynamics.dynamics.updates import all_rows, with_weights
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.risk import MARGIN, choose_quadrature
from sgdynamics.ode.update_step import UpdateStep, map_step
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.build import build_result
from sgdynamics.results.clock import Clock
from sgdynamics.solvers.batch import average_replicates, sampling_errors
from sgdynamics.solvers.call import SolverCall, validate_call

WEIGHTS = ("M", "Q", "a")
MOST_STEPS = 10**7  # minutes to hours
FIRST_PIECE = 8  # steps of the first call of the compiled map
LARGEST = 1e100  # overlaps beyond this have diverged


@float64
def solve_large_batch(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    *,
    steps: ArrayArgument,
    samples_per_dimension: float,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """The overlaps and the risk as d -> infinity where every batch has samples_per_dimension d samples: a map, step by step.

    ::

        W <- W - lr (image of G under the update),     G = E[h x^T] + noise of Gram matrix sum_b l_b f_b E[h h^T]/samples_per_dimension

    Parameters
    ----------
    problem : Problem
        What is learned.
    algorithm : OnePassSGD
        How, with any update that commutes with rotations and reads a batch once; ``lr`` is the step itself (D = 1 in the update's units),
        and ``batch`` is left at 1. A learning rate may depend on alpha = samples/d.
    start : Start
        Where, of one run or several.
    steps : array_like
        Save points in steps, increasing whole numbers.
    samples_per_dimension : float
        Samples in a batch over d, above 0; infinity is gradient descent on the population risk.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        As that of ``solve_ode``, with ``step``, ``alpha`` = samples_per_dimension steps, and t = lr steps.

    Raises
    ------
    ValueError
        If an argument is refused, or this is not answered for the problem or the update.

    Notes
    -----
    The batch nearest to practice: fixed momentum, a step of O(1), deterministic overlaps. At finite d it is ``sgd.simulate`` with
    ``OnePassSGD(lr=lr d, batch=samples_per_dimension d)`` for plain steps and momentum, ``lr=lr sqrt(d)`` for Muon.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2, activation="erf")
    >>> begin = sgd.start(problem, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
    >>> algorithm = sgd.OnePassSGD(lr=0.2, update=sgd.updates.muon(beta=0.5))
    >>> found = sgd.solve_large_batch(problem, algorithm, begin, steps=[0, 5], samples_per_dimension=2.0)
    >>> found["M"].values[0, :, 0, 0].round(4).tolist()
    [0.4, 0.7757]
    """
    require("solve_large_batch", problem, algorithm)
    share = checks.number("samples_per_dimension", samples_per_dimension, above=0.0, infinite=True)
    points = checks.real_array("steps", steps, "give increasing whole numbers, 0 or more")
    points = np.atleast_1d(points)
    if (
        points.ndim != 1
        or points.size == 0
        or np.any(points != np.round(points))
        or np.any(np.diff(points) <= 0)
        or points[0] < 0
    ):
        raise checks.reject("steps", steps, "give increasing whole numbers, 0 or more")
    if points[-1] > MOST_STEPS:
        raise checks.reject(
            "steps",
            float(points[-1]),
            f"the map is made step by step: give {MOST_STEPS:g} or fewer",
        )
    _accept(algorithm)
    if algorithm.stepping is not None:
        ends = np.linspace(
            0.0, points[-1] * (share if np.isfinite(share) else 1.0), SCHEDULE_CHECK_POINTS
        )
        algorithm.stepping.check_memory(1.0, ends)  # a step is lr itself, so that D = 1
    call = validate_call(
        "solve_large_batch",
        problem,
        algorithm,
        start,
        alpha=[0.0],
        record=record,
        evaluate=evaluate,
        progress=progress,
    )
    alpha = points * (share if np.isfinite(share) else 1.0)
    each = alpha[-1] / points[-1] if points[-1] else 0.0
    t = (
        points * float(algorithm.lr)
        if not algorithm.scheduled
        else _summed(algorithm, points.astype(int), each)
    )
    finite = bool(np.isfinite(share))
    when = Clock(t, alpha, points.astype(np.int64), samples=finite, requested="step", divisor="")
    call = replace(call, clock=when)
    update = algorithm.stepping or PLAIN
    quadrature = choose_quadrature(problem, call.initial_state.Q_blocks, MARGIN)
    field = UpdateStep(problem.structure, quadrature, 1, replace(update.law, linear=True))
    nodes = expectation_of(problem.structure).nodes(quadrature, False)
    numbers = {
        "problem": problem.parameters,
        "algorithm": algorithm.parameters | {"update": update.parameters},
    }
    share_of = {"share": np.float64(share), "each": np.float64(each)}
    states, saved, now = all_rows(update, call.initial_state, problem.width), [], 0
    states = {
        name: np.broadcast_to(value, (len(next(iter(nodes.values()))), *value.shape))
        for name, value in states.items()
    }
    piece = FIRST_PIECE
    with meter("solve_large_batch", float(points[-1]), call.progress, Cost("step")) as shown:
        for step in points.astype(np.int64):
            while now < step:
                end, began = min(step, now + piece), perf_counter()
                states = _advance(
                    field, nodes, numbers, share_of, states, np.int64(now), np.int64(end)
                )
                jax.block_until_ready(states)
                piece = next_piece(piece, perf_counter() - began)
                shown.advance(float(end - now))
                now = end
            saved.append({name: np.asarray(value) for name, value in states.items()})
    found = {
        name: np.stack([one[name] for one in saved], axis=2) for name in saved[0]
    }  # (replicate, run, time, ...)
    return _dataset(call, found).assign_attrs(samples_per_dimension=share)


def _summed(algorithm: OnePassSGD, points: np.ndarray, each: float) -> np.ndarray:
    """t at save points, of a learning rate that depends on alpha."""
    return np.concatenate([[0.0], np.cumsum(algorithm.rates(np.arange(points[-1]) * each))])[points]


def _accept(algorithm: Any) -> None:
    """Refuse what the map does not know."""
    if not isinstance(algorithm, OnePassSGD):
        raise checks.reject("algorithm", algorithm, "give sgd.OnePassSGD(...)")
    if algorithm.batch != 1 or algorithm.per != "dimension":
        fix = "leave batch and per out: a batch is samples_per_dimension d samples, and lr the step itself"
        raise checks.reject("batch and per", (algorithm.batch, algorithm.per), fix)
    law = algorithm.law
    if law is not None and (law.rereads or law.noise):
        fix = "in large batches this takes updates that read a batch once, as a whole, and add no noise of their own: simulate it"
        raise checks.reject("update", algorithm.update, fix)


@partial(jax.jit, static_argnums=0)
def _advance(
    field: UpdateStep,
    nodes: PyTree,
    numbers: PyTree,
    share: PyTree,
    states: PyTree,
    since: IntScalar,
    end: IntScalar,
) -> Any:
    """All replicates and runs from one step to another."""

    def one(node: PyTree, state: PyTree) -> Any:
        def step(number: IntScalar, state: PyTree) -> Any:
            now = values_at(numbers, number * share["each"])
            return map_step(
                field,
                {"nodes": node},
                now["problem"],
                now["algorithm"],
                share["share"],
                number,
                state,
            )

        return jax.lax.fori_loop(since, end, step, state)

    return jax.vmap(lambda node, states: jax.vmap(partial(one, node))(states))(nodes, states)


def _dataset(call: SolverCall, found: dict[str, np.ndarray]) -> xr.Dataset:
    dynamics = call.dynamics
    every = with_weights(found, dynamics.problem.width)
    states = average_replicates(every)
    good = np.all(
        [
            np.abs(value).reshape(*value.shape[:2], -1).max(axis=-1, initial=0.0) < LARGEST
            for value in states.values()
        ],
        axis=0,
    )
    states = {
        name: np.where(good.reshape(*good.shape, *[1] * (value.ndim - 2)), value, np.nan)
        for name, value in states.items()
    }
    last = np.where(
        good.all(axis=1), np.nan, [call.clock.t[row][-1] if row.any() else 0.0 for row in good]
    )
    risk, error = dynamics.risk_along(states, call.clock, None)
    replicates = len(found["rows_a"])
    if replicates > 1:
        each = np.stack(
            [
                dynamics.risk_along(
                    {name: every[name][index] for name in WEIGHTS}, call.clock, None
                )[0]
                for index in range(replicates)
            ]
        )
        error = sampling_errors({name: every[name] for name in WEIGHTS}, each, error, 0.0)[0]
    attributes = {
        "assumptions": f"{dynamics.assumptions}, batches proportional to d, d -> infinity",
        "error_quadrature": error,
    }
    lost = int(np.isfinite(last).sum())
    warnings = (
        (
            f"{lost} of {len(risk)} solutions diverge (coordinate diverged_at); a smaller lr may help",
        )
        if lost
        else ()
    )
    return build_result(
        call,
        "solve_large_batch",
        states,
        attributes,
        {"diverged_at": last},
        risk=risk,
        warnings=warnings,
    )
