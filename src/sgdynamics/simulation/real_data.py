"""One-pass SGD on real samples, drawn with replacement in each step.

`analysis.real_data.gap_on_data` compares these runs with the theory for Gaussian inputs of the same
spectrum.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.update import Law
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, RandomKey, RandomKeys
from sgdynamics.base.controls import alpha_of_steps, values_at
from sgdynamics.base.random import step_key
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples.inputs import Embedding
from sgdynamics.simulation.direct import DirectSGD, direct_step, draw_kicks
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    RunSetting,
)


class SampleValues(NamedTuple):
    """Traced values that all runs share.

    Attributes
    ----------
    parameters, hyperparameters : dict
        Parameters of the problem and hyperparameters of the algorithm.
    embedding : Embedding
        Position of the signals.
    z : array, (n, d)
        The samples, in coordinates of the spectrum.
    draws : array, (n,), or None
        Label noise of each sample, in its standard deviations; None to draw normals in each step.
    """

    parameters: Parameters
    hyperparameters: Parameters
    embedding: Embedding
    z: Float[Numeric, "n d"]
    draws: Float[Numeric, " n"] | None


class RealDataSGD(DirectSGD):
    """Runs in d dimensions on real samples.

    Parameters
    ----------
    problem : Problem
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    start : Start
        Initial condition of the runs.
    z : ndarray, (n, d)
        The samples, in coordinates of the spectrum.
    draws : ndarray, (n,), or None
        Label noise of each sample, in its standard deviations; None to draw normals in each step.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        start: Start,
        z: np.ndarray,
        draws: np.ndarray | None,
    ) -> None:
        # Each eigendirection of the data is a covariance block of one coordinate.
        block_sizes = np.ones(z.shape[1], dtype=np.int64)
        super().__init__(problem, algorithm, RunSetting(start, z.shape[1], block_sizes))
        self.z, self.draws = jnp.asarray(z), None if draws is None else jnp.asarray(draws)

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        values = SampleValues(self.parameters, self.algorithm, self.embedding, self.z, self.draws)
        state, last_finite = _advance(
            self.structure,
            self.batch,
            self.law,
            values,
            state,
            keys,
            np.int64(since),
            np.int64(end),
        )
        return state, last_finite, observation.records

    def overlaps(self, state: Rows) -> dict[str, np.ndarray]:
        """Overlaps, and the mean loss over the samples as "data_risk".

        Label noise is part of it only if the samples have their own.
        """
        # The risk of the theory, with the empirical mean in place of the population mean.
        risks = _data_risks(
            self.structure, self.parameters, self.embedding, self.z, self.draws, state
        )
        return super().overlaps(state) | {"data_risk": np.asarray(risks)}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    structure: Structure,
    batch: int,
    law: Law | None,
    values: SampleValues,
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
) -> tuple[Rows, Int[Numeric, " runs"]]:
    """Advance all runs from step `since` to step `end`."""
    parameters, hyperparameters, embedding, z, draws = values
    n, dimension = z.shape

    def advance_run(index: IntScalar, state: Rows, key: RandomKey) -> Rows:
        """One step of one run."""
        sample_key, noise_key = jax.random.split(step_key(key, index))
        # With replacement: all steps have the same law, as in the theory of fresh samples.
        samples = jax.random.randint(sample_key, (batch,), 0, n)
        noise = jax.random.normal(noise_key, (batch,), z.dtype) if draws is None else draws[samples]
        alpha = alpha_of_steps(index, batch, dimension)
        current, rates = values_at((parameters, hyperparameters), alpha)
        # A key folded out of the noise key: independent of the labels.
        kicks = draw_kicks(law, noise_key, (structure.width, dimension), z.dtype)
        return direct_step(
            structure,
            (current, rates),
            rates["lr"] / dimension,
            state,
            z[samples],
            noise,
            embedding,
            law,
            index,
            kicks=kicks,
        )

    def make_step(
        index: IntScalar, carry: tuple[Rows, Int[Numeric, " runs"]]
    ) -> tuple[Rows, Int[Numeric, " runs"]]:
        """One step of all runs."""
        state, last_finite = carry
        state = jax.vmap(partial(advance_run, index))(state, keys)
        # All coordinates are checked: real samples may be large in any of them.
        is_finite = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2)) & jnp.all(
            jnp.abs(state.head) < LARGEST, axis=1
        )
        return state, jnp.where(is_finite, index + 1, last_finite)

    return jax.lax.fori_loop(since, end, make_step, (state, jnp.broadcast_to(since, keys.shape)))


@partial(jax.jit, static_argnums=0)
def _data_risks(
    structure: Structure,
    parameters: Parameters,
    embedding: Embedding,
    z: Float[Numeric, "n d"],
    draws: Float[Numeric, " n"] | None,
    state: Rows,
) -> Float[Numeric, " runs"]:
    """Mean loss of each run over the samples."""
    signals = z[:, embedding.axes] @ embedding.signals.T
    # Without label noise of the samples, the caller adds the noise floor.
    noise = jnp.zeros(len(z)) if draws is None else draws

    def mean_loss(weights: tuple[Numeric, Numeric]) -> Array:
        rows, head = weights
        fields = z @ rows[: structure.width].T
        losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
            fields, signals, head[: structure.width], noise, parameters
        )
        return jnp.mean(losses)

    # One run after the other: the fields of all runs at once may not fit into memory.
    return jax.lax.map(mean_loss, (state.rows, state.head))
