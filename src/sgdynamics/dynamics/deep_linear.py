"""Deep linear networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.dynamics.own_start import (
    OwnStart,
    OwnStartDynamics,
    require_layer_update,
    require_plain_batches,
)
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.fixed_data.deep_linear import DeepSizes
from sgdynamics.fixed_data.deep_linear_direct import DirectDeepRuns
from sgdynamics.fixed_data.deep_linear_runs import DeepRuns
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples.spectra import MAX_DIMENSION
from sgdynamics.simulation.running import RunSetting, Simulator


class DeepLinearDynamics(OwnStartDynamics):
    """A `DeepLinear` under one-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    network_name: ClassVar[str] = "deep linear networks"
    start_remedy: ClassVar[str] = (
        "a deep linear network starts from its random weights (start_scale). Omit start."
    )
    assumptions: ClassVar[str] = "Gaussian inputs, one pass, random initial weights"

    def __init__(self, problem: DeepLinear, algorithm: OnePassSGD | FixedData) -> None:
        self.problem = problem
        self.algorithm: Any = _validate(self.validate(algorithm))

    def validate(self, algorithm: object) -> OnePassSGD | FixedData:
        """The algorithm, validated for this dynamics."""
        return validate_algorithm(algorithm, problem=self.problem)

    # ---- arguments

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        spectrum = self.problem.spectrum
        if spectrum is not None and dimension is None:
            dimension = spectrum.dimension
        d = checks.integer("dimension", dimension, 1, MAX_DIMENSION)
        if spectrum is not None and d != spectrum.dimension:
            fix = f"the spectrum has {spectrum.dimension} dimensions. Omit dimension."
            raise checks.reject("dimension", dimension, fix)
        width = self.problem.width_per_dimension * d
        if not 0.5 <= width < checks.MAX_INT64:
            fix = f"the width would be {width:.3g} units at d = {d}. Use another value."
            raise checks.reject("width_per_dimension", self.problem.width_per_dimension, fix)
        return d, self.problem.block_dimensions(d)

    # ---- runs

    def sizes(self, dimension: int, block_sizes: np.ndarray) -> DeepSizes:
        """Sizes of the spaces in coordinates: data set or batch, inputs, hidden layers."""
        algorithm = self.algorithm
        samples = algorithm.samples(dimension) if self.has_data else algorithm.batch
        return DeepSizes(samples, block_sizes, round(self.problem.width_per_dimension * dimension))

    def simulator(self, setting: RunSetting[OwnStart]) -> Simulator:
        self.require_own_data(setting)
        dimension = setting.dimension
        sizes = self.sizes(dimension, setting.block_sizes)
        units: dict[str, Any] = {"unit": 1.0, "alpha_per_step": 0.0, "seed": setting.seed}
        if not self.has_data:
            units |= {"unit": 1 / dimension, "alpha_per_step": self.algorithm.batch / dimension}
        if setting.method == "direct":
            return DirectDeepRuns(self.problem, self.algorithm, sizes, **units)
        last = self.last_step
        return DeepRuns(self.problem, self.algorithm, sizes, is_exact=True, last_step=last, **units)

    # ---- results

    def state_arrays(self, initial_state: OwnStart) -> Arrays:
        # The initial predictor is random. Functions of the user are checked on these shapes.
        zeros = np.zeros(initial_state.runs)
        return {name: zeros for name in ("overlap", "squared_norm", "excess_risk")}

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        names = ("overlap", "squared_norm", "excess_risk")
        return {name: states[name] for name in names}

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        variables = {name: value for name, value in states.items() if name != "rose_at"}
        return {**variables, "risk": risk}

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        layers = {"layer": np.arange(1, self.problem.depth)} if "layer_change" in values else {}
        return Labels({name: VARIABLES[name] for name in values}, layers)


class DeepDataDynamics(DeepLinearDynamics):
    """A `DeepLinear` under gradient descent or multi-pass SGD."""

    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set, random initial weights"

    def validate(self, algorithm: object) -> FixedData:
        validated = validate_fixed_data(algorithm)
        require_plain_batches(self.network_name, validated)
        return validated


def _validate(algorithm: OnePassSGD | FixedData) -> OnePassSGD | FixedData:
    """Raise ValueError for an algorithm that deep linear networks do not support."""
    name = DeepLinearDynamics.network_name
    if getattr(algorithm, "flow", False):
        fix = "gradient flow makes no steps. Use a learning rate above 0."
        raise checks.reject("lr", algorithm.lr, fix)
    require_layer_update(name, algorithm)
    return algorithm
