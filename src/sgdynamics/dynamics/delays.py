"""Problems of fields under delayed gradients, as the solvers see them."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np

from sgdynamics.algorithms.updates.delays import (
    MOST_STEPS_OF_CHAIN,
    delay_in_steps,
    with_history,
)
from sgdynamics.base import checks
from sgdynamics.dynamics.requests import Arrays, Solution, SolveRequest, end_warnings, find_ends
from sgdynamics.dynamics.updates import ROW_VARIABLES, UpdateDynamics
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.case import RTOL
from sgdynamics.ode.delayed import (
    LARGEST_SPACING,
    LEAST_DIVISIONS,
    DelayedInputs,
    DelayedSystem,
    solve_delayed,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.running import RunSetting, Simulator


class DelayedDynamics(UpdateDynamics):
    """A `Problem` under one-pass SGD with delayed gradients.

    A delay of a fixed number of steps has the ODE of plain SGD; a delay of order d has overlaps at
    two times. Simulations carry the weights of all steps between.
    """

    @property
    def _delay(self) -> float | None:
        """The delay in units of d; None for a fixed number of steps."""
        return self.algorithm.update.numbers.get("per_dimension")

    def ode_request(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        if self._delay is None:
            return super().ode_request(initial_state, clock, dimension, rtol, atol, quadrature)
        self._require_ode(dimension)
        if quadrature is None:
            quadrature = choose_quadrature(
                self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN
            )
        return SolveRequest(
            self,
            initial_state,
            clock,
            None,
            rtol,
            atol,
            quadrature=quadrature,
            integrate=self._integrate,
        )

    def _integrate(self, request: SolveRequest) -> Solution:
        algorithm, start, clock = self.algorithm, request.initial_state, request.clock
        assert request.quadrature is not None
        assert self._delay is not None
        assert clock.alpha is not None
        points = np.asarray(clock.alpha, dtype=float) / algorithm.batch
        delay = float(self._delay)
        largest_rate = float(np.max(algorithm.rates(np.linspace(0.0, clock.alpha[-1], 65))))
        divisions = max(LEAST_DIVISIONS, math.ceil(largest_rate * delay / LARGEST_SPACING))
        system = DelayedSystem(self.structure, request.quadrature, algorithm.batch, divisions)
        parameters = algorithm.parameters
        inputs = DelayedInputs(
            expectation_of(self.structure).nodes(request.quadrature, False),
            self.parameters,
            {name: parameters[name] for name in ("lr", "head_rate")},
            np.float64(delay),
        )
        tolerance = RTOL if request.rtol is None else request.rtol
        best, coarse = solve_delayed(
            system,
            inputs,
            {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a},
            points,
            tolerance,
        )
        states = {name: value.mean(axis=0) for name, value in best.items()}
        others = {name: value.mean(axis=0) for name, value in coarse.items()}
        risks, rough = (
            self.batch_risks([request], [values], 1, with_errors=values is states)[0]
            for values in (states, others)
        )
        ends = find_ends(states, np.zeros(start.runs, bool), clock.t)
        attributes = {
            **self.limit_attributes(None),
            "integrator": "trapezoidal rule at two times, extrapolated",
            "error_quadrature": risks.worst,
            "error_integrator": largest_share(rough.risk - risks.comparable, risks.risk),
        }
        warnings = (*self.solution_warnings(risks, clock), *end_warnings(ends))
        return Solution(states, risks.risk, attributes, ends, warnings)

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        # The last changes of the weights, which the exact chain carries, are not results.
        public = {name: value for name, value in states.items() if name not in ROW_VARIABLES}
        return super().observables(public, risk, clock)

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        steps = delay_in_steps(self.algorithm.update, setting.dimension)
        if setting.method == "direct":
            return DirectSGD(self.definition, self.algorithm, setting, delay=steps)
        if steps > MOST_STEPS_OF_CHAIN:
            fix = (
                f"the exact chain would carry the weights of {steps} steps (at most "
                f"{MOST_STEPS_OF_CHAIN}). Use method='direct', or solve_ode."
            )
            raise checks.reject("method", setting.method, fix)
        chain = copy(self)
        update = with_history(self.algorithm.update, steps)
        chain.algorithm = self.algorithm.replace(update=update)
        return UpdateDynamics.simulator(chain, setting)
