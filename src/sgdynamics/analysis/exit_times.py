"""When a run leaves its plateau: from the ODE (an event), the SDE, the exact chain and direct simulation (a test after every step)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy import optimize

from sgdynamics import checks
from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm, constant_rate
from sgdynamics.clock import plan_steps
from sgdynamics.functions import checked_function
from sgdynamics.gaussian.choice import expectation_of
from sgdynamics.gaussian.expectation import Rule
from sgdynamics.gaussian.risk import MARGIN, risk_at, rule_for
from sgdynamics.limits import integration
from sgdynamics.limits.drift import drift, finite_numbers
from sgdynamics.limits.ode import tolerances
from sgdynamics.limits.sde import SdePaths, refuse_without_noise, step_length
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedTensor
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, checked_kind, checked_start
from sgdynamics.reach import check_steps
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain, check_room
from sgdynamics.simulation.running import first_passage

METHODS = ("ode", "sde", "exact", "direct")
TIMES_A_UNIT = 50.0  # the longest run unless the caller says: rates are of order 1/width in t
SDE_STEPS = 400  # steps of the SDE on the way out, at least


@dataclass(frozen=True)
class ExitTimes:
    """Exit times of runs, in t; NaN where a run had not left by `max_time` or had diverged, never averaged in silently."""

    times: np.ndarray
    threshold: float
    criterion: str
    method: str
    max_time: float
    dimension: int | None = None
    lr: float | None = None
    batch: int = 1
    diverged: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    ran_out: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))  # of steps of the integrator, before max_time

    @property
    def runs(self) -> int:
        return len(self.times)

    @property
    def left(self) -> int:
        """How many runs have left."""
        return int(np.isfinite(self.times).sum())

    @property
    def mean(self) -> float:
        """The mean over the runs that left (all of them, unless `left` < `runs`: then a warning was given)."""
        return float(np.nanmean(self.times)) if self.left else float("nan")

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for one run."""
        return float(np.nanstd(self.times, ddof=1) / np.sqrt(self.left)) if self.left > 1 else float("nan")

    def quantile(self, level: Any) -> Any:
        """Quantiles over all runs: one that did not leave counts as later than any that did, so a quantile among them is infinite."""
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
            raise ValueError("gradient flow (lr = 0) uses no samples: alpha is not defined")
        return self.times * self.batch / self.lr

    def __repr__(self) -> str:
        shown = f"{self.mean:.5g}" + (f" +- {self.standard_error:.2g}" if self.left > 1 else "")
        return f"ExitTimes({shown}, {self.left} of {self.runs} runs left by t = {self.max_time:g}, method={self.method!r})"


@dataclass(frozen=True)
class _Watch:
    """What is watched, as a number that falls below a level when a run leaves. Holds no numbers, so that none is compiled in."""

    structure: Structure
    rule: Rule
    criterion: str | Callable[[dict[str, Any]], Any]

    def value(self, parameters: Any, nodes: Any, overlaps: dict[str, Any]) -> Any:
        structure = self.structure
        if self.criterion == "overlap":
            return -jnp.max(jnp.abs(jnp.sum(overlaps["M"], axis=0)))
        if callable(self.criterion):
            return jnp.asarray(self.criterion(public_state(overlaps)), dtype=overlaps["a"].dtype)
        value = risk_at(structure, self.rule, nodes, parameters, overlaps)
        return value - 0.5 * parameters["noise"] if structure.has_excess else value


@dataclass(frozen=True)
class _See:
    """Notes the first step after which the watched number is below its level; where steps are long, the point between two of them."""

    watch: _Watch
    between: bool

    def __call__(self, given: Any, seen: dict[str, Any], made: Any, overlaps: dict[str, Any]) -> dict[str, Any]:
        parameters, nodes = given
        value = self.watch.value(parameters, nodes, overlaps)
        now = (seen["left"] < 0) & (value < seen["level"])
        when = jnp.asarray(made, jnp.float64)
        if self.between:
            when = when - (seen["level"] - value) / jnp.where(now, seen["value"] - value, 1.0)
        return {"left": jnp.where(now, when, seen["left"]), "value": value, "level": seen["level"]}


def public_state(overlaps: dict[str, Any]) -> dict[str, Any]:
    """M (units x signals), Q (units x units) and a of the full rows: what a user's criterion sees."""
    return {"M": jnp.sum(overlaps["M"], axis=0), "Q": jnp.sum(overlaps["Q"], axis=0), "a": overlaps["a"]}


@partial(jax.jit, static_argnums=0)
def _values(watch: _Watch, parameters: Any, nodes: Any, states: Any) -> Any:
    return jax.vmap(partial(watch.value, parameters, nodes))(states)


@float64
def exit_time(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
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

    method: "ode" (d -> infinity, or with `dimension` the mean increment at that d), "sde", "exact" (the chain), "direct".
    The time is found inside the run: by an event in the ODE, by a test after every step elsewhere. All runs stop once they have left.
    criterion="overlap": the first time at which the largest |M| reaches `threshold` (section 4.1, where a trained head moves the risk
    before anything is learned). A function of the state {"M", "Q", "a"} (JAX arrays of one run) stands in place of the risk.
    Problems whose loss is not squared are judged by the risk. `max_time` (in t) is 50 times the width unless given.
    """
    checks.outside_jit("exit_time")
    if checked_kind(problem) == SpikedTensor.kind:
        raise checks.reject(
            "problem",
            problem,
            "exit times are found inside a run for problems that are stated by fields: for a spiked tensor, save a trajectory (solve_ode, "
            "solve_sde, simulate) and take sgd.exit_time_of(trajectory, threshold)",
        )
    threshold = _threshold(threshold)
    checks.choice("method", method, METHODS)
    progress = checks.flag("progress", progress, unsaid=True)
    checked_algorithm(algorithm, any_update=method in ("exact", "direct"))
    constant_rate(algorithm, "exit times")
    if not callable(criterion):
        checks.choice("criterion", criterion, ("risk", "overlap"))
    seed = checks.whole("seed", seed, 0)
    end = TIMES_A_UNIT * problem.width if max_time is None else checks.number("max_time", max_time, above=0.0)
    if method != "ode" and dimension is None:
        raise checks.reject("dimension", dimension, f'method="{method}" runs at a finite d: give dimension=d')
    if method != "ode" and algorithm.lr == 0.0:
        raise checks.reject("lr", algorithm.lr, 'gradient flow makes no steps: use method="ode", or give a learning rate above 0')
    d, sizes = (None, None) if dimension is None else check_dimension(problem, dimension)
    if method == "sde":
        refuse_without_noise(problem)
    elif d is not None and method != "ode":
        check_steps("max_time", end, end * d / algorithm.lr, "give less: runs stop once they have left")
    if sizes is not None and method == "exact":
        check_room(problem, algorithm, sizes)
    begin = broadcast_runs(checked_start(problem, start), runs)
    watch = _Watch(problem.structure, rule_for(problem, begin.Q_blocks, MARGIN), criterion)
    if callable(criterion):
        _check_criterion(problem, criterion)
    nodes = {name: value[0] for name, value in expectation_of(problem.structure).risk_nodes(watch.rule).items()}
    states = {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a}
    first = np.asarray(_values(watch, problem.parameters, nodes, states))
    if criterion == "overlap":
        levels = np.full(begin.runs, -threshold)
    else:
        if not np.all(first > 0):
            raise ValueError(
                f"start: the {'criterion' if callable(criterion) else 'excess risk'} is {first.min():.3g} there, so that a relative fall "
                "has no meaning: start from a state where it is positive"
            )
        levels = (1 - threshold) * first
    if algorithm.update is None:
        _warn_if_no_growth(problem, algorithm, begin)
    seen = {"left": np.where(first < levels, 0.0, -1.0), "value": first, "level": levels}
    away = seen["left"] >= 0
    diverged, tired = np.zeros(begin.runs, dtype=bool), np.zeros(begin.runs, dtype=bool)
    times = np.where(away, 0.0, np.nan)
    if not away.all():
        if method == "ode":
            times[~away], diverged[~away], tired[~away] = _ode_exits(problem, algorithm, begin, d, watch, nodes, levels, end, ~away)
        else:
            assert d is not None
            times, diverged = _simulated_exits(problem, algorithm, begin, method, d, sizes, watch, nodes, seen, end, seed, progress)
    name = criterion if isinstance(criterion, str) else getattr(criterion, "__name__", "function")
    result = ExitTimes(times, threshold, name, method, end, d, algorithm.lr, algorithm.batch, diverged, tired)
    _report(result, stacklevel=4)
    return result


def _threshold(value: Any) -> float:
    threshold = checks.number("threshold", value)
    if not 0 < threshold < 1:
        raise checks.reject("threshold", value, "give a number between 0 and 1 (the relative fall of the risk that counts as leaving)")
    return threshold


def _check_criterion(problem: Problem, criterion: Callable[..., Any]) -> None:
    p, k = problem.width, problem.signals
    state = {"M": np.zeros((p, k)), "Q": np.eye(p), "a": np.ones(p)}
    call = 'one state {"M", "Q", "a"}'
    checked_function("criterion", criterion, (state,), takes="state", call=call, differentiated=False)


def _report(result: ExitTimes, stacklevel: int) -> None:
    if result.left == result.runs:
        return
    blown = int(result.diverged.sum())
    tired = int(result.ran_out.sum())
    late = result.runs - result.left - blown - tired
    parts = [f"{late} had not left by max_time = {result.max_time:g}"] if late else []
    parts += [f"{blown} diverged"] if blown else []
    parts += [f"{tired} ran out of the integrator's steps"] if tired else []
    warnings.warn(
        f"exit_time: of {result.runs} runs {' and '.join(parts)}; they are NaN in .times, and .mean is over the {result.left} that left",
        stacklevel=stacklevel,
    )


def _simulated_exits(
    problem: Problem,
    algorithm: OnePassSGD,
    begin: Start,
    method: str,
    d: int,
    sizes: Any,
    watch: _Watch,
    nodes: Any,
    seen: dict[str, np.ndarray],
    end: float,
    seed: int,
    progress: bool | None,
) -> tuple[np.ndarray, np.ndarray]:
    length = algorithm.lr / d
    if method == "exact":
        simulator: ExactChain | DirectSGD | SdePaths = ExactChain(problem, algorithm, begin, d, sizes)
    elif method == "direct":
        simulator = DirectSGD(problem, algorithm, begin, d, sizes)
    else:
        # the noiseless path shows how long steps may be; if it never leaves, steps are a small share of max_time
        reach, *_ = _ode_exits(problem, algorithm, begin, None, watch, nodes, seen["level"], end, np.arange(begin.runs) == 0)
        scale = end if np.isnan(reach[0]) else float(min(end, 2 * reach[0]))
        length = min(step_length(problem, algorithm, begin, d, sizes, scale)[0], scale / SDE_STEPS)
        simulator = SdePaths(problem, algorithm, begin, d, sizes, True)
        simulator.set_steps(*plan_steps(np.array([end]), length))
        length = float(simulator.lengths[0])
    last = int(np.ceil(end / length - 1e-9))
    see, given = _See(watch, between=method == "sde"), (problem.parameters, nodes)
    left, diverged = first_passage(simulator, seen, see, given, last, seed, f"exit times, {method}, d = {d}", progress)
    return left * length, diverged


def _ode_exits(
    problem: Problem,
    algorithm: OnePassSGD,
    begin: Start,
    d: int | None,
    watch: _Watch,
    nodes: Any,
    levels: np.ndarray,
    end: float,
    chosen: np.ndarray,
) -> tuple[np.ndarray, ...]:
    flow = algorithm.lr == 0.0
    finite, tolerance = setting_of(problem, algorithm, begin, d, watch.rule)
    drift_nodes = {name: value[0] for name, value in expectation_of(problem.structure).nodes(watch.rule, flow).items()}
    states = {"M": begin.M_blocks[chosen], "Q": begin.Q_blocks[chosen], "a": begin.a[chosen]}
    numbers = (drift_nodes, nodes, problem.parameters, algorithm.parameters, finite, states, levels[chosen], np.float64(end), tolerance)
    found = _ode_exit(watch, algorithm.batch, flow, *numbers)
    return finished_exits(watch, algorithm.batch, flow, numbers, found)


def setting_of(problem: Problem, algorithm: OnePassSGD, begin: Start, d: int | None, rule: Rule) -> tuple[Any, dict[str, Any]]:
    """What the drift needs to know of a finite d, with one replicate of its points, and the tolerance, by the rules of `solve_ode`."""
    finite = None if d is None or algorithm.flow else finite_numbers(problem, d, algorithm.batch)
    tolerance = tolerances(problem, algorithm, begin, rule, finite, None, None)
    if finite is not None and "points" in finite:
        finite["points"] = {name: value[0] for name, value in finite["points"].items()}
    return finite, tolerance


def finished_exits(watch: _Watch, batch: int, flow: bool, numbers: tuple[Any, ...], found: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Exit times, who diverged and who ran out of steps: what the explicit method does not finish goes on by LSODA."""
    drift_nodes, nodes, parameters, algorithm, finite, _, levels, end, tolerance = numbers
    times, left, full = (np.array(part) for part in found[:3])
    tired = np.zeros_like(full)
    value = jax.jit(partial(watch.value, parameters, nodes))
    for run in np.flatnonzero(full):
        long = integration.LongRun(watch.structure, watch.rule, batch, flow, drift_nodes, parameters, algorithm, finite)
        state = {name: np.asarray(part[run]) for name, part in found[3].items()}
        level = float(levels[run])
        until = long.follow(
            state, float(times[run]), np.array([float(end)]), tolerance, 1 / integration.MARGIN, lambda y, level=level: value(y) - level
        )
        times[run], left[run], tired[run] = until.time, until.ended == "event", until.ended == "tired"
    # stopped before the end without leaving: overlaps beyond every bound
    blown = ~left & ~tired & (times < end * (1 - 1e-12))
    return np.where(left, times, np.nan), blown, tired


@partial(jax.jit, static_argnums=(0, 1, 2))
def _ode_exit(
    watch: _Watch,
    batch: int,
    flow: bool,
    drift_nodes: Any,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    finite: Any,
    states: Any,
    levels: Any,
    end: Any,
    tolerance: Any,
) -> tuple[Any, Any, Any, Any]:
    """When each run stopped, whether it had left, whether its steps had run out, and its state there."""

    def one(state: Any, level: Any) -> tuple[Any, Any, Any, Any]:
        found = integration.integrate(
            watch.structure,
            watch.rule,
            batch,
            flow,
            False,
            drift_nodes,
            parameters,
            algorithm,
            finite,
            state,
            jnp.array([end]),
            rtol=tolerance["rtol"],
            atol=tolerance["atol"],
            watch=lambda y: watch.value(parameters, nodes, y) - level,
        )
        states, times = integration.parts(found)
        last: Any = jax.tree.map(lambda leaf: leaf[0], states[1])
        stopped: Any = found.event_mask
        left = stopped & (jnp.sum(jnp.abs(last["Q"])) < integration.LARGEST / 2)
        return times[1][0], left, found.result == diffrax.RESULTS.max_steps_reached, last

    return jax.vmap(one)(states, levels)


def exit_time_of(trajectory: xr.Dataset, threshold: float, *, criterion: str = "risk") -> ExitTimes:
    """Exit times of a trajectory at hand, interpolated linearly between its save points: as fine as those are.

    The first time at which the excess risk (the risk, where there is none) is below (1 - threshold) of its value at the first save
    point, or with criterion="overlap" at which the largest |M| reaches `threshold`.
    """
    threshold = _threshold(threshold)
    checks.choice("criterion", criterion, ("risk", "overlap"))
    checks.result("trajectory", trajectory, "t", "run", "diverged_at", "risk", fix="give a result of solve_ode, solve_sde or simulate")
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
    result = ExitTimes(times, threshold, criterion, method, float(t[-1]), dimension, diverged=diverged)
    _report(result, stacklevel=3)
    return result


def _warn_if_no_growth(problem: Problem, algorithm: OnePassSGD, begin: Start) -> None:
    """On the sphere the noise of SGD shrinks overlaps: say so where lr is too large for any to grow.

    Where M = 0 is a fixed point of the drift (even activations), the growth rates on the plateau are the eigenvalues of d(dM/dt)/dM
    at M = 0, which is affine in lr. They are needed at the start's Q, and at Q = 1 1^T, where the units of a network that learns end up.
    """
    if not problem.structure.sphere or algorithm.lr == 0.0 or problem.structure.blocks > 1 or problem.structure.trained:
        return
    p, k = problem.width, problem.signals
    places = [("at this start", begin.Q_blocks[0])]
    if p > 1:
        places.append(("where all units agree, as they do once they learn", np.ones_like(begin.Q_blocks[0])))
    for where, Q in places:
        still, slope, bend = _plateau(problem, algorithm.batch, Q, begin.a[0])
        if not still:
            return
        if where != "at this start":
            # equal rows have equal overlaps: only these may grow
            slope, bend = (matrix.reshape(p, k, p, k).sum(axis=2).mean(axis=0) for matrix in (slope, bend))

        now = _growth(algorithm.lr, slope, bend)
        if now > 0:
            continue
        bound = 0.0
        if _growth(0.0, slope, bend) > 0:
            bound = float(np.asarray(optimize.brentq(_growth, 0.0, algorithm.lr, args=(slope, bend))))
        warnings.warn(
            f"lr = {algorithm.lr:g}: no overlap with the signals grows {where} (largest rate {now:.3g} per unit of t), so SGD does not "
            + (f"learn; take lr below {bound:.4g}" if bound > 0 else "learn, at any learning rate"),
            stacklevel=5,
        )
        return


def _growth(lr: float, slope: np.ndarray, bend: np.ndarray) -> float:
    """The largest growth rate at this learning rate."""
    return float(np.linalg.eigvals(slope + lr * bend).real.max())


def _plateau(problem: Problem, batch: int, Q: np.ndarray, head: np.ndarray) -> tuple[bool, np.ndarray, np.ndarray]:
    """Whether dM/dt = 0 at M = 0, and the matrices A, B of d(dM/dt)/dM = A + lr B there."""
    rule = rule_for(problem, Q[None], MARGIN)
    nodes = {name: value[0] for name, value in expectation_of(problem.structure).nodes(rule, flow=False).items()}
    size = problem.width * problem.signals
    rates, slopes = _plateau_slopes(problem.structure, rule, batch, nodes, problem.parameters, Q, head)
    slopes = np.asarray(slopes).reshape(2, size, size)
    scale = np.abs(slopes).max()
    return bool(np.abs(np.asarray(rates)).max() <= 1e-6 * scale), slopes[0], slopes[1] - slopes[0]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _plateau_slopes(structure: Structure, rule: Rule, batch: int, nodes: Any, parameters: Any, Q: Any, head: Any) -> tuple[Any, Any]:
    def rate(M: Any, lr: Any) -> Any:
        algorithm = {"lr": lr, "head_rate": 1.0}
        return drift(structure, rule, nodes, parameters, algorithm, {"M": M, "Q": Q, "a": head}, batch=batch)["M"]

    zero = jnp.zeros((structure.blocks, structure.width, structure.signals))
    both = jnp.array([0.0, 1.0])
    return jax.vmap(partial(rate, zero))(both), jax.vmap(lambda lr: jax.jacfwd(rate)(zero, lr))(both)
