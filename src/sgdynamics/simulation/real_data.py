"""One-pass SGD on real samples, drawn again and again: what the Gaussian theory of their spectrum is laid beside."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, RandomKey, RandomKeys
from sgdynamics.base.controls import alpha_of_steps, values_at
from sgdynamics.base.random import step_key
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.simulation.direct import DirectSGD, direct_step, draw_kicks
from sgdynamics.simulation.running import LARGEST, NO_OBSERVATION, AdvanceResult, Observation


class RealDataSGD(DirectSGD):
    """Runs in d dimensions on samples `z` (n, d), in the coordinates of the spectrum; `draws` (n,) are their label noise, in its standard
    deviations, fresh normals where they are None."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        z: np.ndarray,
        draws: np.ndarray | None,
    ) -> None:
        sizes = np.ones(z.shape[1], dtype=np.int64)
        super().__init__(problem, algorithm, begin, z.shape[1], sizes)
        self.z, self.draws = jnp.asarray(z), None if draws is None else jnp.asarray(draws)

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        numbers = (self.parameters, self.algorithm, self.embedding, self.z, self.draws)
        state, good = _advance(
            self.structure,
            self.batch,
            self.law,
            numbers,
            state,
            keys,
            np.int64(since),
            np.int64(end),
        )
        return state, good, observation.records

    def overlaps(self, state: Rows) -> dict[str, Any]:
        """With the mean loss over the samples, label noise left out where it is not theirs."""
        return super().overlaps(state) | {
            "data_risk": np.asarray(
                _risks(self.structure, self.parameters, self.embedding, self.z, self.draws, state)
            )
        }


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    structure: Structure,
    batch: int,
    law: Any,
    numbers: tuple[Any, ...],
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
) -> tuple[Rows, Int[Numeric, " runs"]]:
    parameters, algorithm, place, z, draws = numbers
    n, dimension = z.shape

    def one(number: IntScalar, state: Rows, key: RandomKey) -> Rows:
        which_key, noise_key = jax.random.split(step_key(key, number))
        which = jax.random.randint(which_key, (batch,), 0, n)
        noise = jax.random.normal(noise_key, (batch,), z.dtype) if draws is None else draws[which]
        now, rates = values_at((parameters, algorithm), alpha_of_steps(number, batch, dimension))
        kicks = draw_kicks(law, noise_key, (structure.width, dimension), z.dtype)
        return direct_step(
            structure,
            (now, rates),
            rates["lr"] / dimension,
            state,
            z[which],
            noise,
            place,
            law,
            number,
            kicks=kicks,
        )

    def step(number: IntScalar, carry: tuple[Rows, Any]) -> tuple[Rows, Any]:
        state, good = carry
        state = jax.vmap(partial(one, number))(state, keys)
        fine = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2)) & jnp.all(
            jnp.abs(state.head) < LARGEST, axis=1
        )
        return state, jnp.where(fine, number + 1, good)

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape)))


@partial(jax.jit, static_argnums=0)
def _risks(
    structure: Structure,
    parameters: Parameters,
    place: Any,
    z: Float[Numeric, "n d"],
    draws: PyTree,
    state: Rows,
) -> Float[Numeric, " runs"]:
    signals = z[:, place.axes] @ place.signals.T
    noise = jnp.zeros(len(z)) if draws is None else draws

    def one(each: tuple[Any, Any]) -> Any:
        rows, head = each
        fields = z @ rows[: structure.width].T
        losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
            fields, signals, head[: structure.width], noise, parameters
        )
        return jnp.mean(losses)

    return jax.lax.map(one, (state.rows, state.head))
