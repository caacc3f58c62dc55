"""Infinitely wide networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, NoReturn

import numpy as np

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    GradientDescent,
    PersistentSGD,
    validate_fixed_data,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

# What functions of the state get
PUBLIC_STATES = ("outputs", "test_outputs", "feature_kernel", "gradient_kernel", "tangent_kernel")


class WideStart:
    """Random initial weights of infinitely many neurons, which the problem defines."""

    runs = 1


class WideNetworkDynamics(SolverDynamics[WideStart]):
    """A `WideNetwork` under gradient descent or multi-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ()
    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "a given data set, random initial weights, width -> infinity"

    def __init__(self, problem: WideNetwork, algorithm: FixedData) -> None:
        self.problem = problem
        self.algorithm: Any = _validate(problem, validate_fixed_data(algorithm))

    @property
    def has_risk(self) -> bool:
        return False  # a data set has no population

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    # ---- arguments

    def initial_state(self, start: object, runs: int | None = None) -> WideStart:
        if start is not None:
            fix = "a wide network starts from its random weights. Omit start."
            raise checks.reject("start", start, fix)
        return WideStart()

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        fix = "the inputs have their dimension. Omit it."
        raise checks.reject("dimension", dimension, fix)

    def validate_clock(self, clock: Clock) -> WideNetworkDynamics:
        if not self.algorithm.scheduled:
            return self
        # A schedule of t becomes a table of step sizes that ends with the run.
        assert clock.step is not None
        validated = copy(self)
        validated.algorithm = self.algorithm.with_tabulated_rate(float(clock.step[-1]))
        return validated

    def evaluator(self, other: object) -> NoReturn:
        fix = "the risk of another problem is not available for wide networks. Omit it."
        raise checks.reject("evaluate", other, fix)

    # ---- results

    def state_arrays(self, initial_state: WideStart) -> Arrays:
        # Functions of the user are checked on these shapes.
        problem, count = self.problem, self.problem.samples
        kernels = np.zeros((1, problem.hidden_layers, count, count))
        return {
            "outputs": np.zeros((1, count)),
            "test_outputs": np.zeros((1, problem.test_samples)),
            "feature_kernel": kernels,
            "gradient_kernel": kernels,
            "tangent_kernel": kernels[:, 0],
        }

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        return {name: states[name] for name in PUBLIC_STATES}

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return states["train_risk"], 0.0

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        names = (name for name in VARIABLES if name in states)
        shown = {name: states[name] for name in names if np.size(states[name])}
        errors = {
            name + STANDARD_ERROR: states[name + STANDARD_ERROR]
            for name in shown
            if name + STANDARD_ERROR in states
        }
        return {**shown, **errors}

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        variables: dict[str, tuple[Any, ...]] = {}
        for name in values:
            variable = VARIABLES[name.removesuffix(STANDARD_ERROR)]
            is_error = name.endswith(STANDARD_ERROR)
            meaning = f"{variable.meaning}, standard error" if is_error else variable.meaning
            variables[name] = (meaning, variable.axes)
        return Labels(variables, {"layer": np.arange(1, self.problem.hidden_layers + 1)})

    # ---- solvers that the support table excludes

    def simulator(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("wide networks have no runs at finite width")

    def ode_request(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("wide networks have no ODE")

    def sde_paths(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("wide networks have no SDE")

    def sde_step_length(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("wide networks have no SDE")

    def exit_watch(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("wide networks have no exit times")


def _validate(problem: WideNetwork, algorithm: FixedData) -> FixedData:
    """The algorithm at the size of the data set; ValueError for one that is not supported."""
    if algorithm.has_thermal_noise or isinstance(algorithm, PersistentSGD):
        fix = (
            "persistent batches and thermal noise are not supported for wide networks. Use "
            "sgd.GradientDescent(...) or sgd.MultiPassSGD(...)."
        )
        raise checks.reject("algorithm", algorithm, fix)
    if algorithm.head_rate != 1.0:
        fix = "the parametrisation sets the rates of all layers. Omit head_rate."
        raise checks.reject("head_rate", algorithm.head_rate, fix)
    update = getattr(algorithm, "update", None)
    if update is not None and not (
        update.law.name in ("momentum", "nesterov") and set(update.numbers) == {"beta"}
    ):
        fix = (
            "wide networks support sgd.updates.momentum(beta) and sgd.updates.nesterov(beta). "
            "Use one of these, or omit update."
        )
        raise checks.reject("update", update, fix)
    size = problem.samples / problem.input_dimension
    stated = algorithm.samples_per_dimension
    if stated not in (size, GradientDescent.samples_per_dimension):
        fix = (
            f"the problem has {problem.samples} inputs of {problem.input_dimension} components. "
            "Omit samples_per_dimension."
        )
        raise checks.reject("samples_per_dimension", stated, fix)
    return algorithm.replace(samples_per_dimension=size)
