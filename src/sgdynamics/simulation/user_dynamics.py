"""Runs of a user's dynamics at finite d: one step after the other, from a state of named arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base.arrays import (
    IntScalar,
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


class UserChain(Simulator):
    """`definition.step(numbers, state, key)`, the numbers read at alpha = steps batch/d."""

    def __init__(
        self, definition: Any, numbers: dict[str, Any], batch: int, states: dict[str, np.ndarray]
    ) -> None:
        self.definition, self.numbers, self.states = definition, numbers, states
        self.share = np.float64(batch / numbers["dimension"])

    def initial(self, chosen: np.ndarray) -> Any:
        return {name: jnp.asarray(value[chosen]) for name, value in self.states.items()}

    def advance(
        self,
        state: State,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        return _advance_own(
            self.definition,
            observation.observe,
            self.numbers,
            self.share,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: State) -> dict[str, Any]:
        return dict(state)

    @property
    def grain(self) -> int:
        return 1


@partial(jax.jit, static_argnums=(0, 1))
def _advance_own(
    definition: Any,
    see: Observe | None,
    numbers: Parameters,
    share: Scalar,
    state: State,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> tuple[Any, Any, Any]:
    def step(number: IntScalar, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        state, good, seen = carry
        now = {**values_at(numbers, number * share), "alpha": number * share}

        def one(state: State, key: RandomKey, seen: PyTree) -> tuple[Any, Any]:
            moved = definition.step(now, state, step_key(key, number))
            return moved, seen if see is None else see(given, seen, number + 1, moved)

        state, seen = jax.vmap(one)(state, keys, seen)
        fine = jnp.stack(
            [
                jnp.all(jnp.abs(leaf.reshape(len(keys), -1)) < LARGEST, axis=1)
                for leaf in jax.tree.leaves(state)
            ]
        ).all(axis=0)
        return state, jnp.where(fine, number + 1, good), seen

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), seen))
