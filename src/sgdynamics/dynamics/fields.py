"""Problems of fields as a solver sees them: overlaps M, Q and the head, their mean step by Gaussian expectations, the chain as one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import check_schedules, is_scheduled, rescale_schedules, values_at
from sgdynamics.dynamics.interface import Dynamics, SolveRequest
from sgdynamics.expectations.accuracy import population_accuracy
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import (
    Risks,
    choose_quadrature,
    compute_risks,
    population_risk,
    refine_quadrature,
    risk_at,
)
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.exact import ExactFixedData
from sgdynamics.fixed_data.sample_stability import warn_unstable
from sgdynamics.ode.drift import MeanStep, finite_numbers, replicated
from sgdynamics.ode.integrate import (
    ATOL,
    MARGIN,
    RTOL,
    Case,
    Flat,
    Watch,
    from_units,
    in_units,
    rates_at,
)
from sgdynamics.problems.losses import label_noise
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, validate_start
from sgdynamics.results.clock import Clock
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples.input_covariance import eigenvalues, variance
from sgdynamics.sde.scheme import SdePaths, sde_step_length, with_edges
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import check_room
from sgdynamics.simulation.gpu.chain import exact_chain
from sgdynamics.simulation.running import Simulator

KINKED_TOLERANCE = 1e-6  # where sampled expectations have kinks in the overlaps, an integrator cannot use, nor need, more
FEW_DIRECTIONS = 0.3  # of g l_1, above which a few directions carry the noise of SGD
WARN_ABOVE = 1e-4  # relative error of an expectation that a user should hear of


class FieldDynamics(Dynamics):
    """A `Problem` under one-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct")
    assumptions: ClassVar[str] = "Gaussian inputs, one pass"
    variables: ClassVar = {name: VARIABLES[name] for name in ("M", "Q", "a")}

    def __init__(self, problem: Problem, algorithm: Any) -> None:
        self.definition, self.algorithm = problem, algorithm
        self.stated: Problem | None = None  # what a result records, where it is another one

    @property
    def structure(self) -> Structure:
        return self.definition.structure

    @property
    def parameters(self) -> dict[str, Any]:
        return self.definition.parameters

    def counted_in_steps(self) -> FieldDynamics:
        """The same with functions of alpha in the problem read as functions of steps, for a dimension that is infinite."""
        found, numbers = copy(self), self.definition._parameters
        stretch = numbers["multiplicities"].sum() / self.algorithm.batch
        found.definition, found.stated = (
            self.definition.with_parameters(**rescale_schedules(numbers, stretch)),
            self.definition,
        )
        return found

    @property
    def problem(self) -> Problem:
        return self.definition if self.stated is None else self.stated

    def start(self, start: Any, runs: int | None = None) -> Start:
        return broadcast_runs(validate_start(self.definition, start), runs)

    def at_dimension(self, dimension: Any, small: bool = False) -> tuple[int, np.ndarray]:
        return check_dimension(self.definition, dimension, small)

    def check_controls(self, clock: Clock) -> None:
        super().check_controls(clock)
        self.definition.check_schedule_values(self.place(clock)[-1])
        check_schedules(
            {**self.algorithm.parameters, "lr": 0.0}, self.place(clock)[-1], "alpha"
        )  # the clock has looked at lr

    def states(self, initial_state: Start) -> dict[str, np.ndarray]:
        return {"M": initial_state.M_blocks, "Q": initial_state.Q_blocks, "a": initial_state.a}

    def public_states(self, states: dict[str, np.ndarray], lead: int = 1) -> dict[str, np.ndarray]:
        return public_state(states, lead)

    def beside(self, other: Any) -> Dynamics:
        mine = (self.structure.width, self.structure.signals, self.structure.blocks)
        if (
            "fields" not in getattr(other, "kinds", ())
            or (other.width, other.signals, other.structure.blocks) != mine
        ):
            raise checks.reject(
                "evaluate",
                other,
                f"give a problem of the same (width, signals, blocks of the covariance) = {mine}",
            )
        if other.structure.heads != self.structure.heads:
            fix = "contexts have heads of their own: give the same contexts with other probabilities, problem.replace(probabilities=...)"
            raise checks.reject("evaluate", other, fix)
        if not np.allclose(other.gram, self.definition.gram, rtol=0, atol=1e-9):
            fix = "its signals have another Gram matrix: state both problems with the same signals, and let each loss read those it needs"
            raise checks.reject("evaluate", other, fix)
        return (FixedDataDynamics if self.has_data else FieldDynamics)(other, self.algorithm)

    def prepare(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: Any = None,
        atol: Any = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        flow = self.algorithm.flow
        whole = (
            self.algorithm.batch if self.algorithm.counts else 1
        )  # any other is among the numbers
        if (
            dimension is not None
            and self.structure.constraint.fixes_norms
            and not self.algorithm.counts
        ):
            fix = "on the sphere the mean step at finite d is taken from the chain: give a whole number, or leave dimension out"
            raise checks.reject("batch", self.algorithm.batch, fix)
        finite = (
            None if dimension is None or flow else finite_numbers(self.definition, dimension, whole)
        )
        quadrature = (
            choose_quadrature(self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN)
            if quadrature is None
            else quadrature
        )
        field = MeanStep(self.structure, quadrature, whole, flow)
        each, finite = replicated(self.structure, quadrature, flow, finite)
        shared = {
            "problem": self.parameters,
            "algorithm": self.algorithm.parameters,
            "finite": finite,
        }
        shared |= self._units(("M", "Q"), ("a",))
        states = in_units(shared, self.states(initial_state))
        case = Case(field, each, shared, states, self.variable(clock), {}, alone="points" in each)
        return SolveRequest(
            self,
            initial_state,
            clock,
            dimension,
            rtol,
            atol,
            replace(case, tolerance=self._tolerance(case, rtol, atol)),
        )

    def _units(self, overlaps: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
        """Units of the states of a spectrum, those of the fields' variance: blocks of many small eigenvalues have overlaps of another
        size than the others."""
        if self.definition.spectrum is None:
            return {}
        variances = np.asarray(eigenvalues(self.parameters))[:, None, None]
        of_blocks = 1 / np.where(
            variances > 0, variances, 1.0
        )  # inputs of variance 0 act through their means
        return {
            "units": dict.fromkeys(overlaps, of_blocks) | dict.fromkeys(others, np.float64(1.0))
        }

    def _tolerance(self, case: Case, rtol: float | None, atol: float | None) -> dict[str, Any]:
        """Local: a thousandth of what is asked for, or of what the expectations are known to; atol counts in the largest overlap."""
        floor = 0.0
        if rtol is None:
            rtol = RTOL
            if self._sampled:
                rtol = max(RTOL, _error_at_start(case))
                floor = KINKED_TOLERANCE if self.structure.kinks else 0.0
        floor = max(floor, self._roughness)
        atol = rtol * (ATOL / RTOL) if atol is None else atol
        scale = max(1.0, *(float(np.abs(case.states[name]).max()) for name in case.field.symmetric))
        return {
            "rtol": np.float64(max(MARGIN * rtol, floor)),
            "atol": np.float64(max(MARGIN * atol, floor) * scale),
        }

    @property
    def _sampled(self) -> bool:
        """Whether the drift is an average over replicates of points."""
        return expectation_of(self.structure).sampled(self.algorithm.flow)

    @property
    def _roughness(self) -> float:
        """The local tolerance below which an integrator would follow jumps of single points."""
        return 0.0

    def risks(
        self, group: list[SolveRequest], states: list[dict[str, np.ndarray]], size: int
    ) -> list[Risks]:
        timed = [
            one.dynamics.timed(state, one.clock) for one, state in zip(group, states, strict=True)
        ]
        return compute_risks(
            self.structure,
            group[0].case.field.quadrature,
            [one.dynamics.parameters for one in group],
            timed,
            size=size,
        )

    def scales(self, states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """sqrt(Q P) for M, which vanishes for signals that no row aligns with."""
        lengths = np.einsum("...ii->...i", states["Q"])
        largest = np.max(
            np.where(np.isfinite(lengths), lengths, 0.0), axis=tuple(range(1, lengths.ndim))
        )
        return {
            "M": np.sqrt(
                largest * np.max(np.einsum("...ii->...i", self.definition.gram), initial=0.0)
            )
        }

    def timed(self, states: dict[str, np.ndarray], clock: Clock) -> dict[str, np.ndarray]:
        """Overlaps (..., time, ...), with alpha where numbers of the problem depend on it."""
        overlaps = {name: states[name] for name in ("M", "Q", "a")}
        if not self.definition.scheduled:
            return overlaps
        return {**overlaps, "alpha": np.broadcast_to(self.place(clock), overlaps["a"].shape[:-1])}

    def risk_of(
        self, states: dict[str, np.ndarray], clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return population_risk(self.definition, self.timed(states, clock))

    def finer(self, prepared: SolveRequest, states: dict[str, np.ndarray]) -> SolveRequest | None:
        longer = refine_quadrature(self.definition, prepared.case.field.quadrature, states["Q"])
        if longer is None:
            return None
        found = self.prepare(
            prepared.initial_state,
            prepared.clock,
            prepared.dimension,
            prepared.rtol,
            prepared.atol,
            longer,
        )
        return replace(found, case=replace(found.case, tolerance=prepared.case.tolerance))

    def _largest_move(self, clock: Clock) -> float:
        """g l_1: how much of an error along the largest eigenvalue one step takes."""
        numbers, alpha = self.parameters, clock.alpha
        rates = self.algorithm.rates(np.zeros(1) if alpha is None else alpha)
        return float(np.max(rates) / numbers["multiplicities"].sum() * eigenvalues(numbers).max())

    def facts(self, clock: Clock) -> dict[str, Any]:
        spectrum = self.definition.spectrum
        if spectrum is None or self.has_data:
            return {}
        found = {
            "g_l1": self._largest_move(clock),
            "effective_dimension": spectrum.effective_dimension,
            "trace": spectrum.trace,
        }
        return found | ({"dimension": spectrum.dimension} if spectrum.infinite else {})

    def caveats(self, clock: Clock) -> tuple[str, ...]:
        if self.definition.spectrum is None or self._largest_move(clock) <= FEW_DIRECTIONS:
            return ()
        return (
            f"a step takes g l_1 = {self._largest_move(clock):.2g} of an error along the largest eigenvalue: few directions carry noise, "
            'runs scatter, and their mean is off this ODE by that order; take a smaller lr, or sgd.simulate(..., method="exact")',
        )

    def coarser(self, initial_state: Start) -> tuple[Dynamics, Start] | None:
        problem = self.definition
        # contexts have eigenvalues of their own
        merged = (
            None
            if problem.spectrum is None or self.structure.sample.contexts
            else problem.spectrum.coarser()
        )
        if merged is None:
            return None
        pair, eigenvalues_of_pairs = merged
        counts = np.asarray(self.parameters["multiplicities"], dtype=float)
        shares = counts / np.bincount(pair, counts)[pair]

        def merge(values: np.ndarray, axis: int) -> np.ndarray:
            """Sum over each pair, then share the sum out again by size: blocks of one eigenvalue act as one block.

            The equations of a block are linear in its overlaps and its size, so that these shares persist.
            """
            blocks_first = np.moveaxis(values, axis, 0)
            totals = np.zeros_like(blocks_first)
            np.add.at(totals, pair, blocks_first)
            shape = (-1, *[1] * (values.ndim - 1))
            return np.moveaxis(shares.reshape(shape) * totals[pair], 0, axis)

        merged_problem = problem.with_parameters(
            eigenvalues=eigenvalues_of_pairs, gram=merge(self.parameters["gram"], 0)
        )
        merged_start = Start(
            merge(initial_state.M_blocks, 1), merge(initial_state.Q_blocks, 1), initial_state.a
        )
        return type(self)(merged_problem, self.algorithm), merged_start

    def doubts(self, risks: Risks) -> tuple[str, ...]:
        if risks.undetermined:
            return (
                "risk: E[loss] is not determined by quadrature, because a few extreme samples carry most "
                "of it. It may be infinite, as with heavy-tailed draws, and is reported as NaN. The "
                "overlaps have an error of their own, error_quadrature.",
            )
        if not risks.worst > WARN_ABOVE:  # also where all runs diverged, and it is NaN
            return ()
        return (
            f"expectations are known only to {risks.worst:.1e} (relative): {expectation_of(self.structure).advice}.",
        )

    def simulator(
        self,
        method: str,
        initial_state: Start,
        dimension: int,
        sizes: np.ndarray,
        *,
        dtype: str = "float64",
        **more: Any,
    ) -> Simulator:
        if method == "exact":
            check_room(self.definition, self.algorithm, sizes)
            return exact_chain(self.definition, self.algorithm, initial_state, dimension, sizes)
        return DirectSGD(
            self.definition,
            self.algorithm,
            initial_state,
            dimension,
            sizes,
            dtype,
            more.get("seed", 0),
        )

    def paths_of_sde(
        self, initial_state: Start, dimension: int, sizes: np.ndarray, higher_order: bool
    ) -> SdePaths:
        """Paths of the SDE, as a simulator whose steps have lengths."""
        return SdePaths(
            self.definition, self.algorithm, initial_state, dimension, sizes, higher_order
        )

    def sde_places(self, clock: Clock) -> np.ndarray:
        return with_edges(self.definition, self.algorithm, self.variable(clock))

    def longest_sde_step(
        self,
        initial_state: Start,
        dimension: int,
        sizes: np.ndarray,
        end: float,
        higher_order: bool,
    ) -> tuple[float, float]:
        return sde_step_length(
            self.definition, self.algorithm, initial_state, dimension, sizes, end
        )

    def watched(
        self, criterion: Any, initial_state: Start, dimension: int | None
    ) -> tuple[Watch, Any]:
        watch = FieldWatch(
            self.structure,
            choose_quadrature(self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN),
            criterion,
        )
        nodes = {
            name: value[0]
            for name, value in expectation_of(self.structure).risk_nodes(watch.quadrature).items()
        }
        return watch, {"problem": self.parameters, "watch": nodes}

    def _floor(self, clock: Clock) -> Any:
        """The label noise's share of the risk, at each time where it depends on it."""
        problem = self.definition
        return (
            np.array([problem.at(place).noise_floor for place in self.place(clock)])
            if problem.scheduled
            else problem.noise_floor
        )

    def observed(
        self, states: dict[str, np.ndarray], risk: np.ndarray, clock: Clock
    ) -> dict[str, np.ndarray]:
        M, Q = states["M"], states["Q"]
        found = {"M": M.sum(axis=2), "Q": Q.sum(axis=2), "a": states["a"], "risk": risk}
        if "train_risk" in states:
            found["train_risk"] = states["train_risk"]
        if self.structure.has_excess:
            found["excess_risk"] = risk - self._floor(clock)
        if self.definition.infinite_risk:
            # the noise entered by its scale: the excess risk does not depend on it, and the risk is infinite
            found["risk"] = np.where(np.isfinite(risk), np.inf, np.nan)
        if self.structure.heads > 1:
            found["a"] = states["a"].reshape(
                *states["a"].shape[:-1], self.structure.heads, self.structure.width
            )
        if self.structure.sample.contexts:
            alone = [
                self.definition.with_parameters(probabilities=one)
                for one in np.eye(self.structure.sample.contexts)
            ]
            found["context_risk"] = np.stack(
                [population_risk(one, self.timed(states, clock))[0] for one in alone], axis=-1
            )
        if self.definition.classifies:
            found["accuracy"], found["error_accuracy"] = population_accuracy(
                self.definition, M, Q, states["a"]
            )
        if self.structure.blocks > 1:
            found |= {"M_block": M, "Q_block": Q}
        if self.definition.spectrum is not None:
            # these alone are finite where d is not
            found |= {
                "M_fields": variance(self.parameters, M),
                "Q_fields": variance(self.parameters, Q),
            }
        return found

    def meanings(self) -> Mapping[str, tuple[Any, ...]]:
        if self.structure.heads == 1:
            return VARIABLES
        return {**VARIABLES, "a": VARIABLES["a"]._replace(axes=("context", "unit"))}

    def coordinates(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.structure.blocks > 1:
            found["eigenvalue"] = (
                "block",
                eigenvalues(self.parameters),
                {"long_name": "covariance eigenvalue"},
            )
        if self.structure.sample.contexts:
            found["context"] = (
                "context",
                np.array(self.definition.names),
                {"long_name": "context"},
            )
        return found


class FixedDataDynamics(FieldDynamics):
    """A `Problem` whose data set is read again and again: gradient descent, multi-pass and persistent SGD, Langevin."""

    has_data: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set"

    def check_controls(self, clock: Clock) -> None:
        self.definition.check_schedule_values(clock.t[-1], "t")
        if any(
            is_scheduled(leaf)
            for leaf in jax.tree.leaves(self.parameters.get("draws"), is_leaf=is_scheduled)
        ):
            raise checks.reject(
                "draws",
                self.definition,
                "a data set is drawn once: its probabilities do not depend on t; give numbers",
            )

    def place(self, clock: Clock) -> np.ndarray:
        return clock.t

    def counted(self, clock: Clock) -> FixedDataDynamics:
        if not self.algorithm.scheduled or clock.step is None:
            return self
        found = copy(self)
        found.algorithm = self.algorithm.counted(float(clock.step[-1]))
        return found

    def warn_before(self, initial_state: Start, dimension: int) -> None:
        warn_unstable(
            self.definition, self.algorithm, initial_state, self.algorithm.samples(dimension)
        )

    def simulator(
        self,
        method: str,
        initial_state: Start,
        dimension: int,
        sizes: np.ndarray,
        *,
        seed: int = 0,
        **more: Any,
    ) -> Simulator:
        setting = (self.definition, self.algorithm, initial_state, dimension, sizes)
        shared_data = more.get("shared_data", False)
        if method == "direct":
            return DirectFixedData(*setting, more.get("dtype", "float64"), seed, shared_data)
        if shared_data:
            raise checks.reject(
                "shared_data",
                shared_data,
                "the exact law keeps no data set to share: take method='direct'",
            )
        return ExactFixedData(*setting, seed)


@dataclass(frozen=True)
class FieldWatch(Watch):
    """The excess risk, minus the largest overlap, or a user's function of the state. Holds no numbers, so that none is compiled in."""

    structure: Structure
    quadrature: Quadrature
    criterion: str | Callable[[dict[str, Any]], Any]

    def value(self, shared: Parameters, state: dict[str, Any]) -> Any:
        structure, parameters, state = self.structure, shared["problem"], from_units(shared, state)
        if self.criterion == "overlap":
            return -jnp.max(jnp.abs(jnp.sum(state["M"], axis=0)))
        if callable(self.criterion):
            return jnp.asarray(self.criterion(public_state(state)), dtype=state["a"].dtype)
        now = values_at(parameters, 0.0)
        value = risk_at(structure, self.quadrature, shared["watch"], now, state)
        return value - 0.5 * label_noise(now) if structure.has_excess else value


def public_state(state: dict[str, Any], blocks: int = 0) -> dict[str, Any]:
    """M (units x signals), Q (units x units) and a of the full rows, summed over the axis of blocks: what a user's criterion sees."""
    return {"M": state["M"].sum(axis=blocks), "Q": state["Q"].sum(axis=blocks), "a": state["a"]}


def _error_at_start(case: Case) -> float:
    """The relative standard error of a sampled drift at the start, from the spread of the replicates."""
    form = Flat(case.field, tuple((name, value.shape[1:]) for name, value in case.states.items()))
    every = np.asarray(rates_at(form, case.each, case.shared, case.states))
    if not np.all(np.isfinite(every)):
        raise ValueError(
            "problem: its drift is not finite at the start: the loss, an activation or the target gives NaN or infinity; "
            "make it finite for every real field"
        )
    error = np.linalg.norm(every.std(axis=0, ddof=1), axis=-1) / np.sqrt(len(every))
    return float(np.max(error / np.maximum(np.linalg.norm(every.mean(axis=0), axis=-1), 1e-300)))
