"""The objective of a protocol and its gradient, by the ODE of any dynamics in pieces of alpha.

With the controls u_i on piece i, the state obeys y' = f(y, u, alpha) in alpha = samples/d, and

    J(u) = mean over initial conditions of { Phi(y(end)) + int l(y, u, alpha) dalpha }.

The integrator is Runge-Kutta 4 with a fixed number of steps per piece. J is then a smooth function
of all u_i, and reverse-mode differentiation gives dJ/du_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import Schedule, is_scheduled, values_at
from sgdynamics.ode.case import Field, Watch

# Classical Runge-Kutta method: each stage depends on the one before only, by this share of a step,
# and contributes to the increment with this weight.
STAGE_NODES = np.array([0.0, 0.5, 0.5, 1.0])
STAGE_WEIGHTS = np.array([1.0, 2.0, 2.0, 1.0]) / 6


@dataclass(frozen=True)
class HeldControl:
    """The function of a schedule that stands for control `index`, constant on each piece."""

    index: int

    def __call__(self, parameters: PyTree, alpha: Scalar) -> PyTree:
        return parameters


def placeholder(index: int, value: float) -> Schedule:
    """A schedule that stands for a control until `insert_controls` sets its value on a piece."""
    return Schedule(HeldControl(index), np.float64(value))


def _control_index(leaf: object) -> int | None:
    """The index of the control that a leaf stands for, or None."""
    function = leaf.function if isinstance(leaf, Schedule) else None
    # A learning rate in other units wraps the function of the placeholder.
    function = getattr(function, "own", function)
    return function.index if isinstance(function, HeldControl) else None


def control_indices(parameters: PyTree) -> set[int]:
    """The controls that occur in a pytree of parameters."""
    indices = map(_control_index, jax.tree.leaves(parameters, is_leaf=is_scheduled))
    return {index for index in indices if index is not None}


def insert_controls(parameters: PyTree, controls: Float[Numeric, " controls"]) -> PyTree:
    """Replace all placeholders in a pytree of parameters by the controls of one piece."""

    def insert(leaf: PyTree) -> PyTree:
        index = _control_index(leaf)
        if index is None:
            return leaf
        value: Any = controls[index]
        if isinstance(leaf.parameters, dict) and "parameters" in leaf.parameters:
            # A learning rate in other units has its factors next to the placeholder's value.
            value = {**leaf.parameters, "parameters": value}
        return replace(leaf, parameters=value)

    return jax.tree.map(insert, parameters, is_leaf=is_scheduled)


@dataclass(frozen=True)
class Program:
    """The static part of an objective: one compiled program serves all values of the parameters.

    Attributes
    ----------
    field : Field
        Vector field of the ODE.
    watch : Watch
        The (excess) risk as a function of the state.
    names : tuple of str
        Names of the controls.
    steps : int
        Runge-Kutta steps per piece.
    integrates_risk : bool
        Whether the objective is the integral of the risk over alpha.
    final_objective : callable or None
        The user's function of the final state, which replaces the risk.
    cost : callable or None
        The user's running cost.
    has_risk : bool
        Whether the dynamics defines a risk; a user's own dynamics need not.
    """

    field: Field
    watch: Watch
    names: tuple[str, ...]
    steps: int
    integrates_risk: bool = False
    final_objective: Callable[..., Any] | None = None
    cost: Callable[..., Any] | None = None
    has_risk: bool = True


def _watch_parameters(parameters: Parameters, shared: PyTree, alpha: Scalar) -> dict[str, Any]:
    """Parameters of the watch at one alpha.

    Those of the dynamics are overridden by those of the problem that is evaluated, if it differs.
    """
    return {**values_at(shared, alpha), **values_at(parameters["watch"], alpha), "alpha": alpha}


def _running_cost(
    program: Program,
    parameters: Parameters,
    shared: PyTree,
    controls: Float[Numeric, " controls"],
    alpha: Scalar,
    state: State,
) -> Float[Array, ""]:
    """The integrand l(y, u, alpha): the risk, the user's cost, or their sum."""
    total, watched = jnp.zeros(()), _watch_parameters(parameters, shared, alpha)
    if program.integrates_risk:
        total = total + program.watch.value(watched, state)
    if program.cost is not None:
        named = {name: controls[index] for index, name in enumerate(program.names)}
        # The watch converts a state to the form that a user's function receives.
        criterion = partial(program.cost, alpha, named)
        priced: Any = replace(program.watch, criterion=criterion)  # type: ignore[type-var]
        total = total + priced.value(watched, state)
    return total


def _integrate_run(
    program: Program,
    parameters: Parameters,
    values: Float[Numeric, "pieces controls"],
    initial_state: State,
) -> tuple[State, Float[Array, " pieces"]]:
    """The states of one run at the ends of all pieces, and the integral of l up to there."""
    pieces = values.shape[0]
    step_length = parameters["alpha"] / (pieces * program.steps)
    nodes, weights = jnp.asarray(STAGE_NODES), jnp.asarray(STAGE_WEIGHTS)
    has_running_cost = program.integrates_risk or program.cost is not None

    def advance_piece(carry: PyTree, piece: tuple[Any, Any]) -> tuple[Any, Any]:
        index, controls = piece
        # The controls are constants here rather than functions of alpha: a stage on the edge of a
        # piece must not read the value of the next one.
        shared = insert_controls(parameters["shared"], controls)

        def rates(alpha: Scalar, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, _ = carry
            rate = program.field.on_symmetric(parameters["replicate"], shared, alpha, state)
            if not has_running_cost:
                return rate, jnp.zeros(())
            return rate, _running_cost(program, parameters, shared, controls, alpha, state)

        def advance_step(carry: PyTree, step: Scalar) -> tuple[Any, None]:
            alpha = (index * program.steps + step) * step_length

            def stage(
                progress: tuple[Any, Any], coefficients: tuple[Any, Any]
            ) -> tuple[tuple[Any, Any], None]:
                slope, total = progress
                node, weight = coefficients
                point = jax.tree.map(
                    lambda value, rate: value + node * step_length * rate, carry, slope
                )
                slope = rates(alpha + node * step_length, point)
                total = jax.tree.map(lambda value, rate: value + weight * rate, total, slope)
                return (slope, total), None

            # A loop over the stages compiles the vector field once instead of four times.
            zero = jax.tree.map(jnp.zeros_like, carry)
            (_, total), _ = jax.lax.scan(stage, (zero, zero), (nodes, weights))
            return jax.tree.map(lambda value, rate: value + step_length * rate, carry, total), None

        carry, _ = jax.lax.scan(advance_step, carry, jnp.arange(program.steps))
        return carry, carry

    first = (jax.tree.map(jnp.asarray, initial_state), jnp.zeros(()))
    return jax.lax.scan(advance_piece, first, (jnp.arange(pieces), values))[1]


def _run_objective(
    program: Program,
    parameters: Parameters,
    controls: Float[Numeric, " controls"],
    end: tuple[State, Float[Array, ""]],
) -> Float[Array, ""]:
    """Phi of the final state of one run plus the integral; `controls` are those of the end."""
    state, integral = end
    if program.integrates_risk:
        return integral
    shared = insert_controls(parameters["shared"], controls)
    watched = _watch_parameters(parameters, shared, parameters["alpha"])
    watch: Any = program.watch
    if program.final_objective is not None:
        watch = replace(watch, criterion=program.final_objective)
    return watch.value(watched, state) + integral


def _mean_objective(
    program: Program, parameters: Parameters, values: Float[Numeric, "pieces controls"]
) -> Float[Array, ""]:
    """J(u), the mean over runs."""

    def run_objective(initial_state: State) -> Float[Array, ""]:
        path = _integrate_run(program, parameters, values, initial_state)
        end = jax.tree.map(lambda value: value[-1], path)
        return _run_objective(program, parameters, values[-1], end)

    return jnp.mean(jax.vmap(run_objective)(parameters["states"]))


@partial(jax.jit, static_argnums=0)
def value_and_gradient(
    program: Program, parameters: Parameters, values: Float[Numeric, "pieces controls"]
) -> tuple[Float[Array, ""], Float[Array, "pieces controls"]]:
    """J(u) and its gradient dJ/du for all pieces."""
    return jax.value_and_grad(partial(_mean_objective, program, parameters))(values)


@partial(jax.jit, static_argnums=0)
def objectives(
    program: Program, parameters: Parameters, values: Float[Numeric, "protocols pieces controls"]
) -> Float[Array, " protocols"]:
    """J(u) of several protocols."""
    return jax.vmap(partial(_mean_objective, program, parameters))(values)


@partial(jax.jit, static_argnums=0)
def trajectory(
    program: Program, parameters: Parameters, values: Float[Numeric, "pieces controls"]
) -> tuple[Any, Any, Any]:
    """J(u), the mean risk over runs at each edge, and the final states of all runs.

    At an edge the parameters are those of the piece that ends there. Without a risk the risks are
    NaN.
    """
    pieces = values.shape[0]
    initial = jax.tree.map(jnp.asarray, parameters["states"])
    states, integrals = jax.vmap(partial(_integrate_run, program, parameters, values))(initial)
    end = (jax.tree.map(lambda value: value[:, -1], states), integrals[:, -1])
    run_objective = partial(_run_objective, program, parameters, values[-1])
    value = jnp.mean(jax.vmap(run_objective)(end))
    if not program.has_risk:
        return value, jnp.full(pieces + 1, jnp.nan), end[0]

    def mean_risk(edge: tuple[Scalar, Array, State]) -> Float[Array, ""]:
        alpha, controls, runs = edge
        shared = insert_controls(parameters["shared"], controls)
        watched = _watch_parameters(parameters, shared, alpha)
        return jnp.mean(jax.vmap(lambda state: program.watch.value(watched, state))(runs))

    edge_states = jax.tree.map(
        lambda first, later: jnp.concatenate([first[None], jnp.moveaxis(later, 1, 0)]),
        initial,
        states,
    )
    edges = parameters["alpha"] * jnp.arange(pieces + 1) / pieces
    edge_controls = jnp.concatenate([values[:1], values])
    return value, jax.lax.map(mean_risk, (edges, edge_controls, edge_states)), end[0]
