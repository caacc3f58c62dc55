"""The explicit method as a loop of its own: the steps, error control and dense output that diffrax has, in a small program.

`diffrax.diffeqsolve` serves everyone (gradients, root finding, every kind of save), and a program
of it takes seconds to import, trace and compile, whatever the field. A solution at given times
needs little of that: these are its steps to rounding, with the field in the program once. A state
is one vector here, whatever its variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric, Scalar, State
from sgdynamics.ode.dormand_prince import DENSE, ERROR, ORDER, STAGES, A, C

FIRST_STEP = 0.01  # that of diffeqsolve, whatever the field: where it is too long it is tried again
NEAR_THE_END = (
    100  # last places of the end of the interval: a step that stops so close to it goes to the end
)
SAFETY, SHORTEST, LONGEST = (
    0.9,
    0.2,
    10.0,
)  # of the next step over this one, as in diffrax's PIDController


class StepResult(NamedTuple):
    """States at the save points (inf beyond what was reached), the last state and its time, whether it left, whether steps ran out."""

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class Loop(NamedTuple):
    """What one step hands to the next, and a stretch of steps to the next stretch."""

    t: Any  # from here
    until: Any  # to here
    y: Any
    rate: Any  # d y/dt there, the last stage of the step before
    steps: Any
    left: Any
    place: Any  # of the next save point
    saved: Any


Form = tuple[tuple[str, tuple[int, ...]], ...]  # the variables of a state and their shapes, by name


def form_of(state: State, lead: int = 0) -> Form:
    """The form of a state with so many leading axes."""
    return tuple((name, np.shape(state[name])[lead:]) for name in sorted(state))


def first_loop(state: State, times: np.ndarray, replicates: int) -> Loop:
    """Where trajectories begin, (replicates, runs), of NumPy arrays.

    The state has a leading axis of runs.
    """
    runs = len(next(iter(state.values())))
    y = np.concatenate([np.reshape(state[name], (runs, -1)) for name in sorted(state)], axis=-1)
    lead, y = (replicates, runs), np.broadcast_to(y, (replicates, *y.shape))
    zeros = np.zeros(lead)
    saved = np.full((*lead, len(times), y.shape[-1]), np.inf)
    steps, place = np.full(lead, -1, dtype=np.int64), np.zeros(lead, dtype=np.int64)
    return Loop(zeros, zeros, y, np.zeros(y.shape), steps, np.zeros(lead, dtype=bool), place, saved)


def advance(
    field: Callable[[Scalar, State], Any],
    form: Form,
    loop: Loop,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Any],
    most: int | IntScalar,
) -> Loop:
    """One trajectory by Dormand-Prince 8(7) up to `most` steps in all, of a state of this form.

    A trajectory that is advanced in several stretches makes the same steps as in one.
    """
    end = times[-1]
    close = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(end, jnp.int64) - NEAR_THE_END, end.dtype
    )

    def going(loop: Loop) -> Any:
        return (loop.t < end) & (loop.steps < most) & ~loop.left

    def step(loop: Loop) -> Loop:
        h = loop.until - loop.t
        # the first "step" has no length: it finds the rate at the start, with the field in the
        # program once
        still = loop.steps < 0
        y, last, ks = _stages(
            lambda t, y: flat(field(t, shaped(form, y))), loop.t, loop.until, loop.y, loop.rate
        )
        size = _error(loop.y, y, ks, rtol, atol)
        kept = (size < 1) | still
        factor = jnp.clip(
            SAFETY * (1 / size) ** (1 / ORDER),
            jnp.where(kept, 1.0, SHORTEST),
            jnp.where(kept, LONGEST, SAFETY),
        )
        t = jnp.minimum(jnp.where(kept, loop.until, loop.t), end)
        until = t + jnp.where(still, FIRST_STEP, h * factor)
        until = jnp.where(
            still,
            jnp.minimum(until, end),
            jnp.where(until > close, jnp.where(kept, end, t + 0.5 * (end - t)), until),
        )

        def more(now: tuple[Any, Any]) -> Any:
            return kept & (times[now[0]] <= loop.until) & (now[0] < len(times))

        def save(now: tuple[Any, Any]) -> tuple[Any, Any]:
            place, saved = now
            part = jnp.where(still, 0.0, (times[place] - loop.t) / jnp.where(still, 1.0, h))
            weights = jnp.asarray(DENSE) @ part ** np.arange(6.0, 0.0, -1.0)
            return place + 1, saved.at[place].set(jnp.where(still, loop.y, loop.y + weights @ ks))

        place, saved = jax.lax.while_loop(more, save, (loop.place, loop.saved))
        y, rate = jnp.where(kept & ~still, y, loop.y), jnp.where(kept, last, loop.rate)
        return Loop(t, until, y, rate, loop.steps + 1, ~inside(t, shaped(form, y)), place, saved)

    return jax.lax.while_loop(going, step, loop)


def explicit(
    field: Callable[[Scalar, State], Any],
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Any],
    most: int,
) -> StepResult:
    """One trajectory from 0 by Dormand-Prince 8(7), at `times` by dense output.

    It ends where it is no longer `inside`.
    """
    form, y = form_of(state), flat(state)
    begin, saved = jnp.zeros_like(times[-1]), jnp.full((len(times), len(y)), jnp.inf, y.dtype)
    first = jax.tree.map(jnp.asarray, Loop(begin, begin, y, jnp.zeros_like(y), -1, False, 0, saved))
    return reached(form, advance(field, form, first, times, rtol, atol, inside, most), times[-1])


def reached(form: Form, loop: Loop, end: Any) -> StepResult:
    """What a trajectory, or several with leading axes, has reached."""
    return StepResult(
        shaped(form, loop.saved),
        shaped(form, loop.y),
        loop.t,
        loop.left,
        (loop.t < end) & ~loop.left,
    )


def flat(state: State) -> Float[Array, " n"]:
    """A state as one vector."""
    return jnp.concatenate([jnp.reshape(state[name], -1) for name in sorted(state)])


def shaped(form: Form, y: Float[Numeric, "... n"]) -> dict[str, Any]:
    """The state of a vector, with any leading axes."""
    found, place = {}, 0
    for name, shape in form:
        size = math.prod(shape)
        found[name] = y[..., place : place + size].reshape(*y.shape[:-1], *shape)
        place += size
    return found


def _stages(
    field: Callable[[Scalar, Any], Any],
    t: Scalar,
    until: Scalar,
    y: Float[Array, " n"],
    rate: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "stages n"]]:
    """The state after the step, the rate there, and all increments; the first is known."""
    h, rows, places = until - t, jnp.asarray(A), jnp.asarray(C)

    def stage(number: Any, now: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        there = y + rows[number] @ now[2]
        # where a stage is at the end, it is there to the last bit
        found = field(jnp.where(places[number] == 1, until, t + places[number] * h), there)
        return there, found, now[2].at[number].set(h * found)

    ks = jnp.zeros((STAGES, len(y)), y.dtype).at[0].set(h * rate)
    return jax.lax.fori_loop(1, STAGES, stage, (y, rate, ks))


def _error(
    y: Float[Array, " n"],
    after: Float[Array, " n"],
    ks: Float[Array, "stages n"],
    rtol: Numeric | float,
    atol: Numeric | float,
) -> Float[Array, ""]:
    """The error of a step over the tolerance, root mean square.

    Beyond every bound where the field was not defined on the way.
    """
    undefined: Bool[Array, ""] = jnp.isnan(after).any()
    largest = jnp.maximum(jnp.abs(y), jnp.abs(jnp.where(undefined, y, after)))
    error = (jnp.asarray(ERROR) @ ks) / (atol + largest * rtol)
    return jnp.sqrt(jnp.mean(jnp.where(jnp.isnan(error), jnp.inf, error) ** 2))
