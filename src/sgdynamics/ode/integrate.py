"""Integration of a vector field from many starts: explicit first, by LSODA at late times.

A `Case` is prepared before anything runs. `run_cases` integrates any number of cases: those that
share a compiled program are lanes of it, each with its own step sizes, so that a lane does not
depend on the others. Runs that need too many explicit steps are continued by LSODA
(`ode.late_times`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.code_generator import older_generator
from sgdynamics.base.cores import map_on_cores
from sgdynamics.base.progress import (
    current_meter,
    describe_work,
    warn_from_evaluation,
    warn_if_long,
)
from sgdynamics.expectations.risk import stack_lanes
from sgdynamics.ode.case import (
    ATOL,
    RTOL,
    Case,
    Field,
    IntegrationResult,
    Watch,
    divergence_bound,
    from_units,
    is_bounded,
    symmetrise,
    total_size,
)
from sgdynamics.ode.deferred import integrate_deferred, is_enabled
from sgdynamics.ode.dormand_prince import STAGES
from sgdynamics.ode.explicit import LONGEST, Form, Loop, advance, form_of, unflatten
from sgdynamics.ode.late_times import ExplicitResult, finish_case, fraction_done
from sgdynamics.ode.stiff import EVENT_TOLERANCE

if TYPE_CHECKING:
    import diffrax

# Result of a function that is mapped over a leading axis.
Result = TypeVar("Result")

# Explicit steps before LSODA takes over: more than nearly all smooth trajectories need, and cheap.
MOST_STEPS = 600
# Explicit steps before the time of a step is measured.
WARMUP_STEPS = 2
# Seconds between two updates of the progress.
PROGRESS_INTERVAL = 0.5
# Explicit steps after which the step length is representative of later ones.
STEPS_BEFORE_ESTIMATE = 6
# Nodes of an expectation, over all runs, above which exit times may take minutes.
MANY_NODES = 1e5
# Entries of a state up to which compilation takes longer than the run.
SMALL_STATE = 128


def integrate(
    field: Field,
    replicate: PyTree,
    shared: PyTree,
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""] = RTOL,
    atol: float | Float[Array, ""] = ATOL,
    *,
    stiff: bool = False,
    guard: bool = True,
    watch: Callable[[State], Float[Numeric, ""]] | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    max_steps: int | None = None,
) -> diffrax.Solution:
    """Integrate one trajectory from 0 by Dormand-Prince 8(7), or by Kvaerno 5(4) if `stiff`.

    The result contains the states at `times`, by dense output, and the last one. With `guard` the
    integration stops where the state leaves its bounds (an event, which reverse mode does not
    need). With `watch`, a function of the state, it stops where that falls below zero, at a time
    found by bisection, and only the end is saved.
    """
    # Imported here, because it takes as long as a small solution and most solutions do not need it.
    import diffrax
    import optimistix

    # Jitted separately, so that the field is traced once although the integrator calls it
    # repeatedly.
    rate = jax.jit(field.on_symmetric)

    def has_diverged(t: Scalar, y: State, args: PyTree, **_: object) -> Bool[Numeric, ""]:
        return jnp.logical_not(is_bounded(t, y))

    event = diffrax.Event(has_diverged) if guard else None
    if watch is not None:
        # flip is set explicitly: runs without an event get a function that is 0 at the end, which
        # the automatic detection rejects.
        root_finder = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # Bisection needs one condition for both: a diverged state counts as below zero.
        event = diffrax.Event(
            lambda t, y, args, **_: jnp.where(has_diverged(t, y, args), -1.0, watch(y)),
            root_finder=root_finder,
        )
    # With a criterion only the end is used; it is saved twice, so that results have one form.
    at_end = diffrax.SubSaveAt(t1=True)
    at_times = diffrax.SubSaveAt(ts=times) if watch is None else at_end
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: rate(replicate, shared, t, y)),
        diffrax.Kvaerno5() if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(subs=[at_times, at_end]),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=event,
        max_steps=MOST_STEPS if max_steps is None else max_steps,
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        throw=False,
    )


def _advance_case(
    field: Field,
    form: Form,
    replicates: PyTree,
    shared: PyTree,
    times: Float[Array, " times"],
    tolerance: Parameters,
    loops: Loop,
    max_steps: IntScalar,
) -> Loop:
    """Advance all replicates (outer axis) and runs (inner axis) of a case up to `max_steps`."""

    def advance_run(replicate: PyTree, loop: Loop) -> Loop:
        compiled = jax.jit(field)  # called in several places, traced once

        def rate(t: Scalar, state: State) -> State:
            return compiled(replicate, shared, t, symmetrise(field, state))

        rtol, atol = tolerance["rtol"], tolerance["atol"]
        return advance(rate, form, loop, times, rtol, atol, is_bounded, max_steps)

    def advance_runs(replicate: PyTree, loops: Loop) -> Loop:
        return _map_leading_axis(partial(advance_run, replicate), loops)

    count = len(jax.tree.leaves(loops)[0])
    if count > 1 and jax.default_backend() == "cpu":  # see `_run_program`
        return jax.lax.map(lambda pair: advance_runs(*pair), (replicates, loops))
    return _map_leading_axis(advance_runs, replicates, loops)


def _run_until_exit(
    field: Field,
    watch: Watch,
    replicates: PyTree,
    shared: PyTree,
    states: State,
    levels: Float[Numeric, " runs"],
    times: Float[Array, " times"],
    tolerance: Parameters,
) -> ExplicitResult:
    """Integrate all replicates and runs until the criterion falls below its level."""
    import diffrax

    def exit_run(replicate: PyTree, state: State, level: Scalar) -> ExplicitResult:
        def distance_to_level(state: State) -> Float[Numeric, ""]:
            return watch.value(shared, state) - level

        solution = integrate(
            field,
            replicate,
            shared,
            state,
            times,
            tolerance["rtol"],
            tolerance["atol"],
            watch=distance_to_level,
        )
        states: Any = solution.ys
        end_times: Any = solution.ts
        end = end_times[1][0]
        last = jax.tree.map(lambda leaf: leaf[0], states[1])
        stopped: Any = solution.event_mask
        # An event with a state well inside its bounds is an exit, not a divergence.
        exited = stopped & (total_size(last) < divergence_bound(end) / 2)
        exhausted = solution.result == diffrax.RESULTS.max_steps_reached
        return ExplicitResult(states[0], last, end, exited, exhausted)

    def exit_runs(replicate: PyTree) -> ExplicitResult:
        return _map_leading_axis(partial(exit_run, replicate), states, levels)

    return _map_leading_axis(exit_runs, replicates)


def _map_leading_axis(function: Callable[..., Result], *trees: PyTree) -> Result:
    """Apply `jax.vmap`, without a batch axis for a single element.

    A vectorised loop is a larger program, because every element has its own end.
    """
    if any(len(leaf) != 1 for leaf in jax.tree.leaves(trees)):
        return jax.vmap(function)(*trees)
    single = function(*jax.tree.map(lambda leaf: leaf[0], trees))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], single)


def _advance_lanes(field: Field, form: Form, replicates: PyTree, *inputs: PyTree) -> Loop:
    """Advance cases of one program as lanes; the last input, `max_steps`, is common to all."""
    axes = (*[0] * (len(inputs) - 1), None)
    return jax.vmap(partial(_advance_case, field, form, replicates), axes)(*inputs)


def _exit_lanes(field: Field, watch: Watch, replicates: PyTree, *inputs: PyTree) -> ExplicitResult:
    """Integrate cases of one program until their criteria, as lanes."""
    return jax.vmap(partial(_run_until_exit, field, watch, replicates))(*inputs)


@cache
def _compile(function: Callable[..., Any], is_small: bool) -> Callable[..., Any]:
    # For small states a fast compilation matters more than fast code.
    options = older_generator() if is_small else None
    return jax.jit(function, static_argnums=(0, 1), compiler_options=options)


def _program(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return the compiled function for cases like this one."""
    size = sum(value[0].size for value in case.states.values())
    return _compile(function, size <= SMALL_STATE)


@runtime_checkable
class HasKey(Protocol):
    """A case, or a request with a case: those with the same key share one compiled program."""

    @property
    def key(self) -> Hashable: ...


def group_by_program(cases: Mapping[int, HasKey], size: int) -> list[list[int]]:
    """Return groups of at most `size` indices of cases or requests that share one program."""
    groups: dict[Hashable, list[int]] = {}
    for index, case in cases.items():
        groups.setdefault(case.key, []).append(index)
    return [
        indices[first : first + size]
        for indices in groups.values()
        for first in range(0, len(indices), size)
    ]


def run_cases(cases: list[Case], size: int = 1) -> list[IntegrationResult | ValueError]:
    """Integrate cases with the same key: together explicitly, then one by one by LSODA.

    A case that fails is returned as its error.
    """
    if cases[0].times[-1] == 0.0:
        results: list[Any] = [_result_at_start(case) for case in cases]
    else:
        explicit_results = _explicit_results(cases, size)
        pairs = zip(cases, explicit_results, strict=True)
        results = [finish_case(case, explicit) for case, explicit in pairs]
    meter = current_meter()
    if meter is not None:
        meter.finish_unit()
    return results


def _explicit_results(cases: list[Case], size: int) -> list[ExplicitResult]:
    """Integrate cases with the same key by the method that suits their field."""
    first = cases[0]
    if first.watch is not None:
        return _explicit_exits(cases, size)
    if first.approximation is None or not is_enabled():
        return _explicit(cases, size)
    deferred = [integrate_deferred(case) for case in cases]
    # A correction that does not become smooth on short windows is not deferred.
    return [
        _explicit([case], 1)[0] if result is None else result
        for case, result in zip(cases, deferred, strict=True)
    ]


def _explicit(cases: list[Case], size: int) -> list[ExplicitResult]:
    """Integrate cases by the explicit method, up to their last save points or MOST_STEPS."""
    first = cases[0]
    if len(cases) == 1 and size == 1:
        return [_explicit_result(first, _advance_all(_advance_case, first, first.explicit_inputs))]
    lanes = stack_lanes([case.explicit_inputs for case in cases], size)
    loops = _advance_all(_advance_lanes, first, lanes)
    loops = Loop(*(np.asarray(leaf) for leaf in loops))
    return [
        _explicit_result(case, Loop(*(leaf[row] for leaf in loops)))
        for row, case in enumerate(cases)
    ]


def _explicit_exits(cases: list[Case], size: int) -> list[ExplicitResult]:
    """Integrate cases by the explicit method until their stopping criteria."""
    first = cases[0]
    if len(cases) == 1 and size == 1:
        _warn_if_exits_take_long(first)
        program = _program(_run_until_exit, first)
        return [program(first.field, first.watch, first.replicates, *first.exit_inputs)]
    inputs = stack_lanes([case.exit_inputs for case in cases], size)
    lanes = _program(_exit_lanes, first)(first.field, first.watch, first.replicates, *inputs)
    lanes = jax.tree.map(np.asarray, lanes)
    return [jax.tree.map(lambda leaf, row=row: leaf[row], lanes) for row in range(len(cases))]


def _warn_if_exits_take_long(case: Case) -> None:
    """Warn if exit times take long: their integrator runs in one call without progress."""
    meter = current_meter()
    nodes = sum(leaf.size for leaf in jax.tree.leaves(case.replicates))
    if meter is None or case.runs * nodes < MANY_NODES:
        return
    replicate = jax.tree.map(lambda leaf: leaf[0], case.replicates)
    state = {name: value[0] for name, value in case.states.items()}
    rate = jax.jit(case.field.on_symmetric)

    def evaluate() -> None:
        jax.block_until_ready(rate(replicate, case.shared, 0.0, state))

    warn_from_evaluation(meter, evaluate, "drift", case.runs)


# Seconds per step of programs that have run.
_PACE: dict[Hashable, float] = {}


def _advance_all(function: Callable[..., Loop], case: Case, inputs: tuple[Any, ...]) -> Loop:
    """Advance all trajectories of a program by the explicit method, and return NumPy arrays.

    All steps run in one call of the compiled loop if they are known to be fast. Otherwise the
    loop returns about every PROGRESS_INTERVAL seconds, so that progress can be shown and the cost
    estimated. The steps are the same, and so is the program, as `max_steps` is traced.
    """
    program, form = _program(function, case), form_of(case.states, 1)
    *constants, loops = inputs
    pace = (function, case.field, loops.y.shape)
    per_step, steps_taken = _PACE.get(pace), 0
    end = np.asarray(constants[1])[..., -1, None, None]  # last save point of each lane
    while True:
        new_steps = WARMUP_STEPS
        if per_step is not None:
            new_steps = max(1, int(PROGRESS_INTERVAL / per_step))
        max_steps = np.int64(min(steps_taken + new_steps, MOST_STEPS))
        start_time = perf_counter()
        loops = _run_program(program, form, case, (*constants, loops, max_steps), per_step)
        t = np.asarray(loops.t)
        seconds = perf_counter() - start_time
        # Copying more from the device would take as long as a small solution.
        if per_step is not None and (t >= end).all():
            break
        has_diverged, count = np.asarray(loops.has_diverged), int(np.asarray(loops.steps).max())
        # The first call of a program includes its compilation, so the second is measured.
        if steps_taken > 0 or per_step is not None:
            per_step = _PACE[pace] = seconds / max(count - steps_taken, 1)
        steps_taken = count
        is_running = (t < end) & ~has_diverged
        if count >= MOST_STEPS or not is_running.any():
            break
        if per_step is not None:
            _show_progress(loops, end, steps_taken, per_step)
    return loops._replace(t=t, saved=np.asarray(loops.saved))


def _run_program(
    program: Callable[..., Loop],
    form: Form,
    case: Case,
    inputs: tuple[Any, ...],
    per_step: float | None,
) -> Loop:
    """Run a program on all replicates; on a CPU one after the other, in threads once it is
    compiled.

    XLA has no fast code for products of batches of small matrices.
    """
    *constants, loops, max_steps = inputs
    count = len(jax.tree.leaves(case.replicates)[0])
    if count != len(loops.t) or count == 1 or jax.default_backend() != "cpu":
        return program(case.field, form, case.replicates, *inputs)

    def run(row: int) -> Loop:
        replicate, loop = jax.tree.map(lambda leaf: leaf[row : row + 1], (case.replicates, loops))
        result = program(case.field, form, replicate, *constants, loop, max_steps)
        return jax.tree.map(np.asarray, result)

    rows = range(count)
    results = map_on_cores(run, rows) if per_step is not None else [run(row) for row in rows]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def _show_progress(
    loops: Loop, end: Float[Numeric, "..."], steps_taken: int, per_step: float
) -> None:
    """Update the progress, and warn if the remaining work is expected to take long."""
    meter = current_meter()
    if meter is None:
        return
    meter.reach(fraction_done(np.asarray(loops.t), end))
    steps_left = _estimate_steps_left(loops, end, steps_taken)
    # The first stage of a step is the last of the step before; one evaluation is for its error.
    evaluations = STAGES
    total_steps = steps_taken + steps_left
    reason = describe_work(meter, per_step / evaluations, "drift", evaluations * total_steps)
    # This solution, and the later ones of the same call.
    steps = steps_left + total_steps * (meter.total - meter.finished - 1)
    warn_if_long(meter, per_step * steps, reason)


def _estimate_steps_left(loops: Loop, end: Float[Numeric, "..."], steps_taken: int) -> int:
    """Estimate the remaining explicit steps; a lower bound while the steps still grow."""
    t, until = np.asarray(loops.t), np.asarray(loops.until)
    time_left, h = np.maximum(end - t, 0.0), np.maximum(until - t, 1e-300)
    if steps_taken >= STEPS_BEFORE_ESTIMATE:
        counts = time_left / h
    else:
        # n steps that grow by the factor r = LONGEST cover h (r^n - 1)/(r - 1).
        counts = np.log(1 + (LONGEST - 1) * time_left / h) / np.log(LONGEST)
    counts = np.where(np.asarray(loops.has_diverged), 0.0, counts)
    return int(min(np.ceil(counts.max()), MOST_STEPS - steps_taken))


def _explicit_result(case: Case, loops: Loop) -> ExplicitResult:
    """Return the explicit result of one case, with the last states if LSODA continues."""
    form, end = form_of(case.states, 1), case.times[-1]
    no_exit = np.zeros(loops.t.shape, dtype=bool)
    saved = symmetrise(case.field, unflatten(form, loops.saved))
    errors = symmetrise(case.field, unflatten(form, np.asarray(loops.saved_error)))
    if (loops.t >= end).all():
        return ExplicitResult(saved, {}, loops.t, no_exit, no_exit, errors)
    exhausted = (loops.t < end) & ~np.asarray(loops.has_diverged)
    last = unflatten(form, np.asarray(loops.y))
    return ExplicitResult(saved, last, loops.t, no_exit, exhausted, errors)


def _result_at_start(case: Case) -> IntegrationResult:
    """Return the result of a case that ends at t = 0."""
    states = {name: np.asarray(value)[None, :, None] for name, value in case.states.items()}
    return IntegrationResult(
        from_units(case.shared, states),
        False,
        np.zeros(case.runs, bool),
        np.full((1, case.runs), np.nan),
        np.zeros((1, case.runs), bool),
    )
