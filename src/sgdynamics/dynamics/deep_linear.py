"""Deep linear networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, NoReturn

import numpy as np

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    Langevin,
    PersistentSGD,
    validate_fixed_data,
)
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics, reject_run_options
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.fixed_data.deep_linear import DeepSizes
from sgdynamics.fixed_data.deep_linear_direct import DirectDeepRuns
from sgdynamics.fixed_data.deep_linear_runs import DeepRuns, velocity_of
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples.spectra import MAX_DIMENSION
from sgdynamics.simulation.running import RunSetting, Simulator


class DeepStart:
    """Random initial weights of a number of runs, which the problem defines."""

    def __init__(self, runs: int) -> None:
        self.runs = runs


class DeepLinearDynamics(SolverDynamics[DeepStart]):
    """A `DeepLinear` under one-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    assumptions: ClassVar[str] = "Gaussian inputs, one pass, random initial weights"

    def __init__(self, problem: DeepLinear, algorithm: OnePassSGD | FixedData) -> None:
        self.problem = problem
        self.algorithm: Any = _validate(self.validate(algorithm))
        self.last_step = 0

    def validate(self, algorithm: object) -> OnePassSGD | FixedData:
        """The algorithm, validated for this dynamics."""
        return validate_algorithm(algorithm, problem=self.problem)

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    # ---- arguments

    def initial_state(self, start: object, runs: int | None = None) -> DeepStart:
        if start is not None:
            fix = "a deep linear network starts from its random weights (start_scale). Omit start."
            raise checks.reject("start", start, fix)
        return DeepStart(1 if runs is None else checks.integer("runs", runs, 1))

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

    def validate_clock(self, clock: Clock) -> DeepLinearDynamics:
        validated = copy(self)
        assert clock.t is not None
        if clock.step is not None:
            validated.last_step = int(clock.step[-1])
            if self.has_data and self.algorithm.scheduled:
                # A schedule of t becomes a table of step sizes that ends with the run.
                validated.algorithm = self.algorithm.with_tabulated_rate(float(clock.step[-1]))
        return validated

    def evaluator(self, other: object) -> NoReturn:
        fix = "the risk of another problem is not available for deep linear networks. Omit it."
        raise checks.reject("evaluate", other, fix)

    # ---- runs

    def sizes(self, dimension: int, block_sizes: np.ndarray) -> DeepSizes:
        """Sizes of the spaces in coordinates: data set or batch, inputs, hidden layers."""
        algorithm = self.algorithm
        samples = algorithm.samples(dimension) if self.has_data else algorithm.batch
        return DeepSizes(samples, block_sizes, round(self.problem.width_per_dimension * dimension))

    def simulator(self, setting: RunSetting[DeepStart]) -> Simulator:
        reject_run_options("deep linear network", setting)
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

    def state_arrays(self, initial_state: DeepStart) -> Arrays:
        # The initial predictor is random. Functions of the user are checked on these shapes.
        zeros = np.zeros(initial_state.runs)
        return {name: zeros for name in ("overlap", "squared_norm", "excess_risk")}

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        names = ("overlap", "squared_norm", "excess_risk")
        return {name: states[name] for name in names}

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return states["excess_risk"] + 0.5 * self.problem.noise, 0.0

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        variables = {name: value for name, value in states.items() if name != "rose_at"}
        return {**variables, "risk": risk}

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        layers = {"layer": np.arange(1, self.problem.depth)} if "layer_change" in values else {}
        return Labels({name: VARIABLES[name] for name in values}, layers)

    # ---- solvers that the support table excludes

    def ode_request(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("deep linear networks have no ODE")

    def sde_paths(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("deep linear networks have no SDE")

    def sde_step_length(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("deep linear networks have no SDE")

    def exit_watch(
        self, criterion: Criterion, initial_state: DeepStart, dimension: int | None
    ) -> NoReturn:
        raise NotImplementedError("deep linear networks have no exit times")


class DeepDataDynamics(DeepLinearDynamics):
    """A `DeepLinear` under gradient descent or multi-pass SGD."""

    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set, random initial weights"

    def validate(self, algorithm: object) -> FixedData:
        return validate_fixed_data(algorithm)


def _validate(algorithm: OnePassSGD | FixedData) -> OnePassSGD | FixedData:
    """Raise ValueError for an algorithm that deep linear networks do not support."""
    if isinstance(algorithm, PersistentSGD) or (
        isinstance(algorithm, Langevin) and algorithm.has_thermal_noise
    ):
        fix = (
            "persistent batches and thermal noise are not supported for deep linear networks. Use "
            "sgd.GradientDescent(...) or sgd.MultiPassSGD(...)."
        )
        raise checks.reject("algorithm", algorithm, fix)
    if algorithm.head_rate != 1.0:
        fix = "the parametrisation sets the rates of all layers. Omit head_rate."
        raise checks.reject("head_rate", algorithm.head_rate, fix)
    if getattr(algorithm, "flow", False):
        fix = "gradient flow makes no steps. Use a learning rate above 0."
        raise checks.reject("lr", algorithm.lr, fix)
    update = getattr(algorithm, "update", None)
    is_supported = update is None or (
        velocity_of(algorithm) in ("momentum", "nesterov") and set(update.numbers) == {"beta"}
    )
    if not is_supported:
        fix = (
            "deep linear networks support sgd.updates.momentum(beta) and "
            "sgd.updates.nesterov(beta). Use one of these, or omit update."
        )
        raise checks.reject("update", update, fix)
    return algorithm
