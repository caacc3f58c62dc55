"""Exit times of simulated runs and of SDE paths: first passages, checked after each step.

A risk that costs more than a step is not evaluated after each step, but only where a lower bound
(`dynamics.risk_floor`) does not exclude that the run leaves: the exit is the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.analysis.exit_requests import SHORTER_TIME, ExitRequest
from sgdynamics.base.arrays import (
    Device,
    IntScalar,
    Numeric,
    PyTree,
    Scalar,
)
from sgdynamics.base.controls import Schedule
from sgdynamics.base.resources import check_steps
from sgdynamics.dynamics.risk_floor import Anchor, RiskFloor
from sgdynamics.ode.case import Watch, raise_if_error
from sgdynamics.ode.integrate import run_cases
from sgdynamics.results.clock import plan_steps, time_of_steps
from sgdynamics.simulation.devices import over_devices
from sgdynamics.simulation.running import Observation, RunSetting, first_passage

# Operations of an evaluation of the risk above which it is evaluated only where it is needed.
EXPENSIVE = 2e4
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


class Examination(NamedTuple):
    """Arguments of an evaluation of the risk of one run."""

    is_needed: Bool[Numeric, ""]
    state: dict[str, Numeric]
    level: Scalar
    anchor: Anchor


@dataclass(frozen=True)
class BoundedObserver:
    """Records the first step after which the excess risk is below its level, with few evaluations.

    The risk is evaluated where the bound of `floor` from the last evaluated state of the run does
    not show that it is above the level. It is then compared itself, so that the recorded step is
    that of `PassageObserver`, also for risks that fall below the level and rise again.
    """

    floor: RiskFloor

    def records(self, passage: dict[str, np.ndarray]) -> dict[str, Any]:
        """The records of the runs before the first step, which have no anchor yet."""
        anchor = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (len(passage["left"]), *np.shape(leaf))),
            self.floor.no_anchor(),
        )
        evaluations = np.zeros(len(passage["left"]), dtype=np.int64)
        return {**passage, "anchor": anchor, "evaluations": evaluations}

    def __call__(
        self, parameters: PyTree, passage: dict[str, Any], step: IntScalar, state: dict[str, Any]
    ) -> dict[str, Any]:
        floor, level, anchor = self.floor, passage["level"], Anchor(*passage["anchor"])
        state = {name: state[name] for name in ("M", "Q", "a")}
        size = sum(jnp.sum(jnp.abs(leaf)) for leaf in state.values())
        # The risk of a run that has diverged is not below the level, and would be evaluated for
        # ever.
        is_needed = (
            (passage["left"] < 0)
            & (size < jnp.inf)
            & ~floor.is_above(anchor, parameters, state, level)
        )
        examination = Examination(is_needed, state, level, anchor)
        value, anchor = _examine_if_needed(floor)(parameters, examination)
        leaves_now = is_needed & (value < level)
        return {
            "left": jnp.where(leaves_now, jnp.asarray(step, jnp.float64), passage["left"]),
            "value": value,
            "level": level,
            "anchor": anchor,
            "evaluations": passage["evaluations"] + is_needed,
        }


def _examine_if_needed(
    floor: RiskFloor,
) -> Callable[[PyTree, Examination], tuple[Scalar, Anchor]]:
    """The risk and the new anchor of a run where they are needed; infinity and the old elsewhere.

    A condition on one run among many would be computed on both sides by `jax.vmap`.
    """

    def examine(shared: PyTree, run: Examination) -> tuple[Scalar, Anchor]:
        return jax.lax.cond(
            run.is_needed,
            lambda: floor.evaluate(shared, run.state, run.level),
            lambda: (jnp.asarray(jnp.inf), run.anchor),
        )

    batched = jax.custom_batching.custom_vmap(examine)

    @batched.def_vmap
    def examine_batch(
        size: int, in_batched: list[Any], shared: PyTree, runs: Examination
    ) -> tuple[tuple[Numeric, Anchor], tuple[bool, Any]]:
        """Evaluate no run if none needs it; on a CPU only those that do."""
        shared_is_batched, runs_are_batched = in_batched
        assert not any(jax.tree.leaves(shared_is_batched))
        runs = jax.tree.map(
            lambda leaf, is_batched: (
                leaf if is_batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf)))
            ),
            runs,
            runs_are_batched,
        )

        def examine_all() -> tuple[Numeric, Anchor]:
            if jax.default_backend() == "cpu":
                return jax.lax.map(partial(examine, shared), runs)
            # One run after the other would leave a GPU idle.
            batch = jax.vmap(partial(examine, shared))(runs)  # its type is that of one run
            return cast("tuple[Numeric, Anchor]", batch)

        values = jnp.full(size, jnp.inf)
        results = jax.lax.cond(jnp.any(runs.is_needed), examine_all, lambda: (values, runs.anchor))
        return results, jax.tree.map(lambda _: True, results)

    return batched


def simulate_exits(
    request: ExitRequest, devices: Sequence[Device]
) -> tuple[np.ndarray, np.ndarray]:
    """Exit times in t (NaN for runs that have not left), and which runs diverged."""
    call, dynamics, end = request.call, request.dynamics, request.max_time
    d, block_sizes = call.finite_dimension
    algorithm, is_sde = dynamics.algorithm, request.method == "sde"
    step_length = 1.0 if dynamics.has_data else algorithm.lr / d
    if is_sde:
        simulator, step_length = _sde_paths(request)
    else:
        setting = RunSetting(call.initial_state, d, block_sizes, request.method, seed=call.seed)
        simulator = dynamics.simulator(setting)
    simulator = over_devices(simulator, devices)
    if dynamics.has_data:
        last_step = _steps_on_data(algorithm, end)
    else:
        last_step = int(np.ceil(end / step_length - 1e-9))
    observer: Any = PassageObserver(request.watch, interpolate=is_sde)
    records: Any = request.passage
    floor = None if is_sde else dynamics.exit_floor(request.watch)
    if floor is not None and _is_expensive(request):
        observer = BoundedObserver(floor)
        records = observer.records(request.passage)
    left, diverged = first_passage(
        simulator,
        Observation(records, observer, request.watch_parameters),
        last_step,
        call.seed,
        f"exit times, {request.method}, {dynamics.dimension_symbol} = {d}",
        call.progress,
    )
    if not dynamics.has_data:
        return left * step_length, diverged
    steps = np.nan_to_num(left).astype(np.int64)
    return np.where(np.isnan(left), np.nan, time_of_steps(algorithm, steps, 1)), diverged


def _is_expensive(request: ExitRequest) -> bool:
    """Whether an evaluation of the watch costs more than a step with its bound.

    Lowered, not compiled: the count of operations takes a fraction of a second.
    """
    states = request.dynamics.state_arrays(request.call.initial_state)
    state = {name: value[0] for name, value in states.items()}
    value = jax.jit(request.watch.value).lower(request.watch_parameters, state)
    operations = (value.cost_analysis() or {}).get("flops", 0.0)
    return operations > EXPENSIVE


def _sde_paths(request: ExitRequest) -> tuple[Any, float]:
    """Paths of the SDE with steps of equal length up to max_time, and that length in t."""
    call, dynamics, end = request.call, request.dynamics, request.max_time
    setting = RunSetting(call.initial_state, *call.finite_dimension)
    # The noiseless path gives the length of steps. If it never leaves, max_time does.
    first_run = np.arange(call.initial_state.runs) == 0
    noiseless = raise_if_error(run_cases([request.ode_case(first_run, in_limit=True)])[0])
    noiseless_exit = noiseless.exits[0, 0]
    scale = end if np.isnan(noiseless_exit) else float(min(end, 2 * noiseless_exit))
    longest = dynamics.sde_step_length(setting, scale, True)[0]
    paths = dynamics.sde_paths(setting, True)
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
