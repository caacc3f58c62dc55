"""One-pass SGD itself, in d dimensions, from a start with the given overlaps: what the exact chain is checked against."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, Rows, Stride, take_step
from sgdynamics.algorithms.updates import Law, copies
from sgdynamics.arrays import Keys, Numeric, OneKey, Scalar, Tree, Whole
from sgdynamics.compressed import first_scalars, sample_moves
from sgdynamics.controls import numbers_at
from sgdynamics.problems.losses import Seen
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, factor, frames, placed
from sgdynamics.random import step_key
from sgdynamics.samples.sample import Place, as_dtype
from sgdynamics.simulation.exact import GROUP_BYTES, LARGEST
from sgdynamics.simulation.running import UNSEEN, Advanced, See, Simulator, Watched, check_reach, moves_a_step


class DirectSGD(Simulator):
    """Runs in d dimensions. The data are isotropic in each covariance block, so the signals may lie along its first K axes and
    the rest of the rows along the next p: any other position is a rotation of this one."""

    def __init__(
        self, problem: Problem, algorithm: OnePassSGD, begin: Start, dimension: int, sizes: np.ndarray, dtype: str = "float64"
    ) -> None:
        self.structure = problem.structure
        self.batch = algorithm.batch
        self.law = algorithm.law
        self.dtype = np.dtype(dtype)
        cast = partial(np.asarray, dtype=self.dtype)
        self.parameters = jax.tree.map(cast, problem.parameters | {"frame": frames(problem, sizes)})
        self.algorithm = jax.tree.map(cast, algorithm.parameters)
        self.dimension = dimension
        check_reach(self, begin.runs, 0.0)  # before arrays of this dimension are made
        self.rows = np.concatenate(factor(problem, begin, sizes), axis=-1)
        self.head = begin.a
        self.edges = (0, *np.cumsum(sizes).tolist())  # of the blocks
        self.place = Place(*(cast(part) if part.dtype.kind == "f" else part for part in placed(problem, sizes)))

    def initial(self, chosen: np.ndarray) -> Rows:
        p, sets = self.structure.width, copies(self.law)
        weights = np.zeros((len(chosen), sets * p, self.dimension), self.dtype)  # the velocity, if any, is 0
        head = np.zeros((len(chosen), sets * p), self.dtype)
        head[:, :p] = self.head[chosen]
        weights[:, :p] = first_rows(self.rows[chosen], self.edges)
        scalars = jax.tree.map(lambda one: jnp.broadcast_to(one.astype(self.dtype), (len(chosen),)), first_scalars(self.law))
        return Rows(jnp.asarray(weights), jnp.asarray(head), scalars)

    def advance(self, state: Rows, keys: Keys, since: int, end: int, watch: Watched = UNSEEN) -> Advanced:
        numbers = (self.parameters, self.algorithm, self.place)
        plan = (self.structure, self.batch, self.law, self.edges)
        return _advance_weights(plan, watch.see, numbers, state, keys, np.int64(since), np.int64(end), watch.seen, watch.given)

    def overlaps(self, state: Rows) -> dict[str, Any]:
        weights, head = (np.asarray(part, dtype=np.float64)[:, : self.structure.width] for part in state[:2])
        M, Q = direct_overlaps(np, self.structure.signals, self.edges, np.asarray(self.parameters["frame"], dtype=np.float64), weights)
        return {"M": M, "Q": Q, "a": head}

    @property
    def grain(self) -> int:
        return 1

    def largest_group(self) -> int:
        return max(1, GROUP_BYTES // self.bytes_a_run())

    @property
    def size(self) -> tuple[int, ...]:
        return self.batch, self.structure.width, self.dimension

    @property
    def moves(self) -> float:
        return moves_a_step(self.algorithm)

    def bytes_a_run(self, steps: float = 0.0) -> int:
        return self.dimension * (2 * copies(self.law) * self.structure.width + 3 * self.batch) * self.dtype.itemsize


def first_rows(rows: np.ndarray, edges: tuple[int, ...]) -> np.ndarray:
    """Rows (..., blocks, p, K + p) along the first axes of every block of d coordinates; a small block has fewer."""
    weights = np.zeros((*rows.shape[:-3], rows.shape[-2], edges[-1]))
    for block, (low, high) in enumerate(pairwise(edges)):
        there = min(high - low, rows.shape[-1])
        weights[..., low : low + there] = rows[..., block, :, :there]
    return weights


def direct_overlaps(
    numpy: ModuleType, signals: int, edges: tuple[int, ...], frame: Float[Numeric, "blocks K K"], weights: Float[Numeric, "runs p d"]
) -> tuple[Float[Numeric, "runs blocks p K"], Float[Numeric, "runs blocks p p"]]:
    """M and Q, block by block, of weights (..., p, d), in NumPy or jax.numpy."""
    M, Q = [], []
    for block, (low, high) in enumerate(pairwise(edges)):
        part = weights[..., low:high]
        M.append(part[..., :signals] @ frame[block][:, : high - low].T)
        Q.append(part @ numpy.swapaxes(part, -1, -2))
    return numpy.stack(M, axis=-3), numpy.stack(Q, axis=-3)


@partial(jax.jit, static_argnums=(0, 1))
def _advance_weights(
    plan: tuple[Any, ...],
    see: See | None,
    numbers: tuple[Any, ...],
    state: Rows,
    keys: Keys,
    since: Whole,
    end: Whole,
    seen: Tree,
    given: Tree,
) -> tuple[Rows, Int[Numeric, " runs"], Any]:
    (structure, batch, law, edges), (parameters, algorithm, place) = plan, numbers
    sample, (dimension,), dtype = structure.sample, place.spread.shape, place.spread.dtype

    def one(number: Whole, state: Rows, key: OneKey, seen: Tree) -> tuple[Rows, Any]:
        data_key, noise_key = jax.random.split(step_key(key, number))
        normals = jax.random.normal(data_key, (batch, *sample.token_shape, dimension), dtype)
        draws = sample.drawn(parameters, jax.random.normal(noise_key, (batch, sample.draw_normals), dtype))
        x = sample.inputs_in_space(parameters, normals, draws, place)
        now, rates = as_dtype(numbers_at((parameters, algorithm), number * (batch / dimension)), dtype)
        state = direct_step(structure, (now, rates), rates["lr"] / dimension, state, x, sample.given(draws), place, law, number)
        if see is not None:
            M, Q = direct_overlaps(jnp, structure.signals, edges, parameters["frame"], state.rows[: structure.width])
            seen = see(given, seen, number + 1, {"M": M, "Q": Q, "a": state.head[: structure.width]})
        return state, seen

    def step(number: Whole, carry: tuple[Any, Any, Any]) -> tuple[Rows, Int[Numeric, " runs"], Any]:
        state, good, seen = carry
        state, seen = jax.vmap(partial(one, number))(state, keys, seen)
        # the first few coordinates carry the signals and the start: cheap to watch, and a diverging run blows up there
        limit = jnp.asarray(LARGEST if dtype == jnp.float64 else 1e15, dtype)
        watched = jnp.abs(state.rows[:, :, place.axes]) < limit
        fine = jnp.all(watched, axis=(1, 2)) & jnp.all(jnp.abs(state.head) < limit, axis=1)
        return state, jnp.where(fine, number + 1, good), seen

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), seen))


def direct_step(
    structure: Structure,
    numbers: tuple,
    rate: Scalar,
    state: Rows,
    x: Float[Numeric, "inputs d"],
    noise: Tree,
    place: Place,
    law: Law | None = None,
    number: Whole = 0,
) -> Rows:
    """One step on weights (p, d) and head (p) from inputs x (inputs, d): plain SGD, or an update's (momentum: 2p for p)."""
    parameters, algorithm = numbers
    signals, batch = x[:, place.axes] @ place.signals.T, x.shape[0] // structure.sample.inputs_a_sample

    def gradient(weights: Float[Numeric, "p d"], head: Float[Numeric, " p"]) -> tuple[Float[Numeric, "p d"], Float[Numeric, " p"]]:
        fields = x @ weights.T
        reading, lengths = parameters, None
        if structure.loss.pulls:
            Q, M = weights @ weights.T, weights[:, place.axes] @ place.signals.T
            reading = {**parameters, "overlaps": Seen(Q, M, (place.signals @ place.signals.T).astype(Q.dtype))}
        if structure.loss.reads_lengths:
            tokens = x.reshape(batch, -1, x.shape[1])
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / x.shape[1]
        h, head_gradient, pulls = sample_moves(structure, reading, fields, signals, head, noise, lengths)
        found = h.T @ x / batch
        if pulls is not None:
            pull = jnp.mean(pulls, axis=0)
            found = found + pull[:, : len(weights)] @ weights
            found = found.at[:, place.axes].add(pull[:, len(weights) :] @ place.signals.astype(found.dtype))
        return found, jnp.mean(head_gradient, axis=0)

    stride = Stride(rate, algorithm["head_rate"], parameters["weight_decay"], structure)
    return take_step(law, algorithm, state, gradient, stride, x.shape[1], number)
