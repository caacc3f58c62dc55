"""Dormand-Prince 8(7) as a small compiled loop, with the steps of diffrax.

`diffrax.diffeqsolve` is general (gradients, root finding, every kind of output), and takes seconds
to import, trace and compile for any field. A solution at given times needs little of that. This
loop takes the same steps, with the same error control and dense output, to rounding, and contains
the field once. A state is one vector here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.base.arrays import IntScalar, Numeric, Scalar, State
from sgdynamics.ode.dormand_prince import DENSE, ERROR, ORDER, STAGES, A, C

# First step of diffeqsolve; a step that fails is repeated with a shorter length.
FIRST_STEP = 0.01
# A step that ends within this many units in the last place of the end is extended to the end.
NEAR_THE_END = 100
# Ratio of the next step to this one, as in diffrax's PIDController.
SAFETY, SHORTEST, LONGEST = 0.9, 0.2, 10.0


class TrajectoryEnd(NamedTuple):
    """Result of the explicit method for one trajectory.

    Attributes
    ----------
    saved : dict
        States at the save points; infinite beyond the last time.
    last : dict
        The last state.
    time : array
        Time of the last state.
    has_diverged : array of bool
        Whether the trajectory left its bounds.
    exhausted : array of bool
        Whether the steps ran out.
    """

    saved: State
    last: State
    time: Float[Numeric, ""]
    has_diverged: Bool[Numeric, ""]
    exhausted: Bool[Numeric, ""]


class Loop(NamedTuple):
    """State of the loop between two steps, with any leading axes of trajectories.

    Attributes
    ----------
    t, until : array
        Start and end of the next step.
    y, rate : array
        State at t, and dy/dt, the last stage of the previous step.
    steps : array of int
        Number of steps taken; -1 before the rate at the start is known.
    has_diverged : array of bool
        Whether the trajectory left its bounds.
    index : array of int
        Index of the next save point.
    saved : array
        States at the save points.
    """

    t: Float[Numeric, "*lead"]
    until: Float[Numeric, "*lead"]
    y: Float[Numeric, "*lead n"]
    rate: Float[Numeric, "*lead n"]
    steps: Int[Numeric, "*lead"]
    has_diverged: Bool[Numeric, "*lead"]
    index: Int[Numeric, "*lead"]
    saved: Float[Numeric, "*lead times n"]


# Names and shapes of the variables of a state, in the order of the vector.
Form = tuple[tuple[str, tuple[int, ...]], ...]


def form_of(state: State, lead: int = 0) -> Form:
    """Return the form of a state with `lead` leading axes."""
    return tuple((name, np.shape(state[name])[lead:]) for name in sorted(state))


def first_loop(state: State, times: np.ndarray, replicates: int) -> Loop:
    """Return the initial loop state of all trajectories, (replicates, runs).

    The state has a leading axis of runs.
    """
    runs = len(next(iter(state.values())))
    y = np.concatenate([np.reshape(state[name], (runs, -1)) for name in sorted(state)], axis=-1)
    lead, y = (replicates, runs), np.broadcast_to(y, (replicates, *y.shape))
    return Loop(
        t=np.zeros(lead),
        until=np.zeros(lead),
        y=y,
        rate=np.zeros(y.shape),
        steps=np.full(lead, -1, dtype=np.int64),
        has_diverged=np.zeros(lead, dtype=bool),
        index=np.zeros(lead, dtype=np.int64),
        # Save points that are not reached stay infinite, which no state is.
        saved=np.full((*lead, len(times), y.shape[-1]), np.inf),
    )


def advance(
    field: Callable[[Scalar, State], State],
    form: Form,
    loop: Loop,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Bool[Numeric, ""]],
    max_steps: int | IntScalar,
) -> Loop:
    """Advance one trajectory by Dormand-Prince 8(7), up to `max_steps` steps in total.

    Several calls make the same steps as one.
    """
    end = times[-1]
    # Positive floats are ordered as their bit patterns: subtracting from these counts units in the
    # last place.
    close_to_end = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(end, jnp.int64) - NEAR_THE_END, end.dtype
    )

    def is_running(loop: Loop) -> Bool[Numeric, ""]:
        return (loop.t < end) & (loop.steps < max_steps) & ~loop.has_diverged

    def step(loop: Loop) -> Loop:
        h = loop.until - loop.t
        # The first step has length 0: it evaluates the rate at the start, so that the field is in
        # the program only once.
        is_first = loop.steps < 0

        def flat_rate(t: Scalar, y: Float[Array, " n"]) -> Float[Array, " n"]:
            return flatten(field(t, unflatten(form, y)))

        y, last_rate, increments = _stages(flat_rate, loop.t, loop.until, loop.y, loop.rate)
        error = _relative_error(loop.y, y, increments, rtol, atol)
        is_accepted = (error < 1) | is_first
        # An integral controller: the error of a step is of order h^ORDER. An accepted step does not
        # shorten the next one, a rejected step does not lengthen it.
        factor = jnp.clip(
            SAFETY * (1 / error) ** (1 / ORDER),
            jnp.where(is_accepted, 1.0, SHORTEST),
            jnp.where(is_accepted, LONGEST, SAFETY),
        )
        t = jnp.minimum(jnp.where(is_accepted, loop.until, loop.t), end)
        until = t + jnp.where(is_first, FIRST_STEP, h * factor)
        # The last step ends exactly at the end. A rejected one that would reach it is halved
        # instead, or it would be repeated for ever.
        last_until = jnp.where(is_accepted, end, t + 0.5 * (end - t))
        until = jnp.where(
            is_first,
            jnp.minimum(until, end),
            jnp.where(until > close_to_end, last_until, until),
        )

        def has_save_point(carry: tuple[Array, Array]) -> Bool[Numeric, ""]:
            index, _ = carry
            return is_accepted & (times[index] <= loop.until) & (index < len(times))

        def save(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            index, saved = carry
            # The first step has no length: its only save point is the start.
            elapsed = (times[index] - loop.t) / jnp.where(is_first, 1.0, h)
            fraction = jnp.where(is_first, 0.0, elapsed)
            # Dense output: a polynomial of degree 6 in the fraction of the step.
            weights = jnp.asarray(DENSE) @ fraction ** np.arange(6.0, 0.0, -1.0)
            value = jnp.where(is_first, loop.y, loop.y + weights @ increments)
            return index + 1, saved.at[index].set(value)

        position = jnp.asarray(loop.index), jnp.asarray(loop.saved)
        index, saved = jax.lax.while_loop(has_save_point, save, position)
        y = jnp.where(is_accepted & ~is_first, y, loop.y)
        # First same as last: the last stage of an accepted step is the first of the next one.
        rate = jnp.where(is_accepted, last_rate, loop.rate)
        has_diverged = ~inside(t, unflatten(form, y))
        return Loop(t, until, y, rate, loop.steps + 1, has_diverged, index, saved)

    return jax.lax.while_loop(is_running, step, loop)


def explicit(
    field: Callable[[Scalar, State], State],
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Bool[Numeric, ""]],
    max_steps: int,
) -> TrajectoryEnd:
    """Integrate one trajectory from 0 by Dormand-Prince 8(7), saved at `times` by dense output.

    It ends where it is no longer `inside`.
    """
    form, y = form_of(state), flatten(state)
    start, saved = jnp.zeros_like(times[-1]), jnp.full((len(times), len(y)), jnp.inf, y.dtype)
    first = Loop(
        t=start,
        until=start,
        y=y,
        rate=jnp.zeros_like(y),
        steps=jnp.asarray(-1),
        has_diverged=jnp.asarray(False),
        index=jnp.asarray(0),
        saved=saved,
    )
    loop = advance(field, form, first, times, rtol, atol, inside, max_steps)
    exhausted = (loop.t < times[-1]) & ~loop.has_diverged
    states = unflatten(form, loop.saved), unflatten(form, loop.y)
    return TrajectoryEnd(*states, loop.t, loop.has_diverged, exhausted)


def flatten(state: State) -> Float[Array, " n"]:
    """Return a state as one vector."""
    return jnp.concatenate([jnp.reshape(state[name], -1) for name in sorted(state)])


def unflatten(form: Form, y: Float[Numeric, "... n"]) -> dict[str, Numeric]:
    """Return the state of a vector, with any leading axes."""
    state, offset = {}, 0
    for name, shape in form:
        size = math.prod(shape)
        state[name] = y[..., offset : offset + size].reshape(*y.shape[:-1], *shape)
        offset += size
    return state


def _stages(
    field: Callable[[Scalar, Float[Array, " n"]], Float[Array, " n"]],
    t: Scalar,
    until: Scalar,
    y: Float[Numeric, " n"],
    rate: Float[Numeric, " n"],
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "stages n"]]:
    """Return the state after the step, the rate there, and the increments of all stages."""
    h, rows, nodes = until - t, jnp.asarray(A), jnp.asarray(C)

    def stage(index: IntScalar, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, _, increments = carry
        # k_i = f(t + c_i h, y + sum_j a_ij h k_j)
        stage_state = jnp.asarray(y + rows[index] @ increments)
        # t + h may differ from `until` by rounding, which a schedule with edges would notice.
        stage_time = jnp.where(nodes[index] == 1, until, t + nodes[index] * h)
        stage_rate = field(stage_time, stage_state)
        return stage_state, stage_rate, increments.at[index].set(h * stage_rate)

    # Rows of later stages are zero until they are computed, as are their coefficients in A.
    increments = jnp.zeros((STAGES, len(y)), y.dtype).at[0].set(h * rate)
    carry = jnp.asarray(y), jnp.asarray(rate), increments
    return jax.lax.fori_loop(1, STAGES, stage, carry)


def _relative_error(
    y: Float[Numeric, " n"],
    after: Float[Array, " n"],
    increments: Float[Array, "stages n"],
    rtol: Numeric | float,
    atol: Numeric | float,
) -> Float[Array, ""]:
    """Return the root mean square of error_i/(atol + rtol max(|y_i|, |after_i|)) of a step.

    It is infinite if the field was not finite at a stage.
    """
    undefined: Bool[Array, ""] = jnp.isnan(after).any()
    largest = jnp.maximum(jnp.abs(y), jnp.abs(jnp.where(undefined, y, after)))
    error = (jnp.asarray(ERROR) @ increments) / (atol + largest * rtol)
    # NaN would be neither accepted nor rejected; an infinite error shortens the step.
    return jnp.sqrt(jnp.mean(jnp.where(jnp.isnan(error), jnp.inf, error) ** 2))
