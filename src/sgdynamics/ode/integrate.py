"""The solve core: a field integrated from many starts, explicitly, and at long times by LSODA from where the explicit method stopped.

A solve is a `Case`, prepared before anything runs; `run_cases` runs any number of them, those of
one program as lanes of it, each with its own step sizes, so that a lane's numbers do not depend on
which others run beside it; what comes back is `Solved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.code_generator import older_generator
from sgdynamics.base.padding import pad_with_last
from sgdynamics.base.progress import current_meter, warn_from_evaluation, warn_if_long
from sgdynamics.base.resources import check_memory
from sgdynamics.expectations.risk import stack_lanes
from sgdynamics.ode.dormand_prince import STAGES
from sgdynamics.ode.explicit import LONGEST, Form, Loop, advance, first_loop, form_of, shaped
from sgdynamics.ode.stiff import EVENT_TOLERANCE, follow

if TYPE_CHECKING:
    import diffrax

RTOL = 1e-8
ATOL = 1e-10
MARGIN = 1e-3  # local tolerance over the one asked for: errors add up, and the risk is a small difference of overlaps
MOST_STEPS = 600  # explicit steps before LSODA takes over: beyond nearly all smooth trajectories, and cheap to waste
LARGEST = 1e6  # see `largest`
FIRST_STRETCH = 2  # explicit steps before the time of a step is looked at
STRETCH = 0.5  # seconds between two looks at the progress
GROWING = 6  # explicit steps after which the length of a step tells that of the later ones
HEAVY = 1e5  # numbers of an expectation's nodes, over all runs, above which exits may take minutes
FEW_NUMBERS = 128  # of a state: with more, running outweighs compiling


class Field(ABC):
    """A right-hand side, static and hashable: d state/dt = field(each, shared, t, state), the state a dictionary of arrays.

    `each` are numbers that come in replicates (points of a sampled expectation), `shared` all
    others.
    """

    symmetric: tuple[
        str, ...
    ] = ()  # variables that are symmetric matrices: LSODA sees a triangle of them

    @abstractmethod
    def __call__(self, each: PyTree, shared: PyTree, t: Scalar, state: State) -> Any:
        """d state/dt of one run."""

    def on_symmetric(self, each: PyTree, shared: PyTree, t: Scalar, state: State) -> Any:
        """Evaluate the field at the symmetric part of the state, and return the symmetric part of the rate.

        The formulas of the drift extend to matrices that are not symmetric, and there antisymmetric
        modes can be unstable: rounding errors of 1e-16 then grow exponentially and ruin a solution
        that is itself stable. On the symmetric part they have no dynamics.
        """
        rate = self(each, shared, t, self._symmetric_part(state))
        return self._symmetric_part(rate)

    def _symmetric_part(self, state: State) -> Any:
        halves = {name: state[name] / 2 for name in self.symmetric}
        return {
            **state,
            **{name: half + jnp.swapaxes(half, -1, -2) for name, half in halves.items()},
        }


class Watch(ABC):
    """A number that falls below a level where a run is to stop; static and hashable."""

    @abstractmethod
    def value(self, shared: PyTree, state: State) -> Any:
        """The number, at one state; `shared` are those of the field."""


@dataclass(frozen=True, eq=False)
class Case:
    """One solve, prepared: everything that is checked and chosen before anything runs. Axes: replicates of `each`, runs of `states`.

    Where `shared` has "units" by variable, states are given in them, so that one absolute tolerance
    is right for all; solutions are not.
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
        """What is traced beside `each`.

        Save points, whose number is a shape, are filled up to a power of two.
        """
        levels = (
            np.zeros(len(next(iter(self.states.values())))) if self.levels is None else self.levels
        )
        return self.shared, self.states, levels, pad_with_last(self.times), self.tolerance

    @property
    def stretch(self) -> tuple[Any, ...]:
        """What is traced in a stretch of explicit steps beside `each`.

        With where the trajectories begin.
        """
        times, replicates = pad_with_last(self.times), len(jax.tree.leaves(self.each)[0])
        return self.shared, times, self.tolerance, first_loop(self.states, times, replicates)

    @property
    def key(self) -> Hashable:
        """Cases with the same key may be lanes of one program."""
        leaves, form = jax.tree.flatten(self.numbers)
        return (
            (id(self) if self.alone else 0),
            self.field,
            self.watch,
            form,
            tuple(np.shape(leaf) for leaf in leaves),
        )


def from_units(shared: PyTree, state: State) -> Any:
    """A state in the library's own units, where it was integrated in others."""
    units = shared.get("units")
    return state if units is None else {name: value * units[name] for name, value in state.items()}


def in_units(shared: PyTree, state: State) -> Any:
    """The other way round; also of d state/dt."""
    units = shared.get("units")
    return state if units is None else {name: value / units[name] for name, value in state.items()}


class ExplicitResult(NamedTuple):
    """States at the save points (inf beyond what was reached), the last state and its time, whether it had left, or its steps run out."""

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class IntegrationResult(NamedTuple):
    """States (replicate, run, time, ...), NaN from where a solution left every bound or its steps ran out; which method, and who did.

    With a watch the times at which runs left (NaN elsewhere) and who diverged, (replicate, run), in
    place of states.
    """

    states: dict[str, np.ndarray]
    long: bool
    tired: np.ndarray  # (run,)
    exits: np.ndarray
    blown: np.ndarray


def integrate(
    field: Field,
    each: PyTree,
    shared: PyTree,
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

    With `guard` it stops where the state leaves every bound (an event, which reverse mode need not
    carry). With `watch`, a function of the state, it stops where that falls below zero, the time
    found by bisection, and only the end is saved.
    """
    import diffrax  # here: its import takes as long as a small solution, and most solutions do without
    import optimistix

    # jitted on its own: the integrator names the field in several places, and this way it is traced
    # once
    moving = jax.jit(field.on_symmetric)

    def blown_up(t: Scalar, y: State, args: PyTree, **_: object) -> Bool[Numeric, ""]:
        return jnp.logical_not(_inside(t, y))

    event = diffrax.Event(blown_up) if guard else None
    if watch is not None:
        # flip: told, not detected, for runs without an event get a function that is 0 at the end,
        # which detection refuses
        found = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # one condition for both, as bisection takes one: a state beyond every bound counts as below
        # zero
        event = diffrax.Event(
            lambda t, y, args, **_: jnp.where(blown_up(t, y, args), -1.0, watch(y)),
            root_finder=found,
        )
    at_end = diffrax.SubSaveAt(t1=True)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: moving(each, shared, t, y)),
        diffrax.Kvaerno5() if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=state,
        # with a watch only its end is of use; twice, so that what is saved has one form
        saveat=diffrax.SaveAt(
            subs=[diffrax.SubSaveAt(ts=times) if watch is None else at_end, at_end]
        ),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=event,
        max_steps=MOST_STEPS if most is None else most,
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        throw=False,
    )


def _below(watch: Watch, shared: PyTree, level: Scalar, state: State) -> Float[Numeric, ""]:
    return watch.value(shared, state) - level


def largest(t: Any) -> Any:
    """Overlaps beyond this have diverged.

    Some rightly grow as a power of t (Hebb's Q as t^2); what explodes passes any power soon.
    """
    return LARGEST * (1 + t) ** 2


def _inside(t: Scalar, state: State) -> Bool[Numeric, ""]:
    return _size(state) < largest(t)


def _size(state: State) -> Scalar:
    return sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state))


def _reach(
    field: Field,
    form: Form,
    each: PyTree,
    shared: PyTree,
    times: Float[Array, " times"],
    tolerance: Parameters,
    loops: Loop,
    most: IntScalar,
) -> Loop:
    """Every replicate (outer) and every start (inner) of one case, by the explicit method, up to `most` steps."""

    def advance_run(own: PyTree, loop: Loop) -> Loop:
        compiled = jax.jit(field)  # named in several places, traced once

        def moving(t: Scalar, state: State) -> Any:
            return compiled(own, shared, t, _symmetric(field, state))

        return advance(
            moving, form, loop, times, tolerance["rtol"], tolerance["atol"], _inside, most
        )

    return _for_each(lambda own, loops: _for_each(partial(advance_run, own), loops), each, loops)


def _symmetric(field: Field, state: State) -> State:
    """The state with its symmetric matrices symmetric to the last bit.

    The drift may amplify antisymmetric rounding errors.
    """
    return {
        name: (value + value.swapaxes(-1, -2)) / 2 if name in field.symmetric else value
        for name, value in state.items()
    }


def _exit(
    field: Field,
    watch: Watch,
    each: PyTree,
    shared: PyTree,
    states: State,
    levels: Float[Numeric, " runs"],
    times: Float[Array, " times"],
    tolerance: Parameters,
) -> ExplicitResult:
    """The same to where the watched number falls below its level."""
    import diffrax

    def exit_run(own: PyTree, state: State, level: Scalar) -> ExplicitResult:
        seen = partial(_below, watch, shared, level)
        found = integrate(
            field, own, shared, state, times, tolerance["rtol"], tolerance["atol"], watch=seen
        )
        states_found: Any = found.ys
        times_found: Any = found.ts
        last = jax.tree.map(lambda leaf: leaf[0], states_found[1])
        stopped: Any = found.event_mask
        left = stopped & (_size(last) < largest(times_found[1][0]) / 2)
        return ExplicitResult(
            states_found[0],
            last,
            times_found[1][0],
            left,
            found.result == diffrax.RESULTS.max_steps_reached,
        )

    return _for_each(lambda own: _for_each(partial(exit_run, own), states, levels), each)


def _for_each(function: Callable[..., Any], *trees: PyTree) -> Any:
    """`jax.vmap`; an axis of one is taken off and put on again, as a loop whose end each case has for itself is a larger program."""
    if any(len(leaf) != 1 for leaf in jax.tree.leaves(trees)):
        return jax.vmap(function)(*trees)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[None], function(*jax.tree.map(lambda leaf: leaf[0], trees))
    )


def _reach_lanes(field: Field, form: Form, each: PyTree, *numbers: PyTree) -> Loop:
    """Cases of one program, each with its own numbers; the last of them, `most`, is that of all."""
    return jax.vmap(partial(_reach, field, form, each), (*[0] * (len(numbers) - 1), None))(*numbers)


def _exit_lanes(field: Field, watch: Watch, each: PyTree, *numbers: PyTree) -> ExplicitResult:
    return jax.vmap(partial(_exit, field, watch, each))(*numbers)


@cache
def _compiled(function: Callable[..., Any], small: bool) -> Callable[..., Any]:
    return jax.jit(
        function, static_argnums=(0, 1), compiler_options=older_generator() if small else None
    )


def _program(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """A function of cases such as this, compiled.

    Few numbers are computed in no time, many the slower the less the compiler did.
    """
    numbers = sum(value[0].size for value in case.states.values())
    return _compiled(function, numbers <= FEW_NUMBERS)


def group_by_program(cases: dict[Any, Case], size: int) -> list[list[Any]]:
    """The names of cases that run as one program each, at most `size`."""
    found: dict[Hashable, list[Any]] = {}
    for name, case in cases.items():
        found.setdefault(case.key, []).append(name)
    return [
        names[first : first + size]
        for names in found.values()
        for first in range(0, len(names), size)
    ]


def run_cases(cases: list[Case], size: int = 1) -> list[IntegrationResult | ValueError]:
    """Cases of one key: together by the explicit method, and the rest each alone by LSODA.

    A case that fails is its error.
    """
    solved = _run_cases(cases, size)
    shown = current_meter()
    if shown is not None:
        shown.finish_unit()
    return solved


def _announce_exits(case: Case) -> None:
    """Warn where exits take long: their integrator runs in one call, which shows no progress."""
    shown, runs = current_meter(), len(next(iter(case.states.values())))
    if shown is None or runs * sum(leaf.size for leaf in jax.tree.leaves(case.each)) < HEAVY:
        return
    own = jax.tree.map(lambda leaf: leaf[0], case.each)
    state = {name: value[0] for name, value in case.states.items()}
    rate = jax.jit(case.field.on_symmetric)

    def evaluate() -> None:
        jax.block_until_ready(rate(own, case.shared, 0.0, state))

    warn_from_evaluation(shown, evaluate, "drift", runs)


def _run_cases(cases: list[Case], size: int) -> list[IntegrationResult | ValueError]:
    first = cases[0]
    if first.times[-1] == 0.0:
        return [_still(case) for case in cases]
    if first.watch is not None:
        if len(cases) == 1 and size == 1:
            _announce_exits(first)
            return [
                _finished(
                    first,
                    _program(_exit, first)(first.field, first.watch, first.each, *first.numbers),
                )
            ]
        together = _program(_exit_lanes, first)(
            first.field,
            first.watch,
            first.each,
            *stack_lanes([case.numbers for case in cases], size),
        )
        together = jax.tree.map(np.asarray, together)
        return [
            _finished(case, jax.tree.map(lambda leaf, row=row: leaf[row], together))
            for row, case in enumerate(cases)
        ]
    if len(cases) == 1 and size == 1:
        return [_finished(first, _reached(first, _advance_all(_reach, first, first.stretch)))]
    loops = _advance_all(_reach_lanes, first, stack_lanes([case.stretch for case in cases], size))
    loops = Loop(*(np.asarray(leaf) for leaf in loops))
    return [
        _finished(case, _reached(case, Loop(*(leaf[row] for leaf in loops))))
        for row, case in enumerate(cases)
    ]


_PACE: dict[Hashable, float] = {}  # seconds per step of programs that have run


def _advance_all(function: Callable[..., Loop], case: Case, numbers: tuple[Any, ...]) -> Loop:
    """Every trajectory of a program by the explicit method, as NumPy arrays.

    All steps run in one call of the compiled loop where they are known to be fast. Otherwise the
    loop returns about every STRETCH seconds, so that progress can be shown and the cost estimated.
    The steps are the same, and so is the program, as `most` is traced.
    """
    program, form = _program(function, case), form_of(case.states, 1)
    *given, loops = numbers
    pace = (function, case.field, loops.y.shape)
    per_step, made = _PACE.get(pace), 0
    end = np.asarray(given[1])[..., -1, None, None]  # of each lane
    while True:
        stretch = FIRST_STRETCH if per_step is None else max(1, int(STRETCH / per_step))
        began = perf_counter()
        loops = program(
            case.field, form, case.each, *given, loops, np.int64(min(made + stretch, MOST_STEPS))
        )
        t = np.asarray(loops.t)
        seconds = perf_counter() - began
        if per_step is not None and (t >= end).all():
            break  # nothing more is copied from the device: a small solution takes no longer than the copies
        left, count = np.asarray(loops.left), int(np.asarray(loops.steps).max())
        # the first stretch of a program includes its compilation: the second tells how long steps
        # take
        if made > 0 or per_step is not None:
            per_step = _PACE[pace] = seconds / max(count - made, 1)
        made = count
        if count >= MOST_STEPS or not ((t < end) & ~left).any():
            break
        if per_step is not None:
            _show(loops, end, made, per_step)
    return loops._replace(t=t, saved=np.asarray(loops.saved))


def _show(loops: Loop, end: Any, made: int, per_step: float) -> None:
    """Show the progress, and warn where the rest is expected to take long."""
    shown = current_meter()
    if shown is None:
        return
    shown.reach(_share(np.asarray(loops.t), end))
    left = _steps_left(loops, end, made)
    each = f"{per_step / (STAGES - 1):.2g} s per evaluation of the drift"
    how = f"{each}, {(STAGES - 1) * (made + left)} evaluations or more per solution, {shown.total:g} solutions"
    warn_if_long(shown, per_step * (left + (made + left) * (shown.total - shown.finished - 1)), how)


def _steps_left(loops: Loop, end: Any, made: int) -> int:
    """How many more explicit steps are needed, about; while steps still grow, how many at least."""
    t, until = np.asarray(loops.t), np.asarray(loops.until)
    ahead, h = np.maximum(end - t, 0.0), np.maximum(until - t, 1e-300)
    each = ahead / h if made >= GROWING else np.log(1 + (LONGEST - 1) * ahead / h) / np.log(LONGEST)
    each = np.where(np.asarray(loops.left), 0.0, each)
    return int(min(np.ceil(each.max()), MOST_STEPS - made))


def _share(t: Any, end: Any) -> float:
    """The share of the work that is done at time t.

    Steps grow with time, so that late times count by their logarithm.
    """
    return float(np.mean(np.log1p(t) / np.log1p(end)))


def _reached(case: Case, loops: Loop) -> ExplicitResult:
    """What the explicit method reached of one case.

    The last states only where LSODA continues from them.
    """
    form, end = form_of(case.states, 1), case.times[-1]
    none_left = np.zeros(loops.t.shape, dtype=bool)
    saved: Any = _symmetric(case.field, shaped(form, loops.saved))
    if (loops.t >= end).all():
        return ExplicitResult(saved, {}, loops.t, none_left, none_left)
    full = (loops.t < end) & ~np.asarray(loops.left)
    return ExplicitResult(saved, shaped(form, np.asarray(loops.y)), loops.t, none_left, full)


def raise_if_error(found: Any) -> Any:
    """What a case gave; where that is its error, it is raised."""
    if isinstance(found, ValueError):
        raise found
    return found


def _still(case: Case) -> IntegrationResult:
    """Nothing to integrate: the start."""
    runs = len(next(iter(case.states.values())))
    states = {name: np.asarray(value)[None, :, None] for name, value in case.states.items()}
    return IntegrationResult(
        from_units(case.shared, states),
        False,
        np.zeros(runs, bool),
        np.full((1, runs), np.nan),
        np.zeros((1, runs), bool),
    )


def _finished(case: Case, found: ExplicitResult) -> IntegrationResult | ValueError:
    """What the explicit method reached, and the rest of those that it did not finish by LSODA."""
    t = case.times
    states = {}
    for name, value in found.saved.items():
        states[name] = np.array(
            np.asarray(value)[:, :, : len(t)]
        )  # cut on the host: on the device every shape is a program
        states[name][~np.isfinite(states[name])] = np.nan
    full, time, left = np.asarray(found.full), np.array(found.time), np.array(found.left)
    tired = np.zeros(full.shape, dtype=bool)
    for replicate, run in zip(*np.nonzero(full), strict=True):
        own = jax.tree.map(lambda leaf, replicate=replicate: leaf[replicate], case.each)
        state = {name: np.asarray(value[replicate, run]) for name, value in found.last.items()}
        t0 = float(time[replicate, run])
        rest = t > t0
        try:
            end, values = _long_run(
                case,
                own,
                state,
                t0,
                t[rest],
                0.0 if case.levels is None else float(case.levels[run]),
            )
        except ValueError as error:
            return error
        for name, value in values.items() if case.watch is None else ():
            states[name][replicate, run, rest] = value
        time[replicate, run], left[replicate, run], tired[replicate, run] = (
            end.time,
            end.ended == "event",
            end.ended == "tired",
        )
    # stopped before the end without leaving: beyond every bound
    blown = ~left & ~tired & (time < t[-1] * (1 - 1e-12))
    return IntegrationResult(
        from_units(case.shared, states),
        bool(full.any()),
        np.any(tired, axis=0, keepdims=True)[0],
        np.where(left, time, np.nan),
        blown,
    )


def _long_run(
    case: Case, own: PyTree, state: State, t0: float, times: np.ndarray, level: float
) -> Any:
    """One trajectory that the explicit method did not finish, in the flat form that LSODA takes."""
    form = Flat(case.field, tuple((name, value.shape) for name, value in state.items()))
    # on the device once, not at each of thousands of calls
    numbers = jax.tree.map(jnp.asarray, (own, case.shared))

    def field(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_flat_rate(form, *numbers, t, y))

    y = np.asarray(form.flat(state))
    fix = "late times need an implicit method: take fewer blocks of the covariance, a smaller width, or shorter times"
    check_memory(
        "times",
        float(times[-1]) if len(times) else t0,
        24.0 * len(y) ** 2,
        f"the Jacobian of {len(y)} overlaps",
        fix,
    )
    if not np.all(np.isfinite(field(t0, y))):
        raise ValueError(
            f"problem: its drift is not finite at t = {t0:.4g}: the loss, an activation or the target gives NaN or infinity there; "
            "make it finite for every real field"
        )
    seen = (
        None
        if case.watch is None
        else lambda y: float(_flat_watch(form, case.watch, numbers[1], y)) - level
    )
    shown, end = current_meter(), times[-1] if len(times) else t0
    report = None if shown is None or end == 0 else lambda t: shown.reach(_share(t, end))
    setting = {
        "report": report,
        "loosest": 1 / MARGIN,
        "inside": lambda t, y: bool(np.sum(np.abs(y)) < largest(t)),
        "watch": seen,
    }
    found = follow(
        field, y, t0, times, float(case.tolerance["rtol"]), float(case.tolerance["atol"]), **setting
    )
    return found, {
        name: np.asarray(value) for name, value in _all_shaped(form, found.values.T).items()
    }


@dataclass(frozen=True)
class Flat:
    """A state as one vector: its variables in order, of symmetric matrices the upper triangles."""

    field: Field
    form: tuple[tuple[str, tuple[int, ...]], ...]

    def flat(self, state: State) -> Float[Numeric, " n"]:
        return jnp.concatenate(
            [self._packed(name, jnp.asarray(state[name])).reshape(-1) for name, _ in self.form]
        )

    def shaped(self, y: Float[Array, " n"]) -> dict[str, Any]:
        found, place = {}, 0
        for name, shape in self.form:
            packed = jax.eval_shape(
                partial(self._packed, name), jax.ShapeDtypeStruct(shape, y.dtype)
            )
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
def _flat_rate(form: Flat, each: PyTree, shared: PyTree, t: Scalar, y: Float[Array, " n"]) -> Any:
    return form.flat(form.field(each, shared, t, form.shaped(y)))


@partial(jax.jit, static_argnums=(0, 1))
def _flat_watch(form: Flat, watch: Watch, shared: PyTree, y: Float[Array, " n"]) -> Any:
    return watch.value(shared, form.shaped(y))


@partial(jax.jit, static_argnums=0)
def _all_shaped(form: Flat, values: Float[Array, "..."]) -> dict[str, Any]:
    return jax.vmap(form.shaped)(values)


@partial(jax.jit, static_argnums=0)
def rates_at(
    form: Flat, each: PyTree, shared: PyTree, states: State
) -> Float[Numeric, "states replicates n"]:
    """The field of every replicate (outer) and start (inner) at t = 0, flat."""
    return jax.vmap(
        lambda own: jax.vmap(lambda state: form.flat(form.field(own, shared, 0.0, state)))(states)
    )(each)
