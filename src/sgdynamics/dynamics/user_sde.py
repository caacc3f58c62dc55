"""The SDE of a user's dynamics: ds = rate dt + noise dW, in the Ito sense.

A step of length h is a Strang splitting: half of the drift (explicit midpoint rule), all of the
noise (Euler-Maruyama, whose increment has mean zero as an Ito integral requires), half of the
drift. Its weak order is 2 for noise that does not depend on the state and 1 otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import (
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    Scalar,
    State,
)
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.base.random import normals_and_uniforms
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.dynamics.requests import Arrays
from sgdynamics.results.clock import plan_steps
from sgdynamics.sde.paths import FIRST_STEPS, MOST_STEPS, STEP_TOLERANCE, VariableStepSimulator
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    run,
)

# Intervals of the noiseless path, at whose ends step lengths are compared.
COMPARISON_INTERVALS = 16


class UserPaths(VariableStepSimulator):
    """Paths of the SDE of a user's dynamics.

    `values` are those of the user's methods; the dimension of the drift may differ from that of
    the noise (infinite for `higher_order=False`). `amplitude` multiplies the noise.
    """

    def __init__(
        self,
        problem: Dynamics,
        values: Parameters,
        drift_dimension: float,
        states: Arrays,
        amplitude: float = 1.0,
    ) -> None:
        self.problem, self.states = problem, states
        self.sources = _count_sources(problem, values, states)
        self.parameters = {
            "values": values,
            "drift_dimension": np.float64(drift_dimension),
            "amplitude": np.float64(amplitude),
        }

    def initial(self, chosen: np.ndarray) -> dict[str, Any]:
        return {name: jnp.asarray(value[chosen]) for name, value in self.states.items()}

    def advance(
        self,
        state: State,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        plan = {"edges": self.edges, "lengths": self.lengths, "positions": self.interval_starts}
        return _advance(
            self.problem,
            self.sources,
            observation.observe,
            {**self.parameters, **plan},
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: State) -> dict[str, Any]:
        return dict(state)


def _at_position(values: Parameters, position: Scalar) -> tuple[Parameters, Any]:
    """The user's argument `values` at a position of the integration, and dt/d position.

    The position is alpha if lr is a schedule, and t = lr alpha / batch otherwise.
    """
    lr = values["algorithm"]["lr"]
    alpha = position if is_scheduled(lr) else position * values["batch"] / lr
    current = {**values_at(values, alpha), "alpha": alpha}
    return current, (current["algorithm"]["lr"] / current["batch"] if is_scheduled(lr) else 1.0)


def _drift(problem: Dynamics, parameters: Parameters, position: Scalar, state: State) -> State:
    """d state / d position without noise."""
    values, dt = _at_position(parameters["values"], position)
    values = {**values, "dimension": parameters["drift_dimension"]}
    return jax.tree.map(lambda rate: rate * dt, problem.rate(values, dict(state)))


def _move(state: State, rates: State, length: Scalar) -> State:
    return jax.tree.map(lambda value, rate: value + length * rate, dict(state), rates)


def _drift_step(
    problem: Dynamics, parameters: Parameters, position: Scalar, state: State, length: Scalar
) -> State:
    """One step of the ODE by the explicit midpoint rule, of second order."""
    slope = _drift(problem, parameters, position, state)
    middle = _move(state, slope, length / 2)
    slope = _drift(problem, parameters, position + length / 2, middle)
    return _move(state, slope, length)


def _sde_step(
    problem: Dynamics,
    parameters: Parameters,
    position: Scalar,
    state: State,
    length: Scalar,
    normals: Float[Numeric, " sources"],
) -> State:
    half = length / 2
    state = _drift_step(problem, parameters, position, state, half)
    values, dt = _at_position(parameters["values"], position + half)
    # Var(dW) = dt, the time that the step takes in t whatever the variable of the integration
    scale = parameters["amplitude"] * jnp.sqrt(length * dt)
    noise = problem.noise(values, dict(state))
    state = {name: value + scale * (noise[name] @ normals) for name, value in state.items()}
    return _drift_step(problem, parameters, position + half, state, half)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    problem: Dynamics,
    sources: int,
    observe: Observe | None,
    parameters: Parameters,
    state: State,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    record: PyTree,
    watch_parameters: PyTree,
) -> tuple[Any, Any, Any]:
    """Advance all runs from step `since` to step `end`."""

    def step(index: IntScalar, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        states, last_good, record = carry
        interval = jnp.searchsorted(parameters["edges"], index, side="right") - 1
        length = parameters["lengths"][interval]
        steps_before = index - parameters["edges"][interval]
        position = parameters["positions"][interval] + steps_before * length

        def advance_run(state: State, key: RandomKey, record: PyTree) -> tuple[Any, Any]:
            normals, _ = normals_and_uniforms(jax.random.fold_in(key, index), sources, 0)
            state = _sde_step(problem, parameters, position, state, length, normals)
            if observe is not None:
                record = observe(watch_parameters, record, index + 1, dict(state))
            return state, record

        states, record = jax.vmap(advance_run)(states, keys, record)
        finite = [
            jnp.all(jnp.abs(leaf.reshape(len(keys), -1)) < LARGEST, axis=1)
            for leaf in jax.tree.leaves(states)
        ]
        is_good = jnp.stack(finite).all(axis=0)
        return states, jnp.where(is_good, index + 1, last_good), record

    start = (dict(state), jnp.broadcast_to(since, keys.shape), record)
    return jax.lax.fori_loop(since, end, step, start)


def _count_sources(problem: Dynamics, values: Parameters, states: Arrays) -> int:
    """The number of independent Brownian motions, from the last axis of the user's noise."""
    first = {name: jnp.asarray(value[0]) for name, value in states.items()}
    current, _ = _at_position(values, 0.0)
    noise = jax.eval_shape(problem.noise, current, first)
    shapes = {name: tuple(leaf.shape) for name, leaf in dict(noise).items()}
    counts = {shape[-1] for shape in shapes.values() if shape}
    expected = {name: (*value.shape, *counts) for name, value in first.items()}
    if len(counts) != 1 or shapes != expected:
        fix = (
            "for each variable, noise must return an array of the variable's shape with one more "
            "axis at the end, the independent Brownian motions"
        )
        raise checks.reject("noise", shapes, fix)
    return counts.pop()


def user_step_length(simulator: UserPaths, end: float) -> tuple[float, float]:
    """A step length and its error on the noiseless path of the first run.

    The error is below STEP_TOLERANCE, or the step is the shortest one allowed.

    A mode that decays at rate kappa has (kappa h)/sinh(kappa h) times its stationary variance in
    this scheme, so that (kappa h)^2/6 counts as an error too.
    """
    first = {name: value[:1] for name, value in simulator.states.items()}
    parameters = simulator.parameters
    noiseless = UserPaths(
        simulator.problem, parameters["values"], parameters["drift_dimension"], first, 0.0
    )
    points = np.linspace(0.0, end, COMPARISON_INTERVALS + 1)
    coarse, count = None, FIRST_STEPS
    while True:
        edges, lengths = plan_steps(points, end / count)
        noiseless.set_steps(edges, lengths)
        states, _ = run(noiseless, 1, edges, 0, "step length", False)
        if coarse is not None:
            # The scheme has order 2, so the error of the finer path is a third of the change.
            error = max(_largest_change(coarse[name], states[name]) / 3 for name in states)
            fastest = _fastest_rate(simulator.problem, parameters, points, states)
            error = max(error, (fastest * end / count) ** 2 / 6)
            if error <= STEP_TOLERANCE or count >= MOST_STEPS:
                return end / count, error
        coarse, count = states, 2 * count


def _largest_change(coarse: np.ndarray, fine: np.ndarray) -> float:
    """The largest difference of two paths relative to the largest value, where both are finite."""
    both = np.isfinite(coarse) & np.isfinite(fine)
    change = np.max(np.abs(fine - coarse)[both], initial=0.0)
    return float(change / np.max(np.abs(fine)[both], initial=1e-300))


def _fastest_rate(
    problem: Dynamics, parameters: Parameters, points: np.ndarray, states: Arrays
) -> float:
    """The largest modulus of the eigenvalues of the drift's Jacobian along the noiseless path."""
    jacobians = np.asarray(_jacobians(problem, parameters, points, states))
    finite = jacobians[np.isfinite(jacobians).all(axis=(-2, -1))]
    return float(np.abs(np.linalg.eigvals(finite)).max(initial=0.0)) if len(finite) else 0.0


@partial(jax.jit, static_argnums=0)
def _jacobians(
    problem: Dynamics, parameters: Parameters, points: Float[Numeric, " points"], states: State
) -> Float[Numeric, "points n n"]:
    def jacobian(position: Scalar, state: State) -> Float[Numeric, "n n"]:
        flat, unravel = ravel_pytree(state)
        return jax.jacfwd(
            lambda vector: ravel_pytree(_drift(problem, parameters, position, unravel(vector)))[0]
        )(flat)

    return jax.vmap(jacobian)(points, {name: value[0] for name, value in states.items()})
