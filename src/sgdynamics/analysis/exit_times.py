"""When a run leaves its plateau: from the ODE (an event), the SDE, the exact chain and direct runs (a test after every step), DMFT."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize

from sgdynamics.algorithms.fixed_data import FixedData, checked_fixed_data
from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate
from sgdynamics.analysis.early_stopping import dmft_exits
from sgdynamics.base import checks
from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import shared_meter, warn
from sgdynamics.base.resources import check_steps
from sgdynamics.base.user_functions import validate_function
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature
from sgdynamics.ode.drift import drift
from sgdynamics.ode.integrate import Case, IntegrationResult, Watch, raise_if_error, run_cases
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.results.clock import Clock, make_clock, plan_steps, time_of_steps
from sgdynamics.simulation.running import first_passage

METHODS = ("ode", "sde", "exact", "direct", "dmft")
TIMES_A_UNIT = 50.0  # the longest run unless the caller says: rates are of order 1/width in t
SDE_STEPS = 400  # steps of the SDE on the way out, at least
FLAT = 1e-6  # a rate of growth below this share of what noise takes counts as none


@dataclass(frozen=True)
class ExitTimes:
    """Exit times of runs, in t; NaN where a run had not left by ``max_time`` or had diverged, never averaged in silently.

    Attributes
    ----------
    times : ndarray
        One a run, in t = lr steps/d (on a fixed data set in its own t).
    threshold : float
        What had to be passed.
    criterion : str
        "risk", "overlap", or the name of a function.
    method : str
        How the runs were made.
    max_time : float
        How long they were followed, in t.
    dimension : int or None
        The dimension d; None for d -> infinity.
    lr : float or None
        The learning rate; None where it is not known.
    batch : float
        Samples in a step; of a fixed data set over d.
    diverged : ndarray of bool
        Which runs diverged.
    ran_out : ndarray of bool
        Which runs ran out of steps of the integrator before ``max_time``.
    errors : ndarray
        Standard errors of each time by DMFT; empty elsewhere.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> found = sgd.exit_time_of(path, 0.2)
    >>> found.left, found.runs, found.quantile(0.5) == found.mean
    (1, 1, True)
    """

    times: np.ndarray
    threshold: float
    criterion: str
    method: str
    max_time: float
    dimension: int | None = None
    lr: float | None = None
    batch: float = 1
    diverged: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    ran_out: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=bool)
    )  # of steps of the integrator, before max_time
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return len(self.times)

    @property
    def left(self) -> int:
        """How many runs have left."""
        return int(np.isfinite(self.times).sum())

    @property
    def mean(self) -> float:
        """The mean over the runs that left (all of them, unless ``left`` < ``runs``: then a warning was given)."""
        return float(np.nanmean(self.times)) if self.left else float("nan")

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for one run that brings none of its own."""
        if len(self.errors):
            return (
                float(np.sqrt(np.nansum(self.errors**2)) / self.left) if self.left else float("nan")
            )
        return (
            float(np.nanstd(self.times, ddof=1) / np.sqrt(self.left))
            if self.left > 1
            else float("nan")
        )

    def quantile(self, level: ArrayLike) -> Any:
        """Quantiles over all runs: one that did not leave counts as later than any that did, so a quantile among them is infinite.

        Parameters
        ----------
        level : float or array_like
            Between 0 and 1.

        Returns
        -------
        float or ndarray
            In t, one for each level.

        Raises
        ------
        ValueError
            If a level is not between 0 and 1.
        """
        level = np.asarray(level, dtype=np.float64)
        if np.any((level < 0) | (level > 1)):
            raise checks.reject("level", level.tolist(), "give numbers between 0 and 1")
        ordered = np.sort(np.where(np.isfinite(self.times), self.times, np.inf))
        position = level * (len(ordered) - 1)
        low, high = ordered[np.floor(position).astype(int)], ordered[np.ceil(position).astype(int)]
        share = position - np.floor(position)
        with np.errstate(invalid="ignore"):
            between = low + share * (high - low)
        found = np.where((share == 0) | (low == high), low, between)
        return float(found) if found.ndim == 0 else found

    @property
    def quantiles(self) -> dict[float, float]:
        """The 5, 25, 50, 75 and 95 per cent points."""
        return {level: float(self.quantile(level)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)}

    @property
    def alpha(self) -> np.ndarray:
        """The exit times in samples over d."""
        if not self.lr:
            raise ValueError(
                "without one learning rate (gradient flow, or a schedule) t does not tell the samples: alpha is not defined"
            )
        return self.times * self.batch / self.lr

    def __repr__(self) -> str:
        shown = f"{self.mean:.5g}" + (f" +- {self.standard_error:.2g}" if self.left > 1 else "")
        return f"ExitTimes({shown}, {self.left} of {self.runs} runs left by t = {self.max_time:g}, method={self.method!r})"


@dataclass(frozen=True)
class _See:
    """Notes the first step after which the watched number is below its level; where steps are long, the point between two of them."""

    watch: Watch
    between: bool

    def __call__(
        self, given: PyTree, seen: dict[str, Any], made: IntScalar, state: dict[str, Any]
    ) -> dict[str, Any]:
        value = self.watch.value(given, state)
        now = (seen["left"] < 0) & (value < seen["level"])
        when = jnp.asarray(made, jnp.float64)
        if self.between:
            when = when - (seen["level"] - value) / jnp.where(now, seen["value"] - value, 1.0)
        return {"left": jnp.where(now, when, seen["left"]), "value": value, "level": seen["level"]}


@partial(jax.jit, static_argnums=0)
def _values(watch: Watch, shared: Parameters, states: State) -> Any:
    return jax.vmap(partial(watch.value, shared))(states)


@float64
def exit_time(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD | FixedData,
    start: Start | SpikedStart | Any,
    *,
    threshold: float = 0.2,
    method: str = "ode",
    dimension: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    max_time: float | None = None,
    criterion: Any = "risk",
    progress: bool | None = None,
) -> ExitTimes:
    """The first time at which the excess risk is below (1 - threshold) of its start (Escaping mediocrity, (21)).

    Parameters
    ----------
    problem : Problem, SpikedTensor or Dynamics
        What is learned.
    algorithm : OnePassSGD, or one on a fixed data set
        How.
    start : Start, SpikedStart or dict
        Where; a start of one run serves any number of runs.
    threshold : float, default 0.2
        The share of the excess risk to lose, or the overlap to reach.
    method : str, default "ode"
        "ode" (d -> infinity, or with ``dimension`` the mean increment at that d), "sde", "exact" (the chain) or "direct". The time is found
        inside the run: by an event in the ODE, by a test after every step elsewhere. All runs stop once they have left. On a fixed data
        set "direct", or "dmft": the crossing of the trajectory of ``solve_dmft`` (d -> infinity), with its error. The crossing is on the
        straight line between two steps, where a run leaves at a step: in many dimensions at the end of that one, up to ``lr`` later (with
        ``EpochSGD``, whose steps are 1/d apart, there is no difference).
    dimension : int, optional
        The dimension d; needed except for the ODE and DMFT.
    runs : int, optional
        How many runs; unless given as many as the start has.
    seed : int, default 0
        Of the random numbers.
    max_time : float, optional
        How long runs are followed, in t; 50 times the width unless given.
    criterion : str or callable, default "risk"
        "overlap": the first time at which the largest entry of M, in absolute value, reaches ``threshold`` (section 4.1, where a trained
        head moves the risk before anything is learned). A JAX function of the state, a dictionary of "M", "Q", "a" of one run, stands in
        place of the risk.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    ExitTimes
        ``.times``, ``.mean``, ``.standard_error``, ``.quantile(...)``.

    Raises
    ------
    ValueError
        If an argument is refused, or this problem is not followed by this method.

    Warns
    -----
    UserWarning
        Where runs did not leave by ``max_time``, or diverged.

    Notes
    -----
    Problems whose loss is not squared are judged by the risk.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> round(sgd.exit_time(problem, sgd.OnePassSGD(lr=0.1), begin, threshold=0.5).mean, 3)
    0.795
    """
    asked = prepare_exits(**locals())
    if method == "dmft":
        setting: Any = (asked.threshold, criterion, asked.end, asked.seed, asked.progress)
        times, errors, diverged = dmft_exits(
            asked.dynamics.problem, asked.dynamics.algorithm, asked.begin, *setting
        )
        return _answer(asked, times, diverged, np.zeros(len(times), dtype=bool), errors)
    warn_if_no_growth(asked)
    if method != "ode" and not asked.away.all():
        return _answer(asked, *_simulated_exits(asked), np.zeros(asked.begin.runs, dtype=bool))
    if asked.away.all():
        return finish_exits(asked, None)
    with shared_meter("exit times, ode", 1.0, asked.progress):
        solution = raise_if_error(run_cases([asked.case()])[0])
    return finish_exits(asked, solution)


@dataclass(frozen=True, eq=False)
class Asked:
    """The question of exit times, checked: what is watched, from where, and until when."""

    dynamics: Any
    begin: Any
    dimension: Any
    sizes: Any
    watch: Watch
    shared: Any
    seen: dict[str, np.ndarray]
    threshold: float
    criterion: Any
    method: str
    end: float
    seed: int
    progress: bool | None

    @property
    def away(self) -> np.ndarray:
        """Runs that have left at once."""
        return self.seen["left"] >= 0

    def case(self, chosen: Any = None) -> Case:
        """Those that have not (or those chosen) as one solve that stops where they leave; of sampled expectations one replicate."""
        case = self.dynamics.ode_request(
            self.begin, Clock(np.array([self.end]), None, None), self.dimension
        ).case
        chosen = ~self.away if chosen is None else chosen
        states = {name: value[chosen] for name, value in case.states.items()}
        each = jax.tree.map(lambda leaf: leaf[:1], case.each)
        shared = {**case.shared, **self.shared}
        return replace(
            case,
            each=each,
            shared=shared,
            states=states,
            watch=self.watch,
            levels=self.seen["level"][chosen],
        )


def prepare_exits(problem: Any, algorithm: Any, start: Any, **given: PyTree) -> Asked:
    """The checks of exit_time, whose defaults hold for what is not given."""
    checks.require_outside_jit("exit_time")
    bound = inspect.signature(exit_time).bind(problem, algorithm, start, **given)
    bound.apply_defaults()
    _, _, _, threshold, method, dimension, runs, seed, max_time, criterion, progress = (
        bound.arguments.values()
    )
    threshold = _threshold(threshold)
    checks.choice("method", method, METHODS)
    questions = {"ode": "exit_time by the ODE", "sde": "solve_sde", "dmft": "exit_time by DMFT"}
    dynamics = dynamics_of(questions.get(method, "exit_time by runs"), problem, algorithm)
    algorithm, on_data = dynamics.algorithm, dynamics.has_data
    if method == "dmft":
        checked_fixed_data(algorithm)
    progress = checks.flag("progress", progress, optional=True)
    if not on_data:
        constant_rate(algorithm, "exit times")
    elif method == "exact":
        raise checks.reject(
            "method",
            method,
            'on a fixed data set first passages are watched in direct runs: give "direct", or "dmft"',
        )
    if method == "dmft" and dimension is not None:
        raise checks.reject("dimension", dimension, "DMFT is the limit d -> infinity: leave it out")
    if not callable(criterion):
        checks.choice("criterion", criterion, ("risk", "overlap"))
    seed = checks.integer("seed", seed, 0)
    end = (
        TIMES_A_UNIT * getattr(problem, "width", 1)
        if max_time is None
        else checks.number("max_time", max_time, above=0.0)
    )
    if (
        method not in ("ode", "dmft")
        and dimension is None
        and getattr(problem, "spectrum", None) is None
    ):
        raise checks.reject(
            "dimension", dimension, f'method="{method}" runs at a finite d: give dimension=d'
        )
    if method != "ode" and not on_data and algorithm.flow:
        raise checks.reject(
            "lr",
            algorithm.lr,
            'gradient flow makes no steps: use method="ode", or give a learning rate above 0',
        )
    d, sizes = (
        (None, None)
        if dimension is None and method in ("ode", "dmft")
        else dynamics.resolve_dimension(dimension, allow_small_blocks=True)
    )
    if not on_data:
        spectrum = getattr(problem, "spectrum", None)
        counted = int(spectrum.multiplicities.sum()) if d is None and spectrum is not None else d
        dynamics.check_memory(
            counted, end * algorithm.batch / algorithm.lr if algorithm.lr else 0.0
        )
    if on_data and method == "direct":
        checks.choice("method", method, dynamics.methods)
        dynamics = dynamics.resolve_steps(d, None)
        when = make_clock(dynamics.algorithm, times=[end], dimension=d, whole_steps=True)
        assert when.step is not None
        check_steps(
            "max_time", end, float(when.step[-1]), "give less: runs stop once they have left"
        )
        dynamics = dynamics.validate_clock(when)
    elif method in ("exact", "direct"):
        checks.choice("method", method, dynamics.methods)
        check_steps(
            "max_time",
            end,
            end * float(d or 1) / algorithm.lr,
            "give less: runs stop once they have left",
        )
    begin = dynamics.initial_state(start, runs)
    states = dynamics.state_arrays(begin)
    if callable(criterion):
        first_state = {
            name: np.asarray(value[0]) for name, value in dynamics.public_states(states).items()
        }
        call = "one state {" + ", ".join(f'"{name}"' for name in first_state) + "}"
        validate_function(
            "criterion", criterion, (first_state,), takes="state", call=call, differentiated=False
        )
    if criterion == "risk" and not getattr(
        getattr(getattr(problem, "structure", None), "loss", None), "has_risk", True
    ):
        raise checks.reject(
            "criterion",
            criterion,
            "this rule has no risk: give Rule(..., risk=...), or a function of the state",
        )
    # label noise of a squared loss is taken off; any other number that changes would change the risk by itself
    if (
        criterion == "risk"
        and dynamics.is_scheduled
        and not getattr(getattr(problem, "structure", None), "has_excess", False)
    ):
        raise checks.reject(
            "criterion",
            criterion,
            "the risk itself changes with alpha here: give a function of the state",
        )
    watch, shared = dynamics.exit_watch(criterion, begin, d)
    first = np.asarray(_values(watch, shared, states))
    if criterion == "overlap":
        levels = np.full(begin.runs, -threshold)
    else:
        if not np.all(first > 0):
            raise ValueError(
                f"start: the {'criterion' if callable(criterion) else 'excess risk'} is {first.min():.3g} there, so that a relative fall "
                "has no meaning: start from a state where it is positive"
            )
        levels = (1 - threshold) * first
    seen = {"left": np.where(first < levels, 0.0, -1.0), "value": first, "level": levels}
    return Asked(
        dynamics,
        begin,
        d,
        sizes,
        watch,
        shared,
        seen,
        threshold,
        criterion,
        method,
        end,
        seed,
        progress,
    )


def finish_exits(asked: Asked, found: IntegrationResult | None) -> ExitTimes:
    """Exit times by the ODE, from what ran; nothing did where all had left at once."""
    times, (diverged, tired) = (
        np.where(asked.away, 0.0, np.nan),
        np.zeros((2, len(asked.away)), dtype=bool),
    )
    if found is not None:
        times[~asked.away], diverged[~asked.away], tired[~asked.away] = (
            found.exits[0],
            found.blown[0],
            found.tired,
        )
    return _answer(asked, times, diverged, tired)


def _answer(
    asked: Asked,
    times: np.ndarray,
    diverged: np.ndarray,
    tired: np.ndarray,
    errors: np.ndarray | None = None,
) -> ExitTimes:
    algorithm, criterion = asked.dynamics.algorithm, asked.criterion
    lr, batch = algorithm.lr, getattr(algorithm, "batch", 1)
    if asked.dynamics.has_data:
        lr, batch = (
            None if algorithm.scheduled else float(lr),
            algorithm.fraction * algorithm.samples_per_dimension,
        )
        if algorithm.order and asked.method == "dmft":  # not cut into steps
            batch = getattr(algorithm, "batch", 1)
    name = criterion if isinstance(criterion, str) else getattr(criterion, "__name__", "function")
    setting = (asked.threshold, name, asked.method, asked.end, asked.dimension, lr, batch)
    result = ExitTimes(times, *setting, diverged, tired, np.zeros(0) if errors is None else errors)
    _report(result)
    return result


def _threshold(value: object) -> float:
    threshold = checks.number("threshold", value)
    if not 0 < threshold < 1:
        raise checks.reject(
            "threshold",
            value,
            "give a number between 0 and 1 (the relative fall of the risk that counts as leaving)",
        )
    return threshold


def _report(result: ExitTimes) -> None:
    if result.left == result.runs:
        return
    blown = int(result.diverged.sum())
    tired = int(result.ran_out.sum())
    late = result.runs - result.left - blown - tired
    parts = [f"{late} had not left by max_time = {result.max_time:g}"] if late else []
    parts += [f"{blown} diverged"] if blown else []
    parts += [f"{tired} ran out of the integrator's steps"] if tired else []
    warn(
        f"exit_time: of {result.runs} runs {' and '.join(parts)}; they are NaN in .times, and .mean is over the {result.left} that left"
    )


def _simulated_exits(asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    dynamics, d, begin, end = asked.dynamics, asked.dimension, asked.begin, asked.end
    algorithm, on_data = dynamics.algorithm, dynamics.has_data
    length = 1.0 if on_data else algorithm.lr / d
    if asked.method == "sde":
        # the noiseless path shows how long steps may be; if it never leaves, steps are a small share of max_time
        noiseless = replace(asked, dimension=None)
        reach = raise_if_error(run_cases([noiseless.case(np.arange(begin.runs) == 0)])[0])
        scale = end if np.isnan(reach.exits[0, 0]) else float(min(end, 2 * reach.exits[0, 0]))
        length = min(
            dynamics.sde_step_length(begin, d, asked.sizes, scale, True)[0], scale / SDE_STEPS
        )
        simulator = dynamics.sde_paths(begin, d, asked.sizes, True)
        simulator.set_steps(*plan_steps(np.array([end]), length))
        length = float(simulator.lengths[0])
    else:
        simulator = dynamics.simulator(asked.method, begin, d, asked.sizes, seed=asked.seed)
    last = _steps_on_data(algorithm, end) if on_data else int(np.ceil(end / length - 1e-9))
    see = _See(asked.watch, between=asked.method == "sde")
    label = f"exit times, {asked.method}, {dynamics.dimension_symbol} = {d}"
    left, diverged = first_passage(
        simulator, asked.seen, see, asked.shared, last, asked.seed, label, asked.progress
    )
    return (
        np.where(np.isnan(left), np.nan, _time_after(algorithm, left)) if on_data else left * length
    ), diverged


def _steps_on_data(algorithm: FixedData, end: float) -> int:
    """The first step after which t is `end` or more; of a learning rate that is tabled, the last in the table."""
    if isinstance(algorithm.lr, Schedule):
        table = np.asarray(algorithm.lr.parameters["times"])
        return int(min(np.searchsorted(table, end), len(table) - 2))
    return int(np.ceil(end / algorithm.lr - 1e-9))


def _time_after(algorithm: FixedData, steps: np.ndarray) -> np.ndarray:
    """t after so many steps on a fixed data set (NaN: none)."""
    return time_of_steps(algorithm, np.nan_to_num(steps).astype(np.int64), 1)


def exit_time_of(trajectory: xr.Dataset, threshold: float, *, criterion: str = "risk") -> ExitTimes:
    """Exit times of a trajectory at hand, interpolated linearly between its save points: as fine as those are.

    Parameters
    ----------
    trajectory : xarray.Dataset
        What a solver returned.
    threshold : float
        The share of the excess risk (the risk, where there is none) to lose from the first save point on, or the overlap to reach.
    criterion : str, default "risk"
        "risk", or "overlap": the largest entry of M, in absolute value, reaches ``threshold``.

    Returns
    -------
    ExitTimes
        One time a run, in t.

    Raises
    ------
    ValueError
        If the trajectory does not have what is asked for.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> sgd.exit_time_of(path, 0.2).times.round(2).tolist()
    [0.7]
    """
    threshold = _threshold(threshold)
    checks.choice("criterion", criterion, ("risk", "overlap"))
    checks.result(
        "trajectory",
        trajectory,
        "t",
        "run",
        "diverged_at",
        "risk",
        fix="give a result of solve_ode, solve_sde or simulate",
    )
    t = np.asarray(trajectory["t"])
    if criterion == "overlap":
        # of a spiked tensor the one overlap is m
        name = "m" if "r2" in trajectory else "M"
        checks.result("trajectory", trajectory, name)
        overlaps = np.abs(np.asarray(trajectory[name]))
        values = -overlaps.reshape(*overlaps.shape[:2], -1).max(axis=2)
        levels = np.full(len(values), -threshold)
    else:
        values = np.asarray(trajectory["excess_risk" if "excess_risk" in trajectory else "risk"])
        levels = (1 - threshold) * values[:, 0]
    times = np.full(len(values), np.nan)
    for run, (row, level) in enumerate(zip(values, levels, strict=True)):
        below = np.flatnonzero(row < level)
        if len(below) == 0:
            continue
        at = below[0]
        if at == 0:
            times[run] = t[0]
            continue
        share = (row[at - 1] - level) / (row[at - 1] - row[at])
        times[run] = t[at - 1] + share * (t[at] - t[at - 1])
    diverged = np.isfinite(np.asarray(trajectory["diverged_at"])) & np.isnan(times)
    dimension = trajectory.attrs.get("dimension")
    method = str(trajectory.attrs.get("method", "trajectory"))
    result = ExitTimes(
        times, threshold, criterion, method, float(t[-1]), dimension, diverged=diverged
    )
    _report(result)
    return result


def warn_if_no_growth(asked: Asked) -> None:
    """On the sphere the noise of SGD shrinks overlaps: say so where lr is too large for any to grow.

    Where M = 0 is a fixed point of the drift (even activations), the growth rates on the plateau are the eigenvalues of d(dM/dt)/dM
    at M = 0, which is affine in lr. They are needed at the start's Q, and at Q = 1 1^T, where the units of a network that learns end up.
    """
    problem, algorithm, begin = asked.dynamics.problem, asked.dynamics.algorithm, asked.begin
    if (
        "fields" not in problem.kinds
        or asked.dynamics.has_data
        or not problem.structure.constraint.fixes_norms
        or algorithm.flow
        or algorithm.law is not None
    ):
        return
    if problem.structure.blocks > 1 or problem.structure.trained:
        return
    p, k = problem.width, problem.signals
    places = [("at this start", begin.Q_blocks[0])]
    if p > 1:
        places.append(
            ("where all units agree, as they do once they learn", np.ones_like(begin.Q_blocks[0]))
        )
    for where, Q in places:
        still, slope, bend = _plateau(problem, algorithm.batch, Q, begin.a[0])
        if not still:
            return
        if where != "at this start":
            # equal rows have equal overlaps: only these may grow
            slope, bend = (
                matrix.reshape(p, k, p, k).sum(axis=2).mean(axis=0) for matrix in (slope, bend)
            )

        now = _growth(algorithm.lr, slope, bend)
        if now > 0:
            continue
        bound, flow = 0.0, _growth(0.0, slope, bend)
        if abs(flow) <= FLAT * np.abs(bend).max():
            return  # nothing grows to first order, but what is of higher order may
        if flow > 0:
            bound = float(
                np.asarray(optimize.brentq(_growth, 0.0, algorithm.lr, args=(slope, bend)))
            )
        warn(
            f"lr = {algorithm.lr:g}: no overlap with the signals grows {where} (largest rate {now:.3g} per unit of t), so SGD does not "
            + (f"learn; take lr below {bound:.4g}" if bound > 0 else "learn, at any learning rate")
        )
        return


def _growth(lr: float, slope: np.ndarray, bend: np.ndarray) -> float:
    """The largest growth rate at this learning rate."""
    return float(np.linalg.eigvals(slope + lr * bend).real.max())


def _plateau(
    problem: Problem, batch: int, Q: np.ndarray, head: np.ndarray
) -> tuple[bool, np.ndarray, np.ndarray]:
    """Whether dM/dt = 0 at M = 0, and the matrices A, B of d(dM/dt)/dM = A + lr B there."""
    quadrature = choose_quadrature(problem, Q[None], MARGIN)
    nodes = {
        name: value[0]
        for name, value in expectation_of(problem.structure).nodes(quadrature, flow=False).items()
    }
    size = problem.width * problem.signals
    rates, slopes = _plateau_slopes(
        problem.structure, quadrature, batch, nodes, problem.parameters, Q, head
    )
    slopes = np.asarray(slopes).reshape(2, size, size)
    scale = np.abs(slopes).max()
    return bool(np.abs(np.asarray(rates)).max() <= 1e-6 * scale), slopes[0], slopes[1] - slopes[0]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _plateau_slopes(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    nodes: Nodes,
    parameters: Parameters,
    Q: Float[Numeric, "blocks p p"],
    head: Float[Numeric, " p"],
) -> tuple[Any, Any]:
    def rate(M: Float[Numeric, "blocks p K"], lr: Scalar) -> Any:
        algorithm = {"lr": lr, "head_rate": 1.0}
        return drift(
            structure,
            quadrature,
            nodes,
            parameters,
            algorithm,
            {"M": M, "Q": Q, "a": head},
            batch=batch,
        )["M"]

    zero = jnp.zeros((structure.blocks, structure.width, structure.signals))
    both = jnp.array([0.0, 1.0])
    return jax.vmap(partial(rate, zero))(both), jax.vmap(lambda lr: jax.jacfwd(rate)(zero, lr))(
        both
    )
