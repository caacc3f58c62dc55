"""`Dynamics`: what a solver needs of a problem and an algorithm. Every solver asks only for these few functions.

A state is a dictionary of arrays; its mean step makes the ODE, one step at finite d the simulation, its risk what is plotted. Problems of
fields, spiked tensors and mixtures at snr = infinity are instances, each with faster ways of its own; a user's own subclass needs `rate`,
`step` and `risk`, or those of them that are asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters, PyTree, RandomKey, Scalar
from sgdynamics.base.controls import describe_schedule, is_scheduled, values_at
from sgdynamics.base.user_functions import function_identity
from sgdynamics.expectations.risk import SHORT, TOLERANCE, Risks
from sgdynamics.ode.integrate import (
    ATOL,
    MARGIN,
    RTOL,
    Case,
    Field,
    Solved,
    Watch,
    by_program,
    or_raise,
    run_cases,
)
from sgdynamics.ode.stiff import ran_out
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share
from sgdynamics.samples.spectra import MOST_DIMENSION
from sgdynamics.simulation.running import Simulator
from sgdynamics.simulation.user_dynamics import OwnChain


@dataclass(frozen=True, eq=False)
class InitialArrays:
    """Where runs of a dynamics of one's own start: named arrays with a leading axis of runs."""

    values: dict[str, np.ndarray]

    @property
    def runs(self) -> int:
        return len(next(iter(self.values.values())))


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """One mean path, checked and chosen before anything runs; `case` is None where a dynamics has an integrator of its own."""

    dynamics: Dynamics  # the same class for all requests of a batch
    initial_state: Any
    clock: Clock
    dimension: int | None
    rtol: float | None
    atol: float | None
    case: Case | None = None

    @property
    def key(self) -> Any:
        return id(self) if self.case is None else self.case.key


def try_estimate(name: str, estimate: Callable[[], float]) -> tuple[float, tuple[str, ...]]:
    """An error estimate and its warnings.

    The solution is complete before its error is estimated, so that a failure here must not discard it.
    """
    try:
        value = estimate()
    except (ValueError, FloatingPointError) as error:
        reason = checks.reason(error)
    else:
        if np.isfinite(value):
            return value, ()
        reason = "the solution for comparison is not finite"
    text = f"{name} = nan: this error could not be estimated ({reason}). The solution itself is not affected."
    return float("nan"), (text,)


@dataclass(frozen=True)
class Solution:
    """A solution: its states (run, time, ...) and risks, where runs ended, what a result says of it, and what a user is told."""

    states: dict[str, np.ndarray]
    risk: np.ndarray
    attributes: dict[str, Any]
    ends: dict[str, np.ndarray]
    warnings: tuple[str, ...] = ()

    def with_estimate(self, name: str, estimate: Callable[[], float]) -> Solution:
        """The same path with an error estimate among its attributes: NaN and a warning if the estimate fails."""
        value, warnings = try_estimate(name, estimate)
        return replace(
            self, attributes={**self.attributes, name: value}, warnings=(*self.warnings, *warnings)
        )


class Dynamics:
    """A dynamics of one's own: named arrays, their mean step, one step at finite d, a risk. Subclass it and give it as the problem.

    Attributes
    ----------
    variables : dict
        name -> (what it is, names of its axes), such as ``{"m": ("overlap", ())}``; a state is a dictionary of these arrays.
    parameters : dict
        Numbers, an attribute or a property. What is static (shapes, functions) may be other attributes.

    Notes
    -----
    ``numbers``, which every function below receives, has "problem" (these parameters), "algorithm" (lr, head_rate), "batch", "dimension"
    (d, infinite for the limit) and "alpha", all JAX values: read at alpha where they change with it. Only those functions are needed that
    a solver calls: ``rate`` for ``solve_ode``, ``step`` for ``simulate``. A start is a dictionary of arrays, with a leading axis of runs or
    without.

    Examples
    --------
    >>> class Decay(sgd.Dynamics):
    ...     variables = {"m": ("overlap", ())}
    ...     parameters = {"rate": 2.0}
    ...     def rate(self, numbers, state):
    ...         return {"m": -numbers["problem"]["rate"] * state["m"]}
    >>> found = sgd.solve_ode(Decay(), sgd.OnePassSGD(lr=0.1), {"m": 1.0}, times=[0.5, 1.0])
    >>> found["m"].values.round(4).tolist()
    [[0.3679, 0.1353]]
    """

    kinds: ClassVar[tuple[str, ...]] = ("own dynamics",)
    letter: str = "d"  # the dimension's name
    methods: ClassVar[tuple[str, ...]] = ("exact",)  # of simulate
    only_direct: ClassVar[bool] = False  # whether that is always by direct runs
    has_data: ClassVar[bool] = False  # whether a data set is read again and again
    variables: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    algorithm: Any = None
    definition: Any = None

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def rate(self, numbers: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """d state/dt at one state, t = lr steps/d: the mean increment of one step over lr/d. JAX.

        Parameters
        ----------
        numbers : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.

        Returns
        -------
        dict
            The rates, of the shapes of the state.
        """
        raise NotImplementedError

    def step(
        self, numbers: dict[str, Any], state: dict[str, Any], key: RandomKey
    ) -> dict[str, Any]:
        """The state after one step at dimension d. JAX.

        Parameters
        ----------
        numbers : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.
        key : jax key
            Where its random numbers come from.

        Returns
        -------
        dict
            The next state.
        """
        raise NotImplementedError

    def risk(self, numbers: dict[str, Any], state: dict[str, Any]) -> Any:
        """The population risk of one state. JAX.

        Parameters
        ----------
        numbers : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.

        Returns
        -------
        array
            One number.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Plain values for the record of a result.

        Returns
        -------
        dict
            "kind", the parameters, and the identity of the class, which cannot be made again from them.
        """
        numbers = jax.tree.map(
            lambda leaf: (
                describe_schedule(leaf)[0] if is_scheduled(leaf) else np.asarray(leaf).tolist()
            ),
            self.parameters,
            is_leaf=is_scheduled,
        )
        return {
            "kind": type(self).__name__,
            "parameters": numbers,
            **function_identity(type(self)),
            "rerunnable": False,
        }

    def replace(self, **changes: Any) -> Self:
        """The same dynamics with other values of its fields, where it is a dataclass.

        Parameters
        ----------
        **changes
            Fields by name.

        Returns
        -------
        Dynamics
            A new one; this one stays as it is.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    # what a solver calls; the ways below need no more than the functions above

    def bound(self, algorithm: Any) -> Self:
        """This dynamics with an algorithm."""
        found = copy.copy(self)
        for name, value in (("algorithm", algorithm), ("definition", self)):
            object.__setattr__(found, name, value)  # a user's may be frozen
        return found

    @property
    def problem(self) -> Any:
        """What a result records."""
        return self.definition

    def counted_in_steps(self) -> Dynamics:
        """The same with functions of alpha read as functions of steps, for a dimension that is infinite."""
        raise NotImplementedError

    def in_steps(self, dimension: int | None, cells: int | None) -> Dynamics:
        """The same with an algorithm whose steps are known, where these depend on the dimension or on the cells of an epoch."""
        return self

    def counted(self, clock: Clock) -> Dynamics:
        """The same for a run that ends with this clock."""
        return self

    def has(self, name: str) -> bool:
        """Whether a function of the interface is given."""
        return getattr(type(self), name) is not getattr(Dynamics, name)

    def _need(self, name: str) -> None:
        if not self.has(name):
            raise checks.reject(
                "problem",
                self.definition,
                f"{type(self).__name__} has no {name}, which this question needs: define it",
            )

    def start(self, start: Any, runs: int | None = None) -> Any:
        """A start as an argument, checked, for so many runs."""
        if not isinstance(start, Mapping) or set(start) != set(self.variables):
            raise checks.reject(
                "start", start, f"give a dictionary of arrays: {', '.join(self.variables)}"
            )
        values = {
            name: checks.real_array(name, value, "give numbers") for name, value in start.items()
        }
        for name, value in values.items():
            axes = len(self.variables[name][1])
            if value.ndim not in (axes, axes + 1):
                raise checks.reject(
                    name,
                    value.shape,
                    f"give {axes} axes ({', '.join(self.variables[name][1])}), or one more for runs",
                )
            values[name] = value if value.ndim == axes + 1 else value[None]
        most = max(len(value) for value in values.values())
        wanted = most if runs is None else checks.integer("runs", runs, 1)
        if any(len(value) not in (1, wanted) for value in values.values()):
            raise checks.reject(
                "runs", wanted, f"the start has {most} runs: give as many, or a start of one"
            )
        return InitialArrays(
            {
                name: np.broadcast_to(value, (wanted, *value.shape[1:])).copy()
                for name, value in values.items()
            }
        )

    def at_dimension(self, dimension: Any, small: bool = False) -> tuple[int, np.ndarray]:
        """The dimension, checked, and its split over blocks of the covariance; `small`: blocks of any size will do."""
        d = checks.integer("dimension", dimension, 1, MOST_DIMENSION)
        return d, np.array([d])

    def states(self, initial_state: Any) -> dict[str, np.ndarray]:
        """A start as arrays with a leading axis of runs."""
        return initial_state.values

    def public_states(self, states: dict[str, np.ndarray], lead: int = 1) -> dict[str, np.ndarray]:
        """What a user's function of a state sees, of states with so many leading axes."""
        return states

    def beside(self, other: Any) -> Dynamics:
        """Another problem with the same states, for its risk along the way."""
        if (
            not isinstance(other, Dynamics)
            or set(other.variables) != set(self.variables)
            or not other.has("risk")
        ):
            raise checks.reject(
                "evaluate",
                other,
                f"give a Dynamics with a risk, and with the variables {', '.join(self.variables)}",
            )
        return other.bound(self.algorithm)

    @property
    def controlled(self) -> bool:
        """Whether any number depends on alpha."""
        return any(
            is_scheduled(leaf) for leaf in jax.tree.leaves(self.parameters, is_leaf=is_scheduled)
        )

    def check_controls(self, clock: Clock) -> None:
        """Refuse numbers that depend on alpha where there is none."""
        if self.algorithm.flow and self.controlled:
            raise checks.reject(
                "lr",
                self.algorithm.lr,
                "gradient flow uses no samples, and the problem has numbers that depend on alpha",
            )

    def check_memory(self, dimension: int | None, end: float) -> None:
        """Raise ValueError if the update remembers less than one step at this dimension, up to alpha = end."""

    def place(self, clock: Clock) -> np.ndarray:
        """Where numbers that change are read: at alpha (on fixed data at t)."""
        return np.zeros(len(clock.t)) if clock.alpha is None else clock.alpha

    def warn_before(self, initial_state: Any, dimension: int) -> None:
        """Say beforehand what is likely to go wrong."""

    def variable(self, clock: Clock) -> np.ndarray:
        """Save points in the variable of the integration."""
        return (
            clock.alpha if is_scheduled(self.algorithm.lr) and clock.alpha is not None else clock.t
        )

    def sde_places(self, clock: Clock) -> np.ndarray:
        """Save points in that variable, and where else a step of the SDE has to end."""
        return self.variable(clock)

    def numbers(self, dimension: int | None) -> dict[str, Any]:
        """All numbers, before they are read at an alpha."""
        return {
            "problem": self.parameters,
            "algorithm": self.algorithm.parameters,
            "batch": np.float64(self.algorithm.batch),
            "dimension": np.float64(np.inf if dimension is None else dimension),
        }

    def field(self) -> Field:
        """The mean step as a field of the solve core."""
        self._need("rate")
        return OwnField(self.definition, self.algorithm.flow)

    def prepare(
        self,
        initial_state: Any,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> SolveRequest:
        """A mean path before it runs."""
        rtol, atol = RTOL if rtol is None else rtol, ATOL if atol is None else atol
        tolerance = {"rtol": np.float64(MARGIN * rtol), "atol": np.float64(MARGIN * atol)}
        each = {"none": np.zeros((1, 1))}
        case = Case(
            self.field(),
            each,
            self.numbers(dimension),
            self.states(initial_state),
            self.variable(clock),
            tolerance,
        )
        return SolveRequest(self, initial_state, clock, dimension, rtol, atol, case)

    def paths(
        self, group: list[SolveRequest], size: int
    ) -> list[Solution | SolveRequest | ValueError]:
        """Solutions of cases of one program; a case whose expectations are too coarse comes back with a finer rule, to go again.

        `error_integrator` is measured at a few cases of a group, and the largest of them stands for all.
        """
        every = self._solved(group, size)
        failed = {place: one for place, one in enumerate(every) if isinstance(one, ValueError)}
        good = [place for place in range(len(group)) if place not in failed]
        if not good:
            return list(failed.values())
        kept, found = [group[place] for place in good], dict[int, Any](failed)
        solved: list[Solved] = [every[place] for place in good]  # type: ignore[misc]
        means = [over_replicates(one.states) for one in solved]
        risks = self.risks(kept, means, size)
        again = [
            one.dynamics.finer(one, mean) if risk.worst > TOLERANCE else None
            for one, mean, risk in zip(kept, means, risks, strict=True)
        ]
        found |= {good[row]: one for row, one in enumerate(again) if one is not None}
        rows = [row for row, one in enumerate(again) if one is None]
        if not rows:
            return [found[place] for place in range(len(group))]
        some = [
            rows[place]
            for place in sorted(
                set(np.linspace(0, len(rows) - 1, SHORT).round().astype(int).tolist())
            )
        ]
        looser = [replace(kept[row], case=_looser(kept[row].case)) for row in some]

        def integrator_error() -> float:
            others = [over_replicates(or_raise(one).states) for one in self._solved(looser, size)]
            shares = zip(self.risks(looser, others, size), some, strict=True)
            return max(
                largest_share(other.risk - risks[row].risk, risks[row].risk)
                for other, row in shares
            )

        integrator, failures = try_estimate("error_integrator", integrator_error)
        spreads = self._sampling(
            [kept[row] for row in rows],
            [solved[row] for row in rows],
            [risks[row].worst for row in rows],
            size,
        )
        for row, (quadrature, of_risk) in zip(rows, spreads, strict=True):
            one = kept[row]
            ends, texts = told_apart(means[row], solved[row].tired, one.clock.t)
            attributes = {
                **one.dynamics.described(one.dimension),
                "integrator": "Dopri8, then LSODA" if solved[row].long else "Dopri8",
                "error_quadrature": quadrature,
                "error_quadrature_risk": of_risk if of_risk > 0 else None,
                "error_integrator": integrator,
            }
            doubts = (*one.dynamics.doubts(risks[row]), *one.dynamics.caveats(one.clock))
            if (
                integrator > UNRELIABLE and not texts
            ):  # a solution that diverges is reported as such
                doubts += (_unreliable(integrator),)
            if quadrature > UNDETERMINED and _replicates(solved[row]) > 1:
                doubts += (_undetermined(quadrature),)
            found[good[row]] = Solution(
                means[row], risks[row].risk, attributes, ends, (*doubts, *texts, *failures)
            )
        return [found[place] for place in range(len(group))]

    def _solved(self, group: list[SolveRequest], size: int) -> list[Any]:
        every = run_cases([one.case for one in group], size)
        return [
            one if isinstance(one, ValueError) else one._replace(states=self.unpacked(one.states))
            for one in every
        ]

    def unpacked(self, states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The states of a solution as results have them, where others are integrated."""
        return states

    def _sampling(
        self, group: list[SolveRequest], solved: list[Solved], worst: list[float], size: int
    ) -> list[tuple[float, float]]:
        """`error_quadrature` and `error_quadrature_risk` of each; that of pairs and grids alone where nothing is sampled."""
        if _replicates(solved[0]) == 1:
            return [(one, 0.0) for one in worst]
        each = self.risks(group, [one.states for one in solved], size)
        scales = [self.scales(over_replicates(one.states)) for one in solved]
        return [
            sampling_errors(one.states, risk.risk, bad, risk.sampling, scale)
            for one, risk, bad, scale in zip(solved, each, worst, scales, strict=True)
        ]

    def scales(self, states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Natural sizes (run,) of variables that may vanish along a run, for relative errors."""
        return {}

    def risks(
        self, group: list[SolveRequest], states: list[dict[str, np.ndarray]], size: int
    ) -> list[Risks]:
        """The risks of each at its states, with any axes before the time's."""
        return [
            Risks(one.dynamics.risk_of(state, one.clock, one.dimension)[0], 0.0, 0.0)
            for one, state in zip(group, states, strict=True)
        ]

    def risk_of(
        self, states: dict[str, np.ndarray], clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        """Risks of states (..., time, ...) at these times, and their largest relative error."""
        if not self.has("risk"):
            return np.full(next(iter(states.values())).shape[:2], np.nan), 0.0
        return np.asarray(
            _own_risks(self.definition, self.numbers(dimension), states, self.place(clock))
        ), 0.0

    @property
    def without_ode(self) -> str | None:
        """Why there is no ODE; None where there is one."""
        return None

    def finer(self, prepared: SolveRequest, states: dict[str, np.ndarray]) -> SolveRequest | None:
        """The same path with finer expectations, where there are any."""
        return None

    def doubts(self, risks: Risks) -> tuple[str, ...]:
        """Warnings about the error of expectations."""
        return ()

    def caveats(self, clock: Clock) -> tuple[str, ...]:
        """What a user is told of how far the limit itself holds."""
        return ()

    def facts(self, clock: Clock) -> dict[str, Any]:
        """What every result says of the inputs, theory and simulation."""
        return {}

    def coarser(self, initial_state: Any) -> tuple[Dynamics, Any] | None:
        """The same with neighbouring bins of a spectrum merged, and its start; None where there are no bins."""
        return None

    def described(self, dimension: int | None) -> dict[str, Any]:
        """What a result says of the limit."""
        limit = (
            f"{self.letter} -> infinity"
            if dimension is None
            else f"mean increment at {self.letter}"
        )
        return {"dimension": dimension, "assumptions": f"{self.assumptions}, {limit}"}

    assumptions: ClassVar[str] = "one pass"

    def simulator(
        self, method: str, initial_state: Any, dimension: int, sizes: np.ndarray, **more: Any
    ) -> Simulator:
        """Runs at finite d."""
        self._need("step")
        return OwnChain(
            self.definition,
            self.numbers(dimension),
            self.algorithm.batch,
            self.states(initial_state),
        )

    def watched(
        self, criterion: Any, initial_state: Any, dimension: int | None
    ) -> tuple[Watch, Any]:
        """What `exit_time` watches, and its numbers."""
        if criterion == "overlap":
            raise checks.reject(
                "criterion",
                criterion,
                "a dynamics of one's own has no overlaps: give 'risk' or a function of the state",
            )
        if not callable(criterion):
            self._need("risk")
        return OwnWatch(self.definition, criterion), self.numbers(dimension)

    def observed(
        self, states: dict[str, np.ndarray], risk: np.ndarray, clock: Clock
    ) -> dict[str, np.ndarray]:
        """The variables of a result; numbers named error_* become its attributes."""
        return {**states, "risk": risk}

    def meanings(self) -> Mapping[str, tuple[Any, ...]]:
        """What each variable of a result is, and its axes after run and time."""
        return {**self.variables, "risk": ("population risk", ())}

    def coordinates(self) -> dict[str, Any]:
        """Coordinates of a result beside times and ends."""
        return {}

    def named(self, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Names along the axes of these variables, where they have any."""
        return {}


@dataclass(frozen=True)
class OwnField(Field):
    """The mean step of a user's dynamics."""

    definition: Dynamics
    flow: bool

    def __call__(self, each: PyTree, shared: Parameters, t: Scalar, state: dict[str, Any]) -> Any:
        lr = shared["algorithm"]["lr"]
        alpha = t if is_scheduled(lr) or self.flow else t * shared["batch"] / lr
        now = {**values_at(shared, alpha), "alpha": alpha}
        moved = self.definition.rate(now, state)
        return (
            jax.tree.map(lambda value: value * (now["algorithm"]["lr"] / now["batch"]), moved)
            if is_scheduled(lr)
            else moved
        )


@dataclass(frozen=True)
class OwnWatch(Watch):
    """The risk, or a user's function of the state."""

    definition: Dynamics
    criterion: Any

    def value(self, shared: Parameters, state: dict[str, Any]) -> Any:
        return jnp.asarray(
            self.criterion(state)
            if callable(self.criterion)
            else self.definition.risk({"alpha": 0.0, **shared}, state)
        )


@partial(jax.jit, static_argnums=0)
def _own_risks(
    definition: Dynamics, numbers: Parameters, states: dict[str, Any], alpha: Any
) -> Any:
    def one(alpha: Any, state: dict[str, Any]) -> Any:
        return definition.risk({**values_at(numbers, alpha), "alpha": alpha}, state)

    return jax.vmap(jax.vmap(one), (None, 0))(alpha, states)


def _replicates(solved: Solved) -> int:
    return len(next(iter(solved.states.values())))


def over_replicates(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.mean(axis=0) for name, value in states.items()}


def _looser(case: Case) -> Case:
    return replace(case, tolerance={name: 10 * value for name, value in case.tolerance.items()})


def solve(prepared: list[SolveRequest], size: int = 1) -> list[Solution | ValueError]:
    """Mean paths: what was prepared is run and finished, those of one program together; what fails is its error."""
    waiting: dict[int, Any] = dict(enumerate(prepared))
    done: dict[int, Any] = {}
    while waiting:
        again = {}
        for names in by_program(waiting, size):
            group = [waiting[name] for name in names]
            for name, one in zip(names, group[0].dynamics.paths(group, size), strict=True):
                (again if isinstance(one, SolveRequest) else done)[name] = one
        waiting = again
    return [done[place] for place in range(len(prepared))]


def risk_of_path(prepared: SolveRequest) -> np.ndarray:
    """The risk along one path, without its errors."""
    states = over_replicates(or_raise(prepared.dynamics._solved([prepared], 1)[0]).states)
    return prepared.dynamics.risks([prepared], [states], 1)[0].risk


def sampling_errors(
    states: dict[str, np.ndarray],
    risks: np.ndarray,
    worst: float,
    within: float,
    scales: dict[str, np.ndarray] | None = None,
) -> tuple[float, float]:
    """`error_quadrature` and `error_quadrature_risk` from replicates (first axis) of runs: the spread of their overlaps and risks.

    The first is relative to the largest value of a variable in the run, or to its scale (run,), where that is larger.
    `worst`: the error of pairs and grids, `within`: that of the risk's own sampling at given overlaps, relative to the risk.
    Both are NaN where all runs diverged before the first save point at which replicates differ.
    """
    root = np.sqrt(len(risks))
    share = worst
    for name, value in {**states, "risk": risks}.items():
        if value.size == 0:  # overlaps with no signals
            continue
        error, size = value.std(axis=0, ddof=1) / root, np.abs(value.mean(axis=0))
        # a run that diverged has no largest value
        finite = np.where(np.isfinite(size), size, -np.inf)
        largest = finite.max(axis=tuple(range(1, size.ndim)), keepdims=True)
        if scales is not None and name in scales:
            largest = np.maximum(largest, scales[name].reshape(largest.shape))
        share = max(
            share,
            largest_share(
                error, np.broadcast_to(np.where(np.isfinite(largest), largest, np.nan), error.shape)
            ),
        )
    mean = risks.mean(axis=0)
    of_risk = max(within, worst, largest_share(risks.std(axis=0, ddof=1) / root, mean))
    if share == 0 and not np.all(np.isfinite(mean)):
        return np.nan, np.nan
    return share, of_risk


UNRELIABLE = (
    0.1  # relative change of the risk with the tolerance above which a solution is not trusted
)


UNDETERMINED = 0.3  # relative standard error of sampled overlaps above which they are not trusted


def _undetermined(error: float) -> str:
    """Warning about overlaps whose sampled expectations differ between replicates of the points."""
    return (
        f"error_quadrature = {error:.2g}: the overlaps differ by this share between sets of sampling "
        "points. The mean of the squared gradient may be infinite, as with heavy-tailed draws; use "
        "sgd.simulate to see whether the run converges"
    )


def _unreliable(error: float) -> str:
    """Warning about a solution that depends on the tolerance of the integrator."""
    return (
        f"error_integrator = {error:.2g}: the risk changes by this share when the tolerance is ten times "
        "looser, so the solution is not reliable. Reduce rtol and atol, or end at an earlier time"
    )


def told_apart(
    states: dict[str, np.ndarray], tired: np.ndarray, t: np.ndarray
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The last good times of runs that diverged and of runs whose steps ran out (NaN for all others), and the warnings of both."""
    good = np.all(
        [np.isfinite(value).all(axis=tuple(range(2, value.ndim))) for value in states.values()],
        axis=0,
    )
    last = np.where(good.all(axis=1), np.nan, [t[row][-1] if row.any() else 0.0 for row in good])
    diverged_at, ran_out_at = np.where(tired, np.nan, last), np.where(tired, last, np.nan)
    texts = []
    if np.any(np.isfinite(diverged_at)):
        texts.append(
            f"the solution diverges after t = {np.nanmin(diverged_at):.4g} (coordinate diverged_at); a smaller lr may help"
        )
    if np.any(np.isfinite(ran_out_at)):
        texts.append(ran_out(ran_out_at))
    return {"diverged_at": diverged_at, "ran_out_at": ran_out_at}, texts
