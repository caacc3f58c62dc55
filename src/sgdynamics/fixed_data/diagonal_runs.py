"""Diagonal networks as simulators: direct runs, the exact law on a data set, and its limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.fixed_data.diagonal import (
    EQUATIONS,
    DiagonalParameters,
    DiagonalSetup,
    DiagonalState,
    coordinates,
)
from sgdynamics.fixed_data.network_runs import (
    NetworkRuns,
    hyperparameters_of,
    quarter_of_power,
)
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.samples import input_covariance


class DiagonalRuns(NetworkRuns[DiagonalSetup, DiagonalParameters, DiagonalState]):
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

    equations = EQUATIONS

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
        setup = DiagonalSetup(
            method=method,
            dimension=d,
            samples=round(samples),
            is_fresh=not on_data,
            selects=selects,
            has_frame=has_frame,
            atoms=atoms,
        )
        names = ("start", "noise", "weight_decay")
        values = DiagonalParameters(
            np.float64(samples),
            teacher,
            atom,
            input_covariance.coordinate_scales(parameters, block_sizes),
            {name: parameters[name] for name in names},
            hyperparameters_of(algorithm),
            np.float64(1.0 if on_data else 1 / d),
            np.float64(0.0 if on_data else samples / d),
        )
        super().__init__(setup, values, last_step, seed)

    def capacity_of(self, steps: int) -> int:
        return 0 if self.setup.method == "direct" else quarter_of_power(steps)

    def bytes_per_run(self, capacity: int) -> float:
        # The state, and a copy while a step changes it
        return 16.0 * self.setup.count_numbers(capacity)

    @property
    def sizes(self) -> tuple[int, ...]:
        setup = self.setup
        return () if setup.method == "limit" else (setup.samples, setup.dimension)

    def state_values(self, state: DiagonalState) -> dict[str, Any]:
        """The predictor weights and the teacher weights by coordinate, for figures and tests."""
        return {"a": np.asarray(state.u * state.v), "b": np.asarray(self.values.teacher)}
