"""`solve_large_batch`: batches proportional to the dimension.

Each step is then a deterministic map of the overlaps, for any update (`ode.update_step`).
"""

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
from sgdynamics.dynamics.fields import OVERLAPS
from sgdynamics.dynamics.updates import all_rows, with_weights
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.risk import MARGIN, choose_quadrature
from sgdynamics.ode.update_step import UpdateStep, map_step
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.build import build_result, divergence_warning
from sgdynamics.results.clock import Clock
from sgdynamics.solvers.batch import average_replicates, sampling_errors
from sgdynamics.solvers.call import SolverCall, validate_call
from sgdynamics.solvers.deep_linear import solve_fresh_batches

MOST_STEPS = 10**7  # minutes to hours
FIRST_PIECE = 8  # steps of the first call of the compiled map
LARGEST = 1e100  # overlaps beyond this have diverged


@float64
def solve_large_batch(
    problem: Problem | DeepLinear,
    algorithm: OnePassSGD,
    start: Start | None = None,
    *,
    steps: ArrayArgument,
    samples_per_dimension: float,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Iterate the map of the overlaps for batches of samples_per_dimension d samples.

    In the limit d -> infinity a step is deterministic::

        W <- W - lr update(G),
        G = E[h x^T] + noise of Gram matrix sum_b l_b f_b E[h h^T]/samples_per_dimension

    Parameters
    ----------
    problem : Problem or DeepLinear
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm, with any update that commutes with rotations and reads a batch
        once. ``lr`` is the step itself (D = 1 in the units of the update) and may be a function of
        alpha = samples/d; ``batch`` stays at its default.
    start : Start, optional
        Initial condition of one or several runs; none for a ``DeepLinear``.
    steps : array_like
        Save points in steps, increasing whole numbers.
    samples_per_dimension : float
        Samples per batch over d, above 0; infinity is gradient descent on the population risk.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        The variables of ``solve_ode``, with the coordinates ``step``,
        ``alpha`` = samples_per_dimension steps, and t = lr steps.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the update is not supported.

    Notes
    -----
    This is the limit nearest to practice: fixed momentum, a step of O(1), deterministic overlaps.
    At finite d it is ``sgd.simulate`` with
    ``OnePassSGD(lr=lr d, batch=samples_per_dimension d)`` for plain steps and momentum, and with
    ``lr=lr sqrt(d)`` for Muon.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2, activation="erf")
    >>> start = sgd.start(problem, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
    >>> algorithm = sgd.OnePassSGD(lr=0.2, update=sgd.updates.muon(beta=0.5))
    >>> arguments = {"steps": [0, 5], "samples_per_dimension": 2.0}
    >>> result = sgd.solve_large_batch(problem, algorithm, start, **arguments)
    >>> result["M"].values[0, :, 0, 0].round(4).tolist()
    [0.4, 0.7607]
    """
    require("solve_large_batch", problem, algorithm)
    ratio = checks.number("samples_per_dimension", samples_per_dimension, above=0.0, infinite=True)
    points = _validate_steps(steps)
    _validate_algorithm(algorithm)
    # Schedules are functions of alpha; infinitely many samples count as one per dimension.
    alpha_step = ratio if np.isfinite(ratio) else 1.0
    if algorithm.stepping is not None:
        alphas = np.linspace(0.0, points[-1] * alpha_step, SCHEDULE_CHECK_POINTS)
        algorithm.stepping.check_memory(1.0, alphas)  # a step is lr itself, so that D = 1
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
    finite = bool(np.isfinite(ratio))
    clock = _make_clock(algorithm, points, alpha_step, is_finite=finite)
    call = replace(call, clock=clock)
    if isinstance(problem, DeepLinear):
        return solve_fresh_batches(call, ratio)
    states = _iterate(call, points, ratio)
    return _build(call, states).assign_attrs(samples_per_dimension=ratio)


def _validate_steps(steps: ArrayArgument) -> np.ndarray:
    """The save points in steps."""
    fix = "give increasing whole numbers, 0 or more"
    points = np.atleast_1d(checks.real_array("steps", steps, fix))
    is_list = points.ndim == 1 and points.size > 0
    if (
        not is_list
        or np.any(points != np.round(points))
        or np.any(np.diff(points) <= 0)
        or points[0] < 0
    ):
        raise checks.reject("steps", steps, fix)
    if points[-1] > MOST_STEPS:
        fix = f"at most {MOST_STEPS:g} steps are supported, because each is iterated. Use fewer."
        raise checks.reject("steps", float(points[-1]), fix)
    return points.astype(np.int64)


def _validate_algorithm(algorithm: OnePassSGD) -> None:
    """Raise ValueError for an algorithm that the map does not describe."""
    if not isinstance(algorithm, OnePassSGD):
        raise checks.reject("algorithm", algorithm, "give sgd.OnePassSGD(...)")
    if algorithm.batch != 1 or algorithm.per != "dimension":
        fix = (
            "leave batch and per out: a batch has samples_per_dimension d samples, and lr is the "
            "step itself"
        )
        raise checks.reject("batch and per", (algorithm.batch, algorithm.per), fix)
    law = algorithm.law
    if law is not None and (law.rereads or law.noise):
        fix = (
            "large batches need an update that reads a batch once, as a whole, and adds no noise "
            "of its own. Use sgd.simulate"
        )
        raise checks.reject("update", algorithm.update, fix)


def _make_clock(
    algorithm: OnePassSGD, points: np.ndarray, alpha_step: float, is_finite: bool
) -> Clock:
    """Save points in t = sum of lr over the steps, alpha and steps."""
    if algorithm.scheduled:
        rates = algorithm.rates(np.arange(points[-1]) * alpha_step)
        t = np.concatenate([[0.0], np.cumsum(rates)])[points]
    else:
        t = points * float(algorithm.lr)
    alpha = points * alpha_step
    return Clock(t, alpha, points, samples=is_finite, requested="step", divisor="")


def _iterate(call: SolverCall, points: np.ndarray, ratio: float) -> dict[str, np.ndarray]:
    """States (replicate, run, time, ...) of all sets of rows at the save points."""
    problem, algorithm = call.dynamics.problem, call.dynamics.algorithm
    update = algorithm.stepping or PLAIN
    quadrature = choose_quadrature(problem, call.initial_state.Q_blocks, MARGIN)
    # The mean over a batch is linear in its samples, whatever the update does with it.
    field = UpdateStep(problem.structure, quadrature, 1, replace(update.law, linear=True))
    nodes = expectation_of(problem.structure).nodes(quadrature, False)
    hyperparameters = algorithm.parameters | {"update": update.parameters}
    parameters = {"problem": problem.parameters, "algorithm": hyperparameters}
    alpha_step = call.clock.alpha[-1] / points[-1] if points[-1] else 0.0  # type: ignore[index]
    ratios = {"samples": np.float64(ratio), "alpha": np.float64(alpha_step)}
    replicates = len(next(iter(nodes.values())))
    states: dict[str, Any] = {
        name: np.broadcast_to(value, (replicates, *value.shape))
        for name, value in all_rows(
            update, call.initial_state, problem.width, problem.structure.trained
        ).items()
    }
    saved, current, piece = [], 0, FIRST_PIECE
    with meter("solve_large_batch", float(points[-1]), call.progress, Cost("step")) as bar:
        for step in points:
            while current < step:
                end, before = min(step, current + piece), perf_counter()
                interval = (np.int64(current), np.int64(end))
                states = _advance(field, nodes, parameters, ratios, states, *interval)
                jax.block_until_ready(states)
                piece = next_piece(piece, perf_counter() - before)
                bar.advance(float(end - current))
                current = end
            saved.append({name: np.asarray(value) for name, value in states.items()})
    return {name: np.stack([state[name] for state in saved], axis=2) for name in saved[0]}


@partial(jax.jit, static_argnums=0)
def _advance(
    field: UpdateStep,
    nodes: PyTree,
    parameters: PyTree,
    ratios: PyTree,
    states: PyTree,
    first_step: IntScalar,
    last_step: IntScalar,
) -> PyTree:
    """Advance all replicates and runs from one step to another."""

    def advance_run(replicate: PyTree, state: PyTree) -> PyTree:
        def step(index: IntScalar, state: PyTree) -> PyTree:
            values = values_at(parameters, index * ratios["alpha"])
            return map_step(
                field,
                {"nodes": replicate},
                values["problem"],
                values["algorithm"],
                ratios["samples"],
                index,
                state,
            )

        return jax.lax.fori_loop(first_step, last_step, step, state)

    def advance_replicate(replicate: PyTree, states: PyTree) -> PyTree:
        return jax.vmap(partial(advance_run, replicate))(states)

    return jax.vmap(advance_replicate)(nodes, states)


def _build(call: SolverCall, rows: dict[str, np.ndarray]) -> xr.Dataset:
    """The result, with errors from the spread of replicates and diverged runs marked."""
    dynamics, t = call.dynamics, call.clock.t
    replicates = with_weights(rows, dynamics.problem.width)
    states = average_replicates(replicates)
    sizes = [
        np.abs(value).reshape(*value.shape[:2], -1).max(axis=-1, initial=0.0)
        for value in states.values()
    ]
    is_good = np.all([size < LARGEST for size in sizes], axis=0)
    for name, value in states.items():
        shape = (*is_good.shape, *[1] * (value.ndim - 2))
        states[name] = np.where(is_good.reshape(shape), value, np.nan)
    last_good = [t[row][-1] if row.any() else 0.0 for row in is_good]
    diverged_at = np.where(is_good.all(axis=1), np.nan, last_good)
    risk, error = dynamics.risk_along(states, call.clock, None)
    count = len(rows["rows_a"])
    if count > 1:
        weights = {name: replicates[name] for name in OVERLAPS}
        risks = []
        for index in range(count):
            replicate = {name: value[index] for name, value in weights.items()}
            risks.append(dynamics.risk_along(replicate, call.clock, None)[0])
        error = sampling_errors(weights, np.stack(risks), error, 0.0)[0]
    attributes = {
        "assumptions": f"{dynamics.assumptions}, batches proportional to d, d -> infinity",
        "error_quadrature": error,
    }
    return build_result(
        call,
        "solve_large_batch",
        states,
        attributes,
        {"diverged_at": diverged_at},
        risk=risk,
        warnings=divergence_warning(diverged_at),
    )
