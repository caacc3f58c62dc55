"""What a protocol reaches: the ODE of any dynamics in pieces of alpha, over each of which the controls are held, and its gradient.

With controls u_i on piece i, y' = f(y, u, alpha) in alpha = samples/d from the start,

    J(u) = mean over starts of { Phi(y(end)) + int l(y, u, alpha) dalpha },

by Runge-Kutta 4 with a fixed number of steps a piece, so that J is a smooth function of all u_i, and dJ/du_i is taken in reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import Schedule, is_scheduled, values_at
from sgdynamics.ode.case import Field, Watch

# classical Runge-Kutta by stages, each from the one before
STAGES = (np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 2.0, 1.0]) / 6)


@dataclass(frozen=True)
class Held:
    """The number of a control, which is held over each piece."""

    index: int

    def __call__(self, numbers: PyTree, alpha: Scalar) -> Any:
        return numbers


def held(index: int, value: float) -> Schedule:
    """A schedule that stands for a control until pieces are put in its place."""
    return Schedule(Held(index), np.float64(value))


def _control(leaf: object) -> int | None:
    """Which control a leaf stands for; a learning rate in other units wraps it."""
    function = leaf.function if isinstance(leaf, Schedule) else None
    inside = getattr(function, "own", function)
    return inside.index if isinstance(inside, Held) else None


def controls_in(numbers: PyTree) -> set[int]:
    """Which controls there are among these numbers."""
    return {
        index
        for leaf in jax.tree.leaves(numbers, is_leaf=is_scheduled)
        if (index := _control(leaf)) is not None
    }


def placed(numbers: PyTree, row: Float[Numeric, " controls"]) -> Any:
    """The numbers with the values of one piece in place of the controls: the one function that knows how a control becomes a number."""

    def one(leaf: Any) -> Any:
        index = _control(leaf)
        if index is None:
            return leaf
        # a learning rate in other units has numbers of its own beside
        wrapped = isinstance(leaf.parameters, dict) and "parameters" in leaf.parameters
        return replace(
            leaf,
            parameters={**leaf.parameters, "parameters": row[index]} if wrapped else row[index],
        )

    return jax.tree.map(one, numbers, is_leaf=is_scheduled)


@dataclass(frozen=True)
class Program:
    """All that is static, so that one compiled program serves any numbers.

    ``watch`` gives the (excess) risk; ``own`` is a user's function of the last state, in its place; ``integral`` is of the risk over alpha.
    """

    field: Field
    watch: Watch
    names: tuple[str, ...]
    steps: int
    integral: bool = False
    own: Callable[..., Any] | None = None
    cost: Callable[..., Any] | None = None
    risky: bool = True  # whether there is a risk at all: a dynamics of one's own need not have one


def _judged(numbers: Parameters, now: PyTree, alpha: Scalar) -> dict[str, Any]:
    """What a watch reads: the numbers of the moment, or those of the problem that is evaluated, with the nodes of its risk."""
    return {**values_at(now, alpha), **values_at(numbers["watch"], alpha), "alpha": alpha}


def _running(
    program: Program,
    numbers: Parameters,
    now: PyTree,
    row: Float[Numeric, " controls"],
    alpha: Scalar,
    state: State,
) -> Any:
    """l(y, u, alpha): what is integrated beside the state."""
    total, judged = jnp.zeros(()), _judged(numbers, now, alpha)
    if program.integral:
        total = total + program.watch.value(judged, state)
    if program.cost is not None:
        controls = {name: row[index] for index, name in enumerate(program.names)}
        # a watch knows what of a state a user's function sees
        priced: Any = replace(program.watch, criterion=partial(program.cost, alpha, controls))  # type: ignore[type-var]
        total = total + priced.value(judged, state)
    return total


def _along(
    program: Program, numbers: Parameters, values: Float[Numeric, "pieces controls"], begin: State
) -> Any:
    """The states of one run at the end of each piece, and the integral of l up to there."""
    pieces = values.shape[0]
    length = numbers["alpha"] / (pieces * program.steps)
    places, weights = (jnp.asarray(part) for part in STAGES)
    priced = program.integral or program.cost is not None

    def piece(carry: PyTree, given: tuple[Any, Any]) -> tuple[Any, Any]:
        index, row = given
        # the piece's own values at both its ends: stages on an edge must not read the next
        now = placed(numbers["shared"], row)

        def rates(alpha: Scalar, both: tuple[Any, Any]) -> tuple[Any, Any]:
            moved = program.field.on_symmetric(numbers["each"], now, alpha, both[0])
            return moved, _running(
                program, numbers, now, row, alpha, both[0]
            ) if priced else jnp.zeros(())

        def step(carry: PyTree, number: Scalar) -> tuple[Any, None]:
            first = (index * program.steps + number) * length

            def stage(
                inner: tuple[Any, Any], coefficients: tuple[Any, Any]
            ) -> tuple[tuple[Any, Any], None]:
                slope, total = inner
                place, weight = coefficients
                at = jax.tree.map(lambda value, rate: value + place * length * rate, carry, slope)
                slope = rates(first + place * length, at)
                return (
                    slope,
                    jax.tree.map(lambda so_far, rate: so_far + weight * rate, total, slope),
                ), None

            # the stages in a loop: the field is compiled once, which is most of what there is to compile
            zero = jax.tree.map(jnp.zeros_like, carry)
            (_, total), _ = jax.lax.scan(stage, (zero, zero), (places, weights))
            return jax.tree.map(lambda value, rate: value + length * rate, carry, total), None

        carry, _ = jax.lax.scan(step, carry, jnp.arange(program.steps))
        return carry, carry

    first = (jax.tree.map(jnp.asarray, begin), jnp.zeros(()))
    return jax.lax.scan(piece, first, (jnp.arange(pieces), values))[1]


def _reached(
    program: Program, numbers: Parameters, row: Float[Numeric, " controls"], last: tuple[Any, Any]
) -> Any:
    """Phi of the last state of one run, and the integral."""
    state, integral = last
    if program.integral:
        return integral
    judged = _judged(numbers, placed(numbers["shared"], row), numbers["alpha"])
    watch: Any = program.watch
    if program.own is not None:
        watch = replace(watch, criterion=program.own)
    return watch.value(judged, state) + integral


def _objective(
    program: Program, numbers: Parameters, values: Float[Numeric, "pieces controls"]
) -> Any:
    def one(begin: State) -> Any:
        last = jax.tree.map(lambda value: value[-1], _along(program, numbers, values, begin))
        return _reached(program, numbers, values[-1], last)

    return jnp.mean(jax.vmap(one)(numbers["states"]))


@partial(jax.jit, static_argnums=0)
def with_slope(
    program: Program, numbers: Parameters, values: Float[Numeric, "pieces controls"]
) -> Any:
    """J and dJ/du of every piece."""
    return jax.value_and_grad(partial(_objective, program, numbers))(values)


@partial(jax.jit, static_argnums=0)
def many(
    program: Program, numbers: Parameters, values: Float[Numeric, "protocols pieces controls"]
) -> Any:
    """J of several protocols."""
    return jax.vmap(partial(_objective, program, numbers))(values)


@partial(jax.jit, static_argnums=0)
def path(
    program: Program, numbers: Parameters, values: Float[Numeric, "pieces controls"]
) -> tuple[Any, Any, Any]:
    """J, the mean risk over starts at every edge, and the last states."""
    pieces = values.shape[0]
    begin = jax.tree.map(jnp.asarray, numbers["states"])
    states, integrals = jax.vmap(partial(_along, program, numbers, values))(begin)
    last = (jax.tree.map(lambda value: value[:, -1], states), integrals[:, -1])
    value = jnp.mean(jax.vmap(lambda one: _reached(program, numbers, values[-1], one))(last))
    if not program.risky:
        return value, jnp.full(pieces + 1, jnp.nan), last[0]

    def risk(given: tuple[Any, Any, Any]) -> Any:
        alpha, row, at = given
        judged = _judged(numbers, placed(numbers["shared"], row), alpha)
        return jnp.mean(jax.vmap(lambda one: program.watch.value(judged, one))(at))

    every = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], jnp.moveaxis(rest, 1, 0)]), begin, states
    )
    edges = numbers["alpha"] * jnp.arange(pieces + 1) / pieces
    # at an edge the numbers are those of the piece that ends there
    return value, jax.lax.map(risk, (edges, jnp.concatenate([values[:1], values]), every)), last[0]
