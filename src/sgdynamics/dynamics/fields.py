"""Problems of fields under plain one-pass SGD, as the solvers see them.

The state are the overlaps M and Q of each covariance block and the head a. The mean step consists
of Gaussian expectations (`ode.drift`), the exact chain is one step at finite d.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, State
from sgdynamics.base.controls import check_schedules, rescale_schedules, values_at
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics
from sgdynamics.dynamics.requests import Arrays, SolveRequest
from sgdynamics.dynamics.risk_floor import RiskFloor, has_floor
from sgdynamics.expectations.accuracy import population_accuracy
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import (
    Risks,
    choose_quadrature,
    compute_risks,
    grid_error,
    population_risk,
    refine_quadrature,
    risk_at,
)
from sgdynamics.ode.case import ATOL, MARGIN, RTOL, Case, Watch, from_units, in_units
from sgdynamics.ode.drift import MeanStep, finite_dimension_inputs, replicate_inputs
from sgdynamics.ode.late_times import Flat, rates_at
from sgdynamics.ode.static_top import check_rates, find_optimum
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.losses import label_noise
from sgdynamics.problems.overlap_starts import Start, broadcast_runs, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock, integration_points
from sgdynamics.results.variables import TOP_PREFIX, VARIABLES, leaf_variable
from sgdynamics.samples.input_covariance import eigenvalues, field_covariance
from sgdynamics.sde.paths import SdePaths, sde_step_length, with_edges
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import check_room
from sgdynamics.simulation.gpu.chain import exact_chain
from sgdynamics.simulation.running import RunSetting, Simulator

# Local tolerance where sampled expectations have kinks in the overlaps: an integrator can neither
# use nor needs a smaller one.
KINKED_TOLERANCE = 1e-6
FEW_DIRECTIONS = 0.3  # g l_1 above which a few directions carry the noise of SGD
WARN_ABOVE = 1e-4  # relative error of an expectation above which the user is warned
OVERLAPS = ("M", "Q", "a")


class FieldDynamics(SolverDynamics[Start]):
    """A `Problem` under one-pass SGD.

    `definition` is the problem that is solved. It differs from `problem`, which results record,
    only if schedules are read in another unit (`resolve_steps`).
    """

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    assumptions: ClassVar[str] = "Gaussian inputs, one pass"

    def __init__(self, problem: Problem, algorithm: OnePassSGD | FixedData) -> None:
        self.problem, self.definition, self.algorithm = problem, problem, algorithm

    @property
    def structure(self) -> Structure:
        return self.definition.structure

    @property
    def parameters(self) -> Parameters:
        return self.definition.parameters

    # arguments

    def resolve_steps(self, dimension: int | None, cells: int | None) -> FieldDynamics:
        """Read functions of alpha as functions of steps, for a spectrum of infinite dimension."""
        spectrum = self.definition.spectrum
        if spectrum is None or not spectrum.infinite or not self.definition.scheduled:
            return self
        resolved, parameters = copy(self), self.definition._parameters
        stretch = parameters["multiplicities"].sum() / self.algorithm.batch
        resolved.definition = self.definition.with_parameters(
            **rescale_schedules(parameters, stretch)
        )
        return resolved

    def initial_state(self, start: Any, runs: int | None = None) -> Start:
        return broadcast_runs(validate_start(self.definition, start), runs)

    def resolve_dimension(
        self, dimension: Any, allow_small_blocks: bool = False
    ) -> tuple[int, np.ndarray]:
        return check_dimension(self.definition, dimension, allow_small_blocks)

    def validate_clock(self, clock: Clock) -> FieldDynamics:
        super().validate_clock(clock)
        end = clock.schedule_points[-1]
        self.definition.check_schedule_values(end)
        # The clock has validated the schedule of lr already.
        check_schedules({**self.algorithm.parameters, "lr": 0.0}, end, "alpha")
        return self

    def state_arrays(self, initial_state: Start) -> Arrays:
        return {"M": initial_state.M_blocks, "Q": initial_state.Q_blocks, "a": initial_state.a}

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        return public_state(self.structure, states, leading_axes)

    def evaluator(self, other: Any) -> FieldDynamics:
        structure = self.structure
        sizes = (structure.width, structure.signals, structure.blocks)
        if (
            "fields" not in getattr(other, "kinds", ())
            or (other.width, other.signals, other.structure.blocks) != sizes
        ):
            fix = "give a problem of the same (width, signals, blocks of the covariance) = "
            raise checks.reject("evaluate", other, f"{fix}{sizes}")
        if other.structure.top != structure.top:
            fix = "give a problem with the same top, whose loss need not read all of its leaves"
            raise checks.reject("evaluate", other, fix)
        if other.structure.heads != structure.heads:
            fix = (
                "contexts have heads of their own: give the same contexts with other "
                "probabilities, problem.replace(probabilities=...)"
            )
            raise checks.reject("evaluate", other, fix)
        if not np.allclose(other.gram, self.definition.gram, rtol=0, atol=1e-9):
            fix = (
                "the Gram matrix of its signals differs: state both problems with the same "
                "signals, and let each loss read those it needs"
            )
            raise checks.reject("evaluate", other, fix)
        return self._evaluator_of(other)

    def _evaluator_of(self, other: Problem) -> FieldDynamics:
        return FieldDynamics(other, self.algorithm)

    # the ODE

    def ode_request(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        algorithm, flow = self.algorithm, self.algorithm.flow
        # A batch that is a schedule or no integer is among the traced parameters.
        batch = algorithm.batch if algorithm.counts else 1
        if dimension is not None and self.structure.constraint.fixes_norms and not algorithm.counts:
            fix = (
                "on the sphere the mean step at finite d is taken from the chain: give a whole "
                "number, or leave dimension out"
            )
            raise checks.reject("batch", algorithm.batch, fix)
        finite = None
        if dimension is not None and not flow:
            finite = finite_dimension_inputs(self.definition, dimension, batch)
        if quadrature is None:
            quadrature = choose_quadrature(
                self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN
            )
            quadrature = self._refine_at_start(quadrature, initial_state)
        static = self.algorithm.has_static_head
        field = MeanStep(self.structure, quadrature, batch, flow, static)
        initial_state = self._relax_head(initial_state, quadrature, dimension)
        replicates, finite = replicate_inputs(self.structure, quadrature, flow, finite)
        shared = {
            "problem": self.parameters,
            "algorithm": algorithm.parameters,
            "finite": finite,
            **self._units(("M", "Q"), ("a",)),
        }
        states = in_units(shared, self.state_arrays(initial_state))
        points = integration_points(algorithm, clock)
        case = Case(field, replicates, shared, states, points, {}, alone="points" in replicates)
        case = replace(case, tolerance=self._tolerance(case, rtol, atol))
        coarse = expectation_of(self.structure).coarser(quadrature, flow)
        if coarse is not None:
            count = len(jax.tree.leaves(replicates)[0])
            coarse_nodes = expectation_of(self.structure).nodes(coarse, flow)
            nodes = {
                name: np.broadcast_to(value, (count, *value.shape[1:]))
                for name, value in coarse_nodes.items()
            }
            coarse_field = replace(field, quadrature=coarse)
            case = replace(case, approximation=(coarse_field, {**replicates, "nodes": nodes}))
        return SolveRequest(self, initial_state, clock, dimension, rtol, atol, case, quadrature)

    def _relax_head(
        self, initial_state: Start, quadrature: Quadrature, dimension: int | None
    ) -> Start:
        """Return the start of the ODE, with a static head at its optimum.

        Raises ValueError for rates of the head of order d, for which the ODE is not the limit.
        """
        algorithm = self.algorithm
        if not self.structure.trained:
            return initial_state
        nodes = expectation_of(self.structure).nodes(quadrature, algorithm.flow)
        setting = (self.structure, quadrature, nodes, values_at(self.parameters, 0.0))
        M, Q = initial_state.M_blocks, initial_state.Q_blocks
        if algorithm.has_static_head:
            runs = zip(M, Q, initial_state.a, strict=True)
            heads = [find_optimum(*setting, *run) for run in runs]
            return replace(initial_state, a=np.stack(heads))
        rates = np.asarray(values_at(algorithm.parameters, 0.0)["head_rate"])
        lr = float(algorithm.rates(np.zeros(1))[0])
        check_rates(rates, lr, dimension, *setting, M[0], Q[0], initial_state.a[0])
        return initial_state

    def _refine_at_start(self, quadrature: Quadrature, initial_state: Start) -> Quadrature:
        """A quadrature that is fine enough at the start, where a solution is expensive."""

        def error(quadrature: Quadrature) -> float:
            parameters = values_at(self.parameters, 0.0)
            states = self.state_arrays(initial_state)
            return grid_error(self.structure, quadrature, parameters, states)

        return expectation_of(self.structure).fine_enough(quadrature, error)

    def _units(self, overlaps: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
        """Units of the states of a spectrum, those of the variance of the fields.

        The overlaps of a block of many small eigenvalues differ in size from those of the other
        blocks, and one absolute tolerance has to suit all of them.
        """
        if self.definition.spectrum is None:
            return {}
        variances = np.asarray(eigenvalues(self.parameters))[:, None, None]
        # Inputs of variance 0 act through their means.
        block_units = 1 / np.where(variances > 0, variances, 1.0)
        units = dict.fromkeys(overlaps, block_units) | dict.fromkeys(others, np.float64(1.0))
        return {"units": units}

    def _tolerance(self, case: Case, rtol: float | None, atol: float | None) -> dict[str, Any]:
        """Local tolerances of the integrator.

        They are a thousandth of the requested accuracy, or of the accuracy of the expectations,
        because local errors add up. atol is relative to the largest overlap.
        """
        floor = self._roughness
        if rtol is None:
            rtol = RTOL
            if self._is_sampled:
                rtol = max(RTOL, _error_at_start(case))
                floor = max(floor, KINKED_TOLERANCE if self.structure.kinks else 0.0)
        atol = rtol * (ATOL / RTOL) if atol is None else atol
        scale = max(1.0, *(float(np.abs(case.states[name]).max()) for name in case.field.symmetric))
        return {
            "rtol": np.float64(max(MARGIN * rtol, floor)),
            "atol": np.float64(max(MARGIN * atol, floor) * scale),
        }

    @property
    def _is_sampled(self) -> bool:
        """Whether the drift is an average over replicates of points."""
        return expectation_of(self.structure).sampled(self.algorithm.flow)

    @property
    def _roughness(self) -> float:
        """The local tolerance below which an integrator would follow jumps of single points."""
        return 0.0

    def batch_risks(
        self,
        requests: list[SolveRequest],
        states: list[Arrays],
        batch_size: int,
        *,
        with_errors: bool = True,
    ) -> list[Risks]:
        quadrature = requests[0].quadrature
        assert quadrature is not None
        parameters, arguments = [], []
        for request, state in zip(requests, states, strict=True):
            dynamics = request.dynamics
            assert isinstance(dynamics, FieldDynamics)
            parameters.append(dynamics.parameters)
            arguments.append(dynamics._with_alpha(state, request.clock))
        return compute_risks(
            self.structure,
            quadrature,
            parameters,
            arguments,
            size=batch_size,
            with_errors=with_errors,
        )

    def variable_scales(self, states: Arrays) -> Arrays:
        """sqrt(Q P) for M, which vanishes for signals that no row aligns with."""
        lengths = np.einsum("...ii->...i", states["Q"])
        finite = np.where(np.isfinite(lengths), lengths, 0.0)
        largest_row = np.max(finite, axis=tuple(range(1, lengths.ndim)))
        signals = np.einsum("...ii->...i", self.definition.gram)
        return {"M": np.sqrt(largest_row * np.max(signals, initial=0.0))}

    def first_attempt(self, request: SolveRequest) -> SolveRequest:
        # An integrator of its own is not checked for the quadrature.
        if request.integrate is not None or request.quadrature is None:
            return request
        quick = expectation_of(self.structure).quick(request.quadrature)
        return request if quick is None else self._with_quadrature(request, quick)

    def refine(self, request: SolveRequest, states: Arrays) -> SolveRequest | None:
        assert request.quadrature is not None
        finer = refine_quadrature(self.definition, request.quadrature, states["Q"])
        return None if finer is None else self._with_quadrature(request, finer)

    def _with_quadrature(self, request: SolveRequest, quadrature: Quadrature) -> SolveRequest:
        arguments = (request.clock, request.dimension, request.rtol, request.atol)
        changed = self.ode_request(request.initial_state, *arguments, quadrature)
        # The tolerance stays, so that both solutions differ by the quadrature alone.
        case = replace(changed.shared_case, tolerance=request.shared_case.tolerance)
        return replace(changed, case=case)

    def solution_warnings(self, risks: Risks, clock: Clock) -> tuple[str, ...]:
        return (*self._risk_warnings(risks), *self._scatter_warnings(clock))

    def _risk_warnings(self, risks: Risks) -> tuple[str, ...]:
        if risks.undetermined:
            return (
                "risk: E[loss] is not determined by quadrature, because a few extreme samples "
                "carry most of it. It may be infinite, as with heavy-tailed draws, and is reported "
                "as NaN. The overlaps have an error of their own, error_quadrature.",
            )
        # The error is NaN where all runs diverged.
        if not risks.worst > WARN_ABOVE:
            return ()
        advice = expectation_of(self.structure).advice
        return (f"expectations are known only to {risks.worst:.1e} (relative): {advice}.",)

    def _scatter_warnings(self, clock: Clock) -> tuple[str, ...]:
        """A warning if runs scatter around the ODE, because few directions carry the noise."""
        if self.definition.spectrum is None:
            return ()
        largest_step = self._largest_step(clock)
        if largest_step <= FEW_DIRECTIONS:
            return ()
        return (
            f"a step removes g l_1 = {largest_step:.2g} of an error along the largest eigenvalue, "
            "so that few directions carry the noise. Runs scatter, and their mean differs from "
            "this ODE by that order. Use a smaller lr, or "
            'sgd.simulate(..., method="exact").',
        )

    def _largest_step(self, clock: Clock) -> float:
        """g l_1: the share of an error along the largest eigenvalue that one step removes."""
        parameters, alpha = self.parameters, clock.alpha
        rates = self.algorithm.rates(np.zeros(1) if alpha is None else alpha)
        trace = parameters["multiplicities"].sum()
        return float(np.max(rates) / trace * eigenvalues(parameters).max())

    def merge_bins(self, initial_state: Start) -> tuple[FieldDynamics, Start] | None:
        problem = self.definition
        # Contexts have eigenvalues of their own.
        if problem.spectrum is None or self.structure.sample.contexts:
            return None
        merged = problem.spectrum.coarser()
        if merged is None:
            return None
        pair, merged_eigenvalues = merged
        counts = np.asarray(self.parameters["multiplicities"], dtype=float)
        shares = counts / np.bincount(pair, counts)[pair]

        def merge(values: np.ndarray, axis: int) -> np.ndarray:
            """Sum over each pair of blocks, then divide the sum among the pair by size.

            Blocks of one eigenvalue act as one block. The equations of a block are linear in its
            overlaps and its size, so that these shares persist.
            """
            blocks_first = np.moveaxis(values, axis, 0)
            totals = np.zeros_like(blocks_first)
            np.add.at(totals, pair, blocks_first)
            shape = (-1, *[1] * (values.ndim - 1))
            return np.moveaxis(shares.reshape(shape) * totals[pair], 0, axis)

        merged_problem = problem.with_parameters(
            eigenvalues=merged_eigenvalues, gram=merge(self.parameters["gram"], 0)
        )
        M, Q = merge(initial_state.M_blocks, 1), merge(initial_state.Q_blocks, 1)
        return type(self)(merged_problem, self.algorithm), Start(M, Q, initial_state.a)

    # runs and paths at finite d

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        if setting.method == "exact":
            check_room(self.definition, self.algorithm, setting.block_sizes)
            return exact_chain(self.definition, self.algorithm, setting)
        return DirectSGD(self.definition, self.algorithm, setting)

    def sde_paths(self, setting: RunSetting[Start], higher_order: bool) -> SdePaths:
        return SdePaths(self.definition, self.algorithm, setting, higher_order)

    def sde_points(self, clock: Clock) -> np.ndarray:
        points = integration_points(self.algorithm, clock)
        return with_edges(self.parameters, self.algorithm, points)

    def sde_step_length(
        self, setting: RunSetting[Start], end: float, higher_order: bool
    ) -> tuple[float, float]:
        return sde_step_length(self.definition, self.algorithm, setting, end)

    def exit_watch(
        self, criterion: Criterion, initial_state: Start, dimension: int | None
    ) -> tuple[Watch, Parameters]:
        quadrature = choose_quadrature(self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN)
        nodes = expectation_of(self.structure).risk_nodes(quadrature)
        first_replicate = {name: value[0] for name, value in nodes.items()}
        watch = FieldWatch(self.structure, quadrature, criterion)
        return watch, {"problem": self.parameters, "watch": first_replicate}

    def exit_floor(self, watch: Watch) -> RiskFloor | None:
        assert isinstance(watch, FieldWatch)
        if watch.criterion != "risk" or not has_floor(self.structure):
            return None
        return RiskFloor(self.structure, watch.quadrature, watch)

    # results

    def _with_alpha(self, states: Arrays, clock: Clock) -> Arrays:
        """Overlaps (..., time, ...), with alpha if parameters of the problem depend on it."""
        overlaps = {name: states[name] for name in OVERLAPS}
        if not self.definition.scheduled:
            return overlaps
        alpha = clock.schedule_points
        return {**overlaps, "alpha": np.broadcast_to(alpha, overlaps["a"].shape[:-1])}

    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return population_risk(self.definition, self._with_alpha(states, clock))

    def input_attributes(self, clock: Clock) -> dict[str, Any]:
        spectrum, top = self.definition.spectrum, self.structure.top
        leaves = {} if top is None else {"top": " ".join(top.names)}
        if spectrum is None or self.has_data:
            return leaves
        attributes = leaves | {
            "g_l1": self._largest_step(clock),
            "effective_dimension": spectrum.effective_dimension,
            "trace": spectrum.trace,
        }
        return attributes | ({"dimension": spectrum.dimension} if spectrum.infinite else {})

    def _noise_floor(self, clock: Clock) -> Any:
        """The risk of the label noise alone, at each save point if it depends on alpha."""
        problem = self.definition
        if not problem.scheduled:
            return problem.noise_floor
        points = clock.schedule_points
        return np.array([problem.at(point).noise_floor for point in points])

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        M, Q, a = states["M"], states["Q"], states["a"]
        structure, problem = self.structure, self.definition
        values: dict[str, Any] = {"M": sum_blocks(M, 2), "Q": sum_blocks(Q, 2)}
        values |= {**head_variables(structure, a), "risk": risk}
        if "train_risk" in states:
            values["train_risk"] = states["train_risk"]
        if structure.has_excess:
            values["excess_risk"] = risk - self._noise_floor(clock)
        if problem.infinite_risk:
            # The noise entered by its scale. The excess risk does not depend on it.
            values["risk"] = np.where(np.isfinite(risk), np.inf, np.nan)
        if structure.heads > 1 and structure.top is None:
            values["a"] = a.reshape(*a.shape[:-1], structure.heads, structure.width)
        if structure.sample.contexts:
            values["context_risk"] = self._context_risks(states, clock)
        if problem.classifies:
            values["accuracy"], values["error_accuracy"] = population_accuracy(problem, M, Q, a)
        if structure.blocks > 1:
            values |= {"M_block": M, "Q_block": Q}
        if problem.spectrum is not None:
            # Of all overlaps only these are finite where the dimension is infinite.
            values["M_fields"] = field_covariance(self.parameters, M)
            values["Q_fields"] = field_covariance(self.parameters, Q)
        return values

    def _context_risks(self, states: Arrays, clock: Clock) -> np.ndarray:
        """The risk of each context alone, along the last axis."""
        arguments, risks = self._with_alpha(states, clock), []
        for probabilities in np.eye(self.structure.sample.contexts):
            context = self.definition.with_parameters(probabilities=probabilities)
            risks.append(population_risk(context, arguments)[0])
        return np.stack(risks, axis=-1)

    def _leaf_axes(self, name: str) -> tuple[str, ...]:
        """The axes of a leaf of the top; the first is "context" if each context has its own."""
        assert self.structure.top is not None
        axes = self.structure.top.axes(name)
        return ("context", *axes[1:]) if name in self.structure.loss.own_leaves else axes

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        variables, coordinates = VARIABLES, {}
        top = self.structure.top
        if top is not None:
            leaves = {
                f"{TOP_PREFIX}{name}": leaf_variable(name, self._leaf_axes(name))
                for name in top.names
            }
            variables = {**VARIABLES, **leaves}
        elif self.structure.heads > 1:
            head = VARIABLES["a"]._replace(axes=("context", "unit"))
            variables = {**VARIABLES, "a": head}
        if self.structure.blocks > 1:
            meaning = {"long_name": "covariance eigenvalue"}
            coordinates["eigenvalue"] = ("block", eigenvalues(self.parameters), meaning)
        if self.structure.sample.contexts:
            names = np.array(self.definition.names)  # type: ignore[attr-defined]
            coordinates["context"] = ("context", names, {"long_name": "context"})
        return Labels(variables, coordinates)


@dataclass(frozen=True)
class FieldWatch(Watch):
    """The excess risk, minus the largest overlap, or a user's function of the state.

    It has no parameters of its own, so that none is compiled in.
    """

    structure: Structure
    quadrature: Quadrature
    criterion: Criterion

    def value(self, shared: Parameters, state: State) -> Float[Numeric, ""]:
        structure, state = self.structure, from_units(shared, state)
        if self.criterion == "overlap":
            return -jnp.max(jnp.abs(jnp.sum(state["M"], axis=0)))
        if callable(self.criterion):
            return jnp.asarray(
                self.criterion(public_state(structure, state)), dtype=state["a"].dtype
            )
        parameters = values_at(shared["problem"], 0.0)
        risk = risk_at(structure, self.quadrature, shared["watch"], parameters, state)
        return risk - 0.5 * label_noise(parameters) if structure.has_excess else risk


def public_state(structure: Structure, state: State, block_axis: int = 0) -> dict[str, Any]:
    """M (units x signals), Q (units x units) and a of the full rows, summed over the blocks.

    This is the state that functions of the user see. A top has one entry per leaf, "top.B".
    """
    M, Q = sum_blocks(state["M"], block_axis), sum_blocks(state["Q"], block_axis)
    return {"M": M, "Q": Q, **head_variables(structure, state["a"])}


def sum_blocks(values: Any, axis: int) -> Any:
    """The sum over the axis of the blocks: a view of a single block, which saves a copy of it."""
    return values.squeeze(axis) if values.shape[axis] == 1 else values.sum(axis=axis)


def head_variables(structure: Structure, head: Any) -> dict[str, Any]:
    """The head (..., entries) as variables of a result: "a", or one per leaf of the top."""
    if structure.top is None:
        return {"a": head}
    return {
        f"{TOP_PREFIX}{name}": leaf for name, leaf in structure.top.leaves_by_name(head).items()
    }


def _error_at_start(case: Case) -> float:
    """Relative standard error of a sampled drift at the start, from the spread of replicates."""
    form = Flat(case.field, tuple((name, value.shape[1:]) for name, value in case.states.items()))
    rates = np.asarray(rates_at(form, case.replicates, case.shared, case.states))
    if not np.all(np.isfinite(rates)):
        raise ValueError(
            "problem: its drift is not finite at the start: the loss, an activation or the target "
            "gives NaN or infinity; make it finite for every real field"
        )
    error = np.linalg.norm(rates.std(axis=0, ddof=1), axis=-1) / np.sqrt(len(rates))
    mean = np.linalg.norm(rates.mean(axis=0), axis=-1)
    return float(np.max(error / np.maximum(mean, 1e-300)))
