"""Exit times of simulated runs and of SDE paths: first passages, checked after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.analysis.exit_requests import SHORTER_TIME, ExitRequest
from sgdynamics.base.arrays import IntScalar, PyTree
from sgdynamics.base.controls import Schedule
from sgdynamics.base.resources import check_steps
from sgdynamics.ode.case import Watch, raise_if_error
from sgdynamics.ode.integrate import run_cases
from sgdynamics.results.clock import plan_steps, time_of_steps
from sgdynamics.simulation.running import Observation, first_passage

SDE_STEPS = 400  # least number of steps of the SDE up to the exit


@dataclass(frozen=True)
class PassageObserver:
    """Records the first step after which the watched value is below its level.

    With `interpolate` it records the crossing on the line between two steps, for long steps.
    """

    watch: Watch
    interpolate: bool

    def __call__(
        self, parameters: PyTree, passage: dict[str, Any], step: IntScalar, state: dict[str, Any]
    ) -> dict[str, Any]:
        value, level = self.watch.value(parameters, state), passage["level"]
        leaves_now = (passage["left"] < 0) & (value < level)
        crossing = jnp.asarray(step, jnp.float64)
        if self.interpolate:
            # The denominator is replaced where it is not used, because it may vanish there.
            decrease = jnp.where(leaves_now, passage["value"] - value, 1.0)
            crossing = crossing - (level - value) / decrease
        left = jnp.where(leaves_now, crossing, passage["left"])
        return {"left": left, "value": value, "level": level}


def simulate_exits(request: ExitRequest) -> tuple[np.ndarray, np.ndarray]:
    """Exit times in t (NaN for runs that have not left), and which runs diverged."""
    call, dynamics, end = request.call, request.dynamics, request.max_time
    d, block_sizes = call.finite_dimension
    algorithm, is_sde = dynamics.algorithm, request.method == "sde"
    step_length = 1.0 if dynamics.has_data else algorithm.lr / d
    if is_sde:
        simulator, step_length = _sde_paths(request)
    else:
        simulator = dynamics.simulator(
            request.method, call.initial_state, d, block_sizes, seed=call.seed
        )
    if dynamics.has_data:
        last_step = _steps_on_data(algorithm, end)
    else:
        last_step = int(np.ceil(end / step_length - 1e-9))
    observer = PassageObserver(request.watch, interpolate=is_sde)
    left, diverged = first_passage(
        simulator,
        Observation(request.passage, observer, request.watch_parameters),
        last_step,
        call.seed,
        f"exit times, {request.method}, {dynamics.dimension_symbol} = {d}",
        call.progress,
    )
    if not dynamics.has_data:
        return left * step_length, diverged
    steps = np.nan_to_num(left).astype(np.int64)
    return np.where(np.isnan(left), np.nan, time_of_steps(algorithm, steps, 1)), diverged


def _sde_paths(request: ExitRequest) -> tuple[Any, float]:
    """Paths of the SDE with steps of equal length up to max_time, and that length in t."""
    call, dynamics, end = request.call, request.dynamics, request.max_time
    arguments = (call.initial_state, *call.finite_dimension)
    # The noiseless path gives the length of steps. If it never leaves, max_time does.
    first_run = np.arange(call.initial_state.runs) == 0
    noiseless = raise_if_error(run_cases([request.ode_case(first_run, in_limit=True)])[0])
    noiseless_exit = noiseless.exits[0, 0]
    scale = end if np.isnan(noiseless_exit) else float(min(end, 2 * noiseless_exit))
    longest = dynamics.sde_step_length(*arguments, scale, True)[0]
    paths = dynamics.sde_paths(*arguments, True)
    step = min(longest, scale / SDE_STEPS)
    # `plan_steps` checks this too, and would name an argument that `exit_time` does not have.
    check_steps("max_time", end, end / step, SHORTER_TIME)
    paths.set_steps(*plan_steps(np.array([end]), step))
    return paths, float(paths.lengths[0])


def _steps_on_data(algorithm: FixedData, end: float) -> int:
    """The first step after which t is at least `end`, or the last step of a table of rates."""
    if isinstance(algorithm.lr, Schedule):
        table = np.asarray(algorithm.lr.parameters["times"])
        return int(min(np.searchsorted(table, end), len(table) - 2))
    return int(np.ceil(end / algorithm.lr - 1e-9))
