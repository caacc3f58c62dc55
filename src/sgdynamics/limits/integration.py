"""The drift integrated from a start: explicitly, differentiably, and at long times by LSODA from where the explicit method stopped."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.controls import Schedule, numbers_at
from sgdynamics.gaussian.moments import Rule, nodes_for
from sgdynamics.limits.drift import drift
from sgdynamics.limits.long_times import EVENT_TOLERANCE, Followed, follow
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start
from sgdynamics.shapes import filled

RTOL = 1e-8
ATOL = 1e-10
MARGIN = 1e-3  # local tolerance over the one asked for: errors add up, and the risk is a small difference of overlaps
MOST_STEPS = 600  # explicit steps before LSODA takes over: beyond nearly all smooth trajectories, and cheap to waste
LARGEST = 1e6  # overlaps beyond this have diverged


def integrate(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    stiff: bool,
    nodes: dict[str, Any],
    parameters: Any,
    algorithm: Any,
    finite: dict[str, Any] | None,
    state: dict[str, Any],
    times: Any,
    rtol: Any = RTOL,
    atol: Any = ATOL,
    guard: bool = True,
    watch: Any = None,
    adjoint: Any = None,
    most: int | None = None,
) -> diffrax.Solution:
    """One trajectory from t = 0 by Dormand-Prince 8(7), or Kvaerno 5(4) where `stiff`: at `times` by dense output, and where it ended.

    Where lr is a schedule, `times` are values of alpha.

    With `guard` it stops where the overlaps leave every bound (an event, which reverse mode need not carry). With `watch`, a
    function of the state, it stops where that falls below zero, the time found by bisection, and only the end is saved.
    """

    # jitted on its own: the integrator names the field in several places, and this way it is traced once
    moving = jax.jit(partial(rate, structure, rule, batch, flow))

    def field(t: Any, y: Any, args: Any) -> Any:
        return moving(nodes, parameters, algorithm, finite, t, y)

    def blown_up(t: Any, y: Any, args: Any, **_: Any) -> Any:
        return ~(_size(y) < LARGEST)

    event = diffrax.Event(blown_up) if guard else None
    if watch is not None:
        # flip: told, not detected, for runs without an event get a function that is 0 at the end, which detection refuses
        found = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # one condition for both, as bisection takes one: overlaps beyond every bound count as below zero
        event = diffrax.Event(lambda t, y, args, **_: jnp.where(blown_up(t, y, args), -1.0, watch(y)), root_finder=found)
    at_end = diffrax.SubSaveAt(t1=True)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5() if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=state,
        # with a watch only its end is of use; twice, so that what is saved has one form
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times) if watch is None else at_end, at_end]),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=event,
        max_steps=MOST_STEPS if most is None else most,
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        throw=False,
    )


def _size(state: dict[str, Any]) -> Any:
    return sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state))


def rate(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    finite: Any,
    t: Any,
    state: dict[str, Any],
) -> dict[str, Any]:
    """The drift in the variable of the integration: t, or with a schedule alpha, t = integral of lr/batch."""
    if not isinstance(algorithm["lr"], Schedule):
        return drift(structure, rule, nodes, parameters, algorithm, state, batch=batch, flow=flow, finite=finite)
    lr = numbers_at(algorithm["lr"], t)
    moved = drift(structure, rule, nodes, parameters, {**algorithm, "lr": lr}, state, batch=batch, flow=flow, finite=finite)
    return jax.tree.map(lambda value: value * (lr / batch), moved)


class Reached(NamedTuple):
    """Overlaps at the save points (inf beyond what was reached), the last state and its time, and whether the steps had run out there."""

    saved: Any
    last: Any
    time: Any
    full: Any


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def integrate_all(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    finite: Any,
    states: Any,
    times: Any,
    tolerance: Any,
) -> Reached:
    """Every replicate of the nodes (outer) and every start (inner), by the explicit method."""

    def one(node: Any, points: Any, state: Any) -> Reached:
        here = finite if points is None else {**finite, "points": points}
        found = integrate(
            structure, rule, batch, flow, False, node, parameters, algorithm, here, state, times, tolerance["rtol"], tolerance["atol"]
        )
        (saved, last), (_, time) = parts(found)
        return Reached(saved, jax.tree.map(lambda leaf: leaf[0], last), time[0], found.result == diffrax.RESULTS.max_steps_reached)

    points = None if finite is None else finite.get("points")
    return jax.vmap(lambda node, point: jax.vmap(partial(one, node, point))(states))(nodes, points)


def parts(found: diffrax.Solution) -> tuple[Any, Any]:
    """What `integrate` saved at its times and at its end: states, and times."""
    return found.ys, found.ts


class LongRun:
    """One trajectory that the explicit method did not finish, in the flat form that LSODA takes: M, the upper triangles of Q, a."""

    def __init__(
        self, structure: Structure, rule: Rule, batch: int, flow: bool, nodes: Any, parameters: Any, algorithm: Any, finite: Any
    ) -> None:
        self.structure = structure
        self.static = (structure, rule, batch, flow)
        # on the device once, not at each of thousands of calls
        self.numbers = jax.tree.map(jnp.asarray, (nodes, parameters, algorithm, finite))

    def field(self, t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_flat_rate(*self.static, *self.numbers, t, y))

    def follow(self, state: Any, begin: float, times: np.ndarray, tolerance: Any, loosest: float, watch: Any = None) -> Followed:
        y = np.asarray(flat(self.structure, state))
        if not np.all(np.isfinite(self.field(begin, y))):
            raise ValueError(
                f"problem: its drift is not finite at t = {begin:.4g}: the loss, an activation or the target gives NaN or infinity there; "
                "make it finite for every real field"
            )
        seen = None if watch is None else lambda y: float(watch(_shaped(self.structure, y)))
        numbers = {"loosest": loosest, "inside": lambda y: bool(np.sum(np.abs(y)) < LARGEST), "watch": seen}
        return follow(self.field, y, begin, times, float(tolerance["rtol"]), float(tolerance["atol"]), **numbers)

    def overlaps(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """M, Q, a with a leading time axis, of values (size, time)."""
        return {name: np.asarray(value) for name, value in _all_shaped(self.structure, values.T).items()}


def _triangle(structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(structure.width)


@partial(jax.jit, static_argnums=0)
def flat(structure: Structure, state: dict[str, Any]) -> Any:
    upper = _triangle(structure)
    return jnp.concatenate([state["M"].reshape(-1), state["Q"][:, upper[0], upper[1]].reshape(-1), state["a"]])


@partial(jax.jit, static_argnums=0)
def _shaped(structure: Structure, y: Any) -> dict[str, Any]:
    p, k, blocks = structure.width, structure.signals, structure.blocks
    upper = _triangle(structure)
    M, Q, a = jnp.split(y, [blocks * p * k, blocks * (p * k + len(upper[0]))])
    half = jnp.zeros((blocks, p, p), y.dtype).at[:, upper[0], upper[1]].set(Q.reshape(blocks, -1))
    whole = half + jnp.swapaxes(half, -1, -2) - half * jnp.eye(p, dtype=y.dtype)
    return {"M": M.reshape(blocks, p, k), "Q": whole, "a": a}


@partial(jax.jit, static_argnums=0)
def _all_shaped(structure: Structure, values: Any) -> dict[str, Any]:
    return jax.vmap(partial(_shaped, structure))(values)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _flat_rate(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    finite: Any,
    t: Any,
    y: Any,
) -> Any:
    return flat(structure, rate(structure, rule, batch, flow, nodes, parameters, algorithm, finite, t, _shaped(structure, y)))


class Solved(NamedTuple):
    """Overlaps (replicate, run, time, ...), NaN from where a solution left every bound or its steps ran out; which method, and who did."""

    overlaps: dict[str, np.ndarray]
    long: bool
    tired: np.ndarray  # (run,)


def solve_states(
    problem: Problem,
    algorithm: OnePassSGD,
    begin: Start,
    t: np.ndarray,
    rule: Rule,
    finite: Any,
    tolerance: dict[str, Any],
) -> Solved:
    """All starts by the explicit method; those that it does not finish go on from where it stopped, by LSODA."""
    flow = algorithm.flow
    states = {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a}
    if t[-1] == 0.0:
        return Solved({name: value[None, :, None] for name, value in states.items()}, False, np.zeros(begin.runs, bool))
    nodes = replicated_nodes(problem.structure, rule, flow, finite)
    numbers = (problem.parameters, algorithm.parameters, finite)
    found = integrate_all(problem.structure, rule, algorithm.batch, flow, nodes, *numbers, states, filled(t), tolerance)
    return finished(problem, algorithm, rule, nodes, finite, found, t, tolerance)


def replicated_nodes(structure: Structure, rule: Rule, flow: bool, finite: Any) -> dict[str, np.ndarray]:
    """The nodes of every expectation with a leading axis of replicates, of the sphere's points too."""
    nodes = nodes_for(structure, rule, flow) or {"none": np.zeros((1, 1))}
    if finite is not None and "points" in finite:
        # what is not sampled goes once with each replicate of what is
        nodes = {name: np.broadcast_to(value, (rule.replicates, *value.shape[1:])) for name, value in nodes.items()}
    return nodes


def finished(
    problem: Problem,
    algorithm: OnePassSGD,
    rule: Rule,
    nodes: Any,
    finite: Any,
    found: Reached,
    t: np.ndarray,
    tolerance: dict[str, Any],
) -> Solved:
    """What the explicit method reached, and the rest of those that it did not finish by LSODA."""
    overlaps = {}
    for name, value in found.saved.items():
        overlaps[name] = np.array(value[:, :, : len(t)])
        overlaps[name][~np.isfinite(overlaps[name])] = np.nan
    full, time = np.asarray(found.full), np.asarray(found.time)
    tired = np.zeros(full.shape[1], dtype=bool)
    for replicate, run in zip(*np.nonzero(full), strict=True):
        node = {name: value[replicate] for name, value in nodes.items()}
        own = finite
        if finite is not None and "points" in finite:
            own = {**finite, "points": {name: value[replicate] for name, value in finite["points"].items()}}
        long = LongRun(problem.structure, rule, algorithm.batch, algorithm.flow, node, problem.parameters, algorithm.parameters, own)
        rest = t > time[replicate, run]
        state = {name: np.asarray(value[replicate, run]) for name, value in found.last.items()}
        end = long.follow(state, float(time[replicate, run]), t[rest], tolerance, 1 / MARGIN)
        for name, value in long.overlaps(end.values).items():
            overlaps[name][replicate, run, rest] = value
        tired[run] |= end.ended == "tired"
    return Solved(overlaps, bool(full.any()), tired)
