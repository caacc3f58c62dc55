"""Epochs of SGD with small batches over a fixed data set, in d dimensions: a step reads the samples of its batch and no others."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import elapsed_at, numbers_of_step
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, RandomKey, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.random import normals_and_uniforms, run_keys, step_key
from sgdynamics.fixed_data.direct import (
    Data,
    DirectFixedData,
    Options,
    Watching,
    Weights,
    losses_on,
    weighted,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.exact import LARGEST
from sgdynamics.simulation.running import UNSEEN, Advanced, Watched


class DirectEpochs(DirectFixedData):
    """Runs of `EpochSGD`: the data sets, starts, risks and memory are those of `DirectFixedData`, and all runs go together.

    A run that reshuffles keeps the order of the samples in this epoch and in the next, in place of which samples are in use. The first
    epoch goes through them as they were drawn.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: EpochSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        dtype: str = "float64",
        seed: int = 0,
        shared_data: bool = False,
    ) -> None:
        super().__init__(problem, algorithm, begin, dimension, sizes, dtype, seed, shared_data)
        self.options = Options(selects=False, hot=False, shared=shared_data, together=True)
        self.engine = "xla"  # a step reads its batch, not the data set
        self.order, self.batch = algorithm.order, algorithm.batch

    def initial(self, chosen: np.ndarray) -> Weights:
        begun = super().initial(chosen)
        return begun._replace(
            selected=_first_orders(self.samples, run_keys(self.seed, chosen))
            if self.order == "reshuffle"
            else None
        )

    def advance(
        self, state: Weights, keys: RandomKeys, since: int, end: int, watch: Watched = UNSEEN
    ) -> Advanced:
        self.now = float(elapsed_at(self.algorithm["lr"], end))
        setting = (
            self.structure,
            self.options.shared,
            self.order,
            self.batch,
            Watching(watch.see, self.edges),
        )
        moved = (state, keys, np.int64(since), np.int64(end), watch.seen, watch.given)
        return _advance_epochs(*setting, self.parameters, self.algorithm, self.data, *moved)


def _order(samples: int, key: RandomKey, epoch: IntScalar) -> Int[Numeric, " n"]:
    return jax.random.permutation(step_key(jax.random.fold_in(key, 3), epoch), samples).astype(
        jnp.int32
    )


@float64
@partial(jax.jit, static_argnums=0)
def _first_orders(samples: int, keys: RandomKeys) -> Int[Numeric, "runs 2 n"]:
    return jax.vmap(
        lambda key: jnp.stack(
            [jnp.arange(samples, dtype=jnp.int32), _order(samples, key, jnp.int64(1))]
        )
    )(keys)


@float64
@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _advance_epochs(
    structure: Structure,
    shared: bool,
    order: str,
    batch: int,
    watching: Watching,
    parameters: Parameters,
    algorithm: Parameters,
    data: Data,
    state: Weights,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree = None,
    given: PyTree = None,
) -> tuple[Weights, Int[Numeric, " runs"], Any]:
    """All runs from step `since` to step `end`, for each the last step at which it was finite, and what was seen."""
    tokens = structure.sample.tokens.inputs_per_sample
    n = data.inputs.shape[-2] // tokens

    def step(
        number: IntScalar, data: Data, state: Weights, good: IntScalar, seen: PyTree, key: RandomKey
    ) -> tuple[Weights, Int[Numeric, ""], Any]:
        place = number * batch + jnp.arange(batch)
        epoch = place[0] // n
        if order == "reshuffle":
            began = (epoch > 0) & (epoch > (place[0] - batch) // n)
            # the number is one for all runs: orders are drawn when an epoch begins, not looked at in every step
            orders = jax.lax.cond(
                began,
                lambda both: jnp.stack([both[1], _order(n, key, epoch + 1)]),
                lambda both: both,
                state.selected,
            )
            state = state._replace(selected=orders)
            chosen = orders[place // n - epoch, place % n]
        elif order == "fixed":
            chosen = place % n
        else:
            uniform = normals_and_uniforms(step_key(jax.random.fold_in(key, 1), number), 0, batch)[
                1
            ]
            chosen = jnp.floor(uniform * n).astype(jnp.int32)
        inputs = (tokens * chosen[:, None] + jnp.arange(tokens)).reshape(-1)
        drawn = Data(
            data.inputs[inputs],
            data.signals[inputs],
            jax.tree.map(lambda leaf: leaf[chosen], data.given),
        )
        state = _batch_step(structure, parameters, algorithm, drawn, state, number)
        limit = jnp.asarray(LARGEST if state.rows.dtype == jnp.float64 else 1e15, state.rows.dtype)
        fine = jnp.all(jnp.abs(state.rows) < limit) & jnp.all(jnp.abs(state.head) < limit)
        return (
            state,
            jnp.where(fine, number + 1, good),
            watching.noted(structure, parameters, given, seen, number + 1, state),
        )

    def all_runs(
        number: IntScalar, carry: tuple[Weights, Any, Any]
    ) -> tuple[Weights, Int[Numeric, " runs"], Any]:
        return jax.vmap(partial(step, number), in_axes=(None if shared else 0, 0, 0, 0, 0))(
            data, *carry, keys
        )

    return jax.lax.fori_loop(
        since, end, all_runs, (state, jnp.broadcast_to(since, keys.shape), seen)
    )


def _batch_step(
    structure: Structure,
    parameters: Parameters,
    algorithm: Parameters,
    drawn: Data,
    state: Weights,
    number: IntScalar,
) -> Weights:
    """One step of one run on the samples of a batch."""
    rows, head, _, first_risk = state
    parameters, algorithm = numbers_of_step(parameters, algorithm, number)
    parameters, dtype = as_dtype(parameters, rows.dtype), rows.dtype
    risk, (h, head_h) = losses_on(structure, parameters, drawn, rows, head)
    count = head_h.shape[0]
    gradient, head_gradient = weighted(h, drawn.inputs) / count, jnp.sum(head_h, axis=0) / count
    lr, rate = (algorithm[name].astype(dtype) for name in ("lr", "head_rate"))
    moved, head = Stride(lr, rate, parameters["weight_decay"], structure).move(
        rows, head, (gradient, head_gradient)
    )
    if structure.constraint.fixes_norms:
        length = jnp.sum((lr * gradient) ** 2, axis=1)
        moved = jnp.where(jnp.any(length > 4) & (risk > first_risk), jnp.nan, moved)
    return state._replace(rows=moved, head=head)
