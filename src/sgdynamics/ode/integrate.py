"""Integration of a vector field from many starts: explicit first, by LSODA at late times.

A `Case` is prepared before anything runs. `run_cases` integrates any number of cases: those that
share a compiled program are lanes of it, each with its own step sizes, so that a lane does not
depend on the others.
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
from sgdynamics.ode.explicit import LONGEST, Form, Loop, advance, first_loop, form_of, unflatten
from sgdynamics.ode.stiff import EVENT_TOLERANCE, integrate_lsoda

if TYPE_CHECKING:
    import diffrax

RTOL = 1e-8
ATOL = 1e-10
# Ratio of the local to the requested tolerance: errors accumulate, and the risk is a small
# difference of overlaps.
MARGIN = 1e-3
# Explicit steps before LSODA takes over: more than nearly all smooth trajectories need, and cheap.
MOST_STEPS = 600
# bound of a state at t = 0, see `largest`
LARGEST = 1e6
# explicit steps before the time of a step is measured
FIRST_STRETCH = 2
# seconds between two updates of the progress
STRETCH = 0.5
# explicit steps after which the step length is representative of later ones
GROWING = 6
# nodes of an expectation, over all runs, above which exit times may take minutes
HEAVY = 1e5
# entries of a state up to which compilation outweighs the run
FEW_NUMBERS = 128


class Field(ABC):
    """A vector field d state/dt = field(each, shared, t, state), static and hashable.

    The state is a dictionary of arrays. `each` has a leading axis of replicates (the points of a
    sampled expectation); `shared` contains all other parameters.
    """

    # names of symmetric matrices, of which LSODA integrates the upper triangle
    symmetric: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, each: PyTree, shared: PyTree, t: Scalar, state: State) -> Any:
        """Return d state/dt of one run."""

    def on_symmetric(self, each: PyTree, shared: PyTree, t: Scalar, state: State) -> Any:
        """Return the symmetric part of the rate at the symmetric part of the state.

        The formulas of the drift extend to matrices that are not symmetric, and their antisymmetric
        modes can be unstable: rounding errors of 1e-16 would grow exponentially and destroy a
        stable solution. On the symmetric part they have no dynamics.
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
    """A stopping criterion: a run stops where its value falls below a level. Static, hashable."""

    @abstractmethod
    def value(self, shared: PyTree, state: State) -> Any:
        """Return the value at one state; `shared` is that of the field."""


@dataclass(frozen=True, eq=False)
class Case:
    """One integration, with all choices made before anything runs.

    `each` has a leading axis of replicates, `states` one of runs. If `shared` contains "units" by
    variable, states are integrated in these units, so that one absolute tolerance suits all of
    them; results are not.
    """

    field: Field
    replicates: Any
    shared: Any
    states: dict[str, np.ndarray]
    # save points in the variable of integration, increasing
    times: np.ndarray
    tolerance: dict[str, Any]
    # with a stopping criterion only the end is stored, where it fell below `levels`
    watch: Watch | None = None
    levels: np.ndarray | None = None
    # whether its replicates are its own, so that it cannot share a program
    alone: bool = False

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Traced inputs in addition to `each`.

        Save points are padded to a power of two, because their number is a shape.
        """
        levels = (
            np.zeros(len(next(iter(self.states.values())))) if self.levels is None else self.levels
        )
        return self.shared, self.states, levels, pad_with_last(self.times), self.tolerance

    @property
    def stretch(self) -> tuple[Any, ...]:
        """Traced inputs of a stretch of explicit steps, with the initial loop state."""
        times, replicates = pad_with_last(self.times), len(jax.tree.leaves(self.replicates)[0])
        return self.shared, times, self.tolerance, first_loop(self.states, times, replicates)

    @property
    def key(self) -> Hashable:
        """Cases with the same key can be lanes of one program."""
        leaves, form = jax.tree.flatten(self.numbers)
        return (
            (id(self) if self.alone else 0),
            self.field,
            self.watch,
            form,
            tuple(np.shape(leaf) for leaf in leaves),
        )


def from_units(shared: PyTree, state: State) -> Any:
    """Return a state that was integrated in other units in those of the library."""
    units = shared.get("units")
    return state if units is None else {name: value * units[name] for name, value in state.items()}


def in_units(shared: PyTree, state: State) -> Any:
    """Return a state or rate of the library in the units of the integration."""
    units = shared.get("units")
    return state if units is None else {name: value / units[name] for name, value in state.items()}


class ExplicitResult(NamedTuple):
    """Result of the explicit method.

    It has the states at the save points (infinite beyond the last time), the last state and its
    time, whether the trajectory left its bounds, and whether its steps ran out.
    """

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class IntegrationResult(NamedTuple):
    """Result of an integration.

    Attributes
    ----------
    states : dict
        States (replicate, run, time, ...), NaN after divergence or after the steps ran out.
    used_lsoda : bool
        Whether LSODA was used.
    ran_out : array of bool, (run,)
        Whether the steps ran out.
    exits : array, (replicate, run)
        Times at which the stopping criterion was met, NaN elsewhere.
    diverged : array of bool, (replicate, run)
        Whether the solution diverged.
    """

    states: dict[str, np.ndarray]
    used_lsoda: bool
    ran_out: np.ndarray
    exits: np.ndarray
    diverged: np.ndarray


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
    """Integrate one trajectory from 0 by Dormand-Prince 8(7), or by Kvaerno 5(4) if `stiff`.

    The result contains the states at `times`, by dense output, and the last one. With `guard` the
    integration stops where the state leaves its bounds (an event, which reverse mode does not
    need). With `watch`, a function of the state, it stops where that falls below zero, at a time
    found by bisection, and only the end is saved.
    """
    # imported here, because it takes as long as a small solution and most solutions do not need it
    import diffrax
    import optimistix

    # jitted separately, so that the field is traced once although the integrator calls it
    # repeatedly
    rate = jax.jit(field.on_symmetric)

    def has_diverged(t: Scalar, y: State, args: PyTree, **_: object) -> Bool[Numeric, ""]:
        return jnp.logical_not(_inside(t, y))

    event = diffrax.Event(has_diverged) if guard else None
    if watch is not None:
        # flip is set explicitly: runs without an event get a function that is 0 at the end, which
        # the automatic detection rejects
        root_finder = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # bisection needs one condition for both: a diverged state counts as below zero
        event = diffrax.Event(
            lambda t, y, args, **_: jnp.where(has_diverged(t, y, args), -1.0, watch(y)),
            root_finder=root_finder,
        )
    at_end = diffrax.SubSaveAt(t1=True)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: rate(each, shared, t, y)),
        diffrax.Kvaerno5() if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=state,
        # with a criterion only the end is used; it is saved twice, so that results have one form
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
    """Return the bound beyond which overlaps count as diverged.

    Some grow legitimately as a power of t (Hebb's Q as t^2); a divergence soon exceeds any power.
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
    """Advance all replicates (outer axis) and runs (inner axis) of a case, up to `most` steps."""

    def advance_run(own: PyTree, loop: Loop) -> Loop:
        compiled = jax.jit(field)  # called in several places, traced once

        def rate(t: Scalar, state: State) -> Any:
            return compiled(own, shared, t, _symmetric(field, state))

        return advance(rate, form, loop, times, tolerance["rtol"], tolerance["atol"], _inside, most)

    return _for_each(lambda own, loops: _for_each(partial(advance_run, own), loops), each, loops)


def _symmetric(field: Field, state: State) -> State:
    """Return the state with its symmetric matrices symmetric to the last bit.

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
    """Integrate all replicates and runs until the criterion falls below its level."""
    import diffrax

    def exit_run(own: PyTree, state: State, level: Scalar) -> ExplicitResult:
        criterion = partial(_below, watch, shared, level)
        solution = integrate(
            field, own, shared, state, times, tolerance["rtol"], tolerance["atol"], watch=criterion
        )
        states: Any = solution.ys
        end_times: Any = solution.ts
        last = jax.tree.map(lambda leaf: leaf[0], states[1])
        stopped: Any = solution.event_mask
        # an event with a state inside its bounds is an exit, not a divergence
        left = stopped & (_size(last) < largest(end_times[1][0]) / 2)
        return ExplicitResult(
            states[0],
            last,
            end_times[1][0],
            left,
            solution.result == diffrax.RESULTS.max_steps_reached,
        )

    return _for_each(lambda own: _for_each(partial(exit_run, own), states, levels), each)


def _for_each(function: Callable[..., Any], *trees: PyTree) -> Any:
    """Apply `jax.vmap`, without a batch axis for a single element.

    A vectorised loop is a larger program, because every element has its own end.
    """
    if any(len(leaf) != 1 for leaf in jax.tree.leaves(trees)):
        return jax.vmap(function)(*trees)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[None], function(*jax.tree.map(lambda leaf: leaf[0], trees))
    )


def _reach_lanes(field: Field, form: Form, each: PyTree, *numbers: PyTree) -> Loop:
    """Advance cases of one program as lanes; the last input, `most`, is common to all."""
    return jax.vmap(partial(_reach, field, form, each), (*[0] * (len(numbers) - 1), None))(*numbers)


def _exit_lanes(field: Field, watch: Watch, each: PyTree, *numbers: PyTree) -> ExplicitResult:
    return jax.vmap(partial(_exit, field, watch, each))(*numbers)


@cache
def _compiled(function: Callable[..., Any], small: bool) -> Callable[..., Any]:
    return jax.jit(
        function, static_argnums=(0, 1), compiler_options=older_generator() if small else None
    )


def _program(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return the compiled function for cases like this one.

    For small states a fast compilation matters more than fast code.
    """
    size = sum(value[0].size for value in case.states.values())
    return _compiled(function, size <= FEW_NUMBERS)


def group_by_program(cases: dict[Any, Case], size: int) -> list[list[Any]]:
    """Return groups of at most `size` names of cases that share one program."""
    groups: dict[Hashable, list[Any]] = {}
    for name, case in cases.items():
        groups.setdefault(case.key, []).append(name)
    return [
        names[first : first + size]
        for names in groups.values()
        for first in range(0, len(names), size)
    ]


def run_cases(cases: list[Case], size: int = 1) -> list[IntegrationResult | ValueError]:
    """Integrate cases with the same key: together explicitly, then one by one by LSODA.

    A case that fails is returned as its error.
    """
    results = _run_cases(cases, size)
    meter = current_meter()
    if meter is not None:
        meter.finish_unit()
    return results


def _announce_exits(case: Case) -> None:
    """Warn if exit times take long: their integrator runs in one call without progress."""
    meter, runs = current_meter(), len(next(iter(case.states.values())))
    if meter is None or runs * sum(leaf.size for leaf in jax.tree.leaves(case.replicates)) < HEAVY:
        return
    own = jax.tree.map(lambda leaf: leaf[0], case.replicates)
    state = {name: value[0] for name, value in case.states.items()}
    rate = jax.jit(case.field.on_symmetric)

    def evaluate() -> None:
        jax.block_until_ready(rate(own, case.shared, 0.0, state))

    warn_from_evaluation(meter, evaluate, "drift", runs)


def _run_cases(cases: list[Case], size: int) -> list[IntegrationResult | ValueError]:
    first = cases[0]
    if first.times[-1] == 0.0:
        return [_result_at_start(case) for case in cases]
    if first.watch is not None:
        if len(cases) == 1 and size == 1:
            _announce_exits(first)
            return [
                _continue_late(
                    first,
                    _program(_exit, first)(
                        first.field, first.watch, first.replicates, *first.numbers
                    ),
                )
            ]
        lanes = _program(_exit_lanes, first)(
            first.field,
            first.watch,
            first.replicates,
            *stack_lanes([case.numbers for case in cases], size),
        )
        lanes = jax.tree.map(np.asarray, lanes)
        return [
            _continue_late(case, jax.tree.map(lambda leaf, row=row: leaf[row], lanes))
            for row, case in enumerate(cases)
        ]
    if len(cases) == 1 and size == 1:
        return [
            _continue_late(
                first, _explicit_result(first, _advance_all(_reach, first, first.stretch))
            )
        ]
    loops = _advance_all(_reach_lanes, first, stack_lanes([case.stretch for case in cases], size))
    loops = Loop(*(np.asarray(leaf) for leaf in loops))
    return [
        _continue_late(case, _explicit_result(case, Loop(*(leaf[row] for leaf in loops))))
        for row, case in enumerate(cases)
    ]


# seconds per step of programs that have run
_PACE: dict[Hashable, float] = {}


def _advance_all(function: Callable[..., Loop], case: Case, numbers: tuple[Any, ...]) -> Loop:
    """Advance all trajectories of a program by the explicit method, and return NumPy arrays.

    All steps run in one call of the compiled loop if they are known to be fast. Otherwise the
    loop returns about every STRETCH seconds, so that progress can be shown and the cost estimated.
    The steps are the same, and so is the program, as `most` is traced.
    """
    program, form = _program(function, case), form_of(case.states, 1)
    *inputs, loops = numbers
    pace = (function, case.field, loops.y.shape)
    per_step, taken = _PACE.get(pace), 0
    end = np.asarray(inputs[1])[..., -1, None, None]  # per lane
    while True:
        stretch = FIRST_STRETCH if per_step is None else max(1, int(STRETCH / per_step))
        began = perf_counter()
        loops = program(
            case.field,
            form,
            case.replicates,
            *inputs,
            loops,
            np.int64(min(taken + stretch, MOST_STEPS)),
        )
        t = np.asarray(loops.t)
        seconds = perf_counter() - began
        if per_step is not None and (t >= end).all():
            break  # copying more from the device would take as long as a small solution
        left, count = np.asarray(loops.left), int(np.asarray(loops.steps).max())
        # the first stretch of a program includes its compilation, so the second is measured
        if taken > 0 or per_step is not None:
            per_step = _PACE[pace] = seconds / max(count - taken, 1)
        taken = count
        if count >= MOST_STEPS or not ((t < end) & ~left).any():
            break
        if per_step is not None:
            _show(loops, end, taken, per_step)
    return loops._replace(t=t, saved=np.asarray(loops.saved))


def _show(loops: Loop, end: Any, taken: int, per_step: float) -> None:
    """Update the progress, and warn if the remaining work is expected to take long."""
    meter = current_meter()
    if meter is None:
        return
    meter.reach(_fraction_done(np.asarray(loops.t), end))
    left = _steps_left(loops, end, taken)
    reason = (
        f"{per_step / (STAGES - 1):.2g} s per evaluation of the drift, "
        f"{(STAGES - 1) * (taken + left)} evaluations or more per solution, "
        f"{meter.total:g} solutions"
    )
    steps = left + (taken + left) * (meter.total - meter.finished - 1)
    warn_if_long(meter, per_step * steps, reason)


def _steps_left(loops: Loop, end: Any, taken: int) -> int:
    """Estimate the remaining explicit steps; a lower bound while the steps still grow."""
    t, until = np.asarray(loops.t), np.asarray(loops.until)
    ahead, h = np.maximum(end - t, 0.0), np.maximum(until - t, 1e-300)
    if taken >= GROWING:
        counts = ahead / h
    else:  # steps that grow by the factor LONGEST
        counts = np.log(1 + (LONGEST - 1) * ahead / h) / np.log(LONGEST)
    counts = np.where(np.asarray(loops.left), 0.0, counts)
    return int(min(np.ceil(counts.max()), MOST_STEPS - taken))


def _fraction_done(t: Any, end: Any) -> float:
    """Return the fraction of the work done at time t.

    Steps grow with time, so that late times count by their logarithm.
    """
    return float(np.mean(np.log1p(t) / np.log1p(end)))


def _explicit_result(case: Case, loops: Loop) -> ExplicitResult:
    """Return the explicit result of one case, with the last states if LSODA continues."""
    form, end = form_of(case.states, 1), case.times[-1]
    no_exit = np.zeros(loops.t.shape, dtype=bool)
    saved: Any = _symmetric(case.field, unflatten(form, loops.saved))
    if (loops.t >= end).all():
        return ExplicitResult(saved, {}, loops.t, no_exit, no_exit)
    full = (loops.t < end) & ~np.asarray(loops.left)
    return ExplicitResult(saved, unflatten(form, np.asarray(loops.y)), loops.t, no_exit, full)


def raise_if_error(outcome: Any) -> Any:
    """Return the outcome of a case, or raise it if it is an error."""
    if isinstance(outcome, ValueError):
        raise outcome
    return outcome


def _result_at_start(case: Case) -> IntegrationResult:
    """Return the result of a case that ends at t = 0."""
    runs = len(next(iter(case.states.values())))
    states = {name: np.asarray(value)[None, :, None] for name, value in case.states.items()}
    return IntegrationResult(
        from_units(case.shared, states),
        False,
        np.zeros(runs, bool),
        np.full((1, runs), np.nan),
        np.zeros((1, runs), bool),
    )


def _continue_late(case: Case, explicit: ExplicitResult) -> IntegrationResult | ValueError:
    """Return the result of a case; runs that the explicit method did not finish use LSODA."""
    t = case.times
    states = {}
    for name, value in explicit.saved.items():
        # sliced on the host, because every shape would be a program on the device
        states[name] = np.array(np.asarray(value)[:, :, : len(t)])
        states[name][~np.isfinite(states[name])] = np.nan
    full, time, left = np.asarray(explicit.full), np.array(explicit.time), np.array(explicit.left)
    tired = np.zeros(full.shape, dtype=bool)
    for replicate, run in zip(*np.nonzero(full), strict=True):
        own = jax.tree.map(lambda leaf, replicate=replicate: leaf[replicate], case.replicates)
        state = {name: np.asarray(value[replicate, run]) for name, value in explicit.last.items()}
        t0 = float(time[replicate, run])
        is_late = t > t0
        try:
            end, values = _long_run(
                case,
                own,
                state,
                t0,
                t[is_late],
                0.0 if case.levels is None else float(case.levels[run]),
            )
        except ValueError as error:
            return error
        for name, value in values.items() if case.watch is None else ():
            states[name][replicate, run, is_late] = value
        time[replicate, run], left[replicate, run], tired[replicate, run] = (
            end.time,
            end.ended == "event",
            end.ended == "exhausted",
        )
    # stopped before the end without an exit: diverged
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
    """Integrate one trajectory that the explicit method did not finish by LSODA."""
    form = Flat(case.field, tuple((name, value.shape) for name, value in state.items()))
    # copied to the device once, not at each of thousands of calls
    inputs = jax.tree.map(jnp.asarray, (own, case.shared))

    def field(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_flat_rate(form, *inputs, t, y))

    y = np.asarray(form.flat(state))
    fix = (
        "late times need an implicit method. Use fewer covariance blocks, a smaller width, or "
        "shorter times."
    )
    check_memory(
        "times",
        float(times[-1]) if len(times) else t0,
        24.0 * len(y) ** 2,
        f"the Jacobian of {len(y)} overlaps",
        fix,
    )
    if not np.all(np.isfinite(field(t0, y))):
        raise ValueError(
            f"problem: its drift is not finite at t = {t0:.4g}. The loss, an activation or the target is "
            "NaN or infinite there; make it finite for every real field."
        )
    criterion = (
        None
        if case.watch is None
        else lambda y: float(_flat_watch(form, case.watch, inputs[1], y)) - level
    )
    meter, end = current_meter(), times[-1] if len(times) else t0
    report = None if meter is None or end == 0 else lambda t: meter.reach(_fraction_done(t, end))
    setting = {
        "report": report,
        "loosest": 1 / MARGIN,
        "inside": lambda t, y: bool(np.sum(np.abs(y)) < largest(t)),
        "watch": criterion,
    }
    solution = integrate_lsoda(
        field, y, t0, times, float(case.tolerance["rtol"]), float(case.tolerance["atol"]), **setting
    )
    values = _unflatten_all(form, solution.values.T)
    return solution, {name: np.asarray(value) for name, value in values.items()}


@dataclass(frozen=True)
class Flat:
    """A state as one vector of its variables in order, with upper triangles of symmetric matrices."""

    field: Field
    form: tuple[tuple[str, tuple[int, ...]], ...]

    def flat(self, state: State) -> Float[Numeric, " n"]:
        return jnp.concatenate(
            [self._pack(name, jnp.asarray(state[name])).reshape(-1) for name, _ in self.form]
        )

    def unflatten(self, y: Float[Array, " n"]) -> dict[str, Any]:
        state, offset = {}, 0
        for name, shape in self.form:
            packed = jax.eval_shape(partial(self._pack, name), jax.ShapeDtypeStruct(shape, y.dtype))
            values = y[offset : offset + packed.size].reshape(packed.shape)
            offset += packed.size
            if name in self.field.symmetric:
                upper = np.triu_indices(shape[-1])
                half = jnp.zeros(shape, y.dtype).at[..., upper[0], upper[1]].set(values)
                values = (
                    half + jnp.swapaxes(half, -1, -2) - half * jnp.eye(shape[-1], dtype=y.dtype)
                )
            state[name] = values
        return state

    def _pack(self, name: str, value: Numeric) -> Float[Numeric, "... n"]:
        upper = np.triu_indices(value.shape[-1]) if name in self.field.symmetric else None
        return value if upper is None else value[..., upper[0], upper[1]]


@partial(jax.jit, static_argnums=0)
def _flat_rate(form: Flat, each: PyTree, shared: PyTree, t: Scalar, y: Float[Array, " n"]) -> Any:
    return form.flat(form.field(each, shared, t, form.unflatten(y)))


@partial(jax.jit, static_argnums=(0, 1))
def _flat_watch(form: Flat, watch: Watch, shared: PyTree, y: Float[Array, " n"]) -> Any:
    return watch.value(shared, form.unflatten(y))


@partial(jax.jit, static_argnums=0)
def _unflatten_all(form: Flat, values: Float[Array, "..."]) -> dict[str, Any]:
    return jax.vmap(form.unflatten)(values)


@partial(jax.jit, static_argnums=0)
def rates_at(
    form: Flat, each: PyTree, shared: PyTree, states: State
) -> Float[Numeric, "states replicates n"]:
    """Return the flat rate of all replicates (outer axis) and runs (inner axis) at t = 0."""
    return jax.vmap(
        lambda own: jax.vmap(lambda state: form.flat(form.field(own, shared, 0.0, state)))(states)
    )(each)
