"""The explicit method as a loop of its own: steps, error control and dense output are diffrax's, what surrounds them is small.

`diffrax.diffeqsolve` serves everyone (gradients, root finding, every kind of save), and a program of it takes seconds to trace and compile,
whatever the field. A solution at given times needs little of that: these are the same steps to the last bit, in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sgdynamics.arrays import Scalar, State

FIRST_STEP = 0.01  # that of diffeqsolve, whatever the field: where it is too long it is tried again
NEAR_THE_END = 100  # last places of the end of the interval: a step that stops so close to it goes to the end


class Found(NamedTuple):
    """States at the save points (inf beyond what was reached), the last state and its time, whether it left, whether steps ran out."""

    saved: Any
    last: Any
    time: Any
    left: Any
    full: Any


class _Loop(NamedTuple):
    """What one step hands to the next."""

    t: Any  # from here
    until: Any  # to here
    y: Any
    solver: Any
    controller: Any
    steps: Any
    left: Any
    place: Any  # of the next save point
    saved: Any


def explicit(
    field: Callable[[Scalar, State], Any],
    state: State,
    times: Float[Array, " times"],
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""],
    inside: Callable[[Scalar, State], Any],
    most: int,
) -> Found:
    """One trajectory from 0 by Dormand-Prince 8(7), at `times` by dense output; it ends where it is no longer `inside`."""
    terms = diffrax.ODETerm(lambda t, y, args: field(t, y))
    solver = diffrax.Dopri8(scan_kind="lax")
    control = diffrax.PIDController(rtol=rtol, atol=atol)
    order: Any = solver.error_order(terms)
    begin, end = jnp.zeros_like(times[-1]), times[-1]
    close = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(end, jnp.int64) - NEAR_THE_END, end.dtype)

    def going(loop: _Loop) -> Any:
        return (loop.t < end) & (loop.steps < most) & ~loop.left

    def step(loop: _Loop) -> _Loop:
        y, error, dense, solver_state, _ = solver.step(terms, loop.t, loop.until, loop.y, None, loop.solver, False)
        # a field that is not defined where a step ended: it is tried again with a shorter one
        error = jax.tree.map(lambda leaf: jnp.where(jnp.isnan(leaf), jnp.inf, leaf), error)
        kept, t, until, _, controller, _ = control.adapt_step_size(loop.t, loop.until, loop.y, y, None, error, order, loop.controller)
        t = jnp.minimum(t, end)
        until = jnp.where(until > close, jnp.where(kept, end, t + 0.5 * (end - t)), until)
        y, solver_state = jax.tree.map(lambda new, old: jnp.where(kept, new, old), (y, solver_state), (loop.y, loop.solver))
        between = solver.interpolation_cls(t0=loop.t, t1=loop.until, **dense)

        def more(now: tuple[Any, Any]) -> Any:
            return kept & (times[now[0]] <= loop.until) & (now[0] < len(times))

        def save(now: tuple[Any, Any]) -> tuple[Any, Any]:
            place, saved = now
            there = between.evaluate(times[place])
            return place + 1, jax.tree.map(lambda every, one: every.at[place].set(one), saved, there)

        place, saved = jax.lax.while_loop(more, save, (loop.place, loop.saved))
        return _Loop(t, until, y, solver_state, controller, loop.steps + 1, ~inside(t, y), place, saved)

    until, controller = control.init(terms, begin, end, state, FIRST_STEP, None, solver.func, order)
    until = jnp.minimum(until, end)
    saved = jax.tree.map(lambda leaf: jnp.full((len(times), *leaf.shape), jnp.inf, leaf.dtype), state)
    first = _Loop(begin, until, state, solver.init(terms, begin, until, state, None), controller, 0, ~inside(begin, state), 0, saved)
    first = jax.tree.map(jnp.asarray, first)
    last = jax.lax.while_loop(going, step, first)
    return Found(last.saved, last.y, last.t, last.left, (last.t < end) & ~last.left)
