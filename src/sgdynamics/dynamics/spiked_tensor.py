"""Spiked tensors, as the solvers see them: the two order parameters m and r2.

Their mean step and their noise are closed formulas (`dynamics.spiked_equations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics, closed_form_request
from sgdynamics.dynamics.requests import (
    Arrays,
    Solution,
    SolveRequest,
    end_warnings,
    find_ends,
)
from sgdynamics.dynamics.spiked_equations import (
    SpikedPaths,
    drift,
    equation_parameters,
    integrate_spiked,
    spiked_step_length,
)
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.case import MARGIN, Field, Watch
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.problems.spiked_tensor import (
    SpikedStart,
    SpikedTensor,
    check_spiked_dimension,
    spiked_risk,
    validate_spiked_start,
)
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import VARIABLES
from sgdynamics.simulation.running import RunSetting, Simulator
from sgdynamics.simulation.spiked_tensor import MAX_ENTRIES, SpikedChain, SpikedVectors


class SpikedDynamics(SolverDynamics[SpikedStart]):
    """A `SpikedTensor` under one-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct", "tensor")
    exact_methods: ClassVar[tuple[str, ...]] = methods
    dimension_symbol: ClassVar[str] = "n"
    assumptions: ClassVar[str] = "fresh Gaussian tensors"

    def __init__(self, problem: SpikedTensor, algorithm: OnePassSGD) -> None:
        constant_rate(algorithm, "spiked tensors")
        self.problem, self.algorithm = problem, algorithm

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    def initial_state(self, start: Any, runs: int | None = None) -> SpikedStart:
        return broadcast_runs(validate_spiked_start(self.problem, start), runs)

    def resolve_dimension(
        self, dimension: Any, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        n = check_spiked_dimension(dimension)
        return n, np.array([n])

    def state_arrays(self, initial_state: SpikedStart) -> Arrays:
        return {"m": initial_state.m, "r2": initial_state.r2}

    def evaluator(self, other: Any) -> SpikedDynamics:
        if set(self.problem.kinds) != set(getattr(other, "kinds", ())):
            raise checks.reject("evaluate", other, "give a spiked tensor: only those have m and r2")
        return SpikedDynamics(other, self.algorithm)

    def _equation_parameters(self, dimension: int | None) -> Parameters:
        return equation_parameters(self.problem, self.algorithm, dimension)

    def ode_request(
        self,
        initial_state: SpikedStart,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        parameters = self._equation_parameters(dimension)
        request = closed_form_request(
            self, SpikedField(), parameters, initial_state, clock, dimension, rtol, atol
        )
        return replace(request, integrate=self._integrate)

    def _integrate(self, request: SolveRequest) -> Solution:
        """Integrate with SciPy.

        Two variables per run with a closed right-hand side need no compilation, which would take
        a hundred times as long as the solution.
        """
        assert request.rtol is not None
        assert request.atol is not None
        parameters = self._equation_parameters(request.dimension)
        path, loose_path = (
            integrate_spiked(
                parameters,
                request.initial_state,
                request.clock.t,
                slack * MARGIN * request.rtol,
                slack * MARGIN * request.atol,
            )
            for slack in (1, 10)
        )
        states = {"m": path.values[0], "r2": path.values[1]}
        risk = self.problem.risk(*path.values)
        loose_risk = self.problem.risk(*loose_path.values)
        attributes = {
            **self.limit_attributes(request.dimension),
            "integrator": "DOP853, then LSODA" if path.used_lsoda.any() else "DOP853",
            "error_integrator": largest_share(loose_risk - risk, risk),
        }
        ends = find_ends(states, path.ran_out, request.clock.t)
        return Solution(states, risk, attributes, ends, end_warnings(ends))

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return self.problem.risk(states["m"], states["r2"]), 0.0

    def simulator(self, setting: RunSetting[SpikedStart]) -> Simulator:
        problem, algorithm = self.problem, self.algorithm
        start, dimension, method = setting.start, setting.dimension, setting.method
        if method == "exact":
            return SpikedChain(problem, algorithm, start, dimension)
        entries = algorithm.batch * dimension**problem.order
        if method == "tensor" and entries > MAX_ENTRIES:
            size = "n^order * batch" if algorithm.batch > 1 else "n^order"
            shown = f"{entries:.4g}" if entries < 10**300 else "1e300 and more"
            fix = (
                f"method='tensor' would draw {size} = {shown} numbers per step, more than "
                f"{MAX_ENTRIES:.0e}. Use method='exact' or 'direct', or a smaller dimension"
            )
            raise checks.reject("dimension", dimension, fix)
        is_tensor = method == "tensor"
        return SpikedVectors(problem, algorithm, start, dimension, setting.dtype, is_tensor)

    def sde_paths(self, setting: RunSetting[SpikedStart], higher_order: bool) -> SpikedPaths:
        parameters = self._equation_parameters(setting.dimension if higher_order else None)
        return SpikedPaths(self.problem, parameters, setting.start, setting.dimension)

    def sde_step_length(
        self, setting: RunSetting[SpikedStart], end: float, higher_order: bool
    ) -> tuple[float, float]:
        parameters = self._equation_parameters(setting.dimension if higher_order else None)
        return spiked_step_length(self.problem, parameters, setting.start, end)

    def exit_watch(
        self, criterion: Criterion, initial_state: SpikedStart, dimension: int | None
    ) -> tuple[Watch, Parameters]:
        return SpikedWatch(self.problem.order, criterion), self._equation_parameters(dimension)

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        variables = {
            "m": VARIABLES["m"],
            "r2": VARIABLES["r2"],
            "risk": ("population loss without ridge and noise, |snr v^(k) - x^(k)|^2", ()),
        }
        return Labels(variables, {})


@dataclass(frozen=True)
class SpikedField(Field):
    """The mean step as a right-hand side for the integrators."""

    def __call__(self, replicate: PyTree, shared: Parameters, t: Scalar, state: State) -> State:
        dm, dr2 = drift(shared, state["m"], state["r2"])
        return {"m": jnp.asarray(dm), "r2": jnp.asarray(dr2)}


@dataclass(frozen=True)
class SpikedWatch(Watch):
    """The risk, minus |m|, or a user's function of the state."""

    order: int
    criterion: Criterion

    def value(self, shared: Parameters, state: State) -> Float[Numeric, ""]:
        if self.criterion == "overlap":
            return -jnp.abs(state["m"])
        if callable(self.criterion):
            return jnp.asarray(self.criterion(dict(state)), dtype=state["m"].dtype)
        return jnp.asarray(spiked_risk(self.order, shared["snr"], state["m"], state["r2"]))
