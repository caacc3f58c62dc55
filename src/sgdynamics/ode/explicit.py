"""Dormand-Prince 8(7) as a small compiled loop, with the steps of diffrax.

`diffrax.diffeqsolve` is general (gradients, root finding, every kind of output), and takes seconds
to import, trace and compile for any field. A solution at given times needs little of that. This
loop takes the same steps, with the same error control and dense output, to rounding, and contains
the field once. A state is one vector here.

The loop also estimates its own global error e, from the embedded error d of each step and one more
evaluation of the field f, which gives the growth of e at the end of the step:

    e <- e + h phi(h mu) J e + d,    J e = [f(y + s e) - f(y)]/s,    mu = <e, J e>/<e, e>,

with phi(x) = (exp(x) - 1)/x. This is exact where e is an eigenvector of a constant Jacobian J, and
bounded where the method is stable. d is the error of the solution of order 7, which exceeds that of
the solution of order 8.
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
# Displacement s |e| for the growth of the error, relative to the state. It exceeds the local
# tolerance by this factor, so that a field with small jumps has a finite slope.
DISPLACEMENT, ABOVE_TOLERANCE = 1e-7, 10.0
# Error of the dense output relative to theta^2 (1 - theta)^2 c_7, measured on several problems.
DENSE_SHARE = 1.0
# Largest exponent of the growth of the error in one step: steps of the method are shorter.
LARGEST_GROWTH = 3.0


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
    saved_error : dict
        Estimated errors at the save points.
    """

    saved: State
    last: State
    time: Float[Numeric, ""]
    has_diverged: Bool[Numeric, ""]
    exhausted: Bool[Numeric, ""]
    saved_error: State


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
    error : array
        Estimated error of y.
    saved_error : array
        Estimated errors at the save points.
    """

    t: Float[Numeric, "*lead"]
    until: Float[Numeric, "*lead"]
    y: Float[Numeric, "*lead n"]
    rate: Float[Numeric, "*lead n"]
    steps: Int[Numeric, "*lead"]
    has_diverged: Bool[Numeric, "*lead"]
    index: Int[Numeric, "*lead"]
    saved: Float[Numeric, "*lead times n"]
    error: Float[Numeric, "*lead n"]
    saved_error: Float[Numeric, "*lead times n"]


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
        error=np.zeros(y.shape),
        saved_error=np.zeros((*lead, len(times), y.shape[-1])),
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
    first_step: Scalar | float = FIRST_STEP,
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

        shift_scale = _displacement_scale(loop.y, loop.error, rtol)
        y, last_rate, displaced_rate, increments = _stages(
            flat_rate, loop.t, loop.until, loop.y, loop.rate, shift_scale * loop.error, is_first
        )
        error = _relative_error(loop.y, y, increments, rtol, atol)
        is_accepted = (error < 1) | is_first
        error_slope = (displaced_rate - last_rate) / jnp.where(shift_scale > 0, shift_scale, 1.0)
        global_error = _propagate_error(loop.error, error_slope, h)
        global_error = global_error + jnp.asarray(ERROR) @ increments
        # An integral controller: the error of a step is of order h^ORDER. An accepted step does not
        # shorten the next one, a rejected step does not lengthen it.
        factor = jnp.clip(
            SAFETY * (1 / error) ** (1 / ORDER),
            jnp.where(is_accepted, 1.0, SHORTEST),
            jnp.where(is_accepted, LONGEST, SAFETY),
        )
        t = jnp.minimum(jnp.where(is_accepted, loop.until, loop.t), end)
        until = t + jnp.where(is_first, first_step, h * factor)
        # The last step ends exactly at the end. A rejected one that would reach it is halved
        # instead, or it would be repeated for ever.
        last_until = jnp.where(is_accepted, end, t + 0.5 * (end - t))
        until = jnp.where(
            is_first,
            jnp.minimum(until, end),
            jnp.where(until > close_to_end, last_until, until),
        )

        def has_save_point(carry: tuple[Array, Array, Array]) -> Bool[Numeric, ""]:
            index = carry[0]
            return is_accepted & (times[index] <= loop.until) & (index < len(times))

        def save(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            index, saved, saved_error = carry
            # The first step has no length: its only save point is the start.
            elapsed = (times[index] - loop.t) / jnp.where(is_first, 1.0, h)
            fraction = jnp.where(is_first, 0.0, elapsed)
            # Dense output: a polynomial of degree 6 in the fraction of the step.
            weights = jnp.asarray(DENSE) @ fraction ** np.arange(6.0, 0.0, -1.0)
            value = jnp.where(is_first, loop.y, loop.y + weights @ increments)
            error_value = loop.error + fraction * (global_error - loop.error)
            error_value = error_value + _dense_error(increments, fraction)
            return index + 1, saved.at[index].set(value), saved_error.at[index].set(error_value)

        position = (
            jnp.asarray(loop.index),
            jnp.asarray(loop.saved),
            jnp.asarray(loop.saved_error),
        )
        index, saved, saved_error = jax.lax.while_loop(has_save_point, save, position)
        global_error = jnp.where(is_accepted & ~is_first, global_error, loop.error)
        y = jnp.where(is_accepted & ~is_first, y, loop.y)
        # First same as last: the last stage of an accepted step is the first of the next one.
        rate = jnp.where(is_accepted, last_rate, loop.rate)
        has_diverged = ~inside(t, unflatten(form, y))
        steps = loop.steps + 1
        return Loop(t, until, y, rate, steps, has_diverged, index, saved, global_error, saved_error)

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
    first = start_loop(y, jnp.zeros_like(times[-1]), len(times))
    loop = advance(field, form, first, times, rtol, atol, inside, max_steps)
    exhausted = (loop.t < times[-1]) & ~loop.has_diverged
    states = unflatten(form, loop.saved), unflatten(form, loop.y)
    errors = unflatten(form, loop.saved_error)
    return TrajectoryEnd(*states, loop.t, loop.has_diverged, exhausted, errors)


def start_loop(y: Float[Array, " n"], t: Float[Array, ""], save_points: int) -> Loop:
    """Return the initial loop state of one trajectory that starts at time t."""
    saved = jnp.full((save_points, len(y)), jnp.inf, y.dtype)
    return Loop(
        t=t,
        until=t,
        y=y,
        rate=jnp.zeros_like(y),
        steps=jnp.asarray(-1),
        has_diverged=jnp.asarray(False),
        index=jnp.asarray(0),
        saved=saved,
        error=jnp.zeros_like(y),
        saved_error=jnp.zeros_like(saved),
    )


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
    shift: Float[Array, " n"],
    is_first: Bool[Numeric, ""],
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"], Float[Array, "stages n"]]:
    """Return the state after the step, the rates there and at the state displaced by `shift`.

    The last result are the increments of all stages. The first step, of length 0, has one stage.
    """
    h, rows, nodes = until - t, jnp.asarray(A), jnp.asarray(C)

    def stage(
        index: IntScalar, carry: tuple[Array, Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array]:
        state, rate, _, increments = carry
        # The displaced state comes after the stages, so that the program has the field only once.
        is_stage = index < STAGES
        row = jnp.minimum(index, STAGES - 1)
        # k_i = f(t + c_i h, y + sum_j a_ij h k_j)
        stage_state = jnp.where(is_stage, y + rows[row] @ increments, state + shift)
        # t + h may differ from `until` by rounding, which a schedule with edges would notice.
        stage_time = jnp.where(nodes[row] == 1, until, t + nodes[row] * h)
        stage_rate = field(stage_time, stage_state)
        return (
            jnp.where(is_stage, stage_state, state),
            jnp.where(is_stage, stage_rate, rate),
            stage_rate,
            increments.at[row].set(jnp.where(is_stage, h * stage_rate, increments[row])),
        )

    # Rows of later stages are zero until they are computed, as are their coefficients in A.
    increments = jnp.zeros((STAGES, len(y)), y.dtype).at[0].set(h * rate)
    carry = jnp.asarray(y), jnp.asarray(rate), jnp.asarray(rate), increments
    return jax.lax.fori_loop(1, jnp.where(is_first, 2, STAGES + 1), stage, carry)


def _dense_error(increments: Float[Array, "stages n"], fraction: Scalar) -> Float[Array, " n"]:
    """Return the estimated error of the dense output at a fraction of the step.

    It is the next term of the polynomial, c_7 = c_6 |c_6|/|c_5|, which vanishes with its slope at
    both ends of the step.
    """
    sixth, fifth = jnp.asarray(DENSE[:, 0]) @ increments, jnp.asarray(DENSE[:, 1]) @ increments
    size = jnp.linalg.norm(fifth)
    ratio = jnp.linalg.norm(sixth) / jnp.where(size > 0, size, 1.0)
    return DENSE_SHARE * ratio * (fraction * (1 - fraction)) ** 2 * sixth


def _displacement_scale(
    y: Float[Numeric, " n"], error: Float[Numeric, " n"], rtol: Numeric | float
) -> Float[Array, ""]:
    """Return the factor s by which the error displaces the state; 0 without an error."""
    size = jnp.maximum(DISPLACEMENT, ABOVE_TOLERANCE * jnp.asarray(rtol)) * jnp.linalg.norm(y)
    norm = jnp.linalg.norm(error)
    return jnp.where(norm > 0, size / jnp.where(norm > 0, norm, 1.0), 0.0)


def _propagate_error(
    error: Float[Numeric, " n"], slope: Float[Numeric, " n"], h: Scalar
) -> Float[Array, " n"]:
    """Return the error after a step of length h, where its rate of change is `slope`."""
    # A displaced state may be outside of the domain of the field.
    slope = jnp.where(jnp.isfinite(slope).all(), slope, 0.0)
    square = jnp.vdot(error, error)
    growth = h * jnp.vdot(error, slope) / jnp.where(square > 0, square, 1.0)
    growth = jnp.minimum(growth, LARGEST_GROWTH)
    is_small = jnp.abs(growth) < 1e-6
    phi = jnp.where(is_small, 1.0, jnp.expm1(growth) / jnp.where(is_small, 1.0, growth))
    return jnp.asarray(error + h * phi * slope)


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
