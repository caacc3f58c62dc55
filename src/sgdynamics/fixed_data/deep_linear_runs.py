"""Deep linear networks as simulators: the exact law at finite d, and the proportional limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import pytrees
from sgdynamics.base.arrays import Numeric, Parameters, RandomKeys
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.deep_linear import (
    DeepParameters,
    DeepSetup,
    DeepSizes,
    DeepState,
    advance_states,
    capacity_of,
    initial_states,
    observe_states,
    with_capacity,
)
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    Simulator,
)

GROUP_BYTES = 1 << 28  # memory of the runs that advance together


def velocity_of(algorithm: OnePassSGD | FixedData) -> str:
    """The kind of velocity of the update: "" for plain steps, "momentum" or "nesterov"."""
    update = getattr(algorithm, "update", None)
    return "" if update is None else update.law.name


def run_parameters(
    problem: DeepLinear,
    algorithm: OnePassSGD | FixedData,
    sizes: DeepSizes,
    unit: float,
    alpha_per_step: float,
) -> DeepParameters:
    """All values that the steps of a run read."""
    # Schedules are functions of t on a fixed data set, and of samples/d otherwise.
    clock = alpha_per_step
    if isinstance(algorithm, FixedData) and not isinstance(algorithm.lr, Schedule):
        clock = float(algorithm.lr)
    return DeepParameters(
        DeepSizes(*(np.asarray(size, np.float64) for size in sizes)),
        layer_parameters(problem, float(sizes.hidden / np.sum(sizes.inputs))),
        hyperparameters_of(algorithm),
        np.float64(unit),
        np.float64(clock),
    )


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


class DeepRuns(Simulator):
    """Runs of a deep linear network, whose products are conditioned on.

    Parameters
    ----------
    problem : DeepLinear
        The problem.
    algorithm : OnePassSGD or FixedData
        The algorithm, with a tabulated learning rate if that is a schedule of t.
    sizes : DeepSizes
        Sizes of the spaces: in coordinates, or in units of d in the limit.
    is_exact : bool
        Whether this is the exact law; otherwise the limit.
    unit : float
        Learning rate of a step over that of the algorithm.
    alpha_per_step : float
        Samples/d per step.
    last_step : int
        The last step, for which memory is allocated at the start.
    seed : int
        Seed of the random number generator.
    """

    def __init__(
        self,
        problem: DeepLinear,
        algorithm: OnePassSGD | FixedData,
        sizes: DeepSizes,
        *,
        is_exact: bool,
        unit: float = 1.0,
        alpha_per_step: float = 0.0,
        last_step: int = 0,
        seed: int = 0,
    ) -> None:
        on_data = isinstance(algorithm, FixedData)
        selects = isinstance(algorithm, MultiPassSGD) and algorithm.selects
        self.setup = DeepSetup(
            depth=problem.depth,
            blocks=problem.blocks,
            is_exact=is_exact,
            is_fresh=not on_data,
            selects=selects,
            samples=int(sizes.samples) if selects and is_exact else 0,
            velocity=velocity_of(algorithm),
        )
        self.values = run_parameters(problem, algorithm, sizes, unit, alpha_per_step)
        self.capacity, self.seed = capacity_of(last_step), seed

    @float64
    def initial(self, chosen: np.ndarray) -> DeepState:
        keys = run_keys(self.seed, chosen)
        states = initial_states(self.setup, self.capacity, self.values, keys)
        # Step -1 is the first backward pass, without a move.
        return self._advance(states, keys, -1, 0)[0]

    def advance(
        self,
        state: DeepState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        assert observation.observe is None, "first passages are not observed in deep networks"
        if end > self.capacity:
            self.capacity = capacity_of(end)
            state = with_capacity(self.setup, self.values, state, self.capacity)
        return *self._advance(state, keys, since, end), observation.records

    def _advance(
        self, state: DeepState, keys: RandomKeys, since: int, end: int
    ) -> tuple[DeepState, Any]:
        return advance_states(self.setup, self.values, state, keys, np.int64(since), np.int64(end))

    def overlaps(self, state: DeepState) -> dict[str, Numeric]:
        return observe_states(self.setup, self.values, state)

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        capacity, size = max(self.capacity, capacity_of(int(steps))), ()
        # The state, and a copy while a step changes it
        bytes_per_run = 16.0 * self.setup.count_numbers(capacity)
        if self.setup.is_exact:
            sizes = self.values.sizes
            size = tuple(int(size) for size in (sizes.samples, sizes.hidden, np.sum(sizes.inputs)))
        return Resources(bytes_per_run, group_within_memory(bytes_per_run), size)


def group_within_memory(bytes_per_run: float) -> int:
    """The number of runs that advance together."""
    return int(max(1, min(1 << 10, GROUP_BYTES // bytes_per_run)))


def layer_parameters(problem: DeepLinear, width_per_dimension: float) -> Parameters:
    """The values of a problem that a step reads, at this ratio N/d."""
    gain, rates = problem.gain_and_rates(width_per_dimension)
    names = ("start_scale", "noise", "weight_decay", "eigenvalues", "teacher")
    values = {name: problem.parameters[name] for name in names}
    return values | {"gain": np.float64(gain), "rates": rates}
