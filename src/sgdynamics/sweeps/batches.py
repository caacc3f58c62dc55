"""Many ODEs that differ only in numbers as one program: every point is a lane with its own step sizes.

A lane's numbers do not depend on which others run beside it: rule, tolerance, step sizes and where LSODA takes over are its
own, and programs have one of two numbers of lanes (short groups are filled up), so that few are compiled.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from sgdynamics import checks
from sgdynamics.algorithms.one_pass import checked_algorithm, constant_rate
from sgdynamics.analysis import exit_times
from sgdynamics.analysis.exit_times import ExitTimes
from sgdynamics.clock import Clock, clock
from sgdynamics.gaussian.moments import Rule, finer, nodes_for, pair_error, risk, risk_nodes, sampled
from sgdynamics.gaussian.risk import MARGIN as RULE_MARGIN
from sgdynamics.gaussian.risk import SMALL_CHUNK, TOLERANCE, effective_overlaps, rule_for
from sgdynamics.limits import integration, ode
from sgdynamics.limits.drift import finite_numbers
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, checked_start
from sgdynamics.results import largest_share, trajectory
from sgdynamics.shapes import filled
from sgdynamics.sweeps.answers import Row, Variable, row_of

SHORT = 8  # lanes of a program for a few points, and points of a group at which the integrator is checked

caught = threading.RLock()  # warnings are caught process-wide: by one thread at a time


@dataclass(frozen=True)
class Lane:
    """One solve_ode, checked."""

    place: int
    problem: Problem
    algorithm: Any
    begin: Start
    when: Clock
    dimension: int | None
    finite: Any
    tolerance: dict[str, Any]
    rule: Rule

    @property
    def times(self) -> np.ndarray:
        """Save points in the variable of the integration, filled up to a power of two as in `solve_ode`."""
        return filled(self.variable)

    @property
    def variable(self) -> np.ndarray:
        return self.when.alpha if self.algorithm.scheduled and self.when.alpha is not None else self.when.t

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What is traced, in the order of `_lanes`."""
        states = {"M": self.begin.M_blocks, "Q": self.begin.Q_blocks, "a": self.begin.a}
        return self.problem.parameters, self.algorithm.parameters, self.finite, states, self.times, self.tolerance

    @property
    def key(self) -> Hashable:
        return self.problem.structure, self.rule, self.algorithm.batch, self.algorithm.flow, _shapes(self.numbers)


def _shapes(tree: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(np.shape(leaf) for leaf in leaves)


def _by_key(lanes: list[Any], size: int) -> list[list[Any]]:
    """Lanes of one program each, at most `size`."""
    found: dict[Hashable, list[Any]] = {}
    for lane in lanes:
        found.setdefault(lane.key, []).append(lane)
    return [members[first : first + size] for members in found.values() for first in range(0, len(members), size)]


def _filled(items: list[Any], size: int) -> Any:
    """Trees of numbers, stacked along a first axis of one of two lengths."""
    length = min(size, SHORT) if len(items) <= SHORT else size
    padded = items + [items[-1]] * (length - len(items))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _lanes(structure: Structure, rule: Rule, batch: int, flow: bool, nodes: Any, *numbers: Any) -> integration.Reached:
    def lane(parameters: Any, algorithm: Any, finite: Any, states: Any, times: Any, tolerance: Any) -> integration.Reached:
        return integration.integrate_all(structure, rule, batch, flow, nodes, parameters, algorithm, finite, states, times, tolerance)

    return jax.vmap(lane)(*numbers)


@partial(jax.jit, static_argnums=(0, 1))
def _risks(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    """The risk of every lane (outer) and state, by every replicate of the nodes."""

    def lane(given: tuple[Any, Any]) -> Any:
        numbers, own = given

        def one(state: Any) -> Any:
            _, omega, means = effective_overlaps(structure, numbers, state["M"], state["Q"])
            return jax.vmap(lambda node: risk(structure, rule, node, numbers, omega, state["a"], means))(nodes)

        return jax.lax.map(one, own, batch_size=16)

    return jax.lax.map(lane, (parameters, states))


@partial(jax.jit, static_argnums=(0, 1))
def _pair_errors(structure: Structure, rule: Rule, node: Any, parameters: Any, states: Any) -> Any:
    def lane(given: tuple[Any, Any]) -> Any:
        numbers, own = given

        def one(state: Any) -> Any:
            _, omega, means = effective_overlaps(structure, numbers, state["M"], state["Q"])
            return pair_error(structure, rule, node, numbers, omega, state["a"], means)

        return jax.lax.map(one, own)

    return jax.lax.map(lane, (parameters, states))


@float64
def ode_lanes(made: dict[int, Any], size: int) -> dict[int, Row]:
    """What solve_ode gives at each place, with its warnings; a place that it would refuse is left out.

    `error_integrator` is measured at a few points of a group, and the largest of them stands for all.
    """
    accepted: dict[Hashable, Start] = {}
    waiting = [lane for lane in (_ode_lane(accepted, place, *parts) for place, parts in made.items()) if lane is not None]
    found: dict[int, Row] = {}
    while waiting:
        again: list[Lane] = []
        for group in _by_key(waiting, size):
            done, finer_rules = _solve_group(group, size)
            found |= done
            again += finer_rules
        waiting = again
    return found


def _accepted(known: dict[Hashable, Start], problem: Problem, begin: Any) -> Start:
    """A start as an argument, checked once for all problems that it fits in the same way."""
    key = id(begin), problem.gram.tobytes(), problem.structure
    if key not in known:
        known[key] = checked_start(problem, begin)
    return known[key]


def _ode_lane(
    accepted: dict[Hashable, Start], place: int, problem: Any, algorithm: Any, begin: Any, arguments: dict[str, Any]
) -> Lane | None:
    """The checks of solve_ode; None where it refuses, or has nothing to integrate."""
    try:
        checked_algorithm(algorithm)
        rtol, atol = (arguments.get(name) for name in ("rtol", "atol"))
        rtol = None if rtol is None else checks.number("rtol", rtol, above=0.0)
        atol = None if atol is None else checks.number("atol", atol, above=0.0)
        dimension = arguments.get("dimension")
        if dimension is not None:
            dimension = check_dimension(problem, dimension)[0]
        given = {name: arguments.get(name) for name in ("times", "alpha", "steps")}
        when = clock(algorithm, **given, dimension=dimension, whole_steps=False)
        begin = _accepted(accepted, problem, begin)
    except ValueError:
        return None
    if when.t[-1] == 0.0:
        return None
    flow = algorithm.flow
    finite = None if dimension is None or flow else finite_numbers(problem, dimension, algorithm.batch)
    rule = rule_for(problem, begin.Q_blocks, RULE_MARGIN)
    tolerance = ode.tolerances(problem, algorithm, begin, rule, finite, rtol, atol)
    return Lane(place, problem, algorithm, begin, when, dimension, finite, tolerance, rule)


def _solve_group(lanes: list[Lane], size: int) -> tuple[dict[int, Row], list[Lane]]:
    """Lanes of one program: answers, and lanes that need a finer rule."""
    every = _integrate(lanes, size)
    mean = [_over_replicates(one) for one in every]
    risks, _, worst = _risks_of(lanes, mean, size, errors=True)
    longer = [_longer(lane, one) if bad > TOLERANCE else None for lane, one, bad in zip(lanes, mean, worst, strict=True)]
    again = [replace(lane, rule=rule) for lane, rule in zip(lanes, longer, strict=True) if rule is not None]
    kept = [place for place, rule in enumerate(longer) if rule is None]
    if not kept:
        return {}, again
    some = [kept[place] for place in sorted(set(np.linspace(0, len(kept) - 1, SHORT).round().astype(int).tolist()))]
    looser = [replace(lanes[place], tolerance={name: 10 * value for name, value in lanes[place].tolerance.items()}) for place in some]
    others, _, _ = _risks_of(looser, [_over_replicates(one) for one in _integrate(looser, size)], size)
    integrator = max(largest_share(other - risks[place], risks[place]) for other, place in zip(others, some, strict=True))
    sampling = _sampling([lanes[place] for place in kept], [every[place] for place in kept], [worst[place] for place in kept], size)
    found: dict[int, Row] = {}
    template = None
    for place, (quadrature, of_risk) in zip(kept, sampling, strict=True):
        lane = lanes[place]
        ends, texts = ode.told_apart(mean[place], every[place].tired, lane.when.t)
        attributes = {
            **ode.described(lane.dimension, every[place].long),
            "error_quadrature": quadrature,
            "error_quadrature_risk": of_risk if of_risk > 0 else None,
            "error_integrator": integrator,
        }
        ended = ends["diverged_at"]
        row = None if template is None else _like(template, lane, mean[place], risks[place], ended, attributes)
        if row is None:
            values = {"diverged_at": ended, "method": "solve_ode", "attributes": attributes}
            row = row_of(trajectory(lane.problem, lane.algorithm, lane.when, mean[place], risks[place], **values))
            template = row
        row.warning = "; ".join([ode.inaccurate(lane.problem, worst[place])] * (worst[place] > ode.WARN_ABOVE) + texts)
        found[lane.place] = row
    return found, again


def _over_replicates(one: integration.Solved) -> dict[str, np.ndarray]:
    return {name: value.mean(axis=0) for name, value in one.overlaps.items()}


def _sampling(lanes: list[Lane], every: list[integration.Solved], worst: list[float], size: int) -> list[tuple[float, float]]:
    """The errors of `ode.sampling_errors` of each lane; that of pairs alone where nothing is sampled."""
    if len(every[0].overlaps["a"]) == 1:
        return [(one, 0.0) for one in worst]
    each, within, _ = _risks_of(lanes, [one.overlaps for one in every], size)
    return [ode.sampling_errors(one.overlaps, *rest) for one, rest in zip(every, zip(each, worst, within, strict=True), strict=True)]


def _like(
    template: Row, lane: Lane, mean: dict[str, np.ndarray], risk: np.ndarray, diverged_at: np.ndarray, attributes: dict[str, Any]
) -> Row | None:
    """The row of a lane by the pattern of another of its group, without the cost of a Dataset; None where that has more in it."""
    values: dict[str, Any] = {
        "M": mean["M"].sum(axis=2),
        "Q": mean["Q"].sum(axis=2),
        "a": mean["a"],
        "risk": risk,
        "excess_risk": risk - lane.problem.noise_floor,
        "t": lane.when.t,
        "alpha": lane.when.alpha,
        "step": lane.when.step,
        "diverged_at": diverged_at,
        "error_quadrature": np.float64(attributes["error_quadrature"]),
        "error_integrator": np.float64(attributes["error_integrator"]),
    }
    if attributes["error_quadrature_risk"] is not None:
        values["error_quadrature_risk"] = np.float64(attributes["error_quadrature_risk"])
    if any(values.get(name) is None for name in template.variables):
        return None
    variables = {name: Variable(one.dims, values[name], one.attributes, one.coordinate) for name, one in template.variables.items()}
    return Row(variables, {**template.texts, "integrator": attributes["integrator"]})


def _longer(lane: Lane, mean: dict[str, np.ndarray]) -> Rule | None:
    """A finer rule where there is one, chosen as in `solve_ode`."""
    longer = finer(lane.problem.structure, lane.rule) or rule_for(lane.problem, mean["Q"], 1.0)
    return None if longer.mixture == lane.rule.mixture and longer.terms <= lane.rule.terms else longer


def _integrate(lanes: list[Lane], size: int) -> list[integration.Solved]:
    """Every lane by the explicit method, together; what it does not finish goes on by LSODA, each alone."""
    first = lanes[0]
    structure, rule, flow = first.problem.structure, first.rule, first.algorithm.flow
    nodes = integration.replicated_nodes(structure, rule, flow, first.finite)
    together = _lanes(structure, rule, first.algorithm.batch, flow, nodes, *_filled([lane.numbers for lane in lanes], size))
    together = jax.tree.map(np.asarray, together)
    found = []
    for row, lane in enumerate(lanes):
        own = jax.tree.map(lambda leaf, row=row: leaf[row], together)
        numbers = (lane.problem, lane.algorithm, lane.rule, nodes, lane.finite, own, lane.variable, lane.tolerance)
        found.append(integration.finished(*numbers))
    return found


def _risks_of(
    lanes: list[Lane], overlaps: list[dict[str, np.ndarray]], size: int, errors: bool = False
) -> tuple[list[np.ndarray], list[float], list[float]]:
    """As `gaussian.risk.risk_by`, lane by lane: risks, sampling errors, and errors of pair expectations where asked for."""
    structure, rule = lanes[0].problem.structure, lanes[0].rule
    nodes = risk_nodes(structure, rule, quick=False)
    counts = [int(np.prod(one["a"].shape[:-1])) for one in overlaps]
    length = len(lanes[0].times) * max(1, max(counts) // min(len(lane.when.t) for lane in lanes))
    flat = [_some(one, np.minimum(np.arange(length), count - 1)) for one, count in zip(overlaps, counts, strict=True)]
    parameters = _filled([lane.problem.parameters for lane in lanes], size)
    values = np.asarray(_risks(structure, rule, nodes, parameters, _filled(flat, size)))
    risks, shares = [], []
    for row, (one, count) in enumerate(zip(overlaps, counts, strict=True)):
        every = values[row, :count]
        mean = every.mean(axis=1)
        share = 0.0
        if "plain" in nodes or sampled(structure, flow=True):
            share = largest_share(every.std(axis=1, ddof=1) / np.sqrt(every.shape[1]), mean)
        risks.append(mean.reshape(one["a"].shape[:-1]))
        shares.append(share)
    if not errors or "plain" in nodes:
        return risks, shares, [0.0] * len(lanes)
    node = {name: value[0] for name, value in nodes.items()}
    some = [_some(one, _places(one, count)) for one, count in zip(overlaps, counts, strict=True)]
    found = np.asarray(_pair_errors(structure, rule, node, parameters, _filled(some, size)))
    return risks, shares, [float(np.max(one[np.isfinite(one)], initial=0.0)) for one in found[: len(lanes)]]


def _some(one: dict[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
    """Some states of a trajectory, its leading axes as one."""
    lead = one["a"].ndim - 1
    return {name: value.reshape(-1, *value.shape[lead:])[places] for name, value in one.items()}


def _places(one: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Where errors are estimated: at the longest rows, and evenly over the trajectory."""
    lengths = one["Q"].reshape(count, *one["Q"].shape[-3:]).trace(axis1=-2, axis2=-1).sum(axis=-1)
    longest = np.argsort(-np.nan_to_num(lengths))[: SMALL_CHUNK // 4]
    evenly = np.linspace(0, count - 1, SMALL_CHUNK - len(longest)).astype(int)
    return np.concatenate([longest, evenly])


@dataclass(frozen=True)
class ExitLane:
    """One exit_time by the ODE, checked."""

    place: int
    problem: Problem
    algorithm: Any
    begin: Start
    watch: Any
    first: dict[str, Any]  # nodes of the risk
    finite: Any
    tolerance: dict[str, Any]
    levels: np.ndarray
    end: float
    threshold: float
    dimension: int | None

    @property
    def numbers(self) -> tuple[Any, ...]:
        states = {"M": self.begin.M_blocks, "Q": self.begin.Q_blocks, "a": self.begin.a}
        return self.problem.parameters, self.algorithm.parameters, self.finite, states, self.levels, np.float64(self.end), self.tolerance

    @property
    def key(self) -> Hashable:
        return self.watch, self.algorithm.batch, self.algorithm.flow, _shapes(self.numbers)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _exits(watch: Any, batch: int, flow: bool, drift_nodes: Any, nodes: Any, *numbers: Any) -> tuple[Any, ...]:
    lane: Callable[..., Any] = partial(exit_times._ode_exit, watch, batch, flow, drift_nodes, nodes)
    return jax.vmap(lane)(*numbers)


@float64
def exit_lanes(made: dict[int, Any], size: int) -> dict[int, Row]:
    """What exit_time(method="ode") gives at each place; a place that it would refuse, or that has left at once, is left out."""
    accepted: dict[Hashable, Start] = {}
    lanes = [lane for lane in (_exit_lane(accepted, place, *parts) for place, parts in made.items()) if lane is not None]
    found: dict[int, Row] = {}
    for group in _by_key(lanes, size):
        first = group[0]
        nodes = {name: value[0] for name, value in nodes_for(first.problem.structure, first.watch.rule, first.algorithm.flow).items()}
        given = (first.watch, first.algorithm.batch, first.algorithm.flow)
        program = _exits(*given, nodes, first.first, *_filled([lane.numbers for lane in group], size))
        program = jax.tree.map(np.asarray, program)
        for row, lane in enumerate(group):
            own = jax.tree.map(lambda leaf, row=row: leaf[row], program)
            found[lane.place] = _exit_answer(lane, *exit_times.finished_exits(*given, (nodes, first.first, *lane.numbers), own))
    return found


def _exit_lane(
    accepted: dict[Hashable, Start], place: int, problem: Any, algorithm: Any, begin: Any, arguments: dict[str, Any]
) -> ExitLane | None:
    """The checks of exit_time; None where it refuses, or nothing is left to integrate."""
    criterion = arguments.get("criterion", "risk")
    try:
        threshold = exit_times._threshold(arguments.get("threshold", 0.2))
        checked_algorithm(algorithm)
        constant_rate(algorithm, "exit times")
        checks.choice("criterion", criterion, ("risk", "overlap"))
        end = arguments.get("max_time")
        end = exit_times.TIMES_A_UNIT * problem.width if end is None else checks.number("max_time", end, above=0.0)
        dimension = arguments.get("dimension")
        dimension = None if dimension is None else check_dimension(problem, dimension)[0]
        begin = broadcast_runs(_accepted(accepted, problem, begin), arguments.get("runs"))
    except ValueError:
        return None
    rule = rule_for(problem, begin.Q_blocks, exit_times.MARGIN)
    watch = exit_times._Watch(problem.structure, rule, criterion)
    nodes = {name: value[0] for name, value in risk_nodes(problem.structure, rule).items()}
    states = {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a}
    now = np.asarray(exit_times._values(watch, problem.parameters, nodes, states))
    levels = np.full(begin.runs, -threshold) if criterion == "overlap" else (1 - threshold) * now
    if np.any(now < levels) or (criterion == "risk" and not np.all(now > 0)):
        return None
    finite, tolerance = exit_times.setting_of(problem, algorithm, begin, dimension, rule)
    return ExitLane(place, problem, algorithm, begin, watch, nodes, finite, tolerance, levels, end, threshold, dimension)


def _exit_answer(lane: ExitLane, times: np.ndarray, blown: np.ndarray, tired: np.ndarray) -> Row:
    algorithm = lane.algorithm
    setting = (lane.threshold, lane.watch.criterion, "ode", lane.end, lane.dimension, algorithm.lr, algorithm.batch)
    answer = ExitTimes(times, *setting, blown, tired)
    row = row_of(answer)
    if answer.left < answer.runs:
        with caught, warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            exit_times._warn_if_no_growth(lane.problem, algorithm, lane.begin)
            exit_times._report(answer, stacklevel=2)
        row.warning = "; ".join(str(one.message) for one in heard)
    return row
