"""Diagonal linear networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, NoReturn

import numpy as np

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    GradientDescent,
    MultiPassSGD,
    validate_fixed_data,
)
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import Schedule
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics, reject_run_options
from sgdynamics.dynamics.requests import Arrays, Solution, SolveRequest, end_warnings
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.fixed_data.diagonal_runs import DiagonalRuns
from sgdynamics.ode.diagonal import (
    COARSE_NODES,
    NODES,
    LawSolution,
    TransportedLaw,
    solve_law,
)
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock, integration_points
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples import input_covariance
from sgdynamics.samples.spectra import MAX_DIMENSION
from sgdynamics.simulation.running import RunSetting, Simulator

SCALARS = ("overlap", "squared_norm", "l1_norm", "imbalance", "excess_risk")
BY_WEIGHT = ("weight_mean", "weight_square")
RTOL = 1e-7  # default accuracy of the law
LOOSER = 10.0  # tolerance of the solution for comparison over that of the result


class DiagonalStart:
    """Initial weights of a number of runs, which the problem states."""

    def __init__(self, runs: int) -> None:
        self.runs = runs


class DiagonalDynamics(SolverDynamics[DiagonalStart]):
    """A `DiagonalNetwork` under one-pass SGD."""

    # A step draws all coordinates of its samples: direct runs are the exact law.
    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    always_direct: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, one pass, independent teacher weights"

    def __init__(self, problem: DiagonalNetwork, algorithm: OnePassSGD | FixedData) -> None:
        self.problem = problem
        if isinstance(algorithm, FixedData):
            algorithm = validate_fixed_data(algorithm)
        else:
            algorithm = validate_algorithm(algorithm, problem=problem)
        self.algorithm: Any = _validate(algorithm)
        self.last_step = 0

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    # ---- arguments

    def initial_state(self, start: object, runs: int | None = None) -> DiagonalStart:
        if start is not None:
            fix = "the argument start of the DiagonalNetwork states the initial weights. Omit it."
            raise checks.reject("start", start, fix)
        return DiagonalStart(1 if runs is None else checks.integer("runs", runs, 1))

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        d = checks.integer("dimension", dimension, 1, MAX_DIMENSION)
        return d, self.problem.block_dimensions(d)

    def validate_clock(self, clock: Clock) -> DiagonalDynamics:
        validated = copy(self)
        if clock.step is not None:
            validated.last_step = int(clock.step[-1])
            if self.has_data and self.algorithm.scheduled:
                # A schedule of t becomes a table of step sizes that ends with the run.
                validated.algorithm = self.algorithm.with_tabulated_rate(float(clock.step[-1]))
        return validated

    def evaluator(self, other: object) -> NoReturn:
        fix = "the risk of another problem is not available for diagonal networks. Omit it."
        raise checks.reject("evaluate", other, fix)

    # ---- the law of one variable, for d -> infinity

    def ode_request(
        self,
        initial_state: DiagonalStart,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        if dimension is not None:
            fix = "the law of the weights is known for d -> infinity. Use sgd.simulate at this d."
            raise checks.reject("dimension", dimension, fix)
        if isinstance(self.algorithm.batch, Schedule):
            fix = "the batch size of a diagonal network is constant. Use a number."
            raise checks.reject("batch", self.algorithm.batch, fix)
        rtol = RTOL if rtol is None else rtol
        return SolveRequest(
            self, initial_state, clock, dimension, rtol, atol, integrate=self._integrate
        )

    def _law(self, nodes: int) -> TransportedLaw:
        """The equations, in t or, with a schedule, in samples/d."""
        algorithm, parameters = self.algorithm, self.problem.parameters
        batch = float(algorithm.batch)
        if not isinstance(algorithm.lr, Schedule):
            rate = float(algorithm.lr) / batch
            return TransportedLaw(parameters, nodes, lambda _: rate, lambda _: 1.0)

        def rate_at(alpha: float) -> float:
            return float(algorithm.rates(np.array([alpha]))[0]) / batch

        return TransportedLaw(parameters, nodes, rate_at, rate_at)

    def _integrate(self, request: SolveRequest) -> Solution:
        """Integrate with SciPy, and once more on a coarser grid at a looser tolerance."""
        assert request.rtol is not None
        points = integration_points(self.algorithm, request.clock)
        fine, coarse = (
            solve_law(self._law(nodes), points, slack * request.rtol)
            for nodes, slack in ((NODES, 1.0), (COARSE_NODES, LOOSER))
        )
        risk, coarse_risk = (self._law_risk(solution) for solution in (fine, coarse))
        diverged_at = np.full(1, np.nan)
        if fine.last < len(points) - 1:
            diverged_at[0] = request.clock.t[fine.last]
        ends = {"diverged_at": diverged_at, "ran_out_at": np.full(1, np.nan)}
        attributes = {
            **self.limit_attributes(None),
            "integrator": "LSODA on a transport map",
            "error_integrator": largest_share(coarse_risk - risk, risk),
        }
        runs = request.initial_state.runs
        states = {name: np.repeat(value[None], runs, axis=0) for name, value in fine.values.items()}
        return Solution(states, np.repeat(risk, runs, axis=0), attributes, ends, end_warnings(ends))

    def _law_risk(self, solution: LawSolution) -> np.ndarray:
        return solution.values["excess_risk"][None] + 0.5 * self.problem.noise

    # ---- runs

    def simulator(self, setting: RunSetting[DiagonalStart]) -> Simulator:
        reject_run_options("diagonal network", setting)
        algorithm = self.algorithm
        return DiagonalRuns(
            self.problem,
            algorithm,
            method=setting.method,
            block_sizes=setting.block_sizes,
            samples=algorithm.samples(setting.dimension) if self.has_data else algorithm.batch,
            last_step=self.last_step,
            seed=setting.seed,
        )

    # ---- results

    def state_arrays(self, initial_state: DiagonalStart) -> Arrays:
        runs, parameters = initial_state.runs, self.problem.parameters
        u, v = parameters["start"]
        a, b, shares = u * v, parameters["teacher"], parameters["shares"]
        trace = input_covariance.trace(parameters)
        values = {
            "overlap": a * (shares @ b),
            "squared_norm": a**2,
            "l1_norm": abs(a),
            "imbalance": self.problem.imbalance,
            "excess_risk": 0.5 * trace * (shares @ (a - b) ** 2),
        }
        states = {name: np.full(runs, value) for name, value in values.items()}
        shape = (runs, len(b))
        return states | {"weight_mean": np.full(shape, a), "weight_square": np.full(shape, a**2)}

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        return {name: states[name] for name in (*SCALARS, *BY_WEIGHT)}

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return states["excess_risk"] + 0.5 * self.problem.noise, 0.0

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        meaning = {"long_name": "weight of the teacher"}
        teacher = ("teacher_weight", self.problem.parameters["teacher"], meaning)
        return Labels({name: VARIABLES[name] for name in values}, {"teacher_weight": teacher})

    # ---- solvers that the support table excludes

    def sde_paths(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("diagonal networks have no SDE")

    def sde_step_length(self, *arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError("diagonal networks have no SDE")

    def exit_watch(
        self, criterion: Criterion, initial_state: DiagonalStart, dimension: int | None
    ) -> NoReturn:
        raise NotImplementedError("diagonal networks have no exit times")


class DiagonalDataDynamics(DiagonalDynamics):
    """A `DiagonalNetwork` under gradient descent or multi-pass SGD on a data set."""

    always_direct: ClassVar[bool] = False
    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set, independent teacher weights"


def _validate(algorithm: OnePassSGD | FixedData) -> OnePassSGD | FixedData:
    """Raise ValueError for an algorithm that diagonal networks do not support."""
    if isinstance(algorithm, FixedData) and not (
        type(algorithm) in (GradientDescent, MultiPassSGD) and not algorithm.has_thermal_noise
    ):
        fix = (
            "diagonal networks support sgd.GradientDescent(...) and sgd.MultiPassSGD(...). Use one "
            "of these."
        )
        raise checks.reject("algorithm", algorithm, fix)
    if algorithm.head_rate != 1.0:
        fix = "both weights of a coordinate have the rate 1. Omit head_rate."
        raise checks.reject("head_rate", algorithm.head_rate, fix)
    if getattr(algorithm, "update", None) is not None:
        fix = "diagonal networks are trained by plain steps. Omit update."
        raise checks.reject("update", algorithm.update, fix)  # type: ignore[union-attr]
    return algorithm
