"""Diagonal linear networks, as the solvers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    GradientDescent,
    MultiPassSGD,
    validate_fixed_data,
)
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule
from sgdynamics.dynamics.own_start import OwnStart, OwnStartDynamics
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


class DiagonalDynamics(OwnStartDynamics):
    """A `DiagonalNetwork` under one-pass SGD."""

    # A step draws all coordinates of its samples: direct runs are the exact law.
    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    network_name: ClassVar[str] = "diagonal networks"
    start_remedy: ClassVar[str] = (
        "the argument start of the DiagonalNetwork states the initial weights. Omit it."
    )
    always_direct: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, one pass, independent teacher weights"

    def __init__(self, problem: DiagonalNetwork, algorithm: OnePassSGD | FixedData) -> None:
        self.problem = problem
        if isinstance(algorithm, FixedData):
            algorithm = validate_fixed_data(algorithm)
        else:
            algorithm = validate_algorithm(algorithm, problem=problem)
        self.algorithm: Any = _validate(algorithm)

    # ---- arguments

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        d = checks.integer("dimension", dimension, 1, MAX_DIMENSION)
        return d, self.problem.block_dimensions(d)

    # ---- the law of one variable, for d -> infinity

    def ode_request(
        self,
        initial_state: OwnStart,
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

    def simulator(self, setting: RunSetting[OwnStart]) -> Simulator:
        self.require_own_data(setting)
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

    def state_arrays(self, initial_state: OwnStart) -> Arrays:
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

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        meaning = {"long_name": "weight of the teacher"}
        teacher = ("teacher_weight", self.problem.parameters["teacher"], meaning)
        return Labels({name: VARIABLES[name] for name in values}, {"teacher_weight": teacher})


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
