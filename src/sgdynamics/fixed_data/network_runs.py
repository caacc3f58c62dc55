"""Runs of networks that are more than fields of one layer: one loop over steps for all of them.

A kind of network states the functions of one run (`RunEquations`); this module maps them over runs,
loops over steps, enlarges the memory of runs whose states grow, and makes them a `Simulator`. Deep
linear networks (`deep_linear_runs`, `deep_linear_direct`) and diagonal networks (`diagonal_runs`)
use it, with one and the same schedule of hyperparameters, velocity of momentum and selection of
samples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import pytrees
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, RandomKeys, Scalar
from sgdynamics.base.controls import Schedule, values_at
from sgdynamics.base.precision import float64
from sgdynamics.base.random import normals_and_uniforms, run_keys
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    Simulator,
)

LARGEST = 1e100  # a run has diverged if a coefficient exceeds this
FIRST_STEP = (1 << 31) - 1  # step number of the draws before the first step; no run reaches it
SMALLEST_CAPACITY = 16  # steps for which memory is allocated at least
GROUP_BYTES = 1 << 28  # memory of the runs that advance together

Setup = TypeVar("Setup")  # the static description of runs, on which compiled code depends
Values = TypeVar("Values")  # the values that JAX traces
State = TypeVar("State")  # one run between two steps


@dataclass(frozen=True)
class RunEquations(Generic[Setup, Values, State]):
    """The functions of one run of a network.

    Attributes
    ----------
    initial_state : callable
        The state before the first step of (setup, steps with memory, values, key).
    advance_step : callable
        The next state of (setup, values, state, key, step number).
    observe : callable
        The variables of a result of (setup, values, state).
    largest : callable
        The size of a state, which is finite as long as the run has not diverged.
    """

    initial_state: Callable[[Setup, int, Values, RandomKey], State]
    advance_step: Callable[[Setup, Values, State, RandomKey, IntScalar], State]
    observe: Callable[[Setup, Values, State], dict[str, Numeric]]
    largest: Callable[[State], Scalar]


# ---- values of a step


@runtime_checkable
class ScheduledValues(Protocol):
    """Values with hyperparameters that may be schedules."""

    @property
    def algorithm(self) -> Parameters: ...

    @property
    def schedule_step(self) -> Scalar: ...

    def _replace(self, *, algorithm: Parameters) -> Any: ...


Scheduled = TypeVar("Scheduled", bound=ScheduledValues)


def at_step(values: Scheduled, number: IntScalar) -> Scheduled:
    """The values with those of scheduled hyperparameters at one step."""
    algorithm, step = dict(values.algorithm), jnp.maximum(number, 0)
    variable = step * values.schedule_step
    if "times" in algorithm:  # a table of t before each step, of a schedule on a fixed data set
        times = algorithm.pop("times")
        algorithm["lr"], variable = times[step + 1] - times[step], times[step]
    return values._replace(algorithm=values_at(algorithm, variable))


def velocity_of(algorithm: OnePassSGD | FixedData) -> str:
    """The kind of velocity of the update: "" for plain steps, "momentum" or "nesterov"."""
    update = getattr(algorithm, "update", None)
    return "" if update is None else update.law.name


def hyperparameters_of(algorithm: OnePassSGD | FixedData) -> Parameters:
    """The hyperparameters that a step reads, with a schedule of t as a table of times."""
    values = {"lr": algorithm.parameters["lr"]}
    if isinstance(algorithm, FixedData):
        values |= {name: algorithm.parameters[name] for name in ("fraction", "divisor")}
        if isinstance(algorithm.lr, Schedule):
            values["times"] = values.pop("lr").parameters["times"]
    if velocity_of(algorithm):
        values["beta"] = pytrees.to_float64(algorithm.update.numbers["beta"])  # type: ignore[union-attr]
    return values


def velocity_and_move(
    kind: str, velocity: Any, gradients: State, beta: Scalar
) -> tuple[Any, State]:
    """The velocity V <- beta V + G, and what a step of rate 1 subtracts from the weights.

    That is G in a plain step (`kind` is empty), V with "momentum" and G + beta V with "nesterov".
    """
    if not kind:
        return None, gradients
    velocity = jax.tree.map(lambda old, new: beta * old + new, velocity, gradients)
    if kind == "momentum":
        return velocity, velocity
    return velocity, jax.tree.map(lambda new, old: new + beta * old, gradients, velocity)


def selected_residual(
    residual: Float[Numeric, " samples"],
    algorithm: Parameters,
    slot: IntScalar,
    key: RandomKey,
    *,
    has_coordinates: bool,
) -> Float[Numeric, " samples"]:
    """s r/divisor, where s selects a random part of the samples.

    In the coordinates of the samples s_mu is 0 or 1. In a frame, for infinitely many samples, a
    selection of the fraction b gives s r = b r + sqrt(b (1 - b)) |r| e, with the new direction e at
    `slot`.
    """
    fraction, divisor = algorithm["fraction"], algorithm["divisor"]
    if has_coordinates:
        uniform = normals_and_uniforms(key, 0, residual.shape[0])[1]
        return jnp.where(uniform < fraction, residual, 0.0) / divisor
    length = jnp.sqrt(fraction * (1 - fraction) * jnp.sum(residual**2))
    return (fraction * residual).at[slot].add(length) / divisor


# ---- many runs and steps


@partial(jax.jit, static_argnums=(0, 1, 2))
def initial_states(
    equations: RunEquations[Setup, Values, State],
    setup: Setup,
    steps: int,
    values: Values,
    keys: RandomKeys,
) -> State:
    """Runs at step 0 (leading axis), with memory for this many steps."""
    return jax.vmap(partial(equations.initial_state, setup, steps, values))(keys)


@partial(jax.jit, static_argnums=(0, 1))
def observe_states(
    equations: RunEquations[Setup, Values, State], setup: Setup, values: Values, states: State
) -> dict[str, Numeric]:
    """The observables of many runs (leading axis)."""
    return jax.vmap(partial(equations.observe, setup, values))(states)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def advance_states(
    equations: RunEquations[Setup, Values, State],
    setup: Setup,
    values: Values,
    states: State,
    keys: RandomKeys,
    first: IntScalar,
    end: IntScalar,
) -> tuple[State, Int[Numeric, " runs"]]:
    """All runs (leading axis) from step `first` to `end`, and their last finite steps."""

    def advance(
        number: IntScalar, carry: tuple[State, Int[Numeric, " runs"]]
    ) -> tuple[State, Int[Numeric, " runs"]]:
        states, last_finite = carry
        states = _map_runs(
            lambda state, key: equations.advance_step(setup, values, state, key, number),
            states,
            keys,
        )
        is_finite = jax.vmap(equations.largest)(states) < LARGEST
        return states, jnp.where(is_finite, number + 1, last_finite)

    last_finite = jnp.full(keys.shape[0], first)
    return jax.lax.fori_loop(first, end, advance, (states, last_finite))


def _map_runs(
    function: Callable[[State, RandomKey], State], states: State, keys: RandomKeys
) -> State:
    """The function on each run; a single run without a batch axis, whose products are faster."""
    if keys.shape[0] > 1:
        return jax.vmap(function)(states, keys)
    single = function(jax.tree.map(lambda leaf: leaf[0], states), keys[0])
    return jax.tree.map(lambda leaf: leaf[None], single)


def with_capacity(
    equations: RunEquations[Setup, Values, State],
    setup: Setup,
    values: Values,
    states: State,
    steps: int,
) -> State:
    """The same runs (leading axis) with memory for this many steps."""
    initial_state = partial(equations.initial_state, setup, steps)
    larger = jax.eval_shape(initial_state, values, jax.random.key(0))
    # The first directions come first on each axis, so that all arrays grow at their ends.
    return jax.tree.map(
        lambda leaf, target: jnp.pad(
            leaf,
            [(0, 0)]
            + [(0, size - old) for size, old in zip(target.shape, leaf.shape[1:], strict=True)],
        ),
        states,
        larger,
    )


class NetworkRuns(Simulator, Generic[Setup, Values, State]):
    """Runs of a network with the functions `equations`.

    Parameters
    ----------
    setup : object
        The static description of the runs.
    values : object
        The values that JAX traces.
    last_step : int
        The last step, for which memory is allocated at the start.
    seed : int
        Seed of the random number generator.
    """

    equations: ClassVar[RunEquations[Any, Any, Any]]

    def __init__(self, setup: Setup, values: Values, last_step: int, seed: int) -> None:
        self.setup, self.values, self.seed = setup, values, seed
        self.capacity = self.capacity_of(last_step)

    def capacity_of(self, steps: int) -> int:
        """Number of steps for which memory is allocated; 0 for states that do not grow."""
        return 0

    @abstractmethod
    def bytes_per_run(self, capacity: int) -> float:
        """Memory of one run with this capacity."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Batch, width and dimension, for the message if they are too large."""

    @float64
    def initial(self, chosen: np.ndarray) -> State:
        keys = run_keys(self.seed, chosen)
        return initial_states(self.equations, self.setup, self.capacity, self.values, keys)

    def advance(
        self,
        state: State,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        assert observation.observe is None, "first passages of these networks are not observed"
        capacity = self.capacity_of(end)
        if capacity > self.capacity:
            self.capacity = capacity
            state = with_capacity(self.equations, self.setup, self.values, state, capacity)
        return *self.advance_states(state, keys, since, end), observation.records

    def advance_states(
        self, state: State, keys: RandomKeys, since: int, end: int
    ) -> tuple[State, Int[Numeric, " runs"]]:
        """All runs between two steps, and their last finite steps."""
        steps = np.int64(since), np.int64(end)
        return advance_states(self.equations, self.setup, self.values, state, keys, *steps)

    def overlaps(self, state: State) -> dict[str, Numeric]:
        return observe_states(self.equations, self.setup, self.values, state)

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        memory = self.bytes_per_run(max(self.capacity, self.capacity_of(int(steps))))
        group = int(max(1, min(1 << 10, GROUP_BYTES // memory)))
        return Resources(memory, group, self.sizes)


def power_of_two(steps: int) -> int:
    """A power of two of at least this many steps, because each capacity is compiled."""
    return max(SMALLEST_CAPACITY, 1 << math.ceil(math.log2(max(steps, 1))))


def quarter_of_power(steps: int) -> int:
    """A multiple of a quarter of a power of two of at least this many steps.

    Such capacities waste less memory than powers of two, and are still few.
    """
    quarter = 1 << max(0, math.floor(math.log2(max(steps, 1))) - 2)
    return max(SMALLEST_CAPACITY, quarter * math.ceil(steps / quarter))
