"""Dormand-Prince 8(7) as a small compiled loop, with the steps of diffrax.

`diffrax.diffeqsolve` is general (gradients, root finding, every kind of output), and takes seconds
to import, trace and compile for any field. A solution at given times needs little of that. This
loop makes the same steps, with the same error control and dense output, to rounding, and contains
the field once. A state is one vector here.
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

# First step of diffeqsolve; it is repeated with a shorter step if it fails.
FIRST_STEP = 0.01
# A step that ends within this many units in the last place of the end is extended to the end.
NEAR_THE_END = 100
# Ratio of the next step to this one, as in diffrax's PIDController.
SAFETY, SHORTEST, LONGEST = 0.9, 0.2, 10.0


class StepResult(NamedTuple):
    """Result of the explicit method.

    Attributes
    ----------
    saved : dict
        States at the save points; infinite beyond the last time.
    last : dict
        The last state.
    time : array
        Its time.
    left : array of bool
        Whether the trajectory left its bounds.
    full : array of bool
        Whether the steps ran out.
    """

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class Loop(NamedTuple):
    """State of the loop between two steps.

    Attributes
    ----------
    t, until : array
        Start and end of the next step.
    y, rate : array
        State at t, and dy/dt, the last stage of the previous step.
    steps : array of int
        Number of steps taken.
    left : array of bool
        Whether the trajectory left its bounds.
    index : array of int
        Index of the next save point.
    saved : array
        States at the save points.
    """

    t: Any
    until: Any
    y: Any
    rate: Any
    steps: Any
    left: Any
    index: Any
    saved: Any


# names and shapes of the variables of a state
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
    zeros = np.zeros(lead)
    saved = np.full((*lead, len(times), y.shape[-1]), np.inf)
    steps, index = np.full(lead, -1, dtype=np.int64), np.zeros(lead, dtype=np.int64)
    return Loop(zeros, zeros, y, np.zeros(y.shape), steps, np.zeros(lead, dtype=bool), index, saved)


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
    """Advance one trajectory by Dormand-Prince 8(7), up to `most` steps in total.

    Several calls make the same steps as one.
    """
    end = times[-1]
    close = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(end, jnp.int64) - NEAR_THE_END, end.dtype
    )

    def is_running(loop: Loop) -> Any:
        return (loop.t < end) & (loop.steps < most) & ~loop.left

    def step(loop: Loop) -> Loop:
        h = loop.until - loop.t
        # The first step has length 0: it evaluates the rate at the start, so that the field is in
        # the program only once.
        is_first = loop.steps < 0
        y, last, ks = _stages(
            lambda t, y: flat(field(t, unflatten(form, y))), loop.t, loop.until, loop.y, loop.rate
        )
        size = _error(loop.y, y, ks, rtol, atol)
        is_accepted = (size < 1) | is_first
        factor = jnp.clip(
            SAFETY * (1 / size) ** (1 / ORDER),
            jnp.where(is_accepted, 1.0, SHORTEST),
            jnp.where(is_accepted, LONGEST, SAFETY),
        )
        t = jnp.minimum(jnp.where(is_accepted, loop.until, loop.t), end)
        until = t + jnp.where(is_first, FIRST_STEP, h * factor)
        until = jnp.where(
            is_first,
            jnp.minimum(until, end),
            jnp.where(until > close, jnp.where(is_accepted, end, t + 0.5 * (end - t)), until),
        )

        def has_save_point(carry: tuple[Any, Any]) -> Any:
            index, _ = carry
            return is_accepted & (times[index] <= loop.until) & (index < len(times))

        def save(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            # dense output: a polynomial of degree 6 in the fraction of the step
            index, saved = carry
            elapsed = (times[index] - loop.t) / jnp.where(is_first, 1.0, h)
            fraction = jnp.where(is_first, 0.0, elapsed)
            weights = jnp.asarray(DENSE) @ fraction ** np.arange(6.0, 0.0, -1.0)
            value = jnp.where(is_first, loop.y, loop.y + weights @ ks)
            return index + 1, saved.at[index].set(value)

        index, saved = jax.lax.while_loop(has_save_point, save, (loop.index, loop.saved))
        y = jnp.where(is_accepted & ~is_first, y, loop.y)
        rate = jnp.where(is_accepted, last, loop.rate)
        left = ~inside(t, unflatten(form, y))
        return Loop(t, until, y, rate, loop.steps + 1, left, index, saved)

    return jax.lax.while_loop(is_running, step, loop)


def explicit(
    field: Callable[[Scalar, State], Any],
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Any],
    most: int,
) -> StepResult:
    """Integrate one trajectory from 0 by Dormand-Prince 8(7), saved at `times` by dense output.

    It ends where it is no longer `inside`.
    """
    form, y = form_of(state), flat(state)
    start, saved = jnp.zeros_like(times[-1]), jnp.full((len(times), len(y)), jnp.inf, y.dtype)
    first = jax.tree.map(jnp.asarray, Loop(start, start, y, jnp.zeros_like(y), -1, False, 0, saved))
    return collect(form, advance(field, form, first, times, rtol, atol, inside, most), times[-1])


def collect(form: Form, loop: Loop, end: Any) -> StepResult:
    """Return the result of one trajectory, or of several with leading axes."""
    return StepResult(
        unflatten(form, loop.saved),
        unflatten(form, loop.y),
        loop.t,
        loop.left,
        (loop.t < end) & ~loop.left,
    )


def flat(state: State) -> Float[Array, " n"]:
    """Return a state as one vector."""
    return jnp.concatenate([jnp.reshape(state[name], -1) for name in sorted(state)])


def unflatten(form: Form, y: Float[Numeric, "... n"]) -> dict[str, Any]:
    """Return the state of a vector, with any leading axes."""
    state, offset = {}, 0
    for name, shape in form:
        size = math.prod(shape)
        state[name] = y[..., offset : offset + size].reshape(*y.shape[:-1], *shape)
        offset += size
    return state


def _stages(
    field: Callable[[Scalar, Any], Any],
    t: Scalar,
    until: Scalar,
    y: Float[Array, " n"],
    rate: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "stages n"]]:
    """Return the state after the step, the rate there, and the increments of all stages."""
    h, rows, nodes = until - t, jnp.asarray(A), jnp.asarray(C)

    def stage(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        _, _, increments = carry
        stage_state = y + rows[index] @ increments
        # a stage at the end of the step is there to the last bit
        stage_rate = field(jnp.where(nodes[index] == 1, until, t + nodes[index] * h), stage_state)
        return stage_state, stage_rate, increments.at[index].set(h * stage_rate)

    ks = jnp.zeros((STAGES, len(y)), y.dtype).at[0].set(h * rate)
    return jax.lax.fori_loop(1, STAGES, stage, (y, rate, ks))


def _error(
    y: Float[Array, " n"],
    after: Float[Array, " n"],
    ks: Float[Array, "stages n"],
    rtol: Numeric | float,
    atol: Numeric | float,
) -> Float[Array, ""]:
    """Return the root mean square error of a step relative to the tolerance.

    It is infinite if the field was not finite at a stage.
    """
    undefined: Bool[Array, ""] = jnp.isnan(after).any()
    largest = jnp.maximum(jnp.abs(y), jnp.abs(jnp.where(undefined, y, after)))
    error = (jnp.asarray(ERROR) @ ks) / (atol + largest * rtol)
    return jnp.sqrt(jnp.mean(jnp.where(jnp.isnan(error), jnp.inf, error) ** 2))
