"""Wide networks as the solvers see them: particles (M, q, a) in the clock t/p."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.controls import is_scheduled
from sgdynamics.base.support import require
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.wide_starts import check_wide_problem, particles
from sgdynamics.results.build import Labels, ResultSource
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples.spectra import MAX_DIMENSION


class Particles(NamedTuple):
    """Particles of one or more runs: T (run, unit, signal) with M = T P^(1/2), q and a."""

    T: np.ndarray
    q: np.ndarray
    a: np.ndarray

    @property
    def runs(self) -> int:
        return len(self.q)


class MeanFieldDynamics(FieldDynamics):
    """A wide network under one-pass SGD, in the clock t/p = lr steps/(p d).

    `algorithm` has p times the batch size: its t at equal alpha is t/p of the network, whatever
    the schedule. `one_pass` is the algorithm that results record.
    """

    def __init__(self, problem: Problem, one_pass: OnePassSGD) -> None:
        check_wide_problem(problem)
        super().__init__(problem, replace(one_pass, batch=one_pass.batch * problem.width))
        self.one_pass = one_pass

    def resolve_steps(self, dimension: int | None, cells: int | None) -> MeanFieldDynamics:
        return self

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        d = checks.integer("dimension", dimension, self.problem.signals + 1, MAX_DIMENSION)
        return d, np.array([d])

    def clock_dimension(self, dimension: int | None) -> int | None:
        return None if dimension is None else self.problem.width * dimension

    def validate_clock(self, clock: Clock) -> MeanFieldDynamics:
        if clock.alpha is None and is_scheduled(self.algorithm.head_rate):
            fix = "gradient flow uses no samples, and head_rate depends on alpha"
            raise checks.reject("lr", self.algorithm.lr, fix)
        super().validate_clock(clock)
        return self

    def initial_state(self, start: object, runs: int | None = None) -> Any:
        return Particles(*particles(self.problem, start))

    def state_arrays(self, initial_state: Any) -> Arrays:
        return initial_state._asdict()

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        """M, q and a, as functions of the user see them."""
        M = states["T"] @ self.problem.parameters["frame"][0].T
        return {"M": M, "q": states["q"], "a": states["a"]}

    def evaluator(self, other: Any) -> MeanFieldDynamics:
        require("solve_mean_field", other)
        check_wide_problem(other)
        problem = self.problem
        if (other.width, other.signals) != (problem.width, problem.signals) or not np.allclose(
            other.gram, problem.gram, rtol=0, atol=1e-9
        ):
            fix = "give a problem of the same width, signals and Gram matrix of the signals"
            raise checks.reject("evaluate", other, fix)
        return MeanFieldDynamics(other, self.one_pass)


class MeanFieldResult(ResultSource):
    """Results of a wide network; its states include the excess risk."""

    def __init__(self, dynamics: MeanFieldDynamics, clock: Clock) -> None:
        self.problem, self.algorithm = dynamics.problem, dynamics.one_pass
        self._dynamics, self._clock = dynamics, clock

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        return self._dynamics.public_states(states, leading_axes)

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        floor = self.problem.noise_floor if not self.problem.scheduled else 0.0
        if self.problem.scheduled and clock.alpha is not None:
            floor = np.array([self.problem.at(alpha).noise_floor for alpha in clock.alpha])
        return states["excess_risk"] + floor, 0.0

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        return {**self.public_states(states), "risk": risk, "excess_risk": states["excess_risk"]}

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        variables = {name: (VARIABLES[name].meaning, VARIABLES[name].axes) for name in values}
        t, name = self._clock.t, "mean-field time t/p = lr steps/(p d)"
        sgd_name = "time lr steps/d of a network of this width: width times t"
        coordinates = {
            "t": ("time", t, {"long_name": name}),
            "t_sgd": ("time", self.problem.width * t, {"long_name": sgd_name}),
        }
        return Labels(variables, coordinates)
