"""A user's `Dynamics` as the solvers see it: `UserDynamics` wraps it by composition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics, closed_form_request
from sgdynamics.dynamics.protocol import Dynamics, defines
from sgdynamics.dynamics.requests import Arrays, SolveRequest
from sgdynamics.dynamics.user_sde import UserPaths, user_step_length
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.case import Field, Watch
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock, integration_points
from sgdynamics.samples.spectra import MAX_DIMENSION
from sgdynamics.sde.paths import with_edges
from sgdynamics.simulation.running import RunSetting, Simulator
from sgdynamics.simulation.user_dynamics import UserChain


@dataclass(frozen=True, eq=False)
class InitialArrays:
    """The initial condition of a user's dynamics: named arrays with a leading axis of runs."""

    values: Arrays

    @property
    def runs(self) -> int:
        return len(next(iter(self.values.values())))


class UserDynamics(SolverDynamics[InitialArrays]):
    """A user's `Dynamics` under one-pass SGD."""

    def __init__(self, problem: Dynamics, algorithm: OnePassSGD) -> None:
        self.problem, self.algorithm = problem, algorithm

    @property
    def parameters(self) -> Parameters:
        return self.problem.parameters

    @property
    def has_risk(self) -> bool:
        return defines(self.problem, "risk")

    def _require(self, method: str) -> None:
        """Raise ValueError unless the user's class defines a method."""
        if not defines(self.problem, method):
            name = type(self.problem).__name__
            fix = f"{name} has no method {method}, which this solver needs. Define it"
            raise checks.reject("problem", self.problem, fix)

    def values(self, dimension: int | None) -> Parameters:
        """The argument `values` of the user's methods, before it is evaluated at an alpha."""
        return {
            "problem": self.parameters,
            "algorithm": self.algorithm.parameters,
            "batch": np.float64(self.algorithm.batch),
            "dimension": np.float64(np.inf if dimension is None else dimension),
        }

    def initial_state(self, start: object, runs: int | None = None) -> InitialArrays:
        variables = self.problem.variables
        if not isinstance(start, Mapping) or set(start) != set(variables):
            fix = f"give a dictionary of arrays: {', '.join(variables)}"
            raise checks.reject("start", start, fix)
        arrays = {}
        for name, value in start.items():
            array, axes = checks.real_array(name, value, "give numbers"), variables[name][1]
            if array.ndim not in (len(axes), len(axes) + 1):
                fix = f"give {len(axes)} axes ({', '.join(axes)}), or one more for runs"
                raise checks.reject(name, array.shape, fix)
            arrays[name] = array if array.ndim == len(axes) + 1 else array[None]
        available = max(len(array) for array in arrays.values())
        count = available if runs is None else checks.integer("runs", runs, 1)
        if any(len(array) not in (1, count) for array in arrays.values()):
            fix = f"the start has {available} runs: give as many, or a start of one"
            raise checks.reject("runs", count, fix)
        return InitialArrays(
            {
                name: np.broadcast_to(array, (count, *array.shape[1:])).copy()
                for name, array in arrays.items()
            }
        )

    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        d = checks.integer("dimension", dimension, 1, MAX_DIMENSION)
        return d, np.array([d])

    def state_arrays(self, initial_state: InitialArrays) -> Arrays:
        return initial_state.values

    def evaluator(self, other: object) -> UserDynamics:
        variables = self.problem.variables
        if (
            not isinstance(other, Dynamics)
            or set(other.variables) != set(variables)
            or not defines(other, "risk")
        ):
            fix = (
                "must be an sgd.Dynamics that defines risk and has the variables "
                f"{', '.join(variables)}."
            )
            raise checks.reject("evaluate", other, fix)
        return UserDynamics(other, self.algorithm)

    def ode_request(
        self,
        initial_state: InitialArrays,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        self._require("rate")
        field = UserField(self.problem, self.algorithm.flow)
        values = self.values(dimension)
        return closed_form_request(self, field, values, initial_state, clock, dimension, rtol, atol)

    def simulator(self, setting: RunSetting[InitialArrays]) -> Simulator:
        self._require("step")
        values = self.values(setting.dimension)
        return UserChain(self.problem, values, self.algorithm.batch, setting.start.values)

    def sde_points(self, clock: Clock) -> np.ndarray:
        points = integration_points(self.algorithm, clock)
        return with_edges(self.parameters, self.algorithm, points)

    def sde_paths(self, setting: RunSetting[InitialArrays], higher_order: bool) -> UserPaths:
        self._require("rate")
        self._require("noise")
        drift_dimension = float(setting.dimension) if higher_order else np.inf
        values = self.values(setting.dimension)
        return UserPaths(self.problem, values, drift_dimension, setting.start.values)

    def sde_step_length(
        self, setting: RunSetting[InitialArrays], end: float, higher_order: bool
    ) -> tuple[float, float]:
        paths = self.sde_paths(setting, higher_order)
        return user_step_length(paths, end)

    def exit_watch(
        self, criterion: Criterion, initial_state: InitialArrays, dimension: int | None
    ) -> tuple[Watch, Parameters]:
        if criterion == "overlap":
            fix = "user-defined dynamics have no overlaps: give 'risk' or a function of the state"
            raise checks.reject("criterion", criterion, fix)
        if not callable(criterion):
            self._require("risk")
        return UserWatch(self.problem, criterion), self.values(dimension)

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        if not self.has_risk:
            return np.full(next(iter(states.values())).shape[:2], np.nan), 0.0
        alpha = clock.schedule_points
        return np.asarray(_risks(self.problem, self.values(dimension), states, alpha)), 0.0

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        return Labels({**self.problem.variables, "risk": ("population risk", ())}, {})


@dataclass(frozen=True)
class UserField(Field):
    """The mean step of a user's dynamics, as a right-hand side for the integrators."""

    problem: Dynamics
    flow: bool

    def __call__(self, replicate: PyTree, shared: Parameters, t: Scalar, state: State) -> State:
        lr = shared["algorithm"]["lr"]
        # With a schedule the variable of the integration is alpha, else t = lr alpha / batch.
        # Gradient flow has no alpha, and no schedules that would read it.
        alpha = t if is_scheduled(lr) or self.flow else t * shared["batch"] / lr
        values = {**values_at(shared, alpha), "alpha": alpha}
        rates = self.problem.rate(values, dict(state))
        if not is_scheduled(lr):
            return rates
        dt_dalpha = values["algorithm"]["lr"] / values["batch"]
        return jax.tree.map(lambda rate: rate * dt_dalpha, rates)


@dataclass(frozen=True)
class UserWatch(Watch):
    """The risk, or a user's function of the state."""

    problem: Dynamics
    criterion: Criterion

    def value(self, shared: Parameters, state: State) -> Float[Numeric, ""]:
        if callable(self.criterion):
            return jnp.asarray(self.criterion(dict(state)))
        return jnp.asarray(self.problem.risk({"alpha": 0.0, **shared}, dict(state)))


@partial(jax.jit, static_argnums=0)
def _risks(problem: Dynamics, values: Parameters, states: State, alpha: PyTree) -> Any:
    """Risks of states (run, time, ...), with parameters evaluated at alpha (time,)."""

    def risk(alpha: Scalar, state: State) -> Any:
        return problem.risk({**values_at(values, alpha), "alpha": alpha}, dict(state))

    return jax.vmap(jax.vmap(risk), (None, 0))(alpha, states)
