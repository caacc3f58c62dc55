"""Diagonal networks as simulators: direct runs, the exact law on a data set, and its limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.deep_linear_runs import group_within_memory, hyperparameters_of
from sgdynamics.fixed_data.diagonal import (
    DiagonalParameters,
    DiagonalSetup,
    DiagonalState,
    advance_states,
    capacity_of,
    coordinates,
    initial_states,
    observe_states,
    with_capacity,
)
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    Simulator,
)


class DiagonalRuns(Simulator):
    """Runs of a diagonal network with d explicit coordinates.

    Parameters
    ----------
    problem : DiagonalNetwork
        The problem.
    algorithm : OnePassSGD or FixedData
        The algorithm, with a tabulated learning rate if that is a schedule of t.
    method : str
        "direct", "exact" (on a data set) or "limit", where coordinates are paths.
    block_sizes : ndarray
        Number of coordinates in each covariance block.
    samples : float
        Size of the data set or of a batch.
    last_step : int
        The last step, for which memory is allocated at the start.
    seed : int
        Seed of the random number generator.
    """

    def __init__(
        self,
        problem: DiagonalNetwork,
        algorithm: OnePassSGD | FixedData,
        *,
        method: str,
        block_sizes: np.ndarray,
        samples: float,
        last_step: int = 0,
        seed: int = 0,
    ) -> None:
        on_data = isinstance(algorithm, FixedData)
        d, parameters = int(np.sum(block_sizes)), problem.parameters
        teacher, atom = coordinates(parameters["teacher"], parameters["shares"], block_sizes)
        atoms = len(parameters["teacher"])
        missing = np.setdiff1d(np.arange(atoms), atom)
        if len(missing):
            fix = (
                f"the teacher weight {parameters['teacher'][missing[0]]:.4g} has the share "
                f"{parameters['shares'][missing[0]]:.3g} and no coordinate. Use more coordinates."
            )
            raise checks.reject("paths" if method == "limit" else "dimension", d, fix)
        selects = isinstance(algorithm, MultiPassSGD) and algorithm.selects
        # A frame that would fill the sample space has no advantage over its coordinates.
        has_frame = method == "limit" or (
            method == "exact" and not selects and last_step + 3 < samples
        )
        self.setup = DiagonalSetup(
            method=method,
            dimension=d,
            samples=round(samples),
            is_fresh=not on_data,
            selects=selects,
            has_frame=has_frame,
            atoms=atoms,
        )
        names = ("start", "noise", "weight_decay")
        self.values = DiagonalParameters(
            np.float64(samples),
            teacher,
            atom,
            input_covariance.coordinate_scales(parameters, block_sizes),
            {name: parameters[name] for name in names},
            hyperparameters_of(algorithm),
            np.float64(1.0 if on_data else 1 / d),
            np.float64(0.0 if on_data else samples / d),
        )
        self.capacity, self.seed = capacity_of(self.setup, last_step), seed

    @float64
    def initial(self, chosen: np.ndarray) -> DiagonalState:
        return initial_states(self.setup, self.capacity, self.values, run_keys(self.seed, chosen))

    def advance(
        self,
        state: DiagonalState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        assert observation.observe is None, "first passages are not observed in diagonal networks"
        if capacity_of(self.setup, end) > self.capacity:
            self.capacity = capacity_of(self.setup, end)
            state = with_capacity(self.setup, self.values, state, self.capacity)
        advanced = advance_states(
            self.setup, self.values, state, keys, np.int64(since), np.int64(end)
        )
        return *advanced, observation.records

    def overlaps(self, state: DiagonalState) -> dict[str, Numeric]:
        return observe_states(self.setup, self.values, state)

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        setup = self.setup
        # The state, and a copy while a step changes it
        capacity = max(self.capacity, capacity_of(setup, int(steps)))
        bytes_per_run = 16.0 * setup.count_numbers(capacity)
        size = () if setup.method == "limit" else (setup.samples, setup.dimension)
        return Resources(bytes_per_run, group_within_memory(bytes_per_run), size)

    def state_values(self, state: DiagonalState) -> dict[str, Any]:
        """The predictor weights and the teacher weights by coordinate, for figures and tests."""
        return {"a": np.asarray(state.u * state.v), "b": np.asarray(self.values.teacher)}
