"""`SolverDynamics`: a problem under an algorithm, as the solvers see it.

The interface has one part per consumer, each with a few methods: `CallChecks` for the validation
of arguments, `MeanEquations` for the ODE driver, `DiffusionEquations` for the SDE, `FiniteRuns`
for simulations and exit times, and `results.build.ResultSource` for results. `FieldDynamics`,
`UpdateDynamics`, `FixedDataDynamics`, `EpochDynamics`, `SlidingDynamics`, `SpikedDynamics` and
`UserDynamics` implement it; `dynamics.choice.dynamics_of` chooses among them.

States are dictionaries of arrays. `S` is the type of a validated initial condition: `Start`,
`SpikedStart` or `InitialArrays`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import is_scheduled
from sgdynamics.dynamics.requests import Arrays, SolveRequest
from sgdynamics.dynamics.risk_floor import RiskFloor
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import Risks
from sgdynamics.ode.case import ATOL, MARGIN, RTOL, Case, Field, Watch
from sgdynamics.results.build import ResultSource
from sgdynamics.results.clock import Clock, integration_points
from sgdynamics.simulation.running import RunSetting, Simulator

S = TypeVar("S")
Criterion = str | Callable[[dict[str, Any]], Any]  # of exit_time: "risk", "overlap" or a function


class CallChecks(ABC, Generic[S]):
    """Validation of the arguments that depend on the problem and the algorithm."""

    algorithm: Any  # OnePassSGD, or FixedData where the dynamics has a data set

    @abstractmethod
    def initial_state(self, start: object, runs: int | None = None) -> S:
        """Validate the argument `start` and repeat it for `runs` runs."""

    @abstractmethod
    def resolve_dimension(
        self, dimension: object, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        """Validate the dimension and return it with the sizes of the covariance blocks."""

    @abstractmethod
    def evaluator(self, other: object) -> SolverDynamics[Any]:
        """Another problem with the same states, whose risk is evaluated along the trajectory."""

    def resolve_steps(self, dimension: int | None, cells: int | None) -> SolverDynamics[S]:
        """This dynamics with an algorithm whose steps are known.

        They depend on the dimension, or on the number of cells per epoch, for epochs; and on the
        unit of schedules for spectra of infinite dimension.
        """
        return self  # type: ignore[return-value]

    def clock_dimension(self, dimension: int | None) -> int | None:
        """The divisor D of t = lr steps/D of this clock, given the dimension d."""
        return dimension

    def validate_clock(self, clock: Clock) -> SolverDynamics[S]:
        """Validate schedules up to the last save point; return the dynamics for this clock."""
        if self.algorithm.flow and self.is_scheduled:
            fix = (
                "gradient flow uses no samples, and the problem has parameters that depend on "
                "alpha. Use lr > 0 or constant parameters."
            )
            raise checks.reject("lr", self.algorithm.lr, fix)
        return self  # type: ignore[return-value]

    def check_memory(self, dimension: int | None, end: float) -> None:
        """Raise ValueError if the update remembers less than one step up to alpha = `end`."""

    @property
    @abstractmethod
    def parameters(self) -> Parameters:
        """The parameters of the problem, which JAX traces."""

    @property
    def is_scheduled(self) -> bool:
        """Whether any parameter of the problem is a function of alpha."""
        leaves = jax.tree.leaves(self.parameters, is_leaf=is_scheduled)
        return any(is_scheduled(leaf) for leaf in leaves)


class MeanEquations(ABC, Generic[S]):
    """The ODE: what is integrated, and what the driver needs to judge the solution.

    The defaults are those of a dynamics without quadrature, bins and units.
    """

    @abstractmethod
    def ode_request(
        self,
        initial_state: S,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        """Prepare a mean trajectory; `quadrature` defaults to the one for the initial condition."""

    @abstractmethod
    def batch_risks(
        self,
        requests: list[SolveRequest],
        states: list[Arrays],
        batch_size: int,
        *,
        with_errors: bool = True,
    ) -> list[Risks]:
        """Risks along the states of each request, with any axes before those of run and time.

        Errors of series and grids cost more than the risks, and are left out where not needed.
        """

    @abstractmethod
    def limit_attributes(self, dimension: int | None) -> dict[str, Any]:
        """Attributes of a result that describe the limit."""

    def first_attempt(self, request: SolveRequest) -> SolveRequest:
        """The same request with a cheaper quadrature, if one nearly always suffices."""
        return request

    def refine(self, request: SolveRequest, states: Arrays) -> SolveRequest | None:
        """The same request with a finer quadrature; None if there is none."""
        return None

    def solution_warnings(self, risks: Risks, clock: Clock) -> tuple[str, ...]:
        """Warnings about inaccurate expectations and about the validity of the limit."""
        return ()

    def unpack(self, states: Arrays) -> Arrays:
        """The states of a result, where other variables are integrated."""
        return states

    def variable_scales(self, states: Arrays) -> Arrays:
        """Natural sizes (run,) of variables that may vanish, for relative errors."""
        return {}

    def merge_bins(self, initial_state: S) -> tuple[SolverDynamics[S], S] | None:
        """The dynamics and its start with bins of a spectrum merged in pairs; None without bins."""
        return None

    @property
    def no_ode_reason(self) -> str | None:
        """Why the algorithm has no ODE; None if it has one."""
        return None


class DiffusionEquations(ABC, Generic[S]):
    """The SDE at dimension d."""

    @abstractmethod
    def sde_paths(self, setting: RunSetting[S], higher_order: bool) -> Any:
        """Paths of the SDE, as a simulator whose steps have lengths."""

    @abstractmethod
    def sde_step_length(
        self, setting: RunSetting[S], end: float, higher_order: bool
    ) -> tuple[float, float]:
        """A step length that is accurate on the noiseless path up to `end`, and its error."""

    @abstractmethod
    def sde_points(self, clock: Clock) -> np.ndarray:
        """The save points, and all other points at which a step has to end."""


class FiniteRuns(ABC, Generic[S]):
    """Simulations at finite d, and what an exit time observes."""

    methods: ClassVar[tuple[str, ...]] = ("exact",)  # of `simulate`
    exact_methods: ClassVar[tuple[str, ...]] = ("exact",)  # labelled as exact in law
    always_direct: ClassVar[bool] = False  # whether all methods are direct runs
    has_data: ClassVar[bool] = False  # whether samples of a data set are used more than once

    @abstractmethod
    def simulator(self, setting: RunSetting[S]) -> Simulator:
        """Runs at dimension d."""

    @abstractmethod
    def exit_watch(
        self, criterion: Criterion, initial_state: S, dimension: int | None
    ) -> tuple[Watch, Parameters]:
        """The function of the state that `exit_time` observes, and its parameters."""

    def exit_floor(self, watch: Watch) -> RiskFloor | None:
        """Lower bounds of the watched function of runs, where they are known."""
        return None


class SolverDynamics(
    CallChecks[S], MeanEquations[S], DiffusionEquations[S], FiniteRuns[S], ResultSource
):
    """A problem under an algorithm: all that the solvers call."""

    assumptions: ClassVar[str] = "one pass"  # start of the attribute of results

    @abstractmethod
    def state_arrays(self, initial_state: S) -> Arrays:
        """An initial condition as arrays with a leading axis of runs."""

    def limit_attributes(self, dimension: int | None) -> dict[str, Any]:
        d = self.dimension_symbol
        limit = f"{d} -> infinity" if dimension is None else f"mean increment at {d}"
        return {"dimension": dimension, "assumptions": f"{self.assumptions}, {limit}"}

    def batch_risks(
        self,
        requests: list[SolveRequest],
        states: list[Arrays],
        batch_size: int,
        *,
        with_errors: bool = True,
    ) -> list[Risks]:
        risks = []
        for request, state in zip(requests, states, strict=True):
            risk, _ = request.dynamics.risk_along(state, request.clock, request.dimension)
            risks.append(Risks(risk, 0.0, 0.0))
        return risks

    def sde_points(self, clock: Clock) -> np.ndarray:
        return integration_points(self.algorithm, clock)

    def first_public_state(self, initial_state: S) -> Arrays:
        """The state of the first run at time 0, as functions of the user see it."""
        states = self.public_states(self.state_arrays(initial_state))
        return {name: np.asarray(value[0]) for name, value in states.items()}


def closed_form_request(
    dynamics: SolverDynamics[S],
    field: Field,
    parameters: Parameters,
    initial_state: S,
    clock: Clock,
    dimension: int | None,
    rtol: float | None,
    atol: float | None,
) -> SolveRequest:
    """A request whose right-hand side is a formula: no quadrature, no replicates."""
    rtol, atol = RTOL if rtol is None else rtol, ATOL if atol is None else atol
    case = Case(
        field,
        {"none": np.zeros((1, 1))},
        parameters,
        dynamics.state_arrays(initial_state),
        integration_points(dynamics.algorithm, clock),
        {"rtol": np.float64(MARGIN * rtol), "atol": np.float64(MARGIN * atol)},
    )
    return SolveRequest(dynamics, initial_state, clock, dimension, rtol, atol, case)
