"""Infinitely wide networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, GradientDescent, validate_fixed_data
from sgdynamics.base import checks
from sgdynamics.dynamics.own_start import (
    OwnStart,
    OwnStartDynamics,
    require_layer_update,
    require_plain_batches,
)
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

# What functions of the state get
PUBLIC_STATES = ("outputs", "test_outputs", "feature_kernel", "gradient_kernel", "tangent_kernel")


class WideNetworkDynamics(OwnStartDynamics):
    """A `WideNetwork` under gradient descent or multi-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ()
    network_name: ClassVar[str] = "wide networks"
    start_remedy: ClassVar[str] = "a wide network starts from its random weights. Omit start."
    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "a given data set, random initial weights, width -> infinity"

    def __init__(self, problem: WideNetwork, algorithm: FixedData) -> None:
        self.problem = problem
        self.algorithm: Any = _validate(problem, validate_fixed_data(algorithm))

    @property
    def has_risk(self) -> bool:
        return False  # a data set has no population

    # ---- arguments

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        fix = "the inputs have their dimension. Omit it."
        raise checks.reject("dimension", dimension, fix)

    # ---- results

    def state_arrays(self, initial_state: OwnStart) -> Arrays:
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


def _validate(problem: WideNetwork, algorithm: FixedData) -> FixedData:
    """The algorithm at the size of the data set; ValueError for one that is not supported."""
    name = WideNetworkDynamics.network_name
    require_plain_batches(name, algorithm)
    require_layer_update(name, algorithm)
    size = problem.samples / problem.input_dimension
    stated = algorithm.samples_per_dimension
    if stated not in (size, GradientDescent.samples_per_dimension):
        fix = (
            f"the problem has {problem.samples} inputs of {problem.input_dimension} components. "
            "Omit samples_per_dimension."
        )
        raise checks.reject("samples_per_dimension", stated, fix)
    return algorithm.replace(samples_per_dimension=size)
