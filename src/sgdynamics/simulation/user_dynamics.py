"""Runs of a user's dynamics at finite d: step by step, from a state of named arrays."""

from __future__ import annotations

from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

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
from sgdynamics.base.controls import values_at
from sgdynamics.base.random import step_key
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
)


@runtime_checkable
class SteppedDynamics(Protocol):
    """The part of a user's dynamics that a simulation needs; hashable, for compiled code."""

    def step(self, values: Parameters, state: State, key: RandomKey, /) -> State:
        """Return the state of one run after one step."""
        ...

    def __hash__(self) -> int: ...


class UserChain(Simulator):
    """Runs of `definition.step(values, state, key)`.

    Parameters
    ----------
    definition : SteppedDynamics
        The user's dynamics.
    values : dict
        Arguments of the step: parameters of the problem and the algorithm, batch and dimension.
        Schedules are evaluated at alpha = steps batch/d.
    batch : int
        Number of samples per step.
    states : dict of ndarray
        Initial states, with a leading axis of runs.
    """

    def __init__(
        self,
        definition: SteppedDynamics,
        values: Parameters,
        batch: int,
        states: dict[str, np.ndarray],
    ) -> None:
        self.definition, self.values, self.states = definition, values, states
        # alpha = samples/d, as for the problems of the library.
        self.alpha_per_step = np.float64(batch / values["dimension"])

    def initial(self, chosen: np.ndarray) -> dict[str, Array]:
        return {name: jnp.asarray(value[chosen]) for name, value in self.states.items()}

    def advance(
        self,
        state: State,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        return _advance_user_runs(
            self.definition,
            observation.observe,
            self.values,
            self.alpha_per_step,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: State) -> dict[str, Numeric]:
        # The state of a user's dynamics is saved as it is.
        return dict(state)

    @property
    def grain(self) -> int:
        return 1


@partial(jax.jit, static_argnums=(0, 1))
def _advance_user_runs(
    definition: SteppedDynamics,
    observe: Observe | None,
    values: Parameters,
    alpha_per_step: Scalar,
    state: State,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `since` to step `end`."""

    def make_step(
        index: IntScalar, carry: tuple[State, Int[Numeric, " runs"], PyTree]
    ) -> tuple[State, Int[Numeric, " runs"], PyTree]:
        """One step of all runs."""
        state, last_finite, records = carry
        alpha = index * alpha_per_step
        # The step of the user also receives alpha itself.
        current = {**values_at(values, alpha), "alpha": alpha}

        def advance_run(state: State, key: RandomKey, records: PyTree) -> tuple[State, PyTree]:
            # One key per run and step: results do not depend on pieces or on other runs.
            stepped = definition.step(current, state, step_key(key, index))
            if observe is not None:
                records = observe(shared, records, index + 1, dict(stepped))
            return stepped, records

        state, records = jax.vmap(advance_run)(state, keys, records)
        # A variable may have any number of axes behind the axis of runs, or none.
        leaves = [leaf.reshape(len(keys), -1) for leaf in jax.tree.leaves(state)]
        # Comparisons, because NaN < x is false.
        is_finite = [jnp.all(jnp.abs(leaf) < LARGEST, axis=1) for leaf in leaves]
        last_finite = jnp.where(jnp.stack(is_finite).all(axis=0), index + 1, last_finite)
        return state, last_finite, records

    carry = (state, jnp.broadcast_to(since, keys.shape), records)
    return jax.lax.fori_loop(since, end, make_step, carry)
