"""The solve core: a field integrated from many starts, explicitly, and at long times by LSODA from where the explicit method stopped.

A solve is a `Case`, prepared before anything runs; `run_cases` runs any number of them, those of one program as lanes of it, each with its
own step sizes, so that a lane's numbers do not depend on which others run beside it; what comes back is `Solved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.arrays import Numbers, Numeric, Scalar, State, Tree
from sgdynamics.gaussian.risk import lanes_of
from sgdynamics.generator import older_generator
from sgdynamics.limits.explicit import explicit
from sgdynamics.limits.long_times import EVENT_TOLERANCE, follow
from sgdynamics.reach import check_memory
from sgdynamics.shapes import filled

if TYPE_CHECKING:
    import diffrax

RTOL = 1e-8
ATOL = 1e-10
MARGIN = 1e-3  # local tolerance over the one asked for: errors add up, and the risk is a small difference of overlaps
MOST_STEPS = 600  # explicit steps before LSODA takes over: beyond nearly all smooth trajectories, and cheap to waste
LARGEST = 1e6  # see `largest`
FEW_NUMBERS = 128  # of a state: with more, running outweighs compiling


class Field(ABC):
    """A right-hand side, static and hashable: d state/dt = field(each, shared, t, state), the state a dictionary of arrays.

    `each` are numbers that come in replicates (points of a sampled expectation), `shared` all others.
    """

    symmetric: tuple[str, ...] = ()  # variables that are symmetric matrices: LSODA sees a triangle of them

    @abstractmethod
    def __call__(self, each: Tree, shared: Tree, t: Scalar, state: State) -> Any:
        """d state/dt of one run."""

    def on_symmetric(self, each: Tree, shared: Tree, t: Scalar, state: State) -> Any:
        """Evaluate the field at the symmetric part of the state, and return the symmetric part of the rate.

        The formulas of the drift extend to matrices that are not symmetric, and there antisymmetric modes
        can be unstable: rounding errors of 1e-16 then grow exponentially and ruin a solution that is
        itself stable. On the symmetric part they have no dynamics.
        """
        rate = self(each, shared, t, self._symmetric_part(state))
        return self._symmetric_part(rate)

    def _symmetric_part(self, state: State) -> Any:
        halves = {name: state[name] / 2 for name in self.symmetric}
        return {**state, **{name: half + jnp.swapaxes(half, -1, -2) for name, half in halves.items()}}


class Watch(ABC):
    """A number that falls below a level where a run is to stop; static and hashable."""

    @abstractmethod
    def value(self, shared: Tree, state: State) -> Any:
        """The number, at one state; `shared` are those of the field."""


@dataclass(frozen=True, eq=False)
class Case:
    """One solve, prepared: everything that is checked and chosen before anything runs. Axes: replicates of `each`, runs of `states`.

    Where `shared` has "units" by variable, states are given in them, so that one absolute tolerance is right for all; solutions are not.
    """

    field: Field
    each: Any
    shared: Any
    states: dict[str, np.ndarray]
    times: np.ndarray  # in the variable of the integration, increasing
    tolerance: dict[str, Any]
    watch: Watch | None = None  # with it only the end is kept: where it fell below `levels`
    levels: np.ndarray | None = None
    alone: bool = False  # whether its replicates are its own, and it cannot share a program

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What is traced beside `each`; save points, whose number is a shape, are filled up to a power of two."""
        levels = np.zeros(len(next(iter(self.states.values())))) if self.levels is None else self.levels
        return self.shared, self.states, levels, filled(self.times), self.tolerance

    @property
    def key(self) -> Hashable:
        """Cases with the same key may be lanes of one program."""
        leaves, form = jax.tree.flatten(self.numbers)
        return (id(self) if self.alone else 0), self.field, self.watch, form, tuple(np.shape(leaf) for leaf in leaves)


def from_units(shared: Tree, state: State) -> Any:
    """A state in the library's own units, where it was integrated in others."""
    units = shared.get("units")
    return state if units is None else {name: value * units[name] for name, value in state.items()}


def in_units(shared: Tree, state: State) -> Any:
    """The other way round; also of d state/dt."""
    units = shared.get("units")
    return state if units is None else {name: value / units[name] for name, value in state.items()}


class Reached(NamedTuple):
    """States at the save points (inf beyond what was reached), the last state and its time, whether it had left, or its steps run out."""

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class Solved(NamedTuple):
    """States (replicate, run, time, ...), NaN from where a solution left every bound or its steps ran out; which method, and who did.

    With a watch the times at which runs left (NaN elsewhere) and who diverged, (replicate, run), in place of states.
    """

    states: dict[str, np.ndarray]
    long: bool
    tired: np.ndarray  # (run,)
    exits: np.ndarray
    blown: np.ndarray


def integrate(
    field: Field,
    each: Tree,
    shared: Tree,
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""] = RTOL,
    atol: float | Float[Array, ""] = ATOL,
    *,
    stiff: bool = False,
    guard: bool = True,
    watch: Callable[..., Any] | None = None,
    adjoint: Any = None,
    most: int | None = None,
) -> diffrax.Solution:
    """One trajectory from 0 by Dormand-Prince 8(7), or Kvaerno 5(4) where `stiff`: at `times` by dense output, and where it ended.

    With `guard` it stops where the state leaves every bound (an event, which reverse mode need not carry). With `watch`, a
    function of the state, it stops where that falls below zero, the time found by bisection, and only the end is saved.
    """
    import diffrax  # here: its import takes as long as a small solution, and most solutions do without
    import optimistix

    # jitted on its own: the integrator names the field in several places, and this way it is traced once
    moving = jax.jit(field.on_symmetric)

    def blown_up(t: Scalar, y: State, args: Tree, **_: object) -> Bool[Numeric, ""]:
        return jnp.logical_not(_inside(t, y))

    event = diffrax.Event(blown_up) if guard else None
    if watch is not None:
        # flip: told, not detected, for runs without an event get a function that is 0 at the end, which detection refuses
        found = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # one condition for both, as bisection takes one: a state beyond every bound counts as below zero
        event = diffrax.Event(lambda t, y, args, **_: jnp.where(blown_up(t, y, args), -1.0, watch(y)), root_finder=found)
    at_end = diffrax.SubSaveAt(t1=True)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: moving(each, shared, t, y)),
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


def _below(watch: Watch, shared: Tree, level: Scalar, state: State) -> Float[Numeric, ""]:
    return watch.value(shared, state) - level


def largest(t: Any) -> Any:
    """Overlaps beyond this have diverged. Some rightly grow as a power of t (Hebb's Q as t^2); what explodes passes any power soon."""
    return LARGEST * (1 + t) ** 2


def _inside(t: Scalar, state: State) -> Bool[Numeric, ""]:
    return _size(state) < largest(t)


def _size(state: State) -> Scalar:
    return sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state))


def _reach(
    field: Field,
    watch: Watch | None,
    each: Tree,
    shared: Tree,
    states: State,
    levels: Float[Numeric, " runs"],
    times: Float[Array, " times"],
    tolerance: Numbers,
) -> Reached:
    """Every replicate (outer) and every start (inner) of one case, by the explicit method."""

    def one(own: Tree, state: State, level: Scalar) -> Reached:
        if watch is None:
            moving = jax.jit(field.on_symmetric)  # named in several places, traced once
            reached = explicit(partial(moving, own, shared), state, times, tolerance["rtol"], tolerance["atol"], _inside, MOST_STEPS)
            return Reached(reached.saved, reached.last, reached.time, False, reached.full)
        import diffrax

        seen = partial(_below, watch, shared, level)
        found = integrate(field, own, shared, state, times, tolerance["rtol"], tolerance["atol"], watch=seen)
        states_found: Any = found.ys
        times_found: Any = found.ts
        last = jax.tree.map(lambda leaf: leaf[0], states_found[1])
        stopped: Any = found.event_mask
        left = stopped & (_size(last) < largest(times_found[1][0]) / 2)
        return Reached(states_found[0], last, times_found[1][0], left, found.result == diffrax.RESULTS.max_steps_reached)

    return _for_each(lambda own: _for_each(partial(one, own), states, levels), each)


def _for_each(function: Callable[..., Any], *trees: Tree) -> Any:
    """`jax.vmap`; an axis of one is taken off and put on again, as a loop whose end each case has for itself is a larger program."""
    if any(len(leaf) != 1 for leaf in jax.tree.leaves(trees)):
        return jax.vmap(function)(*trees)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*jax.tree.map(lambda leaf: leaf[0], trees)))


def _lane(field: Field, watch: Watch | None, each: Tree, *numbers: Tree) -> Reached:
    return jax.vmap(partial(_reach, field, watch, each))(*numbers)


@cache
def _compiled(function: Callable[..., Reached], small: bool) -> Callable[..., Reached]:
    return jax.jit(function, static_argnums=(0, 1), compiler_options=older_generator() if small else None)


def _program(function: Callable[..., Reached], case: Case) -> Callable[..., Reached]:
    """A function of cases such as this, compiled: few numbers are computed in no time, many the slower the less the compiler did."""
    numbers = sum(value[0].size for value in case.states.values())
    return _compiled(function, numbers <= FEW_NUMBERS)


def by_program(cases: dict[Any, Case], size: int) -> list[list[Any]]:
    """The names of cases that run as one program each, at most `size`."""
    found: dict[Hashable, list[Any]] = {}
    for name, case in cases.items():
        found.setdefault(case.key, []).append(name)
    return [names[first : first + size] for names in found.values() for first in range(0, len(names), size)]


def run_cases(cases: list[Case], size: int = 1) -> list[Solved | ValueError]:
    """Cases of one key: together by the explicit method, and the rest each alone by LSODA; a case that fails is its error."""
    first = cases[0]
    if first.times[-1] == 0.0:
        return [_still(case) for case in cases]
    if len(cases) == 1 and size == 1:
        return [_finished(first, _program(_reach, first)(first.field, first.watch, first.each, *first.numbers))]
    together = _program(_lane, first)(first.field, first.watch, first.each, *lanes_of([case.numbers for case in cases], size))
    together = jax.tree.map(np.asarray, together)
    return [_finished(case, jax.tree.map(lambda leaf, row=row: leaf[row], together)) for row, case in enumerate(cases)]


def or_raise(found: Any) -> Any:
    """What a case gave; where that is its error, it is raised."""
    if isinstance(found, ValueError):
        raise found
    return found


def _still(case: Case) -> Solved:
    """Nothing to integrate: the start."""
    runs = len(next(iter(case.states.values())))
    states = {name: np.asarray(value)[None, :, None] for name, value in case.states.items()}
    return Solved(from_units(case.shared, states), False, np.zeros(runs, bool), np.full((1, runs), np.nan), np.zeros((1, runs), bool))


def _finished(case: Case, found: Reached) -> Solved | ValueError:
    """What the explicit method reached, and the rest of those that it did not finish by LSODA."""
    t = case.times
    states = {}
    for name, value in found.saved.items():
        states[name] = np.array(np.asarray(value)[:, :, : len(t)])  # cut on the host: on the device every shape is a program
        states[name][~np.isfinite(states[name])] = np.nan
    full, time, left = np.asarray(found.full), np.array(found.time), np.array(found.left)
    tired = np.zeros(full.shape, dtype=bool)
    for replicate, run in zip(*np.nonzero(full), strict=True):
        own = jax.tree.map(lambda leaf, replicate=replicate: leaf[replicate], case.each)
        state = {name: np.asarray(value[replicate, run]) for name, value in found.last.items()}
        t0 = float(time[replicate, run])
        rest = t > t0
        try:
            end, values = _long_run(case, own, state, t0, t[rest], 0.0 if case.levels is None else float(case.levels[run]))
        except ValueError as error:
            return error
        for name, value in values.items() if case.watch is None else ():
            states[name][replicate, run, rest] = value
        time[replicate, run], left[replicate, run], tired[replicate, run] = end.time, end.ended == "event", end.ended == "tired"
    # stopped before the end without leaving: beyond every bound
    blown = ~left & ~tired & (time < t[-1] * (1 - 1e-12))
    return Solved(
        from_units(case.shared, states), bool(full.any()), np.any(tired, axis=0, keepdims=True)[0], np.where(left, time, np.nan), blown
    )


def _long_run(case: Case, own: Tree, state: State, t0: float, times: np.ndarray, level: float) -> Any:
    """One trajectory that the explicit method did not finish, in the flat form that LSODA takes."""
    form = Flat(case.field, tuple((name, value.shape) for name, value in state.items()))
    # on the device once, not at each of thousands of calls
    numbers = jax.tree.map(jnp.asarray, (own, case.shared))

    def field(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_flat_rate(form, *numbers, t, y))

    y = np.asarray(form.flat(state))
    fix = "late times need an implicit method: take fewer blocks of the covariance, a smaller width, or shorter times"
    check_memory("times", float(times[-1]) if len(times) else t0, 24.0 * len(y) ** 2, f"the Jacobian of {len(y)} overlaps", fix)
    if not np.all(np.isfinite(field(t0, y))):
        raise ValueError(
            f"problem: its drift is not finite at t = {t0:.4g}: the loss, an activation or the target gives NaN or infinity there; "
            "make it finite for every real field"
        )
    seen = None if case.watch is None else lambda y: float(_flat_watch(form, case.watch, numbers[1], y)) - level
    setting = {"loosest": 1 / MARGIN, "inside": lambda t, y: bool(np.sum(np.abs(y)) < largest(t)), "watch": seen}
    found = follow(field, y, t0, times, float(case.tolerance["rtol"]), float(case.tolerance["atol"]), **setting)
    return found, {name: np.asarray(value) for name, value in _all_shaped(form, found.values.T).items()}


@dataclass(frozen=True)
class Flat:
    """A state as one vector: its variables in order, of symmetric matrices the upper triangles."""

    field: Field
    form: tuple[tuple[str, tuple[int, ...]], ...]

    def flat(self, state: State) -> Float[Numeric, " n"]:
        return jnp.concatenate([self._packed(name, jnp.asarray(state[name])).reshape(-1) for name, _ in self.form])

    def shaped(self, y: Float[Array, " n"]) -> dict[str, Any]:
        found, place = {}, 0
        for name, shape in self.form:
            packed = jax.eval_shape(partial(self._packed, name), jax.ShapeDtypeStruct(shape, y.dtype))
            part = y[place : place + packed.size].reshape(packed.shape)
            place += packed.size
            if name in self.field.symmetric:
                upper = np.triu_indices(shape[-1])
                half = jnp.zeros(shape, y.dtype).at[..., upper[0], upper[1]].set(part)
                part = half + jnp.swapaxes(half, -1, -2) - half * jnp.eye(shape[-1], dtype=y.dtype)
            found[name] = part
        return found

    def _packed(self, name: str, value: Numeric) -> Float[Numeric, "... n"]:
        upper = np.triu_indices(value.shape[-1]) if name in self.field.symmetric else None
        return value if upper is None else value[..., upper[0], upper[1]]


@partial(jax.jit, static_argnums=0)
def _flat_rate(form: Flat, each: Tree, shared: Tree, t: Scalar, y: Float[Array, " n"]) -> Any:
    return form.flat(form.field(each, shared, t, form.shaped(y)))


@partial(jax.jit, static_argnums=(0, 1))
def _flat_watch(form: Flat, watch: Watch, shared: Tree, y: Float[Array, " n"]) -> Any:
    return watch.value(shared, form.shaped(y))


@partial(jax.jit, static_argnums=0)
def _all_shaped(form: Flat, values: Float[Array, "..."]) -> dict[str, Any]:
    return jax.vmap(form.shaped)(values)


@partial(jax.jit, static_argnums=0)
def rates_at(form: Flat, each: Tree, shared: Tree, states: State) -> Float[Numeric, "states replicates n"]:
    """The field of every replicate (outer) and start (inner) at t = 0, flat."""
    return jax.vmap(lambda own: jax.vmap(lambda state: form.flat(form.field(own, shared, 0.0, state)))(states))(each)
