"""Networks whose problem defines the initial weights, as the solvers see them.

Deep linear, diagonal and infinitely wide networks share the checks of arguments that follow from
it: there is no `start`, no second problem with the same states, and no exit time.
"""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, PersistentSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.results.clock import Clock
from sgdynamics.simulation.running import RunSetting


class OwnStart:
    """The initial weights of a number of runs, which the problem defines."""

    def __init__(self, runs: int) -> None:
        self.runs = runs


class OwnStartDynamics(SolverDynamics[OwnStart]):
    """A network whose problem defines the initial weights.

    Attributes
    ----------
    network_name : str
        Name of the networks in messages, in the plural.
    start_remedy : str
        The reason why there is no `start`, for messages.
    """

    network_name: ClassVar[str]
    start_remedy: ClassVar[str]
    problem: Any
    last_step: int = 0  # the last save point in steps, for which memory is allocated

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    # ---- arguments

    def initial_state(self, start: object, runs: int | None = None) -> OwnStart:
        if start is not None:
            raise checks.reject("start", start, self.start_remedy)
        return OwnStart(1 if runs is None else checks.integer("runs", runs, 1))

    def validate_clock(self, clock: Clock) -> Self:
        validated = copy(self)
        if clock.step is not None:
            validated.last_step = int(clock.step[-1])
            if self.has_data and self.algorithm.scheduled:
                # A schedule of t becomes a table of step sizes that ends with the run.
                validated.algorithm = self.algorithm.with_tabulated_rate(float(clock.step[-1]))
        return validated

    def evaluator(self, other: object) -> NoReturn:
        fix = f"the risk of another problem is not available for {self.network_name}. Omit it."
        raise checks.reject("evaluate", other, fix)

    def require_own_data(self, setting: RunSetting[OwnStart]) -> None:
        """Raise ValueError unless runs are in double precision with a data set each."""
        if setting.dtype != "float64":
            fix = f'{self.network_name} are simulated in double precision. Use dtype="float64".'
            raise checks.reject("dtype", setting.dtype, fix)
        if setting.shared_data:
            fix = f"{self.network_name} have a data set for each run. Omit shared_data."
            raise checks.reject("shared_data", setting.shared_data, fix)

    # ---- results

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return states["excess_risk"] + 0.5 * self.problem.noise, 0.0

    # ---- solvers that the support table excludes

    def simulator(self, *arguments: object, **options: object) -> Any:
        raise NotImplementedError(f"{self.network_name} have no runs at finite width")

    def ode_request(self, *arguments: object, **options: object) -> Any:
        raise NotImplementedError(f"{self.network_name} have no ODE")

    def sde_paths(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"{self.network_name} have no SDE")

    def sde_step_length(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"{self.network_name} have no SDE")

    def exit_watch(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"{self.network_name} have no exit times")


def require_layer_update(network_name: str, algorithm: Any) -> None:
    """Raise ValueError unless all layers take plain steps, or steps with a velocity."""
    if algorithm.head_rate != 1.0:
        fix = "the parametrisation sets the rates of all layers. Omit head_rate."
        raise checks.reject("head_rate", algorithm.head_rate, fix)
    update = getattr(algorithm, "update", None)
    if update is not None and not (
        update.law.name in ("momentum", "nesterov") and set(update.numbers) == {"beta"}
    ):
        fix = (
            f"{network_name} support sgd.updates.momentum(beta) and sgd.updates.nesterov(beta). "
            "Use one of these, or omit update."
        )
        raise checks.reject("update", update, fix)


def require_plain_batches(network_name: str, algorithm: FixedData) -> None:
    """Raise ValueError for persistent batches and thermal noise."""
    if isinstance(algorithm, PersistentSGD) or algorithm.has_thermal_noise:
        fix = (
            f"persistent batches and thermal noise are not supported for {network_name}. Use "
            "sgd.GradientDescent(...) or sgd.MultiPassSGD(...)."
        )
        raise checks.reject("algorithm", algorithm, fix)
