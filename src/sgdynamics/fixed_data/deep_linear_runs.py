"""Deep linear networks as simulators: the exact law at finite d, and the proportional limit."""

from __future__ import annotations

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import Schedule
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.deep_linear import (
    EQUATIONS,
    DeepParameters,
    DeepSetup,
    DeepSizes,
    DeepState,
)
from sgdynamics.fixed_data.network_runs import (
    NetworkRuns,
    hyperparameters_of,
    power_of_two,
    velocity_of,
)
from sgdynamics.problems.deep_linear import DeepLinear


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


class DeepRuns(NetworkRuns[DeepSetup, DeepParameters, DeepState]):
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

    equations = EQUATIONS

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
        setup = DeepSetup(
            depth=problem.depth,
            blocks=problem.blocks,
            is_exact=is_exact,
            is_fresh=not on_data,
            selects=selects,
            samples=int(sizes.samples) if selects and is_exact else 0,
            velocity=velocity_of(algorithm),
        )
        values = run_parameters(problem, algorithm, sizes, unit, alpha_per_step)
        super().__init__(setup, values, last_step, seed)

    def initial(self, chosen: np.ndarray) -> DeepState:
        # Step -1 is the first backward pass, without a move.
        return self.advance_states(super().initial(chosen), run_keys(self.seed, chosen), -1, 0)[0]

    def capacity_of(self, steps: int) -> int:
        return power_of_two(steps)

    def bytes_per_run(self, capacity: int) -> float:
        # The state, and a copy while a step changes it
        return 16.0 * self.setup.count_numbers(capacity)

    @property
    def sizes(self) -> tuple[int, ...]:
        if not self.setup.is_exact:
            return ()
        sizes = self.values.sizes
        return tuple(int(size) for size in (sizes.samples, sizes.hidden, np.sum(sizes.inputs)))


def layer_parameters(problem: DeepLinear, width_per_dimension: float) -> Parameters:
    """The values of a problem that a step reads, at this ratio N/d."""
    gain, rates = problem.gain_and_rates(width_per_dimension)
    names = ("start_scale", "noise", "weight_decay", "eigenvalues", "teacher")
    values = {name: problem.parameters[name] for name in names}
    return values | {"gain": np.float64(gain), "rates": rates}
